"""Read kinds of faults from ``faults.yml``, and distribute faults over the nodes and racks of a fleet.

A kind of fault has these keys:

* ``part``: ``gpu`` (one of the node), ``pair`` (two of them), ``node`` (all of them) or ``rack`` (all nodes
  of one rack, so that no node is at fault)
* ``metrics``: ``all`` (default) or ``one``, by chance
* ``begins``: ``later`` (default), ``first_night``: of its node, or ``rollout``: in the night in which its
  node gets another firmware
* ``shape``: ``step`` (default); ``ramp``: grows to its size ``over_nights``; ``stairs``: half of its size,
  then all of it after ``over_nights``; ``every``: every so many nights; ``chance``: by chance; ``warm``: in
  nights in which a job had warmed the node; ``noisy``: no shift, its size is the spread that is added
* ``lasts``: the number of nights after which it is gone
* ``replaces``: the GPU is replaced in the first night, and the new one is bad
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
    """The effect of a kind of fault, without its size."""

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
        """Return whether good GPUs become slower at once, and are as slow in every night of the fault."""
        return (
            self.shape == "step"
            and self.part != "rack"
            and self.begins != "first_night"
            and not self.replaces
        )

    def __post_init__(self) -> None:
        """Refuse words that mean nothing.

        Raises:
            ValueError: A part, shape or beginning does not exist.
        """
        if self.part not in PARTS or self.shape not in SHAPES or self.begins not in BEGINNINGS:
            raise ValueError(f"{self.name}: {self.part}, {self.shape} or {self.begins} does not exist")
        if self.metrics not in ("all", "one"):
            raise ValueError(f"{self.name}: metrics: all or one, not {self.metrics}")


@dataclass(frozen=True)
class FaultMix:
    """The faults of a fleet: as many of each kind and size as of any other."""

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
        first_night: The first night in which it is there (if only now and then, it is there from now on).
        last_night: The last one, or ``None`` if it stays.
        sizes: The largest relative change of each metric.
        by_night: The part of its size that it has in each night. Index 0 is night 1.
        noisy: Its size is a spread and not a shift.
        all_metrics: It changes everything that is measured of its GPUs, and not one metric.
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
        """Return whether the fault was there earlier."""
        return self.last_night is not None and night > self.last_night


@dataclass(frozen=True)
class Draw:
    """A fault before it has a place: its kind, its size, and the node's or rack's index."""

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
    """Return a mix of nothing: for counting false alarms only."""
    return FaultMix({}, (), 0.0, 0.0, (0.0, 1.0))


def draw_faults(
    mix: FaultMix, rack_of_node: Sequence[int], moved: set[int], chance: np.random.Generator
) -> list[Draw]:
    """Return which kind and size each faulty node and rack gets.

    Every class (kind and size) comes up as often as any other, but for one more or less. A rack with a fault
    of its own has no faulty node. ``moved`` are the nodes of a roll-out: a kind that begins with it gets one
    of them, or none.
    """
    racks = sorted(set(rack_of_node))
    faulty_racks = chance.permutation(racks)[
        : _whole(mix.share_of_racks * len(racks), len(racks) > 1)
    ].tolist()
    draws = [
        Draw(kind, size, rack)
        for (kind, size), rack in zip(
            _classes(mix, True, len(faulty_racks), chance), faulty_racks, strict=False
        )
    ]
    free = [node for node, rack in enumerate(rack_of_node) if rack not in set(faulty_racks)]
    order = chance.permutation(free).tolist()
    wanted = _whole(mix.share_of_nodes * len(rack_of_node), True)
    waiting = [node for node in order if node in moved]
    others = [node for node in order if node not in moved]
    for kind, size in _classes(mix, False, wanted, chance):
        if kind.begins != "rollout" and others:
            draws.append(Draw(kind, size, others.pop()))
        elif kind.begins == "rollout" and waiting:
            draws.append(Draw(kind, size, waiting.pop()))
    return draws


def _whole(number: float, at_all: bool) -> int:
    """Round up, so that a small fleet has a fault, too."""
    return math.ceil(number) if at_all else 0


def _classes(
    mix: FaultMix, of_racks: bool, count: int, chance: np.random.Generator
) -> list[tuple[FaultKind, float]]:
    """Return the kind and the size of so many faults of racks or of nodes, in random order."""
    kinds = [kind for kind in mix.kinds.values() if (kind.part == "rack") == of_racks]
    every = [(kind, size) for kind in kinds for size in mix.sizes]
    order = [every[index] for index in chance.permutation(len(every))]
    return [order[index % len(order)] for index in range(count)] if order else []


def drawn_first_night(mix: FaultMix, nights: int, chance: np.random.Generator) -> int:
    """Return the night in which a fault begins that may begin in any, but the first."""
    earliest = max(2, math.ceil(mix.begin_between[0] * nights))
    latest = max(earliest, math.floor(mix.begin_between[1] * nights))
    return int(chance.integers(earliest, latest + 1))


def course(
    kind: FaultKind, first_night: int, warm: Sequence[bool], chance: np.random.Generator
) -> tuple[float, ...]:
    """Return the part of its size that a fault has in each night. ``warm`` has a value for each night."""
    last = first_night + kind.lasts - 1 if kind.lasts else len(warm)
    return tuple(
        _part(kind, night - first_night, bool(warm[night - 1]), chance)
        if first_night <= night <= last
        else 0.0
        for night in range(1, len(warm) + 1)
    )


def _part(kind: FaultKind, age: int, warm: bool, chance: np.random.Generator) -> float:
    """Return the part of its size that a fault has ``age`` nights after its first one."""
    parts = {
        "step": 1.0,
        "noisy": 1.0,
        "ramp": min(1.0, (age + 1) / kind.over_nights),
        "stairs": 0.5 if age < kind.over_nights else 1.0,
        "every": float(age % kind.every == 0),
        # Every fault shows itself in its first night: that night is its beginning.
        "chance": float(age == 0 or chance.random() < kind.chance),
        "warm": float(warm),
    }
    return parts[kind.shape]
