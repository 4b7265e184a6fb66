"""References out of accepted runs: which runs and numbers may become one, and what several make together.

No I/O: the repository reads and writes the tables.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from rackproof.core.records import Direction, Judgement, Reference, Run, Verdict
from rackproof.store.history.identity import Place, Topology, canonical_json
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
    if run.verdict is Verdict.FAIL:
        return run.reasons[0] if run.reasons else "it failed"
    # Not the verdict alone: a run is unproven for want of references, and those it is to give.
    objection = next(_bad_evidence(run), None)
    if objection is not None:
        return objection
    if run.exit_status not in (0, None):
        return f"it ended with status {run.exit_status}"
    return ""


def _bad_evidence(run: Run) -> Iterator[str]:
    """Yield what of a run's findings, logs and judgements speaks against its numbers."""
    bad = (Verdict.FAIL, Verdict.UNPROVEN)
    for finding in run.findings:
        if finding.verdict in bad:
            yield finding.message
    for log in run.logs:
        if log.verdict in bad:
            yield f"its log {log.path} is {log.verdict.value}"
    for judged in run.judgements:
        if judged.gating and judged.verdict in bad and not is_candidate(judged):
            yield f"{judged.metric} is {judged.verdict.value}: {judged.reason}"


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
        key = _number_key(run, topology.place(measurement.labels), measurement.name, measurement.unit)
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
        key = _number_key(run, topology.place(judged.labels), judged.metric, judged.unit)
        if key is not None and judged.value is not None and _may_become_reference(judged):
            numbers[key] = judged.value, directions.get(judged.metric)
    return numbers


def _number_key(run: Run, place: Place, metric: str, unit: str) -> NumberKey | None:
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
