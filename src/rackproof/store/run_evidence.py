"""Check that the folder of a run still contains its record and its raw logs, unchanged.

Job bench, certificates, ``rackproof accept`` and ``rackproof references`` call this module before they rely
on a run. The input is the run from the history or from its folder, and the output is text for operators about
each difference. Begin with :func:`record_objection`. ``rackproof report``, ``compare`` and ``history
--rebuild`` show a run as :func:`judge_by_logs` returns it. Nights and certificates use :func:`digest_file`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from rackproof.core.records import Finding, LogFile, Run, Verdict, worst
from rackproof.store.run_folder import ResultsError, dump_run, read_run


def log_objections(run: Run, folder: Path) -> list[str]:
    """Return a text about each log that is missing, or that was changed since the run was recorded."""
    return [finding.message for finding in _log_findings(run, folder)]


def judge_by_logs(run: Run, folder: Path) -> Run:
    """Return a run as at best unproven if a log is missing or was changed, else the run itself.

    The function reads every log of the run.
    """
    findings = _log_findings(run, folder)
    if not findings:
        return run
    reasons = tuple(finding.message for finding in findings)
    return run.model_copy(
        update={
            "verdict": worst([run.verdict, Verdict.UNPROVEN]),
            "findings": (*run.findings, *findings),
            # A proven fault remains the first reason.
            "reasons": (*run.reasons, *reasons) if run.verdict.gates else (*reasons, *run.reasons),
        }
    )


def evidence_remark(run: Run, judged: Run) -> str:
    """Return a text about a run that :func:`judge_by_logs` changed: its verdict now, and the reasons."""
    messages = "; ".join(finding.message for finding in judged.findings[len(run.findings) :])
    return f"{run.run_id} is {judged.verdict.value}: {messages}"


def record_objection(run: Run, folder: Path) -> str:
    """Return why a folder no longer proves a run in the history, or "" if it does.

    A folder proves a run if its ``run.json`` equals the run, and all raw logs are as recorded.
    """
    try:
        recorded = read_run(folder)
    except ResultsError as error:
        return str(error)
    # Compare as text, because NaN differs from itself. A history that was rebuilt without the logs has the
    # run as unproven, and the objection then names the logs.
    if dump_run(run) not in map(dump_run, (recorded, judge_by_logs(recorded, folder))):
        return f"the history and {folder} differ about it"
    return "; ".join(log_objections(run, folder))


def digest_file(path: Path) -> tuple[str, int]:
    """Return the SHA-256 of a file, and its size in bytes.

    Raises:
        OSError: The file does not exist or cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest(), stream.tell()


def _log_findings(run: Run, folder: Path) -> list[Finding]:
    """Return a finding about each log of a run that is not the recorded one."""
    return [*filter(None, (_log_finding(log, folder / log.path) for log in run.logs))]


def _log_finding(log: LogFile, path: Path) -> Finding | None:
    """Return the finding that a log is gone or was changed, or None if it is the recorded one."""
    name = log.path[:1000]
    changed = Finding(
        code="log_changed",
        verdict=Verdict.UNPROVEN,
        message=f"its log {name} was changed after it was recorded",
    )
    try:
        # Compare size and type first. Reading a pipe or a device in place of the log might never end.
        if path.stat().st_size != log.size_bytes or not path.is_file():
            return changed
        digest, _ = digest_file(path)
    except OSError as error:
        message = f"its log {name} is gone or cannot be read ({error.strerror})"
        return Finding(code="log_missing", verdict=Verdict.UNPROVEN, message=message)
    return None if digest == log.sha256 else changed
