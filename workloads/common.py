"""Supervise ranks, log, and find GPUs: the shared part of the workloads. Standard library and mllog only.

A workload is started once and starts itself again, once per rank, as a child process. The first
process (the supervisor) imports no framework, so it can always log how the run ended, whatever happens
to the ranks, and always ends all of them. Ranks die with their supervisor.
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
_RANK = "RACKPROOF_WORKLOAD_RANK"
_GATE = "RACKPROOF_WORKLOAD_GATE"
IS_RANK = _RANK in os.environ
"""True in a rank, which may import the framework; false in the supervisor."""

_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for ranks that do not end."""

_TEARDOWN_S = 60.0
"""Seconds for ranks to end once the timed part of the run is over."""

_PR_SET_PDEATHSIG = 1


class Refusal(Exception):  # noqa: N818  (not every one is an error of the program)
    """The workload cannot continue. The text has the reason and the remedy; ``status`` is the exit status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Gpu:
    """One GPU that this process may use, in CUDA's numbering."""

    index: int
    uuid: str
    name: str

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of a measurement made on this GPU."""
        return {"gpu": self.uuid, "gpu_index": str(self.index)}


@dataclass(frozen=True)
class Rank:
    """One of ``count`` processes; ``started`` is when the supervisor started (Unix seconds).

    ``local`` is which it is on this node, ``address`` (HOST:PORT) where the ranks of several nodes meet.
    """

    index: int
    count: int
    state: Path
    started: float
    local: int = 0
    address: str = ""

    @property
    def rendezvous(self) -> str:
        """Return the place where the ranks of this run meet (on one node no port that another run could
        hold).
        """
        return f"tcp://{self.address}" if self.address else f"file://{self.state}/rendezvous"


@dataclass(frozen=True)
class Spread:
    """The spread of the samples of a measurement; the node's copy of ``rackproof.core.spread``.

    Of five samples or more, the lowest and the highest 5 %, at least one each, lie outside.
    """

    count: int
    low: float
    median: float
    high: float

    def speeds(self, work: float) -> Spread:
        """Return the spread of the speeds, where this one is of the times of so much work."""
        return Spread(self.count, work / self.high, work / self.median, work / self.low)

    def scaled(self, factor: float) -> Spread:
        """Return the spread of so many times each sample."""
        return Spread(self.count, factor * self.low, factor * self.median, factor * self.high)


def spread_of(samples: Iterable[float]) -> Spread:
    """Return the spread of samples (one or more). No I/O."""
    ordered = sorted(samples)
    outside = max(1, len(ordered) // 20) if len(ordered) >= 5 else 0
    return Spread(len(ordered), ordered[outside], statistics.median(ordered), ordered[-1 - outside])


def spread_over_time(times_s: Sequence[float], work: float) -> Spread:
    """Return the spread of the speed over a run. No I/O.

    Ten stretches of equally many steps are compared: single steps wait for data in turn, which is not a
    swing.

    Args:
        times_s: The seconds of each step, in their order, one or more.
        work: The work of one step, in the unit of the speed times a second.
    """
    size = max(1, len(times_s) // 10)
    ends = range(size, len(times_s) + 1, size)
    return spread_of(work * size / sum(times_s[end - size : end]) for end in ends)


class Log:
    """Writes MLLOG lines through ``mlperf_logging``; one line is one write, so ranks do not mix."""

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
        """Log the end of an interval; ``fresh_line`` where a killed process may have left half a line."""
        self._logger.end(key, metadata=metadata, time_ms=time_ms, clear_line=fresh_line)

    def measurement(
        self,
        name: str,
        value: float,
        unit: str,
        direction: str | None = None,
        **labels: str,
    ) -> None:
        """Log a result of one sample, and show it."""
        self._state({"name": name, "value": value, "unit": unit, "direction": direction, "labels": labels})

    def sampled(
        self, name: str, value: float, unit: str, direction: str, spread: Spread, /, **labels: str
    ) -> None:
        """Log a result with the spread of its samples, and show it."""
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
        """Log how far the run is, at most once a second. With a target, the run ends when it is reached."""
        now = time.monotonic()
        if now - self._progress_at >= 1.0:
            self._progress_at = now
            value = {"phase": phase, "step": step, "steps": steps, "epoch": epoch, "epochs": epochs}
            self.event("progress", value if target is None else {**value, "target": target})


def say(text: str) -> None:
    """Write a line for people, in one write: between two of print() fits another rank's line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class _CudaUuid(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 16)]


