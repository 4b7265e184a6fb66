"""Judge a night of the fleet.

After all snapshots and measurements are stored, the action plugin ``rackproof_validate_judge`` calls
:func:`judge_fleet`, which returns a :class:`NightDecision` with the nodes to drain and to resume. The phases
of the judgement are findings (of health checks), numbers (measurements), verdicts, decisions, and the record
``night.json``. A hold is a drain by nights, with the codes that must pass before the node is resumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rackproof.analysis.anomaly import AnomalyPolicy
from rackproof.analysis.fleet_model import FleetPolicy
from rackproof.core import known_variables
from rackproof.core.definitions import DefinitionError
from rackproof.core.records import Record, Verdict, worst
from rackproof.core.text import sanitize
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.fleet import drain_policy
from rackproof.jobs.validate.fleet.drain_policy import DrainPolicy
from rackproof.jobs.validate.fleet.healing import DrainedNode, healed_evidence
from rackproof.jobs.validate.fleet.node_readings import program_points
from rackproof.jobs.validate.fleet.probe_scheduler import unmeasured_night
from rackproof.jobs.validate.foreign_parts import foreign_parts_finding, settle_foreign_parts
from rackproof.jobs.validate.inventory import parse_limits, parse_node_expectation
from rackproof.jobs.validate.measurements import (
    DRIFT_NIGHTS,
    NightNumbers,
    SuspectNumbers,
    add_probe_reasons,
    failed_elsewhere_finding,
    judge_measurements,
    measured_in,
    nodes_measured_once,
    runs_since_last_night,
    soaked_gpus,
)
from rackproof.jobs.validate.messages import describe_drain_plan, drain_reason, without_root_remarks
from rackproof.nodes.health_checks import check_node, check_sku, majority_versions, mark_fleetwide
from rackproof.nodes.health_subjects import HealthFinding
from rackproof.nodes.slurm_states import check_slurm_state, missing_state
from rackproof.nodes.snapshot_records import GpuSnapshot
from rackproof.store import night_store
from rackproof.store.night_store import (
    Hold,
    NightContext,
    NightRecord,
    NodeNight,
    SlurmState,
    StoredSnapshot,
    find_last_places,
    slurm_state,
    strange_parts,
)
from rackproof.store.probe_results import BENCHMARK as PROBES
from rackproof.store.probe_results import ProbeNight, probes_are_lost, read_probes
from rackproof.store.run_folder import ResultsError, stamp_of


class NodeHealth(Record):
    """The findings of the health checks on a node as texts, without the node's measurements.

    ``verdict`` is the worst of the findings. ``reasons`` are the findings that gate, and ``remarks`` the
    others. A node without a snapshot is unproven, and its reason says why there is none.
    """

    node: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class NightDecision(Record):
    """The decision of a night.

    ``drain`` has a mapping for each node to drain, with ``node`` and ``reason`` (the text for Slurm).
    ``resume`` lists the nodes to resume, ``message`` the lines for the operator, and ``health`` the findings
    of all nodes. Both lists of nodes are plans, whether or not the acts are permitted.
    """

    night_id: str
    drain: tuple[dict[str, str], ...] = ()
    resume: tuple[str, ...] = ()
    message: tuple[str, ...] = ()
    health: tuple[NodeHealth, ...] = ()


def night_policy(*, false_alarms: float = 0.1, require_references: bool = True) -> AnomalyPolicy:
    """Return the limits of a night's comparisons. No I/O.

    Args:
        false_alarms: How many of 1,000 healthy nodes may fail per night in comparison with the fleet and
            with their own past.
        require_references: Whether a measurement without a reference is unproven.

    Raises:
        VariableValueError: The number of false alarms is out of its bounds.
    """
    known_variables.check_bounds({"validate_false_alarms_per_1000_node_nights": false_alarms})
    return AnomalyPolicy(require_references=require_references, fleet=FleetPolicy(false_alarms=false_alarms))


def judge_fleet(
    context: NightContext,
    *,
    asked: Mapping[str, str],
    being_imaged: Mapping[str, str],
    benchmarks: Path,
    slurm: Mapping[str, Any] | None = None,
    members: str = "",
    slurm_remark: str = "",
    share: float = 0.15,
    return_hours: float = 12,
    acts: Sequence[str] = (),
    require_measurements: bool = False,
    policy: AnomalyPolicy | None = None,
    measuring: str | None = None,
    link: str = "",
) -> NightDecision:
    """Judge a night, decide the acts, and store both in ``night.json``.

    Args:
        context: The context of the night.
        asked: Each requested node, with the reason why it has no snapshot, or "" if it has one or if that
            is unknown.
        being_imaged: Nodes whose imaging is not finished, with the progress. None of them is resumed. There
            is no default, because a caller that forgot the argument would resume nodes during their imaging.
        benchmarks: The folder of the definitions, whose parameters decide which references apply.
        slurm: The state of each node, as ``rackproof_slurm_node`` returns it, or None if Slurm was not
            queried or did not answer.
        members: The output of ``sinfo --noheader --Node --format=%N|%R|%E``, with each node's partitions and
            the reason of its drain.
        slurm_remark: The reason why Slurm did not answer, or "".
        share: The largest share of a partition to drain. A finding on a larger share of the nodes counts as
            fleet-wide.
        return_hours: The minimum number of hours between two nights that count as passes of a drained
            node.
        acts: The permitted acts (drain, return).
        require_measurements: Whether a node without any measurement tonight is unproven.
        policy: The limits of comparisons, or None for :func:`night_policy`'s defaults.
        measuring: None if no measurements were requested. Otherwise, the reason why measuring failed, or "".
            If the record of the measurements is missing, every node is unproven.
        link: The web address of the results folder, for reasons in Slurm.

    Raises:
        ValidateError: The night cannot be stored, the results folder cannot be listed, a definition of a
            night's program cannot be read, or an option or a value of the inventory is unusable.
    """
    if not 0 < share <= 1:
        raise ValidateError(
            f"validate_max_drain_fraction is {share}: it has to be a number above 0 and at most 1"
        )
    if not 0 <= return_hours <= 24 * 30:
        raise ValidateError(
            f"validate_resume_hours is {return_hours}: it has to be a number of hours from 0 to 720"
        )
    inputs = _read_inputs(context, asked, slurm)
    health = [
        *_health_findings(inputs),
        *_slurm_findings(inputs, slurm_remark, asked_slurm=slurm is not None),
    ]
    findings, wide = _mark_fleetwide(health, len(asked), share)
    probed = _read_probed(inputs, measuring)
    policy = policy or night_policy()
    holds = _holds(inputs, context.night_id)
    measured = _judge_numbers(inputs, probed, require_measurements, policy, holds, benchmarks)
    _add_failed_elsewhere(findings, inputs, measured)
    nodes = _judge_nodes(inputs, holds, findings, measured, probed)
    decided, fleet_remarks = drain_policy.decide_drains(
        nodes,
        inputs.before,
        drain_policy.drained_by_partition(members),
        context.night_id,
        inputs.now,
        DrainPolicy(
            share=share,
            hours=return_hours,
            allowed="drain" in acts,
            # If Slurm did not answer, there is a remark. If the inventory has no Slurm, there is neither.
            has_slurm=slurm is not None or bool(slurm_remark),
        ),
    )
    # Check imaging last, because it cancels a return that the policy just planned.
    decided = tuple(_unless_imaged(_with_night_before(node, inputs.past), being_imaged) for node in decided)
    slurm_remarks = [sanitize(slurm_remark, 500)] if slurm_remark else []
    night = NightRecord(
        night_id=context.night_id,
        # If the clock was set back, the night's id is in the future. The start must not be after the
        # end.
        started=min(stamp_of(context.night_id) or inputs.now, inputs.now),
        ended=inputs.now,
        verdict=worst(
            [*(node.verdict for node in decided), *(reason.verdict for reason in measured.link_reasons)]
        ),
        nodes=decided,
        between=measured.link_reasons,
        remarks=(
            *slurm_remarks,
            *without_root_remarks(inputs.snapshots),
            *inputs.damaged,
            *wide,
            *measured.remarks,
            *fleet_remarks,
        ),
        acts=tuple(acts),
        inventory=context.inventory,
    )
    try:
        night_store.write_night(inputs.folder, night)
        night_store.write_conditions(inputs.folder, inputs.snapshots.values())
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    return _night_decision(night, Path(context.results), link)


@dataclass(frozen=True)
class _NightInputs:
    """The input of a night's judgement: tonight's snapshots, earlier nights, and Slurm's answers.

    ``now`` is the time of the judgement. ``asked`` maps each requested node to the reason why it has no
    snapshot, or to "". ``past`` lists the folders of earlier nights, newest first. ``before`` is the last
    known state of each node, ``damaged`` lists remarks on unreadable nights, and ``states`` has None for a
    node about which Slurm gave no answer.
    """

    folder: Path
    results: Path
    now: datetime
    asked: Mapping[str, str]
    snapshots: Mapping[str, StoredSnapshot]
    past: Sequence[Path]
    before: Mapping[str, NodeNight]
    damaged: Sequence[str]
    states: Mapping[str, SlurmState | None]


def _read_inputs(
    context: NightContext, asked: Mapping[str, str], slurm: Mapping[str, Any] | None
) -> _NightInputs:
    """Read the snapshots, the earlier nights and Slurm's answers for the judgement of the night.

    Parts of other nodes are removed from the snapshots (:func:`settle_foreign_parts`).
    """
    folder, results = Path(context.folder), Path(context.results)
    # Use one time for all phases, so that the windows of 24 hours and of earlier nights do not shift.
    now = datetime.now(UTC)
    snapshots = {
        name: stored for name in asked if (stored := night_store.read_snapshot(folder, name)) is not None
    }
    try:
        past = night_store.night_folders(results, before=context.night_id)
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    try:
        snapshots = settle_foreign_parts(folder, past, snapshots)
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    before, damaged = night_store.last_known(past, asked)
    return _NightInputs(
        folder=folder,
        results=results,
        now=now,
        asked=asked,
        snapshots=snapshots,
        past=past,
        before=before,
        damaged=damaged,
        states={name: slurm_state(slurm, name) for name in asked},
    )


def _read_probed(inputs: _NightInputs, measuring: str | None) -> ProbeNight | None:
    """Return the night's own measurements, or None if none were requested.

    If the record of requested measurements is missing or damaged, return one with which every node with a
    snapshot is unproven.
    """
    probed = read_probes(inputs.folder)
    if probed is None and (measuring is not None or probes_are_lost(inputs.folder)):
        return unmeasured_night(
            0.0, inputs.snapshots, measuring or "its record of measurements cannot be read"
        )
    return probed


def _holds(inputs: _NightInputs, night_id: str) -> dict[str, Hold]:
    """Return the hold of each node that nights drained and that has a snapshot tonight."""
    return {
        name: hold
        for name, state in inputs.states.items()
        if (hold := drain_policy.hold_of(state, inputs.before.get(name), night_id)) is not None
        and name in inputs.snapshots
    }


def _judge_numbers(
    inputs: _NightInputs,
    probed: ProbeNight | None,
    require_measurements: bool,
    policy: AnomalyPolicy,
    holds: Mapping[str, Hold],
    benchmarks: Path,
) -> NightNumbers:
    """Return the night's judged numbers, with the reasons that the probes themselves add."""
    try:
        points = program_points(benchmarks)
    except DefinitionError as error:
        raise ValidateError(str(error)) from error
    once = nodes_measured_once(inputs.past, probed, inputs.now)
    retested = probed.again if probed is not None else ()
    measured = judge_measurements(
        inputs.results,
        inputs.snapshots,
        inputs.now,
        require_measurements,
        policy,
        # The argument ``dry``: the folder of a dry run is outside of the results.
        inputs.folder.parent != inputs.results,
        SuspectNumbers(_probe_keys(inputs, once), _probe_keys(inputs, set(retested) - once)),
        night_store.read_conditions(inputs.past, inputs.snapshots.values(), inputs.now, policy.nights),
        {name: _days_held(inputs.now, hold) for name, hold in holds.items()},
        points,
    )
    return add_probe_reasons(measured, probed, set(inputs.snapshots), policy.require_references)


