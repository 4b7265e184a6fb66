"""Test what a night reports about nodes that were queried without root.

Without root, a node may not show its kernel log, its serial number and its limit of locked memory. A remark
(``without_root_remarks``) names these nodes, and each finding names the cause, so that the operator can allow
root. A missing root is no fault of the tool or the fabric, and does not hide a node's own fault.
"""

from __future__ import annotations

from typing import Any

import pytest

from rackproof.core.records import Node, Verdict
from rackproof.jobs.validate.messages import without_root_remarks
from rackproof.nodes.health_checks import check_node, mark_fleetwide
from rackproof.nodes.health_subjects import Expectation, HealthFinding
from rackproof.nodes.snapshot import NodeSnapshot, build_snapshot
from rackproof.store.night_store import NightReason, NodeNight, StoredSnapshot


def stored(**about: Any) -> StoredSnapshot:
    about = {"tools": {"kernel_log": "ok"}, "serial": "S1"} | about
    snapshot = NodeSnapshot(node="n1", hardware_key="S1", **about)
    return StoredSnapshot(snapshot=snapshot, about=Node(name="n1"))


def test_nodes_that_root_was_asked_on_need_no_word() -> None:
    assert without_root_remarks({"n1": stored(), "n2": stored(asked_as_root=True)}) == []


def test_what_root_would_add_is_named_and_counted() -> None:
    (found,) = without_root_remarks(
        {
            "n1": stored(asked_as_root=False, tools={"kernel_log": "failed"}, serial=""),
            "n2": stored(asked_as_root=False, serial=""),
            "n3": stored(asked_as_root=True, tools={}),
        }
    )
    assert "queried without root: n[1-2]; root would add the kernel's log (1 of 2)" in found
    assert "serial number (2 of 2)" in found


def test_only_a_plain_answer_names_the_user() -> None:
    for answer, expected in ((True, True), (False, False), (0, None), ("no", None), (None, None)):
        assert build_snapshot("n1", {"node": {"root": answer}}).asked_as_root is expected
    assert build_snapshot("n1", {}).asked_as_root is None


def found(code: str, root: bool | None, node: str = "n1", **about: Any) -> HealthFinding:
    snapshot = NodeSnapshot(node=node, hardware_key="S1", asked_as_root=root, **about)
    (finding,) = [one for one in check_node(snapshot, expected=Expectation(gpus=8)) if one.code == code]
    return finding


KERNEL_LOG: dict[str, Any] = {"tools": {"nvidia_smi_xml": "ok", "kernel_log": "failed"}}


# The code of a finding, the values of a node that was queried without root, and the remedy.
@pytest.mark.parametrize(
    ("code", "about", "remedy"),
    [
        ("kernel_log_unknown", KERNEL_LOG, "groups adm and systemd-journal, or use -b"),
        ("machine_unknown", {"identity_serial": "S1", "serial": ""}, "use -b"),
        ("memlock", {"memlock_bytes": 64 << 10}, "use -b"),
    ],
)
def test_a_finding_names_the_missing_root(code: str, about: dict[str, Any], remedy: str) -> None:
    finding = found(code, False, **about)
    assert "without root" in finding.evidence
    assert remedy in finding.evidence
    assert finding.verdict is Verdict.UNPROVEN
    assert "by hand" not in finding.evidence
    for root in (True, None):
        assert "without root" not in found(code, root, **about).evidence


@pytest.mark.parametrize("status", ["absent", "cut", ""])
def test_a_log_that_root_could_not_read_either_is_the_tools_fault(status: str) -> None:
    tools = KERNEL_LOG["tools"] | {"kernel_log": status}
    assert "without root" not in found("kernel_log_unknown", False, tools=tools).evidence


def test_missing_root_on_a_whole_fleet_is_no_fault_of_the_tool_or_the_fabric() -> None:
    without = [found("kernel_log_unknown", False, f"n{number}", **KERNEL_LOG) for number in range(9)]
    settled, remarks = mark_fleetwide(without, 9)
    assert remarks == ()
    assert [(one.fleetwide, one.verdict) for one in settled] == [(False, Verdict.UNPROVEN)] * 9
    # With root, the same finding on all nodes is the tool's.
    failed = [found("kernel_log_unknown", True, f"n{number}", **KERNEL_LOG) for number in range(9)]
    assert all(one.fleetwide for one in mark_fleetwide(failed, 9)[0])


def test_a_nodes_own_finding_comes_before_those_of_the_whole_fleet() -> None:
    shared = found("kernel_log_unknown", False, **KERNEL_LOG)
    common: dict[str, Any] = {"fleetwide": True, "without_root": False}
    wide = shared.model_copy(update={"code": "wide", "evidence": "all", **common})
    own = wide.model_copy(
        update={"code": "port", "evidence": "down", "verdict": Verdict.DEGRADED, "fleetwide": False}
    )
    slow = NightReason(check="floor", metric="gemm", verdict=Verdict.UNPROVEN, text="slow", fleetwide=True)
    night = NodeNight(node="n1", verdict=Verdict.UNPROVEN, findings=(shared, wide, own), reasons=(slow,))
    assert night.reason_texts()[0] == "down"
    assert len(night.reason_texts()) == 4
