"""Read lines of a kernel log that report a fault of a node, without I/O.

The fault may be in a GPU, an NVSwitch, memory, a processor, PCIe, a disk, the network, the kernel or a
program. An *XID* is the number of an error that NVIDIA's driver logs for a GPU. An *SXid* is the number of an
error of an NVSwitch. Examples::

    [  412.118] NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus.
    nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress

The snapshots of nodes (nodes/kernel_log.py), the parser xid and :mod:`rackproof.logs.fault_texts` call
:func:`read_kernel_line`. Checks and explanations also call :func:`verdict_of`, and explanations and repairs
:func:`requested_action`. The actions for XIDs are those in NVIDIA's catalog of XIDs. Where AWS, gpud, Azure
and imbue state another action, this action is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rackproof.core.records import Verdict
from rackproof.core.text import sanitize
from rackproof.logs.declared_lines import DeclaredLines
from rackproof.logs.known_kernel_lines import unknown_error

Kind = Literal[
    "xid",
    "sxid",
    "gpu_lost",
    "gpu_init_failed",
    "machine_check",
    "memory_error",
    "pcie_error",
    "gpu_driver_error",
    "network_card_error",
    "storage_error",
    "kernel_error",
    "task_hung",
    "out_of_memory",
    "cpu_throttled",
    "program_crashed",
    "unknown_kernel_error",
    "declared_harmless",
    "damaged_line",
]
"""The kind of an event. The code of its finding is this word, with the number for an XID or SXid."""

ACTIONS: Mapping[int, str] = {
    **dict.fromkeys((54,), "isolate"),
    **dict.fromkeys((79, 119, 120, 151, 165, 167, 168), "reboot"),
    **dict.fromkeys((8, 46, 48, 62, 64, 95, 109, 110, 136, 140, 143), "reset"),
    **dict.fromkeys((155, 156, 157, 158, 161, 169, 171, 172), "reset"),
    **dict.fromkeys((74, *range(144, 151)), "nvlink"),
    # For these XIDs, NVIDIA's catalog recommends "restart the application" or "ignore".
    **dict.fromkeys((11, 13, 14, 25, 31, 32, *range(37, 42), 43, 44, 45, 60, 63), "watch"),
    **dict.fromkeys((*range(66, 73), 75, 76, 77, 80, *range(82, 87), 88, 89, *range(92, 95)), "watch"),
    **dict.fromkeys((*range(96, 109), 121, *range(126, 136), 137, 139, 141, 152, 153), "watch"),
    **dict.fromkeys((159, 160, 162, 163, 164), "watch"),
}
"""Action for each XID: ``isolate`` (drain the node, check power and cooling), ``reboot``, ``reset`` the GPU,
``watch``, or ``nvlink`` (the text of the line decides between reset and watch). The sources list 79 under
both isolate and reboot. Here it is under reboot, because a reboot is tried first."""

RECOVERY_ACTION_CHANGED = 154
"""XID whose text states the action."""
_RECOVERY = {"none": "watch", "reboot": "reboot", "reset": "reset", "drain": "reset"}
"""Action for each word in the recovery action that XID 154 announces. The first match is used."""

_ADDRESS = r"\((?:PCI:)?([0-9A-Fa-f:.]{4,20})(?: [^()\n]{1,60})?\)"
"""Pattern of a bus address. For a divided GPU, the instances follow, as in ``PCI:0000:07:00 GPU-I:02``."""
_XID = re.compile(rf"NVRM: Xid {_ADDRESS}: (\d{{1,6}})(?:[,:. ]\s*(.*))?$")
_SXID = re.compile(rf"SXid {_ADDRESS}: (\d{{1,6}})(?:[,:. ]\s*(.*))?$")
_DETAIL = re.compile(r"Severity \d|Data \{")
"""Pattern of a message that has only an SXid's severity number or registers. Another line states whether
the SXid is fatal."""
_XID_LIKE = re.compile(r"\bS?Xid\b")
_LOST = re.compile(r"NVRM: .{0,200}(?:fallen off the bus|GPU (?:is|has been) lost)", re.IGNORECASE)
_INIT_FAILED = re.compile(r"NVRM: .{0,200}(?:RmInitAdapter failed|rm_init_adapter failed)", re.IGNORECASE)
_GPU_ADDRESS = re.compile(
    r"\b([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?|"
    r"(?<!:)[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\b"
)
"""Pattern of a bus address with its domain or its function. Without both, it could be a time (13:00)."""

# Old kernels log "machine check architecture supported" and "machine check reporting enabled" at each start.
# These lines report no fault.
_MACHINE_CHECK = re.compile(
    r"Hardware Error\]|machine check(?! (?:architecture supported|reporting enabled))|"
    # So many corrected errors came that the kernel only polls them (arch/x86/kernel/cpu/mce).
    r"\bCMCI storm detected|CPUs not responding to MCE broadcast|"
    r"Timeout: Not all CPUs entered broadcast exception handler",
    re.IGNORECASE,
)
_MEMORY = re.compile(
    r"\bEDAC \w{1,20}: .{0,20}?\b(?:CE|UE)\b|\bMemory failure: 0x|"
    # A page with many corrected errors is taken out of use (drivers/ras/cec.c).
    r"\bRAS: Soft-offlining pfn: 0x"
)
_DECODED = re.compile(
    r"\bEDAC .{1,40}: CPU \d{1,5}: Machine Check \w{5,9}: \S{1,20} Bank \d{1,3}: (?:0x)?([0-9a-f]{16})"
)
_UNCORRECTED_BIT = 1 << 61
"""Bit of a bank's status that is set if the error was not corrected."""
_HANDLING = re.compile(r"\bEDAC .{1,40}: HANDLING MCE MEMORY ERROR")
"""Pattern of the first line about a memory error. A line like ``... Bank 7: 9c00004001010090`` follows, with
the bank's status."""
_UNCORRECTED = re.compile(
    r"\bUncorrect|\bUE\b|\bDeferred error|severity: (?:fatal|recoverable)|machine check exception|"
    r"\bFatal\b|Processor context corrupt|Memory failure|MCE broadcast|entered broadcast exception",
    re.IGNORECASE,
)
_PCIE = re.compile(
    r"AER: (?:Multiple )?(?:Un)?correct(?:ed|able) .{0,20}?error|PCIe Bus Error: severity=|"
    r"AER: device recovery failed|AER: can't recover|AER: Correctable error message",
    re.IGNORECASE,
)
_PCIE_LOST = re.compile(r"\(Fatal\)|recovery failed|can't recover", re.IGNORECASE)
_PCIE_UNCORRECTED = re.compile(r"\bUncorrect", re.IGNORECASE)

