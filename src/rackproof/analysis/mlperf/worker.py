"""Check the logs of one result with ``mlperf-logging``, in a process of its own.

:mod:`.score` starts the process (``python -m rackproof.analysis.mlperf.worker``). The process reads a job
(JSON, see :func:`check_logs`) from standard input, and writes a :class:`.score.WorkerReport`, one line of
JSON, to standard output. It is separate because ``mlperf-logging``, below called the tool, has global state,
prints, may crash, and may take very long on hostile logs. The tool gets copies, because it writes into the
folder that it reads, and :mod:`.cleaning` makes them safe for it. RCP are the reference convergence points
with which MLCommons compares a result's convergence.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from mlperf_logging import benchmark_meta
from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser
from mlperf_logging.package_checker.seed_checker import SeedChecker

from rackproof import logs
from rackproof.analysis.mlperf.cleaning import CleanedLog, clean_log, safe_text
from rackproof.analysis.mlperf.described import DescribedSystem
from rackproof.analysis.mlperf.quick_start import load_rcp_checker, read_rules_quickly
from rackproof.analysis.mlperf.repeats import (
    RunTrace,
    compare_runs,
    date_findings,
    trace_of_events,
    undescribed_findings,
)
from rackproof.analysis.mlperf.required_evidence import score_lacks
from rackproof.analysis.mlperf.rounds import round_period
from rackproof.analysis.mlperf.sandbox import serve_job
from rackproof.analysis.mlperf.score import RcpResult, RunScore, WorkerReport, at_file
from rackproof.core.hostlist import expand_hostlist
from rackproof.core.records import Finding, ParsedLog, Source, Verdict
from rackproof.logs.fault_texts import FAULT_TEXTS, KERNEL_CODES
from rackproof.logs.opening import LogStream, open_log
from rackproof.logs.printed_system import LONGEST_SYSTEM_LINE, NODE_LIST, printed_systems_of
from rackproof.store.run_folder import read_file

_MAX_MESSAGES = 10
"""Largest number of the tool's messages about one log in the report."""
_NODE = re.compile(
    rb"\b(?:Clearing cache on |Hello from: |(?:STEP|JOB) \S{1,40} ON )([A-Za-z0-9][A-Za-z0-9._-]{0,80})"
)
"""A node's name in a line: ``Clearing cache on n07``, ``Hello from: n07``, ``STEP 123.0 ON n07``."""
_MOST_SYSTEM_LINES = 100
"""Largest number of different ``:::SYSJSON`` lines that are read. Every rank may print such a line, after the
rank's number."""
_UNSCALED = frozenset({"1.0.0", "1.1.0", "2.0.0", "3.0.0"})
"""Rounds of Training in which only scaling.json scaled the score, not the RCP comparison. Of 591 published
results of 1.0 to 2.0, one has such a file. Of 63 results of 3.0 whose runs converged faster than the
reference, 20 have none."""
_OF_THE_SYSTEM = KERNEL_CODES | frozenset(
    {
        "cache_clear_failed",
        "dcgm_fault",
        "ecc_error",
        "gpu_error",
        "gpu_error_unclear",
        "gpu_lost",
        "io_error",
        "node_failed",
        "wrong_values",
        "xid",
        "xid_reset",
        "xid_unknown",
    }
)
"""Failures that also cast doubt on the system of the other runs."""
_FAILURES = FAULT_TEXTS - _OF_THE_SYSTEM | {"aborted", "target_not_reached"}
"""Failures that make a run count as the slowest under the rules."""
_FOLLOW_FROM_FAILURE = frozenset({"no_run_start", "no_run_stop", "no_status", "no_evaluation"})
"""Findings that follow from a proven failure. In any other log, they show that a part is missing."""
_NO_NODES = frozenset({"Clearing", "localhost"})
"""Matches of :data:`_NODE` that are not the names of nodes. The first appears if several nodes write to one
line (``echo -n``). Every node has the second as a name."""


