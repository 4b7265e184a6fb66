"""Run the tasks of validate.yml.

The actions ``rackproof_validate_*`` call :func:`begin_night`, then :func:`store_snapshot` for each node, and
at the end :func:`close_night`. Before the end, ``probes`` measures the nodes and ``judge`` judges them. The
actions turn an error of these functions into a failed task. Other functions prepare the query of a node
(:func:`units_to_ask`, :func:`settling`), or read the results of earlier tasks, such as the states of the
nodes in Slurm. A night's folder is a run folder, ``results/NIGHT_ID/``, and the history stores the night's
numbers like the numbers of any run.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rackproof import __version__
from rackproof.core.advised_commands import add_results
from rackproof.core.judging import SkuReferenceError, sku_references
from rackproof.core.records import Direction, Judgement, LogFile, Measurement, Record, Run, Verdict
from rackproof.core.text import amount, duration, sanitize
from rackproof.core.untrusted import as_float, mapping_at
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.fleet.probe_scheduler import describe_probes
from rackproof.jobs.validate.inventory import parse_limits, parse_node_expectation
from rackproof.jobs.validate.messages import describe_changes, describe_findings, summarize_night
from rackproof.logs.declared_lines import DeclaredLines, DeclaredLinesError, read_declared
from rackproof.nodes.answer_seal import answer_is_whole
from rackproof.nodes.clock import clock_offset
from rackproof.nodes.facts import node_from_facts
from rackproof.nodes.health_subjects import service_units
from rackproof.nodes.slurm_states import drain_prefix, is_reason_of_slurm
from rackproof.nodes.snapshot import build_snapshot, faults_to_repair, next_log_since
from rackproof.nodes.snapshot_records import NodeSnapshot
from rackproof.store import host_claims, night_store
from rackproof.store.history.client import History
from rackproof.store.night_store import (
    NightContext,
    NightRecord,
    StoredSnapshot,
)
from rackproof.store.probe_results import read_probes
from rackproof.store.run_folder import ResultsError, new_run_id, stamp_of, write_run


class NightSummary(Record):
    """The result of a night, for the last task of the playbook.

    Attributes:
        verdict: The verdict of the night.
        gates: Whether the verdict makes the playbook fail.
        message: The lines that the playbook prints.
        verdicts: The verdict of each node.
        page: The path of the night's report. Empty in a dry run.
        history: The reason why the history did not store the night, or empty. Empty in a dry run.
        findings: The lines of :func:`describe_findings`, only in a dry run. Otherwise, the night's record has
            the findings.
    """

    verdict: Verdict
    gates: bool
    message: tuple[str, ...]
    verdicts: dict[str, Verdict]
    page: str = ""
    history: str = ""
    findings: tuple[str, ...] = ()


def begin_night(
    results: Path, nodes: Sequence[str], *, owner_pid: int | None, inventory: Sequence[str] = ()
) -> NightContext:
    """Begin a night. Claim its nodes, so that no other night uses them, and create its folder.

    Args:
        results: The results folder.
        nodes: The requested nodes.
        owner_pid: The process whose end releases the claim. None is a dry run, which claims nothing and has a
            temporary folder.
        inventory: The inventories that the playbook read, which advised commands name.

    Raises:
        ValidateError: Another night claimed one of the nodes, a node's name cannot be the name of a file, the
            results folder cannot be listed, or the night's folder cannot be written.
    """
    try:
        # Check the names before nodes are claimed, so that an invalid file name does not end the night
        # later.
        for name in nodes:
            night_store.snapshot_path(results, name)
        night_id = _next_id(results)
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    if owner_pid is None:
        folder = Path(tempfile.mkdtemp(prefix="rackproof-night-"))
        return _context(night_id, folder, results, inventory)
    folder = results / night_id
    try:
        host_claims.claim_hosts(results / night_store.NIGHT_CLAIMS, nodes, owner_pid, "validated")
        (folder / night_store.SNAPSHOTS_FOLDER).mkdir(parents=True)
    except (ResultsError, host_claims.HostClaimedError) as error:
        raise ValidateError(str(error)) from error
    except OSError as error:
        raise ValidateError(
            f"cannot make {folder}: {error.strerror}; free space there, or change its owner"
        ) from error
    return _context(night_id, folder, results, inventory)


def _context(night_id: str, folder: Path, results: Path, inventory: Sequence[str]) -> NightContext:
    """Return the context of a night."""
    return NightContext(
        night_id=night_id, folder=str(folder), results=str(results), inventory=tuple(inventory)
    )


def _next_id(results: Path) -> str:
    """Return an id that is later than the ids of all finished nights, even if the clock was set back."""
    now, newest = datetime.now(UTC), next(iter(night_store.night_folders(results)), None)
    latest = stamp_of(newest.name) if newest else None
    return new_run_id(night_store.BENCHMARK, now=max(now, latest + timedelta(seconds=1)) if latest else now)


def kernel_log_since(begun: NightContext, node: str) -> float:
    """Return the time from which a night reads a node's kernel log, or 0 for the whole boot.

    The time is in seconds since 1970, by the node's clock. It is 0 if no earlier night has a snapshot of the
    node.

    Raises:
        ResultsError: The results folder cannot be listed.
    """
    stored = night_store.last_snapshot(
        night_store.night_folders(Path(begun.results), before=begun.night_id), node
    )
    return next_log_since(stored.snapshot if stored else None)


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
    accept_identity: bool = False,
    harmless_kernel_lines: object = (),
) -> str:
    """Store a node's snapshot, and return a short summary: ``8 GPUs, 2 ports, 0 XIDs``.

    Args:
        begun: The context of the night.
        node: The node's name in the inventory.
        gathered: The result of ``rackproof_facts``, subset ``health``.
        asked: The time on this machine's clock when the node was queried, in seconds since 1970.
        answered: The time on this machine's clock when the answer arrived, in seconds since 1970.
        sku: The model that the inventory expects.
        rack: The rack of the node.
        expected: The expectations from the inventory, in the form of :class:`Expectation`.
        limits: The limits that differ from the defaults, in the form of :class:`Limits`.
        references: The references of the SKU.
        accept_identity: Whether the node's machine and GPUs become its identity.
        harmless_kernel_lines: The lines that are declared harmless, in the form of
            :mod:`rackproof.logs.declared_lines`.

    Raises:
        ValidateError: A value of the inventory is unusable, or the snapshot cannot be stored.
        ResultsError: The results folder cannot be listed.
    """
    declared = _check_inventory(node, sku, expected or {}, limits or {}, references, harmless_kernel_lines)
    folders = night_store.night_folders(Path(begun.results), before=begun.night_id)
    last = night_store.last_snapshot(folders, node)
    previous = last.snapshot if last else None
    identity = node_from_facts(node, mapping_at(gathered, "facts"), sku)
    snapshot = build_snapshot(
        node,
        _with_clock(gathered, asked, answered),
        sku=sku,
        previous=previous,
        about=identity,
        whole=_is_whole(gathered),
        accept_identity=accept_identity,
        was_repaired=previous is not None and _was_repaired(previous, folders),
        declared=declared,
    )
    stored = StoredSnapshot(
        snapshot=snapshot,
        about=identity,
        rack=rack,
        expected=dict(expected or {}),
        limits=dict(limits or {}),
        references=tuple(dict(reference) for reference in references),
    )
    try:
        night_store.write_snapshot(Path(begun.folder), node, stored)
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    return ", ".join(
        amount(len(parts), noun)
        for parts, noun in ((snapshot.gpus, "GPU"), (snapshot.ports, "port"), (snapshot.xids, "XID"))
    )


def _check_inventory(
    node: str,
    sku: str,
    expected: Mapping[str, Any],
    limits: Mapping[str, float],
    references: Sequence[Mapping[str, Any]],
    harmless_kernel_lines: object,
) -> DeclaredLines:
    """Check a node's values of the inventory, and return the kernel lines that are declared harmless.

    Raises:
        ValidateError: A value is unusable.
    """
    parse_node_expectation(node, expected)
    parse_limits(node, limits)
    try:
        sku_references(sku, references)
        return read_declared(
            harmless_kernel_lines or (), datetime.now(UTC).date(), f"validate_harmless_kernel_lines of {node}"
        )
    except (SkuReferenceError, DeclaredLinesError) as error:
        raise ValidateError(str(error)) from error


def _with_clock(gathered: Mapping[str, Any], asked: float, answered: float) -> dict[str, Any]:
    """Return a node's answer with the offset of its clock. Its own answer about both clocks is never used."""
    health, node_facts = mapping_at(gathered, "health"), dict(mapping_at(gathered, "node"))
    begin, waited_s = as_float(health.get("begin")), as_float(mapping_at(health, "settled").get("waited_s"))
    # A long wait before the answer would hide a clock that is behind by less than the wait.
    waited_s = min(max(waited_s or 0.0, 0.0), answered - asked)
    begin = begin if begin is None else begin - waited_s
    offset = clock_offset(asked, answered, begin, health.get("epoch"))
    node_facts["clock"] = {} if offset is None else {"asked_at": asked, "epoch": asked + offset}
    return {**gathered, "node": node_facts}


