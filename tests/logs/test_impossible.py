"""Test that a log with an impossible value does not pass, in the formats of MLPerf rounds and of tools.

If an accuracy is above 1, a batch size negative, a key twice in an event, or a GPU twice in a list, the log
was edited or damaged, so it proves nothing. Most tests make one such change in a passing log, and check the
verdict of :func:`rackproof.logs.parse` and the code of the finding. The others check that unusual logs pass.
"""

from __future__ import annotations

import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from rackproof import logs
from rackproof.core.records import Verdict

from .log_samples import MLL06, MLP05, MXNET, NVIDIA_SMI_CSV, NVLINK, TF_CNN, event, mll, mllog, mllog_of


def judged(data: bytes) -> tuple[Verdict, set[str]]:
    """Return a log's verdict, and the codes of the findings that have a verdict."""
    parsed = logs.parse(BytesIO(data))
    return parsed.verdict, {one.code for one in parsed.findings if one.verdict is not None}


# Benchmark, its last evaluation, and the verdict. Accuracies and error rates are fractions. LLMs log a loss,
# which is positive and may exceed 1.
@pytest.mark.parametrize(
    ("trained", "value", "verdict"),
    [
        ("bert", 0.72, Verdict.PASS),
        ("bert", 1.0, Verdict.UNPROVEN),  # the test adds an evaluation of 1.2 before it
        ("dlrm_dcnv2", 1.5, Verdict.UNPROVEN),
        ("unet3d", 91.2, Verdict.UNPROVEN),
        ("ssd", 34.1, Verdict.UNPROVEN),
        ("minigo", 50.2, Verdict.UNPROVEN),
        ("gnn", 1.0001, Verdict.UNPROVEN),
        ("llama2_70b_lora", -0.3, Verdict.UNPROVEN),
        ("llama31_405b", -5.0, Verdict.UNPROVEN),
        ("rnnt", -1e-6, Verdict.UNPROVEN),
        ("llama31_405b", 5.5, Verdict.PASS),
        ("gpt3", 2.6, Verdict.PASS),
    ],
)
def test_a_metric_beyond_its_bounds_is_unproven(trained: str, value: float, verdict: Verdict) -> None:
    extra = [event("eval_accuracy", 1.2, 200, samples_count=500)] if value == 1.0 else []
    actual, codes = judged(mllog_of(trained, value, *extra))
    assert (actual, "impossible_value" in codes) == (verdict, verdict is Verdict.UNPROVEN)


@pytest.mark.parametrize("value", [0, -8, 8.5, "none", float("inf"), [8, 8], None])
@pytest.mark.parametrize("key", ["global_batch_size", "train_samples", "eval_samples"])
def test_a_count_that_is_not_a_positive_whole_number_does_not_pass(key: str, value: Any) -> None:
    verdict, codes = judged(mllog(event(key, value, 200)))
    assert verdict is not Verdict.PASS
    assert codes & {"impossible_value", "nan"}


@pytest.mark.parametrize("value", [3901, "3901", [3901]])
def test_counts_as_submitters_log_them_pass(value: Any) -> None:
    assert judged(mllog(event("train_samples", value, 200)))[0] is Verdict.PASS


@pytest.mark.parametrize(
    "meta", [{"samples_count": -384}, {"samples_count": 0.5}, {"epoch_num": -1}, {"step_num": "many"}]
)
def test_samples_epochs_and_steps_that_are_no_counts_are_unproven(meta: dict[str, Any]) -> None:
    verdict, codes = judged(mllog(event("eval_accuracy", 0.94, 200, **meta)))
    assert (verdict, "impossible_value" in codes) == (Verdict.UNPROVEN, True)


@pytest.mark.parametrize("value", [1.5, 23.05, -0.1])
def test_a_metric_of_round_06_is_bounded_too(value: float) -> None:
    data = MLL06.replace(b"0.2305", str(value).encode())
    assert judged(data)[0] in (Verdict.UNPROVEN, Verdict.FAIL)
    assert "impossible_value" in judged(data)[1]


@pytest.mark.parametrize(
    "line",
    [
        b"Epoch[1] Validation-accuracy=1.983496\n",
        b"Epoch[1] Validation-accuracy=-0.5\n",
        b"Epoch[1] Train-top_k_accuracy_5=98.3\n",
        b"Epoch[1] Train-cross-entropy=-0.2\n",
    ],
)
def test_mxnets_metrics_are_bounded(line: bytes) -> None:
    verdict, codes = judged(MXNET.replace(b"Epoch[1] Valid", line + b"Epoch[1] Valid"))
    assert judged(MXNET)[0] is Verdict.PASS
    assert (verdict, "impossible_value" in codes) == (Verdict.UNPROVEN, True)


