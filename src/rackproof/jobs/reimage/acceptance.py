"""Measure a node for its acceptance, alone and with a known-good partner.

The action plugin ``rackproof_reimage_acceptance`` measures with this module. The action plugin
``rackproof_reimage_journal`` calls :func:`check_acceptance` before the node is resumed.

A pair is two nodes that run an all-reduce together: each node runs one half of it. A node is not resumed
before its acceptance, and Slurm gives a drained node no job. The node's half therefore runs through ssh. Only
the partner's half is a Slurm job, on a node in service. If anything is killed, the node stays drained, and
Slurm's time limit ends the job. The results are in the night's ``probes.json``, like all measurements of a
night.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rackproof.analysis.pair_speeds import compare_pairs, earlier_bandwidths, read_pair
from rackproof.core.advised_commands import add_results_everywhere
from rackproof.core.judging import SkuReferenceError
from rackproof.core.records import Verdict
from rackproof.core.text import sanitize
from rackproof.jobs.reimage.run_files import ReimageError
from rackproof.nodes.probe_slurm_jobs import (
    FABRIC_PROBE,
    MARK,
    Job,
    JobRunner,
    ProbeError,
    ProbePlan,
    classify_exit,
    job_script,
)
from rackproof.store import night_store
from rackproof.store.night_store import NightContext, NightReason, NodeNight, StoredSnapshot
from rackproof.store.plain_file import hold_lock
from rackproof.store.probe_results import PAIRS_LOCK, PairResult, ProbeNight, read_probes, write_probes
from rackproof.store.run_folder import ResultsError

PROBES, PAIR = "probes", "pair"
ACCEPTANCE_CHECKS = (PROBES, PAIR)
"""The values of ``reimage_acceptance``: the node measured alone, and the node measured with a partner."""
WAIT_S = 120
"""Seconds that the node's half of a pair waits for a partner. The program itself waits no longer."""
_PARTNER_START_S = 45
"""Seconds in which Slurm starts or refuses a partner. No partner is requested this late in the wait."""


def check_acceptance(folder: Path, node: str, checks: Sequence[str]) -> tuple[str, ...]:
    """Return the remarks about a node that passed its acceptance. The journal stores them.

    Args:
        folder: The folder of the night, with ``night.json`` and ``probes.json``.
        node: The name of the node.
        checks: The checks of :data:`ACCEPTANCE_CHECKS` that the node must pass in addition to its health
            checks.

    Raises:
        ReimageError: The node did not pass.
    """
    remarks = (*check_night_verdict(folder, node), *_unproven_remark(checks))
    if not checks:
        return remarks
    night = read_probes(folder) or ProbeNight(asked=0)
    next_ = add_results_everywhere(
        f"See {folder.name}/probes.json and `rackproof explain {node}`", folder.parent
    )
    if PROBES in checks and node not in night.measured:
        # A node without GPUs needs no measurement. A node whose GPUs are missing fails here.
        if _should_have_gpus(folder, node):
            raise ReimageError(
                f"{node} is unproven: {night.left_out.get(node, 'it was not measured')}. {next_}"
            )
        remarks = (*remarks, "it has no GPU that could be measured")
    if PAIR in checks and not _passed_a_pair(night, node):
        raise ReimageError(f"{node} is unproven: it reduced with no partner. {next_}")
    return remarks


def _unproven_remark(checks: Sequence[str]) -> tuple[str, ...]:
    """Return a remark about the checks that the operator omitted, or nothing if all are required."""
    missing = [check for check in ACCEPTANCE_CHECKS if check not in checks]
    if not missing:
        return ()
    subjects = {PROBES: "its results and its speed", PAIR: "its fabric"}
    unproven = " and ".join(subjects[check] for check in missing)
    return (f"not proven: {unproven} (reimage_acceptance leaves {', '.join(missing)} out)",)


