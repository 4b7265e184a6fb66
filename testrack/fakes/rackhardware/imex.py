"""Fake nvidia-imex, with which the nodes of an NVLink domain share GPU memory, and its control tool.

main.py calls :func:`daemon` and :func:`control`.
"""

from __future__ import annotations

import subprocess

from . import kernel
from .services import serve
from .state import at, complain, load, running

NODES = "/etc/nvidia-imex/nodes_config.cfg"


def version() -> str:
    """Return the version of the installed daemon from its package."""
    return (kernel.installed("nvidia-imex") or {}).get("version", "")


def listed_nodes() -> list[str]:
    """Return the addresses in nodes_config.cfg, which has one per line."""
    try:
        with open(at(NODES), encoding="utf-8") as stream:
            return stream.read().split()
    except OSError:
        return []


def own_addresses() -> list[str]:
    """Return the addresses of this node."""
    done = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False)
    return done.stdout.split()


def daemon(argv: list[str]) -> int:
    """Act as ``nvidia-imex``. Print the version, or run as the daemon, which forks as the unit expects.

    The daemon does not start without a driver of its version, or if the file does not list this node.
    """
    own, driver = version(), kernel.driver()
    if "-v" in argv or "--version" in argv:
        print(f"IMEX version is: {own}")
        return 0
    if not driver:
        complain("Failed to query NVIDIA GPU driver version: the NVIDIA driver is not loaded")
        return 1
    if driver != own:
        complain(f"IMEX version {own} is not compatible with driver version {driver}")
        return 1
    nodes = listed_nodes()
    if not set(nodes) & set(own_addresses()):
        complain(f"None of the {len(nodes)} addresses of {NODES} is this node's")
        return 1
    return serve("nvidia-imex")


def control(argv: list[str]) -> int:
    """Act as ``nvidia-imex-ctl``: ``-q`` prints the state of this node's daemon."""
    if "-q" not in argv:
        complain("nvidia-imex-ctl (fake): only -q is answered")
        return 1
    if not running("nvidia-imex"):
        complain("Failed to connect to the IMEX service: is nvidia-imex running?")
        return 1
    in_domain = load().gpu_model["fabric"] == "rack"
    print("READY" if in_domain else "INITIALIZING")
    return 0