class _RecordKeeper(logging.Handler):
    """A handler that stores the tool's log records instead of printing them."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def messages(self, level: int) -> list[str]:
        """Return the messages of this level or above, each on one printable line."""
        return [safe_text(record.getMessage()) for record in self.records if record.levelno >= level]


@dataclass(frozen=True)
class _Task:
    """The job as the steps of a check need it.

    Attributes:
        work: The folder for copies, which is empty at first.
        names: The names of the logs.
        ruleset: The rules of the round, such as ``5.1.0``.
        usage: Either ``training`` or ``hpc``.
        kept: The handler with the tool's log records.
    """

    work: Path
    names: Sequence[str]
    ruleset: str
    usage: str
    kept: _RecordKeeper

    @property
    def copies(self) -> Path:
        """Return the folder with the cleaned copies."""
        return self.work / "results"

    def copy(self, index: int) -> Path:
        """Return the path of the cleaned copy of the log ``names[index]``. The tool expects this name."""
        return self.copies / f"result_{index}.txt"


def check_logs(job: Mapping[str, Any]) -> WorkerReport:
    """Clean, check and compare the logs of a job, and return the facts about them.

    Args:
        job: A mapping with ``folder``, ``files`` (names in it), ``work`` (an empty folder), ``ruleset``
            and ``usage``.
    """
    folder = Path(job["folder"])
    record_keeper = _RecordKeeper()
    logging.basicConfig(handlers=[record_keeper], level=logging.INFO, force=True)
    read_rules_quickly(mlp_compliance)
    task = _Task(Path(job["work"]), tuple(job["files"]), job["ruleset"], job["usage"], record_keeper)
    task.copies.mkdir()
    runs, traces, findings = _check_runs(task, folder)
    benchmark = next((run.benchmark for run in runs if run.benchmark), "")
    needed = benchmark_meta.get_result_file_counts(task.usage).get(benchmark)
    complete = sum(bool(run.events) for run in runs) == needed == len(runs)
    rcp, converged = _compare_convergence(task, runs, benchmark, complete)
    if converged:
        runs = [
            run.model_copy(update={"convergence": amount})
            for run, amount in zip(runs, converged, strict=True)
        ]
    findings += score_lacks(traces)
    described, unread = read_description(folder)
    findings += compare_runs(traces, ruleset=task.ruleset, usage=task.usage, described=described)
    if described is None:
        findings += undescribed_findings(traces)
    if unread:
        message = f"{unread}, so the logs cannot be compared with it: restore it from the submission"
        findings.append(Finding(code="description_unread", verdict=Verdict.UNPROVEN, message=message))
    findings += date_findings(traces, round_period(task.ruleset, task.usage), datetime.now(UTC))
    if rcp.applies and complete and not any(finding.code in ("same_seed", "no_seed") for finding in findings):
        findings += _check_seeds(task)
    factor, remark = _folder_factor(folder / "scaling.json", rcp)
    return WorkerReport(
        runs=tuple(runs),
        runs_needed=needed,
        rcp=rcp,
        folder_scaling_factor=factor,
        findings=tuple(findings + remark),
    )


def _check_runs(task: _Task, folder: Path) -> tuple[list[RunScore], list[RunTrace], list[Finding]]:
    """Clean and check every log.

    A log that cannot be copied gives a run without events, whose message is the error.

    Returns:
        All runs in the order of the job's files, the traces of the runs with events, and the findings.
    """
    runs: list[RunScore] = []
    traces: list[RunTrace] = []
    findings: list[Finding] = []
    for index, name in enumerate(task.names):
        try:
            cleaned = clean_log(folder / name, task.copy(index), ruleset=task.ruleset)
        except OSError as error:
            runs.append(RunScore(file=name, sha256="", messages=(f"not copied: {error.strerror}",)))
            continue
        run, remarks = _check_run(task, index, cleaned)
        runs.append(run)
        # A file without events shows no run, which is a separate reason.
        if run.events:
            trace, against = _trace_run(task, index, folder / name, run)
            traces.append(trace)
            remarks += against
        findings += [at_file(finding, name) for finding in (*cleaned.findings, *remarks)]
    return runs, traces, findings


def _check_run(task: _Task, index: int, cleaned: CleanedLog) -> tuple[RunScore, list[Finding]]:
    """Return the check of one log, which has the tool's answer and facts from its events, and remarks."""
    compliant, messages = _comply(task, task.copy(index), cleaned)
    events, _ = mlp_parser.parse_file(str(task.copy(index)), ruleset=task.ruleset)
    values: dict[str, Any] = {}
    for event in events:
        if isinstance(event.value, dict):
            values.setdefault(event.key, event.value.get("value"))
    minutes, status, remarks = _minutes_and_status(events, cleaned, task.ruleset)
    run = RunScore(
        file=task.names[index],
        sha256=cleaned.sha256,
        digest=cleaned.digest,
        minutes=minutes,
        status=status,
        compliant=compliant,
        messages=tuple(messages),
        events=cleaned.events,
        damaged_events=cleaned.damaged,
        benchmark=safe_text(str(values.get("submission_benchmark") or ""), 100),
        division=safe_text(str(values.get("submission_division") or ""), 100),
        global_batch_size=_number(values.get("global_batch_size")),
    )
    return run, remarks


