"""Define and switch the faults of the hardware (`rack.py fault`), and write their lines to the kernel's log.

control.py and kernel.py call the functions. The fakes of the tools show the effects of the faults.
"""

from __future__ import annotations

from .state import HardwareError, State, log_to_kernel

# By name: whether the fault affects "gpu", "hca" or the "node", and its effect.
FAULTS = {
    "missing-gpu": ("gpu", "a GPU is not on the PCI bus: no tool lists it, its device node is gone; XID 79"),
    "lost-gpu": (
        "gpu",
        "a GPU fell off the bus while the driver runs: nvidia-smi prints only its address and fails; XID 79",
    ),
    "ecc-uncorrectable": ("gpu", "a GPU counts an uncorrectable ECC error in SRAM; XIDs 95, 154"),
    "row-remap-pending": (
        "gpu",
        "a row of a GPU's memory waits for a reset or reboot, which clears it; XIDs 48, 63, 154",
    ),
    "xid": ("gpu", "an XID in the kernel's log; --number sets which (default 79, fallen off the bus)"),
    "link-trained-down": ("gpu", "a GPU's PCIe link has half its lanes at a lower speed"),
    "nvlink-down": ("gpu", "one NVLink of a GPU is inactive; XID 74"),
    "hca-port-down": ("hca", "the port of a network card is down"),
    "version-mismatch": (
        "node",
        "the loaded driver, or with --component fabricmanager the fabric manager, is older than its programs",
    ),
    "no-nvlink-domain": (
        "node",
        "an NVL72's switches have no room for the node: its fabric is complete without resources, clique 0",
    ),
    "throttling": ("gpu", "a GPU is too hot and clocks down"),
    "hung-nvidia-smi": ("node", "every tool that queries the driver hangs, and only SIGKILL ends it"),
}

# The text of an XID in the kernel's log, by its number.
XIDS = {
    13: "Graphics Exception: ESR 0x505648=0x1000e 0x505650=0x20 0x505644=0xd3eff2 0x50564c=0x17f",
    31: "pid={pid}, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_0 "
    "faulted @ 0x7fc9_2c000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "pid={pid}, name=python3, Ch 00000008",
    45: "pid={pid}, name=python3, Ch 00000008",
    48: "pid='<unknown>', name=<unknown>, DBE (double bit error) ECC Error at 0x000000034c2d8000",
    63: "pid='<unknown>', name=<unknown>, Row Remapper: New row (0x000000034c2d8000) marked for remapping, "
    "reset gpu to activate.",
    64: "pid='<unknown>', name=<unknown>, Row Remapper: Failed to record remapping of row",
    74: "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link {link}(0x0, 0x0, 0x10000, "
    "0x0, 0x0, 0x0, 0x0)",
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    92: "pid='<unknown>', name=<unknown>, High single-bit ECC error rate",
    94: "pid={pid}, name=python3, Ch 00000008, Contained: SM (0x1). RST: No, D-RST: No",
    95: "pid='<unknown>', name=<unknown>, Uncontained: L2 (0x9). RST: Yes, D-RST: No",
    119: "pid={pid}, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected "
    "function 76 (GSP_RM_CONTROL) (0x2080a0d4 0x4).",
    120: "pid='<unknown>', name=<unknown>, GSP Error: Task 1 raised error code 0x7 for reason 0x0",
    145: "RLW_SRC_TRACK Nonfatal XC1 i0 Link {link:02d} (0x040868e2 0x00000008 0x00000000 0x00000000 "
    "0x00000000 0x00000000)",
    149: "NETIR_LINK_EVT  Fatal   XC0 i0 Link {link:02d} (0x021405c6 0x00000000 0x00000000 0x00000000 "
    "0x00000000 0x00000000)",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}
# The XIDs that the driver logs about a fault, by the fault's name.
_LOGGED = {
    "missing-gpu": [79],
    "lost-gpu": [79],
    "ecc-uncorrectable": [95, 154],
    "row-remap-pending": [48, 63, 154],
    "nvlink-down": [74],
}
# The NVLink that is inactive with the fault nvlink-down.
DOWN_LINK = 3


