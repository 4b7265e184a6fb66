"""Check the seal on answers of ``rackproof_facts``.

The seal is the SHA-256 of the answer. ``rackproof_facts`` adds it on the node. Job validate calls
:func:`answer_is_whole` when it makes a snapshot of the answer. Without a seal, a node whose fault was lost on
the way would look like a node without faults. The module does no I/O.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

SEAL = "seal"
# Bytes that are not UTF-8 come as lone surrogates (`\udc80` in JSON), which the connection may replace by
# U+FFFD or "?". The digest therefore counts all of them as "?".
_NOT_TEXT = re.compile(r"\\u(?:d[89a-f][0-9a-f]{2}|fffd)")


def sealed_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with its seal, as the module makes it. Only tests call this function."""
    return {**answer, SEAL: _digest(answer)}


def answer_is_whole(answer: Mapping[str, Any]) -> bool:
    """Return whether an answer has a seal, and is unchanged since it was sealed."""
    seal = answer.get(SEAL)
    return bool(seal) and seal == _digest({key: value for key, value in answer.items() if key != SEAL})


def _digest(answer: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an answer, or "" if the answer cannot be written as JSON."""
    try:
        text = json.dumps(answer, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return ""
    return hashlib.sha256(_NOT_TEXT.sub("?", text).encode()).hexdigest()
