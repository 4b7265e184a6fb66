#!/usr/bin/env python3
"""Find silent data corruption on the data paths of every SM of every GPU, in memory, and in copies.

The benchmark sdc and nights (validate.yml) start this program. There is one process per GPU. There are
eight paths, but a GPU may lack a number format. A path is a kernel whose blocks all compute the same words,
and each SM with different words is reported. FMAs, atomics, and integer products on tensor cores are compared
with the CPU's results. Products of all bits and special functions are compared with the golden table, or else
with the node's other GPUs of the model. Launches of all paths are repeated in turn for the given time, and
compared on the device. The log states the share of launches at which a fault would have been found.
Meanwhile, most of the memory holds a pattern, and afterwards other patterns.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import common
import sdc_answers
import sdc_cuda
import sdc_paths
from common import HIGHER, LOWER, Gpu, Log, Rank
from sdc_answers import Counts

if common.IS_RANK:
    import torch

LEAST_LAUNCHES = 5000
"""Smallest number of launches of a path, however slow the GPU is. With it, a fault in one of 1,000
launches is missed once in 150 runs."""
LEAST_MEMORY = 0.8
"""Smallest share of the memory that must have patterns."""
SLICE = 500
"""Launches of a path before the next path's turn."""
MEMORY_SHARE = 0.95
"""The share of the memory that is free at the start to fill with patterns."""
CHUNK_BYTES = 2 << 30
"""Size of the pieces in which memory is filled."""
PATTERNS = 8
"""Number of kinds of ``pattern`` in sdc_kernels.cu (address, checkerboard, walking bit, number, and each
inverted)."""
COPIED_BYTES = 256 << 20
"""Size of a copy from one GPU to another."""
MOST_SMS, MOST_RECORDS, RECORD = 1024, 256, 8
"""The limits of ``Report`` in sdc_kernels.cu, and the number of words in its records."""
SLOTS_BYTES = sdc_paths.SLOTS * 20
SHOWN_RECORDS = 8
"""Largest number of differences, and of SMs with wrong words, that are logged."""
TIMEOUT_S = 120.0
"""The longest wait of GPUs for each other's answers."""
FIRST_WITH = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9)}
"""First compute capability of GPUs with a format. All GPUs have the other paths."""
CPU_STEPS, CPU_LAUNCHES = 32, 3
"""Steps of a kernel, and launches of a path, on a CPU."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    return common.probe_parser(__doc__, 50.0)


def plan(options: argparse.Namespace) -> int:
    """Return the number of ranks."""
    return max(1, len(common.chosen_by_device(options.device, options.gpus)))


class Report:
    """The counts of kernels on a GPU, laid out as ``Report`` of sdc_kernels.cu."""

    def __init__(self, device: torch.device) -> None:
        size = 4 * MOST_SMS + 1 + MOST_RECORDS * RECORD
        self.data = torch.zeros(size, dtype=torch.int32, device=device)

    def by_sm(self, which: int) -> dict[int, int]:
        """Return one kind of count by SM, without zeros."""
        counts = self.data[which * MOST_SMS : (which + 1) * MOST_SMS].tolist()
        return {sm: count & sdc_paths.MASK for sm, count in enumerate(counts) if count}

    def counts(self, sms: int, queued: int) -> Counts:
        """Return the counts after this number of blocks was queued."""
        return Counts(sms, self.by_sm(0), self.by_sm(2), self.by_sm(3), queued)

    def records(self) -> list[dict[str, int | str]]:
        """Return the first differences, at most :data:`SHOWN_RECORDS`."""
        count = min(int(self.data[4 * MOST_SMS].item()) & sdc_paths.MASK, SHOWN_RECORDS)
        rows = self.data[4 * MOST_SMS + 1 :].view(-1, RECORD)[:count].tolist()
        found: list[dict[str, int | str]] = []
        for row in rows:
            launch, sm, where, which, *words = (word & sdc_paths.MASK for word in row)
            got, right = words[0] | words[1] << 32, words[2] | words[3] << 32
            where_and_which: dict[str, int | str] = {
                "launch": launch,
                "sm": sm,
                "where": where,
                "which": which,
            }
            found.append({**where_and_which, "bits": f"{got ^ right:x}"})
        return found


@functools.lru_cache
def compiled(capability: tuple[int, int]) -> tuple[bytes, str]:
    """Return machine code for a compute capability, and a text that identifies its source and compiler."""
    compiler = sdc_cuda.Compiler(str(torch.version.cuda), sdc_cuda.SOURCE.read_text())
    return compiler.compile(capability), compiler.software


class GpuPaths:
    """The kernels on one GPU.

    Raises:
        CudaError: The kernels cannot be compiled or loaded.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.slice = device, SLICE
        torch.cuda.set_device(device)
        torch.cuda.synchronize(device)
        capability = torch.cuda.get_device_capability(device)
        code, self.software = compiled(capability)
        self.kernels = sdc_cuda.Kernels(code)
        self.sms = torch.cuda.get_device_properties(device).multi_processor_count
        self.paths = [path for path in sdc_paths.PATHS if self.kernels.has(f"path_{path}")]
        had = [path for path in sdc_paths.PATHS if capability >= FIRST_WITH.get(path, (0, 0))]
        self.untested = [path for path in had if path not in self.paths]
        self.blocks = {path: self.sms * self._blocks_per_sm(f"path_{path}") for path in self.paths}
        most = max(self.blocks.values())
        self.scratch = torch.zeros(7 * most * SLOTS_BYTES, dtype=torch.uint8, device=device)
        self.reports = {path: Report(device) for path in self.paths}
        self.expected: dict[str, torch.Tensor] = {}
        self.launched = dict.fromkeys(self.paths, 0)

    def _blocks_per_sm(self, name: str) -> int:
        # Launch twice the number that fits at once. An SM that finishes early gets more, and none is
        # left out.
        return 2 * max(1, self.kernels.blocks_per_sm(name, sdc_paths.THREADS))

    def queue(self, name: str, blocks: int, *values: Any) -> None:
        """Queue a kernel on the current stream."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        self.kernels.launch(name, blocks, sdc_paths.THREADS, stream, *values)

    def _queue_path(self, path: str, launch: int, answers: torch.Tensor | None, report: Report) -> None:
        """Queue the kernel of a path. It reads the expected answers, and writes answers and a report."""
        self.queue(
            f"path_{path}",
            self.blocks[path],
            ctypes.c_uint32(launch),
            ctypes.c_uint32(sdc_paths.SETS),
            pointer(self.expected.get(path)),
            pointer(answers),
            pointer(self.scratch),
            pointer(report.data),
        )

    def answers(self, path: str, chosen: int) -> list[tuple[int, bytes]]:
        """Return SM and words of each block for a set."""
        threads = sdc_paths.THREADS
        shape = (self.blocks[path], threads + 1)
        words = torch.zeros(shape, dtype=torch.int32, device=self.device)
        self._queue_path(path, chosen, words, Report(self.device))
        rows = words.cpu()
        blocks = sdc_paths.bytes_of_blocks(rows[:, :threads].contiguous())
        return list(zip(rows[:, threads].tolist(), blocks, strict=True))

    def expect(self, path: str, answers: Iterable[bytes]) -> None:
        """Set the words of each set, with which later launches are compared."""
        words = torch.frombuffer(bytearray(b"".join(answers)), dtype=torch.int32)
        self.expected[path] = words.to(self.device)

    def repeat(self, path: str) -> None:
        """Compute a slice of launches and compare them on the device."""
        for _ in range(self.slice):
            self._queue_path(path, self.launched[path], None, self.reports[path])
            self.launched[path] += 1
        torch.cuda.synchronize(self.device)

    def counts(self, path: str) -> Counts:
        """Return the counts of a path so far."""
        return self.reports[path].counts(self.sms, self.launched[path] * self.blocks[path])


class CpuPaths:
    """The same paths on a CPU, with less work, which shows that the program works.

    The CPU counts as one SM.
    """

    software = "cpu"
    sms = slice = 1
    untested: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.paths = list(sdc_paths.PATHS)
        self.expected: dict[str, list[bytes]] = {}
        self.found = {path: Counts(1) for path in self.paths}

    def answers(self, path: str, chosen: int) -> list[tuple[int, bytes]]:
        """Return the words for a set."""
        return [
            (0, sdc_paths.bytes_of_blocks(sdc_paths.PATHS[path](range(chosen, chosen + 1), CPU_STEPS))[0])
        ]

    def expect(self, path: str, answers: Iterable[bytes]) -> None:
        """Set the words of each set, with which later launches are compared."""
        self.expected[path] = list(answers)

    def repeat(self, path: str) -> None:
        """Compute a set again and compare it."""
        answers = self.found[path]
        chosen = answers.queued % sdc_paths.RANDOM_SET
        words = self.answers(path, chosen)[0][1]
        answers.queued += 1
        answers.blocks = answers.launches = {0: answers.queued}
        if wrong := sdc_answers.differing(words, self.expected[path][chosen]):
            answers.add_wrong({0: wrong})

    def counts(self, path: str) -> Counts:
        """Return the counts of a path so far."""
        return self.found[path]


def pointer(data: torch.Tensor | None) -> ctypes.c_void_p:
    """Return the address of a tensor's data as a kernel takes it, or 0 for None."""
    return ctypes.c_void_p(0 if data is None else data.data_ptr())


