"""Decide which nodes to drain and which to resume after a night. No I/O.

Job validate calls :func:`decide_drains` with the judged nodes of tonight, their last known states, and
Slurm's partitions. The result is the nodes with a plan and a reason. The playbook then drains and resumes
them in Slurm.

The rules are:

* A night drains a node only for a certain failure of the node itself. A finding on the whole fleet, a hint or
  an unproven result is not enough. Each failure has a code, such as ``xid_79`` or ``floor:gemm_best``.
* Drains by nights are limited in each partition. Nodes with lesser faults wait until there is room.
* If too many nodes are unreachable, the night drains no node. The network or this machine is probably at
  fault.
* A night changes only drains by nights. It changes no other drain or reason.
* A night without Slurm's answer neither ends nor renews a drain by nights.
* A night resumes a node after the failed checks passed in the required number of nights. The nights must be
  hours apart, and must read the evidence that :mod:`rackproof.jobs.validate.fleet.healing` lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rackproof.core.records import Verdict
from rackproof.core.text import amount, moment, number, percent, sanitize
from rackproof.jobs.validate.fleet.healing import COMPARED_CODES, SOAK, lacking_for, worse_than_before
from rackproof.nodes.slurm_states import drain_owner, read_partitions
from rackproof.store.night_store import DRAIN_PREFIX, Hold, NodeNight, SlurmState

_WORST_FIRST = ("rma", "isolate", "inspect", "reboot", "reset", "configure", "watch", "none")
"""The actions of findings, the most urgent first. A node with a more urgent action is drained first."""


@dataclass(frozen=True)
class DrainPolicy:
    """The limits of a night's actions.

    Attributes:
        share: The largest share of a partition that nights may drain. If a larger share of the night's nodes
            is unreachable, the night drains no node.
        unreachable_least: The smallest number of unreachable nodes that can stop the drains.
        passes: The number of nights that a drained node must pass before it is resumed.
        hours: The shortest time between two of these nights, in hours.
        allowed: Whether the night may drain nodes. Otherwise, it only plans the drains.
        has_slurm: Whether the inventory has a Slurm that the night queried.
    """

    share: float = 0.15
    # In a fleet of ten, two dead nodes are more than 15 %, but this is not yet a fault of the network.
    unreachable_least: int = 3
    passes: int = 2
    # Nights are a day apart, but some start later than others.
    hours: float = 12
    allowed: bool = True
    has_slurm: bool = True


DRAINING_OFF = "draining is off (validate_drain)"
NO_SLURM = "no Slurm in this inventory: take the node out of service yourself"
"""Reasons why a failed node stays in service, which the explanation of the node repeats."""


def drained_by_partition(listed: str) -> dict[str, dict[str, bool]]:
    """Return the nodes of each partition, each with whether a night drained it.

    Args:
        listed: The output of ``sinfo --noheader --Node --format=%N|%R|%E``: node, partition and reason, such
            as ``n07|gpu|rackproof-night: xid_79 GPU 3; rackproof explain n07``.
    """
    return {
        partition: {node: reason.startswith(DRAIN_PREFIX) for node, reason in reasons.items()}
        for partition, reasons in read_partitions(listed).items()
    }


def decide_drains(
    nodes: Sequence[NodeNight],
    before: Mapping[str, NodeNight],
    members: Mapping[str, Mapping[str, bool]],
    night_id: str,
    now: datetime,
    policy: DrainPolicy | None = None,
) -> tuple[tuple[NodeNight, ...], tuple[str, ...]]:
    """Return the nodes with plan, reason and hold (the drain by nights), and remarks about the fleet.

    Args:
        nodes: The judged nodes of tonight. Their ``slurm`` is None if Slurm did not answer.
        before: The last known states of nodes.
        members: The partitions, as :func:`drained_by_partition` returns them.
        night_id: The id of tonight.
        now: The time for the count of passes.
        policy: The limits of the actions.
    """
    policy = policy or DrainPolicy()
    unreachable = _too_many_unreachable(nodes, policy)
    room = _room_by_partition(members, policy)
    decided = {
        node_night.node: _with_hold(node_night, before.get(node_night.node), night_id, now, policy)
        for node_night in nodes
    }
    # The nodes with the worst faults are drained first. If the share is used up, the others wait.
    failing = [
        node_night
        for node_night in nodes
        if decided[node_night.node].hold is None and _fails_for_certain(node_night)
    ]
    for node_night in sorted(failing, key=_urgency):
        partitions = _partitions_of(node_night.node, members)
        withheld = _objection(node_night, bool(unreachable), partitions, policy) or _share_used_up(
            partitions, members, room, policy
        )
        if withheld:
            decided[node_night.node] = node_night.model_copy(update={"why": withheld})
            continue
        # A node in several partitions uses up a place in each of them.
        for name in partitions:
            room[name] -= 1
        decided[node_night.node] = _drained(node_night, night_id)
    remarks = (*unreachable, *_kept_back_remarks(decided.values(), policy))
    return tuple(decided[node_night.node] for node_night in nodes), remarks


def _too_many_unreachable(nodes: Sequence[NodeNight], policy: DrainPolicy) -> list[str]:
    """Return a remark if too many nodes are unreachable to blame any of them, or nothing."""
    lost = sum(bool(node_night.unreached) for node_night in nodes)
    if lost < policy.unreachable_least or lost <= policy.share * len(nodes):
        return []
    return [
        f"{lost} of {amount(len(nodes), 'node')} cannot be reached: a fault of the network "
        "or of this machine until proven otherwise; no node is drained tonight"
    ]


def _partitions_of(node: str, members: Mapping[str, Mapping[str, bool]]) -> list[str]:
    """Return the names of the partitions that contain a node."""
    return [partition for partition, nodes in members.items() if node in nodes]


def _fails_for_certain(node_night: NodeNight) -> bool:
    """Return whether a node answered, and fails by a certain fault of its own, which has a code.

    Without a code, no later night could recognize that the fault is gone.
    """
    return node_night.verdict is Verdict.FAIL and not node_night.unreached and bool(node_night.codes())


def _room_by_partition(members: Mapping[str, Mapping[str, bool]], policy: DrainPolicy) -> dict[str, int]:
    """Return the number of nodes of each partition that may still be drained. It may be negative."""
    # Add a little, because 0.29 of 100 nodes is 29, but the floating-point product is slightly less.
    return {name: int(policy.share * len(some) + 1e-9) - sum(some.values()) for name, some in members.items()}


def _drained(node_night: NodeNight, night_id: str) -> NodeNight:
    """Return a node with the plan to drain it, and the codes that must pass before it is resumed."""
    hold = Hold(since=night_id, codes=node_night.codes())
    return node_night.model_copy(
        update={"plan": "drain", "why": _failed_codes_text(node_night), "hold": hold}
    )


def _kept_back_remarks(decided: Iterable[NodeNight], policy: DrainPolicy) -> list[str]:
    """Return a remark if failed nodes stay in service, because of a limit or because draining is off."""
    nodes = list(decided)
    planned = 0 if policy.allowed else sum(node_night.plan == "drain" for node_night in nodes)
    # If draining is off, a node whose partition is at its limit stays in service, too, and is counted.
    kept_back = planned + sum(_AT_LIMIT in node_night.why for node_night in nodes)
    if not kept_back:
        return []
    noun, why = ("more node", "the allowed share of a partition is used up")
    if not policy.allowed:
        noun, why = ("node", DRAINING_OFF)
    return [f"{amount(kept_back, noun)} should be drained and {'are' if kept_back > 1 else 'is'} not: {why}"]


def _urgency(node_night: NodeNight) -> tuple[int, str]:
    """Return a sort key that puts the node with the worst fault first.

    A node that fails only by measurements comes after the nodes that fail by findings.
    """
    failing = frozenset(node_night.codes())
    actions = [
        _WORST_FIRST.index(finding.action) for finding in node_night.findings if finding.code in failing
    ]
    return min(actions, default=len(_WORST_FIRST)), node_night.node


def hold_of(slurm: SlurmState | None, before: NodeNight | None, night_id: str) -> Hold | None:
    """Return the drain of a node that nights hold drained, or None for other nodes.

    If the node's last known state has no hold, for example because the night that drained the node is lost,
    the hold begins tonight, with the codes in Slurm's reason.

    Args:
        slurm: The node's state in Slurm, or None if Slurm gave no answer about the node. The result is then
            None, too, even if nights drained the node.
        before: The node's last known state, or None.
        night_id: The id of tonight.
    """
    if slurm is None or slurm.drained_by != "ours":
        return None
    if before is not None and before.hold is not None:
        return before.hold
    return Hold(since=night_id, codes=_codes_in_reason(slurm.reason))


def _with_hold(
    node_night: NodeNight, before: NodeNight | None, night_id: str, now: datetime, policy: DrainPolicy
) -> NodeNight:
    """Return a node with the decision about its drain.

    A node that nights did not drain is unchanged. If Slurm's state of a node is unknown, its earlier drain by
    nights is kept.
    """
    if node_night.slurm is None or not node_night.slurm.known:
        return _with_earlier_hold(node_night, before, night_id, policy)
    hold = hold_of(node_night.slurm, before, night_id)
    if hold is None:
        return node_night
    if node_night.verdict is Verdict.UNPROVEN or node_night.unreached:
        # Tonight is neither a pass nor a new failure, so the number of passes remains.
        return node_night.model_copy(
            update={"hold": hold, "why": "stays drained: tonight proves nothing about it"}
        )
    if node_night.verdict is Verdict.FAIL:
        why = f"stays drained: {_failed_codes_text(node_night)}"
        return node_night.model_copy(update={"hold": _failed_again(hold, node_night, night_id), "why": why})
    if hold.passes and (hold.passed is None or hold.passed > now):
        # The time of the last pass is unknown, or a wrong clock put it into the future. Count from now.
        hold = hold.model_copy(update={"passed": now})
    if why := _no_pass(node_night, hold) or _too_soon(hold, now, policy):
        return node_night.model_copy(update={"hold": hold, "why": why})
    return _passed_again(node_night, hold, now, policy)


def _with_earlier_hold(
    node_night: NodeNight, before: NodeNight | None, night_id: str, policy: DrainPolicy
) -> NodeNight:
    """Return a node whose state in Slurm is unknown, with its earlier drain by nights, if there is one.

    Without the drain, a later night would count it from that night on, and compare the node with a snapshot
    that may already show the fault.
    """
    if before is None or before.hold is None or _is_resumed(before):
        return node_night
    hold, failure = before.hold, ""
    if node_night.verdict is Verdict.FAIL:
        hold, failure = _failed_again(hold, node_night, night_id), _failed_codes_text(node_night)
    if not policy.has_slurm:
        why = NO_SLURM if _fails_for_certain(node_night) else ""
    else:
        why = f"{_NOT_SHOWN}{failure and f'; failed tonight: {failure}'}"
    return node_night.model_copy(update={"hold": hold, "why": why})


def _is_resumed(node_night: NodeNight) -> bool:
    """Return whether a node with a drain by nights was no longer drained by them after its night."""
    state = node_night.slurm
    is_drained = state is None or not state.known or state.drained_by == "ours"
    # The state after a planned drain may not be stored, if the playbook ended early.
    return not is_drained and node_night.plan != "drain"


def _failed_again(hold: Hold, node_night: NodeNight, night_id: str) -> Hold:
    """Return a drain by nights with tonight's failures added, and without passes."""
    codes = tuple(dict.fromkeys([*hold.codes, *node_night.codes()]))
    return hold.model_copy(update={"codes": codes, "failed": night_id, "passes": 0, "passed": None})


