"""Test that the fakes of tools show each fault of the fake hardware, as real tools would show a real fault.

`rack.py fault` switches such a fault on at a node of the test rack, so that tests of nights and benchmarks
have a fault to find. When it is switched off, it disappears from all tools except the kernel's log.
"""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rackproof.core.records import Verdict
from rackproof.logs import parse
from rackproof.nodes.facts import findings_from_facts

# Every case starts processes. Together, they take longer than `make check` may.
pytestmark = pytest.mark.slow

CSV = "nvidia-smi --format=csv,noheader --query-gpu="
# Each row: the fault, the tool, and a pattern that matches the tool's output only with the fault.
SHOWN = [
    ("lost-gpu --gpu 1", "dmesg", r"NVRM: Xid \(PCI:0009:06:00\): 79, .*GPU has fallen off the bus\."),
    ("missing-gpu --gpu 1", "nvidia-smi -q", r"Attached GPUs +: 3\n"),
    ("missing-gpu --gpu 1", "nvidia-smi -q -x", r"<attached_gpus>3</attached_gpus>"),
    ("missing-gpu --gpu 1", f"{CSV}count", r"\A3\n3\n3\n\Z"),
    ("missing-gpu --gpu 1", "dcgmi discovery -l", r"\A3 GPUs found\."),
    ("missing-gpu --gpu 1", "dmesg", r"NVRM: Xid \(PCI:0009:06:00\): 79, .*GPU has fallen off the bus\."),
    ("missing-gpu --gpu 1", "nvidia-smi topo -m", r"\A\t\x1b\[4mGPU0\tGPU1\tGPU2\tNIC0"),
    ("ecc-uncorrectable --gpu 2", "nvidia-smi", r"00000018:06:00\.0 Off \| +1 \|"),
    ("ecc-uncorrectable --gpu 2", f"{CSV}ecc.errors.uncorrected.volatile.total", r"\A0\n0\n1\n0\n\Z"),
    ("ecc-uncorrectable --gpu 2", "nvidia-smi -q -d ECC -i 2", r"SRAM Uncorrectable SEC-DED +: 1\n"),
    ("ecc-uncorrectable --gpu 2", "nvidia-smi -q -x", r"<sram_uncorrectable_secded>1<"),
    ("ecc-uncorrectable --gpu 2", f"{CSV}gpu_recovery_action", r"\ANone\nNone\nReset\nNone\n\Z"),
    ("ecc-uncorrectable --gpu 2", "dmesg", r"Xid \(PCI:0018:06:00\): 95, .*Uncontained"),
    (
        "ecc-uncorrectable --gpu 2",
        "dcgmi health -c",
        r"\| -> 2 +\| Failure .*\n.*\n\|       -> Memory system +\| Failure",
    ),
    ("ecc-uncorrectable --gpu 2", "dcgmi diag -r 1", r"GPU2: Fail"),
    ("row-remap-pending --gpu 3", f"{CSV}remapped_rows.pending", r"\ANo\nNo\nNo\nYes\n\Z"),
    ("row-remap-pending --gpu 3", "nvidia-smi -q -d ROW_REMAPPER -i 3", r"Pending +: Yes\n"),
    (
        "row-remap-pending --gpu 3",
        "nvidia-smi --query-remapped-rows=gpu_bus_id,remapped_rows.dbe,remapped_rows.pending --format=csv",
        r"\n00000019:06:00\.0, 1, Yes\n",
    ),
    ("row-remap-pending --gpu 3", "dmesg", r"Xid \(PCI:0019:06:00\): 63, .*Row Remapper"),
    ("row-remap-pending --gpu 3", "dcgmi health -c", r"\| Overall Health +\| Warning"),
    ("row-remap-pending --gpu 3", "dcgmi diag -r 1", r"row remappings"),
    (
        "xid --gpu 0 --number 119",
        "dmesg",
        r"NVRM: Xid \(PCI:0008:06:00\): 119, pid=\d+, name=nvidia-smi, Timeout",
    ),
    ("xid --gpu 0", "dmesg", r"NVRM: Xid \(PCI:0008:06:00\): 79, "),
    (
        "xid --gpu 0 --number 31",
        "dmesg -T --level=warn",
        r"\[[A-Z][a-z]{2} .*\] NVRM: Xid .*: 31, .*MMU Fault",
    ),
    ("xid --gpu 0", "dcgmi health -c", r"XID 79"),
    ("link-trained-down --gpu 1", f"{CSV}pcie.link.width.current", r"\A16\n8\n16\n16\n\Z"),
    ("link-trained-down --gpu 1", f"{CSV}pcie.link.gen.current,pcie.link.gen.max", r"\A6, 6\n4, 6\n"),
    ("link-trained-down --gpu 1", "nvidia-smi -q -i 1", r"Link Width\n +Max +: 16x\n +Current +: 8x\n"),
    (
        "link-trained-down --gpu 1",
        "lspci -vv -s 0009:06:00.0",
        r"LnkCap:\tPort #0, Speed 64GT/s, Width x16.*\n.*\n.*\n.*\n\t\tLnkSta:\tSpeed 16GT/s \(downgraded\), "
        r"Width x8 \(downgraded\)\n",
    ),
    ("nvlink-down --gpu 2", "nvidia-smi nvlink --status -i 2", r"\t Link 3: <inactive>\n"),
    ("nvlink-down --gpu 2", "nvidia-smi nvlink -e -i 2", r"Link 3: CRC Errors: [1-9]"),
    ("nvlink-down --gpu 2", "nvidia-smi topo -m", r"\nGPU2\tNV17\tNV17\t X \tNV17\t"),
    ("nvlink-down --gpu 2", f"{CSV}fabric.health.summary", r"\AHealthy\nHealthy\nUnhealthy\n"),
    ("nvlink-down --gpu 2", "dcgmi nvlink -s", r"gpuId 2:\n        U U U D U"),
    ("nvlink-down --gpu 2", "dmesg", r": 74, .*NVLink: fatal error detected on link 3\("),
    (
        "hca-port-down --hca 2",
        "ibstat",
        r"CA 'mlx5_2'\n(\t.*\n)+?\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n",
    ),
    ("hca-port-down --hca 2", "ibstatus mlx5_2", r"\tstate:\t\t 1: DOWN\n\tphys state:\t 2: Polling\n"),
    ("hca-port-down --hca 2", "ibv_devinfo -d mlx5_2", r"\t\t\tstate:\t\t\tPORT_DOWN \(1\)\n"),
    ("hca-port-down --hca 2", "ibdev2netdev", r"\nmlx5_2 port 1 ==> ibP16p3s0 \(Down\)\n"),
    ("hca-port-down --hca 2", "dmesg", r"mlx5_core 0010:03:00\.0: Port module event: .*Cable unplugged"),
    (
        "throttling --gpu 0",
        f"{CSV}clocks_event_reasons.active",
        r"\A0x0000000000000068\n0x0000000000000001\n",
    ),
    ("throttling --gpu 0", f"{CSV}clocks_throttle_reasons.hw_thermal_slowdown", r"\AActive\nNot Active\n"),
    ("throttling --gpu 0", "nvidia-smi -q -d PERFORMANCE -i 0", r"\n {12}HW Thermal Slowdown +: Active\n"),
    ("throttling --gpu 0", f"{CSV}temperature.gpu,clocks.sm", r"\A89, 510 MHz\n"),
    ("throttling --gpu 0", "nvidia-smi -i 0", r"89C "),
    ("throttling --gpu 0", "dcgmi health -c", r"Thermal system +\| Warning"),
    ("version-mismatch", "nvidia-smi", r"Failed to initialize NVML: Driver/library version mismatch\n"),
    ("version-mismatch", "nvidia-smi topo -m", r"NVML library version: 580\.95\n"),
    ("version-mismatch", "dcgmi discovery -l", r"\A0 GPUs found\."),
    ("no-nvlink-domain", "nvidia-smi -q", r"Status +: Insufficient Resources\n +CliqueId +: 0\n"),
    ("version-mismatch --component fabricmanager", "nv-fabricmanager --version", r": 580\.95\.04\n"),
]


