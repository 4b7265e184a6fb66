"""Test validate.yml as an operator runs it, on four nodes with fake hardware on this machine.

A night is one run of validate.yml. The tests show that it finds a bad node and the bad part, drains the node,
and resumes it after two nights without the fault. It changes neither other nodes nor the drain of another
user. An unreachable node is unproven, and check mode changes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rackproof.jobs.validate.explain import explain_node, explanation_text
from rackproof.store.audit_log import read_acts
from rackproof.store.night_store import NightRecord, night_folders, read_night
from rackproof.store.run_folder import read_run

if TYPE_CHECKING:
    from .conftest import Fleet

pytestmark = pytest.mark.playbook
REACHABLE = "n01,n02,n03,n04"


def newest_night(results: Path) -> NightRecord:
    """Return the record of the newest night."""
    return read_night(night_folders(results)[0])


def verdicts(night: NightRecord) -> dict[str, str]:
    return {one.node: one.verdict.value for one in night.nodes}


def test_a_bad_node_goes_out_of_service_and_comes_back(fleet: Fleet) -> None:
    """The playbook runs once in check mode, then for three nights. The third night resumes the node."""
    fleet.hardware("n02", "--fault", "ecc-uncorrectable", "--gpu", "2")
    theirs = {"n03": "bob: waits for a cable"}
    fleet.set_slurm(nodes=fleet.slurm["nodes"] | theirs)

    # Check mode shows the findings and drains of a night, but changes and stores nothing.
    done = fleet.validate("--check", "-e", "validate_drain=true")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "drain n02: ecc_sram_uncorrectable" in done.stdout
    assert not list(fleet.results.glob("*"))
    assert fleet.slurm["nodes"] == dict.fromkeys([*REACHABLE.split(","), "gone"], "") | theirs

    fleet.hardware("n03", "--fault", "hung-nvidia-smi")
    # The first night drains n02 and lists the unreachable node. n03 fails too, but keeps the other user's
    # drain.
    done = fleet.validate("-e", "validate_drain=true", "-e", "validate_tool_timeout_s=2")
    assert done.returncode == 2, done.stdout + done.stderr
    night = newest_night(fleet.results)
    assert verdicts(night) == {
        "gone": "unproven",
        "n01": "pass",
        "n02": "fail",
        "n03": "fail",
        "n04": "pass",
    }
    found = {one.node: one for one in night.nodes}
    assert {one.place[:5] for one in found["n02"].findings} == {"GPU 2"}
    assert [one.code for one in found["n03"].findings if one.verdict.value == "fail"] == ["tool_hung"]
    assert found["n02"].did == "drained"
    assert "192.0.2.1" in found["gone"].unreached
    slurm = fleet.slurm["nodes"]
    assert slurm["n02"].startswith("rackproof-night: ecc_sram_uncorrectable GPU 2")
    assert slurm["n02"].endswith(f"rackproof explain --results {fleet.results.resolve()} n02")
    assert {name: slurm[name] for name in ("n01", "n03", "n04", "gone")} == {
        "n01": "",
        "n04": "",
        "gone": "",
    } | theirs
    folder = night_folders(fleet.results)[0]
    assert (folder / "index.html").is_file()
    assert "rackproof explain" not in (folder / "nodes/n01.html").read_text()
    assert read_run(folder).verdict.value == "fail"

    # The faults are gone. The node has to pass twice before it is resumed.
    fleet.hardware("n02", "--fault", "ecc-uncorrectable", "--off")
    fleet.hardware("n02", "--boot")
    fleet.hardware("n03", "--fault", "hung-nvidia-smi", "--off")
    options = ("-l", REACHABLE, "-e", "validate_resume=true", "-e", "validate_drain=true")
    # By default, nights that are less than 12 hours apart count as one. The nights here are minutes apart.
    options += ("-e", "validate_resume_hours=0")
    done = fleet.validate(*options)
    output = done.stdout + done.stderr
    assert "stays drained: the failed checks have passed 1 of 2 times" in done.stdout, output
    assert fleet.slurm["nodes"]["n02"].startswith("rackproof-night:")
    done = fleet.validate(*options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert fleet.slurm["nodes"] == dict.fromkeys([*REACHABLE.split(","), "gone"], "") | theirs
    assert "n02: returned to service" in done.stdout
    explanation = explanation_text(explain_node(fleet.results, "n02"))
    assert "done: returned to service" in explanation
    assert "Slurm's state was IDLE." in explanation
    assert explanation.count("pass\n") == 2
    assert [(act.act, act.node, act.reason) for act in read_acts(fleet.results)[0]] == [
        ("drain", "n02", slurm["n02"]),
        ("resume", "n02", ""),
    ]


def test_a_limit_without_gpu_nodes_fails(fleet: Fleet) -> None:
    done = fleet.validate("-l", "ctl")
    assert done.returncode == 2
    assert "nothing would be proven" in done.stdout
