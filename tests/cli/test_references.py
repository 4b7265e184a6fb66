"""Test ``rackproof references``, which prints references for a SKU from repeated runs on healthy machines.

An operator copies the output into the file of group_vars for the SKU. The tests show that the output is
accepted there, and that too few runs, a bound within their spread, or a changed log give no reference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from rackproof.core.judging import sku_references
from rackproof.core.records import LogFile, Verdict
from rackproof.store.run_folder import iter_runs, write_run
from tests.analysis.test_reference_bounds import of_product, runs

Call = Callable[..., Result]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a results folder with five runs that differ by 1 %."""
    for one in runs(100, 100.5, 99.5, 100, 100):
        write_run(one, tmp_path / "results" / one.run_id)
    return tmp_path / "results"


def test_the_output_is_accepted_in_group_vars(run: Call, results: Path) -> None:
    answer = run("references", "--results", results, "--source", "rack 7: day one")
    assert answer.exit_code == 0, answer.output
    assert "# copy 8: spread 1.0%; a loss of 5.5% would be noticed on each measured part" in answer.stdout
    assert "measured on one machine" in answer.stdout
    entries = yaml.safe_load("bench_sku_references:\n" + answer.stdout)["bench_sku_references"]
    (reference,) = sku_references("new", entries)
    assert (reference.reference.value, reference.reference.low) == (100, -0.05)
    assert reference.reference.source == "rack 7: day one, 5 runs, machines 1: 99.5 to 100.5"


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--repeats", 9), "5 sound runs, 9 are needed"), (("--bound", "0.01"), "call healthy machines bad")],
)
def test_a_refused_reference_is_a_comment(
    run: Call, results: Path, options: tuple[object, ...], said: str
) -> None:
    answer = run("references", "--results", results, *options)
    assert yaml.safe_load("entries:\n" + answer.stdout) == {"entries": None}
    assert said in answer.stdout
    asked = json.loads(run("references", "--results", results, "--json", *options).stdout)
    assert asked[0]["objection"]


@pytest.mark.parametrize("description", ["test rack", "test rack: day one"])
def test_runs_of_the_test_rack_give_no_reference(run: Call, results: Path, description: str) -> None:
    for one in iter_runs(results):
        write_run(one.model_copy(update={"description": description}), results / one.run_id)
    answer = run("references", "--results", results)
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert answer.stderr.count("does not count: it was on the test rack, whose hardware is fake") == 5


@pytest.mark.parametrize("options", [(), ("--sku", "h100"), ("--benchmark", "gemm")])
def test_a_folder_without_runs_is_named(run: Call, tmp_path: Path, options: tuple[str, ...]) -> None:
    answer = run("references", "--results", tmp_path, *options)
    assert (answer.exit_code, f"no run is in {tmp_path}" in answer.output) == (1, True)


@pytest.mark.parametrize(
    "alter",
    [
        lambda log: log.write_text("copy: 900 GB/s\n"),
        lambda log: log.write_text(""),
        lambda log: log.write_text(log.read_text().replace("1", "2")),
        Path.unlink,
    ],
)
def test_a_run_whose_log_is_not_the_recorded_one_does_not_count(
    run: Call, tmp_path: Path, alter: Callable[[Path], object]
) -> None:
    results = tmp_path / "results"
    for one in runs(100, 100.5, 99.5, 100, 100):
        log = results / one.run_id / "logs/copy.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"copy: 100 GB/s of {one.run_id}\n")
        digest = hashlib.sha256(log.read_bytes()).hexdigest()
        entry = LogFile(
            path="logs/copy.log",
            sha256=digest,
            size_bytes=log.stat().st_size,
            format="lines",
            verdict=Verdict.PASS,
        )
        write_run(one.model_copy(update={"logs": (entry,)}), results / one.run_id)
    command = ("references", "--results", results, "--repeats", 5)
    assert "1 reference, 0 refused" in run(*command).output
    alter(log)
    answer = run(*command)
    assert "0 references, 1 refused" in answer.output
    assert f"{one.run_id} does not count: its log logs/copy.log" in answer.output


@pytest.mark.parametrize(
    ("logs", "counted"),
    [
        (["a", "a", "a", "a", "a"], 1),
        (["a", "b", "c", "d", "a"], 4),
        (["", "", "", "", ""], 5),
        (["a", "b", "c", "d", "e"], 5),
    ],
)
def test_a_run_with_the_log_of_another_run_does_not_count(
    run: Call, tmp_path: Path, logs: list[str], counted: int
) -> None:
    results = tmp_path / "results"
    for one, text in zip(runs(100, 100.5, 99.5, 100, 100), logs, strict=True):
        folder = results / one.run_id / "logs"
        folder.mkdir(parents=True)
        (folder / "copy.log").write_text(text)
        entry = LogFile(
            path="logs/copy.log",
            sha256=hashlib.sha256(text.encode()).hexdigest(),
            size_bytes=len(text),
            format="lines",
            verdict=Verdict.PASS,
        )
        write_run(one.model_copy(update={"logs": (entry,)}), folder.parent)
    answer = run("references", "--results", results)
    assert answer.output.count("does not count: byte for byte the same log as run-0") == 5 - counted
    said = "1 reference, 0 refused" if counted == 5 else f"{counted} sound runs, 5 are needed"
    assert said in answer.output


def test_a_number_that_accept_refuses_needs_a_reason_that_the_entry_shows(run: Call, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for one in of_product("NVIDIA H200", "memory_copy", 2.0, "TB/s"):
        write_run(one, results / one.run_id)
    answer = run("references", "--results", results)
    assert "refused: memory_copy is 2 TB/s, but healthy ones of NVIDIA H200" in answer.stdout
    assert yaml.safe_load("entries:\n" + answer.stdout) == {"entries": None}
    assert "refused" in run("references", "--results", results, "--despite", " ").stdout
    answer = run("references", "--results", results, "--despite", "capped\x1b[2J to 300 W")
    (entry,) = yaml.safe_load(answer.stdout)
    assert entry["value"] == 2
    assert entry["source"].startswith("own measurement (despite: capped to 300 W), 5 runs")


def test_runs_of_several_skus_make_no_reference_until_one_is_chosen(run: Call, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for index, one in enumerate(runs(100, 100.5, 99.5, 100, 100, 140)):
        node = one.nodes[0].model_copy(update={"sku": "h200" if index == 5 else "h100"})
        write_run(one.model_copy(update={"nodes": (node,)}), results / one.run_id)
    answer = run("references", "--results", results)
    assert answer.exit_code == 1
    assert "the runs are of several SKUs (h100, h200); choose one with --sku" in answer.output
    assert "1 reference, 0 refused" in run("references", "--results", results, "--sku", "h100").output


@pytest.mark.parametrize("options", [("--sku", "h900"), ("--benchmark", "none"), ("--results", "nowhere")])
def test_options_that_select_no_run_are_an_error(run: Call, results: Path, options: tuple[str, ...]) -> None:
    answer = run("references", *(() if "--results" in options else ("--results", results)), *options)
    assert answer.exit_code == 1
    assert "Traceback" not in answer.output
