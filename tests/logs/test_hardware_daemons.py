"""Test the verdict on lines of a syslog in which programs report faulty hardware.

The parser xid reads them with :mod:`rackproof.logs.hardware_daemons`. The tests check code and verdict of
each fault in the prefixes of syslog, and that messages of these programs on healthy nodes are no fault.
"""

from __future__ import annotations

import io

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs.hardware_daemons import read_daemon_line

PASS, FAIL, DEGRADED, UNPROVEN = Verdict.PASS, Verdict.FAIL, Verdict.DEGRADED, Verdict.UNPROVEN
KERNEL = "Nov 29 10:00:00 n01 kernel: Linux version 6.8.0\nNov 29 10:00:00 n01 kernel: NVRM: loaded\n"
FABRIC_MATCH = (
    "fabric manager NVIDIA GPU driver interface version 550.127.05 don't match with driver version 550.120."
)
FAULTS = [
    (
        "nv-fabricmanager",
        "detected NVSwitch fatal error 20034 on fid:0 on NVSwitch pci bus id:00000000:05:00.0 "
        "physical id:0 port:32",
        FAIL,
        "sxid_20034",
    ),
    (
        "nv-fabricmanager",
        "[ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id "
        "00000000:86:00.0 physical id 3 port 33",
        FAIL,
        "sxid_20034",
    ),
    ("nv-fabricmanager", "detected NVSwitch non-fatal error 12028 on fid 0", DEGRADED, "sxid_12028"),
    ("nv-fabricmanager", FABRIC_MATCH, UNPROVEN, "gpu_driver_error"),
    ("nvidia-persistenced", "Failed to query NVIDIA devices. Please ensure", UNPROVEN, "gpu_driver_error"),
    ("smartd", "Device: /dev/nvme0n1, FAILED SMART self-check. BACK UP DATA NOW!", FAIL, "storage_error"),
    ("smartd", "Device: /dev/sdb, SMART Failure: DATA CHANNEL IMPENDING FAILURE", FAIL, "storage_error"),
    (
        "smartd",
        "Device: /dev/sdb [SAT], 16 Currently unreadable (pending) sectors",
        UNPROVEN,
        "storage_error",
    ),
    ("smartd", "Device: /dev/sdz [SAT], Self-Test Log error count increased", UNPROVEN, "storage_error"),
    (
        "rasdaemon",
        "<...>-30 [000]  0.1: mc_event: 2024-05-16 10:21:24 -0700 1 Uncorrected error: memory read error",
        FAIL,
        "memory_error",
    ),
    ("rasdaemon", "<...>-30 [000] 0.1: mc_event: 2024 2 Corrected errors: memory", DEGRADED, "memory_error"),
    (
        "rasdaemon",
        "<...>-42552 [001]     0.007845: mce_record:           2022-02-11 22:34:40 +0100 Unified Memory "
        "Controller (bank=18), status= 9c2040000000011b, Corrected error, no action required., mci=CECC",
        DEGRADED,
        "machine_check",
    ),
    (
        "rasdaemon",
        "<...>-1 [001] 0.1: mce_record: 2024 bank=2, mci=Uncorrected_error Error_enabled",
        FAIL,
        "machine_check",
    ),
    (
        "rasdaemon",
        "<...>-1 [001] 0.1: aer_event: 2024 0000:3b:00.0 (Uncorrected (Fatal)) Data Link Protocol",
        FAIL,
        "pcie_error",
    ),
    ("mcelog", "Uncorrected error", FAIL, "machine_check"),
    ("mcelog", "corrected DIMM memory error count exceeded threshold: 10 in 24h", DEGRADED, "machine_check"),
    ("systemd", "nvidia-fabricmanager.service: Failed with result 'exit-code'.", UNPROVEN, "program_crashed"),
    (
        "systemd",
        "nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE",
        UNPROVEN,
        "program_crashed",
    ),
    (
        "systemd",
        "nvidia-persistenced.service: Start request repeated too quickly.",
        UNPROVEN,
        "program_crashed",
    ),
    ("systemd", "Failed to start NVIDIA fabric manager service.", UNPROVEN, "program_crashed"),
    ("systemd", "openibd.service: Failed with result 'exit-code'.", UNPROVEN, "program_crashed"),
]
"""Program, message, verdict and code of each fault. The texts are from the sources that the rules name."""
HEALTHY = [
    ("nv-fabricmanager", "Successfully configured all the available NVSwitches to route GPU NVLink traffic."),
    ("nvidia-persistenced", "The daemon no longer has permission to remove its runtime data directory"),
    ("nvidia-persistenced", "Shutdown (1535)"),
    ("smartd", "Device: /dev/nvme0n1, number of Error Log entries increased from 12 to 13"),
    (
        "smartd",
        "Device: /dev/sda [SAT], SMART Usage Attribute: 194 Temperature_Celsius changed from 70 to 69",
    ),
    ("smartd", "Device: /dev/sda [SAT], can't monitor Current_Pending_Sector count - no Attribute 197"),
    ("rasdaemon", "rasdaemon: mce:mce_record event enabled"),
    ("rasdaemon", "Family 6 Model 55 CPU: only decoding architectural errors"),
    ("mcelog", "ERROR: AMD Processor family 23: mcelog does not support this processor."),
    ("systemd", "nvidia-persistenced.service: Deactivated successfully."),
    ("systemd", "nvidia-powerd.service: Failed with result 'exit-code'."),
    ("systemd", "Started NVIDIA fabric manager service."),
    ("sshd", "error: maximum authentication attempts exceeded"),
    ("cron", "smartd reported: Device: /dev/sda, FAILED SMART self-check. BACK UP DATA NOW!"),
]
PREFIXES = [
    "Nov 29 10:00:01 n01 {}[1234]: ",
    "Nov 29 10:00:01 n01 {}: ",
    "2026-11-29T10:00:01.123456+00:00 n01 {}[1234]: ",
    "<27>1 2026-11-29T10:00:01Z n01 {} 1234 - - ",
    "[   12.345678] {}[1]: ",
]


def parsed(line: str) -> ParsedLog:
    return logs.parse(io.BytesIO(f"{KERNEL}{line}\n".encode()), name="syslog")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("program", "message", "verdict", "code"), FAULTS)
def test_a_fault_has_its_code_and_verdict(
    program: str, message: str, verdict: Verdict, code: str, prefix: str
) -> None:
    result = parsed(prefix.format(program) + message)
    assert (result.format, result.verdict) == ("xid", verdict)
    assert [one.code for one in result.findings] == [code]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(("program", "message"), HEALTHY)
def test_a_message_of_a_healthy_node_is_no_fault(program: str, message: str, prefix: str) -> None:
    line = prefix.format(program) + message
    assert read_daemon_line(line) is None
    result = parsed(line)
    assert result.verdict is PASS
    assert {(one.code, one.verdict) for one in result.findings} <= {("other_programs", None)}


def test_a_remark_says_that_lines_of_other_programs_are_not_judged() -> None:
    result = parsed("Nov 29 10:00:01 n01 slurmd[7]: error: Domain socket directory /var/spool/slurmd missing")
    assert [(one.code, one.verdict, one.source.line) for one in result.findings] == [
        ("other_programs", None, 3)
    ]
    assert "other than the kernel" in result.findings[0].message
