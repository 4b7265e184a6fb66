"""Judging a night: every number of every node against floors, its own history, and the fleet.

The rules, in one place:

* floors (a SKU's references and accepted history) are :func:`rackproof.core.judging.judge`'s: what it calls
  a fail is one. Of several numbers of a night none is overwritten by a later, better one;
* own history: a drift of about -2 % over 14 nights degrades, though the floor still holds;
* the fleet: nodes of one SKU are compared by robust z (median and MAD), each by its worst GPU;
* not measured, not finite, or without any floor: unproven;
* one kind of finding on more than a share of the fleet is a fault of the tool or the fabric until
  proven otherwise: unproven instead of fail, said once, and no reason to drain anybody.

One night of ten nodes and one of ten thousand take the same way: arrays throughout, and texts only
for what is found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rackproof.core.judging import NO_REFERENCE, SkuReference, judge
from rackproof.core.records import Direction, Measurement, Node, Reference, Verdict
from rackproof.core.text import percent, quantity
from rackproof.store.history.readings import Accepted, Floats, Integers, Part, Readings
from rackproof.store.history.rows import Measured

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation in units of its median absolute deviation."""

MEDIAN_ERROR = 1.2533
"""A median's standard error in units of a mean's, of normal noise."""

SLOPE_ERROR = 1.06
"""A Theil-Sen slope's standard error in units of a least-squares one's, of normal noise."""

CHECKS = ("missing", "number", "reference", "floor", "fleet", "drift")

# From good to bad, as records.worst() orders them.
_VERDICTS = (Verdict.PASS, Verdict.DEGRADED, Verdict.UNPROVEN, Verdict.FAIL)
_DEGRADED, _UNPROVEN, _FAIL = 1, 2, 3
_MISSING, _NUMBER, _REFERENCE, _FLOOR, _FLEET, _DRIFT = range(len(CHECKS))
_SERIES_AT_ONCE = 20_000
_REASONS_SHOWN = 20

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class AnomalyPolicy:
    """How strictly a night is judged. Fractions are of the value compared with, negative is worse.

    ``outlier_z`` alone condemns nobody: with 400,000 numbers a night chance alone goes beyond any fixed
    z, so the limit grows with the number of comparisons (at most ``chance`` false alarms a night are
    expected of normal noise) and the distance must matter, too. ``resolution`` is what a probe repeats
    to: the least spread assumed where the MAD is smaller, as where most values are equal.
    """

    drift: float = -0.015
    """Change over the window that degrades: a true -2 % is measured a little off, and is to be found."""
    drift_nights: int = 14
    drift_least: int = 8
    """Nights with values, tonight included, below which a series says nothing about drift."""
    outlier_z: float = -3.0
    outlier_degrades: float = -0.02
    outlier_fails: float = -0.07
    outlier_least: int = 5
    """Nodes of one SKU below which they are not compared."""
    chance: float = 0.1
    resolution: float = 0.0025
    share: float = 0.15
    share_least: int = 3
    """So few nodes with one finding are never taken for a fault of the tool, whatever the share."""
    require_references: bool = True
    """Whether a number that no floor holds for is unproven; otherwise fleet and history must do."""


@dataclass(frozen=True)
class Reason:
    """Why a node did not pass: what was measured where, against what.

    ``check`` is one of :data:`CHECKS`; ``part`` what it was measured on (a GPU with its slot); ``deviation``
    the fraction off what it was compared with, NaN where there is none; ``fleetwide`` whether it is a
    finding on more than the allowed share of the fleet; ``row`` the reading that it is about, -1 for none.
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
    """What a night says about a node (``kind`` node), or a pair or group of nodes (link, group).

    ``reasons`` are the worst first, at most twenty; ``more`` says how many were left out.
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
    """One kind of finding on more than the allowed share of the nodes of a SKU that were asked."""

    sku: str
    check: str
    metric: str
    found: int
    asked: int

    def __str__(self) -> str:
        what = f"{self.check} of {self.metric}".strip()
        return (
            f"{what} on {self.found} of {self.asked} nodes {self.sku}: a fault of the tool or the fabric "
            "until proven otherwise"
        )


