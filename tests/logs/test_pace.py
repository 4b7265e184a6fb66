"""Test that times of an MLPerf log which contradict its work are found (:mod:`rackproof.logs._pace`).

A log that was edited or joined from two runs often states a pace that no training has. Most tests change the
times, the progress or the stated throughput of a passing log, and check that it becomes unproven. Others
check that logs which vary as real ones do still pass.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs._mlperf import TARGETS

from .log_samples import MXNET, event, hyperparameters, mllog

# Seconds between evaluations, number of evaluations, and seconds from the first event to run_start.
_INTERVAL_S, _EVALUATIONS, _START = 100, 6, 60
_EPOCH = {"bert": 350_000.0, "unet3d": 400.0, "rgat": 0.15, "gpt3": 200e6, "maskrcnn": 3.0, "rnnt": 8.0}
"""Progress between evaluations. bert and gpt3 count samples, the others epochs."""
_SAMPLES = {
    "dlrm_dcnv2": 4_195_197_692, "maskrcnn": 40_000, "resnet": 1_281_167, "retinanet": 4572,
    "rgat": 94_605_581, "rnnt": 278_528, "ssd": 4572, "unet3d": 168,
}  # fmt: skip
"""Values of train_samples that logs state. ssd and retinanet count batches of 256."""
_IMAGES = {"ssd": 1_170_301, "retinanet": 1_170_301, "maskrcnn": 117_266}
"""Samples of an epoch, for the benchmarks whose logs state another number."""
Change = Callable[[list[str]], list[str]]


def training(benchmark: str, *, platform: str = "1xEXAMPLE", speed: float | None = 1.02) -> list[str]:
    """Return the lines of a log with six evaluations, of which the last one reaches the target.

    Args:
        benchmark: Its name in MLPerf's rules.
        platform: The system.
        speed: The throughput that the log states, as a multiple of the real one, or None for no throughput.
    """
    epoch, each = _EPOCH.get(benchmark, 1.0), _SAMPLES.get(benchmark, 1000)
    samples = epoch * (_IMAGES.get(benchmark, each) if epoch <= 400 else 1)
    target = TARGETS["retinanet" if benchmark == "ssd" else benchmark][0]
    stop = _START + _EVALUATIONS * _INTERVAL_S
    lines = [
        event("submission_benchmark", benchmark),
        event("submission_platform", platform),
        event("global_batch_size", 256),
        event("train_samples", each),
        *hyperparameters(benchmark),
        event("init_start", None, 1),
        event("init_stop", None, _START),
        event("run_start", None, _START),
    ]
    for number in range(1, _EVALUATIONS + 1):
        at, last = _START + number * _INTERVAL_S, number == _EVALUATIONS
        worse = 0 if last else 0.2 - 0.001 * number
        value = target.value * (1 + worse if target.at_most else 1 - worse)
        progress = {"epoch_num": number * epoch}
        if speed is not None:
            stated = speed * samples / _INTERVAL_S
            lines.append(event("tracked_stats", {"throughput": stated, "loss": 2.0 - number / 10}, at - 1))
        metrics = ("BBOX", "SEGM") if benchmark == "maskrcnn" else ("",)
        lines += [event("eval_accuracy", value, at, metric=metric, **progress) for metric in metrics]
    return [*lines, event("run_stop", None, stop, status="success", epoch_num=_EVALUATIONS * epoch)]


def judge(lines: list[str]) -> tuple[Verdict, set[str]]:
    """Return a log's verdict, and the codes of the findings that have a verdict."""
    found: ParsedLog = logs.parse(io.BytesIO("".join(lines).encode()), name="log.txt")
    return found.verdict, {one.code for one in found.findings if one.verdict is not None}


def messages(lines: list[str]) -> list[str]:
    found: ParsedLog = logs.parse(io.BytesIO("".join(lines).encode()), name="log.txt")
    return [one.message for one in found.findings]


def at_time(line: str, change: Callable[[float], float]) -> str:
    """Return a line whose seconds since the first event are changed."""
    first = 1_700_000_000_000

    def other(found: re.Match[str]) -> str:
        return f'"time_ms": {round(first + 1000 * change((int(found[1]) - first) / 1000))}'

    return re.sub(r'"time_ms": (\d+)', other, line)


def faster(factor: float, since: float = _START) -> Change:
    """Return a change that moves all times after a moment closer together."""
    return lambda lines: [at_time(one, lambda at: min(at, since + (at - since) / factor)) for one in lines]


