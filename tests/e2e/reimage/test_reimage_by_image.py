"""Test how reimage.yml boots a node over the network and has an image written (``by_image``).

The playbook writes an entry with an order (which image, which disk) on the boot host, and starts the node by
its BMC. The node's ramdisk requests the controller's signature of the order, checks it, writes the image, and
reports. Here, a Redfish emulator is the BMC, the boot host is a folder, and a thread sends the ramdisks'
reports. The thread checks signatures with the real ramdisk's code. The tests show how each failure ends, what
an attacker on the boot host cannot do, and that no entry stays behind. Ubuntu's installer is tested, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof.jobs.reimage import autoinstall, tasks
from rackproof.jobs.reimage.bmc import Access, OpenMachine, read_power_status, set_power
from rackproof.jobs.reimage.images import describe_image
from tests.jobs.reimage.test_write_image import load

writer = load()
pytestmark = pytest.mark.playbook
ROOT = Path(__file__).resolve().parents[3]
# The part of reimage.yml that is tested: without drain, provisioning and validation.
PLAYBOOK = """
- hosts: nodes
  gather_facts: false
  tasks:
    - rackproof_reimage_begin:
        results: "{{ reimage_results }}"
        nodes: "{{ dict.fromkeys(ansible_play_hosts_all, []) }}"
        method: image
      run_once: true
      register: reimage_started
    - block:
        - ansible.builtin.import_role: {name: reimage, tasks_from: by_image}
      rescue:
        - ansible.builtin.import_role: {name: reimage, tasks_from: failed}
"""
# Logs each call, and reports that each service runs.
SYSTEMCTL = """#!/bin/sh
echo "$*" >> FOLDER/systemctl.log
case "$*" in *show*) echo LoadState=loaded; echo ActiveState=active; echo SubState=running;; esac
"""
KEYS = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ6C2+4fVZsBQ3wSGyA2xZpQyoWzJ0dFqk1eI0Ew8m1F"]
# Host keys of n6. Two machines with the same key would be refused.
KEYS6 = [KEYS[0][:-4] + "9m1F"]
# known_hosts before the run. All of its lines are of n1's address.
OLD = (
    "192.0.2.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl\n"
    # A second key of the same kind, and one of a kind that the new system lacks.
    "192.0.2.1,old ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOM564UtjVi3RemuoGdalx3kTJRv7W8uoAQlGSk8pg5W\n"
    "192.0.2.1 ecdsa-sha2-nistp256 "
    "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBK7ndUFVGT0G+PW9eL"
    "Alcu1yr/zr4oXfUw05o/V5BlgcTeRSEvmi0UoXwHzIk8RYd+H+WQBFj8wT25p5dIKorB8=\n"
)
# The report of each node's ramdisk.
SAYS: dict[str, dict[str, Any] | None] = {
    "n1": {"status": "written", "disk": "/dev/vda", "disk_serial": "D1", "seconds": 12.6, "host_keys": KEYS},
    "n2": {"status": "refused", "reason": "this machine's serial number is X"},
    # A ramdisk that never reports.
    "n3": None,
    # The BMC of n4 does not answer, n5 has no MAC address, and the BMC of n6 ends while the image is written.
    "n4": None,
    "n5": None,
    "n6": {"status": "written", "disk": "/dev/vda", "disk_serial": "D1", "seconds": 1, "host_keys": KEYS6},
}


def emulator(folder: Path, systems: dict[str, str]) -> tuple[subprocess.Popen[bytes], str]:
    """Start a Redfish emulator with fake systems, given as name and UUID. Return its process and address."""
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
    """A thread that acts for the ramdisks of all nodes. It finds orders, checks signatures and reports.

    ``drops`` has emulators by node. Each one ends when its node has booted, before the node reports.
    """

    def __init__(self, folder: Path, says: dict[str, dict[str, Any] | None]) -> None:
        super().__init__(daemon=True)
        self.http = folder / "netboot/http"
        self.says = says
        self.drops: dict[str, subprocess.Popen[bytes]] = {}
        self.orders: dict[str, dict[str, Any]] = {}
        self.entries: set[str] = set()
        self.key = folder / "order-key.pub"
        # By node, the order that it read and its random number. Then the nodes whose signature was right.
        self.asked: dict[str, tuple[bytes, str]] = {}
        self.signed: set[str] = set()
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.1):
            for path in self.http.glob("nodes/*/write.json"):
                name = path.parent.name
                with contextlib.suppress(ValueError, OSError):
                    text = path.read_bytes()
                    order = json.loads(text)
                    if order["report"] == self.orders.get(name, {}).get("report"):
                        continue
                    # The playbook writes the boot script and the host's file after the order.
                    time.sleep(0.5)
                    self.entries |= {one.name for one in (self.http.parent / "dhcp-hosts").iterdir()}
                    self.orders[name] = order
                    self.ask(name, text)
            for path in self.http.glob("nodes/*/write.json.sig"):
                if path.parent.name in self.asked:
                    self.check(path.parent.name, path.read_bytes())
            for name, process in list(self.drops.items()):
                # The playbook removes the entry of a node that has booted.
                if name in self.signed and not (self.http / "nodes" / name / "write.json").exists():
                    process.kill()
                    self.report(name, self.says[name])
                    del self.drops[name]

    def ask(self, name: str, order: bytes) -> None:
        """Request a signature for an order, unless the node never reports."""
        if not self.says[name]:
            return self.report(name, None)
        self.asked[name] = order, os.urandom(16).hex()
        return self.report(name, {"status": "asked", "node": name, "nonce": self.asked[name][1]})

    def check(self, name: str, signature: bytes) -> None:
        """Check the signature with the ramdisk's code, and report the result."""
        order, nonce = self.asked.pop(name)
        try:
            writer.check_signature(order, nonce, signature, str(self.key))
        except writer.RefusedError as error:
            return self.report(name, {"status": "refused", "reason": str(error)})
        self.signed.add(name)
        return self.report(name, {"status": "begun"} if name in self.drops else self.says[name])

    def report(self, name: str, what: dict[str, Any] | None) -> None:
        """Write a report to where the order requests it, or none."""
        if what:
            report = self.http / "boot-reports" / self.orders[name]["report"].rpartition("/")[2]
            report.write_text(json.dumps(what))


