"""Read the reports of machines that booted without an order (``rackproof-write-image --report``).

The action of ``rackproof_reimage_discover`` calls :func:`collect` (``by: boot``), and matches the machines
with nodes (:func:`match_reports`). The boot host has one report for each MAC address, such as
``3c-ec-ef-00-00-01.json``::

    {"manufacturer": "Dell Inc.", "model": "XE9680", "serial": "ABC1234",
     "macs": {"3c:ec:ef:00:00:01": true},
     "disks": [{"path": "/dev/nvme0n1", "serial": "S6XN", "bytes": 1920383410176, "by_path": "pci-..."}]}

Any host in that network can write reports. This module therefore limits their number, size and characters.
Their content never becomes the name of a file or a command.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rackproof.core.hostlist import compress_hostlist
from rackproof.core.text import sanitize, size
from rackproof.jobs.reimage import discovery
from rackproof.jobs.reimage.bmc import BmcError, MachineIdentity

MAX_REPORTS = 1024
"""Largest number of machines whose reports one discovery accepts."""
REPORTS_PER_COMMAND = 16
"""Largest number of reports that one command reads. More would make its output too long."""
MAX_BYTES = 64 * 1024
"""Largest size of a report in bytes. The boot host accepts no larger one."""
MAX_PARTS = 64
"""Largest number of disks, and of interfaces, of one machine that are read."""
POLL_S = 2.0
"""Seconds between two listings of the folder."""
_FILE = re.compile(r"((?:[0-9a-f]{2}-){5}[0-9a-f]{2})\.json")
_ALARM = re.compile(r"((?:[0-9a-f]{2}-){5}[0-9a-f]{2})\.alarm")
"""Pattern of the name of an empty file, which means that a second, different report came for an address."""
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")


@dataclass(frozen=True)
class BootReport:
    """A machine's report: its identity (``about``), and a text about each disk."""

    about: MachineIdentity
    disks: tuple[str, ...] = ()


Reports = Mapping[str, BootReport | BmcError]
"""The report of a machine or the reason why it cannot be read, by MAC address."""


class Awaited:
    """The machines that a discovery waits for, by MAC addresses or else by node."""

    def __init__(self, nodes: Mapping[str, discovery.KnownNode], macs: Iterable[Any]) -> None:
        self._nodes = nodes
        self._macs = {str(mac).lower().replace("-", ":") for mac in macs}

    def missing(self, reports: Reports) -> list[str]:
        """Return the MAC addresses, or else the nodes, without a report so far. No I/O."""
        if self._macs:
            return self.missing_macs(reports)
        matched = match_reports(reports, self._nodes).variables
        return [name for name in discovery.awaited_nodes(self._nodes) if name not in matched]

    def missing_macs(self, reports: Reports) -> list[str]:
        """Return the given MAC addresses without a report so far. No I/O."""
        return sorted(self._macs - set(reports))


def collect(
    ask_host: Callable[[str], str],
    folder: str,
    awaited: Awaited,
    timeout_s: float,
    show: Callable[[str], object],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, BootReport | BmcError]:
    """Read reports as they arrive, until all awaited ones exist, the time is over, or there are too many.

    Args:
        ask_host: A function that returns the output of a shell command on the host from which machines
            boot.
        folder: The folder of the reports on that host.
        awaited: The machines to wait for.
        timeout_s: The number of seconds after which the wait ends, as soon as no new report is there.
        show: A function that is called with a line about each report.
        sleep: A function that waits.
        clock: A function that returns the time in seconds.

    Returns:
        The reports by MAC address, in the form of :data:`Reports`. Awaited machines may be missing.
    """
    reports: dict[str, BootReport | BmcError] = {}
    end = clock() + timeout_s
    while True:
        listed = ask_host(list_command(folder))
        unread = [mac for mac in parse_report_list(listed) if mac not in reports]
        # Read one more than allowed, to distinguish too many machines from just as many as allowed.
        unread = unread[: min(REPORTS_PER_COMMAND, MAX_REPORTS + 1 - len(reports))]
        new = parse_reports(ask_host(read_command(folder, unread)), unread) if unread else {}
        reports |= new
        _distrust(reports, parse_alarm_list(listed), show)
        if new:
            for mac in new:
                show(f"reported: {_describe_report(mac, reports[mac])}")
            missing = awaited.missing(reports)
            show(f"still awaited: {compress_hostlist(missing) if missing else 'none'}")
            if not missing or len(reports) > MAX_REPORTS:
                return reports
        elif clock() >= end:
            # The machines of a host that gave no whole answer are known, but nothing about them is.
            return reports | {mac: BmcError(f"{mac}: its boot report cannot be read") for mac in unread}
        else:
            sleep(POLL_S)


