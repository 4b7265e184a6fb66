"""Read and judge the parts of a Slurm job's output that are not MLPerf events.

This text shows the job's nodes, slow parts and failures. The job's run script, run.sub, prints markers with
the time, the node list, the table of the NCCL preflight (nccl-tests before the training), and the result of
clearing the page caches. workloads/slurm_run.py adds lines `:::RACKPROOF {JSON}`:

    :::DLPAL image#x 7 3 n[1-3] 'unknown' GB300_3x4x1
    RUNANDTIME_START 1700000020
    :::RACKPROOF {"end": {"job": "7", "state": "COMPLETED", "exit_code": "0:0", "steps": [...], ...}}

Job bench reads this text with :class:`RunSubReader`, in the same pass as the parser, and judges it with
:func:`run_sub_findings`. A second part judges Slurm's own record of a job (``end``).
"""

from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from rackproof.core.hostlist import expand_hostlist
from rackproof.core.records import Direction, Finding, Measurement, Record, Source, Verdict, worst
from rackproof.core.text import amount, sanitize
from rackproof.logs import parse
from rackproof.logs._reading import observe_path

CLOCK_SLACK_S = 300.0
"""Largest difference between the clocks of a cluster's nodes: munge, Slurm's authentication, refuses older
messages."""
ZONE_SLACK_S = 14 * 3600.0
"""Largest offset from UTC of a time without a time zone."""
_SECONDS = re.compile(r"\d{9,11}")
"""Pattern of a Unix time."""
MARK = ":::RACKPROOF "
"""Beginning of the launcher's lines."""
_MARKER = re.compile(
    r"\b(PROLOG_START|NCCL_TEST_START|NCCL_TEST_STOP|PROLOG_STOP|EXPERIMENT_START|RUNANDTIME_START|"
    r"RUNANDTIME_STOP|EXPERIMENT_STOP) (\d{9,11})\b"
)
_NODE_LIST = re.compile(r"^:::DLPAL (\S+) (\S*) (\d+) (\S+)")
"""Pattern of the line with image, job number, number of nodes, and nodes."""
_CLEARING = re.compile(r"Clearing cache on ")
_CLEARED = re.compile(r"vm\.drop_caches = \d")
_CLEARING_COMMAND = re.compile(r"vm\.drop_caches=\d|> ?/proc/sys/vm/drop_caches")
"""Patterns of the start and the success of clearing a page cache, and of the command itself."""
_PROCESS_COUNT = re.compile(r"Starting with (\d{1,6}) processes")
_LABEL = re.compile(r"^\s*(\d{1,6}): ")
"""Pattern of the rank that ``srun --label`` writes before a line."""
_MPI_ERROR = re.compile(
    r"mpi/\w+: .{0,100}(?:not load|not found)|[Cc]ouldn't find the specified plugin name for mpi/"
)
# A task that exited with 0 did not fail.
_TASK_DEATH = re.compile(r"srun: error: (\S+: tasks? [\d,\-]+: (?!Exited with exit code 0).{1,100})")
_MOUNT_WARNING, _MOUNT_NOT_NAMED = "mountcheck WARNING ", "missing key:path mapping"
"""Texts of run.sub's check of the mounted folders."""
_RANK = re.compile(r"\[rank:? ?(\d{1,6})\]")
_PREFLIGHT_RANK = re.compile(r"^(?: *\d{1,6}: )?#\s+Rank\s+(\d{1,6})\s.*\bdevice\b", re.MULTILINE)
_SLOW_NODE = re.compile(r"Rank=(\d+) Node=(\S+) Score=(\S*)")
_SAMPLES = re.compile(r'"samples_count": ?(\d{1,15})')
_EPOCH = re.compile(r'"epoch_num": ?(\d{1,15}(?:\.\d{1,30})?)')
_PREFLIGHT_DEVICE = re.compile(r"(?m)^(?: *\d{1,6}: )?#\s+Rank\s+\d{1,6} .*\bon (\S+) device\s+\d")
_SCORE = re.compile(r"\d{0,20}\.?\d{1,30}")
MAX_LINE_BYTES = 20_000
"""Number of bytes of a line that are read."""
MAX_KEPT = 20
"""Largest number of stored lines of one kind. In a job of thousands of ranks, each may repeat an error."""
MAX_NODES = 10_000
"""Largest number of slow nodes, and of ranks without memory, that are stored. Fewer already fail the run."""
MAX_NCCL = 1 << 20
"""Largest number of characters of the preflight's output that are stored."""
SLOW_SCORE = 0.7
"""Relative performance below which a node slows the others down: NeMo's own threshold."""
SLOW_REPEAT, REMARKABLE_REPEAT = 0.1, 0.04
"""Smallest shares of the usual throughput (the median of earlier repeats) by which a degraded repeat, and one
with a remark, is slower."""

START, STOP = "RUNANDTIME_START", "RUNANDTIME_STOP"
"""Markers that run.sub prints right before and after the training."""
PREFLIGHT_START, PREFLIGHT_STOP = "NCCL_TEST_START", "NCCL_TEST_STOP"
"""Markers before and after the NCCL preflight."""

