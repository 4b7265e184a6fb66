"""Test that MLCommons' official checker accepts the packages of submissions.

:func:`rackproof.analysis.submission.build_submission` makes a package from runs. These tests check which
files it contains, and run the official package checker on it, also for later rounds, for imported logs, and
for the real logs of a published submission.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rackproof.analysis.submission import build_submission, latest_runs, load_system_file
from rackproof.analysis.submission.description import SystemFile
from rackproof.analysis.submission.packaging import MANIFEST
from rackproof.core.records import Verdict
from rackproof.jobs.bench.import_logs import import_logs

from .corpus import all_runs, make_run, make_runs

# Each test starts processes. All of them together take too long for `make check`.
pytestmark = pytest.mark.slow


def files(folder: Path) -> set[str]:
    """Return the paths of all files below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def official_verdict(package: Path, ruleset: str, folder: Path) -> str:
    """Return the output of the official checker's own command, which does not use Rackproof."""
    command = [sys.executable, "-m", "mlperf_logging.package_checker", str(package), "training", ruleset]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, cwd=folder)
    return done.stderr


def test_ten_runs_make_a_package_that_the_official_checker_accepts(
    results: Path, system: SystemFile, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    made = build_submission(all_runs(results), system, out)
    assert made.verdict is Verdict.PASS, made.issues
    assert made.checker.accepted is True
    assert made.checker.checked == ("llama2_70b_lora",)
    assert made.issues == ()
    assert made.folder == str(out / "Example_Org")
    logs = {f"results/b200_n2/llama2_70b_lora/result_{index}.txt" for index in range(10)}
    code = "benchmarks/llama2_70b_lora/implementations/b200_n2"
    assert files(out / "Example_Org") == {
        *logs,
        "systems/b200_n2.json",
        f"{code}/README.md",
        f"{code}/config_B200_2x8.sh",
    }
    for index, (run, folder) in enumerate(all_runs(results)):
        packed = out / f"Example_Org/results/b200_n2/llama2_70b_lora/result_{index}.txt"
        assert packed.read_bytes() == (folder / run.logs[0].path).read_bytes()
    description = json.loads((out / "Example_Org/systems/b200_n2.json").read_text())
    assert description == made.description
    assert (description["number_of_nodes"], description["accelerators_per_node"]) == ("2", "8")
    assert description["framework"] == "PyTorch Release 26.01"
    assert description["other_software_stack"] == {
        "cuda_version": "13.1",
        "nccl_version": "2.29.1",
        "kernel_version": "6.8.0-90-generic",
        "nvidia_kernel_driver": "590.10",
    }
    readme = (out / f"Example_Org/{code}/README.md").read_text()
    assert "registry.example/llama2:26.01" in readme
    assert "sbatch -N 2 run.sub" in readme
    assert "100, 101, 102" in readme
    verdict = official_verdict(out / "Example_Org", "5.1.0", tmp_path)
    assert "PACKAGE CHECKER FOUND NO ERRORS" in verdict
    assert list(tmp_path.glob(".out*")) == []


@pytest.mark.slow
def test_the_manifest_lists_every_file(results: Path, system: SystemFile, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = build_submission(all_runs(results), system, out)
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["runs"] == {"llama2_70b_lora": [run.run_id for run, _ in all_runs(results)]}
    assert manifest["checked_by"] == made.checker.version
    assert manifest["files"] == {
        name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in files(out) - {MANIFEST}
    }


@pytest.mark.slow
def test_runs_that_converge_fast_are_scaled(tmp_path: Path, system: SystemFile) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    for number in range(10):
        make_run(results, number, samples=3072)
    made = build_submission(all_runs(results), system, out)
    assert made.verdict is Verdict.PASS, made.issues
    (part,) = made.benchmarks
    factor = json.loads((out / "Example_Org/results/b200_n2/llama2_70b_lora/scaling.json").read_text())[
        "scaling_factor"
    ]
    assert factor > 1
    assert part.scaling_factor == factor
    assert part.minutes == pytest.approx(factor * sum(10 + number / 10 for number in range(1, 9)) / 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ruleset", "benchmarks"),
    [
        ("6.0.0", ("gpt_oss_20b",)),
        ("6.1.0", ("gpt_oss_20b", "llama2_70b_lora")),
    ],
)
def test_later_rounds(ruleset: str, benchmarks: tuple[str, ...], tmp_path: Path, system: SystemFile) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    for index, benchmark in enumerate(benchmarks):
        make_runs(results, benchmark=benchmark, first=20 * index)
    made = build_submission(latest_runs(results, benchmarks, 10), system, out, ruleset=ruleset)
    assert made.verdict is Verdict.PASS, made.issues
    assert set(made.checker.checked) == set(benchmarks)
    assert {part.benchmark for part in made.benchmarks} == set(benchmarks)
    assert "PACKAGE CHECKER FOUND NO ERRORS" in official_verdict(out / "Example_Org", ruleset, tmp_path)


@pytest.mark.slow
def test_imported_logs_make_a_package(tmp_path: Path, system_file: Callable[..., Path]) -> None:
    """The nodes are unknown, so the system comes from the description in the log."""
    source, results = tmp_path / "source", tmp_path / "results"
    make_runs(source)
    import_logs(source, results)
    unknown = {"host_memory_capacity": "2 TB", "operating_system": "Ubuntu 24.04"}
    system = load_system_file(system_file(accelerator_memory_capacity="192 GB", **unknown))
    made = build_submission(latest_runs(results, ["llama2_70b_lora"], 10), system, tmp_path / "out")
    assert made.verdict is Verdict.PASS, made.issues
    assert {run.provenance for run, _ in all_runs(results)} == {"imported"}
    assert made.description["host_processor_core_count"] == "56"


@pytest.mark.slow
def test_the_real_logs_of_a_round(real_logs: Path, tmp_path: Path) -> None:
    """The checker accepts ten logs of each of two benchmarks, with the published scores and factor."""
    published = real_logs / "mlperf-5.1"
    logs = published / "lambda-gb300-n18"
    theirs = json.loads((published / "gb300_n18_ngc25.04_nemo.json").read_text())
    results, out, path = tmp_path / "results", tmp_path / "out", tmp_path / "system.yml"
    import_logs(logs, results)
    # Values that neither facts nor logs contain, as the submitter stated them. Many are empty.
    kept = [key for key in theirs if key.startswith(("host_", "accelerator_", "cooling"))]
    unknown = {key: theirs[key] for key in kept if "processor" not in key and key != "accelerators_per_node"}
    own = {key: theirs[key] for key in ("submitter", "division", "status", "system_name")}
    path.write_text(json.dumps({"system": "gb300_n18_ngc25.04_nemo", **own, **unknown}))
    runs = latest_runs(results, ["llama2_70b_lora", "llama31_8b"], 10)
    made = build_submission(runs, load_system_file(path), out)
    assert made.verdict is Verdict.PASS, made.issues
    assert [(part.benchmark, round(part.minutes or 0, 2)) for part in made.benchmarks] == [
        ("llama2_70b_lora", 1.26),
        ("llama31_8b", 14.25),
    ]
    package = out / theirs["submitter"]
    place = package / "results/gb300_n18_ngc25.04_nemo"
    assert (place / "llama31_8b/scaling.json").read_bytes() == (logs / "llama31_8b/scaling.json").read_bytes()
    assert not (place / "llama2_70b_lora/scaling.json").exists()
    for benchmark in ("llama2_70b_lora", "llama31_8b"):
        packed = {path.read_bytes() for path in (place / benchmark).glob("result_*.txt")}
        assert packed == {path.read_bytes() for path in (logs / benchmark).glob("result_*.txt")}
    for key in ("number_of_nodes", "accelerators_per_node", "host_processor_model_name", "framework"):
        assert made.description[key] == theirs[key]
    assert "PACKAGE CHECKER FOUND NO ERRORS" in official_verdict(package, "5.1.0", tmp_path)
