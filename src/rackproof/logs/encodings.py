"""Recognise logs that are not plain text by their first bytes, with the command that converts them."""

from __future__ import annotations

from pathlib import Path

from rackproof.logs.opening import open_log

HEAD_BYTES = 64

_COMPRESSED = (
    # RFC 1952, the xz and zstd formats, bzip2's and zip's manuals.
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"\xfd7zXZ\x00", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"PK\x03\x04", "zip", "unzip"),
)


def encoding_problem(head: bytes) -> str:
    """Return the format of a log that is not plain text, and the remedy, or "" if nothing shows one.

    Args:
        head: Its first bytes, :data:`HEAD_BYTES` of them or more.
    """
    for magic, name, program in _COMPRESSED:
        if head.startswith(magic):
            return f"it is compressed by {name}: unpack it first ({program} FILE)"
    # Every other byte of ASCII in UTF-16 is zero, so a byte order mark is not needed.
    few = head[:HEAD_BYTES]
    in_turn = 0 in (few[::2].count(0), few[1::2].count(0))
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or (in_turn and few.count(0) * 3 > len(few)):
        return "it is UTF-16: convert it first (iconv -f UTF-16 -t UTF-8 FILE)"
    if few.count(0):
        return "it has zero bytes: it is no text, or it is damaged"
    return ""


def encoding_problem_of(path: Path) -> str:
    """Return the same for a log, which may be compressed, or "" if it cannot be read."""
    try:
        with open_log(path) as stream:
            return encoding_problem(stream.read(HEAD_BYTES)) or stream.problem
    except OSError:
        return ""
