"""Render an adopted cluster as the files of an inventory. No I/O.

``rackproof adopt`` calls :func:`build_cluster` and then :func:`render_files`, and writes the returned texts
with :mod:`rackproof.jobs.inventory.folder`. The files are hosts.yml, group_vars/all.yml, and a file with the
variables of each SKU in group_vars. For a SKU that Rackproof does not ship, this file is a skeleton, with
which no node passes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count

import yaml
from pydantic import Field

from rackproof.core.hostlist import compress_hostlist
from rackproof.core.records import Record
from rackproof.core.text import sanitize
from rackproof.jobs.inventory.nodes import RESERVED_GROUPS, AdoptedNode
from rackproof.jobs.inventory.sku_guess import PREFIX, ShippedSku, SkuGuess
from rackproof.jobs.inventory.slurm_source import THIS_MACHINE

_PARTITION = "partition_"
"""Prefix of the group of a partition."""
# Text that needs no quotes in YAML, if YAML does not read it as another type.
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
_RACKS_LINE = re.compile(r"(?m)^slurm_racks:.*$")


class AdoptedCluster(Record):
    """The contents of an inventory: nodes and their SKUs, groups, and the host to query for Slurm's states.

    Attributes:
        nodes: The nodes.
        guesses: The SKU of each node.
        racks: The nodes of each rack's group.
        partitions: The nodes of each partition's group.
        controller: The host that returns Slurm's states, or "" without Slurm or if the host is unknown.
        controller_address: The address of this host, if a source states it.
        controller_variables: Other variables of this host, such as ansible_user.
    """

    nodes: tuple[AdoptedNode, ...]
    guesses: dict[str, SkuGuess]
    racks: dict[str, tuple[str, ...]]
    partitions: dict[str, tuple[str, ...]]
    controller: str = ""
    controller_address: str = ""
    controller_variables: dict[str, str | int | bool] = Field(default={})

    @property
    def has_slurm(self) -> bool:
        """Return whether Slurm lists any of the nodes, so that the own host names of these are known."""
        return any(node.in_slurm for node in self.nodes)

    def skus(self) -> dict[str, list[str]]:
        """Return the nodes of each SKU, by the SKU's group. Nodes without GPUs are left out."""
        hosts: dict[str, list[str]] = {}
        for node in self.nodes:
            if group := self.guesses[node.name].group:
                hosts.setdefault(group, []).append(node.name)
        return dict(sorted(hosts.items()))


def build_cluster(
    nodes: Sequence[AdoptedNode],
    guesses: Mapping[str, SkuGuess],
    controller: str,
    controller_address: str = "",
) -> AdoptedCluster:
    """Return the cluster with the groups of its nodes.

    The controller is no node of the cluster, unless it has or may have GPUs, Slurm lists it as a node, or it
    is the only host.

    Args:
        nodes: The nodes of all sources.
        guesses: The SKU of each node, by its name.
        controller: The host that nights will query for Slurm's states (:class:`AdoptedSource`), or "".
        controller_address: The address of this host, or "".
    """
    nodes, address, variables = _without_controller(nodes, guesses, controller, controller_address)
    taken_names = {node.name for node in nodes} | RESERVED_GROUPS | {controller}
    groups = _rack_groups({node.rack for node in nodes}, taken_names)
    racks: dict[str, list[str]] = {}
    partitions: dict[str, list[str]] = {}
    for node in nodes:
        racks.setdefault(groups[node.rack], []).append(node.name)
        # Several partitions may have one group: a.b and a-b.
        for group in {_PARTITION + (_slug(partition) or "unnamed") for partition in node.partitions}:
            partitions.setdefault(group, []).append(node.name)
    return AdoptedCluster(
        nodes=tuple(nodes),
        guesses={node.name: guesses[node.name] for node in nodes},
        racks={name: tuple(racks[name]) for name in sorted(racks)},
        partitions={name: tuple(partitions[name]) for name in sorted(partitions)},
        controller=controller,
        controller_address=address,
        controller_variables=variables,
    )


