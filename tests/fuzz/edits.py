"""Draw random edits of nested data, and apply them.

An edit removes, empties, cuts, copies or replaces one value, or inserts a text into it. The fuzz tests in
this folder give the edited data to the readers of Rackproof.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from enum import IntEnum
from random import Random
from typing import Any, NamedTuple

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**63, -(2**63), 10**30, 0.0, -0.5, 1e308, float("nan"), float("inf"),
    "", " ", "0", "nan", "8_00", "٣", "yes", "N/A", "[N/A]", "Unknown Error",
    "\x00", "\x1b[2J", "\u202e", "\ud800",
    "a" * 5000, "9" * 400, "../../x", "{{ x }}", "GPU-1", "1: ACTIVE", "\n" * 50,
    [], [[]], [None], {}, {"": ""}, {"a": {"b": []}}, [1, "x", None], {"status": "ok"}, {"stdout": "x"},
)  # fmt: skip
"""Values of types or contents that a reader of the data does not expect."""


class Kind(IntEnum):
    """The kinds of edits. An edit whose kind fits neither the value nor its holder replaces the value."""

    DELETE = 0
    NULL = 1
    EMPTY = 2
    COPY_KEY = 3
    SPLICE = 4
    REPLACE = 5
    TRUNCATE = 6


class Edit(NamedTuple):
    """An edit of one value.

    Attributes:
        at: A large number. Divided by the number of values, its remainder is the index of the value. It
            also sets the position of a cut in a text, and the name of a copy without a new key.
        kind: The kind of the edit.
        value: The new value, the inserted text, or the key of the copy.
    """

    at: int
    kind: Kind
    value: Any


def odd_value(chance: Random) -> Any:
    """Return a value of an unexpected type or content."""
    kind = chance.randrange(6)
    if kind < 3:
        return chance.choice(ODD_VALUES)
    if kind == 3:
        return "".join(
            chr(chance.choice((chance.randrange(128), chance.randrange(0x3000)))) for _ in range(6)
        )
    return chance.randint(-100, 10_000) if kind == 4 else chance.uniform(-1e4, 1e4)


def draw_edits(chance: Random) -> list[Edit]:
    """Return one to four edits of any kind."""
    return [
        Edit(chance.randrange(1 << 20), Kind(chance.randrange(7)), odd_value(chance))
        for _ in range(chance.randint(1, 4))
    ]


def draw_removals(chance: Random) -> list[Edit]:
    """Return one to three edits that only delete, empty or shorten values."""
    kinds = (Kind.DELETE, Kind.NULL, Kind.EMPTY, Kind.TRUNCATE)
    return [Edit(chance.randrange(1 << 20), chance.choice(kinds), None) for _ in range(chance.randint(1, 3))]


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of keys and indexes of every nested value."""
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    for key, one in entries:
        yield (*before, key)
        yield from places(one, (*before, key))


def edited(base: Any, edits: Iterable[Edit]) -> Any:
    """Return a copy of nested data with the edits applied one after the other. The base does not change."""
    value = copy.deepcopy(base)
    for at, kind, odd in edits:
        paths = list(places(value))
        if not paths:
            break
        *path, last = paths[at % len(paths)]
        holder = value
        for key in path:
            holder = holder[key]
        _edit(holder, last, kind, odd, at)
    return value


def _edit(holder: Any, key: Any, kind: int, odd: Any, at: int) -> None:
    """Apply an edit to one entry of a mapping or a list."""
    old = holder[key]
    if kind == Kind.DELETE:
        del holder[key]
    elif kind == Kind.NULL:
        holder[key] = None
    elif kind == Kind.EMPTY:
        # Replace the value with the empty value of its type, or None if the type has none.
        holder[key] = type(old)() if isinstance(old, str | list | dict | int | float) else None
    elif kind == Kind.COPY_KEY and isinstance(holder, dict):
        holder[odd if isinstance(odd, str) else f"key {at}"] = copy.deepcopy(old)
    elif kind == Kind.SPLICE and isinstance(old, str) and old:
        cut = at % (len(old) + 1)
        holder[key] = old[:cut] + (odd if isinstance(odd, str) else str(odd)) + old[cut + at % 40 :]
    elif kind == Kind.TRUNCATE and isinstance(old, str):
        holder[key] = old[: at % (len(old) + 1)]
    else:
        # Copy the new value, so that a later edit does not change ODD_VALUES.
        holder[key] = copy.deepcopy(odd)
