"""Test the parser of nvbandwidth (:mod:`rackproof.logs.nvbandwidth`), for its text and its JSON.

nvbandwidth measures the bandwidth between the GPUs of a node, and between GPUs and host, and prints matrices.
A bidirectional test has three: both directions and their total. These tests check that each cell becomes a
measurement, and that a matrix which lacks a value, has an impossible one, or does not add up does not pass.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
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
    """Return the codes of a log's findings that have a verdict."""
    return {one.code for one in parsed.findings if one.verdict}


def value(parsed: ParsedLog, name: str, row: int | str, column: int) -> float | None:
    """Return the value of a cell of a matrix, or None."""
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
    """Return a matrix for some GPUs, without values on its diagonal."""
    return [[None if a == b else base + a + b / 10 for b in range(gpus)] for a in range(gpus)]


def bidirectional(name: str, kind: str, gpus: int = 2) -> str:
    """Return the text of a bidirectional test: both directions, and their total."""
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
def test_an_output_without_one_direction_is_unproven(gone: str) -> None:
    # The sum is missing, or sum and matrix, or the matrix, or the sum has another name.
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
        ("Running", " Invalid value when checking the pattern at 0x7f3a5c0000\nRunning", FAIL, "tool_error"),
        ("Running", "[CUDA_ERROR_ECC_UNCORRECTABLE] error in file\nRunning", FAIL, "tool_error"),
    ],
)
def test_a_fault_in_any_of_the_matrices_is_found(old: str, new: str, verdict: Verdict, code: str) -> None:
    assert old in BOTH_WAYS
    parsed = read(HEAD + BOTH_WAYS.replace(old, new) + NOTE)
    assert parsed.verdict is verdict
    assert code in codes(parsed)


def test_a_total_that_is_not_the_sum_of_the_directions_is_found() -> None:
    text = BOTH_WAYS.replace("372.00", "272.00").replace("_total 742.20", "_total 642.20")
    assert codes(read(HEAD + text + NOTE)) == {"sum_mismatch"}


def test_other_forms_of_a_sum_and_verbose_lines_are_read() -> None:
    for old, new in (("SUM", "&&&& PERF"), ("\nRunning", "\nMIN x 1\nMAX x 2\nAVG x 1.5\nRunning")):
        parsed = read(HEAD + (BOTH_WAYS + ONE_WAY).replace(old, new) + NOTE)
        assert parsed.verdict is PASS, codes(parsed)
    perf = BOTH_WAYS.replace("SUM", "&&&& PERF").replace("_read1 361.10", "_read1 361.10GB/s")
    assert read(HEAD + perf + NOTE).verdict is PASS


@pytest.mark.parametrize(
    "row",
    [
        f"0{' -1' * 5000} x",
        f"0{' +-1' * 5000} x",
        f"0{' -nan -1' * 2500} x",
        f"0->1{' -1' * 5000} x",
    ],
)
def test_a_damaged_row_takes_little_time(row: str) -> None:
    parsed = read(HEAD + ONE_WAY.replace("\n 1 ", f"\n{row}\n 1 ") + NOTE)
    # The line is no row, so it counts as text of another program.
    assert parsed.verdict is PASS


@pytest.mark.parametrize("text", ["-1.00", "+1.00", "-nan", "+inf", "-1e-3"])
def test_a_cell_with_a_sign_is_read(text: str) -> None:
    found = codes(read(HEAD + ONE_WAY.replace("370.10", text) + NOTE))
    assert "damaged_line" not in found


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("0 errors in the previous check", PASS),
        ("+ ./nvbandwidth 2>error.log", PASS),
        ("terror: none", PASS),
        ("log file: error_log.txt", PASS),
        ("last error: none", PASS),
        ("no error found in file /tmp/x", PASS),
        ("ERROR: Testcase x not found!", FAIL),
        ("[ERROR] no device", FAIL),
        ("Error: no access between the devices", FAIL),
        ("NVML_ERROR: [Not Found] in expression nvmlInit()", FAIL),
        ("[cudaErrorInvalidValue] invalid argument in expression f() : x.cpp:12", FAIL),
        ("ASSERT in expression a == b in main() : x.cpp:12", FAIL),
        ("CUDA error 2 in file x.cpp", FAIL),
    ],
)
def test_only_the_tools_own_errors_fail(words: str, verdict: Verdict) -> None:
    for line in (words, f"  {words}", f"n01: {words}", f"[1,0]<stdout>:{words}"):
        assert read(line + "\n" + HEAD + ONE_WAY + NOTE).verdict is verdict, line
        assert read(HEAD + ONE_WAY + line + "\n" + NOTE).verdict is verdict, line


