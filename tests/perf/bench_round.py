"""Compare `rackproof parse --json` on a whole round with a bare scan and mlperf-logging's parser.

    python -m tests.perf.bench_round FOLDER [--turns 3] [--processors 1 2 16]

FOLDER has the result logs of a round as published. The three run in turns. CPU time includes child processes.
Wall-clock times are only meaningful on an idle machine. ``parse`` runs with each of the given numbers of
processors, and the others use one. The last line has the memory of the largest process for a tenth of the
logs and for all of them, which shows whether memory grows with the number of logs.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mlperf_logging.compliance_checker.mlp_parser import parse_file

from tests.perf.bench_logs import MEGABYTE, bare_scan

PROGRAM = Path(sys.executable).with_name("rackproof")
SHARE = 20
"""mlperf-logging reads one of this many logs. Its time is multiplied by the ratio of the bytes of all logs to
the bytes that it read."""


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return CPU and wall seconds of a call in this process."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def command(files: Sequence[Path], processors: int) -> tuple[float, float, float]:
    """Return CPU seconds, wall seconds and MiB of the largest process of ``rackproof parse --json``."""
    read, write = os.pipe()
    wall = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:processors])
        subprocess.run([PROGRAM, "parse", "--json", *files], stdout=subprocess.DEVNULL, check=False)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        os.write(write, f"{used.ru_utime + used.ru_stime} {used.ru_maxrss / 1024}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    cpu, memory = map(float, os.read(read, 100).split())
    return cpu, time.perf_counter() - wall, memory


def main() -> None:
    """Print the figures of each turn."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("folder", type=Path)
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--processors", type=int, nargs="+", default=[1, 2])
    given = options.parse_args()
    files = sorted(given.folder.rglob("result_*.txt"))
    size = sum(path.stat().st_size for path in files) / MEGABYTE
    share = files[::SHARE]
    factor = size * MEGABYTE / sum(path.stat().st_size for path in share)
    print(f"{len(files)} logs, {size:.0f} MB, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for _turn in range(given.turns):
        bare = timed(lambda: [bare_scan(path.read_bytes()) for path in files])
        parses = [(processors, *command(files, processors)) for processors in given.processors]
        other = timed(lambda: [parse_file(str(path), ruleset="5.1.0") for path in share])
        print(f"bare scan {bare[0]:.2f} s CPU, {bare[1]:.2f} s", flush=True)
        print(f"mlperf-logging {other[0] * factor:.1f} s CPU, {other[1] * factor:.1f} s")
        for processors, cpu, wall, memory in parses:
            print(
                f"parse --json, processors: {processors}: {cpu:.2f} s CPU, {wall:.2f} s, {memory:.0f} MiB; "
                f"of bare {bare[0] / cpu:.2f} (elapsed {bare[1] / wall:.2f}), times mlperf-logging "
                f"{other[0] * factor / cpu:.1f} (elapsed {other[1] * factor / wall:.1f})",
                flush=True,
            )
    few = command(files[::10], 1)[2]
    print(
        f"largest process: {few:.0f} MiB for a tenth, {command(files, 1)[2]:.0f} MiB for all, one processor"
    )


if __name__ == "__main__":
    main()
