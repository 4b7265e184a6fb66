"""Test single rules of the log parsers (:mod:`rackproof.logs`), each with a small log.

Most tests are tables. A row has a passing log of tests/logs/log_samples.py with one change, and the verdict
and the codes of findings that result. The tables cover the logs of MLPerf (``mllog`` and rounds 0.5 and 0.6),
of tf_cnn_benchmarks, MXNet, nccl-tests and nvbandwidth, of GPU tools, and of the kernel. For these formats,
other tests check the numbers, tags, lines and ranks that a good log gives.

The remaining tests are about the code that all parsers share: the recognition of formats, the line numbers of
findings, the search for failures, the bounds on findings, memory and time, the spreads of speeds, the speeds
that a platform cannot reach, and the cleaning of text from hostile logs.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import random
import re
import sys
import time
import tracemalloc
from typing import Any

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Spread, Verdict
from rackproof.logs import _reading
from rackproof.logs.fault_texts import NO_NUMBERS, SEARCHED, SHAPES
from tests.logs import log_samples as samples
from tests.logs.log_samples import MINIGO, MLL06, MXNET, NCCL, TF_CNN, event, mll, mllog, nccl_json

PASS, DEGRADED, FAIL, UNPROVEN = Verdict.PASS, Verdict.DEGRADED, Verdict.FAIL, Verdict.UNPROVEN


def read(data: bytes, format: str = "auto", name: str = "") -> ParsedLog:
    """Return the result of parsing a log. With format ``auto``, the format is recognized."""
    return logs.parse(io.BytesIO(data), format=format, name=name)


def codes(parsed: ParsedLog) -> set[str]:
    """Return the codes of all findings of a log, including remarks."""
    return {one.code for one in parsed.findings}


def value(parsed: ParsedLog, name: str, **labels: str) -> float:
    """Return the value of a log's measurement with a name and labels. Fail if there is none."""
    found = parsed.measurement(name, **labels)
    assert found is not None, name
    return found.value


@pytest.mark.parametrize("form", sorted(samples.PASSING))
def test_a_byte_order_mark_does_not_change_the_result(form: str) -> None:
    plain, marked = read(data := samples.PASSING[form]), read(codecs.BOM_UTF8 + data)
    assert (marked.verdict, marked.format) == (plain.verdict, plain.format) == (PASS, plain.format)
    assert [(one.name, one.value) for one in marked.measurements] == [
        (one.name, one.value) for one in plain.measurements
    ]
    assert marked.size_bytes == plain.size_bytes + 3


@pytest.mark.parametrize("name", samples.PASSING)
def test_whole_logs_pass_and_are_recognised(name: str) -> None:
    data = samples.PASSING[name]
    parsed = read(data)
    assert parsed.format == samples.FORMAT_OF.get(name, name)
    assert parsed.verdict is PASS, [one.message for one in parsed.findings]
    assert not [one for one in parsed.findings if one.verdict]
    assert parsed.measurements
    assert parsed.size_bytes == len(data)
    assert parsed.lines == len(data.splitlines())
    assert logs.detect(data) == parsed.format


@pytest.mark.parametrize("name", samples.END_OF_PROOF)
def test_a_log_that_is_cut_off_never_passes(name: str) -> None:
    data, enough = samples.PASSING[name], samples.proof_length(name)
    for length in {*range(0, enough, 37), *range(max(0, enough - 60), enough)}:
        parsed = read(data[:length], samples.FORMAT_OF.get(name, name))
        assert parsed.verdict is not PASS, data[:length][-100:]
        assert any(one.verdict and one.message for one in parsed.findings)
    assert read(data[:enough]).verdict is PASS


