"""Nights without a floor: what a GPU's own past, the others of few, and physics show, is not a pass."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from rackproof.analysis.anomaly import AnomalyPolicy, Night, judge_night
from rackproof.core.records import Verdict
from rackproof.store.history.readings import readings_of
from tests.jobs.validate.nights import TONIGHT, Change, fleet_node, several_nights


def judged(count: int, change: Change, nights: int = 15) -> Night:
    nodes = [fleet_node(number) for number in range(count)]
    readings = readings_of(several_nights(nodes, change, nights), TONIGHT + timedelta(seconds=1), nights=15)
    return judge_night(readings, {}, policy=AnomalyPolicy(require_references=False))


def gemm(factor: float, where: Callable[[int, int, int], bool]) -> Change:
    """Return a change of some GPUs' products: by node, slot and nights ago."""
    return lambda metric, node, slot, ago: factor if metric == "gemm_best" and where(node, slot, ago) else 1.0


def verdicts(night: Night) -> list[Verdict]:
    return [one.verdict for one in night.nodes]


def checks(night: Night) -> set[str]:
    return {why.check for one in night.nodes for why in one.reasons if why.verdict is Verdict.UNPROVEN}


@pytest.mark.parametrize("count", [1, 2, 4, 6, 18])
@pytest.mark.parametrize("factor", [0.3, 0.55, 0.75])
def test_a_whole_fleet_that_lost_much_of_its_own_past_is_unproven(count: int, factor: float) -> None:
    night = judged(count, gemm(factor, lambda node, slot, ago: ago == 0))
    assert set(verdicts(night)) == {Verdict.UNPROVEN}
    assert "past" in checks(night)


@pytest.mark.parametrize(
    ("nights", "since"), [(3, 1), (5, 1), (15, 3), (15, 6)], ids=lambda value: str(value)
)
def test_it_stays_so_for_several_nights_and_with_few_before(nights: int, since: int) -> None:
    night = judged(6, gemm(0.7, lambda node, slot, ago: ago < since), nights)
    assert set(verdicts(night)) == {Verdict.UNPROVEN}


@pytest.mark.parametrize(
    ("count", "bad"),
    [
        (4, lambda node, slot, ago: node == 0),
        (4, lambda node, slot, ago: node == 3 and slot == 2),
        (3, lambda node, slot, ago: node == 1),
        (2, lambda node, slot, ago: node == 1),
        # A node alone has neighbours, too.
        (1, lambda node, slot, ago: slot == 0),
    ],
)
@pytest.mark.parametrize("factor", [0.65, 0.75])
def test_of_few_nodes_the_slow_one_is_unproven_in_their_first_night(
    count: int, bad: Callable[[int, int, int], bool], factor: float
) -> None:
    night = judged(count, gemm(factor, bad), nights=1)
    slow = [any(bad(node, slot, 0) for slot in range(4)) for node in range(count)]
    assert [one is Verdict.UNPROVEN for one in verdicts(night)] == slow
    assert {"fleet"} <= checks(night) <= {"fleet", "physics"}


@pytest.mark.parametrize("value", [0.001, 1e-9, 1.0, 300.0, 600.0, 1000.0, 5000.0, 1e9, 1e20, 1e-20])
@pytest.mark.parametrize("count", [1, 4, 18])
def test_what_a_model_cannot_do_is_unproven_without_floor_and_past(value: float, count: int) -> None:
    night = judged(count, gemm(value / 793, lambda *_: True), nights=1)
    assert set(verdicts(night)) == {Verdict.UNPROVEN}
    assert "physics" in checks(night)


@pytest.mark.parametrize("value", [690.0, 793.0, 960.0])
@pytest.mark.parametrize("count", [1, 2, 4, 18])
@pytest.mark.parametrize("nights", [1, 2, 15])
def test_a_sound_fleet_passes(value: float, count: int, nights: int) -> None:
    night = judged(count, gemm(value / 793, lambda *_: True), nights)
    assert set(verdicts(night)) == {Verdict.PASS}


def test_a_loss_of_what_weather_and_firmware_bring_is_left_to_the_model() -> None:
    night = judged(18, gemm(0.85, lambda node, slot, ago: ago == 0))
    assert checks(night) == set()
