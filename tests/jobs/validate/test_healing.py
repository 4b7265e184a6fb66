"""Test ``rackproof.jobs.validate.fleet.healing``, which lists the evidence that a drained node needs.

A night drained the node for a failure with a code, such as ``nvlink_down``. A later night counts as a pass
only if it read the evidence that this failure is over. The tests check that every code that can drain has a
row or an exception, that a healthy node has all evidence, and that a missing reading, or only an idle GPU
after heat, heals nothing. The last tests run whole nights.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackproof.core.finding_codes import registry
from rackproof.core.records import Measurement, Run, Verdict
from rackproof.jobs.validate.explain import _next_commands
from rackproof.jobs.validate.fleet import healing
from rackproof.jobs.validate.fleet.drain_policy import decide_drains
from rackproof.jobs.validate.fleet.healing import (
    EVIDENCE,
    HEALED_BY,
    DrainedNode,
    healed_evidence,
    healing_evidence,
    lacking_for,
)
from rackproof.jobs.validate.judge import judge_fleet
from rackproof.jobs.validate.measurements import runs_since_last_night, soaked_gpus
from rackproof.jobs.validate.tasks import begin_night, close_night, store_snapshot
from rackproof.logs.kernel_events import requested_action
from rackproof.nodes.answer_seal import sealed_answer
from rackproof.nodes.health_checks import _hardware_action, check_node
from rackproof.nodes.health_subjects import Expectation, HealthFinding
from rackproof.nodes.kernel_log import HardwareEvent
from rackproof.nodes.snapshot import GpuSnapshot, NodeSnapshot, build_snapshot
from rackproof.store.night_store import (
    Hold,
    NightReason,
    NightRecord,
    NodeNight,
    SlurmState,
    night_folders,
    read_night,
    write_night,
)
from rackproof.store.probe_results import ProbeNight
from rackproof.store.run_folder import new_run_id, write_run
from tests.fuzz.monotonicity import recorded_answers
from tests.jobs.validate.probes import ROOT

Answer = dict[str, Any]
EXPECTED = Expectation(
    gpus=4, nvlinks=18, ports=1, port_gbps=800, mounts=("/",), services=("nvidia-persistenced",)
)


# The table has a row for every code that can drain a node.


MADE_UP = {
    "xid_*": ("xid_79", "xid_48", "xid_154"),
    "sxid_*": ("sxid_20034",),
    "version_*": ("version_driver", "version_infiniband_mlx5_0"),
    "mismatch_*": ("mismatch_gsp", "mismatch_module_nvidia"),
    "service_*": ("service_munge", "service_docker"),
}
"""Examples of codes for each family of the registry."""


def codes_that_drain() -> Iterator[str]:
    """Yield the codes of health checks that fail a node and are not only hints."""
    for entry in registry().values():
        fails = "night" in entry.jobs and "fail" in entry.verdicts
        if fails and entry.actions and set(entry.confidences) - {"hint"}:
            yield from MADE_UP[entry.code] if "*" in entry.code else (entry.code,)


def test_every_code_that_can_drain_has_a_row_unless_it_needs_an_inspection_of_hardware() -> None:
    """Errors in the kernel log disappear with a boot, but a boot does not repair this hardware."""
    found = set(codes_that_drain())
    assert len(found) > 60
    inspected = {
        code
        for code in found
        if (entry := registry().get(code)) and entry.reads.startswith("kernel log")
        if "inspect" in entry.actions
    }
    assert inspected >= {"machine_check", "memory_error", "pcie_error"}
    assert {code for code in found if healing_evidence(code) is None} == inspected
    assert {code: _hardware_action(failed_event(code)) for code in inspected} == dict.fromkeys(
        inspected, "inspect"
    )


def failed_event(code: str) -> HardwareEvent:
    return HardwareEvent(code=code, verdict=Verdict.FAIL)


@pytest.mark.parametrize("number", range(200))
def test_an_xid_heals_by_a_boot_only_if_a_boot_or_a_reset_is_its_remedy(number: int) -> None:
    proves_nothing = requested_action(number, "") == "isolate"
    assert (healing_evidence(f"xid_{number}") is None) == proves_nothing


def test_no_row_is_for_nothing() -> None:
    names = {row.name for row in EVIDENCE}
    used = {name for code in (*HEALED_BY, "xid_48", "xid_79") for name in healing_evidence(code) or ()}
    assert used == names


@pytest.mark.parametrize(
    "code", ["gpu_new", "machine_changed", "node_twice", "made_up", "", "xid_", "xid_7x", "ecc_sr…"]
)
def test_a_code_without_a_row_never_heals_by_itself(code: str) -> None:
    everything = [f"health:{row.name}" for row in EVIDENCE]
    assert lacking_for(code, everything) is None


@pytest.mark.parametrize("code", ["pair:fabric", "missing:gemm", "made_up:gemm", "rack:gemm", "number:gemm"])
def test_a_code_that_no_measurement_of_one_node_can_disprove_never_heals_by_itself(code: str) -> None:
    assert lacking_for(code, ["gemm", "fabric", "job"]) is None


# A healthy node has all evidence. If a reading is missing, its codes do not heal.


def snapshot(name: str, boot: str = "later", unrepairable: bool = True, **changed: Any) -> NodeSnapshot:
    answer = copy.deepcopy(recorded_answers()[name])
    answer["facts"]["boot_id"] = boot
    xml = answer["facts"]["tools"]["nvidia_smi_xml"]["stdout"]
    # Newer drivers than the rack's report this value.
    newer = "</tpc_repair_pending><unrepairable_memory>No</unrepairable_memory>"
    if unrepairable:
        xml = xml.replace("</tpc_repair_pending>", newer)
    answer["facts"]["tools"]["nvidia_smi_xml"]["stdout"] = xml
    made = build_snapshot("n1", answer, sku="gb300")
    services = {"nvidia-persistenced.service": "active"}
    return made.model_copy(update={"services": services} | changed)


def with_traffic(words: int, received: int | None = None) -> dict[str, Any]:
    """Return the ports of a node with this traffic since its boot, in words of four bytes."""
    data = {"port_xmit_data": words, "port_rcv_data": words if received is None else received}
    ports = snapshot("n1-sound").ports
    return {"ports": tuple(port.model_copy(update={"counters": port.counters | data}) for port in ports)}


SOUND = snapshot("n1-sound", **with_traffic(2_000_000_000))
BEFORE = snapshot("n1-sound", boot="earlier", **with_traffic(9_000_000_000))
GPUS = frozenset(gpu.uuid for gpu in SOUND.gpus)
HEAT = ("throttled", "slowed_down", "temperature", "too_hot", "memory_temperature")


def node(tonight: NodeSnapshot = SOUND, **more: Any) -> DrainedNode:
    """Return a drained node that has all evidence, unless something is changed."""
    known = {"expected": EXPECTED, "idle": True, "failed": BEFORE, "before": BEFORE, "soaked": GPUS}
    return DrainedNode(tonight=tonight, **(known | more))


def heals(code: str, drained: DrainedNode) -> bool:
    return lacking_for(code, healed_evidence(drained)) == ()


CODES = (*HEALED_BY, "xid_79", "xid_48", "sxid_20034", "version_driver", "service_nvidia_persistenced")


@pytest.mark.parametrize("code", CODES)
def test_a_sound_node_heals(code: str) -> None:
    assert heals(code, node())


@pytest.mark.parametrize("code", CODES)
def test_a_node_heals_that_failed_in_its_first_night(code: str) -> None:
    """Its snapshot of that night shows its parts, and a comparison with an earlier night is not possible."""
    assert heals(code, node(before=None, is_first=True))


# The inventory's numbers and the failed night's counters are enough for these codes.
@pytest.mark.parametrize(
    "code", ["gpu_missing", "xid_79", "port_missing", "port_symbol_error", "slowed_down"]
)
def test_some_codes_need_no_snapshot_from_before_the_drain(code: str) -> None:
    assert heals(code, node(before=None))


def each_gpu(last_only: bool = False, **changed: Any) -> NodeSnapshot:
    gpus = list(SOUND.gpus)
    for place in [len(gpus) - 1] if last_only else range(len(gpus)):
        gpus[place] = gpus[place].model_copy(update=changed)
    return SOUND.model_copy(update={"gpus": tuple(gpus)})


# A code, and a value of a GPU that is missing, implausible or worse than that of healthy GPUs.
ABSENT = [
    ("fabric_unhealthy", {"fabric_health": ""}),
    ("fabric_unhealthy", {"fabric_health": "Not Supported"}),
    ("fabric_unhealthy", {"fabric_health": "N/A"}),
    ("fabric_incomplete", {"fabric_state": "Not Supported"}),
    ("fabric_failed", {"fabric_status": ""}),
    ("fabric_split", {"fabric_clique": ""}),
    ("fabric_no_domain", {"fabric_clique": ""}),
    ("fabric_no_domain", {"fabric_status": ""}),
    ("throttled", {"throttled": None}),
    ("slowed_down", {"slowdown_s": {}}),
    ("temperature", {"margin_c": None}),
    ("too_hot", {"temperature_c": None}),
    ("too_hot", {"temperature_c": 0.0}),
    ("memory_temperature", {"memory_c": None}),
    ("power_limit", {"power_limit_w": None}),
    ("power_limit", {"power_default_w": None}),
    ("ecc_sram_uncorrectable", {"sram_uncorrectable": None}),
    ("ecc_sram_uncorrectable", {"sram_threshold": None}),
    ("remap_failure", {"remap_failure": None}),
    ("remap_pending", {"remap_pending": None}),
    ("ecc_off", {"ecc_enabled": None}),
    ("ecc_off", {"ecc_enabled_next": None}),
    ("memory_unrepairable", {"memory_unrepairable": None}),
    ("repair_pending", {"repairs_pending": None}),
    ("mig_on", {"mig": None}),
    ("recovery_needed", {"recovery_action": ""}),
    ("gpu_memory", {"memory_total_bytes": None}),
    ("gpu_memory", {"memory_total_bytes": 10}),
    ("memory_in_use", {"memory_used_bytes": None}),
    ("pcie_width", {"pcie_width": None}),
    ("pcie_width", {"pcie_width_max": None}),
    ("pcie_width", {"pcie_width_max": 8, "pcie_width": 8}),
    ("pcie_generation", {"pcie_generation": None}),
    # An idle link is slow on purpose, so its generation does not show how fast it can be.
    ("pcie_generation", {"pcie_generation": 1}),
    ("pcie_generation", {"pcie_generation_max": 3, "pcie_generation": 3}),
    ("gpu_serial_changed", {"serial": ""}),
    ("gpu_serial_changed", {"serial": "another"}),
    ("gpu_unreadable", {"temperature_c": None}),
    ("gpu_unreadable", {"errors": ("ERR!",)}),
    ("nvlink_down", {"links": {}}),
    ("nvlink_missing", {"links": {"0": True}}),
    ("nvlink_slow", {"link_gb_s": {"0": 10.0, "1": 50.0}}),
]


@pytest.mark.parametrize(("code", "changed"), ABSENT)
@pytest.mark.parametrize("last_only", [True, False])
def test_a_reading_that_lacks_heals_nothing(code: str, changed: Answer, last_only: bool) -> None:
    assert not heals(code, node(each_gpu(last_only, **changed)))


@pytest.mark.parametrize("code", HEAT)
@settings(max_examples=20, deadline=None)
@given(st.sets(st.sampled_from(sorted(GPUS))))
def test_heat_heals_only_after_a_soak_of_each_gpu(code: str, soaked: set[str]) -> None:
    """An idle GPU is cool even with a broken cooler, so only a soak (a long load) counts."""
    assert heals(code, node(soaked=soaked)) == (soaked == GPUS)


def test_the_reason_names_the_load_that_a_drain_for_heat_needs() -> None:
    held = Hold(since="N1", codes=("throttled",))
    idle = NodeNight(
        node="n1",
        verdict=Verdict.PASS,
        slurm=SlurmState(known=True, drained_by="ours"),
        read_again=healed_evidence(node(soaked=())),
    )
    (one,), _ = decide_drains([idle], {"n1": idle.model_copy(update={"hold": held})}, {}, "N2", LATER)
    assert one.plan == ""
    assert "throttled (soak); an idle GPU is cool, so a soak must pass" in one.why
    assert "resume it by hand" in one.why
    soak = one.model_copy(update={"read_again": healed_evidence(node())})
    page = (ROOT / "docs/using/drained.md").read_text()
    [command] = re.findall(
        r"^    (ansible-playbook .*-e validate_resume=true \\\n.*soak.*)$", page, re.MULTILINE
    )
    (step,) = _next_commands(one.model_copy(update={"node": "gb300-r01-n03"}))
    assert step.partition("  #")[0] == " ".join(command.replace("\\\n", "").split())
    assert "needs a reference of the SKU for soak, or -e bench_require_references=false" in step
    assert not _next_commands(soak)


@pytest.mark.parametrize("code", ["machine_check", "pair:fabric"])
def test_no_soak_is_advised_for_a_node_that_no_night_resumes(code: str) -> None:
    held = Hold(since="N1", codes=("throttled", code))
    one = NodeNight(node="n1", verdict=Verdict.PASS, read_again=healed_evidence(node(soaked=())), hold=held)
    assert not _next_commands(one)


@pytest.mark.parametrize(("codes", "last"), [((), "-l n1"), (("throttled",), "# heat shows only under load")])
def test_the_last_command_measures_what_the_drain_needs(codes: tuple[str, ...], last: str) -> None:
    finding = HealthFinding(
        node="n1", code="xid_79", verdict=Verdict.FAIL, action="reboot", confidence="certain", evidence="x"
    )
    held = Hold(since="N1", codes=(*codes, "xid_79"))
    steps = _next_commands(NodeNight(node="n1", verdict=Verdict.FAIL, findings=(finding,), hold=held))
    assert len(steps) == 2
    assert steps[0].startswith("scontrol reboot")
    assert last in steps[1]


def test_a_pending_repair_heals_on_a_driver_that_knows_no_unrepairable_memory() -> None:
    """Driver 580.95 on GB300, and published answers of B200 and H100, report only pending repairs."""
    older = snapshot("n1-sound", unrepairable=False)
    assert {gpu.memory_unrepairable for gpu in older.gpus} == {None}
    assert heals("repair_pending", node(older))
    assert not heals("memory_unrepairable", node(older))
    # A reset is enough for a repair, and no boot is needed.
    assert heals("repair_pending", node(older.model_copy(update={"boot_id": "earlier"})))


@pytest.mark.parametrize("field", ["channel", "tpc"])
@pytest.mark.parametrize("value", ["", "N/A", "Unknown Error", "Perhaps"])
def test_one_unreadable_repair_field_makes_pending_repairs_unknown(field: str, value: str) -> None:
    answer = copy.deepcopy(recorded_answers()["n1-sound"])
    smi = answer["facts"]["tools"]["nvidia_smi_xml"]
    tag = f"{field}_repair_pending"
    smi["stdout"] = smi["stdout"].replace(f"<{tag}>No</{tag}>", f"<{tag}>{value}</{tag}>" if value else "")
    made = build_snapshot("n1", answer, sku="gb300")
    assert {gpu.repairs_pending for gpu in made.gpus} == {None}
    assert not heals("repair_pending", node(made))


@pytest.mark.parametrize(
    ("names", "healed"),
    [
        (["NVIDIA GB300", "NVIDIA GB300"], False),
        (["NVIDIA H100 80GB HBM3", "Tesla T4"], False),
        (["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"], False),
        (["Tesla T4", "Tesla T4"], True),
        (["Tesla V100-SXM2-16GB", "Tesla T4"], True),
    ],
)
def test_only_models_without_repairs_need_not_report_them(names: list[str], healed: bool) -> None:
    """Two of four GPUs report no repairs. If no GPU reports repairs, that heals nothing either."""
    gpus = list(SOUND.gpus)
    for place, name in enumerate(names):
        gpus[place] = gpus[place].model_copy(update={"name": name, "repairs_pending": None})
    assert heals("repair_pending", node(SOUND.model_copy(update={"gpus": tuple(gpus)}))) is healed
    silent = [gpu.model_copy(update={"name": names[0], "repairs_pending": None}) for gpu in gpus]
    assert not heals("repair_pending", node(SOUND.model_copy(update={"gpus": tuple(silent)})))


# Words of four bytes, sent and received, in the night that failed and tonight. Counters may restart.
@pytest.mark.parametrize(
    ("failed", "tonight", "healed"),
    [
        ((9_000_000_000,), (9_300_000_000,), True),
        ((9_000_000_000,), (300_000_000,), True),
        # The port was idle, or data went in one direction only.
        ((9_000_000_000,), (9_000_000_000,), False),
        ((9_000_000_000,), (9_000_900_000,), False),
        ((9_000_000_000,), (9_300_000_000, 9_000_000_000), False),
        ((9_000_000_000, 0), (300_000_000, 4_000), False),
    ],
)
def test_errors_of_packets_heal_only_after_traffic(
    failed: tuple[int, ...], tonight: tuple[int, ...], healed: bool
) -> None:
    drained = node(
        SOUND.model_copy(update=with_traffic(*tonight)),
        failed=BEFORE.model_copy(update=with_traffic(*failed)),
    )
    assert heals("port_port_rcv_errors", drained) is heals("port_port_xmit_discards", drained) is healed
    # A link that is up always sends symbols, so symbol errors need no traffic.
    assert heals("port_symbol_error", drained)


def test_errors_of_packets_do_not_heal_without_counters_of_data_or_the_night_that_failed() -> None:
    silent = [port.model_copy(update={"counters": {"port_rcv_errors": 0}}) for port in SOUND.ports]
    assert not heals("port_port_rcv_errors", node(SOUND.model_copy(update={"ports": tuple(silent)})))
    assert not heals("port_port_rcv_errors", node(failed=None))


def test_ports_that_turn_out_to_manage_nvswitches_are_not_awaited() -> None:
    # The snapshots of an earlier version took the port for a compute port.
    port = SOUND.ports[0].model_copy(update={"device": "mlx5_9", "nvswitch": None})
    before = BEFORE.model_copy(update={"ports": (*BEFORE.ports, port)})
    bridge = port.model_copy(update={"nvswitch": True})
    drained = {"failed": before, "before": before, "expected": Expectation(gpus=4, nvlinks=18)}
    assert heals("port_down", node(SOUND.model_copy(update={"ports": (*SOUND.ports, bridge)}), **drained))
    assert not heals("port_down", node(**drained))


def tools(**statuses: str) -> NodeSnapshot:
    return SOUND.model_copy(update={"tools": SOUND.tools | statuses})


@pytest.mark.parametrize(
    ("code", "drained"),
    [
        # The kernel log was not read, or it was cut off.
        *(("xid_79", node(tools(kernel_log=status))) for status in ("", "absent", "failed", "hung")),
        ("xid_48", node(SOUND.model_copy(update={"truncated": ("kernel_log",)}))),
        ("kernel_error", node(tools(kernel_log="failed"))),
        ("gpu_init_failed", node(tools(kernel_log="absent"))),
        # Without a boot since the failure, a log without the error does not show a repair.
        ("xid_79", node(SOUND.model_copy(update={"boot_id": "earlier"}))),
        ("xid_79", node(SOUND.model_copy(update={"boot_id": ""}))),
        ("sxid_20034", node(SOUND.model_copy(update={"boot_id": "earlier"}))),
        ("gpu_lost", node(failed=None)),
        ("inforom_corrupted", node(SOUND.model_copy(update={"boot_id": "earlier"}))),
        ("inforom_corrupted", node(tools(nvidia_smi_xml="failed"))),
        ("xid_48", node(each_gpu(recovery_action="").model_copy(update={"boot_id": "earlier"}))),
        # GPUs that cannot be counted.
        *(
            (code, node(SOUND.model_copy(update={"gpus": SOUND.gpus[:count]})))
            for code in ("gpu_missing", "gpus_missing", "throttled", "xid_79", "no_driver", "tool_slow")
            for count in (0, 1, 3)
        ),
        ("gpu_missing", node(SOUND.model_copy(update={"gpus": SOUND.gpus[:3]}), expected=Expectation())),
        ("gpus_missing", node(SOUND.model_copy(update={"gpus": (*SOUND.gpus[:3], SOUND.gpus[0])}))),
        ("no_driver", node(tools(nvidia_smi_xml="no_driver"))),
        ("tool_hung", node(tools(nvlink_status="failed"))),
        ("tool_hung", node(tools(nvlink_errors="absent"))),
        ("nvlink_missing", node(tools(nvlink_status="failed"))),
        # While a job runs, the owner of the memory is unknown.
        ("memory_in_use", node(idle=False)),
        # The snapshot before the failure is gone.
        ("gpu_serial_changed", node(before=None)),
        ("gpu_memory", node(before=None)),
        ("pcie_width", node(before=None)),
        # Without it, it is not known which parts and readings the node had.
        *(
            (code, node(before=None, failed=failed, expected=Expectation(mounts=("/",))))
            for code in ("gpu_missing", "xid_79", "port_missing", "tool_hung", "link_width", "disk_read_only",
                "inodes_full", "mount_read_only", "ecc_sram_uncorrectable", "ecc_off")
            for failed in (BEFORE, None)
        ),
        # Ports and cards.
        ("port_down", node(SOUND.model_copy(update={"ports": ()}))),
        ("port_missing", node(SOUND.model_copy(update={"ports": ()}), expected=Expectation())),
        ("port_slow", node(SOUND.model_copy(
            update={"ports": tuple(one.model_copy(update={"rate_gbps": None}) for one in SOUND.ports)}))),
        ("port_symbol_error", node(SOUND.model_copy(
            update={"ports": tuple(one.model_copy(update={"counters": {}}) for one in SOUND.ports)}))),
        ("link_width", node(SOUND.model_copy(update={"links": {}}))),
        ("link_speed", node(SOUND.model_copy(
            update={"links": {one: {"current_link_speed": "Unknown"} for one in SOUND.links}}))),
        # The system.
        ("memlock", node(SOUND.model_copy(update={"memlock_bytes": None}))),
        ("shm", node(SOUND.model_copy(update={"shm_bytes": None}))),
        ("memory", node(SOUND.model_copy(update={"memory_bytes": 0}))),
        ("clock", node(SOUND.model_copy(update={"clock_offset_s": None}))),
        ("clock", node(SOUND.model_copy(update={"clock_offset_s": float("nan")}))),
        ("disk_full", node(SOUND.model_copy(update={"disk": {}}))),
        ("inodes_full", node(SOUND.model_copy(
            update={"disk": {path: {"total_bytes": 9.0, "free_bytes": 9.0} for path in SOUND.disk}}))),
        ("mount_missing", node(SOUND.model_copy(update={"mounts": None}))),
        ("mount_differs", node(SOUND.model_copy(update={"mount_table": {}}))),
        ("mount_read_only", node(SOUND.model_copy(update={"mount_table": {}}))),
        ("version_driver", node(SOUND.model_copy(update={"versions": {}}))),
        ("mismatch_gsp", node(SOUND.model_copy(update={"versions": {"driver": "1"}}))),
        ("service_munge", node(SOUND.model_copy(update={"services": None}))),
        ("service_munge", node(SOUND.model_copy(update={"services": {"munge.service": "inactive"}}))),
        ("service_munge", node(SOUND.model_copy(update={"services": {"munge.service": "masked"}}))),
    ],
)  # fmt: skip
def test_what_was_not_read_of_a_node_heals_nothing(code: str, drained: DrainedNode) -> None:
    assert not heals(code, drained)


def test_a_disk_that_is_read_only_for_the_second_night_is_not_healed() -> None:
    """The comparison is with the night before the drain, because last night's disk was read-only, too."""
    disk = {"source": "/dev/sda1", "type": "ext4", "options": "rw", "super_options": "rw"}
    then = BEFORE.model_copy(update={"mount_table": {"/": disk}})
    for options in ({"options": "ro"}, {"super_options": "ro,errors=remount-ro"}):
        now = SOUND.model_copy(update={"mount_table": {"/": disk | options}})
        assert not heals("mount_read_only", node(now, before=then, failed=now))
    assert heals("mount_read_only", node(SOUND.model_copy(update={"mount_table": {"/": disk}}), before=then))
    # A mount that was read-only before the drain is meant so.
    boot = {"/boot": disk | {"options": "ro"}}
    now = SOUND.model_copy(update={"mount_table": {"/": disk} | boot})
    assert heals(
        "mount_read_only", node(now, before=then.model_copy(update={"mount_table": {"/": disk} | boot}))
    )


