#!/usr/bin/env python3
"""Run a load like a training, and watch each GPU every second.

The benchmark soak and nights (validate.yml) start this program. There is one process per GPU. A step consists
of bf16 products, attention and memory traffic while the host sends data. With several GPUs, a step ends with
an all-reduce, which does not count as computing time, so that a slow GPU can be identified. Steps are queued
ahead, so that a slow host does not affect the numbers. Each second, the program reads the reasons for low
clocks, the temperature and the power. It also compares the last product with the first.

With ``--notes``, the seconds are stored on disk (soak_resume.py). If the load was killed or the node
restarted, the load continues after another warm-up. The seconds of this warm-up do not count as time, but
its faults count.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
import probe_gemm
import samples
import soak_resume
import soak_series
from common import HIGHER, LOWER, Gpu, Log, Rank
from soak_resume import DamagedError, Found, Keeper, Kept, Session
from soak_series import Window

# cuBLAS reads this when it starts. Without it, its results may differ from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
if common.IS_RANK:
    import torch

WINDOW_S = 1.0
"""Seconds of a window, after which readings and comparisons are stored."""
QUEUED_STEPS = 4
"""Number of steps that are queued on the GPU, about 0.2 s."""
USUAL_STEPS = 200
"""The number of latest steps that set the usual time."""
SETTLE_SHARE = 0.2
"""The share of a short run that is for warming up, in place of :data:`soak_series.SETTLE_S`."""
TIMEOUT_S = 300.0
"""The longest wait of ranks for each other."""
REDUCED_MIB = 64
"""Size of the all-reduce of a step."""
LINES_OF_RUN = 20
"""Lines of samples that even a short run keeps."""
PROGRAMS = (
    *("probe_soak.py", "soak_resume.py", "soak_series.py"),
    *("probe_gemm.py", "samples.py", "common.py"),
)
"""The programs that determine what a second of the load contains and how it is judged."""


@dataclass(frozen=True)
class Shape:
    """The size of a step.

    Args:
        size: The number of rows and columns of the products.
        products: The number of products in a step.
        attention: The batch, heads, tokens and width of a head.
        memory_mib: The size of each of the three arrays of the memory traffic.
        sent_mib: The amount of data that the host sends meanwhile.
    """

    size: int
    products: int
    attention: tuple[int, int, int, int]
    memory_mib: int
    sent_mib: int

    @property
    def work(self) -> float:
        """Return the operations of a step in TFLOP: 2 n^3 a product, 4 b h s^2 d an attention."""
        batch, heads, tokens, width = self.attention
        return (2.0 * self.size**3 * self.products + 4.0 * batch * heads * tokens**2 * width) / 1e12


GPU_SHAPE = Shape(8192, 24, (4, 16, 4096, 128), 1024, 64)
CPU_SHAPE = Shape(256, 8, (1, 2, 128, 32), 4, 1)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = common.probe_parser(__doc__, 600.0)
    add = arguments.add_argument
    add("--notes", type=Path, help="folder that keeps the samples, from which an interrupted load continues")
    add(
        "--gap-limit",
        type=float,
        default=soak_resume.GAP_S,
        metavar="SECONDS",
        help="after a longer interruption a load starts again (default: %(default)g)",
    )
    add(
        "--sampling",
        choices=("on", "off"),
        default="on",
        help="off: read, log and keep nothing by second, to measure what that costs; it proves nothing",
    )
    return arguments


def plan(options: argparse.Namespace) -> int:
    """Return the number of ranks.

    Raises:
        Refusal: The time is too short to hold a window of settled speed.
    """
    if options.seconds < 5:
        raise common.Refusal(common.EXIT_USAGE, f"--seconds {options.seconds:g}: at least 5 s are needed")
    return max(1, len(common.chosen_by_device(options.device, options.gpus)))


class Load:
    """The step of one rank."""

    def __init__(self, shape: Shape, device: torch.device, reduced: bool) -> None:
        self.shape, self.device = shape, device
        on_gpu = device.type == "cuda"
        dtype = "bf16" if on_gpu else "fp32"
        _, _, self.multiply = probe_gemm.product(dtype, shape.size, device)
        kind = probe_gemm._kind(dtype)
        self.out = torch.empty((shape.size, shape.size), device=device, dtype=kind)
        self.bits = torch.int16 if on_gpu else torch.int32
        self.first: torch.Tensor | None = None
        self.differ = torch.zeros((), dtype=torch.int64, device=device)
        self.counted = torch.zeros((), dtype=torch.int64, pin_memory=on_gpu)
        self.compared = torch.cuda.Event() if on_gpu else None
        batch, heads, tokens, width = shape.attention
        self.query = torch.randn(batch, heads, tokens, width, device=device, dtype=kind)
        values = (shape.memory_mib << 20) // 4
        self.a, self.b = torch.rand(values, device=device), torch.rand(values, device=device)
        self.c = torch.empty_like(self.a)
        self.sent = torch.rand((shape.sent_mib << 20) // 4, pin_memory=on_gpu)
        self.got = torch.empty(self.sent.shape, device=device)
        self.stream = torch.cuda.Stream(device) if on_gpu else None
        self.reduced = torch.ones((REDUCED_MIB << 20) // 4, device=device) if reduced else None

    def compute(self) -> None:
        """Queue the part of a step that is timed."""
        with torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext():
            self.got.copy_(self.sent, non_blocking=True)
        for _ in range(self.shape.products):
            self.multiply(self.out)
        torch.nn.functional.scaled_dot_product_attention(self.query, self.query, self.query)
        torch.add(self.a, self.b, alpha=3.0, out=self.c)

    def reduce(self) -> None:
        """Queue the all-reduce of a step if there are several GPUs."""
        if self.reduced is not None:
            torch.distributed.all_reduce(self.reduced, op=torch.distributed.ReduceOp.AVG)

    def compare(self) -> None:
        """Queue the comparison of the last product with the first.

        The first call stores the first product.
        """
        if self.first is None:
            self.first = self.out.clone()
        else:
            self.differ += (self.out.view(self.bits) != self.first.view(self.bits)).sum()
        self.counted.copy_(self.differ, non_blocking=True)
        if self.compared:
            self.compared.record()

    def wrong_values(self) -> int:
        """Return how many values differed in all comparisons. Wait only for the last comparison."""
        if self.compared:
            self.compared.synchronize()
        return int(self.counted.item())


class Timer:
    """The timer of a queued step, by events of the GPU, or by the clock of a CPU, which does not queue."""

    def __init__(self, device: torch.device, compute: Callable[[], None]) -> None:
        self.events: list[Any] = []
        self.took_s = 0.0
        if device.type == "cuda":
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self.events[0].record()
            compute()
            self.events[1].record()
        else:
            began = time.perf_counter()
            compute()
            self.took_s = time.perf_counter() - began

    def seconds(self) -> float:
        """Wait until the step is computed, and return its seconds."""
        if self.events:
            self.events[1].synchronize()
            return float(self.events[0].elapsed_time(self.events[1])) / 1e3
        return self.took_s


@dataclass
class Watch:
    """The state of one GPU's measurement, with its samples and queries.

    Attributes:
        shape: The size of a step.
        nvml: The access to the GPU, or None if its readings are missing.
        keeper: The writer of the samples.
        settle_s: The seconds of warm-up of a session.
        wrong_values: A function that returns how many values of this session differed.
        counted_s: The seconds that count as measured so far.
        recent_s: The times of the latest steps.
    """

    shape: Shape
    nvml: samples.Nvml | None
    keeper: Keeper
    settle_s: float
    wrong_values: Callable[[], int]
    counted_s: float
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_STEPS))

    @property
    def kept(self) -> Kept:
        """Return the samples of all sessions."""
        return self.keeper.kept

    def take(self, since_s: float, seconds: float, steps_s: list[float]) -> Window:
        """Store a window and the times of its steps. Return the window."""
        usual_s = statistics.median(self.recent_s) if len(self.recent_s) >= QUEUED_STEPS else 0.0
        stalls = soak_series.count_stalls(steps_s, usual_s)
        self.recent_s.extend(steps_s)
        read = self.nvml.read()[0] if self.nvml else {}
        read.pop("gpu", None)
        began_s = self.kept.began_s
        work = self.shape.work * len(steps_s)
        window = Window(began_s + since_s, seconds, work, sum(steps_s), stalls, read, began_s)
        self.counted_s += soak_series.counted_seconds(window, self.settle_s)
        self.keeper.take(window, steps_s, self.read)
        return window

    def read(self) -> tuple[int, dict[str, float]]:
        """Return how many values of this session differed, and the counters."""
        return self.wrong_values(), self.nvml.read_counters() if self.nvml else {}


class Lines:
    """The windows as log lines for reports. In a long run, a line combines several windows.

    After an interruption, each line states its second, because the log's own times belong to the last
    session.
    """

    def __init__(self, log: Log, name: str, kept: Kept) -> None:
        self.log, self.name, self.kept = log, name, kept
        self.waiting: list[Window] = []

    def add(self, window: Window) -> None:
        """Log the windows that wait once they are as long as a line, or of another session."""
        if self.waiting and self.waiting[-1].began_s != window.began_s:
            self._log()
        self.waiting.append(window)
        if sum(waiting.seconds for waiting in self.waiting) < 0.99 * soak_series.seconds_per_line(
            window.at_s
        ):
            return
        self._log()

    def _log(self) -> None:
        """Log the waiting windows as one sample."""
        merged = soak_series.merge(self.waiting)
        self.waiting = []
        sample = {"gpu": self.name, "rate": round(merged.rate, 3) if merged.busy_s else 0.0, **merged.read}
        value: dict[str, Any] = {"gpus": [{**sample, "stalls": merged.stalls}], "links": []}
        if len(self.kept.sessions) > 1:
            value["at_s"] = round(self.kept.elapsed_s(merged), 3)
        self.log.event("gpu_sample", value)


def session_of(
    options: argparse.Namespace, rank: Rank, gpus: list[Gpu], nvml: samples.Nvml | None
) -> Session:
    """Return this session, with its hardware and software, and the GPUs' states and counters before it."""
    about = {
        "gpus": common.gpu_uuids(gpus) or "the CPU",
        "gpu": gpus[rank.local].uuid if gpus else "the CPU",
        "seconds": f"{options.seconds:g}",
        "seed": f"{options.seed}",
        "program": soak_resume.digest_of_programs(PROGRAMS),
        **common.facts(),
        **(nvml.read_settings() if nvml else {}),
    }
    counters = nvml.read_counters() if nvml else {}
    return Session(about, time.time(), soak_resume.boot_id(), common.gpu_states_before(rank), counters)


