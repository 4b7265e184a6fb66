"""Power and boot of a node through its BMC, by Redfish or by IPMI.

Every wait is bounded, and every error names the node, what its BMC answered, and what to do. What was set is
read back: a BMC that accepts an order and forgets it is found here, not by a node that boots its old disk.
The two protocols are in ``redfish`` and ``ipmi``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

from rackproof.core.text import sanitize
from rackproof.jobs.reimage import ipmi, redfish
from rackproof.jobs.reimage.bmc_types import Access, BmcError, Machine, MachineIdentity, PowerStatus, Settings

POLL_S = 2.0
SETTINGS_S = 180.0
PROTOCOLS = ("redfish", "ipmi")


def _open(node: str, access: Access) -> AbstractContextManager[Machine]:
    if not access.address:
        raise BmcError(_no_address(node))
    if access.protocol == "ipmi":
        return ipmi.open_machine(node, access)
    return redfish.open_machine(node, access)


def _no_address(node: str) -> str:
    return f"{node}: no address of its BMC is known: set reimage_bmc_address in the inventory"


def read_power_status(node: str, access: Access) -> PowerStatus:
    """Return power, boot target and serial number of a node.

    Raises:
        BmcError: Its BMC does not answer, or refuses.
    """
    with _open(node, access) as machine:
        return machine.read_status()


def list_systems(node: str, access: Access) -> tuple[MachineIdentity, ...]:
    """Return the machines that a BMC lists.

    Raises:
        BmcError: It does not answer, or refuses.
    """
    if access.protocol == "ipmi":
        return ipmi.list_systems(node, access)
    return redfish.list_systems(node, access)


def read_settings(node: str, access: Access, *, timeout_s: float = SETTINGS_S) -> Settings:
    """Return BIOS settings and firmware of a node, or for each of the two why it is not known.

    Args:
        node: The node.
        access: Its BMC.
        timeout_s: Seconds after which no more is asked for: some BMCs list a hundred pieces of firmware. A
            BMC that has not answered a little later is abandoned.
    """
    if access.protocol == "ipmi":
        return _unknown_settings(f"{node}: IPMI lists neither BIOS settings nor firmware")
    if not access.address:
        return _unknown_settings(_no_address(node))
    answers: queue.SimpleQueue[Settings] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(redfish.read_settings(node, access, timeout_s))
        except Exception as error:
            # A library that stumbles over this BMC's answer: the answer is the error, not the playbook's
            # crash.
            answers.put(
                _unknown_settings(
                    f"{node}: the answer of its BMC at {access.display_address} cannot be read: "
                    f"{sanitize(error, 200)}"
                )
            )

    # The library's own time limit is one between two bytes, so that a slow BMC could hold us for hours. A
    # thread cannot be ended, but nobody has to wait for it, and as a daemon it does not keep the process
    # alive.
    threading.Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=timeout_s + access.call_timeout_s)
    except queue.Empty:
        return _unknown_settings(
            f"{node}: its BMC at {access.display_address} did not finish within {timeout_s:g} s"
        )


def _unknown_settings(error: str) -> Settings:
    return Settings(bios_error=error, firmware_error=error)


def set_boot(node: str, access: Access, target: Literal["pxe", "disk"]) -> PowerStatus:
    """Let a node boot over the network once, or as it is set up; return the status that the BMC reads back.

    Args:
        node: The node.
        access: Its BMC.
        target: ``pxe`` for the next boot only; ``disk`` cancels that.

    Raises:
        BmcError: It does not answer, refuses, or reads back something else than was set.
    """
    with _open(node, access) as machine:
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
    access: Access,
    wanted: Literal["on", "off", "cycle"],
    *,
    timeout_s: float = 120,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> PowerStatus:
    """Switch a node on or off, or off and on again; return its status when that has happened.

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

    def wait_for(machine: Machine, state: str) -> None:
        end = clock() + timeout_s
        while (power := machine.power()) != state:
            if clock() >= end:
                raise BmcError(
                    f"{node}: its BMC accepted the order, but {timeout_s:.0f} s later the node is "
                    f"{power or 'in an unknown state'} and not {state}: see its log"
                )
            sleep(POLL_S)

    with _open(node, access) as machine:
        for order, state in (("off", "Off"), ("on", "On")):
            # A node that is off already gets no order: some BMCs refuse an order that changes nothing.
            if wanted in (order, "cycle") and machine.power() != state:
                machine.switch(on=order == "on")
                wait_for(machine, state)
        return machine.read_status()
