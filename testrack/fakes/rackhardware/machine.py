"""Fake lspci and dmidecode, which show the machine with the GPUs.

main.py calls :func:`lspci` and :func:`dmidecode`. kernel_files.py writes the same devices to /sys.
"""

from __future__ import annotations

import re

from . import kernel, smi_report
from .skus import MELLANOX, NVIDIA
from .state import State, complain, is_root, load

SPEEDS = {1: "2.5GT/s", 2: "5GT/s", 3: "8GT/s", 4: "16GT/s", 5: "32GT/s", 6: "64GT/s"}
VENDORS = {
    NVIDIA: "NVIDIA Corporation",
    MELLANOX: "Mellanox Technologies",
    "1a03": "ASPEED Technology, Inc.",
    "144d": "Samsung Electronics Co Ltd",
}
CLASSES = {
    "0302": "3D controller",
    "0680": "Bridge",
    "0207": "Infiniband controller",
    "0300": "VGA compatible controller",
    "0108": "Non-Volatile memory controller",
}


def devices(state: State) -> list[dict]:
    """Return the PCI devices, in the order of their addresses."""
    modules = kernel.loaded()
    model, found = state.gpu_model, []

    def add(address: str, kind: str, ids: str, name: str, **more: object) -> None:
        vendor, device = ids.split(":")
        plain = {"revision": "00", "numa": 0, "driver": "", "modules": "", "memory": "32M", "subsystem": ids}
        found.append(
            {"address": address, "class": kind, "vendor": vendor, "device": device, "name": name, **plain}
        )
        found[-1].update(more)
        found[-1].setdefault("link", found[-1]["capability"])

    installed = "nvidia" if kernel.installed("nvidia") else ""
    for see in smi_report.views(state, kernel.driver()):
        add(
            see["gpu"]["bus_id"][4:].lower(),
            "0302",
            f"{NVIDIA}:{model['device']}",
            model["pci_name"],
            subsystem=f"{NVIDIA}:{model['subsystem']}",
            revision=model["revision"],
            numa=see["gpu"]["numa"],
            capability=(model["pcie_gen"], 16),
            link=(see["link_gen"], see["link_width"]),
            driver="nvidia" if "nvidia" in modules else "",
            modules=installed,
            memory="16M",
        )
    if state.sku["nvswitch"]:
        device, name, count = state.sku["nvswitch"]
        for index in range(count):
            add(
                f"0000:{5 + index:02x}:00.0",
                "0680",
                f"{NVIDIA}:{device}",
                name,
                subsystem=f"{NVIDIA}:1796",
                revision="a1",
                capability=(4, 2),
                driver="nvidia-nvswitch" if "nvidia" in modules else "",
                modules=installed,
            )
    card = state.sku["hca"]
    for hca in state["hcas"]:
        add(
            hca["bus_id"].lower(),
            "0207",
            f"{MELLANOX}:{card['device']}",
            card["name"],
            subsystem=f"{MELLANOX}:{card['subsystem']}",
            numa=hca["numa"],
            capability=(card["pcie_gen"], 16),
            driver="mlx5_core" if "mlx5_core" in modules else "",
            modules="mlx5_core",
        )
    graphics, disk = state.sku["other_buses"]
    add(
        graphics,
        "0300",
        "1a03:2000",
        "ASPEED Graphics Family",
        revision="52",
        capability=(2, 1),
        driver="ast",
    )
    add(disk, "0108", "144d:a80a", "NVMe SSD Controller PM9A1/PM9A3/980PRO", capability=(4, 4), driver="nvme")
    return sorted(found, key=lambda one: one["address"])


def _matches_id(device: dict, wanted: str) -> bool:
    parts = [*wanted.lower().split(":"), "", ""][:3]
    for pattern, key in ((parts[0], "vendor"), (parts[1], "device"), (parts[2], "class")):
        value = device[key]
        if pattern not in ("", "*") and pattern.lstrip("0").zfill(1) != value.lstrip("0").zfill(1):
            return False
    return True


def _matches_slot(device: dict, wanted: str) -> bool:
    """Return whether a device's address matches the pattern of ``lspci -s``."""
    found = re.fullmatch(
        r"(?:(?:([0-9a-f]+|\*)?:)?([0-9a-f]+|\*)?:)?([0-9a-f]+|\*)?(?:\.([0-7]|\*))?", wanted.lower()
    )
    if not found:
        return False
    domain, bus, slot = device["address"].split(":")
    slot, function = slot.split(".")
    for pattern, value in zip(found.groups(), (domain, bus, slot, function)):  # noqa: B905 (not in 3.8)
        if pattern not in (None, "", "*") and int(pattern, 16) != int(value, 16):
            return False
    return True


