"""reimage.yml on virtual machines with empty disks, in the test rack's network (`make vms`).

From BMC and network boot to a node that takes jobs; and what may go wrong on the way.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackproof.reimaging import running
from rackproof.reimaging.states import STEPS, Step

pytestmark = [pytest.mark.slow, pytest.mark.proof, pytest.mark.timeout(3600)]
ROOT = Path(__file__).resolve().parents[3]
IMAGE = ROOT / ".rackproof/image"
BLOCK = 4 * 2**20
CONTROLLER, KNOWN_GOOD = "gb300-r01-ctl", "gb300-r01-n01"
LIMITS = "{boot: 400, image: 900, first_boot: 600}"
# What the lines of shell below have in common. A journal's line is JSON without spaces.
SHELL = r"""
reimage() { ansible-playbook reimage.yml -e "{reimage_limits: $LIMITS}" "$@"; }
noted() { grep -qs "\"event\":\"$1\",\"step\":\"$2\"" $FOLDER/results/*/journal/vm1.journal; }
written_mib() { du -m $FOLDER/vm1.raw | cut -f1; }
wait_until() {
  for second in $(seq 900); do if eval "$1"; then return; fi; sleep 1; done
  echo "never came: $1"; exit 9
}
virsh() { command virsh -q -c qemu:///system "$@"; }
# The process group of a playbook that goes on beside these lines.
beside() { setsid ansible-playbook reimage.yml -e "{reimage_limits: $LIMITS}" "$@" & playbook=$!; }
"""


def machines(folder: Path, nodes: int, *lines: str, limits: str = LIMITS, timeout: float = 3500) -> str:
    """Run lines of shell beside so many machines; return what they said. ``$FOLDER`` is theirs."""
    command = [
        sys.executable, ROOT / "molecule/vms/vms.py", "--nodes", str(nodes), "--image", IMAGE,
        "--folder", folder, "--", "sh", "-c", SHELL + "\n".join(lines),
    ]  # fmt: skip
    told = {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "300", "FOLDER": str(folder), "LIMITS": limits}
    with (folder / "said").open("w") as stream:
        subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | told,
            stdout=stream,
            stderr=stream,
            timeout=timeout,
            check=False,
        )
    said = (folder / "said").read_text()
    assert "PLAY RECAP" in said, said
    return said


def on_controller(command: str) -> str:
    done = subprocess.run(
        ["ssh", CONTROLLER, command], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def taking_work() -> list[str]:
    """Return which of the machines Slurm would give work to."""
    lines = on_controller("sinfo --noheader -N -n vm1,vm2 -o '%N %T'").splitlines()
    return [line for line in lines if line.split()[-1] in ("idle", "mixed", "allocated")]


@pytest.fixture(scope="module")
def cluster() -> None:
    """Have a Slurm cluster with one node, that does not know of the machines."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    if not shutil.which("qemu-system-x86_64") or not (IMAGE / "netboot.json").exists():
        pytest.skip("QEMU or the image is missing: make vms has both")
    if not Path("/sys/class/net/br-rack").exists():
        pytest.skip("the test rack does not run: make vms starts it")
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "provision.yml", "-l", KNOWN_GOOD],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def folder(request: pytest.FixtureRequest, cluster: None) -> Iterator[Path]:
    """Return a folder that dnsmasq and nginx may look into, as a test's own may not be."""
    # Somebody else's tests may run beside.
    name = re.sub(r"\W+", "-", request.node.name).strip("-")[-40:]
    place = ROOT / f".rackproof/vms-tests/{os.getpid()}" / name
    place.mkdir(parents=True)
    yield place
    # Consoles, journals and what was said stay; gigabytes go.
    for path in (*place.glob("*.raw"), *place.glob("netboot/http/artefacts/*")):
        path.unlink()


def stands(folder: Path, results: str = "results") -> dict[str, running.NodeStatus]:
    return {one.node: one for one in running.status(folder / results)}


def boots(folder: Path) -> bool:
    """Whether a disk has the first block, without which no firmware starts it."""
    with (folder / "vm1.raw").open("rb") as stream:
        return bool(stream.read(BLOCK).strip(b"\0"))


def test_from_an_empty_disk_to_a_node_that_takes_jobs_and_once_more(folder: Path) -> None:
    """The second time from the running system: other host keys, another boot, the same machine."""
    ask = "ansible vms -m ansible.builtin.command -a 'cat /etc/hostname /proc/sys/kernel/random/boot_id'"
    work = f"ssh {CONTROLLER} \"sinfo -hN -n vm1,vm2 -o '%N %T'; srun -N2 -w vm1,vm2 --time=5 hostname\""
    said = machines(
        folder,
        2,
        "ansible-playbook playbooks/netboot.yml || exit",
        "date +%s > $FOLDER/times",
        "reimage -l vm1,vm2; date +%s >> $FOLDER/times",
        "cp $FOLDER/known_hosts $FOLDER/known_hosts.first",
        f"{ask} > $FOLDER/first; {work} > $FOLDER/work.first",
        "date +%s >> $FOLDER/times",
        "reimage -l vm1,vm2 -e reimage_again=true; date +%s >> $FOLDER/times",
        f"{ask} > $FOLDER/second; {work} > $FOLDER/work.second",
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
    for work in ("work.first", "work.second"):
        assert sorted((folder / work).read_text().splitlines()) == ["vm1", "vm1 idle", "vm2", "vm2 idle"]
    found = stands(folder)
    assert sorted(found) == ["vm1", "vm2"]
    for one in found.values():
        assert (one.standing.state, one.standing.done) == ("returned", STEPS), one
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
        "reimage -l vm1 -e reimage_serial=ANOTHER",
        damage,
        "reimage -l vm2",
    )
    found = stands(folder)
    assert (found["vm1"].standing.state, found["vm1"].standing.step) == ("failed", Step.IMAGE)
    assert "vm1 refused: this machine's serial number is S" in found["vm1"].standing.reason
    assert "the order is for ANOTHER" in found["vm1"].standing.reason
    # Not a byte: the disk is the hole that it was.
    assert (folder / "vm1.raw").stat().st_blocks == 0
    assert (found["vm2"].standing.state, found["vm2"].standing.step) == ("failed", Step.IMAGE)
    assert "block 12 is damaged on the server" in found["vm2"].standing.reason
    with (folder / "vm2.raw").open("rb") as stream:
        assert not stream.read(BLOCK).strip(b"\0")
    assert not list((folder / "netboot/dhcp-hosts").iterdir())
    assert taking_work() == []


def test_a_power_cut_while_the_disk_is_written_leaves_one_that_does_not_boot_and_the_next_run_goes_on(
    folder: Path,
) -> None:
    # Nothing is served to it any more: what it can boot from is its disk.
    alone = "virsh start vm1; sleep 30; virsh destroy vm1; grep -c 'Linux version' $FOLDER/vm1.console"
    machines(
        folder,
        1,
        "ansible-playbook playbooks/netboot.yml || exit",
        "beside -l vm1",
        "wait_until 'noted begun image && [ $(written_mib) -gt 60 ]'; virsh destroy vm1",
        "wait $playbook",
        "cp -r $FOLDER/results $FOLDER/results.first; ls $FOLDER/netboot/dhcp-hosts > $FOLDER/entries",
        "head -c 4194304 $FOLDER/vm1.raw > $FOLDER/first-block",
        f"ssh {CONTROLLER} \"sinfo -hN -n vm1 -o '%N %T'\" > $FOLDER/slurm",
        f"{alone} > $FOLDER/systems",
        "LIMITS='{boot: 400, image: 900, first_boot: 600}'; beside -l vm1",
        "wait_until 'noted done first_boot || ! kill -0 $playbook'",
        # What follows is what every node goes through.
        "kill -KILL -$playbook; wait $playbook",
        limits="{boot: 400, image: 60, first_boot: 600}",
    )
    first = stands(folder, "results.first")["vm1"].standing
    assert (first.state, first.step) == ("failed", Step.IMAGE), first
    assert "has its order and did not tell in time how it went" in first.reason
    assert not (folder / "first-block").read_bytes().strip(b"\0")
    assert not (folder / "entries").read_text()
    assert "idle" not in (folder / "slurm").read_text()
    # The ramdisk's, and none of the disk's.
    assert (folder / "systems").read_text().strip() == "1"
    last = stands(folder)["vm1"].standing
    assert Step.FIRST_BOOT in last.done, last
    assert boots(folder)
    assert taking_work() == []
