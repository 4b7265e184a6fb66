"""The way of a node to its image: BMCs by an emulator, entries in a folder, ramdisks that a test plays."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rackproof.reimaging import running
from rackproof.reimaging.images import describe

pytestmark = pytest.mark.playbook
ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = """
- hosts: nodes
  gather_facts: false
  tasks:
    - rackproof_reimage_begin:
        results: "{{ reimage_results }}"
        nodes: "{{ dict.fromkeys(ansible_play_hosts_all, []) }}"
        method: image
      run_once: true
      register: reimage_begun
    - block:
        - ansible.builtin.include_tasks: PLACE/reimage_by_image.yml
      rescue:
        - ansible.builtin.import_tasks: PLACE/reimage_failed.yml
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >> FOLDER/systemctl.log
case "$*" in *show*) echo LoadState=loaded; echo ActiveState=active; echo SubState=running;; esac
"""
KEYS = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ6C2+4fVZsBQ3wSGyA2xZpQyoWzJ0dFqk1eI0Ew8m1F"]
OLD = "192.0.2.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl\n"
SAYS: dict[str, dict[str, Any] | None] = {
    "n1": {"status": "written", "disk": "/dev/vda", "disk_serial": "D1", "seconds": 12.6, "host_keys": KEYS},
    "n2": {"status": "refused", "reason": "this machine's serial number is X"},
    # A ramdisk that is never heard of.
    "n3": None,
}


def emulator(folder: Path, systems: dict[str, str]) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    fake = [
        {"uuid": uuid, "name": name, "power_state": "On", "external_notifier": False, "nics": []}
        for name, uuid in systems.items()
    ]
    config = folder / "emulator.conf"
    config.write_text(
        f"SUSHY_EMULATOR_FAKE_DRIVER = True\nSUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\n"
        f"SUSHY_EMULATOR_LISTEN_PORT = {port}\nSUSHY_EMULATOR_STATE_DIR = {str(folder)!r}\n"
        f"SUSHY_EMULATOR_FAKE_SYSTEMS = {fake!r}\n"
    )
    process = subprocess.Popen(
        [Path(sys.executable).with_name("sushy-emulator"), "--fake", "--config", config],
        stdout=(folder / "emulator.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    for _ in range(300):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/redfish/v1/", timeout=5).close()
            return process, f"http://127.0.0.1:{port}"
        time.sleep(0.1)
    raise AssertionError((folder / "emulator.log").read_text())


class Ramdisks(threading.Thread):
    """What nodes would say that find an order."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.http = folder / "netboot/http"
        self.orders: dict[str, dict[str, Any]] = {}
        self.entries: set[str] = set()
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.1):
            for path in self.http.glob("nodes/*/write.json"):
                name = path.parent.name
                if name in self.orders:
                    continue
                with contextlib.suppress(ValueError, OSError):
                    order = json.loads(path.read_text())
                    # The script and the host's file come after the order.
                    time.sleep(0.5)
                    self.entries |= {one.name for one in (self.http.parent / "dhcp-hosts").iterdir()}
                    self.orders[name] = order
                    told = self.http / "told" / order["report"].rpartition("/")[2]
                    if SAYS[name]:
                        told.write_text(json.dumps(SAYS[name]))