def _is_whole(gathered: Mapping[str, Any]) -> bool:
    """Return whether a node's answer has its seal and all of its parts."""
    parts = (gathered.get(part) for part in ("facts", "node", "health"))
    return answer_is_whole(gathered) and all(isinstance(part, Mapping) for part in parts)


def _was_repaired(previous: NodeSnapshot, folders: Sequence[Path]) -> bool:
    """Return whether a person had a node out of service for its faults that no boot heals.

    The last night that includes the node shows its drain. After a drain by a night, only a person resumes a
    node with such a fault. A drain by a person is for other work unless its reason names the codes of all
    these faults. A drain by Slurm or by another job shows no repair.
    """
    faults = faults_to_repair(previous)
    # Reading a night's record takes long in a large fleet, and few nodes need it.
    node_night = night_store.last_known(folders, [previous.node])[0].get(previous.node) if faults else None
    slurm = node_night.slurm if node_night else None
    if slurm is None or slurm.drained_by == "none":
        return False
    is_by_person = not drain_prefix(slurm.reason) and not is_reason_of_slurm(slurm.reason, slurm.set_by)
    return slurm.drained_by == "ours" or (is_by_person and faults <= {*re.findall(r"\w+", slurm.reason)})


WATCHED_UNITS = (
    *("slurmd.service", "munge.service", "docker.service"),
    *("nvidia-persistenced.service", "nvidia-fabricmanager.service"),
)
"""Systemd units that every night queries on every node. A unit of them that is enabled must run, even if the
inventory does not list it."""


