"""Test that the log of a tool which ends well but did no work does not pass (tf_cnn_benchmarks, gpu_burn).

The total of tf_cnn_benchmarks must follow from its steps and their times, and gpu_burn must have computed on
each GPU until its end. These tests change speeds, times or headings of a passing log, and check the verdict
of :func:`rackproof.logs.parse`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from tests.logs.log_samples import GPU_BURN, TF_CNN

PASS, UNPROVEN = Verdict.PASS, Verdict.UNPROVEN


def read(data: str | bytes) -> ParsedLog:
    return logs.parse(io.BytesIO(data if isinstance(data, bytes) else data.encode()))


def codes(parsed: ParsedLog) -> set[str]:
    """Return the codes of a log's findings that have a verdict."""
    return {one.code for one in parsed.findings if one.verdict}


# Replacements in the log of one GPU, whose total is 326.58 images/s.
@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ((), PASS),
        ((("326.58", "97974.00"),), UNPROVEN),  # 300 times the speed of the steps
        ((("326.58", "653.16"),), UNPROVEN),  # the total of two GPUs, of which one ran
        ((("326.58", "410.00"),), UNPROVEN),
        ((("326.58", "100.00"),), UNPROVEN),
        ((("326.58", "1.09"),), UNPROVEN),
        ((("326.58", "360.00"),), UNPROVEN),
        ((("326.58", "294.00"),), UNPROVEN),
        ((("326.58", "320.00"),), PASS),
        ((("326.58", "300.00"), ("100\timages", "INFO:tensorflow:Saving checkpoints\n100\timages")), PASS),
        # All speeds are 300 times as high, and the times of the steps are unchanged.
        ((("326.58", "97974.00"), ("325.8 ", "97740.0 "), ("326.7 ", "98010.0 ")), UNPROVEN),
        ((("256 global", "2560 global"), ("256 per", "2560 per")), UNPROVEN),
        # Four workers with one GPU each, as in issue 232 of tensorflow/benchmarks. The total is that of all.
        ((("256 global", "1024 global"), ("256 per", "256.0 per"), ("326.58", "1301.00")), PASS),
        ((("256 global", "1024 global"), ("256 per", "256.0 per"), ("326.58", "3901.00")), UNPROVEN),
    ],
)
def test_a_total_that_contradicts_the_steps_or_their_times_is_unproven(
    changes: tuple[tuple[str, str], ...], verdict: Verdict
) -> None:
    text = TF_CNN.decode()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    parsed = read(text)
    assert parsed.verdict is verdict, codes(parsed)
    assert codes(parsed) == (set() if verdict is PASS else {"total_contradicts_steps"})


@pytest.mark.parametrize(
    ("pattern", "new", "found"),
    [
        (r"(?m)^Model:.*\n", "", {"no_heading"}),
        (r"(?m)^Batch size:.*\n.*per device\n", "", {"no_heading"}),
        (r"(?s)^.*(?=Step\t)", "", {"no_heading"}),
        (r"Num batches:.*\n", "", {"no_heading"}),
        (r"(?s)TensorFlow:.*?\n(.*)Num batches:.*?\n", r"\1", {"no_heading"}),
        (r"(?s)1\.15(.*)Num batches:.*?\n", r"1.4\1Num epochs:  0.02\n", {"no_heading"}),
        (r"\t7\.\d+(?= \d{10})", "\t0.000", {"impossible_value"}),
        (r"326\.58", "0.00", {"impossible_value"}),
        (r"326\.58", "-326.58", {"impossible_value"}),
    ],
)
def test_a_log_without_heading_loss_or_speed_is_unproven(pattern: str, new: str, found: set[str]) -> None:
    text, count = re.subn(pattern, new, TF_CNN.decode())
    parsed = read(text)
    assert count
    assert (parsed.verdict, codes(parsed)) == (UNPROVEN, found)


def test_an_old_heading_without_the_number_of_batches_passes() -> None:
    text = re.sub(r"Num batches:.*\n", "", TF_CNN.decode())
    assert read(text.replace("TensorFlow:  1.15", "TensorFlow:  1.4")).verdict is PASS


