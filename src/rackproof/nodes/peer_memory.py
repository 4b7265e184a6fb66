"""Choose how the network cards of a node access the memory of its GPUs directly (GPUDirect RDMA).

Role peer_memory calls :func:`choose_method` through the filter ``peer_memory_choice``. A table lists the
methods with NVIDIA's conditions. The sources are "Common Prerequisites" of the GPU Operator's chapter on
GPUDirect RDMA, and the README of nv_peer_memory:

* DMA-BUF needs the open kernel module, driver branch 535 or newer, kernel 5.12 or newer, and any network
  driver.
* nvidia-peermem needs driver branch 470 or newer, and MLNX_OFED or DOCA-OFED.
* nv_peer_memory needs an older driver and MLNX_OFED. Its module became part of the driver in branch 470.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Ofed = Literal["mlnx", "doca", "inbox"]
"""Origin of the drivers of network cards."""
OFED_NAMES: dict[str, str] = {
    "mlnx": "MLNX_OFED",
    "doca": "DOCA-OFED",
    "inbox": "the distribution's drivers",
}
"""The name of each origin in texts for operators."""


@dataclass(frozen=True)
class TransferMethod:
    """A method with its requirements. None and an empty set mean no requirement.

    ``driver_from`` and ``driver_below`` are branches of the driver, such as 535 for 535.129.03.
    """

    method: str
    driver_from: int | None = None
    driver_below: int | None = None
    open_module: bool = False
    kernel_from: str | None = None
    ofed: frozenset[str] = frozenset()


METHODS = (
    TransferMethod("dmabuf", driver_from=535, open_module=True, kernel_from="5.12"),
    TransferMethod("nvidia_peermem", driver_from=470, ofed=frozenset({"mlnx", "doca"})),
    TransferMethod("nv_peer_mem", driver_below=470, ofed=frozenset({"mlnx"})),
)
"""Methods in NVIDIA's order of preference. "auto" chooses the first method whose needs are all met."""


@dataclass(frozen=True)
class PeerMemoryNode:
    """The facts of a node that determine the method. An empty driver means that none was found."""

    kernel: str
    driver: str
    open_module: bool
    ofed: str


@dataclass(frozen=True)
class MethodChoice:
    """The method chosen for a node, or "" if none is possible. ``unmet`` has the unmet needs by method."""

    method: str
    reason: str
    unmet: Mapping[str, tuple[str, ...]]


OPEN_FROM = 560
"""First branch whose NVIDIA packages install the open kernel module by default."""

DRIVER_PACKAGE = re.compile(
    r"(?:nvidia-(?:\d{3}|open|driver|dkms|kernel-dkms|kernel-open-dkms|open-kernel-dkms)"
    r"|nvidia-(?:driver|dkms|open|headless)-\d{3}|linux-modules-nvidia-\d{3})"
    r"(?:-server)?(?:-open)?(?:-\d+\.\d.*|-generic.*)?"
)
"""Names of packages with the kernel module in Ubuntu, Debian and NVIDIA's repository, such as
``nvidia-driver-570-server-open`` and ``linux-modules-nvidia-570-generic``."""


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, or () if there are none: (6, 8, 0) for 6.8.0-48-generic."""
    match = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def describe_node(facts: Mapping[str, Any]) -> PeerMemoryNode:
    """Return the facts of a node that decide on the method.

    Args:
        facts: The value of the fact rackproof_node.
    """
    packages: Mapping[str, Mapping[str, Any]] = facts["packages"]
    drivers = [name for name in sorted(packages) if DRIVER_PACKAGE.fullmatch(name)]
    # The running driver comes first. It may differ from the installed one until the node is rebooted.
    versions = [facts["modules"].get("nvidia") or ""]
    answers = _output_of(facts, "nvidia_smi_query").splitlines()
    versions += [line.split(",")[2].strip() for line in answers if line.count(",") >= 3]
    versions += [packages[name]["version"] for name in drivers]
    license_of_module = _output_of(facts, "nvidia_license").strip()
    named_open = any("open" in name.split("-") for name in drivers)
    return PeerMemoryNode(
        kernel=facts["kernel"],
        driver=next((version for version in versions if version_numbers(version)), ""),
        # The licence of the module is reliable. The name of the package is not, for some vendors.
        open_module="MIT" in license_of_module if license_of_module else named_open,
        ofed=_installed_ofed(packages, _output_of(facts, "ofed_info")),
    )


def _output_of(facts: Mapping[str, Any], command: str) -> str:
    """Return the output of a command that the facts contain, or ""."""
    return str(facts["commands"].get(command, {}).get("stdout", ""))


def _installed_ofed(packages: Iterable[str], reported: str) -> Ofed:
    """Return a node's network drivers, from its packages and the output of ofed_info."""
    if any(name.startswith("doca-ofed") for name in packages):
        return "doca"
    # DOCA's own ofed_info prints OFED-internal, and MLNX_OFED prints its name.
    if "MLNX_OFED" in reported:
        return "mlnx"
    return "doca" if "OFED-internal" in reported else "inbox"