LINE = '"key": "run_stop", "value": null, "metadata": {"status": "success"}}\n'
"""The end of an event run_stop, after its time."""
MLLOG_CASES: list[tuple[str, bytes, Verdict, set[str]]] = [
    ("aborted", mllog(status="aborted"), FAIL, {"aborted"}),
    ("no status", mllog(status=None, after=event("run_stop", None, 360)), UNPROVEN, {"no_status"}),
    ("no run_stop", mllog(status=None), UNPROVEN, {"no_run_stop"}),
    (
        "a later trial was aborted",
        mllog(after=event("run_stop", None, 400, status="aborted")),
        FAIL,
        {"aborted"},
    ),
    ("target not reached", mllog(final=0.94), FAIL, {"target_not_reached"}),
    ("loss NaN", mllog(event("tracked_stats", {"train_loss": math.nan}, 200)), FAIL, {"nan"}),
    ("loss infinite", mllog(event("tracked_stats", {"train_loss": math.inf}, 200)), FAIL, {"nan"}),
    *(
        (f"{key} {loss}", mllog(event(key, loss, 200, samples_count=1700)), FAIL, {"nan"})
        for key in ("train_loss", "reduced_train_loss", "loss", "eval_loss", "validation_loss")
        for loss in (math.nan, math.inf, "nan")
    ),
    *(
        (
            f"{key} without a time",
            mllog(re.sub(r'"time_ms": \d+', '"time_ms": null', event(key, math.nan, 200))),
            FAIL,
            {"nan", "damaged_line"},
        )
        for key in ("train_loss", "loss", "eval_loss")
    ),
    *(
        (f"statistic {key}", mllog(event("tracked_stats", {key: math.nan}, 200)), FAIL, {"nan"})
        for key in ("eval_loss", "val_loss", "validation_loss")
    ),
    (
        "loss before the start",
        mllog().replace(b'"init_stop", "value": null', b'"loss", "value": NaN'),
        FAIL,
        {"nan"},
    ),
    (
        "losses of evaluations",
        mllog(event("eval_loss", 0.93, 200), event("tracked_stats", {"val_loss": 1}, 200)),
        PASS,
        set(),
    ),
    *(
        (
            f"aborted after {count} ranks",
            mllog(
                after=event("run_stop", None, 360, status="success") * count
                + event("run_stop", None, 360, status="aborted")
            ),
            FAIL,
            {"aborted"},
        )
        for count in (999, 1000, 3000)
    ),
    (
        "last evaluation damaged after other damage",
        mllog(
            *[':::MLLOG {"key": "measurement", "value": {\n'] * 1000,
            status=None,
            after=':::MLLOG {"key": "eval_accuracy", "value": 0.9\n'
            + event("run_stop", None, 360, status="success"),
        ),
        UNPROVEN,
        {"damaged_evaluation", "damaged_line", "damaged_measurement"},
    ),
    ("accuracy NaN", mllog(final=math.nan), FAIL, {"nan", "target_not_reached"}),
    (
        "accuracy no number",
        mllog(final="good"),
        UNPROVEN,
        {"damaged_evaluation", "damaged_line", "impossible_value"},
    ),
    (
        "accuracy missing",
        mllog(final=None),
        UNPROVEN,
        {"damaged_evaluation", "damaged_line", "impossible_value"},
    ),
    (
        "throughput zero",
        mllog(event("tracked_stats", {"throughput": 0}, 200)),
        UNPROVEN,
        {"impossible_value"},
    ),
    (
        "step time zero",
        mllog(*[event("tracked_stats", {"train_step_time": 0.0}, 200)] * 3),
        UNPROVEN,
        {"impossible_value"},
    ),
    (
        "step time text",
        mllog(event("tracked_stats", {"train_step_time": "x"}, 200)),
        UNPROVEN,
        {"impossible_value"},
    ),
    (
        "CUDA out of memory before the end, ret_code=0",
        mllog("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n+ ret_code=0\n"),
        FAIL,
        {"out_of_memory"},
    ),
    ("out of memory after the end", mllog(after="7: CUDA out of memory. Tried\n"), PASS, {"out_of_memory"}),
    (
        "the usual warning about memory",
        mllog("you may encounter an out-of-memory (OOM) error\n"),
        PASS,
        set(),
    ),
    (
        "kernel killed a process",
        mllog("Out of memory: Killed process 123 (python)\n"),
        FAIL,
        {"out_of_memory"},
    ),
    (
        "traceback without an end",
        mllog("Traceback (most recent call last):\n", status=None),
        FAIL,
        {"traceback", "no_run_stop"},
    ),
    (
        "traceback in a run that ended well",
        mllog("Traceback (most recent call last):\n"),
        PASS,
        {"traceback"},
    ),
    (
        "cancelled",
        mllog(
            status=None, after="slurmstepd: error: *** STEP 40.14 ON n CANCELLED AT 2025-10-08T00:32:36 ***\n"
        ),
        FAIL,
        {"cancelled", "no_run_stop"},
    ),
    (
        "time limit",
        mllog(
            status=None,
            after="slurmstepd: error: *** JOB 4 ON n CANCELLED AT 2025-10-08T00:32 DUE TO TIME LIMIT ***\n",
        ),
        FAIL,
        {"time_limit", "no_run_stop"},
    ),
    (
        "an event before the end whose clock was ahead",
        mllog(
            event("gradient_accumulation_steps", 1, 10_000),
            after=event("epoch_stop", None, 361),
        ),
        PASS,
        {"events_after_run_stop", "time_backwards"},
    ),
    (
        "time limit while the last evaluation ran",
        mllog(
            "slurmstepd: error: *** STEP 4.0 ON n CANCELLED AT 2025-10-08T00:32:36 DUE TO TIME LIMIT ***\n"
        ),
        DEGRADED,
        {"time_limit"},
    ),
    (
        "time limit of a job, on another node",
        mllog(
            "3: slurmstepd: error: *** JOB 4 ON n2 CANCELLED AT 2025-10-08T00:32:36 DUE TO TIME LIMIT ***\n"
        ),
        DEGRADED,
        {"time_limit"},
    ),
    (
        "time limit, and the run did not reach its target",
        mllog(
            "slurmstepd: error: *** STEP 4.0 ON n CANCELLED AT 2025-10-08T00:32:36 DUE TO TIME LIMIT ***\n",
            status="aborted",
        ),
        FAIL,
        {"time_limit", "aborted"},
    ),
    (
        "cancelled by a user while the last evaluation ran",
        mllog("slurmstepd: error: *** STEP 40.14 ON n CANCELLED AT 2025-10-08T00:32:36 ***\n"),
        FAIL,
        {"cancelled"},
    ),
    (
        "cancelled with its node while the last evaluation ran",
        mllog("slurmstepd: error: *** JOB 4 ON n CANCELLED AT 2025-10-08T00:32:36 DUE TO NODE FAILURE ***\n"),
        FAIL,
        {"node_failed"},
    ),
    ("loss NaN in words", mllog("iter: 380  loss: nan (nan)  lr: 0.1\n"), FAIL, {"nan"}),
    ("loss nan, in another form", mllog("step 3 loss = nan\n"), FAIL, {"nan"}),
    ("loss NaN, as other languages write it", mllog("step 3 Loss is NaN, skipped\n"), FAIL, {"nan"}),
    ("a setting about NaN", mllog("loss_options: NaNCheck=True, stop_at_NaN=True\n"), PASS, set()),
    (
        "disk full, and no end",
        mllog("OSError: [Errno 28] No space left on device\n", status=None),
        FAIL,
        {"disk_full", "no_run_stop"},
    ),
    (
        "disk full in a run that ended well",
        mllog("cp: error writing 'core': No space left on device\n"),
        UNPROVEN,
        {"disk_full"},
    ),
    (
        "a task failed",
        mllog("srun: error: n1: task 3: Exited with exit code 137\n"),
        UNPROVEN,
        {"task_failed"},
    ),
    (
        "slurm says out of memory",
        mllog("slurmstepd: error: Detected 1 oom_kill event in StepId=4.0. Some have been OOM Killed.\n"),
        FAIL,
        {"out_of_memory"},
    ),
    ("words with nan in them", mllog("loss finance nanoseconds banana\n"), PASS, set()),
    (
        "tiny loss scale",
        mllog("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 2.07e-171\n"),
        FAIL,
        {"loss_scale"},
    ),
    (
        "ordinary loss scale",
        mllog("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1024.0\n"),
        PASS,
        set(),
    ),
    ("cache clear failed", mllog(event("cache_clear", False, 200)), DEGRADED, {"cache_clear_failed"}),
    (
        "cache clear failed in words",
        mllog("sysctl: permission denied on key 'vm.drop_caches'\n"),
        DEGRADED,
        {"cache_clear_failed"},
    ),
    ("cache clear worked", mllog("vm.drop_caches = 3\n"), PASS, set()),
    (
        "RESULT shorter than the run",
        mllog(after="RESULT,X,,100,nvidia,2024-09-28 05:34:13 PM\n"),
        UNPROVEN,
        {"result_mismatch"},
    ),
    ("RESULT with start-up", mllog(after=" 0: RESULT,X,,900,nvidia,2024-09-28 05:34:13 PM\n"), PASS, set()),
    ("time runs backwards", mllog(event("weights_initialization", None, 20)), PASS, {"time_backwards"}),
    (
        "run_stop before run_start",
        mllog(status=None, after=event("run_stop", None, 5, status="success")),
        UNPROVEN,
        {"negative_time", "events_out_of_order"},
    ),
    ("events after run_stop", mllog(after=event("epoch_stop", None, 361)), PASS, {"events_after_run_stop"}),
    # Each rank may log a seed of its own while it starts. A later seed is that of another run.
    ("seeds differ", mllog(event("seed", 43, 3)), PASS, {"seeds_differ", "time_backwards"}),
    ("a seed in mid-run", mllog(event("seed", 43, 200)), UNPROVEN, {"seeds_differ"}),
    # Other processes may write their buffers late.
    ("a late cache_clear", mllog(event("cache_clear", True, 0)), PASS, {"time_backwards"}),
    # Signs of a wrong time to train: two runs in one file, a run_stop that was moved, a clock that was set.
    (
        "another run begins after the stop",
        mllog(after=event("run_start", None, 400)),
        UNPROVEN,
        {"several_runs", "events_after_run_stop"},
    ),
    (
        "another run begins and evaluates in mid-run",
        mllog(event("run_start", None, 140) + event("eval_accuracy", 0.9, 200)),
        UNPROVEN,
        {"several_runs"},
    ),
    (
        "a measurement after the stop",
        mllog(after=event("measurement", {"name": "x", "value": 1, "unit": "s"}, 361)),
        UNPROVEN,
        {"events_after_run_stop"},
    ),
    (
        "an evaluation after the stop",
        mllog(after=event("eval_accuracy", 0.9, 361)),
        UNPROVEN,
        {"events_after_run_stop"},
    ),
    (
        "an event long after the stop",
        mllog(after=event("epoch_stop", None, 900)),
        UNPROVEN,
        {"events_after_run_stop"},
    ),
    (
        "run_stop before the last evaluation",
        mllog().replace(b"1700000360000", b"1700000329000"),
        UNPROVEN,
        {"events_out_of_order"},
    ),
    (
        "lines of another run in between",
        mllog(event("eval_accuracy", 0.93, 5000)),
        UNPROVEN,
        {"events_out_of_order"},
    ),
    (
        "a program that states what it has not proven",
        mllog(event("unproven", {"what": "fp8 of GPU-1", "why": "no golden answer"}, 300)),
        UNPROVEN,
        {"stated_unproven"},
    ),
    (
        "a program that states that something is unproven, without a text",
        mllog(event("unproven", None, 300)),
        UNPROVEN,
        {"stated_unproven"},
    ),
    (
        "a clock that was set back",
        mllog(event("epoch_start", None, 20)),
        UNPROVEN,
        {"events_out_of_order", "training_before_run_start"},
    ),
    ("CRLF", mllog().replace(b"\n", b"\r\n"), PASS, set()),
    ("bare CR within lines", mllog("10%\r20%\r30%\n"), PASS, set()),
    ("only bare CR", mllog().replace(b"\n", b"\r"), PASS, set()),
    ("no final newline", mllog().rstrip(b"\n"), PASS, {"no_final_newline"}),
    ("ANSI", mllog("\x1b[31mred\x1b[0m words\n"), PASS, set()),
    ("not UTF-8", mllog().replace(b"some words", b"\xff\xfe\x80"), PASS, set()),
    ("not UTF-8 in an event", mllog().replace(b'"train.py"', b'"tr\xe4in.py"', 1), PASS, {"ugly_line"}),
    (
        "rank prefixes",
        mllog(
            event("weights_initialization", None, 200, "   8: "),
            event("weights_initialization", None, 200, "[1,0]<stdout>:"),
        ),
        PASS,
        set(),
    ),
    ("20 KB line", mllog("x" * 20_000 + "\n"), PASS, set()),
    (
        "an event after other text on its line",
        mllog("7: loading shard 3" + event("weights_initialization", None, 200)),
        PASS,
        set(),
    ),
    (
        "two events on one line",
        mllog(event("weights_initialization", None, 200).rstrip("\n") + event("opt_name", "x", 201)),
        PASS,
        set(),
    ),
    (
        "event followed by words",
        mllog(event("weights_initialization", None, 200).rstrip("\n") + " and words\n"),
        PASS,
        {"ugly_line"},
    ),
    (
        "damaged line of an unimportant event",
        mllog(':::MLLOG {"time_ms": 1, "key": "opt_name", "val\n'),
        PASS,
        {"damaged_line"},
    ),
    (
        "damaged run_stop",
        mllog(
            status=None, after=':::MLLOG {"time_ms": 1700000360000, "key": "run_stop", "value": nuLambda\n'
        ),
        UNPROVEN,
        {"damaged_line", "no_run_stop"},
    ),
    (
        "damaged last evaluation",
        mllog(
            status=None,
            after=':::MLLOG {"key": "eval_accuracy", "value": 0.9\n'
            + event("run_stop", None, 360, status="success"),
        ),
        UNPROVEN,
        {"damaged_evaluation", "damaged_line"},
    ),
    (
        "single quotes",
        mllog(
            ":::MLLOG {'time_ms': 1700000200000, 'key': 'opt_name', 'value': null, 'metadata': {'a': True}}\n"
        ),
        PASS,
        {"ugly_line"},
    ),
    (
        "run_stop without a time",
        mllog(status=None, after=':::MLLOG {"time_ms": null, ' + LINE),
        UNPROVEN,
        {"damaged_line", "no_run_stop"},
    ),
    (
        "time that is not a number",
        mllog(status=None, after=':::MLLOG {"time_ms": NaN, ' + LINE),
        UNPROVEN,
        {"damaged_line", "no_run_stop"},
    ),
    ("deep nesting", mllog(":::MLLOG " + "[" * 50_000 + "\n"), PASS, {"damaged_line"}),
    ("no events at all", b":::MLLOG\n", UNPROVEN, {"damaged_line", "no_run_start", "no_run_stop"}),
]
"""Cases: the change in words, the log, its verdict, and the codes of all its findings. The third argument of
``event`` is a time in seconds. ``mllog(...)`` is a passing log with these lines in its middle."""


@pytest.mark.parametrize(
    ("data", "verdict", "expected"), [c[1:] for c in MLLOG_CASES], ids=[c[0] for c in MLLOG_CASES]
)
def test_a_changed_mllog_gets_its_verdict_and_its_codes(
    data: bytes, verdict: Verdict, expected: set[str]
) -> None:
    parsed = read(data)
    assert parsed.format == "mllog"
    assert parsed.verdict is verdict, [one.message for one in parsed.findings]
    assert codes(parsed) == expected


