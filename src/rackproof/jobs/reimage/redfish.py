"""Redfish, by the library ``sushy`` (OpenStack Ironic's)."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rackproof.core.text import sanitize
from rackproof.jobs.reimage.bmc import About, Access, BmcError, BmcSilentError, Firmware, Power, Settings


def url(address: str) -> str:
    """Return the address of a BMC as sushy wants it; https unless it says otherwise."""
    return address if re.match(r"https?://", address) else f"https://{address}"


@contextmanager
def connect(node: str, access: Access) -> Iterator[Any]:
    """Open a session, give its root, and translate what goes wrong.

    Raises:
        BmcError: The BMC does not answer, refuses, or speaks no Redfish; also for what is asked meanwhile.
    """
    try:
        import sushy
        from sushy import auth, exceptions
    except ImportError:
        raise BmcError(
            f"{node}: the Python package sushy is not installed on this machine, and Redfish needs it: "
            "pip install 'rackproof[ansible]'"
        ) from None
    place = access.place
    session = auth.SessionOrBasicAuth(username=access.user, password=access.password) if access.user else None
    try:
        yield sushy.Sushy(
            url(access.address),
            auth=session,
            verify=access.verify,
            server_side_retries=2,
            server_side_retries_delay=1,
            read_timeout=access.call_timeout_s,
            connect_timeout=min(10.0, access.call_timeout_s),
        )
    except exceptions.AccessError as error:
        raise BmcError(
            f"{node}: its BMC at {place} refuses the login of {sanitize(access.user or 'nobody', 60)} "
            f"(status {error.status_code}): check reimage_bmc_user and reimage_bmc_password in Vault, "
            "and whether the account is locked"
        ) from None
    except exceptions.ConnectionError as error:
        said = sanitize(error, 300)
        if "certificate" in said.lower() or "ssl" in said.lower():
            raise BmcError(
                f"{node}: the certificate of its BMC at {place} is not trusted: put its authority's into "
                "a file and name that with reimage_bmc_ca_file"
            ) from None
        raise BmcSilentError(
            f"{node}: its BMC at {place} does not answer ({said}): is it powered, is its network up? Try to "
            "reach it from this machine; a hung one needs its reset button or its power taken away"
        ) from None
    except exceptions.HTTPError as error:
        raise BmcError(
            f"{node}: its BMC at {place} refuses with status {error.status_code}: {sanitize(error, 300)}. "
            "See its log of events; its firmware may want another order"
        ) from None
    except (exceptions.SushyError, ValueError) as error:
        raise BmcError(
            f"{node}: its BMC at {place} answers what is no Redfish, or lacks what is needed: "
            f"{sanitize(error, 300)}. Is this the BMC's address, and its firmware recent?"
        ) from None
    finally:
        if session is not None:
            # A session that cannot be closed ends by itself, and nothing that was done depends on it.
            with contextlib.suppress(Exception):
                session.close()


@contextmanager
def machine(node: str, access: Access) -> Iterator[RedfishMachine]:
    """Reach a node.

    Raises:
        BmcError: As :func:`connect`, or the node is not the only system of its BMC and not named.
    """
    with connect(node, access) as root:
        yield RedfishMachine(_choose(node, root, access))


def who(node: str, access: Access) -> tuple[About, ...]:
    """Return the systems that a BMC lists.

    Raises:
        BmcError: As :func:`connect`.
    """
    with connect(node, access) as root:
        return tuple(_about(one) for one in root.get_system_collection().get_members())


def _about(system: Any) -> About:
    names = (sanitize(system.manufacturer or "", 60), sanitize(system.model or "", 60))
    return About(
        system=sanitize(system.identity, 100),
        serial=_serial(system),
        model=" ".join(one for one in names if one),
        power=_word(system.power_state),
        macs=_macs(system),
    )


def _macs(system: Any) -> dict[str, bool | None]:
    from sushy import exceptions

    links = {"LinkUp": True, "LinkDown": False, "NoLink": False}
    try:
        return {
            sanitize(one.mac_address, 40): links.get(str(one.json.get("LinkStatus")))
            for one in system.ethernet_interfaces.get_members()
            if one.mac_address
        }
    except (exceptions.MissingAttributeError, exceptions.HTTPError):
        # Not every BMC knows the machine's interfaces, or shows them: who it is counts more, and that no MAC
        # address is known is reported.
        return {}


def settings(
    node: str, access: Access, timeout_s: float, clock: Callable[[], float] = time.monotonic
) -> Settings:
    """Return BIOS settings and firmware of a node; what cannot be had says why."""
    end = clock() + timeout_s
    found = Settings()
    # One connection each: what the BMC has of the one is kept where it fails at the other.
    try:
        with connect(node, access) as root:
            found = dataclasses.replace(found, bios=_bios(node, _choose(node, root, access)))
    except BmcError as error:
        found = dataclasses.replace(found, bios_why=str(error))
    try:
        with connect(node, access) as root:
            pieces, why = _firmware(node, root, lambda: clock() < end)
            return dataclasses.replace(found, firmware=pieces, firmware_why=why)
    except BmcError as error:
        return dataclasses.replace(found, firmware_why=str(error))


def _bios(node: str, system: Any) -> dict[str, str | int | float | bool]:
    from sushy import exceptions

    try:
        told = system.bios.attributes
    except (exceptions.MissingAttributeError, exceptions.ResourceNotFoundError):
        told = None
    if not isinstance(told, dict) or not told:
        raise BmcError(
            f"{node}: its BMC shows no BIOS settings: is its firmware recent, was the node on once?"
        )
    return {
        sanitize(name, 100): value if isinstance(value, bool | int | float) else sanitize(value, 200)
        for name, value in told.items()
        if value is not None
    }


def _firmware(node: str, root: Any, in_time: Callable[[], bool]) -> tuple[tuple[Firmware, ...], str]:
    from sushy import exceptions

    try:
        inventory = root.get_update_service().firmware_inventory
    except (exceptions.MissingAttributeError, exceptions.ResourceNotFoundError):
        return (), f"{node}: its BMC lists no firmware: is its own recent?"
    found: list[Firmware] = []
    for path in inventory.members_identities:
        if not in_time():
            return tuple(
                found
            ), f"{node}: its BMC is slow: of its firmware only {len(found)} pieces were asked for"
        try:
            one = inventory.get_member(path)
        except exceptions.ResourceNotFoundError:
            # A piece that is listed and not there (its part is off) is one whose version is not told.
            name = sanitize(str(path).rstrip("/").rpartition("/")[2], 100)
            found.append(Firmware(name, name, ""))
            continue
        found.append(
            Firmware(sanitize(one.identity, 100), sanitize(one.name, 100), sanitize(one.version or "", 100))
        )
    return tuple(found), ""


def _serial(system: Any) -> str:
    """Return the serial number that the machine's own system reads, too."""
    # Dell's SerialNumber is the board's; the service tag, which DMI has as the machine's, is the SKU.
    if (system.manufacturer or "").lower().startswith("dell") and system.sku:
        return sanitize(system.sku, 60)
    return sanitize(system.serial_number or "", 60)