def lspci(argv: list[str]) -> int:
    """Act as ``lspci``."""
    state = load()
    listed = devices(state)
    verbose, numbers, machine_form, kernel_lines = 0, 0, 0, False
    domains = any(not one["address"].startswith("0000:") for one in listed)
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--version":
            print("lspci version 3.9.0")
            return 0
        if not re.fullmatch(r"-[a-zA-Z].*", word):
            complain("Usage: lspci [<switches>]")
            return 1
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter == "v":
                verbose += 1
            elif letter == "n":
                numbers += 1
            elif letter == "m":
                machine_form += 1
            elif letter == "k":
                kernel_lines = True
            elif letter == "D":
                domains = True
            elif letter in "ds":
                value = letters or (rest.pop(0) if rest else "")
                letters = ""
                match = _matches_id if letter == "d" else _matches_slot
                listed = [one for one in listed if match(one, value)]
            elif letter not in "qP":
                complain(f"lspci: invalid option -- '{letter}'", "Usage: lspci [<switches>]")
                return 1
    for device in listed:
        address = device["address"] if domains else device["address"][5:]
        if machine_form:
            _machine_readable(device, address, numbers, verbose)
            continue
        print(f"{address} {_title(device, numbers)}")
        if verbose:
            _details(device, numbers, verbose)
        elif kernel_lines:
            print(f"\tSubsystem: {_subsystem(device, numbers)}")
        if verbose or kernel_lines:
            _kernel_lines(device)
        if verbose:
            print()
    return 0


def _vendor(code: str) -> str:
    return VENDORS.get(code, f"Vendor {code}")


def _title(device: dict, numbers: int) -> str:
    """Return the first line of a device, with numbers as ``-n`` (1) or ``-nn`` (2) requests."""
    revision = f" (rev {device['revision']})" if device["revision"] != "00" else ""
    if numbers == 1:
        return f"{device['class']}: {device['vendor']}:{device['device']}{revision}"
    kind = CLASSES[device["class"]]
    if numbers:
        kind += f" [{device['class']}]"
    # The distribution's list of names is older than the newest devices.
    name = f"{_vendor(device['vendor'])} {device['name'] or 'Device'}"
    if not device["name"] and not numbers:
        name += f" {device['device']}"
    if numbers:
        name += f" [{device['vendor']}:{device['device']}]"
    return f"{kind}: {name}{revision}"


def _subsystem(device: dict, numbers: int) -> str:
    vendor, code = device["subsystem"].split(":")
    if numbers == 1:
        return f"{vendor}:{code}"
    text = f"{_vendor(vendor)} Device {code}"
    return f"{text} [{vendor}:{code}]" if numbers else text


def _link(now: tuple, most: tuple) -> str:
    speed = SPEEDS[now[0]] + (" (downgraded)" if now[0] < most[0] else "")
    width = f"x{now[1]}" + (" (downgraded)" if now[1] < most[1] else "")
    return f"Speed {speed}, Width {width}"


def _details(device: dict, numbers: int, verbose: int) -> None:
    """Print the indented lines of ``lspci -v`` about a device."""
    print(f"\tSubsystem: {_subsystem(device, numbers)}")
    if verbose > 1:
        print(
            "\tControl: I/O- Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr+ Stepping- SERR+ FastB2B- "
            "DisINTx+"
        )
        print(
            "\tStatus: Cap+ 66MHz- UDF- FastB2B- ParErr- DEVSEL=fast >TAbort- <TAbort- <MAbort- >SERR- "
            "<PERR- INTx-"
        )
        print("\tLatency: 0\n\tInterrupt: pin A routed to IRQ 18")
    else:
        print("\tFlags: bus master, fast devsel, latency 0, IRQ 18")
    print(f"\tNUMA node: {device['numa']}")
    print(f"\tRegion 0: Memory at 220042000000 (64-bit, prefetchable) [size={device['memory']}]")
    if not is_root():
        print("\tCapabilities: <access denied>")
        return
    if verbose == 1:
        print("\tCapabilities: [60] Express Endpoint, MSI 00")
        return
    most = device["capability"]
    print("\tCapabilities: [60] Express (v2) Endpoint, MSI 00")
    print("\t\tDevCap:\tMaxPayload 256 bytes, PhantFunc 0, Latency L0s unlimited, L1 <64us")
    print("\t\t\tExtTag+ AttnBtn- AttnInd- PwrInd- RBE+ FLReset+ SlotPowerLimit 0W")
    print("\t\tDevCtl:\tCorrErr- NonFatalErr+ FatalErr+ UnsupReq-")
    print(
        "\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+ FLReset-\n"
        "\t\t\tMaxPayload 256 bytes, MaxReadReq 4096 bytes"
    )
    trained_down = "+" if device["link"] != most else "-"
    print(f"\t\tDevSta:\tCorrErr{trained_down} NonFatalErr- FatalErr- UnsupReq- AuxPwr- TransPend-")
    print(f"\t\tLnkCap:\tPort #0, Speed {SPEEDS[most[0]]}, Width x{most[1]}, ASPM not supported")
    print("\t\t\tClockPM+ Surprise- LLActRep- BwNot- ASPMOptComp+")
    print(
        "\t\tLnkCtl:\tASPM Disabled; RCB 64 bytes, Disabled- CommClk+\n"
        "\t\t\tExtSynch- ClockPM- AutWidDis- BWInt- AutBWInt-"
    )
    print(f"\t\tLnkSta:\t{_link(device['link'], most)}")
    print("\t\t\tTrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-")
    if device["vendor"] == MELLANOX and verbose > 2:
        print("\tCapabilities: [48] Vital Product Data\n\t\tProduct Name: " + (device["name"] or "ConnectX"))


