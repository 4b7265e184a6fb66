"""Show one line for each node from the events of a playbook. No I/O.

The commands that run playbooks pass the events of ``rackproof_ansible.playbook_events`` to
:class:`LiveLines`, and print the lines that it returns. A node's line shows its stage, its step, and the
report of its job, with rate and expected end. Without a terminal, no line is updated. A job's progress,
failures and long steps are then printed as separate lines. An event is a mapping such as::

    {"kind": "task", "host": "n07", "task": "provision : Reboot", "path": "roles/provision/tasks/boot.yml:3"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from rackproof.cli.failure_lines import FailureLines, indented
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.text import ELLIPSIS, duration, sanitize, shell_command, shell_word, width

_SILENT_S = 15.0
"""Seconds without a report after which a step is printed. The interval then doubles."""
_MOST_SILENT_S = 300.0
"""Largest such interval."""
_SEPARATOR = " · "
# Matches the time at the beginning of a run's id, "20261121T103518Z-".
_RUN_TIME = re.compile(r"^\d{8}T\d{6}Z-")
# Matches a command of this program in a message, such as "`rackproof explain n07`".
_PROGRAM = re.compile(r"(?:^|[`:] ?)rackproof [a-z]")
# Matches ansible-playbook's message about a word that is not an option, and so counts as a playbook.
_STRAY_WORD = re.compile(r"the playbook: (.+) could not be found$")
_REMARK = "ATTENTION "
"""A remark in the summary of provisioning begins with this word."""
_INTERRUPTED = "User interrupted execution"
_UNKNOWN_HOST = "Could not match supplied host pattern, ignoring: "
_NO_HOSTS = "leaves us with no hosts to target"
_USAGE = "usage: ansible-playbook "
_USAGE_ERROR = "ansible-playbook: error: "
"""Texts of ansible-core from ``_INTERRUPTED`` on, which do not give the next step."""
# Matches the message of a filter that refuses the hosts of -l.
_REFUSED_HOSTS = re.compile(r"filter plugin '[\w.]*refuse_partial_runs' failed: (.+)")
# Matches the message about a missing file of -e @FILE.
_NO_VARIABLES = re.compile(r"^Could not find or access '(.+)' on the Ansible Controller")
_TRACEBACK = "Traceback (most recent call last)"
_NOT_YAML = "YAML parsing failed: "
_NO_INVENTORY = "Completely failed to parse inventory source "
_ORIGIN = "Origin: "
_AROUND_YAML = re.compile(
    r"^$|^\[WARNING\]: Failed to parse inventory|^Failed to parse inventory|^<<< caused by >>>|"
    r"no root 'plugin' key found|\(source not shown: |inventory plugin 'auto'|^\s*\d+ |^\s*\^|"
    r"Completely failed to parse"
)
"""Lines of ansible-core around a text that is not YAML. They repeat the text, or name the wrong file."""


@dataclass
class _Node:
    """The state that a node's line shows.

    Times are in seconds of a monotonic clock. ``since`` is the start of the step, and ``shown`` the time of
    the last report. ``state`` is ``works``, ``waits`` (between steps), ``failed`` or ``unreachable``.
    ``patience_s`` is the time without a report after which the step is printed.
    """

    stage: str = ""
    step: str = ""
    since: float = 0.0
    progress: str = ""
    state: str = "works"
    shown: float = 0.0
    patience_s: float = _SILENT_S


class LiveLines:
    """The state of the nodes of one playbook, as a source of lines for the screen.

    Args:
        playbook: The name without extension. The stages are the task files of the role of this name.
        moves: Whether lines are updated in place. Otherwise, each report is a separate line.

    Attributes:
        named_program: Whether a line contained a ``rackproof`` command to enter.
    """

    def __init__(self, playbook: str, *, moves: bool) -> None:
        self._playbook = playbook
        self._moves = moves
        self._nodes: dict[str, _Node] = {}
        self._jobs: dict[str, list[str]] = {}
        self._unknown: list[str] = []
        self._has_usage = False
        self._is_refused = False
        self._not_yaml = ""
        self._yaml_place = ""
        self._around_yaml: list[str] = []
        self._traceback: list[str] = []
        self._failures = FailureLines()
        self.named_program = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes that started a step, in the order of their start."""
        return tuple(self._nodes)

    @property
    def running_jobs(self) -> dict[str, list[str]]:
        """Return the nodes of each job that was started or found and has not ended."""
        return dict(self._jobs)

    def add_event(self, event: Mapping[str, Any], now: float) -> list[str]:
        """Process an event. Return the lines to print permanently."""
        text = str(event.get("text") or "")
        if event.get("kind") == "table":
            return self._after_failures([*self._plain_text(text).splitlines(), ""])
        if event.get("kind") in ("record", "verdicts"):
            # These events are not steps of a node, and may have no host.
            return []
        host = sanitize(event.get("host", ""), 100)
        node = self._nodes.setdefault(host, _Node(since=now, shown=now))
        match event.get("kind"):
            case "task":
                self._begin(node, event, now)
                return self._failures.ended_steps(node.step)
            case "job":
                self._note_job(event)
            case "end" if event.get("state") in ("failed", "unreachable"):
                return self._fail(node, host, event, now)
            case "end":
                node.state = "waits"
            case "note":
                head = "" if text.startswith(host) else f"{host}: "
                return self._after_failures(indented(head, self._plain_text(text)))
            case "diff":
                return self._after_failures(indented(f"{host}: ", _clean_lines(text)))
        return []

    def _plain_text(self, text: str) -> str:
        """Return a text without escapes. Note whether it contains a command to enter."""
        plain = _clean_lines(text)
        self.named_program |= any(map(_PROGRAM.search, plain.splitlines()))
        return plain

    def _fail(self, node: _Node, host: str, event: Mapping[str, Any], now: float) -> list[str]:
        """Hold the failure of a node until it is printed together with the failures of other nodes."""
        text = _clean_lines(str(event.get("text") or ""))
        self.named_program |= bool(_PROGRAM.search(text))
        node.state, node.shown = str(event["state"]), now
        is_once = bool(event.get("once"))
        if is_once:
            self._failures.note_text(text)
        self._failures.add(
            host,
            node.state,
            _step(str(event.get("task", "")))[1],
            text,
            now,
            once=is_once,
            reported_later=bool(event.get("ignored")),
        )
        # No other node can fail for the same reason.
        return self._failures.flush() if is_once else []

    def _after_failures(self, lines: list[str]) -> list[str]:
        """Return lines after the failures that came before them."""
        return [*self._failures.flush(), *map(self._failures.note_text, lines)]

    def overdue(self, now: float) -> list[str]:
        """Return the lines of failures that were held for the maximum time."""
        return self._failures.overdue(now)

    def finish(self) -> list[str]:
        """Return the last lines of a playbook that ended."""
        lines = [*self._failures.finish(), *self._traceback]
        if not self._not_yaml:
            around = [] if self._is_refused else map(_without_inventory, self._around_yaml)
            return [*around, *lines]
        if self._yaml_place:
            return [*lines, f"rackproof: {self._yaml_place}: it is not YAML: {self._not_yaml}"]
        where = "`rackproof lint-inventory` (with the same -i) names file and line"
        return [*lines, f"rackproof: a file of the inventory is not YAML: {self._not_yaml} {where}"]

    def _is_about_yaml(self, shown: str) -> bool:
        """Return whether a line may belong to a text that is not YAML, and is held until the end."""
        problem = shown.partition(_NOT_YAML)[2]
        if problem:
            self._not_yaml = problem
            return True
        if shown.startswith(_ORIGIN) and self._not_yaml:
            self._yaml_place = self._yaml_place or shown.removeprefix(_ORIGIN)
            return True
        is_around = bool(_AROUND_YAML.search(shown)) and not self._nodes
        if is_around and shown:
            self._around_yaml.append(shown)
        return is_around

    def _begin(self, node: _Node, event: Mapping[str, Any], now: float) -> None:
        """Note the step that a node starts."""
        role, step = _step(str(event.get("task", "")))
        # The place of a task is PATH:LINE.
        file = PurePath(str(event.get("path", "")).rpartition(":")[0]).stem
        stage = file if role == self._playbook and file != "main" else role or file
        if (node.stage, node.step) != (stage, step):
            node.since, node.progress, node.patience_s = now, "", _SILENT_S
        node.stage, node.step, node.state = sanitize(stage, 40), step, "works"

    def _note_job(self, event: Mapping[str, Any]) -> None:
        """Note a job that was started or found, or that ended."""
        job = sanitize(event.get("id", ""), 130)
        if event.get("runs"):
            nodes = self._jobs.setdefault(job, [])
            nodes += {sanitize(event.get("on", ""), 100)} - set(nodes)
        else:
            self._jobs.pop(job, None)

    def add_output(self, line: str, now: float) -> list[str]:
        """Process a line of the playbook's output. Return the lines to print permanently.

        A job's progress, ``RUN · NODE · …``, becomes part of its node's line.
        """
        clean_line = _clean(line)
        if self._is_usage(clean_line):
            return []
        run, _, after_run = clean_line.partition(_SEPARATOR)
        host, _, progress = after_run.partition(_SEPARATOR)
        node = self._nodes.get(host) if run and progress else None
        if node is None:
            self.named_program |= bool(_PROGRAM.search(clean_line))
            if clean_line.lstrip().startswith(_REMARK):
                clean_line = self._failures.shorten(clean_line)
            return self._after_failures([clean_line])
        node.progress, node.shown, node.patience_s = f"{run}{_SEPARATOR}{progress}", now, _SILENT_S
        return [] if self._moves else self._after_failures([clean_line])

    def add_error(self, line: str, now: float) -> list[str]:
        """Process a line of the error output. Return the lines to print permanently."""
        clean_line = _clean(line)
        if self._is_of_traceback(clean_line):
            return self._ended_traceback(clean_line)
        refused = _REFUSED_HOSTS.search(clean_line)
        if refused or self._is_refused:
            # Below the message, Ansible shows a place in the playbook, which is not at fault.
            self._is_refused = True
            return [f"rackproof: {refused[1]}"] if refused else []
        if self._is_about_yaml(clean_line):
            return []
        unknown = clean_line.partition(_UNKNOWN_HOST)[2]
        if unknown:
            self._unknown.append(unknown)
            return []
        explained = self._explained(clean_line)
        if explained:
            return [explained]
        # The message after Ctrl-C lists the jobs that are still running.
        return [] if clean_line.endswith(_INTERRUPTED) else self.add_output(line, now)

    def _explained(self, shown: str) -> str:
        """Return a mistake on the command line with the next step, or "" for any other line."""
        if _NO_HOSTS in shown:
            return self._no_hosts()
        stray = _STRAY_WORD.search(shown)
        if stray:
            return f"rackproof: {stray[1]} is not an option; name hosts with -l {stray[1]}"
        missing = None if self._nodes else _NO_VARIABLES.search(shown)
        if missing:
            self._is_refused = True
            return f"rackproof: there is no file of variables {missing[1]}: correct -e @FILE"
        if shown.startswith(_USAGE_ERROR):
            return (
                f"rackproof: {shown.removeprefix(_USAGE_ERROR)}; `ansible-playbook --help` lists the options"
            )
        return ""

    def _is_of_traceback(self, shown: str) -> bool:
        """Return whether a line belongs to a traceback. Hold its lines until the error's own line."""
        if not self._traceback and not shown.startswith(_TRACEBACK):
            return False
        self._traceback.append(shown)
        return True

    def _ended_traceback(self, shown: str) -> list[str]:
        """Return a traceback that is complete, but not one of Ctrl-C while ansible-playbook was starting."""
        if shown.startswith((" ", _TRACEBACK)) or not shown:
            return []
        lines, self._traceback = self._traceback, []
        return [] if shown.startswith("KeyboardInterrupt") else self._after_failures(lines)

    def _is_usage(self, shown: str) -> bool:
        """Return whether a line belongs to the pages of usage that ansible-playbook prints twice."""
        # Only usage follows on both streams, because the playbook does not start.
        self._has_usage |= shown.startswith(_USAGE)
        return self._has_usage

    def _no_hosts(self) -> str:
        """Return the line about a playbook without hosts."""
        reason = (
            f"{', '.join(self._unknown)}: no host and no group of the inventory"
            if self._unknown
            else "-l names an empty group of the inventory"
        )
        return (
            f"rackproof: {reason}. Correct -l, or put hosts into the inventory (inventory/hosts.yml, or the "
            "one of -i); `ansible-inventory --graph` lists its groups"
        )

    def long_steps(self, now: float) -> list[str]:
        """Return a line for each step without a report for a long time.

        Nodes at the same step share a line.
        """
        silent: dict[tuple[str, str], list[str]] = {}
        since: dict[tuple[str, str], float] = {}
        for name, node in self._nodes.items():
            if node.state == "works" and now - max(node.shown, node.since) >= node.patience_s:
                node.shown, node.patience_s = now, min(2 * node.patience_s, _MOST_SILENT_S)
                silent.setdefault((node.stage, node.step), []).append(name)
                since[node.stage, node.step] = node.since
        return [
            _SEPARATOR.join((compress_hostlist(names), *step, duration(now - since[step])))
            for step, names in silent.items()
        ]

    def lines(self, columns: int, rows: int, now: float) -> list[str]:
        """Return the nodes' lines, limited to the width (cells) and height of the terminal."""
        names = list(self._nodes)
        if len(names) > rows:
            # Running and failed nodes come first.
            names.sort(key=lambda name: self._nodes[name].state == "waits")
        shown_names = names[: max(rows - 1, 1)] if len(names) > rows else names
        name_width = max((width(name) for name in shown_names), default=0)
        texts = [
            f"{name}{' ' * (name_width - width(name))}  {self._text(self._nodes[name], now)}"
            for name in shown_names
        ]
        if len(shown_names) < len(names):
            texts.append(f"… and {len(names) - len(shown_names)} more nodes")
        return [_cut(text, columns) for text in texts]

    @staticmethod
    def _text(node: _Node, now: float) -> str:
        """Return a node's line without its name."""
        if node.progress:
            # The time in a run's id would push the end of the job out of a narrow terminal.
            return _RUN_TIME.sub("", node.progress)
        took = f"{round(now - node.since)} s" if now - node.since < 60 else duration(now - node.since)
        # Between two steps, a node has nothing to report.
        end = {"works": took}.get(node.state, "")
        # A failure comes first, because a narrow terminal shows only the beginning of a line.
        failure = node.state if node.state in ("failed", "unreachable") else ""
        parts = (failure, node.stage.replace("_", " "), node.step, end)
        return _SEPARATOR.join(part for part in parts if part)


