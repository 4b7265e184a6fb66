"""Suggest known names for a mistyped one.

Definitions, commands and the history call this module, so that their messages about unknown names have the
same form. The module does no I/O.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST_LISTED = 40
"""Largest number of known names that a message lists."""


def near_names(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return up to three similar names as text, the most similar one first, or "" if there is none.

    The arguments are as in :func:`near_text`.
    """
    # Case is ignored, because names that differ in nothing else would have no similarity (`GEMM`, `gemm`).
    folded = {known_name.casefold(): known_name for known_name in known}
    near = difflib.get_close_matches(name.casefold(), list(folded), n=3, cutoff=cutoff)
    return " or ".join(f"`{folded[known_name]}`" for known_name in near)


def near_text(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return the end of a message about an unknown name, with similar names or else the first known ones.

    Args:
        name: The name as typed.
        known: The names that exist. Without a similar name, the message lists the first
            :data:`_MOST_LISTED` of them in the order of the alphabet.
        cutoff: The least similarity of a suggestion, from 0 to 1.
    """
    names = sorted(set(known))
    if near := near_names(name, names, cutoff):
        return f"; did you mean {near}?"
    listed = ", ".join(names[:_MOST_LISTED]) or "none"
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"; there is: {listed}{more}"
