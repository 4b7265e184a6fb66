"""Find parts of a fleet that became slow, or that are slower than all others.

:mod:`rackproof.analysis.anomaly` calls :func:`find_slow_series` when job validate judges a night. The
input is the numbers of one SKU. A series is the numbers of one quantity of one part, such as a GPU, over the
nights. The rate of false alarms stays within a budget (:class:`FleetPolicy`).

The model of a number is a sum of three parts: the common conditions of its group that night (SKU, firmware
and rack), the level of its own GPU, and noise with heavy tails. Two tests examine the difference between the
number and the median of its group:

* change: Did the GPU become slower? The change may be a step, a slope, or bad nights that come and go.
  The GPU's own level is unknown, so the test averages over all levels. A GPU that was always 2.5 %
  slower than others is therefore no finding.
* level: Is the GPU slower than every healthy GPU of its kind? The limit is the level of the slowest few
  per cent, with a margin. A number of GPUs with slower silicon is therefore no finding either.

Each test gives an e-value, which is a likelihood ratio averaged over the possible forms of a fault. For
healthy hardware, its mean is at most 1. By Markov's inequality, it exceeds 1/a with a probability of at most
a, and this gives the budget of false alarms. An average of e-values is an e-value, too. Each node therefore
gets one e-value, for any number of GPUs, metrics and kinds of fault. The scale and the tails of the noise are
measured on the fleet itself.

Sources: V. Vovk, R. Wang, E-values: calibration, combination and applications, Annals of Statistics 49
    (2021). K. Lange et al., Robust statistical modeling using the t distribution, JASA 84 (1989).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lgamma, log, pi

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Integers = NDArray[np.int32]
Bools = NDArray[np.bool_]

_STEP = 0.0025
"""Distance between levels of the grid, as a fraction: the repeatability of a probe."""
_LOSSES = (8, 12, 18, 26, 36, 50, 70)
"""Losses that are tested, in steps of the grid: 2, 3, 4.5, 6.5, 9, 12.5 and 17.5 %."""
_COLLAPSE = 0.125
"""A loss of this share or more may have any size. Half the speed resembles none of the losses above."""
_ANY_LOSS = 0
"""Marker for a loss of any size among losses in steps of the grid."""
_NEVER = -100.0
"""Log density of a number that cannot be a collapse, because it did not drop far enough."""
_BELOW, _ABOVE = 16, 72
"""Range of levels around the middle of a series, in steps of the grid: -4 % to +18 %."""
_LEVEL_LOSSES = (0.01, 0.02, 0.04, 0.08)
"""Distances below the lowest healthy level that the level test tries, as fractions."""
_SERIES_AT_ONCE = 2_000
"""Largest number of series whose likelihoods are in memory at once."""
_FARTHEST = 1e6
"""Limit of a number relative to the median of all, so that nothing overflows."""
_STRONG = float(np.log(20.0))
"""Least logarithm of the evidence of a series that is listed beside the strongest one of its node."""

# The degrees of freedom of Student's t, with the two-sided 50 % and 95 % quantiles. Heavy tails come first.
_TAILS = (
    (2, 0.816, 4.303),
    (3, 0.765, 3.182),
    (4, 0.741, 2.776),
    (5, 0.727, 2.571),
    (8, 0.706, 2.306),
    (20, 0.687, 2.086),
)
_FEW_FREEDOM = 3
"""Degrees of freedom to assume if too few numbers repeat to measure the tails."""
_FEW, _MANY = 200, 500
"""Numbers of values below which the noise is assumed to have at most 3 and 5 degrees of freedom."""


@dataclass(frozen=True)
class FleetPolicy:
    """The budget of false alarms of a fleet's nights, and the limits of the two tests.

    Losses are fractions of a part's expected value. Of 1,000 healthy node-nights, at most ``false_alarms``
    may fail.
    """

    false_alarms: float = 0.1
    suspicions: float = 30.0
    """Number of suspicions that are allowed for each false alarm. Suspected nodes are measured again."""
    watched: float = 300.0
    """Number of warnings that are allowed for each false alarm. Such nodes are watched."""
    loss_fails: float = 0.025
    """Proven loss from which a node must be drained. A smaller loss is watched."""
    margin: float = 0.01
    """Smallest margin by which a healthy GPU may be below the slowest ones."""
    slowest: float = 0.03
    """Share of all series that counts as the slowest."""
    tail: float = 3.5
    """Distance by which healthy levels may be below the slowest ones. Its unit is the distance between the
    level that the slowest share reaches, and the level that a share four times as large reaches."""
    nights_least: int = 2
    """Smallest number of earlier nights with values that a series needs to be judged here."""
    nodes_least: int = 4
    """Smallest number of nodes of a group with a median of its own."""
    resolution: float = 0.0025
    """Repeatability of a probe, the smallest noise that is assumed."""
    slowest_moves: float = 0.01
    """Smallest change of a number to examine. A smaller change would not matter, even if it were proven."""


@dataclass(frozen=True)
class SeriesTable:
    """The numbers of one SKU by series and night, the newest night last.

    More is better, and NaN is a missing number.

    Attributes:
        value: The numbers, with a row per series and a column per night.
        quantity, part, node: The index of each series' quantity, part and node.
        groups: The groupings by firmware and then by rack, or none. Each has the number of the group of each
            series in each night.
        twice: Whether tonight's number is the better of two measurements.
    """

    value: Floats
    quantity: Integers
    part: Integers
    node: Integers
    groups: tuple[Integers, ...]
    twice: Bools


@dataclass(frozen=True)
class SlowSeries:
    """A series that is slow tonight, with the evidence for its loss.

    Attributes:
        series: The row of the series in the table.
        test: The test that found the loss, change or level.
        loss: The loss as a fraction of ``base``'s absolute value.
        base: The value expected of the part.
        nights: For how many measured nights the part was slow, including tonight. For the test ``level``,
            these are all measured nights.
        evidence: The e-value of its node.
        proven: Whether the evidence is strong enough for the budget of false alarms.
        suspected: Whether the evidence is strong enough for the budget of suspicions. If not, the series is
            only watched.
        alone: Whether no group was large enough for a comparison. Then perhaps the conditions changed, not
            the hardware.
    """

    series: int
    test: str
    loss: float
    base: float
    nights: int
    evidence: float
    proven: bool
    suspected: bool
    alone: bool


@dataclass(frozen=True)
class FleetFindings:
    """The slow series of a SKU in a night, and which series could be judged.

    Attributes:
        slow: The slow series, node by node.
        judged: Whether each series could be judged.
        explained: Whether chance alone may explain tonight's number, because healthy hardware gives such a
            low number more often than the budget of false alarms allows.
    """

    slow: tuple[SlowSeries, ...]
    judged: Bools
    explained: Bools


@dataclass(frozen=True)
class _Noise:
    """The noise of series, as Student's t distribution.

    Attributes:
        scale: The scale of each series, as a fraction.
        freedom: The degrees of freedom.
    """

    scale: Floats
    freedom: int

    def log_density(self, distance: Floats, scale: Floats) -> Floats:
        """Return the logarithm of the density, up to a constant that is the same for all distances."""
        square = distance / scale
        square *= square
        square /= self.freedom
        density: Floats = np.log1p(square)
        density *= -(self.freedom + 1) / 2
        return density

    def log_collapse(self, fallen: Floats, scale: Floats) -> Floats:
        """Return the log density of numbers that dropped by :data:`_COLLAPSE` or more.

        The Pareto density allows drops of every size. Its units are the same as in :meth:`log_density`.
        """
        size = np.log(_COLLAPSE) - 2 * np.log(np.maximum(fallen, _COLLAPSE))
        density: Floats = np.where(fallen >= _COLLAPSE, size + np.log(scale) - self.log_height, _NEVER)
        return density

    @property
    def log_height(self) -> float:
        """Return the logarithm of t's density at its centre, by its degrees of freedom."""
        half = self.freedom / 2
        return lgamma(half + 0.5) - lgamma(half) - log(self.freedom * pi) / 2

    def log_tail(self, scales: Floats) -> Floats:
        """Return an upper bound of the probability of a number that is so many scales away on one side.

        The result is a logarithm. The bound is the integral of t's density times x / scales. At
        relevant distances, it is nearly the probability itself.
        """
        freedom, away = self.freedom, np.maximum(np.nan_to_num(scales), 1.0)
        bound = self.log_height - np.log(away) + log(freedom / (freedom - 1))
        bound -= (freedom - 1) / 2 * np.log1p(away**2 / freedom)
        chance: Floats = np.where(scales > 1.0, bound, 0.0)
        return chance


