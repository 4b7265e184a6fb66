"""Read raw answers of nodes and files, which may contain anything at any place.

Each function returns an empty value if the type is not the expected one: a missing or damaged
answer is a case for callers to judge, never a crash. No I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

MOST_ENTRIES = 512
"""Largest number of keys in a mapping, or entries in a list; a rack's largest node has less than
half as many."""
MOST_CHARACTERS = 4 << 20
"""Largest number of characters of a text: modules on nodes return at most this many."""
MOST_DEPTH = 12

_LEADING_NUMBER = re.compile(r"\s*(-?\d{1,15}+(?:\.\d{1,9}+)?+)(?!\d|[eE][-+]?\d)")


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_float(value: object) -> float | None:
    """Return the value as a float if it is a finite number; booleans are not numbers."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def as_int(value: object) -> int | None:
    """Return the value if it is an integer; booleans are not integers."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def bounded(value: Any, name: str = "", depth: int = 0) -> tuple[Any, list[str]]:
    """Return a node's answer within the limits for reading, and the positions where the rest was
    omitted.

    Args:
        value: The node's answer.
        name: Its position in the answer, keys joined by dots.
        depth: Its nesting depth.
    """
    if isinstance(value, str):
        return (value, []) if len(value) <= MOST_CHARACTERS else (value[:MOST_CHARACTERS], [name])
    if not isinstance(value, Mapping | list):
        return value, []
    if depth >= MOST_DEPTH:
        return None, [name]
    left_out = [name] if len(value) > MOST_ENTRIES else []
    if isinstance(value, list):
        parts = [bounded(one, name, depth + 1) for one in value[:MOST_ENTRIES]]
        kept: Any = [one for one, _ in parts]
    else:
        some = list(islice(value.items(), MOST_ENTRIES))
        parts = [bounded(one, f"{name}.{key}" if name else str(key), depth + 1) for key, one in some]
        kept = {key: one for (key, _), (one, _) in zip(some, parts, strict=True)}
    return kept, [*left_out, *chain.from_iterable(names for _, names in parts)]


def mapping_at(value: object, key: str) -> Mapping[str, Any]:
    """Return the mapping under a key, or an empty one if there is none."""
    return as_mapping(as_mapping(value).get(key))


def list_at(value: object, key: str) -> list[Any]:
    """Return the list under a key, or an empty one if there is none."""
    found = as_mapping(value).get(key)
    return found if isinstance(found, list) else []


def text_at(value: object, key: str) -> str:
    """Return the text under a key, or an empty one if there is none."""
    found = as_mapping(value).get(key)
    return found if isinstance(found, str) else ""


def stdout_of(tools: object, name: str) -> str:
    """Return a tool's output from a node's answer, empty unless the tool ended well."""
    answer = mapping_at(tools, name)
    return text_at(answer, "stdout") if answer.get("status") == "ok" else ""


def leading_number(text: str) -> float | None:
    """Return the number at the beginning of a text: 700 for ``"700.00 W"``; a part of a longer
    number does not count.
    """
    found = _LEADING_NUMBER.match(text)
    return float(found[1]) if found else None
