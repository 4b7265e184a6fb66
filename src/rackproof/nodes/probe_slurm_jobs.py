"""Write the scripts of a night's measuring jobs, and run them on Slurm's host within limits.

Job validate runs its probes with a :class:`JobRunner`, and job reimage the partner's half of a pair. The jobs
use at most the allowed share of a partition, but at least one node. A job starts only if its maximum duration
fits into the rest of the night's GPU-minutes, which are minutes multiplied by GPUs. The job's script contains
all programs of the job, so no shared storage is needed. Slurm allocates the nodes of a job at once, or
refuses the job. Slurm also ends a job that reaches its time limit. All jobs have the same name, so that the
next night can end the jobs of an interrupted night. This module does not use ssh. Its caller provides a
function that runs commands on Slurm's host.
"""

from __future__ import annotations

import base64
import io
import math
import re
import shlex
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path

from rackproof.core.errors import RackproofError
from rackproof.core.text import sanitize

JOB_NAME = "rackproof-night"
"""Name of all jobs of a night, by which a night finds and ends the jobs of an interrupted night."""
MARK = ":::RACKPROOF-PROBE "
"""Beginning of the lines that a job prints around the output of a program. ``begin NAME`` or ``end STATUS``
follows."""
FABRIC = "fabric"
"""Name of the probes between nodes."""
_START_S = 30
"""Seconds that Slurm may take to allocate nodes that were idle a moment ago."""
_BEGIN_S = 20
"""Seconds within which the output file of a started job exists. If it does not, its srun did not begin."""
_GRACE_S = 60.0
"""Seconds after a job's time limit in which Slurm may still end it, because Slurm counts whole minutes."""
_POLL_S = 3.0
"""Longest pause between two polls in seconds."""
_LARGEST = 4 << 20
"""Largest number of bytes that are read from the end of a job's output."""
_PORT = 29400
"""Port of the rendezvous on the first node of a job."""
_LOST_POLLS = 20
"""Number of failed polls in a row after which a night gives up."""
_BUSY = re.compile(
    r"(?mi)^srun: .*(?:are busy|immediate|queued and waiting|has been revoked|\(down, drained or reserved\))"
)
"""Pattern of the line that srun prints if it refuses nodes that are in use. Any other refusal is an error of
the request, and proves nothing about a node."""
OUT_OF_TIME = (None, 124, 137)
"""Statuses of a program that did not end in time. ``timeout`` gives 124, or 137 if it had to kill it."""

Shell = Callable[[str], tuple[int, str, str]]
"""A function that runs a command line on Slurm's host and returns exit status, output and error output."""


class ProbeError(RackproofError):
    """A request that Slurm's host did not fulfil. The message gives the request and the remedy."""


@dataclass(frozen=True)
class Probe:
    """A program under workloads/ that measures nodes at night, its benchmark, and its arguments by device.

    Attributes:
        benchmark: The benchmark whose rules judge the numbers. Empty if no benchmark judges them.
        gpu: The arguments on nodes with GPUs. None means that the program cannot run there.
        cpu: The arguments for nodes without GPUs, or None.
        least_gpus: The least number of GPUs that the program needs.
        files: Other files of workloads/ that the program needs.
        optional: Whether the probe runs only if it is selected, in the nights that ``optional_tests`` of
            ``jobs.validate.fleet`` plans for a node.
        adds_s: The number of additional seconds that a job with the probe may take.
        takes_device: Whether the program accepts the option ``--device``.
    """

    name: str
    program: str
    benchmark: str = ""
    gpu: tuple[str, ...] | None = ()
    cpu: tuple[str, ...] | None = ()
    least_gpus: int = 1
    files: tuple[str, ...] = ()
    optional: bool = False
    adds_s: int = 0
    takes_device: bool = True


