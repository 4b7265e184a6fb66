"""Simulate how long the imaging of a fleet takes, and find the bottleneck. No I/O.

``rackproof reimage plan`` prints the :class:`Forecast` that :func:`forecast` returns.

The nodes that are out of service share the image server's network and the cores of the controller. Each
resource is divided equally between its users, and no node gets more than it can use. All other time
belongs to each node alone. reimage.yml works in waves, in which every step waits for the slowest node.
The word *rolling* marks the time if each node continued independently and the next node started at once.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rackproof.core.records import Record

GIB = 2**30
"""Bytes of one GiB."""
GBIT = 1e9 / 8
"""Bytes per second of one gigabit per second."""
Where = Literal["own", "server", "controller"]
"""The resource that a piece of work needs. ``own`` is the node itself, which shares nothing. The amount of a
piece is in seconds (own), bytes (server) or core-seconds (controller)."""
Limit = Literal["server", "controller", "drain", "nodes"]

# The resource that limits each step in _steps(), by its position: one that its nodes share, or the nodes
# themselves.
_SHARED_IN_STEP: tuple[Limit, ...] = ("nodes", "nodes", "server", "nodes", "controller", "nodes")
_DRAIN_STEP, _IMAGE_STEP = 0, 2
"""Positions of the drain and of the image among the steps."""


@dataclass(frozen=True)
class Assumptions:
    """The speeds of a node and of the shared resources. docs/using/reimage.md explains the defaults.

    The units are bytes (``_bytes``), bytes per second (``_rate``), seconds (``_s``) and core-seconds per node
    (``controller_core_s``). ``idle`` is the share of nodes that run no job when they are drained. On the
    others, jobs end at a random time within ``job_s``. Nodes differ randomly by up to the fraction ``spread``
    in their own steps.
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
        """Refuse values that cannot be simulated."""
        positive = ("image_bytes", "server_rate", "node_rate", "verify_rate", "controller_cores")
        for name in positive:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: more than 0 and finite, not {getattr(self, name)}")
        for name in ("job_s", "boot_s", "first_boot_s", "provision_s", "validate_s", "controller_core_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: finite, and not below 0")
        if not 0 <= self.idle <= 1 or not 0 <= self.spread < 1:
            raise ValueError("idle: from 0 to 1; spread: from 0 to below 1")


class Forecast(Record):
    """The time and load with ``at_once`` nodes at a time.

    Attributes:
        waves_s: The time in waves, as reimage.yml works.
        rolling_s: The time without waves.
        image_s: The longest step ``image`` of any wave.
        server_peak: The highest total rate of the image server, in bytes per second.
        server_busy: The used fraction of the server's capacity, over ``rolling_s``.
        controller_busy: The used fraction of the controller's cores, over ``rolling_s``.
        limited_by: The cause of most of the waves' time: jobs (drain), the image server, the controller, or
            the nodes themselves.
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
    limited_by: Limit


@dataclass
class _Shared:
    """A resource that is shared equally between all users. No user gets more than ``most``.

    ``given`` is the amount that each user got since the beginning. ``waiting`` is a heap of pairs: the value
    of ``given`` at which a node's work ends, and the node's number.
    """

    rate: float
    most: float
    given: float = 0.0
    waiting: list[tuple[float, int]] = field(default_factory=list)

    def each(self) -> float:
        """Return the rate that each user gets."""
        return min(self.most, self.rate / len(self.waiting)) if self.waiting else 0.0

    def begin(self, work: float, node: int) -> None:
        """Add the node with this number as a user with an amount of work."""
        # All users get the same share. A piece ends when the amount given to each grew by its size.
        heapq.heappush(self.waiting, (self.given + work, node))

    def left(self) -> float:
        """Return the seconds until the first user gets the whole amount that it requested."""
        return max(0.0, self.waiting[0][0] - self.given) / self.each()


class _Simulation:
    """A simulation of nodes that do their work, at most ``at_once`` of them at a time."""

    def __init__(self, nodes: Iterable[Sequence[tuple[Where, float]]], assumed: Assumptions) -> None:
        self.shared: dict[Where, _Shared] = {
            "server": _Shared(assumed.server_rate, assumed.node_rate),
            "controller": _Shared(assumed.controller_cores, 1.0),
        }
        # Work is taken from the end of the list.
        self.queues = [list(reversed(work)) for work in nodes]
        self.own: list[tuple[float, int]] = []
        self.now = self.server_peak = self.node_seconds = 0.0
        self.busy: dict[Where, float] = {"server": 0.0, "controller": 0.0}
        self.out = self.next_node = 0

    def run(self, at_once: int) -> None:
        """Advance from one end of a piece of work to the next until every node finishes."""
        while True:
            while self.out < at_once and self.next_node < len(self.queues):
                self.out += self._begin_next(self.next_node)
                self.next_node += 1
            ends = self._next_ends()
            if not ends:
                return
            seconds, where = min(ends)
            self._pass_time(seconds)
            ended = self.own if where == "own" else self.shared[where].waiting
            _, node = heapq.heappop(ended)
            if not self._begin_next(node):
                self.out -= 1

    def _begin_next(self, node: int) -> bool:
        """Start a node's next piece of work. Return whether there is one."""
        if not self.queues[node]:
            return False
        where, work = self.queues[node].pop()
        if where == "own":
            heapq.heappush(self.own, (self.now + work, node))
        else:
            self.shared[where].begin(work, node)
        return True

    def _next_ends(self) -> list[tuple[float, Where]]:
        """Return the seconds until the next piece of work ends, for each resource that is used."""
        ends: list[tuple[float, Where]] = [(self.own[0][0] - self.now, "own")] if self.own else []
        ends += [(resource.left(), name) for name, resource in self.shared.items() if resource.waiting]
        return ends

    def _pass_time(self, seconds: float) -> None:
        """Advance the time, and count the use of each resource."""
        for name, resource in self.shared.items():
            if not resource.waiting:
                continue
            share = resource.each()
            resource.given += share * seconds
            total = share * len(resource.waiting)
            self.busy[name] += seconds * total / resource.rate
            if name == "server":
                self.server_peak = max(self.server_peak, total)
        self.now += seconds
        self.node_seconds += seconds * self.out


