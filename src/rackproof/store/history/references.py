"""Decide which numbers of a run become references, and make references from accepted numbers.

The history calls this module for ``rackproof accept``, and when a job needs a reference. Nights use
:func:`physical_objection`. The input is the run, the numbers of similar hardware, and the numbers that were
accepted before. The history (:mod:`rackproof.store.history.repository`) reads and writes the tables. The
module does no I/O.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from rackproof.core.gpu_models import GpuPhysics, is_card, physics_of
from rackproof.core.judging import TIME_UNITS, UNFIT_VERDICTS, judge, unfit_evidence
from rackproof.core.records import Direction, Judgement, Measurement, Reference, Run, Verdict
from rackproof.core.text import whole_number
from rackproof.store.history.identity import Kind, Part, Place, Topology, bounded_key, canonical_json
from rackproof.store.history.writer import is_candidate, quantity_of

DEFAULT_LOW = -0.07
"""A number fails if it is more than 7 % worse than an accepted reference (two public health checks
use 5 and 7 %)."""

DEFAULT_HIGH = 0.25
"""A number more than 25 % better than an accepted reference is too good to be true."""

DEFAULT_WARN = -0.035
"""A number more than 3.5 % worse than an accepted reference is degraded."""

OWN_HISTORY = "own history"
"""The source of each reference that this module makes begins with these words."""

_RUNS_NAMED = 5
"""Largest number of runs that a reference's source names. Of more, the first and the latest are named."""


def accepted_reference(rows: Sequence[Any]) -> Reference:
    """Return the reference from the acceptances of a quantity on one piece of hardware.

    Its value is the median of the accepted numbers, and its bounds are those of the latest acceptance.

    Args:
        rows: The acceptances, latest first. Each has the columns of ``schema.baselines`` and the unit.
    """
    latest = rows[0]
    # A number in another unit is another quantity, even if the names are the same.
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
    """Return a bound with its sign changed, for a measurement where lower is better. None remains None."""
    return None if bound is None else -bound


def acceptance_objection(run: Run) -> str:
    """Return the reason why a run's numbers must not become references, or "" if they may."""
    if run.verdict in (Verdict.FAIL, Verdict.DEGRADED):
        # An empty reason must not be returned, because "" means that there is no objection.
        return next(filter(None, run.reasons), f"it is {run.verdict.value}")
    # The verdict is not enough. A run may be unproven only because it lacks the references that it will
    # provide.
    objection = next(_bad_evidence(run), None)
    if objection is not None:
        return objection
    return next(_blank_names(run), "")


def _blank_names(run: Run) -> Iterator[str]:
    """Yield an objection for each name or unit with stray blanks. No later run would match it."""
    named = {(measurement.name, measurement.unit) for measurement in run.measurements}
    for name, unit in sorted(named | {(judgement.metric, judgement.unit) for judgement in run.judgements}):
        if any(text != " ".join(text.split()) for text in (name, unit)):
            yield f"{name!r} in {unit!r} has blanks that no other run would have"


def _bad_evidence(run: Run) -> Iterator[str]:
    """Yield the objections to a run's numbers that its findings, logs, exit status and judgements give."""
    yield from unfit_evidence(run)
    for judged in run.judgements:
        if judged.gating and judged.verdict in UNFIT_VERDICTS and not is_candidate(judged):
            yield f"{judged.metric} is {judged.verdict.value}: {judged.reason}"
        elif contradiction := _contradiction(run, judged):
            yield contradiction


def _contradiction(run: Run, judged: Judgement) -> str:
    """Return why a judgement is better than its number and reference allow, or "" if it is not.

    If the run's measurements of this name do not agree on a direction, nothing is checked.
    """
    if judged.value is None or judged.reference is None or judged.verdict in (Verdict.FAIL, Verdict.UNPROVEN):
        return ""
    directions = {
        measurement.direction for measurement in run.measurements if measurement.name == judged.metric
    }
    if len(directions) != 1:
        return ""
    # The bound of a rule decides, as in the run: `at_most: 1` for a number of which more is better.
    rule = {(None, 0.0): Direction.LOWER, (0.0, None): Direction.HIGHER}
    better = rule.get((judged.reference.low, judged.reference.high))
    number = Measurement(
        name=judged.metric,
        value=judged.value,
        unit=judged.unit,
        direction=directions.pop(),
        labels=judged.labels,
    )
    new_judgement = judge(number, judged.reference, direction=better)
    if new_judgement.verdict in (Verdict.PASS, Verdict.DEGRADED):
        return ""
    return f"{judged.metric} has the verdict {judged.verdict.value}, but its number is {new_judgement.reason}"


