"""Test the parser of fio's JSON (:mod:`rackproof.logs.fio`): jobs, clones, groups, errors, altered output.

Most tests alter a passing output in one place. Real outputs are in test_real_logs.py.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs import parse
from tests.logs.log_samples import fio_json

FAIL, UNPROVEN, PASS = Verdict.FAIL, Verdict.UNPROVEN, Verdict.PASS


def read(text: bytes) -> ParsedLog:
    """Return the parsed log of a text."""
    return parse(io.BytesIO(text))


def judged(text: bytes) -> tuple[Verdict, set[str]]:
    """Return the verdict of a text, and the codes of its findings with a verdict."""
    log = read(text)
    return log.verdict, {finding.code for finding in log.findings if finding.verdict}


def altered(change: Any) -> bytes:
    """Return the passing output after a function changed its document in place."""
    document = json.loads(fio_json())
    change(document)
    return f"{json.dumps(document, indent=2)}\n".encode()


def test_clones_of_a_job_are_added_and_the_slower_latency_counts() -> None:
    values = {one.name: (one.value, one.unit) for one in read(fio_json(iops=2800.1)).measurements}
    assert values == {
        "fio_read_bw": (pytest.approx(5872.0256), "MB/s"),
        "fio_read_iops": (pytest.approx(5600), "1/s"),
        "fio_read_lat": (356, "us"),
        "fio_read_lat_p99": (pytest.approx(1011.712), "us"),
    }


def _as_group(document: dict[str, Any]) -> None:
    """Make one result of the clones, as with group_reporting."""
    first, second = document["jobs"]
    for key in ("io_bytes", "bw_bytes", "iops", "total_ios"):
        first["read"][key] += second["read"][key]
    first["job_runtime"] += second["job_runtime"]
    del document["jobs"][1]


def _stopped(document: dict[str, Any]) -> None:
    """Let each clone end after a third of its time."""
    for job in document["jobs"]:
        reads = job["read"]
        reads.update(runtime=3333, io_bytes=reads["io_bytes"] // 3, total_ios=reads["total_ios"] // 3)


def _set_options(document: dict[str, Any], **options: str) -> None:
    """Set options of each clone."""
    for job in document["jobs"]:
        job["job options"].update(options)


ALTERED = {
    "a group of clones": (_as_group, PASS, set()),
    "a clone is missing": (lambda root: root["jobs"].pop(), UNPROVEN, {"rows_missing"}),
    "no job": (lambda root: root["jobs"].clear(), UNPROVEN, {"damaged_json"}),
    "jobs of a client": (lambda root: root.update(client_stats=root.pop("jobs")), UNPROVEN, {"damaged_json"}),
    "a job ended with an error": (lambda root: root["jobs"][1].update(error=28), FAIL, {"tool_error"}),
    "no error number": (lambda root: root["jobs"][1].pop("error"), UNPROVEN, {"rows_missing"}),
    "an error number of another type": (
        lambda root: root["jobs"][1].update(error=False),
        UNPROVEN,
        {"rows_missing"},
    ),
    "another speed": (
        lambda root: root["jobs"][0]["read"].update(bw_bytes=5872025600),
        UNPROVEN,
        {"figures_contradict", "no_rows"},
    ),
    "another rate": (
        lambda root: root["jobs"][0]["read"].update(iops=280.0),
        UNPROVEN,
        {"figures_contradict", "no_rows"},
    ),
    "no time": (lambda root: root["jobs"][0]["read"].pop("runtime"), UNPROVEN, {"rows_missing", "no_rows"}),
    "dropped operations": (
        lambda root: root["jobs"][0]["read"].update(drop_ios=3),
        UNPROVEN,
        {"rows_missing"},
    ),
    # fio requests the rest of a short operation again.
    "short operations": (lambda root: root["jobs"][0]["read"].update(short_ios=3), PASS, set()),
    "one clone without figures": (
        lambda root: root["jobs"][0]["read"].update(total_ios=0, io_bytes=0, runtime=0),
        UNPROVEN,
        {"rows_missing"},
    ),
    "one clone without its number of operations": (
        lambda root: root["jobs"][0]["read"].update(total_ios=0),
        UNPROVEN,
        {"rows_missing"},
    ),
    "one clone without reads": (lambda root: root["jobs"][0].pop("read"), UNPROVEN, {"rows_missing"}),
    "one clone without latencies": (
        lambda root: root["jobs"][0]["read"].pop("clat_ns"),
        UNPROVEN,
        {"rows_missing"},
    ),
    "a direction that the options name is missing": (
        lambda root: _set_options(root, rw="randrw"),
        UNPROVEN,
        {"rows_missing"},
    ),
    "errors that did not end the job": (
        lambda root: root["jobs"][0].update(total_err=2),
        FAIL,
        {"tool_error"},
    ),
    "results of clients, too": (lambda root: root.update(client_stats=[]), UNPROVEN, {"damaged_json"}),
    "half of a group": (
        lambda root: (root["jobs"].pop(), _set_options(root, size="1g", numjobs="64")),
        UNPROVEN,
        {"rows_missing"},
    ),
    "numbers as texts": (
        lambda root: [job["read"].update(runtime="10000", total_ios="28000") for job in root["jobs"]],
        PASS,
        set(),
    ),
    "an older version, without speed in bytes": (
        lambda root: [job["read"].update(bw=2867200) or job["read"].pop("bw_bytes") for job in root["jobs"]],
        PASS,
        set(),
    ),
    **{
        f"ended after a third of its time, {runtime}": (
            lambda root, runtime=runtime: (_stopped(root), _set_options(root, runtime=runtime)),
            UNPROVEN,
            {"cut_off"},
        )
        for runtime in ("10s", "10000ms", "10000000usec", "00:10", "0:00:10", "1d")
    },
    **{
        f"ended before its time with its {key}": (
            lambda root, key=key, value=value: (
                _stopped(root),
                _set_options(root, **{"size": "1t", key: value}),
            ),
            PASS,
            set(),
        )
        for key, value in (("size", "9786709333"), ("io_size", "9786709333"), ("number_ios", "9333"))
    },
    "ended before its size, without a time": (
        lambda root: [job["job options"].pop("runtime") for job in root["jobs"]],
        UNPROVEN,
        {"cut_off"},
    ),
    "ended after a third of its time": (_stopped, UNPROVEN, {"cut_off"}),
    # One clone of a job with time_based may move the bytes of all, and more.
    **{
        f"one of {count} clones that repeated its size of {size}": (
            lambda root, count=count, size=size: (
                root["jobs"].pop(),
                _set_options(root, size=size, numjobs=count),
            ),
            UNPROVEN,
            {"rows_missing"},
        )
        for count, size in (("2", "1g"), ("4", "1g"), ("64", "100m"))
    },
    "a group with time_based": (
        lambda root: (_as_group(root), _set_options(root, size="1g")),
        PASS,
        set(),
    ),
    "a group of an old version, which states no time of its clones": (
        lambda root: (_as_group(root), root["jobs"][0].pop("job_runtime"), _set_options(root, size="1g")),
        PASS,
        set(),
    ),
    **{
        f"latencies: {kind} {figures}": (
            lambda root, kind=kind, figures=figures: (
                root["jobs"][0]["read"]
                .setdefault(kind, {})
                .update({"min": 100000, "max": 2000000, "N": 28000, **figures})
            ),
            verdict,
            codes,
        )
        for kind, figures, verdict, codes in (
            ("lat_ns", {"mean": 0.0}, UNPROVEN, {"figures_contradict"}),
            ("clat_ns", {"mean": -1.0}, UNPROVEN, {"figures_contradict"}),
            ("clat_ns", {"mean": 9e9}, UNPROVEN, {"figures_contradict"}),
            ("clat_ns", {"mean": 300.0}, UNPROVEN, {"figures_contradict"}),
            ("clat_ns", {"percentile": {"99.000000": 9e12}}, UNPROVEN, {"figures_contradict"}),
            ("clat_ns", {"percentile": {"99.000000": 5}}, UNPROVEN, {"figures_contradict"}),
            ("clat_ns", {"percentile": {"99.000000": 2010000}}, PASS, set()),
            ("lat_ns", {"mean": 360000.0}, PASS, set()),
        )
    },
    "no reads at all": (
        lambda root: [job["read"].update(total_ios=0, io_bytes=0) for job in root["jobs"]],
        UNPROVEN,
        {"no_rows"},
    ),
}
"""Change of the document, verdict, and codes that are among those of the findings."""


@pytest.mark.parametrize(("change", "verdict", "codes"), ALTERED.values(), ids=ALTERED)
def test_an_altered_document_gets_its_verdict(change: Any, verdict: Verdict, codes: set[str]) -> None:
    found = judged(altered(change))
    assert found[0] is verdict
    assert codes <= found[1]


TEXT = fio_json().decode()
LINES = {
    "a verify error before the JSON": (
        "verify: bad magic header 0, wanted acca\n" + TEXT,
        FAIL,
        "wrong_values",
    ),
    "a checksum that differs": (
        "crc32c: verify failed at file /d offset 0, length 4096\n" + TEXT,
        FAIL,
        "wrong_values",
    ),
    "an error of an operation": (
        "fio: io_u error on file /d/x: Input/output error\n" + TEXT,
        FAIL,
        "tool_error",
    ),
    "a job that died": (
        "fio: pid=7, err=5/file:io_u.c:1, func=io_u error, error=I/O error\n" + TEXT,
        FAIL,
        "tool_error",
    ),
    "a clone that was killed": ("fio: pid=1423, got signal=9\n" + TEXT, FAIL, "tool_error"),
    "a clone that disappeared": ("fio: pid=3 disappeared 12\n" + TEXT, FAIL, "tool_error"),
    "clones that did not start": ("fio: 2 jobs failed to start\n" + TEXT, FAIL, "tool_error"),
    "a clone that hangs": (
        "fio: job 'x' (state=5) hasn't exited in 300 seconds, it appears to be stuck.\n" + TEXT,
        FAIL,
        "tool_error",
    ),
    "no space": ("fio: ENOSPC on laying out file, stopping\n" + TEXT, FAIL, "tool_error"),
    "the rest of a second output": (TEXT + '  "fio version" : "fio-3.33",\n', UNPROVEN, "several_runs"),
    "a signal": ("fio: terminating on signal 15\n" + TEXT, UNPROVEN, "cut_off"),
    "no time to read back": (
        "fio: verification read phase will never start because write phase uses all of runtime\n" + TEXT,
        UNPROVEN,
        "not_checked",
    ),
    "two outputs": (TEXT + TEXT, UNPROVEN, "several_runs"),
    "a cut output": (TEXT[:-3], UNPROVEN, "cut_off"),
    "a key twice": (TEXT.replace('"error": 0,', '"error": 5, "error": 0,', 1), UNPROVEN, "damaged_json"),
}


@pytest.mark.parametrize(("text", "verdict", "code"), LINES.values(), ids=LINES)
def test_lines_around_the_document_and_its_layout_count(text: str, verdict: Verdict, code: str) -> None:
    found = judged(text.encode())
    assert found[0] is verdict
    assert code in found[1]


@pytest.mark.parametrize(
    "note", ["note: both iodepth >= 1 and synchronous I/O engine are selected", "fio: look at man"]
)
def test_a_note_of_fio_is_no_finding(note: str) -> None:
    assert judged(f"{note}\n{TEXT}".encode()) == (PASS, set())


@pytest.mark.parametrize(
    ("options", "is_verified"),
    [
        ({}, False),
        ({"verify": "crc32c"}, True),
        ({"verify": "crc32c", "size": "101m"}, True),
        ({"verify": "crc32c", "size": "104m"}, False),
        ({"verify": "crc32c", "rw": "randrw"}, False),
        ({"verify": "null"}, False),
        ({"verify": ""}, False),
        ({"verify": "md5", "do_verify": "0"}, False),
    ],
)
def test_data_count_as_verified_only_if_all_of_them_were_read_back(
    options: dict[str, str], is_verified: bool
) -> None:
    def change(root: dict[str, Any]) -> None:
        del root["jobs"][1:]
        job = root["jobs"][0]
        job["job options"] = {"rw": "write", "size": "100m", **options}
        reads = {
            "io_bytes": 104857600,
            "bw_bytes": 104857600,
            "iops": 100.0,
            "runtime": 1000,
            "total_ios": 100,
        }
        job.update(read=reads, write=dict(reads), job_runtime=2000)

    values = [one.value for one in read(altered(change)).measurements if one.name == "fio_verified"]
    assert values == ([104.8576] if is_verified else [])


def test_an_option_may_be_there_twice_and_the_name_of_a_job_is_made_safe() -> None:
    text = TEXT.replace('"rw": "read",', '"rw": "write", "rw": "read",').replace(
        '"jobname": "read"', f'"jobname": "a\\u0000\\u001b[31m\\u202e{"x" * 60000}"'
    )
    log = read(text.encode())
    assert log.verdict is PASS, log.findings
    names = {one.labels["job"] for one in log.measurements}
    assert all(len(name) <= 100 and name.isprintable() for name in names)
