"""Test that a log does not pass if a part of it is missing or impossible, although it reports success.

A log may have been edited to hide a failure or to claim a better speed. Most tests make one such change in a
passing log of MLPerf, nccl-tests, gpu_burn, tf_cnn_benchmarks, MXNet, perftest or nvbandwidth: they remove an
evaluation, a row or a GPU, or replace a figure. They check the verdict of :func:`rackproof.logs.parse` and
the code of the finding. Most of the logs are real ones of tests/data/real.
"""

from __future__ import annotations

import json
import lzma
import random
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from rackproof import logs
from rackproof.core.records import Verdict
from rackproof.logs._nccl_checks import count_sizes
from tests.logs.log_samples import GPU_BURN, MXNET, NCCL, NVBANDWIDTH, PERFTEST, TF_CNN, mllog, nccl_json

REAL = Path(__file__).parents[1] / "data/real"
PASS, UNPROVEN, FAIL = Verdict.PASS, Verdict.UNPROVEN, Verdict.FAIL

LORA = "mlperf-5.1/lambda-gb300-n18/llama2_70b_lora/result_1.txt.xz"
LLAMA = "mlperf-5.1/lambda-gb300-n18/llama31_8b/result_1.txt.xz"
FLUX = "mlperf-5.1/flux1-sample/result_1.txt.xz"
MASK = "mlperf-0.6/maskrcnn/DGX1.log"
SSD = "mlperf-0.6/single_stage_detector/DGX1.log.xz"
RESNET = "mlperf-0.6/resnet/DGX1.log.xz"
GNMT = "mlperf-0.6/gnmt/DGX1.log"
TRANSFORMER = "mlperf-0.6/translation/DGX1.log"
B200, A100, ALLTOALL = (
    f"nccl/{name}.txt" for name in ("b200-8gpu-all_reduce", "a100-8gpu-all_reduce", "alltoall")
)
BURN = "tools/gpu_burn.log.xz"
SIZES = "tools/ib_loopback_all_sizes.log"
TF = "tf_cnn/resnet50-fp32-4gpu.log"
DIGITS = "mxnet/mxnet_lenet_digits.log"

Change = Callable[[bytes], bytes]


def read(name: str) -> bytes:
    """Return a log of tests/data/real, decompressed."""
    data = (REAL / name).read_bytes()
    return lzma.decompress(data) if name.endswith(".xz") else data


def judged(data: bytes, name: str = "") -> tuple[Verdict, set[str]]:
    """Return a log's verdict, and the codes of the findings that have a verdict."""
    parsed = logs.parse(BytesIO(data), name=name)
    return parsed.verdict, {one.code for one in parsed.findings if one.verdict is not None}


def lines_with(*texts: bytes, first: int = 0, count: int = 1) -> Change:
    """Return a change that removes ``count`` of the lines with all texts, beginning with number ``first``."""

    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        places = [at for at, line in enumerate(lines) if all(text in line for text in texts)]
        gone = set(places[first : first + count] if first >= 0 else places[first:][:count])
        assert gone, texts
        return b"".join(line for at, line in enumerate(lines) if at not in gone)

    return change


def swap(old: bytes, new: bytes, count: int = 1) -> Change:
    """Return a change that replaces a pattern, which must occur. With ``count`` 0, it replaces all."""

    def change(data: bytes) -> bytes:
        assert re.search(old, data), old
        return re.sub(old, new, data, count=count)

    return change


def cut(first: float, number: int) -> Change:
    """Return a change that removes lines, beginning at a share of the way from run_start to run_stop."""

    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        begin = next(at for at, line in enumerate(lines) if b"run_start" in line)
        end = next(at for at, line in enumerate(lines) if b"run_stop" in line)
        at = begin + 1 + round(first * (end - begin))
        assert at + number < end
        return b"".join(lines[:at] + lines[at + number :])

    return change


