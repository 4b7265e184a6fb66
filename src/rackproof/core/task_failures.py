"""Explain why a task of a playbook failed.

The filter ``task_failure``, the records of job bench, the nights of job validate, and the live lines of the
playbooks call this module with the result of a task. Begin with :func:`failure_reasons`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_WORDLESS = ("non-zero return code", "Module result deserialization failed", "MODULE FAILURE")
"""Beginnings of messages of Ansible that give no reason.

The reason is in the output of the program or module.
"""
_MOST_LINES = {"stdout": 3, "stderr": 5, "module_stdout": 3, "module_stderr": 5}
"""Number of last lines of each stream that explain a failure."""
_SEARCHED = 40
"""Number of last lines of each stream that are searched for errors. Earlier lines may be of another step."""
_MOST_ERRORS = 3
"""Number of lines with errors that are added to the last lines of a stream."""
# Matches apt's "E: Unable to locate package", and "error" in any case.
_ERROR = re.compile(r"^\s*E:|(?i:error)")


def failure_reasons(result: Mapping[str, Any]) -> list[str]:
    """Return why a task failed, one text for each failed item of a loop.

    The function does no I/O.

    Args:
        result: The result of the task, as a node or its modules sent it. The texts are not sanitized.
    """
    items = result.get("results")
    items = items if isinstance(items, list | tuple) else ()
    failed = [item for item in items if isinstance(item, Mapping) and item.get("failed")]
    return [_reason_of_result(item) for item in failed or [result]]


def answer_text(result: Mapping[str, Any]) -> str:
    """Return the message of a task's result in one line, or the reason if the task failed.

    ``msg`` alone would not be enough. If Python is missing on a node, for example, only the module's output
    states this. The function does no I/O.
    """
    text = failure_reasons(result)[0] if result.get("failed") else message_text(result.get("msg"))
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def message_text(message: object) -> str:
    """Return a message of one or several lines as a text, without I/O."""
    if isinstance(message, list | tuple):
        return "\n".join(str(line) for line in message)
    return "" if message is None else str(message)


def _reason_of_result(result: Mapping[str, Any]) -> str:
    """Return the message of a result, or lines of the program if the message gives no reason.

    These are the last lines, and errors shortly before them. dpkg, for example, prints the failed package and
    the cause, continues with other packages, and ends with the names of the failed packages.
    """
    message = message_text(result.get("msg"))
    # The output of a task with no_log may contain secrets.
    if (message and not message.startswith(_WORDLESS)) or result.get("_ansible_no_log"):
        return message or "no reason given"
    # Programs such as apt-get print the cause on stdout, and only a general error on stderr.
    lines: list[str] = []
    for stream, most in _MOST_LINES.items():
        printed = [line for line in str(result.get(stream) or "").splitlines() if line.strip()][-_SEARCHED:]
        last = printed[-most:]
        # Later errors are consequences of earlier errors, so the first error is the cause.
        errors = dict.fromkeys(line for line in _errors(printed[:-most]) if line not in (*lines, *last))
        lines += [*list(errors)[:_MOST_ERRORS], *last]
    return "\n".join(lines) or message or "no reason given"


def _errors(lines: list[str]) -> Iterator[str]:
    """Yield lines that state an error, and the line after one that ends in a colon."""
    announced = False
    for line in lines:
        is_error = _ERROR.search(line) is not None
        if is_error or announced:
            yield line
        announced = is_error and line.rstrip().endswith(":")
