"""Compute scaling efficiency, the share of the ideal throughput, for scaling studies. No I/O.

If two GPUs reach 426 images/s, and one alone 226, the efficiency is 426 / (2 * 226) = 0.94.
:mod:`rackproof.analysis.scaling_study` calls :func:`scaling_efficiency`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rackproof.analysis.intervals import mean, ratio_half_width
from rackproof.core.records import Record


class ScalingPoint(Record):
    """The throughput at one size (``devices``), compared with the base size.

    ``rate`` is the mean throughput of the ``repeats``. ``efficiency`` is
    ``rate / (devices / base * rate at base)``, and 1.0 is ideal. ``low`` and ``high`` are its interval with
    the stated ``confidence``. Both are ``None`` for the base, and if this size or the base was not measured
    at least twice.
    """

    devices: int
    base: int
    rate: float
    repeats: int
    efficiency: float
    low: float | None = None
    high: float | None = None
    confidence: float


def scaling_efficiency(
    rates: Mapping[int, float | Sequence[float]], base: int | None = None, *, confidence: float = 0.95
) -> tuple[ScalingPoint, ...]:
    """Return the scaling efficiency at each number of devices, fewest first.

    :func:`rackproof.analysis.intervals.ratio_half_width` gives the interval.

    Args:
        rates: The throughput for each number of devices (or nodes), all in the same unit. A sequence lists
            repeats.
        base: The size to compare with. The default is the smallest size in ``rates``.
        confidence: The confidence level of the interval, between 0 and 1.

    Raises:
        ValueError: There are no rates, a rate is not a positive finite number, a size is below 1, the
            base was not measured, or the confidence is outside (0, 1).
    """
    if not rates:
        raise ValueError("no rates to compute a scaling efficiency from")
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence must lie between 0 and 1, not {confidence}")
    samples = {devices: _samples(devices, rates[devices]) for devices in sorted(rates)}
    start = min(samples) if base is None else base
    if start not in samples:
        raise ValueError(f"the base {start} was not measured; there are {', '.join(map(str, samples))}")
    reference = samples[start]
    return tuple(_point(devices, values, start, reference, confidence) for devices, values in samples.items())


def _point(
    devices: int, values: Sequence[float], base: int, reference: Sequence[float], confidence: float
) -> ScalingPoint:
    """Return the point of a size. ``reference`` has the rates of the base."""
    efficiency = mean(values) / mean(reference) * base / devices
    # The base compared with itself is 1 by definition, whatever the spread of its repeats is.
    half = None if devices == base else ratio_half_width(values, reference, confidence)
    return ScalingPoint(
        devices=devices,
        base=base,
        rate=mean(values),
        repeats=len(values),
        efficiency=efficiency,
        low=None if half is None else efficiency * (1 - half),
        high=None if half is None else efficiency * (1 + half),
        confidence=confidence,
    )


def _samples(devices: int, rate: float | Sequence[float]) -> tuple[float, ...]:
    """Return the rates of a size, or raise a ValueError if the size or a rate is not possible."""
    if devices < 1:
        raise ValueError(f"the number of devices must be at least 1, not {devices}")
    values = tuple(map(float, rate)) if isinstance(rate, Sequence) else (float(rate),)
    if not values:
        raise ValueError(f"no rate for {devices} devices")
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"the rate for {devices} devices must be a positive number, not {value}")
    return values
