"""Discover the machines of new racks, and match them with nodes.

The action plugin ``rackproof_reimage_discover`` calls :func:`ask_bmcs`, and then :func:`match_machines`,
which compares serial numbers. :func:`write_discovered` writes the result into a file of host variables.
Machines that booted over the network are matched in the same way, with the MAC address as their address. An
entry of the file is::

    all: {hosts: {node17: {reimage_bmc_address: 10.0.0.11, reimage_mac: "3c:ec:ef:00:00:01"}}}

Each address is reported as matched, unknown, refusing or silent. The answers of BMCs and machines are
untrusted. The file gets the queried address and protocol of a BMC. From the answers, it gets only MAC
addresses and system ids of plain characters.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rackproof.core.errors import RackproofError
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.text import amount, sanitize
from rackproof.jobs.reimage.bmc import Access, BmcError, BmcSilentError, MachineIdentity
from rackproof.store.run_folder import ResultsError, write_file

MAX_ADDRESSES = 4096
"""Largest number of addresses that one call queries, so that a typing error in a range does not query a whole
building."""
PARALLEL = 32
"""Default number of BMCs that are queried at a time."""
TIMEOUT_S = 60.0
"""Default number of seconds after which a BMC's query is abandoned."""
HEAD = b"# What playbooks/discover.yml found. It changes only the nodes that it finds again.\n"
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
_PLAIN = re.compile(r"[\w.:+-]{1,100}", re.ASCII)
"""Pattern of the system ids that are written into the inventory, such as ``System.Embedded.1``."""


class DiscoveryError(RackproofError):
    """A fault that the operator must fix. The message gives the fault and the remedy."""


@dataclass(frozen=True)
class KnownNode:
    """A node as the inventory describes it. A missing value is empty."""

    serial: str = ""
    mac: str = ""
    bmc_address: str = ""

    @classmethod
    def from_variables(cls, variables: Mapping[str, Any]) -> KnownNode:
        """Return the node that a host's variables describe."""
        # Convert to plain text, because Ansible's own strings are tagged with their origin, which YAML
        # cannot represent.
        names = ("reimage_serial", "reimage_mac", "reimage_bmc_address")
        return cls(*(str(variables.get(name) or "") for name in names))


@dataclass(frozen=True)
class Discovery:
    """The result of a discovery.

    ``variables`` contains the host variables of each matched node, and ``matched`` a line about each.
    ``remarks`` lists open points that do not stop the playbook. ``problems`` lists the reasons why an address
    gave no answer or fits no node, or several nodes.
    """

    variables: Mapping[str, Mapping[str, str]]
    remarks: tuple[str, ...]
    problems: tuple[str, ...]
    matched: tuple[str, ...] = ()

    @property
    def gates(self) -> bool:
        """Return whether the playbook fails: there is a problem, or no node was matched.

        A node that was not found is only a remark.
        """
        return bool(self.problems) or not self.variables

    def plain(self) -> dict[str, Any]:
        """Return the data that the playbook shows and continues with."""
        return {
            "gates": self.gates,
            "nodes": {name: dict(values) for name, values in self.variables.items()},
            "matched": list(self.matched),
            "remarks": list(self.remarks),
            "problems": list(self.problems),
        }


