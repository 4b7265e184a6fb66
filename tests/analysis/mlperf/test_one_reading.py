"""Test that ``rackproof parse`` and ``rackproof score`` judge a log alike.

A score must not pass if one of its logs does not pass. These tests damage real logs at random and insert
lines of faults. They compare the verdict of the log with that of ten runs of which one has this log
(:mod:`rackproof.analysis.mlperf.worker`). Other tests check the dates of runs, and the evidence that a score
needs of each run.
"""

from __future__ import annotations

import dataclasses
import io
import lzma
import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rackproof import logs
from rackproof.analysis.mlperf.repeats import RunTrace, date_findings
from rackproof.analysis.mlperf.required_evidence import RUN_OF_SCORE, score_lacks
from rackproof.analysis.mlperf.rounds import round_period
from rackproof.analysis.mlperf.score import RcpResult, RunScore, WorkerReport, score_of_report
from rackproof.analysis.mlperf.worker import findings_of_log
from rackproof.core.records import ParsedLog, Verdict
from tests.logs.test_fault_lines import ALWAYS, DURING, LOG, real, with_line

MLPERF = ("mllog", "mll06", "mlp05")
NOT_COMPARED = RcpResult(applies=False, message="not compared")


def score_with(parsed: ParsedLog, *, compliant: bool = True, status: str = "success") -> Verdict:
    """Return the verdict of ten runs, of which one has this log. The others are good."""
    good = status == "success"
    runs = [
        RunScore(
            file=f"result_{number}.txt",
            sha256=str(number),
            digest=str(number),
            minutes=10.0 + number if good or number else None,
            status="success" if number else status,
            compliant=compliant or number > 0,
            events=40,
            benchmark="llama2_70b_lora",
            division="closed",
            global_batch_size=8.0,
        )
        for number in range(10)
    ]
    found = findings_of_log(parsed, scores=runs[0].scores, stopped=good)
    report = WorkerReport(runs=tuple(runs), runs_needed=10, rcp=NOT_COMPARED, findings=tuple(found))
    return score_of_report(report, folder="x", ruleset="5.1.0").verdict


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return a log with lines removed, doubled or moved, wrong numbers, no end, or a fault's text."""
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    kind = chance.randrange(6)
    if kind == 0:
        del lines[at : at + chance.randint(1, 5)]
    elif kind == 1:
        lines.insert(at, lines[chance.randrange(len(lines))])
    elif kind == 2:
        lines.insert(at, lines.pop(chance.randrange(len(lines))))
    elif kind == 3:
        lines[at] = lines[at].replace(b": 0.", b': NaN, "x": 0.').replace(b": 1", b": -1")
    elif kind == 4:
        return data[: chance.randrange(len(data))]
    else:
        lines.insert(at, chance.choice([*(one[0] for one in ALWAYS), *(one[0] for one in DURING)]).encode())
    return b"\n".join(lines)


DATA = Path(__file__).resolve().parents[2] / "data/real"
LOGS = sorted(
    str(path.relative_to(DATA))
    for folder in ("mlperf-5.1", "mlperf-0.6", "mlperf-hard", "runs")
    for path in (DATA / folder).rglob("*")
    if path.name.removesuffix(".xz").endswith((".txt", ".log"))
)


@pytest.mark.parametrize("name", LOGS)
def test_a_score_does_not_pass_with_a_log_that_parse_does_not_pass(name: str) -> None:
    data = (DATA / name).read_bytes()
    data = lzma.decompress(data) if name.endswith(".xz") else data
    chance = random.Random(f"one reading {name}")
    for mutant in (data, *(damaged(data, chance) for _ in range(12))):
        parsed = logs.parse(io.BytesIO(mutant))
        if parsed.format not in MLPERF or parsed.verdict is Verdict.PASS:
            continue
        assert score_with(parsed) is not Verdict.PASS
        assert score_with(parsed, compliant=False) is not Verdict.PASS
        assert score_with(parsed).gates is parsed.verdict.gates


@pytest.mark.parametrize(
    "line",
    [text for text, _, _ in DURING]
    + [text for text, _ in ALWAYS]
    + [
        "slurmstepd: error: *** JOB 174 ON node01 CANCELLED AT 2025-10-08T00:32:36 ***",
        "slurmstepd: error: *** STEP 174.0 ON node01 CANCELLED AT 2025-10-08T00:32:36 DUE TO TIME LIMIT ***",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=174.0",
        "Out of memory: Killed process 1234 (python)",
        "loss: nan",
    ],
)
def test_a_fault_has_the_same_verdict_in_parse_and_score(root: Path, line: str) -> None:
    parsed = with_line(real(root, LOG), line)
    assert parsed.verdict is not Verdict.PASS
    assert score_with(parsed) is parsed.verdict


