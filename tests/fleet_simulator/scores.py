"""Count the faults that a judge finds, and the nodes that it flags without a fault.

A fault counts as found if its node was flagged in at least one night of the fault. A false alarm is a flagged
node in a night in which neither the node nor its rack has a fault. The rate of false alarms per 1,000
node-nights has the exact 95 % bounds of a Poisson count. Two cases are counted apart: a node that is still
flagged after its fault has gone, and the nodes of a rack with a fault of its own.

The first night of a fault is night 1 of "within N nights". Shares have the exact 95 % bounds of a binomial
count (Clopper and Pearson). A fault counts even if it begins so late that fewer than N nights are left.

A flagged node stays in the fleet with its fault, and is measured in all later nights.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scipy.special import betaincinv, gammaincinv

from tests.fleet_simulator.baselines import Judge, NightLike
from tests.fleet_simulator.faults import Fault
from tests.fleet_simulator.simulation import Measurement, Simulation, Truth

FaultClass = tuple[str, float]
"""The kind and the size of a fault."""
LEVEL = 0.95
"""Confidence of the bounds."""
ALL_METRICS = "all"
LEAST_LOSS = 0.05
"""Smallest relative loss that the table of :func:`found_soon` includes."""
NIGHTS = (1, 2, 3, 5)
"""Numbers of nights N for which the tables have a column "within N"."""
SOON = 3
"""Nights within which a step of LEAST_LOSS or more should be found."""
FOUND = 0.9
"""Share of the steps of one size that must be found, so that the size counts as detectable."""


class Wait(NamedTuple):
    """A fault's kind, metric and size, and the nights from its first night until it was found.

    ``nights`` is 0 if it was found in its first night, and None if it was never found.
    """

    kind: str
    metric: str
    size: float
    nights: int | None


def poisson_bounds(count: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact bounds of a Poisson count's mean."""
    tail = (1 - level) / 2
    return (float(gammaincinv(count, tail)) if count else 0.0, float(gammaincinv(count + 1, 1 - tail)))


