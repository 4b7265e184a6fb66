"""Read and set a node's power, boot and settings through its BMC, with any protocol.

A BMC is the small computer in a server that switches the server on and off. The action plugin
``rackproof_reimage_bmc`` calls this module with a function of :mod:`rackproof.jobs.reimage.tasks` that opens
a :class:`Machine` by the protocol ``redfish`` or ``ipmi``. The plugins ``rackproof_reimage_discover`` and
``rackproof_reimage_record`` use its :class:`Access`.

Every wait is limited. An error gives the node or the address, the BMC's answer, and a remedy if there is one.
Power and boot target are read back, because some BMCs accept a request and ignore it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rackproof.core.errors import RackproofError
from rackproof.core.text import sanitize
from rackproof.core.time_limits import answer_within

CALL_TIMEOUT_S = 20.0
"""Default limit of one call. Longer limits grow with ``reimage_bmc_timeout_s`` (:attr:`Access.patience`)."""
POLL_S = 2.0
"""Seconds between two queries of the power."""
SETTINGS_S = 180.0
"""Seconds in which a BMC must list its BIOS settings and firmware."""
NO_ADDRESS = "no address of its BMC is known: set reimage_bmc_address in the inventory"


class BmcError(RackproofError):
    """A request that a BMC did not fulfil. The message gives the node or the address, and the reason."""


class BmcSilentError(BmcError):
    """A BMC's address that does not answer."""


@dataclass(frozen=True)
class Access:
    """The access to a BMC: address, login and protocol.

    Attributes:
        verify: The path of a file of certificate authorities, or whether to check the certificate (Redfish).
        system: The id of the node among the BMC's systems, or "" if there is one system (Redfish).
        fingerprint: The SHA-256 of the only certificate to accept, from any issuer (Redfish).
        uefi: Whether a network boot uses UEFI (IPMI). Redfish uses the node's configuration.
        cipher_suite: The number of the cipher suite (IPMI). 17 uses SHA-256 and AES.
        call_timeout_s: The seconds that the BMC may take for an answer.
        remarks: Texts for the operator that are no reason to fail, the oldest first.
    """

    address: str
    user: str = ""
    # The password must not appear in a traceback or in the text of an error.
    password: str = field(default="", repr=False)
    verify: bool | str = True
    system: str = ""
    call_timeout_s: float = CALL_TIMEOUT_S
    protocol: str = "redfish"
    uefi: bool = True
    fingerprint: str = ""
    cipher_suite: int = 17
    remarks: list[str] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Access:
        """Return the access from a plugin's options, with defaults for missing options."""
        names = (
            *("address", "user", "password", "system", "protocol", "uefi"),
            *("fingerprint", "cipher_suite", "call_timeout_s"),
        )
        connection = {"address": "", **{name: options[name] for name in names if name in options}}
        return cls(verify=options.get("ca_file") or True, **connection)

    @property
    def patience(self) -> float:
        """Return the factor of all limits that are longer than one call, at least 1."""
        return max(1.0, self.call_timeout_s / CALL_TIMEOUT_S)

    @property
    def display_address(self) -> str:
        """Return the address in the form used in errors."""
        return sanitize(self.address, 120)


@dataclass(frozen=True)
class PowerStatus:
    """The power, boot target and serial number of a node, in Redfish's terms for any protocol.

    Attributes:
        power: ``On``, ``Off``, another state, or "" if unknown.
        boot: The device that replaces the configured boot order, such as ``Pxe`` (network), ``Hdd`` or
            ``None``.
        boot_enabled: ``Once``, ``Continuous`` or ``Disabled``, or "" if unknown.
        serial: The serial number of the machine, or "" if unknown.
    """

    power: str
    boot: str
    boot_enabled: str
    serial: str