PROBES = (
    Probe(
        "gemm", "probe_gemm.py", "gemm",
        ("--seconds", "3", "--dtypes", "bf16"),
        ("--seconds", "1", "--sizes", "256", "--dtypes", "fp32"),
    ),
    Probe(
        "memory", "probe_memory_bandwidth.py", "memory-bandwidth",
        ("--seconds", "2"),
        ("--seconds", "1", "--size-mib", "16"),
    ),
    Probe("host-device", "probe_host_device_bandwidth.py", "host-device-bandwidth", ("--seconds", "3"), None),
    Probe("peer", "probe_peer_bandwidth.py", "peer-bandwidth", ("--seconds", "3"), None, 2),
    Probe(
        "all-reduce", "probe_all_reduce.py", "all-reduce",
        ("--seconds", "5"),
        ("--ranks", "2", "--sizes-mib", "1", "--seconds", "1"),
        2,
    ),
    Probe("training-step", "probe_training_step.py"),
    Probe(
        "sdc", "probe_sdc.py", "sdc",
        ("--seconds", "20"),
        None,
        files=(
            "sdc_answers.py", "sdc_cuda.py", "sdc_golden.csv", "sdc_kernels.cu", "sdc_paths.py",
        ),
        optional=True,
        adds_s=180,
    ),
    # The probe runs as long as its benchmark. A shorter run would be a weaker test with the same name.
    Probe(
        "soak", "probe_soak.py", "soak",
        ("--seconds", "600"),
        ("--seconds", "5"),
        files=("lock_file.py", "probe_gemm.py", "soak_resume.py", "soak_series.py"),
        optional=True,
        adds_s=900,
    ),
    # Each GPU runs alone on the same data, so a deviating loss or a slow GPU can be assigned to it.
    Probe(
        "llm", "llm_torch.py", "llm",
        ("--gpus", "all", "--parallel", "replicas"),
        ("--gpus", "0", "--steps", "20", "--repeat", "2"),
        files=("llm_network.py", "llm_shapes.py"),
        optional=True,
        adds_s=600,
        takes_device=False,
    ),
)  # fmt: skip
"""The probes of a node. They run one after another in one job. None means that the probe cannot run on
such a device.

On GPUs, gemm measures only bf16 products. Nine runs on one H100 differed by 0.4 % with bf16, and by 2 % with
fp8. With fp8 there were outliers of 4 %, which nights would report as drift.
"""
FABRIC_PROBE = Probe(
    FABRIC, "probe_all_reduce.py", "",
    ("--sizes-mib", "64,1024", "--seconds", "5"),
    ("--ranks", "1", "--sizes-mib", "1", "--seconds", "1"),
)  # fmt: skip
DOMAIN_PROBE = replace(FABRIC_PROBE, gpu=(*(FABRIC_PROBE.gpu or ()), "--mnnvl"))
""":data:`FABRIC_PROBE` for nodes of one NVLink domain. Network cards alone do not suffice for a pass."""

SHARED_FILES = ("bytecode_cache.py", "common.py", "gpu_state.py", "samples.py")
"""Files of workloads/ that the script of each job contains."""


@dataclass(frozen=True)
class ProbePlan:
    """The plan of a night's measurements.

    Attributes:
        minutes: The GPU-minutes that may be used. A node without a GPU counts as one GPU.
        share: The largest share of a partition to measure at once. At least one node may always be
            measured.
        python: The interpreter on the nodes that provides PyTorch and mlperf-logging.
        workloads: The folder with the programs.
        benchmarks: The folder with the definitions. Their rules define which metrics are judged.
        chosen: The names of :data:`PROBES` to run. ``fabric`` means the probes between nodes.
        device: ``gpu``, or ``cpu`` to measure nodes without GPUs.
        node_limit_s: The number of seconds that a node's job may take.
        pair_limit_s: The number of seconds that a pair's job may take.
        srun: Additional options for srun, such as an account.
    """

    minutes: float
    share: float
    python: str
    workloads: Path
    benchmarks: Path
    chosen: tuple[str, ...] = (*(probe.name for probe in PROBES if not probe.optional), FABRIC)
    device: str = "gpu"
    node_limit_s: int = 600
    pair_limit_s: int = 180
    srun: tuple[str, ...] = ()

    def job_limit_s(self, probes: Iterable[Probe]) -> int:
        """Return the number of seconds that a node's job may take with these programs."""
        return self.node_limit_s + sum(probe.adds_s for probe in probes)

    @property
    def longest_job_s(self) -> int:
        """Return the number of seconds that a node's job may take with all chosen programs."""
        return self.job_limit_s(probe for probe in PROBES if probe.name in self.chosen)


@dataclass(frozen=True)
class Job:
    """A Slurm job: a set of nodes and the script that runs on them. ``gpus`` is the number per node."""

    nodes: tuple[str, ...]
    script: str
    gpus: int
    limit_s: int

    @property
    def minutes(self) -> float:
        """Return the maximum GPU-minutes of the job, with the time by which Slurm may exceed the limit."""
        return (self.limit_s + _GRACE_S) / 60 * max(self.gpus, 1) * len(self.nodes)


