"""Test that a log without an event or setting that all published logs of its benchmark have does not pass.

A log without an event or a hyperparameter that every published log states may have been edited to hide a
failure. core/published_events.csv lists what each benchmark's logs state
(:mod:`rackproof.core.published_events`). These tests remove or change such lines in passing logs, and check
that the logs become unproven.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from io import BytesIO
from typing import Any

import pytest

from rackproof import logs
from rackproof.analysis.importing import judged_alone
from rackproof.core.published_events import events_of, read_published_events
from rackproof.core.records import Verdict
from rackproof.logs._mlperf import TARGETS, TARGETS_06
from tests.logs.log_samples import MLL06, event, mllog
from tests.logs.test_missing_parts import FLUX, GNMT, LLAMA, LORA, RESNET, SSD, TRANSFORMER, judged, read

PASS, UNPROVEN, FAIL = Verdict.PASS, Verdict.UNPROVEN, Verdict.FAIL
Change = Callable[[bytes], bytes]


def without(*keys: str) -> Change:
    """Return a change that removes every line of these events."""

    def change(data: bytes) -> bytes:
        gone = [f'"{key}"'.encode() for key in keys] + [f" {key}: ".encode() for key in keys]
        lines = data.splitlines(keepends=True)
        kept = [line for line in lines if b":::ML" not in line or not any(one in line for one in gone)]
        assert len(kept) < len(lines), keys
        return b"".join(kept)

    return change


def faster(data: bytes, factor: int = 3) -> bytes:
    """Return a log whose times since run_start are divided by ``factor``."""
    start = int(re.search(rb'"time_ms": (\d+)[^\n]*"run_start"', data)[1])  # type: ignore[index]
    return re.sub(
        rb'(?<="time_ms": )\d+', lambda ms: b"%d" % (start + max(0, int(ms[0]) - start) // factor), data
    )


@pytest.mark.parametrize("name", [LLAMA, LORA, FLUX])
@pytest.mark.parametrize(
    "keys",
    [
        ("tracked_stats",),
        ("block_start", "block_stop"),
        ("tracked_stats", "block_start", "block_stop"),
        ("eval_start", "eval_stop"),
        ("cache_clear",),
        ("submission_platform",),
        ("global_batch_size",),
        ("seed",),
        ("gradient_accumulation_steps",),
        ("opt_base_learning_rate",),
    ],
    ids="-".join,
)
def test_a_log_without_some_evidence_is_unproven(name: str, keys: tuple[str, ...]) -> None:
    assert judged(read(name))[0] is PASS
    assert judged(without(*keys)(read(name)))[0] is UNPROVEN
    assert judged(without(*keys)(faster(read(name))))[0] is UNPROVEN


DLRM = "mlperf-hard/5.1-crlf-dlrm_dcnv2.txt"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (LLAMA, "opt_name"),
        (LLAMA, "opt_end_learning_rate"),
        (LLAMA, "opt_learning_rate_warmup_steps"),
        (LORA, "opt_learning_rate_training_steps"),
        (LORA, "opt_learning_rate_warmup_factor"),
        (FLUX, "opt_name"),
        (FLUX, "evaluation_frequency"),
        (DLRM, "opt_name"),
        (DLRM, "seed"),
    ],
)
def test_a_log_without_a_setting_of_all_published_logs_is_unproven(name: str, key: str) -> None:
    assert judged(read(name))[0] is PASS
    assert judged(without(key)(read(name))) == (UNPROVEN, {"course_incomplete"})


# Benchmark, day of a run, and settings that its logs state from that day on.
@pytest.mark.parametrize(
    ("task", "day", "keys"),
    [
        ("retinanet", date(2025, 4, 19), {"opt_name", "epoch_count", "opt_learning_rate_warmup_epochs"}),
        ("rgat", date(2025, 4, 21), {"opt_name"}),
        ("bert", date(2024, 5, 1), {"opt_lamb_beta_1", "num_warmup_steps"}),
        ("unet3d", date(2024, 5, 1), {"opt_name", "oversampling"}),
        ("gpt3", date(2024, 5, 1), {"opt_name", "opt_end_learning_rate"}),
        ("dlrm_dcnv2", date(2024, 10, 1), {"seed"}),
    ],
)
def test_the_table_names_the_settings_that_all_published_logs_state(
    task: str, day: date, keys: set[str]
) -> None:
    assert keys <= events_of("mllog", task, day)


def test_published_logs_of_dlrm_state_no_seed_before_round_5() -> None:
    assert "seed" not in events_of("mllog", "dlrm_dcnv2", date(2024, 9, 30))


def ten_times(name: str, *, years_before: int = 0) -> Change:
    """Return a change that multiplies a hyperparameter by ten, and dates the log back."""
    before_ms = round(years_before * 365.25 * 86_400_000)

    def change(data: bytes) -> bytes:
        stated = rb'("key": "%s", "value": )([0-9.e-]+)' % name.encode()
        other, count = re.subn(stated, lambda m: m[1] + b"%g" % (10 * float(m[2]) or 1.0), data)
        assert count
        return re.sub(rb'(?<="time_ms": )\d+', lambda ms: b"%d" % (int(ms[0]) - before_ms), other)

    return change


@pytest.mark.parametrize("years_before", [0, 2])
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (LORA, "opt_base_learning_rate"),
        (LORA, "lora_rank"),
        (FLUX, "opt_adamw_beta_2"),
        (DLRM, "opt_base_learning_rate"),
        (DLRM, "opt_weight_decay"),
    ],
)
def test_removing_a_line_never_makes_a_wrong_hyperparameter_pass(
    name: str, changed: str, years_before: int
) -> None:
    # Rounds 3.1 and 4.0 are older than the rows of the table of events, but the rules apply to them, too.
    data = ten_times(changed, years_before=years_before)(read(name))
    assert alone(data) == (UNPROVEN, {"hyperparameters_contradict"})
    lines = data.splitlines(keepends=True)
    keys = [match[1] if (match := re.search(rb':::MLLOG.*"key": "(\w+)"', line)) else b"" for line in lines]
    for key in sorted(set(keys) - {b""}):
        places = [at for at, one in enumerate(keys) if one == key]
        for gone in {tuple(places), (places[0],)}:
            left = alone(b"".join(line for at, line in enumerate(lines) if at not in gone))
            assert left[0] in (UNPROVEN, FAIL), (key, len(gone))


@pytest.mark.parametrize("name", [GNMT, RESNET, SSD, TRANSFORMER])
@pytest.mark.parametrize("keys", [("block_start", "block_stop"), ("cache_clear",), ("global_batch_size",)])
def test_a_log_of_round_06_without_some_evidence_is_unproven(name: str, keys: tuple[str, ...]) -> None:
    assert judged(read(name))[0] is PASS
    assert judged(without(*keys)(read(name))) == (UNPROVEN, {"course_incomplete"})


@pytest.mark.parametrize(
    ("begun", "reached", "later_s", "verdict"),
    [
        (True, 0.24, 5, PASS),
        (True, 0.24, 70, PASS),
        (False, 0.24, 5, UNPROVEN),
        (True, 0.22, 5, UNPROVEN),
    ],
)
def test_an_evaluation_that_began_before_run_stop_may_end_after_it(
    begun: bool, reached: float, later_s: int, verdict: Verdict
) -> None:
    # A TPU of round 0.6 trains ssd during its evaluations. After the evaluation that reached the target comes
    # run_stop, although the next evaluation is already in progress.
    data = re.sub(rb'(eval_accuracy: \{"value": )0\.2[3-9]\d*', rb"\g<1>%.2f" % reached, read(SSD))
    stop = re.search(rb":::MLL (\S+) run_stop: [^\n]*\n", data)
    assert stop is not None

    def line(key: str, value: str, after_s: float) -> bytes:
        meta = '{"epoch_num": 55, "lineno": 1, "file": "ssd.py"}'
        body = f'{{"value": {value}, "metadata": {meta}}}'
        return f":::MLL {float(stop[1]) + after_s:.3f} {key}: {body}\n".encode()

    began = line("eval_start", "null", 0) if begun else b""
    ended = line("eval_accuracy", "0.24", later_s) + line("eval_stop", "null", later_s)
    lines = data.replace(stop[0], began + stop[0] + ended)
    assert judged(lines)[0] is verdict


def test_evaluations_without_their_samples_make_a_log_incomplete() -> None:
    for name in (LLAMA, LORA, FLUX):
        data = re.sub(rb'"samples_count": \d+,? ?', b"", read(name))
        assert "course_incomplete" in judged(data)[1]


@pytest.mark.parametrize(
    ("key", "value", "verdict"),
    [
        ("init_checkpoint_step", 0, PASS),
        ("init_checkpoint_step", 5000, UNPROVEN),
        ("init_checkpoint_step", "latest", UNPROVEN),
        ("first_epoch_num", 0, PASS),
        ("first_epoch_num", 1, PASS),
        ("first_epoch_num", 7, UNPROVEN),
    ],
)
def test_a_training_that_continues_another_is_unproven(key: str, value: object, verdict: Verdict) -> None:
    assert judged(mllog(event(key, value, 130)))[0] is verdict


@pytest.mark.parametrize(("step", "goes_on"), [(0, False), (1, True), (900, True)])
def test_a_first_block_that_begins_after_the_first_step_is_found(step: int, goes_on: bool) -> None:
    data = mllog(event("block_start", None, 130, step=step), event("block_stop", None, 140))
    assert ("from_checkpoint" in judged(data)[1]) is goes_on


SRUN = b"srun: error: n4: task 0: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("before", "verdict"),
    [("cache_clear", PASS), ("init_stop", UNPROVEN), ("run_start", UNPROVEN), ("run_stop", UNPROVEN)],
)
@pytest.mark.parametrize("times", [1, 4, 9])
def test_the_failure_of_a_helper_before_the_first_event_is_ignored(
    before: str, verdict: Verdict, times: int
) -> None:
    data = mllog()
    at = data.rfind(b"\n", 0, data.index(b'"' + before.encode())) + 1
    assert judged(data[:at] + SRUN * times + data[at:])[0] is verdict
    # An earlier failure of a helper excuses no failure of a rank.
    assert judged(SRUN * 6 + data[:at] + SRUN * times + data[at:])[0] is verdict
    # Events may have other blanks.
    for blanks in (b"", b"  ", b"\t "):
        assert (
            judged((data[:at] + SRUN * times + data[at:]).replace(b":::MLLOG ", b":::MLLOG" + blanks))[0]
            is verdict
        )
    # Nor does one excuse it if the last failure comes after the end.
    assert judged(SRUN * 6 + data[:at] + SRUN * times + data[at:] + SRUN)[0] is verdict
    # If the start-up is not logged, it is unknown which process failed.
    nothing = re.sub(rb"[^\n]*init_start[^\n]*\n", b"", data[:at] + SRUN + data[at:])
    assert judged(nothing)[0] is UNPROVEN


def alone(data: bytes) -> tuple[Verdict, set[str]]:
    """Return the verdict and codes of a log that is judged without its run."""
    parsed = judged_alone(logs.parse(BytesIO(data)))
    return parsed.verdict, {one.code for one in parsed.findings if one.verdict is not None}


def only(data: bytes, *keys: str) -> bytes:
    """Return the lines of a log that contain one of the keys."""
    return b"".join(
        line for line in data.splitlines(keepends=True) if any(key.encode() in line for key in keys)
    )


OWN = event("measurement", {"name": "gemm", "value": 700.0, "unit": "TFLOP/s"}, 130)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (only(mllog(), "run_start", "run_stop"), (UNPROVEN, {"no_evaluation"})),
        (only(MLL06, " run_start", " run_stop"), (UNPROVEN, {"no_evaluation"})),
        (only(mllog(), "run_start", "run_stop", "tracked_stats"), (UNPROVEN, {"no_evaluation"})),
        (only(mllog(), "run_start", "run_stop", "eval_accuracy"), (UNPROVEN, {"no_target"})),
        (only(MLL06, " run_start", " run_stop", " eval_accuracy"), (UNPROVEN, {"no_target"})),
        (mllog().replace(b"llama2_70b_lora", b"xyz"), (UNPROVEN, {"no_target"})),
        (without("submission_benchmark")(mllog(final=1.9)), (UNPROVEN, {"no_target"})),
        # Logs that state their own measurement or target.
        (mllog(), (PASS, set())),
        (mllog(OWN).replace(b"llama2_70b_lora", b"gemm"), (PASS, set())),
        (
            mllog(event("target", {"value": 1.0, "at_most": True}, 130)).replace(b"llama2_70b_lora", b"own"),
            (PASS, set()),
        ),
        # A log cannot name its own judge.
        (mllog(event("judged_by", "me", 1)).replace(b"llama2_70b_lora", b"xyz"), (UNPROVEN, {"no_target"})),
    ],
)
def test_a_log_that_is_judged_alone_needs_a_result_and_its_bound(
    data: bytes, expected: tuple[Verdict, set[str]]
) -> None:
    assert alone(data) == expected


GIVEN = [
    ("bert", {"opt_epsilon"}, True),
    ("bert", set(), False),  # tinycorp's and KRAI's bert log no throughput
    ("retinanet", {"local_batch_size"}, True),
    ("retinanet", set(), False),
    ("llama2_70b_lora", {"eval_start"}, True),
    ("ssd", set(), True),
    ("gnn", set(), True),
    ("unet3d", set(), True),
    ("dlrm_dcnv2", set(), True),
    ("stable_diffusion", set(), False),
]
"""Benchmark, events that mark the submitter's code, and whether throughput is required of its logs."""