FLEET_DEVIATION = 0.1
"""Largest share by which an accepted number may be worse than the median of like hardware."""
HOST_COPY_DEVIATION = 0.25
"""The share :data:`FLEET_DEVIATION` for copies between host and GPU. The speed of these copies also depends
on the processor that the GPU is attached to."""
CHAIN_DEVIATION = 0.05
"""Largest share by which an accepted number may be worse than the first one, and by which the median of the
accepted numbers may differ from the first one. The share does not grow with the number of acceptances."""
_SMALLEST, _LARGEST = 1e-15, 1e18
"""Limits of the size of a number in any unit, except 0."""
_C2C = 450.0
"""Bandwidth in GB/s of the link between a Grace CPU and its GPU."""
_HOST_COPIES = ("host_to_device", "device_to_host")
_ALL_REDUCE = ((1 << 30, 0.6, 900), (1 << 28, 0.6, 450), (1 << 26, 0.45, 450), (1 << 23, 0.2, 450))
_ONE_WAY = ((1 << 30, 0.56, 900), (1 << 28, 0.48, 450), (1 << 26, 0.38, 450), (1 << 23, 0.2, 450))
_LEAST_OF_LINKS = {
    "all_reduce_busbw": _ALL_REDUCE,
    "all_gather_busbw": _ONE_WAY,
    "reduce_scatter_busbw": _ONE_WAY,
}
"""A number below these shares of the links' peak is not plausible for a healthy node.

Each row has the size of a collective in bytes, and the share from that size on. The third value is the
highest peak in GB/s that counts, because faster links gain little at medium sizes. Without NVLS, the
slowest known healthy nodes (two or four H100) reach 0.73, 0.66, 0.57 and 0.34 with an all-reduce, and 0.59,
0.53, 0.44 and 0.25 with the other two (docs/results).
"""


def physical_objection(
    metric: str, labels: Mapping[str, str], unit: str, value: float, product: str, *, nodes: int = 1
) -> str:
    """Return why a number is not plausible for a healthy GPU of this model, or "" if it is.

    The number may be above the peak, lower than that of any healthy GPU, or of a size that no quantity has.
    Numbers of cards, bus bandwidths of several nodes, and copies to a Grace CPU are never too low.

    Args:
        metric: The name of the measurement.
        labels: Its labels. ``dtype`` is the precision.
        unit: The unit of the number.
        value: The number.
        product: The product name of the GPU.
        nodes: The number of nodes in the measurement. Between several nodes, the network is the limit,
            not the GPU's links.
    """
    if value and not _SMALLEST < abs(value) < _LARGEST:
        return f"{metric} is {value:g} {unit}: no quantity is that small or large"
    physics = physics_of(product)
    peak, share = (None, 0.0) if physics is None else _peak(physics, metric, labels, unit)
    if peak is None:
        return ""
    value_text = f"{metric} is {value:.6g} {unit}"
    if value > peak:
        return f"{value_text}, more than the peak of {product}, {peak:g} {unit}"
    if _has_lower_bound(metric, product, peak, nodes) and value < share * peak:
        return (
            f"{value_text}, but healthy ones of {product}, whose peak is {peak:g} {unit}, reach more than "
            f"{share * peak:.6g}"
        )
    return ""


def _has_lower_bound(metric: str, product: str, peak: float, nodes: int) -> bool:
    """Return whether the share of the peak that healthy GPUs reach is a bound for a number."""
    # Copies to a Grace CPU and numbers of PCIe cards vary too much for a lower bound.
    if is_card(product) or (metric in _HOST_COPIES and peak == _C2C):
        return False
    return nodes == 1 or not metric.endswith("busbw")


