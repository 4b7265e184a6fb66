#!/usr/bin/env python3
"""Measure copies from each GPU to each other GPU of the node, one pair at a time, one way.

Random data; what arrives is compared. A single GPU has no pairs: that is said and nothing is measured.
"""

from __future__ import annotations

import argparse
import functools
import sys

import common
from common import HIGHER, LOWER, Log, Rank

if common.IS_RANK:
    import torch


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    arguments = common.probe_parser(__doc__, 10.0)
    arguments.add_argument("--size-mib", type=int, default=1024, help="size of a copy (default: %(default)s)")
    return arguments


def plan(options: argparse.Namespace) -> int:
    """Return the number of ranks: one, which drives all GPUs."""
    if options.device == "cpu" or options.gpus == 0:
        raise common.Refusal(common.EXIT_USAGE, "peer bandwidth needs GPUs; without one nothing is measured")
    if options.size_mib < 1:
        raise common.Refusal(common.EXIT_USAGE, "--size-mib must be at least 1")
    options.device = "gpu"
    common.choose_gpus(options.gpus)
    return 1


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Measure every ordered pair."""
    options.device = "gpu"
    _, found = common.begin_probe(options, rank, log)
    pairs = [(source, target) for source in found for target in found if source != target]
    if not pairs:
        common.say("one GPU: there are no pairs to measure")
    size_bytes = options.size_mib << 20
    seconds = options.seconds / max(1, len(pairs))
    for done, (source, target) in enumerate(pairs):
        here, there = torch.device("cuda", source.index), torch.device("cuda", target.index)
        sent = torch.randint(0, 256, (size_bytes,), dtype=torch.uint8, device=here)
        got = torch.zeros(size_bytes, dtype=torch.uint8, device=there)
        copy = functools.partial(got.copy_, sent, non_blocking=True)
        time_s = common.median_seconds(copy, here, seconds, most=20)
        wrong = int((got.to(here) != sent).sum())
        labels = {"from": source.uuid, "to": target.uuid, "pair": f"{source.index}-{target.index}"}
        log.measurement("peer_copy", size_bytes / time_s / 1e9, "GB/s", HIGHER, **labels)
        log.measurement("wrong_values", wrong, "1", LOWER, **labels)
        if not torch.cuda.can_device_access_peer(here, there):
            common.say(f"pair {labels['pair']} has no peer access: the copy went through the host")
        log.progress("peer", done + 1, len(pairs))
    log.measurement("pairs", len(pairs), "pairs")
    common.mark_stop(rank)


if __name__ == "__main__":
    sys.exit(common.run("probe_peer_bandwidth", parser(), plan, probe, gpu_states=True))
