"""Judge every number of a night, and give each node its verdict.

Job validate calls :func:`judge_night`. The input is the numbers of tonight and of earlier nights from
the history, and the references from the inventory. Each number is compared with floors, with its own
past, and with the rest of the fleet. The output is a verdict with reasons for each node, link and group.

A row is one number (a reading). A quantity is a metric with its benchmark, parameters and labels. A part is
a node, GPU, link between nodes, or group of nodes. A series is one quantity of one part over the nights.

These are the rules:

* Floors are the references of a SKU and the accepted history. :func:`rackproof.core.judging.judge` gives the
  verdicts. If several runs of a night measured a number, the worst counts. A retest is different:
  :mod:`rackproof.jobs.validate.fleet.retest` hands over the better of the two values.
* One model compares each part with its past and with the fleet
  (:mod:`rackproof.analysis.fleet_model`), and limits the rate of false alarms. A proven loss fails. A
  smaller loss, or a rack that is slow as a whole, degrades. A suspicion is unproven until the part is
  measured again.
* If too few earlier nights are known, the nodes of a SKU are compared by robust z (median and MAD). The
  worst number of a node counts.
* A GPU, or a collective between the GPUs of a node, is unproven if it is far below its own past, or far
  below the others of a SKU with few nodes. A value that is impossible for its GPU model is unproven, too.
  These rules also apply without a floor.
* A number without a floor is unproven, unless the policy does not require floors or the rules of its run
  proved the number. A number that is missing or not finite is always unproven.
* If the same finding is on more than a share of a SKU's nodes, the tool or the fabric is probably at fault.
  The finding is then unproven instead of fail, is reported once per node, and drains no node.

All numbers are in arrays, so that 10,000 nodes can be judged. Only findings get a text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rackproof.analysis.fleet_model import (
    FleetPolicy,
    SeriesTable,
    SlowSeries,
    find_slow_series,
    rack_table,
    row_medians,
)
from rackproof.core.judging import NO_REFERENCE, SkuReference, judge, warns_above
from rackproof.core.records import Direction, Measurement, Node, Reference, Verdict
from rackproof.core.text import amount, percent, quantity
from rackproof.store.history.readings import Accepted, Floats, Integers, Part, Readings
from rackproof.store.history.references import physical_objection
from rackproof.store.history.rows import Measured

MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution, in units of its median absolute deviation."""

CHECKS = ("missing", "number", "reference", "floor", "fleet", "drift", "rack", "past", "physics")
"""Names of the checks. In this order, they find a number that is missing, is not finite, has no reference,
fails its reference, is worse than others, became worse, is of a slow rack, is far below its own past, or is
impossible."""

# The order is from good to bad, as in records.worst().
_VERDICTS = (Verdict.PASS, Verdict.DEGRADED, Verdict.UNPROVEN, Verdict.FAIL)
_DEGRADED, _UNPROVEN, _FAIL = 1, 2, 3
_MISSING, _NUMBER, _REFERENCE, _FLOOR, _FLEET, _DRIFT, _RACK, _PAST, _PHYSICS = range(len(CHECKS))
_REASONS_SHOWN = 20
"""Largest number of reasons in the verdict of a node."""

Bools = NDArray[np.bool_]
Conditions = Mapping[str, tuple[str, str]]
"""Pairs of firmware and rack by a node's key, for one night. Nodes with the same firmware form a group, and
so do nodes in the same rack."""


@dataclass(frozen=True)
class AnomalyPolicy:
    """The limits by which job validate judges a night.

    Fractions are relative to the value with which a number is compared. Negative fractions are worse, except
    that ``gross`` is a positive loss.

    A fixed limit for z is not enough. Some of 400,000 numbers a night exceed it by chance. The limit
    therefore grows with the number of comparisons, so that normal noise causes at most ``chance`` false
    alarms a night. In addition, the loss must be at least ``outlier_degrades``.

    ``resolution`` is the repeatability of a probe. No smaller spread is assumed, because the MAD is too
    small if most values are equal.
    """

    nights: int = 14
    """Number of earlier nights used for comparison."""
    fleet: FleetPolicy = field(default_factory=FleetPolicy)
    """The limits of the fleet model."""
    outlier_z: float = -3.0
    """Largest robust z of an outlier: its distance from the median, in standard deviations."""
    outlier_degrades: float = -0.02
    outlier_fails: float = -0.07
    """Deviation from which an outlier fails. A smaller one is degraded."""
    outlier_least: int = 5
    """Smallest number of nodes of one SKU that are compared by robust z."""
    gross: float = 0.2
    """Loss relative to a GPU's own past, or to the others of a small SKU, that makes it unproven. The fleet
    model does not find a loss on all nodes at once, because it counts as a common condition."""
    chance: float = 0.1
    resolution: float = 0.0025
    share: float = 0.15
    """Share of a SKU's nodes above which one finding counts as a fault of the tool or the fabric."""
    share_least: int = 3
    """Smallest number of nodes with one finding that may count as a fault of the tool or the fabric."""
    require_references: bool = True
    """True if a number without a floor is unproven. If false, the fleet and the past alone judge it."""


@dataclass(frozen=True)
class Reason:
    """One reason why a node, link or group did not pass a night.

    Attributes:
        check: The check with this finding, one of :data:`CHECKS`.
        metric: The measured quantity, with its labels.
        part: The measured part, such as a GPU with its slot.
        text: The reason in words for the operator.
        deviation: The relative deviation from the value compared with, or NaN if there is none.
        fleetwide: Whether the finding is on more than the allowed share of the SKU's nodes.
        row: The index of the reading, or -1.
    """

    check: str
    verdict: Verdict
    metric: str
    part: str
    text: str
    deviation: float
    fleetwide: bool = False
    row: int = -1


@dataclass(frozen=True)
class NodeVerdict:
    """A night's verdict on one node, link or group of nodes.

    ``kind`` is node, link or group. ``reasons`` has the worst first, and ``more`` is the number of reasons
    that were left out.
    """

    kind: str
    key: str
    name: str
    sku: str
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    more: int = 0


@dataclass(frozen=True)
class FleetFault:
    """One kind of finding on more than the allowed share of a SKU's nodes, or of its links and groups.

    ``found`` of the ``judged`` nodes, or links and groups, have the finding.
    """

    sku: str
    check: str
    metric: str
    found: int
    judged: int

    def __str__(self) -> str:
        text = f"{self.check} of {self.metric}".strip()
        return (
            f"{text} on {self.found} of {self.judged} nodes {self.sku}: a fault of the tool or the fabric "
            "until proven otherwise"
        )


@dataclass(frozen=True)
class Night:
    """A judged night: the verdicts, and the faults of the fleet as a whole.

    ``nodes`` lists every requested node, and every measured node, link and group. ``notes`` are remarks on
    the whole night.
    """

    nodes: tuple[NodeVerdict, ...]
    fleet_faults: tuple[FleetFault, ...]
    notes: tuple[str, ...]


