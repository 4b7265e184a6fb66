"""Test ``rackproof.jobs.reimage.discovery``, which finds the BMC of each node.

playbooks/discover.yml asks the BMCs at given addresses for serial numbers, matches them with the inventory's
``reimage_serial``, and writes the addresses into an inventory file. The tests check the address ranges, the
matches, that every BMC and node without a match is reported, and that a BMC that never finishes an answer
does not stop the others.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof.jobs.reimage import tasks
from rackproof.jobs.reimage.bmc import Access, BmcError, BmcSilentError, MachineIdentity
from rackproof.jobs.reimage.discovery import (
    Discovery,
    DiscoveryError,
    KnownNode,
    ask_bmcs,
    awaited_nodes,
    expand_addresses,
    match_machines,
    write_discovered,
)

from .fake_ipmi import FakeIpmi
from .fake_redfish import FakeRedfish

MAC = "52:54:00:00:00:01"
OTHER = "52:54:00:00:00:02"


class TaggedStr(str):
    """A text of a task's options. Ansible's own subclass of str also carries the text's origin."""


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("n1", {"reimage_bmc_address": "10.0.0.1", "reimage_bmc_protocol": TaggedStr("ipmi")}),
        ("n1", {"reimage_bmc_address": TaggedStr("10.0.0.1"), "reimage_mac": MAC}),
        (TaggedStr("n1"), {"reimage_mac": TaggedStr(MAC)}),
    ],
)
def test_texts_of_ansible_are_written_like_other_texts(
    tmp_path: Path, name: str, variables: dict[str, str]
) -> None:
    path = tmp_path / "discovered.yml"
    assert write_discovered(path, {name: variables})
    assert yaml.safe_load(path.read_text()) == {"all": {"hosts": {"n1": variables}}}
    assert not write_discovered(path, {name: variables})


# `ranged` are the addresses from ranges and networks, of which silence is no problem. None means all.
@pytest.mark.parametrize(
    ("words", "addresses", "ranged"),
    [
        (["10.0.0.11", "bmc-17.example:8443"], ["10.0.0.11", "bmc-17.example:8443"], []),
        (["10.0.0.254-10.0.1.1"], ["10.0.0.254", "10.0.0.255", "10.0.1.0", "10.0.1.1"], None),
        (["10.0.0.0/30"], ["10.0.0.1", "10.0.0.2"], None),
        (["fd00::fe-fd00::ff"], ["fd00::fe", "fd00::ff"], None),
        # An address that is also named by itself must answer, in either order.
        (["10.0.0.1-10.0.0.2", "10.0.0.2"], ["10.0.0.1", "10.0.0.2"], ["10.0.0.1"]),
        (["10.0.0.2", "10.0.0.1-10.0.0.2"], ["10.0.0.2", "10.0.0.1"], ["10.0.0.1"]),
        (["http://127.0.0.1:8000/"], ["http://127.0.0.1:8000/"], []),
    ],
)
def test_ranges_and_networks_become_addresses(
    words: list[str], addresses: list[str], ranged: list[str] | None
) -> None:
    assert expand_addresses(words) == (addresses, frozenset(addresses if ranged is None else ranged))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "name at least one address"),
        ([" "], "an address is empty"),
        (["10.0.0.9-10.0.0.1"], "does not go from low to high"),
        (["10.0.0.9-fd00::1"], "does not go from low to high"),
        (["10.0.0.9-19"], "10.0.0.9-19"),
        (["10.0.0.1/24"], "has host bits set"),
        (["10.0.0.0/8"], "more than 4096 addresses"),
    ],
)
def test_what_begins_like_a_range_and_is_none_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(DiscoveryError, match=why):
        expand_addresses(words)


def about(serial: str = "S1", **changed: object) -> MachineIdentity:
    return MachineIdentity(
        **({"system": "1", "serial": serial, "model": "ACME G8", "power": "Off"} | changed)
    )


ONE = {"n1": KnownNode(serial="S1", mac=MAC)}


