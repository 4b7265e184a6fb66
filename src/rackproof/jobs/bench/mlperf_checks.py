"""Check a run of MLPerf Training against its rules, reference convergence, node placement and references.

:mod:`rackproof.jobs.bench.record` calls this module after each repeat, while the rack is still in use. The
input is the log of the launcher (run.sub) and the parsed logs. The output is findings and measurements.
:func:`score_repeats` scores all repeats of a result together, for the report of a plan. A ruleset has the
rules of one round, such as ``5.1.0``. A reference is the published convergence of MLCommons' own code, as the
mean number of samples for each global batch size.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rackproof.analysis.compare.naming import THROUGHPUT, canonical_benchmark, published_system
from rackproof.analysis.mlperf.published import PublishedResult, find_published
from rackproof.analysis.mlperf.rounds import reference_points
from rackproof.analysis.mlperf.score import FolderScore, score_folder
from rackproof.core.records import Finding, Measurement, ParsedLog, Reference, Verdict
from rackproof.core.text import amount, sanitize
from rackproof.jobs.bench.planning import PlannedRun, read_plan
from rackproof.jobs.bench.required_evidence import SlurmJob, slurm_lacks
from rackproof.logs import run_sub, run_sub06
from rackproof.logs._mlperf import EVALUATED_OFFLINE, TARGETS, TARGETS_06
from rackproof.store.run_folder import ResultsError

TOO_FAST = 0.75
"""Smallest credible number of samples of a run, as a share of the reference's mean.

The reference's own runs all need more than 0.85. `rackproof score` compares all repeats together.
"""
TIME_TOLERANCE, TIME_WARNING = 0.25, 0.12
"""Fractions by which one repeat may take longer than the published result without failing, and without being
degraded. The number of samples until convergence varies by more than a tenth."""
ONE_EVALUATION = 0.35
"""Fraction by which a time of round 0.6 may differ in either direction. A run may reach its target one
evaluation earlier or later, and an evaluation of transformer is a third of the run."""
CHECK_S = 120.0
"""Time limit for the check of one log in seconds."""
PREFLIGHT = "nccl_preflight_busbw"
"""Name of the measurement of the NCCL preflight, a test of the links before the training."""
PREFLIGHT_CODE = "nccl_preflight"
"""Code of a finding about the preflight itself."""
EVERYTHING: tuple[str, ...] = (
    "start_marker",
    "node_list",
    "ranks",
    "cache_clearing",
    "nccl_preflight",
    "seed",
    "submission_events",
)
"""Outputs of a run script. `lacks` of a definition names the outputs that its script omits by design."""
SUBMISSION_EVENTS = ("benchmark", "org", "division", "status", "platform")
"""Ends of the names of the events (`submission_…`) that the rules of every round require."""


class LauncherEvidence(NamedTuple):
    """The evidence about a run in the launcher's output. ``container_digest`` is "" if unknown."""

    findings: Sequence[Finding]
    measurements: Sequence[Measurement]
    container_digest: str
    slurm_start: datetime | None = None
    """Start of the Slurm job, or None if Slurm's record does not show it precisely, or has another name."""


