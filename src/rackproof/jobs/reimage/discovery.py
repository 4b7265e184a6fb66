"""New racks: BMCs are asked who they are, and matched with the nodes of the inventory by serial number.

Every address that was asked is accounted for: matched, unknown, refusing or silent. Machines that booted
over the network are matched in the same way; their address is the MAC address. What either says is a
stranger's text: of it only MAC addresses and ids of plain characters get into the file of host variables.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rackproof.core.errors import RackproofError
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.text import sanitize
from rackproof.jobs.reimage import bmc
from rackproof.jobs.reimage.bmc_types import Access, BmcError, BmcSilentError, MachineIdentity
from rackproof.store.run_folder import ResultsError, write_file

MAX_ADDRESSES = 4096
"""Addresses in one call; a range with a typing error in it asks a whole building otherwise."""
PARALLEL = 32
TIMEOUT_S = 60.0
HEAD = b"# What playbooks/discover.yml found. It changes only the nodes that it finds again.\n"
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
_PLAIN = re.compile(r"[\w.:+-]{1,100}", re.ASCII)


class DiscoveryError(RackproofError):
    """Something an operator has to mend; the message says what and how."""


@dataclass(frozen=True)
class KnownNode:
    """What the inventory says of a node; empty where it says nothing."""

    serial: str = ""
    mac: str = ""
    bmc_address: str = ""

    @classmethod
    def of(cls, variables: Mapping[str, Any]) -> KnownNode:
        """Return what the variables of a host say."""
        # Plain text: Ansible's own says where it comes from, and YAML cannot write that down.
        names = ("reimage_serial", "reimage_mac", "reimage_bmc_address")
        return cls(*(str(variables.get(name) or "") for name in names))


@dataclass(frozen=True)
class Discovery:
    """What came of asking.

    ``variables`` has the host variables of each matched node, ``remarks`` what is to be seen to but holds
    nobody up, ``problems`` what keeps a BMC that was asked from having a node.
    """

    variables: Mapping[str, Mapping[str, str]]
    remarks: tuple[str, ...]
    problems: tuple[str, ...]
    matched: tuple[str, ...] = ()

    @property
    def gates(self) -> bool:
        """Whether something that was asked for is not proven."""
        return bool(self.problems) or not self.variables

    def plain(self) -> dict[str, Any]:
        """Return what the playbook shows and goes on with."""
        return {
            "gates": self.gates,
            "nodes": {name: dict(values) for name, values in self.variables.items()},
            "matched": list(self.matched),
            "remarks": list(self.remarks),
            "problems": list(self.problems),
        }


def expand_addresses(words: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """Return the addresses to ask, in order, and those of them that are a range's.

    Args:
        words: Addresses of BMCs as ``reimage_bmc_address`` has them, ranges (``10.0.0.11-10.0.0.28``),
            networks (``10.0.0.0/24``).

    Raises:
        DiscoveryError: None, too many, or what begins like a range and is none.
    """
    found: dict[str, bool] = {}
    for word in (one.strip() for one in words):
        several = _range(word)
        for address in [word] if several is None else several:
            # An address that is named is awaited, though a range has it, too.
            found[address] = found.get(address, True) and several is not None
            if len(found) > MAX_ADDRESSES:
                raise DiscoveryError(
                    f"discover_addresses: more than {MAX_ADDRESSES} addresses; ask in several calls"
                )
    if not found:
        raise DiscoveryError("discover_addresses: name at least one address of a BMC, a range or a network")
    return list(found), frozenset(address for address, ranged in found.items() if ranged)


def _range(word: str) -> Iterable[str] | None:
    """Return the addresses of a range or a network; None for a single address."""
    if not word:
        raise DiscoveryError("discover_addresses: an address is empty")
    first, dash, last = word.partition("-")
    try:
        if "/" in word and "://" not in word:
            network = ipaddress.ip_network(word)
            return (str(one) for one in network.hosts())
        if dash:
            begin, end = ipaddress.ip_address(first.strip()), ipaddress.ip_address(last.strip())
        else:
            return None
    except ValueError as error:
        # Names of hosts have dashes, too.
        if dash and not re.fullmatch(r"[\d.:-]+", word):
            return None
        raise DiscoveryError(f"discover_addresses: {sanitize(word, 100)!r}: {sanitize(error, 200)}") from None
    if begin.version != end.version or int(begin) > int(end):
        raise DiscoveryError(f"discover_addresses: {sanitize(word, 100)!r} does not go from low to high")
    return (str(type(begin)(number)) for number in range(int(begin), int(end) + 1))


def ask_bmcs(
    addresses: Sequence[str],
    access: Access,
    *,
    parallel: int = PARALLEL,
    timeout_s: float = TIMEOUT_S,
    who: Callable[[str, Access], tuple[MachineIdentity, ...]] = bmc.list_systems,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, tuple[MachineIdentity, ...] | BmcError]:
    """Ask BMCs who they are, several at a time; return an answer or the reason for every address.

    Args:
        addresses: Whom to ask.
        access: How, but for the address.
        parallel: The most that are asked at a time.
        timeout_s: Seconds that each may take. Who takes longer is left to itself.
        who: Asks one.
        clock: Seconds.
    """
    answers: dict[str, tuple[MachineIdentity, ...] | BmcError] = {}
    told: queue.Queue[tuple[str, tuple[MachineIdentity, ...] | BmcError]] = queue.Queue()
    waiting, until = list(reversed(addresses)), dict[str, float]()

    def one(address: str) -> None:
        try:
            told.put((address, who(address, dataclasses.replace(access, address=address))))
        except BmcError as error:
            told.put((address, error))
        except Exception as error:
            # A library that stumbles over one BMC's nonsense must not lose the others' answers.
            told.put(
                (address, BmcError(f"{address}: what its BMC says cannot be read: {sanitize(error, 200)}"))
            )

    while waiting or until:
        while waiting and len(until) < parallel:
            address = waiting.pop()
            until[address] = clock() + timeout_s
            # A thread cannot be ended: one that hangs must not hold up the end of the process.
            threading.Thread(target=one, args=(address,), daemon=True).start()
        try:
            address, answer = told.get(timeout=max(0.0, min(until.values()) - clock()))
            if until.pop(address, None) is not None:
                answers[address] = answer
        except queue.Empty:
            for address in [name for name, end in until.items() if end <= clock()]:
                del until[address]
                answers[address] = BmcError(
                    f"{address}: its BMC did not come to an end within {timeout_s:g} s"
                )
    return {address: answers[address] for address in addresses}


def match_machines(
    answers: Mapping[str, tuple[MachineIdentity, ...] | BmcError],
    nodes: Mapping[str, KnownNode],
    *,
    protocol: str = "redfish",
    ranged: frozenset[str] = frozenset(),
) -> Discovery:
    """Return which BMC is which node's.

    Args:
        answers: What each address said, or why it said nothing.
        nodes: The inventory's nodes.
        protocol: What the BMCs speak; ``boot`` for machines that booted over the network, and whose addresses
            are MAC addresses.
        ranged: Addresses that nobody named one by one: silence there is no problem.
    """
    booted = protocol == "boot"
    by_serial: dict[str, list[str]] = {}
    for name, known in nodes.items():
        if known.serial.strip():
            by_serial.setdefault(known.serial.strip().lower(), []).append(name)
    claims: dict[str, list[tuple[str, MachineIdentity, bool]]] = {}
    problems: list[str] = []
    remarks: list[str] = []
    silent: list[str] = []
    for address, answer in answers.items():
        if isinstance(answer, BmcSilentError) and address in ranged:
            silent.append(address)
        elif isinstance(answer, BmcError):
            problems.append(str(answer))
        else:
            known_here = [one for one in answer if one.serial.strip().lower() in by_serial]
            strangers = [one for one in answer if one not in known_here]
            for one in known_here:
                serial = one.serial.strip().lower()
                claims.setdefault(serial, []).append((address, one, len(answer) > 1))
            # A baseboard that its BMC lists beside the machine is nobody's node.
            said = [f"{address}: {_describe(one, not booted)}" for one in strangers]
            (remarks if known_here else problems).extend(f"{one}: no node of the inventory" for one in said)
            if not answer:
                problems.append(f"{address}: its BMC lists no system")
    variables: dict[str, dict[str, str]] = {}
    matched: list[str] = []
    for serial, found in claims.items():
        names = by_serial[serial]
        if len(names) > 1:
            problems.append(f"{', '.join(names)}: one reimage_serial for several nodes")
        if len(found) > 1:
            there = ", ".join(address for address, _, _ in found)
            whom = "MAC addresses" if booted else "BMCs"
            problems.append(f"{names[0]}: its serial number is told by {len(found)} {whom}: {there}")
        if len(names) > 1 or len(found) > 1:
            continue
        (address, one, several), name = found[0], names[0]
        if several and not _PLAIN.fullmatch(one.system):
            problems.append(f"{name}: {address} lists it as {one.system!r}, which cannot be written down")
            continue
        if booted:
            if _moved(nodes[name].mac, address):
                known_mac = sanitize(nodes[name].mac, 40)
                problems.append(f"{name}: it booted by {address}; the inventory says reimage_mac {known_mac}")
                continue
            variables[name] = {"reimage_mac": address}
        else:
            variables[name], said_of_it = _variables(name, nodes[name], address, one, several, protocol)
            remarks += said_of_it
        matched.append(f"{name}: {address}: {_describe(one, not booted)}")
    remarks += _left(nodes, variables, silent, booted)
    counted = Counter(problems)
    return Discovery(variables, tuple(remarks), tuple(counted), tuple(matched))


def _describe(one: MachineIdentity, power: bool = True) -> str:
    parts = [one.model or "no model", f"serial number {one.serial}" if one.serial else "no serial number"]
    return ", ".join([*parts, *([f"power {one.power or 'not told'}"] if power else [])])


def _moved(known: str, mac: str) -> bool:
    return bool(known.strip()) and known.strip().lower().replace("-", ":") != mac


def _variables(
    name: str, known: KnownNode, address: str, one: MachineIdentity, several: bool, protocol: str
) -> tuple[dict[str, str], list[str]]:
    """Return a node's variables, and what is to be seen to."""
    found, remarks = {"reimage_bmc_address": address}, []
    if known.bmc_address and bmc_place(known.bmc_address) != bmc_place(address):
        remarks.append(
            f"{name}: the inventory says its BMC is at {sanitize(known.bmc_address, 100)}; it is at {address}"
        )
    if protocol != "redfish":
        found["reimage_bmc_protocol"] = protocol
    if several:
        found["reimage_bmc_system"] = one.system
    macs = {mac.lower(): up for mac, up in one.macs.items() if _MAC.fullmatch(mac.lower())}
    linked = [mac for mac, up in macs.items() if up]
    if known.mac:
        if macs and known.mac.strip().lower() not in macs:
            remarks.append(
                f"{name}: reimage_mac {sanitize(known.mac, 40)} is none that its BMC lists "
                f"({', '.join(macs)})"
            )
    elif len(macs) == 1 or len(linked) == 1:
        found["reimage_mac"] = (linked or list(macs))[0]
    elif macs:
        remarks.append(
            f"{name}: by which of {', '.join(macs)} it boots, its BMC does not tell: set reimage_mac"
        )
    else:
        remarks.append(f"{name}: its BMC tells no MAC address: set reimage_mac")
    return found, remarks