@pytest.mark.parametrize("pair", ["1.5 5 = 1.9", "0.9 5 = 0.5", "-0.1 5 = 0.5"])
def test_accuracies_of_tf_cnn_that_are_no_fractions_or_out_of_order_do_not_pass(pair: str) -> None:
    first, fifth = pair.split(" 5 = ")
    line = f"Accuracy @ 1 = {first} Accuracy @ 5 = {fifth} [50000 examples]\n".encode()
    assert judged(TF_CNN + line)[0] is not Verdict.PASS


TWICE = (
    ('"key": "eval_accuracy", "value": 0.92', '"key": "eval_accuracy", "value": 0.99, "value": 0.92'),
    ('"key": "eval_accuracy"', '"key": "eval_accuracy", "key": "eval_accuracy"'),
    ('"status": "success"', '"status": "aborted", "status": "success"'),
    ('"value": "llama2_70b_lora"', '"value": "bert", "value": "llama2_70b_lora"'),
    ('"key": "run_stop"', '"time_ms": 1, "key": "run_stop"'),
    ('"key": "global_batch_size", "value": 8', '"key": "global_batch_size", "value":16, "value" : 8'),
)
"""Text of an event, and the same text with a key twice."""


@pytest.mark.parametrize(("old", "new"), TWICE)
@pytest.mark.parametrize("tail", ["", " and more"])  # text of another process after the event
def test_an_event_with_a_key_twice_is_damaged(old: str, new: str, tail: str) -> None:
    good = mllog(final=0.92).decode()
    assert old in good
    lines = [
        line.replace(old, new) + tail if old in line and ":::" in line else line for line in good.split("\n")
    ]
    verdict, codes = judged("\n".join(lines).encode())
    assert (verdict, "key_twice" in codes) == (Verdict.UNPROVEN, True)


def test_equal_keys_inside_a_value_do_not_count_as_a_key_twice() -> None:
    value = {"value": {"key": 1, "a": {"b": [{"key": 2}, {"key": 2}]}}, "note": 'a "value": in words'}
    assert judged(mllog(event("opt_name", json.loads(json.dumps(value)), 200)))[0] is Verdict.PASS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"key": "eval_accuracy", "value": 0.92', '"key": "eval_accuracy", "value": 0.99, "value": 0.92'),
        ('"status": "success"', '"status": "aborted", "status": "success"'),
        ('"value": "llama2_70b_lora"', '"value": "bert", "value": "llama2_70b_lora"'),
    ],
)
def test_an_event_in_single_quotes_with_a_key_twice_is_damaged(old: str, new: str) -> None:
    lines = mllog(final=0.92).decode().split("\n")
    quoted = [one.replace('"', "'") if old in one else one for one in lines]
    assert quoted != lines
    assert judged("\n".join(quoted).encode())[0] is Verdict.PASS
    twice = [one.replace(old, new).replace('"', "'") if old in one else one for one in lines]
    verdict, codes = judged("\n".join(twice).encode())
    assert (verdict, "key_twice" in codes) == (Verdict.UNPROVEN, True)


@pytest.mark.parametrize(
    "change",
    [
        ('"train_loss": 1.5', '"train_loss": 9.5, "train_loss": 1.5'),
        ('"key": "tracked_stats"', '"key": "eval_accuracy", "key": "tracked_stats"'),
        ('"value": {', '"value": 0.2, "value": {'),
    ],
)
def test_statistics_with_a_key_twice_are_damaged(change: tuple[str, str]) -> None:
    line = event("tracked_stats", {"train_loss": 1.5, "throughput": 10.2}, 200)
    assert change[0] in line
    assert judged(mllog(line))[0] is Verdict.PASS
    verdict, codes = judged(mllog(line.replace(*change)))
    assert (verdict, "key_twice" in codes) == (Verdict.UNPROVEN, True)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('"value": 0.74982', '"value": 0.2, "value": 0.74982', "key_twice"),
        ('"success": true', '"success": false, "success": true', "key_twice"),
        ('{"epoch": 59, "value": 0.74982}', "{'epoch': 59, 'value': 0.2, 'value': 0.74982}", "key_twice"),
        ("0.74982", "1.74982", "impossible_value"),
        ("0.74982", "74.982", "impossible_value"),
    ],
)
def test_round_05_has_the_same_bounds(old: str, new: str, code: str) -> None:
    verdict, codes = judged(MLP05.replace(old.encode(), new.encode()))
    assert judged(MLP05)[0] is Verdict.PASS
    assert (verdict, code in codes) == (Verdict.UNPROVEN, True)


@pytest.mark.parametrize(
    ("name", "good", "bad"), [("resnet", 0.749, 0.7489), ("gnmt", 21.799999, 21.7), ("ncf", 0.635, 0.63)]
)
def test_round_05_has_targets(name: str, good: float, bad: float) -> None:
    text = MLP05.replace(b" resnet ", f" {name} ".encode())
    assert judged(text.replace(b"0.74982", str(good).encode()))[0] is Verdict.PASS
    assert "target_not_reached" in judged(text.replace(b"0.74982", str(bad).encode()))[1]


