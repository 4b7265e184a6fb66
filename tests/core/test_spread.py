"""Test the spread of a speed, and that samples which vary by a factor of 2 give no single speed.

A workload reports the number of samples of a speed, their median, and a low and a high end
(core/spread.py, workloads/common.py). If high / low is above WIDEST_FACTOR, another process probably used the
machine. The speed is then unproven, and cannot become a reference.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rackproof.core.definitions import JudgeRule
from rackproof.core.judging import NO_REFERENCE, Outcome, judge_run
from rackproof.core.records import Direction, Measurement, ParsedLog, Reference, Spread, Verdict
from rackproof.core.spread import WIDEST_FACTOR, spread_of
from rackproof.store.history.writer import is_candidate
from tests.workloads.programs import load_program

SPEED = JudgeRule(metric="speed", unit="GB/s", direction=Direction.HIGHER)
EVEN = Spread(count=200, low=98, median=100, high=102)
SWINGS = Spread(count=200, low=40, median=100, high=102)


# The spread is (count, low, median, high). Of five or more samples, low and high leave out 5 % at each end,
# and at least one.
@pytest.mark.parametrize(
    ("samples", "spread"),
    [
        ([2.0, 1.0], (2, 1.0, 1.5, 2.0)),
        ([1.0, 3.0, 2.0, 9.0], (4, 1.0, 2.5, 9.0)),
        # Of five or more samples, a single outlier does not widen the spread.
        ([1.0, 1.0, 1.0, 1.0, 9.0], (5, 1.0, 1.0, 1.0)),
        ([1.0, 1.0, 1.0, 9.0, 9.0], (5, 1.0, 1.0, 9.0)),
        ([*range(100)], (100, 5.0, 49.5, 94.0)),
    ],
)
def test_the_ends_leave_out_the_outermost_samples(samples: list[float], spread: tuple[float, ...]) -> None:
    count, low, median, high = spread
    assert spread_of(samples) == Spread(count=int(count), low=low, median=median, high=high)


@pytest.mark.parametrize("samples", [[], [1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_without_two_numbers_there_is_no_spread(samples: list[float]) -> None:
    assert spread_of(samples) is None


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return workloads/common.py as a module."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "workloads")
    return load_program("common")


def test_workloads_state_the_same_spread(common: Any) -> None:
    dice = random.Random(1)
    for count in (2, 3, 4, 5, 19, 20, 39, 40, 41, 200, 2000):
        samples = [dice.uniform(0.5, 2) for _ in range(count)]
        stated = dataclasses.asdict(common.spread_of(samples))
        assert Spread.model_validate(stated) == spread_of(samples)
        speeds = common.spread_of(samples).speeds(8.0)
        exact = spread_of(8.0 / one for one in samples)
        assert exact is not None
        assert (speeds.low, speeds.high) == pytest.approx((exact.low, exact.high))


def test_a_run_is_compared_in_ten_stretches(common: Any) -> None:
    # Every fourth step waits for data, so single steps differ by 4. The ten stretches hardly differ.
    even = common.spread_over_time([0.4, 0.1, 0.1, 0.1] * 20, 100.0)
    assert even.count == 10
    assert even.high / even.low < 1.1
    half = common.spread_over_time([0.1] * 40 + [0.3] * 40, 100.0)
    assert half.high / half.low == pytest.approx(3)
    assert common.spread_over_time([0.1, 0.2], 1.0).count == 2


@pytest.mark.parametrize("ends", [(3, 2, 4), (1, 5, 4), (1, float("nan"), 2)])
def test_ends_that_do_not_ascend_are_no_spread(ends: tuple[float, ...]) -> None:
    low, median, high = ends
    with pytest.raises(ValidationError):
        Spread(count=5, low=low, median=median, high=high)


def outcome(
    value: float, spread: Spread | None, *references: Reference, rule: JudgeRule = SPEED, **more: Any
) -> Outcome:
    """Return the judgement of a run with a speed, and with a count of wrong values that is 0."""
    measured = (
        Measurement(name="speed", value=value, unit="GB/s", spread=spread),
        Measurement(name="wrong_values", value=0, unit="1"),
    )
    log = ParsedLog(format="mllog", measurements=measured, verdict=Verdict.PASS)
    rules = (rule, JudgeRule(metric="wrong_values", equals=0))
    return judge_run(
        rules, [log], [], lambda one: references, parameters={}, require_references=False, **more
    )


REFERENCE = Reference(value=100, low=-0.1, high=0.2, unit="GB/s", source="sku")


@pytest.mark.parametrize(
    ("value", "spread", "verdict"),
    [
        (100, None, Verdict.PASS),
        (100, EVEN, Verdict.PASS),
        (100, Spread(count=9, low=60, median=100, high=60 * WIDEST_FACTOR), Verdict.PASS),
        (100, SWINGS, Verdict.UNPROVEN),
        (100, Spread(count=9, low=0, median=100, high=100), Verdict.UNPROVEN),
        (100, Spread(count=9, low=-1, median=100, high=100), Verdict.UNPROVEN),
        # A speed below its reference fails even if its spread is wide.
        (50, SWINGS, Verdict.FAIL),
    ],
)
def test_a_speed_that_swings_by_a_factor_is_unproven(
    value: float, spread: Spread | None, verdict: Verdict
) -> None:
    judged = outcome(value, spread, REFERENCE)
    assert judged.verdict is verdict
    assert judged.judgements[0].spread == spread
    if verdict is Verdict.UNPROVEN:
        assert spread is not None
        assert f"{spread.count} samples range from {spread.low:g} to" in judged.reasons[0]


def test_a_bound_on_a_speed_does_not_hide_its_swing() -> None:
    rule = JudgeRule(metric="speed", unit="GB/s", at_least=50)
    assert outcome(100, EVEN, rule=rule).verdict is Verdict.PASS
    assert outcome(100, SWINGS, rule=rule).verdict is Verdict.UNPROVEN


def test_without_a_reference_a_wide_speed_does_not_count_and_cannot_become_one() -> None:
    even, swings = outcome(100, EVEN), outcome(100, SWINGS)
    assert even.verdict is swings.verdict is Verdict.PASS
    assert even.judgements[0].reason == NO_REFERENCE
    assert is_candidate(even.judgements[0])
    assert not is_candidate(swings.judgements[0])
    assert "too wide for one value" in swings.reasons[0]


def test_a_busy_machine_is_the_first_reason() -> None:
    judged = outcome(100, SWINGS, REFERENCE, busy="n1 was not idle")
    assert judged.judgements[0].reason == "n1 was not idle"