def bmc_place(address: str) -> str:
    """Return an address without what says the same: ``https://10.0.0.11/`` is ``10.0.0.11``."""
    return address.strip().lower().removeprefix("https://").rstrip("/")


def awaited_nodes(nodes: Mapping[str, KnownNode], booted: bool = True) -> list[str]:
    """Return the nodes that can be matched and of which nobody knows the MAC address, or the BMC."""
    return [
        name
        for name, one in nodes.items()
        if one.serial.strip() and not (one.mac if booted else one.bmc_address).strip()
    ]


def _left(
    nodes: Mapping[str, KnownNode], found: Mapping[str, Any], silent: Sequence[str], booted: bool
) -> Iterable[str]:
    without = [name for name, known in nodes.items() if not known.serial.strip()]
    if missing := [name for name in awaited_nodes(nodes, booted) if name not in found]:
        yield ("did not tell who they are: " if booted else "no BMC was found of ") + compress_hostlist(
            missing
        )
    if without:
        yield f"cannot be matched, because they have no reimage_serial: {compress_hostlist(without)}"
    if silent:
        shown = ", ".join(silent[:20])
        more = f" and {len(silent) - 20} more" if len(silent) > 20 else ""
        yield f"nobody answers at {len(silent)} addresses of ranges: {shown}{more}"


