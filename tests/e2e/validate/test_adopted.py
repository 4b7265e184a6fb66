"""Test the way of a new user: adopt an existing cluster, and judge its nodes without root.

`rackproof adopt` makes an inventory from the cluster's Slurm and from the owner's Ansible inventory. Then
validate.yml and `rackproof validate` judge the nodes, as a user without root. The test shows that secrets of
the owner's inventory are not copied, that a faulty GPU is found, that a node of unknown SKU is unproven, and
that check mode leaves nothing on the nodes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rackproof.store.night_store import night_folders, read_night

from .conftest import FAKES, NODES, ROOT, make_node, program

pytestmark = pytest.mark.playbook
# The nodes use the system's Python, because their user may not enter the folder of the controller's.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
# The id of a user without rights.
NOBODY = 65534
FAULT = ("--fault", "ecc-uncorrectable", "--gpu", "2")
# The cluster's scontrol: three nodes with H100, and one with GPUs of a name that Rackproof does not have.
SCONTROL = """#!/bin/sh
case "$*" in
  ping) echo "Slurmctld(primary) at elsewhere is UP" ;;
  "show config") echo "SlurmctldHost[0]        = elsewhere(192.0.2.9)" ;;
  "show topology") printf 'SwitchName=rack-z1 Level=0 LinkSpeed=1 Nodes=n[01-04]\\n' ;;
  *) for node in n01 n02 n03 n04; do
       kind=h100; [ "$node" = n04 ] && kind=mystery
       about="CPUTot=224 Gres=gpu:$kind:8(S:0-1) NodeAddr=$node NodeHostName=$node OS=Linux 6.8.0 #1 SMP"
       echo "NodeName=$node Arch=x86_64 $about RealMemory=2000000 Sockets=2 State=IDLE Partitions=train"
     done ;;
esac
"""
# The kernel log, which only root and users of the group adm may read. A marker file imitates that group.
DMESG = """#!/bin/sh
[ "$(id -u)" = 0 ] || [ -e "$RACK_ROOT/user-is-in-adm" ] || {
  echo "dmesg: read kernel buffer failed: Operation not permitted" >&2; exit 1
}
exec %s "$@"
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the controller, with the cluster's scontrol, squeue and sinfo."""
    beside = Path(sys.executable).parent
    return subprocess.run(
        [beside / words[0], *words[1:]],
        cwd=ROOT,
        env=os.environ
        | {"ANSIBLE_NOCOLOR": "1", "COLUMNS": "300", "PATH": f"{folder}/ctl:{beside}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture
def strangers() -> Iterator[Path]:
    """Yield a folder with four nodes, on which modules run without root, their Slurm and their inventory."""
    if os.geteuid():
        pytest.skip("a boot of its own for each node needs root, and so does a change of user")
    # Only its owner may enter pytest's own folder.
    folder = Path(tempfile.mkdtemp(prefix="rackproof-strangers-"))
    folder.chmod(0o755)
    hosts = {}
    for name in NODES:
        make_node(folder / name, f"gpu-{name}", "h100")
        # The fabric manager runs.
        (folder / name / "sys/fs/cgroup/system.slice/nvidia-fabricmanager.service").mkdir(parents=True)
        tool = folder / name / "usr/bin/dmesg"
        tool.unlink()
        copied = folder / name / "usr/lib/rack/dmesg"
        copied.symlink_to(FAKES)
        program(tool, DMESG % copied)
        path = f"{folder / name}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        program(
            folder / name / "python",
            # The module is the interpreter's input, as with ssh and pipelining. So it leaves no file on the
            # node.
            f"#!/bin/sh\nexport RACK_ROOT={folder / name} PATH={path} HOME=/nonexistent\n"
            f'exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups {PYTHON} - <"$1"\n',
        )
        hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(folder / name / "python"),
            "their_secret": "s3cret",
        }
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    (folder / "theirs.json").write_text(
        json.dumps({"_meta": {"hostvars": hosts}, "all": {"hosts": list(hosts)}})
    )
    program(folder / "ctl/scontrol", SCONTROL)
    program(folder / "ctl/squeue", "#!/bin/sh\n")
    program(folder / "ctl/sinfo", '#!/bin/sh\nfor n in 1 2 3 4; do echo "n0$n|train|none"; done\n')
    yield folder
    shutil.rmtree(folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of all nodes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("n0*/**/*")
        if path.is_file()
    }


def test_from_a_strangers_cluster_to_the_first_verdict(strangers: Path) -> None:
    cluster = strangers / "cluster"
    words = ("adopt", "--slurm", "--ansible", str(strangers / "theirs.json"), "-o", str(cluster))
    done = run(strangers, "rackproof", *words)
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in done.stdout + (cluster / "hosts.yml").read_text()
    assert "sku_mystery_x8 UNPROVEN" in done.stdout
    assert run(strangers, "rackproof", "lint-inventory", "-i", str(cluster)).returncode == 0

    # Limits for this machine, which is smaller than a real node. An operator may change the file, and the
    # next adopt keeps the change.
    about = cluster / "group_vars/all.yml"
    mine = {
        "validate_results": str(strangers / "results"),
        "validate_limits": {"shm_bytes": 0, "disk_free": 0.0, "tool_seconds": 60},
    }
    about.write_text(about.read_text() + yaml.safe_dump(mine))
    again = run(strangers, "rackproof", *words)
    assert "nothing to write" in again.stdout, again.stdout

    # A GPU of n02 has lost data.
    subprocess.run(
        [
            sys.executable,
            "-I",
            strangers / "n02/usr/bin/hardware",
            "--fault",
            "ecc-uncorrectable",
            "--gpu",
            "2",
        ],
        env=os.environ | {"RACK_ROOT": str(strangers / "n02")},
        check=True,
        capture_output=True,
    )
    subprocess.run(["chmod", "-R", "a+rX", strangers], check=True)
    before = contents(strangers)
    validate = ("ansible-playbook", "-i", str(cluster), "validate.yml")
    done = run(strangers, *validate, "--check")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "1 fail, 3 unproven" in done.stdout, done.stdout
    assert "fail n02: " in done.stdout, done.stdout
    assert "queried without root: n[01-04]; root would add the kernel's log (4 of 4)" in done.stdout
    assert "SKU mystery-x8 is a skeleton" in done.stdout
    assert "slurm_node_unknown" not in done.stdout
    # Check mode leaves no file, neither on the nodes nor on the controller.
    assert contents(strangers) == before
    assert not list((strangers / "results").glob("*"))

    # If the user may read the kernel log, and locked memory is not checked, healthy nodes pass without root.
    for name in NODES:
        (strangers / name / "user-is-in-adm").touch()
    about.write_text(about.read_text().replace("shm_bytes: 0", "memlock_bytes: 0\n  shm_bytes: 0"))
    done = run(strangers, "rackproof", "validate", "-i", str(cluster))
    night = read_night(night_folders(strangers / "results")[0])
    assert {one.node: one.verdict.value for one in night.nodes} == {
        "n01": "pass",
        "n02": "fail",
        "n03": "pass",
        "n04": "unproven",
    }, done.stdout
    # A command on a page finds the node, which the shipped inventory does not have.
    assert night.inventory == (str(cluster),)
    page = (strangers / "results" / night.night_id / "nodes/n02.html").read_text()
    assert f"ansible-playbook validate.yml -i {cluster} -l n02" in page
    # The groups of partitions are not taken for racks.
    assert {one.rack for one in night.nodes} == {"rack-z1"}
    found = {finding.code for one in night.nodes if one.node == "n02" for finding in one.findings}
    assert "ecc_sram_uncorrectable" in found
