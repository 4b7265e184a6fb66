"""List all evidence of a run, with the consequence for the verdict if it is missing. No I/O.

For every run, :mod:`rackproof.jobs.bench.record` calls :func:`machine_lacks`, which evaluates
:data:`RUN_ON_MACHINE`. For a run that a cluster's run script starts,
:mod:`rackproof.jobs.bench.mlperf_checks` also calls :func:`slurm_lacks`, which evaluates :data:`RUN_BY_SLURM`
or :data:`RUN_OF_ROUND_06`.

A row (:class:`~rackproof.core.evidence.RequiredEvidence`) names one piece of evidence, the program that
provides it, and the code of the finding if a run lacks it. Without the evidence a run is unproven, unless the
row has a reason in ``harmless``. ``needed`` limits a row to some runs, such as runs whose job ended.

The first two tables have a row for every field of the structures with the evidence, and
``tests/jobs/bench/test_required_evidence.py`` compares them. Other checks therefore need not report missing
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rackproof.core.evidence import (
    EvidenceState,
    LackingEvidence,
    RequiredEvidence,
    lacking_evidence,
    state_of_value,
)
from rackproof.core.records import (
    Finding,
    MachineUse,
    Measurement,
    Node,
    ParsedLog,
    Record,
    Verdict,
    worst,
)
from rackproof.jobs.bench.planning import PlannedRun
from rackproof.logs.run_sub import (
    PREFLIGHT_START,
    PREFLIGHT_STOP,
    START,
    STOP,
    RunScript,
    RunSubOutput,
    ended_before_training,
    record_moment,
    skips_preflight,
)
from rackproof.logs.run_sub06 import RunSub06Output, ended_before_training06

_AGAINST = "it only shows faults of a run, so its absence is good"
_ABOUT = "it only describes the run, and nothing is judged by it"
"""The usual reasons (``harmless``) why a run may lack a piece of evidence."""
_THERE, _ABSENT, _DAMAGED = EvidenceState.THERE, EvidenceState.ABSENT, EvidenceState.DAMAGED
_EVENTS = ("mllog", "mll06", "mlp05")
"""Names of the log formats whose events have a time, all of them of MLPerf Training."""


class Evidence(Record):
    """The evidence of a run other than its logs."""

    nodes: tuple[Node, ...] = ()
    """The nodes of the run with their facts, such as serial numbers and GPUs."""
    job: dict[str, Any] = {}  # noqa: RUF012  (pydantic copies defaults)
    """State of the job from its supervisor, empty if no job was started."""
    findings: tuple[Finding, ...] = ()
    """Faults of the nodes, of their setup and of the SKU's references, which no log shows."""
    could_not_start: str = ""
    """Reason, for the operator, why no job was started or why it was not followed to its end."""
    command: tuple[str, ...] = ()
    """The command of the job as words, for the report."""
    description: str = ""
    """Text about the run, for the report."""
    storage: str = ""
    """The storage that the nodes used, or else the operator's text about it."""
    network: str = ""
    """The network that the nodes used, or else the operator's text about it."""
    notes: str = ""
    """The operator's remarks, for the report."""
    measurements: tuple[Measurement, ...] = ()
    """Measurements besides the parsed logs', from the nodes' setup and from the launcher's output, such as
    the preflight's bandwidth."""
    machine_use: dict[str, MachineUse] = {}  # noqa: RUF012
    """Use of each node by other processes while the job ran."""
    busy: str = ""
    """Reason why every speed is unproven, empty if the machines were idle or need not be."""
    container_digest: str = ""
    """Digest of the container's image, empty without a container."""
    slurm_start: datetime | None = None
    """Start of the Slurm job, or None if Slurm's record does not show it precisely. The supervisor's own
    start can be later, if it began to follow a running job. The earlier one bounds the times in the log."""


@dataclass(frozen=True)
class MachineRun:
    """The plan, the evidence and the parsed logs of a run, which each row of RUN_ON_MACHINE judges."""

    planned: PlannedRun
    known: Evidence
    parsed: Sequence[ParsedLog]