def make_boot_folder(folder: Path) -> None:
    """Make a boot host's folders, an image with its description, and the key that signs orders."""
    for name in ("netboot/dhcp-hosts", "netboot/http/nodes", "netboot/http/boot-reports", "bin"):
        (folder / name).mkdir(parents=True)
    (folder / "bin/systemctl").write_text(SYSTEMCTL.replace("FOLDER", str(folder)))
    (folder / "bin/systemctl").chmod(0o755)
    (folder / "disk.raw").write_bytes(b"boot" * 1000)
    (folder / "disk.raw.json").write_text(describe_image(folder / "disk.raw").model_dump_json())
    for words in (
        ["genpkey", "-algorithm", "ed25519", "-out", folder / "order-key.pem"],
        ["pkey", "-in", folder / "order-key.pem", "-pubout", "-out", folder / "order-key.pub"],
    ):
        subprocess.run(["openssl", *words], check=True)


class Site:
    """Nodes with BMCs, their boot host, and ramdisks with the reports that a test chooses.

    The limits of the steps boot and image are 8 s, because a test waits for some of them to pass.
    """

    def __init__(self, folder: Path, says: dict[str, dict[str, Any] | None], **hosts: dict[str, Any]) -> None:
        self.folder = folder
        make_boot_folder(folder)
        (folder / "known_hosts").write_text(OLD)
        (folder / "playbook.yml").write_text(PLAYBOOK)
        # The inventory does not set netboot_folder. As for most operators, the role's default applies.
        shutil.copytree(ROOT / "roles/netboot", folder / "roles/netboot")
        defaults = folder / "roles/netboot/defaults/main.yml"
        given = defaults.read_text()
        assert "netboot_folder: /srv/" in given
        defaults.write_text(re.sub("(netboot_folder:) .*", rf"\1 {folder}/netboot", given))
        self.systems = {name: f"27946b59-9e44-4fa7-8e91-f3527a1ef0{name[1:].zfill(2)}" for name in says}
        self.emulators: list[subprocess.Popen[bytes]] = []
        self.address = address = self.bmc("all")
        about = {
            name: {
                "ansible_host": f"192.0.2.{name[1:]}",
                "reimage_bmc_address": address,
                "reimage_bmc_system": uuid,
                "reimage_mac": f"52:54:00:00:00:0{name[1:]}",
                "reimage_serial": "S",
                "reimage_disk": {"serial": "D1"},
            }
            | hosts.get(name, {})
            for name, uuid in self.systems.items()
        }
        shared = {
            "netboot_address": "192.0.2.254",
            "netboot_kernel": "vmlinuz",
            "netboot_initrd": "ramdisk",
            "netboot_image": "disk.raw",
            "netboot_image_description": str(folder / "disk.raw.json"),
            "netboot_order_key": str(folder / "order-key.pem"),
            "netboot_installer_kernel": "casper-vmlinuz",
            "netboot_installer_initrd": "casper-initrd",
            "netboot_installer_iso": "server.iso",
            "reimage_netboot_host": "boothost",
            "reimage_authorized_keys": ["ssh-ed25519 AAAA ops"],
            "reimage_known_hosts": str(folder / "known_hosts"),
            "reimage_results": str(folder / "results"),
            "reimage_limits": {"boot": 8, "image": 8},
        }
        boothost = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        inventory = {
            "all": {"vars": shared, "hosts": {"boothost": boothost}, "children": {"nodes": {"hosts": about}}}
        }
        (folder / "hosts.json").write_text(json.dumps(inventory))
        self.ramdisks = Ramdisks(folder, says)
        self.ramdisks.start()

    def bmc(self, name: str) -> str:
        """Start BMCs of the nodes, and return their address."""
        (self.folder / name).mkdir()
        process, address = emulator(self.folder / name, self.systems)
        self.emulators.append(process)
        return address

    def play(self, *words: str) -> subprocess.Popen[str]:
        """Start the playbook, and do not wait for it."""
        return subprocess.Popen(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                "-i",
                self.folder / "hosts.json",
                self.folder / "playbook.yml",
                *words,
            ],
            cwd=ROOT,
            env=os.environ | {"ANSIBLE_NOCOLOR": "1", "PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def done(self, *words: str) -> str:
        """Run the playbook to its end. Return its output."""
        return self.play(*words).communicate(timeout=300)[0]

    def progress_by_node(self) -> dict[str, tuple[str, str]]:
        """Return the state and the step of each node in its journal."""
        return {
            one.node: (one.progress.state, one.progress.step.value if one.progress.step else "")
            for one in tasks.read_progress(self.folder / "results")
        }

    def entries(self) -> list[str]:
        """Return the names of all files of nodes' entries on the boot host."""
        found = [path.name for path in (self.folder / "netboot/dhcp-hosts").iterdir()]
        found += [path.name for path in (self.folder / "netboot/entries").glob("*")]
        found += [path.name for path in (self.folder / "netboot/http/nodes").rglob("*") if path.is_file()]
        return found

    def opener(self, node: str) -> OpenMachine:
        """Return a function that opens the BMC of a node."""
        return partial(tasks.open_machine, node, Access(address=self.address, system=self.systems[node]))

    def close(self) -> None:
        self.ramdisks.ended.set()
        for process in self.emulators:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def imaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str]]:
    """Yield a site after one run with six nodes, and the output of the playbook."""
    no_bmc = {"reimage_bmc_address": "http://127.0.0.1:1"}
    site = Site(tmp_path_factory.mktemp("by-image"), SAYS, n4=no_bmc, n5={"reimage_mac": ""})
    try:
        inventory = json.loads((site.folder / "hosts.json").read_text())
        inventory["all"]["children"]["nodes"]["hosts"]["n6"]["reimage_bmc_address"] = site.bmc("n6")
        (site.folder / "hosts.json").write_text(json.dumps(inventory))
        site.ramdisks.drops["n6"] = site.emulators[-1]
        yield site, site.done()
    finally:
        site.close()