def _kernel_lines(device: dict) -> None:
    if device["driver"]:
        print(f"\tKernel driver in use: {device['driver']}")
    if device["modules"]:
        print(f"\tKernel modules: {device['modules']}")


def _machine_readable(device: dict, address: str, numbers: int, verbose: int) -> None:
    """Print a device as ``lspci -m`` does."""
    vendor, code = device["subsystem"].split(":")

    def word(name: str, number: str) -> str:
        return number if numbers == 1 else f"{name} [{number}]" if numbers else name

    fields = (
        ("Class", word(CLASSES[device["class"]], device["class"])),
        ("Vendor", word(_vendor(device["vendor"]), device["vendor"])),
        ("Device", word(device["name"] or f"Device {device['device']}", device["device"])),
        ("SVendor", word(_vendor(vendor), vendor)),
        ("SDevice", word(f"Device {code}", code)),
    )
    if verbose:
        print(f"Slot:\t{address}")
        for key, value in fields:
            print(f"{key}:\t{value}")
        if device["revision"] != "00":
            print(f"Rev:\t{device['revision']}")
        if device["driver"]:
            print(f"Driver:\t{device['driver']}")
        print(f"NUMANode:\t{device['numa']}\n")
        return
    revision = f" -r{device['revision']}" if device["revision"] != "00" else ""
    texts = [f'"{value}"' for _key, value in fields]
    print(f"{address} {' '.join(texts[:3])}{revision} -p00 {' '.join(texts[3:])}")


TYPES = {
    "bios": (0, 13),
    "system": (1, 12),
    "baseboard": (2, 10),
    "chassis": (3,),
    "processor": (4,),
    "memory": (16, 17),
}


def dmi(state: State) -> dict[str, str]:
    """Return the board's data, by dmidecode's keywords."""
    sku, machine, cpu = state.sku, state["machine"], state.sku["cpu"]
    vendor, version, date = sku["bios"]
    return {
        "bios-vendor": vendor,
        "bios-version": version,
        "bios-release-date": date,
        "bios-revision": "5.32",
        "firmware-revision": "1.3",
        "system-manufacturer": sku["vendor"],
        "system-product-name": sku["product"],
        "system-version": "0123456789",
        "system-serial-number": machine["product_serial"],
        "system-uuid": machine["uuid"],
        "system-sku-number": "To be filled by O.E.M.",
        "system-family": sku["family"],
        "baseboard-manufacturer": sku["vendor"],
        "baseboard-product-name": sku["product"].replace("SYS-", "X13").replace("ARS-", "G1S"),
        "baseboard-version": "1.10",
        "baseboard-serial-number": machine["board_serial"],
        "baseboard-asset-tag": "Base Board Asset Tag",
        "chassis-manufacturer": sku["vendor"],
        "chassis-type": "Rack Mount Chassis",
        "chassis-version": "0123456789",
        "chassis-serial-number": machine["chassis_serial"],
        "chassis-asset-tag": "Chassis Asset Tag",
        "processor-family": "ARMv9" if cpu["vendor"] == "NVIDIA" else "Xeon",
        "processor-manufacturer": cpu["vendor"],
        "processor-version": cpu["version"],
        "processor-frequency": "3400 MHz" if cpu["vendor"] == "NVIDIA" else "2000 MHz",
    }