_PHASES = {
    "prolog": ("PROLOG_START", "PROLOG_STOP"),
    "nccl_preflight": (PREFLIGHT_START, PREFLIGHT_STOP),
    "caches": ("EXPERIMENT_START", "RUNANDTIME_START"),
    "run_and_time": ("RUNANDTIME_START", "RUNANDTIME_STOP"),
}
"""Start and end marker of each phase."""


class RunSubOutput(Record):
    """The contents of the output as read, without a verdict."""

    launcher_report: dict[str, Any] = Field(
        default={}, description="Keys of `:::RACKPROOF` lines, the last of each."
    )
    times: dict[str, int] = {}  # noqa: RUF012  (pydantic copies defaults)
    """Unix time of the first occurrence of each marker."""
    contradictions: tuple[str, ...] = ()
    """Markers that are repeated with another time, or that precede their start marker."""
    node_list: tuple[str, ...] = ()
    node_count: int | None = None
    """Number of the job's nodes according to the log, or None if the log does not show it."""
    job: str = ""
    """Number of the Slurm job according to the log."""
    cache_clearings: int = 0
    """Number of nodes that started to clear their page cache."""
    caches_cleared: int = 0
    """Number of nodes that reported the cleared cache."""
    cache_errors: tuple[str, ...] = ()
    ranks: int = 0
    """Number of processes that trained, or 0 if the log does not show it."""
    slow_nodes: dict[str, float] = {}  # noqa: RUF012
    """Lowest relative performance of each slow node, or NaN if it cannot be read."""
    task_deaths: tuple[str, ...] = ()
    out_of_memory_ranks: tuple[int, ...] = ()
    mount_errors: tuple[str, ...] = ()
    mounts_not_named: tuple[str, ...] = ()
    """Mounts of the check's table that the run script did not name."""
    mpi_errors: tuple[str, ...] = ()
    samples: float | None = None
    """Samples trained until the last evaluation, or epochs for benchmarks that count epochs."""
    preflight_enabled: bool | None = None
    """True if the NCCL preflight was switched on, or None if the log does not show this."""
    preflight_text: str = ""
    """Lines between the preflight's markers, for the parser of nccl-tests."""

    @property
    def end(self) -> dict[str, Any]:
        """Return the launcher's report of the job's end, which has Slurm's record, or an empty dict."""
        end = self.launcher_report.get("end")
        return end if isinstance(end, dict) else {}

    @property
    def phases(self) -> dict[str, float]:
        """Return the seconds of each phase that both started and ended."""
        return {
            name: float(self.times[stop] - self.times[start])
            for name, (start, stop) in _PHASES.items()
            if start in self.times and stop in self.times and self.times[stop] >= self.times[start]
        }


