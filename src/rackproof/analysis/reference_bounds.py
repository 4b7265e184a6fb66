"""Propose references with bounds, from the noise of repeated runs on healthy machines. No I/O.

``rackproof references`` calls :func:`propose_references` with recorded runs of one SKU, and prints each
proposal as an entry of the SKU's group_vars (:func:`reference_entry`). A proposal contains the bound, and the
smallest loss that the bound always finds. A close bound causes false alarms on healthy machines, and a wide
bound misses faults. The spread is the range of all values as a fraction of their median.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from rackproof.analysis.representative import DEVICE_LABELS, MATRIX_LABELS
from rackproof.core.judging import UNFIT_VERDICTS, unfit_evidence
from rackproof.core.records import Direction, Judgement, Measurement, Record, Run, Verdict
from rackproof.core.text import amount
from rackproof.store.history.identity import Topology
from rackproof.store.history.references import measured_objection

FEWEST_RUNS = 5
"""A spread needs this many runs. On average, two thirds of later values lie in the range of five values, so
the proposed bound is twice the spread."""
TIGHTEST = 0.03
"""No default bound is smaller. Power, clocks and cooling of healthy GPUs differ by this much between
hosts."""
TIGHTEST_OF_FEW = 0.05
"""No default bound for runs on one or two machines is smaller. In one measurement, two pairs of H100 agreed,
and a third was 3.4 % slower."""
MACHINES = 3
"""Smallest number of machines whose runs show the differences between machines."""
WIDEST = 0.15
"""Largest bound. A wider one would miss most faults."""
_WIDEST_SPREAD = 1e6
"""No larger spread is computed. The quotient of a huge and a tiny value may not be a finite number."""
FASTER = 0.25
"""Largest plausible gain over a reference. A larger one means that something else was measured."""
_PART_LABELS = DEVICE_LABELS - MATRIX_LABELS - {"device"}
"""Labels that identify one of several equal parts. `device` distinguishes a processor from a GPU. Each cell
of a matrix has a reference of its own, because the wiring may differ between pairs."""

_OF_NO_SPEED = re.compile(r"seconds|seed|target\w*|\w+_limit(?:_s)?")
"""Pattern of the parameters that change the length or the limits of a run, but not its speed."""

Key = tuple[str, tuple[tuple[str, Any], ...], str, str, tuple[tuple[str, str], ...]]
"""The identity of a quantity: benchmark, sorted parameters, metric, unit and sorted labels."""


class ProposedReference(Record):
    """A proposed reference for one quantity, with the repeated runs that it rests on."""

    benchmark: str
    parameters: dict[str, str | int | float | bool | None]
    metric: str
    unit: str
    labels: dict[str, str]
    direction: Direction
    runs: int
    machines: int
    lowest: float
    highest: float
    value: float
    """Median of all values."""
    spread: float
    """Range of the values as a fraction of the median."""
    bound: float
    """Largest loss of a later value relative to ``value``, as a fraction."""
    smallest_loss: float
    """Loss, as a fraction, that takes even the best of the values beyond the bound. A smaller loss may pass
    unnoticed."""
    objection: str = ""
    """Reason why these runs give no reference, or empty."""


def propose_references(
    runs: Iterable[Run],
    *,
    bound: float | None = None,
    fewest_runs: int = FEWEST_RUNS,
    plausible: bool = True,
) -> list[ProposedReference]:
    """Return a proposed reference for each speed that the benchmarks of repeated runs judge.

    Args:
        runs: The runs of healthy machines of one SKU. A run with a fault, or with a speed that is degraded
            by an earlier reference, is left out. A run that only lacks references is used.
        bound: The required bound, as a fraction. None means twice the spread, rounded up to a whole per cent,
            but at least :func:`tightest_bound`.
        fewest_runs: The number of runs that a quantity needs.
        plausible: Whether a number that ``rackproof accept`` refuses for its GPU model is an objection.

    Returns:
        One entry for each benchmark, point, metric, unit and label set, in that order. Entries with an
        objection are included. A parameter that only other runs of the benchmark set is "".
    """
    values: dict[Key, list[float]] = defaultdict(list)
    sources: dict[Key, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    directions: dict[Key, Direction] = {}
    names: dict[str, set[str]] = defaultdict(set)
    implausible: dict[Key, str] = {}
    for run in runs:
        if not _is_sound(run):
            continue
        names[run.benchmark] |= _point(run).keys()
        speeds, topology = _judged_speeds(run), Topology(run.nodes)
        for measurement in run.measurements:
            if measurement.direction is None or not measurement.finite or not _is_judged(measurement, speeds):
                continue
            key = _key(run, measurement)
            values[key].append(measurement.value)
            directions[key] = measurement.direction
            run_ids, machines = sources[key]
            run_ids.add(run.run_id)
            machines.add(_machine(run))
            if plausible and (text := _implausible(run, topology, measurement)):
                implausible.setdefault(key, text)
    proposed = (
        _proposed(
            key, values[key], directions[key], sources[key], bound, fewest_runs, implausible.get(key, "")
        )
        for key in sorted(values, key=repr)
    )
    # A parameter that only other runs set is part of the point as well.
    return [
        measurement.model_copy(
            update={
                "parameters": dict.fromkeys(sorted(names[measurement.benchmark]), "") | measurement.parameters
            }
        )
        for measurement in proposed
    ]


def _is_sound(run: Run) -> bool:
    """Return whether a run has no fault. Its speeds may still lack a reference."""
    if run.is_of_test_rack or any(unfit_evidence(run)):
        return False
    return all(
        judgement.verdict not in UNFIT_VERDICTS or _lacks_reference(judgement) for judgement in run.judgements
    )


def _lacks_reference(judgement: Judgement) -> bool:
    """Return whether a measured value is unproven only because it has no reference."""
    return (
        judgement.verdict is Verdict.UNPROVEN and judgement.reference is None and judgement.value is not None
    )


def _judged_speeds(run: Run) -> dict[str, list[Mapping[str, str]]]:
    """Return the labels of the measurements whose speed was judged, by metric."""
    judged: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for judgement in filter(judges_speed, run.judgements):
        judged[judgement.metric].append(judgement.labels)
    return judged


def judges_speed(judgement: Judgement) -> bool:
    """Return whether a judgement is about a speed or a time, not about quality.

    A rule about quality has a bound of 0, which is the target itself.
    """
    reference = judgement.reference
    return reference is None or 0 not in (reference.low, reference.high)


def _is_judged(measurement: Measurement, speeds: Mapping[str, Sequence[Mapping[str, str]]]) -> bool:
    """Return whether a judgement applies to a measurement.

    A judgement applies if its metric is the measurement's name, and if the measurement has all labels of the
    judgement.
    """
    return any(labels.items() <= measurement.labels.items() for labels in speeds.get(measurement.name, ()))


def _implausible(run: Run, topology: Topology, measurement: Measurement) -> str:
    """Return why a number cannot be that of a healthy GPU of its model, or ""."""
    objection = measured_objection(run, topology.place(measurement.labels).hardware, measurement)
    return f"{objection} ({run.run_id}): find the cause, or give --despite WHY" if objection else ""


def _key(run: Run, measurement: Measurement) -> Key:
    """Return the identity of a quantity. Equal parts, such as the GPUs of all machines, are one quantity."""
    labels = tuple(sorted(item for item in measurement.labels.items() if item[0] not in _PART_LABELS))
    return run.benchmark, tuple(sorted(_point(run).items())), measurement.name, measurement.unit, labels


def _point(run: Run) -> dict[str, Any]:
    """Return the parameters of a run on which its speed depends."""
    return {name: value for name, value in run.parameters.items() if not _OF_NO_SPEED.fullmatch(name)}


def _machine(run: Run) -> str:
    """Return the identity of a run's nodes: the serial number (or else name) and GPU UUIDs of each."""
    return repr([(node.serial or node.name, sorted(gpu.uuid for gpu in node.gpus)) for node in run.nodes])


