"""Store logs that were written elsewhere as runs.

``rackproof import`` calls :func:`import_logs` with a log, or a folder with logs, of runs that Rackproof did
not start. Each run gets a record, the raw log, an entry in the history, and pages in the results folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rackproof.analysis.importing import NoLogsError, check_place, find_files, read_runs, text_digest
from rackproof.core.records import Record, Run
from rackproof.core.text import amount, slug
from rackproof.logs.opening import open_log
from rackproof.report import write_run_reports
from rackproof.store import run_folder
from rackproof.store.history.client import History


class ImportedRun(Record):
    """A run that was made from a log.

    ``known`` means that the results folder already had the run, so that this import wrote it again.
    ``history`` is the reason why the run is not in the history yet, or "".
    """

    run: Run
    folder: str
    known: bool = False
    history: str = ""


class ImportResult(Record):
    """The result of an import: the runs, and the skipped files with the reasons.

    ``unread`` lists files that may contain logs but could not be read. Any such file makes the whole import
    unproven.
    """

    imported: tuple[ImportedRun, ...]
    skipped: tuple[str, ...]
    unread: tuple[str, ...] = ()


def import_logs(
    place: Path,
    results_folder: Path,
    *,
    benchmark: str | None = None,
    format: str = "auto",
    old: bool = False,
    progress: Callable[[Path], None] | None = None,
) -> ImportResult:
    """Turn one log, or every log in a folder, into a run with record, raw log, history and pages.

    A file in an unknown format is skipped, unless it is named like a log. Then it becomes an unproven run.
    Two byte-identical logs become two runs. The second one is unproven.

    Args:
        place: The path of a log, or of a folder with logs.
        results_folder: The folder for the folders of runs.
        benchmark: The name of the benchmark. The default is the name in the log, or else the folder's name.
        format: The name of a log format, or ``auto``.
        old: Whether the logs are known to be old, so that their age is not judged.
        progress: A function that is called before each file.

    Raises:
        NoLogsError: The place contains no logs, does not exist, or is in the results folder.
        ResultsError: The results folder cannot be written.
        OSError: A log cannot be read.
        ValueError: The format is unknown.
    """
    check_place(place)
    resolved_results = results_folder.resolve()
    # Otherwise each import would double the existing runs.
    if place.resolve().is_relative_to(resolved_results):
        raise NoLogsError(f"{place} is in the results folder {results_folder}: its logs are runs already")
    root = place if place.is_dir() else place.parent
    # The id comes from the path, not from the time. The same folder gives the same plan each time.
    plan_id = f"import-{slug(root.resolve().name) or 'logs'}-{text_digest(str(root.resolve()))[:8]}"
    history = History(results_folder)
    imported: list[ImportedRun] = []
    skipped: list[str] = []
    unread: list[str] = []
    runs = read_runs(
        find_files(place, resolved_results, skipped, unread),
        root,
        benchmark=benchmark,
        format=format,
        plan_id=plan_id,
        skipped=skipped,
        unread=unread,
        old=old,
        progress=progress,
    )
    for run, path in runs:
        run_id, name = run.run_id, run.logs[0].path
        folder = results_folder / run_id
        # The id comes from the log's start and bytes, the benchmark, and the number of equal logs earlier in
        # this import. So a repeated import with the same benchmark uses the same folder.
        is_known = (folder / run_folder.RECORD_NAME).is_file()
        # The log is written first, because a record without its log can never be judged again.
        _copy_log(path, folder, name)
        run_folder.write_run(run, folder)
        write_run_reports(run, folder)
        imported.append(
            ImportedRun(run=run, folder=str(folder), known=is_known, history=history.keep(folder))
        )
    if not imported:
        raise NoLogsError(
            f"{place}: no file in it is a log of a known format"
            + (f" ({amount(len(skipped) + len(unread), 'file')} looked at)" if skipped or unread else "")
            + "".join(f"; {unread_path}" for unread_path in unread[:3])
            + "; `rackproof parse --list-formats` names the formats"
        )
    return ImportResult(imported=tuple(imported), skipped=tuple(skipped), unread=tuple(unread))


def _copy_log(path: Path, folder: Path, name: str) -> None:
    """Copy a log into its run's folder.

    Raises:
        ResultsError: The log cannot be copied.
    """
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        with open_log(path) as content, (folder / name).open("wb") as copy:
            # The copy is not compressed, so that it can be read without the original.
            while block := content.read(1 << 20):
                copy.write(block)
    except OSError as error:
        raise run_folder.ResultsError(
            f"cannot copy {path} to {folder}: {error.strerror}. Name another folder with --results."
        ) from None
