"""Test confidence intervals over repeats (:mod:`rackproof.analysis.intervals`).

Comparisons of systems and scaling studies show them beside a mean or a ratio of means. These tests
compare quantiles and intervals with tables and closed forms of Student's t distribution, also for values near
the limits of a float.
"""

from __future__ import annotations

import math

import pytest

from rackproof.analysis.intervals import mean, mean_half_width, ratio_half_width, t_quantile


# The quantiles are from tables of Student's t distribution.
@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [
        (0.975, 1, 12.706205),
        (0.975, 2, 4.302653),
        (0.975, 4, 2.776445),
        (0.975, 30, 2.042272),
        (0.95, 9, 1.833113),
        (0.995, 5, 4.032143),
        (0.9995, 3, 12.923979),
        (0.975, 1e6, 1.959966),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_agree_with_the_tables(probability: float, freedom: float, quantile: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(quantile, abs=2e-6)


def test_quantiles_of_fractional_degrees_of_freedom_lie_between_those_of_whole_ones() -> None:
    assert t_quantile(0.975, 5) < t_quantile(0.975, 4.5) < t_quantile(0.975, 4)


# With one degree of freedom, it is the Cauchy distribution. With two, the quantile has a closed form, too.
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.99, 0.9999])
def test_quantiles_agree_with_the_closed_forms(probability: float) -> None:
    assert t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-9)
    spread = 4 * probability * (1 - probability)
    assert t_quantile(probability, 2) == pytest.approx(
        2 * (probability - 0.5) * math.sqrt(2 / spread), rel=1e-9
    )


@pytest.mark.parametrize(("probability", "freedom"), [(0.4, 3), (1.0, 3), (0.9, 0), (math.nan, 3)])
def test_arguments_out_of_range_are_refused(probability: float, freedom: float) -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(probability, freedom)


def test_the_interval_of_a_mean_needs_repeats() -> None:
    # The standard deviation of the three values is 2, so the half width is 4.302653 * 2 / sqrt(3).
    assert mean_half_width([10, 12, 14], 0.95) == pytest.approx(4.96828, abs=1e-5)
    assert mean_half_width([10], 0.95) is None


def test_a_ratio_needs_repeats_on_both_sides() -> None:
    assert ratio_half_width([1, 2], [1], 0.95) is None
    assert ratio_half_width([1], [1, 2], 0.95) is None
    assert ratio_half_width([2, 2], [1, 1], 0.95) == 0


@pytest.mark.parametrize("factor", [1e-300, 1e-200, 1e-155, 1e155, 1e200, 1e307])
def test_means_and_intervals_scale_to_very_large_and_small_values(factor: float) -> None:
    values = [1.0 * factor, 1.2 * factor, 1.7 * factor]
    assert mean(values) == pytest.approx(1.3 * factor, rel=1e-6, abs=0)
    assert mean_half_width(values, 0.95) == pytest.approx(0.8956686 * factor, rel=1e-6, abs=0)
    assert ratio_half_width(values, [1.0, 1.2, 1.7], 0.95) == pytest.approx(
        ratio_half_width([1.0, 1.2, 1.7], [1.0, 1.2, 1.7], 0.95)
    )


def test_values_of_both_signs_and_zeros_have_a_mean() -> None:
    assert mean([0.0, 0.0]) == 0
    assert mean([-3.0, 1.0]) == -1
    assert mean([0.1, 0.2, 0.4]) == pytest.approx(0.7 / 3)
