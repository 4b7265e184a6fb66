"""Check before a node is changed whether it is as expected.

Role preflight calls :func:`preflight_remarks` through the filter of the same name. The input is the fact
``rackproof_node`` (``rackproof_facts``, subset ``provision``) and the expectations of the inventory. To add a
check, write a function that yields each :class:`Remark`, and call it in :func:`preflight_remarks`. The module
does no I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rackproof.core.text import sanitize
from rackproof.nodes.clock import clock_offset, read_synchronized
from rackproof.nodes.peer_memory import version_numbers

GIB = 2**30
_GPU_CLASSES = ("0300", "0302")
"""PCI classes of GPUs: VGA controller and 3D controller."""
_NVIDIA = "10de"
"""PCI vendor id of NVIDIA."""
_DRIVER_PACKAGE = re.compile(
    r"nvidia-driver|nvidia-driver-cuda|nvidia-open|libnvidia-compute(?:-\d+(?:-server)?)?"
)


@dataclass(frozen=True)
class Expected:
    """The expectations of a node before it is changed. An expectation that is 0 or empty is not checked.

    Attributes:
        os: The accepted systems, as ID and VERSION_ID of /etc/os-release, such as ``ubuntu-24.04``.
        gpus: The number of NVIDIA GPUs on the PCI bus.
        memory_gib: The size of the memory, of which 95 % are sufficient.
        cores: The least number of CPU cores that are online.
        disk_gib: The least free space by path, in GiB.
        kernel: The pinned release of the running kernel.
        driver: The pinned version of the NVIDIA driver.
        names: The names for which the node must find an address, such as the name of the Slurm controller.
        clock_offset_s: The largest difference from the controller's clock, in seconds.
        ignore: The codes of remarks that do not stop the playbook.
    """

    os: tuple[str, ...] = ()
    gpus: int = 0
    memory_gib: float = 0
    cores: int = 0
    disk_gib: Mapping[str, float] = field(default_factory=dict)
    kernel: str = ""
    driver: str = ""
    names: tuple[str, ...] = ()
    clock_offset_s: float = 0
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Remark:
    """A difference from the expectations. A ``fatal`` difference stops the playbook for the node.

    ``what`` is the examined property, and ``remedy`` the operator's next step.
    """

    code: str
    what: str
    expected: str
    found: str
    remedy: str
    fatal: bool = True

    def line(self) -> str:
        """Return the remark on one line."""
        return f"{self.what}: expected {self.expected}, found {self.found}. {self.remedy}"


def preflight_remarks(
    node: Mapping[str, Any], expected: Expected, answered_at: float = 0
) -> tuple[Remark, ...]:
    """Return all differences from the expectations.

    Args:
        node: The value of the fact ``rackproof_node``.
        expected: The expectations of the node.
        answered_at: The time on the controller's clock when the answer arrived, or 0 if unknown. A clock
            that is ahead is then not found.
    """
    all_remarks = [
        *_system(node, expected),
        *_hardware(node, expected),
        *_disks(node, expected),
        *_packages(node),
        *_drift(node, expected),
        *_names(node, expected),
        *_clock(node, expected, answered_at),
    ]
    return tuple(
        replace(remark, fatal=remark.fatal and remark.code not in expected.ignore) for remark in all_remarks
    )


def _system(node: Mapping[str, Any], expected: Expected) -> Iterator[Remark]:
    """Yield a remark about another operating system than expected."""
    has = f"{node['os']['id']}-{node['os']['version_id']}"
    if expected.os and has not in expected.os:
        yield Remark(
            "os",
            "operating system",
            " or ".join(expected.os),
            sanitize(has),
            "Provisioning knows only these; validate.yml and bench.yml take other systems as well. Renew the "
            "node's image, or take it out of this group.",
        )


def _hardware(node: Mapping[str, Any], expected: Expected) -> Iterator[Remark]:
    """Yield remarks about another number of GPUs than expected, and about missing memory and cores."""
    yield from _gpus(node, expected.gpus)
    memory = node["memory_bytes"] / GIB
    # Firmware and kernel reserve some memory for themselves.
    if expected.memory_gib and memory < 0.95 * expected.memory_gib:
        yield Remark(
            "memory",
            "memory",
            f"{expected.memory_gib:g} GiB",
            f"{memory:.0f} GiB",
            "Look for a failed memory module in the BMC's log.",
        )
    if expected.cores and node["cores"] < expected.cores:
        yield Remark(
            "cores",
            "CPU cores online",
            str(expected.cores),
            str(node["cores"]),
            "Look for a failed CPU or a changed firmware setting.",
        )


def _gpus(node: Mapping[str, Any], expected: int) -> Iterator[Remark]:
    """Yield a remark about another number of GPUs than expected."""
    # Read the bus, because a node may have no driver before it is provisioned.
    gpus = [device for device in node["pci"] if _is_gpu(device)]
    if expected and len(gpus) != expected:
        slots = ", ".join(sanitize(gpu["slot"]) for gpu in gpus)
        yield Remark(
            "gpus",
            "GPUs on the PCI bus",
            str(expected),
            f"{len(gpus)} ({slots or 'none'})",
            "Look for a GPU that fell off the bus (dmesg, the BMC's log), or correct the node's SKU group.",
        )


def _is_gpu(device: Mapping[str, str]) -> bool:
    """Return whether a PCI device is an NVIDIA GPU."""
    return device["vendor"] == _NVIDIA and device["class"] in _GPU_CLASSES


def _disks(node: Mapping[str, Any], expected: Expected) -> Iterator[Remark]:
    """Yield remarks about file systems without enough free space."""
    for path, needed_gib in expected.disk_gib.items():
        space = node["space"].get(path) or {"error": "not gathered"}
        if "error" in space:
            yield Remark(
                "disk",
                f"free space on {path}",
                f"{needed_gib:g} GiB",
                sanitize(space["error"]),
                "Look at the mount.",
            )
        elif space["free_bytes"] < needed_gib * GIB:
            yield Remark(
                "disk",
                f"free space on {path}",
                f"{needed_gib:g} GiB",
                f"{space['free_bytes'] / GIB:.1f} GiB of {space['total_bytes'] / GIB:.0f}",
                f"Free space (du -xh {path} | sort -h | tail), or lower preflight_disk_gib.",
            )


def _packages(node: Mapping[str, Any]) -> Iterator[Remark]:
    """Yield remarks about the state of dpkg and about unattended upgrades."""
    half = node["dpkg_broken"]
    if half or node["dpkg_interrupted"]:
        yield Remark(
            "dpkg",
            "state of dpkg",
            "every package installed whole",
            "half installed: " + ", ".join(half) if half else "dpkg was interrupted",
            "Provisioning repairs that first (dpkg --configure -a).",
            fatal=False,
        )
    if node["dpkg_locked_by"]:
        yield Remark(
            "dpkg_lock",
            "lock of dpkg",
            "free",
            f"held by {sanitize(node['dpkg_locked_by'])}",
            "Provisioning waits for it; if that takes long, look at its output.",
            fatal=False,
        )
    if node["unattended_upgrades"]:
        yield Remark(
            "unattended_upgrades",
            "unattended upgrades",
            "off",
            "on",
            "They replace drivers and kernels under running jobs; the role apt_mirror switches them off "
            "(apt_mirror_unattended_upgrades).",
            fatal=False,
        )


def _drift(node: Mapping[str, Any], expected: Expected) -> Iterator[Remark]:
    """Yield remarks about another kernel or driver than pinned, and about a pending reboot."""
    # None of these is fatal, because provisioning corrects them.
    if expected.kernel and node["kernel"] != expected.kernel:
        yield Remark(
            "kernel",
            "running kernel",
            expected.kernel,
            sanitize(node["kernel"]),
            "Reboot into the pinned kernel, or renew the node's image, or the pin.",
            fatal=False,
        )
    driver = installed_driver(node)
    if expected.driver and driver and driver != expected.driver:
        yield Remark(
            "driver",
            "NVIDIA driver",
            expected.driver,
            driver,
            "Provisioning replaces it, and the node reboots once.",
            fatal=False,
        )
    if node["reboot_required"]:
        yield _pending_reboot(node)


def _pending_reboot(node: Mapping[str, Any]) -> Remark:
    """Return the remark about a pending reboot, with the packages and newer kernels that require it."""
    # A newer kernel that is installed also waits for the reboot. Older ones stay installed after an update.
    pending = sorted(name for name in node["kernels"] if _release(name) > _release(node["kernel"]))
    packages = ", ".join(sanitize(name) for name in [*node["reboot_required_by"], *pending])
    return Remark(
        "reboot",
        "pending reboot",
        "none",
        f"required by {packages or 'a package'}",
        "Reboot the node at the next occasion.",
        fatal=False,
    )


def _release(kernel: str) -> tuple[int, ...]:
    """Return the numbers of a kernel's release, to compare: (6, 8, 0, 48) for 6.8.0-48-generic."""
    numbers = re.match(r"\d+(?:[.-]\d+)*", kernel)
    return tuple(int(part) for part in re.findall(r"\d+", numbers[0])) if numbers else ()