# Optical drives, floppies, loop devices and zram report errors on healthy nodes, so they are excluded.
_DISK = r"dev(?:ice)? (?!loop|sr\d|fd\d|zram)"
_NVME = r"nvme\w*: (?:[\w ]{0,20}: )?"
_NETWORK_PORT = r"\b[a-z]\w{1,15} [0-9a-f:]{5,13}\.[0-7](?: \S{1,40})?: "
"""Pattern of a network driver's name, a bus address and the name of an interface, if it has one."""
_PCI_FUNCTION = r"\b(?:pci|pcieport|nvidia|vfio-pci|amdgpu|nvme|mlx\d_core|bnxt_en) [0-9a-f:]{5,13}\.[0-7]: "
"""Pattern of a driver's name and a bus address. The drivers are those of PCIe ports, GPUs, NVMe disks and
network cards. Other devices, such as USB controllers of laptops, are not judged."""

_FAULT_PATTERNS: tuple[tuple[Kind, Verdict, str], ...] = (
    # Drivers before 530 write "NVRM" without a colon before the name of a function.
    # These messages are about a GPU that does not answer, must be reset, or cannot be used. A GPU survives
    # the errors in other messages.
    (
        "gpu_driver_error",
        Verdict.FAIL,
        r"NVRM:? .{0,200}NV_ERR_(?:GPU_IS_LOST|RESET_REQUIRED|ECC_ERROR|GPU_IN_FULLCHIP_RESET)|"
        r"NVRM:? .{0,200}(?:GSP Timeout|Timeout (?:after|waiting) .{0,40}RPC)|NVRM: API mismatch|"
        # The discovery of NVLinks does not finish. nvidia-smi hangs from then on.
        r"NVRM:? knvlink\w{0,40}: .{0,80}(?:postRxDetLinkMask failed|Failed to update Rx Detect)|"
        r"NVRM:? .{0,100}Memory Subsystem Error detected|"
        r"NVRM:? .{0,100}does not have the necessary power cables connected|"
        r"NVRM: No NVIDIA (?:GPU|devices?) (?:was |were )?found|"
        r"NVRM: GPU \S{1,20} is already bound to |"
        # osHandleGpuLost calls RmLogGpuCrash (osinit.c of NVIDIA/open-gpu-kernel-modules).
        r"NVRM: A GPU crash dump has been created|"
        # The GPU's own firmware crashed (kernel_gsp.c and kernel_gsp_tu102.c of the same source).
        r"NVRM:? .{0,200}(?:GSP-CrashCat|LibOS Task Watchdog) Report|"
        r"NVRM: The NVIDIA probe routine failed|NVRM: None of the NVIDIA devices were initialized|"
        r"nvidia(?:-nvswitch)?: probe of \S+ failed|nvidia \S+: probe with driver nvidia failed",
    ),
    (
        "gpu_driver_error",
        Verdict.UNPROVEN,
        r"NVRM:? .{0,200}(?:GSP RPC error|RPC .{0,60}(?:failed|timeout)|Need to shutdown all links|"
        r"[Hh]eartbeat timed out|bad state and may need to be reset)|"
        # The device disappeared under a program that uses it (nv-pci.c).
        r"NVRM: Attempting to remove (?:minor )?device \S{1,20} with non-zero usage count",
    ),
    (
        "gpu_driver_error",
        Verdict.DEGRADED,
        r"NVRM:? .{0,200}Assertion failed|nv(?:idia-peermem|_mem) nv_get_p2p_free_callback",
    ),
    # AMD's driver reports programs that hit a missing page, a ring that does not advance, or memory
    # faults.
    (
        "gpu_driver_error",
        Verdict.FAIL,
        r"\bamdgpu\b.{0,200}(?:GPU fault|\bring \S{1,40} timeout|GPU reset (?:begin|failed)|VRAM is lost|"
        r"uncorrectable hardware errors|page fault \(src_id|hardware exception|"
        r"Fatal error during GPU init|[Dd]evice (?:is )?lost|"
        # The GPU has more bad pages than are allowed (amdgpu_ras_eeprom.c).
        r"RAS records:\d+ exceeds? threshold)",
    ),
    # The memory's error is uncorrected, but no program used the value yet (amdgpu_ras.c, level info).
    (
        "gpu_driver_error",
        Verdict.UNPROVEN,
        r"\bamdgpu\b.{0,200}[1-9]\d* (?:new )?(?:deferred hardware errors|poison consumption) detected",
    ),
    ("gpu_driver_error", Verdict.DEGRADED, r"\bamdgpu\b.{0,200}[1-9]\d* correctable hardware errors"),
    ("pcie_error", Verdict.FAIL, r"\bDPC: containment event|PCIe link lost"),
    (
        "pcie_error",
        Verdict.UNPROVEN,
        r"pciehp\b.{0,60}Slot\([^)]{1,20}\): (?:Link Down|Card not present|Power fault)",
    ),
    # The kernel stopped waiting for a function. While the kernel still waits, the line ends with "waiting",
    # and it is not a fault (drivers/pci/pci.c). The name of the function's driver comes first, or pci without
    # a driver.
    (
        "pcie_error",
        Verdict.FAIL,
        r"\b[\w-]{2,20} [0-9a-f:]{5,13}\.[0-7]: not ready \d{1,9}ms after .{1,40}; giving up",
    ),
    # The function did not wake up, or its registers cannot be read (drivers/pci/pci.c). A refusal to sleep
    # ("Refused to change power state from D0 to D3hot") is harmless.
    (
        "pcie_error",
        Verdict.UNPROVEN,
        rf"{_PCI_FUNCTION}(?:Refused to change power state(?:, currently in D3| from D3\w{{1,4}} to D0)|"
        r"(?:can't|[Uu]nable to) change power state from )",
    ),
    # All registers of the function read as ones (drivers/pci/probe.c).
    ("pcie_error", Verdict.UNPROVEN, rf"{_PCI_FUNCTION}unknown header type 7f, ignoring device"),
    ("pcie_error", Verdict.DEGRADED, r"broken device, retraining non-functional downstream link"),
    # A device accessed memory that is not its own.
    ("pcie_error", Verdict.UNPROVEN, r"\bDMAR: \[.{0,60}\] Request device|\bAMD-Vi: .{0,40}IO_PAGE_FAULT"),
    # Arm's IOMMU reports such an access, too. The kernel gives most of these lines the level info.
    (
        "pcie_error",
        Verdict.UNPROVEN,
        r"\barm-smmu\S{0,10} \S{1,60}: (?:event 0x[0-9a-f]{2} received|event: [CF]_|Unhandled context fault)",
    ),
    # The link gives a fast card (x16, 100 Gb/s or more) less than its bandwidth.
    (
        "pcie_error",
        Verdict.UNPROVEN,
        r"available PCIe bandwidth, limited by .{0,160}[1-9]\d\d[.\d]* Gb/s with .{1,20}x16 link",
    ),
    # mlx5 numbers severities as syslog does: 3 is an error.
    (
        "network_card_error",
        Verdict.FAIL,
        r"mlx5_core .{0,160}(?:health compromised|severity\([0-3]\)|[Ff]atal error|"
        r"health recovery failed|handling bad device|unrecoverable|failed with error|"
        r"initialization failed)|"
        r"mlx5_core: probe of \S+ failed|bnxt_en .{0,100}(?:[Ff]irmware .{0,40}(?:fatal|unresponsive))",
    ),
    (
        "network_card_error",
        Verdict.UNPROVEN,
        r"mlx5_core .{0,160}(?:firmware internal error|leak of a command resource)|"
        # A transfer failed. The program at its other end was killed, or a port, a cable or the card is
        # faulty.
        r"\bmlx[45]_\w{1,10}\b.{0,160}(?:\bdump_cqe\b|\bCQ error on CQN|[Ee]rror [Cc][Qq][Ee]\b)|"
        r"\bdump error cqe\b|\bmlx[45]_\w{0,20}handle_error_cqe\b|"
        r"NETDEV WATCHDOG: .{0,100}timed out|"
        # Intel's drivers: a queue of the card does not advance, or its registers read as ones.
        rf"\bDetected (?:Hardware|Tx) Unit Hang|{_NETWORK_PORT}Adapter removed",
    ),
    (
        "network_card_error",
        Verdict.DEGRADED,
        r"mlx5_core .{0,160}(?:[Hh]igh [Tt]emperature|severity\(\d\)|Health issue|"
        r"Port module event\[\w{1,10}\]|insufficient power)",
    ),
    (
        "storage_error",
        Verdict.FAIL,
        rf"(?:I/O|critical [a-z]{{1,8}}|[Mm]edium) error(?:,| on) {_DISK}|"
        rf"{_NVME}(?:controller is down|Device not ready|Removing after probe|Disabling device)|"
        r"\bnvme\w* .{0,80}timeout, (?:reset|disable) controller|"
        r"EXT[234]-fs error|Remounting filesystem read-only|Aborting journal on device|"
        r"XFS \([^)]{1,40}\): .{0,120}(?:[Cc]orrupt|[Ss]hut(?:ting)? ?down|I/O [Ee]rror)|"
        r"no available path - failing I/O|access beyond end of device|"
        r"I/O error while (?:reading|writing)|JBD2: Detected IO errors|BTRFS(?::)? (?:error|critical)|"
        r"BTRFS .{0,80}csum failed|md/raid\S{0,20}: Disk failure|"
        # The firmware of a disk controller stopped, or a virtual disk is offline.
        r"megaraid_sas .{0,60}FW in FAULT state|mpt[23]sas.{0,80}(?:fault_state|SAS host is non-operational)|"
        r"megaraid_sas .{0,100} - VD \S{1,10} is now OFFLINE",
    ),
    # The drive reported an internal error. The kernel resets it and repeats the requests.
    ("storage_error", Verdict.UNPROVEN, r"\bnvme\w* .{0,40}resetting controller due to (?:AER|persistent)"),
    # The kernel gave a disk up, or a command to it did not end (drivers/scsi, drivers/ata). The disk may be a
    # medium that the management controller offered for a while.
    (
        "storage_error",
        Verdict.UNPROVEN,
        r"\bs[dr] [\d:]+: .{0,40}rejecting I/O to (?:offline|dead) device|"
        r"\bDevice offlined - not ready after error recovery|"
        r"\bata\d{1,4}(?:\.\d\d)?: (?:exception Emask|disabled$)",
    ),
    # The kernel took an NVMe disk away (block/genhd.c, level info). An operator may have removed it.
    ("storage_error", Verdict.UNPROVEN, r"\bnvme\w+: detected capacity change from [1-9]\d* to 0$"),
    # A Lustre server evicted this client, so requests under way were lost.
    ("storage_error", Verdict.UNPROVEN, r"\bLustreError: .{0,200}client was evicted by"),
    # Redundancy or a connection is lost, or data are inconsistent. The kernel gives these lines the levels
    # warning and info.
    (
        "storage_error",
        Verdict.DEGRADED,
        r"megaraid_sas .{0,100} - (?:VD \S{1,10} is now (?:PARTIALLY )?DEGRADED|Removed: PD)|"
        r"\bmd\d{1,4}: mismatch sector in range|device-mapper: multipath: .{0,40}Failing path|"
        r"\bLustre: .{0,200}Connection to .{0,100} was lost; in progress",
    ),
    # An array started without all its disks. The kernel gives this line the level info.
    ("storage_error", Verdict.DEGRADED, r"\bmd/raid\S{0,20}: .{0,20}\bactive with (\d+) out of (?!\1 )\d+ "),
    # The server is on another machine and may be back. Another check tests whether the mount works.
    ("storage_error", Verdict.DEGRADED, r"\bnfs: server \S+ not responding"),
    ("storage_error", Verdict.DEGRADED, r"\bCIFS: .{0,200}has not responded in|mounting fs with errors"),
    ("storage_error", Verdict.DEGRADED, r"\bnvme\w* .{0,80}timeout, (?:aborting|completion polled)"),
    # A program's own fault ("traps: python[1] general protection fault ip:") is not a kernel fault.
    (
        "kernel_error",
        Verdict.FAIL,
        r"\bOops\b.{0,200}(?:\[#\d|: [0-9a-f]{4})|"
        r"\bBUG: (?:unable to handle|kernel NULL|Bad page|scheduling while|(?:TASK )?stack guard page)|"
        r"kernel BUG at|general protection fault(?:, probably|.{0,40}\[#\d)|Unable to handle kernel|"
        r"Internal error: .{1,80}\[#|hard LOCKUP|Kernel panic|\bSError Interrupt|"
        # The function die() of x86 writes the name of any exception, such as "invalid opcode", an error code
        # and the number of the crash (arch/x86/kernel/dumpstack.c, level warning).
        r": [0-9a-f]{4,16} \[#\d{1,5}\]|\bPANIC: double fault\b|"
        # A processor did not start (arch/arm64/kernel/smp.c).
        r"\bCPU\d{1,5}: (?:is stuck in kernel|died during early boot|may not have shut down cleanly|"
        r"failed to come online|failed in unknown state)",
    ),
    ("kernel_error", Verdict.UNPROVEN, r"\bBUG: workqueue lockup|NMI received for unknown reason"),
    ("kernel_error", Verdict.UNPROVEN, r"\birq \d{1,6}: nobody cared"),
    ("kernel_error", Verdict.UNPROVEN, r"soft lockup - CPU|\brcu\w*:? .{0,60}detected .{0,20}stall"),
    ("task_hung", Verdict.DEGRADED, r"blocked for more than \d{1,9} seconds"),
    # A program that uses up the memory of its control group harms only itself. The pattern does not match
    # that line ("Memory cgroup out of memory").
    ("out_of_memory", Verdict.DEGRADED, r"\bOut of memory: Kill"),
    ("program_crashed", Verdict.UNPROVEN, r"\bnv-fabricmanag\w*\[\d{1,10}\]: segfault at"),
    (
        "program_crashed",
        Verdict.DEGRADED,
        r"\b(?:nvidia-persiste|nv-hostengine|slurm\w{1,5}|munged|dockerd|containerd)\w*\[\d{1,9}\]: segfault",
    ),
    ("cpu_throttled", Verdict.UNPROVEN, r"critical temperature reached"),
    (
        "cpu_throttled",
        Verdict.DEGRADED,
        r"temperature(?:/speed)?(?: is)? above threshold, cpu clock (?:is )?throttled",
    ),
)
"""Kind, verdict and pattern of lines from which at most a bus address is read. The first match is used."""
_FAULTS = tuple((kind, verdict, re.compile(pattern)) for kind, verdict, pattern in _FAULT_PATTERNS)
_WITH_ADDRESS = ("gpu_driver_error", "pcie_error", "network_card_error")
"""Kinds whose lines name the device by its bus address."""

