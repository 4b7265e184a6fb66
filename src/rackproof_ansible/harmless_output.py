"""Print a node's answer for the callback, without escapes, limited, and never at the start of a line.

The callback ``rackproof`` calls :func:`clean_display` once. Ansible's display then passes each message
through :func:`harmless`.
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
    """Return a message in a form that is safe for a terminal."""
    shown_text = message[:SHOWN_CHARACTERS]
    shown_text = _HARMFUL.sub("", shown_text)
    if message.startswith(("[ERROR]", "[WARNING]")):
        # Ansible indents results, but prints errors and warnings as they are.
        shown_text = _LINE_OF_ITS_OWN.sub("\n  ", shown_text)
    characters_left = len(message) - SHOWN_CHARACTERS
    return f"{shown_text}… ({characters_left} more characters)" if characters_left > 0 else shown_text


def clean_display() -> None:
    """Pass all output of Ansible through :func:`harmless`.

    Callbacks get results, not the printed text.
    """
    if hasattr(Display.display, "__wrapped_by_rackproof__"):
        return
    original = Display.display

    @functools.wraps(original)
    def display(self: Display, msg: str, *args: Any, **options: Any) -> None:
        original(self, harmless(msg) if isinstance(msg, str) else msg, *args, **options)

    display.__wrapped_by_rackproof__ = True  # type: ignore[attr-defined]
    Display.display = display
