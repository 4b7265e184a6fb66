"""Explain why a task of a playbook failed.

The filter task_failure, the records of job bench, and the live lines of the playbooks use this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WORDLESS = "non-zero return code"
_MOST_LINES = {"stdout": 3, "stderr": 5, "module_stdout": 3, "module_stderr": 5}
"""Number of last lines of each stream that explain a failure."""


def failure_reasons(result: Mapping[str, Any]) -> list[str]:
    """Return why a task failed, one text for each failed item of a loop. No I/O.

    Args:
        result: The result of the task, as a node or its modules sent it. The texts are not sanitized.
    """
    items = result.get("results")
    items = items if isinstance(items, list | tuple) else ()
    failed = [item for item in items if isinstance(item, Mapping) and item.get("failed")]
    return [_reason(item) for item in failed or [result]]


def message_text(message: object) -> str:
    """Return a message of one or several lines as a text. No I/O."""
    if isinstance(message, list | tuple):
        return "\n".join(str(line) for line in message)
    return "" if message is None else str(message)


def _reason(result: Mapping[str, Any]) -> str:
    """Return the message of a result, or the last lines of the program if the message does not explain."""
    message = message_text(result.get("msg"))
    if message and not message.startswith(_WORDLESS):
        return message
    # Programs such as apt-get print the cause on stdout, and only a general error on stderr.
    lines: list[str] = []
    for stream, most in _MOST_LINES.items():
        lines += [line for line in str(result.get(stream) or "").splitlines() if line.strip()][-most:]
    return "\n".join(lines) or message or "no reason given"