def _choose(node: str, root: Any, access: Access) -> Any:
    members = root.get_system_collection().get_members()
    found = [one for one in members if access.system in ("", one.identity)]
    if len(found) != 1:
        there = ", ".join(sanitize(one.identity, 60) for one in members) or "none"
        wanted = f"no system {sanitize(access.system, 60)}" if access.system else f"{len(found)} systems"
        raise BmcError(
            f"{node}: its BMC lists {wanted}; there are: {there}. Name the node's with reimage_bmc_system"
        )
    return found[0]


class RedfishMachine:
    """A system of a BMC, as :class:`rackproof.jobs.reimage.bmc.Machine`."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def power(self) -> str:
        """Return the state of the node."""
        self._system.refresh(force=True)
        return _word(self._system.power_state)

    def said(self) -> Power:
        """Return all that the BMC says."""
        power = self.power()
        boot = self._system.boot or {}
        return Power(
            power=power,
            boot=_word(boot.get("target")),
            boot_enabled=_word(boot.get("enabled")),
            serial=_serial(self._system),
        )

    def switch(self, on: bool) -> None:
        """Order the node on or off."""
        import sushy

        self._system.reset_system(sushy.ResetType.ON if on else sushy.ResetType.FORCE_OFF)

    def boot_from_network(self) -> None:
        """Order the next boot from the network."""
        import sushy

        self._system.set_system_boot_options(
            target=sushy.BootSource.PXE, enabled=sushy.BootSourceOverrideEnabled.ONCE
        )

    def boot_as_set_up(self) -> None:
        """Take an override back; BMCs that cannot disable it are told to boot from disk."""
        import sushy
        from sushy import exceptions

        try:
            self._system.set_system_boot_options(enabled=sushy.BootSourceOverrideEnabled.DISABLED)
            now = self.said()
            if now.boot_enabled == "Disabled" or now.boot != "Pxe":
                return
        except (exceptions.HTTPError, exceptions.InvalidParameterValueError):
            pass
        self._system.set_system_boot_options(
            target=sushy.BootSource.HDD, enabled=sushy.BootSourceOverrideEnabled.CONTINUOUS
        )


def _word(value: object) -> str:
    return sanitize(getattr(value, "value", value) or "", 40)
