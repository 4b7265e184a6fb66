"""Read raw answers of nodes and files, which may contain any value in any place.

The readers of facts, snapshots, states of jobs, BMC answers and inventories call this module with decoded
JSON or YAML. If a value is of an unexpected type, the functions return an empty value or None, so that
callers need no check of the type. The callers judge missing and damaged answers. The module does no I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

MOST_ENTRIES = 512
"""Largest number of keys in a mapping or entries in a list that :func:`bounded` keeps.

The largest node of a rack needs fewer than half as many.
"""
MOST_CHARACTERS = 4 << 20
"""Largest number of characters of a text from a node. The output of a tool is never longer, because the
modules on nodes limit it (``OUTPUT_BYTES`` in plugins/module_utils/rackproof_tools.py)."""
MOST_DEPTH = 12
"""Largest nesting depth of mappings and lists that :func:`bounded` keeps."""

# Matches no part of a longer number: neither "1e5" nor 16 digits. Further decimals than nine are left out.
_LEADING_NUMBER = re.compile(r"\s*(-?\d{1,15}+(?:\.\d{1,9}+)?+)(?:(?<=\.\d{9})\d*+)?+(?!\d|[eE][-+]?\d)")


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_float(value: object) -> float | None:
    """Return the value as a float if it is a finite number, or else None. A boolean is not a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def as_int(value: object) -> int | None:
    """Return the value if it is an integer, or else None. A boolean is not an integer."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def bounded(value: Any, name: str = "", depth: int = 0) -> tuple[Any, list[str]]:
    """Return a node's answer within the limits of this module, and the positions of the parts that were cut.

    A part that is nested too deeply becomes None. Positions are keys joined with dots.

    Args:
        value: The node's answer, or a part of it.
        name: The position of this part, or "" for the whole answer.
        depth: The nesting depth of this part, which is 0 for the whole answer.
    """
    if isinstance(value, str):
        return (value, []) if len(value) <= MOST_CHARACTERS else (value[:MOST_CHARACTERS], [name])
    if not isinstance(value, Mapping | list):
        return value, []
    if depth >= MOST_DEPTH:
        return None, [name]
    left_out = [name] if len(value) > MOST_ENTRIES else []
    if isinstance(value, list):
        parts = [bounded(item, name, depth + 1) for item in value[:MOST_ENTRIES]]
        bounded_value: Any = [item for item, _ in parts]
    else:
        entries = list(islice(value.items(), MOST_ENTRIES))
        parts = [bounded(item, f"{name}.{key}" if name else str(key), depth + 1) for key, item in entries]
        bounded_value = {key: item for (key, _), (item, _) in zip(entries, parts, strict=True)}
    return bounded_value, [*left_out, *chain.from_iterable(names for _, names in parts)]


def mapping_at(value: object, key: str) -> Mapping[str, Any]:
    """Return the mapping under a key, or an empty one."""
    return as_mapping(as_mapping(value).get(key))


def list_at(value: object, key: str) -> list[Any]:
    """Return the list under a key, or an empty one."""
    entry = as_mapping(value).get(key)
    return entry if isinstance(entry, list) else []


def text_at(value: object, key: str) -> str:
    """Return the text under a key, or ""."""
    entry = as_mapping(value).get(key)
    return entry if isinstance(entry, str) else ""


def stdout_of(tools: object, name: str) -> str:
    """Return the output of a tool, or "" if its status is not ``ok``.

    ``tools`` has the form ``{"lspci": {"status": "ok", "stdout": "…"}}``, and ``name`` is one of its keys.
    """
    answer = mapping_at(tools, name)
    return text_at(answer, "stdout") if answer.get("status") == "ok" else ""


def leading_number(text: str) -> float | None:
    """Return the number at the beginning of a text, or None.

    ``"700.00 W"`` gives 700. Digits after the ninth decimal place are cut off. A number with an exponent, or
    with more than 15 digits before the decimal point gives None.
    """
    match = _LEADING_NUMBER.match(text)
    return float(match[1]) if match else None