def _passed_again(node_night: NodeNight, hold: Hold, now: datetime, policy: DrainPolicy) -> NodeNight:
    """Return a drained node with one more pass, to be resumed after enough passes."""
    hold = hold.model_copy(update={"passes": hold.passes + 1, "passed": now})
    if hold.passes < policy.passes:
        why = f"stays drained: the failed checks have passed {hold.passes} of {amount(policy.passes, 'time')}"
        return node_night.model_copy(update={"hold": hold, "why": why})
    why = f"passed {amount(hold.passes, 'time')}: {', '.join(hold.codes)}"
    return node_night.model_copy(update={"hold": hold, "plan": "return", "why": why})


def _too_soon(hold: Hold, now: datetime, policy: DrainPolicy) -> str:
    """Return why a pass does not count yet, or "".

    Two nights within a few hours see the same state of the node, so they count as one.
    """
    if hold.passed is None or now - hold.passed >= timedelta(hours=policy.hours):
        return ""
    return (
        f"stays drained: the failed checks have passed {hold.passes} of {policy.passes} times, last at "
        f"{moment(hold.passed)}; the next pass counts {number(policy.hours)} h after it "
        "(validate_resume_hours)"
    )


_BY_HAND = "repair it, then resume it by hand (scontrol update NodeName=… State=RESUME)"


