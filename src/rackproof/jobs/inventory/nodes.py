"""Define nodes as the sources of a cluster describe them, check them, and join them by name. No I/O.

To adopt is to make an inventory of an existing cluster. The modules of the sources of ``rackproof adopt``
(Slurm, CSV, NetBox, Ansible) return an :class:`AdoptedSource` each. The command joins these with
:func:`join_sources`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address

from pydantic import Field

from rackproof.core.errors import RackproofError
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.records import Record
from rackproof.core.text import sanitize
from rackproof.nodes.slurm_listing import MOST_NODES

MOST_BYTES = 64 << 20
"""Largest size in bytes of a source's file or output. A list of 10,000 nodes is smaller."""
RESERVED_GROUPS = frozenset(
    {"all", "ungrouped", "gpu_nodes", "new-nodes", "slurm_controller", "slurm_login", "local", "cpu_nodes"}
)
"""Names of groups that an inventory has or may have. No node and no rack may have such a name."""
# The name of a host has up to ten labels (``n07.rack1.example`` has three), and up to 253 characters.
_LABEL = r"[A-Za-z0-9_-]{1,63}"
_NAME = re.compile(rf"(?=[A-Za-z0-9].{{0,252}}\Z){_LABEL}(?:\.{_LABEL}){{0,9}}")
_OLD_ADDRESS = re.compile(r"(?:[0-9]+|0x[0-9a-f]+)(?:\.(?:[0-9]+|0x[0-9a-f]+))*", re.I)
"""Pattern of a text that ssh reads as an IPv4 address with octal numbers or missing parts, not as a name."""
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "ansible_user": re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}"),
    "ansible_connection": re.compile(r"ssh|local"),
    "ansible_python_interpreter": re.compile(r"/[A-Za-z0-9_./+-]{1,200}|auto|auto_silent"),
    "reimage_serial": re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/ -]{0,63}"),
}
"""Patterns of the values that a source may give to a host's variables. No template matches any of them."""
BY_NAME = "its name"
"""Origin of a rack that only a node's name suggests. Every other origin is more reliable."""
NETBOX_TOKEN = "NETBOX_TOKEN"  # noqa: S105  (the variable's name)
"""Environment variable with NetBox's token."""
SKU_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
"""Pattern of the name of a SKU (``h200``) or of its group (``sku_h200``)."""


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
        rack: The node's rack. ``rack_from`` is the origin of its name, such as ``topology``.
        partitions: The partitions of Slurm that contain the node.
        gpu_count: The number of GPUs. 0 means that the node has none, and None that the number is unknown.
            ``gpu_count_from`` is the origin of the number, such as ``Gres``.
        hints: Texts that may state the model of the GPUs, by source, the most specific of each source first.
        sku: The SKU that a source states.
        sizes: Slurm's numbers: cpus, sockets, cores_per_socket, threads and real_memory_mb.
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
    """The data of one source.

    Attributes:
        nodes: The nodes.
        controller: The host that nights will query for Slurm's states, or "" if the source states none. It is
            the host of slurmctld, this machine if its own scontrol is the source, or the first host of the
            group slurm_controller of an Ansible inventory.
        controller_address: The address of that host, or "".
        remarks: Texts about the parts of the source that were left out or are doubtful.
    """

    nodes: tuple[AdoptedNode, ...]
    controller: str = ""
    controller_address: str = ""
    remarks: tuple[str, ...] = ()


def name_problem(name: str) -> str:
    """Return why a text cannot be the name of a host in an inventory, or ""."""
    if not _NAME.fullmatch(name):
        return (
            "a host's name consists of letters, digits, '-' and '_', begins with a letter or digit, and has "
            "up to 253 characters and up to 10 parts of up to 63 between single dots"
        )
    return "an inventory has a group of this name" if name.lower() in RESERVED_GROUPS else ""


def address_problem(address: str) -> str:
    """Return why a text is neither the IP address nor the name of a host, or ""."""
    is_name = _NAME.fullmatch(address) and not _OLD_ADDRESS.fullmatch(address)
    return "" if is_name or _is_ip(address) else "it is neither an address nor a name"


def _host_of(node: AdoptedNode) -> str:
    """Return the address or name by which ssh reaches a node.

    An IP address is normalized, so that two spellings of one address are equal.
    """
    text = node.address or node.name
    try:
        address = ip_address(text)
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)


def variable_fits(name: str, text: str) -> bool:
    """Return whether a text can be the value of a variable.

    Return False for a variable that adopt does not take over. No template is accepted, because Ansible would
    evaluate it.
    """
    if name == "ansible_port":
        return re.fullmatch(r"[0-9]{1,5}", text) is not None and 0 < int(text) < 65_536
    if name in ("ansible_host", "reimage_bmc_address"):
        return not address_problem(text)
    pattern = _PATTERNS.get(name)
    return pattern is not None and pattern.fullmatch(text) is not None


