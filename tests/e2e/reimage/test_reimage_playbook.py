"""Test reimage.yml as an operator runs it, on four nodes with fake hardware on this machine.

The playbook drains a node, gives it a new image, provisions and validates it, and resumes it in Slurm. The
tests show that only a node that passed validation in the same run is resumed. A node that failed, or whose
run was killed, stays drained, and the same command continues it. Drains by other users or by nights remain.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from rackproof.jobs.reimage import run_files, tasks
from rackproof.store import host_claims
from rackproof.store.run_folder import read_run

if TYPE_CHECKING:
    from .conftest import Rack

pytestmark = pytest.mark.playbook
OURS = "rackproof-reimage: gets a new image"
"""Reason of a drain by reimage.yml."""
TOGETHER = ("-e", "reimage_canary=0", "-e", "reimage_max_failures=9")
"""Options with which no wave tests the image first, and failed nodes stop no wave."""


def progress_by_node(results: Path) -> dict[str, tuple[str, str]]:
    """Return the state and the step of each node in its journal."""
    return {
        one.node: (one.progress.state, one.progress.step.value if one.progress.step else "")
        for one in tasks.read_progress(results)
    }


def test_four_nodes_fail_in_four_steps_and_only_accepted_nodes_return(rack: Rack) -> None:
    """One run has four failures, each at another step. A second run continues three of these nodes."""
    rack.mark("n02", "broken")
    rack.mark("gone", "no-image")
    rack.fleet.hardware("n04", "--fault", "ecc-uncorrectable", "--gpu", "2")
    rack.fleet.set_slurm(jobs={"n03": "77"})
    done = rack.reimage("-l", "rack-one", *TOGETHER)
    assert done.returncode == 2, done.stdout + done.stderr
    assert progress_by_node(rack.results) == {
        "n01": ("returned", ""),
        "n02": ("failed", "provision"),
        "n03": ("failed", "drain"),
        "n04": ("failed", "validate"),
        "gone": ("failed", "image"),
    }
    assert rack.drained() == dict.fromkeys(["n02", "n03", "n04", "gone"], OURS)
    # A node whose jobs still run is not imaged.
    assert sorted(rack.renewed) == ["n01", "n02", "n04"]
    why = {one.node: one.progress.reason for one in tasks.read_progress(rack.results)}
    assert "Mount the storage" in why["n02"]
    assert "n03 is not imaged: jobs still run there: 77" in why["n03"]
    assert "the image cannot be had" in why["gone"]
    assert "n04 is fail" in why["n04"]
    assert "1 uncorrectable error in SRAM" in why["n04"]
    kept = read_run(run_files.run_folders(rack.results)[0])
    assert (kept.benchmark, kept.verdict.value) == ("reimage", "fail")
    assert {node.name for node in kept.nodes} == {"n01", "n02", "n04"}

    rack.mark("n02", "broken", on=False)
    rack.fleet.hardware("n04", "--fault", "ecc-uncorrectable", "--off")
    rack.fleet.hardware("n04", "--boot")
    rack.fleet.set_slurm(jobs={}, nodes=rack.fleet.slurm["nodes"] | {"n03": "bob: waits for a cable"})
    done = rack.reimage("-l", "n02,n03,n04")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {progress_by_node(rack.results)[one] for one in ("n02", "n03", "n04")} == {("returned", "")}
    # A drain by another user in the meantime stays, and no node is imaged twice.
    assert rack.drained() == {"n03": "bob: waits for a cable", "gone": OURS}
    assert "stays drained for another reason: bob: waits for a cable" in " ".join(done.stdout.split())
    assert sorted(rack.renewed) == ["n01", "n02", "n03", "n04"]


def test_a_bad_image_is_tried_on_one_node_and_the_others_stay_in_service(rack: Rack) -> None:
    rack.mark("n01", "broken")
    done = rack.reimage("-l", "n01,n02,n03")
    said = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert rack.renewed == ["n01"]
    assert rack.drained() == {"n01": OURS}
    assert progress_by_node(rack.results) == {"n01": ("failed", "provision")}
    for node in ("n02", "n03"):
        assert f"{node}: not started, and as it was before" in said
    assert "1 node failed, so no further wave started (reimage_max_failures)" in said
    assert "ansible-playbook reimage.yml -l n01,n02,n03" in said

    # The operator mends the image, and types the shown command.
    rack.mark("n01", "broken", on=False)
    done = rack.reimage("-l", "n01,n02,n03")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(rack.renewed) == ["n01", "n02", "n03"]
    assert rack.drained() == {}


def test_an_unreachable_node_that_tries_the_image_counts_as_a_failed_one(rack: Rack) -> None:
    rack.silence("n01")
    done = rack.reimage("-l", "n01,n02")
    assert done.returncode == 2, done.stdout + done.stderr
    assert rack.renewed == ["n01"]
    assert rack.drained() == {"n01": OURS}
    (left,) = tasks.read_progress(rack.results)
    assert (left.node, left.progress.state, left.progress.step) == ("n01", "failed", "provision")
    assert left.progress.reason.startswith("Mount the storage: n01 cannot be reached: ")
    unchanged = "n02: not started, and as it was before"
    assert unchanged in " ".join(done.stdout.split())
    kept = read_run(run_files.run_folders(rack.results)[0])
    assert kept.verdict.value == "fail"
    assert kept.reasons[1:] == (unchanged,)


@pytest.mark.parametrize("other", ["", "another-controller"])
def test_nodes_of_two_controllers_are_refused_before_one_is_drained(rack: Rack, other: str) -> None:
    path = rack.folder / "hosts.yml"
    inventory = yaml.safe_load(path.read_text())
    hosts = inventory["all"]["children"]["sku_gb300"]["children"]["rack-one"]["hosts"]
    hosts["n01"]["slurm_controller_host"] = other
    path.write_text(yaml.safe_dump(inventory))
    done = rack.reimage("-l", "n01,n02")
    assert done.returncode == 2
    assert "different values of slurm_controller_host" in " ".join(done.stdout.split())
    assert rack.drained() == {}
    assert run_files.run_folders(rack.results) == []


def test_a_killed_run_leaves_its_nodes_drained_and_is_continued(rack: Rack) -> None:
    done = rack.reimage()
    assert done.returncode == 2
    assert "Name the nodes to image" in done.stdout
    rack.mark("n01", "hold")

    def second_is_refused() -> bool:
        if progress_by_node(rack.results).get("n01") != ("running", "provision"):
            return False
        with pytest.raises(run_files.ReimageError, match="n01 is being re-imaged by another playbook"):
            tasks.begin_run(rack.results, {"n01": []}, method="rack", owner_pid=os.getpid())
        return True

    rack.killed_when(second_is_refused, "-l", "n01")
    assert not host_claims.claimed_hosts(rack.results / run_files.CLAIMS)
    assert progress_by_node(rack.results) == {"n01": ("interrupted", "provision")}
    assert rack.drained() == {"n01": OURS}
    rack.mark("n01", "hold", on=False)
    done = rack.reimage("-l", "n01")
    assert done.returncode == 0, done.stdout + done.stderr
    assert progress_by_node(rack.results) == {"n01": ("returned", "")}
    assert rack.drained() == {}
    assert rack.renewed == ["n01"]


def test_provisioning_resumes_no_failed_node_next_to_a_good_one(rack: Rack) -> None:
    rack.mark("n02", "broken")
    done = rack.play("provision.yml", "-l", "n01,n02")
    assert done.returncode == 2, done.stdout + done.stderr
    assert rack.drained() == {"n02": "rackproof: provisioning"}


def test_a_drain_of_provisioning_does_not_end_before_the_node_is_proven(rack: Rack) -> None:
    rack.fleet.set_slurm(nodes=rack.fleet.slurm["nodes"] | {"n01": "rackproof: provisioning"})
    rack.fleet.hardware("n01", "--fault", "ecc-uncorrectable", "--gpu", "2")
    done = rack.reimage("-l", "n01")
    assert done.returncode == 2, done.stdout + done.stderr
    assert progress_by_node(rack.results) == {"n01": ("failed", "validate")}
    assert rack.drained() == {"n01": OURS}


def test_what_fails_for_all_nodes_is_reported_for_each(rack: Rack) -> None:
    rack.fleet.set_slurm(down=True)
    done = rack.reimage("-l", "n01,n02", *TOGETHER)
    assert done.returncode == 2, done.stdout + done.stderr
    assert rack.drained() == {}
    for one in tasks.read_progress(rack.results):
        assert (one.progress.state, one.progress.step) == ("failed", "drain")
        assert "Drain the nodes and wait for their jobs: scontrol" in one.progress.reason
        assert "Unable to contact slurm controller" in one.progress.reason
    # The state is unknown, and a node that takes work is not called drained.
    said = " ".join(done.stdout.split())
    assert said.count("failed at drain; whether it is drained, see sinfo -R:") >= 2
    assert "stays drained" not in said


def test_a_night_does_not_return_a_node_whose_imaging_has_not_come_to_its_end(rack: Rack) -> None:
    # A night drains the node for a fault, which is repaired before the imaging that fails.
    assert rack.play("validate.yml", "-l", "n01").returncode == 0
    rack.fleet.hardware("n01", "--fault", "ecc-uncorrectable")
    done = rack.play("validate.yml", "-l", "n01", "-e", "validate_drain=true")
    assert done.returncode == 2, done.stdout + done.stderr
    (reason,) = rack.drained().values()
    assert reason.startswith("rackproof-night: ")
    rack.fleet.hardware("n01", "--fault", "ecc-uncorrectable", "--off")
    rack.fleet.hardware("n01", "--boot")
    rack.mark("n01", "broken")
    assert rack.reimage("-l", "n01").returncode == 2
    assert progress_by_node(rack.results) == {"n01": ("failed", "provision")}
    # By default, nights that are less than 12 hours apart count as one. The nights here are minutes apart.
    returning = ("-e", "validate_resume=true", "-e", "validate_resume_hours=0")
    for _ in range(2):
        done = rack.play("validate.yml", "-l", "n01", *returning)
        assert done.returncode == 0, done.stdout + done.stderr
    assert rack.drained() == {"n01": reason}
    assert "stays drained: its imaging has not finished (failed at provision" in done.stdout
    tasks.begin_run(rack.results, {"n01": []}, method="rack", owner_pid=os.getpid(), again=True)
    done = rack.play("validate.yml", "-l", "n01", *returning)
    assert "its imaging has not finished (waits to begin with drain" in done.stdout
