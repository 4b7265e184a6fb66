"""What the modules of BMCs share: access, answers, errors, and the interface of a protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rackproof.core.errors import RackproofError
from rackproof.core.text import sanitize

CALL_TIMEOUT_S = 20.0


class BmcError(RackproofError):
    """A BMC did not do what it was asked; the message names the node, the reason, and what to do."""


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
    # Neither a traceback nor an error's text may show it.
    password: str = field(default="", repr=False)
    verify: bool | str = True
    system: str = ""
    call_timeout_s: float = CALL_TIMEOUT_S
    protocol: str = "redfish"
    uefi: bool = True

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Access:
        """Return the access that a plugin's options describe; options that are not there keep the default."""
        names = ("address", "user", "password", "system", "protocol", "uefi")
        given = {"address": "", **{name: options[name] for name in names if name in options}}
        return cls(verify=options.get("ca_file") or True, **given)

    @property
    def display_address(self) -> str:
        """The address as an error shows it."""
        return sanitize(self.address, 120)


@dataclass(frozen=True)
class PowerStatus:
    """Power and boot target of a node, in Redfish's words whatever the protocol, and its serial number."""

    power: str
    boot: str
    boot_enabled: str
    serial: str


@dataclass(frozen=True)
class MachineIdentity:
    """Which machine it is, as its BMC or its own boot report describes it.

    ``macs`` has its network interfaces, each with whether its link is up; None is not known.
    """

    system: str = ""
    serial: str = ""
    model: str = ""
    power: str = ""
    macs: Mapping[str, bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Firmware:
    """A piece of a BMC's list of firmware; ``version`` is empty where the BMC lists none."""

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