def units_to_ask(node: str, expected: Mapping[str, Any]) -> list[str]:
    """Return the systemd units that are queried on a node: :data:`WATCHED_UNITS` and the expected services.

    Raises:
        ValidateError: A value of ``validate_expect`` is unusable.
    """
    services = parse_node_expectation(node, expected).services
    return list(
        dict.fromkeys([*WATCHED_UNITS, *(unit for service in services for unit in service_units(service))])
    )


def settling(node: str, expected: Mapping[str, Any], *, seconds: float, after: str) -> dict[str, Any]:
    """Return what a node waits for before its snapshot, as the option ``settle`` of rackproof_facts.

    Raises:
        ValidateError: A value of ``validate_expect`` is unusable.
    """
    wanted = parse_node_expectation(node, expected)
    return {
        "seconds": seconds,
        "after": after,
        "fabric": wanted.fabric,
        "ports": wanted.ports,
        "port_layer": wanted.port_layer,
        "port_devices": list(wanted.port_devices),
        "other_ports": wanted.other_ports,
    }


def settling_summary(answer: Mapping[str, Any]) -> str:
    """Return for how long and for what a node waited before its snapshot, or "" if it did not wait."""
    settled = mapping_at(mapping_at(answer, "health"), "settled")
    waited_s = as_float(settled.get("waited_s")) or 0.0
    unready, awaited = settled.get("unready"), settled.get("awaited")
    if not awaited or not isinstance(unready, list) or not isinstance(awaited, list):
        return ""
    parts = ", ".join(sanitize(part, 100) for part in (unready or awaited)[:5])
    end = "still not ready" if unready else "ready then"
    return f"; waited {duration(waited_s)} for its fabric and ports ({parts}: {end})"


