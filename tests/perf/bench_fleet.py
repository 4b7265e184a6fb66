"""Measure how long the judging of a fleet's night takes, from the history's database to the verdicts.

    python tests/perf/bench_fleet.py --nodes 10000 --nights 60

In every night, every node has a run of 40 numbers (4 metrics of 8 GPUs, 8 of the node). A few nodes are
slow, a few are outliers, and a few drift. The measurement counts only if these are found. Each judgement is a
separate process, so that its peak memory can be read. The exit status is not 0 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex

from rackproof.analysis.anomaly import Night, judge_night
from rackproof.core.judging import SkuReference
from rackproof.core.records import Reference, Verdict
from rackproof.store.history import schema
from rackproof.store.history.identity import canonical_json, digest_of
from rackproof.store.history.store import open_store

GPU_METRICS = ("gemm_best", "memory_copy", "host_to_device", "device_to_host")
HOST_COPIES = GPU_METRICS[2:]
NODE_METRICS = tuple(f"node_metric_{number}" for number in range(8))
GPUS = 8
PER_NODE = len(GPU_METRICS) * GPUS + len(NODE_METRICS)
UNTIL = datetime(2026, 11, 21, 6, tzinfo=UTC)
# Numbers of the nodes with a planted fault.
SLOW, OUTLIERS, DRIFTING = range(7), range(100, 105), range(200, 206)
GOALS = {"floors": (2.5, 1024), "all": (30.0, 1024)}
"""Most seconds and MiB of a judgement: by the floors of a night alone, and with the nights before."""
JUDGE_CPU_S = 5.0
"""Most seconds of processor time for judging, without reading."""
HOST_COPY_GB_S = 55.0
"""A plausible speed of the host link, because an impossible one is unproven. Other numbers are about 100."""
REFERENCES = {
    "h200": [
        SkuReference(
            metric=name,
            reference=Reference(
                value=HOST_COPY_GB_S if name in HOST_COPIES else 100,
                low=-0.07,
                warn=-0.05,
                high=0.25,
                unit="GB/s",
                source="bench",
            ),
        )
        for name in (*GPU_METRICS, *NODE_METRICS)
    ]
}


def values(nodes: int, ago: int, noise: np.random.Generator) -> np.ndarray:
    """Return a night's numbers in GB/s, as an array with a row of 40 for each node."""
    made = noise.normal(100, 0.4, (nodes, PER_NODE))
    made[DRIFTING, 3] -= 3.0 * (14 - min(ago, 14)) / 14
    if ago == 0:
        made[SLOW, 5] = 90.0
    if ago <= 1:
        # The value is above the floor. Only the nights before and the other nodes can show this fault.
        made[OUTLIERS, 6] = 95.5
    made[:, [GPU_METRICS.index(name) * GPUS + gpu for name in HOST_COPIES for gpu in range(GPUS)]] *= (
        HOST_COPY_GB_S / 100
    )
    return made


def rows(nodes: int, night: int, ago: int, moment: int) -> Iterator[tuple[object, ...]]:
    """Yield a night's rows of ``measurements``."""
    table = values(nodes, ago, np.random.default_rng(ago)).tolist()
    for number, of_node in enumerate(table):
        run, node = night * nodes + number + 1, number + 1
        for ordinal, value in enumerate(of_node):
            if ordinal < GPUS * len(GPU_METRICS):
                what, hardware = ordinal // GPUS + 1, nodes + number * GPUS + ordinal % GPUS + 1
            else:
                what, hardware = ordinal - GPUS * len(GPU_METRICS) + len(GPU_METRICS) + 1, node
            yield run, ordinal, what, hardware, node, moment, value, None


def fill(path: Path, nodes: int, nights: int) -> None:
    """Write the rows that kept runs would have left into a new database, without making the runs."""
    with open_store(f"sqlite:///{path}"):
        pass
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-400000;")
    for index in schema.measurements.indexes:
        connection.execute(f'DROP INDEX "{index.name}"')

    def insert(table: str, made: Iterator[tuple[object, ...]], columns: int) -> None:
        connection.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * columns)})", made)

    empty = ("", "", "")
    insert(
        "hardware",
        ((n + 1, "node", f"SN{n:06d}", f"node{n:05d}", "h200", *empty, 0, 0) for n in range(nodes)),
        10,
    )
    chips = [(n, slot) for n in range(nodes) for slot in range(GPUS)]
    uuids = (f"GPU-{n:08x}-0000-0000-0000-{slot:012x}" for n, slot in chips)
    insert(
        "hardware",
        ((nodes + at + 1, "gpu", uuid, "H200", "", *empty, 0, 0) for at, uuid in enumerate(uuids)),
        10,
    )
    insert("placements", ((nodes + at + 1, n + 1, slot, 0, 0) for at, (n, slot) in enumerate(chips)), 5)
    for number, metric in enumerate((*GPU_METRICS, *NODE_METRICS)):
        labels = canonical_json({"gpu": "*"} if metric in GPU_METRICS else {})
        row = (
            number + 1,
            digest_of("nightly", "{}", metric, labels),
            "GB/s",
            "nightly",
            "{}",
            metric,
            labels,
            "higher",
        )
        insert("quantities", iter([row]), 8)
    for night in range(nights):
        ago = nights - 1 - night
        moment = int((UNTIL - timedelta(days=ago, hours=4)).timestamp()) * 1_000_000
        insert(
            "runs",
            (
                (
                    night * nodes + n + 1,
                    f"n{ago}-{n}",
                    "",
                    "nightly",
                    "",
                    "ran",
                    "{}",
                    "",
                    n + 1,
                    moment,
                    moment,
                    moment,
                    0,
                    "pass",
                    "",
                    "",
                    moment,
                )
                for n in range(nodes)
            ),
            17,
        )
        insert("measurements", rows(nodes, night, ago, moment), 8)
        connection.commit()
    for index in schema.measurements.indexes:
        connection.execute(str(CreateIndex(index).compile(dialect=sqlite.dialect())))
    connection.commit()
    connection.close()