def _without_controller(
    nodes: Sequence[AdoptedNode], guesses: Mapping[str, SkuGuess], controller: str, address: str
) -> tuple[Sequence[AdoptedNode], str, dict[str, str | int | bool]]:
    """Return the nodes without a controller that is no node, and the controller's address and variables.

    Address and variables are empty if the controller is a node, because its line in the rack has them.
    ``address`` is the address that a source states for the controller itself.
    """
    host = next((node for node in nodes if node.name == controller), None)
    if host is None:
        return nodes, address, {}
    if host.in_slurm or guesses[controller].group or len(nodes) == 1:
        return nodes, "", {}
    return [node for node in nodes if node is not host], host.address or address, host.variables


def _slug(text: str) -> str:
    """Return a text in the form of a group's name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:60]


def _rack_groups(racks: Collection[str], taken: Collection[str]) -> dict[str, str]:
    """Return a group for each rack.

    If names of racks differ only in characters that are not allowed in groups (``Süd`` and ``Sød``), all but
    the first get a number.
    """
    groups: dict[str, str] = {}
    for rack in sorted(racks):
        name = _group_name(rack, "rack-", taken)
        # With the prefix, the name may be a host's: rack 7, and node rack-7.
        used = {*groups.values(), *taken}
        numbered = (f"{name}-{number}" for number in count(2))
        groups[rack] = next(candidate for candidate in chain([name], numbered) if candidate not in used)
    return groups


def _group_name(text: str, prefix: str, taken: Collection[str]) -> str:
    """Return the name of a group for a text.

    The name gets the prefix if it is taken, begins like another kind of group, or begins with a digit.
    """
    name = _slug(text) or "unnamed"
    is_free = name not in taken and not name.startswith((PREFIX, _PARTITION)) and not name[0].isdigit()
    return name if is_free else f"{prefix}{name}"


def render_files(
    cluster: AdoptedCluster, shipped: Sequence[ShippedSku], shipped_all: str, version: str
) -> dict[str, str]:
    """Return the files of the inventory's folder, by their names.

    Args:
        cluster: The cluster.
        shipped: The SKUs that Rackproof ships.
        shipped_all: The text of the shipped group_vars/all.yml.
        version: Rackproof's version, for the headings of the copied files.
    """
    shipped_by_group = {sku.group: sku for sku in shipped}
    files = {
        "hosts.yml": "\n".join(_hosts_lines(cluster, shipped_by_group)) + "\n",
        "group_vars/all.yml": _all_vars(cluster, shipped_all),
    }
    for group, hosts in cluster.skus().items():
        if group not in shipped_by_group:
            files[f"group_vars/{group}.yml"] = _skeleton(cluster, hosts)
            continue
        for needed in filter(None, (group, shipped_by_group[group].parent)):
            origin = f"# From Rackproof {version}, inventory/group_vars/{needed}.yml."
            files[f"group_vars/{needed}.yml"] = shipped_by_group[needed].text.replace(
                "---\n", f"---\n{origin}\n", 1
            )
    return files


def _hosts_lines(cluster: AdoptedCluster, shipped: Mapping[str, ShippedSku]) -> Iterator[str]:
    """Yield the lines of hosts.yml."""
    node_of_name = {node.name: node for node in cluster.nodes}
    yield "---"
    yield "# Written by `rackproof adopt`. You may change it: adopt keeps your changes (docs/using/adopt.md)."
    yield "all:"
    yield "  children:"
    yield "    # Racks: nodes that share a fabric."
    for rack, hosts in cluster.racks.items():
        yield f"    {_scalar(rack)}:"
        yield "      hosts:"
        yield from (
            f"        {_host_line(node_of_name[name], is_checked=cluster.has_slurm)}" for name in hosts
        )
    if cluster.partitions:
        yield "    # Partitions of Slurm: for -l."
    for partition, hosts in cluster.partitions.items():
        yield f"    {partition}:"
        yield from _members(hosts, cluster.racks)
    yield "    # SKUs: the models of nodes. A file for each in group_vars/ has its expectations."
    skus = cluster.skus()
    tops = _with_parents(skus, shipped)
    for group, slices in tops.items():
        yield f"    {group}:"
        if not slices and not skus.get(group):
            yield "      hosts: {}"
        yield from _members(skus.get(group, ()), cluster.racks, slices)
    yield from (
        f"    {group}:\n" + "\n".join(_members(skus[group], cluster.racks))
        for slices in tops.values()
        for group in slices
    )
    yield "    # Nodes on their way into service."
    yield "    new-nodes: {}"
    yield "    # Nodes that are judged."
    yield "    gpu_nodes:"
    yield "      children:"
    yield from (f"        {group}:" for group in (*tops, "new-nodes"))
    yield from _controller_lines(cluster)
    yield "    slurm_login: {}"


def _with_parents(skus: Iterable[str], shipped: Mapping[str, ShippedSku]) -> dict[str, list[str]]:
    """Return the groups below gpu_nodes, each with the groups of its slices."""
    tops: dict[str, list[str]] = {}
    for group in skus:
        parent = shipped[group].parent if group in shipped else ""
        if parent:
            tops.setdefault(parent, []).append(group)
        else:
            tops.setdefault(group, [])
    return dict(sorted(tops.items()))


def _members(
    hosts: Collection[str], racks: Mapping[str, Collection[str]], children: Collection[str] = ()
) -> Iterator[str]:
    """Yield the lines of a group's members: child groups, racks that are wholly in it, and other hosts."""
    names = set(hosts)
    whole_racks = [rack for rack, nodes in racks.items() if names.issuperset(nodes)]
    other_hosts = names.difference(*(racks[rack] for rack in whole_racks))
    if whole_racks or children:
        yield "      children:"
        yield from (f"        {_scalar(name)}:" for name in (*children, *whole_racks))
    if other_hosts:
        yield "      hosts:"
        yield from (f"        {_scalar(name)}:" for name in hosts if name in other_hosts)


