"""Store runs in the history, or note them for later if its database is down.

Every job calls :func:`keep_or_spool`, through :meth:`rackproof.store.history.client.History.keep`, after it
wrote ``run.json``. The input is the folder of the run. A run that cannot be stored gets a note in the spool
folder. The next run that can be stored also stores the noted ones. :func:`rebuild_history` stores all runs of
a results folder again.

``run.json`` remains authoritative. A note only means that its run is not in the history yet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rackproof.core.records import Run
from rackproof.store.history.database import HistoryError
from rackproof.store.history.repository import Store, open_store
from rackproof.store.run_evidence import evidence_remark, judge_by_logs
from rackproof.store.run_folder import (
    ResultsError,
    iter_runs_with_folders,
    read_file,
    read_run,
    write_file,
)

_SUFFIX = ".json"
"""End of a note's name, which begins with the id of its run."""
_LARGEST_BYTES = 2**20
"""Largest size of a note that is read."""


class _NoteGoneError(Exception):
    """The absence of a note that another process removed after it stored the run."""


@dataclass(frozen=True)
class KeepOutcome:
    """The outcome of storing one run in the history.

    Attributes:
        kept: Whether the run is in the history.
        spooled: Whether the run was noted for later.
        message: A text for the operator, without any secret.
        drained: The number of runs that were noted earlier and are now stored.
    """

    kept: bool
    spooled: bool
    message: str
    drained: int = 0


@dataclass(frozen=True)
class DrainOutcome:
    """The result of storing the runs of a spool.

    ``entered`` lists the ids of the stored runs. ``waiting`` lists the ids of the other runs, and
    ``problems`` the reasons why these could not be stored.
    """

    entered: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class RebuildOutcome:
    """The number of runs that were stored, the faults of records that could not be read, and lost evidence.

    ``lost_evidence`` is about the runs that were stored as unproven because a log is gone or was changed.
    """

    runs: int
    problems: tuple[str, ...] = ()
    lost_evidence: tuple[str, ...] = ()


def keep_or_spool(run_folder: Path, where: str | Path | None, spool: Path) -> KeepOutcome:
    """Store a recorded run in the history. If that fails, note it in the spool.

    The run is noted after every failure of the history (down, full, locked, too new). If the history
    works, runs that were noted earlier are stored, too.

    Args:
        run_folder: The folder ``results/RUN_ID``, which contains ``run.json``.
        where: The place of the history, as for :func:`rackproof.store.history.store.open_store`.
        spool: The folder for the notes, created if needed.

    Raises:
        ResultsError: The run's own record is missing or damaged.
    """
    run = read_run(run_folder)
    try:
        with open_store(where) as store:
            store.keep(run)
            try:
                drained = _drain(store, spool)
            except ResultsError as error:
                # The run is in the history, so it is not lost with a broken spool.
                drained = DrainOutcome((), ("?",), (str(error),))
            count = len(drained.entered)
            message = f"run {run.run_id} is in {store.description}"
            if count:
                message += f", with {count} noted earlier"
            if drained.waiting:
                message += f"; of those noted earlier some still wait: {drained.problems[0]}"
            return KeepOutcome(True, False, message, count)
    except HistoryError as error:
        return _note(run, run_folder, spool, str(error))


def drain_spool(where: str | Path | None, spool: Path) -> DrainOutcome:
    """Store the runs in the spool.

    If the record of a note is missing or damaged, the note remains, and a problem is returned. Two
    processes may call this at once, because a run that is stored twice is in the history once.

    Args:
        where: The place of the history, as for :func:`rackproof.store.history.store.open_store`.
        spool: The folder with the notes. A missing folder counts as empty.

    Raises:
        ResultsError: The spool cannot be read.
    """
    waiting = tuple(note.stem for note in _notes(spool))
    if not waiting:
        return DrainOutcome()
    try:
        with open_store(where) as store:
            return _drain(store, spool)
    except HistoryError as error:
        return DrainOutcome((), waiting, (str(error),))


