#!/usr/bin/env python3
"""Measure the collectives of training by size, check every value on every rank, and find a slow GPU.

The benchmarks collectives and straggler start this program. There is one process per GPU of one node with
NCCL, or several with gloo on the CPU. Algorithm and bus bandwidth are defined as in nccl-tests, from the
slowest rank. The algorithm bandwidth is size / time, and the bus bandwidth is the algorithm bandwidth times
the collective's factor. The size is the size of a rank's largest buffer. A slow GPU is found in steps of a
product and an all-reduce, in which each GPU's product is timed alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import common
import probe_all_reduce
import probe_gemm
from common import HIGHER, LOWER, Log, Rank, Refusal
from probe_all_reduce import (
    CHUNK,
    TIMEOUT_S,
    WARM_UP,
    agreed,
    fits,
    most_sums,
    numbers,
    refill,
    samples_s,
    slowest,
    slowest_spread,
)

if common.IS_RANK:
    import torch

KIB, MIB = 1 << 10, 1 << 20
GPU_SIZES_KIB = (8, 32, 128, 512, 2 * KIB, 8 * KIB, 32 * KIB, 128 * KIB, 512 * KIB, 1 * MIB)
"""8 KiB to 512 MiB in powers of four, and 1 GiB."""
CPU_SIZES_KIB = (8, 128, 2 * KIB)
MOST_SAMPLES = 100
"""Largest number of timed samples of a collective of one size."""
MOST_IN_BURST = 1000
"""Largest number of small collectives in a burst."""

STEP_SIZE = {"cuda": 8192, "cpu": 256}
"""Sizes of the products that find a slow GPU. They are in fp32, because bf16 reaches the power limit, where
speeds differ more. On two healthy machines of four H100, the slowest GPU took 1.4 to 2.2 % longer than the
fastest one (docs/inside/gpu-measurements.md)."""
STEP_REDUCED = 16 * MIB
"""Size in bytes of the all-reduce of a step that finds a slow GPU."""
MOST_STEPS = 200
"""Largest number of these steps."""

BANDWIDTH_FROM = 8 * MIB
"""Smallest size in bytes with a bandwidth on GPUs. Below it, the launch takes most of
the time. No smaller size is compared with nccl-tests."""
NCCL_TESTS_LIMIT_S = 120.0
"""Time limit of one program of nccl-tests."""
NCCL_TESTS_DTYPES = {"float32": "float", "bfloat16": "bfloat16"}

Source = tuple[int, int]
"""A rank, and the number of one of the parts that it sends."""


@dataclass(frozen=True)
class Collective:
    """A collective, with its name in nccl-tests.

    Attributes:
        factor: The ratio of bus bandwidth to algorithm bandwidth, by the number of ranks.
        split: Whether the size covers the parts for all ranks together.
        sends: A function from the number of ranks to the number of parts that each rank sends.
        sources: A function from a rank and the number of ranks to the summands of each part of the result.
        in_place: Whether the result replaces the data that is sent.
    """

    factor: Callable[[int], float]
    split: bool
    sends: Callable[[int], int]
    sources: Callable[[int, int], list[list[Source]]]
    in_place: bool = False


def _one(_: int) -> int:
    """Return 1, because each rank sends a single part."""
    return 1


def _each(ranks: int) -> int:
    """Return the number of ranks, because each rank sends a part to each of them."""
    return ranks


def _shared(ranks: int) -> float:
    """Return the share of the data that comes from other ranks."""
    return (ranks - 1) / ranks


COLLECTIVES = {
    "all_reduce": Collective(
        factor=lambda ranks: 2 * _shared(ranks),
        split=False,
        sends=_one,
        sources=lambda rank, ranks: [[(peer, 0) for peer in range(ranks)]],
        in_place=True,
    ),
    "all_gather": Collective(
        factor=_shared,
        split=True,
        sends=_one,
        sources=lambda rank, ranks: [[(peer, 0)] for peer in range(ranks)],
    ),
    "reduce_scatter": Collective(
        factor=_shared,
        split=True,
        sends=_each,
        sources=lambda rank, ranks: [[(peer, rank) for peer in range(ranks)]],
    ),
    "alltoall": Collective(
        factor=_shared,
        split=True,
        sends=_each,
        sources=lambda rank, ranks: [[(peer, rank)] for peer in range(ranks)],
    ),
    "broadcast": Collective(
        factor=lambda ranks: 1.0,
        split=False,
        sends=_one,
        sources=lambda rank, ranks: [[(0, 0)]],
        in_place=True,
    ),
    "sendrecv": Collective(
        factor=lambda ranks: 1.0,
        split=False,
        sends=_one,
        sources=lambda rank, ranks: [[((rank - 1) % ranks, 0)]],
    ),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = common.probe_parser(__doc__, 30.0)
    add = arguments.add_argument
    add("--ranks", type=int, default=2, help="processes on the CPU (default: %(default)s)")
    add("--collectives", default=",".join(COLLECTIVES), help="default: %(default)s")
    add("--sizes-kib", help="comma-separated sizes (default: 8 ... 1048576; 8,128,2048 on CPU)")
    add("--dtype", choices=probe_all_reduce.DTYPES, default="float32", help="default: %(default)s")
    add("--straggler-seconds", type=float, default=3.0, help="time for steps (default: %(default)s; 0: none)")
    add(
        "--multicast",
        choices=("on", "off"),
        default="off",
        help="whether NCCL may use NVLink's multicast, NVLS (default: %(default)s)",
    )
    add(
        "--nccl-tests",
        choices=("on", "off"),
        default="off",
        help="also run nccl-tests (all_reduce_perf, ...) where they are on PATH (default: %(default)s)",
    )
    return arguments


def chosen(options: argparse.Namespace, on_gpu: bool) -> tuple[list[str], list[int]]:
    """Return the collectives, and the sizes in bytes.

    Raises:
        Refusal: A collective does not exist, or a size is not a positive whole number.
    """
    names = [collective for collective in options.collectives.split(",") if collective]
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown or not names:
        raise Refusal(
            common.EXIT_USAGE,
            f"--collectives: {', '.join(unknown) or 'nothing'} is not among {', '.join(COLLECTIVES)}",
        )
    if not options.sizes_kib:
        return names, [size * KIB for size in (GPU_SIZES_KIB if on_gpu else CPU_SIZES_KIB)]
    parts = options.sizes_kib.split(",")
    if not all(re.fullmatch("[0-9]{1,9}", part) and int(part) for part in parts):
        raise Refusal(common.EXIT_USAGE, f"--sizes-kib {options.sizes_kib}: not positive whole numbers")
    return names, [int(part) * KIB for part in parts]


def plan(options: argparse.Namespace) -> int:
    """Check the options. Return the number of ranks."""
    gpus = common.chosen_by_device(options.device, options.gpus)
    chosen(options, bool(gpus))
    ranks = len(gpus) or options.ranks
    if ranks < 2:
        raise Refusal(
            common.EXIT_NO_GPU if gpus else common.EXIT_USAGE,
            f"a collective needs at least 2 ranks, {ranks} would run; "
            "use more GPUs, or --device cpu --ranks 2",
        )
    if options.multicast == "off":
        # The ranks inherit it, and NCCL reads it when it starts.
        os.environ["NCCL_NVLS_ENABLE"] = "0"
    return ranks


class Buffers:
    """One rank's buffers for one collective of one size.

    ``size_bytes`` is the size that is moved, which is the requested size rounded down to whole values,
    and for split collectives to equal parts for the ranks.
    """

    def __init__(
        self, name: str, size_bytes: int, kind: torch.dtype, device: torch.device, rank: Rank, seed: int
    ) -> None:
        self.name, self.rank, self.seed = name, rank, seed
        self.collective = collective = COLLECTIVES[name]
        ranks = rank.count
        self.sources = collective.sources(rank.index, ranks)
        values = size_bytes // kind.itemsize // (ranks if collective.split else 1)
        self.size_bytes = values * kind.itemsize * (ranks if collective.split else 1)
        self.sent = torch.empty((collective.sends(ranks), values), dtype=kind, device=device)
        self.got = torch.empty((len(self.sources), values), dtype=kind, device=device)
        for part, piece in enumerate(self.sent):
            for index, chunk in enumerate(piece.split(CHUNK)):
                self._numbers((rank.index, part), index, chunk)

    def _numbers(self, source: Source, index: int, chunk: torch.Tensor) -> torch.Tensor:
        rank, part = source
        return numbers(part * self.rank.count + rank, self.rank.count, index, chunk, self.seed)

    def prepare(self) -> None:
        """Fill the result with NaN, or with the input if the collective replaces it.

        No earlier result remains.
        """
        if self.collective.in_place and (self.name == "all_reduce" or self.rank.index == 0):
            self.got.copy_(self.sent)
        else:
            self.got.fill_(math.nan)

    def queue(self) -> Any:
        """Queue the collective, and return an object whose ``wait()`` waits for it."""
        distributed, sent, got = torch.distributed, self.sent.view(-1), self.got.view(-1)
        if self.name == "all_reduce":
            return distributed.all_reduce(got, async_op=True)
        if self.name == "all_gather":
            # PyTorch 2.13 renamed this collective and the next one.
            gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
            return gather(got, sent, async_op=True)
        if self.name == "reduce_scatter":
            scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)
            return scatter(got, sent, async_op=True)
        if self.name == "alltoall":
            return distributed.all_to_all_single(got, sent, async_op=True)
        if self.name == "broadcast":
            return distributed.broadcast(got, 0, async_op=True)
        here, ranks = self.rank.index, self.rank.count
        return _Works(
            distributed.batch_isend_irecv(
                [
                    distributed.P2POp(distributed.isend, sent, (here + 1) % ranks),
                    distributed.P2POp(distributed.irecv, got, (here - 1) % ranks),
                ]
            )
        )

    def count_wrong(self) -> int:
        """Run the collective once, and return the number of wrong values in this rank's result."""
        self.prepare()
        self.queue().wait()
        wrong = 0
        for sources, piece in zip(self.sources, self.got, strict=True):
            for index, chunk in enumerate(piece.split(CHUNK)):
                expected = torch.zeros_like(chunk)
                scratch = torch.empty_like(chunk)
                for source in sources:
                    expected += self._numbers(source, index, scratch)
                wrong += int((chunk != expected).sum())
        return wrong

    def times_s(self, seconds: float) -> list[float]:
        """Return times of the collective by this rank's clock."""
        if self.name == "all_reduce":
            return samples_s(
                self.queue,
                lambda: refill(self.got),
                self.got.device,
                seconds,
                most_sums(self.rank.count),
                MOST_SAMPLES,
            )
        return samples_s(self.queue, lambda: None, self.got.device, seconds, MOST_IN_BURST, MOST_SAMPLES)


