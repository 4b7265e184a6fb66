"""Test the shipped benchmarks of well-known tools with recorded outputs of these tools.

The output of each tool, read by its benchmark's format, must give a measurement to the benchmark's rules.
Failed outputs must fail. Two versions of a tool, where they were at hand, have the same result.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from rackproof.core.definitions import load_definition
from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs import FORMATS, read_log_file

FAIL, PASS = Verdict.FAIL, Verdict.PASS
OUTPUTS = [
    ("stream", "tools/stream-5.10.txt", PASS, {"stream_copy", "stream_scale", "stream_add", "stream_triad"}),
    ("hpl", "tools/hpl-2.3.txt", PASS, {"hpl_speed", "hpl_tests_passed"}),
    ("hpl", "tools/hpl-2.3-failed.txt", FAIL, {"hpl_speed"}),
    ("ior", "tools/ior-3.3.txt", PASS, {"ior_write", "ior_read"}),
    ("ior", "tools/ior-4.1.txt", PASS, {"ior_write", "ior_read"}),
    ("ior", "tools/ior-3.3-wrong-data.txt", FAIL, {"ior_read"}),
    ("ior", "tools/ior-4.1-wrong-data.txt", FAIL, {"ior_read"}),
    (
        "mdtest",
        "tools/mdtest-3.3.txt",
        PASS,
        {"mdtest_file_creation", "mdtest_file_stat", "mdtest_file_removal"},
    ),
    (
        "mdtest",
        "tools/mdtest-4.1.txt",
        PASS,
        {"mdtest_file_creation", "mdtest_file_stat", "mdtest_file_removal"},
    ),
    ("fio", "tools/fio-3.33-randread-jobs.txt", PASS, {"fio_read_bw", "fio_read_iops", "fio_read_lat_p99"}),
    ("fio-verify", "tools/fio-3.33-verify-write.txt", PASS, {"fio_verified", "fio_write_bw", "fio_read_bw"}),
    ("fio-verify", "tools/fio-3.33-verify-error.txt", FAIL, {"fio_read_bw"}),
    ("gpu-burn", "tools/gpu_burn-h200.txt", PASS, {"gpu_burn_errors", "gpu_burn_speed"}),
    ("gpu-burn", "tools/gpu_burn.log.xz", PASS, {"gpu_burn_errors", "gpu_burn_speed"}),
    (
        "nvbandwidth",
        "tools/nvbandwidth-0.8-h200.txt",
        PASS,
        {"host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_local_copy"},
    ),
    (
        "nvbandwidth",
        "tools/nvbandwidth_results.log",
        PASS,
        {"host_to_device_memcpy_ce", "device_to_host_memcpy_ce"},
    ),
    ("perftest", "tools/ib_loopback_8M_size.log", PASS, {"ib_write_bw"}),
    ("perftest", "tools/ib_loopback_all_sizes.log", PASS, {"ib_write_bw"}),
    ("nccl-tests", "nccl/b200-8gpu-all_reduce.txt", PASS, {"all_reduce_busbw", "wrong_values"}),
    # This version did not count wrong values, so a run of it is unproven.
    ("nccl-tests", "nccl/a100-8gpu-all_reduce.txt", PASS, {"all_reduce_busbw"}),
]
"""Benchmark, output, verdict of the log, and the metrics of the benchmark's rules that it measures."""


@pytest.mark.parametrize(
    ("name", "file", "verdict", "metrics"), OUTPUTS, ids=[f"{o[0]}: {o[1]}" for o in OUTPUTS]
)
def test_a_recorded_output_gives_its_verdict_and_the_metrics_of_the_rules(
    root: Path, tmp_path: Path, name: str, file: str, verdict: Verdict, metrics: set[str]
) -> None:
    log, definition = parsed(root, tmp_path, name, file)
    assert log.verdict is verdict, log.findings
    rules = {(rule.metric, rule.unit) for rule in definition.result.judge}
    # The metrics of plain lines state their units in the definition, so their rules need none.
    measured = {one.name for one in log.measurements if {(one.name, one.unit), (one.name, "")} & rules}
    assert measured == metrics


WARNINGS = [
    ("mdtest", "WARNING: unable to stat file /data/md/file.1 (mdtest.c:480)"),
    ("mdtest", 'WARNING: [RANK 000]: unlink() of file "/data/md/file.1" failed'),
    ("mdtest", "mdtest WARNING: Unable to create file /data/md/file.1"),
    ("ior", "WARNING: fsync(3) failed"),
    ("ior", "WARNING: read(3, 0x1, 1048576) returned EOF prematurely"),
    ("ior", "WARNING: inconsistent file size by different tasks"),
    ("ior", "ior WARNING: incorrect data on read (1 errors found)"),
]
"""Lines of failed operations, after which the tools go on and print their rates."""


@pytest.mark.parametrize(("name", "line"), WARNINGS)
def test_an_operation_that_failed_is_a_failure_whatever_the_rates(
    root: Path, tmp_path: Path, name: str, line: str
) -> None:
    lines = (root / f"tests/data/real/tools/{name}-4.1.txt").read_text().splitlines()
    path = tmp_path / "log.txt"
    path.write_text("\n".join([*lines[:-3], line, *lines[-3:], ""]))
    definition = load_definition(root / f"benchmarks/{name}.yml", log_formats=FORMATS).definition
    log, _ = read_log_file(path, path.name, lines=definition.result.lines)
    assert log.verdict is FAIL


def test_the_rows_of_older_versions_of_ior_are_read(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    rows = "write     622.60   65536      1024.00    0.000087   0.102763   0.000007   0.102795   0   \n"
    path.write_text(f"{rows}{rows.replace('write', 'read ')}Finished: Sat Nov 28 23:55:44 2026\n")
    definition = load_definition(root / "benchmarks/ior.yml", log_formats=FORMATS).definition
    log, _ = read_log_file(path, path.name, lines=definition.result.lines)
    assert {one.name: one.value for one in log.measurements} == {"ior_write": 622.6, "ior_read": 622.6}


def parsed(root: Path, tmp_path: Path, name: str, file: str) -> tuple[ParsedLog, object]:
    """Return the log of an output, read as a run of the benchmark is read, and the definition."""
    definition = load_definition(root / f"benchmarks/{name}.yml", log_formats=FORMATS).definition
    path = root / "tests/data/real" / file
    if path.suffix == ".xz":
        plain = tmp_path / path.stem
        plain.write_bytes(lzma.decompress(path.read_bytes()))
        path = plain
    result = definition.result
    log, _ = read_log_file(path, path.name, format=result.format, lines=result.lines)
    return log, definition


@pytest.mark.parametrize("name", sorted({name for name, *_ in OUTPUTS} | {"dcgmi-diag"}))
def test_the_benchmark_of_a_tool_is_in_the_suite_tools_and_names_the_tool(root: Path, name: str) -> None:
    definition = load_definition(root / f"benchmarks/{name}.yml", log_formats=FORMATS).definition
    assert "tools" in definition.suites
    assert (
        "if it is on" in definition.summary
        or "if they are on" in definition.summary
        or "if DCGM is on" in definition.summary
    )
