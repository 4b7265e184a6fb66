"""What an operator reads of a night: its summary, what changed, what is planned and why. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from rackproof.core.records import Verdict
from rackproof.core.text import moment, sanitize
from rackproof.store import night_store
from rackproof.store.night_store import (
    NightRecord,
    NodeNight,
)

_TOLD = 12


def summarize_night(night: NightRecord, changes: Sequence[str]) -> list[str]:
    """Return what an operator reads first: verdict, what changed, what is wrong where, what is done."""
    from rackproof.core.hostlist import compress_hostlist

    counts = {
        one: [node.node for node in night.nodes if node.verdict is one]
        for one in (Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED, Verdict.PASS)
    }
    some = ", ".join(f"{len(nodes)} {verdict.value}" for verdict, nodes in counts.items() if nodes)
    lines = [f"{night.verdict.value.upper()}  {len(night.nodes)} nodes: {some} ({moment(night.ended)})"]
    lines += [f"! {sanitize(one, 400)}" for one in night.remarks]
    lines += [f"changed: {one}" for one in changes[:_TOLD]]
    for verdict in (Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED):
        for one in [node for node in night.nodes if node.verdict is verdict][:_TOLD]:
            says = one.says()
            more = f" (and {len(says) - 1} more)" if len(says) > 1 else ""
            lines.append(
                f"{verdict.value} {one.node}: {sanitize(says[0] if says else 'no reason kept', 300)}{more}"
            )
        if len(counts[verdict]) > _TOLD:
            lines.append(f"{verdict.value}, too: {compress_hostlist(counts[verdict][_TOLD:])}")
    bare = [one.node for one in night.nodes if not one.measured and not one.unreached]
    if bare:
        lines.append(f"health only, nothing was measured in 24 hours: {compress_hostlist(bare)}")
    lines += describe_drain_plan(night)
    lines += [f"{one.node}: {one.did}" for one in night.nodes if one.did]
    return lines


def describe_changes(night: NightRecord, before: NightRecord | None) -> tuple[str, ...]:
    """Return what is different from the night before, worst first, in words."""
    if before is None:
        return ("there is no earlier night to compare with",)
    was = {one.node: one for one in before.nodes}
    order = (Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED, Verdict.PASS)
    lines = []
    for one in sorted(night.nodes, key=lambda node: (order.index(node.verdict), node.node)):
        then = was.get(one.node)
        if then is None:
            if one.verdict is not Verdict.PASS:
                lines.append(f"{one.node}: {one.verdict.value}, not looked at in the night before")
            continue
        known = {(found.code, found.name) for found in then.findings} | {
            (r.code, r.part) for r in then.reasons
        }
        new = [
            f"{night_store.part_prefix(found)}{found.evidence}"
            for found in one.findings
            if (found.code, found.name) not in known
        ]
        new += [
            f"{r.metric or r.check} {r.part}: {r.text}" for r in one.reasons if (r.code, r.part) not in known
        ]
        if one.unreached and not then.unreached:
            new.insert(0, one.unreached)
        if one.verdict is not then.verdict:
            why = f": {sanitize(new[0], 200)}" if new else ""
            lines.append(f"{one.node}: {then.verdict.value} → {one.verdict.value}{why}")
        elif new:
            lines.append(f"{one.node}: still {one.verdict.value}, and new: {sanitize(new[0], 200)}")
    gone = sorted(set(was) - {one.node for one in night.nodes})
    if gone:
        lines.append(f"not asked for tonight: {', '.join(gone[:10])}{' …' if len(gone) > 10 else ''}")
    return tuple(lines)


def describe_drain_plan(night: NightRecord) -> list[str]:
    """Return what is planned, and whether it is allowed to happen."""
    lines = []
    for plan, allowed in (("drain", "drain" in night.acts), ("return", "return" in night.acts)):
        for one in night.nodes:
            if one.plan == plan:
                how = "" if allowed else f" (a dry run: allow it with -e validate_{plan}=true)"
                lines.append(f"{'' if allowed else 'would '}{plan} {one.node}: {one.why}{how}")
    lines += [f"{one.node}: {one.why}" for one in night.nodes if one.why and not one.plan]
    return lines


def drain_reason(one: NodeNight, night_id: str, link: str) -> str:
    """Return the reason that Slurm shows for a drain: what failed, and where it is explained."""
    where = (
        f"{link.rstrip('/')}/{night_id}/{node_page_path(one.node)}"
        if link
        else f"rackproof explain {one.node}"
    )
    return f"{one.why}; {where}"


def node_page_path(node: str) -> str:
    """Return where the page of a node is, relative to its night's folder."""
    return f"nodes/{node}.html"