def match_reports(reports: Reports, nodes: Mapping[str, discovery.KnownNode]) -> discovery.Discovery:
    """Match the machines of reports with nodes by serial number, and return the result. No I/O."""
    answers = {
        mac: report if isinstance(report, BmcError) else (report.about,) for mac, report in reports.items()
    }
    return discovery.match_machines(answers, nodes, protocol="boot")


def summarize(reports: Reports, discovered: discovery.Discovery, awaited: Awaited) -> dict[str, Any]:
    """Return :meth:`Discovery.plain` with remarks about missing reports, and lines about hardware. No I/O."""
    summary = discovered.plain()
    summary["remarks"] += [f"sent no boot report: {mac}" for mac in awaited.missing_macs(reports)]
    if len(reports) > MAX_REPORTS:
        # Another host floods the folder. The summary must say that not everything was read.
        summary["problems"].append(f"more than {MAX_REPORTS} machines reported: the others were not read")
        summary["gates"] = True
    return {**summary, "hardware": _describe_hardware(reports, discovered)}


def list_command(folder: str) -> str:
    """Return the shell command that lists the reports."""
    # List more files than are read, so that files with other names do not displace the reports.
    return f"cd {shlex.quote(folder)} && ls -1 | head -n {4 * MAX_REPORTS}"


def parse_report_list(text: str) -> list[str]:
    """Return the MAC addresses with a report. Files with other names are ignored. No I/O."""
    names = (_FILE.fullmatch(line) for line in text.splitlines())
    return [name[1].replace("-", ":") for name in names if name]


def parse_alarm_list(text: str) -> list[str]:
    """Return the MAC addresses that sent a second, different report (rackproof-boot-reports). No I/O."""
    names = (_ALARM.fullmatch(line) for line in text.splitlines())
    return [name[1].replace("-", ":") for name in names if name]


def _distrust(
    reports: dict[str, BootReport | BmcError], alarms: Iterable[str], show: Callable[[str], object]
) -> None:
    """Replace each report that exists twice with an error, because either may be genuine."""
    for mac in alarms:
        if isinstance(reports.get(mac), BootReport):
            reports[mac] = BmcError(
                f"{mac}: alarm: second boot report: neither is trusted; find out which host sends it"
            )
            show(str(reports[mac]))


def read_command(folder: str, macs: Iterable[str]) -> str:
    """Return the shell command that shows the reports of machines, one line for each."""
    names = " ".join(mac.replace(":", "-") for mac in macs)
    # Read one byte more than allowed, to distinguish a report that is too long from one that just fits.
    show = f'echo "$name" $(head -c {MAX_BYTES + 1} "$name.json" | base64 | tr -d "\\n")'
    return f"cd {shlex.quote(folder)} && for name in {names}; do {show}; done"


def parse_reports(text: str, macs: Iterable[str]) -> dict[str, BootReport | BmcError]:
    """Return the report of each of these machines, or the reason why it cannot be read. No I/O.

    A machine without a line is left out, because the host did not answer for it and can be asked again. The
    line of an empty or unreadable report is only the machine's name.
    """
    lines = {name: encoded for name, _, encoded in (line.partition(" ") for line in text.splitlines())}
    names = {mac: mac.replace(":", "-") for mac in macs}
    return {mac: _decode_report(mac, lines[name]) for mac, name in names.items() if name in lines}


