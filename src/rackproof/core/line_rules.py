"""Define the rules of a definition for the plain output of a program, and check them.

The rules (``result.lines``) contain one pattern for each metric, and one for a good end. A definition states
them for a program that logs no events (STREAM, HPL). :mod:`rackproof.logs.plain_lines` reads logs by them. A
format that several programs share, or that contradicts itself, needs its own parser in :mod:`rackproof.logs`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from rackproof.core.patterns import open_repeats, parsed_pattern, repeats_in_several_ways, small_ways
from rackproof.core.records import Direction, Record

FORMAT = "lines"
"""A definition names this format in `result.format`."""
MOST_METRICS = 100
CHARACTERS_READ = (2000, 2000, 500)
"""Numbers of characters of a line on which a pattern is tried. The index is the number of the pattern's open
repeats that can match the same text.

A pattern with more such repeats is refused. The number of steps for a line grows with a power of its
length. It is 2 million for one repeat, and 21 million for two. A third repeat would take 300 times as many.
"""
MOST_WAYS = (10_000, 20, 8)
"""Largest number of ways to divide a text among a pattern's small repeats and choices, with the same index.
Each way may take as many steps as :data:`CHARACTERS_READ` allows."""


def _check_pattern(text: str) -> str:
    """Return the pattern if the time to search a line with it is limited.

    Raises:
        ValueError: The text is not a pattern, it matches every line, or a search with it can take too long.
    """
    try:
        tree = parsed_pattern(text)
        fits_nothing = re.search(text, "") is not None
        is_ambiguous = repeats_in_several_ways(tree)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{text!r:.200} is not a regular expression: {error}") from None
    if fits_nothing:
        raise ValueError(f"{text!r:.200} fits every line, the empty one too: name a text of the line")
    if is_ambiguous:
        raise ValueError(
            f"{text!r:.200} repeats a repetition, as (a+)+ does, or a choice, as (a|ab)* does, which can "
            "take for ever: write it without"
        )
    if open_repeats(tree) >= len(CHARACTERS_READ):
        raise ValueError(
            f"{text!r:.200} has {open_repeats(tree)} open repeats in a row that fit the same text, as "
            f".*a.*b.* does, which can take hours on one line: use {len(CHARACTERS_READ) - 1} at most, or "
            r"name the characters between ([^,]*, or \S+)"
        )
    if (ways := small_ways(tree)) > (most := MOST_WAYS[open_repeats(tree)]):
        raise ValueError(
            f"{text!r:.200} can divide a line in {ways:.0e} ways among its optional texts, choices and short "
            f"repeats, as a?a?a? does: use fewer of them ({most} ways at most)"
        )
    return text


def characters_read(pattern: str) -> int:
    """Return how many characters of a line a pattern is tried on."""
    return CHARACTERS_READ[open_repeats(parsed_pattern(pattern))]


Pattern = Annotated[str, Field(min_length=1, max_length=500)]


class LineMetric(Record):
    """The rule for one measurement, read from the lines that match a pattern."""

    pattern: Pattern = Field(
        description="Regular expression of the line. Its one group, or the group `value`, is the number."
    )
    unit: str = Field(
        min_length=1, max_length=40, description="Unit of the number, as the program prints it."
    )
    direction: Direction | None = Field(default=None, description="Direction in which a value is better.")
    take: Literal["only", "first", "last", "lowest", "highest", "median"] = Field(
        default="only",
        description="The line that counts if several match. With `only`, several are unproven. With "
        "`median`, the lines are repetitions, and their spread is stored.",
    )
    at_least: float = Field(default=0, description="A lower number is impossible, so unproven.")

    @field_validator("pattern")
    @classmethod
    def _one_number(cls, text: str) -> str:
        """Refuse a pattern without exactly one group for the number."""
        compiled = re.compile(_check_pattern(text))
        if compiled.groups != 1 and "value" not in compiled.groupindex:
            raise ValueError(
                f"{text!r:.200} has {compiled.groups} groups: put the number into one group, or call its "
                "group `value`: (?P<value>…)"
            )
        return text


class LineRules(Record):
    """The rules for reading the lines of a program's output."""

    good_end: Pattern = Field(
        description="Regular expression of a line that the program prints only after a good end. Without the "
        "line, nothing is proven."
    )
    failures: tuple[str, ...] = Field(
        default=(), max_length=50, description="Regular expressions of lines that show a failure."
    )
    metrics: dict[str, LineMetric] = Field(
        min_length=1, max_length=MOST_METRICS, description="Name of each measurement to its pattern."
    )

    @field_validator("good_end", "failures")
    @classmethod
    def _patterns(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """Refuse a pattern that could take too long, or that matches every line."""
        for text in (value,) if isinstance(value, str) else value:
            _check_pattern(text)
        return value

    @model_validator(mode="after")
    def _end_is_no_failure(self) -> LineRules:
        """Refuse a line that means both a good end and a failure."""
        if self.good_end in self.failures:
            raise ValueError("good_end is one of failures, too")
        return self