def test_one_of_two_services_is_enough_and_is_called_by_the_first() -> None:
    expected = Expectation(services=("chronyd|chrony",))
    now = SOUND.model_copy(update={"services": {"chrony.service": "active", "chronyd.service": "not-found"}})
    assert heals("service_chronyd", node(now, expected=expected))


SICK = [snapshot(name) for name in ("n1-throttling", "n1-nvlink-down", "n1-missing-gpu", "n1-xid")]
SICK += [SOUND, each_gpu(pcie_width=8), each_gpu(True, memory_total_bytes=1 << 30)]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SICK), st.data())
def test_less_evidence_never_heals(sick: NodeSnapshot, data: st.DataObject) -> None:
    """If a value of a node or GPU is removed, no further code heals."""
    could = all_healed(sick)
    if data.draw(st.booleans()) and sick.gpus:
        place = data.draw(st.integers(0, len(sick.gpus) - 1))
        field = data.draw(st.sampled_from(sorted(GpuSnapshot.model_fields.keys() - {"uuid", "errors"})))
        gpus = list(sick.gpus)
        gpus[place] = gpus[place].model_copy(update={field: nothing(getattr(gpus[place], field))})
        less = sick.model_copy(update={"gpus": tuple(gpus)})
    else:
        kept = {"node", "gone_gpus", "gone_ports", "truncated", "xids", "hardware_events", "reboots"}
        field = data.draw(st.sampled_from(sorted(NodeSnapshot.model_fields.keys() - kept)))
        less = sick.model_copy(update={field: nothing(getattr(sick, field))})
    assert all_healed(less) <= could


