"""Report a playbook's steps as JSON lines to the command that started it: no shown text, no secret.

A line is an object with ``kind``: ``task`` (a host starts a step), ``end`` (the host ended it; ``once`` marks
a failure of a task that runs once for all hosts), ``job`` (a
supervised job runs or has ended), ``note`` (a message of a task) or ``diff``. ``rackproof.cli.live_lines``
reads them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

MESSAGE_CHARACTERS = 4000
"""Largest number of characters of a message; a node may answer with megabytes."""
_WORDLESS = "non-zero return code"
_PRINTING = ("debug", "assert")
_SILENT_ASSERT = "All assertions passed"


class EventWriter:
    """Write events to an inherited descriptor; drop them without a descriptor, or if its reader is gone.

    Args:
        descriptor: The descriptor of a pipe; negative if there is none.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, kind: str, **fields: Any) -> None:
        """Write one event. A missing reader does not end the playbook, because its nodes would be left half
        done."""
        if self._descriptor < 0:
            return
        data = json.dumps({"kind": kind, **fields}, default=str).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            self._descriptor = -1


def failure_text(result: Mapping[str, Any]) -> str:
    """Return the reason why a task failed; for a loop, that of the first failed item. No I/O."""
    items = result.get("results")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping) and item.get("failed"):
            return failure_text(item)
    message = message_text(result.get("msg"))
    if message and not message.startswith(_WORDLESS):
        return message[:MESSAGE_CHARACTERS]
    # A program's own last words explain more than an exit status other than 0.
    for stream in ("stderr", "stdout", "module_stderr", "module_stdout"):
        lines = str(result.get(stream) or "").strip().splitlines()
        if lines:
            return lines[-1][:MESSAGE_CHARACTERS]
    return message or "failed"


def spoken_text(action: str, result: Mapping[str, Any]) -> str:
    """Return the message of a task that ended well, or "" if it does not print. No I/O."""
    text = message_text(result.get("msg"))
    is_spoken = action.rpartition(".")[2] in _PRINTING and text != _SILENT_ASSERT
    return text[:MESSAGE_CHARACTERS] if is_spoken else ""


def message_text(message: object) -> str:
    """Return a message of one or several lines as a text. No I/O."""
    if isinstance(message, list | tuple):
        return "\n".join(str(line) for line in message)
    return "" if message is None else str(message)


def jobs_of(result: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield the id of each job in a result, the node of a delegated task, and whether the job runs. No
    I/O."""
    items = result.get("results")
    for one in (result, *(items if isinstance(items, list) else ())):
        job = one.get("job") if isinstance(one, Mapping) else None
        if isinstance(job, Mapping) and isinstance(job.get("id"), str):
            delegated = one.get("_ansible_delegated_vars") or {}
            yield job["id"], str(delegated.get("ansible_delegated_host", "")), job.get("phase") == "running"
