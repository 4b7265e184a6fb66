"""Test which comparisons of a drained node a night made (:mod:`rackproof.analysis.drained_comparisons`).

A node may be drained because it was slow beside the fleet ("fleet") or beside its own past ("drift"). The
drain ends only with a night that makes the same comparison again. These tests check that a night makes none
if too few other nodes were measured, and that nights since the drain are not a past to compare with.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from rackproof.analysis.drained_comparisons import comparisons
from rackproof.store.history.readings import readings_of
from tests.jobs.validate.nights import TONIGHT, Change, fleet_node, several_nights


def compared(count: int, change: Change, drained: int = 3, nights: int = 15, measured: int = 0) -> set[str]:
    """Return the comparisons of the first node's speed of matrix products (gemm).

    Args:
        count: The number of nodes.
        change: The change of their numbers.
        drained: The number of nights since the first node's drain.
        nights: The number of nights with numbers, including tonight.
        measured: The number of nodes that were measured tonight, or 0 for all.
    """
    nodes = [fleet_node(number) for number in range(count)]
    keys = {node.hardware_key for node in nodes[: measured or count]}
    runs = [
        one
        for one in several_nights(nodes, change, nights)
        if one.started is None
        or one.started < TONIGHT - timedelta(hours=20)
        or one.nodes[0].hardware_key in keys
    ]
    readings = readings_of(runs, TONIGHT + timedelta(seconds=1), nights=15)
    found = comparisons(readings, {nodes[0].hardware_key: drained})
    names = next(iter(found.values()), frozenset())
    return {name.partition(":")[0] for name in names if name.partition(":")[2].startswith("gemm_best")}


def as_ever(metric: str, node: int, slot: int, ago: int) -> float:
    """Return the factor of a number that does not change."""
    return 1.0


def slow_gpu(since: int, factor: float) -> Change:
    """Return a change of one GPU of the first node, since some nights ago."""

    def change(metric: str, node: int, slot: int, ago: int) -> float:
        return factor if (node, slot) == (0, 1) and ago <= since else 1.0

    return change


@pytest.mark.parametrize("count", [4, 6, 18])
def test_an_unchanged_node_among_others_is_compared_both_ways(count: int) -> None:
    assert compared(count, as_ever) == {"fleet", "drift"}


# The number of nodes, and of those that were measured tonight (0 for all).
@pytest.mark.parametrize(("count", "measured"), [(1, 0), (2, 0), (3, 0), (18, 1), (18, 3)])
def test_with_too_few_measured_nodes_nothing_is_compared(count: int, measured: int) -> None:
    assert compared(count, as_ever, measured=measured) == set()


@pytest.mark.parametrize("factor", [0.95, 0.9, 0.5])
@pytest.mark.parametrize("drained", [1, 3, 8, 11])
def test_nights_since_the_drain_are_no_past_to_be_compared_with(factor: float, drained: int) -> None:
    # With 8 or 11 nights since the drain, the node was slow in most of its nights.
    assert compared(6, slow_gpu(drained, factor), drained) == {"fleet"}
    mended = slow_gpu(drained, factor)
    assert compared(
        6, lambda metric, node, slot, ago: mended(metric, node, slot, ago) if ago else 1.0, drained
    ) == {"fleet", "drift"}


# Nights with numbers, and nights since the drain. Too few nights are before the drain.
@pytest.mark.parametrize(("nights", "drained"), [(1, 0), (3, 2), (4, 2), (15, 13), (15, 14), (15, 40)])
def test_without_enough_nights_before_the_drain_there_is_no_past(nights: int, drained: int) -> None:
    assert compared(6, as_ever, drained, nights) == {"fleet"}


def test_a_loss_that_all_nodes_share_is_no_loss_of_one() -> None:
    assert compared(6, lambda metric, node, slot, ago: 0.9 if ago == 0 else 1.0) == {"fleet", "drift"}
    assert compared(6, lambda metric, node, slot, ago: 1.1 if node and ago == 0 else 1.0) == {"fleet"}
