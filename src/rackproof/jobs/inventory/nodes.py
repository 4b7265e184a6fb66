"""Define nodes as the sources of a cluster describe them, check them, and join them by name. No I/O.

To adopt is to make an inventory of an existing cluster. The sources of ``rackproof adopt`` (Slurm, CSV,
NetBox, Ansible) return :class:`AdoptedSource`. The command joins them with :func:`join_sources`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address

from pydantic import Field

from rackproof.core.errors import RackproofError
from rackproof.core.records import Record
from rackproof.core.text import sanitize
from rackproof.nodes.slurm_listing import MOST_NODES

MOST_BYTES = 64 << 20
"""Largest size of a source's file. A list of 10,000 nodes is smaller."""
RESERVED_GROUPS = frozenset(
    {"all", "ungrouped", "gpu_nodes", "new-nodes", "slurm_controller", "slurm_login", "local", "cpu_nodes"}
)
"""Groups of every inventory, whose names no node and no rack may use."""
# The name of a host has up to ten labels, such as ``n07.rack1.example``, and 253 characters.
_LABEL = r"[A-Za-z0-9_-]{1,63}"
_NAME = re.compile(rf"(?=[A-Za-z0-9].{{0,252}}\Z){_LABEL}(?:\.{_LABEL}){{0,9}}")
_OLD_ADDRESS = re.compile(r"(?:[0-9]+|0x[0-9a-f]+)(?:\.(?:[0-9]+|0x[0-9a-f]+))*", re.I)
"""ssh reads such a text as an IPv4 address with octal numbers or missing parts, and not as a name."""
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "ansible_user": re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}"),
    "ansible_connection": re.compile(r"ssh|local"),
    "ansible_python_interpreter": re.compile(r"/[A-Za-z0-9_./+-]{1,200}|auto|auto_silent"),
    "reimage_serial": re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/ -]{0,63}"),
}
"""Values that a source may give for variables of a host. None of them is a template."""
BY_NAME = "its name"
"""Origin of a rack that only a node's name suggests. Every other origin is better."""
NETBOX_TOKEN = "NETBOX_TOKEN"  # noqa: S105  (the variable's name)
"""Environment variable with NetBox's token."""
SKU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
"""Name of a SKU (``h200``) or of its group (``sku_h200``)."""


class AdoptError(RackproofError):
    """A source that cannot be read, or that would make a wrong inventory. The message gives the remedy."""


class GpuHint(Record):
    """A text that may state a node's GPUs.

    ``where`` is its place, such as ``Gres`` or ``column gpu_model``.
    """

    where: str
    text: str


class AdoptedNode(Record):
    """A node of an existing cluster. Fields that no source states are empty.

    Attributes:
        name: The node's name in the inventory.
        source: The first source that names the node.
        address: The node's address, if it differs from its name.
        hostname: The node's own host name, if it differs from its name here.
        rack: The node's rack. ``rack_from`` is the origin of this fact, such as ``topology``.
        gpu_count: The number of GPUs. 0 means that the node has none, and None that the number is unknown.
            ``gpu_count_from`` is the origin of the number, such as ``Gres``.
        hints: Texts that may state the model of the GPUs, the most specific first.
        sku: The SKU that a source states.
        sizes: Numbers from Slurm, which are cpus, sockets, cores_per_socket, threads and real_memory_mb.
        in_slurm: Whether Slurm lists the node.
        variables: Other variables of the inventory, such as ansible_port or reimage_serial.
    """

    name: str
    source: str
    address: str = ""
    hostname: str = ""
    rack: str = ""
    rack_from: str = ""
    partitions: tuple[str, ...] = ()
    gpu_count: int | None = None
    gpu_count_from: str = ""
    hints: tuple[GpuHint, ...] = ()
    sku: str = ""
    sizes: dict[str, int] = Field(default={})
    in_slurm: bool = False
    variables: dict[str, str | int | bool] = Field(default={})


class AdoptedSource(Record):
    """The nodes of one source, the host of slurmctld and its address if known, and remarks."""

    nodes: tuple[AdoptedNode, ...]
    controller: str = ""
    controller_address: str = ""
    remarks: tuple[str, ...] = ()


def name_problem(name: str) -> str:
    """Return why a name cannot be a host of an inventory, or ""."""
    if not _NAME.fullmatch(name):
        return "a host's name has letters, digits, '-', '_' and dots only"
    return "an inventory has a group of this name" if name.lower() in RESERVED_GROUPS else ""


def address_problem(address: str) -> str:
    """Return why a text is not an address of a host, or ""."""
    try:
        ip_address(address)
    except ValueError:
        is_name = _NAME.fullmatch(address) and not _OLD_ADDRESS.fullmatch(address)
        return "" if is_name else "it is neither an address nor a name"
    return ""