def close_night(
    begun: NightContext,
    *,
    did: Mapping[str, str],
    slurm: Mapping[str, Any] | None = None,
    keep: bool = True,
) -> NightSummary:
    """Add what was done to the night's record, store the night, write its pages, and return its summary.

    The night is stored as ``night.json`` and ``run.json``, and in the history. A dry run stores nothing.

    Args:
        begun: The context of the night.
        did: The completed action of each node, or the reason why it failed.
        slurm: The states after the actions (:func:`collect_states`). Other nodes keep their earlier state.
        keep: Whether the night is stored. False is a dry run, whose folder is removed.

    Raises:
        ValidateError: The night cannot be read or stored, or the results folder cannot be listed.
    """
    folder, results = Path(begun.folder), Path(begun.results)
    try:
        night = night_store.read_night(folder)
        night = night.model_copy(
            update={
                "closed": True,
                "nodes": tuple(
                    node_night.model_copy(
                        update={
                            "did": sanitize(did.get(node_night.node, node_night.did), 300),
                            "slurm": night_store.slurm_state(slurm, node_night.node) or node_night.slurm,
                        }
                    )
                    for node_night in night.nodes
                ),
            }
        )
        changes = changes_since_last_night(results, night)
    except ResultsError as error:
        raise ValidateError(str(error)) from error
    probed = describe_probes(read_probes(folder))
    page = history = ""
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        from rackproof.jobs.validate.pages import write_night_pages

        snapshots = {
            node_night.node: stored
            for node_night in night.nodes
            if (stored := night_store.read_snapshot(folder, node_night.node))
        }
        try:
            night_store.write_night(folder, night)
            files = night_store.night_files(folder, snapshots)
            write_run(build_night_run(night, snapshots, files), folder)
            history = History(results).keep(folder)
            page = str(write_night_pages(results, night, changes))
        except (ResultsError, OSError) as error:
            raise ValidateError(str(error)) from error
    summary = (add_results(line, results) for line in summarize_night(night, changes))
    return NightSummary(
        verdict=night.verdict,
        gates=night.verdict.gates,
        message=(*summary, *probed, *([f"Report: {page}"] if page else [])),
        verdicts={node_night.node: node_night.verdict for node_night in night.nodes},
        page=page,
        history=history,
        findings=() if keep else describe_findings(night),
    )


def changes_since_last_night(results: Path, night: NightRecord) -> tuple[str, ...]:
    """Return a line for each node that differs from its last night before this one.

    Raises:
        ResultsError: The results folder cannot be listed.
    """
    past = night_store.night_folders(results, before=night.night_id)
    before = _readable_night(past[0]) if past else None
    earlier = night_store.earlier_states(night, before, past[1:])
    return describe_changes(night, before, earlier, is_lost=bool(past) and before is None)


def _readable_night(folder: Path) -> NightRecord | None:
    """Return the record of an earlier night, or None if it cannot be read."""
    try:
        return night_store.read_night(folder)
    except ResultsError:
        # The night's remarks state the fault.
        return None


def build_night_run(
    night: NightRecord, snapshots: Mapping[str, StoredSnapshot], files: tuple[LogFile, ...] = ()
) -> Run:
    """Return a night as a run for the history, with the numbers of its GPUs and the findings of its nodes.

    Args:
        night: The record of the night.
        snapshots: The snapshots by node.
        files: The digests of the night's files.
    """
    measurements, judgements = [], []
    for stored in snapshots.values():
        for gpu in stored.snapshot.gpus:
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
                metric=finding.code,
                labels={"gpu": finding.name} if finding.part == "gpu" else {"node": finding.node},
                verdict=finding.verdict,
                reason=sanitize(finding.evidence, 500),
            )
            for finding in node.findings
        ]
    return Run(
        run_id=night.night_id,
        benchmark=night_store.BENCHMARK,
        description="a night's health checks",
        started=night.started,
        ended=night.ended,
        nodes=tuple(stored.about for stored in snapshots.values()),
        asked_nodes=tuple(node_night.node for node_night in night.nodes),
        measurements=tuple(measurements),
        judgements=tuple(judgements),
        logs=files,
        verdict=night.verdict,
        reasons=tuple(
            f"{node_night.node}: {text}"
            for node_night in night.nodes
            if node_night.verdict.gates
            for text in node_night.reason_texts()[:1]
        )[:50],
        rackproof_version=__version__,
    )


