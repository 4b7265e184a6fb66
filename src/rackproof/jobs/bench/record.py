"""Turn an ended job into a record with a verdict, store it in the history, and write its reports.

Task ``record`` of bench.yml calls :func:`write_record` for each run, also for one that could not start. The
input is the plan of the run, the state of its job (state.json), and the logs
``results/RUN_ID/logs/NODE.log``. The output is ``results/RUN_ID/run.json``, an entry in the history, and the
page of the run. No other module gives a run of bench.yml its verdict when it is recorded.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from rackproof import __version__
from rackproof.core.judging import SkuReference, judge_run
from rackproof.core.last_lines import last_words, read_last_lines
from rackproof.core.records import (
    Dataset,
    Direction,
    Finding,
    LogFile,
    Measurement,
    ParsedLog,
    Record,
    Reference,
    Run,
    Verdict,
    tags_under,
)
from rackproof.core.text import sanitize
from rackproof.jobs.bench.log_checks import BY_ITSELF, log_findings
from rackproof.jobs.bench.machine_use import busy_findings
from rackproof.jobs.bench.mlperf_checks import (
    PREFLIGHT,
    PREFLIGHT_CODE,
    LauncherOutput,
    preflight_is_off,
    published_references,
)
from rackproof.jobs.bench.planning import STILL_RUNNING, PlannedRun, definition_findings
from rackproof.jobs.bench.required_evidence import (
    Evidence,
    MachineRun,
    lacking_findings,
    machine_lacks,
    moment_of,
    usable_state,
)
from rackproof.logs import read_log_file
from rackproof.report import write_run_reports
from rackproof.store.history.client import History, measurement_key
from rackproof.store.run_folder import write_run

# Matches a seed in a log. Eighteen digits fit into 64 bits and into the columns of the history.
_INTEGER = re.compile(r"-?[0-9]{1,18}")

# Exit statuses of Rackproof's own workloads (docs/extending/workloads.md), with their meanings. Like the
# codes of the next two tables, they prove neither success nor failure. Any other status except 0 means that
# something failed while the workload ran. For a site's own program, run_command.py replaces every other
# status by 1.
COULD_NOT_RUN = {
    4: "a GPU that was requested is absent",
    5: "the data is missing or damaged",
    8: "the nodes did not meet, or point.json or the program cannot be used",
    9: "the program is not there or not executable (on several nodes: or mpirun, or ssh)",
}
_COULD_NOT_LAUNCH = {
    6: "the image could not be built or fetched",
    7: "no config fits, or Slurm did not take or start the job",
}
"""Exit statuses of slurm_run.py and docker_run.py with the same effect. For a workload that is started by
itself, 6 means another thing."""
_WRONG_ARGUMENT = {2: "a parameter has a value that it cannot use"}
"""Exit status of a workload that is started by itself, with the same effect. A wrong parameter is no
fault."""
_FAILED_BY_ITSELF = {3: "a loss or weight is NaN or infinite", 6: "its target was not reached"}
"""Exit statuses of Rackproof's own workloads that show what failed."""
_LINES_READ = 20
"""Number of last lines of a log to search for the reason why its program ended."""

_SEALED = (
    "id", "phase", "ended_by", "exit_status", "signal", "succeeded", "started", "ended", "unkillable",
    "log_bytes", "log_sha256",
)  # fmt: skip
"""Fields that the seal of a job's end covers, in this order."""
_ENDED_BADLY = {
    "timeout": ("timed_out", Verdict.FAIL, "ended after its limit of {timeout_s} s"),
    "hang": ("hung", Verdict.FAIL, "hung: its log did not grow for {hang_s} s, then it was ended"),
    "stopped": ("stopped", Verdict.UNPROVEN, "was stopped from outside"),
    "log_limit": ("log_limit", Verdict.FAIL, "wrote more log than allowed and was ended"),
    "supervisor_died": (
        "supervisor_died",
        Verdict.UNPROVEN,
        "ended unseen: its supervisor was killed or the node was rebooted",
    ),
}
"""Code, verdict and message of the finding for each ``ended_by`` of a job that did not end by itself."""


