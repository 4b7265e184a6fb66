"""Parse regular expressions that an operator wrote, to show how slow a search with them can be. No I/O.

:mod:`rackproof.core.line_rules` and :mod:`rackproof.logs.declared_lines` call this module, and refuse slow
patterns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import combinations
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
    repeat is not counted: ``(a+)+`` gives 1. :func:`repeats_in_several_ways` finds that pattern.

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


def small_ways(parsed: Any) -> int:
    """Return in how many ways a text can be divided among a pattern's small repeats and choices, at most.

    A repeat counts once if its characters differ from those that may come next, because the text then decides
    where it ends. A choice counts once if its alternatives begin with different characters.
    """
    choices: list[int] = []
    parts = list(_parts(parsed, choices, optional=False))
    ways = math.prod(choices)
    for at, (characters, lengths, _optional) in enumerate(parts):
        is_small = 1 < lengths <= LARGEST_SMALL_REPEAT + 1
        if is_small and characters & _first_characters(parts[at + 1 :]):
            ways *= lengths
    return ways


_Part = tuple[frozenset[str], int, bool]
"""The characters of a part of a pattern, its number of possible lengths, and whether it is optional."""


def _parts(parsed: Any, choices: list[int], *, optional: bool) -> Iterator[_Part]:
    """Yield the parts of a pattern in a row, and add the ways of each choice to ``choices``."""
    for kind, value in parsed:
        if is_choice(kind):
            alternatives = [list(_parts(inner, choices, optional=False)) for inner in value[1]]
            choices.append(_ways_of_choice([_first_characters(parts) for parts in alternatives]))
            yield _possible_characters([(kind, value)]), 1, True
            yield from (
                (characters, lengths, True) for parts in alternatives for characters, lengths, _ in parts
            )
        elif is_repeat(kind):
            least, most, inner = int(value[0]), int(value[1]), value[2]
            absent = optional or least == 0
            yield _possible_characters(inner), most - least + 1, absent
            # A repeat inside a repeat has one way, as :func:`repeats_in_several_ways` checks.
            if most == 1 and not _is_one_character(inner):
                yield from _parts(inner, choices, optional=True)
        elif str(kind) in _ONE_CHARACTER:
            yield _possible_characters([(kind, value)]), 1, optional
        else:
            for inner in inner_patterns(value):
                yield from _parts(inner, choices, optional=optional)


def _is_one_character(parsed: Any) -> bool:
    """Return whether a pattern matches exactly one character."""
    return len(parsed) == 1 and str(parsed[0][0]) in _ONE_CHARACTER


def _first_characters(parts: Sequence[_Part]) -> frozenset[str]:
    """Return the characters with which parts in a row can begin, up to the first part that is required."""
    characters: frozenset[str] = frozenset()
    for some, _lengths, optional in parts:
        characters |= some
        if not optional:
            break
    return characters


def _ways_of_choice(firsts: Sequence[frozenset[str]]) -> int:
    """Return the number of alternatives, or 1 if they begin with different characters."""
    shared = any(one & other or not one for one, other in combinations(firsts, 2)) or not firsts[-1]
    return len(firsts) if shared else 1


def repeats_in_several_ways(parsed: Any) -> bool:
    """Return whether a repeat can divide a text among its repetitions in several ways, as ``(a+)+`` can.

    The number of ways, and so the time of a search, can double with each character. All repeats inside a
    repeat are checked, also those with a small maximum: ``(a+){1,50}`` takes as long. A choice in a repeat
    counts as several ways, and so does a text that may be empty. ``(\\d+ +){4}`` has only one way.
    """
    for kind, value in parsed:
        if is_repeat(kind) and int(value[1]) > 1 and _is_ambiguous_body(value[2]):
            return True
        if any(map(repeats_in_several_ways, inner_patterns(value))):
            return True
    return False


_ONE_CHARACTER = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
_MOST_PLACES = 100
"""A repeated pattern with more places than this counts as ambiguous, because the check takes too long."""


class _UncheckedError(Exception):
    """A pattern has an element that the check does not cover, such as a choice, or too many places."""


class _Places:
    """The places of a pattern's characters, and for each place those that may follow it.

    A place that follows in two ways is listed twice.
    """

    def __init__(self) -> None:
        self.characters: list[frozenset[str]] = []
        self.follow: list[list[int]] = []

    def add(self, parsed: Any) -> tuple[list[int], list[int], bool]:
        """Add a pattern. Return its first and last places, and whether it may be empty.

        Raises:
            _UncheckedError: The pattern cannot be checked.
        """
        first: list[int] = []
        last: list[int] = []
        empty = True
        for element in parsed:
            begins, ends, optional = self._add_element(*element)
            self._connect(last, begins)
            first += begins if empty else []
            last = [*last, *ends] if optional else ends
            empty = empty and optional
        return first, last, empty

    def _add_element(self, kind: object, value: Any) -> tuple[list[int], list[int], bool]:
        """Add one element of a pattern, as :meth:`add` does."""
        if str(kind) in _ONE_CHARACTER:
            if len(self.follow) >= _MOST_PLACES:
                raise _UncheckedError
            self.characters.append(_possible_characters([(kind, value)]))
            self.follow.append([])
            return [len(self.follow) - 1], [len(self.follow) - 1], False
        if str(kind) == "SUBPATTERN":
            return self.add(value[-1])
        if str(kind) == "AT":
            return [], [], True
        if not is_repeat(kind):
            raise _UncheckedError
        least, most, inner = int(value[0]), int(value[1]), value[2]
        if least == most and most <= _MOST_PLACES:
            return self.add([element for _ in range(most) for element in inner])
        first, last, empty = self.add(inner)
        if most > 1:
            self.close(first, last, empty)
        return first, last, empty or least == 0

    def close(self, first: list[int], last: list[int], empty: bool) -> None:
        """Let a pattern follow itself.

        Raises:
            _UncheckedError: The pattern may be empty, and so be repeated in any number of ways.
        """
        if empty:
            raise _UncheckedError
        self._connect(last, first)

    def _connect(self, last: list[int], first: list[int]) -> None:
        for place in last:
            self.follow[place] += first

    def have_two_ways(self) -> bool:
        """Return whether two different paths through the places match the same text and meet again."""
        if any(len(set(after)) < len(after) for after in self.follow):
            return True
        waiting = [pair for after in self.follow for pair in self._alike(after, after) if len(set(pair)) == 2]
        seen = set(waiting)
        while waiting:
            one, other = waiting.pop()
            for pair in self._alike(self.follow[one], self.follow[other]):
                if len(set(pair)) == 1:
                    return True
                if pair not in seen:
                    seen.add(pair)
                    waiting.append(pair)
        return False

    def _alike(self, ones: list[int], others: list[int]) -> Iterator[tuple[int, int]]:
        """Yield the pairs of places that can match the same character."""
        for one in ones:
            for other in others:
                if self.characters[one] & self.characters[other]:
                    yield min(one, other), max(one, other)


def _is_ambiguous_body(body: Any) -> bool:
    """Return whether a text can be divided into repetitions of a pattern in several ways, or perhaps can."""
    places = _Places()
    try:
        places.close(*places.add(body))
    except _UncheckedError:
        return True
    return places.have_two_ways()


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
