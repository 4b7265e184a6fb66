"""Compare systems side by side, by the mean of each metric over the repeats of a benchmark.

A system is a set of runs with a name, such as the runs of one node or folder. Several runs of one benchmark
at one point are repeats, and a cell is their mean. A run that shows a failure, or does not prove that it
ended well, is never part of a mean (:func:`exclusion_reason`). The comparison lists that run with the reason
and the line.

A published system is a system, too. Its cells are published minutes and throughputs. The number of their
repeats is unknown. If a system has a published counterpart, :mod:`rackproof.core.judging` judges each cell of
the system against it.

``rackproof compare`` and job bench call :func:`compare_systems`. Begin there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from rackproof.analysis.compare.naming import (
    PUBLISHED,
    THROUGHPUT,
    canonical_benchmark,
    plain_name,
    published_system,
)
from rackproof.analysis.importing import IMPORTED_FROM
from rackproof.analysis.intervals import mean, mean_half_width, ratio_half_width
from rackproof.analysis.mlperf.published import PublishedResult, find_published
from rackproof.analysis.representative import pick_representative
from rackproof.core.finding_codes import MACHINE_BUSY
from rackproof.core.judging import judge
from rackproof.core.records import (
    Direction,
    Finding,
    Judgement,
    Measurement,
    Record,
    Reference,
    Run,
    Source,
    Verdict,
)
from rackproof.core.text import amount, whole_number

Kind = Literal["throughput", "minutes", "epochs", "other"]
Conclusion = Literal[
    "better", "worse", "no difference shown", "no interval", "not comparable", "differs", "no ratio"
]

MINUTES, EPOCHS = "time_to_train", "epochs"
"""Metrics of a training's time (in minutes) and length."""

# A number of batches per second means nothing without the batch size. (maskrcnn's "iterations" are images.)
_PER_BATCH = ("batches", "steps")
_TOLERANCE, _CEILING = 0.07, 0.3
"""Largest loss that does not fail, and largest plausible gain, as fractions of a published value."""


class System(Record):
    """A system to compare: its name, and either its runs or its published results."""

    name: str
    runs: tuple[Run, ...] = ()
    published: tuple[PublishedResult, ...] = ()
    single_run: bool = False
    """True if it is a single run that is shown by name, not a system."""


class ComparisonCell(Record):
    """One cell of a comparison: a metric of a benchmark on one system.

    Attributes:
        value: The mean of ``values`` (one per run), or ``None`` if no run counts.
        low, high: The interval of the mean at the comparison's confidence, ``None`` for fewer than two
            repeats.
        expected: The relative difference from a published mean that chance alone may cause, or ``None``. For
            minutes, this is the mean share of the time between evaluations, divided by the square root of the
            number of runs. It is ``None`` for all other metrics.
        published: Whether the cell is a published mean over an unknown number of runs.
        judgement: The judgement against the published counterpart, or ``None``.
        left_out: The number of runs that do not count.
    """

    values: tuple[float, ...] = ()
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    published: bool = False
    left_out: int = 0
    expected: float | None = None
    judgement: Judgement | None = None