def _without_inventory(line: str) -> str:
    """Return a line of the error output, or the next step if it names an inventory that cannot be read."""
    source = line.partition(_NO_INVENTORY)[2]
    if not source:
        return line
    lint = f"rackproof lint-inventory -i {shell_word(source)}"
    return (
        f"rackproof: {source} is no inventory that Ansible can read: correct -i; `{lint}` names the mistake"
    )


def _step(task: str) -> tuple[str, str]:
    """Return role and step from a task's name, ``ROLE : NAME``."""
    role, separator, step = task.partition(" : ")
    return (sanitize(role, 40), sanitize(step, 120)) if separator else ("", sanitize(task, 120))


def _clean(line: str) -> str:
    """Return a line without escapes. Its spaces remain, because they may belong to a table."""
    indent = len(line) - len(line.lstrip(" "))
    return " " * indent + sanitize(line.rstrip("\r\n"), 4000, newlines=True).replace("\n", " ")


def _clean_lines(text: str) -> str:
    """Return several lines without escapes."""
    return "\n".join(_clean(line) for line in text.splitlines())


def _cut(text: str, columns: int) -> str:
    """Return a text that fits into a line of the terminal."""
    if width(text) <= columns:
        return text
    while text and width(text) >= columns:
        text = text[:-1]
    return text + ELLIPSIS


