"""Read the output of the probe jobs that ran on single nodes.

The probe scheduler calls :func:`read_node_probes` for each job. The result has the measured numbers, the
digests of the training step, and the faults that need no comparison. :func:`compare_digests` then compares
the digests of the fleet. The only I/O is reading the definitions of benchmarks. A digest is the SHA-256 of
the result of a fixed computation, so that equal GPUs must give equal digests. The training step prints it as
a line::

    :::MLLOG {"key": "training_digest", "value": {"alike": "NVIDIA H200, ...", "digest": "9f86...",
    "labels": {"gpu": "GPU-5f3c..."}}}
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import TypeVar

from rackproof.analysis.pair_speeds import parse_section
from rackproof.core.definitions import Definition, JudgeRule, Parameters, load_definition
from rackproof.core.judging import SkuReference, judge_run
from rackproof.core.records import Measurement, ParsedLog, Verdict
from rackproof.core.text import amount, sanitize
from rackproof.logs import FORMATS
from rackproof.nodes.probe_slurm_jobs import (
    OUT_OF_TIME,
    PROBES,
    JobResult,
    Probe,
    ProbePlan,
    Section,
    last_lines,
    probe_arguments,
)
from rackproof.store.night_store import NightReason

_Item = TypeVar("_Item")
_GPU_LABELS = ("gpu", "from", "to")
_NODE_LABELS = ("node", "host")
"""Labels of a number that name a GPU (above), and labels that name a node."""
_UUIDS = ("GPU-", "MIG-")
"""Prefixes of the UUIDs of GPUs and of their partitions."""
NOT_RUN = ("left", "busy", "lost")
"""Ends of a job that measured nothing: the budget or the share had no room for it, the node was in use, or
the job never began."""


@dataclass(frozen=True)
class ProbeTarget:
    """A node with a snapshot, which a night may measure.

    Attributes:
        name: The node's name in the inventory.
        gpus: The number of GPUs in the snapshot.
        references: The references of the node's SKU.
        partitions: The node's partitions in Slurm.
        busy: The reason why Slurm jobs cannot measure the node tonight, or "" if it is idle.
        uuids: The UUIDs of the GPUs, if known.
        nvlink_domain: Whether NVLink connects the node with the others of its rack.
        suspect: Whether the node failed or was degraded in its last night.
    """

    name: str
    gpus: int
    sku: str = ""
    rack: str = ""
    partitions: tuple[str, ...] = ()
    references: tuple[SkuReference, ...] = ()
    busy: str = ""
    uuids: frozenset[str] = frozenset()
    nvlink_domain: bool = False
    suspect: bool = False

    def knows(self, labels: Collection[str]) -> bool:
        """Return whether all GPUs that labels name are the node's own.

        Only labels in the form of a UUID name a GPU. Return True if the UUIDs of the node's GPUs are unknown.
        A node without GPUs owns none.
        """
        if self.uuids or self.gpus == 0:
            return all(label in self.uuids or not label.startswith(_UUIDS) for label in labels)
        return True


def read_digests(text: str) -> list[tuple[str, str, str]]:
    """Return kind, part and digest of each device in a training step's log. Invalid lines are ignored.

    The digests of devices of one kind must be equal. The kind (``alike``) includes the software.
    """
    digests = []
    for line in text.splitlines():
        head, mark, event_text = line.partition(":::MLLOG ")
        # A mark in the middle of a line comes from a program that quotes a log.
        if mark and not head.strip() and '"training_digest"' in event_text:
            digests += _read_digest(event_text)
    return digests


def _read_digest(line: str) -> list[tuple[str, str, str]]:
    """Return the digest in a line, or an empty list if the line is invalid. A node may write anything."""
    try:
        value = json.loads(line)["value"]
        part = str(value["labels"].get("gpu", ""))
        digest = str(value["digest"])
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            return []
        return [(sanitize(str(value["alike"]), 400), sanitize(part, 100), digest)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


Digests = Mapping[str, Sequence[tuple[str, str, str]]]
"""The digests of each node, as :func:`read_digests` returns them."""


def compare_digests(
    digests: Digests, known: Mapping[str, str]
) -> tuple[dict[str, list[NightReason]], dict[str, str], tuple[str, ...]]:
    """Compare the results of the training step bit by bit across a fleet.

    The devices of a node share one vote, so a node that lists too many GPUs does not outvote others. These
    rules select the right digest of a kind of device, in this order:

    1. The digest of at least three devices, with more than half of the votes. It replaces another digest of
       earlier nights, with a remark. If a device still gives that other digest, no digest is right tonight.
    2. The digest on which earlier nights agreed.
    3. The digest of two or more devices, if no other device of the kind differs. It becomes the reference of
       later nights.

    A device with another than the right digest fails. Without a right digest, the devices are unproven. A
    single device gets only a remark.

    Args:
        digests: The digests by node, as :func:`read_digests` returns them.
        known: The digests on which earlier nights agreed, by kind.

    Returns:
        The reasons by node, the digests now agreed on by kind, and remarks.
    """
    reasons: dict[str, list[NightReason]] = {}
    agreed = dict(known)
    remarks = []
    for alike, group in sorted(_digests_by_kind(digests).items()):
        counts = Counter(digest for *_, digest in group)
        majority = _majority_digest(group)
        if majority and known.get(alike, majority) != majority:
            remarks.append(
                f"the training step gives other bits than in earlier nights on {counts[majority]} of "
                f"{amount(len(group), 'device')}, with the same software ({alike}): a fault of the tool "
                "until proven otherwise"
            )
        contradicts = bool(majority) and majority != known.get(alike, majority) in counts
        right = "" if contradicts else majority or known.get(alike, "")
        if right:
            agreed[alike] = right
        elif len(group) == 1:
            remarks.append(
                f"the training step of {group[0][0]} was compared with nothing: no other device of its "
                f"kind, and none in earlier nights ({alike})"
            )
            continue
        elif len(counts) == 1:
            # Two equal devices are not a majority of three, but a reference for later nights.
            agreed[alike] = group[0][2]
            continue
        for node, reason in _odd_devices(alike, group, right):
            reasons.setdefault(node, []).append(reason)
    return reasons, agreed, tuple(remarks)


def _odd_devices(
    alike: str, group: Sequence[tuple[str, str, str]], right: str
) -> Iterator[tuple[str, NightReason]]:
    """Yield the node and the reason of each device whose digest is not the right one."""
    agreeing = sum(digest == right for *_, digest in group)
    for node, part, digest in group:
        if digest != right:
            yield node, _digest_reason(alike, part or node, digest, right, agreeing)


def _digests_by_kind(digests_by_part: Digests) -> dict[str, list[tuple[str, str, str]]]:
    """Return node, part and digest of all devices that must give the same bits."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for node, digests in digests_by_part.items():
        for alike, part, digest in digests:
            groups.setdefault(alike, []).append((node, part, digest))
    return groups


