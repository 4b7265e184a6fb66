"""Test workloads/soak_series.py, which finds sag, stalls and lowered clocks in the seconds of a soak.

Sag is a loss of speed after the GPU has warmed up. A stall is a step that takes far longer than usual. The
tests use made-up seconds with the noise of an H100, and recorded noise (tests/perf/simulate_soak.py). They
show that each fault is found within ten minutes, and that healthy GPUs break no limit.
"""

from __future__ import annotations

import importlib
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rackproof.core import definitions
from rackproof.logs import FORMATS
from tests.workloads.programs import load_program

USUAL = 650.0
"""The speed of the load in TFLOP/s."""
DEVIATION = 0.004
"""The relative deviation of a second: 0.06 to 0.42 % on an H100 that warms up from 62 to 78 °C."""
WARM_UP = 0.019
"""The share of its speed that an H100 loses in the first minute."""


@pytest.fixture(scope="module")
def series() -> Any:
    """Return workloads/soak_series.py as a module."""
    return load_program("soak_series")


def windows(
    series: Any,
    minutes: int,
    dice: random.Random,
    loss: float = 0.0,
    onset_s: float = math.inf,
    **changes: Any,
) -> list[Any]:
    """Return seconds of a GPU that warms up, and that loses a share of its speed from a moment on."""
    made, drift = [], 0.0
    for second in range(1, 60 * minutes + 1):
        # The noise of one second continues into the next.
        drift = 0.8 * drift + dice.gauss(0, 0.6 * DEVIATION)
        rate = USUAL * (1 + WARM_UP * math.exp(-second / 25)) * (1 + drift)
        if second > onset_s:
            rate *= 1 - loss
        read = {"throttle": 4, "temperature": 78 - 16 * math.exp(-second / 25), "power": 697.5}
        made.append(series.Window(float(second), 1.0, rate, 1.0, 0, read, **changes))
    return made


def test_a_healthy_gpu_does_not_sag(series: Any) -> None:
    sags = [series.largest_sag(windows(series, 20, random.Random(seed))) for seed in range(300)]
    assert max(sags) < 0.01
    assert min(sags) > 0


@pytest.mark.parametrize("loss", [0.03, 0.05, 0.5])
def test_a_loss_is_found_within_ten_minutes_of_its_onset(series: Any, loss: float) -> None:
    for seed in range(100):
        dice = random.Random(seed)
        onset_s = dice.uniform(240, 900)
        held = windows(series, math.ceil((onset_s + 600) / 60), dice, loss, onset_s)
        assert series.largest_sag(held) > 0.02, (seed, onset_s)
        before = [one for one in held if one.at_s < onset_s]
        assert series.largest_sag(before) < 0.01


def test_a_gpu_that_stands_still_sags_by_all_of_its_speed(series: Any) -> None:
    held = windows(series, 10, random.Random(1))
    held[-130:] = [series.Window(one.at_s, 1.0, 0.0, 0.0, 0, one.read) for one in held[-130:]]
    assert series.largest_sag(held) == 1


@pytest.mark.parametrize("minutes", [0, 1, 3])
def test_a_run_that_is_too_short_has_no_sag(series: Any, minutes: int) -> None:
    assert series.largest_sag(windows(series, minutes, random.Random(1))) is None


def test_the_least_seconds_of_the_benchmark_give_a_sag(series: Any, root: Path) -> None:
    probe = load_program("probe_soak")
    soak = definitions.load_definition(root / "benchmarks/soak.yml", log_formats=FORMATS).definition
    (rule,) = [rule for rule in soak.result.judge if rule.metric == "soak_sag"]
    seconds = round(rule.needs_seconds)
    settle_s = probe.settle_seconds(seconds)
    held = windows(series, 5, random.Random(1))
    assert series.largest_sag(held[:seconds], settle_s) is not None
    assert series.largest_sag(held[: seconds - 10], probe.settle_seconds(seconds - 10)) is None


@pytest.mark.parametrize(
    ("times_s", "usual_s", "stalls"),
    [
        # Seconds of the steps, the usual seconds, and the number of stalls.
        ([0.042, 0.0421, 0.0437], 0.042, 0),
        ([0.042, 0.242, 0.042], 0.042, 1),
        ([0.064, 0.0631], 0.042, 2),
        ([0.0002, 0.0004], 0.0001, 0),  # steps are so short that the host causes the difference
        ([5.0], 0.0, 0),  # the usual time is not known yet
    ],
)
def test_stalls_are_steps_far_longer_than_usual(
    series: Any, times_s: list[float], usual_s: float, stalls: int
) -> None:
    assert series.count_stalls(times_s, usual_s) == stalls


