"""Test the simple rules (baselines.py) with which the fleet simulator compares a judge.

Each rule must flag a slow node of a night that was made by hand, and no good node.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.fleet_simulator.baselines import (
    BASELINES,
    Judge,
    NightLike,
    fixed_threshold_baseline,
    flags,
    median_minus_mads,
    own_history,
    superbench_similarity,
    superbench_variance,
)
from tests.fleet_simulator.simulation import Measurement


class HandmadeNight:
    """A night with given values by node, one for each GPU. All nodes have one SKU and one metric."""

    def __init__(
        self, number: int, values: dict[str, list[float]], sku: str = "s", metric: str = "m"
    ) -> None:
        self.number = number
        self.nodes = list(values)
        self.measurements = [
            Measurement(node, f"{node}-{gpu}", sku, "f", "r", metric, value, "x", number)
            for node, of_node in values.items()
            for gpu, value in enumerate(of_node)
        ]

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self.measurements)

    def retest(self, nodes: object) -> list[Measurement]:
        raise NotImplementedError


def good(count: int = 20) -> dict[str, list[float]]:
    """Return some good nodes with two values each, within 1 % of 100."""
    return {f"n{node:02d}": [99.0 + node / 10, 101.0 - node / 10] for node in range(count)}


# `value` is that of the slow GPU. Good GPUs have about 100, and each rule has its own limit.
@pytest.mark.parametrize(
    ("judge", "value"),
    [(median_minus_mads(), 91.0), (superbench_variance(), 94.0), (superbench_similarity(), 89.0)],
)
def test_rules_of_one_night_flag_only_the_slow_node(judge: Judge, value: float) -> None:
    night = HandmadeNight(1, {**good(), "slow": [100.0, value]})
    assert flags(judge, [night]) == {("slow", 1)}


def test_a_similar_distribution_is_not_flagged() -> None:
    """One GPU of two that is 8 % slower makes a node 4 % dissimilar; both together, 8 %."""
    judge = superbench_similarity()
    assert flags(judge, [HandmadeNight(1, {**good(), "one": [100.0, 92.0]})]) == set()
    assert flags(judge, [HandmadeNight(1, {**good(), "both": [92.0, 92.0]})]) == {("both", 1)}
    assert flags(judge, [HandmadeNight(1, {**good(), "fast": [120.0, 120.0]})]) == set()


def test_a_node_with_fewer_values_is_also_compared() -> None:
    assert flags(superbench_similarity(), [HandmadeNight(1, {**good(), "n": [90.0]})]) == {("n", 1)}


def test_the_baseline_is_the_mean_of_the_values_that_do_not_violate_the_rule() -> None:
    values = np.array([100.0] * 8 + [60.0, 94.0])
    assert fixed_threshold_baseline(values, -0.05) == pytest.approx(100)


def test_skus_are_not_compared_with_each_other() -> None:
    class Mixed(HandmadeNight):
        def __iter__(self) -> Iterator[Measurement]:
            yield from HandmadeNight(1, good())
            yield from HandmadeNight(1, {f"b{one}": [50.0, 50.1] for one in range(9)}, sku="b")

    for name, make in BASELINES.items():
        assert flags(make(), [Mixed(1, {})]) == set(), name


def test_own_history_needs_three_nights_and_uses_all_earlier_nights() -> None:
    nights: list[NightLike] = [
        HandmadeNight(number, {"n": [value], "m": [100.0]})
        for number, value in enumerate([100.0, 99.0, 90.0, 97.0, 95.0, 100.0], start=1)
    ]
    # The medians before nights 4, 5 and 6 are 99, 98 and 97.
    assert flags(own_history(), nights) == set()
    assert flags(own_history(), [*nights, HandmadeNight(7, {"n": [94.0], "m": [96.0]})]) == {
        ("n", 7),
        ("m", 7),
    }
    assert flags(own_history(), [HandmadeNight(1, good()), HandmadeNight(2, {"n00": [1.0]})]) == set()
