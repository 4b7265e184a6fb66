"""Fake nccl-tests' all_reduce_perf_mpi, which bin/all_reduce_perf_mpi of an image starts on each rank.

The ranks really connect and add up their numbers, so that a node that cannot take part is noticed. The rates
in the table are computed for a real system of the kind (DGXSYSTEM). Nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter

import numpy as np

from fake_ngc import faults
from fake_ngc.ranks import LostRankError, Ranks

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# (bytes per element, its name in the table)
TYPES = {"half": 2, "bfloat16": 2, "float": 4, "double": 8}
# (GB/s of bus bandwidth at the peak, bytes at which half of it is reached)
NVL72, NVLINK_NODE, NETWORK = (838.0, 110e6), (480.0, 20e6), (370.0, 60e6)


def number_of_bytes(text: str) -> int:
    """Return a size with an optional unit as a number: 40160460 for ``38.3M``."""
    unit = UNITS.get(text[-1:].upper())
    return int(float(text[:-1]) * unit) if unit else int(float(text))


def bandwidth(system: str, nodes: int, size: int) -> float:
    """Return the bus bandwidth in GB/s that an all-reduce of this size reaches on a real system."""
    peak, half = NVL72 if system.startswith("GB") else (NVLINK_NODE if nodes == 1 else NETWORK)
    return peak * size / (size + half)


def main() -> int:
    """Run the test on this rank, and return its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", dest="begin", type=number_of_bytes, default=32 << 20)
    parser.add_argument("-e", dest="end", type=number_of_bytes, default=32 << 20)
    parser.add_argument("-f", dest="factor", type=int, default=0)
    parser.add_argument("-d", dest="type", choices=TYPES, default="float")
    parser.add_argument("-G", dest="graph", type=int, default=0)
    parser.add_argument("-t", dest="threads", type=int, default=1)
    arguments = parser.parse_args()
    try:
        return table(arguments)
    except LostRankError as error:
        node = os.environ.get("SLURMD_NODENAME", "")
        print(
            f"{node}: Test NCCL failure all_reduce.cu:36 'remote process exited or "
            f"there was a network error': {error}"
        )
        return 3


def table(arguments: argparse.Namespace) -> int:
    """Connect the ranks, add up their numbers, and print the table on rank 0.

    Return 1 if the table has wrong values, or else 0.
    """
    ranks = Ranks.join()
    # A published script starts a rank for each GPU, and run.sub.in starts one for each node.
    gpus = max(1, int(os.environ.get("DGXNGPU") or 1) * len(set(ranks.nodes)) // ranks.size)
    fault = faults.fault(faults.wanted(None), ranks.nodes)
    own = np.full(1024, ranks.rank + 1.0)
    total = ranks.sum(own)
    wrong = int((total != sum(range(1, ranks.size + 1))).sum())
    if ranks.rank:
        ranks.close()
        return 0
    system = os.environ.get("DGXSYSTEM", "")
    nodes, name = len(set(ranks.nodes)), system.split("_")[0].replace("DGX", "") or "GPU"
    step = f"{arguments.factor}(factor)" if arguments.factor > 1 else "1048576(bytes)"
    print(
        f"# nThread {arguments.threads} nGpus 1 minBytes {arguments.begin} maxBytes {arguments.end} "
        f"step: {step} warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: {arguments.graph}\n"
        "#\n# Using devices"
    )
    device = 0
    seen: Counter[str] = Counter()
    for node in ranks.nodes:
        for _one in range(gpus):
            gpu = seen[node]
            seen[node] += 1
            print(
                f"#  Rank {device:2} Group  0 Pid {4000 + device:6} on {node} device {gpu:2} "
                f"[{0x1B + 0x20 * gpu:#04x}] NVIDIA {name}"
            )
            device += 1
    print("#")
    print(f"#{'out-of-place':>74}{'in-place':>33}          ")
    print(
        "#       size         count      type   redop    root     time   algbw   busbw #wrong"
        "     time   algbw   busbw #wrong"
    )
    print(f"#        (B)    (elements){'(us)  (GB/s)  (GB/s)':>51}{'(us)  (GB/s)  (GB/s)':>32}       ")
    if fault.name == "bad-nccl":
        wrong = 128
    size, average, bad = arguments.begin, [], 0
    while True:
        rate = bandwidth(system, nodes, size) * (0.2 if fault.name == "slow-nccl" else 1)
        cells = []
        for share in (1.0, 1.01):
            bus = rate * share
            algorithm = bus / (2 * (device - 1) / device if device > 1 else 1)
            cells.append(f"{size / algorithm / 1000:9.1f}{algorithm:8.2f}{bus:8.2f}{wrong:7}")
            average.append(bus)
            bad += 1 if wrong else 0
        width = TYPES[arguments.type]
        print(f"{size:12}{size // width:14}{arguments.type:>10}{'sum':>8}{-1:8}{cells[0]}  {cells[1]}")
        size = size * arguments.factor if arguments.factor > 1 else size + (1 << 20)
        if size > arguments.end or arguments.factor <= 1:
            break
    print(f"# Out of bounds values : {bad} {'FAILED' if bad else 'OK'}")
    print(f"# Avg bus bandwidth    : {sum(average) / len(average):.3f} \n#\n", flush=True)
    ranks.close()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
