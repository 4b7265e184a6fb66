#!/usr/bin/env python3
"""Run a training-like load, and watch each GPU second by second.

One process per GPU. A step computes bf16 products, attention and memory traffic while the host sends data;
of several GPUs it ends with an all-reduce, which is not part of the step's computing time, so that a slow GPU
is named and not all of them. Steps are queued ahead: a host that is late shows in no figure. Each second the
reasons for low clocks, temperature and power are read, and the last product is compared with the first one.

Seconds of a load that was interrupted do not count on: the GPU cooled down meanwhile, and what interrupted it
may be the fault. The next one starts again, and says how far the last one came, where both have ``--notes``.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import datetime
import json
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
import soak_series
from common import HIGHER, LOWER, Log, Rank
from soak_series import Window

# Read by cuBLAS when it starts: without it, its results may differ from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
if common.IS_RANK:
    import torch

WINDOW_S = 1.0
QUEUED_STEPS = 4
"""Steps that wait on the GPU: about 0.2 s."""
USUAL_STEPS = 200
"""The number of latest steps that set the usual time."""
SETTLE_SHARE = 0.2
"""The share of a short run that is for warming up, in place of :data:`soak_series.SETTLE_S`."""
TIMEOUT_S = 300.0
REDUCED_MIB = 64
NOTE = "soak-unfinished.json"
NOTE_EVERY_S = 10.0


@dataclass(frozen=True)
class Shape:
    """The size of a step.

    Args:
        size: Rows and columns of the products.
        products: Products of a step.
        attention: Batch, heads, tokens and width of a head.
        memory_mib: Size of each of the three arrays of the memory traffic.
        sent_mib: Data that the host sends meanwhile.
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
    """Describe the command line."""
    arguments = common.probe_parser(__doc__, 600.0)
    arguments.add_argument("--notes", type=Path, help="folder that keeps how far an interrupted load came")
    return arguments


def plan(options: argparse.Namespace) -> int:
    """Return the number of ranks.

    Raises:
        Refusal: The time is too short to hold a window of settled speed.
    """
    if options.seconds < 5:
        raise common.Refusal(common.EXIT_USAGE, f"--seconds {options.seconds:g}: 5 s at least")
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
        """Queue what is timed of a step."""
        with torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext():
            self.got.copy_(self.sent, non_blocking=True)
        for _ in range(self.shape.products):
            self.multiply(self.out)
        torch.nn.functional.scaled_dot_product_attention(self.query, self.query, self.query)
        torch.add(self.a, self.b, alpha=3.0, out=self.c)

    def reduce(self) -> None:
        """Queue the all-reduce of a step, where there are several GPUs."""
        if self.reduced is not None:
            torch.distributed.all_reduce(self.reduced, op=torch.distributed.ReduceOp.AVG)

    def compare(self) -> None:
        """Queue the comparison of the last product with the first; the first call keeps it."""
        if self.first is None:
            self.first = self.out.clone()
        else:
            self.differ += (self.out.view(self.bits) != self.first.view(self.bits)).sum()

    def wrong_values(self) -> int:
        """Return how many values differed, over all comparisons."""
        return int(self.differ.item())


class Timer:
    """The time of a queued step: by events of the GPU, or by the clock on a CPU, where nothing queues."""

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
        """Wait until the step has computed; return its seconds."""
        if self.events:
            self.events[1].synchronize()
            return float(self.events[0].elapsed_time(self.events[1])) / 1e3
        return self.took_s


@dataclass
class Watch:
    """The state of one GPU's measurement so far: windows, steps, and its queries."""

    shape: Shape
    nvml: samples.Nvml | None
    windows: list[Window] = field(default_factory=list)
    times_s: array.array[float] = field(default_factory=lambda: array.array("f"))
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_STEPS))

    def take(self, at_s: float, seconds: float, steps_s: list[float]) -> Window:
        """Keep a window and the times of its steps; return it."""
        usual_s = statistics.median(self.recent_s) if len(self.recent_s) >= QUEUED_STEPS else 0.0
        stalls = soak_series.count_stalls(steps_s, usual_s)
        self.times_s.extend(steps_s)
        self.recent_s.extend(steps_s)
        read = self.nvml.read()[0] if self.nvml else {}
        read.pop("gpu", None)
        window = Window(at_s, seconds, self.shape.work * len(steps_s), sum(steps_s), stalls, read)
        self.windows.append(window)
        return window