def all_healed(tonight: NodeSnapshot) -> set[str]:
    read = healed_evidence(node(tonight))
    return {code for code in CODES if lacking_for(code, read) == ()}


def test_a_node_is_compared_once_with_the_night_before_its_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        compared.append(kwargs["previous"])
        return check_node(*args, **kwargs)

    monkeypatch.setattr(healing, "check_node", counted)
    healed_evidence(node())
    assert compared == [BEFORE]
    healed_evidence(node(before=None))
    assert compared == [BEFORE]


def nothing(value: Any) -> Any:
    """Return the absence of a value, as a snapshot has it."""
    return None if value is None or isinstance(value, int | float) else type(value)()


# Whole nights through the functions that validate.yml calls.

NAMES = ("n1", "n2", "n3")
LATER = datetime(2026, 1, 2, tzinfo=UTC)


def in_smi(pattern: str, text: str) -> Callable[[Answer], None]:
    """Return a function that replaces the first match of a pattern in nvidia-smi's answer."""

    def change(answer: Answer) -> None:
        smi = answer["facts"]["tools"]["nvidia_smi_xml"]
        smi["stdout"], count = re.subn(pattern, text, smi["stdout"], count=1)
        assert count == 1, pattern

    return change


def without_gpus(count: int) -> Callable[[Answer], None]:
    def change(answer: Answer) -> None:
        smi = answer["facts"]["tools"]["nvidia_smi_xml"]
        smi["stdout"] = re.sub(r"(?s)<gpu id=.*?</gpu>", "", smi["stdout"], count=count)
        smi["stdout"] = re.sub("<attached_gpus>.*?</attached_gpus>", "", smi["stdout"])

    return change


