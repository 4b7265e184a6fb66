"""Open logs, also compressed ones (gzip, xz, bzip2), and find files that cannot be read as a log.

:func:`rackproof.logs.parse_path`, :func:`rackproof.logs.read_log_file`, imports of logs and the scores call
:func:`open_log`. Imports and ``rackproof parse`` call :func:`why_no_log` to find a file that is no log. The
first bytes of a file show its type, whatever its name is. Unpacking is bounded, because a few bytes may
expand to terabytes.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from rackproof.core.records import Finding, ParsedLog, Source, Verdict, worst

MOST_UNPACKED = 8 << 30
"""Largest number of bytes that are unpacked from a log: sixteen times the log of a week's training."""
_HEAD = 512
"""Number of bytes that show the type of a file. The mark of a tar archive is at byte 257."""
_BLOCK = 1 << 16
"""Number of compressed bytes that are read at once."""
_MOST_MEMORY = 256 << 20
"""Largest number of bytes of memory for unpacking xz. The highest setting of xz, -9, needs a quarter."""
_Decompressor = lzma.LZMADecompressor | bz2.BZ2Decompressor


class _Unpacked(io.RawIOBase):
    """The bytes of a compressed file that has one or several streams, one after the other.

    Python's own LZMAFile and BZ2File take any memory that the file claims, and leave out what follows the
    first stream if it is damaged.
    """

    def __init__(self, raw: BinaryIO, begin: Callable[[], _Decompressor]) -> None:
        self._raw, self._begin = raw, begin
        self._stream = begin()

    def readable(self) -> bool:
        """Return True, because the file is open for reading."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Store the next bytes in a buffer, and return their number, or 0 at the end.

        Raises:
            EOFError: The file ends within a stream.
            lzma.LZMAError: The file is damaged, or needs too much memory.
            OSError: The file is damaged, or cannot be read.
        """
        while True:
            if self._stream.eof:
                # Streams of xz may have zeros between them.
                packed = self._stream.unused_data.lstrip(b"\0") or self._next_stream()
                if not packed:
                    return 0
                self._stream = self._begin()
            elif self._stream.needs_input:
                packed = self._raw.read(_BLOCK)
                if not packed:
                    raise EOFError("it ends early")
            else:
                packed = b""
            if block := self._stream.decompress(packed, len(buffer)):
                buffer[: len(block)] = block
                return len(block)

    def _next_stream(self) -> bytes:
        """Return bytes from the beginning of the next stream, or none at the end of the file."""
        while packed := self._raw.read(_BLOCK):
            if packed := packed.lstrip(b"\0"):
                return packed
        return b""


def _xz(raw: BinaryIO) -> BinaryIO:
    return io.BufferedReader(_Unpacked(raw, lambda: lzma.LZMADecompressor(memlimit=_MOST_MEMORY)))


_UNPACK: dict[bytes, Callable[[BinaryIO], BinaryIO]] = {
    b"\x1f\x8b": lambda raw: cast("BinaryIO", gzip.GzipFile(fileobj=raw)),
    b"\xfd7zXZ\x00": _xz,
    b"BZh": lambda raw: io.BufferedReader(_Unpacked(raw, bz2.BZ2Decompressor)),
}
"""Function that unpacks a file, by the file's first bytes."""
_NOT_READABLE = (
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd, which is not read: unpack it with `unzstd`"),
    (0, b"\x04\x22\x4d\x18", "compressed by lz4, which is not read: unpack it with `unlz4`"),
    (0, b"PK\x03\x04", "a zip archive: unpack it"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive: unpack it"),
    (257, b"ustar", "a tar archive: unpack it"),
)
"""Position and bytes that show another type of file, and the reason for an operator."""
_SPECIAL: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_DAMAGE = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, ValueError)
"""Errors of the three unpackers for damaged content."""
_SUFFIXES = (".gz", ".xz", ".bz2", ".zst", ".lz4", ".zip")


class LogStream:
    """A log's bytes as they were written, whether or not its file is compressed.

    Attributes:
        problem: The reason why the log could not be unpacked completely, or "". It is set while the log is
            read, and the stream then ends.
    """

    def __init__(self, raw: BinaryIO) -> None:
        head = raw.read(_HEAD)
        raw.seek(0)
        unpack = next((unpack for magic, unpack in _UNPACK.items() if head.startswith(magic)), None)
        self._stream = unpack(raw) if unpack is not None else raw
        self._left = MOST_UNPACKED if unpack is not None else None
        self.problem = ""

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, or no bytes at the end."""
        return self._bounded(self._stream.read, size)

    def readline(self, limit: int = -1) -> bytes:
        """Return the rest of the line, or at most ``limit`` bytes of it."""
        return self._bounded(self._stream.readline, limit)

    def _bounded(self, read: Callable[[int], bytes], size: int) -> bytes:
        """Read a block, and end the stream with a problem if it is damaged or unpacks to too much."""
        if self._left is None:
            return read(size)
        if self.problem:
            return b""
        try:
            block = read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        except (*_DAMAGE, OSError, MemoryError) as error:
            # The message is liblzma's for a limit of memory.
            is_too_large = isinstance(error, MemoryError) or "Memory usage" in str(error)
            self.problem = f"the compressed log is damaged ({error}): copy it again"
            if is_too_large:
                self.problem = "the compressed log needs too much memory to be unpacked: unpack it yourself"
            return b""
        self._left -= len(block)
        if self._left < 0:
            self.problem = (
                f"the compressed log unpacks to more than {MOST_UNPACKED >> 30} GiB: unpack it yourself"
            )
        return block


@contextmanager
def open_log(path: str | Path) -> Iterator[LogStream]:
    """Open a log for reading.

    Raises:
        OSError: The path cannot be read or is no plain file (a device may never end, a FIFO may lack a
            writer).
    """
    if special := special_file(Path(path)):
        raise OSError(errno.EINVAL, f"it is {special}, not a file", str(path))
    with open(path, "rb") as raw:
        yield LogStream(raw)


def with_problem(log: ParsedLog, problem: str) -> ParsedLog:
    """Return the log. If it has a problem, it is at best unproven, and the problem is a finding."""
    if not problem:
        return log
    finding = Finding(
        code="log_not_unpacked",
        verdict=Verdict.UNPROVEN,
        message=problem[:500],
        source=Source(file=log.file or None),
    )
    verdict = worst([log.verdict, Verdict.UNPROVEN])
    return log.model_copy(update={"findings": (*log.findings, finding), "verdict": verdict})


def why_no_log(path: Path) -> str:
    """Return why a file cannot be read as a log, and the remedy, or "" if it can. Only its head is read.

    Raises:
        OSError: The file cannot be read.
    """
    if special := special_file(path):
        return f"{special}, not a file: copy its output into a file, or pipe it in and name the file -"
    with path.open("rb") as raw:
        head = raw.read(_HEAD)
        if any(head.startswith(magic) for magic in _UNPACK):
            raw.seek(0)
            head = LogStream(raw).read(_HEAD)
    return next((text for position, magic, text in _NOT_READABLE if head.startswith(magic, position)), "")


def special_file(path: Path) -> str:
    """Return the type of a path as text (``a FIFO``), or "" for a file or folder.

    Raises:
        OSError: The path does not exist or is not accessible.
    """
    mode = os.stat(path).st_mode
    return next((text for is_one, text in _SPECIAL if is_one(mode)), "")


def name_unpacked(name: str) -> str:
    """Return a log's name without the ending of its compression."""
    return next((name.removesuffix(end) for end in _SUFFIXES if name.endswith(end) and name != end), name)
