"""Test reimage.yml on virtual machines with empty disks, in the network of the test rack.

For the playbook, these machines are real: it controls them by a BMC, boots them over the network, has an
image written to their disk, provisions them with fake GPUs, and resumes them in Slurm. The suite vm takes one
machine through all steps. The suite vms (tests marked ``proof``) also has two machines, faults during the
boot and the imaging, and unknown machines. A node must not take jobs before all steps are done, and a disk
must not boot before it is written completely.
docs/inside/reimage-tests.md has the results.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from rackproof.jobs.reimage import tasks
from rackproof.jobs.reimage.lifecycle import STEPS, Step
from testrack.tests.on_rack import CONTROLLER, PROVISIONED, play

pytestmark = [pytest.mark.rack, pytest.mark.slow, pytest.mark.timeout(3600)]
ROOT = Path(__file__).resolve().parents[3]
IMAGE = ROOT / ".rackproof/image"
BLOCK = 4 * 2**20
"""Bytes of a block of the image. The first block is written last."""
KNOWN_GOOD = PROVISIONED[0]
"""A container of the rack, which takes jobs together with the machines."""
LIMITS = "{boot: 400, image: 900, first_boot: 600}"
"""Time limits of steps, in seconds. Emulated machines are slow."""
# Functions for the lines of shell in the tests. A journal's line is JSON without spaces.
SHELL = r"""
reimage() { ansible-playbook reimage.yml -e "{reimage_limits: $LIMITS}" "$@"; }
# Whether vm1's journals say so, that often.
noted() {
  [ "$(cat $FOLDER/results/*/journal/vm1.journal | grep -c "\"event\":\"$1\",\"step\":\"$2\"")" -ge ${3:-1} ]
} 2> /dev/null
written_mib() { du -m $FOLDER/vm1.raw | cut -f1; }
wait_until() {
  for second in $(seq 900); do if eval "$1"; then return; fi; sleep 1; done
  echo "never came: $1"; exit 9
}
virsh() { command virsh -q -c qemu:///system "$@"; }
# What there is after a mishap: journals, entries, the disk's first block and size, what Slurm says.
keep() {
  mkdir $FOLDER/$1; cp -r $FOLDER/results $FOLDER/$1/; ls $FOLDER/netboot/dhcp-hosts > $FOLDER/$1/entries
  head -c 4194304 $FOLDER/vm1.raw > $FOLDER/$1/first-block; du -k $FOLDER/vm1.raw | cut -f1 > $FOLDER/$1/kib
  ssh $CONTROLLER "sinfo -hN -n vm1 -o '%N %T'" > $FOLDER/$1/slurm
}
# The process group of a playbook that goes on beside these lines.
beside() { setsid ansible-playbook reimage.yml -e "{reimage_limits: $LIMITS}" "$@" & playbook=$!; }
"""


def machines(
    folder: Path,
    nodes: int,
    *lines: str,
    limits: str = LIMITS,
    timeout: float = 3500,
    more: Sequence[str] = (),
) -> str:
    """Run lines of shell beside this number of machines. Return the output.

    Args:
        folder: The folder of the machines and their results, ``$FOLDER`` in the lines.
        nodes: The number of machines. They are called vm1 and vm2.
        lines: The lines of shell. They may use the functions of :data:`SHELL`.
        limits: The time limits of steps.
        timeout: The number of seconds that all lines together may take.
        more: Further options of testrack/vms/vms.py.
    """
    command = [
        sys.executable, ROOT / "testrack/vms/vms.py", "--nodes", str(nodes), "--image", IMAGE,
        "--folder", folder, *more, "--", "sh", "-c", SHELL + "\n".join(lines),
    ]  # fmt: skip
    told = {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "300", "FOLDER": str(folder), "LIMITS": limits}
    told |= {"CONTROLLER": CONTROLLER, "ROOT": str(ROOT), "PYTHON": sys.executable}
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
    """Return the output of a command on the Slurm controller."""
    done = subprocess.run(
        ["ssh", CONTROLLER, command], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def taking_work() -> list[str]:
    """Return the names and states of the machines on which Slurm would start a job."""
    lines = on_controller("sinfo --noheader -N -n vm1,vm2 -o '%N %T'").splitlines()
    return [line for line in lines if line.split()[-1] in ("idle", "mixed", "allocated")]


def lacking(what: str) -> None:
    """Skip the test, but fail it in CI, which installs all that the tests need."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")
