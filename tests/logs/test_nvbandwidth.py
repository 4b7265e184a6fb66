"""Matrices of nvbandwidth: one per test, or both directions and their total."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict

PASS, FAIL, UNPROVEN = Verdict.PASS, Verdict.FAIL, Verdict.UNPROVEN
HEAD = """\
nvbandwidth Version: v0.8
Built from Git version: v0.8

CUDA Runtime Version: 12090
CUDA Driver Version: 12090
Driver Version: 575.57.08

n01
Device 0: NVIDIA H200 (00000000:1b:00)
Device 1: NVIDIA H200 (00000000:43:00)

"""
NOTE = """\
NOTE: The reported results may not reflect the full capabilities of the platform.
Performance can vary with software drivers, hardware clocks, and system topology.

"""
READ_CE = "device_to_device_bidirectional_memcpy_read_ce"
Matrix = Sequence[Sequence[float | None]]


def read(data: str | bytes) -> ParsedLog:
    return logs.parse(io.BytesIO(data if isinstance(data, bytes) else data.encode()))


def codes(parsed: ParsedLog) -> set[str]:
    return {one.code for one in parsed.findings if one.verdict}


def value(parsed: ParsedLog, name: str, row: int | str, column: int) -> float | None:
    found = parsed.measurement(name, row=str(row), column=str(column))
    return None if found is None else found.value


def printed(key: str, description: str, matrix: Matrix, last: str = "SUM {} {:.2f}\n") -> str:
    """Return a matrix as nvbandwidth prints it."""
    rows = [f"{index:2d}" + "".join(f"{'N/A' if one is None else f'{one:.2f}':>10s}" for one in row)
            for index, row in enumerate(matrix)]  # fmt: skip
    total = sum(one or 0 for row in matrix for one in row)
    columns = "  " + "".join(f"{index:10d}" for index in range(len(matrix[0])))
    return f"{description}\n{columns}\n" + "\n".join(rows) + "\n\n" + last.format(key, total) + "\n"


def square(base: float, gpus: int = 2) -> list[list[float | None]]:
    return [[None if a == b else base + a + b / 10 for b in range(gpus)] for a in range(gpus)]


def bidirectional(name: str, kind: str, gpus: int = 2) -> str:
    engine = name[-2:].upper()
    first, second = square(180.0, gpus), square(190.0, gpus)
    both = [[None if a is None or b is None else a + b for a, b in zip(*rows, strict=True)]
            for rows in zip(first, second, strict=True)]  # fmt: skip
    text = f"Running {name}.\n"
    for part, matrix in ((f"{kind}1", first), (f"{kind}2", second), ("Total", both)):
        words = f"memcpy {engine} GPU(row) <-> GPU(column) {part} bandwidth (GB/s)"
        text += printed(f"{name}_{part.lower()}", words, matrix)
    return text


ONE_WAY = "Running device_to_device_memcpy_read_ce.\n" + printed(
    "device_to_device_memcpy_read_ce", "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)", square(370.0)
)
LATENCY = "Running device_to_device_latency_sm.\n" + printed(
    "device_to_device_latency_sm",
    "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)",
    square(700.0),
)
BOTH_WAYS = bidirectional(READ_CE, "Read")


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (READ_CE, "Read"),
        ("device_to_device_bidirectional_memcpy_write_ce", "Write"),
        ("device_to_device_bidirectional_memcpy_read_sm", "Read"),
        ("device_to_device_bidirectional_memcpy_write_sm", "Write"),
        ("multinode_device_to_device_bidirectional_memcpy_read_ce", "Read"),
    ],
)
def test_both_directions_and_their_total_are_read(name: str, kind: str, gpus: int) -> None:
    more = "".join(f"Device {at}: NVIDIA H200 (00000000:{at:02x}:00)\n" for at in range(2, gpus))
    head = HEAD.replace("(00000000:43:00)\n", f"(00000000:43:00)\n{more}")
    # The other two matrices are of two GPUs.
    beside = ONE_WAY + LATENCY if gpus == 2 else ""
    parsed = read(head + beside + bidirectional(name, kind, gpus) + "Waived: \n" + NOTE)
    assert parsed.verdict is PASS, codes(parsed)
    cells = gpus * (gpus - 1)
    for part, expected in ((f"{kind}1".lower(), 181.0), (f"{kind}2".lower(), 191.0), ("total", 372.0)):
        assert value(parsed, f"{name}_{part}", 1, 0) == expected
        assert sum(one.name == f"{name}_{part}" for one in parsed.measurements) == cells
    if not beside:
        return
    assert value(parsed, "device_to_device_memcpy_read_ce", 0, 1) == 370.1
    latency = parsed.measurement("device_to_device_latency_sm", row="1", column="0")
    assert latency is not None
    assert (latency.unit, latency.value) == ("ns", 701.0)


@pytest.mark.parametrize("gone", ["read1", "read2", "total"])
def test_a_lost_direction_is_no_pass(gone: str) -> None:
    """However it was lost: its sum, all of it, its description."""
    title = next(line for line in BOTH_WAYS.splitlines(True) if gone in line.lower() and "memcpy CE" in line)
    end = next(line for line in BOTH_WAYS.splitlines(True) if f"_{gone} " in line)
    start, stop = BOTH_WAYS.index(title), BOTH_WAYS.index(end) + len(end)
    for damaged in (
        BOTH_WAYS.replace(end, ""),
        BOTH_WAYS[:start] + BOTH_WAYS[stop:],
        BOTH_WAYS[:start] + BOTH_WAYS[stop - len(end) :],
        BOTH_WAYS.replace(f"_{gone} ", "_read3 "),
    ):
        for text in (damaged + NOTE, damaged + ONE_WAY + NOTE, damaged + "Waived: \n" + ONE_WAY + NOTE):
            parsed = read(HEAD + text)
            assert parsed.verdict is UNPROVEN
            assert codes(parsed) & {"cut_off", "sum_mismatch"}


@pytest.mark.parametrize(
    ("old", "new", "verdict", "code"),
    [
        ("191.00", "91.00", UNPROVEN, "sum_mismatch"),
        ("372.00", "272.00", UNPROVEN, "sum_mismatch"),
        ("190.10", "nan", UNPROVEN, "impossible_value"),
        ("190.10", "", UNPROVEN, "damaged_line"),
        ("190.10", "0.00", UNPROVEN, "impossible_value"),
        ("_read2 381.10", "_read2 200.00", UNPROVEN, "sum_mismatch"),
        (f"SUM {READ_CE}_total", "SUM all_to_one_read_ce_total", UNPROVEN, "sum_mismatch"),
        ("Running", "[CUDA_ERROR_ECC_UNCORRECTABLE] error in file\nRunning", FAIL, "tool_error"),
    ],
)
def test_what_is_wrong_in_any_of_the_matrices(old: str, new: str, verdict: Verdict, code: str) -> None:
    assert old in BOTH_WAYS
    parsed = read(HEAD + BOTH_WAYS.replace(old, new) + NOTE)
    assert parsed.verdict is verdict
    assert code in codes(parsed)


def test_the_total_must_be_that_of_the_directions() -> None:
    text = BOTH_WAYS.replace("372.00", "272.00").replace("_total 742.20", "_total 642.20")
    assert codes(read(HEAD + text + NOTE)) == {"sum_mismatch"}


def test_other_forms_of_a_sum_and_verbose_lines() -> None:
    for old, new in (("SUM", "&&&& PERF"), ("\nRunning", "\nMIN x 1\nMAX x 2\nAVG x 1.5\nRunning")):
        parsed = read(HEAD + (BOTH_WAYS + ONE_WAY).replace(old, new) + NOTE)
        assert parsed.verdict is PASS, codes(parsed)
    perf = BOTH_WAYS.replace("SUM", "&&&& PERF").replace("_read1 361.10", "_read1 361.10GB/s")
    assert read(HEAD + perf + NOTE).verdict is PASS


def test_rows_of_processes() -> None:
    text = (
        "Running multinode_bisect_write_ce.\nBisect benchmarking, simultaneous write CE BW\n"
        "               0\n0->2    390.10\n1->3    391.00\n2->0    392.00\n3->1    393.00\n\n"
        "SUM multinode_bisect_write_ce 1566.10\n\n"
    )
    parsed = read(HEAD + text + NOTE)
    assert parsed.verdict is PASS, codes(parsed)
    assert value(parsed, "multinode_bisect_write_ce", "2->0", 0) == 392.0


@pytest.mark.parametrize(
    "label", ["0: ", "[1,0]<stdout>:", "[prterun-n01-4711@1,0]<stdout>: ", "n01: ", "  "]
)
def test_a_launchers_labels_hide_no_line(label: str) -> None:
    text = HEAD + ONE_WAY + BOTH_WAYS + NOTE
    parsed = read("".join(label + line for line in text.splitlines(True)))
    assert (parsed.format, parsed.verdict) == ("nvbandwidth", PASS), codes(parsed)
    plain = read(text)
    assert [(one.name, one.value, one.labels) for one in parsed.measurements] == [
        (one.name, one.value, one.labels) for one in plain.measurements
    ]
    damaged = text.replace("191.00", "91.00")
    assert read("".join(label + line for line in damaged.splitlines(True))).verdict is UNPROVEN


def document(matrix: list[list[str]], description: str, total: float, name: str = READ_CE) -> bytes:
    case: dict[str, Any] = {
        "name": name,
        "status": "Passed",
        "bandwidth_description": description,
        "bandwidth_matrix": matrix,
        "sum": total,
    }
    return json.dumps({"nvbandwidth": {"version": "v0.8", "testcases": [case]}}).encode()


ROWS = [["N/A", "180.1"], ["181", "N/A"], ["N/A", "190.1"], ["191", "N/A"], ["N/A", "370.2"], ["372", "N/A"]]
"""The tool's JSON has the rows of all three matrices, and the last one's sum and description."""
TOTAL = "memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)"


def test_json_has_the_three_matrices_below_each_other() -> None:
    parsed = read(document(ROWS, TOTAL, 742.2))
    assert parsed.verdict is PASS, codes(parsed)
    assert value(parsed, f"{READ_CE}_read1", 1, 0) == 181.0
    assert value(parsed, f"{READ_CE}_read2", 0, 1) == 190.1
    assert value(parsed, f"{READ_CE}_total", 1, 0) == 372.0
    write = read(document(ROWS, TOTAL, 742.2, READ_CE.replace("read", "write")))
    assert value(write, "device_to_device_bidirectional_memcpy_write_ce_write2", 1, 0) == 191.0


@pytest.mark.parametrize(
    ("matrix", "total"),
    [
        (ROWS[:5], 742.2),
        (ROWS[2:], 742.2),
        ([[*row, "180.0"] for row in ROWS], 1102.2),
        (ROWS, 642.2),
        ([*ROWS[:4], ["N/A", "170.2"], ["172", "N/A"]], 342.2),
        ([["N/A", "80.1"], *ROWS[1:]], 742.2),
        ([*ROWS[:2], ["N/A", "nan"], *ROWS[3:]], 742.2),
    ],
)
def test_json_that_does_not_add_up(matrix: list[list[str]], total: float) -> None:
    assert read(document(matrix, TOTAL, total)).verdict is UNPROVEN


def test_json_of_one_direction_has_one_matrix() -> None:
    words = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"
    name = "device_to_device_memcpy_read_ce"
    assert value(read(document(ROWS[:2], words, 361.1, name)), name, 1, 0) == 181.0
    assert read(document(ROWS[:2], words, 180.1, name)).verdict is UNPROVEN


@pytest.mark.parametrize("version", ["v0.1", "v0.2", "v0.4", "v0.5-1-g4da7d7e"])
def test_versions_without_an_end_are_unproven_and_named(version: str) -> None:
    """Their note stands above the tests: a test that did not run leaves no trace."""
    head = HEAD.replace("v0.8", version).replace(
        "\nCUDA Runtime",
        "\nNOTE: This tool reports current measured bandwidth on your system.\n"
        "Additional system-specific tuning may be required.\n\nCUDA Runtime",
        1,
    )
    parsed = read(head + ONE_WAY)
    assert (parsed.format, parsed.verdict) == ("nvbandwidth", UNPROVEN)
    assert "0.6 or newer" in parsed.findings[-1].message
    assert value(parsed, "device_to_device_memcpy_read_ce", 0, 1) == 370.1


@pytest.mark.parametrize("version", ["v0.5", "v0.6", "v0.7", "v0.8", "v0.10.0"])
def test_versions_with_an_end(version: str) -> None:
    text = (HEAD + ONE_WAY + LATENCY + NOTE).replace("v0.8", version)
    # Since 0.9: how much the samples differ.
    text = text.replace("\n\nRunning", "\nCOEFFICIENT_OF_VARIATION x 0.01\n\nRunning")
    assert read(text).verdict is PASS


def test_processes_of_several_nodes_are_listed_in_place_of_devices() -> None:
    """As oracle-quickstart/oci-hpc-oke shows it for two nodes of GB200."""
    processes = "".join(
        f"Process {rank} (worker-{rank // 4}): device {rank % 4}: HGX GB200 (00000008:01:00)\n"
        for rank in range(8)
    )
    head = HEAD[: HEAD.index("n01\n")] + "MPI version: Open MPI v4.1.4\n" + processes + "\n"
    parsed = read(head + ONE_WAY.replace("device_to", "multinode_device_to", 1).replace(
        "SUM device", "SUM multinode_device") + NOTE)  # fmt: skip
    assert parsed.verdict is PASS, codes(parsed)
    assert value(parsed, "multinode_device_to_device_memcpy_read_ce", 1, 0) == 371.0
