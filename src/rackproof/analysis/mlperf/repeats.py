"""Check that the runs of one scored result are distinct and plausible, and did not overlap.

Compliance is checked log by log, so ten copies of one run comply as well as ten runs. This module
compares facts that a copy with other dates would still share, which are seeds, measured values and intervals
between events. It also compares speeds, nodes, systems and hyperparameters. The bounds come from the
published logs of rounds 2.1, 4.1, 5.0 and 5.1 (6,500 logs of 728 results). Except for one copy, all of these
are within the bounds. The speeds of 2,185 results of rounds 0.6 to 5.1 are plausible, except for one of bert
(1.1) and one of maskrcnn (2.0).

:mod:`.worker` reads each log with :func:`trace_of_events`, and compares the runs with :func:`compare_runs`.
Begin with :func:`compare_runs`. The worker also calls :func:`date_findings` and
:func:`undescribed_findings`. All findings are ``unproven`` or remarks.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import statistics
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

from rackproof.analysis.mlperf.described import DescribedSystem, description_findings, printed_findings
from rackproof.analysis.mlperf.hyperparameters import (
    HYPERPARAMETERS_SINCE,
    Hyperparameters,
    hyperparameters_of,
    other_hyperparameters,
)
from rackproof.analysis.mlperf.published import find_published
from rackproof.core.records import Finding, Source, Verdict
from rackproof.core.text import amount
from rackproof.core.training_limits import (
    PROGRESS_KEYS,
    RunTimes,
    beside_stated,
    faster_than_itself,
    fastest_published,
    gpus_of_log,
    impossible_speeds,
    lacks_gpu,
    samples_trained,
    trained_benchmark,
)

SAME_TIMES = 0.8
"""Smallest share of equal event times that shows a copy. Two different runs share at most 0.62 (unet3d on a
TPU; since round 2.1, 0.45)."""
SAME_VALUES = 0.5
"""Smallest share of equal measured values that shows a copy. Two different runs share at most 0.31 (unet3d,
whose statistics have few digits)."""
FASTER_THAN_REPEATS = 1.5
"""Largest ratio of a run's samples per second to the median of all. In published results, it is at most
1.33."""
FASTER_THAN_PUBLISHED = 3.0
"""Largest plausible ratio of the benchmark's shortest published time, on any system, to a run's time."""
SEEDS_SINCE = (4, 0)
"""First round (4.0) in which all runs must log seeds.

