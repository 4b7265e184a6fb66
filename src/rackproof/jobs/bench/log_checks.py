"""Check that the logs of a run belong to it, by run id, times, GPUs and parameters. No I/O.

:mod:`rackproof.jobs.bench.record` calls :func:`log_findings` for each job that ended, with the parsed logs.
Each finding makes the run unproven. ``tags`` of a log are the facts that it states about itself, such as
``run_id``, or ``software.gpus`` with the UUIDs of its GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from rackproof.core.definitions import JudgeRule
from rackproof.core.records import Finding, Measurement, Node, ParsedLog, Verdict
from rackproof.core.text import amount, sanitize
from rackproof.jobs.bench.planning import PlannedRun
from rackproof.logs.gpu_use import MOMENTS, gpus_with_states

BY_ITSELF = ("local", "mpirun")
"""Launchers whose job is the benchmark's program, which writes the log. With other launchers, the job only
follows Slurm or a container."""
CLOCK_SLACK_S: Mapping[str, float] = {"local": 5.0, "mpirun": 60.0}
"""Seconds by which the clocks of a log and of the node that started the job may differ, by launcher."""
CLUSTER_SLACK_S = 300.0
"""Seconds by which these clocks may differ with other launchers."""
TF_CNN_TAGS: Mapping[str, str] = {
    "model": "model",
    "batch_per_gpu": "batch_size_per_device",
    "num_batches": "num_batches",
    "variable_update": "variables",
}
"""Tags of the parameters of a point that the header of tf_cnn_benchmarks states, by the parameter's name."""


def log_findings(
    planned: PlannedRun,
    job: Mapping[str, object],
    started: datetime | None,
    ended: datetime | None,
    parsed: Sequence[ParsedLog],
    nodes: Sequence[Node],
) -> list[Finding]:
    """Return findings if the logs do not belong to a run.

    Args:
        planned: The run as it was planned.
        job: The job's state from its supervisor, or empty if no job was started.
        started: The job's start from its supervisor, or None if unknown.
        ended: The end of the job, or None if unknown.
        parsed: The parsed logs of the run.
        nodes: The nodes as they were when the run started.
    """
    if not job or not parsed:
        return []
    findings: list[Finding] = []
    if started is not None and ended is not None:
        findings += _time_findings(planned, started, ended, parsed)
    if planned.launcher in BY_ITSELF:
        findings += _run_id_findings(planned, parsed)
    for log in parsed:
        if planned.launcher == "local":
            findings += _gpu_findings(planned, log, _nodes_of_log(log, nodes))
        if log.format == "tf_cnn":
            findings += _tf_cnn_findings(planned, log, nodes)
    return findings