@dataclass(frozen=True)
class Section:
    """The output of one program of a job. ``status`` is None if the program did not end."""

    name: str
    status: int | None
    text: str


@dataclass(frozen=True)
class JobResult:
    """The end of a job.

    ``how`` is ok, failed, hung, busy (its nodes were in use), lost (it never began) or left (there was no
    room for it). ``text`` is the reason if the job is not ok, and ``minutes`` are the GPU-minutes used.
    """

    how: str
    text: str = ""
    sections: tuple[Section, ...] = ()
    minutes: float = 0.0


@lru_cache(maxsize=32)
def pack_files(folder: Path, names: tuple[str, ...]) -> str:
    """Return files as a text that a script unpacks, so that a job needs no shared storage.

    Raises:
        ProbeError: A file cannot be read.
    """
    packed = BytesIO()
    try:
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=9) as tar:
            for name in sorted(set(names)):
                content = (folder / name).read_bytes()
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o644
                tar.addfile(entry, io.BytesIO(content))
    except OSError as error:
        raise ProbeError(f"cannot read {folder}: {error.strerror}; is the checkout whole?") from error
    return base64.encodebytes(packed.getvalue()).decode()


def probe_arguments(probe: Probe, device: str) -> tuple[str, ...] | None:
    """Return a program's arguments for a device, or None if it cannot measure such a device."""
    return probe.gpu if device == "gpu" else probe.cpu


def job_script(plan: ProbePlan, probes: Sequence[Probe], nodes: Sequence[str], limit_s: int) -> str:
    """Return the script of a job, which each of its nodes runs with bash.

    Args:
        plan: The plan of the measurement.
        probes: The programs, in the order in which they run.
        nodes: The nodes of the job. With several nodes, the programs run on all of them together.
        limit_s: The time limit of the job in seconds, which is also the limit of each program.

    The script ends with 97 if it cannot unpack its files, and with 98 if the interpreter does not provide
    PyTorch and mlperf-logging.
    """
    lines = [
        "set -u",
        "folder=$(mktemp -d --tmpdir rackproof-night.XXXXXX) || exit 97",
        "trap 'rm -rf \"$folder\"' EXIT",
        "base64 -d <<'END' | tar xzf - -C \"$folder\" || exit 97",
        pack_files(plan.workloads, (*SHARED_FILES, *_files_of(probes))).rstrip(),
        "END",
        f"python={shlex.quote(plan.python)}",
        "rank=0",
    ]
    rendezvous = ""
    if len(nodes) > 1:
        lines += _rank_lines(nodes)
        rendezvous = f" --nodes {len(nodes)} --node-rank $rank --rendezvous {shlex.quote(nodes[0])}:{_PORT}"
    # A missing PyTorch thus appears as a failed section of its own, and not as a failed probe.
    lines.append(f'[ $rank = 0 ] && echo "{MARK}begin python"')
    # Standard input is this script. A program that reads it would consume the rest.
    lines.append("\"$python\" -c 'import torch, mlperf_logging.mllog' </dev/null 2>&1; status=$?")
    lines.append(f'[ $rank = 0 ] && printf "\\n{MARK}end $status\\n"; [ $status = 0 ] || exit 98')
    if plan.device == "cpu":
        # Export the name of gloo's interface only if the environment has one. Hostnames may lead gloo to an
        # address that other nodes cannot reach.
        lines.append("export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-}")
        lines.append('[ -n "$GLOO_SOCKET_IFNAME" ] || unset GLOO_SOCKET_IFNAME')
    for probe in probes:
        lines += _probe_lines(probe, plan.device, limit_s, rendezvous)
    return "\n".join([*lines, "exit 0", ""])


def _files_of(probes: Sequence[Probe]) -> list[str]:
    """Return the names of the files that programs need."""
    return [name for probe in probes for name in (probe.program, *probe.files)]


def _rank_lines(nodes: Sequence[str]) -> list[str]:
    """Return the lines of a script that set the node's rank from its name."""
    cases = [f"{shlex.quote(name)}) rank={number};;" for number, name in enumerate(nodes)]
    return ["case ${SLURMD_NODENAME:-} in", *cases, "esac"]