All 532 published results of 4.1 to 5.1 log seeds. Of the earlier results, 6 % (3.0), 13 % (2.1) and a third
(0.7) log none.
"""
OWN_SEEDS_SINCE = (1, 0)
"""First round (1.0) in which the package checker refuses a seed that two runs share. In round 0.7, minigo was
published with the seed 0 in several runs."""
EARLY_S = 1.0
"""Largest difference between the clocks of ranks, in seconds."""
_YEAR, _CLOCK_SLACK = timedelta(days=366), timedelta(days=1)
"""Largest age of a run of a new round, and the largest time by which a clock may be ahead."""
_FEWEST_TIMES, _FEWEST_VALUES, _FEWEST_EVALUATIONS = 5, 3, 2
"""Smallest numbers of equal times, values and evaluations in two logs that chance does not explain."""
_DIGITS, _MANY_DIGITS = 5, 8
"""Smallest numbers of digits of equal numbers that chance does not explain. The first is for several numbers,
the second for one."""
_MOST_TIMES, _MOST_VALUES = 120, 20_000
"""Largest numbers of times and of values of a run that are compared. The first of each are used."""
_EVALUATIONS = frozenset({"eval_accuracy", "eval_error"})
# Events of a log that must be equal in all runs of a result.
_SYSTEM = ("submission_platform", "submission_org", "submission_division", "submission_status")
_COURSE = frozenset({"block_start", "block_stop", "epoch_start", "epoch_stop", "eval_start", "eval_stop"})
"""Events of a training in progress. Like evaluations, they must not be before run_start."""


@dataclass
class RunTrace:
    """The course of a run, read from its log.

    Times are in seconds since 1970.

    Attributes:
        file: The name of the log.
        benchmark: The benchmark's name in the log.
        start: The time of the first run_start.
        stop: The time of the first run_stop.
        seeds: All seeds, as text.
        times: The distinct times of the events from start to stop, at most :data:`_MOST_TIMES`.
        values: The values ``(key, name, value)`` measured during the run with enough digits to identify it.
            The name is the key in the logged value if that is an object, as in ``tracked_stats``, or else "".
            There are at most :data:`_MOST_VALUES`.
        neighbours: The pairs of successive evaluations, as ``(name, first, second)``, if both have enough
            digits to identify the run. Evaluations between them with fewer than five digits are skipped.
        course: The digest of all events from start to stop except seeds, with times relative to the start.
        amounts: The time and the progress of each evaluation that is later and further than the one before.
        amount_kind: The key of that progress, which counts samples, epochs or steps.
        early: The key of the training event that is furthest before the start, and how many seconds it is
            before. None if there is none.
        train_samples: The number of samples per epoch.
        throughput: The samples per second in the log.
        nodes: The names of nodes in the launcher's lines.
        node_count: The job's number of nodes from the run script, or else the number of listed nodes.
        stated_nodes: The job's number of nodes from the run script.
        system: The system, submitter, division and availability in the log.
        printed: The different descriptions of the system that run scripts printed into the log.
        settings: The values of each hyperparameter.
        scores: Whether the run counts as measured. A failed run counts as the slowest.

    Without a start, the fields from ``early`` on that need it are empty: ``early``, ``times``, ``values``,
    ``neighbours``, ``course`` and ``amounts``.
    """

    file: str
    benchmark: str = ""
    start: float | None = None
    stop: float | None = None
    seeds: set[str] = field(default_factory=set)
    times: tuple[float, ...] = ()
    values: frozenset[tuple[str, str, float]] = frozenset()
    neighbours: frozenset[tuple[str, float, float]] = frozenset()
    course: str = ""
    amounts: list[tuple[float, float]] = field(default_factory=list)
    amount_kind: str = ""
    early: tuple[str, float] | None = None
    train_samples: float | None = None
    throughput: float | None = None
    nodes: frozenset[str] = frozenset()
    node_count: int | None = None
    stated_nodes: int | None = None
    system: tuple[str, ...] = ()
    printed: tuple[Mapping[str, Any], ...] = ()
    settings: Hyperparameters = field(default_factory=dict)
    scores: bool = True

    @property
    def seconds(self) -> float:
        """Return the seconds from start to stop, or 0 if either is unknown."""
        return self.stop - self.start if self.start is not None and self.stop is not None else 0.0

    @property
    def platform(self) -> str:
        """Return the log's submission_platform, or ""."""
        return self.system[0] if self.system else ""

    @property
    def pace(self) -> float | None:
        """Return the progress per second of the whole run, in ``amount_kind``, or None if it is unknown."""
        return self.amounts[-1][1] / self.seconds if self.amounts and self.seconds > 0 else None


def trace_of_events(
    file: str, events: Iterable[tuple[float, str, Any, Mapping[str, Any]]], *, benchmark: str = ""
) -> RunTrace:
    """Return the trace of a run from its log's events.

    The caller adds what is not in events: throughput, nodes, printed descriptions and ``scores``.

    Args:
        file: The name of the log.
        events: The tuples ``(seconds since 1970, key, value, metadata)`` in the log's order.
        benchmark: The benchmark's name in the log.
    """
    all_events = list(events)
    trace = RunTrace(file, benchmark)
    # Use the first start and stop. The parser reports a second one.
    trace.start = next((time for time, key, _, _ in all_events if key == "run_start"), None)
    trace.stop = next((time for time, key, _, _ in all_events if key == "run_stop"), None)
    _take_statements(trace, all_events)
    if trace.start is None:
        return trace
    trace.early = _earliest_before(trace.start, all_events)
    end = math.inf if trace.stop is None else trace.stop
    within = [event for event in all_events if trace.start <= event[0] <= end]
    trace.times = tuple(sorted({time for time, _, _, _ in within})[:_MOST_TIMES])
    trace.values = frozenset(list(_measured(within))[:_MOST_VALUES])
    trace.neighbours = frozenset(_neighbours(within))
    course_text = "\n".join(sorted(_event_lines(within, trace.start)))
    trace.course = hashlib.sha256(course_text.encode("utf-8", "replace")).hexdigest()
    _take_amounts(trace, within)
    if not trace.amounts:
        # stable_diffusion evaluates its checkpoints after the run. The last one is the run's end.
        _take_amounts(trace, all_events)
    return trace


