"""Test the simulated nights of a fleet (simulation.py, faults.py and fleets.py).

The judge of nights is measured on these fleets, so they must be what their description states: values, noise,
faults, firmware and missing measurements. Numbers that are drawn by chance must be within binomial bounds.
"""

import ast
import dataclasses
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from tests.fleet_simulator.faults import Fault, FaultKind, FaultMix, all_faults, course, mix_of, no_faults
from tests.fleet_simulator.fleets import Fleet, Missing, Noise, fleet_of, fleets
from tests.fleet_simulator.recorded_noise import session_residuals, shared_part, single_residuals
from tests.fleet_simulator.simulation import Measurement, Simulation, simulate

METRICS = ("gemm_bf16_tflops", "hbm_copy_gbs", "h2d_gbs")
EVEN = {
    "nights": 6,
    "nodes": 40,
    "nodes_per_rack": 4,
    "skus": {"one": {"gpus": 4, "metrics": {name: {"nominal": 100, "unit": "GB/s"} for name in METRICS}}},
    "firmwares": {"a": {"share": 1}},
    "noise": {"kind": "normal", "scale": {"default": 0}},
}
"""A fleet in which all values are 100, and nothing changes from night to night."""


def fleet_with(**changes: object) -> Fleet:
    """Return the even fleet with some changes."""
    return fleet_of("even", {**EVEN, **changes})


def only(kind: dict[str, object], sizes: tuple[float, ...] = (-0.05,), share: float = 0.2) -> FaultMix:
    """Return a mix with one kind of fault, in a share of the nodes or racks."""
    of_racks = kind["part"] == "rack"
    return mix_of(
        {
            "kinds": {"it": kind},
            "sizes": sizes,
            "share_of_nodes": 0 if of_racks else share,
            "share_of_racks": share if of_racks else 0,
            "begin_between": (0.3, 0.8),
        }
    )


def values(simulation: Simulation) -> dict[tuple[int, str, str, str], float]:
    """Return all values by night, node, GPU and metric."""
    return {
        (one.night, one.node, one.gpu_uuid, one.metric): one.value for night in simulation for one in night
    }


def matrix(simulation: Simulation) -> np.ndarray:
    """Return all values as ``[night, gpu, metric]``."""
    fleet = simulation.fleet
    rows = [[one.value for one in night] for night in simulation]
    return np.array(rows).reshape(fleet.nights, -1, len(fleet.metrics))


def every_measurement(simulation: Simulation) -> Iterator[Measurement]:
    for night in simulation:
        yield from night


def test_the_simulator_knows_nothing_of_the_package() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not [name for name in names if name.split(".")[0].startswith("rackproof")], path.name


@pytest.mark.parametrize("name", ["small", "young"])
def test_a_seed_gives_the_same_nights_however_they_are_read(name: str) -> None:
    fleet = fleets()[name]
    first, second = simulate(fleet, all_faults(), 7), simulate(fleet, all_faults(), 7)
    assert first.truth == second.truth
    assert values(first) == values(second)
    assert values(first) == values(first)
    last = list(second)[-1]
    assert list(last) == list(last)
    assert list(last) == [one for one in every_measurement(first) if one.night == fleet.nights]


def test_another_seed_gives_other_nights() -> None:
    fleet = fleets()["small"]
    first, second = simulate(fleet, all_faults(), 1), simulate(fleet, all_faults(), 2)
    assert first.truth != second.truth
    assert set(values(first).values()).isdisjoint(values(second).values())


def test_nights_are_made_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = simulate(fleets()["small"], no_faults(), 1)
    asked: list[int] = []
    of_night = simulation.layout.of_night
    monkeypatch.setattr(simulation.layout, "of_night", lambda night: asked.append(night) or of_night(night))
    nights = iter(simulation)
    assert next(nights).number == 1
    assert asked == [1]