@dataclass(frozen=True)
class Night:
    """The outcome: every node asked for and every pair or group measured, and what befell the fleet."""

    nodes: tuple[NodeVerdict, ...]
    fleet_faults: tuple[FleetFault, ...]
    notes: tuple[str, ...]


@dataclass
class _Findings:
    """Findings in columns of one length: owner, part and quantity are indices; ``reference`` of a list.

    ``row`` is the reading's, -1 where something lacks.
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


def judge_night(
    readings: Readings,
    references: Mapping[str, Sequence[SkuReference]],
    *,
    asked: Sequence[Node] = (),
    accepted: Sequence[Accepted] = (),
    policy: AnomalyPolicy | None = None,
    past: bool = True,
    once: Collection[tuple[str, str]] = (),
) -> Night:
    """Judge the night 0 of some readings.

    Args:
        readings: Tonight's numbers and, for drift, those of the nights before.
        references: SKU to its baselines, from ``inventory/group_vars/sku_*.yml``.
        asked: The nodes that the night was to measure; one without any number is unproven.
        accepted: References accepted for this very hardware.
        policy: How strictly.
        past: Whether the fleet and the nights before are asked; floors and completeness always are.
        once: Benchmark and node's key, where a bad number should have been measured a second time and was
            not: floor and fleet fail no node by it, they leave it unproven.
    """
    policy = policy or AnomalyPolicy()
    fleet = _Fleet(readings, asked)
    found, floors, unreferenced = _floors(fleet, references, accepted, policy)
    found += _missing(fleet, past)
    if past:
        found += _outliers(fleet, policy)
        found += _drifts(fleet, policy)
    whole = _join_findings(found)
    notes = []
    if not policy.require_references and len(unreferenced):
        names = sorted({readings.quantities[one].metric for one in unreferenced})
        notes.append(f"{NO_REFERENCE}, judged by fleet and history only: {', '.join(names)}")
    return _node_verdicts(fleet, whole, floors, policy, tuple(notes), _measured_once(fleet, whole, once))


def _measured_once(fleet: _Fleet, found: _Findings, once: Collection[tuple[str, str]]) -> Bools:
    """Return which findings rest on a number that should have been measured a second time."""
    doubtful = np.isin(found.check, (_FLOOR, _FLEET))
    for row in np.flatnonzero(doubtful) if once else ():
        benchmark = fleet.quantities[found.quantity[row]].benchmark
        doubtful[row] = (benchmark, fleet.parts[found.owner[row]].key) in once
    return doubtful if once else np.zeros(len(found.check), bool)


class _Fleet:
    """Tonight's rows with their owners: a node, or the link or group that a number belongs to."""

    def __init__(self, readings: Readings, asked: Sequence[Node]) -> None:
        self.readings = readings
        self.quantities = readings.quantities
        self.parts: list[Part] = list(readings.parts)
        self.asked = self._add_asked(asked)
        self.owner = np.where(readings.node >= 0, readings.node, readings.part).astype(np.int32)
        self.tonight = np.flatnonzero(readings.night == 0)
        self.skus = sorted({part.sku for part in self.parts})
        number = {sku: index for index, sku in enumerate(self.skus)}
        self.sku = np.array([number[part.sku] for part in self.parts], dtype=np.int32)
        self.is_node = np.array([part.kind == "node" for part in self.parts], dtype=bool)
        # +1 higher is better, -1 lower, 0 unknown: then every deviation is bad.
        signs = {Direction.HIGHER: 1, Direction.LOWER: -1}
        self.sign = np.array(
            [signs[one.direction] if one.direction else 0 for one in self.quantities], dtype=np.int32
        )

    def _add_asked(self, asked: Sequence[Node]) -> list[int]:
        """Add the nodes that tonight's readings lack; return the places of all that were asked."""
        at = {part[:2]: index for index, part in enumerate(self.parts)} if asked else {}
        places = []
        for node in asked:
            key = ("node", node.hardware_key)
            if key not in at:
                at[key] = len(self.parts)
                self.parts.append(Part(*key, name=node.name, sku=node.sku))
            places.append(at[key])
            # The inventory knows better than the history what a node is called and is today.
            self.parts[at[key]] = self.parts[at[key]]._replace(name=node.name, sku=node.sku)
        return places

    @cached_property
    def gpus(self) -> dict[int, list[int]]:
        """GPUs by the node that they sit in."""
        found: dict[int, list[int]] = {}
        for index, part in enumerate(self.parts):
            if part.kind == "gpu" and part.node >= 0:
                found.setdefault(part.node, []).append(index)
        return found

    @cached_property
    def _by_owner(self) -> tuple[NDArray[np.intp], Integers]:
        order = self.tonight[np.argsort(self.owner[self.tonight], kind="stable")]
        return order, self.owner[order]

    def rows_of(self, owner: int) -> NDArray[np.intp]:
        """Return tonight's rows of a node, link or group."""
        order, owners = self._by_owner
        begin, end = np.searchsorted(owners, [owner, owner + 1])
        return order[begin:end]

    def series(self) -> Integers:
        """Return one number per part and quantity for each row: what a series of nights is about."""
        return self.readings.part.astype(np.int64) * len(self.quantities) + self.readings.quantity

    def goodness(self, rows: NDArray[np.intp]) -> Floats:
        """Return values turned so that more is better."""
        sign = self.sign[self.readings.quantity[rows]]
        return self.readings.value[rows] * np.where(sign < 0, -1.0, 1.0)