def check(night: Night, nodes: int, past: bool) -> int:
    """Check that the night has all planted faults and fails no good node. Return how many degraded by chance.

    The other numbers are random noise, and one in 400,000 series may look like a drift.

    Raises:
        SystemExit: A planted fault was not found, a good node failed, or the number of nodes is wrong.
    """
    found = {
        verdict: {int(one.name[4:]) for one in night.nodes if one.verdict is verdict} for verdict in Verdict
    }
    slow, dull = {n for n in SLOW if n < nodes}, {n for n in (*OUTLIERS, *DRIFTING) if n < nodes and past}
    chance = len(found[Verdict.DEGRADED] - dull)
    failed, passed = found[Verdict.FAIL], found.pop(Verdict.PASS)
    # A proven loss of 2.5 % fails, and a smaller one is degraded. Both name what was planted.
    if not slow <= failed <= slow | dull or found[Verdict.UNPROVEN] - dull or dull & passed or chance > 2:
        raise SystemExit(f"not what was planted: {found}"[:2000])
    if len(night.nodes) != nodes:
        raise SystemExit(f"{len(night.nodes)} nodes instead of {nodes}")
    return chance


def measure(path: Path, nodes: int, what: str) -> None:
    """Judge the night once. Print its times and memory as JSON."""
    past = what == "all"
    begin, cpu = time.perf_counter(), time.process_time()
    with open_store(f"sqlite:///{path}") as store:
        readings = store.readings(UNTIL, nights=15 if past else 1)
    read, read_cpu = time.perf_counter(), time.process_time()
    night = judge_night(readings, REFERENCES, past=past)
    end, end_cpu = time.perf_counter(), time.process_time()
    chance = check(night, nodes, past)
    # ru_maxrss would include the memory of the parent when it forked.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    taken = {"numbers": len(readings), "read_s": read - begin, "judge_s": end - read, "s": end - begin}
    taken |= {"read_cpu_s": read_cpu - cpu, "judge_cpu_s": end_cpu - read_cpu}
    print(json.dumps({**taken, "peak_mib": peak, "chance": chance}))


def main() -> None:
    """Make the history, measure the judging of its last night, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--nights", type=int, default=60, help="nights kept; drift reads 15 of them")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--history", type=Path, help="use this file, filled before with the same sizes")
    parser.add_argument("--measure", choices=GOALS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.history, options.nodes, options.measure)
        return
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        path = options.history or Path(folder) / "history.sqlite"
        if not path.exists():
            begin = time.perf_counter()
            fill(path, options.nodes, options.nights)
            print(
                f"{options.nodes:,} nodes x {PER_NODE} numbers x {options.nights} nights filled in "
                f"{time.perf_counter() - begin:.0f} s, {path.stat().st_size / 2**30:.2f} GiB"
            )
        for what, (seconds, mib) in GOALS.items():
            for _ in range(options.repeat):
                command = [
                    sys.executable,
                    __file__,
                    "--measure",
                    what,
                    "--nodes",
                    str(options.nodes),
                    "--history",
                ]
                done = subprocess.run([*command, str(path)], check=True, stdout=subprocess.PIPE, text=True)
                got = json.loads(done.stdout)
                good = got["s"] <= seconds and got["peak_mib"] <= mib and got["judge_cpu_s"] <= JUDGE_CPU_S
                missed |= not good
                print(
                    f"{what:7}{got['numbers']:>10,} numbers: {got['s']:6.2f} s (read {got['read_s']:.2f}, "
                    f"judge {got['judge_s']:.2f}; CPU: read {got['read_cpu_s']:.2f}, "
                    f"judge {got['judge_cpu_s']:.2f}), {got['peak_mib']:.0f} MiB, "
                    f"{got['chance']} degraded by chance; "
                    f"goal {seconds} s, {JUDGE_CPU_S} s of CPU for judging, {mib} MiB: "
                    f"{'met' if good else 'MISSED'}"
                )
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