def shifted(text: bytes, factor: float) -> Change:
    """Return a change that multiplies the numbers after a text."""

    def change(data: bytes) -> bytes:
        assert text in data
        return re.sub(
            re.escape(text) + rb"([0-9.e+-]+)",
            lambda found: text + repr(float(found[1]) * factor).encode(),
            data,
        )

    return change


MLPERF: list[tuple[str, Change, Verdict, str]] = [
    # The target is missing, which all logs of this submitter's code state.
    (LORA, lines_with(b'"target_accuracy"'), UNPROVEN, "no_target"),
    (LLAMA, lines_with(b'"target_accuracy"'), UNPROVEN, "no_target"),
    (FLUX, lines_with(b'"target_accuracy"'), UNPROVEN, "no_target"),
    # Values that no run can have.
    (LORA, swap(rb'("eval_accuracy", "value": )0\.92\d*', rb"\g<1>0.0"), UNPROVEN, "impossible_value"),
    (LORA, swap(rb'("eval_accuracy", "value": )0\.\d*', rb"\g<1>1e-9"), UNPROVEN, "impossible_value"),
    (LLAMA, swap(rb'("eval_accuracy", "value": )[\d.]+', rb"\g<1>0.0"), UNPROVEN, "impossible_value"),
    (LLAMA, swap(rb'("eval_accuracy", "value": )[\d.]+', rb"\g<1>-3.1"), UNPROVEN, "impossible_value"),
    (LLAMA, swap(rb'("eval_accuracy", "value": )[\d.]+', rb"\g<1>1e30"), UNPROVEN, "impossible_value"),
    (LLAMA, swap(rb'(reduced_train_loss": )[\d.]+', rb"\g<1>1e30"), UNPROVEN, "impossible_value"),
    (FLUX, swap(rb'("eval_accuracy", "value": )[\d.]+', rb"\g<1>0.1"), UNPROVEN, "impossible_value"),
    (MASK, swap(rb'("BBOX": )0\.37\d*', rb"\g<1>0.97"), UNPROVEN, "impossible_value"),
    (SSD, swap(rb'(eval_accuracy: \{"value": )0\.23\d*', rb"\g<1>0.93"), UNPROVEN, "impossible_value"),
    (GNMT, swap(rb'(eval_accuracy: \{"value": )24\.\d*', rb"\g<1>94.1"), UNPROVEN, "impossible_value"),
    # Progress that runs backwards, stands still, or jumps.
    (LORA, swap(rb'(eval_accuracy".*"samples_count": )2\d\d\d', rb"\g<1>100"), UNPROVEN, "course_incomplete"),
    (
        LLAMA,
        swap(rb'(eval_accuracy".*"samples_count": )24624', rb"\g<1>12312"),
        UNPROVEN,
        "course_incomplete",
    ),
    (
        FLUX,
        swap(rb'(eval_accuracy".*"samples_count": )\d+', rb"\g<1>99000000"),
        UNPROVEN,
        "course_incomplete",
    ),
    (MASK, swap(rb'(eval_accuracy: .*"epoch_num": )5', rb"\g<1>3"), UNPROVEN, "course_incomplete"),
    (GNMT, swap(rb'(eval_accuracy: .*"epoch_num": )2', rb"\g<1>1"), UNPROVEN, "course_incomplete"),
    (SSD, swap(rb'(epoch_start: .*"epoch_num": )20\b', rb"\g<1>18"), UNPROVEN, "course_incomplete"),
    # Halves of pairs, evaluations or epochs are missing.
    (LORA, lines_with(b'"block_stop"', first=2), UNPROVEN, "course_incomplete"),
    (LORA, lines_with(b'"eval_start"', first=1), UNPROVEN, "course_incomplete"),
    (LLAMA, lines_with(b'"block_start"', first=3), UNPROVEN, "course_incomplete"),
    (LLAMA, lines_with(b'"block_stop"', first=-1), UNPROVEN, "course_incomplete"),
    (LLAMA, lines_with(b'"eval_accuracy"', first=4), UNPROVEN, "course_incomplete"),
    (LLAMA, lines_with(b'"eval_accuracy"', first=0), UNPROVEN, "course_incomplete"),
    (FLUX, lines_with(b'"eval_stop"', first=2), UNPROVEN, "course_incomplete"),
    (FLUX, lines_with(b'"eval_accuracy"', first=2, count=3), UNPROVEN, "course_incomplete"),
    (LLAMA, lines_with(b'"train_step_time"', first=40, count=3), UNPROVEN, "course_incomplete"),
    (MASK, lines_with(b"eval_accuracy", first=5), UNPROVEN, "course_incomplete"),
    (SSD, lines_with(b"epoch_start", first=20, count=2), UNPROVEN, "course_incomplete"),
    (SSD, lines_with(b"epoch_stop", first=30), UNPROVEN, "course_incomplete"),
    (RESNET, lines_with(b"eval_accuracy", first=5), UNPROVEN, "course_incomplete"),
    (RESNET, lines_with(b"block_start", first=5), UNPROVEN, "course_incomplete"),
    (GNMT, lines_with(b"eval_accuracy", first=1), UNPROVEN, "course_incomplete"),
    (TRANSFORMER, lines_with(b"block_stop", first=1), UNPROVEN, "course_incomplete"),
    # Many lines are missing.
    (LORA, cut(0.4, 20), UNPROVEN, "course_incomplete"),
    (LLAMA, cut(0.3, 100), UNPROVEN, "course_incomplete"),
    (LLAMA, cut(0.61, 100), UNPROVEN, "course_incomplete"),
    (FLUX, cut(0.1, 60), UNPROVEN, "course_incomplete"),
    (SSD, cut(0.5, 100), UNPROVEN, "course_incomplete"),
    (RESNET, cut(0.5, 100), UNPROVEN, "course_incomplete"),
    # A throughput that the training did not have.
    (LLAMA, shifted(b'"train_step_time": ', 0.1), UNPROVEN, "steps_contradict"),
    (FLUX, shifted(b'"train_step_time": ', 0.25), UNPROVEN, "steps_contradict"),
]
"""Log of a training, change, and the verdict and code that result."""


