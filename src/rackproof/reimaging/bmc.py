"""Power and boot of a node through Redfish, by the library ``sushy`` (OpenStack Ironic's).

Every call is bounded, and every error names the node, what its BMC said, and what to do. What was set is read
back: a BMC that accepts an order and forgets it is found here, and not by a node that boots its old disk.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from rackproof.text import clean

CALL_TIMEOUT_S = 20.0
POLL_S = 2.0


class BmcError(Exception):
    """A BMC did not do what it was asked; the message says which node's, why, and what to do."""


@dataclass(frozen=True)
class Access:
    """How a BMC is reached.

    ``verify`` is a file of certificates, or whether the certificate is checked at all; ``system`` the id of
    the node among the systems that the BMC lists, empty where it lists one.
    """

    address: str
    user: str = ""
    password: str = field(default="", repr=False)
    verify: bool | str = True
    system: str = ""
    call_timeout_s: float = CALL_TIMEOUT_S


@dataclass(frozen=True)
class Power:
    """What a node's BMC says: ``power`` and ``boot`` as Redfish words them, and its serial number."""

    power: str
    boot: str
    boot_enabled: str
    serial: str


def url(address: str) -> str:
    """Return the address of a BMC as sushy wants it; https unless it says otherwise."""
    return address if re.match(r"https?://", address) else f"https://{address}"


@contextmanager
def _system(node: str, access: Access) -> Iterator[Any]:
    """Open a session, find the system, and translate what goes wrong."""
    try:
        import sushy
        from sushy import auth, exceptions
    except ImportError:
        raise BmcError(
            f"{node}: the Python package sushy is not installed on this machine, and Redfish needs it: "
            "pip install 'rackproof[ansible]'"
        ) from None
    place = clean(access.address, 120)
    if not access.address:
        raise BmcError(f"{node}: no address of its BMC is known: set reimage_bmc_address in the inventory")
    session = auth.SessionOrBasicAuth(username=access.user, password=access.password) if access.user else None
    try:
        root = sushy.Sushy(
            url(access.address),
            auth=session,
            verify=access.verify,
            server_side_retries=2,
            server_side_retries_delay=1,
            read_timeout=access.call_timeout_s,
            connect_timeout=min(10.0, access.call_timeout_s),
        )
        yield _choose(node, root, access)
    except exceptions.AccessError as error:
        raise BmcError(
            f"{node}: its BMC at {place} refuses the login of {clean(access.user or 'nobody', 60)} "
            f"(status {error.status_code}): check reimage_bmc_user and reimage_bmc_password in Vault, "
            "and whether the account is locked"
        ) from None
    except exceptions.ConnectionError as error:
        said = clean(error, 300)
        if "certificate" in said.lower() or "ssl" in said.lower():
            raise BmcError(
                f"{node}: the certificate of its BMC at {place} is not trusted: put its authority's into "
                "a file and name that with reimage_bmc_ca_file"
            ) from None
        raise BmcError(
            f"{node}: its BMC at {place} does not answer ({said}): is it powered, is its network up? Try to "
            "reach it from this machine; a hung one needs its reset button or its power taken away"
        ) from None
    except exceptions.HTTPError as error:
        raise BmcError(
            f"{node}: its BMC at {place} refuses with status {error.status_code}: {clean(error, 300)}. "
            "See its log of events; its firmware may want another order"
        ) from None
    except (exceptions.SushyError, ValueError) as error:
        raise BmcError(
            f"{node}: its BMC at {place} answers what is no Redfish, or lacks what is needed: "
            f"{clean(error, 300)}. Is this the BMC's address, and its firmware recent?"
        ) from None
    finally:
        if session is not None:
            with contextlib.suppress(Exception):
                session.close()


def _choose(node: str, root: Any, access: Access) -> Any:
    members = root.get_system_collection().get_members()
    found = [one for one in members if access.system in ("", one.identity)]
    if len(found) != 1:
        there = ", ".join(clean(one.identity, 60) for one in members) or "none"
        wanted = f"no system {clean(access.system, 60)}" if access.system else f"{len(found)} systems"
        raise BmcError(
            f"{node}: its BMC lists {wanted}; there are: {there}. Name the node's with reimage_bmc_system"
        )
    return found[0]


def look(node: str, access: Access) -> Power:
    """Return what the BMC says of a node.

    Raises:
        BmcError: It does not answer, or refuses.
    """
    with _system(node, access) as system:
        return _said(system)


def _said(system: Any) -> Power:
    boot = system.boot or {}
    return Power(
        power=_word(system.power_state),
        boot=_word(boot.get("target")),
        boot_enabled=_word(boot.get("enabled")),
        serial=clean(system.serial_number or "", 60),
    )


def _word(value: object) -> str:
    return clean(getattr(value, "value", value) or "", 40)


def set_boot(node: str, access: Access, target: Literal["pxe", "disk"]) -> Power:
    """Let a node boot over the network once, or as it is set up; return what the BMC says then.

    Args:
        node: The node.
        access: Its BMC.
        target: ``pxe`` for the next boot only; ``disk`` sets that back.

    Raises:
        BmcError: It does not answer, refuses, or says afterwards something else than was set.
    """
    import sushy

    with _system(node, access) as system:
        if target == "pxe":
            system.set_system_boot_options(
                target=sushy.BootSource.PXE, enabled=sushy.BootSourceOverrideEnabled.ONCE
            )
        else:
            _unset(system)
        system.refresh(force=True)
        now = _said(system)
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


def _unset(system: Any) -> None:
    """Take an override back; BMCs that cannot disable it are told to boot from disk."""
    import sushy
    from sushy import exceptions

    try:
        system.set_system_boot_options(enabled=sushy.BootSourceOverrideEnabled.DISABLED)
        system.refresh(force=True)
        if _said(system).boot_enabled == "Disabled" or _said(system).boot != "Pxe":
            return
    except (exceptions.HTTPError, exceptions.InvalidParameterValueError):
        pass
    system.set_system_boot_options(
        target=sushy.BootSource.HDD, enabled=sushy.BootSourceOverrideEnabled.CONTINUOUS
    )


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
    import sushy

    def until(system: Any, state: str) -> None:
        end = clock() + timeout_s
        while True:
            system.refresh(force=True)
            if _said(system).power == state:
                return
            if clock() >= end:
                raise BmcError(
                    f"{node}: its BMC took the order, but {timeout_s:.0f} s later the node is "
                    f"{_said(system).power or 'in no state that it says'} and not {state}: see its log"
                )
            sleep(POLL_S)

    with _system(node, access) as system:
        if wanted in ("off", "cycle") and _said(system).power != "Off":
            system.reset_system(sushy.ResetType.FORCE_OFF)
            until(system, "Off")
        if wanted in ("on", "cycle") and _said(system).power != "On":
            system.reset_system(sushy.ResetType.ON)
            until(system, "On")
        return _said(system)
