import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet_simulator.baselines import Judge, NightLike
from tests.fleet_simulator.faults import FaultMix, all_faults, mix_of, no_faults
from tests.fleet_simulator.fleets import Fleet, fleets
from tests.fleet_simulator.scores import Score, assess, detections, poisson_bounds, summary
from tests.fleet_simulator.simulation import simulate

FAIL = {"fail": {"fail"}}


@pytest.mark.parametrize(
    ("count", "least", "most"),
    [(0, 0.0, 3.6889), (1, 0.0253, 5.5716), (5, 1.6235, 11.6683), (100, 81.364, 121.627)],
)
def test_bounds_are_those_of_the_tables(count: int, least: float, most: float) -> None:
    assert poisson_bounds(count) == pytest.approx((least, most), abs=1e-3)


def common() -> Fleet:
    import dataclasses

    return dataclasses.replace(fleets()["common"], nodes=400)


def flagging_everything(night: NightLike) -> dict[str, str]:
    return dict.fromkeys(night.nodes, "fail")


def flagging_nothing(night: NightLike) -> dict[str, str]:
    return dict.fromkeys(night.nodes, "pass")


def test_who_knows_the_truth_finds_all_and_flags_nothing_else() -> None:
    simulation = simulate(common(), all_faults(), 1)
    faults = simulation.truth.fault_of_node()

    def judge(night: NightLike) -> dict[str, str]:
        return {node: "fail" for node, fault in faults.items() if fault.is_there(night.number)}

    score = assess(simulation, judge, FAIL)["fail"]
    assert score.found == score.faults
    assert sum(score.faults.values()) == sum(any(fault.by_night) for fault in faults.values())
    assert set(score.nights_until_found) == {(kind, 0) for kind, _ in score.faults}
    assert (score.false_alarms, score.flagged_after_recovery, score.rack_nodes_flagged) == (0, 0, 0)


def test_who_flags_everything_finds_all_and_everything_else() -> None:
    simulation = simulate(common(), all_faults(), 1)
    score = assess(simulation, flagging_everything, FAIL)["fail"]
    assert score.found == score.faults
    assert score.false_alarms == score.node_nights
    assert score.false_alarms_per_1000()[0] == 1000
    assert score.rack_nodes_flagged == score.rack_nodes
    assert score.racks_flagged_whole == score.rack_faults == 1
    assert score.flagged_after_recovery == score.nights_after_recovery > 0


def test_every_measured_node_night_is_counted_once() -> None:
    simulation = simulate(common(), all_faults(), 1)
    score = assess(simulation, flagging_nothing, FAIL)["fail"]
    truth = simulation.truth
    faulty = sum(sum(fault.is_there(night) for night in range(1, 16)) for fault in truth.faults if fault.node)
    of_racks = sum(
        len(truth.nodes_of_rack[fault.rack]) * (16 - fault.first_night)
        for fault in truth.faults
        if not fault.node
    )
    assert score.node_nights + score.nights_after_recovery + faulty + of_racks == 400 * 15
    assert not score.found
    assert score.false_alarms == 0


def test_a_judge_is_asked_night_by_night_and_may_measure_again() -> None:
    asked = []

    def judge(night: NightLike) -> dict[str, str]:
        asked.append(night.number)
        again = night.retest(night.nodes[:1])
        assert {one.node for one in again} == {night.nodes[0]}
        assert list(night) == list(night)
        return {}

    assess(simulate(fleets()["small"], no_faults(), 1), judge, FAIL)
    assert asked == list(range(1, 9))


def test_several_meanings_of_flagged_are_counted_in_one_pass() -> None:
    def judge(night: NightLike) -> dict[str, str]:
        return {night.nodes[0]: "fail", night.nodes[1]: "degraded", night.nodes[2]: "pass"}

    scores = assess(
        simulate(fleets()["small"], no_faults(), 1), judge, {"drained": {"fail"}, "any": {"fail", "degraded"}}
    )
    assert scores["drained"].false_alarms == 8
    assert scores["any"].false_alarms == 16
    assert scores["any"].first_false_alarms == 2


def test_false_alarms_of_a_racks_bad_night_are_counted_among_the_others() -> None:
    simulation = simulate(fleets()["small"], no_faults(), 1)
    score = assess(simulation, flagging_everything, FAIL)["fail"]
    assert score.false_alarms == 36 * 8
    assert score.false_alarms_in_bad_rack_nights == 36 * len(simulation.truth.bad_rack_nights) > 0


def seldom() -> FaultMix:
    return mix_of(
        {
            "kinds": {"cold": {"part": "node", "shape": "warm"}},
            "sizes": [-0.1],
            "share_of_nodes": 0.1,
            "share_of_racks": 0,
            "begin_between": [1, 1],
        }
    )


def test_a_fault_that_never_showed_itself_is_not_among_those_to_be_found() -> None:
    simulation = simulate(fleets()["small"], seldom(), 4)
    faults = simulation.truth.faults
    shown = [fault for fault in faults if any(fault.by_night)]
    assert 0 < len(shown) < len(faults)
    assert sum(assess(simulation, flagging_everything, FAIL)["fail"].faults.values()) == len(shown)


def test_scores_add_up_and_are_printed_as_counts() -> None:
    def score(seed: int, judge: Judge = flagging_everything) -> Score:
        return assess(simulate(common(), all_faults(), seed), judge, FAIL)["fail"]

    both = score(1) + score(2, flagging_nothing)
    assert both.node_nights == score(1).node_nights + score(2).node_nights
    table = detections(both)
    assert table[0] == "| fault | -3% | -4% | -5% | -6% | -8% | -10% | -12% | all |"
    assert len(table) == 3 + len({kind for kind, _ in both.faults})
    total = sum(both.faults.values())
    assert table[-1].endswith(f"| {sum(both.found.values())} of {total} |")
    line = summary("all", both)
    assert f"{sum(both.found.values())} of {total} faults found" in line
    assert "per 1,000; 95 % bounds" in line
    assert "of 2 racks whole" in line


def test_any_judge_can_be_named_on_the_command_line(root: Path) -> None:
    command = [sys.executable, "-m", "tests.fleet_simulator", "--fleets", "small", "--tables", "--seeds", "2"]
    judge = ["--judge", "tests.fleet_simulator.baselines:own_history", "--alarms", "fail", "--alarms", "pass"]
    done = subprocess.run([*command, *judge], cwd=root, capture_output=True, text=True, check=True)
    assert "## small, seeds 1 to 2" in done.stdout
    assert done.stdout.count("faults found") == 6
    assert "own_history (pass): 0 of" in done.stdout