def find_slow_series(table: SeriesTable, policy: FleetPolicy | None = None) -> FleetFindings:
    """Return the series that are slow tonight, node by node, within the budget of false alarms.

    Series with weaker evidence are listed, too, as suspected or only watched (:class:`FleetPolicy`).

    Args:
        table: The numbers of one SKU.
        policy: The limits of the judgement.
    """
    policy = policy or FleetPolicy()
    kinds = []
    for quantity in np.unique(table.quantity):
        kind = _compare_kind(table, np.flatnonzero(table.quantity == quantity), policy)
        if kind is not None:
            kinds.append(kind)
    # Examine each metric alone first. Combine metrics later, in the evidence for a GPU and for a node.
    judged = np.zeros(len(table.value), bool)
    drops = np.full((len(table.value), 2), np.nan)
    for kind in kinds:
        judged[kind.rows] = kind.judged
        drops[kind.rows] = kind.drops
    families = [_Family.of(table, kinds, key) for key in (table.part, table.node)]
    together = np.zeros(len(table.value), bool)
    for family in families:
        together |= family.suspicious(drops, judged)
    evidence = _Evidence.of(table, kinds, judged, together)
    explained = judged.copy()
    tests = _tests(table)
    for kind in kinds:
        least = np.log(_allowed(policy) / tests[kind.rows])
        # If both of two measurements are low by chance, their probabilities are multiplied.
        explained[kind.rows] &= np.where(table.twice[kind.rows], 2, 1) * kind.log_chance() >= least
    slow = tuple(_slow_by_node(table, evidence, families, policy)) if table.value.shape[1] > 1 else ()
    return FleetFindings(slow, judged, explained)