@pytest.mark.parametrize(
    ("keep", "more", "verdict"),
    [
        # A part of the log is missing, so it does not show that the run failed.
        (0.5, "", "unproven"),
        (0.9, "", "unproven"),
        # The log shows the failure, and the rules count the run as the slowest.
        (0.9, "slurmstepd: error: *** JOB 174 ON n1 CANCELLED AT 2025-10-08T00:32:36 ***\n", "pass"),
        (0.9, "7: torch.OutOfMemoryError: CUDA out of memory.\n", "pass"),
        # The fault is in the system, which the other runs used, too.
        (0.9, "NVRM: Xid (PCI:0009:01:00): 79, pid=1, GPU has fallen off the bus.\n", "fail"),
        (0.9, "CUDA error: uncorrectable ECC error encountered\n", "fail"),
        (0.9, "srun: error: Node failure on node02\n", "fail"),
    ],
)
def test_a_run_counts_as_the_slowest_only_if_its_log_shows_that_it_failed(
    root: Path, keep: float, more: str, verdict: str
) -> None:
    lines = real(root, LOG)
    stop = next(at for at, one in enumerate(lines) if "run_stop" in one)
    parsed = logs.parse(io.BytesIO("".join([*lines[: int(stop * keep)], more]).encode()))
    assert score_with(parsed, status="") == verdict


NOW = datetime(2026, 11, 25, tzinfo=UTC)


# Rules, day of a run, and whether the day is a finding. The score is made on 25 November 2026.
@pytest.mark.parametrize(
    ("ruleset", "day", "found"),
    [
        ("5.1.0", "2026-11-24", False),
        ("5.1.0", "2025-12-01", False),
        # Days in the time of the round, and days in neither period.
        ("5.1.0", "2025-10-07", False),
        ("5.1.0", "2025-11-15", True),
        ("5.1.0", "2024-10-01", False),
        ("5.1.0", "2024-04-01", True),
        ("5.1.0", "1970-01-02", True),
        ("5.1.0", "2026-11-27", True),
        ("5.1.0", "2099-01-01", True),
        ("6.1.0", "2026-10-07", False),
        ("6.1.0", "2025-10-07", True),
        ("0.6.0", "2019-12-04", False),
        ("0.6.0", "2020-12-04", True),
        ("0.7.0", "2020-06-01", False),
        ("0.7.0", "2018-12-01", True),
    ],
)
def test_a_run_outside_the_last_year_and_its_round_is_unproven(ruleset: str, day: str, found: bool) -> None:
    start = datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()
    trace = RunTrace("result_0.txt", start=start, stop=start + 600)
    codes = [(one.code, one.verdict) for one in date_findings([trace], round_period(ruleset), NOW)]
    assert codes == ([("another_time", Verdict.UNPROVEN)] if found else [])


@pytest.mark.parametrize(
    ("ruleset", "day", "found"),
    [
        ("1.0.0", "2021-10-15", False),
        ("2.0.0", "2022-10-10", False),
        ("3.0.0", "2023-10-10", False),
        ("3.0.0", "2023-12-10", True),
        ("0.6.0", "2019-12-04", True),
    ],
)
def test_rounds_of_hpc_have_their_own_periods(ruleset: str, day: str, found: bool) -> None:
    start = datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()
    trace = RunTrace("result_0.txt", start=start, stop=start + 600)
    assert bool(list(date_findings([trace], round_period(ruleset, "hpc"), NOW))) is found


@pytest.mark.parametrize("seconds", [-1e18, 1e300, 253402300800.0])
def test_a_time_outside_the_calendar_is_named_in_seconds(seconds: float) -> None:
    trace = RunTrace("result_0.txt", start=seconds)
    (found,) = date_findings([trace], None, NOW - timedelta(days=1))
    assert "after 1970" in found.message


def test_every_field_of_a_runs_course_has_a_row() -> None:
    assert {one.name for one in dataclasses.fields(RunTrace)} == {row.name for row in RUN_OF_SCORE}


@pytest.mark.parametrize("row", RUN_OF_SCORE, ids=lambda row: row.name)
@pytest.mark.parametrize("value", [None, math.nan, ()])
def test_a_run_without_a_part_of_its_course_is_unproven(row: object, value: object) -> None:
    trace = RunTrace("result_0.txt", "bert", start=1.0, stop=2.0, times=(1.0, 2.0), course="c")
    assert list(score_lacks([trace])) == []
    name: str = row.name  # type: ignore[attr-defined]
    if name in ("scores", "file"):
        return  # every run has these two
    setattr(trace, name, value)
    found = [one.verdict for one in score_lacks([trace])]
    assert found == ([] if row.harmless else [Verdict.UNPROVEN])  # type: ignore[attr-defined]
