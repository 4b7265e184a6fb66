"""What the verdict on a run rests on: a run on one machine, and one under Slurm. No I/O.

Each table has a row for every field of the structures that carry the evidence, also for those whose
absence says nothing; a test compares them. :func:`lacking_findings` is called by the judge of a run, so
that no check has to remember that its input may be absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rackproof.core.evidence import EvidenceState, RequiredEvidence, lacking_evidence, state_of_value
from rackproof.core.records import Finding, Measurement, Node, ParsedLog, Record
from rackproof.jobs.bench.planning import PlannedRun
from rackproof.logs.run_sub import START, STOP, RunScript, RunSubOutput

_AGAINST = "it only speaks against a run: that there is none is good"
_SEALED_TOO = "the state's seal shows one that was lost; a supervisor that could not read its log states none"
_ABOUT = "it describes the run; nothing is judged by it"
_THERE, _ABSENT, _DAMAGED = EvidenceState.THERE, EvidenceState.ABSENT, EvidenceState.DAMAGED
_EVENTS = ("mllog", "mll06", "mlp05")
"""Formats whose events have a time."""


class Evidence(Record):
    """What is known of a run besides its logs."""

    nodes: tuple[Node, ...] = ()
    job: dict[str, Any] = {}  # noqa: RUF012  (pydantic copies defaults)
    """State of the job as its supervisor wrote it; empty where no job was started."""
    findings: tuple[Finding, ...] = ()
    """What the nodes' facts say against them."""
    could_not_start: str = ""
    """Why no job was started, or why it was not followed to its end, in words for the operator."""
    command: tuple[str, ...] = ()
    description: str = ""
    storage: str = ""
    network: str = ""
    notes: str = ""
    measurements: tuple[Measurement, ...] = ()
    """What the logs show beside their events: phases, the preflight's bandwidth."""
    container_digest: str = ""
    slurm_start: datetime | None = None
    """When the Slurm job of this run began, by Slurm: it may have begun before it was followed from there."""


@dataclass(frozen=True)
class MachineRun:
    """A run that its own program started and ended: its plan, what is known of it, its logs."""

    planned: PlannedRun
    known: Evidence
    parsed: Sequence[ParsedLog]


@dataclass(frozen=True)
class SlurmJob:
    """A run's job under Slurm: its plan, what its run script does, what the log and Slurm's record show."""

    planned: PlannedRun
    script: RunScript
    output: RunSubOutput


def lacking_findings(lacking: Iterable[Finding], found: Sequence[Finding]) -> list[Finding]:
    """Return what lacks and has no finding yet: a check that says more of the same lack comes first."""
    known = {one.code for one in found if one.verdict is not None}
    return [one for one in lacking if one.code not in known]


def machine_lacks(run: MachineRun) -> Iterator[Finding]:
    """Yield a finding for each piece of evidence that a run on this machine needs and lacks."""
    return _findings(RUN_ON_MACHINE, run)


def slurm_lacks(job: SlurmJob) -> Iterator[Finding]:
    """Yield a finding for each piece of evidence that a run under Slurm needs and lacks."""
    return _findings(RUN_BY_SLURM, job)


def _findings(table: Iterable[RequiredEvidence[Any]], subject: object) -> Iterator[Finding]:
    for lack in lacking_evidence(table, subject):
        yield Finding(code=lack.code, verdict=lack.verdict, message=lack.message[:4000])


# -- a run on this machine -------------------------------------------------------------------------------

_AGAIN = "run the benchmark again"


def _started(run: MachineRun) -> bool:
    return not run.known.could_not_start


def _ended(run: MachineRun) -> bool:
    return _started(run) and run.known.job.get("phase") == "ended"


