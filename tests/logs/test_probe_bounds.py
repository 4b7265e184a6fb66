"""Test that a probe's number of another unit, or beyond every machine, is unproven (``probe_bounds``)."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from rackproof.core.records import Direction, Measurement, Verdict
from rackproof.logs import parse
from rackproof.logs.probe_bounds import probe_problem
from tests.logs.log_samples import event

CASES = Path(__file__).parents[1] / "corpus" / "cases"
LOG = (CASES / "h200-c-memory-bandwidth-alone-2" / "localhost.log").read_text(encoding="utf-8")


def measured(name: str, value: float, unit: str) -> Measurement:
    """Return a measurement of a probe."""
    return Measurement(name=name, value=value, unit=unit, direction=Direction.HIGHER)


@pytest.mark.parametrize(
    ("name", "value", "unit"),
    [
        ("memory_copy", 4.28e6, "TB/s"),
        ("memory_triad", 4.28, "parsecs"),
        ("memory_copy", 4280, "GB/s"),
        ("memory_copy", -4.28, "TB/s"),
        ("host_to_device", 55_000, "GB/s"),
        ("device_to_host", 55, "MB/s"),
        ("peer_copy_both", 390_000, "GB/s"),
        ("all_reduce_busbw", 480_000, "GB/s"),
        ("all_gather_busbw_p95", 480, "Gbit/s"),
        ("gemm", 780_000, "TFLOP/s"),
        ("gemm_best", 780, "GFLOP/s"),
        ("wrong_values", 0, "GB/s"),
        ("wrong_values", -1, "1"),
    ],
)
def test_an_impossible_number_of_a_probe_is_found(name: str, value: float, unit: str) -> None:
    assert probe_problem(measured(name, value, unit))


@pytest.mark.parametrize(
    ("name", "value", "unit"),
    [
        ("memory_copy", 4.28, "TB/s"),
        ("memory_copy", 0.02, "TB/s"),
        ("host_to_device", 400, "GB/s"),
        ("peer_copy", 780, "GB/s"),
        ("all_reduce_busbw", 900, "GB/s"),
        ("gemm_best", 9000, "TFLOP/s"),
        ("wrong_values", 1e12, "1"),
        ("pairs", 28, "pairs"),
        ("a_name_of_a_site", 1e300, "furlongs"),
    ],
)
def test_a_possible_number_is_left_alone(name: str, value: float, unit: str) -> None:
    assert probe_problem(measured(name, value, unit)) == ""


def verdict_of(text: str) -> Verdict:
    """Return the verdict of a log."""
    return parse(io.BytesIO(text.encode())).verdict


def test_only_a_log_of_a_probe_is_bounded() -> None:
    impossible = re.sub(r'("memory_copy", "value": )(\d)', r"\g<1>99999\2", LOG)
    assert verdict_of(LOG) is Verdict.PASS
    assert verdict_of(impossible) is Verdict.UNPROVEN
    assert verdict_of(LOG.replace('"TB/s"', '"parsecs"')) is Verdict.UNPROVEN
    assert verdict_of(impossible.replace('"probe_memory_bandwidth"', '"of_a_site"')) is Verdict.PASS
    stated = {"name": "memory_copy", "value": 4280, "unit": "GB/s", "direction": "higher"}
    first = LOG.index(":::MLLOG", LOG.index('"run_start"'))
    assert verdict_of(LOG[:first] + event("measurement", stated, 1) + LOG[first:]) is Verdict.UNPROVEN