def _take_statements(trace: RunTrace, events: Sequence[tuple[float, str, Any, Mapping[str, Any]]]) -> None:
    """Record what a log states about its run as a whole, such as seeds, samples and submitter."""
    trace.seeds = {_seed_text(value) for _, key, value, _ in events if key == "seed" and value is not None}
    trace.train_samples = next((_float(value) for _, key, value, _ in events if key == "train_samples"), None)
    # Reverse the order, so that the first statement remains. Ranks only repeat it.
    stated = {key: str(value) for _, key, value, _ in reversed(events) if key in _SYSTEM}
    trace.system = tuple(stated.get(key, "") for key in _SYSTEM)
    trace.settings = hyperparameters_of(events)


def _earliest_before(
    start: float, events: Iterable[tuple[float, str, Any, Mapping[str, Any]]]
) -> tuple[str, float] | None:
    """Return the training event that is furthest before the start, and by how many seconds, or None."""
    early = [(start - time, key) for time, key, _, _ in events if key in _COURSE | _EVALUATIONS]
    seconds, key = max(early, default=(0.0, ""))
    return (key, seconds) if seconds > EARLY_S else None


def _measured(
    events: Iterable[tuple[float, str, Any, Mapping[str, Any]]],
) -> Iterator[tuple[str, str, float]]:
    """Yield ``(key, name, value)`` for each measured number with at least five significant digits."""
    for _, key, value, _ in events:
        if key in _EVALUATIONS or key == "tracked_stats":
            named = value.items() if isinstance(value, dict) else (("", value),)
            for name, number in named:
                if isinstance(number, float) and math.isfinite(number) and _digits(number) >= _DIGITS:
                    yield key, str(name), number


def _neighbours(
    events: Iterable[tuple[float, str, Any, Mapping[str, Any]]],
) -> Iterator[tuple[str, float, float]]:
    """Yield ``(name, first, second)`` for successive evaluations that two runs do not share by chance."""
    before: dict[str, float] = {}
    for _, name, value in _measured(event for event in events if event[1] in _EVALUATIONS):
        if _digits(value) < _MANY_DIGITS:
            before.pop(name, None)
            continue
        if name in before:
            yield name, before[name], value
        before[name] = value


def _digits(value: float) -> int:
    """Return the number of significant digits of a number.

    A number in single precision counts with the digits that it needs there. A log may have 24.13 in single
    precision as 24.1299991607666, which counts as four digits.
    """
    text = repr(abs(value))
    with contextlib.suppress(OverflowError):
        single = struct.unpack("f", struct.pack("f", value))[0]
        if single == value:
            short = (f"{abs(value):.{digits}g}" for digits in range(1, 10))
            text = next((candidate for candidate in short if _is_single(candidate, abs(single))), text)
    return len(text.split("e")[0].replace(".", "").strip("0"))


def _is_single(text: str, value: float) -> bool:
    """Return whether a number as text is the value in single precision."""
    return bool(struct.unpack("f", struct.pack("f", float(text)))[0] == value)


def _event_lines(events: Iterable[tuple[float, str, Any, Mapping[str, Any]]], start: float) -> Iterator[str]:
    """Yield a text for each event except seeds: milliseconds after the start, key and value."""
    for time, key, value, _ in events:
        if key != "seed":
            yield f"{round((time - start) * 1000)} {key} {value!r}"


def _take_amounts(trace: RunTrace, events: Iterable[tuple[float, str, Any, Mapping[str, Any]]]) -> None:
    """Record the progress at each evaluation that is later and further than the last recorded one."""
    for time, key, _, metadata in events:
        if key not in _EVALUATIONS:
            continue
        kind = next((name for name in PROGRESS_KEYS if _float(metadata.get(name)) is not None), "")
        progress = _float(metadata.get(kind)) if kind else None
        if progress is None or (trace.amount_kind and kind != trace.amount_kind):
            continue
        trace.amount_kind = kind
        if not trace.amounts or (time > trace.amounts[-1][0] and progress > trace.amounts[-1][1]):
            trace.amounts.append((time, progress))


