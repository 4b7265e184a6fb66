"""Write a night's messages for operators: the summary, changes, planned actions and reasons. No I/O.

The tasks of validate.yml print the texts of :func:`describe_drain_plan` (after the judgement) and
:func:`summarize_night` (at the end), and ``rackproof nightly`` sends the summary. :func:`drain_reason`
returns the text that Slurm stores with a drain. A summary begins like this::

    FAIL  18 nodes: 1 fail, 17 pass (2026-11-21 06:00:00 UTC)
    changed: n07: pass → fail: GPU-5f3c... (slot 3): XID 79
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from rackproof.core.advised_commands import add_results_everywhere
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.records import WORST_FIRST, Verdict
from rackproof.core.same_reason import general_reason, named_nodes
from rackproof.core.text import amount, moment, sanitize
from rackproof.store.night_store import (
    NightRecord,
    NodeNight,
    StoredSnapshot,
)

_FINDINGS = 10
"""Largest number of findings of a node in the list of a dry run."""
_LISTED_NODES = 50
"""Largest number of nodes in the list of a dry run."""
HEALTH_ONLY = "health only"
"""The mark of a node without measurements. Its verdict does not cover its speed."""
ACT_NAMES = {"": "", "drain": "drain", "return": "resume"}
"""The name of each planned action for operators. The variable that allows it is ``validate_NAME``."""
_MOST_PRINTED = 12
"""Largest number of changes in a message, and of groups of nodes for each verdict."""


def summarize_night(night: NightRecord, changes: Sequence[str]) -> list[str]:
    """Return the lines of a night's summary: verdict, remarks, changes, faults by node, plans and actions.

    ``changes`` are the lines of :func:`describe_changes`. Only the first of them are used.
    """
    nodes_by_verdict = _nodes_by_verdict(night)
    counts = _count_by_verdict(nodes_by_verdict)
    count = amount(len(night.nodes), "node")
    lines = [f"{night.verdict.value.upper()}  {count}: {counts} ({moment(night.ended)})"]
    lines += [f"! {sanitize(remark, 400)}" for remark in night.remarks]
    lines += [f"changed: {change}" for change in changes[:_MOST_PRINTED]]
    for verdict in (Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED):
        lines += _describe_nodes(verdict, nodes_by_verdict[verdict])
    lines += describe_unmeasured(night)
    lines += _describe_unreferenced(night)
    lines += describe_drain_plan(night)
    lines += [f"{node.node}: {node.did}" for node in night.nodes if node.did]
    return lines


def without_root_remarks(snapshots: Mapping[str, StoredSnapshot]) -> list[str]:
    """Return a remark about the nodes queried without root and the evidence that is missing, or nothing."""
    without_root = {
        name: stored.snapshot for name, stored in snapshots.items() if stored.snapshot.asked_as_root is False
    }
    if not without_root:
        return []
    lacking = {
        "the kernel's log": sum(
            snapshot.tools.get("kernel_log") != "ok" for snapshot in without_root.values()
        ),
        "the machine's serial number": sum(not snapshot.serial for snapshot in without_root.values()),
        "the limit of locked memory of jobs": len(without_root),
    }
    facts = ", ".join(f"{name} ({count} of {len(without_root)})" for name, count in lacking.items() if count)
    names = sanitize(compress_hostlist(without_root), 200)
    return [
        f"queried without root: {names}; root would add {facts}: set ansible_become, or use -b. A user in "
        "the groups adm and systemd-journal can read the kernel's log without root"
    ]


def _nodes_by_verdict(night: NightRecord) -> dict[Verdict, list[NodeNight]]:
    """Return the nodes of each verdict, worst verdict first."""
    nodes: dict[Verdict, list[NodeNight]] = {verdict: [] for verdict in WORST_FIRST}
    for node in night.nodes:
        nodes[node.verdict].append(node)
    return nodes


def _count_by_verdict(nodes_by_verdict: Mapping[Verdict, Sequence[NodeNight]]) -> str:
    """Return the number of nodes of each verdict as text."""
    return ", ".join(f"{len(nodes)} {verdict.value}" for verdict, nodes in nodes_by_verdict.items() if nodes)


def describe_unmeasured(night: NightRecord) -> list[str]:
    """Return a line about the nodes that were reached but not measured, or nothing."""
    unmeasured = [node.node for node in night.nodes if node.is_health_only]
    if not unmeasured:
        return []
    return [f"{HEALTH_ONLY}, nothing was measured in 24 hours: {compress_hostlist(unmeasured)}"]


def metrics_without_reference(node_night: NodeNight) -> tuple[str, ...]:
    """Return the metrics of a node that are unproven because no run or SKU gives a reference for them."""
    # For a pair of nodes, no run can be accepted. Its reason states what it needs.
    metrics = (
        reason.metric.partition(" ")[0]
        for reason in node_night.reasons
        if reason.check == "reference" and "+" not in reason.part
    )
    return tuple(dict.fromkeys(filter(None, metrics)))


def _describe_unreferenced(night: NightRecord) -> list[str]:
    """Return a line with the command for nodes whose speeds have no reference yet, or nothing."""
    lacking = {node.node: names for node in night.nodes if (names := metrics_without_reference(node))}
    if not lacking:
        return []
    metrics = list(dict.fromkeys(chain.from_iterable(lacking.values())))
    more = f" and {len(metrics) - _MOST_PRINTED} more" if len(metrics) > _MOST_PRINTED else ""
    return [
        f"no reference yet for {', '.join(metrics[:_MOST_PRINTED])}{more} of {compress_hostlist(lacking)}: "
        f"rackproof explain {next(iter(lacking))} names the commands with which you accept a good run"
    ]


def _describe_nodes(verdict: Verdict, nodes: Sequence[NodeNight]) -> Iterator[str]:
    """Yield a line for each group of nodes with the same first reason for a verdict.

    If there are too many groups, the last line lists the nodes of all others.
    """
    groups: dict[tuple[str, int], list[NodeNight]] = {}
    for node in nodes:
        texts = node.reason_texts()
        first = sanitize(texts[0] if texts else "no reason kept", 300)
        groups.setdefault((general_reason(first, node.node), len(texts)), []).append(node)
    for (general, count), equal in list(groups.items())[:_MOST_PRINTED]:
        more = f" (and {count - 1} more)" if count > 1 else ""
        first = sanitize(equal[0].reason_texts()[0], 300) if len(equal) == 1 and count else general
        yield f"{verdict.value} {named_nodes([member.node for member in equal])}: {first}{more}"
    unlisted = [member.node for equal in list(groups.values())[_MOST_PRINTED:] for member in equal]
    if unlisted:
        yield f"{verdict.value}, too: {compress_hostlist(unlisted)}"


def describe_findings(night: NightRecord) -> tuple[str, ...]:
    """Return lines with the findings of each node that did not pass, if the summary shows only the first.

    A dry run prints these lines, because it stores nothing that a later command could show.
    """
    nodes = [node for listed in _nodes_by_verdict(night).values() for node in listed if _has_more(node)]
    lines: list[str] = []
    for node in nodes[:_LISTED_NODES]:
        texts = node.reason_texts_by_part()
        lines.append(f"{node.node}: {node.verdict.value}, {amount(len(texts), 'finding')}")
        lines += [f"  {code}: {sanitize(text, 300)}" for (code, _), text in texts[:_FINDINGS]]
        if len(texts) > _FINDINGS:
            lines.append(f"  and {len(texts) - _FINDINGS} more, which a night without --check stores")
    if len(nodes) > _LISTED_NODES:
        lines.append(f"and {len(nodes) - _LISTED_NODES} more nodes: choose some with -l")
    return tuple(lines)


def _has_more(node: NodeNight) -> bool:
    """Return whether a node did not pass, and the summary shows only its first finding."""
    return node.verdict is not Verdict.PASS and len(node.reason_texts_by_part()) > 1


def describe_changes(
    night: NightRecord,
    before: NightRecord | None,
    earlier: Mapping[str, NodeNight] | None = None,
    *,
    is_lost: bool = False,
) -> tuple[str, ...]:
    """Return a line for each node that differs from its last night, the worst verdict first.

    A new node that passes has no line. A last line lists the nodes that only the night before requested. If
    there was no night before, the only line says so. If its record cannot be read, the first line says so,
    and only nodes in ``earlier`` are compared.

    Args:
        night: The night.
        before: The night before, or None if there is none or its record cannot be read.
        earlier: The last states of nodes that the night before left out, because it was, for example, a night
            of one rack.
        is_lost: Whether the record of the night before cannot be read.
    """
    if before is None and not is_lost:
        return ("there is no earlier night to compare with",)
    lines = ["the record of the night before cannot be read"] if is_lost else []
    if before is None and not earlier:
        return tuple(lines)
    requested_before = {node.node: node for node in before.nodes} if before else {}
    was = {**(earlier or {}), **requested_before}
    for node_night in sorted(night.nodes, key=lambda node: (WORST_FIRST.index(node.verdict), node.node)):
        lines += _describe_change(node_night, was.get(node_night.node))
    gone = sorted(set(requested_before) - {node.node for node in night.nodes})
    if gone:
        lines.append(f"not requested tonight: {', '.join(gone[:10])}{' …' if len(gone) > 10 else ''}")
    return tuple(lines)


def _describe_change(node_night: NodeNight, before: NodeNight | None) -> list[str]:
    """Return a line about the change of a node, or nothing if there is none."""
    if before is None:
        if node_night.verdict is Verdict.PASS:
            return []
        return [f"{node_night.node}: {node_night.verdict.value}, not in the night before"]
    new = _new_reasons(node_night, before)
    if node_night.unreached and not before.unreached:
        new.insert(0, node_night.unreached)
    if node_night.verdict is not before.verdict:
        why = f": {sanitize(new[0], 200)}" if new else ""
        return [f"{node_night.node}: {before.verdict.value} → {node_night.verdict.value}{why}"]
    return (
        [f"{node_night.node}: still {node_night.verdict.value}, and new: {sanitize(new[0], 200)}"]
        if new
        else []
    )


def _new_reasons(node_night: NodeNight, before: NodeNight) -> list[str]:
    """Return the texts of the findings and reasons that the node did not have in its last night."""
    # Compare code and part, because texts contain numbers that differ every night.
    known_keys = {key for key, _ in before.reason_texts_by_part()}
    return [text for key, text in node_night.reason_texts_by_part() if key not in known_keys]


def describe_drain_plan(night: NightRecord) -> list[str]:
    """Return a line for each planned drain or resume, and for each node with only a reason.

    The line of a plan that is not allowed names the variable that would allow it.
    """
    lines = []
    for plan, allowed in (("drain", "drain" in night.acts), ("return", "return" in night.acts)):
        act = ACT_NAMES[plan]
        for node in night.nodes:
            if node.plan == plan:
                dry_run_hint = "" if allowed else f" (a dry run: allow it with -e validate_{act}=true)"
                lines.append(f"{'' if allowed else 'would '}{act} {node.node}: {node.why}{dry_run_hint}")
    lines += [f"{judged.node}: {judged.why}" for judged in night.nodes if judged.why and not judged.plan]
    return lines


def drain_reason(node_night: NodeNight, night_id: str, results: Path, link: str) -> str:
    """Return the reason for a drain in Slurm: the failures, and a link or a command that explains them.

    ``link`` is the web address of the results folder, or "".
    """
    where = (
        f"{link.rstrip('/')}/{night_id}/{node_page_path(node_night.node)}"
        if link
        else add_results_everywhere(f"rackproof explain {node_night.node}", results)
    )
    return f"{node_night.why}; {where}"


def node_page_path(node: str) -> str:
    """Return where the page of a node is, relative to its night's folder."""
    return f"nodes/{node}.html"
