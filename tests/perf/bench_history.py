"""Measure how fast the history stores the nights of a fleet, and how fast it reads them.

    python tests/perf/bench_history.py --nodes 180 --nights 14 [--database URL]

Start the program by hand. docs/inside/history-tables.md has its figures. In each night, each node has one run
with 40 measurements: 4 metrics of each of its 8 GPUs, and 8 metrics of the node. Each measurement has one
judgement. The program measures `Store.readings`, from which a night is judged, and `Store.measurements`. It
fails if a query returns a wrong number of rows, which is not checked in the sweep over all metrics.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rackproof.core.records import Direction, Gpu, Judgement, Measurement, Node, Reference, Run, Verdict
from rackproof.store.history.store import Store, open_store

GPU_METRICS = ("gemm_best", "memory_copy", "host_to_device", "device_to_host")
NODE_METRICS = tuple(f"node_metric_{number}" for number in range(8))
"""Names without a meaning. Only their number matters."""
GPUS = 8
MEASUREMENTS_PER_NODE = len(GPU_METRICS) * GPUS + len(NODE_METRICS)
FIRST_NIGHT = datetime(2026, 1, 1, 2, tzinfo=UTC)
SHOWN_NIGHTS = 14
"""Number of nights that a query of one metric reads."""
DRIFT_NIGHTS = 15
"""Number of nights that are read to judge a night, as in jobs/validate/measurements.py."""


def make_node(number: int) -> Node:
    """Return a node of the fleet."""
    gpus = tuple(
        Gpu(index=index, uuid=f"GPU-{number:08x}-0000-0000-0000-{index:012x}", name="H200")
        for index in range(GPUS)
    )
    return Node(name=f"node{number:05d}", sku="h200", serial=f"SN{number:07d}", gpus=gpus)


def run_of_night(node: Node, night: int, noise: random.Random) -> Run:
    """Return the run of a node in a night."""
    measurements = [
        Measurement(
            name=name,
            value=noise.gauss(100, 1),
            unit="GB/s",
            direction=Direction.HIGHER,
            labels={"gpu": gpu.uuid},
        )
        for name in GPU_METRICS
        for gpu in node.gpus
    ]
    measurements += [
        Measurement(name=name, value=noise.gauss(50, 1), unit="GB/s", direction=Direction.HIGHER)
        for name in NODE_METRICS
    ]
    reference = Reference(value=90, low=-0.07, high=0.25, unit="GB/s", source="sku_h200")
    judgements = [
        Judgement(
            metric=measurement.name,
            labels=measurement.labels,
            value=measurement.value,
            unit=measurement.unit,
            reference=reference,
            verdict=Verdict.PASS,
            reason="within bounds",
        )
        for measurement in measurements
    ]
    started = FIRST_NIGHT + timedelta(days=night)
    return Run(
        run_id=f"{started:%Y%m%dT%H%M%SZ}-nightly-{node.name}",
        benchmark="nightly",
        started=started,
        ended=started + timedelta(minutes=4),
        nodes=(node,),
        exit_status=0,
        measurements=tuple(measurements),
        judgements=tuple(judgements),
        verdict=Verdict.PASS,
    )


def night_of(fleet: list[Node], night: int) -> list[Run]:
    """Return the runs of a night."""
    noise = random.Random(night)
    return [run_of_night(node, night, noise) for node in fleet]


def query(store: Store, label: str, expected: int, **filters: object) -> None:
    """Read measurements, check their number, and print the time."""
    wall, cpu = time.perf_counter(), time.process_time()
    rows = len(store.measurements(limit=None, **filters))  # type: ignore[arg-type]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    report(label, rows, expected, wall, cpu)


def report(label: str, rows: int, expected: int, wall: float, cpu: float) -> None:
    """Check the number of rows, and print the time.

    Raises:
        SystemExit: The number of rows is wrong.
    """
    if rows != expected:
        raise SystemExit(
            f"{label}: the history returned {rows} rows, expected {expected}. Was the database empty "
            "at the start?"
        )
    print(f"{label:36} {rows:8,} rows in {wall:6.3f} s ({cpu:6.3f} s CPU, {rows / cpu:,.0f} rows/CPU-s)")


def main() -> None:
    """Store the nights, run the queries, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=180)
    parser.add_argument("--nights", type=int, default=14)
    parser.add_argument("--database", help="URL of an empty database (default: a temporary SQLite file)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        with open_store(options.database or f"sqlite:///{path}") as store:
            fleet = [make_node(number) for number in range(options.nodes)]
            made, wall, cpu = 0, 0.0, 0.0
            for night in range(options.nights):
                runs = night_of(fleet, night)
                wall, cpu = wall - time.perf_counter(), cpu - time.process_time()
                store.keep_many(runs)
                wall, cpu = wall + time.perf_counter(), cpu + time.process_time()
                made += len(runs)
            count = made * MEASUREMENTS_PER_NODE
            print(
                f"{options.nodes} nodes, {options.nights} nights: {made:,} runs, {count:,} measurements and "
                f"as many judgements kept in {wall:.1f} s ({cpu:.1f} s CPU): {count / wall:,.0f} "
                f"measurements/s, {count / cpu:,.0f} per CPU-second"
            )
            if path.exists():
                size = sum(file.stat().st_size for file in Path(folder).iterdir())
                print(f"size on disk {size / 2**20:.0f} MiB, {size / count:.0f} bytes per measurement")
            since = FIRST_NIGHT + timedelta(days=options.nights - SHOWN_NIGHTS)
            shown = min(options.nights, SHOWN_NIGHTS)
            wall, cpu = time.perf_counter(), time.process_time()
            rows = len(store.readings(FIRST_NIGHT + timedelta(days=options.nights), nights=DRIFT_NIGHTS))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            read_nights = min(options.nights, DRIFT_NIGHTS)
            expected = options.nodes * read_nights * MEASUREMENTS_PER_NODE
            report(f"{read_nights} nights, all columns", rows, expected, wall, cpu)
            per_gpu = options.nodes * GPUS * shown
            query(
                store, f"{shown} nights, one metric of every GPU", per_gpu, metric="memory_copy", since=since
            )
            on_nodes = options.nodes * shown
            query(
                store,
                f"{shown} nights, one metric of every node",
                on_nodes,
                metric=NODE_METRICS[0],
                since=since,
            )
            query(store, "all of one node", options.nights * MEASUREMENTS_PER_NODE, hardware=fleet[-1].name)
            uuid = fleet[-1].gpus[0].uuid
            query(store, "all of one GPU", options.nights * len(GPU_METRICS), hardware=uuid)
            wall, cpu = time.perf_counter(), time.process_time()
            for metric in (*GPU_METRICS, *NODE_METRICS):
                store.measurements(metric=metric, since=since, limit=None)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            print(f"{f'{shown} nights, each metric in turn':36} {wall:.1f} s ({cpu:.1f} s CPU)")
            wall = time.perf_counter()
            store.keep(run_of_night(fleet[0], options.nights, random.Random(1)))
            print(f"one more run kept in {(time.perf_counter() - wall) * 1000:.0f} ms")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
