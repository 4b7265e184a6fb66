"""Test that logs of MLPerf HPC and MLPerf Inference are not judged by the rules of MLPerf Training.

The suites share a notation of events, but have other benchmarks and rules. A log of another suite therefore
does not pass, and its finding names the suite (:mod:`rackproof.logs.other_mlperf`). A log of HPC passes only
if its format is requested.
"""

from __future__ import annotations

import io

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from tests.logs.log_samples import event, mllog

FAIL, UNPROVEN = Verdict.FAIL, Verdict.UNPROVEN


def read(data: bytes, format: str = "auto") -> ParsedLog:
    return logs.parse(io.BytesIO(data), format=format)


def codes(parsed: ParsedLog) -> list[str]:
    return [one.code for one in parsed.findings if one.verdict]


def hpc(name: str, **how: str) -> bytes:
    """Return a log of a benchmark of MLPerf HPC."""
    return mllog(**how).replace(b"llama2_70b_lora", name.encode())  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["auto", "mllog"])
@pytest.mark.parametrize("name", ["cosmoflow", "deepcam", "oc20", "openfold"])
def test_a_good_log_of_hpc_is_unproven_and_its_finding_names_the_benchmark(name: str, form: str) -> None:
    for data in (hpc(name), b"0: waiting for nodes\n" * 60_000 + hpc(name)):
        parsed = read(data, form)
        assert (parsed.format, parsed.verdict, codes(parsed)) == ("mlperf_hpc", UNPROVEN, ["other_suite"])
        assert name in parsed.findings[-1].message


def test_an_aborted_log_of_hpc_fails() -> None:
    parsed = read(hpc("cosmoflow", status="aborted"))
    assert (parsed.format, parsed.verdict) == ("mlperf_hpc", FAIL)


def test_a_log_of_hpc_is_judged_if_its_format_is_requested() -> None:
    assert read(hpc("deepcam"), "mlperf_hpc").verdict is Verdict.PASS
    assert read(hpc("deepcam", status="aborted"), "mlperf_hpc").verdict is FAIL


def test_a_log_of_training_that_mentions_hpc_is_still_one_of_training() -> None:
    parsed = read(mllog(event("opt_name", "cosmoflow", 200), "deepcam oc20 MLPerf HPC\n"))
    assert (parsed.format, parsed.verdict) == ("mllog", Verdict.PASS)


# From mlcommons/inference_results_v0.7 (open/dividiti, closed/QCT) and v4.0 (closed/ASUSTeK), trimmed.
RULE = "=" * 48
SUMMARY = f"""\
{RULE}
MLPerf Results Summary
{RULE}
SUT name : BERT SERVER
Scenario : Offline
Mode     : PerformanceOnly
Samples per second: 21234.5
Result is : VALID
  Min duration satisfied : Yes
"""
ACCURACY_SUMMARY = "\nNo warnings encountered during test.\n\nNo errors encountered during test.\n"
DETAIL = (
    ':::MLLOG {"key": "loadgen_version", "value": "4.0 @ 473053fc9f", "time_ms": 0.004754, "namespace": '
    '"mlperf::logging", "event_type": "POINT_IN_TIME", "metadata": {"is_error": false, "line_no": 53}}\n'
    ':::MLLOG {"key": "effective_scenario", "value": "Offline", "time_ms": 0.058854, "namespace": '
    '"mlperf::logging", "event_type": "POINT_IN_TIME", "metadata": {"is_error": false, "line_no": 409}}\n'
)
OLD_DETAIL = (
    '"pid": 3740, "tid": 3740, "ts": 16041ns : LoadgenVersionInfo:\n'
    '"pid": 3740, "tid": 3740, "ts": 16041ns : version : .5a1 @ 818cbe272a\n'
)
ACCURACY = '[\n{ "seq_id" : 0, "qsl_idx" : 3, "data" : "AB", "token_count" : 1 },\n]\n'


@pytest.mark.parametrize("text", [SUMMARY, ACCURACY_SUMMARY, DETAIL, OLD_DETAIL, ACCURACY])
@pytest.mark.parametrize("end", ["", "Result is : VALID\n", "CUDA out of memory\n"])
def test_a_log_of_inference_is_recognized_and_does_not_pass(text: str, end: str) -> None:
    parsed = read((text + end).encode())
    assert parsed.format == "mlperf_inference"
    assert parsed.verdict is (FAIL if "memory" in end else UNPROVEN)
    assert "other_suite" in codes(parsed)
    assert not parsed.measurements


def test_the_tags_of_a_summary_are_its_system_scenario_mode_and_result() -> None:
    tags = read(SUMMARY.encode()).tags
    assert tags == {
        "system": "BERT SERVER",
        "scenario": "Offline",
        "mode": "PerformanceOnly",
        "result": "VALID",
    }