def cluster() -> None:
    """Provision one node of the running test rack, unless it is idle in Slurm already."""
    if os.geteuid() != 0:
        lacking("namespaces need root")
    if not shutil.which("qemu-system-x86_64") or not (IMAGE / "netboot.json").exists():
        lacking("QEMU or the image is missing: make vms-image has both")
    if not Path("/sys/class/net/br-rack").exists():
        lacking("the test rack does not run: make rack NODES=1 starts it")
    if f"{KNOWN_GOOD} idle" not in on_controller("sinfo --noheader -N -o '%N %T'"):
        done = play(ROOT, "provision.yml", [KNOWN_GOOD], timeout=1200)
        assert done.returncode == 0, done.stdout


@pytest.fixture
def folder(request: pytest.FixtureRequest, cluster: None) -> Iterator[Path]:
    """Yield a folder that dnsmasq and nginx may read. They may not enter pytest's folders or root's home."""
    # Tests of another checkout may run at the same time, so the process id is in the name.
    name = re.sub(r"\W+", "-", request.node.name).strip("-")[-40:]
    open_to_all = all(one.stat().st_mode & 0o001 for one in (ROOT, *ROOT.parents))
    places = ROOT / ".rackproof/vms-tests" if open_to_all else Path("/var/tmp/rackproof-vms-tests")
    place = places / str(os.getpid()) / name
    place.mkdir(parents=True)
    yield place
    # Keep consoles, journals and output. Remove disks and images, which have gigabytes.
    for path in (*place.glob("*.raw"), *place.glob("netboot/http/artefacts/*")):
        path.unlink()


def progress_by_node(folder: Path, results: str = "results") -> dict[str, tasks.NodeStatus]:
    """Return the status of each machine, from the journals in a folder."""
    return {one.node: one for one in tasks.read_progress(folder / results)}


def boots(folder: Path) -> bool:
    """Return whether the disk of vm1 has its first block, without which no firmware starts it."""
    with (folder / "vm1.raw").open("rb") as stream:
        return bool(stream.read(BLOCK).strip(b"\0"))


def test_an_image_that_is_built_is_not_built_again(cluster: None) -> None:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "playbooks/image.yml",
            *("-e", "@testrack/vms/vars.yml"),
        ],
        cwd=ROOT,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^localhost\s+: ok=\d+\s+changed=0 ", done.stdout, re.MULTILINE), done.stdout


def test_a_machine_with_an_empty_disk_becomes_a_node_that_takes_jobs(folder: Path) -> None:
    said = machines(
        folder,
        1,
        "ansible-playbook playbooks/netboot.yml || exit",
        "ansible-playbook playbooks/netboot.yml > $FOLDER/netboot.again || exit",
        "reimage -l vm1",
        "keep after",
        f'ssh $CONTROLLER "srun --immediate=120 -N2 -w vm1,{KNOWN_GOOD} --time=5 hostname" > $FOLDER/work',
    )
    # The role netboot changes nothing the second time, and restarts nothing.
    assert re.search(r" changed=0 ", (folder / "netboot.again").read_text()), said
    progress = progress_by_node(folder)["vm1"].progress
    assert (progress.state, progress.done) == ("returned", STEPS), said
    assert any(text.startswith("written to /dev/vda (DISK-000") for text in progress.remarks)
    assert (folder / "after/slurm").read_text().split() == ["vm1", "idle"]
    # One job ran on the machine and a container of the rack together.
    assert sorted((folder / "work").read_text().split()) == sorted(["vm1", KNOWN_GOOD])
    assert (folder / "vm1-scratch.raw").stat().st_blocks == 0
    assert not (folder / "after/entries").read_text()