def _majority_digest(group: Sequence[tuple[str, str, str]]) -> str:
    """Return the digest of three devices or more with more than half of the nodes' votes, or ""."""
    devices = Counter(node for node, *_ in group)
    votes: dict[str, Fraction] = {}
    for node, _, digest in group:
        votes[digest] = votes.get(digest, Fraction()) + Fraction(1, devices[node])
    digest, most = max(votes.items(), key=lambda vote: vote[1])
    count = sum(other_digest == digest for *_, other_digest in group)
    return digest if count >= 3 and 2 * most > len(devices) else ""


def _digest_reason(alike: str, part: str, digest: str, reference: str, agreeing: int) -> NightReason:
    """Return the reason why a device's bits do not pass. ``reference`` is "" if it is unknown."""
    if reference:
        verdict = Verdict.FAIL
        basis = f"on {agreeing} devices of its kind" if agreeing else "in earlier nights"
        text = (
            f"the same training step as {basis} gave other bits: it computes "
            f"wrongly ({digest[:12]} instead of {reference[:12]}; {alike})"
        )
    else:
        verdict = Verdict.UNPROVEN
        text = f"devices of its kind disagree and none is known to be right ({digest[:12]}; {alike})"
    return NightReason(check="bits", verdict=verdict, metric="training step", part=part, text=text)


@dataclass(frozen=True)
class NodeMeasurements:
    """The measurements of a node's job.

    Attributes:
        measurements: Numbers, which are judged later by floors, fleet and history.
        reasons: Faults that need no comparison.
        digests: The kind, part and digest of each device in the training step.
        sound: Names of the programs that ended well and found no fault.
    """

    measurements: tuple[Measurement, ...] = ()
    reasons: tuple[NightReason, ...] = ()
    digests: tuple[tuple[str, str, str], ...] = ()
    sound: tuple[str, ...] = ()


