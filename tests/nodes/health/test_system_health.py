"""Test the health checks of a node's services, Slurm, mounts, disks, kernel log and slowdowns of GPUs.

The inventory states what a node must have (validate_expect), for example running services, and mounts with
their source and options. systemd may report no failed unit on a node that lacks them. Other tests check that
messages that the kernel's log lost are reported, and that slowdowns are compared between two nights.
"""

from __future__ import annotations

from typing import Any

import pytest

from rackproof.core.records import Verdict
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.inventory import parse_node_expectation
from rackproof.jobs.validate.tasks import units_to_ask
from rackproof.nodes.health_checks import check_node
from rackproof.nodes.kernel_log import read_kernel_log
from rackproof.nodes.snapshot import GpuSnapshot, NodeSnapshot, build_snapshot

from .healthy import EPOCH, healthy_gathered, oldest_message

P, D, U, F = Verdict.PASS, Verdict.DEGRADED, Verdict.UNPROVEN, Verdict.FAIL
MOUNTINFO = r"""
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
23 22 0:21 / /proc rw,nosuid - proc proc rw
24 22 259:3 / /var rw,relatime shared:2 - xfs /dev/nvme0n1p3 rw,attr2
25 22 0:50 / /shared rw,noatime shared:9 - nfs4 store:/export rw,vers=4.2,hard
26 22 259:4 / /scratch\0401 rw,noatime - xfs /dev/md0 rw
27 22 0:60 / /mnt/data ro,noatime - fuse.s3fs s3fs ro,user_id=0
28 22 7:1 / /snap/core/1 ro - squashfs /dev/loop1 ro
"""

SLURMD = """Active Steps             = NONE
Boot time                = 2026-11-26T15:56:53
Hostname                 = {}
Slurmd PID               = 659
Version                  = 22.05.8
"""
"""The output of `scontrol show slurmd` of Slurm 22.05, with a place for the node's name."""


def unit(name: str, load: str = "loaded", active: str = "active", **more: str) -> str:
    """Return what `systemctl show` prints about a unit."""
    values = {"Id": name, "Names": name, "LoadState": load, "ActiveState": active} | more
    return "\n".join(f"{key}={value}" for key, value in values.items())


def node(mountinfo: str = MOUNTINFO, *units: str, status: str = "ok", **disk: Any) -> NodeSnapshot:
    """Return the snapshot of a node with these mounts, units and properties of its root disk."""
    usual = {
        "total_bytes": 1000,
        "free_bytes": 500,
        "total_inodes": 100,
        "free_inodes": 60,
        "read_only": False,
    }
    root = {key: value for key, value in (usual | disk).items() if value is not None}
    facts = healthy_gathered(gpus=0)["facts"]
    return build_snapshot(
        "n1",
        {
            "facts": facts | {"files": facts["files"] | {"mountinfo": mountinfo}, "tools": {}},
            "node": {"clock": {"asked_at": 1.0, "epoch": 1.0}},
            "health": {
                "disk": {"/": root},
                "tools": {
                    "units": {"status": status, "rc": 0, "stdout": "\n\n".join(units)},
                    "slurm_controller": {"status": "ok", "stdout": "Slurmctld(primary) at c is UP\n"},
                    "slurmd_status": {"status": "ok", "stdout": SLURMD.format("n1")},
                },
            },
        },
    )


def judged(
    seen: NodeSnapshot, before: NodeSnapshot | None = None, **expected: Any
) -> list[tuple[str, Verdict]]:
    """Return code and verdict of each finding. ``expected`` is validate_expect."""
    wanted = parse_node_expectation("n1", expected)
    return [(one.code, one.verdict) for one in check_node(seen, previous=before, expected=wanted)]


MASKED = unit("docker.service", "masked", "inactive", UnitFileState="masked-runtime")
NEVER = {"ConditionResult": "no", "ConditionTimestampMonotonic": "0"}
"""Properties of a unit whose conditions were never checked, because it was never started."""


