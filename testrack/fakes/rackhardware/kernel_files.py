"""Fake the files in /sys and /proc in which a kernel describes the node's hardware.

kernel.py calls :func:`lay` at boot, and :func:`write` after each change. /sys/class, /sys/module and
/sys/bus/pci/devices get an overlay whose upper folder belongs to the node, and a folder of the node is
mounted at /proc/driver. /proc/modules cannot be faked, because no file can be made in /proc.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from contextlib import suppress

from . import kernel, machine, smi_report
from .state import State, at, complain, root

OVERLAYS = ("/sys/class", "/sys/module", "/sys/bus/pci/devices")
DRIVER = "/proc/driver"
WRITTEN = "/run/rack/kernel-files.json"
"""File with the text of each file that was written, by path."""
DMI = {
    "bios_vendor": "bios-vendor",
    "bios_version": "bios-version",
    "bios_date": "bios-release-date",
    "sys_vendor": "system-manufacturer",
    "product_name": "system-product-name",
    "product_version": "system-version",
    "product_serial": "system-serial-number",
    "product_uuid": "system-uuid",
    "product_sku": "system-sku-number",
    "product_family": "system-family",
    "board_vendor": "baseboard-manufacturer",
    "board_name": "baseboard-product-name",
    "board_version": "baseboard-version",
    "board_serial": "baseboard-serial-number",
    "chassis_vendor": "chassis-manufacturer",
    "chassis_serial": "chassis-serial-number",
}
SECRET = {"vpd", "product_serial", "product_uuid", "board_serial", "chassis_serial"}
"""Only root may read these, as on a real machine."""


def lay() -> None:
    """Mount the node's own folders over the kernel's. Report and skip folders that cannot be mounted."""
    base = at("/run/rack/kernel")
    for place in OVERLAYS:
        upper, work = (f"{base}{place}.{kind}" for kind in ("upper", "work"))
        os.makedirs(upper, exist_ok=True)
        os.makedirs(work, exist_ok=True)
        if os.path.isdir(place) and not os.path.ismount(place):
            options = f"lowerdir={place},upperdir={upper},workdir={work}"
            _mount(["mount", "-t", "overlay", "-o", options, "rack-hardware", place], place)
    os.makedirs(f"{base}{DRIVER}", exist_ok=True)
    if os.path.isdir(DRIVER) and not os.path.ismount(DRIVER):
        _mount(["mount", "--bind", f"{base}{DRIVER}", DRIVER], DRIVER)


def _mount(command: list[str], place: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        trouble = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = str(error)
    if trouble:
        complain(f"{place} remains the real one: {trouble}")


def write(state: State) -> None:
    """Write the files of the present hardware, and remove the files of absent hardware."""
    places = [place for place in (*OVERLAYS, DRIVER) if root() or os.path.ismount(place)]
    wanted = {path: text for path, text in files(state).items() if path.startswith(tuple(places))}
    try:
        with open(at(WRITTEN), encoding="utf-8") as stream:
            before = json.load(stream)
    except (OSError, ValueError):
        before = {}
    for path in set(before) - set(wanted):
        _remove(path)
    for path, text in wanted.items():
        if before.get(path) != text:
            folder = os.path.dirname(at(path))
            if os.path.islink(folder):
                # In a virtual machine, this is a link to a device, whose files cannot be written.
                os.unlink(folder)
            os.makedirs(folder, exist_ok=True)
            with suppress(FileNotFoundError):
                os.unlink(at(path))
            with open(at(path), "w", encoding="utf-8") as stream:
                stream.write(f"{text}\n")
            os.chmod(at(path), 0o400 if os.path.basename(path) in SECRET else 0o444)
    os.makedirs(os.path.dirname(at(WRITTEN)), exist_ok=True)
    with open(at(WRITTEN), "w", encoding="utf-8") as stream:
        json.dump(wanted, stream)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(at(path))
    folder = os.path.dirname(path)
    tops = {*OVERLAYS, DRIVER, "/sys/class/infiniband", "/sys/class/dmi"}
    with suppress(OSError):
        while folder not in tops:
            os.rmdir(at(folder))
            folder = os.path.dirname(folder)


def files(state: State) -> dict[str, str]:
    """Return the text of each file by its path."""
    modules = kernel.loaded()
    found = {}
    told = machine.dmi(state)
    for name, keyword in DMI.items():
        found[f"/sys/class/dmi/id/{name}"] = told[keyword]
    for name, about in modules.items():
        found[f"/sys/module/{name}/initstate"] = "live"
        found[f"/sys/module/{name}/refcnt"] = str(
            len(kernel.users(modules, name)) + len(kernel.holders(name))
        )
        if about.get("version"):
            found[f"/sys/module/{name}/version"] = about["version"]
    for device in machine.devices(state):
        found.update(_pci(device))
    for hca in state["hcas"]:
        data = product_data(hca, state.sku["hca"]["name"])
        found[f"/sys/bus/pci/devices/{hca['bus_id']}/vpd"] = data
    if "mlx5_ib" in modules:
        for index in range(len(state["hcas"])):
            found.update(_card(state, index))
    if "nvidia" in modules:
        found.update(_driver(state, modules["nvidia"]))
    return found


def product_data(hca: dict, name: str) -> str:
    """Return the vital product data of a card as text. Those of a bridge to NVSwitches have a mark."""
    mark = "SMDL=SW_MNG" if hca.get("bridge") else "SMDL=NIC"
    return f"{name} SN={hca['serial']} {mark}"


def _pci(device: dict) -> dict[str, str]:
    """Return the files of a device in /sys/bus/pci/devices, with their content."""
    folder = f"/sys/bus/pci/devices/{device['address']}"
    subvendor, subdevice = device["subsystem"].split(":")
    (speed, width), (most_speed, most_width) = device["link"], device["capability"]

    def rate(generation: int) -> str:
        number = re.sub("GT/s", "", machine.SPEEDS[generation])
        return f"{float(number):.1f} GT/s PCIe"

    return {
        f"{folder}/class": f"0x{device['class']}00",
        f"{folder}/vendor": f"0x{device['vendor']}",
        f"{folder}/device": f"0x{device['device']}",
        f"{folder}/subsystem_vendor": f"0x{subvendor}",
        f"{folder}/subsystem_device": f"0x{subdevice}",
        f"{folder}/revision": f"0x{device['revision']}",
        f"{folder}/numa_node": str(device["numa"]),
        f"{folder}/current_link_speed": rate(speed),
        f"{folder}/current_link_width": str(width),
        f"{folder}/max_link_speed": rate(most_speed),
        f"{folder}/max_link_width": str(most_width),
    }


def _card(state: State, index: int) -> dict[str, str]:
    """Return the files of a network card in /sys/class/infiniband, with their content."""
    from .infiniband import STATES, colons, layer, speed

    hca, model = state["hcas"][index], state.sku["hca"]
    now = state.port_state(index)
    down, active = now == "down", now == "active"
    folder = f"/sys/class/infiniband/{hca['name']}"
    port = f"{folder}/ports/1"
    gbps, generation = speed(state, hca)
    rate = "10 Gb/sec (4X SDR)" if down else f"{gbps} Gb/sec (4X {generation})"
    found = {
        f"{folder}/fw_ver": hca["firmware"],
        f"{folder}/hca_type": model["ca_type"],
        f"{folder}/hw_rev": "0",
        f"{folder}/board_id": model["board_id"],
        f"{folder}/node_type": "1: CA",
        f"{folder}/node_desc": f"{state['node']} {hca['name']}",
        f"{folder}/node_guid": colons(hca["guid"]),
        f"{folder}/sys_image_guid": colons(hca["guid"]),
        f"{port}/state": STATES[now][2],
        f"{port}/phys_state": STATES[now][3],
        f"{port}/rate": rate,
        f"{port}/link_layer": layer(hca),
        f"{port}/lid": f"0x{hca['lid']:x}" if active else "0xffff",
        f"{port}/lid_mask_count": "0",
        f"{port}/sm_lid": "0x1" if active else "0x0",
        f"{port}/sm_sl": "0",
        f"{port}/cap_mask": "0xa751e848" if active else "0xa750e848",
        f"{port}/gids/0": f"fe80:0000:0000:0000:{colons(hca['guid'])}",
        f"{port}/pkeys/0": "0xffff",
    }
    found[f"{folder}/device/vpd"] = product_data(hca, model["name"])
    for counter in ("symbol_error", "link_error_recovery", "port_rcv_errors", "port_xmit_discards"):
        found[f"{port}/counters/{counter}"] = "0"
    # A link that comes up for the first time since the boot was not lost.
    found[f"{port}/counters/link_downed"] = "1" if index in state.faulty("hca-port-down") else "0"
    for counter in ("port_rcv_data", "port_xmit_data"):
        # These count words of four bytes. The subnet manager's traffic alone moves some kB per second.
        found[f"{port}/counters/{counter}"] = str(int(time.monotonic()) * 1000) if active else "0"
    return found


def _driver(state: State, about: dict) -> dict[str, str]:
    """Return the driver's files in /proc/driver, with their content."""
    version = about["version"]
    found = {
        f"{DRIVER}/nvidia/version": f"NVRM version: {kernel.driver_title(about)}\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14) "
    }
    for see in smi_report.views(state, version):
        gpu = see["gpu"]
        address = gpu["bus_id"][4:].lower()
        found[f"{DRIVER}/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t {state.gpu_model['name']}\nIRQ:   \t\t 41\nGPU UUID: \t {gpu['uuid']}\n"
            f"Video BIOS: \t {gpu['vbios'].lower()}\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"
            f"DMA Mask: \t 0xfffffffffffff\nBus Location: \t {address}\nDevice Minor: \t {gpu['minor']}\n"
            f"GPU Firmware: \t {version}\nGPU Excluded:\t No"
        )
    return found
