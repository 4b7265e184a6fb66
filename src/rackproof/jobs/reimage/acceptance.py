"""What a node proves besides its health before it returns: alone, and with a partner known to be good.

Slurm gives a drained node no job, and nobody resumes one that is not proven. So the node itself is measured
by ssh, and of a pair only the partner's half is a job of Slurm, on a node that is in service: whatever is
killed half-way, the node stays drained, and the job ends by Slurm's time limit. What came of it is kept in
the night's ``probes.json``, like everything that a night measures.
"""

from __future__ import annotations

import fcntl
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rackproof.analysis.pair_speeds import compare_pairs, earlier_bandwidths, read_pair
from rackproof.core.judging import SkuReferenceError
from rackproof.core.records import Verdict
from rackproof.core.text import sanitize
from rackproof.jobs.reimage.run_files import ReimageError
from rackproof.nodes.probe_slurm_jobs import FABRIC_PROBE, MARK, Job, Jobs, Plan, ProbeError, how, script
from rackproof.store import night_store
from rackproof.store.night_store import NightContext, NightReason
from rackproof.store.probe_results import PairResult, ProbeNight, read_probes, write_probes
from rackproof.store.run_folder import ResultsError

PROBES, PAIR = "probes", "pair"
ACCEPTANCE_CHECKS = (PROBES, PAIR)
WAIT_S = 120
"""Seconds that the node's half of a pair waits for a partner; the program itself waits no longer."""
_COMES_S = 45
"""So long it may take until a partner that was asked for is there, or was refused."""


def check_acceptance(folder: Path, node: str, proofs: Sequence[str]) -> tuple[str, ...]:
    """Return what is to be reported of a node that has proven itself.

    Args:
        folder: The night's folder.
        node: The node.
        proofs: What it had to prove besides its health, of :data:`ACCEPTANCE_CHECKS`.

    Raises:
        ReimageError: It did not.
    """
    remarks = check_night_verdict(folder, node)
    if missing := [one for one in ACCEPTANCE_CHECKS if one not in proofs]:
        what = {PROBES: "what it computes and how fast", PAIR: "its fabric"}
        said = " and ".join(what[one] for one in missing)
        remarks = (*remarks, f"not proven: {said} (reimage_acceptance leaves {', '.join(missing)} out)")
    if not proofs:
        return remarks
    night = read_probes(folder) or ProbeNight(asked=0)
    next_ = f"See {folder.name}/probes.json and `rackproof explain {node}`"
    if PROBES in proofs and node not in night.measured:
        kept = night_store.read_snapshot(folder, node)
        if kept is None or kept.snapshot.gpus or kept.expected.get("gpus"):
            raise ReimageError(
                f"{node} is unproven: {night.left_out.get(node, 'it was not measured')}. {next_}"
            )
        remarks = (*remarks, "it has no GPU that could be measured")
    if PAIR in proofs and not any(node in one.nodes and one.passed for one in night.pairs):
        raise ReimageError(f"{node} is unproven: it reduced with no partner. {next_}")
    return remarks


def check_night_verdict(night_folder: Path, node: str) -> tuple[str, ...]:
    """Return the remarks of a night that passed a node.

    Args:
        night_folder: The night's folder.
        node: The node.

    Raises:
        ReimageError: The night did not pass it.
    """
    try:
        night = night_store.read_night(night_folder)
    except ResultsError as error:
        raise ReimageError(f"{node} was not proven: {error}") from error
    mine = next((entry for entry in night.nodes if entry.node == node), None)
    if mine is None:
        raise ReimageError(f"{node} was not proven: night {night.night_id} did not look at it")
    text = "; ".join(mine.says()[:5]) or mine.why or "no reason was kept"
    if mine.verdict.gates:
        raise ReimageError(
            f"{node} is {mine.verdict.value}: {sanitize(text, 600)}. See `rackproof explain {node}`"
        )
    return (f"{mine.verdict.value}: {sanitize(text, 200)}",) if mine.verdict is not Verdict.PASS else ()


def find_own_failure(begun: NightContext, node: str) -> str:
    """Return why a node needs no partner: by itself it has shown already that it is not to return."""
    night = read_probes(Path(begun.folder))
    mine = night.reasons.get(node, ()) if night else ()
    return next((f"{one.metric} {one.part}: {one.text}" for one in mine if one.verdict.gates), "")


def find_partners(begun: NightContext, node: str, listed: str) -> tuple[str, ...]:
    """Return who is known to be good and could reduce with a node, those of its rack first.

    Known to be good is a node of the same SKU and partition that Slurm has in service and that passed its
    last night.

    Args:
        begun: The night in which the node proves itself.
        node: The node.
        listed: What ``sinfo --noheader --Node --format=%N|%R|%E`` prints.

    Raises:
        ReimageError: The nights cannot be read.
    """
    rows = [line.strip().split("|", 2) for line in listed.splitlines() if line.count("|") > 1]
    mine = {partition for name, partition, _ in rows if name == node}
    others = {
        name
        for name, partition, reason in rows
        if name != node and partition in mine and reason.strip() == "none"
    }
    kept = night_store.read_snapshot(Path(begun.folder), node)
    if kept is None:
        return ()
    try:
        # An earlier night, or another run's that is over: not this one, whose nodes are all to be proven yet.
        known, _ = night_store.earlier(night_store.nights(Path(begun.results), before=begun.night_id), others)
    except ResultsError as error:
        raise ReimageError(str(error)) from error
    good = [
        one
        for one in known.values()
        if one.verdict is Verdict.PASS and one.sku == kept.snapshot.sku and one.sku
    ]
    ordered = sorted(good, key=lambda one: (one.rack != kept.rack, one.node))
    if not ordered:
        return ()
    # Nodes of one wave ask at the same time: not all of them for the same partner first.
    begin = sum(map(ord, node)) % len(ordered)
    turned = ordered[begin:] + ordered[:begin]
    return tuple(one.node for one in sorted(turned, key=lambda one: one.rack != kept.rack))