# `wanted` is an entry of validate_expect.services: `a|b` needs one of the two, and `a?` only if it is
# installed.
@pytest.mark.parametrize(
    ("shown", "wanted", "verdict"),
    [
        (unit("docker.service"), "docker", P),
        (unit("docker.service", UnitFileState="disabled"), "docker.service", P),
        (unit("docker.service", "masked"), "docker", P),  # runs on until it is stopped
        # Disabled, masked, failed or gone: the service does not run.
        (MASKED, "docker", F),
        (MASKED, "docker?", F),
        (unit("slurmd.service", active="inactive", UnitFileState="disabled", **NEVER), "slurmd", F),
        (unit("munge.service", active="failed"), "munge", F),
        (unit("chrony.service", active="activating", SubState="auto-restart"), "chrony?", F),
        (unit("nvidia-fabricmanager.service", "not-found", "inactive"), "nvidia-fabricmanager", F),
        (unit("nvidia-persistenced.service", "bad-setting", "inactive"), "nvidia-persistenced?", F),
        # An optional service is not installed, or its condition is false, so it has nothing to do.
        (unit("docker.service", "not-found", "inactive"), "docker?", P),
        (
            unit("chrony.service", active="inactive", ConditionResult="no", ConditionTimestampMonotonic="8"),
            "chrony?",
            P,
        ),
        # One of several services is enough, under any of its names. A masked one must not run elsewhere.
        (unit("chrony.service", Names="chrony.service chronyd.service"), "chronyd|ntpd", P),
        ("\n\n".join((MASKED, unit("containerd.service"))), "docker|containerd", P),
        ("\n\n".join((MASKED, unit("containerd.service", active="inactive"))), "docker|containerd?", F),
        # The state of the service is not known.
        (unit("slurmd.service", active="activating", SubState="start"), "slurmd", U),
        (unit("slurmd.service"), "munge", U),
        ("", "slurmd", U),
        ("Id=slurmd.service", "slurmd", U),
    ],
)
def test_a_required_service_that_does_not_run_fails(shown: str, wanted: str, verdict: Verdict) -> None:
    found = judged(node(MOUNTINFO, shown), services=[wanted])
    assert [one for _, one in found] == ([] if verdict is P else [verdict])
    assert all(code.startswith("service_") for code, _ in found)


@pytest.mark.parametrize("status", ["absent", "failed", "hung", ""])
def test_without_systemd_s_answer_no_service_is_proven(status: str) -> None:
    code = "tool_hung" if status == "hung" else "services_unknown"
    assert (code, U) in judged(node(status=status), services=["slurmd"])
    # A tool that hangs gives a finding, even if no check needs its answer.
    assert ((code, U) in judged(node(status=status))) is (status == "hung")


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ({"status": "ok", "stdout": SLURMD.format("n1")}, ""),
        ({"status": "ok", "stdout": SLURMD.format("N1.rack.example")}, ""),
        ({"status": "ok", "stdout": SLURMD.format("n2")}, "slurm_name_differs"),
        ({"status": "ok", "stdout": SLURMD.format("n11")}, "slurm_name_differs"),
        ({"status": "ok", "stdout": ""}, "slurm_name_unknown"),
        ({"status": "ok", "stdout": "Hostname                 = \n"}, "slurm_name_unknown"),
        ({"status": "failed", "rc": 1, "stdout": "slurm_load: no contact"}, "slurm_name_unknown"),
        ({"status": "hung"}, "tool_hung"),
        ({"status": "absent"}, "slurm_name_unknown"),
    ],
)
def test_a_slurmd_that_answers_as_another_node_is_unproven(tool: dict[str, Any], code: str) -> None:
    tools = {
        "units": {"status": "ok", "rc": 0, "stdout": unit("slurmd.service", "active")},
        "slurm_controller": {"status": "ok", "stdout": "Slurmctld(primary) at c is UP\n"},
        "slurmd_status": tool,
    }
    seen = build_snapshot("n1", {"health": {"tools": tools}})
    codes = ("slurm_name_differs", "slurm_name_unknown", "tool_hung")
    found = {one for one in judged(seen, services=["slurmd"]) if one[0] in codes}
    assert found == ({(code, U)} if code else set())
    # A node that is not expected to run slurmd needs no name in Slurm.
    assert ("slurm_name_unknown", U) not in judged(seen, services=[])