def log(line: str) -> Callable[[Answer], None]:
    def change(answer: Answer) -> None:
        tool = answer["health"]["tools"]["kernel_log"]
        tool["stdout"] += f"{answer['health']['epoch'] - 1:.6f} n1 kernel: {line}\n"

    return change


def no_log(answer: Answer) -> None:
    answer["health"]["tools"]["kernel_log"] = {"status": "absent"}


def no_tool(name: str) -> Callable[[Answer], None]:
    return lambda answer: answer["health"]["tools"].pop(name) and None


SLOW = pytest.mark.slow


def in_smi_of(code: str, good: str, bad: str, absent: str, *marks: pytest.MarkDecorator) -> Any:
    """Return a case: a code, the fault in nvidia-smi's answer, and the answer that lacks the reading."""
    return pytest.param(code, in_smi(good, bad), in_smi(good, absent), id=f"{code} {absent}", marks=marks)


def link_down(answer: Answer) -> None:
    tool = answer["health"]["tools"]["nvlink_status"]
    tool["stdout"] = re.sub(r"Link 3: .*", "Link 3: <inactive>", tool["stdout"], count=1)


def port_down(answer: Answer) -> None:
    answer["health"]["hca"]["mlx5_0"]["1"]["state"] = "1: DOWN"


HW = "<clocks_event_reason_hw_thermal_slowdown>"
SW = "<clocks_event_reason_sw_power_cap>"