HOST = "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)"


@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        ("host_to_device_memcpy_ce", [[None, None]]),
        ("host_to_device_memcpy_ce", [[None, 55.1]]),
        ("host_to_device_memcpy_ce", [[55.1, None]]),
        ("all_to_host_memcpy_sm", [[None, 55.1]]),
        ("device_local_copy", [[None, 1500.0]]),
        ("all_to_one_write_ce", [[300.0, None]]),
        ("device_to_device_memcpy_write_ce", [[None, None], [None, None]]),
        ("device_to_device_memcpy_write_ce", [[None]]),
    ],
)
def test_a_matrix_that_lacks_a_value_is_unproven(name: str, matrix: Matrix) -> None:
    text = f"Running {name}.\n" + printed(name, HOST, matrix)
    parsed = read(HEAD + ONE_WAY + text + NOTE)
    assert (parsed.verdict, codes(parsed) >= {"rows_missing"}) == (UNPROVEN, True)
    rows = [["N/A" if one is None else str(one) for one in row] for row in matrix]
    parsed = read(styled(root("v0.8", 2, [*cases(2), case(name, rows, HOST)])))
    assert (parsed.verdict, codes(parsed) >= {"rows_missing"}) == (UNPROVEN, True)


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        ({"name": "x", "status": "Error", "error": "CUDA_ERROR"}, FAIL),
        ({"name": "x", "status": "Running"}, UNPROVEN),
        ({"name": "x", "status": "Waived"}, PASS),
    ],
)
def test_no_test_case_is_ignored(last: dict[str, Any], verdict: Verdict) -> None:
    tests = [*cases(2)[:1] * 500, last]
    assert read(styled(root("v0.8", 2, tests))).verdict is verdict


@pytest.mark.parametrize("unit", ["MB/s", "GiB/s", "GB", "us", "Gbit/s", ""])
def test_a_matrix_of_another_unit_is_unproven(unit: str) -> None:
    other = HOST.replace("(GB/s)", f"({unit})" if unit else "")
    code = "damaged_line" if unit else "rows_missing"
    name, matrix = "host_to_device_memcpy_ce", [[55.1, 55.2]]
    text = HEAD + ONE_WAY + f"Running {name}.\n" + printed(name, other, matrix) + NOTE
    assert (read(text).verdict, codes(read(text))) == (UNPROVEN, {code})
    as_json = styled(root("v0.8", 2, [*cases(2), case(name, [["55.1", "55.2"]], other)]))
    assert (read(as_json).verdict, codes(read(as_json))) == (UNPROVEN, {code})
    assert read(text.replace(other, HOST)).verdict is PASS
    assert read(as_json.replace(other, HOST)).verdict is PASS


def test_a_latency_without_its_description_is_unproven() -> None:
    lines = LATENCY.splitlines(keepends=True)
    text = HEAD + ONE_WAY + "".join(line for line in lines if "(ns)" not in line) + NOTE
    assert (read(text).verdict, codes(read(text))) == (UNPROVEN, {"rows_missing"})


@pytest.mark.parametrize("address", ["00000000:43:00", "00000000:43:00.0"])
def test_one_pci_address_of_two_devices_is_unproven(address: str) -> None:
    head = HEAD.replace("00000000:1b:00", address).replace("00000000:43:00)", f"{address})")
    assert (read(head + ONE_WAY + NOTE).verdict, codes(read(head + ONE_WAY + NOTE))) == (
        UNPROVEN,
        {"gpu_twice"},
    )
    as_json = styled(root("v0.8", 2, cases(2)))
    first, second = (text[text.index("(") : text.index(")") + 1] for text in devices(2))
    assert read(as_json).verdict is PASS
    assert codes(read(as_json.replace(first, second))) == {"gpu_twice"}
    # Another run lists the same devices again.
    assert "gpu_twice" not in codes(read((HEAD + ONE_WAY + NOTE) * 2))


def test_rows_of_processes_are_read() -> None:
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


DEVICES = "GPU Device list"


def devices(count: int, name: str = "NVIDIA H200") -> list[str]:
    """Return the list of devices as version 0.8 writes it."""
    return [f"{at}: {name} (00000000:{at + 16:02x}:00): (n01)" for at in range(count)]


