#!/usr/bin/env python3
"""Measure all-reduce over a sweep of sizes, and check every value of every size.

The benchmark all-reduce and nights (validate.yml) start this program. There is one process per GPU with NCCL,
or several processes with gloo on the CPU, on one node or several. The bus bandwidth is that of nccl-tests,
size / time x 2 (n - 1) / n. The bandwidth is reported for each size, because an average over sizes means
nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import re
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
"""Values made or checked at a time."""

HIGHEST = 4
"""Inputs are whole numbers up to this, so that sums are exact in every format and any order."""

MOST_SAMPLES = 20
BURST_S = 0.002
DECADES = 56
"""Small reductions are timed in bursts, as they follow each other in training. Every sum multiplies the
numbers by the number of ranks. From 1e-20, they may grow by this number of powers of ten and remain
finite."""
WARM_UP = 3
WARM_UP_S = 0.05
"""Seconds of warm-up. Short collectives would end before the clocks of an idle GPU have risen."""
MOST_WARM_UPS = 1000
HEAD_START = 2.0
"""Factor by which the GPUs wait longer than the host needs to queue a burst."""
CLOCK_HZ = 2e9
"""Approximate clock of a GPU. At a lower clock, it waits longer."""
TIMEOUT_S = 120.0


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    arguments = common.probe_parser(__doc__, 10.0)
    arguments.add_argument("--ranks", type=int, default=2, help="processes on the CPU (default: %(default)s)")
    arguments.add_argument(
        "--sizes-mib", help="comma-separated sizes (default: 8 ... 8192 by doubling; 1,4,16 on CPU)"
    )
    arguments.add_argument("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    arguments.add_argument("--nodes", type=int, default=1, help="nodes that reduce together")
    arguments.add_argument("--node-rank", type=int, default=0, help="which of them this is, from 0")
    arguments.add_argument(
        "--rendezvous", default="", metavar="HOST:PORT", help="of node 0, with several nodes"
    )
    arguments.add_argument(
        "--mnnvl",
        action="store_true",
        help="several nodes: fail unless NCCL joins all ranks by NVLink (NVL72)",
    )
    return arguments


def mnnvl_clique(text: str) -> int:
    """Return how many ranks NCCL connects with NVLink between nodes, from its own log, or 0."""
    sizes = re.findall(r"\bMNNVL 1 cliqueId \w+ cliqueSize (\d+)\b", text)
    return int(sizes[-1]) if sizes else 0


def ask_nccl(folder: Path) -> Path:
    """Let NCCL log how it connects this rank with others. Return the log's path."""
    # Do not use a name that another user of the node could foresee and make a link of.
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
    try:
        joined = mnnvl_clique(path.read_text(errors="replace"))
        path.unlink()
    except OSError:
        joined = 0
    alone = torch.tensor(int(joined < rank.count), device=device)
    torch.distributed.all_reduce(alone)
    if int(alone.item()):
        raise Refusal(
            common.EXIT_ERROR,
            f"NCCL joins {rank.count - int(alone.item())} of {rank.count} ranks by NVLink between nodes, the "
            "others by network cards: see nvidia-imex-ctl -N, /dev/nvidia-caps-imex-channels, and clique and "
            "cluster UUID in nvidia-smi -q",
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
        raise Refusal(common.EXIT_USAGE, f"--sizes-mib {options.sizes_mib}: not positive whole numbers")
    return [int(part) for part in parts]


def plan(options: argparse.Namespace) -> int:
    """Return the number of ranks."""
    gpus = common.chosen_by_device(options.device, options.gpus)
    sizes_mib(options, bool(gpus))
    ranks = len(gpus) or options.ranks
    if not 0 <= options.node_rank < options.nodes or (options.nodes > 1 and ":" not in options.rendezvous):
        raise Refusal(
            common.EXIT_USAGE,
            "several nodes need --nodes, --node-rank from 0, and --rendezvous HOST:PORT of node 0",
        )
    if ranks * options.nodes < 2:
        raise Refusal(
            common.EXIT_NO_GPU if gpus else common.EXIT_USAGE,
            f"all-reduce needs at least 2 ranks, {ranks} would run; use --device cpu --ranks 2 or more GPUs",
        )
    return ranks


def numbers(rank: int, chunk: int, values: torch.Tensor, seed: int) -> torch.Tensor:
    """Fill ``values`` with the random integers of this rank and chunk, which any rank can compute."""
    generator = torch.Generator(values.device).manual_seed(seed * 1_000_003 + rank * 10_007 + chunk)
    return values.random_(-HIGHEST, HIGHEST + 1, generator=generator)


def fill(buffer: torch.Tensor, rank: Rank, seed: int) -> None:
    """Fill the buffer with this rank's numbers."""
    for index, part in enumerate(buffer.split(CHUNK)):
        numbers(rank.index, index, part, seed)


def count_wrong(buffer: torch.Tensor, rank: Rank, seed: int) -> int:
    """Count values that are not the sum over all ranks, made again here."""
    wrong = 0
    for index, part in enumerate(buffer.split(CHUNK)):
        expected = torch.zeros_like(part)
        scratch = torch.empty_like(part)
        for other in range(rank.count):
            expected += numbers(other, index, scratch, seed)
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
        prepare: A function that prepares its buffers before each sample.
        device: The device of the buffers. On a GPU, times come from its own events.
        seconds: The duration of the measurement. At least five samples are taken.
        most_in_burst: The largest number of small collectives in a burst between two preparations.
        most: The largest number of samples.
    """

    def several(count: int) -> None:
        for _ in range(count):
            work = queue()
        work.wait()

    def once() -> float:
        torch.distributed.barrier()
        began = time.perf_counter()
        several(1)
        return time.perf_counter() - began

    def host_and_all(count: int) -> tuple[float, float]:
        torch.cuda.synchronize()
        began = time.perf_counter()
        several(count)
        queued = time.perf_counter()
        torch.cuda.synchronize()
        return (queued - began) / count, (time.perf_counter() - began) / count

    prepare()
    for _ in range(WARM_UP):
        once()
    if device.type != "cuda":
        return [once() for _ in range(agreed(seconds / once(), device, 5, most))]
    _, alone = host_and_all(WARM_UP)
    queueing, alone = host_and_all(agreed(WARM_UP_S / alone, device, WARM_UP, MOST_WARM_UPS))
    inner = agreed(BURST_S / alone, device, 1, most_in_burst)
    count = agreed(seconds / (alone * inner), device, 5, most)
    meet = torch.zeros(1, device=device)
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for begin, end in marks:
        prepare()
        # The host takes longer to start a small collective than the GPU takes to execute it. The GPUs
        # therefore wait until the burst is queued, and then for each other, so that the time is only
        # theirs.
        torch.cuda._sleep(int(CLOCK_HZ * HEAD_START * queueing * inner))
        torch.distributed.all_reduce(meet)
        begin.record()
        several(inner)
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 / inner for begin, end in marks]


def most_sums(ranks: int) -> int:
    """Return how often numbers of :func:`refill` can be summed over this number of ranks."""
    return int(DECADES / math.log10(ranks))


def times_s(buffer: torch.Tensor, seconds: float) -> common.Spread:
    """Return the spread of the times of one all-reduce in seconds.

    Ranks agree on the time of the slowest one.
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
    """Return the spread of times, each of whose parts is the slowest rank's.

    All ranks take the same number of times.
    """
    mine = common.spread_of(samples)
    low, median, high = (slowest(sample, device) for sample in (mine.low, mine.median, mine.high))
    return common.Spread(mine.count, low, median, high)


def refill(buffer: torch.Tensor) -> None:
    """Fill the buffer with random numbers that can be summed often before they overflow."""
    buffer.normal_().mul_(1e-20)


def agreed(count: float, device: torch.device, least: int, most: int) -> int:
    """Return a number within bounds for all ranks, which is the smallest that any of them would use."""
    mine = torch.tensor(int(max(least, min(most, count))), device=device)
    torch.distributed.all_reduce(mine, torch.distributed.ReduceOp.MIN)
    return int(mine.item())


def fits(size_bytes: int, device: torch.device) -> bool:
    """Return whether the buffer, NCCL and the check fit into the memory of every rank."""
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
    """Return a buffer that was reduced once and whose values are all known."""
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
    is_joined = options.mnnvl and options.nodes > 1 and bool(gpus)
    # Before NCCL starts, which reads it once.
    nccl_log = ask_nccl(Path(tempfile.gettempdir())) if is_joined else None
    common.join(rank, "nccl" if gpus else "gloo", device, TIMEOUT_S)
    common.begin_probe(options, rank, log)
    sizes = sizes_mib(options, bool(gpus))
    where = {} if gpus else {"device": "cpu"}
    # Within a node and between nodes are other wires, and never compared.
    name = "all_reduce_busbw"
    if options.nodes > 1:
        name, where = "fabric_busbw", where | {"nodes": str(options.nodes)}
    for index, size in enumerate(sizes):
        size_bytes = size * MIB
        if not fits(size_bytes, device):
            if rank.index == 0:
                common.say(f"{size} MiB does not fit into the memory of every GPU; left out")
            continue
        buffer = filled(size_bytes, options, rank, device)
        if nccl_log is not None:
            require_mnnvl(nccl_log, rank, device)
            nccl_log = None
        wrong = count_wrong_of_all(buffer, options, rank)
        taken = times_s(buffer, options.seconds / len(sizes))
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
