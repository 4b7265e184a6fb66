"""Test the fleet model, which finds parts of a fleet that are slow (:mod:`rackproof.analysis.fleet_model`).

Job validate uses it to compare each GPU's numbers with its own past and with its group. These tests simulate
a fleet, make some numbers worse, and check that these parts are found, and no others. A healthy fleet, a rack
that slows down as a whole, and new firmware are no fault of a node.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rackproof.analysis.fleet_model import (
    FleetFindings,
    FleetPolicy,
    Floats,
    SeriesTable,
    find_slow_series,
    rack_table,
)

# The number of GPUs of a node, of metrics of a GPU, and of nights.
GPUS, METRICS, NIGHTS = 4, 3, 15


def healthy(nodes: int, seed: int = 1, noise: float = 0.003, nights: int = NIGHTS) -> SeriesTable:
    """Return a healthy fleet whose numbers vary as those of real fleets.

    A fifth of the GPUs is 2.5 % slower, and half of the racks have a firmware that costs 1.5 %. Racks and
    nights differ, all numbers drift together, and the noise has heavy tails.
    """
    dice = np.random.default_rng(seed)
    node = np.repeat(np.arange(nodes), GPUS * METRICS)
    part = np.repeat(np.arange(nodes * GPUS), METRICS)
    quantity = np.tile(np.arange(METRICS), nodes * GPUS)
    rack, firmware = np.arange(nodes) // 18, (np.arange(nodes) // 18) % 2
    level = 1 - 0.025 * (dice.random(nodes * GPUS) < 0.2)[part]
    level += (-0.015 * firmware + dice.normal(0, 0.006, rack.max() + 1)[rack])[node]
    weather = dice.normal(0, 0.004, (METRICS, nights))[quantity] - 0.004 * np.arange(nights) / nights
    value = level[:, None] + weather + noise * dice.standard_t(3, (len(node), nights))

    def every_night(groups: np.ndarray) -> np.ndarray:
        return np.repeat(groups[node][:, None], nights, axis=1).astype(np.int32)

    return SeriesTable(
        value=100 * value,
        quantity=quantity.astype(np.int32),
        part=part.astype(np.int32),
        node=node.astype(np.int32),
        groups=(every_night(firmware), every_night(rack)),
        twice=np.zeros(len(node), bool),
    )


def failing(table: SeriesTable, found: FleetFindings) -> set[int]:
    """Return the nodes with a proven loss of 2.5 % or more."""
    return {int(table.node[one.series]) for one in found.slow if one.proven and one.loss >= 0.025}


def with_loss(table: SeriesTable, loss: Floats, *, node: int = 7, series: int = 1) -> SeriesTable:
    """Return a table in which the first series of a node lose a fraction in each night."""
    rows = np.flatnonzero(table.node == node)[:series]
    table.value[rows] *= 1 - loss
    return table


def nights_of(shape: str, size: float) -> Floats:
    """Return the loss of each night as a fraction."""
    loss = np.zeros(NIGHTS)
    if shape == "three nights":
        loss[-3:] = size
    elif shape == "a week":
        loss[-7:] = size
    elif shape == "slope":
        loss = np.arange(NIGHTS) / (NIGHTS - 1) * size
    elif shape == "every second night":
        loss[::2] = size
    elif shape == "ever":
        loss[:] = size
    return loss


@pytest.mark.parametrize("seed", range(3))
def test_no_node_of_a_healthy_mixed_fleet_fails_or_is_suspected(seed: int) -> None:
    found = find_slow_series(healthy(360, seed))
    assert found.slow == ()
    assert found.judged.all()
    assert find_slow_series(rack_table(healthy(360, seed), FleetPolicy())).slow == ()


@pytest.mark.parametrize(
    ("shape", "size", "series"),
    [
        ("three nights", 0.06, 1),
        ("three nights", 0.03, GPUS * METRICS),
        ("a week", 0.03, 1),
        ("slope", 0.05, 1),
        ("every second night", 0.06, 1),
        ("ever", 0.09, 1),
        ("ever", 0.09, METRICS),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_lasts_is_found_on_its_node_alone(
    shape: str, size: float, series: int, seed: int
) -> None:
    table = with_loss(healthy(90, seed), nights_of(shape, size), series=series)
    found = find_slow_series(table)
    assert failing(table, found) == {7}
    losses = [one.loss for one in found.slow]
    assert max(losses) == pytest.approx(size, abs=0.025 if shape == "ever" else 0.015)


def test_a_loss_in_one_night_is_proven_only_by_two_measurements() -> None:
    # With this noise, a healthy fleet of 90 nodes has such a number in one of eight nights.
    loss = np.zeros(NIGHTS)
    loss[-1] = 0.12
    table = with_loss(healthy(90), loss)
    assert failing(table, find_slow_series(table)) == set()
    table.twice[table.node == 7] = True
    assert failing(table, find_slow_series(table)) == {7}


def test_one_bad_night_that_is_over_is_no_finding() -> None:
    loss = np.zeros(NIGHTS)
    loss[-3] = 0.1
    assert find_slow_series(with_loss(healthy(90), loss)).slow == ()


def test_a_repaired_gpu_passes_from_the_first_good_night_on() -> None:
    loss = np.zeros(NIGHTS)
    loss[-6:-1] = 0.08
    table = with_loss(healthy(90), loss)
    assert find_slow_series(table).slow == ()


def test_a_rack_that_slows_down_as_a_whole_is_no_fault_of_its_nodes() -> None:
    table = healthy(180)
    table.value[np.ix_(table.node // 18 == 3, np.arange(NIGHTS) >= NIGHTS - 4)] *= 0.95
    assert failing(table, find_slow_series(table)) == set()
    racks = rack_table(table, FleetPolicy())
    slow = find_slow_series(racks).slow
    assert {int(racks.node[one.series]) for one in slow} == {3}
    assert max(one.loss for one in slow) == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize("moved", [2, 60])
def test_new_firmware_is_no_change_of_a_gpu(moved: int) -> None:
    table = healthy(180)
    after = np.ix_(table.node < moved, np.arange(NIGHTS) >= NIGHTS - 4)
    table.value[after] *= 0.96
    for number, group in enumerate(table.groups):
        group[after] = 100 + (number > 0) * (table.node // 18)[table.node < moved][:, None]
    slow = find_slow_series(table).slow
    assert [one for one in slow if one.test == "change"] == []
    # Two nodes are too few for a median of the new firmware, so they may be slow beside all others.
    assert {int(table.node[one.series]) for one in slow} <= ({0, 1} if moved == 2 else set())


def test_a_loss_of_a_lone_node_is_found_and_marked_as_alone() -> None:
    table = healthy(1, noise=0.001)
    loss = np.zeros(NIGHTS)
    loss[-4:] = 0.06
    slow = find_slow_series(with_loss(table, loss, node=0)).slow
    assert slow
    assert all(one.alone for one in slow)


def test_a_fleet_with_too_few_nights_is_not_judged() -> None:
    found = find_slow_series(healthy(30, nights=2))
    assert not found.judged.any()
    assert found.slow == ()


def test_a_larger_budget_finds_no_fewer_nodes() -> None:
    loss = np.zeros(NIGHTS)
    loss[-2:] = 0.045
    table = with_loss(healthy(90), loss)
    counts = [
        len(failing(table, find_slow_series(table, FleetPolicy(budget)))) for budget in (0.001, 0.1, 50)
    ]
    assert counts == sorted(counts)


@settings(max_examples=150, deadline=None)
@given(
    value=arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 12), st.integers(1, 6)),
        elements=st.one_of(st.just(np.nan), st.floats(-1e9, 1e9), st.sampled_from([0.0, 1.0, -1.0, 1e-300])),
    ),
    seed=st.integers(0, 1000),
)
def test_any_numbers_and_gaps_are_judged_without_error(value: Floats, seed: int) -> None:
    dice = np.random.default_rng(seed)
    count = len(value)
    table = SeriesTable(
        value=value,
        quantity=dice.integers(0, 2, count, np.int32),
        part=dice.integers(0, 6, count, np.int32),
        node=dice.integers(0, 3, count, np.int32),
        groups=(dice.integers(0, 2, value.shape, np.int32),),
        twice=dice.random(count) < 0.5,
    )
    found = find_slow_series(table, FleetPolicy(nodes_least=1))
    for one in found.slow:
        assert 0 < one.loss < np.inf
        assert np.isfinite(table.value[one.series, -1])


LARGE = (0.13, 0.175, 0.2, 0.25, 0.35, 0.5, 0.7, 0.9, 0.99, 1.0)
"""Losses as fractions, larger than in the other tests, for example with half of the lanes of a PCIe slot."""


@pytest.mark.parametrize("loss", LARGE)
@pytest.mark.parametrize(
    "shape", ["tonight", "three nights", "a week", "every second night", "slope", "ever"]
)
@pytest.mark.parametrize("series", [1, METRICS, GPUS * METRICS])
def test_a_large_loss_is_always_found(loss: float, shape: str, series: int) -> None:
    table = with_loss(healthy(36), nights_of(shape, loss), series=series)
    if shape == "tonight":
        rows = np.flatnonzero(table.node == 7)[:series]
        table.value[rows, -1] *= 1 - loss
        table.twice[rows] = True
    found = find_slow_series(table)
    assert failing(table, found) == {7}
    if shape == "tonight":
        assert not found.explained[table.node == 7][:series].any()


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("twice", [False, True])
def test_if_chance_explains_a_loss_it_explains_every_smaller_one(noise: float, twice: bool) -> None:
    explained = []
    for loss in np.arange(0.0, 1.0, 0.02):
        table = healthy(36, noise=noise)
        row = int(np.flatnonzero(table.node == 7)[0])
        table.value[row, -1] = np.median(table.value[row, :-1]) * (1 - loss)
        table.twice[row] = twice
        explained.append(bool(find_slow_series(table).explained[row]))
    assert explained == sorted(explained, reverse=True)
    assert explained[0]
    assert twice <= (not explained[-1])
