"""Systems side by side: throughput, minutes and epochs to target of every benchmark, over repeats.

Several runs of one benchmark at one point are repeats; a cell is their mean. A run that shows a failure,
or does not show that it ended well, never enters a mean; it is listed with its reason and line.

A published result is a system, too: one number per benchmark, and nothing is known of its repeats.
Where a system has a published counterpart, each of its cells is judged against it (by
:mod:`rackproof.core.judging`, as everything).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
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
from rackproof.analysis.intervals import mean_half_width, ratio_half_width
from rackproof.analysis.mlperf.published import PublishedResult, find_published
from rackproof.analysis.representative import pick_representative
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

Kind = Literal["throughput", "minutes", "epochs", "other"]
Conclusion = Literal[
    "better", "worse", "no difference shown", "no interval", "not comparable", "differs", "no ratio"
]

MINUTES, EPOCHS = "time_to_train", "epochs"

# A count of these per second means nothing without their size. (maskrcnn's "iterations" are images.)
_PER_BATCH = ("batches", "steps")
_TOLERANCE, _CEILING = 0.07, 0.3


class System(Record):
    """What is compared: a name with the runs made on it, or with its published results."""

    name: str
    runs: tuple[Run, ...] = ()
    published: tuple[PublishedResult, ...] = ()
    single_run: bool = False
    """Named as one run, not as a system."""


class Cell(Record):
    """One metric of one benchmark on one system.

    ``value`` is the mean of ``values`` (one per run), ``None`` where nothing counts; ``low`` and ``high``
    bound it with the comparison's confidence, ``None`` for fewer than two repeats. ``expected`` is the
    difference, as a fraction, that this mean may have from a published one by luck alone: for minutes
    the time from one evaluation to the next, over the root of the number of runs. ``published`` cells
    are means of which the number of runs is not stated.
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
    """A system's mean over that of the first system, with its interval and what may be concluded.

    ``better``, ``worse`` and ``differs`` are concluded only where the interval leaves out 1.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    conclusion: Conclusion
    reason: str = ""


class ComparedMetric(Record):
    """One row: ``cells`` in the order of the systems, ``ratios`` of all but the first."""

    benchmark: str
    point: str = ""
    kind: Kind
    metric: str
    unit: str
    direction: Direction | None
    cells: tuple[Cell, ...]
    ratios: tuple[Ratio, ...]
    notes: tuple[str, ...] = ()


class Counted(Record):
    """A run that enters a mean, with what the log shows."""

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
    """From the run script's RESULT line: with start-up, and for minigo with the games after training."""
    source: Source = Source()


class LeftOut(Record):
    """A run that enters no mean, and why."""

    system: str
    run_id: str
    benchmark: str
    log: str
    verdict: Verdict
    reason: str
    source: Source = Source()


class SystemComparison(Record):
    """The whole comparison."""

    systems: tuple[str, ...]
    confidence: float = Field(gt=0, lt=1)
    method: str
    rows: tuple[ComparedMetric, ...]
    counted: tuple[Counted, ...]
    left_out: tuple[LeftOut, ...]
    unmatched: tuple[str, ...]
    """Benchmarks that not every system has, in words."""

    @property
    def judgements(self) -> tuple[Judgement, ...]:
        """Every cell's judgement."""
        return tuple(cell.judgement for row in self.rows for cell in row.cells if cell.judgement is not None)


def exclusion_reason(run: Run) -> tuple[Verdict, str, Source] | None:
    """Say why a run must not enter a mean: verdict, reason, place; ``None`` where it may.

    What counts is what the logs show, what was found beside them, and bounds of quality (accuracy, wrong
    values). A run that is only slower than its reference counts: leaving it out would flatter the system.
    """
    # The log's own text last: what it found first is the cause, "no run_stop" only the consequence.
    grave = [one for one in run.findings if one.verdict is not None and one.verdict.gates]
    if grave:
        first = min(grave, key=lambda one: (one.verdict is not Verdict.FAIL, one.consequence))
        return first.verdict or Verdict.UNPROVEN, first.message, first.source
    for log in run.logs:
        if log.verdict.gates:
            return log.verdict, "the log does not show a run that ended well", Source(file=log.path)
    for one in run.judgements:
        if one.gating and one.verdict is Verdict.FAIL and _is_bound(one.reference):
            return one.verdict, f"{one.metric}: {one.reason}", one.source
    if run.exit_status:
        return Verdict.FAIL, f"the job ended with status {run.exit_status}", Source()
    if not run.logs and run.verdict.gates:
        return run.verdict, run.reasons[0] if run.reasons else "the record gives no reason", Source()
    return None


