"""Make a node's fake hardware, switch its faults, and simulate its boot (command ``hardware``).

main.py calls :func:`hardware`. testrack/rack.py, programs and units of the node, and an apt hook
(--link-tools) start the command.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from . import kernel
from .faults import FAULTS, clear_fault, set_fault
from .skus import SKUS
from .state import add_bluefield, at, changing, load, make, save, state_path

# Tools of the distribution that open a device, which a node lacks. Its ibstat and ibstatus work, because they
# only read /sys, which is an overlay.
REAL_TOOLS = ("ibv_devinfo", "ibv_devices")


def link_tools() -> None:
    """Link InfiniBand's fakes into /usr/local/bin if the real tools are installed. Otherwise, unlink them."""
    for tool in REAL_TOOLS:
        link = at(f"/usr/local/bin/{tool}")
        places = [at(f"{folder}/{tool}") for folder in ("/usr/sbin", "/usr/bin")]
        if any(os.path.exists(place) and not os.path.islink(place) for place in places):
            if not os.path.lexists(link):
                os.makedirs(os.path.dirname(link), exist_ok=True)
                os.symlink("/opt/rack/hardware", link)
        elif os.path.islink(link) and os.readlink(link) == "/opt/rack/hardware":
            os.unlink(link)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(prog="hardware", description="The hardware of a node of the test rack.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--init", metavar="SKU", choices=sorted(SKUS), help="make the hardware: %(choices)s")
    action.add_argument("--fault", metavar="NAME", help="switch a fault on, or off with --off")
    action.add_argument("--faults", action="store_true", help="list the faults, and mark those that are on")
    action.add_argument("--show", action="store_true", help="print the state")
    action.add_argument("--boot", action="store_true", help="simulate a boot (rack-hardware.service)")
    action.add_argument(
        "--load-modules",
        action="store_true",
        help="load the modules that the folders modules-load.d name",
    )
    action.add_argument("--settle", action="store_true", help="update the kernel's files to the state")
    action.add_argument("--link-tools", action="store_true", help="link the fakes of InfiniBand's tools")
    parser.add_argument(
        "--seed", help="seed of UUIDs and serials: the same SKU, seed and name give the same ones"
    )
    parser.add_argument(
        "--bluefield", action="store_true", help="with --init: also two Ethernet ports of a BlueField"
    )
    parser.add_argument("--node-name", default="", help="the node's name (default: the seed)")
    parser.add_argument(
        "--gpu", type=int, metavar="I", help="the GPU that a fault hits (default: 0, or with --off all)"
    )
    parser.add_argument(
        "--hca",
        type=int,
        metavar="I",
        help="the network card that a fault hits (default: 0, or with --off all)",
    )
    parser.add_argument("--number", type=int, help="number of the XID (only for the fault xid, default 79)")
    parser.add_argument(
        "--component",
        choices=("driver", "fabricmanager"),
        default="",
        help="component that is older (only for the fault version-mismatch, default driver)",
    )
    parser.add_argument("--off", action="store_true", help="switch the fault off")
    return parser


def hardware(argv: list[str]) -> int:
    """Run the command, and return its exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.init:
        if not options.seed:
            parser.error("--init needs --seed, commonly the node's name")
        state = make(options.init, options.seed, options.node_name)
        if options.bluefield:
            add_bluefield(state)
        save(state)
        if kernel.booted():
            kernel.settle()
        print(f"{state_path()}: {options.init}, seed {options.seed}")
    elif options.faults:
        state = load()
        for name, (kind, text) in FAULTS.items():
            mark = "on " if state.fault(name) is not None else "off"
            where = f" {kind} {state.faulty(name)}" if mark == "on " and kind != "node" else ""
            print(f"{mark} {name:<18} {text}{where}")
        for name in sorted(set(state["faults"]) - set(FAULTS)):
            print(f"on  {name:<18} (of another program) {json.dumps(state['faults'][name])}")
    elif options.show:
        json.dump(load(), sys.stdout, indent=1)
        print()
    elif options.boot:
        return kernel.boot()
    elif options.settle:
        kernel.settle()
    elif options.link_tools:
        link_tools()
    elif options.load_modules:
        return kernel.load_configured()
    else:
        device = options.gpu if options.gpu is not None else options.hca
        with changing() as state:
            if options.off:
                clear_fault(state, options.fault, device)
            else:
                set_fault(state, options.fault, device, options.number, options.component)
        kernel.settle()
    return 0