def _probe_lines(probe: Probe, device: str, limit_s: int, rendezvous: str) -> list[str]:
    """Return the lines of a script that run one program. The first node marks its start and end."""
    arguments = [
        *(probe_arguments(probe, device) or ()),
        *(["--device", device] if probe.takes_device else []),
    ]
    # A program that ends by itself gives a result. One that timeout ends gives none.
    arguments += ["--time-limit", str(max(10, limit_s - 20))]
    command = f'"$python" "$folder"/{probe.program} {shlex.join(arguments)}{rendezvous}'
    return [
        f'[ $rank = 0 ] && echo "{MARK}begin {probe.name}"',
        f"timeout -k 10 {limit_s} {command} </dev/null 2>&1; status=$?",
        f'[ $rank = 0 ] && printf "\\n{MARK}end $status\\n"',
    ]


def split_sections(text: str) -> tuple[Section, ...]:
    """Return the output of each program of a job. A mark counts only at the start of a line."""
    sections: list[Section] = []
    name, lines = "", list[str]()
    for line in text.splitlines():
        word, mark_text = _mark(line)
        if word == "begin":
            # The previous section lacks its end, so the job was ended during that section.
            if name:
                sections.append(Section(name, None, "\n".join(lines)))
            name, lines = mark_text, []
        elif word == "end" and name:
            status = int(mark_text) if re.fullmatch("[0-9]{1,3}", mark_text) else None
            sections.append(Section(name, status, "\n".join(lines)))
            name, lines = "", []
        else:
            lines.append(line)
    if name:
        sections.append(Section(name, None, "\n".join(lines)))
    return tuple(sections)


def _mark(line: str) -> tuple[str, str]:
    """Return word and rest of a line that marks a section, or two empty texts for other lines."""
    if not line.startswith(MARK):
        return "", ""
    word, _, mark_text = line[len(MARK) :].partition(" ")
    return word, mark_text.strip()