def time_of(line: str) -> float:
    """Return the seconds from the first event to this one."""
    return (int(re.findall(r'"time_ms": (\d+)', line)[0]) - 1_700_000_000_000) / 1000


def of_key(key: str, change: Callable[[str], str | None], *, only: int | None = None) -> Change:
    """Return a change of the lines with a key, or of one of them. A result of None removes the line."""

    def changed(lines: list[str]) -> Iterator[str]:
        seen = 0
        for line in lines:
            new: str | None = line
            if f'"key": "{key}"' in line:
                new = change(line) if only in (None, seen) else line
                seen += 1
            if new is not None:
                yield new

    return lambda lines: list(changed(lines))


def late_start(seconds: float) -> Change:
    """Return a change that makes run_start later, and moves its line to where that time belongs."""

    def changed(lines: list[str]) -> list[str]:
        at = next(n for n, line in enumerate(lines) if '"run_start"' in line)
        moved = at_time(lines[at], lambda old: old + seconds)
        rest = lines[:at] + lines[at + 1 :]
        time = int(re.findall(r'"time_ms": (\d+)', moved)[0])
        later = (n for n, line in enumerate(rest) if int(re.findall(r'"time_ms": (\d+)', line)[0]) > time)
        place = next(later)
        return [*rest[:place], moved, *rest[place:]]

    return changed


def times_throughput(factor: float) -> Change:
    """Return a change that multiplies the stated throughput."""
    return lambda lines: [
        re.sub(r'("throughput": )([0-9.]+)', lambda m: f"{m[1]}{float(m[2]) * factor}", one) for one in lines
    ]


def times_progress(factor: float) -> Change:
    """Return a change that multiplies the stated progress."""
    return lambda lines: [
        re.sub(r'("epoch_num": )([0-9.]+)', lambda m: f"{m[1]}{float(m[2]) * factor}", one) for one in lines
    ]


def target_early(lines: list[str]) -> list[str]:
    """Return a log whose third evaluation has the value of the last one."""
    value = re.findall(r'"value": ([0-9.]+)', [one for one in lines if "eval_accuracy" in one][-1])[0]
    return of_key("eval_accuracy", lambda one: re.sub(r'"value": [0-9.]+', f'"value": {value}', one), only=2)(
        lines
    )


def same_losses(lines: list[str]) -> list[str]:
    """Return a log in which all losses are equal, and each is logged twice."""
    flat = [re.sub(r'"loss": [0-9.]+', '"loss": 1.5', one) for one in lines]
    return [copy for one in flat for copy in ([one, one] if "loss" in one else [one])]


def same_evaluations(lines: list[str]) -> list[str]:
    """Return a log whose evaluations, except the last ones, are equal."""
    value = re.findall(r'"value": ([0-9.]+)', next(one for one in lines if "eval_accuracy" in one))[0]
    change = of_key("eval_accuracy", lambda one: re.sub(r'"value": [0-9.]+', f'"value": {value}', one))
    return [*change(lines[:-3]), *lines[-3:]]


def much_less_work(lines: list[str]) -> list[str]:
    """Return a log of a training that reached the target with a third of the work in a third of the time."""
    return faster(3)(times_progress(1 / 3)(lines))