def test_a_node_is_matched_by_its_serial_number_however_it_is_written() -> None:
    found = match_machines({"10.0.0.11": (about(" s1 "),)}, ONE)
    assert found.variables == {"n1": {"reimage_bmc_address": "10.0.0.11"}}
    assert (found.problems, found.remarks, found.gates) == ((), (), False)
    assert found.matched == ("n1: 10.0.0.11: ACME G8, serial number  s1 , power Off",)
    assert match_machines({"10.0.0.11": (about(),)}, ONE, protocol="ipmi").variables["n1"] == {
        "reimage_bmc_address": "10.0.0.11",
        "reimage_bmc_protocol": "ipmi",
    }


# `macs` has the BMC's MAC addresses and their links (None if unknown), and `known` the one of the inventory.
@pytest.mark.parametrize(
    ("macs", "known", "written", "remark"),
    [
        ({MAC: None}, "", MAC, ""),
        ({MAC.upper(): None, "52:54:00:00:00:02": False}, "", "", "does not show which MAC"),
        ({MAC: True, "52:54:00:00:00:02": False}, "", MAC, ""),
        ({MAC: True, "52:54:00:00:00:02": True}, "", "", "does not show which MAC"),
        ({}, "", "", "lists no MAC address: set reimage_mac"),
        ({"{{ evil }}": True}, "", "", "lists no MAC address"),
        ({MAC: True}, MAC.upper(), "", ""),
        ({MAC: True}, MAC.upper().replace(":", "-"), "", ""),
        ({MAC: True}, "52:54:00:00:00:09", "", "its BMC does not list reimage_mac"),
        ({}, MAC, "", ""),
    ],
)
def test_a_mac_address_is_written_only_where_it_is_certain(
    macs: dict[str, bool | None], known: str, written: str, remark: str
) -> None:
    found = match_machines({"10.0.0.11": (about(macs=macs),)}, {"n1": KnownNode(serial="S1", mac=known)})
    assert found.variables["n1"].get("reimage_mac", "") == written
    assert [remark in one for one in found.remarks] == [True] * bool(remark)


def test_everything_that_was_asked_and_every_node_is_accounted_for() -> None:
    nodes = ONE | {
        "n2": KnownNode(serial="S2"),
        "n3": KnownNode(serial="S3"),
        "n4": KnownNode(serial="S4", bmc_address="10.0.0.99"),
        "n5": KnownNode(),
        "n6": KnownNode(serial="S6"),
        "n7": KnownNode(serial="s6"),
    }
    found = match_machines(
        {
            "10.0.0.1": (about("S1"),),
            "10.0.0.2": (about("S2"),),
            "10.0.0.3": (about("S2"),),
            "10.0.0.4": (about("S9"),),
            "10.0.0.5": (about(""),),
            "10.0.0.6": (about("S6"),),
            "10.0.0.7": BmcSilentError("10.0.0.7: its BMC does not answer"),
            "10.0.0.8": BmcSilentError("10.0.0.8: its BMC does not answer"),
            "10.0.0.9": BmcError("10.0.0.9: refuses the login"),
            "10.0.0.10": (),
        },
        nodes,
        ranged=frozenset({"10.0.0.8", "10.0.0.9"}),
    )
    assert found.variables == {"n1": {"reimage_bmc_address": "10.0.0.1"}}
    assert found.problems == (
        "10.0.0.4: ACME G8, serial number S9, power Off: no node of the inventory",
        "10.0.0.5: ACME G8, no serial number, power Off: no node of the inventory",
        "10.0.0.7: its BMC does not answer",
        "10.0.0.9: refuses the login",
        "10.0.0.10: its BMC lists no system",
        "n2: its serial number is reported by 2 BMCs: 10.0.0.2, 10.0.0.3",
        "n6, n7: one reimage_serial for several nodes",
    )
    assert found.remarks == (
        "no BMC was found of n[2-3,6-7]",
        "cannot be matched, because they have no reimage_serial: n5",
        "no answer at 1 address of ranges: 10.0.0.8",
    )
    assert found.gates


def test_silence_in_a_range_is_no_error_if_any_bmc_is_found() -> None:
    silent = {"10.0.0.8": BmcSilentError("10.0.0.8: its BMC does not answer")}
    ranged = frozenset(silent)
    assert not match_machines(silent | {"10.0.0.1": (about(),)}, ONE, ranged=ranged).gates
    assert match_machines(silent, ONE, ranged=ranged).gates


