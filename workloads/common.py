"""Supervise ranks, write logs, and find GPUs. The trainings and probes of this folder use this module.

All but mnist_mxnet.py call :func:`run`, which starts the same program again as a child process for each rank.
The first process, the supervisor, imports no framework. It can therefore log the end of the run and end all
ranks, even if a framework hangs or crashes. Ranks die with their supervisor. The module needs only the
standard library and mllog.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import dataclasses
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import bytecode_cache
import gpu_state
import samples

try:
    from mlperf_logging import mllog
except ImportError:
    mllog = None

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NON_FINITE = 3
EXIT_NO_GPU = 4
EXIT_DATA = 5
EXIT_TIME_LIMIT = 124

Value = TypeVar("Value")

HIGHER = "higher"
LOWER = "lower"

_STATE = "RACKPROOF_WORKLOAD_STATE"
"""Environment variable of a rank with the run's values as JSON."""
_RANK = "RACKPROOF_WORKLOAD_RANK"
"""Environment variable of a rank with its number on this node, from 0."""
_GATE = "RACKPROOF_WORKLOAD_GATE"
"""Environment variable of a rank with the pipe whose end allows the rank to use a GPU."""
IS_RANK = _RANK in os.environ
"""True in a rank, which may import the framework, and false in the supervisor."""

