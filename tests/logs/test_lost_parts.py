"""Test the verdict on memory of PCI devices and cables that a kernel log reports as lost.

The parser xid reads them with :mod:`rackproof.logs.lost_parts`. The tests check that a lost part is unproven,
and that parts that come back, or that healthy machines lack, are no finding.
"""

from __future__ import annotations

import io

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict

PASS, UNPROVEN = Verdict.PASS, Verdict.UNPROVEN
BOOT = "Linux version 6.8.0-48-generic (buildd@lcy02-amd64-010)"
FAILED = "pci 0000:1b:00.0: BAR 1: failed to assign [mem size 0x2000000000 64bit pref]"
FAILED_NEW = "pci 0000:1b:00.0: BAR 1 [mem size 0x400000000 64bit pref]: failed to assign"
ASSIGNED = "pci 0000:1b:00.0: BAR 1: assigned [mem 0x20000000000-0x21fffffffff 64bit pref]"
ASSIGNED_NEW = "pci 0000:1b:00.0: BAR 1 [mem 0x20000000000-0x203ffffffff 64bit pref]: assigned"
CABLE = "mlx5_core 0000:18:00.0: Port module event: module 0, Cable "


def parsed(lines: list[str], label: str = "") -> ParsedLog:
    text = "".join(f"{label}[{at:5}.100000] {line}\n" for at, line in enumerate(lines))
    return logs.parse(io.BytesIO(text.encode()), format="xid", name="dmesg")


@pytest.mark.parametrize("label", ["", "n01: "])
@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([BOOT, FAILED], "pcie_error"),
        ([BOOT, FAILED_NEW], "pcie_error"),
        ([BOOT, "pci 0000:1b:00.0: BAR 0: failed to assign [mem size 0x10000000]"], "pcie_error"),
        ([BOOT, FAILED, ASSIGNED.replace("BAR 1", "BAR 3")], "pcie_error"),
        ([BOOT, FAILED, ASSIGNED.replace("1b:", "2b:")], "pcie_error"),
        ([BOOT, ASSIGNED, FAILED], "pcie_error"),
        ([BOOT, FAILED, BOOT, ASSIGNED], "pcie_error"),
        ([BOOT, CABLE + "plugged", CABLE + "unplugged"], "network_card_error"),
        ([BOOT, CABLE + "plugged", CABLE + "unplugged", BOOT, CABLE + "plugged"], "network_card_error"),
    ],
)
def test_a_part_that_does_not_come_back_is_unproven(lines: list[str], code: str, label: str) -> None:
    result = parsed(lines, label)
    assert result.verdict is UNPROVEN
    assert [one.code for one in result.findings] == [code]
    assert result.findings[0].excerpt.startswith(label)


@pytest.mark.parametrize(
    "lines",
    [
        [BOOT, FAILED, "pci_bus 0000:00: No. 2 try to assign unassigned res", ASSIGNED],
        [BOOT, FAILED_NEW, ASSIGNED_NEW],
        # Parts that healthy machines lack: see the sources in known_kernel_lines.py and lost_parts.py.
        [BOOT, "pci 0006:03:00.2: BAR 0 [mem size 0x00800000 64bit pref]: failed to assign"],
        [BOOT, "pci 0006:03:00.0: VF BAR 0 [mem size 0x2000000000 64bit pref]: failed to assign"],
        [BOOT, "pci 0000:0b:00.0: BAR 13: failed to assign [io  size 0x1000]"],
        [BOOT, "pci 0000:5e:00.0: BAR 15: failed to assign [mem size 0x200000000 64bit pref]"],
        [BOOT, "pci 0000:5e:00.0: bridge window [mem size 0x200000000 64bit pref]: failed to assign"],
        [BOOT, CABLE + "unplugged"],
        [BOOT, CABLE + "unplugged", CABLE + "unplugged"],
        [BOOT, CABLE + "plugged", CABLE + "unplugged", CABLE + "plugged"],
        [BOOT, CABLE + "plugged", BOOT, CABLE + "unplugged"],
    ],
)
def test_a_part_that_comes_back_or_is_not_needed_is_no_finding(lines: list[str]) -> None:
    result = parsed(lines)
    assert (result.verdict, result.findings) == (PASS, ())


def test_a_part_of_another_host_does_not_replace_a_lost_one() -> None:
    text = f"n01: [ 1.000000] {FAILED}\nn02: [ 1.000000] {ASSIGNED}\nn02: [ 2.000000] {BOOT}\n"
    result = logs.parse(io.BytesIO(text.encode()), format="xid")
    assert (result.verdict, result.findings[0].excerpt[:4]) == (UNPROVEN, "n01:")


@pytest.mark.parametrize(
    "line",
    [
        "net_ratelimit: 812 callbacks suppressed",
        "__ratelimit: 12 callbacks suppressed",
        "mce_notify_irq: 1 callbacks suppressed",
    ],
)
def test_lines_that_the_kernel_left_out_are_a_remark(line: str) -> None:
    result = parsed([BOOT, line])
    assert result.verdict is PASS
    assert [(one.code, one.verdict) for one in result.findings] == [("kernel_log_unknown", None)]
