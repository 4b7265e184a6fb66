"""Determine a node's steps through re-imaging, and its progress from its journal. No I/O.

:mod:`rackproof.jobs.reimage.tasks` calls :func:`replay` with the entries of a node's journal, and gets a
:class:`NodeProgress`. This module also plans waves, the groups of nodes that are imaged together.

A step counts as done only if the journal contains its end. Every attempt drains the node again, because an
operator may have resumed it in between. Each attempt also provisions and validates again, because a node
resumes work only after an acceptance in the same attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, Field

from rackproof.core.records import Record
from rackproof.core.text import duration, sanitize

PREFIX = "rackproof-reimage:"
"""Prefix of the reason of a drain by re-imaging.

With ``rackproof:``, provisioning would lift the drain too early.
"""


class Step(StrEnum):
    """The steps of a node, in order."""

    DRAIN = "drain"
    RECORD = "record"
    BOOT = "boot"
    IMAGE = "image"
    FIRST_BOOT = "first_boot"
    PROVISION = "provision"
    VALIDATE = "validate"
    RETURN = "return"


STEPS = tuple(Step)
"""All steps in the order of a node."""
DEFAULT_LIMITS_S: Mapping[Step, float] = {
    Step.DRAIN: 3600,
    Step.RECORD: 300,
    Step.BOOT: 900,
    Step.IMAGE: 1800,
    Step.FIRST_BOOT: 900,
    Step.PROVISION: 5400,
    Step.VALIDATE: 900,
    Step.RETURN: 300,
}
"""Seconds that each step may take, unless ``reimage_limits`` sets another number."""
_BACK_TO: Mapping[Step, Step] = {
    # The ramdisk that wrote the disk may be gone, so it must be booted again. An acceptance only counts
    # if the node was provisioned in the same attempt.
    Step.IMAGE: Step.BOOT,
    Step.VALIDATE: Step.PROVISION,
    Step.RETURN: Step.PROVISION,
}
"""The step at which a new attempt starts instead, if a step was interrupted that cannot be repeated alone."""

_AGAIN = "-e reimage_again=true"
"""The option that starts a node from the first step. Reasons about damaged files name it."""

Event = Literal["adopted", "begun", "done", "skipped", "failed"]
"""An event of a journal. The first is ``adopted``: a run takes over the completed steps of an earlier run."""


class Entry(Record):
    """An event of a node's re-imaging, as one line of its journal.

    ``attempt`` counts the runs that tried the node, from 1. ``run_id`` is the earlier run of an ``adopted``
    node.
    """

    at: AwareDatetime
    event: Event
    step: Step | None = None
    attempt: int = Field(default=1, ge=1)
    limit_s: float = Field(default=0, ge=0, description="Seconds that the step may take; 0 means no limit.")
    reason: str = ""
    steps: tuple[Step, ...] = Field(default=(), description="Steps that an adopted journal had done.")
    run_id: str = ""
    remarks: tuple[str, ...] = ()
    journal: str = Field(default="", description="Run and node of the journal, in its first entry.")


class NodeProgress(Record):
    """The progress of a node through its steps.

    ``state`` is waiting, running, interrupted, failed or returned (resumed). ``step`` is the step that is
    running, was interrupted, failed, or comes next. It is None if it is unknown, or if no step is left.
    ``since`` is the time of the event that led to the state, and ``limit_s`` the seconds that the running
    step may take, or 0. ``done`` lists the completed steps.
    """

    state: Literal["waiting", "running", "interrupted", "failed", "returned"]
    step: Step | None = None
    since: datetime | None = None
    limit_s: float = 0
    attempt: int = 1
    reason: str = ""
    done: tuple[Step, ...] = ()
    remarks: tuple[str, ...] = ()

    def late(self, now: datetime) -> bool:
        """Return whether the running step exceeded its time limit."""
        if self.state != "running" or self.since is None or not self.limit_s:
            return False
        return (now - self.since).total_seconds() > self.limit_s


@dataclass
class _Replay:
    """The state that results from a journal's entries, oldest first."""

    done: list[Step] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    running: Entry | None = None
    failed: Entry | None = None
    attempt: int = 1

    def apply(self, entry: Entry) -> None:
        """Apply the next entry."""
        self.attempt = max(self.attempt, entry.attempt)
        self.remarks += entry.remarks
        if entry.event == "adopted":
            self.done, self.running, self.failed = list(entry.steps), None, None
        elif entry.event == "failed":
            self.running, self.failed = None, entry
        elif entry.step is None:
            return
        elif entry.event == "begun":
            self._begin(entry, entry.step)
        else:
            if entry.step not in self.done:
                self.done.append(entry.step)
            self.running = None

    def _begin(self, entry: Entry, step: Step) -> None:
        """Start a step. Later steps must then be repeated, too."""
        # Draining is the exception, because it changes nothing on the node. Every attempt drains first, and
        # completed steps remain done.
        if step is not Step.DRAIN:
            self.done = [before for before in self.done if STEPS.index(before) < STEPS.index(step)]
        self.running, self.failed = entry, None


