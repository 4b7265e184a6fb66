"""Read the lines of a kernel log that an operator declared harmless. No I/O.

``rackproof parse`` and job validate read the declarations here. They apply only to lines that no rule
recognizes, so that a declared line with a known fault still counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any

from rackproof.core.errors import RackproofError
from rackproof.core.patterns import (
    LARGEST_SMALL_REPEAT,
    inner_patterns,
    is_choice,
    is_repeat,
    parsed_pattern,
)
from rackproof.core.records import Record
from rackproof.core.text import sanitize

MOST_DECLARED = 200
LONGEST_PATTERN = 300
FEWEST_LETTERS = 8
"""Smallest number of literal characters in a pattern: with fewer, it would match lines not seen yet."""
MOST_OPEN_REPEATS = 2
"""Largest number of unbounded repeats in one pattern: each multiplies the time by the length of a line."""
MOST_CHOICES = 8
"""Largest number of places where a pattern may continue in several ways: each may double the time."""
_KEYS = ("pattern", "why", "until")


class DeclaredLinesError(RackproofError):
    """A declaration of harmless lines that cannot be used."""


class DeclaredLine(Record):
    """A pattern at the start of a kernel message, the reason why it is harmless, and its last day."""

    pattern: str
    why: str
    until: date | None = None


class DeclaredLines:
    """The declarations of harmless lines, each with whether it is valid today."""

    def __init__(self, lines: Sequence[DeclaredLine], today: date) -> None:
        self._today = today
        self._lines = [(line, re.compile(line.pattern)) for line in lines]

    def declaration(self, message: str) -> DeclaredLine | None:
        """Return the declaration that matches a message, if possible one that is still valid."""
        fitting = [line for line, pattern in self._lines if pattern.match(message[:500])]
        return min(fitting, key=self.is_past, default=None)

    def is_past(self, line: DeclaredLine) -> bool:
        """Return whether the last day of a declaration is over."""
        return line.until is not None and line.until < self._today


def read_declared(raw: object, today: date, where: str) -> DeclaredLines:
    """Return an operator's declarations after checking them.

    Args:
        raw: The list of mappings with ``pattern``, ``why`` and optionally ``until``.
        today: The date with which ``until`` is compared.
        where: Name of the variable or file in messages.

    Raises:
        DeclaredLinesError: An entry cannot be used. The message gives the entry and the remedy.
    """
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        raise DeclaredLinesError(f"{where}: a list of {{pattern, why, until}}, not {type(raw).__name__}")
    if len(raw) > MOST_DECLARED:
        raise DeclaredLinesError(f"{where}: {len(raw)} entries; at most {MOST_DECLARED} are read")
    return DeclaredLines([_entry(entry, f"{where}, entry {at}") for at, entry in enumerate(raw, 1)], today)


def _entry(raw: object, where: str) -> DeclaredLine:
    """Return one entry of the list of harmless lines.

    Raises:
        DeclaredLinesError: It lacks a key, has an unknown one, or its pattern cannot be used.
    """
    if not isinstance(raw, Mapping) or not {"pattern", "why"} <= set(raw) <= set(_KEYS):
        raise DeclaredLinesError(f"{where}: it has to have pattern and why, may have until, and nothing else")
    pattern, why = raw["pattern"], raw["why"]
    if not isinstance(why, str) or len(why.strip()) < 3:
        raise DeclaredLinesError(
            f"{where}: why must give the reason why the line is harmless, best with a link"
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
        DeclaredLinesError: It is not a date.
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
    """Return why a pattern cannot be used, or ""."""
    try:
        compiled = re.compile(pattern)
        parsed = parsed_pattern(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is not a regular expression: {error}"
    if compiled.match(""):
        return "fits every line: begin it with the words of the message"
    if (letters := _letters(parsed)) < FEWEST_LETTERS:
        return (
            f"names {letters} characters and would fit lines that were not seen yet: write out at least "
            f"{FEWEST_LETTERS} of the message's own"
        )
    choices = list(_choices(parsed, within_repeat=False))
    if "nested" in choices:
        return "has a repeat or a choice within a repeat, which may take hours on one line: write it without"
    if choices.count("open") > MOST_OPEN_REPEATS or len(choices) > MOST_CHOICES:
        return (
            f"has {choices.count('open')} open repeats (* or +) and {len(choices)} choices in all, which may "
            f"take hours on one line: use {MOST_OPEN_REPEATS} and {MOST_CHOICES} at most"
        )
    return ""


def _letters(parsed: Any) -> int:
    """Return the number of literal characters that a text needs to match a pattern."""
    count = 0
    for kind, value in parsed:
        if str(kind) == "LITERAL":
            count += chr(value).isalnum()
        elif str(kind) == "SUBPATTERN":
            count += _letters(value[3])
        elif is_choice(kind):
            count += min(map(_letters, value[1]))
        elif is_repeat(kind):
            count += _letters(value[2]) if value[0] else 0
    return count


def _choices(parsed: Any, *, within_repeat: bool) -> Iterator[str]:
    """Yield, for each place where a pattern may continue in several ways, its kind: open, bounded
    or nested.
    """
    for kind, value in parsed:
        repeats = within_repeat
        if is_choice(kind):
            yield "nested" if within_repeat else "bounded"
        elif is_repeat(kind):
            least, most = int(value[0]), int(value[1])
            if least != most:
                yield "nested" if within_repeat else "open" if most > LARGEST_SMALL_REPEAT else "bounded"
            repeats = within_repeat or most > 1
        for part in inner_patterns(value):
            yield from _choices(part, within_repeat=repeats)
