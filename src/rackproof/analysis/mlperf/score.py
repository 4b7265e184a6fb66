"""Score a folder of MLPerf results by compliance, convergence and minutes.

``mlperf-logging`` checks compliance, and compares convergence with MLCommons' reference convergence points
(RCP). The package runs in its own process on its own copy of the logs (see :mod:`.worker`). This module
computes the score and the verdict. The score is the olympic mean of the runs' minutes, times a factor of at
least 1 for convergence that is too fast. The olympic mean leaves out the fastest and the slowest run.

The command ``rackproof score``, the job bench (:mod:`rackproof.jobs.bench.mlperf_checks`) and submissions
(:mod:`rackproof.analysis.submission`) call :func:`score_folder`.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import Field

from rackproof.analysis.mlperf.rounds import (
    Round,
    RoundEvidence,
    not_in_round,
    read_evidence,
    refusal,
    round_of,
)
from rackproof.analysis.mlperf.sandbox import run_in_sandbox
from rackproof.analysis.mlperf.unread_runs import unread_findings
from rackproof.core.records import Finding, Record, Source, Verdict, worst
from rackproof.core.text import amount, sanitize
from rackproof.logs.encodings import encoding_problem_of
from rackproof.logs.opening import name_unpacked, open_log

Part = Literal["counted", "dropped_fastest", "dropped_slowest", "failed", "not_scored"]
"""The role of a run in the score, or ``not_scored`` if there is no score."""

# The scripts of the rounds name their logs result_0.txt, result_01.txt, result_<stamp>_1.txt or, in the
# run script's folder, <stamp>_1.log. Other names that begin with result_ are accepted, too, except with a
# suffix of _OTHER_SUFFIX. A bad result with an unusual name would otherwise be left out, and the score would
# look better.
_RESULT_NAME = re.compile(r"(?i:result_.*\.(?:txt|log))|result_[A-Za-z0-9_.-]*", re.DOTALL)
_TRIAL_NAME = re.compile(r"\d{6,}_\d+\.log")
_CHECKER_OUTPUT = re.compile(r"(compliance|rcp|package|system_desc)_?checker|compliance_|slurm-")
_OTHER_SUFFIX = (".json", ".md", ".csv", ".yaml", ".yml", ".html", ".bak", ".orig", ".tar", ".tgz")
# The largest number of remarks among the reasons. The findings contain all of them.
_MAX_REMARKS = 5


class RunScore(Record):
    """The check of one result log: its minutes, convergence and status.

    Attributes:
        minutes: The time from the first run_start to the first run_stop, or ``None`` if it is unknown or
            not above 0.
        status: The status of run_stop, such as ``success`` ("" without one).
        compliant: Whether the checker accepts the log, or ``None`` if the checker failed.
        messages: The checker's messages against the log.
        convergence: Samples or epochs (see ``RcpResult.unit``) until the target.
        events, damaged_events: The numbers of readable and of damaged MLPerf events.
        digest: The SHA-256 of the events. Equal digests mean that two logs are of one run.
    """

    file: str
    sha256: str
    minutes: float | None = None
    status: str = ""
    compliant: bool | None = None
    messages: tuple[str, ...] = ()
    convergence: float | None = None
    events: int = 0
    damaged_events: int = 0
    benchmark: str = ""
    division: str = ""
    global_batch_size: float | None = None
    digest: str = ""
    part: Part = "not_scored"

    @property
    def success(self) -> bool:
        """Return whether run_stop reports success, and the duration is known and above 0."""
        return self.status == "success" and self.minutes is not None

    @property
    def scores(self) -> bool:
        """Return whether the run counts in the score. Any other run is a failed run."""
        return self.success and self.compliant is True


class RcpResult(Record):
    """The comparison of a folder's convergence with the reference convergence points.

    ``passed`` is ``None`` if the comparison was impossible, or if the rules do not require a comparison
    (``applies`` is false). Means and ``smallest_allowed``, the smallest mean that passes, are in ``unit``
    (``samples`` or ``epochs``). ``scaling_factor`` is at least 1.
    """

    applies: bool
    passed: bool | None = None
    message: str = ""
    scaling_factor: float = 1.0
    reference_mean: float | None = None
    submission_mean: float | None = None
    smallest_allowed: float | None = None
    unit: str = ""


class WorkerReport(Record):
    """The facts that the worker process found, without an overall verdict.

    ``runs_needed`` is the number of runs that the rules require, or None if the rules have none for the
    benchmark. ``folder_scaling_factor`` is the factor in the folder's ``scaling.json``, or None if it is not
    above the factor of the RCP comparison. ``error`` is the reason for missing facts, or "".
    """

    runs: tuple[RunScore, ...] = ()
    runs_needed: int | None = None
    rcp: RcpResult | None = None
    folder_scaling_factor: float | None = None
    findings: tuple[Finding, ...] = ()
    error: str = ""


class FolderScore(Record):
    """The score of one folder, which contains the runs of one benchmark on one system.

    Attributes:
        olympic_mean_minutes: The mean minutes without the fastest and the slowest run (for unet3d, without
            four of each), or ``None`` if the rules allow no score.
        minutes: The olympic mean times ``scaling_factor``, or ``None`` if the rules allow no score. A score
            with the verdict ``fail`` or ``unproven`` is not a result.
        runs_found: The number of runs with events.
        reasons: The reasons for the verdict, worst first, and then remarks.
        ruleset: The ruleset, such as ``5.1.0``, or "" without evidence for one.
        ruleset_origin: The evidence for the ruleset, or "" if the caller named it.
    """

    folder: str
    usage: str
    ruleset: str
    ruleset_origin: str = ""
    benchmark: str = ""
    division: str = ""
    global_batch_size: float | None = None
    runs: tuple[RunScore, ...] = ()
    runs_needed: int | None = None
    runs_found: int = Field(default=0, ge=0)
    olympic_mean_minutes: float | None = None
    scaling_factor: float = 1.0
    minutes: float | None = None
    rcp: RcpResult | None = None
    verdict: Verdict = Verdict.UNPROVEN
    reasons: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    checked_by: str = ""

    @property
    def compliant(self) -> bool | None:
        """Return whether the rules allow the number of non-compliant runs, or None if it is unknown."""
        if not self.runs or any(run.compliant is None for run in self.runs):
            return None
        failed = sum(run.compliant is False for run in self.runs)
        return failed <= allowed_failures(self.benchmark)

    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Return a table as text, with a header and one row per run in the order of the files."""
        amount = self.rcp.unit if self.rcp is not None and self.rcp.unit else "amount"
        head = ("file", "minutes", "status", "compliant", f"{amount} to converge", "in the score")
        words = {True: "yes", False: "no", None: "unknown"}
        return (
            head,
            *(
                (
                    run.file,
                    "-" if run.minutes is None else f"{run.minutes:.3f}",
                    run.status or "no run_stop",
                    words[run.compliant],
                    "-" if run.convergence is None else f"{run.convergence:g}",
                    run.part.replace("_", " "),
                )
                for run in self.runs
            ),
        )


