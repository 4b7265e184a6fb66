"""Test the health checks of a night (nodes/health_checks.py) on changed snapshots of a healthy node.

A snapshot is the parsed state of a node. A check compares it with what the inventory expects and with the
night before. A finding has a code, a verdict, and the operator's next action. Whatever cannot be read is
unproven, and never healthy. SOUND is the snapshot of a healthy node with one GPU and one port.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest

from rackproof.core.finding_codes import registry
from rackproof.core.records import Verdict
from rackproof.logs.kernel_events import requested_action
from rackproof.nodes.health_checks import LIMIT_BY_CODE, check_node, majority_versions, mark_fleetwide
from rackproof.nodes.health_subjects import Expectation, HealthFinding, Limits
from rackproof.nodes.kernel_log import XidEvent, normalize_bus_id
from rackproof.nodes.night_evidence import GPU_READINGS
from rackproof.nodes.snapshot import (
    GpuSnapshot,
    NodeSnapshot,
    PortSnapshot,
    build_snapshot,
    reboot_counter_key,
)
from tests.fuzz.samples import healthy_answer
from tests.nodes.health.healthy_parts import SECTIONS

GPU = GpuSnapshot(
    uuid="GPU-00000000-1111",
    serial="S1",
    index=0,
    bus_id="00000008:06:00.0",
    recovery_action="None",
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
    pcie_replays=3,
    power_limit_w=700,
    power_default_w=700,
    margin_c=40,
    temperature_c=40,
    link_errors=0,
    ecc_enabled=True,
    ecc_enabled_next=True,
    sram_uncorrectable=0,
    sram_threshold=False,
    sram_correctable=0,
    dram_uncorrectable=0,
    dram_correctable=0,
    throttled=(),
    memory_total_bytes=80 << 30,
    remap_pending=False,
    remap_failure=False,
    links={"0": True, "1": True},
    link_gb_s={"0": 26.562, "1": 26.562},
    fabric_state="Completed",
    fabric_health="Healthy",
    memory_used_bytes=0,
)
PORT = PortSnapshot(
    device="mlx5_0",
    port="1",
    state="active",
    physical="linkup",
    rate_gbps=400,
    counters={"symbol_error": 7, "port_rcv_errors": 50},
)
SOUND = NodeSnapshot(
    node="n1",
    sku="h100",
    hardware_key="SN1",
    epoch=1_000_000,
    boot_id="a",
    gpus=(GPU,),
    attached_gpus=1,
    ports=(PORT,),
    links={"0010:03": {"current_link_width": "16", "max_link_width": "16"}},
    versions={"driver": "580.1", "fabricmanager": "580.1", "ofed": "24.10"},
    tools={
        "nvidia_smi_xml": "ok",
        "nvlink_status": "ok",
        "nvlink_errors": "ok",
        "kernel_log": "ok",
        "failed_units": "ok",
        "units": "ok",
        "clock": "ok",
    },
    seconds={"nvidia_smi_xml": 1.0},
    mounts=("/", "/shared"),
    mount_table={"/": {"source": "a", "type": "ext4", "options": "rw", "super_options": "rw"}}
    | {"/shared": {"source": "b", "type": "nfs4", "options": "rw", "super_options": "rw"}},
    failed_units=(),
    services={},
    disk={"/": {"total_bytes": 100.0, "free_bytes": 50.0, "read_only": 0.0}},
    memory_bytes=1 << 40,
    memlock_bytes=-1,
    shm_bytes=64 << 30,
    clock_offset_s=0.1,
    clock_synchronized=True,
)
EXPECTED = Expectation(
    gpus=1, ports=1, port_gbps=400, nvlinks=2, mounts=("/shared",), versions={"driver": "580.1"}
)


def gpu(**changes: Any) -> NodeSnapshot:
    return SOUND.model_copy(update={"gpus": (GPU.model_copy(update=changes),)})


def port(**changes: Any) -> NodeSnapshot:
    return SOUND.model_copy(update={"ports": (PORT.model_copy(update=changes),)})


def node(**changes: Any) -> NodeSnapshot:
    return SOUND.model_copy(update=changes)


def codes(found: tuple[HealthFinding, ...]) -> list[str]:
    return [one.code for one in found]


def test_a_sound_snapshot_has_no_finding() -> None:
    assert check_node(SOUND, expected=EXPECTED, previous=SOUND, idle=True) == ()


F, D, U = Verdict.FAIL, Verdict.DEGRADED, Verdict.UNPROVEN
# Each row has SOUND with one change, and the code, verdict and action of the only finding. SOUND is also the
# night before, with 3 PCIe replays, 7 symbol errors and 50 receive errors. Some values are just over a limit.
CASES: list[tuple[NodeSnapshot, str, Verdict, str]] = [
    (gpu(sram_uncorrectable=1), "ecc_sram_uncorrectable", F, "reset"),
    (gpu(sram_threshold=True), "ecc_sram_uncorrectable", F, "rma"),
    (gpu(remap_pending=True, dram_uncorrectable=1), "remap_pending", F, "reset"),
    (gpu(remap_failure=True), "remap_failure", F, "rma"),
    (gpu(dram_uncorrectable=1), "ecc_dram_uncorrectable", D, "watch"),
    (gpu(sram_correctable=10_001), "ecc_sram_correctable", D, "watch"),
    (gpu(dram_correctable=20_000_001), "ecc_dram_correctable", D, "watch"),
    (gpu(ecc_enabled=False), "ecc_off", F, "configure"),
    (gpu(recovery_action="Reset"), "recovery_needed", F, "reset"),
    (gpu(recovery_action="Reboot"), "recovery_needed", F, "reboot"),
    (gpu(pcie_width=8), "pcie_width", F, "inspect"),
    (gpu(pcie_generation=3, utilisation=90.0), "pcie_generation", F, "inspect"),
    (gpu(pcie_generation=3).model_copy(update={"loaded": True}), "pcie_generation", F, "inspect"),
    (gpu(pcie_replays=200), "pcie_replays", D, "watch"),
    (gpu(throttled=("hw_thermal_slowdown",)), "throttled", F, "inspect"),
    (gpu(throttled=("sw_thermal_slowdown",)), "throttled", D, "inspect"),
    (gpu(margin_c=5), "temperature", D, "inspect"),
    (gpu(margin_c=0), "temperature", F, "inspect"),
    (gpu(power_limit_w=500), "power_limit", F, "configure"),
    (gpu(links={"0": True, "1": False}), "nvlink_down", F, "reset"),
    (gpu(links={"0": True}), "nvlink_missing", F, "reset"),
    (gpu(link_errors=3), "nvlink_errors", D, "watch"),
    (gpu(fabric_state="In Progress"), "fabric_incomplete", F, "configure"),
    (gpu(fabric_health="Unhealthy"), "fabric_unhealthy", F, "reset"),
    (gpu(memory_used_bytes=2 << 30), "memory_in_use", F, "reset"),
    (gpu(serial="S2"), "gpu_serial_changed", F, "inspect"),
    (gpu(uuid="GPU-00000000-2222"), "gpu_replaced", U, "configure"),
    (
        gpu(uuid="GPU-00000000-2222").model_copy(update={"identity_gpus": ("GPU-00000000-2222",)}),
        "gpu_replaced",
        D,
        "watch",
    ),
    (port(state="down", physical="polling"), "port_down", F, "inspect"),
    (port(state="", rate_gbps=None), "port_unknown", U, "inspect"),
    (port(rate_gbps=200), "port_slow", F, "inspect"),
    (port(counters={**PORT.counters, "symbol_error": 18}), "port_symbol_error", F, "inspect"),
    (port(counters={**PORT.counters, "port_rcv_errors": 151}), "port_port_rcv_errors", F, "inspect"),
    (node(ports=()), "port_missing", F, "reboot"),
    (
        node(links={"0010:03": {"current_link_width": "8", "max_link_width": "16"}}),
        "link_width",
        F,
        "inspect",
    ),
    (
        node(links={"a": {"current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}}),
        "link_speed",
        F,
        "inspect",
    ),
    (node(versions={"driver": "570.2"}), "version_driver", F, "configure"),
    (node(versions={}), "version_driver", U, "configure"),
    (node(versions={"driver": "580.1", "fabricmanager": "570.9"}), "mismatch_fabricmanager", F, "configure"),
    (
        node(versions={"driver": "580.1", "module.nvidia_peermem": "1"}),
        "mismatch_module_nvidia_peermem",
        F,
        "configure",
    ),
    (node(tools={**SOUND.tools, "kernel_log": "failed"}), "kernel_log_unknown", U, "watch"),
    (node(tools={**SOUND.tools, "kernel_log": ""}), "kernel_log_unknown", U, "watch"),
    (node(tools={**SOUND.tools, "ofed_info": "hung"}), "tool_hung", U, "watch"),
    *(
        (node(tools={**SOUND.tools, name: "failed"}), "tool_failed", U, "watch")
        for name in ("enroot", "docker", "slurm")
    ),
    (node(tools={**SOUND.tools, "nvlink_errors": "hung"}), "tool_hung", F, "reboot"),
    (node(seconds={"nvidia_smi_xml": 5.5}), "tool_slow", F, "reboot"),
    (node(truncated=("kernel_log",)), "answer_cut", U, "watch"),
    (node(memlock_bytes=64 << 10), "memlock", F, "configure"),
    (node(memlock_bytes=64 << 10, asked_as_root=True), "memlock", F, "configure"),
    # The limit of a user's login is not that of a job.
    (node(memlock_bytes=64 << 10, asked_as_root=False), "memlock", U, "watch"),
    (node(shm_bytes=64 << 20), "shm", F, "configure"),
    (node(mounts=("/",)), "mount_missing", F, "configure"),
    (node(mounts=None), "mounts_unknown", U, "watch"),
    (
        node(disk={"/": {"total_bytes": 100.0, "free_bytes": 1.0, "read_only": 0.0}}),
        "disk_full",
        F,
        "configure",
    ),
    (
        node(disk={"/": {"total_bytes": 100.0, "free_bytes": 50.0, "read_only": 1.0}}),
        "disk_read_only",
        F,
        "inspect",
    ),
    (node(clock_offset_s=-300.0), "clock", F, "configure"),
    (node(clock_synchronized=False), "clock_free", D, "configure"),
    (node(failed_units=("slurmd.service",)), "unit_failed", D, "configure"),
    (gpu(errors=("Unknown Error",)), "gpu_unreadable", U, "watch"),
    (gpu(errors=("GPU requires reset",)), "gpu_unreadable", F, "reset"),
    (node(tools={**SOUND.tools, "statfs /scratch": "failed"}), "disk_unknown", U, "configure"),
    (node(memlock_bytes=None), "system_unknown", U, "watch"),
    (node(shm_bytes=None), "system_unknown", U, "watch"),
    (node(disk={}), "system_unknown", U, "watch"),
    (node(clock_offset_s=None), "system_unknown", U, "watch"),
]


@pytest.mark.parametrize(
    ("state", "code", "verdict", "action"), CASES, ids=[f"{n}-{c[1]}" for n, c in enumerate(CASES)]
)
def test_one_fault_has_one_finding(state: NodeSnapshot, code: str, verdict: Verdict, action: str) -> None:
    found = check_node(state, expected=EXPECTED, previous=SOUND, idle=True)
    assert [(one.code, one.verdict, one.action) for one in found] == [(code, verdict, action)]
    assert found[0].evidence


@pytest.mark.parametrize(
    ("state", "evidence"),
    [
        (
            node(memlock_bytes=8 << 20),
            "8 MiB may be locked, 32 GiB are needed (validate_limits: memlock_bytes)",
        ),
        (node(shm_bytes=64 << 20), "(validate_limits: shm_bytes)"),
        (node(clock_offset_s=-300.0), "(validate_limits: clock_s)"),
        (gpu(margin_c=5), "(validate_limits: margin_c)"),
        (port(counters={**PORT.counters, "symbol_error": 18}), "(validate_limits: symbol_errors)"),
    ],
)
def test_a_finding_names_the_limit_that_it_compares_with(state: NodeSnapshot, evidence: str) -> None:
    (found,) = check_node(state, expected=EXPECTED, previous=SOUND, idle=True)
    assert found.evidence.endswith(evidence)


@pytest.mark.parametrize(
    ("errors", "text"), [(1, "1 uncorrectable error in"), (2, "2 uncorrectable errors in")]
)
def test_one_error_is_not_plural(errors: int, text: str) -> None:
    for state in (gpu(sram_uncorrectable=errors), gpu(dram_uncorrectable=errors)):
        (found,) = check_node(state, expected=EXPECTED, previous=SOUND, idle=True)
        assert found.evidence.startswith(text)


def test_every_limit_but_the_load_of_a_link_has_a_code_that_names_it() -> None:
    names = {field.name for field in fields(Limits)}
    # `loaded_percent` only decides when a link is judged. The finding compares with the link's own maximum.
    assert set(LIMIT_BY_CODE.values()) == names - {"loaded_percent"}
    assert set(LIMIT_BY_CODE) <= set(registry())


@pytest.mark.parametrize(
    ("mode", "action"), [("Disabled", "configure"), ("Enabled", "reboot"), ("", "reboot")]
)
def test_a_slow_driver_needs_persistence_mode_before_a_reboot(mode: str, action: str) -> None:
    slow = gpu(persistence_mode=mode).model_copy(update={"seconds": {"nvidia_smi_xml": 8.0}})
    (found,) = [one for one in check_node(slow) if one.code == "tool_slow"]
    assert (found.verdict, found.action) == (F, action)
    assert ("persistence mode is off on 1 GPU" in found.evidence) == (action == "configure")


def test_a_resting_link_may_be_slow_and_a_job_may_use_memory() -> None:
    assert check_node(gpu(pcie_generation=1, utilisation=0.0), expected=EXPECTED) == ()
    assert check_node(gpu(memory_used_bytes=60 << 30), expected=EXPECTED) == ()


def test_nothing_gathered_is_unproven_and_never_healthy() -> None:
    found = check_node(build_snapshot("n1", {}, sku="h100"), expected=EXPECTED)
    assert {"gpus_unknown", "kernel_log_unknown", "mounts_unknown", "version_driver", "ports_missing"} <= set(
        codes(found)
    )
    assert Verdict.UNPROVEN in {one.verdict for one in found}


@pytest.mark.parametrize(
    "junk", [None, 3, "x", [], {"facts": 3, "node": [], "health": {"tools": "x", "hca": {"a": 1}}}]
)
def test_damaged_facts_do_not_raise(junk: Any) -> None:
    assert check_node(
        build_snapshot("n1", junk if isinstance(junk, dict) else {"facts": junk}), expected=EXPECTED
    )


# An XID is the number of an error that NVIDIA's driver reports in the kernel log. For some numbers, the text
# of the line decides.
@pytest.mark.parametrize(
    ("xid", "text", "action"),
    [
        (13, "", "watch"),
        (31, "", "watch"),
        (43, "", "watch"),
        (63, "", "watch"),
        (94, "", "watch"),
        (48, "", "reset"),
        (64, "", "reset"),
        (95, "", "reset"),
        (79, "", "reboot"),
        (119, "", "reboot"),
        (120, "", "reboot"),
        (54, "", "isolate"),
        (74, "fatal error", "reset"),
        (145, "RLW Nonfatal", "watch"),
        (149, "NETIR Fatal", "reset"),
        (154, "changed from 0x0 (None) to 0x1 (GPU Reset Required)", "reset"),
        (154, "changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)", "reboot"),
        (154, "changed from 0x1 (GPU Reset Required) to 0x0 (None)", "watch"),
        (9999, "", "unknown"),
    ],
)
def test_an_xid_has_its_action(xid: int, text: str, action: str) -> None:
    assert requested_action(xid, text) == action


def gathered(log: str, boot: str) -> dict[str, Any]:
    """Return the facts of a node with this kernel log and boot id."""
    return {"facts": {"boot_id": boot}, "health": {"tools": {"kernel_log": {"status": "ok", "stdout": log}}}}


XID_119 = "[ 12.5] NVRM: Xid (PCI:0008:06:00): 119, pid=1, Timeout after 6s\n"


def test_an_xid_stays_open_until_a_reboot() -> None:
    first = build_snapshot("n1", gathered(XID_119 * 3, "a"), previous=SOUND)
    assert [(one.xid, one.times, one.uuid) for one in first.xids] == [(119, 3, GPU.uuid)]
    second = build_snapshot("n1", gathered("", "a"), previous=first)
    assert [one.carried for one in second.xids] == [True]
    assert "not acted upon" in next(one for one in check_node(second) if one.code == "xid_119").evidence
    assert build_snapshot("n1", gathered("", "b"), previous=second).xids == ()


@pytest.mark.parametrize(
    ("used", "limit", "fails"), [(0, 0, False), (1, 0, True), (5, 5, True), (4, 5, False), (None, 0, False)]
)
def test_memory_in_use_without_a_job_is_compared_with_its_limit(
    used: int | None, limit: int, fails: bool
) -> None:
    found = check_node(
        gpu(memory_used_bytes=used), previous=SOUND, idle=True, limits=Limits(foreign_memory_bytes=limit)
    )
    assert ("memory_in_use" in codes(found)) is fails


GPU_COUNTERS = [
    # The counts before and now, whether the node was booted between, and the growth.
    (450, 440, True, 440),
    (450, 440, False, 440),
    (450, 600, True, 600),
    (450, 600, False, 150),
    (450, 450, False, 0),
    (450, 0, True, 0),
    (None, 600, True, 0),
    (450, None, True, 0),
]


@pytest.mark.parametrize(("before", "now", "booted", "growth"), GPU_COUNTERS)
@pytest.mark.parametrize("name", ["pcie_replays", "link_errors"])
def test_a_counter_of_a_gpu_restarts_at_a_boot(
    name: str, before: int | None, now: int | None, booted: bool, growth: int
) -> None:
    code = {"link_errors": "nvlink_errors"}.get(name, name)
    tonight = gpu(**{name: now}).model_copy(update={"boot_id": "b" if booted else "a"})
    found = [one for one in check_node(tonight, previous=gpu(**{name: before})) if one.code == code]
    assert [one.evidence.split()[0] for one in found] == ([str(growth)] if growth else [])


def test_a_watched_xid_is_reported_once() -> None:
    first = build_snapshot("n1", gathered(XID_119.replace("119", "31"), "a"), previous=SOUND)
    assert build_snapshot("n1", gathered("", "a"), previous=first).xids == ()


def test_after_two_reboots_for_one_xid_the_hardware_is_inspected() -> None:
    state, actions = SOUND, []
    for boot in ("a", "b", "c", "d"):
        state = build_snapshot("n1", gathered(XID_119, boot), previous=state).model_copy(
            update={"gpus": (GPU,)}
        )
        actions.append(next(one.action for one in check_node(state) if one.code == "xid_119"))
    assert actions == ["reboot", "reboot", "inspect", "inspect"]
    assert state.reboots == {f"{GPU.uuid}/119": 3}
    other = build_snapshot("n1", gathered(XID_119.replace("119", "79"), "d"), previous=state)
    assert next(one.action for one in check_node(other) if one.code == "xid_79") == "reboot"


# The time of the node's boot in seconds since 1970.
BOOTED = 1795000000.0


def since_1970(seconds: float, xid: int = 119) -> str:
    """Return a line about an XID that the kernel logged so many seconds after the boot (negative: before)."""
    return f"{BOOTED + seconds:.6f} n1 kernel: NVRM: Xid (PCI:0008:06:00): {xid}, pid=1, Timeout after 6s\n"


@pytest.mark.parametrize(
    ("log", "verdict", "action", "evidence"),
    [
        (since_1970(5), Verdict.FAIL, "reboot", "XID 119: pid=1, Timeout after 6s"),
        # The node was booted for the XID before a night read it.
        (
            since_1970(-5),
            Verdict.DEGRADED,
            "watch",
            "XID 119: pid=1, Timeout after 6s; the node was booted since",
        ),
        (
            since_1970(-5) * 2,
            Verdict.DEGRADED,
            "watch",
            "XID 119, 2 times: pid=1, Timeout after 6s; the node was booted since",
        ),
        # The XID came again after the boot.
        (since_1970(-5) + since_1970(5), Verdict.FAIL, "reboot", "XID 119, 2 times: pid=1, Timeout after 6s"),
        (
            since_1970(-5, 95),
            Verdict.DEGRADED,
            "watch",
            "XID 95: pid=1, Timeout after 6s; the node was booted since",
        ),
        (
            since_1970(-5, 54),
            Verdict.FAIL,
            "isolate",
            "XID 54: pid=1, Timeout after 6s; the node was booted since",
        ),
    ],
)
def test_an_xid_before_the_last_boot_asks_for_no_further_boot(
    log: str, verdict: Verdict, action: str, evidence: str
) -> None:
    facts = gathered(log, "b")
    facts["health"] |= {"booted": BOOTED, "epoch": BOOTED + 600}
    state = build_snapshot("n1", facts, previous=SOUND)
    (found,) = [one for one in check_node(state) if one.code.startswith("xid_")]
    assert (found.verdict, found.action, found.evidence) == (verdict, action, evidence)
    (again,) = build_snapshot("n1", gathered("", "b"), previous=state).xids or (None,)
    assert (again is not None) == (action in ("reboot", "isolate"))


def test_boots_between_snapshots_count_as_reboots_for_an_xid() -> None:
    state, actions = SOUND, []
    for boot in ("a", "b", "c"):
        facts = gathered(since_1970(-5), boot)
        facts["health"] |= {"booted": BOOTED, "epoch": BOOTED + 600}
        state = build_snapshot("n1", facts, previous=state).model_copy(update={"gpus": (GPU,)})
        actions.append(next(one.action for one in check_node(state) if one.code == "xid_119"))
    assert actions == ["watch", "inspect", "inspect"]
    assert state.reboots == {f"{GPU.uuid}/119": 3}


def test_reboots_are_counted_by_gpu_and_xid() -> None:
    assert (
        reboot_counter_key(XidEvent(bus_id="0008:06:00", uuid="GPU-1", xid=79, action="reboot")) == "GPU-1/79"
    )
    assert {
        normalize_bus_id(one)
        for one in ("00000008:06:00.0", "0008:06:00.0", "0008:06:00", "0008:06:00.0".upper())
    } == {"0008:06:00"}


def test_a_version_is_compared_only_with_a_clear_majority() -> None:
    nodes = [node(node=f"n{n}", versions={"ofed": "24.10"}) for n in range(3)] + [
        node(versions={"ofed": "23.07"})
    ]
    majority = majority_versions(nodes)
    assert majority == {"h100": {"ofed": "24.10"}}
    found = check_node(nodes[3], majority=majority["h100"])
    assert [(one.code, one.verdict) for one in found] == [("version_ofed", Verdict.DEGRADED)]
    assert check_node(nodes[0], majority=majority["h100"]) == ()
    assert majority_versions(nodes[2:]) == {"h100": {}}
    assert majority_versions([nodes[0], nodes[3], nodes[1], node(versions={"ofed": "23.07"})]) == {"h100": {}}


def test_a_finding_on_half_of_the_fleet_is_unproven() -> None:
    def of(name: str) -> tuple[HealthFinding, ...]:
        return check_node(port(state="down").model_copy(update={"node": name}), expected=EXPECTED)

    few = [one for n in range(2) for one in of(f"n{n}")]
    assert mark_fleetwide(few, 18) == (tuple(few), ())
    settled, notes = mark_fleetwide([one for n in range(9) for one in of(f"n{n}")], 18)
    assert {(one.verdict, one.action, one.fleetwide) for one in settled} == {
        (Verdict.UNPROVEN, "watch", True)
    }
    assert notes == ("port_down on 9 of 18 nodes: a fault of the tool or the fabric until proven otherwise",)


UNUSED = PORT.model_copy(update={"device": "mlx5_9", "state": "down", "physical": "disabled"})


@pytest.mark.parametrize(
    ("ports", "was_active", "verdict"),
    [
        # The node needs one port, and another one is active.
        (1, False, None),
        # It needs both, or how many it needs is unknown, or the port was active once.
        (2, False, F),
        (0, False, U),
        (1, True, F),
        (0, True, F),
    ],
)
def test_a_port_that_was_never_active_is_unused_only_if_enough_others_are_active(
    ports: int, was_active: bool, verdict: Verdict | None
) -> None:
    unused = UNUSED.model_copy(update={"was_active": was_active})
    seen = SOUND.model_copy(update={"ports": (PORT, unused)})
    found = check_node(seen, previous=None, expected=replace(EXPECTED, ports=ports))
    assert [one.verdict for one in found if one.code == "port_down"] == ([verdict] if verdict else [])


@pytest.mark.parametrize(
    ("counters", "ports", "verdict", "evidence"),
    [
        # A link that went down was up before.
        ({"link_downed": 1}, 0, F, "down, physically disabled; its link went down 1 time (link_downed)"),
        ({"link_downed": 1}, 1, F, "down, physically disabled; its link went down 1 time (link_downed)"),
        (
            {"LinkDownedCounter": 3},
            1,
            F,
            "down, physically disabled; its link went down 3 times (LinkDownedCounter)",
        ),
        # A port without a cable counts nothing, and some cards have no such counter.
        ({"link_downed": 0}, 1, None, ""),
        ({"link_error_recovery": 5, "symbol_error": 7}, 1, None, ""),
        ({}, 1, None, ""),
    ],
)
def test_a_port_that_is_down_and_lost_its_link_was_active(
    counters: dict[str, int], ports: int, verdict: Verdict | None, evidence: str
) -> None:
    unused = UNUSED.model_copy(update={"counters": counters})
    seen = SOUND.model_copy(update={"ports": (PORT, unused)})
    found = check_node(seen, previous=None, expected=replace(EXPECTED, ports=ports))
    down = [(one.verdict, one.evidence) for one in found if one.code == "port_down"]
    assert down == ([(verdict, evidence)] if verdict else [])


def test_a_port_that_lost_its_link_stays_found_after_a_reboot_clears_its_counter() -> None:
    first, second = healthy_answer(0), healthy_answer(0)
    for answer, count in ((first, 1), (second, 0)):
        values = next(iter(next(iter(answer["health"]["hca"].values())).values()))
        values |= {"state": "1: DOWN", "phys_state": "2: Polling"}
        values["counters"]["link_downed"] = count
    previous = build_snapshot("n1", first)
    seen = build_snapshot("n1", second, previous=previous)
    assert [port.was_active for port in seen.ports if port.state == "down"] == [True]
    found = check_node(seen, previous=previous)
    assert [one.verdict for one in found if one.code == "port_down"] == [F]


def test_limits_of_counters_are_per_day() -> None:
    # A limit is a number per day, so ten days may have ten times the errors of one day.
    late = port(counters={**PORT.counters, "port_rcv_errors": 550}).model_copy(
        update={"epoch": SOUND.epoch + 10 * 86_400}
    )
    assert check_node(late, previous=SOUND) == ()
    soon = late.model_copy(update={"epoch": SOUND.epoch + 86_400})
    assert codes(check_node(soon, previous=SOUND)) == ["port_port_rcv_errors"]


@pytest.mark.parametrize(
    ("passed_s", "words"),
    [
        (0.4, "in 0.4 s"),
        (150, "in 2 min 30 s"),
        (3599, "in 59 min 59 s"),
        (3600, "in 1 h 00 min"),
        (86_400, "in 24 h 00 min"),
        (0, "since the last snapshot"),
        (-60, "since the last snapshot"),
    ],
)
def test_grown_counters_state_the_true_time(passed_s: float, words: str) -> None:
    assert SOUND.epoch is not None
    later = port(counters={**PORT.counters, "port_rcv_errors": 99_999}).model_copy(
        update={"epoch": SOUND.epoch + passed_s}
    )
    (finding,) = check_node(later, previous=SOUND)
    assert f" more {words}, allowed are " in finding.evidence, finding.evidence


# Name of a counter in /sys or in perfquery, its limit (10 a day), and the verdict on errors up to the limit.
LINK_COUNTERS = [
    ("symbol_error", "symbol_errors", None),
    ("SymbolErrorCounter", "symbol_errors", None),
    ("link_error_recovery", "link_recoveries", D),
    ("LinkErrorRecoveryCounter", "link_recoveries", D),
    ("link_downed", "link_downs", D),
    ("LinkDownedCounter", "link_downs", D),
]


@pytest.mark.parametrize("hours", [1, 24, 240])
@pytest.mark.parametrize(("counter", "limit", "below"), LINK_COUNTERS)
def test_a_few_errors_of_a_link_in_a_day_do_not_fail_its_node(
    counter: str, limit: str, below: Verdict | None, hours: int
) -> None:
    days = max(hours // 24, 1)
    before = port(counters={counter: 7})

    def verdicts(value: int, **limits: int) -> list[tuple[Verdict, str]]:
        now = port(counters={counter: value}).model_copy(update={"epoch": SOUND.epoch + hours * 3600})
        found = check_node(now, previous=before, limits=Limits(**limits))
        return [(one.verdict, one.action) for one in found]

    some = [(below, "watch")] if below else []
    assert verdicts(7) == []
    assert verdicts(8) == verdicts(7 + 10 * days) == some
    assert verdicts(8 + 10 * days) == [(F, "inspect")]
    # The site sets the limit.
    assert verdicts(8, **{limit: 0}) == [(F, "inspect")]
    assert verdicts(8 + 10 * days, **{limit: 11}) == some
    # A counter that was cleared starts at 0.
    assert verdicts(2) == some
    assert verdicts(2, **{limit: 0}) == [(F, "inspect")]


# `most` is the number of errors that a day may have.
@pytest.mark.parametrize(
    ("counter", "limit", "most"),
    [("port_rcv_errors", "receive_errors", 100), ("PortXmitDiscards", "transmit_discards", 1000)],
)
def test_a_site_sets_the_limits_of_packets(counter: str, limit: str, most: int) -> None:
    before, after = port(counters={counter: 0}), port(counters={counter: most + 1})
    assert codes(check_node(after, previous=before)) == [f"port_{counter.lower()}"]
    assert check_node(after, previous=before, limits=Limits(**{limit: most + 1})) == ()


def test_a_stored_snapshot_is_read_back_unchanged() -> None:
    state = build_snapshot("n1", gathered(XID_119, "a"), previous=SOUND)
    assert NodeSnapshot.model_validate_json(state.model_dump_json()) == state


def test_memory_that_was_not_reported_is_unknown_and_not_missing() -> None:
    found = check_node(node(memory_bytes=0), expected=Expectation(memory_bytes=1 << 40))
    assert [(one.code, one.verdict) for one in found] == [("system_unknown", U)]
    assert found[0].evidence.startswith("memory_bytes (/proc/meminfo): absent; ")


def shown(gpus: int, ports: int, rate: int = 400, unreadable: bool = False) -> dict[str, Any]:
    """Return the facts of a node with so many GPUs and ports. nvidia-smi fails if ``unreadable``."""
    some = "".join(
        f"<gpu id='0000000{n}:06:00.0'><uuid>GPU-{n:08x}-0000-0000-0000-000000000000</uuid>"
        f"<minor_number>{n}</minor_number><temperature><gpu_temp>50 C</gpu_temp></temperature>"
        f"{SECTIONS}</gpu>"
        for n in range(gpus)
    )
    xml = f"<nvidia_smi_log><driver_version>580.1</driver_version>{some}</nvidia_smi_log>"
    smi = {"status": "failed"} if unreadable else {"status": "ok", "stdout": xml}
    port_ = {"1": {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": f"{rate} Gb/sec"}}
    return {
        "facts": {"boot_id": "a", "tools": {"nvidia_smi_xml": smi}},
        "health": {"hca": {f"mlx5_{n}": port_ for n in range(ports)}},
    }


def findings_of_nights(*nights: dict[str, Any], expected: Expectation | None = None) -> list[set[str]]:
    """Return the codes of each night about GPUs and ports. Each night is compared with the one before."""
    previous, codes = None, []
    for one in nights:
        now = build_snapshot("n1", one, previous=previous)
        mine = check_node(now, previous=previous, expected=expected)
        codes.append({f.code for f in mine if f.part in ("gpu", "port")})
        previous = now
    return codes


def test_a_missing_part_is_a_finding_in_each_night_until_it_is_back() -> None:
    # No number of parts is expected. A lost part is a finding in later nights, too.
    whole, gone = shown(4, 4), shown(3, 3)
    both = {"gpu_missing", "port_missing"}
    assert findings_of_nights(whole, gone, gone, gone, whole, whole) == [
        set(),
        both,
        both,
        both,
        set(),
        set(),
    ]


def test_a_lost_gpu_is_found_after_a_night_without_an_answer() -> None:
    assert (
        findings_of_nights(shown(4, 4), shown(4, 4, unreadable=True), shown(3, 4), shown(3, 4))[2:]
        == [{"gpu_missing"}] * 2
    )


def test_a_removed_part_that_the_inventory_does_not_expect_is_a_finding_in_one_night() -> None:
    smaller = Expectation(gpus=3, ports=3)
    codes = findings_of_nights(shown(4, 4), shown(3, 3), shown(3, 3), expected=smaller)
    assert codes == [set(), {"gpu_missing", "port_missing"}, set()]


def test_a_port_that_became_slow_stays_slow() -> None:
    usual, slow = shown(1, 1), shown(1, 1, rate=200)
    codes = findings_of_nights(usual, slow, slow, slow, usual)
    assert codes == [set(), {"port_slow"}, {"port_slow"}, {"port_slow"}, set()]


def test_an_error_in_place_of_a_value_is_no_value() -> None:
    sick = shown(1, 0)
    smi = sick["facts"]["tools"]["nvidia_smi_xml"]
    smi["stdout"] = smi["stdout"].replace("50 C", "[GPU requires reset]")
    (one,) = [f for f in check_node(build_snapshot("n1", sick)) if f.part == "gpu"]
    assert (one.code, one.verdict, one.action) == ("gpu_unreadable", F, "reset")


def test_a_path_without_a_file_system_is_reported() -> None:
    about = {
        "health": {"disk": {"/": {"total_bytes": 100, "free_bytes": 50}, "/scratch": {"read_only": None}}}
    }
    assert "disk_unknown" in codes(check_node(build_snapshot("n1", about)))


def test_an_xid_stays_open_if_no_reboot_is_known() -> None:
    first = build_snapshot("n1", gathered(XID_119, "a"), previous=SOUND)
    assert [one.carried for one in build_snapshot("n1", gathered("", ""), previous=first).xids] == [True]


def test_an_xid_names_a_gpu_that_is_missing_for_nights() -> None:
    # The finding names the GPU by its UUID. Under its bus address, its earlier reboots would not count.
    state = build_snapshot("n1", shown(4, 0))
    for number in range(3):
        gone = shown(3, 0)
        gone["facts"]["boot_id"] = f"boot-{number}"
        gone["health"]["tools"] = {"kernel_log": {"status": "ok", "stdout": XID_119.replace("0008", "0003")}}
        state = build_snapshot("n1", gone, previous=state)
        (xid,) = [one for one in check_node(state) if one.code == "xid_119"]
        assert (xid.name, xid.place[:5]) == ("GPU-00000003-0000-0000-0000-000000000000", "GPU 3")
    assert xid.action == "inspect"


def hardware_findings(log: str, boot: str = "a", booted: float = 0) -> list[HealthFinding]:
    """Return the findings about NVSwitches, lost GPUs, processors, memory, PCIe and damaged log lines."""
    told = gathered(log, boot)
    told["health"] |= {"booted": booted, "epoch": BOOTED + 600}
    state = build_snapshot("n1", told, previous=SOUND)
    codes = ("sxid", "gpu_lost", "gpu_init", "machine", "memory_error", "pcie_error", "kernel_log_damaged")
    return [one for one in check_node(state) if one.code.startswith(codes)]


@pytest.mark.parametrize(
    ("line", "code", "part", "verdict", "action"),
    [
        (
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63",
            "sxid_20034",
            "node",
            F,
            "reboot",
        ),
        ("NVRM: GPU 0008:06:00.0: GPU has fallen off the bus.", "gpu_lost", "gpu", F, "reboot"),
        ("NVRM: GPU 0008:06:00.0: RmInitAdapter failed! (0x62)", "gpu_init_failed", "gpu", F, "reboot"),
        ("[Hardware Error]: Uncorrected, software restartable", "machine_check", "node", F, "inspect"),
        ("EDAC MC1: 1 UE memory read error on DIMM#0", "memory_error", "node", F, "inspect"),
        ("EDAC MC1: 1 CE memory read error on DIMM#0", "memory_error", "node", D, "watch"),
        ("pcieport 0008:00:00.0: AER: device recovery failed", "pcie_error", "node", F, "inspect"),
        ("NVRM: Xid (PCI:0008:06", "kernel_log_damaged", "node", U, "watch"),
    ],
)
def test_other_kernel_messages_are_findings(
    line: str, code: str, part: str, verdict: Verdict, action: str
) -> None:
    (found,) = hardware_findings(f"[ 12.5] {line}\n")
    assert (found.code, found.part, found.verdict, found.action) == (code, part, verdict, action)
    # A boot clears a fault that asks for a reboot. Any other fault remains after it.
    (after,) = hardware_findings(f"{BOOTED - 5:.6f} n1 kernel: {line}\n", "b", BOOTED)
    assert after.verdict is (D if action == "reboot" else verdict)


def test_a_fatal_event_stays_until_the_node_is_booted() -> None:
    line = "[ 1.5] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up\n"
    first = build_snapshot("n1", gathered(line, "a"), previous=SOUND)
    second = build_snapshot("n1", gathered("", "a"), previous=first)
    (found,) = [one for one in check_node(second) if one.code == "sxid_20034"]
    assert found.verdict is F
    assert "not acted upon" in found.evidence
    assert build_snapshot("n1", gathered("", "b"), previous=second).hardware_events == ()


def test_an_xid_of_a_shared_gpu_names_the_gpu() -> None:
    line = "[ 1.5] NVRM: Xid (PCI:0008:06:00 GPU-I:02): 95, pid=7194, Uncontained\n"
    state = build_snapshot("n1", gathered(line, "a"), previous=SOUND)
    assert [(one.xid, one.uuid) for one in state.xids] == [(95, GPU.uuid)]


@pytest.mark.parametrize(
    "line", ["NVRM: Xid (PCI:0008:06:00): {}, x", "s: SXid (PCI:0000:05:00.0): {}, Fatal"]
)
def test_a_log_with_more_events_than_are_kept_is_unproven(line: str) -> None:
    log = "".join(f"[ 1.5] {line.format(number)}\n" for number in range(1000, 1600))
    state = build_snapshot("n1", gathered(log, "a"), previous=SOUND)
    assert state.truncated == ("kernel_log",)
    assert "answer_cut" in {one.code for one in check_node(state) if one.verdict is U}


def damaged_gpu(text: str) -> GpuSnapshot:
    """Return the GPU of an answer of nvidia-smi whose sections are this text."""
    xml = (
        "<nvidia_smi_log><driver_version>580.1</driver_version><gpu id='00000008:06:00.0'>"
        "<uuid>GPU-00000000-0000-0000-0000-000000000001</uuid>"
        "<temperature><gpu_temp>50 C</gpu_temp></temperature>"
        f"{text}</gpu></nvidia_smi_log>"
    )
    answer = {"facts": {"tools": {"nvidia_smi_xml": {"status": "ok", "stdout": xml}}}}
    return build_snapshot("n1", answer).gpus[0]


def missing_readings(one: GpuSnapshot, **expected: Any) -> str:
    """Return the readings that are missing in a GPU's snapshot, separated by commas."""
    found = check_node(node(gpus=(one,)), expected=Expectation(gpus=1, **expected))
    texts = [finding.evidence for finding in found if finding.code == "gpu_readings_missing"]
    reading_of = {field: reading for reading, fields in GPU_READINGS.items() for field in fields}
    assert all(finding.verdict is U for finding in found if finding.code == "gpu_readings_missing")
    names = re.findall(r"(\w+)(?: \([^)]*\))?: (?:absent|damaged)", " ".join(texts))
    return ", ".join(dict.fromkeys(reading_of[name] for name in names))