def _floors(
    fleet: _Fleet,
    references: Mapping[str, Sequence[SkuReference]],
    accepted: Sequence[Accepted],
    policy: AnomalyPolicy,
) -> tuple[list[_Findings], list[Reference], Integers]:
    """Judge tonight's rows as :func:`judge` would each of them, against every reference that fits."""
    rows, readings = fleet.tonight, fleet.readings
    quantities, owner = readings.quantity[rows], fleet.owner[rows]
    value = readings.value[rows]
    # Few kinds of number on few models of node: each such pair asks for its references once.
    pair = fleet.sku[owner].astype(np.int64) * len(fleet.quantities) + quantities
    kinds, kind = np.unique(pair, return_inverse=True)
    fitting = [_fitting(fleet, int(one), references) for one in kinds]
    known: list[Reference] = []
    found: list[_Findings] = []
    referenced = np.zeros(len(rows), bool)
    # A layer has the first reference of each kind, the next the second: one array operation per layer.
    for layer in range(max((len(one) for one in fitting), default=0)):
        index = np.full(len(kinds), -1, np.int32)
        for place, some in enumerate(fitting):
            if layer < len(some):
                index[place] = len(known)
                known.append(some[layer])
        found += _screened(fleet, rows, index[kind], known)
        referenced |= index[kind] >= 0
    if accepted:
        own = _accepted_places(fleet, rows, accepted, len(known))
        known += [entry.reference for entry in accepted]
        found += _screened(fleet, rows, own, known)
        referenced |= own >= 0
    broken = ~np.isfinite(value)
    found.append(_findings_on_rows(fleet, rows[broken & ~referenced], _NUMBER, _UNPROVEN))
    lacking = ~referenced & ~broken
    if policy.require_references:
        found.append(_findings_on_rows(fleet, rows[lacking], _REFERENCE, _UNPROVEN))
    return found, known, np.unique(quantities[lacking])


def _accepted_places(
    fleet: _Fleet, rows: NDArray[np.intp], accepted: Sequence[Accepted], first: int
) -> Integers:
    """Return for each row the place of its hardware's own reference, counted from ``first``; -1: none."""
    places_by_series = {
        entry.part * len(fleet.quantities) + entry.quantity: first + number
        for number, entry in enumerate(accepted)
    }
    keys = np.array(sorted(places_by_series), dtype=np.int64)
    places = np.array([places_by_series[int(key)] for key in keys], dtype=np.int32)
    series = fleet.series()[rows]
    # searchsorted gives a place to every series, also to one that is not there: compared afterwards.
    spot = np.searchsorted(keys, series).clip(0, len(keys) - 1)
    return np.where(keys[spot] == series, places[spot], -1).astype(np.int32)