def look_for_earlier(keeper: Keeper, session: Session, options: argparse.Namespace) -> tuple[Kept, Found]:
    """Return the samples of an earlier load, and its state as this rank found it."""
    try:
        kept, alive = keeper.read()
    except DamagedError as error:
        return Kept(), Found(damage=str(error))
    if not len(kept.windows):
        return Kept(), Found()
    restart = soak_resume.why_restart(
        kept, alive, session, options.gap_limit, soak_resume.read_fault(options.notes)
    )
    counted_s = kept.counted_s(settle_seconds(options.seconds))
    return kept, Found("", restart, len(kept.sessions), kept.loaded_s, counted_s)


def say_start(past: Found, kept: Kept, asked_s: float, log: Log) -> None:
    """Log how the load starts. If it continues another load, also log the GPUs' states of that load."""
    if past.damage:
        why = f"{past.damage}. It is set aside (.damaged): look at this disk, and start the soak again"
        log.event("unproven", {"what": "the soak that was interrupted", "why": why})
        common.say(f"unproven: {why}")
    elif past.restart:
        log.measurement("soak_unfinished_seconds", past.loaded_s, "s")
        common.say(
            f"a soak ended after {past.loaded_s:.0f} s without a result. This one starts again at 0 s: "
            f"{past.restart}"
        )
    elif past.sessions:
        common.say(
            f"a soak was interrupted; it is continued: {past.counted_s:.0f} of {asked_s:g} s are measured. "
            "Its GPUs warm up again first"
        )
        # The log with these states belongs to the interrupted run.
        for state in (one for session in kept.sessions for one in session.states):
            log.event("gpu_state", state)


