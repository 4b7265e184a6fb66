"""Control a machine through Redfish, with the library ``sushy`` from OpenStack Ironic.

If ``reimage_bmc_protocol`` is redfish, :mod:`rackproof.jobs.reimage.tasks` calls :func:`open_machine`, and
gets a :class:`RedfishMachine`. Redfish is an HTTP interface of a BMC. Its JSON resources form a tree, which
begins at the root. A BMC may list several machines, which Redfish calls systems. sushy is imported in
functions, because it is an optional dependency (``rackproof[ansible]``) that IPMI does not need.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from rackproof.core.text import amount, sanitize
from rackproof.jobs.reimage import redfish_http
from rackproof.jobs.reimage.bmc import (
    Access,
    BmcError,
    BmcSilentError,
    Firmware,
    MachineIdentity,
    PowerStatus,
    Settings,
    unreadable,
)


@contextmanager
def open_root(node: str, access: Access) -> Iterator[Any]:
    """Open a session with a BMC, yield sushy's object for the root, and translate errors.

    Raises:
        BmcError: sushy is not installed, the address is malformed, or plain HTTP would reveal the password.
            Or the BMC does not answer, refuses, or does not support Redfish. Requests in the context may
            also raise it.
    """
    try:
        import sushy
        from sushy import auth, connector, exceptions
    except ImportError:
        raise BmcError(
            f"{node}: the Python package sushy is not installed on this machine, and Redfish needs it: "
            "pip install 'rackproof[ansible]'"
        ) from None
    redfish_http.refuse_plain_http(node, access)
    address = access.display_address
    # With a session, the BMC checks the login once, and not for each request. A BMC without sessions gets the
    # password each time.
    session = auth.SessionOrBasicAuth(username=access.user, password=access.password) if access.user else None
    http = connector.Connector(
        redfish_http.redfish_url(access.address),
        # A pinned certificate replaces the check of authority and name. BMC certificates seldom contain the
        # BMC's name.
        verify=access.verify if not access.fingerprint else False,
        # A busy BMC answers with status 500 or above, and answers normally a second later.
        server_side_retries=2,
        server_side_retries_delay=1,
        default_request_timeout=access.call_timeout_s,
        connect_timeout=min(10.0, access.call_timeout_s),
    )
    # Limit the size and time of answers, and pin the certificate. sushy has no options for this.
    adapter = redfish_http.limit_answers(http._session, access)
    try:
        yield sushy.Sushy(redfish_http.redfish_url(access.address), auth=session, connector=http)
    except exceptions.AccessError as error:
        raise BmcError(
            f"{node}: its BMC at {address} refuses the login of "
            f"{sanitize(access.user or 'an unnamed account', 60)} "
            f"(status {error.status_code}): check reimage_bmc_user and reimage_bmc_password in Vault, "
            "and whether the account is locked"
        ) from None
    except exceptions.ConnectionError as error:
        raise _unreachable(node, access, sanitize(error, 300)) from None
    except exceptions.HTTPError as error:
        raise BmcError(
            f"{node}: its BMC at {address} refuses with status {error.status_code}: {sanitize(error, 300)}. "
            "See its log of events; its firmware may require another order"
        ) from None
    except (exceptions.SushyError, ValueError) as error:
        raise BmcError(
            f"{node}: its BMC at {address} does not answer with Redfish, or lacks a resource: "
            f"{sanitize(error, 300)}. Is this the BMC's address, and its firmware recent?"
        ) from None
    except BmcError:
        raise
    except Exception as error:
        # sushy does not check the types in an answer, so a wrong type causes an error of any class.
        raise BmcError(unreadable(node, access, error)) from None
    finally:
        if unclosed := redfish_http.close_sessions(http._session, adapter):
            _note_unclosed(node, access, unclosed)
        if session is not None:
            # Without this, sushy would try to close the session again when the object is freed. Before the
            # first answer, sushy has no session to reset, and raises AttributeError.
            with contextlib.suppress(AttributeError):
                session.reset_session_attrs()


def _note_unclosed(node: str, access: Access, unclosed: int) -> None:
    """Add a remark about sessions that stay open. While all its sessions are open, a BMC refuses logins."""
    access.remarks.append(
        f"{node}: {unclosed} sessions with its BMC at {access.display_address} could not be closed, and stay "
        "open until they expire: the BMC did not name their place, or refused. It refuses logins while all "
        "its sessions are open; then close them on its own page, or update its firmware"
    )


def _unreachable(node: str, access: Access, reason: str) -> BmcError:
    """Return the error for a failed connection, by its reason."""
    # sushy has one class for all failed connections, so only the text shows the reason. Remove the BMC's own
    # name, which may contain one of the words.
    host = re.escape(urlsplit(redfish_http.redfish_url(access.address)).hostname or "")
    fault = re.sub(rf"(?<![\w.-]){host}(?![\w-])", "", reason.lower())
    if any(word in fault for word in ("certificate", "ssl", "fingerprint")):
        return _untrusted(node, access)
    if "does not end" in reason or "redirects to another" in reason:
        return BmcError(f"{node}: its BMC at {access.display_address} was not trusted: {reason}")
    return BmcSilentError(
        f"{node}: its BMC at {access.display_address} does not answer ({reason}): is it powered, is its "
        "network up? Try to reach it from this machine; a hung one needs its reset button or its power taken "
        "away"
    )


def _untrusted(node: str, access: Access) -> BmcError:
    """Return the error about an untrusted certificate, with its fingerprint and the remedy."""
    sha256 = redfish_http.read_fingerprint(access) or "unknown"
    if access.fingerprint:
        return BmcError(
            f"{node}: the certificate of its BMC at {access.display_address} is not the pinned one; its "
            f"SHA-256 is {sha256}. Was the BMC replaced or reset? Then change reimage_bmc_fingerprint; else "
            "another machine answers in its place. No password was sent"
        )
    return BmcError(
        f"{node}: the certificate of its BMC at {access.display_address} is not trusted: put its "
        "authority's into a file and name that with reimage_bmc_ca_file; where it signs itself, compare "
        f"SHA-256 {sha256} with the one that the BMC's own page shows, and set reimage_bmc_fingerprint to "
        "it. No password was sent"
    )


@contextmanager
def open_machine(node: str, access: Access) -> Iterator[RedfishMachine]:
    """Open a session with a node's BMC, and yield the node's machine.

    Raises:
        BmcError: The connection fails (see :func:`open_root`), or the BMC lists several systems and the
            node's is not given.
    """
    with open_root(node, access) as root:
        yield RedfishMachine(_choose_system(node, root, access))


def list_systems(node: str, access: Access) -> tuple[MachineIdentity, ...]:
    """Return the systems that a BMC lists.

    Raises:
        BmcError: The connection fails (see :func:`open_root`).
    """
    with open_root(node, access) as root:
        return tuple(_identify(node, system) for system in _members(node, root.get_system_collection()))


def _members(node: str, collection: Any) -> list[Any]:
    """Return the members of a collection.

    Raises:
        BmcError: The BMC lists more than :data:`redfish_http.MOST_MEMBERS`.
    """
    count = len(collection.members_identities)
    if count > redfish_http.MOST_MEMBERS:
        raise BmcError(
            f"{node}: its BMC lists {count:,} systems or interfaces, more than {redfish_http.MOST_MEMBERS}: "
            "is this its address, and its firmware recent?"
        )
    members: list[Any] = collection.get_members()
    return members


def _identify(node: str, system: Any) -> MachineIdentity:
    """Return the identity of one system, which a BMC lists as sushy's object."""
    names = (sanitize(system.manufacturer or "", 60), sanitize(system.model or "", 60))
    return MachineIdentity(
        system=sanitize(system.identity, 100),
        serial=_serial(system),
        model=" ".join(name for name in names if name),
        power=_plain_text(system.power_state),
        macs=_macs(node, system),
    )