class LauncherOutput:
    """The launcher's lines of the lead's log, collected in the same pass that parses the log.

    Args:
        launcher: The name of the launcher. With ``docker`` (round 0.6), the run script writes additional
            lines.
    """

    def __init__(self, launcher: str) -> None:
        self._run_sub = run_sub.RunSubReader()
        self._run_sub06 = run_sub06.RunSub06Reader() if launcher == "docker" else None

    def line(self, number: int, raw: bytes) -> None:
        """Read one line of the log, with its number from 1."""
        self._run_sub.line(number, raw)
        if self._run_sub06 is not None:
            self._run_sub06.line(number, raw)

    def check(
        self, planned: PlannedRun, folder: Path, parsed: Sequence[ParsedLog], plan_id: str
    ) -> LauncherEvidence:
        """Return the evidence in the output, after the log was read.

        Args:
            planned: The run as it was planned.
            folder: The folder of the run.
            parsed: The parsed logs of the run.
            plan_id: The id of the plan, which names the earlier repeats.
        """
        path = folder / "logs" / f"{planned.lead}.log"
        output = self._run_sub.result()
        evidence = LauncherEvidence((), (), sanitize(output.launcher_report.get("digest") or "", 100))
        evidence = evidence._replace(slurm_start=_slurm_start(output, planned.run_id))
        script = run_script(planned)
        if self._run_sub06 is not None:
            output06 = self._run_sub06.result()
            lacks = slurm_lacks(SlurmJob(planned, script, output, output06))
            findings = _round06_findings(planned, output06, output, path, parsed, lacks)
            return evidence._replace(findings=findings)
        lacks = slurm_lacks(SlurmJob(planned, script, output))
        measurements = run_sub.run_sub_measurements(output, f"logs/{path.name}")
        findings = run_sub.run_sub_findings(
            output, planned.nodes, planned.sku_gpus, run_id=planned.run_id, script=script
        )
        findings += launcher_time_findings(output, parsed)
        # If the job ended before its training, a finding already names the cause. The checker's complaints
        # about missing events would hide the cause.
        if not run_sub.ended_before_training(output):
            findings += event_findings(planned, parsed)
            findings += check_compliance(planned, path)
            batch = _global_batch_size(parsed)
            findings += convergence_input_findings(planned, output.samples, batch)
            findings += check_convergence(planned, output.samples, batch)
        findings = causes_first(findings, lacks)
        all_measurements = [
            *(measurement for log in parsed for measurement in log.measurements),
            *measurements,
        ]
        findings += run_sub.repeat_findings(
            all_measurements, _earlier_repeats(planned, folder.parent, plan_id)
        )
        return evidence._replace(findings=findings, measurements=measurements)


def run_script(planned: PlannedRun) -> run_sub.RunScript:
    """Return the behaviour of a planned run's script, as its definition and the operator state it."""
    result = planned.result
    # Without rules, the job is not a run of MLPerf Training, and may use any script.
    lacks, processes = (result.lacks, result.processes) if result.ruleset else (EVERYTHING, "")
    return run_sub.RunScript(lacks=lacks, processes=processes, preflight_off=preflight_is_off(planned))


def preflight_is_off(planned: PlannedRun) -> bool:
    """Return whether a run was planned without the NCCL preflight, by its definition or the operator."""
    if "nccl_preflight" in planned.result.lacks:
        return True
    return planned.launcher == "slurm" and planned.environment.get("NCCL_TEST", "") not in ("", "1")


def _slurm_start(output: run_sub.RunSubOutput, run_id: str) -> datetime | None:
    """Return the start of this run's Slurm job, or None if Slurm's record does not show it precisely."""
    times = run_sub.job_times(output.end)
    is_precise = times is not None and times.slack_s <= run_sub.CLOCK_SLACK_S
    if times is None or not is_precise or not run_sub.is_job_of(output.end, run_id):
        return None
    return datetime.fromtimestamp(times.start_s, UTC)


def causes_first(findings: Sequence[Finding], lacks: Sequence[Finding]) -> list[Finding]:
    """Return the findings, with the findings about missing evidence. The causes of a job's end come first."""
    causes = [
        finding
        for finding in findings
        if finding.verdict is Verdict.FAIL or finding.code in ("no_mpi", "refused")
    ]
    return [*causes, *lacks, *(finding for finding in findings if finding not in causes)]


def launcher_time_findings(output: run_sub.RunSubOutput, parsed: Sequence[ParsedLog]) -> list[Finding]:
    """Return findings about times in a log that are outside its Slurm job."""
    moments: list[tuple[str, float]] = []
    for log in parsed:
        named = log.file or "the log"
        if log.first_event_s is not None and log.last_event_s is not None:
            moments.append((f"the first event of {named}", log.first_event_s))
            moments.append((f"the last event of {named}", log.last_event_s))
    # Only the first and the last marker are needed.
    markers = sorted(output.times.items(), key=lambda marker: marker[1])
    moments += dict([*markers[:1], *markers[-1:]]).items()
    return run_sub.slurm_time_findings(output.end, moments)


def event_findings(planned: PlannedRun, parsed: Sequence[ParsedLog]) -> list[Finding]:
    """Return findings about missing or wrong events that every log by the rules contains."""
    if not planned.result.ruleset:
        return []
    return list(_missing_events(planned, parsed))


