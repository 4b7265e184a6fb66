"""Make Ansible's messages, which contain answers of nodes, safe for a terminal.

The callback ``rackproof`` calls :func:`clean_display` once. Ansible's display then passes each message
through :func:`harmless`. That function removes escape sequences other than Ansible's colours, cuts off long
messages, and indents the lines of errors and warnings, which could otherwise imitate Ansible's own output.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from ansible.utils.display import Display

SHOWN_CHARACTERS = 256 * 1024
"""Largest number of characters in one message. A node may answer with megabytes."""

# Ansible's own colours remain. Other sequences move the cursor, rename the window or hide text.
_HARMFUL = re.compile(
    r"\x1b\[(?!(?:0|[01];[39][0-7])m)[0-?]*[ -/]*[@-~]?"
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    r"|\x1b(?!\[)[^\n]?"
    r"|\x9b[0-?]*[ -/]*[@-~]?"
    r"|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)
_LINE_OF_ITS_OWN = re.compile(r"\n(?=[^ \n])")


def harmless(message: str) -> str:
    """Return a message without harmful sequences, with at most :data:`SHOWN_CHARACTERS` of its characters."""
    shown_text = message[:SHOWN_CHARACTERS]
    shown_text = _HARMFUL.sub("", shown_text)
    if message.startswith(("[ERROR]", "[WARNING]")):
        # Ansible indents results, but prints errors and warnings as they are.
        shown_text = _LINE_OF_ITS_OWN.sub("\n  ", shown_text)
    characters_left = len(message) - SHOWN_CHARACTERS
    return f"{shown_text}… ({characters_left} more characters)" if characters_left > 0 else shown_text


def clean_display() -> None:
    """Pass all output of Ansible through :func:`harmless`.

    Ansible's display is replaced, because a callback gets results, but not the text that is printed.
    """
    if hasattr(Display.display, "__wrapped_by_rackproof__"):
        return
    original = Display.display

    @functools.wraps(original)
    def display(self: Display, msg: str, *args: Any, **options: Any) -> None:
        original(self, harmless(msg) if isinstance(msg, str) else msg, *args, **options)

    display.__wrapped_by_rackproof__ = True  # type: ignore[attr-defined]
    Display.display = display
