"""Read hardware faults from a node's kernel log.

The module does no I/O. :mod:`rackproof.nodes.snapshot` calls :func:`read_kernel_log`. The returned
:class:`KernelLogReading` lists the XIDs (error numbers of NVIDIA's driver) of each GPU, and all other faults.
The rules by which a line is a fault are in :mod:`rackproof.logs.kernel_events`. The log has lines of
journalctl (``-o short-unix``, with earlier boots), or else of dmesg, whose times count from the boot::

    1760000000.123456 n07 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
    [ 4711.123456] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from rackproof.core.records import Record, Verdict
from rackproof.logs.declared_lines import DeclaredLines
from rackproof.logs.kernel_events import KernelEvent, is_detail, read_kernel_line, read_unknown_line
from rackproof.logs.known_kernel_lines import shape_of
from rackproof.logs.network_links import LinkHistory, read_link_change

MOST_XIDS = 500
MOST_HARDWARE_EVENTS = 500
"""A log with more XIDs or other events counts as truncated. A damaged or hostile node may send any number."""
MOST_DECLARED_LINES = 50
"""Largest number of lines shown that an operator declared harmless. They affect no verdict."""
MOST_LATE_LINES = 500
"""Largest number of digests of late lines, which are the last lines of a log. The next night judges all other
lines that it reads again."""
LATE_S = 60
"""Largest difference between the times of a line in two nights, in seconds, if the clock was corrected."""
_STAMP = re.compile(r"\[\s*(\d{1,12}\.\d{6})\]|(\d{9,12}\.\d{6}) ")
"""Pattern of the time of a line of dmesg (group 1, since the boot) or of a journal (group 2, since 1970), in
seconds."""
_MOMENT = re.compile(r"(\d{9,11}\.\d{1,9}) ")
"""Pattern of the time of a journal's line, in seconds since 1970."""
_SINCE_START = re.compile(r"\[\s*(\d{1,9}\.\d{1,9})\]")
"""Pattern of the time of a line of dmesg, in seconds since the kernel's start."""


class XidEvent(Record):
    """An XID since the last snapshot, or one that is still open from before (``carried``).

    ``action`` is what the XID requires (watch, reset, reboot, isolate or unknown), and ``times`` is the
    number of lines. ``rebooted`` means that the node was booted after the XID was logged, and that the XID
    did not occur again.
    """

    bus_id: str
    uuid: str = ""
    xid: int
    action: str
    times: int = 1
    text: str = ""
    carried: bool = False
    rebooted: bool = False


class HardwareEvent(Record):
    """A report of a fault that is not an XID, such as an SXid, a lost GPU, or a fault of memory or PCIe.

    ``code`` is the code of its finding. ``carried`` and ``rebooted`` are as for an XID.
    """

    code: str
    verdict: Verdict
    bus_id: str = ""
    uuid: str = ""
    times: int = 1
    text: str = ""
    carried: bool = False
    rebooted: bool = False


@dataclass(frozen=True)
class KernelLogReading:
    """The contents of a kernel log. ``is_cut`` means that more events were logged than stored."""

    xids: tuple[XidEvent, ...] = ()
    hardware: tuple[HardwareEvent, ...] = ()
    declared: tuple[str, ...] = ()
    """Lines that were declared harmless, each with the reason."""
    is_cut: bool = False


def normalize_bus_id(address: str) -> str:
    """Return a bus address in one form, which is domain, bus and device (``0008:06:00``).

    nvidia-smi writes ``00000008:06:00.0``, the kernel ``0008:06:00.0``, and a log may lack the domain.
    """
    parts = address.lower().split(".")[0].split(":")
    if len(parts) == 3:
        return ":".join([parts[0][-4:].rjust(4, "0"), *parts[1:]])
    return ":".join(["0000", *parts])