SHARED = ("bert", "dlrm_dcnv2", "gpt3", "maskrcnn", "resnet", "rgat", "rnnt", "unet3d")
EDITS: tuple[tuple[str, tuple[str, ...], Change, str], ...] = (
    ("twice as fast", SHARED, faster(2), "steps_contradict"),
    ("ten times as fast", SHARED, faster(10), "steps_contradict"),
    ("stated speed three times as high", SHARED, times_throughput(3), "steps_contradict"),
    ("progress halved", ("bert", "gpt3", "rgat"), times_progress(0.45), "steps_contradict"),
    (
        "run_start 20 % later",
        ("bert", "maskrcnn", "resnet", "rgat", "retinanet", "ssd", "unet3d"),
        late_start(120),
        "training_before_run_start",
    ),
    ("run_start 50 % later", ("unet3d", "dlrm_dcnv2"), late_start(300), "training_before_run_start"),
    ("the last third four times as fast", ("unet3d", "resnet"), faster(4, 460), "implausible_speed"),
    ("evaluations without time", ("unet3d", "bert"), faster(1e9, 300), "implausible_speed"),
    (
        "the first evaluation right after the start",
        ("unet3d", "bert", "retinanet"),
        of_key("eval_accuracy", lambda one: at_time(one, lambda _: _START + 1), only=0),
        "implausible_speed",
    ),
    (
        "the last two evaluations are missing",
        ("bert", "rgat", "dlrm_dcnv2"),
        lambda lines: [one for one in lines if one not in [old for old in lines if "eval_acc" in old][-2:]],
        "course_incomplete",
    ),
    (
        "an evaluation twice",
        ("bert",),
        of_key("eval_accuracy", lambda one: one + one, only=2),
        "course_incomplete",
    ),
    ("the target is reached early", ("unet3d", "rgat", "rnnt", "gpt3"), target_early, "course_incomplete"),
    (
        "an evaluation without a value",
        ("unet3d", "bert"),
        of_key("eval_accuracy", lambda one: re.sub(r'"value": [0-9.]+', '"value": null', one), only=2),
        "impossible_value",
    ),
    (
        "a part that ends before it starts",
        ("unet3d", "rgat"),
        lambda lines: [
            *lines[:10],
            event("epoch_start", None, 300),
            event("epoch_stop", None, 200),
            *lines[10:],
        ],
        "events_out_of_order",
    ),
    (
        "other batches than those of the data",
        ("ssd", "retinanet"),
        of_key("global_batch_size", lambda one: one.replace("256", "512")),
        "batch_size_contradicts",
    ),
    ("the first gap of ssd", ("ssd",), of_key("eval_accuracy", lambda _: None, only=1), "course_incomplete"),
    ("losses that never change", ("unet3d", "resnet"), same_losses, "impossible_value"),
    ("evaluations that never change", ("bert", "unet3d", "gpt3"), same_evaluations, "impossible_value"),
    (
        "an evaluation that is much worse than the one before it",
        ("bert", "dlrm_dcnv2", "rgat"),
        of_key("eval_accuracy", lambda one: re.sub(r'"value": [0-9.]+', '"value": 0.3', one), only=3),
        "impossible_value",
    ),
    (
        "far fewer samples than any published run",
        ("rgat", "rnnt"),
        much_less_work,
        "impossible_value",
    ),
)
"""Edit in words, benchmarks, change of the log, and code of the finding."""
CASES = [
    pytest.param(benchmark, change, code, id=f"{name}-{benchmark}")
    for name, benchmarks, change, code in EDITS
    for benchmark in benchmarks
]


@pytest.mark.parametrize(("trained", "change", "code"), CASES)
def test_an_edited_log_does_not_pass(trained: str, change: Change, code: str) -> None:
    lines = training(trained)
    assert judge(lines) == (Verdict.PASS, set())
    verdict, codes = judge(change(lines))
    assert (verdict in (Verdict.UNPROVEN, Verdict.FAIL), code in codes) == (True, True), codes


@pytest.mark.parametrize(
    ("trained", "platform", "speed", "change", "code"),
    [
        # 8 H100 train 2,180 images per second of ssd at most, and this run has 11,700.
        ("ssd", "1xXE9680x8H100", None, faster(1), "implausible_speed"),
        ("retinanet", "1xXE9680x8B200", None, faster(1), "implausible_speed"),
        ("ssd", "8xXE9680x8H100", None, faster(1), ""),
        # Each process may state its own throughput, and there are at most as many processes as GPUs.
        ("ssd", "1xXE9680x8A30", 0.05, faster(1), "steps_contradict"),
        ("ssd", "16xXE9680x8H100", 0.05, faster(1), ""),
        ("retinanet", "1xEXAMPLE", 1.02, faster(2), "steps_contradict"),
    ],
)
def test_images_are_counted_if_the_log_states_batches(
    trained: str, platform: str, speed: float | None, change: Change, code: str
) -> None:
    _, codes = judge(change(training(trained, platform=platform, speed=speed)))
    assert (code in codes) if code else not codes


@pytest.mark.parametrize(("batch", "found"), [(256, False), (512, True), (128, True)])
def test_a_batch_that_contradicts_throughput_and_step_time_is_unproven(batch: int, found: bool) -> None:
    # The log states 3,570 samples per second, so a step with a batch of 256 takes 256 / 3,570 s.
    stepped = [event("tracked_stats", {"train_step_time": 256 / 3570}, 70 + n) for n in range(3)]
    lines = of_key("global_batch_size", lambda one: one.replace("256", f"{batch}"))(training("bert"))
    lines[7:7] = stepped
    assert judge(lines) == (
        (Verdict.UNPROVEN, {"batch_size_contradicts"}) if found else (Verdict.PASS, set())
    )