class _Works:
    """Several works as one."""

    def __init__(self, works: list[Any]) -> None:
        self.works = works

    def wait(self) -> None:
        """Wait for all of them."""
        for work in self.works:
            work.wait()


@dataclass
class Sweep:
    """A sweep over every collective and size on one rank. ``medians`` are bus bandwidths in GB/s."""

    options: argparse.Namespace
    rank: Rank
    device: torch.device
    log: Log
    labels: dict[str, str]
    medians: dict[tuple[str, int], float] = dataclasses.field(default_factory=dict)
    left_out: int = 0

    def run(self, names: list[str], sizes: list[int], own: dict[str, str]) -> None:
        """Measure. Rank 0 logs the common results, and each rank its own wrong values."""
        seconds = self.options.seconds / len(names) / len(sizes)
        for index, name in enumerate(names):
            wrong = sum(self.measure(name, size, seconds) for size in sizes)
            # Each rank logs its own number. If a collective is broken, it cannot be used to exchange
            # them.
            self.log.measurement("wrong_values", wrong, "1", LOWER, collective=name, **own)
            if self.rank.index == 0:
                self.log.progress("collectives", index + 1, len(names))
        if self.rank.index == 0:
            self.log.measurement("points_left_out", self.left_out, "1", LOWER)

    def measure(self, name: str, size: int, seconds: float) -> int:
        """Check and time one collective of one size. Return this rank's number of wrong values.

        The collective is checked before it is timed and, when warm, afterwards.
        """
        if not fits(2 * size, self.device):
            self.left_out += 1
            if self.rank.index == 0:
                common.say(f"{name} of {size} bytes does not fit into every GPU's memory; left out")
            return 0
        kind = getattr(torch, self.options.dtype)
        buffers = Buffers(name, size, kind, self.device, self.rank, self.options.seed)
        wrong = buffers.count_wrong()
        times_s = buffers.times_s(seconds)
        wrong += buffers.count_wrong()
        if wrong:
            common.say(f"{name} of {size} bytes: {wrong} wrong values on rank {self.rank.index}")
        taken = slowest_spread(times_s, self.device)
        slow_s, best_s = (
            slowest(sample, self.device) for sample in (probe_gemm.slow_seconds(times_s), min(times_s))
        )
        if self.rank.index == 0:
            self.log_speed(name, size, buffers.size_bytes, taken, slow_s, best_s)
        return wrong

    def log_speed(
        self, name: str, size: int, moved: int, spread: common.Spread, slow_s: float, best_s: float
    ) -> None:
        """Log the rates of a collective of one size from its times. ``moved`` is its size in bytes."""
        labels = {"size_bytes": str(size), **self.labels}
        work = moved / 1e9 * COLLECTIVES[name].factor(self.rank.count)
        speed = spread.speeds(work)
        self.medians[name, size] = speed.median
        self.log.sampled(f"{name}_time", spread.median, "s", LOWER, spread, **labels)
        if size < BANDWIDTH_FROM and self.device.type == "cuda":
            return
        self.log.sampled(f"{name}_busbw", speed.median, "GB/s", HIGHER, speed, **labels)
        self.log.measurement(f"{name}_busbw_p95", work / slow_s, "GB/s", HIGHER, **labels)
        self.log.measurement(f"{name}_busbw_best", work / best_s, "GB/s", HIGHER, **labels)
        self.log.measurement(f"{name}_algbw", moved / 1e9 / spread.median, "GB/s", HIGHER, **labels)


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Measure as one rank."""
    gpus = common.chosen_by_device(options.device, options.gpus)
    if gpus:
        common.require_cuda()
        torch.cuda.set_device(gpus[rank.local].index)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // rank.count))
    device = torch.device("cuda", gpus[rank.local].index) if gpus else torch.device("cpu")
    common.join(rank, "nccl" if gpus else "gloo", device, TIMEOUT_S)
    if not gpus:
        # While gloo connects, each rank prints words in pieces, which would mix with log lines.
        torch.distributed.barrier()
    common.begin_probe(options, rank, log)
    names, sizes = chosen(options, bool(gpus))
    own = {**common.device_labels(gpus, rank), "rank": str(rank.index)}
    labels = {"dtype": options.dtype, "ranks": str(rank.count), **({} if gpus else {"device": "cpu"})}
    if rank.index == 0:
        log.event("nccl_settings", {"NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "not set")})
    sweep = Sweep(options, rank, device, log, labels)
    sweep.run(names, sizes, own)
    if options.straggler_seconds > 0:
        find_straggler(options.straggler_seconds, rank, device, log, own)
    torch.distributed.destroy_process_group()
    if rank.index == 0 and options.nccl_tests == "on":
        if gpus:
            torch.cuda.empty_cache()
        compare(names, sizes, options.dtype, [gpu.uuid for gpu in gpus], log, labels, sweep.medians)
    common.mark_stop(rank)


class Steps:
    """Steps of a product and an all-reduce, as in training. Each part is timed where it runs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        size = STEP_SIZE[device.type]
        _, _, self.multiply = probe_gemm.product("fp32", size, device)
        self.out = torch.empty((size, size), device=device)
        self.reduced = torch.zeros(STEP_REDUCED // 4, device=device)

    def mark(self) -> Any:
        """Return this moment on the device's clock."""
        return common.mark_moment(self.device)

    def step(self) -> tuple[Any, Any, Any]:
        """Queue one step. Return the times of its start, of the product's end, and of its end."""
        begin = self.mark()
        self.multiply(self.out)
        computed = self.mark()
        torch.distributed.all_reduce(self.reduced)
        return begin, computed, self.mark()

    def run(self, seconds: float) -> tuple[list[float], list[float]]:
        """Return the seconds of each step's product, and of its all-reduce."""
        for _ in range(WARM_UP):
            warmed = self.step()[2]
        self._wait(warmed)
        began = time.perf_counter()
        self._wait(self.step()[2])
        count = agreed(seconds / (time.perf_counter() - began), self.device, 20, MOST_STEPS)
        marks = [self.step() for _ in range(count)]
        self._wait(marks[-1][2])
        return (
            [self._between(begin, computed) for begin, computed, _ in marks],
            [self._between(computed, end) for _, computed, end in marks],
        )

    def _wait(self, moment: Any) -> None:
        if self.device.type == "cuda":
            moment.synchronize()

    def _between(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) / 1e3 if self.device.type == "cuda" else end - begin


def lags(times_s: list[float]) -> list[float]:
    """Return the fraction by which each time exceeds the shortest one."""
    return [time_of_rank / min(times_s) - 1 for time_of_rank in times_s]


def find_straggler(seconds: float, rank: Rank, device: torch.device, log: Log, own: dict[str, str]) -> None:
    """Log how long each GPU computes and waits in steps, and which one the others wait for."""
    compute_s, exchange_s = Steps(device).run(seconds)
    mine = torch.tensor([statistics.fmean(compute_s), probe_gemm.slow_seconds(compute_s)], device=device)
    every = [torch.empty_like(mine) for _ in range(rank.count)]
    torch.distributed.all_gather(every, mine)
    means, slow = ([float(times[at]) for times in every] for at in (0, 1))
    log.measurement("step_compute_time", means[rank.index], "s", LOWER, **own)
    log.measurement("step_compute_time_p95", slow[rank.index], "s", LOWER, **own)
    # The exchange of the slowest GPU is the shortest, because all others wait for it.
    log.measurement("step_exchange_time", statistics.fmean(exchange_s), "s", LOWER, **own)
    log.measurement("compute_lag", lags(means)[rank.index], "fraction", LOWER, **own)
    log.measurement("compute_lag_p95", lags(slow)[rank.index], "fraction", LOWER, **own)
    if lags(means)[rank.index] == max(lags(means)):
        where = own.get("gpu", f"rank {rank.index}")
        common.say(
            f"slowest: {where}, its products take {100 * max(lags(means)):.2f} % longer than the fastest's"
        )


def nccl_tests_rows(text: str, in_place: bool) -> Iterator[tuple[int, float, int]]:
    """Yield size in bytes, bus bandwidth in GB/s, and wrong values of each row of an nccl-tests table.

    A row that was not checked ("N/A", such as alltoall in place) counts as one wrong value.
    """
    row = re.compile(r"\s*([0-9]+)\s+[0-9]+\s+\S+\s+\S+\s+-?[0-9]+" + r"\s+(\S+)" * 8 + r"\s*")
    for line in text.splitlines():
        # The columns are size, count, type, redop and root, and then time, algbw, busbw and #wrong, out
        # of place and in place.
        match = row.fullmatch(line)
        if match:
            speed, wrong = match.groups()[7 if in_place else 3 : 9 if in_place else 5]
            if re.fullmatch(r"[0-9]+\.?[0-9]*", speed):
                yield int(match[1]), float(speed), int(wrong) if wrong.isdigit() else 1


def compare(
    names: list[str],
    sizes: list[int],
    dtype: str,
    uuids: list[str],
    log: Log,
    labels: dict[str, str],
    medians: dict[tuple[str, int], float],
) -> None:
    """Run nccl-tests on the same GPUs, and log the ratio of our measurements to theirs."""
    wanted = [size for size in sizes if size >= BANDWIDTH_FROM]
    for name in names:
        program = shutil.which(f"{name}_perf")
        if program is None or not uuids or not wanted:
            log_absent(name, program, uuids, log)
            continue
        text, why = _run_nccl_tests(program, min(wanted), max(wanted), dtype, uuids)
        rows = list(nccl_tests_rows(text, COLLECTIVES[name].in_place))
        if not rows and not why:
            why = f"{program} printed no table of sizes"
        log.event("nccl_tests", {"collective": name, "state": "failed" if why else "ran", "why": why})
        if why:
            common.say(f"not compared with nccl-tests: {why}")
        for size, theirs, wrong in rows:
            if (ours := medians.get((name, size))) is not None:
                where = {"collective": name, "size_bytes": str(size), **labels}
                log_compared(ours, theirs, wrong, where, log)


def log_absent(name: str, program: str | None, uuids: list[str], log: Log) -> None:
    """Log why a collective is not compared, which is a missing program, no GPUs, or no large size."""
    why = "there are no GPUs" if not uuids else "no size of 8 MiB or more was measured"
    why = f"{name}_perf is not on PATH" if program is None else why
    common.say(f"not compared with nccl-tests: {why}")
    log.event("nccl_tests", {"collective": name, "state": "absent", "why": why})


def log_compared(ours: float, theirs: float, wrong: float, where: dict[str, str], log: Log) -> None:
    """Log the measurement of nccl-tests at one size, and the ratio of ours to it."""
    log.measurement("nccl_tests_busbw", theirs, "GB/s", HIGHER, **where)
    log.measurement("nccl_tests_wrong_values", wrong, "1", LOWER, **where)
    if theirs > 0:
        log.measurement("nccl_tests_ratio", ours / theirs, "ratio", HIGHER, **where)


def _run_nccl_tests(program: str, least: int, most: int, dtype: str, uuids: list[str]) -> tuple[str, str]:
    """Return the output of nccl-tests, and why it cannot be used ("" if it can)."""
    command = [program, "-b", str(least), "-e", str(most), "-f", "2", "-g", str(len(uuids)), "-c", "1"]
    command += ["-n", "50", "-w", "5", "-d", NCCL_TESTS_DTYPES[dtype]]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=NCCL_TESTS_LIMIT_S, env=environment, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return "", f"{program}: {error}"
    if process.returncode != 0:
        last = (process.stderr.strip() or process.stdout.strip() or "no output").splitlines()[-1]
        return "", f"{program} ended with status {process.returncode}: {last[:300]}"
    return process.stdout, ""


if __name__ == "__main__":
    sys.exit(common.run("probe_collectives", parser(), plan, probe, gpu_states=True))
