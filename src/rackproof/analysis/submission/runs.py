"""Select the runs of ``rackproof submission``, and read the statements of their logs.

The command calls :func:`latest_runs` and :func:`runs_gone` for ``--latest``. :mod:`.building` calls
:func:`examine_run` for each run, and then :func:`by_benchmark`. It also calls :func:`result_log`.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rackproof import logs
from rackproof.analysis.submission.models import ChosenRun, Issue, SubmissionError
from rackproof.core.records import LogFile, Run, Verdict
from rackproof.core.text import sanitize, slug
from rackproof.logs.printed_system import keys_that_differ, printed_systems_of
from rackproof.store.history.rows import RunRow
from rackproof.store.run_folder import RECORD_NAME, iter_runs, slug_of, stamp_of

# Submissions are reviewed on GitHub, which warns about files above 50 MiB, and refuses files above 100 MiB.
LARGEST_FILE_BYTES = 50 * 2**20
_RESULT_FORMAT = "mllog"
_RESULT_NAME = re.compile(r"(?:.*/)?(?:result_[^/]*|\d{6,}_\d+\.log)")
"""The path of a result log: ``logs/result_3.txt``, or ``250612093000_1.log`` as run scripts name it."""
_FIRST_TIME = re.compile(rb':::MLLOG \{[^\n]{0,200}?"time_ms": ?(\d{12,14})\b')
"""An MLPerf event up to the end of its time, which is in milliseconds since 1970."""


def latest_runs(
    results: Path, benchmarks: Sequence[str], count: int, *, sku: str = ""
) -> list[tuple[Run, Path]]:
    """Return the newest runs of each benchmark, of any verdict, with their folders.

    Verdicts are ignored, because a selection of only good runs would bias the result.

    Args:
        results: The results folder.
        benchmarks: The names of benchmarks, as in the files of benchmarks/.
        count: The largest number of runs of each benchmark.
        sku: The model of the nodes, to return only runs on them.

    Raises:
        SubmissionError: No run of a benchmark is stored. The message lists the stored benchmarks.
        ResultsError: A record is damaged.
    """
    by_name: dict[str, list[Run]] = {}
    for run in iter_runs(results):
        if not sku or {node.sku for node in run.nodes} == {sku}:
            by_name.setdefault(run.benchmark, []).append(run)
    chosen: list[tuple[Run, Path]] = []
    for benchmark in dict.fromkeys(benchmarks):
        if benchmark not in by_name:
            stored_names = ", ".join(sorted(by_name)) or "no runs at all"
            model_text = f" on nodes of the model {sku}" if sku else ""
            raise SubmissionError(f"{results} has no runs of {benchmark}{model_text}; it has {stored_names}")
        ordered = _oldest_first(by_name[benchmark], results)
        chosen += [(run, results / run.run_id) for run in ordered[-count:]]
    return chosen


def runs_gone(
    results: Path, benchmarks: Sequence[str], chosen: Sequence[tuple[Run, Path]], run_rows: Iterable[RunRow]
) -> list[Issue]:
    """Return issues about runs that ``--latest`` would have selected, but whose folder or record is missing.

    Without this check, a user could delete failed runs, and the remaining good runs would bias the result.

    Args:
        results: The results folder.
        benchmarks: The names of benchmarks.
        chosen: The runs that were found.
        run_rows: The entries of these benchmarks' runs in the history. A missing run that is older than all
            chosen runs of its benchmark is no issue.
    """
    present = {run.run_id for run, _ in chosen}
    oldest = {
        name: min((moment_of(run, folder) for run, folder in chosen if run.benchmark == name), default=0.0)
        for name in benchmarks
    }
    gone = [
        f"{row.run_id} ({row.verdict.value})"
        for row in run_rows
        if row.benchmark in oldest
        and row.run_id not in present
        and row.moment.timestamp() >= oldest[row.benchmark]
        and not (results / row.run_id / RECORD_NAME).is_file()
    ]
    lost = [folder.name for folder in _folders_without_record(results, benchmarks)]
    return [
        Issue(
            code="run_gone",
            verdict=Verdict.UNPROVEN,
            file=str(results),
            message=f"{loss}: {', '.join(names[:5])}{' …' * (len(names) > 5)}; "
            "so Rackproof cannot tell which runs are the newest",
            remedy="bring them back from a backup, or name the runs themselves",
        )
        for loss, names in (
            ("the folders of some runs in the history are missing", gone),
            ("folders of runs have no run.json", lost),
        )
        if names
    ]


def _folders_without_record(results: Path, benchmarks: Sequence[str]) -> list[Path]:
    """Return folders without run.json that are named as runs of one of these benchmarks.

    A folder without a time in its name was renamed. It is returned if its name contains a benchmark's name
    and a hyphen.
    """
    slugs = [slug(name) for name in benchmarks]
    return [
        folder
        for folder in sorted(results.iterdir())
        if (
            slug_of(folder.name) in slugs
            or (stamp_of(folder.name) is None and any(f"{name}-" in folder.name for name in slugs))
        )
        and not folder.name.startswith(".")
        and folder.is_dir()
        and not (folder / RECORD_NAME).is_file()
    ]


def _oldest_first(runs: Sequence[Run], results: Path) -> list[Run]:
    # The run's id decides between runs of the same time, so that the order is reproducible.
    return sorted(runs, key=lambda run: (moment_of(run, results / run.run_id), run.run_id))


def moment_of(run: Run, folder: Path) -> float:
    """Return the start of a run in seconds since 1970, or 0 if neither record nor log states it."""
    start = run.started or stamp_of(run.run_id)
    if start is not None:
        return start.timestamp()
    log = result_log(run)
    if log is None:
        return 0.0
    try:
        with (folder / log.path).open("rb") as stream:
            return _first_moment(stream.read(1 << 20))
    except OSError:
        return 0.0


def _first_moment(data: bytes) -> float:
    """Return the time of the first MLPerf event in seconds since 1970, or 0 if there is none."""
    match = _FIRST_TIME.search(data)
    return int(match[1]) / 1000 if match else 0.0


def result_log(run: Run) -> LogFile | None:
    """Return the log of a run with its MLPerf events, or ``None`` unless there is exactly one.

    If several logs have such events, only the logs that are named as result logs count. If no log counts, all
    logs do.
    """
    results = [log for log in run.logs if log.format == _RESULT_FORMAT]
    if len(results) > 1:
        results = [log for log in results if _RESULT_NAME.fullmatch(log.path)]
    # A run that ended early may leave a log in no recognizable format.
    results = results or list(run.logs)
    return results[0] if len(results) == 1 else None


def examine_run(run: Run, folder: Path) -> ChosenRun | Issue:
    """Return a run with the statements of its result log, or the issue that prevents its use.

    The log must have the bytes that were recorded, and not be too large for a submission.

    Args:
        run: The record of the run.
        folder: The folder of the run.
    """
    log = result_log(run)
    if log is None:
        logs_text = ", ".join(log_file.path for log_file in run.logs) or "none"
        return Issue(
            code="no_result_log",
            verdict=Verdict.UNPROVEN,
            run=run.run_id,
            message=f"its record does not have exactly one log with MLPerf events (logs: {logs_text})",
            remedy="choose another run, or import only the result log with `rackproof import`",
        )
    data = _recorded_bytes(run.run_id, log, folder / log.path)
    if isinstance(data, Issue):
        return data
    stated = {key: sanitize(value, 300) for key, value in logs.parse(io.BytesIO(data)).tags.items()}
    start = run.started or stamp_of(run.run_id)
    moment = start.timestamp() if start else _first_moment(data)
    systems = printed_systems_of(data)
    system = systems[0] if systems else {}
    return ChosenRun(run, folder, log, moment, stated, system, tuple(keys_that_differ(systems)))


def _recorded_bytes(run_id: str, log: LogFile, path: Path) -> bytes | Issue:
    """Return a log's content if it is as recorded and suitable for a submission, or else the issue."""
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= LARGEST_FILE_BYTES else b""
    except OSError as error:
        return Issue(
            code="log_missing",
            verdict=Verdict.UNPROVEN,
            run=run_id,
            file=str(path),
            message=f"the log cannot be read: {error.strerror}",
            remedy="restore the run's folder from a backup, or choose another run",
        )
    if size > LARGEST_FILE_BYTES:
        return Issue(
            code="log_too_large",
            verdict=Verdict.FAIL,
            run=run_id,
            file=str(path),
            message=f"the log has {size} bytes; a submission takes at most {LARGEST_FILE_BYTES} for a file",
            remedy="choose another run, and make the workload log less",
        )
    if hashlib.sha256(data).hexdigest() != log.sha256:
        return Issue(
            code="log_changed",
            verdict=Verdict.FAIL,
            run=run_id,
            file=str(path),
            message="the log is not the one that was recorded: its SHA-256 differs",
            remedy="restore the log from a backup, or choose another run; a changed log is never handed in",
        )
    return data


def by_benchmark(chosen: Iterable[ChosenRun]) -> dict[str, list[ChosenRun]]:
    """Return the runs of each benchmark, in order of their start."""
    groups: dict[str, list[ChosenRun]] = {}
    for run in sorted(chosen, key=lambda run: (run.moment, run.run.run_id)):
        groups.setdefault(run.benchmark, []).append(run)
    return dict(sorted(groups.items()))