def test_a_complete_answer_has_no_missing_reading() -> None:
    assert missing_readings(damaged_gpu(SECTIONS)) == ""


# Each row replaces a text in the sections of a healthy GPU, and has the reading that is then missing.
@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("Enabled", "N/A", "ecc"),
        ("Enabled", "Unknown Error", "ecc"),
        ("<dram_uncorrectable>0<", "<dram_uncorrectable>N/A<", "ecc"),
        ("_pending>No<", "_pending>Requested functionality has been deprecated<", "row_remapping"),
        ("_failure>No<", "_failure>N/A<", "row_remapping"),
        ("remapped_row", "other", "row_remapping"),
        ("<current_link_width>16x<", "<current_link_width>N/A<", "pcie_link"),
        ("pci_gpu_link_info", "other", "pcie_link"),
        ("clocks_event_reason", "clocks_other_reason", "throttling"),
        ("Not Active", "N/A", "throttling"),
        ("<gpu_recovery_action>None</gpu_recovery_action>", "", "recovery_action"),
        ("700.00 W", "[Unknown Error]", "power_limit"),
    ],
)
def test_what_the_driver_does_not_report_is_unproven(old: str, new: str, missing: str) -> None:
    assert old in SECTIONS
    assert missing_readings(damaged_gpu(SECTIONS.replace(old, new))) == missing