def _of_job(
    key: str,
    code: str,
    kind: type | tuple[type, ...],
    needed: Callable[[MachineRun], bool] = _ended,
    harmless: str = "",
) -> RequiredEvidence[MachineRun]:
    def state(run: MachineRun) -> EvidenceState:
        value = run.known.job.get(key)
        # True is an int, and a node that reports it reports no number.
        right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if value is None or right:
            return state_of_value(value)
        return _DAMAGED

    origin = "the job's state, from its supervisor"
    return RequiredEvidence(f"job.{key}", origin, state, code, _AGAIN, needed, harmless=harmless)


def _of_evidence(name: str, harmless: str) -> RequiredEvidence[MachineRun]:
    def state(run: MachineRun) -> EvidenceState:
        return state_of_value(getattr(run.known, name))

    return RequiredEvidence(f"evidence.{name}", "the playbook", state, "no_job", _AGAIN, harmless=harmless)


def _of_logs(
    name: str, code: str, needed: Callable[[MachineRun], bool] = _ended, harmless: str = ""
) -> RequiredEvidence[MachineRun]:
    def state(run: MachineRun) -> EvidenceState:
        states = [
            state_of_value(getattr(log, name))
            for log in run.parsed
            if log.format in _EVENTS or not name.endswith("_event_s")
        ]
        return next((one for one in states if one is not _THERE), _THERE)

    return RequiredEvidence(f"log.{name}", "the log", state, code, _AGAIN, needed, harmless=harmless)


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
        "the job's state, from its supervisor",
        lambda run: state_of_value(run.known.job),
        "no_job",
        _AGAIN,
        _started,
    ),
    *(_of_evidence(name, _AGAINST) for name in ("findings", "could_not_start")),
    *(_of_evidence(name, _ABOUT) for name in ("command", "description", "storage", "network", "notes")),
    _of_evidence("container_digest", _ABOUT),
    _of_evidence("measurements", "a rule that asks for one of them has a finding of its own"),
    _of_evidence("slurm_start", "the job's own start counts where Slurm shows none"),
    _of_job("id", "another_job", str),
    _of_job("phase", "unknown_end", str, _started),
    _of_job("ended_by", "unknown_end", str),
    _of_job("exit_status", "no_exit_status", int, lambda run: _ended(run) and _by_itself(run)),
    _of_job("signal", "killed", int, harmless=_AGAINST),
    _of_job("succeeded", "contradiction", bool, lambda run: _ended(run) and _by_itself(run)),
    _of_job("started", "no_job_times", (int, float, str)),
    _of_job("ended", "no_job_times", (int, float, str)),
    _of_job("unkillable", "unkillable", list, harmless=_AGAINST),
    _of_job("log_bytes", "log_differs", int, harmless=_SEALED_TOO),
    _of_job("log_sha256", "log_differs", str, harmless=_SEALED_TOO),
    _of_job("seal", "job_damaged", str),
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
    _of_logs("measurements", "no_log", harmless="a rule that asks for one of them has a finding of its own"),
    _of_logs("series", "no_log", harmless=_ABOUT),
    _of_logs("findings", "no_log", harmless=_AGAINST),
    _of_logs("tags", "no_log", harmless="what is asked of them has a finding of its own: run, seed, GPUs"),
    _of_logs("verdict", "no_log"),
    _of_logs("first_event_s", "no_event_times"),
    _of_logs("last_event_s", "no_event_times"),
)
"""``evidence`` is :class:`~Evidence`, ``job`` the state that its seal covers,
``log`` each :class:`~rackproof.core.records.ParsedLog`."""


def _by_itself(run: MachineRun) -> bool:
    # How a job that was ended from outside ended has a finding that names the cause; so has a signal.
    return run.known.job.get("ended_by") == "itself" and run.known.job.get("signal") is None


# -- a run under Slurm -----------------------------------------------------------------------------------

_RULED = "set `lacks` in the definition where its run script prints none by design"


def _has_record(job: SlurmJob) -> bool:
    return bool(job.output.end)


def _prints(name: str) -> Callable[[SlurmJob], bool]:
    return lambda job: name not in job.script.lacks


def _always(_job: SlurmJob) -> bool:
    return True