def _host_line(node: AdoptedNode, *, is_checked: bool) -> str:
    """Return a host with its variables: ``n07: {ansible_host: 10.0.0.7}``.

    ``is_checked`` means that nights compare each host's own name with its name in the inventory, because
    Slurm states the names. A node that Slurm does not list then gets ``validate_hostname: ""``, which
    switches the comparison off.
    """
    values: dict[str, str | int | bool] = {"ansible_host": node.address} if node.address else {}
    if node.hostname or (is_checked and not node.in_slurm):
        values["validate_hostname"] = node.hostname
    return _line_with_variables(node.name, values | node.variables)


def _line_with_variables(name: str, values: Mapping[str, str | int | bool]) -> str:
    """Return a host's name with its variables in one line."""
    if not values:
        return f"{_scalar(name)}:"
    inner = ", ".join(f"{variable}: {_scalar(value)}" for variable, value in values.items())
    return f"{_scalar(name)}: {{{inner}}}"


def _scalar(value: str | int | bool) -> str:
    """Return a value as YAML in one line. Text is quoted if YAML might read it in another way."""
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = _PLAIN.fullmatch(value) is not None and value[0].isalnum() and yaml.safe_load(value) == value
    return value if is_plain else json.dumps(value)


def _controller_lines(cluster: AdoptedCluster) -> Iterator[str]:
    """Yield the lines of the group with the host that nights query for Slurm's states."""
    yield "    # The host that is queried for the states of Slurm."
    if not cluster.controller:
        yield "    slurm_controller: {}"
        return
    yield "    slurm_controller:"
    yield "      hosts:"
    if cluster.controller == THIS_MACHINE:
        # This machine is queried without ssh, so it needs no address.
        yield f"        {THIS_MACHINE}:"
        yield "          ansible_connection: local"
        yield '          ansible_python_interpreter: "{{ ansible_playbook_python }}"'
        return
    address = {"ansible_host": cluster.controller_address} if cluster.controller_address else {}
    yield f"        {_line_with_variables(cluster.controller, address | cluster.controller_variables)}"