FAULT_WORDS = (
    "nvrm",
    "nvidia",
    "amdgpu",
    "nvme",
    "xid",
    "hardware error",
    "machine check",
    "edac",
    "aer: ",
    "dpc: ",
    "pciehp",
    "pcie ",
    "dmar: ",
    "amd-vi",
    "arm-smmu",
    "memory failure",
    "soft-offlining",
    "power state",
    "header type",
    "mlx5_core",
    "bnxt_en",
    "netdev",
    "error",
    "-fs ",
    "remounting",
    "xfs ",
    "btrfs",
    "md/raid",
    "aborting",
    "bug:",
    "kernel bug",
    "oops",
    "protection fault",
    "unable to handle",
    "lockup",
    "panic",
    "stall",
    "blocked for",
    "failing i/o",
    "beyond end of",
    "not responding",
    "cifs: ",
    "megaraid",
    "mismatch sector",
    "lustre",
    "giving up",
    "broken device",
    "unknown reason",
    "nobody cared",
    "fault_state",
    "out of memory",
    "throttled",
    "segfault",
    "cmci storm",
    "[#",
    "is stuck in",
    "died during",
    "shut down cleanly",
    "unit hang",
    "adapter removed",
    "offline device",
    "dead device",
    "offlined",
    "non-operational",
    "emask",
    ": disabled",
    "guard page",
    "temperature",
    "fail",
    "timed out",
    "timeout",
    "fatal",
    "corrupt",
    "nv_mem",
    "link is ",
    "link down",
    "link up",
)
"""Words in lower case. Each line that a reader below accepts, or that reports a link, has one of them.

:func:`read_kernel_line` skips lines without these words. plugins/module_utils/rackproof_facts_health.py has
the same words. Searching the words one after another takes a twelfth of the time of one pattern with all of
them.
"""


