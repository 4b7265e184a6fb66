"""Test workloads/probe_sdc.py on a real GPU, with rounds without faults and with injected faults.

    PYTHON tests/perf/prove_sdc.py [--clean 1000] [--injections 300] [--seconds 500] [--seed 1]

SDC (silent data corruption) is a wrong result without an error. PYTHON has PyTorch and mlperf-logging.
CUDA_VISIBLE_DEVICES chooses the GPU. A path is a kernel for one kind of the GPU's arithmetic, and a set is
one of its inputs. First, every path answers every set, and the answers are compared with those of a CPU and
of the golden table. In a clean round, every SM answers one set of each path, and 100 launches of each are
compared on the device. For the faults, the kernels are compiled from a changed source,
for which the table has no answers. Bits of the words of a warp are flipped on one SM, in one launch of 1, 10,
100 or 1,000. Then words of the memory are changed under its patterns. The program prints a table. Its exit
status is not 0 after a mismatch in a clean round, if a changed word was not found, or if more than 1 % of the
faults were not found or blamed on another SM.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RACKPROOF_WORKLOAD_RANK", "0")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "workloads"))

import probe_sdc
import sdc_answers
import sdc_cuda
import sdc_paths
import soak_resume
import torch

FAULT = """
__device__ u32 fault[6];

__device__ u32 faulty(u32 h, u32 launch) {
    u32 chance = seed(launch, fault[5]);
    bool here = fault[0] == sm() + 1 && fault[2] == threadIdx.x / 32 && (fault[3] >> threadIdx.x % 32 & 1);
    return here && chance % fault[1] == 0 ? h ^ fault[4] : h;
}

