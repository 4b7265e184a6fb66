"""Read kinds of faults from ``faults.yml``, and distribute faults over the nodes and racks of a fleet.

A kind of fault has these keys:

* ``part``: ``gpu`` (one of the node), ``pair`` (two of them), ``node`` (all of them) or ``rack`` (all GPUs
  of one rack, which is no fault of a node)
* ``metrics``: ``all`` (default), or ``one``, which is drawn at random
* ``begins``: ``later`` (default: a night in the span ``begin_between``), ``first_night`` (of its
  node) or ``rollout`` (the night in which its node gets another firmware)
* ``shape``: ``step`` (default); ``ramp``: it grows to its size in ``over_nights`` nights; ``stairs``: it has
  half of its size for ``over_nights`` nights, and then all of it; ``every``: it shows once in ``every``
  nights; ``chance``: it shows in a night with the probability ``chance``; ``warm``: it shows in nights in
  which a job had warmed the node; ``noisy``: it adds scatter instead of a shift, and its size is the standard
  deviation
* ``over_nights``, ``every``, ``chance``: the numbers of these shapes
* ``lasts``: the number of nights after which it is gone
* ``replaces``: the GPU is replaced in the first night of the fault, and the new one is bad

:mod:`tests.fleet_simulator.simulation` applies the faults that :func:`draw_faults` returns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

DATA = Path(__file__).with_name("faults.yml")

SHAPES = ("step", "ramp", "stairs", "every", "chance", "warm", "noisy")
PARTS = ("gpu", "pair", "node", "rack")
BEGINNINGS = ("later", "first_night", "rollout")


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault, with the keys of ``faults.yml``. Sizes are separate."""

    name: str
    part: str
    metrics: str = "all"
    begins: str = "later"
    shape: str = "step"
    over_nights: int = 1
    every: int = 1
    chance: float = 1.0
    lasts: int | None = None
    replaces: bool = False

    @property
    def is_step(self) -> bool:
        """Return whether good GPUs of a node become slower at once, and stay as slow during the fault."""
        return (
            self.shape == "step"
            and self.part != "rack"
            and self.begins != "first_night"
            and not self.replaces
        )

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: The part, shape, beginning or choice of metrics does not exist.
        """
        for key, value, allowed in (
            ("part", self.part, PARTS),
            ("metrics", self.metrics, ("all", "one")),
            ("begins", self.begins, BEGINNINGS),
            ("shape", self.shape, SHAPES),
        ):
            if value not in allowed:
                raise ValueError(f"{self.name}: {key}: {' or '.join(allowed)}, not {value}")


@dataclass(frozen=True)
class FaultMix:
    """The equally frequent kinds and sizes of a fleet's faults, and the shares of faulty nodes and racks."""

    kinds: dict[str, FaultKind]
    sizes: tuple[float, ...]
    share_of_nodes: float
    share_of_racks: float
    begin_between: tuple[float, float]


@dataclass(frozen=True)
class Fault:
    """The truth about one fault.

    Attributes:
        kind: Name of its kind.
        size: Relative change, -0.05 being 5 % slower.
        node: The node, or ``None`` if the fault is its rack's.
        rack: The rack.
        gpus: Positions of the GPUs in their node, from 0; empty for a rack.
        uuids: UUIDs of these GPUs from the first night on.
        first_night: The first night in which it is there. A fault that shows only in some nights is there in
            the nights in between, too.
        last_night: Its last night, or ``None`` if it stays.
        sizes: The largest relative change of each metric.
        by_night: The fraction of its size that it has in each night. Index 0 is night 1.
        noisy: Whether its size is a standard deviation and not a shift.
        all_metrics: Whether it changes all metrics of its GPUs, and not only one.
    """

    kind: str
    size: float
    node: str | None
    rack: str
    gpus: tuple[int, ...]
    uuids: tuple[str, ...]
    first_night: int
    last_night: int | None
    sizes: dict[str, float]
    by_night: tuple[float, ...]
    noisy: bool = False
    all_metrics: bool = True

    def is_there(self, night: int) -> bool:
        """Return whether the fault is there in a night, even if it has no effect in that night."""
        return self.first_night <= night and (self.last_night is None or night <= self.last_night)

    def has_gone(self, night: int) -> bool:
        """Return whether the fault was there in an earlier night, and is no longer there."""
        return self.last_night is not None and night > self.last_night


@dataclass(frozen=True)
class Draw:
    """The kind and the size of the fault that a node or rack gets, with the index of that node or rack."""

    kind: FaultKind
    size: float
    where: int


