"""Define the rules by which the plain output of a program is read, and check the rules.

The rules (``result.lines`` of a benchmark's definition) contain one pattern for each metric, one for a good
end, and optional ones for failures. A definition states them for a program that logs no events (STREAM,
HPL)::

    lines:
      good_end: "^Solution Validates"
      metrics: {triad: {pattern: "^Triad: +([0-9.]+)", unit: MB/s, direction: higher}}

:mod:`rackproof.core.definitions` reads the rules from a definition, and :mod:`rackproof.logs.plain_lines`
reads logs by them. A format that several programs share, or that contradicts itself, needs its own parser in
:mod:`rackproof.logs`. Begin with :class:`LineRules`. The module does no I/O.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rackproof.core.patterns import compiled_pattern
from rackproof.core.records import Direction, WrittenRecord

FORMAT = "lines"
"""Name of this format in `result.format` of a definition."""
MOST_METRICS = 100
"""Largest number of metrics in a definition."""
# Matches the beginning of the group `value` in a pattern, in either notation.
_VALUE = re.compile(r"\(\?P?<value>")


def _checked(text: str) -> Any:
    """Return the compiled pattern.

    Raises:
        ValueError: RE2 does not accept the pattern, or the pattern matches every line.
    """
    try:
        compiled = compiled_pattern(text)
    except ValueError as error:
        raise ValueError(f"{text!r:.200} {error}") from None
    if compiled.search(b""):
        raise ValueError(
            f"{text!r:.200} matches every line, even an empty one: add a text that the line contains"
        )
    return compiled


Pattern = Annotated[str, Field(min_length=1, max_length=500)]
"""A regular expression of RE2 for one line, of 1 to 500 characters."""


class LineMetric(WrittenRecord):
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
        compiled = _checked(text)
        # RE2 accepts several groups of one name, and returns only the first of them by the name.
        if compiled.groups != 1 and (b"value" not in compiled.groupindex or len(_VALUE.findall(text)) > 1):
            raise ValueError(
                f"{text!r:.200} has {compiled.groups} groups: put the number into one group, or call one of "
                "them `value`: (?P<value>…)"
            )
        return text


class LineRules(WrittenRecord):
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
        """Refuse a pattern that RE2 does not accept, or that matches every line."""
        for text in (value,) if isinstance(value, str) else value:
            _checked(text)
        return value

    @model_validator(mode="after")
    def _end_is_no_failure(self) -> LineRules:
        """Refuse a pattern that means both a good end and a failure."""
        if self.good_end in self.failures:
            raise ValueError("good_end is one of failures, too")
        return self
