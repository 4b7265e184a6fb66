"""Test notations of MLPerf rounds 0.5 to 0.7 that only a few submitters used.

Some logs have a quality as a list, success in words, times in seconds, or minigo's own end of a run. These
tests check that the parsers of those rounds (rackproof.logs.mlp05, mll06 and mllog) read such values, and
that a log with a damaged or impossible value does not pass.
"""

from __future__ import annotations

import io
import json

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from tests.logs.log_samples import MINIGO, MLP05, mll, mllog, stated06

PASS, FAIL, UNPROVEN = Verdict.PASS, Verdict.FAIL, Verdict.UNPROVEN


def read(data: str | bytes) -> ParsedLog:
    return logs.parse(io.BytesIO(data if isinstance(data, bytes) else data.encode()))


def codes(parsed: ParsedLog) -> set[str]:
    """Return the codes of a log's findings that have a verdict."""
    return {one.code for one in parsed.findings if one.verdict}


def maskrcnn(*evaluations: object, benchmark: str = "maskrcnn") -> str:
    """Return a log of round 0.6 with these values of eval_accuracy, one per epoch."""
    lines = [stated06(benchmark), mll("run_start", None, 10), mll("block_start", None, 10)]
    for at, value in enumerate([0.1 if benchmark == "resnet" else [0.1, 0.1], *evaluations]):
        lines.append(mll("eval_start", None, 100 + at, epoch_num=at))
        lines.append(mll("eval_accuracy", value, 100 + at, epoch_num=at))
        lines.append(mll("eval_stop", None, 100 + at, epoch_num=at))
    lines.append(mll("block_stop", None, 200))
    return "".join([*lines, mll("run_stop", None, 610, status="success")])


# The quality of boxes and masks. The targets of the rules are 0.377 and 0.339.
@pytest.mark.parametrize("called", ["maskrcnn", "mask", "mask_rcnn"])
@pytest.mark.parametrize(
    ("value", "verdict", "code"),
    [
        ([0.3783, 0.3422], PASS, ""),
        (["0.3783", "0.3422"], PASS, ""),
        ({"accuracy": [0.3783, 0.3422]}, PASS, ""),
        ({"BBOX": 0.3783, "SEGM": 0.3422}, PASS, ""),
        ([0.3760, 0.3422], FAIL, "target_not_reached"),
        ([0.3783, 0.3380], FAIL, "target_not_reached"),
        ([float("nan"), 0.3422], FAIL, "nan"),
        ([0.3783], UNPROVEN, "damaged_evaluation"),
        ([0.3783, 0.3422, 0.5], UNPROVEN, "damaged_evaluation"),
        ([0.3783, None], UNPROVEN, "damaged_evaluation"),
        ([0.3783, [0.3422]], UNPROVEN, "damaged_evaluation"),
        ({"BBOX": 0.3783, "SEGM": None}, UNPROVEN, "damaged_evaluation"),
        ([], UNPROVEN, "damaged_evaluation"),
        ({"accuracy": []}, UNPROVEN, "damaged_evaluation"),
    ],
)
def test_a_quality_in_a_list_is_read_and_a_damaged_one_is_unproven(
    called: str, value: object, verdict: Verdict, code: str
) -> None:
    # A target that an earlier evaluation reached does not replace the damaged last one.
    if verdict is UNPROVEN:
        assert read(maskrcnn([0.38, 0.35], value, benchmark=called)).verdict is UNPROVEN
    parsed = read(maskrcnn([0.2, 0.19], value, benchmark=called))
    assert (parsed.format, parsed.verdict) == ("mll06", verdict), codes(parsed)
    assert not code or code in codes(parsed)
    if verdict is PASS:
        last = {one.labels["metric"]: one.value for one in parsed.measurements if one.name == "eval_accuracy"}
        assert last == {"BBOX": 0.3783, "SEGM": 0.3422}


@pytest.mark.parametrize(("value", "verdict"), [([0.7595], PASS), ([0.7], FAIL), ([0.76, 0.2], UNPROVEN)])
def test_a_benchmark_with_one_metric_may_state_it_in_a_list(value: list[float], verdict: Verdict) -> None:
    assert read(maskrcnn(value, benchmark="resnet")).verdict is verdict


@pytest.mark.parametrize(
    ("stated", "verdict"),
    [
        (b'"true"', PASS),
        (b'"True"', PASS),
        (b'"TRUE "', PASS),
        (b"1", PASS),
        (b'"false"', FAIL),
        (b'"False"', FAIL),
        (b"0", FAIL),
        (b'"truth"', UNPROVEN),
        (b'""', UNPROVEN),
        (b"null", UNPROVEN),
        (b"2", UNPROVEN),
        (b"[true]", UNPROVEN),
        (b'{"true": true}', UNPROVEN),
    ],
)
def test_success_may_be_stated_in_words(stated: bytes, verdict: Verdict) -> None:
    parsed = read(MLP05.replace(b'"success": true', b'"success": ' + stated))
    assert (parsed.format, parsed.verdict) == ("mlp05", verdict), codes(parsed)


def in_seconds(text: bytes, write: str = "{:.3f}") -> bytes:
    """Return a log whose events have seconds instead of milliseconds."""
    lines = []
    for line in text.decode().splitlines(True):
        if line.startswith(":::MLLOG "):
            event = json.loads(line[9:])
            event["time_s"] = "TIME"
            seconds = event.pop("time_ms") / 1000
            line = ":::MLLOG " + json.dumps(event).replace('"TIME"', write.format(seconds)) + "\n"
        lines.append(line)
    return "".join(lines).encode()


