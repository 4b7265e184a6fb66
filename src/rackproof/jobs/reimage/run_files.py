"""Read and write the folder of a run of reimage.yml.

The actions of reimage.yml and the modules tasks, hardware and acceptance use this module. Begin with
:class:`ReimageContext`, the handle of a run. :func:`append_entry` adds an entry to a node's journal, and
:func:`read_journal` reads it. The folder is ``results/RUN_ID/``. ``reimage.json`` contains the request,
``journal/`` one file per node, and ``before/`` and ``after/`` each node's hardware. A node's newest journal
shows its progress, and a new run continues from there.

A line of a journal counts only if it is complete, because its writer may be killed. It is a checksum (CRC-32)
and an entry in JSON::

    614f37fc {"at":"2026-11-21T06:00:00Z","event":"adopted","journal":"20261121T060000Z-reimage-0a1b2c/n1"}
    3239c094+ {"at":"2026-11-21T06:00:02Z","event":"skipped","step":"record","reason":"no BMC"}

A checksum that ends with a plus sign continues the checksum of the previous line. Lines that are lost,
repeated or swapped before the last line therefore count as damage too. A lost end of the file is not noticed.
An incomplete last line does not count, and the next writer removes it. A damaged complete line is an error,
because its content is unknown.

Before a step starts, a reserve file is written beside the journal. It holds the space to record the end of
the step. A full disk therefore stops a node before it is changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from pydantic import AwareDatetime, Field, ValidationError

from rackproof.core.errors import RackproofError
from rackproof.core.records import Record
from rackproof.core.text import sanitize
from rackproof.jobs.reimage import lifecycle
from rackproof.jobs.reimage.lifecycle import Entry, Step
from rackproof.store.plain_file import open_plain, wait_for_lock
from rackproof.store.run_folder import RECORD_LIMIT_BYTES, new_run_id, read_file, stamp_of
from rackproof.store.sealed_json import open_sealed

BENCHMARK = "reimage"
"""Benchmark of a run in the history and in its id."""
RUN_FILE = "reimage.json"
"""File of a run's request (:class:`RunRequest`)."""
CLAIMS = ".reimages"
"""Folder of the host claims of re-imaging, in addition to the claims of every job."""
RESERVE_BYTES = 16 * 1024
"""Size of a journal's reserve."""
_LARGEST = 16 * 2**20
"""Largest size of a journal in bytes."""
_LINE = re.compile(rb"([0-9a-f]{8})(\+?) (.*)", re.DOTALL)
"""Pattern of a journal's line: checksum, a plus sign if it continues the previous line, and entry."""
_RUN_NAME = re.compile(rf"\d{{8}}T\d{{6}}Z-{BENCHMARK}-[0-9a-f]{{6}}")
"""Pattern of the name of a run's folder, such as ``20261121T060000Z-reimage-0a1b2c``."""


class ReimageError(RackproofError):
    """A fault that the operator must fix. The message gives the fault and the remedy."""


class JournalError(RackproofError):
    """A journal that cannot be written or read. The message gives the remedy."""


class RunRequest(Record):
    """The request of a run, as stored in ``reimage.json``.

    ``waves`` lists the nodes that are imaged together, ``limits_s`` the seconds that each step may take, and
    ``images`` the digest of each node's image, if known.
    """

    run_id: str
    started: AwareDatetime
    method: str
    nodes: tuple[str, ...]
    waves: tuple[tuple[str, ...], ...] = ()
    limits_s: dict[str, float] = Field(default={})
    images: dict[str, str] = Field(default={})
    sha256: str = Field(
        default="",
        exclude=True,
        description="Unused: the digest in the file is checked and removed when the file is read.",
    )


class ReimageContext(Record):
    """A run of reimage.yml in progress, passed from task to task.

    ``todo`` lists the steps of each accepted node, and ``refused`` has the reason for each other node.
    ``prefix`` begins the reason of each drain in Slurm. ``message`` is the plan as lines for the operator.
    """

    run_id: str
    folder: str
    results: str
    prefix: str = lifecycle.PREFIX
    waves: tuple[tuple[str, ...], ...] = ()
    todo: dict[str, tuple[Step, ...]] = Field(default={})
    refused: dict[str, str] = Field(default={})
    message: tuple[str, ...] = ()


def journal_path(folder: Path, node: str) -> Path:
    """Return the path of a node's journal in a run's folder.

    Raises:
        JournalError: The name cannot be used for a file.
    """
    if not node or "/" in node or "\0" in node or node.startswith(".") or len(node) > 200:
        raise JournalError(
            f"{sanitize(node, 100)!r}: not usable as the name of a file; rename it in the inventory"
        )
    return folder / "journal" / f"{node}.journal"