class Ratio(Record):
    """The ratio of a system's mean to the first system's, with its interval and conclusion.

    The conclusion is ``better``, ``worse`` or ``differs`` only if the interval excludes 1.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    conclusion: Conclusion
    reason: str = ""


class ComparedMetric(Record):
    """One row of a comparison. ``cells`` is in the order of the systems, and ``ratios`` omits the first."""

    benchmark: str
    point: str = ""
    kind: Kind
    metric: str
    unit: str
    direction: Direction | None
    cells: tuple[ComparisonCell, ...]
    ratios: tuple[Ratio, ...]
    notes: tuple[str, ...] = ()


class Counted(Record):
    """A run that is part of a mean, with the facts of its log."""

    system: str
    run_id: str
    benchmark: str
    point: str
    log: str
    verdict: Verdict
    throughput: float | None = None
    throughput_unit: str = ""
    minutes: float | None = None
    epochs: float | None = None
    wall_minutes: float | None = None
    """Minutes from the RESULT line of the run script, which include start-up and, for minigo, the games after
    training."""
    source: Source = Source()


class LeftOut(Record):
    """A run that no mean includes, with the reason."""

    system: str
    run_id: str
    benchmark: str
    log: str
    verdict: Verdict
    reason: str
    source: Source = Source()


class SystemComparison(Record):
    """The comparison of two or more systems."""

    systems: tuple[str, ...]
    confidence: float = Field(gt=0, lt=1)
    method: str
    rows: tuple[ComparedMetric, ...]
    counted: tuple[Counted, ...]
    left_out: tuple[LeftOut, ...]
    unmatched: tuple[str, ...]
    """Benchmarks that not every system ran, and points of any system without one counterpart in every other
    system (``BENCHMARK batch_size=…``). Rows of a published study are listed only of the first system."""

    @property
    def judgements(self) -> tuple[Judgement, ...]:
        """Return the judgements of all cells."""
        return tuple(cell.judgement for row in self.rows for cell in row.cells if cell.judgement is not None)


Exclusion = tuple[Verdict, str, Source]
"""A verdict that excludes a run, with the reason and the place in its log."""


def exclusion_reason(run: Run) -> Exclusion | None:
    """Return why a run must be excluded from a mean, or ``None``.

    Findings, logs, failed bounds of quality (accuracy, wrong values), the exit status, the use of the machine
    by other processes and, without a log, the verdict are considered. A run that is only slower than its
    reference is included, because its exclusion would make the system look better.
    """
    # The reason that is nearest to the cause comes first.
    return (
        _gravest_finding(run)
        or _unfinished_log(run)
        or _missed_bound(run)
        or _bad_exit(run)
        or _busy_machine(run)
        or _bad_verdict_without_log(run)
    )


def _gravest_finding(run: Run) -> Exclusion | None:
    """Return the finding that excludes a run, a failure before an unproven one, or None."""
    grave = [finding for finding in run.findings if finding.verdict is not None and finding.verdict.gates]
    if not grave:
        return None
    # A finding that only follows from another, such as "no run_stop", is last. The other is the cause.
    gravest = min(grave, key=lambda finding: (finding.verdict is not Verdict.FAIL, finding.consequence))
    return gravest.verdict or Verdict.UNPROVEN, gravest.message, gravest.source


def _unfinished_log(run: Run) -> Exclusion | None:
    for log in run.logs:
        if log.verdict.gates:
            return log.verdict, "the log does not show a run that ended well", Source(file=log.path)
    return None


def _missed_bound(run: Run) -> Exclusion | None:
    for judgement in run.judgements:
        if judgement.gating and judgement.verdict.gates and _is_bound(judgement.reference):
            return judgement.verdict, f"{judgement.metric}: {judgement.reason}", judgement.source
    return None


def _bad_exit(run: Run) -> Exclusion | None:
    if not run.exit_status:
        return None
    return Verdict.FAIL, f"the job ended with status {run.exit_status}", Source()


def _busy_machine(run: Run) -> Exclusion | None:
    busy = [finding for finding in run.findings if finding.code == MACHINE_BUSY]
    return (Verdict.UNPROVEN, busy[0].message, busy[0].source) if busy else None


def _bad_verdict_without_log(run: Run) -> Exclusion | None:
    # If there is a log, a gating verdict may only mean "slower than the reference", which excludes no run.
    if run.logs or not run.verdict.gates:
        return None
    return run.verdict, run.reasons[0] if run.reasons else "the record gives no reason", Source()


def _is_bound(reference: Reference | None) -> bool:
    """Return whether a reference is a fixed bound of a definition, such as a required accuracy."""
    return reference is not None and reference.warn is None and 0 in (reference.low, reference.high)


_Point = tuple[tuple[str, str], ...]
"""The parameters of a run as sorted pairs of name and value."""


def _point(run: Run) -> _Point:
    return tuple((name, str(value)) for name, value in sorted(run.parameters.items()))


def _point_text(point: _Point) -> str:
    return " ".join(f"{name}={value}" for name, value in point)


class _Group(Record):
    """The runs of one benchmark at one point on one system, and its published result."""

    point: _Point = ()
    runs: tuple[Run, ...] = ()
    left_out: int = 0
    published: PublishedResult | None = None


def _groups(system: System) -> dict[str, list[_Group]]:
    """Return the groups of a system by the canonical name of their benchmark.

    Excluded runs are only counted. Each published result is a group.
    """
    runs_of: dict[str, dict[_Point, list[Run]]] = {}
    for run in system.runs:
        points = runs_of.setdefault(canonical_benchmark(run.benchmark), {})
        points.setdefault(_point(run), []).append(run)
    groups = {benchmark: _benchmark_groups(points) for benchmark, points in runs_of.items()}
    for result in system.published:
        point = tuple(sorted(result.point.items()))
        groups.setdefault(canonical_benchmark(result.benchmark), []).append(
            _Group(point=point, published=result)
        )
    return groups


def _benchmark_groups(points: Mapping[_Point, list[Run]]) -> list[_Group]:
    """Return a group of counted runs per point.

    If at most one point has runs that count, return only one group, which counts the excluded runs of all
    points.
    """
    groups = []
    for point, runs in points.items():
        good = tuple(run for run in runs if exclusion_reason(run) is None)
        groups.append(_Group(point=point, runs=good, left_out=len(runs) - len(good)))
    with_runs = [group for group in groups if group.runs]
    if len(with_runs) > 1:
        return groups
    # A log that ends before it states its batch size is a lost run of the only point.
    lost = sum(group.left_out for group in groups)
    return [(with_runs or groups)[0].model_copy(update={"left_out": lost})]


_Row = tuple[str, list[_Group]]


def _aligned(systems: Sequence[Mapping[str, list[_Group]]]) -> tuple[list[_Row], list[str]]:
    """Return rows of groups, with one group per system, and the benchmarks and points without such a row."""
    rows: list[_Row] = []
    lonely: list[str] = []
    # Use the order of first appearance, so that the rows follow the order of the first system.
    for benchmark in dict.fromkeys(name for groups in systems for name in groups):
        of_each = [groups.get(benchmark, []) for groups in systems]
        if not all(of_each):
            lonely.append(benchmark)
        elif all(map(_is_single_point, of_each)):
            # Compare single points even if they differ, because systems tune their batch size.
            rows.append((benchmark, [groups[0] for groups in of_each]))
        else:
            matched, unmatched = _aligned_points(benchmark, of_each)
            rows += matched
            lonely += unmatched
    return rows, lonely


def _is_single_point(groups: Sequence[_Group]) -> bool:
    return len(groups) == 1 and not _of_study(groups[0])


def _aligned_points(benchmark: str, of_each: Sequence[list[_Group]]) -> tuple[list[_Row], list[str]]:
    """Match each of the first system's points with one point of every other system.

    Return the rows, and texts for the points of any system that are in no row, because they have no
    counterpart or several. Rows of a published study in the other systems are not listed.
    """
    rows: list[_Row] = []
    lonely: list[str] = []
    first, *other_systems = of_each
    for group in first:
        matches = [_counterparts(group, groups) for groups in other_systems]
        if all(len(match) == 1 for match in matches):
            rows.append((benchmark, [group, *(match[0] for match in matches)]))
        else:
            lonely.append(f"{benchmark} {_point_text(group.point)}".strip())
    used = {id(group) for _, row in rows for group in row}
    for group in itertools.chain.from_iterable(other_systems):
        point = f"{benchmark} {_point_text(group.point)}".strip()
        # A row of a published study that no run has is no gap of the runs.
        if id(group) not in used and point not in lonely and not _of_study(group):
            lonely.append(point)
    return rows, lonely


def _of_study(group: _Group) -> bool:
    """Return whether a group is a row of a published study, which gives only some of the parameters."""
    return group.published is not None and bool(group.published.point)


def _counterparts(group: _Group, groups: Sequence[_Group]) -> list[_Group]:
    """Return the groups to compare a group with, which may be none, one, or several that fit equally well.

    A row of a study fits every point that includes its parameters. The most specific row is used.
    """
    for candidate in groups:
        if candidate.point == group.point:
            return [candidate]
    parameters = dict(group.point).items()
    if _of_study(group):
        return [
            candidate
            for candidate in groups
            if not _of_study(candidate) and parameters <= dict(candidate.point).items()
        ]
    return _most_particular(
        [row for row in groups if _of_study(row) and dict(row.point).items() <= parameters]
    )


def _most_particular(rows: Sequence[_Group]) -> list[_Group]:
    most = max((len(row.point) for row in rows), default=0)
    return [row for row in rows if len(row.point) == most]


def _values(group: _Group, metric: str) -> tuple[tuple[float, ...], str, Direction | None]:
    """Return a metric's finite values, one per run that measured it, with unit and direction."""
    measured = []
    for run in group.runs:
        measurement = _representative(run, metric)
        if measurement is not None and measurement.finite:
            measured.append(measurement)
    if not measured:
        return (), "", None
    # Values with another unit are left out, because a mean over two units means nothing.
    unit = measured[0].unit
    same_unit = tuple(measurement.value for measurement in measured if measurement.unit == unit)
    return same_unit, unit, measured[0].direction


