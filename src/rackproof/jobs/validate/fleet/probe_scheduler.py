"""A night's measurements of its own: which idle nodes are measured, and what came of it.

First every node by itself, and whose numbers are bad once more; then pairs, so that over the nights each two
nodes of a rack meet; who fails meets a partner that is known to be good before it is called bad, and where
that does not tell, the suspects are halved. Pure but for the jobs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from rackproof.analysis.anomaly import AnomalyPolicy
from rackproof.analysis.pair_speeds import (
    FABRIC_METRIC,
    compare_pairs,
    earlier_bandwidths,
    parse_section,
    read_pair,
)
from rackproof.core.definitions import JudgeRule, load_definition
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.judging import NO_REFERENCE, SkuReference, judge_run
from rackproof.core.records import Measurement, ParsedLog, Verdict
from rackproof.core.text import sanitize
from rackproof.jobs.validate.fleet.pairing import (
    Pair,
    bisect_group,
    find_culprits,
    pairs_of_night,
    second_partners,
)
from rackproof.jobs.validate.fleet.retest import RetestResult, SuspectFinder, retest_suspects
from rackproof.logs import FORMATS
from rackproof.nodes.probe_slurm_jobs import (
    FABRIC,
    FABRIC_PROBE,
    OUT_OF_TIME,
    PROBES,
    Job,
    JobResult,
    JobRunner,
    Probe,
    ProbePlan,
    job_script,
    last_lines,
    probe_arguments,
)
from rackproof.store.night_store import NightReason
from rackproof.store.probe_results import PairResult, ProbeNight


@dataclass(frozen=True)
class Target:
    """A node that could be measured: GPUs that it has (0: measured on its CPU), SKU, rack, partitions.

    ``busy`` says why it cannot tonight; empty where it stands idle. ``uuids`` are its GPUs, where known.
    """

    name: str
    gpus: int
    sku: str = ""
    rack: str = ""
    partitions: tuple[str, ...] = ()
    references: tuple[SkuReference, ...] = ()
    busy: str = ""
    uuids: frozenset[str] = frozenset()


def read_digests(text: str) -> list[tuple[str, str, str]]:
    """Return what has to be alike, part and digest, of each device in a log of the training step."""
    found = []
    for line in text.splitlines():
        head, mark, rest = line.partition(":::MLLOG ")
        if not mark or head.strip() or '"training_digest"' not in rest:
            continue
        try:
            value = json.loads(rest)["value"]
            labels = value["labels"]
            part = str(labels.get("gpu", ""))
            digest = str(value["digest"])
            if not re.fullmatch(r"[0-9a-f]{64}", digest):
                continue
            found.append((sanitize(str(value["alike"]), 400), sanitize(part, 100), digest))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


Digests = Mapping[str, Sequence[tuple[str, str, str]]]


def compare_digests(
    found: Digests, known: Mapping[str, str]
) -> tuple[dict[str, list[NightReason]], dict[str, str], tuple[str, ...]]:
    """Compare the training step across a fleet, bit by bit.

    What most devices of a kind say is right, and more than half must say it, three at least; with fewer, what
    earlier nights agreed on. Where neither tells, those that disagree are unproven.

    Args:
        found: By node, as :func:`read_digests` returns.
        known: What earlier nights agreed on.

    Returns:
        Reasons by node, what is agreed on now, and remarks.
    """
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for node, some in found.items():
        for alike, part, digest in some:
            groups.setdefault(alike, []).append((node, part, digest))
    reasons: dict[str, list[NightReason]] = {}
    agreed = dict(known)
    remarks = []
    for alike, some in sorted(groups.items()):
        counts = Counter(digest for *_, digest in some)
        most, count = counts.most_common(1)[0]
        sure = count >= 3 and 2 * count > len(some)
        if sure and known.get(alike, most) != most:
            remarks.append(
                f"the training step gives other bits than in earlier nights on {count} of {len(some)} "
                f"devices, with the same software ({alike}): a fault of the tool until proven otherwise"
            )
        right = most if sure else known.get(alike, "")
        if right:
            agreed[alike] = right
        elif len(counts) == 1:
            if len(some) > 1:
                agreed[alike] = most
            else:
                remarks.append(
                    f"the training step of {some[0][0]} was compared with nothing: no other device of its "
                    f"kind, and none in earlier nights ({alike})"
                )
            continue
        for node, part, digest in some:
            if digest == right:
                continue
            said = f"the same training step as on {counts[right]} devices of its kind gave other bits"
            text = (
                f"{said}: it computes wrongly ({digest[:12]} instead of {right[:12]}; {alike})"
                if right
                else f"devices of its kind disagree and none is known to be right ({digest[:12]}; {alike})"
            )
            verdict = Verdict.FAIL if right else Verdict.UNPROVEN
            one = NightReason(
                check="bits", verdict=verdict, metric="training step", part=part or node, text=text
            )
            reasons.setdefault(node, []).append(one)
    return reasons, agreed, tuple(remarks)


@dataclass(frozen=True)
class NodeMeasurements:
    """What a node's job measured: numbers that floors, fleet and history judge, and what is wrong now.

    ``sound`` are the programs that ended well and found nothing wrong.
    """

    measurements: tuple[Measurement, ...] = ()
    reasons: tuple[NightReason, ...] = ()
    digests: tuple[tuple[str, str, str], ...] = ()
    sound: tuple[str, ...] = ()


def read_node_probes(
    plan: ProbePlan, target: Target, done: JobResult, probes: Sequence[Probe] | None = None
) -> NodeMeasurements:
    """Return what the job of a node measured. Values that are wrong fail; what is missing is unproven.

    Args:
        plan: How it was measured.
        target: The node.
        done: What its job said.
        probes: The programs of the job; None is all that such a node is measured with.
    """
    numbers: list[Measurement] = []
    reasons: list[NightReason] = []
    digests: list[tuple[str, str, str]] = []
    by_name = {one.name: one for one in done.sections}
    devices = target.gpus if plan.device == "gpu" else 1
    for probe in probes or wanted_probes(plan, target):
        section = by_name.get(probe.name)
        if section is None:
            reasons.append(_unproven(probe.name, target.name, done.text or "it did not run"))
            continue
        if section.status != 0:
            what = "did not end in time" if section.status in OUT_OF_TIME else f"ended with {section.status}"
            reasons.append(_unproven(probe.name, target.name, f"{what}: {last_lines(section.text)}"))
            continue
        if not probe.benchmark:
            got = read_digests(section.text)
            digests += got
            if len(got) != devices:
                reasons.append(
                    _unproven(probe.name, target.name, f"{len(got)} of {devices} devices gave a result")
                )
            continue
        rules = _rules(plan.benchmarks / f"{probe.benchmark}.yml")
        log = parse_section(section)
        outcome = judge_run(
            rules,
            [log],
            (),
            lambda _: (),
            parameters={"gpus": devices if plan.device == "gpu" else 0},
            require_references=False,
            source=f"benchmarks/{probe.benchmark}.yml",
        )
        for one in outcome.judgements:
            # Speeds have no reference here: floors, fleet and history judge them with all other numbers.
            if one.verdict.gates and one.gating:
                part = one.labels.get("gpu") or target.name
                reasons.append(
                    NightReason(
                        check="probe",
                        verdict=one.verdict,
                        metric=f"{probe.name} {one.metric}",
                        part=part,
                        text=sanitize(one.reason, 400),
                    )
                )
        if outcome.verdict.gates and not any(one.verdict.gates and one.gating for one in outcome.judgements):
            text = outcome.reasons[0] if outcome.reasons else "its log proves nothing"
            reasons.append(_unproven(probe.name, target.name, text))
        if plan.device == "gpu":
            reasons += _silent_gpus(probe.name, target, rules, log)
        speeds = [rule for rule in rules if rule.at_least is rule.at_most is rule.equals is None]
        for number in log.measurements:
            if any(r.metric == number.name and r.labels.items() <= number.labels.items() for r in speeds):
                # What names no GPU is the node's; several nodes' numbers are kept as one run.
                own = {} if {"gpu", "from"} & set(number.labels) else {"node": target.name}
                numbers.append(number.model_copy(update={"labels": {**number.labels, **own}}))
    sound = tuple(
        one.name
        for one in probes or wanted_probes(plan, target)
        if not any(why.metric.partition(" ")[0] == one.name for why in reasons)
    )
    if done.how != "ok" and not any(one.verdict.gates for one in reasons):
        # Each program ended well and the job did not: whatever that was, it is no pass.
        reasons.append(_unproven("job", target.name, f"{done.how}: {done.text or 'nobody says why'}"))
    return NodeMeasurements(tuple(numbers), tuple(reasons), tuple(digests), sound)


def _silent_gpus(probe: str, target: Target, rules: Sequence[JudgeRule], log: ParsedLog) -> list[NightReason]:
    """Return what not every GPU of a node said of itself: those that said nothing have not passed."""
    reasons = []
    named = {one.labels["gpu"] for one in log.measurements if "gpu" in one.labels}
    if target.uuids and (strange := sorted(named - target.uuids)):
        # Their numbers would be nobody's, and nobody would judge them.
        reasons.append(_unproven(probe, target.name, f"{', '.join(strange[:4])}: no GPU that was seen there"))
    for metric in dict.fromkeys(rule.metric for rule in rules):
        told = {one.labels["gpu"] for one in log.measurements if one.name == metric and "gpu" in one.labels}
        if told and len(told) != target.gpus:
            text = f"{metric}: {len(told)} of {target.gpus} GPUs gave a result"
            reasons.append(_unproven(probe, target.name, text))
    return reasons


@lru_cache(maxsize=32)
def _rules(path: Path) -> tuple[JudgeRule, ...]:
    return load_definition(path, log_formats=FORMATS).definition.result.judge


def wanted_probes(plan: ProbePlan, target: Target) -> list[Probe]:
    """Return what a node is measured with."""
    return [
        one
        for one in PROBES
        if one.name in plan.chosen
        and probe_arguments(one, plan.device) is not None
        and (plan.device == "cpu" or target.gpus >= one.least_gpus)
    ]


def _unproven(probe: str, part: str, text: str) -> NightReason:
    return NightReason(
        check="probe", verdict=Verdict.UNPROVEN, metric=probe, part=part, text=sanitize(text, 400)
    )


def measuring_order(targets: Sequence[Target], past: Sequence[ProbeNight]) -> list[Target]:
    """Return the idle nodes, those first that were not measured for longest."""
    ago: dict[str, int] = {}
    for number, night in enumerate(past):
        for name in night.measured:
            ago.setdefault(name, number)
    idle = [one for one in targets if not one.busy]
    return sorted(idle, key=lambda one: (-ago.get(one.name, len(past)), one.name))


def pair_group(target: Target) -> str:
    """Return the rack and SKU of a node: only nodes of one kind meet, and only their pairs are compared."""
    return f"{target.rack}/{target.sku}"


def pairs_tonight(
    targets: Sequence[Target], able: Collection[str], turns: Mapping[str, int], past: Sequence[ProbeNight]
) -> dict[str, tuple[Pair, ...]]:
    """Return the pairs of each rack: tonight's round of the tournament, and who is left meets whom it must.

    Args:
        targets: Every node, so that the rounds stay the same whoever is idle.
        able: Nodes that can be measured tonight.
        turns: By rack how many nights of pairs there were.
        past: Earlier nights, newest first.
    """
    met: dict[Pair, int] = {}
    for number, night in enumerate(past):
        for result in night.pairs:
            if len(result.nodes) == 2:
                met.setdefault((min(result.nodes), max(result.nodes)), number)
    found: dict[str, tuple[Pair, ...]] = {}
    racks: dict[str, list[str]] = {}
    for one in targets:
        racks.setdefault(pair_group(one), []).append(one.name)
    for key, names in racks.items():
        planned = [
            pair for pair in pairs_of_night(names, turns.get(key, 0)) if pair[0] in able and pair[1] in able
        ]
        free = sorted(set(names) & set(able) - {name for pair in planned for name in pair})
        while len(free) > 1:
            first, *rest = free
            partner = max(
                rest, key=lambda name: (met.get((min(first, name), max(first, name)), len(past)), name)
            )
            planned.append((min(first, partner), max(first, partner)))
            free = [name for name in rest if name != partner]
        if planned:
            # Who met longest ago comes first: a small budget must not leave out the same pairs for ever.
            found[key] = tuple(sorted(planned, key=lambda pair: (-met.get(pair, len(past)), pair)))
    return found


def probe_night(
    plan: ProbePlan,
    targets: Sequence[Target],
    past: Sequence[ProbeNight],
    jobs: JobRunner,
    direct: Mapping[str, JobResult] | None = None,
    doubts: SuspectFinder | None = None,
) -> tuple[ProbeNight, tuple[Measurement, ...]]:
    """Measure a fleet; return what came of it, and the numbers to judge with all others.

    Args:
        plan: How.
        targets: Every node that was looked at.
        past: What earlier nights measured, newest first.
        jobs: Runs jobs; its folder was made.
        direct: What nodes said that nights keep drained: Slurm gives them no job, they were measured without.
        doubts: Which numbers are suspect: their nodes are measured a second time. None suspects nobody.

    Raises:
        ProbeError: Slurm's host does not answer any more.
        DefinitionError: A benchmark's definition cannot be read.
    """
    by_name = {one.name: one for one in targets}
    left = {one.name: one.busy for one in targets if one.busy}
    numbers: dict[str, tuple[Measurement, ...]] = {}
    reasons: dict[str, list[NightReason]] = {}
    digests: dict[str, tuple[tuple[str, str, str], ...]] = {}
    sound_in: dict[str, tuple[str, ...]] = {}
    queue = measuring_order(targets, past)

    def job(target: Target, probes: Sequence[Probe] | None = None) -> Job:
        text = job_script(plan, probes or wanted_probes(plan, target), [target.name], plan.node_limit_s)
        return Job((target.name,), text, target.gpus, plan.node_limit_s)

    some = [one for one in queue if wanted_probes(plan, one)]
    done = dict(zip([one.name for one in some], jobs.run([job(one) for one in some]), strict=True))
    # Drained nodes' minutes are taken from nobody: they do not count.
    drained = dict(direct or {})
    left = {name: why for name, why in left.items() if name not in drained}
    done |= drained
    again = [
        by_name[name]
        for name, one in done.items()
        if one.how in ("failed", "hung", "lost") and name not in drained
    ]
    second = dict(zip([one.name for one in again], jobs.run([job(one) for one in again]), strict=True))
    sound = [name for name, one in done.items() if one.how == "ok"]
    measured: list[str] = []
    for name, first in done.items():
        last = second.get(name, first)
        if last.how in ("left", "busy") and name in second:
            last = first
        if last.how in ("left", "busy"):
            left[name] = last.text
            continue
        if last.how == "ok" and name in second:
            reasons.setdefault(name, []).append(
                NightReason(
                    check="probe", verdict=Verdict.DEGRADED, metric="job", part=name,
                    text=f"the first of two tries {first.how}: {sanitize(first.text, 300)}",
                )
            )  # fmt: skip
        if last.how == "lost":
            what = "it could not be measured" if name in drained else "Slurm started nothing"
            reasons[name] = [_unproven("job", name, f"{what}: {last.text}")]
            continue
        got = read_node_probes(plan, by_name[name], last)
        reasons.setdefault(name, []).extend(got.reasons)
        numbers[name] = got.measurements
        digests[name] = got.digests
        sound_in[name] = (*got.sound, *(["job"] if last.how == "ok" else []))
        if last.how == "ok":
            measured.append(name)
        elif first.how != "lost" and last is not first and len(sound) > len(again):
            # The same programs ended well on most others: it is this node's doing.
            text = f"twice tonight, while {len(sound)} nodes ended it well: {sanitize(first.text, 200)}"
            if not _python_lacks(last):
                reasons[name].append(
                    NightReason(check="probe", verdict=Verdict.FAIL, metric="job", part=name, text=text)
                )
    twice = RetestResult({})
    if doubts is not None:

        def measure(names: Sequence[str]) -> dict[str, tuple[Measurement, ...] | str]:
            speeds = {
                name: [one for one in wanted_probes(plan, by_name[name]) if one.benchmark] for name in names
            }
            ended = jobs.run([job(by_name[name], speeds[name]) for name in names])
            answers: dict[str, tuple[Measurement, ...] | str] = {}
            for name, one in zip(names, ended, strict=True):
                if one.how in ("left", "busy", "lost"):
                    answers[name] = one.text
                    continue
                got = read_node_probes(plan, by_name[name], one, speeds[name])
                reasons.setdefault(name, []).extend(got.reasons)
                answers[name] = got.measurements
            return answers

        # What an earlier night drained has failed already, and Slurm gives it no job.
        able = set(numbers) - set(drained)
        twice = retest_suspects(numbers, doubts, measure, able, _suspected_before(past, able))
        numbers = twice.numbers
        for name, evidence in twice.reasons.items():
            reasons.setdefault(name, []).extend(evidence)
    known = next((one.digests for one in past if one.digests), {})
    odd, agreed, remarks = compare_digests(digests, known)
    for name, more in odd.items():
        reasons.setdefault(name, []).extend(more)
    turns = dict(next((one.turns for one in past if one.turns), {}))
    results: tuple[PairResult, ...] = ()
    between: list[NightReason] = []
    if FABRIC in plan.chosen:
        bad = {name for name, mine in reasons.items() if any(one.verdict.gates for one in mine)}
        free = {one.name for one in queue if one.name not in bad and (one.name in measured or not some)}
        tonight = pairs_tonight(targets, free, turns, past)
        meeting = _PairRunner(plan, by_name, jobs)
        results = tuple(
            one
            for key, pairs in tonight.items()
            for one in meeting.rack(
                pairs, earlier_bandwidths(past, {one.name for one in targets if pair_group(one) == key})
            )
        )
        remarks += tuple(meeting.remarks[:20])
        blamed, between = _fabric_reasons(results, {one.name: by_name[one.name].rack for one in targets})
        for name, why in blamed.items():
            reasons.setdefault(name, []).append(why)
        for key, planned in tonight.items():
            if any(set(one.nodes) == set(pair) for one in results for pair in planned):
                turns[key] = turns.get(key, 0) + 1
    night = ProbeNight(
        asked=plan.minutes,
        spent=round(jobs.spent, 3),
        turns=turns,
        measured=tuple(sorted(measured)),
        sound=sound_in,
        again=tuple(sorted(twice.again)),
        unconfirmed=tuple(sorted(twice.unconfirmed)),
        suspected=twice.suspected,
        left_out={name: sanitize(why, 200) for name, why in sorted(left.items())},
        reasons={
            name: tuple(mine) for name, mine in sorted(_mark_fleetwide(reasons, len(targets)).items()) if mine
        },
        between=tuple(between),
        pairs=results,
        digests=agreed,
        remarks=remarks,
    )
    return night, tuple(one for mine in numbers.values() for one in mine)


def _suspected_before(past: Sequence[ProbeNight], names: Iterable[str]) -> dict[str, tuple[NightReason, ...]]:
    """Return what was suspect of nodes when they were last measured."""
    latest = {name: next((one for one in past if name in one.measured), None) for name in names}
    return {
        name: night.suspected[name] for name, night in latest.items() if night and name in night.suspected
    }


def _python_lacks(done: JobResult) -> bool:
    return any(one.name == "python" and one.status for one in done.sections)


def _mark_fleetwide(
    reasons: Mapping[str, Sequence[NightReason]], nodes: int, policy: AnomalyPolicy | None = None
) -> dict[str, list[NightReason]]:
    """Return the reasons; what many nodes show is the tool's or the fabric's until proven otherwise."""
    policy = policy or AnomalyPolicy()
    seen: dict[str, set[str]] = {}
    for name, mine in reasons.items():
        for one in mine:
            if one.verdict is Verdict.FAIL:
                seen.setdefault(one.code, set()).add(name)
    wide = {
        code
        for code, some in seen.items()
        if len(some) >= policy.share_least and len(some) > policy.share * nodes
    }
    said = "; on so many nodes that it is a fault of the tool or the fabric until proven otherwise"
    return {
        name: [
            one.model_copy(update={"verdict": Verdict.UNPROVEN, "fleetwide": True, "text": one.text + said})
            if one.code in wide and one.verdict is Verdict.FAIL
            else one
            for one in mine
        ]
        for name, mine in reasons.items()
    }


@dataclass
class _PairRunner:
    """Lets nodes reduce together; keeps what came of it, and who did not meet."""

    plan: ProbePlan
    by_name: Mapping[str, Target]
    jobs: JobRunner
    remarks: list[str] = field(default_factory=list)

    def meet(self, groups: Sequence[tuple[str, ...]]) -> list[PairResult]:
        """Run a job for each group; who could not meet is in no result."""
        some = []
        for nodes in groups:
            gpus = min(self.by_name[name].gpus for name in nodes)
            text = job_script(self.plan, [FABRIC_PROBE], nodes, self.plan.pair_limit_s)
            some.append(Job(nodes, text, gpus, self.plan.pair_limit_s))
        got = []
        for nodes, one in zip(groups, self.jobs.run(some), strict=True):
            if one.how in ("left", "busy", "lost"):
                self.remarks.append(f"{'+'.join(nodes)} did not meet: {one.text}")
            else:
                got.append(read_pair(nodes, one, self.by_name[nodes[0]].references))
        return got

    def rack(self, pairs: Sequence[Pair], before: Sequence[float]) -> list[PairResult]:
        """Let pairs meet, suspects a second and a third time, and halve the suspects that are left.

        Args:
            pairs: Tonight's.
            before: Bandwidths of such pairs in earlier nights, in GB/s.
        """
        results = list(compare_pairs(self.meet(pairs), before))
        for _ in range(3):
            good, bad, suspects = _sort_pair_nodes(results)
            met = [(one.nodes[0], one.nodes[1]) for one in results]
            partners = second_partners(suspects - bad, good, met)
            fresh = self.meet([(min(one, two), max(one, two)) for one, two in partners.items()])
            if not fresh:
                break
            results = list(compare_pairs([*results, *fresh], before))
        good, bad, suspects = _sort_pair_nodes(results)

        def works(nodes: Sequence[str]) -> bool:
            got = self.meet([tuple(sorted(nodes))])
            results.extend(got)
            # Not to have met says nothing against them: who is not proven stays a suspect.
            return not got or got[0].passed

        if len(suspects - bad) > 1 and good:
            bisect_group(sorted(suspects - bad), works, helpers=sorted(good), most_runs=4 * len(suspects))
        return results


def _sort_pair_nodes(results: Iterable[PairResult]) -> tuple[set[str], set[str], set[str]]:
    """Return good nodes, bad nodes, and those that failed and passed with nobody."""
    verdicts = {(one.nodes[0], one.nodes[1]): one.passed for one in results if len(one.nodes) == 2}
    good = {name for pair, passed in verdicts.items() if passed for name in pair}
    good |= {name for one in results if len(one.nodes) > 2 and one.passed for name in one.nodes}
    failed = {name for pair, passed in verdicts.items() if not passed for name in pair}
    return good, set(find_culprits(verdicts)[0]), failed - good


def _fabric_reasons(
    results: Sequence[PairResult], racks: Mapping[str, str]
) -> tuple[dict[str, NightReason], list[NightReason]]:
    """Return who is at fault by node, and what is wrong between nodes; suspects are unproven."""
    pairs = {(min(one.nodes), max(one.nodes)): one for one in results if len(one.nodes) == 2}
    # A later meeting of the same two does not take back an earlier one.
    for one in results:
        if len(one.nodes) == 2 and not one.passed:
            pairs[min(one.nodes), max(one.nodes)] = one
    bad, links, open_ = find_culprits({pair: one.passed for pair, one in pairs.items()})
    reasons: dict[str, NightReason] = {}
    for name in sorted(bad | open_):
        mine = [one for pair, one in pairs.items() if name in pair and not one.passed]
        told = "; ".join(f"with {next(n for n in one.nodes if n != name)}: {one.text}" for one in mine)
        if name in bad:
            text = f"all-reduce fails with partners that pass with others: {told}"
        else:
            text = f"all-reduce failed and nobody could tell whose fault it is: {told}"
        verdict = Verdict.FAIL if name in bad else Verdict.UNPROVEN
        reasons[name] = NightReason(
            check="pair", verdict=verdict, metric="fabric", part=name, text=sanitize(text, 500)
        )
    between = [
        NightReason(
            check="pair", verdict=Verdict.FAIL, metric="fabric", part="+".join(pair),
            text=sanitize(f"the link between the two: each passes with others; {pairs[pair].text}", 400),
        )
        for pair in sorted(links)
    ]  # fmt: skip
    between += [
        NightReason(
            check="pair", verdict=Verdict.DEGRADED, metric="fabric", part="+".join(pair), text=one.text
        )
        for pair, one in sorted(pairs.items())
        if one.passed and one.speed is Verdict.DEGRADED
    ]
    return reasons, between


def unproven_pairs(
    night: ProbeNight, require_references: bool
) -> tuple[dict[str, tuple[NightReason, ...]], tuple[str, ...]]:
    """Return what the pairs whose speed nothing proves leave unproven, by node, and remarks.

    Args:
        night: What was measured.
        require_references: Whether a speed that was compared with nothing is unproven; a remark otherwise.
            What a floor leaves unproven always is.
    """
    reasons: dict[str, tuple[NightReason, ...]] = {}
    bare = []
    for one in night.pairs:
        if len(one.nodes) != 2 or not one.passed or one.speed not in (None, Verdict.UNPROVEN):
            continue
        if one.speed is None and not require_references:
            bare.append("+".join(one.nodes))
            continue
        why = f"; {NO_REFERENCE}, and fewer than {AnomalyPolicy().outlier_least} pairs to compare with"
        for name, other in zip(one.nodes, reversed(one.nodes), strict=True):
            text = f"right sums with {other}, and nothing proves the speed: {one.text}"
            said_ = NightReason(
                check="reference",
                verdict=Verdict.UNPROVEN,
                metric=FABRIC_METRIC,
                part=name,
                text=sanitize(text + (why if one.speed is None else ""), 400),
            )
            reasons[name] = (*reasons.get(name, ()), said_)
    if not bare:
        return reasons, ()
    return reasons, (
        f"{NO_REFERENCE}, and too few pairs to compare with: nothing proves {FABRIC_METRIC} of "
        f"{', '.join(bare[:10])}",
    )


def unmeasured_night(asked: float, nodes: Iterable[str], why: str) -> ProbeNight:
    """Return the night of which measurements were asked and none could be made: its nodes are unproven."""
    text = f"nothing was measured: {sanitize(why, 300)}"
    return ProbeNight(
        asked=asked,
        reasons={name: (_unproven("job", name, text),) for name in nodes},
        remarks=(text,),
    )


def describe_probes(night: ProbeNight | None) -> tuple[str, ...]:
    """Return in a few lines what a night measured; nothing where measuring was not asked."""
    if night is None:
        return ()
    pairs = sum(len(one.nodes) == 2 for one in night.pairs)
    lines = [
        f"measured: {len(night.measured)} nodes, {pairs} pairs, "
        f"{night.spent:.1f} of {night.asked:g} GPU-minutes"
    ]
    if night.again:
        lines.append(f"measured again, suspect by speed: {compress_hostlist(night.again)}")
    if night.unconfirmed:
        lines.append(f"suspect by speed and not measured again: {compress_hostlist(night.unconfirmed)}")
    by_reason: dict[str, list[str]] = {}
    for name, why in night.left_out.items():
        by_reason.setdefault(why, []).append(name)
    lines += [
        f"not measured: {compress_hostlist(names)}: {why}" for why, names in sorted(by_reason.items())[:10]
    ]
    return (*lines, *(f"! {one}" for one in night.remarks[:10]))