_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for ranks that do not end."""

_TEARDOWN_S = 60.0
"""Seconds for ranks to end once the timed part of the run is over."""

_PR_SET_PDEATHSIG = 1


class Refusal(Exception):  # noqa: N818  (not every one is an error of the program)
    """A reason why the workload cannot continue, with the remedy. ``status`` is the exit status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may use. The index is CUDA's."""

    index: int
    uuid: str
    name: str

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of a measurement made on this GPU."""
        return {"gpu": self.uuid, "gpu_index": str(self.index)}


@dataclass(frozen=True)
class Rank:
    """One rank of the run.

    Attributes:
        index: The rank's number among all ranks, from 0.
        count: The number of all ranks.
        state: The folder in which ranks and supervisor of this node exchange files.
        started: The start of the supervisor in Unix seconds.
        local: The rank's number among the ranks of this node, from 0.
        address: The rendezvous of the ranks of several nodes (HOST:PORT), or "" on a single node.
    """

    index: int
    count: int
    state: Path
    started: float
    local: int = 0
    address: str = ""

    @property
    def rendezvous(self) -> str:
        """Return the URL at which the ranks of this run connect.

        On a single node it is a file, because another run could hold a port.
        """
        return f"tcp://{self.address}" if self.address else f"file://{self.state}/rendezvous"


@dataclass(frozen=True)
class Spread:
    """The spread of a measurement's samples, computed as in ``rackproof.core.spread``.

    With five samples or more, the spread excludes the lowest and the highest 5 %, at least one each.
    """

    count: int
    low: float
    median: float
    high: float

    def speeds(self, work: float) -> Spread:
        """Convert a spread of times into the spread of speeds. ``work`` is the work that each time took."""
        return Spread(self.count, work / self.high, work / self.median, work / self.low)

    def scaled(self, factor: float) -> Spread:
        """Return the spread of the samples multiplied by a factor."""
        return Spread(self.count, factor * self.low, factor * self.median, factor * self.high)


def spread_of(samples: Iterable[float]) -> Spread:
    """Return the spread of samples (one or more). No I/O."""
    ordered = sorted(samples)
    outside = max(1, len(ordered) // 20) if len(ordered) >= 5 else 0
    return Spread(len(ordered), ordered[outside], statistics.median(ordered), ordered[-1 - outside])


def spread_over_time(times_s: Sequence[float], work: float) -> Spread:
    """Return the spread of the speed over a run. No I/O.

    The run is divided into ten or more stretches of equally many steps, because a single step may wait for
    data although the speed of the run is steady. Remaining steps do not count. With fewer than ten steps,
    each is a stretch.

    Args:
        times_s: The seconds of each step, in their order, one or more.
        work: The work of one step, in the unit of the speed times a second.
    """
    size = max(1, len(times_s) // 10)
    ends = range(size, len(times_s) + 1, size)
    return spread_of(work * size / sum(times_s[end - size : end]) for end in ends)


class Log:
    """A log of MLLOG lines by ``mlperf_logging``. Each line is one write, so lines of ranks do not mix."""

    def __init__(self) -> None:
        if mllog is None:
            raise Refusal(
                EXIT_ERROR,
                f"the package mlperf-logging is missing for {sys.executable}: install it there "
                "(pip install --no-deps mlperf-logging) or put it on PYTHONPATH",
            )
        mllog.config(root_dir=re.escape(str(Path(__file__).resolve().parent)), default_stack_offset=2)
        self._logger = mllog.get_mllogger()
        self._progress_at = 0.0

    def event(self, key: str, value: Any = None, **metadata: Any) -> None:
        """Log a point in time."""
        self._logger.event(key, value, metadata=metadata)

    def start(self, key: str, time_ms: int | None = None, **metadata: Any) -> None:
        """Log the start of an interval."""
        self._logger.start(key, metadata=metadata, time_ms=time_ms)

    def end(self, key: str, time_ms: int | None = None, fresh_line: bool = False, **metadata: Any) -> None:
        """Log the end of an interval.

        Args:
            key: The name of the event.
            time_ms: The time in Unix milliseconds, or None for now.
            fresh_line: Whether to begin a new line, because a killed process may leave half a line.
            **metadata: Further values of the event.
        """
        self._logger.end(key, metadata=metadata, time_ms=time_ms, clear_line=fresh_line)

    def measurement(
        self,
        name: str,
        value: float,
        unit: str,
        direction: str | None = None,
        **labels: str,
    ) -> None:
        """Log a result without a spread, and print it for people."""
        self._state({"name": name, "value": value, "unit": unit, "direction": direction, "labels": labels})

    def sampled(
        self, name: str, value: float, unit: str, direction: str, spread: Spread, /, **labels: str
    ) -> None:
        """Log a result with the spread of its samples, and print it for people."""
        stated = {"name": name, "value": value, "unit": unit, "direction": direction, "labels": labels}
        self._state({**stated, "spread": dataclasses.asdict(spread)})

    def _state(self, stated: dict[str, Any]) -> None:
        self.event("measurement", stated)
        name, value, unit, labels = (stated[key] for key in ("name", "value", "unit", "labels"))
        where = " ".join(f"{key}={text}" for key, text in labels.items())
        say(f"{name} = {value:.6g} {unit} {where}".rstrip())

    def progress(
        self,
        phase: str,
        step: int,
        steps: int,
        epoch: int | None = None,
        epochs: int | None = None,
        target: float | None = None,
    ) -> None:
        """Log the progress of the run, at most once a second. A run with a target ends when it is reached."""
        now = time.monotonic()
        if now - self._progress_at >= 1.0:
            self._progress_at = now
            value = {"phase": phase, "step": step, "steps": steps, "epoch": epoch, "epochs": epochs}
            self.event("progress", value if target is None else {**value, "target": target})


def say(text: str) -> None:
    """Print a line for people in one write. ``print()`` makes two, between which another rank could write."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class _CudaUuid(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 16)]


