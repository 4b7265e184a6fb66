"""Test on the test rack that validate.yml finds faults of a node's operating system, not of its hardware.

The faults are those that an administrator may cause: a disabled service, a wrong host name, a file system
that is read-only or without inodes, and another munge key than Slurm's. Two nodes are broken and mended
between nights, and each fault must be found on its node, with the right verdict.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackproof.store.night_store import NodeNight, night_folders, read_night
from testrack.tests.on_rack import CONTROLLER, PROVISIONED, Command, play

pytestmark = [pytest.mark.rack, pytest.mark.slow]
FIRST, SECOND = PROVISIONED[:2]
FEW, STORE = "/srv/few", "/srv/store"
"""A file system with hardly any inodes, and one that has to be writable."""
# Commands that mount both file systems, and unmount them.
MOUNTED = (
    f"mkdir -p {FEW} {STORE}; mountpoint -q {FEW} || mount -t tmpfs -o nr_inodes=200 few {FEW};"
    f" mountpoint -q {STORE} || mount -t tmpfs store {STORE}"
)
UNMOUNTED = f"umount {FEW} {STORE}"

BREAKS: list[tuple[str, str, str, str, str]] = [
    (
        FIRST,
        "service_docker",
        "fail",
        "systemctl disable --now docker.socket docker; systemctl mask docker",
        "systemctl unmask docker; systemctl enable --now docker.socket docker",
    ),
    (FIRST, "hostname_differs", "unproven", f"hostname {SECOND}", f"hostname {FIRST}"),
    (FIRST, "inodes_full", "fail", f"seq -f {FEW}/%g 500 | xargs touch", f"rm -f {FEW}/*"),
    (
        SECOND,
        "service_slurmd",
        "fail",
        "systemctl disable --now slurmd",
        "systemctl enable --now slurmd",
    ),
    (SECOND, "hostname_differs", "unproven", f"hostname {FIRST}", f"hostname {SECOND}"),
    (SECOND, "mount_read_only", "fail", f"mount -o remount,ro {STORE}", f"mount -o remount,rw {STORE}"),
]
"""Node, code and verdict of each finding that must be reported, and the commands that break and mend a node.

Among other faults, the nodes swap their host names. That is unproven, because the answer may be another
node's.
"""
# Give munge a key that the Slurm controller does not have, so that neither trusts the other's messages.
WRONG_KEY = (
    "cp -p /etc/munge/munge.key /root/munge.key.right"
    " && head -c 1024 /dev/urandom >/etc/munge/munge.key && systemctl restart munge slurmd"
)
RESTART = "systemctl restart slurmd"
RIGHT_KEY = (
    "! [ -e /root/munge.key.right ]"
    " || { mv /root/munge.key.right /etc/munge/munge.key; systemctl restart munge slurmd; }"
)


def serving(rack: Command) -> None:
    """Resume both nodes in Slurm, and wait until they are idle."""
    deadline = time.monotonic() + 180
    asked = f"sinfo -hN -n {FIRST},{SECOND} -o %T"
    while {*(state := rack(CONTROLLER, asked).stdout).split()} - {"idle"}:
        assert time.monotonic() < deadline, state
        rack(CONTROLLER, f"scontrol update nodename={FIRST},{SECOND} state=resume")
        time.sleep(1)


@pytest.fixture
def mended(rack: Command) -> Iterator[None]:
    """Mend both nodes after the test, even if it fails."""
    yield
    rack(FIRST, RIGHT_KEY)
    for node, _, _, _, mend in BREAKS:
        rack(node, mend)
    for node in (FIRST, SECOND):
        rack(node, f"{UNMOUNTED}; {RESTART}")
    serving(rack)


@pytest.mark.usefixtures("mended")
def test_what_breaks_a_node_s_system_is_found_on_it(root: Path, tmp_path: Path, rack: Command) -> None:
    results = tmp_path / "results"
    given = {
        "validate_results": str(results),
        "validate_mounts": [{"path": STORE, "fstype": "tmpfs"}],
        "validate_paths": ["/", "/var", FEW],
    }

    def night() -> dict[str, NodeNight]:
        done = play(root, "validate.yml", [FIRST, SECOND], given=given)
        assert night_folders(results), done.stdout + done.stderr
        return {one.node: one for one in read_night(night_folders(results)[0]).nodes}

    def found_on(node: NodeNight) -> set[tuple[str, str]]:
        return {(one.code, one.verdict.value) for one in node.findings}

    for node in (FIRST, SECOND):
        assert rack(node, MOUNTED).returncode == 0
    serving(rack)
    # A first night reads the kernel's log of the whole boot, with what other tests broke on these nodes.
    night()
    sound = night()
    assert {one.verdict.value for one in sound.values()} == {"pass"}, sound

    for node, _, _, break_, _ in BREAKS:
        rack(node, break_)
    broken = night()
    for node, code, verdict, _, _ in BREAKS:
        assert (code, verdict) in found_on(broken[node]), broken[node].reason_texts()
    for node, _, _, _, mend in BREAKS:
        rack(node, mend)
    # slurmd was started while the node had the other's name, and still answers as the other node.
    serving(rack)
    misnamed = night()
    assert ("slurm_name_differs", "unproven") in found_on(misnamed[SECOND]), misnamed[SECOND].reason_texts()
    assert "slurm_name_differs" not in {code for code, _ in found_on(misnamed[FIRST])}
    assert rack(SECOND, RESTART).returncode == 0

    assert rack(FIRST, WRONG_KEY).returncode == 0
    # Slurm's own state of the node may be idle, silent or down at this moment, so it is not tested.
    unheard = night()
    assert ("slurm_unreachable", "unproven") in found_on(unheard[FIRST]), unheard[FIRST].reason_texts()
    assert "slurm_unreachable" not in {code for code, _ in found_on(unheard[SECOND])}

    assert rack(FIRST, RIGHT_KEY).returncode == 0
    serving(rack)
    mended = night()
    assert {one.verdict.value for one in mended.values()} == {"pass"}, [
        one.reason_texts() for one in mended.values()
    ]