@pytest.mark.parametrize("kind", sorted(all_faults().kinds))
def test_a_fault_does_what_it_is_asked_to_and_to_nothing_else(kind: str) -> None:
    """Compare with the same fleet without faults. The values of other GPUs and nights do not change."""
    chosen = all_faults().kinds[kind]
    mix = dataclasses.replace(
        all_faults(), kinds={kind: chosen}, share_of_nodes=0.02, share_of_racks=0.02, sizes=(-0.03, -0.12)
    )
    rollouts = [{"from": "a", "to": "b", "first_night": 3, "over_nights": 2, "share": 0.5}]
    firmwares = {"a": {"share": 1}, "b": {"share": 0}}
    fleet = fleet_with(
        nights=12,
        nodes=200,
        firmwares=firmwares,
        rollouts=rollouts,
        noise={"kind": "student", "scale": {"default": 0.01}},
    )
    faulty, sound = simulate(fleet, mix, 3), simulate(fleet, no_faults(), 3)
    ratio = matrix(faulty) / matrix(sound)
    expected = np.ones_like(ratio)
    is_noisy = np.zeros_like(ratio, dtype=bool)
    assert len(faulty.truth.faults) >= 1
    for fault in faulty.truth.faults:
        for node in [fault.node] if fault.node else faulty.truth.nodes_of_rack[fault.rack]:
            first = faulty.layout.nodes.index(node) * 4
            for gpu in fault.gpus or range(4):
                for column, metric in enumerate(METRICS):
                    size = fault.sizes.get(metric, 0.0)
                    expected[:, first + gpu, column] = 1 + size * np.array(fault.by_night)
                    is_noisy[:, first + gpu, column] = fault.noisy
    if chosen.replaces:
        assert np.median(ratio[expected < 1]) == pytest.approx(np.median(expected[expected < 1]), abs=0.002)
    assert ratio[~is_noisy] == pytest.approx(expected[~is_noisy], rel=1e-9)
    if chosen.shape == "noisy":
        assert np.std(ratio[is_noisy & (expected < 1)]) > 0.02


def test_there_are_at_least_twelve_kinds_of_faults_of_three_to_twelve_per_cent() -> None:
    mix = all_faults()
    assert len(mix.kinds) >= 12
    assert (min(mix.sizes), max(mix.sizes)) == (-0.12, -0.03)


# For each night, whether a job had warmed the node.
WARM = (True, False, False, True, False, True, True, False)


# The fault begins in night 3 of 8. `parts` is the part of its size that it has in each night.
@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ({}, (0, 0, 1, 1, 1, 1, 1, 1)),
        ({"shape": "ramp", "over_nights": 4}, (0, 0, 0.25, 0.5, 0.75, 1, 1, 1)),
        ({"shape": "stairs", "over_nights": 3}, (0, 0, 0.5, 0.5, 0.5, 1, 1, 1)),
        ({"shape": "every", "every": 3}, (0, 0, 1, 0, 0, 1, 0, 0)),
        ({"shape": "warm"}, (0, 0, 0, 1, 0, 1, 1, 0)),
        ({"shape": "noisy"}, (0, 0, 1, 1, 1, 1, 1, 1)),
        ({"shape": "chance", "chance": 0.0}, (0, 0, 1, 0, 0, 0, 0, 0)),
        ({"lasts": 2}, (0, 0, 1, 1, 0, 0, 0, 0)),
    ],
)
def test_the_course_of_a_fault(kind: dict[str, object], parts: tuple[float, ...]) -> None:
    assert course(FaultKind("it", "gpu", **kind), 3, WARM, np.random.default_rng(1)) == parts


def test_every_class_of_fault_comes_up_as_often_as_any_other() -> None:
    fleet = dataclasses.replace(fleets()["mixed"], nodes=9000)
    truth = simulate(fleet, all_faults(), 5).truth
    of_nodes = Counter((fault.kind, fault.size) for fault in truth.faults if fault.node)
    of_racks = Counter((fault.kind, fault.size) for fault in truth.faults if not fault.node)
    sizes = len(all_faults().sizes)
    assert len(of_nodes) == 19 * sizes
    assert max(of_nodes.values()) - min(of_nodes.values()) <= 1
    assert len(of_racks) == 2 * sizes
    assert max(of_racks.values()) - min(of_racks.values()) <= 1
    assert sum(of_nodes.values()) == 450
    assert sum(of_racks.values()) == 45


def test_a_faulty_rack_has_no_faulty_node_and_no_node_two_faults() -> None:
    truth = simulate(fleets()["mixed"], all_faults(), 2).truth
    nodes = [fault.node for fault in truth.faults if fault.node]
    assert len(set(nodes)) == len(nodes)
    of_rack = truth.fault_of_rack()
    assert not {fault.rack for fault in truth.faults if fault.node} & set(of_rack)


def faults_of(simulation: Simulation, kind: str) -> list[Fault]:
    return [fault for fault in simulation.truth.faults if fault.kind == kind]