@pytest.mark.parametrize(("training", "logged", "asked"), GIVEN)
def test_throughput_is_required_of_logs_whose_code_always_states_it(
    training: str, logged: set[str], asked: bool
) -> None:
    asked_for = events_of("mllog", training, date(2024, 12, 1), logged)
    assert ("throughput" in asked_for) is asked
    assert asked_for >= {"cache_clear", "eval_accuracy", "progress"}


def training(name: str, *events: tuple[str, int | None], last_stop_is_late: bool = False) -> bytes:
    """Return a log of 2025 with starts and stops of epochs, and with evaluations, in this order."""
    at, lines = 100, [event("submission_benchmark", name, 1), event("run_start", None, 90)]
    for key, epoch in events:
        at += 10
        stated: dict[str, Any] = {} if epoch is None else {"epoch_num": epoch}
        lines.append(event(key, 0.3 if key == "eval_accuracy" else None, at, **stated))
    stop = event("run_stop", None, at + 1, status="success")
    lines.insert(len(lines) - 1 if last_stop_is_late else len(lines), stop)
    # The logs of `event` are of 2023. These are of September 2025.
    return re.sub(r'(?<="time_ms": )170', "176", "".join(lines)).encode()


def course_of(first: int, count: int) -> list[tuple[str, int | None]]:
    """Return the events of whole epochs, each with an evaluation between its start and its stop."""
    keys = ("epoch_start", "eval_accuracy", "epoch_stop")
    return [(key, epoch) for epoch in range(first, first + count) for key in keys]