def document(matrix: list[list[str]], description: str, total: float, name: str = READ_CE) -> bytes:
    """Return a JSON document with one test."""
    case: dict[str, Any] = {
        "name": name,
        "status": "Passed",
        "bandwidth_description": description,
        "bandwidth_matrix": matrix,
        "sum": total,
    }
    top = {"version": "v0.8", DEVICES: devices(2), "testcases": [case]}
    return json.dumps({"nvbandwidth": top}).encode()


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
def test_json_that_does_not_add_up_is_unproven(matrix: list[list[str]], total: float) -> None:
    assert read(document(matrix, TOTAL, total)).verdict is UNPROVEN


def test_json_of_one_direction_has_one_matrix() -> None:
    words = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"
    name = "device_to_device_memcpy_read_ce"
    assert value(read(document(ROWS[:2], words, 361.1, name)), name, 1, 0) == 181.0
    assert read(document(ROWS[:2], words, 180.1, name)).verdict is UNPROVEN


@pytest.mark.parametrize("version", ["v0.1", "v0.2", "v0.4", "v0.5-1-g4da7d7e"])
def test_a_version_that_prints_no_end_is_unproven_and_named(version: str) -> None:
    # In these versions, the note is above the tests, so a test that did not run leaves no trace.
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
def test_a_version_that_prints_an_end_passes(version: str) -> None:
    text = (HEAD + ONE_WAY + LATENCY + NOTE).replace("v0.8", version)
    # Since 0.9, a line shows how much the samples differ.
    text = text.replace("\n\nRunning", "\nCOEFFICIENT_OF_VARIATION x 0.01\n\nRunning")
    assert read(text).verdict is PASS


def test_processes_of_several_nodes_are_listed_in_place_of_devices() -> None:
    # The list is that of oracle-quickstart/oci-hpc-oke for two nodes with GB200.
    processes = "".join(
        f"Process {rank} (worker-{rank // 4}): device {rank % 4}: HGX GB200 (00000008:01:00)\n"
        for rank in range(8)
    )
    head = HEAD[: HEAD.index("n01\n")] + "MPI version: Open MPI v4.1.4\n" + processes + "\n"
    parsed = read(head + ONE_WAY.replace("device_to", "multinode_device_to", 1).replace(
        "SUM device", "SUM multinode_device") + NOTE)  # fmt: skip
    assert parsed.verdict is PASS, codes(parsed)
    assert value(parsed, "multinode_device_to_device_memcpy_read_ce", 1, 0) == 371.0


def styled(root: Any) -> str:
    """Return a document as jsoncpp's toStyledString writes it."""
    return json.dumps(root, indent="\t", separators=(",", " : ")).replace(" : {", " : \n\t{") + "\n"


def cells(rows: int, columns: int, base: float = 300.0, *, with_host: bool = False) -> list[list[str]]:
    """Return the cells of a matrix as JSON has them. Only a matrix with the host has a diagonal."""
    return [
        ["N/A" if a == b and not with_host else f"{base + a + b / 10:g}" for b in range(columns)]
        for a in range(rows)
    ]


def case(name: str, matrix: list[list[str]], words: str = "", **more: Any) -> dict[str, Any]:
    """Return a test of the JSON, with the sum of its matrix."""
    total = sum(float(one) for row in matrix for one in row if one != "N/A")
    return {
        "bandwidth_description": words or "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
        "bandwidth_matrix": matrix,
        "name": name,
        "status": "Passed",
        "sum": total,
        **more,
    }


def cases(gpus: int) -> list[dict[str, Any]]:
    """Return the tests of a whole run of 0.8, one of each shape."""
    one, other = cells(gpus, gpus, 180.0), cells(gpus, gpus, 190.0)
    total = cells(gpus, gpus, 370.0)
    for a in range(gpus):
        for b in range(gpus):
            if a != b:
                total[a][b] = f"{float(one[a][b]) + float(other[a][b]):g}"
    both = case(READ_CE, [*one, *other, *total], TOTAL)
    both["sum"] = sum(float(cell) for row in total for cell in row if cell != "N/A")
    host = "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)"
    return [
        case("host_to_device_memcpy_ce", cells(1, gpus, 55.0, with_host=True), host),
        case("device_to_device_memcpy_read_ce", cells(gpus, gpus)),
        both,
        case("all_to_host_memcpy_ce", cells(1, gpus, 50.0, with_host=True), host),
        case(
            "device_to_device_latency_sm",
            cells(gpus, gpus, 700.0),
            "Latency SM GPU(row) <-> GPU(column) (ns)",
        ),
        {"name": "multinode_bisect_write_ce", "status": "Waived"},
    ]