@dataclass(frozen=True)
class SlurmJob:
    """A run's job under a run script (run.sub): its plan, the script, the script's log and Slurm's record."""

    planned: PlannedRun
    script: RunScript
    """Properties of the run script, such as the output that it lacks by design."""
    output: RunSubOutput
    """Lines of the run script in the log. ``end`` is Slurm's record, which the launcher logs."""
    output06: RunSub06Output = field(default_factory=RunSub06Output)
    """Output of the run script of round 0.6, empty for other runs."""

    @property
    def has_record(self) -> bool:
        """Return whether the job ran under Slurm and the launcher reported its end, which has Slurm's record.

        In round 0.6, a run on one node does not use Slurm. Another row is about a missing report.
        """
        by_slurm = self.planned.launcher != "docker" or len(self.planned.nodes) > 1
        return by_slurm and bool(self.output.end)


def lacking_findings(lacking: Iterable[Finding], findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings about missing evidence that no other finding explains.

    Args:
        lacking: The findings about missing evidence.
        findings: All other findings of the run. One with a gating verdict replaces the findings of the same
            code.
    """
    known_codes = {
        finding.code for finding in findings if finding.verdict is not None and finding.verdict.gates
    }
    return [finding for finding in lacking if finding.code not in known_codes]


def machine_lacks(run: MachineRun) -> list[Finding]:
    """Return a finding for each code of RUN_ON_MACHINE whose evidence is missing and not harmless."""
    return _findings(RUN_ON_MACHINE, run)


def slurm_lacks(job: SlurmJob) -> list[Finding]:
    """Return a finding for each code of the run script's table whose evidence is missing and not harmless.

    The table is RUN_OF_ROUND_06 for the launcher ``docker``, and otherwise RUN_BY_SLURM.
    """
    return _findings(RUN_OF_ROUND_06 if job.planned.launcher == "docker" else RUN_BY_SLURM, job)


def _findings(table: Iterable[RequiredEvidence[Any]], subject: object) -> list[Finding]:
    """Return a finding for each code with missing evidence.

    Its message is the message of the first such row, with the names of the others. Its verdict is the worst
    one.

    Args:
        table: The rows to evaluate.
        subject: The run to judge: a :class:`MachineRun`, or a :class:`SlurmJob` for the other tables.
    """
    alike: dict[str, list[LackingEvidence]] = {}
    for lack in lacking_evidence(table, subject):
        alike.setdefault(lack.code, []).append(lack)
    findings = []
    for code, lacks in alike.items():
        also = ", ".join(lacking.name for lacking in lacks[1:])
        message = f"{lacks[0].message}{f'; the same holds for {also}' if also else ''}"
        verdict = worst(lacking.verdict for lacking in lacks)
        findings.append(Finding(code=code, verdict=verdict, message=message[:4000]))
    return findings


def usable_state(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the present keys of a job's state with a value of the right type.

    Rows of :data:`RUN_ON_MACHINE` report the other keys.
    """
    return {key: job[key] for key in _JOB_KINDS if job_value_state(key, job.get(key)) is _THERE}


def job_value_state(key: str, value: object) -> EvidenceState:
    """Return the evidence state of a value in a job's state, by its key in :data:`_JOB_KINDS`."""
    if value is None:
        return _ABSENT
    if key in _MOMENTS:
        return _THERE if moment_of(value) is not None else _DAMAGED
    kind = _JOB_KINDS[key]
    # True is an int, but a node that reports it reports no number.
    is_right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return state_of_value(value) if is_right else _DAMAGED


def moment_of(raw: object) -> datetime | None:
    """Return a time from a node, or None if it is invalid.

    The time is in seconds since 1970, or a text in ISO 8601, which is UTC if it has no zone.
    """
    try:
        # True is an int, which fromtimestamp() would accept.
        if isinstance(raw, int | float) and not isinstance(raw, bool):
            return datetime.fromtimestamp(raw, UTC)
        if isinstance(raw, str):
            moment = datetime.fromisoformat(raw)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


# -- every run -------------------------------------------------------------------------------------------

_AGAIN = "run the benchmark again"


def _started(run: MachineRun) -> bool:
    """Return whether no obstacle kept the job from being started, or from being followed to its end."""
    return not run.known.could_not_start


def _ended(run: MachineRun) -> bool:
    """Return whether a job was started, and its state reports the end."""
    return _started(run) and run.known.job.get("phase") == "ended"


def _by_itself(run: MachineRun) -> bool:
    """Return whether the job ended by itself. If something else or a signal ended it, a finding says so."""
    return _ended(run) and run.known.job.get("ended_by") == "itself" and run.known.job.get("signal") is None


_MOMENTS = ("started", "ended")
_JOB_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("id", "phase", "ended_by", "log_sha256", "seal"), str),
    **dict.fromkeys(("exit_status", "signal", "log_bytes"), int),
    **dict.fromkeys(_MOMENTS, object),
    "succeeded": bool,
    "unkillable": list,
}
"""Required types of keys of a job's state. ``started`` and ``ended`` are read by :func:`moment_of`."""