def gpus() -> list[Gpu]:
    """Return the GPUs that CUDA lets this process use, read from the driver without a framework.

    Raises:
        Refusal: The driver is there but reports an error other than "no device", also for a single GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []

    def check(status: int, where: str = "") -> None:
        if status != 0:
            text = ctypes.c_char_p()
            driver.cuGetErrorString(status, ctypes.byref(text))
            message = (text.value or b"unknown").decode(errors="replace")
            raise Refusal(
                EXIT_NO_GPU,
                f"the CUDA driver reports error {status} ({message}){where}; check nvidia-smi and dmesg",
            )

    status = driver.cuInit(0)
    no_device = 100
    if status == no_device:
        return []
    check(status)
    count = ctypes.c_int()
    check(driver.cuDeviceGetCount(ctypes.byref(count)))
    listed = []
    for index in range(count.value):
        device, uuid, name = ctypes.c_int(), _CudaUuid(), ctypes.create_string_buffer(200)
        where = f" for GPU {index}"
        check(driver.cuDeviceGet(ctypes.byref(device), index), where)
        check(driver.cuDeviceGetUuid(ctypes.byref(uuid), device), where)
        check(driver.cuDeviceGetName(name, len(name), device), where)
        plain = bytes(uuid.bytes).hex()
        parts = (plain[0:8], plain[8:12], plain[12:16], plain[16:20], plain[20:32])
        listed.append(Gpu(index, "GPU-" + "-".join(parts), name.value.decode(errors="replace")))
    return listed


def gpu_count(text: str) -> int | None:
    """Parse the value of ``--gpus``. Return the number, or None for ``all``.

    Raises:
        argparse.ArgumentTypeError: The value is neither a number nor ``all``.
    """
    if text == "all":
        return None
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor 'all'")
    return int(text)


def choose_gpus(wanted: int | None) -> list[Gpu]:
    """Return the first ``wanted`` GPUs, all GPUs for None, or an empty list for 0, which means the CPU.

    Raises:
        Refusal: Fewer exist than requested, or ``all`` finds none.
    """
    if wanted == 0:
        return []
    listed = gpus()
    if not listed or len(listed) < (wanted or 0):
        asked = "all GPUs" if wanted is None else f"{wanted} GPU{'s' if wanted > 1 else ''}"
        exist = f"{len(listed)} exist" if len(listed) != 1 else "1 exists"
        raise Refusal(
            EXIT_NO_GPU,
            f"{asked} requested, {exist} here (driver and CUDA_VISIBLE_DEVICES considered); request fewer, "
            "or --gpus 0 (--device cpu) to use the CPU",
        )
    return listed if wanted is None else listed[:wanted]


def chosen_by_device(device: str, wanted: int | None) -> list[Gpu]:
    """Return the GPUs for ``--device cpu|gpu|auto`` and ``--gpus``. An empty list means the CPU."""
    if device == "cpu" or (device == "auto" and not gpus()):
        return []
    return choose_gpus(wanted)


def _positive(text: str) -> float:
    """Return a number above 0.

    Raises:
        ValueError: The text is not a number.
        argparse.ArgumentTypeError: The number is 0, negative, or infinite.
    """
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def probe_parser(description: str | None, seconds: float) -> argparse.ArgumentParser:
    """Return a parser with the arguments common to all probes."""
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--device", choices=("cpu", "gpu", "auto"), default="auto", help="default: %(default)s"
    )
    arguments.add_argument("--gpus", type=gpu_count, default=None, help="how many GPUs, or 'all' (default)")
    arguments.add_argument(
        "--seconds", type=_positive, default=seconds, help="time for measuring (default: %(default)s)"
    )
    arguments.add_argument(
        "--seed", type=int, default=1, help="seed of the random data (default: %(default)s)"
    )
    add_time_limit(arguments)
    return arguments


def add_time_limit(arguments: argparse.ArgumentParser) -> None:
    """Add ``--time-limit``."""
    arguments.add_argument(
        "--time-limit",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="end all ranks after this time (0: never)",
    )


def add_nodes(arguments: argparse.ArgumentParser) -> None:
    """Add the options of a program that several nodes start together."""
    add = arguments.add_argument
    add(
        "--nodes",
        type=positive_count,
        default=_slurm("NNODES", 1),
        help="nodes that train together (default: 1)",
    )
    add("--node-rank", type=int, default=_slurm("NODEID", 0), help="number of this node, from 0 (default)")
    add("--rendezvous", default="", metavar="HOST:PORT", help="address of node 0, for several nodes")


def check_nodes(options: argparse.Namespace) -> None:
    """Check the arguments of :func:`add_nodes`.

    Raises:
        Refusal: The number of this node is not below the number of nodes, or several nodes lack a rendezvous.
    """
    if not 0 <= options.node_rank < options.nodes:
        raise Refusal(
            EXIT_USAGE,
            f"--node-rank {options.node_rank} must be at least 0 and less than --nodes ({options.nodes})",
        )
    if options.nodes > 1 and not re.fullmatch(r"\S+:[0-9]{1,5}", options.rendezvous):
        raise Refusal(
            EXIT_USAGE,
            "several nodes need --rendezvous HOST:PORT: an address of node 0 and a free port there",
        )


def _slurm(name: str, otherwise: int) -> int:
    """Return the number in one of srun's variables, or ``otherwise`` outside of a job step.

    With these variables, the command line can be the same on all nodes of a job step.
    """
    value = os.environ.get(f"SLURM_{name}", "")
    return int(value) if value.isdigit() and "SLURM_STEP_ID" in os.environ else otherwise


def positive_count(text: str) -> int:
    """Return an option's whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def epoch_list(text: str) -> tuple[int, ...]:
    """Return the epochs of an option, which is a list with commas, in ascending order."""
    return tuple(sorted(positive_count(epoch) for epoch in text.split(",") if epoch.strip()))


