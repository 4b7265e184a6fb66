"""A node's journal in one run: lines are added whole or not at all, whatever ends the writer.

A line is a checksum and an entry in JSON. A last line that was cut off never counted, and is removed by the
next writer; a damaged line before it is an error, because what it said is not known. Beside the journal
lies a reserve: the space to write down how a step ended is taken before the step begins, so that a full disk
stops a node before it is touched and not after.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from rackproof.core.errors import RackproofError
from rackproof.core.text import sanitize
from rackproof.jobs.reimage.lifecycle import Entry

# More than the end of a step takes: a reason of 1000 characters, and remarks of 300 each.
RESERVE_BYTES = 16 * 1024
_LARGEST = 16 * 2**20


class JournalError(RackproofError):
    """A journal cannot be written or read; the message says what to do."""


def journal_path(folder: Path, node: str) -> Path:
    """Return where the journal of a node lies in a run's folder.

    Raises:
        JournalError: The name cannot be a file's.
    """
    # File systems allow 255 bytes, of which ".NODE.journal.reserve" takes 17.
    if not node or "/" in node or "\0" in node or node.startswith(".") or len(node) > 200:
        raise JournalError(
            f"{sanitize(node, 100)!r}: not usable as the name of a file; rename it in the inventory"
        )
    return folder / f"{node}.journal"


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
                f"{name} is damaged in line {number}: where the node stands is not known. Look at the node, "
                "drain it if it is not, start reimage.yml for it with -e reimage_again=true: it begins anew"
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
        JournalError: Disk full, not permitted, damaged; says what to do.
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