def replay(entries: Sequence[Entry], alive: bool) -> NodeProgress:
    """Return the progress of a node. No I/O.

    Args:
        entries: The entries of its journal, oldest first.
        alive: Whether a running playbook claimed the node.
    """
    total = _Replay()
    for entry in entries:
        total.apply(entry)
    finished = tuple(sorted(total.done, key=STEPS.index))
    last = entries[-1].at if entries else None
    common = {"attempt": total.attempt, "done": finished, "remarks": tuple(dict.fromkeys(total.remarks))}
    if (failed := total.failed) is not None:
        return NodeProgress(state="failed", step=failed.step, since=failed.at, reason=failed.reason, **common)
    if (running := total.running) is not None:
        state: Literal["running", "interrupted"] = "running" if alive else "interrupted"
        return NodeProgress(
            state=state, step=running.step, since=running.at, limit_s=running.limit_s, **common
        )
    if Step.RETURN in finished:
        return NodeProgress(state="returned", since=last, **common)
    # The node is between two steps. Without a playbook, the next step does not start.
    between = "interrupted" if entries and not alive else "waiting"
    return NodeProgress(state=between, step=_first_not_done(finished), since=last, **common)


def _first_not_done(steps: Collection[Step]) -> Step | None:
    """Return the first step that is not done, or None."""
    return next((step for step in STEPS if step not in steps), None)


def remaining_steps(progress: NodeProgress) -> tuple[Step, ...]:
    """Return the steps of a new attempt, in order. No I/O.

    The attempt starts at the first step that is not done. If that step cannot be repeated alone, the attempt
    starts at an earlier one. A node that returned starts from the beginning.
    """
    if progress.state == "returned":
        return STEPS
    first_step = _first_not_done(progress.done) or Step.RETURN
    first_step = _BACK_TO.get(first_step, first_step)
    steps_left = STEPS[STEPS.index(first_step) :]
    # An operator may have resumed the node after the last attempt.
    return steps_left if Step.DRAIN in steps_left else (Step.DRAIN, *steps_left)


def step_limits(limits: Mapping[str, float]) -> dict[Step, float]:
    """Return the time limits of all steps in seconds. No I/O.

    Args:
        limits: The limits that differ from :data:`DEFAULT_LIMITS_S`, by the step's name.

    Raises:
        ValueError: A step is unknown, or a limit is not a positive number.
    """
    limits_s = dict(DEFAULT_LIMITS_S)
    for name, value in limits.items():
        if name not in set(STEPS):
            raise ValueError(
                f"reimage_limits: {sanitize(name, 60)!r} is not a step; there are {', '.join(STEPS)}"
            )
        # The comparison is also false for NaN. 1e7 seconds are sixteen weeks.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e7:
            raise ValueError(
                f"reimage_limits: {name}: a positive number of seconds, not {sanitize(value, 60)!r}"
            )
        limits_s[Step(name)] = float(value)
    return limits_s