def _should_have_gpus(folder: Path, node: str) -> bool:
    """Return whether a node lists GPUs, or has to by its inventory. Without a snapshot, return True."""
    stored = night_store.read_snapshot(folder, node)
    # Without a snapshot, the GPUs are unknown, so a missing measurement must not be accepted.
    return stored is None or bool(stored.snapshot.gpus or stored.expected.get("gpus"))


def _passed_a_pair(night: ProbeNight, node: str) -> bool:
    """Return whether a node passed with any partner."""
    return any(node in pair.nodes and pair.passed for pair in night.pairs)


def check_night_verdict(night_folder: Path, node: str) -> tuple[str, ...]:
    """Return the remarks of a night that does not stop a node.

    There is none if the node passed, and one with the reasons if it is degraded.

    Args:
        night_folder: The folder of the night.
        node: The name of the node.

    Raises:
        ReimageError: The node failed or is unproven, or the night cannot be read or lacks the node.
    """
    try:
        night = night_store.read_night(night_folder)
    except ResultsError as error:
        raise ReimageError(f"{node} was not proven: {error}") from error
    node_night = next((entry for entry in night.nodes if entry.node == node), None)
    if node_night is None:
        raise ReimageError(f"{node} was not proven: night {night.night_id} has no snapshot of it")
    text = "; ".join(node_night.reason_texts()[:5]) or node_night.why or "no reason was kept"
    if node_night.verdict.gates:
        see = add_results_everywhere(f"See `rackproof explain {node}`", night_folder.parent)
        raise ReimageError(f"{node} is {node_night.verdict.value}: {sanitize(text, 600)}. {see}")
    return (
        (f"{node_night.verdict.value}: {sanitize(text, 200)}",)
        if node_night.verdict is not Verdict.PASS
        else ()
    )


def find_own_failure(context: NightContext, node: str) -> str:
    """Return the first failure or unproven program of the node alone, or "".

    With such a reason, the node does not pass, and a partner is not needed.
    """
    night = read_probes(Path(context.folder))
    reasons = night.reasons.get(node, ()) if night else ()
    failures = (f"{reason.metric} {reason.part}: {reason.text}" for reason in reasons if reason.verdict.gates)
    return next(failures, "")


def find_partners(context: NightContext, node: str, listed: str) -> tuple[str, ...]:
    """Return known-good nodes that could reduce with a node, with the nodes of its rack first.

    A partner is known to be good if it is in service in Slurm and passed its last night. It must have the
    node's SKU and partition.

    Args:
        context: The night of the node's acceptance.
        node: The name of the node.
        listed: The output of ``sinfo --noheader --Node --format=%N|%R|%E``: node, partition, and the reason
            why it is out of service, such as ``n07|gpu|none``.

    Returns:
        The names, or nothing if no node is known to be good or this night has no snapshot of the node.

    Raises:
        ReimageError: The nights cannot be read.
    """
    other_nodes = _others_in_service(node, listed)
    stored = night_store.read_snapshot(Path(context.folder), node)
    if stored is None:
        return ()
    try:
        # Use an earlier night, or one of another finished run. In this one, no node passed its acceptance
        # yet.
        known_nights, _ = night_store.last_known(
            night_store.night_folders(Path(context.results), before=context.night_id), other_nodes
        )
    except ResultsError as error:
        raise ReimageError(str(error)) from error
    good = [partner for partner in known_nights.values() if _is_good_partner(partner, stored.snapshot.sku)]
    if not good:
        return ()
    ordered = sorted(good, key=lambda partner: (partner.rack != stored.rack, partner.node))
    # Nodes of one wave search at the same time. Each starts at another place in the list, so that not
    # all request the same partner first. The sum of characters is the same in every process, unlike
    # hash().
    first_index = sum(map(ord, node)) % len(ordered)
    rotated = ordered[first_index:] + ordered[:first_index]
    return tuple(partner.node for partner in sorted(rotated, key=lambda partner: partner.rack != stored.rack))


