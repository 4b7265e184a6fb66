"""The end of the street: a job that ended becomes a record, a verdict, reports, and history.

Called by the playbook's recording task and by nothing else that decides: parse, judge, keep, report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rackproof import __version__, logs
from rackproof.definitions import DefinitionError, JudgeRule, Parameters, load_file
from rackproof.judging import SkuReference, judge_run
from rackproof.planning import PlannedRun
from rackproof.records import (
    Dataset,
    Finding,
    LogFile,
    Measurement,
    Node,
    ParsedLog,
    Record,
    Reference,
    Run,
    Verdict,
)
from rackproof.results import write_run

# What Rackproof's own workloads mean by their exit status (docs/workloads.md). The first two say that
# nothing was shown; every other one but 0 says that something went wrong while it was being shown.
COULD_NOT_RUN = {
    4: "a GPU that was asked for is absent",
    5: "the data is missing or damaged",
}

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


class Recorded(Record):
    """A recorded run, where its report is, and a word on the history."""

    run: Run
    folder: str
    report: str
    history: str = ""


class Evidence(Record):
    """What is known of a run besides its logs."""

    nodes: tuple[Node, ...] = ()
    job: dict[str, Any] = {}  # noqa: RUF012  (pydantic copies defaults)
    """State of the job as its supervisor wrote it; empty where no job was started."""
    findings: tuple[Finding, ...] = ()
    """What the nodes' facts say against them."""
    could_not_start: str = ""
    """Why no job was started, in words for the operator."""
    command: tuple[str, ...] = ()
    description: str = ""
    storage: str = ""
    network: str = ""
    notes: str = ""


def job_findings(planned: PlannedRun, evidence: Evidence) -> list[Finding]:
    """Return what the job's end says about the run, beside what its log says."""
    if evidence.could_not_start:
        return [
            Finding(code="could_not_start", verdict=Verdict.UNPROVEN, message=evidence.could_not_start[:4000])
        ]
    found = []
    missing = sorted(set(planned.nodes) - {node.name for node in evidence.nodes})
    if missing:
        found.append(
            Finding(
                code="nodes_differ",
                verdict=Verdict.UNPROVEN,
                message=f"asked for {', '.join(planned.nodes)}, but {', '.join(missing)} took no part",
            )
        )
    ended_by = str(evidence.job.get("ended_by") or "")
    status, signal = evidence.job.get("exit_status"), evidence.job.get("signal")
    if ended_by in _ENDED_BADLY:
        code, verdict, words = _ENDED_BADLY[ended_by]
        message = words.format(timeout_s=planned.timeout_s, hang_s=planned.hang_s)
        found.append(Finding(code=code, verdict=verdict, message=f"the job {message}"))
    elif signal:
        message = f"the job was killed by signal {signal}"
        found.append(Finding(code="killed", verdict=Verdict.FAIL, message=message))
    elif status in COULD_NOT_RUN:
        message = f"the job could not run: {COULD_NOT_RUN[status]} (exit status {status})"
        found.append(Finding(code="could_not_run", verdict=Verdict.UNPROVEN, message=message))
    elif status is None:
        message = "the job has no exit status"
        found.append(Finding(code="no_exit_status", verdict=Verdict.UNPROVEN, message=message))
    elif status != 0:
        message = f"the job ended with exit status {status}"
        found.append(Finding(code="exit_status", verdict=Verdict.FAIL, message=message))
    return found


