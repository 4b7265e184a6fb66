# SPDX-License-Identifier: Apache-2.0
"""Wait until a node's ports and its NVLink fabric are ready after a boot (Python 3.8+, Linux).

The module rackproof_facts calls :func:`settle` before it gathers the subset ``health``. Ports of InfiniBand
need a subnet manager, and GPUs a fabric manager or the switches of their domain. Both take a minute or more.
"""

from __future__ import annotations

import os
import time
from fnmatch import fnmatchcase

from ansible.module_utils.rackproof_tools import ask, list_folder, read

FABRIC = ["nvidia-smi", "--query-gpu=fabric.state", "--format=csv,noheader"]
STARTING_FABRIC = ("Not Started", "In Progress")
STARTING_PORT = ("INIT", "ARMED")
SWITCH_MANAGEMENT = "SW_MNG"
VPD_BYTES = 4096
PAUSE_S = 3.0


def manages_nvswitches(device):
    """Return whether a PCI device manages NVSwitches, by its vital product data, or None if it is unreadable.

    On an HGX B200 or B300, the switches have no PCI device. Bridges that look like network cards manage them.
    NVIDIA's start script of the fabric manager finds them by the same mark.
    """
    path = os.path.join(device, "vpd")
    if not os.path.exists(path):
        return False
    text = read(path, VPD_BYTES)
    return SWITCH_MANAGEMENT in text if text else None


def settle(wanted, cards, booted, timeout_s):
    """Wait until the wanted ports and the fabric are ready, or the time is over.

    Args:
        wanted: What to wait for: C(seconds), C(after) (``boot`` or ``now``), C(fabric), C(ports),
            C(port_layer) and C(port_devices).
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
    while limit_s > 0:
        waiting = unready(wanted, cards, timeout_s)
        waited_s = time.monotonic() - begin
        if not waiting or waited_s >= limit_s:
            break
        awaited = waiting
        time.sleep(min(PAUSE_S, limit_s - waited_s))
    return {"waited_s": waited_s, "awaited": awaited, "unready": waiting}


def unready(wanted, cards, timeout_s):
    """Return in words what is not ready yet. A tool that does not answer is left to the health checks."""
    return [*(unready_fabric(timeout_s) if wanted.get("fabric") else []), *unready_ports(wanted, cards)]


def unready_fabric(timeout_s):
    """Return in words how many GPUs are not yet members of their NVLink fabric."""
    answer = ask(FABRIC, timeout_s)
    states = [line.strip() for line in answer.get("stdout", "").splitlines()]
    starting = sum(state in STARTING_FABRIC for state in states) if answer["status"] == "ok" else 0
    return [f"the NVLink fabric of {starting} of {len(states)} GPUs"] if starting else []


def unready_ports(wanted, cards):
    """Return in words which ports are not active yet."""
    active, starting = 0, []
    for card in list_folder(cards):
        if manages_nvswitches(os.path.join(cards, card, "device")):
            continue
        for port in list_folder(os.path.join(cards, card, "ports")):
            folder = os.path.join(cards, card, "ports", port)
            # The kernel writes "4: ACTIVE".
            state = read(os.path.join(folder, "state"), 64).rpartition(":")[2].strip()
            active += state == "ACTIVE" and is_wanted(
                card, read(os.path.join(folder, "link_layer"), 64), wanted
            )
            if state in STARTING_PORT:
                starting.append(f"{card}/{port}")
    needed = int(wanted.get("ports") or 0)
    if active < needed:
        return [f"{active} of {needed} ports are active"]
    return ["ports " + ", ".join(starting)] if starting else []


def is_wanted(card, layer, wanted):
    """Return whether a port is one of those that are counted."""
    patterns = wanted.get("port_devices") or ["*"]
    wanted_layer = wanted.get("port_layer") or layer
    return layer.lower() == wanted_layer.lower() and any(fnmatchcase(card, pattern) for pattern in patterns)