def test_an_mllog_gives_numbers_with_their_lines_and_ranks() -> None:
    parsed = read(mllog().replace(b":::MLLOG", b"   8: :::MLLOG"), name="a.log")
    assert value(parsed, "time_to_train") == 5.0
    assert value(parsed, "startup_time") == 59.0
    assert value(parsed, "samples_per_second") == pytest.approx(10.24)
    assert value(parsed, "train_loss") == 1.2
    accuracy = parsed.measurement("eval_accuracy")
    assert accuracy is not None
    assert (accuracy.value, accuracy.source.line, accuracy.source.rank) == (0.921, 18, 8)
    assert str(accuracy.source) == "a.log:18 (rank 8)"
    assert parsed.tags["seed"] == "42"
    loss = next(one for one in parsed.series if one.name == "train_loss")
    assert (loss.x, loss.y) == ((10.0, 240.0), (1.5, 1.2))


def own(*middle: str, status: str = "success") -> bytes:
    """Return the log of a workload of Rackproof.

    Args:
        *middle: The lines between run_start and run_stop.
        status: The status of run_stop.
    """
    return "".join(
        [event("run_start", None, 0), *middle, event("run_stop", None, 10, status=status)]
    ).encode()


def test_the_log_of_a_workload_of_rackproof_is_read() -> None:
    stated = {"name": "samples_per_second", "value": 9.5, "unit": "samples/s", "direction": "higher"}
    parsed = read(
        own(
            event("facts", {"torch": "2.9", "evil\x1b[31m": "\x00x"}, 1),
            event("dataset", {"name": "mnist", "objects": 70000}, 1),
            event("progress", {"step": 1, "steps": 10}, 2),
            event("tracked_stats", {"train_loss": 0.1, "throughput": 100.0}, 3),
            event("measurement", stated, 4),
            event(
                "measurement",
                {"name": "gemm", "value": 700, "unit": "TFLOP/s", "labels": {"gpu": "GPU-1"}},
                5,
            ),
        )
    )
    assert parsed.verdict is PASS
    assert value(parsed, "samples_per_second") == 9.5
    assert value(parsed, "gemm", gpu="GPU-1") == 700
    assert len([one for one in parsed.measurements if one.name == "samples_per_second"]) == 1
    assert parsed.tags["software.torch"] == "2.9"
    assert parsed.tags["software.evil"] == "x"
    assert (parsed.tags["dataset.name"], parsed.tags["dataset.objects"]) == ("mnist", "70000")


# MFU is the share of a GPU's peak speed that a training reaches. The peak of an H200 is 989.5 TFLOP/s in
# bf16, and twice as much in fp8. The log of the test states a speed of 593.7 TFLOP/s. A case has changes of
# the stated measurement, and the MFU, or None if there must be none.
@pytest.mark.parametrize(
    ("changed", "mfu"),
    [
        ({}, 0.6),
        ({"labels": {"gpu_model": "NVIDIA H200", "dtype": "fp8"}}, 0.3),
        # The peak is unknown for another unit, GPU or precision.
        ({"unit": "GFLOP/s"}, None),
        ({"labels": {"gpu_model": "GeForce", "dtype": "bf16"}}, None),
        ({"labels": {"gpu_model": "NVIDIA H200", "dtype": "fp4"}}, None),
        ({"labels": {}}, None),
        ({"name": "gemm"}, None),
    ],
)
def test_mfu_is_the_share_of_the_gpu_s_peak(changed: Any, mfu: float | None) -> None:
    labels = {"gpu_model": "NVIDIA H200", "dtype": "bf16", "gpu": "GPU-1"}
    stated = {"name": "model_flops", "value": 593.7, "unit": "TFLOP/s", "labels": labels, **changed}
    parsed = read(own(event("measurement", stated, 1)))
    found = [one for one in parsed.measurements if one.name == "mfu"]
    assert [one.value for one in found] == ([] if mfu is None else [pytest.approx(mfu)])
    assert all(one.labels == stated["labels"] and one.source.line for one in found)


# A case has the value of an event `measurement`, and the verdict of the log.
@pytest.mark.parametrize(
    ("stated", "verdict"),
    [
        ({"name": "a", "value": math.nan, "unit": ""}, FAIL),
        ({"name": "a", "value": None, "unit": ""}, UNPROVEN),
        ({"name": "a", "value": 1}, UNPROVEN),
        ({"name": "", "value": 1, "unit": ""}, UNPROVEN),
        ({"name": "a", "value": 1, "unit": "", "direction": "sideways"}, UNPROVEN),
        ({"name": "a", "value": 1, "unit": "", "labels": [1]}, UNPROVEN),
        ("a=1", UNPROVEN),
        ({"name": "a", "value": 1, "unit": "", "direction": None, "labels": None}, PASS),
    ],
)
def test_a_measurement_event_gets_the_verdict_of_its_fields(stated: Any, verdict: Verdict) -> None:
    assert read(own(event("measurement", stated, 1))).verdict is verdict


@pytest.mark.parametrize("value", ["100", "1e2", "-0.5"])
def test_a_measurement_whose_number_is_text_is_not_read(value: str) -> None:
    # Otherwise, a number that a workload writes wrongly could become a reference.
    parsed = read(own(event("measurement", {"name": "speed", "value": value, "unit": "GB/s"}, 1)))
    assert "speed" not in {one.name for one in parsed.measurements}
    assert parsed.verdict is not Verdict.PASS


# A case has the value of an event `target`, the accuracy that the run reached, and the verdict. A target that
# is only a number is not read, because it does not state its direction.
@pytest.mark.parametrize(
    ("target", "accuracy", "verdict"),
    [
        ({"value": 0.99, "at_most": False}, 0.991, PASS),
        ({"value": 0.99, "at_most": False}, 0.989, FAIL),
        ({"value": 0.99, "at_most": True}, 0.989, PASS),
        (0.99, 0.5, PASS),
    ],
)
def test_a_log_that_misses_its_stated_target_fails(target: Any, accuracy: float, verdict: Verdict) -> None:
    data = own(event("target", target, 1), event("eval_accuracy", accuracy, 2))
    assert read(data).verdict is verdict


@pytest.mark.parametrize("accuracy", [0.6, 0.995])
@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        ({"value": 0.99, "at_most": False}, None),
        ({"value": 0.5, "at_most": False}, UNPROVEN),
        ({"value": 0.995, "at_most": False}, UNPROVEN),
        ({"value": 0.99, "at_most": True}, UNPROVEN),
    ],
)
def test_the_first_own_target_counts_and_another_one_is_unproven(
    second: Any, verdict: Verdict | None, accuracy: float
) -> None:
    first = event("target", {"value": 0.99, "at_most": False}, 1)
    parsed = read(own(first, event("target", second, 1), event("eval_accuracy", accuracy, 2)))
    assert parsed.verdict is (FAIL if accuracy < 0.99 else verdict or PASS)
    assert parsed.tags["judged_by"] == "target at least 0.99"
    assert ("target_contradicts" in codes(parsed)) is (verdict is UNPROVEN)


@pytest.mark.parametrize(
    "key", [f"gpu_state.{moment}.GPU-1" for moment in ("begin", "end")] + ["software.gpus"]
)
def test_an_event_sets_no_tag_that_shows_a_reading_of_a_gpu(key: str) -> None:
    assert key not in read(own(event(key, "GPU-1", 1))).tags


@pytest.mark.parametrize(
    ("at", "words"), [(0, "at the moment of run_start"), (-3, "3.000 s before run_start")]
)
def test_the_finding_about_a_run_without_duration_gives_its_order(at: int, words: str) -> None:
    parsed = read((event("run_start", None, 5) + event("run_stop", None, 5 + at, status="success")).encode())
    assert words in " ".join(one.message for one in parsed.findings)


# A case has a changed log of ssd (MLL06) or minigo (MINIGO), its verdict, and the codes of all findings. The
# number in a RESULT line is the time of the whole job in seconds, with its start-up.
@pytest.mark.parametrize(
    ("data", "verdict", "expected"),
    [
        (MLL06.replace(b'"success"', b'"aborted"'), FAIL, {"aborted"}),
        (MLL06.replace(b"0.2305", b"0.2205"), FAIL, {"target_not_reached"}),
        (MLL06.replace(b"0.2305", b"NaN"), FAIL, {"nan", "target_not_reached"}),
        (MLL06.replace(b",640,", b",400,"), UNPROVEN, {"result_mismatch"}),
        (MLL06.replace(b",640,", b",1210,"), PASS, {"long_result"}),
        (MLL06.replace(b",640,", b",1190,"), PASS, set()),
        (MINIGO.replace(b",900,", b",9000,"), PASS, set()),
        (MLL06.replace(b"4200.0", b"nan"), UNPROVEN, {"impossible_value"}),
        (MLL06.replace(b"run_stop", b"run_st"), UNPROVEN, {"no_run_stop"}),
        (MLL06.replace(b"avg. samples", b"samples"), PASS, {"no_throughput"}),
        (MINIGO.replace(b"eval_result", b"eval_nothing"), UNPROVEN, {"target_not_beaten"}),
        (MINIGO.replace(b"0.52", b"0.49"), FAIL, {"target_not_reached"}),
        (MINIGO.replace(b'"timestamp": 600.0', b'"timestamp": null'), UNPROVEN, {"target_not_beaten"}),
        (MINIGO.replace(b",900,", b",500,"), UNPROVEN, {"result_mismatch"}),
        (
            MLL06.replace(b'"ssd"', b'"maskrcnn"').replace(
                b"0.2305", b'{"accuracy": {"BBOX": 0.38, "SEGM": 0.33}}'
            ),
            FAIL,
            {"target_not_reached", "no_throughput", "course_incomplete"},
        ),
    ],
)
def test_a_changed_log_of_round_0_6_gets_its_verdict_and_its_codes(
    data: bytes, verdict: Verdict, expected: set[str]
) -> None:
    parsed = read(data)
    assert (parsed.verdict, codes(parsed)) == (verdict, expected)