@pytest.mark.parametrize(
    ("status", "stdout", "reached"),
    [
        ("ok", "Slurmctld(primary) at controller is UP\n", True),
        ("failed", "Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n", True),
        ("ok", "Slurmctld(primary/backup) at a/b are DOWN/UP\n", True),
        # With a wrong key, a wrong clock or no route, scontrol prints nothing else.
        ("failed", "Slurmctld(primary) at controller is DOWN\n", False),
        ("ok", "Slurmctld(primary/backup) at UP-01/b are DOWN/DOWN\n", False),
        ("failed", "", None),
        ("hung", "", None),
        ("absent", "", None),
    ],
)
def test_a_node_that_reaches_no_controller_is_unproven(
    status: str, stdout: str, reached: bool | None
) -> None:
    tools = {"slurm_controller": {"status": status, "rc": 0, "stdout": stdout}}
    seen = build_snapshot("n1", {"health": {"tools": tools}})
    assert seen.reaches_slurm is reached
    for services in (["slurmd"], ["munge", "slurmd.service"]):
        found = judged(seen, services=services)
        assert (("slurm_unreachable", U) in found) is (reached is False)
        # Without an answer, it is unknown whether the node reaches a controller.
        unknown = "tool_hung" if status == "hung" else "slurm_controller_unknown"
        assert ((unknown, U) in found) is (reached is None)
    # A machine with Slurm's programs that is not a node of Slurm gives no finding.
    assert ("slurm_unreachable", U) not in judged(seen, services=["docker"])


def test_every_unit_that_is_expected_is_asked_for() -> None:
    asked = units_to_ask("n1", {"services": ["docker|podman?", "ssh", "data.mount"]})
    assert {"docker.service", "podman.service", "ssh.service", "data.mount", "munge.service"} <= set(asked)


@pytest.mark.parametrize(
    ("disk", "code", "verdict"),
    [
        ({"free_inodes": 0}, "inodes_full", F),
        ({"free_inodes": 1}, "inodes_full", F),
        ({"free_inodes": 2}, "", P),
        ({"total_inodes": 0, "free_inodes": 0}, "", P),  # btrfs has none to count
        ({"free_inodes": 0, "free_bytes": 0}, "disk_full", F),  # one fault, one finding
        ({"read_only": True}, "disk_read_only", F),
        ({"read_only": None}, "disk_unknown", U),
        ({"read_only": "no"}, "disk_unknown", U),
        ({"free_inodes": None}, "disk_unknown", U),
        ({"total_inodes": "many"}, "disk_unknown", U),
    ],
)
def test_a_root_disk_needs_free_inodes_and_must_be_writable(
    disk: dict[str, Any], code: str, verdict: Verdict
) -> None:
    found = judged(node(**disk))
    assert [one for one in found if one[0] != "system_unknown"] == ([(code, verdict)] if code else [])


SHARED = {"path": "/shared", "fstype": "nfs", "source": "store:/export", "options": ["vers=4.2", "rw"]}


