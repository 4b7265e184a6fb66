"""Schedule a night's measurements, and collect the results.

Job validate calls :func:`probe_night` if GPU-minutes are budgeted for the night. The input is the nodes, the
measurements of earlier nights, and a runner of Slurm jobs. Apart from these jobs and the definitions of
benchmarks, the module does no I/O.

A night measures in three parts. It first measures each idle node alone, and again if the job fails. Then it
measures nodes with suspect numbers again. At the end, it measures pairs of nodes
(:mod:`rackproof.jobs.validate.fleet.pair_runner`). :func:`unmeasured_night` makes the record of a night that
measured nothing, and :func:`describe_probes` the lines about a night's measurements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rackproof.analysis.anomaly import AnomalyPolicy
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.records import Measurement, Verdict
from rackproof.core.text import amount, sanitize
from rackproof.jobs.validate.fleet.node_readings import (
    NOT_RUN,
    ProbeTarget,
    compare_digests,
    measures,
    read_node_probes,
    unproven_reason,
    wanted_probes,
)
from rackproof.jobs.validate.fleet.optional_tests import (
    oversized_tests,
    plan_optional_tests,
    tonights_probes,
)
from rackproof.jobs.validate.fleet.pair_runner import measure_pairs
from rackproof.jobs.validate.fleet.retest import RetestResult, SuspectFinder, retest_suspects
from rackproof.nodes.probe_slurm_jobs import Job, JobResult, JobRunner, Probe, ProbePlan, job_script
from rackproof.store.night_store import NightReason
from rackproof.store.probe_results import ProbeNight


def measuring_order(
    targets: Sequence[ProbeTarget], past: Sequence[ProbeNight], first: Collection[str] = ()
) -> list[ProbeTarget]:
    """Return the idle nodes in the order to measure them.

    The nodes in ``first`` come before the others. Within both groups, nodes without a measurement are first,
    and then the nodes with the oldest measurements. ``past`` has the measurements of earlier nights, newest
    first.
    """
    nights_ago: dict[str, int] = {}
    for number, night in enumerate(past):
        for name in night.measured:
            nights_ago.setdefault(name, number)
    idle = [target for target in targets if not target.busy]
    return sorted(
        idle,
        key=lambda target: (target.name not in first, -nights_ago.get(target.name, len(past)), target.name),
    )


def probe_night(
    plan: ProbePlan,
    targets: Sequence[ProbeTarget],
    past: Sequence[ProbeNight],
    jobs: JobRunner,
    direct: Mapping[str, JobResult] | None = None,
    doubts: SuspectFinder | None = None,
) -> tuple[ProbeNight, tuple[Measurement, ...]]:
    """Measure a fleet. Return the record of the night's measurements, and the numbers to judge.

    Args:
        plan: The plan of the measurement.
        targets: All nodes with a snapshot.
        past: The measurements of earlier nights, newest first.
        jobs: The runner of jobs, whose folder exists.
        direct: The results of nodes that nights drained. Slurm starts no job on them, so the playbook ran the
            programs on them itself.
        doubts: A function that returns the suspect numbers, whose nodes are then measured again. Without such
            a function, no number is suspect.

    Raises:
        ProbeError: Slurm's host no longer answers.
        DefinitionError: A benchmark's definition cannot be read.
    """
    drained = dict(direct or {})
    idle = [target for target in targets if not target.busy]
    tests = plan_optional_tests(plan, idle, past)
    programs = {target.name: _programs_of(plan, target, tests, drained) for target in targets}
    probes = _NodeProbes(plan, {target.name: target for target in targets}, jobs, drained, programs)
    probes.leave_out_busy()
    # Measure nodes with a planned test first, while enough of the budget is left for the test.
    queue = measuring_order(targets, past, tests)
    probes.measure_nodes([target for target in queue if programs[target.name]])
    retested = probes.retest_suspects(doubts, past)
    odd_devices, agreed, remarks = compare_digests(probes.digests, _last_digests(past))
    probes.add_reasons(odd_devices)
    # Measure pairs last. Only a node that is good alone may be paired, because a bad node would make
    # its partner suspect.
    fabric = measure_pairs(plan, targets, probes.able_to_meet(queue), past, jobs)
    probes.add_reasons({name: [why] for name, why in fabric.blamed.items()})
    night = ProbeNight(
        asked=plan.minutes,
        spent=round(jobs.spent, 3),
        turns=fabric.turns,
        measured=tuple(sorted(probes.measured)),
        sound=probes.sound,
        tests=probes.tests,
        again=tuple(sorted(retested.again)),
        unconfirmed=tuple(sorted(retested.unconfirmed)),
        suspected=retested.suspected,
        left_out={name: sanitize(why, 200) for name, why in sorted(probes.left_out.items())},
        reasons=_reasons_by_node(probes.reasons, len(targets)),
        between=fabric.between,
        pairs=fabric.results,
        digests=agreed,
        remarks=(*remarks, *oversized_tests(plan, idle), *fabric.remarks),
    )
    return night, tuple(measurement for numbers in probes.numbers.values() for measurement in numbers)


def _programs_of(
    plan: ProbePlan,
    target: ProbeTarget,
    tests: Mapping[str, Sequence[Probe]],
    drained: Collection[str],
) -> tuple[Probe, ...]:
    """Return the programs for a node tonight.

    A node that was measured without Slurm ran all chosen programs, because no job could use its GPUs.
    """
    return (
        tuple(wanted_probes(plan, target)) if target.name in drained else tonights_probes(plan, target, tests)
    )


def _last_digests(past: Sequence[ProbeNight]) -> Mapping[str, str]:
    """Return the digests of the newest night with any. A night without the training step stores none."""
    return next((night.digests for night in past if night.digests), {})


def _reasons_by_node(
    reasons: Mapping[str, Sequence[NightReason]], nodes: int
) -> dict[str, tuple[NightReason, ...]]:
    """Return the reasons by node, with shared failures marked as fleet-wide."""
    marked = _mark_fleetwide(reasons, nodes)
    return {name: tuple(node_reasons) for name, node_reasons in sorted(marked.items()) if node_reasons}


@dataclass
class _NodeProbes:
    """The measuring of single nodes, with the results by node.

    Attributes:
        plan: The plan of the measurement.
        by_name: All nodes with a snapshot.
        jobs: The runner of jobs.
        drained: The results of nodes that nights drained, which were measured without Slurm.
        programs: The programs that measure each node tonight.
        left_out: The reason why a node was not measured.
        numbers: The measured numbers.
        reasons: The reasons why a node does not pass.
        digests: The digests of the training step.
        sound: The programs that ended well and found no fault, and ``job`` if the whole job ended well.
        tests: The optional tests in a node's job, also if the job failed.
        measured: The nodes whose jobs ended well.
    """

    plan: ProbePlan
    by_name: Mapping[str, ProbeTarget]
    jobs: JobRunner
    drained: Mapping[str, JobResult]
    programs: Mapping[str, tuple[Probe, ...]]
    left_out: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, tuple[Measurement, ...]] = field(default_factory=dict)
    reasons: dict[str, list[NightReason]] = field(default_factory=dict)
    digests: dict[str, tuple[tuple[str, str, str], ...]] = field(default_factory=dict)
    sound: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tests: dict[str, tuple[str, ...]] = field(default_factory=dict)
    measured: list[str] = field(default_factory=list)

    def add_reasons(self, more: Mapping[str, Iterable[NightReason]]) -> None:
        """Add reasons why nodes do not pass, by node."""
        for name, reasons in more.items():
            self.reasons.setdefault(name, []).extend(reasons)

    def leave_out_busy(self) -> None:
        """Note the busy nodes, which are not measured. Drained nodes were measured without Slurm."""
        self.left_out = {
            name: target.busy
            for name, target in self.by_name.items()
            if target.busy and name not in self.drained
        }

    def measure_nodes(self, nodes: Sequence[ProbeTarget]) -> None:
        """Measure nodes, repeat each job that failed, hung or was lost, and store the results.

        The results of drained nodes are stored, too. Their measurements are not repeated.
        """
        # The minutes of drained nodes do not count, because no job could use them.
        results = {**self._run_jobs(nodes), **self.drained}
        to_repeat = [
            self.by_name[name]
            for name, result in results.items()
            if result.how in ("failed", "hung", "lost") and name not in self.drained
        ]
        second_results = self._run_jobs(to_repeat)
        ended_well = sum(result.how == "ok" for result in results.values())
        # If most jobs fail, the cause is probably the tool, so no node is blamed.
        blamable = ended_well > len(to_repeat)
        for name, first_result in results.items():
            self._keep_result(name, first_result, second_results.get(name), ended_well if blamable else 0)

    def retest_suspects(self, doubts: SuspectFinder | None, past: Sequence[ProbeNight]) -> RetestResult:
        """Measure nodes with suspect numbers again, and keep the better numbers.

        Without a function that finds suspects, return an empty result.
        """
        if doubts is None:
            return RetestResult({})
        # A node that an earlier night drained already failed, and Slurm gives it no job.
        able = set(self.numbers) - set(self.drained)
        earlier_suspicions = _suspected_before(past, able)
        retested = retest_suspects(self.numbers, doubts, self._measure_again, able, earlier_suspicions)
        self.numbers = retested.numbers
        self.add_reasons(retested.reasons)
        return retested

    def able_to_meet(self, queue: Sequence[ProbeTarget]) -> set[str]:
        """Return the nodes of the queue that may be paired.

        These have no reason that gates and, if programs were planned for them, were measured.
        """
        suspect_nodes = {
            name for name, reasons in self.reasons.items() if any(reason.verdict.gates for reason in reasons)
        }
        missed = {name for name, programs in self.programs.items() if programs} - set(self.measured)
        return {target.name for target in queue} - suspect_nodes - missed

    def _run_jobs(self, nodes: Sequence[ProbeTarget]) -> dict[str, JobResult]:
        """Run a Slurm job with tonight's programs on each node, and return the results by node."""
        results = self.jobs.run([self._job(node, self.programs[node.name]) for node in nodes])
        return dict(zip([node.name for node in nodes], results, strict=True))

    def _job(self, target: ProbeTarget, probes: Sequence[Probe]) -> Job:
        """Return the Slurm job that runs some programs on a node."""
        limit_s = self.plan.job_limit_s(probes)
        return Job(
            (target.name,), job_script(self.plan, probes, [target.name], limit_s), target.gpus, limit_s
        )

    def _keep_result(
        self, name: str, first_result: JobResult, second_result: JobResult | None, ended_well: int
    ) -> None:
        """Store the measurements of a node's job, and the reasons that the ends of its jobs give.

        The last job that measured something counts. If the first job did not end well and the second did, the
        node is degraded. If neither did, the node fails, unless the tool may be at fault.

        Args:
            name: The name of the node.
            first_result: The result of its job.
            second_result: The result of its second job, or None if there was none.
            ended_well: Number of nodes on which the job ended well, or 0 if these are too few to blame this
                node.
        """
        # A second job that measured nothing does not replace what the first one measured.
        last = first_result if second_result is None or second_result.how in NOT_RUN else second_result
        if last.how in ("left", "busy"):
            self.left_out[name] = last.text
            return
        if last.how == "lost":
            problem = "it could not be measured" if name in self.drained else "Slurm started nothing"
            self.reasons[name] = [unproven_reason("job", name, f"{problem}: {last.text}")]
            return
        ended = last.how == "ok"
        if ended and last is not first_result:
            text = f"the first of two attempts {first_result.how}: {sanitize(first_result.text, 300)}"
            self.add_reasons({name: [_job_reason(name, Verdict.DEGRADED, text)]})
        self._keep_readings(name, last)
        if not ended and ended_well and last is not first_result and _is_nodes_own_fault(first_result, last):
            ended_well_text = amount(ended_well, "node")
            text = (
                f"twice tonight, while it ended well on {ended_well_text}: {sanitize(first_result.text, 200)}"
            )
            self.add_reasons({name: [_job_reason(name, Verdict.FAIL, text)]})

    def _keep_readings(self, name: str, last: JobResult) -> None:
        """Store the numbers, reasons, digests and sound programs that a node's job printed."""
        readings = read_node_probes(self.plan, self.by_name[name], last, self.programs[name])
        self.add_reasons({name: readings.reasons})
        if tests := tuple(program.name for program in self.programs[name] if program.optional):
            self.tests[name] = tests
        self.numbers[name] = readings.measurements
        self.digests[name] = readings.digests
        self.sound[name] = (*readings.sound, *(["job"] if last.how == "ok" else []))
        if last.how == "ok":
            self.measured.append(name)

    def _measure_again(
        self, suspects: Mapping[str, Collection[str]]
    ) -> dict[str, tuple[Measurement, ...] | str]:
        """Measure the suspect speeds of nodes again.

        Return the numbers of each node, or the reason why it was not measured.
        """
        speeds = {
            # An optional test takes minutes, so repeat it only if one of its own numbers is suspect.
            name: [
                program
                for program in self.programs[name]
                if program.benchmark and (not program.optional or measures(self.plan, program, metrics))
            ]
            for name, metrics in suspects.items()
        }
        ended = self.jobs.run([self._job(self.by_name[name], speeds[name]) for name in suspects])
        answers: dict[str, tuple[Measurement, ...] | str] = {}
        for name, result in zip(suspects, ended, strict=True):
            if result.how in NOT_RUN:
                answers[name] = result.text
                continue
            readings = read_node_probes(self.plan, self.by_name[name], result, speeds[name])
            self.add_reasons({name: readings.reasons})
            answers[name] = readings.measurements
        return answers


