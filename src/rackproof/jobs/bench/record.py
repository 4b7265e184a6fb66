"""The end of the street: a job that ended becomes a record, a verdict, reports, and history.

Called by the playbook's recording task and by nothing else that decides: parse, judge, keep, report.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rackproof import __version__, logs
from rackproof.core.definitions import DefinitionError, JudgeRule, load_file
from rackproof.core.judging import SkuReference, judge_run
from rackproof.core.records import (
    Dataset,
    Finding,
    LogFile,
    Measurement,
    ParsedLog,
    Record,
    Reference,
    Run,
    Verdict,
)
from rackproof.core.text import sanitize
from rackproof.jobs.bench.evidence import Evidence
from rackproof.jobs.bench.mlperf_checks import add_evidence, published
from rackproof.jobs.bench.planning import STILL_RUNNING, PlannedRun
from rackproof.report import write_run_reports
from rackproof.store.history.client import History, measurement_key
from rackproof.store.run_folder import write_run

_INTEGER = re.compile(r"-?[0-9]{1,18}")

# Exit statuses of Rackproof's own workloads (docs/extending/workloads.md). After the first two nothing is
# proven either way; any other but 0 means that something failed while the workload ran.
COULD_NOT_RUN = {
    4: "a GPU that was asked for is absent",
    5: "the data is missing or damaged",
    6: "the image could not be had",
    7: "no config fits, or Slurm did not take or start the job",
    8: "the nodes did not meet, or do not reach each other",
    9: "mpirun, ssh between the nodes, or the program it starts is missing",
}

BY_ITSELF = ("local", "mpirun")
"""Launchers whose program says in its own log how it ended; the others speak for Slurm or a container."""

_ENDED_BADLY = {
    "timeout": ("timed_out", Verdict.FAIL, "ended after its limit of {timeout_s} s"),
    "hang": ("hung", Verdict.FAIL, "hung: its log stood still for {hang_s} s, then it was ended"),
    "stopped": ("stopped", Verdict.UNPROVEN, "was stopped from outside"),
    "log_limit": ("log_limit", Verdict.FAIL, "wrote more log than allowed and was ended"),
    "supervisor_died": (
        "supervisor_died",
        Verdict.UNPROVEN,
        "nobody saw it end: its supervisor was killed or the node was rebooted",
    ),
}


class RecordedRun(Record):
    """A recorded run, where its report is, and a word on the history."""

    run: Run
    folder: str
    report: str
    history: str = ""


def job_findings(planned: PlannedRun, evidence: Evidence) -> list[Finding]:
    """Return what the job's end says about the run, beside what its log says.

    Only a job of this run that ended by itself, succeeded, and has exit status 0 on the nodes that were
    asked for adds nothing. The state comes from a node: anything else in it is no pass.
    """
    job = evidence.job
    found = []
    if evidence.could_not_start:
        found.append(_finding("could_not_start", Verdict.UNPROVEN, evidence.could_not_start))
    else:
        found += _node_findings(planned, evidence)
    if not job:
        if not evidence.could_not_start:
            found.append(_finding("no_job", Verdict.UNPROVEN, "nothing is known of the job"))
    elif job.get("id") != planned.run_id:
        message = f"the job is that of another run ({sanitize(job.get('id'), 130)})"
        found.append(_finding("another_job", Verdict.UNPROVEN, message))
    elif job.get("phase") == "running" or evidence.could_not_start:
        message = "its job still runs on the node, or ended unseen: start the playbook again to follow it"
        found.append(_finding(STILL_RUNNING, Verdict.UNPROVEN, message))
    else:
        found += _end_findings(planned, job)
    return found


def _node_findings(planned: PlannedRun, evidence: Evidence) -> list[Finding]:
    asked, took_part = set(planned.nodes), {node.name for node in evidence.nodes}
    differences = [f"{name} took no part" for name in sorted(asked - took_part)]
    differences += [f"{name} was not asked for" for name in sorted(took_part - asked)]
    if not differences:
        return []
    return [_finding("nodes_differ", Verdict.UNPROVEN, f"other nodes than planned: {', '.join(differences)}")]


def _end_findings(planned: PlannedRun, job: Mapping[str, Any]) -> list[Finding]:
    """Return what is not as it should be about a job of this run that no longer runs."""
    found = []
    ended_by, status, signal = job.get("ended_by"), job.get("exit_status"), job.get("signal")
    if ended_by == "supervisor_died" and planned.launcher == "slurm":
        # What ran on that node only followed; the same command again finds the Slurm job, or its end.
        message = (
            f"{planned.lead}, which followed the Slurm job, was rebooted or lost the process that did; the "
            "job may go on: start the same command again, which follows it (or scancel --name "
            f"{planned.run_id})"
        )
        found.append(_finding(STILL_RUNNING, Verdict.UNPROVEN, message))
    elif job.get("phase") != "ended" or not isinstance(ended_by, str):
        message = f"how the job ended is not known: {sanitize(ended_by, 100)}"
        found.append(_finding("unknown_end", Verdict.UNPROVEN, message))
    elif ended_by in _ENDED_BADLY:
        code, verdict, words = _ENDED_BADLY[ended_by]
        message = words.format(timeout_s=planned.timeout_s, hang_s=planned.hang_s)
        found.append(_finding(code, verdict, f"the job {message}"))
    elif ended_by != "itself":
        message = f"the job was ended by something unknown: {sanitize(ended_by, 100)}"
        found.append(_finding("unknown_end", Verdict.UNPROVEN, message))
    elif signal is not None:
        found.append(_finding("killed", Verdict.FAIL, f"the job was killed by signal {sanitize(signal, 20)}"))
    elif type(status) is not int:
        said = "" if status is None else f", but {sanitize(repr(status), 100)}"
        found.append(_finding("no_exit_status", Verdict.UNPROVEN, f"the job has no exit status{said}"))
    elif status in COULD_NOT_RUN:
        message = f"the job could not run: {COULD_NOT_RUN[status]} (exit status {status})"
        found.append(_finding("could_not_run", Verdict.UNPROVEN, message))
    elif status != 0:
        found.append(_finding("exit_status", Verdict.FAIL, f"the job ended with exit status {status}"))
    elif job.get("succeeded") is not True:
        message = "the job has exit status 0, yet its supervisor says that it did not succeed"
        found.append(_finding("contradiction", Verdict.UNPROVEN, message))
    if job.get("unkillable"):
        message = f"processes of the job survive SIGKILL on the node: {sanitize(job['unkillable'], 200)}"
        found.append(_finding("unkillable", Verdict.DEGRADED, message))
    return found


def _finding(code: str, verdict: Verdict, message: str) -> Finding:
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
) -> Run:
    """Judge what came and return the record. Pure: reads nothing but the definition's file.

    Args:
        planned: The run as planned.
        parsed: Its parsed logs.
        evidence: What else is known of it.
        references: Gives the references of a measurement.
        plan_id: The plan it belongs to.
        require_references: Whether a measurement without a reference gates.
        log_files: The raw logs beside the record.
        trouble: Why references may exist that were not found, if so.
    """
    findings = [*job_findings(planned, evidence), *evidence.findings]
    if planned.launcher not in BY_ITSELF:
        # The launcher's exit status only repeats what Slurm and the log say in more words.
        findings = [*evidence.findings, *job_findings(planned, evidence)]
    rules: tuple[JudgeRule, ...] = ()
    try:
        loaded = load_file(Path(planned.definition_path))
        rules = loaded.definition.result.judge
        if loaded.sha256 != planned.definition_sha256:
            message = f"{planned.definition_path} was changed after this run was planned; run it again"
            findings.append(_finding("definition_changed", Verdict.UNPROVEN, message))
    except DefinitionError as error:
        findings.append(_finding("definition_unreadable", Verdict.UNPROVEN, str(error)))
    outcome = judge_run(
        rules,
        parsed,
        findings,
        references,
        parameters=planned.parameters,
        require_references=require_references,
        source=planned.definition_name,
        trouble=trouble,
        more=evidence.measurements,
    )
    status = evidence.job.get("exit_status")
    tags = {key: value for log in parsed for key, value in log.tags.items()}
    return Run(
        run_id=planned.run_id,
        plan_id=plan_id,
        benchmark=planned.benchmark,
        suite=planned.suite,
        description=evidence.description,
        started=_moment(evidence.job.get("started")),
        ended=_moment(evidence.job.get("ended")),
        parameters=dict(planned.parameters),
        command=evidence.command,
        environment=planned.environment,
        launcher=planned.launcher,
        container=planned.container,
        container_digest=evidence.container_digest,
        nodes=evidence.nodes,
        asked_nodes=planned.nodes,
        software=_part(tags, "software."),
        dataset=_dataset(_part(tags, "dataset.")),
        storage=evidence.storage,
        network=evidence.network,
        seeds=(int(tags["seed"]),) if _INTEGER.fullmatch(tags.get("seed", "")) else (),
        exit_status=status if type(status) is int else None,
        measurements=(*(one for log in parsed for one in log.measurements), *evidence.measurements),
        series=tuple(one for log in parsed for one in log.series),
        findings=(*findings, *(finding for log in parsed for finding in log.findings)),
        judgements=outcome.judgements,
        verdict=outcome.verdict,
        reasons=outcome.reasons,
        logs=tuple(log_files),
        definition_sha256=planned.definition_sha256,
        rackproof_version=__version__,
        notes=evidence.notes,
    )


def record(
    planned: PlannedRun,
    evidence: Evidence,
    folder: Path,
    *,
    plan_id: str = "",
    sku_references: Sequence[SkuReference] = (),
    require_references: bool = True,
) -> RecordedRun:
    """Parse the logs under ``folder/logs``, judge, and write record, history and reports.

    The record is written before history and reports: whatever fails after it loses no run and is told
    in :attr:`Recorded.history`; :func:`rackproof.jobs.bench.tasks.report` makes a missing page later.

    Args:
        planned: The run as planned.
        evidence: What else is known of it.
        folder: ``results/RUN_ID``.
        plan_id: The plan it belongs to.
        sku_references: The SKU's baselines.
        require_references: Whether a measurement without a reference gates.

    Raises:
        ResultsError: The record cannot be written.
    """
    log_files, parsed, findings = [], [], []
    paths, strange = _own_logs(planned, folder / "logs")
    if strange and not evidence.could_not_start:
        findings += strange
    for path in paths:
        try:
            with path.open("rb") as stream:
                log = logs.parse(stream, format=planned.format, name=f"logs/{path.name}")
            kept = LogFile(
                path=log.file,
                sha256=_sha256(path),
                size_bytes=path.stat().st_size,
                format=log.format,
                verdict=log.verdict,
            )
        except OSError as error:
            message = f"logs/{path.name} cannot be read: {error.strerror}"
            findings.append(_finding("unreadable_log", Verdict.UNPROVEN, message))
            continue
        parsed.append(log)
        log_files.append(kept)
        on_node = evidence.job.get("log_bytes")
        if path.stem == planned.lead and type(on_node) is int and on_node != kept.size_bytes:
            message = f"{kept.path} has {kept.size_bytes} bytes here, but {on_node} on the node"
            findings.append(_finding("log_differs", Verdict.UNPROVEN, message))
    evidence = evidence.model_copy(update={"findings": (*findings, *evidence.findings)})
    if planned.launcher not in BY_ITSELF:
        evidence = add_evidence(planned, evidence, folder, parsed, plan_id)
    history = History(folder.parent)
    measured = [*(one for log in parsed for one in log.measurements), *evidence.measurements]
    own, remark = history.baselines(planned.benchmark, planned.parameters, evidence.nodes, measured)

    def references(measurement: Measurement) -> list[Reference]:
        fitting = [
            one for one in sku_references if one.fits(planned.benchmark, planned.parameters, measurement)
        ]
        # The most particular baseline speaks: more labels and parameters name the case more closely. Of
        # several that are equally particular none hides another.
        particular = max(map(_particularity, fitting), default=None)
        chosen = [one.reference for one in fitting if _particularity(one) == particular]
        if planned.launcher not in BY_ITSELF and planned.published_references:
            chosen += published(planned, measurement)
        return chosen + own.get(measurement_key(measurement), [])

    run = build_run(
        planned,
        parsed,
        evidence,
        references,
        plan_id=plan_id,
        require_references=require_references,
        log_files=log_files,
        trouble=remark,
    )
    write_run(run, folder)
    remarks = [remark]
    page = ""
    try:
        remarks.append(history.keep(folder))
    except Exception as error:  # the record is safe; what comes after it only adds
        remarks.append(f"run {run.run_id} could not be entered into the history: {error}")
    try:
        page = str(write_run_reports(run, folder)["html"])
    except Exception as error:
        remarks.append(f"the page of run {run.run_id} could not be written yet: {error}")
    return RecordedRun(run=run, folder=str(folder), report=page, history=" ".join(filter(None, remarks)))


def _particularity(baseline: SkuReference) -> tuple[int, bool]:
    return len(baseline.parameters) + len(baseline.labels), bool(baseline.benchmark)


def _own_logs(planned: PlannedRun, folder: Path) -> tuple[list[Path], list[Finding]]:
    """Return the logs of the run's nodes, and what else lies there or is missing."""
    own, findings = [], []
    expected = {f"{name}.log" for name in planned.nodes}
    for path in sorted(folder.glob("[!.]*")):
        if path.name in expected and path.is_file() and not path.is_symlink():
            own.append(path)
        else:
            message = f"logs/{sanitize(path.name, 200)} is no log of this run; move it away and run again"
            findings.append(_finding("stray_log", Verdict.UNPROVEN, message))
    if folder / f"{planned.lead}.log" not in own:
        message = f"there is no log: logs/{planned.lead}.log is missing"
        findings.append(_finding("no_log", Verdict.UNPROVEN, message))
    return own, findings


def preload_libraries() -> None:
    """Import what :func:`record` will need, so that processes forked from this one share it.

    Matplotlib and SQLAlchemy take a CPU-second to import; a playbook forks a process for each task.
    """
    import matplotlib.backends.backend_svg  # noqa: F401


def _part(tags: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in tags.items() if key.startswith(prefix)}


def _dataset(said: Mapping[str, str]) -> Dataset | None:
    if not said:
        return None
    counts = ("objects", "size_bytes")
    number = {key: int(said[key]) for key in counts if _INTEGER.fullmatch(said.get(key, ""))}
    text = {key: said[key] for key in ("name", "source", "sha256") if key in said}
    return Dataset.model_validate({**text, **number})


def _moment(raw: object) -> datetime | None:
    """Return a moment that a node states, None where it makes no sense; without a zone it is UTC."""
    try:
        if isinstance(raw, int | float) and not isinstance(raw, bool):
            return datetime.fromtimestamp(raw, UTC)
        if isinstance(raw, str):
            moment = datetime.fromisoformat(raw)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
