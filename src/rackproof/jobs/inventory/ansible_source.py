"""Read nodes from an Ansible inventory, or from the saved JSON of ``ansible-inventory --list``.

``rackproof adopt --ansible`` calls :func:`read_ansible_nodes`. Racks, SKUs and GPUs are read from variables
and from names of groups. Only variables of the connection, serial number and BMC are taken over::

    {"_meta": {"hostvars": {"n01": {"ansible_host": "10.0.0.1"}}}, "rack1": {"hosts": ["n01"]}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rackproof.core.child_environment import environment_of_written_inventory
from rackproof.core.text import amount, sanitize
from rackproof.core.untrusted import as_mapping
from rackproof.jobs.inventory.csv_source import COLUMNS, stated_gpu_count
from rackproof.jobs.inventory.lint import Inventory, list_inventory, read_inventory
from rackproof.jobs.inventory.nodes import (
    BY_NAME,
    RESERVED_GROUPS,
    SKU_NAME,
    AdoptedNode,
    AdoptedSource,
    AdoptError,
    GpuHint,
    name_problem,
    variable_fits,
)
from rackproof.jobs.inventory.read_file import read_text
from rackproof.jobs.inventory.sku_guess import model_of_text
from rackproof.jobs.inventory.slurm_source import rack_of_name

_RACK_GROUP = re.compile(r"(?:.*[-_])?(?:rack|row|r|cab|pod)[-_]?[0-9]{1,4}", re.I)
"""Pattern of the names of groups that are racks, such as ``rack1``, ``dc2-row-3`` or ``r01``."""


_GPU_GROUP = re.compile(r"(?<![a-z])(?<!no[-_])(?<!non[-_])gpus?(?![a-z])", re.I)
"""Pattern of the names of groups whose hosts may have GPUs, even if nothing names their model."""


def read_ansible_nodes(path: Path) -> AdoptedSource:
    """Return the hosts of an inventory, without localhost and hosts with unusable names.

    If the inventory states GPUs for any host, a host gets 0 GPUs if no variable and no group names any for
    it. If the inventory states none, only a host whose single group is slurm_controller gets 0 GPUs.

    Args:
        path: Output of ``ansible-inventory --list`` (a file ``*.json``), or any inventory that Ansible reads.

    Raises:
        AdoptError: The path is neither of these, or contains no such host.
        InventoryError: Ansible cannot read the inventory.
    """
    inventory = _load_inventory(path)
    remarks: list[str] = []
    not_taken: dict[str, list[str]] = {}
    nodes = []
    groups = _groups_by_host(inventory)
    for name in sorted(inventory.hosts):
        if problem := name_problem(name):
            remarks.append(f"left out: host {sanitize(name, 80)!r} of {path}: {problem}")
        elif name != "localhost":
            nodes.append(_node(name, as_mapping(inventory.hosts[name]), groups.get(name, ()), not_taken))
    if not nodes:
        raise AdoptError(f"{path} has no hosts: is it what `ansible-inventory --list` prints?")
    if any(map(_names_gpus, nodes)):
        nodes = [_without_gpus(node, groups.get(node.name, ())) for node in nodes]
    else:
        nodes = [
            node.model_copy(update={"gpu_count": 0, "gpu_count_from": "group slurm_controller"})
            if _only_controls(groups.get(node.name, ()))
            else node
            for node in nodes
        ]
    if not_taken:
        remarks.append(_not_taken_text(not_taken))
    return AdoptedSource(nodes=tuple(nodes), controller=_controller(inventory), remarks=tuple(remarks))


_NO_GPU = "no variable or group of it names a GPU"


def _names_gpus(node: AdoptedNode) -> bool:
    """Return whether an inventory states a SKU, a number of GPUs or a GPU model for a host."""
    return bool(node.sku or node.gpu_count) or any(model_of_text(hint.text) for hint in node.hints)


def _without_gpus(node: AdoptedNode, groups: Sequence[str]) -> AdoptedNode:
    """Return a host with 0 GPUs if no variable and no group names any, or else unchanged.

    In an inventory that states GPUs for other hosts, such hosts are, for example, file servers and login
    hosts.
    """
    if _names_gpus(node) or any(map(_GPU_GROUP.search, groups)):
        return node
    return node.model_copy(update={"gpu_count": 0, "gpu_count_from": _NO_GPU})


def _only_controls(groups: Collection[str]) -> bool:
    """Return whether a host's only group, apart from ``all``, is the group of the Slurm controller."""
    return set(groups) - {"all"} == {"slurm_controller"}


def _not_taken_text(not_taken: Mapping[str, Sequence[str]]) -> str:
    """Return the remark on variables that are not taken over, with the number of hosts of each."""
    names_text = ", ".join(
        f"{variable} ({amount(len(hosts), 'host')})" for variable, hosts in sorted(not_taken.items())[:12]
    )
    more = f" and {len(not_taken) - 12} more" if len(not_taken) > 12 else ""
    return f"variables that are not taken over: {names_text}{more}; add those that you need"