@pytest.mark.parametrize("late_s", [-20, 4.5, 700])
def test_the_start_of_minigo_takes_no_negative_time(late_s: float) -> None:
    lines = MINIGO.splitlines(keepends=True)
    start = next(line for line in lines if b"run_start" in line)
    at = float(start.split()[1])
    others = b"".join(line for line in lines if b"init_start" not in line)
    parsed = read(f':::MLL {at + late_s} init_start: {{"value": null, "metadata": {{}}}}\n'.encode() + others)
    times = [one.value for one in parsed.measurements if one.name == "startup_time"]
    assert times == pytest.approx([-late_s] if late_s < 0 else [])


def test_logs_of_round_0_6_give_their_numbers() -> None:
    parsed = read(MLL06)
    # The first value, from the warm-up, does not count.
    assert value(parsed, "samples_per_second") == 4100.0
    assert value(parsed, "time_to_train") == 10.0
    assert value(parsed, "epochs") == 49
    parsed = read(MINIGO)
    assert value(parsed, "time_to_train") == 10.0
    assert value(parsed, "epochs_per_minute") == pytest.approx(60 / 90)
    assert value(parsed, "epochs") == 18


# A case replaces a text of the good log by another text.
@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (b'{"success": true}', b'{"success": false}', FAIL),
        (b'{"success": true}', b"{}", UNPROVEN),
        (b'{"success": true}', b'{"succ', UNPROVEN),
        (b"run_stop", b"run_st", UNPROVEN),
        (b"0.74982", b"NaN", FAIL),
    ],
)
def test_a_changed_log_of_round_0_5_gets_its_verdict(old: bytes, new: bytes, verdict: Verdict) -> None:
    parsed = read(samples.MLP05.replace(old, new))
    assert (parsed.format, parsed.verdict) == ("mlp05", verdict)


def test_a_log_of_round_0_5_gives_its_numbers() -> None:
    parsed = read(samples.MLP05)
    assert value(parsed, "time_to_train") == 60.0
    assert value(parsed, "eval_accuracy") == 0.74982
    assert value(parsed, "epochs") == 59
    assert parsed.tags["global_batch_size"] == "256"


@pytest.mark.parametrize(
    ("data", "verdict", "code"),
    [
        (TF_CNN.replace(b"7.839", b"nan"), FAIL, "nan"),
        (TF_CNN.replace(b"sec: 326.58", b"sec: nan"), FAIL, "nan"),
        (TF_CNN.replace(b"sec: 326.58", b"sec: 0.00"), UNPROVEN, "impossible_value"),
        (TF_CNN.replace(b"sec: 326.58", b"sec: fast"), UNPROVEN, "damaged_line"),
        (TF_CNN.replace(b"total images", b"images"), UNPROVEN, "no_total"),
        (TF_CNN[: TF_CNN.index(b".58")], UNPROVEN, "cut_off"),
        (b"Resource exhausted: OOM when allocating tensor\n" + TF_CNN, PASS, "memory_text"),
        (TF_CNN.replace(b"total images", b"Traceback (most recent call last):\n"), FAIL, "traceback"),
        (
            TF_CNN.replace(b"100\timages/sec: 326.7 +/- 0.1", b"100\timages/sec: 326.7 +"),
            UNPROVEN,
            "damaged_line",
        ),
    ],
)
def test_a_changed_log_of_tf_cnn_gets_its_verdict_and_a_code(
    data: bytes, verdict: Verdict, code: str
) -> None:
    parsed = read(data)
    assert (parsed.format, parsed.verdict) == ("tf_cnn", verdict)
    assert code in codes(parsed)


LOADED = b"load 3.474163770675659 (60000, 1, 28, 28) (10000, 1, 28, 28)\n"
"""The line about the training data of a script that prints no batch size."""


@pytest.mark.parametrize(
    ("data", "verdict", "code"),
    [
        (MXNET.replace(b"num_epochs=2", b"num_epochs=3"), UNPROVEN, "cut_off"),
        *(
            (MXNET.replace(b"num_epochs=2", b"num_epochs=%s" % epochs), UNPROVEN, "cut_off")
            for epochs in (b"nan", b"inf", b"0", b"-3", b"1", b"2.5", b"None", b"9" * 60)
        ),
        (MXNET.replace(b"num_epochs=2", b"num_epochs=nan") + b"fit 43.4\n", UNPROVEN, "cut_off"),
        (MXNET[: MXNET.index(b"INFO:root:Epoch[1]")].replace(b"=2)", b"=nan)"), UNPROVEN, "cut_off"),
        # The log of a resumed run (load_epoch) was cut before the end of its first epoch.
        *(
            (
                MXNET[: MXNET.index(b"INFO:root:Epoch[0] Train")]
                .replace(b"num_epochs=2", b"load_epoch=%s, num_epochs=20" % epoch)
                .replace(b"Epoch[0]", b"Epoch[3]"),
                UNPROVEN,
                "no_epoch",
            )
            for epoch in (b"3", b"2", b"4", b"nan", b"inf", b"-5", b"1e300", b"None")
        ),
        # The log begins with epoch 2. If load_epoch does not explain this, epochs are missing.
        *(
            (
                MXNET.replace(b"num_epochs=2", b"load_epoch=%s, num_epochs=4" % epoch)
                .replace(b"Epoch[1]", b"Epoch[3]")
                .replace(b"Epoch[0]", b"Epoch[2]"),
                UNPROVEN,
                "rows_missing",
            )
            for epoch in (b"nan", b"inf", b"-2", b"1")
        ),
        (MXNET.replace(b"num_epochs=2", b"other=2"), UNPROVEN, "no_end"),
        (MXNET[: MXNET.index(b"INFO:root:Epoch[1] Validation")], UNPROVEN, "cut_off"),
        (MXNET.rstrip(b"\n"), UNPROVEN, "cut_off"),
        # The total time contains the epochs, which take 41 s.
        (MXNET.replace(b"num_epochs=2", b"x=2") + b"fit 3.4\n", UNPROVEN, "steps_contradict"),
        (MXNET + b"total 39.9\n", UNPROVEN, "steps_contradict"),
        (MXNET.replace(b"cost=20.000", b"cost=60.000") + b"fit 43.4\n", UNPROVEN, "steps_contradict"),
        # 3,400 samples per second need 18 s for 60,000, and the epoch takes 20 s.
        *(
            (
                (LOADED + MXNET).replace(b"batch_size=128, ", b"").replace(b"3400.00", speed),
                UNPROVEN,
                "steps_contradict",
            )
            for speed in (b"34000.00", b"340000.00", b"3400000.00")
        ),
        (MXNET.replace(b"0.983496", b"nan"), UNPROVEN, "no_examples"),
        (MXNET.replace(b"0.977750", b"inf"), FAIL, "nan"),
        (MXNET.replace(b"accuracy=0.977750", b"cross-entropy=nan"), FAIL, "nan"),
        (MXNET.replace(b"3400.00", b"inf"), UNPROVEN, "impossible_value"),
        (MXNET[: MXNET.index(b"Epoch[0] Time")], UNPROVEN, "no_epoch"),
        (MXNET.replace(b"Epoch[1] Time cost", b"Traceback (most recent call last):\n"), FAIL, "traceback"),
    ],
)
def test_a_changed_log_of_mxnet_gets_its_verdict_and_a_code(data: bytes, verdict: Verdict, code: str) -> None:
    parsed = read(data)
    assert (parsed.format, parsed.verdict) == ("mxnet", verdict)
    assert code in codes(parsed)


@pytest.mark.parametrize("epoch", [b"-5", b"nan", b"None", b"0", b"1"])
def test_a_log_of_mxnet_with_all_epochs_passes_with_any_load_epoch(epoch: bytes) -> None:
    assert read(MXNET.replace(b"num_epochs=2", b"load_epoch=%s, num_epochs=2" % epoch)).verdict is PASS


def test_a_log_of_mxnet_gives_its_numbers() -> None:
    parsed = read(MXNET)
    assert value(parsed, "samples_per_second") == 3300.0
    assert value(parsed, "seconds_per_epoch") == 20.0
    assert value(parsed, "startup_time") == 1.0
    assert value(parsed, "eval_accuracy") == 0.983496
    assert parsed.tags["network"] == "lenet"
    # A total time at the end of the log proves the end of the run, too.
    assert read(MXNET.replace(b"num_epochs=2", b"x=2") + b"fit 43.4\n").verdict is PASS
    assert read((LOADED + MXNET).replace(b"batch_size=128, ", b"")).verdict is PASS
    assert read(MXNET + b"fit 40.5\n").verdict is PASS  # up to 1 s less, because of rounding


@pytest.mark.parametrize(
    ("data", "verdict", "code"),
    [
        (NCCL.replace(b"   0     9.58  232", b"   3     9.58  232"), FAIL, "wrong_values"),
        (NCCL.replace(b"values : 0 OK", b"values : 2 FAILED"), FAIL, "wrong_values"),
        (NCCL[: NCCL.index(b"# Out of")], UNPROVEN, "cut_off"),
        (NCCL.replace(b"232.17  232.17", b"232.17"), UNPROVEN, "damaged_line"),
        (NCCL.replace(b"232.17  232.17", b"nan nan"), UNPROVEN, "nan"),
        (NCCL.replace(b"       0", b"     N/A"), UNPROVEN, "not_checked"),
        (
            NCCL.replace(b"       0", b"     N/A").replace(b"validation: 1", b"validation: 0"),
            PASS,
            "not_checked",
        ),
        (NCCL + b"host: Test NCCL failure common.cu:958 'unhandled cuda error'\n", FAIL, "nccl_error"),
        (nccl_json(out_of_bounds={"count": 1, "okay": "false"}), FAIL, "wrong_values"),
        (nccl_json(end_time=...), UNPROVEN, "cut_off"),
        (nccl_json(results=[]), UNPROVEN, "no_rows"),
        (nccl_json(results=[{"size": 8}]), UNPROVEN, "damaged_json"),
        (nccl_json(errors=["unhandled"]), DEGRADED, "nccl_error"),
        (nccl_json()[:-40], UNPROVEN, "damaged_json"),
        (nccl_json().replace(b"300.0", b'"nan"'), UNPROVEN, "nan"),
        (nccl_json().replace(b'"nwrong": 0.0', b'"nwrong": 7'), FAIL, "wrong_values"),
        (nccl_json().replace(b'"nwrong": 0.0', b'"nwrong": null'), UNPROVEN, "not_checked"),
        (
            nccl_json().replace(b'"nwrong": 0.0', b'"nwrong": null').replace(b'tion": 1', b'tion": 0'),
            PASS,
            "not_checked",
        ),
    ],
)
def test_a_changed_log_of_nccl_tests_gets_its_verdict_and_a_code(
    data: bytes, verdict: Verdict, code: str
) -> None:
    parsed = read(data)
    assert (parsed.format, parsed.verdict) == ("nccl_tests", verdict)
    assert code in codes(parsed)


