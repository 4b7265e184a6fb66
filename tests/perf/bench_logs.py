"""Measure the speed and the memory of the log parsers on real MLLOG logs of MLPerf Training 5.1.

The logs are repeated. Those of tests/data/real are shortened, so they have more events per MB than a
published log. RACKPROOF_PERF_LOGS names a folder of published ones. docs/inside/performance.md has its
figures.

``make perf`` runs this with pytest-benchmark. As a plain program it prints MB/s of one core (best of nine
runs) and the peak of resident memory for a small and a large log::

    python tests/perf/bench_logs.py
"""

from __future__ import annotations

import io
import itertools
import lzma
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from rackproof import logs

TRIMMED = Path(__file__).resolve().parent.parent / "data" / "real" / "mlperf-5.1"
CORPUS = Path(os.environ.get("RACKPROOF_PERF_LOGS", TRIMMED))
MEGABYTE = 1_000_000
ENOUGH = 7 * MEGABYTE
"""The size of the 21 published logs in bytes. A smaller set is repeated until it has at least this size."""


def real_logs() -> list[bytes]:
    """Return the contents of the logs in CORPUS."""
    found = [
        lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        for path in sorted(CORPUS.glob("**/*.txt*"))
    ]
    if not found:
        raise FileNotFoundError(f"no logs (*.txt, *.txt.xz) in {CORPUS}")
    return found


def corpus() -> bytes:
    """Return the logs one after the other, 7 MB or more."""
    data = b"".join(real_logs())
    return data * -(-ENOUGH // len(data))


class Repeated(io.RawIOBase):
    """A stream of ``size`` bytes that repeats some data without holding more than one copy."""

    def __init__(self, data: bytes, size: int) -> None:
        self.parts: Iterator[bytes] = itertools.repeat(data)
        self.rest, self.left = b"", size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.rest = self.rest or next(self.parts)
        size = min(len(buffer), len(self.rest), self.left)
        buffer[:size] = self.rest[:size]
        self.rest = self.rest[size:]
        self.left -= size
        return size


def bare_scan(data: bytes) -> int:
    """Find the events and decode their JSON, as each parser of these logs must. Return their number."""
    count, position = 0, data.find(b":::MLLOG")
    while position >= 0:
        end = data.find(b"\n", position)
        try:
            orjson.loads(data[position + 8 : end])
            count += 1
        except ValueError:
            pass
        position = data.find(b":::MLLOG", end)
    return count


@pytest.mark.parametrize("format_name", ["mllog", "auto"])
def test_mllog_speed(benchmark: Any, format_name: str) -> None:
    data = corpus() * 4
    parsed = benchmark(lambda: logs.parse(io.BytesIO(data), format=format_name))
    assert parsed.size_bytes == len(data)
    benchmark.extra_info["MB/s"] = len(data) / MEGABYTE / benchmark.stats["min"]


def test_bare_scan_speed(benchmark: Any) -> None:
    data = corpus()
    assert benchmark(lambda: bare_scan(data)) > 10_000
    benchmark.extra_info["MB/s"] = len(data) / MEGABYTE / benchmark.stats["min"]


def peak_after(megabytes: int) -> float:
    """Return the peak of resident memory in MiB of a process that parses that many MB."""
    done = subprocess.run(
        [sys.executable, __file__, "--peak", str(megabytes)], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def test_memory_is_flat() -> None:
    assert peak_after(500) < peak_after(50) + 8


def main() -> None:
    """Print the figures."""
    if "--peak" in sys.argv:
        size = int(sys.argv[-1]) * MEGABYTE
        # Only one log is repeated, so that the data takes little memory.
        data = real_logs()[0]
        logs.parse(io.BufferedReader(Repeated(data, size)))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    data = corpus() * 4
    for name, run in (
        ("bare scan", lambda: bare_scan(data)),
        ("parse mllog", lambda: logs.parse(io.BytesIO(data), format="mllog")),
        ("parse auto", lambda: logs.parse(io.BytesIO(data))),
    ):
        best = float("inf")
        for _ in range(9):
            began = time.process_time()
            run()
            best = min(best, time.process_time() - began)
        print(f"{name:12} {len(data) / MEGABYTE / best:6.0f} MB/s")
    for megabytes in (50, 500):
        print(f"peak for {megabytes:3} MB: {peak_after(megabytes):6.1f} MiB resident")


if __name__ == "__main__":
    main()