def read_run_file(folder: Path) -> RunRequest:
    """Return the request of a run.

    Raises:
        ReimageError: The request cannot be read, is damaged, or belongs to another run.
    """
    path = folder / RUN_FILE
    try:
        request = RunRequest.model_validate_json(open_sealed(read_file(path, RECORD_LIMIT_BYTES)))
    except OSError as error:
        raise ReimageError(
            f"cannot read {path}: {error.strerror}; restore it, or start again with -e reimage_again=true"
        ) from None
    except ValueError:
        raise ReimageError(f"{path} is damaged; start again with -e reimage_again=true") from None
    if _RUN_NAME.fullmatch(folder.name) and request.run_id != folder.name:
        raise ReimageError(f"{path} belongs to run {sanitize(request.run_id, 100)}; move its folder away")
    return request


def run_folders(results: Path) -> list[Path]:
    """Return the folders of runs, newest first, including a run that was killed at its start.

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


def newest_journals(
    results: Path, wanted: Iterable[str] | None = None, living: Collection[str] = ()
) -> dict[str, Path]:
    """Return the newest journal of each node, or only of the given nodes.

    A journal with no entry but ``adopted`` is skipped, because its run ended before it began a step on the
    node, and an older journal has the node's progress.

    Args:
        results: The results folder.
        wanted: The names of the nodes, or None for all.
        living: The nodes that a running playbook re-images. It may still begin with them.

    Raises:
        ReimageError: The results folder cannot be listed.
        JournalError: A wanted name cannot be used for a file.
    """
    nodes_left = None if wanted is None else set(wanted)
    journals: dict[str, Path] = {}
    for folder in run_folders(results):
        if nodes_left is not None and not nodes_left:
            break
        # Folders come newest first, so a journal that was found already is newer.
        found = {
            name: journal_path(folder, name)
            for name in _nodes_with_journal(folder, nodes_left)
            if name not in journals
        }
        found = {name: path for name, path in found.items() if name in living or _has_begun(path)}
        journals |= found
        if nodes_left is not None:
            nodes_left -= found.keys()
    return journals


def _nodes_with_journal(folder: Path, wanted: Iterable[str] | None) -> Sequence[str]:
    """Return the nodes with a journal in a run's folder, or only the nodes of ``wanted``."""
    if wanted is None:
        return [path.name.removesuffix(".journal") for path in (folder / "journal").glob("*.journal")]
    names = []
    for name in wanted:
        # A name that can be no file has no journal.
        with contextlib.suppress(JournalError):
            names += [name] if journal_path(folder, name).is_file() else []
    return names


def is_untouched(path: Path) -> bool:
    """Return whether a journal proves that the run began no step on its node."""
    try:
        entries = read_journal(path)
    except JournalError:
        return False
    return bool(entries) and all(entry.event == "adopted" for entry in entries)


def _has_begun(path: Path) -> bool:
    """Return whether a journal has an entry other than ``adopted``, or is damaged and may have one."""
    try:
        return any(entry.event != "adopted" for entry in read_journal(path))
    except JournalError:
        return True


def next_run_id(results: Path) -> str:
    """Return an id that sorts after the ids of all earlier runs, even if the clock was set back."""
    now, before = datetime.now(UTC), next(iter(run_folders(results)), None)
    latest = stamp_of(before.name) if before else None
    return new_run_id(BENCHMARK, now=max(now, latest + timedelta(seconds=1)) if latest else now)


def encode_entry(entry: Entry, after: int | None = None) -> bytes:
    """Return an entry as a line of a journal.

    Args:
        entry: The entry to write.
        after: The checksum of the previous line. None makes a line without a predecessor, such as the
            first line or one of an earlier version.
    """
    text = entry.model_dump_json(exclude_defaults=True).encode()
    return b"%08x%s %s\n" % (zlib.crc32(text, after or 0), b"" if after is None else b"+", text)


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """Return entries as the lines of a new journal."""
    data = b""
    for entry in entries:
        data += encode_entry(entry, _last_checksum(data))
    return data


def _last_checksum(data: bytes) -> int | None:
    """Return the checksum of a journal's last complete line, or None if there is none."""
    end = data.rfind(b"\n")
    begin = data.rfind(b"\n", 0, max(end, 0)) + 1
    return int(data[begin : begin + 8], 16) if end > 0 else None


def parse_journal(data: bytes, name: str) -> tuple[Entry, ...]:
    """Return the entries of a journal, oldest first, without an incomplete last line.

    Raises:
        JournalError: A complete line is damaged, or does not follow its predecessor.
    """
    whole_lines = data[: data.rfind(b"\n") + 1]
    entries = []
    line: _Line | None = None
    for number, row in enumerate(whole_lines.split(b"\n")[:-1], 1):
        line = _parse_line(row, line)
        if line is None:
            raise JournalError(
                f"{name} is damaged in line {number}: the step of the node is not known. Check the node, "
                "drain it if it is not drained, and start reimage.yml for it with -e reimage_again=true: it "
                "starts from the first step"
            )
        entries.append(line.entry)
    return tuple(entries)


