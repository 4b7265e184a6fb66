# SPDX-License-Identifier: Apache-2.0
"""Wait until a node's ports and its NVLink fabric are ready after a boot (Python 3.8+, Linux).

rackproof_facts_health calls :func:`settle` before it gathers the subset ``health``. Ports of InfiniBand
need a subnet manager, and GPUs a fabric manager or the switches of their domain. Both take a minute or more.
"""

from __future__ import annotations

import os
import time
from fnmatch import fnmatchcase

from ansible.module_utils.rackproof_tools import ask, list_folder, read

FABRIC = ["nvidia-smi", "--query-gpu=fabric.state", "--format=csv,noheader"]
STARTING_FABRIC = ("Not Started", "In Progress")
"""States of a GPU that is not yet a member of its fabric."""
STARTING_PORT = ("INIT", "ARMED")
"""States of a port that waits for a subnet manager."""
SWITCH_MANAGEMENT = "SW_MNG"
"""The mark in the product data of a bridge that manages NVSwitches."""
VPD_BYTES = 4096
"""Largest number of bytes to read of product data."""
PAUSE_S = 3.0
"""Seconds between two readings."""
READ_VPD: dict[str, str] = {}
"""Product data by path. A card takes long to answer, and does not change while the module runs."""


def manages_nvswitches(device):
    """Return whether a PCI device manages NVSwitches, by its vital product data, or None if it is unreadable.

    On an HGX B200 or B300, the switches have no PCI device. Bridges that look like network cards manage them.
    NVIDIA's start script of the fabric manager finds them by the same mark.
    """
    path = os.path.realpath(os.path.join(device, "vpd"))
    if not os.path.exists(path):
        return False
    text = READ_VPD.get(path) or read(path, VPD_BYTES)
    if not text:
        return None
    READ_VPD[path] = text
    return SWITCH_MANAGEMENT in text


def settle(wanted, cards, booted, timeout_s):
    """Wait until the wanted ports and the fabric are ready, or the time is over.

    Args:
        wanted: What to wait for: C(seconds), C(after) (``boot`` or ``now``), C(fabric), C(ports),
            C(port_layer), C(port_devices) and C(other_ports).
        cards: The folder of network cards in sysfs.
        booted: The time of the boot in seconds since 1970.
        timeout_s: Seconds that nvidia-smi may take.

    Returns:
        The seconds that it took, what it waited for last, and what was not ready at the end.
    """
    limit_s = float(wanted.get("seconds", 0))
    if wanted.get("after") == "boot":
        limit_s -= time.time() - booted
    waiting, awaited, waited_s, begin = [], [], 0.0, time.monotonic()
    asks_fabric = bool(wanted.get("fabric"))
    while limit_s > 0:
        fabric = unready_fabric(timeout_s) if asks_fabric else []
        asks_fabric = asks_fabric and fabric is not None
        waiting = [*(fabric or []), *unready_ports(wanted, cards)]
        waited_s = time.monotonic() - begin
        if not waiting or waited_s >= limit_s:
            break
        awaited = waiting
        time.sleep(min(PAUSE_S, limit_s - waited_s))
    return {"waited_s": waited_s, "awaited": awaited, "unready": waiting}


def unready_fabric(timeout_s):
    """Return in words how many GPUs are not yet members of their NVLink fabric.

    A tool that does not answer is left to the health checks. Return None if it is stuck in the driver, where
    a second one would be stuck, too.
    """
    answer = ask(FABRIC, timeout_s)
    if answer.get("stuck"):
        return None
    states = [line.strip() for line in answer.get("stdout", "").splitlines()]
    starting = sum(state in STARTING_FABRIC for state in states) if answer["status"] == "ok" else 0
    return [f"the NVLink fabric of {starting} of {len(states)} GPUs"] if starting else []


def unready_ports(wanted, cards):
    """Return in words which ports are not active yet."""
    active, starting = {"ports": 0, "other_ports": 0}, []
    for card in list_folder(cards):
        if manages_nvswitches(os.path.join(cards, card, "device")):
            continue
        for port in list_folder(os.path.join(cards, card, "ports")):
            folder = os.path.join(cards, card, "ports", port)
            layer = read(os.path.join(folder, "link_layer"), 64)
            # The kernel writes "4: ACTIVE".
            state = read(os.path.join(folder, "state"), 64).rpartition(":")[2].strip()
            active["ports" if is_compute(card, layer, wanted) else "other_ports"] += state == "ACTIVE"
            # A port that the SKU does not need is waited for, too, because it may have been active before.
            if state in STARTING_PORT:
                starting.append(f"{card}/{port}")
    needed = {use: int(wanted.get(use) or 0) for use in active}
    lacking = [
        f"{count} of {needed[use]} {use.replace('_', ' ')} are active"
        for use, count in active.items()
        if count < needed[use]
    ]
    return lacking or (["ports " + ", ".join(starting)] if starting else [])


def is_compute(card, layer, wanted):
    """Return whether a port is a compute port, as port_use() of the package decides."""
    patterns, wanted_layer = wanted.get("port_devices") or ["*"], wanted.get("port_layer")
    is_layer = not (wanted_layer and layer) or layer.lower() == wanted_layer.lower()
    return is_layer and any(fnmatchcase(card, pattern) for pattern in patterns)