@pytest.mark.parametrize("times", [1, 400, 600])
def test_the_number_of_wrong_values_is_kept_beside_any_number_of_rows(times: int) -> None:
    lines = NCCL.splitlines(keepends=True)
    rows = [line for line in lines if line.split()[:1] and line.split()[0].isdigit()]
    at = lines.index(rows[0])
    data = b"".join(lines[:at]) + b"".join(rows) * times + b"".join(lines[at + len(rows) :])
    parsed = read(data)
    assert len(parsed.measurements) == min(4 * len(rows) * times + 1, _reading.MAX_MEASUREMENTS)
    assert value(parsed, "wrong_values") == 0


def test_logs_of_nccl_tests_give_their_numbers() -> None:
    parsed = read(NCCL)
    assert value(parsed, "all_reduce_busbw", size_bytes="2224200", place="in_place", dtype="float") == 232.17
    assert value(parsed, "wrong_values") == 0
    parsed = read(nccl_json())
    assert value(parsed, "all_reduce_busbw", size_bytes="2000000", place="in_place") == 310.0
    assert value(parsed, "all_reduce_algbw", size_bytes="2000000", place="out_of_place") == 200.0
    assert "hidden" not in parsed.model_dump_json()


# The output of ``nvbandwidth --json`` on two GPUs, with one test that passed and one that was not run.
NVB_JSON = {
    "nvbandwidth": {
        "version": "v0.8",
        "GPU Device list": [f"{at}: NVIDIA H200 (00000000:{at}b:00): (n01)" for at in range(2)],
        "testcases": [
            {
                "name": "device_to_device_memcpy_read_ce",
                "status": "Passed",
                "bandwidth_description": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
                "bandwidth_matrix": [["N/A", "394.1"], ["396.2", "N/A"]],
                "sum": 790.3,
            },
            {"name": "multinode", "status": "Waived"},
        ],
    }
}


def nvb_json(**changes: Any) -> bytes:
    """Return the output of nvbandwidth as JSON. ``changes`` replace values of its first test."""
    document = json.loads(json.dumps(NVB_JSON))
    document["nvbandwidth"]["testcases"][0].update(changes)
    return json.dumps(document, indent=1).encode()


@pytest.mark.parametrize(
    ("data", "verdict", "code"),
    [
        (nvb_json(), PASS, "waived"),
        (nvb_json(status="Error", error="CUDA_ERROR"), FAIL, "tool_error"),
        (nvb_json(status="Running"), UNPROVEN, "tool_error"),
        (nvb_json(bandwidth_matrix=[["nan"]]), UNPROVEN, "impossible_value"),
        (nvb_json(bandwidth_matrix=None), UNPROVEN, "damaged_json"),
        (nvb_json()[:-9], UNPROVEN, "damaged_json"),
        (samples.NVBANDWIDTH.replace(b"396.00", b"196.00"), UNPROVEN, "sum_mismatch"),
        (samples.NVBANDWIDTH.replace(b"SUM", b"CUDA_ERROR_ECC"), FAIL, "tool_error"),
        (samples.NVBANDWIDTH.replace(b"NOTE", b"note"), UNPROVEN, "cut_off"),
    ],
)
def test_a_changed_log_of_nvbandwidth_gets_its_verdict_and_a_code(
    data: bytes, verdict: Verdict, code: str
) -> None:
    parsed = read(data)
    assert (parsed.format, parsed.verdict) == ("nvbandwidth", verdict)
    assert code in codes(parsed)
    if verdict is PASS:
        assert value(parsed, "device_to_device_memcpy_read_ce", row="1", column="0") == 396.2


# A case replaces a text of a good log, which has a name in log_samples.py, by another text. `code` is the
# code of one of its findings.
@pytest.mark.parametrize(
    ("sample", "old", "new", "verdict", "code"),
    [
        ("gpu_burn", b"GPU 1: OK", b"GPU 1: FAULTY", FAIL, "gpu_faulty"),
        (
            "gpu_burn",
            b"errors: 0 - 0   temps: 58",
            b"errors: 0 - 12  (WARNING!)   temps: 58",
            FAIL,
            "compute_errors",
        ),
        ("gpu_burn", b"\tGPU 1: OK\n", b"", UNPROVEN, "gpu_missing"),
        ("gpu_burn", b"Tested 2", b"Tasted 2", UNPROVEN, "cut_off"),
        ("gpu_burn", b"6783 (16842", b"-1 (16842", FAIL, "gpu_died"),
        ("ib_write_bw", b"394.20", b"nan", UNPROVEN, "impossible_value"),
        ("ib_write_bw", b" Link type       : IB", b"Completion with error at client", FAIL, "tool_error"),
        ("nvidia_smi_xml", b"parity>0<", b"parity>2<", FAIL, "ecc_uncorrected"),
        ("nvidia_smi_xml", b"_failure>No<", b"_failure>Yes<", FAIL, "remap_failure"),
        ("nvidia_smi_xml", b"_pending>No<", b"_pending>Yes<", FAIL, "remap_pending"),
        ("nvidia_smi_xml", b"gpus>1<", b"gpus>2<", UNPROVEN, "gpu_missing"),
        ("nvidia_smi_xml", b">GPU-0", b">Unknown Error", UNPROVEN, "gpu_lost"),
        ("nvidia_smi_text", b"Parity     : 0", b"Parity     : 2", FAIL, "ecc_uncorrected"),
        ("nvidia_smi_text", b"SEC-DED    : 0", b"SEC-DED    : 1", FAIL, "ecc_uncorrected"),
        (
            "nvidia_smi_text",
            b"DRAM Uncorrectable            : 0",
            b"DRAM Uncorrectable            : 7",
            DEGRADED,
            "ecc_dram_uncorrected",
        ),
        ("nvidia_smi_text", b"Exceeded       : No", b"Exceeded       : Yes", FAIL, "ecc_uncorrected"),
        (
            "nvidia_smi_text",
            b"Pending                           : No",
            b"Pending                           : Yes",
            FAIL,
            "remap_pending",
        ),
        ("nvidia_smi_text", b"Occurred        : No", b"Occurred        : Yes", FAIL, "remap_failure"),
        (
            "nvidia_smi_text",
            b"GPUs                             : 1",
            b"GPUs                             : 2",
            UNPROVEN,
            "gpu_missing",
        ),
        ("nvidia_smi_text", b": GPU-0", b": N/A 0", UNPROVEN, "gpu_lost"),
        ("nvidia_smi_text", b"31 C", b"Unknown Error", FAIL, "gpu_lost"),
        ("nvidia_smi_text", b"    Processes", b"    Proc", UNPROVEN, "cut_off"),
        ("nvidia_smi_csv", b"78.17 W, 0", b"78.17 W, 4", FAIL, "ecc_uncorrected"),
        ("nvidia_smi_csv", b"78.17 W, 0", b"[GPU is lost], 0", FAIL, "gpu_lost"),
        ("nvidia_smi_csv", b"78.17 W, 0", b"78.17 W", UNPROVEN, "damaged_line"),
        ("nvlink_status", b"Link 1: 26.562 GB/s", b"Link 1: <inactive>", FAIL, "nvlink_down"),
        ("nvlink_status", b"GB/s\n\t Link 17: 26.562 GB/s\nGPU 1", b"GB/s\nGPU 1", FAIL, "nvlink_uneven"),
        ("nvidia_smi_topo", b"GPU1\tNV18", b"GPU1\tSYS", DEGRADED, "topology_uneven"),
        ("nvidia_smi_topo", b"GPU1\tNV18", b"GPX1\tSYS", UNPROVEN, "cut_off"),
    ],
)
def test_a_changed_log_of_a_tool_gets_its_verdict_and_a_code(
    sample: str, old: bytes, new: bytes, verdict: Verdict, code: str
) -> None:
    damaged = samples.PASSING[sample].replace(old, new)
    assert damaged != samples.PASSING[sample]
    parsed = read(damaged, sample)
    assert parsed.verdict is verdict, [one.message for one in parsed.findings]
    assert code in codes(parsed)


@pytest.mark.parametrize("times", [1, 3])
def test_each_snapshot_in_the_text_of_nvidia_smi_gives_its_measurements(times: int) -> None:
    # ``times`` is the number of snapshots in the log.
    parsed = read(samples.NVIDIA_SMI_TEXT * times)
    assert parsed.verdict is PASS
    uuid = "GPU-00000000-0000-4000-8000-000000000001"
    assert {one.name: one.value for one in parsed.measurements} == {
        "gpu_temperature": 31.0,
        "gpu_temperature_margin": 52.0,
        "gpu_power": 77.49,
        "gpu_memory_used": 3.0,
        "gpu_sm_clock": 1980.0,
        "pcie_link_generation": 5.0,
        "pcie_link_width": 16.0,
    }
    assert len(parsed.measurements) == 7 * times
    assert {one.labels["gpu"] for one in parsed.measurements} == {uuid}
    assert parsed.tags["driver_version"] == "580.159.04"
    assert read(samples.NVIDIA_SMI_TEXT * times + samples.NVIDIA_SMI_TEXT[:-300]).verdict is UNPROVEN