class RecordedRun(Record):
    """A recorded run, its folder, and the path of its HTML page.

    ``history`` states what failed: references, the entry in the history, or the page. It is "" if nothing
    failed.
    """

    run: Run
    folder: str
    report: str
    history: str = ""


def job_findings(planned: PlannedRun, evidence: Evidence) -> list[Finding]:
    """Return the findings that follow from the job's end, not from its log.

    If the state of the job is complete and there is no finding, the job belongs to this run, and ended by
    itself with exit status 0 on the requested nodes. The state comes from a node, so any of its values may be
    absent or damaged. :func:`~rackproof.jobs.bench.required_evidence.machine_lacks` reports these.
    """
    job = evidence.job
    findings = []
    if evidence.could_not_start:
        findings.append(_finding("could_not_start", Verdict.UNPROVEN, evidence.could_not_start))
    else:
        findings += _node_findings(planned, evidence)
    if not job:
        return findings
    if job.get("id") != planned.run_id:
        message = f"the job is that of another run ({sanitize(job.get('id'), 130)})"
        findings.append(_finding("another_job", Verdict.UNPROVEN, message))
    elif job.get("phase") == "running" or evidence.could_not_start:
        message = "its job still runs on the node, or ended unseen: start the playbook again to follow it"
        findings.append(_finding(STILL_RUNNING, Verdict.UNPROVEN, message))
    else:
        findings += _end_findings(planned, usable_state(job))
    if _is_damaged(job):
        message = "the state of the job lost something on its way from the node"
        findings.append(_finding("job_damaged", Verdict.UNPROVEN, message))
    return findings


def part_findings(run_id: str, jobs: Mapping[str, Any]) -> list[Finding]:
    """Return findings on parts of the job that belong to another run, or that were damaged on their way.

    Args:
        run_id: The id of the run.
        jobs: The state of each node's part, except the lead's. A missing state has a finding of its own
            (:func:`rackproof.jobs.bench.node_setup.judge_setup`).
    """
    findings = []
    for name, job in jobs.items():
        if not isinstance(job, Mapping) or not job:
            continue
        if job.get("id") != run_id:
            message = f"{name}: its part of the job is that of another run ({sanitize(job.get('id'), 130)})"
            findings.append(_finding("another_job", Verdict.UNPROVEN, message))
        if _is_damaged(job):
            message = f"{name}: the state of its part of the job lost something on its way from the node"
            findings.append(_finding("job_damaged", Verdict.UNPROVEN, message))
    return findings


def _is_damaged(job: Mapping[str, Any]) -> bool:
    """Return whether a job's state differs from its seal, or the state of an ended job has no seal."""
    return bool(job.get("seal", job_seal(job) if job.get("phase") != "ended" else "") != job_seal(job))


def job_seal(job: Mapping[str, Any]) -> str:
    """Return the digest of the relevant parts of a job's end, computed as rackproof_job does on the node.

    Return "none" if the state cannot be written as JSON.
    """
    # An older supervisor reports no state of its machine, so its seal does not cover one.
    counted = [[key, job.get(key)] for key in (*_SEALED, *(["machine"] if "machine" in job else []))]
    try:
        return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError):
        return "none"


def _node_findings(planned: PlannedRun, evidence: Evidence) -> list[Finding]:
    """Return a finding if other nodes than planned took part."""
    planned_names, took_part = set(planned.nodes), {node.name for node in evidence.nodes}
    # If a run used other nodes than planned, its numbers belong to another system.
    differences = [f"{name} took no part" for name in sorted(planned_names - took_part)]
    differences += [f"{name} was not requested" for name in sorted(took_part - planned_names)]
    if not differences:
        return []
    return [_finding("nodes_differ", Verdict.UNPROVEN, f"other nodes than planned: {', '.join(differences)}")]