def _days_held(now: datetime, hold: Hold) -> int:
    """Return for how many days nights may have held a node drained.

    If no stored night made the drain, all numbers that are read may have been measured since then.
    """
    began = stamp_of(hold.since)
    return DRIFT_NIGHTS if began is None or hold.before is None else max((now - began).days, 0)


def _probe_keys(inputs: _NightInputs, names: Collection[str]) -> set[tuple[str, str]]:
    """Return the keys of some nodes' probes in the history, as pairs of benchmark and hardware key."""
    return {(PROBES, inputs.snapshots[name].about.hardware_key) for name in names if name in inputs.snapshots}


def _add_failed_elsewhere(
    findings: dict[str, list[HealthFinding]], inputs: _NightInputs, measured: NightNumbers
) -> None:
    """Add a finding for each GPU that failed in another node, as the history or earlier nights state."""
    by_gpu = {
        failure.name: failure
        for failure in (*measured.elsewhere, *_arrived_gpus(inputs.snapshots, inputs.past))
    }
    for finding in by_gpu.values():
        findings.setdefault(finding.node, []).append(finding)


def _judge_nodes(
    inputs: _NightInputs,
    holds: Mapping[str, Hold],
    findings: Mapping[str, Sequence[HealthFinding]],
    measured: NightNumbers,
    probed: ProbeNight | None,
) -> list[NodeNight]:
    """Return each node of the night with its findings, reasons and evidence of healing."""
    drained = {name: inputs.snapshots[name] for name in holds}
    soaked: dict[str, frozenset[str]] = {}
    measured_again: dict[str, tuple[str, ...]] = {}
    for runs, names in runs_since_last_night(inputs.results, inputs.past, list(drained), inputs.now):
        of_night = {name: drained[name] for name in names}
        soaked |= soaked_gpus(runs, probed, of_night)
        measured_again |= measured_in(runs, probed, of_night, soaked, inputs.now)
    evidence_again = {
        name: (
            *measured_again.get(name, ()),
            *_compared_again(measured.compared.get(name, ()), measured_again.get(name, ())),
            *healed_evidence(replace(_drained_node(inputs, name, hold), soaked=soaked[name])),
        )
        for name, hold in holds.items()
    }
    return [
        _node_night(
            name,
            why,
            inputs.snapshots.get(name),
            findings.get(name, []),
            measured,
            inputs.states[name],
            evidence_again.get(name, ()),
        )
        for name, why in inputs.asked.items()
    ]