def _proposed(
    key: Key,
    values: Sequence[float],
    direction: Direction,
    sources: tuple[set[str], set[str]],
    asked: float | None,
    fewest_runs: int,
    implausible: str,
) -> ProposedReference:
    """Return the proposal for one quantity, with an objection if its values give no reference.

    ``implausible`` is an objection to one of the values, or "".
    """
    benchmark, parameters, metric, unit, labels = key
    # The mean of two values beyond 1e308 overflows, but no median is above the largest value.
    low, high, middle = min(values), max(values), min(median(values), max(values))
    # Without a positive median, fractions mean nothing, so assume a spread too large for any reference.
    spread = min((high - low) / middle, _WIDEST_SPREAD) if middle > 0 else 1.0
    tightest = tightest_bound(len(sources[1]))
    bound = asked if asked is not None else max(tightest, math.ceil(200 * spread - 1e-9) / 100)
    # Compute the loss from the best healthy value, which is furthest from the bound.
    higher = direction is Direction.HIGHER
    loss = 1 - middle * (1 - bound) / (high or 1) if higher else middle * (1 + bound) / (low or 1) - 1
    return ProposedReference(
        benchmark=benchmark,
        parameters=dict(parameters),
        metric=metric,
        unit=unit,
        labels=dict(labels),
        direction=direction,
        runs=len(sources[0]),
        machines=len(sources[1]),
        lowest=low,
        highest=high,
        value=middle,
        spread=spread,
        bound=bound,
        smallest_loss=loss,
        objection=implausible or _objection(len(sources[0]), spread, bound, asked, fewest_runs),
    )


