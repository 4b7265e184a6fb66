"""Parse a kernel log (dmesg, journalctl -k, /dev/kmsg, syslog) for :func:`rackproof.logs.parse`.

XIDs are numbered errors of NVIDIA's GPU driver, and SXids are numbered errors of NVSwitches:

    [ 1234.567890] NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.

:mod:`rackproof.logs.kernel_events` reads such lines, and lines about memory, processors, PCIe, disks and
networks. This module recognizes the notations of kernel logs, and judges what several lines show together:
the registers of an SXid, the links of network ports, and lost parts of devices. Begin with
:class:`XidParser`. The result has the format name ``xid``, a finding for each fault, and the number of lines
of each XID and SXid. Nights read kernel logs by the same rules, but without this module.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from typing import ClassVar

from rackproof.core.records import Direction, ParsedLog, Verdict
from rackproof.logs._reading import Log, LogParser, asctime_moment
from rackproof.logs.fault_texts import STAMPS
from rackproof.logs.hardware_daemons import read_daemon_line
from rackproof.logs.kernel_events import KernelEvent, is_detail, read_kernel_line, read_unknown_line
from rackproof.logs.known_kernel_lines import level_is_error
from rackproof.logs.lost_parts import LostPart, LostParts
from rackproof.logs.network_links import BootClock, LinkHistory, read_link_change

_LABEL = (
    r"[A-Za-z][A-Za-z0-9_.-]{0,120}: (?="
    r"\[ *(?:\+?\d{1,9}\.\d|<[ .\d]{1,20}>\]|\w{3} \w{3} |\w{3}[ \d]\d \d\d:)|"
    r"<\d{1,3}>|kern *:|\d{1,4},\d{1,20},\d|(?:\w{3} )?\d{4}-\d\d-\d\d[T ]|1 \d{4}-\d\d-\d\dT|"
    r"\w{3} [ \d]\d \d\d:\d\d|\d{9,12}\.\d)"
)
"""Pattern of the host that pdsh and clush write before a line (``n01: ``), if a kernel's prefix follows."""
_OF_HOST, _OF_HOST_BYTES = re.compile(_LABEL), re.compile(_LABEL.encode())
"""The pattern :data:`_LABEL`, for text and for bytes."""
_HEAD = re.compile(
    rb"NVRM: Xid|NVRM: [^\n]{0,200}(?:fallen off the bus|RmInitAdapter failed)|SXid \(|\[Hardware Error\]|"
    rb"EDAC \w{1,20}: [^\n]{0,20}\b[CU]E\b|PCIe Bus Error: severity="
)
"""Pattern of texts about faults that only a kernel log has. One of them anywhere identifies such a log."""
_RING = re.compile(
    rb"\s*(?:-- (?:Logs|Journal) [^\n]*\n)?(?:(?:" + _LABEL.encode() + rb")?(?:"
    rb"(?:<\d{1,3}>|kern *:\w+ *: )?"
    rb"(?:\[ *\+?\d{1,9}\.\d{6}(?: <[ .\d]{1,20}>)?\]|\[\w{3}[ \d]\d \d\d:\d\d\] |"
    rb"\[(?:\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4} )?<[ .\d]{1,20}>\] )|"
    rb"(?:<\d{1,3}>)?1 \d{4}-\d\d-\d\dT\S{1,40} \S{1,255} kernel - |"
    rb"kern *:\w+ *: \d{4}-\d\d-\d\dT|\d{1,4},\d{1,20},\d{1,20},[^;\n]{1,40};|"
    rb"(?:\w{3} [ \d]\d|(?:\w{3} )?\d{4}-\d\d-\d\d)[T ]\d\d:\d\d:\d\d[^\n]{0,100} kernel: |"
    rb"\d{9,12}\.\d{1,9} \S{1,255} kernel: "
    rb")[^\n]*\n){3}"
)
"""Pattern of three lines of dmesg, /dev/kmsg, ``journalctl -k`` or syslog at the start of a log. They
identify a kernel log without a fault."""
_DATED = re.compile(
    rb"\s*(?:(?:" + _LABEL.encode() + rb")?(?:(?:\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\]|"
    rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d) [^\n]*\n)){3}"
)
"""Pattern of three lines of `dmesg -T` or `--time-format iso` at the start of a log. Programs write such
dates, too, so a text of :data:`_SUBSYSTEM` is needed as well."""
_SUBSYSTEM = re.compile(
    rb":\d\d(?: \d{4}\]|,\d{6}[+-]\d\d:\d\d) (?:\[drm\] |(?:ACPI|BIOS|EXT4-fs|IPv6|NVRM|PCI|XFS|audit|"
    rb"clocksource|mlx5_core|nvidia|nvme|pci|pcieport|rcu|scsi|systemd|usb)\b)"
)
"""Pattern of a message with such a date that only a kernel or its driver writes."""
_START = re.compile(
    rb"(?:\A|\n)[^\n]{0,160}(?:"
    rb"kernel(?:: | - - (?:-|\[[^\]\n]{1,200}\]) )(?:\[ *\d{1,9}\.\d{6}\] ?)?|\[ *0\.000000\] ?|"
    rb":\d\d \d{4}\] |[.\d]>\] |,\d{6}[+-]\d\d:\d\d |;)(?:\[ *[CT]\d{1,10}\] )?"
    rb"Linux version \d"
)
"""Pattern of the first line that a kernel writes when it starts (``Linux version …``)."""
_LINE = re.compile(
    r"^\[\s*(?:\+?\d+\.\d+|<[ .\d]{1,20}>\]|\w{3} \w{3}|\w{3}[ \d]\d \d\d:\d\d\])|^<\d{1,3}>|^kern\s*:|"
    r"^\d{9,11}\.\d+ |\bkernel: |^\w{3} [ \d]\d \d\d:\d\d|^(?:1 )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|"
    r"^\d{1,4},\d+,\d+,"
)
"""Pattern of the prefixes of lines of dmesg, /dev/kmsg, journalctl and syslog."""
_PREFIXED = re.compile(
    rb"(?m)^(?:" + _LABEL.encode() + rb")?(?:\[\s*(?:\+?\d{1,9}\.\d+|<[ .\d]{1,20}>\]|\w{3} \w{3} |"
    rb"\w{3}[ \d]\d \d\d:\d\d\])|<\d{1,3}>|kern *:|\d{9,11}\.\d+ |\w{3} [ \d]\d \d\d:\d\d|"
    rb"(?:1 |\w{3} )?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d{1,4},\d+,\d+,)[^\n]*"
)
"""Pattern of whole lines with such a prefix, with or without the label of a host."""
_MOMENT = re.compile(
    r"^\[\w{3} (\w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})(?: <[ .\d]{1,20}>)?\] |"
    r"^(?:(?:<\d{1,3}>)?1 )?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)"
)
"""Pattern of the date in lines of `dmesg -T`, journalctl and syslog (RFC 5424). Lines of plain dmesg and of
older syslog have no year."""
_OF_KERNEL = re.compile(
    rb"^\[\s*(?:\+?\d+\.\d+(?: <[ .\d]{1,20}>)?\]|<[ .\d]{1,20}>\]|\w{3} \w{3}|\w{3}[ \d]\d \d\d:\d\d\])|"
    rb"^<\d{1,3}>(?!1 \d{4}-)|^kern\s*:|\bkernel: |^(?:<\d{1,3}>)?1 \d{4}-\S{1,60} \S{1,255} kernel |"
    rb"^\d{1,4},\d+,\d+,[^;]{1,40};|^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]|NVRM: |SXid \(|^EDAC "
)
"""Pattern of the kernel's own messages. Messages of programs, which a syslog has as well, are not judged as
errors of the kernel."""
_LOST_LINES = re.compile(
    r"systemd-journald\[\d{1,9}\]: (?:Missed \d{1,12} kernel messages|/dev/kmsg buffer overrun)"
)
"""Pattern of journald's message that kernel lines were lost, because the kernel logs faster than journald
reads."""
_SUPPRESSED = re.compile(r"\b[1-9]\d{0,9} callbacks suppressed")
"""Pattern of the kernel's message that it left lines out, because too many of their kind came at once."""
_MESSAGES = {
    "gpu_lost": "a GPU has fallen off the bus",
    "gpu_init_failed": "the driver cannot initialize a GPU",
    "machine_check": "a processor or the firmware reports a hardware error",
    "memory_error": "the memory controller reports an error",
    "pcie_error": "a PCIe link reports an error",
    "gpu_driver_error": "the GPUs' driver reports an error",
    "network_card_error": "a network card reports an error",
    "storage_error": "a disk or its file system reports an error",
    "kernel_error": "the kernel itself failed, or a processor stood still",
    "task_hung": "a program waited for the kernel for minutes",
    "out_of_memory": "the node ran out of memory, and a program was killed",
    "cpu_throttled": "a processor was too hot and was slowed down",
    "program_crashed": "a program that the node needs has crashed",
    "unknown_kernel_error": "an unknown error of the kernel",
    "declared_harmless": "a line that is declared harmless",
    "damaged_line": "an XID line that cannot be read",
}
"""Message of a finding, by the kind of event. XIDs and SXids have messages of their own
(:func:`_message`)."""