def _macs(node: str, system: Any) -> dict[str, bool | None]:
    """Return the MAC addresses of a system, each with whether its link is up, or None if that is unknown.

    The dict is empty if the BMC does not list the system's interfaces.
    """
    from sushy import exceptions

    links = {"LinkUp": True, "LinkDown": False, "NoLink": False}
    try:
        return {
            sanitize(port.mac_address, 40): links.get(str(port.json.get("LinkStatus")))
            for port in _members(node, system.ethernet_interfaces)
            if port.mac_address
        }
    except (exceptions.MissingAttributeError, exceptions.HTTPError):
        # Some BMCs do not list the machine's interfaces. The serial number is enough to identify it, and
        # the absence of MAC addresses is reported.
        return {}


def read_settings(
    node: str, access: Access, timeout_s: float, clock: Callable[[], float] = time.monotonic
) -> Settings:
    """Return a node's BIOS settings and firmware, or the reason why each is unknown or incomplete.

    No further piece of firmware is requested after ``timeout_s`` seconds.
    """
    end = clock() + timeout_s
    settings = Settings()
    # Open two connections, so that one answer remains if the BMC fails at the other.
    try:
        with open_root(node, access) as root:
            settings = dataclasses.replace(settings, bios=_bios(node, _choose_system(node, root, access)))
    except BmcError as error:
        settings = dataclasses.replace(settings, bios_error=str(error))
    try:
        with open_root(node, access) as root:
            pieces, reason = _firmware(node, root, lambda: clock() < end)
            return dataclasses.replace(settings, firmware=pieces, firmware_error=reason)
    except BmcError as error:
        return dataclasses.replace(settings, firmware_error=str(error))


