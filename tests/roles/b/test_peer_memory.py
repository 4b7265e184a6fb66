"""Test how rackproof.nodes.peer_memory chooses the method by which network cards access GPU memory.

The methods of GPUDirect RDMA are DMA-BUF, nvidia-peermem and the older nv_peer_mem. Each needs a certain
driver, kernel and network driver. The tests choose for made-up nodes, on both sides of each bound, and read
driver and OFED (the package of network drivers) from the facts of a node.
"""

from __future__ import annotations

from typing import Any

import pytest

from rackproof.nodes.peer_memory import (
    DRIVER_PACKAGE,
    METHODS,
    PeerMemoryNode,
    choose_method,
    describe_node,
    expect_driver,
    version_numbers,
)

# A node (kernel, driver, open kernel module, network drivers), and the chosen method ("": none).
CASES = [
    # The stack of 2019: driver 418 on Ubuntu 18.04.
    (PeerMemoryNode("4.15.0-46-generic", "418.88", False, "mlnx"), "nv_peer_mem"),
    (PeerMemoryNode("4.15.0-46-generic", "418.88", False, "inbox"), ""),
    (PeerMemoryNode("4.15.0-46-generic", "418.88", False, "doca"), ""),
    # Both sides of each bound.
    (PeerMemoryNode("5.4.0-90-generic", "469.99", False, "mlnx"), "nv_peer_mem"),
    (PeerMemoryNode("5.4.0-90-generic", "470.57.02", False, "mlnx"), "nvidia_peermem"),
    (PeerMemoryNode("5.4.0-90-generic", "470.57.02", False, "doca"), "nvidia_peermem"),
    (PeerMemoryNode("5.4.0-90-generic", "470.57.02", False, "inbox"), ""),
    (PeerMemoryNode("5.11.22", "570.172.08", True, "mlnx"), "nvidia_peermem"),
    (PeerMemoryNode("5.12.0", "570.172.08", True, "mlnx"), "dmabuf"),
    (PeerMemoryNode("5.15.0-1044-nvidia", "534.99", True, "mlnx"), "nvidia_peermem"),
    (PeerMemoryNode("5.15.0-1044-nvidia", "535.54.03", True, "mlnx"), "dmabuf"),
    (PeerMemoryNode("5.15.0-1044-nvidia", "535.54.03", False, "mlnx"), "nvidia_peermem"),
    # Numbers are compared, not texts: 5.4 is older than 5.12, and 10 is newer than 5.
    (PeerMemoryNode("5.4.0-200-generic", "570.172.08", True, "doca"), "nvidia_peermem"),
    (PeerMemoryNode("10.0.1", "1000.1", True, "inbox"), "dmabuf"),
    # The open module of current drivers needs no OFED.
    (PeerMemoryNode("6.8.0-48-generic", "570.172.08", True, "inbox"), "dmabuf"),
    (PeerMemoryNode("6.8.0-48-generic", "570.172.08", True, "doca"), "dmabuf"),
    (PeerMemoryNode("6.8.0-48-generic", "570.172.08", False, "doca"), "nvidia_peermem"),
    (PeerMemoryNode("6.8.0-48-generic", "570.172.08", False, "inbox"), ""),
    # No method works without a driver.
    (PeerMemoryNode("6.8.0-48-generic", "", False, "mlnx"), ""),
]


@pytest.mark.parametrize(("node", "method"), CASES)
def test_the_first_possible_method_is_chosen(node: PeerMemoryNode, method: str) -> None:
    assert choose_method(node).method == method


@pytest.mark.parametrize("node", [node for node, method in CASES if not method and node.driver])
def test_if_no_method_is_possible_each_has_a_reason(node: PeerMemoryNode) -> None:
    choice = choose_method(node)
    assert set(choice.unmet) == {way.method for way in METHODS}
    for objections in choice.unmet.values():
        assert all(one in choice.reason for one in objections)
        assert objections


def test_a_missing_driver_is_reported_before_anything_else() -> None:
    assert choose_method(PeerMemoryNode("6.8.0", "", True, "mlnx")).reason == "the node has no NVIDIA driver"


def test_the_reason_of_a_choice_names_driver_kernel_and_network_drivers() -> None:
    assert (
        choose_method(PeerMemoryNode("6.8.0-48-generic", "570.172.08", True, "inbox")).reason
        == "driver 570.172.08 (open), kernel 6.8.0-48-generic, the distribution's drivers"
    )


def test_a_named_method_is_chosen_and_its_unmet_requirements_are_reported() -> None:
    node = PeerMemoryNode("6.8.0-48-generic", "570.172.08", True, "inbox")
    choice = choose_method(node, method="nvidia_peermem")
    assert choice.method == "nvidia_peermem"
    assert choice.unmet["nvidia_peermem"] == (
        "it needs MLNX_OFED or DOCA-OFED, the node has the distribution's drivers",
    )
    assert choose_method(node, method="dmabuf").unmet.get("dmabuf") is None
    assert choose_method(node, method="none").method == "none"


def test_a_platform_may_need_a_newer_kernel_for_dmabuf() -> None:
    node = PeerMemoryNode("6.8.0-48-generic", "580.95.05", True, "doca")
    assert choose_method(node, dmabuf_kernel="6.14").method == "nvidia_peermem"
    assert choose_method(node, dmabuf_kernel="6.8").method == "dmabuf"


