"""How memory of a GPU and a network card find each other: one table, and what each of its rows needs.

The conditions are NVIDIA's: "Common Prerequisites" in the GPU Operator's chapter on GPUDirect RDMA (DMA-BUF:
open kernel module, branch 535, kernel 5.12, any network driver; nvidia-peermem: branch 470, MLNX_OFED or
DOCA-OFED), and the README of nv_peer_memory (its module moved into the driver with branch 470).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Ofed = Literal["mlnx", "doca", "inbox"]
OFED_NAMES: dict[str, str] = {
    "mlnx": "MLNX_OFED",
    "doca": "DOCA-OFED",
    "inbox": "the distribution's drivers",
}


@dataclass(frozen=True)
class Way:
    """One row: a way, and what it needs. None and an empty set need nothing."""

    method: str
    driver_from: int | None = None
    driver_below: int | None = None
    open_module: bool = False
    kernel_from: str | None = None
    ofed: frozenset[str] = frozenset()


TABLE = (
    Way("dmabuf", driver_from=535, open_module=True, kernel_from="5.12"),
    Way("nvidia_peermem", driver_from=470, ofed=frozenset({"mlnx", "doca"})),
    Way("nv_peer_mem", driver_below=470, ofed=frozenset({"mlnx"})),
)
"""In the order in which NVIDIA recommends them: the first whose needs are met is taken."""


@dataclass(frozen=True)
class Node:
    """What decides. An empty driver means that none was found."""

    kernel: str
    driver: str
    open_module: bool
    ofed: str


@dataclass(frozen=True)
class Choice:
    """The way to go; unmet lists, by way, what stands against it."""

    method: str
    reason: str
    unmet: Mapping[str, tuple[str, ...]]


OPEN_FROM = 560
"""Branch from which on NVIDIA's packages install the open kernel module by default."""

DRIVER_PACKAGE = re.compile(
    r"(?:nvidia-(?:\d{3}|open|driver|dkms|kernel-dkms|kernel-open-dkms|open-kernel-dkms)"
    r"|nvidia-(?:driver|dkms|open|headless)-\d{3}|linux-modules-nvidia-\d{3})"
    r"(?:-server)?(?:-open)?(?:-\d+\.\d.*|-generic.*)?"
)
"""Ubuntu's, Debian's and NVIDIA's names for what brings the kernel module."""


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (6, 8, 0) of 6.8.0-48-generic."""
    found = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def look(facts: Mapping[str, Any]) -> Node:
    """Read from the facts of a node what decides.

    Args:
        facts: The fact rackproof_node.
    """
    packages: Mapping[str, Mapping[str, Any]] = facts["packages"]
    commands: Mapping[str, Mapping[str, Any]] = facts["commands"]
    drivers = [name for name in sorted(packages) if DRIVER_PACKAGE.fullmatch(name)]
    answers = str(commands.get("nvidia_smi_query", {}).get("stdout", "")).splitlines()
    # What runs counts before what is installed: the two differ until the node has been rebooted.
    versions = [facts["modules"].get("nvidia", "")]
    versions += [line.split(",")[2].strip() for line in answers if line.count(",") >= 3]
    versions += [packages[name]["version"] for name in drivers]
    license_of_module = str(commands.get("nvidia_license", {}).get("stdout", "")).strip()
    named_open = any("open" in name.split("-") for name in drivers)
    reported = str(commands.get("ofed_info", {}).get("stdout", ""))
    if any(name.startswith("doca-ofed") for name in packages):
        ofed = "doca"
    else:
        # DOCA's own ofed_info says OFED-internal; a MLNX_OFED is named as such.
        ofed = "mlnx" if "MLNX_OFED" in reported else "doca" if "OFED-internal" in reported else "inbox"
    return Node(
        kernel=facts["kernel"],
        driver=next((version for version in versions if numbers(version)), ""),
        # The module itself knows; not every vendor's package has it in its name.
        open_module="MIT" in license_of_module if license_of_module else named_open,
        ofed=ofed,
    )


def expect(node: Node, driver: str) -> Node:
    """Return a node as it will be when it has that driver; one that has a driver stays as it is."""
    if numbers(node.driver) or not driver:
        return node
    return replace(node, driver=driver, open_module=numbers(driver)[:1] >= (OPEN_FROM,))


def against(way: Way, node: Node) -> tuple[str, ...]:
    """Return what stands against a way on a node, in words."""
    branch = numbers(node.driver)[:1]
    said = []
    if way.driver_from is not None and branch < (way.driver_from,):
        said.append(f"it needs driver {way.driver_from} or newer, the node has {node.driver}")
    if way.driver_below is not None and branch >= (way.driver_below,):
        said.append(f"it is for drivers before {way.driver_below}, the node has {node.driver}")
    if way.open_module and not node.open_module:
        said.append("it needs the driver's open kernel module, the node has the proprietary one")
    if way.kernel_from is not None and numbers(node.kernel) < numbers(way.kernel_from):
        said.append(f"it needs kernel {way.kernel_from} or newer, the node runs {node.kernel}")
    if way.ofed and node.ofed not in way.ofed:
        wanted = " or ".join(OFED_NAMES[name] for name in ("mlnx", "doca") if name in way.ofed)
        said.append(f"it needs {wanted}, the node has {OFED_NAMES[node.ofed]}")
    return tuple(said)


def choose(node: Node, method: str = "auto", dmabuf_kernel: str = "") -> Choice:
    """Choose the way for a node.

    Args:
        node: What is there.
        method: A way that is asked for by name, whatever stands against it; "auto" takes the first of the
            table that nothing stands against; "none" takes none.
        dmabuf_kernel: Kernel from which on DMA-BUF is used, where the platform needs a newer one than the
            table says.

    Returns:
        The choice; its method is empty where there is no driver, or no way is open.
    """
    if method not in {"auto", "none", *(way.method for way in TABLE)}:
        raise ValueError(f"unknown method {method!r}: auto, none, {', '.join(way.method for way in TABLE)}")
    if node.ofed not in OFED_NAMES:
        raise ValueError(f"unknown OFED {node.ofed!r}: {', '.join(OFED_NAMES)}")
    if dmabuf_kernel and not numbers(dmabuf_kernel):
        raise ValueError(f"{dmabuf_kernel!r} is no version of a kernel")
    if method == "none":
        return Choice("none", "asked for", {})
    if not numbers(node.driver):
        return Choice("", "the node has no NVIDIA driver", {})
    unmet: dict[str, tuple[str, ...]] = {}
    for way in TABLE:
        if way.method == "dmabuf" and dmabuf_kernel:
            way = replace(way, kernel_from=dmabuf_kernel)
        if objections := against(way, node):
            unmet[way.method] = objections
    if method != "auto":
        return Choice(method, "asked for", unmet)
    for way in TABLE:
        if way.method not in unmet:
            found = f"driver {node.driver}{' (open)' if node.open_module else ''}, kernel {node.kernel}"
            return Choice(way.method, f"{found}, {OFED_NAMES[node.ofed]}", unmet)
    every = "; ".join(f"{name}: {', '.join(objections)}" for name, objections in unmet.items())
    return Choice("", f"no way is open ({every})", unmet)
