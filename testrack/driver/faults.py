"""List and switch the faults of a host, which the fake hardware, the node or the container engine makes.

``rack.py fault`` calls this module.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driver.engine import docker, docker_text
from driver.layout import Host, RackError

# Files with the active faults: of a node with fake hardware, and of a host without.
STATE_FILES = ("var/lib/rack/hardware.json", "var/lib/rack/faults.json")


@dataclass(frozen=True)
class Fault:
    """A fault. ``text`` is its effect, and ``settings`` are its numbers, with their usual values."""

    text: str
    settings: Mapping[str, float] = field(default_factory=dict)


# The faults of a host as a machine. Faults of the hardware are in fakes/rackhardware/faults.py.
MACHINE = {
    "slow-node": Fault("the node gets only a part of a CPU (a real quota)", {"cpus": 0.25}),
    "full-disk": Fault("/var is full: files there can be read, but not written"),
    "dead-sshd": Fault("sshd has ended, with its sessions; the node runs"),
    "clock-skew": Fault("the time of day is wrong for every program started from now on", {"seconds": 300}),
    "powered-off": Fault("the node is off"),
    "no-return": Fault("the node never comes back from its next reboot"),
}


def hardware_faults(home: Path) -> dict[str, str]:
    """Return the faults of the fake hardware, with their effects."""
    folder = str(home / "fakes")
    if folder not in sys.path:
        sys.path.append(folder)
    from rackhardware.faults import FAULTS

    return {name: f"{text} ({kind})" for name, (kind, text) in FAULTS.items()}


def read_faults(names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the active faults by host.

    ``names`` are the names of the containers. The faults are read from the containers' files, so that hosts
    that do not answer are included.
    """
    if not names:
        return {}
    form = '{{.Name}}\t{{index .GraphDriver.Data "UpperDir"}}'
    found: dict[str, dict[str, Any]] = {}
    for line in docker_text("inspect", "--format", form, *names).splitlines():
        name, folder = line.lstrip("/").split("\t")
        found[name] = {}
        for file in STATE_FILES:
            try:
                found[name] |= json.loads((Path(folder) / file).read_text())["faults"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return found


def silent_on_purpose(faults: Mapping[str, Any], state: str) -> bool:
    """Return whether one of these faults keeps a host in that state from answering."""
    return bool({"dead-sshd", "powered-off"} & set(faults)) or ("no-return" in faults and state == "exited")


def _inside(host: Host, *command: str) -> None:
    """Run a command in a host's container. If it fails, its output is part of the error."""
    done = docker("exec", host.name, *command, check=False, timeout=120)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise RackError(f"{host.name}: `{' '.join(command)}` failed ({done.returncode}): {words}")


def switch_machine(host: Host, name: str, on: bool, given: Mapping[str, float]) -> None:
    """Switch a fault of the machine on or off. ``given`` are the numbers that replace the usual ones."""
    fault = MACHINE[name]
    unknown = sorted(set(given) - set(fault.settings))
    if unknown:
        takes = ", ".join(f"--{one}" for one in fault.settings) or "none"
        raise RackError(f"{name} takes no --{unknown[0]}; it takes {takes}")
    settings = {**fault.settings, **given}
    if on:
        _inside(host, "/opt/rack/fault", "on", name, json.dumps(settings))
    if name == "slow-node":
        # An engine reads 0 as no change, and with all CPUs there is no quota.
        docker("update", "--cpus", str(settings["cpus"] if on else os.cpu_count() or 1), host.name)
    elif name == "no-return":
        docker("update", "--restart", "no" if on else "always", host.name)
        if not on:
            docker("start", host.name)
    elif name == "powered-off":
        docker("stop" if on else "start", host.name)
    if not on:
        _inside(host, "/opt/rack/fault", "off", name)


def switch_hardware(host: Host, name: str, on: bool, options: list[str]) -> None:
    """Switch a fault of the fake hardware on or off. The fake checks the options itself."""
    _inside(host, "/opt/rack/hardware", "--fault", name, *options, *([] if on else ["--off"]))
