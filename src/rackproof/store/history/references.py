"""References out of accepted runs: which runs and numbers may become one, and what several make together.

No I/O: the repository reads and writes the tables.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rackproof.core.gpu_models import GpuPhysics, is_model, physics_of
from rackproof.core.judging import judge
from rackproof.core.records import Direction, Judgement, Measurement, Reference, Run, Verdict
from rackproof.store.history.identity import Kind, Place, Topology, bounded_key, canonical_json
from rackproof.store.history.writer import is_candidate, quantity_of

DEFAULT_LOW = -0.07
"""An accepted reference allows 7 % less before it fails (two public health checks use 5 and 7 %)."""

DEFAULT_HIGH = 0.25
"""An accepted reference calls 25 % more than ever measured too good to be true."""

DEFAULT_WARN = -0.035
"""An accepted reference calls 3.5 % less degraded."""

OWN_HISTORY = "own history"
"""How the source of a reference from here begins."""

_RUNS_NAMED = 5


def accepted_reference(rows: Sequence[Any]) -> Reference:
    """Return the reference that acceptances of one quantity on one piece of hardware make, latest first."""
    latest = rows[0]
    # Numbers in another unit are another quantity, even if it is called the same.
    rows = sorted((row for row in rows if row.unit == latest.unit), key=lambda row: row.moment)
    names = [f"{row.run_id} ({row.moment:%Y-%m-%d})" for row in rows]
    if len(names) > _RUNS_NAMED:
        names[: -(_RUNS_NAMED - 1)] = [f"{names[0]} … {len(names) - _RUNS_NAMED} more …"]
    count = f"median of {len(rows)} accepted runs" if len(rows) > 1 else "accepted run"
    return Reference(
        value=statistics.median(row.value for row in rows),
        low=latest.low,
        high=latest.high,
        warn=latest.warn,
        unit=latest.unit,
        source=f"{OWN_HISTORY}, {count}: {', '.join(names)}",
    )


def mirror_bound(bound: float | None) -> float | None:
    """Return a bound for a measurement where lower is better."""
    return None if bound is None else -bound


def acceptance_objection(run: Run) -> str:
    """Return why a run's numbers must not become references, empty if they may."""
    if run.verdict in (Verdict.FAIL, Verdict.DEGRADED):
        # Reasons and messages may be empty, and an empty objection would be none.
        return next(filter(None, run.reasons), f"it is {run.verdict.value}")
    # Not the verdict alone: a run is unproven for want of references, and those it is to give.
    objection = next(_bad_evidence(run), None)
    if objection is not None:
        return objection
    if run.exit_status not in (0, None):
        return f"it ended with status {run.exit_status}"
    return next(_blank_names(run), "")


def _blank_names(run: Run) -> Iterator[str]:
    """Yield metrics whose unit no later run would match: quantities are found by their exact text."""
    named = {(one.name, one.unit) for one in run.measurements}
    for name, unit in sorted(named | {(one.metric, one.unit) for one in run.judgements}):
        if any(text != " ".join(text.split()) for text in (name, unit)):
            yield f"{name!r} in {unit!r} has blanks that no other run would have"


def _bad_evidence(run: Run) -> Iterator[str]:
    """Yield what of a run's findings, logs and judgements speaks against its numbers."""
    # What only degrades a run leaves its numbers doubtful: a machine with an XID is nobody's measure.
    bad = (Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED)
    for finding in run.findings:
        if finding.verdict in bad:
            yield finding.message or f"it has the finding {finding.code}, without words"
    for log in run.logs:
        if log.verdict in bad:
            yield f"its log {log.path} is {log.verdict.value}"
    for judged in run.judgements:
        if judged.gating and judged.verdict in bad and not is_candidate(judged):
            yield f"{judged.metric} is {judged.verdict.value}: {judged.reason}"
        elif contradiction := _contradiction(run, judged):
            yield contradiction


def _contradiction(run: Run, judged: Judgement) -> str:
    """Return why a judgement cannot be what its own number and reference give, empty if it can."""
    if judged.value is None or judged.reference is None or judged.verdict in (Verdict.FAIL, Verdict.UNPROVEN):
        return ""
    directions = {one.direction for one in run.measurements if one.name == judged.metric}
    if len(directions) != 1:
        return ""
    number = Measurement(
        name=judged.metric,
        value=judged.value,
        unit=judged.unit,
        direction=directions.pop(),
        labels=judged.labels,
    )
    again = judge(number, judged.reference)
    if again.verdict in (Verdict.PASS, Verdict.DEGRADED):
        return ""
    return f"{judged.metric} stands there as {judged.verdict.value}, and its number is {again.reason}"


FLEET_DEVIATION = 0.1
"""A number this much worse than the median of the SKU's other hardware is no reference."""
FLEET_LEAST = 3
"""So many other pieces of hardware have to have measured the same for their median to count."""
_LEAST_SHARE = 0.5
"""A sound GPU reaches more than this share of its peak; sound ones of today reach 70 to 95 %."""


def physical_objection(metric: str, labels: Mapping[str, str], unit: str, value: float, product: str) -> str:
    """Return why a number cannot be that of a sound GPU of this model, empty if it can or that is not known.

    Args:
        metric: Name of the measurement.
        labels: Its labels; ``dtype`` has its precision.
        unit: Its unit.
        value: The number.
        product: The product name of the GPU.
    """
    if value and not _SMALLEST < abs(value) < _LARGEST:
        return f"{metric} is {value:g} {unit}: no quantity is that small or large"
    physics = physics_of(product)
    peak = None if physics is None else _peak(physics, metric, labels, unit)
    if peak is None:
        return ""
    shown = f"{metric} is {value:.6g} {unit}"
    if value > peak:
        return f"{shown}, more than the peak of {product}, {peak:g} {unit}"
    # Cards with fewer watts and other memory share the name of the model.
    slower = any(is_model(product, word) for word in ("PCIe", "NVL"))
    # What is reached of the link to a Grace differs too much for a lower bound.
    slower = slower or (metric in _HOST_COPIES and peak == _C2C)
    if not slower and not metric.endswith("busbw") and value < _LEAST_SHARE * peak:
        return f"{shown}, less than half of the peak of {product}, {peak:g} {unit}"
    return ""


