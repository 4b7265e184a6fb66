"""Test that a night recognizes each node by its host name, serial number and GPUs.

If cables, addresses or GPUs were exchanged, findings would name the wrong node. The tests swap names,
machines and GPUs. The night must make these nodes unproven and name where the parts were last seen, until
they are back or an operator accepts them (validate_accept_identity).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Verdict
from rackproof.jobs.validate.judge import judge_fleet
from rackproof.jobs.validate.tasks import begin_night, close_night, store_snapshot
from rackproof.nodes.answer_seal import sealed_answer
from rackproof.store.night_store import NodeNight, night_folders, read_night
from tests.jobs.validate.nights import uuid
from tests.jobs.validate.probes import ROOT
from tests.jobs.validate.test_validating import EPOCH, NODES, gathered, slurm
from tests.nodes.health.healthy import replace_gpu

FIRST, SECOND, THIRD = NODES


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def night(
    results: Path,
    answers: dict[str, dict[str, Any]],
    accepted: tuple[str, ...] = (),
    names: tuple[str, ...] = NODES,
) -> dict[str, NodeNight]:
    """Make a night with these answers. The other nodes answer as usual."""
    begun = begin_night(results, names, owner_pid=os.getpid())
    for name in names:
        store_snapshot(
            begun,
            name,
            sealed_answer(answers.get(name) or machine(NODES.index(name))),
            asked=EPOCH,
            answered=EPOCH + 1,
            sku="h200",
            expected={"gpus": 4, "hostname": name},
            accept_identity=name in accepted,
        )
    states = {name: {"known": True, "state_after": "IDLE"} for name in names} | slurm()
    judge_fleet(
        begun,
        asked=dict.fromkeys(names, ""),
        benchmarks=ROOT / "benchmarks",
        being_imaged={},
        slurm=states,
        share=0.9,
    )
    close_night(begun, did={})
    return {one.node: one for one in read_night(night_folders(results)[0]).nodes}


def machine(number: int, hostname: str = "", chips: dict[int, str] | None = None) -> dict[str, Any]:
    """Return the answer of a machine. ``chips`` has the UUIDs of other GPUs by the machine's slots."""
    answer = gathered(number)
    answer["facts"]["hostname"] = hostname or NODES[number]
    smi = answer["facts"]["tools"]["nvidia_smi_xml"]
    for slot, chip in (chips or {}).items():
        # A GPU keeps its serial number.
        replace_gpu(answer, uuid(number, slot), chip)
        smi["stdout"] = smi["stdout"].replace(f"<serial>S{number}{slot}<", f"<serial>T{chip[-4:]}<")
    return answer


def found(one: NodeNight) -> set[str]:
    return {finding.code for finding in one.findings}


def verdicts(nodes: dict[str, NodeNight]) -> list[str]:
    return [nodes[name].verdict.value for name in NODES]


def test_nodes_with_the_same_identity_pass(results: Path) -> None:
    for _ in range(3):
        assert verdicts(night(results, {})) == ["pass"] * 3


@pytest.mark.parametrize(
    ("hostname", "verdict"),
    [
        (FIRST, "pass"),
        (f"{FIRST}.cluster.example", "pass"),
        (FIRST.upper(), "pass"),
        (SECOND, "unproven"),
        ("localhost", "unproven"),
        ("r1-n011", "unproven"),
        (None, "unproven"),
        (["r1-n01"], "unproven"),
    ],
)
def test_a_node_calls_itself_by_its_name(results: Path, hostname: Any, verdict: str) -> None:
    answer = machine(0)
    answer["facts"]["hostname"] = hostname
    assert verdicts(night(results, {FIRST: answer})) == [verdict, "pass", "pass"]


def test_two_nodes_whose_host_names_are_swapped_are_unproven_in_their_first_night(results: Path) -> None:
    nodes = night(results, {FIRST: machine(0, SECOND), SECOND: machine(1, FIRST)})
    assert verdicts(nodes) == ["unproven", "unproven", "pass"]
    assert "hostname_differs" in found(nodes[FIRST])