@dataclass(frozen=True)
class KernelEvent:
    """The event in one line of a kernel log.

    Attributes:
        kind: The kind of the event. ``damaged_line`` means a damaged line about an XID or SXid.
        verdict: The severity. A partly readable line is unproven. A line that an operator declared harmless
            has None.
        bus_id: The bus address as written in the line, or "".
        code: The number of an XID or SXid, or None for other kinds.
        action: The action that an XID requires, which is watch, reset, reboot, isolate or unknown. Empty
            for other kinds.
        text: The message in the line.
    """

    kind: Kind
    verdict: Verdict | None
    bus_id: str = ""
    code: int | None = None
    action: str = ""
    text: str = ""

    @property
    def name(self) -> str:
        """Return the code of the event's finding, such as ``xid_79``, ``sxid_20034`` or ``gpu_lost``."""
        return self.kind if self.code is None else f"{self.kind}_{self.code}"


def requested_action(xid: int, text: str) -> str:
    """Return the action that an XID requires, which is watch, reset, reboot, isolate, or ``unknown``.

    For XIDs 74, 144 to 150 and 154, ``text`` (the driver's message) decides.
    """
    action = ACTIONS.get(xid, "unknown")
    if action == "nvlink":
        return "watch" if "Nonfatal" in text else "reset"
    if xid == RECOVERY_ACTION_CHANGED:
        # The driver itself states the action: "... changed from 0x0 (None) to 0x1 (GPU Reset Required)".
        before, changed, changed_to = text.lower().rpartition(" to ")
        actions = (action for word, action in _RECOVERY.items() if word in changed_to)
        return next(actions, "unknown") if changed and before else "unknown"
    return action