def soak_run(results: Path, at: datetime, **changed: Any) -> None:
    """Store a run of the benchmark soak on n1, which passed unless something is changed."""
    run = Run(
        run_id=new_run_id("soak", now=at),
        benchmark="soak",
        started=at,
        ended=at,
        parameters={"gpus": "all", "seconds": 600},
        measurements=tuple(
            Measurement(name="soak", value=650, unit="TFLOP/s", labels={"gpu": uuid})
            for uuid in sorted(changed.pop("uuids", GPUS))
        ),
        verdict=Verdict.PASS,
    )
    write_run(run.model_copy(update=changed), results / run.run_id)


@pytest.mark.parametrize(
    ("changed", "soaks"),
    [
        ({}, True),
        ({"verdict": Verdict.FAIL}, False),
        ({"verdict": Verdict.DEGRADED}, False),
        ({"verdict": Verdict.UNPROVEN}, False),
        ({"provenance": "imported"}, False),
        ({"parameters": {"seconds": 60}}, False),
        ({"parameters": {}}, False),
        ({"benchmark": "gemm"}, False),
        ({"uuids": sorted(GPUS)[1:]}, False),
        ({"started": datetime(2020, 1, 1, tzinfo=UTC)}, False),
        ({"benchmark": "probes"}, False),
    ],
)
def test_only_a_whole_soak_that_passed_since_the_night_before_counts(
    tmp_path: Path, changed: dict[str, Any], soaks: bool
) -> None:
    now = datetime.now(UTC)
    soak_run(tmp_path, now, **changed)
    night = tmp_path / new_run_id("night", now=now - timedelta(hours=24))
    [(runs, _)] = runs_since_last_night(tmp_path, [night], ["n1"], now)
    kept = {"n1": SimpleNamespace(snapshot=SOUND)}
    assert (soaked_gpus(runs, None, kept)["n1"] == GPUS) == soaks  # type: ignore[arg-type]


