"""What validate.yml calls, one function per task: begin, look at a node, judge, close.

The Ansible plugins check arguments, call these, and turn :class:`ValidateError` into a failed task. A night's
folder is a run folder, ``results/NIGHT_ID/``: the night's own measurements enter the history like any run's.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import Field

from rackproof import __version__
from rackproof.analysis.anomaly import Policy, Reason
from rackproof.core.errors import RackproofError
from rackproof.core.judging import SkuReference, SkuReferenceError, sku_references
from rackproof.core.records import Direction, Judgement, Measurement, Record, Run, Verdict, worst
from rackproof.core.text import moment, sanitize
from rackproof.jobs.validate.fleet import drain_policy
from rackproof.jobs.validate.fleet.drain_policy import ActingPolicy
from rackproof.jobs.validate.fleet.probe_scheduler import said, unmeasured, unproven_pairs
from rackproof.nodes.facts import node_from_facts
from rackproof.nodes.health_checks import (
    Expectation,
    HealthFinding,
    Limits,
    check_node,
    majority_versions,
    mark_fleetwide,
)
from rackproof.nodes.snapshot import GpuSnapshot, build_snapshot
from rackproof.store import host_claims, night_store
from rackproof.store.history.client import History
from rackproof.store.night_store import (
    NightContext,
    NightReason,
    NightRecord,
    NodeNight,
    SlurmState,
    StoredSnapshot,
)
from rackproof.store.probe_results import BENCHMARK as PROBES
from rackproof.store.probe_results import ProbeNight, read_probes
from rackproof.store.run_folder import ResultsError, new_run_id, stamp_of, write_run

DRIFT_NIGHTS = 15
"""Nights that are read: tonight and the fourteen that drift looks back."""
ELSEWHERE_DAYS = 60
_TOLD = 12


class ValidateError(RackproofError):
    """Something an operator has to mend; the message says what and how."""


class Judged(Record):
    """What a night asks for. ``drain`` holds node and reason."""

    night_id: str
    drain: tuple[dict[str, str], ...] = ()
    back: tuple[str, ...] = ()
    message: tuple[str, ...] = ()


class Closed(Record):
    """The end of a night. ``history`` is a remark, empty when all is well."""

    verdict: Verdict
    gates: bool
    message: tuple[str, ...]
    page: str = ""
    history: str = ""


def begin(results: Path, nodes: Sequence[str], *, owner_pid: int | None) -> NightContext:
    """Begin a night: claim the nodes against a second one, make its folder.

    Args:
        results: The results folder.
        nodes: The nodes asked for.
        owner_pid: Process that the claim lasts as long as; None is a dry run, which keeps nothing.

    Raises:
        ValidateError: Another night looks at one of the nodes, or the folder cannot be written.
    """
    try:
        for name in nodes:
            night_store.snapshot_path(results, name)
        night_id = _next_id(results)
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    if owner_pid is None:
        draft = tempfile.mkdtemp(prefix="rackproof-night-")
        return NightContext(night_id=night_id, folder=draft, results=str(results))
    folder = results / night_id
    try:
        host_claims.claim_hosts(results / ".nights", nodes, owner_pid, "validated")
        (folder / night_store.SNAPSHOTS_FOLDER).mkdir(parents=True)
    except (ResultsError, host_claims.HostClaimedError) as error:
        raise ValidateError(str(error)) from error
    except OSError as error:
        raise ValidateError(
            f"cannot make {folder}: {error.strerror}; free space there, or change its owner"
        ) from error
    return NightContext(night_id=night_id, folder=str(folder), results=str(results))


def _next_id(results: Path) -> str:
    """Return an id after all earlier nights', though the clock was put back: ids are their order."""
    now, newest = datetime.now(UTC), next(iter(night_store.nights(results)), None)
    latest = stamp_of(newest.name) if newest else None
    return new_run_id(night_store.BENCHMARK, now=max(now, latest + timedelta(seconds=1)) if latest else now)


def last_moment(begun: NightContext, node: str) -> float:
    """Return when a node was last looked at, in seconds since 1970 by its own clock; 0 for never.

    A clock that was ahead then and is right now must not hide what the kernel said in between.
    """
    kept = night_store.last_snapshot(night_store.nights(Path(begun.results), before=begun.night_id), node)
    return (
        max(0.0, (kept.snapshot.epoch or 0.0) - max(0.0, kept.snapshot.clock_offset_s or 0.0))
        if kept
        else 0.0
    )