@pytest.mark.parametrize("write", ["{:.3f}", "{:.0f}", '"{:.3f}"'])
def test_times_in_seconds_give_the_same_measurements(write: str) -> None:
    parsed, plain = read(in_seconds(mllog(), write)), read(mllog())
    assert parsed.verdict is PASS, codes(parsed)
    assert {one.name: one.value for one in parsed.measurements} == {
        one.name: one.value for one in plain.measurements
    }


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (in_seconds(mllog(status="aborted")), FAIL),
        (in_seconds(mllog(final=0.94)), FAIL),
        (in_seconds(mllog(), "null"), UNPROVEN),
        (in_seconds(mllog(), "0.0"), UNPROVEN),
        (in_seconds(mllog(), "NaN"), UNPROVEN),
        (in_seconds(mllog()).replace(b"time_s", b"time"), UNPROVEN),
        (mllog().replace(b'"time_ms": 1700000360000', b'"time_s": 1700000010, "time_ms": null'), UNPROVEN),
    ],
)
def test_a_log_in_seconds_with_a_failure_or_damaged_times_does_not_pass(
    data: bytes, verdict: Verdict
) -> None:
    assert read(data).verdict is verdict


def test_an_event_at_time_0_counts() -> None:
    # Without its benchmark, a log would be compared with no target.
    head = ':::MLLOG {"time_s": 0.0, "key": "submission_benchmark", "value": "resnet", "metadata": {}}\n'
    body = in_seconds(mllog(final=0.7, before=0.6)).decode()
    body = "".join(line for line in body.splitlines(True) if "submission_benchmark" not in line)
    parsed = read(head + body)
    assert parsed.tags["submission_benchmark"] == "resnet"
    assert codes(parsed) == {"target_not_reached"}


STOP = b'run_stop: {"success": true}'


@pytest.mark.parametrize(
    ("stop", "final", "verdict"),
    [
        (b'run_stop: "aborted"', b'run_final: {"success": true}', FAIL),
        (b"run_stop: aborted", b'run_final: {"success": true}', FAIL),
        (b"run_stop: false", b'run_final: {"success": true}', FAIL),
        (b'run_stop: "false"', b'run_final: {"success": true}', FAIL),
        (STOP, b'run_final: "aborted"', FAIL),
        (STOP, b"run_final: false", FAIL),
        (b'run_stop: {"success": "truth"}', b'run_final: {"success": true}', UNPROVEN),
        (b'run_stop: {"success": 2}', b'run_final: {"success": true}', UNPROVEN),
        (b"run_stop: 7", b"run_final", UNPROVEN),
        (b"run_stop", b"run_final", UNPROVEN),
        (b"run_stop", b'run_final: {"success": true}', PASS),
        (b"run_stop: null", b'run_final: {"success": "true"}', PASS),
        (b"run_stop: true", b"run_final", PASS),
        (b'run_stop: "success"', b"run_final", PASS),
        (STOP, b'run_final: {"success": true}', PASS),
    ],
)
def test_a_stated_outcome_of_round_05_is_kept(stop: bytes, final: bytes, verdict: Verdict) -> None:
    parsed = read(MLP05.replace(STOP, stop).replace(b"run_final", final))
    assert parsed.verdict is verdict, codes(parsed)


@pytest.mark.parametrize("outcome", [b'{"success": false}', b'"aborted"', b'{"status": "aborted"}'])
def test_an_abort_before_the_end_of_round_05_is_kept(outcome: bytes) -> None:
    early = b":::MLPv0.5.0 resnet 1541053599 (main.cpp:19) run_final: "
    end = b":::MLPv0.5.0 resnet 1541053600.5"
    assert read(MLP05.replace(end, early + outcome + b"\n" + end)).verdict is FAIL
    assert read(MLP05.replace(end, early + b'{"success": true}\n' + end)).verdict is PASS


# `new` is another time until the end in seconds, or another number of iterations. The log covers 891 s, and
# the iterations that it states took 120 s and 60 s.
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"600.0", b"0.001"),
        (b"600.0", b"17.9"),
        (b"600.0", b"80.0"),
        (b"600.0", b"1e9"),
        (b"600.0", b"892.0"),
        (b'"iteration": 18', b'"iteration": 1e300'),
        (b'"iteration": 18', b'"iteration": 800'),
    ],
)
def test_a_time_that_minigo_cannot_have_needed_is_unproven(old: bytes, new: bytes) -> None:
    parsed = read(MINIGO.replace(old, new))
    assert (parsed.verdict, codes(parsed)) == (UNPROVEN, {"impossible_value"})
    assert parsed.measurement("time_to_train") is None


def test_a_time_of_minigo_without_lines_of_its_iterations_is_bounded() -> None:
    silent = MINIGO.replace(b"Iteration time", b"Time")
    assert read(silent).verdict is PASS
    assert read(silent.replace(b"600.0", b"0.001")).verdict is UNPROVEN


@pytest.mark.parametrize("milliseconds", range(7))
def test_a_time_of_minigo_may_end_in_the_millisecond_of_its_event(milliseconds: int) -> None:
    # In floats, 1570000910.004 - 1570000010 is less than 900.004.
    logged = f"{1_570_000_910}.{milliseconds:03d} eval_result".encode()
    log = MINIGO.replace(b"1570000901.000 eval_result", logged)
    time = f"900.{milliseconds:03d}".encode()
    assert read(log.replace(b"600.0", time)).verdict is PASS
    assert read(log.replace(b"600.0", f"900.{milliseconds + 1:03d}".encode())).verdict is UNPROVEN


@pytest.mark.parametrize("event", ["eval_result", "eval_accuracy"])
def test_a_missing_event_of_minigo_is_named(event: str) -> None:
    parsed = read(MINIGO.replace(event.encode(), b"other"))
    (found,) = [one for one in parsed.findings if one.code == "target_not_beaten"]
    assert found.message.startswith(f"no {event}")
