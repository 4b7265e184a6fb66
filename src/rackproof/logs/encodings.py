"""Describe why a log is not plain text, by its first bytes, and name the command that converts it.

:func:`rackproof.logs.parse` puts the description into the finding of a log of no known format. The scores of
MLPerf submissions name the first file that is not plain text.
"""

from __future__ import annotations

from pathlib import Path

from rackproof.logs.opening import open_log

HEAD_BYTES = 64
"""Number of bytes from the start of a log that are examined."""

_COMPRESSED = (
    # Each entry has the first bytes of a format, its name, and the program that unpacks it. The sources are
    # RFC 1952, the specifications of xz and zstd, and the manuals of bzip2 and zip.
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"\xfd7zXZ\x00", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"PK\x03\x04", "zip", "unzip"),
)


def encoding_problem(head: bytes) -> str:
    """Return why a log is not plain text, with a remedy if there is one, or "" if it seems to be plain text.

    Args:
        head: The first bytes of the log, :data:`HEAD_BYTES` of them or more.
    """
    for magic, name, program in _COMPRESSED:
        if head.startswith(magic):
            return f"it is compressed by {name}: unpack it first ({program} FILE)"
    # In UTF-16, every other byte of an ASCII text is zero. This shows UTF-16 without a byte order mark, too.
    few = head[:HEAD_BYTES]
    in_turn = 0 in (few[::2].count(0), few[1::2].count(0))
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or (in_turn and few.count(0) * 3 > len(few)):
        return "it is UTF-16: convert it first (iconv -f UTF-16 -t UTF-8 FILE)"
    if few.count(0):
        return "it has zero bytes: it is no text, or it is damaged"
    return ""


def encoding_problem_of(path: Path) -> str:
    """Return the result of :func:`encoding_problem` for the content of a file, which may be compressed.

    If the content begins with plain text, but its first bytes cannot be unpacked, return that problem. Return
    "" if the file cannot be opened or read.
    """
    try:
        with open_log(path) as stream:
            return encoding_problem(stream.read(HEAD_BYTES)) or stream.problem
    except OSError:
        return ""