def _float(value: Any) -> float | None:
    """Return a number, or a text with a number, as a finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _seed_text(value: Any) -> str:
    """Return a seed in a form in which 7, 7.0 and "7" are equal."""
    number = _float(value)
    return str(value).strip() if number is None else f"{number:.17g}"


# -- findings -----------------------------------------------------------------------------------------


def compare_runs(
    traces: Sequence[RunTrace], *, ruleset: str, usage: str, described: DescribedSystem | None = None
) -> list[Finding]:
    """Return evidence that there were fewer runs than claimed, or that runs are too fast or differ.

    Contradictions with the description are among the findings.

    Args:
        traces: The traces of all runs that the logs show, including failed runs.
        ruleset: The rules of the round.
        usage: Either ``training`` or ``hpc``.
        described: The system's description, if there is one. Without it, the GPUs that the logs state
            count.
    """
    gpus = (described.gpu, described.gpus) if described is not None else None
    findings = [*_seed_findings(traces, usage, _version(ruleset)), *_system_findings(traces)]
    findings += printed_findings(traces)
    if usage == "training" and _version(ruleset) >= HYPERPARAMETERS_SINCE:
        findings += _hyperparameter_findings(traces)
    findings += _node_count_findings(traces)
    findings += _statement_findings(traces)
    findings += _unknown_gpu_findings(traces, gpus)
    if described is not None:
        findings += description_findings(traces, described)
    scoring = [trace for trace in traces if trace.scores]
    for trace in scoring:
        findings += _speed_findings(trace, _version(ruleset), gpus or _stated_gpus(trace))
    findings += _pace_findings(scoring)
    for first_trace, second_trace in combinations(traces, 2):
        findings += _pair_findings(first_trace, second_trace)
    return findings


def _stated_gpus(trace: RunTrace) -> tuple[str, int] | None:
    """Return the model and the largest possible number of the GPUs that a log states, or None."""
    return gpus_of_log(trace.platform, next(iter(trace.printed), {}), trace.stated_nodes)


def undescribed_findings(traces: Sequence[RunTrace]) -> Iterator[Finding]:
    """Yield one remark with the accelerators that are assumed because no description states them."""
    first_trace = next(iter(traces), None)
    if first_trace is None:
        return
    named = _stated_gpus(first_trace)
    if named is None:
        assumption = "the log names no known one, so no speed was compared with the hardware"
    else:
        assumption = (
            f"the speeds were compared with those of at most {named[1]} {named[0]}, as the log states"
        )
    message = f"no systems/SYSTEM.json describes the accelerators: {assumption}"
    yield Finding(code="no_description", message=message, source=Source(file=first_trace.file))


def date_findings(
    traces: Iterable[RunTrace], period: tuple[datetime, datetime] | None, now: datetime
) -> Iterator[Finding]:
    """Yield a finding for each run that began neither in the last year nor in its round's period.

    Args:
        traces: The runs.
        period: The first and the last moment of the round's runs, or None if they are unknown.
        now: The current time.
    """
    spans = [(now - _YEAR, now + _CLOCK_SLACK), *([period] if period is not None else [])]
    for trace in traces:
        if trace.start is None or any(
            first.timestamp() <= trace.start <= last.timestamp() for first, last in spans
        ):
            continue
        try:
            day = f"on {datetime.fromtimestamp(trace.start, UTC):%Y-%m-%d}"
        except (ValueError, OverflowError, OSError):
            day = f"{trace.start:g} s after 1970"
        message = (
            f"the run began {day}, neither in the last year nor in the time of the round, so it is of "
            "another result, or its clock was wrong; name its round with --ruleset"
        )
        yield _unproven("another_time", message, trace.file)


def _version(ruleset: str) -> tuple[int, ...]:
    """Return a ruleset as numbers that can be compared: ``5.1.0`` is ``(5, 1, 0)``."""
    return tuple(int(part) for part in ruleset.split(".") if part.isdigit())


def _unproven(code: str, message: str, file: str) -> Finding:
    return Finding(code=code, verdict=Verdict.UNPROVEN, message=message, source=Source(file=file))


def _system_findings(traces: Sequence[RunTrace]) -> Iterator[Finding]:
    """Yield a finding for each run that states another system, submitter, division or availability than most.

    Of 947 published results of rounds 3.1 to 5.1, six mix two platforms or submitters, for example a
    placeholder and the real name.
    """
    usual = Counter(trace.system for trace in traces).most_common(1)
    for trace in traces:
        if trace.system != usual[0][0]:
            named = ", ".join(part for part in trace.system if part) or "no system"
            yield _unproven("systems_differ", f"states {named[:200]}, unlike the other runs", trace.file)


def _hyperparameter_findings(traces: Sequence[RunTrace]) -> Iterator[Finding]:
    """Yield a finding for each run with other hyperparameters than most, except in the open division."""
    closed = [trace for trace in traces if "open" not in trace.system[2:3]]
    benchmark = next((trace.benchmark for trace in closed if trace.benchmark), "")
    for file, message in other_hyperparameters(benchmark, [(trace.file, trace.settings) for trace in closed]):
        yield _unproven("hyperparameters_differ", message, file)


def _node_count_findings(traces: Sequence[RunTrace]) -> Iterator[Finding]:
    """Yield a finding for each run whose number of nodes differs from the number in most runs.

    If more than half of the runs state a number, a run without one has a finding, too. Of the published
    results, 408 state the number and 237 list the nodes. None of them mixes two numbers.
    """
    usual = next(
        iter(Counter(trace.node_count for trace in traces if trace.node_count).most_common(1)), (None,)
    )[0]
    # A run without a number may be the one that differs. In one published result, half of the runs state no
    # number.
    stated = sum(trace.node_count is not None for trace in traces)
    for trace in traces:
        if trace.node_count is None and 2 * stated <= len(traces):
            continue
        if usual is not None and trace.node_count != usual:
            message = f"ran on {trace.node_count} nodes, but the other runs ran on {usual}"
            if trace.node_count is None:
                message = f"states no number of nodes, but the other runs ran on {usual}"
            yield _unproven("nodes_differ", message, trace.file)


_STATED = {"throughput": "its throughput", "amount_kind": "how far each evaluation is into the training"}
"""Values that all runs of a result state, or none. None of 659 results of rounds 3.1 to 5.1 mixes these."""


def _statement_findings(traces: Sequence[RunTrace]) -> Iterator[Finding]:
    """Yield a finding for each run that lacks a statement of most logs, or has another ``amount_kind``."""
    for name, words in _STATED.items():
        silent = [trace for trace in traces if not getattr(trace, name)]
        if 2 * len(silent) < len(traces):
            for trace in silent:
                message = f"does not state {words}, but the other runs do: lines are missing"
                yield _unproven("course_incomplete", message, trace.file)
    kinds = Counter(trace.amount_kind for trace in traces if trace.amount_kind)
    usual = max(kinds, key=lambda kind: kinds[kind], default="")
    for trace in traces:
        if trace.amount_kind not in ("", usual):
            message = (
                f"states its progress as {trace.amount_kind}, and the other runs as {usual}: events differ"
            )
            yield _unproven("course_incomplete", message, trace.file)


def _seed_findings(traces: Sequence[RunTrace], usage: str, version: tuple[int, ...]) -> list[Finding]:
    """Return findings on runs without a seed or with another run's seed.

    The verdict depends on the round.
    """
    findings = []
    is_required = usage == "training" and version >= SEEDS_SINCE
    without = [trace.file for trace in traces if not trace.seeds]
    if without and (is_required or len(without) < len(traces)):
        message = f"no seed in {', '.join(without[:5])}: nothing shows that the runs are different"
        findings.append(_unproven("no_seed", message, without[0]))
    elif without:
        message = "the logs state no seeds: only their measurements show that the runs are different"
        findings.append(Finding(code="no_seed", message=message, source=Source(file=without[0])))
    if is_required:
        findings += _invalid_seed_findings(traces)
    verdict = Verdict.UNPROVEN if version >= OWN_SEEDS_SINCE else None
    for first, repeat in combinations(traces, 2):
        shared = first.seeds & repeat.seeds
        # Runs may log a seed for each of a thousand ranks. Two of these may be equal by chance.
        if shared and 2 * len(shared) >= min(len(first.seeds), len(repeat.seeds)):
            message = (
                f"{repeat.file} has the seed of {first.file} ({min(shared)[:40]}): nothing shows that it is "
                "another run"
            )
            source = Source(file=repeat.file)
            findings.append(Finding(code="same_seed", verdict=verdict, message=message, source=source))
    return findings


def _invalid_seed_findings(traces: Sequence[RunTrace]) -> Iterator[Finding]:
    """Yield a finding for each run with a seed that is not the whole number that the rules require."""
    for trace in traces:
        invalid = sorted(seed for seed in trace.seeds if not _is_whole(seed))
        if invalid:
            message = (
                f"the seed {invalid[0][:40]!r} is not a whole number: nothing shows that the run differs "
                "from the others"
            )
            yield _unproven("no_seed", message, trace.file)


def _is_whole(seed: str) -> bool:
    number = _float(seed)
    return number is not None and number.is_integer()


def _speed_findings(
    trace: RunTrace, version: tuple[int, ...], gpus: tuple[str, int] | None
) -> Iterator[Finding]:
    """Yield evidence that the time from run_start to run_stop is too short for the training."""
    if trace.early is not None:
        key, seconds = trace.early
        message = f"{key} is {seconds:.3f} s earlier than run_start: the duration is unknown"
        yield _unproven("training_before_run_start", message, trace.file)
    for message in _impossible_speeds(trace, version, gpus):
        yield _unproven("implausible_speed", message, trace.file)


def _impossible_speeds(
    trace: RunTrace, version: tuple[int, ...], gpus: tuple[str, int] | None
) -> Iterator[str]:
    """Yield a sentence for each contradiction of a run's speed with its GPUs, log or published results."""
    # The round decides which data set is meant, because logs of round 0.6 do not state it.
    benchmark = trained_benchmark(trace.benchmark, trace.train_samples, before_2_0=version < (2, 0))
    samples, seconds = _samples(trace, benchmark), trace.seconds
    trained = samples / seconds if samples and seconds > 0 else None
    yield from impossible_speeds(benchmark, gpus, (("trained", trained), ("states", trace.throughput)))
    if trace.start is None or trace.stop is None or seconds <= 0:
        return
    processes = gpus[1] if gpus else None
    run = RunTimes(benchmark, trace.start, trace.stop, samples, trace.throughput, processes)
    yield from beside_stated(run)
    yield from faster_than_itself(run, trace.amounts)
    fastest = _fastest_published(trace.benchmark)
    if fastest is not None and seconds / 60 * FASTER_THAN_PUBLISHED < fastest:
        yield f"the run took {seconds:.3f} s, and the fastest result ever published {fastest:g} min"