def test_of_a_bmc_that_lists_several_systems_each_is_named() -> None:
    board = about("B1", system="HGX_Baseboard_0", model="HGX")
    found = match_machines({"10.0.0.1": (about(system="System_0"), board)}, ONE)
    assert found.variables["n1"]["reimage_bmc_system"] == "System_0"
    assert found.remarks == ("10.0.0.1: HGX, serial number B1, power Off: no node of the inventory",)
    assert not found.gates
    found = match_machines({"10.0.0.1": (about(system="{{ lookup('pipe', 'id') }}"), board)}, ONE)
    assert not found.variables
    assert "which cannot be written down" in found.problems[0]


def test_a_bmc_that_has_moved_is_reported() -> None:
    known = {"n1": KnownNode(serial="S1", mac=MAC, bmc_address="https://10.0.0.1/")}
    assert match_machines({"10.0.0.1": (about(),)}, known).remarks == ()
    assert match_machines({"10.0.0.2": (about(),)}, known).remarks == (
        "n1: the inventory has its BMC at https://10.0.0.1/; it is at 10.0.0.2",
    )


def test_machines_that_booted_are_matched_by_the_same_rules() -> None:
    nodes = {
        "n1": KnownNode(serial="S1"),
        "n2": KnownNode(serial="S2", mac=MAC.upper().replace(":", "-")),
        "n3": KnownNode(serial="S3", mac="52:54:00:00:00:09"),
        "n4": KnownNode(serial="S4"),
        "n5": KnownNode(serial="S5"),
        "n6": KnownNode(serial="S6", bmc_address="10.0.0.6"),
        "n7": KnownNode(),
    }

    def booted(serial: str) -> tuple[MachineIdentity, ...]:
        return (MachineIdentity(serial=serial, model="ACME G8", power="On"),)

    macs = [f"52:54:00:00:00:1{number}" for number in range(6)]
    answers = {
        macs[0]: booted(" s1"),
        MAC: booted("S2"),
        macs[2]: booted("S3"),
        macs[3]: booted("S4"),
        macs[4]: booted("S4"),
        macs[5]: booted(""),
    }
    found = match_machines(answers, nodes, protocol="boot")
    assert found.variables == {"n1": {"reimage_mac": macs[0]}, "n2": {"reimage_mac": MAC}}
    assert found.matched[0] == f"n1: {macs[0]}: ACME G8, serial number  s1"
    assert found.problems == (
        f"{macs[5]}: ACME G8, no serial number: no node of the inventory",
        f"n3: it booted by {macs[2]}; the inventory has reimage_mac 52:54:00:00:00:09",
        f"n4: its serial number is reported by 2 MAC addresses: {macs[3]}, {macs[4]}",
    )
    assert found.remarks == (
        "sent no boot report: n[4-6]",
        "cannot be matched, because they have no reimage_serial: n7",
    )
    assert found.gates
    assert awaited_nodes(nodes) == ["n1", "n4", "n5", "n6"]


def test_each_bmc_has_its_time_and_no_more_are_asked_at_once_than_allowed() -> None:
    at_once: list[int] = []
    now: set[str] = set()
    ever = threading.Event()
    others: list[threading.Thread] = []

    def list_systems(address: str, access: Access) -> tuple[MachineIdentity, ...]:
        now.add(address)
        at_once.append(len(now))
        try:
            if address == "hangs":
                ever.wait()
            others.append(threading.current_thread())
            if address == "stumbles":
                raise KeyError("Members")
            if address == "refuses":
                raise BmcError("refuses: no")
            assert (access.address, access.user) == (address, "ops")
            return (about(address),)
        finally:
            now.discard(address)

    def clock() -> float:
        # The time is over as soon as all other BMCs have answered, however long that takes.
        return 100.0 if len(others) == 6 and not any(one.is_alive() for one in others) else 0.0

    addresses = ["a", "hangs", "b", "stumbles", "refuses", "c", "d"]
    access = Access("", "ops", "secret")
    answers = ask_bmcs(addresses, access, list_systems, parallel=2, timeout_s=1, clock=clock)
    ever.set()
    assert list(answers) == addresses
    assert max(at_once) == 2
    assert {name: str(one) for name, one in answers.items() if isinstance(one, BmcError)} == {
        "hangs": "hangs: its BMC did not finish within 1 s",
        "stumbles": "stumbles: the answer of its BMC cannot be read: 'Members'",
        "refuses": "refuses: no",
    }