@pytest.mark.parametrize(("name", "change", "verdict", "code"), MLPERF)
def test_an_incomplete_or_impossible_log_of_a_training_does_not_pass(
    name: str, change: Change, verdict: Verdict, code: str
) -> None:
    data = read(name)
    assert judged(data)[0] is PASS
    found, codes = judged(change(data))
    assert (found, code in codes) == (verdict, True), codes


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", [LORA, LLAMA, FLUX])
def test_a_cut_that_removes_the_beginning_or_end_of_a_part_is_found(name: str, seed: int) -> None:
    lines = read(name).splitlines(keepends=True)
    course = re.compile(rb'"(?:block_st|eval_st|eval_acc)')
    begin = next(at for at, line in enumerate(lines) if b"run_start" in line)
    end = next(at for at, line in enumerate(lines) if b"run_stop" in line)
    chance = random.Random(f"{name}/{seed}")
    places = [at for at in range(begin + 1, end - 30) if course.search(lines[at])]
    at = chance.choice(places)
    found, codes = judged(b"".join(lines[:at] + lines[at + chance.randint(1, 25) :]))
    assert found in (UNPROVEN, FAIL), codes


def test_a_training_of_no_mlperf_benchmark_has_other_rules() -> None:
    own = mllog(final=0.5).replace(b"llama2_70b_lora", b"my_model").replace(b"3072", b"9216")
    more = own.replace(b'"run_stop"', b'"eval_start"', 1) + own.splitlines()[-1]
    assert judged(more)[0] is PASS
    assert judged(own.replace(b'"train_loss": 1.5', b'"train_loss": 1e30'))[0] is PASS