def _end_findings(planned: PlannedRun, job: Mapping[str, Any]) -> list[Finding]:
    """Return the faults of a job of this run that is no longer running."""
    finding = _interruption(planned, job) or _exit_failure(planned, job)
    findings = [finding] if finding is not None else []
    # The verdict is degraded, because the run's numbers are valid, but the remaining processes may
    # occupy the next run's GPUs.
    if job.get("unkillable"):
        message = f"processes of the job survive SIGKILL on the node: {sanitize(job['unkillable'], 200)}"
        findings.append(_finding("unkillable", Verdict.DEGRADED, message))
    return findings


def _interruption(planned: PlannedRun, job: Mapping[str, Any]) -> Finding | None:
    """Return a finding if a job did not end by itself, or if its end is unknown, or else None."""
    ended_by = job.get("ended_by", "itself")
    if ended_by == "supervisor_died" and planned.is_slurm_job:
        # The program on that node only followed the job. The same command finds the Slurm job, or its
        # end.
        message = (
            f"{planned.lead}, which followed the Slurm job, was rebooted or lost the process that "
            "followed it; the job may still run: start the same command again to follow it "
            f"(or scancel --name {planned.run_id})"
        )
        return _finding(STILL_RUNNING, Verdict.UNPROVEN, message)
    if (phase := job.get("phase")) != "ended":
        message = f"the end of the job is not known: its phase is {sanitize(phase, 100)}"
        return _finding("unknown_end", Verdict.UNPROVEN, message)
    if ended_by in _ENDED_BADLY:
        code, verdict, advice = _ENDED_BADLY[ended_by]
        message = advice.format(timeout_s=planned.timeout_s, hang_s=planned.hang_s)
        return _finding(code, verdict, f"the job {message}")
    if ended_by != "itself":
        message = f"the job was ended by an unknown cause: {sanitize(ended_by, 100)}"
        return _finding("unknown_end", Verdict.UNPROVEN, message)
    return None


def _exit_failure(planned: PlannedRun, job: Mapping[str, Any]) -> Finding | None:
    """Return a finding with the first cause that applies if a job that ended by itself failed, or None."""
    status, signal = job.get("exit_status", 0), job.get("signal")
    # A signal is the cause, whatever the exit status is.
    if signal is not None:
        return _finding("killed", Verdict.FAIL, f"the job was killed by signal {sanitize(signal, 20)}")
    by_itself = planned.launcher in BY_ITSELF
    could_not_run = COULD_NOT_RUN | (_WRONG_ARGUMENT if by_itself else _COULD_NOT_LAUNCH)
    if status in could_not_run:
        message = f"the job could not run: {could_not_run[status]} (exit status {status})"
        return _finding("could_not_run", Verdict.UNPROVEN, message)
    if status != 0:
        # A failed program is a failure, whatever the supervisor reports.
        meaning = _FAILED_BY_ITSELF.get(status) if by_itself else None
        message = f"the job ended with exit status {status}"
        return _finding("exit_status", Verdict.FAIL, f"{message}: {meaning}" if meaning else message)
    if not job.get("succeeded", True):
        message = "the job has exit status 0, yet its supervisor reports no success"
        return _finding("contradiction", Verdict.UNPROVEN, message)
    return None


_ENDED_EARLY = frozenset({"exit_status", "killed", "could_not_run", "hung", "timed_out"})
"""Codes of findings on a program that ended early. Its last lines may contain the reason."""


def _with_last_words(findings: Sequence[Finding], words: str) -> list[Finding]:
    """Return the findings. A message about a program that ended early gets the program's last lines."""
    return [
        finding.model_copy(update={"message": f"{finding.message}; its last lines: {words}"})
        if words and finding.code in _ENDED_EARLY
        else finding
        for finding in findings
    ]