def facts() -> dict[str, str]:
    """Return the versions of the software that computes. Only a rank may call it, as it imports PyTorch."""
    import platform

    import torch

    values = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda and torch.cuda.is_available():
        values["cuda"] = torch.version.cuda
        values["cudnn"] = str(torch.backends.cudnn.version())
        values["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return values


def gpu_uuids(found: list[Gpu]) -> str:
    """Return the UUIDs of GPUs, joined by commas, for the event ``facts``.

    When the run is recorded, they are compared with the node's own list.
    """
    return ",".join(gpu.uuid for gpu in found)


def require_cuda() -> None:
    """Check that this PyTorch can use the GPUs that the driver reports.

    Raises:
        Refusal: PyTorch cannot use them.
    """
    import torch

    if not torch.cuda.is_available():
        raise Refusal(
            EXIT_NO_GPU,
            f"PyTorch {torch.__version__} of {sys.executable} cannot use CUDA; install a CUDA build of "
            "PyTorch that fits the driver, or name the Python that has one",
        )


def run(
    benchmark: str | Callable[[argparse.Namespace], str],
    arguments: argparse.ArgumentParser,
    plan: Callable[[argparse.Namespace], int],
    work: Callable[[argparse.Namespace, Rank, Log], None],
    *,
    sampled: bool = False,
    gpu_states: bool = False,
) -> int:
    """Run a workload. The supervisor starts the ranks, and a rank does the work.

    Args:
        benchmark: The value of ``submission_benchmark``, or a function that returns it from the options.
        arguments: The command line.
        plan: A function that checks the options without a framework, and returns the number of ranks.
        work: The function that a rank runs.
        sampled: Whether utilisation, power and clocks of the GPUs in ``--gpus`` are logged during the run.
        gpu_states: Whether other uses of the GPUs in ``--device`` and ``--gpus`` are logged before and after
            the run.

    Returns:
        The exit status.
    """
    options = arguments.parse_args()
    try:
        if IS_RANK:
            return _work(options, work)
        name = benchmark if isinstance(benchmark, str) else benchmark(options)
        return _supervise(name, options, plan, sampled, gpu_states)
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr, flush=True)
        return refusal.status


def mark_start(rank: Rank, log: Log) -> float:
    """Log that start-up is over and the run begins. Return the duration of start-up in seconds."""
    if rank.index == 0:
        log.end("init_stop")
        log.start("run_start")
    return time.time() - rank.started


def mark_stop(rank: Rank) -> float:
    """Store the end of the timed part, and return it in Unix seconds.

    The supervisor logs the end when all ranks ended well.
    """
    now = time.time()
    if rank.local == 0:
        (rank.state / "stopped").write_text(str(int(now * 1000)))
    return now


def _work(options: argparse.Namespace, work: Callable[[argparse.Namespace, Rank, Log], None]) -> int:
    """Run ``work`` as the rank that the environment describes. After an error, return the exit status.

    After success, the process ends here.
    """
    state = json.loads(os.environ[_STATE])
    die_with_parent(state["supervisor"])
    with open(int(os.environ[_GATE]), "rb") as gate:
        # Wait until the supervisor closes the pipe, after it read which processes use the GPUs.
        gate.read()
    local = int(os.environ[_RANK])
    rank = Rank(
        index=state["first"] + local,
        count=state["ranks"],
        state=Path(state["folder"]),
        started=state["started"],
        local=local,
        address=state["address"],
    )
    try:
        work(options, rank, Log())
    except Refusal as refusal:
        (rank.state / f"reason-{rank.local}").write_text(str(refusal))
        raise
    except Exception as error:
        traceback.print_exc()
        (rank.state / f"reason-{rank.local}").write_text(f"{type(error).__name__}: {error}"[:500])
        return EXIT_ERROR
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip the interpreter's shutdown. A thread that a framework left running can abort a rank there, although
    # all of its work is done (seen with gloo: "terminate called without an active exception").
    os._exit(0)


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when the supervisor that started it ends."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the supervisor is gone")


_WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""The signals that the supervisor blocks and waits for."""


def _supervise(
    name: str,
    options: argparse.Namespace,
    plan: Callable[[argparse.Namespace], int],
    sampled: bool,
    gpu_states: bool,
) -> int:
    """Start the ranks, write the log of the run around theirs, and return the exit status."""
    started = time.time()
    log = Log()
    log.start("init_start", time_ms=int(started * 1000))
    log.event("submission_benchmark", name)
    if os.environ.get("RACKPROOF_JOB_ID"):
        log.event("run_id", os.environ["RACKPROOF_JOB_ID"])
    folder = Path(tempfile.mkdtemp(prefix="rackproof-run-"))
    ranks: list[subprocess.Popen[bytes]] = []
    sampler: samples.Sampler | None = None
    # Signals are blocked and waited for, so none is lost, and none interrupts between fork and bookkeeping.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    try:
        count = plan(options)
        nodes = getattr(options, "nodes", 1)
        state = {
            "supervisor": os.getpid(),
            "ranks": count * nodes,
            "first": count * getattr(options, "node_rank", 0),
            "address": options.rendezvous if nodes > 1 else "",
            "folder": str(folder),
            "started": started,
        }
        # The trainings accept no --device, and run on the CPU with --gpus 0.
        device = getattr(options, "device", "gpu")
        watched = chosen_by_device(device, options.gpus) if gpu_states else []
        _start_ranks(ranks, count, state, lambda: _log_gpu_states(log, "begin", watched, folder))
        if sampled:
            uuids = [gpu.uuid for gpu in choose_gpus(options.gpus)]
            # The thread starts with these signals blocked, so only the supervisor gets them.
            sampler = samples.start(uuids, lambda sample: log.event("gpu_sample", sample))
        status, reason = _wait(ranks, getattr(options, "time_limit", 0.0), folder)
        if sampler is not None:
            sampler.stop()
        stopped = folder / "stopped"
        if status == 0 and stopped.is_file():
            log.end("run_stop", time_ms=int(stopped.read_text()), status="success")
            if watched:
                # A child that a rank left could still use a GPU.
                _end(ranks)
                # For some time, nvidia-smi's utilisation still includes the ranks that ended.
                time.sleep(gpu_state.SETTLE_S)
            _log_gpu_states(log, "end", watched, folder)
        else:
            status = status or EXIT_ERROR
            reason = reason or "all ranks ended without finishing the run"
            print(f"aborted: {reason}", file=sys.stderr, flush=True)
            log.end("run_stop", fresh_line=True, status="aborted", reason=reason)
    except Refusal as refusal:
        log.end("run_stop", status="aborted", reason=str(refusal))
        raise
    finally:
        _end(ranks)
        if sampler is not None:
            sampler.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _start_ranks(
    ranks: list[subprocess.Popen[bytes]], count: int, state: dict[str, Any], before: Callable[[], None]
) -> None:
    """Start the ranks, which import their framework and then wait until ``before`` is done.

    Args:
        ranks: The list to which each rank is added as soon as it started.
        count: The number of ranks on this node.
        state: The values of the run that each rank needs.
        before: A function that is called before any rank uses a GPU.
    """
    waiting, gate = os.pipe()
    environment = {
        **os.environ,
        **bytecode_cache.environment(),
        _STATE: json.dumps(state),
        _GATE: str(waiting),
    }
    try:
        # Each rank is its own session, so Ctrl-C reaches only the supervisor, and a rank's children end with
        # the rank.
        ranks.extend(
            subprocess.Popen(
                [sys.executable, *sys.argv],
                env={**environment, _RANK: str(index)},
                start_new_session=True,
                pass_fds=(waiting,),
            )
            for index in range(count)
        )
        before()
    finally:
        os.close(waiting)
        os.close(gate)


def _log_gpu_states(log: Log, moment: str, watched: list[Gpu], folder: Path) -> None:
    """Log the processes that use each GPU while no rank of this run does.

    Args:
        log: The log.
        moment: ``begin`` or ``end`` of the run.
        watched: The GPUs. If there are none, an empty list is stored.
        folder: The folder in which ranks find the states.
    """
    readings = gpu_state.read_states([gpu.uuid for gpu in watched]) if watched else []
    states = [{"moment": moment, **state} for state in readings]
    for state in states:
        log.event("gpu_state", state)
    (folder / f"gpu-states-{moment}").write_text(json.dumps(states))


def gpu_states_before(rank: Rank) -> list[dict[str, Any]]:
    """Return the logged states of the GPUs before any rank used them."""
    states: list[dict[str, Any]] = json.loads((rank.state / "gpu-states-begin").read_text())
    return states


def _wait(ranks: list[subprocess.Popen[bytes]], time_limit: float, folder: Path) -> tuple[int, str]:
    """Wait until all ranks ended well, one ended badly, a signal arrives, or time is up.

    Returns:
        The exit status and, unless it is 0, the reason.
    """
    begun = time.monotonic()
    deadline = begun + time_limit if time_limit > 0 else float("inf")
    over = float("inf")
    while True:
        for index, rank in enumerate(ranks):
            status = rank.poll()
            if status:
                return _explain(*_first_to_fail(ranks, index, status, folder), folder)
        if all(rank.returncode == 0 for rank in ranks):
            return 0, ""
        now = time.monotonic()
        if now >= deadline:
            return EXIT_TIME_LIMIT, f"time limit of {time_limit:g} s reached"
        if over == float("inf") and (folder / "stopped").exists():
            over = now + _TEARDOWN_S
        if now >= over:
            return EXIT_ERROR, f"a rank hung for {_TEARDOWN_S:g} s after the run was over"
        got = signal.sigtimedwait(_WATCHED, min(deadline - now, over - now, 5.0))
        if got is not None and got.si_signo != signal.SIGCHLD:
            return 128 + got.si_signo, f"stopped by {signal.Signals(got.si_signo).name}"


def _first_to_fail(
    ranks: list[subprocess.Popen[bytes]], index: int, status: int, folder: Path
) -> tuple[int, int]:
    """Return the rank that failed first, and its exit status.

    Other ranks end because they lost that rank, perhaps before it ended. The rank that wrote its reason first
    is therefore the answer, unless a signal killed the rank that was found.

    Args:
        ranks: All ranks of this node.
        index: The rank whose bad end was found.
        status: The exit status of that rank.
        folder: The folder with the ranks' reasons.
    """
    reasons = sorted(folder.glob("reason-*"), key=lambda path: path.stat().st_mtime_ns)
    if status < 0 or not reasons:
        return index, status
    first = int(reasons[0].name.partition("-")[2])
    with contextlib.suppress(subprocess.TimeoutExpired):
        ranks[first].wait(_GRACE_S)
    return (first, ranks[first].returncode) if ranks[first].returncode else (index, status)


def _explain(index: int, status: int, folder: Path) -> tuple[int, str]:
    """Return the exit status and the reason of a rank that ended."""
    if status < 0:
        name = signal.Signals(-status).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return 128 - status, f"rank {index} was killed by {name}{hint}"
    reason = folder / f"reason-{index}"
    message = reason.read_text() if reason.is_file() else f"exit status {status}"
    return status, f"rank {index}: {message}"


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """End every rank and its children, first with SIGTERM and then the remaining ones with SIGKILL.

    The children of ranks that ended get both signals at once, because they could use the next run's GPUs.
    """
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, signum)
        deadline = time.monotonic() + _GRACE_S
        for rank in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(max(0.0, deadline - time.monotonic()))


def join(rank: Rank, backend: str, device: Any, timeout_s: float) -> None:
    """Make this rank a member of the run's process group."""
    import datetime

    import torch

    torch.distributed.init_process_group(
        backend,
        init_method=rank.rendezvous,
        rank=rank.index,
        world_size=rank.count,
        timeout=datetime.timedelta(seconds=timeout_s),
        device_id=device if backend == "nccl" else None,
    )


