#!/usr/bin/env python3
"""Measure all-reduce over a sweep of sizes. Before the timing of a size, check every value of one reduction.

The benchmark all-reduce and nights (validate.yml) start this program, and probe_collectives.py uses its
functions. On GPUs, one process per GPU uses NCCL. On the CPU, `--ranks` processes use gloo. Both work on one
node or on several. The bus bandwidth is defined as in nccl-tests: size / time x 2 (n - 1) / n, with n ranks.
It is reported for each size, because it depends on the size.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
from common import HIGHER, LOWER, Log, Rank, Refusal

if common.IS_RANK:
    import torch

MIB = 1 << 20
GPU_SIZES_MIB = tuple(8 << step for step in range(11))
CPU_SIZES_MIB = (1, 4, 16)
DTYPES = ("float32", "bfloat16")
CHUNK = 1 << 26
"""Number of values that are made or checked at a time."""

LARGEST_INPUT = 4
"""Largest absolute input. Inputs are integers, so that sums are exact in any order."""
EXACT_SUM = 256
"""Largest sum up to which bfloat16 is exact."""
MOST_SIGMAS = 7
"""Standard deviations of a random sum that no value of a reduction reaches."""

MOST_SAMPLES = 20
"""Largest number of timed samples per size."""
LEAST_SAMPLES = 5
"""Smallest number of timed samples per size, even if they take longer than the measurement should."""
BURST_S = 0.002
"""Duration of a burst. Small reductions are timed in bursts, as they follow each other in training."""
DECADES = 56
"""Powers of ten by which numbers may grow from 1e-20 and remain finite. Each sum multiplies them by the
number of ranks."""
WARM_UP = 3
"""Number of reductions before the first timed one."""
WARM_UP_S = 0.05
"""Seconds of warm-up. Short collectives would end before the clocks of an idle GPU have risen."""
MOST_WARM_UPS = 1000
WAIT_FACTOR = 2.0
"""Factor by which the GPUs wait longer than the host needs to queue a burst."""
CLOCK_HZ = 2e9
"""Approximate clock of a GPU. At a lower clock, it waits longer."""
TIMEOUT_S = 120.0
"""Seconds that a rank waits for the others before it fails."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = common.probe_parser(__doc__, 10.0)
    arguments.add_argument("--ranks", type=int, default=2, help="processes on the CPU (default: %(default)s)")
    arguments.add_argument(
        "--sizes-mib", help="comma-separated sizes (default: 8 ... 8192 by doubling; 1,4,16 on CPU)"
    )
    arguments.add_argument("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    arguments.add_argument("--nodes", type=int, default=1, help="nodes that reduce together")
    arguments.add_argument("--node-rank", type=int, default=0, help="number of this node, from 0")
    arguments.add_argument(
        "--rendezvous", default="", metavar="HOST:PORT", help="address of node 0, for several nodes"
    )
    arguments.add_argument(
        "--mnnvl",
        action="store_true",
        help="several nodes: fail if NCCL does not connect all ranks with NVLink (NVL72)",
    )
    return arguments


def mnnvl_clique(text: str) -> int:
    """Return how many ranks NCCL connects with NVLink between nodes, according to its log, or 0 without
    such a line.
    """
    sizes = re.findall(r"\bMNNVL 1 cliqueId \w+ cliqueSize (\d+)\b", text)
    return int(sizes[-1]) if sizes else 0


def enable_nccl_log(folder: Path) -> Path:
    """Let NCCL log how it connects this rank with others. Return the log's path."""
    # Use a random name, because another user of the node could place a symbolic link at a known one.
    handle, name = tempfile.mkstemp(prefix="rackproof-nccl-", suffix=".log", dir=str(folder))
    os.close(handle)
    path = Path(name)
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT", NCCL_DEBUG_FILE=str(path))
    return path


def require_mnnvl(path: Path, rank: Rank, device: torch.device) -> None:
    """Fail on every rank unless NCCL connects all of them with NVLink.

    NCCL would otherwise use network cards, without a message.

    Raises:
        Refusal: Some ranks are not connected with NVLink.
    """
    obstacle = ""
    try:
        joined = mnnvl_clique(path.read_text(errors="replace"))
        path.unlink()
    except OSError as error:
        joined, obstacle = 0, f"{socket.gethostname()}: the log of NCCL cannot be read: {error}"
    incomplete = torch.tensor(int(joined < rank.count), device=device)
    torch.distributed.all_reduce(incomplete)
    if int(incomplete.item()):
        raise Refusal(common.EXIT_ERROR, obstacle or describe_clique(joined, rank.count))


def describe_clique(joined: int, ranks: int) -> str:
    """Return the message for a rank if NCCL does not connect all ranks with NVLink."""
    size = f"the clique of this rank has {joined}" if joined else "this rank has no clique"
    if joined == ranks:
        size = "another rank has a smaller clique or no log"
    return (
        f"{socket.gethostname()}: NCCL does not connect all {ranks} ranks with NVLink between nodes "
        f"({size}). Check nvidia-imex-ctl -N, /dev/nvidia-caps-imex-channels, and clique and cluster UUID in "
        "nvidia-smi -q on each node"
    )


def sizes_mib(options: argparse.Namespace, on_gpu: bool) -> list[int]:
    """Return the sizes to measure in MiB.

    Raises:
        Refusal: A size is not a positive whole number.
    """
    if not options.sizes_mib:
        return list(GPU_SIZES_MIB if on_gpu else CPU_SIZES_MIB)
    parts = options.sizes_mib.split(",")
    if not all(part.isdigit() and int(part) for part in parts):
        raise Refusal(
            common.EXIT_USAGE,
            f"--sizes-mib {options.sizes_mib}: not positive whole numbers, such as 8,64,512",
        )
    return [int(part) for part in parts]


def plan(options: argparse.Namespace) -> int:
    """Return the number of ranks on this node.

    Raises:
        Refusal: The arguments are wrong, or fewer than two ranks would run.
    """
    gpus = common.chosen_by_device(options.device, options.gpus)
    sizes_mib(options, bool(gpus))
    ranks = len(gpus) or options.ranks
    if not 0 <= options.node_rank < options.nodes:
        raise Refusal(
            common.EXIT_USAGE,
            f"--node-rank {options.node_rank} must be at least 0 and less than --nodes ({options.nodes})",
        )
    if options.nodes > 1 and ":" not in options.rendezvous:
        raise Refusal(
            common.EXIT_USAGE,
            "several nodes need --rendezvous HOST:PORT: an address of node 0, and a free port of it",
        )
    if ranks * options.nodes < 2:
        raise Refusal(
            common.EXIT_NO_GPU if gpus else common.EXIT_USAGE,
            f"all-reduce needs at least 2 ranks, but only {ranks} would run. Use 2 or more GPUs, or "
            "--device cpu --ranks 2",
        )
    return ranks


def largest_input(ranks: int) -> int:
    """Return the largest absolute input with which random sums over a number of ranks remain exact.

    It is at least 1. Sums over more than about 2,000 ranks are then no longer exact in bfloat16.
    """
    for largest in range(LARGEST_INPUT, 1, -1):
        # The variance of uniform integers from -n to n is n * (n + 1) / 3.
        if MOST_SIGMAS * math.sqrt(ranks * largest * (largest + 1) / 3) <= EXACT_SUM:
            return largest
    return 1


def numbers(rank: int, ranks: int, chunk: int, values: torch.Tensor, seed: int) -> torch.Tensor:
    """Fill ``values`` with the random integers of a rank and chunk. Every rank can compute them."""
    # Two primes give ranks and chunks different seeds.
    generator = torch.Generator(values.device).manual_seed(seed * 1_000_003 + rank * 10_007 + chunk)
    largest = largest_input(ranks)
    return values.random_(-largest, largest + 1, generator=generator)


def fill(buffer: torch.Tensor, rank: Rank, seed: int) -> None:
    """Fill the buffer with this rank's numbers."""
    for index, part in enumerate(buffer.split(CHUNK)):
        numbers(rank.index, rank.count, index, part, seed)


def count_wrong(buffer: torch.Tensor, rank: Rank, seed: int) -> int:
    """Count the values that differ from the sum over all ranks, which this function computes again."""
    wrong = 0
    for index, part in enumerate(buffer.split(CHUNK)):
        expected = torch.zeros_like(part)
        scratch = torch.empty_like(part)
        for other in range(rank.count):
            expected += numbers(other, rank.count, index, scratch, seed)
        wrong += int((part != expected).sum())
    return wrong


def samples_s(
    queue: Callable[[], Any],
    prepare: Callable[[], None],
    device: torch.device,
    seconds: float,
    most_in_burst: int,
    most: int = MOST_SAMPLES,
) -> list[float]:
    """Return times of one collective in seconds by this rank's clock.

    All ranks get the same number of times.

    Args:
        queue: A function that queues the collective, and returns the handle to wait for.
        prepare: A function that prepares the buffers before each sample.
        device: The device of the buffers. On a GPU, the GPU's own events give the times.
        seconds: The duration of the measurement. At least LEAST_SAMPLES are taken.
        most_in_burst: The largest number of small collectives in a burst between two preparations.
        most: The largest number of samples.
    """

    def queue_many(count: int) -> None:
        for _ in range(count):
            work = queue()
        work.wait()

    def time_one() -> float:
        torch.distributed.barrier()
        began = time.perf_counter()
        queue_many(1)
        return time.perf_counter() - began

    def host_and_total_s(count: int) -> tuple[float, float]:
        torch.cuda.synchronize()
        began = time.perf_counter()
        queue_many(count)
        queued = time.perf_counter()
        torch.cuda.synchronize()
        return (queued - began) / count, (time.perf_counter() - began) / count

    prepare()
    for _ in range(WARM_UP):
        time_one()
    if device.type != "cuda":
        return [time_one() for _ in range(agreed(seconds / time_one(), device, LEAST_SAMPLES, most))]
    _, alone = host_and_total_s(WARM_UP)
    queueing, alone = host_and_total_s(agreed(WARM_UP_S / alone, device, WARM_UP, MOST_WARM_UPS))
    inner = agreed(BURST_S / alone, device, 1, most_in_burst)
    count = agreed(seconds / (alone * inner), device, LEAST_SAMPLES, most)
    gate = torch.zeros(1, device=device)
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for begin, end in marks:
        prepare()
        # The host takes longer to start a small collective than the GPU takes to execute it. The GPUs
        # therefore wait until the burst is queued, and then for each other, so that the time contains
        # only the work of the GPUs.
        torch.cuda._sleep(int(CLOCK_HZ * WAIT_FACTOR * queueing * inner))
        torch.distributed.all_reduce(gate)
        begin.record()
        queue_many(inner)
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 / inner for begin, end in marks]