def known_rulesets(usage: str = "training") -> tuple[str, ...]:
    """Return the rulesets of the installed ``mlperf-logging`` for a usage, oldest first.

    The package has a folder for each, such as ``compliance_checker/training_5.1.0``.

    Raises:
        ValueError: The usage is unknown. The message lists the known usages.
        ModuleNotFoundError: The package ``mlperf-logging`` is not installed.
    """
    spec = find_spec("mlperf_logging")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the package mlperf-logging is not installed")
    rules = Path(next(iter(spec.submodule_search_locations))) / "compliance_checker"
    rulesets: dict[str, list[str]] = {}
    for folder in rules.iterdir():
        match = re.fullmatch(r"([a-z]+)_(\d+\.\d+\.\d+)", folder.name)
        if match:
            rulesets.setdefault(match[1], []).append(match[2])
    if usage not in rulesets:
        raise ValueError(f"unknown usage {usage!r}; known: {', '.join(sorted(rulesets))}")
    return tuple(sorted(rulesets[usage], key=lambda name: tuple(map(int, name.split(".")))))


def allowed_failures(benchmark: str) -> int:
    """Return the number of runs that may fail, which is also the number dropped at each end."""
    return 4 if benchmark == "unet3d" else 1


def olympic_mean(minutes: Sequence[float], *, failed: int = 0, drop: int = 1) -> float | None:
    """Return the mean without the ``drop`` fastest and the ``drop`` slowest runs.

    Args:
        minutes: The minutes of the runs that ended well.
        failed: The number of runs that did not end well. Each counts as one of the slowest.
        drop: The number of runs dropped at each end.

    Returns:
        The mean in minutes, or ``None`` if more than ``drop`` runs failed or no run remains.
    """
    if failed > drop:
        return None
    counted = sorted(minutes)[drop : len(minutes) - (drop - failed)]
    return math.fsum(counted) / len(counted) if counted else None