def test_the_throughput_of_the_warm_up_is_not_compared() -> None:
    lines = training("bert", speed=None)
    rates = [event("tracked_stats", {"throughput": one, "loss": 2.0}, 70) for one in (300, 1530)]
    stepped = [event("tracked_stats", {"train_step_time": 256 / 1530}, 70 + n) for n in range(2)]
    lines[7:7] = rates + stepped
    assert "batch_size_contradicts" not in judge(lines)[1]


@pytest.mark.parametrize("trained", ["bert", "resnet", "rgat"])
def test_progress_too_small_for_a_pace_raises_no_error(trained: str) -> None:
    small = [re.sub(r'"epoch_num": (\d+)[0-9.]*', r'"epoch_num": \1e-323', one) for one in training(trained)]
    assert small != training(trained)
    assert isinstance(judge(small)[0], Verdict)


@pytest.mark.parametrize("speed", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("trained", ["bert", "unet3d", "dlrm_dcnv2"])
def test_a_training_of_a_second_on_a_busy_machine_passes(trained: str, speed: float) -> None:
    lines = times_throughput(600 * speed)(faster(600)(training(trained)))
    assert judge(lines) == (Verdict.PASS, set())


# The statistics that are left out, by their number.
@pytest.mark.parametrize(
    ("dropped", "found"),
    [(range(0), False), (range(9, 10), False), (range(5, 20), True), (range(42, 50), True)],
)
def test_a_block_with_few_statistics_for_its_steps_is_unproven(dropped: range, found: bool) -> None:
    named = event("submission_benchmark", "llama31_405b")
    lines = [named, *hyperparameters("llama31_405b"), event("run_start", None, 1)]
    number = 0
    for first, last in ((0, 300), (300, 400), (400, 500)):
        lines.append(event("block_start", None, 2 + first, step=first))
        for step in range(first + 10, last + 1, 10):
            kept = number not in dropped
            lines += (
                [event("tracked_stats", {"reduced_train_loss": 5.0 + 1 / step}, 2 + step)] if kept else []
            )
            number += 1
        lines.append(event("block_stop", None, 2 + last, step=last))
        lines.append(
            event("eval_accuracy", 5.7 if last < 500 else 5.5, 2 + last, samples_count=1200 * (last - 200))
        )
    verdict, codes = judge([*lines, event("run_stop", None, 503, status="success")])
    assert (verdict is Verdict.UNPROVEN, "course_incomplete" in codes) == (found, found), codes


@pytest.mark.parametrize(
    ("dropped", "found"), [(range(0), False), (range(6, 10), True), (range(1, 4), True), (range(6, 8), True)]
)
@pytest.mark.parametrize("trained", ["stable_diffusion", "llama2_70b_lora"])
def test_events_after_equal_numbers_of_samples_show_a_gap(trained: str, dropped: range, found: bool) -> None:
    lines = [event("submission_benchmark", trained), *hyperparameters(trained), event("run_start", None, 1)]
    for number in range(1, 13):
        samples = {"samples_count": 240 * number}
        part = [event("block_stop", None, 20 * number, **samples)]
        if trained == "stable_diffusion":
            part.insert(0, event("block_start", None, 20 * number - 19, samples_count=240 * number - 240))
        else:
            part = [event("train_loss", 2.0 - number / 50, 20 * number, **samples)]
        lines += part if number not in dropped else []
    values = (90.0, 85.0) if trained == "stable_diffusion" else (0.93, 0.92)
    lines += [event("eval_accuracy", one, 238 + n, samples_count=1440 * n) for n, one in enumerate(values, 1)]
    verdict, codes = judge([*lines, event("run_stop", None, 241, status="success")])
    assert (verdict, codes) == ((Verdict.UNPROVEN, {"course_incomplete"}) if found else (Verdict.PASS, set()))


@pytest.mark.parametrize(
    ("without", "encloses", "verdict"),
    [
        (None, False, Verdict.PASS),
        (None, True, Verdict.UNPROVEN),
        (1, False, Verdict.UNPROVEN),
    ],
)
def test_a_block_start_may_follow_each_evaluation(
    without: int | None, encloses: bool, verdict: Verdict
) -> None:
    # The code of two submitters of round 4.0 logs a block_start after each evaluation, and no eval_start.
    named = event("submission_benchmark", "llama2_70b_lora")
    lines = [named, *hyperparameters("llama2_70b_lora"), event("run_start", None, 1)]
    for number in range(4):
        at, samples = 60 * (number + 1), {"samples_count": 768 * (number + 1)}
        lines.append(event("block_stop", None, at, **samples))
        lines += [event("eval_start", None, at, **samples)] if encloses else []
        lines.append(event("eval_accuracy", 0.94 - number / 180, at, **samples))
        lines += [event("eval_stop", None, at, **samples)] if encloses else []
        lines += [event("block_start", None, at)] if number != without else []
    assert judge([*lines, event("run_stop", None, 240, status="success")])[0] is verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(0, Verdict.UNPROVEN), (1, Verdict.PASS)])
