# ruff: noqa: E402  (what is simulated is imported from where it lies)
"""Simulate GPUs under a long load, with faults and without, to test the limits of the benchmark soak.

    python tests/perf/simulate_soak.py [--hours 100000] [--faults 300] [--seed 1]

The noise is recorded: seconds of an H200 at its power limit, drawn again at random
(tests/fleet_simulator/recorded_noise.json), or those of the noisiest H100, whose seconds deviate by 0.42 %
and depend on the second before. Each GPU has one of the two, loses up to 1.9 % while it warms up, and differs
from the others of its node by up to 2.7 %. In runs of a day, the room changes a GPU's speed by up to 0.6 %,
which was not measured. The seconds are judged by workloads/soak_series.py and the limits of
benchmarks/soak.yml. Of the healthy hours, only a sample is judged so, and must agree with numpy's result for
all.

A fault is found if its GPU breaks a limit within ten minutes of the onset, not before, and no other GPU
breaks one. The program prints a Markdown table. Its exit status is not 0 if a fault was missed or blamed on
another GPU, or if there was more than one false alarm in 1,000 GPU-hours.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "workloads")]

import numpy as np
import soak_series
from numpy.typing import NDArray
from scipy import stats
from soak_series import Window

from rackproof.core.definitions import load_definition
from rackproof.core.judging import judge
from rackproof.core.records import Measurement
from rackproof.logs import FORMATS

Floats = NDArray[np.float32]
GPUS = 8
# Speed of a healthy GPU (its unit does not matter), and seconds of a step at this speed.
USUAL = 650.0
STEP_S = 0.042
# The noisiest H100: deviation of a second, and its correlation with the second before. Then the loss of a
# cold GPU and the seconds in which it warms up, the spread between GPUs, and the change in a day.
WORST_DEVIATION, WORST_MEMORY = 0.0042, 0.8
WARM_UP, WARM_UP_S = 0.019, 25.0
SPREAD = 0.027
ROOM = 0.006
WITHIN_S = 600
LATER = WITHIN_S // 60
MOST_CELLS = 20_000_000
CHECKED = 1000
"""One healthy run of so many goes through the program's own functions, too."""
DAY_S = 86_400


@lru_cache(maxsize=1)
def recorded() -> Floats:
    """Return the relative deviation of each recorded second of a long load from the usual speed."""
    recordings = json.loads((ROOT / "tests/fleet_simulator/recorded_noise.json").read_text())["recordings"]
    (metric,) = recordings[-1]["metrics"]["gemm_bf16_sustained_tflops"]
    return np.asarray(metric["ppm"][0], np.float32) / 1e6


def speeds(dice: np.random.Generator, gpus: int, seconds: int) -> Floats:
    """Return the speed of healthy GPUs of nodes, a row per GPU, a column per second."""
    drawn = dice.choice(recorded(), (gpus, seconds))
    noisy = dice.random(gpus) < 0.5
    drawn[noisy] = _noisiest(dice, int(noisy.sum()), seconds)
    at_s = np.arange(1, seconds + 1, dtype=np.float32)
    drawn += WARM_UP * dice.random((gpus, 1), np.float32) * np.exp(-at_s / WARM_UP_S)
    if seconds >= DAY_S:
        swing = ROOM / 2 * dice.random((gpus, 1), np.float32)
        drawn += swing * np.sin(2 * np.pi * (at_s / DAY_S + dice.random((gpus, 1), np.float32)))
    level = 1 + SPREAD * (dice.random((gpus, 1), np.float32) - 0.5)
    return np.asarray(USUAL * level * (1 + drawn), np.float32)


def _noisiest(dice: np.random.Generator, gpus: int, seconds: int) -> Floats:
    """Return noise like that of the noisiest H100."""
    noise = dice.standard_normal((seconds, gpus), np.float32)
    noise *= WORST_DEVIATION * math.sqrt(1 - WORST_MEMORY**2)
    for second in range(1, seconds):
        noise[second] += WORST_MEMORY * noise[second - 1]
    return noise.T


def windows_of(rates: Sequence[float], stalls: Sequence[int], throttled: Sequence[bool]) -> list[Window]:
    """Return the windows of one GPU, a second each, at its power limit."""
    return [
        Window(at + 1.0, 1.0, float(rate), 1.0, int(stalls[at]), read(bool(throttled[at])))
        for at, rate in enumerate(rates)
    ]


def read(throttled: bool) -> dict[str, float]:
    """Return NVML's answers in a second. The power limit lowers the clocks, and with a fault also heat."""
    return {"throttle": 0x24 if throttled else 0x04, "temperature": 78, "power": 697}