def _of_job(
    key: str,
    code: str,
    needed: Callable[[MachineRun], bool] = _ended,
    harmless: str = "",
    without: str = "",
) -> RequiredEvidence[MachineRun]:
    """Return the row for one key of the job's state.

    Args:
        key: The key of the state.
        code: The code of the finding if the value is missing or damaged.
        needed: A function that returns whether a run needs the value. By default, each job that ended does.
        harmless: The reason why a run may lack the value, or "". A damaged value is unproven in any case.
        without: What is unknown without the value, for operators. Empty if the key's name is enough.
    """
    return RequiredEvidence(
        f"job.{key}",
        _SUPERVISOR,
        lambda run: job_value_state(key, run.known.job.get(key)),
        code,
        _AGAIN,
        needed,
        # Even if a run may lack the value, a damaged one shows that the state is not reliable.
        verdicts={_DAMAGED: Verdict.UNPROVEN},
        harmless=harmless,
        without=without,
    )


_SUPERVISOR = "the job's state, from its supervisor"


def _of_evidence(name: str, harmless: str) -> RequiredEvidence[MachineRun]:
    """Return the row for a field of :class:`Evidence` that no verdict needs, with the reason ``harmless``."""

    def state(run: MachineRun) -> EvidenceState:
        return state_of_value(getattr(run.known, name))

    return RequiredEvidence(f"evidence.{name}", "the playbook", state, "no_job", _AGAIN, harmless=harmless)


def _of_logs(name: str, code: str, harmless: str = "") -> RequiredEvidence[MachineRun]:
    """Return the row for one field of all parsed logs of a run.

    The state is ``there`` if all logs have the field, and otherwise the state of the first log without it.
    Fields for times of events count only for logs of the formats in :data:`_EVENTS`.
    """

    def state(run: MachineRun) -> EvidenceState:
        states = [
            state_of_value(getattr(log, name))
            for log in run.parsed
            if log.format in _EVENTS or not name.endswith("_event_s")
        ]
        return next((log_state for log_state in states if log_state is not _THERE), _THERE)

    return RequiredEvidence(f"log.{name}", "the log", state, code, _AGAIN, _ended, harmless=harmless)


_ANY_LOG = "nothing shows that the log is the one that the job wrote"

