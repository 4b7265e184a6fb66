"""The states of a node on its way out, through a new image, and back; where a journal says it stands. Pure.

Nothing is skipped for being likely: a step counts as done only where its journal says so. Every attempt
drains again, because somebody may have put the node to work in between, and provisions and validates again,
because a node returns on a proof of the same attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, Field

from rackproof.core.records import Record
from rackproof.core.text import duration, sanitize

PREFIX = "rackproof-reimage:"
"""How the reason of our drain begins. Not ``rackproof:``: provisioning would lift that one too early."""


class Step(StrEnum):
    """What happens to a node, in order."""

    DRAIN = "drain"
    RECORD = "record"
    BOOT = "boot"
    IMAGE = "image"
    FIRST_BOOT = "first_boot"
    PROVISION = "provision"
    VALIDATE = "validate"
    RETURN = "return"


STEPS = tuple(Step)
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
_BACK_TO: Mapping[Step, Step] = {
    # Whatever wrote the disk is gone with its memory: it has to be booted again.
    Step.IMAGE: Step.BOOT,
    Step.VALIDATE: Step.PROVISION,
    Step.RETURN: Step.PROVISION,
}

Event = Literal["adopted", "begun", "done", "skipped", "failed"]


class Entry(Record):
    """One line of a journal: what happened. ``run_id`` is the run that an ``adopted`` node was in before."""

    at: AwareDatetime
    event: Event
    step: Step | None = None
    attempt: int = Field(default=1, ge=1)
    limit_s: float = Field(default=0, ge=0, description="Seconds that the step may take; 0 is no limit.")
    reason: str = ""
    steps: tuple[Step, ...] = Field(default=(), description="Steps that an adopted journal had done.")
    run_id: str = ""
    remarks: tuple[str, ...] = ()


class NodeProgress(Record):
    """Where a node stands.

    ``state`` is waiting, running, interrupted, failed or returned; ``step`` the one that runs, was cut off or
    failed, or comes next; ``done`` what holds.
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
        """Whether the running step has had more time than it may take."""
        if self.state != "running" or self.since is None or not self.limit_s:
            return False
        return (now - self.since).total_seconds() > self.limit_s


def replay(entries: Sequence[Entry], alive: bool) -> NodeProgress:
    """Return where a node stands.

    Args:
        entries: Its journal, oldest first.
        alive: Whether a living playbook holds the node.
    """
    done: list[Step] = []
    remarks: list[str] = []
    running: Entry | None = None
    failed: Entry | None = None
    attempt = 1
    for entry in entries:
        attempt = max(attempt, entry.attempt)
        remarks += entry.remarks
        if entry.event == "adopted":
            done, running, failed = list(entry.steps), None, None
        elif entry.step is not None and entry.event == "begun":
            # What comes after a step that is done again has to be done again, too; draining changes nothing.
            if entry.step is not Step.DRAIN:
                done = [one for one in done if STEPS.index(one) < STEPS.index(entry.step)]
            running, failed = entry, None
        elif entry.step is not None and entry.event in ("done", "skipped"):
            if entry.step not in done:
                done.append(entry.step)
            running = None
        elif entry.event == "failed":
            running, failed = None, entry
    done.sort(key=STEPS.index)
    last = entries[-1].at if entries else None
    kept = {"attempt": attempt, "done": tuple(done), "remarks": tuple(dict.fromkeys(remarks))}
    if failed is not None:
        return NodeProgress(state="failed", step=failed.step, since=failed.at, reason=failed.reason, **kept)
    if Step.RETURN in done and running is None:
        return NodeProgress(state="returned", since=last, **kept)
    if running is not None:
        state: Literal["running", "interrupted"] = "running" if alive else "interrupted"
        return NodeProgress(state=state, step=running.step, since=running.at, limit_s=running.limit_s, **kept)
    following = next((step for step in STEPS if step not in done), None)
    if entries and not alive:
        return NodeProgress(state="interrupted", step=following, since=last, **kept)
    return NodeProgress(state="waiting", step=following, since=last, **kept)


