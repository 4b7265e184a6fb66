"""reimage.yml on virtual machines with empty disks: BMC, network boot, image, first boot (`make vms`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackproof.reimaging import running
from rackproof.reimaging.states import Step

pytestmark = [pytest.mark.slow, pytest.mark.proof, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[3]
IMAGE = ROOT / ".rackproof/image"
BLOCK = 4 * 2**20
LIMITS = "{reimage_limits: {boot: 400, image: 900, first_boot: 600}}"


def machines(folder: Path, nodes: int, *lines: str) -> str:
    """Run lines of shell beside so many machines; return what they said. ``$FOLDER`` is theirs."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    if not shutil.which("qemu-system-x86_64") or not (IMAGE / "netboot.json").exists():
        pytest.skip("QEMU or the image is missing: make vms has both")
    command = [
        sys.executable, ROOT / "molecule/vms/vms.py", "--nodes", str(nodes), "--image", IMAGE,
        "--folder", folder, "--", "sh", "-c", "\n".join(lines),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "300", "FOLDER": str(folder), "LIMITS": LIMITS},
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    said = done.stdout + done.stderr
    (folder / "said").write_text(said)
    assert "PLAY RECAP" in said, said
    return said


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return a folder that dnsmasq and nginx may look into, as a test's own may not be."""
    # Somebody else's tests may run beside.
    place = ROOT / f".rackproof/vms-tests/{os.getpid()}" / request.node.name.partition("_and_")[0]
    place.mkdir(parents=True)
    yield place
    # Consoles, journals and what was said stay; gigabytes go.
    for path in (*place.glob("*.raw"), *place.glob("netboot/http/artefacts/*")):
        path.unlink()


def stands(folder: Path) -> dict[str, running.NodeStatus]:
    return {one.node: one for one in running.status(folder / "results")}


def test_from_an_empty_disk_to_a_system_of_its_own_name_and_once_more(folder: Path) -> None:
    """The second time from the running system: other host keys, another boot, the same machine."""
    again = f"ansible-playbook reimage.yml -l vms -e '{LIMITS}' -e reimage_again=true"
    ask = "ansible vms -m ansible.builtin.command -a 'cat /etc/hostname /proc/sys/kernel/random/boot_id'"
    said = machines(
        folder,
        2,
        "ansible-playbook playbooks/netboot.yml || exit",
        f"ansible-playbook reimage.yml -l vms -e '{LIMITS}'",
        f"cp $FOLDER/known_hosts $FOLDER/known_hosts.first; {ask} > $FOLDER/first",
        again,
        f"{ask} > $FOLDER/second",
    )
    first, second = (folder / "first").read_text(), (folder / "second").read_text()
    for text in (first, second):
        for name in ("vm1", "vm2"):
            # Nobody was let in whose host key the ramdisk had not told.
            assert f"{name} | CHANGED" in text, said
            assert f"\n{name}\n" in text
    assert not set(first.split()) & set(second.split()) - {"vm1", "vm2", "|", "CHANGED", "rc=0", ">>"}
    before, after = (folder / "known_hosts.first").read_text(), (folder / "known_hosts").read_text()
    assert len(before.splitlines()) == len(after.splitlines()) == 6
    assert not set(before.splitlines()) & set(after.splitlines())
    for one in stands(folder).values():
        assert Step.FIRST_BOOT in one.standing.done, one
        assert any(text.startswith("written to /dev/vda (DISK-000") for text in one.standing.remarks)
    # The other disk was never touched, and the network boot is open to nobody.
    assert [path.stat().st_blocks for path in folder.glob("*-scratch.raw")] == [0, 0]
    assert not list((folder / "netboot/dhcp-hosts").iterdir())


def test_another_machine_is_not_written_and_a_damaged_image_does_not_boot(folder: Path) -> None:
    # A byte of the root file system, on the server.
    served = "$FOLDER/netboot/http/artefacts/disk.raw"
    damage = f"printf X | dd of={served} bs=1 seek=$((50 * 1024 * 1024 + 5)) conv=notrunc"
    machines(
        folder,
        2,
        "ansible-playbook playbooks/netboot.yml || exit",
        f"ansible-playbook reimage.yml -l vm1 -e '{LIMITS}' -e reimage_serial=VM-9999",
        damage,
        f"ansible-playbook reimage.yml -l vm2 -e '{LIMITS}'",
    )
    found = stands(folder)
    assert (found["vm1"].standing.state, found["vm1"].standing.step) == ("failed", Step.IMAGE)
    assert "vm1 refused: this machine's serial number is VM-0001, the order is for VM-9999" in (
        found["vm1"].standing.reason
    )
    # Not a byte: the disk is the hole that it was.
    assert (folder / "vm1.raw").stat().st_blocks == 0
    assert (found["vm2"].standing.state, found["vm2"].standing.step) == ("failed", Step.IMAGE)
    assert "block 12 is damaged on the server" in found["vm2"].standing.reason
    with (folder / "vm2.raw").open("rb") as stream:
        assert not stream.read(BLOCK).strip(b"\0")
    assert not list((folder / "netboot/dhcp-hosts").iterdir())