def _is_bound(reference: Reference | None) -> bool:
    """Whether it is a definition's fixed bound (an accuracy to reach), not a speed with tolerance."""
    return reference is not None and reference.warn is None and 0 in (reference.low, reference.high)


_Point = tuple[tuple[str, str], ...]


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
    """Return the groups of a system by benchmark; what does not count only as a number."""
    found: dict[str, dict[_Point, list[Run]]] = {}
    for run in system.runs:
        found.setdefault(canonical_benchmark(run.benchmark), {}).setdefault(_point(run), []).append(run)
    groups: dict[str, list[_Group]] = {}
    for benchmark, points in found.items():
        for point, runs in points.items():
            good = tuple(run for run in runs if exclusion_reason(run) is None)
            lost = len(runs) - len(good)
            groups.setdefault(benchmark, []).append(_Group(point=point, runs=good, left_out=lost))
        # A log cut off before it states its batch size is a lost run of the only point there is.
        kept = [one for one in groups[benchmark] if one.runs]
        if len(kept) <= 1:
            lost = sum(one.left_out for one in groups[benchmark])
            groups[benchmark] = [(kept or groups[benchmark])[0].model_copy(update={"left_out": lost})]
    for result in system.published:
        point = tuple(sorted(result.point.items()))
        groups.setdefault(canonical_benchmark(result.benchmark), []).append(
            _Group(point=point, published=result)
        )
    return groups


def _aligned(
    systems: Sequence[Mapping[str, list[_Group]]],
) -> tuple[list[tuple[str, list[_Group]]], list[str]]:
    """Return rows of groups, one per system, and what has no counterpart."""
    rows: list[tuple[str, list[_Group]]] = []
    lonely: list[str] = []
    for benchmark in dict.fromkeys(name for groups in systems for name in groups):
        of_each = [groups.get(benchmark, []) for groups in systems]
        if not all(of_each):
            lonely.append(benchmark)
        elif all(len(groups) == 1 and not _of_study(groups[0]) for groups in of_each):
            rows.append((benchmark, [groups[0] for groups in of_each]))
        else:
            first, *others = of_each
            for group in first:
                same = [_counterparts(group, groups) for groups in others]
                if all(len(found) == 1 for found in same):
                    rows.append((benchmark, [group, *(found[0] for found in same)]))
                else:
                    lonely.append(f"{benchmark} {_point_text(group.point)}".strip())
    return rows, lonely


def _of_study(group: _Group) -> bool:
    """Whether a group is a row of a published study, which names only some of the parameters."""
    return group.published is not None and bool(group.published.point)


def _counterparts(group: _Group, groups: Sequence[_Group]) -> list[_Group]:
    """Return the groups that a group is to be compared with: one, none, or several that fit alike.

    A study's row fits every point that has its parameters; of several rows the most particular does.
    """
    equal = [one for one in groups if one.point == group.point]
    if equal:
        return equal[:1]
    mine = dict(group.point).items()
    if _of_study(group):
        return [one for one in groups if not _of_study(one) and mine <= dict(one.point).items()]
    fitting = [one for one in groups if _of_study(one) and dict(one.point).items() <= mine]
    most = max((len(one.point) for one in fitting), default=0)
    return [one for one in fitting if len(one.point) == most]


def _values(group: _Group, metric: str) -> tuple[tuple[float, ...], str, Direction | None]:
    """Return a metric of each run that has it, its unit and direction; a value that is no number is left."""
    found = [one for run in group.runs if (one := _representative(run, metric)) is not None and one.finite]
    if not found:
        return (), "", None
    unit = found[0].unit
    return tuple(one.value for one in found if one.unit == unit), unit, found[0].direction


def _representative(run: Run, metric: str) -> Measurement | None:
    """Return the one measurement of a name: of several GPUs the worst, of several sizes the largest."""
    found = [one for one in run.measurements if one.name == metric]
    return pick_representative(found) if found else None


def _throughput_name(group: _Group) -> str:
    names = {one.name for run in group.runs for one in run.measurements}
    return next((name for name in THROUGHPUT if name in names), "")