def _missing_events(planned: PlannedRun, parsed: Sequence[ParsedLog]) -> Iterator[Finding]:
    """Yield a finding for each kind of missing event, and for a log of another benchmark."""
    tags = {name: value for log in parsed for name, value in log.tags.items()}
    if all(log.first_event_s is None for log in parsed):
        message = "the log has no event with a time, so it does not show when it was written"
        yield Finding(code="no_event_times", verdict=Verdict.UNPROVEN, message=message)
    if not tags.get("seed") and "seed" not in planned.result.lacks:
        message = (
            "the log has no event `seed`, so it does not show that this repeat differs from earlier ones"
        )
        yield Finding(code="no_seed", verdict=Verdict.UNPROVEN, message=message)
    missing = [f"submission_{name}" for name in SUBMISSION_EVENTS if not tags.get(f"submission_{name}")]
    if missing and "submission_events" not in planned.result.lacks:
        message = f"the log has no {', '.join(missing)}: its benchmark and its system are unknown"
        yield Finding(code="no_submission_events", verdict=Verdict.UNPROVEN, message=message)
    stated, planned_benchmark = tags.get("submission_benchmark", ""), canonical_benchmark(planned.benchmark)
    if stated and _is_known_benchmark(planned_benchmark) and canonical_benchmark(stated) != planned_benchmark:
        message = f"the log is of the benchmark {sanitize(stated, 60)}, not of {planned_benchmark}"
        yield Finding(code="another_benchmark", verdict=Verdict.UNPROVEN, message=message)


def _is_known_benchmark(name: str) -> bool:
    """Return whether a benchmark of MLPerf Training has this name. A site's own benchmarks have others."""
    return any(name in targets for targets in (TARGETS, TARGETS_06, EVALUATED_OFFLINE))


def _round06_findings(
    planned: PlannedRun,
    output: run_sub06.RunSub06Output,
    launcher: run_sub.RunSubOutput,
    path: Path,
    parsed: Sequence[ParsedLog],
    lacks: Sequence[Finding],
) -> list[Finding]:
    """Return the findings on a run of round 0.6, whose run script prints other lines."""
    findings = run_sub06.run_sub06_findings(
        output, launcher, planned.nodes, run_id=planned.run_id, script=run_script(planned)
    )
    if len(planned.nodes) > 1:
        findings += launcher_time_findings(launcher, parsed)
    if output.trained or not any(finding.verdict is not None for finding in [*findings, *lacks]):
        findings += event_findings(planned, parsed)
        findings += check_compliance(planned, path)
    return causes_first(findings, lacks)


def _global_batch_size(parsed: Sequence[ParsedLog]) -> float | None:
    """Return the global batch size that the log states, or None."""
    sizes = [log.tags["global_batch_size"] for log in parsed if "global_batch_size" in log.tags]
    return float(sizes[0]) if sizes and re.fullmatch(r"\d+(\.\d+)?", sizes[0]) else None


def check_compliance(planned: PlannedRun, path: Path) -> list[Finding]:
    """Check one run's log with MLCommons' own checker.

    The checker is a separate program that accepts only certain file names, so it reads the log a second
    time.
    """
    ruleset = planned.result.ruleset
    if not ruleset:
        return []
    with tempfile.TemporaryDirectory(prefix="rackproof-check-") as scratch:
        copy = Path(scratch) / "result_0.txt"
        os.symlink(path.resolve(), copy)
        try:
            score = score_folder(Path(scratch), ruleset=ruleset, timeout_s=CHECK_S)
        except (ValueError, OSError) as error:
            message = f"the log could not be checked by the rules {ruleset}: {error}"
            return [Finding(code="not_checked", verdict=Verdict.UNPROVEN, message=message[:4000])]
    return compliance_findings(score, ruleset)