def rack_table(table: SeriesTable, policy: FleetPolicy) -> SeriesTable:
    """Return a table with one series per rack and quantity, as if each rack were a node.

    The number of a rack is the median of its series, as a fraction of the night's overall median (which
    counts without its sign). Racks with too few nodes are left out.

    Args:
        table: The series of a SKU, with at least one grouping. The last grouping is by rack.
        policy: The minimum size of a group.
    """
    group = table.groups[-1][:, -1]
    values, quantities, racks = [], [], []
    for quantity in np.unique(table.quantity):
        rows = np.flatnonzero(table.quantity == quantity)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Numbers of which less is better are negative here, and must remain negative.
            share = table.value[rows] / np.abs(row_medians(table.value[rows].T))
        for rack in np.unique(group[rows]):
            in_rack = group[rows] == rack
            if len(np.unique(table.node[rows[in_rack]])) < policy.nodes_least:
                continue
            values.append(row_medians(share[in_rack].T))
            quantities.append(quantity)
            racks.append(rack)
    count = len(values)
    return SeriesTable(
        value=np.array(values).reshape(count, table.value.shape[1]),
        quantity=np.array(quantities, np.int32),
        part=np.array(racks, np.int32),
        node=np.array(racks, np.int32),
        groups=(),
        twice=np.zeros(count, bool),
    )


def _allowed(policy: FleetPolicy) -> float:
    """Return the probability with which a healthy node may fail in one night."""
    return max(policy.false_alarms, 1e-9) / 1000


def _tests(table: SeriesTable) -> Integers:
    """Return, for each series, how many series of its node were measured tonight, or 1 for none."""
    tonight = np.isfinite(table.value[:, -1])
    series = np.bincount(table.node[tonight], minlength=int(table.node.max(initial=0)) + 1)
    return np.maximum(series, 1)[table.node].astype(np.int32)


@dataclass(frozen=True)
class _Kind:
    """The series of one quantity, compared with their groups.

    Attributes:
        rows: The rows of the series in the table.
        judged: Whether each series covers enough nights.
        low: Whether each judged series seems lower than before or than the bound, and needs the likelihoods.
        own: The numbers without the medians of their groups, as fractions of ``middle``.
        weather: The medians that were subtracted from tonight's numbers, as fractions of ``middle``.
        middle: The absolute value of the median of all numbers, in the quantity's unit.
        noise: The noise from night to night.
        bound: The lowest healthy level, as a fraction of ``middle``.
        drops: Two differences, in scales of noise: of tonight to the earlier nights, and of the last three
            nights to the first half of the nights, times the square root of 2. A negative difference is a
            loss.
        alone: Whether no group was large enough.
    """

    rows: Indices
    judged: Bools
    low: Bools
    own: Floats
    weather: Floats
    middle: float
    noise: _Noise
    bound: Floats
    drops: Floats
    alone: bool

    def log_chance(self) -> Floats:
        """Return the log of an upper bound for the probability that healthy hardware is as low as tonight."""
        nights_before = np.maximum(np.isfinite(self.own[:, :-1]).sum(axis=1), 1)
        # With fewer earlier nights, the level before the drop is less certain.
        return self.noise.log_tail(-self.drops[:, 0] / np.sqrt(1 + 1 / nights_before))