def expand_addresses(words: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """Return the addresses to query, in order, and the addresses that come only from ranges or networks.

    Args:
        words: The addresses of BMCs as in ``reimage_bmc_address``, ranges (``10.0.0.11-10.0.0.28``), and
            networks (``10.0.0.0/24``).

    Raises:
        DiscoveryError: There are no addresses or too many, or an address is empty, or a range or network is
            invalid.
    """
    in_range: dict[str, bool] = {}
    for word in words:
        addresses = _expand_range(word.strip())
        for address in [word.strip()] if addresses is None else addresses:
            # An address that was given explicitly must answer, even if a range contains it, too.
            in_range[address] = in_range.get(address, True) and addresses is not None
            # Count here and not at the end, because a /8 network would fill the memory first.
            if len(in_range) > MAX_ADDRESSES:
                raise DiscoveryError(
                    f"discover_addresses: more than {MAX_ADDRESSES} addresses; use several calls"
                )
    if not in_range:
        raise DiscoveryError("discover_addresses: name at least one address of a BMC, a range or a network")
    return list(in_range), frozenset(address for address, ranged in in_range.items() if ranged)


def _expand_range(word: str) -> Iterable[str] | None:
    """Return the addresses of a range or a network, or None for a single address or name.

    Raises:
        DiscoveryError: The text is empty, or is an invalid range or network.
    """
    if not word:
        raise DiscoveryError("discover_addresses: an address is empty")
    first_text, dash, last_text = word.partition("-")
    try:
        if "/" in word and "://" not in word:
            network = ipaddress.ip_network(word)
            # hosts() leaves out the network's own and its broadcast address, which are never a BMC's.
            return map(str, network.hosts())
        if not dash:
            return None
        begin, end = ipaddress.ip_address(first_text.strip()), ipaddress.ip_address(last_text.strip())
    except ValueError as error:
        # Hostnames may contain dashes too, so a text with letters is a name.
        if dash and not re.fullmatch(r"[\d.:-]+", word):
            return None
        raise DiscoveryError(f"discover_addresses: {sanitize(word, 100)!r}: {sanitize(error, 200)}") from None
    if begin.version != end.version or int(begin) > int(end):
        raise DiscoveryError(f"discover_addresses: {sanitize(word, 100)!r} does not go from low to high")
    return _addresses_between(begin, end)


_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def _addresses_between(begin: _IpAddress, end: _IpAddress) -> Iterator[str]:
    """Yield the addresses of a range, including both ends."""
    # Add one address at a time. An IPv6 range would fill the memory before its addresses are counted.
    for number in range(int(begin), int(end) + 1):
        yield str(type(begin)(number))


Answer = tuple[MachineIdentity, ...] | BmcError
"""The machines that an address listed, or the reason why it listed none."""


def ask_bmcs(
    addresses: Sequence[str],
    access: Access,
    list_systems: Callable[[str, Access], tuple[MachineIdentity, ...]],
    *,
    parallel: int = PARALLEL,
    timeout_s: float = TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Answer]:
    """Query the machines of several BMCs at a time. Return an answer or a reason for every address.

    Args:
        addresses: The addresses of the BMCs.
        access: The settings to reach them, without the address.
        list_systems: A function that queries one BMC.
        parallel: The largest number of queries at a time, at least 1. An abandoned query does not count.
        timeout_s: The number of seconds for each query. A query that takes longer is abandoned.
        clock: A function that returns the time in seconds.
    """
    answers: dict[str, Answer] = {}
    arrived: queue.Queue[tuple[str, Answer]] = queue.Queue()
    waiting, deadlines = list(reversed(addresses)), dict[str, float]()

    while waiting or deadlines:
        while waiting and len(deadlines) < parallel:
            address = waiting.pop()
            deadlines[address] = clock() + timeout_s
            # A thread cannot be ended. As a daemon, a hanging thread does not keep the process alive.
            arguments = (address, access, list_systems, arrived)
            threading.Thread(target=_ask_bmc, args=arguments, daemon=True).start()
        try:
            address, answer = arrived.get(timeout=max(0.0, min(deadlines.values()) - clock()))
            # An answer after the deadline is dropped, because a reason is already noted for its address.
            if deadlines.pop(address, None) is not None:
                answers[address] = answer
        except queue.Empty:
            for address in _overdue(deadlines, clock()):
                del deadlines[address]
                answers[address] = BmcError(f"{address}: its BMC did not finish within {timeout_s:g} s")
    return {address: answers[address] for address in addresses}


def _overdue(deadlines: Mapping[str, float], now: float) -> list[str]:
    """Return the addresses whose deadline is over."""
    return [address for address, end in deadlines.items() if end <= now]


def _ask_bmc(
    address: str,
    access: Access,
    list_systems: Callable[[str, Access], tuple[MachineIdentity, ...]],
    arrived: queue.Queue[tuple[str, Answer]],
) -> None:
    """Put the answer of one BMC, or the reason why there is none, into a queue."""
    try:
        arrived.put((address, list_systems(address, dataclasses.replace(access, address=address))))
    except BmcError as error:
        arrived.put((address, error))
    except Exception as error:
        # If a library fails on one BMC's malformed answer, the other answers must not be lost.
        reason = f"{address}: the answer of its BMC cannot be read: {sanitize(error, 200)}"
        arrived.put((address, BmcError(reason)))


@dataclass(frozen=True)
class _Claim:
    """A machine with a node's serial number.

    ``shared`` means that the machine's address also listed other machines.
    """

    address: str
    machine: MachineIdentity
    shared: bool


@dataclass
class _Matching:
    """The answers so far, as machines with a node's serial number, and problems with the others.

    Attributes:
        names: The names of the nodes with each serial number.
        booted: Whether the machines booted over the network, so that addresses are MAC addresses.
        ranged: The addresses that come only from ranges.
        claims: The machines with each serial number of a node.
        silent: The addresses from ranges that did not answer.
    """

    names: Mapping[str, Sequence[str]]
    booted: bool
    ranged: frozenset[str]
    claims: dict[str, list[_Claim]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    def add(self, address: str, answer: Answer) -> None:
        """Add the answer of one address."""
        if isinstance(answer, BmcSilentError) and address in self.ranged:
            self.silent.append(address)
        elif isinstance(answer, BmcError):
            self.problems.append(str(answer))
        elif not answer:
            self.problems.append(f"{address}: its BMC lists no system")
        else:
            self._add_machines(address, answer)

    def _add_machines(self, address: str, machines: Sequence[MachineIdentity]) -> None:
        """Add the machines of one address as claims, and note the machines of no node."""
        known_machines = [machine for machine in machines if _normalize_serial(machine.serial) in self.names]
        for machine in known_machines:
            claim = _Claim(address, machine, shared=len(machines) > 1)
            self.claims.setdefault(_normalize_serial(machine.serial), []).append(claim)
        # A BMC may list a baseboard beside the machine, which is neither a node nor a problem.
        unknown = self.remarks if known_machines else self.problems
        for machine in machines:
            if machine not in known_machines:
                unknown.append(f"{address}: {_describe(machine, not self.booted)}: no node of the inventory")

    def settle(self, serial: str) -> _Claim | None:
        """Return the single machine with a serial number.

        If that is uncertain, add a problem and return None.
        """
        names, claims = self.names[serial], self.claims[serial]
        if len(names) > 1:
            self.problems.append(f"{', '.join(names)}: one reimage_serial for several nodes")
        if len(claims) > 1:
            addresses = ", ".join(claim.address for claim in claims)
            kind = "MAC addresses" if self.booted else "BMCs"
            self.problems.append(
                f"{names[0]}: its serial number is reported by {len(claims)} {kind}: {addresses}"
            )
        if len(names) > 1 or len(claims) > 1:
            return None
        return claims[0]


def match_machines(
    answers: Mapping[str, Answer],
    nodes: Mapping[str, KnownNode],
    *,
    protocol: str = "redfish",
    ranged: frozenset[str] = frozenset(),
) -> Discovery:
    """Match machines with nodes, and return the result. No I/O.

    Args:
        answers: The machines of each address, or the reason why there are none.
        nodes: The inventory's nodes.
        protocol: The protocol of the BMCs, or ``boot`` for machines that booted over the network. Their
            addresses are MAC addresses.
        ranged: The addresses from ranges. For these, silence is not a problem.
    """
    booted = protocol == "boot"
    matching = _Matching(_names_by_serial(nodes), booted, ranged)
    for address, answer in answers.items():
        matching.add(address, answer)
    variables: dict[str, dict[str, str]] = {}
    matched: list[str] = []
    for serial in matching.claims:
        claim = matching.settle(serial)
        if claim is None:
            continue
        name = matching.names[serial][0]
        if problem := _mismatch(name, nodes[name], claim, booted):
            matching.problems.append(problem)
            continue
        if booted:
            variables[name] = {"reimage_mac": claim.address}
        else:
            variables[name], remarks = _bmc_variables(name, nodes[name], claim, protocol)
            matching.remarks += remarks
        matched.append(f"{name}: {claim.address}: {_describe(claim.machine, not booted)}")
    remarks = [*matching.remarks, *_unmatched(nodes, variables, matching.silent, booted)]
    # Several addresses can cause the same problem, which is reported once.
    return Discovery(variables, tuple(remarks), tuple(dict.fromkeys(matching.problems)), tuple(matched))


def _normalize_serial(serial: str) -> str:
    """Return a serial number in the form in which it is compared."""
    return serial.strip().lower()


def _names_by_serial(nodes: Mapping[str, KnownNode]) -> dict[str, list[str]]:
    """Return the names of the nodes with each serial number."""
    names: dict[str, list[str]] = {}
    for name, node in nodes.items():
        if serial := _normalize_serial(node.serial):
            names.setdefault(serial, []).append(name)
    return names


def _mismatch(name: str, node: KnownNode, claim: _Claim, booted: bool) -> str:
    """Return the reason why a machine with the right serial number is not stored as the node's, or ""."""
    if claim.shared and not _PLAIN.fullmatch(claim.machine.system):
        return f"{name}: {claim.address} lists it as {claim.machine.system!r}, which cannot be written down"
    known_mac = node.mac.strip().lower().replace("-", ":")
    if booted and known_mac and known_mac != claim.address:
        return f"{name}: it booted by {claim.address}; the inventory has reimage_mac {sanitize(node.mac, 40)}"
    return ""


def _describe(machine: MachineIdentity, with_power: bool = True) -> str:
    """Describe a machine by its model, serial number and power."""
    parts = [
        machine.model or "no model",
        f"serial number {machine.serial}" if machine.serial else "no serial number",
    ]
    if with_power:
        parts.append(f"power {machine.power or 'unknown'}")
    return ", ".join(parts)


def _bmc_variables(
    name: str, node: KnownNode, claim: _Claim, protocol: str
) -> tuple[dict[str, str], list[str]]:
    """Return a node's host variables from its BMC, and remarks about open points."""
    variables, remarks = {"reimage_bmc_address": claim.address}, []
    if node.bmc_address and normalize_bmc_address(node.bmc_address) != normalize_bmc_address(claim.address):
        remarks.append(
            f"{name}: the inventory has its BMC at {sanitize(node.bmc_address, 100)}; it is at "
            f"{claim.address}"
        )
    if protocol != "redfish":
        variables["reimage_bmc_protocol"] = protocol
    if claim.shared:
        variables["reimage_bmc_system"] = claim.machine.system
    mac, remark = _boot_mac(name, node, claim.machine)
    if mac:
        variables["reimage_mac"] = mac
    return variables, [*remarks, remark] if remark else remarks


def _boot_mac(name: str, node: KnownNode, machine: MachineIdentity) -> tuple[str, str]:
    """Return the MAC address to store and a remark, each or "". The inventory's address is never replaced."""
    macs = {mac.lower(): up for mac, up in machine.macs.items() if _MAC.fullmatch(mac.lower())}
    if not node.mac:
        return _choose_mac(name, macs)
    # A BMC that lists no MAC addresses does not contradict the inventory.
    if macs and node.mac.strip().lower().replace("-", ":") not in macs:
        shown_mac = sanitize(node.mac, 40)
        return "", f"{name}: its BMC does not list reimage_mac {shown_mac}, only {', '.join(macs)}"
    return "", ""


def _choose_mac(name: str, macs: Mapping[str, bool | None]) -> tuple[str, str]:
    """Return the MAC address that a node boots from and "", or "" and the reason why it is uncertain."""
    linked = [mac for mac, up in macs.items() if up]
    if len(macs) == 1 or len(linked) == 1:
        return (linked or list(macs))[0], ""
    if macs:
        return "", (
            f"{name}: its BMC does not show which MAC address it boots from ({', '.join(macs)}): "
            "set reimage_mac"
        )
    return "", f"{name}: its BMC lists no MAC address: set reimage_mac"


def normalize_bmc_address(address: str) -> str:
    """Return an address in its shortest form: ``https://10.0.0.11/`` is ``10.0.0.11``. No I/O."""
    return address.strip().lower().removeprefix("https://").rstrip("/")


def awaited_nodes(nodes: Mapping[str, KnownNode], booted: bool = True) -> list[str]:
    """Return the nodes that can be matched and whose MAC address (or BMC) is unknown. No I/O."""
    return [
        name
        for name, node in nodes.items()
        if node.serial.strip() and not (node.mac if booted else node.bmc_address).strip()
    ]


def _unmatched(
    nodes: Mapping[str, KnownNode], matched: Mapping[str, Any], silent: Sequence[str], booted: bool
) -> Iterable[str]:
    """Yield a remark for each group of unmatched nodes and addresses."""
    missing = [name for name in awaited_nodes(nodes, booted) if name not in matched]
    if missing:
        names = compress_hostlist(missing)
        yield f"sent no boot report: {names}" if booted else f"no BMC was found of {names}"
    without = [name for name, node in nodes.items() if not node.serial.strip()]
    if without:
        yield f"cannot be matched, because they have no reimage_serial: {compress_hostlist(without)}"
    if silent:
        addresses_text = ", ".join(silent[:20])
        more = f" and {len(silent) - 20} more" if len(silent) > 20 else ""
        yield f"no answer at {amount(len(silent), 'address', 'addresses')} of ranges: {addresses_text}{more}"


def write_discovered(path: Path, variables: Mapping[str, Mapping[str, str]]) -> bool:
    """Write host variables into an inventory file. Return whether it changed.

    Nodes that were not found this time remain in the file. A node's MAC address remains if its BMC does not
    show it. Its BMC remains if the node was found by booting.

    Raises:
        DiscoveryError: The file is not such an inventory file, or cannot be written.
    """
    text, hosts = read_discovered(path)
    for name, discovered in variables.items():
        before = hosts.get(name) or {}
        by_bmc = "reimage_bmc_address" in discovered
        # Variables of an older BMC must not remain beside the address of this one.
        kept_here = {key: value for key, value in before.items() if key == "reimage_mac" or not by_bmc}
        # The names of hosts and values of options are Ansible's own subclass of str, which YAML refuses.
        hosts[str(name)] = kept_here | {key: str(value) for key, value in discovered.items()}
    content = HEAD + yaml.safe_dump({"all": {"hosts": hosts}}).encode()
    # Without changes the task reports none, and a file under version control stays clean.
    if content.decode() == text:
        return False
    try:
        write_file(path, content)
    except ResultsError as error:
        raise DiscoveryError(str(error)) from None
    return True


def read_discovered(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of an inventory file of :func:`write_discovered`, and the variables of each host in it.

    Both are empty if the file does not exist.

    Raises:
        DiscoveryError: The file is not such an inventory file, or cannot be read.
    """
    try:
        text = path.read_text()
        inventory = yaml.safe_load(text) or {}
        listed = inventory.get("all", {}).get("hosts") or {}
        hosts = {name: {**(variables or {})} for name, variables in listed.items()}
        # Writing replaces the whole file. Any other content means that it is an operator's own file.
        if set(inventory) - {"all"} or set(inventory.get("all", {})) - {"hosts"}:
            raise DiscoveryError(f"{path} is not discover.yml's own: name another with discover_file")
    except FileNotFoundError:
        text, hosts = "", {}
    except OSError as error:
        raise DiscoveryError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, AttributeError, ValueError, TypeError, RecursionError):
        raise DiscoveryError(
            f"{path} is not an inventory of discover.yml: name another with discover_file"
        ) from None
    return text, hosts
