"""Test the tables of answers that a night needs to judge a node (nodes/night_evidence.py).

A row names a tool or a field of the snapshot, and what its absence means. The tests check that no field lacks
a row, that a tool which hangs or fails never makes a node better, and that a night and `rackproof parse` read
nvidia-smi's values in the same way.
"""

from __future__ import annotations

import ast
import io
import lzma
from pathlib import Path
from typing import Any

import pytest

from rackproof import logs
from rackproof.core.records import Verdict
from rackproof.nodes.health_checks import check_node
from rackproof.nodes.health_subjects import Expectation, HealthFinding
from rackproof.nodes.night_evidence import (
    DRIVER_TOOLS,
    GPU_EVIDENCE,
    GPU_READINGS,
    NODE_EVIDENCE,
    PORT_EVIDENCE,
    TOOL_EVIDENCE,
)
from rackproof.nodes.snapshot import GpuSnapshot, NodeSnapshot, PortSnapshot, build_snapshot

from .test_health_checks import EXPECTED, GPU, PORT, SOUND

TABLES = (NODE_EVIDENCE, TOOL_EVIDENCE, GPU_EVIDENCE, PORT_EVIDENCE)
SLURM = SOUND.model_copy(
    update={
        "tools": {
            **SOUND.tools,
            **dict.fromkeys(("slurm_controller", "slurmd_status", "fabricmanager", "docker"), "ok"),
        },
        "reaches_slurm": True,
        "slurm_name": SOUND.node,
        "services": {"slurmd.service": "active"},
    }
)
"""A healthy node of a Slurm cluster."""
WITH_SLURM = EXPECTED.__class__(**{**vars(EXPECTED), "services": ("slurmd",)})
# The fields of a snapshot that a tool fills, without its answer.
READ_INTO = {
    "failed_units": {"failed_units": None},
    "units": {"services": None},
    "clock": {"clock_synchronized": None},
    "slurm_controller": {"reaches_slurm": None},
    "slurmd_status": {"slurm_name": None},
    "nvidia_smi_xml": {"gpus": ()},
}


@pytest.mark.parametrize(
    ("table", "record"),
    [(NODE_EVIDENCE, NodeSnapshot), (GPU_EVIDENCE, GpuSnapshot), (PORT_EVIDENCE, PortSnapshot)],
)
def test_each_field_has_one_row(table: Any, record: Any) -> None:
    assert sorted(row.name for row in table) == sorted(record.model_fields)


