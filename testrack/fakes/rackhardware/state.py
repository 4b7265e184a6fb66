"""Read and write the state file of a node's fake hardware.

The other modules of this package get the state, paths on the node, and active faults from this module.
testrack/fakes/README.md describes the programs.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
import time
from contextlib import contextmanager

from .skus import SKUS


def root() -> str:
    """Return the folder that is the node's root folder. Tests set RACK_ROOT."""
    return os.environ.get("RACK_ROOT", "")


def at(path: str) -> str:
    """Return the path of a node's file on this machine."""
    return root() + path


def state_path() -> str:
    """Return the path of the state file. Each node has one."""
    return os.environ.get("RACK_STATE") or at("/var/lib/rack/hardware.json")


HOLDS = "/run/rack/holds-nvidia"
"""Folder with one file for each daemon that uses the driver. The file has the daemon's name, and contains its
process id."""


BOOTED = "/run/rack/booted"
"""File with the time of the boot in seconds since 1970."""
BOOTED_MONOTONIC = "/run/rack/booted-monotonic"
"""File with the same time by the clock that neither a person nor the fault clock-skew sets."""
SETTLE_S = 20.0
"""Seconds from a boot, or from the fabric manager's start, until fabric and ports are ready. Real nodes need
a minute or more."""


def settle_s() -> float:
    """Return the seconds until fabric and ports are ready. By default, tests of the fakes do not wait."""
    return float(os.environ.get("RACK_SETTLE_S") or (0.0 if root() else SETTLE_S))


def since_boot() -> float:
    """Return the seconds since the boot, or infinity if it is unknown."""
    try:
        with open(at(BOOTED_MONOTONIC), encoding="ascii") as stream:
            return time.monotonic() - float(stream.read())
    except (OSError, ValueError):
        return math.inf


def held_by(daemon: str) -> int:
    """Return the process id that a daemon wrote when it started, or 0 if there is none."""
    try:
        with open(at(f"{HOLDS}/{daemon}"), encoding="ascii") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return 0


def running(daemon: str) -> int:
    """Return the process id of a daemon that holds the driver, or 0 if it does not run."""
    pid = held_by(daemon)
    if pid <= 0:
        return 0
    try:
        os.kill(pid, 0)
        # Another process may have this id now, so check the name of the program. Tests have no such program.
        if not root():
            with open(f"/proc/{pid}/cmdline", "rb") as stream:
                return pid if os.path.basename(stream.read().split(b"\0")[0]).decode() == daemon else 0
    except (OSError, ValueError):
        return 0
    return pid


class HardwareError(Exception):
    """A state file or a command that cannot be used. The message is for the operator of the test rack."""


class State(dict):
    """The content of the state file, and views of it with the active faults applied.

    Unknown keys are kept, because other programs store keys in the same file.
    """

    @property
    def sku(self) -> dict:
        """Return the facts of the node's model."""
        return SKUS[self["sku"]]

    @property
    def gpu_model(self) -> dict:
        """Return the facts of the GPUs' model."""
        return self.sku["gpu"]

    @property
    def gpus(self) -> list[dict]:
        """Return the GPUs on the bus, without missing ones."""
        missing = self.faulty("missing-gpu")
        return [gpu for gpu in self["gpus"] if gpu["minor"] not in missing]

    @property
    def has_bridges(self) -> bool:
        """Return whether NVLSM manages the NVSwitches through bridges (HGX B200)."""
        return any(hca.get("bridge") for hca in self["hcas"])

    def fault(self, name: str) -> dict | None:
        """Return a fault's settings, or None if it is off."""
        found = self["faults"].get(name)
        return found if isinstance(found, dict) else ({} if found else None)

    def faulty(self, name: str) -> list[int]:
        """Return the numbers of the GPUs or HCAs that a fault affects, by default only 0."""
        found = self.fault(name)
        return [] if found is None else list(found.get("devices", [0]))

    def port_state(self, index: int) -> str:
        """Return the state of a port: down, init (until a subnet manager finds it) or active."""
        if index in self.faulty("hca-port-down"):
            return "down"
        passed, needed = since_boot(), settle_s()
        return "active" if passed >= needed else "init" if passed >= needed / 2 else "down"

    def persists(self, gpu: dict) -> bool:
        """Return whether persistence mode is on for a GPU.

        The daemon keeps the mode, which ends with it. Without a daemon, the driver itself keeps it.
        """
        pid = self.get("settings", {}).get("persistence", {}).get(str(gpu["minor"]))
        return pid == 0 or (pid is not None and pid == running("nvidia-persistenced"))

    def hit(self, gpu: dict, name: str) -> bool:
        """Return whether a fault affects a GPU."""
        return gpu["minor"] in self.faulty(name)