def test_the_lowest_row_of_perftest_counts_and_its_mb_is_a_mebibyte() -> None:
    rows = b" 8388608 20000 24056.74 24056.72 0.003007\n 8388608 20000 24000.00 24000.00 0.003\n"
    data = samples.PERFTEST.replace(b"Gb/sec", b"MB/sec").replace(
        b" 65536      5000             395.10             394.20             0.751895\n", rows
    )
    assert value(read(data), "ib_write_bw", size_bytes="8388608") == pytest.approx(24000 * 8 * 2**20 / 1e9)


# A case has a line of the kernel log, its verdict, and the code of its finding, or "" if it must have none.
@pytest.mark.parametrize(
    ("line", "verdict", "code"),
    [
        ("NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.", FAIL, "xid_79"),
        ("NVRM: Xid (PCI:0000:01:00): 31, pid=1", DEGRADED, "xid_31"),
        ("NVRM: Xid (PCI:0000:01:00): 145, RLW_RXPIPE Nonfatal XC0", DEGRADED, "xid_145"),
        ("NVRM: Xid (PCI:0000:01:00): 145, RLW_RXPIPE Fatal XC0", FAIL, "xid_145"),
        ("NVRM: Xid (PCI:0000:01:00): 99999, unknown error", UNPROVEN, "xid_99999"),
        ("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30", FAIL, "sxid_20034"),
        ("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 12028, Non-fatal, Link 3", DEGRADED, "sxid_12028"),
        ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", FAIL, "gpu_lost"),
        ("NVRM: Xid (invalid): some error", UNPROVEN, "damaged_line"),
        ("usb 1-1: new device", PASS, ""),
    ],
)
def test_a_message_of_the_driver_gets_its_verdict_and_a_code(line: str, verdict: Verdict, code: str) -> None:
    parsed = read(f"[1.0] {line}\n".encode(), "xid")
    assert parsed.verdict is verdict
    assert (code in codes(parsed)) == bool(code)


# Each text has entities, too many elements or levels, or is no output of nvidia-smi.
@pytest.mark.parametrize(
    "bomb",
    [
        b'<!DOCTYPE nvidia_smi_log [<!ENTITY a "b">]><nvidia_smi_log>&a;</nvidia_smi_log>',
        '<!DOCTYPE nvidia_smi_log [<!ENTITY a "b">]><nvidia_smi_log>&a;</nvidia_smi_log>'.encode("utf-16"),
        b'<!DOCTYPE nvidia_smi_log [<!ENTITY x SYSTEM "file:///etc/passwd">]><nvidia_smi_log>&x;</nvidia_smi_log>',
        b"<nvidia_smi_log>" + b"<a>" * 1000 + b"</a>" * 1000 + b"</nvidia_smi_log>",
        b"<nvidia_smi_log>" + b"<a/>" * 210_000 + b"</nvidia_smi_log>",
        b"<nvidia_smi_log><gpu></nvidia_smi_log>",
        *(
            b'<?xml version="1.0" encoding="%s"?>\n' % encoding + samples.NVIDIA_SMI_XML.partition(b"\n")[2]
            for encoding in (b"foo", b"rot13", b"hex", b"base64")
        ),
        b"<other/>",
        b"",
    ],
)
def test_hostile_xml_is_refused(bomb: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        logs.read_gpus(bomb)
    assert read(bomb, "nvidia_smi_xml").verdict is UNPROVEN


# -- The recognition of formats, lines and failures -----------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\x00" * 5000, b"hello\n", b"{}", b"\xff" * 100, b"\n" * 100])
def test_a_log_of_no_known_format_is_unproven(data: bytes) -> None:
    parsed = read(data)
    assert (parsed.format, parsed.verdict) == ("unknown", UNPROVEN)
    assert codes(parsed) == ({"unrecognised"} if data else {"empty"})


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        ("a line\n".encode("utf-16-le") * 9, "iconv"),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0>\0\x01" + bytes(9), "no text"),
    ],
)
def test_the_finding_about_bytes_that_are_no_text_names_the_remedy(data: bytes, remedy: str) -> None:
    assert remedy in read(data).findings[0].message


@pytest.mark.parametrize("name", logs.FORMATS)
@pytest.mark.parametrize("data", [b"", b"\x00\xff\n" * 50, b"{" * 100, b"<a" * 50])
def test_meaningless_bytes_pass_in_no_format(name: str, data: bytes) -> None:
    parsed = read(data, name)
    assert parsed.verdict is not PASS


def test_the_error_about_an_unknown_format_suggests_similar_names() -> None:
    with pytest.raises(ValueError, match="did you mean mllog"):
        read(b"", "mlog")
    with pytest.raises(ValueError, match="known are auto, mlperf_inference, mllog"):
        read(b"", "zzzzzz")
    with pytest.raises(ValueError, match="unknown log format"):
        logs.parse_path("/nonexistent", "zzzzzz")


def test_events_that_begin_late_are_found() -> None:
    filler = b"nothing of interest here\n" * 100_000
    late = read(filler + mllog())
    assert (late.format, late.verdict) == ("mllog", PASS)
    accuracy = late.measurement("eval_accuracy")
    assert accuracy is not None
    assert accuracy.source.line == 100_000 + 18
    # The log of a job that runs nccl-tests and then a training counts as the log of the training.
    mixed = read(NCCL + filler + mllog())
    assert (mixed.format, mixed.verdict) == ("mllog", PASS)
    assert "format_changed" in codes(mixed)


@pytest.mark.parametrize("final_newline", [True, False])
def test_the_line_number_of_each_position_is_right(final_newline: bool) -> None:
    block = mllog("words\n\n\n" * 50, event("seed", 1, 200).rstrip() + event("seed", 2, 200))
    if not final_newline:
        block = block.rstrip(b"\n")
    log = _reading.Log()
    for before in (0, block.count(b"\n")):
        log.begin(block)
        log.scan(block)
        places = [
            *range(len(block)),
            *range(len(block) - 1, -1, -1),
            *(at * 7919 % len(block) for at in range(5000)),
        ]
        for at in places:
            assert log.line_at(at) == before + 1 + block.count(b"\n", 0, at)
        log.end()
        assert log.lines == before + block.count(b"\n")


def test_failures_between_events_are_found_with_their_lines() -> None:
    fatal = "7: CUDA out of memory\n"
    glued = event("seed", 1, 200).rstrip() * 3 + "\n"
    rows = [fatal, glued, event("seed", 1, 200), fatal, "a" + glued, "words\n", fatal]
    parsed = read("".join(rows).encode() + mllog())
    lines = [one.source.line for one in parsed.findings if one.code == "out_of_memory"]
    assert lines == [1, 4, 7]
    assert {one.excerpt for one in parsed.findings if one.code == "out_of_memory"} == {fatal.strip()}


def test_failures_before_the_recognised_part_count() -> None:
    filler = b"nothing of interest here\n" * 100_000
    parsed = read(b"RuntimeError: CUDA out of memory\n" + filler + mllog())
    assert parsed.verdict is FAIL
    assert next(one for one in parsed.findings if one.code == "out_of_memory").source.line == 1


# -- Bounds, cleaning, and rules of several formats -----------------------------------------------


def test_findings_tags_series_and_measurements_are_bounded() -> None:
    flood = "".join(
        "Traceback (most recent call last):\n"
        + event(f"key_{index}", "x" * 5000, 200)
        + event("tracked_stats", {"train_loss": 1.0, "throughput": 5.0}, 200 + index % 100)
        + event("measurement", {"name": f"m{index}", "value": 1, "unit": "u" * 500}, 200)
        + ':::MLLOG {"key": "opt", "x\n'
        for index in range(6000)
    )
    parsed = read(mllog(flood))
    assert len(parsed.findings) < 100
    assert len([one for one in parsed.findings if one.code == "damaged_line"]) == 5
    assert any("5995 more" in one.message for one in parsed.findings)
    assert any("5995 more" in one.message for one in parsed.findings if one.code == "traceback")
    assert len(parsed.tags) <= 600
    assert max(map(len, parsed.tags.values())) <= 200
    assert all(len(one.x) <= 2000 for one in parsed.series)
    assert all(list(one.x) == sorted(one.x) for one in parsed.series)
    assert len(parsed.measurements) <= 4000
    assert all(len(one.excerpt) <= 200 for one in parsed.findings)


