"""Describe the rack: the names and addresses of its hosts, and which of them are missing. No I/O.

The input is the text of inventory/hosts.yml. rack.py and other modules of the driver use this module.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

# RFC 2544 reserves 198.18.0.0/15 for test equipment, so no other host has these addresses.
NETWORK = "rack"
BRIDGE = "br-rack"
SUBNET = "198.18.77.0/24"
GATEWAY = "198.18.77.1"

RACK_GROUP = "gb300-rack"
CONTROLLER_GROUP = "slurm_controller"
SERVICES = "gb300-r01-svc"
# Name and last number of the address of each node that is started only on demand, by its SKU.
ALSO = {"b200": ("b200-r01-n01", 41), "h100": ("h100-r01-n01", 42)}
# Last numbers of the hosts' addresses.
NODES_FROM, CONTROLLER_AT, SERVICES_AT = 11, 5, 6

BLOCK_BEGIN = "# rackproof rack: begin (`make rack-down` removes this block)"
BLOCK_END = "# rackproof rack: end"


class RackError(Exception):
    """An error for the operator, which ends the program without a traceback."""


@dataclass(frozen=True)
class Host:
    """One container of the rack. ``sku`` is the node model, or "" if the host has no GPUs."""

    name: str
    address: str
    kind: str  # node, controller or services
    sku: str = ""


def expand(pattern: str) -> list[str]:
    """Return the names in an inventory's host pattern: n01, n02 and n03 for ``n[01:03]``."""
    match = re.fullmatch(r"(.*)\[(\d+):(\d+)\](.*)", pattern)
    if not match:
        if "[" in pattern:
            raise RackError(f"inventory: {pattern!r} is not a range of numbers that this program reads")
        return [pattern]
    head, first, last, tail = match.groups()
    if len(last) < len(first) or int(last) < int(first):
        raise RackError(f"inventory: the range of {pattern!r} runs backwards")
    return [f"{head}{number:0{len(first)}d}{tail}" for number in range(int(first), int(last) + 1)]


def group_hosts(inventory: str, group: str) -> list[str]:
    """Return the hosts directly in a group's `hosts:` of an inventory in plain YAML.

    This program runs before anything is installed, so it reads the few lines that it needs by their
    indentation.
    """
    names: list[str] = []
    group_indent = hosts_indent = -1
    for line in inventory.splitlines():
        text = line.split(" #")[0].rstrip()
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        indent = len(text) - len(text.lstrip())
        key = text.strip()
        if hosts_indent >= 0:
            if indent <= hosts_indent:
                break
            if indent == hosts_indent + 2:
                names += expand(key.rstrip(":").strip("\"'"))
        elif group_indent >= 0:
            if indent <= group_indent:
                group_indent = indent if key == f"{group}:" else -1
            elif key == "hosts:" and indent == group_indent + 2:
                hosts_indent = indent
        elif key == f"{group}:":
            group_indent = indent
    return names


@dataclass(frozen=True)
class Layout:
    """Every host that the rack may contain. ``also`` are the nodes that start on demand, by their SKU."""

    nodes: tuple[Host, ...]
    controller: Host
    services: Host
    also: Mapping[str, Host]

    @property
    def everyone(self) -> list[Host]:
        """Return all hosts, running or not."""
        return [self.controller, self.services, *self.nodes, *self.also.values()]

    def wanted(self, nodes: int | None, also: Iterable[str] = ()) -> list[Host]:
        """Return controller, services and the first ``nodes`` nodes, or all nodes if the number is None.

        ``also`` are the SKUs whose nodes are added.

        Raises:
            RackError: There are not as many nodes, or no node of such a SKU.
        """
        number = len(self.nodes) if nodes is None else nodes
        if not 1 <= number <= len(self.nodes):
            raise RackError(f"NODES={number}: the inventory's {RACK_GROUP} has 1 to {len(self.nodes)} nodes")
        unknown = sorted(set(also) - set(self.also))
        if unknown:
            raise RackError(f"--also {','.join(unknown)}: there are {', '.join(sorted(self.also))}")
        return [self.controller, self.services, *self.nodes[:number], *(self.also[sku] for sku in also)]

    def has(self, name: str) -> bool:
        """Return whether the rack may contain a host of that name."""
        return any(host.name == name for host in self.everyone)

    def host(self, name: str) -> Host:
        """Return the host of that name, or raise RackError if there is none."""
        for host in self.everyone:
            if host.name == name:
                return host
        first, last = self.nodes[0].name, self.nodes[-1].name
        raise RackError(
            f"{name}: no host of the rack; there are {first} to {last}, {self.controller.name}, "
            f"{self.services.name}, {', '.join(host.name for host in self.also.values())}"
        )