def load() -> State:
    """Return the node's state.

    Raises:
        HardwareError: The file is absent, unreadable or damaged.
    """
    path = state_path()
    remedy = f"make it again: /opt/rack/hardware --init {'|'.join(SKUS)} --seed NODE"
    try:
        with open(path, encoding="utf-8") as stream:
            state = State(json.load(stream))
    except FileNotFoundError:
        raise HardwareError(f"{path}: there is no hardware state; {remedy}") from None
    except OSError as error:
        raise HardwareError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise HardwareError(f"{path}: not a hardware state ({error}); {remedy}") from None
    if state.get("sku") not in SKUS:
        raise HardwareError(f"{path}: unknown sku {state.get('sku')!r}; {remedy}")
    for key, kind in (
        ("gpus", list),
        ("hcas", list),
        ("faults", dict),
        ("machine", dict),
        ("kernel_log", list),
    ):
        if not isinstance(state.get(key), kind):
            raise HardwareError(f"{path}: {key} is missing or damaged; {remedy}")
    needed = {"minor", "uuid", "serial", "bus_id", "vbios", "module", "numa", "pdi", "fabric_guid"}
    for gpu in state["gpus"]:
        if not isinstance(gpu, dict) or needed - set(gpu):
            lacks = ", ".join(sorted(needed - set(gpu) if isinstance(gpu, dict) else needed))
            raise HardwareError(f"{path}: a GPU lacks {lacks}; {remedy}")
    return state


def save(state: State) -> None:
    """Write the state file completely or not at all."""
    import tempfile  # Only changes need this slow import.

    path = state_path()
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=folder, prefix=".hardware", delete=False, encoding="utf-8"
    ) as stream:
        json.dump(state, stream, indent=1)
        stream.write("\n")
    os.chmod(stream.name, 0o644)
    os.replace(stream.name, path)