def read_description(folder: Path) -> tuple[DescribedSystem | None, str]:
    """Return the description of a result's system, and "" or the reason why a description is unusable.

    A round stores ``systems/SYSTEM.json`` beside ``results/SYSTEM/BENCHMARK``. If the file is missing
    elsewhere, the reason is "", because only rounds have descriptions.

    Args:
        folder: The absolute path of the folder with the logs.
    """
    if len(folder.parents) < 3:
        return None, ""
    file = folder.parents[2] / "systems" / f"{folder.parent.name}.json"
    shown_path = f"systems/{safe_text(file.name, 200)}"
    try:
        content = json.loads(read_file(file, 1 << 20))
    except FileNotFoundError:
        # All 393 published results of rounds 3.1 and 5.1 come with a description. This one was lost or
        # renamed.
        in_round = folder.parents[1].name == "results" and file.parent.is_dir()
        return None, f"{shown_path} is missing" if in_round else ""
    except (OSError, ValueError, RecursionError):
        return None, f"{shown_path} cannot be read"
    stated = content if isinstance(content, dict) else {}
    nodes, gpus_per_node = (_number(stated.get(key)) for key in ("number_of_nodes", "accelerators_per_node"))
    name = stated.get("accelerator_model_name")
    if (
        not isinstance(name, str)
        or not nodes
        or gpus_per_node is None
        or not 0 <= nodes * gpus_per_node < 1e7
    ):
        required_keys = "number_of_nodes, accelerators_per_node and accelerator_model_name"
        return None, f"{shown_path} does not state {required_keys}"
    gpus = round(nodes * gpus_per_node)
    division = safe_text(str(stated.get("division") or ""), 100)
    return DescribedSystem(safe_text(name, 200), gpus=gpus, nodes=round(nodes), division=division), ""


def _trace_run(task: _Task, index: int, log: Path, run: RunScore) -> tuple[RunTrace, list[Finding]]:
    """Return the trace of a run, and the findings of `rackproof parse` against its log.

    The tool tests whether the required events are present, and the parser whether the log proves the time.
    A score needs both.
    """
    try:
        with open_log(log) as stream:
            launch = _launcher_facts(stream)
        form = "mlperf_hpc" if task.usage == "hpc" else "auto"
        parsed = logs.parse_path(log, form, name=log.name)
    except OSError as error:
        message = f"not read: {error.strerror}"
        return RunTrace(run.file), [Finding(code="not_read", verdict=Verdict.UNPROVEN, message=message)]
    events, _ = mlp_parser.parse_file(str(task.copy(index)), ruleset=task.ruleset)
    unit = 1 if task.ruleset == "0.6.0" else 1000
    logged_events = [(event.timestamp / unit, event.key, _value(event), _metadata(event)) for event in events]
    trace = trace_of_events(run.file, logged_events, benchmark=run.benchmark)
    speeds = [measured.value for measured in parsed.measurements if measured.name == "samples_per_second"]
    trace.throughput, trace.nodes = (speeds[0] if speeds else None), launch.nodes
    trace.node_count, trace.stated_nodes = launch.node_count, launch.stated_nodes
    trace.printed = launch.printed
    trace.scores = run.scores
    if any(finding.code == "training_before_run_start" for finding in parsed.findings):
        trace.early = None  # the parser already reported it
    stopped = run.status == "success"
    return trace, findings_of_log(parsed, scores=run.scores, stopped=stopped, script_ended=launch.ended)


_NO_END = {
    False: "a part of it may be missing; copy it from its node again",
    True: "its end is there (RUNANDTIME_STOP), and neither a run_stop nor an error before it. A run that "
    "stops without one counts as failed only if its log has the reason; look in the job's own output",
}
"""Remedy for a log that shows neither success nor failure, by whether it has the end of the run script."""