def verdict_of(xid: int, text: str) -> Verdict:
    """Return the severity of an XID.

    It is fail for reset and stronger actions, degraded for watch, and unproven for an unknown action.
    """
    action = requested_action(xid, text)
    if action == "watch":
        return Verdict.DEGRADED
    return Verdict.UNPROVEN if action == "unknown" else Verdict.FAIL


def read_kernel_line(line: str) -> KernelEvent | None:
    """Return the fault that a line reports, or None.

    Args:
        line: One line of ``dmesg`` or ``journalctl``, with or without time and hostname.
    """
    lowered = line.lower()
    if not any(word in lowered for word in FAULT_WORDS):
        return None
    for read in _READERS:
        event = read(line)
        if event is not None:
            return event
    return None


def is_detail(line: str) -> bool:
    """Return whether a line gives only details of an event. Another line states the severity of the event.

    Examples are an SXid's registers (``Data {0x...}``), and the start of a memory error.
    """
    match = _SXID.search(line)
    return (match is not None and _DETAIL.match(match[3] or "") is not None) or bool(_HANDLING.search(line))


def read_unknown_line(
    line: str, level_is_error: bool | None, declared: DeclaredLines | None = None
) -> KernelEvent | None:
    """Return the event of a line that no rule reads, or None if it is no error or is known to be harmless.

    A line that an operator declared harmless also gives an event, without a verdict.

    Args:
        line: A line that :func:`read_kernel_line` does not recognize.
        level_is_error: Whether its level is error or worse, or None if levels are unknown.
        declared: The lines that the operator declared harmless.
    """
    message = unknown_error(line, level_is_error)
    if message is None:
        return None
    text = sanitize(message, 300)
    declaration = declared.declaration(message) if declared is not None else None
    if declared is None or declaration is None:
        return KernelEvent("unknown_kernel_error", Verdict.UNPROVEN, text=text)
    if declared.is_past(declaration):
        past = f"{text} (declared harmless until {declaration.until}, which is past: {declaration.why})"
        return KernelEvent("unknown_kernel_error", Verdict.UNPROVEN, text=past)
    until = f" until {declaration.until}" if declaration.until else ""
    return KernelEvent(
        "declared_harmless", None, text=f"{text} (declared harmless{until}: {declaration.why})"
    )


