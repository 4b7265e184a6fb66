"""Check that the folder of a run still contains its record and its raw logs, unchanged.

Job bench, certificates, ``rackproof accept`` and ``rackproof references`` call this module before they rely
on a run. The input is the run from the history or from its folder, and the output is text for operators about
each difference. Begin with :func:`record_objection`. Nights use :func:`digest_file`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from rackproof.core.records import LogFile, Run
from rackproof.store.run_folder import ResultsError, dump_run, read_run


def log_objections(run: Run, folder: Path) -> list[str]:
    """Return a text about each log that is missing, or that was changed since the run was recorded."""
    return [*filter(None, (_log_objection(log, folder / log.path) for log in run.logs))]


def record_objection(run: Run, folder: Path) -> str:
    """Return why a folder no longer proves a run in the history, or "" if it does.

    A folder proves a run if its ``run.json`` equals the run, and all raw logs are as recorded.
    """
    try:
        recorded = read_run(folder)
    except ResultsError as error:
        return str(error)
    # Compare as text, because NaN differs from itself.
    if dump_run(recorded) != dump_run(run):
        return f"the history and {folder} differ about it"
    return "; ".join(log_objections(run, folder))


def digest_file(path: Path) -> tuple[str, int]:
    """Return the SHA-256 of a file, and its size in bytes.

    Raises:
        OSError: The file does not exist or cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest(), stream.tell()


def _log_objection(log: LogFile, path: Path) -> str:
    """Return why a log is not the recorded one (gone or changed), or "" if it is."""
    try:
        # Compare size and type first. Reading a pipe or a device in place of the log might never end.
        if path.stat().st_size != log.size_bytes or not path.is_file():
            return f"its log {log.path} was changed after it was recorded"
        digest, _ = digest_file(path)
    except OSError as error:
        return f"its log {log.path} is gone or cannot be read ({error.strerror})"
    return "" if digest == log.sha256 else f"its log {log.path} was changed after it was recorded"