def findings_of_log(
    parsed: ParsedLog, *, scores: bool, stopped: bool, script_ended: bool = False
) -> list[Finding]:
    """Return the findings of a log with a verdict or about a fault, and one for a run that it does not prove.

    Args:
        parsed: The log, as `rackproof parse` reads and judges it.
        scores: Whether the run counts as measured. Otherwise, the run counts as the slowest.
        stopped: Whether the log's run_stop reports success. Such a run did not fail, whatever else the log
            contains.
        script_ended: Whether the log contains the end of the run script, and is therefore complete.
    """
    counting = [
        finding for finding in parsed.findings if finding.verdict is not None or finding.code in FAULT_TEXTS
    ]
    gating = [finding for finding in counting if finding.verdict is not None and finding.verdict.gates]
    if scores and parsed.verdict.gates and not gating:
        message = "the log does not prove a run that ended well"
        counting.append(Finding(code="not_proven", verdict=parsed.verdict, message=message))
    if scores or stopped:
        return counting
    return _findings_of_failed_run(counting, gating, script_ended=script_ended)


def _findings_of_failed_run(
    counting: Sequence[Finding], gating: Sequence[Finding], *, script_ended: bool
) -> list[Finding]:
    """Return the findings against a run that did not end with success. Its log has to show the failure."""
    if not any(finding.code in _FAILURES for finding in gating):
        message = f"the log shows neither that the run ended well nor that it failed: {_NO_END[script_ended]}"
        return [*counting, Finding(code="failure_not_shown", verdict=Verdict.UNPROVEN, message=message)]
    # The failure makes the run the slowest of the result. It is not a finding against the result.
    return [finding for finding in counting if finding.code not in _FAILURES | _FOLLOW_FROM_FAILURE]


class LauncherFacts(NamedTuple):
    """The statements of a launcher and a run script about a run.

    Attributes:
        nodes: The names of nodes in the launcher's lines and in ``:::DLPAL``.
        node_count: The job's number of nodes from ``:::DLPAL``, or else the number of names. None if
            neither is known.
        stated_nodes: The number of nodes in ``:::DLPAL``, or None.
        ended: Whether the log has the script's last line, ``RUNANDTIME_STOP``.
        printed: The different descriptions of the system (``:::SYSJSON``).
    """

    nodes: frozenset[str]
    node_count: int | None
    stated_nodes: int | None
    ended: bool
    printed: tuple[dict[str, Any], ...]


def _launcher_facts(stream: LogStream) -> LauncherFacts:
    """Read the statements of the launcher and the run script in the lines of a log."""
    ended = False
    names: set[str] = set()
    counts: set[int] = set()
    systems: dict[bytes, None] = {}
    for line in iter(lambda: stream.readline(LONGEST_SYSTEM_LINE), b""):
        if b" on " in line or b"ello from" in line or b" ON " in line:
            names.update(match[1].decode() for match in _NODE.finditer(line))
        elif line.startswith(b":::DLPAL ") and (listed := NODE_LIST.match(line)):
            names.update(expand_hostlist(listed[2].decode()))
            counts.add(int(listed[1]))
        elif line.startswith(b"RUNANDTIME_STOP"):
            ended = True
        if b":::SYSJSON " in line and len(systems) < _MOST_SYSTEM_LINES:
            systems[line] = None
    names -= _NO_NODES
    # If several numbers contradict each other, use the smallest, so that the run differs from its
    # repeats.
    stated = min(counts, default=None)
    node_count = stated or len(names) or None
    return LauncherFacts(
        frozenset(names), node_count, stated, ended, tuple(printed_systems_of(b"".join(systems)))
    )


def _value(event: Any) -> Any:
    """Return the value of an event of any round."""
    return event.value.get("value") if isinstance(event.value, dict) else event.value


def _minutes_and_status(
    events: Sequence[Any], cleaned: CleanedLog, ruleset: str
) -> tuple[float | None, str, list[Finding]]:
    """Return the minutes (None if impossible), the status ("" if the run never ended) and the remarks."""
    starts = [event for event in events if event.key == "run_start"]
    remarks = []
    # Several ranks may log the start at the same time. That counts as one start.
    if len(starts) > 1 and starts[0].timestamp != starts[-1].timestamp:
        message = "several run_start at different times: the first one counts"
        remarks.append(Finding(code="several_run_start", message=message, source=_place(cleaned, starts[1])))
    end = _first_event(events, "run_stop")
    minutes, status = None, ""
    if end is not None:
        minutes, status = _until_stop(starts, end, ruleset)
    elif ruleset == "0.6.0":
        # minigo 0.6 logs no run_stop. Its later evaluation contains the time to the target.
        end = _first_event(events, "eval_result")
        minutes, status = _until_evaluation(end)
    if minutes is not None and not (math.isfinite(minutes) and minutes > 0):
        message = "the end is not later than the start"
        remarks.append(Finding(code="no_duration", message=message, source=_place(cleaned, end)))
        minutes = None
    return minutes, status, remarks


