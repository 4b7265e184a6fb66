"""Find the run that an operator names in a command: by a path, an id, or the beginning of an id.

Begin with :func:`find_run`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rackproof.cli.errors import ToolError
from rackproof.core.near_names import near_names, near_text
from rackproof.core.records import Run
from rackproof.core.text import amount, sanitize
from rackproof.jobs.bench.planning import PLAN_FILE, read_plan
from rackproof.store.run_folder import RECORD_NAME, read_run, run_folders

_SHOWN_IDS = 4
"""Largest number of ids in an error."""


def history_path(results: Path) -> Path:
    """Return the path of the history, without creating a history.

    Raises:
        ToolError: There is neither a history in the results folder nor a database in the environment.
    """
    path = results / "history.sqlite"
    # SQLite would create a missing file, and takes an empty one as a new database, so that a wrong --results
    # would look like an empty history.
    is_there = path.is_file() and path.stat().st_size > 0
    if not os.environ.get("RACKPROOF_DATABASE_URL", "").strip() and not is_there:
        refuse_lost_runs(f"there is no history at {path}", results)
        raise ToolError(
            f"there is no history at {path}: nothing has run or been imported there yet; "
            "name another folder with --results, or a database with RACKPROOF_DATABASE_URL"
        )
    return path


def refuse_lost_runs(problem: str, results: Path) -> None:
    """Refuse a history without a run if the results folder has records of runs.

    The folder was copied without its database, its database was removed or emptied, or another one is used.

    Raises:
        ToolError: The folder has records of runs. The message begins with ``problem``.
    """
    if count := sum(1 for _ in run_folders(results)):
        raise ToolError(
            f"{problem}, but {results} has the records of {amount(count, 'run')}: "
            "enter them with `rackproof history --rebuild`"
        )


def find_run(name: str, results: Path) -> tuple[Run, Path | None]:
    """Return a run and its folder, or ``None`` as the folder of a run that is only in the history.

    Args:
        name: The folder of the run, its run.json, its id, or a prefix of its id.
        results: The results folder, which is searched before the history.

    Raises:
        ToolError: There is no such run, or several ids begin with the prefix.
        ResultsError: The record of the run is damaged.
    """
    path = Path(name)
    # An existing path comes before an id, because a path is more specific.
    if path.is_file() or (path / RECORD_NAME).is_file():
        return read_run(path), path if path.is_dir() else path.parent
    # An id contains no slash, so the name can only be a path.
    if os.sep in name:
        raise ToolError(f"no run at {name}: there is no {RECORD_NAME} in it")
    folder = _folder_by_id(name, results)
    if folder is not None:
        return read_run(folder), folder
    return _run_of_history(name, results), None


def split_run_path(name: str, results: Path) -> tuple[str, Path]:
    """Return the id and the results folder of a run or plan that is named by its folder or its record.

    ``/srv/results/RUN_ID/run.json`` gives ``RUN_ID`` and ``/srv/results``. A plain id is returned unchanged.
    """
    path = Path(name)
    folder = path.parent if path.is_file() and path.name in (RECORD_NAME, PLAN_FILE) else path
    if os.sep in name and any((folder / record).is_file() for record in (RECORD_NAME, PLAN_FILE)):
        return folder.resolve().name, folder.resolve().parent
    return name, results


def run_ids_of_plan(name: str, results: Path) -> list[str] | None:
    """Return the ids of the runs of a plan, or None if the name is not one of a plan.

    Raises:
        ToolError: There is no plan with that name.
        ResultsError: The plan is damaged.
    """
    if not name.startswith("plan-"):
        return None
    if not (results / name).is_dir():
        plans = [path.name for path in results.glob("plan-*")]
        raise ToolError(f"no plan {sanitize(name, 130)} in {results}{near_text(name, plans)}")
    return [run.run_id for run in read_plan(results, name).runs]


def _folder_by_id(name: str, results: Path) -> Path | None:
    """Return the run folder with this id, or the only one whose id begins with this prefix, or None.

    Raises:
        ToolError: Several ids begin with the prefix.
    """
    exact = results / name
    # "", "." and ".." would name the first run found, the results folder, or the folder above it.
    if name not in ("", ".", "..") and (exact / RECORD_NAME).is_file():
        return exact
    # Every id starts with the empty name.
    matches = [folder for folder in run_folders(results) if name and folder.name.startswith(name)]
    if len(matches) > 1:
        raise ToolError(f"{len(matches)} runs begin with {name}: {_id_list(matches)}")
    return matches[0] if matches else None


def _id_list(folders: Sequence[Path]) -> str:
    """Return the first few ids as text."""
    ids = ", ".join(folder.name for folder in folders[:_SHOWN_IDS])
    return f"{ids} …" if len(folders) > _SHOWN_IDS else ids


def _run_of_history(name: str, results: Path) -> Run:
    """Return the run with this id from the history.

    Raises:
        ToolError: There is no history, or no such run in the history.
    """
    # The import is here because SQLAlchemy loads slowly, and most runs are found by their folder.
    from rackproof.store.history.store import HistoryError, open_store

    try:
        with open_store(history_path(results)) as store:
            return store.run(name)
    except (HistoryError, ToolError) as error:
        near = near_names(name, [folder.name for folder in run_folders(results)])
        hint = f"; did you mean {near}?" if near else ""
        raise ToolError(
            f"no run {name}: neither a run folder, nor an id in {results}, nor in the history ({error}){hint}"
        ) from None