def test_throttling_is_read_with_the_tag_names_of_old_drivers() -> None:
    old = damaged_gpu(SECTIONS.replace("event_reason", "throttle_reason"))
    assert old.throttled == ()
    hot = SECTIONS.replace("thermal_slowdown>Not Active", "thermal_slowdown>Active")
    for text in (hot, hot.replace("event_reason", "throttle_reason")):
        assert damaged_gpu(text).throttled == ("hw_thermal_slowdown",)


def test_an_error_text_is_neither_a_bad_nor_a_good_value() -> None:
    for word, flag in (("Yes", True), ("ERR!", None)):
        text = SECTIONS.replace("exceeded>No", f"exceeded>{word}")
        assert damaged_gpu(text).sram_threshold is flag
    assert damaged_gpu(SECTIONS.replace("Enabled", "[Unknown Error]")).ecc_enabled is None


def test_an_expected_fabric_must_be_present_whole_and_unchanged() -> None:
    fabric = "<fabric><state>Completed</state><status>{}</status><cliqueId>1</cliqueId></fabric>"
    assert missing_readings(damaged_gpu(SECTIONS), fabric=True) == "fabric"
    good = damaged_gpu(SECTIONS + fabric.format("Success"))
    assert missing_readings(good, fabric=True) == ""
    bad = damaged_gpu(SECTIONS + fabric.format("Timeout"))
    assert "fabric_failed" in {one.code for one in check_node(node(gpus=(bad,))) if one.verdict is F}
    other = good.model_copy(update={"fabric_clique": "2", "uuid": "GPU-2"})
    assert "fabric_split" in {one.code for one in check_node(node(gpus=(good, other))) if one.verdict is F}
    moved = node(gpus=(good.model_copy(update={"fabric_clique": "2"}),))
    found = check_node(moved, previous=node(gpus=(good,)))
    assert "fabric_changed" in {one.code for one in found}