def test_stalls_within_any_ten_minutes_are_counted(series: Any) -> None:
    def held(moments: set[int]) -> list[Any]:
        return [series.Window(float(at), 1.0, USUAL, 1.0, int(at in moments), {}) for at in range(1, 7200)]

    assert series.most_stalls(held(set(range(60, 7200, 60)))) == 10
    assert series.most_stalls(held({10, 3000, 6000})) == 1
    # Stalls at the end of a long run count as in a short one.
    assert series.most_stalls(held(set(range(6600, 7200, 60)))) == 10


# NVML's bits: a power cap (0x4), an idle GPU (0x1) and a sync boost (0x10) are no fault. The other bits are.
@pytest.mark.parametrize(
    ("bits", "slowed_s"), [(0x4, 0), (0x1, 0), (0x8, 10), (0x20, 10), (0x44, 10), (0x80, 10), (0x10, 0)]
)
def test_seconds_with_lowered_clocks_are_added_up(series: Any, bits: int, slowed_s: float) -> None:
    read = {"throttle": bits, "temperature": 78, "power": 700}
    held = [
        series.Window(float(at), 1.0, USUAL, 1.0, 0, read if at > 50 else {"throttle": 4})
        for at in range(1, 61)
    ]
    assert series.slowed_seconds(held) == slowed_s
    assert series.unread_seconds(held) == 50


def test_without_readings_there_is_no_temperature(series: Any) -> None:
    held = [series.Window(1.0, 1.0, USUAL, 1.0, 0, {})]
    assert series.hottest(held) is None
    assert series.unread_seconds(held) == 1
    assert series.mean_rate(held, settle_s=5) is None


def test_a_line_of_several_seconds_hides_nothing(series: Any) -> None:
    first = series.Window(1.0, 1.0, 600.0, 1.0, 2, {"throttle": 4, "temperature": 70, "power": 690})
    second = series.Window(2.0, 1.0, 650.0, 1.0, 1, {"throttle": 0x20, "temperature": 78})
    merged = series.merge([first, second])
    assert (merged.rate, merged.stalls, merged.seconds, merged.at_s) == (600.0, 3, 2.0, 2.0)
    assert merged.read == {"throttle": 0x24, "temperature": 78, "power": 690}
    with pytest.raises(ValueError, match="no windows"):
        series.merge([])


@pytest.fixture(scope="module")
def simulation() -> Any:
    """Return tests/perf/simulate_soak.py as a module."""
    # Import it as a module of its package, because it puts workloads/ on the path.
    return importlib.import_module("tests.perf.simulate_soak")


@pytest.mark.parametrize("kind", range(3))
def test_a_fault_in_recorded_noise_is_found_on_its_gpu_within_ten_minutes(simulation: Any, kind: int) -> None:
    """This is a sample of what tests/perf/simulate_soak.py simulates 300 times."""
    dice = np.random.default_rng(kind)
    minutes = [simulation.find(simulation.FAULTS[kind], dice) for _ in range(3)]
    assert all(one is not None and one <= 10 for one in minutes), minutes


def test_without_a_fault_no_limit_is_broken(simulation: Any) -> None:
    """The simulation itself, and a fault that is too small, must break no limit."""
    dice = np.random.default_rng(1)
    nothing = simulation.Fault("nothing")
    assert [simulation.find(nothing, dice) for _ in range(3)] == [None] * 3
    small = simulation.Fault("half a per cent", loss=0.005)
    assert simulation.find(small, dice) is None


@pytest.mark.parametrize(("seconds", "hours"), [(600, 300), (3600, 300), (86_400, 192)])
def test_healthy_gpus_in_recorded_noise_break_no_limit(simulation: Any, seconds: int, hours: int) -> None:
    alarms, simulated, worst = simulation.count_alarms(np.random.default_rng(seconds), hours, seconds)
    assert simulated >= hours
    assert alarms == 0
    assert 0 < worst < 0.02


def test_a_limit_below_the_noise_raises_alarms(simulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """This test shows that the count of false alarms can be more than 0."""
    monkeypatch.setattr(simulation, "breaks", lambda metric, figure: figure > 0.006)
    monkeypatch.setattr(simulation, "_check_sample", lambda *_: None)
    assert simulation.count_alarms(np.random.default_rng(1), 100, 3600)[0] > 0


def test_the_log_of_three_days_is_bounded(series: Any) -> None:
    at_s, lines = 0.0, 0
    while at_s < 3 * 86400:
        at_s += series.seconds_per_line(at_s)
        lines += 1
    assert lines < 7000
