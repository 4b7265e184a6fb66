"""The folder of a run of reimage.yml: what was asked for, and one journal per node.

A run's folder is ``results/RUN_ID/``: ``reimage.json`` has the request, ``journal/`` one file per node,
``before/`` and ``after/`` each node's hardware. A node's newest journal is its progress; a new run goes on
from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import AwareDatetime, Field, ValidationError

from rackproof.core.errors import RackproofError
from rackproof.core.records import Record
from rackproof.jobs.reimage import journal, lifecycle
from rackproof.jobs.reimage.lifecycle import Step
from rackproof.store.run_folder import new_run_id, stamp_of

BENCHMARK = "reimage"
"""The name under which a run enters the history."""
RUN_FILE = "reimage.json"
CLAIMS = ".reimages"
"""Folder of the host claims of re-imaging, beside those that every job makes."""
_RUN_NAME = re.compile(rf"\d{{8}}T\d{{6}}Z-{BENCHMARK}-[0-9a-f]{{6}}")


class ReimageError(RackproofError):
    """Something an operator has to mend; the message says what and how."""


class RunRequest(Record):
    """What a run was asked for, kept in ``reimage.json``."""

    run_id: str
    started: AwareDatetime
    method: str
    nodes: tuple[str, ...]
    waves: tuple[tuple[str, ...], ...] = ()
    limits_s: dict[str, float] = Field(default={})
    images: dict[str, str] = Field(default={})


class ReimageContext(Record):
    """A run in progress. ``todo`` has the steps of each node that is taken, ``refused`` why one is not."""

    run_id: str
    folder: str
    results: str
    prefix: str = lifecycle.PREFIX
    waves: tuple[tuple[str, ...], ...] = ()
    todo: dict[str, tuple[Step, ...]] = Field(default={})
    refused: dict[str, str] = Field(default={})
    message: tuple[str, ...] = ()


def journal_of(folder: Path, node: str) -> Path:
    """Return where the journal of a node lies in a run's folder.

    Raises:
        JournalError: The name cannot be a file's.
    """
    return journal.journal_path(folder / "journal", node)


def read_run_file(folder: Path) -> RunRequest:
    """Return what a run was asked for.

    Raises:
        ReimageError: It is not there, or damaged.
    """
    path = folder / RUN_FILE
    try:
        return RunRequest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ReimageError(f"cannot read {path}: {error.strerror}") from None
    except ValidationError:
        raise ReimageError(f"{path} is damaged; start again with -e reimage_again=true") from None


def run_folders(results: Path) -> list[Path]:
    """Return the folders of runs, newest first; also of one that was killed as it began.

    Raises:
        ReimageError: The results folder cannot be listed.
    """
    try:
        names = [path.name for path in results.iterdir() if _RUN_NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ReimageError(f"cannot list the results in {results}: {error.strerror}") from None
    return [results / name for name in sorted(names, reverse=True)]


def newest_journals(results: Path, wanted: Iterable[str] | None = None) -> dict[str, Path]:
    """Return the newest journal of each node, of all nodes unless some are named.

    A run that was killed before its request was written has begun nothing, and is passed over.
    """
    left = None if wanted is None else set(wanted)
    journals: dict[str, Path] = {}
    for folder in run_folders(results):
        if left is not None and not left:
            break
        if not (folder / RUN_FILE).is_file():
            continue
        names = _nodes_with_journal(folder, left)
        for name in names:
            # Folders come newest first: what is there already is newer.
            journals.setdefault(name, journal_of(folder, name))
        if left is not None:
            left.difference_update(names)
    return journals


def _nodes_with_journal(folder: Path, wanted: Iterable[str] | None) -> Sequence[str]:
    if wanted is None:
        return [path.name.removesuffix(".journal") for path in (folder / "journal").glob("*.journal")]
    return [name for name in wanted if journal_of(folder, name).is_file()]


def next_run_id(results: Path) -> str:
    """Return an id after all earlier runs', though the clock was put back: ids are their order."""
    now, before = datetime.now(UTC), next(iter(run_folders(results)), None)
    latest = stamp_of(before.name) if before else None
    return new_run_id(BENCHMARK, now=max(now, latest + timedelta(seconds=1)) if latest else now)
