"""Test ``rackproof.analysis.anomaly``, which judges the measurements of a night.

Each number is compared with its floor, with other nodes of the SKU, and with its own past. A number below its
floor fails, an outlier degrades, and a missing number is unproven. A fault on many nodes is probably a fault
of the tool, and drains no node. The tests change single values of a made-up fleet of 18 nodes with four GPUs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rackproof.analysis.anomaly import AnomalyPolicy, Night, NodeVerdict, judge_night
from rackproof.core.judging import NO_REFERENCE, SkuReference, judge
from rackproof.core.records import Direction, Judgement, Measurement, Reference, Run, Verdict
from rackproof.store.history.readings import Accepted, Part, Readings, readings_of
from rackproof.store.history.rows import Measured
from rackproof.store.history.store import open_store

from .nights import GPUS, TONIGHT, Change, fleet_node, floors, night_runs, several_nights, uuid

FLEET = [fleet_node(number) for number in range(18)]


def judged(runs: list[Run], policy: AnomalyPolicy | None = None, **more: object) -> Night:
    """Judge the last of up to 15 nights."""
    return judge_night(readings_of(runs, TONIGHT, nights=15), floors(), policy=policy, **more)  # type: ignore[arg-type]


def of(night: Night, name: str) -> NodeVerdict:
    return next(one for one in night.nodes if one.name == name)


def not_passed(night: Night) -> set[str]:
    return {one.name for one in night.nodes if one.verdict is not Verdict.PASS}


def on(node: int, slot: int | None, factor: float | None, metric: str = "gemm_best") -> Change:
    """Return a change of one node's values tonight. Slot None means all slots, factor None no value."""

    def change(what: str, number: int, where: int, ago: int) -> float | None:
        hit = what == metric and number == node and slot in (None, where) and ago == 0
        return factor if hit else 1.0

    return change


def test_a_healthy_fleet_passes_with_all_checks() -> None:
    night = judged(several_nights(FLEET), requested=FLEET)
    assert len(night.nodes) == 18
    assert {one.verdict for one in night.nodes} == {Verdict.PASS}
    assert night.fleet_faults == ()


def test_the_worst_gpu_decides_and_is_named_by_uuid_and_slot() -> None:
    night = judged(night_runs(FLEET, 0, on(7, 2, 0.9)))
    assert not_passed(night) == {"node007"}
    reason = of(night, "node007").reasons[0]
    assert (reason.check, reason.verdict, reason.metric) == ("floor", Verdict.FAIL, "gemm_best dtype=bf16")
    assert reason.part == f"{uuid(7, 2)} (slot 2)"
    assert "is below 737.49 (data sheet)" in reason.text


def test_a_warning_is_not_overwritten_by_a_later_pass() -> None:
    again = night_runs(FLEET)
    later = [
        run.model_copy(update={"run_id": run.run_id + "-2", "started": TONIGHT - timedelta(hours=1)})
        for run in again
    ]
    night = judged(night_runs(FLEET, 0, on(3, 1, 0.9)) + later)
    assert of(night, "node003").verdict is Verdict.FAIL


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_what_is_no_number_is_unproven(factor: float) -> None:
    night = judged(night_runs(FLEET, 0, on(3, 1, factor)))
    assert of(night, "node003").verdict is Verdict.UNPROVEN
    assert "not a number" in of(night, "node003").reasons[0].text
    assert not_passed(night) == {"node003"}


def test_a_missing_measurement_is_unproven_and_names_where() -> None:
    night = judged(night_runs(FLEET, 0, on(3, 1, None)))
    reason = of(night, "node003").reasons[0]
    assert (reason.check, reason.verdict) == ("missing", Verdict.UNPROVEN)
    assert reason.text == f"3 of 4 measured tonight, not on {uuid(3, 1)} (slot 1)"
    assert not_passed(night) == {"node003"}


def test_a_node_that_measured_nothing_is_unproven() -> None:
    absent = fleet_node(99)
    night = judged(night_runs(FLEET), requested=[*FLEET, absent])
    assert of(night, "node099").verdict is Verdict.UNPROVEN
    assert of(night, "node099").reasons[0].text == "nothing was measured tonight"