def _first_event(events: Sequence[Any], key: str) -> Any:
    return next((event for event in events if event.key == key), None)


def _until_stop(starts: Sequence[Any], stop: Any, ruleset: str) -> tuple[float | None, str]:
    """Return the minutes from the first start to the stop (``None`` without a start), and the status."""
    status = safe_text(str(_metadata(stop).get("status") or "unknown"), 100)
    if not starts:
        return None, status
    # Round 0.6 logs seconds, and all later rounds log milliseconds.
    return (stop.timestamp - starts[0].timestamp) / (60 if ruleset == "0.6.0" else 60_000), status


def _until_evaluation(evaluation: Any) -> tuple[float | None, str]:
    """Return the minutes to the target and the status, from the event of minigo's later evaluation.

    The event's metadata have the seconds to the target as ``timestamp``. The number is 0 or less if the
    target was not reached.
    """
    seconds = _number(_metadata(evaluation).get("timestamp")) if evaluation is not None else None
    if seconds is None:
        return None, ""
    return seconds / 60, "success" if seconds > 0 else "aborted"


def _metadata(event: Any) -> Mapping[str, Any]:
    metadata = event.value.get("metadata") if isinstance(event.value, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _place(cleaned: CleanedLog, event: Any) -> Source:
    """Return the line of an event in the original log."""
    return Source(line=cleaned.lines[event.lineno])


def _number(value: Any) -> float | None:
    """Return a value of a log or file as a finite number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _comply(task: _Task, copy: Path, cleaned: CleanedLog) -> tuple[bool | None, list[str]]:
    """Return whether the tool finds the log compliant (None if it crashed first), and its messages."""
    task.kept.records.clear()
    # The tool queues rule files in a global list, which a crash on an earlier log leaves non-empty.
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker(usage=task.usage, ruleset=task.ruleset, quiet=True, werror=False)
    crash = ""
    try:
        mlp_compliance.main(str(copy), _rules(task, copy), checker)
    except Exception as error:  # the tool may raise any exception
        crash = f"the compliance checker crashed: {type(error).__name__}: {safe_text(str(error))}"
    tool_messages = [*checker.overwritable.values(), *checker.not_overwritable]
    messages = [_tool_message(text, cleaned) for text in tool_messages[:_MAX_MESSAGES]]
    if len(tool_messages) > _MAX_MESSAGES:
        messages.append(f"and {len(tool_messages) - _MAX_MESSAGES} more")
    if crash:
        messages.append(crash)
    # The tool's messages before a crash count. A crash alone proves nothing.
    compliant = False if tool_messages else (None if crash else True)
    return compliant, messages


def _rules(task: _Task, copy: Path) -> str:
    """Return the tool's first file of rules, which names the others. In round 0.6, minigo has its own."""
    name = "common"
    if task.ruleset == "0.6.0":
        events, _ = mlp_parser.parse_file(str(copy), ruleset=task.ruleset)
        named = (event.value for event in events if event.key == "submission_benchmark")
        if any(isinstance(value, dict) and value.get("value") == "minigo" for value in named):
            name = "minigo"
    return f"{task.usage}_{task.ruleset}/{name}.yaml"


def _tool_message(text: str, cleaned: CleanedLog) -> str:
    """Return the tool's message on one line, without dumps of values, and with the original's line number.

    The message ``CHECK for 'seed' failed in line 3:`` with ``failed test: …`` below becomes one line.
    """

    def original(match: re.Match[str]) -> str:
        index = int(match[1])
        return f"in line {cleaned.lines[index] if index < len(cleaned.lines) else '?'}"

    lines = text.split("\n")
    # A log's own value may contain "in line 1", too, but not at the end of the tool's message.
    message_lines = [re.sub(r"\bin line (\d{1,9})$", original, lines[0].removesuffix(":"))]
    message_lines += [line for line in lines[1:] if line.startswith("failed test:")]
    if lines[0].startswith("Failed executing"):
        message_lines += lines[1:2]
    return safe_text("; ".join(message_lines))


def _compare_convergence(
    task: _Task, runs: Sequence[RunScore], benchmark: str, complete: bool
) -> tuple[RcpResult, list[float | None]]:
    """Compare the convergence of all runs with the reference points.

    Returns:
        The comparison, and the samples or epochs of each run. The list is empty if nothing was compared.
    """
    data = Path(mlp_compliance.__file__).parents[1] / "rcp_checker" / f"{task.usage}_{task.ruleset}"
    not_compared = _not_compared(task, runs, data, complete)
    if not_compared is not None:
        return not_compared, []
    # The checker is loaded only here, because it needs a part of scipy, and most jobs end before.
    rcp_checker = load_rcp_checker()
    sizes = {run.global_batch_size for run in runs if run.global_batch_size is not None}
    # The package still contains dlrm's points of rounds 1.0 to 2.1, but no longer its number of runs.
    run_counts = rcp_checker.submission_runs[task.usage]
    run_counts.setdefault(benchmark, benchmark_meta.get_result_file_counts(task.usage).get(benchmark))
    if not (data / f"rcps_{benchmark}.json").is_file():
        # A missing reference proves nothing against the runs.
        problem = f"Missing RCP: mlperf-logging has no reference points for {benchmark} in {task.ruleset}"
        return RcpResult(applies=True, message=problem), []
    if len(sizes) != 1 or len({run.benchmark for run in runs if run.benchmark}) != 1:
        problem = "the runs do not share one benchmark and one global batch size"
        return RcpResult(applies=True, passed=False, message=problem), []
    folder = task.work / "rcp"
    folder.mkdir()
    try:
        converged = _read_convergence(rcp_checker, task, runs, folder, benchmark, next(iter(sizes)))
        # Reading the files also logs records. Only the numbers of the comparison are needed.
        task.kept.records.clear()
        passed, message, factor = rcp_checker.check_directory(
            str(folder),
            task.usage,
            task.ruleset,
            False,
            False,
            rcp_pass="pruned_rcps",  # noqa: S106  (not a password)
        )
    except Exception as error:  # the tool may raise any exception
        crash = f"{type(error).__name__}: {safe_text(str(error))}"
        return RcpResult(applies=True, message=f"the RCP checker crashed: {crash}"), []
    point, mean = _logged_numbers(task.kept.records)
    reference, speedup = _number(point.get("RCP Mean")), _number(point.get("Max Speedup"))
    rcp = RcpResult(
        applies=True,
        passed=bool(passed),
        message=safe_text(message),
        scaling_factor=_scaling_factor(factor, task) if passed else 1.0,
        reference_mean=reference,
        submission_mean=mean,
        smallest_allowed=reference / speedup if reference and speedup else None,
        unit=_convergence_unit(folder, task.ruleset),
    )
    return rcp, converged


def _scaling_factor(factor: float, task: _Task) -> float:
    """Return the factor by which the round's rules slow the score down, at least 1."""
    if task.usage == "training" and task.ruleset in _UNSCALED:
        return 1.0
    # A factor that is NaN or infinite cannot scale a score. The tool's own default is 1.
    return max(1.0, float(factor)) if math.isfinite(factor) else 1.0


def _not_compared(task: _Task, runs: Sequence[RunScore], data: Path, complete: bool) -> RcpResult | None:
    """Return the result with the reason why convergence is not compared, or ``None`` if it should be."""
    if not data.is_dir():
        return RcpResult(applies=False, message=f"the rules {task.ruleset} have no reference points")
    if any(run.benchmark == "minigo" for run in runs):
        return RcpResult(applies=False, message="MLCommons' package checker compares no minigo")
    if any(run.division == "open" for run in runs):
        return RcpResult(applies=False, message="the open division is not compared")
    if not complete:
        return RcpResult(applies=True, message="the runs are not complete")
    return None


def _read_convergence(
    rcp_checker: Any, task: _Task, runs: Sequence[RunScore], folder: Path, benchmark: str, size: float
) -> list[float | None]:
    """Copy the logs for the RCP checker. Return each run's samples or epochs to converge, or None."""
    converged: list[float | None] = []
    for index, run in enumerate(runs):
        log = folder / f"result_{index}.txt"
        _for_comparison(task.copy(index), log, run, benchmark, size)
        failed, amount, _, _ = rcp_checker.read_submission_file(str(log), task.ruleset, False)
        converged.append(None if failed else _number(amount))
    return converged


def _for_comparison(copy: Path, target: Path, run: RunScore, benchmark: str, size: float | None) -> None:
    """Copy a log for the RCP checker.

    A failed run that ended before it logged benchmark and batch size would crash the checker, although
    only the missing convergence matters. Such a log gets these two facts from the other runs.
    """
    text = copy.read_text(encoding="latin-1")
    if run.status != "success":
        facts = {
            "submission_benchmark": (run.benchmark, benchmark),
            "global_batch_size": (run.global_batch_size, size),
        }
        for key, (logged, shared) in facts.items():
            if not logged:
                event = {"time_ms": 0, "key": key, "value": shared, "metadata": {}}
                text += f":::MLLOG {json.dumps(event)}\n"
    target.write_text(text, encoding="latin-1")


def _convergence_unit(folder: Path, ruleset: str) -> str:
    """Return the unit of progress in the logs, ``samples`` or ``epochs``, or "" without an evaluation."""
    for log in sorted(folder.iterdir()):
        events, _ = mlp_parser.parse_file(str(log), ruleset=ruleset)
        for event in events:
            if event.key in ("eval_accuracy", "eval_error"):
                return "epochs" if "epoch_num" in _metadata(event) else "samples"
    return ""


def _logged_numbers(records: Sequence[logging.LogRecord]) -> tuple[Mapping[str, Any], float | None]:
    """Return the reference point (empty if none) and the runs' mean (or None).

    The tool writes both only to its log.
    """
    point: Mapping[str, Any] = {}
    mean = None
    for record in records:
        if record.msg == " RCP Record: %s" and isinstance(record.args, Mapping):
            point = record.args
        elif record.msg == " Submission mean epochs: %.4f" and isinstance(record.args, tuple):
            mean = _number(record.args[0])
    return point, mean


def _check_seeds(task: _Task) -> list[Finding]:
    """Return one remark with all messages of the tool's seed checker, or none if it accepts the seeds.

    The finding is only a remark, because a review may waive this check.
    """
    task.kept.records.clear()
    files = [str(task.copy(index)) for index in range(len(task.names))]
    try:
        fine = SeedChecker(task.ruleset).check_seeds(files)
    except Exception as error:  # the tool may raise any exception
        message = f"the seed checker crashed: {type(error).__name__}: {safe_text(str(error))}"
        return [Finding(code="seeds", message=message)]
    if fine:
        return []
    tool_messages = "; ".join(task.kept.messages(logging.ERROR))
    for file, name in zip(files, task.names, strict=True):
        tool_messages = tool_messages.replace(file, name)
    return [Finding(code="seeds", message=safe_text(tool_messages, 1000))]


def _folder_factor(file: Path, rcp: RcpResult) -> tuple[float | None, list[Finding]]:
    """Return the factor of a scaling.json beside the logs, and a finding about the file.

    The review of a round may add this file (``{"scaling_factor": 1.02}``) to slow a score down. The factor is
    None if the file is missing, unreadable, equal to the RCP's factor, or smaller, because it must not make
    the score faster.
    """
    source = Source(file=file.name)
    try:
        content = json.loads(read_file(file, 65_536))
        factor = _number(content.get("scaling_factor"))
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError, AttributeError, RecursionError):
        factor = None
    if factor is None:
        message = "the file has no scaling factor"
        return None, [Finding(code="scaling_file", message=message, verdict=Verdict.UNPROVEN, source=source)]
    if math.isclose(factor, rcp.scaling_factor, rel_tol=1e-6):
        return None, []
    believed = factor > rcp.scaling_factor
    message = (
        f"scaling.json has {factor:.6g}, the comparison {rcp.scaling_factor:.6g}: "
        f"the {'former' if believed else 'latter'} is used"
    )
    return factor if believed else None, [Finding(code="scaling_file", message=message, source=source)]


def _answer_job(job: Mapping[str, Any], answer: Callable[[str], None]) -> None:
    """Answer a job with its report."""
    answer(json.dumps(check_logs(job).model_dump(mode="json")))


if __name__ == "__main__":
    serve_job(_answer_job)