@pytest.mark.parametrize(("fault", "tool", "said"), SHOWN, ids=[f"{one}|{tool}" for one, tool, _ in SHOWN])
def test_a_fault_is_seen_in_the_tool_that_would_show_it(
    fault: str, tool: str, said: str, node: Callable
) -> None:
    node.ok("dcgmi health -s a")
    assert not re.search(said, node(tool).both), "seen without the fault"
    node.ok(f"hardware --fault {fault}")
    assert re.search(said, node(tool).both), node(tool)
    node.ok(f"hardware --fault {fault.split()[0]} --off")
    if tool.split()[0] != "dmesg":  # The kernel's log keeps its lines.
        assert not re.search(said, node(tool).both), "seen after the fault"


def test_the_table_above_has_every_fault(node: Callable) -> None:
    listed = [line.split()[1] for line in node.ok("hardware --faults").splitlines()]
    assert set(listed) == {fault.split()[0] for fault, _tool, _said in SHOWN} | {"hung-nvidia-smi"}


@pytest.mark.parametrize(
    ("fault", "kernel_file", "text"),
    [
        ("link-trained-down --gpu 1", "sys/bus/pci/devices/0009:06:00.0/current_link_width", "8"),
        ("hca-port-down --hca 1", "sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN"),
        ("hca-port-down --hca 1", "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
    ],
)
def test_a_fault_is_seen_in_the_kernels_files(
    fault: str, kernel_file: str, text: str, node: Callable, kernel_files: bool
) -> None:
    node.ok(f"hardware --fault {fault}")
    assert (node.root / kernel_file).read_text() == f"{text}\n"


# Each case: the fault, the tool, the format in which Rackproof reads its output, the finding and its verdict.
@pytest.mark.parametrize(
    ("fault", "tool", "format_name", "code", "verdict"),
    [
        ("ecc-uncorrectable --gpu 1", "nvidia-smi -q -x", "nvidia_smi_xml", "ecc_uncorrected", Verdict.FAIL),
        (
            "row-remap-pending --gpu 1",
            "nvidia-smi -q -x",
            "nvidia_smi_xml",
            "remap_pending",
            Verdict.FAIL,
        ),
        (
            "ecc-uncorrectable --gpu 1",
            "nvidia-smi --query-gpu=uuid,ecc.errors.uncorrected.volatile.total --format=csv",
            "nvidia_smi_csv",
            "ecc_uncorrected",
            Verdict.FAIL,
        ),
        ("nvlink-down --gpu 1", "nvidia-smi nvlink --status", "nvlink_status", "nvlink_down", Verdict.FAIL),
        ("nvlink-down --gpu 1", "nvidia-smi topo -m", "nvidia_smi_topo", "topology_uneven", Verdict.DEGRADED),
    ],
)
def test_the_projects_own_readers_see_the_fault(
    fault: str, tool: str, format_name: str, code: str, verdict: Verdict, node: Callable
) -> None:
    def found() -> dict[str, Verdict]:
        parsed = parse(io.BytesIO(node.ok(tool).encode()), format=format_name, name="fake")
        return {one.code: one.verdict for one in parsed.findings}

    assert found() == {}
    node.ok(f"hardware --fault {fault}")
    assert found().get(code) == verdict, found()


def test_the_projects_own_readers_measure_a_link_that_trained_down(node: Callable) -> None:
    node.ok("hardware --fault link-trained-down --gpu 1")
    parsed = parse(io.BytesIO(node.ok("nvidia-smi -q -x").encode()), format="nvidia_smi_xml", name="fake")
    widths = [one.value for one in parsed.measurements if one.name == "pcie_link_width"]
    assert widths == [16.0, 8.0, 16.0, 16.0]


def test_a_missing_gpu_is_a_finding_of_the_node(node: Callable) -> None:
    node.ok("hardware --fault missing-gpu --gpu 3")
    xml = {"status": "ok", "rc": 0, "stdout": node.ok("nvidia-smi -q -x"), "stderr": "", "truncated": False}
    (finding,) = findings_from_facts("n1", {"tools": {"nvidia_smi_xml": xml}}, expected_gpus=4)
    assert (finding.code, finding.verdict) == ("gpus_missing", Verdict.FAIL)


def test_a_missing_gpu_takes_its_device_node_with_it(node: Callable) -> None:
    def nodes() -> list[str]:
        return sorted(path.name for path in (node.root / "dev").glob("nvidia[0-9]*"))

    assert nodes() == ["nvidia0", "nvidia1", "nvidia2", "nvidia3"]
    node.ok("hardware --fault missing-gpu --gpu 1")
    assert nodes() == ["nvidia0", "nvidia2", "nvidia3"]
    assert "0009:06" not in node.ok("lspci")
    node.ok("hardware --fault missing-gpu --off")
    assert nodes() == ["nvidia0", "nvidia1", "nvidia2", "nvidia3"]


def test_without_any_gpu_the_tool_reports_it(node: Callable) -> None:
    for gpu in range(4):
        node.ok(f"hardware --fault missing-gpu --gpu {gpu}")
    answer = node("nvidia-smi -L")
    assert (answer.rc, answer.out) == (6, "No devices were found\n")
    node.ok("hardware --fault missing-gpu --gpu 2 --off")
    assert len(node.ok("nvidia-smi -L").splitlines()) == 1


def test_a_reset_and_a_reboot_carry_out_a_pending_remapping(node: Callable) -> None:
    pending = f"{CSV}remapped_rows.pending"
    for ending in ("nvidia-smi -r -i 1", "hardware --boot"):
        node.ok("hardware --fault row-remap-pending --gpu 1")
        assert node.ok(pending).split() == ["No", "Yes", "No", "No"]
        node.ok(ending)
        assert node.ok(pending).split() == ["No"] * 4, ending


def test_lasting_faults_are_logged_again_when_the_driver_is_loaded_again(node: Callable) -> None:
    node.ok("hardware --fault xid --gpu 2 --number 79")
    before = node.ok("dmesg").count("Xid")
    node.ok("hardware --boot")
    assert (before, node.ok("dmesg").count("Xid")) == (1, 1)
    node.ok("hardware --fault xid --off")
    node.ok("hardware --boot")
    assert node.ok("dmesg").count("Xid") == 0


def test_a_mismatched_fabric_manager_leaves_the_fabric_unfinished(make: Callable) -> None:
    node = make("h100")
    state = f"{CSV}fabric.state"
    assert node.ok(state).split("\n")[:2] == ["Completed", "Completed"]
    node.ok("hardware --fault version-mismatch --component fabricmanager")
    assert node.ok(state).split("\n")[:2] == ["In Progress", "In Progress"]
    answer = node("nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg")
    assert answer.rc == 1
    assert "interface version 580.95.04 don't match with driver version 580.95.05" in answer.err
    node.ok("hardware --fault version-mismatch --off")
    (node.root / "run/rack/holds-nvidia/nv-fabricmanager").unlink()
    assert node.ok(state).split("\n")[0] == "In Progress"


def ignores(pid: int, number: int) -> bool:
    """Return whether a process ignores a signal."""
    ignored = re.search(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return ignored is not None and bool(int(ignored[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    "tool", [["nvidia-smi", "-L"], ["nvidia-smi", "-q", "-x"], ["dcgmi", "discovery", "-l"]]
)
def test_a_hung_driver_holds_its_callers_until_they_are_killed(tool: list[str], node: Callable) -> None:
    node.ok("hardware --fault hung-nvidia-smi")
    child = node.process(tool)
    try:
        # The tool hangs as soon as it ignores SIGUSR2, the last signal that it sets to be ignored.
        while not ignores(child.pid, signal.SIGUSR2):
            assert child.poll() is None
            time.sleep(0.05)
        child.terminate()
        child.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
    finally:
        child.kill()
    out, _err = child.communicate()
    assert (child.returncode, out) == (-signal.SIGKILL, "")
    node.ok("hardware --fault hung-nvidia-smi --off")
    again = node.process(tool)
    again.communicate()
    assert again.returncode == 0


def test_what_does_not_ask_the_driver_does_not_hang(node: Callable) -> None:
    node.ok("hardware --fault hung-nvidia-smi")
    for tool in (
        "lspci",
        "ibstat",
        "lsmod",
        "dcgmi --version",
        "nv-fabricmanager --version",
        "nvidia-smi --foo",
    ):
        node(tool)


def test_diag_as_json_names_the_gpu_and_the_severity(node: Callable) -> None:
    passed = json.loads(node.ok("dcgmi diag -r 1 -j"))
    (category,) = passed["DCGM Diagnostic"]["test_categories"]
    (software,) = category["tests"]
    assert (category["category"], software["name"]) == ("Deployment", "software")
    assert [one["status"] for one in software["results"]] == ["Pass"] * 4
    node.ok("hardware --fault row-remap-pending --gpu 2")
    answer = node("dcgmi diag -r 1 -j")
    assert answer.rc == 226
    (category,) = json.loads(answer.out)["DCGM Diagnostic"]["test_categories"]
    results = category["tests"][0]["results"]
    assert [one["status"] for one in results] == ["Pass", "Pass", "Fail", "Pass"]
    assert results[2]["warnings"][0]["error_severity"] > 0
    levels = {level: len(node(f"dcgmi diag -r {level} -j").out) for level in ("1", "2", "3", "4")}
    assert levels["1"] < levels["2"] < levels["3"] < levels["4"]


def test_diag_misses_persistence_mode_as_the_real_one(bare: Callable) -> None:
    node = bare.init().drive().runs("nv-hostengine")
    answer = node("dcgmi diag -r 1")
    assert (answer.rc, "Persistence mode for GPU 0" in answer.out) == (226, True)
    node.ok("nvidia-smi -pm 1")
    assert "software                  | Pass" in node.ok("dcgmi diag -r 1")


def test_dcgm_has_the_version_of_its_package(node: Callable) -> None:
    node.package("bash", "5.2-15").package("datacenter-gpu-manager-4-core", "1:4.4.1-1").package(
        "zlib1g", "1.2"
    )
    assert node.ok("dcgmi --version").strip() == "dcgmi  version: 4.4.1"
    assert node.ok("nv-hostengine --version") == "Version : 4.4.1\n"
    assert "| DCGM Version              | 4.4.1  " in node.ok("dcgmi diag -r 1")
    assert json.loads(node.ok("dcgmi diag -r 1 -j"))["metadata"]["DCGM Version"] == "4.4.1"


def test_dcgm_without_its_host_engine(bare: Callable) -> None:
    node = bare.init().drive()
    answer = node("dcgmi discovery -l")
    assert answer.rc == 235
    assert "unable to establish a connection to the specified host: localhost" in answer.out
    unit = node.root / "sys/fs/cgroup/systemd/system.slice/nvidia-dcgm.service"
    unit.mkdir(parents=True)
    assert node.ok("dcgmi discovery -l").startswith("4 GPUs found.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--fault nonsense", "unknown fault 'nonsense'; there are: missing-gpu"),
        ("--fault nonsense --off", "unknown fault 'nonsense'"),
        ("--fault throttling --gpu 4", "this node has no gpu 4: 0 to 3"),
        ("--fault hca-port-down --hca 9", "this node has no hca 9: 0 to 3"),
        ("--fault hung-nvidia-smi --gpu 1", "hits the whole node"),
        ("--fault throttling --number 3", "takes no --number"),
        ("--fault throttling --component driver", "takes no --component"),
    ],
)
def test_wrong_faults_are_refused_and_change_nothing(arguments: str, said: str, node: Callable) -> None:
    before = node.state
    answer = node(f"hardware {arguments}")
    assert (answer.rc, said in answer.err) == (70, True), answer
    assert node.state == before


def test_what_others_keep_in_the_state_stays(node: Callable) -> None:
    path = node.root / "var/lib/rack/hardware.json"
    state = node.state
    state["faults"]["slow-node"] = {"quota": 0.5}
    state["mine"] = [1]
    path.write_text(json.dumps(state))
    node.ok("hardware --fault throttling --gpu 1")
    assert node.state["faults"]["slow-node"] == {"quota": 0.5}
    assert node.state["mine"] == [1]
    assert "slow-node" in node.ok("hardware --faults")
    node.ok("hardware --fault slow-node --off")
    assert "slow-node" not in node.state["faults"]


@pytest.mark.parametrize(
    "command",
    [
        "",
        "-q",
        "-q -x",
        "-i 1 -q",
        "--query-gpu=name --format=csv",
        "nvlink -s",
        "topo -m",
    ],
)
def test_nvidia_smi_prints_only_the_address_of_a_gpu_that_fell_off_the_bus(
    command: str, node: Callable
) -> None:
    node.ok("hardware --fault lost-gpu --gpu 1")
    answer = node(f"nvidia-smi {command}")
    words = "Unable to determine the device handle for GPU0009:06:00.0: Unknown Error\n"
    assert (answer.rc, answer.out) == (255, words)


def test_other_gpus_answer_beside_one_that_fell_off_the_bus(node: Callable) -> None:
    node.ok("hardware --fault lost-gpu --gpu 1")
    assert "Attached GPUs" in node.ok("nvidia-smi -q -i 0")
    listed = node("nvidia-smi -L")
    assert (listed.rc, listed.out.count("UUID"), "0009:06:00.0" in listed.out) == (255, 1, True)
    assert "3 GPUs found." in node("dcgmi discovery -l").out