def _representative(run: Run, metric: str) -> Measurement | None:
    """Return the measurement that represents all of a name, or None if the run has none.

    :func:`pick_representative` chooses, for example the worst GPU and the largest message size.
    """
    values = [measurement for measurement in run.measurements if measurement.name == metric]
    return pick_representative(values) if values else None


def _throughput_name(group: _Group) -> str:
    names = _measured_names(group)
    return next((name for name in THROUGHPUT if name in names), "")


def _measured_names(group: _Group) -> set[str]:
    return {measurement.name for run in group.runs for measurement in run.measurements}


def _common_throughput_name(groups: Sequence[_Group]) -> str:
    """Return the throughput metric of the first group that measured one, or "" if there is none."""
    name = next((name for name in map(_throughput_name, groups) if name), "")
    if not name and any(map(_of_study, groups)):
        # A study publishes only rates, so its row shows a throughput even if no run measured one.
        return "throughput"
    return name


def _metrics(groups: Sequence[_Group]) -> list[tuple[Kind, str]]:
    """Return the metrics of a benchmark to compare.

    A training is compared by throughput, minutes and epochs. For other benchmarks, these are the metrics with
    a direction that every system with runs measured.
    """
    throughput = _common_throughput_name(groups)
    names = [_measured_names(group) for group in groups if group.runs]
    if throughput or _is_timed(groups, names):
        training: list[tuple[Kind, str]] = [("minutes", MINUTES), ("epochs", EPOCHS)]
        return [("throughput", throughput), *training] if throughput else training
    directed = _directed_names(groups)
    return [("other", name) for name in directed if all(name in measured for measured in names)]


