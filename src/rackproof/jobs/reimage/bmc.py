"""Read and set power, boot and settings of a node through its BMC, by any protocol.

Every wait is bounded, and every error names the node, what its BMC answered, and what to do. Each setting is
read back: a BMC that accepts an order and forgets it is found here, not by a node that boots its old disk.
The two protocols are in ``redfish`` and ``ipmi``; ``tasks`` chooses between them.
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
NO_ADDRESS = "no address of its BMC is known: set reimage_bmc_address in the inventory"


class BmcError(RackproofError):
    """A BMC did not fulfil a request; the message has the node, the reason, and what to do."""


class BmcSilentError(BmcError):
    """Nothing answers at the address of a BMC."""


@dataclass(frozen=True)
class Access:
    """The access to a BMC.

    ``verify`` is a file of certificates, or whether the certificate is checked at all; ``system`` the id of
    the node among the systems that the BMC lists; empty if it lists one; ``fingerprint`` the SHA-256 of the
    only certificate that is taken, by any issuer: these are Redfish's. ``uefi`` is IPMI's: whether a boot
    over the network is one by UEFI, which Redfish leaves as the node is set up; ``cipher_suite``, too.
    """

    address: str
    user: str = ""
    # Neither a traceback nor an error's text may show it.
    password: str = field(default="", repr=False)
    verify: bool | str = True
    system: str = ""
    call_timeout_s: float = CALL_TIMEOUT_S
    protocol: str = "redfish"
    uefi: bool = True
    fingerprint: str = ""
    cipher_suite: int = 17

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Access:
        """Return the access that a plugin's options describe; options that are not there keep the default."""
        names = (
            *("address", "user", "password", "system", "protocol", "uefi"),
            *("fingerprint", "cipher_suite"),
        )
        given = {"address": "", **{name: options[name] for name in names if name in options}}
        return cls(verify=options.get("ca_file") or True, **given)

    @property
    def display_address(self) -> str:
        """Return the address as an error shows it."""
        return sanitize(self.address, 120)


@dataclass(frozen=True)
class PowerStatus:
    """Power and boot target of a node, in Redfish's words for any protocol, and its serial number."""

    power: str
    boot: str
    boot_enabled: str
    serial: str


@dataclass(frozen=True)
class MachineIdentity:
    """The identity of a machine, as its BMC or its own boot report describes it.

    ``macs`` has its network interfaces, each with whether its link is up; None is not known.
    """

    system: str = ""
    serial: str = ""
    model: str = ""
    power: str = ""
    macs: Mapping[str, bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Firmware:
    """A piece of a BMC's list of firmware; ``version`` is empty if the BMC lists none."""

    identity: str
    name: str
    version: str


@dataclass(frozen=True)
class Settings:
    """BIOS settings and firmware as a BMC lists them, or why it does not.

    A setting is a text, a number or a truth value, as Redfish has it.
    """

    bios: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    bios_error: str = ""
    firmware: tuple[Firmware, ...] = ()
    firmware_error: str = ""

    @classmethod
    def unknown(cls, reason: str) -> Settings:
        """Return that neither is known, for one reason."""
        return cls(bios_error=reason, firmware_error=reason)


class Machine(Protocol):
    """A node as a protocol reaches it. Nothing is cached: each call asks the BMC."""

    def power(self) -> str:
        """Return ``On``, ``Off``, or another state of the BMC."""

    def read_status(self) -> PowerStatus:
        """Return power, boot target and serial number."""

    def switch(self, on: bool) -> None:
        """Order the node on or off at once, without a shutdown of its operating system."""

    def boot_from_network(self) -> None:
        """Order the next boot from the network."""

    def boot_as_set_up(self) -> None:
        """Cancel an order to boot from the network."""


OpenMachine = Callable[[], AbstractContextManager[Machine]]
"""Reaches one node, for as long as the context lasts."""


def read_power_status(open_machine: OpenMachine) -> PowerStatus:
    """Return power, boot target and serial number of a node.

    Raises:
        BmcError: Its BMC does not answer, or refuses.
    """
    with open_machine() as machine:
        return machine.read_status()


def wait_for_settings(node: str, access: Access, read: Callable[[], Settings], timeout_s: float) -> Settings:
    """Return the settings that a BMC reports, or the reason why it does not finish.

    Args:
        node: The node.
        access: Its BMC.
        read: Reads them; ends after about ``timeout_s`` where the BMC answers at all.
        timeout_s: Seconds after which no further request is made. A BMC that has not answered a little later
            is abandoned.
    """
    answers: queue.SimpleQueue[Settings] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(read())
        except Exception as error:
            # A library that stumbles over this BMC's answer: the answer is the error, not the playbook's
            # crash.
            answers.put(
                Settings.unknown(
                    f"{node}: the answer of its BMC at {access.display_address} cannot be read: "
                    f"{sanitize(error, 200)}"
                )
            )

    # The library's own time limit is one between two bytes, so that a slow BMC could hold us for hours. A
    # thread cannot be ended, but nothing has to wait for it, and as a daemon it does not keep the process
    # alive.
    threading.Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=timeout_s + access.call_timeout_s)
    except queue.Empty:
        return Settings.unknown(
            f"{node}: its BMC at {access.display_address} did not finish within {timeout_s:g} s"
        )