RUN_ON_MACHINE: tuple[RequiredEvidence[MachineRun], ...] = (
    RequiredEvidence(
        "evidence.nodes",
        "facts of the nodes",
        lambda run: state_of_value(run.known.nodes),
        "nodes_differ",
        "gather the facts of its nodes, then run the benchmark again",
        _started,
    ),
    RequiredEvidence(
        "evidence.job",
        _SUPERVISOR,
        lambda run: state_of_value(run.known.job),
        "no_job",
        _AGAIN,
        _started,
        without="nothing is known of the job",
    ),
    *(_of_evidence(name, _AGAINST) for name in ("findings", "could_not_start", "busy")),
    _of_evidence("machine_use", "of a job that ended, every speed is unproven without it"),
    *(_of_evidence(name, _ABOUT) for name in ("command", "description", "storage", "network", "notes")),
    _of_evidence("container_digest", _ABOUT),
    _of_evidence("measurements", "a rule that requires one of them has its own finding"),
    _of_evidence("slurm_start", "the job's own start counts where Slurm shows none"),
    _of_job("id", "another_job"),
    _of_job("phase", "unknown_end", _started),
    _of_job("ended_by", "unknown_end", without="the end of the job is not known"),
    _of_job("exit_status", "no_exit_status", _by_itself, without="the job has no exit status"),
    _of_job("signal", "job_damaged", harmless=_AGAINST),
    _of_job("succeeded", "contradiction", _by_itself, without="its supervisor reports no success"),
    _of_job("started", "no_job_times", without="the job's start is not known, so its log may be any run's"),
    _of_job("ended", "no_job_times", without="the job's end is not known, so its log may be any run's"),
    _of_job("unkillable", "job_damaged", harmless=_AGAINST),
    _of_job("log_bytes", "log_not_stated", _by_itself, without=_ANY_LOG),
    _of_job("log_sha256", "log_not_stated", _by_itself, without=_ANY_LOG),
    _of_job("seal", "job_damaged"),
    RequiredEvidence(
        "log",
        "logs/NODE.log",
        lambda run: state_of_value(run.parsed),
        "no_log",
        _AGAIN,
        _started,
    ),
    _of_logs("format", "unrecognised"),
    _of_logs("file", "no_log", harmless=_ABOUT),
    RequiredEvidence(
        "log.size_bytes",
        "the log",
        lambda run: _ABSENT if any(not log.size_bytes for log in run.parsed) else _THERE,
        "empty",
        _AGAIN,
        _ended,
    ),
    _of_logs("lines", "empty", harmless=_ABOUT),
    _of_logs("measurements", "no_log", harmless="a rule that requires one of them has its own finding"),
    _of_logs("series", "no_log", harmless=_ABOUT),
    _of_logs("findings", "no_log", harmless=_AGAINST),
    _of_logs("tags", "no_log", harmless="their requirements have their own findings: run, seed, GPUs"),
    _of_logs("verdict", "no_log"),
    _of_logs("first_event_s", "no_event_times"),
    _of_logs("last_event_s", "no_event_times"),
)
"""All evidence of a run on a node, with any launcher. The evidence of rows with ``harmless`` may be missing.

``evidence`` is :class:`Evidence`, ``job`` is the state of the job that its seal covers, and ``log`` is each
:class:`~rackproof.core.records.ParsedLog`.
"""


# -- a run under Slurm -----------------------------------------------------------------------------------

# These texts are remedies, or state what is unknown.
_RULED = "set `lacks` in the definition if its run script prints none by design"
_ASK_SLURM = "read the job from Slurm's controller (sacct, scontrol), then run the benchmark again"
_WHERE = "Slurm's record does not show on which nodes the job ran"
_WHEN = "Slurm's record does not show when the job began and ended, so its log may be any job's"


def _was_taken(job: SlurmJob) -> bool:
    """Return whether the job was accepted. A refused job has no end, and a finding states the reason."""
    return not job.output.launcher_report.get("refused")


def _has_record(job: SlurmJob) -> bool:
    """Return whether the job was accepted, and must have a record of Slurm."""
    return _was_taken(job) and job.has_record


def _trained(job: SlurmJob) -> bool:
    """Return whether the job was accepted and its training started.

    If not, the lack of other evidence is only a consequence.
    """
    if job.planned.launcher == "docker":
        by_slurm = len(job.planned.nodes) > 1
        return _was_taken(job) and not ended_before_training06(job.output06, job.output, by_slurm=by_slurm)
    return _was_taken(job) and not ended_before_training(job.output)


def _prints(name: str) -> Callable[[SlurmJob], bool]:
    """Return a condition for output that a run script prints, unless its definition's ``lacks`` names it."""
    return lambda job: name not in job.script.lacks and _trained(job)


def _lists_nodes(job: SlurmJob) -> bool:
    """Return whether the log contains the line with the list of nodes, its length and the job's number.

    If the line is missing, only the row of the list reports it.
    """
    return bool(job.output.node_list)


def _of_record(
    key: str,
    code: str,
    kind: type = object,
    *,
    without: str = "",
    state: Callable[[Any], EvidenceState] = state_of_value,
    harmless: str = "",
) -> RequiredEvidence[SlurmJob]:
    """Return the row for one key of Slurm's record.

    Args:
        key: The key of the record.
        code: The code of the finding if the value is missing or damaged.
        kind: The type of the value. A value of another type is damaged, and so is a bool.
        without: What is unknown without the value, for operators. Empty if the key's name is enough.
        state: A function that returns the state of a value of that type.
        harmless: The reason why a run may lack the value, or "".
    """

    def found(job: SlurmJob) -> EvidenceState:
        value = job.output.end.get(key)
        if value in (None, "Unknown", "None"):
            return _ABSENT
        return state(value) if isinstance(value, kind) and not isinstance(value, bool) else _DAMAGED

    return RequiredEvidence(
        f"slurm.{key}",
        "Slurm's record of the job",
        found,
        code,
        _ASK_SLURM,
        _has_record,
        harmless=harmless,
        without=without,
    )