def _simulate(
    nodes: Iterable[Sequence[tuple[Where, float]]], at_once: int, assumed: Assumptions
) -> _Simulation:
    """Return the finished simulation of some nodes."""
    simulation = _Simulation(nodes, assumed)
    simulation.run(at_once)
    return simulation


def _steps(assumed: Assumptions, chance: random.Random) -> list[list[tuple[Where, float]]]:
    """Return the steps of one node, each as its pieces of work.

    The steps are drain, boot, image, first boot, provision and validate. In a wave, a step starts when all
    nodes ended the previous one.
    """

    def about(seconds: float) -> float:
        """Return a random time around the given one, because nodes are not equally fast."""
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
    """Return the forecast of how long a fleet takes.

    Args:
        nodes: The number of nodes.
        at_once: The largest number of nodes that are out of service at a time.
        assumed: The assumed speeds.
        seed: The seed for the random ends of jobs, and for nodes that are slower than others.

    Raises:
        ValueError: A number is below one.
    """
    if nodes < 1 or at_once < 1:
        raise ValueError("nodes and at once: at least 1")
    numbers = assumed or Assumptions()
    chance = random.Random(seed)  # noqa: S311  (a simulation, no secret)
    fleet = [_steps(numbers, chance) for _ in range(nodes)]
    rolling = _simulate([[work for step in node for work in step] for node in fleet], at_once, numbers)
    waves = _Waves(numbers)
    for begin in range(0, nodes, at_once):
        waves.add(fleet[begin : begin + at_once])
    return Forecast(
        nodes=nodes,
        at_once=at_once,
        waves_s=waves.seconds,
        rolling_s=rolling.now,
        image_s=waves.image_s,
        server_peak=max(rolling.server_peak, waves.server_peak),
        server_busy=rolling.busy["server"] / rolling.now,
        controller_busy=rolling.busy["controller"] / rolling.now,
        out_of_service_node_hours=waves.node_seconds / 3600,
        limited_by=max(waves.spent, key=lambda name: waves.spent[name]),
    )


@dataclass
class _Waves:
    """Waves of nodes that run one after another, and the parts of their time."""

    assumed: Assumptions
    seconds: float = 0.0
    image_s: float = 0.0
    node_seconds: float = 0.0
    server_peak: float = 0.0
    spent: dict[Limit, float] = field(
        default_factory=lambda: {"drain": 0.0, "server": 0.0, "controller": 0.0, "nodes": 0.0}
    )

    def add(self, wave: Sequence[Sequence[Sequence[tuple[Where, float]]]]) -> None:
        """Add a wave. No node starts a step before all ended the previous one."""
        took = 0.0
        for number in range(len(wave[0])):
            took += self._add_step(number, [node[number] for node in wave])
        self.seconds += took
        # A node is out of service until the wave's last node is back, whatever time it needed itself.
        self.node_seconds += took * len(wave)

    def _add_step(self, number: int, nodes: Sequence[Sequence[tuple[Where, float]]]) -> float:
        """Add a step of a wave, and return its duration. Its causes share the time."""
        together = _simulate(nodes, len(nodes), self.assumed)
        # The time of the slowest node alone belongs to the nodes. Only the rest comes from sharing.
        alone = max(_simulate([work], 1, self.assumed).now for work in nodes)
        self.spent["drain" if number == _DRAIN_STEP else "nodes"] += alone
        self.spent[_SHARED_IN_STEP[number]] += together.now - alone
        if number == _IMAGE_STEP:
            self.image_s = max(self.image_s, together.now)
            self.server_peak = max(self.server_peak, together.server_peak)
        return together.now


def saturation_nodes(assumed: Assumptions | None = None) -> int:
    """Return the number of nodes at a time that the image server can supply at full speed."""
    numbers = assumed or Assumptions()
    return max(1, int(numbers.server_rate // numbers.node_rate))