def binomial_bounds(count: int, of: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact bounds of the true share, if ``count`` of ``of`` cases have a property."""
    tail = (1 - level) / 2
    least = float(betaincinv(count, of - count + 1, tail)) if count else 0.0
    return least, float(betaincinv(count + 1, of - count, 1 - tail)) if count < of else 1.0


@dataclass
class Score:
    """Counts of one judge over one simulation, or the sum over several.

    Attributes:
        faults: Faults of nodes by kind and size, without those that never had an effect.
        found: How many of them were found, because the node was flagged while the fault was there.
        nights_until_found: Number of faults by kind, metric, size and nights until they were found.
        node_nights: Number of pairs of a measured node and a night, before any fault of the node or its rack.
        false_alarms: How many of these pairs were flagged.
        false_alarms_in_bad_rack_nights: How many of the false alarms were in a night in which the rack was
            slow without a fault.
        first_false_alarms: Nodes that had at least one false alarm.
        nights_after_recovery: Node-nights after a fault had gone.
        flagged_after_recovery: How many of these were flagged.
        rack_faults: Racks with a fault of their own.
        racks_flagged_whole: How many of these had every node flagged in at least one night of the fault.
        rack_nodes: Nodes of such racks.
        rack_nodes_flagged: How many of these were flagged at least once since the first night of the fault.
    """

    faults: Counter[FaultClass] = field(default_factory=Counter)
    found: Counter[FaultClass] = field(default_factory=Counter)
    nights_until_found: Counter[Wait] = field(default_factory=Counter)
    node_nights: int = 0
    false_alarms: int = 0
    false_alarms_in_bad_rack_nights: int = 0
    first_false_alarms: int = 0
    nights_after_recovery: int = 0
    flagged_after_recovery: int = 0
    rack_faults: int = 0
    racks_flagged_whole: int = 0
    rack_nodes: int = 0
    rack_nodes_flagged: int = 0

    def __add__(self, other: Score) -> Score:
        """Return the counts of both together."""
        names = [one.name for one in dataclasses.fields(self)]
        return Score(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def false_alarms_per_1000(self) -> tuple[float, float, float]:
        """Return the rate of false alarms per 1,000 node-nights, and its exact 95 % bounds."""
        least, most = poisson_bounds(self.false_alarms)
        per = 1000 / max(1, self.node_nights)
        return self.false_alarms * per, least * per, most * per

    def found_within(self, nights: int, wanted: Callable[[Wait], bool]) -> tuple[int, int]:
        """Return how many of the wanted faults were found within so many nights, and how many there were."""
        there = {wait: count for wait, count in self.nights_until_found.items() if wanted(wait)}
        found = (count for wait, count in there.items() if wait.nights is not None and wait.nights < nights)
        return sum(found), sum(there.values())


class _ScoreCounter:
    """A counter of one judge's verdicts over the nights of one simulation."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.of_node = truth.fault_of_node()
        self.of_rack = truth.fault_of_rack()
        self.first_found: dict[str, int] = {}
        self.rack_nodes_flagged: set[str] = set()
        self.falsely_flagged: set[str] = set()
        self.score = Score()

    def count_night(self, number: int, rack_of_node: Mapping[str, str], flagged: Collection[str]) -> None:
        """Count one night, in which the nodes of ``rack_of_node`` were measured."""
        for node, rack in rack_of_node.items():
            is_flagged = node in flagged
            fault, of_rack = self.of_node.get(node), self.of_rack.get(rack)
            if of_rack is not None and of_rack.first_night <= number:
                self.rack_nodes_flagged.update([node] * is_flagged)
            elif fault is not None and fault.first_night <= number:
                self._count_faulty(fault, node, number, is_flagged)
            else:
                self._count_healthy(node, rack, number, is_flagged)

    def _count_faulty(self, fault: Fault, node: str, number: int, is_flagged: bool) -> None:
        if fault.has_gone(number):
            self.score.nights_after_recovery += 1
            self.score.flagged_after_recovery += is_flagged
        elif is_flagged:
            self.first_found.setdefault(node, number)

    def _count_healthy(self, node: str, rack: str, number: int, is_flagged: bool) -> None:
        self.score.node_nights += 1
        if is_flagged:
            self.score.false_alarms += 1
            self.score.false_alarms_in_bad_rack_nights += (rack, number) in self.truth.bad_rack_nights
            self.falsely_flagged.add(node)

    def total(self) -> Score:
        """Complete the score after the last night, and return it. Call this once."""
        score = self.score
        score.first_false_alarms = len(self.falsely_flagged)
        for node, fault in self.of_node.items():
            if not any(fault.by_night):
                continue
            score.faults[fault.kind, fault.size] += 1
            nights = None
            if node in self.first_found:
                score.found[fault.kind, fault.size] += 1
                nights = self.first_found[node] - fault.first_night
            metric = ALL_METRICS if fault.all_metrics else "".join(fault.sizes)
            score.nights_until_found[Wait(fault.kind, metric, fault.size, nights)] += 1
        for rack in self.of_rack:
            nodes = self.truth.nodes_of_rack[rack]
            flagged = sum(node in self.rack_nodes_flagged for node in nodes)
            score.rack_faults += 1
            score.rack_nodes += len(nodes)
            score.rack_nodes_flagged += flagged
            score.racks_flagged_whole += flagged == len(nodes)
        return score


class _StoredNight:
    """A night that stores its measurements, so that several judges read equal measurements."""

    def __init__(self, night: NightLike) -> None:
        self._night = night
        self._measurements = list(night)
        self.number = night.number
        self.nodes = night.nodes
        self.rack_of_node = {one.node: one.rack for one in self._measurements}

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self._measurements)

    def retest(self, nodes: Iterable[str]) -> list[Measurement]:
        """Measure these nodes again, and return the new measurements."""
        return self._night.retest(nodes)


def assess(simulation: Simulation, judge: Judge, alarms: Mapping[str, Collection[str]]) -> dict[str, Score]:
    """Return a judge's score over the nights of a simulation, for each meaning of "flagged".

    Args:
        simulation: The nights and the truth.
        judge: A function from a night to the verdicts by node, which is called with one night after the
            other. It may leave out nodes.
        alarms: The verdicts that flag a node, by a name of your own: ``{"drained": {"fail"}, "any": {"fail",
            "degraded"}}``.
    """
    return assess_all(simulation, {"": (judge, alarms)})[""]


def assess_all(
    simulation: Simulation, judges: Mapping[str, tuple[Judge, Mapping[str, Collection[str]]]]
) -> dict[str, dict[str, Score]]:
    """Return the scores of several judges over the same nights, each as ``assess`` does."""
    counters = {
        title: {name: _ScoreCounter(simulation.truth) for name in alarms}
        for title, (_, alarms) in judges.items()
    }
    for night in simulation:
        stored = _StoredNight(night)
        for title, (judge, alarms) in judges.items():
            verdicts = judge(stored)
            for name, flagging in alarms.items():
                flagged = {node for node, verdict in verdicts.items() if verdict in flagging}
                counters[title][name].count_night(night.number, stored.rack_of_node, flagged)
    return {title: {name: one.total() for name, one in of.items()} for title, of in counters.items()}


def detections(score: Score) -> list[str]:
    """Return a Markdown table of the faults that were found, as ``n of m``, by kind and size."""
    sizes = sorted({size for _, size in score.faults}, reverse=True)
    lines = [
        "| fault | " + " | ".join(f"{100 * size:g}%" for size in sizes) + " | all |",
        "| --- |" + " --- |" * (len(sizes) + 1),
    ]
    for kind in dict.fromkeys(kind for kind, _ in sorted(score.faults)):
        cells = [(score.found[kind, size], score.faults[kind, size]) for size in sizes]
        lines.append(_row(kind, cells))
    cells = [(_of_size(score.found, size), _of_size(score.faults, size)) for size in sizes]
    return [*lines, _row("all", cells)]


