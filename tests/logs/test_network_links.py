"""Test how lost links of network cards in a kernel log are judged (:mod:`rackproof.logs.network_links`).

A port that loses its link may slow a job down, so a log with such a line is unproven. A port is harmless if
it goes down only while its node starts, or has no cable. These tests check both for the messages of many
drivers and the time formats of many tools. In dmesg, a time is the number of seconds since the boot.
"""

from __future__ import annotations

import io

import pytest

from rackproof import logs
from rackproof.core.records import Verdict
from rackproof.logs import xid
from rackproof.logs._reading import Log
from rackproof.logs.kernel_events import FAULT_WORDS, read_unknown_line
from rackproof.logs.network_links import LinkHistory, read_link_change

PASS, UNPROVEN = Verdict.PASS, Verdict.UNPROVEN
LINKS = [
    "mlx5_core 0000:3b:00.0 ens1f0: Link {}",
    "ice 0000:5e:00.0 eth0: NIC Link is {}",
    "i40e 0000:5e:00.0 eno1: NIC Link is {}",
    "ixgbe 0000:01:00.0 eth0: NIC Link is {}",
    "bnxt_en 0000:3b:00.1 eno2np1: NIC Link is {}",
    "igb 0000:01:00.0 eno1: igb: eno1 NIC Link is {}",
    "e1000e: eno1 NIC Link is {}",
    "tg3 0000:02:00.0 eno3: Link is {}",
    "sfc 0000:04:00.0 ens2f0np0: link {}",
    "cxgb4 0000:03:00.4 ens3: link {}",
    "ionic 0000:b5:00.0 enp181s0: Link {}",
    "mlx4_en: ens4: Link {}",
    "nfp 0000:04:00.0 enp4s0np0: NIC Link is {}",
    "[qede_link_update:2345(ens5f0)]Link is {}",
]
"""Messages of drivers. Most drivers write them at level info."""
NO_LINKS = [
    "ata1: SATA link down (SStatus 0 SControl 300)",
    "IPv6: ADDRCONF(NETDEV_UP): eth0: link is not ready",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "usb 1-1: Linked as a consumer to regulator.1",
    "bond0: (slave ens1f0): link status up, enabling it in 0 ms",
]
BOOT = "[    0.000000] Linux version 6.8.0-45-generic (buildd@lcy02)\n"


def verdict(*lines: str) -> Verdict:
    """Return the verdict of a kernel log."""
    return logs.parse(io.BytesIO("".join(f"{line}\n" for line in lines).encode()), format="xid").verdict


@pytest.mark.parametrize("text", LINKS)
def test_a_lost_link_is_unproven_for_each_driver(text: str) -> None:
    down, up = text.format("Down"), text.format("Up")
    for level in (None, False, True):
        event = read_unknown_line(f"[  500.000001] {down}", level)
        assert event is not None
        assert event.verdict is UNPROVEN
    assert verdict(BOOT.strip(), f"[  500.000001] {down}") is UNPROVEN
    assert verdict(BOOT.strip(), f"[  500.000001] {up}") is PASS
    # A node sends only lines with one of these words.
    assert all(any(word in line.lower() for word in FAULT_WORDS) for line in (down, up))


# A start takes at most 900 s, in which a sound port goes down at most twice. A port without a cable is
# reported down once, in the first 180 s.
@pytest.mark.parametrize("text", LINKS)
def test_a_link_that_is_down_only_at_the_start_is_no_finding(text: str) -> None:
    down, up = text.format("Down"), text.format("Up")
    assert verdict(BOOT.strip(), f"[   12.500000] {down}", f"[   14.500000] {up}") is PASS
    assert verdict(BOOT.strip(), f"[   12.500000] {down}") is PASS  # without a cable
    assert verdict(BOOT.strip(), f"[   12.500000] {up}", f"[   14.500000] {down}") is UNPROVEN
    assert verdict(BOOT.strip(), *[f"[   12.500000] {down}", f"[   14.500000] {up}"] * 3) is UNPROVEN
    assert verdict(BOOT.strip(), f"[   12.500000] {up}", f"[ 7214.500000] {down}") is UNPROVEN


