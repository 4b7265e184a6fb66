"""Test discover.yml with ``discover_by=boot``, which finds the MAC addresses of new machines.

An operator knows only the serial numbers of new machines. The playbook makes the boot host answer unknown
machines for a limited time. A machine that boots over the network sends a boot report with its serial number
and MAC addresses, and the playbook writes ``reimage_mac`` for the node with that number. Here, the boot host
is a folder of this machine, and a thread writes the reports that machines would send through nginx. The tests
show which machines become nodes, which are only named, and that no file stays on the boot host.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [
    pytest.mark.playbook,
    pytest.mark.skipif(os.geteuid() != 0, reason="files of the host that nodes boot from are root's"),
]
ROOT = Path(__file__).resolve().parents[3]
DISKS = [{"serial": "D1", "bytes": 960 * 10**9, "path": "/dev/sda", "by_path": "/dev/disk/by-path/pci-1"}]


def mac(number: int) -> str:
    return f"52:54:00:00:00:{number:02x}"


def boot_report(serial: str, number: int, **changed: Any) -> bytes:
    """Return the report of a machine with two interfaces, of which the second one has no link."""
    macs = {mac(number): True, mac(number + 100): False}
    report = {"serial": serial, "manufacturer": "ACME", "model": "G8", "uuid": "u", "macs": macs}
    return json.dumps(report | {"disks": DISKS} | changed).encode()


class Machines(threading.Thread):
    """Fake machines, which all send their reports as soon as a discovery is open.

    ``says`` has the report of each machine, by the number in its MAC address. ``seen`` has the files of the
    boot host at that moment.
    """

    def __init__(self, folder: Path, says: dict[int, bytes]) -> None:
        super().__init__(daemon=True)
        self.netboot, self.says = folder / "netboot", says
        self.ended = threading.Event()
        self.seen: dict[str, str] = {}

    def run(self) -> None:
        while not self.ended.wait(0.1):
            open_now = self.netboot / "discover/open.conf"
            for place in self.netboot.glob("http/boot-reports/discover-*"):
                with contextlib.suppress(OSError):
                    if self.seen.get("folder") == place.name or not open_now.exists():
                        continue
                    # The folder of a killed discovery still exists, but machines no longer send reports to
                    # it.
                    if place.name not in (self.netboot / "http/discover/report.ipxe").read_text():
                        continue
                    self.seen = {
                        "folder": place.name,
                        "open": open_now.read_text(),
                        "script": (self.netboot / "http/discover/report.ipxe").read_text(),
                        "lease": (self.netboot / "discover/lease").read_text(),
                        "owner": f"{place.owner()} {place.stat().st_mode & 0o777:o}",
                    }
                    for number, data in self.says.items():
                        (place / f"{mac(number).replace(':', '-')}.json").write_bytes(data)
                    # A file whose name is no MAC address must be ignored.
                    (place / "x; touch y.json").write_bytes(b"{}")


class Site:
    """An inventory whose nodes may lack MAC addresses, a boot host, and fake machines."""

    def __init__(self, folder: Path, says: dict[int, bytes], **nodes: dict[str, Any]) -> None:
        self.folder = folder
        self.written = folder / "discovered.yml"
        (folder / "netboot").mkdir()
        (folder / "bin").mkdir()
        program = folder / "bin/systemctl"
        program.write_text(
            f'#!/bin/sh\necho "$*" >> {folder}/systemctl.log\n'
            'case "$*" in *show*) echo LoadState=loaded; echo ActiveState=active;; esac\n'
        )
        program.chmod(0o755)
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        shared = {
            "netboot_address": "192.0.2.254",
            "netboot_folder": str(folder / "netboot"),
            "netboot_kernel": "vmlinuz",
            "netboot_initrd": "ramdisk",
            "reimage_netboot_host": "boothost",
        }
        hosts = {"localhost": local, "boothost": local, **nodes}
        inventory = {
            "vars": shared,
            "hosts": hosts,
            "children": {"gpu_nodes": {"hosts": dict.fromkeys(nodes)}},
        }
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": inventory}))
        self.machines = Machines(folder, says)
        self.machines.start()

    def begin(self, *words: str, **asked: Any) -> subprocess.Popen[str]:
        """Start discover.yml with variables, and do not wait for it."""
        asked = {"discover_by": "boot", "discover_wait_s": 60} | asked
        return subprocess.Popen(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                "-i",
                self.folder / "hosts.yml",
                "playbooks/discover.yml",
                "-e",
                json.dumps(asked),
                *words,
            ],
            cwd=ROOT,
            env=os.environ
            | {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "400", "PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def discover(self, *words: str, **asked: Any) -> tuple[int, str]:
        """Run discover.yml. Return its status, and its output as one line."""
        process = self.begin(*words, **asked)
        output = process.communicate(timeout=200)[0]
        return process.returncode, " ".join(output.split())

    def found(self) -> Any:
        """Return the hosts in the inventory that discover.yml wrote."""
        return yaml.safe_load(self.written.read_text())["all"]["hosts"]

    def left(self) -> list[str]:
        """Return the names of the files and folders that a discovery left on the boot host."""
        return [path.name for path in (self.folder / "netboot").rglob("*") if path.is_file()] + [
            path.name for path in (self.folder / "netboot").glob("http/boot-reports/*")
        ]


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """Yield a function that makes a site. After the test, end the fake machines of the sites."""
    made: list[Site] = []

    def site(says: dict[int, bytes], **nodes: dict[str, Any]) -> Site:
        made.append(Site(tmp_path, says, **nodes))
        return made[-1]

    yield site
    for one in made:
        one.machines.ended.set()


Make = Callable[..., Site]


def test_machines_become_nodes_by_serial_number_and_it_ends_when_all_have_reported(make: Make) -> None:
    site = make(
        {1: boot_report("s1", 1), 2: boot_report("S{{ 2 }}", 2, model="{{ lookup('pipe', 'id') }}")},
        n1={"reimage_serial": "S{{ 1 }}"},
        n2={"reimage_serial": "S{{ '{{' }} 2 }}"},
        known={"reimage_serial": "S3", "reimage_mac": mac(3).upper().replace(":", "-")},
    )
    site.written.write_text(yaml.safe_dump({"all": {"hosts": {"n1": {"reimage_bmc_address": "10.0.0.1"}}}}))
    begin = time.monotonic()
    status, output = site.discover()
    assert (status, time.monotonic() - begin < 50) == (0, True), output
    assert site.found() == {
        "n1": {"reimage_bmc_address": "10.0.0.1", "reimage_mac": mac(1)},
        "n2": {"reimage_mac": mac(2)},
    }
    assert "Awaited: n1, n2" in output
    assert f"reported: {mac(1)}: ACME G8, serial number s1" in output
    assert "still awaited: none" in output
    assert f"n1: {mac(1)}: ACME G8, serial number s1" in output
    assert "n1: disks: /dev/sda (serial D1, 894.1 GiB, /dev/disk/by-path/pci-1)" in output
    assert f"n1: interfaces: {mac(1)} (link), {mac(101)} (no link)" in output
    assert "uid=" not in output
    # A known machine gets no answer. If the playbook is killed, the boot host ends the discovery by itself,
    # 60 s after the requested 60 s. Reports are only accepted at an address with a secret token.
    seen = site.machines.seen
    assert seen["open"].splitlines()[1:] == [
        "dhcp-mac=set:unknown,*:*:*:*:*:*",
        f"dhcp-mac=set:known,{mac(3)}",
    ]
    seconds, token = seen["lease"].split()
    assert (seconds, f"discover-{token}", len(token)) == ("120", seen["folder"], 32)
    assert seen["owner"] == "www-data 750"
    assert f" rackproof.report=http://192.0.2.254:8080/boot-reports/{seen['folder']} ||" in seen["script"]
    assert "rackproof.order" not in seen["script"]
    assert site.left() == []
    assert (site.folder / "systemctl.log").read_text().count("restart rackproof-netboot-dnsmasq") == 2


def test_a_machine_without_a_match_is_named_and_the_others_are_written(make: Make) -> None:
    # Machine 1 is right. 2 and 3 have the same serial number, and 4 has an unknown one. 5 sends no JSON. 6
    # reports another MAC address than the one it booted by, 7 contradicts the inventory, and 8 sends more
    # than 64 KiB.
    site = make(
        {
            1: boot_report("S1", 1),
            2: boot_report("S2", 2),
            3: boot_report("S2", 3),
            4: boot_report("STRANGER\x1b[31m\u202e", 4),
            5: b"{",
            6: boot_report("S6", 106),
            7: boot_report("S7", 7),
            8: b"x" * 70000,
        },
        n1={"reimage_serial": "S1"},
        n2={"reimage_serial": "S2"},
        n7={"reimage_serial": "S7", "reimage_mac": mac(77)},
        n9={"reimage_serial": "S9"},
        n10={},
    )
    status, output = site.discover(discover_wait_s=6)
    assert status == 2, output
    assert site.found() == {"n1": {"reimage_mac": mac(1)}}
    for line in (
        f"{mac(4)}: ACME G8, serial number STRANGER: no node of the inventory",
        f"n2: its serial number is reported by 2 MAC addresses: {mac(2)}, {mac(3)}",
        f"{mac(5)}: its boot report cannot be read",
        f"{mac(6)}: its boot report lists no network interface with this address",
        f"n7: it booted by {mac(7)}; the inventory has reimage_mac {mac(77)}",
        f"{mac(8)}: its boot report has more than 65536 bytes",
        "sent no boot report: n[2,9]",
        "have no reimage_serial: n10",
        "still awaited: n[2,9]",
    ):
        assert line in output, line
    assert site.left() == []


def test_only_machines_that_are_named_are_answered_then_also_known_ones(make: Make) -> None:
    site = make(
        {3: boot_report("S3", 3)},
        n1={"reimage_serial": "S1"},
        n3={"reimage_serial": "S3", "reimage_mac": mac(3)},
        n4={"reimage_serial": "S4", "reimage_mac": mac(4)},
    )
    status, output = site.discover(discover_macs=[mac(3).upper()])
    assert status == 0, output
    assert site.machines.seen["open"].splitlines()[1:] == [
        f"dhcp-mac=set:unknown,{mac(3)}",
        f"dhcp-mac=set:known,{mac(4)}",
    ]
    assert site.found() == {"n3": {"reimage_mac": mac(3)}}


@pytest.mark.parametrize(
    ("asked", "words", "why"),
    [
        ({"discover_by": "name"}, [], "discover_by is bmc or boot, not name"),
        ({"reimage_netboot_host": ""}, [], "reimage_netboot_host is empty"),
        ({"reimage_mac": mac(1)}, [], "every node with reimage_serial has its reimage_mac"),
        ({"discover_macs": ["52:54"]}, [], "no MAC address: 52:54"),
        ({"netboot_kernel": ""}, [], "netboot_kernel and netboot_initrd have to be set"),
        ({}, ["--check"], "boothost would answer machines whose MAC address is not known (0 are known)"),
    ],
)
def test_a_wrong_request_or_a_check_answers_no_machine(
    make: Make, asked: dict[str, Any], words: list[str], why: str
) -> None:
    site = make({1: boot_report("S1", 1)}, n1={"reimage_serial": "S1"})
    status, output = site.discover(*words, **asked)
    assert (status, why in output) == (0 if words else 2, True), output
    assert not site.written.exists()
    assert site.left() == []
    assert site.machines.seen == {}


def test_a_file_of_another_program_is_refused_before_any_boot_report(make: Make) -> None:
    site = make({}, n1={"reimage_serial": "S1"})
    site.written.write_text("all: {vars: {a: 1}}\n")
    begin = time.monotonic()
    status, output = site.discover()
    assert (status, time.monotonic() - begin < 50) == (2, True), output
    assert "is not discover.yml's own: name another with discover_file" in output
    assert site.written.read_text() == "all: {vars: {a: 1}}\n"
    assert site.left() == []


def test_a_playbook_that_is_killed_leaves_a_time_that_ends_by_itself_and_the_next_one_begins(
    make: Make,
) -> None:
    site = make({1: boot_report("S1", 1)}, n1={"reimage_serial": "S1"}, n2={"reimage_serial": "S2"})
    process = site.begin()
    end = time.monotonic() + 100
    while not site.machines.seen and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    first = dict(site.machines.seen)
    assert sorted(site.left())[:3] == ["52-54-00-00-00-01.json", first["folder"], "lease"]
    site.machines.says = {2: boot_report("S2", 2), 1: boot_report("S1", 1)}
    status, output = site.discover()
    assert status == 0, output
    assert site.found() == {"n1": {"reimage_mac": mac(1)}, "n2": {"reimage_mac": mac(2)}}
    assert site.machines.seen["folder"] != first["folder"]