CLUSTER, NO_CLUSTER = "5f0e7d2c-9a41-4c55-8d1b-3c6a2f90e7b4", "00000000-0000-0000-0000-000000000000"
# State, status, clique and cluster UUID of a GPU's NVLink fabric, then the finding on an HGX (one node), and
# in an NVLink domain of several nodes. A domain needs a clique and a cluster that are not 0.
FABRICS = [
    ("Completed", "Success", "32766", CLUSTER, "", ""),
    ("Completed", "Success", "1", CLUSTER, "", ""),
    ("Completed", "Success", "0", NO_CLUSTER, "", "fabric_no_domain"),
    ("Completed", "Success", "0", CLUSTER, "", "fabric_no_domain"),
    ("Completed", "Success", "7", NO_CLUSTER, "", "fabric_no_domain"),
    ("Completed", "Insufficient Resources", "0", NO_CLUSTER, "fabric_failed", "fabric_failed"),
    ("Completed", "Insufficient Resources", "7", CLUSTER, "fabric_failed", "fabric_failed"),
    ("In Progress", "Insufficient Resources", "0", NO_CLUSTER, "fabric_incomplete", "fabric_incomplete"),
    ("Completed", "Timeout", "7", CLUSTER, "fabric_failed", "fabric_failed"),
    ("Not Started", "N/A", "N/A", "N/A", "fabric_incomplete", "fabric_incomplete"),
    ("Completed", "Success", "N/A", "N/A", "", "gpu_readings_missing"),
    ("Completed", "Success", "", CLUSTER, "", "gpu_readings_missing"),
]