def epoch_findings(data: bytes) -> list[str]:
    """Return the messages about a missing start or stop of an epoch."""
    found = [one for one in logs.parse(BytesIO(data)).findings if one.code == "course_incomplete"]
    return [one.message for one in found if re.search(r"epochs? .*(?:start|stop|last)", one.message)]


NUMBERED = [
    ("retinanet", 0),
    ("retinanet", 1),
    ("ssd", 0),
    ("resnet", 1),
    ("rgat", 1),
    ("gnn", 1),
    ("bert", 0),
]
"""Benchmark, and number of the first epoch in its published logs."""


@pytest.mark.parametrize(("name", "first"), NUMBERED)
def test_an_epoch_without_its_start_and_its_stop_is_reported(name: str, first: int) -> None:
    # In the published logs of these benchmarks, epochs are numbered from `first` on, without a gap.
    late = name in ("retinanet", "ssd") and first == 0
    whole = course_of(first, 5)
    assert not epoch_findings(training(name, *whole, last_stop_is_late=late))
    for epoch in range(first, first + 5):
        is_last = epoch == first + 4
        if name == "bert" and is_last:
            continue  # its evaluations count samples, not epochs
        left = [one for one in whole if one[1] != epoch or one[0] == "eval_accuracy"]
        assert epoch_findings(training(name, *left, last_stop_is_late=late and not is_last)), epoch