def test_what_a_node_measured_every_night_is_missed_though_others_never_measure_it() -> None:
    def only_one(what: str, number: int, _where: int, ago: int) -> float | None:
        return 1.0 if what == "gemm_best" or (number == 4 and ago > 0) else None

    night = judged(several_nights(FLEET, only_one))
    assert not_passed(night) == {"node004"}
    assert of(night, "node004").reasons[0].metric == "latency"


def test_of_no_numbers_at_all_nothing_is_proven() -> None:
    night = judged([], requested=FLEET[:2])
    assert [one.verdict for one in night.nodes] == [Verdict.UNPROVEN] * 2
    assert judged([]).nodes == ()


def test_without_a_floor_a_number_is_unproven_unless_that_is_allowed() -> None:
    readings = readings_of(night_runs(FLEET), TONIGHT)
    strict = judge_night(readings, {})
    assert {one.verdict for one in strict.nodes} == {Verdict.UNPROVEN}
    assert strict.fleet_faults == ()
    lenient = judge_night(readings, {}, policy=AnomalyPolicy(require_references=False))
    assert {one.verdict for one in lenient.nodes} == {Verdict.PASS}
    assert "gemm_best, latency" in lenient.notes[0]


RULE = Judgement(metric="wrong_values", value=0, unit="1", verdict=Verdict.PASS, reason="0 equals 0")
LACKS = Judgement(metric="startup_time", value=9, unit="s", verdict=Verdict.UNPROVEN, reason=NO_REFERENCE)


@pytest.mark.parametrize(
    ("verdict", "judgements", "expected"),
    [
        pytest.param(Verdict.PASS, (RULE,), Verdict.PASS, id="passed by its own rules"),
        pytest.param(Verdict.DEGRADED, (RULE,), Verdict.PASS, id="degraded, and judged by its own rules"),
        pytest.param(
            Verdict.PASS,
            (RULE, LACKS.model_copy(update={"gating": False})),
            Verdict.PASS,
            id="lacks a reference that does not gate",
        ),
        pytest.param(Verdict.UNPROVEN, (RULE, LACKS), Verdict.UNPROVEN, id="lacks a reference"),
        pytest.param(Verdict.UNPROVEN, (RULE,), Verdict.UNPROVEN, id="unproven"),
        pytest.param(Verdict.FAIL, (RULE,), Verdict.UNPROVEN, id="failed"),
        pytest.param(Verdict.PASS, (), Verdict.UNPROVEN, id="judgements are lost"),
        pytest.param(
            Verdict.PASS,
            (RULE.model_copy(update={"gating": False}),),
            Verdict.UNPROVEN,
            id="no rule gates",
        ),
    ],
)
def test_a_number_of_a_run_that_passed_without_its_reference_needs_none(
    tmp_path: Path, verdict: Verdict, judgements: tuple[Judgement, ...], expected: Verdict
) -> None:
    node = fleet_node(1)
    run = Run(
        run_id="20261110T010000Z-all-reduce-000000",
        benchmark="all-reduce",
        started=TONIGHT - timedelta(hours=2),
        nodes=(node,),
        measurements=(
            Measurement(name="wrong_values", value=0, unit="1"),
            Measurement(name="startup_time", value=9, unit="s"),
        ),
        judgements=judgements,
        verdict=verdict,
    )
    with open_store(f"sqlite:///{tmp_path}/history.sqlite") as store:
        store.keep_many([run])
        stored = store.readings(TONIGHT, nights=1)
    for readings in (readings_of([run], TONIGHT), stored):
        night = judge_night(readings, floors())
        assert [(one.name, one.verdict) for one in night.nodes] == [(node.name, expected)]