def compliance_findings(score: FolderScore, ruleset: str) -> list[Finding]:
    """Return the findings that the checker's answer about one run's log implies."""
    if len(score.runs) != 1:
        message = f"the log could not be checked by the rules {ruleset}: {'; '.join(score.reasons[:2])}"
        return [Finding(code="not_checked", verdict=Verdict.UNPROVEN, message=message[:4000])]
    run = score.runs[0]
    if run.compliant is True:
        return []
    reasons = "; ".join(str(message) for message in run.messages[:3]) or "no reason given"
    # The checker gave no answer. A log that was not checked did not fail.
    word, verdict = "could not be checked by", Verdict.UNPROVEN
    if run.compliant is False:
        word, verdict = "is not compliant with", Verdict.FAIL
    message = f"the log {word} the rules {ruleset}: {reasons}"
    return [Finding(code="not_compliant", verdict=verdict, message=message[:4000])]


def convergence_input_findings(
    planned: PlannedRun, samples: float | None, batch: float | None
) -> list[Finding]:
    """Return a finding if the samples, the batch size or its reference is missing.

    Otherwise, convergence cannot be compared. A benchmark without references needs none of them.
    """
    ruleset = planned.result.ruleset
    if not ruleset or not reference_points(planned.benchmark, ruleset):
        return []
    missing = [] if samples is not None else ["no evaluation with its samples_count or epoch_num"]
    missing += [] if batch else ["no global_batch_size"]
    message = f"the log has {' and '.join(missing)}"
    if batch and reference_samples(planned.benchmark, ruleset, batch) is None:
        missing.append("no reference")
        message = f"the reference has no batch size of {batch:g}"
    if not missing:
        return []
    message += ", so it is not known whether the run converged too fast"
    return [Finding(code="convergence_unknown", verdict=Verdict.UNPROVEN, message=message)]


def check_convergence(planned: PlannedRun, samples: float | None, batch: float | None) -> list[Finding]:
    """Return a finding if one run needed far fewer samples than the reference.

    ``samples`` and ``batch`` are the run's samples until convergence and its global batch size, or None. The
    rules compare only all repeats together.
    """
    ruleset = planned.result.ruleset
    mean = reference_samples(planned.benchmark, ruleset, batch) if ruleset and batch else None
    # The verdict is unproven, not fail, because one run may be lucky.
    if samples is None or mean is None or samples >= TOO_FAST * mean:
        return []
    message = f"too fast to be true: converged after {samples:.10g} samples, the reference needs {mean:.6g}"
    return [Finding(code="converged_too_fast", verdict=Verdict.UNPROVEN, message=message)]


def reference_samples(benchmark: str, ruleset: str, batch: float) -> float | None:
    """Return the samples that the reference needs at a batch size, or None if unpublished.

    Between two of the reference's batch sizes, the mean is interpolated, as in the rules.
    """
    points = reference_points(benchmark, ruleset)
    below = max((size for size in points if size <= batch), default=None)
    above = min((size for size in points if size >= batch), default=None)
    # Outside the range of batch sizes, the rules do not extrapolate.
    if below is None or above is None:
        return None
    if below == above:
        return points[below]
    return points[below] + (points[above] - points[below]) * (batch - below) / (above - below)


def score_repeats(planned: Sequence[PlannedRun], results: Path) -> tuple[Verdict | None, str]:
    """Return the score of all repeats together according to the rules.

    Args:
        planned: The repeats of one point of a benchmark on the same nodes. All are recorded.
        results: The results folder.

    Returns:
        The verdict and a text. The verdict is None if there are no rules, or if fewer repeats were requested
        than a result needs. The text is then a remark.
    """
    ruleset, needed = planned[0].result.ruleset, planned[0].result.repeats
    if not ruleset:
        return None, "no rules to score by"
    if len(planned) < needed:
        return (
            None,
            f"{amount(len(planned), 'repeat')}; a publishable result needs {needed} (bench_repeats=0)",
        )
    with tempfile.TemporaryDirectory(prefix="rackproof-score-") as scratch:
        # The checker needs a folder with these file names. Links avoid copies of long logs.
        for index, run in enumerate(planned):
            log = results / run.run_id / "logs" / f"{run.lead}.log"
            os.symlink(log.resolve(), Path(scratch) / f"result_{index}.txt")
        try:
            # CHECK_S is for one log, and most results of MLPerf Training need ten.
            score = score_folder(Path(scratch), ruleset=ruleset, timeout_s=10 * CHECK_S)
        except (ValueError, OSError) as error:
            return Verdict.UNPROVEN, f"the repeats could not be scored: {error}"
    if score.minutes is not None and not score.verdict.gates:
        text = f"{score.minutes:.4g} min by the rules {ruleset}, {amount(len(planned), 'repeat')}"
        why = _degrading_messages(score) if score.verdict is Verdict.DEGRADED else ""
        return score.verdict, f"{text}: {why}" if why else text
    return (
        score.verdict,
        f"no score by the rules {ruleset}: {'; '.join(score.reasons[:3]) or 'no reason given'}",
    )