# Nights in hours before tonight, each with its nodes, and the hours of the runs that count for n1 and n2.
@pytest.mark.parametrize(
    ("nights", "counted"),
    [
        ([(24, ("n1", "n2"))], {"n1": [18, 6], "n2": [18, 6]}),
        # A night of other nodes does not judge the numbers of n1.
        ([(24, ("n1", "n2")), (12, ("n3",))], {"n1": [18, 6], "n2": [18, 6]}),
        ([(24, ("n1", "n2")), (12, ("n2",))], {"n1": [18, 6], "n2": [6]}),
        ([(24, ("n2",)), (12, ("n2",)), (3, ("n3",))], {"n1": [30, 18, 6], "n2": [6]}),
        # A damaged night may have had every node.
        ([(24, ("n1", "n2")), (12, None)], {"n1": [6], "n2": [6]}),
        ([(12, None), (9, ("n1",)), (3, ("n3",))], {"n1": [6], "n2": [6]}),
        ([], {"n1": [30, 18, 6], "n2": [30, 18, 6]}),
    ],
)
def test_a_run_counts_since_the_last_night_of_its_node(
    tmp_path: Path, nights: list[tuple[int, tuple[str, ...] | None]], counted: dict[str, list[int]]
) -> None:
    now = datetime.now(UTC)
    for hours in (30, 18, 6):
        soak_run(tmp_path, now - timedelta(hours=hours), description=f"{hours}")
    for hours, names in nights:
        at = now - timedelta(hours=hours)
        night_id = new_run_id("health", now=at)
        (tmp_path / night_id).mkdir()
        (tmp_path / night_id / "night.json").touch()
        if names is not None:
            nodes = tuple(NodeNight(node=name, verdict=Verdict.PASS) for name in names)
            night = NightRecord(night_id=night_id, started=at, ended=at, verdict=Verdict.PASS, nodes=nodes)
            write_night(tmp_path / night_id, night)
    groups = runs_since_last_night(tmp_path, night_folders(tmp_path), ["n1", "n2"], now)
    by_node = {
        name: sorted((int(run.description) for run in runs), reverse=True)
        for runs, names in groups
        for name in names
    }
    assert by_node == counted