def _decode_report(mac: str, encoded: str) -> BootReport | BmcError:
    """Return a report from Base64, or the reason why it cannot be read."""
    try:
        data = base64.b64decode(encoded, validate=True)
        if len(data) > MAX_BYTES:
            return BmcError(f"{mac}: its boot report has more than {MAX_BYTES} bytes")
        return parse_report(mac, json.loads(data))
    except (binascii.Error, ValueError, RecursionError):
        return BmcError(f"{mac}: its boot report cannot be read")


def parse_report(mac: str, report: Any) -> BootReport | BmcError:
    """Return the report of the machine with this MAC address. No I/O.

    Args:
        mac: The MAC address.
        report: The content, which may be anything.
    """
    if not isinstance(report, dict):
        return BmcError(f"{mac}: its boot report cannot be read")
    links = _parse_links(report.get("macs"))
    if mac not in links:
        return BmcError(f"{mac}: its boot report lists no network interface with this address")
    maker_and_model = (_short_text(report.get("manufacturer")), _short_text(report.get("model")))
    identity = MachineIdentity(
        serial=_short_text(report.get("serial")),
        model=" ".join(word for word in maker_and_model if word),
        power="On",
        macs=links,
    )
    disks = report.get("disks")
    described = [_describe_disk(disk) for disk in disks[:MAX_PARTS]] if isinstance(disks, list) else []
    return BootReport(identity, tuple(disk for disk in described if disk))


def _parse_links(macs: Any) -> dict[str, bool | None]:
    """Return the valid MAC addresses of a report, each with whether its link is up, or None if unknown."""
    if not isinstance(macs, dict):
        return {}
    return {
        mac: up if isinstance(up, bool) else None
        for mac, up in list(macs.items())[:MAX_PARTS]
        if _MAC.fullmatch(mac)
    }


def _short_text(value: Any, limit: int = 100) -> str:
    """Return a text of a report on one short line, or ""."""
    return sanitize(value, limit).strip() if isinstance(value, str) else ""


def _describe_disk(disk: Any) -> str:
    """Describe a disk with each property that ``reimage_disk`` may name, or return "" for an invalid disk."""
    if not isinstance(disk, dict):
        return ""
    count, serial = disk.get("bytes"), _short_text(disk.get("serial"))
    parts = [
        f"serial {serial}" if serial else "no serial number",
        # A count of 2**63 bytes or more is not the size of a real disk.
        size(count) if type(count) is int and 0 < count < 2**63 else "no size",
        _short_text(disk.get("by_path"), 200),
    ]
    return f"{_short_text(disk.get('path')) or 'no path'} ({', '.join(part for part in parts if part)})"


def describe_links(about: MachineIdentity) -> str:
    """Describe a machine's interfaces with their links. No I/O."""
    words = {True: "link", False: "no link", None: "link unknown"}
    return ", ".join(f"{mac} ({words[up]})" for mac, up in about.macs.items())


def _describe_report(mac: str, report: BootReport | BmcError) -> str:
    """Return the line about one report."""
    if isinstance(report, BmcError):
        return str(report)
    parts = (report.about.model, f"serial number {report.about.serial or 'none'}")
    return f"{mac}: {', '.join(part for part in parts if part)}"


def _describe_hardware(reports: Reports, discovered: discovery.Discovery) -> list[str]:
    """Return lines about each node's disks and interfaces, which an operator needs for ``reimage_disk``."""
    lines = []
    for name, variables in sorted(discovered.variables.items()):
        report = reports[variables["reimage_mac"]]
        if isinstance(report, BootReport):
            lines.append(f"{name}: disks: {'; '.join(report.disks) or 'none'}")
            lines.append(f"{name}: interfaces: {describe_links(report.about)}")
    return lines
