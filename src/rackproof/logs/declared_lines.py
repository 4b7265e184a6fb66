"""Check an operator's declarations of harmless kernel log lines, and find the declaration for a line.

``rackproof parse`` and job validate pass the declarations to :func:`read_declared`. Each is a mapping::

    {pattern: "foo_driver: link training retried", why: "vendor's ticket 123", until: 2027-01-31}

Declarations apply only to lines that no rule recognizes. A known fault therefore counts even if a
declaration matches its line. The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime

from rackproof.core.errors import RackproofError
from rackproof.core.patterns import compiled_pattern
from rackproof.core.records import Record
from rackproof.core.text import sanitize

MOST_DECLARED = 200
"""Largest number of declarations."""
LONGEST_PATTERN = 300
"""Largest number of characters of a pattern."""
FEWEST_LETTERS = 8
"""Smallest number of letters and digits that a pattern requires. With fewer, it may match unknown faults."""
_NO_LETTERS = re.compile(
    r"(?s)\\Q.*?(?:\\E|$)|\\[pPx](?:\{[^}]*\}|[0-9A-Fa-f]{2}|.)|\\[0-7]+|\\."
    r"|\[\^?\]?(?:\[:[^]]*:\]|\\.|[^]\\])*\]|\(\?[A-Za-z-]*\)"
)
"""Pattern of the quotations, escapes, sets and flags of RE2, in which no letter is counted."""
_COUNT = re.compile(r"\{(0*(?=[,}]))?\d*(?:,\d*)?\}\??")
"""Pattern of a repetition such as ``{2,5}``. Its group matches if zero repetitions suffice."""
_GROUP = re.compile(r"\((?:\?[A-Za-z-]*:|\?P?<\w+>)?([^()]*)\)([*?]\??)?")
"""Pattern of a group that contains no other group, with its contents and whether it is optional."""
_KEYS = ("pattern", "why", "until")


class DeclaredLinesError(RackproofError):
    """A declaration of harmless lines that cannot be used."""


class DeclaredLine(Record):
    """A pattern that matches the start of a harmless message, the reason, and the last day of validity."""

    pattern: str
    why: str
    until: date | None = None


class DeclaredLines:
    """The declarations of harmless lines, and the day on which their last days are checked."""

    def __init__(self, lines: Sequence[DeclaredLine], today: date) -> None:
        self._today = today
        self._lines = [(line, compiled_pattern(line.pattern)) for line in lines]

    def declaration(self, message: str) -> DeclaredLine | None:
        """Return a declaration that matches a message, if possible one that is still valid, or None."""
        # A byte that is not UTF-8 is a lone surrogate in the message. It cannot be encoded and becomes "?".
        begin = message[:500].encode("utf-8", "replace")
        fitting = [line for line, pattern in self._lines if pattern.match(begin)]
        return min(fitting, key=self.is_past, default=None)

    def is_past(self, line: DeclaredLine) -> bool:
        """Return whether the last day of a declaration is over."""
        return line.until is not None and line.until < self._today


def read_declared(raw: object, today: date, where: str) -> DeclaredLines:
    """Check an operator's declarations, and return them.

    Args:
        raw: The list of mappings with ``pattern``, ``why`` and optionally ``until``.
        today: The date with which ``until`` is compared.
        where: Name of the variable or file in messages.

    Raises:
        DeclaredLinesError: An entry cannot be used. The message gives the entry and the remedy.
    """
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        raise DeclaredLinesError(
            f"{where}: must be a list of {{pattern, why, until}}, not {type(raw).__name__}"
        )
    if len(raw) > MOST_DECLARED:
        raise DeclaredLinesError(f"{where}: {len(raw)} entries; at most {MOST_DECLARED} are allowed")
    return DeclaredLines(
        [_entry(entry, f"{where}, entry {number}") for number, entry in enumerate(raw, 1)], today
    )


def _entry(raw: object, where: str) -> DeclaredLine:
    """Return one entry of the list of harmless lines.

    Raises:
        DeclaredLinesError: The entry lacks a key, has an unknown one, or has a value that cannot be used.
    """
    if not isinstance(raw, Mapping) or not {"pattern", "why"} <= set(raw) <= set(_KEYS):
        raise DeclaredLinesError(f"{where}: it has to have pattern and why, may have until, and no other key")
    pattern, why = raw["pattern"], raw["why"]
    if not isinstance(why, str) or len(why.strip()) < 3:
        raise DeclaredLinesError(
            f"{where}: why must give the reason for which the line is harmless, preferably with a link"
        )
    if not isinstance(pattern, str) or not 0 < len(pattern) <= LONGEST_PATTERN:
        raise DeclaredLinesError(f"{where}: pattern has to be a text of 1 to {LONGEST_PATTERN} characters")
    if problem := _why_unusable(pattern):
        raise DeclaredLinesError(f"{where}: pattern {sanitize(pattern, 80)!r} {problem}")
    return DeclaredLine(
        pattern=pattern, why=sanitize(why.strip(), 300), until=_until(raw.get("until"), where)
    )


def _until(raw: object, where: str) -> date | None:
    """Return the last day of an entry, or None.

    Raises:
        DeclaredLinesError: The value is not a date.
    """
    if raw is None:
        return None
    try:
        if isinstance(raw, datetime):
            return raw.date()
        return raw if isinstance(raw, date) else date.fromisoformat(str(raw))
    except ValueError:
        raise DeclaredLinesError(
            f"{where}: until has to be a date like 2027-01-31, not {raw!r:.40}"
        ) from None


def _why_unusable(pattern: str) -> str:
    """Return the reason why a pattern cannot be used, or ""."""
    try:
        compiled = compiled_pattern(pattern)
    except ValueError as error:
        return str(error)
    if compiled.match(b""):
        return "matches an empty text and therefore every line: begin it with the words of the message"
    if (letters := _letters(pattern)) < FEWEST_LETTERS:
        return (
            f"requires only {letters} letters or digits and could match other lines, too: write out at least "
            f"{FEWEST_LETTERS} of the message"
        )
    return ""


def _letters(pattern: str) -> int:
    """Return a lower bound of the number of letters and digits in a text that matches a pattern of RE2."""
    text = _NO_LETTERS.sub(".", pattern)
    text = _COUNT.sub(lambda count: "" if count[1] is None else "?", text)
    text = re.sub(r"\w[*?]\??", "", text)
    groups = 1
    while groups:
        text, groups = _GROUP.subn(lambda group: "" if group[2] else _fewest(group[1]), text)
    return len(_fewest(text))


def _fewest(alternatives: str) -> str:
    """Return the letters and digits of the alternative (``a|b``) that has the fewest of them."""
    return min(("".join(filter(str.isalnum, one)) for one in alternatives.split("|")), key=len)