@dataclass
class _Findings:
    """Findings as columns of equal length, because a fleet's night can give very many.

    Attributes:
        row: The index of the reading, or -1 if the value is missing.
        owner, part: Indices into the parts of :class:`_Fleet`.
        quantity, reference: Indices into the quantities and the references, or -1.
        check, verdict: Indices into :data:`CHECKS` and ``_VERDICTS``.
        value: The measured value, the level after a loss, or how many parts were measured.
        base: The value to compare ``value`` with, or the usual number of parts.
        nights: For how many nights there was a loss, or 0 if only tonight's number was judged.
        odds: At most one of this number of healthy node-nights shows such a loss, or NaN.
    """

    row: Integers
    owner: Integers
    part: Integers
    quantity: Integers
    check: Integers
    verdict: Integers
    value: Floats
    base: Floats
    reference: Integers
    nights: Integers
    odds: Floats


def judge_night(
    readings: Readings,
    references: Mapping[str, Sequence[SkuReference]],
    *,
    requested: Sequence[Node] = (),
    accepted: Sequence[Accepted] = (),
    policy: AnomalyPolicy | None = None,
    past: bool = True,
    once: Collection[tuple[str, str]] = (),
    twice: Collection[tuple[str, str]] = (),
    conditions: Sequence[Conditions] = (),
) -> Night:
    """Judge night 0 (tonight) of the readings.

    Args:
        readings: The numbers of tonight and, to detect drift, of earlier nights.
        references: The references of each SKU, from ``inventory/group_vars/sku_*.yml``.
        requested: The nodes that the night was to measure. A node without any number is unproven.
        accepted: The references that were accepted for exactly this hardware.
        policy: The limits of the judgement.
        past: Whether to compare with the fleet and earlier nights. Floors and completeness are always
            checked.
        once: The benchmark and node key of bad numbers that should have been measured again, but were not.
            If such a number alone fails a floor, fleet or drift check, the node is only unproven. A loss over
            several nights still fails.
        twice: The benchmark and node key of numbers that are the better of two measurements.
        conditions: The firmware and rack of each node's key, one mapping per night, tonight first. Nodes
            with the same firmware, and nodes in the same rack, share common conditions.

    Returns:
        A verdict for each requested node and each measured node, link and group, with remarks.
    """
    policy = policy or AnomalyPolicy()
    fleet = _Fleet(readings, requested)
    findings, floors, unreferenced = _findings_by_floors(fleet, references, accepted, policy)
    findings.append(_impossible(fleet, findings))
    notes = []
    if past:
        model = _compare_nights(fleet, conditions, twice, policy)
        notes = _weigh_floors(fleet, findings, floors, len(floors) - len(accepted), model)
        findings += [*model.found, *_outliers(fleet, policy, model.judged)]
        findings += [_gross_losses(fleet, model.early, policy), *_below_few(fleet, policy)]
    findings += _missing(fleet, past)
    joined = _join_findings(findings)
    if not policy.require_references and len(unreferenced):
        names = sorted({readings.quantities[number].metric for number in unreferenced})
        notes.append(f"{NO_REFERENCE}, judged by fleet and history only: {', '.join(names)}")
    return _node_verdicts(fleet, joined, floors, policy, tuple(notes), _measured_once(fleet, joined, once))


def _measured_once(fleet: _Fleet, findings: _Findings, once: Collection[tuple[str, str]]) -> Bools:
    """Return which findings rest on a number that should have been measured again, but was not."""
    # A loss over several nights does not depend on tonight's number.
    doubtful = np.isin(findings.check, (_FLOOR, _FLEET, _DRIFT)) & (findings.nights <= 1)
    for row in np.flatnonzero(doubtful) if once else ():
        benchmark = fleet.quantities[findings.quantity[row]].benchmark
        doubtful[row] = (benchmark, fleet.parts[findings.owner[row]].key) in once
    return doubtful if once else np.zeros(len(findings.check), bool)


class _Fleet:
    """A night's readings, and the owner of each row.

    The owner of a number is its node or, if it belongs to no single node, its link or group.
    """

    def __init__(self, readings: Readings, requested: Sequence[Node]) -> None:
        self.readings = readings
        self.quantities = readings.quantities
        self.parts: list[Part] = list(readings.parts)
        self.asked = self._add_asked(requested)
        self.owner = np.where(readings.node >= 0, readings.node, readings.part).astype(np.int32)
        self.tonight = np.flatnonzero(readings.night == 0)
        self.skus = sorted({part.sku for part in self.parts})
        number = {sku: index for index, sku in enumerate(self.skus)}
        self.sku = np.array([number[part.sku] for part in self.parts], dtype=np.int32)
        self.is_node = np.array([part.kind == "node" for part in self.parts], dtype=bool)
        # +1 means that higher is better, -1 that lower is better, and 0 that it is unknown, so that
        # every deviation is bad.
        signs = {Direction.HIGHER: 1, Direction.LOWER: -1}
        self.sign = np.array(
            [signs[measured.direction] if measured.direction else 0 for measured in self.quantities],
            dtype=np.int32,
        )

    def _add_asked(self, requested: Sequence[Node]) -> list[int]:
        """Add the requested nodes without a reading. Return the indices of all requested nodes."""
        place_of = {part[:2]: index for index, part in enumerate(self.parts)} if requested else {}
        places = []
        for node in requested:
            key = ("node", node.hardware_key)
            if key not in place_of:
                place_of[key] = len(self.parts)
                self.parts.append(Part(*key, name=node.name, sku=node.sku))
            places.append(place_of[key])
            # Take the node's name and SKU from the inventory, because the history may name old ones.
            self.parts[place_of[key]] = self.parts[place_of[key]]._replace(name=node.name, sku=node.sku)
        return places

    @cached_property
    def gpus(self) -> dict[int, list[int]]:
        """Return the indices of each node's GPUs, by the index of the node."""
        indices: dict[int, list[int]] = {}
        for index, part in enumerate(self.parts):
            if part.kind == "gpu" and part.node >= 0:
                indices.setdefault(part.node, []).append(index)
        return indices

    def product(self, index: int) -> str:
        """Return the product name of a GPU, or of a node's first GPU, or "" for a node without GPUs."""
        if self.parts[index].kind == "node":
            index = next(iter(self.gpus.get(index, ())), -1)
        return self.parts[index].name if index >= 0 else ""

    @cached_property
    def _by_owner(self) -> tuple[NDArray[np.intp], Integers]:
        """Return tonight's rows sorted by owner, and the owner of each row."""
        order = self.tonight[np.argsort(self.owner[self.tonight], kind="stable")]
        return order, self.owner[order]

    def rows_of(self, owner: int) -> NDArray[np.intp]:
        """Return tonight's rows of a node, link or group."""
        order, owners = self._by_owner
        begin, end = np.searchsorted(owners, [owner, owner + 1])
        return order[begin:end]

    def series(self) -> Integers:
        """Return for each row the number of its series, which is unique for each part and quantity."""
        return self.readings.part.astype(np.int64) * len(self.quantities) + self.readings.quantity

    def goodness(self, rows: NDArray[np.intp]) -> Floats:
        """Return values with their sign changed where lower is better, so that more is always better."""
        sign = self.sign[self.readings.quantity[rows]]
        return self.readings.value[rows] * np.where(sign < 0, -1.0, 1.0)