@lru_cache(maxsize=1)
def limits() -> dict[str, object]:
    """Return the bounds of benchmarks/soak.yml by metric."""
    definition = load_definition(ROOT / "benchmarks/soak.yml", log_formats=FORMATS).definition
    bounds = {
        rule.metric: rule.bound("soak.yml", {**definition.parameters, "seconds": 1})
        for rule in definition.result.judge
        if not rule.labels
    }
    return {metric: bound for metric, bound in bounds.items() if bound is not None}


def broken(windows: Sequence[Window]) -> set[str]:
    """Return the limits that a GPU breaks, by the figures that probe_soak.py logs."""
    figures = {
        "soak_sag": soak_series.largest_sag(windows),
        "soak_stalls": soak_series.most_stalls(windows),
        "slowed_seconds": soak_series.slowed_seconds(windows),
        "unread_share": soak_series.unread_seconds(windows) / len(windows),
    }
    return {name for name, figure in figures.items() if figure is not None and breaks(name, figure)}


def breaks(metric: str, figure: float) -> bool:
    """Return whether a figure breaks its limit."""
    bound = limits()[metric]
    measured = Measurement(name=metric, value=figure, unit=bound.unit)  # type: ignore[attr-defined]
    return judge(measured, bound).verdict.gates  # type: ignore[arg-type]


@dataclass(frozen=True)
class Fault:
    """A fault of one GPU from its onset: share of speed lost, stalls, share of slowed seconds."""

    name: str
    loss: float = 0.0
    stall_every_s: int = 0
    throttled: float = 0.0
    onset_s: tuple[int, int] = (240, 900)


FAULTS = (
    Fault("3 % of the speed, sustained", loss=0.03),
    Fault("a stall of 200 ms a minute", stall_every_s=60),
    # One per cent is too little to be found as a sag: the reasons for low clocks show it.
    Fault("a throttle by heat that begins late", loss=0.01, throttled=0.5, onset_s=(600, 3000)),
)


def node_with(fault: Fault, dice: np.random.Generator) -> tuple[list[list[Window]], int, int]:
    """Return the windows of a node's GPUs, which of them has the fault, and its onset in seconds."""
    onset_s, bad = int(dice.integers(*fault.onset_s)), int(dice.integers(GPUS))
    seconds = onset_s + WITHIN_S
    rates = speeds(dice, GPUS, seconds)
    rates[bad, onset_s:] *= 1 - fault.loss
    gpus = []
    for gpu, row in enumerate(rates):
        ill = gpu == bad
        slowed = (dice.random(seconds) < fault.throttled * ill) & (np.arange(seconds) >= onset_s)
        every_s = fault.stall_every_s if ill else 0
        gpus.append(windows_of(row, count_stalls(dice, row, onset_s, every_s), slowed))
    return gpus, bad, onset_s


def count_stalls(dice: np.random.Generator, rates: Floats, onset_s: int, every_s: int) -> list[int]:
    """Return how many steps of each second stall, by times that vary as those of an H100 did."""
    if not every_s:
        return [0] * len(rates)
    steps = STEP_S * USUAL / rates[:, None] * (1 + 0.012 * dice.standard_normal((len(rates), 24)))
    for second in range(onset_s, len(rates), every_s):
        steps[second, dice.integers(24)] += 0.2
    usual_s = float(np.median(steps[:10]))
    return [soak_series.count_stalls(row.tolist(), usual_s) for row in steps]


def find(fault: Fault, dice: np.random.Generator) -> int | None:
    """Return the minutes until a fault is found, or None.

    The result is None if the fault is not found, is found before its onset, or another GPU is named.
    """
    gpus, bad, onset_s = node_with(fault, dice)
    others = [one for gpu, one in enumerate(gpus) if gpu != bad]
    if broken(gpus[bad][:onset_s]) or any(broken(one) for one in others):
        return None
    minutes = (at for at in range(1, LATER + 1) if broken(gpus[bad][: onset_s + 60 * at]))
    return next(minutes, None)


