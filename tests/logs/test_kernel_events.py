"""Lines of kernels' logs as drivers, memory controllers and PCIe ports of many makers write them."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs.kernel_events import FAULT_WORDS, read_kernel_line, requested_action

FAIL, DEGRADED, UNPROVEN = Verdict.FAIL, Verdict.DEGRADED, Verdict.UNPROVEN

LINES = [
    # XIDs of a GPU that is shared out (MIG), of old drivers, with and without text.
    (
        "NVRM: Xid (PCI:0000:07:00 GPU-I:02): 94, pid=7194, Contained: SM (0x1). RST: No, D-RST: No",
        DEGRADED,
        "xid_94",
    ),
    ("NVRM: Xid (PCI:0000:41:00 GPU-I:05 GPU-CI:00): 79, GPU has fallen off the bus.", FAIL, "xid_79"),
    ("NVRM: Xid (0000:03:00): 48, A double bit error", FAIL, "xid_48"),
    ("NVRM: Xid (PCI:0000:18:00): 119", FAIL, "xid_119"),
    ("NVRM: Xid (PCI:0000:18:00): 62, 7db6 30aa1f 00000000", FAIL, "xid_62"),
    ("NVRM: Xid (PCI:0000:18:00): 8, Channel 00000022", FAIL, "xid_8"),
    ("NVRM: Xid (PCI:0000:18:00): 46, GPU stopped processing", FAIL, "xid_46"),
    ("NVRM: Xid (PCI:0000:18:00): 172, SRAM", FAIL, "xid_172"),
    ("NVRM: Xid (PCI:0000:18:00): 45, pid=1, Ch 00000008", DEGRADED, "xid_45"),
    ("NVRM: Xid (PCI:0000:18:00): 999, new in a driver to come", UNPROVEN, "xid_999"),
    (
        "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) "
        "to 0x1 (GPU Reset Required)",
        FAIL,
        "xid_154",
    ),
    (
        "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to "
        "0x2 (Node Reboot Required)",
        FAIL,
        "xid_154",
    ),
    (
        "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)",
        FAIL,
        "xid_154",
    ),
    (
        "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) "
        "to 0x0 (None)",
        DEGRADED,
        "xid_154",
    ),
    ("NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action chan", UNPROVEN, "xid_154"),
    # Damaged ones.
    ("NVRM: Xid (PCI:0000:18:00): seventy-nine", UNPROVEN, "damaged_line"),
    ("NVRM: Xid (PCI:0000:18:", UNPROVEN, "damaged_line"),
    ("VRM: Xid: 79", UNPROVEN, "damaged_line"),
    ("NVRM: Xid (PCI:0000:18:00): 79999999", UNPROVEN, "damaged_line"),
    ("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): xyz, Fatal error", UNPROVEN, "damaged_line"),
    # Switches.
    ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up", FAIL, "sxid_20034"),
    ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20123, Unknown error", FAIL, "sxid_20123"),
    ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress", DEGRADED, "sxid_12028"),
    # GPUs without a number.
    ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", FAIL, "gpu_lost"),
    ("NVRM: fallen off the bus and is not responding to commands.", FAIL, "gpu_lost"),
    ("NVRM: GPU 0000:b1:00.0: RmInitAdapter failed! (0x62:0x0:1860)", FAIL, "gpu_init_failed"),
    ("NVRM: rm_init_adapter failed, device minor number 3", FAIL, "gpu_init_failed"),
    # Processors and memory.
    (
        "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 4: be00000000800400",
        FAIL,
        "machine_check",
    ),
    ("Kernel panic - not syncing: Fatal machine check", FAIL, "machine_check"),
    ("{1}[Hardware Error]: event severity: fatal", FAIL, "machine_check"),
    ("{3}[Hardware Error]: event severity: recoverable", FAIL, "machine_check"),
    ("[Hardware Error]: Uncorrected, software restartable error.", FAIL, "machine_check"),
    (
        "[Hardware Error]: CPU:64 (19:1:1) MC17_STATUS[Over|UE|MiscV|AddrV|PCC|TCC|SyndV|UECC]: 0xbc",
        FAIL,
        "machine_check",
    ),
    ("[Hardware Error]: Corrected error, no action required.", DEGRADED, "machine_check"),
    ("{2}[Hardware Error]: event severity: corrected", DEGRADED, "machine_check"),
    ("EDAC MC1: 1 UE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0", FAIL, "memory_error"),
    ("EDAC MC0: 3 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", DEGRADED, "memory_error"),
    ("Memory failure: 0x1c0de: recovery action for dirty LRU page: Recovered", FAIL, "memory_error"),
    # PCIe.
    (
        "pcieport 0000:00:1c.5: AER: Multiple Uncorrected (Fatal) error received: 0000:01:00.0",
        FAIL,
        "pcie_error",
    ),
    (
        "mlx5_core 0000:b1:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        FAIL,
        "pcie_error",
    ),
    (
        "pcieport 0000:20:01.1: AER: Uncorrectable (Non-Fatal) error message received from 0000:21:00.0",
        UNPROVEN,
        "pcie_error",
    ),
    ("pcieport 0000:20:01.1: AER: device recovery failed", FAIL, "pcie_error"),
    ("pcieport 0000:00:1c.5: AER: Corrected error received: 0000:00:1c.5", DEGRADED, "pcie_error"),
    (
        "pcieport 0000:00:01.0: AER: Correctable error message received from 0000:01:00.0",
        DEGRADED,
        "pcie_error",
    ),
    ("nvme 0000:c4:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer", DEGRADED, "pcie_error"),
    ("pcieport 0000:00:01.0: DPC: containment event, status:0x1f01 source:0x0000", FAIL, "pcie_error"),
    ("pcieport 0000:64:01.0: pciehp: Slot(3): Link Down", UNPROVEN, "pcie_error"),
    # The GPUs' driver, without an XID.
    ("NVRM: _kgspLogXid119: ******** GSP Timeout ********", FAIL, "gpu_driver_error"),
    ("NVRM: nvAssertOkFailedNoLog: failed: GPU lost [NV_ERR_GPU_IS_LOST] (0x0F)", FAIL, "gpu_driver_error"),
    ("NVRM: API mismatch: the client has the version 580.1, but this kernel", FAIL, "gpu_driver_error"),
    ("nvidia: probe of 0000:00:09.0 failed with error -1", FAIL, "gpu_driver_error"),
    ("nvidia 0000:00:09.0: probe with driver nvidia failed with error -1", FAIL, "gpu_driver_error"),
    ("NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00", UNPROVEN, "gpu_driver_error"),
    ("NVRM: nvAssertFailedNoLog: Assertion failed: 0 @ kern_bus.c:123", DEGRADED, "gpu_driver_error"),
    # Network cards.
    (
        "mlx5_core 0000:18:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
        FAIL,
        "network_card_error",
    ),
    (
        "mlx5_core 0000:18:00.0: print_health_info:425: Health issue observed, severity(3) ERROR:",
        FAIL,
        "network_card_error",
    ),
    (
        "mlx5_core 0000:5c:00.0: probe_one:1484: mlx5_init_one failed with error code -110",
        FAIL,
        "network_card_error",
    ),
    (
        "mlx5_core 0000:18:00.0: wait_func:1152: timeout. Will cause a leak of a command resource",
        UNPROVEN,
        "network_card_error",
    ),
    ("mlx5_core 0000:18:00.0: temp_warn:140: High temperature on sensors", DEGRADED, "network_card_error"),
    (
        "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299: Detected insufficient power on the PCIe slot (27W).",
        DEGRADED,
        "network_card_error",
    ),
    # Disks and file systems.
    ("nvme nvme0: Device not ready; aborting reset, CSTS=0x1", FAIL, "storage_error"),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff", FAIL, "storage_error"),
    ("nvme nvme1: I/O 512 QID 1 timeout, aborting", DEGRADED, "storage_error"),
    (
        "blk_update_request: I/O error, dev nvme0n1, sector 12345 op 0x0:(READ) flags 0x0",
        FAIL,
        "storage_error",
    ),
    ("critical medium error, dev nvme0n1, sector 123 op 0x0:(READ)", FAIL, "storage_error"),
    ("Buffer I/O error on dev dm-0, logical block 0, lost sync page write", FAIL, "storage_error"),
    ("block nvme0n1: no available path - failing I/O", FAIL, "storage_error"),
    ("EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm ls", FAIL, "storage_error"),
    ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", FAIL, "storage_error"),
    ("EXT4-fs (dm-0): I/O error while writing superblock", FAIL, "storage_error"),
    (
        "XFS (nvme0n1p2): Corruption of in-memory data detected.  Shutting down filesystem",
        FAIL,
        "storage_error",
    ),
    ("XFS (md0): log I/O error -5", FAIL, "storage_error"),
    ("BTRFS error (device sda1): bdev /dev/sda1 errs: wr 0, rd 5", FAIL, "storage_error"),
    ("md/raid0:md0: Disk failure on nvme0n1p1 detected, failing array.", FAIL, "storage_error"),
    ("nfs: server store not responding, still trying", DEGRADED, "storage_error"),
    # The kernel itself.
    ("BUG: unable to handle page fault for address: ffffffffc0de0000", FAIL, "kernel_error"),
    ("Oops: 0000 [#1] SMP NOPTI", FAIL, "kernel_error"),
    ("Internal error: Oops: 0000000096000004 [#1] SMP", FAIL, "kernel_error"),
    ("Unable to handle kernel NULL pointer dereference at virtual address 0000", FAIL, "kernel_error"),
    ("kernel BUG at mm/slub.c:305!", FAIL, "kernel_error"),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 12", FAIL, "kernel_error"),
    ("general protection fault, probably for non-canonical address 0xdead: 0000 [#1]", FAIL, "kernel_error"),
    ("watchdog: BUG: soft lockup - CPU#17 stuck for 22s! [python:1234]", UNPROVEN, "kernel_error"),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", UNPROVEN, "kernel_error"),
    ("INFO: task python:12345 blocked for more than 120 seconds.", DEGRADED, "task_hung"),
    ("Out of memory: Killed process 1234 (slurmd) total-vm:1kB", DEGRADED, "out_of_memory"),
    ("CPU12: Package temperature above threshold, cpu clock throttled", DEGRADED, "cpu_throttled"),
]
HARMLESS = [
    "EDAC MC: Ver: 3.0.0",
    "EDAC MC0: Giving out device to module igen6_edac controller Intel_client_SoC MC#0",
    "EDAC i10nm: No hardware ECC memory",
    "RAS: Correctable Errors collector initialized.",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "MCE: In-kernel MCE decoding enabled.",
    "pcieport 0000:00:01.0: AER: enabled with IRQ 25",
    "acpi PNP0A08:00: _OSC: OS now controls [PCIeHotplug PME AER PCIeCapability LTR]",
    "HEST: Enabling Firmware First mode for corrected errors.",
    "GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
    "NVRM: GPU at PCI:0000:18:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
    "nvidia-nvswitch0: using MSI",
    "nvidia 0000:18:00.0: enabling device (0000 -> 0002)",
    "NVRM: devidx 0 added to rm_gpu_list",
    "nvme nvme0: pci function 0000:01:00.0",
    "nvme nvme0: 48/0/0 default/read/poll queues",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    "XFS (nvme1n1): Ending clean mount",
    "BTRFS info (device sda1): first mount of filesystem",
    "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ)",
    "Buffer I/O error on dev sr0, logical block 0, async page read",
    "mlx5_core 0000:18:00.0: firmware version: 28.39.1002",
    "mlx5_core 0000:18:00.0: Rate limit: 127 rates are supported, range: 0Mbps to 97656Mbps",
    "mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged",
    "traps: python[2212] general protection fault ip:7f1 sp:7ff error:0 in libc.so.6[7f1+195000]",
    "python[2213]: segfault at 0 ip 000055 sp 00007ffd error 4 in python3.11",
    "Memory cgroup out of memory: Killed process 19667 (python) total-vm:1460016kB",
    "rcu: Hierarchical RCU implementation.",
    "ACPI: AE_NOT_FOUND, While evaluating Sleep State [\\_S3_]",
    "pcieport 0000:00:01.0: pciehp: Slot #1 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd-",
    "pcieport 0000:00:01.0: DPC: enabled with IRQ 25",
    "Kernel command line: BOOT_IMAGE=/vmlinuz panic=10 oops=panic",
    "RAS: Correctable Errors collector initialized.",
]
PREFIXES = ["", "[131453.740743] ", "1795000000.123456 n1 kernel: ", "Nov 23 03:14:07 gpu-17 kernel: [ 7.1] "]


def parsed(text: str) -> ParsedLog:
    return logs.parse(io.BytesIO(text.encode()), format="xid", name="dmesg")


@pytest.mark.parametrize(("line", "verdict", "name"), LINES)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_fault_has_its_code_and_verdict(prefix: str, line: str, verdict: Verdict, name: str) -> None:
    event = read_kernel_line(prefix + line)
    assert event is not None
    assert (event.name, event.verdict) == (name, verdict)


@pytest.mark.parametrize("line", HARMLESS)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_healthy_nodes_write_is_no_event(prefix: str, line: str) -> None:
    assert read_kernel_line(prefix + line) is None


@pytest.mark.parametrize(("line", "verdict", "name"), LINES)
def test_a_log_is_as_bad_as_its_line(line: str, verdict: Verdict, name: str) -> None:
    result = parsed(f"[    0.000000] Linux version 6.8\n[   12.5] {line}\n")
    assert result.verdict is verdict
    assert name in {finding.code for finding in result.findings}


@pytest.mark.parametrize("bad", [line for line, verdict, _ in LINES if verdict is FAIL and "Xid (" in line])
def test_no_cut_makes_a_failing_line_good(bad: str) -> None:
    for end in range(bad.index("Xid") + 3, len(bad) + 1):
        event = read_kernel_line(f"[ 1.0] {bad[:end]}")
        assert event is not None, bad[:end]
        assert event.verdict is not Verdict.PASS


@given(st.text(max_size=300), st.integers(0, 10**9))
def test_no_text_after_an_xid_hides_it(text: str, xid: int) -> None:
    line = f"NVRM: Xid (PCI:0000:18:00): {xid}, {text}".splitlines()[0]
    event = read_kernel_line(line)
    assert event is not None
    if event.kind == "xid":
        assert event.code == xid
        assert event.action == requested_action(xid, event.text)


REGISTERS = [
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 50 Sub-engine instance 00",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00100000}",
]


def test_registers_of_an_sxid_are_as_bad_as_the_line_that_they_belong_to() -> None:
    head = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 50 egress (First)"
    result = parsed("\n".join(f"[ 1.{at}] {line}" for at, line in enumerate([head, *REGISTERS])) + "\n")
    assert result.verdict is DEGRADED
    assert [one.value for one in result.measurements if one.name == "sxid_count"] == [1.0]


def test_registers_alone_prove_nothing() -> None:
    assert parsed("".join(f"[ 1.0] {line}\n" for line in REGISTERS)).verdict is UNPROVEN


@pytest.mark.parametrize("rubbish", ["\x00\x01\x02" * 50, "hello\n", "<html></html>\n", "{}\n"])
def test_what_is_no_kernel_log_proves_nothing(rubbish: str) -> None:
    assert parsed(rubbish).verdict is UNPROVEN


def test_a_node_sends_every_line_that_a_reader_takes(root: Path) -> None:
    source = (root / "plugins/module_utils/rackproof_facts_health.py").read_text()
    listed = source.split("FAULT_WORDS = ")[1].split("\n)")[0] + ")"
    assert ast.literal_eval(listed) == FAULT_WORDS