def tightest_bound(machines: int) -> float:
    """Return the smallest default bound, as a fraction, for runs on this number of machines."""
    return TIGHTEST if machines >= MACHINES else TIGHTEST_OF_FEW


def _objection(runs: int, spread: float, bound: float, asked: float | None, fewest_runs: int) -> str:
    """Return why values give no reference, or "".

    Either there are too few runs, the required bound would miss most faults or fail healthy machines, or the
    values vary too much. A required bound may be smaller than the smallest default bound.
    """
    if runs < fewest_runs:
        return f"{runs} sound runs, {fewest_runs} are needed: run it {fewest_runs - runs} more times"
    closest = math.ceil(2000 * spread - 1e-6) / 1000
    if asked is not None and asked > WIDEST >= closest:
        return f"a bound of {asked:.1%} would miss most faults; {WIDEST:.1%} is the widest"
    if asked is not None and asked < 2 * spread - 1e-9 and closest <= WIDEST:
        return (
            f"healthy values differ by {spread:.1%}: a bound of {asked:.1%} is within twice that, and would "
            f"call healthy machines bad; {closest:.1%} is the closest"
        )
    if max(bound, closest) > WIDEST:
        return f"healthy values differ by {spread:.1%}: too much to judge by; only show the number"
    return ""


def reference_entry(one: ProposedReference, source: str) -> dict[str, Any]:
    """Return an entry of `bench_sku_references` in a SKU's group_vars.

    The entry applies to the measured point alone, because another model, batch size or network has another
    speed. Empty parameters and labels are left out.

    Args:
        one: A proposal without objection.
        source: The place of the measurement, in words.
    """
    # Keep at least four significant digits.
    digits = 4 - math.ceil(math.log10(abs(one.value)))
    value = round(one.value, max(0, digits))
    shown = f"{one.lowest:.4g} to {one.highest:.4g}"
    higher = one.direction is Direction.HIGHER
    entry: dict[str, Any] = {
        "benchmark": one.benchmark,
        "parameters": one.parameters,
        "metric": one.metric,
        "labels": one.labels,
        "value": int(value) if value == int(value) else value,
        "low": -round(one.bound, 4) if higher else -FASTER,
        "high": FASTER if higher else round(one.bound, 4),
        "unit": one.unit,
        "source": f"{source}, {amount(one.runs, 'run')}, machines {one.machines}: {shown}",
    }
    return {key: field for key, field in entry.items() if field not in ({}, "")}