_MOST_LINKS_DOWN = 200
"""Largest number of lines about lost links that are stored for each host, to be judged at the end of its boot
or of the log. Further lines are findings at once, because a start has fewer lost links."""
_MOST_SXIDS = 1000
"""Largest number of SXids that are stored with a severity, and also of those stored without one. A further
SXid without a severity is unproven at once."""
_MOST_PORTS = 100_000
"""Largest number of hosts and ports, counted together, whose links are stored. A lost link of a further host
or port is a finding at once, because nothing shows whether the link was lost only during a start."""


class _HostLinks:
    """The links of one host's network ports since its boot, and the lines about lost links."""

    def __init__(self) -> None:
        self.clock = BootClock()
        self.history = LinkHistory()
        self.downs: list[tuple[str, KernelEvent, int, str]] = []
        """Port, event, line number and text of each line about a lost link."""


class XidParser(LogParser):
    """The parser of kernel logs.

    A finding is an XID, an SXid, another event of :data:`_MESSAGES`, a lost link, or a lost part of a device.
    Other findings state that lines are missing, or that lines of other programs are not judged.
    """

    format: ClassVar[str] = "xid"
    description: ClassVar[str] = "kernel log with XIDs of GPUs and SXids of switches"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain a line about a fault of hardware, or the start of a kernel log."""
        if _HEAD.search(head) is not None or _RING.match(head) is not None:
            return True
        if _DATED.match(head) is not None and _SUBSYSTEM.search(head) is not None:
            return True
        # Search for the plain words first. This is much faster, and every block of an unknown log is tested.
        return b"Linux version " in head and _START.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        log.reads_line = _is_of_kernel
        log.ignored = frozenset(STAMPS)
        self.xids: Counter[tuple[str, str]] = Counter()
        """Number of lines by kind (``xid``, ``sxid``) and code."""
        self.first: dict[tuple[str, str], int] = {}
        """Number of the first line by kind and code, as in ``xids``."""
        self.details: dict[tuple[str, str, int | None], int] = {}
        """Line number of the registers of each SXid without a severity so far, by host, address and code."""
        self.judged: set[tuple[str, str, int | None]] = set()
        """Host, bus address and code of each SXid whose severity a line stated."""
        self.links: dict[str, _HostLinks] = {}
        """The links by the label of a host that pdsh writes, or "" without one."""
        self.ports: set[tuple[str, str]] = set()
        """Host and port of each stored link, and each host with "" as its port."""
        self.kernel_lines = 0
        """Number of lines with an event, or with a prefix of the kernel or syslog."""
        self.parts = LostParts()
        self.moment: re.Match[str] | None = None
        """Date of the last line with a date."""

    def line(self, at: int, text: str) -> None:
        """Read one line of the kernel log."""
        excerpt, text = text, _without_host(text)
        if moment := _MOMENT.match(text):
            self.moment = moment
        if _LOST_LINES.search(text):
            message = "lines of the kernel's log were lost: faults in them are not seen"
            self.log.find("kernel_log_unknown", message, Verdict.UNPROVEN, line=at, excerpt=excerpt)
        elif _SUPPRESSED.search(text):
            message = "the kernel left out lines, because too many of their kind came at once"
            self.log.find("kernel_log_unknown", message, line=at, excerpt=excerpt)
        host = excerpt[: len(excerpt) - len(text)]
        if "Linux version " in text:
            self._start_of_kernel(host, text)
        self.parts.add(host, text, at)
        event = self._event(at, text)
        self.kernel_lines += event is not None or _LINE.search(text) is not None
        if self._is_kept_link(event, host, at, text) or event is None:
            return
        if event.kind == "sxid" and self._is_follow_up(event, host, at, text):
            return
        if event.code is not None:
            self.count(event.kind, str(event.code), at)
        self.log.find(event.name, _message(event), event.verdict, line=at, excerpt=excerpt)

    def _event(self, at: int, text: str) -> KernelEvent | None:
        """Return the event in a line whose host's label was removed, or None.

        Record a remark for a line of another program that is not judged.
        """
        if event := read_daemon_line(text) or read_kernel_line(text):
            return event
        if _is_of_kernel(text[:300].encode()):
            return read_unknown_line(text, level_is_error(text), self.log.declared)
        if _LINE.search(text) is not None:
            message = "lines of programs other than the kernel: only reports of faulty hardware are judged"
            self.log.find("other_programs", message, line=at, excerpt=text)
        return None

    def _is_follow_up(self, event: KernelEvent, host: str, at: int, text: str) -> bool:
        """Return whether a line of an SXid has only registers and no severity.

        The line with the severity may come before or after that line. Without a severity, the SXid is
        unproven at the end of the log.
        """
        key = (host, event.bus_id, event.code)
        if not is_detail(text):
            self.details.pop(key, None)
            if len(self.judged) < _MOST_SXIDS:
                self.judged.add(key)
            return False
        if key not in self.judged and len(self.details) < _MOST_SXIDS:
            self.details.setdefault(key, at)
        elif key not in self.judged and key not in self.details:
            self._find_registers(event.bus_id, event.code, at)
        return True

    def _find_registers(self, bus_id: str, code: int | None, line: int) -> None:
        """Record an SXid of which only the registers are known."""
        message = f"SXid {code} on {bus_id}: the log has only its registers, not its severity"
        self.log.find(f"sxid_{code}", message, Verdict.UNPROVEN, line=line)

    def _find_parts(self, parts: list[LostPart]) -> None:
        """Record a finding for each part of a device that was lost and did not come back."""
        for part in parts:
            event = part.event
            self.log.find(event.name, _message(event), event.verdict, line=part.line, excerpt=part.excerpt)

    def _start_of_kernel(self, host: str, text: str) -> None:
        """Judge the lost links and parts of a host's previous boot, and forget them for its next."""
        self._judge_links(host)
        self._find_parts(self.parts.take(host))
        if self._is_stored(host, ""):
            self.links[host] = _HostLinks()
            self.links[host].clock.start(text)

    def _is_stored(self, host: str, port: str) -> bool:
        """Return whether the links of a host's port are stored, and reserve a place for a new port.

        ``port`` is "" for the host itself.
        """
        if len(self.ports) < _MOST_PORTS:
            self.ports.add((host, port))
        return (host, port) in self.ports

    def _is_kept_link(self, event: KernelEvent | None, host: str, at: int, text: str) -> bool:
        """Return whether a line is about a lost link that is stored, to be judged with the host's whole boot.

        Store the change of any link that the line reports.
        """
        if event is not None and event.kind != "unknown_kernel_error":
            return False
        if (change := read_link_change(text)) is None:
            return False
        if not (self._is_stored(host, "") and self._is_stored(host, change.port)):
            return False
        links = self.links.setdefault(host, _HostLinks())
        links.history.add(change, links.clock.seconds_after_boot(text))
        if event is None or len(links.downs) >= _MOST_LINKS_DOWN:
            return False
        links.downs.append((change.port, event, at, host + text))
        return True

    def _judge_links(self, host: str) -> None:
        """Record a finding for each stored lost link of a host, except for ports that are harmless.

        A port is harmless if its link was lost only during the start, or if it has no cable
        (:meth:`~rackproof.logs.network_links.LinkHistory.harmless_ports`).
        """
        links = self.links.get(host, _HostLinks())
        harmless = links.history.harmless_ports()
        for port, event, at, excerpt in links.downs:
            if port not in harmless:
                self.log.find(event.name, _message(event), event.verdict, line=at, excerpt=excerpt)

    def count(self, kind: str, code: str, at: int) -> None:
        """Count an XID or SXid. Only the first 1000 different ones are counted.

        If the findings have more than 50 codes, record as a failure that not all of them are listed.
        """
        key = (kind, code)
        if key in self.xids or len(self.xids) < 1000:
            self.xids[key] += 1
            self.first.setdefault(key, at)
        if len(self.log.findings) > 50:
            self.log.find("more_xids", "more kinds of XID than are listed", Verdict.FAIL, line=at)

    def _tag_moment(self) -> None:
        """Store the last date as the tag ``ended``, as if it were in UTC."""
        if self.moment is None:
            return
        of_dmesg, day, time = self.moment.groups()
        try:
            moment = (
                asctime_moment(of_dmesg)
                if of_dmesg
                else datetime.fromisoformat(f"{day}T{time}").replace(tzinfo=UTC)
            )
        except ValueError:
            return
        if moment is not None:
            self.log.tags["ended"] = moment.isoformat()

    def finish(self) -> ParsedLog:
        """Return the parsed log. Its measurements are the number of lines of each XID and SXid.

        Without any, there is one ``xid_count`` of 0. A kernel log without faults passes. Text that is not a
        kernel log is unproven.
        """
        measurements = [
            self.measure(
                f"{kind}_count",
                float(times),
                "",
                Direction.LOWER,
                self.first[kind, code],
                labels={kind: code},
            )
            for (kind, code), times in sorted(self.xids.items())
        ]
        self._tag_moment()
        for host in self.links:
            self._judge_links(host)
        self._find_parts(self.parts.take_all())
        for (_host, bus_id, code), line in self.details.items():
            self._find_registers(bus_id, code, line)
        if not self.kernel_lines:
            if self.log.size:
                self.log.find("unrecognised", "no line of a kernel's log", Verdict.UNPROVEN)
            return self.log.parsed(self.format, Verdict.UNPROVEN, measurements)
        if not self.xids:
            measurements.append(self.measure("xid_count", 0.0, "", Direction.LOWER, None))
        return self.log.parsed(self.format, Verdict.PASS, measurements)


def without_kernel_lines(block: bytes) -> bytes:
    """Return a block in which the lines of the kernel and of syslog are empty, so that others can be read.

    The other lines keep their numbers.
    """
    return _PREFIXED.sub(b"", block)


def _without_host(line: str) -> str:
    """Return a line without the label that pdsh writes before it."""
    label = _OF_HOST.match(line)
    return line[label.end() :] if label else line


def _is_of_kernel(line: bytes) -> bool:
    """Return whether a line is the kernel's own message, with or without the label of a host.

    :class:`Log` then does not search the line for texts of failures, because the rules here judge it.
    """
    label = _OF_HOST_BYTES.match(line)
    return _OF_KERNEL.search(line[label.end() if label else 0 :][:300]) is not None


def _message(event: KernelEvent) -> str:
    """Return the text of a kernel event for an operator."""
    if event.kind == "xid":
        return f"XID {event.code} on {event.bus_id} ({event.action}): {event.text}"
    if event.kind == "sxid":
        return f"SXid {event.code} on {event.bus_id}: {event.text}"
    if event.kind in ("unknown_kernel_error", "declared_harmless"):
        return f"{_MESSAGES[event.kind]}: {event.text}"
    return _MESSAGES[event.kind]