def _compare_kind(table: SeriesTable, rows: Indices, policy: FleetPolicy) -> _Kind | None:
    """Return the series of one quantity compared with their groups.

    The result is None if no number is known, or if their median is 0.
    """
    value = table.value[rows]
    is_known = np.isfinite(value)
    middle = abs(float(np.median(value[is_known]))) if is_known.any() else 0.0
    # A loss relative to 0 is undefined. Counts of faults are compared with their own floor.
    if middle == 0:
        return None
    with np.errstate(over="ignore"):
        # Limit the values, so that nothing overflows. No real measurement exceeds these limits.
        value = np.clip(value / middle, -_FARTHEST, _FARTHEST)
    residuals, alone = _residuals(value, table.node[rows], [group[rows] for group in table.groups], policy)
    is_known = np.isfinite(residuals)
    noise = _measure_noise(residuals, policy)
    bound = _slowest_of_others(residuals, table.node[rows], policy)
    judged = is_known[:, -1] & (is_known[:, :-1].sum(axis=1) >= policy.nights_least)
    # These cheap differences show which numbers seem low. Only such numbers need the likelihoods.
    tonight = residuals[:, -1] - row_medians(residuals[:, :-1])
    late = row_medians(residuals[:, -3:]) - row_medians(residuals[:, : max(residuals.shape[1] // 2, 1)])
    moves = np.maximum(policy.slowest_moves, noise.scale)
    with np.errstate(invalid="ignore"):
        low = (tonight < -np.maximum(moves, 2 * noise.scale)) | (late < -moves)
        low |= (row_medians(residuals) < bound) | (residuals[:, -1] < bound)
    return _Kind(
        rows=rows,
        judged=judged,
        low=low & judged,
        own=residuals,
        weather=(value - residuals)[:, -1],
        middle=middle,
        noise=noise,
        bound=bound,
        drops=np.stack([tonight, late * np.sqrt(2.0)], axis=1) / noise.scale[:, None],
        alone=alone,
    )


@dataclass(frozen=True)
class _Family:
    """The series grouped by GPU or by node, because one fault may slow a group down together.

    Attributes:
        key: The GPU or node of each series.
        alike: The usual correlation between two series of a GPU or node, from 0 to 1. The evidence of
            correlated series is not counted twice.
    """

    key: Integers
    alike: float

    @classmethod
    def of(cls, table: SeriesTable, kinds: Sequence[_Kind], key: Integers) -> _Family:
        """Return the family with its correlation.

        The correlation is computed from signs, because a fault of a few series hardly changes them. It is
        estimated too high rather than too low, so that the evidence is not too strong. If no two series of a
        GPU or node can be compared, it is 1.
        """
        nights = table.value.shape[1]
        sums = np.zeros((int(key.max(initial=0)) + 1) * nights)
        counts = np.zeros_like(sums)
        for kind in kinds:
            sign = np.sign(kind.own - row_medians(kind.own)[:, None])
            has_sign = np.isfinite(sign) & (sign != 0)
            cell = (key[kind.rows, None] * nights + np.arange(nights))[has_sign]
            sums += np.bincount(cell, weights=sign[has_sign], minlength=len(sums))
            counts += np.bincount(cell, minlength=len(sums))
        pairs = (counts * (counts - 1)).sum()
        if not pairs:
            return cls(key, 1.0)
        mean = float((sums**2 - counts).sum() / pairs)
        return cls(key, float(np.clip(np.sin(np.pi / 2 * (mean + 2 / np.sqrt(pairs))), 0.0, 1.0)))

    def weight(self, members: NDArray[np.integer]) -> Floats:
        """Return the factor for the summed evidence of so many members of a GPU or node."""
        weight: Floats = 1 / (1 + (np.maximum(members, 1) - 1) * self.alike)
        return weight

    def suspicious(self, drops: Floats, judged: Bools) -> Bools:
        """Return which series are of a GPU or node that dropped as a whole by more than chance explains.

        ``drops`` has a row per series (:class:`_Kind`). A GPU or node with a single series is left out.
        """
        size = int(self.key.max(initial=0)) + 1
        members = np.bincount(self.key[judged], minlength=size)
        suspicious = np.zeros(size, bool)
        for drop in drops.T:
            is_known = judged & np.isfinite(drop)
            total = np.bincount(self.key[is_known], weights=np.clip(drop[is_known], -4, 4), minlength=size)
            # The standard deviation of t noise with few degrees of freedom, truncated at 4, is about 1.4
            # scales.
            suspicious |= total < -2.5 * 1.4 * np.sqrt(members / self.weight(members))
        return suspicious[self.key] & judged & (members[self.key] > 1)


@dataclass(frozen=True)
class _Evidence:
    """The evidence for the series that are suspicious alone or together, as logarithms.

    Attributes:
        kinds: The kinds of series, one per quantity.
        rows: The rows of the series in the table.
        kind, place: The index of each series' kind in ``kinds``, and of the series in its kind.
        change: The evidence for each hypothesis of a change, with a row per series.
        level: The evidence for a low level.
        shares: The logarithms of the hypotheses' weights.
    """

    kinds: Sequence[_Kind]
    rows: Indices
    kind: Indices
    place: Indices
    change: Floats
    level: Floats
    shares: Floats

    @classmethod
    def of(cls, table: SeriesTable, kinds: Sequence[_Kind], judged: Bools, together: Bools) -> _Evidence:
        """Return the evidence for all series that need a closer examination."""
        nights = table.value.shape[1]
        hypotheses = _hypotheses(nights)
        rows, places, changes, levels = [], [], [], []
        for kind in kinds:
            kind_rows = np.flatnonzero(kind.low | (together & judged)[kind.rows])
            rows.append(kind.rows[kind_rows])
            places.append(kind_rows)
            twice = table.twice[kind.rows]
            for chunk in np.array_split(kind_rows, len(kind_rows) // _SERIES_AT_ONCE + 1):
                noise = _Noise(kind.noise.scale[chunk], kind.noise.freedom)
                changes.append(_change_evidence(kind.own[chunk], twice[chunk], noise))
                level = _level_evidence(kind.own[chunk], twice[chunk], kind.bound[chunk], noise)
                levels.append(np.full(len(chunk), -np.inf) if kind.alone else level)
        change = np.concatenate([np.empty((0, len(hypotheses))), *changes])
        return cls(
            kinds=kinds,
            rows=np.concatenate([np.empty(0, np.intp), *rows]),
            kind=np.repeat(np.arange(len(kinds)), [len(row) for row in rows]),
            place=np.concatenate([np.empty(0, np.intp), *places]),
            change=change,
            level=np.concatenate([np.empty(0), *levels]),
            shares=np.log(_weights(nights)),
        )

    def of_changes(self, rows: NDArray[np.intp]) -> Floats:
        """Return the evidence of a change in each of some series, from its own numbers alone."""
        evidence: Floats = _log_sum(self.change[rows] + self.shares)
        return evidence

    def of_series(self, rows: NDArray[np.intp]) -> Floats:
        """Return the evidence that each of some series is slow, from its own numbers alone."""
        evidence: Floats = np.logaddexp(self.of_changes(rows) + np.log(0.8), self.level[rows] + np.log(0.2))
        return evidence


def _residuals(
    value: Floats, node: Integers, groups: list[Integers], policy: FleetPolicy
) -> tuple[Floats, bool]:
    """Return the numbers minus their groups' medians, and whether no group was large enough tonight."""
    residuals = value.copy()
    # Begin with the whole SKU. Each finer group then subtracts only what the coarser ones left.
    everybody = np.zeros(residuals.shape, np.int32)
    alone = True
    for group in (everybody, *groups):
        enough = np.zeros(residuals.shape, bool)
        for night in range(residuals.shape[1]):
            enough[:, night] = _subtract_medians(
                residuals[:, night], group[:, night], node, policy.nodes_least
            )
        alone &= not enough[:, -1].any()
        # A series that changed its group is comparable only if both groups give a median of their own.
        moved = (group != group[:, -1:]) & ~(enough & enough[:, -1:])
        residuals[moved] = np.nan
    return residuals, alone


def _subtract_medians(column: Floats, group: Integers, node: Integers, least: int) -> Bools:
    """Subtract from each number, in place, the median of its group, if the group contains enough nodes.

    Return from which numbers a median was subtracted.

    Args:
        column: The numbers of one night, one per series.
        group: The group of each series in that night.
        node: The node of each series.
        least: The number of nodes that a group needs.
    """
    finite_rows = np.flatnonzero(np.isfinite(column))
    enough = np.zeros(len(column), bool)
    if not len(finite_rows):
        return enough
    group_of_row = group[finite_rows]
    # In one night, a node is in a single group.
    group_of = np.full(int(node.max()) + 1, -1, np.int64)
    group_of[node[finite_rows]] = group_of_row
    counts = np.bincount(group_of_row)
    large = np.bincount(group_of[group_of >= 0], minlength=len(counts)) >= least
    order = np.argsort(column[finite_rows])
    # Sort the numbers so that each group is together, in ascending order.
    order = order[np.argsort(group_of_row[order], kind="stable")]
    begins = np.cumsum(counts) - counts
    ordered = column[finite_rows][order]
    last = len(ordered) - 1
    lower, upper = begins + np.maximum(counts - 1, 0) // 2, begins + counts // 2
    medians = (ordered[np.minimum(lower, last)] + ordered[np.minimum(upper, last)]) / 2
    column[finite_rows] -= np.where(large, medians, 0.0)[group_of_row]
    enough[finite_rows] = large[group_of_row]
    return enough


def _measure_noise(residuals: Floats, policy: FleetPolicy) -> _Noise:
    """Return the noise from night to night, with a larger scale for series that are noisier.

    The noise is measured on differences between nights, so that a series that changed hardly counts. The
    first difference is between successive nights, the second over half of the nights. The larger one is used,
    because noise may last several nights. If too few differences are known, the differences between parts
    tonight are used instead. No scale is below ``policy.resolution``, and the scale of a noisy series is at
    most twice the common scale.
    """
    nights = residuals.shape[1]
    scale, freedom = 0.0, _TAILS[-1][0]
    for lag in {1, nights // 2} - {0}:
        apart = np.abs(residuals[:, lag:] - residuals[:, :-lag])[
            np.isfinite(residuals[:, lag:] - residuals[:, :-lag])
        ] / np.sqrt(2.0)
        if len(apart) < 30:
            continue
        half, most = np.quantile(apart, (0.5, 0.95))
        if half > 0:
            freedom = min(freedom, _fitting_freedom(most / half), _freedom_known(len(apart)))
        _, at_half, at_most = next(tail for tail in _TAILS if tail[0] == freedom)
        scale = max(scale, half / at_half, most / at_most)
    if not scale:
        freedom = _FEW_FREEDOM
        # No number repeats yet, so use the differences between parts.
        last = residuals[:, -1][np.isfinite(residuals[:, -1])]
        scale = 1.4826 * float(np.median(np.abs(last - np.median(last)))) if len(last) else 0.0
    scale = max(scale, policy.resolution)
    # Some GPUs are noisier than others and still healthy. Use their own noise if it is known.
    steps = np.abs(np.diff(residuals, axis=1)) / np.sqrt(2.0)
    noisy = np.isfinite(steps).sum(axis=1) >= 8
    own_scale = np.zeros(len(residuals))
    if noisy.any():
        own_scale[noisy] = np.nanmedian(steps[noisy], axis=1) / _TAILS[0][1]
    # Limit a series' own noise. Otherwise, bad nights that come and go would count as noise.
    return _Noise(np.clip(own_scale, scale, 2 * scale), freedom)


def _fitting_freedom(ratio: float) -> int:
    """Return the degrees of freedom of noise with this ratio of 95 % quantile to median.

    The ratio is taken a tenth larger, because too light tails would cause false alarms.
    """
    fitting = [freedom for freedom, at_half, at_most in _TAILS[1:] if at_most / at_half >= 1.1 * ratio]
    heaviest, usual = _TAILS[:2]
    return max(fitting, default=heaviest[0] if ratio > usual[2] / usual[1] else usual[0])


def _freedom_known(numbers: int) -> int:
    """Return the most degrees of freedom to assume for this number of values.

    Few values contain no rare ones, so they do not show whether the tails are light.
    """
    if numbers < _FEW:
        return _FEW_FREEDOM
    return _FEW_FREEDOM + 2 if numbers < _MANY else _TAILS[-1][0]


def _slowest_of_others(residuals: Floats, node: Integers, policy: FleetPolicy) -> Floats:
    """Return the lowest healthy level, which is the same for all series.

    The level is a margin below the slowest few per cent of the series, or below the medians of the groups if
    these are lower. As many series as the largest node has, and two more, are skipped, so that a slow node
    does not lower the bound. Of few series, at most a quarter are skipped. Without a number, the level is
    minus infinity.
    """
    level = row_medians(residuals)
    finite_rows = np.flatnonzero(np.isfinite(level))
    bound = np.full(len(residuals), -np.inf)
    if not len(finite_rows):
        return bound
    order = finite_rows[np.argsort(level[finite_rows], kind="stable")]
    largest = int(np.bincount(node[finite_rows]).max())
    # The skipped series are the lowest. They may be slow and do not lower the bound.
    rank = min(max(int(policy.slowest * len(order)), largest + 2), max(len(order) // 4, 1), len(order) - 1)
    slowest = float(level[order[rank]])
    tail = policy.tail * (float(level[order[min(4 * rank, len(order) // 2)]]) - slowest)
    bound[:] = min(slowest, 0.0) - max(policy.margin, tail)
    return bound


def _hypotheses(nights: int) -> list[tuple[str, int, int]]:
    """Return the possible forms of a change, as kind, first night, and loss in steps of the grid.

    A "step" stays, a "slope" grows evenly, and a "returning" loss is on some nights, but not on others. A
    step or a returning loss may also be of any size (:data:`_ANY_LOSS`). :func:`_change_evidence` returns its
    columns in this order.
    """
    hypotheses = [("step", first, loss) for loss in _LOSSES for first in range(1, nights)]
    hypotheses += [("slope", first, loss) for loss in _LOSSES for first in sorted({0, nights // 2})]
    hypotheses += [("returning", 0, loss) for loss in _LOSSES]
    return [
        *hypotheses,
        *(("step", first, _ANY_LOSS) for first in range(1, nights)),
        ("returning", 0, _ANY_LOSS),
    ]


def _weights(nights: int) -> Floats:
    """Return the weight of each hypothesis, in the order of :func:`_hypotheses`. The sum of them is 1."""
    kinds = [
        "tonight" if kind == "step" and first == nights - 1 else kind
        for kind, first, _ in _hypotheses(nights)
    ]
    # A change that began tonight had only one night to appear, and any other change had more.
    shares = {"tonight": 0.3, "step": 0.4, "slope": 0.15, "returning": 0.15}
    total = sum(shares[kind] for kind in set(kinds))
    return np.array([shares[kind] / total / kinds.count(kind) for kind in kinds])


def _change_evidence(residuals: Floats, twice: Bools, noise: _Noise) -> Floats:
    """Return the log-likelihood ratio of each hypothesis to no change, with a row per series.

    The columns are in the order of :func:`_hypotheses`. The earlier level of a series is unknown, so all
    levels of the grid are equally likely.
    """
    series, nights = residuals.shape
    most = max(_LOSSES)
    size = _BELOW + _ABOVE + 1
    grid = (np.arange(size + most) - most - _BELOW) * _STEP
    # The grid is centred on the middle of the series, so it need not cover the whole fleet. If most
    # nights are far below the others, it is centred on the others, which may show the healthy level.
    centre, good = row_medians(residuals), _upper_quartiles(residuals)
    centre = np.where(good - centre > _ABOVE * _STEP, good, centre)
    distance = (residuals - centre[:, None])[:, :, None] - grid
    likely = noise.log_density(distance, noise.scale[:, None, None])
    likely[~np.isfinite(residuals)] = 0.0
    # Two bad measurements count as twice the evidence.
    likely[twice, -1] *= 2.0
    sums = np.concatenate([np.zeros((series, 1, likely.shape[2])), np.cumsum(likely, axis=1)], axis=1)
    none = _log_sum(sums[:, -1, most:])
    columns: list[Floats] = []
    # With these sums over nights, the likelihood since any night is a difference of two sums.
    for loss in _LOSSES:
        unchanged, lowered = slice(most, None), slice(most - loss, most - loss + size)
        since = sums[:, 1:-1, unchanged] + sums[:, -1:, lowered] - sums[:, 1:-1, lowered]
        columns += list(_log_sum(since).T)
    for loss in _LOSSES:
        for first in sorted({0, nights // 2}):
            columns.append(_log_sum(_slope_likelihood(likely, first, loss, most, size)))
    for loss in _LOSSES:
        # Bad nights may come and go, so each night is good or bad with equal probability.
        either = np.logaddexp(likely[:, :, most:], likely[:, :, most - loss : most - loss + size])
        columns.append(_log_sum(either.sum(axis=1) - nights * np.log(2.0)))
    collapsed = noise.log_collapse(-distance[:, :, most:], noise.scale[:, None, None])
    collapsed[~np.isfinite(residuals)] = 0.0
    collapsed[twice, -1] *= 2.0
    columns += _collapse_likelihoods(likely[:, :, most:], collapsed)
    return np.stack(columns, axis=1) - none[:, None]


def _collapse_likelihoods(likely: Floats, collapsed: Floats) -> list[Floats]:
    """Return the log-likelihoods of a loss of any size since each night, and of one that comes and goes."""
    healthy, since = np.cumsum(likely, axis=1), np.cumsum(collapsed, axis=1)
    steps = _log_sum(healthy[:, :-1] + since[:, -1:] - since[:, :-1])
    either = np.logaddexp(likely, collapsed) - np.log(2.0)
    return [*steps.T, _log_sum(either.sum(axis=1))]


def _slope_likelihood(likely: Floats, first: int, loss: int, most: int, size: int) -> Floats:
    """Return the log-likelihood of a loss that grows evenly since a night, for each earlier level.

    Args:
        likely: The log density by series, night and level of the grid.
        first: The night from which the loss grows.
        loss: The loss tonight, in steps of the grid.
        most: The largest loss, in steps of the grid. The grid has so many levels below the earlier levels.
        size: The number of earlier levels.
    """
    nights = likely.shape[1]
    total = np.zeros((len(likely), size))
    for night in range(nights):
        now = round(loss * max(night - first, 0) / max(nights - 1 - first, 1))
        total += likely[:, night, most - now : most - now + size]
    return total


def _level_evidence(residuals: Floats, twice: Bools, bound: Floats, noise: _Noise) -> Floats:
    """Return the log-likelihood ratio of a level below the bound to a level at the bound, for each series.

    The ratio is averaged over the distances in :data:`_LEVEL_LOSSES` and a collapse.
    """
    # Of all healthy levels, the bound is the hardest to distinguish from a slow one.
    is_known = np.isfinite(residuals)
    weight = is_known.astype(np.float64)
    weight[twice, -1] *= 2.0
    scale = noise.scale[:, None]
    distance = np.where(is_known, residuals - bound[:, None], 0.0)
    at_bound = (noise.log_density(distance, scale) * weight).sum(axis=1)
    below = [
        (noise.log_density(distance + loss, scale) * weight).sum(axis=1) - at_bound for loss in _LEVEL_LOSSES
    ]
    below.append((noise.log_collapse(-distance, scale) * weight).sum(axis=1) - at_bound)
    evidence: Floats = _log_sum(np.stack(below, axis=1)) - np.log(len(below))
    return evidence


def _slow_by_node(
    table: SeriesTable, evidence: _Evidence, families: Sequence[_Family], policy: FleetPolicy
) -> Iterator[SlowSeries]:
    """Yield the slow series of nodes whose evidence is within the budget of watched nodes."""
    if not len(evidence.rows):
        return
    tests = _tests(table)
    node = table.node[evidence.rows]
    order = np.argsort(node, kind="stable")
    _, begins = np.unique(node[order], return_index=True)
    allowed = _allowed(policy)
    series_evidence = evidence.of_series(np.arange(len(node)))
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        of_node = order[begin:end]
        total = _node_evidence(
            evidence, of_node, series_evidence[of_node], families, int(tests[evidence.rows[of_node[0]]])
        )
        if total < np.log(1 / (allowed * policy.watched)):
            continue
        strongest = series_evidence[of_node].max()
        for row in of_node[(series_evidence[of_node] >= min(_STRONG, strongest))]:
            slow = _describe(evidence, int(row), total, policy)
            if slow is not None:
                yield slow


def _node_evidence(
    evidence: _Evidence, indices: Indices, series_evidence: Floats, families: Sequence[_Family], tests: int
) -> float:
    """Return a node's log evidence, averaged over its series, its GPUs, and the whole node.

    Args:
        evidence: The evidence for all suspicious series.
        indices: The indices in ``evidence`` of the series of this node.
        series_evidence: The evidence for each of these series alone.
        families: The series grouped by GPU, and by node.
        tests: How many series of the node were measured tonight.
    """
    # Series that were not suspicious add no evidence, but the average is over them, too.
    single = float(_log_sum(series_evidence[None, :])[0]) - np.log(tests)
    shares = [np.log(0.6) + single]
    for family in families:
        keys, index = np.unique(family.key[evidence.rows[indices]], return_inverse=True)
        joint = np.zeros((len(keys), evidence.change.shape[1]))
        np.add.at(joint, index, evidence.change[indices])
        members = np.bincount(index)
        joint *= family.weight(members)[:, None]
        part_evidence = _log_sum(joint + evidence.shares)
        # Estimate the number of GPUs (or nodes), including GPUs (or nodes) that were not suspicious.
        count = max(tests / members.mean(), 1.0)
        shares.append(np.log(0.2) + float(_log_sum(part_evidence[None, :])[0]) - np.log(count))
    return float(_log_sum(np.array([shares]))[0])


def _describe(evidence: _Evidence, row: int, total: float, policy: FleetPolicy) -> SlowSeries | None:
    """Return a description of a slow series, or None if it is not slow tonight."""
    kind, index = evidence.kinds[evidence.kind[row]], evidence.place[row]
    residuals, change = kind.own[index], evidence.change[row] + evidence.shares
    if evidence.level[row] > _log_sum(change[None, :])[0]:
        test, base, nights = "level", 0.0, int(np.isfinite(residuals).sum())
        now = float(row_medians(residuals[None, :])[0])
        slow_tonight = residuals[-1] < kind.bound[index]
    else:
        test = "change"
        base, now, nights = _before_and_now(residuals, *_hypotheses(residuals.size)[int(change.argmax())])
        slow_tonight = residuals[-1] < base - (base - now) / 2
    loss = base - now
    if not slow_tonight or loss <= 0:
        return None
    expected = (base + kind.weather[index]) * kind.middle
    # Convert a fraction of the median to a fraction of the part's expected value.
    loss *= kind.middle / abs(expected) if expected else 1.0
    return SlowSeries(
        series=int(evidence.rows[row]),
        test=test,
        loss=loss,
        base=expected,
        nights=nights,
        evidence=float(np.exp(min(total, 700.0))),
        proven=total >= -np.log(_allowed(policy)),
        suspected=total >= -np.log(_allowed(policy) * policy.suspicions),
        alone=kind.alone,
    )


def _before_and_now(residuals: Floats, shape: str, first: int, steps: int) -> tuple[float, float, int]:
    """Return the level of a series before a change and with its loss, and the number of nights with the loss.

    Shape, first night and steps belong to a hypothesis (:func:`_hypotheses`).
    """
    loss = steps * _STEP if steps != _ANY_LOSS else _COLLAPSE
    if shape == "step":
        return *_medians(residuals[:first], residuals[first:]), int(np.isfinite(residuals[first:]).sum())
    if shape == "slope":
        part = max(residuals.size // 5, 2)
        return *_medians(residuals[: first + part], residuals[-part:]), int(
            np.isfinite(residuals[first:]).sum()
        )
    # Up to half of the nights may be bad, so the median may be a bad night.
    good = float(np.nanquantile(residuals, 0.75))
    bad = residuals < good - loss / 2
    return *_medians(residuals[~bad], residuals[bad]), int(bad.sum())


def _medians(before: Floats, since: Floats) -> tuple[float, float]:
    """Return the medians of the known numbers of each side, or zeros if a side has none."""
    early, late = before[np.isfinite(before)], since[np.isfinite(since)]
    if not len(early) or not len(late):
        return 0.0, 0.0
    return float(np.median(early)), float(np.median(late))


def _log_sum(table: Floats) -> Floats:
    """Return the logarithm of the sum of exponentials along the last axis, without overflow.

    The sum over an axis of minus infinities is minus infinity.
    """
    highest = table.max(axis=-1)
    highest = np.where(np.isfinite(highest), highest, 0.0)
    with np.errstate(divide="ignore"):
        total: Floats = np.log(np.exp(table - highest[..., None]).sum(axis=-1)) + highest
    return total


def _upper_quartiles(table: Floats) -> Floats:
    """Return for each row a value that about a quarter of its numbers reach, or NaN for an empty row."""
    ordered = np.sort(table, axis=1)
    index = np.isfinite(ordered).sum(axis=1) * 3 // 4
    quartiles: Floats = ordered[np.arange(len(ordered)), np.minimum(index, ordered.shape[1] - 1)]
    return quartiles


def row_medians(table: Floats) -> Floats:
    """Return the median of each row's numbers, or NaN for a row without any. ``nanmedian`` is too slow."""
    ordered = np.sort(table, axis=1)
    count = np.isfinite(ordered).sum(axis=1)
    if not ordered.shape[1]:
        return np.full(len(ordered), np.nan)
    rows = np.arange(len(ordered))
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, ordered.shape[1] - 1)
    median: Floats = (ordered[rows, low] + ordered[rows, high]) / 2
    return median
