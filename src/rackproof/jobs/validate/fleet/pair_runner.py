"""Measure nodes in pairs, and find the nodes and links at fault.

The probe scheduler of job validate calls :func:`measure_pairs` after it measured each node alone. The input
is the nodes that are good alone, the pairs of earlier nights, and a runner of Slurm jobs. The two nodes of a
pair run one all-reduce together, which must give right sums at a normal speed. The judgement of the night
calls :func:`unproven_pairs`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rackproof.analysis.anomaly import AnomalyPolicy
from rackproof.analysis.pair_speeds import FABRIC_METRIC, compare_pairs, earlier_bandwidths, read_pair
from rackproof.core.judging import NO_REFERENCE
from rackproof.core.records import Verdict
from rackproof.core.text import sanitize
from rackproof.jobs.validate.fleet.node_readings import NOT_RUN, ProbeTarget
from rackproof.jobs.validate.fleet.pairing import (
    Pair,
    bisect_group,
    find_culprits,
    pairs_of_night,
    second_partners,
)
from rackproof.nodes.probe_slurm_jobs import (
    DOMAIN_PROBE,
    FABRIC,
    FABRIC_PROBE,
    Job,
    JobRunner,
    ProbePlan,
    job_script,
)
from rackproof.store.night_store import NightReason
from rackproof.store.probe_results import PairResult, ProbeNight


def pair_group(target: ProbeTarget) -> str:
    """Return the rack and SKU of a node. Nodes are only paired and compared within this group."""
    return f"{target.rack}/{target.sku}"


def pairs_tonight(
    targets: Sequence[ProbeTarget],
    able: Collection[str],
    turns: Mapping[str, int],
    past: Sequence[ProbeNight],
) -> dict[str, tuple[Pair, ...]]:
    """Return tonight's pairs, by rack and SKU.

    These are the pairs of the tournament's round, and pairs of the other nodes. The pairs that were measured
    longest ago, or never, come first.

    Args:
        targets: All nodes. The rounds must be the same, whichever nodes are idle.
        able: The nodes that can be measured tonight.
        turns: The number of nights with pairs so far, by rack and SKU (:func:`pair_group`).
        past: The records of earlier nights, newest first.
    """
    met = _nights_since_meeting(past)
    never = len(past)
    able_names = set(able)
    racks: dict[str, list[str]] = {}
    for target in targets:
        racks.setdefault(pair_group(target), []).append(target.name)
    pairs_by_rack: dict[str, tuple[Pair, ...]] = {}
    for key, names in racks.items():
        planned = [pair for pair in pairs_of_night(names, turns.get(key, 0)) if able_names.issuperset(pair)]
        partnerless = (able_names & set(names)).difference(*planned)
        planned += _pair_rest(sorted(partnerless), met, never)
        if planned:
            # The pairs with the oldest measurement come first, so that a small budget does not always
            # omit the same pairs.
            planned.sort(key=lambda pair: (-met.get(pair, never), pair))
            pairs_by_rack[key] = tuple(planned)
    return pairs_by_rack


def _nights_since_meeting(past: Sequence[ProbeNight]) -> dict[Pair, int]:
    """Return how many nights ago two nodes were last measured as a pair, 0 for the newest night.

    Pairs that were never measured are left out.
    """
    met: dict[Pair, int] = {}
    for ago, night in enumerate(past):
        for result in night.pairs:
            if len(result.nodes) == 2:
                met.setdefault(_ordered_pair(*result.nodes), ago)
    return met


def _pair_rest(free: Sequence[str], met: Mapping[Pair, int], never: int) -> list[Pair]:
    """Return pairs of the nodes without a partner in this round. If the number of nodes is odd, one is left.

    In the given order, each node gets the free partner that it never met, or else met longest ago.

    Args:
        free: The nodes.
        met: The number of nights since the nodes of a pair met (:func:`_nights_since_meeting`).
        never: The number in place of a missing one.
    """
    pairs = []
    while len(free) > 1:
        node, *candidates = free
        waits = {name: met.get(_ordered_pair(node, name), never) for name in candidates}
        partner = max(candidates, key=lambda name: (waits[name], name))
        pairs.append(_ordered_pair(node, partner))
        free = [name for name in candidates if name != partner]
    return pairs


def _ordered_pair(name: str, partner: str) -> Pair:
    """Return two nodes in alphabetical order, so that each pair is always the same."""
    return min(name, partner), max(name, partner)


@dataclass(frozen=True)
class FabricMeasurements:
    """The results of a night's pairs.

    Attributes:
        results: The result of each measured pair or group.
        blamed: The reason why a node fails or is unproven, by node.
        between: The failures and warnings about links between two nodes.
        turns: The number of nights with pairs so far, by rack and SKU.
        remarks: The pairs and groups that were not measured, with the reason. At most 20 are listed.
    """

    results: tuple[PairResult, ...] = ()
    blamed: Mapping[str, NightReason] = field(default_factory=dict)
    between: tuple[NightReason, ...] = ()
    turns: dict[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def measure_pairs(
    plan: ProbePlan,
    targets: Sequence[ProbeTarget],
    able: Collection[str],
    past: Sequence[ProbeNight],
    jobs: JobRunner,
) -> FabricMeasurements:
    """Measure the nodes of each rack in pairs, or nothing if the plan contains no fabric probe.

    Args:
        plan: The plan of the measurement.
        targets: All nodes with a snapshot.
        able: The nodes that may be paired tonight.
        past: The measurements of earlier nights, newest first.
        jobs: The runner of jobs.

    Raises:
        ProbeError: Slurm's host no longer answers.
    """
    turns = dict(next((night.turns for night in past if night.turns), {}))
    if FABRIC not in plan.chosen:
        # Keep the turns, so that a night without pairs does not restart the tournament.
        return FabricMeasurements(turns=turns)
    tonight = pairs_tonight(targets, able, turns, past)
    meeting = _PairRunner(plan, {target.name: target for target in targets}, jobs)
    results: list[PairResult] = []
    for key, pairs in tonight.items():
        members = {target.name for target in targets if pair_group(target) == key}
        results += meeting.measure_rack(pairs, earlier_bandwidths(past, members))
    blamed, between = _fabric_reasons(results)
    for key in _racks_that_met(tonight, results):
        turns[key] = turns.get(key, 0) + 1
    return FabricMeasurements(
        tuple(results), blamed, tuple(between), turns, remarks=tuple(meeting.remarks[:20])
    )


def _racks_that_met(tonight: Mapping[str, Sequence[Pair]], results: Sequence[PairResult]) -> Iterator[str]:
    """Yield the racks and SKUs with at least one measured pair. The others repeat their round next night."""
    met = {frozenset(result.nodes) for result in results}
    for key, pairs in tonight.items():
        if any(frozenset(pair) in met for pair in pairs):
            yield key


@dataclass
class _PairRunner:
    """A runner of all-reduces on groups of nodes.

    ``remarks`` lists the groups that were not measured, with the reason.
    """

    plan: ProbePlan
    by_name: Mapping[str, ProbeTarget]
    jobs: JobRunner
    remarks: list[str] = field(default_factory=list)

    def meet(self, groups: Sequence[tuple[str, ...]]) -> list[PairResult]:
        """Run a job for each group. A group whose job did not run is only in the remarks."""
        results = []
        ended = self.jobs.run([self._job(nodes) for nodes in groups])
        for nodes, job in zip(groups, ended, strict=True):
            if job.how in NOT_RUN:
                self.remarks.append(f"{'+'.join(nodes)} did not meet: {job.text}")
            else:
                results.append(read_pair(nodes, job, self.by_name[nodes[0]].references))
        return results

    def _job(self, nodes: tuple[str, ...]) -> Job:
        """Return the job that runs an all-reduce on a group of nodes."""
        # A job requests the same number of GPUs on each node, so the node with the fewest sets the number.
        gpus = min(self.by_name[name].gpus for name in nodes)
        in_domain = all(self.by_name[name].nvlink_domain for name in nodes)
        probe = DOMAIN_PROBE if in_domain else FABRIC_PROBE
        text = job_script(self.plan, [probe], nodes, self.plan.pair_limit_s)
        return Job(nodes, text, gpus, self.plan.pair_limit_s)

    def measure_rack(self, pairs: Sequence[Pair], before: Sequence[float]) -> list[PairResult]:
        """Measure pairs, and find out which nodes are at fault in the pairs that fail.

        The nodes of a failed pair are suspects, and get other partners. If suspects remain, measure
        halves of them.

        Args:
            pairs: The pairs of tonight.
            before: The bandwidths of such pairs in earlier nights, in GB/s.
        """
        results = list(compare_pairs(self.meet(pairs), before))
        # A suspect is bad if it fails with two good partners. The number of rounds is limited, because
        # the partners may fail, too.
        for _ in range(3):
            fresh = self._meet_second_partners(results)
            if not fresh:
                break
            results = list(compare_pairs([*results, *fresh], before))
        self._halve_suspects(results)
        return results

    def _meet_second_partners(self, results: Sequence[PairResult]) -> list[PairResult]:
        """Measure the suspects with partners that are good."""
        good, bad, suspects = _sort_pair_nodes(results)
        met = [(result.nodes[0], result.nodes[1]) for result in results]
        partners = second_partners(suspects - bad, good, met)
        return self.meet([_ordered_pair(suspect, partner) for suspect, partner in partners.items()])

    def _halve_suspects(self, results: list[PairResult]) -> None:
        """Measure halves of the suspects that are not known to be bad, and add the results to ``results``.

        Do nothing if there is only one such suspect, or no good node to measure a single suspect with.
        """
        good, bad, suspects = _sort_pair_nodes(results)

        def works(nodes: Sequence[str]) -> bool:
            met = self.meet([tuple(sorted(nodes))])
            results.extend(met)
            # A group that was not measured is no evidence against its nodes. Without another result, they
            # remain suspects.
            return not met or met[0].passed

        if len(suspects - bad) > 1 and good:
            met = [(result.nodes[0], result.nodes[1]) for result in results if len(result.nodes) == 2]
            bisect_group(
                sorted(suspects - bad), works, helpers=sorted(good), met=met, most_runs=4 * len(suspects)
            )


def _sort_pair_nodes(results: Iterable[PairResult]) -> tuple[set[str], set[str], set[str]]:
    """Return the good nodes, the bad nodes, and the suspects: nodes whose pairs failed and that never passed.

    The bad nodes are among the suspects, too.
    """
    results = list(results)
    verdicts = {
        (result.nodes[0], result.nodes[1]): result.passed for result in results if len(result.nodes) == 2
    }
    good = _names(pair for pair, passed in verdicts.items() if passed)
    good |= _good_in_groups(results)
    failed = _names(pair for pair, passed in verdicts.items() if not passed)
    return good, set(find_culprits(verdicts, good)[0]), failed - good


def _good_in_groups(results: Iterable[PairResult]) -> set[str]:
    """Return the nodes of larger groups that passed. If a group fails, any of its nodes may be bad."""
    return _names(result.nodes for result in results if len(result.nodes) > 2 and result.passed)


def _names(groups: Iterable[Sequence[str]]) -> set[str]:
    """Return the names of all nodes in some groups."""
    return {name for nodes in groups for name in nodes}


def _fabric_reasons(
    results: Sequence[PairResult],
) -> tuple[dict[str, NightReason], list[NightReason]]:
    """Return the reason of each bad or suspect node, and the failures and warnings about links.

    A suspect is unproven. Only pairs give reasons. Larger groups that passed only show that their nodes are
    good.
    """
    pairs = _deciding_meetings(results)
    passed = {pair: result.passed for pair, result in pairs.items()}
    bad, links, suspects = find_culprits(passed, _good_in_groups(results))
    reasons = {name: _node_reason(name, pairs, name in bad) for name in sorted(bad | suspects)}
    between = [
        NightReason(
            check="pair",
            verdict=Verdict.FAIL,
            metric="fabric",
            part="+".join(pair),
            text=sanitize(f"the link between the two: each passes with others; {pairs[pair].text}", 400),
        )
        for pair in sorted(links)
    ]
    between += [
        NightReason(
            check="pair", verdict=Verdict.DEGRADED, metric="fabric", part="+".join(pair), text=result.text
        )
        for pair, result in sorted(pairs.items())
        if result.passed and result.speed is Verdict.DEGRADED
    ]
    return reasons, between


def _deciding_meetings(results: Sequence[PairResult]) -> dict[Pair, PairResult]:
    """Return the measurement that counts for each pair.

    The last measurement that failed counts, or else the last measurement.
    """
    of_two = [(_ordered_pair(*result.nodes), result) for result in results if len(result.nodes) == 2]
    pairs = dict(of_two)
    # A pass does not cancel a failure of the same pair, whichever is the later one.
    pairs.update((pair, result) for pair, result in of_two if not result.passed)
    return pairs


def _node_reason(name: str, pairs: Mapping[Pair, PairResult], is_bad: bool) -> NightReason:
    """Return the reason why a node fails, or why it is unproven as a suspect."""
    failures = [result for pair, result in pairs.items() if name in pair and not result.passed]
    failures_text = "; ".join(f"with {_partner(name, failure.nodes)}: {failure.text}" for failure in failures)
    if is_bad:
        text = f"all-reduce fails with partners that pass with others: {failures_text}"
    else:
        text = f"all-reduce failed and it is not known which node is at fault: {failures_text}"
    verdict = Verdict.FAIL if is_bad else Verdict.UNPROVEN
    return NightReason(check="pair", verdict=verdict, metric="fabric", part=name, text=sanitize(text, 500))


def _partner(name: str, nodes: Sequence[str]) -> str:
    """Return the other node of a pair."""
    return next(node for node in nodes if node != name)


def unproven_pairs(
    night: ProbeNight, require_references: bool
) -> tuple[dict[str, tuple[NightReason, ...]], tuple[str, ...]]:
    """Return the reasons why the speed of a node's pair is unproven, by node, and remarks. No I/O.

    Args:
        night: The measurements of the night.
        require_references: Whether a speed that was compared with nothing is unproven. If false, it is
            only a remark. A speed that a floor leaves unproven is a reason in both cases.
    """
    reasons: dict[str, tuple[NightReason, ...]] = {}
    uncompared = []
    for pair in night.pairs:
        if not _speed_is_unproven(pair):
            continue
        if pair.speed is None and not require_references:
            uncompared.append("+".join(pair.nodes))
            continue
        for name, node in zip(pair.nodes, reversed(pair.nodes), strict=True):
            reasons[name] = (*reasons.get(name, ()), _unproven_speed(name, node, pair))
    if not uncompared:
        return reasons, ()
    return reasons, (
        f"{NO_REFERENCE}, and too few pairs to compare with: nothing proves {FABRIC_METRIC} of "
        f"{', '.join(uncompared[:10])}",
    )


def _speed_is_unproven(result: PairResult) -> bool:
    """Return whether a pair computed the right sums, but nothing proves its speed."""
    return len(result.nodes) == 2 and result.passed and result.speed in (None, Verdict.UNPROVEN)


def _unproven_speed(name: str, partner: str, result: PairResult) -> NightReason:
    """Return the reason why the speed of a node's pair is unproven."""
    text = f"right sums with {partner}, and nothing proves the speed: {result.text}"
    if result.speed is None:
        text += f"; {NO_REFERENCE}, and fewer than {AnomalyPolicy().outlier_least} pairs to compare with"
    return NightReason(
        check="reference",
        verdict=Verdict.UNPROVEN,
        metric=FABRIC_METRIC,
        part=name,
        text=sanitize(text, 400),
    )
