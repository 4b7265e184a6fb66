"""Check the seal on answers of ``rackproof_facts``. No I/O.

Job validate calls :func:`answer_is_whole` before it stores a snapshot. The module seals its answer on the
node, which shows that the answer is complete and unchanged. Without a seal, a lost text or entry would look
like a node without faults.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

SEAL = "seal"
# Bytes that are not text come as lone surrogates, which the connection may replace.
_NOT_TEXT = re.compile(r"\\u(?:d[89a-f][0-9a-f]{2}|fffd)")


def sealed_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with its seal, as the module makes it."""
    return {**answer, SEAL: _digest(answer)}


def answer_is_whole(answer: Mapping[str, Any]) -> bool:
    """Return whether an answer is as it was sealed."""
    seal = answer.get(SEAL)
    return bool(seal) and seal == _digest({key: value for key, value in answer.items() if key != SEAL})


def _digest(answer: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(answer, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return ""
    return hashlib.sha256(_NOT_TEXT.sub("?", text).encode()).hexdigest()