def store_snapshot(
    begun: NightContext,
    node: str,
    gathered: Mapping[str, Any],
    *,
    asked: float,
    answered: float,
    sku: str,
    rack: str = "",
    expected: Mapping[str, Any] | None = None,
    limits: Mapping[str, float] | None = None,
    references: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Store a node's snapshot; return in a few words what answered.

    Args:
        begun: The night.
        node: Name in the inventory.
        gathered: What ``rackproof_facts`` gathered, subset ``health``.
        asked: This machine's clock when the node was asked.
        answered: This machine's clock when the answer was here.
        sku: Model as the inventory expects it.
        rack: The rack.
        expected: As :class:`Expectation`, from the inventory.
        limits: As :class:`Limits`, those that differ.
        references: Baselines of the SKU.

    Raises:
        ValidateError: The inventory says something unusable, or the snapshot cannot be stored.
    """
    expectation(node, expected or {})
    bounds(node, limits or {})
    try:
        sku_references(sku, references)
    except SkuReferenceError as error:
        raise ValidateError(str(error)) from error
    previous = night_store.last_snapshot(night_store.nights(Path(begun.results), before=begun.night_id), node)
    health, about = dict(gathered.get("health") or {}), dict(gathered.get("node") or {})
    offset = clock_offset(asked, answered, health.get("begin"), health.get("epoch"))
    if offset is not None:
        about["clock"] = {**about.get("clock", {}), "asked_at": asked, "epoch": asked + offset}
    try:
        identity = node_from_facts(node, gathered.get("facts") or {}, sku)
        seen = build_snapshot(
            node,
            {**gathered, "node": about},
            sku=sku,
            previous=previous.snapshot if previous else None,
            about=identity,
        )
        kept = StoredSnapshot(
            snapshot=seen,
            about=identity,
            rack=rack,
            expected=dict(expected or {}),
            limits=dict(limits or {}),
            references=tuple(dict(one) for one in references),
        )
        night_store.write_snapshot(Path(begun.folder), node, kept)
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    return f"{len(seen.gpus)} GPUs, {len(seen.ports)} ports, {len(seen.xids)} XIDs"


def clock_offset(asked: float, answered: float, begin_: object, end: object) -> float | None:
    """Return how far a node's clock is off for certain, in seconds: 0 while its times fit between ours.

    How long a busy controller took to ask is nobody's clock.
    """
    if not isinstance(begin_, int | float) or not isinstance(end, int | float):
        return None
    return begin_ - asked if begin_ < asked else max(0.0, end - answered)


def expectation(node: str, values: Mapping[str, Any]) -> Expectation:
    """Return what a node has to have.

    Raises:
        ValidateError: An unknown key, or a value of another kind.
    """
    known = {one.name for one in fields(Expectation)}
    if unknown := sorted(set(values) - known):
        raise ValidateError(
            f"validate_expect of {node}: unknown {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    try:
        made: dict[str, Any] = {
            name: tuple(map(str, value))
            if name == "mounts"
            else {str(what): str(version) for what, version in value.items()}
            if name == "versions"
            else float(value)
            if name in ("port_gbps", "power_limit_w")
            else int(value)
            for name, value in values.items()
        }
        return Expectation(**made)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValidateError(f"validate_expect of {node}: {error}; docs/using/validate.md shows it") from error


def bounds(node: str, values: Mapping[str, float]) -> Limits:
    """Return the bounds that hold for a node.

    Raises:
        ValidateError: An unknown key, or no number.
    """
    known = {one.name for one in fields(Limits)}
    for name, value in values.items():
        if name not in known or isinstance(value, bool) or not isinstance(value, int | float):
            raise ValidateError(
                f"validate_limits of {node}: {name}: {value!r}; numbers for {', '.join(sorted(known))}"
            )
    return Limits(**values)  # type: ignore[arg-type]  # names and numbers were checked above


def references_of(looks: Mapping[str, StoredSnapshot]) -> dict[str, list[SkuReference]]:
    """Return the baselines of each SKU, as the inventory gave them when its nodes were looked at.

    Raises:
        ValidateError: One is none.
    """
    try:
        return {kept.snapshot.sku: kept.sku_references() for kept in looks.values()}
    except SkuReferenceError as error:
        raise ValidateError(str(error)) from error


def night_reason(why: Reason) -> NightReason:
    """Return why a number does not pass, as a night keeps it."""
    return NightReason(
        check=why.check,
        verdict=why.verdict,
        metric=sanitize(why.metric, 200),
        part=sanitize(why.part, 200),
        text=sanitize(why.text, 500),
        deviation=why.deviation if math.isfinite(why.deviation) else None,
        fleetwide=why.fleetwide,
    )


def judge(
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
) -> Judged:
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
        past = night_store.nights(results, before=begun.night_id)
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    before, damaged = night_store.earlier(past, asked)
    states = {name: _state(slurm, name) for name in asked}
    findings, wide = _health(looks, past, states, len(asked), share)
    dry = folder.parent != results
    probed = read_probes(folder)
    if probed is None and measuring is not None:
        probed = unmeasured(0.0, looks, measuring or "what was noted of it cannot be read")
    policy = Policy(require_references=require_references)
    once = _measured_once(past, probed, now)
    keys = {(PROBES, looks[name].about.hardware_key) for name in once if name in looks}
    measured = _measurements(results, looks, now, require_measurements, policy, dry, keys)
    measured = _with_probes(measured, probed, set(looks), require_references)
    remarks += [*damaged, *wide, *measured.remarks]
    strangers = {one.name: one for one in (*measured.elsewhere, *_arrived(looks, past))}
    for one in strangers.values():
        findings.setdefault(one.node, []).append(one)
    held = {name for name, state in states.items() if state is not None and state.drained_by == "ours"}
    anew = _anew(results, past, probed, {name: looks[name] for name in held if name in looks}, now)
    nodes = [
        _node(name, why, looks.get(name), findings.get(name, []), measured, states[name], anew.get(name, ()))
        for name, why in asked.items()
    ]
    decided, said = drain_policy.decide(
        nodes, before, drain_policy.partitions(members), begun.night_id, ActingPolicy(share=share)
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
    return Judged(
        night_id=night.night_id,
        drain=tuple(
            {"node": one.node, "reason": _slurm_reason(one, night.night_id, link)}
            for one in decided
            if one.plan == "drain"
        ),
        back=tuple(one.node for one in decided if one.plan == "return"),
        message=tuple(plan_lines(night)),
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


def _state(slurm: Mapping[str, Any] | None, name: str) -> SlurmState | None:
    if slurm is None or not isinstance(about := slurm.get(name), Mapping):
        return None
    return SlurmState(
        known=about.get("known") is True,
        state=sanitize(about.get("state_after") or "", 100),
        drained_by=sanitize(about.get("drained_by") or "none", 10),
        reason=sanitize(about.get("reason") or "", 300),
        jobs=tuple(sanitize(job, 40) for job in about.get("jobs") or ())[:50],
    )


def _health(
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
            found.append(_skuless(name))
        if others := sorted({one for gpu in kept.snapshot.gpus for one in homes[gpu.uuid]} - {name}):
            found.append(_doubled(name, others))
        found += check_node(
            kept.snapshot,
            previous=previous.snapshot if previous else None,
            expected=expectation(name, kept.expected),
            majority=most.get(kept.snapshot.sku),
            limits=bounds(name, kept.limits),
            idle=state is not None and state.known and not state.jobs,
        )
    settled, wide = mark_fleetwide(found, nodes, share=share)
    by_node: dict[str, list[HealthFinding]] = {}
    for one in settled:
        by_node.setdefault(one.node, []).append(one)
    return by_node, wide


def _skuless(name: str) -> HealthFinding:
    return HealthFinding(
        node=name,
        code="sku_unknown",
        verdict=Verdict.UNPROVEN,
        action="configure",
        evidence="the inventory does not say its SKU: put it into a group sku_NAME that sets bench_sku",
    )


def _doubled(name: str, others: Sequence[str]) -> HealthFinding:
    return HealthFinding(
        node=name,
        code="node_twice",
        verdict=Verdict.UNPROVEN,
        action="configure",
        evidence=f"the same GPUs answer as {', '.join(others[:5])}: the names lead to one machine, and of "
        "another nothing is known; look at ansible_host and at the name server",
    )


class _Measured(Record):
    """What the night's numbers say: by node its reasons, besides pairs, moved GPUs, and remarks."""

    nodes: tuple[str, ...] = ()
    reasons: dict[str, tuple[NightReason, ...]] = Field(default={})
    verdicts: dict[str, Verdict] = Field(default={})
    between: tuple[NightReason, ...] = ()
    elsewhere: tuple[HealthFinding, ...] = ()
    remarks: tuple[str, ...] = ()


def _measurements(
    results: Path,
    looks: Mapping[str, StoredSnapshot],
    now: datetime,
    required: bool,
    policy: Policy,
    dry: bool,
    once: Collection[tuple[str, str]],
) -> _Measured:
    """Judge what runs of the last 24 hours measured on these nodes."""
    from rackproof.analysis.anomaly import judge_night
    from rackproof.store.history.store import HistoryError

    remarks: list[str] = []
    moved: list[HealthFinding] = []
    accepted: Any = ()
    place = results / "history.sqlite"
    url = os.environ.get("RACKPROOF_DATABASE_URL", "").strip()
    try:
        if dry and not url and not place.exists():
            # A dry run makes no history where there is none yet.
            readings = _without_history(results, now)
        else:
            readings, accepted, moved = _from_history(results, place, looks, now, dry)
    except (HistoryError, ResultsError) as error:
        remarks.append(
            f"the history cannot be asked: {sanitize(error, 300)}; "
            "what was measured tonight is judged by floors only"
        )
        readings = _without_history(results, now)
    homes: dict[str, list[str]] = {}
    for name, kept in looks.items():
        homes.setdefault(kept.about.hardware_key, []).append(name)
    night = judge_night(
        readings,
        references_of(looks),
        asked=[kept.about for kept in looks.values()] if required else (),
        accepted=accepted,
        policy=policy,
        once=once,
    )
    owners = {readings.parts[one].key for one in set(readings.node[readings.night == 0].tolist()) if one >= 0}
    reasons: dict[str, tuple[NightReason, ...]] = {}
    verdicts: dict[str, Verdict] = {}
    between: list[NightReason] = []
    for one in night.nodes:
        told = tuple(map(night_reason, one.reasons))
        if one.kind == "node" and one.key in homes:
            for name in homes[one.key]:
                reasons[name], verdicts[name] = told, one.verdict
            if len(homes[one.key]) > 1 and one.verdict.gates:
                # Trays that share their only serial: one of them is bad, and nobody knows which.
                shared = tuple(why.model_copy(update={"verdict": Verdict.UNPROVEN}) for why in told)
                for name in homes[one.key]:
                    reasons[name], verdicts[name] = shared, Verdict.UNPROVEN
        elif one.kind != "node" and _named_nodes(one.name) <= set(looks):
            between += [why.model_copy(update={"part": sanitize(one.name, 200)}) for why in told]
    return _Measured(
        nodes=tuple(name for key, names in homes.items() if key in owners for name in names),
        reasons=reasons,
        verdicts=verdicts,
        between=tuple(between),
        elsewhere=tuple(moved),
        remarks=(*remarks, *night.notes),
    )


def _named_nodes(name: str) -> set[str]:
    """Return the nodes that the name of a link or group names; of a large group it is the first ones."""
    return {one for one in name.replace(">", "+").split("+") if not one.endswith(" more")}


def _anew(
    results: Path,
    past: Sequence[Path],
    probed: ProbeNight | None,
    looks: Mapping[str, StoredSnapshot],
    now: datetime,
) -> dict[str, tuple[str, ...]]:
    """Return what was measured of some nodes since the last night was judged.

    Its numbers are younger than 24 hours still where two nights are close, and passed then.
    """
    from rackproof.analysis.anomaly import named
    from rackproof.store.history.readings import readings_of

    if not looks:
        return {}
    since = (stamp_of(past[0].name) if past else None) or datetime.min.replace(tzinfo=UTC)
    with suppress(ResultsError):  # a night that is damaged was remarked on
        since = night_store.read_night(past[0]).ended if past else since
    runs = [one for one in _runs(results, now) if one.started is not None and one.started > since]
    readings = readings_of(runs, now + timedelta(seconds=1), nights=DRIFT_NIGHTS)
    found: dict[str, set[str]] = {}
    for node, number in set(zip(readings.node.tolist(), readings.quantity.tolist(), strict=True)):
        if node >= 0:
            found.setdefault(readings.parts[node].key, set()).add(named(readings.quantities[number]))
    programs = probed.sound if probed else {}
    return {
        name: tuple(sorted({*programs.get(name, ()), *found.get(kept.about.hardware_key, ())}))
        for name, kept in looks.items()
    }


def _measured_once(past: Sequence[Path], probed: ProbeNight | None, now: datetime) -> set[str]:
    """Return the nodes of which numbers of the last 24 hours are suspect and were measured once only."""
    found: set[str] = set()
    for folder in past:
        stamp = stamp_of(folder.name)
        # A night's numbers are younger than its id.
        if stamp is None or now - stamp > timedelta(days=2):
            break
        earlier_ = read_probes(folder)
        found |= set(earlier_.unconfirmed if earlier_ else ())
    if probed is not None:
        found = (found - set(probed.suspected)) | set(probed.unconfirmed)
    return found


def _with_probes(
    measured: _Measured, probed: ProbeNight | None, looked: set[str], require_references: bool
) -> _Measured:
    """Add what was wrong while the night measured: it can only make a verdict worse."""
    if probed is None:
        return measured
    reasons, verdicts = dict(measured.reasons), dict(measured.verdicts)
    unproven, remarks = unproven_pairs(probed, require_references)
    for name in looked & (set(probed.reasons) | set(unproven)):
        mine = (*probed.reasons.get(name, ()), *unproven.get(name, ()))
        if mine:
            reasons[name] = (*mine, *reasons.get(name, ()))
            verdicts[name] = worst(
                [*([verdicts[name]] if name in verdicts else []), *(one.verdict for one in mine)]
            )
    return measured.model_copy(
        update={
            "reasons": reasons,
            "verdicts": verdicts,
            "between": (*measured.between, *probed.between),
            "remarks": (*measured.remarks, *probed.remarks, *remarks),
        }
    )


def _from_history(
    results: Path, place: Path, looks: Mapping[str, StoredSnapshot], now: datetime, dry: bool
) -> tuple[Any, Any, list[HealthFinding]]:
    """Return readings of the nights, accepted references, and GPUs that failed elsewhere."""
    import numpy as np

    from rackproof.store.history.store import drain_spool, open_store

    if not dry:
        drain_spool(place, results / ".spool")
    with open_store(place) as store:
        readings = store.readings(now + timedelta(seconds=1), nights=DRIFT_NIGHTS)
        # What nights of health have kept was judged there, and has no floors.
        mine = np.array([one.benchmark != night_store.BENCHMARK for one in readings.quantities], dtype=bool)
        readings = readings.chosen(mine[readings.quantity]) if len(readings) else readings
        failures = store.failures_elsewhere(now - timedelta(days=ELSEWHERE_DAYS))
        return readings, store.accepted(readings), _moved(failures, looks)


def _without_history(results: Path, now: datetime) -> Any:
    """Return tonight's readings from the run folders, which outlive every database."""
    from rackproof.store.history.readings import readings_of

    return readings_of(_runs(results, now), now + timedelta(seconds=1))


def _runs(results: Path, now: datetime) -> list[Run]:
    """Return the runs of the last two days; a night's own numbers were judged there."""
    from rackproof.store.run_folder import read_run, run_folders

    runs = []
    for folder in run_folders(results):
        stamp = stamp_of(folder.name)
        if stamp is None or now - stamp > timedelta(days=2) or night_store.is_night(folder.name):
            continue
        try:
            runs.append(read_run(folder))
        except ResultsError:
            continue
    return runs


def _arrived(looks: Mapping[str, StoredSnapshot], past: Sequence[Path]) -> list[HealthFinding]:
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
                        found[one.name] = _elsewhere(name, gpu, one.code, when, node.node, one.evidence)
    return list(found.values())


def _elsewhere(name: str, gpu: GpuSnapshot, what: str, when: str, other: str, said: str) -> HealthFinding:
    return HealthFinding(
        node=name,
        code="gpu_failed_elsewhere",
        part="gpu",
        name=gpu.uuid,
        place=gpu.place,
        verdict=Verdict.DEGRADED,
        action="watch",
        confidence="hint",
        evidence=sanitize(f"failed {what} on {when} in another node, {other}: {said}", 400),
    )


def _moved(failures: Sequence[Any], looks: Mapping[str, StoredSnapshot]) -> list[HealthFinding]:
    """Return GPUs that failed in another chassis, each once, by its latest failure."""
    homes = {gpu.uuid: (name, gpu) for name, kept in looks.items() for gpu in kept.snapshot.gpus}
    latest: dict[str, HealthFinding] = {}
    for one in failures:
        if one.gpu in homes and one.gpu not in latest:
            name, gpu = homes[one.gpu]
            when = f"{one.moment:%Y-%m-%d}"
            latest[one.gpu] = _elsewhere(name, gpu, one.metric, when, one.then, one.reason)
    return list(latest.values())


def _node(
    name: str,
    why: str,
    kept: StoredSnapshot | None,
    findings: Sequence[HealthFinding],
    measured: _Measured,
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


def _slurm_reason(one: NodeNight, night_id: str, link: str) -> str:
    where = f"{link.rstrip('/')}/{night_id}/{page_of(one.node)}" if link else f"rackproof explain {one.node}"
    return f"{one.why}; {where}"


def page_of(node: str) -> str:
    """Return where the page of a node is, relative to its night's folder."""
    return f"nodes/{node}.html"


def plan_lines(night: NightRecord) -> list[str]:
    """Return what is planned, and whether it is allowed to happen."""
    lines = []
    for plan, allowed in (("drain", "drain" in night.acts), ("return", "return" in night.acts)):
        for one in night.nodes:
            if one.plan == plan:
                how = "" if allowed else f" (a dry run: allow it with -e validate_{plan}=true)"
                lines.append(f"{'' if allowed else 'would '}{plan} {one.node}: {one.why}{how}")
    lines += [f"{one.node}: {one.why}" for one in night.nodes if one.why and not one.plan]
    return lines


def close(
    begun: NightContext,
    *,
    did: Mapping[str, str],
    keep: bool = True,
) -> Closed:
    """Note what was done, write record, history and pages, and say what the night found.

    Args:
        begun: The night.
        did: Node to what was done, or why it could not be.
        keep: Whether anything is kept; a dry run ends without a trace.

    Raises:
        ValidateError: The night cannot be read or kept.
    """
    folder, results = Path(begun.folder), Path(begun.results)
    try:
        night = night_store.read_night(folder)
        night = night.model_copy(
            update={
                "closed": True,
                "nodes": tuple(
                    one.model_copy(update={"did": sanitize(did[one.node], 300)}) if one.node in did else one
                    for one in night.nodes
                ),
            }
        )
        past = night_store.nights(results, before=night.night_id)
        before = night_store.read_night(past[0]) if past else None
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    changes = changed(night, before)
    probed = said(read_probes(folder))
    page = history = ""
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        from rackproof.jobs.validate.pages import write_night_pages

        looks = {
            one.node: kept for one in night.nodes if (kept := night_store.read_snapshot(folder, one.node))
        }
        try:
            night_store.write_night(folder, night)
            write_run(night_run(night, looks), folder)
            history = History(results).keep(folder)
            page = str(write_night_pages(results, night, changes))
        except (ResultsError, OSError) as error:
            raise ValidateError(str(error)) from error
    return Closed(
        verdict=night.verdict,
        gates=night.verdict.gates,
        message=(*message(night, changes), *probed, *([f"Report: {page}"] if page else [])),
        page=page,
        history=history,
    )


def night_run(night: NightRecord, looks: Mapping[str, StoredSnapshot]) -> Run:
    """Return a night as a run, for the history: its numbers and findings, keyed by hardware."""
    measurements, judgements = [], []
    for kept in looks.values():
        for gpu in kept.snapshot.gpus:
            for name, value, unit, direction in (
                ("gpu_temperature", gpu.temperature_c, "°C", Direction.LOWER),
                ("gpu_temperature_margin", gpu.margin_c, "°C", Direction.HIGHER),
                ("gpu_power_limit", gpu.power_limit_w, "W", Direction.HIGHER),
                ("ecc_corrected", gpu.dram_correctable, "errors", Direction.LOWER),
                ("nvlink_errors", gpu.link_errors, "errors", Direction.LOWER),
                ("pcie_replays", gpu.pcie_replays, "errors", Direction.LOWER),
            ):
                if value is not None:
                    measurements.append(
                        Measurement(
                            name=name,
                            value=float(value),
                            unit=unit,
                            direction=direction,
                            labels={"gpu": gpu.uuid},
                        )
                    )
    for node in night.nodes:
        judgements += [
            Judgement(
                metric=one.code,
                labels={"gpu": one.name} if one.part == "gpu" else {"node": one.node},
                verdict=one.verdict,
                reason=sanitize(one.evidence, 500),
            )
            for one in node.findings
        ]
    return Run(
        run_id=night.night_id,
        benchmark=night_store.BENCHMARK,
        description="a night's health checks",
        started=night.started,
        ended=night.ended,
        nodes=tuple(kept.about for kept in looks.values()),
        asked_nodes=tuple(one.node for one in night.nodes),
        measurements=tuple(measurements),
        judgements=tuple(judgements),
        verdict=night.verdict,
        reasons=tuple(
            f"{one.node}: {text}" for one in night.nodes if one.verdict.gates for text in one.says()[:1]
        )[:50],
        rackproof_version=__version__,
    )


def changed(night: NightRecord, before: NightRecord | None) -> tuple[str, ...]:
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
            f"{night_store.where(found)}{found.evidence}"
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


def message(night: NightRecord, changes: Sequence[str]) -> list[str]:
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
    lines += plan_lines(night)
    lines += [f"{one.node}: {one.did}" for one in night.nodes if one.did]
    return lines


def slurm_answer(
    queried: Mapping[str, Any], listed: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, str]:
    """Return how nodes stand in Slurm, None where it was not or could not be asked, and a remark.

    Args:
        queried: Result of ``rackproof_slurm_node``; empty where there is no controller.
        listed: Result of listing partitions.
    """
    if not queried or queried.get("skipped"):
        return None, ""
    for answer in (queried, listed):
        if answer.get("failed") or answer.get("unreachable") or answer.get("rc"):
            said = sanitize(answer.get("msg") or answer.get("stderr") or "no answer", 300)
            return None, f"Slurm could not be asked, nothing is drained or returned: {said}"
    nodes = queried.get("nodes")
    return (nodes, "") if isinstance(nodes, Mapping) else (None, "Slurm's answer names no nodes")


def measuring_answer(probed: Mapping[str, Any]) -> str | None:
    """Return None where the night was not asked to measure, else why that failed (empty where it did not).

    Args:
        probed: Result of ``rackproof_validate_probe``; empty or skipped where nothing was asked.
    """
    if not probed or probed.get("skipped"):
        return None
    if probed.get("failed") or probed.get("unreachable"):
        return sanitize(probed.get("msg") or "no answer", 300)
    return ""


def done(
    drained: Mapping[str, Any], returned: Mapping[str, Any], give_back: Sequence[str] = ()
) -> dict[str, str]:
    """Return what became of drains (a loop's result) and returns, by node.

    Args:
        drained: Result of the loop that drained nodes.
        returned: Result of the task that returned nodes.
        give_back: The nodes that were to be returned: one of which nothing is said was not.
    """
    did = {}
    for one in drained.get("results") or ():
        node = (one.get("item") or {}).get("node", "")
        about = (one.get("nodes") or {}).get(node)
        if one.get("skipped") or not node:
            continue
        if about and about.get("drained_by") == "ours":
            jobs = about.get("jobs") or ()
            did[node] = "drained" + (
                f"; jobs run on until they end: {', '.join(map(str, jobs))}" if jobs else ""
            )
        elif about:
            did[node] = f"not drained by us: {about.get('state_after')} ({about.get('reason')})"
        else:
            did[node] = f"could not be drained: {one.get('msg', 'no answer')}"
    if returned.get("skipped"):
        return did
    for node, about in (returned.get("nodes") or {}).items():
        state = about.get("state_after")
        did[node] = (
            "returned to service" if about.get("in_service") else f"Slurm does not take it back: {state}"
        )
    for node in give_back:
        did.setdefault(node, f"could not be returned: {returned.get('msg') or 'no answer'}")
    return did