def _all_vars(cluster: AdoptedCluster, shipped_all: str) -> str:
    """Return the shipped variables of all hosts, with ``slurm_racks`` set to the racks of nodes in Slurm.

    If Slurm lists none of the nodes, ``validate_hostname`` is added, which switches the check of host names
    off.
    """
    of_slurm = {node.name for node in cluster.nodes if node.in_slurm}
    racks = [rack for rack, hosts in cluster.racks.items() if of_slurm.intersection(hosts)]
    line = f"slurm_racks: [{', '.join(_scalar(rack) for rack in racks)}]"
    text, count = _RACKS_LINE.subn(line, shipped_all)
    text = text if count else f"{shipped_all.rstrip()}\n{line}\n"
    return text if cluster.has_slurm else text + _UNCHECKED_NAMES


_UNCHECKED_NAMES = """
# The nodes' own host names are unknown, and not checked. Without this line they must be the names here.
validate_hostname: ""
"""
# The variable of each size that Slurm states.
_SIZES = {
    "cpus": "slurm_sku_cpus",
    "sockets": "slurm_sku_sockets",
    "cores_per_socket": "slurm_sku_cores_per_socket",
    "threads": "slurm_sku_threads",
    "real_memory_mb": "slurm_sku_real_memory_mb",
}


# These comments contain no example numbers, because an operator might keep the numbers of another GPU.
_SKELETON_LINES = (
    "# bench_sku_gpu_name: NAME   # words of the product's name that nvidia-smi -L shows",
    "bench_sku_references: []",
    "validate_expect:",
    "  skeleton: true",
    "  # nvlinks: NUMBER          # of each GPU, up",
    "  # fabric: true             # with NVSwitches",
    "  # power_limit_w: WATTS     # of each GPU",
    "  # ports: NUMBER            # of network cards. Without it, a port that was never active is unproven",
    "  # port_gbps: GBPS          # rate of each of these ports",
    "  # port_layer: LAYER        # InfiniBand or Ethernet, if the node also has ports of other networks",
)


def _skeleton(cluster: AdoptedCluster, hosts: Sequence[str]) -> str:
    """Return the file of an unknown SKU, with the sources' values and no bounds. None of its nodes passes.

    The SKU gets the name of the first node.
    """
    guesses = [cluster.guesses[name] for name in hosts]
    guess = guesses[0]
    unsure = dict.fromkeys(text for sku_guess in guesses for text in sku_guess.unsure)
    lines = [
        "---",
        "# UNPROVEN: Rackproof ships no such SKU. These are the sources' values, without any bound. While",
        "# `skeleton` is true, no node of it passes. docs/using/adopt.md describes how to complete it.",
        f"# Nodes: {sanitize(compress_hostlist(hosts), 100)}",
        *(
            f"# From: {sanitize(why, 110)}"
            for why in list(dict.fromkeys(sku_guess.why for sku_guess in guesses))[:5]
        ),
        *(f"# Not sure: {sanitize(text, 100)}" for text in unsure),
        f"bench_sku: {_scalar(guess.name)}",
    ]
    lines.append(_gpus_line(sorted({sku_guess.gpus for sku_guess in guesses if sku_guess.gpus})))
    lines += _SKELETON_LINES
    return "\n".join([*lines, *_size_lines(cluster, hosts)]) + "\n"


def _gpus_line(counts: Sequence[int]) -> str:
    """Return the line with the number of GPUs of an unknown SKU's nodes, from their different numbers.

    If the nodes differ, or none states the number, the line is a comment.
    """
    if not counts:
        return "# bench_sku_gpus: NUMBER     # GPUs of a node"
    if len(counts) > 1:
        return f"# bench_sku_gpus: {counts[0]} to {counts[-1]}: its nodes differ"
    return f"bench_sku_gpus: {counts[0]}"


def _size_lines(cluster: AdoptedCluster, hosts: Collection[str]) -> Iterator[str]:
    """Yield a line for each size that Slurm states for an unknown SKU's nodes (:data:`_SIZES`).

    If the nodes differ, the line is a comment.
    """
    sizes = [node.sizes for node in cluster.nodes if node.name in set(hosts)]
    for key, variable in _SIZES.items():
        values = sorted({size[key] for size in sizes if key in size})
        if len(values) == 1:
            yield f"{variable}: {values[0]}"
        elif values:
            yield f"# {variable}: {values[0]} to {values[-1]}: its nodes differ"