_NEEDS_LOAD = (
    "; an idle GPU is cool, so a soak must pass (validate_probes, or bench.yml -e suite=soak; see "
    "docs/using/drained.md), or resume it by hand"
)


_UNKNOWN_BEFORE = (
    f"; no stored night shows the node before this drain, so no night may show the repair: {_BY_HAND}"
)


def _no_pass(node_night: NodeNight, hold: Hold) -> str:
    """Return why a night that did not fail a drained node does not count as its pass, or ""."""
    if not hold.codes:
        return f"stays drained: neither a night nor Slurm's reason has the reason of its drain; {_BY_HAND}"
    if any(code.startswith("pair:") for code in hold.codes):
        # Slurm gives a drained node no partner that could prove it good.
        return f"stays drained: it failed in a pair, and a drained node gets no partner; {_BY_HAND}"
    lacking = {code: lacking_for(code, node_night.read_again) for code in hold.codes}
    return (
        _never_proven(lacking)
        or _still_found(node_night, hold)
        or _worse_than_before(node_night, hold)
        or _not_read_again(lacking, hold)
    )


def _never_proven(lacking: Mapping[str, Sequence[str] | None]) -> str:
    """Return a text about codes whose repair no evidence can prove, or ""."""
    codes = sanitize(", ".join(code for code, names in lacking.items() if names is None), 200)
    return codes and f"stays drained: no reading of a night can prove the repair of {codes}; {_BY_HAND}"