def test_each_node_ends_where_its_ramdisk_or_bmc_left_it(imaged: tuple[Site, str]) -> None:
    site, output = imaged
    found = {one.node: one.progress for one in tasks.read_progress(site.folder / "results")}
    progress = site.progress_by_node()
    assert progress.pop("n1")[0] == "interrupted", output  # its image is done, and this playbook ends there
    assert progress == {
        "n2": ("failed", "image"),
        "n3": ("failed", "boot"),
        "n4": ("failed", "boot"),
        "n5": ("failed", "boot"),
        "n6": ("failed", "image"),
    }, output
    assert found["n1"].remarks == ("written to /dev/vda (D1) in 13 s",)
    assert "n2 refused: this machine's serial number is X" in found["n2"].reason
    assert "n3 did not boot over the network in time" in found["n3"].reason
    assert "n4: its BMC at http://127.0.0.1:1 does not answer" in found["n4"].reason
    assert "n5 lacks reimage_mac in the inventory" in found["n5"].reason
    # The image was written, but the node could not be started, so the step is not done.
    assert "Boot the new system" in found["n6"].reason
    assert "does not answer" in found["n6"].reason
    # The one-time network boot could not be cancelled. That is a remark, because without an entry the node
    # boots from its disk.
    assert any("does not answer" in one for one in found["n6"].remarks)


