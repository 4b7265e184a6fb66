"""Runs reach the history even if its database is down: noted in a folder, entered at the next chance.

``run.json`` in the results folder stays the truth; a note only means that it has yet to be entered,
and :func:`rebuild_history` enters everything again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rackproof.core.records import Run
from rackproof.store.history.database import HistoryError
from rackproof.store.history.repository import Store, open_store
from rackproof.store.run_folder import ResultsError, iter_runs, read_run, write_file

_SUFFIX = ".json"


class _NoteGoneError(Exception):
    """Another process has entered the noted run meanwhile."""


@dataclass(frozen=True)
class KeepOutcome:
    """The outcome for a run: in the history (``kept``), noted for later (``spooled``), or neither.

    ``message`` is for an operator and holds no secret; ``drained`` counts runs noted
    earlier that were entered now.
    """

    kept: bool
    spooled: bool
    message: str
    drained: int = 0


@dataclass(frozen=True)
class DrainOutcome:
    """Run ids entered from the spool, those still waiting, and the obstacle."""

    entered: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class RebuildOutcome:
    """The number of runs that were entered, and what is wrong with records that could not be read."""

    runs: int
    problems: tuple[str, ...] = ()


def keep_or_spool(run_folder: Path, where: str | Path | None, spool: Path) -> KeepOutcome:
    """Enter a recorded run into the history; if that fails, note it in the spool.

    Any failure of the history counts (down, full, locked, too new): the run is safe in its folder and must
    not be forgotten. If the history works, runs noted earlier are entered, too.

    Args:
        run_folder: ``results/RUN_ID``, holding ``run.json``.
        where: As for :func:`rackproof.store.history.store.open_store`.
        spool: Folder for the notes, made where needed.

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
                # This run is in the history by now: a broken spool is not a reason to call it lost.
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
    """Enter the runs noted in the spool.

    A note whose record is gone or damaged stays, and is named among the problems. Two at once are
    harmless: entering a run twice is entering it once.

    Args:
        where: As for :func:`rackproof.store.history.store.open_store`.
        spool: The folder with the notes; missing means empty.

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
    """Enter every run of a results folder again, also those that seem to be in the history.

    Accepted references live in the history alone (docs/using/history.md): they stay where they are, but
    rebuilding into an empty history does not bring them back.

    Args:
        results: The results folder.
        where: As for :func:`rackproof.store.history.store.open_store`; by default the folder's own.

    Raises:
        HistoryError: The history fails.
        ResultsError: The results folder cannot be listed.
    """
    problems: list[str] = []
    where = where or results / "history.sqlite"
    runs = iter_runs(results, on_error=lambda error: problems.append(str(error)))
    with open_store(where) as store:
        entered = store.keep_many(runs, again=True)
    return RebuildOutcome(len(entered), tuple(problems))


def _note(run: Run, run_folder: Path, spool: Path, reason: str) -> KeepOutcome:
    note = {
        "run_id": run.run_id,
        # Both, so that moving the results with their spool, or the spool alone, loses nothing.
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
    try:
        return sorted(
            path for path in spool.iterdir() if path.suffix == _SUFFIX and not path.name.startswith(".")
        )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ResultsError(f"cannot read the spool {spool}: {error.strerror}") from None


def _drain(store: Store, spool: Path) -> DrainOutcome:
    entered, waiting, problems = [], [], []
    for note in _notes(spool):
        try:
            store.keep(_noted_run(note, spool))
            # After it is kept: a crash between the two enters it twice, which changes nothing.
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
    """Return the run that a note speaks of.

    Raises:
        ResultsError: The note is damaged, or the record is gone, damaged or another run's.
        _NoteGoneError: Another process has entered it just now.
    """
    try:
        content = json.loads(note.read_bytes())
        places = (spool / str(content["relative"]), Path(str(content["folder"])))
    except FileNotFoundError:
        raise _NoteGoneError from None
    except (OSError, ValueError, KeyError, TypeError):
        raise ResultsError(
            f"the note {note} is damaged; remove it and rebuild the history from the results folder"
        ) from None
    folder = next((place for place in places if place.is_dir()), places[-1])
    run = read_run(folder)
    # A folder may have been renamed or restored: no other run is entered in its place.
    if run.run_id != note.stem:
        raise ResultsError(f"the note {note} points at {folder}, which holds run {run.run_id}")
    return run