def remaining_steps(now: NodeProgress) -> tuple[Step, ...]:
    """Return what a new attempt has to do, in order.

    It goes on with the first step that is not done, or the one from which that can be repeated. A node that
    has returned starts anew.
    """
    if now.state == "returned":
        return STEPS
    first = next((step for step in STEPS if step not in now.done), Step.RETURN)
    first = _BACK_TO.get(first, first)
    rest = STEPS[STEPS.index(first) :]
    return rest if Step.DRAIN in rest else (Step.DRAIN, *rest)


def step_limits(given: Mapping[str, float]) -> dict[Step, float]:
    """Return the seconds that each step may take.

    Args:
        given: Those that differ from :data:`DEFAULT_LIMITS_S`, by name of the step.

    Raises:
        ValueError: An unknown step, or no positive number.
    """
    found = dict(DEFAULT_LIMITS_S)
    for name, value in given.items():
        if name not in set(STEPS):
            raise ValueError(
                f"reimage_limits: {sanitize(name, 60)!r} is no step; there are {', '.join(STEPS)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e7:
            raise ValueError(
                f"reimage_limits: {name}: a positive number of seconds, not {sanitize(value, 60)!r}"
            )
        found[Step(name)] = float(value)
    return found


def plan_waves(
    nodes: Mapping[str, Mapping[str, Iterable[str]]], at_once: int, per_group: Mapping[str, int]
) -> list[list[str]]:
    """Return the nodes in the groups in which they are taken out of service, as large as limits allow.

    Args:
        nodes: Node to the groups that it belongs to, by kind: ``{"n1": {"per_rack": ["r1"]}}``.
        at_once: The most nodes that may be out at a time.
        per_group: Kind of group to the most nodes that may be out of each group of it; a kind that is not
            there has no limit.

    Raises:
        ValueError: A limit below one.
    """
    for name, limit in {"at_once": at_once, **per_group}.items():
        if limit < 1:
            raise ValueError(f"reimage_{name}: at least 1, not {limit}")
    member = {
        name: [(kind, one) for kind, of in groups.items() if kind in per_group for one in sorted(set(of))]
        for name, groups in nodes.items()
    }
    left = list(nodes)
    found: list[list[str]] = []
    while left:
        wave: list[str] = []
        used: dict[tuple[str, str], int] = {}
        # Who shares a group with the most others begins, or those would be left over one by one.
        waiting = Counter(group for name in left for group in member[name])
        weight = {group: -count / per_group[group[0]] for group, count in waiting.items()}
        for name in sorted(left, key=lambda one: sorted(weight[group] for group in member[one])):
            groups = member[name]
            if any(used.get(group, 0) >= per_group[group[0]] for group in groups):
                continue
            for group in groups:
                used[group] = used.get(group, 0) + 1
            wave.append(name)
            if len(wave) == at_once:
                break
        taken = set(wave)
        found.append([name for name in left if name in taken])
        left = [name for name in left if name not in taken]
    return found


def next_command(node: str, now: NodeProgress) -> str:
    """Return what an operator types next; empty where there is nothing to do."""
    return "" if now.state not in ("failed", "interrupted") else f"ansible-playbook reimage.yml -l {node}"


def describe_progress(now: NodeProgress, at: datetime) -> str:
    """Return in a few words where a node stands, and for how long."""
    since = "" if now.since is None else duration(max(0.0, (at - now.since).total_seconds()))
    step = now.step.value.replace("_", " ") if now.step else ""
    text = {
        "waiting": f"waits to begin with {step}",
        "running": step,
        "interrupted": f"interrupted at {step}",
        "failed": f"failed at {step}",
        "returned": "returned to service",
    }[now.state]
    over = f", over its limit of {duration(now.limit_s)}" if now.late(at) else ""
    return f"{text} ({since}{over})" if since else text