def installed_driver(node: Mapping[str, Any]) -> str:
    """Return the version of the running NVIDIA driver, or else of the installed packages, or "".

    Of several packages, the newest version is returned. The version of a package is shortened to the
    driver's: ``570.86.15`` for ``1:570.86.15-0ubuntu1``.
    """
    loaded = str(node["modules"].get("nvidia") or "")
    if loaded:
        return loaded
    versions = [
        package["version"] for name, package in node["packages"].items() if _DRIVER_PACKAGE.fullmatch(name)
    ]
    drivers = [re.sub(r"^\d+:|[-~+].*$", "", str(version)) for version in versions]
    return max(drivers, key=version_numbers, default="")


def _names(node: Mapping[str, Any], expected: Expected) -> Iterator[Remark]:
    """Yield a remark for each name without an address."""
    for name in expected.names:
        if not node["names"].get(name):
            yield Remark(
                "name",
                f"address of {sanitize(name)}",
                "one",
                "none",
                "Correct the node's name service or /etc/hosts.",
            )


def _clock(node: Mapping[str, Any], expected: Expected, answered_at: float) -> Iterator[Remark]:
    """Yield remarks about a clock that is off or not synchronized."""
    clock = node["clock"]
    limit = expected.clock_offset_s
    if limit and clock["asked_at"]:
        begin = clock.get("begin", clock["epoch"])
        offset = clock_offset(clock["asked_at"], answered_at or math.inf, begin, clock["epoch"])
        if offset is not None and abs(offset) > limit:
            yield Remark(
                "clock",
                "clock",
                f"that of the controller, give or take {limit:g} s",
                f"{abs(offset):.0f} s {'behind' if offset < 0 else 'ahead'}",
                "Set it (systemctl restart chrony, or timedatectl set-ntp true); Slurm and TLS refuse such a "
                "node.",
            )
    if read_synchronized(clock.get("timedatectl", ""), container=bool(node.get("container"))) is False:
        yield Remark(
            "clock_synchronized",
            "synchronization of the clock",
            "on",
            "off",
            "Install and start chrony, or name its servers.",
            fatal=False,
        )