# Contents of an inventory file that Rackproof did not write.
DAMAGED = (
    "[" * 5000,
    "{a: " * 5000,
    *(f"all: {{hosts: {{n1: {entry}}}}}" for entry in ("text", 3, "[a, b]")),
)


def test_the_file_keeps_its_nodes_and_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "discovered.yml"
    first = {"n1": {"reimage_bmc_address": "10.0.0.1", "reimage_mac": MAC}}
    assert write_discovered(path, first)
    assert not write_discovered(path, first)
    assert write_discovered(path, {"n2": {"reimage_bmc_address": "10.0.0.2"}})
    assert write_discovered(path, {"n1": {"reimage_bmc_address": "10.0.0.9"}})
    assert yaml.safe_load(path.read_text()) == {
        "all": {
            "hosts": {
                "n1": {"reimage_bmc_address": "10.0.0.9", "reimage_mac": MAC},
                "n2": {"reimage_bmc_address": "10.0.0.2"},
            }
        }
    }
    # The report of a booted machine does not name its BMC, and the BMC does not name its MAC address.
    assert write_discovered(path, {"n1": {"reimage_bmc_address": "10.0.0.9", "reimage_bmc_system": "1"}})
    assert write_discovered(path, {"n1": {"reimage_mac": OTHER}})
    both = {"reimage_bmc_address": "10.0.0.9", "reimage_bmc_system": "1", "reimage_mac": OTHER}
    assert yaml.safe_load(path.read_text())["all"]["hosts"]["n1"] == both
    assert write_discovered(path, {"n1": {"reimage_bmc_address": "10.0.0.8"}})
    moved = {"reimage_bmc_address": "10.0.0.8", "reimage_mac": OTHER}
    assert yaml.safe_load(path.read_text())["all"]["hosts"]["n1"] == moved
    for text in ("all: {hosts: {}, vars: {a: 1}}", "[1]", "{", "sku: {}", "all: 3", *DAMAGED):
        path.write_text(text)
        with pytest.raises(DiscoveryError, match=r"discovered\.yml is no"):
            write_discovered(path, first)
        assert path.read_text() == text


def test_nothing_found_proves_nothing() -> None:
    assert Discovery({}, (), ()).gates


@pytest.fixture
def rack() -> Iterator[dict[str, FakeRedfish]]:
    made = {
        "n1": FakeRedfish(
            {
                "Id": "System_0",
                "SerialNumber": "S1",
                "Manufacturer": "ACME",
                "Model": "G8",
                "macs": {MAC: "LinkUp", "52:54:00:00:00:aa": "LinkDown"},
            },
            {"Id": "HGX_Baseboard_0", "SerialNumber": "B1", "macs": {MAC: "LinkUp"}},
        ),
        # Dell's service tag (SKU) is the serial number that the machine's own system reads.
        "n2": FakeRedfish(
            {"Id": "1", "SerialNumber": "CN123", "SKU": "S2", "Manufacturer": "Dell Inc.", "macs": {}}
        ),
        "stranger": FakeRedfish({"Id": "1", "SerialNumber": "S9"}),
    }
    yield made
    for one in made.values():
        one.close()