def read_node_probes(
    plan: ProbePlan, target: ProbeTarget, result: JobResult, probes: Sequence[Probe] | None = None
) -> NodeMeasurements:
    """Return the measurements of a node's job. Wrong values fail, and missing values are unproven.

    Args:
        plan: The plan of the measurement.
        target: The measured node.
        result: The end and the output of the node's job.
        probes: The programs of the job. None, or an empty sequence, means all programs that suit the node and
            the plan.

    Raises:
        DefinitionError: The definition of a program's benchmark cannot be read.
    """
    sections = {section.name: section for section in result.sections}
    programs = probes or wanted_probes(plan, target)
    readings = [
        _read_program(plan, target, probe, sections.get(probe.name), result.text) for probe in programs
    ]
    reasons = _flat(reading.reasons for reading in readings)
    sound = tuple(
        probe.name for probe, reading in zip(programs, readings, strict=True) if not reading.reasons
    )
    if result.how != "ok" and not any(reason.verdict.gates for reason in reasons):
        # Each program ended well, but the job did not. Whatever the cause, this is not a pass.
        problem = f"{result.how}: {result.text or 'no reason was given'}"
        reasons = (*reasons, unproven_reason("job", target.name, problem))
    return NodeMeasurements(
        _flat(reading.measurements for reading in readings),
        reasons,
        _flat(reading.digests for reading in readings),
        sound,
    )


def _flat(groups: Iterable[tuple[_Item, ...]]) -> tuple[_Item, ...]:
    """Return the items of several tuples as one tuple."""
    return tuple(chain.from_iterable(groups))


def _read_program(
    plan: ProbePlan, target: ProbeTarget, probe: Probe, section: Section | None, job_text: str
) -> NodeMeasurements:
    """Return the measurements of one program of a job.

    ``section`` is None if the program did not start. ``job_text`` is the reason why the job did not end well.
    """
    if section is None:
        problem = job_text or "it did not run"
        return NodeMeasurements(reasons=(unproven_reason(probe.name, target.name, problem),))
    if section.status != 0:
        problem = _end_of_section(section)
        return NodeMeasurements(reasons=(unproven_reason(probe.name, target.name, problem),))
    if probe.benchmark:
        return _read_benchmark(plan, target, probe, section)
    devices = target.gpus if plan.device == "gpu" else 1
    digests = _own_digests(target, section.text, devices)
    if len(digests) == devices:
        return NodeMeasurements(digests=tuple(digests))
    # Return the digests that exist, so that a device without a result cannot hide one with a wrong result.
    text = f"{len(digests)} of {devices} devices gave a result"
    return NodeMeasurements(digests=tuple(digests), reasons=(unproven_reason(probe.name, target.name, text),))


def _own_digests(target: ProbeTarget, text: str, devices: int) -> list[tuple[str, str, str]]:
    """Return at most one digest for each of a node's devices, and none of other devices."""
    by_part: dict[str, tuple[str, str, str]] = {}
    for digest in read_digests(text):
        if target.knows({digest[1]}):
            by_part.setdefault(digest[1], digest)
    return list(by_part.values())[:devices]


def _end_of_section(section: Section) -> str:
    """Describe how a program ended, with its last lines."""
    end = "did not end in time" if section.status in OUT_OF_TIME else f"ended with {section.status}"
    return f"{end}: {last_lines(section.text)}"


def _read_benchmark(plan: ProbePlan, target: ProbeTarget, probe: Probe, section: Section) -> NodeMeasurements:
    """Return the speeds that a program measured, and the faults according to its benchmark's own rules."""
    definition = _definition(plan, probe)
    rules = definition.result.judge
    whole_log = parse_section(section)
    log = whole_log.model_copy(update={"measurements": tuple(_own_measurements(target, whole_log))})
    outcome = judge_run(
        rules,
        [log],
        (),
        lambda _: (),
        parameters={
            **_point(definition, probe, plan.device),
            "gpus": target.gpus if plan.device == "gpu" else 0,
        },
        # Here, a speed needs no reference. Floors, fleet and history judge the speeds of all nodes later.
        require_references=False,
        source=f"benchmarks/{probe.benchmark}.yml",
    )
    reasons = [
        NightReason(
            check="probe",
            verdict=judgement.verdict,
            metric=f"{probe.name} {judgement.metric}",
            part=judgement.labels.get("gpu") or target.name,
            text=sanitize(judgement.reason, 400),
        )
        for judgement in outcome.judgements
        if judgement.verdict.gates and judgement.gating
    ]
    if outcome.verdict.gates and not reasons:
        text = outcome.reasons[0] if outcome.reasons else "its log proves nothing"
        reasons.append(unproven_reason(probe.name, target.name, text))
    if plan.device == "gpu":
        reasons += _silent_gpus(probe.name, target, rules, whole_log)
    return NodeMeasurements(tuple(_speeds(target, rules, log)), tuple(reasons))


def _own_measurements(target: ProbeTarget, log: ParsedLog) -> list[Measurement]:
    """Return the numbers about this node. Numbers about other nodes' GPUs are ignored."""
    return [
        number
        for number in log.measurements
        if _labels(number, _NODE_LABELS) <= {target.name}
        if target.knows(_labels(number, _GPU_LABELS))
    ]