def xid_line(bus_id: str, number: int) -> str:
    """Return a line of the driver as written in the kernel's log."""
    domain, bus, device = bus_id.lower().split(".")[0].split(":")
    detail = XIDS.get(number, "pid='<unknown>', name=<unknown>, unknown error")
    return f"NVRM: Xid (PCI:{domain[-4:]}:{bus}:{device}): {number}, " + detail.format(
        pid=4242, link=DOWN_LINK
    )


def log_fault(state: State, name: str) -> None:
    """Log the kernel's lines about a fault for each GPU or network card that it affects."""
    settings = state.fault(name)
    if settings is None or name not in FAULTS:
        return
    numbers = [settings.get("number", 79)] if name == "xid" else _LOGGED.get(name, [])
    for gpu in state["gpus"]:
        if gpu["minor"] in state.faulty(name):
            for number in numbers:
                log_to_kernel(state, xid_line(gpu["bus_id"], number), 3 if number in (79, 95, 119) else 4)
    if name == "hca-port-down":
        for index in state.faulty(name):
            hca = state["hcas"][index]
            log_to_kernel(
                state, f"mlx5_core {hca['bus_id']}: Port module event: module 0, Cable unplugged", 4
            )
    if name == "link-trained-down":
        for gpu in state["gpus"]:
            if gpu["minor"] in state.faulty(name):
                address = gpu["bus_id"].lower()[-12:]
                log_to_kernel(state, f"pcieport {address}: AER: Corrected error message received", 4)


def set_fault(state: State, name: str, device: int | None, number: int | None, component: str) -> None:
    """Switch a fault on, and log its lines. If it is already on, switch it on for another device too.

    Args:
        state: The state of the node, which is changed.
        name: The name of the fault.
        device: The number of the GPU or network card, or None for the first one and for a fault of the node.
        number: The number of the XID, or None. Only ``xid`` takes it.
        component: The component that is older, or "". Only ``version-mismatch`` takes it.

    Raises:
        HardwareError: The fault, the device or an option does not exist.
    """
    if name not in FAULTS:
        raise HardwareError(f"unknown fault {name!r}; there are: {', '.join(FAULTS)}")
    kind = FAULTS[name][0]
    settings = dict(state.fault(name) or {})
    if kind == "node":
        if device is not None:
            raise HardwareError(f"{name} hits the whole node: it takes neither --gpu nor --hca")
    else:
        devices = state["gpus"] if kind == "gpu" else state["hcas"]
        chosen = 0 if device is None else device
        if not 0 <= chosen < len(devices):
            raise HardwareError(f"this node has no {kind} {chosen}: 0 to {len(devices) - 1}")
        settings["devices"] = sorted({*settings.get("devices", []), chosen})
    if number is not None:
        if name != "xid":
            raise HardwareError(f"{name} takes no --number")
        settings["number"] = number
    elif name == "xid":
        settings.setdefault("number", 79)
    if component:
        if name != "version-mismatch":
            raise HardwareError(f"{name} takes no --component")
        settings["component"] = component
    state["faults"][name] = settings
    log_fault(state, name)


def reset(state: State, minor: int) -> None:
    """Apply the reset of a GPU, or a reboot, to its faults. It ends only a pending remapping of a row."""
    if minor in state.faulty("row-remap-pending"):
        clear_fault(state, "row-remap-pending", minor)


def clear_fault(state: State, name: str, device: int | None) -> None:
    """Switch a fault off, on one device, or on all if ``device`` is None.

    An unknown fault can be switched off, too, if it is on, because other programs store theirs here.

    Raises:
        HardwareError: The fault is unknown and is not on.
    """
    if name not in state["faults"]:
        if name not in FAULTS:
            raise HardwareError(f"unknown fault {name!r}; there are: {', '.join(FAULTS)}")
        return
    if device is not None:
        left = [one for one in state.faulty(name) if one != device]
        if left:
            state["faults"][name] = {**(state.fault(name) or {}), "devices": left}
            return
    del state["faults"][name]