@pytest.mark.parametrize(("state", "status", "clique", "cluster", "on_hgx", "in_domain"), FABRICS)
def test_a_fabric_is_judged_by_the_kind_of_sku(
    state: str, status: str, clique: str, cluster: str, on_hgx: str, in_domain: str
) -> None:
    fields = {"state": state, "status": status, "cliqueId": clique, "clusterUuid": cluster}
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    one = damaged_gpu(SECTIONS + f"<fabric>{inner}</fabric>")
    plain = {finding.code for finding in check_node(node(gpus=(one,)), expected=Expectation(gpus=1))}
    for domain, code in ((False, on_hgx), (True, in_domain)):
        expected = Expectation(gpus=1, fabric=True, nvlink_domain=domain)
        found = check_node(node(gpus=(one,)), expected=expected)
        about = {finding.code for finding in found if "fabric" in finding.code + finding.evidence}
        # A fabric that is not complete may have no status yet. Then its status is a missing reading, too.
        assert code in about if code else not about, (domain, found)
        assert len([one for one in about if one.startswith("fabric")]) == code.startswith("fabric")
    assert "fabric_no_domain" not in plain


@pytest.mark.parametrize(
    ("status", "on_hgx", "in_domain"),
    [
        ("Success", None, None),
        ("Insufficient Resources", U, F),
        ("Timeout", F, F),
        ("Incorrect Configuration", F, F),
    ],
)
def test_a_status_other_than_success_never_passes(
    status: str, on_hgx: Verdict | None, in_domain: Verdict | None
) -> None:
    one = GPU.model_copy(update={"fabric_status": status, "fabric_clique": "7", "fabric_cluster": CLUSTER})
    for domain, verdict in ((False, on_hgx), (True, in_domain)):
        expected = Expectation(gpus=1, fabric=True, nvlink_domain=domain)
        found = check_node(node(gpus=(one,)), expected=expected)
        assert [one.verdict for one in found if one.code == "fabric_failed"] == ([verdict] if verdict else [])