def set_boot(node: str, open_machine: OpenMachine, target: Literal["pxe", "disk"]) -> PowerStatus:
    """Set a node to boot over the network once, or as configured; return the status that the BMC reads back.

    Args:
        node: The node.
        open_machine: Reaches it.
        target: ``pxe`` for the next boot only; ``disk`` cancels that.

    Raises:
        BmcError: It does not answer, refuses, or reads back something else than was set.
    """
    with open_machine() as machine:
        if target == "pxe":
            machine.boot_from_network()
        else:
            machine.boot_as_set_up()
        status = machine.read_status()
        # Some BMCs keep "Once" as "Continuous" until the boot: that boots over the network, too.
        if target == "pxe" and (status.boot != "Pxe" or status.boot_enabled not in ("Once", "Continuous")):
            raise BmcError(
                f"{node}: its BMC accepted the order to boot over the network once, but reads back "
                f"{status.boot or 'nothing'} ({status.boot_enabled or 'nothing'}): set it in the BIOS, "
                "or update the BMC's firmware"
            )
        if target == "disk" and status.boot == "Pxe" and status.boot_enabled != "Disabled":
            raise BmcError(
                f"{node}: its BMC would boot it over the network again ({status.boot_enabled}): set its boot "
                "order back by hand before it reboots"
            )
        return status


def set_power(
    node: str,
    open_machine: OpenMachine,
    wanted: Literal["on", "off", "cycle"],
    *,
    timeout_s: float = 120,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> PowerStatus:
    """Switch a node on or off, or off and on again; return its status when that has happened.

    Args:
        node: The node.
        open_machine: Reaches it.
        wanted: The wanted state.
        timeout_s: Seconds that each of off and on may take.
        sleep: Waits.
        clock: Seconds.

    Raises:
        BmcError: It does not answer, refuses, or the node does not reach the wanted state in time.
    """

    def wait_for(machine: Machine, state: str) -> None:
        end = clock() + timeout_s
        while (power := machine.power()) != state:
            if clock() >= end:
                raise BmcError(
                    f"{node}: its BMC accepted the order, but {timeout_s:.0f} s later the node is "
                    f"{power or 'in an unknown state'} and not {state}: see its log"
                )
            sleep(POLL_S)

    with open_machine() as machine:
        for order, state in (("off", "Off"), ("on", "On")):
            # A node that is off already gets no order: some BMCs refuse an order that changes nothing.
            if wanted in (order, "cycle") and machine.power() != state:
                machine.switch(on=order == "on")
                wait_for(machine, state)
        return machine.read_status()