def healthy_runs(dice: np.random.Generator, hours: float, seconds: int) -> Iterator[Floats]:
    """Yield speeds of healthy nodes until there are as many GPU-hours."""
    left = math.ceil(hours * 3600 / seconds / GPUS)
    while left > 0:
        nodes = max(1, min(left, MOST_CELLS // (GPUS * seconds)))
        left -= nodes
        yield speeds(dice, GPUS * nodes, seconds)


def count_alarms(dice: np.random.Generator, hours: float, seconds: int) -> tuple[int, float, float]:
    """Return how often a healthy GPU breaks a limit, the GPU-hours, and the largest sag."""
    alarms, simulated, worst, seen = 0, 0.0, 0.0, 0
    for rates in healthy_runs(dice, hours, seconds):
        gpus, length = rates.shape
        minutes = minute_medians(rates)
        sags = 1 - minutes.min(axis=1) / minutes.max(axis=1)
        means = rates[:, int(soak_series.SETTLE_S) :].mean(axis=1).reshape(-1, GPUS)
        # The upper of the two in the middle, as statistics.median_high gives it.
        lags = 1 - means / np.sort(means, axis=1)[:, GPUS // 2, None]
        _check_sample(rates, sags, seen)
        alarms += sum(breaks("soak_sag", float(sag)) for sag in sags[sags > 0.005])
        alarms += sum(breaks("soak_lag", float(lag)) for lag in lags[lags > 0.02])
        worst, simulated, seen = max(worst, float(sags.max())), simulated + gpus * length / 3600, seen + gpus
    return alarms, simulated, worst


def minute_medians(rates: Floats) -> Floats:
    """Return soak_series.minute_rates of many GPUs. A second belongs to the minute in which it ends."""
    settle_s = int(soak_series.SETTLE_S)
    whole = (rates.shape[1] - settle_s) // 60 * 60
    minutes = np.median(rates[:, settle_s - 1 : settle_s - 1 + whole].reshape(len(rates), -1, 60), axis=2)
    # The second that ends with settling does not count yet.
    minutes[:, 0] = np.median(rates[:, settle_s : settle_s + 59], axis=1)
    return np.asarray(minutes, np.float32)


def _check_sample(rates: Floats, sags: Floats, seen: int) -> None:
    """Compare numpy's result with that of the program's own functions.

    Raises:
        AssertionError: They differ.
    """
    for gpu in range(-seen % CHECKED, len(rates), CHECKED):
        seconds = len(rates[gpu])
        windows = windows_of(rates[gpu], [0] * seconds, [False] * seconds)
        own = soak_series.largest_sag(windows)
        assert own is not None
        assert math.isclose(own, sags[gpu], abs_tol=1e-6), (own, sags[gpu])
        assert bool(broken(windows)) == breaks("soak_sag", float(sags[gpu]))


def describe_faults(faults: int, dice: np.random.Generator, say: Callable[[str], object]) -> bool:
    """Print how many faults of each kind were found. Return whether all were."""
    found_all = True
    say(
        "| fault, from a random moment on | found on its GPU, no other named | 95 % | minutes: median, most |"
    )
    say("| --- | --- | --- | --- |")
    for fault in FAULTS:
        took = [find(fault, dice) for _ in range(faults)]
        minutes = [one for one in took if one is not None]
        low, high = stats.binomtest(len(minutes), faults).proportion_ci(method="exact")
        late = f"{statistics.median(minutes):g}, {max(minutes)}" if minutes else ""
        say(f"| {fault.name} | {len(minutes)} of {faults} | {low:.3f} … {high:.3f} | {late} |")
        found_all &= len(minutes) == faults
    return found_all


def describe_alarms(hours: float, dice: np.random.Generator, say: Callable[[str], object]) -> bool:
    """Print the false alarms by length of run. Return whether none has more than 1 in 1,000 GPU-hours."""
    few = True
    say("| healthy runs of | GPU-hours | false alarms | of 1,000 GPU-hours, 95 % | largest sag |")
    say("| --- | --- | --- | --- | --- |")
    for name, seconds in (("ten minutes", 600), ("an hour", 3600), ("a day", DAY_S)):
        alarms, simulated, worst = count_alarms(dice, hours, seconds)
        low = stats.chi2.ppf(0.025, 2 * alarms) / 2 if alarms else 0.0
        high = stats.chi2.ppf(0.975, 2 * alarms + 2) / 2
        rates = f"{1000 * low / simulated:.3f} … {1000 * high / simulated:.3f}"
        say(f"| {name} | {simulated:,.0f} | {alarms} | {rates} | {100 * worst:.2f} % |")
        few &= 1000 * alarms / simulated <= 1
    return few


def main() -> int:
    """Simulate, and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=100_000, help="GPU-hours of each length of run")
    parser.add_argument("--faults", type=int, default=300, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice = np.random.default_rng(options.seed)
    found = describe_faults(options.faults, dice, print)
    print()
    few = describe_alarms(options.hours, dice, print)
    return 0 if found and few else 1


if __name__ == "__main__":
    sys.exit(main())