NCCL_CASES: list[tuple[str, Change, str]] = [
    # Time, size and bandwidths contradict each other.
    (B200, swap(rb" 180\.6 ", b" 90.30 "), "busbw_contradicts"),
    (B200, swap(rb"(?m)^    40160460 ", b"    80320920 "), "busbw_contradicts"),
    (B200, swap(rb"222\.42  389\.23", b"230.42  403.23"), "busbw_contradicts"),
    (A100, swap(rb"131\.59  230\.29", b"131.59  229.29"), "busbw_contradicts"),
    (A100, swap(rb" 63896 ", b" 31948 "), "busbw_contradicts"),
    (ALLTOALL, swap(rb"256\.36  224\.31", b"512.72  448.62"), "busbw_contradicts"),
    # The average contradicts the rows.
    (B200, swap(rb"397\.767", b"797.767"), "average_contradicts"),
    (A100, swap(rb"68\.4048", b"70.4048"), "average_contradicts"),
    (ALLTOALL, swap(rb"58\.6481", b"0.6481"), "average_contradicts"),
    # A row is missing.
    (A100, lines_with(b"  4294967296  "), "rows_missing"),
    (A100, lines_with(b"     1048576        262144 "), "rows_missing"),
    (ALLTOALL, lines_with(b"      524288         16384 "), "rows_missing"),
    (B200, swap(rb"maxBytes 40160460", b"maxBytes 41209036"), "rows_missing"),
    # A rank is missing, or the ranks share a GPU or have unlike GPUs.
    (B200, lines_with(b"Rank  3 "), "devices_contradict"),
    (B200, lines_with(b"Rank  7 "), "devices_contradict"),
    (A100, lines_with(b"Rank  0 "), "devices_contradict"),
    (B200, swap(rb"device  5 \[0xc0\]", b"device  4 [0x9c]"), "devices_contradict"),
    (A100, swap(rb"device  2 ", b"device  1 "), "devices_contradict"),
    (B200, swap(rb"(\[0x53\]) NVIDIA B200", rb"\1 NVIDIA A100-SXM4-80GB"), "devices_contradict"),
    (ALLTOALL, swap(rb"(device  6 \[0x00\]) A100-SXM4-40GB", rb"\1 V100-SXM2-32GB"), "devices_contradict"),
]
"""Log of nccl-tests, change, and the code that results."""


@pytest.mark.parametrize(("name", "change", "code"), NCCL_CASES)
def test_a_table_of_nccl_tests_that_contradicts_itself_is_unproven(
    name: str, change: Change, code: str
) -> None:
    data = read(name)
    assert judged(data, name)[0] is PASS
    found, codes = judged(change(data), name)
    assert (found, code in codes) == (UNPROVEN, True), codes


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("[0x40]", "[0000:1b:00]", ""),
        ("device  1 [0x40]", "device  0 [0x1b]", "devices_contradict"),
        (
            "Pid 297822 on sys-a21ge-nbrt device  1 [0x40]",
            "Pid 297823 on sys-a21ge-nbrt device  0 [0x1b]",
            "devices_contradict",
        ),
        ("Pid 297822 on sys-a21ge-nbrt device  1 [0x40]", "Pid 7 on another device  0 [0x1b]", ""),
    ],
)
def test_two_ranks_on_one_gpu_are_found_by_their_place_or_process(old: str, new: str, code: str) -> None:
    data = read(B200)
    assert old.encode() in data
    found, codes = judged(data.replace(old.encode(), new.encode()), B200)
    assert codes == ({code} if code else set())
    assert found is (UNPROVEN if code else PASS)


def test_processes_of_a_grace_host_may_show_one_place_for_their_gpus() -> None:
    # A GB200 has equal numbers of buses in two domains. A process that sees one GPU calls it device 0.
    data = read(B200).replace(b"NVIDIA B200", b"NVIDIA GB200")
    old, new = (
        b"Pid 297822 on sys-a21ge-nbrt device  1 [0x40]",
        b"Pid 297823 on sys-a21ge-nbrt device  0 [0x1b]",
    )
    assert old in data
    assert "devices_contradict" not in judged(data.replace(old, new), B200)[1]


