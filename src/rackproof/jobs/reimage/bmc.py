"""Power and boot of a node through its BMC, by Redfish or by IPMI.

Every wait is bounded, and every error names the node, what its BMC said, and what to do. What was set is read
back: a BMC that accepts an order and forgets it is found here, and not by a node that boots its old disk.
How the two protocols say it is in ``redfish`` and ``ipmi``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rackproof.core.errors import RackproofError
from rackproof.core.text import sanitize

CALL_TIMEOUT_S = 20.0
POLL_S = 2.0
SETTINGS_S = 180.0
PROTOCOLS = ("redfish", "ipmi")


class BmcError(RackproofError):
    """A BMC did not do what it was asked; the message says which node's, why, and what to do."""


class BmcSilentError(BmcError):
    """Nothing answers at the address of a BMC."""


@dataclass(frozen=True)
class Access:
    """How a BMC is reached.

    ``verify`` is a file of certificates, or whether the certificate is checked at all; ``system`` the id of
    the node among the systems that the BMC lists, empty where it lists one: both are Redfish's. ``uefi`` is
    IPMI's: whether a boot over the network is one by UEFI, which Redfish leaves as the node is set up.
    """

    address: str
    user: str = ""
    password: str = field(default="", repr=False)
    verify: bool | str = True
    system: str = ""
    call_timeout_s: float = CALL_TIMEOUT_S
    protocol: str = "redfish"
    uefi: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Access:
        """Return how the options of a plugin say that a BMC is reached; what they lack is the default."""
        named = ("address", "user", "password", "system", "protocol", "uefi")
        given = {"address": "", **{name: options[name] for name in named if name in options}}
        return cls(verify=options.get("ca_file") or True, **given)

    @property
    def place(self) -> str:
        """The address as an error shows it."""
        return sanitize(self.address, 120)


@dataclass(frozen=True)
class Power:
    """What a node's BMC says: ``power`` and ``boot`` as Redfish words them, and its serial number."""

    power: str
    boot: str
    boot_enabled: str
    serial: str