def _still_found(node_night: NodeNight, hold: Hold) -> str:
    """Return a text about codes of the drain that the night found again, or ""."""
    present = {finding.code for finding in node_night.findings} | {
        reason.code for reason in node_night.reasons
    }
    codes = sanitize(", ".join(code for code in hold.codes if code in present), 200)
    return codes and f"stays drained: still found: {codes}"


def _worse_than_before(node_night: NodeNight, hold: Hold) -> str:
    """Return which comparisons with the night before the drain are not passed after a lost night, or "".

    The lost night may have found a failure by such a comparison, which no later night finds again. Without
    the snapshot from before the drain, all comparisons are missing.
    """
    codes = worse_than_before(node_night.read_again) if hold.is_incomplete else ()
    if not codes:
        return ""
    why = f"the node is worse than before the drain: {', '.join(codes)}"
    if hold.before is None or len(codes) == len(COMPARED_CODES):
        why = f"nothing compares the node with the state before the drain; {_BY_HAND}"
    return f"stays drained: a night since the drain is lost, and {why}"


def _not_read_again(lacking: Mapping[str, Sequence[str] | None], hold: Hold) -> str:
    """Return which evidence was not read since the night before, or ""."""
    texts = [f"{code} ({', '.join(names)})" for code, names in lacking.items() if names]
    codes = sanitize(", ".join(texts), 300)
    needs_load = any(SOAK in (names or ()) for names in lacking.values())
    return codes and (
        f"stays drained: the failed checks were not made again since the night before: {codes}"
        f"{_NEEDS_LOAD if needs_load else ''}{'' if hold.before is not None else _UNKNOWN_BEFORE}"
    )


def _codes_in_reason(reason: str) -> tuple[str, ...]:
    """Return the codes that a night wrote into the reason of a drain in Slurm.

    The reason is ``rackproof-night: CODE PART; CODE PART; LINK``. The text after the last semicolon is no
    code.
    """
    entries = reason.removeprefix(DRAIN_PREFIX).strip().split("; ")[:-1]
    return tuple(dict.fromkeys(entry.split()[0] for entry in entries if entry.strip()))


def _objection(node_night: NodeNight, blind: bool, partitions: Sequence[str], policy: DrainPolicy) -> str:
    """Return why a failed node is not drained, apart from its partition's limit, or ""."""
    if node_night.slurm is None and not policy.has_slurm:
        return NO_SLURM
    if blind:
        return "not drained: too many nodes cannot be reached"
    if node_night.slurm is None:
        return "not drained: Slurm could not be queried"
    if not node_night.slurm.known:
        return "not drained: it is not in Slurm"
    if not partitions:
        return "not drained: sinfo lists it in no partition"
    if node_night.slurm.drained_by == "other":
        reason = sanitize(node_night.slurm.reason, 200) or "no reason given"
        return f"out of service already, by {drain_owner(node_night.slurm.reason)}: {reason}"
    return ""


_AT_LIMIT = "the share of partition"
"""Text in the reason of a failed node that stays in service, because its partition is at its limit."""
_NOT_SHOWN = "Slurm did not show whether its drain by nights goes on"
"""Reason of a night without Slurm's answer about a node that nights drained."""


def _share_used_up(
    partitions: Sequence[str],
    members: Mapping[str, Mapping[str, bool]],
    room: Mapping[str, int],
    policy: DrainPolicy,
) -> str:
    """Return which partition of a node is at its limit of drains, or ""."""
    for name in partitions:
        if room[name] < 1:
            size, drained = len(members[name]), sum(members[name].values())
            allowed = int(policy.share * size + 1e-9)
            advice = "" if allowed else "; raise validate_max_drain_fraction for so small a partition"
            # Without permission, no node is drained, whatever the limit is.
            why = "" if policy.allowed else f"{DRAINING_OFF}; with it, it would wait, because "
            return (
                f"not drained: {why}{_AT_LIMIT} {name} is used up ({percent(policy.share, sign=False)} "
                f"of {amount(size, 'node')}: {allowed}; drained by earlier nights: {drained}{advice})"
            )
    return ""


def _failed_codes_text(node_night: NodeNight) -> str:
    """Return the failures as a reason in Slurm: ``CODE PART; CODE PART``, cut to 200 characters."""
    failing = frozenset(node_night.codes())
    codes = [
        f"{code.code} {code.place or code.name}".strip()
        for code in node_night.findings
        if code.code in failing
    ]
    codes += [f"{code.code} {code.part}".strip() for code in node_night.reasons if code.code in failing]
    return sanitize("; ".join(dict.fromkeys(codes)), 200)