@dataclass
class JobRunner:
    """A runner of jobs on Slurm's host, within the plan's GPU-minutes and its share of each partition.

    Call :meth:`begin`, then :meth:`run` once or several times, and finally :meth:`end`. ``members`` is the
    number of nodes in each partition, ``partitions`` lists the partitions of each node, and ``spent`` is the
    number of GPU-minutes that ended jobs used.
    """

    shell: Shell
    plan: ProbePlan
    members: Mapping[str, int]
    partitions: Mapping[str, tuple[str, ...]]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    spent: float = 0.0
    _spool: str = ""
    _number: int = 0
    _running: dict[str, tuple[Job, float]] = field(default_factory=dict)
    _scripts: dict[str, str] = field(default_factory=dict)
    _received: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Create a folder for the jobs' output.

        Raises:
            ProbeError: The host has no srun, or does not create the folder.
        """
        self._ask("command -v srun || { echo 'it has no srun' >&2; false; }")
        spool = self._ask("mktemp -d --tmpdir rackproof-night.XXXXXX").strip()
        # Method "end" removes the folder, so a path of another form must not be stored.
        if not re.fullmatch(r"/[\w./-]*rackproof-night\.\w+", spool):
            raise ProbeError("Slurm's host made no temporary folder")
        self._spool = spool

    def end(self) -> None:
        """End running jobs and remove the folder. A failure of the host is ignored."""
        for number, (job, _) in list(self._running.items()):
            self._cancel(job)
            del self._running[number]
        if self._spool:
            self.shell(f"rm -rf {shlex.quote(self._spool)}")

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Run jobs in order, each as soon as there is room. Return how each ended.

        Raises:
            ProbeError: Slurm's host no longer answers.
        """
        waiting = list(enumerate(jobs))
        results: dict[int, JobResult] = {}
        own_jobs: dict[str, int] = {}
        lost = idle = 0
        while waiting or own_jobs:
            self._start_waiting(waiting, own_jobs, results)
            if not own_jobs:
                # No job runs, so no room will become free.
                results.update({index: JobResult("left", self._why_left(job)) for index, job in waiting})
                break
            # Poll soon after a start, to notice a job that fails at once. Later, poll less often.
            self.sleep(min(_POLL_S, 0.5 * 2**idle))
            try:
                ended = self._ended(own_jobs)
            except ProbeError:
                # Jobs continue while the host does not answer, so one lost poll does no harm.
                lost += 1
                if lost >= _LOST_POLLS:
                    raise
                continue
            lost, idle = 0, 0 if ended else min(idle + 1, 8)
            for number, result in ended.items():
                results[own_jobs.pop(number)] = result
        return [results[index] for index in range(len(jobs))]

    def _start_waiting(
        self, waiting: list[tuple[int, Job]], own_jobs: dict[str, int], results: dict[int, JobResult]
    ) -> None:
        """Start the jobs for which there is room. A job that the host refuses gets the result ``lost``."""
        # Iterate over a copy, because started jobs are removed from the list.
        for index, job in list(waiting):
            if not self._room(job):
                continue
            waiting.remove((index, job))
            try:
                own_jobs[self._start(job)] = index
            except ProbeError as error:
                results[index] = JobResult("lost", str(error))

    def _ask(self, command: str) -> str:
        """Run a command on Slurm's host and return its output.

        Raises:
            ProbeError: The command failed, or the host did not answer.
        """
        status, out, err = self.shell(command)
        if status != 0:
            raise ProbeError(f"Slurm's host: {sanitize(err or out, 300) or f'exit status {status}'}")
        return out

    def _room(self, job: Job) -> bool:
        """Return whether a job fits into the budget, onto its nodes, and into its partitions' shares."""
        running = [running_job for running_job, _ in self._running.values()]
        # Reserve each job's maximum, because its real minutes are known only after its end.
        reserved = sum(running_job.minutes for running_job in running)
        # Rounding may make sums of fractions miss a limit that they should reach exactly.
        if self.spent + reserved + job.minutes > self.plan.minutes + 1e-9:
            return False
        used_nodes = [name for running_job in running for name in running_job.nodes]
        if not set(used_nodes).isdisjoint(job.nodes):
            return False
        used, requested = self._partition_counts(used_nodes), self._partition_counts(job.nodes)
        return all(used[part] + count <= self._allowed(part) for part, count in requested.items())

    def _partition_counts(self, nodes: Iterable[str]) -> Counter[str]:
        """Return the number of the nodes in each partition. A node may be in several."""
        return Counter(part for name in nodes for part in self.partitions.get(name, ()))

    def _allowed(self, partition: str) -> int:
        """Return how many nodes of a partition may be measured at once, which is at least one."""
        # Otherwise, a small partition would never be measured.
        return max(1, int(self.plan.share * self.members.get(partition, 0) + 1e-9))

    def _why_left(self, job: Job) -> str:
        """Return why a job never had room."""
        small = [
            part
            for part in {part for name in job.nodes for part in self.partitions.get(name, ())}
            if self._allowed(part) < len(job.nodes)
        ]
        if small:
            return f"{len(job.nodes)} nodes are more of partition {small[0]} than validate_probe_share allows"
        if job.minutes > self.plan.minutes:
            return (
                f"its job may take {job.minutes:g} GPU-minutes, and validate_probe_gpu_minutes is "
                f"{self.plan.minutes:g}: set it to {math.ceil(job.minutes)} at least"
            )
        return "the night's GPU-minutes are used up"

    def _start(self, job: Job) -> str:
        """Start a job in the background on Slurm's host, and return its number.

        Raises:
            ProbeError: The host did not write the script or did not start the job.
        """
        self._number += 1
        number = f"{self._number:05d}"
        minutes = -(-job.limit_s // 60)
        # With --immediate, a user's job that came first runs, and this job does not.
        command = [
            "srun", f"--job-name={JOB_NAME}", f"--nodelist={','.join(job.nodes)}", "--exclusive", "--mem=0",
            f"--nodes={len(job.nodes)}", f"--ntasks={len(job.nodes)}", "--ntasks-per-node=1",
            f"--time={minutes}", f"--immediate={_START_S}", "--kill-on-bad-exit=1", "--mpi=none",
            "--cpu-bind=none",
            *([f"--gpus-per-node={job.gpus}"] if job.gpus else []), *self.plan.srun, "bash", "-s",
        ]  # fmt: skip
        prefix = shlex.quote(f"{self._spool}/{number}")
        begin = self.clock()
        source = self._written(job.script)
        inner = f"{shlex.join(command)} < {source} > {prefix}.out 2>&1; echo $? > {prefix}.new"
        inner += f"; mv {prefix}.new {prefix}.rc"
        # Ansible's ssh allocates a terminal. When the terminal closes, it hangs up on processes that
        # still use it.
        self._ask(f"cd / && trap '' HUP && (setsid sh -c {shlex.quote(inner)} </dev/null >/dev/null 2>&1 &)")
        self._running[number] = (job, begin)
        return number

    def _written(self, text: str) -> str:
        """Return the path of a script on Slurm's host. Nodes with the same measurements share one."""
        if text not in self._scripts:
            path = shlex.quote(f"{self._spool}/script-{len(self._scripts)}")
            # Write in pieces, because one command argument is limited to 128 KiB.
            for start in range(0, len(text), 60_000):
                # The first piece replaces what an interrupted attempt wrote.
                into = ">>" if start else ">"
                self._ask(f"printf %s {shlex.quote(text[start : start + 60_000])} {into} {path}")
            self._scripts[text] = path
        return self._scripts[text]

    def _ended(self, own_jobs: Iterable[str]) -> dict[str, JobResult]:
        """Return the results of the jobs that ended, by number.

        Raises:
            ProbeError: Slurm's host did not answer, and no result was received before.
        """
        spool = shlex.quote(self._spool)
        # An output is removed only after it was received, because the answer of a command can be lost.
        removal = "".join(f"{{ rm -f {number}.*; true; }} && " for number in self._received)
        # Send one request for all jobs, because each request needs a connection to Slurm's host.
        listed = self._ask(
            f'cd {spool} && {removal}for one in *.rc; do [ -f "$one" ] && echo "$one $(cat "$one")"; done; '
            'for one in *.out; do echo "$one"; done'
        )
        self._received = []
        statuses = dict(line.split(".rc ", 1) for line in listed.splitlines() if ".rc " in line)
        begun = {line.removesuffix(".out") for line in listed.splitlines() if line.endswith(".out")}
        results: dict[str, JobResult] = {}
        for number in list(own_jobs):
            try:
                result = self._result(number, statuses.get(number), number in begun)
            except ProbeError:
                # The next poll asks for this output again. The received results must not be lost.
                if not results:
                    raise
                break
            if result is not None:
                results[number] = result
        return results

    def _result(self, number: str, status: str | None, begun: bool) -> JobResult | None:
        """Return how a job ended, or None if it is running.

        A job beyond its time limit is ended here. A job whose srun never started is lost.
        """
        job, begin = self._running[number]
        took = self.clock() - begin
        if status is None:
            if not begun and took > _BEGIN_S:
                del self._running[number]
                return JobResult("lost", "its srun did not start on Slurm's host")
            # Slurm normally ends a job in time. Cancel only a job that Slurm did not end.
            if took <= job.limit_s + _START_S + _GRACE_S:
                return None
            self._cancel(job)
        spool = shlex.quote(self._spool)
        output = self._ask(f"cd {spool} && {{ tail -c {_LARGEST} {number}.out; true; }}")
        del self._running[number]
        self._received.append(number)
        # Never count more than was reserved for it, even if waiting for nodes took longer.
        minutes = min(took / 60 * max(job.gpus, 1) * len(job.nodes), job.minutes)
        result = classify_exit(output, status or "", minutes)
        self.spent += result.minutes
        return result

    def _cancel(self, job: Job) -> None:
        """Cancel the night's job on some nodes."""
        nodes = shlex.quote(",".join(job.nodes))
        # Without the user, root's scancel would end another user's job of that name.
        self.shell(f'scancel --name={JOB_NAME} --nodelist={nodes} --user="$(id -un)"')


def classify_exit(output: str, status: str, minutes: float) -> JobResult:
    """Return how a job ended, according to the output of srun and its programs.

    Args:
        output: What srun and the job printed.
        status: The exit status of srun as text, or "" if there is none, because the job was cancelled.
        minutes: The GPU-minutes that count as used if the job began.
    """
    sections = split_sections(output)
    if not sections:
        # Nothing ran, so no minutes were used.
        outcome = "busy" if _BUSY.search(output) else "lost"
        return JobResult(outcome, _end_of_output(output) or "srun printed nothing")
    # Check this before "failed", because a program that was ended does not set its own status.
    if any(section.status in OUT_OF_TIME for section in sections):
        return JobResult("hung", "did not end in time", sections, minutes)
    failed = next((section for section in sections if section.status), None)
    if failed is not None:
        text = f"{failed.name} ended with {failed.status}: {last_lines(failed.text)}"
        return JobResult("failed", text, sections, minutes)
    if status != "0":
        return JobResult("failed", _end_of_output(output), sections, minutes)
    return JobResult("ok", "", sections, minutes)


def _end_of_output(text: str) -> str:
    """Return the end of an output on one line."""
    joined = " | ".join(line.strip() for line in text.splitlines() if line.strip())
    return sanitize(joined[-300:], 300)


def last_lines(text: str) -> str:
    """Return the end of a program's output without its measurements."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and ":::MLLOG" not in line]
    # If the program printed the reason, srun's line about it adds nothing.
    program_lines = [line for line in lines if not line.startswith(("srun:", "slurmstepd:"))]
    return sanitize(" | ".join((program_lines or lines)[-2:]), 300)