def _compared_again(compared: Sequence[str], measured: Sequence[str]) -> tuple[str, ...]:
    """Return the comparisons (``CHECK:METRIC``) whose metric was measured since the last night."""
    return tuple(comparison for comparison in compared if comparison.partition(":")[2] in measured)


def _drained_node(inputs: _NightInputs, name: str, hold: Hold) -> DrainedNode:
    """Return a drained node with the snapshots for comparison with tonight's."""
    stored = inputs.snapshots[name]
    # Only the night that made the drain has the night before. In a later one, the fault may be in both.
    before = night_store.read_snapshot(inputs.results / hold.before, name) if hold.before else None
    # If no stored night made the drain, it counts from tonight. Tonight's own snapshot shows no failure.
    failed_folder = inputs.results / (hold.failed or hold.since)
    failed = None if failed_folder == inputs.folder else night_store.read_snapshot(failed_folder, name)
    return DrainedNode(
        tonight=stored.snapshot,
        expected=parse_node_expectation(name, stored.expected),
        idle=_is_idle(inputs.states[name]),
        failed=failed.snapshot if failed else None,
        before=before.snapshot if before else None,
        is_first=hold.before == "",
    )


def _with_night_before(node: NodeNight, past: Sequence[Path]) -> NodeNight:
    """Return a node to drain with the night of its last snapshot, which a later night compares with."""
    if node.plan != "drain" or node.hold is None:
        return node
    newest = next((folder.name for folder in past if night_store.read_snapshot(folder, node.node)), None)
    if newest is None and not any(_may_have_seen(folder, node.node) for folder in past):
        newest = ""
    return node.model_copy(update={"hold": node.hold.model_copy(update={"before": newest})})