def _load_inventory(path: Path) -> Inventory:
    """Return an inventory, from its saved JSON (a file ``*.json``) or from Ansible."""
    if not path.is_file() or path.suffix != ".json":
        inventory, mistakes = list_inventory(path, environment_of_written_inventory())
        if mistakes and not inventory.hosts:
            raise AdoptError(f"{mistakes[0].where}: {mistakes[0].what}")
        return inventory
    try:
        listed = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise AdoptError(f"{path} is not JSON: {sanitize(error, 150)}") from None
    if not isinstance(listed, Mapping) or not isinstance(listed.get("_meta"), Mapping):
        raise AdoptError(f"{path} is not output of `ansible-inventory --list`: it has no _meta")
    if problem := _shape_problem(listed):
        raise AdoptError(f"{path} is not output of `ansible-inventory --list`: {problem}")
    return read_inventory(listed, {})


def _shape_problem(listed: Mapping[str, Any]) -> str:
    """Return why JSON is not output of ``ansible-inventory --list``, or ""."""
    for name, group in listed.items():
        for part in ("hosts", "children") if name != "_meta" else ():
            names = as_mapping(group).get(part, [])
            if not isinstance(names, list) or not all(isinstance(text, str) for text in names):
                return f"{part} of {sanitize(name, 60)} is not a list of names"
    return "" if isinstance(listed["_meta"].get("hostvars", {}), Mapping) else "hostvars is not a mapping"


def _controller(inventory: Inventory) -> str:
    """Return the first host of the group slurm_controller, which nights query for Slurm's states, or ""."""
    hosts = inventory.groups.get("slurm_controller", ())
    return hosts[0] if hosts and not name_problem(hosts[0]) else ""


def _groups_by_host(inventory: Inventory) -> dict[str, list[str]]:
    """Return the groups of each host, sorted."""
    groups: dict[str, list[str]] = {}
    for group in sorted(inventory.groups):
        for host in dict.fromkeys(inventory.groups[group]):
            groups.setdefault(host, []).append(group)
    return groups


def _node(
    name: str, values: Mapping[str, Any], groups: Collection[str], not_taken: dict[str, list[str]]
) -> AdoptedNode:
    """Return a host as a node."""
    variables = _taken_variables(name, values, not_taken)
    address = str(variables.pop("ansible_host", ""))
    own_groups = [group for group in groups if group.lower() not in RESERVED_GROUPS]
    rack = _rack(values, own_groups)
    return AdoptedNode(
        name=name,
        source="Ansible",
        address=address if address != name else "",
        rack=rack or rack_of_name(name),
        rack_from="its variables and groups" if rack else BY_NAME,
        partitions=tuple(
            group.removeprefix("partition_") for group in own_groups if group.startswith("partition_")
        ),
        gpu_count=stated_gpu_count(values),
        gpu_count_from="variable of GPUs",
        hints=tuple(_hints(values, own_groups)),
        sku=_sku(own_groups),
        variables=variables,
    )


def _taken_variables(
    name: str, values: Mapping[str, Any], not_taken: dict[str, list[str]]
) -> dict[str, str | int | bool]:
    """Return the variables of a host that are taken over (:func:`_connection`).

    The host is added to ``not_taken`` for each other variable that this module does not read.
    """
    variables_taken: dict[str, str | int | bool] = {}
    for variable, value in values.items():
        if (fitting := _connection(str(variable), value)) is not None:
            variables_taken[str(variable)] = fitting
        elif str(variable) not in _READ_VARIABLES:
            not_taken.setdefault(sanitize(variable, 60), []).append(name)
    return variables_taken


def _hints(values: Mapping[str, Any], groups: Sequence[str]) -> Iterator[GpuHint]:
    """Yield the texts that may state a host's GPUs, from its variables and then its groups."""
    for key in (*COLUMNS["gpu"], *COLUMNS["type"]):
        value = values.get(key)
        if isinstance(value, str) and value.strip():
            yield GpuHint(where=f"variable {key}", text=sanitize(value, 200))
    for group in groups:
        yield GpuHint(where="group", text=group)


def _rack(values: Mapping[str, Any], groups: Sequence[str]) -> str:
    """Return the rack from a host's variables, or else the first group with the name of a rack, or ""."""
    # A rack may be a number. True is an int, but names no rack.
    stated_values = [values.get(key) for key in COLUMNS["rack"]]
    stated = next((str(value) for value in stated_values if type(value) in (str, int)), "")
    return sanitize(stated, 60) or next((group for group in groups if _RACK_GROUP.fullmatch(group)), "")


def _sku(groups: Sequence[str]) -> str:
    """Return the group of a host's SKU, or "".

    Of several such groups, return the longest, because a slice is in the group of its whole machine, too.
    """
    skus = (group for group in groups if group.startswith("sku_") and SKU_NAME.fullmatch(group))
    return max(skus, key=len, default="")


_READ_VARIABLES = frozenset(
    {
        # Ansible and the plugin of this checkout (plugins/vars) set these for each host.
        *("ansible_local", "rackproof_node", "rackproof_environment"),
        *(word for name in ("gpus", "gpu", "type", "rack") for word in COLUMNS[name]),
    }
)
"""Variables that are read, or that no operator set. No remark names them."""


def _connection(variable: str, value: object) -> str | int | bool | None:
    """Return the value of a variable of the connection, serial number or BMC, or None.

    None means another variable, or a value that does not fit, such as a template.
    """
    if variable == "ansible_become":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return value if variable_fits(variable, str(value)) else None
