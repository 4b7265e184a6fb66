"""Test that the results and histories of older versions are read and continued after an upgrade.

tests/data/upgrade has archives of results folders that older versions wrote. No run may get a better verdict.
The oldest records have no digest, so their passes are unproven now.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rackproof.cli.main import main
from rackproof.core.records import Run
from rackproof.store.history.client import History
from rackproof.store.history.store import open_store
from rackproof.store.night_store import last_snapshot, night_folders
from rackproof.store.run_folder import read_run, write_run

Rackproof = Callable[..., str]
ARCHIVES = sorted((Path(__file__).parents[1] / "data/upgrade").glob("results-*.tar.xz"))
# The verdicts that runs have now, by benchmark. The runs of gemm are one that passed and was accepted, one
# that passed, and one that failed. Those of health are two nights, and that of nccl is an imported log.
WITHOUT_DIGEST = {
    "gemm": ["unproven", "unproven", "fail"],
    "health": ["unproven", "fail"],
    "nccl": ["unproven"],
}
WITH_DIGEST = {"gemm": ["pass", "pass", "fail"], "health": ["unproven", "fail"], "nccl": ["pass"]}


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name[8:16])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a results folder of an older version."""
    folder = tmp_path / "results"
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def rackproof(old: Path) -> Rackproof:
    """Return a function that runs a command of rackproof on the old folder, and returns its output."""

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, [*words, "--results", str(old)])
        assert done.exit_code == 0, done.output
        return done.output

    return run


def runs(old: Path) -> dict[str, list[Run]]:
    """Return the runs of a results folder by benchmark, sorted by id."""
    found: dict[str, list[Run]] = {}
    for record in sorted(old.glob("*/run.json")):
        run = read_run(record.parent)
        found.setdefault(run.benchmark, []).append(run)
    return found


def has_digests(old: Path) -> bool:
    return all("sha256" in json.loads(path.read_text()) for path in old.glob("*/run.json"))


def test_there_is_an_archive_of_each_form() -> None:
    assert len(ARCHIVES) >= 2


def test_records_are_read_and_no_verdict_is_better(old: Path) -> None:
    written = {path: json.loads(path.read_text())["verdict"] for path in old.glob("*/run.json")}
    found = {name: [run.verdict.value for run in some] for name, some in runs(old).items()}
    assert found == (WITH_DIGEST if has_digests(old) else WITHOUT_DIGEST)
    order = ["fail", "unproven", "degraded", "pass"]
    for path, verdict in written.items():
        assert order.index(read_run(path.parent).verdict.value) <= order.index(verdict)


def test_the_history_is_read_and_can_be_made_again(old: Path, rackproof: Rackproof) -> None:
    listed = json.loads(rackproof("history", "--json"))
    assert len(listed) == 6
    rackproof("history", "--rebuild")
    again = json.loads(rackproof("history", "--json"))
    assert [one["run_id"] for one in again] == [one["run_id"] for one in listed]
    by_run = {run.run_id: run.verdict.value for some in runs(old).values() for run in some}
    assert {one["run_id"]: one["verdict"] for one in again} == by_run


def test_what_was_accepted_is_still_a_reference(old: Path, rackproof: Rackproof) -> None:
    accepted, passed, _ = runs(old)["gemm"]
    assert accepted.run_id in rackproof("accept", "--list")
    first = passed.measurements[0]
    with open_store(old / "history.sqlite") as store:
        found = store.baseline(passed.benchmark, passed.parameters, first.name, first.labels, passed.nodes)
    assert found is not None
    assert found.value == pytest.approx(780)


def test_the_next_run_and_the_next_night_continue_the_old_results(old: Path, rackproof: Rackproof) -> None:
    passed = runs(old)["gemm"][1]
    later = passed.model_copy(update={"run_id": "20270101T000000Z-gemm-000001"})
    folder = old / later.run_id
    write_run(later, folder)
    assert History(old).keep(folder) == ""
    assert later.run_id in rackproof("history")
    nights = night_folders(old)
    assert len(nights) == 2
    # A night without its digest may have been changed, so later nights do not rely on it.
    if has_digests(old):
        kept = last_snapshot(nights, "n02")
        assert kept is not None
        assert len(kept.snapshot.gpus) == 4
        assert "ecc_sram_uncorrectable" in rackproof("explain", "n02")
        assert "fail" in rackproof("status", "--no-slurm", "n02")
