"""Edits of nested data, as fuzzers draw them: what is taken away, and what is put in its place."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**63, -(2**63), 10**30, 0.0, -0.5, 1e308, float("nan"), float("inf"),
    "", " ", "0", "nan", "8_00", "٣", "yes", "N/A", "[N/A]", "Unknown Error",
    "\x00", "\x1b[2J", "\u202e", "\ud800",
    "a" * 5000, "9" * 400, "../../x", "{{ x }}", "GPU-1", "1: ACTIVE", "\n" * 50,
    [], [[]], [None], {}, {"": ""}, {"a": {"b": []}}, [1, "x", None], {"status": "ok"}, {"stdout": "x"},
)  # fmt: skip
"""Values that come where another kind was expected."""

Edit = tuple[int, int, Any]
"""The place, the kind and the value of an edit."""


def odd_value(chance: Random) -> Any:
    """Return a value that was not expected."""
    kind = chance.randrange(6)
    if kind < 3:
        return chance.choice(ODD_VALUES)
    if kind == 3:
        return "".join(
            chr(chance.choice((chance.randrange(128), chance.randrange(0x3000)))) for _ in range(6)
        )
    return chance.randint(-100, 10_000) if kind == 4 else chance.uniform(-1e4, 1e4)


def draw_edits(chance: Random) -> list[Edit]:
    """Return up to four edits."""
    return [
        (chance.randrange(1 << 20), chance.randrange(7), odd_value(chance))
        for _ in range(chance.randint(1, 4))
    ]


def draw_removals(chance: Random) -> list[Edit]:
    """Return edits that only take something away, or leave something empty in its place."""
    return [
        (chance.randrange(1 << 20), chance.choice((0, 1, 2, 6)), None) for _ in range(chance.randint(1, 3))
    ]


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value below a mapping or a list."""
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    for key, one in entries:
        yield (*before, key)
        yield from places(one, (*before, key))


def edited(base: Any, edits: Iterable[Edit]) -> Any:
    """Return a copy of nested data with edits. The base is left as it is."""
    value = copy.deepcopy(base)
    for at, kind, odd in edits:
        known = list(places(value))
        if not known:
            break
        *path, last = known[at % len(known)]
        holder = value
        for key in path:
            holder = holder[key]
        _edit(holder, last, kind, odd, at)
    return value


def _edit(holder: Any, key: Any, kind: int, odd: Any, at: int) -> None:
    old = holder[key]
    if kind == 0:
        del holder[key]
    elif kind == 1:
        holder[key] = None
    elif kind == 2:
        # Empty, of its own kind.
        holder[key] = type(old)() if isinstance(old, str | list | dict | int | float) else None
    elif kind == 3 and isinstance(holder, dict):
        holder[odd if isinstance(odd, str) else f"key {at}"] = copy.deepcopy(old)
    elif kind == 4 and isinstance(old, str) and old:
        cut = at % (len(old) + 1)
        holder[key] = old[:cut] + (odd if isinstance(odd, str) else str(odd)) + old[cut + at % 40 :]
    elif kind == 6 and isinstance(old, str):
        holder[key] = old[: at % (len(old) + 1)]
    else:
        # A copy: a later edit must not reach into the values themselves.
        holder[key] = copy.deepcopy(odd)
