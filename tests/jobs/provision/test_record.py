"""Test ``rackproof.jobs.provision.record``, which stores each run of provision.yml.

The record shows who ran the playbook, what changed on each node, and which nodes were drained and why. The
tests check the record, its page, and that the commands report, history and explain show it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from rackproof.cli.main import main
from rackproof.core.records import Verdict
from rackproof.jobs.provision.record import keep_provision
from rackproof.store.append_log import acting_user
from rackproof.store.audit_log import append_acts, provision_of
from rackproof.store.run_folder import ResultsError, read_run

BEGAN = datetime(2026, 11, 26, 20, 0, tzinfo=UTC)
# The changed tasks of each node, and the error of one node.
CHANGED = {"n1": ["Install OFED", "Reboot"], "n2": ["Install OFED"], "n3": []}
PROBLEM = {"n2": ["Reboot: n2 did not come back in 900 s"]}


def keep(results: Path, failed: set[str] | None = None) -> str:
    """Store a provisioning of three nodes, and return the id of its run."""
    append_acts(
        results, [("n2", "drain", "rackproof: provisioning"), ("n9", "drain", "fan")], "provision.yml"
    )
    nodes = provision_of(CHANGED, PROBLEM if failed else {}, failed or set())
    kept = keep_provision(results, BEGAN, nodes, playbook="provision.yml", limit="rack")
    assert kept.history == ""
    assert kept.page.is_file()
    return kept.run.run_id


@pytest.mark.parametrize("failed", [set(), {"n2"}])
def test_the_record_has_the_acting_user_the_changes_and_the_drains(tmp_path: Path, failed: set[str]) -> None:
    run = read_run(tmp_path / keep(tmp_path, failed))
    assert run.verdict is (Verdict.FAIL if failed else Verdict.PASS)
    assert run.reasons == (("n2: Reboot: n2 did not come back in 900 s",) if failed else ())
    assert f"{acting_user()}@" in run.description
    assert "ran provision.yml -l rack: 3 nodes, 2 changed, " in run.description
    said = {(one.code, one.message) for one in run.findings}
    assert ("provision_change", "n[1-2]: Install OFED") in said
    assert ("provision_change", "n1: Reboot") in said
    assert [one.message for one in run.findings if one.code == "provision_act"] == [
        f"n2: drain by {acting_user()}@{run.description.partition('@')[2].partition(' ')[0]}: "
        "rackproof: provisioning"
    ]


def test_report_history_and_explain_show_a_provisioning(tmp_path: Path) -> None:
    name = keep(tmp_path, {"n2"})
    call = CliRunner().invoke
    results = ["--results", str(tmp_path)]
    shown = call(main, ["report", name, "--format", "md", *results]).output
    assert "Install OFED" in shown
    assert "drain by" in shown
    (listed,) = json.loads(call(main, ["history", "--node", "n2", "--json", *results]).output)
    assert (listed["run_id"], listed["verdict"], listed["benchmark"]) == (name, "fail", "provision")
    assert "did not come back" in call(main, ["explain", "n2", *results]).output


def test_a_page_that_cannot_be_written_leaves_the_record(tmp_path: Path) -> None:
    nodes = provision_of(CHANGED, {}, set())
    # The page needs the audit log, which cannot be read.
    (tmp_path / "audit.jsonl").mkdir()
    with pytest.raises(ResultsError):
        keep_provision(tmp_path, BEGAN, nodes, playbook="provision.yml", limit="")
    assert len(list((tmp_path / "provisions").glob("provision-*.json"))) == 1


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("", "no node was provisioned: see which nodes the inventory selects"),
        ("rack9", "no node was provisioned: see which nodes -l rack9 selects"),
    ],
)
def test_a_provisioning_of_no_node_is_unproven(tmp_path: Path, limit: str, reason: str) -> None:
    run = keep_provision(tmp_path, BEGAN, {}, playbook="provision.yml", limit=limit).run
    assert (run.verdict, run.reasons) == (Verdict.UNPROVEN, (reason,))