def _is_timed(groups: Sequence[_Group], names: Sequence[set[str]]) -> bool:
    """Return whether a run measured the minutes of a training, or a system is published."""
    return any(MINUTES in measured for measured in names) or any(group.published for group in groups)


def _directed_names(groups: Sequence[_Group]) -> list[str]:
    """Return the names of measurements with a direction, in the order of the records."""
    names: dict[str, None] = {}
    for group in groups:
        for run in group.runs:
            names |= dict.fromkeys(item.name for item in run.measurements if item.direction is not None)
    return list(names)


def _expected(group: _Group, kind: Kind) -> float | None:
    """Return the relative difference from a published mean that chance alone may cause.

    A run ends at an evaluation, so chance may change its time by one interval between evaluations. The result
    is None unless the metric is minutes and a run shows its interval.
    """
    if kind != "minutes":
        return None
    steps = [step for step in map(_evaluation_step, group.runs) if step is not None]
    # The effect of chance on a mean decreases with the square root of the number of runs.
    return mean(steps) / math.sqrt(len(steps)) if steps else None


def _evaluation_step(run: Run) -> float | None:
    """Return the time between evaluations as a fraction of the run's time, or None if it is unknown."""
    minutes, epochs = _representative(run, MINUTES), _representative(run, EPOCHS)
    if minutes is None or not minutes.finite or minutes.value <= 0:
        return None
    seconds = minutes.value * 60
    gap_s = _last_evaluation_gap(run, seconds)
    if gap_s is not None:
        return gap_s / seconds
    if epochs is not None and epochs.finite and epochs.value >= 1:
        # minigo plays its evaluation games after training, so an iteration is the interval.
        return 1 / epochs.value
    return None


