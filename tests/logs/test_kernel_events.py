"""Lines of kernels' logs as drivers, memory controllers and PCIe ports of many makers write them."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs.kernel_events import read_kernel_line, requested_action

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


@pytest.mark.parametrize("bad", [line for line, verdict, _ in LINES if verdict is FAIL and "Xid" in line])
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