@pytest.mark.slow
def test_bmcs_report_their_serial_numbers_by_redfish(rack: dict[str, FakeRedfish]) -> None:
    silent = "http://127.0.0.1:1"
    # This BMC lists interfaces of its baseboard, but cannot show them.
    rack["n1"].fault = "HGX_Baseboard_0/EthernetInterfaces"
    stranger = rack.pop("stranger")
    access = Access("", "ops", "secret")
    answers = ask_bmcs([*(one.address for one in rack.values()), silent], access, tasks.list_systems)
    one, two, none = answers.values()
    assert one == (
        MachineIdentity("System_0", "S1", "ACME G8", "Off", {MAC: True, "52:54:00:00:00:aa": False}),
        MachineIdentity("HGX_Baseboard_0", "B1", "", "Off", {}),
    )
    assert two == (MachineIdentity("1", "S2", "Dell Inc.", "Off", {}),)
    assert isinstance(none, BmcSilentError)
    stranger.fault = "drips"
    (drips,) = ask_bmcs([stranger.address], access, tasks.list_systems, timeout_s=1).values()
    assert "did not finish within 1 s" in str(drips)
    stranger.close()


@pytest.mark.slow
def test_bmcs_report_their_serial_numbers_by_ipmi() -> None:
    if not shutil.which("ipmitool"):
        pytest.skip("needs ipmitool (tools/install-test-packages)")
    with socket.socket(type=socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    FakeIpmi(port, serial="S1")
    address = f"127.0.0.1:{port}"
    assert ask_bmcs(
        [address], Access("", "ops", "secret", protocol="ipmi", cipher_suite=3), tasks.list_systems
    ) == {address: (MachineIdentity("", "S1", "Supermicro SYS-821GE", "Off", {}),)}


@pytest.mark.playbook
def test_the_playbook_writes_an_inventory_that_the_next_one_reads(
    rack: dict[str, FakeRedfish], tmp_path: Path
) -> None:
    hosts = {
        "localhost": {"ansible_connection": "local"},
        "n1": {"reimage_serial": "S{{ 1 }}"},
        "n2": {"reimage_serial": "S2", "reimage_mac": "52:54:00:00:00:02"},
        "n3": {"reimage_serial": "S3"},
        "n4": {},
    }
    nodes = {"hosts": {name: {} for name in hosts if name != "localhost"}}
    inventory = {"all": {"hosts": hosts, "children": {"gpu_nodes": nodes}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    written = tmp_path / "discovered.yml"

    def run(*words: str | Path, **asked: Any) -> str:
        asked |= {
            "reimage_bmc_user": "ops",
            "reimage_bmc_password": "{{ lookup('ansible.builtin.env', 'BMC_PASSWORD') }}",
        }
        program, *rest = words
        done = subprocess.run(
            [Path(sys.executable).with_name(str(program)), "-i", tmp_path / "hosts.yml", *rest]
            + (["-e", json.dumps(asked)] if program == "ansible-playbook" else []),
            cwd=Path(__file__).resolve().parents[3],
            env=os.environ | {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "400", "BMC_PASSWORD": "secret"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert "secret" not in done.stdout + done.stderr
        return f"{' '.join(done.stdout.split())} {done.stderr} status {done.returncode}"

    discover = ("ansible-playbook", "playbooks/discover.yml")
    bmcs = [one.address for one in rack.values()]
    assert "name at least one address" in run(*discover)
    said = run(*discover, "--check", discover_addresses=bmcs[:2])
    assert "status 0" in said, said
    assert not written.exists()
    said = run(*discover, discover_addresses=bmcs)
    assert "status 2" in said
    assert f"{bmcs[2]}: no model, serial number S9, power Off: no node of the inventory" in said
    assert "no BMC was found of n3" in said
    assert "have no reimage_serial: n4" in said
    assert f"next: ansible-playbook reimage.yml -i {tmp_path}/hosts.yml -i {written} -l n1,n2" in said
    assert yaml.safe_load(written.read_text())["all"]["hosts"] == {
        "n1": {"reimage_bmc_address": bmcs[0], "reimage_bmc_system": "System_0", "reimage_mac": MAC},
        "n2": {"reimage_bmc_address": bmcs[1]},
    }
    said = run("ansible-inventory", "-i", written, "--host", "n1")
    assert f'"reimage_mac": "{MAC}"' in said
    assert '"reimage_serial": "S{{ 1 }}"' in said
    # With the file as an inventory, nothing changes.
    said = run(*discover, "-i", written, discover_addresses=bmcs[:2])
    assert "status 0" in said, said
    assert "changed=0" in said