def _unknown_gpu_findings(traces: Sequence[RunTrace], gpus: tuple[str, int] | None) -> Iterator[Finding]:
    """Yield one remark if neither a peak nor a published result of the accelerator is known.

    The same applies if the description states no accelerators. The speeds are then not compared with the
    hardware. ``gpus`` is the model and the total number.
    """
    for trace in traces:
        if gpus is None or fastest_published(trace.benchmark, *gpus) is not None:
            continue
        if lacks_gpu(trace.benchmark, gpus[0]):
            message = (
                f"the peak of {gpus[0][:80]} is not known (training_limits.csv): it was not checked whether "
                f"{gpus[1]} of them can train {trace.benchmark} so fast"
                if gpus[1]
                else f"the description states no accelerators: it was not checked whether the "
                f"processors can train {trace.benchmark} so fast"
            )
            yield Finding(code="unknown_accelerator", message=message, source=Source(file=trace.file))
            return


def _samples(trace: RunTrace, benchmark: str) -> float | None:
    """Return the number of samples trained until the last evaluation, or None if it is unknown."""
    if not trace.amounts:
        return None
    return samples_trained(benchmark, trace.amount_kind, trace.amounts[-1][1], trace.train_samples)


def _fastest_published(benchmark: str) -> float | None:
    """Return the shortest official time of a benchmark in minutes, or None."""
    results = find_published(benchmark=benchmark, kind="official") if benchmark else ()
    return min((result.minutes for result in results if result.minutes is not None), default=None)