def _findings_by_floors(
    fleet: _Fleet,
    references: Mapping[str, Sequence[SkuReference]],
    accepted: Sequence[Accepted],
    policy: AnomalyPolicy,
) -> tuple[list[_Findings], list[Reference], Integers]:
    """Compare tonight's rows with every reference that fits.

    Return the findings, the references, and the quantities that lack a reference and are not proven
    otherwise. :func:`judge` gives the verdicts. Numbers that are not finite and have no reference, and
    numbers that lack a required reference, are among the findings. The references of SKUs come first, and
    then all of ``accepted``, in their order.
    """
    rows, readings = fleet.tonight, fleet.readings
    quantities, owner = readings.quantity[rows], fleet.owner[rows]
    value = readings.value[rows]
    # There are few quantities and few SKUs, so look up the references once for each pair of them.
    pair = fleet.sku[owner].astype(np.int64) * len(fleet.quantities) + quantities
    kinds, kind = np.unique(pair, return_inverse=True)
    fitting = [_fitting_references(fleet, int(number), references) for number in kinds]
    placed_references: list[Reference] = []
    findings: list[_Findings] = []
    referenced = np.zeros(len(rows), bool)
    # A layer holds at most one reference for each pair, so that one array operation judges the layer.
    for layer in range(max((len(choices) for choices in fitting), default=0)):
        index = np.full(len(kinds), -1, np.int32)
        for place, choice in enumerate(fitting):
            if layer < len(choice):
                index[place] = len(placed_references)
                placed_references.append(choice[layer])
        findings += _findings_by_reference(fleet, rows, index[kind], placed_references)
        referenced |= index[kind] >= 0
    if accepted:
        accepted_index = _accepted_places(fleet, rows, accepted, len(placed_references))
        placed_references += [entry.reference for entry in accepted]
        findings += _findings_by_reference(fleet, rows, accepted_index, placed_references)
        referenced |= accepted_index >= 0
    broken = ~np.isfinite(value)
    findings.append(_findings_on_rows(fleet, rows[broken & ~referenced], _NUMBER, _UNPROVEN))
    lacking = ~referenced & ~broken & ~readings.is_proven[rows]
    if policy.require_references:
        findings.append(_findings_on_rows(fleet, rows[lacking], _REFERENCE, _UNPROVEN))
    return findings, placed_references, np.unique(quantities[lacking])


def _accepted_places(
    fleet: _Fleet, rows: NDArray[np.intp], accepted: Sequence[Accepted], first: int
) -> Integers:
    """Return the index of each row's accepted reference, or -1. ``first`` is the index of the first one."""
    places_by_series = {
        entry.part * len(fleet.quantities) + entry.quantity: first + number
        for number, entry in enumerate(accepted)
    }
    keys = np.array(sorted(places_by_series), dtype=np.int64)
    places = np.array([places_by_series[int(key)] for key in keys], dtype=np.int32)
    series = fleet.series()[rows]
    # searchsorted also returns a place for a series that is not in keys, so compare the result afterwards.
    spot = np.searchsorted(keys, series).clip(0, len(keys) - 1)
    return np.where(keys[spot] == series, places[spot], -1).astype(np.int32)


def _fitting_references(
    fleet: _Fleet, pair: int, references: Mapping[str, Sequence[SkuReference]]
) -> list[Reference]:
    """Return the references for ``pair`` (index of SKU * quantities + index of quantity), in file order."""
    sku, number = divmod(pair, len(fleet.quantities))
    measured = fleet.quantities[number]
    sample = Measurement(name=measured.metric, value=0.0, unit=measured.unit, labels=measured.labels)
    return [
        reference.reference
        for reference in references.get(fleet.skus[sku], ())
        if reference.fits(measured.benchmark, measured.parameters, sample)
    ]


def _findings_by_reference(
    fleet: _Fleet, rows: NDArray[np.intp], index: Integers, references: Sequence[Reference]
) -> list[_Findings]:
    """Return findings on the rows that do not pass their reference.

    ``index`` gives the reference of each row, or -1 for a row without a reference.
    """
    has_reference = index >= 0
    rows, index = rows[has_reference], index[has_reference]
    if not len(rows):
        return []
    readings = fleet.readings
    value, sign = readings.value[rows], fleet.sign[readings.quantity[rows]]

    def column(values: Iterable[float | None]) -> Floats:
        return np.array([np.nan if number is None else number for number in values], dtype=np.float64)[index]

    base = column(reference.value for reference in references)
    lowest = base + np.abs(base) * column(reference.low for reference in references)
    highest = base + np.abs(base) * column(reference.high for reference in references)
    edge = base + np.abs(base) * column(reference.warn for reference in references)
    # An open bound is NaN, and a comparison with NaN is false.
    below, above = value < lowest, value > highest
    upper = np.array(
        [warns_above(measured.direction, measured.unit) for measured in fleet.quantities], dtype=bool
    )
    less_is_better = upper[readings.quantity[rows]]
    warned = np.where(less_is_better, value > edge, value < edge)
    verdict = np.where(warned, _DEGRADED, 0)
    # Equal bounds come from `equals`. Beyond them, a value is never too good, but wrong.
    is_range = lowest != highest
    verdict = np.where(above, np.where((sign > 0) & is_range, _UNPROVEN, _FAIL), verdict)
    verdict = np.where(below, np.where(less_is_better & is_range, _UNPROVEN, _FAIL), verdict)
    verdict = np.where(_useless(fleet, rows, index, references) | ~np.isfinite(value), _UNPROVEN, verdict)
    bad = verdict > 0
    findings = _findings_on_rows(fleet, rows[bad], _FLOOR, 0)
    findings.verdict = verdict[bad].astype(np.int32)
    findings.base, findings.reference = base[bad], index[bad]
    return [findings]


def _useless(
    fleet: _Fleet, rows: NDArray[np.intp], index: Integers, references: Sequence[Reference]
) -> NDArray[np.bool_]:
    """Return which rows are compared with a useless reference.

    A reference is useless if its unit differs from the number's, or if every value passes it.
    """
    numbers = fleet.readings.quantity[rows]
    pairs, pair = np.unique(np.stack([numbers, index]), axis=1, return_inverse=True)
    answers = []
    for number, place in pairs.T:
        measured, reference = fleet.quantities[number], references[place]
        # A useful reference passes its own value. For a useless one, judge() gives unproven.
        sample = Measurement(
            name=measured.metric, value=reference.value, unit=measured.unit, direction=measured.direction
        )
        answers.append(judge(sample, reference).verdict is Verdict.UNPROVEN)
    return np.array(answers, dtype=bool)[pair.reshape(-1)]