def test_an_entry_is_there_only_while_a_node_boots(imaged: tuple[Site, str]) -> None:
    site, output = imaged
    ramdisks = site.ramdisks
    assert set(ramdisks.orders) == ramdisks.entries == {"n1", "n2", "n3", "n6"}, output
    assert ramdisks.signed == {"n1", "n2", "n6"}
    assert site.entries() == []
    # dnsmasq was restarted to forget the entries, because it may crash on a reload.
    assert "restart rackproof-netboot-dnsmasq.service" in (site.folder / "systemctl.log").read_text()
    order = ramdisks.orders["n1"]
    assert (order["serial"], order["disk"]) == ("S", {"serial": "D1"})
    assert '"local-hostname": "n1"' in order["seed"]["meta-data"]
    # Each attempt has a separate address for its report.
    assert len({one["report"] for one in ramdisks.orders.values()}) == 4


def test_a_new_system_is_known_by_its_keys_and_no_longer_by_the_old_ones(
    imaged: tuple[Site, str],
) -> None:
    site, output = imaged
    lines = (site.folder / "known_hosts").read_text().splitlines()
    assert lines == [f"192.0.2.1 {KEYS[0]}", f"192.0.2.6 {KEYS6[0]}"], output


def test_an_entry_that_cannot_be_removed_is_reported_beside_the_first_failure(tmp_path: Path) -> None:
    site = Site(tmp_path, {"n1": None})
    try:
        program = site.folder / "bin/systemctl"
        gone = f"[ -e {site.folder}/netboot/dhcp-hosts/n1 ] || exit 1"
        program.write_text(
            program.read_text().replace('case "$*"', f'case "$*" in *restart*) {gone};; esac\ncase "$*"')
        )
        output = site.done()
        (kept,) = tasks.read_progress(site.folder / "results")
        first, _, besides = kept.progress.reason.partition("Besides: ")
        assert "n1 did not boot over the network in time" in first, output
        assert "n1 still has its entry on boothost" in besides
    finally:
        site.close()


def test_a_report_in_a_node_s_place_gets_no_line_of_its_own_into_known_hosts(tmp_path: Path) -> None:
    report = SAYS["n1"]
    assert report is not None
    site = Site(tmp_path, {"n1": report | {"host_keys": [*KEYS, f"{KEYS[0]}\n* {KEYS[0]}"]}})
    try:
        done = site.done()
        assert (site.folder / "known_hosts").read_text() == OLD, done
        (kept,) = tasks.read_progress(site.folder / "results")
        assert "n1 reports invalid host keys" in kept.progress.reason
    finally:
        site.close()