def _is_bounded_below(measurement: Measurement, product: str, nodes: int) -> bool:
    """Return whether a data sheet's lower bound limits a number."""
    physics = physics_of(product)
    if physics is None:
        return False
    peak, share = _peak(physics, measurement.name, measurement.labels, measurement.unit)
    return peak is not None and share > 0 and _has_lower_bound(measurement.name, product, peak, nodes)


def _peak(
    physics: GpuPhysics, metric: str, labels: Mapping[str, str], unit: str
) -> tuple[float | None, float]:
    """Return a model's peak, or None if unknown in this unit, and the share that healthy GPUs reach.

    The shares are lower than what healthy GPUs reached. Relative to the data sheet, those reached 0.78
    to 0.80 in bf16, 0.71 to 0.76 in fp8, and 0.76 in fp32. Memory reached 0.87 to 0.90, copies between
    GPUs 0.84 to 0.88, and copies to the host 0.75 to 0.85.
    """
    dtype = labels.get("dtype", "")
    tflops = physics.tflops.get(dtype)
    peaks: dict[tuple[str, str], tuple[float | None, float]] = {
        ("gemm_best", "TFLOP/s"): (tflops, 0.6 if dtype in ("fp8", "fp16") else 0.67),
        ("gemm_fixed", "TFLOP/s"): (tflops, 0.67 if dtype == "fp32" else 0.0),
        ("model_flops", "TFLOP/s"): (tflops, 0.0),
        # Small shapes reach only a small share of the peak.
        ("gemm", "TFLOP/s"): (tflops, 0.0),
        ("memory_copy", "TB/s"): (physics.memory, 0.78),
        ("memory_triad", "TB/s"): (physics.memory, 0.78),
        ("host_to_device", "GB/s"): (physics.host, 0.65),
        ("device_to_host", "GB/s"): (physics.host, 0.65),
        ("peer_copy", "GB/s"): (physics.nvlink, 0.72 if physics.even_links else 0.0),
    }
    if metric.endswith("busbw") and unit == "GB/s":
        return _peak_of_links(physics, metric, labels)
    return peaks.get((metric, unit), (None, 0.0))


def _peak_of_links(physics: GpuPhysics, metric: str, labels: Mapping[str, str]) -> tuple[float | None, float]:
    """Return the peak of a collective's bus bandwidth in GB/s, and the share that a healthy node reaches.

    The peak is None for a measurement of processors.
    """
    if labels.get("device") == "cpu":
        return None, 0.0
    peak, size, least = 2 * physics.nvlink, whole_number(labels.get("size_bytes", "")), 0.0
    if metric in _LEAST_OF_LINKS and physics.even_links and size is not None:
        rows = (row for row in _LEAST_OF_LINKS[metric] if size >= row[0])
        least = next((share * min(physics.nvlink, most) for _, share, most in rows), 0.0)
    return peak, least / peak


IN_RUN, IN_HISTORY = "in the same run", "of its kind in the history"
ACCEPTED_FIRST = "of its kind that was accepted first"


def comparison_objection(
    metric: str, value: float, others: Sequence[float], direction: Direction | None, which: str = IN_HISTORY
) -> str:
    """Return why a number is too far from the numbers of other hardware, or "".

    Args:
        metric: The name of the measurement.
        value: The number.
        others: One number of each other piece of hardware.
        direction: The better direction. Without a direction, a deviation to either side counts.
        which: The origin of the other numbers, in words.
    """
    if not others:
        return ""
    middle = statistics.median(others)
    loss = loss_of(value, middle, direction)
    if loss <= (HOST_COPY_DEVIATION if metric in _HOST_COPIES else FLEET_DEVIATION):
        return ""
    count = f"the median of {len(others)} others" if len(others) > 1 else "the other"
    return f"{value:.6g} is {_share_text(loss, 0)} worse than {count} {which}, {middle:.6g}"