def settle_seconds(seconds: float) -> float:
    """Return the warm-up time of a load of this length."""
    return min(soak_series.SETTLE_S, SETTLE_SHARE * seconds)


def nvml_of(uuid: str) -> samples.Nvml | None:
    """Return the NVML access to a GPU.

    Return None if NVML is missing or does not list the GPU. Windows then have no readings.
    """
    try:
        asked = samples.Nvml([uuid])
    except (OSError, AttributeError):
        return None
    return asked if asked.read() else None


def steps_of_window(load: Load, rank: Rank) -> int:
    """Return the number of steps in about a second.

    The number is the same on all ranks, because they reduce after each step.
    """
    for _ in range(QUEUED_STEPS):
        timer = Timer(load.device, load.compute)
        step_s = timer.seconds()
    steps = torch.tensor([max(1, round(WINDOW_S / step_s))], device=load.device)
    if rank.count > 1:
        torch.distributed.broadcast(steps, 0)
    return int(steps.item())


def run_steps(load: Load, waiting: deque[Timer], number: int, until: float) -> list[float]:
    """Queue a number of steps after those that wait on the GPU. Return the seconds of ended steps.

    Args:
        load: The load of this rank.
        waiting: The queued steps. A GPU keeps :data:`QUEUED_STEPS` of them.
        number: The number of steps to queue.
        until: The time at which a CPU stops. If other processes use it, steps may be far slower than
            when they were counted.
    """
    on_gpu = load.device.type == "cuda"
    steps_s: list[float] = []
    for _ in range(number):
        waiting.append(Timer(load.device, load.compute))
        load.reduce()
        if len(waiting) > QUEUED_STEPS or not on_gpu:
            steps_s.append(waiting.popleft().seconds())
        if not on_gpu and time.monotonic() > until:
            break
    return steps_s