def _missing(fleet: _Fleet, past: bool) -> list[_Findings]:
    """Return findings on requested nodes without any number, and on missing numbers of the others."""
    rows, count = fleet.tonight, len(fleet.quantities)
    owner = fleet.owner[rows]
    findings = []
    silent = np.setdiff1d(np.array(fleet.asked, dtype=np.int32), owner)
    findings.append(_new_findings(silent, silent, np.full(len(silent), -1), _MISSING, _UNPROVEN))
    if not count:
        return findings
    nodes = np.setdiff1d(np.unique(owner[fleet.is_node[owner]]), silent)
    position = np.full(len(fleet.parts), -1, np.int64)
    position[nodes] = np.arange(len(nodes))
    # Count the parts of each node with each quantity. A part that was measured twice counts once.
    series, first = np.unique(fleet.series()[rows], return_index=True)
    where = position[owner[first]]
    inside = where >= 0
    cell = where[inside] * count + (series[inside] % count)
    measured = np.bincount(cell, minlength=len(nodes) * count).reshape(len(nodes), count)
    need = _usual_counts(measured, fleet.sku[nodes])
    if past:
        need = np.maximum(need, _habits(fleet, nodes, position))
    lacks, quantities = np.nonzero(measured < need)
    missing = _new_findings(nodes[lacks], nodes[lacks], quantities, _MISSING, _UNPROVEN)
    missing.value = measured[lacks, quantities].astype(np.float64)
    missing.base = need[lacks, quantities].astype(np.float64)
    findings.append(missing)
    return findings


def _usual_counts(measured: NDArray[np.intp], skus: Integers) -> NDArray[np.intp]:
    """Return for each node and quantity the usual number of measured parts in the node's SKU.

    The number is 0 unless most nodes of the SKU measured the quantity.

    Args:
        measured: The number of measured parts, with a row per node and a column per quantity.
        skus: The SKU of each node.
    """
    usual = np.zeros_like(measured)
    for sku in np.unique(skus):
        is_of_sku = skus == sku
        counts = measured[is_of_sku]
        by_most = (counts > 0).sum(axis=0) * 2 > len(counts)
        for column in np.flatnonzero(by_most):
            of_quantity = counts[:, column]
            usual[is_of_sku, column] = np.bincount(of_quantity[of_quantity > 0]).argmax()
    return usual


