"""Test the list of an NVLink domain's nodes that role imex writes for nvidia-imex (nodes/imex.py).

The service nvidia-imex lets the nodes of a domain, such as an NVL72, share GPU memory. Each node needs an
address that the others reach. Otherwise an error names the node.
"""

from __future__ import annotations

import pytest

from rackproof.nodes.imex import ImexError, render_nodes_config, resolve_address

NAMES = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3.example.org": "fd00::3", "home": "127.0.1.1"}


def resolve(name: str) -> str:
    """Return the address of a name of NAMES, or ""."""
    return NAMES.get(name, "")


@pytest.mark.parametrize(
    ("addresses", "text"),
    [
        ({"n1": "n1", "n2": "n2"}, "10.0.0.1\n10.0.0.2\n"),
        ({"n2": "n2", "n1": "10.9.0.1"}, "10.0.0.2\n10.9.0.1\n"),
        ({"n3": "n3.example.org", "n4": "fd00::4"}, "fd00::3\nfd00::4\n"),
        ({"n1": "n1"}, "10.0.0.1\n"),
    ],
)
def test_a_domain_is_a_list_of_addresses_in_the_inventorys_order(
    addresses: dict[str, str], text: str
) -> None:
    assert render_nodes_config(addresses, resolve) == text


@pytest.mark.parametrize(
    ("addresses", "words"),
    [
        ({}, "imex_domains"),
        ({"n1": "n1", "n2": "nowhere"}, "n2: 'nowhere' leads to no address"),
        ({"n1": ""}, "n1: '' leads to no address"),
        ({"n1": "n1", "n2": "home"}, "n2: no other node reaches it at 127.0.1.1 (home)"),
        ({"n1": "127.9.0.1"}, "n1: no other node reaches it"),
        ({"n1": "::1"}, "n1: no other node reaches it"),
        ({"n1": "n1", "n2": "10.0.0.1"}, "n1 and n2 have the same address"),
        ({"n1": "10.0.0.300"}, "n1: '10.0.0.300' leads to no address"),
    ],
)
def test_a_domain_with_a_node_that_the_others_could_not_reach_is_an_error(
    addresses: dict[str, str], words: str
) -> None:
    with pytest.raises(ImexError) as error:
        render_nodes_config(addresses, resolve)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "address"), [("127.0.0.1", "127.0.0.1"), ("no-such-host.invalid", ""), ("a" * 80, "")]
)
def test_a_name_that_cannot_be_resolved_has_no_address(name: str, address: str) -> None:
    assert resolve_address(name) == address