# Seconds of a counter that only grows, in the night before and now. A lower number means that the driver was
# loaded again.
@pytest.mark.parametrize(
    ("before_s", "now_s", "verdict"),
    [(0, 30, None), (0, 7200, F), (7200, 7200, None), (9000, 3600, F), (100, 20, None)],
)
def test_hours_of_slowing_down_between_two_nights_are_found(
    before_s: float, now_s: float, verdict: Verdict | None
) -> None:
    before, now = (
        node(gpus=(GPU.model_copy(update={"slowdown_s": {"hw_therm_slowdown": seconds}}),))
        for seconds in (before_s, now_s)
    )
    found = [one for one in check_node(now, previous=before) if one.code == "slowed_down"]
    assert [one.verdict for one in found] == ([verdict] if verdict else [])


LINKS_OF_A_BRIDGE = {str(link): link < 12 for link in range(18)}


# An NVLink bridge between cards uses 12 of 18 links. `wanted` is the expected number of active links (0:
# unknown).
@pytest.mark.parametrize(
    ("links", "wanted", "before", "codes"),
    [
        (LINKS_OF_A_BRIDGE, 12, None, set()),
        (LINKS_OF_A_BRIDGE, 18, None, {"nvlink_down"}),
        (LINKS_OF_A_BRIDGE, 0, None, {"nvlink_inactive"}),
        (LINKS_OF_A_BRIDGE | {"3": False}, 12, LINKS_OF_A_BRIDGE, {"nvlink_down"}),
        (LINKS_OF_A_BRIDGE | {"3": False}, 0, LINKS_OF_A_BRIDGE, {"nvlink_down"}),
        # The number of active links is right, but a link of last night is down.
        (LINKS_OF_A_BRIDGE | {"3": False, "13": True}, 12, LINKS_OF_A_BRIDGE, {"nvlink_down"}),
    ],
)
def test_nvlinks_are_compared_with_the_expected_number_and_the_last_night(
    links: dict[str, bool], wanted: int, before: dict[str, bool] | None, codes: set[str]
) -> None:
    now, then = (
        node(gpus=(GPU.model_copy(update={"links": some}),)) if some else None for some in (links, before)
    )
    assert now is not None
    found = check_node(now, previous=then, expected=Expectation(gpus=1, nvlinks=wanted))
    assert {one.code for one in found if one.code.startswith("nvlink")} == codes