def _host_of(node: AdoptedNode) -> str:
    """Return the address or name by which ssh reaches a node. An IP address is normalized."""
    text = node.address or node.name
    try:
        address = ip_address(text)
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)


def variable_fits(name: str, text: str) -> bool:
    """Return whether a text can be the value of a variable that adopt takes over. Others never fit.

    A template does not fit, because a source must not make Ansible run anything.
    """
    if name == "ansible_port":
        return re.fullmatch(r"[0-9]{1,5}", text) is not None and 0 < int(text) < 65_536
    if name in ("ansible_host", "reimage_bmc_address"):
        return not address_problem(text)
    pattern = _PATTERNS.get(name)
    return pattern is not None and pattern.fullmatch(text) is not None


def checked_variables(values: Mapping[str, str], where: str) -> dict[str, str | int | bool]:
    """Return the variables of a host. An empty text gives no variable.

    Args:
        values: The text of each variable, with names as in :func:`variable_fits`.
        where: The host and its source, for the message.

    Raises:
        AdoptError: A value is invalid.
    """
    for name, text in values.items():
        if text and not variable_fits(name, text):
            raise AdoptError(f"{where}: {sanitize(text, 60)!r} cannot be its {name}; correct it there")
    return {name: int(text) if name == "ansible_port" else text for name, text in values.items() if text}


def join_sources(sources: Sequence[AdoptedSource]) -> tuple[AdoptedNode, ...]:
    """Return each node once, with the facts of all sources. The first given source overrides later ones.

    If that source derived the rack from the node's name, the rack that a later source states is used.

    Raises:
        AdoptError: There are no nodes or too many. Two nodes share an address, serial number or BMC. Names
            differ only in case.
    """
    nodes: dict[str, AdoptedNode] = {}
    spelled: dict[str, str] = {}
    for node in (node for source in sources for node in source.nodes):
        spelling = spelled.setdefault(node.name.lower(), node.name)
        if spelling != node.name:
            raise AdoptError(f"{spelling} and {node.name} differ only in capitals: use one name for one host")
        nodes[node.name] = _joined(nodes[node.name], node) if node.name in nodes else node
    if not nodes:
        raise AdoptError(
            "no node is left to adopt: see the nodes that were left out, and name another source or filter"
        )
    if len(nodes) > MOST_NODES:
        raise AdoptError(f"{len(nodes):,} nodes: an inventory has up to {MOST_NODES:,}")
    _check_addresses(nodes.values())
    return tuple(nodes[name] for name in sorted(nodes))


def _joined(first: AdoptedNode, second: AdoptedNode) -> AdoptedNode:
    """Return the joined facts of two sources about a node. Those of ``first`` override the others."""
    texts = ("address", "hostname", "sku")
    update: dict[str, object] = {name: getattr(first, name) or getattr(second, name) for name in texts}
    if second.rack and (not first.rack or (first.rack_from == BY_NAME and second.rack_from != BY_NAME)):
        update |= {"rack": second.rack, "rack_from": second.rack_from}
    if first.gpu_count is None:
        update |= {"gpu_count": second.gpu_count, "gpu_count_from": second.gpu_count_from}
    update |= {
        "partitions": tuple(dict.fromkeys((*first.partitions, *second.partitions))),
        "hints": tuple(dict.fromkeys((*first.hints, *second.hints))),
        "sizes": {**second.sizes, **first.sizes},
        "in_slurm": first.in_slurm or second.in_slurm,
        "variables": {**second.variables, **first.variables},
    }
    return first.model_copy(update=update)


def _check_addresses(nodes: Iterable[AdoptedNode]) -> None:
    """Refuse two nodes with the same address and port, serial number or BMC.

    Raises:
        AdoptError: Two nodes have one of these in common.
    """
    owners: dict[tuple[str, object], str] = {}
    for node in nodes:
        for name, value in (
            ("address", _host_of(node)),
            ("serial number", str(node.variables.get("reimage_serial", ""))),
            ("address of a BMC", str(node.variables.get("reimage_bmc_address", ""))),
        ):
            port = node.variables.get("ansible_port", "") if name == "address" else ""
            owner = owners.setdefault((f"{name} {value}".lower(), port), node.name) if value else node.name
            if owner != node.name:
                raise AdoptError(
                    f"{owner} and {node.name} have the same {name} ({sanitize(value, 60)}): each host needs "
                    "its own; correct the source, or leave one out with --exclude"
                )


def select_nodes(nodes: Iterable[AdoptedNode], excluded: Sequence[str]) -> tuple[AdoptedNode, ...]:
    """Return the nodes that match none of some shell patterns, such as ``login*``."""
    return tuple(node for node in nodes if not any(fnmatchcase(node.name, pattern) for pattern in excluded))
