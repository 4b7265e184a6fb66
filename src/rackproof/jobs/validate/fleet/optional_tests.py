"""Plan which optional tests (``sdc``, ``soak``, ``llm``) a night runs on which nodes. No I/O.

The probe scheduler of job validate calls :func:`plan_optional_tests` before it measures. The input is the
plan of the night's measurements, the idle nodes, and the tests that earlier nights ran.

``sdc`` looks for silently wrong results, ``soak`` heats the GPUs for minutes, and ``llm`` trains a small
language model. A GPU-minute is one minute of one GPU. A soak of a whole fleet takes longer than a night. Each
night therefore runs only some of the optional tests, within a share of its budget. The test that ran longest
ago on its node is the first. A suspect node (one that failed or was degraded in its last night) gets its turn
sooner. All other measurements use the rest of the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rackproof.core.hostlist import compress_hostlist
from rackproof.jobs.validate.fleet.node_readings import ProbeTarget, wanted_probes
from rackproof.nodes.probe_slurm_jobs import FABRIC, Job, Probe, ProbePlan
from rackproof.store.probe_results import ProbeNight

BUDGET_SHARE = 0.5
"""Share of a night's budget that optional tests may use. Only the first planned test may use more."""
SUSPECT_FACTOR = 3
"""Factor by which the last test of a suspect node counts as older than it is."""


@dataclass(frozen=True)
class _Turn:
    """An optional test that a node waits for.

    Attributes:
        node: The node.
        probe: The test.
        urgency: The number of nights since the test last ran on the node, times :data:`SUSPECT_FACTOR` for a
            suspect node. A test that never ran counts as older than all known nights.
    """

    node: ProbeTarget
    probe: Probe
    urgency: int


def plan_optional_tests(
    plan: ProbePlan, targets: Sequence[ProbeTarget], past: Sequence[ProbeNight]
) -> dict[str, tuple[Probe, ...]]:
    """Return tonight's optional tests by node. Nodes without a test are left out.

    Args:
        plan: The plan of the night's measurements.
        targets: The nodes that could be measured.
        past: The measurements of earlier nights, newest first.
    """
    tonight: dict[str, tuple[Probe, ...]] = {}
    minutes_left = BUDGET_SHARE * plan.minutes
    for turn in _turns(plan, targets, past):
        name = turn.node.name
        probes_tonight = tonight.get(name, ())
        longer = _job_minutes(plan, turn.node, (*probes_tonight, turn.probe))
        added = longer - _job_minutes(plan, turn.node, probes_tonight)
        # The most urgent test may use more than the share, because a long test would otherwise never run.
        if longer <= plan.minutes and (added <= minutes_left or not tonight):
            tonight[name] = (*probes_tonight, turn.probe)
            minutes_left -= added
    return tonight


def oversized_tests(plan: ProbePlan, targets: Sequence[ProbeTarget]) -> tuple[str, ...]:
    """Return remarks about optional tests whose job is too long for any night's budget."""
    by_test: dict[str, dict[str, float]] = {}
    for node in targets:
        for probe in _optional(plan, node):
            if (minutes := _job_minutes(plan, node, (probe,))) > plan.minutes:
                by_test.setdefault(probe.name, {})[node.name] = minutes
    return tuple(
        f"{test} never runs on {compress_hostlist(list(minutes_by_node))}: its job may take "
        f"{max(minutes_by_node.values()):g} GPU-minutes, and validate_probe_gpu_minutes is {plan.minutes:g}"
        for test, minutes_by_node in sorted(by_test.items())
    )


def smallest_job_minutes(plan: ProbePlan, targets: Sequence[ProbeTarget]) -> float:
    """Return the GPU-minutes that the smallest job of a night may take, or 0 if there is no job.

    Pairs count only if no node is measured alone, because a node is paired after its own job.
    """
    alone = [
        _job_minutes(plan, target, [probe] if probe.optional else [])
        for target in targets
        for probe in wanted_probes(plan, target)
    ]
    if alone or FABRIC not in plan.chosen or len(targets) < 2:
        return min(alone, default=0)
    pair = (targets[0].name, targets[1].name)
    return Job(pair, "", min(target.gpus for target in targets), plan.pair_limit_s).minutes


def tonights_probes(
    plan: ProbePlan, target: ProbeTarget, tests: Mapping[str, Sequence[Probe]]
) -> tuple[Probe, ...]:
    """Return tonight's programs for a node: the programs of every night, and the planned tests."""
    every = (probe for probe in wanted_probes(plan, target) if not probe.optional)
    return (*every, *tests.get(target.name, ()))


def _turns(plan: ProbePlan, targets: Sequence[ProbeTarget], past: Sequence[ProbeNight]) -> list[_Turn]:
    """Return the optional tests of all nodes, the most urgent first."""
    ago: dict[tuple[str, str], int] = {}
    for nights, night in enumerate(past, start=1):
        for name, tests in night.tests.items():
            for test in tests:
                ago.setdefault((name, test), nights)
    turns = [
        _Turn(
            node,
            probe,
            ago.get((node.name, probe.name), len(past) + 1) * (SUSPECT_FACTOR if node.suspect else 1),
        )
        for node in targets
        for probe in _optional(plan, node)
    ]
    return sorted(turns, key=lambda turn: (-turn.urgency, turn.node.name, turn.probe.name))


def _optional(plan: ProbePlan, target: ProbeTarget) -> list[Probe]:
    """Return the optional tests that the plan contains for a node."""
    return [probe for probe in wanted_probes(plan, target) if probe.optional]


def _job_minutes(plan: ProbePlan, target: ProbeTarget, tests: Sequence[Probe]) -> float:
    """Return the GPU-minutes that a node's job may take with these optional tests."""
    return Job((target.name,), "", target.gpus, plan.job_limit_s(tests)).minutes