@pytest.mark.parametrize(
    ("wanted", "mountinfo", "code"),
    [
        (SHARED, MOUNTINFO, ""),
        ("/scratch 1", MOUNTINFO, ""),
        ({"path": "/mnt/data", "options": "ro"}, MOUNTINFO, ""),
        ({"path": "/shared/"}, MOUNTINFO, ""),
        # Entries in the form of the role storage.
        (
            {"path": "/shared", "kind": "nfs", "source": "store:/export", "options": ["rsize=1"]},
            MOUNTINFO,
            "",
        ),
        ({"path": "/data", "kind": "folder"}, MOUNTINFO, ""),
        ({"path": "/scratch 1", "kind": "device", "source": "LABEL=scratch", "type": "xfs"}, MOUNTINFO, ""),
        ({"path": "/mnt/data", "kind": "s3fs", "source": "bucket", "options": ["ro"]}, MOUNTINFO, ""),
        ({"path": "/mnt/data", "kind": "s3fs", "source": "bucket"}, MOUNTINFO, "mount_read_only"),
        ({"path": "/shared", "kind": "nfs", "source": "other:/export"}, MOUNTINFO, "mount_differs"),
        # The mount is missing, has another source, type or option, or is read-only.
        ("/absent", MOUNTINFO, "mount_missing"),
        ({**SHARED, "source": "old:/export"}, MOUNTINFO, "mount_differs"),
        ({**SHARED, "fstype": "lustre"}, MOUNTINFO, "mount_differs"),
        ({**SHARED, "options": ["vers=3"]}, MOUNTINFO, "mount_differs"),
        ("/shared", MOUNTINFO.replace("/shared rw,noatime", "/shared ro,noatime"), "mount_read_only"),
        ("/shared", MOUNTINFO.replace("store:/export rw", "store:/export ro"), "mount_read_only"),
        ("/mnt/data", MOUNTINFO, "mount_read_only"),
        # Another mount on the same path hides it.
        (SHARED, f"{MOUNTINFO}29 25 0:70 / /shared rw - tmpfs none rw", "mount_differs"),
        (SHARED, "25 22 0:50 / /shared rw,noatime shared:9", "mounts_unknown"),
        ("/shared", "", "mounts_unknown"),
    ],
)
def test_mounts_are_as_declared(wanted: Any, mountinfo: str, code: str) -> None:
    assert [one for one, _ in judged(node(mountinfo), mounts=[wanted])] == ([code] if code else [])


# `found` states whether a file system of this type is suspicious at this path, because it is in memory.
@pytest.mark.parametrize(
    ("wanted", "fstype", "found"),
    [
        ("/shared", "tmpfs", True),
        ({"path": "/shared", "options": ["rw"]}, "tmpfs", True),
        ("/shared", "ramfs", True),
        ("/datasets/imagenet", "tmpfs", True),
        ("/runs", "tmpfs", True),
        ({"path": "/shared", "fstype": "tmpfs"}, "tmpfs", False),
        ("/shared", "lustre", False),
        ("/shared", "autofs", False),
        ("/tmp", "tmpfs", False),
        ("/dev/shm", "tmpfs", False),
        ("/run/cache", "tmpfs", False),
        ("/", "tmpfs", False),
    ],
)
def test_a_required_mount_that_is_in_memory_is_unproven(wanted: Any, fstype: str, found: bool) -> None:
    path = wanted if isinstance(wanted, str) else wanted["path"]
    seen = node(f"{MOUNTINFO}40 22 0:90 / {path} rw,noatime - {fstype} none rw\n")
    assert judged(seen, mounts=[wanted]) == ([("mount_differs", U)] if found else [])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("/dev/nvme0n1p3 rw,attr2", "/dev/nvme0n1p3 ro,attr2"), True),
        (("/var rw,relatime", "/var ro,relatime"), True),
        (("/dev/md0 rw", "/dev/md0 ro"), True),
        (("nfs4 store:/export rw", "nfs4 store:/export ro"), False),
        (("/snap/core/1 ro", "/snap/core/2 ro"), False),
    ],
)
def test_a_disk_that_became_read_only_is_found_at_any_path(change: tuple[str, str], found: bool) -> None:
    assert (("mount_read_only", F) in judged(node(MOUNTINFO.replace(*change)), node())) == found
    assert judged(node(), node()) == []


@pytest.mark.parametrize(
    "expected",
    [
        {"mounts": "/shared"},
        {"mounts": ["shared"]},
        {"mounts": [{"path": "/a", "type": "nfs"}]},
        {"mounts": [5]},
        {"mounts": [{"fstype": "nfs"}]},
        {"services": "slurmd"},
        {"slurm": "yes"},
    ],
)
def test_an_invalid_expectation_is_refused(expected: dict[str, Any]) -> None:
    with pytest.raises(ValidateError, match="validate_expect of n1"):
        parse_node_expectation("n1", expected)


XID = "[  100.000000] NVRM: Xid (PCI:0001:06:00): 31, pid=1"