def test_an_accepted_reference_is_a_floor_of_its_own() -> None:
    readings = readings_of(night_runs(FLEET), TONIGHT)
    part = next(index for index, one in enumerate(readings.parts) if one.key == uuid(5, 0))
    what = next(index for index, one in enumerate(readings.quantities) if one.metric == "gemm_best")
    faster = Reference(value=900, low=-0.07, unit="TFLOP/s", source="own history, 3 runs")
    night = judge_night(readings, floors(), accepted=[Accepted(what, part, faster)])
    assert not_passed(night) == {"node005"}
    assert "own history, 3 runs" in of(night, "node005").reasons[0].text


def test_an_outlier_above_its_floor_degrades() -> None:
    night = judged(night_runs(FLEET, 0, on(7, 2, 0.96)))
    assert not_passed(night) == {"node007"}
    reason = of(night, "node007").reasons[0]
    assert (reason.check, reason.verdict) == ("fleet", Verdict.DEGRADED)
    assert -0.06 < reason.deviation < -0.02
    assert "off the median of the fleet's h200" in reason.text


def test_where_lower_is_better_the_highest_is_the_outlier() -> None:
    night = judged(night_runs(FLEET, 0, on(7, None, 1.1, "latency")))
    reason = of(night, "node007").reasons[0]
    assert (reason.check, reason.verdict, reason.metric) == ("fleet", Verdict.FAIL, "latency")
    assert not_passed(judged(night_runs(FLEET, 0, on(7, None, 0.9, "latency")))) == set()


def test_few_nodes_are_not_compared() -> None:
    night = judged(night_runs(FLEET[:4], 0, on(2, 2, 0.96)))
    assert not_passed(night) == set()


@pytest.mark.parametrize(("factor", "verdict"), [(0.99, Verdict.PASS), (0.96, Verdict.DEGRADED)])
def test_equal_values_have_a_mad_of_0_and_yet_an_outlier(factor: float, verdict: Verdict) -> None:
    night = judged(night_runs(FLEET, 0, on(7, 2, factor), noise=0))
    assert of(night, "node007").verdict is verdict


def test_a_fleet_of_zeros_has_no_outliers() -> None:
    def counts(what: str, number: int, _where: int, _ago: int) -> float | None:
        return (1.0 if number == 3 else 0.0) if what == "latency" else 1.0

    night = judge_night(
        readings_of(night_runs(FLEET, 0, counts), TONIGHT), {}, policy=AnomalyPolicy(require_references=False)
    )
    assert not_passed(night) == set()


def ramp(node: int, slot: int, by: float) -> Change:
    """Return a change of one GPU's speed that grows in 14 nights from nothing to the fraction ``by``."""

    def change(what: str, number: int, where: int, ago: int) -> float | None:
        return 1 + by * (14 - ago) / 14 if (what, number, where) == ("gemm_best", node, slot) else 1.0

    return change


def test_a_slow_drift_above_the_floor_fails_with_evidence() -> None:
    night = judged(several_nights(FLEET, ramp(4, 1, -0.03)))
    reasons = [one for one in of(night, "node004").reasons if one.check == "drift"]
    assert not_passed(night) == {"node004"}
    assert reasons[0].verdict is Verdict.FAIL
    assert reasons[0].deviation == pytest.approx(-0.03, abs=0.008)
    assert reasons[0].part == f"{uuid(4, 1)} (slot 1)"
    assert "went from 79" in reasons[0].text


@pytest.mark.parametrize("by", [0.03, -0.008])
def test_what_rises_or_sinks_little_does_not_drift(by: float) -> None:
    assert not_passed(judged(several_nights(FLEET, ramp(4, 1, by)))) == set()


def test_drift_follows_a_gpu_into_another_chassis_under_another_name() -> None:
    change = ramp(4, 1, -0.03)
    before = [one for one in several_nights(FLEET, change) if one.started < TONIGHT - timedelta(days=2)]
    chips = [gpu.uuid for gpu in FLEET[4].gpus], [gpu.uuid for gpu in FLEET[9].gpus]
    chips[0][1], chips[1][1] = chips[1][1], chips[0][1]
    moved = list(FLEET)
    moved[4] = fleet_node(4, name="renamed", chips=tuple(chips[0]))
    moved[9] = fleet_node(9, chips=tuple(chips[1]))
    after = [run for ago in (1, 0) for run in night_runs(moved, ago, ramp(9, 1, -0.03))]
    night = judged(before + after)
    assert not_passed(night) == {"node009"}
    assert of(night, "node009").reasons[0].part == f"{uuid(4, 1)} (slot 1)"
    assert of(night, "renamed").verdict is Verdict.PASS