def _fitting(fleet: _Fleet, pair: int, references: Mapping[str, Sequence[SkuReference]]) -> list[Reference]:
    sku, number = divmod(pair, len(fleet.quantities))
    what = fleet.quantities[number]
    sample = Measurement(name=what.metric, value=0.0, unit=what.unit, labels=what.labels)
    return [
        one.reference
        for one in references.get(fleet.skus[sku], ())
        if one.fits(what.benchmark, what.parameters, sample)
    ]


def _screened(
    fleet: _Fleet, rows: NDArray[np.intp], index: Integers, known: Sequence[Reference]
) -> list[_Findings]:
    """Return the rows that do not pass the reference of their index (-1: none), as :func:`judge` says."""
    some = index >= 0
    rows, index = rows[some], index[some]
    if not len(rows):
        return []
    readings = fleet.readings
    value, sign = readings.value[rows], fleet.sign[readings.quantity[rows]]

    def column(values: Iterable[float | None]) -> Floats:
        return np.array([np.nan if one is None else one for one in values], dtype=np.float64)[index]

    base = column(one.value for one in known)
    lowest = base + np.abs(base) * column(one.low for one in known)
    highest = base + np.abs(base) * column(one.high for one in known)
    edge = base + np.abs(base) * column(one.warn for one in known)
    # A comparison with NaN, a bound that is open, is false.
    below, above = value < lowest, value > highest
    warned = np.where(sign < 0, value > edge, value < edge)
    verdict = np.where(warned, _DEGRADED, 0)
    too_good = (sign > 0) & (lowest != highest)
    verdict = np.where(above, np.where(too_good, _UNPROVEN, _FAIL), verdict)
    verdict = np.where(below, np.where(sign < 0, _UNPROVEN, _FAIL), verdict)
    verdict = np.where(_useless(fleet, rows, index, known) | ~np.isfinite(value), _UNPROVEN, verdict)
    bad = verdict > 0
    made = _findings_on_rows(fleet, rows[bad], _FLOOR, 0)
    made.verdict = verdict[bad].astype(np.int32)
    made.base, made.reference = base[bad], index[bad]
    return [made]


def _useless(
    fleet: _Fleet, rows: NDArray[np.intp], index: Integers, known: Sequence[Reference]
) -> NDArray[np.bool_]:
    """Return for which rows the reference proves nothing: in another unit, or nothing could fail it."""
    numbers = fleet.readings.quantity[rows]
    pairs, pair = np.unique(np.stack([numbers, index]), axis=1, return_inverse=True)
    answers = []
    for number, place in pairs.T:
        what, reference = fleet.quantities[number], known[place]
        # A sound reference never leaves its own value unproven.
        sample = Measurement(
            name=what.metric, value=reference.value, unit=what.unit, direction=what.direction
        )
        answers.append(judge(sample, reference).verdict is Verdict.UNPROVEN)
    return np.array(answers, dtype=bool)[pair.reshape(-1)]


def _missing(fleet: _Fleet, past: bool) -> list[_Findings]:
    """Return what tonight lacks: of nodes altogether, of single quantities, and of single parts."""
    rows, count = fleet.tonight, len(fleet.quantities)
    owner = fleet.owner[rows]
    found = []
    silent = np.setdiff1d(np.array(fleet.asked, dtype=np.int32), owner)
    found.append(_new_findings(silent, silent, np.full(len(silent), -1), _MISSING, _UNPROVEN))
    if not count:
        return found
    nodes = np.setdiff1d(np.unique(owner[fleet.is_node[owner]]), silent)
    place = np.full(len(fleet.parts), -1, np.int64)
    place[nodes] = np.arange(len(nodes))
    # How many parts of each node have each quantity; a part measured twice counts once.
    series, first = np.unique(fleet.series()[rows], return_index=True)
    where = place[owner[first]]
    inside = where >= 0
    cell = where[inside] * count + (series[inside] % count)
    there = np.bincount(cell, minlength=len(nodes) * count).reshape(len(nodes), count)
    need = np.zeros_like(there)
    skus = fleet.sku[nodes]
    for sku in np.unique(skus):
        mine = skus == sku
        some = there[mine]
        # What most nodes of the model were asked, with as many parts as most of those that were.
        usual = (some > 0).sum(axis=0) * 2 > len(some)
        for quantity_ in np.flatnonzero(usual):
            counts = some[:, quantity_]
            need[mine, quantity_] = np.bincount(counts[counts > 0]).argmax()
    if past:
        need = np.maximum(need, _habits(fleet, nodes, place))
    lacks, quantities = np.nonzero(there < need)
    made = _new_findings(nodes[lacks], nodes[lacks], quantities, _MISSING, _UNPROVEN)
    made.value = there[lacks, quantities].astype(np.float64)
    made.base = need[lacks, quantities].astype(np.float64)
    found.append(made)
    return found