def test_a_forward_pass_needs_no_loss() -> None:
    text = re.sub(r"\t7\.\d+(?= \d{10})", "\t0.000", TF_CNN.decode())
    assert read(text.replace("Model: ", "Mode:        forward-only\nModel: ")).verdict is PASS


def at_the_end(text: str, speed: str) -> str:
    """Return gpu_burn's log with another speed of the first GPU in its last progress line."""
    last = text.rindex("proc'd: ")
    return text[:last] + re.sub(r"\(\d+ Gflop", f"({speed} Gflop", text[last:], count=1)


@pytest.mark.parametrize(
    ("change", "verdict", "expected"),
    [
        (lambda text: text, PASS, set()),
        (lambda text: re.sub(r"\(\d+ Gflop", "(0 Gflop", text), UNPROVEN, {"no_work"}),
        (lambda text: re.sub(r"- (\d+) \(\d+ Gflop", r"- \1 (0 Gflop", text), UNPROVEN, {"no_work"}),
        # The first GPU does no work at the end.
        (lambda text: at_the_end(text, "0"), UNPROVEN, {"no_work"}),
        (lambda text: at_the_end(text, "nan"), UNPROVEN, {"no_work"}),
        (lambda text: at_the_end(text, "inf"), UNPROVEN, {"no_work"}),
        (lambda text: at_the_end(text, "-5"), UNPROVEN, {"no_work"}),
        (lambda text: re.sub(r"proc'd: ", "proc'd : ", text), UNPROVEN, {"no_work"}),
    ],
)
def test_a_burn_without_work_is_unproven(
    change: Callable[[str], str], verdict: Verdict, expected: set[str]
) -> None:
    parsed = read(change(GPU_BURN.decode()))
    assert (parsed.verdict, codes(parsed)) == (verdict, expected)


def burn(*counts: tuple[int, int], first: float = 5) -> str:
    """Return the log of a test of two GPUs with these products, in equal parts of the time."""
    lines = GPU_BURN.decode().splitlines(keepends=True)
    step = (100 - first) / (len(counts) - 1)
    progress = [
        f"{first + step * number:.1f}%  proc'd: {one} (50011 Gflop/s) - {two} (49800 Gflop/s)   "
        "errors: 0 - 0   temps: 60 C - 61 C\n"
        for number, (one, two) in enumerate(counts)
    ]
    return "".join(lines[:2] + progress + lines[4:])


STEPS = [(2800 * number, 2800 * number) for number in range(1, 21)]


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        (STEPS, PASS),
        # One GPU stops after a part, or computes nothing for a part, or at all.
        ([(one, min(two, 22400)) for one, two in STEPS], UNPROVEN),
        ([(one, min(two, 42000)) for one, two in STEPS], UNPROVEN),
        ([(min(one, 2800), two) for one, two in STEPS], UNPROVEN),
        ([(one, two if two < 11000 else max(11200, two - 16800)) for one, two in STEPS], UNPROVEN),
        ([(one, 0) for one, _two in STEPS], UNPROVEN),
        ([(0, 0) for _ in STEPS], UNPROVEN),
        ([(2800, 2800), (5600, 2800), (8400, 2800)], UNPROVEN),
        # Rounds of two GPUs end at different times, and a short test has few of them.
        ([(2800, 0), (2800, 2800), (5600, 2800), (5600, 5600), (8400, 5600)], PASS),
        ([(2261, 2261), (4522, 2261)], PASS),
        ([(one - 2800 * (number % 3), two) for number, (one, two) in enumerate(STEPS[3:])], PASS),
    ],
)
def test_a_gpu_that_stops_computing_is_unproven(counts: list[tuple[int, int]], verdict: Verdict) -> None:
    parsed = read(burn(*counts))
    assert (parsed.verdict, codes(parsed)) == (verdict, set() if verdict is PASS else {"no_work"})


def test_an_unknown_temperature_does_not_shift_those_of_other_gpus() -> None:
    text = re.sub(r"temps: \d+ C", "temps: --", GPU_BURN.decode())
    assert text != GPU_BURN.decode()
    whole, lacking = (
        {one.labels["index"]: one.value for one in parsed.measurements if one.name == "gpu_temperature"}
        for parsed in (read(GPU_BURN), read(text))
    )
    assert lacking == {index: value for index, value in whole.items() if index != "0"}
