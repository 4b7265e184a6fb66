"""Test what an attacker in the provisioning network can get written, booted or believed during re-imaging.

The victim is a virtual machine with an empty disk, which reimage.yml's tasks image. The attacker is another
host of the same network, in a separate namespace (testrack/vms/attack). It reads the order, forges reports,
replays old orders, and answers in the place of the boot host. The tests show that the attacker's image is
never written by the site's ramdisk, and that with Secure Boot no program of the attacker is booted.
docs/inside/reimage-tests.md has the results.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackproof.jobs.reimage.images import describe_image
from rackproof.jobs.reimage.lifecycle import Step
from tests.e2e.reimage.test_reimage_by_image import PLAYBOOK

from .test_reimage_vms import IMAGE, ROOT, lacking, machines, progress_by_node

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.proof, pytest.mark.timeout(3600)]


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return a folder for the machine, its consoles and the attacker's files (evil)."""
    if os.geteuid() != 0 or not shutil.which("qemu-system-x86_64") or not (IMAGE / "netboot.json").exists():
        lacking("needs root, QEMU and the image: make vms-image")
    place = ROOT / ".rackproof/vms-tests" / str(os.getpid()) / request.node.name[-30:]
    (place / "evil/old").mkdir(parents=True)
    (place / "evil/nodes/vm1").mkdir(parents=True)
    (place / "play.yml").write_text(PLAYBOOK.replace("hosts: nodes", "hosts: vms"))
    yield place
    # Keep consoles, journals and output. Remove disks and images, which have gigabytes.
    for path in (*place.glob("*.raw"), *place.glob("netboot/http/artefacts/*")):
        path.unlink()


@pytest.fixture
def evil(folder: Path) -> Path:
    """Return the folder with the site's kernel and ramdisk, the attacker's own image, and an order for it."""
    evil = folder / "evil"
    for name in ("vmlinuz", "ramdisk"):
        (evil / name).symlink_to(IMAGE / name)
    (evil / "image").write_bytes(b"OWNED" * 2**20)
    order = {
        "node": "vm1",
        "serial": "SERIAL",
        "disk": {"serial": "DISK-0001"},
        "image": {"url": "http://HOST:8080/image", **describe_image(evil / "image").model_dump()},
        "report": "http://HOST:8080/report",
    }
    (evil / "own.json").write_text(json.dumps(order))
    return evil


# Lines of shell with which each test begins. In a first run, the attacker only requests the order and forges
# reports. The functions are those of testrack/vms/attack.
BEGIN = (
    "ansible-playbook playbooks/netboot.yml || exit",
    ". testrack/vms/attack",
    'sed -i "s/HOST/$host/g; s/SERIAL/$serial/" $evil/own.json; order=$evil/nodes/vm1/write.json',
    "own=$FOLDER/own.pem; openssl genpkey -algorithm ed25519 -out $own",
    # A genuine run, while the attacker requests, forges and listens.
    "nodes=$FOLDER/netboot/http/nodes/vm1; image & playbook=$!",
    "wait_until '[ -e $nodes/write.json.sig ]'; cp $nodes/write.json* $evil/old/",
    "for path in '' .sig; do status http://$host:8080/nodes/vm1/write.json$path; done > $FOLDER/asked",
    'forged=\'{"status": "written", "node": "vm1", "host_keys": ["ssh-ed25519 AAAA"]}\'',
    "for name in vm1-$(printf %032d 0) vm2-$(printf %032d 0); do",
    '  status -X PUT -d "$forged" http://$host:8080/boot-reports/$name.json; done >> $FOLDER/asked',
    "wait $playbook; dhcp=; kept genuine",
    # From here on, the attacker answers in the place of the boot host.
    "LIMITS='{boot: 100}'; script > $evil/boot.ipxe",
)