def _finding(code: str, verdict: Verdict, message: str) -> Finding:
    """Return a finding on the run."""
    return Finding(code=code, verdict=verdict, message=message[:4000])


def build_run(
    planned: PlannedRun,
    parsed: Sequence[ParsedLog],
    evidence: Evidence,
    references: Callable[[Measurement], Sequence[Reference]],
    *,
    plan_id: str = "",
    require_references: bool = True,
    log_files: Sequence[LogFile] = (),
    trouble: str = "",
    sku_references: Sequence[SkuReference] = (),
    words: str = "",
) -> Run:
    """Judge the measurements and return the record. The only file that may be read is the definition.

    Args:
        planned: The run as it was planned.
        parsed: The parsed logs of the run.
        evidence: The other evidence about the run.
        references: A function that returns the references of a measurement.
        plan_id: The id of the plan.
        require_references: Whether a measurement without a reference gates.
        log_files: The raw logs beside the record.
        trouble: The reason why references of the history may be missing, or "".
        sku_references: The references of the SKU. Each that applies needs a measurement.
        words: The last lines of the program on one line, which may explain why it ended early.
    """
    lacks = machine_lacks(MachineRun(planned, evidence, parsed))
    started, ended = moment_of(evidence.job.get("started")), moment_of(evidence.job.get("ended"))
    findings = _with_last_words(_ordered_findings(planned, evidence), words)
    # A run that was not started, or that continues, left no log to compare.
    if not evidence.could_not_start and evidence.job.get("phase") == "ended":
        began = min(filter(None, (started, evidence.slurm_start)), default=None) if started else None
        findings += log_findings(planned, evidence.job, began, ended, parsed, evidence.nodes)
    findings += busy_findings(evidence.busy)
    against = [*findings, *chain.from_iterable(log.findings for log in parsed)]
    findings += lacking_findings(lacks, against)
    outcome = judge_run(
        planned.result.judge,
        parsed,
        findings,
        references,
        parameters=planned.parameters,
        require_references=require_references,
        source=planned.definition_name,
        trouble=trouble,
        more=evidence.measurements,
        sku_references=_expected_baselines(planned, sku_references, findings, evidence.measurements),
        busy=evidence.busy,
    )
    status = evidence.job.get("exit_status")
    tags = _merged_tags(parsed)
    return Run(
        run_id=planned.run_id,
        plan_id=plan_id,
        benchmark=planned.benchmark,
        suite=planned.suite,
        description=evidence.description,
        started=started,
        ended=ended,
        parameters=dict(planned.parameters),
        command=evidence.command,
        environment=planned.environment,
        launcher=planned.launcher,
        container=planned.container,
        container_digest=evidence.container_digest,
        nodes=evidence.nodes,
        asked_nodes=planned.nodes,
        machine_use=evidence.machine_use,
        software=tags_under(tags, "software."),
        dataset=Dataset.from_tags(tags),
        storage=evidence.storage,
        network=evidence.network,
        seeds=(int(tags["seed"]),) if _INTEGER.fullmatch(tags.get("seed", "")) else (),
        exit_status=status if type(status) is int else None,
        measurements=(*_log_measurements(parsed), *evidence.measurements),
        series=tuple(chain.from_iterable(log.series for log in parsed)),
        findings=(*findings, *chain.from_iterable(log.findings for log in parsed)),
        judgements=outcome.judgements,
        verdict=outcome.verdict,
        reasons=outcome.reasons,
        logs=tuple(log_files),
        definition_sha256=planned.definition_sha256,
        rackproof_version=__version__,
        notes=evidence.notes,
    )