def _pace_findings(traces: Sequence[RunTrace]) -> Iterator[Finding]:
    """Yield a finding for each run that is much faster than the others, if there are at least three."""
    kinds = Counter(trace.amount_kind for trace in traces if trace.pace)
    for kind, count in kinds.items():
        if count >= 3:
            yield from _fast_runs([trace for trace in traces if trace.amount_kind == kind])


def _fast_runs(traces: Sequence[RunTrace]) -> Iterator[Finding]:
    """Yield a finding for each run that is much faster than the median. All have the same ``amount_kind``."""
    paces = {trace.file: trace.pace for trace in traces if trace.pace}
    middle = statistics.median(pace for pace in paces.values() if pace)
    for file, pace in paces.items():
        if pace and pace > FASTER_THAN_REPEATS * middle:
            message = (
                f"{pace / middle:.3g} times as fast as the median of the runs: that is not the same system"
            )
            yield _unproven("implausible_speed", message, file)


def _pair_findings(first: RunTrace, second: RunTrace) -> Iterator[Finding]:
    """Yield evidence that two logs are of the same run, or that two runs used one node at the same time."""
    same = _sameness(first, second)
    if same:
        message = f"{second.file} is a copy of {first.file}: {same}"
        yield _unproven("same_run", message, second.file)
        return
    nodes = first.nodes & second.nodes
    seconds = _overlap_s(first, second)
    if nodes and seconds > 0:
        message = f"{second.file} ran {seconds:.0f} s at the same time as {first.file} on {min(nodes)}"
        yield _unproven("overlapping_runs", message, second.file)