def test_evaluations_that_take_no_time_are_unproven(seconds: int, verdict: Verdict) -> None:
    enclosed = of_key(
        "eval_accuracy",
        lambda one: (
            at_time(event("eval_start"), lambda _: time_of(one) - seconds)
            + one
            + at_time(event("eval_stop"), lambda _: time_of(one))
        ),
    )
    assert judge(enclosed(training("dlrm_dcnv2")))[0] is verdict


@pytest.mark.parametrize(("batch", "verdict"), [(8, Verdict.PASS), (9, Verdict.UNPROVEN)])
def test_an_evaluation_within_a_batch_is_unproven(batch: int, verdict: Verdict) -> None:
    log = mllog().replace(b'"global_batch_size", "value": 8', b'"global_batch_size", "value": %d' % batch)
    assert judge([log.decode()])[0] is verdict


EXTREME: tuple[object, ...] = ("inf", "-inf", "nan", 1e308, 1e-308, -1, 0, "1e400")


@pytest.mark.parametrize("value", EXTREME)
@pytest.mark.parametrize("key", ["train_samples", "global_batch_size", "gradient_accumulation_steps"])
@pytest.mark.parametrize("trained", ["dlrm_dcnv2", "gpt3", "resnet"])
def test_a_log_with_an_extreme_number_does_not_pass(key: str, value: object, trained: str) -> None:
    lines = [line for line in training(trained) if f'"key": "{key}"' not in line]
    for epoch in (1e10, 1e308, 1e-308):
        evaluation = at_time(event("eval_accuracy", 0.5, epoch_num=epoch), lambda _: 400)
        verdict, _codes = judge([*lines[:3], event(key, value), *lines[3:-1], evaluation, lines[-1]])
        assert verdict is not Verdict.PASS


@pytest.mark.parametrize("samples", ["inf", "nan", "1e400"])
def test_an_impossible_number_of_samples_is_unproven(samples: object) -> None:
    lines = of_key("train_samples", lambda _: event("train_samples", samples))(training("dlrm_dcnv2"))
    verdict, codes = judge(lines)
    assert (verdict, "batch_size_contradicts" in codes) == (Verdict.UNPROVEN, True)


FALLING = (6.0, 5.0, 4.5, 4.2, 4.0, 3.9)
"""A falling loss, which the tests scale to the target of a benchmark."""


@pytest.mark.parametrize(
    ("first", "second", "found"), [(0, 0, False), (0, 2, True), (0, 3, True), (1, 3, True), (1, 4, True)]
)
@pytest.mark.parametrize(
    "trained", ["llama31_8b", "llama31_405b", "flux1", "bert", "dlrm_dcnv2", "rgat", "gnn"]
)
def test_two_evaluations_in_exchanged_places_are_found(
    trained: str, first: int, second: int, found: bool
) -> None:
    target = TARGETS[trained][0]
    order = list(FALLING)
    order[first], order[second] = order[second], order[first]
    scale = target.value / FALLING[-1] * (0.999 if target.at_most else 1)
    values = iter(scale * one if target.at_most else target.value * (2 - one / FALLING[-1]) for one in order)
    lines = of_key(
        "eval_accuracy", lambda one: re.sub(r'"value": [0-9.]+', f'"value": {next(values)!r}', one)
    )(training(trained))
    assert any("training is not so uneven" in one for one in messages(lines)) is found


@pytest.mark.parametrize("spike", [1, 2, 3])
def test_one_bad_evaluation_of_a_benchmark_with_spikes_is_no_contradiction(spike: int) -> None:
    # A training of llama31_8b may become worse for one evaluation, as in published logs.
    values = list(FALLING)
    values[spike] = 5.9
    curve = iter(3.29 / FALLING[-1] * one for one in values)
    lines = of_key(
        "eval_accuracy", lambda one: re.sub(r'"value": [0-9.]+', f'"value": {next(curve)!r}', one)
    )(training("llama31_8b"))
    assert not any("training is not so uneven" in one for one in messages(lines))