def _job_reason(name: str, verdict: Verdict, text: str) -> NightReason:
    """Return a reason that concerns a node's job as a whole."""
    return NightReason(check="probe", verdict=verdict, metric="job", part=name, text=text)


def _suspected_before(past: Sequence[ProbeNight], names: Iterable[str]) -> dict[str, tuple[NightReason, ...]]:
    """Return the suspicions that remained after each node's last measurement, by node."""
    suspected = {}
    for name in names:
        latest = next((night for night in past if name in night.measured), None)
        # Use only the last measurement, because it confirmed or withdrew all older suspicions.
        if latest and name in latest.suspected:
            suspected[name] = latest.suspected[name]
    return suspected


def _is_nodes_own_fault(first: JobResult, last: JobResult) -> bool:
    """Return whether two bad jobs of a node show a fault of the node.

    They do not if the first job was lost, or if the interpreter does not provide PyTorch and mlperf-logging.
    """
    lacks_python = any(section.name == "python" and section.status for section in last.sections)
    return first.how != "lost" and not lacks_python


def _mark_fleetwide(
    reasons: Mapping[str, Sequence[NightReason]], nodes: int, policy: AnomalyPolicy | None = None
) -> dict[str, list[NightReason]]:
    """Return the reasons, with each failure that many nodes have as unproven.

    These are at least ``policy.share_least`` nodes, and more than the share ``policy.share`` of all
    ``nodes``. The tool or the fabric is the likely cause of such a failure.
    """
    policy = policy or AnomalyPolicy()
    wide = {
        code
        for code, names in _failing_nodes(reasons).items()
        if len(names) >= policy.share_least and len(names) > policy.share * nodes
    }
    return {
        name: [_fleetwide(reason) if reason.code in wide else reason for reason in node_reasons]
        for name, node_reasons in reasons.items()
    }