# The oldest line of the ring buffer, the time from which the night needs the log (seconds since 1970), and
# whether lines are missing.
@pytest.mark.parametrize(
    ("first", "since", "cut"),
    [
        ("[    0.000000] Linux version 6.8", 0.0, False),
        ("[    0.000000] Linux version 6.8", 9_000.0, False),
        ("[ 4000.000000] eth0: link up", 9_500.0, False),  # what is gone is older than the last snapshot
        ("[ 4000.000000] eth0: link up", 0.0, True),
        ("[ 6000.000000] eth0: link up", 9_500.0, True),
        ("[ 9999.900000] eth0: link up", 9_500.0, True),
        ("[ 4000.000000] eth0: link up", 1_000.0, True),  # booted since the last snapshot
        (XID, 4_000.0, True),
        ("1795000000.1 n kernel: Linux version 6.8", 9_000.0, False),
    ],
)
def test_messages_that_the_ring_buffer_lost_are_reported(first: str, since: float, cut: bool) -> None:
    # The machine booted 5,000 s after the start of 1970, and it is now 10,000 s.
    seen = build_snapshot(
        "n1",
        {
            "facts": {"files": {"uptime": "5000.00 1.00"}},
            "health": {
                "epoch": 10_000.0,
                "since": since,
                "tools": {"kernel_log": {"status": "ok", "stdout": f"{first}\n[ 9999.950000] eth1: link up"}},
            },
        },
    )
    assert ("kernel_log" in seen.truncated) == cut
    assert (("answer_cut", U) in judged(seen)) == cut


DAY_S = 86_400.0
XID_LINE = f"{EPOCH - 9.5:.6f} n1 kernel: NVRM: Xid (PCI:0001:06:00): 31, pid=1\n"


@pytest.mark.parametrize("log", ["", "-- No entries --\n", XID_LINE])
@pytest.mark.parametrize(
    ("oldest", "since_s", "more", "is_lost"),
    [
        # Ten days after the boot. The night before is a day ago (since_s), or there is none (None).
        (oldest_message(EPOCH - 10 * DAY_S), None, {}, False),
        (oldest_message(EPOCH - 10 * DAY_S), DAY_S, {}, False),
        # The journal was vacuumed before the last night, or after it.
        (oldest_message(EPOCH - 2 * DAY_S, 8 * DAY_S), DAY_S, {}, False),
        (oldest_message(EPOCH - 3600, 10 * DAY_S - 3600), DAY_S, {}, True),
        (oldest_message(EPOCH - 10, 10 * DAY_S - 10), DAY_S, {}, True),
        # A first night, and a night after a boot since the last night, need all messages since the boot.
        (oldest_message(EPOCH - 2 * DAY_S, 8 * DAY_S), None, {}, True),
        (oldest_message(EPOCH - 2 * DAY_S, 8 * DAY_S), 20 * DAY_S, {}, True),
        (oldest_message(EPOCH - 10 * DAY_S), 20 * DAY_S, {}, False),
        # The ring buffer was full before journald started, and journald stored the first messages late.
        (oldest_message(EPOCH - 10 * DAY_S + 60, 60.0), None, {}, False),
        (oldest_message(EPOCH - 9 * DAY_S, 0.0), None, {}, False),
        # The clock was hours ahead, or years behind, until it was corrected during the start.
        (oldest_message(EPOCH + 8 * 3600, 1.0), DAY_S, {}, False),
        (oldest_message(946_684_800.0, 1.0), DAY_S, {}, False),
        # Without the kernel's own time stamp, the time of storage is compared with the time of the boot.
        (oldest_message(EPOCH - 10 * DAY_S + 5, None), None, {}, False),
        (oldest_message(EPOCH - 9 * DAY_S, None), None, {}, True),
        # The kernel's ring buffer still has what the journal lost, or has lost it, too.
        (oldest_message(EPOCH - 10, 10 * DAY_S - 10), DAY_S, {"ring": "[    0.000000] Linux version"}, False),
        (oldest_message(EPOCH - 10, 10 * DAY_S - 10), DAY_S, {"ring": "[777000.000000] eth0: up"}, False),
        (oldest_message(EPOCH - 10, 10 * DAY_S - 10), DAY_S, {"ring": "[860000.000000] eth0: up"}, True),
        (oldest_message(EPOCH - 10, 10 * DAY_S - 10), DAY_S, {"ring": "-- No entries --"}, True),
        # The query failed, or its answer is damaged.
        ("", DAY_S, {}, True),
        ("-- No entries --", DAY_S, {}, True),
        ('{"__REALTIME_TIMESTAMP" : "9', DAY_S, {}, True),
        (None, DAY_S, {}, True),
        # Older versions of systemd print spaces.
        ('{ "__REALTIME_TIMESTAMP" : "1794000000000000", "_BOOT_ID" : "1" }', DAY_S, {}, False),
    ],
)
def test_messages_that_the_journal_lost_are_reported(
    oldest: Any, since_s: float | None, more: dict[str, str], is_lost: bool, log: str
) -> None:
    answer = healthy_gathered(log=log)
    answer["facts"]["files"]["uptime"] = f"{10 * DAY_S:.2f} 1.00"
    answer["health"] |= {
        "booted": EPOCH - 10 * DAY_S, "since": 0.0 if since_s is None else EPOCH - since_s
    }  # fmt: skip
    answer["health"]["tools"]["kernel_log"] |= {"oldest": oldest, **more}
    seen = build_snapshot("n1", answer)
    assert ("kernel_log" in seen.truncated) == is_lost
    assert (("answer_cut", U) in judged(seen)) == is_lost


