"""Readers for raw answers of nodes and files, which may hold anything at any place.

Each returns an empty value where the type is not the expected one: a missing or damaged answer is a case
that callers judge, never a crash. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LEADING_NUMBER = re.compile(r"\s*(-?\d{1,15}(?:\.\d{1,9})?)")


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_float(value: object) -> float | None:
    """Return the value as a float if it is a number; booleans are none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_int(value: object) -> int | None:
    """Return the value if it is an integer; booleans are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def mapping_at(value: object, key: str) -> Mapping[str, Any]:
    """Return the mapping under a key, an empty one where there is none."""
    return as_mapping(as_mapping(value).get(key))


def list_at(value: object, key: str) -> list[Any]:
    """Return the list under a key, an empty one where there is none."""
    found = as_mapping(value).get(key)
    return found if isinstance(found, list) else []


def text_at(value: object, key: str) -> str:
    """Return the text under a key, an empty one where there is none."""
    found = as_mapping(value).get(key)
    return found if isinstance(found, str) else ""


def stdout_of(tools: object, name: str) -> str:
    """Return a tool's output from a node's answer, empty unless the tool ended well."""
    answer = mapping_at(tools, name)
    return text_at(answer, "stdout") if answer.get("status") == "ok" else ""


def leading_number(text: str) -> float | None:
    """Return the number that a text begins with: ``"700.00 W"`` is 700."""
    found = _LEADING_NUMBER.match(text)
    return float(found[1]) if found else None