def node_script(plan: Plan, node: str) -> str:
    """Return what the node runs, as rank 0: it needs no name of its partner, who comes to it.

    Raises:
        ReimageError: The program cannot be read.
    """
    return _script(plan, (node, "partner"), node_limit_s(plan))


def node_limit_s(plan: Plan) -> int:
    """Return the seconds that the node's half may take, those included that it waits for a partner."""
    return plan.pair_limit_s + WAIT_S


def _script(plan: Plan, nodes: tuple[str, str], limit: int) -> str:
    try:
        return script(plan, [FABRIC_PROBE], nodes, limit)
    except ProbeError as error:
        raise ReimageError(str(error)) from error


@dataclass(frozen=True)
class PartnerHalf:
    """Who came (empty: nobody), and why others did not, or how a half ended that did not end well."""

    partner: str = ""
    text: str = ""


def run_partner(plan: Plan, node: str, some: Sequence[str], gpus: int, jobs: Jobs) -> PartnerHalf:
    """Run the partner's half as a job on the first of some nodes that Slurm gives.

    Args:
        plan: How it is measured.
        node: The node, which runs its half meanwhile.
        some: Partners, best first.
        gpus: GPUs of a partner.
        jobs: Runs jobs.
    """
    if not some:
        return PartnerHalf(
            text="no other node of its SKU and partition is in service and passed its last night: run "
            'validate.yml, or leave the pair out (-e \'{"reimage_acceptance": ["probes"]}\')'
        )
    tried: dict[str, str] = {}
    end = jobs.clock() + WAIT_S - _COMES_S
    try:
        jobs.begin()
        # In turn, and again: a partner may be with another node of the wave, for half a minute.
        for partner in itertools.cycle(some):
            if jobs.clock() > end:
                break
            # Only rank 0 says how it went: here it is told whether this half came to its end at all.
            half = _script(plan, (node, partner), plan.pair_limit_s)
            lines = [f'echo "{MARK}begin half"', f"(\n{half})", "status=$?"]
            lines += [f'printf "\\n{MARK}end $status\\n"', "exit $status", ""]
            (done,) = jobs.run([Job((partner,), "\n".join(lines), gpus, plan.pair_limit_s)])
            if done.how not in ("busy", "lost", "left"):
                return PartnerHalf(partner, "" if done.how == "ok" else f"{done.how}: {done.text}")
            tried[partner] = done.text
            jobs.sleep(2)
    except ProbeError as error:
        tried["Slurm"] = str(error)
    finally:
        jobs.end()
    return PartnerHalf(text="; ".join(f"{name}: {why}" for name, why in tried.items()))


def without_budget(plan: Plan) -> Plan:
    """Return a plan without a budget: one partner for a few minutes is what a pair costs."""
    return replace(plan, minutes=float("inf"), share=1.0)


def record_pair(begun: NightContext, node: str, half: PartnerHalf, said: str, status: str) -> str:
    """Keep what a node and its partner came to; return it in a few words.

    Args:
        begun: The night.
        node: The node.
        half: How its partner's half went.
        said: What the node's half said.
        status: Its exit status, empty where it has none.

    Raises:
        ReimageError: It cannot be kept.
    """
    folder = Path(begun.folder)
    result, reason = None, ""
    if not half.partner:
        reason = f"it met nobody: {half.text or 'nobody says why'}"
    else:
        result = _judged(begun, node, half, said, status)
        if not result.passed:
            # One meeting does not tell whose fault it is; the node stays drained in any case.
            reason = f"all-reduce failed with {half.partner}, which passed its last night: {result.text}"
    try:
        # Nodes of a wave end at the same time.
        with (folder / "pairs.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            night = read_probes(folder) or ProbeNight(asked=0)
            reasons = dict(night.reasons)
            if reason:
                why = NightReason(
                    check=PAIR,
                    verdict=Verdict.UNPROVEN,
                    metric="fabric",
                    part=node,
                    text=sanitize(reason, 500),
                )
                reasons[node] = (*reasons.get(node, ()), why)
            pairs = (*night.pairs, result) if result else night.pairs
            write_probes(folder, night.model_copy(update={"pairs": pairs, "reasons": reasons}))
    except (OSError, ResultsError) as error:
        raise ReimageError(f"{node}: the pair cannot be kept: {error}") from error
    return reason or f"reduced with {half.partner}: {result.text if result else ''}"


def _judged(begun: NightContext, node: str, half: PartnerHalf, said: str, status: str) -> PairResult:
    """Return what a pair says: by a floor, or compared with the pairs that its rack and SKU had in nights."""
    nodes = (node, half.partner)
    if half.text:
        return PairResult(nodes=nodes, passed=False, text=f"its partner's half {half.text}")
    kept = night_store.read_snapshot(Path(begun.folder), node)
    try:
        references = kept.sku_references() if kept else []
        folders = night_store.nights(Path(begun.results), before=begun.night_id)
        past = [one for folder in folders if (one := read_probes(folder)) is not None]
        met = {name for one in past for pair in one.pairs for name in pair.nodes} | {node}
        known, _ = night_store.earlier(folders, met)
    except (SkuReferenceError, ResultsError) as error:
        raise ReimageError(str(error)) from error
    result = read_pair(nodes, how(said, status, 0.0), references)
    alike = {
        one.node for one in known.values() if kept and (one.rack, one.sku) == (kept.rack, kept.snapshot.sku)
    } | {node}
    if half.partner not in alike:
        return result
    return compare_pairs([result], earlier_bandwidths(past, alike))[0]