@pytest.mark.parametrize(
    ("epochs", "words"),
    [
        ((1, 2, 3, 3, 4), "epoch 3 starts twice"),
        ((1, 2, 3, 2, 3), "epoch 2 starts after epoch 3"),
        ((1, 2, 3, 6, 7), "3 epochs between two starts, not the usual 1"),
        ((3, 4, 5, 6, 7), "the first epoch that starts is 3, the others 1 apart"),
    ],
)
def test_a_message_about_starts_of_epochs_does_not_speak_of_evaluations(
    epochs: tuple[int, ...], words: str
) -> None:
    course: list[tuple[str, int | None]] = [
        one for epoch in epochs for one in (("epoch_start", epoch), ("epoch_stop", epoch))
    ]
    found = logs.parse(BytesIO(training("resnet", *course))).findings
    messages = [
        one.message for one in found if one.code == "course_incomplete" and "has no" not in one.message
    ]
    assert any(words in message for message in messages), messages
    assert not any("evaluation" in message for message in messages), messages


@pytest.mark.parametrize("lost", ["epoch_start", "epoch_stop"])
@pytest.mark.parametrize("name", ["llama31_8b", "gpt3", "bert", "dlrm_dcnv2"])
def test_an_epoch_without_either_its_start_or_its_stop_is_reported(name: str, lost: str) -> None:
    whole: list[tuple[str, int | None]] = [
        ("epoch_start", None),
        ("eval_accuracy", None),
        ("epoch_stop", None),
    ]
    assert not epoch_findings(training(name, *whole))
    assert not epoch_findings(training(name, *whole, last_stop_is_late=True))
    assert epoch_findings(training(name, *(one for one in whole if one[0] != lost)))