def test_memory_does_not_grow_with_the_log() -> None:
    class Endless(io.RawIOBase):
        """A stream with more than 12 MB of a log, of which only one part is in memory at a time."""

        def __init__(self) -> None:
            self.parts = iter([mllog(status=None)] + [event("block_start", None, 200).encode() * 1000] * 80)
            self.rest = b""

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            if not self.rest:
                self.rest = next(self.parts, b"")
            size = min(len(buffer), len(self.rest))
            buffer[:size] = self.rest[:size]
            self.rest = self.rest[size:]
            return size

    tracemalloc.start()
    parsed = logs.parse(io.BufferedReader(Endless()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert parsed.size_bytes > 12_000_000
    assert peak < 6_000_000


def test_a_line_of_many_megabytes_is_read() -> None:
    data = mllog("x" * 5_000_000 + "\n" + ":::MLLOG " + "y" * 3_000_000 + "\n")
    assert read(data).verdict is PASS


@pytest.mark.parametrize("count", [3, _reading.MAX_POINTS, _reading.MAX_POINTS + 1, 3000, 9000])
def test_missing_lines_are_found_after_any_number_of_steps(count: int) -> None:
    steps = _reading.Steps()
    for line in range(1, count + 1):
        steps.take(10.0 * line, line)
    assert steps.problem("steps") is None
    steps.take(10.0 * count + 30, count + 1)
    problem, line = steps.problem("steps") or ("", 0)
    assert "30 steps lie between two lines, where 10 are usual" in problem
    assert line == count + 1
    assert len(steps.gaps) <= _reading.MAX_POINTS


def test_a_thinned_curve_keeps_its_shape() -> None:
    curve = _reading.Curve("a", "", "s")
    for index in range(100_000):
        curve.add(index, index * 2)
    series = curve.series()
    assert 1000 <= len(series.x) <= 2000
    assert series.x[0] == 0
    assert series.x[-1] > 99_000
    assert all(y == 2 * x for x, y in zip(series.x, series.y, strict=True))
    curve.add(5, 1.0)
    assert list(curve.x) == sorted(curve.x)


# A case has text of a log, as bytes or decoded, and the text that is stored.
@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"a\x00b\x07c\rd", "abcd"),
        (b"\x1b]0;title\x07x", "x"),
        ("a\u202eb\u2066c\u2028d", "abcd"),
        ("\ud800", "?"),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
        (b"\x9b31mx", "\ufffd31mx"),
        (b"x" * 300, "x" * 199 + "…"),
    ],
)
def test_text_of_a_log_is_cleaned(raw: bytes | str, expected: str) -> None:
    assert _reading.clean(raw) == expected


def test_all_texts_of_a_hostile_log_are_cleaned() -> None:
    evil = "\x1b[2J<script>\u202e\x00"
    parsed = read(
        mllog(
            event("submission_org", evil, 200),
            event(evil, evil, 200),
            f"Traceback (most recent call last): {evil}\n",
            f":::MLLOG {{{evil}\n",
            event("measurement", {"name": evil, "value": 1, "unit": evil, "labels": {evil: evil}}, 200),
        )
    )
    text = parsed.model_dump_json()
    assert "script" in text
    for bad in ("\\u001b", "\x1b", "\u202e", "\\u0000"):
        assert bad not in text


@pytest.mark.parametrize(("data", "seconds"), [(MLL06, 640), (MINIGO, 900)])
def test_the_result_line_of_round_0_6_gives_the_wall_time(data: bytes, seconds: float) -> None:
    found = read(data).measurement("wall_time")
    assert found is not None
    assert (found.value, found.unit) == (seconds, "s")
    assert read(data.replace(b"RESULT,", b"RESLT,")).measurement("wall_time") is None


def test_a_throughput_of_round_0_6_without_its_unit_is_not_read() -> None:
    data = mll("submission_benchmark", "maskrcnn").encode() + b"&&&& MLPERF METRIC THROUGHPUT=139.8"
    assert read(data).measurement("iterations_per_second") is None


@pytest.mark.parametrize("depth", [10, 300, 900, 1020, 3000])
@pytest.mark.parametrize(
    "key", ["seed", "submission_org", "run_stop", "measurement", "facts", "eval_accuracy"]
)
def test_deeply_nested_values_cause_no_failure(depth: int, key: str) -> None:
    nested = "[" * depth + "]" * depth
    head = ':::MLLOG {"time_ms": 1700000350000, '
    line = head + f'"key": "{key}", "value": {nested}, "metadata": {{"status": {nested}}}}}\n'
    assert read(mllog(line)).format == "mllog"
    facts = head + f'"key": "facts", "value": {{"a": {nested}}}, "metadata": null}}\n'
    assert read(mllog(facts)).verdict is PASS
    for document in (nccl_json(args=["X"]), nvb_json(name="X"), nccl_json(errors=["X"])):
        data = document.replace(b'"X"', nested.encode())
        assert read(data).verdict is not FAIL


# A case has a text, the searched text, and the positions at which it is found. Found texts do not overlap.
@pytest.mark.parametrize(
    ("text", "literal", "places"),
    [
        (b"", b"nan", []),
        (b"nan", b"nan", [0]),
        (b"banana nan", b"nan", [2, 7]),
        (b"nannan", b"nan", [0, 3]),
        (b"\x00nan\x00\xffnan", b"nan", [1, 6]),
        (b"aaaaa", b"aa", [0, 2]),
        (b"na" * 1000, b"nan", [index * 4 for index in range(500)][:500]),
        (b"x" * 100_000 + b"RESULT,", b"RESULT,", [100_000]),
        (b"RESULT" * 10_000, b"RESULT,", []),
    ],
)
def test_both_searches_find_the_same_places(text: bytes, literal: bytes, places: list[int]) -> None:
    assert _reading.find_all(text, literal) == places
    assert _reading.find_all_portably(text, literal) == places


def plain_hits(text: bytes) -> list[tuple[int, bytes]]:
    """Return the places and texts of all failures in a text, found without a cache of known lines."""
    found = []
    for literal in (b"gradient overflow", b"result,", *SEARCHED):
        pattern = b"[iI]nf" if literal == b"inf" else b"(?i:" + re.escape(literal) + b")"
        if literal in SHAPES:
            pattern = pattern.replace(b"0", rb"\d")
        ends = rb"(?!(?!(?i:inity))[a-zA-Z])" if literal in NO_NUMBERS else b""
        found += [(one.start(), literal) for one in re.finditer(pattern + ends, text)]
    return sorted(found)


# Lines with texts of failures, and harmless lines that resemble these. The test replaces digits in them.
LINES_OF_SHAPES = [
    b"step 17: loss 0.3 lr 1e-3",
    b"step 1234: loss nan",
    b"step 18: loss 0.25 in 3 nanoseconds",
    b"NCCL INFO channel 3",
    b"loss: Inf",
    b"inf7x",
    b"a=infinity7",
    b"mlx5_core 0000:5e:00.0: 3 errors",
    b"mlx_core mlx6_core",
    b"er3ror",
    b"CUDA error: 719",
    b"[ 1234.567890] nvme nvme0: controller is down",
    b"[1,0]<stdout>:[Tue Nov 24 12:00:00 2026] Oops: 0002 [#1] SMP",
    b"\xffXid 79\x00",
    b"RESULT,bert,1,600,nvidia,2025",
    b"Killed",
    b"progress\r1%\rno space left\x20on device",
    b"",
]


@pytest.mark.parametrize("most_bytes", [0, 100, 1 << 20])
def test_a_line_of_a_known_shape_gives_the_same_hits_as_a_new_line(
    most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reading.KnownShapes, "MOST_BYTES", most_bytes)
    monkeypatch.setattr(_reading, "_KNOWN", _reading.KnownShapes(_reading.SEARCHED_IN_TEXT))
    chance = random.Random(30)
    found = 0
    for _ in range(300):
        text = b"\n".join(chance.choices(LINES_OF_SHAPES, k=chance.randrange(1, 8)))
        for digit in chance.choices(b"0123456789", k=2):
            text = text.replace(b"%c" % digit, b"%d" % chance.randrange(100))
        assert _reading._hits(text) == (plain_hits(text), text.count(b"\n")), text
        found += len(plain_hits(text))
    assert found > 500


# A case has the beginning of all lines, and their number.
@pytest.mark.parametrize(
    ("line", "count"),
    [(b"x", 3000), (b"error x", 3000), (b"fatal nccl warn " * 100, 200), (b"y" * 100_000, 20)],
)
def test_the_memory_of_known_shapes_is_bounded(
    line: bytes, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reading.KnownShapes, "MOST_BYTES", 100_000)
    known = _reading.KnownShapes(_reading.SEARCHED_IN_TEXT)
    letters = bytes.maketrans(b"0123456789", b"ghijklmnop")
    most = 0
    for at in range(count):
        known.literals_in(line + (b"%06d" % at).translate(letters))
        most = max(most, sum(map(sys.getsizeof, known.kept)))
    assert most <= 100_000
    assert len(line) > 50_000 or most > 20_000


# A case has a platform, a speed of llama2_70b_lora in samples per second, and whether the speed is more than
# the platform's GPUs can reach. Without a known GPU and a number of nodes, there is no limit.
@pytest.mark.parametrize(
    ("platform", "rate", "found"),
    [
        ("1xXE9680x8H200-SXM-141GB", 6.0, False),
        ("1xXE9680x8H200-SXM-141GB", 8.0, True),
        ("1xSR680aV3-8xB200_SXM_180GB", 31.0, False),
        ("1xSR680aV3-8xB200_SXM_180GB", 33.0, True),
        ("2xNVIDIA GB200", 800.0, True),
        ("1xEXAMPLE", 800.0, False),
        ("R7715x3H200", 800.0, False),
    ],
)
def test_a_speed_that_the_stated_platform_cannot_reach_is_found(
    platform: str, rate: float, found: bool
) -> None:
    events = [
        event("submission_platform", platform, 1),
        event("tracked_stats", {"throughput": rate}, 140),
        event("tracked_stats", {"throughput": rate}, 150),
    ]
    parsed = read(mllog(*events, samples=768))
    assert ("implausible_speed" in codes(parsed)) is found