def _labels(number: Measurement, keys: Sequence[str]) -> set[str]:
    """Return the values of some labels of a number."""
    return {number.labels[key] for key in keys if key in number.labels}


def _speeds(target: ProbeTarget, rules: Sequence[JudgeRule], log: ParsedLog) -> list[Measurement]:
    """Return the numbers that need a comparison, because their rule states no bound.

    A candidate is returned only if the SKU has a reference for its metric.
    """
    referenced = {reference.metric for reference in target.references}
    unbounded = [
        rule
        for rule in rules
        if rule.at_least is rule.at_most is rule.equals is None
        if not rule.candidate or rule.metric in referenced
    ]
    speeds = []
    for number in log.measurements:
        if any(_rule_covers(rule, number) for rule in unbounded):
            # A number without a GPU belongs to the node. Numbers of several nodes are stored as one run.
            labels = {} if {"gpu", "from"} & set(number.labels) else {"node": target.name}
            speeds.append(number.model_copy(update={"labels": {**number.labels, **labels}}))
    return speeds


def _rule_covers(rule: JudgeRule, number: Measurement) -> bool:
    """Return whether a rule judges a number."""
    return rule.metric == number.name and rule.labels.items() <= number.labels.items()


def _silent_gpus(
    probe: str, target: ProbeTarget, rules: Sequence[JudgeRule], log: ParsedLog
) -> list[NightReason]:
    """Return reasons for metrics without a number of each GPU, and for GPUs that are not in the node."""
    reasons = []
    named = {label for measurement in log.measurements for label in _labels(measurement, _GPU_LABELS)}
    if strange := sorted(label for label in named if not target.knows({label})):
        text = f"{', '.join(strange[:4])}: not a GPU of this node; its numbers were dropped"
        reasons.append(unproven_reason(probe, target.name, text))
    for metric in dict.fromkeys(rule.metric for rule in rules):
        reporting = _gpus_with(metric, log)
        # A metric without a GPU is measured once for each node.
        if reporting and len(reporting) != target.gpus:
            text = f"{metric}: {len(reporting)} of {amount(target.gpus, 'GPU')} gave a result"
            reasons.append(unproven_reason(probe, target.name, text))
    return reasons


def _gpus_with(metric: str, log: ParsedLog) -> set[str]:
    """Return the GPUs for which a log states a metric."""
    return {
        measurement.labels["gpu"]
        for measurement in log.measurements
        if measurement.name == metric and "gpu" in measurement.labels
    }


def measures(plan: ProbePlan, probe: Probe, metrics: Collection[str]) -> bool:
    """Return whether the benchmark of a program has a rule for one of the given metrics."""
    return bool(probe.benchmark) and any(
        rule.metric in metrics for rule in _definition(plan, probe).result.judge
    )


def program_points(benchmarks: Path) -> dict[str, Parameters]:
    """Return the parameters with which a night runs its programs on GPUs, by benchmark.

    The number of GPUs is not among them, because it differs between nodes.

    Args:
        benchmarks: The folder of the definitions.

    Raises:
        DefinitionError: A definition cannot be read.
    """
    return {
        probe.benchmark: _point(_load_definition(benchmarks / f"{probe.benchmark}.yml"), probe, "gpu")
        for probe in PROBES
        if probe.benchmark
    }


def _point(definition: Definition, probe: Probe, device: str) -> Parameters:
    """Return a benchmark's parameters, with the values that the options of a night's program set."""
    arguments = probe_arguments(probe, device) or ()
    options = {word.removeprefix("--"): value for word, value in pairwise(arguments) if word.startswith("--")}
    return {**definition.parameters, **options}


def _definition(plan: ProbePlan, probe: Probe) -> Definition:
    """Return the definition of the benchmark of a program."""
    return _load_definition(plan.benchmarks / f"{probe.benchmark}.yml")


# The same few definitions judge a thousand nodes, so each file is read only once per process.
@lru_cache(maxsize=32)
def _load_definition(path: Path) -> Definition:
    """Return the definition in a file of benchmarks/."""
    return load_definition(path, log_formats=FORMATS).definition


def wanted_probes(plan: ProbePlan, target: ProbeTarget) -> list[Probe]:
    """Return the programs that suit a node and the plan, including optional tests."""
    return [
        probe
        for probe in PROBES
        if probe.name in plan.chosen
        and probe_arguments(probe, plan.device) is not None
        and (plan.device == "cpu" or target.gpus >= probe.least_gpus)
    ]


def unproven_reason(probe: str, part: str, text: str) -> NightReason:
    """Return the reason for a program that proved nothing."""
    return NightReason(
        check="probe", verdict=Verdict.UNPROVEN, metric=probe, part=part, text=sanitize(text, 400)
    )
