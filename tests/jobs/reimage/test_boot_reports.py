"""Test ``rackproof.jobs.reimage.boot_reports``, which reads the reports of unknown machines.

A machine that boots over the network without an order reports its serial number, MAC addresses and disks, so
that an operator can match it with a node of the inventory. Any host in that network can send such a report.
The tests check that its size and texts are limited, that only files named by a MAC address are read, and that
a second report from a MAC address makes the machine no node.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rackproof.jobs.reimage import boot_reports
from rackproof.jobs.reimage.bmc import BmcError, MachineIdentity
from rackproof.jobs.reimage.boot_reports import BootReport, parse_report, parse_report_list
from rackproof.jobs.reimage.discovery import KnownNode

MAC = "52:54:00:00:00:01"
OTHER = "52:54:00:00:00:02"
REPORT: dict[str, Any] = {
    "serial": "S1",
    "manufacturer": "ACME",
    "model": "G8",
    "uuid": "u",
    "macs": {MAC: True, OTHER: None},
    "disks": [{"serial": "D1", "bytes": 2**40, "path": "/dev/nvme0n1", "by_path": "/dev/disk/by-path/p1"}],
}


def report_with(**changed: Any) -> BootReport:
    found = parse_report(MAC, REPORT | changed)
    assert isinstance(found, BootReport), found
    return found


def test_a_report_describes_a_machine_like_a_bmc_would() -> None:
    assert report_with() == BootReport(
        MachineIdentity("", "S1", "ACME G8", "On", {MAC: True, OTHER: None}),
        ("/dev/nvme0n1 (serial D1, 1 TiB, /dev/disk/by-path/p1)",),
    )
    assert boot_reports.describe_links(report_with().about) == f"{MAC} (link), {OTHER} (link unknown)"


@pytest.mark.parametrize(
    ("changed", "field", "value"),
    [
        ({"serial": " S1 \x1b[31m\n\u202e"}, "serial", "S1"),
        ({"serial": 7}, "serial", ""),
        ({"serial": None}, "serial", ""),
        ({"serial": "x" * 5000}, "serial", "x" * 99 + "…"),
        ({"model": ["G8"], "manufacturer": {}}, "model", ""),
        ({"model": "{{ evil }}"}, "model", "ACME {{ evil }}"),
        ({"macs": {MAC: "yes", "lo": True, "../x": True}}, "macs", {MAC: None}),
        ({"uuid": 1, "more": "x"}, "serial", "S1"),
    ],
)
def test_every_text_of_a_report_is_sanitized(changed: dict[str, Any], field: str, value: object) -> None:
    assert getattr(report_with(**changed).about, field) == value


@pytest.mark.parametrize(
    ("disk", "shown"),
    [
        ({"serial": "", "bytes": 512, "path": "/dev/sda"}, "/dev/sda (no serial number, 512 B)"),
        ({}, "no path (no serial number, no size)"),
        ({"bytes": -1, "path": 3}, "no path (no serial number, no size)"),
        ({"bytes": 10**400, "path": "/dev/sda"}, "/dev/sda (no serial number, no size)"),
        ({"bytes": True, "serial": "\x00D"}, "no path (serial D, no size)"),
        ("sda", None),
        (None, None),
    ],
)
def test_disks_are_shown_as_reimage_disk_names_them(disk: Any, shown: str | None) -> None:
    assert report_with(disks=[disk]).disks == ((shown,) if shown else ())


def test_many_disks_and_interfaces_are_not_all_shown() -> None:
    many = {MAC: True} | {f"52:54:00:00:{high:02x}:{low:02x}": True for high in range(9) for low in range(99)}
    found = report_with(disks=REPORT["disks"] * 999, macs=many)
    assert (len(found.disks), len(found.about.macs)) == (boot_reports.MAX_PARTS, boot_reports.MAX_PARTS)
    for nothing in (None, {}, "sda", 3):
        assert report_with(disks=nothing).disks == ()


@pytest.mark.parametrize(
    "content", [None, [], "S1", 3, {}, {"macs": [MAC]}, REPORT | {"macs": {OTHER: True}}]
)
def test_a_report_that_describes_no_machine_is_an_error_with_its_mac_address(content: Any) -> None:
    found = parse_report(MAC, content)
    assert isinstance(found, BmcError)
    assert str(found).startswith(f"{MAC}: ")


def test_only_files_named_by_a_mac_address_are_read() -> None:
    names = ["52-54-00-00-00-01.json", "52-54-00-00-00-0G.json", "52-54-00-00-00-02.json.1", "a b;c.json", ""]
    names += [
        "x52-54-00-00-00-02.json",
        "52-54-00-00-00-02",
        "../52-54-00-00-00-02.json",
        "52-54-00-00-00-AA.json",
    ]
    assert parse_report_list("\n".join(names)) == [MAC]


def test_the_shell_reads_the_reports_and_no_more_than_allowed(tmp_path: Path) -> None:
    folder = tmp_path / "a folder's; echo x"
    folder.mkdir()
    contents = {
        "01": json.dumps(REPORT).encode(),
        "02": b"x" * 200_000,
        "03": b"{",
        "04": b"[" * 60_000,
        "05": b"\xff\xfe",
        "06": b"",
        "07": b'{"serial": ' + b"9" * 5000 + b"}",
    }
    for end, data in contents.items():
        (folder / f"52-54-00-00-00-{end}.json").write_bytes(data)

    def shell(command: str) -> str:
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout

    macs = parse_report_list(shell(boot_reports.list_command(str(folder))))
    assert macs == [f"52:54:00:00:00:{end}" for end in contents]
    found = boot_reports.parse_reports(
        shell(boot_reports.read_command(str(folder), [*macs, "52:54:00:00:00:99"])), macs
    )
    assert isinstance(found[MAC], BootReport)
    assert [str(error).partition(": ")[2] for error in list(found.values())[1:]] == [
        "its boot report has more than 65536 bytes",
        *["its boot report cannot be read"] * 5,
    ]


def test_a_report_that_was_cut_off_is_no_machine() -> None:
    line = f"52-54-00-00-00-01 {base64.b64encode(json.dumps(REPORT).encode()).decode()}"
    assert boot_reports.parse_reports("", [MAC]) == {}
    for text in (line[:-7], line.replace("=", ""), "52-54-00-00-00-01", "52-54-00-00-00-01 "):
        found = boot_reports.parse_reports(text, [MAC])[MAC]
        assert isinstance(found, BmcError) or text == line.replace("=", "")


# A case has the numbers of the questions to which the host gives no answer, and the part of an answer that
# comes. The even questions list the folder, and the odd ones read reports.
@pytest.mark.parametrize(
    ("lost", "lines"), [({0}, 0), ({1}, 0), ({1, 3}, 0), ({0, 2, 4}, 0), ({1}, 1), ({1, 3}, 1)]
)
def test_a_lost_connection_costs_no_report(lost: set[int], lines: int) -> None:
    nodes = {name: KnownNode.from_variables({"reimage_serial": f"S{name[1:]}"}) for name in ("n1", "n2")}
    reports = {MAC: REPORT, OTHER: REPORT | {"serial": "S2", "macs": {OTHER: True}}}
    asked: list[str] = []

    def ask(command: str) -> str:
        asked.append(command)
        names = [mac.replace(":", "-") for mac in reports]
        if "ls -1" in command:
            answer = [f"{name}.json" for name in names]
        else:
            contents = [base64.b64encode(json.dumps(one).encode()).decode() for one in reports.values()]
            answer = [f"{name} {text}" for name, text in zip(names, contents, strict=True) if name in command]
        return "\n".join(answer[:lines] if len(asked) - 1 in lost else answer)

    shown: list[str] = []
    ticks = iter(range(100))
    awaited = boot_reports.Awaited(nodes, [])
    found = boot_reports.collect(
        ask, "/x", awaited, 20, shown.append, sleep=lambda _: None, clock=lambda: next(ticks)
    )
    assert set(boot_reports.match_reports(found, nodes).variables) == {"n1", "n2"}
    assert not any("cannot be read" in one for one in shown)


def test_a_host_that_never_gives_a_report_is_asked_only_until_the_time_is_over() -> None:
    ticks = iter(range(1000))
    asked: list[str] = []

    def ask(command: str) -> str:
        asked.append(command)
        return "52-54-00-00-00-01.json" if "ls -1" in command else ""

    awaited = boot_reports.Awaited({}, [MAC])
    found = boot_reports.collect(
        ask, "/x", awaited, 5, lambda line: None, sleep=lambda _: None, clock=lambda: next(ticks)
    )
    assert str(found[MAC]) == f"{MAC}: its boot report cannot be read"
    assert boot_reports.match_reports(found, {}).gates
    assert len(asked) == 10


@pytest.mark.parametrize("when", [0, 1, 2])
def test_a_machine_with_a_second_boot_report_is_no_node_whenever_it_came(when: int) -> None:
    nodes = {
        name: KnownNode.from_variables({"reimage_serial": serial})
        for name, serial in (("n1", "S1"), ("n2", "S2"), ("n3", "S3"))
    }
    reports = {MAC: REPORT, OTHER: REPORT | {"serial": "S2", "macs": {OTHER: True}}}
    listings = [["01.json", "02.json"]] * 4
    listings[when:] = [[*one, "01.alarm", "03.alarm", "x.alarm"] for one in listings[when:]]

    def ask(command: str) -> str:
        if "ls -1" in command:
            names = listings.pop(0) if len(listings) > 1 else listings[0]
            return "\n".join(f"52-54-00-00-00-{name}" for name in names)
        encoded = {mac: base64.b64encode(json.dumps(one).encode()).decode() for mac, one in reports.items()}
        return "\n".join(f"{mac.replace(':', '-')} {text}" for mac, text in encoded.items())

    shown: list[str] = []
    ticks = iter(range(100))
    awaited = boot_reports.Awaited(nodes, [])
    found = boot_reports.collect(
        ask, "/x", awaited, 5, shown.append, sleep=lambda _: None, clock=lambda: next(ticks)
    )
    matched = boot_reports.match_reports(found, nodes)
    assert matched.variables == {"n2": {"reimage_mac": OTHER}}
    summary = boot_reports.summarize(found, matched, awaited)
    assert any(f"{MAC}: alarm: second boot report" in one for one in summary["problems"])
    assert any("alarm: second boot report" in one for one in shown)


@pytest.mark.parametrize(("machines", "too_many"), [(3, False), (4, False), (5, True), (9, True)])
def test_just_as_many_machines_as_allowed_are_not_too_many(
    monkeypatch: pytest.MonkeyPatch, machines: int, too_many: bool
) -> None:
    monkeypatch.setattr(boot_reports, "MAX_REPORTS", 4)
    macs = [f"52:54:00:00:00:{number:02d}" for number in range(machines)]
    nodes = {f"n{number}": KnownNode(serial=f"S{number}") for number in range(9)}
    asked: list[str] = []

    def ask(command: str) -> str:
        asked.append(command)
        if "ls -1" in command:
            return "\n".join(f"{mac.replace(':', '-')}.json" for mac in macs)
        reports = [REPORT | {"serial": f"S{number}", "macs": {mac: True}} for number, mac in enumerate(macs)]
        encoded = [base64.b64encode(json.dumps(one).encode()).decode() for one in reports]
        return "\n".join(f"{mac.replace(':', '-')} {one}" for mac, one in zip(macs, encoded, strict=True))

    awaited = boot_reports.Awaited(nodes, [])
    ticks = iter(range(100))
    found = boot_reports.collect(
        ask, "/x", awaited, 10, lambda line: None, sleep=lambda seconds: None, clock=lambda: next(ticks)
    )
    summary = boot_reports.summarize(found, boot_reports.match_reports(found, nodes), awaited)
    assert len(found) == min(machines, 5)
    assert any("more than 4 machines" in problem for problem in summary["problems"]) == too_many
    assert summary["gates"] == too_many