def expect_driver(node: PeerMemoryNode, driver: str) -> PeerMemoryNode:
    """Return a node without a driver as it will be with one. Any other node is returned unchanged."""
    if version_numbers(node.driver) or not driver:
        return node
    return replace(node, driver=driver, open_module=version_numbers(driver)[:1] >= (OPEN_FROM,))


def unmet_needs(method: TransferMethod, node: PeerMemoryNode) -> tuple[str, ...]:
    """Return a text on each need of a method that a node does not meet."""
    needs = _unmet_driver_needs(method, node)
    if method.kernel_from is not None and version_numbers(node.kernel) < version_numbers(method.kernel_from):
        needs.append(f"it needs kernel {method.kernel_from} or newer, the node runs {node.kernel}")
    if method.ofed and node.ofed not in method.ofed:
        ofed_names = " or ".join(OFED_NAMES[name] for name in ("mlnx", "doca") if name in method.ofed)
        needs.append(f"it needs {ofed_names}, the node has {OFED_NAMES[node.ofed]}")
    return tuple(needs)


def _unmet_driver_needs(method: TransferMethod, node: PeerMemoryNode) -> list[str]:
    """Return the method's conditions on the driver that the node does not meet."""
    # NVIDIA's conditions are about branches, so only the first number of a version is compared.
    branch = version_numbers(node.driver)[:1]
    needs = []
    if method.driver_from is not None and branch < (method.driver_from,):
        needs.append(f"it needs driver {method.driver_from} or newer, the node has {node.driver}")
    if method.driver_below is not None and branch >= (method.driver_below,):
        needs.append(f"it is for drivers before {method.driver_below}, the node has {node.driver}")
    if method.open_module and not node.open_module:
        needs.append("it needs the driver's open kernel module, the node has the proprietary one")
    return needs


def choose_method(node: PeerMemoryNode, method: str = "auto", dmabuf_kernel: str = "") -> MethodChoice:
    """Choose the method for a node.

    Args:
        node: The facts of the node.
        method: A method to use without a check of its needs. "auto" chooses the first method whose needs are
            met, and "none" chooses none.
        dmabuf_kernel: The first kernel for DMA-BUF, if the platform needs a newer one than the table states.

    Returns:
        The choice, with method "" if there is no driver, or if no method is possible.

    Raises:
        ValueError: The method, the node's OFED or the version of the kernel does not exist.
    """
    _refuse_unknown(node, method, dmabuf_kernel)
    if method == "none":
        return MethodChoice("none", "requested", {})
    if not version_numbers(node.driver):
        return MethodChoice("", "the node has no NVIDIA driver", {})
    unmet = _unmet_by_method(node, dmabuf_kernel)
    if method != "auto":
        return MethodChoice(method, "requested", unmet)
    for row in METHODS:
        if row.method not in unmet:
            driver = f"driver {node.driver}{' (open)' if node.open_module else ''}"
            return MethodChoice(row.method, f"{driver}, kernel {node.kernel}, {OFED_NAMES[node.ofed]}", unmet)
    every = "; ".join(f"{name}: {', '.join(needs)}" for name, needs in unmet.items())
    return MethodChoice("", f"no way is open ({every})", unmet)


def _refuse_unknown(node: PeerMemoryNode, method: str, dmabuf_kernel: str) -> None:
    """Raise ValueError for a setting that does not exist, because a typing error must not decide."""
    names = [row.method for row in METHODS]
    if method not in {"auto", "none", *names}:
        raise ValueError(f"unknown method {method!r}: auto, none, {', '.join(names)}")
    if node.ofed not in OFED_NAMES:
        raise ValueError(f"unknown OFED {node.ofed!r}: {', '.join(OFED_NAMES)}")
    if dmabuf_kernel and not version_numbers(dmabuf_kernel):
        raise ValueError(f"{dmabuf_kernel!r} is not a version of a kernel")


def _unmet_by_method(node: PeerMemoryNode, dmabuf_kernel: str) -> dict[str, tuple[str, ...]]:
    """Return the needs that a node does not meet, by method. Methods without unmet needs are left out."""
    unmet: dict[str, tuple[str, ...]] = {}
    for row in METHODS:
        if row.method == "dmabuf" and dmabuf_kernel:
            row = replace(row, kernel_from=dmabuf_kernel)
        if needs := unmet_needs(row, node):
            unmet[row.method] = needs
    return unmet
