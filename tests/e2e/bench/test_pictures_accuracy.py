"""Test the benchmark resnet50-pictures-accuracy from its data to its verdict, on the CPU.

It draws pictures, trains a network on them, writes a checkpoint, and evaluates the checkpoint in a second
step. The tests show that the evaluated accuracy decides the verdict. One epoch of five steps is too short to
learn anything, so the targets are chosen for a pass and for a fail.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Run, Verdict
from rackproof.store.run_folder import iter_runs
from tests.e2e.bench.test_bench_playbook import Bench

pytestmark = [pytest.mark.playbook, pytest.mark.torch, pytest.mark.slow]
TINY = {
    "gpus": 0,
    "processes": 1,
    "threads": 1,
    "width": 0.05,
    "image_size": 32,
    "batch_per_gpu": 10,
    "precision": "fp32",
    "num_epochs": 1,
    "per_class": 5,
    "workers": 1,
}


def played(bench: Bench, python: str, **targets: float) -> tuple[int, str, Run]:
    """Run the benchmark. Return status, output and the last run."""
    status, output = bench(
        *("-e", "benchmark=resnet50-pictures-accuracy"),
        *("-e", json.dumps({"bench_parameters": {**TINY, **targets}})),
        bench_definitions=str(bench.root / "benchmarks"),
        bench_workloads=str(bench.root / "workloads"),
        bench_workload_source=str(bench.root / "workloads"),
        bench_pythons={"torch": python},
    )
    *_, run = sorted(iter_runs(bench.results), key=lambda one: str(one.started))
    return status, output, run


def value(run: Run, name: str) -> Any:
    """Return the value of the only measurement with a name and without labels."""
    (one,) = (one.value for one in run.measurements if one.name == name and not one.labels)
    return one


def test_the_checkpoint_is_evaluated_and_its_accuracy_decides(
    root: Path, tmp_path: Path, torch_python: str
) -> None:
    bench = Bench(root, tmp_path)
    status, output, run = played(bench, torch_python, target_top_1=0.001, target_top_5=0.1)
    assert (status, run.verdict) == (0, Verdict.PASS), output[-3000:]
    # There is one validation picture of each of the ten classes, so the accuracy is a multiple of 0.1. After
    # five steps, its value shows only that the checkpoint was evaluated. Without a right picture, the run
    # would fail.
    assert value(run, "top_1_accuracy") in [at / 10 for at in range(1, 11)]
    assert value(run, "top_5_accuracy") >= value(run, "top_1_accuracy")
    assert value(run, "evaluation_rate") > 0
    assert run.dataset is not None
    assert (run.dataset.name, run.dataset.objects) == ("pictures", 60)
    missed, output, run = played(bench, torch_python, target_top_1=0.999, target_top_5=0.1)
    assert (missed, run.verdict) == (2, Verdict.FAIL), output[-3000:]
    assert any("top_1_accuracy" in reason for reason in run.reasons)