def _may_have_seen(night: Path, name: str) -> bool:
    """Return whether a night may include a snapshot of a node. A night with a damaged record may."""
    try:
        return any(node.node == name and not node.unreached for node in night_store.read_night(night).nodes)
    except ResultsError:
        return True


def _night_decision(night: NightRecord, results: Path, link: str) -> NightDecision:
    """Return the decision for the playbook: the nodes to drain and resume, and the messages."""
    return NightDecision(
        night_id=night.night_id,
        drain=tuple(
            {"node": node.node, "reason": drain_reason(node, night.night_id, results, link)}
            for node in night.nodes
            if node.plan == "drain"
        ),
        resume=tuple(node.node for node in night.nodes if node.plan == "return"),
        message=tuple(describe_drain_plan(night)),
        health=tuple(_node_health(node) for node in night.nodes),
    )


def _node_health(node: NodeNight) -> NodeHealth:
    """Return the findings of a node as texts for the playbook."""
    if node.unreached:
        return NodeHealth(node=node.node, verdict=Verdict.UNPROVEN, reasons=(node.unreached,))
    texts = [
        (finding.verdict.gates, f"{night_store.part_prefix(finding)}{finding.evidence}")
        for finding in node.findings
    ]
    return NodeHealth(
        node=node.node,
        verdict=worst([finding.verdict for finding in node.findings]) if node.findings else Verdict.PASS,
        reasons=tuple(text for gates, text in texts if gates),
        remarks=tuple(text for gates, text in texts if not gates),
    )