def _habits(fleet: _Fleet, nodes: Integers, place: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 1 for what a node measured in at least half of the nights before, by node and quantity."""
    readings, count = fleet.readings, len(fleet.quantities)
    before = readings.night > 0
    nights = len(np.unique(readings.night[before]))
    habits = np.zeros(len(nodes) * count, np.int64)
    where = place[fleet.owner[before]]
    inside = where >= 0
    if nights and inside.any():
        cell = where[inside] * count + readings.quantity[before][inside]
        seen = np.unique(cell * 4096 + readings.night[before][inside]) // 4096
        times = np.bincount(seen, minlength=len(habits))
        habits[2 * times >= max(nights, 2)] = 1
    return habits.reshape(len(nodes), count)


def _outliers(fleet: _Fleet, policy: AnomalyPolicy) -> list[_Findings]:
    """Compare the nodes of a SKU by the worst of each: robust z with median and MAD."""
    readings = fleet.readings
    rows = fleet.tonight[np.isfinite(readings.value[fleet.tonight])]
    # Without a direction nobody knows which node is the worse one.
    rows = rows[fleet.sign[readings.quantity[rows]] != 0]
    if not len(rows):
        return []
    good = fleet.goodness(rows)
    owner, number = fleet.owner[rows], readings.quantity[rows]
    order = np.lexsort((good, owner, number, fleet.sku[owner]))
    rows, owner, number, good = rows[order], owner[order], number[order], good[order]
    group = fleet.sku[owner].astype(np.int64) * len(fleet.quantities) + number
    lowest = np.flatnonzero(np.r_[True, (np.diff(group) != 0) | (np.diff(owner) != 0)])
    rows, group, good = rows[lowest], group[lowest], good[lowest]
    limit = min(policy.outlier_z, NormalDist().inv_cdf(min(policy.chance / len(rows), 0.5)))
    starts = np.flatnonzero(np.r_[True, np.diff(group) != 0])
    found = []
    for begin, end in zip(starts, [*starts[1:], len(group)], strict=True):
        some = good[begin:end]
        middle = float(np.median(some))
        # Relative to 0 nothing can be said; a count of faults has its floor.
        if end - begin < policy.outlier_least or middle == 0:
            continue
        spread = max(MAD_TO_SIGMA * float(np.median(np.abs(some - middle))), policy.resolution * abs(middle))
        off = (some - middle) / abs(middle)
        out = ((some - middle) / spread < limit) & (off <= policy.outlier_degrades)
        made = _findings_on_rows(fleet, rows[begin:end][out], _FLEET, 0)
        made.verdict = np.where(off[out] <= policy.outlier_fails, _FAIL, _DEGRADED).astype(np.int32)
        made.base = np.full(int(out.sum()), middle * fleet.sign[readings.quantity[rows[begin]]])
        found.append(made)
    return found


def _drifts(fleet: _Fleet, policy: AnomalyPolicy) -> list[_Findings]:
    """Find series that sink: by a slope that lasts (Theil-Sen, Mann-Kendall), or a step that stays."""
    readings = fleet.readings
    rows = np.flatnonzero(
        np.isfinite(readings.value)
        & (readings.night <= policy.drift_nights)
        & (fleet.sign[readings.quantity] != 0)
    )
    if not len(rows):
        return []
    good, night = fleet.goodness(rows), readings.night[rows]
    keys, series = np.unique(fleet.series()[rows], return_inverse=True)
    nights = policy.drift_nights + 1
    # The worst of a night stands for it, as everywhere. Time runs to the right.
    worst = np.full(len(keys) * nights, np.inf)
    np.minimum.at(worst, series * nights + (policy.drift_nights - night), good)
    table: Floats = np.where(np.isinf(worst), np.nan, worst).reshape(len(keys), nights)
    first = np.zeros(len(keys), np.intp)
    latest = np.flatnonzero(night == 0)
    first[series[latest]] = rows[latest]
    told = np.flatnonzero(np.isfinite(table[:, -1]) & (np.isfinite(table).sum(axis=1) >= policy.drift_least))
    change, base = find_drift(table[told], keys[told] % len(fleet.quantities), policy)
    bad = change <= policy.drift
    made = _findings_on_rows(fleet, first[told[bad]], _DRIFT, _DEGRADED)
    made.base = np.abs(base[bad])
    # What the evidence says is the change over the window, not tonight's single number.
    made.value = made.base * (1 + change[bad] * np.where(base[bad] < 0, -1, 1))
    return [made]


def find_drift(
    table: Floats, kinds: NDArray[np.integer], policy: AnomalyPolicy | None = None
) -> tuple[Floats, Floats]:
    """Return how far series have moved, where that is more than noise explains, and from what.

    Either by a slope (Theil-Sen) or by a step: the median of the last three values against the median of
    those before, so that one bad night is none. The noise of a series is its own or what is usual for its
    kind, whichever is larger (fifteen values alone tell it badly), and how many standard errors a change
    must be beyond grows with the number of series, as for outliers.

    Args:
        table: Series by nights, equally spaced, newest last, more is better; NaN where nothing was measured.
        kinds: Of each series what it measures; series of a kind share their usual noise.
        policy: ``chance`` and ``drift_least`` are used.

    Returns:
        The change over the whole window as a fraction (negative is worse, 0 where nothing is shown) and
        the value that it began with.
    """
    policy = policy or AnomalyPolicy()
    nights, time = table.shape[1], np.arange(table.shape[1])
    one, two = np.triu_indices(nights, 1)
    slope = np.concatenate(
        [np.empty(0)]
        + [
            _median((some[:, two] - some[:, one]) / (two - one))
            for some in np.array_split(table, len(table) // _SERIES_AT_ONCE + 1)
        ]
    )
    values = np.isfinite(table).sum(axis=1)
    begin = _median(table - slope[:, None] * time)
    rest = np.abs(table - begin[:, None] - slope[:, None] * time)
    # Values of a series moved to the right: its last three are its last three columns.
    packed = np.take_along_axis(table, np.argsort(np.isfinite(table), axis=1, kind="stable"), axis=1)
    early = _median(packed[:, :-3])
    fall = _median(packed[:, -3:]) - early
    with np.errstate(divide="ignore", invalid="ignore"):
        by_slope = slope * (nights - 1) / np.abs(begin)
        # What is left beside a line fitted to few values is smaller than the noise was.
        slope_error = _noise(rest / np.abs(begin[:, None]), kinds) * values / np.maximum(values - 2, 1)
        slope_error *= SLOPE_ERROR * np.sqrt(12.0 / values**3) * (nights - 1)
        by_step = fall / np.abs(early)
        step_error = _noise(np.abs(packed[:, :-3] - early[:, None]) / np.abs(early[:, None]), kinds)
        step_error *= 1.1 * MEDIAN_ERROR * np.sqrt(1 / 3 + 1 / np.maximum(values - 3, 1))
    limit = NormalDist().inv_cdf(policy.chance / max(len(table), 1) / 2) if len(table) else 0.0
    by_slope = np.where(by_slope < limit * slope_error, by_slope, 0.0)
    by_step = np.where(by_step < limit * step_error, by_step, 0.0)
    stepped = by_step < by_slope
    change = np.where(stepped, by_step, by_slope)
    known = (values >= policy.drift_least) & np.isfinite(change)
    return np.where(known, change, 0.0), np.where(stepped, early, begin)


def _noise(distances: Floats, kinds: NDArray[np.integer]) -> Floats:
    """Return the standard deviation behind some series' distances: their own, at least the usual one."""
    own = MAD_TO_SIGMA * _median(distances)
    usual = np.zeros_like(own)
    for kind in np.unique(kinds):
        mine = (kinds == kind) & np.isfinite(own)
        usual[kinds == kind] = np.median(own[mine]) if mine.any() else 0.0
    return np.maximum(own, usual)


def _median(table: NDArray[np.float64]) -> Floats:
    """Return the median of each row without its NaNs (``nanmedian`` takes a Python call per row)."""
    ordered = np.sort(table, axis=1)
    count = np.isfinite(ordered).sum(axis=1)
    rows = np.arange(len(ordered))
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, ordered.shape[1] - 1)
    median: Floats = (ordered[rows, low] + ordered[rows, high]) / 2
    return median