def gpus() -> list[Gpu]:
    """Return the GPUs that CUDA lets this process use, read from the driver without a framework.

    Raises:
        Refusal: The driver is there but reports an error other than "no device".
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []

    def call(name: str, *arguments: Any) -> int:
        return int(getattr(driver, name)(*arguments))

    status = call("cuInit", 0)
    no_device = 100
    if status == no_device:
        return []
    if status != 0:
        text = ctypes.c_char_p()
        call("cuGetErrorString", status, ctypes.byref(text))
        said = (text.value or b"unknown").decode(errors="replace")
        raise Refusal(
            EXIT_NO_GPU, f"the CUDA driver reports error {status} ({said}); check nvidia-smi and dmesg"
        )
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    found = []
    for index in range(count.value):
        device, uuid, name = ctypes.c_int(), _CudaUuid(), ctypes.create_string_buffer(200)
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetUuid", ctypes.byref(uuid), device)
        call("cuDeviceGetName", name, len(name), device)
        plain = bytes(uuid.bytes).hex()
        parts = (plain[0:8], plain[8:12], plain[12:16], plain[16:20], plain[20:32])
        found.append(Gpu(index, "GPU-" + "-".join(parts), name.value.decode(errors="replace")))
    return found


def gpu_count(text: str) -> int | None:
    """Parse ``--gpus``: a number, or ``all`` as ``None``.

    Raises:
        argparse.ArgumentTypeError: Neither.
    """
    if text == "all":
        return None
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor 'all'")
    return int(text)


def choose_gpus(wanted: int | None) -> list[Gpu]:
    """Return the first ``wanted`` GPUs, or all of them; ``0`` means the CPU.

    Raises:
        Refusal: Fewer exist than requested, or ``all`` finds none.
    """
    if wanted == 0:
        return []
    found = gpus()
    if not found or len(found) < (wanted or 0):
        asked = "all GPUs" if wanted is None else f"{wanted} GPU{'s' if wanted > 1 else ''}"
        exist = f"{len(found)} exist" if len(found) != 1 else "1 exists"
        raise Refusal(
            EXIT_NO_GPU,
            f"{asked} requested, {exist} here (driver and CUDA_VISIBLE_DEVICES considered); request fewer, "
            "or --gpus 0 (--device cpu) to use the CPU",
        )
    return found if wanted is None else found[:wanted]


def chosen_by_device(device: str, wanted: int | None) -> list[Gpu]:
    """Return the GPUs for ``--device cpu|gpu|auto`` and ``--gpus``; an empty list means the CPU."""
    if device == "cpu" or (device == "auto" and not gpus()):
        return []
    return choose_gpus(wanted)


def _positive(text: str) -> float:
    """Return a number above 0.

    Raises:
        ValueError: It is not a number.
        argparse.ArgumentTypeError: It is 0, below, or infinite.
    """
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def probe_parser(description: str | None, seconds: float) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all probes have."""
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
    add("--nodes", type=_count, default=_slurm("NNODES", 1), help="nodes that train together (default: 1)")
    add("--node-rank", type=int, default=_slurm("NODEID", 0), help="which of them this is, from 0 (default)")
    add("--rendezvous", default="", metavar="HOST:PORT", help="of node 0, with several nodes")


def check_nodes(options: argparse.Namespace) -> None:
    """Check the arguments of :func:`add_nodes`.

    Raises:
        Refusal: There is no such node, or it is unknown where they meet.
    """
    if not 0 <= options.node_rank < options.nodes:
        raise Refusal(
            EXIT_USAGE,
            f"--node-rank {options.node_rank} is none of the {options.nodes} nodes' (from 0)",
        )
    if options.nodes > 1 and not re.fullmatch(r"\S+:[0-9]{1,5}", options.rendezvous):
        raise Refusal(
            EXIT_USAGE,
            "several nodes need --rendezvous HOST:PORT: an address of node 0, a free port there",
        )