_SMALLEST, _LARGEST = 1e-15, 1e18
_C2C = 450.0
"""Host link of a Grace's GPU, GB/s."""
_HOST_COPIES = ("host_to_device", "device_to_host")


def _peak(physics: GpuPhysics, metric: str, labels: Mapping[str, str], unit: str) -> float | None:
    """Return what a model cannot exceed in a metric, None where it is not known in this unit."""
    peaks: dict[tuple[str, str], float | None] = {
        ("gemm_best", "TFLOP/s"): physics.tflops.get(labels.get("dtype", "")),
        ("memory_copy", "TB/s"): physics.memory,
        ("memory_triad", "TB/s"): physics.memory,
        ("host_to_device", "GB/s"): physics.host,
        ("device_to_host", "GB/s"): physics.host,
        ("peer_copy", "GB/s"): physics.nvlink,
    }
    if metric.endswith("busbw") and unit == "GB/s":
        return None if labels.get("device") == "cpu" else 2 * physics.nvlink
    return peaks.get((metric, unit))


def fleet_objection(value: float, others: Sequence[float], direction: Direction | None) -> str:
    """Return why a number is not like those of the SKU's other hardware, empty if it is or too few are known.

    Args:
        value: The number.
        others: One number of each other piece of hardware.
        direction: Which way is better; where it is not known, each deviation counts.
    """
    if len(others) < FLEET_LEAST:
        return ""
    middle = statistics.median(others)
    share = (value - middle) / abs(middle) if middle else 0.0
    loss = {Direction.HIGHER: -share, Direction.LOWER: share, None: abs(share)}[direction]
    if loss <= FLEET_DEVIATION:
        return ""
    return f"{value:.6g} is {loss:.0%} worse than the median of {len(others)} others of its SKU, {middle:.6g}"


def drift_objection(accepted: Sequence[Any], value: float) -> str:
    """Return why a number moves a reference too far from what was accepted first, empty if it does not.

    Args:
        accepted: The acceptances of the same quantity on the same hardware, oldest first.
        value: The number.
    """
    if not accepted:
        return ""
    first = accepted[0]
    middle = statistics.median([*(row.value for row in accepted), value])
    share = (middle - first.value) / abs(first.value) if first.value else 0.0
    if (first.low is None or share >= first.low) and (first.high is None or share <= first.high):
        return ""
    return (
        f"it would move a reference from {first.value:.6g} (accepted from {first.run_id}) to {middle:.6g}, "
        f"{share:+.1%}, beyond the bounds of that acceptance; if the hardware was changed on purpose, take "
        f"the old one back first: rackproof withdraw {first.run_id}"
    )


def product_on(run: Run, kind: str, key: str) -> str:
    """Return the product name of the GPUs that a number was measured on, empty if unknown or several."""
    gpus = [gpu for node in run.nodes for gpu in node.gpus]
    if kind == Kind.GPU.value:
        gpus = [gpu for gpu in gpus if bounded_key(gpu.uuid) == key]
    names = {gpu.name for gpu in gpus}
    return names.pop() if len(names) == 1 else ""


NumberKey = tuple[str, str, str, str]
"""Kind and key of the hardware, digest and unit of the quantity."""


def acceptable_numbers(run: Run, topology: Topology) -> dict[NumberKey, tuple[float, Direction | None]]:
    """Return the numbers of a run that may become references, each with its direction.

    These are the candidates among the judgements and those that passed against a reference accepted before.
    Where one GPU of several was judged, so are the same measurements of the others.
    """
    numbers = _judged_numbers(run, topology)
    accepted_quantities = {key[2:] for key in numbers}
    for measurement in run.measurements:
        key = number_key(run, topology.place(measurement.labels), measurement.name, measurement.unit)
        # What was judged keeps the judgement's value; NaN and infinity are no reference.
        if key is None or key in numbers or not measurement.finite:
            continue
        if key[2:] in accepted_quantities:
            numbers[key] = measurement.value, measurement.direction
    return numbers


def _judged_numbers(run: Run, topology: Topology) -> dict[NumberKey, tuple[float, Direction | None]]:
    numbers: dict[NumberKey, tuple[float, Direction | None]] = {}
    # A judgement states no direction: the measurement of its metric does.
    directions = {one.name: one.direction for one in run.measurements if one.direction is not None}
    for judged in run.judgements:
        key = number_key(run, topology.place(judged.labels), judged.metric, judged.unit)
        if key is not None and judged.value is not None and _may_become_reference(judged):
            numbers[key] = judged.value, directions.get(judged.metric)
    return numbers


def number_key(run: Run, place: Place, metric: str, unit: str) -> NumberKey | None:
    """Return the key of a number, ``None`` where its hardware is unknown."""
    if place.hardware is None:
        return None
    measured = quantity_of(run.benchmark, canonical_json(run.parameters), metric, place.labels, unit)
    return place.hardware.kind.value, place.hardware.key, measured.digest, measured.unit


def _may_become_reference(judged: Judgement) -> bool:
    passed_own_reference = (
        judged.verdict is Verdict.PASS
        and judged.reference is not None
        and judged.reference.source.startswith(OWN_HISTORY)
    )
    return is_candidate(judged) or passed_own_reference
