"""Test the verdicts of nights on a fleet without references (:mod:`rackproof.analysis.anomaly`).

A reference gives a number a floor, below which it fails. Without references, a node is unproven if a number
lost much against its own past, is far below that of the few other nodes, or is physically implausible. These
tests check each of these cases, and that healthy fleets pass. The simulated H200 usually reach 793 TFLOP/s.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from rackproof.analysis.anomaly import AnomalyPolicy, Night, judge_night
from rackproof.core.records import Direction, Measurement, Verdict
from rackproof.store.history.readings import readings_of
from tests.jobs.validate.nights import TONIGHT, Change, fleet_node, night_runs, several_nights


def judged(count: int, change: Change, nights: int = 15) -> Night:
    """Return the judgement of the last of some nights."""
    nodes = [fleet_node(number) for number in range(count)]
    readings = readings_of(several_nights(nodes, change, nights), TONIGHT + timedelta(seconds=1), nights=15)
    return judge_night(readings, {}, policy=AnomalyPolicy(require_references=False))


def gemm(factor: float, where: Callable[[int, int, int], bool]) -> Change:
    """Return a change of the speed of some GPUs, which ``where`` selects by node, slot and nights ago."""
    return lambda metric, node, slot, ago: factor if metric == "gemm_best" and where(node, slot, ago) else 1.0


def verdicts(night: Night) -> list[Verdict]:
    return [one.verdict for one in night.nodes]


def checks(night: Night) -> set[str]:
    """Return the checks that make a node unproven."""
    return {why.check for one in night.nodes for why in one.reasons if why.verdict is Verdict.UNPROVEN}


@pytest.mark.parametrize("count", [1, 2, 4, 6, 18])
@pytest.mark.parametrize("factor", [0.3, 0.55, 0.75])
def test_a_whole_fleet_that_lost_much_of_its_own_past_is_unproven(count: int, factor: float) -> None:
    night = judged(count, gemm(factor, lambda node, slot, ago: ago == 0))
    assert set(verdicts(night)) == {Verdict.UNPROVEN}
    assert "past" in checks(night)


# Nights with numbers, and slow nights at their end.
@pytest.mark.parametrize(
    ("nights", "since"), [(3, 1), (5, 1), (15, 3), (15, 6)], ids=lambda value: str(value)
)
def test_a_slow_fleet_stays_unproven_for_several_nights_even_after_few_good_ones(
    nights: int, since: int
) -> None:
    night = judged(6, gemm(0.7, lambda node, slot, ago: ago < since), nights)
    assert set(verdicts(night)) == {Verdict.UNPROVEN}


@pytest.mark.parametrize(
    ("count", "bad"),
    [
        (4, lambda node, slot, ago: node == 0),
        (4, lambda node, slot, ago: node == 3 and slot == 2),
        (3, lambda node, slot, ago: node == 1),
        (2, lambda node, slot, ago: node == 1),
        # A GPU of a lone node is compared with the node's other GPUs.
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


def test_a_slow_one_of_few_nodes_is_compared_with_the_best_quarter() -> None:
    night = judged(2, gemm(0.75, lambda node, slot, ago: node == 1), nights=1)
    texts = {one.text for node in night.nodes for one in node.reasons if one.check == "fleet"}
    assert texts
    assert all(" off the best quarter of the fleet's " in text for text in texts)


# Speeds in TFLOP/s that no H200 has.
@pytest.mark.parametrize("value", [0.001, 1e-9, 1.0, 300.0, 600.0, 1000.0, 5000.0, 1e9, 1e20, 1e-20])
@pytest.mark.parametrize("count", [1, 4, 18])
def test_an_implausible_speed_is_unproven_without_floor_and_past(value: float, count: int) -> None:
    night = judged(count, gemm(value / 793, lambda *_: True), nights=1)
    assert set(verdicts(night)) == {Verdict.UNPROVEN}
    assert "physics" in checks(night)


# Speeds in TFLOP/s that an H200 may have.
@pytest.mark.parametrize("value", [690.0, 793.0, 960.0])
@pytest.mark.parametrize("count", [1, 2, 4, 18])
@pytest.mark.parametrize("nights", [1, 2, 15])
def test_a_sound_fleet_passes(value: float, count: int, nights: int) -> None:
    night = judged(count, gemm(value / 793, lambda *_: True), nights)
    assert set(verdicts(night)) == {Verdict.PASS}


def test_a_moderate_loss_of_all_nodes_is_left_to_the_model() -> None:
    night = judged(18, gemm(0.85, lambda node, slot, ago: ago == 0))
    assert checks(night) == set()


def judged_collective(
    count: int,
    value: Callable[[int, int], float],
    nights: int,
    *,
    name: str = "all_reduce_busbw",
    **labels: str,
) -> Night:
    """Return the judgement of nights in which each node has one more number, by default a bus bandwidth.

    ``value`` returns it in GB/s by node and nights ago.
    """
    nodes = [fleet_node(number) for number in range(count)]
    runs = []
    for ago in range(nights):
        for number, run in enumerate(night_runs(nodes, ago)):
            collective = Measurement(
                name=name,
                value=value(number, ago) * (1 + (number - ago) % 3 / 300),
                unit="GB/s",
                direction=Direction.HIGHER,
                labels={"size_bytes": "4294967296", **labels},
            )
            runs.append(run.model_copy(update={"measurements": (*run.measurements, collective)}))
    readings = readings_of(runs, TONIGHT + timedelta(seconds=1), nights=15)
    return judge_night(readings, {}, policy=AnomalyPolicy(require_references=False))


# Nodes, bus bandwidth by node and nights ago, nights, and checks that find it. 390 GB/s are usual.
@pytest.mark.parametrize(
    ("count", "value", "nights", "found"),
    [
        (6, lambda node, ago: 290.0 if ago == 0 else 390.0, 15, {"past"}),
        (18, lambda node, ago: 180.0 if ago == 0 else 390.0, 3, {"past", "physics"}),
        (1, lambda node, ago: 290.0 if ago == 0 else 390.0, 15, {"past"}),
        (4, lambda node, ago: 0.001, 1, {"physics"}),
        (4, lambda node, ago: 1e9, 1, {"physics"}),
        (18, lambda node, ago: 180.0, 1, {"physics"}),
    ],
)
def test_links_of_a_whole_fleet_are_judged_as_its_gpus_are(
    count: int, value: Callable[[int, int], float], nights: int, found: set[str]
) -> None:
    night = judged_collective(count, value, nights)
    assert set(verdicts(night)) == {Verdict.UNPROVEN}
    assert found <= checks(night)


def test_of_few_nodes_the_one_with_slow_links_is_unproven() -> None:
    night = judged_collective(4, lambda node, ago: 290.0 if node == 2 else 390.0, 1)
    assert verdicts(night) == [Verdict.PASS, Verdict.PASS, Verdict.UNPROVEN, Verdict.PASS]


@pytest.mark.parametrize(
    ("name", "labels"), [("all_reduce_busbw", {"device": "cpu"}), ("memory_speed", {}), ("disk_read", {})]
)
def test_a_number_that_other_programs_change_is_not_compared_with_its_past(
    name: str, labels: dict[str, str]
) -> None:
    night = judged_collective(6, lambda node, ago: 1.0 if ago == 0 else 2.0, 15, name=name, **labels)
    assert set(verdicts(night)) == {Verdict.PASS}


@pytest.mark.parametrize("count", [1, 4, 18])
@pytest.mark.parametrize("nights", [1, 15])
def test_sound_links_pass(count: int, nights: int) -> None:
    night = judged_collective(count, lambda node, ago: 390.0, nights)
    assert set(verdicts(night)) == {Verdict.PASS}