def _read_xid(line: str) -> KernelEvent | None:
    """Return an error of NVIDIA's driver with its number, or None."""
    match = _XID.search(line)
    if match is None:
        return None
    xid, text = int(match[2]), sanitize(match[3] or "", 300)
    return KernelEvent("xid", verdict_of(xid, text), match[1], xid, requested_action(xid, text), text)


def _read_sxid(line: str) -> KernelEvent | None:
    """Return a fault of an NVSwitch, or None.

    The verdict is fail, degraded if the driver calls the fault non-fatal, or unproven for a line with only
    registers.
    """
    match = _SXID.search(line)
    if match is None:
        return None
    text = sanitize(match[3] or "", 300)
    if _DETAIL.match(text):
        # Registers belong to an event whose first line states its severity. Alone, they prove nothing.
        return KernelEvent("sxid", Verdict.UNPROVEN, match[1], int(match[2]), text=text)
    # Only "Non-fatal" at the start of the driver's message makes an SXid degraded. All others fail.
    verdict = Verdict.DEGRADED if text.startswith("Non-fatal") else Verdict.FAIL
    return KernelEvent("sxid", verdict, match[1], int(match[2]), text=text)


def _read_unreadable_xid(line: str) -> KernelEvent | None:
    """Return a damaged line about an XID or SXid, or None. Readable lines do not reach this function."""
    if _XID_LIKE.search(line) is None:
        return None
    return KernelEvent("damaged_line", Verdict.UNPROVEN, text=sanitize(line, 300))