def loss_of(value: float, reference: float, direction: Direction | None) -> float:
    """Return how much worse a value is than a reference, as a fraction of the reference.

    The result is negative if the value is better. If the better direction is unknown, a deviation to
    either side is a loss. Beside a reference of 0, every other value is infinitely worse or better.
    """
    if reference:
        share = (value - reference) / abs(reference)
    else:
        share = math.copysign(math.inf, value) if value else 0.0
    return {Direction.HIGHER: -share, Direction.LOWER: share, None: abs(share)}[direction]


def _share_text(share: float, places: int) -> str:
    """Return a loss in per cent, or "far" if it has no size."""
    return f"{share:.{places}%}" if math.isfinite(share) else "far"


def better_way(direction: Direction | None, unit: str) -> Direction | None:
    """Return the better direction of a measurement, which may follow from its unit, or None if unknown."""
    if direction is not None:
        return direction
    if unit in TIME_UNITS:
        return Direction.LOWER
    return Direction.HIGHER if "/s" in unit else None


@dataclass(frozen=True)
class AcceptedNumber:
    """A number that was accepted for a piece of hardware.

    Attributes:
        standing: Whether the number is part of the reference. A number that was withdrawn without a reason is
            not, but it still limits later acceptances.
    """

    run_id: str
    value: float
    moment: datetime
    standing: bool = True


def drift_objection(accepted: Sequence[AcceptedNumber], value: float, direction: Direction | None) -> str:
    """Return why a number moves a reference too far from the first accepted one, or "".

    The number must not be worse than the first one by more than :data:`CHAIN_DEVIATION`. The median of the
    new number and those that are part of the reference must not move further than that to either side. A
    higher reference would degrade a machine that was healthy before.

    Args:
        accepted: The accepted numbers of the same quantity on the same hardware.
        value: The number.
        direction: The better direction.
    """
    if not accepted:
        return ""
    oldest = min(accepted, key=lambda acceptance: (acceptance.moment, acceptance.run_id))
    middle = statistics.median([*(acceptance.value for acceptance in accepted if acceptance.standing), value])
    loss = loss_of(value, oldest.value, direction)
    moved = loss_of(middle, oldest.value, None)
    if max(loss, moved) <= CHAIN_DEVIATION:
        return ""
    if loss > CHAIN_DEVIATION:
        text = (
            f"{value:.6g} is {_share_text(loss, 1)} worse than {oldest.value:.6g} (accepted first, from "
            f"{oldest.run_id})"
        )
    else:
        text = (
            f"it would move a reference from {oldest.value:.6g} (accepted first, from {oldest.run_id}) to "
            f"{middle:.6g}, {_share_text(moved, 1)} away"
        )
    return (
        f"{text}, and accepted numbers stay within {CHAIN_DEVIATION:.0%} of the first; if the hardware was "
        "changed on purpose, withdraw the old one first: "
        f"rackproof withdraw {oldest.run_id} --reason WHY"
    )


def product_on(run: Run, kind: str, key: str) -> str:
    """Return the product name of the GPUs that a number was measured on, or "" if unknown or ambiguous."""
    gpus = [gpu for node in run.nodes for gpu in node.gpus]
    if kind == Kind.GPU.value:
        gpus = [gpu for gpu in gpus if bounded_key(gpu.uuid) == key]
    names = {gpu.name for gpu in gpus}
    return names.pop() if len(names) == 1 else ""


def measured_objection(run: Run, part: Part | None, measurement: Measurement) -> str:
    """Return why a run's number is not plausible for the GPUs of a part of its hardware, or "" if it is.

    Without a part, the number is compared with the model of all GPUs of the run.
    """
    product = product_on(run, *(("", "") if part is None else (part.kind.value, part.key)))
    return physical_objection(
        measurement.name,
        measurement.labels,
        measurement.unit,
        measurement.value,
        product,
        nodes=len(run.nodes),
    )


def is_comparable(product: str, kind: Kind) -> bool:
    """Return whether numbers of this kind of hardware can be compared.

    All GPUs and nodes of a product are equally fast. Its links are equally fast only if a switch connects the
    GPUs.
    """
    if kind is not Kind.LINK:
        return True
    physics = physics_of(product)
    return physics is not None and physics.even_links and not is_card(product)