@pytest.fixture(scope="module")
def imaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ramdisks, str]:
    """Return a folder after one run with five nodes, what nodes were told, and what the playbook said."""
    folder = tmp_path_factory.mktemp("by-image")
    for name in ("netboot/dhcp-hosts", "netboot/http/nodes", "netboot/http/told", "bin"):
        (folder / name).mkdir(parents=True)
    (folder / "bin/systemctl").write_text(SYSTEMCTL.replace("FOLDER", str(folder)))
    (folder / "bin/systemctl").chmod(0o755)
    (folder / "known_hosts").write_text(OLD)
    (folder / "disk.raw").write_bytes(b"boot" * 1000)
    (folder / "disk.raw.json").write_text(describe(folder / "disk.raw").model_dump_json())
    (folder / "playbook.yml").write_text(PLAYBOOK.replace("PLACE", str(ROOT / "playbooks/tasks")))
    systems = {f"n{number}": f"27946b59-9e44-4fa7-8e91-f3527a1ef0{number:02d}" for number in range(1, 6)}
    process, address = emulator(folder, systems)
    hosts = {
        name: {
            "ansible_host": f"192.0.2.{name[1:]}",
            "reimage_bmc_address": address if name != "n4" else "http://127.0.0.1:1",
            "reimage_bmc_system": uuid,
            "reimage_mac": f"52:54:00:00:00:0{name[1:]}" if name != "n5" else "",
            "reimage_serial": "S",
            "reimage_disk": {"serial": "D1"},
        }
        for name, uuid in systems.items()
    }
    shared = {
        "netboot_address": "192.0.2.254",
        "netboot_folder": str(folder / "netboot"),
        "netboot_kernel": "vmlinuz",
        "netboot_initrd": "ramdisk",
        "netboot_image": "disk.raw",
        "netboot_image_description": str(folder / "disk.raw.json"),
        "reimage_netboot_host": "boothost",
        "reimage_authorized_keys": ["ssh-ed25519 AAAA ops"],
        "reimage_known_hosts": str(folder / "known_hosts"),
        "reimage_results": str(folder / "results"),
        "reimage_limits": {"boot": 8, "image": 8},
    }
    boothost = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = {
        "all": {"vars": shared, "hosts": {"boothost": boothost}, "children": {"nodes": {"hosts": hosts}}}
    }
    (folder / "hosts.json").write_text(json.dumps(inventory))
    ramdisks = Ramdisks(folder)
    ramdisks.start()
    try:
        done = subprocess.run(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                "-i",
                folder / "hosts.json",
                folder / "playbook.yml",
            ],
            cwd=ROOT,
            env=os.environ | {"ANSIBLE_NOCOLOR": "1", "PATH": f"{folder}/bin:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        ramdisks.ended.set()
        process.terminate()
        process.wait()
    return folder, ramdisks, done.stdout + done.stderr


def test_each_node_ends_where_its_ramdisk_or_bmc_left_it(imaged: tuple[Path, Ramdisks, str]) -> None:
    folder, _, said = imaged
    found = {one.node: one.standing for one in running.status(folder / "results")}
    stood = {name: (one.state, one.step.value if one.step else "") for name, one in found.items()}
    assert stood.pop("n1")[0] == "interrupted", said  # its image is done, and this playbook ends there
    assert stood == {
        "n2": ("failed", "image"),
        "n3": ("failed", "boot"),
        "n4": ("failed", "boot"),
        "n5": ("failed", "boot"),
    }, said
    assert found["n1"].remarks == ("written to /dev/vda (D1) in 13 s",)
    assert "n2 refused: this machine's serial number is X" in found["n2"].reason
    assert "n3 did not boot over the network in time" in found["n3"].reason
    assert "n4: its BMC at http://127.0.0.1:1 does not answer" in found["n4"].reason
    assert "n5 lacks reimage_mac in the inventory" in found["n5"].reason


def test_an_entry_is_there_only_while_a_node_boots(imaged: tuple[Path, Ramdisks, str]) -> None:
    folder, ramdisks, said = imaged
    assert set(ramdisks.orders) == ramdisks.entries == {"n1", "n2", "n3"}, said
    left = [path.name for path in (folder / "netboot/dhcp-hosts").iterdir()]
    left += [path.name for path in (folder / "netboot/http/nodes").rglob("*") if path.is_file()]
    assert left == []
    # And dnsmasq knows nothing of them any more: it began anew, since told to forget it may end with a fault.
    assert "restart rackproof-netboot-dnsmasq.service" in (folder / "systemctl.log").read_text()
    order = ramdisks.orders["n1"]
    assert (order["serial"], order["disk"]) == ("S", {"serial": "D1"})
    assert '"local-hostname": "n1"' in order["seed"]["meta-data"]
    # Each attempt has a name of its own.
    assert len({one["report"] for one in ramdisks.orders.values()}) == 3


def test_a_new_system_is_known_by_its_keys_and_no_longer_by_the_old_ones(
    imaged: tuple[Path, Ramdisks, str],
) -> None:
    folder, _, said = imaged
    assert (folder / "known_hosts").read_text() == f"192.0.2.1 {KEYS[0]}\n", said