def _last_evaluation_gap(run: Run, seconds: float) -> float | None:
    """Return the seconds between the last two evaluations.

    Return ``None`` if there are fewer than two, or one is not within the run. ``seconds`` is the time to
    train. The times of evaluations are seconds, too.
    """
    times = next((series.x for series in run.series if series.name.startswith("eval_accuracy")), ())
    # Allow a minute, because the log's clock and the stated time to train may differ by seconds.
    inside = [time for time in times if 0 < time <= seconds + 60]
    if len(inside) < 2 or len(inside) < len(times):
        return None
    return inside[-1] - inside[-2]


def _published_value(result: PublishedResult, kind: Kind) -> tuple[float | None, str, Direction | None]:
    """Return value, unit and direction of a published number.

    The value is None if it was not published. No other kinds than minutes and throughput were published.
    """
    if kind == "minutes":
        return result.minutes, "min", Direction.LOWER
    if kind == "throughput":
        return result.throughput, result.throughput_unit, Direction.HIGHER
    return None, "", None


def _cell(
    group: _Group, kind: Kind, metric: str, reference: PublishedResult | None, confidence: float
) -> tuple[ComparisonCell, Direction | None]:
    """Return the cell of a group (a published number, or the mean of its runs), and its direction."""
    if group.published is not None:
        value, unit, direction = _published_value(group.published, kind)
        return ComparisonCell(
            values=() if value is None else (value,), value=value, unit=unit, published=True
        ), direction
    values, unit, direction = _values(group, metric)
    if not values:
        return ComparisonCell(left_out=group.left_out), direction
    middle, half = mean(values), mean_half_width(values, confidence)
    expected = _expected(group, kind)
    cell = ComparisonCell(
        values=values,
        value=middle,
        unit=unit,
        low=None if half is None else middle - half,
        high=None if half is None else middle + half,
        left_out=group.left_out,
        expected=expected,
        judgement=_judged(middle, unit, metric, direction, kind, reference, expected, group),
    )
    return cell, direction


def _judged(
    mean: float,
    unit: str,
    metric: str,
    direction: Direction | None,
    kind: Kind,
    result: PublishedResult | None,
    expected: float | None,
    group: _Group,
) -> Judgement | None:
    """Judge a cell against its published counterpart.

    The bounds of minutes are at least as wide as chance requires (``expected``). The result is None without a
    counterpart, or if the counterpart lacks the number.
    """
    # Some published rows lack the minutes or the throughput.
    if result is None or _published_value(result, kind)[0] is None:
        return None
    count = amount(len(group.runs), "run")
    if kind == "minutes":
        reference = result.reference(
            "minutes",
            tolerance=max(_TOLERANCE, expected or 0),
            ceiling=max(_CEILING, expected or 0),
        )
        luck = f"; {count}, ±{expected:.1%} by the number of epochs" if expected else f"; {count}"
    else:
        # More batches may only mean smaller batches. Unless their size is stated, more is not better.
        unstated = result.global_batch_size is None and _is_per_batch(unit)
        reference = result.reference("throughput", ceiling=_TOLERANCE if unstated else _CEILING)
        luck = f"; {count}" + "; the size of its batches is not stated" * unstated
    reference = reference.model_copy(update={"source": reference.source + luck})
    measured = Measurement(name=metric, value=mean, unit=unit, direction=direction)
    return judge(measured, reference, gating=False)


def _ratio(
    cell: ComparisonCell,
    base: ComparisonCell,
    kind: Kind,
    direction: Direction | None,
    confidence: float,
    obstacle: str,
) -> Ratio:
    """Return the ratio of two cells with its confidence interval.

    ``obstacle`` is the reason why the cells cannot be compared, or "".
    """
    if cell.value is None or base.value is None:
        return Ratio(conclusion="no ratio", reason="one side has no value")
    # 0 is excluded too, because the interval is computed on logarithms.
    if min(cell.value, base.value) <= 0:
        return Ratio(conclusion="no ratio", reason="a value is not positive")
    if cell.unit != base.unit:
        # Units are never converted, because it is unknown which of the two is wrong.
        units = " against ".join(unit or "no unit" for unit in (base.unit, cell.unit))
        return Ratio(conclusion="not comparable", reason=units)
    value = cell.value / base.value
    half = _ratio_half_width(cell, base, confidence)
    # Repeats with exactly equal values are counts or copies, so they show no spread.
    if not half:
        return _ratio_without_interval(value, cell, base, obstacle)
    # Computed on the logarithm, so that the inverse of the interval is the interval of the inverse.
    low, high = value * math.exp(-half), value * math.exp(half)
    conclusion = "not comparable" if obstacle else _conclusion(low, high, kind, direction)
    return Ratio(value=value, low=low, high=high, conclusion=conclusion, reason=obstacle)