def _slurm(name: str, otherwise: int) -> int:
    """Return srun's variables for the job step, so that one command line serves all of its nodes."""
    said = os.environ.get(f"SLURM_{name}", "")
    return int(said) if said.isdigit() and "SLURM_STEP_ID" in os.environ else otherwise


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def facts() -> dict[str, str]:
    """Return the versions of the software that does the work (called in a rank)."""
    import platform

    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda and torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
        found["cudnn"] = str(torch.backends.cudnn.version())
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def gpu_uuids(found: list[Gpu]) -> str:
    """Return the UUIDs of GPUs as ``facts`` hold them, to be compared with the node's own list."""
    return ",".join(gpu.uuid for gpu in found)


def require_cuda() -> None:
    """Refuse where the driver shows GPUs but this PyTorch cannot use them."""
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
    """Run a workload: as supervisor start the ranks, as a rank do the work.

    Args:
        benchmark: The value of ``submission_benchmark``, or a function that returns it from the options.
        arguments: The command line.
        plan: Checks the options without a framework; returns the number of ranks.
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
    """Log that the start-up is over and the run begins; return the seconds that start-up took."""
    if rank.index == 0:
        log.end("init_stop")
        log.start("run_start")
    return time.time() - rank.started


def mark_stop(rank: Rank) -> float:
    """Note the end of the timed part (logged when all ranks have ended well); return Unix seconds."""
    now = time.time()
    if rank.local == 0:
        (rank.state / "stopped").write_text(str(int(now * 1000)))
    return now


def _work(options: argparse.Namespace, work: Callable[[argparse.Namespace, Rank, Log], None]) -> int:
    state = json.loads(os.environ[_STATE])
    _die_with_parent(state["supervisor"])
    with open(int(os.environ[_GATE]), "rb") as gate:
        # It ends when the supervisor has read the users of the GPUs before the ranks use them.
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
    # Not through the interpreter's end: a thread that a framework left running there can abort a rank that
    # has done all of its work (seen with gloo: "terminate called without an active exception").
    os._exit(0)


def _die_with_parent(parent: int) -> None:
    """Make the kernel kill this rank when its supervisor is gone, for whatever reason."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the supervisor is gone")


_WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def _supervise(
    name: str,
    options: argparse.Namespace,
    plan: Callable[[argparse.Namespace], int],
    sampled: bool,
    gpu_states: bool,
) -> int:
    started = time.time()
    log = Log()
    log.start("init_start", time_ms=int(started * 1000))
    log.event("submission_benchmark", name)
    if os.environ.get("RACKPROOF_JOB_ID"):
        log.event("run_id", os.environ["RACKPROOF_JOB_ID"])
    folder = Path(tempfile.mkdtemp(prefix="rackproof-run-"))
    ranks: list[subprocess.Popen[bytes]] = []
    sampler: samples.Sampler | None = None
    # Blocked and then waited for, a signal can neither be lost nor strike between fork and bookkeeping.
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
        # The trainings have no --device: their --gpus 0 means the CPU.
        device = getattr(options, "device", "gpu")
        watched = chosen_by_device(device, options.gpus) if gpu_states else []
        _start_ranks(ranks, count, state, lambda: _log_gpu_states(log, "begin", watched, folder))
        if sampled:
            uuids = [gpu.uuid for gpu in choose_gpus(options.gpus)]
            # The thread starts with the signals blocked: they stay the supervisor's.
            sampler = samples.start(uuids, lambda sample: log.event("gpu_sample", sample))
        status, reason = _wait(ranks, getattr(options, "time_limit", 0.0), folder)
        if sampler is not None:
            sampler.stop()
        stopped = folder / "stopped"
        if status == 0 and stopped.is_file():
            log.end("run_stop", time_ms=int(stopped.read_text()), status="success")
            if watched:
                # Until then nvidia-smi's utilisation is that of the ranks, which are gone.
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
        ranks: Gets each rank as soon as it is there.
        count: The number of ranks on this node.
        state: The facts of the run that each rank needs.
        before: Work that must be done before any rank uses a GPU.
    """
    waiting, gate = os.pipe()
    environment = {
        **os.environ,
        **bytecode_cache.environment(),
        _STATE: json.dumps(state),
        _GATE: str(waiting),
    }
    try:
        # A session of its own: Ctrl-C reaches the supervisor alone, and a rank's children end with it.
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
    """Log the users of each GPU while no rank of this run uses it; without GPUs nothing is read."""
    found = gpu_state.read_states([gpu.uuid for gpu in watched]) if watched else []
    states = [{"moment": moment, **state} for state in found]
    for state in states:
        log.event("gpu_state", state)
    (folder / f"gpu-states-{moment}").write_text(json.dumps(states))


def gpu_states_before(rank: Rank) -> list[dict[str, Any]]:
    """Return the states of the GPUs before any rank used them, as they were logged."""
    states: list[dict[str, Any]] = json.loads((rank.state / "gpu-states-begin").read_text())
    return states


def _wait(ranks: list[subprocess.Popen[bytes]], time_limit: float, folder: Path) -> tuple[int, str]:
    """Wait until all ranks ended well, one ended badly, a signal came or time is up.

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
    """Return the rank that wrote its reason first, and its exit status, where one has ended badly.

    Others end because they lost it, and may be gone before it is.
    """
    reasons = sorted(folder.glob("reason-*"), key=lambda path: path.stat().st_mtime_ns)
    if status < 0 or not reasons:
        return index, status
    first = int(reasons[0].name.partition("-")[2])
    with contextlib.suppress(subprocess.TimeoutExpired):
        ranks[first].wait(_GRACE_S)
    return (first, ranks[first].returncode) if ranks[first].returncode else (index, status)