# `slot` is the number of lanes that the inventory states for the slot (0: none). The GPU and the card run
# with 8 of 16 lanes. `codes` is None for both findings.
@pytest.mark.parametrize(("slot", "codes"), [(0, {"pcie_width", "link_width"}), (8, set()), (16, None)])
def test_a_slot_with_fewer_lanes_by_design_is_no_fault(slot: int, codes: set[str] | None) -> None:
    state = node(
        gpus=(GPU.model_copy(update={"pcie_width": 8}),),
        links={"0000:03:00.0": {"current_link_width": "8", "max_link_width": "16"}},
    )
    expected = Expectation(gpus=1, pcie_width=slot, card_pcie_width=slot)
    found = {one.code for one in check_node(state, expected=expected) if one.code.endswith("_width")}
    assert found == ({"pcie_width", "link_width"} if codes is None else codes)


def gpus_of(*slots: tuple[str, int]) -> tuple[GpuSnapshot, ...]:
    """Return GPUs with these UUIDs in these slots."""
    return tuple(
        GPU.model_copy(update={"uuid": name, "serial": name, "bus_id": f"0000000{slot}:06:00.0"})
        for name, slot in slots
    )


SEVEN = [(f"GPU-{slot}", slot) for slot in range(7)]


@pytest.mark.parametrize(
    ("before", "tonight", "expected"),
    [
        # The node has 7 of 8 GPUs as in the night before, but one or two of them were replaced.
        (SEVEN, [("GPU-new", 0), *SEVEN[1:]], {"gpu_replaced", "gpus_missing"}),
        (SEVEN, [("GPU-new", 0), ("GPU-newer", 1), *SEVEN[2:]], {"gpu_replaced", "gpus_missing"}),
        # One of 8 is lost, and another one replaced. The lost one has a finding of its own.
        ([*SEVEN, ("GPU-7", 7)], [("GPU-new", 0), *SEVEN[1:]], {"gpu_replaced", "gpu_missing"}),
        # Two are missing, and only one of them has a finding of its own.
        (SEVEN, [("GPU-new", 0), *SEVEN[2:]], {"gpu_replaced", "gpu_missing", "gpus_missing"}),
        # The node is complete.
        ([*SEVEN, ("GPU-7", 7)], [("GPU-new", 0), *SEVEN[1:], ("GPU-7", 7)], {"gpu_replaced"}),
    ],
)
def test_a_replaced_gpu_does_not_replace_a_missing_one(
    before: list[tuple[str, int]], tonight: list[tuple[str, int]], expected: set[str]
) -> None:
    found = check_node(
        node(gpus=gpus_of(*tonight)), previous=node(gpus=gpus_of(*before)), expected=Expectation(gpus=8)
    )
    present = {"gpu_replaced", "gpu_missing", "gpus_missing", "gpu_new"} & set(codes(found))
    assert present == expected


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"uuid": "GPU-2"}, "gpu_replaced", "GPU-00000000-1111 (serial S1) was there in an earlier night"),
        ({"serial": "S2"}, "gpu_serial_changed", "serial S2, before S1"),
    ],
)
def test_a_gpu_that_was_missing_last_night_is_not_said_to_have_been_there(
    changes: dict[str, str], code: str, words: str
) -> None:
    previous = node(gpus=(), gone_gpus=(GPU,))
    found = check_node(gpu(**changes), previous=previous, expected=Expectation(gpus=2))
    (evidence,) = [one.evidence for one in found if one.code == code]
    assert words in evidence
    assert "last night" not in evidence


def ports_of(*names: str) -> tuple[PortSnapshot, ...]:
    """Return ports with these names, of one letter each."""
    return tuple(PORT.model_copy(update={"device": name}) for name in names)


# Letters are ports: those that were missing in the night before, those of the night before, and those of this
# night. The SKU has 4.
@pytest.mark.parametrize(
    ("gone", "before", "tonight", "found"),
    [
        # Port x is port a under another name. The SKU has a fourth port.
        ("a", "bc", "xbc", {"ports_missing"}),
        ("ab", "cd", "cdxy", set()),
        ("abc", "d", "xyd", {"port_missing"}),
        ("ab", "c", "xyc", {"ports_missing"}),
        ("", "abcd", "abc", {"port_missing"}),
        ("a", "bcd", "bcd", {"port_missing"}),
        ("", "abc", "abc", {"ports_missing"}),
        ("", "", "abc", {"ports_missing"}),
    ],
)
def test_a_renamed_port_does_not_replace_a_missing_one(
    gone: str, before: str, tonight: str, found: set[str]
) -> None:
    previous = node(ports=ports_of(*before), gone_ports=ports_of(*gone))
    present = check_node(node(ports=ports_of(*tonight)), previous=previous, expected=Expectation(ports=4))
    assert {"ports_missing", "port_missing"} & set(codes(present)) == found


