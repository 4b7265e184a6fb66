"""Test how raw facts of a node become its record, and which findings they give (nodes/facts.py).

The record of a run names the node's hardware, software and GPUs. It comes from the output of the node's
tools, which may be damaged or missing. Then the record has a gap, and a run on GPUs that cannot be read never
passes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Verdict
from rackproof.nodes.facts import findings_from_facts, gpus_from_facts, node_from_facts


def ok(stdout: str, **more: Any) -> dict[str, Any]:
    """Return the answer of a tool that ended well."""
    return {"status": "ok", "rc": 0, "stdout": stdout, "stderr": "", "truncated": False, **more}


RAW: dict[str, Any] = {
    "hostname": "n1.example",
    "addresses": ["192.0.2.7", "2001:db8::7"],
    "kernel": "6.8.0-45-generic",
    "machine": "x86_64",
    "cpu_count": 224,
    "files": {
        "os_release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\n',
        "meminfo": "MemTotal:       2113498104 kB\nMemFree:  1 kB\n",
        "cpuinfo": "processor\t: 0\nmodel name\t: from cpuinfo\n",
    },
    "dmi": {"product_serial": "S42", "chassis_serial": "C7", "sys_vendor": "Acme", "product_name": "GX-8"},
    "tools": {
        "lscpu": ok("Architecture: x86_64\nModel name:   Xeon(R) 8480C\nModel name: BIOS\n"),
        "nvidia_smi_xml": {"status": "absent"},
        "nvcc": ok("nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.8, V12.8.93\n"),
        "ofed_info": ok("MLNX_OFED_LINUX-24.10-1.1.4.0:\n"),
        "mpirun": ok("mpirun (Open MPI) 4.1.7a1\n\nReport bugs to …\n"),
        "slurm": ok("slurm 24.05.4\n"),
        "docker": ok("Docker version 28.2.2, build e6534b4\n"),
        "podman": {"status": "absent"},
    },
    "libraries": {
        "libnccl.so.2": "/usr/lib/x86_64-linux-gnu/libnccl.so.2.26.2",
        "libcudnn.so.9": "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.8.0",
        "libmpi.so.40": "/usr/lib/libmpi.so.40.30.4",
    },
    "infiniband": {"mlx5_0": {"fw_ver": "28.43.2026", "hca_type": "MT4129", "ports": {}}},
    "pythons": {
        "torch": ok(
            "",
            said={
                "version": "3.11.7",
                "packages": {"torch": "2.7.0", "numpy": "2.2.0", "apex": None},
                "torch": {"cuda": "12.8", "cudnn": 90701, "nccl": "2.26.2", "devices": 8, "hip": None},
            },
        ),
        "gone": {"status": "absent"},
    },
}


@pytest.mark.parametrize(
    ("files", "tuning"),
    [
        ({}, {}),
        (
            {
                "tuning": '{"profile": "mlperf-0.6", "hugepages": 1024}',
                "governor": "performance\n",
                "transparent_hugepages": "[always] madvise never",
                "meminfo": "HugePages_Total:    1024\n",
                "command_line": "BOOT_IMAGE=/vmlinuz quiet mitigations=off xspectre_v2=on spectre_v2=off",
            },
            {
                "profile": "mlperf-0.6",
                "governor": "performance",
                "transparent_hugepages": "always",
                "hugepages": "1024",
                "mitigations": "off",
                "spectre_v2": "off",
            },
        ),
        # The profile was requested, and the kernel has something else. The record has both.
        (
            {"tuning": '{"profile": "mlperf-0.6"}', "governor": "powersave"},
            {"profile": "mlperf-0.6", "governor": "powersave"},
        ),
        ({"tuning": "[" * 100_000, "meminfo": "HugePages_Total:       0\n"}, {}),
        ({"tuning": '["mlperf-0.6"]'}, {}),
    ],
)
def test_the_tuning_of_a_host_is_part_of_its_record(files: dict[str, str], tuning: dict[str, str]) -> None:
    said = node_from_facts("n1", {"files": files}).software
    assert {key: value for key, value in said.items() if key.startswith("tuning.")} == {
        f"tuning.{key}": value for key, value in tuning.items()
    }


def change(path: str, value: Any) -> dict[str, Any]:
    """Return RAW with one entry, named by a dotted path, replaced."""
    *parents, last = path.split(".")
    copy = dict(RAW)
    inner = copy
    for key in parents:
        inner[key] = dict(inner[key])
        inner = inner[key]
    inner[last] = value
    return copy


def test_complete_facts_give_a_complete_record() -> None:
    node = node_from_facts("n1", RAW, sku="h200")
    assert (node.name, node.sku, node.cpu, node.cpu_count) == ("n1", "h200", "Xeon(R) 8480C", 224)
    assert (node.serial, node.chassis_serial, node.product) == ("S42", "C7", "Acme GX-8")
    assert node.memory_bytes == 2113498104 * 1024
    assert node.addresses == ("192.0.2.7", "2001:db8::7")
    assert node.software == {
        "os": "Ubuntu 24.04.1 LTS",
        "kernel": "6.8.0-45-generic",
        "machine": "x86_64",
        "cuda": "12.8.93",
        "cudnn": "9.8.0",
        "nccl": "2.26.2",
        "ofed": "MLNX_OFED_LINUX-24.10-1.1.4.0",
        "mpi": "mpirun (Open MPI) 4.1.7a1",
        "slurm": "24.05.4",
        "docker": "28.2.2",
        "python.torch": "3.11.7",
        "torch.torch": "2.7.0",
        "torch.numpy": "2.2.0",
        "torch.cuda": "12.8",
        "torch.cudnn": "90701",
        "torch.nccl": "2.26.2",
    }
    assert node.firmware == {"infiniband.mlx5_0": "28.43.2026"}
    assert findings_from_facts("n1", RAW) == ()


@pytest.mark.parametrize(
    ("capture", "count", "name", "driver", "cuda", "memory_gib"),
    [
        ("nvidia-smi/qx-a100.xml", 1, "NVIDIA A100-SXM4-40GB", "570.148.08", "12.8", 40),
        ("nvidia-smi/qx-h100.xml", 8, "NVIDIA H100 80GB HBM3", "580.105.08", "13.0", 80),
        ("nvidia-smi/qx-b200.xml", 8, "NVIDIA B200", "580.105.08", "13.0", 179),
        ("nvidia-smi/qx-gb200.xml", 4, "NVIDIA GB200", "580.173.02", "13.0", 185),
        ("nvidia-smi/qx-gb300.xml", 4, "NVIDIA GB300", "580.173.02", "13.0", 278),
        ("h200-x4/nvidia-smi-q.xml", 4, "NVIDIA H200", "580.159.04", "13.0", 140),
    ],
)
def test_gpus_of_real_captures_are_read(
    real_logs: Path, capture: str, count: int, name: str, driver: str, cuda: str, memory_gib: int
) -> None:
    raw = change("tools.nvidia_smi_xml", ok((real_logs / capture).read_text()))
    node = node_from_facts("n1", raw)
    assert [gpu.index for gpu in node.gpus] == list(range(count))
    assert {gpu.name for gpu in node.gpus} == {name}
    assert all(gpu.uuid.startswith("GPU-") and gpu.serial and gpu.bus_id and gpu.vbios for gpu in node.gpus)
    assert {round(gpu.memory_bytes / 2**30) for gpu in node.gpus} == {memory_gib}
    assert (node.software["driver"], node.software["cuda_driver"]) == (driver, cuda)
    assert node.firmware["vbios"] == node.gpus[0].vbios
    assert findings_from_facts("n1", raw) == ()


@pytest.mark.parametrize(
    ("dmi", "serial", "chassis"),
    [
        ({"product_serial": "S1", "board_serial": "B1"}, "S1", ""),
        ({"product_serial": "", "board_serial": "B1"}, "B1", ""),
        ({"product_serial": "To Be Filled By O.E.M.", "board_serial": "B1"}, "B1", ""),
        ({"product_serial": "Default string", "chassis_serial": "Default string"}, "", ""),
        ({"product_serial": "System Serial Number", "chassis_serial": "Chassis Serial Number"}, "", ""),
        ({"product_serial": "0123456789", "chassis_serial": "0000000"}, "", ""),
        ({"product_serial": "Not Specified", "chassis_serial": "N/A"}, "", ""),
        ({"product_serial": "None", "chassis_serial": "\x1b[31mC9\x1b[0m"}, "", "C9"),
        ({"product_serial": ["S1"], "chassis_serial": 5}, "", ""),
    ],
)
def test_placeholders_of_board_makers_are_no_serials(dmi: dict[str, Any], serial: str, chassis: str) -> None:
    node = node_from_facts("n1", change("dmi", dmi))
    assert (node.serial, node.chassis_serial) == (serial, chassis)
    if not serial and not chassis:
        assert node.hardware_key == "host:n1"


@pytest.mark.parametrize(
    ("answer", "code", "verdict"),
    [
        ({"status": "hung", "rc": None, "stdout": "", "stderr": ""}, "tool_hung", Verdict.FAIL),
        (
            {
                "status": "no_driver",
                "rc": 9,
                "stdout": "NVIDIA-SMI has failed because it couldn't",
                "stderr": "",
            },
            "no_driver",
            Verdict.UNPROVEN,
        ),
        (
            {"status": "failed", "rc": 255, "stdout": "", "stderr": "\x1b[2Jboom"},
            "tool_failed",
            Verdict.UNPROVEN,
        ),
        (ok("<nvidia_smi_log></nvidia_smi_log>"), "no_gpus", Verdict.UNPROVEN),
        (ok("<nvidia_smi_log><gpu id='0'>"), "no_gpus", Verdict.UNPROVEN),
        (ok(""), "no_gpus", Verdict.UNPROVEN),
        (
            ok('<!DOCTYPE a [<!ENTITY b "bbbb">]><nvidia_smi_log>&b;</nvidia_smi_log>'),
            "no_gpus",
            Verdict.UNPROVEN,
        ),
    ],
)
def test_gpus_that_cannot_be_read_are_never_a_pass(
    answer: dict[str, Any], code: str, verdict: Verdict
) -> None:
    raw = change("tools.nvidia_smi_xml", answer)
    assert node_from_facts("n1", raw).gpus == ()
    (finding,) = findings_from_facts("n1", raw)
    assert (finding.code, finding.verdict) == (code, verdict)
    assert "n1" in finding.message
    assert "\x1b" not in finding.excerpt


@pytest.mark.parametrize(
    ("line", "code", "verdict"),
    [
        ("WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n", "inforom_corrupted", Verdict.FAIL),
        ("WARNING: infoROM is corrupted\n", "inforom_corrupted", Verdict.FAIL),
        ("a line that nobody knows\n", "tool_warning", Verdict.UNPROVEN),
    ],
)
@pytest.mark.parametrize("above", [True, False])
def test_a_line_beside_the_gpus_is_a_finding(
    real_logs: Path, line: str, code: str, verdict: Verdict, above: bool
) -> None:
    whole = (real_logs / "nvidia-smi/qx-h100.xml").read_text()
    raw = change("tools.nvidia_smi_xml", ok(line + whole if above else whole + line))
    assert len(gpus_from_facts(raw)) == 8
    assert [(one.code, one.verdict) for one in findings_from_facts("n1", raw)] == [(code, verdict)]


@pytest.mark.parametrize("stdout", ["{line}{whole}", "{whole}{line}", "{whole}"])
@pytest.mark.parametrize("stderr", ["", "WARNING: infoROM is corrupted at gpu 0000:18:00.0\n"])
@pytest.mark.parametrize("rc", [14, 0])
def test_a_warning_of_an_inforom_takes_no_gpu_away(
    real_logs: Path, stdout: str, stderr: str, rc: int
) -> None:
    """nvidia-smi ends with 14, and its answer is complete."""
    whole = (real_logs / "nvidia-smi/qx-h100.xml").read_text()
    line = "WARNING: infoROM is corrupted at gpu 0000:18:00.0\n"
    text = stdout.format(line=line, whole=whole)
    answer = ok(text, status="failed" if rc else "ok", rc=rc) | {"stderr": stderr}
    raw = change("tools.nvidia_smi_xml", answer)
    assert len(gpus_from_facts(raw)) == 8
    node = node_from_facts("n1", raw)
    assert len(node.gpus) == 8
    assert node.software["driver"]
    assert node.firmware["vbios"]
    found = [(one.code, one.verdict) for one in findings_from_facts("n1", raw, expected_gpus=8)]
    is_warned = rc == 14 or stderr or line in text
    assert found == ([("inforom_corrupted", Verdict.FAIL)] if is_warned else [])
    repair = raw["tools"]["nvidia_smi_xml"] | {
        "stdout": text.replace("_row_failure>No", "_row_failure>Yes", 1)
    }
    codes = [one.code for one in findings_from_facts("n1", change("tools.nvidia_smi_xml", repair))]
    assert "remap_failure" in codes


@pytest.mark.parametrize(("rc", "cut"), [(14, True), (15, False), (255, False), (None, False)])
def test_another_exit_status_or_half_an_answer_gives_no_gpus(
    real_logs: Path, rc: int | None, cut: bool
) -> None:
    whole = (real_logs / "nvidia-smi/qx-h100.xml").read_text()
    answer = ok(whole[: len(whole) // 2] if cut else whole) | {"status": "failed", "rc": rc}
    raw = change("tools.nvidia_smi_xml", answer)
    assert gpus_from_facts(raw) == ()
    assert "tool_failed" in [one.code for one in findings_from_facts("n1", raw)]


@pytest.mark.parametrize(
    ("old", "new", "code", "verdict"),
    [
        ("<remapped_row_failure>No", "<remapped_row_failure>Yes", "remap_failure", Verdict.FAIL),
        ("<remapped_row_pending>No", "<remapped_row_pending>Yes", "remap_pending", Verdict.FAIL),
        ("<pending_retirement>N/A", "<pending_retirement>Yes", "remap_pending", Verdict.FAIL),
        ("<tpc_repair_pending>No", "<tpc_repair_pending>Yes", "repair_pending", Verdict.FAIL),
        ("_recovery_action>None", "_recovery_action>Node Reboot Required", "recovery_action", Verdict.FAIL),
        ("_recovery_action>None", "_recovery_action>new in a driver", "recovery_action", Verdict.UNPROVEN),
        ("<sram_uncorrectable_parity>0", "<sram_uncorrectable_parity>2", "ecc_uncorrected", Verdict.FAIL),
    ],
)
def test_a_fault_that_the_driver_reports_counts_against_a_run(
    real_logs: Path, old: str, new: str, code: str, verdict: Verdict
) -> None:
    whole = (real_logs / "nvidia-smi/qx-h100.xml").read_text()
    assert old in whole
    raw = change("tools.nvidia_smi_xml", ok(whole.replace(old, new, 1)))
    found = [(one.code, one.verdict) for one in findings_from_facts("n1", raw, expected_gpus=8)]
    assert found == [(code, verdict)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Readings of GPUs that are idle, capped, configured differently, or have a repaired row.
        ("<current_link_gen>5", "<current_link_gen>1"),
        ("reason_sw_power_cap>Not Active", "reason_sw_power_cap>Active"),
        ("<performance_state>P0", "<performance_state>P8"),
        ("<persistence_mode>Enabled", "<persistence_mode>Disabled"),
        ("<remapped_row_unc>0", "<remapped_row_unc>3"),
        ("<gpu_recovery_action>None", "<gpu_recovery_action>N/A"),
        ("<compute_mode>Default", "<compute_mode>Exclusive_Process"),
        ("<current_power_limit>700.00", "<current_power_limit>500.00"),
    ],
)
def test_readings_of_healthy_gpus_do_not_count_against_a_run(real_logs: Path, old: str, new: str) -> None:
    whole = (real_logs / "nvidia-smi/qx-h100.xml").read_text()
    assert old in whole
    raw = change("tools.nvidia_smi_xml", ok(whole.replace(old, new)))
    assert findings_from_facts("n1", raw, expected_gpus=8) == ()


def test_a_cut_off_answer_gives_no_gpus(real_logs: Path) -> None:
    whole = (real_logs / "nvidia-smi/qx-h100.xml").read_text()
    raw = change("tools.nvidia_smi_xml", ok(whole, truncated=True))
    assert gpus_from_facts(raw) == ()
    assert [finding.verdict for finding in findings_from_facts("n1", raw)] == [Verdict.UNPROVEN]


def test_another_tool_that_hangs_is_a_remark() -> None:
    raw = change("tools.docker", {"status": "hung", "rc": None, "stdout": "", "stderr": ""})
    (finding,) = findings_from_facts("n1", raw)
    assert (finding.code, finding.verdict) == ("tool_hung", None)
    assert "docker" not in node_from_facts("n1", raw).software


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tools", None),
        ("tools", {"lscpu": "text", "nvcc": None, "nvidia_smi_xml": ["x"]}),
        ("files", ["os"]),
        ("files.meminfo", "MemTotal: lots kB"),
        ("files.os_release", 'PRETTY_NAME="unclosed'),
        ("addresses", "192.0.2.1"),
        ("addresses", [None, 7, "\x1b]0;title\x07x"]),
        ("cpu_count", "many"),
        ("cpu_count", -3),
        ("pythons", {"torch": None}),
        ("pythons.torch", {"status": "ok", "said": {"packages": [], "torch": "no"}}),
        ("libraries", {"libnccl.so.2": None}),
        ("infiniband", {"mlx5_0": "down"}),
        ("kernel", None),
    ],
)
def test_damaged_facts_leave_gaps_and_raise_no_error(path: str, value: Any) -> None:
    raw = change(path, value)
    node = node_from_facts("n1", raw)
    findings_from_facts("n1", raw)
    assert node.name == "n1"
    assert "\x1b" not in node.model_dump_json()
    assert "\\u001b" not in node.model_dump_json()


def test_no_facts_at_all_are_a_finding() -> None:
    assert node_from_facts("n1", {}).software == {}
    assert [finding.verdict for finding in findings_from_facts("n1", {})] == [Verdict.UNPROVEN]


@pytest.mark.parametrize(
    ("expected", "verdict"), [(0, None), (4, None), (5, Verdict.FAIL), (8, Verdict.FAIL)]
)
def test_missing_gpus_are_a_failure_if_their_number_is_known(
    real_logs: Path, expected: int, verdict: Verdict | None
) -> None:
    xml = (real_logs / "h200-x4/nvidia-smi-q.xml").read_text()
    raw = {**RAW, "tools": {**RAW["tools"], "nvidia_smi_xml": ok(xml)}}
    found = [
        one for one in findings_from_facts("n1", raw, expected_gpus=expected) if one.code == "gpus_missing"
    ]
    assert [one.verdict for one in found] == ([verdict] if verdict else [])
    if found:
        assert f"has 4 of {expected} GPUs" in found[0].message


def test_a_node_without_nvidia_smi_has_none_of_the_gpus_it_should_have() -> None:
    (found,) = findings_from_facts("n1", RAW, expected_gpus=8)
    assert (found.verdict, "has 0 of 8 GPUs" in found.message) == (Verdict.FAIL, True)


@pytest.mark.parametrize(
    ("answer", "fails"),
    [
        ({"status": "absent"}, True),
        # Because of one lost GPU, nvidia-smi may list none. The code gpu_lost then fails the node.
        ({"status": "failed", "rc": 15, "stdout": "GPU is lost"}, False),
        ({"status": "failed", "rc": 1, "stdout": ""}, True),
        ({"status": "no_driver", "rc": 9, "stdout": ""}, True),
        (ok("No devices were found"), True),
        (ok("<nvidia_smi_log></nvidia_smi_log>"), True),
        # A truncated answer may have listed all GPUs, and a hung tool lists none.
        (ok("<nvidia_smi_log>") | {"truncated": True}, False),
        ({"status": "ok", "rc": 0, "stdout": "", "stderr": "", "truncated": True}, False),
        ({"status": "hung", "rc": None, "stdout": ""}, False),
    ],
)
def test_a_truncated_or_missing_answer_is_not_taken_for_missing_gpus(
    answer: dict[str, Any], fails: bool
) -> None:
    found = findings_from_facts("n1", change("tools.nvidia_smi_xml", answer), expected_gpus=8)
    assert ("gpus_missing" in {one.code for one in found}) is fails
    assert found or fails
    is_lost = answer["stdout"] == "GPU is lost" if "stdout" in answer else False
    assert ("gpu_lost" in {one.code for one in found if one.verdict is Verdict.FAIL}) is is_lost