def test_a_container_s_journal_may_begin_long_after_its_kernel() -> None:
    answer = healthy_gathered()
    answer["node"]["container"] = True
    answer["health"]["tools"]["kernel_log"]["oldest"] = oldest_message(EPOCH - 990, 30 * DAY_S)
    assert build_snapshot("n1", answer).truncated == ()
    answer["health"]["booted"] = EPOCH - 5000
    assert build_snapshot("n1", answer).truncated == ("kernel_log",)


def test_a_lost_part_of_the_journal_is_reported_with_its_time_and_remedy() -> None:
    answer = healthy_gathered()
    answer["health"]["tools"]["kernel_log"]["oldest"] = oldest_message(EPOCH - 10, 990.0)
    (found,) = [one for one in check_node(build_snapshot("n1", answer)) if one.code == "answer_cut"]
    assert "messages before 2026-11-18 11:06:30 UTC" in found.evidence
    assert "Storage=persistent" in found.evidence
    assert "SystemMaxUse" in found.evidence


def slowed(boot: str = "a", booted: float | None = None, **seconds: float) -> NodeSnapshot:
    """Return a snapshot, ten days after the start of 1970, of a node whose GPU has these slowdowns (s)."""
    chip = GpuSnapshot(uuid="GPU-1", bus_id="1:0:0.0", slowdown_s=seconds)
    epoch = 10 * 86_400.0
    return NodeSnapshot(node="n1", hardware_key="k", gpus=(chip,), boot_id=boot, epoch=epoch, booted=booted)


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ({"hw_therm_slowdown": 10.0}, {"hw_therm_slowdown": 20.0}, None),
        ({"hw_therm_slowdown": 10.0}, {"hw_therm_slowdown": 7_210.0}, ("slowed_down", F)),
        ({"sw_therm_slowdown": 0.0}, {"sw_therm_slowdown": 14_400.0}, ("slowed_down", D)),
        ({"hw_power_brake": 5.0}, {"hw_power_brake": 500.0}, ("slowed_down", F)),
        # The count became smaller because the driver was reloaded, so the whole count is new.
        ({"hw_therm_slowdown": 9_000.0}, {"hw_therm_slowdown": 3_600.0}, ("slowed_down", F)),
        ({"hw_therm_slowdown": 9_000.0}, {"hw_therm_slowdown": 3.0}, None),
        # A counter that was there in the last night is missing now.
        ({"hw_therm_slowdown": 0.0}, {}, ("slowdown_unknown", U)),
    ],
)
def test_slowdowns_are_compared_between_nights(
    before: dict[str, float], now: dict[str, float], found: tuple[str, Verdict] | None
) -> None:
    codes = [one for one in judged(slowed(**now), slowed(**before)) if one[0].startswith("slow")]
    assert codes == ([found] if found else [])


