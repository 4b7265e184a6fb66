"""Test the end of the log on the page of a failed or unproven run, and left-out runs on a plan's page.

The page of a run shows the last lines of its log without control characters, and markup in them as text. A
log outside the folder of the run is not shown.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rackproof.core.records import LogFile, Run, Verdict
from rackproof.report import read_log_end, render, write_plan_reports
from rackproof.report.html import plan_page


def failed(path: str = "logs/log.txt", verdict: Verdict = Verdict.FAIL) -> Run:
    """Return a run with a log."""
    log = LogFile(path=path, format="mllog", sha256="0" * 64, size_bytes=1)
    return Run(run_id="run-1", benchmark="toy", verdict=verdict, logs=(log,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run, whose log is long and has markup and an escape sequence at its end."""
    (tmp_path / "run/logs").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("of another file")
    lines = [f"line {number}" for number in range(5000)]
    (tmp_path / "run/logs/log.txt").write_text(
        "\n".join([*lines, "  Error: <b>no</b> \x1b[2Jroom", "x" * 9999])
    )
    return tmp_path / "run"


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_a_failed_or_unproven_run_has_the_end_of_its_log(folder: Path, verdict: Verdict) -> None:
    lines = read_log_end(failed(verdict=verdict), folder)
    assert bool(lines) is (verdict in (Verdict.FAIL, Verdict.UNPROVEN))
    if lines:
        assert len(lines) == 20
        assert lines[-2] == "Error: <b>no</b> room"
        assert len(lines[-1]) == 300


def test_the_page_shows_the_end_of_the_log_as_text(folder: Path) -> None:
    page = render([failed()], "html", folder=folder).decode()
    assert "Error: &lt;b&gt;no&lt;/b&gt; room" in page
    assert "The end of the log" not in render([failed()], "html").decode()


@pytest.mark.parametrize(
    "path", ["../secret.txt", "/etc/hostname", "logs", "logs/gone.txt", "logs/link", "a\0b.log"]
)
def test_a_log_outside_of_the_runs_folder_or_missing_is_not_shown(folder: Path, path: str) -> None:
    (folder / "logs/link").symlink_to(folder.parent / "secret.txt")
    assert read_log_end(failed(path), folder) == ()


def test_a_run_that_a_plan_left_out_is_on_its_page(tmp_path: Path) -> None:
    left_out = ["gemm on n1: needs 2 GPUs, <1> there"]
    write_plan_reports([failed()], tmp_path, "toys", left_out=left_out)
    page = (tmp_path / "report.html").read_text()
    assert "Left out" in page
    assert "gemm on n1: needs 2 GPUs, &lt;1&gt; there" in page
    assert "Left out" not in plan_page([failed()], "toys")
