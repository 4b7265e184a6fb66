"""Make runs for the tests of the history: nodes with GPUs, measurements, and their judgements.

test_archive.py checks that the judgements are those that judging makes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rackproof.core.records import Direction, Gpu, Judgement, Measurement, Node, Reference, Run, Verdict

START = datetime(2026, 11, 1, 2, 30, tzinfo=UTC)
NO_REFERENCE = "no reference yet"


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-aaaa-bbbb-cccc-0123456789ab"


def node(number: int = 1, *, name: str | None = None, gpus: int = 2) -> Node:
    return Node(
        name=name or f"node{number:02d}",
        sku="h200",
        serial=f"SN{number:04d}",
        product="Rack server",
        gpus=tuple(
            Gpu(index=index, uuid=uuid(100 * number + index), name="H200", serial=f"G{number}-{index}")
            for index in range(gpus)
        ),
    )


def measured(
    name: str, value: float, unit: str, direction: Direction | None = Direction.HIGHER, **labels: str
) -> Measurement:
    return Measurement(name=name, value=value, unit=unit, direction=direction, labels=labels)


def unjudged(measurement: Measurement, *, gating: bool = False) -> Judgement:
    """Return the judgement of a measurement without a reference."""
    return Judgement(
        metric=measurement.name,
        labels=measurement.labels,
        value=measurement.value,
        unit=measurement.unit,
        verdict=Verdict.UNPROVEN,
        gating=gating,
        reason=NO_REFERENCE,
    )


def passed(measurement: Measurement, reference: float) -> Judgement:
    """Return the judgement of a measurement that passed against a reference."""
    return Judgement(
        metric=measurement.name,
        labels=measurement.labels,
        value=measurement.value,
        unit=measurement.unit,
        reference=Reference(value=reference, low=-0.07, unit=measurement.unit, source="rule"),
        verdict=Verdict.PASS,
        reason="within bounds",
    )


def run(
    run_id: str = "run-1",
    *,
    night: int = 0,
    seconds: float = 100,
    nodes: tuple[Node, ...] | None = None,
    speed: float = 4.2,
    **changes: Any,
) -> Run:
    """Return a run that measured memory speed in TB/s on every GPU, an accuracy, and the time of an epoch."""
    started = START + timedelta(days=night)
    on = nodes if nodes is not None else (node(),)
    copies = [
        measured("memory_copy", speed + gpu.index / 100, "TB/s", gpu=gpu.uuid, dtype="fp32")
        for one in on
        for gpu in one.gpus
    ]
    accuracy = measured("eval_accuracy", 0.991, "fraction")
    time = measured("seconds_per_epoch", 2.0, "s", Direction.LOWER)
    fields: dict[str, Any] = {
        "run_id": run_id,
        "plan_id": "plan-1",
        "benchmark": "probe",
        "suite": "quick",
        "parameters": {"batch_size": 128, "gpus": 2},
        "started": started,
        "ended": started + timedelta(seconds=seconds),
        "nodes": on,
        "exit_status": 0,
        "measurements": (*copies, accuracy, time),
        "judgements": (*map(unjudged, copies), passed(accuracy, 0.99), unjudged(time)),
        "verdict": Verdict.PASS,
        "reasons": ("unproven, does not count: memory_copy",),
    }
    return Run(**(fields | changes))