def plan_waves(
    nodes: Mapping[str, Mapping[str, Iterable[str]]],
    at_once: int,
    per_group: Mapping[str, int],
    canary: int = 0,
    first: Collection[str] = (),
) -> list[list[str]]:
    """Return the nodes in waves within the limits. No I/O.

    Waves are filled one after another, so there may be more of them than necessary.

    Args:
        nodes: The groups of each node by kind, such as ``{"n1": {"per_rack": ["r1"], "per_partition":
            ["gpu"]}}``.
        at_once: The largest number of nodes that may be out of service at a time.
        per_group: The largest number of nodes of one group that may be out of service, by kind of group. A
            missing kind is not limited.
        canary: The largest number of nodes in the first wave. 0 means that ``at_once`` applies to it, too.
        first: Nodes that come before all others, because they are out of service already.

    Raises:
        ValueError: A limit is below one, or ``canary`` is below zero.
    """
    for name, limit in {"max_concurrent": at_once, **per_group}.items():
        if limit < 1:
            raise ValueError(f"reimage_{name}: at least 1, not {limit}")
    if canary < 0:
        raise ValueError(f"reimage_canary: at least 0, not {canary}")
    member = {name: _limited_groups(groups, per_group) for name, groups in nodes.items()}
    nodes_left = list(nodes)
    waves: list[list[str]] = []
    while nodes_left:
        most = at_once if waves or not canary else min(at_once, canary)
        wave = set(_next_wave(nodes_left, member, most, per_group, first))
        waves.append([name for name in nodes_left if name in wave])
        nodes_left = [name for name in nodes_left if name not in wave]
    return waves


_Group = tuple[str, str]
"""The kind and the name of a group of nodes."""


def _limited_groups(groups: Mapping[str, Iterable[str]], per_group: Mapping[str, int]) -> list[_Group]:
    """Return the groups of a node that are limited."""
    return [
        (kind, name) for kind, names in groups.items() if kind in per_group for name in sorted(set(names))
    ]


def _next_wave(
    nodes_left: Sequence[str],
    member: Mapping[str, Sequence[_Group]],
    most: int,
    per_group: Mapping[str, int],
    first: Collection[str],
) -> list[str]:
    """Return the nodes of one wave within the limits. Nodes in ``first`` lead, then crowded groups."""
    # A crowded group needs the most waves. If it came later, its nodes would remain at the end, in one
    # small wave after another.
    waiting = Counter(group for name in nodes_left for group in member[name])
    weight = {group: -count / per_group[group[0]] for group, count in waiting.items()}
    wave: list[str] = []
    used: Counter[_Group] = Counter()
    weights = {name: sorted(weight[group] for group in member[name]) for name in nodes_left}
    for name in sorted(nodes_left, key=lambda node: (node not in first, weights[node])):
        groups = member[name]
        if any(used[group] >= per_group[group[0]] for group in groups):
            continue
        used.update(groups)
        wave.append(name)
        if len(wave) == most:
            break
    return wave


def next_command(node: str, progress: NodeProgress) -> str:
    """Return the operator's next command, or "" if none is needed. No I/O."""
    if progress.state not in ("failed", "interrupted"):
        return ""
    # If the files of a run are damaged, the step is unknown, and only a start from the first step helps.
    again = f" {_AGAIN}" if progress.step is None and _AGAIN in progress.reason else ""
    return f"ansible-playbook reimage.yml -l {node}{again}"


def describe_progress(progress: NodeProgress, at: datetime) -> str:
    """Return a short text about a node's progress, such as ``failed at image (2 h 05 min)``. No I/O."""
    step = progress.step.value.replace("_", " ") if progress.step else ""
    text = {
        "waiting": f"waits to begin with {step}",
        "running": step,
        "interrupted": f"interrupted at {step}",
        "failed": f"failed at {step}" if step else "failed",
        "returned": "returned to service",
    }[progress.state]
    if progress.since is None:
        return text
    since = duration(max(0.0, (at - progress.since).total_seconds()))
    over = f", over its limit of {duration(progress.limit_s)}" if progress.late(at) else ""
    return f"{text} ({since}{over})"
