"""Write the list of an NVLink domain's nodes for nvidia-imex.

NVIDIA's service IMEX shares GPU memory between the nodes of a domain. Role imex calls
:func:`render_nodes_config` through the filter ``imex_nodes_config``, and writes the same file on all nodes.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping


class ImexError(ValueError):
    """Nodes of a domain that cannot be listed. The text names a node and the remedy."""


def resolve_address(name: str) -> str:
    """Return the first IPv4 address that this machine finds for a name, or ""."""
    try:
        addresses = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    return str(addresses[0][4][0]) if addresses else ""


def render_nodes_config(addresses: Mapping[str, str], resolve: Callable[[str], str] = resolve_address) -> str:
    """Return the text of nodes_config.cfg, with one address per line, in the order of the nodes.

    Args:
        addresses: The address of each node, or a name for it, in the order of the inventory.
        resolve: A function that returns the address of a name, or "".

    Raises:
        ImexError: There are no nodes, a node lacks an address for the other nodes, or two nodes share an
            address.
    """
    if not addresses:
        raise ImexError("the domain has no nodes: see imex_domains")
    owners: dict[str, str] = {}
    for node, wanted_address in addresses.items():
        address = _address(node, wanted_address, resolve)
        if owner := owners.get(address):
            raise ImexError(f"{owner} and {node} have the same address {address}: see imex_address")
        owners[address] = node
    return "".join(f"{address}\n" for address in owners)


def _address(node: str, wanted: str, resolve: Callable[[str], str]) -> str:
    """Return a node's address: the wanted one or, if that is a name, the address of the name.

    Raises:
        ImexError: There is no address, or only one that other nodes cannot use (loopback or ``0.0.0.0``).
    """
    for text in (wanted, resolve(wanted)):
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        if address.is_loopback or address.is_unspecified:
            raise ImexError(f"{node}: no other node reaches it at {address} ({wanted}): set its imex_address")
        return str(address)
    raise ImexError(f"{node}: {wanted!r} leads to no address on this machine: set its imex_address")