def interruption_lines(
    playbook: str,
    again: str,
    stop: str,
    nodes: Sequence[str],
    jobs: Mapping[str, Sequence[str]],
    program: str = "rackproof",
) -> list[str]:
    """Describe the jobs that still run after Ctrl-C, with the commands to enter.

    Args:
        playbook: The name of the playbook without extension.
        again: The command that was entered.
        stop: The command that ends jobs, without hosts.
        nodes: The nodes that started a step.
        jobs: The nodes of each job that continues.
        program: The name or path with which a user can start Rackproof.
    """
    lines = [f"Interrupted. {job} still runs on {compress_hostlist(places)}." for job, places in jobs.items()]
    if not lines:
        unfinished_text = f" Its work on {compress_hostlist(nodes)} is unfinished." if nodes else ""
        lines = [f"Interrupted. None of its jobs runs.{unfinished_text}"]
    lines.append(f"Continue it:           {again}")
    if jobs:
        # Ansible's ranges differ from Slurm's. Both accept single names.
        hosts = sorted({place for places in jobs.values() for place in places})
        lines.append(f"End the jobs:          {stop} -l {','.join(hosts)}")
    if playbook in ("provision", "reimage"):
        lines.append(f"Nodes may be drained:  {shell_command([program, 'status'])}")
    return lines