def test_after_a_boot_the_counters_begin_again() -> None:
    # After another boot, 9,010 s count as a whole, and not as 10 s more than 9,000.
    assert ("slowed_down", F) in judged(
        slowed("b", hw_therm_slowdown=9_010.0), slowed("a", hw_therm_slowdown=9_000.0)
    )
    assert ("slowed_down", F) not in judged(
        slowed("a", hw_therm_slowdown=9_010.0), slowed("a", hw_therm_slowdown=9_000.0)
    )


# Days since the boot (None: unknown), seconds of slowdowns, and whether that is too much.
@pytest.mark.parametrize(
    ("days", "seconds", "found"),
    [(9.0, 7_200.0, True), (9.0, 300.0, False), (0.1, 30.0, True), (None, 7_200.0, False)],
)
def test_slowdowns_since_the_boot_are_judged_in_a_first_night(
    days: float | None, seconds: float, found: bool
) -> None:
    booted = None if days is None else (10 - days) * 86_400
    assert (("slowed_down", F) in judged(slowed(booted=booted, hw_therm_slowdown=seconds))) == found


@pytest.mark.parametrize("stdout", [None, True, 7, ["line"], {"a": "b"}, "absent"])
@pytest.mark.parametrize("tool", ["failed_units", "kernel_log", "clock", "nvlink_errors"])
def test_a_tool_that_ended_well_without_a_text_did_not_answer(tool: str, stdout: object) -> None:
    answer = healthy_gathered()
    if stdout == "absent":
        del answer["health"]["tools"][tool]["stdout"]
    else:
        answer["health"]["tools"][tool]["stdout"] = stdout
    seen = build_snapshot("n1", answer, sku="h200")
    assert seen.tools[tool] == "failed"
    found = check_node(seen, previous=None, expected=parse_node_expectation("n1", {"gpus": 4}))
    assert U in {one.verdict for one in found}


def link(state: str, port: str = "ens1f0np0", at: int = 10, address: str = "5e:00.0") -> str:
    """Return a line of the kernel log about a port, ``at`` seconds after the boot."""
    return f"{1795000000 + at}.5 n1 kernel: mlx5_core 0000:{address} {port}: Link {state}"


# Some network drivers (bnxt_en) log a port that goes down with level error, also while a node starts. The
# boot is at 1795000000. A start takes at most 900 s, and a port without a cable is reported within 180 s.
@pytest.mark.parametrize(
    ("lines", "is_found"),
    [
        # A port of a ConnectX while its node starts, alone and in a bond.
        ([link("down"), link("up", at=12)], False),
        ([link("down"), link("up"), link("down"), link("up")], False),
        ([link("up")], False),
        # Ports without a cable, of ConnectX, Broadcom and Intel cards.
        ([link("down")], False),
        ([link("down"), link("up", "ens1f1np1", address="5e:00.1")], False),
        (["1795000009.5 n1 kernel: bnxt_en 0000:3b:00.1 eno2np1: NIC Link is Down"], False),
        ([link("down", at=-9000), link("down")], False),
        (["1795000009.5 n1 kernel: ice 0000:5e:00.0 eno1: NIC Link is Down"], False),
        # A port of an Intel card that comes up while its node starts.
        (
            [
                "1795000009.5 n1 kernel: i40e 0000:5e:00.0 eno1: NIC Link is Down",
                "1795000012.5 n1 kernel: i40e 0000:5e:00.0 eno1: NIC Link is Up, 40 Gbps Full Duplex",
            ],
            False,
        ),
        # Ports that went down hours after the start.
        (["1795009000.5 n1 kernel: ice 0000:5e:00.0 eno1: NIC Link is Down"], True),
        (["1795009000.5 n1 kernel: tg3 0000:02:00.0 eno3: Link is down"], True),
        # A port that never was up went down more than 180 s after the boot, or twice. Its cable may be loose.
        ([link("down", at=300)], True),
        ([link("down"), link("down", at=60)], True),
        (["1795000300.5 n1 kernel: bnxt_en 0000:3b:00.1 eno2np1: NIC Link is Down"], True),
        (["1795009000.5 n1 kernel: bnxt_en 0000:3b:00.1 eno2np1: NIC Link is Down"], True),
        # The port was up and stays down, it flaps, or only another port comes up again.
        ([link("up"), link("down")], True),
        ([link("down"), link("up")] * 3, True),
        ([link("up"), link("down"), link("up", "ens1f1np1", address="5e:00.1")], True),
        ([link("down", at=9000)], True),
        # Before udev renames the ports, several ports have the same name. One port then has two names.
        ([link("up", "eth0"), link("down", "eth0"), link("up", "eth0", address="86:00.0")], True),
        ([link("down", "eth0"), link("up")], False),
        # Lines from before the boot, and a clock that was corrected during the start.
        ([link("down", at=-9000), link("up", at=-8998), link("down"), link("up")], False),
        ([link("down", at=-1), link("up", at=1)], False),
        ([link("down", at=-9000)], True),
        # The port went down after the start, or at an unknown time, and is up again.
        ([link("down", at=7200), link("up", at=7202)], True),
        ([link("down", at=901), link("up", at=902)], True),
        ([link("down"), link("up"), link("down", at=7200), link("up", at=7202)], True),
        ([link("down").partition(" ")[2], link("up")], True),
    ],
)
def test_a_port_that_is_down_only_during_a_start_is_no_finding(lines: list[str], is_found: bool) -> None:
    log = "\n".join(lines)
    reading = read_kernel_log(log, 1795000000.0, {}, errors=log if "bnxt" in log else "")
    assert [event.code for event in reading.hardware] == (["unknown_kernel_error"] if is_found else [])


