"""The benchmark that the README teaches to write, written from it and run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.e2e.bench.test_bench_playbook import Bench

pytestmark = pytest.mark.playbook


def test_the_readmes_benchmark_runs_as_it_stands_there(root: Path, tmp_path: Path, torch_python: str) -> None:
    text = (root / "README.md").read_text()
    blocks = dict(re.findall(r"```(python|yaml)\n(.*?)```", text, re.DOTALL))
    bench = Bench(root, tmp_path, definitions=tmp_path / "definitions")
    shutil.copytree(root / "workloads", tmp_path / "workloads", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "workloads/scratch_disk.py").write_text(blocks["python"])
    bench.definitions.mkdir()
    (bench.definitions / "scratch-disk.yml").write_text(blocks["yaml"])
    status, output = bench("-e", "suite=disks", bench_pythons={"torch": torch_python})
    assert status == 0, output
    runs = bench.runs()
    assert {run.parameters["size_mib"] for run in runs} == {64, 256}
    assert all({one.metric for one in run.judgements} == {"wrong_values", "disk_write"} for run in runs)