class Lines:
    """Logs windows as samples, which reports draw; of a long run several as one."""

    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, name
        self.waiting: list[Window] = []

    def add(self, window: Window) -> None:
        """Log the windows that wait once they are as long as a line."""
        self.waiting.append(window)
        if sum(one.seconds for one in self.waiting) < 0.99 * soak_series.seconds_per_line(window.at_s):
            return
        merged = soak_series.merge(self.waiting)
        self.waiting = []
        sample = {"gpu": self.name, "rate": round(merged.rate, 3) if merged.busy_s else 0.0, **merged.read}
        self.log.event("gpu_sample", {"gpus": [{**sample, "stalls": merged.stalls}], "links": []})


class Notes:
    """Keeps on the node's disk how far a load has come, until it has ended well."""

    def __init__(self, folder: Path | None, gpus: str, seconds: float) -> None:
        self.path = folder / NOTE if folder else None
        self.about = {"gpus": gpus, "asked_s": seconds}
        self.noted_s = 0.0

    def unfinished(self) -> dict[str, Any] | None:
        """Return the notes of an earlier load, or None if it ended well or left nothing readable."""
        try:
            left = json.loads(self.path.read_text()) if self.path else None
        except (OSError, ValueError):
            return None
        numbers = [left.get(key) for key in ("at_s", "asked_s")] if isinstance(left, dict) else [None]
        return left if all(isinstance(one, (int, float)) for one in numbers) else None

    def note(self, at_s: float) -> None:
        """Write how far the load is, every ten seconds; a disk that is full ends no load."""
        if self.path is None or at_s < self.noted_s + NOTE_EVERY_S:
            return
        self.noted_s = at_s
        new = self.path.with_suffix(".new")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps({**self.about, "at_s": round(at_s), "time": round(time.time())}))
            new.replace(self.path)

    def end(self) -> None:
        """Forget the load: it has ended well."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def say_restart(notes: Notes, log: Log) -> None:
    """Log that an earlier load did not end, and that this one starts again."""
    left = notes.unfinished()
    if left is not None:
        log.measurement("soak_unfinished_seconds", float(left["at_s"]), "s")
        common.say(
            f"a soak on {left.get('gpus')} ended after {left['at_s']} of {left['asked_s']:g} s without a "
            "result: its program was killed, or the node restarted. This one starts again at 0 s"
        )


def nvml_of(uuid: str) -> samples.Nvml | None:
    """Return how to ask of a GPU, or None if NVML is missing or does not know it: its seconds are unread."""
    try:
        asked = samples.Nvml([uuid])
    except (OSError, AttributeError):
        return None
    return asked if asked.read() else None


def steps_of_window(load: Load, rank: Rank) -> int:
    """Return how many steps take about a second: the same number on all ranks, which reduce after each."""
    for _ in range(QUEUED_STEPS):
        timer = Timer(load.device, load.compute)
        step_s = timer.seconds()
    steps = torch.tensor([max(1, round(WINDOW_S / step_s))], device=load.device)
    if rank.count > 1:
        torch.distributed.broadcast(steps, 0)
    return int(steps.item())


def windows_of(load: Load, watch: Watch, steps: int) -> Iterator[Window]:
    """Run the load; yield a window after each of so many steps."""
    waiting: deque[Timer] = deque()
    began = opened = time.monotonic()
    while True:
        steps_s: list[float] = []
        for _ in range(steps):
            waiting.append(Timer(load.device, load.compute))
            load.reduce()
            if len(waiting) > QUEUED_STEPS or load.device.type != "cuda":
                steps_s.append(waiting.popleft().seconds())
        load.compare()
        now = time.monotonic()
        yield watch.take(now - began, now - opened, steps_s)
        opened = now


def goes_on(more: bool, rank: Rank, device: torch.device) -> bool:
    """Return whether the load is held on: rank 0 decides for all, for they reduce together."""
    if rank.count == 1:
        return more
    word = torch.tensor([int(more)], device=device)
    torch.distributed.broadcast(word, 0)
    return bool(word.item())


def hold(load: Load, watch: Watch, options: argparse.Namespace, rank: Rank, log: Log, notes: Notes) -> None:
    """Hold the load for the time asked for, and log its windows."""
    name = f"{rank.local}" if load.device.type == "cuda" else "cpu"
    lines = Lines(log, name)
    for window in windows_of(load, watch, steps_of_window(load, rank)):
        lines.add(window)
        if rank.index == 0:
            notes.note(window.at_s)
            log.progress("soak", min(round(window.at_s), round(options.seconds)), round(options.seconds))
        if not goes_on(window.at_s < options.seconds, rank, load.device):
            return


def report(watch: Watch, load: Load, seconds: float, log: Log, labels: dict[str, str]) -> float:
    """Log the results of the seconds; return the settled speed in TFLOP/s."""
    windows = watch.windows
    settle_s = min(soak_series.SETTLE_S, SETTLE_SHARE * seconds)
    rate = soak_series.mean_rate(windows, settle_s)
    if rate is not None:
        speeds = common.spread_of(soak_series.window_rates(windows, settle_s))
        log.sampled("soak", rate, "TFLOP/s", HIGHER, speeds, **labels)
    log.measurement("soak_seconds", windows[-1].at_s if windows else 0.0, "s", HIGHER, **labels)
    log.measurement("wrong_values", load.wrong_values(), "1", LOWER, **labels)
    log.measurement("soak_stalls", soak_series.most_stalls(windows), "1", LOWER, **labels)
    times = sorted(watch.times_s)
    for name, share in (("soak_step_p50", 0.5), ("soak_step_p99", 0.99)):
        log.measurement(name, times[int(share * (len(times) - 1))], "s", LOWER, **labels)
    sag = soak_series.largest_sag(windows, settle_s)
    if sag is not None:
        log.measurement("soak_sag", sag, "1", LOWER, **labels)
    return rate or 0.0


def report_readings(watch: Watch, before: dict[str, float], log: Log, labels: dict[str, str]) -> None:
    """Log NVML's readings during the run of a GPU, and the growth of its counters."""
    windows = watch.windows
    total_s = sum(one.seconds for one in windows)
    log.measurement("slowed_seconds", soak_series.slowed_seconds(windows), "s", LOWER, **labels)
    log.measurement("unread_share", soak_series.unread_seconds(windows) / total_s, "1", LOWER, **labels)
    after = watch.nvml.read_counters() if watch.nvml else {}
    hottest = soak_series.hottest(windows)
    if hottest is not None and "slowdown_temperature" in after:
        margin = after["slowdown_temperature"] - hottest
        log.measurement("temperature_margin", margin, "°C", HIGHER, **labels)
    if "energy" in after and "energy" in before and watch.times_s:
        joules = (after["energy"] - before["energy"]) / len(watch.times_s)
        log.measurement("energy_per_step", joules, "J", LOWER, **labels)
    for name in samples.COUNTERS:
        if name in before and name in after:
            log.measurement("counter_growth", after[name] - before[name], "1", LOWER, counter=name, **labels)