def _of_record(
    key: str, code: str, needed: Callable[[SlurmJob], bool] = _has_record, harmless: str = ""
) -> RequiredEvidence[SlurmJob]:
    def state(job: SlurmJob) -> EvidenceState:
        value = job.output.end.get(key)
        return _ABSENT if value in ("Unknown", "None") else state_of_value(value)

    remedy = "ask Slurm's controller (sacct, scontrol) for the job, then run the benchmark again"
    origin = "Slurm's record of the job"
    return RequiredEvidence(f"slurm.{key}", origin, state, code, remedy, needed, harmless=harmless)


def _of_output(
    name: str,
    code: str,
    needed: Callable[[SlurmJob], bool] = _always,
    state: Callable[[RunSubOutput], EvidenceState] | None = None,
    harmless: str = "",
) -> RequiredEvidence[SlurmJob]:
    def found(job: SlurmJob) -> EvidenceState:
        return state(job.output) if state is not None else state_of_value(getattr(job.output, name))

    origin = "the log of the run script"
    return RequiredEvidence(f"log.{name}", origin, found, code, _RULED, needed, harmless=harmless)


def _some(number: float) -> EvidenceState:
    return _THERE if number else _ABSENT


def _both_markers(output: RunSubOutput) -> EvidenceState:
    seen = {name for name in (START, STOP) if name in output.times}
    return _THERE if len(seen) == 2 else EvidenceState.CUT if seen else _ABSENT


def _asks_for_preflight(job: SlurmJob) -> bool:
    return "nccl_preflight" not in job.script.lacks and not job.script.preflight_off


RUN_BY_SLURM: tuple[RequiredEvidence[SlurmJob], ...] = (
    _of_output("launcher_report", "no_end", state=lambda output: state_of_value(output.end)),
    _of_record("job", "another_job"),
    _of_record("name", "another_job"),
    _of_record("state", "slurm_state"),
    _of_record("exit_code", "slurm_state"),
    _of_record("nodes", "nodes_unknown"),
    _of_record("node_count", "nodes_unknown"),
    _of_record("start", "slurm_times"),
    _of_record("end", "slurm_times"),
    _of_record("elapsed_s", "slurm_times", harmless="start and end say it"),
    _of_record(
        "steps",
        "nodes_unknown",
        harmless="a site without accounts has none; the job's nodes, the log's nodes and its ranks remain",
    ),
    _of_output("times", "no_start_marker", _prints("start_marker"), _both_markers),
    _of_output("contradictions", "markers_contradict", harmless=_AGAINST),
    _of_output("node_list", "nodes_unknown", _prints("node_list")),
    _of_output("node_count", "nodes_unknown", _prints("node_list")),
    _of_output("job", "another_job", _prints("node_list")),
    _of_output("cache_clearings", "cache_not_cleared", harmless="what counts is what each node answered"),
    _of_output(
        "caches_cleared",
        "cache_not_cleared",
        _prints("cache_clearing"),
        lambda output: _some(output.caches_cleared),
    ),
    _of_output("cache_errors", "cache_not_cleared", harmless=_AGAINST),
    _of_output("ranks", "ranks_unknown", _prints("ranks"), lambda output: _some(output.ranks)),
    *(
        _of_output(name, code, harmless=_AGAINST)
        for name, code in (
            ("slow_nodes", "slow_node"),
            ("task_deaths", "task_died"),
            ("out_of_memory_ranks", "out_of_memory"),
            ("mount_errors", "mount_check"),
            ("mpi_errors", "no_mpi"),
        )
    ),
    _of_output("samples", "convergence_unknown", harmless="asked for where the rules have references"),
    _of_output("preflight_enabled", "nccl_preflight", harmless="the plan says whether it was asked for"),
    _of_output("preflight_text", "nccl_preflight", _asks_for_preflight),
)
"""``slurm`` is the record that workloads/slurm_run.py reports, ``log`` is :class:`RunSubOutput`."""
