"""Read from a kernel log which ports of network cards lost their link.

The parser xid, :mod:`rackproof.logs.known_kernel_lines` and nodes/kernel_log.py read lines such as these with
:func:`read_link_change`:

    [   12.500000] mlx5_core 0000:3b:00.0 ens1f0: Link Down
    [   14.500000] mlx5_core 0000:3b:00.0 ens1f0: Link Up

A port is harmless if it went down only while its machine started, or if it has no cable
(:meth:`LinkHistory.harmless_ports`). The module does no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf

MOST_LINK_CHANGES = 2
"""Largest number of times that a sound port goes down while its node starts, and comes up again."""
START_S = 900
"""Longest time from the boot to the end of a start. A port that goes down later has a fault, although it
comes up again."""
NO_CABLE_S = 180
"""Time after a boot in which a port without a cable is reported down, once, when the network is set up."""
_LINK = re.compile(
    # The kernel writes driver, bus address and interface before the message of each Ethernet driver:
    # mlx5_core, ice, i40e, ixgbe, bnxt_en, tg3, sfc, cxgb4, ionic. Some repeat the driver and the interface.
    r"(?:\b[a-z][\w-]{1,20} ((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) \S{1,40}: "
    r"(?:[a-z]\w{1,15}: \S{1,40} )?|"
    # Older drivers write no bus address.
    r"\b(?:e1000e?|igb|igc|ixgbe|i40e|mlx4_en|bnx2x?|tg3): (\S{1,40}?):? |"
    r"\[qede?_link_update:\d{1,6}\((\S{1,40}?)\)\] ?)"
    r"(?:NIC |Device )?Link(?: is)? (up|down)\b",
    re.IGNORECASE,
)
"""Pattern of a change: the bus address, or the interface (two groups), and ``up`` or ``down``."""
_SINCE_BOOT = re.compile(r"\[ *(\d{1,9}\.\d{1,9})\]|^\d{1,4},\d{1,20},(\d{1,15}),")
"""Pattern of the seconds in lines of dmesg, and of the microseconds in lines of /dev/kmsg."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE = re.compile(
    r"(?:\d{4}-(\d\d)-|\b(" + "|".join(_MONTHS) + r") )([ \d]\d)[T ](\d\d):(\d\d):(\d\d(?:\.\d{1,9})?)"
)
"""Pattern of the date in lines of syslog, of journalctl and of `dmesg -T`: month as number or name, day,
hour, minute and second."""


@dataclass(frozen=True)
class LinkChange:
    """A port that came up or went down.

    Names of interfaces change, so the port is named by its bus address if the line has one.
    """

    port: str
    is_up: bool


def read_link_change(line: str) -> LinkChange | None:
    """Return the change of a network port's link in a line of the kernel, or None for other lines."""
    # Most lines lack the word, and the pattern is slower.
    if ("ink" not in line and "INK" not in line) or not (link := _LINK.search(line)):
        return None
    return LinkChange(link[1] or link[2] or link[3], link[4].lower() == "up")


class LinkHistory:
    """The changes of the links of one machine's network ports."""

    def __init__(self) -> None:
        self._is_up: dict[str, bool] = {}
        """True for each port that is up after its last change."""
        self._was_up: set[str] = set()
        """Ports that came up at least once."""
        self._latest_down: dict[str, float] = {}
        """Seconds from the boot to the latest loss of each port's link."""
        self._downs_since_boot: dict[str, int] = {}
        """Number of times that each port went down after the boot, or at an unknown time."""

    def add(self, change: LinkChange, seconds: float) -> None:
        """Add a change.

        Args:
            change: The change.
            seconds: The seconds from the boot to the change, negative before the boot, or infinity if
                unknown.
        """
        port = change.port
        self._is_up[port] = change.is_up
        if change.is_up:
            self._was_up.add(port)
            return
        self._latest_down[port] = max(seconds, self._latest_down.get(port, -inf))
        self._downs_since_boot[port] = self._downs_since_boot.get(port, 0) + (seconds >= 0)

    def harmless_ports(self) -> set[str]:
        """Return the ports that did not go down, or only while the machine started.

        Such a port is up after its last change, or it has no cable: it is reported down once, soon after the
        boot, and never up. Other checks read state and counters of the ports that a node needs. Names of
        interfaces change during a start, and several ports have one name in turn, so one name may go down
        more than once.
        """
        return {
            port
            for port, is_up in self._is_up.items()
            if (is_up and self._went_down_at_start_only(port))
            or (port not in self._was_up and self._has_no_cable(port))
        }

    def _went_down_at_start_only(self, port: str) -> bool:
        """Return whether a port went down only before the boot, or at most a few times during the start."""
        is_early = self._latest_down.get(port, 0) <= START_S
        return is_early and self._downs_since_boot.get(port, 0) <= MOST_LINK_CHANGES

    def _has_no_cable(self, port: str) -> bool:
        """Return whether a port was reported down once since the boot, and soon after it."""
        return self._downs_since_boot.get(port) == 1 and self._latest_down[port] <= NO_CABLE_S


class BootClock:
    """A clock that reads from lines how long after the boot of their machine they were written."""

    def __init__(self) -> None:
        self._booted = inf

    def start(self, line: str) -> None:
        """Take the date of the kernel's first line as the time of the boot."""
        self._booted = _date_s(line)

    def seconds_after_boot(self, line: str) -> float:
        """Return the seconds from the boot to a line, or infinity if they are unknown."""
        if stamp := _SINCE_BOOT.search(line[:200]):
            return float(stamp[1]) if stamp[1] else float(stamp[2]) / 1e6
        seconds = _date_s(line) - self._booted
        # A clock that was set back, and the end of a year, leave the time unknown.
        return seconds if seconds >= 0 else inf


def _date_s(line: str) -> float:
    """Return a line's date as seconds to compare with other dates of its year, or infinity without a date.

    Every month counts as 31 days, so two dates of different months are never closer here than in reality.
    """
    if not (date := _DATE.search(line[:200])):
        return inf
    month = int(date[1]) if date[1] else _MONTHS.index(date[2]) + 1
    days = month * 31 + int(date[3])
    return float((days * 24 + int(date[4])) * 60 + int(date[5])) * 60 + float(date[6])
