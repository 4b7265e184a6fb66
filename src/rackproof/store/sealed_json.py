"""Add and check the seal of JSON files, which shows whether a file was changed.

Plans, runs, nights, snapshots, probes, certificates and requests of reimage.yml are stored in this way:
``{"sha256":"0a1b…","night_id":…}``. The value of the first key is the SHA-256 of all bytes after this key and
its comma. Without a digest, a lost entry would pass unnoticed, such as an XID of a snapshot or a rule of a
plan. A file without a digest is from an earlier version, or its digest was removed.

Writers call :func:`seal_json`, and readers :func:`open_sealed`. The module does no I/O.
"""

from __future__ import annotations

import hashlib
import re

# Matches the beginning of a sealed file, up to the comma after the digest.
_HEAD = re.compile(rb'\s*\{\s*"sha256":\s*"([0-9a-f]{64})",')


class SealError(ValueError):
    """A file that was changed after it was written, or that lacks a digest."""


def seal_json(text: str) -> bytes:
    """Return a JSON object, given as text and not empty, as bytes with its digest as the first key."""
    content = text.encode().partition(b"{")[2]
    return b'{"sha256":"' + hashlib.sha256(content).hexdigest().encode() + b'",' + content


def has_digest(data: bytes) -> bool:
    """Return whether a file begins with a digest."""
    return _HEAD.match(data) is not None


def open_sealed(data: bytes) -> bytes:
    """Return the JSON object in a file, without its digest.

    Raises:
        SealError: The file was changed after it was sealed, or lacks a digest.
    """
    head = _HEAD.match(data)
    if head is None:
        raise SealError("it has no digest: an earlier version wrote it, or it was changed")
    content = data[head.end() :]
    if hashlib.sha256(content).hexdigest().encode() != head[1]:
        raise SealError("it was changed after it was written: its digest does not match")
    return b"{" + content
