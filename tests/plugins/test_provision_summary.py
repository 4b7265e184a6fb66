"""Test the summary that provision.yml prints at its end (``rackproof.jobs.provision.summary``).

It lists what changed on each node and what needs attention, with one entry for all nodes of the same result.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rackproof.core.hostlist import compress_hostlist
from rackproof.jobs.provision.summary import provision_summary
from rackproof.store.run_folder import iter_runs

HERE = Path(__file__).resolve().parent / "provision_view"
EXPECTED = """\
node[01-02,04-08] (7 nodes): 1 changed
    Write a file
node03: 1 changed
    Write a file
    ATTENTION Break one node: no space left on node03
node09: 2 changed
    Write a file
    Change one node more
    ATTENTION Restart what was changed: node09: the service did not come back
node10: nothing changed"""


# Host names are shortened as in Slurm. Names with another number of digits (n9, n10) are not joined.
@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n02", "n01"], "n[01-02]"),
        (["n01", "n02", "n04", "n04"], "n[01-02,04]"),
        (["n9", "n10"], "n10,n9"),
        (["gb300-r01-n01", "gb300-r01-n02", "gb300-r02-n01"], "gb300-r01-n[01-02],gb300-r02-n01"),
        (["login", "n01"], "login,n01"),
    ],
)
def test_names_are_folded_as_slurm_does(names: list[str], folded: str) -> None:
    assert compress_hostlist(names) == folded


def test_summary_of_nothing_and_of_a_prediction() -> None:
    assert provision_summary({}, {}) == ""
    assert provision_summary({"a": []}, {}) == "a: nothing changed"
    assert provision_summary({"a": ["x"]}, {}, predicted=True) == "a: 1 would change\n    x"


def test_one_remark_about_many_nodes_is_reported_once() -> None:
    text = provision_summary({"n1": [], "n2": []}, {"n1": ["n1 has no clock"], "n2": ["n2 has no clock"]})
    assert text == "n[1-2] (2 nodes): nothing changed\n    ATTENTION the node has no clock"


@pytest.mark.playbook
def test_summary_of_a_playbook(root: Path, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {hosts: {'node[01:10]': {ansible_connection: local}}}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", inventory, HERE / "playbook.yml"],
        cwd=root,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "RACKPROOF_RESULTS": str(tmp_path / "results")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    printed = done.stdout.split("NODES ****", 1)[1].split("\n", 1)[1]
    *summary, report = printed.strip().splitlines()
    assert "\n".join(summary) == EXPECTED
    (run,) = iter_runs(tmp_path / "results")
    assert report == f"Report: {tmp_path}/results/{run.run_id}/report.html"
    assert run.reasons[0] == "node03: Break one node: no space left on node03"