def _failing_nodes(reasons: Mapping[str, Sequence[NightReason]]) -> dict[str, set[str]]:
    """Return the nodes with each failure, by its code."""
    nodes_by_code: dict[str, set[str]] = {}
    for name, node_reasons in reasons.items():
        for reason in node_reasons:
            if reason.verdict is Verdict.FAIL:
                nodes_by_code.setdefault(reason.code, set()).add(name)
    return nodes_by_code


def _fleetwide(reason: NightReason) -> NightReason:
    """Return a failure as an unproven reason that concerns the whole fleet."""
    if reason.verdict is not Verdict.FAIL:
        return reason
    text = (
        f"{reason.text}; on so many nodes that it is a fault of the tool or the fabric until proven otherwise"
    )
    return reason.model_copy(update={"verdict": Verdict.UNPROVEN, "fleetwide": True, "text": text})


def unmeasured_night(asked: float, nodes: Iterable[str], why: str) -> ProbeNight:
    """Return the record of a night that could measure nothing. Its nodes are unproven."""
    text = f"nothing was measured: {sanitize(why, 300)}"
    return ProbeNight(
        asked=asked,
        reasons={name: (unproven_reason("job", name, text),) for name in nodes},
        remarks=(text,),
    )


def describe_probes(night: ProbeNight | None) -> tuple[str, ...]:
    """Return a few lines about a night's measurements, or none if it requested no measurements."""
    if night is None:
        return ()
    pairs = sum(len(pair.nodes) == 2 for pair in night.pairs)
    lines = [
        f"measured: {amount(len(night.measured), 'node')}, {amount(pairs, 'pair')}, "
        f"{night.spent:.1f} of {night.asked:.15g} GPU-minutes"
    ]
    by_test: dict[str, list[str]] = {}
    for name, tests in night.tests.items():
        for test in tests:
            by_test.setdefault(test, []).append(name)
    lines += [f"{test}: {compress_hostlist(names)}" for test, names in sorted(by_test.items())]
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
    return (*lines, *(f"! {remark}" for remark in night.remarks[:10]))
