"""A log file read once: parsed, watched by observers, and digested in the same pass."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

from rackproof.core.records import LogFile, ParsedLog
from rackproof.logs import parse
from rackproof.logs._reading import LineObserver


class _DigestingStream:
    """Passes a stream's bytes on, and counts and digests them."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def read(self, size: int = -1) -> bytes:
        return self._seen(self._stream.read(size))

    def readline(self, limit: int = -1) -> bytes:
        return self._seen(self._stream.readline(limit))

    def _seen(self, block: bytes) -> bytes:
        self._digest.update(block)
        self.size_bytes += len(block)
        return block

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def read_log_file(
    path: Path, name: str, *, format: str = "auto", observers: Sequence[LineObserver] = ()
) -> tuple[ParsedLog, LogFile]:
    """Return a parsed log, and its entry in the record of a run.

    Args:
        path: The log.
        name: How findings and the record call it, relative to the run's folder.
        format: A log format's name, or ``auto``.
        observers: Get every line in the same pass.

    Raises:
        ValueError: The format is unknown.
        OSError: The log cannot be read.
    """
    with path.open("rb") as raw:
        stream = _DigestingStream(raw)
        # The parsers only call read() and readline(), up to the end of the file.
        log = parse(cast("BinaryIO", stream), format=format, name=name, observers=observers)
    entry = LogFile(
        path=name,
        sha256=stream.sha256,
        size_bytes=stream.size_bytes,
        format=log.format,
        verdict=log.verdict,
    )
    return log, entry
