"""Decide whether a kernel line that no rule reads may be an error.

:mod:`rackproof.logs.kernel_events`, the parser xid and nodes/kernel_log.py use this module. Begin with
:func:`unknown_error`. If it returns the message of a line, the line becomes an unproven finding, unless the
operator declared it harmless::

    <3>[    8.1] foo 0000:07:00.0: probe failed      (level 3, error: "foo 0000:07:00.0: probe failed")
    <3>[    1.2] i8042: No controller found          (in HARMLESS_LINES: None)

:data:`HARMLESS_LINES` lists lines of healthy machines. Add a line only with its source: a boot log of a
machine that is known to work, a report that establishes that the line is harmless, or the source of the
kernel that shows why. Patterns are searched in the message, without time and hostname. The module does no
I/O.
"""

from __future__ import annotations

import re

from rackproof.logs.network_links import read_link_change

HARMLESS_LINES: tuple[tuple[str, str], ...] = (
    (
        r"^-- (?:No entries|Reboot|Boot [0-9a-f]{8,64}|(?:Logs begin|Journal begins) at .{1,200}) --$",
        "remarks of journalctl, for example that a night has no entry",
    ),
    # Lines from the start of the machine, about firmware, processors, chipset and other devices of the board.
    (
        r"^ACPI BIOS Error \(bug\): (?:Could not resolve symbol|Failure creating named object)",
        "github.com/ublue-os/bazzite/issues/1608, void-linux/void-packages/issues/53934 (kern.err)",
    ),
    (
        r"^ACPI Error: (?:AE_\w+, |Aborting method |Method parse/execution failed )",
        "github.com/ublue-os/bazzite/issues/1608, void-linux/void-packages/issues/53934 (kern.err)",
    ),
    (
        r"^ACPI Error: (?:No handler for Region \[(?:POWR|SYSI)\]|Region IPMI \(ID=7\) has no handler)",
        "drivers/acpi/acpica/evregion.c: servers with a power meter, without acpi_ipmi; SYSI: "
        "imbue-ai/cluster-health, dmesg_whitelist.py, servers of Dell with H100",
    ),
    (
        r"^ACPI: \S{1,60}: _PMC evaluation failed: AE_NOT_EXIST",
        "drivers/hwmon/acpi_power_meter.c on Dell servers before acpi_ipmi is loaded: the kernel's mailing "
        "list, patches of Kai-Heng Feng, 2024",
    ),
    (
        r"^No (?:Local Variables|Arguments) are initialized for [Mm]ethod \[",
        "drivers/acpi/acpica/dbdisply.c, follows an ACPI Error; Ubuntu 24.04, kernel 6.8",
    ),
    (
        r"\[Firmware Bug\]: ",
        "github.com/NVIDIA/nvidia-docker/issues/1217 (BIOS _OSI query), pkoutoupis/rapiddisk/issues/13",
    ),
    (
        r"^APEI: Can not request \[mem .{1,60}\] for APEI (?:BERT|ERST|EINJ)",
        "the kernel's mailing list, patches of Xuesong Chen on EINJ, 2021; boot logs with BERT",
    ),
    (
        r"^(?:check: )?Scanning (?:\d{1,4} areas )?for low memory corruption",
        "arch/x86/kernel/check.c: each start of Ubuntu; boot log of a healthy machine, Ubuntu 20.04",
    ),
    (
        r"^ERST: (?:Failed to get Error Log Address Range|Error Record Serialization Table \(ERST\) support)|"
        r"^BERT: Boot Error Record Table support is disabled",
        "drivers/acpi/apei/erst.c: firmware without a log of errors; boot log of a Supermicro server; "
        "github.com/microsoft/lisa/pull/846",
    ),
    (
        r"^ACPI: _OSC evaluation for CPUs failed, trying _PDC",
        "drivers/acpi/acpi_processor.c: older firmware; boot log of a Supermicro server, Rocky Linux",
    ),
    (
        r"^Intel machine check (?:architecture supported|reporting enabled)",
        "loghub, Linux_2k.log: a processor of 2005 at each start",
    ),
    (
        r"^pci [0-9a-f:.]+: (?:(?:VF )?BAR \d{1,2}|bridge window)\b.{0,60}: (?:failed to|can't) assign|"
        r"^pci [0-9a-f:.]+: (?:BAR \d{1,2}: )?failed to assign \[io ",
        "drivers/pci/setup-bus.c: ports of a bridge that nothing needs; boot log of a server, Ubuntu 20.04",
    ),
    (
        r"^pci [0-9a-f:.]+: DOE: \[\w+\] (?:ABORT timed out|failed to (?:reset|create) mailbox)",
        "drivers/pci/doe.c: a mailbox that a card announces and lacks; boot log of a Supermicro server",
    ),
    (
        r"^ACPI: \S{0,60}: failed to evaluate _DSM",
        "drivers/acpi/utils.c: firmware without the method; boot log of a server with persistent memory",
    ),
    (
        r"^\[Firmware Warn\]: ",
        "boot log of a server with persistent memory: GHES without a poll interval, which is left out",
    ),
    (
        r"^ipmi_si \S{1,40}: Error clearing flags: ",
        "drivers/char/ipmi/ipmi_si_intf.c: a management controller that lacks the command",
    ),
    (
        r"^hpet_acpi_add: no address or irqs in _CRS",
        "drivers/char/hpet.c; boot logs of Ubuntu and Debian",
    ),
    (
        r"^acpi PNP0A0[38]:\w\w: fail to add MMCONFIG information",
        "github.com/teemtee/tmt/issues/1042 (a virtual machine of QEMU)",
    ),
    (
        r"^mce: Unable to init MCE device \(rc: -5\)",
        "kata-containers/kata-containers, test of a guest's dmesg",
    ),
    (
        r"^x86/cpu: SGX disabled (?:or unsupported )?by BIOS",
        "arch/x86/kernel/cpu/feat_ctl.c; boot logs of Proxmox, Arch and Ubuntu; the longer words since 6.12: "
        "github.com/deepin-community/kernel/pull/423",
    ),
    (
        r"^integrity: (?:Problem loading X\.509 certificate -65|Error adding keys to platform keyring)",
        "the kernel's mailing list, patch of Lee, Chun-Yi, May 2019: certificates of old kinds",
    ),
    (
        r"^Spectre V2 : WARNING: |^RETBleed: WARNING: ",
        "github.com/microsoft/OHCL-Linux-Kernel/issues/40: warnings of level error",
    ),
    (
        r"^i8042(?: i8042)?: ",
        "drivers/input/serio, github.com/thesofproject/sof-test/issues/1163: a keyboard's controller, which "
        "servers and virtual machines lack",
    ),
    (
        r"^blacklist: Problem blacklisting hash \(-13\)",
        "the kernel's mailing list, patch of Thomas Weissschuh, 2022: firmware of several vendors",
    ),
    (
        r"^(?:integrity: )?(?:MODSIGN: )?Couldn't get (?:size: 0x8|UEFI (?:db|dbx|MokListRT) list|mokx list)",
        "the kernel's mailing list, 2019 and 2022; boot logs without Secure Boot",
    ),
    (r"^Initramfs unpacking failed: Decoding failed", "Ubuntu 19.10 to 20.04 with lz4: it boots"),
    (
        r"^PCI: Fatal: No config space access function found",
        "the kernel's mailing list, patch for virtual machines of Hyper-V: a harmless warning",
    ),
    (
        r"^piix4_smbus \S{1,20}: SMBus (?:Host Controller not enabled|base address uninit)",
        "drivers/i2c/busses/i2c-piix4.c; boot logs of virtual machines of VMware, QEMU and Xen",
    ),
    (
        r"^Error: Driver 'pcspkr' is already registered, aborting",
        "boot logs of servers and virtual machines with snd_pcsp",
    ),
    (
        r"^EDAC amd64: Error: F\d not found, device 0x\w{4} \(broken BIOS\?\)",
        "drivers/edac/amd64_edac.c: a kernel older than its processor",
    ),
    (
        r"^ACPI: SPCR: Unexpected SPCR Access Width\.",
        "drivers/acpi/spcr.c: the console's width, which defaults; boot logs of servers of HPE and with EPYC",
    ),
    (
        r"^power_meter \S+: Ignoring unsafe software power cap!",
        "github.com/damentz/liquorix-package/issues/77: firmware without this power cap; a server that works",
    ),
    (
        r"^(?:pci \S+: )?AMD-Vi: Unable to (?:read/)?write(?: to)? IOMMU perf counter",
        "github.com/FascodeNet/alterlinux/issues/238: journalctl -p 3 of a machine that works",
    ),
    (
        r"^kvm: (?:support for '\w{1,20}' )?disabled by bios",
        "arch/x86/kvm/x86.c: virtualization is off in the BIOS, and a node does not need it; boot logs",
    ),
    (
        r"^(?:tpm_tis|arm-smmu-v3-pmcg) \S+: IRQ index 0 not found",
        "the kernel's mailing list, patches of Hans de Goede and others to platform_get_irq_optional",
    ),
    (
        r"^tegra-qspi \S+: (?:device reset failed|cannot use DMA: -19)",
        "the kernel's mailing list, patches of Breno Leitao on spi-tegra210-quad: each boot of Grace servers",
    ),
    # Lines about devices that are absent, or that need no action.
    (
        r"^\S+ \S+: (?:DPC:? )?error containment capabilities: Int Msg #\d",
        "drivers/pci/pcie/dpc.c (level info): each boot with DPC; "
        "github.com/slimbootloader/slimbootloader/issues/1502",
    ),
    (
        r"^\w{1,9} [0-9:]+: (?:Wrong diagnostic page; asked for \d|Failed to get diagnostic page 0x)|"
        r"^\w{1,9} [0-9:]+: Failed to bind enclosure -19",
        "drivers/scsi/ses.c: USB devices that answer as an enclosure, such as a controller's virtual media",
    ),
    (
        r"\[sd\w{1,3}\] (?:No Caching mode|Assuming drive cache|Cache data unavailable|Asking for cache)",
        "drivers/scsi/sd.c; boot logs of Ubuntu",
    ),
    (
        r"I/O error(?:,| on) dev(?:ice)? (?:fd|sr|loop)\d",
        "drives without a medium; blk_update_request on fd0 of virtual machines",
    ),
    (
        r"^\S+ regulatory(?:\.0)?: (?:Direct firmware load for|firmware: failed to load) regulatory\.db\b|"
        r"^cfg80211: failed to load regulatory\.db",
        "github.com/systemd/systemd/issues/27520: machines without radio, whose networkd loads cfg80211",
    ),
    (
        r"^FAT-fs \(\S{1,40}\): Volume was not properly unmounted\. Some data may be corrupt\.",
        "fs/fat/inode.c: the EFI partition's mark after a power cut, which only fsck removes; it is mounted "
        "and read as usual",
    ),
    (r"renesas_usb_fw\.mem", "github.com/spectrocloud/CanvOS/pull/700: a healthy HGX B200"),
    (r"watchdog did not stop!", "drivers/watchdog/watchdog_dev.c: every shutdown with systemd's watchdog"),
    # Lines about GPUs, network cards and disks.
    (
        r"^NVRM: loading NVIDIA UNIX .{0,40}Kernel Module ",
        "own measurement: dmesg --level=err of a virtual machine with an H100, driver 580.159.04; each start",
    ),
    (
        r"^NVRM:? objClInitPcieChipset: \*\*\* Chipset Setup Function Error",
        "github.com/NVIDIA/open-gpu-kernel-modules/issues/421 and 489: the GPUs work",
    ),
    (
        r"^\w{1,60}: module verification failed: signature and/or required key missing",
        "github.com/spectrocloud/CanvOS/pull/700: a healthy HGX B200",
    ),
    (
        r"mlx5_cmd_out_err:.{0,40}ACCESS_REG\(0x805\) .{0,40}failed, status bad (?:operation|parameter)",
        "github.com/leptonai/gpud/issues/1164: ConnectX-7 of an HGX B200, after a request for an absent "
        "feature",
    ),
    (
        r"^nvidia \S+: \[drm\] Cannot find any crtc or sizes",
        "github.com/NVIDIA/nvtrust/issues/128: a GPU without a display, at each start of working H20",
    ),
    (
        r"^(?:nvme|pcieport) \S+: can't derive routing for PCI INT [A-D]",
        "github.com/triton-inference-server/server/issues/4154: disks of Azure, which need no such interrupt",
    ),
    (
        r"^mlx5_core \S+: Successfully (?:un)?registered panic handler",
        "github.com/oracle/oracle-linux/issues/85: MLNX_OFED at each start and stop",
    ),
    (
        r"^nvidia-gpu \S+: i2c timeout error|^ucsi_ccg \S+: (?:i2c_transfer|ucsi_ccg_init) failed",
        "github.com/TLATER/nixos-hosts/issues/69, NVIDIA/open-gpu-kernel-modules/issues/116: the USB-C port "
        "that a card lacks",
    ),
    (r"^nvme nvme\d+: (?:Shutdown timeout set to|missing or invalid SUBNQN)", "drivers/nvme/host/core.c"),
    # Errors of programs, and lines that continue an earlier line.
    (r"^\[ *\d+\] +\d+ +\d+ +\d+ ", "mm/oom_kill.c: a table of tasks. A name of a task can contain any word"),
    (
        r"^(?:Memory cgroup out of memory: |Tasks in .{1,300} are going to be killed)",
        "github.com/docker/for-linux/issues/1001: the limit of a container",
    ),
    (
        r"^\s*(?:Not tainted|Tainted: )|hung_task_timeout_secs\" disables this message",
        "the kernel's test robot, report on dmaengine/idxd, May 2026: follows a hung task (kern.err)",
    ),
    (
        r"device \[[0-9a-f]{4}:[0-9a-f]{4}\] error status/mask=|^\S+ [0-9a-f:.]+: +\[ ?\d{1,2}\] |"
        r"AER: +(?:Error of this Agent(?:\(\S{1,10}\))? is reported first|TLP Header: )|"
        r"^\S+ [0-9a-f:.]+: broadcast \w{1,20} message$",
        "Red Hat Enterprise Linux 8, managing the kernel, 32.1; github.com/wilicc/gpu-burn/issues/1, "
        "Dasharo/dasharo-issues/issues/746, minisforum-docs/MS-02-Ultra/issues/10: follows a line of AER",
    ),
)
"""Pattern of each harmless line, and its source, with the reason where it is not obvious."""
_HARMLESS = re.compile("|".join(f"(?:{pattern})" for pattern, _ in HARMLESS_LINES))

