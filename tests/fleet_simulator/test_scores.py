"""Test how the fleet simulator counts found faults and false alarms (scores.py).

Most judges here know the truth, flag every node, flag none, or wait for some nights, so the right counts are
known.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fleet_simulator.baselines import Judge, NightLike, median_minus_mads, own_history
from tests.fleet_simulator.faults import FaultMix, all_faults, mix_of, no_faults
from tests.fleet_simulator.fleets import Fleet, fleets
from tests.fleet_simulator.scores import (
    Score,
    Wait,
    assess,
    assess_all,
    binomial_bounds,
    detections,
    found_soon,
    poisson_bounds,
    smallest_losses,
    summary,
)
from tests.fleet_simulator.simulation import Simulation, simulate

FAIL = {"fail": {"fail"}}


# The exact 95 % bounds of a Poisson count, from published tables.
@pytest.mark.parametrize(
    ("count", "least", "most"),
    [(0, 0.0, 3.6889), (1, 0.0253, 5.5716), (5, 1.6235, 11.6683), (100, 81.364, 121.627)],
)
def test_bounds_of_a_count_are_those_of_the_tables(count: int, least: float, most: float) -> None:
    assert poisson_bounds(count) == pytest.approx((least, most), abs=1e-3)


# The exact 95 % bounds of a binomial share, from published tables.
@pytest.mark.parametrize(
    ("count", "of", "least", "most"),
    [
        (0, 10, 0.0, 0.3085),
        (1, 10, 0.0025, 0.4450),
        (5, 10, 0.1871, 0.8129),
        (10, 10, 0.6915, 1.0),
        (95, 100, 0.8872, 0.9836),
    ],
)
def test_bounds_of_a_share_are_those_of_the_tables(count: int, of: int, least: float, most: float) -> None:
    assert binomial_bounds(count, of) == pytest.approx((least, most), abs=1e-4)


def common() -> Fleet:
    import dataclasses

    return dataclasses.replace(fleets()["common"], nodes=400)


def flagging_everything(night: NightLike) -> dict[str, str]:
    return dict.fromkeys(night.nodes, "fail")


def flagging_nothing(night: NightLike) -> dict[str, str]:
    return dict.fromkeys(night.nodes, "pass")


def test_a_judge_with_the_truth_finds_all_faults_and_flags_nothing_else() -> None:
    simulation = simulate(common(), all_faults(), 1)
    faults = simulation.truth.fault_of_node()

    def judge(night: NightLike) -> dict[str, str]:
        return {node: "fail" for node, fault in faults.items() if fault.is_there(night.number)}

    score = assess(simulation, judge, FAIL)["fail"]
    assert score.found == score.faults
    assert sum(score.faults.values()) == sum(any(fault.by_night) for fault in faults.values())
    assert {wait.nights for wait in score.nights_until_found} == {0}
    assert (score.false_alarms, score.flagged_after_recovery, score.rack_nodes_flagged) == (0, 0, 0)


def test_a_judge_that_flags_everything_finds_all_faults_and_flags_all_good_nodes() -> None:
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


def test_a_judge_gets_one_night_after_the_other_and_may_measure_again() -> None:
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


def test_false_alarms_of_a_racks_bad_night_are_also_counted_separately() -> None:
    simulation = simulate(fleets()["small"], no_faults(), 1)
    score = assess(simulation, flagging_everything, FAIL)["fail"]
    assert score.false_alarms == 36 * 8
    assert score.false_alarms_in_bad_rack_nights == 36 * len(simulation.truth.bad_rack_nights) > 0


def seldom() -> FaultMix:
    """Return a mix of faults that have an effect only in nights in which a job had warmed the node."""
    return mix_of(
        {
            "kinds": {"cold": {"part": "node", "shape": "warm"}},
            "sizes": [-0.1],
            "share_of_nodes": 0.1,
            "share_of_racks": 0,
            "begin_between": [1, 1],
        }
    )


def test_a_fault_without_any_effect_is_not_counted() -> None:
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
    half = detections(Score(faults=Counter({("step", -0.025): 1, ("step", -0.02): 1})))
    assert half[0] == "| fault | -2% | -2.5% | all |"
    total = sum(both.faults.values())
    assert table[-1].endswith(f"| {sum(both.found.values())} of {total} |")
    line = summary("all", both)
    assert f"{sum(both.found.values())} of {total} faults found" in line
    assert "per 1,000; 95 % bounds" in line
    assert "of 2 racks whole" in line


def late(simulation: Simulation, nights: int) -> Judge:
    """Return a judge that knows each fault, and flags its node from some nights after its first night on."""
    faults = simulation.truth.fault_of_node()

    def judge(night: NightLike) -> dict[str, str]:
        known = {node: fault.first_night for node, fault in faults.items()}
        return {node: "fail" for node, first in known.items() if night.number >= first + nights}

    return judge


# The judge flags a fault this number of nights after its first night. 3 nights after it is the fourth night,
# and no longer within 3 nights.
@pytest.mark.parametrize(("nights", "found"), [(0, "100.0 %"), (2, "100.0 %"), (3, "0.0 %")])
def test_a_step_is_found_within_three_nights_only_if_it_is_found_in_its_third(
    nights: int, found: str
) -> None:
    simulation = simulate(common(), only_steps(), 1)
    score = assess(simulation, late(simulation, nights), FAIL)["fail"]
    row = found_soon(score, {"step", "one_metric"})[-2].split(" | ")
    large = sum(count for (_, size), count in score.faults.items() if size <= -0.05)
    assert row[:2] == ["| all steps", str(large)]
    assert [int(cell) for cell in row[2:6]] == [large * (nights < within) for within in (1, 2, 3, 5)]
    assert row[6] == found


def only_steps() -> FaultMix:
    """Return a mix of faults of one GPU that begin at once and stay, in all metrics or in one."""
    kinds = {"step": {"part": "gpu"}, "one_metric": {"part": "gpu", "metrics": "one"}}
    shares = {"share_of_nodes": 0.2, "share_of_racks": 0, "begin_between": [0.3, 0.6]}
    return mix_of({"kinds": kinds, "sizes": [-0.03, -0.05, -0.08], **shares})


def waits(metric: str, size: float, nights: dict[int | None, int]) -> Score:
    """Return a score of faults of one metric and size, from the number of faults found after N nights."""
    return Score(nights_until_found=Counter({Wait("s", metric, size, one): n for one, n in nights.items()}))


def test_the_smallest_loss_and_all_larger_ones_are_found_nine_times_of_ten() -> None:
    score = waits("gemm", -0.02, {0: 10}) + waits("gemm", -0.03, {0: 5, None: 5})
    score += waits("gemm", -0.04, {0: 8, 1: 1, None: 1}) + waits("gemm", -0.05, {0: 9, 4: 1})
    score += waits("copy", -0.05, {None: 3}) + waits("other", -0.05, {0: 10})
    assert smallest_losses(score, {"s"})[2:] == [
        "| copy | - | - | - | - |",
        "| gemm | 5 % (9 of 10) | 4 % (9 of 10) | 4 % (9 of 10) | 4 % (9 of 10) |",
        "| other | 5 % (10 of 10) | 5 % (10 of 10) | 5 % (10 of 10) | 5 % (10 of 10) |",
    ]
    assert len(smallest_losses(score, {"another kind"})) == 2


def test_a_fault_of_one_metric_counts_for_that_metric() -> None:
    simulation = simulate(common(), only_steps(), 1)
    score = assess(simulation, flagging_everything, FAIL)["fail"]
    metric_of = {(wait.kind, wait.metric) for wait in score.nights_until_found}
    assert metric_of == {("step", "all"), *(("one_metric", metric) for metric in common().metrics)}
    assert sum(score.nights_until_found.values()) == sum(score.faults.values())


def test_steps_are_the_losses_that_begin_at_once_and_stay_the_same() -> None:
    steps = {name for name, kind in all_faults().kinds.items() if kind.is_step}
    assert steps == {
        *("step", "step_two_gpus", "step_whole_node", "one_metric", "one_metric_whole_node"),
        *("recovered", "recovered_whole_node", "begins_with_the_rollout"),
    }


def test_judges_of_one_run_see_the_same_nights_as_alone() -> None:
    fleet = common()
    judges = {"own history": own_history, "5 MAD": median_minus_mads}
    both = assess_all(
        simulate(fleet, all_faults(), 1), {name: (make(), FAIL) for name, make in judges.items()}
    )
    for name, make in judges.items():
        assert both[name] == assess(simulate(fleet, all_faults(), 1), make(), FAIL)
    assert both["own history"]["fail"].faults == both["5 MAD"]["fail"].faults


def test_any_judge_can_be_named_on_the_command_line(root: Path) -> None:
    command = [sys.executable, "-m", "tests.fleet_simulator", "--fleets", "small", "--tables", "--seeds", "2"]
    judge = ["--judge", "tests.fleet_simulator.baselines:own_history", "--alarms", "fail", "--alarms", "pass"]
    size = ["--nodes", "18"]
    done = subprocess.run([*command, *size, *judge], cwd=root, capture_output=True, text=True, check=True)
    assert "## small, seeds 1 to 2" in done.stdout
    assert done.stdout.count("faults found") == 6
    assert done.stdout.count("of 2 faults found") == 6
    assert done.stdout.count("| losses of 5% and more | faults |") == 6
    assert done.stdout.count("| metric | within 1 |") == 6
    assert "own_history (pass): 0 of" in done.stdout