def test_an_alarm_leaves_out_its_node_and_an_attempt_of_a_stranger_leaves_out_none(
    tmp_path: Path,
) -> None:
    recorded = {
        "n1": "conflict second boot report, from 192.0.2.9 (52:54:00:00:00:99): not trusted",
        "n3": "conflict 192.0.2.9 requested its order with its MAC address, after 192.0.2.8",
        "n6": "refused 192.0.2.9 (52:54:00:00:00:99) sent a boot report without its secret",
    }
    site = Site(tmp_path, {name: SAYS[name] for name in recorded})
    put = site.ramdisks.report

    def report(name: str, what: dict[str, Any] | None) -> None:
        path = site.ramdisks.http / "boot-reports" / site.ramdisks.orders[name]["report"].rpartition("/")[2]
        path.with_suffix(".alarms").write_text(f"{recorded[name]}\n")
        put(name, what)

    site.ramdisks.report = report  # type: ignore[method-assign]
    try:
        output = site.done()
        found = {one.node: one.progress for one in tasks.read_progress(site.folder / "results")}
        assert (site.folder / "known_hosts").read_text() == f"{OLD}192.0.2.6 {KEYS6[0]}\n", output
        assert "n1 alarm: second boot report, from 192.0.2.9" in found["n1"].reason
        assert "no host key was written" in found["n1"].reason
        assert "n3 did not boot over the network in time" in found["n3"].reason
        assert "Besides: alarm: 192.0.2.9 requested its order with its MAC address" in found["n3"].reason
        assert {"boot", "image"} <= set(found["n6"].done), output
        assert found["n6"].remarks[-1].startswith("alarm: 192.0.2.9 (52:54:00:00:00:99) sent a boot report")
        # The boot host no longer accepts reports, except from n3, which did not boot, until its time is over.
        assert [path.name for path in (site.folder / "netboot/orders").iterdir()] == ["n3"]
    finally:
        site.close()


def test_an_attacker_that_changes_files_of_the_boot_host_writes_no_disk(tmp_path: Path) -> None:
    """n1 reads a changed order, the ramdisk of n2 requests no signature, and n6 finds an old signature."""
    site = Site(tmp_path, {name: SAYS[name] for name in ("n1", "n2", "n6")})
    ramdisks, ask = site.ramdisks, site.ramdisks.ask
    ramdisks.says["n2"] = SAYS["n1"]
    stale = ramdisks.http / "nodes/n6/write.json.sig"
    stale.parent.mkdir()
    stale.write_text("QUFBQQ==\n")

    def answer(name: str, order: bytes) -> None:
        if name == "n1":
            ask(name, order.replace(b'"D1"', b'"D2"'))
        elif name == "n2":
            ramdisks.report(name, {"status": "begun"})
        else:
            ask(name, order)

    ramdisks.ask = answer  # type: ignore[method-assign]
    try:
        output = site.done()
        found = {one.node: one.progress for one in tasks.read_progress(site.folder / "results")}
        assert (found["n1"].state, found["n1"].step) == ("failed", "image"), output
        assert "n1 refused: the order is not signed by this site's controller" in found["n1"].reason
        assert (found["n2"].state, found["n2"].step) == ("failed", "boot"), output
        assert "its ramdisk requests no signature of its order" in found["n2"].reason
        assert {"boot", "image"} <= set(found["n6"].done), output
        assert ramdisks.signed == {"n6"}
        assert site.entries() == []
        # The private key is never on the boot host.
        served = [path for path in (site.folder / "netboot").rglob("*") if path.is_file()]
        assert not [path for path in served if b"PRIVATE KEY" in path.read_bytes()]
        assert "PRIVATE KEY" not in output
    finally:
        site.close()


@pytest.mark.parametrize("broken", ["", "readable"])
def test_without_a_key_no_node_is_switched_off(tmp_path: Path, broken: str) -> None:
    site = Site(tmp_path, {"n1": SAYS["n1"]})
    try:
        (site.folder / "order-key.pem").chmod(0o644)
        given = ["-e", "netboot_order_key="] if not broken else []
        output = site.done(*given)
        (kept,) = tasks.read_progress(site.folder / "results")
        why = "others can read" if broken else "netboot_order_key is empty"
        assert why in kept.progress.reason, output
        assert site.ramdisks.orders == {}
        assert read_power_status(site.opener("n1")).power == "On"
    finally:
        site.close()