def _ratio_without_interval(value: float, cell: ComparisonCell, base: ComparisonCell, obstacle: str) -> Ratio:
    if obstacle:
        return Ratio(value=value, conclusion="not comparable", reason=obstacle)
    return Ratio(value=value, conclusion="no interval", reason=_why_no_interval(cell, base))


def _ratio_half_width(cell: ComparisonCell, base: ComparisonCell, confidence: float) -> float | None:
    # A published mean states no repeats, and a mean above 0 may include single values that are not above 0.
    if cell.published or base.published or min(cell.values + base.values) <= 0:
        return None
    return ratio_half_width(cell.values, base.values, confidence)


def _conclusion(low: float, high: float, kind: Kind, direction: Direction | None) -> Conclusion:
    if not (low > 1 or high < 1):
        return "no difference shown"
    # Fewer epochs are not an advantage of the hardware. They result from the batch size and from chance.
    if kind == "epochs" or direction is None:
        return "differs"
    return "better" if (low > 1) == (direction is Direction.HIGHER) else "worse"


def _why_no_interval(cell: ComparisonCell, base: ComparisonCell) -> str:
    if cell.published or base.published:
        return "a published mean states no repeats"
    if min(len(base.values), len(cell.values)) > 1:
        return "all repeats are equal: their spread is not known"
    counts = f"{len(base.values)} and {amount(len(cell.values), 'run')}"
    return f"{counts}; two of each are needed"


def _is_per_batch(unit: str) -> bool:
    return unit.split("/")[0] in _PER_BATCH


def _batch_obstacle(groups: Sequence[_Group], cells: Sequence[ComparisonCell]) -> tuple[str, str]:
    """Return the reason why rates in batches cannot be compared, and a remark about the batch sizes.

    Either is "" if there is none.
    """
    sizes = [dict(group.point).get("batch_size") if group.runs else None for group in groups]
    known_sizes = [size for size in sizes if size is not None]
    per_batch = any(_is_per_batch(cell.unit) for cell in cells)
    if per_batch and any(map(_states_no_batch_size, groups)):
        return "the size of the published batches is not stated", ""
    if len(set(known_sizes)) < 2:
        return "", ""
    texts = " and ".join(map(_size_text, known_sizes))
    if not per_batch:
        return "", f"global batch sizes {texts}"
    equal = " and ".join(_samples_per_second(cells, sizes))
    note = f"global batch sizes {texts}; times the rate: {equal} per second"
    return f"batches of different size ({texts})", note


def _size_text(size: str) -> str:
    # A size is a parameter of a run and may be any text. Text that is not a number is shown unchanged.
    return size if (number := whole_number(size)) is None else f"{number:,}"


def _states_no_batch_size(group: _Group) -> bool:
    return group.published is not None and group.published.global_batch_size is None


def _samples_per_second(cells: Sequence[ComparisonCell], sizes: Sequence[str | None]) -> list[str]:
    rates = []
    for cell, size in zip(cells, sizes, strict=True):
        samples = None if size is None else whole_number(size)
        if cell.value is not None and samples is not None:
            rates.append(f"{cell.value * samples:,.0f}")
    return rates


