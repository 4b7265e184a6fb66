"""Test the parsers of HPL and STREAM (:mod:`rackproof.logs.known_programs`).

HPL solves linear equations, and STREAM measures the bandwidth of memory. Both check their own results, so
``rackproof parse`` judges their output without a benchmark's definition. These tests check that outputs of
public repositories pass with their speed, and that an output which failed its check, lacks a part or
contradicts itself does not pass.
"""

from __future__ import annotations

import re
from io import BytesIO

import pytest

from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs import parse
from tests.logs import log_samples as samples

HPL, STREAM = samples.HPL.decode(), samples.STREAM.decode()
ROW = "WR0XR8C48      384000   384     1     2            4645.37             8.1261e+03"
RESIDUAL = next(line for line in HPL.splitlines(True) if line.startswith("||"))
IGNORES = "\nHPL-NVIDIA ignores the following parameters from input file:\n\t* Broadcast parameters\n"
BOUND = next(line for line in HPL.splitlines(True) if line.startswith("- Computational"))
NVIDIA_ROW = "WC0         376832  1024     4     4        85.42       4.176e+05 ( 2.610e+04)"
"""A row of NVIDIA's HPL, as PerfKitBenchmarker shows it."""


def hpl(*rows: str, count: int = 0, residual: str = RESIDUAL, **parameters: str) -> str:
    """Return an output with other rows, and other values of parameters."""
    text = HPL.replace(ROW + "\n", "\n".join(rows) + "\n").replace(RESIDUAL, residual * len(rows))
    for name, values in parameters.items():
        line = next(line for line in HPL.splitlines() if re.match(rf"{name} *:", line))
        text = text.replace(line, f"{name:7}: {values} ")
    return text.replace("  1 tests", f"  {count or len(rows)} tests")


NVIDIA_HPL = hpl(NVIDIA_ROW, N="376832", NB="1024", P="4", Q="4")
SECOND = ROW.replace("384000   384     1     2            4645.37             8.1261e+03",
                     "192000   384     1     2             600.11             7.8630e+03")  # fmt: skip
TWO = hpl(ROW, SECOND, N="384000 192000")
OLD_RESIDUALS = """\
||Ax-b||_oo / ( eps * ||A||_1  * N        ) =        0.0128599 ...... PASSED
||Ax-b||_oo / ( eps * ||A||_1  * ||x||_1  ) =        0.0185612 ...... PASSED
||Ax-b||_oo / ( eps * ||A||_oo * ||x||_oo ) =        0.0037747 ...... PASSED
"""
"""The checks of HPL 1.0a, as a message to Open MPI's users shows them."""
OLD = hpl(ROW, residual=OLD_RESIDUALS).replace("HPLinpack 2.3", "HPLinpack 1.0a")
SIX = hpl(*[ROW] * 6, PFACT="Left    Crout    Right", NBMIN="2        4")
NINE = "".join(f"{'384000':>9}" for _ in range(8)) + " \n           384000"
"""Nine values of N on two lines, as HPL wraps them."""
STREAM_59 = (
    STREAM.replace("5.10", "5.9")
    .replace("array element", "DOUBLE PRECISION word")
    .replace(" (elements), Offset = 0 (elements)", ", Offset = 0")
    .replace("Each kernel will be executed 200 times.", "Each test is run 200 times, but only")
    .replace(": avg error less than 1.000000e-13 on all three arrays", "")
)
THREADS = "Number of Threads requested = 4\nNumber of Threads counted = 4\nFunction "
MPI_THREADS = THREADS.replace("requested", "requested for each MPI rank").replace(
    "counted", "counted for rank 0"
)
ACTIVE = THREADS.replace("Number of Threads counted = 4\n", "Printing one line per active thread....\n" * 4)
"""The threads as version 5.9 prints them."""
TICKS = "Your clock granularity/precision appears to be 1 microseconds.\n   (= 13558 clock ticks)\nFunction "
VALIDATES = next(line for line in STREAM.splitlines(True) if line.startswith("Solution"))
PROGRESS = "Prog= 2.38%\tN_left= 71424\tiGF= 4e5\tGF= 417600.00\tiGF_per= 25000.00 \tGF_per= 26100.00 \n"
"""A progress line of NVIDIA's HPL, with the speeds of all GPUs and of one GPU in GFLOP/s."""
NVIDIA_PROGRESS = NVIDIA_HPL.replace(NVIDIA_ROW, PROGRESS + NVIDIA_ROW)
FAILED = HPL.replace("...... PASSED", "...... FAILED").replace(
    "1 tests completed and passed residual checks,\n              0",
    "0 tests completed and passed residual checks,\n              1",
)


PWARN = "HPL ERROR from process # 0, on line 621 of function HPL_pdtest:"
ERRORS_OF_HPL = (
    f"{PWARN}\n>>> [0,0] Memory allocation failed for A, x and b. Skip. <<<",
    f"{PWARN}\n>>> Need at least 4 processes for these tests <<<",
    ">>> Illegal input in file HPL.dat. Exiting ... <<< Abort ...",
    f"n1: {PWARN}",
)
"""Errors as HPL_pwarn and HPL_pabort print them, whole and in part."""