def _explain(index: int, status: int, folder: Path) -> tuple[int, str]:
    if status < 0:
        name = signal.Signals(-status).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return 128 - status, f"rank {index} was killed by {name}{hint}"
    reason = folder / f"reason-{index}"
    said = reason.read_text() if reason.is_file() else f"exit status {status}"
    return status, f"rank {index}: {said}"


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """End every rank and its children: SIGTERM first, SIGKILL to the remaining ones."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, signum)
        deadline = time.monotonic() + _GRACE_S
        for rank in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(max(0.0, deadline - time.monotonic()))
        if all(rank.returncode is not None for rank in ranks):
            return


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
    """Return each rank's message, exchanged by a file: a message about a wrong GPU must not pass through a
    GPU.

    Args:
        mine: This rank's message, as JSON values.
        rank: This one.
        name: Of the file; each exchange of a run has its own.
        timeout_s: The longest wait for the others.
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


def mark_moment(device: Any) -> Any:
    """Return this moment: on a GPU an event of its own clock, to be read when all is done."""
    import torch

    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def majority(values: Sequence[Value]) -> Value | None:
    """Return the value that more than half of several are, or None if there is none. No I/O."""
    value, count = collections.Counter(values).most_common(1)[0]
    return value if 2 * count > len(values) else None


def median_seconds(call: Callable[[], Any], device: Any, seconds: float, most: int = 200) -> float:
    """Return the median time of one call, as :func:`sample_seconds` measures it."""
    return statistics.median(sample_seconds(call, device, seconds, most))


def sample_seconds(call: Callable[[], Any], device: Any, seconds: float, most: int = 200) -> list[float]:
    """Return times of one call, after a warm-up; on a GPU measured there, by device events.

    Args:
        call: The function to time; on a GPU it queues work on the current stream.
        device: A ``torch.device``.
        seconds: Duration of the measurement (at least five samples are taken).
        most: At most this many samples.
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
        # Events tick in about half a microsecond: short calls are timed several at a time.
        inner = max(1, round(200e-6 / once))
        count = max(5, min(most, int(seconds / (once * inner))))
        return measured(count, inner)


def begin_probe(options: argparse.Namespace, rank: Rank, log: Log) -> tuple[Any, list[Gpu]]:
    """Log the common first events of a probe; return the rank's device and all GPUs that take part."""
    import torch

    found = chosen_by_device(options.device, options.gpus)
    torch.manual_seed(options.seed + rank.index)
    device = torch.device("cpu")
    if found:
        require_cuda()
        device = torch.device("cuda", found[rank.local].index)
        torch.cuda.set_device(device)
    if rank.index == 0:
        log.event("facts", {**facts(), "gpus": gpu_uuids(found)})
        log.event("seed", options.seed)
        mark_start(rank, log)
    return device, found


def device_labels(found: list[Gpu], rank: Rank) -> dict[str, str]:
    """Return the labels that name the device of a rank."""
    return found[rank.local].labels if found else {"device": "cpu"}