def test_when_faults_begin() -> None:
    simulation = simulate(fleets()["mixed"], all_faults(), 1)
    assert {fault.first_night for fault in faults_of(simulation, "slow_at_first_sight")} == {1}
    assert {fault.first_night for fault in faults_of(simulation, "begins_with_the_rollout")} <= {7, 8, 9}
    begin = {fault.first_night for fault in faults_of(simulation, "step")}
    assert min(begin) >= 5
    assert max(begin) <= 12
    assert all(fault.last_night == fault.first_night + 2 for fault in faults_of(simulation, "recovered"))
    young = simulate(fleets()["young"], all_faults(), 1)
    assert all(fault.first_night == 2 for fault in young.truth.faults if "first_sight" not in fault.kind)


def test_a_replaced_gpu_has_another_uuid_from_its_first_night_on() -> None:
    simulation = simulate(fleet_with(), only({"part": "gpu", "replaces": True}), 1)
    fault = simulation.truth.faults[0]
    seen = [{one.gpu_uuid for one in night if one.node == fault.node} for night in simulation]
    before, after = seen[fault.first_night - 2], seen[fault.first_night - 1]
    assert set(fault.uuids) == after - before
    assert len(before & after) == 3
    assert all(one == before for one in seen[: fault.first_night - 1])


def test_good_gpus_are_replaced_too() -> None:
    simulation = simulate(fleet_with(replaced=0.02, nodes=400), no_faults(), 1)
    uuids = [{one.gpu_uuid for one in night} for night in simulation]
    replaced = sum(len(after - before) for before, after in pairwise(uuids))
    assert binom.ppf(1e-6, 1600 * 5, 0.02) - 50 <= replaced <= binom.ppf(1 - 1e-6, 1600 * 5, 0.02)


@pytest.mark.parametrize("of", ["sessions", "singles"])
@pytest.mark.parametrize("carried", [0.0, 0.6])
def test_noise_has_the_quantiles_of_the_recordings(of: str, carried: float) -> None:
    noise = {"kind": "recorded", "of": of, "scale": {"default": 1}, "autocorrelation": carried}
    simulation = simulate(fleet_with(nodes=1000, noise=noise), no_faults(), 1)
    made = matrix(simulation) / 100 - 1
    for column, metric in enumerate(METRICS):
        recorded = session_residuals(metric) if of == "sessions" else single_residuals(metric)
        spread = np.quantile(recorded, 0.9) - np.quantile(recorded, 0.1)
        for part in (0.02, 0.05, 0.25, 0.5, 0.75, 0.95, 0.98):
            asked = np.quantile(recorded, part, method="hazen")
            near = np.quantile(recorded, [part - 0.005, part + 0.005], method="hazen")
            difference = np.quantile(made[:, :, column], part) - asked
            assert abs(difference) <= max(0.05 * spread, near[1] - near[0]), (metric, part)
        assert made[:, :, column].min() == pytest.approx(recorded[0])


def test_noise_is_shared_within_a_node_and_carried_over_nights_as_asked() -> None:
    noise = {"kind": "normal", "scale": {"default": 0.01}, "autocorrelation": 0.5, "shared": 0.4}
    made = matrix(simulate(fleet_with(nodes=3000, noise=noise), no_faults(), 1)) / 100 - 1
    assert made.std() == pytest.approx(0.01, rel=0.02)
    tonight, tomorrow = made[:-1].ravel(), made[1:].ravel()
    assert np.corrcoef(tonight, tomorrow)[0, 1] == pytest.approx(0.5, abs=0.02)
    assert np.corrcoef(made[:, 0::4].ravel(), made[:, 1::4].ravel())[0, 1] == pytest.approx(0.4, abs=0.02)
    assert np.corrcoef(made[:, 0::8].ravel(), made[:, 4::8].ravel())[0, 1] == pytest.approx(0, abs=0.02)
    columns = [made[:, :, column].ravel() for column in (0, 1)]
    assert np.corrcoef(*columns)[0, 1] == pytest.approx(0, abs=0.02)


def test_recorded_noise_is_shared_as_it_was_recorded() -> None:
    noise = {"kind": "recorded", "scale": {"default": 1}, "shared": "recorded"}
    made = matrix(simulate(fleet_with(nodes=2000, noise=noise), no_faults(), 1)) / 100 - 1
    for column, metric in enumerate(METRICS):
        ranks = made[:, :, column].argsort(axis=1).argsort(axis=1)
        together = np.corrcoef(ranks[:, 0::4].ravel(), ranks[:, 1::4].ravel())[0, 1]
        assert together == pytest.approx(shared_part(metric), abs=0.06)


