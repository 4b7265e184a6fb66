"""Test `bench.yml -l gb300-rack --check` with the shipped inventory, whose nodes do not exist.

A new operator may type this command first. Check mode shows the plan: images, data, the command of Slurm, and
the references that will judge each run. It ends with one list of everything that is missing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.bench.playing import play_bench

pytestmark = pytest.mark.playbook


@pytest.fixture
def inventory(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the inventory without the test rack's values, and with names that do not resolve."""
    folder = tmp_path / "inventory"
    shutil.copytree(root / "inventory", folder, ignore=shutil.ignore_patterns("test-rack.yml"))
    with (folder / "group_vars/all.yml").open("a") as stream:
        stream.write('\nansible_host: "{{ inventory_hostname }}.invalid"\n')
    monkeypatch.setenv("COLUMNS", "400")
    return folder


def test_the_plan_is_shown_and_what_is_missing_is_one_list(
    root: Path, tmp_path: Path, inventory: Path
) -> None:
    results = tmp_path / "results"
    status, output = play_bench(
        root, inventory, "--check", "-l", "gb300-rack", "-e", f"bench_results={results}"
    )
    assert status == 2, output
    (silent,) = [line for line in output.splitlines() if "UNREACHABLE" in line]
    assert "gb300-r01-n[01-18] (18 nodes)" in silent
    for line in (
        "mlperf-training-5.1: 3 runs",
        "pull    nvcr.io/nvdlfwea/mlperftv51/llama2_70b_lora-arm:20250930 (for arm64, imported once",
        "stage   /shared/rackproof/data/llama2_70b_lora/model unless it is there, 300 GB",
        "config  config_GB300_18x4x*.sh",
        "submit  sbatch -N 18 --nodelist=gb300-r01-n[01-18] run.sub",
        "judge   time_to_train 1.2612 min, by MLPerf Training 5.1, official, Lambda",
        "judge   nccl_preflight_busbw 758 GB/s at ranks=72 size_bytes=2147483648, by nccl-tests",
    ):
        assert line in output
    # The list is printed once, with a line for each missing part.
    ended = output.split("TASK [bench : End a dry run with the list of what is missing]")[1].split(
        "PLAY RECAP"
    )[0]
    assert ended.split("\n")[1:-2] == [
        "fatal: [gb300-r01-n01]: FAILED! => Solve these problems before the runs can be made:",
        "  - flux1, llama2_70b_lora, llama31_8b: it runs on all nodes of the rack together, and "
        "gb300-r01-n[01-18] did not answer: repair them, or limit -l to the other nodes",
        "  - flux1: its nodes are arm64, and there are images for amd64: name one with "
        "bench_images: {flux1: REPOSITORY:TAG}",
    ]
    # No value of the test rack is shown, and no result is stored.
    assert "test rack" not in output
    assert "svc" not in output
    assert not results.exists()


def test_a_benchmark_of_single_nodes_names_those_that_did_not_answer(
    root: Path, tmp_path: Path, inventory: Path
) -> None:
    status, output = play_bench(root, inventory, "--check", "-l", "gb300-rack", "-e", "suite=probes")
    assert status == 2, output
    assert "not reached: gb300-r01-n[01-18]" in output
    assert output.count("UNREACHABLE") == 1