def _expected_baselines(
    planned: PlannedRun,
    sku_references: Sequence[SkuReference],
    findings: Sequence[Finding],
    measurements: Sequence[Measurement],
) -> list[SkuReference]:
    """Return the SKU's references for which a run needs a measurement.

    The preflight's reference is left out if the preflight was measured, was planned to be off, or has its own
    gating finding.
    """
    # For a missing or failed preflight, a gating finding names cause and remedy.
    explained = any(
        finding.code == PREFLIGHT_CODE and finding.verdict and finding.verdict.gates for finding in findings
    )
    # A preflight with a size other than the reference's is judged without a reference.
    measured = any(measurement.name == PREFLIGHT for measurement in measurements)
    skipped = {PREFLIGHT} if explained or measured or preflight_is_off(planned) else set()
    return [
        reference
        for reference in sku_references
        if reference.metric not in skipped and reference.applies(planned.benchmark, planned.parameters)
    ]


def _ordered_findings(planned: PlannedRun, evidence: Evidence) -> list[Finding]:
    """Return the findings that are not from logs, the most specific first. Reports show only a few."""
    job = job_findings(planned, evidence)
    if planned.launcher in BY_ITSELF:
        return [*job, *evidence.findings, *definition_findings(planned)]
    # The launcher's exit status only repeats Slurm and the log in other words.
    return [*evidence.findings, *job, *definition_findings(planned)]


def _merged_tags(parsed: Sequence[ParsedLog]) -> dict[str, str]:
    """Return the tags of all logs. If logs differ, the last one counts."""
    tags: dict[str, str] = {}
    for log in parsed:
        tags.update(log.tags)
    return tags


def _log_measurements(parsed: Sequence[ParsedLog]) -> list[Measurement]:
    """Return the measurements of all logs."""
    return list(chain.from_iterable(log.measurements for log in parsed))


def write_record(
    planned: PlannedRun,
    evidence: Evidence,
    folder: Path,
    *,
    plan_id: str = "",
    sku_references: Sequence[SkuReference] = (),
    require_references: bool = True,
) -> RecordedRun:
    """Parse the logs under ``folder/logs``, judge them, and write record, history and reports.

    The record is written first, so a later failure loses no run. :attr:`RecordedRun.history` states the
    failure, and :func:`rackproof.jobs.bench.tasks.report_plan` writes a missing page later.

    Args:
        planned: The run as it was planned.
        evidence: The other evidence about the run.
        folder: The folder ``results/RUN_ID``.
        plan_id: The id of the plan.
        sku_references: The references of the SKU.
        require_references: Whether a measurement without a reference gates.

    Raises:
        ResultsError: The record cannot be written.
    """
    history = History(folder.parent)
    run, remark = judge_folder(
        planned,
        evidence,
        folder,
        history,
        plan_id=plan_id,
        sku_references=sku_references,
        require_references=require_references,
    )
    write_run(run, folder)
    page, remarks = _keep_and_report(run, folder, history)
    remarks = [remark, *remarks]
    return RecordedRun(run=run, folder=str(folder), report=page, history=" ".join(filter(None, remarks)))


def judge_folder(
    planned: PlannedRun,
    evidence: Evidence,
    folder: Path,
    history: History,
    *,
    plan_id: str = "",
    sku_references: Sequence[SkuReference] = (),
    require_references: bool = True,
) -> tuple[Run, str]:
    """Return a run's record from the logs under ``folder/logs``, and why references may be missing, or "".

    No file of the results is written.

    Args:
        planned: The run as it was planned.
        evidence: The other evidence about the run.
        folder: The folder ``results/RUN_ID``.
        history: The history, with the accepted references of this hardware.
        plan_id: The id of the run's plan.
        sku_references: The references of the SKU.
        require_references: Whether a measurement without a reference gates.
    """
    logs = _read_logs(planned, evidence, folder)
    evidence = evidence.model_copy(update={"findings": (*logs.findings, *evidence.findings)})
    if logs.launcher_output is not None:
        launcher_evidence = logs.launcher_output.check(planned, folder, logs.parsed, plan_id)
        update = {
            "findings": (*evidence.findings, *launcher_evidence.findings),
            "measurements": (*evidence.measurements, *launcher_evidence.measurements),
            "container_digest": launcher_evidence.container_digest,
            "slurm_start": launcher_evidence.slurm_start,
        }
        evidence = evidence.model_copy(update=update)
    measured = [*_log_measurements(logs.parsed), *evidence.measurements]
    # Read the references before the run is stored, so that a run is never its own reference.
    accepted, remark = history.baselines(planned.benchmark, planned.parameters, evidence.nodes, measured)

    def references(measurement: Measurement) -> list[Reference]:
        return [
            *_baselines_of(sku_references, planned, measurement),
            *_published_references(planned, measurement),
            *accepted.get(measurement_key(measurement), []),
        ]

    run = build_run(
        planned,
        logs.parsed,
        evidence,
        references,
        plan_id=plan_id,
        require_references=require_references,
        log_files=logs.files,
        trouble=remark,
        sku_references=sku_references,
        words="" if evidence.job.get("succeeded") is True else _words_of_lead(planned, folder, logs.files),
    )
    return run, remark