@pytest.mark.parametrize("name", ["llama31_8b", "gpt3"])
def test_a_log_without_epochs_lacks_none(name: str) -> None:
    assert not epoch_findings(training(name, ("eval_accuracy", None)))


@pytest.mark.parametrize("name", [LLAMA, LORA, FLUX, DLRM])
@pytest.mark.parametrize(
    "status",
    ['"success "', '" success"', r'"success\t"', r'"success\u200b"', '"Success"', '["success"]', '""'],
)
def test_only_the_exact_word_success_is_a_success(name: str, status: str) -> None:
    data = re.sub(rb'"status": ?"success"', lambda _: b'"status": ' + status.encode(), read(name))
    assert judged(data)[0] is (UNPROVEN if status == '""' else FAIL)


@pytest.mark.parametrize("name", [LLAMA, LORA, FLUX, DLRM])
@pytest.mark.parametrize("value", ["true", "false", '"good"', "[]", "{}", '{"a": true}'])
def test_an_earlier_evaluation_that_is_no_number_is_unproven(name: str, value: str) -> None:
    stated = rb'("key": "eval_accuracy", "value": )[-0-9.e]+'
    data, count = re.subn(stated, lambda m: m[1] + value.encode(), read(name), count=1)
    assert count
    found, codes = judged(data)
    assert (found, "impossible_value" in codes) == (UNPROVEN, True)


def test_the_table_names_benchmarks_and_events_of_the_rules() -> None:
    rows = read_published_events()
    assert len(rows) >= 14
    for row in rows:
        assert row.benchmark in (TARGETS | TARGETS_06 | {"stable_diffusion": ()})
        assert {"init_stop", "eval_accuracy", "global_batch_size"} <= row.events
        plain = {event for event in row.events if "/" not in event}
        assert events_of(row.notation, row.benchmark, row.since) >= plain
        for entry in row.events - plain:
            event, _, given = entry.partition("/")
            assert event in events_of(row.notation, row.benchmark, row.since, {given})
        assert not events_of(row.notation, row.benchmark, date(2018, 1, 1)) or row.notation == "mll06"