def _unless_imaged(node: NodeNight, being_imaged: Mapping[str, str]) -> NodeNight:
    """Return a node as decided, but do not resume it while its imaging is unfinished."""
    if node.plan != "return" or node.node not in being_imaged:
        return node
    progress = being_imaged[node.node]
    why = f"stays drained: its imaging has not finished ({progress}); see rackproof reimage status"
    return node.model_copy(update={"plan": "", "why": why})


def _health_findings(inputs: _NightInputs) -> list[HealthFinding]:
    """Return the findings on the snapshots.

    These are the findings of the health checks, and findings on lost snapshots, foreign or moved parts,
    unknown SKUs, and machines with two names. A node that reports foreign parts has only this finding and
    findings on lost snapshots, because its other values may be another node's.
    """
    snapshots = inputs.snapshots
    majorities = majority_versions(stored.snapshot for stored in snapshots.values())
    nodes_of_sign = _nodes_of_signs(snapshots)
    newest = _last_night(inputs)
    findings = [*_lost_snapshots(inputs, newest)]
    strange: dict[str, str] = {}
    for name, stored in snapshots.items():
        if stored.snapshot.foreign_parts:
            findings.append(foreign_parts_finding(name, stored.snapshot.foreign_parts))
            continue
        previous = newest[name] or night_store.last_snapshot(inputs.past[1:], name)
        strange |= dict.fromkeys(strange_parts(stored, previous), name)
        if not stored.snapshot.sku:
            findings.append(_unknown_sku_finding(name))
        same_machine = {node for sign in _machine_signs(stored) for node in nodes_of_sign[sign]}
        if same_nodes := sorted(same_machine - {name}):
            findings.append(_same_machine_finding(name, same_nodes))
        idle = _is_idle(inputs.states[name])
        findings += _checked_findings(name, stored, previous, majorities.get(stored.snapshot.sku), idle)
    return [*findings, *_moved_findings(inputs, strange)]


def _checked_findings(
    name: str,
    stored: StoredSnapshot,
    previous: StoredSnapshot | None,
    majority: Mapping[str, str] | None,
    idle: bool,
) -> list[HealthFinding]:
    """Return the findings of the checks on a node.

    If the checks cannot process the node's answer, the only finding is that the node is unproven.
    """
    expected = parse_node_expectation(name, stored.expected)
    limits = parse_limits(name, stored.limits)
    try:
        findings = check_node(
            stored.snapshot,
            previous=previous.snapshot if previous else None,
            expected=expected,
            majority=majority,
            limits=limits,
            idle=idle,
        )
    except Exception as error:  # One node's answer must not prevent the judgement of the others.
        return [_unchecked_finding(name, error)]
    return [*check_sku(stored.snapshot, expected), *findings]


def _unchecked_finding(name: str, error: Exception) -> HealthFinding:
    """Return the finding on a node whose answer made the checks fail."""
    return HealthFinding(
        node=name,
        code="not_checked",
        verdict=Verdict.UNPROVEN,
        action="inspect",
        evidence=f"its snapshot cannot be judged ({type(error).__name__}: {error}); "
        "please report this with the snapshot",
    )


def _moved_findings(inputs: _NightInputs, strange: Mapping[str, str]) -> Iterator[HealthFinding]:
    """Yield a finding for each node whose serial number or GPUs earlier nights recorded in another node.

    Args:
        inputs: The input of the night's judgement.
        strange: Serial numbers and UUIDs that are new in their node, with the node.
    """
    # Without such parts, no earlier night must be read.
    places = find_last_places(inputs.past, strange) if strange else {}
    moved: dict[str, list[str]] = {}
    for part, (earlier_node, when) in places.items():
        moved.setdefault(strange[part], []).append(
            f"{sanitize(part, 60)} was last seen in {earlier_node} on {when}"
        )
    for name, places_text in moved.items():
        places_text.sort()
        accepted = inputs.snapshots[name].snapshot.identity_accepted
        more = f" and {len(places_text) - 8} more" if len(places_text) > 8 else ""
        yield HealthFinding(
            node=name,
            code="parts_moved",
            verdict=Verdict.DEGRADED if accepted else Verdict.UNPROVEN,
            action="watch" if accepted else "configure",
            evidence=f"{'; '.join(places_text[:8])}{more}: swapped names, or parts that were moved",
        )