def result_files(folder: Path) -> tuple[Path, ...]:
    """Return the result logs in a folder, with result_10 after result_2.

    The first kind that exists is used, and files of the other kinds are ignored:

    - ``result_*.txt``, the official name
    - ``result_*`` with another suffix or none, except suffixes of other files, such as ``.json`` and ``.md``
    - logs of the run script, ``<stamp>_<trial>.log``
    - every ``*.log`` and ``*.txt`` with MLPerf events that is not the output of a checker or of Slurm

    Each file may be compressed. Files whose name begins with a dot are left out.

    Raises:
        NotADirectoryError: The folder does not exist, or is a file.
        OSError: A file of the last kind cannot be read.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    # The last choice reads every file, so it is used only if no name fits.
    chosen = _named_results(files) or _trial_logs(files) or _logs_with_events(files)
    return tuple(sorted(chosen, key=_natural_key))


def _trial_logs(files: Sequence[Path]) -> list[Path]:
    """Return the logs that the run script names by a time stamp and the number of the trial."""
    return [path for path in files if _TRIAL_NAME.fullmatch(name_unpacked(path.name))]


def _logs_with_events(files: Sequence[Path]) -> list[Path]:
    return [path for path in files if _may_be_log(path) and _has_events(path)]


def _named_results(files: Sequence[Path]) -> list[Path]:
    """Return the files named ``result_*``, or only those with the official suffix if there are any."""
    named = [path for path in files if _is_named_result(path)]
    return [path for path in named if _suffix(path) == ".txt"] or named


def _is_named_result(path: Path) -> bool:
    """Return whether a file is named ``result_*``, and its suffix is not one of another kind of file."""
    return bool(_RESULT_NAME.fullmatch(name_unpacked(path.name))) and _suffix(path) not in _OTHER_SUFFIX


def _is_result_name(path: Path) -> bool:
    """Return whether a file has the name of a result: ``result_*``, or that of the run script's logs."""
    return _is_named_result(path) or bool(_trial_logs([path]))


def _suffix(path: Path) -> str:
    """Return the suffix of a log's name, ignoring the suffix of its compression."""
    return Path(name_unpacked(path.name)).suffix.lower()


def _may_be_log(path: Path) -> bool:
    """Return whether a file may be a log by its name. Output of a checker or of Slurm is no log.

    A checker's output quotes events of the logs that it checked.
    """
    return Path(name_unpacked(path.name)).suffix in (".log", ".txt") and not _is_output(path)


def _is_output(path: Path) -> bool:
    """Return whether a file has a name of the output of a checker or of Slurm."""
    return _CHECKER_OUTPUT.match(path.name) is not None


def _encoding_message(folder: Path) -> str:
    """Return a message about the first log that is not plain text (UTF-16, zstd), with the remedy, or ""."""
    for path in sorted(folder.iterdir(), key=_natural_key):
        looks_like_log = _RESULT_NAME.fullmatch(name_unpacked(path.name)) or _may_be_log(path)
        if looks_like_log and path.is_file() and (problem := encoding_problem_of(path)):
            return f"{sanitize(path.name, 100)} is not read: {problem}"
    return ""


