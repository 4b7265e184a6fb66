"""Fake the tools of InfiniBand.

The tools are ibstat, ibstatus, ibv_devinfo, ibv_devices, ibdev2netdev and ofed_info. main.py starts them by
their names, and kernel_files.py writes the same cards to /sys.
"""

from __future__ import annotations

import json
import os
import sys

from . import kernel
from .state import HardwareError, State, at, complain, load

OFED = "/usr/lib/rack/ofed.json"
MTU = "4096 (5)"


def devices(state: State) -> list[dict]:
    """Return the network cards of the loaded driver, in the order of their names."""
    return [*state["hcas"]] if "mlx5_ib" in kernel.loaded() else []


STATES = {
    "down": ("Down", "Polling", "1: DOWN", "2: Polling", "PORT_DOWN (1)", "POLLING (2)"),
    "init": ("Initializing", "LinkUp", "2: INIT", "5: LinkUp", "PORT_INIT (2)", "LINK_UP (5)"),
    "active": ("Active", "LinkUp", "4: ACTIVE", "5: LinkUp", "PORT_ACTIVE (4)", "LINK_UP (5)"),
}
"""The state of a port and of its link, as ibstat, the kernel and ibv_devinfo write them."""


def speed(state: State, hca: dict) -> tuple[int, str]:
    """Return the rate of a card's port in Gb/s, and the name of its generation."""
    model = state.sku["hca"]
    return hca.get("rate", model["rate"]), hca.get("generation", model["generation"])


def layer(hca: dict) -> str:
    """Return the link layer of a card's port."""
    return hca.get("layer", "InfiniBand")


def _state(state: State, hca: dict) -> str:
    return state.port_state(state["hcas"].index(hca))


def _port_guid(hca: dict) -> str:
    return hca["guid"]


def colons(guid: str) -> str:
    """Return a GUID as the kernel writes it."""
    digits = guid[2:].zfill(16)
    return ":".join(digits[index : index + 4] for index in range(0, 16, 4))


def _chosen(state: State, name: str) -> list[dict]:
    return [hca for hca in devices(state) if not name or hca["name"] == name]


def ibstat(argv: list[str]) -> int:
    """Act as ``ibstat``."""
    names = [one for one in argv if not one.startswith("-")]
    flags = {one for one in argv if one.startswith("-")}
    unknown = flags - {"-l", "--list_of_cas", "-s", "--short", "-p", "--port_list", "-v", "-V", "--version"}
    if unknown:
        complain(
            f"ibstat: unrecognized option '{min(unknown)}'", "", "Usage: ibstat [options] <ca_name> [portnum]"
        )
        return 2
    if flags & {"-V", "--version"}:
        print("ibstat BUILD VERSION: 44.0")
        return 0
    state = load()
    found = _chosen(state, names[0] if names else "")
    if names and not found:
        complain(f"ibpanic: [{os.getpid()}] main: '{names[0]}' IB device can't be found: Success")
        return 255
    model = state.sku["hca"]
    for hca in found:
        if flags & {"-l", "--list_of_cas"}:
            print(hca["name"])
            continue
        if flags & {"-p", "--port_list"}:
            print(_port_guid(hca))
            continue
        print(f"CA '{hca['name']}'\n\tCA type: {model['ca_type']}\n\tNumber of ports: 1")
        print(f"\tFirmware version: {hca['firmware']}\n\tHardware version: 0")
        print(f"\tNode GUID: {hca['guid']}\n\tSystem image GUID: {hca['guid']}")
        if flags & {"-s", "--short"}:
            continue
        port = _state(state, hca)
        active, words = port == "active", STATES[port]
        print("\tPort 1:")
        print(f"\t\tState: {words[0]}")
        print(f"\t\tPhysical state: {words[1]}")
        print(f"\t\tRate: {10 if port == 'down' else speed(state, hca)[0]}")
        print(f"\t\tBase lid: {hca['lid'] if active else 65535}\n\t\tLMC: 0")
        print(f"\t\tSM lid: {1 if active else 0}")
        print("\t\tCapability mask: " + ("0xa751e848" if active else "0xa750e848"))
        print(f"\t\tPort GUID: {_port_guid(hca)}\n\t\tLink layer: {layer(hca)}")
    return 0