NumberKey = tuple[str, str, str, str]
"""Kind and key of the hardware, and digest and unit of the quantity."""
Numbers = Mapping[NumberKey, tuple[float, Direction | None]]
"""Numbers that may become references, each with its direction."""


def acceptable_numbers(run: Run, topology: Topology) -> dict[NumberKey, tuple[float, Direction | None]]:
    """Return the numbers of a run that may become references, with their directions.

    Candidates among the judgements may, and so may numbers that passed an accepted reference. If only one of
    several GPUs was judged, the same measurements of the other GPUs are included.
    """
    numbers = _judged_numbers(run, topology)
    accepted_quantities = {key[2:] for key in numbers}
    for measurement in run.measurements:
        key = number_key(run, topology.place(measurement.labels), measurement.name, measurement.unit)
        # A judged number keeps the judgement's value. NaN and infinity cannot be references.
        if key is None or key in numbers or not measurement.finite:
            continue
        if key[2:] in accepted_quantities:
            numbers[key] = measurement.value, better_way(measurement.direction, measurement.unit)
    return numbers


def _judged_numbers(run: Run, topology: Topology) -> dict[NumberKey, tuple[float, Direction | None]]:
    """Return the judged numbers of a run that may become references."""
    numbers: dict[NumberKey, tuple[float, Direction | None]] = {}
    # A judgement states no direction, so take the direction from the measurement of its metric.
    directions = {
        measurement.name: measurement.direction
        for measurement in run.measurements
        if measurement.direction is not None
    }
    for judged in run.judgements:
        key = number_key(run, topology.place(judged.labels), judged.metric, judged.unit)
        if key is not None and judged.value is not None and _may_become_reference(judged):
            numbers[key] = judged.value, better_way(directions.get(judged.metric), judged.unit)
    return numbers


def number_key(run: Run, location: Place, metric: str, unit: str) -> NumberKey | None:
    """Return the key of a number, or ``None`` if its hardware is unknown."""
    if location.hardware is None:
        return None
    measured = quantity_of(run.benchmark, canonical_json(run.parameters), metric, location.labels, unit)
    return location.hardware.kind.value, location.hardware.key, measured.digest, measured.unit


class Others(NamedTuple):
    """The numbers to compare a number with before it becomes a reference."""

    metric: str
    in_run: Sequence[float]
    in_history: Sequence[float]
    """One number from each other piece of hardware of the same kind."""
    accepted_first: Sequence[float]
    """The number that was accepted first, if there is one. It keeps references from drifting if each new
    machine is a little worse than the one before."""

    def objection(self, value: float, direction: Direction | None) -> str:
        """Return why a number is too far from the others, or "" if it is not, or if none are known."""
        groups = (
            (self.in_run, IN_RUN),
            (self.in_history, IN_HISTORY),
            (self.accepted_first, ACCEPTED_FIRST),
        )
        objections = (
            comparison_objection(self.metric, value, values, direction, which) for values, which in groups
        )
        return next(filter(None, objections), "")

    @property
    def are_known(self) -> bool:
        """Return whether there are numbers to compare with."""
        return bool(self.in_run or self.in_history or self.accepted_first)


def keys_with_a_bound(run: Run, topology: Topology) -> set[NumberKey]:
    """Return the keys of a run's numbers that :func:`physical_objection` or a reference limits from below."""
    keys = set()
    for measurement in run.measurements:
        key = number_key(run, topology.place(measurement.labels), measurement.name, measurement.unit)
        if key is None:
            continue
        if _is_bounded_below(measurement, product_on(run, *key[:2]), len(run.nodes)):
            keys.add(key)
    for judged in run.judgements:
        key = number_key(run, topology.place(judged.labels), judged.metric, judged.unit)
        if key is not None and judged.reference is not None:
            keys.add(key)
    return keys


def _may_become_reference(judged: Judgement) -> bool:
    """Return whether a judgement lacked only a reference, or passed one from the own history."""
    passed_own_reference = (
        judged.verdict is Verdict.PASS
        and judged.reference is not None
        and judged.reference.source.startswith(OWN_HISTORY)
    )
    return is_candidate(judged) or passed_own_reference
