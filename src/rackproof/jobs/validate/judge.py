"""Judge a night of the fleet, phase by phase: findings, numbers, verdicts, decisions, record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rackproof.analysis.anomaly import AnomalyPolicy
from rackproof.core.records import Record, Verdict, worst
from rackproof.core.text import sanitize
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.fleet import drain_policy
from rackproof.jobs.validate.fleet.drain_policy import DrainPolicy
from rackproof.jobs.validate.fleet.probe_scheduler import unmeasured_night
from rackproof.jobs.validate.inventory import parse_expectation, parse_limits
from rackproof.jobs.validate.measurements import (
    NightNumbers,
    add_probe_reasons,
    failed_elsewhere_finding,
    judge_measurements,
    measured_since_last_night,
    nodes_measured_once,
)
from rackproof.jobs.validate.messages import describe_plan, drain_reason
from rackproof.nodes.health_checks import (
    HealthFinding,
    check_node,
    majority_versions,
    mark_fleetwide,
)
from rackproof.nodes.snapshot import GpuSnapshot
from rackproof.store import night_store
from rackproof.store.night_store import (
    NightContext,
    NightRecord,
    NodeNight,
    SlurmState,
    StoredSnapshot,
)
from rackproof.store.probe_results import BENCHMARK as PROBES
from rackproof.store.probe_results import read_probes
from rackproof.store.run_folder import ResultsError, stamp_of


class NightDecision(Record):
    """What a night asks for. ``drain`` holds node and reason."""

    night_id: str
    drain: tuple[dict[str, str], ...] = ()
    back: tuple[str, ...] = ()
    message: tuple[str, ...] = ()


def judge_fleet(
    begun: NightContext,
    *,
    asked: Mapping[str, str],
    slurm: Mapping[str, Any] | None = None,
    members: str = "",
    slurm_remark: str = "",
    share: float = 0.15,
    acts: Sequence[str] = (),
    require_measurements: bool = False,
    require_references: bool = True,
    measuring: str | None = None,
    being_imaged: Mapping[str, str] | None = None,
    link: str = "",
) -> NightDecision:
    """Judge a night, decide what should be done, and keep both.

    Args:
        begun: The night.
        asked: Every node asked for, and why there is no look at it (empty where nobody said).
        slurm: Node to how it stands, as ``rackproof_slurm_node`` returns; None where Slurm was not asked.
        members: Nodes, partitions and reasons as ``sinfo`` lists them.
        slurm_remark: Why Slurm could not be asked.
        share: Largest share of a partition to drain, and of nodes with one finding.
        acts: What is allowed: drain, return.
        require_measurements: Whether a node without any measurement tonight is unproven.
        require_references: Whether a measurement without a reference is unproven.
        measuring: None where the night was not asked to measure, else why that failed, or nothing.
            Without what it noted, nothing is measured, and nothing proven.
        being_imaged: Nodes whose imaging has not come to its end, and how far it is: none of them returns.
        link: Where the results folder is on the web, for reasons in Slurm.

    Raises:
        ValidateError: The night cannot be kept, or the options are unusable.
    """
    if not 0 < share <= 1:
        raise ValidateError(f"validate_max_drain_fraction: a fraction above 0 and up to 1, not {share}")
    folder, results, now = Path(begun.folder), Path(begun.results), datetime.now(UTC)
    looks = {name: kept for name in asked if (kept := night_store.read_snapshot(folder, name)) is not None}
    remarks = [sanitize(slurm_remark, 500)] if slurm_remark else []
    try:
        past = night_store.night_folders(results, before=begun.night_id)
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    before, damaged = night_store.last_known(past, asked)
    states = {name: _slurm_state(slurm, name) for name in asked}
    findings, wide = _health_findings(looks, past, states, len(asked), share)
    dry = folder.parent != results
    probed = read_probes(folder)
    if probed is None and measuring is not None:
        probed = unmeasured_night(0.0, looks, measuring or "what was noted of it cannot be read")
    policy = AnomalyPolicy(require_references=require_references)
    once = nodes_measured_once(past, probed, now)
    keys = {(PROBES, looks[name].about.hardware_key) for name in once if name in looks}
    measured = judge_measurements(results, looks, now, require_measurements, policy, dry, keys)
    measured = add_probe_reasons(measured, probed, set(looks), require_references)
    remarks += [*damaged, *wide, *measured.remarks]
    strangers = {one.name: one for one in (*measured.elsewhere, *_arrived_gpus(looks, past))}
    for one in strangers.values():
        findings.setdefault(one.node, []).append(one)
    held = {name for name, state in states.items() if state is not None and state.drained_by == "ours"}
    anew = measured_since_last_night(
        results, past, probed, {name: looks[name] for name in held if name in looks}, now
    )
    nodes = [
        _node_night(
            name, why, looks.get(name), findings.get(name, []), measured, states[name], anew.get(name, ())
        )
        for name, why in asked.items()
    ]
    decided, said = drain_policy.decide_drains(
        nodes, before, drain_policy.drained_by_partition(members), begun.night_id, DrainPolicy(share=share)
    )
    decided = tuple(_unless_imaged(node, being_imaged or {}) for node in decided)
    night = NightRecord(
        night_id=begun.night_id,
        started=min(stamp_of(begun.night_id) or now, now),
        ended=now,
        verdict=worst([*(one.verdict for one in decided), *(one.verdict for one in measured.between)]),
        nodes=decided,
        between=measured.between,
        remarks=tuple(remarks) + said,
        acts=tuple(acts),
    )
    try:
        night_store.write_night(folder, night)
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    return NightDecision(
        night_id=night.night_id,
        drain=tuple(
            {"node": one.node, "reason": drain_reason(one, night.night_id, link)}
            for one in decided
            if one.plan == "drain"
        ),
        back=tuple(one.node for one in decided if one.plan == "return"),
        message=tuple(describe_plan(night)),
    )


def _unless_imaged(node: NodeNight, being_imaged: Mapping[str, str]) -> NodeNight:
    """Return a node as decided; one that is still being imaged is not returned to service."""
    if node.plan != "return" or node.node not in being_imaged:
        return node
    why = (
        f"stays drained: its imaging has not come to its end ({being_imaged[node.node]}): "
        "rackproof reimage status"
    )
    return node.model_copy(update={"plan": "", "why": why})


def _slurm_state(slurm: Mapping[str, Any] | None, name: str) -> SlurmState | None:
    if slurm is None or not isinstance(about := slurm.get(name), Mapping):
        return None
    return SlurmState(
        known=about.get("known") is True,
        state=sanitize(about.get("state_after") or "", 100),
        drained_by=sanitize(about.get("drained_by") or "none", 10),
        reason=sanitize(about.get("reason") or "", 300),
        jobs=tuple(sanitize(job, 40) for job in about.get("jobs") or ())[:50],
    )


def _health_findings(
    looks: Mapping[str, StoredSnapshot],
    past: Sequence[Path],
    states: Mapping[str, SlurmState | None],
    nodes: int,
    share: float,
) -> tuple[dict[str, list[HealthFinding]], tuple[str, ...]]:
    """Return what is wrong with nodes, by node, and what befalls the whole fleet."""
    most = majority_versions(kept.snapshot for kept in looks.values())
    homes: dict[str, list[str]] = {}
    for name, kept in looks.items():
        for gpu in kept.snapshot.gpus:
            homes.setdefault(gpu.uuid, []).append(name)
    found: list[HealthFinding] = []
    for name, kept in looks.items():
        previous = night_store.last_snapshot(past, name)
        state = states[name]
        if not kept.snapshot.sku:
            found.append(_unknown_sku_finding(name))
        if others := sorted({one for gpu in kept.snapshot.gpus for one in homes[gpu.uuid]} - {name}):
            found.append(_same_machine_finding(name, others))
        found += check_node(
            kept.snapshot,
            previous=previous.snapshot if previous else None,
            expected=parse_expectation(name, kept.expected),
            majority=most.get(kept.snapshot.sku),
            limits=parse_limits(name, kept.limits),
            idle=state is not None and state.known and not state.jobs,
        )
    settled, wide = mark_fleetwide(found, nodes, share=share)
    by_node: dict[str, list[HealthFinding]] = {}
    for one in settled:
        by_node.setdefault(one.node, []).append(one)
    return by_node, wide


def _unknown_sku_finding(name: str) -> HealthFinding:
    return HealthFinding(
        node=name,
        code="sku_unknown",
        verdict=Verdict.UNPROVEN,
        action="configure",
        evidence="the inventory does not say its SKU: put it into a group sku_NAME that sets bench_sku",
    )


def _same_machine_finding(name: str, others: Sequence[str]) -> HealthFinding:
    return HealthFinding(
        node=name,
        code="node_twice",
        verdict=Verdict.UNPROVEN,
        action="configure",
        evidence=f"the same GPUs answer as {', '.join(others[:5])}: the names lead to one machine, and of "
        "another nothing is known; look at ansible_host and at the name server",
    )


def _arrived_gpus(looks: Mapping[str, StoredSnapshot], past: Sequence[Path]) -> list[HealthFinding]:
    """Return GPUs that are new in their node and failed in another in an earlier night."""
    new: dict[str, tuple[str, GpuSnapshot]] = {}
    for name, kept in looks.items():
        previous = night_store.last_snapshot(past, name)
        known = {gpu.uuid for gpu in previous.snapshot.gpus} if previous else set()
        new |= {gpu.uuid: (name, gpu) for gpu in kept.snapshot.gpus if gpu.uuid not in known}
    found: dict[str, HealthFinding] = {}
    for folder in past if new else ():
        try:
            night = night_store.read_night(folder)
        except ResultsError:
            continue
        for node in night.nodes:
            for one in node.findings:
                if one.code in node.codes() and one.name in new and one.name not in found:
                    name, gpu = new[one.name]
                    if name != node.node:
                        when = f"{night.ended:%Y-%m-%d}"
                        found[one.name] = failed_elsewhere_finding(
                            name, gpu, one.code, when, node.node, one.evidence
                        )
    return list(found.values())


def _node_night(
    name: str,
    why: str,
    kept: StoredSnapshot | None,
    findings: Sequence[HealthFinding],
    measured: NightNumbers,
    state: SlurmState | None,
    anew: tuple[str, ...],
) -> NodeNight:
    if kept is None:
        text = sanitize(why, 300).removeprefix("Task failed: ") or "it was not looked at"
        return NodeNight(node=name, verdict=Verdict.UNPROVEN, unreached=f"no look at it: {text}", slurm=state)
    verdicts = [one.verdict for one in findings]
    if name in measured.verdicts:
        verdicts.append(measured.verdicts[name])
    return NodeNight(
        node=name,
        sku=kept.snapshot.sku,
        rack=kept.rack,
        hardware_key=kept.snapshot.hardware_key,
        verdict=worst(verdicts) if verdicts else Verdict.PASS,
        findings=tuple(findings),
        reasons=measured.reasons.get(name, ()),
        measured=name in measured.nodes,
        anew=anew,
        slurm=state,
    )
