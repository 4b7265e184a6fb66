"""Read from a kernel log which parts of a device the kernel lost and did not get back.

The parser xid passes each line to :class:`LostParts`. The first and third of these lines report a loss, and
the second undoes the first::

    pci 0000:1b:00.0: BAR 1: failed to assign [mem size 0x2000000000 64bit pref]
    pci 0000:1b:00.0: BAR 1: assigned [mem 0x20000000000-0x21fffffffff 64bit pref]
    mlx5_core 0000:18:00.0: Port module event: module 0, Cable unplugged

Healthy machines print such losses, too. The kernel often fails to assign memory at first and then tries again
("No. 2 try to assign unassigned res", drivers/pci/setup-bus.c). A network card without a cable reports this
at each start of its driver (port_module_event_name in mlx5/core/events.c), so an unplugged cable counts only
if it was plugged in earlier in the log. The module does no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rackproof.core.records import Verdict
from rackproof.core.text import sanitize
from rackproof.logs.kernel_events import KernelEvent

MOST_CHANGES = 100_000
"""Largest number of losses and plugged cables that are read. Further ones are not judged."""
_BAR = re.compile(
    r"\bpci ([0-9a-f:]{5,13}\.[0-7]): BAR ([0-5])"
    # Kernels since 6.8 write the range before the word, and older ones after it.
    r"(?:: (assigned|failed to assign) \[mem (?:size 0x0*([0-9a-f]{1,16}))?|"
    r" \[mem (?:size 0x0*([0-9a-f]{1,16}))?[^\]\n]{0,60}\]: (assigned|failed to assign))"
)
"""Pattern of an assignment: address, number of the BAR, and result and size, or size and result. Until a
driver is bound, the kernel writes pci."""
_LARGE_DIGITS = 8
"""Number of hexadecimal digits of a size of 256 MiB or more. GPUs have BARs of this size. Small ones of other
cards may remain unassigned on healthy machines, and so may those of virtual functions ("VF BAR")."""
_CABLE = re.compile(
    r"\bmlx5_core ([0-9a-f:]{5,13}\.[0-7]): Port module event: module (\d{1,3}), Cable (plugged|unplugged)\b"
)
"""Pattern of a cable's change: bus address, module, and state."""


@dataclass(frozen=True)
class LostPart:
    """A part that was lost: the event, and the number and text of its line."""

    event: KernelEvent
    line: int
    excerpt: str


class _HostParts:
    """The parts of one host since its boot."""

    def __init__(self) -> None:
        self.lost: dict[str, LostPart] = {}
        """Lost parts by name."""
        self.plugged: set[str] = set()
        """Names of the cables that were plugged in."""


class LostParts:
    """The parts of a log's hosts that were lost so far."""

    def __init__(self) -> None:
        self._hosts: dict[str, _HostParts] = {}
        self._count = 0
        """Number of changes that were stored."""

    def add(self, host: str, text: str, line: int) -> None:
        """Read a line of a host, and store or remove the part that it is about."""
        if " BAR " in text and (found := _BAR.search(text)):
            self._add_memory(host, found, text, line)
        elif "Cable " in text and (found := _CABLE.search(text)):
            self._add_cable(host, found, text, line)

    def take(self, host: str) -> list[LostPart]:
        """Return the lost parts of a host, and forget its parts."""
        return list(self._hosts.pop(host, _HostParts()).lost.values())

    def take_all(self) -> list[LostPart]:
        """Return the lost parts of all hosts, and forget all parts."""
        return [part for host in list(self._hosts) for part in self.take(host)]

    def _add_memory(self, host: str, found: re.Match[str], text: str, line: int) -> None:
        """Store a large BAR without memory, or remove one that has memory now."""
        address, number = found[1], found[2]
        part = f"{address} BAR {number}"
        if (found[3] or found[6]) == "assigned":
            self._hosts.get(host, _HostParts()).lost.pop(part, None)
        elif len(found[4] or found[5] or "") >= _LARGE_DIGITS and (parts := self._parts(host)):
            event = KernelEvent("pcie_error", Verdict.UNPROVEN, address, text=text)
            parts.lost.setdefault(part, LostPart(event, line, sanitize(host + text, 300)))

    def _add_cable(self, host: str, found: re.Match[str], text: str, line: int) -> None:
        """Store a cable that was unplugged, or remove one that is plugged in."""
        address, module, state = found.groups()
        part = f"{address} module {module}"
        if (parts := self._parts(host)) is None:
            return
        if state == "plugged":
            parts.plugged.add(part)
            parts.lost.pop(part, None)
        elif part in parts.plugged:
            event = KernelEvent("network_card_error", Verdict.UNPROVEN, address, text=text)
            parts.lost.setdefault(part, LostPart(event, line, sanitize(host + text, 300)))

    def _parts(self, host: str) -> _HostParts | None:
        """Return the parts of a host to store a change in, or None if too many are stored."""
        self._count += 1
        return self._hosts.setdefault(host, _HostParts()) if self._count <= MOST_CHANGES else None