def _metrics(groups: Sequence[_Group]) -> list[tuple[Kind, str]]:
    """Return what is compared of a benchmark: a training's three numbers, else all that has a direction."""
    throughput = next((name for name in map(_throughput_name, groups) if name), "")
    if not throughput and any(map(_of_study, groups)):
        throughput = "throughput"
    names = [{one.name for run in group.runs for one in run.measurements} for group in groups if group.runs]
    wanted: list[tuple[Kind, str]] = []
    if throughput or any(MINUTES in one for one in names) or any(group.published for group in groups):
        wanted = [("throughput", throughput), ("minutes", MINUTES), ("epochs", EPOCHS)]
        return [(kind, name) for kind, name in wanted if name]
    measured = (one for group in groups for run in group.runs for one in run.measurements)
    directed = dict.fromkeys(one.name for one in measured if one.direction is not None)
    return [("other", name) for name in directed if all(name in one for one in names)]


def _expected(group: _Group, kind: Kind) -> float | None:
    """Return how far a mean of so many runs may lie from a published one by luck, as a fraction.

    A run ends at an evaluation, so it takes one evaluation's time more or less by luck alone.
    """
    if kind != "minutes":
        return None
    steps = []
    for run in group.runs:
        minutes, epochs = _representative(run, MINUTES), _representative(run, EPOCHS)
        if minutes is None or not minutes.finite or minutes.value <= 0:
            continue
        seconds = minutes.value * 60
        times = next((one.x for one in run.series if one.name.startswith("eval_accuracy")), ())
        inside = [time for time in times if 0 < time <= seconds + 60]
        if len(inside) >= 2 and len(inside) == len(times):
            steps.append((inside[-1] - inside[-2]) / seconds)
        elif epochs is not None and epochs.finite and epochs.value >= 1:
            # minigo plays its evaluations after training: there an iteration is the step.
            steps.append(1 / epochs.value)
    return fmean(steps) / math.sqrt(len(steps)) if steps else None


def _published_value(result: PublishedResult, kind: Kind) -> tuple[float | None, str, Direction | None]:
    if kind == "minutes":
        return result.minutes, "min", Direction.LOWER
    if kind == "throughput":
        return result.throughput, result.throughput_unit, Direction.HIGHER
    return None, "", None