def ibstatus(argv: list[str]) -> int:
    """Act as ``ibstatus``."""
    state = load()
    names = [one.partition(":")[0] for one in argv if not one.startswith("-")]
    found = _chosen(state, names[0] if names else "")
    if not found:
        complain(
            f"Fatal error:  device '{names[0] if names else '*'}': "
            f"sys files not found (/sys/class/infiniband/{names[0] if names else '*'}/ports)"
        )
        return 255
    for hca in found:
        port = _state(state, hca)
        down, active = port == "down", port == "active"
        prefix = "fe80:0000:0000:0000"
        lid = hca["lid"] if active else 0xFFFF
        print(f"Infiniband device '{hca['name']}' port 1 status:")
        print(f"\tdefault gid:\t {prefix}:{colons(_port_guid(hca))}")
        print(f"\tbase lid:\t 0x{lid:x}\n\tsm lid:\t\t 0x{1 if active else 0:x}")
        print(f"\tstate:\t\t {STATES[port][2]}")
        print(f"\tphys state:\t {STATES[port][3]}")
        gbps, generation = speed(state, hca)
        rate = "10 Gb/sec (4X SDR)" if down else f"{gbps} Gb/sec (4X {generation})"
        print(f"\trate:\t\t {rate}\n\tlink_layer:\t {layer(hca)}\n")
    return 0


def ibv_devices(argv: list[str]) -> int:
    """Act as ``ibv_devices``."""
    state = load()
    print("    device          \t   node GUID\n    ------          \t----------------")
    for hca in devices(state):
        print(f"    {hca['name']:<16}\t{hca['guid'][2:].zfill(16)}")
    return 0


def ibdev2netdev(argv: list[str]) -> int:
    """Act as ``ibdev2netdev``, the script of MLNX_OFED."""
    state = load()
    for hca in devices(state):
        domain, bus = hca["bus_id"].split(":")[:2]
        name = f"ibP{int(domain, 16)}p{int(bus, 16)}s0" if int(domain, 16) else f"ibp{int(bus, 16)}s0"
        print(f"{hca['name']} port 1 ==> {name} ({'Up' if _state(state, hca) == 'active' else 'Down'})")
    return 0


# The fields that ibv_devinfo -v prints for every mlx5 device between its identity and its port.
_LIMITS = (
    ("max_mr_size", "0xffffffffffffffff"),
    ("page_size_cap", "0xfffffffffffff000"),
    ("max_qp", "131072"),
    ("max_qp_wr", "32768"),
    ("device_cap_flags", "0x21361c36"),
    ("max_sge", "30"),
    ("max_sge_rd", "30"),
    ("max_cq", "16777216"),
    ("max_cqe", "4194303"),
    ("max_mr", "16777216"),
    ("max_pd", "8388608"),
    ("max_qp_rd_atom", "16"),
    ("max_ee_rd_atom", "0"),
    ("max_res_rd_atom", "2097152"),
    ("max_qp_init_rd_atom", "16"),
    ("max_ee_init_rd_atom", "0"),
    ("atomic_cap", "ATOMIC_HCA (1)"),
    ("max_ee", "0"),
    ("max_rdd", "0"),
    ("max_mw", "16777216"),
    ("max_raw_ipv6_qp", "0"),
    ("max_raw_ethy_qp", "0"),
    ("max_mcast_grp", "2097152"),
    ("max_mcast_qp_attach", "240"),
    ("max_total_mcast_qp_attach", "503316480"),
    ("max_ah", "2147483647"),
    ("max_fmr", "0"),
    ("max_srq", "8388608"),
    ("max_srq_wr", "32767"),
    ("max_srq_sge", "31"),
    ("max_pkeys", "128"),
    ("local_ca_ack_delay", "16"),
)


