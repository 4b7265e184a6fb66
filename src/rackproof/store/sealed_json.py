"""JSON files with a seal: the first key is a digest of all that follows it. No I/O.

An entry that is not there reads like one that never was: a snapshot without XIDs, a plan without a rule.
A file without a digest may lack entries: it is an earlier version's, or the digest was removed.
"""

from __future__ import annotations

import hashlib
import re

_HEAD = re.compile(rb'\s*\{\s*"sha256":\s*"([0-9a-f]{64})",')


class SealError(ValueError):
    """The file is not as it was written."""


def seal_json(text: str) -> bytes:
    """Return the text of a JSON object, which is not empty, with its digest."""
    rest = text.encode().partition(b"{")[2]
    return b'{"sha256":"' + hashlib.sha256(rest).hexdigest().encode() + b'",' + rest


def has_digest(data: bytes) -> bool:
    """Return whether a file begins with a digest."""
    return _HEAD.match(data) is not None


def open_sealed(data: bytes) -> bytes:
    """Return the JSON object in a file, without its digest.

    Raises:
        SealError: It is not as it was sealed, or has no digest.
    """
    head = _HEAD.match(data)
    if head is None:
        raise SealError("it has no digest: an earlier version wrote it, or it was changed")
    rest = data[head.end() :]
    if hashlib.sha256(rest).hexdigest().encode() != head[1]:
        raise SealError("it is not as it was written: its digest is another's")
    return b"{" + rest