@pytest.mark.parametrize("change", ['"value": 0.2305, "value"', '"value": 1, "metadata": {}, "value"'])
def test_an_event_of_round_06_with_a_key_twice_is_damaged(change: str) -> None:
    line = mll("eval_accuracy", 0.2305, 601, epoch_num=49).replace('"value"', change).encode()
    stop = mll("run_stop", None, 610, status="success").encode()
    assert stop in MLL06
    assert judged(MLL06.replace(stop, line + stop))[1] >= {"key_twice"}


@pytest.mark.parametrize(
    ("data", "old", "new"),
    [
        (NVLINK, b"0002", b"0001"),
        (NVLINK, b"GPU 1:", b"GPU 0:"),
        (NVLINK, b"Link 1:", b"Link 0:"),
        (NVIDIA_SMI_CSV, b"0002", b"0001"),
        (NVIDIA_SMI_CSV, b"\n1, N", b"\n0, N"),
        (NVIDIA_SMI_CSV.replace(b"uuid", b"pci.bus_id"), b"0002", b"0001"),
    ],
)
def test_a_table_that_lists_a_gpu_or_link_twice_is_unproven(data: bytes, old: bytes, new: bytes) -> None:
    assert judged(data)[0] is Verdict.PASS
    verdict, codes = judged(data.replace(old, new))
    assert (verdict, "gpu_twice" in codes) == (Verdict.UNPROVEN, True)


def test_a_query_in_a_loop_may_list_each_gpu_again_but_only_at_another_time() -> None:
    rows = "".join(
        f"2024/01/31 12:00:{second:02}.{gpu:03}, {gpu}, 31, 77.49 W\n"
        for second in range(5)
        for gpu in range(4)
    )
    data = "timestamp, index, temperature.gpu, power.draw [W]\n" + rows
    assert judged(data.encode())[0] is Verdict.PASS
    assert judged((data + rows.splitlines()[-1] + "\n").encode())[0] is Verdict.UNPROVEN


@pytest.mark.parametrize("year", [1843, 1970, 2017, 2300])
def test_a_run_in_a_year_before_mlperf_or_in_the_future_gets_a_remark(year: int) -> None:
    # Milliseconds. A year has 365.2425 days of 86,400,000 ms.
    moved = (year - 2023) * 365_2425 * 8_640
    data = re.sub(rb'(?<="time_ms": )\d+', lambda ms: b"%d" % (int(ms[0]) + moved), mllog())
    codes = {one.code: one.verdict for one in logs.parse(BytesIO(data)).findings}
    # A log after 2024 must have the events of all published logs of its benchmark. The sample lacks some.
    assert codes.pop("course_incomplete", None) is (Verdict.UNPROVEN if year > 2024 else None)
    assert codes == {one.code: one.verdict for one in logs.parse(BytesIO(mllog())).findings} | {
        "wrong_year": None
    }


@pytest.mark.parametrize("factor", [1e-3, 1e3, 1e6])
@pytest.mark.parametrize("sample", [mllog(), mllog_of("bert", 0.72), mllog_of("resnet", 0.76)])
def test_a_log_whose_times_are_not_in_milliseconds_is_unproven(sample: bytes, factor: float) -> None:
    data = re.sub(rb'(?<="time_ms": )\d+', lambda ms: b"%d" % (int(ms[0]) * factor), sample)
    verdict, codes = judged(data)
    assert (verdict is Verdict.UNPROVEN, "wrong_year" in codes) == (True, True)


A100 = (Path(__file__).parents[1] / "data" / "real" / "nvidia-smi" / "qx-a100.xml").read_bytes()


@pytest.mark.parametrize(
    "line",
    [
        b"Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system",
        b"Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error",
        b"Unable to determine the device handle for GPU1: 0000:3B:00.0: Not Found",
        b"Failed to initialize NVML: Driver/library version mismatch",
        b"No devices were found",
        b"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    ],
)
@pytest.mark.parametrize("data", [A100, NVIDIA_SMI_CSV], ids=["xml", "csv"])
def test_an_error_line_above_the_output_of_nvidia_smi_is_a_lost_gpu(data: bytes, line: bytes) -> None:
    assert judged(data)[0] is Verdict.PASS
    verdict, codes = judged(line + b"\n" + data)
    assert (verdict, "gpu_lost" in codes) == (Verdict.FAIL, True)


def test_an_xml_that_lists_gpus_twice_is_unproven() -> None:
    begin, end = A100.index(b"<gpu id="), A100.rindex(b"</gpu>") + len(b"</gpu>")
    gpus = A100[begin:end]
    attached = re.search(rb"<attached_gpus>(\d+)", A100)
    assert attached
    count = int(attached[1])
    twice = A100.replace(gpus, gpus + b"\n" + gpus)
    twice = twice.replace(attached[0], b"<attached_gpus>%d" % (2 * count))
    verdict, codes = judged(twice)
    assert (verdict, "gpu_twice" in codes) == (Verdict.UNPROVEN, True)