def _habits(fleet: _Fleet, nodes: Integers, position: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 1 for each node and quantity if the node measured it in at least half of the earlier nights.

    Otherwise, the number is 0. Only earlier nights with any number count.
    """
    readings, count = fleet.readings, len(fleet.quantities)
    before = readings.night > 0
    nights = np.count_nonzero(np.bincount(readings.night[before]))
    habits = np.zeros(len(nodes) * count, np.int64)
    where = position[fleet.owner[before]]
    inside = where >= 0
    if nights and inside.any():
        cell = where[inside] * count + readings.quantity[before][inside]
        measured = np.zeros((len(habits), int(readings.night.max()) + 1), bool)
        measured[cell, readings.night[before][inside]] = True
        habits[2 * measured.sum(axis=1) >= max(nights, 2)] = 1
    return habits.reshape(len(nodes), count)


def _outliers(fleet: _Fleet, policy: AnomalyPolicy, judged: Bools) -> list[_Findings]:
    """Return findings on nodes that are far below the other nodes of their SKU, by robust z.

    The worst number of each node counts. Findings are only on numbers that the fleet model could not judge,
    because too few earlier nights are known, but all numbers of tonight are compared with.

    Args:
        fleet: The numbers of tonight.
        policy: The limits of the judgement.
        judged: Whether the fleet model judged each row.
    """
    readings = fleet.readings
    rows = fleet.tonight[np.isfinite(readings.value[fleet.tonight])]
    # Without a direction it is unknown which node is worse.
    rows = rows[fleet.sign[readings.quantity[rows]] != 0]
    if not len(rows) or judged[rows].all():
        return []
    good = fleet.goodness(rows)
    owner, number = fleet.owner[rows], readings.quantity[rows]
    order = np.lexsort((good, owner, number, fleet.sku[owner]))
    rows, owner, number, good = rows[order], owner[order], number[order], good[order]
    group = fleet.sku[owner].astype(np.int64) * len(fleet.quantities) + number
    lowest = np.flatnonzero(np.r_[True, (np.diff(group) != 0) | (np.diff(owner) != 0)])
    limit = min(policy.outlier_z, NormalDist().inv_cdf(min(policy.chance / len(lowest), 0.5)))
    findings = []
    for cell in np.unique(group[~judged[rows]]):
        lowest_of_cell = lowest[group[lowest] == cell]
        middle = float(np.median(good[lowest_of_cell]))
        # A loss relative to 0 is undefined. Counts of faults are compared with their own floor.
        if len(lowest_of_cell) < policy.outlier_least or middle == 0:
            continue
        deviation = MAD_TO_SIGMA * float(np.median(np.abs(good[lowest_of_cell] - middle)))
        spread = max(deviation, policy.resolution * abs(middle))
        new = np.flatnonzero((group == cell) & ~judged[rows])
        new = new[np.unique(owner[new], return_index=True)[1]]
        off = (good[new] - middle) / abs(middle)
        out = ((good[new] - middle) / spread < limit) & (off <= policy.outlier_degrades)
        outliers = _findings_on_rows(fleet, rows[new[out]], _FLEET, 0)
        outliers.verdict = np.where(off[out] <= policy.outlier_fails, _FAIL, _DEGRADED).astype(np.int32)
        outliers.base = np.full(int(out.sum()), middle * fleet.sign[cell % len(fleet.quantities)])
        findings.append(outliers)
    return findings


def _gpu_rows(fleet: _Fleet) -> NDArray[np.intp]:
    """Return tonight's rows of GPUs, and of collectives between the GPUs of a node.

    CPUs are left out, because other processes change their speed.
    """
    is_gpu = np.array([part.kind == "gpu" for part in fleet.parts], dtype=bool)
    is_collective = np.array(
        [
            measured.metric.endswith("_busbw") and measured.labels.get("device") != "cpu"
            for measured in fleet.quantities
        ],
        dtype=bool,
    )
    part, quantity = fleet.readings.part[fleet.tonight], fleet.readings.quantity[fleet.tonight]
    rows: NDArray[np.intp] = fleet.tonight[is_gpu[part] | (fleet.is_node[part] & is_collective[quantity])]
    return rows


def _gross_losses(fleet: _Fleet, early: Floats, policy: AnomalyPolicy) -> _Findings:
    """Return findings on GPUs and collectives far below the median of their own earlier nights."""
    rows = _gpu_rows(fleet)
    base = early[rows]
    # Without two earlier nights, or without an earlier number of the series, the base is NaN. A comparison
    # with NaN is false.
    lost = base - fleet.goodness(rows) > policy.gross * np.abs(base)
    findings = _findings_on_rows(fleet, rows[lost], _PAST, _UNPROVEN)
    findings.base = np.abs(base[lost])
    return findings


def _below_few(fleet: _Fleet, policy: AnomalyPolicy) -> list[_Findings]:
    """Return findings on GPUs and collectives far below the upper quartile of their quantity in their SKU.

    Only quantities that too few nodes of the SKU measured for a comparison by median are judged here.
    """
    rows = _gpu_rows(fleet)
    owner, quantities = fleet.owner[rows], fleet.readings.quantity[rows]
    kinds, kind = np.unique(
        fleet.sku[owner].astype(np.int64) * len(fleet.quantities) + quantities, return_inverse=True
    )
    findings = []
    for number in range(len(kinds)):
        of_kind = rows[kind == number]
        if len(np.unique(fleet.owner[of_kind])) >= policy.outlier_least:
            continue
        good = fleet.goodness(of_kind)
        # A high quantile shows the possible speed. A median of two nodes would hide the slower one.
        base = float(np.nanquantile(good, 0.75)) if np.isfinite(good).any() else np.nan
        far = of_kind[base - good > policy.gross * abs(base)]
        below = _findings_on_rows(fleet, far, _FLEET, _UNPROVEN)
        below.base = np.full(len(far), abs(base))
        findings.append(below)
    return findings


def _impossible(fleet: _Fleet, failing: Sequence[_Findings]) -> _Findings:
    """Return findings on numbers that are impossible for healthy GPUs of the model or for their node.

    An impossible number is above the model's peak or far too small. Numbers that fail their floor are left
    out, because they need no second reason.
    """
    rows, value = _gpu_rows(fleet), fleet.readings.value
    for floor_findings in failing:
        rows = rows[~np.isin(rows, floor_findings.row[floor_findings.verdict == _FAIL])]
    number: dict[str, int] = {}
    names = [fleet.product(index) for index in range(len(fleet.parts))]
    models = np.array([number.setdefault(name, len(number)) for name in names], dtype=np.int64)
    kinds, kind = np.unique(
        models[fleet.readings.part[rows]] * len(fleet.quantities) + fleet.readings.quantity[rows],
        return_inverse=True,
    )
    bad: list[int] = []
    for index in range(len(kinds)):
        of_kind = rows[(kind == index) & np.isfinite(value[rows])]
        extremes = of_kind[[value[of_kind].argmin(), value[of_kind].argmax()]] if len(of_kind) else of_kind
        # If the smallest and the largest number are plausible, all others are, too.
        if any(_objection(fleet, int(row)) for row in extremes):
            bad += [int(row) for row in of_kind if _objection(fleet, int(row))]
    return _findings_on_rows(fleet, np.array(bad, dtype=np.intp), _PHYSICS, _UNPROVEN)


def _objection(fleet: _Fleet, row: int) -> str:
    """Return the reason why a number cannot come from sound GPUs of this model, or ""."""
    measured = fleet.quantities[int(fleet.readings.quantity[row])]
    product = fleet.product(int(fleet.readings.part[row]))
    return physical_objection(
        measured.metric, measured.labels, measured.unit, float(fleet.readings.value[row]), product
    )


def _fleet_tables(
    fleet: _Fleet, conditions: Sequence[Conditions], twice: Collection[tuple[str, str]], nights: int
) -> Iterator[tuple[SeriesTable, NDArray[np.intp]]]:
    """Yield each SKU's series, and the row of tonight in each series.

    A series has tonight and at most ``nights`` earlier nights. If it has several numbers in a night, the
    worst counts. Series without a finite number tonight, and quantities without a direction, are left out.
    """
    readings = fleet.readings
    rows = np.flatnonzero(
        np.isfinite(readings.value) & (readings.night <= nights) & (fleet.sign[readings.quantity] != 0)
    )
    if not len(rows):
        return
    good, night = fleet.goodness(rows), readings.night[rows]
    series = fleet.series()[rows]
    # The numbers of series are dense, so a table of the occurring numbers is faster than np.unique.
    occurs = np.zeros(len(fleet.parts) * len(fleet.quantities), bool)
    occurs[series] = True
    keys, series = np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[series]
    # Use the worst number of each night, as all checks do. The newest night is the last column.
    width = int(night.max()) + 1
    worst = np.full(len(keys) * width, np.inf)
    np.minimum.at(worst, series * width + (width - 1 - night), good)
    values: Floats = np.where(np.isinf(worst), np.nan, worst).reshape(len(keys), width)
    latest = np.flatnonzero(night == 0)
    # Sort by goodness, so that the row that remains is the worst.
    latest = latest[np.argsort(-good[latest], kind="stable")]
    tonight = np.full(len(keys), -1, np.intp)
    tonight[series[latest]] = rows[latest]
    present = np.flatnonzero(tonight >= 0)
    owner = fleet.owner[tonight[present]]
    groups = _condition_groups(fleet, owner, conditions, width)
    measured_twice = _measured_twice(fleet, tonight[present], twice)
    for sku in np.unique(fleet.sku[owner]):
        of_sku = np.flatnonzero(fleet.sku[owner] == sku)
        table = SeriesTable(
            value=values[present[of_sku]],
            quantity=(keys[present[of_sku]] % len(fleet.quantities)).astype(np.int32),
            part=(keys[present[of_sku]] // len(fleet.quantities)).astype(np.int32),
            node=owner[of_sku],
            groups=tuple(group[of_sku] for group in groups),
            twice=measured_twice[of_sku],
        )
        yield table, tonight[present[of_sku]]


def _condition_groups(
    fleet: _Fleet, owner: Integers, conditions: Sequence[Conditions], width: int
) -> tuple[Integers, ...]:
    """Return the groupings of series in each night, by firmware and then by rack, or none without conditions.

    ``owner`` is the node, link or group of each series. ``width`` is the number of nights, including tonight.
    """
    if not conditions:
        return ()
    numbers: dict[tuple[str, ...], int] = {}
    firmware = np.zeros((len(fleet.parts), width), np.int32)
    rack = np.zeros_like(firmware)
    latest: Mapping[str, tuple[str, str]] = {}
    for ago in range(width):
        # A night without a record is treated like the next later night.
        latest = conditions[ago] if ago < len(conditions) and conditions[ago] else latest
        # Use numbers, because comparing texts for every series and night would take longer than judging.
        for index in np.unique(owner):
            version, place = latest.get(fleet.parts[index].key, ("", ""))
            firmware[index, width - 1 - ago] = numbers.setdefault((version,), len(numbers))
            # Ignore firmware here. A rack of four nodes with two firmware versions would form no group.
            rack[index, width - 1 - ago] = numbers.setdefault(("", place), len(numbers))
    return firmware[owner], rack[owner]


def _measured_twice(fleet: _Fleet, rows: NDArray[np.intp], twice: Collection[tuple[str, str]]) -> Bools:
    """Return whether tonight's numbers are the better of two measurements."""
    if not twice:
        return np.zeros(len(rows), bool)
    readings = fleet.readings
    measured = [
        (fleet.quantities[quantity].benchmark, fleet.parts[owner].key) in twice
        for quantity, owner in zip(readings.quantity[rows], fleet.owner[rows], strict=True)
    ]
    return np.array(measured, dtype=bool)


@dataclass
class _ModelResult:
    """The result of the fleet model.

    Attributes:
        found: The findings.
        judged: Whether the model judged each row.
        explained: Whether chance may explain the number of each row.

    Only the worst row of tonight in each series of the model has entries. In all other rows, ``judged`` and
    ``explained`` are false, and ``early`` and ``late`` are NaN.
    """

    found: list[_Findings]
    judged: Bools
    explained: Bools
    early: Floats
    """Median of the series in the earlier nights. More is better. NaN without two earlier nights, or without
    an earlier number."""
    late: Floats
    """Worse number of the series in the two nights before tonight. More is better. NaN if it is unknown."""


def _compare_nights(
    fleet: _Fleet,
    conditions: Sequence[Conditions],
    twice: Collection[tuple[str, str]],
    policy: AnomalyPolicy,
) -> _ModelResult:
    """Find the series that are slow compared with their past and with the fleet, by the fleet model."""
    size = len(fleet.readings)
    result = _ModelResult(
        [], np.zeros(size, bool), np.zeros(size, bool), np.full(size, np.nan), np.full(size, np.nan)
    )
    for table, tonight in _fleet_tables(fleet, conditions, twice, policy.nights):
        slow_series = find_slow_series(table, policy.fleet)
        result.found += _slow_racks(fleet, table, tonight, policy.fleet)
        result.judged[tonight] = slow_series.judged
        result.explained[tonight] = slow_series.explained
        if table.value.shape[1] > 2:
            result.early[tonight] = row_medians(table.value[:, :-1])
            result.late[tonight] = np.fmin(table.value[:, -2], table.value[:, -3])
        rows = (
            tonight[[series.series for series in slow_series.slow]]
            if slow_series.slow
            else np.empty(0, np.intp)
        )
        findings = _findings_on_rows(fleet, rows, _FLEET, 0)
        sign = fleet.sign[fleet.readings.quantity[rows]]
        loss = np.array([series.loss for series in slow_series.slow])
        findings.base = np.array([series.base for series in slow_series.slow]) * sign
        # The evidence is the loss over all these nights, not tonight's single number.
        findings.value = findings.base - np.abs(findings.base) * loss * sign
        findings.check = np.array(
            [_FLEET if series.test == "level" else _DRIFT for series in slow_series.slow], np.int32
        )
        findings.verdict = np.array(
            [_slow_verdict(series, policy.fleet) for series in slow_series.slow], np.int32
        )
        findings.nights = np.array([series.nights for series in slow_series.slow], np.int32)
        findings.odds = np.array([series.evidence for series in slow_series.slow], np.float64)
        result.found.append(findings)
    return result


def _slow_racks(
    fleet: _Fleet, table: SeriesTable, tonight: NDArray[np.intp], policy: FleetPolicy
) -> list[_Findings]:
    """Return findings on the nodes of racks that are slow as a whole, at most one per node and quantity.

    The findings degrade the nodes, because the nodes of such a rack share the cause.
    """
    if not table.groups:
        return []
    # A rack is judged like a node, by its median compared with other racks.
    racks = rack_table(table, policy)
    findings = []
    for slow in find_slow_series(racks, policy).slow:
        if slow.loss < policy.loss_fails:
            continue
        in_rack = (table.groups[-1][:, -1] == racks.node[slow.series]) & (
            table.quantity == racks.quantity[slow.series]
        )
        rows = tonight[in_rack]
        # Keep one finding for each node.
        rows = rows[np.unique(fleet.owner[rows], return_index=True)[1]]
        slowed = _findings_on_rows(fleet, rows, _RACK, _DEGRADED)
        worse = np.where(fleet.sign[fleet.readings.quantity[rows]] < 0, 1 + slow.loss, 1 - slow.loss)
        slowed.base = slowed.value / worse
        slowed.nights = np.full(len(rows), slow.nights, np.int32)
        slowed.odds = np.full(len(rows), slow.evidence)
        findings.append(slowed)
    return findings


def _slow_verdict(slow: SlowSeries, policy: FleetPolicy) -> int:
    """Return the verdict for a loss.

    A node that fails is drained, an unproven one is measured again, and a degraded one is watched.
    """
    # Without other nodes to compare, the cause may be the environment.
    if slow.loss < policy.loss_fails or slow.alone or not slow.suspected:
        return _DEGRADED
    return _FAIL if slow.proven else _UNPROVEN


def _weigh_floors(
    fleet: _Fleet,
    floors: list[_Findings],
    references: Sequence[Reference],
    own_from: int,
    model: _ModelResult,
) -> list[str]:
    """Change the findings on floors by the numbers of other nights, and return remarks.

    If the fleet model judged a number, a warning becomes a remark, because some nodes of a mixed fleet are
    always below a nominal value. The model has its own findings on numbers that are unlike their past and
    other nodes. The model finds no loss that all nodes share, so the warning stays if most numbers of a
    quantity and SKU are newly beyond the bound. A warning of an accepted reference (from index ``own_from``
    in ``references``) also stays if the earlier nights are beyond it. A failure becomes unproven if only
    tonight's number is beyond the bound, and chance may explain this number. Each remark is on the nodes of
    one quantity whose warnings were removed.
    """
    shared = _shared_losses(fleet, floors, references, model)
    warned: set[tuple[int, int]] = set()
    for findings in floors:
        keep = np.ones(len(findings.row), bool)
        for index in np.flatnonzero((findings.check == _FLOOR) & (findings.row >= 0)):
            row = int(findings.row[index])
            if not model.judged[row]:
                continue
            reference = references[int(findings.reference[index])]
            if findings.verdict[index] == _DEGRADED and not (
                _kind_of(fleet, row) in shared
                or (
                    findings.reference[index] >= own_from
                    and _beyond(fleet, row, reference, reference.warn, model.early)
                )
            ):
                keep[index] = False
                warned.add((int(findings.quantity[index]), int(findings.owner[index])))
            if findings.verdict[index] == _FAIL and _may_be_chance(fleet, row, reference, model):
                findings.verdict[index] = _UNPROVEN
        for name in _Findings.__dataclass_fields__:
            setattr(findings, name, getattr(findings, name)[keep])
    nodes = Counter(quantity for quantity, _ in warned)
    return [
        f"{quantity_name(fleet.quantities[number])}: {amount(count, 'node')} lie beyond a warning bound, "
        "but most nodes of the SKU are not newly beyond it, and the fleet model found no loss"
        for number, count in sorted(nodes.items())
    ]


def _shared_losses(
    fleet: _Fleet, floors: Sequence[_Findings], references: Sequence[Reference], model: _ModelResult
) -> set[tuple[int, int]]:
    """Return each quantity and SKU for which most judged numbers newly have a finding on a floor.

    A finding is new if the earlier nights are not beyond the warning bound, or if there is no such bound. All
    findings on floors count, including failures and values that are too good to be true.
    """
    newly = set()
    for findings in floors:
        for index in np.flatnonzero((findings.check == _FLOOR) & (findings.row >= 0)):
            row, reference = int(findings.row[index]), references[int(findings.reference[index])]
            if model.judged[row] and not _beyond(fleet, row, reference, reference.warn, model.early):
                newly.add(row)
    judged = Counter(_kind_of(fleet, int(row)) for row in fleet.tonight if newly and model.judged[row])
    counts = Counter(_kind_of(fleet, row) for row in newly)
    return {kind for kind, count in counts.items() if 2 * count > judged[kind]}


def _kind_of(fleet: _Fleet, row: int) -> tuple[int, int]:
    """Return the quantity of a row and the SKU of the row's owner, by their indices."""
    return int(fleet.readings.quantity[row]), int(fleet.sku[fleet.owner[row]])


def _may_be_chance(fleet: _Fleet, row: int, reference: Reference, model: _ModelResult) -> bool:
    """Return whether only tonight's number is beyond the hard bound, and noise may explain it."""
    bound = reference.low if fleet.sign[fleet.readings.quantity[row]] > 0 else reference.high
    if not model.explained[row] or not np.isfinite(model.early[row]):
        return False
    return not (
        _beyond(fleet, row, reference, bound, model.early)
        or _beyond(fleet, row, reference, bound, model.late)
    )


def _beyond(fleet: _Fleet, row: int, reference: Reference, bound: float | None, good: Floats) -> bool:
    """Return whether a row's value of other nights is beyond a bound on the bad side.

    ``good`` has such a value for each row. A larger value is better. An unknown value is not beyond a bound.
    """
    if bound is None or not np.isfinite(good[row]):
        return False
    edge = reference.value + abs(reference.value) * bound
    sign = int(fleet.sign[fleet.readings.quantity[row]])
    return bool(good[row] < edge * (1 if sign > 0 else -1))


def _findings_on_rows(fleet: _Fleet, rows: NDArray[np.intp], check: int, verdict: int) -> _Findings:
    """Return findings on rows of the readings."""
    readings = fleet.readings
    findings = _new_findings(fleet.owner[rows], readings.part[rows], readings.quantity[rows], check, verdict)
    findings.row, findings.value = rows.astype(np.int32), readings.value[rows]
    return findings


def _new_findings(
    owner: NDArray[np.integer],
    part: NDArray[np.integer],
    number: NDArray[np.integer],
    check: int,
    verdict: int,
) -> _Findings:
    """Return a table of findings with unknown numbers, from the node, part and quantity index of each row."""
    size = len(owner)
    return _Findings(
        row=np.full(size, -1, np.int32),
        owner=owner.astype(np.int32),
        part=part.astype(np.int32),
        quantity=number.astype(np.int32),
        check=np.full(size, check, np.int32),
        verdict=np.full(size, verdict, np.int32),
        value=np.full(size, np.nan),
        base=np.full(size, np.nan),
        reference=np.full(size, -1, np.int32),
        nights=np.zeros(size, np.int32),
        odds=np.full(size, np.nan),
    )


def _join_findings(findings: Sequence[_Findings]) -> _Findings:
    columns = _Findings.__dataclass_fields__
    return _Findings(
        **{name: np.concatenate([getattr(table, name) for table in findings]) for name in columns}
    )


def _node_verdicts(
    fleet: _Fleet,
    findings: _Findings,
    references: Sequence[Reference],
    policy: AnomalyPolicy,
    notes: tuple[str, ...],
    once: Bools,
) -> Night:
    """Turn findings into verdicts of nodes, links and groups, with texts.

    ``once`` marks the findings on a number that should have been measured again. In these findings, a failure
    becomes unproven.
    """
    judged = np.unique(np.concatenate([fleet.owner[fleet.tonight], np.array(fleet.asked, dtype=np.int32)]))
    faults, wide = _fleetwide(fleet, findings, judged, policy)
    # A finding on the whole fleet proves neither a fault nor health.
    verdict = np.where((wide | once) & (findings.verdict == _FAIL), _UNPROVEN, findings.verdict)
    order = np.lexsort((wide, -verdict, findings.owner))
    owners, starts = np.unique(findings.owner[order], return_index=True)
    spans = {
        int(owner): order[begin:end]
        for owner, begin, end in zip(owners, starts, np.r_[starts, len(order)][1:], strict=True)
    }
    part_verdicts = []
    for index in judged:
        part = fleet.parts[index]
        rows = spans.get(int(index), np.empty(0, np.intp))
        distinct_rows = list(_distinct(findings, rows, wide))
        reasons = tuple(
            _reason(fleet, findings, row, references, _VERDICTS[verdict[row]], bool(wide[row]))
            for row in distinct_rows[:_REASONS_SHOWN]
        )
        worst = _VERDICTS[int(verdict[rows].max())] if len(rows) else Verdict.PASS
        part_verdicts.append(
            NodeVerdict(
                part.kind,
                part.key,
                part.name,
                part.sku,
                worst,
                reasons,
                max(0, len(distinct_rows) - _REASONS_SHOWN),
            )
        )
    if faults:
        notes = (*notes, *map(str, faults))
    return Night(tuple(part_verdicts), tuple(faults), notes)


def _distinct(findings: _Findings, rows: NDArray[np.intp], wide: Bools) -> Iterator[int]:
    """Yield the indices of a node's findings, each finding on the whole fleet only once."""
    kinds_seen = set()
    for row in rows:
        kind = (findings.check[row], findings.quantity[row])
        if wide[row]:
            if kind in kinds_seen:
                continue
            kinds_seen.add(kind)
        yield int(row)


def _fleetwide(
    fleet: _Fleet, findings: _Findings, judged: Integers, policy: AnomalyPolicy
) -> tuple[list[FleetFault], Bools]:
    """Return the faults found on more than the allowed share of a SKU's nodes, or of its links and groups.

    The second value marks the findings that are such faults. A fault needs at least ``policy.share_least``
    nodes, and a missing reference is never one.
    """
    if not len(findings.owner):
        return [], np.zeros(0, bool)
    # Count nodes separately from links and groups, which are few. Their share of all would be too small.
    family = fleet.sku.astype(np.int64) * 2 + fleet.is_node
    nodes_judged = np.bincount(family[judged], minlength=2 * len(fleet.skus))
    width = (len(fleet.quantities) + 1) * len(CHECKS) * 2
    kind = (findings.quantity + 1).astype(np.int64) * len(CHECKS) + findings.check
    # Count warnings separately, so that twenty warnings do not make one failure fleetwide.
    kind = kind * 2 + (findings.verdict == _DEGRADED)
    cell = family[findings.owner] * width + kind
    pairs = np.unique(np.stack([cell, findings.owner.astype(np.int64)]), axis=1)
    cells, counts = np.unique(pairs[0], return_counts=True)
    total = nodes_judged[cells // width]
    many = (counts >= policy.share_least) & (counts > policy.share * total)
    # A missing reference is a gap of the inventory, so it is never reported as a fault of the fleet.
    many &= cells % width // 2 % len(CHECKS) != _REFERENCE
    faults = []
    for cell_index, count, total_count in zip(cells[many], counts[many], total[many], strict=True):
        number, check = divmod(int(cell_index) % width // 2, len(CHECKS))
        metric = fleet.quantities[number - 1].metric if number else ""
        faults.append(
            FleetFault(
                fleet.skus[int(cell_index) // width // 2], CHECKS[check], metric, int(count), int(total_count)
            )
        )
    return faults, np.isin(cell, cells[many])


def _reason(
    fleet: _Fleet,
    findings: _Findings,
    row: int,
    references: Sequence[Reference],
    verdict: Verdict,
    wide: bool,
) -> Reason:
    """Return a row of the findings as a reason. ``wide`` marks a finding on many nodes of the SKU."""
    number, check = int(findings.quantity[row]), int(findings.check[row])
    value, base = float(findings.value[row]), float(findings.base[row])
    part = _name(fleet, int(findings.part[row]))
    if number < 0:
        return Reason("missing", verdict, "", part, "nothing was measured tonight", np.nan, wide)
    measured = fleet.quantities[number]
    # A count of parts and a value with a base of 0 give no relative deviation.
    off = (value - base) / abs(base) if base and check != _MISSING else np.nan
    text = _reason_text(fleet, findings, row, references, off)
    if wide:
        text += "; on so many nodes that it is a fault of the tool or the fabric until proven otherwise"
    return Reason(
        CHECKS[check], verdict, quantity_name(measured), part, text, off, wide, int(findings.row[row])
    )


def _reason_text(
    fleet: _Fleet, findings: _Findings, row: int, references: Sequence[Reference], off: float
) -> str:
    """Return what was compared in a row of the findings. ``off`` is the relative deviation from the base."""
    check = int(findings.check[row])
    value, base = float(findings.value[row]), float(findings.base[row])
    measured = fleet.quantities[int(findings.quantity[row])]
    if check in (_MISSING, _PAST, _PHYSICS):
        return {
            _MISSING: lambda: (
                f"{value:.0f} of {base:.0f} measured tonight{_unmeasured_text(fleet, findings, row)}"
            ),
            _PAST: lambda: (
                f"{quantity(value, measured.unit)} is {percent(off)} off the median of its own earlier "
                f"nights, {quantity(base, measured.unit)}: more than changing conditions explain"
            ),
            _PHYSICS: lambda: _objection(fleet, int(findings.row[row])),
        }[check]()
    odds = float(findings.odds[row])
    if check == _RACK:
        lasted = _duration_and_odds(int(findings.nights[row]), odds)
        return (
            f"its rack as a whole is {percent(off)} off its earlier level, relative to others: "
            f"cooling, power, switches{lasted}"
        )
    if check == _FLEET and not np.isnan(odds):
        return (
            f"{quantity(value, measured.unit)} is {percent(off)} off the median of its group, "
            f"{quantity(base, measured.unit)}, and slower than any healthy part of it"
            f"{_duration_and_odds(int(findings.nights[row]), odds)}"
        )
    if check == _FLEET:
        # Among these findings, only _below_few makes unproven ones. Their base is the upper quartile.
        level = "best quarter" if findings.verdict[row] == _UNPROVEN else "median"
        return (
            f"{quantity(value, measured.unit)} is {percent(off)} off the {level} of the fleet's "
            f"{fleet.parts[findings.owner[row]].sku}, {quantity(base, measured.unit)}"
        )
    if check == _DRIFT:
        return (
            f"went from {quantity(base, measured.unit)} to {quantity(value, measured.unit)} ({percent(off)}) "
            f"within the nights compared{_duration_and_odds(int(findings.nights[row]), odds)}"
        )
    # The columns store no text, so judge the number again to get the text of its reason.
    sample = Measurement(name=measured.metric, value=value, unit=measured.unit, direction=measured.direction)
    index = int(findings.reference[row])
    if index < 0:
        return judge(sample, None).reason
    return f"{judge(sample, references[index]).reason} ({references[index].source})"


def _duration_and_odds(nights: int, odds: float) -> str:
    """Return the end of a sentence: how long a loss lasted, and how rarely a healthy node shows it."""
    lasted = amount(nights, "night")
    # The noise model is not exact enough for odds of more than a million.
    return f"; for {lasted}; a healthy node shows that in at most one night of {min(odds, 1e6):,.0f}"


def quantity_name(measured: Measured) -> str:
    """Return the metric of a quantity with its labels, except labels that name hardware."""
    labels = [f"{name}={value}" for name, value in measured.labels.items() if value != "*"]
    return " ".join([measured.metric, *labels])


def _unmeasured_text(fleet: _Fleet, findings: _Findings, row: int) -> str:
    """Return the end of a sentence, with the GPUs of a node that were not measured although others were.

    The text is "" unless all measured parts are GPUs.
    """
    owner, readings = int(findings.owner[row]), fleet.readings
    rows = fleet.rows_of(owner)
    measured = set(readings.part[rows[readings.quantity[rows] == findings.quantity[row]]].tolist())
    if not measured or not all(fleet.parts[part].kind == "gpu" for part in measured):
        return ""
    absent = [_name(fleet, part) for part in fleet.gpus.get(owner, ()) if part not in measured]
    return f", not on {', '.join(absent[:8])}" if absent else ""


def _name(fleet: _Fleet, index: int) -> str:
    """Return the name of a part for the operator: a node's name, a GPU's key and slot, or else the key."""
    part = fleet.parts[index]
    if part.kind == "gpu":
        return f"{part.key} (slot {part.slot})" if part.slot >= 0 else part.key
    return part.name if part.kind == "node" else part.key