def most_sums(ranks: int) -> int:
    """Return how many successive sums over the ranks keep the numbers of :func:`refill` finite."""
    return int(DECADES / math.log10(ranks))


def spread_s(buffer: torch.Tensor, seconds: float) -> common.Spread:
    """Return the spread of the times of one all-reduce in seconds.

    All ranks get the time of the slowest rank.
    """
    samples = samples_s(
        lambda: torch.distributed.all_reduce(buffer, async_op=True),
        lambda: refill(buffer),
        buffer.device,
        seconds,
        most_sums(torch.distributed.get_world_size()),
    )
    return slowest_spread(samples, buffer.device)


def slowest(mine: float, device: torch.device) -> float:
    """Return the largest of the ranks' times."""
    time_of_all = torch.tensor(mine, device=device)
    torch.distributed.all_reduce(time_of_all, torch.distributed.ReduceOp.MAX)
    return float(time_of_all.item())


def slowest_spread(samples: list[float], device: torch.device) -> common.Spread:
    """Return a spread whose low, median and high are the largest ones of all ranks.

    All ranks have equally many samples.
    """
    mine = common.spread_of(samples)
    low, median, high = (slowest(sample, device) for sample in (mine.low, mine.median, mine.high))
    return common.Spread(mine.count, low, median, high)