def root(version: str, gpus: int, tests: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the JSON document of a version. Only that of 0.8 lists the devices."""
    top: dict[str, Any] = {
        "CUDA Runtime Version": 12090,
        "Driver Version": "575.57.08",
        "git_version": version,
        "testcases": cases(gpus) if tests is None else tests,
        "version": version,
    }
    if version == "v0.8":
        top[DEVICES] = devices(gpus)
    return {"nvbandwidth": top}


def before(version: str, gpus: int) -> str:
    """Return the text in front of the JSON: 0.5 to 0.7 print the devices, though JSON was requested."""
    if version == "v0.8":
        return ""
    listed = "".join(f"Device {at}: NVIDIA H200 (00000000:{at + 16:02x}:00)\n" for at in range(gpus))
    return f"n01\n{listed}\n"


VERSIONS = ["v0.5", "v0.6", "v0.7", "v0.8"]


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("version", VERSIONS)
def test_json_of_each_version_is_read_like_its_text(version: str, gpus: int) -> None:
    tests = [one for one in cases(gpus) if gpus > 1 or "device_to_device" not in one["name"]]
    parsed = read(before(version, gpus) + styled(root(version, gpus, tests)))
    assert (parsed.format, parsed.verdict) == ("nvbandwidth", PASS), codes(parsed)
    assert parsed.tags["nvbandwidth_version"] == version
    assert "NVIDIA H200" in parsed.tags["device"]
    assert value(parsed, "host_to_device_memcpy_ce", 0, gpus - 1) == 55 + (gpus - 1) / 10
    if gpus > 1:
        assert value(parsed, f"{READ_CE}_total", 1, 0) == 372.0
        latency = parsed.measurement("device_to_device_latency_sm", row="1", column="0")
        assert latency is not None
        assert (latency.unit, latency.value) == ("ns", 701.0)


def test_text_and_json_of_a_run_have_the_same_measurements() -> None:
    words = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"
    name = "device_to_device_memcpy_read_ce"
    text = read(HEAD + f"Running {name}.\n" + printed(name, words, square(370.0)) + NOTE)
    tests = [case(name, cells(2, 2, 370.0), words)]
    other = read(styled(root("v0.8", 2, tests)))
    assert [(one.name, one.value, one.unit, one.labels) for one in text.measurements] == [
        (one.name, one.value, one.unit, one.labels) for one in other.measurements
    ]


def changed(index: int, **changes: Any) -> list[dict[str, Any]]:
    """Return the tests of four GPUs, of which one is changed."""
    tests = cases(4)
    tests[index].update(changes)
    return tests


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("tests", "verdict", "code"),
    [
        # The tests have fewer or more GPUs than the list of devices, although each matrix is consistent.
        (cases(3), UNPROVEN, "rows_missing"),
        ([*cases(4)[:1], case("device_to_device_memcpy_read_ce", cells(3, 3))], UNPROVEN, "rows_missing"),
        ([case("host_to_device_memcpy_ce", cells(1, 3, 55.0, with_host=True))], UNPROVEN, "rows_missing"),
        (cases(5), UNPROVEN, "devices_contradict"),
        # One GPU has no access to the others.
        (
            [case("device_to_device_memcpy_read_ce", [["N/A"] * 4, *cells(4, 4)[1:]])],
            UNPROVEN,
            "rows_missing",
        ),
        (changed(1, status="Running"), UNPROVEN, "tool_error"),
        (changed(1, status="ERROR"), UNPROVEN, "tool_error"),
        (changed(1, status="Error"), FAIL, "tool_error"),
        (changed(1, sum=1.0), UNPROVEN, "sum_mismatch"),
        (changed(1, sum=None), UNPROVEN, "sum_mismatch"),
        (changed(0, bandwidth_matrix=[["nan"] * 4]), UNPROVEN, "impossible_value"),
        (changed(0, bandwidth_matrix=[["2000"] * 4], sum=8000), UNPROVEN, "impossible_value"),
        ([], UNPROVEN, "no_rows"),
    ],
)
def test_a_fault_in_json_is_found(
    version: str, tests: list[dict[str, Any]], verdict: Verdict, code: str
) -> None:
    parsed = read(before(version, 4) + styled(root(version, 4, tests)))
    assert parsed.verdict is verdict
    assert code in {one.code for one in parsed.findings}


@pytest.mark.parametrize("version", VERSIONS)
def test_json_without_its_devices_or_with_others_is_unproven(version: str) -> None:
    for change in (
        lambda text: text.replace(DEVICES, "else").replace("Device ", "Else "),
        lambda text: text.replace("NVIDIA H200", "NVIDIA H100 80GB HBM3", 1),
        lambda text: "\n".join(line for line in text.split("\n") if "00000000:11:00" not in line),
        lambda text: text.replace("(00000000:11:00)", "?"),
    ):
        text = before(version, 4) + styled(root(version, 4))
        assert change(text) != text
        assert read(change(text)).verdict is UNPROVEN


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("label", ["0: ", "[1,0]<stdout>:", "[0] ", "n01: "])
def test_a_launchers_labels_hide_no_json(version: str, label: str) -> None:
    text = before(version, 2) + styled(root(version, 2))
    parsed = read("".join(label + line for line in text.splitlines(True)))
    plain = read(text)
    assert (parsed.format, parsed.verdict) == ("nvbandwidth", PASS), codes(parsed)
    assert [(one.name, one.value) for one in parsed.measurements] == [
        (one.name, one.value) for one in plain.measurements
    ]


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda good, bad: good + good, PASS),
        (lambda good, bad: "warning: no persistence mode\n" + good, PASS),
        (lambda good, bad: good + "slurmstepd: info: done\n", PASS),
        (lambda good, bad: good + bad, UNPROVEN),
        (lambda good, bad: bad + good, UNPROVEN),
        (lambda good, bad: good + good[: len(good) // 2], UNPROVEN),
        (lambda good, bad: good[:-3], UNPROVEN),
        (lambda good, bad: good[:-3] + "\n" + good, UNPROVEN),
        (lambda good, bad: HEAD + ONE_WAY + good, UNPROVEN),
        (lambda good, bad: good + HEAD + ONE_WAY, UNPROVEN),
        (lambda good, bad: good + HEAD + ONE_WAY + NOTE, PASS),
        (lambda good, bad: good.replace('"sum"', '"sum" : 1,\n"sum"', 1), UNPROVEN),
        (lambda good, bad: good + "[CUDA_ERROR_ECC_UNCORRECTABLE] uncorrectable ECC in expression\n", FAIL),
        (lambda good, bad: "[CUDA_ERROR_ECC_UNCORRECTABLE] uncorrectable ECC\n" + good, FAIL),
        (lambda good, bad: good.replace('"testcases"', '"error" : "NVML_ERROR",\n"testcases"', 1), FAIL),
        (lambda good, bad: '{"nvbandwidth" : {"error" : "no CUDA device", "version" : "v0.8"}}', FAIL),
    ],
)
def test_each_document_and_the_text_around_it_counts(
    change: Callable[[str, str], str], verdict: Verdict
) -> None:
    good, bad = styled(root("v0.8", 2)), styled(root("v0.8", 2, [{"name": "x", "status": "Running"}]))
    parsed = read(change(good, bad))
    assert (parsed.format, parsed.verdict) == ("nvbandwidth", verdict), codes(parsed)


def test_json_of_several_processes_is_read_by_process() -> None:
    # `srun --label nvbandwidth -j` on two nodes mixes the lines of both.
    text = styled(root("v0.8", 2)).splitlines(True)
    mixed = "".join(f"{rank}: {line}" for line in text for rank in (0, 1))
    parsed = read(mixed)
    assert parsed.verdict is PASS, codes(parsed)
    assert len(parsed.measurements) == 2 * len(read("".join(text)).measurements)
    assert read(mixed + "1: warning: a line of text\n").verdict is PASS
    lost = "".join(f"{rank}: {line}" for line in text for rank in (0, 1) if rank == 0 or '"sum"' not in line)
    assert read(lost).verdict is UNPROVEN


def test_the_list_of_a_run_on_several_nodes_has_one_nodes_devices() -> None:
    words = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"
    tests = [case("multinode_device_to_device_memcpy_read_ce", cells(8, 8), words)]
    assert read(styled(root("v0.8", 4, tests))).verdict is PASS
    assert read(styled(root("v0.8", 4, [*tests, *cases(3)]))).verdict is UNPROVEN


def test_json_in_the_log_of_another_tool_is_found() -> None:
    gpu_burn = "Tested 1 GPUs:\n\tGPU 0: OK\n"
    parsed = logs.parse(io.BytesIO((gpu_burn + styled(root("v0.8", 2))).encode()), format="gpu_burn")
    assert parsed.verdict is not PASS
    whole = read(gpu_burn + styled(root("v0.8", 2)))
    assert "second_tool" in codes(whole)