def test_two_ranks_at_one_place_with_its_domain_are_on_one_gpu() -> None:
    data = re.sub(rb"\[0x(..)\]", rb"[0000:\1:00]", read(B200))
    assert judged(data, B200)[0] is PASS
    again = data.replace(
        b"Pid 297822 on sys-a21ge-nbrt device  1 [0000:40:00]",
        b"Pid 9 on sys-a21ge-nbrt device  0 [0000:1b:00]",
    )
    assert judged(again, B200) == (UNPROVEN, {"devices_contradict"})


# Smallest and largest size in bytes, the step, and whether the step is a factor.
@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ((8, 128, 2, True), 5),
        ((8, 100, 2, True), 4),
        ((8, 8, 2, True), 1),
        ((10, 50, 10, False), 5),
        ((1, 0, 2, True), 0),
    ],
)
def test_the_sizes_that_a_run_goes_through_are_counted(sizes: tuple[int, int, int, bool], count: int) -> None:
    *of, is_factor = sizes
    assert count_sizes(*of, is_factor=is_factor) == count


def listing(*devices: tuple[int, str]) -> dict[str, object]:
    """Return the list of devices in the JSON of nccl-tests."""
    return {"devices": [{"rank": rank, "device_info": name} for rank, name in devices]}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"average_bus_bandwidth": {"bandwidth": 400.0, "okay": "true"}}, "average_contradicts"),
        ({"config": listing((0, "H200"), (2, "H200"))}, "devices_contradict"),
        ({"config": listing((1, "H200"))}, "devices_contradict"),
        ({"config": listing((0, "H200"), (1, "A100"))}, "devices_contradict"),
    ],
)
def test_json_of_nccl_tests_that_contradicts_itself_is_unproven(change: dict[str, object], code: str) -> None:
    found, codes = judged(nccl_json(**change))
    assert (found, code in codes) == (UNPROVEN, True), codes


def test_a_time_in_json_that_contradicts_its_bandwidth_is_unproven() -> None:
    document = json.loads(nccl_json())
    document["results"][0]["out_of_place"]["time"] = 1.0
    assert judged(json.dumps(document).encode()) == (UNPROVEN, {"busbw_contradicts"})


def last_progress(change: Change) -> Change:
    """Return a change of gpu_burn's last progress line and of the lines after it."""

    def changed(data: bytes) -> bytes:
        at = max(data.rfind(b"\n100.0%"), data.rfind(b"\r100.0%"))
        return data[: at + 1] + change(data[at + 1 :])

    return changed


def without(row: bytes, total: bytes, new: bytes) -> Change:
    """Return a change that removes a row of a matrix, and adapts the sum."""
    return lambda data: lines_with(row)(data).replace(total, new)