def _read_lost_gpu(line: str) -> KernelEvent | None:
    return _read_gpu_fault(line, _LOST, "gpu_lost")


def _read_failed_init(line: str) -> KernelEvent | None:
    return _read_gpu_fault(line, _INIT_FAILED, "gpu_init_failed")


def _read_gpu_fault(line: str, pattern: re.Pattern[str], kind: Kind) -> KernelEvent | None:
    """Return an event of verdict fail with the GPU's address if the line matches the pattern, or None."""
    match = pattern.search(line)
    if match is None:
        return None
    address = _GPU_ADDRESS.search(line, match.start())
    text = sanitize(line[match.start() :], 300)
    return KernelEvent(kind, Verdict.FAIL, address[1] if address else "", text=text)


def _read_memory_error(line: str) -> KernelEvent | None:
    """Return a memory error, or None.

    The verdict is fail for an uncorrected error, unproven if the outcome is unknown, or else degraded.
    """
    if decoded := _DECODED.search(line):
        is_lost = int(decoded[1], 16) & _UNCORRECTED_BIT
        text = sanitize(line[decoded.start() :], 300)
        return KernelEvent("memory_error", Verdict.FAIL if is_lost else Verdict.DEGRADED, text=text)
    if handling := _HANDLING.search(line):
        # The next line states whether the error was corrected.
        return KernelEvent("memory_error", Verdict.UNPROVEN, text=sanitize(line[handling.start() :], 300))
    match = _MEMORY.search(line)
    if match is None:
        return None
    verdict = Verdict.FAIL if _UNCORRECTED.search(line) else Verdict.DEGRADED
    return KernelEvent("memory_error", verdict, text=sanitize(line[match.start() :], 300))


