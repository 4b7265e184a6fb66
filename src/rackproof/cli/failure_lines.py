"""Print each reason of a playbook once: equal reasons of several nodes in one line. No I/O.

A failure is held until its step has ended on all nodes, but not for long. A reason that is printed again as a
part of a later one becomes ``as above`` there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from rackproof.core.hostlist import expand_hostlist
from rackproof.core.same_reason import general_reason, named_nodes, plain_reason, unreachable_step

AS_ABOVE = "as above"
_HELD_S = 15.0
"""Seconds after which a failure is printed although its step goes on elsewhere."""
_LEAST = 12
"""Number of characters from which a reason is recognized in a later text: a short one is in any."""
_NAMES = re.compile(r"[\w.-]+(?:\[[\d,-]+\][\w.-]*)*")


@dataclass
class _Failure:
    """Nodes that failed at one step for one reason; ``text`` is the first node's own."""

    state: str
    step: str
    general: str
    text: str
    since: float
    is_once: bool
    nodes: list[str] = field(default_factory=list)


class FailureLines:
    """The failures of one playbook, from which lines are made."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, bool, str], _Failure] = {}
        self._postponed: dict[str, _Failure] = {}
        self._printed: dict[str, set[str]] = {}

    def add(
        self, node: str, state: str, step: str, text: str, now: float, *, once: bool, reported_later: bool
    ) -> None:
        """Keep a failure.

        Args:
            node: The node.
            state: ``failed`` or ``unreachable``.
            step: The name of the task.
            text: The reason.
            now: The present time.
            once: Whether the task runs once for all nodes, so that the failure is no node's own.
            reported_later: Whether the playbook goes on with the node and reports the reason by itself.
        """
        general = general_reason(text, node)
        failure = _Failure(state, step, general, plain_reason(text), now, once)
        if reported_later:
            self._postponed.setdefault(general, failure).nodes.append(node)
        else:
            self._held.setdefault((state, step, once, general), failure).nodes.append(node)

    def ended_steps(self, step: str) -> list[str]:
        """Return the lines of failures at other steps than the one that a node begins."""
        return self._lines(key for key, one in self._held.items() if one.step != step)

    def overdue(self, now: float) -> list[str]:
        """Return the lines of failures that were held for long enough."""
        return self._lines(key for key, one in self._held.items() if now - one.since >= _HELD_S)

    def flush(self) -> list[str]:
        """Return the lines of all held failures."""
        return self._lines(self._held)

    def finish(self) -> list[str]:
        """Return the last lines, with the reasons that the playbook has not reported by itself."""
        lines = self.flush()
        for failure in self._postponed.values():
            if failure.nodes:
                lines += self._format(failure)
        self._postponed = {}
        return lines

    def note_text(self, text: str) -> str:
        """Keep what a text of the playbook reports of reasons that wait for it; return the text."""
        general = general_reason(text, "")
        for reason, failure in self._postponed.items():
            if reason in general:
                named = {name for word in _NAMES.findall(text) for name in expand_hostlist(word)}
                failure.nodes = [node for node in failure.nodes if node not in named]
        return text

    def shorten(self, text: str) -> str:
        """Return a text with the reasons that were printed for any node as ``as above``."""
        return self._without(text, {one for reasons in self._printed.values() for one in reasons})

    def _lines(self, keys: Iterable[tuple[str, str, bool, str]]) -> list[str]:
        return [line for key in list(keys) for line in self._format(self._held.pop(key))]

    def _format(self, failure: _Failure) -> list[str]:
        nodes = failure.nodes
        known = set.intersection(*(self._printed.get(node, set()) for node in nodes))
        text = self._without(failure.text if len(nodes) == 1 else failure.general, known)
        for node in nodes:
            self._printed.setdefault(node, set()).update((failure.general, failure.text))
            waiting = self._postponed.get(failure.general)
            for reason, other in self._postponed.items():
                if reason in failure.general or other is waiting:
                    other.nodes = [one for one in other.nodes if one != node]
        if text == AS_ABOVE:
            return []
        next_step = unreachable_step(failure.text) if failure.state == "unreachable" else ""
        text = "; ".join(filter(None, (text, next_step)))
        # What is done once for all nodes is no fault of the node that Ansible does it on.
        place = "" if failure.is_once else f"{named_nodes(nodes)}: {failure.state}: "
        return indented(f"{place}{failure.step}: ", text)

    @staticmethod
    def _without(text: str, reasons: set[str]) -> str:
        # The longest first: one reason may be a part of another.
        for reason in sorted(reasons, key=len, reverse=True):
            if len(reason) >= _LEAST:
                text = text.replace(reason, AS_ABOVE)
        return text


def indented(head: str, text: str) -> list[str]:
    """Return a text after a head, with its further lines below its first."""
    first, *others = text.splitlines() or [""]
    return [head + first, *(f"  {line}" for line in others)]