TOOLS: list[tuple[bytes, Change, Verdict, str]] = [
    (GPU_BURN, swap(rb"100\.0%", b"55.0%"), UNPROVEN, "cut_off"),
    (GPU_BURN, lines_with(b"100.0%"), UNPROVEN, "cut_off"),
    (read(BURN), swap(rb"100\.0%", b"99.4%", 0), UNPROVEN, "cut_off"),
    (GPU_BURN, swap(rb"\(16842 Gflop", b"(12842 Gflop"), Verdict.DEGRADED, "gpu_slow"),
    (GPU_BURN, swap(rb"\(16942 Gflop", b"(1694 Gflop"), FAIL, "gpu_slow"),
    (read(BURN), last_progress(swap(rb"\(\d+ Gflop", b"(7000 Gflop")), FAIL, "gpu_slow"),
    (TF_CNN, swap(rb"Num batches: 100", b"Num batches: 1000"), UNPROVEN, "rows_missing"),
    (TF_CNN, swap(rb"Num batches: 100", b"Num batches: 50"), UNPROVEN, "rows_missing"),
    (read(TF), lines_with(b"images/sec: 1281.0"), UNPROVEN, "rows_missing"),
    (read(TF), lines_with(b"images/sec: 12", first=9, count=2), UNPROVEN, "rows_missing"),
    (read(TF), swap(rb"(?m)^50\t", b"20\t"), UNPROVEN, "rows_missing"),
    (TF_CNN, lines_with(b"1\timages/sec: 325.8"), UNPROVEN, "rows_missing"),
    (read(TF), lines_with(b"images/sec: ", count=2), UNPROVEN, "rows_missing"),
    (MXNET, lines_with(b"Epoch[0]", count=5), UNPROVEN, "rows_missing"),
    (MXNET, lines_with(b"Epoch[1] Batch"), UNPROVEN, "rows_missing"),
    (read(DIGITS), lines_with(b"Epoch[2] Batch", count=99), UNPROVEN, "rows_missing"),
    (read(DIGITS), lines_with(b"Epoch[0] Batch", count=99), UNPROVEN, "rows_missing"),
    (GPU_BURN, swap(rb"0   temps: 58", b"0   xemps: 58"), UNPROVEN, "damaged_line"),
    (GPU_BURN, swap(rb"errors: 0 - 0   temps: 58.*", b"errors: 5 - 0"), UNPROVEN, "damaged_line"),
    (GPU_BURN, swap(rb"errors: 0 - 0   temps: 58", b"errrs: 5 - 0   temps: 58"), UNPROVEN, "damaged_line"),
    (GPU_BURN, swap(rb"errors: 0 - 0   temps: 58", b"errors: 0   temps: 58"), UNPROVEN, "damaged_line"),
    (GPU_BURN, swap(rb"6783 \(16842 Gflop", b"6783 (16842 Gfxop"), UNPROVEN, "damaged_line"),
    (
        GPU_BURN,
        swap(rb"errors: 0 - 0   temps: 38", b"errors: 0 - 0 - 0   temps: 38"),
        UNPROVEN,
        "damaged_line",
    ),
    (read(BURN), last_progress(swap(rb"temps", b"tempx")), UNPROVEN, "damaged_line"),
    (read(BURN), last_progress(swap(rb"errors: 0 - 0 ", b"errors: 0 ")), UNPROVEN, "damaged_line"),
    (GPU_BURN, swap(rb"GPU 1: OK", b"GPU 9: OK"), UNPROVEN, "gpu_missing"),
    (GPU_BURN, swap(rb"\tGPU 0: OK", b"\tGPU 2: OK"), UNPROVEN, "gpu_missing"),
    (read(BURN), swap(rb"GPU 0: OK", b"GPU 8: OK"), UNPROVEN, "gpu_missing"),
    (GPU_BURN, swap(rb"temps: 58 C", b"temps: 0 C"), UNPROVEN, "impossible_value"),
    (GPU_BURN, swap(rb"38 C - 39 C", b"38 C - 0 C"), UNPROVEN, "impossible_value"),
    (read(BURN), last_progress(swap(rb"temps: \d+ C", b"temps: 0 C")), UNPROVEN, "impossible_value"),
    (MXNET, swap(rb"Batch \[50-100\]", b"Batch [50-40]"), UNPROVEN, "rows_missing"),
    (read(DIGITS), lines_with(b"Epoch[3]", count=99), UNPROVEN, "rows_missing"),
    (read(DIGITS), lines_with(b"Epoch[2] Batch [5-10]"), UNPROVEN, "rows_missing"),
    (PERFTEST, swap(rb"65536      5000", b"65536      0   "), UNPROVEN, "impossible_value"),
    (read(SIZES), swap(rb"(?m)^(1024 +)\d+", rb"\g<1>0"), UNPROVEN, "impossible_value"),
    (read(SIZES), lines_with(b"2048       2000"), UNPROVEN, "rows_missing"),
    (read(SIZES), lines_with(b"4194304    "), UNPROVEN, "rows_missing"),
    (read(SIZES), lines_with(b"2          2000"), UNPROVEN, "rows_missing"),
    (NVBANDWIDTH, without(b" 1    396", b" 790.00", b" 394.00"), UNPROVEN, "rows_missing"),
    (NVBANDWIDTH, without(b" 0       N/A", b" 790.00", b" 396.00"), UNPROVEN, "rows_missing"),
    (NVBANDWIDTH, swap(rb" 790\.00", b" 795.00"), UNPROVEN, "sum_mismatch"),
    (NVBANDWIDTH, swap(rb"         0         1\n", b"         0         2\n"), UNPROVEN, "rows_missing"),
    (NVBANDWIDTH, lines_with(b"Device 1"), UNPROVEN, "devices_contradict"),
    (NVBANDWIDTH, lines_with(b"Device 0"), UNPROVEN, "gpu_missing"),
    (NVBANDWIDTH, lines_with(b"Device", count=2), UNPROVEN, "devices_contradict"),
    (NVBANDWIDTH, swap(rb"Device 1: NVIDIA H200", b"Device 1: NVIDIA H100"), UNPROVEN, "gpus_unlike"),
]
"""Log of a tool, change, and the verdict and code that result."""