@pytest.mark.proof
def test_from_an_empty_disk_to_a_node_that_takes_jobs_and_once_more(folder: Path) -> None:
    """The machines are imaged twice, from empty disks and from the running systems.

    After the second time, they have other host keys and other boot ids.
    """
    ask = "ansible vms -m ansible.builtin.command -a 'cat /etc/hostname /proc/sys/kernel/random/boot_id'"
    start = "srun --immediate=120 -N2 -w vm1,vm2 --time=5 hostname"
    work = f"ssh $CONTROLLER \"sinfo -hN -n vm1,vm2 -o '%N %T'; {start}\""
    said = machines(
        folder,
        2,
        "ansible-playbook playbooks/netboot.yml || exit",
        "date +%s > $FOLDER/times",
        "reimage -l vm1,vm2 -e reimage_canary=0; date +%s >> $FOLDER/times",
        "cp $FOLDER/known_hosts $FOLDER/known_hosts.first",
        f"{ask} > $FOLDER/first; {work} > $FOLDER/work.first",
        "date +%s >> $FOLDER/times",
        "reimage -l vm1,vm2 -e reimage_again=true -e reimage_canary=0; date +%s >> $FOLDER/times",
        f"{ask} > $FOLDER/second; {work} > $FOLDER/work.second",
    )
    first, second = (folder / "first").read_text(), (folder / "second").read_text()
    for text in (first, second):
        for name in ("vm1", "vm2"):
            # ssh accepts only host keys that the ramdisk reported.
            assert f"{name} | CHANGED" in text, said
            assert f"\n{name}\n" in text
    assert not set(first.split()) & set(second.split()) - {"vm1", "vm2", "|", "CHANGED", "rc=0", ">>"}
    before, after = (folder / "known_hosts.first").read_text(), (folder / "known_hosts").read_text()
    assert len(before.splitlines()) == len(after.splitlines()) == 6
    assert not set(before.splitlines()) & set(after.splitlines())
    for work in ("work.first", "work.second"):
        assert sorted((folder / work).read_text().splitlines()) == ["vm1", "vm1 idle", "vm2", "vm2 idle"]
    found = progress_by_node(folder)
    assert sorted(found) == ["vm1", "vm2"]
    for one in found.values():
        assert (one.progress.state, one.progress.done) == ("returned", STEPS), one
        assert any(text.startswith("written to /dev/vda (DISK-000") for text in one.progress.remarks)
    # The other disk was never written, and the network boot is closed.
    assert [path.stat().st_blocks for path in folder.glob("*-scratch.raw")] == [0, 0]
    assert not list((folder / "netboot/dhcp-hosts").iterdir())


@pytest.mark.proof
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
    found = progress_by_node(folder)
    assert (found["vm1"].progress.state, found["vm1"].progress.step) == ("failed", Step.IMAGE)
    assert "vm1 refused: this machine's serial number is S" in found["vm1"].progress.reason
    assert "the order is for ANOTHER" in found["vm1"].progress.reason
    # No byte was written, so the disk's file still has no blocks.
    assert (folder / "vm1.raw").stat().st_blocks == 0
    assert (found["vm2"].progress.state, found["vm2"].progress.step) == ("failed", Step.IMAGE)
    assert "block 12 is damaged on the server" in found["vm2"].progress.reason
    with (folder / "vm2.raw").open("rb") as stream:
        assert not stream.read(BLOCK).strip(b"\0")
    assert not list((folder / "netboot/dhcp-hosts").iterdir())
    assert taking_work() == []


@pytest.mark.proof
def test_a_power_cut_while_the_disk_is_written_leaves_one_that_does_not_boot_and_the_next_run_goes_on(
    folder: Path,
) -> None:
    # The machine starts without an entry on the boot host, so it could boot only from its disk.
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
        "ssh $CONTROLLER \"sinfo -hN -n vm1 -o '%N %T'\" > $FOLDER/slurm",
        f"{alone} > $FOLDER/systems",
        "LIMITS='{boot: 400, image: 900, first_boot: 600}'; beside -l vm1",
        "wait_until 'noted done first_boot || ! kill -0 $playbook'",
        # The steps after the first boot are the same as in the other tests.
        "kill -KILL -$playbook; wait $playbook",
        limits="{boot: 400, image: 60, first_boot: 600}",
    )
    first = progress_by_node(folder, "results.first")["vm1"].progress
    assert (first.state, first.step) == ("failed", Step.IMAGE), first
    assert "has its order and did not report the result in time" in first.reason
    assert not (folder / "first-block").read_bytes().strip(b"\0")
    assert not (folder / "entries").read_text()
    assert "idle" not in (folder / "slurm").read_text()
    # Linux started once, in the ramdisk, and not from the disk.
    assert (folder / "systems").read_text().strip() == "1"
    last = progress_by_node(folder)["vm1"].progress
    assert Step.FIRST_BOOT in last.done, last
    assert boots(folder)
    assert taking_work() == []