def exchange_by_file(mine: Any, rank: Rank, name: str, timeout_s: float) -> list[Any]:
    """Exchange messages between the ranks by a file, and return each rank's message.

    A message about a faulty GPU must not pass through a GPU.

    Args:
        mine: This rank's message, as JSON values.
        rank: This rank.
        name: The name of the file. Each exchange of a run needs its own.
        timeout_s: The longest wait for the other ranks.
    """
    import datetime

    import torch

    store = torch.distributed.FileStore(str(rank.state / name), rank.count)
    store.set_timeout(datetime.timedelta(seconds=timeout_s))
    store.set(f"rank-{rank.index}", json.dumps(mine))
    return [json.loads(store.get(f"rank-{index}")) for index in range(rank.count)]


def holds_on_all_ranks(mine: bool, rank: Rank, device: Any) -> bool:
    """Return whether a statement holds on every rank."""
    import torch

    flag = torch.tensor(float(mine), device=device)
    if rank.count > 1:
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MIN)
    return bool(flag.item())


def capture_graph(step: Callable[[], None], stream: Any, rank: Rank, device: Any) -> tuple[Any, str]:
    """Capture a training step in a CUDA graph.

    Returns:
        The graph, and ``on``, or why a rank could not capture its step. The graph may be replayed only if
        all ranks captured theirs, because their collectives must match.
    """
    import torch

    graph, failed = torch.cuda.CUDAGraph(), ""
    try:
        # With thread_local, queries of events by NCCL's watchdog thread do not end the capture.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step()
    except RuntimeError as error:
        failed = (str(error).splitlines() or ["unknown"])[0]
    if holds_on_all_ranks(failed == "", rank, device):
        return graph, "on"
    return graph, f"off: {failed or 'another rank could not capture'}"