def test_student_noise_has_heavy_tails() -> None:
    noise = {"kind": "student", "freedom": 3, "scale": {"default": 0.0025}}
    made = matrix(simulate(fleet_with(nodes=3000, noise=noise), no_faults(), 1)) / 100 - 1
    assert np.quantile(made, 0.75) == pytest.approx(0.0025 * 0.7649, rel=0.02)
    assert np.quantile(made, 0.0005) == pytest.approx(-0.0025 * 12.924, rel=0.1)


def within(count: int, of: int, share: float) -> bool:
    """Return whether a count out of ``of`` is plausible for a share. It is wrong in 2 of a million cases."""
    return bool(binom.ppf(1e-6, of, share) <= count <= binom.ppf(1 - 1e-6, of, share))


def test_the_common_fleet_is_what_it_is_called() -> None:
    fleet = fleets()["common"]
    night = next(iter(simulate(fleet, all_faults(), 1)))
    measurements = list(night)
    assert fleet.nights == 15
    assert len(measurements) == 2000 * 4 * 3
    assert len({one.node for one in measurements}) == 2000
    assert len({one.rack for one in measurements}) == 112
    assert {one.metric: one.unit for one in measurements} == {
        "gemm_bf16_tflops": "TFLOP/s",
        "hbm_copy_gbs": "GB/s",
        "h2d_gbs": "GB/s",
    }
    firmware = {one.node: one.firmware for one in measurements}
    assert within(Counter(firmware.values())["96.00.BC.00.04"], 2000, 0.4)


def test_the_lottery_makes_a_share_of_the_gpus_slower_for_good() -> None:
    made = matrix(simulate(fleet_with(nodes=500, lottery={"share": 0.2, "size": -0.025}), no_faults(), 1))
    slow = made[:, :, 0] < 99
    assert within(int(slow[0].sum()), 2000, 0.2)
    assert (slow == slow[0]).all()
    assert made[:, slow[0]] == pytest.approx(97.5)


# A GPU's level is the same in all nights (axis 0), and the weather of a night is the same for all GPUs (axis
# 1).
@pytest.mark.parametrize(
    ("effect", "axes"),
    [({"part_sd": {"default": 0.01}}, (0,)), ({"weather_sd": {"default": 0.01}}, (1,))],
)
def test_levels_stay_and_weather_is_everybodys(effect: dict[str, object], axes: tuple[int, ...]) -> None:
    made = matrix(simulate(fleet_with(nights=30, **effect), no_faults(), 1))
    assert np.ptp(made, axis=axes).max() == pytest.approx(0, abs=1e-9)
    assert np.log(made / 100)[:, :, 0].std() == pytest.approx(0.01, rel=0.3)


def test_racks_drift_and_warm_nodes() -> None:
    of_racks = matrix(simulate(fleet_with(rack_sd={"default": 0.01}), no_faults(), 1)).reshape(6, 10, 16, 3)
    assert np.ptp(of_racks, axis=2).max() == pytest.approx(0, abs=1e-9)
    drifting = matrix(simulate(fleet_with(drift_per_night=-0.001), no_faults(), 1))
    assert drifting[5] / drifting[0] == pytest.approx(np.exp(-0.005))
    warm = matrix(simulate(fleet_with(warm={"share": 0.3, "size": -0.01}, nodes=400), no_faults(), 1))
    assert within(int((warm[:, ::4, 0] < 99.5).sum()), 2400, 0.3)


def test_bad_rack_nights_are_in_the_truth() -> None:
    bad = {"chance": 0.2, "least": -0.02, "most": -0.05, "metrics": ["h2d_gbs"]}
    simulation = simulate(fleet_with(bad_rack_nights=bad), no_faults(), 1)
    slower = {(one.rack, one.night) for one in every_measurement(simulation) if one.value < 99}
    assert slower == simulation.truth.bad_rack_nights
    assert within(len(slower), 60, 0.2)
    assert {one.metric for one in every_measurement(simulation) if one.value < 99} == {"h2d_gbs"}
    assert all(95 <= one.value <= 98 for one in every_measurement(simulation) if one.value < 99)