def _others_in_service(node: str, listed: str) -> set[str]:
    """Return the nodes that share a partition with a node and have no reason to be out of service."""
    # The reason is the last field because it is free text, which may contain more bars.
    rows = [line.strip().split("|", 2) for line in listed.splitlines() if line.count("|") > 1]
    partitions = {partition for name, partition, _ in rows if name == node}
    other_nodes = set()
    for name, partition, reason in rows:
        if name != node and partition in partitions and reason.strip() == "none":
            other_nodes.add(name)
    return other_nodes


def _is_good_partner(partner: NodeNight, sku: str) -> bool:
    """Return whether a node passed its last night and is of the same known SKU."""
    # Two unknown SKUs are not the same SKU.
    return partner.verdict is Verdict.PASS and partner.sku == sku and bool(partner.sku)


def node_script(plan: ProbePlan, node: str) -> str:
    """Return the script of the node's half, which is rank 0 of the all-reduce.

    The partner connects to rank 0, so this half does not need the partner's name.

    Raises:
        ReimageError: The program cannot be read.
    """
    return _script(plan, (node, "partner"), node_limit_s(plan))


def node_limit_s(plan: ProbePlan) -> int:
    """Return the seconds that the node's half may take, including the wait for a partner."""
    return plan.pair_limit_s + WAIT_S


def _script(plan: ProbePlan, nodes: tuple[str, str], limit: int) -> str:
    """Return the script of one half of a pair.

    Raises:
        ReimageError: The program cannot be read.
    """
    try:
        return job_script(plan, [FABRIC_PROBE], nodes, limit)
    except ProbeError as error:
        raise ReimageError(str(error)) from error


@dataclass(frozen=True)
class PartnerHalf:
    """The outcome of the partner's half.

    ``partner`` is the node that ran the half, or "". ``text`` is the reason why no partner ran it, or how the
    half failed, or "" if it ended well.
    """

    partner: str = ""
    text: str = ""


def run_partner(
    plan: ProbePlan, node: str, partners: Sequence[str], gpus: int, jobs: JobRunner
) -> PartnerHalf:
    """Run the partner's half as a job on the first partner that Slurm allocates, and return its outcome.

    Args:
        plan: The plan of the measurement.
        node: The name of the node, which runs its half at the same time.
        partners: The possible partners, best first.
        gpus: The number of GPUs of a partner.
        jobs: The runner of jobs.

    Raises:
        ReimageError: The program of the half cannot be read.
    """
    if not partners:
        return PartnerHalf(
            text="no other node of its SKU and partition is in service and passed its last night: run "
            'validate.yml, or leave the pair out (-e \'{"reimage_acceptance": ["probes"]}\')'
        )
    tried: dict[str, str] = {}
    # A partner that starts later would find that the node's half ended.
    end = jobs.clock() + WAIT_S - _PARTNER_START_S
    try:
        jobs.begin()
        # Try all partners repeatedly, because one may be busy with another node of the wave for half a
        # minute.
        for partner in itertools.cycle(partners):
            if jobs.clock() > end:
                break
            # Only rank 0 prints the result. The marks show whether this half ran to its end.
            half = _script(plan, (node, partner), plan.pair_limit_s)
            lines = [f'echo "{MARK}begin half"', f"(\n{half})", "status=$?"]
            lines += [f'printf "\\n{MARK}end $status\\n"', "exit $status", ""]
            (result,) = jobs.run([Job((partner,), "\n".join(lines), gpus, plan.pair_limit_s)])
            # The half of this partner measured nothing. Try the next partner.
            if result.how not in ("busy", "lost", "left"):
                return PartnerHalf(partner, "" if result.how == "ok" else f"{result.how}: {result.text}")
            tried[partner] = result.text
            jobs.sleep(2)
    except ProbeError as error:
        tried["Slurm"] = str(error)
    finally:
        jobs.end()
    return PartnerHalf(text="; ".join(f"{name}: {reason}" for name, reason in tried.items()))


