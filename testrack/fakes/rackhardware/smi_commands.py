"""Fake the commands nvlink, topo, mig, pmon and dmon of nvidia-smi, for nvidia_smi.py."""

from __future__ import annotations

from .nvidia_smi import choose
from .state import State

_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks"""
_P2P_LEGEND = """
Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  U    = Unknown"""


def run(argv: list[str], state: State, version: str) -> int:
    """Run the command that the first word names, and return its exit status."""
    return {"nvlink": _nvlink, "topo": _topo, "mig": _mig, "pmon": _pmon, "dmon": _dmon}[argv[0]](
        argv[1:], state, version
    )


def _unknown(word: str) -> int:
    print(f'Option "{word}" is not recognized.')
    return 2


def _nvlink(argv: list[str], state: State, version: str) -> int:
    """Answer ``nvidia-smi nvlink``. Return the exit status."""
    shows = {
        "-s": "status",
        "--status": "status",
        "-e": "errors",
        "--errorcounters": "errors",
        "-c": "capabilities",
        "--capabilities": "capabilities",
        "-R": "remote",
        "--remotelinkinfo": "remote",
        "-p": "bus",
        "--pcibusid": "bus",
    }
    show, chosen_id, link = "", None, None
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in shows and not equals:
            show = shows[name]
        elif name in ("-i", "--id", "-l", "--link"):
            if not equals:
                if not rest:
                    print(f'Option "{word}" is missing its value.')
                    return 2
                value = rest.pop(0)
            if name in ("-i", "--id"):
                chosen_id = value
            else:
                link = value
        elif word not in ("-h", "--help"):
            return _unknown(word)
    if not show:
        print("\n    nvlink -- Display NvLink information.\n\n    Usage: nvidia-smi nvlink [options]\n")
        print("    Options include:")
        print("    [-h | --help]: Display help information")
        print("    [-i | --id]: Enumeration index, PCI bus ID or UUID.")
        print("    [-l | --link]: Limit a command to a specific link.")
        print("    [-s | --status]: Display link state (active/inactive).")
        print("    [-c | --capabilities]: Display link capabilities.")
        print("    [-p | --pcibusid]: Display remote node PCI bus ID for a link.")
        print("    [-R | --remotelinkinfo]: Display remote device PCI bus ID and NvLink ID for a link.")
        print("    [-e | --errorcounters]: Display error counters for a link.\n")
        return 0
    chosen = choose(state, chosen_id, version)
    if not chosen:
        print("No devices were found")
        return 6
    model = state.gpu_model
    links = range(model["nvlinks"])
    if link is not None:
        if not link.isdigit() or int(link) not in links:
            print(f"Link {link} is not valid.")
            return 2
        links = [int(link)]
    for see in chosen:
        print(f"GPU {see['index']}: {model['name']} (UUID: {see['gpu']['uuid']})")
        for one in links:
            down = one in see["nvlinks_down"]
            if show == "status":
                print(f"\t Link {one}: " + ("<inactive>" if down else f"{model['nvlink_gbs']} GB/s"))
            elif show == "errors":
                print(f"\t Link {one}: Replay Errors: {412 if down else 0}")
                print(f"\t Link {one}: Recovery Errors: {3 if down else 0}")
                print(f"\t Link {one}: CRC Errors: {1087 if down else 0}\n")
            elif show == "capabilities" and not down:
                for words in (
                    "P2P is supported",
                    "Access to system memory supported",
                    "P2P atomics supported",
                    "System memory atomics supported",
                    "SLI is supported",
                    "Link is supported",
                ):
                    print(f"\t Link {one}, {words}: true")
            elif show == "remote" and not down:
                print(f"\t Link {one}: Remote Device FFFFFFFF:FF:FF.0: Link 0")
            elif show == "bus" and not down:
                print(f"\t Link {one}: FFFFFFFF:FF:FF.0")
    return 0


def _affinity(state: State, numa: int) -> str:
    cpu = state.sku["cpu"]
    cores, sockets = cpu["cores"], cpu["sockets"]
    first = f"{numa * cores}-{(numa + 1) * cores - 1}"
    if cpu["threads"] == 1:
        return first
    total = cores * sockets
    return f"{first},{total + numa * cores}-{total + (numa + 1) * cores - 1}"


def _topo(argv: list[str], state: State, version: str) -> int:
    """Answer ``nvidia-smi topo``. Return the exit status."""
    if argv[:1] in (["-p2p"], ["--p2pstatus"]):
        return _peers(state, version)
    for word in argv:
        if word not in ("-m", "--matrix", "-h", "--help"):
            return _unknown(word)
    if not argv or argv[0] in ("-h", "--help"):
        print("\n    topo -- Display topological information about the system.\n")
        print("    Usage: nvidia-smi topo [options]\n\n    Options include:")
        print("    [-m | --matrix]: Display the GPUDirect communication matrix for the system.")
        print(
            "    [-p2p | --p2pstatus]: Displays the p2p status between the GPUs of a given p2p capability\n"
        )
        return 0
    gpus = choose(state, None, version)
    # Network cards are in the matrix once their driver is loaded.
    from .infiniband import devices

    cards = devices(state)
    heads = [f"GPU{see['index']}" for see in gpus] + [f"NIC{index}" for index in range(len(cards))]
    columns = [*heads, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    print("\t\x1b[4m" + "\t".join(columns) + "\x1b[0m")
    places = [("gpu", see["gpu"]["numa"], index) for index, see in enumerate(gpus)]
    places += [("nic", hca["numa"], index) for index, hca in enumerate(cards)]
    for row, (kind, numa, own) in enumerate(places):
        cells = []
        for column, (other_kind, other_numa, other) in enumerate(places):
            if row == column:
                cells.append(" X ")
            elif kind == other_kind == "gpu":
                down = len(gpus[own]["nvlinks_down"]) + len(gpus[other]["nvlinks_down"])
                cells.append(f"NV{state.gpu_model['nvlinks'] - down}")
            elif numa != other_numa:
                cells.append("SYS")
            elif kind != other_kind and own * len(cards) == other * len(gpus):
                cells.append("PXB")
            else:
                cells.append("NODE")
        if kind == "gpu":
            numa_id = "N/A" if state.gpu_model["addressing"] != "ATS" else str(2 + 8 * own)
            print("\t".join([heads[row], *cells, _affinity(state, numa), f"{numa}\t", numa_id]))
        else:
            print("\t".join([heads[row], *cells]))
    print(_LEGEND)
    if cards:
        print("\nNIC Legend:\n")
        for index, hca in enumerate(cards):
            print(f"  NIC{index}: {hca['name']}")
        print()
    return 0


def _peers(state: State, version: str) -> int:
    gpus = choose(state, None, version)
    print(" \t\x1b[4m" + "\t".join(f"GPU{see['index']}" for see in gpus) + "\t\x1b[0m")
    for row in range(len(gpus)):
        print(f" GPU{row}\t" + "".join("X\t" if row == column else "OK\t" for column in range(len(gpus))))
    print(_P2P_LEGEND)
    return 0


def _mig(argv: list[str], _state: State, _version: str) -> int:
    known = {"-lgi", "-lgip", "-lci", "-lcip", "-i", "-dgi", "-dci", "-cgi", "-cci", "-h", "--help"}
    for word in argv:
        if word.startswith("-") and word.partition("=")[0] not in known:
            return _unknown(word)
    if not argv or "-h" in argv or "--help" in argv:
        print("\n    mig -- Multi Instance GPU management.\n\n    Usage: nvidia-smi mig [options]\n")
        return 0
    print("No MIG-enabled devices found.")
    return 6 if {"-dgi", "-dci", "-cgi", "-cci"} & set(argv) else 0


def _pmon(_argv: list[str], state: State, version: str) -> int:
    print("# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command ")
    print("# Idx           #    C/G      %      %      %      %      %      %    name ")
    for see in choose(state, None, version):
        print(
            f"{see['index']:>5}          -     -      -      -      -      -      -      -    -              "
        )
    return 0


def _dmon(_argv: list[str], state: State, version: str) -> int:
    print("# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk ")
    print("# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz ")
    for see in choose(state, None, version):
        clocks = f"{state.gpu_model['memory_clocks'][0]:>6} {see['clock']:>6} "
        readings = f"{see['power']:>6.0f} {see['temperature']:>6} {see['memory_temperature']:>6}"
        print(f"{see['index']:>5} {readings}      0      0      0      0      0      0 {clocks}")
    return 0