def write_discovered(path: Path, variables: Mapping[str, Mapping[str, str]]) -> bool:
    """Write host variables into an inventory file; return whether it changed.

    Nodes that are there and were not found now stay as they are, and so does what was not told now: a MAC
    address by BMCs, and a BMC by machines that booted.

    Raises:
        DiscoveryError: It is no such file, or cannot be written.
    """
    text, hosts = read_discovered(path)
    for name, found in variables.items():
        before = hosts.get(name) or {}
        by_bmc = "reimage_bmc_address" in found
        # What an older answer said of another BMC does not stay beside this one's.
        kept_here = {key: value for key, value in before.items() if key == "reimage_mac" or not by_bmc}
        hosts[name] = kept_here | dict(found)
    made = HEAD + yaml.safe_dump({"all": {"hosts": hosts}}).encode()
    if made.decode() == text:
        return False
    try:
        write_file(path, made)
    except ResultsError as error:
        raise DiscoveryError(str(error)) from None
    return True


def read_discovered(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of an inventory file of :func:`write_discovered`, and its hosts; empty where it is not
    there.

    Raises:
        DiscoveryError: It is no such file, or cannot be read.
    """
    try:
        text = path.read_text()
        there = yaml.safe_load(text) or {}
        hosts = dict(there.get("all", {}).get("hosts") or {})
        if set(there) - {"all"} or set(there.get("all", {})) - {"hosts"}:
            raise DiscoveryError(f"{path} is not discover.yml's own: name another with discover_file")
    except FileNotFoundError:
        text, hosts = "", {}
    except OSError as error:
        raise DiscoveryError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, AttributeError, ValueError, TypeError):
        raise DiscoveryError(
            f"{path} is no inventory of discover.yml: name another with discover_file"
        ) from None
    return text, hosts
