"""Report a playbook's steps as JSON lines to the command that started it.

Rackproof's callbacks give the results of tasks to an :class:`EventReporter`, and ``rackproof.cli.live_lines``
reads the lines. The lines contain no secrets. A line is an object with ``kind``:

* ``task``: a host starts a step.
* ``end``: a host ended a step. ``once`` marks a failure of a task that runs once for all hosts.
* ``job``: a supervised job runs or ended.
* ``night``: a night began, with its id.
* ``record``: a run, plan, night or provisioning was recorded.
* ``verdicts``: a night judged its nodes, also in check mode, which records nothing.
* ``note``, ``table``, ``diff``: a message of a task, the table of all runs, a difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rackproof.core.task_failures import failure_reasons, message_text

MESSAGE_CHARACTERS = 4000
"""Largest number of characters in a message. A node may answer with megabytes."""
_PRINTING = ("debug", "assert")
"""Modules whose messages are reported if they end well."""
_SILENT_ASSERT = "All assertions passed"
"""The message of an assertion without a text of its own, which is not reported."""


class EventWriter:
    """A writer of events to an inherited descriptor.

    Events are dropped if there is no descriptor, or if its reader ended.

    Args:
        descriptor: The descriptor of a pipe, or a negative number if there is none.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def is_open(self) -> bool:
        """Return whether events are read."""
        return self._descriptor >= 0

    def write(self, kind: str, **fields: Any) -> None:
        """Write one event.

        A missing reader does not end the playbook, because its nodes would remain half done.
        """
        if not self.is_open:
            return
        data = json.dumps({"kind": kind, **fields}, default=str).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            self._descriptor = -1


def open_events(pipe: str | None) -> EventWriter:
    """Return a writer to a named pipe. If there is no pipe or reader, it writes nothing."""
    if not pipe:
        return EventWriter(-1)
    try:
        # O_NONBLOCK makes this fail if there is no reader. Otherwise, it would wait for one.
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(descriptor, True)
    except OSError:
        return EventWriter(-1)
    return EventWriter(descriptor)


class EventReporter:
    """A reporter of a callback's events.

    Args:
        events: The writer of the events.
    """

    def __init__(self, events: EventWriter) -> None:
        self._events = events

    def start(self, host: Any, task: Any) -> None:
        """Report a step that a host begins."""
        self._events.write("task", host=host.get_name(), task=task.get_name(), path=task.get_path() or "")

    def end_well(self, result: Any) -> None:
        """Report a step that ended well, with its message, its jobs and its records."""
        # Every task of every playbook comes here, mostly without a reader.
        if not self._events.is_open:
            return
        host = result._host.get_name()
        if night_id := night_begun_by(result._result):
            self._events.write("night", host=host, id=night_id)
        record = record_of(result._result)
        if record:
            self._events.write("record", host=host, **record)
        verdicts = verdicts_of(result._result)
        if verdicts:
            self._events.write("verdicts", nodes=verdicts)
        for job, node, runs in jobs_of(result._result):
            self._events.write("job", host=host, id=job, on=node or host, runs=runs)
        text = spoken_text(str(result._task.action), result._result)
        if text:
            self._events.write("note", host=host, text=text)
        self.skip(result)

    def skip(self, result: Any) -> None:
        """Report the end of a step that was skipped, or that :meth:`end_well` already described."""
        self._events.write("end", host=result._host.get_name(), state="ok")

    def fail(self, result: Any, state: str) -> None:
        """Report a step that failed, and why."""
        self._events.write(
            "end",
            host=result._host.get_name(),
            state=state,
            task=result._task.get_name(),
            once=bool(result._task.run_once) and not result._task.delegate_to,
            # With ignore_unreachable, the playbook continues with the node, and reports the reason itself.
            ignored=state == "unreachable" and bool(result._task.ignore_unreachable),
            text=failure_text(result._result),
        )

    def record(self, kind: str, name: str, verdict: str, path: str) -> None:
        """Report a record that no task reports."""
        self._events.write("record", **_record(kind, name, verdict, path))

    def show_table(self, text: str) -> None:
        """Report the table of all runs."""
        self._events.write("table", text=text)

    def show_diff(self, host: Any, text: str) -> None:
        """Report a step's changes in a file."""
        self._events.write("diff", host=host.get_name(), text=text)


def failure_text(result: Mapping[str, Any]) -> str:
    """Return why a task failed. For a loop, use the first failed item. No I/O."""
    return failure_reasons(result)[0][:MESSAGE_CHARACTERS]


def spoken_text(action: str, result: Mapping[str, Any]) -> str:
    """Return the message of a task that ended well, or "" if it does not print. No I/O."""
    text = message_text(result.get("msg"))
    is_spoken = action.rpartition(".")[2] in _PRINTING and text != _SILENT_ASSERT
    return text[:MESSAGE_CHARACTERS] if is_spoken else ""


def fold_unreachable(results: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return a line for each reason why hosts cannot be reached, with these hosts. No I/O."""
    from rackproof.core.same_reason import general_reason, named_nodes, unreachable_step
    from rackproof.core.text import sanitize

    hosts: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for host, result in results:
        text = sanitize(failure_text(result), MESSAGE_CHARACTERS)
        general = general_reason(text, host)
        hosts.setdefault(general, []).append(host)
        texts[general] = text
    return [
        f"fatal: [{named_nodes(names)}]: UNREACHABLE! => "
        + "; ".join(filter(None, (general if len(names) > 1 else texts[general], unreachable_step(general))))
        for general, names in hosts.items()
    ]


def record_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``what`` (the kind), id, verdict and path of a task's record, or {}. No I/O.

    A run also has its reasons and nodes.
    """
    run = result.get("rackproof_run")
    if isinstance(run, Mapping):
        reasons = message_text(run.get("reasons"))[:MESSAGE_CHARACTERS]
        return {
            **_record("run", run.get("run_id"), run.get("verdict"), run.get("report")),
            "reasons": reasons,
            "nodes": list(run.get("nodes") or ()),
        }
    report = result.get("rackproof_report_file")
    if isinstance(report, str):
        return _record("plan", Path(report).parent.name, result.get("verdict"), report)
    page = result.get("page")
    if isinstance(page, str) and page and "gates" in result:
        return _record(
            str(result.get("record", "night")), Path(page).parent.name, result.get("verdict"), page
        )
    return {}


def night_begun_by(result: Mapping[str, Any]) -> str:
    """Return the id of the night that a task began, or "". No I/O."""
    night = result.get("night")
    return str(night.get("night_id", "")) if isinstance(night, Mapping) else ""


def verdicts_of(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the verdict of each node if a task closed a night, or {}. No I/O."""
    verdicts = result.get("verdicts")
    if "gates" not in result or not isinstance(verdicts, Mapping):
        return {}
    return {str(node): str(verdict) for node, verdict in verdicts.items()}


def _record(kind: str, name: object, verdict: object, path: object) -> dict[str, Any]:
    return {"what": kind, "id": str(name), "verdict": str(verdict), "path": str(path or "")}


def jobs_of(result: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield each job in a result with its id, its node, and whether it runs. No I/O."""
    items = result.get("results")
    for entry in (result, *(items if isinstance(items, list) else ())):
        job = entry.get("job") if isinstance(entry, Mapping) else None
        if isinstance(job, Mapping) and isinstance(job.get("id"), str):
            delegated = entry.get("_ansible_delegated_vars") or {}
            yield job["id"], str(delegated.get("ansible_delegated_host", "")), job.get("phase") == "running"
