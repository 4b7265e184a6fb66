"""Read reports of faulty hardware that programs other than the kernel write into a syslog. No I/O.

The parser xid calls :func:`read_daemon_line` with each line, before it tries the rules for the kernel's
lines::

    Nov 29 10:00:01 n01 smartd[99]: Device: /dev/nvme0n1, FAILED SMART self-check. BACK UP DATA NOW!

Only the messages of :data:`_RULES` and :data:`_FABRIC_ERROR` are judged. Each text is in the program's
source, or in a published log. Warnings that healthy machines print are left out. Examples are smartd's number
of entries in a disk's error log, and mcelog's error about a processor that it does not support.
"""

from __future__ import annotations

import re

from rackproof.core.records import Verdict
from rackproof.core.text import sanitize
from rackproof.logs.kernel_events import KernelEvent, Kind

_UNITS = r"(?:nvidia-(?:fabricmanager|persistenced|imex)|openibd)\.service"
"""Pattern of the systemd units that GPUs or network cards need. Other units, such as nvidia-powerd, also fail
on healthy servers."""
_RULES: tuple[tuple[str, Kind, Verdict, str], ...] = (
    # leptonai/gpud, components/accelerator/nvidia/fabric-manager. _FABRIC_ERROR matches the messages with an
    # SXid.
    (
        r"nv-fabricmanage\w*",
        "gpu_driver_error",
        Verdict.UNPROVEN,
        r"detected number of NVSwitches don't match|driver interface version .{0,60}(?:don't|doesn't) match",
    ),
    # NVIDIA/nvidia-persistenced, nvidia-persistenced.c.
    (r"nvidia-persiste\w*", "gpu_driver_error", Verdict.UNPROVEN, r"^Failed to query NVIDIA devices"),
    # smartmontools, smartd.cpp: messages of level LOG_CRIT.
    (r"smartd", "storage_error", Verdict.FAIL, r"FAILED SMART self-check|SMART Failure: "),
    (
        r"smartd",
        "storage_error",
        Verdict.UNPROVEN,
        r"[1-9]\d* (?:Currently unreadable \(pending\)|Offline uncorrectable) sectors|"
        r"Failed SMART usage Attribute: |Critical Warning \(0x|unable to open (?:\w+ )?device|"
        r"Self-Test Log error count increased",
    ),
    # rasdaemon, ras-aer-handler.c, ras-mc-handler.c and ras-mce-handler.c.
    (r"rasdaemon", "pcie_error", Verdict.FAIL, r"\baer_event: .{0,200}\bUncorrected \(Fatal\)"),
    (r"rasdaemon", "pcie_error", Verdict.UNPROVEN, r"\baer_event: .{0,200}\bUncorrected \(Non-Fatal\)"),
    (r"rasdaemon", "memory_error", Verdict.FAIL, r"\bmc_event: .{0,200}\b(?:Uncorrected|Fatal) error"),
    (r"rasdaemon", "memory_error", Verdict.DEGRADED, r"\bmc_event: .{0,200}\bCorrected error"),
    (r"rasdaemon", "machine_check", Verdict.FAIL, r"\bmce_record: .{0,300}\b(?:Uncorrected|UECC|Fatal)"),
    (r"rasdaemon", "machine_check", Verdict.DEGRADED, r"\bmce_record: .{0,300}\b(?:Corrected|CECC)"),
    # andikleen/mcelog, p4.c and memdb.c.
    (r"mcelog", "machine_check", Verdict.FAIL, r"^Uncorrected (?:error|DIMM memory error count exceeded)"),
    (
        r"mcelog",
        "machine_check",
        Verdict.DEGRADED,
        r"^[Cc]orrected (?:error|DIMM memory error count exceeded)",
    ),
    # systemd, src/core/unit.c, job.c and service.c: a unit failed. systemd may start it again.
    (
        r"systemd",
        "program_crashed",
        Verdict.UNPROVEN,
        rf"^{_UNITS}: (?:Failed with result|(?:Main|Control) process exited, .{{0,60}}/FAILURE|"
        r"Start request repeated too quickly)|^(?:Failed to start|Dependency failed for) "
        rf"(?:{_UNITS}|NVIDIA (?:fabric manager service|Persistence Daemon))",
    ),
)
"""Program, kind, verdict and pattern of the messages that report a fault. The first match is used."""
_COMPILED = tuple(
    (re.compile(program), kind, verdict, re.compile(text)) for program, kind, verdict, text in _RULES
)
_FABRIC_ERROR = re.compile(
    r"detected NVSwitch (non-)?fatal error (\d{1,6})\b(?:.{0,60}pci bus id:? ?([0-9A-Fa-f:.]{4,20}))?"
)
"""Pattern of the fabric manager's message about an SXid. Its groups are ``non-`` (only if the error is not
fatal), the number, and the PCI address if there is one."""
_PROGRAM = re.compile(
    # The name begins the line, or follows time and host, or the timestamp in brackets of dmesg.
    r"(?:^|[\s\]])(nv-fabricmanage\w*|nvidia-persiste\w*|smartd|rasdaemon|mcelog|systemd)"
    # RFC 5424 has process id, message id and structured data between the name and the message.
    r"(?:(?:\[\d{1,10}\])?: |(?: \S{1,128}){2} (?:-|\[[^\]]{1,500}\]) )\s*(.*)"
)
"""Pattern of a line of a program in :data:`_RULES`. Its groups are the program's name and the message."""
_PROGRAM_WORDS = ("nv-fabricmanage", "nvidia-persiste", "smartd", "rasdaemon", "mcelog", "systemd")
"""Each line that :data:`_PROGRAM` matches contains one of these texts. Searching for them first is faster."""
_HEAD_LENGTH = 300
"""Number of characters at the beginning of a line, within which the name of the program must begin."""


def read_daemon_line(line: str) -> KernelEvent | None:
    """Return the fault that a program reports in a line of a syslog, or None."""
    if not any(word in line for word in _PROGRAM_WORDS):
        return None
    found = _PROGRAM.search(line)
    if found is None or found.start() > _HEAD_LENGTH:
        return None
    program, message = found[1], found[2]
    if program.startswith("nv-fabric") and (error := _FABRIC_ERROR.search(message)):
        verdict = Verdict.DEGRADED if error[1] else Verdict.FAIL
        return KernelEvent("sxid", verdict, error[3] or "", int(error[2]), text=sanitize(message, 300))
    for name, kind, verdict, text in _COMPILED:
        if name.fullmatch(program) and text.search(message):
            return KernelEvent(kind, verdict, text=sanitize(message, 300))
    return None
