"""Test on the test rack how provision.yml sets up IMEX, the service that shares GPU memory between nodes.

All nodes of an NVLink domain (here, a rack) need the same list of addresses, and IMEX in the version of the
driver. The tests show that provisioned nodes have them, that a node whose list differs is mended, and that a
node without a domain is refused before it is drained.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from testrack.tests.on_rack import Command, Done, changes, play, state_in_slurm

pytestmark = [pytest.mark.rack, pytest.mark.slow]
LIST = "/etc/nvidia-imex/nodes_config.cfg"


def domain_of(rack: Command, node: str) -> list[str]:
    """Return a node's state of IMEX, its version, the driver's version, the channels and the list."""
    words = (
        "nvidia-imex-ctl -q",
        "nvidia-imex --version | sed 's/.*: //'",
        "cat /sys/module/nvidia/version || modinfo -F version nvidia",
        "ls /dev/nvidia-caps-imex-channels",
        f"paste -sd, {LIST}",
    )
    return [rack(node, f"{{ {word}; }} 2>&1").stdout.strip() for word in words]


def provision(root: Path, nodes: list[str], *words: str) -> Done:
    return play(root, "provision.yml", nodes, *words, timeout=900)


def test_nodes_of_a_domain_have_one_list_and_a_node_that_differs_is_mended(
    root: Path, rack: Command, nodes: list[str]
) -> None:
    lead, other = nodes
    state, version, driver, channels, listed = domain_of(rack, lead)
    assert (state, channels) == ("READY", "channel0")
    assert version == driver
    # The list has all 18 nodes of the inventory, also those that do not run and those that -l leaves out.
    assert listed.count(",") == 17
    assert domain_of(rack, other) == [state, version, driver, channels, listed]
    # Without the third address, the node would not share memory with that node.
    assert rack(other, f"sed -i '3d' {LIST} && systemctl restart nvidia-imex").returncode == 0
    done = provision(root, nodes, "--check", "--diff")
    assert done.returncode == 0, done.stdout
    assert changes(done, other) >= 1, done.stdout
    assert changes(done, lead) == 0, done.stdout
    assert f"+{listed.split(',')[2]}" in done.stdout
    assert domain_of(rack, other)[4] != listed
    done = provision(root, nodes)
    assert done.returncode == 0, done.stdout
    assert domain_of(rack, other) == [state, version, driver, channels, listed]


def test_a_node_of_no_domain_is_refused_before_it_is_drained(
    root: Path, rack: Command, nodes: list[str]
) -> None:
    done = provision(root, nodes[1:], "-e", '{"imex_domains": ["another-rack"]}')
    assert done.returncode == 2
    assert f"{nodes[1]}: it is in none of the groups that are an NVLink domain" in " ".join(
        done.stdout.split()
    )
    assert state_in_slurm(rack, nodes[1]).startswith("idle")
    assert "Nothing was changed" in done.stdout