def test_one_bad_night_in_the_past_is_no_drift() -> None:
    def once(what: str, number: int, _where: int, ago: int) -> float | None:
        return 0.9 if what == "gemm_best" and number == 4 and ago == 1 else 1.0

    assert not_passed(judged(several_nights(FLEET, once))) == set()


def test_few_nights_say_nothing_about_drift() -> None:
    def checks(nights: int) -> set[str]:
        night = judged(several_nights(FLEET, ramp(4, 1, -0.03), nights=nights))
        return {one.check for one in of(night, "node004").reasons}

    assert "drift" not in checks(7)
    assert "drift" in checks(15)


def bad_share(nodes: int) -> Change:
    """Return a change with which the first nodes are 10 % slow, below their floor of 7 %."""
    return lambda what, number, _where, _ago: 0.9 if what == "gemm_best" and number < nodes else 1.0


def test_two_bad_nodes_of_a_rack_are_two_bad_nodes() -> None:
    night = judged(night_runs(FLEET, 0, bad_share(2)))
    assert [one.name for one in night.nodes if one.verdict is Verdict.FAIL] == ["node000", "node001"]
    assert not night.fleet_faults


@pytest.mark.parametrize("nodes", [3, 9, 18])
def test_a_finding_on_much_of_the_fleet_is_a_fault_of_the_tool(nodes: int) -> None:
    night = judged(night_runs(FLEET, 0, bad_share(nodes)))
    assert Verdict.FAIL not in {one.verdict for one in night.nodes}
    assert len([one for one in night.nodes if one.verdict is Verdict.UNPROVEN]) == nodes
    assert (
        f"floor of gemm_best on {nodes} of 18 nodes h200: a fault of the tool or the fabric" in night.notes[0]
    )
    assert all(one.fleetwide for one in of(night, "node000").reasons)


def test_a_fault_of_the_fleet_hides_no_other_fault_of_a_node() -> None:
    def both(what: str, number: int, _where: int, _ago: int) -> float | None:
        if what == "latency":
            return 1.5 if number == 5 else 1.0
        return 0.9

    night = judged(night_runs(FLEET, 0, both))
    assert [one.name for one in night.nodes if one.verdict is Verdict.FAIL] == ["node005"]


def test_warnings_of_many_nodes_do_not_excuse_the_one_that_fails() -> None:
    def warned(what: str, number: int, _where: int, _ago: int) -> float | None:
        return 1.0 if what != "gemm_best" else 0.9 if number == 5 else 0.945

    night = judged(night_runs(FLEET, 0, warned))
    assert [one.name for one in night.nodes if one.verdict is Verdict.FAIL] == ["node005"]


def test_a_mixed_fleet_below_a_nominal_value_is_a_remark_once_its_past_is_known() -> None:
    def slower(what: str, number: int, where: int, _ago: int) -> float | None:
        return 0.945 if what == "gemm_best" and where == number % GPUS else 1.0

    assert len(not_passed(judged(night_runs(FLEET, 0, slower)))) == 18
    night = judged(several_nights(FLEET, slower))
    assert not_passed(night) == set()
    assert len(night.notes) == 1
    assert night.notes[0].startswith("gemm_best dtype=bf16: 18 nodes lie beyond a warning bound, but most")


