"""Parse regular expressions that an operator wrote, to show how slow a search with them can be. No I/O.

:mod:`rackproof.core.line_rules` and :mod:`rackproof.logs.declared_lines` call this module, and refuse slow
patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from re import _parser  # type: ignore[attr-defined]  # Python has no public parser of patterns
from typing import Any


def parsed_pattern(text: str) -> Any:
    """Return the elements of a pattern, each with its kind and its value.

    Raises:
        re.error, RecursionError, OverflowError: The text is not a pattern.
    """
    return _parser.parse(text)


def inner_patterns(value: Any) -> Iterator[Any]:
    """Yield the patterns inside the value of an element."""
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from inner_patterns(item)


def is_repeat(kind: object) -> bool:
    """Return whether an element repeats its contents.

    The value of such an element begins with the minimum and the maximum.
    """
    return str(kind).endswith("REPEAT")


def is_choice(kind: object) -> bool:
    """Return whether an element is a choice between several patterns."""
    return str(kind) == "BRANCH"


LARGEST_SMALL_REPEAT = 100
"""Largest maximum of a small repeat. A repeat with a larger maximum counts as unlimited."""
_CHARACTERS = frozenset(map(chr, range(1, 128))) | {"é", "中"}
_CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}


def open_repeats(parsed: Any) -> int:
    """Return the largest number of unlimited repeats in a row that can match the same text.

    A repeat counts as unlimited if its maximum is above :data:`LARGEST_SMALL_REPEAT`. A repeat inside such a
    repeat is not counted: ``(a+)+`` gives 1. :mod:`rackproof.core.line_rules` refuses that pattern itself.

    A search tries all ways to divide a line among these repeats. With n repeats, the number of steps grows
    with the power n + 1 of the line's length. ``\\s+\\d+\\s+`` contains one such repeat, because the text
    between the spaces cannot be a space, and ``.*a.*`` two.
    """
    parts = list(_flat(parsed, optional=False))
    longest: dict[int, int] = {}
    for at, (characters, is_open, _optional) in enumerate(parts):
        if not is_open:
            continue
        longest[at] = 1
        for before, length in list(longest.items()):
            shared = characters & parts[before][0]
            between = [part for part, _open, optional in parts[before + 1 : at] if not optional]
            if before != at and shared and all(part & shared for part in between):
                longest[at] = max(longest[at], length + 1)
    return max(longest.values(), default=0)


def _flat(parsed: Any, *, optional: bool) -> Iterator[tuple[frozenset[str], bool, bool]]:
    """Yield for each element its characters, whether it repeats without limit, and whether it is optional."""
    for kind, value in parsed:
        if is_repeat(kind):
            least, most, inner = value
            absent = optional or int(least) == 0
            if int(most) > LARGEST_SMALL_REPEAT:
                yield _possible_characters(inner), True, absent
            else:
                yield from _flat(inner, optional=absent)
        elif str(kind) in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            yield _possible_characters([(kind, value)]), False, optional
        else:
            for inner in inner_patterns(value):
                yield from _flat(inner, optional=optional or is_choice(kind))


def _possible_characters(parsed: Any) -> frozenset[str]:
    """Return the characters that elements can match. If that is unknown, return more rather than fewer."""
    characters: frozenset[str] = frozenset()
    for kind, value in parsed:
        inner = list(inner_patterns(value))
        if str(kind) == "IN":
            characters |= _in_set(value)
        elif str(kind) == "LITERAL":
            characters |= _either_case(chr(value))
        elif str(kind) == "NOT_LITERAL":
            characters |= _CHARACTERS - {chr(value)}
        elif str(kind) == "SUBPATTERN" or is_repeat(kind):
            characters |= frozenset().union(*map(_possible_characters, inner))
        else:
            characters |= _CHARACTERS
    return characters


def _in_set(items: Any) -> frozenset[str]:
    """Return the characters of a set in brackets."""
    characters: frozenset[str] = frozenset()
    negated = False
    for kind, value in items:
        if str(kind) == "NEGATE":
            negated = True
        elif str(kind) == "LITERAL":
            characters |= {chr(value)} if negated else _either_case(chr(value))
        elif str(kind) == "RANGE":
            characters |= {character for character in _CHARACTERS if value[0] <= ord(character) <= value[1]}
        else:
            characters |= _category(str(value), negated=negated)
    return _CHARACTERS - characters if negated else characters


def _category(name: str, *, negated: bool) -> frozenset[str]:
    word = next((text for part, text in _CATEGORIES.items() if name.endswith(part)), "")
    if not word:
        return frozenset() if negated else _CHARACTERS
    fits = frozenset(character for character in _CHARACTERS if re.match(word, character))
    return _CHARACTERS - fits if "NOT_" in name else fits


def _either_case(character: str) -> frozenset[str]:
    # A pattern may ignore case.
    return frozenset({character, character.lower(), character.upper()})
