#!/usr/bin/env python3
"""Measure the speed of copies between the GPUs of a node, and count the bytes that arrive wrong.

The benchmark peer-bandwidth and validate.yml start this program. It copies random data from each GPU to each
other one, one pair at a time. With `--together on`, it then copies both ways, and between all pairs at once.
After the last copy of a pair, it compares the received data with the sent data.

For each pair, it logs peer_copy (GB/s) and wrong_values. It also logs the number of pairs, which is 0 if
there is only one GPU.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable
from typing import Any

import common
from common import HIGHER, LOWER, Gpu, Log, Rank

if common.IS_RANK:
    import torch

TOGETHER = ("both_ways", "all_at_once")
"""Ways of copying several pairs at once, see :func:`rounds`."""
FEWEST_COPIES, MOST_COPIES = 5, 40
"""Bounds for the number of copies of a pair at once."""
GATE_CYCLES = 100_000
"""GPU cycles (about 50 µs) that queueing one copy may take. Copies wait until all of them are queued, so that
they start together. 100 such periods are added."""

Pair = tuple[Gpu, Gpu]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = common.probe_parser(__doc__, 10.0)
    arguments.add_argument("--size-mib", type=int, default=1024, help="size of a copy (default: %(default)s)")
    arguments.add_argument(
        "--together",
        choices=("on", "off"),
        default="off",
        help="also copy both ways, and between all pairs at once (default: %(default)s)",
    )
    return arguments


def plan(options: argparse.Namespace) -> int:
    """Check the options. Return 1, because one rank drives all GPUs."""
    if options.device == "cpu" or options.gpus == 0:
        raise common.Refusal(common.EXIT_USAGE, "the peer bandwidth cannot be measured without GPUs")
    if options.size_mib < 1:
        raise common.Refusal(common.EXIT_USAGE, "--size-mib must be at least 1")
    options.device = "gpu"
    common.choose_gpus(options.gpus)
    return 1


def ordered_pairs(gpus: list[Gpu]) -> list[Pair]:
    """Return all pairs of different GPUs, in both orders."""
    return [(source, target) for source in gpus for target in gpus if source != target]


def rounds(gpus: list[Gpu], how: str) -> list[list[Pair]]:
    """Return the pairs that copy at the same time, as a list of rounds.

    A round of ``both_ways`` has both directions between two GPUs. ``all_at_once`` has one round of all pairs.
    """
    pairs = ordered_pairs(gpus)
    if how == "all_at_once":
        return [pairs] if pairs else []
    return [[(gpu, other), (other, gpu)] for gpu, other in pairs if gpu.index < other.index]


def labels_of(pair: Pair) -> dict[str, str]:
    """Return the labels of a measurement of a pair."""
    source, target = pair
    return {"from": source.uuid, "to": target.uuid, "pair": f"{source.index}-{target.index}"}


def slowest_pair(rates: dict[str, float]) -> tuple[str, float]:
    """Return the slowest pair, and the fraction by which it is slower than the median."""
    pair = min(rates, key=lambda key: rates[key])
    return pair, 1 - rates[pair] / statistics.median(rates.values())


class Copy:
    """The copies of one pair, on streams of their own, so that other pairs can copy at the same time."""

    def __init__(self, pair: Pair, sent: torch.Tensor) -> None:
        self.pair, self.sent = pair, sent
        source, target = pair
        self.here, self.there = torch.device("cuda", source.index), torch.device("cuda", target.index)
        self.got = torch.zeros_like(sent, device=self.there)
        self.outgoing, self.incoming = torch.cuda.Stream(self.here), torch.cuda.Stream(self.there)
        self.marks: list[Any] = []

    def queue(self, count: int, gate: Any) -> None:
        """Queue copies that begin when the gate opens."""
        # PyTorch orders a copy after the current streams of both devices, so both wait for the gate.
        with torch.cuda.stream(self.incoming), torch.cuda.stream(self.outgoing):
            self.incoming.wait_event(gate)
            self.outgoing.wait_event(gate)
            self.marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self.marks[0].record(self.outgoing)
            for _ in range(count):
                self.got.copy_(self.sent, non_blocking=True)
            self.marks[1].record(self.outgoing)

    def seconds(self) -> float:
        """Return how long the queued copies took."""
        self.marks[1].synchronize()
        return float(self.marks[0].elapsed_time(self.marks[1])) / 1e3

    def count_wrong(self) -> int:
        """Return the number of bytes that did not arrive as they were sent."""
        return int((self.got.to(self.here) != self.sent).sum())


def copy_together(copies: list[Copy], count: int) -> list[float]:
    """Run copies of several pairs at once. Return the seconds of each pair."""
    for copy in copies:
        copy.got.zero_()
    for device in {copy.here for copy in copies} | {copy.there for copy in copies}:
        torch.cuda.synchronize(device)
    with torch.cuda.device(copies[0].here):
        # This delay occupies the stream until all copies are queued. Then the gate opens.
        torch.cuda._sleep(GATE_CYCLES * (100 + len(copies) * count))
        gate = torch.cuda.Event()
        gate.record()
    for copy in copies:
        copy.queue(count, gate)
    return [copy.seconds() for copy in copies]


def measure_together(
    how: str, gpus: list[Gpu], sent: dict[int, torch.Tensor], seconds: float, log: Log
) -> None:
    """Measure the pairs of each round at the same time, and log the rate of each pair."""
    every = rounds(gpus, how)
    rates: dict[str, float] = {}
    for pairs in every:
        copies = [Copy(pair, sent[pair[0].index]) for pair in pairs]
        once = max(copy_together(copies, 1))
        count = int(max(FEWEST_COPIES, min(MOST_COPIES, seconds / len(every) / once)))
        taken = copy_together(copies, count)
        for copy, took in zip(copies, taken, strict=True):
            labels = labels_of(copy.pair)
            rate = copy.sent.numel() * count / took / 1e9
            rates[labels["pair"]] = rate
            log.measurement(f"peer_copy_{how}", rate, "GB/s", HIGHER, **labels)
            log.measurement("wrong_values", copy.count_wrong(), "1", LOWER, copies=how, **labels)
    if rates:
        say_slowest(f"peer_copy_{how}", rates)


def say_slowest(name: str, rates: dict[str, float]) -> None:
    """Print which pair is the slowest."""
    pair, lag = slowest_pair(rates)
    common.say(f"{name}: slowest pair {pair}, {rates[pair]:.1f} GB/s, {100 * lag:.1f} % below the median")


def one_by_one(
    pairs: list[Pair], sent: dict[int, torch.Tensor], seconds: float, log: Log
) -> dict[str, float]:
    """Measure the pairs one after another, one way. Return the rates in GB/s by pair."""
    rates: dict[str, float] = {}
    for index, pair in enumerate(pairs):
        source, target = pair
        here, to = torch.device("cuda", source.index), torch.device("cuda", target.index)
        got = torch.zeros_like(sent[source.index], device=to)
        copy: Callable[[], Any] = functools.partial(got.copy_, sent[source.index], non_blocking=True)
        times_s = common.sample_seconds(copy, here, seconds / len(pairs), most=20)
        wrong = int((got.to(here) != sent[source.index]).sum())
        labels = labels_of(pair)
        speed = common.spread_of(times_s).speeds(got.numel() / 1e9)
        rates[labels["pair"]] = speed.median
        log.sampled("peer_copy", speed.median, "GB/s", HIGHER, speed, **labels)
        log.measurement("wrong_values", wrong, "1", LOWER, **labels)
        if not torch.cuda.can_device_access_peer(here, to):
            common.say(f"pair {labels['pair']} has no peer access: the copy went through the host")
        log.progress("peer", index + 1, len(pairs))
    return rates


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Measure all pairs one after another and, if requested, several at once."""
    options.device = "gpu"
    _, gpus = common.begin_probe(options, rank, log)
    pairs = ordered_pairs(gpus)
    if not pairs:
        common.say("one GPU: there are no pairs to measure")
    else:
        sent = {
            gpu.index: torch.randint(
                0, 256, (options.size_mib << 20,), dtype=torch.uint8, device=torch.device("cuda", gpu.index)
            )
            for gpu in gpus
        }
        rates = one_by_one(pairs, sent, options.seconds, log)
        say_slowest("peer_copy", rates)
        for how in TOGETHER if options.together == "on" else ():
            measure_together(how, gpus, sent, options.seconds / 2, log)
    log.measurement("pairs", len(pairs), "pairs")
    common.mark_stop(rank)


if __name__ == "__main__":
    sys.exit(common.run("probe_peer_bandwidth", parser(), plan, probe, gpu_states=True))