def _findings_on_rows(fleet: _Fleet, rows: NDArray[np.intp], check: int, verdict: int) -> _Findings:
    """Return findings on rows of the readings."""
    readings = fleet.readings
    made = _new_findings(fleet.owner[rows], readings.part[rows], readings.quantity[rows], check, verdict)
    made.row, made.value = rows.astype(np.int32), readings.value[rows]
    return made


def _new_findings(
    owner: NDArray[np.integer],
    part: NDArray[np.integer],
    number: NDArray[np.integer],
    check: int,
    verdict: int,
) -> _Findings:
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
    )


def _join_findings(found: Sequence[_Findings]) -> _Findings:
    columns = _Findings.__dataclass_fields__
    return _Findings(**{name: np.concatenate([getattr(one, name) for one in found]) for name in columns})


def _node_verdicts(
    fleet: _Fleet,
    found: _Findings,
    known: Sequence[Reference],
    policy: AnomalyPolicy,
    notes: tuple[str, ...],
    once: Bools,
) -> Night:
    """Turn findings into verdicts of nodes, pairs and groups, with words for what is found."""
    judged = np.unique(np.concatenate([fleet.owner[fleet.tonight], np.array(fleet.asked, dtype=np.int32)]))
    faults, wide = _fleetwide(fleet, found, judged, policy)
    # Of the whole fleet nothing is believed, neither that it is bad nor that it is good.
    verdict = np.where((wide | once) & (found.verdict == _FAIL), _UNPROVEN, found.verdict)
    order = np.lexsort((wide, -verdict, found.owner))
    owners, starts = np.unique(found.owner[order], return_index=True)
    spans = {
        int(owner): order[begin:end]
        for owner, begin, end in zip(owners, starts, np.r_[starts, len(order)][1:], strict=True)
    }
    nodes = []
    for index in judged:
        part = fleet.parts[index]
        mine = spans.get(int(index), np.empty(0, np.intp))
        shown = list(_distinct(found, mine, wide))
        reasons = tuple(
            _reason(fleet, found, row, known, _VERDICTS[verdict[row]], bool(wide[row]))
            for row in shown[:_REASONS_SHOWN]
        )
        worst = _VERDICTS[int(verdict[mine].max())] if len(mine) else Verdict.PASS
        nodes.append(
            NodeVerdict(
                part.kind, part.key, part.name, part.sku, worst, reasons, max(0, len(shown) - _REASONS_SHOWN)
            )
        )
    if faults:
        notes = (*notes, *map(str, faults))
    return Night(tuple(nodes), tuple(faults), notes)


