"""Test the parser of a program's plain output (:mod:`rackproof.logs.plain_lines`).

A benchmark's definition may have patterns for the program's good end, its failures and its metrics
(``result.lines``), so that job bench can judge a program without a parser of its own. These tests check which
lines count. They also check that an output does not pass if the program failed, or if the output was cut off
or has a number that is impossible or was read only in part.
"""

from __future__ import annotations

from io import BytesIO

import pytest

from rackproof.core.line_rules import LineRules
from rackproof.core.records import ParsedLog
from rackproof.logs import parse

STREAM = """\
rackproof: program /usr/local/bin/stream_c.exe, sha256 {digest}
STREAM version $Revision: 5.10 $
Number of Threads counted = 2
Function    Best Rate MB/s  Avg time     Min time     Max time
Copy:           39016.8     0.033710     0.000820     0.047406
Triad:           6964.4     0.038113     0.006892     0.088618
Solution Validates: avg error less than 1.000000e-13 on all three arrays
""".format(digest="a" * 64)
"""STREAM 5.10 as it ran on two cores."""


def rules(**changes: object) -> LineRules:
    """Return the patterns for STREAM. ``changes`` are keys of the metric ``triad``."""
    triad = {"pattern": "^Triad: +(\\S+)", "unit": "MB/s", "direction": "higher"}
    copy = {"pattern": "^Copy: +(\\S+)", "unit": "MB/s", "direction": "higher"}
    return LineRules.model_validate(
        {
            "good_end": "^Solution Validates",
            "failures": ["^Failed Validation"],
            "metrics": {"triad": triad | changes, "copy": copy},
        }
    )


def read(text: str, **changes: object) -> ParsedLog:
    return parse(BytesIO(text.encode()), format="lines", lines=rules(**changes))


def test_a_good_run_passes_with_its_numbers_and_its_program() -> None:
    log = read(STREAM)
    assert log.verdict.value == "pass"
    assert {one.name: (one.value, one.unit) for one in log.measurements} == {
        "triad": (6964.4, "MB/s"),
        "copy": (39016.8, "MB/s"),
    }
    assert log.measurements[0].source.line == 6
    assert log.tags["software.program"] == "/usr/local/bin/stream_c.exe"
    assert log.tags["software.program_sha256"] == "a" * 64


@pytest.mark.parametrize("shown", ["1,234,567.5", "1.5e-300", "9e999", "6.964.4", "6'964"])
def test_a_number_that_is_longer_than_the_pattern_is_not_read_in_part(shown: str) -> None:
    log = read(STREAM.replace("6964.4", shown), pattern="^Triad: +([0-9]+[.]?[0-9]?)")
    assert (log.verdict.value, {one.code for one in log.findings}) == (
        "unproven",
        {"impossible_value"},
    )
    assert log.measurement("triad") is None


@pytest.mark.parametrize(
    ("change", "verdict", "code"),
    [
        (("Solution Validates", "Solution"), "unproven", "no_end"),
        (("Triad:", "Triple:"), "unproven", "metric_missing"),
        (("6964.4", "nan"), "unproven", "impossible_value"),
        (("6964.4", "-6964.4"), "unproven", "impossible_value"),
        (("6964.4", "inf"), "unproven", "impossible_value"),
        (("6964.4", "6_964"), "unproven", "impossible_value"),
        (("Triad: ", "Triad:  7000 \nTriad: "), "unproven", "several_values"),
        (("Copy: ", "Failed Validation on array a[]\nCopy: "), "fail", "tool_error"),
        (("Copy: ", "Segmentation fault (core dumped)\nCopy: "), "unproven", "crashed"),
        (("Copy: ", "uncorrectable ECC error encountered\nCopy: "), "fail", "ecc_error"),
    ],
)
def test_a_failed_incomplete_or_impossible_run_does_not_pass(
    change: tuple[str, str], verdict: str, code: str
) -> None:
    log = read(STREAM.replace(*change))
    assert (log.verdict.value, code in {one.code for one in log.findings}) == (verdict, True)


# Numbers of bytes that are left.
@pytest.mark.parametrize("cut", [0, 80, 150, 250, 300, 350])
def test_a_log_that_is_cut_off_is_unproven(cut: int) -> None:
    assert read(STREAM[:cut]).verdict.value == "unproven"


@pytest.mark.parametrize(
    ("take", "value"), [("first", 3.0), ("last", 2.0), ("lowest", 1.0), ("highest", 3.0)]
)
def test_the_key_take_selects_one_of_several_lines(take: str, value: float) -> None:
    lines = STREAM.replace("Triad:           6964.4", "Triad: 3 x\nTriad: 1 x\nTriad: 2 x")
    log = read(lines, take=take)
    assert (log.verdict.value, log.measurements[0].value) == ("pass", value)