_LEVEL_PREFIX = r"<\d{1,3}>|kern\s*:\w+\s*: |\d{1,4},\d{1,20},\d{1,20},[^;\n]{1,40};"
"""Pattern of the levels of ``dmesg -r``, ``dmesg -x``, and /dev/kmsg."""
_JOURNAL_TIME = (
    r"\d{9,12}(?:\.\d{1,9})? |(?:\w{3} )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,20} (?:[A-Z]{3,5} )?|"
    r"\w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})? |\[\s*\d{1,12}\.\d{1,9}\] "
)
"""Pattern of the time at the start of a line of syslog, or of journalctl with ``--output=short…``. The host
follows the time."""
_RFC5424_HEADER = (
    r"1 \d{4}-\d\d-\d\dT\S{1,40} \S{1,255} kernel \S{1,128} \S{1,32} (?:-|(?:\[[^\]]{1,500}\]){1,9}) \ufeff?"
)
"""Pattern of the header of RFC 5424 before a message of the kernel."""
_DMESG_TIME = (
    r"\[\s*\+?\d{1,12}\.\d{1,9}(?: <\s*\d{1,12}\.\d{1,9}>)?\] ?|\[\w{3}[ \d]\d \d\d:\d\d\] |"
    r"\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}(?: <\s*\d{1,12}\.\d{1,9}>)?\] |\[<\s*\d{1,12}\.\d{1,9}>\] |"
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d "
)
"""Pattern of the times of ``dmesg`` (``--time-format`` raw, delta, reltime, ctime and iso)."""
_PREFIX = re.compile(
    rf"(?:{_LEVEL_PREFIX})?"
    rf"(?:{_RFC5424_HEADER}|(?:{_JOURNAL_TIME})?(?:[\w.:-]{{1,255}} )?kernel: )?"
    rf"(?:{_DMESG_TIME})?"
    # A kernel with CONFIG_PRINTK_CALLER adds the task or the processor.
    r"(?:\[\s*[CT]\d{1,10}\] ?)?"
)
"""Pattern of the prefixes of lines of dmesg, journalctl, syslog and /dev/kmsg."""
_STAMP = (
    r"\[ *\+?\d{1,9}\.\d{6}(?: <[ .\d]{1,20}>)?\]|\[<[ .\d]{1,20}>\]|\[\w{3}[ \d]\d \d\d:\d\d\]|"
    r"\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}(?: <[ .\d]{1,20}>)?\]|"
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d"
)
"""Pattern of the times of ``dmesg``, as in :data:`_DMESG_TIME`. UCX writes the seconds since 1970, which have
ten digits, in the same form."""
_OF_SYSLOG = re.compile(
    r"(?:^\s*|(?<=\s))kernel(?:(?:\[\d{1,10}\])?: | - \S{1,32} (?:-|\[[^\]]{1,200}\]) )|^\s*kernel:"
)
"""Pattern of what syslog, ``journalctl`` and ``wall`` write right before a message of the kernel."""
_OF_DMESG = re.compile(
    r"(?:^|(?<=[\s>|:]))(?:\d{1,4},\d{1,20},\d{1,20},[^;\n]{1,40};|"
    rf"(?:<\d{{1,3}}>|kern *:\w+ *: )?(?:{_STAMP})(?=[ \[]))"
)
"""Pattern of what ``dmesg``, a console and /dev/kmsg write before a message of the kernel, at the start of a
line or behind the label of a launcher."""
_DEVICE = re.compile(r"[a-z][\w-]{1,30} (?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")
"""Pattern of a driver's name and a bus address at the start of a message."""
# Pattern of the forms that _LEVEL_PREFIX has, with the level in a group.
_LEVEL = re.compile(r"<(\d{1,3})>|kern\s*:(\w+)\s*: |(\d{1,4}),\d{1,20},\d{1,20},[^;\n]{1,40};")
_ERROR_LEVELS = ("emerg", "alert", "crit", "err")
"""Names of the levels 0 to 3."""
_PROGRAM = re.compile(r"(?:traps: )?[\w.@:-]{1,40}\[\d{1,10}\]:? ")
"""Pattern of the name and process id of a program at the start of its message."""
_HARDWARE = re.compile(
    r"NVRM\b|nvidia[\w-]{0,20}\b|\[drm:nv_|mlx5_\w+|bnxt_en\b|nvme[\w]{0,20}\b|EDAC\b|mce:|pciehp\b|pcieport\b"
)
"""Pattern of the first word in messages of drivers for a node's GPUs, links, network cards, disks
and memory."""
_HARDWARE_WORDS = re.compile(
    r"\b(?:errors?|fail(?:ed|ure|s)?|timed? ?out|fatal|corrupt\w*|lost|bad|unexpected|invalid|unable|cannot|"
    r"can't|exception|panic|abort\w*|stuck|hung|dead|unrecoverable|uncorrect\w*|link down)\b|\*ERROR\*",
    re.IGNORECASE,
)
"""Pattern of the words of a failure in messages of these drivers."""
_WORDS = re.compile(r"\b(?:error|failed|failure|timed out|timeout|corrupt\w*|fatal)\b", re.IGNORECASE)
"""Pattern of the words of a failure in other messages of unknown level."""