def _record_moment(key: str) -> RequiredEvidence[SlurmJob]:
    """Return the row for a time in Slurm's record."""

    def state(value: object) -> EvidenceState:
        return _ABSENT if value == "" else _THERE if record_moment(value) is not None else _DAMAGED

    return _of_record(key, "slurm_times", object, without=_WHEN, state=state)


def _of_output(
    name: str,
    code: str,
    needed: Callable[[SlurmJob], bool] = _trained,
    state: Callable[[RunSubOutput], EvidenceState] | None = None,
    *,
    remedy: str = _RULED,
    harmless: str = "",
    without: str = "",
) -> RequiredEvidence[SlurmJob]:
    """Return the row for a field of the run script's output.

    Args:
        name: The field of :class:`RunSubOutput`.
        code: The code of the finding if the evidence is missing.
        needed: A function that returns whether a job needs it. By default, each job that trained does.
        state: A function that returns the state in the output. By default, the field's value decides.
        remedy: The operator's next step.
        harmless: The reason why a job may lack it, or "".
        without: What is unknown without the evidence, for operators. Empty if the field's name is enough.
    """

    def found(job: SlurmJob) -> EvidenceState:
        return state(job.output) if state is not None else state_of_value(getattr(job.output, name))

    return RequiredEvidence(
        f"log.{name}",
        "the log of the run script",
        found,
        code,
        remedy,
        needed,
        harmless=harmless,
        without=without,
    )


def _some(number: float) -> EvidenceState:
    """Return the state of a count. A count of 0 is absent."""
    return _THERE if number else _ABSENT


def _both(start: str, stop: str) -> Callable[[RunSubOutput], EvidenceState]:
    """Return a function for the state of a phase, which is cut if only its start or its end is there."""

    def state(output: RunSubOutput) -> EvidenceState:
        names_seen = [name for name in (start, stop) if name in output.times]
        return (_ABSENT, EvidenceState.CUT, _THERE)[len(names_seen)]

    return state


def _caches_state(output: RunSubOutput) -> EvidenceState:
    """Return the state of the log's lines about nodes that cleared their page cache, or failed to."""
    # If there is any line, a check compares the number of nodes.
    return _some(output.cache_clearings + output.caches_cleared + len(output.cache_errors))


def _asks_for_preflight(job: SlurmJob) -> bool:
    """Return whether the run must show an NCCL preflight."""
    return _trained(job) and not skips_preflight(job.output, job.script)


def _preflight_state(output: RunSubOutput) -> EvidenceState:
    """Return the state of the NCCL preflight in the log, which needs its markers and its output."""
    if PREFLIGHT_START not in output.times:
        return EvidenceState.NOT_ASKED if output.preflight_enabled is False else _ABSENT
    if not output.preflight_text:
        return _ABSENT
    return _both(PREFLIGHT_START, PREFLIGHT_STOP)(output)


SLURM_RECORD: tuple[RequiredEvidence[SlurmJob], ...] = (
    _of_record("job", "another_job", without="Slurm's record does not show the job's number"),
    _of_record("name", "another_job", without="Slurm's record does not show the job's run"),
    _of_record("state", "slurm_state", without="Slurm's record does not show how the job ended"),
    _of_record(
        "exit_code",
        "slurm_state",
        without="Slurm's record does not show the job's exit status",
    ),
    _of_record("nodes", "nodes_unknown", list, without=_WHERE),
    _of_record("node_count", "nodes_unknown", without=_WHERE),
    _record_moment("start"),
    _record_moment("end"),
    _of_record("elapsed_s", "slurm_times", harmless="start and end contain it"),
    _of_record(
        "steps",
        "nodes_unknown",
        list,
        harmless="a site without accounts has none; the job's nodes, the log's nodes and its ranks remain",
    ),
)
"""The evidence about a job in Slurm's record, which workloads/slurm_run.py queries. It is needed if Slurm
must keep a record of the job. ``elapsed_s`` and ``steps`` may be missing."""


