"""Test each remark of preflight on a node, whether it stops the node, and its remedy (nodes/preflight.py).

Before provisioning changes a node, role preflight compares it with the inventory, for example its operating
system, GPUs, memory, disks, packages and clock.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rackproof.nodes.preflight import GIB, Expected, installed_driver, preflight_remarks

GPU = {"slot": "0000:19:00.0", "class": "0302", "vendor": "10de", "device": "2901"}
NODE: dict[str, Any] = {
    "os": {"id": "debian", "version_id": "12"},
    "pci": [GPU] * 4 + [{**GPU, "class": "0680"}, {**GPU, "vendor": "15b3", "class": "0207"}],
    "memory_bytes": int(0.97 * 1024 * GIB),
    "cores": 144,
    "space": {"/": {"total_bytes": 500 * GIB, "free_bytes": 100 * GIB}},
    "dpkg_broken": [],
    "dpkg_interrupted": False,
    "dpkg_locked_by": "",
    "unattended_upgrades": False,
    "kernel": "6.1.0-30-amd64",
    "kernels": ["6.1.0-30-amd64"],
    "modules": {"nvidia": "580.95.05"},
    "packages": {},
    "reboot_required": False,
    "reboot_required_by": [],
    "names": {"mirror": ["198.18.0.1"]},
    "clock": {"asked_at": 1000.0, "epoch": 1001.0, "timedatectl": "NTPSynchronized=yes\n"},
}
WANTED = Expected(
    os=("debian-12", "ubuntu-24.04"),
    gpus=4,
    memory_gib=1024,
    cores=144,
    disk_gib={"/": 20},
    kernel="6.1.0-30-amd64",
    driver="580.95.05",
    names=("mirror",),
    clock_offset_s=5,
)


def changed(**changes: Any) -> dict[str, Any]:
    """Return the facts of the good node with some entries replaced."""
    node = copy.deepcopy(NODE)
    node.update(changes)
    return node


def test_a_node_as_expected_has_no_remark() -> None:
    assert preflight_remarks(NODE, WANTED, 1002) == ()


def test_expectations_that_are_not_set_are_not_checked() -> None:
    bare = changed(pci=[], memory_bytes=0, cores=0, space={}, names={}, os={"id": "x", "version_id": ""})
    assert preflight_remarks(bare, Expected()) == ()


@pytest.mark.parametrize(
    ("changes", "code", "fatal", "part"),
    [
        ({"os": {"id": "debian", "version_id": "11"}}, "os", True, "debian-12 or ubuntu-24.04"),
        ({"os": {"id": "rocky", "version_id": "9.4"}}, "os", True, "validate.yml and bench.yml take other"),
        ({"pci": [GPU] * 3}, "gpus", True, "expected 4, found 3 (0000:19:00.0"),
        ({"pci": [GPU] * 8}, "gpus", True, "found 8"),
        ({"pci": []}, "gpus", True, "found 0 (none)"),
        ({"memory_bytes": 900 * GIB}, "memory", True, "expected 1024 GiB, found 900 GiB"),
        ({"cores": 72}, "cores", True, "found 72"),
        (
            {"space": {"/": {"total_bytes": 30 * GIB, "free_bytes": 3 * GIB}}},
            "disk",
            True,
            "20 GiB, found 3.0 GiB",
        ),
        ({"space": {"/": {"error": "Permission denied"}}}, "disk", True, "Permission denied"),
        ({"space": {}}, "disk", True, "not gathered"),
        ({"dpkg_broken": ["libc6"]}, "dpkg", False, "half installed: libc6"),
        ({"dpkg_interrupted": True}, "dpkg", False, "interrupted"),
        ({"dpkg_locked_by": "apt-get (process 7)"}, "dpkg_lock", False, "apt-get (process 7)"),
        ({"unattended_upgrades": True}, "unattended_upgrades", False, "apt_mirror"),
        ({"kernel": "6.1.0-31-amd64"}, "kernel", False, "expected 6.1.0-30-amd64, found 6.1.0-31-amd64"),
        ({"modules": {"nvidia": "570.172.08"}}, "driver", False, "expected 580.95.05, found 570.172.08"),
        ({"names": {"mirror": []}}, "name", True, "address of mirror"),
        ({"names": {}}, "name", True, "address of mirror"),
        (
            {"reboot_required": True, "kernels": ["6.1.0-30-amd64", "6.1.0-31-amd64"]},
            "reboot",
            False,
            "6.1.0-31-amd64",
        ),
        (
            {"clock": {"asked_at": 1000.0, "epoch": 900.0, "timedatectl": ""}},
            "clock",
            True,
            "100 s behind",
        ),
        (
            {"clock": {"asked_at": 1000.0, "epoch": 1102.0, "timedatectl": ""}},
            "clock",
            True,
            "100 s ahead",
        ),
        (
            {"clock": {"asked_at": None, "epoch": 0.0, "timedatectl": "NTPSynchronized=no\n"}},
            "clock_synchronized",
            False,
            "chrony",
        ),
    ],
)
def test_each_deviation_gives_one_remark_with_a_remedy(
    changes: dict[str, Any], code: str, fatal: bool, part: str
) -> None:
    (one,) = preflight_remarks(changed(**changes), WANTED, 1002)
    assert (one.code, one.fatal) == (code, fatal)
    assert part in one.line()
    assert one.remedy.endswith((".", ")."))


@pytest.mark.parametrize("epoch", [995.5, 1000.0, 1001.9, 1006.9])
def test_the_delay_of_the_answer_is_no_fault_of_the_clock(epoch: float) -> None:
    # The answer took 2 s, and the clock may be off by 5 s.
    node = changed(clock={"asked_at": 1000.0, "epoch": epoch, "timedatectl": ""})
    assert preflight_remarks(node, WANTED, 1002) == ()


@pytest.mark.parametrize(
    ("begin", "end", "offset"),
    [
        (985.0, 1005.0, "15 s behind"),  # the gathering took longer than the clock is behind
        (994.0, 1094.0, "6 s behind"),
        (996.0, 1030.0, ""),
        (1001.0, 1029.0, ""),
        (1020.0, 1040.0, "10 s ahead"),
    ],
)
def test_a_long_gathering_hides_no_clock_that_is_off(begin: float, end: float, offset: str) -> None:
    node = changed(clock={"asked_at": 1000.0, "begin": begin, "epoch": end, "timedatectl": ""})
    assert [one.line() for one in preflight_remarks(node, WANTED, 1030) if offset in one.line()] == [
        one.line() for one in preflight_remarks(node, WANTED, 1030)
    ]
    assert len(preflight_remarks(node, WANTED, 1030)) == bool(offset)


def test_all_remarks_are_returned_and_ignored_ones_do_not_stop_the_node() -> None:
    node = changed(pci=[], cores=1, names={}, unattended_upgrades=True)
    found = preflight_remarks(node, Expected(gpus=4, cores=2, names=("a", "b"), ignore=("gpus",)))
    assert [(one.code, one.fatal) for one in found] == [
        ("gpus", False),
        ("cores", True),
        ("unattended_upgrades", False),
        ("name", True),
        ("name", True),
    ]


@pytest.mark.parametrize(
    ("modules", "packages", "version"),
    [
        ({}, {}, ""),
        ({"nvidia": ""}, {"nvidia-open": {"version": "580.95.05-1"}}, "580.95.05"),
        ({}, {"nvidia-driver-cuda": {"version": "1:570.172.08-0ubuntu1"}}, "570.172.08"),
        ({"nvidia": "570.1"}, {"nvidia-open": {"version": "580.2-1"}}, "570.1"),
        (
            {},
            {
                "nvidia-open": {"version": "570.86.15-0ubuntu1"},
                "libnvidia-compute-570": {"version": "1:570.133.20-0ubuntu1"},
            },
            "570.133.20",
        ),
        ({}, {"nvidia-open": {"version": "1000.5-1"}, "nvidia-driver": {"version": "580.95.05"}}, "1000.5"),
        ({}, {"nvidia-open": {"version": "unknown"}, "nvidia-driver": {"version": "580.9"}}, "580.9"),
    ],
)
def test_the_driver_is_the_loaded_one_or_that_of_the_package(
    modules: dict[str, str], packages: dict[str, Any], version: str
) -> None:
    assert installed_driver({"modules": modules, "packages": packages}) == version


@pytest.mark.parametrize(
    ("running", "installed", "named"),
    [
        ("6.8.0-48-generic", ["6.8.0-45-generic", "6.8.0-48-generic"], []),
        ("6.8.0-48-generic", ["6.8.0-45-generic", "6.8.0-51-generic"], ["6.8.0-51-generic"]),
        ("6.8.0-9-generic", ["6.8.0-9-generic", "6.8.0-48-generic"], ["6.8.0-48-generic"]),
        ("6.1.0-30-amd64", ["6.1.0-9-amd64", "5.10.0-33-amd64"], []),
        ("5.15.0-1073-aws", ["5.15.0-1070-aws", "6.8.0-1021-aws"], ["6.8.0-1021-aws"]),
        ("5.14.0-427.13.1.el9_4.x86_64", ["5.14.0-427.40.1.el9_4.x86_64"], ["5.14.0-427.40.1.el9_4.x86_64"]),
        ("6.8.0-48-generic", [], []),
    ],
)
def test_a_pending_reboot_names_only_newer_kernels(
    running: str, installed: list[str], named: list[str]
) -> None:
    node = changed(kernel=running, kernels=installed, reboot_required=True, reboot_required_by=["libc6"])
    (one,) = preflight_remarks(node, Expected())
    assert one.found == f"required by {', '.join(['libc6', *named])}"