def systems_of(runs: Iterable[Run]) -> tuple[System, ...]:
    """Group runs by their nodes or, if these are unknown, by the nodes in the plan. Each set is a system."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        nodes = sorted(node.name for node in run.nodes) or sorted(run.asked_nodes)
        groups.setdefault(", ".join(nodes) or "no node", []).append(run)
    return tuple(System(name=name, runs=tuple(group)) for name, group in groups.items())


def compare_systems(
    systems: Sequence[System], *, reference: str | None = None, judge: bool = True, confidence: float = 0.95
) -> SystemComparison:
    """Compare each system with the first.

    Benchmarks are matched by name and, if a system ran several points, by point. The interval of a ratio is
    Welch's, computed on the logarithm (:func:`rackproof.analysis.intervals.ratio_half_width`). The interval
    of a mean is Student's.

    Args:
        systems: Two or more systems with different names.
        reference: The published system of round 0.6 to judge every cell against. The default is the published
            system that the system's name means, or else the first published system in the comparison.
        judge: Whether cells are judged against published systems.
        confidence: The confidence level of the intervals.

    Raises:
        ValueError: There are fewer than two systems, equal names, an unknown reference, or a confidence
            outside (0, 1).
    """
    names = tuple(system.name for system in systems)
    if len(systems) < 2 or len(set(names)) != len(names):
        raise ValueError(f"two or more systems of different names are needed, not {', '.join(names)}")
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence must lie between 0 and 1, not {confidence}")
    # Do this first, so that a copied log does not count as a repeat in any mean.
    systems = _with_marked_copies(systems)
    groups_by_row, lonely = _aligned([_groups(system) for system in systems])
    references = [_published_counterparts(system, systems, reference) if judge else {} for system in systems]
    rows: list[ComparedMetric] = []
    for benchmark, groups in groups_by_row:
        judged_by = [results.get(benchmark) for results in references]
        rows += _compared_metrics(benchmark, groups, judged_by, confidence)
    return SystemComparison(
        systems=names,
        confidence=confidence,
        method=(
            f"mean over repeats; {confidence:.0%} intervals: Student's t of a mean, Welch's t on the "
            "logarithm of a ratio; none with fewer than two repeats"
        ),
        rows=tuple(rows),
        counted=tuple(_counted(systems)),
        left_out=tuple(_left_out(systems)),
        unmatched=tuple(lonely),
    )


def _compared_metrics(
    benchmark: str,
    groups: Sequence[_Group],
    judged_by: Sequence[PublishedResult | None],
    confidence: float,
) -> Iterable[ComparedMetric]:
    """Yield one row for each metric of a benchmark for which at least one system has a value."""
    for kind, metric in _metrics(groups):
        cells, direction = _cells(groups, kind, metric, judged_by, confidence)
        unit = next((cell.unit for cell in cells if cell.value is not None), None)
        if unit is None:
            continue
        obstacle, note = _batch_obstacle(groups, cells) if kind == "throughput" else ("", "")
        yield ComparedMetric(
            benchmark=benchmark,
            point=_shared_point(groups),
            kind=kind,
            metric=metric,
            unit=unit,
            direction=None if kind == "epochs" else direction,
            cells=cells,
            ratios=_ratios(cells, kind, direction, confidence, obstacle),
            notes=(note,) if note else (),
        )


def _cells(
    groups: Sequence[_Group],
    kind: Kind,
    metric: str,
    judged_by: Sequence[PublishedResult | None],
    confidence: float,
) -> tuple[tuple[ComparisonCell, ...], Direction | None]:
    """Return a cell per group, and the direction of their metric."""
    pairs = zip(groups, judged_by, strict=True)
    cells = [_cell(group, kind, metric, result, confidence) for group, result in pairs]
    # A system without the metric states no direction, so the first stated direction applies to all.
    direction = next((direction for _, direction in cells if direction is not None), None)
    return tuple(cell for cell, _ in cells), direction


def _ratios(
    cells: Sequence[ComparisonCell], kind: Kind, direction: Direction | None, confidence: float, obstacle: str
) -> tuple[Ratio, ...]:
    base, *other_cells = cells
    return tuple(_ratio(cell, base, kind, direction, confidence, obstacle) for cell in other_cells)


def _with_marked_copies(systems: Sequence[System]) -> list[System]:
    """Return the systems, with a finding on each run with a log that is a copy of an earlier run's log.

    A copy has the same bytes. Two runs would log different times, so a copy proves nothing.
    """
    places: dict[str, str] = {}
    marked = []
    for system in systems:
        runs = tuple(_marked_copy(run, system.name, places) for run in system.runs)
        marked.append(system.model_copy(update={"runs": runs}))
    return marked


def _marked_copy(run: Run, system: str, places: dict[str, str]) -> Run:
    """Return a run, with a finding if one of its logs is in ``places``. Add its logs to ``places``.

    ``places`` maps the checksum of a log to the place where it was first read.
    """
    # Look up earlier runs before this run's logs are added. Otherwise, these would be copies of themselves.
    # All empty logs are equal, so they do not show that a run was copied.
    logs = [log for log in run.logs if log.size_bytes]
    originals = {places[log.sha256] for log in logs if log.sha256 in places}
    for log in logs:
        name = _log_name(run) if log is run.logs[0] else log.path
        places.setdefault(log.sha256, f"{name or run.run_id} ({system})")
    if not originals or any(finding.code == "duplicate_log" for finding in run.findings):
        return run
    message = f"byte for byte the same log as {', '.join(sorted(originals))}: a copy proves nothing"
    copied = Finding(code="duplicate_log", message=message[:4000], verdict=Verdict.UNPROVEN)
    return run.model_copy(update={"findings": (*run.findings, copied)})


def _shared_point(groups: Sequence[_Group]) -> str:
    """Return the point of the runs, or else of the published results, or "" if there are several."""
    points = {group.point for group in groups if group.published is None}
    points = points or {group.point for group in groups}
    return _point_text(points.pop()) if len(points) == 1 else ""


def _published_counterparts(
    system: System, systems: Sequence[System], reference_name: str | None
) -> dict[str, PublishedResult]:
    """Return the published results to judge a system's cells against, by benchmark.

    There are none for a system that is itself published.
    """
    if system.published:
        return {}
    # A publication may be named with the same prefix as on the command line.
    name = reference_name.removeprefix(PUBLISHED) if reference_name else published_system(system.name)
    results = _results_beside(systems) if name is None else _results_of_round(name)
    return {canonical_benchmark(result.benchmark): result for result in results}


def _results_beside(systems: Sequence[System]) -> Sequence[PublishedResult]:
    """Return the results of the first published system that is part of the comparison."""
    for system in systems:
        # A study used other hardware. Its rows are for comparison, and no cell is judged against them.
        results = [result for result in system.published if not result.point]
        if results:
            return results
    return ()


def _results_of_round(name: str) -> Sequence[PublishedResult]:
    all_results = find_published(round="0.6")
    results = [result for result in all_results if plain_name(result.system) == plain_name(name)]
    if not results:
        names = sorted({result.system for result in all_results})
        raise ValueError(f"no published system {name}; round 0.6 has {', '.join(names)}")
    return results


def _log_name(run: Run) -> str:
    """Return the path of a run's first log, or "" without one.

    For an imported log, this is the path from which it was imported.
    """
    if run.provenance == "imported" and run.description.startswith(IMPORTED_FROM):
        return run.description.removeprefix(IMPORTED_FROM)
    return run.logs[0].path if run.logs else ""


def _counted(systems: Sequence[System]) -> Iterable[Counted]:
    for system in systems:
        for run in system.runs:
            if exclusion_reason(run) is None:
                yield _counted_run(system.name, run)


def _counted_run(system: str, run: Run) -> Counted:
    """Return the row of a run that counts, with its throughput, minutes and epochs."""
    throughput = _representative(run, _throughput_name(_Group(runs=(run,))))
    minutes, epochs, wall = (_representative(run, name) for name in (MINUTES, EPOCHS, "wall_time"))
    speed = minutes or throughput
    return Counted(
        system=system,
        run_id=run.run_id,
        benchmark=canonical_benchmark(run.benchmark),
        point=_point_text(_point(run)),
        log=_log_name(run),
        verdict=run.verdict,
        throughput=_value(throughput),
        throughput_unit=throughput.unit if throughput else "",
        minutes=_value(minutes),
        epochs=_value(epochs),
        wall_minutes=wall.value / 60 if wall else None,
        source=speed.source if speed else Source(),
    )


def _value(measurement: Measurement | None) -> float | None:
    return measurement.value if measurement else None


def _left_out(systems: Sequence[System]) -> Iterable[LeftOut]:
    """Yield each run that does not count, with the reason."""
    for system in systems:
        for run in system.runs:
            why = exclusion_reason(run)
            if why is not None:
                verdict, reason, source = why
                yield LeftOut(
                    system=system.name,
                    run_id=run.run_id,
                    benchmark=canonical_benchmark(run.benchmark),
                    log=_log_name(run),
                    verdict=verdict,
                    reason=reason,
                    source=source,
                )
