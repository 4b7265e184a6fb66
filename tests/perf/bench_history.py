"""Measure how fast the history stores the nights of a fleet, and how fast it reads them.

    python tests/perf/bench_history.py --nodes 180 --nights 14 [--database URL]

Every night every node is one run of 40 measurements (4 metrics on 8 GPUs, 8 of the node) with as many
judgements. Prints rates and peak memory; asserts only that the answers are complete.
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
GPUS = 8
PER_NODE = len(GPU_METRICS) * GPUS + len(NODE_METRICS)
FIRST_NIGHT = datetime(2026, 1, 1, 2, tzinfo=UTC)


def node(number: int) -> Node:
    """Return a node of the fleet."""
    gpus = tuple(
        Gpu(index=index, uuid=f"GPU-{number:08x}-0000-0000-0000-{index:012x}", name="H200")
        for index in range(GPUS)
    )
    return Node(name=f"node{number:05d}", sku="h200", serial=f"SN{number:07d}", gpus=gpus)


def one_run(on: Node, night: int, noise: random.Random) -> Run:
    """Return what a node's probes measured in a night."""
    measurements = [
        Measurement(
            name=name,
            value=noise.gauss(100, 1),
            unit="GB/s",
            direction=Direction.HIGHER,
            labels={"gpu": gpu.uuid},
        )
        for name in GPU_METRICS
        for gpu in on.gpus
    ]
    measurements += [
        Measurement(name=name, value=noise.gauss(50, 1), unit="GB/s", direction=Direction.HIGHER)
        for name in NODE_METRICS
    ]
    floor = Reference(value=90, low=-0.07, high=0.25, unit="GB/s", source="sku_h200")
    judgements = [
        Judgement(
            metric=one.name,
            labels=one.labels,
            value=one.value,
            unit=one.unit,
            reference=floor,
            verdict=Verdict.PASS,
            reason="within bounds",
        )
        for one in measurements
    ]
    started = FIRST_NIGHT + timedelta(days=night)
    return Run(
        run_id=f"{started:%Y%m%dT%H%M%SZ}-nightly-{on.name}",
        benchmark="nightly",
        started=started,
        ended=started + timedelta(minutes=4),
        nodes=(on,),
        exit_status=0,
        measurements=tuple(measurements),
        judgements=tuple(judgements),
        verdict=Verdict.PASS,
    )


def night_of(fleet: list[Node], night: int) -> list[Run]:
    """Return the runs of a night."""
    noise = random.Random(night)
    return [one_run(one, night, noise) for one in fleet]


def query(store: Store, what: str, expected: int, **filters: object) -> None:
    """Ask for measurements, check that all come, and print how long it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = len(store.measurements(limit=None, **filters))  # type: ignore[arg-type]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if found != expected:
        raise SystemExit(f"{what}: {found} rows instead of {expected}")
    print(f"{what:36} {found:8,} rows in {wall:6.3f} s ({cpu:6.3f} s CPU, {found / cpu:,.0f} rows/CPU-s)")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=180)
    parser.add_argument("--nights", type=int, default=14)
    parser.add_argument("--database", help="URL of an empty database; by default a SQLite file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        with open_store(options.database or f"sqlite:///{path}") as store:
            fleet = [node(number) for number in range(options.nodes)]
            made, wall, cpu = 0, 0.0, 0.0
            for night in range(options.nights):
                runs = night_of(fleet, night)
                wall, cpu = wall - time.perf_counter(), cpu - time.process_time()
                store.keep_many(runs)
                wall, cpu = wall + time.perf_counter(), cpu + time.process_time()
                made += len(runs)
            count = made * PER_NODE
            print(
                f"{options.nodes} nodes, {options.nights} nights: {made:,} runs, {count:,} measurements and "
                f"as many judgements kept in {wall:.1f} s ({cpu:.1f} s CPU): {count / wall:,.0f} "
                f"measurements/s, {count / cpu:,.0f} per CPU-second"
            )
            if path.exists():
                size = sum(one.stat().st_size for one in Path(folder).iterdir())
                print(f"size on disk {size / 2**20:.0f} MiB, {size / count:.0f} bytes per measurement")
            since = FIRST_NIGHT + timedelta(days=options.nights - 14)
            shown = min(options.nights, 14)
            per_gpu = options.nodes * GPUS * shown
            query(store, "14 nights, one metric of every GPU", per_gpu, metric="memory_copy", since=since)
            on_nodes = options.nodes * shown
            query(store, "14 nights, one metric of every node", on_nodes, metric=NODE_METRICS[0], since=since)
            query(store, "all of one node", options.nights * PER_NODE, hardware=fleet[-1].name)
            uuid = fleet[-1].gpus[0].uuid
            query(store, "all of one GPU", options.nights * len(GPU_METRICS), hardware=uuid)
            wall, cpu = time.perf_counter(), time.process_time()
            for metric in (*GPU_METRICS, *NODE_METRICS):
                store.measurements(metric=metric, since=since, limit=None)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            print(f"14 nights, each metric in turn       {wall:.1f} s ({cpu:.1f} s CPU)")
            wall = time.perf_counter()
            store.keep(one_run(fleet[0], options.nights, random.Random(1)))
            print(f"one more run kept in {(time.perf_counter() - wall) * 1000:.0f} ms")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