@pytest.mark.parametrize(
    ("has", "comes", "driver", "open_module"),
    [
        # The installed driver, the driver that provisioning installs, and the expected node. From branch 560,
        # NVIDIA's packages have the open kernel module. An installed driver is kept.
        ("", "580.95.05", "580.95.05", True),
        ("", "560.1", "560.1", True),
        ("", "550.163", "550.163", False),
        ("", "", "", False),
        ("535.1", "580.95.05", "535.1", False),
    ],
)
def test_the_driver_after_provisioning_is_predicted(
    has: str, comes: str, driver: str, open_module: bool
) -> None:
    assert expect_driver(PeerMemoryNode("6.8.0", has, False, "inbox"), comes) == PeerMemoryNode(
        "6.8.0", driver, open_module, "inbox"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "peermem"}, "unknown method 'peermem'"),
        ({"dmabuf_kernel": "new"}, "'new' is not a version"),
    ],
)
def test_an_unknown_method_or_version_is_refused(arguments: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        choose_method(PeerMemoryNode("6.8.0", "570.1", True, "mlnx"), **arguments)


def test_an_unknown_ofed_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown OFED 'ofa'"):
        choose_method(PeerMemoryNode("6.8.0", "570.1", True, "ofa"))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("6.8.0-48-generic", (6, 8, 0)),
        ("418.88", (418, 88)),
        ("570.172.08-1", (570, 172, 8)),
        ("1:535.261.03-0ubuntu1", (535, 261, 3)),
        ("", ()),
        ("v6", ()),
    ],
)
def test_the_numbers_of_a_version_are_read(version: str, expected: tuple[int, ...]) -> None:
    assert version_numbers(version) == expected


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        # Packages with the driver's kernel module, and then packages without it.
        ("nvidia-418", True),
        ("nvidia-driver", True),
        ("nvidia-open", True),
        ("nvidia-open-570", True),
        ("nvidia-driver-570-open", True),
        ("nvidia-driver-570-server-open", True),
        ("nvidia-dkms-535", True),
        ("nvidia-dkms-535-server", True),
        ("nvidia-kernel-dkms", True),
        ("nvidia-kernel-open-dkms", True),
        ("nvidia-open-kernel-dkms", True),
        ("linux-modules-nvidia-570-open-6.8.0-48-generic", True),
        ("linux-modules-nvidia-570-server-open-generic", True),
        ("nvidia-driver-cuda", False),
        ("nvidia-driver-libs", False),
        ("nvidia-container-toolkit", False),
        ("nvidia-docker2", False),
        ("libnvidia-compute-570", False),
        ("nvidia-open-tools", False),
    ],
)
def test_packages_with_the_kernel_module_are_recognized(name: str, matches: bool) -> None:
    assert (DRIVER_PACKAGE.fullmatch(name) is not None) == matches


def facts(
    packages: dict[str, str] | None = None, modules: dict[str, str] | None = None, **stdout: str
) -> dict[str, Any]:
    """Return the facts of a node with packages, loaded modules by version, and the output of commands."""
    return {
        "kernel": "6.8.0-48-generic",
        "packages": {name: {"version": version, "held": True} for name, version in (packages or {}).items()},
        "modules": modules or {},
        "commands": {name: {"status": "ok", "stdout": text} for name, text in stdout.items()},
    }


QUERY = "0, GPU-ffff, 570.172.08, Enabled\n1, GPU-fffe, 570.172.08, Enabled\n"


@pytest.mark.parametrize(
    ("given", "driver", "open_module", "ofed"),
    [
        (facts(), "", False, "inbox"),
        (facts({"nvidia-open": "570.172.08-1"}), "570.172.08-1", True, "inbox"),
        # The loaded module counts. A newer one is installed, and is loaded at the next boot.
        (facts({"nvidia-open": "580.95.05-1"}, {"nvidia": "570.172.08"}), "570.172.08", True, "inbox"),
        (
            facts({"nvidia-open": "580.95.05-1"}, {"nvidia": ""}, nvidia_smi_query=QUERY),
            "570.172.08",
            True,
            "inbox",
        ),
        (facts({"nvidia-driver-535": "535.261.03-0ubuntu1"}), "535.261.03-0ubuntu1", False, "inbox"),
        (facts({"nvidia-418": "418.88-0lambda1"}), "418.88-0lambda1", False, "inbox"),
        # The licence that the module states counts more than the name of its package.
        (
            facts({"nvidia-driver": "570.1-0lambda1"}, nvidia_license="Dual MIT/GPL\n"),
            "570.1-0lambda1",
            True,
            "inbox",
        ),
        (facts({"nvidia-open": "570.1-1"}, nvidia_license="NVIDIA\n"), "570.1-1", False, "inbox"),
        (facts(ofed_info="MLNX_OFED_LINUX-4.4-1.0.0.0:\n"), "", False, "mlnx"),
        (facts(ofed_info="OFED-internal-25.07-0.9.7:\n"), "", False, "doca"),
        (facts({"doca-ofed": "3.1.0"}, ofed_info="MLNX_OFED_LINUX-25.07-0.9.7.0:\n"), "", False, "doca"),
        # The version of the loaded module is unknown.
        (
            facts({"nvidia-open": "570.1-1"}, {"nvidia": None}, nvidia_smi_query=QUERY),
            "570.172.08",
            True,
            "inbox",
        ),
        # The tools ran, and found nothing.
        (facts(nvidia_smi_query="No devices were found\n", ofed_info=""), "", False, "inbox"),
    ],
)
def test_driver_and_ofed_are_read_from_the_facts(
    given: dict[str, Any], driver: str, open_module: bool, ofed: str
) -> None:
    assert describe_node(given) == PeerMemoryNode("6.8.0-48-generic", driver, open_module, ofed)