# The PCIe link of a network card as /sys shows it, the lanes that the SKU states (0: none), and the findings.
@pytest.mark.parametrize(
    ("link", "lanes", "found"),
    [
        ({"current_link_speed": "Unknown", "max_link_speed": "32.0 GT/s PCIe"}, 0, {("system_unknown", U)}),
        ({"current_link_width": "0", "max_link_width": "16"}, 0, {("system_unknown", U)}),
        ({"current_link_width": "", "max_link_width": "16"}, 0, {("system_unknown", U)}),
        # Nothing can be read in a virtual machine.
        ({"current_link_width": "0", "max_link_width": "0"}, 0, set()),
        ({"current_link_speed": "Unknown", "max_link_speed": "Unknown"}, 0, set()),
        ({}, 16, set()),
        # The SKU states the lanes, so they must be readable.
        ({"current_link_width": "0", "max_link_width": "0"}, 16, {("system_unknown", U)}),
        ({"current_link_width": "Unknown", "max_link_width": "Unknown"}, 8, {("system_unknown", U)}),
        ({"current_link_width": "8", "max_link_width": "16"}, 0, {("link_width", F)}),
        ({"current_link_width": "8", "max_link_width": "16"}, 8, set()),
    ],
)
def test_a_link_that_cannot_be_read_is_no_slow_link(
    link: dict[str, str], lanes: int, found: set[tuple[str, Verdict]]
) -> None:
    seen = node(links={"0000:03:00.0": link, **SOUND.links})
    present = check_node(seen, expected=replace(EXPECTED, card_pcie_width=lanes))
    assert {(one.code, one.verdict) for one in present} == found


def test_a_link_that_was_read_last_night_must_be_read_again() -> None:
    links = {"0010:03": {"current_link_width": "Unknown", "max_link_width": "Unknown"}}
    found = check_node(node(links=links), previous=SOUND, expected=EXPECTED)
    assert [(one.code, one.verdict) for one in found] == [("system_unknown", U)]


HANDLING = "EDAC sbridge MC0: HANDLING MCE MEMORY ERROR"


@pytest.mark.parametrize(
    ("lines", "verdicts"),
    [
        ((HANDLING, "EDAC MC0: 1 CE memory read error on DIMM#0"), [D]),
        (("EDAC MC0: 1 CE memory read error on DIMM#0", HANDLING), [D]),
        ((HANDLING, "EDAC MC0: 1 UE memory read error on DIMM#0"), [F]),
        ((HANDLING, HANDLING, "EDAC MC0: 2 CE memory read error on DIMM#0"), [D]),
        # Without the line that states the severity, the error is unproven.
        ((HANDLING,), [U]),
    ],
)
def test_the_start_of_a_memory_error_is_no_error_of_its_own(
    lines: tuple[str, ...], verdicts: list[Verdict]
) -> None:
    log = "".join(f"[ 12.5] {line}\n" for line in lines)
    assert [one.verdict for one in hardware_findings(log)] == verdicts


def boot_log(line: str, seconds: float) -> str:
    """Return a line of the kernel log so many seconds after the boot."""
    return f"{BOOTED + seconds:.6f} n1 kernel: {line}\n"


FAULTS = [
    ("NVRM: Xid (PCI:0008:06:00): 54, pid=1, x", "xid_54"),
    ("NVRM: Xid (PCI:0008:06:00): 119, pid=1, x", "xid_119"),
    ("NVRM: GPU 0008:06:00.0: RmInitAdapter failed! (0x62)", "gpu_init_failed"),
    ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63", "sxid_20034"),
    ("EDAC MC1: 1 UE memory read error on DIMM#0", "memory_error"),
    ("[Hardware Error]: Uncorrected, software restartable", "machine_check"),
    ("pcieport 0008:00:00.0: AER: device recovery failed", "pcie_error"),
]


def night_with(log: str, boot: str, previous: NodeSnapshot) -> tuple[NodeSnapshot, list[tuple[str, Verdict]]]:
    """Return a night's snapshot, and the codes and verdicts of its findings about the kernel log."""
    answers = gathered(log, boot)
    answers["health"] |= {"booted": BOOTED, "epoch": BOOTED + 600}
    state = build_snapshot("n1", answers, previous=previous)
    state = state.model_copy(update={"gpus": (GPU,)})
    events = {f"xid_{one.xid}" for one in state.xids} | {one.code for one in state.hardware_events}
    return state, [(one.code, one.verdict) for one in check_node(state) if one.code in events]


NOT_HEALED_BY_BOOT = ("xid_54", "memory_error", "machine_check", "pcie_error")


def night_after_boot(boot: str, previous: NodeSnapshot, **options: bool) -> list[tuple[str, Verdict]]:
    """Return the findings about the kernel log in a night without a line in it."""
    answers = gathered("", boot)
    answers["health"] |= {"booted": BOOTED, "epoch": BOOTED + 600}
    state = build_snapshot("n1", answers, previous=previous, **options)
    codes_open = {f"xid_{one.xid}" for one in state.xids} | {one.code for one in state.hardware_events}
    return [(one.code, one.verdict) for one in check_node(state) if one.code in codes_open]


@pytest.mark.parametrize(("line", "code"), FAULTS)
def test_a_failure_of_the_kernel_log_stays_until_a_boot_or_a_repair(line: str, code: str) -> None:
    state, found = night_with(boot_log(line, 5), "a", SOUND)
    assert found == [(code, F)]
    for _ in range(2):
        state, found = night_with("", "a", state)
        assert found == [(code, F)]
    after_boot = [(code, F)] if code in NOT_HEALED_BY_BOOT else []
    assert night_after_boot("b", state) == after_boot
    for repaired in ({"was_repaired": True}, {"accept_identity": True}):
        assert night_after_boot("a", state, **repaired) == [(code, F)]
        assert night_after_boot("b", state, **repaired) == []
    # The boot came first, and the repair later.
    state, found = night_with("", "b", state)
    assert found == after_boot
    assert night_after_boot("b", state) == after_boot
    assert night_after_boot("b", state, was_repaired=True) == []


@pytest.mark.parametrize(("line", "code"), FAULTS)
def test_a_failure_before_the_boot_stays_if_the_boot_does_not_heal_it(line: str, code: str) -> None:
    state, found = night_with(boot_log(line, -5), "b", SOUND)
    is_open = code in NOT_HEALED_BY_BOOT
    assert found == [(code, F if is_open else D)]
    assert night_after_boot("b", state) == ([(code, F)] if is_open else [])


def test_a_failure_that_a_boot_does_not_heal_names_the_remedy() -> None:
    state, _ = night_with(boot_log("EDAC MC1: 1 UE memory read error on DIMM#0", 5), "a", SOUND)
    state = build_snapshot("n1", gathered("", "b"), previous=state)
    (one,) = [one for one in check_node(state) if one.code == "memory_error"]
    assert one.action == "inspect"
    assert "a boot does not repair it" in one.evidence
    assert "validate_accept_identity=true" in one.evidence


@pytest.mark.parametrize("line", ["EDAC MC1: 1 CE memory read error on DIMM#0", "x: Call Trace:"])
def test_a_mild_event_does_not_stay(line: str) -> None:
    state, _ = night_with(boot_log(line, 5), "a", SOUND)
    assert night_with("", "a", state)[1] == []
    assert night_with("", "b", state)[1] == []


def test_a_milder_event_does_not_replace_a_failure() -> None:
    worse, milder = (f"EDAC MC1: 1 {kind} memory read error on DIMM#0" for kind in ("UE", "CE"))
    first, _ = night_with(boot_log(worse, 5), "a", SOUND)
    _, found = night_with(boot_log(milder, 50), "a", first)
    assert ("memory_error", F) in found