@pytest.mark.parametrize("state", ["boot", "image"])
def test_a_killed_run_is_continued_and_leaves_no_entry(tmp_path: Path, state: str) -> None:
    """The playbook is killed with all its processes while it waits for the ramdisk, or while that writes."""
    site = Site(tmp_path, {"n1": None if state == "boot" else {"status": "begun"}})
    try:
        process = site.play()
        end = time.monotonic() + 100
        while site.progress_by_node().get("n1") != ("running", state) or "n1" not in site.ramdisks.orders:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert site.progress_by_node() == {"n1": ("interrupted", state)}
        # The playbook removes the entry when the node has booted. Before that, the entry stays for the next
        # run.
        assert bool(site.entries()) == (state == "boot")
        if state == "boot":
            # Without a next run, the boot host removes the entry itself, 300 s after the limit of 8 s.
            assert (site.folder / "netboot/entries/n1").read_text().startswith("308 52-54-00-00-00-01.ipxe ")
            # All of these files contain the secret of the node's report.
            modes = {
                name: f"{(site.folder / 'netboot' / name).stat().st_mode & 0o777:o}"
                for name in ("entries/n1", "orders/n1", "orders", "http/nodes/n1/write.json")
            }
            assert modes == {
                "entries/n1": "600",
                "orders/n1": "640",
                "orders": "750",
                "http/nodes/n1/write.json": "640",
            }
        first = site.ramdisks.orders["n1"]
        site.ramdisks.says["n1"] = SAYS["n1"]
        output = site.done()
        assert site.entries() == [], output
        # The next run boots the ramdisk again. So it writes a new order, for the same machine and the same
        # disk.
        second = site.ramdisks.orders["n1"]
        assert second["report"] != first["report"]
        assert {name: second[name] for name in ("serial", "disk")} == {
            name: first[name] for name in ("serial", "disk")
        }
        (kept,) = tasks.read_progress(site.folder / "results")
        assert kept.progress.attempt == 2
        assert {"boot", "image"} <= set(kept.progress.done), output
    finally:
        site.close()


def test_ubuntu_s_installer_goes_the_same_way_and_is_waited_for_until_it_is_off(tmp_path: Path) -> None:
    site = Site(tmp_path, {"n1": SAYS["n1"]})
    playbook = site.folder / "playbook.yml"
    playbook.write_text(
        playbook.read_text()
        .replace("by_image", "by_autoinstall")
        .replace("method: image", "method: autoinstall")
    )
    try:
        seed = site.folder / "netboot/http/nodes/n1"
        process = site.play()
        end = time.monotonic() + 100
        while not (site.folder / "netboot/dhcp-hosts/n1").exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.05)
        instructions = yaml.safe_load((seed / "user-data").read_text())["autoinstall"]
        assert instructions["storage"]["layout"]["match"] == {"path": autoinstall.DISK}
        # The installer reports, and the machine switches itself off at the end.
        name = installer_order(instructions, tmp_path)["report"].rpartition("/")[2]
        (site.folder / "netboot/http/boot-reports" / name).write_text(json.dumps({"status": "begun"}))
        while site.entries():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.05)
        (site.folder / "netboot/http/boot-reports" / name).write_text(json.dumps(SAYS["n1"]))
        set_power("n1", site.opener("n1"), "off", timeout_s=20)
        output = process.communicate(timeout=200)[0]
        (kept,) = tasks.read_progress(site.folder / "results")
        assert {"boot", "image"} <= set(kept.progress.done), output
        assert read_power_status(site.opener("n1")).power == "On"
        assert not (seed / "write.json").exists()
    finally:
        site.close()


def installer_order(instructions: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the order in the archive that the installer's first command unpacks."""
    shell = instructions["early-commands"][0].replace(autoinstall.PLACE, str(folder / "run"))
    subprocess.run(["sh", "-c", shell], check=True)
    with zipfile.ZipFile(folder / "run/program") as archive:
        return dict(json.loads(archive.read("order.json")))
