"""Make the runs of an invented fleet in many nights, for tests that judge nights.

Each node measures the speed of its four GPUs and one latency. A test may change single values.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from rackproof.core.judging import SkuReference
from rackproof.core.records import Direction, Gpu, Measurement, Node, Reference, Run

TONIGHT = datetime(2026, 11, 21, 6, tzinfo=UTC)
GPUS = 4

Change = Callable[[str, int, int, int], float | None]
"""A function of the metric, the node, the slot and the age of the night in days. See :func:`night_runs`."""


def uuid(node: int, slot: int) -> str:
    return f"GPU-{node:08x}-0000-0000-0000-{slot:012x}"


def fleet_node(number: int, *, name: str = "", sku: str = "h200", chips: tuple[str, ...] = ()) -> Node:
    chips = chips or tuple(uuid(number, slot) for slot in range(GPUS))
    gpus = tuple(Gpu(index=slot, uuid=one, name="H200") for slot, one in enumerate(chips))
    return Node(name=name or f"node{number:03d}", sku=sku, serial=f"SN{number:04d}", gpus=gpus)


def night_runs(
    nodes: list[Node], ago: int = 0, change: Change | None = None, noise: float = 0.003
) -> list[Run]:
    """Return a night's runs, with normal noise.

    Args:
        nodes: The nodes.
        ago: The age of the night in days.
        change: A function that returns the factor of a value, or None if the value was not measured.
        noise: The relative standard deviation of the values.
    """
    runs = []
    for number, node in enumerate(nodes):
        dice = random.Random(f"{node.serial} {ago}")
        values = [
            ("gemm_best", 793.0, "TFLOP/s", Direction.HIGHER, slot, {"gpu": gpu.uuid, "dtype": "bf16"})
            for slot, gpu in enumerate(node.gpus)
        ]
        values.append(("latency", 5.0, "us", Direction.LOWER, 0, {}))
        measurements = []
        for metric, value, unit, direction, slot, labels in values:
            factor = 1.0 if change is None else change(metric, number, slot, ago)
            if factor is not None:
                measurements.append(
                    Measurement(
                        name=metric,
                        value=value * factor * dice.gauss(1, noise),
                        unit=unit,
                        direction=direction,
                        labels=labels,
                    )
                )
        started = TONIGHT - timedelta(days=ago, hours=3)
        runs.append(
            Run(
                run_id=f"{started:%Y%m%dT%H%M%SZ}-{node.serial}",
                benchmark="nightly",
                started=started,
                nodes=(node,),
                measurements=tuple(measurements),
            )
        )
    return runs


def several_nights(nodes: list[Node], change: Change | None = None, nights: int = 15) -> list[Run]:
    """Return the runs of the last nights, tonight's first."""
    return [run for ago in range(nights) for run in night_runs(nodes, ago, change)]


def floors() -> dict[str, list[SkuReference]]:
    """Return references of the SKU, with which the values of a healthy node pass."""
    gemm = Reference(value=793, low=-0.07, warn=-0.05, high=0.25, unit="TFLOP/s", source="data sheet")
    latency = Reference(value=5, high=0.2, low=-0.5, unit="us", source="data sheet")
    return {
        "h200": [
            SkuReference(metric="gemm_best", labels={"dtype": "bf16"}, reference=gemm),
            SkuReference(metric="latency", reference=latency),
        ]
    }