# All nodes lose 5.5 % or 6.5 % (the warning is at 5 %, the floor at 7 %), tonight or in the last four nights.
@pytest.mark.parametrize("nodes", [1, 3, 18])
@pytest.mark.parametrize("share", [0.945, 0.935])
@pytest.mark.parametrize("since", [1, 4])
def test_a_new_loss_that_all_nodes_share_stays_a_warning(nodes: int, share: float, since: int) -> None:
    def slower(what: str, _number: int, _where: int, ago: int) -> float | None:
        return share if what == "gemm_best" and ago < since else 1.0

    fleet = FLEET[:nodes]
    night = judged(several_nights(fleet, slower, nights=30))
    assert not_passed(night) == {node.name for node in fleet}
    assert not_passed(judged(several_nights(fleet, slower, nights=1))) == {node.name for node in fleet}


def noisy(ago: int, number: int) -> float:
    """Return a factor with the heavy tails of a machine that does other work, too."""
    return 1 + 0.004 * float(np.random.default_rng(number * 100 + ago).standard_t(3))


def test_one_number_below_its_floor_after_good_nights_is_measured_again_first() -> None:
    def one_bad(bad: int) -> Change:
        def change(what: str, number: int, where: int, ago: int) -> float | None:
            if what != "gemm_best":
                return 1.0
            return 0.925 if (number, where) == (7, 2) and ago < bad else noisy(ago, number * 4 + where)

        return change

    once = judged(several_nights(FLEET, one_bad(1)))
    assert of(once, "node007").verdict is Verdict.UNPROVEN
    assert of(once, "node007").reasons[0].check == "floor"
    twice = judged(several_nights(FLEET, one_bad(1)), twice={("nightly", "SN0007")})
    assert of(twice, "node007").verdict is Verdict.FAIL
    assert of(judged(several_nights(FLEET, one_bad(2))), "node007").verdict is Verdict.FAIL
    # Without earlier nights, the floor decides.
    assert of(judged(several_nights(FLEET, one_bad(1), nights=1)), "node007").verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("metric", "factor", "shown"),
    [
        ("gemm_best", 0.955, "\N{MINUS SIGN}4."),
        ("gemm_best", 0.965, "\N{MINUS SIGN}3."),
        ("latency", 1.035, "+3."),
        ("latency", 1.045, "+4."),
        ("gemm_best", 1.05, ""),
        ("latency", 0.955, ""),
        ("latency", 0.8, ""),
    ],
)
def test_a_rack_that_slows_down_as_a_whole_is_watched_and_not_drained(
    metric: str, factor: float, shown: str
) -> None:
    fleet = [fleet_node(number) for number in range(60)]
    racks = [{node.hardware_key: ("v1", f"r{number // 6}") for number, node in enumerate(fleet)}]

    def cooling(what: str, number: int, _where: int, ago: int) -> float | None:
        return factor if what == metric and number // 6 == 4 and ago < 3 else 1.0

    night = judged(several_nights(fleet, cooling), conditions=racks)
    hot = [one for one in night.nodes if one.verdict is not Verdict.PASS]
    if not shown:
        assert not hot
        return
    assert [one.name for one in hot] == [f"node{number:03d}" for number in range(24, 30)]
    assert {(why.check, why.verdict) for one in hot for why in one.reasons} == {("rack", Verdict.DEGRADED)}
    assert f"its rack as a whole is {shown}" in hot[0].reasons[0].text


def test_a_floor_in_another_unit_leaves_nodes_unproven() -> None:
    wrong = {
        "h200": [
            one.model_copy(update={"reference": one.reference.model_copy(update={"unit": "MB/s"})})
            for one in floors()["h200"]
        ]
    }
    night = judge_night(readings_of(night_runs(FLEET), TONIGHT), wrong)
    assert {one.verdict for one in night.nodes} == {Verdict.UNPROVEN}


def bare(value: float, unit: str, direction: Direction | None) -> Readings:
    """Return the readings of one number of one node."""
    one = np.zeros(1, np.int32)
    what = Measured("b", {}, "m", {}, unit, direction)
    return Readings(
        (what,), (Part("node", "SN1", "n1", "h200"),), one, one, one, one, np.array([value]), one > 0
    )


numbers = st.one_of(
    st.floats(-100, 100), st.sampled_from([0.0, 93.0, 95.0, 100.0, 125.0, math.nan, math.inf])
)
fractions = st.one_of(st.none(), st.sampled_from([-0.07, -0.05, -0.035, 0.0, 0.05, 0.25, 1.0]))


