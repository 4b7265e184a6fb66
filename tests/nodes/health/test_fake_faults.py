"""Test that the health checks find each fault of the fake hardware on the right part.

The fake tools of the test rack print what real tools print for a fault. A night's check
(nodes/health_checks.py) must blame the right GPU, port or node, name the right action, and blame nothing
else. A healthy node has no finding.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from rackproof import logs
from rackproof.core.records import Verdict
from rackproof.nodes.health_checks import check_node
from rackproof.nodes.health_subjects import Expectation, HealthFinding
from rackproof.nodes.snapshot import NodeSnapshot, build_snapshot

from .conftest import Rig

# Every case starts processes, which takes too long for `make check`.
pytestmark = pytest.mark.slow

EXPECTED = Expectation(
    gpus=4, ports=4, port_gbps=800, nvlinks=18, fabric=True, power_limit_w=1400, mounts=("/shared",)
)


def found_on(rig: Rig, previous: NodeSnapshot | None = None, **more: object) -> tuple[HealthFinding, ...]:
    """Return the findings of a night on the node."""
    state = build_snapshot("gb300-r01-n01", rig.gather(**more), sku="gb300", previous=previous)  # type: ignore[arg-type]
    return check_node(state, previous=previous, expected=EXPECTED)


@pytest.fixture(scope="module")
def before(sound: Rig) -> NodeSnapshot:
    """Return the snapshot of the night before the fault."""
    return build_snapshot("gb300-r01-n01", sound.gather(), sku="gb300")


def test_a_healthy_node_has_no_finding(sound: Rig, before: NodeSnapshot) -> None:
    assert check_node(before, expected=EXPECTED) == ()
    assert found_on(sound, before) == ()
    assert len(before.gpus) == 4
    assert len(before.ports) == 4
    assert {len(gpu.links) for gpu in before.gpus} == {18}


def test_a_node_with_ports_of_a_bluefield_is_healthy_and_they_replace_no_compute_port(rig: Rig) -> None:
    assert rig.run("hardware --init gb300 --seed gb300-r01-n01 --bluefield")["rc"] == 0
    expected = replace(EXPECTED, port_layer="InfiniBand")
    snapshot = build_snapshot("gb300-r01-n01", rig.gather(), sku="gb300")
    assert [(one.rate_gbps, one.layer) for one in snapshot.ports][3:] == [
        (800.0, "InfiniBand"),
        *[(200.0, "Ethernet")] * 2,
    ]
    assert check_node(snapshot, expected=expected) == ()
    rig.run("hardware --fault hca-port-down --hca 2")
    down = build_snapshot("gb300-r01-n01", rig.gather(), sku="gb300")
    found = [(one.code, one.name) for one in check_node(down, expected=expected) if one.part == "port"]
    assert found == [("port_down", f"{down.ports[2].device}/1")]


# Each row has the fault, the codes that must be found, the part that all findings name (kind, and index of
# the GPU or port), and the action of the code that is first in the alphabet.
FAULTS = [
    ("missing-gpu --gpu 1", {"gpu_missing", "xid_79"}, ("gpu", 1), "reboot"),
    (
        "ecc-uncorrectable --gpu 2",
        {"ecc_sram_uncorrectable", "recovery_needed", "xid_95"},
        ("gpu", 2),
        "reset",
    ),
    ("row-remap-pending --gpu 3", {"remap_pending", "xid_48", "xid_63"}, ("gpu", 3), "reset"),
    ("xid --gpu 0", {"xid_79"}, ("gpu", 0), "reboot"),
    ("xid --gpu 0 --number 119", {"xid_119"}, ("gpu", 0), "reboot"),
    ("xid --gpu 3 --number 31", {"xid_31"}, ("gpu", 3), "watch"),
    ("link-trained-down --gpu 1", {"pcie_width"}, ("gpu", 1), "inspect"),
    ("nvlink-down --gpu 2", {"nvlink_down", "xid_74"}, ("gpu", 2), "reset"),
    ("hca-port-down --hca 2", {"port_down"}, ("port", 2), "inspect"),
    ("version-mismatch --component fabricmanager", {"mismatch_fabricmanager"}, ("node", 0), "configure"),
    ("throttling --gpu 0", {"throttled"}, ("gpu", 0), "inspect"),
    ("version-mismatch", {"no_driver"}, ("node", 0), "configure"),
]


@pytest.mark.parametrize(("fault", "codes", "part", "action"), FAULTS, ids=[one[0] for one in FAULTS])
def test_a_fault_is_found_on_its_part(
    fault: str, codes: set[str], part: tuple[str, int], action: str, rig: Rig, before: NodeSnapshot
) -> None:
    assert rig.run(f"hardware --fault {fault}")["rc"] == 0
    found = found_on(rig, before)
    kind, index = part
    name = {
        "gpu": before.gpus[index].uuid,
        "port": f"{before.ports[index].device}/1",
        "node": "",
    }[kind]
    assert codes <= {one.code for one in found}
    # No other part is blamed.
    assert {(one.part, one.name) for one in found} == {(kind, name)}
    first = next(one for one in found if one.code == sorted(codes)[0])
    assert first.action == action
    assert all(one.evidence for one in found)
    gates = Verdict.DEGRADED if fault.endswith("31") else Verdict.FAIL
    assert found[0].verdict is gates


@pytest.mark.parametrize("is_known", [True, False])
def test_a_gpu_that_fell_off_the_bus_is_named(is_known: bool, rig: Rig, before: NodeSnapshot) -> None:
    """nvidia-smi then prints only the address of the lost GPU, and shows no other GPU either."""
    rig.run("hardware --fault lost-gpu --gpu 1")
    snapshot = build_snapshot("gb300-r01-n01", rig.gather(), sku="gb300")
    assert snapshot.gpus == ()
    found = check_node(snapshot, expected=EXPECTED, previous=before if is_known else None)
    (lost,) = [one for one in found if one.code == "gpu_lost"]
    gpu = before.gpus[1]
    assert (lost.verdict, lost.action, lost.part) == (Verdict.FAIL, "reboot", "gpu")
    assert (lost.name, lost.place) == ((gpu.uuid, gpu.place) if is_known else ("", gpu.bus_id[4:]))
    assert gpu.bus_id[4:] in lost.evidence


def test_a_hung_tool_is_a_finding_and_hides_no_other(rig: Rig, before: NodeSnapshot) -> None:
    rig.run("hardware --fault hung-nvidia-smi")
    rig.run("hardware --fault hca-port-down --hca 1")
    found = found_on(rig, before, timeout_s=0.7)
    assert {one.code for one in found} == {"tool_hung", "port_down"}
    assert {one.verdict for one in found} == {Verdict.FAIL}
    assert any("nvidia_smi_xml: hung" in one.evidence for one in found)


def test_two_faults_are_two(rig: Rig, before: NodeSnapshot) -> None:
    rig.run("hardware --fault nvlink-down --gpu 0")
    rig.run("hardware --fault link-trained-down --gpu 3")
    by_gpu: dict[str, set[str]] = {}
    for one in found_on(rig, before):
        by_gpu.setdefault(one.name, set()).add(one.code)
    assert "nvlink_down" in by_gpu[before.gpus[0].uuid]
    assert by_gpu[before.gpus[3].uuid] == {"pcie_width", "pcie_error"}


def test_a_healthy_node_s_table_of_every_field_passes(sound: Rig) -> None:
    fields = re.findall(r'^"([a-z0-9_.]+)"', sound.run("nvidia-smi --help-query-gpu")["stdout"], re.MULTILINE)
    assert len(fields) > 100
    answer = sound.run(f"nvidia-smi --query-gpu={','.join(fields)} --format=csv")
    assert answer["status"] == "ok"
    parsed = logs.parse(io.BytesIO(answer["stdout"].encode()))
    assert (parsed.format, parsed.verdict) == ("nvidia_smi_csv", Verdict.PASS), parsed.findings