def report_lag(rate: float, rank: Rank, log: Log, labels: dict[str, str]) -> None:
    """Log the share by which this GPU is slower than its node's median; the ranks exchange it by a file, not
    by a GPU.
    """
    store = torch.distributed.FileStore(str(rank.state / "soak"), rank.count)
    store.set_timeout(datetime.timedelta(seconds=TIMEOUT_S))
    store.set(f"rank-{rank.index}", json.dumps(rate))
    rates = [float(json.loads(store.get(f"rank-{index}"))) for index in range(rank.count)]
    usual = statistics.median_high(rates)
    if usual > 0:
        log.measurement("soak_lag", 1 - rate / usual, "1", LOWER, **labels)


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Run the load as one rank, on one device."""
    device, found = common.begin_probe(options, rank, log)
    labels = common.device_labels(found, rank)
    if rank.count > 1:
        common.join(rank, "nccl", device, TIMEOUT_S)
    load = Load(GPU_SHAPE if found else CPU_SHAPE, device, reduced=rank.count > 1)
    watch = Watch(load.shape, nvml_of(found[rank.local].uuid) if found else None)
    before = watch.nvml.read_counters() if watch.nvml else {}
    notes = Notes(options.notes, common.gpu_uuids(found) or "the CPU", options.seconds)
    if rank.index == 0:
        say_restart(notes, log)
    hold(load, watch, options, rank, log, notes)
    rate = report(watch, load, options.seconds, log, labels)
    if found:
        report_readings(watch, before, log, labels)
    if rank.count > 1:
        report_lag(rate, rank, log, labels)
    if rank.index == 0:
        notes.end()
    common.mark_stop(rank)


if __name__ == "__main__":
    sys.exit(common.run("probe_soak", parser(), plan, probe, gpu_states=True))
