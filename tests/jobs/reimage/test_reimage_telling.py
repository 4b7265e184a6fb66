"""What machines tell that booted without an order: whatever they say, it is bounded, cleaned, and no name."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rackproof.jobs.reimage import boot_reports
from rackproof.jobs.reimage.bmc import About, BmcError
from rackproof.jobs.reimage.boot_reports import Told, listed, read

MAC = "52:54:00:00:00:01"
OTHER = "52:54:00:00:00:02"
SAID: dict[str, Any] = {
    "serial": "S1",
    "manufacturer": "ACME",
    "model": "G8",
    "uuid": "u",
    "macs": {MAC: True, OTHER: None},
    "disks": [{"serial": "D1", "bytes": 2**40, "path": "/dev/nvme0n1", "by_path": "/dev/disk/by-path/p1"}],
}


def one(**changed: Any) -> Told:
    found = read(MAC, SAID | changed)
    assert isinstance(found, Told), found
    return found


def test_a_machine_is_what_a_bmc_would_say_of_it() -> None:
    assert one() == Told(
        About("", "S1", "ACME G8", "On", {MAC: True, OTHER: None}),
        ("/dev/nvme0n1 (serial D1, 1 TiB, /dev/disk/by-path/p1)",),
    )
    assert boot_reports.links_in_words(one().about) == f"{MAC} (link), {OTHER} (link not told)"


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
def test_whatever_it_says_of_itself_is_cleaned(changed: dict[str, Any], field: str, value: object) -> None:
    assert getattr(one(**changed).about, field) == value


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
    assert one(disks=[disk]).disks == ((shown,) if shown else ())


def test_many_disks_and_interfaces_are_not_all_shown() -> None:
    many = {MAC: True} | {f"52:54:00:00:{high:02x}:{low:02x}": True for high in range(9) for low in range(99)}
    found = one(disks=SAID["disks"] * 999, macs=many)
    assert (len(found.disks), len(found.about.macs)) == (boot_reports.MOST_SHOWN, boot_reports.MOST_SHOWN)
    for nothing in (None, {}, "sda", 3):
        assert one(disks=nothing).disks == ()


@pytest.mark.parametrize("said", [None, [], "S1", 3, {}, {"macs": [MAC]}, SAID | {"macs": {OTHER: True}}])
def test_what_is_no_machine_is_named_by_its_mac_address(said: Any) -> None:
    found = read(MAC, said)
    assert isinstance(found, BmcError)
    assert str(found).startswith(f"{MAC}: ")


def test_only_files_that_are_called_by_a_mac_address_are_read() -> None:
    names = ["52-54-00-00-00-01.json", "52-54-00-00-00-0G.json", "52-54-00-00-00-02.json.1", "a b;c.json", ""]
    names += [
        "x52-54-00-00-00-02.json",
        "52-54-00-00-00-02",
        "../52-54-00-00-00-02.json",
        "52-54-00-00-00-AA.json",
    ]
    assert listed("\n".join(names)) == [MAC]


def test_the_shell_reads_what_was_told_and_no_more_than_allowed(tmp_path: Path) -> None:
    folder = tmp_path / "a folder's; echo x"
    folder.mkdir()
    contents = {
        "01": json.dumps(SAID).encode(),
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

    macs = listed(shell(boot_reports.list_command(str(folder))))
    assert macs == [f"52:54:00:00:00:{end}" for end in contents]
    found = boot_reports.told(
        shell(boot_reports.read_command(str(folder), [*macs, "52:54:00:00:00:99"])), macs
    )
    assert isinstance(found[MAC], Told)
    assert [str(why).partition(": ")[2] for why in list(found.values())[1:]] == [
        "it tells more than 65536 bytes",
        *["what it tells cannot be read"] * 5,
    ]


def test_an_answer_that_was_cut_off_is_no_machine() -> None:
    line = f"52-54-00-00-00-01 {base64.b64encode(json.dumps(SAID).encode()).decode()}"
    for text in ("", line[:-7], line.replace("=", ""), "52-54-00-00-00-01"):
        found = boot_reports.told(text, [MAC])[MAC]
        assert isinstance(found, BmcError) or text == line.replace("=", "")
