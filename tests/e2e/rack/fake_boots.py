"""Imitate the network boot of a node of the test rack, for the tests of reimage.yml.

The nodes are containers, which cannot boot from a network. reimage.yml does its real work: it controls a BMC
(a Redfish emulator), writes the node's entry and order on the boot host (this machine), signs the order,
waits, and reads the boot report. A thread acts for the node's ramdisk. It checks the signature with the real
ramdisk's code, and then replaces the node's container.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from testrack.tests.on_rack import Command
from tests.e2e.reimage.test_reimage_by_image import Ramdisks, emulator, make_boot_folder

BOOT_HOST = "boothost"
SYSTEM = "27946b59-9e44-4fa7-8e91-f3527a1ef001"
"""UUID of the node's system in the Redfish emulator."""
MAC = "52:54:00:00:00:01"


class RackRamdisk(Ramdisks):
    """A fake ramdisk of a node of the rack. It calls `rack.py renew` instead of writing the image.

    ``root`` is the checkout, ``folder`` the folder of the boot host, and ``driver`` runs testrack/rack.py.
    """

    def __init__(self, root: Path, folder: Path, driver: Command, node: str) -> None:
        super().__init__(folder, {node: {"status": "written", "disk": "/dev/vda", "seconds": 1}})
        self.host_key, self.driver = root / ".rackproof/rack/hostkeys" / f"{node}.pub", driver

    def report(self, name: str, what: dict[str, Any] | None) -> None:
        """Send a report. Before a report of a written image, replace the node, and add its host key."""
        if what and what["status"] == "written":
            done = self.driver("renew", name)
            assert done.returncode == 0, done.stdout + done.stderr
            key = " ".join(self.host_key.read_text().split()[:2])
            what = what | {"disk_serial": "D1", "host_keys": [key]}
        super().report(name, what)


class FakeBoots:
    """A boot host with an image, a BMC and a fake ramdisk for one node of the rack.

    ``folder`` contains ``boothost.json``, the inventory of the boot host, for the option ``-i``.
    """

    def __init__(self, root: Path, folder: Path, driver: Command, node: str) -> None:
        self.folder = folder
        make_boot_folder(folder)
        (folder / "bmc").mkdir()
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        (folder / "boothost.json").write_text(json.dumps({"all": {"hosts": {BOOT_HOST: host}}}))
        self.bmc, self.address = emulator(folder / "bmc", {node: SYSTEM})
        self.ramdisk = RackRamdisk(root, folder, driver, node)
        self.ramdisk.start()
        self.known_hosts = root / ".rackproof/rack/known_hosts"

    def variables(self, serial: str) -> dict[str, Any]:
        """Return the variables of reimage.yml for this boot host, and for a node with this serial number."""
        return {
            "netboot_folder": str(self.folder / "netboot"),
            "netboot_address": "192.0.2.254",
            "netboot_kernel": "vmlinuz",
            "netboot_initrd": "ramdisk",
            "netboot_image": "disk.raw",
            "netboot_image_description": str(self.folder / "disk.raw.json"),
            "netboot_order_key": str(self.folder / "order-key.pem"),
            "reimage_netboot_host": BOOT_HOST,
            "reimage_known_hosts": str(self.known_hosts),
            "reimage_authorized_keys": ["ssh-ed25519 AAAA ops"],
            "reimage_bmc_address": self.address,
            "reimage_bmc_system": SYSTEM,
            "reimage_mac": MAC,
            "reimage_serial": serial,
            "reimage_disk": {"serial": "D1"},
        }

    def close(self) -> None:
        """End the ramdisk and the BMC."""
        self.ramdisk.ended.set()
        self.bmc.terminate()
        self.bmc.wait()