def read(text: str) -> ParsedLog:
    return parse(BytesIO(text.encode()))


# Output, and the name and value of its speed: GFLOP/s of HPL, MB/s of STREAM.
@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (HPL, "hpl_speed", 8126.1),
        (NVIDIA_HPL, "hpl_speed", 417_600),
        (TWO, "hpl_speed", 8126.1),
        (OLD, "hpl_speed", 8126.1),
        (SIX, "hpl_speed", 8126.1),
        (hpl(*[ROW] * 9, N=NINE), "hpl_speed", 8126.1),
        (hpl(*[ROW] * 2, P="1 1", Q="2 2"), "hpl_speed", 8126.1),
        # NVIDIA's HPL does not use these parameters.
        (hpl(ROW, PFACT="Left Crout").replace(BOUND, BOUND + IGNORES), "hpl_speed", 8126.1),
        (hpl(ROW, ROW, PFACT="Left Crout").replace(BOUND, BOUND + IGNORES), "hpl_speed", 8126.1),
        ("".join(f"0: {line}" for line in HPL.splitlines(True)), "hpl_speed", 8126.1),
        ("".join(f"    {line}" for line in HPL.splitlines(True)), "hpl_speed", 8126.1),
        (STREAM, "stream_triad", 105_256),
        (STREAM_59, "stream_triad", 105_256),
        (STREAM.replace("Array", "Total Aggregate Array"), "stream_triad", 105_256),
        (STREAM.replace("Function ", THREADS), "stream_triad", 105_256),
        (STREAM.replace("Function ", MPI_THREADS), "stream_triad", 105_256),
        (STREAM_59.replace("Function ", ACTIVE), "stream_triad", 105_256),
        (STREAM_59.replace("Function ", ACTIVE.partition("\n")[2]), "stream_triad", 105_256),
        (STREAM.replace("Function ", TICKS), "stream_triad", 105_256),
        (STREAM.replace("Function ", TICKS.replace("clock", "timer")), "stream_triad", 105_256),
        (NVIDIA_PROGRESS, "hpl_speed", 417_600),
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
        *(
            (
                STREAM.replace("less than 1.000000e-13", f"less than {bound}"),
                Verdict.UNPROVEN,
                "impossible_value",
            )
            for bound in ("x", "1.000000x-13", "nan", "inf")
        ),
        (STREAM.replace("Function ", THREADS.replace("= 4", "= x")), Verdict.UNPROVEN, "figures_contradict"),
        (re.sub(r"(?<=executed )\d+", "x", STREAM), Verdict.UNPROVEN, "impossible_value"),
        (HPL.replace("and passed residual checks", "without checking"), Verdict.UNPROVEN, "metric_missing"),
        (HPL.replace("1 tests completed", "0 tests completed"), Verdict.UNPROVEN, "impossible_value"),
        (HPL.replace("0 tests skipped", "1 tests skipped"), Verdict.UNPROVEN, "rows_missing"),
        (HPL.replace("1 tests with", "2 tests with"), Verdict.UNPROVEN, "rows_missing"),
        (HPL.replace("8.1261e+03", "9.1261e+03"), Verdict.UNPROVEN, "figures_contradict"),
        (HPL.replace(RESIDUAL, ""), Verdict.UNPROVEN, "rows_missing"),
        (TWO.replace(RESIDUAL, "", 1), Verdict.UNPROVEN, "rows_missing"),
        (OLD.replace(OLD_RESIDUALS.splitlines(True)[1], ""), Verdict.UNPROVEN, "rows_missing"),
        (HPL.replace("4.12139792e-03", "nan"), Verdict.FAIL, "nan"),
        (HPL.replace("4.12139792e-03", "4.12139792e+03"), Verdict.UNPROVEN, "figures_contradict"),
        (HPL.replace("4.12139792e-03", "16.0"), Verdict.UNPROVEN, "figures_contradict"),
        (HPL.replace("4.12139792e-03", "small"), Verdict.UNPROVEN, "figures_contradict"),
        (HPL.replace(BOUND, ""), Verdict.UNPROVEN, "figures_contradict"),
        (HPL.replace("1 tests completed and p", "2 tests completed and p"), Verdict.UNPROVEN, "rows_missing"),
        *(
            (re.sub(rf".*{words}.*\n", "", HPL), Verdict.UNPROVEN, "rows_missing")
            for words in ("and failed", "skipped", "Finished", "N      :", "NB     :", "P      :", "Q      :")
        ),
        (hpl(ROW, N="384000 192000"), Verdict.UNPROVEN, "rows_missing"),
        (hpl(ROW, ROW, N="384000 192000"), Verdict.UNPROVEN, "rows_missing"),
        (hpl(*[ROW] * 8, N=NINE), Verdict.UNPROVEN, "rows_missing"),
        (hpl(*[ROW] * 5, PFACT="Left Crout Right", NBMIN="2 4"), Verdict.UNPROVEN, "rows_missing"),
        (hpl(ROW, P="8"), Verdict.UNPROVEN, "figures_contradict"),
        (hpl(ROW, N="384000 192000").replace(BOUND, BOUND + IGNORES), Verdict.UNPROVEN, "rows_missing"),
        *((f"{error}\n{HPL}", Verdict.UNPROVEN, "tool_error") for error in ERRORS_OF_HPL),
        *((HPL.replace(ROW, f"{error}\n{ROW}"), Verdict.UNPROVEN, "tool_error") for error in ERRORS_OF_HPL),
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
        # 199 times cannot have the average with the largest, or with the smallest time.
        (STREAM.replace("0.017950", "0.700000"), Verdict.UNPROVEN, "figures_contradict"),
        (STREAM.replace("0.028479", "0.050000"), Verdict.UNPROVEN, "figures_contradict"),
        (STREAM.replace("0.017753", "0.017948"), Verdict.UNPROVEN, "figures_contradict"),
        (STREAM.replace("0.027448", "0.027362"), Verdict.UNPROVEN, "figures_contradict"),
        (STREAM.replace("Add: ", "Bad: "), Verdict.UNPROVEN, "metric_missing"),
        *(
            (re.sub(rf".*{words}.*\n", "", STREAM), Verdict.UNPROVEN, "rows_missing")
            for words in ("Array size", "This system")
        ),
        (re.sub(r"(Triad: +\S+).*", r"\1", STREAM), Verdict.UNPROVEN, "rows_missing"),
        (STREAM.replace("0.027362", "0.000000"), Verdict.UNPROVEN, "figures_contradict"),
        (STREAM.replace("executed 200 times", "executed 1 times"), Verdict.UNPROVEN, "impossible_value"),
        (re.sub(r".*executed.*\n", "", STREAM), Verdict.UNPROVEN, "impossible_value"),
        (STREAM.replace("1.000000e-13", "1.000000e+03"), Verdict.UNPROVEN, "impossible_value"),
        (STREAM.replace("1.000000e-13", "nan"), Verdict.UNPROVEN, "impossible_value"),
        (
            STREAM.replace("Function ", THREADS.replace("counted = 4", "counted = 1")),
            Verdict.UNPROVEN,
            "figures_contradict",
        ),
        *(
            (STREAM.replace("Function ", threads), Verdict.UNPROVEN, "figures_contradict")
            for threads in (
                THREADS.replace("Number of Threads counted = 4\n", ""),
                THREADS.replace("Number of Threads requested = 4\n", ""),
                MPI_THREADS.replace("rank 0 = 4", "rank 0 = 2"),
                ACTIVE.replace("Printing one line per active thread....\n", "", 1),
            )
        ),
        *(
            (text, Verdict.UNPROVEN, "impossible_value")
            for text in (
                STREAM.replace("Function ", TICKS.replace("13558", "3")),
                STREAM.replace("Function ", TICKS.replace("13558", "19").replace("clock", "timer")),
                STREAM.replace("Function ", TICKS.replace("1 micro", "10000 micro")),
                STREAM.replace("0.017811     0.017748     0.017950", "0.000003     0.000003     0.000003"),
            )
        ),
        (
            STREAM.replace(VALIDATES, "").replace("Function", f"{VALIDATES}Function"),
            Verdict.UNPROVEN,
            "cut_off",
        ),
        (STREAM + STREAM[STREAM.index("Copy:") : STREAM.index("Solution")], Verdict.UNPROVEN, "cut_off"),
        (
            HPL.replace("End of Tests.", "").replace(ROW, f"End of Tests.\n{ROW}"),
            Verdict.UNPROVEN,
            "cut_off",
        ),
        *(
            (NVIDIA_PROGRESS.replace(old, new), Verdict.UNPROVEN, "figures_contradict")
            for old, new in (
                ("2.610e+04", "9.9e+04"),
                ("2.610e+04", "inf"),
                ("2.610e+04", "nan"),
                ("26100.00", "inf"),
                ("26100.00", "52200.00"),
                ("GF= 417600.00", "GF= nan"),
                ("25000.00", "inf"),
                # Values that no program of 32 bits has are no process grid.
                ("P      : 4", f"P      : {'9' * 400}"),
                ("Q      : 4", f"Q      : {'9' * 5000}"),
                ("P      : 4", f"P      : {' '.join(['9' * 400] * 9)}"),
            )
        ),
        (STREAM.replace("Solution Validates", ""), Verdict.UNPROVEN, "no_end"),
    ],
)
def test_a_failed_incomplete_or_contradictory_output_does_not_pass(
    text: str, verdict: Verdict, code: str
) -> None:
    parsed = read(text)
    assert parsed.verdict is verdict
    assert code in {one.code for one in parsed.findings}


@pytest.mark.parametrize(
    "heading", ["This is the DARPA/DOE HPC Challenge Benchmark\n", "HPL-MxP-NVIDIA 23.5\n"]
)
def test_a_suite_with_a_table_of_hpl_is_not_judged_as_hpl(heading: str) -> None:
    parsed = read(heading + HPL)
    assert (parsed.format, parsed.verdict) == ("unknown", Verdict.UNPROVEN)