class Memory:
    """Patterns in most of the memory of one GPU."""

    def __init__(self, gpu: GpuPaths) -> None:
        self.gpu = gpu
        self.report = Report(gpu.device)
        self.blocks = 8 * gpu.sms
        free, total = torch.cuda.mem_get_info(gpu.device)
        self.launched = 0
        self.chunks = [
            torch.empty(CHUNK_BYTES // 8, dtype=torch.int64, device=gpu.device)
            for _ in range(int(free * MEMORY_SHARE) // CHUNK_BYTES)
        ]
        self.share = len(self.chunks) * CHUNK_BYTES / total

    def fill(self, kind: int) -> None:
        """Write a pattern."""
        for number, chunk in enumerate(self.chunks):
            fill(self.gpu, chunk, number * chunk.numel(), kind)

    def check(self, kind: int) -> None:
        """Read a pattern and compare it."""
        for number, chunk in enumerate(self.chunks):
            check(self.gpu, chunk, number * chunk.numel(), kind, self.report, self.launched)
            self.launched += 1
        torch.cuda.synchronize(self.gpu.device)

    def counts(self) -> Counts:
        """Return the counts so far."""
        return self.report.counts(self.gpu.sms, self.launched * self.blocks)


def fill(gpu: GpuPaths, chunk: torch.Tensor, first: int, kind: int) -> None:
    """Queue a kernel that writes a pattern. ``first`` is the number of the chunk's first word in it."""
    count = ctypes.c_uint64(chunk.numel())
    gpu.queue("fill", 8 * gpu.sms, pointer(chunk), count, ctypes.c_uint64(first), ctypes.c_uint32(kind))


def check(gpu: GpuPaths, chunk: torch.Tensor, first: int, kind: int, report: Report, launch: int) -> None:
    """Queue the comparison of a pattern."""
    words = (pointer(chunk), ctypes.c_uint64(chunk.numel()), ctypes.c_uint64(first), ctypes.c_uint32(kind))
    gpu.queue("check", 8 * gpu.sms, *words, ctypes.c_uint32(launch), pointer(report.data))


class Answers:
    """The comparison of a GPU's first answers, by path.

    ``odd`` counts sets with an answer that differs from the CPU's, and ``wrong`` the wrong words of each SM.
    ``digests`` are of the answers that no CPU can compute.
    """

    def __init__(self) -> None:
        self.odd: dict[str, int] = {}
        self.digests: dict[str, str] = {}
        self.wrong: dict[str, dict[int, int]] = {}

    def take(self, of: GpuPaths | CpuPaths, path: str, right: list[bytes], sets: int) -> None:
        """Compare a path's first answers, and set the words with which its launches are compared."""
        answers = []
        wrong = Counts(of.sms)
        odd = 0
        for chosen in range(sets):
            exact = right[chosen] if chosen < len(right) else None
            answer, differ = sdc_answers.settle(of.answers(path, chosen), exact)
            wrong.add_wrong(differ)
            odd += exact is not None and answer != exact
            answers.append(answer if exact is None else exact)
        of.expect(path, answers)
        self.odd[path], self.wrong[path] = odd, wrong.wrong
        if len(right) < sets:
            self.digests[path] = sdc_answers.digest_of(answers[len(right) :])


def hold(of: GpuPaths | CpuPaths, seconds: float, least: int, progress: Callable[[float], None]) -> None:
    """Repeat all paths in turn for the time, and until each reached the number of launches.

    After twice that number, it ends in any case, because an SM that got no blocks so far gets none later.
    """
    began = time.monotonic()
    launches = 0
    while True:
        for path in of.paths:
            of.repeat(path)
        launches += of.slice
        passed = time.monotonic() - began
        progress(passed)
        if passed < seconds or launches < least:
            continue
        if launches >= 2 * least or all(of.counts(path).fewest_launches >= least for path in of.paths):
            return


def log_unproven(path: str, device: str, why: str, log: Log) -> None:
    """Log that a path of a device is not proven, and why."""
    log.event("unproven", {"what": f"{path} of {device}", "why": why})
    common.say(f"unproven: {path} of {device}: {why}")


def report_counts(path: str, counts: Counts, least: int, log: Log, labels: dict[str, str]) -> None:
    """Log which SMs a path ran on, how often, and how many words differed.

    If an SM ran fewer launches than ``least``, their number is not a measurement, because it proves
    nothing.
    """
    labels = {"path": path, **labels}
    device, met, fewest = labels.get("gpu", "the CPU"), len(counts.blocks), counts.fewest_launches
    log.event(
        "sdc_coverage", {"path": path, "sms": counts.sms, "met": sorted(counts.blocks), "labels": labels}
    )
    seen = f"{met} of {counts.sms} SMs, each in {fewest} launches at least"
    common.say(f"{path}: {seen}")
    if fewest >= least:
        log.measurement("fewest_launches", fewest, "1", HIGHER, **labels)
        log.measurement("smallest_rate", sdc_answers.smallest_rate(fewest), "1", LOWER, **labels)
    else:
        log_unproven(path, device, f"{seen}, {least} are needed", log)
    log.measurement("lost_blocks", counts.lost_blocks, "1", LOWER, **labels)
    log.measurement("wrong_words", sum(counts.wrong.values()), "1", LOWER, **labels)
    for sm, count in sorted(counts.wrong.items(), key=lambda entry: -entry[1])[:SHOWN_RECORDS]:
        common.say(f"{path}: SM {sm} gave {count} wrong words on {device}")


def report_memory(memory: Memory, log: Log, labels: dict[str, str]) -> None:
    """Log what was found in the memory, and how much of it held patterns."""
    report_counts("memory", memory.counts(), 1, log, labels)
    report_records("memory", memory.report, log, labels)
    if memory.share >= LEAST_MEMORY:
        log.measurement("memory_share", memory.share, "1", HIGHER, **labels)
    else:
        why = f"only {memory.share:.0%} of it were free for patterns, {LEAST_MEMORY:.0%} are needed"
        log_unproven("memory", labels["gpu"], why, log)


def report_records(path: str, report: Report, log: Log, labels: dict[str, str]) -> None:
    """Log the first differences.

    Each event states launch, SM, thread or word, set or pattern, and the bits that differ.
    """
    for record in report.records():
        log.event("sdc_difference", {"path": path, **record, "labels": labels})


def report_odd(
    answers: Answers,
    answers_of_ranks: list[dict[str, Any]],
    rank: Rank,
    software: str,
    log: Log,
    labels: dict[str, str],
) -> None:
    """Log how many answers of each path are wrong or, if that is unknown, that the path is unproven."""
    model, device = str(answers_of_ranks[rank.index]["model"]), labels.get("gpu", "the CPU")
    golden = sdc_answers.read_golden()
    for path, count in answers.odd.items():
        digest = answers.digests.get(path)
        odd: bool | None = False
        if digest is not None:
            alike = [
                str(answer["digests"].get(path, ""))
                for answer in answers_of_ranks
                if answer["model"] == model
            ]
            row = golden.get((model, software, path))
            odd = sdc_answers.is_odd(digest, row, alike)
            value = {"model": model, "software": software, "path": path, "digest": digest}
            log.event("sdc_answer", {**value, "golden": row is not None, "labels": labels})
        if odd is None:
            why = f"no golden answer of {model} with {software}, and no other GPU of the model here"
            log_unproven(path, device, why, log)
            continue
        log.measurement("odd_answers", count + odd, "1", LOWER, path=path, **labels)


def copy_all(devices: list[Gpu], log: Log) -> None:
    """Copy patterns from each GPU to each other one, and compare what arrived."""
    gpus = {gpu.index: GpuPaths(torch.device("cuda", gpu.index)) for gpu in devices}
    chunk = functools.partial(torch.empty, COPIED_BYTES // 8, dtype=torch.int64)
    sent = {index: chunk(device=gpu.device) for index, gpu in gpus.items()}
    got = {index: chunk(device=gpu.device) for index, gpu in gpus.items()}
    pairs = [(source, target) for source in devices for target in devices if source != target]
    reports = {pair: Report(gpus[pair[1].index].device) for pair in pairs}
    for kind in range(PATTERNS):
        for source, target in pairs:
            here, target_gpu = gpus[source.index], gpus[target.index]
            first = (source.index + 64 * target.index) * sent[source.index].numel()
            torch.cuda.set_device(here.device)
            fill(here, sent[source.index], first, kind)
            torch.cuda.synchronize(here.device)
            torch.cuda.set_device(target_gpu.device)
            got[target.index].zero_()
            got[target.index].copy_(sent[source.index])
            check(target_gpu, got[target.index], first, kind, reports[source, target], kind)
            torch.cuda.synchronize(target_gpu.device)
    for (source, target), report in reports.items():
        labels = {"from": source.uuid, "to": target.uuid, "pair": f"{source.index}-{target.index}"}
        counts = report.counts(gpus[target.index].sms, PATTERNS * 8 * gpus[target.index].sms)
        log.measurement("wrong_copied_words", sum(counts.wrong.values()), "1", LOWER, **labels)
        report_records("copies", report, log, labels)


def make_paths(device: torch.device) -> GpuPaths | CpuPaths:
    """Return the paths of a device.

    Raises:
        Refusal: Its kernels cannot be compiled, so nothing is proven.
    """
    if device.type != "cuda":
        return CpuPaths()
    try:
        return GpuPaths(device)
    except sdc_cuda.CudaError as error:
        raise common.Refusal(common.EXIT_NO_GPU, f"the kernels do not run here: {error}") from error


def hold_gpu(gpu: GpuPaths, seconds: float, progress: Callable[[float], None]) -> Memory:
    """Repeat the paths of a GPU while its memory holds a pattern. Then check it and the other patterns."""
    memory = Memory(gpu)
    memory.fill(0)
    hold(gpu, seconds, LEAST_LAUNCHES, progress)
    memory.check(0)
    for kind in range(1, PATTERNS):
        memory.fill(kind)
        memory.check(kind)
    memory.chunks = []
    torch.cuda.empty_cache()
    return memory


def probe(options: argparse.Namespace, rank: Rank, log: Log) -> None:
    """Check one GPU, or the CPU, as one rank."""
    began = time.monotonic()
    # The order of sums depends on the number of threads, and ranks share the processors.
    torch.set_num_threads(1)
    device, gpus = common.begin_probe(options, rank, log)
    labels = common.device_labels(gpus, rank)
    of = make_paths(device)
    answers = Answers()
    for path in of.paths:
        right = sdc_paths.exact_words(path) if gpus else []
        answers.take(of, path, right, sdc_paths.SETS if gpus else sdc_paths.RANDOM_SET)

    def progress(passed: float) -> None:
        if rank.index == 0:
            log.progress("sdc", min(round(passed), round(options.seconds)), round(options.seconds))

    if isinstance(of, GpuPaths):
        memory = hold_gpu(of, options.seconds, progress)
    else:
        hold(of, 0.0, CPU_LAUNCHES, progress)
    for path in of.paths:
        counts = of.counts(path)
        counts.add_wrong(answers.wrong[path])
        report_counts(path, counts, LEAST_LAUNCHES if gpus else CPU_LAUNCHES, log, labels)
        if isinstance(of, GpuPaths):
            report_records(path, of.reports[path], log, labels)
    if isinstance(of, GpuPaths):
        report_memory(memory, log, labels)
    mine = {"model": gpus[rank.local].name if gpus else "cpu", "digests": answers.digests}
    exchanged = common.exchange_by_file(mine, rank, "sdc", TIMEOUT_S)
    report_odd(answers, exchanged, rank, of.software, log, labels)
    for path in of.untested:
        why = "no kernel here uses the units that GPUs of this architecture have"
        log_unproven(path, labels["gpu"], why, log)
    if not of.untested:
        # A format that is missing in the log is not supported by its GPU.
        log.measurement("untested_paths", 0, "1", LOWER, **labels)
    if rank.index == 0 and len(gpus) > 1:
        copy_all(gpus, log)
    log.measurement("sdc_seconds", time.monotonic() - began, "s", LOWER, **labels)
    common.mark_stop(rank)


if __name__ == "__main__":
    sys.exit(common.run("probe_sdc", parser(), plan, probe, gpu_states=True))