@dataclass(frozen=True)
class About:
    """A machine that a BMC lists.

    ``macs`` has its network interfaces, each with whether its link is up; None is not told.
    """

    system: str = ""
    serial: str = ""
    model: str = ""
    power: str = ""
    macs: Mapping[str, bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Firmware:
    """A piece of a BMC's list of firmware; ``version`` is empty where it tells none."""

    identity: str
    name: str
    version: str


@dataclass(frozen=True)
class Settings:
    """BIOS settings and firmware as a BMC tells them, or why it does not.

    A setting is a text, a number or a truth value, as Redfish has it.
    """

    bios: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    bios_why: str = ""
    firmware: tuple[Firmware, ...] = ()
    firmware_why: str = ""


class Machine(Protocol):
    """A node as a protocol reaches it. Every answer is asked for anew."""

    def power(self) -> str:
        """Return ``On``, ``Off``, or what else the BMC says."""

    def said(self) -> Power:
        """Return all that the BMC says."""

    def switch(self, on: bool) -> None:
        """Order the node on or off, without a word to its system."""

    def boot_from_network(self) -> None:
        """Order the next boot from the network."""

    def boot_as_set_up(self) -> None:
        """Take that back."""


def _open(node: str, access: Access) -> AbstractContextManager[Machine]:
    if not access.address:
        raise BmcError(_no_address(node))
    if access.protocol == "ipmi":
        from rackproof.jobs.reimage import ipmi

        return ipmi.machine(node, access)
    from rackproof.jobs.reimage import redfish

    return redfish.machine(node, access)


def _no_address(node: str) -> str:
    return f"{node}: no address of its BMC is known: set reimage_bmc_address in the inventory"


def look(node: str, access: Access) -> Power:
    """Return what the BMC says of a node.

    Raises:
        BmcError: It does not answer, or refuses.
    """
    with _open(node, access) as machine:
        return machine.said()


def who(node: str, access: Access) -> tuple[About, ...]:
    """Return the machines that a BMC lists.

    Raises:
        BmcError: It does not answer, or refuses.
    """
    if access.protocol == "ipmi":
        from rackproof.jobs.reimage import ipmi

        return ipmi.who(node, access)
    from rackproof.jobs.reimage import redfish

    return redfish.who(node, access)


def settings(node: str, access: Access, *, timeout_s: float = SETTINGS_S) -> Settings:
    """Return BIOS settings and firmware of a node; what cannot be had says why.

    Args:
        node: The node.
        access: Its BMC.
        timeout_s: Seconds after which no more is asked for: some BMCs list a hundred pieces of firmware. One
            that does not come to an end of what it says is left to itself a little later.
    """
    if access.protocol == "ipmi":
        why = f"{node}: IPMI tells neither BIOS settings nor firmware"
        return Settings(bios_why=why, firmware_why=why)
    if not access.address:
        return Settings(bios_why=_no_address(node), firmware_why=_no_address(node))
    from rackproof.jobs.reimage import redfish

    told: queue.SimpleQueue[Settings] = queue.SimpleQueue()

    def ask() -> None:
        try:
            told.put(redfish.settings(node, access, timeout_s))
        except Exception as error:
            # What a library stumbles over is what this BMC said: it is reported as such.
            why = f"{node}: what its BMC at {access.place} says cannot be read: {sanitize(error, 200)}"
            told.put(Settings(bios_why=why, firmware_why=why))

    # A time limit of a library is one between two bytes. A thread cannot be ended, but it is not waited for.
    threading.Thread(target=ask, daemon=True).start()
    try:
        return told.get(timeout=timeout_s + access.call_timeout_s)
    except queue.Empty:
        why = f"{node}: its BMC at {access.place} did not come to an end within {timeout_s:g} s"
        return Settings(bios_why=why, firmware_why=why)


def set_boot(node: str, access: Access, target: Literal["pxe", "disk"]) -> Power:
    """Let a node boot over the network once, or as it is set up; return what the BMC says then.

    Args:
        node: The node.
        access: Its BMC.
        target: ``pxe`` for the next boot only; ``disk`` sets that back.

    Raises:
        BmcError: It does not answer, refuses, or says afterwards something else than was set.
    """
    with _open(node, access) as machine:
        if target == "pxe":
            machine.boot_from_network()
        else:
            machine.boot_as_set_up()
        now = machine.said()
        if target == "pxe" and (now.boot != "Pxe" or now.boot_enabled not in ("Once", "Continuous")):
            raise BmcError(
                f"{node}: its BMC took the order to boot over the network once, and says "
                f"{now.boot or 'nothing'} ({now.boot_enabled or 'nothing'}): set it in the BIOS, "
                "or renew its firmware"
            )
        if target == "disk" and now.boot == "Pxe" and now.boot_enabled != "Disabled":
            raise BmcError(
                f"{node}: its BMC would boot it over the network again ({now.boot_enabled}): set its boot "
                "order back by hand before it reboots"
            )
        return now


def set_power(
    node: str,
    access: Access,
    wanted: Literal["on", "off", "cycle"],
    *,
    timeout_s: float = 120,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Power:
    """Switch a node on or off, or off and on again; return what the BMC says when that has happened.

    Args:
        node: The node.
        access: Its BMC.
        wanted: What it should be.
        timeout_s: Seconds that each of off and on may take.
        sleep: Waits.
        clock: Seconds.

    Raises:
        BmcError: It does not answer, refuses, or the node does not become what was wanted in time.
    """

    def until(machine: Machine, state: str) -> None:
        end = clock() + timeout_s
        while (now := machine.power()) != state:
            if clock() >= end:
                raise BmcError(
                    f"{node}: its BMC took the order, but {timeout_s:.0f} s later the node is "
                    f"{now or 'in no state that it says'} and not {state}: see its log"
                )
            sleep(POLL_S)

    with _open(node, access) as machine:
        for order, state in (("off", "Off"), ("on", "On")):
            if wanted in (order, "cycle") and machine.power() != state:
                machine.switch(on=order == "on")
                until(machine, state)
        return machine.said()