def dmidecode(argv: list[str]) -> int:
    """Act as ``dmidecode``."""
    told = dmi(load())
    keyword, kinds, quiet = "", [], False
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in ("-s", "--string", "-t", "--type"):
            if not equals:
                if not rest:
                    complain(f"dmidecode: option requires an argument -- '{name.lstrip('-')[0]}'")
                    return 2
                value = rest.pop(0)
            if name in ("-s", "--string"):
                keyword = value
            else:
                kinds.append(value)
        elif name in ("-q", "--quiet", "-u", "--no-sysfs"):
            quiet = quiet or name in ("-q", "--quiet")
        elif name in ("-V", "--version"):
            print("3.4")
            return 0
        else:
            complain(
                f"dmidecode: unrecognized option '{word}'"
                if word[:2] == "--"
                else f"dmidecode: invalid option -- '{word.lstrip('-')[:1]}'"
            )
            return 2
    if not is_root():
        complain(
            "/sys/firmware/dmi/tables/smbios_entry_point: Permission denied",
            "/dev/mem: Permission denied",
        )
        return 1
    if keyword:
        if keyword not in told:
            complain(
                f"Invalid string keyword: {keyword}",
                "Valid string keywords are:",
                *(f"  {one}" for one in told),
            )
            return 2
        print(told[keyword])
        return 0
    wanted: set[int] = set()
    for one in ",".join(kinds).split(",") if kinds else list(TYPES):
        if one.isdigit():
            wanted.add(int(one))
        elif one.lower() in TYPES:
            wanted.update(TYPES[one.lower()])
        else:
            complain(
                f"Invalid type keyword: {one}", "Valid type keywords are:", *(f"  {name}" for name in TYPES)
            )
            return 2
    if not quiet:
        print("# dmidecode 3.4\nGetting SMBIOS data from sysfs.\nSMBIOS 3.6.0 present.\n")
    for number, title, fields in _tables(told, load()):
        if number in wanted:
            if not quiet:
                print(f"Handle 0x{number:04X}, DMI type {number}, 27 bytes")
            print(title)
            for key, value in fields:
                print(f"\t{key}: {value}")
            print()
    return 0


def _tables(told: dict[str, str], state: State) -> list[tuple[int, str, list[tuple[str, str]]]]:
    """Return the tables with type, title and fields."""

    def part(prefix: str, *names: tuple[str, str]) -> list[tuple[str, str]]:
        return [(label, told[f"{prefix}-{key}"]) for label, key in names]

    cpu = state.sku["cpu"]
    modules = 16 if cpu["vendor"] != "NVIDIA" else 2
    size = state.sku["memory_gib"] // modules
    tables = [
        (
            0,
            "BIOS Information",
            part("bios", ("Vendor", "vendor"), ("Version", "version"), ("Release Date", "release-date")),
        ),
        (
            1,
            "System Information",
            part(
                "system",
                ("Manufacturer", "manufacturer"),
                ("Product Name", "product-name"),
                ("Version", "version"),
                ("Serial Number", "serial-number"),
                ("UUID", "uuid"),
                ("SKU Number", "sku-number"),
                ("Family", "family"),
            ),
        ),
        (
            2,
            "Base Board Information",
            part(
                "baseboard",
                ("Manufacturer", "manufacturer"),
                ("Product Name", "product-name"),
                ("Version", "version"),
                ("Serial Number", "serial-number"),
                ("Asset Tag", "asset-tag"),
            ),
        ),
        (
            3,
            "Chassis Information",
            part(
                "chassis",
                ("Manufacturer", "manufacturer"),
                ("Type", "type"),
                ("Version", "version"),
                ("Serial Number", "serial-number"),
                ("Asset Tag", "asset-tag"),
            ),
        ),
    ]
    processor = [
        ("Type", "Central Processor"),
        ("Manufacturer", cpu["vendor"]),
        ("Version", cpu["version"]),
        ("Status", "Populated, Enabled"),
        ("Core Count", str(cpu["cores"])),
        ("Core Enabled", str(cpu["cores"])),
        ("Thread Count", str(cpu["cores"] * cpu["threads"])),
    ]
    memory = [
        ("Size", f"{size} GB"),
        ("Form Factor", "Die" if modules == 2 else "DIMM"),
        ("Type", "LPDDR5" if modules == 2 else "DDR5"),
        ("Speed", "6400 MT/s"),
    ]
    return [
        *tables,
        *(
            (4, "Processor Information", [("Socket Designation", f"CPU{socket + 1}"), *processor])
            for socket in range(cpu["sockets"])
        ),
        *((17, "Memory Device", [("Locator", f"DIMM{index}"), *memory]) for index in range(modules)),
    ]