def read_kernel_log(
    log: str,
    booted: float,
    uuids: Mapping[str, str],
    errors: str | None = None,
    declared: DeclaredLines | None = None,
    *,
    is_container: bool = False,
) -> KernelLogReading:
    """Return the events in a kernel log. Each part, code and requested action gives one event.

    Args:
        log: The lines of the log.
        booted: The time of the boot in seconds since 1970, or 0 if unknown.
        uuids: The UUIDs of GPUs by bus id, in the form of :func:`normalize_bus_id`.
        errors: The lines of level error or worse, or None if levels are unknown. If no rule recognizes a
            line, its level decides whether it is an error, and without levels its words.
        declared: The lines that the operator declared harmless.
        is_container: Whether the node is a container, which is younger than its kernel.
    """
    reader = _Reader(booted, uuids)
    lines, bad = log.splitlines(), (errors or "").splitlines()
    in_log, of_level = set(lines), set(bad)
    # A node filters its log by words. A line without these words is only among the errors.
    harmless = _links_down_at_start_only(lines, booted, is_container=is_container)
    for line in (*lines, *(line for line in bad if line not in in_log)):
        if (change := read_link_change(line)) and (change.is_up or change.port in harmless):
            continue
        level_is_error = None if errors is None else line in of_level
        event = read_kernel_line(line) or read_unknown_line(line, level_is_error, declared)
        if event is not None:
            reader.add(event, line)
    return reader.result()


def late_line_digests(
    lines: Iterable[str], since: float, started: float | None, boot_id: str
) -> tuple[str, ...]:
    """Return the digests of the lines that the next night reads again, so that it can leave them out.

    Args:
        lines: The lines that this night judges.
        since: The time from which the next night reads, in seconds since 1970.
        started: The time of the kernel's start. None means that it is unknown.
        boot_id: The id of the boot.
    """
    late = (line for line in dict.fromkeys(lines) if _time_of(line, started) >= since - LATE_S)
    return tuple(_digest(line, boot_id) for line in late)[-MOST_LATE_LINES:]


def without_known_lines(log: str, digests: Sequence[str], boot_id: str) -> str:
    """Return a log without the lines that the last night judged, by their digests."""
    if not digests:
        return log
    known = set(digests)
    return "\n".join(line for line in log.splitlines() if _digest(line, boot_id) not in known)


def _time_of(line: str, started: float | None) -> float:
    """Return the time of a line in seconds since 1970, or minus infinity if it is unknown.

    Only microseconds count, because two events may have the same text within one second.
    """
    if (stamp := _STAMP.match(line)) is None:
        return -inf
    if stamp[2]:
        return float(stamp[2])
    return -inf if started is None else started + float(stamp[1])


def _digest(line: str, boot_id: str) -> str:
    """Return the digest of a line. A time of the kernel's ring counts from the boot, so the boot is added."""
    text = f"{boot_id} {line}" if line.startswith("[") else line
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def _links_down_at_start_only(lines: Iterable[str], booted: float, *, is_container: bool) -> set[str]:
    """Return the ports of network cards that went down only while the node started."""
    found = [(line, change) for line in lines if (change := read_link_change(line))]
    changes = [
        (_seconds_after_boot(line, booted, is_container=is_container), change) for line, change in found
    ]
    # The lines of dmesg that a journal lacks follow the journal's lines. Lines of one form are in order,
    # even if the clock was corrected meanwhile.
    forms = {_SINCE_START.match(line) is None for line, _ in found}
    if len(forms) > 1 and all(seconds < inf for seconds, _ in changes):
        changes.sort(key=lambda timed: timed[0])
    history = LinkHistory()
    for seconds, change in changes:
        history.add(change, seconds)
    return history.harmless_ports()


def _seconds_after_boot(line: str, booted: float, *, is_container: bool) -> float:
    """Return the seconds from the boot to a line, negative before it, or infinity if they are unknown."""
    if stamp := _SINCE_START.match(line):
        return inf if is_container else float(stamp[1])
    stamp = _MOMENT.match(line)
    return inf if stamp is None or not booted else float(stamp[1]) - booted


def resolved_by_boot(event: XidEvent) -> bool:
    """Return whether a boot already performed the action that an XID requires."""
    return event.rebooted and is_healed_by_boot(event)


_HEALED_BY_BOOT = ("gpu_lost", "gpu_init_failed", "gpu_driver_error", "kernel_error")
"""Codes of hardware events that a boot heals, as it does SXids, because it starts GPUs and kernel again."""


def is_healed_by_boot(event: XidEvent | HardwareEvent) -> bool:
    """Return whether a boot performs the action that a failure requires. Other failures need a repair."""
    if isinstance(event, XidEvent):
        return event.action in ("reset", "reboot")
    return event.code in _HEALED_BY_BOOT or event.code.startswith("sxid")