def test_two_nodes_whose_addresses_are_swapped_are_unproven_until_that_is_mended(results: Path) -> None:
    """The host names were swapped as well, so only the machines and GPUs show it."""
    night(results, {})
    swapped = {FIRST: machine(1, FIRST), SECOND: machine(0, SECOND)}
    for _ in range(3):
        nodes = night(results, swapped)
        assert verdicts(nodes) == ["unproven", "unproven", "pass"]
        assert "machine_changed" in found(nodes[FIRST])
        (moved,) = [one for one in nodes[FIRST].findings if one.code == "parts_moved"]
        assert f"SN0001 was last seen in {SECOND} on 2" in moved.evidence
        assert f"{uuid(1, 0)} was last seen in {SECOND} on 2" in moved.evidence
    # When the machines are back, the first night only remarks the change.
    assert Verdict.UNPROVEN not in {one.verdict for one in night(results, {}).values()}
    assert verdicts(night(results, {})) == ["pass"] * 3


@pytest.mark.parametrize("slots", [(0,), (1, 3), (0, 1, 2, 3)])
def test_gpus_that_were_exchanged_between_nodes_are_unproven_and_named(
    results: Path, slots: tuple[int, ...]
) -> None:
    night(results, {})
    nodes = night(
        results,
        {
            FIRST: machine(0, chips={slot: uuid(1, slot) for slot in slots}),
            SECOND: machine(1, chips={slot: uuid(0, slot) for slot in slots}),
        },
    )
    assert verdicts(nodes) == ["unproven", "unproven", "pass"]
    for name, other, number in ((FIRST, SECOND, 1), (SECOND, FIRST, 0)):
        text = " ".join(nodes[name].reason_texts())
        assert all(f"{uuid(number, slot)} was last seen in {other}" in text for slot in slots)


def test_a_new_gpu_is_unproven_until_it_is_accepted(results: Path) -> None:
    night(results, {})
    repaired = {FIRST: machine(0, chips={2: uuid(77, 2)})}
    for _ in range(3):
        nodes = night(results, repaired)
        assert verdicts(nodes) == ["unproven", "pass", "pass"]
        (one,) = nodes[FIRST].findings
        assert one.name == uuid(77, 2)
        assert "validate_accept_identity=true" in one.evidence
    night(results, repaired, accepted=NODES)
    assert verdicts(night(results, repaired)) == ["pass", "pass", "pass"]
    # If the old GPU returns, it must be accepted, too.
    assert verdicts(night(results, {})) == ["unproven", "pass", "pass"]


def test_what_is_accepted_in_the_night_of_the_repair_is_a_remark(results: Path) -> None:
    night(results, {})
    repaired = {FIRST: machine(0, chips={2: uuid(77, 2)})}
    assert verdicts(night(results, repaired, accepted=NODES)) == ["degraded", "pass", "pass"]
    assert verdicts(night(results, repaired)) == ["pass", "pass", "pass"]


@pytest.mark.parametrize(
    ("serial", "code"), [("SN9999", "machine_changed"), ("", "machine_unknown"), ("None", "machine_unknown")]
)
def test_a_new_board_is_unproven_until_it_is_accepted(results: Path, serial: str, code: str) -> None:
    night(results, {})
    answer = machine(0)
    answer["facts"]["dmi"]["product_serial"] = serial
    for _ in range(2):
        nodes = night(results, {FIRST: answer})
        assert (verdicts(nodes), found(nodes[FIRST])) == (["unproven", "pass", "pass"], {code})


def test_gpus_of_a_node_that_no_night_has_seen_are_recognised(results: Path) -> None:
    night(results, {}, names=(FIRST, SECOND))
    nodes = night(results, {THIRD: machine(1, THIRD)}, names=(FIRST, THIRD))
    assert nodes[THIRD].verdict is Verdict.UNPROVEN
    assert f"was last seen in {SECOND}" in " ".join(nodes[THIRD].reason_texts())


def test_a_gpu_that_was_missing_in_the_first_night_may_come_back(results: Path) -> None:
    lacking = gathered(0, gone=2)
    lacking["facts"]["hostname"] = FIRST
    night(results, {FIRST: lacking})
    assert night(results, {})[FIRST].verdict is Verdict.DEGRADED
    assert verdicts(night(results, {})) == ["pass"] * 3


def test_a_night_without_an_answer_of_the_driver_forgets_no_gpu(results: Path) -> None:
    night(results, {})
    silent = machine(0)
    silent["facts"]["tools"]["nvidia_smi_xml"] = {"status": "failed", "rc": 9, "stdout": "", "stderr": ""}
    night(results, {FIRST: silent})
    nodes = night(results, {FIRST: machine(0, chips={slot: uuid(77, slot) for slot in range(4)})})
    assert nodes[FIRST].verdict is Verdict.UNPROVEN