class _Line(NamedTuple):
    """A complete line of a journal. If ``chained``, it continues the previous line."""

    entry: Entry
    checksum: int
    chained: bool


def _parse_line(line: bytes, before: _Line | None) -> _Line | None:
    """Return a line, or None if it is damaged or does not follow its predecessor."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    checksum, chained = int(match[1], 16), bool(match[2])
    # Earlier versions wrote unchained lines, which never follow a chained line.
    if before is not None and before.chained and not chained:
        return None
    if checksum != zlib.crc32(match[3], before.checksum if before and chained else 0):
        return None
    try:
        return _Line(Entry.model_validate_json(match[3]), checksum, chained)
    except ValidationError:
        return None


def read_journal(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a journal, or none if there is no file.

    Raises:
        JournalError: The journal cannot be read, or is damaged.
    """
    try:
        data = read_file(path, _LARGEST)
    except FileNotFoundError:
        return ()
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise JournalError(
                f"{path} is larger than any journal; was it overwritten? Start with -e reimage_again=true"
            ) from None
        raise JournalError(f"cannot read {path}: {error.strerror}") from None
    entries = parse_journal(data, str(path))
    if entries and entries[0].journal not in ("", journal_name(path)):
        raise JournalError(
            f"{path} is damaged: it is the journal of {sanitize(entries[0].journal, 300)}. Check the node, "
            "drain it if it is not drained, and start reimage.yml for it with -e reimage_again=true"
        )
    return entries


def journal_name(path: Path) -> str:
    """Return the run and the node of a journal, such as ``20261121T060000Z-reimage-0a1b2c/n1``."""
    return f"{path.parent.parent.name}/{path.name.removesuffix('.journal')}"


def append_entry(path: Path, entry: Entry, *, reserve: bool = False) -> None:
    """Add an entry and flush it to the disk. If that fails, no part of the entry remains.

    Args:
        path: The path of the journal.
        entry: The entry to add.
        reserve: Whether to first reserve space for later entries, as at the start of each step.
            Otherwise, the reserve may be used up.

    Raises:
        JournalError: The disk is full, or the file is damaged or not writable. The message gives the remedy.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path) as handle:
            if reserve:
                _fill_reserve(_reserve_path(path))
            try:
                _add(handle, entry, str(path))
            except OSError as error:
                if reserve or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # There is no space for the end of a step, so use the reserve.
                _reserve_path(path).unlink(missing_ok=True)
                _add(handle, entry, str(path))
    except OSError as error:
        body = {
            errno.ENOSPC: "the disk is full",
            errno.EDQUOT: "the quota is used up",
            errno.EROFS: "it is on a read-only file system",
        }.get(error.errno or 0, error.strerror or str(error))
        touched = "nothing was started" if reserve else "the node stays drained"
        raise JournalError(
            f"cannot write the journal {path}: {body}; {touched}. Free space there (or give "
            "-e reimage_results=FOLDER), then start the same command again"
        ) from None


def release_reserve(path: Path) -> None:
    """Release the reserve of a journal that ended."""
    with contextlib.suppress(OSError):
        _reserve_path(path).unlink(missing_ok=True)


def discard_journal(path: Path) -> None:
    """Delete the journal of a node on which the run began no step, so that an older one counts."""
    path.unlink(missing_ok=True)
    release_reserve(path)


def _reserve_path(path: Path) -> Path:
    """Return the path of a journal's reserve."""
    return path.with_name(f".{path.name}.reserve")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a journal for one writer at a time, and store its name on the disk if it is new."""
    new = not path.exists()
    handle = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        wait_for_lock(handle, path)
        yield handle
        # Flushing a file does not store its name, which is in the folder.
        if new:
            _flush_folder(path.parent)
    finally:
        os.close(handle)


def _add(handle: int, entry: Entry, name: str) -> None:
    """Write an entry after the last complete line, and remove it if it cannot be written completely.

    An incomplete last line is removed first.

    Raises:
        JournalError: The journal is damaged or too large.
        OSError: The entry cannot be written.
    """
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
        data_left = encode_entry(entry, _last_checksum(before))
        while data_left:
            data_left = data_left[os.write(handle, data_left) :]
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, end)
        raise


def _fill_reserve(path: Path) -> None:
    """Fill the reserve with written bytes, because a sparse file would take no space."""
    if path.exists() and path.stat().st_size == RESERVE_BYTES:
        return
    try:
        with open(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as stream:
            # Use random bytes, because file systems that compress (ZFS, Btrfs) need no space for zeros.
            stream.write(os.urandom(RESERVE_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _flush_folder(folder: Path) -> None:
    """Store the names of a folder's files on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems cannot flush a folder. The file itself is already safe.
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