@pytest.mark.parametrize("text", NO_LINKS)
def test_other_words_about_links_are_no_change_of_a_port(text: str) -> None:
    assert read_link_change(f"[   12.500000] {text}") is None
    assert verdict(BOOT.strip(), f"[  500.000001] {text}") is PASS


@pytest.mark.parametrize(
    ("first", "early", "late"),
    [
        ("Nov 28 01:02:03 n1 kernel: ", "Nov 28 01:02:15 n1 kernel: ", "Nov 28 09:02:15 n1 kernel: "),
        ("Nov 30 23:59:58 n1 kernel: ", "Nov 30 23:59:59 n1 kernel: ", "Dec  1 00:00:03 n1 kernel: "),
        ("[Fri Nov 28 01:02:03 2025] ", "[Fri Nov 28 01:02:15 2025] ", "[Fri Nov 28 09:02:15 2025] "),
        ("2025-11-28T01:02:03+00:00 n1 kernel: ", "2025-11-28T01:02:15+00:00 n1 kernel: ",
         "2025-11-29T01:02:15+00:00 n1 kernel: "),
        ("6,1,0,-;", "6,900,12500000,-;", "6,901,7200500000,-;"),
        ("n1: [    0.000000] ", "n1: [   12.500000] ", "n1: [ 7200.500000] "),
    ],
)  # fmt: skip
def test_the_start_of_a_node_is_recognized_in_the_time_format_of_each_tool(
    first: str, early: str, late: str
) -> None:
    down, up = LINKS[1].format("Down"), LINKS[1].format("up 100 Gbps Full Duplex")
    assert verdict(f"{first}Linux version 6.8", f"{early}{down}", f"{early}{up}") is PASS
    assert verdict(f"{first}Linux version 6.8", f"{late}{down}", f"{late}{up}") is UNPROVEN
    assert verdict(f"{first}Linux version 6.8", f"{late}{up}") is PASS


def test_each_host_and_each_boot_has_links_of_its_own() -> None:
    down, up = LINKS[1].format("Down"), LINKS[1].format("Up")
    first = ["n1: [    0.000000] Linux version 6.8", f"n1: [    5.000000] {up}"]
    second = ["n2: [    0.000000] Linux version 6.8", f"n2: [    5.000000] {down}"]
    assert verdict(*first, *second) is PASS
    assert verdict(*first, *second, f"n1: [   90.000000] {down}") is UNPROVEN
    boot = [BOOT.strip(), f"[    5.000000] {down}", f"[    9.000000] {up}"]
    assert verdict(*boot * 4) is PASS
    assert verdict(*boot, f"[ 1900.000000] {down}", *boot) is UNPROVEN


def test_a_flood_of_lost_links_is_unproven() -> None:
    lines = [f"[    5.000000] ice 0000:{at:02x}:00.0 eth{at}: NIC Link is Down" for at in range(250)]
    found = logs.parse(io.BytesIO("\n".join([BOOT.strip(), *lines, ""]).encode()), format="xid")
    assert found.verdict is UNPROVEN
    assert LinkHistory().harmless_ports() == set()


@pytest.mark.parametrize("host", ["", "n{}: "])
def test_the_ports_of_a_log_are_bounded_and_each_lost_link_counts(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xid, "_MOST_PORTS", 20)
    lines = [
        f"{host.format(at)}[    5.000000] ice 0000:{at:02x}:00.0 eth{at}: NIC Link is {state}\n"
        for at in range(40)
        for state in ("Down", "Up")
    ]
    log = Log("dmesg")
    parser = xid.XidParser(log)
    for at, text in enumerate([BOOT, *lines], start=1):
        parser.line(at, text.rstrip("\n"))
    assert len(parser.ports) == 20
    assert parser.finish().verdict is UNPROVEN
    assert verdict(*(line.rstrip("\n") for line in [BOOT, *lines[:8]])) is PASS