def unknown_error(line: str, level_is_error: bool | None) -> str | None:
    """Return the message of a line if it may be an error, or None.

    Args:
        line: A line that no rule reads, with or without time and hostname.
        level_is_error: True if the level is error or worse, False if it is lower, and None if it is
            unknown. If it is unknown, the words of the message decide. For lines of the drivers of
            :data:`_HARDWARE`, they also decide if the level is lower, because NVIDIA's driver writes most of
            its errors without a level.
    """
    message = message_of(line)
    if not message or _HARMLESS.search(message):
        return None
    # A lost link of a port counts at any level, because most drivers of network cards report it at a low one.
    if level_is_error or ((change := read_link_change(message)) and not change.is_up):
        return message
    if _HARDWARE.match(message):
        return message if _HARDWARE_WORDS.search(message) else None
    # The kernel's ring buffer also contains messages of programs, such as "systemd[1]: Failed to ...". Their
    # words are not judged.
    is_guessed = level_is_error is None and not _PROGRAM.match(message)
    return message if is_guessed and _WORDS.search(message) else None


def level_is_error(line: str) -> bool | None:
    """Return whether the level of a line is error or worse, or None if the line has no level.

    Levels are in lines of ``dmesg -x``, ``dmesg -r`` and /dev/kmsg.
    """
    found = _LEVEL.match(line)
    if found is None:
        return None
    # The low three bits of a number are the level. Levels 0 to 3 are error or worse.
    return found[2] in _ERROR_LEVELS if found[2] else int(found[1] or found[3]) & 7 <= 3


def message_of(line: str) -> str:
    """Return the kernel's message without time, hostname and level."""
    return line[_prefix_end(line) :].strip()


def logged_part(line: str) -> tuple[str, bool] | None:
    """Return the part of a job's line that the kernel wrote, from its prefix on, or None.

    The second value is whether the kernel certainly wrote it. Then an error that no rule reads counts, too. A
    time in brackets is not enough for this, because programs write such times. The name of a driver with
    the address of a device must follow it.
    """
    if found := _OF_SYSLOG.search(line):
        return line[found.end() :], True
    if (found := _OF_DMESG.search(line)) is None:
        return None
    part = line[found.start() :]
    message = message_of(part)
    is_driver = _HARDWARE.match(message) or _DEVICE.match(message)
    return part, level_is_error(part) is not None or is_driver is not None


def shape_of(message: str) -> str:
    """Return a message of at most 120 characters with ``#`` for each number.

    Lines that differ only in numbers have one shape, and are reported once.
    """
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", message)[:120]


def _prefix_end(line: str) -> int:
    """Return the position at which the kernel's message begins."""
    found = _PREFIX.match(line)
    return found.end() if found else 0