__device__ void settle("""
LAUNCHES = {1: 500, 10: 500, 100: 2000, 1000: 5000}
"""Launches by period of a fault. A run of the benchmark has at least 5,000."""


class Fault:
    """The fault in the kernels of a GPU."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        self.place, size = ctypes.c_uint64(), ctypes.c_size_t()
        gpu.kernels._call(
            "cuModuleGetGlobal_v2",
            ctypes.byref(self.place),
            ctypes.byref(size),
            gpu.kernels._module,
            b"fault",
        )

    def put(self, *words: int) -> None:
        """Set SM + 1, period, warp, lanes, bits and phase. With 0 for SM + 1, there is no fault."""
        torch.cuda.synchronize()
        data = (ctypes.c_uint32 * 6)(*words)
        self.gpu.kernels._call("cuMemcpyHtoD_v2", self.place, data, ctypes.c_size_t(24))


def changed_source() -> Path:
    """Write the kernels with code for a fault into a new file, and return its path."""
    source = sdc_cuda.SOURCE.read_text()
    head = "__device__ void settle("
    body = "    count_block(report, launch);\n    if (answers)"
    assert source.count(head) == source.count(body) == 1
    source = source.replace(head, FAULT.lstrip()).replace(body, "    h = faulty(h, launch);\n" + body)
    path = Path(tempfile.mkdtemp()) / "faulty.cu"
    path.write_text(source)
    return path


def answered(gpu: Any, right: dict[str, list[bytes]]) -> Any:
    """Return the answers of all paths. Launches are compared with them from now on."""
    answers = probe_sdc.Answers()
    for path in gpu.paths:
        answers.take(gpu, path, right[path], sdc_paths.SETS)
    return answers


def is_clean(gpu: Any, path: str, chosen: int, first: list[bytes]) -> bool:
    """Return whether all SMs give the first answers again for a set of a path, and in further launches."""
    _, wrong = sdc_answers.settle(gpu.answers(path, chosen), first[chosen])
    gpu.repeat(path)
    counts = gpu.counts(path)
    return not (wrong or counts.wrong or counts.missed or counts.lost_blocks)


def clean(gpu: Any, right: dict[str, list[bytes]], rounds: int, until: float) -> tuple[int, int]:
    """Make rounds without faults. Return their number, and how many had a mismatch.

    All rounds count as a mismatch if the first answers differ from those of the CPU or the golden table.
    """
    gpu.slice = 100
    answers = answered(gpu, right)
    golden, model = sdc_answers.read_golden(), torch.cuda.get_device_name(gpu.device)
    other = [
        path
        for path, digest in answers.digests.items()
        if golden.get((model, gpu.software, path), digest) != digest
    ]
    bad_at_first = bool(other) or any(answers.odd.values()) or any(answers.wrong.values())
    first = {path: words_of(gpu.expected[path]) for path in gpu.paths}
    made = bad = 0
    while made < rounds and time.monotonic() < until:
        results = [is_clean(gpu, path, made % sdc_paths.SETS, first[path]) for path in gpu.paths]
        bad += not all(results)
        made += 1
    return made, made if bad_at_first else bad


def words_of(expected: torch.Tensor) -> list[bytes]:
    """Return the words of each set that launches are compared with."""
    return sdc_paths.bytes_of_blocks(expected.cpu().view(sdc_paths.SETS, sdc_paths.THREADS))


def bits(chance: random.Random) -> tuple[int, int]:
    """Return lanes and bits of a fault: one lane or a whole or half a warp, one bit or several."""
    lanes = chance.choice((1 << chance.randrange(32), 0xFFFFFFFF, 0xFFFF, chance.randrange(1, 1 << 32)))
    mask = 0
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        mask |= 1 << chance.randrange(32)
    return lanes, mask


def inject(gpu: Any, fault: Fault, chance: random.Random, period: int) -> bool:
    """Inject a fault. Return whether it was found and only its SM was named."""
    path, sm = chance.choice(gpu.paths), chance.randrange(gpu.sms)
    lanes, mask = bits(chance)
    report = gpu.reports[path] = probe_sdc.Report(gpu.device)
    gpu.launched[path] = 0
    fault.put(sm + 1, period, chance.randrange(8), lanes, mask, chance.randrange(1 << 32))
    gpu.slice = LAUNCHES[period]
    gpu.repeat(path)
    fault.put(0, 1, 0, 0, 0, 0)
    named = set(gpu.counts(path).wrong)
    if named != {sm}:
        print(f"{path}, SM {sm}, 1 in {period}: named {sorted(named)}, {report.records()[:2]}", flush=True)
    return named == {sm}


def flipped_words_found(gpu: Any, chance: random.Random, count: int) -> int:
    """Flip bits in ``count`` words of the memory, one word at a time. Return how many were found."""
    memory = probe_sdc.Memory(gpu)
    found = 0
    for at in range(count):
        kind = at % probe_sdc.PATTERNS
        memory.fill(kind)
        chunk = chance.choice(memory.chunks)
        chunk[chance.randrange(chunk.numel())] ^= bits(chance)[1]
        before = sum(memory.counts().wrong.values())
        memory.check(kind)
        found += sum(memory.counts().wrong.values()) == before + 1
    return found


def main() -> int:
    """Run both parts. Return the exit status."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--clean", type=int, default=1000)
    arguments.add_argument("--injections", type=int, default=300)
    arguments.add_argument("--seconds", type=float, default=500.0, help="when to stop in any case")
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    until = time.monotonic() + options.seconds
    share = 0.5 if options.injections else 0.0
    device = torch.device("cuda", 0)
    right = {path: sdc_paths.exact_words(path) for path in sdc_paths.PATHS}
    began = time.monotonic()
    gpu = probe_sdc.GpuPaths(device)
    made, bad = clean(gpu, right, options.clean, until - share * options.seconds)
    seconds, launches = time.monotonic() - began, min(gpu.launched.values()) + made
    # The id of the boot is the host's, also in a container, and distinguishes two hosts.
    where = f"GPU-{torch.cuda.get_device_properties(device).uuid} of boot {soak_resume.boot_id()}"
    print(
        f"{torch.cuda.get_device_name(device)} {where}: {made} clean rounds, {bad} with a mismatch, "
        f"{launches} launches of each of {len(gpu.paths)} paths, {seconds:.0f} s",
        flush=True,
    )
    if not options.injections:
        return int(bad > 0)
    sdc_cuda.SOURCE = changed_source()
    probe_sdc.compiled.cache_clear()
    gpu = probe_sdc.GpuPaths(device)
    fault = Fault(gpu)
    fault.put(0, 1, 0, 0, 0, 0)
    answered(gpu, right)
    chance = random.Random(options.seed)
    found: collections.Counter[int] = collections.Counter()
    tried: collections.Counter[int] = collections.Counter()
    periods = sorted(LAUNCHES)
    while tried.total() < options.injections and time.monotonic() < until:
        period = periods[tried.total() % len(periods)]
        found[period] += inject(gpu, fault, chance, period)
        tried[period] += 1
    flips = min(options.injections, 24)
    seen = flipped_words_found(gpu, chance, flips)
    print(f"{flips} words of the memory were changed, {seen} found")
    print("| one launch of | launches | injected | found, its SM alone named |\n| --- | --- | --- | --- |")
    for period in periods:
        print(f"| {period} | {LAUNCHES[period]} | {tried[period]} | {found[period]} |")
    return int(bad > 0 or seen < flips or found.total() < 0.99 * tried.total())


if __name__ == "__main__":
    sys.exit(main())