@pytest.mark.parametrize("counts", [{"total_inodes": 100}, {"free_inodes": 0}, {"total_inodes": 0}, {}])
@pytest.mark.parametrize("place", ["paths", "space"])
def test_counts_of_inodes_without_the_total_or_the_free_ones_are_ignored(
    place: str, counts: dict[str, int]
) -> None:
    disk = {"/": {"total_bytes": 1000, "free_bytes": 500, **counts}}
    seen = build_snapshot("n1", {"facts": {"paths": disk}} if place == "paths" else {"node": {"space": disk}})
    assert not {"inodes_full", "disk_full"} & {one for one, _ in judged(seen)}
    assert set(seen.disk["/"]) == {"total_bytes", "free_bytes", "read_only"}


@pytest.mark.parametrize(
    ("before", "booted", "now", "found"),
    [
        ({}, 9 * 86_400.0, {"hw_therm_slowdown": 80_000.0}, ("slowed_down", F)),
        ({}, 9 * 86_400.0, {"sw_therm_slowdown": 80_000.0}, ("slowed_down", D)),
        # The first counter was there in the last night, and the second one is new.
        (
            {"hw_therm_slowdown": 0.0},
            9 * 86_400.0,
            {"hw_therm_slowdown": 0.0, "hw_power_brake": 80_000.0},
            ("slowed_down", F),
        ),
        ({}, 9 * 86_400.0, {"hw_therm_slowdown": 30.0}, None),
        ({}, 9 * 86_400.0, {"hw_therm_slowdown": 0.0}, None),
        ({}, None, {"hw_therm_slowdown": 0.0}, None),
        ({}, None, {"hw_therm_slowdown": 80_000.0}, ("slowdown_unknown", U)),
        ({"hw_therm_slowdown": 80_000.0}, None, {"hw_therm_slowdown": 80_000.0}, None),
    ],
)
def test_a_counter_without_an_earlier_count_is_judged_since_the_boot(
    before: dict[str, float], booted: float | None, now: dict[str, float], found: tuple[str, Verdict] | None
) -> None:
    present = judged(slowed(booted=booted, **now), slowed(**before))
    assert [one for one in present if one[0].startswith("slow")] == ([found] if found else [])


@pytest.mark.parametrize("services", [["slurmd | other"], ["other |slurmd.service?"], [" slurmd "]])
def test_a_service_with_blanks_around_its_name_is_the_same_service(services: list[str]) -> None:
    seen = build_snapshot("n1", {"health": {"tools": {"slurm_controller": {"status": "failed", "rc": 1}}}})
    assert ("slurm_controller_unknown", U) in judged(seen, services=services)