def without_budget(plan: ProbePlan) -> ProbePlan:
    """Return a plan without a budget, because a pair uses one partner for a few minutes."""
    return replace(plan, minutes=float("inf"), share=1.0)


def record_pair(context: NightContext, node: str, half: PartnerHalf, output: str, status: str) -> str:
    """Store the result of a node and its partner in the night's ``probes.json``. Return a short description.

    A pair that failed or did not run makes the node unproven.

    Args:
        context: The context of the night.
        node: The name of the node.
        half: The outcome of the partner's half.
        output: The output of the node's half, which prints the result of both.
        status: The exit status of the node's half, or "" if unknown.

    Raises:
        ReimageError: The references of the SKU or the earlier nights cannot be read, or the result cannot be
            stored.
    """
    result, reason = None, ""
    if not half.partner:
        reason = f"it had no partner: {half.text or 'the reason is not known'}"
    else:
        result = _judge_pair(context, node, half, output, status)
        if not result.passed:
            # One pair does not show which of the two is at fault. The node stays drained in both cases.
            reason = f"all-reduce failed with {half.partner}, which passed its last night: {result.text}"
    try:
        _add_pair(Path(context.folder), node, result, reason)
    except (OSError, ResultsError) as error:
        raise ReimageError(f"{node}: the pair cannot be kept: {error}") from error
    return reason or f"reduced with {half.partner}: {result.text if result else ''}"


def _add_pair(folder: Path, node: str, result: PairResult | None, reason: str) -> None:
    """Add a pair's result to the night's measurements, one writer at a time."""
    # Nodes of a wave end at the same time, and each adds its pair to the same file.
    with hold_lock(folder / PAIRS_LOCK):
        night = read_probes(folder) or ProbeNight(asked=0)
        reasons = dict(night.reasons)
        if reason:
            unproven = NightReason(
                check=PAIR,
                verdict=Verdict.UNPROVEN,
                metric="fabric",
                part=node,
                text=sanitize(reason, 500),
            )
            reasons[node] = (*reasons.get(node, ()), unproven)
        pairs = (*night.pairs, result) if result else night.pairs
        write_probes(folder, night.model_copy(update={"pairs": pairs, "reasons": reasons}))


def _judge_pair(context: NightContext, node: str, half: PartnerHalf, output: str, status: str) -> PairResult:
    """Return the result of a pair, by floors and by comparison with earlier pairs of its rack and SKU."""
    nodes = (node, half.partner)
    if half.text:
        return PairResult(nodes=nodes, passed=False, text=f"its partner's half {half.text}")
    stored = night_store.read_snapshot(Path(context.folder), node)
    try:
        references = stored.sku_references() if stored else []
        folders = night_store.night_folders(Path(context.results), before=context.night_id)
        past = [probes for folder in folders if (probes := read_probes(folder)) is not None]
        known_nights, _ = night_store.last_known(folders, _paired_nodes(past) | {node})
    except (SkuReferenceError, ResultsError) as error:
        raise ReimageError(str(error)) from error
    result = read_pair(nodes, classify_exit(output, status, 0.0), references)
    # Only pairs of the same rack and SKU used a fabric like this one.
    alike = _nodes_alike(stored, known_nights.values()) | {node}
    if half.partner not in alike:
        return result
    return compare_pairs([result], earlier_bandwidths(past, alike))[0]


def _paired_nodes(past: Iterable[ProbeNight]) -> set[str]:
    """Return all nodes that earlier nights measured in pairs."""
    return {name for probes in past for pair in probes.pairs for name in pair.nodes}


def _nodes_alike(stored: StoredSnapshot | None, nights: Iterable[NodeNight]) -> set[str]:
    """Return the nodes of the same rack and SKU."""
    if stored is None:
        return set()
    rack_and_sku = (stored.rack, stored.snapshot.sku)
    return {node_night.node for node_night in nights if (node_night.rack, node_night.sku) == rack_and_sku}
