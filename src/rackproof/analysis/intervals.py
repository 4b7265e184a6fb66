"""Compute confidence intervals over repeats, for a mean and for the ratio of two means.

The comparison of systems and scaling studies call these functions with one value per run, for runs of one
benchmark at one point. A half width is half the width of an interval. A single run gives no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance


def t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution.

    Args:
        probability: The probability, at least 0.5 and below 1.
        freedom: The degrees of freedom, more than 0, not necessarily an integer (Welch and
            Satterthwaite).

    Raises:
        ValueError: An argument is outside its range.
    """
    if not 0.5 <= probability < 1 or not freedom > 0:
        raise ValueError(f"no t quantile of {probability} with {freedom} degrees of freedom")
    # scipy loads slowly, and a comparison without repeats needs no interval.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def mean(values: Sequence[float]) -> float:
    """Return the mean of one or more finite values, also if their sum exceeds the largest float."""
    scale = _scale(values)
    return fmean(value / scale for value in values) * scale


def mean_half_width(values: Sequence[float], confidence: float) -> float | None:
    """Return half the width of a mean's t interval, in the values' unit, or ``None`` for fewer than two.

    Raises:
        ValueError: The confidence is below 0, or not below 1.
    """
    if len(values) < 2:
        return None
    width = t_quantile((1 + confidence) / 2, len(values) - 1)
    scale = _scale(values)
    return width * scale * math.sqrt(variance(value / scale for value in values) / len(values))


def ratio_half_width(values: Sequence[float], base: Sequence[float], confidence: float) -> float | None:
    """Return half the width of the interval of ``mean(values) / mean(base)``, as a fraction of the ratio.

    Welch's interval adds the relative variances of the two means, and takes the degrees of freedom of Welch
    and Satterthwaite. A t quantile then gives the width. To first order, it is the t interval of the ratio's
    logarithm.

    Args:
        values: The repeats in the numerator, which are positive.
        base: The repeats in the denominator, which are positive.
        confidence: The confidence level of the interval, between 0 and 1.

    Returns:
        The fraction, or ``None`` if either side was not measured at least twice.

    Raises:
        ValueError: The confidence is below 0, or not below 1.
    """
    if min(len(values), len(base)) < 2:
        return None
    parts = [(_relative_variance(repeats), len(repeats) - 1) for repeats in (values, base)]
    total = math.fsum(part for part, _ in parts)
    # All repeats are equal, so the degrees of freedom would be 0 / 0.
    if total == 0:
        return 0.0
    freedom = total**2 / math.fsum(part**2 / degrees for part, degrees in parts)
    return t_quantile((1 + confidence) / 2, freedom) * math.sqrt(total)


def _relative_variance(values: Sequence[float]) -> float:
    """Return the variance of the mean of positive values, divided by the mean's square."""
    scale = _scale(values)
    scaled = [value / scale for value in values]
    return variance(scaled) / len(scaled) / fmean(scaled) ** 2


def _scale(values: Sequence[float]) -> float:
    """Return the largest power of two that is not above the largest absolute value, or 0.5 if all are 0.

    Sums and squares of values may be too large for a float, or 0. A division by a power of two is exact.
    """
    return math.ldexp(1.0, math.frexp(max(map(abs, values)))[1] - 1)
