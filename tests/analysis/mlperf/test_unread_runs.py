"""Test that a run in a file that the score does not read is found, and a copy of a scored log is not."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rackproof.analysis.mlperf.score import result_files, score_folder
from rackproof.analysis.mlperf.unread_runs import unread_findings
from rackproof.core.records import Finding, Verdict
from tests.analysis.mlperf.samples import event, fill, result, write


def findings_of(folder: Path) -> list[Finding]:
    """Return the findings about a folder, in which results are named ``result_*``."""
    return list(
        unread_findings(
            folder,
            result_files(folder),
            lambda path: path.name.startswith("result_"),
            lambda path: path.name.startswith(("compliance_", "slurm-")),
        )
    )


def with_file(name: str, lines: list[str]) -> Callable[[Path], None]:
    """Return a function that writes a file into a folder, which may be in a subfolder."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, lines)

    return change


def dangling(folder: Path) -> None:
    (folder / "result_11.txt").symlink_to(folder / "absent")


def compressed(folder: Path) -> None:
    (folder / "run_11.txt.gz").write_bytes(gzip.compress("\n".join(result(10)).encode()))


CUT = [line for line in result(10) if "run_stop" not in line][:-6]


@pytest.mark.parametrize(
    "hide",
    [
        with_file("result_11.log", CUT),
        with_file("run_11.txt", CUT),
        with_file("run_11", result(10, status="aborted")),
        with_file(".result_11.txt", CUT),
        with_file("more/result_11.txt", CUT),
        with_file("more/deeper/x.out", result(10)),
        with_file("slurm-12.out", [*result(0), *CUT]),
        # The events of a failed end that follow a scored start are not a copy either.
        with_file("result_11.log", [line for line in result(3) if "run_stop" not in line]),
        with_file("run_3.txt", result(3, status="aborted")),
        dangling,
        compressed,
    ],
)
def test_a_run_that_is_not_read_leaves_the_score_unproven(
    hide: Callable[[Path], None], tmp_path: Path
) -> None:
    fill(tmp_path)
    hide(tmp_path)
    (found,) = findings_of(tmp_path)
    assert (found.code, found.verdict) == ("unread_run", Verdict.UNPROVEN)


def test_an_old_notation_is_read(tmp_path: Path) -> None:
    old = [":::MLL 1572271101.071 run_start: {}", ':::MLL 1572272101.0 run_stop: {"status": "success"}']
    write(tmp_path / "result_0.txt", old)
    write(tmp_path / "copy.log", old)
    assert findings_of(tmp_path) == []
    write(tmp_path / "other.log", [line.replace("157227", "157237") for line in old])
    assert [found.source.file for found in findings_of(tmp_path)] == ["other.log"]


@pytest.mark.parametrize(
    "copy",
    [
        with_file("raw_logs/train_run3.log", ["more text", *result(3)]),
        with_file("251007143012_1.log", result(0)),
        with_file("slurm-12.out", [line for number in range(10) for line in result(number)]),
        # A checker quotes lines.
        with_file("compliance_3.out", [f"failed in line 3: {result(3)[-18]}", "ERROR"]),
        # Another rank starts a little later.
        with_file(
            "rank1.log",
            [line.replace('"time_ms": 1759852000000', '"time_ms": 1759852000900') for line in result()],
        ),
        with_file("bert/result_0.txt", result(30, benchmark="bert")),
        with_file("power/node_0.txt", [event(1_759_952_000_000, "power_reading", 700)]),
        with_file("parse.sh", ["grep ':::MLLOG' $1 | grep run_start"]),
        with_file("README.md", ["The time is from run_start to run_stop."]),
        lambda folder: (folder / "weights.bin").write_bytes(b"\0" * 600 + "\n".join(CUT).encode()),
        lambda folder: os.symlink("/absent", folder / "data"),
        with_file("scaling.json", ['{"scaling_factor": 1.02}']),
    ],
)
def test_copies_and_other_files_are_no_runs(copy: Callable[[Path], None], tmp_path: Path) -> None:
    fill(tmp_path)
    copy(tmp_path)
    assert findings_of(tmp_path) == []


def test_a_failed_scored_run_may_have_a_copy(tmp_path: Path) -> None:
    fill(tmp_path, runs=2)
    write(tmp_path / "result_10.txt", CUT)
    with_file("raw_logs/run_10.log", CUT)(tmp_path)
    assert findings_of(tmp_path) == []


def test_a_log_without_run_start_is_only_named(tmp_path: Path) -> None:
    fill(tmp_path)
    write(tmp_path / "run_11.txt", result(10)[:10])
    (found,) = findings_of(tmp_path)
    assert found.verdict is None
    assert "run_11.txt has MLPerf events without run_start" in found.message


def test_many_files_are_counted(tmp_path: Path) -> None:
    fill(tmp_path)
    for number in range(20, 26):
        with_file(f"more/run_{number}.log", result(number))(tmp_path)
    (found,) = findings_of(tmp_path)
    assert "more/run_22.log (and 3 other files) have runs that are in no scored log" in found.message


def test_a_score_names_a_renamed_failure(tmp_path: Path) -> None:
    fill(tmp_path)
    write(tmp_path / "result_11.log", CUT)
    score = score_folder(tmp_path, ruleset="5.1.0")
    assert score.verdict is Verdict.UNPROVEN
    assert "result_11.log has a run that is in no scored log" in score.reasons[0]