def time_of(text: str, **changes: object) -> ParsedLog:
    """Return the parsed output of a program that prints PASSED and its time."""
    metric = {"pattern": r"^time (\d+(?:\.\d+)?)", "unit": "s", "direction": "lower", **changes}
    lines = LineRules.model_validate({"good_end": "^PASSED", "metrics": {"time": metric}})
    return parse(BytesIO(text.encode()), format="lines", lines=lines)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("PASSED\ntime 12", "unproven"),
        ("PASSED\ntime 12.", "unproven"),
        ("PASSED\ntime 12,", "unproven"),
        ("PASSED\ntime 12e", "unproven"),
        ("PASSED\ntime 12\n", "pass"),
        ("PASSED\ntime 12 s", "pass"),
        ("PASSED\ntime 12\ntail", "pass"),
        ("time 12\nPASSED", "pass"),
    ],
)
def test_a_number_that_the_end_of_the_log_may_cut_is_unproven(text: str, verdict: str) -> None:
    log = time_of(text)
    assert (log.verdict.value, "cut_off" in {one.code for one in log.findings}) == (
        verdict,
        verdict == "unproven",
    )


@pytest.mark.parametrize("take", ["last", "lowest", "highest", "median", "first"])
@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("time 12\nPASSED\n", "pass"),
        ("PASSED\ntime 12\n", "pass"),
        ("time 12\nPASSED\ntime 13\nPASSED\n", "pass"),
        ("PASSED\ntime 12\nPASSED\ntime 13\n", "pass"),
        ("time 12\ntime 13\nPASSED\nPASSED\n", "pass"),
        ("time 12\nPASSED\ntime 13\n", "unproven"),
        ("time 12\nPASSED\ntime 13\nPASSED\ntime 14\n", "unproven"),
        ("PASSED\ntime 12\nPASSED\n", "unproven"),
    ],
)
def test_a_second_run_without_a_good_end_is_unproven(text: str, verdict: str, take: str) -> None:
    log = time_of(text, take=take)
    assert (log.verdict.value, "cut_off" in {one.code for one in log.findings}) == (
        verdict,
        verdict == "unproven",
    )


def test_a_number_below_what_is_possible_is_unproven() -> None:
    assert read(STREAM, at_least=10_000).verdict.value == "unproven"


def test_long_lines_and_other_bytes_do_not_end_the_parser() -> None:
    text = b"Triad: " + b"9" * 100_000 + b"\n\xff\xfe\x1b[31mTriad: \x00 12\n" + STREAM.encode()
    log = parse(BytesIO(text), format="lines", lines=rules())
    assert log.verdict.value == "unproven"


# Patterns are applied to the first 2,000 bytes of a line.
@pytest.mark.parametrize(
    ("length", "verdict"), [(1990, "pass"), (1994, "pass"), (1995, "unproven"), (2000, "unproven")]
)
def test_a_number_at_the_2_000th_byte_of_a_line_is_not_read_in_part(length: int, verdict: str) -> None:
    line = f"{'x' * (length - 4)} at 6964.4 MB/s"
    log = read(STREAM.replace("Triad:           6964.4", line), pattern=r"^x.* at ([0-9.]+)")
    assert log.verdict.value == verdict
    triad = log.measurement("triad")
    assert triad is None or triad.value == 6964.4


def test_lines_with_other_bytes_are_read() -> None:
    log = parse(
        BytesIO(STREAM.replace("Triad:", "T\xff\0é: ").encode("latin-1")),
        format="lines",
        lines=rules(pattern="^T.{2,3}: +([0-9.]+)"),
    )
    assert (log.verdict.value, log.measurements[0].value) == ("pass", 6964.4)


def test_lines_of_repetitions_give_their_median_and_its_spread() -> None:
    speeds = [100.0, 98.0, 101.0, 55.0, 99.0, 100.0]
    lines = "".join(f"Triad: {one}\n" for one in speeds)
    log = read(STREAM.replace("Triad:           6964.4", f"{lines}Triad: 97.0"), take="median")
    triad = log.measurement("triad")
    assert triad is not None
    assert triad.value == 99.0
    assert triad.spread is not None
    assert (triad.spread.count, triad.spread.low, triad.spread.high) == (7, 97.0, 100.0)


def test_one_repetition_has_no_spread_and_too_many_are_unproven() -> None:
    one = read(STREAM, take="median").measurement("triad")
    assert one is not None
    assert (one.value, one.spread) == (6964.4, None)
    lines = "Triad: 100.0\n" * 10_001
    many = read(STREAM.replace("Triad:           6964.4", f"{lines}Triad: 97.0"), take="median")
    assert (many.verdict.value, {found.code for found in many.findings}) == ("unproven", {"several_values"})
