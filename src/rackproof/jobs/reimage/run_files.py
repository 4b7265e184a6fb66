"""The folder of a run of reimage.yml: what was asked for, and one journal per node.

A run's folder is ``results/RUN_ID/``: ``reimage.json`` has the request, ``journal/`` one file per node,
``before/`` and ``after/`` each node's hardware. A node's newest journal is its progress; a new run goes on
from there.

A journal's lines are added whole or not at all, whatever ends the writer. A line is a checksum and an entry
in JSON. A last line that was cut off never counted, and is removed by the next writer; a damaged line before
it is an error, because its content is not known. Beside the journal lies a reserve: the space to write down
how a step ended is taken before the step begins, so that a full disk stops a node before it is touched and
not after.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import AwareDatetime, Field, ValidationError

from rackproof.core.errors import RackproofError
from rackproof.core.records import Record
from rackproof.core.text import sanitize
from rackproof.jobs.reimage import lifecycle
from rackproof.jobs.reimage.lifecycle import Entry, Step
from rackproof.store.run_folder import new_run_id, stamp_of

BENCHMARK = "reimage"
"""The name under which a run enters the history."""
RUN_FILE = "reimage.json"
CLAIMS = ".reimages"
"""Folder of the host claims of re-imaging, beside those that every job makes."""
RESERVE_BYTES = 16 * 1024
_LARGEST = 16 * 2**20
_RUN_NAME = re.compile(rf"\d{{8}}T\d{{6}}Z-{BENCHMARK}-[0-9a-f]{{6}}")


class ReimageError(RackproofError):
    """Something an operator has to mend; the message names what and how."""


class JournalError(RackproofError):
    """A journal cannot be written or read; the message names what to do."""


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


def journal_path(folder: Path, node: str) -> Path:
    """Return where the journal of a node lies in a run's folder.

    Raises:
        JournalError: The name cannot be a file's.
    """
    if not node or "/" in node or "\0" in node or node.startswith(".") or len(node) > 200:
        raise JournalError(
            f"{sanitize(node, 100)!r}: not usable as the name of a file; rename it in the inventory"
        )
    return folder / "journal" / f"{node}.journal"


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
            journals.setdefault(name, journal_path(folder, name))
        if left is not None:
            left.difference_update(names)
    return journals


def _nodes_with_journal(folder: Path, wanted: Iterable[str] | None) -> Sequence[str]:
    if wanted is None:
        return [path.name.removesuffix(".journal") for path in (folder / "journal").glob("*.journal")]
    return [name for name in wanted if journal_path(folder, name).is_file()]


def next_run_id(results: Path) -> str:
    """Return an id after all earlier runs', though the clock was put back: ids are their order."""
    now, before = datetime.now(UTC), next(iter(run_folders(results)), None)
    latest = stamp_of(before.name) if before else None
    return new_run_id(BENCHMARK, now=max(now, latest + timedelta(seconds=1)) if latest else now)


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as a journal has it."""
    text = entry.model_dump_json(exclude_defaults=True).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def parse_journal(data: bytes, name: str) -> tuple[Entry, ...]:
    """Return the entries of a journal, oldest first; a last line that was cut off is none.

    Raises:
        JournalError: A line before the last is damaged.
    """
    whole = data[: data.rfind(b"\n") + 1]
    entries = []
    for number, one in enumerate(whole.splitlines(), 1):
        checksum, _, text = one.partition(b" ")
        try:
            entry = Entry.model_validate_json(text) if int(checksum, 16) == zlib.crc32(text) else None
        except (ValueError, ValidationError):
            entry = None
        if entry is None:
            raise JournalError(
                f"{name} is damaged in line {number}: where the node stands is not known. Check the node, "
                "drain it if it is not, start reimage.yml for it with -e reimage_again=true: it starts "
                "from the first step"
            )
        entries.append(entry)
    return tuple(entries)


def read_journal(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a journal, none where there is no file.

    Raises:
        JournalError: It cannot be read, or is damaged.
    """
    try:
        with open(path, "rb") as stream:
            data = stream.read(_LARGEST + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > _LARGEST:
        raise JournalError(
            f"{path} is larger than any journal; was it overwritten? Start with -e reimage_again=true"
        )
    return parse_journal(data, str(path))


def append_entry(path: Path, entry: Entry, *, reserve: bool = False) -> None:
    """Add an entry, flushed to the disk; of one that cannot be added nothing is left.

    Args:
        path: The journal.
        entry: What to add.
        reserve: Whether space for what follows is taken first: so begins a step. Otherwise the reserve may be
            used up.

    Raises:
        JournalError: Disk full, not permitted, damaged; the text names what to do.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path) as handle:
            if reserve:
                _take(_reserve(path))
            try:
                _add(handle, encode_entry(entry), str(path))
            except OSError as error:
                if reserve or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # The end of a step that finds no space: this is what the reserve was taken for.
                _reserve(path).unlink(missing_ok=True)
                _add(handle, encode_entry(entry), str(path))
    except OSError as error:
        what = {
            errno.ENOSPC: "the disk is full",
            errno.EDQUOT: "the quota is used up",
            errno.EROFS: "it is on a read-only file system",
        }.get(error.errno or 0, error.strerror or str(error))
        touched = "nothing was begun" if reserve else "the node stays drained"
        raise JournalError(
            f"cannot write the journal {path}: {what}; {touched}. Free space there (or give "
            "-e reimage_results=FOLDER), then start the same command again"
        ) from None


def release_reserve(path: Path) -> None:
    """Give back the reserve of a journal that has ended."""
    with contextlib.suppress(OSError):
        _reserve(path).unlink(missing_ok=True)


def _reserve(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserve")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    new = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
        # To flush a file does not keep its name, which is in the folder.
        if new:
            _flush_folder(path.parent)
    finally:
        os.close(handle)


def _add(handle: int, data: bytes, name: str) -> None:
    """Write at the end of what is whole; take back what could not be written whole."""
    size = os.fstat(handle).st_size
    if size > _LARGEST:
        raise JournalError(
            f"{name} is larger than any journal; was it overwritten? Start with -e reimage_again=true"
        )
    before = os.pread(handle, size, 0)
    parse_journal(before, name)
    end = before.rfind(b"\n") + 1
    if end != size:
        os.ftruncate(handle, end)
    try:
        left = data
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, end)
        raise


def _take(path: Path) -> None:
    """Fill the reserve; bytes that are written, because a hole takes no space."""
    if path.exists() and path.stat().st_size == RESERVE_BYTES:
        return
    try:
        with open(path, "wb") as stream:
            # Random: file systems that compress (ZFS, Btrfs) would keep zeros in no space at all.
            stream.write(os.urandom(RESERVE_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems cannot flush a folder; the file itself is safe by now.
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