@pytest.mark.proof
def test_whatever_is_lost_on_the_way_the_node_stays_out_and_the_next_run_goes_on(folder: Path) -> None:
    """One machine has five faults in a row, then the playbook images it.

    DHCP fails, the playbook is killed while the machine boots, the image server stops, the playbook is killed
    while the image is written, and the BMC stops answering.
    """
    killed = "kill -KILL -$playbook; wait $playbook"
    machines(
        folder,
        1,
        "ansible-playbook playbooks/netboot.yml || exit",
        # No server answers a machine that boots over the network. (Removing its entry starts dnsmasq again.)
        "systemctl stop rackproof-netboot-dnsmasq.service",
        "LIMITS='{boot: 45}'; reimage -l vm1; keep dhcp",
        # The playbook is killed while the machine, which has its order, boots. No playbook waits for it.
        "LIMITS='{boot: 300, image: 60}'; beside -l vm1",
        f"wait_until '[ -e $FOLDER/netboot/dhcp-hosts/vm1 ]'; {killed}; keep booting",
        "touch -d '1 hour ago' $FOLDER/netboot/entries/vm1",
        "wait_until '[ ! -e $FOLDER/netboot/dhcp-hosts/vm1 ]'; virsh destroy vm1; keep over",
        # The image server is lost while the image is written.
        "beside -l vm1; wait_until 'noted begun image'; sleep 8",
        "systemctl stop rackproof-netboot-nginx.service; wait $playbook; keep server",
        "systemctl start rackproof-netboot-nginx.service",
        # The playbook is killed while the image is written.
        f"beside -l vm1; wait_until 'noted begun image 2'; sleep 8; {killed}; keep writing",
        # The BMC falls silent while the image is written, and cannot start the new system.
        "LIMITS='{boot: 300, image: 600, first_boot: 600}'; beside -l vm1",
        "wait_until 'noted begun image 3'; kill -STOP $(cat $FOLDER/emulator.pid)",
        "wait $playbook; kill -CONT $(cat $FOLDER/emulator.pid); keep bmc",
        # At last, a run without a fault. The steps after the first boot are the same as in the other tests.
        "beside -l vm1; wait_until 'noted done first_boot || ! kill -0 $playbook'",
        killed,
    )  # fmt: skip
    stood = {}
    for name in ("dhcp", "booting", "over", "server", "writing", "bmc"):
        one = progress_by_node(folder / name)["vm1"].progress
        stood[name] = (one.state, one.step.value if one.step else "")
        # A machine for which no playbook waits is not booted again, and gets no job.
        assert bool((folder / name / "entries").read_text()) == (name == "booting"), name
        assert "idle" not in (folder / name / "slurm").read_text(), name
        # A disk that is written in part starts nothing.
        if name != "bmc":
            assert not (folder / name / "first-block").read_bytes().strip(b"\0"), name
    assert stood == {
        "dhcp": ("failed", "boot"),
        "booting": ("interrupted", "boot"),
        "over": ("interrupted", "boot"),
        "server": ("failed", "image"),
        "writing": ("interrupted", "image"),
        "bmc": ("failed", "image"),
    }
    reasons = {
        name: progress_by_node(folder / name)["vm1"].progress.reason for name in ("dhcp", "server", "bmc")
    }
    assert "vm1 did not boot over the network in time" in reasons["dhcp"]
    assert "is the image server up?" in reasons["server"]
    assert "Boot the new system" in reasons["bmc"]
    # Nothing was written to the disk of a machine that did not answer.
    assert (folder / "dhcp/kib").read_text().strip() == "0"
    last = progress_by_node(folder)["vm1"].progress
    assert Step.FIRST_BOOT in last.done, last
    assert boots(folder)
    assert (folder / "vm1-scratch.raw").stat().st_blocks == 0
    assert taking_work() == []


@pytest.mark.proof
def test_a_machine_with_uefi_boots_beside_another_dhcp_server(folder: Path) -> None:
    machines(
        folder,
        1,
        "ansible-playbook playbooks/netboot.yml || exit",
        "beside -l vm1; wait_until 'noted done first_boot || ! kill -0 $playbook'",
        "kill -KILL -$playbook; wait $playbook",
        more=["--uefi", "--proxy"],
    )
    progress = progress_by_node(folder)["vm1"].progress
    assert Step.FIRST_BOOT in progress.done, progress
    console = (folder / "vm1.console").read_text(errors="replace")
    assert re.search(r"efi: EFI v", console)
    # The site's DHCP server gave the addresses.
    assert "52:54:00:78:00:01" in (folder / "site.leases").read_text()
    assert not (folder / "netboot/leases").exists()
    assert not list((folder / "netboot/dhcp-hosts").iterdir())