class RunSubReader:
    """A line observer for :func:`rackproof.logs.parse`, for run.sub's lines. No line raises an error."""

    def __init__(self) -> None:
        self._launcher_report: dict[str, Any] = {}
        self._times: dict[str, int] = {}
        self._contradictions: list[str] = []
        self._node_list: tuple[str, ...] = ()
        self._node_count: int | None = None
        self._job = ""
        self._cache_clearings = self._caches_cleared = 0
        self._cache_errors: list[str] = []
        self._stated_ranks = 0
        self._labels: set[int] = set()
        self._slow_nodes: dict[str, float] = {}
        self._task_deaths: list[str] = []
        self._out_of_memory_ranks: set[int] = set()
        self._mount_errors: list[str] = []
        self._mounts_not_named: list[str] = []
        self._mpi_errors: list[str] = []
        self._samples: float | None = None
        self._preflight_enabled: bool | None = None
        self._preflight_lines: list[str] = []
        self._preflight_size = 0
        self._in_preflight = False
        self._in_training = False

    def line(self, number: int, raw: bytes) -> None:
        """Read one line."""
        text = raw[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r\n")
        if text.startswith(MARK):
            self._take_launcher_report(text[len(MARK) :])
            return
        # Use the plain search first. Most lines contain no marker, and a pattern takes ten times as long.
        if "_ST" in text and (marker := _MARKER.search(text)):
            self._take_marker(marker[1], int(marker[2]))
            return
        if self._in_preflight:
            self._keep_preflight_line(text)
        if self._take_setup_line(text) or self._take_error_line(text):
            return
        if '"eval_accuracy"' in text and (trained := _SAMPLES.search(text) or _EPOCH.search(text)):
            self._samples = float(trained[1])
        elif not self._in_training and ":::ML" in text:
            # If the marker is missing, the first event shows that the training started.
            self._in_training = STOP not in self._times
        elif self._in_training:
            self._take_training_line(text)

    def result(self) -> RunSubOutput:
        """Return the result of the lines read so far."""
        return RunSubOutput(
            launcher_report=self._launcher_report,
            times=self._times,
            contradictions=tuple(self._contradictions),
            node_list=self._node_list,
            node_count=self._node_count,
            job=self._job,
            cache_clearings=self._cache_clearings,
            caches_cleared=self._caches_cleared,
            cache_errors=tuple(self._cache_errors),
            ranks=self._stated_ranks or len(self._labels),
            slow_nodes=self._slow_nodes,
            task_deaths=tuple(self._task_deaths),
            out_of_memory_ranks=tuple(sorted(self._out_of_memory_ranks)[:MAX_KEPT]),
            mount_errors=tuple(self._mount_errors),
            mounts_not_named=tuple(self._mounts_not_named),
            mpi_errors=tuple(self._mpi_errors),
            samples=self._samples,
            preflight_enabled=self._preflight_enabled,
            preflight_text="".join(f"{line}\n" for line in self._preflight_lines),
        )

    def _take_launcher_report(self, payload: str) -> None:
        """Add the keys of one `:::RACKPROOF` line. Damaged JSON is ignored."""
        try:
            report = json.loads(payload)
        except (ValueError, RecursionError):
            return
        if isinstance(report, dict):
            self._launcher_report.update({sanitize(key, 40): value for key, value in report.items()})

    def _take_marker(self, name: str, time: int) -> None:
        """Store the time of a marker, note contradictions, and note which part of the job runs."""
        if name == START and name not in self._times and STOP in self._times:
            _keep(self._contradictions, f"{START} comes after {STOP}")
        if name == STOP and time < self._times.get(START, 0):
            _keep(self._contradictions, f"{STOP} is {time}, before {START}, {self._times[START]}")
        # `set -x` prints each marker again, with the same time.
        if self._times.setdefault(name, time) != time:
            _keep(self._contradictions, f"{name} is {self._times[name]} and {time}")
        if name == "NCCL_TEST_START":
            self._in_preflight = True
        elif name == "NCCL_TEST_STOP":
            self._in_preflight = False
        # Ranks and failures outside the training belong to other steps, such as the preflight.
        self._in_training = START in self._times and STOP not in self._times

    def _keep_preflight_line(self, text: str) -> None:
        if self._preflight_size < MAX_NCCL:
            self._preflight_size += len(text) + 1
            self._preflight_lines.append(text)

    def _take_setup_line(self, text: str) -> bool:
        """Read a line about the job's set-up or the page cache. Return whether it is such a line."""
        if text.startswith("NCCL_TEST = "):
            self._preflight_enabled = text.endswith("= 1")
            return True
        if text.startswith(":::DLPAL") and (node_list := _NODE_LIST.match(text)):
            self._node_list = expand_hostlist(node_list[4])
            self._job, self._node_count = sanitize(node_list[2], 20), int(node_list[3][:9])
            return True
        # A cache that is cleared during the training was not cleared before it.
        if START in self._times:
            return False
        if "Clearing cache on " in text:
            # run.sub prints this with `echo -n`, so messages of several nodes may share a line.
            self._cache_clearings += len(_CLEARING.findall(text))
            return True
        # With `set -x`, the shell prints the command itself, after a plus sign or on separate lines.
        if "drop_caches" in text and not text.lstrip().startswith("+"):
            if cleared := _CLEARED.findall(text):
                self._caches_cleared += len(cleared)
            elif not _CLEARING_COMMAND.search(text):
                _keep(self._cache_errors, sanitize(text, 200))
            return True
        return False

    def _take_error_line(self, text: str) -> bool:
        """Read an error message about mounts or MPI. Return whether the line is one."""
        # The check of round 5.1 prints other messages than those of earlier rounds.
        if text.startswith(_MOUNT_WARNING):
            error_texts = self._mounts_not_named if _MOUNT_NOT_NAMED in text else self._mount_errors
            _keep_distinct(error_texts, sanitize(text[len(_MOUNT_WARNING) :], 300))
            return True
        if text.startswith("Error: ") and "incorrect" in text:
            _keep_distinct(self._mount_errors, sanitize(text, 300))
            return True
        if "mpi/" in text and _MPI_ERROR.search(text):
            _keep(self._mpi_errors, sanitize(text, 200))
            return True
        return False

    def _take_training_line(self, text: str) -> None:
        """Read ranks, dead tasks, lack of memory and slow nodes from a line of the training."""
        if label := _LABEL.match(text):
            self._labels.add(int(label[1]))
        if death := _TASK_DEATH.search(text):
            _keep(self._task_deaths, sanitize(death[1], 200))
        elif (
            "ut of memory" in text
            and len(self._out_of_memory_ranks) < MAX_NODES
            and (rank := _RANK.search(text))
        ):
            self._out_of_memory_ranks.add(int(rank[1]))
        if processes := _PROCESS_COUNT.search(text):
            self._stated_ranks = int(processes[1])
        elif slow := _SLOW_NODE.search(text):
            self._take_score(sanitize(slow[2], 100), slow[3].rstrip(".,;)]"))

    def _take_score(self, node: str, text: str) -> None:
        """Store the relative performance of a node, if it is slow or cannot be read."""
        score = float(text) if _SCORE.fullmatch(text) else math.nan
        if score >= SLOW_SCORE or (node not in self._slow_nodes and len(self._slow_nodes) >= MAX_NODES):
            return
        known = self._slow_nodes.get(node, math.nan)
        self._slow_nodes[node] = score if math.isnan(known) else min(known, score)


def _keep(kept: list[str], text: str) -> None:
    """Store a message, unless enough of its kind are stored."""
    if len(kept) < MAX_KEPT:
        kept.append(text)


def _keep_distinct(kept: list[str], text: str) -> None:
    """Store a message once. All nodes print the same message about a shared folder."""
    if text not in kept and len(kept) < MAX_KEPT:
        kept.append(text)


def read_run_sub(path: Path) -> RunSubOutput:
    """Read only run.sub's lines of a log. No text in the log raises an error.

    Raises:
        OSError: The log cannot be read.
    """
    reader = RunSubReader()
    observe_path(path, [reader])
    return reader.result()


class RunScript(NamedTuple):
    """The outputs of a benchmark's run script. The default is round 5.1's run.sub."""

    lacks: Collection[str] = ()
    """Outputs that the script omits by design, named as in ``lacks`` of a definition."""
    processes: str = "gpu"
    """The unit with one process, ``gpu`` or ``node``, or "" if either is possible."""
    preflight_off: bool = False
    """True if the run was planned without the NCCL preflight."""


def run_sub_findings(
    output: RunSubOutput,
    nodes: Sequence[str],
    gpus: int,
    *,
    run_id: str = "",
    script: RunScript = RunScript(),  # noqa: B008  (it cannot be changed)
) -> list[Finding]:
    """Return the findings from the output.

    Required lines that are missing are findings of ``jobs.bench.required_evidence``.

    Args:
        output: The parsed output.
        nodes: The requested nodes.
        gpus: The number of GPUs of each node, or 0 if unknown.
        run_id: The id of the run, which is the name of its Slurm job. If it is empty, the names are not
            compared.
        script: What the run script prints.
    """
    refused = output.launcher_report.get("refused")
    if refused:
        return [_finding("refused", Verdict.UNPROVEN, sanitize(refused, 2000))]
    ended = [*_end_findings(output), *slurm_record_findings(output.end, nodes, run_id)]
    findings = [*_mpi_findings(output), *ended]
    if ended_before_training(output):
        # Faults of ranks and caches are only consequences of the cause of the job's end.
        return findings
    findings += _marker_findings(output)
    findings += _node_findings(output, nodes, gpus, script)
    findings += _cache_findings(output, nodes)
    findings += preflight_findings(output, script, nodes, gpus)
    for text in output.mount_errors:
        findings.append(
            _finding("mount_check", Verdict.UNPROVEN, f"run.sub's check of the mounts failed: {text}")
        )
    for text in output.mounts_not_named:
        # The table in the image is for several benchmarks, and does not show which folders this one
        # reads.
        findings.append(_finding("mount_not_named", None, f"run.sub's check of the mounts: {text}"))
    return findings + _slow_node_findings(output)


def _slow_node_findings(output: RunSubOutput) -> list[Finding]:
    """Return the findings on nodes that are slow, or whose relative performance cannot be read."""
    findings = []
    for node, score in sorted(output.slow_nodes.items()):
        if math.isnan(score):
            message = f"the log's relative performance of {node} is no number: run the benchmark again"
            findings.append(_finding("not_checked", Verdict.UNPROVEN, message))
        else:
            message = f"{node} is slow and holds up the others: relative performance {score:g}"
            findings.append(_finding("slow_node", Verdict.FAIL, message))
    return findings


def ended_before_training(output: RunSubOutput) -> bool:
    """Return whether a job ended before its training started.

    Without the marker of the start, it did if a cause is known or the launcher reports no end of the job.
    """
    if START in output.times:
        return False
    causes = [*_mpi_findings(output), *_end_findings(output), *state_findings(output.end)]
    return bool(causes or output.launcher_report.get("refused") or not output.end)


def _mpi_findings(output: RunSubOutput) -> list[Finding]:
    """Return a finding if Slurm could not start ranks with the requested MPI."""
    if not output.mpi_errors:
        return []
    message = (
        f"Slurm could not start ranks with the MPI that run.sub requests: {output.mpi_errors[0]}; "
        "install its library on all nodes, or name another kind with "
        "bench_environment: {SLURM_MPI_TYPE: ...}"
    )
    return [_finding("no_mpi", Verdict.UNPROVEN, message)]


def _marker_findings(output: RunSubOutput) -> list[Finding]:
    """Return a finding if markers contradict each other."""
    if not output.contradictions:
        return []
    message = f"run.sub's markers contradict each other: {output.contradictions[0]}"
    return [_finding("markers_contradict", Verdict.UNPROVEN, message)]


def _end_findings(output: RunSubOutput) -> list[Finding]:
    """Return the findings about an early end, such as failed tasks, lack of memory, or a hang."""
    # The first task that fails is the cause. The others lose their peer.
    findings = [
        _finding("task_died", Verdict.FAIL, f"a task died: {text}") for text in output.task_deaths[:1]
    ]
    for rank in output.out_of_memory_ranks:
        where = f" on {node}" if (node := node_of_rank(output, rank)) else ""
        findings.append(_finding("out_of_memory", Verdict.FAIL, f"rank {rank}{where} ran out of memory"))
    hang = output.launcher_report.get("hang")
    if isinstance(hang, dict):
        findings.append(_hang_finding(hang))
    return findings


def _hang_finding(hang: Mapping[str, Any]) -> Finding:
    """Return the finding on a job that was cancelled because it printed nothing for too long."""
    step = sanitize(hang.get("step") or "before the first step", 60)
    phase = sanitize(hang.get("phase") or "start", 60)
    silent = sanitize(hang.get("silent_s"), 20)
    message = f"hung at {step} (phase {phase}): no output for {silent} s; cancelled"
    if hang.get("last"):
        message += f"; the last line was: {sanitize(hang['last'], 200)}"
    return _finding("hung_at_step", Verdict.FAIL, message)


def node_of_rank(output: RunSubOutput, rank: int) -> str:
    """Return the node of a rank, or "" if unknown. Ranks fill the nodes in the order of the node list."""
    nodes = output.node_list
    if not nodes or not output.ranks or output.ranks % len(nodes) or rank >= output.ranks:
        return ""
    return nodes[rank * len(nodes) // output.ranks]


_STEP_STATES = ("", "COMPLETED", "COMPLETING", "RUNNING")
"""States of a step that ended well. Slurm's accounting may know the end of a step later than of its job."""


def _training_step(output: RunSubOutput) -> Mapping[str, Any] | None:
    """Return Slurm's record of the training's step, or None if the job has no steps.

    It is the longest of the steps (calls of srun) that started between run.sub's own markers.
    """
    first_time, last_time = output.times.get(START, 0), output.times.get(STOP, 0)
    steps = job_steps(output.end)
    candidates = []
    for step in steps:
        start = step.get("start")
        if isinstance(start, int) and first_time <= start and (not last_time or start < last_time):
            candidates.append(step)
    # If clocks differ, no start may be between the markers. The longest step then includes the training.
    return max(candidates or steps, key=_elapsed_s, default=None)


def _training_step_findings(end: Mapping[str, Any], step: Mapping[str, Any]) -> list[Finding]:
    """Return a finding if the training's step ended badly in a job that ended well.

    A script that passes the training's output to ``tee`` loses the step's exit status.
    """
    state, code = sanitize(step.get("state") or "", 40), sanitize(step.get("exit_code") or "", 20)
    if state_findings(end) or (state in _STEP_STATES and code in ("", "0:0")):
        return []
    message = f"{_job(end)} ended as COMPLETED, and its training's step as {state or 'unknown'} {code}"
    return [_unproven("slurm_state", message.strip())]


def _step_time_findings(output: RunSubOutput, step: Mapping[str, Any]) -> list[Finding]:
    """Return a finding if the training's step was shorter than the log's markers in it are apart."""
    marked_s = output.times.get(STOP, 0) - output.times.get(START, math.inf)
    elapsed_s = _elapsed_s(step)
    if step.get("state") != "COMPLETED" or not 0 < elapsed_s < marked_s - CLOCK_SLACK_S:
        return []
    message = (
        f"{_job(output.end)}: its training's step took {elapsed_s:.0f} s, the log's training {marked_s:.0f} s"
    )
    return [_unproven("slurm_times", message)]


def _elapsed_s(step: Mapping[str, Any]) -> float:
    """Return the duration of a step in seconds, or 0 if unknown."""
    elapsed = step.get("elapsed_s")
    return elapsed if isinstance(elapsed, int | float) else 0.0


def _node_findings(output: RunSubOutput, nodes: Sequence[str], gpus: int, script: RunScript) -> list[Finding]:
    """Compare the requested nodes with the nodes in the log and in the training step."""
    findings = wrong_nodes("the log", set(output.node_list), set(nodes)) if output.node_list else []
    if output.node_count not in (None, len(nodes)):
        message = f"the log is of {output.node_count} nodes, {len(nodes)} were requested"
        findings.append(_finding("wrong_nodes", Verdict.UNPROVEN, message))
    findings += _job_number_findings(output)
    unmarked = "start_marker" in script.lacks and START not in output.times
    training = None if unmarked else _training_step(output)
    if training:
        # A job may be allocated all nodes and still train on only some of them.
        used = expand_hostlist(str(training.get("nodes") or ""))
        findings += wrong_nodes("the training's step", set(used), set(nodes))
        findings += _training_step_findings(output.end, training)
        findings += _step_time_findings(output, training)
    return findings + _rank_findings(output, nodes, gpus, script)


def _job_number_findings(output: RunSubOutput) -> list[Finding]:
    """Return a finding if the log belongs to another job than Slurm's record."""
    job = sanitize(output.end.get("job") or "", 20)
    if not job or not output.job or output.job == job:
        return []
    message = f"the log is of Slurm job {output.job}, not of {job}, which was started for this run"
    return [_finding("another_job", Verdict.UNPROVEN, message)]


def _rank_findings(output: RunSubOutput, nodes: Sequence[str], gpus: int, script: RunScript) -> list[Finding]:
    """Compare the number of processes that trained with the requested GPUs or nodes."""
    if not output.ranks or ("ranks" in script.lacks and START not in output.times):
        return []
    if script.processes == "gpu" and gpus < 1:
        message = (
            f"{output.ranks} ranks trained; the number of GPUs of a node is not known: set bench_sku_gpus"
        )
        return [_finding("wrong_ranks", Verdict.UNPROVEN, message)]
    fitting = {"gpu": len(nodes) * gpus, "node": len(nodes)}
    if output.ranks in ([fitting[script.processes]] if script.processes else fitting.values()):
        return []
    requested_text = f"{amount(len(nodes), 'node')} with {gpus or '?'} GPUs each"
    message = f"{amount(output.ranks, 'rank')} trained, {requested_text} were requested"
    if output.ranks == len(nodes):
        message += "; if one process per node is intended, set `processes: node` in the definition"
    return [_finding("wrong_ranks", Verdict.UNPROVEN, message)]


def _cache_findings(output: RunSubOutput, nodes: Sequence[str]) -> list[Finding]:
    """Return a finding if some nodes' `sysctl` output does not show a cleared page cache.

    An event `cache_clear: true` proves nothing.
    """
    is_shown = output.cache_clearings or output.caches_cleared or output.cache_errors
    if not is_shown or (output.caches_cleared >= len(nodes) and not output.cache_errors):
        return []
    message = f"the page cache was cleared on {output.caches_cleared} of {amount(len(nodes), 'node')}"
    if output.cache_errors:
        message += f": {output.cache_errors[0]}"
    return [_finding("cache_not_cleared", Verdict.UNPROVEN, message)]


def preflight_findings(
    output: RunSubOutput,
    script: RunScript = RunScript(),  # noqa: B008  (it cannot be changed)
    nodes: Sequence[str] = (),
    gpus: int = 0,
) -> list[Finding]:
    """Return the findings on the NCCL preflight, whose failures the run script itself ignores.

    Args:
        output: The parsed output.
        script: What the run script prints, and whether the preflight was planned.
        nodes: The requested nodes.
        gpus: The number of GPUs of each node, or 0 if unknown.
    """
    if PREFLIGHT_START not in output.times:
        # If the preflight is required, required_evidence reports that it is missing.
        lacks = "nccl_preflight" in script.lacks
        message = "the run script has no" if lacks else "the run was planned without the"
        skipped = skips_preflight(output, script)
        return [_finding("nccl_preflight", None, f"{message} NCCL preflight")] if skipped else []
    parsed = parse(io.BytesIO(output.preflight_text.encode()), format="nccl_tests", name="NCCL preflight")
    findings = _preflight_failures(parsed.findings)
    # Report this even if the preflight failed. Without a result, the network between the nodes is untested.
    if not any(measurement.name.endswith("busbw") for measurement in parsed.measurements):
        findings.append(_finding("nccl_preflight", Verdict.UNPROVEN, "the NCCL preflight printed no result"))
    return findings + _placement_findings(_PREFLIGHT_DEVICE.findall(output.preflight_text), nodes, gpus)


def skips_preflight(output: RunSubOutput, script: RunScript) -> bool:
    """Return whether a run lacks the NCCL preflight by design, or was planned and made without one."""
    return "nccl_preflight" in script.lacks or (script.preflight_off and not output.preflight_enabled)


def _placement_findings(hosts: Sequence[str], nodes: Sequence[str], gpus: int) -> list[Finding]:
    """Compare the places of the preflight's ranks, which are also the training's, with the plan.

    Args:
        hosts: The hostname of each rank, or none if the preflight printed none.
        nodes: The requested nodes.
        gpus: The number of GPUs of each node, or 0 if unknown.
    """
    if not hosts or not gpus or not nodes:
        return []
    if len(hosts) != len(nodes) * gpus:
        message = f"the NCCL preflight ran on {amount(len(hosts), 'GPU')}, the nodes have {len(nodes) * gpus}"
        return [_finding("nccl_preflight", Verdict.UNPROVEN, message)]
    ranks, requested_nodes = Counter(hosts), {node.partition(".")[0] for node in nodes}
    odd = [f"{sanitize(host, 100)} has {count} ranks" for host, count in ranks.items() if count != gpus]
    # A host's own name may differ from Slurm's. Then none of the names is one of Slurm's.
    if requested_nodes & ranks.keys():
        odd += [f"{sanitize(host, 100)} was not requested" for host in ranks if host not in requested_nodes]
        odd += [f"{sanitize(node, 100)} has none" for node in sorted(requested_nodes - ranks.keys())]
    if not odd:
        return []
    message = f"the NCCL preflight ran with other ranks than {gpus} on each node: {', '.join(odd)}"
    return [_finding("wrong_ranks", Verdict.UNPROVEN, message)]


def _preflight_failures(parsed: Sequence[Finding]) -> list[Finding]:
    """Return a single finding for everything that is wrong in the preflight."""
    gating = [finding for finding in parsed if finding.verdict is not None and finding.verdict.gates]
    if not gating:
        return []
    more = f" (and {len(gating) - 1} more)" if len(gating) > 1 else ""
    message = f"NCCL preflight: {gating[0].message}{more}"
    verdict = worst(finding.verdict for finding in gating if finding.verdict)
    return [_finding("nccl_preflight", verdict, message)]


def run_sub_measurements(output: RunSubOutput, file: str) -> list[Measurement]:
    """Return the times of phases, and the lowest busbw of the preflight's largest size, as measurements."""
    source = Source(file=file)
    measurements = [
        Measurement(name="phase_time", value=value, unit="s", labels={"phase": name}, source=source)
        for name, value in output.phases.items()
    ]
    bandwidths = _preflight_bandwidths(output)
    if bandwidths:
        largest, kind = max((size, kind) for size, kind, _value in bandwidths)
        labels = {"size_bytes": str(largest), "dtype": kind}
        # Scripts end at different sizes, and the number of ranks is part of the measured quantity.
        if ranks := len(set(_PREFLIGHT_RANK.findall(output.preflight_text))):
            labels["ranks"] = str(ranks)
        measurements.append(
            Measurement(
                name="nccl_preflight_busbw",
                value=min(
                    value for size, other_kind, value in bandwidths if (size, other_kind) == (largest, kind)
                ),
                unit="GB/s",
                direction=Direction.HIGHER,
                labels=labels,
                source=source,
            )
        )
    return measurements


def _preflight_bandwidths(output: RunSubOutput) -> list[tuple[int, str, float]]:
    """Return message size, data type and bus bandwidth of each row of the NCCL preflight."""
    if not output.preflight_text:
        return []
    parsed = parse(io.BytesIO(output.preflight_text.encode()), format="nccl_tests")
    return [
        (int(measurement.labels["size_bytes"]), measurement.labels.get("dtype", ""), measurement.value)
        for measurement in parsed.measurements
        if measurement.name.endswith("busbw") and measurement.labels.get("size_bytes", "").isdecimal()
    ]


def repeat_findings(own: Sequence[Measurement], earlier: Sequence[Sequence[Measurement]]) -> list[Finding]:
    """Return a finding if a repeat is slower than earlier ones. It names the phase that took longer.

    Args:
        own: The measurements of the repeat.
        earlier: The measurements of earlier repeats that passed.
    """
    speed = _value(own, "samples_per_second")
    earlier_speeds = sorted(_values(earlier, "samples_per_second"))
    # A single earlier repeat shows no spread, because it might be the outlier.
    if speed is None or len(earlier_speeds) < 2:
        return []
    usual = earlier_speeds[len(earlier_speeds) // 2]
    if usual <= 0 or speed >= usual * (1 - REMARKABLE_REPEAT):
        return []
    phase, excess_s = _slowest_phase(own, earlier)
    where = f"; the phase {phase} took {excess_s:.0f} s more" if phase else ""
    message = f"a slow repeat: {speed:.4g} samples/s, those before it {usual:.4g}{where}"
    verdict = Verdict.DEGRADED if speed < usual * (1 - SLOW_REPEAT) else None
    return [_finding("slow_repeat", verdict, message)]


def _slowest_phase(
    measurements: Sequence[Measurement], earlier: Sequence[Sequence[Measurement]]
) -> tuple[str, float]:
    """Return the phase that exceeds the median of earlier repeats most, with the difference in seconds."""
    slowest, most_s = "", 0.0
    for measurement in measurements:
        if measurement.name != "phase_time":
            continue
        earlier_times = sorted(_values(earlier, "phase_time", measurement.labels))
        excess_s = measurement.value - earlier_times[len(earlier_times) // 2] if earlier_times else 0.0
        if excess_s > most_s:
            slowest, most_s = measurement.labels.get("phase", ""), excess_s
    return slowest, most_s


def _value(
    measurements: Sequence[Measurement], name: str, labels: Mapping[str, str] | None = None
) -> float | None:
    """Return the first value with the name and all given labels, or None."""
    wanted_labels = (labels or {}).items()
    for measurement in measurements:
        if measurement.name == name and wanted_labels <= measurement.labels.items():
            return measurement.value
    return None


def _values(
    repeats: Sequence[Sequence[Measurement]], name: str, labels: Mapping[str, str] | None = None
) -> list[float]:
    """Return the value from each repeat that measured it."""
    values = (_value(measurements, name, labels) for measurements in repeats)
    return [value for value in values if value is not None]


def _finding(code: str, verdict: Verdict | None, message: str) -> Finding:
    """Return a finding with a message of limited length."""
    return Finding(code=code, verdict=verdict, message=message[:4000])


# -- Slurm's own record of a job ----------------------------------------------------------------------
# What a log states may be of another run, or cut off. Slurm knows the place, the time and the end of the
# job. Its report is text from a node too, so anything in it may be missing or of another type.


class JobTimes(NamedTuple):
    """Start and end of a job by Slurm in seconds since 1970, and their possible error in seconds."""

    start_s: float
    end_s: float
    slack_s: float


def slurm_record_findings(end: Mapping[str, Any], nodes: Sequence[str], run_id: str = "") -> list[Finding]:
    """Return the findings from Slurm's record of a job, independent of the job's log.

    Args:
        end: The launcher's report on the end of the job, with Slurm's record.
        nodes: The requested nodes.
        run_id: The id of the run, which is the name of its job. If it is empty, the names are not
            compared.
    """
    findings = state_findings(end)
    name = end.get("name")
    if run_id and name and name != run_id:
        message = f"{_job(end)} belongs to another run: its name is {sanitize(name, 130)}, not {run_id}"
        findings.append(_unproven("another_job", message))
    return findings + _record_node_findings(end, nodes)


def slurm_time_findings(end: Mapping[str, Any], moments: Iterable[tuple[str, float]]) -> list[Finding]:
    """Return a finding for each time in a log that is before its job's start or after its end in Slurm.

    Args:
        end: The launcher's report on the end of the job.
        moments: The log's events as text, each with its time in seconds since 1970.
    """
    times = job_times(end)
    if times is None:
        return []
    if times.end_s < times.start_s:
        message = f"{_job(end)} ended {times.start_s - times.end_s:.0f} s before it began, by Slurm"
        return [_unproven("slurm_times", message)]
    findings = []
    for name, moment_s in moments:
        early_s, late_s = times.start_s - moment_s, moment_s - times.end_s
        if max(early_s, late_s) <= times.slack_s:
            continue
        where = f"{early_s:.0f} s before {_job(end)} began"
        if late_s > early_s:
            where = f"{late_s:.0f} s after {_job(end)} ended"
        findings.append(_unproven("log_of_another_time", f"{name} is {where}, by Slurm"))
    return findings


def job_times(end: Mapping[str, Any]) -> JobTimes | None:
    """Return the start and end of a job, or None if its record does not show them."""
    start, stop = record_moment(end.get("start")), record_moment(end.get("end"))
    if start is None or stop is None:
        return None
    return JobTimes(start[0], stop[0], max(start[1], stop[1]))


def is_job_of(end: Mapping[str, Any], run_id: str) -> bool:
    """Return whether Slurm's record gives the job the name of a run."""
    return end.get("name") == run_id


def record_moment(value: object) -> tuple[float, float] | None:
    """Return a time of the record in seconds with its slack, or None if it is not a time (``Unknown``)."""
    text = str(value) if type(value) in (int, str) else ""
    if _SECONDS.fullmatch(text):
        return float(text), CLOCK_SLACK_S
    try:
        moment = datetime.fromisoformat(text)
        # Slurm writes local time without a time zone unless it is requested to write seconds.
        slack_s = CLOCK_SLACK_S if moment.tzinfo else ZONE_SLACK_S
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), slack_s
    except (ValueError, OverflowError):
        return None


def _job(end: Mapping[str, Any]) -> str:
    """Return the job as text (``Slurm job 7``)."""
    return f"Slurm job {sanitize(end.get('job') or '(no number)', 20)}"


def state_findings(end: Mapping[str, Any]) -> list[Finding]:
    """Return a finding if Slurm reports that the job did not end well."""
    state, code = sanitize(end.get("state") or "", 40), sanitize(end.get("exit_code") or "", 20)
    if state in ("", "COMPLETED") and code in ("", "0:0"):
        return []
    failed_steps = [
        f"step {sanitize(step.get('step'), 10)} on {sanitize(step.get('nodes'), 200)}: "
        f"{sanitize(step.get('state'), 40)} {sanitize(step.get('exit_code'), 20)}"
        for step in job_steps(end)
        if step.get("state") not in ("COMPLETED", "")
    ]
    detail = f" ({'; '.join(failed_steps[:3])})" if failed_steps else ""
    message = f"{_job(end)} ended as {state or 'unknown'} {code}{detail}".strip()
    return [_finding("slurm_state", Verdict.FAIL if state else Verdict.UNPROVEN, message)]


def job_steps(end: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the job's steps as recorded, or an empty list without accounting."""
    steps = end.get("steps")
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _record_node_findings(end: Mapping[str, Any], nodes: Sequence[str]) -> list[Finding]:
    """Return findings if Slurm's record of the job has other nodes than requested, or another number."""
    used = end.get("nodes")
    if not isinstance(used, list) or not used:
        return []
    findings = wrong_nodes("Slurm", {str(node) for node in used}, set(nodes))
    count = sanitize(end.get("node_count") or "", 20)
    if count and count != str(len(nodes)) and not findings:
        message = f"{_job(end)} had {count} nodes by Slurm, {len(nodes)} were requested"
        findings.append(_unproven("wrong_nodes", message))
    return findings


def wrong_nodes(origin: str, used: set[str], asked: set[str]) -> list[Finding]:
    """Return a finding if a run used other nodes than the requested ones.

    Args:
        origin: The source of the names, as text (``the log``).
        used: The nodes in the source.
        asked: The requested nodes.
    """
    words = [f"{sanitize(name, 100)} took no part" for name in sorted(asked - used)]
    words += [f"{sanitize(name, 100)} was not requested" for name in sorted(used - asked)]
    if not words:
        return []
    return [_unproven("wrong_nodes", f"other nodes than requested, by {origin}: {', '.join(words)}")]


def _unproven(code: str, message: str) -> Finding:
    """Return an unproven finding."""
    return Finding(code=code, verdict=Verdict.UNPROVEN, message=message[:4000])