def rebuild_history(results: Path, where: str | Path | None) -> RebuildOutcome:
    """Store all runs of a results folder again, including those that seem to be in the history.

    Accepted references exist only in the history (docs/using/history.md). Existing references stay, but an
    empty history does not get them back. A run without the logs of its record is stored as at best unproven.

    Args:
        results: The results folder.
        where: The place of the history, as for :func:`rackproof.store.history.store.open_store`. The
            default is the folder's own.

    Raises:
        HistoryError: The history fails.
        ResultsError: The results folder cannot be listed.
    """
    problems: list[str] = []
    lost: list[str] = []
    where = where or results / "history.sqlite"
    runs = iter_runs_with_folders(results, on_error=lambda error: problems.append(str(error)))
    with open_store(where) as store:
        entered = store.keep_many(_judged_by_logs(runs, lost), again=True)
    return RebuildOutcome(len(entered), tuple(problems), tuple(lost))


def _judged_by_logs(runs: Iterable[tuple[Run, Path]], lost: list[str]) -> Iterator[Run]:
    """Yield runs as their logs allow, and add a text to ``lost`` about each run without its logs."""
    for run, folder in runs:
        judged = judge_by_logs(run, folder)
        if judged is not run:
            lost.append(evidence_remark(run, judged))
        yield judged


def _note(run: Run, run_folder: Path, spool: Path, reason: str) -> KeepOutcome:
    """Note a run that could not be stored, in ``SPOOL/RUN_ID.json``.

    If the note cannot be written either, the outcome is neither kept nor spooled.
    """
    note = {
        "run_id": run.run_id,
        # Store both paths, so that no note is lost if the results move with or without their spool.
        "folder": str(run_folder.resolve()),
        "relative": os.path.relpath(run_folder.resolve(), spool.resolve()),
        "noted": datetime.now(UTC).isoformat(timespec="seconds"),
        "reason": reason,
    }
    path = spool / f"{run.run_id}{_SUFFIX}"
    try:
        write_file(path, json.dumps(note, indent=2).encode() + b"\n")
    except ResultsError as error:
        return KeepOutcome(
            False,
            False,
            f"run {run.run_id} is safe in {run_folder} but not in the history ({reason}), and could not be "
            f"noted for later either ({error}). Once both are repaired: `rackproof history --rebuild`.",
        )
    return KeepOutcome(
        False,
        True,
        f"run {run.run_id} is safe in {run_folder} but not yet in the history: {reason} It is noted in "
        f"{spool} and enters the history with the next run.",
    )


def _notes(spool: Path) -> list[Path]:
    """Return the notes, sorted by the ids of their runs. Ids begin with the time.

    Raises:
        ResultsError: The spool cannot be read.
    """
    try:
        return sorted(
            path for path in spool.iterdir() if path.suffix == _SUFFIX and not path.name.startswith(".")
        )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ResultsError(f"cannot read the spool {spool}: {error.strerror}") from None


def _drain(store: Store, spool: Path) -> DrainOutcome:
    """Store the noted runs, and remove their notes."""
    entered, waiting, problems = [], [], []
    for note in _notes(spool):
        try:
            store.keep(_noted_run(note, spool))
            # Delete the note after the run is stored. A crash in between stores the run twice, which
            # changes nothing.
            note.unlink(missing_ok=True)
        except _NoteGoneError:
            continue
        except (ResultsError, HistoryError) as error:
            waiting.append(note.stem)
            problems.append(str(error))
        except OSError as error:
            waiting.append(note.stem)
            problems.append(f"cannot remove {note}: {error.strerror}")
        else:
            entered.append(note.stem)
    return DrainOutcome(tuple(entered), tuple(waiting), tuple(problems))


def _noted_run(note: Path, spool: Path) -> Run:
    """Return the run of a note.

    Raises:
        ResultsError: The note is damaged, or the record is missing, damaged or of another run.
        _NoteGoneError: Another process just stored the run.
    """
    damaged = ResultsError(
        f"the note {note} is damaged; remove it and rebuild the history from the results folder"
    )
    try:
        content = json.loads(read_file(note, _LARGEST_BYTES))
        places = (spool / str(content["relative"]), Path(str(content["folder"])))
    except FileNotFoundError:
        raise _NoteGoneError from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise damaged from None
    try:
        folder = next((place for place in places if place.is_dir()), places[-1])
        run = read_run(folder)
    except ValueError:
        # No path contains NUL or half of a surrogate pair.
        raise damaged from None
    # The folder may be renamed or restored. Another run must not be stored in its place.
    if run.run_id != note.stem:
        raise ResultsError(f"the note {note} points at {folder}, which holds run {run.run_id}")
    return run
