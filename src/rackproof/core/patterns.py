"""What a regular expression is made of: for those that an operator writes, and that read any line. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from re import _parser  # type: ignore[attr-defined]  # the one reading of a pattern that there is
from typing import Any


def parsed_pattern(text: str) -> Any:
    """Return the elements of a pattern, each its kind and its value.

    Raises:
        re.error, RecursionError, OverflowError: It is no pattern.
    """
    return _parser.parse(text)


def inner_patterns(value: Any) -> Iterator[Any]:
    """Yield the patterns that lie in the value of an element."""
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from inner_patterns(one)


def is_repeat(kind: object) -> bool:
    """Whether an element repeats what lies in it; its value begins with the least and the most times."""
    return str(kind).endswith("REPEAT")


def is_choice(kind: object) -> bool:
    """Whether an element is a choice of several patterns."""
    return str(kind) == "BRANCH"
