"""Test the waves of provision.yml as an operator runs it, on four nodes with fake hardware on this machine.

A wave is a group of nodes that are drained, provisioned and resumed together. Its size keeps enough nodes of
each partition in service, and the first wave (the canary) has one node. The tests show which nodes are
drained in which order, that a failed node ends the waves, and that a node which cannot be provisioned is left
as it was. The partition `batch` has five nodes: n01 to n04, and the unreachable node gone.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.e2e.validate.conftest import ROOT

if TYPE_CHECKING:
    from .conftest import Rack

pytestmark = pytest.mark.playbook
NODES = "n01,n02,n03,n04"


def drains(rack: Rack) -> list[list[str]]:
    """Return the nodes of each drain that scontrol was called for, in order."""
    path = rack.folder / "slurm.json.drains"
    return [line.split(",") for line in path.read_text().split()] if path.exists() else []


def test_check_mode_shows_the_waves_and_drains_nothing(rack: Rack) -> None:
    # A job runs on a node. A check does not wait for its end, and does not fail.
    rack.fleet.set_slurm(jobs={"n02": "4711"})
    done = rack.play("provision.yml", "-l", NODES, "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wave 1 of 4, canary: n01 (batch keeps 4 of 5 nodes in service)" in done.stdout
    assert "wave 4 of 4: n04 (batch keeps 4 of 5 nodes in service)" in done.stdout
    assert drains(rack) == []


def test_waves_go_on_where_all_is_well(rack: Rack) -> None:
    done = rack.play("provision.yml", "-l", NODES, "-e", "provision_max_drain_fraction=0.4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert drains(rack) == [["n01"], ["n02", "n03"], ["n04"]]
    assert rack.drained() == {}


def test_a_bad_node_ends_the_waves_and_the_others_stay_in_service(rack: Rack) -> None:
    rack.fleet.hardware("n02", "--fault", "row-remap-pending", "--gpu", "1")
    done = rack.play("provision.yml", "-l", NODES)
    said = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert drains(rack) == [["n01"], ["n02"], ["n02"]], "the second drain of n02 gives the reason"
    assert set(rack.drained()) == {"n02"}
    assert "Failed: n02. Not started, and as they were: n03, n04." in said
    assert "ansible-playbook provision.yml -l n02,n03,n04" in said
    summary = done.stdout.split("NODES ****", 1)[1]
    assert "n[03-04] (2 nodes): nothing changed\n    ATTENTION its wave did not start" in summary

    # The fault is gone, and the operator types the shown command. The failed node is the canary now.
    rack.fleet.hardware("n02", "--fault", "row-remap-pending", "--off")
    rack.fleet.hardware("n02", "--boot")
    done = rack.play("provision.yml", "-l", "n02,n03,n04")
    assert done.returncode == 0, done.stdout + done.stderr
    assert drains(rack)[3:] == [["n03"], ["n04"]], "n02 was drained already"
    assert rack.drained() == {}


def test_an_unreachable_canary_counts_as_a_failed_one(rack: Rack) -> None:
    rack.silence("n01")
    done = rack.play("provision.yml", "-l", "n01,n02")
    said = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert drains(rack) == [["n01"]]
    assert set(rack.drained()) == {"n01"}
    assert "n01 is not provisioned and stays drained: Mount the storage: n01 cannot be reached: " in said
    assert "Failed: n01. Not started, and as they were: n02." in said


def test_as_many_nodes_may_fail_as_the_operator_allows(rack: Rack) -> None:
    rack.fleet.hardware("n01", "--fault", "row-remap-pending", "--gpu", "1")
    rack.fleet.hardware("n03", "--fault", "row-remap-pending", "--gpu", "1")
    done = rack.play("provision.yml", "-l", NODES, "-e", "provision_max_failures=1")
    assert done.returncode == 2, done.stdout + done.stderr
    assert set(rack.drained()) == {"n01", "n03"}
    assert "Failed: n01, n03. Not started, and as they were: n04." in " ".join(done.stdout.split())


def test_what_cannot_be_done_is_known_before_the_first_drain(rack: Rack) -> None:
    (rack.folder / "roles/lambda_stack/tasks/resolve.yml").write_text(
        "- name: Ask whether the driver can be installed\n"
        "  ansible.builtin.fail:\n"
        "    msg: nvidia-open 999.1.2 is not there\n"
        "  when: inventory_hostname != 'n03'\n"
    )
    done = rack.play("provision.yml", "-l", f"{NODES},gone")
    assert done.returncode == 2, done.stdout + done.stderr
    assert drains(rack) == [["n03"]], "the node of the wave that can be provisioned is provisioned"
    assert rack.drained() == {}
    said = " ".join(done.stdout.split())
    for node in ("n01", "n02", "n04"):
        assert f"{node} is not provisioned, and is as it was: Ask whether the driver can be installed" in said
    assert "gone is not provisioned, and is as it was: Leave out a node that cannot be reached" in said


def test_a_node_with_jobs_goes_back_as_it_was(rack: Rack) -> None:
    rack.fleet.set_slurm(jobs={"n01": "4711"})
    done = rack.play("provision.yml", "-l", "n01,n02", "-e", "provision_drain_timeout_s=1")
    said = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert rack.drained() == {}
    assert "n01 is not provisioned, and is as it was" in said
    assert "n01 still runs jobs 4711 after 1 s. Nothing was changed on it." in said
    assert "Not started, and as they were: n02." in said


def test_a_controller_that_does_not_answer_is_shown_and_nothing_is_touched(rack: Rack) -> None:
    rack.fleet.set_slurm(down=True)
    done = rack.play("provision.yml", "-l", "n01,n02")
    said = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Slurm did not answer, so all nodes count as one partition in service" in said
    assert "n01 is not provisioned, and is as it was: Drain the nodes and wait for their jobs" in said
    assert "Not started, and as they were: n02." in said


# A package source of a node. Nothing listens on port 1, so the mirror refuses the connection.
SOURCES = """\
Types: deb
URIs: http://127.0.0.1:1/debian
Suites: bookworm
Components: main
"""


@pytest.mark.parametrize("moment", ["before the checks", "after the checks"])
def test_a_mirror_that_does_not_answer_returns_no_node_although_nothing_lacks(
    rack: Rack, moment: str
) -> None:
    sources, reach = rack.folder / "rackproof.sources", rack.folder / "roles/provision/tasks/reach.yml"
    shutil.copytree(ROOT / "roles/provision", rack.folder / "roles/provision")
    # Role provision reads the argument spec of role time_limits in the folder beside it.
    shutil.copytree(ROOT / "roles/time_limits", rack.folder / "roles/time_limits")
    reach.write_text(reach.read_text().replace("/etc/apt/sources.list.d/rackproof.sources", str(sources)))
    if moment == "before the checks":
        sources.write_text(SOURCES)
        checks = "- ansible.builtin.import_tasks: answer.yml\n"
    else:
        checks = (
            f"- ansible.builtin.copy: {{dest: {sources}, mode: '0644', content: {json.dumps(SOURCES)}}}\n"
            "  delegate_to: localhost\n"
        )
    (rack.folder / "roles/apt_mirror/tasks/main.yml").write_text(checks)
    rack.fleet.set_slurm(nodes=rack.fleet.slurm["nodes"] | {"n01": "rackproof: provisioning"})
    done = rack.play("provision.yml", "-l", "n01,n02")
    said = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert drains(rack) == [], "n02 is in service and stays there"
    assert rack.drained() == {"n01": "rackproof: provisioning"}
    assert (
        "n01 is not provisioned, and is as it was: Refuse a node whose package sources do not answer" in said
    )
    assert "Could not connect to 127.0.0.1:1" in said
    assert "Its package sources do not answer, so it is not provisioned." in said


def test_a_check_of_all_nodes_that_fails_is_the_only_reason(rack: Rack) -> None:
    done = rack.play("provision.yml", "-l", "n01,n02", "-e", "provision_bach=3")
    said = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert "undefined" not in said, done.stdout
    assert "n01 is not provisioned, and is as it was: Refuse misspelt variables: given with -e" in said