def _distinct(found: _Findings, rows: NDArray[np.intp], wide: Bools) -> Iterator[int]:
    """Yield findings; what the whole fleet shows is said once per kind and not for each GPU."""
    said = set()
    for row in rows:
        kind = (found.check[row], found.quantity[row])
        if wide[row]:
            if kind in said:
                continue
            said.add(kind)
        yield int(row)


def _fleetwide(
    fleet: _Fleet, found: _Findings, judged: Integers, policy: AnomalyPolicy
) -> tuple[list[FleetFault], Bools]:
    """Return the findings on more than the allowed share of a SKU's nodes, and which rows they are."""
    if not len(found.owner):
        return [], np.zeros(0, bool)
    # Pairs count among pairs, nodes among nodes: few pairs would vanish among many nodes.
    family = fleet.sku.astype(np.int64) * 2 + fleet.is_node
    asked = np.bincount(family[judged], minlength=2 * len(fleet.skus))
    width = (len(fleet.quantities) + 1) * len(CHECKS)
    kind = (found.quantity + 1).astype(np.int64) * len(CHECKS) + found.check
    cell = family[found.owner] * width + kind
    pairs = np.unique(np.stack([cell, found.owner.astype(np.int64)]), axis=1)
    cells, counts = np.unique(pairs[0], return_counts=True)
    total = asked[cells // width]
    many = (counts >= policy.share_least) & (counts > policy.share * total)
    # That a reference lacks is nobody's fault tonight.
    many &= cells % width % len(CHECKS) != _REFERENCE
    faults = []
    for one, count, of in zip(cells[many], counts[many], total[many], strict=True):
        number, check = divmod(int(one) % width, len(CHECKS))
        metric = fleet.quantities[number - 1].metric if number else ""
        faults.append(
            FleetFault(fleet.skus[int(one) // width // 2], CHECKS[check], metric, int(count), int(of))
        )
    return faults, np.isin(cell, cells[many])


def _reason(
    fleet: _Fleet, found: _Findings, row: int, known: Sequence[Reference], verdict: Verdict, wide: bool
) -> Reason:
    number, check = int(found.quantity[row]), int(found.check[row])
    value, base = float(found.value[row]), float(found.base[row])
    part = _name(fleet, int(found.part[row]))
    if number < 0:
        return Reason("missing", verdict, "", part, "nothing was measured tonight", np.nan, wide)
    what = fleet.quantities[number]
    # A count of parts has no distance, and neither has a value from a base of 0.
    off = (value - base) / abs(base) if base and check != _MISSING else np.nan
    text = _reason_text(fleet, found, row, known, off)
    if wide:
        text += "; on so many nodes that it is a fault of the tool or the fabric until proven otherwise"
    return Reason(CHECKS[check], verdict, quantity_name(what), part, text, off, wide, int(found.row[row]))


def _reason_text(fleet: _Fleet, found: _Findings, row: int, known: Sequence[Reference], off: float) -> str:
    check = int(found.check[row])
    value, base = float(found.value[row]), float(found.base[row])
    what = fleet.quantities[int(found.quantity[row])]
    if check == _MISSING:
        return f"{value:.0f} of {base:.0f} measured tonight{_unmeasured(fleet, found, row)}"
    if check == _FLEET:
        return (
            f"{quantity(value, what.unit)} is {percent(off)} off the median of the fleet's "
            f"{fleet.parts[found.owner[row]].sku}, {quantity(base, what.unit)}"
        )
    if check == _DRIFT:
        return (
            f"went from {quantity(base, what.unit)} to {quantity(value, what.unit)} ({percent(off)}) "
            "within the nights compared"
        )
    # Judged once more, one by one: the columns have the verdict, and only the judge its words.
    sample = Measurement(name=what.metric, value=value, unit=what.unit, direction=what.direction)
    place = int(found.reference[row])
    if place < 0:
        return judge(sample, None).reason
    return f"{judge(sample, known[place]).reason} ({known[place].source})"


def quantity_name(what: Measured) -> str:
    """Return how reasons call a quantity: its metric, and the labels that name no hardware."""
    labels = [f"{name}={value}" for name, value in what.labels.items() if value != "*"]
    return " ".join([what.metric, *labels])


def _unmeasured(fleet: _Fleet, found: _Findings, row: int) -> str:
    """Return which GPUs of a node lack a quantity that its others have, as far as that is known."""
    owner, readings = int(found.owner[row]), fleet.readings
    rows = fleet.rows_of(owner)
    there = set(readings.part[rows[readings.quantity[rows] == found.quantity[row]]].tolist())
    if not there or not all(fleet.parts[one].kind == "gpu" for one in there):
        return ""
    absent = [_name(fleet, one) for one in fleet.gpus.get(owner, ()) if one not in there]
    return f", not on {', '.join(absent[:8])}" if absent else ""


def _name(fleet: _Fleet, index: int) -> str:
    part = fleet.parts[index]
    if part.kind == "gpu":
        return f"{part.key} (slot {part.slot})" if part.slot >= 0 else part.key
    return part.name if part.kind == "node" else part.key