def _words_of_lead(planned: PlannedRun, folder: Path, files: Sequence[LogFile]) -> str:
    """Return the last lines of the lead's log, or "" if it is not kept with the run."""
    path = f"logs/{planned.lead}.log"
    has_log = any(file.path == path for file in files)
    return last_words(read_last_lines(folder / path, _LINES_READ)) if has_log else ""


def _keep_and_report(run: Run, folder: Path, history: History) -> tuple[str, list[str]]:
    """Store a written record in the history, and write its page. Return the page's path and the errors."""
    page, remarks = "", []
    try:
        remarks.append(history.keep(folder))
    except Exception as error:  # The record is written. A later error must not lose it.
        remarks.append(f"run {run.run_id} could not be entered into the history: {error}")
    try:
        page = str(write_run_reports(run, folder)["html"])
    except Exception as error:
        remarks.append(f"the page of run {run.run_id} could not be written yet: {error}")
    return page, remarks


@dataclass
class _Logs:
    """The logs of a run, each parsed once."""

    files: list[LogFile] = field(default_factory=list)
    parsed: list[ParsedLog] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Faults of the files themselves. Faults that the logs report are not here."""
    launcher_output: LauncherOutput | None = None
    """Output of the launcher, if a cluster started the job and the lead's log was readable."""


def _read_logs(planned: PlannedRun, evidence: Evidence, folder: Path) -> _Logs:
    """Parse the logs of the run's nodes, and check that the lead's is the file that its job wrote."""
    logs = _Logs()
    paths, findings = _own_logs(planned, folder / "logs")
    # Without a job there are no logs, and another finding already states that it was not started.
    if not evidence.could_not_start:
        logs.findings += findings
    for path in paths:
        is_lead = path.stem == planned.lead
        # Only the lead's log contains the launcher's output. Logs of other nodes would contradict it.
        output = LauncherOutput(planned.launcher) if is_lead and planned.launcher not in BY_ITSELF else None
        entry = _read_log(planned, path, output, logs)
        if is_lead and entry is not None:
            logs.findings += _copy_findings(entry, evidence.job)
    return logs


def _read_log(planned: PlannedRun, path: Path, output: LauncherOutput | None, logs: _Logs) -> LogFile | None:
    """Read one log into the logs of its run. Return its entry, or None if it is unreadable."""
    name = f"logs/{path.name}"
    try:
        log, entry = read_log_file(
            path,
            name,
            format=planned.result.format,
            observers=[output] if output else [],
            lines=planned.result.lines,
        )
    except OSError as error:
        message = f"{name} cannot be read: {error.strerror}"
        logs.findings.append(_finding("unreadable_log", Verdict.UNPROVEN, message))
        return None
    logs.parsed.append(log)
    logs.files.append(entry)
    logs.launcher_output = output or logs.launcher_output
    return entry