def mark_moment(device: Any) -> Any:
    """Return a mark of this moment.

    On a CPU it is the time in seconds. On a GPU it is an event, whose time can be read once the GPU is done.
    """
    import torch

    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def majority(values: Sequence[Value]) -> Value | None:
    """Return the value of more than half of the values, or None without such a majority. No I/O."""
    if not values:
        return None
    value, count = collections.Counter(values).most_common(1)[0]
    return value if 2 * count > len(values) else None


def median_seconds(call: Callable[[], Any], device: Any, seconds: float) -> float:
    """Return the median time of one call in seconds. See :func:`sample_seconds`."""
    return statistics.median(sample_seconds(call, device, seconds))


def sample_seconds(call: Callable[[], Any], device: Any, seconds: float, most: int = 200) -> list[float]:
    """Measure one call several times after a warm-up, and return the times in seconds.

    On a GPU, events of the device measure the time.

    Args:
        call: The function to time. On a GPU it queues work on the current stream.
        device: A ``torch.device``.
        seconds: The duration of the measurement. At least five samples are taken.
        most: The largest number of samples.
    """
    import torch

    if device.type != "cuda":
        call()
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while len(samples) < 5 or (time.perf_counter() < end and len(samples) < most):
            began = time.perf_counter()
            call()
            samples.append(time.perf_counter() - began)
        return samples

    def measured(count: int, inner: int) -> list[float]:
        """Return the seconds of one call for ``count`` samples, each the mean of ``inner`` calls."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record()
        for mark in marks[1:]:
            for _ in range(inner):
                call()
            mark.record()
        torch.cuda.synchronize(device)
        return [marks[index].elapsed_time(marks[index + 1]) / 1e3 / inner for index in range(count)]

    with torch.cuda.device(device):
        for _ in range(3):
            call()
        once = statistics.median(measured(3, 1))
        # Events resolve about half a microsecond, so short calls are timed several at a time.
        inner = max(1, round(200e-6 / once))
        count = max(5, min(most, int(seconds / (once * inner))))
        return measured(count, inner)


def begin_probe(options: argparse.Namespace, rank: Rank, log: Log) -> tuple[Any, list[Gpu]]:
    """Log the common first events of a probe. Return the rank's device and all GPUs that take part."""
    import torch

    chosen = chosen_by_device(options.device, options.gpus)
    torch.manual_seed(options.seed + rank.index)
    device = torch.device("cpu")
    if chosen:
        require_cuda()
        device = torch.device("cuda", chosen[rank.local].index)
        torch.cuda.set_device(device)
    if rank.index == 0:
        log.event("facts", {**facts(), "gpus": gpu_uuids(chosen)})
        log.event("seed", options.seed)
        mark_start(rank, log)
    return device, chosen


def device_labels(found: list[Gpu], rank: Rank) -> dict[str, str]:
    """Return the labels that name the device of a rank."""
    return found[rank.local].labels if found else {"device": "cpu"}
