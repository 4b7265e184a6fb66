"""Write and read JSON files with a seal. No I/O.

The first key is a digest of everything after it. Without a seal, a lost entry could not be noticed, such
as an XID of a snapshot or a rule of a plan. A file without a digest is from an earlier version, or its
digest was removed.
"""

from __future__ import annotations

import hashlib
import re

_HEAD = re.compile(rb'\s*\{\s*"sha256":\s*"([0-9a-f]{64})",')


class SealError(ValueError):
    """The file is not as it was written."""


def seal_json(text: str) -> bytes:
    """Return the text of a non-empty JSON object with its digest."""
    rest = text.encode().partition(b"{")[2]
    return b'{"sha256":"' + hashlib.sha256(rest).hexdigest().encode() + b'",' + rest


def has_digest(data: bytes) -> bool:
    """Return whether a file begins with a digest."""
    return _HEAD.match(data) is not None


def open_sealed(data: bytes) -> bytes:
    """Return the JSON object in a file, without its digest.

    Raises:
        SealError: It was changed after it was sealed, or has no digest.
    """
    head = _HEAD.match(data)
    if head is None:
        raise SealError("it has no digest: an earlier version wrote it, or it was changed")
    rest = data[head.end() :]
    if hashlib.sha256(rest).hexdigest().encode() != head[1]:
        raise SealError("it is not as it was written: its digest is another's")
    return b"{" + rest
