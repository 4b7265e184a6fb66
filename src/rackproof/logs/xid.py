"""Kernel log: XIDs of GPUs, SXids of NVSwitches, GPUs that fell off the bus.

What to do about an XID follows AWS, gpud, Azure and imbue where they agree.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from rackproof.core.records import Direction, ParsedLog, Verdict
from rackproof.logs._reading import Log, LogParser

ACTIONS: Mapping[int, str] = {
    **dict.fromkeys((54,), "isolate"),
    **dict.fromkeys((79, 151, 168, 119, 120), "reboot"),
    **dict.fromkeys((48, 64, 95, 109, 110, 136, 140, 143, 155, 156, 158), "reset"),
    **dict.fromkeys((13, 31, 43, 63, 92, 94, 121, 126), "watch"),
    **dict.fromkeys((74, *range(144, 151)), "nvlink"),
}
"""XID to action. 79 is listed under isolate and reboot by the sources; a reboot comes first."""

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{4,20})\): (\d{1,6})(?:, ?(.*))?$")
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9A-Fa-f:.]{4,20})\): (\d{1,6}), ?(.*)$")
_LOST = re.compile(r"NVRM: .{0,120}fallen off the bus")
_ANY = re.compile(r"NVRM: Xid|: SXid \(")


def verdict_of(xid: int, text: str) -> Verdict:
    """Return how bad an XID is: what asks for a reset or more fails, the rest degrades."""
    action = ACTIONS.get(xid)
    if action in ("isolate", "reboot", "reset"):
        return Verdict.FAIL
    if action == "nvlink" and "Nonfatal" not in text:
        return Verdict.FAIL
    return Verdict.DEGRADED


_HEAD = re.compile(rb"NVRM: Xid|NVRM: [^\n]{0,120}fallen off the bus|: SXid \(")


class XidParser(LogParser):
    """Reads the driver's lines."""

    format: ClassVar[str] = "xid"
    description: ClassVar[str] = "kernel log with XIDs of GPUs and SXids of switches"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Whether the bytes hold a line about an XID."""
        return _HEAD.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.xids: Counter[tuple[str, str]] = Counter()
        self.first: dict[tuple[str, str], int] = {}

    def line(self, at: int, text: str) -> None:
        """Read one line of the kernel's log."""
        if found := _XID.search(text):
            xid = int(found[2])
            action = ACTIONS.get(xid, "unknown")
            self.count("xid", str(xid), at)
            self.log.find(
                f"xid_{xid}",
                f"XID {xid} on {found[1]} ({action}): {found[3] or ''}",
                verdict_of(xid, found[3] or ""),
                line=at,
                excerpt=text,
            )
        elif found := _SXID.search(text):
            self.count("sxid", found[2], at)
            # Only the driver's own "Non-fatal" makes an SXid harmless.
            verdict = Verdict.DEGRADED if found[3].startswith("Non-fatal") else Verdict.FAIL
            self.log.find(
                f"sxid_{found[2]}",
                f"SXid {found[2]} on {found[1]}: {found[3]}",
                verdict,
                line=at,
                excerpt=text,
            )
        elif _LOST.search(text):
            self.log.find("gpu_lost", "a GPU has fallen off the bus", Verdict.FAIL, line=at, excerpt=text)
        elif _ANY.search(text):
            self.log.find(
                "damaged_line", "an XID line that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text
            )

    def count(self, kind: str, code: str, at: int) -> None:
        """Count an XID; of absurdly many different ones only the first are kept apart."""
        key = (kind, code)
        if key in self.xids or len(self.xids) < 1000:
            self.xids[key] += 1
            self.first.setdefault(key, at)
        if len(self.log.findings) > 50:
            self.log.find("more_xids", "more kinds of XID than are listed", Verdict.FAIL, line=at)

    def finish(self) -> ParsedLog:
        """Return how often each XID occurs; a kernel log without any is a pass."""
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
        if not self.xids and self.log.size:
            measurements.append(self.measure("xid_count", 0.0, "", Direction.LOWER, None))
        return self.log.parsed(self.format, Verdict.PASS if self.log.size else Verdict.UNPROVEN, measurements)
