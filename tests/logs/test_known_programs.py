"""HPL and STREAM: outputs of public repositories, and what must not pass."""

from __future__ import annotations

from io import BytesIO

import pytest

from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs import parse
from tests.logs import log_samples as samples

HPL, STREAM = samples.HPL.decode(), samples.STREAM.decode()
NVIDIA_HPL = HPL.replace(
    "WR0XR8C48      384000   384     1     2            4645.37             8.1261e+03",
    "WC0         376832  1024     4     4        85.42       4.176e+05 ( 2.610e+04)",
)
"""A row as PerfKitBenchmarker shows it of NVIDIA's HPL."""
TWO = HPL.replace(
    "HPL_pdgesv() start",
    "WR11C2R4      329728   224    16    20            3799.69             6.2897e+03\nHPL_pdgesv() start",
).replace("  1 tests", "  2 tests")
FAILED = HPL.replace("...... PASSED", "...... FAILED").replace(
    "1 tests completed and passed residual checks,\n              0",
    "0 tests completed and passed residual checks,\n              1",
)


def read(text: str) -> ParsedLog:
    return parse(BytesIO(text.encode()))


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (HPL, "hpl_speed", 8126.1),
        (NVIDIA_HPL, "hpl_speed", 417_600),
        (TWO, "hpl_speed", 8126.1),
        ("".join(f"0: {line}" for line in HPL.splitlines(True)), "hpl_speed", 8126.1),
        ("".join(f"    {line}" for line in HPL.splitlines(True)), "hpl_speed", 8126.1),
        (STREAM, "stream_triad", 105_256),
        ("".join(f"[0] {line}" for line in STREAM.splitlines(True)), "stream_triad", 105_256),
    ],
)
def test_a_sound_run_passes_with_its_speed(text: str, name: str, value: float) -> None:
    parsed = read(text)
    assert (parsed.verdict, parsed.findings) == (Verdict.PASS, ())
    found = parsed.measurement(name)
    assert found is not None
    assert found.value == value


@pytest.mark.parametrize(
    ("text", "verdict", "code"),
    [
        (FAILED, Verdict.FAIL, "tool_error"),
        (
            HPL.replace("0 tests completed and failed", "2 tests completed and failed"),
            Verdict.FAIL,
            "tool_error",
        ),
        (STREAM.replace("Solution Validates", "Failed Validation"), Verdict.FAIL, "tool_error"),
        (HPL.replace("and passed residual checks", "without checking"), Verdict.UNPROVEN, "metric_missing"),
        (HPL.replace("1 tests completed", "0 tests completed"), Verdict.UNPROVEN, "impossible_value"),
        (HPL.replace("0 tests skipped", "1 tests skipped"), Verdict.UNPROVEN, "rows_missing"),
        (HPL.replace("1 tests with", "2 tests with"), Verdict.UNPROVEN, "rows_missing"),
        (HPL.replace("8.1261e+03", "9.1261e+03"), Verdict.UNPROVEN, "figures_contradict"),
        (HPL + HPL, Verdict.UNPROVEN, "several_values"),
        (HPL[: HPL.index("WR0")] + HPL, Verdict.UNPROVEN, "cut_off"),
        (HPL + HPL[: HPL.index("WR0")], Verdict.UNPROVEN, "cut_off"),
        (STREAM[: STREAM.index("Copy:")] + STREAM, Verdict.UNPROVEN, "cut_off"),
        (STREAM + STREAM[: STREAM.index("Copy:")], Verdict.UNPROVEN, "cut_off"),
        (HPL.replace("End of Tests.", ""), Verdict.UNPROVEN, "no_end"),
        (HPL + STREAM, Verdict.UNPROVEN, "second_tool"),
        (HPL + samples.PERFTEST.decode(), Verdict.UNPROVEN, "second_tool"),
        (STREAM.replace("105256.0", "205256.0"), Verdict.UNPROVEN, "figures_contradict"),
        (STREAM.replace("0.027448", "0.037448"), Verdict.UNPROVEN, "figures_contradict"),
        (STREAM.replace("Add: ", "Bad: "), Verdict.UNPROVEN, "metric_missing"),
        (STREAM.replace("Solution Validates", ""), Verdict.UNPROVEN, "no_end"),
    ],
)
def test_what_is_failed_or_missing_is_no_pass(text: str, verdict: Verdict, code: str) -> None:
    parsed = read(text)
    assert parsed.verdict is verdict
    assert code in {one.code for one in parsed.findings}


@pytest.mark.parametrize(
    "heading", ["This is the DARPA/DOE HPC Challenge Benchmark\n", "HPL-MxP-NVIDIA 23.5\n"]
)
def test_a_suite_that_has_such_a_table_is_not_judged_as_one(heading: str) -> None:
    parsed = read(heading + HPL)
    assert (parsed.format, parsed.verdict) == ("unknown", Verdict.UNPROVEN)