def mix_of(content: dict[str, Any]) -> FaultMix:
    """Return the mix of faults that a mapping describes, as ``faults.yml`` does."""
    return FaultMix(
        kinds={name: FaultKind(name, **one) for name, one in content["kinds"].items()},
        sizes=tuple(content["sizes"]),
        share_of_nodes=content["share_of_nodes"],
        share_of_racks=content["share_of_racks"],
        begin_between=tuple(content["begin_between"]),
    )


@cache
def all_faults() -> FaultMix:
    """Return the mix of ``faults.yml``."""
    return mix_of(yaml.safe_load(DATA.read_text()))


def no_faults() -> FaultMix:
    """Return a mix without faults, for simulations in which every alarm is false."""
    return FaultMix({}, (), 0.0, 0.0, (0.0, 1.0))


def draw_faults(
    mix: FaultMix, rack_of_node: Sequence[int], moved: set[int], chance: np.random.Generator
) -> list[Draw]:
    """Return the kind and the size of the fault of each faulty node and rack.

    The counts of the classes (kind and size) differ by at most one. A rack with a fault of its own has no
    faulty node. ``moved`` are the nodes that get another firmware. A fault that begins with a rollout gets
    one of them, and every other fault gets another node. A fault is left out if no such node is free.
    """
    racks = sorted(set(rack_of_node))
    faulty_racks = chance.permutation(racks)[
        : _rounded_up(mix.share_of_racks * len(racks), len(racks) > 1)
    ].tolist()
    draws = [
        Draw(kind, size, rack)
        for (kind, size), rack in zip(
            _classes(mix, True, len(faulty_racks), chance), faulty_racks, strict=False
        )
    ]
    free = [node for node, rack in enumerate(rack_of_node) if rack not in set(faulty_racks)]
    order = chance.permutation(free).tolist()
    wanted = _rounded_up(mix.share_of_nodes * len(rack_of_node), True)
    moved_nodes = [node for node in order if node in moved]
    others = [node for node in order if node not in moved]
    for kind, size in _classes(mix, False, wanted, chance):
        if kind.begins != "rollout" and others:
            draws.append(Draw(kind, size, others.pop()))
        elif kind.begins == "rollout" and moved_nodes:
            draws.append(Draw(kind, size, moved_nodes.pop()))
    return draws


def _rounded_up(number: float, at_all: bool) -> int:
    """Return a number rounded up, so that even a small fleet has a fault, or 0 if ``at_all`` is false."""
    return math.ceil(number) if at_all else 0


def _classes(
    mix: FaultMix, of_racks: bool, count: int, chance: np.random.Generator
) -> list[tuple[FaultKind, float]]:
    """Return the kind and the size of ``count`` faults of racks or of nodes, in random order."""
    kinds = [kind for kind in mix.kinds.values() if (kind.part == "rack") == of_racks]
    every = [(kind, size) for kind in kinds for size in mix.sizes]
    order = [every[index] for index in chance.permutation(len(every))]
    return [order[index % len(order)] for index in range(count)] if order else []


def drawn_first_night(mix: FaultMix, nights: int, chance: np.random.Generator) -> int:
    """Return a random first night of a fault in the span ``begin_between`` of the nights, but not night 1."""
    earliest = max(2, math.ceil(mix.begin_between[0] * nights))
    latest = max(earliest, math.floor(mix.begin_between[1] * nights))
    return int(chance.integers(earliest, latest + 1))


def course(
    kind: FaultKind, first_night: int, warm: Sequence[bool], chance: np.random.Generator
) -> tuple[float, ...]:
    """Return the fraction of its size that a fault has in each night.

    ``warm`` states for each night whether a job had warmed the node.
    """
    last = first_night + kind.lasts - 1 if kind.lasts else len(warm)
    return tuple(
        _fraction(kind, night - first_night, bool(warm[night - 1]), chance)
        if first_night <= night <= last
        else 0.0
        for night in range(1, len(warm) + 1)
    )


def _fraction(kind: FaultKind, age: int, warm: bool, chance: np.random.Generator) -> float:
    """Return the fraction of its size that a fault has ``age`` nights after its first night."""
    fractions = {
        "step": 1.0,
        "noisy": 1.0,
        "ramp": min(1.0, (age + 1) / kind.over_nights),
        "stairs": 0.5 if age < kind.over_nights else 1.0,
        "every": float(age % kind.every == 0),
        # The fault shows in its first night, because that night is its beginning.
        "chance": float(age == 0 or chance.random() < kind.chance),
        "warm": float(warm),
    }
    return fractions[kind.shape]
