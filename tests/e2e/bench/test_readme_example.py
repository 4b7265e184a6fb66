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

SYSBENCH = """\
#!/bin/sh
echo "Running the test with following options:"
echo "Number of threads: $2"
echo "CPU speed:"
echo "    events per second:  6964.40"
echo "General statistics:"
echo "    total number of events:              69650"
echo "Threads fairness:"
echo "    events (avg/stddev):           69650.0000/0.00"
"""
"""A program that prints lines of the output of sysbench 1.0."""


def blocks(page: Path) -> dict[str, str]:
    """Return the first block of each language of a page."""
    found = re.findall(r"```(python|yaml)\n(.*?)```", page.read_text(), re.DOTALL)
    return dict(reversed(found))


@pytest.fixture
def bench(root: Path, tmp_path: Path) -> Bench:
    """Return a runner of bench.yml with the project's workloads and without definitions."""
    made = Bench(root, tmp_path, definitions=tmp_path / "definitions")
    shutil.copytree(root / "workloads", tmp_path / "workloads", ignore=shutil.ignore_patterns("__pycache__"))
    made.definitions.mkdir()
    return made


def test_the_readmes_benchmark_of_a_program_on_the_node_runs_as_it_stands_there(
    root: Path, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.definitions / "sysbench.yml").write_text(blocks(root / "README.md")["yaml"])
    # Check mode fails, because the program is missing.
    status, output = bench("-e", "benchmark=sysbench", "--check")
    assert status == 2, output
    assert "sysbench is not there" in output.split("Solve these problems before the runs can be made:")[-1]

    status, output = bench("-e", "benchmark=sysbench")
    assert status != 0, output
    assert [one.code for one in bench.runs()[0].findings if one.verdict][:1] == ["could_not_start"]
    assert "sysbench is not there" in bench.runs()[0].reasons[0]
    shutil.rmtree(bench.results)

    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sysbench").write_text(SYSBENCH)
    (folder / "sysbench").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    status, output = bench("-e", "benchmark=sysbench", "--check")
    assert status == 0, output
    assert "judges speed alone" in output
    status, output = bench("-e", "benchmark=sysbench", "-e", "bench_resume=false")
    run = bench.runs()[0]
    assert {one.metric: one.value for one in run.judgements} == {"events": 6964.4}, output
    # The benchmark measures only a speed, and there is no reference for it yet.
    assert run.verdict.value == "unproven", output
    assert run.software["program"] == str(folder / "sysbench")


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