def read_layout(inventory: str) -> Layout:
    """Return the layout that the text of inventory/hosts.yml requires."""
    names = group_hosts(inventory, RACK_GROUP)
    if not names:
        raise RackError(f"inventory/hosts.yml names no host under {RACK_GROUP}, the group of the rack")
    controllers = group_hosts(inventory, CONTROLLER_GROUP)
    if len(controllers) != 1:
        raise RackError(
            f"inventory/hosts.yml must name one host under {CONTROLLER_GROUP}, not {len(controllers)}"
        )
    prefix = SUBNET.rsplit(".", 1)[0]
    room = min(number for _, number in ALSO.values()) - NODES_FROM
    if len(names) > room:
        raise RackError(
            f"inventory/hosts.yml: {RACK_GROUP} has {len(names)} hosts; the rack has room for {room}"
        )
    nodes = [Host(name, f"{prefix}.{NODES_FROM + at}", "node", "gb300") for at, name in enumerate(names)]
    return Layout(
        nodes=tuple(nodes),
        controller=Host(controllers[0], f"{prefix}.{CONTROLLER_AT}", "controller"),
        services=Host(SERVICES, f"{prefix}.{SERVICES_AT}", "services"),
        also={sku: Host(name, f"{prefix}.{number}", "node", sku) for sku, (name, number) in ALSO.items()},
    )


@dataclass(frozen=True)
class Found:
    """A container of the rack as the engine reports it."""

    name: str
    state: str  # created, running, restarting, exited, paused, dead
    image: str = ""
    home: str = ""  # folder of the rack that it belongs to


@dataclass
class Plan:
    """The work that is left before all the wanted hosts run. ``keep`` are hosts that stay as they are."""

    create: list[Host] = field(default_factory=list)
    recreate: list[Host] = field(default_factory=list)  # These hosts never completed their first start.
    start: list[Host] = field(default_factory=list)
    keep: list[Host] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)  # These were not requested, and are left alone.

    @property
    def complete(self) -> bool:
        """Return whether nothing needs to be done."""
        return not (self.create or self.recreate or self.start)


def plan(wanted: Iterable[Host], found: Mapping[str, Found], silent: Collection[str] = ()) -> Plan:
    """Compare the wanted hosts with the present ones. Hosts that a fault silences (``silent``) are kept."""
    result = Plan()
    names = set()
    for host in wanted:
        names.add(host.name)
        there = found.get(host.name)
        if there is None:
            result.create.append(host)
        elif there.state in ("running", "restarting") or host.name in silent:
            result.keep.append(host)
        elif there.state in ("exited", "paused"):
            result.start.append(host)
        else:
            result.recreate.append(host)
    result.beyond = sorted(set(found) - names)
    return result


def foreign_hosts(found: Mapping[str, Found], home: str) -> list[Found]:
    """Return the rack's containers that another checkout made. A machine runs only one rack."""
    return [one for one in found.values() if one.home not in ("", home)]


def with_block(text: str, lines: Iterable[str]) -> str:
    """Return the text of /etc/hosts with the rack's block at its end. Without lines, there is no block."""
    kept: list[str] = []
    inside = False
    for line in text.splitlines():
        if line == BLOCK_BEGIN:
            inside = True
        elif line == BLOCK_END and inside:
            inside = False
        elif not inside:
            kept.append(line)
    if inside:
        raise RackError(f"/etc/hosts: a line {BLOCK_END!r} is missing; remove the rack's block by hand")
    block = list(lines)
    if block:
        kept += [BLOCK_BEGIN, *block, BLOCK_END]
    return "".join(f"{line}\n" for line in kept)


def hosts_lines(hosts: Iterable[Host]) -> list[str]:
    """Return lines for /etc/hosts."""
    return [f"{host.address}\t{host.name}" for host in hosts]


def ssh_config(hosts: Iterable[Host], key: str, known_hosts: str) -> str:
    """Return the ssh client's configuration for the rack."""

    def quoted(path: str) -> str:
        return '"' + path.replace("%", "%%") + '"'

    names = " ".join(host.name for host in hosts)
    return (
        "# Made by `make rack`, removed by `make rack-down`.\n"
        f"Host {names}\n"
        "  User root\n"
        f"  IdentityFile {quoted(key)}\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {quoted(known_hosts)}\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
    )