def windows_of(load: Load, watch: Watch, steps: int) -> Iterator[Window]:
    """Run the load, and yield a window after each group of steps.

    A GPU's window is read after the next one started. Its comparison is then over, and the GPU computes
    queued steps while its sensors and counters are read and written to the disk.
    """
    on_gpu = load.device.type == "cuda"
    ahead = min(steps, QUEUED_STEPS + 1) if on_gpu else 0
    waiting: deque[Timer] = deque()
    ended: tuple[float, float, list[float]] | None = None
    began = opened = time.monotonic()
    while True:
        steps_s = run_steps(load, waiting, ahead, math.inf)
        if ended:
            yield watch.take(*ended)
        steps_s += run_steps(load, waiting, steps - ahead, opened + WINDOW_S)
        load.compare()
        now = time.monotonic()
        ended = (now - began, now - opened, steps_s)
        opened = now
        if not on_gpu:
            yield watch.take(*ended)
            ended = None


def hold(load: Load, watch: Watch, options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Run the load until all ranks measured for the requested time, and log its windows."""
    name = f"{rank.local}" if load.device.type == "cuda" else "cpu"
    lines = Lines(log, name, watch.kept) if options.sampling == "on" else None
    if lines:
        for window in watch.kept.windows:
            lines.add(window)
    for window in windows_of(load, watch, steps_of_window(load, rank)):
        if lines:
            lines.add(window)
        if rank.index == 0:
            log.progress("soak", min(round(watch.counted_s), round(options.seconds)), round(options.seconds))
        if common.holds_on_all_ranks(watch.counted_s >= options.seconds, rank, load.device):
            break
    watch.keeper.flush(*watch.read())


def report(watch: Watch, log: Log, labels: dict[str, str]) -> float:
    """Log the results of all windows. Return the speed in TFLOP/s after settling."""
    kept, settle_s = watch.kept, watch.settle_s
    rate = soak_series.mean_rate(kept.windows, settle_s)
    if rate is not None:
        speeds = common.spread_of(soak_series.window_rates(kept.windows, settle_s))
        log.sampled("soak", rate, "TFLOP/s", HIGHER, speeds, **labels)
        elapsed = soak_series.elapsed_rates(kept.windows, settle_s)
        mean = statistics.fmean(elapsed)
        log.sampled("soak_elapsed", mean, "TFLOP/s", HIGHER, common.spread_of(elapsed), **labels)
    log.measurement("soak_seconds", kept.counted_s(settle_s), "s", HIGHER, **labels)
    log.measurement("wrong_values", kept.wrong, "1", LOWER, **labels)
    log.measurement("soak_stalls", soak_series.most_stalls(kept.windows), "1", LOWER, **labels)
    for name, share in (("soak_step_p50", 0.5), ("soak_step_p99", 0.99)):
        log.measurement(name, kept.times.quantile(share), "s", LOWER, **labels)
    sag = soak_series.largest_sag(kept.windows, settle_s)
    if sag is not None:
        log.measurement("soak_sag", sag, "1", LOWER, **labels)
    return rate or 0.0


def report_gaps(kept: Kept, log: Log) -> None:
    """Log each interruption of the load, with its length and whether the node restarted."""
    for number, (gap_s, restarted) in enumerate(kept.gaps(), 1):
        labels = {"interruption": f"{number}", "boot": "another" if restarted else "same"}
        log.measurement("soak_gap", gap_s, "s", **labels)


def report_readings(watch: Watch, log: Log, labels: dict[str, str]) -> None:
    """Log NVML's readings during the run of a GPU, and the growth of its counters."""
    kept = watch.kept
    total_s = sum(window.seconds for window in kept.windows)
    log.measurement("slowed_seconds", soak_series.slowed_seconds(kept.windows), "s", LOWER, **labels)
    log.measurement("unread_share", soak_series.unread_seconds(kept.windows) / total_s, "1", LOWER, **labels)
    hottest, grown = soak_series.hottest(kept.windows), kept.growth.grown or {}
    if hottest is not None and "slowdown_temperature" in kept.growth.last:
        margin = kept.growth.last["slowdown_temperature"] - hottest
        log.measurement("temperature_margin", margin, "°C", HIGHER, **labels)
    if "energy" in grown:
        log.measurement("energy_per_step", grown["energy"] / kept.times.counts.total(), "J", LOWER, **labels)
    for name in samples.COUNTERS:
        if name in grown:
            log.measurement("counter_growth", grown[name], "1", LOWER, counter=name, **labels)


def report_lag(rate: float, rank: Rank, log: Log, labels: dict[str, str]) -> None:
    """Log the share by which this GPU is slower than its node's median.

    The ranks exchange their speeds through a file, not through a GPU.
    """
    usual = statistics.median_high(common.exchange_by_file(rate, rank, "soak", TIMEOUT_S))
    if usual > 0:
        log.measurement("soak_lag", 1 - rate / usual, "1", LOWER, **labels)


def start(keeper: Keeper, session: Session, options: argparse.Namespace, rank: Rank, log: Log) -> bool:
    """Start the session, after the sessions of an earlier load or as the first one.

    Return False if samples of an earlier load are damaged, because its results are then unknown.
    """
    kept, mine = look_for_earlier(keeper, session, options)
    answers = common.exchange_by_file(dataclasses.asdict(mine), rank, "earlier", TIMEOUT_S)
    state = soak_resume.agree([Found(**answer) for answer in answers])
    if rank.index == 0:
        say_start(state, kept, options.seconds, log)
    if state.damage:
        keeper.set_aside()
        return False
    if rank.index == 0:
        soak_resume.forget_fault(options.notes)
    keeper.begin(Kept() if state.restart else kept, session)
    return True


def open_keeper(options: argparse.Namespace, rank: Rank) -> Keeper:
    """Return the object that stores the samples of a rank.

    Raises:
        Refusal: Another soak stores its samples there.
    """
    folder = options.notes if options.sampling == "on" else None
    line_s = min(soak_resume.LINE_S, options.seconds / LINES_OF_RUN)
    try:
        return Keeper(folder, rank.local, line_s)
    except BlockingIOError as error:
        why = f"another soak runs here ({folder}/{soak_resume.FOLDER}): wait until it has ended"
        raise common.Refusal(common.EXIT_USAGE, why) from error


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Run the load as one rank, on one device."""
    device, gpus = common.begin_probe(options, rank, log)
    labels = common.device_labels(gpus, rank)
    if options.sampling == "off":
        why = "--sampling off is for measuring what sampling costs"
        log.event("unproven", {"what": "the seconds of the load", "why": why})
    nvml = nvml_of(gpus[rank.local].uuid) if gpus and options.sampling == "on" else None
    keeper = open_keeper(options, rank)
    if rank.count > 1:
        common.join(rank, "nccl", device, TIMEOUT_S)
    load = Load(GPU_SHAPE if gpus else CPU_SHAPE, device, reduced=rank.count > 1)
    if not start(keeper, session_of(options, rank, gpus, nvml), options, rank, log):
        common.mark_stop(rank)
        return
    settle_s = settle_seconds(options.seconds)
    counted_s = keeper.kept.counted_s(settle_s)
    watch = Watch(load.shape, nvml, keeper, settle_s, load.wrong_values, counted_s)
    hold(load, watch, options, rank, log)
    rate = report(watch, log, labels)
    if gpus:
        report_readings(watch, log, labels)
    if rank.count > 1:
        report_lag(rate, rank, log, labels)
    if rank.index == 0:
        report_gaps(watch.kept, log)
    keeper.forget()
    common.mark_stop(rank)


def main() -> int:
    """Run as supervisor or rank. Record if a load failed by itself, because it is then never continued."""
    started = time.time()
    status = common.run("probe_soak", parser(), plan, probe, gpu_states=True)
    if not common.IS_RANK:
        soak_resume.note_fault(parser().parse_args().notes, status, started)
    return status


if __name__ == "__main__":
    sys.exit(main())