def _launcher_report(job: str, remedy: str) -> RequiredEvidence[SlurmJob]:
    """Return the row for the launcher's report of a job's end. ``job`` is the job's name in the message."""
    return _of_output(
        "launcher_report",
        "no_end",
        _was_taken,
        lambda output: state_of_value(output.end),
        remedy=remedy,
        without=f"the launcher reported no end of {job}",
    )


RUN_BY_SLURM: tuple[RequiredEvidence[SlurmJob], ...] = (
    _launcher_report("the Slurm job", _ASK_SLURM),
    *SLURM_RECORD,
    _of_output(
        "times",
        "no_start_marker",
        _prints("start_marker"),
        _both(START, STOP),
        without=f"the log does not show run.sub's training whole ({START}, {STOP})",
    ),
    _of_output("contradictions", "markers_contradict", harmless=_AGAINST),
    _of_output(
        "node_list",
        "nodes_unknown",
        _prints("node_list"),
        without="the log has no list of nodes (:::DLPAL): it does not show on which nodes it ran",
    ),
    _of_output("node_count", "nodes_unknown", _lists_nodes),
    _of_output("job", "another_job", _lists_nodes, without="the log does not show its Slurm job"),
    _of_output("cache_clearings", "cache_not_cleared", harmless="each node's answer counts"),
    _of_output(
        "caches_cleared",
        "cache_not_cleared",
        _prints("cache_clearing"),
        _caches_state,
        without="no sign in the log that the page caches were cleared before the training",
    ),
    _of_output("cache_errors", "cache_not_cleared", harmless=_AGAINST),
    _of_output(
        "ranks",
        "ranks_unknown",
        _prints("ranks"),
        lambda output: _some(output.ranks),
        without="the log does not show how many processes trained: GPUs may have been left out",
    ),
    *(
        _of_output(name, code, harmless=_AGAINST)
        for name, code in (
            ("slow_nodes", "slow_node"),
            ("task_deaths", "task_died"),
            ("out_of_memory_ranks", "out_of_memory"),
            ("mount_errors", "mount_check"),
            ("mounts_not_named", "mount_not_named"),
            ("mpi_errors", "no_mpi"),
        )
    ),
    _of_output("samples", "convergence_unknown", harmless="required only if the rules have references"),
    _of_output("preflight_enabled", "nccl_preflight", harmless="the plan states whether it was requested"),
    _of_output(
        "preflight_text",
        "nccl_preflight",
        _asks_for_preflight,
        _preflight_state,
        remedy="if it is off on purpose, set bench_environment: {NCCL_TEST: '0'}",
        without="the log does not show the NCCL preflight whole",
    ),
)
"""The additional evidence of a run under Slurm. The evidence of rows with ``harmless`` may be missing.
``slurm`` is the record that workloads/slurm_run.py reports, and ``log`` is :class:`RunSubOutput`."""


def _status_state(job: SlurmJob) -> EvidenceState:
    """Return the state of the exit status of run.sub in the launcher's report."""
    status = job.output.end.get("status")
    return _THERE if type(status) is int else _ABSENT if status is None else _DAMAGED


def _ended_on_one_node(job: SlurmJob) -> bool:
    """Return whether the launcher must report the exit status of run.sub, which ran on one node."""
    # If a job ended badly, its report has a state and no status.
    ended_well = job.output.end.get("state") in (None, "COMPLETED")
    return _was_taken(job) and bool(job.output.end) and len(job.planned.nodes) == 1 and ended_well


RUN_OF_ROUND_06: tuple[RequiredEvidence[SlurmJob], ...] = (
    _launcher_report("run.sub", _AGAIN),
    RequiredEvidence(
        "docker.status",
        "workloads/docker_run.py",
        _status_state,
        "no_end",
        _AGAIN,
        _ended_on_one_node,
        without="the launcher did not report the exit status of run.sub",
    ),
    *SLURM_RECORD,
    RequiredEvidence(
        "log.nodes",
        "the log of the run script",
        lambda job: state_of_value(job.output06.nodes),
        "nodes_unknown",
        _RULED,
        _prints("node_list"),
        without="the log does not show on which nodes run.sub started the training (Launching on node)",
    ),
)
"""The additional evidence of a run of MLPerf Training 0.6 (launcher ``docker``). The only field of
:class:`RunSub06Output` with a row is the list of nodes, because other checks compare the number of events
and of cleared caches."""
