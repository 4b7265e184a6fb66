#!/usr/bin/env python3
"""Measure memory bandwidth with copy (b = a) and triad (c = a + s b), from bytes read and written.

The benchmark memory-bandwidth and nights (validate.yml) start this program. There is one process per GPU,
all at once, or the CPU with all its threads. The arrays are far larger than any cache and contain random
data. Every written value is checked.
"""

from __future__ import annotations

import argparse
import math
import sys

import common
from common import HIGHER, LOWER, Log, Rank

if common.IS_RANK:
    import torch

GIB = 1 << 30
SCALE = 3.0
CHECK_CHUNK = 1 << 26
"""Values compared at a time, so that the check needs little memory."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = common.probe_parser(__doc__, 4.0)
    arguments.add_argument(
        "--size-mib",
        type=int,
        help="size of one array (default: 4096 on a GPU, 256 on the CPU; less if memory is short)",
    )
    return arguments


def plan(options: argparse.Namespace) -> int:
    """Check the options. Return the number of ranks."""
    if options.size_mib is not None and options.size_mib < 1:
        raise common.Refusal(common.EXIT_USAGE, "--size-mib must be at least 1")
    return max(1, len(common.chosen_by_device(options.device, options.gpus)))


def array_bytes(options: argparse.Namespace, device: torch.device) -> int:
    """Return the size of one array in bytes, on a GPU at most a fifth of its free memory.

    There are three arrays.
    """
    if device.type == "cuda":
        return min((options.size_mib or 4096) << 20, torch.cuda.mem_get_info(device)[0] // 5)
    return (options.size_mib or 256) << 20


def count_wrong(product: torch.Tensor, a: torch.Tensor, b: torch.Tensor | None, scale: float) -> int:
    """Return the number of values that differ from ``a`` or, if there is a ``b``, from ``a + scale b``."""
    wrong = 0
    for start in range(0, product.numel(), CHECK_CHUNK):
        part = slice(start, start + CHECK_CHUNK)
        if b is None:
            wrong += int((product[part] != a[part]).sum())
        else:
            expected = a[part].double() + scale * b[part].double()
            wrong += int((~((product[part] - expected).abs() <= 1e-5)).sum())
    return wrong


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Measure as one rank, on one device."""
    device, gpus = common.begin_probe(options, rank, log)
    labels = common.device_labels(gpus, rank)
    values = array_bytes(options, device) // 4
    a, b = torch.rand(values, device=device), torch.rand(values, device=device)
    c = torch.full((values,), math.nan, device=device)

    times_s = common.sample_seconds(lambda: c.copy_(a), device, options.seconds / 2)
    speed = common.spread_of(times_s).speeds(2 * 4 * values / 1e12)
    log.sampled("memory_copy", speed.median, "TB/s", HIGHER, speed, **labels)
    wrong = count_wrong(c, a, None, 0.0)
    log.progress("memory_copy", 1, 2)

    c.fill_(math.nan)
    times_s = common.sample_seconds(lambda: torch.add(a, b, alpha=SCALE, out=c), device, options.seconds / 2)
    speed = common.spread_of(times_s).speeds(3 * 4 * values / 1e12)
    log.sampled("memory_triad", speed.median, "TB/s", HIGHER, speed, **labels)
    wrong += count_wrong(c, a, b, SCALE)
    log.measurement("wrong_values", wrong, "1", LOWER, **labels)
    common.say(f"arrays of {4 * values / GIB:.2f} GiB")
    common.mark_stop(rank)


if __name__ == "__main__":
    sys.exit(common.run("probe_memory_bandwidth", parser(), plan, probe, gpu_states=True))
