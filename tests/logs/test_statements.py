"""Test that statements of an MLPerf log which should agree are compared (:mod:`rackproof.logs._statements`).

A log states, for example, the time of a step, and also shows it by the times of its blocks. A person who
edits a log rarely changes both. The tests change one of two such statements, and check that the contradiction
is found. Most also check that statements which agree give no finding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackproof.core.records import Verdict
from tests.logs.log_samples import event, hyperparameters
from tests.logs.test_pace import Change, at_time, judge, of_key, training

# Steps of a block, seconds of a step, and number of blocks.
STEPS, STEP_S, BLOCKS = 40, 2.0, 8
EVAL_S = 20.0
TRAINED = ("flux1", "llama2_70b_lora", "llama31_405b", "llama31_8b")
FINAL = {"flux1": 0.58, "llama2_70b_lora": 0.92, "llama31_405b": 5.5, "llama31_8b": 3.29}
SAMPLES = {"flux1": 4_000_000, "llama2_70b_lora": 2000, "llama31_405b": 80_000, "llama31_8b": 40_000}
"""Samples between two evaluations, so that the target comes after as many as in published results."""


def blocks(trained: str) -> list[str]:
    """Return the lines of a training in blocks, of which each states its step's and its evaluation's time."""
    each = SAMPLES[trained] // STEPS * STEPS
    batch = each // STEPS
    lines = [
        event("submission_benchmark", trained),
        event("submission_platform", "1xEXAMPLE"),
        event("target_accuracy", {"flux1": 0.586, "llama2_70b_lora": 0.925}.get(trained, FINAL[trained])),
        event("global_batch_size", batch),
        *hyperparameters(trained),
        event("run_start", None, 1),
    ]
    at, step = 1.0, 0
    for number in range(1, BLOCKS + 1):
        lines.append(event("block_start", None, at, step=step, samples_count=each))
        for _ in range(4):
            step, at = step + STEPS // 4, at + STEPS * STEP_S / 4
            lines.append(
                event(
                    "tracked_stats",
                    {"train_loss": 2 - step / 1000},
                    at,
                    step=step,
                    samples_count=step * batch,
                )
            )
        lines.append(event("tracked_stats", {"train_step_time": STEP_S}, at, samples_count=each))
        lines.append(event("block_stop", None, at, step=step, samples_count=each))
        lines.append(event("eval_start", None, at, samples_count=number * each))
        at += EVAL_S
        value = FINAL[trained] * (1 if number == BLOCKS else 1.2 - 0.02 * number)
        lines.append(event("eval_accuracy", value, at, samples_count=number * each))
        lines.append(event("tracked_stats", {"validation_time": EVAL_S}, at))
        lines.append(event("eval_stop", None, at, samples_count=number * each))
    return [
        *lines,
        event(
            "run_stop",
            None,
            at,
            status="success",
            samples_count=BLOCKS * each,
            duration=f"{at - 1:.1f} sec -> x",
        ),
    ]


def value_of(name: str, change: Callable[[float], float]) -> Change:
    """Return a change of a number in all lines that state it."""
    return lambda lines: [
        re.sub(rf'("{name}": )([0-9.]+)', lambda found: f"{found[1]}{change(float(found[2]))}", one)
        for one in lines
    ]


def closer(factor: float) -> Change:
    """Return a change that moves all events after the start closer together."""
    return lambda lines: [at_time(one, lambda at: 1 + max(0.0, at - 1) * factor) for one in lines]


def step_of_one(name: str, step: Callable[[int], int], place: int) -> Change:
    """Return a change of the step and the samples that one statistic states."""

    def changed(line: str) -> str:
        for key in ("step", "samples_count"):
            line = re.sub(rf'("{key}": )(\d+)', lambda found: f"{found[1]}{step(int(found[2]))}", line)
        return line

    def change(lines: list[str]) -> list[str]:
        at = [number for number, line in enumerate(lines) if f'"{name}"' in line][place]
        return [*lines[:at], changed(lines[at]), *lines[at + 1 :]]

    return change


CASES: tuple[tuple[str, Change, str], ...] = (
    ("all times by 5 % closer", closer(0.95), "steps_contradict"),
    ("all times by half closer", closer(0.5), "steps_contradict"),
    ("the time of a step halved", value_of("train_step_time", lambda one: one / 2), "steps_contradict"),
    ("the time of a step by 3 %", value_of("train_step_time", lambda one: one * 1.03), "steps_contradict"),
    ("evaluations stated longer", value_of("validation_time", lambda one: one * 1.1), "steps_contradict"),
    ("a loss of an earlier step", step_of_one("train_loss", lambda one: one // 3, 13), "course_incomplete"),
    ("a loss of a later step", step_of_one("train_loss", lambda one: one * 3, 13), "course_incomplete"),
    ("a loss twice", step_of_one("train_loss", lambda one: one * 12 // 13, 12), "course_incomplete"),
)


@pytest.mark.parametrize(("change", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.parametrize("trained", TRAINED)
def test_a_block_that_contradicts_its_statistics_is_unproven(trained: str, change: Change, code: str) -> None:
    good = blocks(trained)
    assert judge(good) == (Verdict.PASS, set())
    verdict, codes = judge(change(good))
    assert verdict is Verdict.UNPROVEN
    assert code in codes


@pytest.mark.parametrize("seconds", [1, 300, 5000])
@pytest.mark.parametrize("trained", ["llama2_70b_lora", "llama31_8b", "flux1"])
def test_a_wrong_duration_in_run_stop_is_unproven(trained: str, seconds: int) -> None:
    other = [re.sub(r'"duration": "[0-9.]+', f'"duration": "{seconds}', one) for one in blocks(trained)]
    assert judge(other) == (Verdict.UNPROVEN, {"steps_contradict"})


@settings(max_examples=40, deadline=None)
@given(trained=st.sampled_from(TRAINED), factor=st.floats(0.3, 0.97), part=st.integers(0, BLOCKS - 1))
def test_a_shortened_block_is_always_found(trained: str, factor: float, part: int) -> None:
    # A splice of two logs in the middle of a block takes time away from it.
    began = 1 + part * (STEPS * STEP_S + EVAL_S)
    cut = (1 - factor) * STEPS * STEP_S

    def moved(at: float) -> float:
        inside = min(max(at - began, 0.0), STEPS * STEP_S)
        return at - cut * inside / (STEPS * STEP_S)

    verdict, codes = judge([at_time(one, moved) for one in blocks(trained)])
    assert verdict is Verdict.UNPROVEN
    assert "steps_contradict" in codes


# The run takes ten minutes.
@pytest.mark.parametrize(("minutes", "found"), [(9.0, False), (10.0, False), (10.2, True), (20.0, True)])
@pytest.mark.parametrize("trained", ["gnn", "rgat"])
def test_a_wall_time_that_is_longer_than_the_run_is_found(trained: str, minutes: float, found: bool) -> None:
    lines = training(trained)
    wall = event("tracked_stats", {"walltime": minutes}, 659)
    codes = judge([*lines[:-1], wall, lines[-1]])[1]
    assert ("steps_contradict" in codes) is found, codes


@pytest.mark.parametrize(
    "step", [10**400, -(10**400), float("nan"), float("inf")], ids=["huge", "low", "nan", "inf"]
)
@pytest.mark.parametrize("only", [0, 2, 3])
def test_a_statistic_at_a_step_that_is_no_number_is_found(only: int, step: float) -> None:
    key = "tracked_stats"
    change = of_key(key, lambda line: re.sub(r'"step": \d+', f'"step": {json.dumps(step)}', line), only=only)
    verdict, codes = judge(change(blocks("llama31_8b")))
    assert (verdict, codes) == (Verdict.UNPROVEN, {"course_incomplete"})


def with_local(local: int, *, key: str = "local_batch_size", accumulated: int = 1) -> Change:
    """Return a change that states the batch size of a process and the number of accumulated steps."""
    stated = [event(key, local), event("gradient_accumulation_steps", accumulated)]
    return lambda lines: [*lines[:3], *stated, *lines[3:]]


# The global batch is 256, on eight GPUs. Each process has the product of its batch and the accumulated steps,
# and there are at most as many processes as GPUs.
@pytest.mark.parametrize(
    ("local", "accumulated", "found"),
    [
        (32, 1, False),
        (64, 1, False),
        (16, 2, False),
        (16, 1, True),
        (8, 1, True),
        (96, 1, True),
        (4, 4, True),
    ],
)
@pytest.mark.parametrize(
    ("trained", "key"),
    [("retinanet", "local_batch_size"), ("ssd", "local_batch_size"), ("resnet", "d_batch_size")],
)
def test_a_global_batch_that_contradicts_the_local_one_is_found(
    trained: str, key: str, local: int, accumulated: int, found: bool
) -> None:
    lines = training(trained, platform="1xEXAMPLEx8H100-SXM-80GB", speed=None)
    codes = judge(with_local(local, key=key, accumulated=accumulated)(lines))[1]
    assert ("batch_size_contradicts" in codes) is found, codes


# The log has an evaluation after every 3,793 steps of 55,296 samples. With other batches, these are no whole
# numbers of steps.
@pytest.mark.parametrize(
    ("batch", "found"), [(55_296, False), (110_592, True), (165_888, True), (40_000, True)]
)
def test_an_evaluation_of_dlrm_within_a_step_is_found(batch: int, found: bool) -> None:
    lines = of_key("global_batch_size", lambda one: one.replace("256", str(batch)))(training("dlrm_dcnv2"))
    steps = iter(3793 * number for number in range(1, 40))
    each = -(-4_195_197_692 // 55_296)
    placed = of_key(
        "eval_accuracy",
        lambda one: re.sub(r'"epoch_num": [0-9.]+', f'"epoch_num": {next(steps) / each!r}', one),
    )(lines)
    assert ("batch_size_contradicts" in judge(placed)[1]) is found


@pytest.mark.parametrize(("stated", "found"), [(256, False), (128, True), (512, True)])
@pytest.mark.parametrize("trained", ["bert", "unet3d", "rgat"])
def test_a_block_with_another_batch_than_the_log_is_found(trained: str, stated: int, found: bool) -> None:
    lines = training(trained)
    block = event("block_stop", None, 160, **{"self.gbs": stated})
    at = next(number for number, line in enumerate(lines) if "eval_accuracy" in line)
    codes = judge([*lines[:at], event("block_start", None, 60), block, *lines[at:]])[1]
    assert ("batch_size_contradicts" in codes) is found, codes


# In published logs of gpt3, the steps of the decay have 166.4 to 166.81 million samples: 81,450 of 2,048.
@pytest.mark.parametrize(("batch", "found"), [(2048, False), (4096, True), (1024, True)])
def test_decay_steps_that_contradict_the_batch_are_found(batch: int, found: bool) -> None:
    lines = of_key("global_batch_size", lambda one: one.replace("256", str(batch)))(training("gpt3"))
    stated = [*lines[:3], event("opt_learning_rate_decay_steps", 81_450), *lines[3:]]
    assert ("batch_size_contradicts" in judge(stated)[1]) is found


def with_setting(key: str, *values: object, division: str = "closed") -> Change:
    """Return a change that states the values of a hyperparameter in place of its value, or removes it."""
    stated = [event("submission_division", division), *(event(key, value) for value in values)]
    return lambda lines: [*lines[:1], *stated, *of_key(key, lambda _line: None)(lines[1:])]


# Hyperparameter of llama2_70b_lora, its values in the log, and whether they contradict the rules.
@pytest.mark.parametrize(
    ("key", "values", "found"),
    [
        ("lora_rank", [16], False),
        ("lora_rank", [16, 16.0], False),
        ("lora_rank", [160], True),
        ("lora_rank", [16, 160], True),
        ("lora_rank", [160, 16], True),
        ("lora_rank", [], True),
        ("lora_rank", [None], True),
        ("lora_rank", ["sixteen"], True),
        ("opt_adamw_weight_decay", [1.00000001e-4], False),
        ("opt_adamw_weight_decay", [1e-3], True),
        ("opt_gradient_clip_norm", ["0.3"], False),
        ("opt_gradient_clip_norm", [3.0], True),
        ("opt_base_learning_rate", [1.2e-3], False),
        ("opt_base_learning_rate", [4e-4, 4e-3], True),
        ("opt_base_learning_rate", [4e-3], True),
        ("opt_base_learning_rate", [4e-5], True),
        ("opt_base_learning_rate", [], True),
        ("opt_learning_rate_training_steps", [8000], False),
    ],
)
def test_hyperparameters_outside_of_the_rules_are_found_in_the_closed_division(
    key: str, values: list[object], found: bool
) -> None:
    expected = (Verdict.UNPROVEN, {"hyperparameters_contradict"}) if found else (Verdict.PASS, set())
    lines = blocks("llama2_70b_lora")
    assert judge(with_setting(key, *values)(lines)) == expected
    assert judge(with_setting(key, *values, division="open")(lines))[0] is Verdict.PASS


@pytest.mark.parametrize("where", ["tracked_stats", "train_loss"])
@pytest.mark.parametrize(
    ("stated", "found"),
    [(5e-4, False), (4.996e-4, False), (1e-3, True), (2.5e-4, True)],
)
def test_learning_rates_of_steps_above_or_below_the_stated_one_are_found(
    where: str, stated: float, found: bool
) -> None:
    lines = with_setting("opt_base_learning_rate", stated)(blocks("llama2_70b_lora"))
    rates = iter((4e-4, 5e-4, 3e-4, *[2e-4] * 100))
    if where == "tracked_stats":
        lines = [
            line.replace('"step": ', f'"lr": {next(rates)}, "step": ') if '"train_loss"' in line else line
            for line in lines
        ]
    else:
        at = next(number for number, line in enumerate(lines) if "train_loss" in line)
        losses = [event("train_loss", 1.5, 2, lr=next(rates), samples_count=8 * n) for n in range(1, 4)]
        lines = [*lines[:at], *losses, *lines[at:]]
    expected = (Verdict.UNPROVEN, {"hyperparameters_contradict"}) if found else (Verdict.PASS, set())
    assert judge(lines) == expected


@pytest.mark.parametrize(
    ("accumulated", "found"), [(1, False), (2, False), (8, False), (3, True), (10, True)]
)
@pytest.mark.parametrize("trained", ["bert", "gpt3", "retinanet", "rgat"])
def test_a_batch_that_is_no_multiple_of_the_accumulated_steps_is_found(
    trained: str, accumulated: int, found: bool
) -> None:
    stated = [event("gradient_accumulation_steps", accumulated)]
    lines = training(trained)
    codes = judge([*lines[:3], *stated, *lines[3:]])[1]
    assert ("batch_size_contradicts" in codes) is found, codes