def _tf_cnn_findings(planned: PlannedRun, log: ParsedLog, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Yield findings on deviations from the request that tf_cnn_benchmarks makes without an error."""
    yield from _tf_cnn_point_findings(planned, log)
    if required := sum(planned_gpus(planned, len(node.gpus)) for node in nodes):
        yield from _tf_cnn_gpu_findings(planned, log, nodes, required)


def _tf_cnn_point_findings(planned: PlannedRun, log: ParsedLog) -> Iterator[Finding]:
    """Yield findings on parameters and images in a log of tf_cnn_benchmarks that were not requested."""
    file = log.file or "the log"
    for axis, tag in TF_CNN_TAGS.items():
        planned_value, stated = planned.parameters.get(axis), log.tags.get(tag)
        if planned_value is not None and stated != str(planned_value):
            statement = f"states {sanitize(stated, 60)}" if stated else "does not state it"
            yield _unproven(
                "log_of_another_point", f"{axis} {planned_value} was requested, and {file} {statement}"
            )
    reads = any(word.startswith("--data=") for word in planned.arguments)
    if reads and "synthetic" in log.tags.get("dataset", "synthetic"):
        yield _unproven("log_of_another_point", f"images were to be read, and {file} shows synthetic ones")


def _tf_cnn_gpu_findings(
    planned: PlannedRun, log: ParsedLog, nodes: Sequence[Node], required: int
) -> Iterator[Finding]:
    """Yield findings if the GPUs that TensorFlow used are not the planned GPUs."""
    file, used = log.file or "the log", log.tags.get("gpus_created", "0")
    if used != str(required):
        message = (
            f"{file} shows that TensorFlow took {sanitize(used, 20)} of the {amount(required, 'GPU')} "
            "that were planned: check that its build fits the driver, and that TF_CPP_MIN_LOG_LEVEL is 0"
        )
        yield _unproven("gpus_not_measured", message)
    if planned.result.states_gpu_use:
        named = _stated_gpus(log)
        yield from _gpu_use_findings(log, named)
        yield from _coverage_findings(
            file, named, {gpu.uuid for node in nodes for gpu in node.gpus}, required
        )


def _unproven(code: str, message: str) -> Finding:
    """Return a finding that makes the run unproven."""
    return Finding(code=code, verdict=Verdict.UNPROVEN, message=message[:4000])


def _time_findings(
    planned: PlannedRun, started: datetime, ended: datetime, parsed: Sequence[ParsedLog]
) -> Iterator[Finding]:
    """Yield findings on logs whose events lie outside of the job's time, or on a time that runs backwards."""
    stating = [log for log in parsed if log.first_event_s is not None]
    if ended < started:
        yield _unproven(
            "job_times", f"the job ended {started - ended} before it began: its clock was set back"
        )
        return
    slack_s = CLOCK_SLACK_S.get(planned.launcher, CLUSTER_SLACK_S)
    for log in stating:
        first_s, last_s = log.first_event_s or 0.0, log.last_event_s or 0.0
        early_s, late_s = started.timestamp() - first_s, last_s - ended.timestamp()
        if early_s > slack_s:
            yield _unproven(
                "log_of_another_time", f"{log.file or 'the log'} begins {early_s:.0f} s before the job did"
            )
        if late_s > slack_s:
            yield _unproven(
                "log_of_another_time", f"{log.file or 'the log'} ends {late_s:.0f} s after the job did"
            )


def _run_id_findings(planned: PlannedRun, logs: Iterable[ParsedLog]) -> Iterator[Finding]:
    """Yield findings on logs that state another run, or no run although they should."""
    for log in logs:
        stated = log.tags.get("run_id", "")
        if stated != planned.run_id and (stated or planned.result.states_run):
            statement = f"states run {sanitize(stated, 130)}" if stated else "does not state its run"
            yield _unproven(
                "log_of_another_run", f"{log.file or 'the log'} {statement}, not {planned.run_id}"
            )


def _nodes_of_log(log: ParsedLog, nodes: Sequence[Node]) -> Sequence[Node]:
    """Return the node that wrote a log (``logs/NODE.log``), or all nodes if the file is named after none."""
    return [node for node in nodes if log.file.endswith(f"/{node.name}.log")] or nodes


def _gpu_findings(planned: PlannedRun, log: ParsedLog, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Yield findings on the GPUs that a log, or the measurements for a rule, should name.

    A GPU may be missing, may be in none of ``nodes``, or may lack a statement of its other uses. Each node
    uses as many GPUs as the run was planned for, and its log is about these.
    """
    present = {gpu.uuid for node in nodes for gpu in node.gpus}
    required = planned_gpus(planned, len(present))
    stated = _stated_gpus(log)
    if planned.result.states_gpu_use:
        yield from _gpu_use_findings(log, stated | _measured_gpus(log.measurements))
    if not required:
        return
    if stated or planned.result.states_run or planned.result.states_gpu_use:
        yield from _coverage_findings("the log", stated, present, required)
    for rule in planned.result.judge:
        if rule.per and not _is_absent(rule, log.measurements):
            yield from _rule_findings(rule, log.measurements, present, required)


def _measured_gpus(measurements: Iterable[Measurement]) -> set[str]:
    """Return the GPU UUIDs in the labels of measurements."""
    return {
        measurement.labels[key]
        for measurement in measurements
        for key in ("gpu", "from", "to")
        if measurement.labels.get(key)
    }


def _gpu_use_findings(log: ParsedLog, gpus: set[str]) -> Iterator[Finding]:
    """Yield a finding for each moment at which the log does not state the other uses of the run's GPUs."""
    for moment, text in MOMENTS.items():
        silent = sorted(gpu for gpu in gpus if f"gpu_state.{moment}.{gpu}" not in log.tags)
        if silent:
            names = ", ".join(sanitize(gpu, 60) for gpu in silent[:4])
            yield _unproven(
                "gpu_use_not_stated",
                f"the log does not state which other processes used {len(silent)} of "
                f"{amount(len(gpus), 'GPU')} {text} ({names}): "
                "call nvidia-smi on the node, then run the benchmark again",
            )


def _stated_gpus(log: ParsedLog) -> set[str]:
    """Return the UUIDs of the GPUs that a log names as used.

    A log without such a list, such as one of MXNet, names them in the states before and after the run.
    """
    listed = {uuid for uuid in log.tags.get("software.gpus", "").split(",") if uuid}
    return listed or gpus_with_states(log.tags)


def planned_gpus(planned: PlannedRun, present: int) -> int:
    """Return the number of GPUs that a run was planned for, or 0 if it has no such parameter.

    The value ``all`` means the number of GPUs that are present.
    """
    gpus = planned.parameters.get("gpus", 0)
    if gpus == "all":
        return present
    return gpus if isinstance(gpus, int) and not isinstance(gpus, bool) else 0


def _matching(rule: JudgeRule, measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return the measurements that a rule is about."""
    return [
        measurement
        for measurement in measurements
        if measurement.name == rule.metric and rule.labels.items() <= measurement.labels.items()
    ]


def _is_absent(rule: JudgeRule, measurements: Iterable[Measurement]) -> bool:
    """Return whether a rule matches no measurement. If the rule requires one, the judge reports that."""
    return not _matching(rule, measurements)


def _rule_findings(
    rule: JudgeRule, measurements: Iterable[Measurement], present: set[str], required: int
) -> Iterator[Finding]:
    """Yield findings on GPUs, or ordered pairs of GPUs, without a measurement for a rule."""
    matching = _matching(rule, measurements)
    if rule.per == "gpu":
        yield from _coverage_findings(
            rule.metric, {measurement.labels.get("gpu", "") for measurement in matching}, present, required
        )
        return
    pairs = {
        (measurement.labels.get("from", ""), measurement.labels.get("to", "")) for measurement in matching
    }
    yield from _coverage_findings(rule.metric, {uuid for pair in pairs for uuid in pair}, present, required)
    distinct = sum(source != target for source, target in pairs)
    if distinct != required * (required - 1):
        message = f"{rule.metric}: {distinct} of {required * (required - 1)} pairs of GPUs were measured"
        yield _unproven("gpus_not_measured", message)


def _coverage_findings(
    statement: str, stated: set[str], present: set[str], required: int
) -> Iterator[Finding]:
    """Yield findings unless all stated GPUs are present, and their number is ``required``.

    ``statement`` names the log or measurement that states them.
    """
    if "" in stated or not stated:
        yield _unproven("gpus_not_named", f"{statement} does not name every GPU that it is about by its UUID")
    foreign = sorted(stated - present - {""})
    if foreign:
        names = ", ".join(sanitize(uuid, 60) for uuid in foreign[:4])
        yield _unproven("foreign_gpus", f"{statement} is about GPUs that the node does not have: {names}")
    covered = len(stated & present)
    if covered != required and (stated - {""}):
        yield _unproven(
            "gpus_not_measured",
            f"{statement} is about {covered} of the {amount(required, 'GPU')} that were planned",
        )