@pytest.mark.parametrize(("sound", "soaks"), [((), False), (("gemm", "job"), False), (("soak",), True)])
def test_the_soak_of_a_night_counts_if_it_found_no_fault(
    tmp_path: Path, sound: tuple[str, ...], soaks: bool
) -> None:
    now = datetime.now(UTC)
    soak_run(tmp_path, now, benchmark="probes", verdict=Verdict.UNPROVEN, parameters={})
    [(runs, _)] = runs_since_last_night(tmp_path, [], ["n1"], now)
    kept = {"n1": SimpleNamespace(snapshot=SOUND)}
    probed = ProbeNight(asked=240, sound={"n1": sound})
    assert (soaked_gpus(runs, probed, kept)["n1"] == GPUS) == soaks  # type: ignore[arg-type]
    # Without a run of the probes, no GPU was under load.
    assert soaked_gpus([], probed, kept)["n1"] == frozenset()  # type: ignore[arg-type]


# Each case judges seven nights or more. The fast tests have one case of each kind of reading.
@pytest.mark.parametrize(
    ("code", "fault", "absence"),
    [
        in_smi_of("fabric_unhealthy", "<summary>Healthy", "<summary>Unhealthy", "<summary>N/A"),
        in_smi_of("temperature", "<gpu_temp_tlimit>48 C", "<gpu_temp_tlimit>-1 C", "<gpu_temp_tlimit>N/A"),
        ("gpu_missing", without_gpus(1), without_gpus(4)),
        ("xid_79", log("NVRM: Xid (PCI:0008:06:00): 79, GPU has fallen off the bus."), no_log),
        ("port_down", port_down, lambda answer: answer["health"].pop("hca")),
        ("nvlink_down", link_down, no_tool("nvlink_status")),
        in_smi_of("fabric_unhealthy", "<summary>Healthy</summary>", "<summary>Bad</summary>", "", SLOW),
        in_smi_of("memory_temperature", "<memory_temp>40 C", "<memory_temp>110 C", "<memory_temp>N/A", SLOW),
        in_smi_of("mig_on", "<current_mig>Disabled", "<current_mig>Enabled", "<current_mig>N/A", SLOW),
        in_smi_of("ecc_off", "<pending_ecc>Enabled", "<pending_ecc>Disabled", "<pending_ecc>N/A", SLOW),
        in_smi_of("gpu_memory", "<total>284208 MiB", "<total>142104 MiB", "<total>N/A", SLOW),
        pytest.param(
            "throttled",
            in_smi(f"{HW}Not Active", f"{HW}Active"),
            in_smi(f"{SW}Not Active", f"{SW}N/A"),
            marks=SLOW,
        ),
        pytest.param("gpu_missing", without_gpus(2), without_gpus(2), marks=SLOW),
        pytest.param(
            "kernel_error", log("BUG: unable to handle page fault for address: ffff"), no_log, marks=SLOW
        ),
    ],
)
def test_a_node_returns_by_what_was_read_and_never_by_what_was_not(
    tmp_path: Path, code: str, fault: Callable[[Answer], Any], absence: Callable[[Answer], Any]
) -> None:
    """One night drains the node, two lack the reading, and nights with the reading after a boot resume it."""
    results = tmp_path / "results"
    ours: dict[str, str] = {}
    boot = ["boot-1"]
    # If the inventory expects few readings, a missing reading does not make a night unproven.
    expected: dict[str, Any] = {"gpus": 4, "gpu_readings": [], "slurm": False}
    if code in ("fabric_unhealthy", "mig_on", "gpu_memory", "ecc_off"):
        expected |= {"gpu_readings": ["ecc", "temperature"], "nvlinks": 18, "ports": 1}

    def a_night(change: Callable[[Answer], Any] | None, soak: bool = False) -> NodeNight:
        if soak:
            soak_run(results, datetime.now(UTC))
        night = begin_night(results, NAMES, owner_pid=os.getpid())
        number = len(night_folders(results))
        for name in NAMES:
            answer = copy.deepcopy(recorded_answers()[f"{name}-sound"])
            answer.pop("seal", None)
            answer["facts"]["boot_id"] = f"{boot[0]}-{name}"
            for key in ("begin", "epoch"):
                answer["health"][key] += number * 86_400
            answer["health"]["since"] = answer["health"]["begin"] - 86_400
            # The kernel log is empty, because the boot was long ago.
            answer["health"]["tools"]["kernel_log"]["stdout"] = ""
            if name == "n1" and change is not None:
                change(answer)
            begin, end = answer["health"]["begin"], answer["health"]["epoch"]
            store_snapshot(
                night, name, sealed_answer(answer), asked=begin, answered=end, sku="gb300",
                expected=expected,
            )  # fmt: skip
        states = {
            name: {
                "known": True,
                "state_after": "IDLE",
                "drained_by": "ours" if name in ours else "none",
                "reason": ours.get(name, ""),
                "jobs": [],
            }
            for name in NAMES
        }
        judged = judge_fleet(
            night,
            asked=dict.fromkeys(NAMES, ""),
            benchmarks=ROOT / "benchmarks",
            being_imaged={},
            slurm=states,
            members="".join(f"{name}|batch|none\n" for name in NAMES),
            share=0.5,
            return_hours=0,
        )
        close_night(night, did={})
        ours.update({one["node"]: f"rackproof-night: {one['reason']}" for one in judged.drain})
        return next(one for one in read_night(night_folders(results)[0]).nodes if one.node == "n1")

    first = a_night(None)
    assert first.plan == "", first.reason_texts()
    failed = a_night(fault)
    assert (failed.plan, code in failed.codes()) == ("drain", True), failed.reason_texts()
    for _ in range(2):
        lacks = a_night(absence)
        assert lacks.plan == "", lacks.why
        assert lacks.hold is not None
        assert lacks.hold.passes == 0, (lacks.why, lacks.reason_texts())
    boot[0] = "boot-2"
    if code in HEAT:
        idle = [a_night(None) for _ in range(3)]
        assert {(one.plan, one.hold and one.hold.passes) for one in idle} == {("", 0)}, idle[-1].why
    well = [a_night(None, soak=code in HEAT) for _ in range(3)]
    told = [(one.plan, one.why, one.reason_texts()) for one in well]
    assert well[0].plan == "", told
    assert "return" in (one.plan for one in well[1:]), told


@pytest.mark.parametrize(
    ("verdicts", "measured"),
    [
        (("unproven", "fail"), "gemm"),
        (("unproven", "degraded"), "gemm"),
        (("degraded", "fail"), "job"),
        (("unproven", "unproven"), ""),
    ],
)
def test_the_command_names_the_number_that_is_at_fault(verdicts: tuple[str, ...], measured: str) -> None:
    reasons = tuple(
        NightReason(check="probe", verdict=Verdict(verdict), metric=metric, part="n1", text="x")
        for verdict, metric in zip(verdicts, ("job", "gemm"), strict=True)
    )
    steps = _next_commands(NodeNight(node="n1", verdict=Verdict.FAIL, reasons=reasons))
    named = [step for step in steps if "bench.yml" in step]
    assert named == ([f"ansible-playbook bench.yml -l n1  # measures {measured} again"] if measured else [])