def _slurm_findings(inputs: _NightInputs, remark: str, *, asked_slurm: bool) -> list[HealthFinding]:
    """Return the findings on the Slurm states of nodes with a snapshot, or none if there is no Slurm.

    ``asked_slurm`` is whether Slurm answered. Otherwise, a remark means that it should have answered.
    """
    if not asked_slurm and not remark:
        return []
    findings: list[HealthFinding] = []
    for name, stored in inputs.snapshots.items():
        state = inputs.states[name]
        if state is None:
            findings.append(missing_state(name, remark or "its answer does not name the node"))
            continue
        findings += check_slurm_state(
            name,
            state.state,
            known=state.known,
            reason=state.reason,
            set_by=state.set_by,
            member=parse_node_expectation(name, stored.expected).slurm,
        )
    return findings


def _mark_fleetwide(
    findings: Sequence[HealthFinding], nodes: int, share: float
) -> tuple[dict[str, list[HealthFinding]], tuple[str, ...]]:
    """Return the findings by node, and remarks. Codes on more than ``share`` of the nodes are fleet-wide."""
    settled, wide = mark_fleetwide(findings, nodes, share=share)
    by_node: dict[str, list[HealthFinding]] = {}
    for finding in settled:
        by_node.setdefault(finding.node, []).append(finding)
    return by_node, wide


def _nodes_of_signs(snapshots: Mapping[str, StoredSnapshot]) -> dict[str, list[str]]:
    """Return the nodes by each sign of a machine (:func:`_machine_signs`)."""
    homes: dict[str, list[str]] = {}
    for name, stored in snapshots.items():
        for sign in _machine_signs(stored):
            homes.setdefault(sign, []).append(name)
    return homes


def _machine_signs(stored: StoredSnapshot) -> set[str]:
    """Return the signs of a machine: its GPUs' UUIDs, and its serial number together with its boot ID.

    Two nodes with a common sign are one machine.
    """
    snapshot = stored.snapshot
    # Trays of a chassis may share their serial number, but not their boot ID.
    boot = {f"{snapshot.serial} {snapshot.boot_id}"} if snapshot.serial and snapshot.boot_id else set()
    return {gpu.uuid for gpu in snapshot.gpus} | boot


def _is_idle(state: SlurmState | None) -> bool:
    """Return whether it is certain that no job runs on the node.

    If Slurm does not answer, a job may run there and use GPU memory.
    """
    return state is not None and state.known and not state.jobs


def _last_night(inputs: _NightInputs) -> dict[str, StoredSnapshot | None]:
    """Return each node's snapshot of the newest earlier night, or None if it has none there."""
    return {
        name: night_store.read_snapshot(inputs.past[0], name) if inputs.past else None
        for name in inputs.snapshots
    }


def _lost_snapshots(
    inputs: _NightInputs, newest: Mapping[str, StoredSnapshot | None]
) -> Iterator[HealthFinding]:
    """Yield a finding for each node whose snapshot of the newest earlier night is lost.

    An older snapshot is then used for comparison, but it lacks the faults that were found in that night.
    """
    if not inputs.past:
        return
    last_night = inputs.past[0]
    seen_nodes = night_store.nodes_seen(last_night)
    for name, stored in newest.items():
        if stored is None and (name in seen_nodes or night_store.snapshot_path(last_night, name).exists()):
            yield _lost_snapshot_finding(name, last_night)


def _lost_snapshot_finding(name: str, night: Path) -> HealthFinding:
    """Return the finding on a node whose previous snapshot cannot be read."""
    return HealthFinding(
        node=name,
        code="snapshot_lost",
        verdict=Verdict.UNPROVEN,
        action="watch",
        confidence="hint",
        evidence=f"its snapshot of {night.name} is damaged or gone, so the faults of that night and the "
        "growth of counters since then are not known; the next night is compared with tonight",
    )