@contextmanager
def changing():
    """Lock the state, yield it, and write it at the end. After an exception, write nothing."""
    os.makedirs(os.path.dirname(state_path()) or ".", exist_ok=True)
    with open(state_path() + ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = load()
        yield state
        save(state)


def make(sku: str, seed: str, node_name: str = "") -> State:
    """Return the hardware of a new node.

    The same sku, seed and node_name give the same hardware. Nodes of a sku with the same name before the last
    hyphen share the serial number of the rack and the cluster UUID.
    """
    import random

    facts = SKUS[sku]
    rng = random.Random(f"{sku}/{seed}")

    def digits(count: int) -> str:
        return "".join(rng.choice("0123456789") for _ in range(count))

    def hexes(count: int) -> str:
        return f"{rng.getrandbits(4 * count):0{count}x}"

    # Trays of one rack have the same serial number of the rack. Use the node's name without its last part.
    rack = random.Random(f"{sku}/{(node_name or seed).rpartition('-')[0] or seed}")
    guid = rng.getrandbits(24) << 8
    number = "".join(filter(str.isdigit, (node_name or seed).rpartition("-")[2])) or "1"
    return State(
        sku=sku,
        seed=seed,
        node=node_name or seed,
        machine={
            "product_serial": f"S{digits(9)}X{digits(4)}",
            "board_serial": f"UM{digits(2)}BS{digits(6)}",
            "chassis_serial": f"C{digits(9)}",
            "uuid": f"{hexes(8)}-{hexes(4)}-4{hexes(3)}-a{hexes(3)}-{hexes(12)}",
            "rack_serial": f"18{rack.randrange(10**11):011d}",
            "cluster_uuid": f"{rack.getrandbits(32):08x}-{rack.getrandbits(16):04x}-"
            f"4{rack.getrandbits(12):03x}-b{rack.getrandbits(12):03x}-{rack.getrandbits(48):012x}",
            "tray": int(number) % 64,
            "bmc_address": "",
        },
        gpus=[
            {
                "minor": minor,
                "uuid": f"GPU-{hexes(8)}-{hexes(4)}-{hexes(4)}-{hexes(4)}-{hexes(12)}",
                "serial": f"165{digits(10)}",
                "pdi": f"0x{hexes(16)}",
                "fabric_guid": f"0x{hexes(16)}",
                "vbios": facts["gpu"]["vbios"],
                **board,
            }
            for minor, board in enumerate(facts["boards"])
        ],
        hcas=[
            {
                "name": f"mlx5_{index}",
                "bus_id": f"{bus}:00.0",
                "guid": f"0xa088c2{guid + 16 * index:010x}",
                "firmware": facts["hca"]["firmware"],
                "serial": f"MT25{digits(2)}X{hexes(5).upper()}",
                "lid": 1 + rng.randrange(20000),
                "numa": index * 2 // len(facts["hca_buses"]),
            }
            for index, bus in enumerate(facts["hca_buses"])
        ]
        + [
            {
                "name": f"mlx5_{len(facts['hca_buses']) + index}",
                "bus_id": bus,
                "guid": f"0xcc40f3{guid + index:010x}",
                "firmware": facts["hca"]["firmware"],
                "serial": f"MT25{digits(2)}X{hexes(5).upper()}",
                "lid": 1 + rng.randrange(20000),
                "numa": 0,
                "bridge": True,
            }
            for index, bus in enumerate(facts.get("bridge_buses", ()))
        ],
        settings={},
        faults={},
        kernel_log=[],
    )


def add_bluefield(state: State) -> None:
    """Add the two Ethernet ports of a BlueField, which real nodes have beside their compute ports."""
    first, template = len(state["hcas"]), state["hcas"][0]
    for index in range(2):
        state["hcas"].append(
            {
                **template,
                "name": f"mlx5_{first + index}",
                "bus_id": f"0006:03:00.{index}",
                "guid": f"0x5c2573{int(template['guid'], 16) % (1 << 40) + 4096 + index:010x}",
                "rate": 200,
                "generation": "HDR",
                "layer": "Ethernet",
            }
        )


def log_to_kernel(state: State, text: str, level: int = 6) -> None:
    """Store a line for ``dmesg``, and send it to the node's journal under the name kernel."""
    state["kernel_log"].append({"at": time.time(), "level": level, "text": text})
    del state["kernel_log"][:-2000]
    if not root() and os.path.exists("/dev/log"):
        _journal(text, level)


def _journal(text: str, level: int) -> None:
    import syslog

    syslog.openlog("kernel", 0, syslog.LOG_DAEMON)
    syslog.syslog(level, text)


def is_root() -> bool:
    """Return whether a tool may do what only root may. Tests of the fakes may run as any user."""
    return bool(root()) or os.geteuid() == 0


def unknown_option(argv: list[str], flags: set[str], valued: set[str]) -> str:
    """Return the first option that a tool does not have, or "". Words that are not options are left out."""
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, _value = word.partition("=")
        if name in valued:
            rest[:1] = rest[:1] if equals else []
        elif word.startswith("-") and word not in flags:
            return word
    return ""


def complain(*lines: str) -> None:
    """Print lines on standard error."""
    for line in lines:
        print(line, file=sys.stderr)