def _cell(
    group: _Group, kind: Kind, metric: str, reference: PublishedResult | None, confidence: float
) -> tuple[Cell, Direction | None]:
    if group.published is not None:
        value, unit, direction = _published_value(group.published, kind)
        return Cell(
            values=() if value is None else (value,), value=value, unit=unit, published=True
        ), direction
    values, unit, direction = _values(group, metric)
    if not values:
        return Cell(left_out=group.left_out), direction
    mean, half = fmean(values), mean_half_width(values, confidence)
    expected = _expected(group, kind)
    cell = Cell(
        values=values,
        value=mean,
        unit=unit,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
        left_out=group.left_out,
        expected=expected,
        judgement=_judged(mean, unit, metric, direction, kind, reference, expected, group),
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
    """Judge a cell against its published counterpart; minutes within bounds as wide as luck makes them."""
    if result is None or kind not in ("throughput", "minutes"):
        return None
    count = f"{len(group.runs)} run{'s' * (len(group.runs) != 1)}"
    if kind == "minutes":
        reference = result.reference(
            "minutes",
            tolerance=max(_TOLERANCE, expected or 0),
            ceiling=max(_CEILING, expected or 0),
        )
        luck = f"; {count}, ±{expected:.1%} by when the target is met" if expected else f"; {count}"
    elif result.throughput is not None:
        # More batches may only be smaller ones: where their size is not stated, more is no better.
        unstated = result.global_batch_size is None and _is_per_batch(unit)
        reference = result.reference("throughput", ceiling=_TOLERANCE if unstated else _CEILING)
        luck = f"; {count}" + "; the size of its batches is not stated" * unstated
    else:
        return None
    reference = reference.model_copy(update={"source": reference.source + luck})
    measured = Measurement(name=metric, value=mean, unit=unit, direction=direction)
    return judge(measured, reference, gating=False)


def _ratio(
    cell: Cell, base: Cell, kind: Kind, direction: Direction | None, confidence: float, obstacle: str
) -> Ratio:
    if cell.value is None or base.value is None or cell.value <= 0 or base.value <= 0:
        missing = "one side has no value" if None in (cell.value, base.value) else "a value is not positive"
        return Ratio(conclusion="no ratio", reason=missing)
    if cell.unit != base.unit:
        reason = f"{base.unit or 'no unit'} against {cell.unit or 'no unit'}"
        return Ratio(conclusion="not comparable", reason=reason)
    value = cell.value / base.value
    half = None
    if not (cell.published or base.published) and min(cell.values + base.values) > 0:
        half = ratio_half_width(cell.values, base.values, confidence)
    # Repeats that are equal to the last digit are counts or copies: they show nothing of the spread.
    if not half:
        return Ratio(
            value=value,
            conclusion="not comparable" if obstacle else "no interval",
            reason=obstacle or _why_no_interval(cell, base),
        )
    # On the logarithm, so that the interval of the inverse is the inverse of the interval.
    low, high = value * math.exp(-half), value * math.exp(half)
    conclusion: Conclusion = "no difference shown"
    if obstacle:
        conclusion = "not comparable"
    elif low > 1 or high < 1:
        up = low > 1
        if kind == "epochs" or direction is None:
            conclusion = "differs"
        else:
            conclusion = "better" if up == (direction is Direction.HIGHER) else "worse"
    return Ratio(value=value, low=low, high=high, conclusion=conclusion, reason=obstacle)


def _why_no_interval(cell: Cell, base: Cell) -> str:
    if cell.published or base.published:
        return "a published mean states no repeats"
    if min(len(base.values), len(cell.values)) > 1:
        return "all repeats are equal: their spread is not known"
    counts = f"{len(base.values)} and {len(cell.values)} runs"
    return f"{counts}; two of each are needed"


def _is_per_batch(unit: str) -> bool:
    return unit.split("/")[0] in _PER_BATCH


def _batch_obstacle(groups: Sequence[_Group], cells: Sequence[Cell]) -> tuple[str, str]:
    """Say why counts of batches cannot be compared, and what they come to in equal units."""
    sizes = [dict(group.point).get("batch_size") if group.runs else None for group in groups]
    known = [size for size in sizes if size is not None]
    per_batch = any(_is_per_batch(cell.unit) for cell in cells)
    if per_batch and any(one.published and one.published.global_batch_size is None for one in groups):
        return "the size of the published batches is not stated", ""
    if len(set(known)) < 2:
        return "", ""
    texts = " and ".join(f"{int(size):,}" if size.isdigit() else size for size in known)
    if not per_batch:
        return "", f"global batch sizes {texts}"
    equal = [
        f"{cell.value * int(size):,.0f}"
        for cell, size in zip(cells, sizes, strict=True)
        if cell.value is not None and size is not None and size.isdigit()
    ]
    note = f"global batch sizes {texts}; times the rate: {' and '.join(equal)} per second"
    return f"batches of different size ({texts})", note


def systems_of(runs: Iterable[Run]) -> tuple[System, ...]:
    """Group runs by the nodes they ran on (else were to run on): every set of nodes is a system."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        nodes = sorted(node.name for node in run.nodes) or sorted(run.asked_nodes)
        groups.setdefault(", ".join(nodes) or "no node", []).append(run)
    return tuple(System(name=name, runs=tuple(group)) for name, group in groups.items())


def compare_systems(
    systems: Sequence[System], *, reference: str | None = None, judge: bool = True, confidence: float = 0.95
) -> SystemComparison:
    """Compare systems, each with the first.

    Benchmarks are matched by name and, where a system has several points of one, by point. The interval
    of a ratio is Welch's on the logarithm (:func:`rackproof.analysis.intervals.ratio_half_width`); that of
    a mean is Student's.

    Args:
        systems: Two or more, with different names.
        reference: The published system of round 0.6 that every cell is judged against; by default, of
            each system the one that its name means, else the published one in the comparison.
        judge: Whether cells are judged against published systems at all.
        confidence: Probability that an interval is to hold.

    Raises:
        ValueError: Fewer than two systems, equal names, an unknown reference, or a confidence outside
            (0, 1).
    """
    names = tuple(system.name for system in systems)
    if len(systems) < 2 or len(set(names)) != len(names):
        raise ValueError(f"two or more systems of different names are needed, not {', '.join(names)}")
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence must lie between 0 and 1, not {confidence}")
    systems = _without_copies(systems)
    rows, lonely = _aligned([_groups(system) for system in systems])
    references = [_references(system, systems, reference) if judge else {} for system in systems]
    compared = []
    for benchmark, groups in rows:
        for kind, metric in _metrics(groups):
            made = [
                _cell(group, kind, metric, known.get(benchmark), confidence)
                for group, known in zip(groups, references, strict=True)
            ]
            cells = tuple(cell for cell, _ in made)
            if all(cell.value is None for cell in cells):
                continue
            direction = next((one for _, one in made if one is not None), None)
            obstacle, note = _batch_obstacle(groups, cells) if kind == "throughput" else ("", "")
            base, *others = cells
            compared.append(
                ComparedMetric(
                    benchmark=benchmark,
                    point=_shared_point(groups),
                    kind=kind,
                    metric=metric,
                    unit=next(cell.unit for cell in cells if cell.value is not None),
                    direction=None if kind == "epochs" else direction,
                    cells=cells,
                    ratios=tuple(
                        _ratio(cell, base, kind, direction, confidence, obstacle) for cell in others
                    ),
                    notes=(note,) if note else (),
                )
            )
    return SystemComparison(
        systems=names,
        confidence=confidence,
        method=(
            f"mean over repeats; {confidence:.0%} intervals: Student's t of a mean, Welch's t on the "
            "logarithm of a ratio; none with fewer than two repeats"
        ),
        rows=tuple(compared),
        counted=tuple(_counted(systems)),
        left_out=tuple(_left_out(systems)),
        unmatched=tuple(lonely),
    )


def _without_copies(systems: Sequence[System]) -> list[System]:
    """Mark logs that an earlier run of any system has byte for byte: two systems never write the same."""
    seen: dict[str, str] = {}
    marked = []
    for system in systems:
        runs = []
        for run in system.runs:
            place = f"{_log_name(run) or run.run_id} ({system.name})"
            others = {other for log in run.logs if (other := seen.get(log.sha256)) is not None}
            for log in run.logs:
                seen.setdefault(log.sha256, place)
            if others and not any(one.code == "duplicate_log" for one in run.findings):
                message = f"byte for byte the same log as {', '.join(sorted(others))}: a copy proves nothing"
                copied = Finding(code="duplicate_log", message=message[:4000], verdict=Verdict.UNPROVEN)
                run = run.model_copy(update={"findings": (*run.findings, copied)})
            runs.append(run)
        marked.append(system.model_copy(update={"runs": tuple(runs)}))
    return marked


def _shared_point(groups: Sequence[_Group]) -> str:
    points = {group.point for group in groups if group.published is None}
    points = points or {group.point for group in groups}
    return _point_text(points.pop()) if len(points) == 1 else ""


def _references(system: System, systems: Sequence[System], wanted: str | None) -> dict[str, PublishedResult]:
    """Return the published results to judge a system's cells by, by benchmark."""
    if system.published:
        return {}
    # A study's hardware is another one: its rows are for comparing, and nothing is judged by them.
    beside = [found for one in systems if (found := [row for row in one.published if not row.point])]
    # The command's way to name a publication is understood here, too.
    name = wanted.removeprefix(PUBLISHED) if wanted else published_system(system.name)
    results: Iterable[PublishedResult] = beside[0] if beside else ()
    if name is not None:
        results = [one for one in find_published(round="0.6") if plain_name(one.system) == plain_name(name)]
        if not results:
            known = sorted({one.system for one in find_published(round="0.6")})
            raise ValueError(f"no published system {name}; round 0.6 has {', '.join(known)}")
    return {canonical_benchmark(one.benchmark): one for one in results}


def _log_name(run: Run) -> str:
    """Return where a run's log was read: an imported one at its old place."""
    if run.provenance == "imported" and run.description.startswith(IMPORTED_FROM):
        return run.description.removeprefix(IMPORTED_FROM)
    return run.logs[0].path if run.logs else ""


def _counted(systems: Sequence[System]) -> Iterable[Counted]:
    for system in systems:
        for run in system.runs:
            if exclusion_reason(run) is not None:
                continue
            throughput = _representative(run, _throughput_name(_Group(runs=(run,))))
            minutes, epochs, wall = (_representative(run, name) for name in (MINUTES, EPOCHS, "wall_time"))
            yield Counted(
                system=system.name,
                run_id=run.run_id,
                benchmark=canonical_benchmark(run.benchmark),
                point=_point_text(_point(run)),
                log=_log_name(run),
                verdict=run.verdict,
                throughput=throughput.value if throughput else None,
                throughput_unit=throughput.unit if throughput else "",
                minutes=minutes.value if minutes else None,
                epochs=epochs.value if epochs else None,
                wall_minutes=wall.value / 60 if wall else None,
                source=minutes.source if minutes else throughput.source if throughput else Source(),
            )


def _left_out(systems: Sequence[System]) -> Iterable[LeftOut]:
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
