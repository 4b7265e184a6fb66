"""Run the fake tool by whose name /opt/rack/hardware was called, such as ``nvidia-smi``.

install.sh and the fake packages (testrack/mirror) link the names of the tools to that program.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

from .state import HardwareError

# Module and function of each tool. Only the module of the called tool is imported. A tool then starts in a
# twentieth of a second, which matters because health checks call many tools.
TOOLS = {
    "hardware": ("control", "hardware"),
    "nvidia-smi": ("nvidia_smi", "nvidia_smi"),
    "nvidia-modprobe": ("services", "nvidia_modprobe"),
    "nvidia-persistenced": ("services", "persistence_daemon"),
    "nv-fabricmanager": ("services", "fabric_manager"),
    "nvidia-imex": ("imex", "daemon"),
    "nvidia-imex-ctl": ("imex", "control"),
    "nv-hostengine": ("services", "host_engine"),
    "dcgmi": ("dcgm", "dcgmi"),
    "ibstat": ("infiniband", "ibstat"),
    "ibstatus": ("infiniband", "ibstatus"),
    "ibv_devinfo": ("infiniband", "ibv_devinfo"),
    "ibv_devices": ("infiniband", "ibv_devices"),
    "ibdev2netdev": ("infiniband", "ibdev2netdev"),
    "ofed_info": ("infiniband", "ofed_info"),
    "lspci": ("machine", "lspci"),
    "dmidecode": ("machine", "dmidecode"),
    "modprobe": ("kernel", "modprobe"),
    "rmmod": ("kernel", "rmmod"),
    "lsmod": ("kernel", "lsmod"),
    "modinfo": ("kernel", "modinfo"),
    "dmesg": ("kernel", "dmesg"),
    "journalctl": ("kernel", "journalctl"),
}


def main(argv: list[str]) -> None:
    """Act as the tool that ``argv[0]`` names, and exit with its status."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    name = os.path.basename(argv[0])
    if name not in TOOLS:
        print(f"{name}: no fake of that name; there are: {', '.join(sorted(TOOLS))}", file=sys.stderr)
        sys.exit(2)
    module, function = TOOLS[name]
    tool = getattr(importlib.import_module(f".{module}", __package__), function)
    try:
        status = tool(argv[1:])
        sys.stdout.flush()
    except HardwareError as error:
        print(f"{name} (fake): {error}", file=sys.stderr)
        status = 70
    except BrokenPipeError:
        status = 141
    sys.exit(status or 0)
