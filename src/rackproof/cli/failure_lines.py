"""Make lines from the failures of a playbook. Nodes that fail for the same reason share a line. No I/O.

:mod:`rackproof.cli.live_lines` adds the failures, and gets the lines to print. A failure is held until a
node starts another step, but only for a short time, so that all nodes with the same reason share a line.
If a later text contains a printed reason, ``as above`` replaces the reason there, unless it is short.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from rackproof.core.hostlist import expand_hostlist
from rackproof.core.same_reason import general_reason, named_nodes, plain_reason, unreachable_step

AS_ABOVE = "as above"
"""Text in place of a reason that was printed before."""
_HELD_S = 15.0
"""Seconds after which a failure is printed even if its step still runs on other nodes."""
_SHORTEST_REASON = 12
"""Smallest number of characters of a reason that is recognized in a later text.

A shorter reason could be in any text.
"""
# Matches words, such as "n07" and "n[01-03]".
_NAMES = re.compile(r"[\w.-]+(?:\[[\d,-]+\][\w.-]*)*")


@dataclass
class _Failure:
    """The nodes that failed at one step for one reason.

    ``text`` is the reason of the first node, and ``general`` is this reason without the node's name.
    ``since`` is the time of the first failure in seconds.
    """

    state: str
    step: str
    general: str
    text: str
    since: float
    is_once: bool
    nodes: dict[str, None] = field(default_factory=dict)
    """The names in order. A node may fail twice for the same reason."""


class FailureLines:
    """The failures of one playbook so far, as a source of lines."""

    def __init__(self) -> None:
        # Failures to print, by state, step, whether the task runs once, and general reason.
        self._held: dict[tuple[str, str, bool, str], _Failure] = {}
        # Failures that the playbook itself will report, by general reason.
        self._postponed: dict[str, _Failure] = {}
        # Printed reasons by node. Below, the reasons of all nodes, or None if they must be collected again.
        self._printed: dict[str, set[str]] = {}
        self._all: list[str] | None = None

    def add(
        self, node: str, state: str, step: str, text: str, now: float, *, once: bool, reported_later: bool
    ) -> None:
        """Keep a failure.

        Args:
            node: The node.
            state: ``failed`` or ``unreachable``.
            step: The name of the task.
            text: The reason.
            now: The current time in seconds.
            once: Whether the task runs once for all nodes. The failure then belongs to no single node.
            reported_later: Whether the playbook continues with the node and reports the reason itself.
        """
        general = general_reason(text, node)
        failure = _Failure(state, step, general, plain_reason(text), now, once)
        if reported_later:
            self._postponed.setdefault(general, failure).nodes[node] = None
        else:
            self._held.setdefault((state, step, once, general), failure).nodes[node] = None

    def ended_steps(self, step: str) -> list[str]:
        """Return the lines of failures at other steps than ``step``, which a node starts."""
        return self._lines(key for key, failure in self._held.items() if failure.step != step)

    def overdue(self, now: float) -> list[str]:
        """Return the lines of failures that were held for the maximum time."""
        return self._lines(key for key, failure in self._held.items() if now - failure.since >= _HELD_S)

    def flush(self) -> list[str]:
        """Return the lines of all held failures."""
        return self._lines(self._held)

    def finish(self) -> list[str]:
        """Return the last lines, with the reasons that the playbook did not report itself."""
        lines = self.flush()
        for failure in self._postponed.values():
            if failure.nodes:
                lines += self._format(failure)
        self._postponed = {}
        return lines

    def note_text(self, text: str) -> str:
        """Note which of the waiting reasons a text of the playbook reports. Return the text."""
        general = general_reason(text, "")
        reported = [
            failure for reason, failure in self._postponed.items() if reason in general and failure.nodes
        ]
        if reported:
            named = {name for word in _NAMES.findall(text) for name in expand_hostlist(word)}
            for failure in reported:
                failure.nodes = {node: None for node in failure.nodes if node not in named}
        return text

    def shorten(self, text: str) -> str:
        """Return a text with the reasons that were printed for any node as ``as above``."""
        if self._all is None:
            self._all = _longest_first({reason for reasons in self._printed.values() for reason in reasons})
        return _replace_known(text, self._all)

    def _lines(self, keys: Iterable[tuple[str, str, bool, str]]) -> list[str]:
        """Return the lines of held failures, and remove them."""
        return [line for key in list(keys) for line in self._format(self._held.pop(key))]

    def _format(self, failure: _Failure) -> list[str]:
        """Return the lines of one failure, and remember its reason for later texts."""
        nodes = list(failure.nodes)
        printed_reasons = set.intersection(*(self._printed.get(node, set()) for node in nodes))
        text = _replace_known(
            failure.text if len(nodes) == 1 else failure.general, _longest_first(printed_reasons)
        )
        self._all = None
        for node in nodes:
            self._printed.setdefault(node, set()).update((failure.general, failure.text))
        for reason, postponed in self._postponed.items():
            if reason in failure.general and postponed is not failure:
                postponed.nodes = {node: None for node in postponed.nodes if node not in failure.nodes}
        if text == AS_ABOVE:
            return []
        next_step = unreachable_step(failure.text) if failure.state == "unreachable" else ""
        text = "; ".join(filter(None, (text, next_step)))
        # If a task runs once for all nodes, its failure is not a fault of the node that Ansible chose.
        place = "" if failure.is_once else f"{named_nodes(nodes)}: {failure.state}: "
        return indented(f"{place}{failure.step}: ", text)


def _longest_first(reasons: set[str]) -> list[str]:
    """Return the reasons that can be recognized in a text, the longest first, because some contain others."""
    return sorted((reason for reason in reasons if len(reason) >= _SHORTEST_REASON), key=len, reverse=True)


def _replace_known(text: str, reasons: list[str]) -> str:
    """Return a text in which ``as above`` replaces known reasons."""
    for reason in reasons:
        text = text.replace(reason, AS_ABOVE)
    return text


def indented(head: str, text: str) -> list[str]:
    """Return a text after a head, with its further lines below its first."""
    first_line, *further_lines = text.splitlines() or [""]
    return [head + first_line, *(f"  {line}" for line in further_lines)]