# A case has a platform, the model that a run script prints, a speed, and the codes against the log.
@pytest.mark.parametrize(
    ("platform", "model", "rate", "found"),
    [
        ("1xSUBMISSION_PLATFORM_PLACEHOLDER", "NVIDIA H200", 6.0, set()),
        ("1xSUBMISSION_PLATFORM_PLACEHOLDER", "NVIDIA H200", 8.0, {"implausible_speed"}),
        ("H200", "NVIDIA H200", 8.0, {"implausible_speed"}),
        ("1xXE9680x8H200-SXM-141GB", "No devices were found", 8.0, {"implausible_speed"}),
        ("1xXE9680x8B200-SXM-180GB", "NVIDIA H200", 6.0, {"system_contradicts"}),
        ("1xEXAMPLE", "NVIDIA Graphics Device", 800.0, set()),
    ],
)
def test_a_speed_that_the_printed_gpus_cannot_reach_is_found(
    platform: str, model: str, rate: float, found: set[str]
) -> None:
    system = {"number_of_nodes": "1", "accelerators_per_node": "8", "accelerator_model_name": model}
    events = [
        event("submission_platform", platform, 1),
        event("tracked_stats", {"throughput": rate}, 140),
        event("tracked_stats", {"throughput": rate}, 150),
    ]
    log = f"0: :::SYSJSON {json.dumps(system)}\n".encode() + mllog(*events, samples=768)
    assert set(codes(read(log))) & {"implausible_speed", "system_contradicts"} == found


SPREAD = {"count": 200, "low": 90.0, "median": 100.0, "high": 101.0}
"""The spread of 200 samples of a speed, in GB/s."""


def stated_speed(**more: Any) -> str:
    """Return the event of a measured speed of 100 GB/s. ``more`` adds fields or replaces them."""
    stated = {"name": "copy", "value": 100, "unit": "GB/s", "direction": "higher", **more}
    return event("measurement", stated, 1)


def test_the_spread_that_a_measurement_states_is_read() -> None:
    found = read(own(stated_speed(spread=SPREAD))).measurement("copy")
    assert found is not None
    assert found.spread == Spread(count=200, low=90, median=100, high=101)


@pytest.mark.parametrize(
    "change", [{"low": 200}, {"high": 95}, {"count": 0}, {"low": None}, {"median": "NaN"}, {"more": 1}]
)
def test_an_impossible_spread_damages_its_measurement(change: dict[str, Any]) -> None:
    log = read(own(stated_speed(spread={**SPREAD, **change})))
    assert log.verdict is Verdict.UNPROVEN
    assert log.measurement("copy") is None


def test_a_log_is_unproven_if_only_some_values_of_a_metric_have_a_spread() -> None:
    whole = [stated_speed(spread=SPREAD, labels={"gpu": one}) for one in "ab"]
    assert read(own(*whole)).verdict is Verdict.PASS
    log = read(own(whole[0], stated_speed(labels={"gpu": "b"})))
    assert (log.verdict, [one.code for one in log.findings if one.verdict]) == (
        Verdict.UNPROVEN,
        ["spread_missing"],
    )


def test_the_throughput_of_an_mlperf_log_has_no_spread() -> None:
    # In 2 of 900 published logs, the throughput varies between statistics by a factor above 2, and the last
    # epochs of a training are shorter. A spread would therefore make good logs unproven.
    speeds = [10, 100, 100, 40, 100, 40, 101, 99]
    stats = [event("tracked_stats", {"throughput": one}, 131 + at, step=at) for at, one in enumerate(speeds)]
    found = read(mllog(*stats)).measurement("samples_per_second")
    assert found is not None
    assert found.spread is None


# `before` is the number of earlier points, and `count` the number of added points. `odd` is the value of one
# added point that is not finite, "back" for a point before an earlier one, or None.
@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("count", [1, 2, 1999, 2000, 5000])
@pytest.mark.parametrize("odd", [None, math.nan, math.inf, "back"])
def test_points_added_together_equal_points_added_one_by_one(
    before: int, count: int, odd: float | str
) -> None:
    x, y = [float(at // 2) for at in range(count)], [float(at % 7) for at in range(count)]
    if odd == "back":
        x[count // 2] = -1.0
    elif odd is not None:
        y[count // 2] = float(odd)
    together, one_by_one = _reading.Curve("a", "", "s"), _reading.Curve("a", "", "s")
    for curve in (together, one_by_one):
        for at in range(before):
            curve.add(at - 10.0, 1.0)
    together.extend(x, y)
    for point in zip(x, y, strict=True):
        one_by_one.add(*point)
    for curve in (together, one_by_one):
        curve.add(1e6, 2.0)
    assert (together.x, together.y, together.skip) == (one_by_one.x, one_by_one.y, one_by_one.skip)


# Lines of the kernel: corrected and uncorrected errors of PCIe, a lost device, and corrected (CE) and
# uncorrected (UE) errors of memory.
AER = "pcieport 0000:00:01.0: AER: "
CORRECTED = f"{AER}Corrected error received: 0000:00:01.0\n"
NONFATAL = f"{AER}Uncorrected (Non-Fatal) error received: 0000:00:01.0\n"
LOST = "pcieport 0000:00:01.0: DPC: containment event, status:0x1f01 source:0x0000\n"
CE, UE = "EDAC MC0: 1 CE memory read error on DIMM 3\n", "EDAC MC0: 1 UE memory read error on DIMM 3\n"
HANDLING = "EDAC sbridge MC0: HANDLING MCE MEMORY ERROR\n"
XID = "NVRM: Xid (PCI:0000:07:00): {}, pid=1\n"


@pytest.mark.parametrize(
    "lines",
    [
        CORRECTED * 4 + LOST + CORRECTED + NONFATAL,
        CORRECTED * 4 + NONFATAL + LOST + CORRECTED,
        LOST + CORRECTED * 9 + NONFATAL,
        CE * 4 + UE + HANDLING,
        CE * 4 + HANDLING + UE + CE,
    ],
)
def test_a_later_finding_removes_no_failure(lines: str) -> None:
    parsed = read(lines.encode(), format="xid")
    assert parsed.verdict is FAIL
    assert {DEGRADED, UNPROVEN} <= {one.verdict for one in parsed.findings}


@pytest.mark.parametrize("verdict", [UNPROVEN, FAIL])
def test_a_finding_with_a_new_code_counts_although_many_codes_were_found(verdict: Verdict) -> None:
    log = _reading.Log()
    log.size = 1
    for number in range(100):
        log.find(f"xid_{number}", "a fault", DEGRADED)
    log.find("pcie_error", "a fault", verdict)
    for number in range(100, 200):
        log.find(f"xid_{number}", "a fault", DEGRADED)
    parsed = log.parsed("lines", PASS, [])
    assert parsed.verdict is verdict
    assert "pcie_error" in codes(parsed)
    assert len(codes(parsed)) == _reading.MAX_CODES


def test_a_remark_with_a_new_code_replaces_no_fault() -> None:
    log = _reading.Log()
    for number in range(_reading.MAX_CODES):
        log.find(f"xid_{number}", "a fault", DEGRADED)
    log.find("damaged_line", "a remark")
    assert "damaged_line" not in log.findings
    assert len(log.findings) == _reading.MAX_CODES


ILLEGAL = "CUDA error: an illegal memory access was encountered"
"""The text of a failure."""


@pytest.mark.parametrize(
    "after",
    [
        ILLEGAL,
        f"{ILLEGAL} {{kernel}}",
        f" {ILLEGAL} {{kernel}} }}",
        f", {ILLEGAL} {{kernel}}",
        f"}} {ILLEGAL} {{kernel}}",
        f"{{kernel}} {ILLEGAL} {{kernel}}",
        f"7: {ILLEGAL} {{}}\r",
    ],
)
@pytest.mark.parametrize("value", [1, "a } b", {"train_loss": 1.5}, ["{", {"a": 1}]])
def test_a_failure_after_an_event_on_its_line_is_found_with_any_braces(after: str, value: Any) -> None:
    line = event("tracked_stats" if isinstance(value, dict) else "some_key", value, 200).rstrip("\n")
    good = read(mllog(line + "\n"))
    assert (good.verdict, good.findings) == (PASS, ())
    parsed = read(mllog(line + after + "\n"))
    assert parsed.verdict is FAIL
    assert read(mllog(line.replace('"namespace"', "'namespace'") + after + "\n")).verdict is FAIL


@pytest.mark.parametrize("value", [f"{ILLEGAL} {{kernel}}", f"{{a}} {ILLEGAL}", {"note": f"}}, {ILLEGAL}"}])
def test_the_text_of_a_failure_inside_an_event_is_no_failure(value: Any) -> None:
    assert read(mllog(event("some_key", value, 200))).verdict is PASS


def test_an_event_with_many_braces_is_read_in_little_time() -> None:
    log = _reading.Log()
    line = event("some_key", "}x" * 300_000, 200).encode()
    log.begin(line)
    started = time.process_time()
    log.scan(line)
    assert time.process_time() - started < 2
    assert not log.marks


# A case has the beginning of a line, as srun, mpirun or another program writes it, and the rank that it
# states.
@pytest.mark.parametrize(
    ("label", "rank"),
    [
        ("3: ", 3),
        (" 12: ", 12),
        ("[1,3]<stdout>:", 3),
        ("[1,3]<stderr>: ", 3),
        ("[prterun-n01-7@1,3]<stdout>: ", 3),
        ("[prterun-n01-7@1,13]<stderr>:", 13),
        ("Mon Nov 23 04:34:18 2026[1,3]<stdout>:", 3),
        ("n01: ", None),
        ("x<stdout>: ", None),
        ("some words, 3: ", None),
        ("", None),
    ],
)
def test_the_rank_of_a_failure_is_that_of_its_label(label: str, rank: int | None) -> None:
    parsed = read(f"{label}CUDA out of memory\n".encode() + mllog())
    ranks = [one.source.rank for one in parsed.findings if one.code == "out_of_memory" and one.source]
    assert ranks == [rank]


def test_several_texts_of_a_failure_on_one_line_count_once() -> None:
    line = f"RuntimeError: {ILLEGAL}\n"
    for lines in (1, 4):
        parsed = read(mllog(*[line] * lines, status=None))
        messages = [one.message for one in parsed.findings if ILLEGAL in one.excerpt]
        assert len(messages) >= lines
        assert not [message for message in messages if "more" in message]
    parsed = read(mllog(*[line] * 7, status=None))
    assert [one.message for one in parsed.findings if "(2 more, the last in line " in one.message]