def test_a_rollout_moves_part_of_the_nodes_for_good() -> None:
    fleet = fleets()["mixed"]
    simulation = simulate(fleet, no_faults(), 1)
    firmware = simulation.layout.firmware_by_night[1:]
    changes = firmware[1:] != firmware[:-1]
    assert (changes.sum(axis=0) <= 1).all()
    moved = changes.any(axis=0)
    assert set(np.flatnonzero(changes.any(axis=1)) + 2) == {7, 8, 9}
    first, last = Counter(firmware[0].tolist()), Counter(firmware[-1].tolist())
    assert within(int(moved.sum()), first[0], 0.4)
    assert first[1] == last[1]
    assert last[2] == first[2] + moved.sum()


def test_values_are_missing_and_nodes_join_late_as_often_as_asked() -> None:
    fleet = fleets()["young"]
    fleet = dataclasses.replace(fleet, nodes=2000)
    first, second = list(simulate(fleet, no_faults(), 1))
    late = set(second.nodes) - set(first.nodes)
    assert within(len(late), 2000, 0.2)
    assert set(first.nodes) < set(second.nodes)
    measured = list(second)
    silent = set(second.nodes) - {one.node for one in measured}
    assert within(len(silent), 2000, 0.03)
    assert within(len(measured), (2000 - len(silent)) * 32, 0.95)
    assert not late & {one.node for one in first}


def test_skus_have_their_own_gpus_and_metrics() -> None:
    skus = {
        "large": {"share": 0.5, "gpus": 8, "metrics": {"a": {"nominal": 10, "unit": "x"}}},
        "small": {"share": 0.5, "gpus": 2, "metrics": {"b": {"nominal": 20, "unit": "y"}}},
    }
    night = next(iter(simulate(fleet_with(skus=skus), no_faults(), 1)))
    seen = Counter((one.sku, one.metric, one.unit, round(one.value)) for one in night)
    assert set(seen) == {("large", "a", "x", 10), ("small", "b", "y", 20)}
    per_node = Counter((one.sku, one.node) for one in night)
    assert {(sku, count) for (sku, _), count in per_node.items()} == {("large", 8), ("small", 2)}
    of_rack: dict[str, set[str]] = {}
    for one in night:
        of_rack.setdefault(one.rack, set()).add(one.sku)
    assert all(len(one) == 1 for one in of_rack.values())


def test_a_retest_has_new_noise_and_the_same_fault() -> None:
    noise = {"kind": "normal", "scale": {"default": 0.002}}
    fleet = dataclasses.replace(fleet_with(noise=noise), missing=Missing(measurements=0.1))
    simulation = simulate(fleet, only({"part": "node"}, (-0.1,)), 1)
    fault = simulation.truth.faults[0]
    night = list(simulation)[fault.first_night - 1]
    first = [one for one in night if one.node == fault.node]
    second, third = (night.retest([str(fault.node)]) for _ in range(2))
    assert len(second) == 12
    assert {one.night for one in second} == {fault.first_night}
    assert np.mean([one.value for one in second]) == pytest.approx(90, abs=0.5)
    for earlier, later in ((first, second), (second, third)):
        assert {one.value for one in earlier}.isdisjoint(one.value for one in later)


def test_unknown_keys_and_words_are_refused() -> None:
    with pytest.raises(ValueError, match="even: nodes_a_rack: unknown"):
        fleet_with(nodes_a_rack=3)
    with pytest.raises(ValueError, match="even: noise: size: unknown"):
        fleet_with(noise={"kind": "normal", "size": 1})
    with pytest.raises(ValueError, match=r"it: shape: step or .* or noisy, not jump"):
        only({"part": "gpu", "shape": "jump"})
    with pytest.raises(ValueError, match="it: metrics: all or one, not two"):
        only({"part": "gpu", "metrics": "two"})
    cauchy = dataclasses.replace(fleet_with(), noise=Noise("cauchy", {"default": 1.0}))
    with pytest.raises(ValueError, match="noise: cauchy"):
        list(simulate(cauchy, no_faults(), 1))


@pytest.mark.slow
def test_a_large_fleet_takes_less_than_a_minute_of_cpu() -> None:
    begin = time.process_time()
    count = sum(1 for _ in every_measurement(simulate(fleets()["mixed"], all_faults(), 1)))
    assert count > 3_500_000
    assert time.process_time() - begin < 60
