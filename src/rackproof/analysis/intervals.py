"""Confidence intervals over repeats: of a mean, and of the ratio of two means.

Nothing is drawn at random: the same repeats give the same interval. One repeat has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, variance

_TINY = 1e-300
_ENOUGH = 1e-15


def t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution, to about ten digits.

    Args:
        probability: At least 0.5 and below 1.
        freedom: Degrees of freedom, more than 0; need not be whole (Welch and Satterthwaite).

    Raises:
        ValueError: An argument outside its range.
    """
    if not 0.5 <= probability < 1 or not freedom > 0:
        raise ValueError(f"no t quantile of {probability} with {freedom} degrees of freedom")
    tail = 2 * (1 - probability)

    def too_small(t: float) -> bool:
        # Two-sided tail of t: the incomplete beta function (Abramowitz and Stegun, 26.5.27 and 26.7.1).
        return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) > tail

    return _root(too_small)


def _root(too_small: Callable[[float], bool]) -> float:
    high = 1.0
    while too_small(high) and high < _TINY**-0.5:
        high *= 2
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b) for 0 <= x <= 1."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    # The continued fraction converges fast on this side only.
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logarithm + a * math.log(x) + b * math.log1p(-x)) / a

    def kept(value: float) -> float:
        return value if abs(value) > _TINY else _TINY

    # Lentz's method on Abramowitz and Stegun, 26.5.8.
    c, d = 1.0, 1 / kept(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 10_000):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / kept(1 + step * d)
            c = kept(1 + step / c)
            result *= c * d
        if abs(c * d - 1) < _ENOUGH:
            break
    return front * result


def mean_half_width(values: Sequence[float], confidence: float) -> float | None:
    """Return half the width of the t interval of a mean, in the values' unit; ``None`` for one value."""
    if len(values) < 2:
        return None
    width = t_quantile((1 + confidence) / 2, len(values) - 1)
    return width * math.sqrt(variance(values) / len(values))


def ratio_half_width(values: Sequence[float], base: Sequence[float], confidence: float) -> float | None:
    """Return half the width of the interval of ``mean(values) / mean(base)`` as a fraction of it.

    The interval is Welch's: the relative variances of the two means add up, their degrees of freedom
    follow Welch and Satterthwaite, and a t quantile gives the width. To first order it is the t interval
    of the ratio's logarithm.

    Args:
        values: Repeats above the line, positive.
        base: Repeats below the line, positive.
        confidence: Probability that the interval is to hold, between 0 and 1.

    Returns:
        The fraction; ``None`` where either side was not measured at least twice.
    """
    if min(len(values), len(base)) < 2:
        return None
    parts = [(variance(one) / len(one) / fmean(one) ** 2, len(one) - 1) for one in (values, base)]
    total = math.fsum(part for part, _ in parts)
    if total == 0:
        return 0.0
    freedom = total**2 / math.fsum(part**2 / degrees for part, degrees in parts)
    return t_quantile((1 + confidence) / 2, freedom) * math.sqrt(total)
