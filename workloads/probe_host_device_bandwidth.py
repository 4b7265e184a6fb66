#!/usr/bin/env python3
"""Measure the speed of copies between pinned host memory and each GPU, both ways, one GPU at a time.

The benchmark host-device-bandwidth and nights (validate.yml) start this program. The host buffer is in the
memory nearest to the GPU, if this process may use the processors there. Random data goes from the GPU to the
host and back, and is compared with the original.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import common
from common import HIGHER, LOWER, Gpu, Log, Rank

if common.IS_RANK:
    import torch

ROUNDS = 5
"""The number of times that the probe measures each GPU.

Virtual machines on one host share its memory. Another virtual machine once slowed one GPU of four from 55 to
48 GB/s for six seconds. With 5 s for each GPU, divided into these rounds, such a period does not change the
median of all samples.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = common.probe_parser(__doc__, 2.0)
    arguments.add_argument("--size-mib", type=int, default=1024, help="size of a copy (default: %(default)s)")
    return arguments


def plan(options: argparse.Namespace) -> int:
    """Return the number of ranks: 1, because GPUs may share a link and are measured one after another."""
    if options.device == "cpu" or options.gpus == 0:
        raise common.Refusal(common.EXIT_USAGE, "the host-device bandwidth cannot be measured without a GPU")
    if options.size_mib < 1:
        raise common.Refusal(common.EXIT_USAGE, "--size-mib must be at least 1")
    options.device = "gpu"
    common.choose_gpus(options.gpus)
    return 1


def local_cpus(gpu: Gpu) -> set[int]:
    """Return the CPUs that the kernel lists as nearest to the GPU, or an empty set if it lists none."""
    properties = torch.cuda.get_device_properties(gpu.index)
    try:
        where = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        listed = Path(f"/sys/bus/pci/devices/{where}/local_cpulist").read_text().strip()
        spans = [span.split("-") for span in listed.split(",") if span]
        return {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)}
    except (AttributeError, OSError, ValueError):
        return set()


@contextlib.contextmanager
def near(gpu: Gpu) -> Iterator[None]:
    """Run the block on the CPUs nearest to the GPU, so that memory first used in it is near the GPU, too."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, local_cpus(gpu) & before or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Copies:
    """The buffers of one GPU and of the host memory near it, and the seconds that each copy took."""

    def __init__(self, gpu: Gpu, size_bytes: int) -> None:
        self.gpu, self.device = gpu, torch.device("cuda", gpu.index)
        torch.cuda.set_device(self.device)
        # Make and compare the data on the GPU, which takes milliseconds. On the host, this takes longer than
        # all copies.
        self.origin = torch.empty(size_bytes // 8, dtype=torch.int64, device=self.device).random_(
            -(2**63), None
        )
        self.returned = torch.zeros_like(self.origin)
        with near(gpu):
            self.host = torch.empty(size_bytes // 8, dtype=torch.int64, pin_memory=True)
        self.to_host_s: list[float] = []
        self.to_device_s: list[float] = []

    def measure(self, seconds: float) -> None:
        """Copy to the host for half of the seconds, and back to the GPU for the other half."""
        torch.cuda.set_device(self.device)
        self.to_host_s += common.sample_seconds(
            lambda: self.host.copy_(self.origin, non_blocking=True), self.device, seconds / 2
        )
        self.to_device_s += common.sample_seconds(
            lambda: self.returned.copy_(self.host, non_blocking=True), self.device, seconds / 2
        )

    def wrong_bytes(self) -> int:
        """Return the number of bytes (``wrong_values``) that differ after the copies to the host and back."""
        return int((self.returned.view(torch.uint8) != self.origin.view(torch.uint8)).sum())


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Measure every GPU in rounds, and log its speeds and the number of wrong bytes."""
    options.device = "gpu"
    _, gpus = common.begin_probe(options, rank, log)
    size_bytes = options.size_mib << 20
    links = [Copies(gpu, size_bytes) for gpu in gpus]
    for index in range(ROUNDS):
        for link in links:
            link.measure(options.seconds / ROUNDS)
        log.progress("host_device", index + 1, ROUNDS)
    for link in links:
        for name, times_s in (("host_to_device", link.to_device_s), ("device_to_host", link.to_host_s)):
            speed = common.spread_of(times_s).speeds(size_bytes / 1e9)
            log.sampled(name, speed.median, "GB/s", HIGHER, speed, **link.gpu.labels)
        log.measurement("wrong_values", link.wrong_bytes(), "1", LOWER, **link.gpu.labels)
    common.mark_stop(rank)


if __name__ == "__main__":
    sys.exit(common.run("probe_host_device_bandwidth", parser(), plan, probe, gpu_states=True))
