"""Test validate.yml with ``validate_probe_gpu_minutes``, a budget of GPU-minutes for measurements.

With a budget, a night also measures nodes by short programs (probes), alone and in pairs. It measures idle
nodes in Slurm jobs, and without a job the nodes that a night drained. It never measures a busy node. Four
nodes of fake hardware run a fake probe here, and Slurm is a file. The tests show that a node whose GPU gives
wrong results is drained and later resumed, and that a night which could not measure proves nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rackproof.store.history.store import open_store
from rackproof.store.night_store import NightRecord, night_folders, read_night
from rackproof.store.probe_results import read_probes

if TYPE_CHECKING:
    from .conftest import Fleet

pytestmark = pytest.mark.playbook
BUDGET = ("-l", "n01,n02,n03,n04", "-e", "validate_probe_gpu_minutes=1000")
# The fake speeds have no references.
LENIENT = ("-e", '{"bench_require_references": false}')


def newest_night(results: Path) -> NightRecord:
    """Return the record of the newest night."""
    return read_night(night_folders(results)[0])


def test_silent_corruption_is_measured_drained_measured_again_and_returned(fleet: Fleet) -> None:
    """The first of three nights drains the node, and the third one resumes it."""
    fleet.set_slurm(jobs={"n04": "4711"})
    fleet.probes(n02={"1": "bits"})
    done = fleet.validate(
        *BUDGET, *LENIENT, "-e", "validate_drain=true", "-e", "validate_max_drain_fraction=0.25"
    )
    assert done.returncode == 2, done.stdout + done.stderr
    found = {one.node: one for one in newest_night(fleet.results).nodes}
    assert {name: one.verdict.value for name, one in found.items()} == {
        "n01": "pass", "n02": "fail", "n03": "pass", "n04": "pass",
    }, done.stdout  # fmt: skip
    (why,) = [one for one in found["n02"].reasons if one.verdict.value == "fail"]
    assert why.code == "bits:training step"
    assert why.part.startswith("GPU-")
    assert fleet.slurm["nodes"]["n02"].startswith("rackproof-night: bits:training step GPU-")
    assert not [one for one in fleet.jobs if "n04" in one]
    probed = read_probes(night_folders(fleet.results)[0])
    assert probed is not None
    assert probed.left_out == {"n04": "at work"}
    assert [one.nodes for one in probed.pairs] == [("n01", "n03")]
    assert found["n01"].measured
    assert not found["n04"].measured
    assert "measured: 3 nodes, 1 pair" in done.stdout
    with open_store(fleet.results / "history.sqlite") as store:
        assert {one.benchmark for one in store.runs()} == {"health", "probes"}

    # The fault is gone. Slurm starts no job on a drained node, so the next nights measure n02 without a job.
    # n02 must pass the failed probe twice.
    fleet.probes()
    fleet.set_slurm(jobs={})
    again = (*BUDGET, *LENIENT, "-e", "validate_drain=true", "-e", "validate_resume=true")
    # By default, nights that are less than 12 hours apart count as one. The nights here are minutes apart.
    again += ("-e", "validate_resume_hours=0")
    before = len(fleet.jobs)
    done = fleet.validate(*again)
    output = done.stdout + done.stderr
    assert "stays drained: the failed checks have passed 1 of 2 times" in done.stdout, output
    assert not [one for one in fleet.jobs[before:] if "n02" in one]
    done = fleet.validate(*again)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "n02: returned to service" in done.stdout
    assert fleet.slurm["nodes"]["n02"] == ""


def test_without_slurm_nothing_is_measured_or_proven_and_no_node_is_drained(fleet: Fleet) -> None:
    fleet.hardware("n02", "--fault", "ecc-uncorrectable", "--gpu", "2")
    fleet.set_slurm(down=True)
    done = fleet.validate(*BUDGET, "-e", "validate_drain=true")
    assert done.returncode == 2
    night = newest_night(fleet.results)
    found = {one.node: one for one in night.nodes}
    assert {name: one.verdict.value for name, one in found.items()} == dict.fromkeys(
        ["n01", "n03", "n04"], "unproven"
    ) | {"n02": "fail"}
    assert found["n02"].why == "not drained: Slurm could not be queried"
    assert not any(fleet.slurm["nodes"].values())
    assert "nothing was measured: Slurm could not be queried" in done.stdout
    assert not fleet.jobs


def test_measuring_that_fails_proves_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """The nodes are healthy, but the measurement itself fails, because validate_root has no programs."""
    (tmp_path / "benchmarks").symlink_to(Path(__file__).parents[3] / "benchmarks")
    done = fleet.validate(*BUDGET, "-e", f"validate_root={tmp_path}", "-e", "validate_drain=true")
    assert done.returncode == 2, done.stdout + done.stderr
    night = newest_night(fleet.results)
    assert {one.verdict.value for one in night.nodes} == {"unproven"}, done.stdout
    assert "nothing was measured: " in done.stdout
    assert str(tmp_path) in done.stdout
    assert not any(fleet.slurm["nodes"].values())


# The smallest job of a night is one node with four GPUs. It may take 44 GPU-minutes, and with soak 104.
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ('{"validate_probe_gpu_minutes": 30}', "the smallest job of this night may take 44: set it to 44"),
        ('{"validate_probe_gpu_minutes": 99, "validate_probes": ["soak"]}', "set it to 104 at least"),
        ('{"validate_probe_gpu_minutes": 99, "validate_probes": ["nonsense"]}', "unknown nonsense"),
        ('{"validate_probe_gpu_minutes": 99, "validate_probe_device": "tpu"}', "gpu or cpu, not tpu"),
    ],
)
def test_measurements_that_cannot_run_are_refused_before_the_night(
    fleet: Fleet, variables: str, reason: str
) -> None:
    done = fleet.validate("-l", "n01,n02", "-e", variables)
    assert done.returncode == 2, done.stdout + done.stderr
    assert reason in done.stdout + done.stderr
    assert not night_folders(fleet.results)