# Stated throughput as a multiple of the real one, platform, batch of one process, and whether the log
# contradicts itself.
@pytest.mark.parametrize(
    ("stated", "platform", "local", "found"),
    [
        (1.02, "1xE", None, False), (10, "1xE", None, True), (0.05, "1xE", None, False),
        (1.02, "1xEx8H100", 32, False), (10, "1xEx8H100", 32, True), (0.13, "1xEx8H100", 32, False),
        (0.05, "1xEx8H100", 32, True), (0.4, "1xEx8H100", 32, True),
    ],
)  # fmt: skip
def test_a_speed_of_retinanet_that_fits_neither_all_nor_one_process_is_found(
    stated: float, platform: str, local: int | None, found: bool
) -> None:
    lines = training("retinanet", platform=platform, speed=stated)
    # A run of an hour on few GPUs: one process trains less than 1,200 samples/s.
    lines = [at_time(one, lambda at: at if at <= _START else _START + (at - _START) * 60) for one in lines]
    lines = times_throughput(1 / 60)(lines)
    own = [event("local_batch_size", local)] if local else []
    codes = judge([*lines[:3], *own, *lines[3:]])[1]
    assert ("steps_contradict" in codes) is found, codes


# The log is of November 2023. 30,000,000 s earlier, it is older than the logs that are compared.
@pytest.mark.parametrize("since", [0, -30_000_000])
def test_logs_of_early_rounds_are_not_compared(since: int) -> None:
    lines = [at_time(one, lambda at: at + since) for one in faster(10)(training("unet3d"))]
    assert judge(lines)[0] is (Verdict.UNPROVEN if since == 0 else Verdict.PASS)


@settings(max_examples=60, deadline=None)
@given(
    trained=st.sampled_from(["bert", "dlrm_dcnv2", "resnet", "unet3d"]),
    shares=st.lists(st.floats(0.7, 1.4), min_size=_EVALUATIONS, max_size=_EVALUATIONS),
    slow=st.floats(1.0, 1.5),
)
def test_intervals_that_vary_as_in_real_runs_pass(trained: str, shares: list[float], slow: float) -> None:
    ends = [_START + _INTERVAL_S * slow * sum(shares[:number]) for number in range(_EVALUATIONS + 1)]

    def moved(at: float) -> float:
        number = min(_EVALUATIONS - 1, max(0, int((at - _START) // _INTERVAL_S)))
        part = (at - _START) / _INTERVAL_S - number
        return at if at <= _START else ends[number] + part * (ends[number + 1] - ends[number])

    lines = [at_time(one, moved) for one in training(trained)]
    # The log states the throughput of its own time.
    assert judge(times_throughput(_EVALUATIONS * _INTERVAL_S / (ends[-1] - _START))(lines)) == (
        Verdict.PASS,
        set(),
    )


@settings(max_examples=40, deadline=None)
@given(trained=st.sampled_from(SHARED), factor=st.floats(1.3, 1000))
def test_a_shorter_run_never_passes(trained: str, factor: float) -> None:
    assert judge(faster(factor)(training(trained)))[0] is Verdict.UNPROVEN


def _times_decimals(factor: float) -> bytes:
    """Return MXNet's log without accuracies, and with all decimal numbers multiplied."""

    def other(found: re.Match[bytes]) -> bytes:
        return b"%.6f" % (float(found[0]) * factor)

    without_accuracy = re.sub(rb"\taccuracy=\S+|.*(?:Train|Validation)-.*\n", b"", MXNET)
    return re.sub(rb"(?<![0-9.])[0-9]+\.[0-9]+", other, without_accuracy)


@pytest.mark.parametrize(
    ("factor", "contradicts"), [(1.0, False), (0.05, True), (1.2, True), (10.0, True), (30.0, True)]
)
def test_an_mxnet_epoch_whose_time_contradicts_its_speed_does_not_pass(
    factor: float, contradicts: bool
) -> None:
    found = logs.parse(io.BytesIO(_times_decimals(factor)), name="log.txt")
    assert ("steps_contradict" in {one.code for one in found.findings}) is contradicts
    assert (found.verdict is Verdict.PASS) is not contradicts