def _copy_findings(entry: LogFile, job: Mapping[str, Any]) -> list[Finding]:
    """Return a finding if the lead's log is not the file that its job wrote, by size or digest."""
    size_on_node, digest_on_node = job.get("log_bytes"), job.get("log_sha256")
    message = ""
    # isinstance would accept True, which is an int but no size.
    if type(size_on_node) is int and size_on_node != entry.size_bytes:
        message = f"{entry.path} has {entry.size_bytes} bytes here, but {size_on_node} on the node"
    elif digest_on_node is not None and digest_on_node != entry.sha256:
        message = f"{entry.path} differs from the file that the job wrote: the digests are not equal"
    return [_finding("log_differs", Verdict.UNPROVEN, message)] if message else []


def _baselines_of(
    baselines: Sequence[SkuReference], planned: PlannedRun, measurement: Measurement
) -> list[Reference]:
    """Return the SKU's references that apply to a measurement.

    A reference with more labels and parameters is more specific. The most specific references remain
    unchanged. Of the others, only the bound on the bad side remains. A reference for a specific case must not
    lower the SKU's floor.
    """
    fitting = [
        baseline
        for baseline in baselines
        if baseline.fits(planned.benchmark, planned.parameters, measurement)
    ]
    closest = max(map(_particularity, fitting), default=None)
    direction = _direction_of(planned, measurement)
    return [
        baseline.reference if _particularity(baseline) == closest else _floor(baseline.reference, direction)
        for baseline in fitting
    ]


def _direction_of(planned: PlannedRun, measurement: Measurement) -> Direction | None:
    """Return the better direction of a measurement, from its rule or else its own, which may be None."""
    for rule in planned.result.judge:
        if rule.metric == measurement.name and rule.direction is not None:
            return rule.direction
    return measurement.direction


def _floor(reference: Reference, direction: Direction | None) -> Reference:
    """Return a reference without its bound on the good side.

    Without a direction, both bounds remain. A warning always remains.
    """
    open_side = {Direction.HIGHER: {"high": None}, Direction.LOWER: {"low": None}, None: {}}[direction]
    return reference.model_copy(update=open_side)


def _published_references(planned: PlannedRun, measurement: Measurement) -> list[Reference]:
    """Return the published results for a measurement of MLPerf's own code.

    Numbers of other programs are not comparable with them.
    """
    if planned.launcher in BY_ITSELF or not planned.published_references:
        return []
    return published_references(planned, measurement)


def _particularity(baseline: SkuReference) -> tuple[int, bool]:
    """Return the sorting key of a reference, higher for a more specific one.

    The first part is the number of its conditions, and the second is whether it names a benchmark.
    """
    return len(baseline.parameters) + len(baseline.labels), bool(baseline.benchmark)


def _own_logs(planned: PlannedRun, folder: Path) -> tuple[list[Path], list[Finding]]:
    """Return the logs of the run's nodes, and findings about other files and a missing log of the lead."""
    own_files, findings = [], []
    expected = {f"{name}.log" for name in planned.nodes}
    # Hidden files are left by interrupted copies and file managers.
    for path in sorted(folder.glob("[!.]*")):
        if path.name in expected and path.is_file() and not path.is_symlink():
            own_files.append(path)
        else:
            message = f"logs/{sanitize(path.name, 200)} is not a log of this run; move it away and run again"
            findings.append(_finding("stray_log", Verdict.UNPROVEN, message))
    if folder / f"{planned.lead}.log" not in own_files:
        message = f"there is no log: logs/{planned.lead}.log is missing"
        findings.append(_finding("no_log", Verdict.UNPROVEN, message))
    return own_files, findings


def preload_libraries() -> None:
    """Import Matplotlib, which :func:`write_record` needs, so that forked processes share it.

    A playbook forks a process for each task. Each would spend a quarter of a CPU-second on this import.
    """
    import matplotlib.backends.backend_svg  # noqa: F401