def read_slurm_answer(
    queried: Mapping[str, Any], listed: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, str]:
    """Return the nodes' states in Slurm, and the reason why there are none, or "".

    The states are None if Slurm was not queried, did not answer, or answered without nodes. If it was not
    queried, the reason is "", too.

    Args:
        queried: The result of ``rackproof_slurm_node``, which is empty without a controller.
        listed: The result of the task that lists the partitions with ``sinfo``.
    """
    if not queried or queried.get("skipped"):
        return None, ""
    for answer in (queried, listed):
        if answer.get("failed") or answer.get("unreachable") or answer.get("rc"):
            reason = sanitize(answer.get("msg") or answer.get("stderr") or "no answer", 300)
            return None, f"Slurm could not be queried, nothing is drained or resumed: {reason}"
    nodes = queried.get("nodes")
    return (nodes, "") if isinstance(nodes, Mapping) else (None, "Slurm's answer names no nodes")


def probing_failure(probed: Mapping[str, Any]) -> str | None:
    """Return why the requested measurements failed, "" if they succeeded, or None if none were requested.

    Args:
        probed: The result of ``rackproof_validate_probe``, empty or skipped if no measurement was requested.
    """
    if not probed or probed.get("skipped"):
        return None
    if probed.get("failed") or probed.get("unreachable"):
        return sanitize(probed.get("msg") or "no answer", 300)
    return ""


def _drain_outcome(answer: Mapping[str, Any], node: str) -> str:
    """Return the outcome of a drain as text, as Slurm's answer after the request shows it."""
    node_answer = (answer.get("nodes") or {}).get(node)
    if not node_answer:
        return f"could not be drained: {answer.get('msg', 'no answer')}"
    if node_answer.get("drained_by") != "ours":
        # An operator or Slurm itself drained the node after the night was judged. That reason remains.
        return f"not drained by this night: {node_answer.get('state_after')} ({node_answer.get('reason')})"
    jobs = node_answer.get("jobs") or ()
    return "drained" + (f"; jobs run on until they end: {', '.join(map(str, jobs))}" if jobs else "")


def collect_actions(
    drained: Mapping[str, Any], returned: Mapping[str, Any], resume: Sequence[str] = ()
) -> dict[str, str]:
    """Return the outcomes of drains and resumes as texts, by node.

    Args:
        drained: The result of the loop that drained nodes. ``results`` has one result of
            ``rackproof_slurm_node`` per node, with the decision's entry as ``item``.
        returned: The result of the task that resumed nodes. If the task was skipped, because no node may or
            must be resumed, no text is about resuming.
        resume: The nodes to resume. A node without a result was not resumed.
    """
    did = {}
    for result in drained.get("results") or ():
        node = (result.get("item") or {}).get("node", "")
        if node and not result.get("skipped"):
            did[node] = _drain_outcome(result, node)
    if returned.get("skipped"):
        return did
    for node, node_answer in (returned.get("nodes") or {}).items():
        state = node_answer.get("state_after")
        did[node] = (
            "returned to service"
            if node_answer.get("in_service")
            else f"Slurm does not resume it: its state is {state}"
        )
    for node in resume:
        did.setdefault(node, f"could not be resumed: {returned.get('msg') or 'no answer'}")
    return did


def collect_states(drained: Mapping[str, Any], returned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states in Slurm of the nodes that were drained or resumed, as they were afterwards.

    Args:
        drained: The result of the loop that drained nodes.
        returned: The result of the task that resumed nodes.
    """
    answers = (*(drained.get("results") or ()), returned)
    return {node: about for answer in answers for node, about in (answer.get("nodes") or {}).items()}