@pytest.mark.proof
@pytest.mark.parametrize("more", [[], ["--uefi", "--proxy"]], ids=["bios", "uefi"])
def test_unknown_machines_report_themselves_and_known_ones_get_no_answer(
    folder: Path, more: list[str]
) -> None:
    """discover.yml runs twice, and lines of shell switch the machines on, as an operator would.

    The first time, the inventory has only serial numbers. The second time, it has the MAC address of vm1.
    """
    forget = (
        "forget() { python3 -c 'import json, sys; path, *names = sys.argv[1:]; said = json.load(open(path)); "
        'hosts = said["all"]["children"]["gb300-rack"]["children"]["vms"]["hosts"]; '
        '[hosts[name].pop("reimage_mac") for name in names]; json.dump(said, open(path, "w"))\' "$@"; }'
    )
    by_network = (
        "by_network() { virsh dumpxml --inactive $1 | sed \"s/boot dev='hd'/boot dev='network'/\" > $1.xml; "
        "virsh define $1.xml > /dev/null; rm $1.xml; virsh start $1; }"
    )
    discover = (
        "discover() { ansible-playbook playbooks/discover.yml -e discover_by=boot -e discover_wait_s=400 "
        '-e discover_file=$FOLDER/discovered.yml > $FOLDER/$1 2>&1; echo "status $?" >> $FOLDER/$1; }'
    )
    off = "virsh domstate vm1 | grep -q 'shut off' && virsh domstate vm2 | grep -q 'shut off'"
    keep = "cp $FOLDER/discovered.yml $FOLDER/discovered.first; cp $FOLDER/vm1.console $FOLDER/console.first"
    said = machines(
        folder,
        2,
        forget,
        by_network,
        discover,
        "cp $FOLDER/hosts.json $FOLDER/hosts.first; forget $FOLDER/hosts.json vm1 vm2",
        "ansible-playbook playbooks/netboot.yml || exit",
        "discover first & playbook=$!",
        "wait_until '[ -e $FOLDER/netboot/discover/open.conf ]'; sleep 3; by_network vm1; by_network vm2",
        f'wait $playbook; wait_until "{off}"; {keep}',
        "ls $FOLDER/netboot/discover $FOLDER/netboot/http/boot-reports > $FOLDER/left",
        # The second discovery, while vm1 is known.
        "cp $FOLDER/hosts.first $FOLDER/hosts.json; forget $FOLDER/hosts.json vm2; rm $FOLDER/discovered.yml",
        "discover second & playbook=$!",
        "wait_until '[ -e $FOLDER/netboot/discover/open.conf ]'; sleep 3; virsh start vm1; virsh start vm2",
        "wait $playbook; virsh destroy vm1; cp /var/log/nginx/rackproof-netboot.log $FOLDER/asked",
        more=more,
    )
    macs = {"vm1": "52:54:00:78:00:01", "vm2": "52:54:00:78:00:02"}
    first, second = ((folder / name).read_text() for name in ("first", "second"))
    assert "status 0" in first, said + first
    found = yaml.safe_load((folder / "discovered.first").read_text())["all"]["hosts"]
    assert found == {name: {"reimage_mac": mac} for name, mac in macs.items()}
    for number in (1, 2):
        assert f"vm{number}: disks: /dev/vda (serial DISK-000{number}, 32 GiB, " in first
        assert f"vm{number}: interfaces: {macs[f'vm{number}']} (link)" in first
    # The discovery ended by itself. No file is left that makes dnsmasq answer unknown machines.
    assert "open.conf" not in (folder / "left").read_text()
    assert "discover-" not in (folder / "left").read_text()
    # No byte was written, so the disks' files still have no blocks.
    assert [path.stat().st_blocks for path in sorted(folder.glob("vm*.raw"))] == [0] * 4
    if more:
        assert re.search(r"efi: EFI v", (folder / "vm1.console").read_text(errors="replace"))
    # The known machine was started first, and got no answer.
    assert "status 0" in second, second
    hosts = yaml.safe_load((folder / "discovered.yml").read_text())["all"]["hosts"]
    assert hosts == {"vm2": {"reimage_mac": macs["vm2"]}}
    scripts = re.findall(r"GET /(boot\.ipxe|discover/report\.ipxe) ", (folder / "asked").read_text())
    assert sorted(scripts) == ["boot.ipxe"] * 3 + ["discover/report.ipxe"] * 3
    systems = (folder / "vm1.console").read_text(errors="replace").count("Linux version")
    assert systems == (folder / "console.first").read_text(errors="replace").count("Linux version")
