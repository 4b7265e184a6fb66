"""Collect the outcome of a playbook for ``--json`` from its events. No I/O.

:mod:`rackproof.cli.playbooks` passes the events, and prints the outcome when the playbook ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rackproof.core.records import Verdict, worst
from rackproof.core.text import sanitize

_MOST = 4000
"""Largest number of characters of a reason."""
_LOST = ("failed", "unreachable")
"""States of a node for which the playbook did not do all its steps."""


class PlaybookOutcome:
    """The nodes, verdicts, failures and records of one playbook so far, for ``--json``.

    Args:
        command: The name of the command, such as ``bench``.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._nodes: dict[str, str] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._failures: list[dict[str, Any]] = []
        self._records: dict[str, dict[str, Any]] = {}

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Keep the content of an event (:mod:`rackproof_ansible.playbook_events`)."""
        host = sanitize(event.get("host", ""), 100)
        match event.get("kind"):
            case "task":
                self._nodes[host] = "unfinished"
            case "end":
                self._end(host, event)
            case "record":
                self._record(event)
            case "verdicts":
                self._add_verdicts(event.get("nodes"))

    def _end(self, host: str, event: Mapping[str, Any]) -> None:
        """Keep the end of a step. A task that runs once fails for no single node."""
        state = event.get("state")
        if state not in _LOST:
            self._nodes[host] = "ok"
            return
        is_own = not event.get("once")
        self._nodes[host] = str(state) if is_own else "ok"
        self._failures.append(
            {
                "node": host if is_own else None,
                "state": state,
                "step": sanitize(event.get("task", ""), 200),
                "reason": sanitize(event.get("text", ""), _MOST, newlines=True),
            }
        )

    def _add_verdicts(self, verdicts: object) -> None:
        """Keep the worst verdict of each node, because a playbook may judge a node more than once."""
        for host, text in verdicts.items() if isinstance(verdicts, Mapping) else ():
            name = sanitize(host, 100)
            verdict = Verdict(text) if text in list(Verdict) else Verdict.UNPROVEN
            self._verdicts[name] = worst([verdict, self._verdicts.get(name, verdict)])

    def _record(self, event: Mapping[str, Any]) -> None:
        """Keep a record in place of an earlier one with its id."""
        kind, name = sanitize(event.get("what", ""), 40), sanitize(event.get("id", ""), 200)
        verdict, nodes = event.get("verdict"), event.get("nodes")
        self._records[name] = {
            "kind": kind,
            "id": name,
            "verdict": sanitize(verdict, 20) if verdict else None,
            "path": sanitize(event.get("path", ""), 4096),
            "reasons": sanitize(event.get("reasons", ""), _MOST, newlines=True).splitlines(),
            "nodes": [sanitize(node, 100) for node in nodes] if isinstance(nodes, list) else [],
        }

    def as_json(
        self, status: int, was_interrupted: bool, running_jobs: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        """Return the outcome. Its keys are always the same.

        Args:
            status: The exit status.
            was_interrupted: Whether a signal requested the end.
            running_jobs: The nodes of each job that continues.
        """
        failed = {
            str(failure["node"]): str(failure["state"]) for failure in self._failures if failure["node"]
        }
        # A node that failed may continue in other plays, but still counts as failed.
        states = {name: failed.get(name, state) for name, state in self._nodes.items()}
        return {
            "command": self._command,
            "status": status,
            "interrupted": was_interrupted,
            # The end of a node's tasks is not a verdict: the tasks of a night also end well on a bad node.
            "playbook_states": states,
            "verdicts": {name: self._verdict(name, states.get(name, "")) for name in states | self._verdicts},
            "failures": self._failures,
            "records": list(self._records.values()),
            "running_jobs": {job: list(nodes) for job, nodes in running_jobs.items()},
        }

    def _verdict(self, name: str, state: str) -> str | None:
        """Return a node's verdict, or None if the playbook gave none."""
        verdict = self._verdicts.get(name)
        if verdict is None:
            return None
        # If a step after the night failed, such as the acceptance of a new node, the night proves too little.
        return worst([verdict, Verdict.UNPROVEN]).value if state in _LOST else verdict.value