def _line(depth: int, key: str, value: str) -> None:
    """Print a field as ibv_devinfo does, with tabs up to one column."""
    width = 32 if depth == 1 else 24
    tabs = max(1, -(-(width - len(key) - 1) // 8))
    print("\t" * depth + f"{key}:" + "\t" * tabs + value)


def ibv_devinfo(argv: list[str]) -> int:
    """Act as ``ibv_devinfo``."""
    verbose = only_list = False
    name = ""
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-v", "--verbose"):
            verbose = True
        elif word in ("-l", "--list"):
            only_list = True
        elif word in ("-d", "--ib-dev", "-i", "--ib-port") or word.startswith(("--ib-dev=", "--ib-port=")):
            value = word.partition("=")[2] if "=" in word else (rest.pop(0) if rest else "")
            name = value if "dev" in word or word == "-d" else name
        else:
            wrong = (
                f"unrecognized option '{word}'" if word[:2] == "--" else f"invalid option -- '{word[1:2]}'"
            )
            complain(f"ibv_devinfo: {wrong}", "Usage: ibv_devinfo             print the ca attributes")
            return 1
    state = load()
    everyone = devices(state)
    if only_list:
        print(f"{len(everyone)} HCA{'s' if len(everyone) != 1 else ''} found:")
        for hca in everyone:
            print(f"\t{hca['name']}")
        print()
        return 0
    if not everyone:
        complain("No IB devices found")
        return 255
    found = _chosen(state, name)
    if not found:
        complain(f"IB device '{name}' wasn't found")
        return 255
    model = state.sku["hca"]
    for hca in found:
        here = _state(state, hca)
        active = here == "active"
        print(f"hca_id:\t{hca['name']}")
        for key, value in (
            ("transport", "InfiniBand (0)"),
            ("fw_ver", hca["firmware"]),
            ("node_guid", colons(hca["guid"])),
            ("sys_image_guid", colons(hca["guid"])),
            ("vendor_id", "0x02c9"),
            ("vendor_part_id", str(model["part"])),
            ("hw_ver", "0x0"),
            ("board_id", model["board_id"]),
            ("phys_port_cnt", "1"),
        ):
            _line(1, key, value)
        if verbose:
            for key, value in _LIMITS:
                _line(1, key, value)
        print("\t\tport:\t1")
        port = [
            ("state", STATES[here][4]),
            ("max_mtu", MTU),
            ("active_mtu", MTU),
            ("sm_lid", "1" if active else "0"),
            ("port_lid", str(hca["lid"]) if active else "65535"),
            ("port_lmc", "0x00"),
            ("link_layer", layer(hca)),
        ]
        if verbose:
            port += [
                ("max_msg_sz", "0x40000000"),
                ("port_cap_flags", "0xa651e848"),
                ("port_cap_flags2", "0x0032"),
                ("max_vl_num", "4 (3)"),
                ("bad_pkey_cntr", "0x0"),
                ("qkey_viol_cntr", "0x0"),
                ("sm_sl", "0"),
                ("pkey_tbl_len", "128"),
                ("gid_tbl_len", "8"),
                ("subnet_timeout", "18"),
                ("init_type_reply", "0"),
                ("active_width", "4X (2)"),
                (
                    "active_speed",
                    "2.5 Gbps (1)" if here == "down" else f"{model['speed']} ({model['speed_code']})",
                ),
                ("phys_state", STATES[here][5]),
                ("GID[  0]", f"fe80:0000:0000:0000:{colons(_port_guid(hca))}"),
            ]
        for key, value in port:
            _line(3, key, value)
        print()
    return 0


def ofed_info(argv: list[str]) -> int:
    """Act as ``ofed_info``. Print the text of the installed package."""
    path = at(OFED)
    try:
        with open(path, encoding="utf-8") as stream:
            about = json.load(stream)
    except FileNotFoundError:
        raise HardwareError(f"{path}: no OFED package is installed, though its program is") from None
    except (OSError, ValueError) as error:
        raise HardwareError(f"{path}: {error}") from None
    name = str(about.get("name") or about.get("version", ""))
    if "-s" in argv:
        print(f"{name}:")
    elif "-n" in argv:
        print(about.get("version", name.rpartition("LINUX-")[2]))
    elif not argv or argv == ["-l"]:
        if not argv:
            print(f"{name} ({about.get('release', 'OFED')}):\n")
        for package, version in sorted(about.get("packages", {}).items()):
            print(f"{package}:\n{version}\n" if not argv else package)
    else:
        complain(f"Unsupported option: {argv[0]}", "Usage: ofed_info [-h|-s|-n|-l]")
        return 1
    sys.stdout.flush()
    return 0