def refill(buffer: torch.Tensor) -> None:
    """Fill the buffer with random numbers that can be summed often before they overflow."""
    buffer.normal_().mul_(1e-20)


def agreed(count: float, device: torch.device, least: int, most: int) -> int:
    """Limit a number to the bounds, and return the smallest result of all ranks."""
    mine = torch.tensor(int(max(least, min(most, count))), device=device)
    torch.distributed.all_reduce(mine, torch.distributed.ReduceOp.MIN)
    return int(mine.item())


def fits(size_bytes: int, device: torch.device) -> bool:
    """Return whether the buffer, NCCL and the check fit into the memory of every rank.

    On the CPU, every size counts as fitting.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 4 * size_bytes
    flag = torch.tensor(int(size_bytes * 1.3 + (2 << 30) < free or device.type == "cpu"), device=device)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MIN)
    return bool(flag.item())


def device_of(gpus: list[common.Gpu], rank: Rank) -> torch.device:
    """Return the device of a rank, ready for use. Without GPUs, it is the CPU."""
    if not gpus:
        torch.set_num_threads(max(1, torch.get_num_threads() // rank.count))
        return torch.device("cpu")
    common.require_cuda()
    device = torch.device("cuda", gpus[rank.local].index)
    torch.cuda.set_device(device)
    return device


def filled(size_bytes: int, options: argparse.Namespace, rank: Rank, device: torch.device) -> torch.Tensor:
    """Return a buffer with the result of one reduction."""
    kind = getattr(torch, options.dtype)
    buffer = torch.empty(size_bytes // kind.itemsize, dtype=kind, device=device)
    fill(buffer, rank, options.seed)
    torch.distributed.all_reduce(buffer)
    return buffer


def count_wrong_of_all(buffer: torch.Tensor, options: argparse.Namespace, rank: Rank) -> int:
    """Return how many values are wrong on all ranks together."""
    wrong = torch.tensor(count_wrong(buffer, rank, options.seed), device=buffer.device)
    torch.distributed.all_reduce(wrong)
    return int(wrong.item())


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Measure as one rank. Rank 0 logs."""
    gpus = common.chosen_by_device(options.device, options.gpus)
    device = device_of(gpus, rank)
    requires_mnnvl = options.mnnvl and options.nodes > 1 and bool(gpus)
    # NCCL reads these variables only at its start, so set them before.
    nccl_log = enable_nccl_log(Path(tempfile.gettempdir())) if requires_mnnvl else None
    common.join(rank, "nccl" if gpus else "gloo", device, TIMEOUT_S)
    common.begin_probe(options, rank, log)
    sizes = sizes_mib(options, bool(gpus))
    where = {} if gpus else {"device": "cpu"}
    # Links within a node and links between nodes differ, so their metrics have different names.
    name = "all_reduce_busbw"
    if options.nodes > 1:
        name, where = "fabric_busbw", where | {"nodes": str(options.nodes)}
    for index, size in enumerate(sizes):
        size_bytes = size * MIB
        if not fits(size_bytes, device):
            if rank.index == 0:
                common.say(f"size {size} MiB is left out: a GPU has too little free memory")
            continue
        buffer = filled(size_bytes, options, rank, device)
        if nccl_log is not None:
            require_mnnvl(nccl_log, rank, device)
            nccl_log = None
        wrong = count_wrong_of_all(buffer, options, rank)
        taken = spread_s(buffer, options.seconds / len(sizes))
        if rank.index == 0:
            labels = {
                "size_bytes": str(size_bytes),
                "dtype": options.dtype,
                "ranks": str(rank.count),
                **where,
            }
            speed = taken.speeds(size_bytes * 2 * (rank.count - 1) / rank.count / 1e9)
            log.sampled(name, speed.median, "GB/s", HIGHER, speed, **labels)
            log.measurement("wrong_values", wrong, "1", LOWER, **labels)
            log.progress("all_reduce", index + 1, len(sizes))
        del buffer
    common.mark_stop(rank)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(common.run("probe_all_reduce", parser(), plan, probe, gpu_states=True))