@settings(max_examples=500, deadline=None)
@given(
    value=numbers,
    base=st.sampled_from([100.0, 93.0, 0.0, -50.0]),
    low=fractions,
    high=fractions,
    warn=fractions,
    unit=st.sampled_from(["GB/s", "MB/s", "s"]),
    asked=st.sampled_from(["GB/s", "s"]),
    direction=st.sampled_from([None, Direction.HIGHER, Direction.LOWER]),
)
@example(0.0, 100.0, 0.0, 0.0, None, "GB/s", "GB/s", Direction.LOWER)
@example(0.5, 1.0, -0.05, 0.05, None, "s", "s", None)
@example(0.5, 1.0, 0.0, 0.0, None, "s", "s", None)
@pytest.mark.slow
def test_floors_are_judged_exactly_as_judging_does(
    value: float,
    base: float,
    low: float | None,
    high: float | None,
    warn: float | None,
    unit: str,
    asked: str,
    direction: Direction | None,
) -> None:
    reference = Reference(value=base, low=low, high=high, warn=warn, unit=asked, source="s")
    expected = judge(Measurement(name="m", value=value, unit=unit, direction=direction), reference)
    # The history has NaN for an infinity. Neither can be judged.
    night = judge_night(
        bare(value if math.isfinite(value) else math.nan, unit, direction),
        {},
        accepted=[Accepted(0, 0, reference)],
        past=False,
    )
    if (low or 0) > 0 or (high or 0) < 0:
        return  # SkuReference and acceptance refuse such bounds.
    assert night.nodes[0].verdict is expected.verdict, night.nodes[0].reasons
    if expected.verdict is not Verdict.PASS and math.isfinite(value):
        assert night.nodes[0].reasons[0].text == f"{expected.reason} (s)"


def test_readings_of_one_night_are_those_of_all_nights_of_that_night() -> None:
    runs = several_nights(FLEET[:2], nights=3)
    three = readings_of(runs, TONIGHT, nights=3)
    one = readings_of(runs, TONIGHT)
    assert len(three) == 3 * len(one) == 3 * 2 * 5
    np.testing.assert_array_equal(three.value[three.night == 0], one.value)


def test_pairs_are_judged_beside_nodes() -> None:
    runs = night_runs(FLEET)
    pair = Run(
        run_id="pair-1",
        benchmark="pairs",
        started=TONIGHT - timedelta(hours=1),
        nodes=(FLEET[0], FLEET[1]),
        measurements=(Measurement(name="latency", value=9, unit="us", direction=Direction.LOWER),),
    )
    night = judged([*runs, pair])
    bad = [one for one in night.nodes if one.verdict is not Verdict.PASS]
    assert [(one.kind, one.key, one.sku) for one in bad] == [("group", "SN0000+SN0001", "h200")]
    assert bad[0].verdict is Verdict.FAIL


def test_at_most_twenty_reasons_are_reported() -> None:
    readings = readings_of(night_runs(FLEET[:1], 0), TONIGHT)
    many = replace(
        readings,
        **{
            name: np.repeat(getattr(readings, name), 10)
            for name in ("quantity", "part", "node", "night", "is_proven")
        },
        value=np.repeat(readings.value, 10) / 1.5,
    )
    node = judge_night(many, floors()).nodes[0]
    assert (len(node.reasons), node.more) == (20, 20)
    assert node.reasons[0].verdict is Verdict.FAIL


def test_a_sku_reference_that_fits_other_labels_does_not_judge() -> None:
    other = {
        "h200": [
            SkuReference(
                metric="gemm_best",
                labels={"dtype": "fp8"},
                reference=Reference(value=1, low=-0.1, unit="TFLOP/s", source="s"),
            ),
            floors()["h200"][1],
        ]
    }
    night = judge_night(readings_of(night_runs(FLEET[:1]), TONIGHT), other)
    assert {one.check for one in night.nodes[0].reasons} == {"reference"}