class _Reader:
    """The events of a log so far, with one event for each part, code and requested action."""

    def __init__(self, booted: float, uuids: Mapping[str, str]) -> None:
        self.booted, self.uuids = booted, uuids
        self.xids: dict[tuple[str, int, str], XidEvent] = {}
        self.hardware: dict[tuple[str, str, Verdict], HardwareEvent] = {}
        self.details: dict[tuple[str, str], tuple[KernelEvent, bool]] = {}
        self.declared: dict[str, str] = {}
        self.is_cut = False

    def add(self, event: KernelEvent, line: str) -> None:
        """Add one event of the log."""
        if event.verdict is None:
            if len(self.declared) < MOST_DECLARED_LINES:
                self.declared.setdefault(shape_of(event.text), event.text)
            return
        before_boot = _is_before_boot(line, self.booted)
        if event.kind == "xid":
            self._add_xid(event, before_boot)
        elif is_detail(line):
            self._keep_detail(event, before_boot)
        else:
            self._add_hardware(event, before_boot)

    def _keep_detail(self, event: KernelEvent, before_boot: bool) -> None:
        """Keep a line that only describes an event. It counts if no other line reports the event."""
        if len(self.details) < MOST_HARDWARE_EVENTS:
            self.details.setdefault((event.name, _bus_id_of(event)), (event, before_boot))
        else:
            self.is_cut = True

    def _add_xid(self, event: KernelEvent, before_boot: bool) -> None:
        """Add an XID, or count it once more."""
        bus_id = normalize_bus_id(event.bus_id)
        key = (bus_id, event.code or 0, event.action)
        if known_xid := self.xids.get(key):
            # The XID occurred again after the boot, so the boot did not help.
            update = {"times": known_xid.times + 1, "rebooted": known_xid.rebooted and before_boot}
            self.xids[key] = known_xid.model_copy(update=update)
        # A broken GPU can fill a log.
        elif len(self.xids) < MOST_XIDS:
            self.xids[key] = XidEvent(
                bus_id=bus_id,
                uuid=self.uuids.get(bus_id, ""),
                xid=key[1],
                action=event.action,
                text=event.text,
                rebooted=before_boot,
            )
        else:
            self.is_cut = True

    def _add_hardware(self, event: KernelEvent, before_boot: bool) -> None:
        """Add another hardware event, or count it once more."""
        bus_id = _bus_id_of(event)
        verdict = event.verdict or Verdict.UNPROVEN
        # Two unknown lines are the same if they differ only in their numbers.
        part = shape_of(event.text) if event.kind == "unknown_kernel_error" else bus_id
        key = (event.name, part, verdict)
        if known_event := self.hardware.get(key):
            update = {"times": known_event.times + 1, "rebooted": known_event.rebooted and before_boot}
            self.hardware[key] = known_event.model_copy(update=update)
        elif len(self.hardware) < MOST_HARDWARE_EVENTS:
            self.hardware[key] = HardwareEvent(
                code=event.name,
                verdict=verdict,
                bus_id=bus_id,
                uuid=self.uuids.get(bus_id, ""),
                text=event.text,
                rebooted=before_boot,
            )
        else:
            self.is_cut = True

    def result(self) -> KernelLogReading:
        """Return all events."""
        reported = {(code, bus_id) for code, bus_id, _ in self.hardware}
        for key, (event, before_boot) in self.details.items():
            # The line that states the severity of these registers is missing.
            if key not in reported:
                self._add_hardware(event, before_boot)
        declared = tuple(self.declared.values())
        return KernelLogReading(
            tuple(self.xids.values()), tuple(self.hardware.values()), declared, self.is_cut
        )


def _bus_id_of(event: KernelEvent) -> str:
    """Return the bus address of a hardware event in one form, or "" if its line has none."""
    return normalize_bus_id(event.bus_id) if event.bus_id else ""


def _is_before_boot(line: str, booted: float) -> bool:
    """Return whether a line was logged before the boot. A line without a time was not."""
    # The time is in seconds since 1970. dmesg counts from the boot, and prints no lines of an earlier boot.
    stamp = _MOMENT.match(line)
    return stamp is not None and float(stamp[1]) < booted