def _bios(node: str, system: Any) -> dict[str, str | int | float | bool]:
    """Return the BIOS settings that a BMC shows.

    Raises:
        BmcError: The BMC shows none.
    """
    from sushy import exceptions

    try:
        attributes = system.bios.attributes
    except (exceptions.MissingAttributeError, exceptions.ResourceNotFoundError):
        attributes = None
    # Some BMCs read the settings only while the machine is on, so an empty list means that they are unknown.
    if not isinstance(attributes, dict) or not attributes:
        raise BmcError(
            f"{node}: its BMC shows no BIOS settings: is its firmware recent, was the node on once?"
        )
    return {
        sanitize(name, 100): value if isinstance(value, bool | int | float) else sanitize(value, 200)
        for name, value in attributes.items()
        if value is not None
    }


def _firmware(node: str, root: Any, in_time: Callable[[], bool]) -> tuple[tuple[Firmware, ...], str]:
    """Return the pieces of firmware that a BMC lists, and the reason why the list is incomplete."""
    from sushy import exceptions

    try:
        inventory = root.get_update_service().firmware_inventory
    except (exceptions.MissingAttributeError, exceptions.ResourceNotFoundError):
        return (), f"{node}: its BMC lists no firmware: is its own recent?"
    pieces: list[Firmware] = []
    for path in inventory.members_identities:
        if not in_time():
            reason = f"{node}: its BMC is slow: of its firmware only {len(pieces)} pieces were requested"
            return tuple(pieces), reason
        try:
            piece = inventory.get_member(path)
        except exceptions.ResourceNotFoundError:
            # The BMC lists a piece that does not exist, for example because its part is off. Its version is
            # unknown.
            name = sanitize(str(path).rstrip("/").rpartition("/")[2], 100)
            pieces.append(Firmware(name, name, ""))
            continue
        pieces.append(
            Firmware(
                sanitize(piece.identity, 100), sanitize(piece.name, 100), sanitize(piece.version or "", 100)
            )
        )
    return tuple(pieces), ""


def _serial(system: Any) -> str:
    """Return the serial number that the machine's operating system also reports."""
    # Dell's SerialNumber is that of the board. DMI has the service tag, which Dell puts into the field SKU.
    if (system.manufacturer or "").lower().startswith("dell") and system.sku:
        return sanitize(system.sku, 60)
    return sanitize(system.serial_number or "", 60)


def _choose_system(node: str, root: Any, access: Access) -> Any:
    """Return the requested system of a BMC, or its only one.

    Raises:
        BmcError: The BMC does not list exactly one such system.
    """
    members = _members(node, root.get_system_collection())
    fitting = [system for system in members if access.system in ("", system.identity)]
    if len(fitting) != 1:
        listed = ", ".join(sanitize(system.identity, 60) for system in members) or "none"
        problem = (
            f"no system {sanitize(access.system, 60)}" if access.system else amount(len(fitting), "system")
        )
        raise BmcError(
            f"{node}: its BMC lists {problem}; there are: {listed}. Name the node's with reimage_bmc_system"
        )
    return fitting[0]


class RedfishMachine:
    """A system of a BMC, with the methods of :class:`rackproof.jobs.reimage.bmc.Machine`."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def power(self) -> str:
        """Return the power state of the node."""
        # sushy caches answers. Without force, this would return an old power state.
        self._system.refresh(force=True)
        return _plain_text(self._system.power_state)

    def read_status(self) -> PowerStatus:
        """Return power, boot target and serial number."""
        power = self.power()
        boot = self._system.boot or {}
        return PowerStatus(
            power=power,
            boot=_plain_text(boot.get("target")),
            boot_enabled=_plain_text(boot.get("enabled")),
            serial=_serial(self._system),
        )

    def switch(self, on: bool) -> None:
        """Request that the BMC switch the node on or off."""
        import sushy

        # Switch off at once. The node is drained, and a hung system would never shut down.
        self._system.reset_system(sushy.ResetType.ON if on else sushy.ResetType.FORCE_OFF)

    def boot_from_network(self) -> None:
        """Request that only the next boot is from the network."""
        import sushy

        self._system.set_system_boot_options(
            target=sushy.BootSource.PXE, enabled=sushy.BootSourceOverrideEnabled.ONCE
        )

    def boot_as_set_up(self) -> None:
        """Cancel a boot from the network. If the BMC does not cancel it, request all boots from disk."""
        import sushy
        from sushy import exceptions

        try:
            self._system.set_system_boot_options(enabled=sushy.BootSourceOverrideEnabled.DISABLED)
            status = self.read_status()
            if status.boot_enabled == "Disabled" or status.boot != "Pxe":
                return
        except (exceptions.HTTPError, exceptions.InvalidParameterValueError):
            pass
        self._system.set_system_boot_options(
            target=sushy.BootSource.HDD, enabled=sushy.BootSourceOverrideEnabled.CONTINUOUS
        )


def _plain_text(value: object) -> str:
    """Return a value, or the value of one of sushy's enumerations, as sanitized text."""
    return sanitize(getattr(value, "value", value) or "", 40)
