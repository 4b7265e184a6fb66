"""Test scaling efficiency, the share of the ideal throughput (:mod:`rackproof.analysis.mlperf.scaling`).

The ideal throughput of two GPUs is twice that of one GPU. These tests check the efficiency of measured rates,
its confidence interval over repeats, and the messages about rates that are impossible.
"""

from __future__ import annotations

import math

import pytest

from rackproof.analysis.mlperf.scaling import scaling_efficiency

RESNET = {1: 326.58, 2: 639.52, 4: 1277.06, 8: 2544.13}
"""Images per second of ResNet-50, by the number of GPUs, from the logs in tests/data/real/tf_cnn."""


@pytest.mark.parametrize(
    ("rates", "base", "efficiencies"),
    [
        (RESNET, None, {1: 1.0, 2: 0.979, 4: 0.978, 8: 0.974}),
        (RESNET, 2, {1: 1.021, 2: 1.0, 4: 0.998, 8: 0.995}),
        ({8: 2544.13, 4: 1277.06}, None, {4: 1.0, 8: 0.996}),
        ({72: 50.0}, None, {72: 1.0}),
        ({1: [100, 102], 2: [190, 194]}, None, {1: 1.0, 2: 0.950}),
    ],
)
def test_efficiency_is_the_share_of_the_ideal_throughput(
    rates: dict[int, float], base: int | None, efficiencies: dict[int, float]
) -> None:
    points = scaling_efficiency(rates, base)
    assert {point.devices: round(point.efficiency, 3) for point in points} == efficiencies
    assert {point.base for point in points} == {base or min(rates)}


@pytest.mark.parametrize("rate", [1e308, 1.7e308, 1e-308])
def test_rates_whose_sum_is_no_float_have_an_efficiency(rate: float) -> None:
    one, two = scaling_efficiency({1: [rate, rate], 2: [rate, rate]})
    assert (one.rate, one.efficiency) == (pytest.approx(rate), 1)
    assert two.efficiency == pytest.approx(0.5)


def test_the_interval_is_welchs() -> None:
    one, two = scaling_efficiency({1: [100.0, 102.0, 98.0, 100.0], 2: [190.0, 192.0, 188.0, 190.0]})
    assert (one.low, one.high, one.repeats) == (None, None, 4)
    # The means have relative variances of 0.6667e-4 and 0.1847e-4. With 4.5 degrees of freedom, t is 2.658.
    assert two.efficiency == pytest.approx(0.95)
    assert two.low == pytest.approx(0.95 * (1 - 0.02453), abs=2e-4)
    assert two.high == pytest.approx(0.95 * (1 + 0.02453), abs=2e-4)


@pytest.mark.parametrize("rates", [{1: 100.0, 2: [190.0, 191.0]}, {1: [100.0, 101.0], 2: [190.0]}])
def test_without_repeats_there_is_no_interval(rates: dict[int, float]) -> None:
    assert [point.low for point in scaling_efficiency(rates)] == [None, None]


def test_equal_repeats_give_an_interval_without_width() -> None:
    point = scaling_efficiency({1: [100.0, 100.0], 2: [190.0, 190.0]})[1]
    assert point.low == point.high == point.efficiency == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("rates", "options", "message"),
    [
        ({}, {}, "no rates"),
        ({1: 0.0, 2: 1.0}, {}, "for 1 devices must be a positive number"),
        ({1: 1.0, 2: math.nan}, {}, "for 2 devices must be a positive number"),
        ({1: 1.0, 2: [2.0, math.inf]}, {}, "positive number"),
        ({1: 1.0, 2: -2.0}, {}, "positive number"),
        ({1: 1.0, 2: []}, {}, "no rate for 2 devices"),
        ({0: 1.0}, {}, "at least 1"),
        (RESNET, {"base": 3}, "base 3 was not measured; there are 1, 2, 4, 8"),
        (RESNET, {"confidence": 1.0}, "between 0 and 1"),
    ],
)
def test_wrong_rates_and_options_are_refused(
    rates: dict[int, float], options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        scaling_efficiency(rates, **options)  # type: ignore[arg-type]