def _read_machine_check(line: str) -> KernelEvent | None:
    """Return a machine check, or None. The verdict is fail for an uncorrected error, or else degraded."""
    match = _MACHINE_CHECK.search(line)
    if match is None:
        return None
    text = sanitize(line[match.start() :], 300)
    # A line of registers belongs to a record whose severity is in another line.
    verdict = Verdict.FAIL if _UNCORRECTED.search(line) else Verdict.DEGRADED
    return KernelEvent("machine_check", verdict, text=text)


def _read_pcie_error(line: str) -> KernelEvent | None:
    match = _PCIE.search(line)
    if match is None:
        return None
    text = sanitize(line[match.start() :], 300)
    address = _GPU_ADDRESS.search(line)
    return KernelEvent("pcie_error", _pcie_verdict(text), address[1] if address else "", text=text)


def _pcie_verdict(text: str) -> Verdict:
    if _PCIE_LOST.search(text):
        return Verdict.FAIL
    # The link continues, but a transaction was lost. The cause may be a fault or an unsupported request.
    return Verdict.UNPROVEN if _PCIE_UNCORRECTED.search(text) else Verdict.DEGRADED


def _read_other_fault(line: str) -> KernelEvent | None:
    for kind, verdict, pattern in _FAULTS:
        if match := pattern.search(line):
            address = _GPU_ADDRESS.search(line) if kind in _WITH_ADDRESS else None
            text = sanitize(line[max(0, match.start() - 60) :], 300)
            return KernelEvent(kind, verdict, address[1] if address else "", text=text)
    return None


_READERS: tuple[Callable[[str], KernelEvent | None], ...] = (
    _read_xid,
    _read_sxid,
    # Any other line with the word Xid or SXid is damaged.
    _read_unreadable_xid,
    _read_lost_gpu,
    _read_failed_init,
    _read_memory_error,
    _read_machine_check,
    _read_pcie_error,
    _read_other_fault,
)