def _degrading_messages(score: FolderScore) -> str:
    """Return the messages of the first findings that degrade a score."""
    messages = [finding.message for finding in score.findings if finding.verdict is Verdict.DEGRADED]
    return "; ".join(dict.fromkeys(messages[:3]))


def published_references(planned: PlannedRun, measurement: Measurement) -> list[Reference]:
    """Return the published result to compare with, for this number and kind of accelerators.

    The list is empty if there is no such result.
    """
    if planned.launcher == "docker":
        return _published_06(planned, measurement)
    metric = {"time_to_train": "minutes", "samples_per_second": "throughput"}.get(measurement.name)
    if metric is None or not planned.sku or not planned.sku_gpus:
        return []
    newest = _newest_round(planned)
    if metric == "minutes":
        middle = _middle_result(newest, lambda result: result.minutes)
        return [middle.reference("minutes", tolerance=TIME_TOLERANCE, warn=TIME_WARNING)] if middle else []
    measured = [result for result in newest if result.throughput is not None]
    middle = _middle_result(measured, lambda result: -(result.throughput or 0.0))
    return [middle.reference("throughput")] if middle else []


def _newest_round(planned: PlannedRun) -> list[PublishedResult]:
    """Return the official results for a run's benchmark and system size in the newest round with any."""
    results = find_published(
        benchmark=planned.benchmark,
        accelerator=planned.sku,
        accelerators=len(planned.nodes) * planned.sku_gpus,
        kind="official",
    )
    # The newest round is first. Older rounds had other software and other targets.
    return [result for result in results if result.round == results[0].round]


def _middle_result(
    results: Sequence[PublishedResult], effort: Callable[[PublishedResult], float | None]
) -> PublishedResult | None:
    """Return the middle result of several submitters, or None without a result.

    The best result may be from a specially tuned machine.

    Args:
        results: The results of several submitters.
        effort: A function that returns a higher number for a slower result. If two results are in the
            middle, the slower one is used.
    """
    if not results:
        return None
    return sorted(results, key=lambda result: effort(result) or 0.0)[len(results) // 2]


def _published_06(planned: PlannedRun, measurement: Measurement) -> list[Reference]:
    """Return the published result of round 0.6 for the system of the run's config."""
    system = published_system(str(planned.parameters.get("system", "")))
    benchmark = canonical_benchmark(planned.benchmark)
    # A result of the same system with another number of nodes is not comparable.
    for result in find_published(benchmark=benchmark, round="0.6", nodes=max(1, len(planned.nodes))):
        if result.system != system:
            continue
        if measurement.name == "time_to_train" and result.minutes is not None:
            reference = result.reference(
                "minutes", tolerance=ONE_EVALUATION, warn=TIME_WARNING, ceiling=ONE_EVALUATION
            )
            return [reference]
        # Benchmarks count images, tokens or sequences. Only equal units are comparable.
        if measurement.name in THROUGHPUT and result.throughput_unit == measurement.unit:
            return [result.reference("throughput")]
    return []


def _earlier_repeats(planned: PlannedRun, results: Path, plan_id: str) -> list[tuple[Measurement, ...]]:
    """Return the measurements of earlier repeats that passed or are degraded."""
    if planned.repeats < 2 or not plan_id:
        return []
    try:
        plan = read_plan(results, plan_id)
        recorded = plan.recorded(results)
    except ResultsError:
        return []
    measurements = []
    for run in plan.runs:
        record = recorded.get(run.run_id)
        # Failed repeats are left out, because a difference from them is no evidence against this run.
        if record is None or record.verdict not in (Verdict.PASS, Verdict.DEGRADED):
            continue
        if run.result_key == planned.result_key and run.repeat < planned.repeat:
            measurements.append(record.measurements)
    return measurements