def _unknown_sku_finding(name: str) -> HealthFinding:
    """Return the finding on a node without a SKU in the inventory."""
    return HealthFinding(
        node=name,
        code="sku_unknown",
        verdict=Verdict.UNPROVEN,
        action="configure",
        evidence="the inventory has no SKU of it: put it into a group sku_NAME that sets bench_sku",
    )


def _same_machine_finding(name: str, others: Sequence[str]) -> HealthFinding:
    """Return the finding on a node that is the same machine as the others."""
    return HealthFinding(
        node=name,
        code="node_twice",
        verdict=Verdict.UNPROVEN,
        action="configure",
        evidence=f"its GPUs, or its serial number and boot, are those of {', '.join(others[:5])}: the names "
        "lead to one machine, and the other machine is not reached; check ansible_host and the name server. "
        "If they are two machines and one reports wrong values, accept the other one: "
        "-l OTHER -e validate_accept_identity=true",
    )


def _arrived_gpus(snapshots: Mapping[str, StoredSnapshot], past: Sequence[Path]) -> list[HealthFinding]:
    """Return findings on GPUs that are new in their node and failed in another node in an earlier night."""
    arrived = _new_gpus(snapshots, past)
    findings: dict[str, HealthFinding] = {}
    # Without new GPUs, no earlier night must be read.
    for folder in past if arrived else ():
        try:
            night = night_store.read_night(folder)
        except ResultsError:
            continue
        for node in night.nodes:
            for failure in _failures_elsewhere(night, node, arrived):
                # Nights come newest first, so the latest failure is named.
                findings.setdefault(failure.name, failure)
    return list(findings.values())


def _new_gpus(
    snapshots: Mapping[str, StoredSnapshot], past: Sequence[Path]
) -> dict[str, tuple[str, GpuSnapshot]]:
    """Return the GPUs that the last snapshot of their node does not have, as node and GPU by UUID."""
    arrived: dict[str, tuple[str, GpuSnapshot]] = {}
    for name, stored in snapshots.items():
        previous = night_store.last_snapshot(past, name)
        known_uuids = {gpu.uuid for gpu in previous.snapshot.gpus} if previous else set()
        arrived |= {gpu.uuid: (name, gpu) for gpu in stored.snapshot.gpus if gpu.uuid not in known_uuids}
    return arrived


def _failures_elsewhere(
    night: NightRecord, node: NodeNight, arrived: Mapping[str, tuple[str, GpuSnapshot]]
) -> Iterator[HealthFinding]:
    """Yield a finding for each failure of a node in an earlier night whose GPU is in another node now.

    ``arrived`` has the new GPUs of nodes, as :func:`_new_gpus` returns them.
    """
    when = f"{night.ended:%Y-%m-%d}"
    for finding in node.findings:
        if finding.code not in node.codes() or finding.name not in arrived:
            continue
        name, gpu = arrived[finding.name]
        if name != node.node:
            yield failed_elsewhere_finding(name, gpu, finding.code, when, node.node, finding.evidence)


def _node_night(
    name: str,
    why: str,
    stored: StoredSnapshot | None,
    findings: Sequence[HealthFinding],
    measured: NightNumbers,
    state: SlurmState | None,
    read_again: tuple[str, ...],
) -> NodeNight:
    """Return the record of a node in this night, before the decision about its drain.

    A node without a snapshot is unproven. ``why`` is the reason why it has none.
    """
    if stored is None:
        # ansible-core 2.19 begins every failure with this text. Operators need only the text after it.
        text = sanitize(why, 300).removeprefix("Task failed: ") or "the playbook took none"
        return NodeNight(
            node=name, verdict=Verdict.UNPROVEN, unreached=f"no snapshot of it: {text}", slurm=state
        )
    verdicts = [finding.verdict for finding in findings]
    if name in measured.verdicts:
        verdicts.append(measured.verdicts[name])
    return NodeNight(
        node=name,
        sku=stored.snapshot.sku,
        rack=stored.rack,
        hardware_key=stored.snapshot.hardware_key,
        verdict=worst(verdicts) if verdicts else Verdict.PASS,
        findings=tuple(findings),
        reasons=measured.reasons.get(name, ()),
        measured=name in measured.nodes,
        read_again=read_again,
        asked_as_root=stored.snapshot.asked_as_root,
        slurm=state,
    )