def build_run(
    planned: PlannedRun,
    parsed: Sequence[ParsedLog],
    evidence: Evidence,
    references: Callable[[Measurement], Sequence[Reference]],
    *,
    plan_id: str = "",
    require_references: bool = True,
    log_files: Sequence[LogFile] = (),
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
    """
    findings = [*job_findings(planned, evidence), *evidence.findings]
    rules: tuple[JudgeRule, ...] = ()
    try:
        loaded = load_file(Path(planned.definition_path))
        rules = loaded.definition.result.judge
        if loaded.sha256 != planned.definition_sha256:
            findings.append(
                Finding(
                    code="definition_changed",
                    verdict=Verdict.UNPROVEN,
                    message=f"{planned.definition_path} was changed after this run was planned; run it again",
                )
            )
    except DefinitionError as error:
        findings.append(
            Finding(code="definition_unreadable", verdict=Verdict.UNPROVEN, message=str(error)[:4000])
        )
    outcome = judge_run(
        rules,
        parsed,
        findings,
        references,
        parameters=planned.parameters,
        require_references=require_references,
        source=planned.definition_name,
    )
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
        launcher="local",
        nodes=evidence.nodes,
        asked_nodes=planned.nodes,
        software=_part(tags, "software."),
        dataset=_dataset(_part(tags, "dataset.")),
        storage=evidence.storage,
        network=evidence.network,
        seeds=tuple(int(tags[key]) for key in ("seed",) if tags.get(key, "").lstrip("-").isdigit()),
        exit_status=evidence.job.get("exit_status"),
        measurements=tuple(one for log in parsed for one in log.measurements),
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
) -> Recorded:
    """Parse the logs under ``folder/logs``, judge, and write record, history and reports.

    The record is written before history and reports: whatever fails after it loses no run.

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
    from rackproof.report import write_run_reports

    log_files, parsed = [], []
    for path in sorted((folder / "logs").glob("*")):
        with path.open("rb") as stream:
            log = logs.parse(stream, format=planned.format, name=f"logs/{path.name}")
        parsed.append(log)
        log_files.append(
            LogFile(
                path=log.file,
                sha256=_sha256(path),
                size_bytes=path.stat().st_size,
                format=log.format,
                verdict=log.verdict,
            )
        )
    history = History(folder.parent)
    measured = [one for log in parsed for one in log.measurements]
    own, remark = history.baselines(planned, evidence.nodes, measured)

    def references(measurement: Measurement) -> list[Reference]:
        fitting = [
            one for one in sku_references if one.fits(planned.benchmark, planned.parameters, measurement)
        ]
        # The most particular baseline speaks: more labels and parameters name the case more closely.
        fitting.sort(key=lambda one: (len(one.parameters) + len(one.labels), bool(one.benchmark)))
        return [one.reference for one in fitting[-1:]] + own.get(_identity(measurement), [])

    run = build_run(
        planned,
        parsed,
        evidence,
        references,
        plan_id=plan_id,
        require_references=require_references,
        log_files=log_files,
    )
    write_run(run, folder)
    kept = history.keep(folder)
    reports = write_run_reports(run, folder)
    return Recorded(
        run=run,
        folder=str(folder),
        report=str(reports["html"]),
        history=" ".join(filter(None, [remark, kept])),
    )


def warm_up() -> None:
    """Import what :func:`record` will need, so that processes forked from this one share it.

    Matplotlib and SQLAlchemy take a CPU-second to import; a playbook forks a process for each task.
    """
    import matplotlib.backends.backend_svg  # noqa: F401

    import rackproof.history.store
    import rackproof.report.html  # noqa: F401


class History:
    """The history as recording needs it: what it cannot give, it says in words, and no run is lost.

    It is the database that RACKPROOF_DATABASE_URL names, else a SQLite file in the results folder.

    Args:
        results: The results folder.
    """

    def __init__(self, results: Path) -> None:
        self._where = results / "history.sqlite"
        self._spool = results / ".spool"

    def baselines(
        self, planned: PlannedRun, nodes: tuple[Node, ...], measurements: Sequence[Measurement]
    ) -> tuple[dict[tuple[object, ...], list[Reference]], str]:
        """Return the accepted baselines of this hardware by measurement, and a remark if there is trouble."""
        from rackproof.history.store import HistoryError, open_store

        found: dict[tuple[object, ...], list[Reference]] = {}
        try:
            with open_store(self._where) as store:
                for one in measurements:
                    baseline = store.baseline(
                        planned.benchmark, planned.parameters, one.name, one.labels, nodes
                    )
                    if baseline is not None:
                        found[_identity(one)] = [baseline]
        except HistoryError as error:
            return {}, f"the history was not asked for baselines: {error}"
        return found, ""

    def estimate(self, benchmark: str, parameters: Parameters, node: Node) -> float | None:
        """Return the seconds that earlier runs let expect, or None."""
        from rackproof.history.store import HistoryError, open_store

        try:
            with open_store(self._where) as store:
                return store.estimate_seconds(benchmark, parameters, [node])
        except HistoryError:
            return None  # an estimate is a courtesy; keeping the run will say what is wrong

    def keep(self, folder: Path) -> str:
        """Enter a recorded run, or note it for later; return a remark, empty when all is well."""
        from rackproof.history.store import keep_or_spool

        outcome = keep_or_spool(folder, self._where, self._spool)
        return "" if outcome.kept else outcome.message


def _identity(measurement: Measurement) -> tuple[object, ...]:
    return (measurement.name, *sorted(measurement.labels.items()))


def sku_reference(raw: Mapping[str, Any]) -> SkuReference:
    """Return a SKU baseline as group_vars write it: the reference's keys beside those that say for what."""
    own = {"metric", "benchmark", "parameters", "labels"}
    return SkuReference.model_validate(
        {
            **{key: value for key, value in raw.items() if key in own},
            "reference": {key: value for key, value in raw.items() if key not in own},
        }
    )


def _part(tags: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in tags.items() if key.startswith(prefix)}


def _dataset(said: Mapping[str, str]) -> Dataset | None:
    if not said:
        return None
    number = {key: int(said[key]) for key in ("objects", "size_bytes") if said.get(key, "").isdigit()}
    text = {key: said[key] for key in ("name", "source", "sha256") if key in said}
    return Dataset.model_validate({**text, **number})


def _moment(raw: object) -> datetime | None:
    if isinstance(raw, int | float):
        return datetime.fromtimestamp(raw, UTC)
    if isinstance(raw, str) and raw:
        return datetime.fromisoformat(raw)
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