def _keys(source: str, name: str) -> set[str]:
    """Return the keys of a dictionary that a source text assigns to a name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            assert isinstance(node.value, ast.Dict)
            return {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
    raise AssertionError(f"{name} is missing: correct the place where the gatherer names its tools")


def test_each_tool_that_the_gatherer_asks_has_a_row(root: Path) -> None:
    folder = root / "plugins/module_utils"
    health = (folder / "rackproof_facts_health.py").read_text()
    asked = _keys(health, "DRIVER") | _keys(health, "units") | {"kernel_log", "statfs"}
    asked |= _keys((folder / "rackproof_tools.py").read_text(), "VERSION_TOOLS")
    assert {row.name for row in TOOL_EVIDENCE} == asked


def test_a_row_that_may_pass_has_a_reason_and_each_reading_has_its_fields() -> None:
    for row in (row for table in TABLES for row in table):
        assert not row.harmless or len(row.harmless) > 15, row.name
        assert row.read_from
        assert row.code
    named = {field for fields in GPU_READINGS.values() for field in fields}
    assert named <= set(GpuSnapshot.model_fields)


def verdicts(found: tuple[HealthFinding, ...]) -> set[Verdict]:
    return {one.verdict for one in found}


@pytest.mark.parametrize("tool", [row.name for row in TOOL_EVIDENCE if row.name != "statfs"])
def test_a_tool_that_hangs_is_never_milder_than_one_that_fails(tool: str) -> None:
    (row,) = [row for row in TOOL_EVIDENCE if row.name == tool]
    found = {}
    for status in ("absent", "", "failed", "empty", "hung"):
        seen = SLURM.model_copy(update={"tools": {**SLURM.tools, tool: status}, **READ_INTO.get(tool, {})})
        found[status] = check_node(seen, expected=WITH_SLURM)
        assert found[status] or row.harmless, (tool, status)
    order = [Verdict.PASS, Verdict.DEGRADED, Verdict.UNPROVEN, Verdict.FAIL]
    worst = {status: max([Verdict.PASS, *verdicts(some)], key=order.index) for status, some in found.items()}
    assert order.index(worst["hung"]) >= order.index(worst["failed"]) >= order.index(worst["absent"])
    assert "tool_hung" in {one.code for one in found["hung"]}
    if tool in DRIVER_TOOLS:
        assert worst["hung"] is Verdict.FAIL
    elif not row.harmless:
        assert worst["hung"] is Verdict.UNPROVEN


@pytest.mark.parametrize("status", ["failed", "hung"])
@pytest.mark.parametrize("path", ["/", "/var", "/scratch"])
def test_a_path_whose_file_system_does_not_answer_is_unproven(status: str, path: str) -> None:
    seen = SLURM.model_copy(update={"tools": {**SLURM.tools, f"statfs {path}": status}})
    assert verdicts(check_node(seen, expected=WITH_SLURM)) == {Verdict.UNPROVEN}


# Values that no quantity of the tests below can have, except that an offset may be -1.
NUMBERS = [float("nan"), float("inf"), float("-inf"), -1]


@pytest.mark.parametrize("bad", NUMBERS)
@pytest.mark.parametrize(
    "name",
    ["temperature_c", "memory_c", "power_limit_w", "power_default_w", "utilisation", "memory_used_bytes"],
)
def test_a_number_of_a_gpu_that_is_none_proves_nothing(name: str, bad: float) -> None:
    seen = SLURM.model_copy(update={"gpus": (GPU.model_copy(update={name: bad}),)})
    assert verdicts(check_node(seen, expected=WITH_SLURM)) & {Verdict.UNPROVEN, Verdict.FAIL}


@pytest.mark.parametrize(
    ("place", "bad"),
    [
        (place, bad)
        for place in ("epoch", "shm_bytes", "clock_offset_s", "disk", "seconds", "rate")
        for bad in NUMBERS
        # -1 is a valid offset: the clock is a second behind.
        if (place, bad) != ("clock_offset_s", -1)
    ],
)
def test_a_number_of_a_node_that_is_none_proves_nothing(place: str, bad: float) -> None:
    disk = {"/": {"total_bytes": 100.0, "free_bytes": bad, "read_only": 0.0}}
    update: dict[str, Any] = {place: bad}
    if place == "disk":
        update = {"disk": disk}
    elif place == "seconds":
        update = {"seconds": {"nvidia_smi_xml": bad}}
    elif place == "rate":
        update = {"ports": (PORT.model_copy(update={"rate_gbps": bad}),)}
    seen = SLURM.model_copy(update=update)
    assert verdicts(check_node(seen, expected=WITH_SLURM)) & {Verdict.UNPROVEN, Verdict.FAIL}


@pytest.mark.parametrize(
    "update",
    [{"fabric_health": ""}, {"fabric_state": ""}, {"serial": ""}, {"pcie_replays": None}, {"gsp": ""}],
)
def test_a_reading_of_last_night_that_is_gone_proves_nothing(update: dict[str, Any]) -> None:
    before = SLURM.model_copy(update={"gpus": (GPU.model_copy(update={"gsp": "580.1"}),)})
    tonight = before.model_copy(update={"gpus": (before.gpus[0].model_copy(update=update),)})
    assert not check_node(before, previous=before, expected=WITH_SLURM)
    found = check_node(tonight, previous=before, expected=WITH_SLURM)
    assert [(one.code, one.verdict) for one in found] == [("gpu_readings_missing", Verdict.UNPROVEN)]


def test_a_container_need_not_have_what_its_host_has() -> None:
    gone = {"failed_units": "absent", "units": "absent", "clock": "absent"}
    update = {
        "tools": {**SOUND.tools, **gone},
        "failed_units": None,
        "services": None,
        "clock_synchronized": None,
    }
    host = SOUND.model_copy(update=update)
    assert {one.code for one in check_node(host, expected=EXPECTED)} == {"system_unknown", "services_unknown"}
    assert check_node(host.model_copy(update={"container": True}), expected=EXPECTED) == ()


# The tests below show that nights and `rackproof parse` agree on known and unknown values of nvidia-smi.

GB300 = lzma.decompress(
    (Path(__file__).resolve().parents[2] / "data/real/nvidia-smi/qx-gb300.xml.xz").read_bytes()
).decode()


# Each row replaces a text of a healthy GB300's answer. `code` is the beginning of the finding's code, because
# nights and parse add different ends. A verdict of None stands for unproven.
@pytest.mark.parametrize(
    ("old", "new", "code", "verdict"),
    [
        ("<unrepairable_memory>No", "<unrepairable_memory>Yes", "memory_unrepairable", Verdict.FAIL),
        ("<unrepairable_memory>No", "<unrepairable_memory>Perhaps", "gpu_value_unknown", Verdict.UNPROVEN),
        (
            "<incorrect_configuration>None",
            "<incorrect_configuration>Chassis Serial",
            "gpu_value_unknown",
            None,
        ),
        ("<bandwidth>Full", "<bandwidth>Degraded", "gpu_value_unknown", None),
        ("<route_unhealthy>False", "<route_unhealthy>True", "gpu_value_unknown", None),
        ("<summary>Healthy", "<summary>Unhealthy", "fabric_unhealthy", Verdict.FAIL),
        ("<summary>Healthy", "<summary>Limited Capacity", "fabric_unhealthy", Verdict.FAIL),
        ("<status>Success", "<status>Incorrect Configuration", "fabric_failed", Verdict.FAIL),
        ("<gpu_recovery_action>None", "<gpu_recovery_action>Node Reboot", "recovery", Verdict.FAIL),
        ("<gpu_recovery_action>None", "<gpu_recovery_action>Consult", "recovery", Verdict.UNPROVEN),
        ("reason_sync_boost>Not Active", "reason_new_brake>Active", "gpu_value_unknown", None),
        ("reason_sync_boost>Not Active", "reason_sync_boost>Often", "gpu_value_unknown", None),
        ("<remapped_row_pending>No", "<remapped_row_pending>Soon", "gpu_value_unknown", None),
        ("<remapped_row_pending>No", "<remapped_row_pending>Yes", "remap_pending", Verdict.FAIL),
        ("<tpc_repair_pending>No", "<row_spare_pending>Yes", "gpu_value_unknown", None),
        ("<current_mig>Disabled", "<current_mig>Pending", "gpu_value_unknown", None),
        ("<current_ecc>Enabled", "<current_ecc>Disabled", "ecc_off", Verdict.FAIL),
        ("<pending_ecc>Enabled", "<pending_ecc>Disabled", "ecc_off", Verdict.FAIL),
        ("<total>284208 MiB", "<total>142104 MiB", "gpu_memory", Verdict.FAIL),
        ("<current_link_width>16x", "<current_link_width>1x", "pcie_width", Verdict.FAIL),
        ("<gpu_temp>38 C", "<gpu_temp>104 C", "too_hot", Verdict.FAIL),
        ("<memory_temp>38 C", "<memory_temp>97 C", "memory_temperature", Verdict.DEGRADED),
        ("<memory_temp>38 C", "<memory_temp>111 C", "memory_temperature", Verdict.FAIL),
    ],
)
def test_nights_and_parse_read_a_value_in_the_same_way(
    old: str, new: str, code: str, verdict: Verdict | None
) -> None:
    assert old in GB300
    text = GB300.replace(old, new, 1)
    # If the start tag has another name now, its end tag gets the name, too.
    before, after = old.partition(">")[0].strip("<"), new.partition(">")[0].strip("<")
    if before != after:
        at = text.index(new)
        text = text[:at] + text[at:].replace(f"{before}>", f"{after}>", 1)
    answer = {"facts": {"tools": {"nvidia_smi_xml": {"status": "ok", "stdout": text, "seconds": 1.0}}}}
    found = check_node(build_snapshot("n1", answer), expected=Expectation(gpus=4, fabric=True))
    night = {one.verdict for one in found if one.code.startswith(code)}
    parsed = logs.parse(io.BytesIO(text.encode()), format="nvidia_smi_xml", name="smi.xml")
    parse = {one.verdict for one in parsed.findings if one.code.startswith(code)}
    assert night == parse == {verdict or Verdict.UNPROVEN}
    assert parsed.verdict is (verdict or Verdict.UNPROVEN)


def readings_missing(name: str, driver: str, **changed: Any) -> set[str]:
    """Return the readings that a night reports as missing, for GPUs of a product and a driver.

    ``changed`` has the readings, and the values that the GPUs get for them.
    """
    answer = {"facts": {"tools": {"nvidia_smi_xml": {"status": "ok", "stdout": GB300, "seconds": 1.0}}}}
    made = build_snapshot("n1", answer)
    gpus = tuple(gpu.model_copy(update={"name": name, **changed}) for gpu in made.gpus)
    made = made.model_copy(update={"gpus": gpus, "versions": made.versions | {"driver": driver}})
    found = check_node(made, expected=Expectation(gpus=4))
    return {field for field in changed for one in found if one.part == "gpu" and f"{field}" in one.evidence}


# Whether a missing reading of pending repairs counts. It depends on the model and the driver.
@pytest.mark.parametrize(
    ("name", "driver", "lacks"),
    [
        ("NVIDIA H100 80GB HBM3", "570.148.08", False),
        ("NVIDIA H200", "550.54.15", False),
        ("NVIDIA B200", "575.51", True),
        ("NVIDIA H100 80GB HBM3", "580.105.08", True),
        ("NVIDIA GB300", "580.95.05", True),
        ("NVIDIA GB200", "580.95.05", True),
        ("NVIDIA GB200", "570.148.08", False),
        ("NVIDIA GH200 480GB", "580.95.05", False),
        # If the version of the driver is unknown, the reading is required.
        ("NVIDIA H200", "", True),
        ("NVIDIA H200", "?", True),
    ],
)
def test_repairs_are_wanted_of_drivers_that_report_them(name: str, driver: str, lacks: bool) -> None:
    assert readings_missing(name, driver, repairs_pending=None) == ({"repairs_pending"} if lacks else set())


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("NVIDIA GB300", True),
        ("NVIDIA GB200", True),
        ("NVIDIA B300 SXM6 AC", True),
        ("NVIDIA H200 NVL", True),
        ("NVIDIA A100-SXM4-40GB", True),
        # There is no sample of these models with the readings. Their names contain those of other models.
        ("NVIDIA GH200 480GB", False),
        ("NVIDIA GH200 144G HBM3e", False),
        ("NVIDIA A1000", False),
        ("NVIDIA RTX 2000 Ada Generation", False),
    ],
)
def test_readings_are_wanted_of_models_that_report_them(name: str, lacks: bool) -> None:
    changed = {"mig": None, "mig_next": None, "memory_c": None}
    assert readings_missing(name, "580.95.05", **changed) == (set(changed) if lacks else set())


@pytest.mark.parametrize(
    ("name", "lacks"), [("Tesla V100-SXM2-16GB", False), ("Tesla T4", False), ("NVIDIA A100-SXM4-40GB", True)]
)
def test_row_remapping_is_not_wanted_of_models_without_it(name: str, lacks: bool) -> None:
    found = readings_missing(name, "580.95.05", remap_pending=None, remap_failure=None)
    assert found == ({"remap_pending", "remap_failure"} if lacks else set())


def test_a_healthy_gpu_has_no_value_that_is_not_known() -> None:
    answer = {"facts": {"tools": {"nvidia_smi_xml": {"status": "ok", "stdout": GB300}}}}
    assert all(gpu.unknown_values == () for gpu in build_snapshot("n1", answer).gpus)
    assert logs.parse(io.BytesIO(GB300.encode()), name="smi.xml").verdict is Verdict.PASS
