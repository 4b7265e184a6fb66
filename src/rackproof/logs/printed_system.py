"""Read the system and the number of nodes that a run script printed into a log. No I/O.

Submissions, scores and :func:`rackproof.logs.parse` call :func:`printed_systems_of`. A line of such a
description has a JSON object, perhaps after the rank that ``srun`` adds::

    0: :::SYSJSON {"number_of_nodes": "2", "accelerators_per_node": "8", "framework": "UNKNOWN_FRAMEWORK"}
"""

from __future__ import annotations

import json
import re
from typing import Any

from rackproof.core.text import sanitize

LONGEST_SYSTEM_LINE = 70_000
"""Number of bytes up to which callers read such a line: more than :data:`_SYSTEM_LINE` can match."""
_SYSTEM_LINE = re.compile(rb"^[ \t]*(?:\d{1,6}: )?:::SYSJSON (\{[^\n]{0,65536}\})\s*?$", re.MULTILINE)
NODE_LIST = re.compile(rb"^:::DLPAL \S+ \S* (\d{1,6}) ([A-Za-z0-9._,\[\]-]{1,4000})", re.MULTILINE)
"""The run script's line ``:::DLPAL IMAGE JOB 2 n[07-08] …``, with the number and the list of nodes."""
_MOST_SYSTEMS = 8
"""Largest number of different descriptions that are read. Two are enough to make the system unknown."""
_MOST_LEVELS = 8
"""Largest depth of the objects in a description that are read. A description has two."""


def printed_systems_of(log: bytes) -> list[dict[str, Any]]:
    """Return the different descriptions that run scripts printed into a log, in their order.

    A run script prints one description, perhaps repeatedly. At most eight different descriptions are
    returned. Texts and numbers become texts of at most 300 characters, and an object becomes an object of
    such texts. Empty values, lists, booleans, nulls and placeholders (``UNKNOWN_…``) are left out.
    """
    systems: list[dict[str, Any]] = []
    seen: set[bytes] = set()
    for match in _SYSTEM_LINE.finditer(log):
        if match[1] in seen:
            continue
        seen.add(match[1])
        system = _parsed(match[1])
        if system is not None and system not in systems:
            systems.append(system)
        if len(systems) == _MOST_SYSTEMS:
            break
    return systems


def keys_that_differ(systems: list[dict[str, Any]]) -> list[str]:
    """Return the keys whose values are not the same in all descriptions."""
    keys = sorted({key for system in systems for key in system})
    return [key for key in keys if any(system.get(key) != systems[0].get(key) for system in systems)]


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Return the values of a description, or None if the text is not a JSON object."""
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, dict):
        return None
    system = _sanitized(facts, _MOST_LEVELS + 1)
    return system if isinstance(system, dict) else None


def _sanitized(value: Any, levels: int = _MOST_LEVELS) -> Any:
    """Return a value as harmless text, or an object of such texts.

    Lists, booleans, null, placeholders, and objects in more than ``levels`` others become "".
    """
    if isinstance(value, dict) and levels:
        items = ((sanitize(key, 100), _sanitized(item, levels - 1)) for key, item in value.items())
        return {key: kept for key, kept in items if kept}
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        text = sanitize(value, 300)
        return "" if text.startswith("UNKNOWN_") else text
    return ""