@dataclass(frozen=True)
class MachineIdentity:
    """The identity of a machine, from its BMC or its own boot report.

    An unknown value is empty. ``system`` is the machine's id in its BMC. ``macs`` states by MAC address
    whether the link is up. None means unknown.
    """

    system: str = ""
    serial: str = ""
    model: str = ""
    power: str = ""
    macs: Mapping[str, bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Firmware:
    """A piece of firmware in a BMC's list. ``version`` is empty if the BMC lists none.

    ``identity`` is the BMC's id of the piece. Several pieces may have the same ``name``.
    """

    identity: str
    name: str
    version: str


@dataclass(frozen=True)
class Settings:
    """The BIOS settings and firmware that a BMC lists, or the reason why it lists none.

    A setting is a text, a number or a boolean, as in Redfish.
    """

    bios: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    bios_error: str = ""
    firmware: tuple[Firmware, ...] = ()
    firmware_error: str = ""

    @classmethod
    def unknown(cls, reason: str) -> Settings:
        """Return settings that are both unknown for the same reason."""
        return cls(bios_error=reason, firmware_error=reason)


class Machine(Protocol):
    """A node's machine, as accessed through any protocol.

    Each call queries the BMC. Only a serial number and a model, which do not change, may be kept.
    """

    def power(self) -> str:
        """Return ``On``, ``Off``, another state that the BMC reports, or "" if it is unknown."""

    def read_status(self) -> PowerStatus:
        """Return power, boot target and serial number."""

    def switch(self, on: bool) -> None:
        """Switch the node on or off at once, without a shutdown of its operating system."""

    def boot_from_network(self) -> None:
        """Request the next boot from the network."""

    def boot_as_set_up(self) -> None:
        """Cancel a request to boot from the network, or request a boot from disk instead."""


OpenMachine = Callable[[], AbstractContextManager[Machine]]
"""A function that opens one node for as long as the context lasts."""


def unreadable(node: str, access: Access, error: Exception) -> str:
    """Return the text about a BMC's answer on which a library failed with this error."""
    error_text = sanitize(error, 200)
    return (
        f"{node}: the answer of its BMC at {access.display_address} cannot be read: "
        f"{error_text} ({type(error).__name__})"
    )


def read_power_status(open_machine: OpenMachine) -> PowerStatus:
    """Return power, boot target and serial number of a node.

    Raises:
        BmcError: The BMC of the node does not answer, or refuses.
    """
    with open_machine() as machine:
        return machine.read_status()


def wait_for_settings(node: str, access: Access, read: Callable[[], Settings], timeout_s: float) -> Settings:
    """Return a BMC's settings, or settings with the reason why they are unknown. Raise nothing.

    Args:
        node: The name of the node.
        access: The access to its BMC.
        read: A function that reads the settings, and ends after about ``timeout_s`` if the BMC answers at
            all.
        timeout_s: The seconds after which no further request is made. After the time of one more call, a
            request without an answer is abandoned.
    """
    try:
        return answer_within(timeout_s + access.call_timeout_s, read)
    except TimeoutError:
        return Settings.unknown(
            f"{node}: its BMC at {access.display_address} did not finish within {timeout_s:g} s"
        )
    except Exception as error:
        # A library failed on this BMC's answer: report the answer as an error instead of a
        # crash of the playbook.
        return Settings.unknown(unreadable(node, access, error))


def set_boot(node: str, open_machine: OpenMachine, target: Literal["pxe", "disk"]) -> PowerStatus:
    """Set a node to boot over the network once, or as configured. Return the status that was read back.

    Args:
        node: The name of the node.
        open_machine: The function that opens it.
        target: ``pxe`` for the next boot only, or ``disk``, which cancels a boot over the network.

    Raises:
        BmcError: The BMC does not answer, refuses, or reports another value than the value that was set. For
            ``disk``, an unknown value is accepted.
    """
    with open_machine() as machine:
        if target == "pxe":
            machine.boot_from_network()
        else:
            machine.boot_as_set_up()
        status = machine.read_status()
        # Until the boot, some BMCs report "Once" as "Continuous", which boots over the network too.
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
    """Switch a node on, off, or off and on again. Return its status afterwards.

    Args:
        node: The name of the node.
        open_machine: The function that opens it.
        wanted: The requested state.
        timeout_s: The seconds that each of off and on may take.
        sleep: A function that waits.
        clock: A function that returns the time in seconds.

    Raises:
        BmcError: The BMC does not answer or refuses, or the node does not reach the requested state in
            time.
    """

    def wait_for(machine: Machine, state: str) -> None:
        """Wait until the machine's power has the state.

        Raises:
            BmcError: The state is another one after ``timeout_s``.
        """
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
            # A node that is already off gets no request, because some BMCs refuse a request that changes
            # nothing.
            if wanted in (order, "cycle") and machine.power() != state:
                machine.switch(on=order == "on")
                wait_for(machine, state)
        return machine.read_status()