def _of_size(counts: Counter[FaultClass], size: float) -> int:
    """Return the number of faults of one size, of all kinds."""
    return sum(count for (_, one), count in counts.items() if one == size)


def _row(name: str, cells: list[tuple[int, int]]) -> str:
    """Return a row of the table of detections, with the sum of its cells (found, all) at the end."""
    total = (sum(found for found, _ in cells), sum(there for _, there in cells))
    return (
        f"| {name} | "
        + " | ".join(f"{found} of {there}" if there else "" for found, there in [*cells, total])
        + " |"
    )


def found_soon(score: Score, steps: Collection[str]) -> list[str]:
    """Return a Markdown table of how soon large losses are found, by kind.

    ``steps`` are the kinds that the row "all steps" adds up.
    """
    large = [wait for wait in score.nights_until_found if wait.size <= -LEAST_LOSS]
    lines = [
        f"| losses of {LEAST_LOSS:.0%} and more | faults | "
        + " | ".join(f"within {nights}" for nights in NIGHTS)
        + f" | share within {SOON} | bounds |",
        "| --- | ---: |" + " ---: |" * len(NIGHTS) + " ---: | ---: |",
    ]
    kinds = sorted({wait.kind for wait in large})
    rows = {**{kind: {kind} for kind in kinds}, "all steps": set(steps), "all": set(kinds)}
    return [*lines, *(_soon_row(name, score, of) for name, of in rows.items())]


def _soon_row(name: str, score: Score, kinds: Collection[str]) -> str:
    """Return a row of the table of how soon losses of some kinds are found."""

    def wanted(wait: Wait) -> bool:
        return wait.kind in kinds and wait.size <= -LEAST_LOSS

    counts = [str(score.found_within(nights, wanted)[0]) for nights in NIGHTS]
    found, there = score.found_within(SOON, wanted)
    return f"| {name} | {there} | {' | '.join(counts)} | {' | '.join(_share(found, there))} |"


def _share(found: int, there: int) -> tuple[str, str]:
    """Return a share and its bounds in per cent."""
    if not there:
        return "", ""
    least, most = binomial_bounds(found, there)
    return f"{100 * found / there:.1f} %", f"{100 * least:.1f} to {100 * most:.1f} %"


def smallest_losses(score: Score, steps: Collection[str]) -> list[str]:
    """Return a Markdown table of the smallest detectable step, by metric and number of nights."""
    waits = [wait for wait in score.nights_until_found if wait.kind in steps]
    lines = [
        "| metric | " + " | ".join(f"within {nights}" for nights in NIGHTS) + " |",
        "| --- |" + " --- |" * len(NIGHTS),
    ]
    for metric in sorted({wait.metric for wait in waits}):
        of_metric = [wait for wait in waits if wait.metric == metric]
        cells = [_smallest_loss(score, of_metric, nights) for nights in NIGHTS]
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    return lines


def _smallest_loss(score: Score, waits: Collection[Wait], nights: int) -> str:
    """Return the smallest loss that, like every larger one, is found often enough, with its count, or "-"."""
    cell = "-"
    for size in sorted({wait.size for wait in waits}):
        of_size = {wait for wait in waits if wait.size == size}
        found, there = score.found_within(nights, of_size.__contains__)
        if found < FOUND * there:
            break
        cell = f"{-100 * size:g} % ({found} of {there})"
    return cell


def summary(name: str, score: Score) -> str:
    """Return the sums of the counts on one line. Leave out what did not occur."""
    rate, least, most = score.false_alarms_per_1000()
    parts = [
        f"{name}: {sum(score.found.values())} of {sum(score.faults.values())} faults found",
        f"{score.false_alarms} false alarms in {score.node_nights} node-nights"
        f" ({rate:.2f} per 1,000; 95 % bounds {least:.2f} to {most:.2f}) on {score.first_false_alarms} nodes",
    ]
    if score.false_alarms_in_bad_rack_nights:
        parts.append(f"{score.false_alarms_in_bad_rack_nights} of them in a rack's bad night")
    if score.nights_after_recovery:
        parts.append(
            f"{score.flagged_after_recovery} of {score.nights_after_recovery} nights after recovery flagged"
        )
    if score.rack_faults:
        parts.append(
            f"racks at fault: {score.rack_nodes_flagged} of {score.rack_nodes} nodes flagged,"
            f" {score.racks_flagged_whole} of {score.rack_faults} racks whole"
        )
    return "; ".join(parts)
