"""How long a fleet takes to be imaged at N nodes at a time, and what gives out first. A simulation; pure.

Two things are shared by all nodes that are out: the image server's network, and the cores of the machine
that runs the playbook. Each gives all who ask the same share, and no node more than it can take. Everything
else is a node's own time. reimage.yml works in waves, in which every step waits for the slowest; ``rolling``
is what it would take if each node went its own way.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rackproof.core.records import Record

GIB = 2**30
GBIT = 1e9 / 8
Where = Literal["own", "server", "controller"]


@dataclass(frozen=True)
class Assumptions:
    """What a node and what is shared can do. The defaults' origins are in docs/using/reimage.md.

    Bytes, bytes per second, seconds, core-seconds; ``idle`` is the share of nodes that run no job when they
    are drained, the others end theirs at any moment within ``job_s``.
    """

    image_bytes: float = 8 * GIB
    server_rate: float = 25 * GBIT
    node_rate: float = 5e8
    verify_rate: float = 1e9
    idle: float = 0.5
    job_s: float = 3600
    boot_s: float = 240
    first_boot_s: float = 240
    provision_s: float = 300
    validate_s: float = 60
    controller_core_s: float = 38
    controller_cores: float = 16
    spread: float = 0.2

    def __post_init__(self) -> None:
        """Refuse what no simulation can be made of."""
        positive = ("image_bytes", "server_rate", "node_rate", "verify_rate", "controller_cores")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: more than 0, not {getattr(self, name)}")
        for name in ("job_s", "boot_s", "first_boot_s", "provision_s", "validate_s", "controller_core_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: not below 0")
        if not 0 <= self.idle <= 1 or not 0 <= self.spread < 1:
            raise ValueError("idle: from 0 to 1; spread: from 0 to below 1")


class Forecast(Record):
    """What N at a time takes. Seconds, bytes per second; ``busy`` are fractions of the time of ``rolling``.

    ``limited_by`` is what most of the waves' time goes into: waiting for jobs (drain), for the image server
    or the controller beyond what a node alone would take, or for the nodes themselves.
    """

    nodes: int
    at_once: int
    waves_s: float
    rolling_s: float
    image_s: float
    server_peak: float
    server_busy: float
    controller_busy: float
    out_of_service_node_hours: float
    limited_by: Literal["server", "controller", "drain", "nodes"]


@dataclass
class _Shared:
    """A resource that gives all who ask the same share, and none more than ``most``."""

    rate: float
    most: float
    given: float = 0.0
    waiting: list[tuple[float, int]] = field(default_factory=list)

    def each(self) -> float:
        return min(self.most, self.rate / len(self.waiting)) if self.waiting else 0.0

    def begin(self, work: float, who: int) -> None:
        heapq.heappush(self.waiting, (self.given + work, who))

    def left(self) -> float:
        """Return seconds until the first has what it asked for."""
        return max(0.0, self.waiting[0][0] - self.given) / self.each()


def _run(
    nodes: Iterable[Sequence[tuple[Where, float]]], at_once: int, assumed: Assumptions
) -> tuple[float, dict[Where, float], float, float]:
    """Return when the last is done, how long what is shared is busy, the server's peak, and node-seconds."""
    shared: dict[Where, _Shared] = {
        "server": _Shared(assumed.server_rate, assumed.node_rate),
        "controller": _Shared(assumed.controller_cores, 1.0),
    }
    queue = [list(reversed(one)) for one in nodes]
    delays: list[tuple[float, int]] = []
    now, nextup, out, peak, spent = 0.0, 0, 0, 0.0, 0.0
    busy: dict[Where, float] = {"server": 0.0, "controller": 0.0}

    def advance(who: int) -> bool:
        if not queue[who]:
            return False
        where, work = queue[who].pop()
        if where == "own":
            heapq.heappush(delays, (now + work, who))
        else:
            shared[where].begin(work, who)
        return True

    while True:
        while out < at_once and nextup < len(queue):
            out += advance(nextup)
            nextup += 1
        ends = [(delays[0][0] - now, "own")] if delays else []
        ends += [(one.left(), name) for name, one in shared.items() if one.waiting]
        if not ends:
            return now, busy, peak, spent
        step, what = min(ends)
        for name, one in shared.items():
            if one.waiting:
                each = one.each()
                one.given += each * step
                busy[name] += step * each * len(one.waiting) / one.rate
                if name == "server":
                    peak = max(peak, each * len(one.waiting))
        now += step
        spent += step * out
        who = heapq.heappop(delays if what == "own" else shared[what].waiting)[1]  # type: ignore[index]
        if not advance(who):
            out -= 1


def _steps(assumed: Assumptions, chance: random.Random) -> list[list[tuple[Where, float]]]:
    """Return what one node does, step by step: within a wave, a step begins when all have ended the last."""

    def about(seconds: float) -> float:
        return seconds * chance.uniform(1 - assumed.spread, 1 + assumed.spread)

    drain = 0.0 if chance.random() < assumed.idle else chance.uniform(0, assumed.job_s)
    return [
        [("own", drain)],
        [("own", about(assumed.boot_s))],
        [("server", assumed.image_bytes), ("own", assumed.image_bytes / assumed.verify_rate)],
        [("own", about(assumed.first_boot_s))],
        [("own", about(assumed.provision_s)), ("controller", assumed.controller_core_s)],
        [("own", about(assumed.validate_s))],
    ]


def forecast(nodes: int, at_once: int, assumed: Assumptions | None = None, *, seed: int = 1) -> Forecast:
    """Return how long a fleet takes.

    Args:
        nodes: How many there are.
        at_once: The most that are out of service at a time.
        assumed: What they can do.
        seed: Of the chance in jobs that have to end, and in nodes that are slower than others.

    Raises:
        ValueError: Fewer than one.
    """
    if nodes < 1 or at_once < 1:
        raise ValueError("nodes and at once: at least 1")
    given = assumed or Assumptions()
    chance = random.Random(seed)  # noqa: S311  (a simulation, no secret)
    fleet = [_steps(given, chance) for _ in range(nodes)]
    rolling, busy, peak, _ = _run([[work for step in one for work in step] for one in fleet], at_once, given)
    waves = image = node_seconds = 0.0
    into: dict[Literal["server", "controller", "drain", "nodes"], float] = dict.fromkeys(
        ("drain", "server", "controller", "nodes"), 0.0
    )
    for begin in range(0, nodes, at_once):
        wave = fleet[begin : begin + at_once]
        took = 0.0
        for number in range(len(wave[0])):
            seconds, _, high, _ = _run([one[number] for one in wave], len(wave), given)
            alone = max(_run([one[number]], 1, given)[0] for one in wave)
            took += seconds
            shared = ("nodes", "nodes", "server", "nodes", "controller", "nodes")[number]
            into["drain" if number == 0 else "nodes"] += alone
            into[shared] += seconds - alone  # type: ignore[index]
            if number == 2:
                image, peak = max(image, seconds), max(peak, high)
        waves += took
        node_seconds += took * len(wave)
    return Forecast(
        nodes=nodes,
        at_once=at_once,
        waves_s=waves,
        rolling_s=rolling,
        image_s=image,
        server_peak=peak,
        server_busy=busy["server"] / rolling,
        controller_busy=busy["controller"] / rolling,
        out_of_service_node_hours=node_seconds / 3600,
        limited_by=max(into, key=lambda name: into[name]),
    )


def saturation_nodes(assumed: Assumptions | None = None) -> int:
    """Return how many nodes at a time the image server feeds at full speed."""
    given = assumed or Assumptions()
    return max(1, int(given.server_rate // given.node_rate))
