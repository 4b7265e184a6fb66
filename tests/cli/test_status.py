"""Test ``rackproof status`` and ``audit``, and the records that playbooks write for them.

``status`` joins Slurm's state, nights, provisionings and imaging into one row for each node, with the next
command. ``audit`` lists acts, such as drains, with the person who typed the command.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from rackproof.cli.status import _night_text
from rackproof.core.records import Verdict
from rackproof.jobs.fleet_status import SlurmNow, ask_slurm, build_row, read_rows, read_sinfo
from rackproof.jobs.validate.pages import node_page
from rackproof.store.audit_log import (
    acts_of,
    append_acts,
    provision_of,
    read_acts,
    read_provisions,
    write_provision,
)
from rackproof.store.night_store import (
    NightRecord,
    NodeNight,
    SlurmState,
    night_folders,
    read_night,
    write_night,
)
from rackproof.store.run_folder import ResultsError

from .conftest import NOW


def slurm_node(before: str, after: str, reason: str = "") -> dict[str, str]:
    """Return the states of a node in Slurm, as a playbook records them."""
    return {"state_before": before, "state_after": after, "reason": reason}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (slurm_node("IDLE", "IDLE+DRAIN", "provisioning"), [("n1", "drain", "provisioning")]),
        (slurm_node("MIXED", "DRAINING", "rackproof-night: xid"), [("n1", "drain", "rackproof-night: xid")]),
        (slurm_node("IDLE+DRAIN", "IDLE"), [("n1", "resume", "")]),
        (slurm_node("drained*", "idle"), [("n1", "resume", "")]),
        (slurm_node("IDLE+DRAIN", "IDLE+DRAIN", "RMA"), []),
        (slurm_node("DOWN", "IDLE"), []),
        ({}, []),
        ("no mapping", []),
    ],
)
def test_an_act_is_a_node_that_was_drained_or_resumed(state: object, expected: list[Any]) -> None:
    assert acts_of({"n1": state}) == expected


def test_a_damaged_line_hides_no_act_and_each_act_has_its_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    append_acts(tmp_path, [("n1", "drain", "a")], "provision.yml")
    with (tmp_path / "audit.jsonl").open("a") as log:
        log.write('{"half": \n')
    append_acts(tmp_path, [("n1", "resume", ""), ("n2", "drain", "b")], "validate.yml")
    append_acts(tmp_path, [], "bench.yml")
    acts, damaged = read_acts(tmp_path)
    assert [(one.act, one.node, one.actor, one.playbook) for one in acts] == [
        ("drain", "n1", "ada", "provision.yml"),
        ("resume", "n1", "ada", "validate.yml"),
        ("drain", "n2", "ada", "validate.yml"),
    ]
    assert damaged == 1


def test_sinfo_lists_a_node_of_two_partitions_once() -> None:
    listed = "n1\tidle\troot\tnone\nn1\tidle\troot\tnone\nn2\tdrained\tslurm\tRMA: two\twords\n\nn3\n"
    assert read_sinfo(listed) == {
        "n1": SlurmNow(state="idle"),
        "n2": SlurmNow(state="drained", reason="RMA: two words", set_by="slurm"),
        "n3": SlurmNow(state=""),
    }


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(), subprocess.TimeoutExpired("sinfo", 1), subprocess.CalledProcessError(1, "sinfo")],
)
def test_if_slurm_does_not_answer_a_note_states_it(error: Exception) -> None:
    def run(*_: object, **__: object) -> None:
        raise error

    found, why = ask_slurm(run)
    assert found == {}
    assert why.endswith("; states are those of the last night")


@pytest.mark.parametrize("reason", [b"L\xfcfter", b"\xff", "Lüfter".encode()])
def test_a_reason_in_another_encoding_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: bytes
) -> None:
    (tmp_path / "listed").write_bytes(b"n1\tdrained\troot\t" + reason + b"\nn2\tidle\troot\tnone\n")
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\ncat {tmp_path}/listed\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found, why = ask_slurm()
    assert (list(found), why) == (["n1", "n2"], "")
    assert found["n1"].reason


def night_of(verdict: Verdict, **slurm: Any) -> tuple[datetime, NodeNight]:
    """Return a night of the node n1 with a verdict and a state in Slurm."""
    return NOW, NodeNight(
        node="n1", verdict=verdict, slurm=SlurmState(known=True, **slurm) if slurm else None
    )


def imaging(text: str, command: str) -> Any:
    """Return the state of imaging of the node n1, with the next command."""
    return SimpleNamespace(node="n1", text=text, next_command=command)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"slurm": SlurmNow(state="idle")}, {"slurm": "idle", "next": "", "drained_by": ""}),
        (
            {"slurm": SlurmNow(state="drained", reason="RMA 7", set_by="ada")},
            {"drained_by": "ada", "next": "scontrol show node n1"},
        ),
        (
            {"slurm": SlurmNow(state="drained")},
            {"drained_by": "another owner", "next": "scontrol show node n1"},
        ),
        ({"slurm": SlurmNow(state="draining*")}, {"next": "scontrol show node n1"}),
        (
            {"slurm": SlurmNow(state="down*", reason="Not responding", set_by="slurm")},
            {"drained_by": "", "next": "ansible-playbook validate.yml -l n1"},
        ),
        ({"slurm": SlurmNow(state="down")}, {"next": "ansible-playbook validate.yml -l n1"}),
        ({"night": night_of(Verdict.PASS, state="DOWN")}, {"next": "ansible-playbook validate.yml -l n1"}),
        ({"slurm": SlurmNow(state="powered_down")}, {"next": ""}),
        ({"slurm": SlurmNow(state="idle~")}, {"next": ""}),
        (
            {"night": night_of(Verdict.FAIL, state="IDLE+DRAIN", reason="rackproof-night: xid")},
            {"slurm": "idle+drain", "verdict": Verdict.FAIL, "next": "rackproof explain n1"},
        ),
        (
            {"night": night_of(Verdict.PASS, state="IDLE+DRAIN", reason="rackproof-night: xid")},
            {"next": "ansible-playbook validate.yml -l n1"},
        ),
        (
            {"imaging": imaging("booting for 3 min", "ansible-playbook reimage.yml -l n1")},
            {"imaging": "booting for 3 min", "next": "ansible-playbook reimage.yml -l n1"},
        ),
        ({"night": night_of(Verdict.PASS)}, {"slurm": "", "next": "", "night": "11-22 02:00"}),
    ],
)
def test_a_row_joins_what_is_known_and_names_the_next_command(
    given: dict[str, Any], shown: dict[str, Any]
) -> None:
    row = build_row("n1", *(given.get(key) for key in ("slurm", "night", "provision", "imaging", "act")))
    assert {key: getattr(row, key) for key in shown} == shown


@pytest.mark.parametrize(
    ("state", "reason", "command"),
    [
        ("drained", "rackproof-night: xid_79 GPU 0", "ansible-playbook validate.yml -l n1"),
        ("drained", "rackproof: provisioning", "ansible-playbook provision.yml -l n1"),
        ("draining*", "rackproof: health: 3 of 4 GPUs", "ansible-playbook provision.yml -l n1"),
        ("drained", "rackproof-reimage: gets a new image", "rackproof reimage status n1"),
        ("drained", "rackproofing the roof", "scontrol show node n1"),
        ("down", "rackproof: provisioning", "ansible-playbook validate.yml -l n1"),
    ],
)
def test_the_next_command_for_a_drained_node_is_of_the_job_that_drained_it(
    state: str, reason: str, command: str
) -> None:
    slurm = SlurmNow(state=state, reason=reason)
    running = imaging("image (3 min)", "")
    assert build_row("n1", slurm, None, None, None, None).next == command
    assert build_row("n1", slurm, night_of(Verdict.PASS), None, running, None).next == command


def test_advice_names_the_inventory_of_the_night(
    fleet: Path, run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    (folder,) = night_folders(fleet)
    night = read_night(folder)
    lost = night.nodes[1].model_copy(update={"unreached": "no answer"})
    cluster = (str(tmp_path / "cluster"),)
    record = night.model_copy(update={"inventory": cluster, "nodes": (night.nodes[0], lost)})
    write_night(folder, record)
    assert "ansible-playbook validate.yml -i cluster -l n2" in run("explain", "n2").output
    assert "ansible-playbook provision.yml -i cluster -l n4" in run("explain", "n4").output
    assert "ansible-playbook provision.yml -i cluster -l n4" in run("status", "--json").stdout
    page = node_page(record, lost, None, [])
    assert f"ansible-playbook validate.yml -i {cluster[0]} -l n2" in page
    monkeypatch.setenv("ANSIBLE_INVENTORY", cluster[0])
    assert "ansible-playbook validate.yml -l n2" in run("explain", "n2").output
    assert "ansible-playbook provision.yml -l n4" in run("status", "--json").stdout


# Slurm's answer, the state of n1 in its last night (None if Slurm did not know it), and the row.
@pytest.mark.parametrize(
    ("slurm", "known", "state", "reason"),
    [
        ({}, True, "idle+drain", "bob: cable"),
        ({"n1": SlurmNow(state="idle")}, True, "idle", ""),
        ({"n8": SlurmNow(state="idle")}, True, "not listed", ""),
        ({"n8": SlurmNow(state="idle")}, False, "", ""),
        ({"n8": SlurmNow(state="down")}, None, "", ""),
    ],
)
def test_a_state_of_the_last_night_is_not_shown_for_a_node_that_slurm_no_longer_lists(
    tmp_path: Path, slurm: dict[str, SlurmNow], known: bool | None, state: str, reason: str
) -> None:
    folder = tmp_path / "20261121T020000Z-health-3f2a91"
    folder.mkdir()
    then = SlurmState(known=bool(known), state="IDLE+DRAIN", drained_by="other", reason="bob: cable")
    node = NodeNight(node="n1", verdict=Verdict.PASS, slurm=None if known is None else then)
    write_night(
        folder,
        NightRecord(night_id=folder.name, started=NOW, ended=NOW, verdict=Verdict.PASS, nodes=(node,)),
    )
    rows = {row.node: row for row in read_rows(tmp_path, slurm, ())[0]}
    assert (rows["n1"].slurm, rows["n1"].reason) == (state, reason)
    assert ("scontrol show" in rows["n1"].next) == (state == "idle+drain")


@pytest.mark.parametrize(("measured", "mark"), [(False, " pass (health only)"), (True, " pass")])
def test_a_pass_without_measurements_is_marked(measured: bool, mark: str) -> None:
    night = NodeNight(node="n1", verdict=Verdict.PASS, measured=measured)
    row = build_row("n1", None, (NOW, night), None, None, None)
    assert _night_text(row) == f"11-22 02:00{mark}"


def test_one_table_has_all_nodes(fleet: Path, run: Callable[..., Result]) -> None:
    shown = run("status", "--json")
    assert shown.exit_code == 0
    rows = {row["node"]: row for row in json.loads(shown.stdout)}
    assert list(rows) == ["n1", "n2", "n3", "n4"]
    assert rows["n2"]["drained_by"] == "ada, validate.yml"
    assert rows["n3"]["provisioned"].endswith("1 changed")
    assert rows["n4"]["provisioned"].endswith("failed")
    assert rows["n4"]["next"] == "ansible-playbook provision.yml -l n4"
    assert "this machine has no sinfo" in shown.stderr
    text = run("status").stdout
    assert all(name in text for name in rows)
    assert "\x1b" not in text
    unknown = run("status", "n9")
    assert ("n9: not known here" in unknown.stderr, unknown.stdout, unknown.exit_code) == (True, "", 1)


@pytest.mark.parametrize(
    ("why", "options", "says_slurm"), [("", [], True), ("no sinfo", [], False), ("", ["--no-slurm"], False)]
)
def test_without_nodes_only_a_queried_slurm_is_reported_to_list_none(
    run: Callable[..., Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
    options: list[str],
    says_slurm: bool,
) -> None:
    assert "no playbook has run here yet" in run("status").stderr
    (tmp_path / "results").mkdir()
    monkeypatch.setattr("rackproof.cli.status.ask_slurm", lambda: ({}, why))
    text = run("status", *options).stdout
    assert ("Slurm lists none" in text) == says_slurm
    assert "`rackproof history`" in text


def test_a_node_is_explained_by_its_provisioning_too(fleet: Path, run: Callable[..., Result]) -> None:
    """n4 failed and n3 did not, both without a night. n2 has both a night and a provisioning."""
    failed = run("explain", "n4").stdout
    assert failed.startswith("n4: provisioning failed (")
    assert "ada@" in failed
    assert "apt: no space" in failed
    assert "ansible-playbook provision.yml -l n4" in failed
    well = run("explain", "n3").stdout
    assert "provisioning ended well" in well
    assert "Install the driver" in well
    assert "provision.yml -l n3" not in well
    write_provision(fleet, NOW, provision_of({"n2": []}, {}, set()), playbook="provision.yml", limit="n2")
    both = run("explain", "n2").stdout
    assert "n2: fail in the night" in both
    assert "n2: provisioning ended well" in both
    shown = json.loads(run("explain", "n4", "--json").stdout)
    assert (shown["node"], list(shown["provisioning"]["nodes"])) == ("n4", ["n4"])
    assert json.loads(run("explain", "n1", "--json").stdout)["provisioning"] is None
    assert run("explain", "n9").exit_code == 1


@pytest.mark.parametrize(
    ("node", "acts"),
    [
        (None, ["accept", "drain", "drain", "resume"]),
        ("n3", ["drain", "resume"]),
        ("20261121T1-gemm", ["accept"]),
        ("n1", []),
    ],
)
def test_every_act_is_listed(
    fleet: Path, run: Callable[..., Result], node: str | None, acts: list[str]
) -> None:
    chosen = ["--node", node] if node else []
    listed = json.loads(run("audit", "--json", *chosen).stdout) if acts else []
    assert sorted(one["act"] for one in listed) == acts
    assert all(one["actor"].startswith("ada@") for one in listed)
    text = run("audit", *chosen).stdout
    assert ("nothing was done" in text) == (not acts)


def test_a_damaged_record_of_a_provisioning_is_named(fleet: Path, run: Callable[..., Result]) -> None:
    (fleet / "provisions" / "provision-20260101T000000Z-ffffff.json").write_text("{")
    assert len(read_provisions(fleet)[0]) == 1
    assert "1 damaged record of provisioning" in run("status").stderr


@pytest.mark.parametrize("arguments", [("status", "--json"), ("accept", "nothing"), ("withdraw", "nothing")])
def test_an_advised_command_names_the_results_folder(
    fleet: Path, run: Callable[..., Result], arguments: tuple[str, ...]
) -> None:
    """The advised command finds the results that the message is about."""
    moved = fleet.rename(fleet.with_name("my results"))
    run("history", "--rebuild", "--results", moved)
    shown = run(*arguments, "--results", moved).output
    advised = re.findall(r"rackproof (?:explain|history|accept)[^`\n\"]*", shown)
    assert advised
    assert [one for one in advised if f"--results '{moved}'" not in one] == []


@pytest.mark.parametrize(
    "state",
    [
        slurm_node("IDLE+DRAIN", ""),
        slurm_node("IDLE+DRAIN", "unknown"),
        slurm_node("", "IDLE"),
        {"state_before": "IDLE+DRAIN", "state_after": None},
        {"state_before": "IDLE+DRAIN"},
        {"state_before": "IDLE+DRAIN", "state_after": 7},
    ],
)
def test_an_unknown_state_is_no_act(state: object) -> None:
    assert acts_of({"n1": state}) == []


def test_a_drain_of_a_node_in_an_unknown_state_is_an_act() -> None:
    assert acts_of({"n1": slurm_node("unknown", "IDLE+DRAIN", "why")}) == [("n1", "drain", "why")]


def test_provisionings_that_cannot_be_listed_are_an_error(tmp_path: Path) -> None:
    assert read_provisions(tmp_path) == ([], 0)
    (tmp_path / "provisions").write_text("")
    with pytest.raises(ResultsError, match=r"cannot list .*provisions"):
        read_provisions(tmp_path)