def _natural_key(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that puts result_10 after result_2."""
    # Digits that are not ASCII are text, because int() refuses some of them.
    parts = re.split(r"(\d+)", path.name)
    return [(int(part) if part.isdigit() and part.isascii() else -1, part) for part in parts]


def _has_events(path: Path) -> bool:
    """Return whether a log, which may be compressed, contains the mark of MLPerf events."""
    with open_log(path) as stream:
        # Keep the end of the previous chunk, because the mark may span two chunks.
        end_of_chunk = b""
        while chunk := stream.read(1 << 20):
            if b":::MLL" in end_of_chunk + chunk:
                return True
            end_of_chunk = chunk[-8:]
    return False


def _unproven(code: str, message: str) -> tuple[Finding, ...]:
    """Return one unproven finding with the message, or () if the message is empty."""
    return (Finding(code=code, verdict=Verdict.UNPROVEN, message=message),) if message else ()


def score_folder(
    folder: Path,
    *,
    ruleset: str | None = None,
    usage: str = "training",
    timeout_s: float = 300,
) -> FolderScore:
    """Score the results in one folder (one benchmark on one system) by the MLPerf rules.

    The folder is not changed. The checks run in a separate process on a copy. If the logs give no score, the
    returned verdict is ``unproven`` or ``fail``, with the reason.

    Args:
        folder: The folder with the result logs (see :func:`result_files`).
        ruleset: One of :func:`known_rulesets`. If it is None, the logs or the folder's path must show the
            round. If they do not, the score is ``unproven``, and its reason asks for a ruleset.
        usage: Either ``training`` or ``hpc`` (strong scaling).
        timeout_s: The number of seconds after which the checks are stopped.

    Raises:
        ValueError: The usage or the ruleset is unknown, or the usage is ``hpc`` and nothing shows the round.
            These messages list the known values. The time limit is not positive.
        NotADirectoryError: The folder does not exist, or is a file.
        OSError: The folder cannot be read.
        ModuleNotFoundError: The package ``mlperf-logging`` is not installed.
    """
    folder = Path(folder)
    rulesets = known_rulesets(usage)
    if ruleset is not None and ruleset not in rulesets:
        raise ValueError(f"unknown ruleset {ruleset!r} for {usage}; known: {', '.join(rulesets)}")
    if not timeout_s > 0:
        raise ValueError(f"the time limit must be more than 0 s, not {timeout_s}")
    files = result_files(folder)
    evidence = read_evidence(folder, files)
    chosen = Round(ruleset) if ruleset is not None else round_of(evidence, rulesets, usage)
    if chosen.problem and usage == "hpc" and not refusal(evidence, usage):
        # Most benchmarks of HPC are in several rounds, and dates are not used to find one of them.
        raise ValueError(f"name the round's rules; known for hpc: {', '.join(rulesets)}")
    encoded = _encoding_message(folder)
    problem = _why_unchecked(evidence, files, encoded, usage) or chosen.problem
    other_round = "" if problem else not_in_round(evidence, chosen.ruleset, usage)
    remarks = _unproven("other_round", other_round) + _unproven("encoded_log", encoded)
    remarks += tuple(unread_findings(folder, files, _is_result_name, _is_output))
    if problem:
        report = WorkerReport(error=problem, findings=remarks)
    else:
        report = _run_worker(folder, files, chosen.ruleset, usage, timeout_s)
        report = report.model_copy(update={"findings": (*report.findings, *remarks)})
    score = score_of_report(report, folder=str(folder), ruleset=chosen.ruleset, usage=usage)
    return _unproven_if_other_round(score, other_round).model_copy(update={"ruleset_origin": chosen.origin})


def _why_unchecked(evidence: RoundEvidence, files: Sequence[Path], encoded: str, usage: str) -> str:
    """Return the reason why the checks cannot start, whatever the round is, or "" if they can."""
    none = "no result logs (result_*.txt or *.log with MLPerf events) in the folder"
    problem = refusal(evidence, usage) or ("" if files or encoded else none)
    return problem or ("" if evidence.benchmarks else encoded)


def _unproven_if_other_round(score: FolderScore, other_round: str) -> FolderScore:
    """Return the score. If its logs are of another round, make it unproven.

    The rules of this round prove no fault in logs of another one.
    """
    if not other_round:
        return score
    reasons = (other_round, *(reason for reason in score.reasons if reason != other_round))
    return score.model_copy(update={"verdict": Verdict.UNPROVEN, "reasons": reasons})


def _run_worker(
    folder: Path, files: Sequence[Path], ruleset: str, usage: str, timeout_s: float
) -> WorkerReport:
    """Run the checks in a separate process. Return their result, or the reason why there is none."""
    reports: list[WorkerReport] = []

    def on_answer(line: bytes) -> None:
        # A line that the time limit cut off is not JSON. Without a report, the exit status is reported.
        with contextlib.suppress(ValueError):
            reports.append(WorkerReport.model_validate(json.loads(line)))

    with tempfile.TemporaryDirectory(prefix="rackproof-score-") as work:
        job = {
            "folder": str(folder.resolve()),
            "files": [path.name for path in files],
            "work": work,
            "ruleset": ruleset,
            "usage": usage,
        }
        end = run_in_sandbox(
            "rackproof.analysis.mlperf.worker", job, Path(work), timeout_s=timeout_s, on_answer=on_answer
        )
    if reports:
        return reports[-1]
    if end.timed_out:
        return WorkerReport(error=f"the checks took longer than {timeout_s:g} s and were stopped")
    return WorkerReport(error=f"the checks ended early (exit status {end.status}): {end.last_error}")


def score_of_report(
    report: WorkerReport, *, folder: str, ruleset: str, usage: str = "training"
) -> FolderScore:
    """Apply the scoring rules to the worker's report.

    Args:
        report: The facts about every run.
        folder: The name to show.
        ruleset: The ruleset that the worker used.
        usage: Either ``training`` or ``hpc``.
    """
    runs = report.runs
    benchmark = _first(run.benchmark for run in runs)
    drop = allowed_failures(benchmark)
    failed = [run for run in runs if not run.scores]
    # A file without any event shows no run. The run is missing, not failed.
    runs_with_events = [run for run in runs if run.events]
    problems = list(_reasons_against_pass(report, benchmark, runs_with_events, failed, drop))
    scorable = _is_scorable(report, runs_with_events)
    mean = _mean_minutes(runs, failed, drop) if scorable else None
    factor = _factor(report)
    reasons = {text for _, text in problems}
    remarks = [remark for remark in _remarks(report.findings) if remark not in reasons]
    if mean is not None:
        runs = _with_parts(runs, drop)
    elif not problems:
        problems.append((Verdict.UNPROVEN, "no run is left to take the mean of"))
    return FolderScore(
        folder=folder,
        usage=usage,
        ruleset=ruleset,
        benchmark=benchmark,
        division=_first(run.division for run in runs),
        global_batch_size=_first_batch_size(runs),
        runs=runs,
        runs_needed=report.runs_needed,
        runs_found=len(runs_with_events),
        olympic_mean_minutes=mean,
        scaling_factor=factor,
        minutes=_scaled(mean, factor),
        rcp=report.rcp,
        verdict=worst([_verdict(problems), *_degraded_verdicts(report.findings)]),
        reasons=(
            *_worst_reasons_first(problems),
            *_notes(failed, scorable, drop, report.rcp),
            *remarks,
        ),
        findings=report.findings,
        checked_by=f"mlperf-logging {version('mlperf-logging')}",
    )


def _is_scorable(report: WorkerReport, shown: Sequence[RunScore]) -> bool:
    """Return whether the logs are one complete result that was checked, even with failed runs.

    ``shown`` are the runs with events.
    """
    runs = report.runs
    if not runs or not report.runs_needed == len(shown) == len(runs):
        return False
    if _duplicates(runs) or _mixtures(runs):
        return False
    return all(run.compliant is not None for run in runs)


def _mean_minutes(runs: Sequence[RunScore], failed: Sequence[RunScore], drop: int) -> float | None:
    """Return the olympic mean of the runs that count. Failed runs take the places of the slowest."""
    good = sorted(run.minutes for run in runs if run.scores and run.minutes is not None)
    return olympic_mean(good, failed=len(failed), drop=drop)


def _factor(report: WorkerReport) -> float:
    """Return the larger of the factors of the RCP comparison and of scaling.json, at least 1."""
    rcp = report.rcp
    factor = rcp.scaling_factor if rcp is not None and rcp.passed else 1.0
    if report.folder_scaling_factor is not None:
        factor = max(factor, report.folder_scaling_factor)
    return factor


def _scaled(mean: float | None, factor: float) -> float | None:
    return None if mean is None else mean * factor


def _remarks(findings: Sequence[Finding]) -> list[str]:
    """Return the findings that neither fail nor are unproven, as reasons for readers.

    If there are more than five, the last line states how many others there are.
    """
    gates = [finding.verdict is not None and finding.verdict.gates for finding in findings]
    remarks = [_with_source(finding) for finding, bad in zip(findings, gates, strict=True) if not bad]
    if len(remarks) > _MAX_REMARKS:
        remarks[_MAX_REMARKS:] = [f"and {len(remarks) - _MAX_REMARKS} more remarks (see the findings)"]
    return remarks


def _with_source(finding: Finding) -> str:
    """Return a finding's message, after its file and line if they are known."""
    place = str(finding.source)
    return f"{place}: {finding.message}" if place else finding.message


def _first(values: Iterator[str]) -> str:
    """Return the first non-empty value, or ""."""
    return next(filter(None, values), "")


def _first_batch_size(runs: Sequence[RunScore]) -> float | None:
    return next((run.global_batch_size for run in runs if run.global_batch_size), None)


def _verdict(problems: Sequence[tuple[Verdict, str]]) -> Verdict:
    """Return the verdict of the worst problem, or a pass if there is none."""
    return worst(verdict for verdict, _ in problems) if problems else Verdict.PASS


def _degraded_verdicts(findings: Sequence[Finding]) -> list[Verdict]:
    """Return ``degraded`` for each finding with that verdict."""
    return [finding.verdict for finding in findings if finding.verdict is Verdict.DEGRADED]


def _worst_reasons_first(problems: Sequence[tuple[Verdict, str]]) -> list[str]:
    """Return the texts of the reasons, with failures first."""
    worst_first = (Verdict.FAIL, Verdict.UNPROVEN)
    return [text for shown in worst_first for verdict, text in problems if verdict is shown]


def _reasons_against_pass(
    report: WorkerReport, benchmark: str, shown: Sequence[RunScore], failed: Sequence[RunScore], drop: int
) -> Iterator[tuple[Verdict, str]]:
    """Yield all reasons that rule out a pass.

    ``shown`` are the runs with events, ``failed`` the runs that do not count in the score, and ``drop`` is
    the number of runs that may fail.
    """
    if report.error:
        yield Verdict.UNPROVEN, report.error
        return
    yield from _log_problems(report.runs, shown)
    yield from _count_problems(benchmark, len(shown), report.runs_needed)
    # An empty log, or one that could not be checked, proves no failure. Its reason is above.
    really_failed = [run for run in failed if run in shown and run.compliant is not None]
    if len(really_failed) > drop:
        names = "; ".join(_why_failed(run) for run in really_failed[:5])
        yield Verdict.FAIL, f"{amount(len(really_failed), 'run')} failed, at most {drop} may: {names}"
    complete = len(shown) == report.runs_needed
    yield from _damage_before_comparison(report, complete=complete)
    yield from _convergence_problems(report.rcp, complete=complete)
    for finding in report.findings:
        if finding.verdict is not None and finding.verdict.gates:
            yield finding.verdict, _with_source(finding)


def _count_problems(benchmark: str, count: int, needed: int | None) -> Iterator[tuple[Verdict, str]]:
    """Yield a reason if the number of runs is not the required number, or if the rules state no number."""
    if needed is None:
        named = f"the benchmark {benchmark!r}" if benchmark else "a benchmark that the logs do not name"
        yield Verdict.UNPROVEN, f"the rules give no number of runs for {named}"
    elif count != needed:
        yield Verdict.UNPROVEN, f"{count} run{'s' * (count != 1)} where the rules require exactly {needed}"


def _log_problems(runs: Sequence[RunScore], shown: Sequence[RunScore]) -> Iterator[tuple[Verdict, str]]:
    """Yield the reasons why the logs are not one result.

    The reasons are logs that were not checked, empty logs, logs of different kinds, and copies.
    """
    for run in runs:
        if run.compliant is None:
            yield Verdict.UNPROVEN, f"{run.file}: {'; '.join(run.messages) or 'not checked'}"
    empty = [run.file for run in runs if run not in shown]
    if empty:
        yield Verdict.UNPROVEN, f"no readable MLPerf event in {', '.join(empty)}"
    for mixture in _mixtures(runs):
        yield Verdict.FAIL, f"logs of different {mixture}"
    for first_file, second_file in _duplicates(runs):
        yield Verdict.FAIL, f"{first_file} and {second_file} have the same events: they are one run"


def _damage_before_comparison(report: WorkerReport, *, complete: bool) -> Iterator[tuple[Verdict, str]]:
    """Yield the damaged lines if convergence could not be compared, because they are the likely cause."""
    if not complete or report.rcp is None or not report.rcp.applies or report.rcp.passed is not None:
        return
    damaged = [finding for finding in report.findings if finding.code == "damaged_line"]
    for finding in damaged[:3]:
        yield Verdict.UNPROVEN, _with_source(finding)


def _convergence_problems(rcp: RcpResult | None, *, complete: bool) -> Iterator[tuple[Verdict, str]]:
    """Yield a reason if the convergence is rejected or, for a complete set of runs, was not compared."""
    rcp = rcp or RcpResult(applies=True, message="nothing was compared")
    if not rcp.applies:
        return
    if rcp.passed is False:
        mean, least = rcp.submission_mean, rcp.smallest_allowed
        # The checker's own message is "RCP found", even for runs that it rejects.
        too_fast = mean is not None and least is not None and mean < least
        why = (
            f"{mean:.4g} {rcp.unit} to converge, but at least {least:.4g} are needed"
            if too_fast
            else rcp.message
        )
        yield Verdict.FAIL, f"convergence rejected: {why}"
    elif rcp.passed is None and complete:
        # If the set is incomplete, the missing runs are the reason.
        yield Verdict.UNPROVEN, f"convergence not compared: {rcp.message}"


def _notes(failed: Sequence[RunScore], scorable: bool, drop: int, rcp: RcpResult | None) -> Iterator[str]:
    """Yield remarks about runs that count as slowest, and about convergence that was not compared."""
    if scorable and 0 < len(failed) <= drop:
        yield f"counted as slowest: {'; '.join(_why_failed(run) for run in failed)}"
    if rcp is not None and not rcp.applies:
        yield f"convergence not compared: {rcp.message}"


def _why_failed(run: RunScore) -> str:
    """Return why a run is a failed run."""
    if run.status != "success":
        return f"{run.file} ended with {run.status!r}" if run.status else f"{run.file} has no run_stop"
    if run.minutes is None:
        return f"{run.file} has no possible duration"
    return f"{run.file} is not compliant ({run.messages[0] if run.messages else 'no message'})"


def _mixtures(runs: Sequence[RunScore]) -> list[str]:
    """Return the properties that differ between the logs of one result although they must be equal."""
    shared = (
        ("benchmarks", {run.benchmark for run in runs if run.benchmark}),
        ("divisions", {run.division for run in runs if run.division}),
        ("global batch sizes", {f"{run.global_batch_size:g}" for run in runs if run.global_batch_size}),
    )
    return [
        f"{noun} in one folder: {', '.join(sorted(values))}" for noun, values in shared if len(values) > 1
    ]


def _duplicates(runs: Sequence[RunScore]) -> list[tuple[str, str]]:
    """Return pairs of files with the same events.

    Two logs of different runs differ in the times of their events.
    """
    first_files: dict[str, str] = {}
    pairs = []
    for run in runs:
        if run.events:
            first_file = first_files.setdefault(run.digest, run.file)
            if first_file != run.file:
                pairs.append((first_file, run.file))
    return pairs


def _with_parts(runs: Sequence[RunScore], drop: int) -> tuple[RunScore, ...]:
    """Return the runs, each with its role in the score."""
    good = sorted((run.minutes, index) for index, run in enumerate(runs) if run.scores)
    failed = len(runs) - len(good)
    parts: dict[int, Part] = {}
    for place, (_, index) in enumerate(good):
        if place < drop:
            parts[index] = "dropped_fastest"
        elif place >= len(good) - (drop - failed):
            parts[index] = "dropped_slowest"
        else:
            parts[index] = "counted"
    return tuple(
        run.model_copy(update={"part": parts.get(index, "failed")}) for index, run in enumerate(runs)
    )


def at_file(finding: Finding, file: str) -> Finding:
    """Return a finding with the name of its log in the source."""
    return finding.model_copy(update={"source": Source(file=file, line=finding.source.line)})