def unchecked(data: bytes, *places: int) -> bytes:
    """Return a table of nccl-tests whose rows have N/A as the number of wrong values.

    ``places`` are 0 for out of place, 1 for in place.
    """

    def row(found: re.Match[bytes]) -> bytes:
        cells = [b"  N/A" if at in places else found[2 * at + 2] for at in (0, 1)]
        return found[1] + cells[0] + found[3] + cells[1]

    changed, count = re.subn(rb"(?m)^( +\d+ +\d+ +\w+ .*?)( +0)((?: +[\d.]+){3})( +0)(?= *$)", row, data)
    assert count
    return changed


@pytest.mark.parametrize("data", [NCCL, NCCL.replace(b"validation: 1", b"validation: 4"), read(B200)])
def test_values_that_were_not_checked_as_requested_are_unproven(data: bytes) -> None:
    assert judged(data) == (PASS, set())
    assert judged(unchecked(data, 0, 1)) == (UNPROVEN, {"not_checked"})
    assert judged(unchecked(data, 0)) == (UNPROVEN, {"not_checked"})
    # Some collectives are never checked in place.
    assert judged(unchecked(data, 1)) == (PASS, set())


@pytest.mark.parametrize(("data", "change", "verdict", "code"), TOOLS)
def test_incomplete_or_impossible_output_of_a_tool_does_not_pass(
    data: bytes, change: Change, verdict: Verdict, code: str
) -> None:
    assert judged(data)[0] is PASS
    found, codes = judged(change(data))
    assert (found, code in codes) == (verdict, True), codes


def test_separate_runs_with_one_size_each_are_complete() -> None:
    sizes = [
        PERFTEST.replace(b"65536", b"%d" % size).replace(b"0.751895", b"%.6f" % (394.2e3 / 8 / size))
        for size in (65536, 4194304, 8388608)
    ]
    assert judged(b"done\n".join(sizes))[0] is PASS


def test_a_training_may_begin_with_a_later_epoch_only_if_it_loads_one() -> None:
    later = MXNET.replace(b"Epoch[1]", b"Epoch[8]").replace(b"Epoch[0]", b"Epoch[7]")
    asked = later.replace(b"num_epochs=2", b"load_epoch=7, num_epochs=9")
    assert judged(asked)[0] is PASS
    assert judged(later.replace(b"num_epochs=2", b"num_epochs=9"))[0] is UNPROVEN


def test_gpus_of_two_models_are_not_compared() -> None:
    mixed = GPU_BURN.replace(b"GPU 1: NVIDIA H200", b"GPU 1: NVIDIA A2").replace(b"(16842", b"(842")
    assert judged(mixed)[0] is PASS


@pytest.mark.parametrize("name", [LORA, LLAMA, "mlperf-hard/5.1-crlf-dlrm_dcnv2.txt", FLUX])
def test_a_log_without_most_of_its_evaluations_does_not_pass(name: str) -> None:
    # A missing block leaves a gap between others. If nearly all blocks are missing, there is no such gap.
    data = read(name)
    marks = re.findall(rb'(?m)^.*"key": "eval_accuracy".*\n', data)
    assert len(marks) > 1
    for kept in range(1, min(3, len(marks))):
        thin = data
        for line in marks[:-kept]:
            thin = thin.replace(line, b"", 1)
        assert judged(thin)[0] is not PASS