def _overlap_s(first: RunTrace, second: RunTrace) -> float:
    """Return the seconds that two runs share, or 0 or less if they share none or a time is unknown."""
    bounds = (first.start, second.start, first.stop, second.stop)
    if any(bound is None for bound in bounds):
        return 0.0
    starts, stops = (first.start or 0, second.start or 0), (first.stop or 0, second.stop or 0)
    return min(stops) - max(starts)


def _sameness(first: RunTrace, second: RunTrace) -> str:
    """Describe the events or values that two logs share although two runs cannot share them, or return ""."""
    if first.course and first.course == second.course:
        return "the same events at the same intervals"
    shared, possible = _shared_times(first.times, second.times)
    if shared >= _FEWEST_TIMES and shared >= SAME_TIMES * possible:
        return f"{shared} of {possible} events at the same intervals"
    common = first.values & second.values
    first_evaluations, second_evaluations = _unique_evaluations(first), _unique_evaluations(second)
    shared, possible = (
        len(first_evaluations & second_evaluations),
        min(len(first_evaluations), len(second_evaluations)),
    )
    if shared >= max(_FEWEST_EVALUATIONS, SAME_VALUES * possible):
        return f"{shared} of {possible} evaluations"
    if first.benchmark != "minigo" and (joint := len(first.neighbours & second.neighbours)):
        # A log may have been put together from parts of other logs.
        return f"{amount(joint, 'pair')} of successive evaluations"
    possible = min(len(first.values), len(second.values))
    is_evidence = len(common) >= _FEWEST_VALUES or any(
        _digits(value) >= _MANY_DIGITS for _, _, value in common
    )
    if possible and is_evidence and len(common) >= SAME_VALUES * possible:
        return f"{len(common)} of {possible} measured values"
    return ""


def _unique_evaluations(trace: RunTrace) -> set[float]:
    """Return the evaluations that two runs do not share by chance.

    There are none for minigo, whose evaluations are shares of a few games.
    """
    if trace.benchmark == "minigo":
        return set()
    return {value for key, _, value in trace.values if key in _EVALUATIONS and _digits(value) >= _MANY_DIGITS}


def _shared_times(first: Sequence[float], second: Sequence[float]) -> tuple[int, int]:
    """Return how many times of two logs coincide after the best shift of one log, and out of how many."""
    if not first or not second:
        return 0, 0
    shifts = Counter(
        round((first_time - second_time) * 1000) for first_time in first for second_time in second
    )
    return max(shifts.values()), min(len(first), len(second))