def checked_variables(values: Mapping[str, str], where: str) -> dict[str, str | int | bool]:
    """Check the variables of a host, and return the variables whose text is not empty.

    Args:
        values: The text of each variable, with names as in :func:`variable_fits`.
        where: The host and its source, for the message.

    Raises:
        AdoptError: A value is invalid.
    """
    for name, text in values.items():
        if text and not variable_fits(name, text):
            raise AdoptError(f"{where}: {sanitize(text, 60)!r} cannot be its {name}; correct the source")
    return {name: int(text) if name == "ansible_port" else text for name, text in values.items() if text}


def join_sources(sources: Sequence[AdoptedSource]) -> tuple[AdoptedNode, ...]:
    """Return each node once, by name, with the data of all sources. An earlier source overrides later ones.

    A rack that a source only derived from the node's name is replaced by a rack that a later source states.
    Lists (partitions, hints) and mappings are joined.

    Raises:
        AdoptError: There are no nodes or too many, two nodes have the same address and port, serial number or
            BMC, or two names differ only in case.
    """
    nodes: dict[str, AdoptedNode] = {}
    spelled: dict[str, str] = {}
    for node in (node for source in sources for node in source.nodes):
        spelling = spelled.setdefault(node.name.lower(), node.name)
        if spelling != node.name:
            raise AdoptError(
                f"{spelling} and {node.name} differ only in upper and lower case: use one name for one host"
            )
        nodes[node.name] = _joined(nodes[node.name], node) if node.name in nodes else node
    if not nodes:
        raise AdoptError(
            "no node is left to adopt: see the nodes that were left out, and name another source or filter"
        )
    if len(nodes) > MOST_NODES:
        raise AdoptError(
            f"{len(nodes):,} nodes: an inventory has up to {MOST_NODES:,}; choose fewer with --exclude or "
            "another filter"
        )
    _check_addresses(nodes.values())
    return tuple(nodes[name] for name in sorted(nodes))


def _joined(first: AdoptedNode, second: AdoptedNode) -> AdoptedNode:
    """Return a node with the data of two sources. ``first`` overrides, except a rack from a node's name."""
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
    """Check that no two nodes have the same address and port, serial number or BMC.

    Raises:
        AdoptError: Two nodes have one of these in common.
    """
    owners: dict[tuple[str, object], str] = {}
    for node in nodes:
        for name, value in (
            ("address", _host_of(node)),
            ("serial number", str(node.variables.get("reimage_serial", ""))),
            ("BMC address", str(node.variables.get("reimage_bmc_address", ""))),
        ):
            port = node.variables.get("ansible_port", "") if name == "address" else ""
            owner = owners.setdefault((f"{name} {value}".lower(), port), node.name) if value else node.name
            if owner != node.name:
                raise AdoptError(
                    f"{owner} and {node.name} have the same {name} ({sanitize(value, 60)}): each host needs "
                    "its own; correct the source, or leave one out with --exclude"
                )


def alias_remarks(nodes: Iterable[AdoptedNode]) -> list[str]:
    """Return a remark on nodes that may be one machine under two names, or no remark.

    Such a node's name, own host name or address is that of another node, with or without a domain.
    """
    owners: dict[str, dict[str, set[str]]] = {}
    for node in nodes:
        # Behind one address, each port may be that of another machine.
        address = "" if "ansible_port" in node.variables or _is_ip(node.address) else node.address
        for text in filter(None, (node.name, node.hostname, address)):
            label, _, domain = text.lower().rstrip(".").partition(".")
            owners.setdefault(label, {}).setdefault(domain, set()).add(node.name)
    names: set[str] = set()
    for owners_of_domain in owners.values():
        for domain, members in owners_of_domain.items():
            # A name without a domain may be that of any domain.
            same = members | owners_of_domain.get("", set()) if domain else members
            names |= same if len(same) > 1 else set()
    if not names:
        return []
    return [
        f"some of {sanitize(compress_hostlist(names), 200)} may be one machine under two names, which would "
        "be judged as two nodes: use one name in all sources, or leave one out with --exclude"
    ]


def differing_gpu_remarks(sources: Iterable[AdoptedSource]) -> list[str]:
    """Return a remark on nodes for which the sources state several numbers of GPUs, or no remark."""
    first: dict[str, AdoptedNode] = {}
    differing: dict[str, str] = {}
    for node in (node for source in sources for node in source.nodes if node.gpu_count is not None):
        earlier = first.setdefault(node.name, node)
        if earlier.gpu_count != node.gpu_count:
            differing.setdefault(node.name, " and ".join(map(_gpu_count_text, (earlier, node))))
    if not differing:
        return []
    return [
        f"sources differ about the number of GPUs of {sanitize(compress_hostlist(differing), 200)} "
        f"({next(iter(differing.values()))}): the first source counts; correct the other one"
    ]


def _gpu_count_text(node: AdoptedNode) -> str:
    """Return the number of a node's GPUs after its origin, such as ``Gres 8``."""
    return f"{sanitize(node.gpu_count_from or node.source, 60)} {node.gpu_count}"


def _is_ip(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def select_nodes(nodes: Iterable[AdoptedNode], excluded: Sequence[str]) -> tuple[AdoptedNode, ...]:
    """Return the nodes whose names match none of the shell patterns in ``excluded``, such as ``login*``."""
    return tuple(node for node in nodes if not any(fnmatchcase(node.name, pattern) for pattern in excluded))