def was_imaged(folder: Path) -> None:
    """Check that the first run imaged the machine, and that the boot host refused the attacker's requests."""
    assert (folder / "asked").read_text().split() == ["403"] * 4
    genuine = progress_by_node(folder, "genuine")["vm1"].progress
    assert Step.IMAGE in genuine.done, genuine
    assert any("requested its order" in one for one in genuine.remarks), genuine


def was_not_written(folder: Path, name: str) -> str:
    """Check that a run failed without a byte on the disk. Return the reports that the attacker received."""
    progress = progress_by_node(folder, name)["vm1"].progress
    assert (progress.state, progress.step) == ("failed", Step.BOOT), (name, progress)
    assert (folder / f"{name}.kib").read_text().strip() == "0", name
    return (folder / f"{name}.reports").read_text()


def was_refused(folder: Path, name: str) -> None:
    """Check that the site's ramdisk requested a signature, and refused the attacker's."""
    asked, refused = map(json.loads, was_not_written(folder, name).splitlines())
    assert (asked["status"], refused["status"]) == ("asked", "refused")
    assert "not signed by this site's controller for this boot" in refused["reason"]


def test_what_an_attacker_in_the_network_gets_written_booted_or_believed(folder: Path, evil: Path) -> None:
    machines(
        folder,
        1,
        *BEGIN,
        # The attacker's own order, signed with its own key, for the site's ramdisk.
        "cp $evil/own.json $order; instead $own; image; kept own-key",
        # The order that the attacker read in the first run: with another ssh key in it, and unchanged.
        "sed 's/ssh-ed25519 A/ssh-ed25519 B/' $evil/old/write.json > $order",
        "cp $evil/old/*.sig $order.sig; instead; image; kept changed",
        "cp $evil/old/write.json $order; instead; image; kept replayed",
        # The site's ramdisk, to which the attacker added its own key. This machine has no Secure Boot.
        "mkdir $evil/etc; openssl pkey -in $own -pubout -out $evil/etc/rackproof-order.pem",
        "(cd $evil && echo etc/rackproof-order.pem | cpio --quiet -o -H newc > more)",
        "cp $evil/own.json $order; script more > $evil/boot.ipxe; instead $own; image; kept own-ramdisk",
        more=["--alone"],
    )
    was_imaged(folder)
    for name in ("own-key", "changed", "replayed"):
        was_refused(folder, name)
    # Without Secure Boot, a changed ramdisk writes the attacker's image, as SECURITY.md says. The node still
    # fails, because the playbook does not accept its report.
    assert (folder / "own-ramdisk.first").read_bytes().startswith(b"OWNED")
    assert progress_by_node(folder, "own-ramdisk")["vm1"].progress.state == "failed"


def test_with_secure_boot_nothing_of_the_attacker_s_is_booted(folder: Path, evil: Path) -> None:
    (folder / "tftp").mkdir()
    boot, other = IMAGE / "boot.efi", "$FOLDER/tftp/boot.efi"
    machines(
        folder,
        1,
        *BEGIN,
        "LIMITS='{boot: 150}'; export TFTP=$FOLDER/tftp; cp $evil/own.json $order",
        "cp $evil/boot.ipxe $evil/nodes/52-54-00-78-00-01.ipxe",
        # The site's boot program, with the attacker's order.
        f"cp {boot} {other}; instead $own; image; kept own-key",
        # The attacker's boot program, and the site's program with a changed byte.
        f"LIMITS='{{boot: 100}}'; cp /usr/lib/ipxe/ipxe.efi {other}; instead $own; image; kept own-program",
        f"cp {boot} {other}; printf X | dd of={other} bs=1 seek=40000000 conv=notrunc status=none",
        "instead $own; image; kept changed",
        more=["--alone", "--secure-boot"],
    )
    was_imaged(folder)
    assert "Secure boot enabled" in (folder / "genuine.console").read_text(errors="replace")
    was_refused(folder, "own-key")
    for name in ("own-program", "changed"):
        assert was_not_written(folder, name) == ""
        assert "Linux version" not in (folder / f"{name}.console").read_text(errors="replace")
