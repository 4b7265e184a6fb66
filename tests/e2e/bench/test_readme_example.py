"""Test that the example benchmarks of README.md and docs/using/benchmarks.md work as they are printed there.

The tests copy the examples from the pages and run them with bench.yml on this machine. They also check the
messages that a reader gets if the program of the README's example is not installed.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.e2e.bench.test_bench_playbook import Bench

pytestmark = pytest.mark.playbook

STREAM = """\
#!/bin/sh
echo "Number of Threads counted = $OMP_NUM_THREADS"
echo "Function    Best Rate MB/s  Avg time     Min time     Max time"
echo "Triad:           6964.4     0.038113     0.006892     0.088618"
echo "Solution Validates: avg error less than 1.000000e-13 on all three arrays"
"""
"""A program that prints the output of STREAM 5.10."""


def blocks(page: Path) -> dict[str, str]:
    """Return the first block of each language of a page."""
    found = re.findall(r"```(python|yaml)\n(.*?)```", page.read_text(), re.DOTALL)
    return dict(reversed(found))


@pytest.fixture
def bench(root: Path, tmp_path: Path) -> Bench:
    made = Bench(root, tmp_path, definitions=tmp_path / "definitions")
    shutil.copytree(root / "workloads", tmp_path / "workloads", ignore=shutil.ignore_patterns("__pycache__"))
    made.definitions.mkdir()
    return made


def test_the_readmes_benchmark_of_a_program_on_the_node_runs_as_it_stands_there(
    root: Path, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.definitions / "stream.yml").write_text(blocks(root / "README.md")["yaml"])
    # Check mode fails, because the program is missing.
    status, output = bench("-e", "benchmark=stream", "--check")
    assert status == 2, output
    assert "stream_c.exe is not there" in output.split("Before the runs can be made:")[-1]

    status, output = bench("-e", "benchmark=stream")
    assert status != 0, output
    assert [one.code for one in bench.runs()[0].findings if one.verdict][:1] == ["could_not_start"]
    assert "stream_c.exe is not there" in bench.runs()[0].reasons[0]
    shutil.rmtree(bench.results)

    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "stream_c.exe").write_text(STREAM)
    (folder / "stream_c.exe").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    status, output = bench("-e", "benchmark=stream", "--check")
    assert status == 0, output
    assert "judges speed alone" in output
    status, output = bench("-e", "benchmark=stream", "-e", "bench_resume=false")
    run = bench.runs()[0]
    assert {one.metric: one.value for one in run.judgements} == {"triad": 6964.4}, output
    # The benchmark measures only a speed, and there is no reference for it yet.
    assert run.verdict.value == "unproven", output
    assert run.software["program"] == str(folder / "stream_c.exe")


def test_the_docs_benchmark_with_a_program_of_its_own_runs_as_it_stands_there(
    root: Path, bench: Bench, tmp_path: Path, torch_python: str
) -> None:
    page = blocks(root / "docs/using/benchmarks.md")
    (tmp_path / "workloads/scratch_disk.py").write_text(page["python"])
    (bench.definitions / "scratch-disk.yml").write_text(page["yaml"])
    status, output = bench("-e", "suite=disks", bench_pythons={"torch": torch_python})
    assert status == 0, output
    runs = bench.runs()
    assert {run.parameters["size_mib"] for run in runs} == {64, 256}
    assert all({one.metric for one in run.judgements} == {"wrong_values", "disk_write"} for run in runs)
