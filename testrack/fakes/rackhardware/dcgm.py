"""Fake dcgmi of DCGM 4.

main.py calls :func:`dcgmi`, which reads the node's hardware from the state file, as all fakes here do.
"""

from __future__ import annotations

import json
import re
import textwrap

from . import kernel, smi_report
from .nvidia_smi import driver_problem
from .services import hang_if_told, unit_runs
from .state import State, at, changing, complain, load, running, unknown_option

# Exit statuses are DCGM's results, negative numbers, as the shell sees them.
NO_CONNECTION, DIAGNOSTIC_FAILED, BAD_PARAMETER, NOT_WATCHED = 235, 226, 255, 237
LEVELS = {"1": "1", "quick": "1", "2": "2", "medium": "2", "3": "3", "long": "3", "4": "4", "xlong": "4"}
SYSTEMS = {
    "p": "PCIe",
    "m": "Memory",
    "i": "Inforom",
    "t": "Thermal and Power",
    "n": "NVLink",
    "d": "Driver",
    "x": "ConnectX",
}
# The tests of each category, each with the lowest run level (-r) that includes it.
TESTS = {
    "Deployment": (("software", 1),),
    "Hardware": (("memory", 2), ("diagnostic", 3), ("nvbandwidth", 3), ("pulse_test", 4)),
    "Integration": (("pcie", 2),),
    "Stress": (("memory_bandwidth", 3), ("targeted_power", 3), ("targeted_stress", 3), ("memtest", 4)),
}


def version() -> str:
    """Return the version of the installed package by dpkg, or "" if it is not installed."""
    try:
        with open(at("/var/lib/dpkg/status"), encoding="utf-8", errors="replace") as stream:
            entries = stream.read()
    except OSError:
        return ""
    for entry in re.findall(r"^Package: datacenter-gpu-manager\S*\n(?:.+\n)*", entries, re.MULTILINE):
        found = re.search(r"^Version: (?:\d+:)?([\w.]+)", entry, re.MULTILINE)
        if found and "\nStatus: install ok " in entry:
            return found[1]
    return ""


_COMMON = ({"-j", "--json", "-h", "--help"}, {"--host", "-g", "--group"})
_OPTIONS = {
    "discovery": ({"-l", "--list", "-c", "--compute-hierarchy"}, {"-i", "--info", "-v", "--verbose"}),
    "health": ({"-f", "--fetch", "-c", "--check", "--clear"}, {"-s", "--set", "-m", "--max-keep-age"}),
    "diag": (
        {"-v", "--verbose", "--fail-early", "--statsonfail", "--throttle-mask"},
        {"-r", "--run", "-i", "--entity-id", "-p", "--parameters", "-c", "--configfile", "--iterations"}
        | {
            "--check-interval",
            "--debugLogFile",
            "-d",
            "--debugLevel",
            "--timeoutSeconds",
            "--ignoreErrorCodes",
        },
    ),
    "nvlink": ({"-s", "--link-status"}, {"-e", "--errors", "-i", "--gpuid"}),
}
"""Options of each subsystem, without and with a value. dcgmi refuses all others."""


def dcgmi(argv: list[str]) -> int:
    """Act as ``dcgmi``."""
    if argv[:1] in (["--version"], ["-v"]):
        print(f"\ndcgmi  version: {version()}\n")
        return 0
    commands = {"discovery": _discovery, "health": _health, "diag": _diag, "nvlink": _nvlink}
    if not argv or argv[0] in ("-h", "--help"):
        print(f" Usage: dcgmi <subsystem>\n\n   This fake has: {', '.join(commands)}, --version\n")
        return 0
    if argv[0] not in commands:
        print("ERROR: Invalid subsystem")
        return BAD_PARAMETER
    (flags, valued), (more, more_valued) = _OPTIONS[argv[0]], _COMMON
    if unknown := unknown_option(argv[1:], flags | more, valued | more_valued):
        complain(f"Error: Couldn't find match for argument for arg Argument: {unknown}")
        return BAD_PARAMETER
    if not (running("nv-hostengine") or unit_runs("nvidia-dcgm")):
        print("Error: unable to establish a connection to the specified host: localhost")
        print("Error: Unable to connect to host engine. Host engine connection invalid/disconnected.")
        return NO_CONNECTION
    state = load()
    if kernel.driver():
        hang_if_told()
    return commands[argv[0]](argv[1:], state)


def _seen(state: State) -> list[dict]:
    """Return the readings of the GPUs that dcgmi can see, which are none if the driver has a problem."""
    seen = [] if driver_problem(state)[1] else smi_report.views(state, kernel.driver())
    return [see for see in seen if not state.hit(see["gpu"], "lost-gpu")]


def _plural(count: int, what: str) -> str:
    """Return a count with its noun, as dcgmi writes it."""
    return f"{count} {what}{'' if count == 1 else 's'} found."


def _discovery(argv: list[str], state: State) -> int:
    """Answer ``dcgmi discovery``. Return the exit status."""
    if not {"-l", "--list"} & set(argv):
        print("Error: this fake answers: dcgmi discovery -l")
        return BAD_PARAMETER
    seen = _seen(state)
    line = "+--------+----------------------------------------------------------------------+"
    print(_plural(len(seen), "GPU"))
    print(f"{line}\n| GPU ID | {'Device Information':<68} |\n{line}")
    for see in seen:
        texts = (
            f"Name: {state.gpu_model['name']}",
            f"PCI Bus ID: {see['gpu']['bus_id']}",
            f"Device UUID: {see['gpu']['uuid']}",
        )
        for index, text in enumerate(texts):
            print(f"| {see['index'] if not index else '':<6} | {text:<68} |")
        print(line)
    switches = state.sku["nvswitch"][2] if state.sku["nvswitch"] and seen else 0
    print(_plural(switches, "NvSwitch").replace("NvSwitchs", "NvSwitches"))
    line = "+-----------+"
    print(f"{line}\n| Switch ID |\n{line}")
    for index in range(switches):
        print(f"| {index:<9} |\n{line}")
    print(_plural(0, "ConnectX"))
    print("+----------+\n| ConnectX |\n+----------+")
    cpus = state.sku["cpu"]["sockets"] if state.sku["cpu"]["vendor"] == "NVIDIA" else 0
    print(_plural(cpus, "CPU"))
    line = "+--------+----------------------------------------------------------------------+"
    print(f"{line}\n| CPU ID | {'Device Information':<68} |\n{line}")
    cores = state.sku["cpu"]["cores"]
    for index in range(cpus):
        print(f"| {index:<6} | {'Name: Grace TH500':<68} |")
        print(f"|        | {f'Cores: {index * cores}-{(index + 1) * cores - 1}':<68} |\n{line}")
    return 0


def _incidents(state: State) -> list[tuple[int, str, str, str]]:
    """Return (GPU, system, Warning or Failure, text) of each fault."""
    found = []
    for see in _seen(state):
        index = see["index"]
        if see["sram_uncorrectable"]:
            words = f"Uncorrectable SRAM ECC errors detected on GPU {index}. Drain the GPU and reset it."
            found.append((index, "Memory", "Failure", words))
        if see["remap_pending"] == "Yes":
            words = f"GPU {index} has a pending row remap. Reset the GPU or reboot the node to activate it."
            found.append((index, "Memory", "Warning", words))
        if see["reasons"] & smi_report.THROTTLED:
            words = f"GPU {index} is being throttled: thermal violations of 184 seconds in the last minute."
            found.append((index, "Thermal", "Warning", words))
        for link in see["nvlinks_down"]:
            words = f"GPU {index}'s NvLink link {link} is currently down. Run a field diagnostic on the GPU."
            found.append((index, "NVLink", "Failure", words))
        if see["link_width"] != 16:
            words = f"GPU {index}'s PCIe link has width x{see['link_width']} and not x16."
            found.append((index, "PCIe", "Warning", words))
        if state.hit(see["gpu"], "xid"):
            number = (state.fault("xid") or {}).get("number", 79)
            words = f"Detected XID {number} on GPU {index}. Check the kernel log for details."
            found.append((index, "Driver", "Failure", words))
    return found


_HEALTH_LINE = "+---------------------------+----------------------------------------------------------+"


def _health(argv: list[str], state: State) -> int:
    """Answer ``dcgmi health``. Return the exit status."""
    as_json = bool({"-j", "--json"} & set(argv))
    settings = state.get("settings", {})
    for index, word in enumerate(argv):
        if word in ("-s", "--set"):
            systems = argv[index + 1] if index + 1 < len(argv) else ""
            if not systems or set(systems) - set("apmitndx"):
                print("Error: Invalid flag: health systems are a, p, m, i, t, n, d, x")
                return BAD_PARAMETER
            with changing() as changed:
                changed.setdefault("settings", {})["dcgm_watches"] = systems
            print("Health monitor systems set successfully.")
            return 0
        if word == "--clear":
            with changing() as changed:
                changed.setdefault("settings", {}).pop("dcgm_watches", None)
            print("Health monitor systems cleared successfully.")
            return 0
    watched = settings.get("dcgm_watches", "")
    if {"-f", "--fetch"} & set(argv):
        print(f"Health monitor systems report\n{_HEALTH_LINE}")
        for letter, name in SYSTEMS.items():
            print(f"| {name:<25} | {'On' if letter in watched or watched == 'a' else 'Off':<56} |")
        print(_HEALTH_LINE)
        return 0
    if not {"-c", "--check"} & set(argv):
        print("Error: required: one of --fetch, --set, --clear, --check")
        return BAD_PARAMETER
    if not watched:
        print("Error: Health watches not enabled. Please enable watches. ")
        return NOT_WATCHED
    letters = {"PCIe": "p", "Memory": "m", "Thermal": "t", "NVLink": "n", "Driver": "d"}
    found = [one for one in _incidents(state) if watched == "a" or letters[one[1]] in watched]
    overall = "Healthy"
    if found:
        overall = "Failure" if any(one[2] == "Failure" for one in found) else "Warning"
    if as_json:
        print(json.dumps(_health_json(found, overall), indent=4))
        return 0
    print(f"{_HEALTH_LINE}\n| {'Health Monitor Report':<84} |")
    print(_HEALTH_LINE.replace("-", "="))
    print(f"| {'Overall Health':<25} | {overall:<56} |")
    if found:
        print(f"| {'GPU':<25} | {'':<56} |")
    for gpu in sorted({one[0] for one in found}):
        mine = [one for one in found if one[0] == gpu]
        worst = "Failure" if any(one[2] == "Failure" for one in mine) else "Warning"
        print(f"| {f'-> {gpu}':<25} | {worst:<56} |")
        print(f"| {'   -> Errors':<25} | {'':<56} |")
        for _gpu, system, level, words in mine:
            print(f"| {f'      -> {system} system':<25} | {level:<56} |")
            for part in textwrap.wrap(words, 56):
                print(f"| {'':<25} | {part:<56} |")
    print(_HEALTH_LINE)
    return 0


def _health_json(found: list, overall: str) -> dict:
    """Return the answer of ``dcgmi health`` for ``--json``."""
    body: dict = {"Overall Health": {"value": overall}}
    if found:
        gpus: dict = {}
        for gpu, system, level, words in found:
            entry = gpus.setdefault(str(gpu), {"value": level, "children": {"Errors": {"children": {}}}})
            entry["value"] = "Failure" if "Failure" in (level, entry["value"]) else "Warning"
            entry["children"]["Errors"]["children"][f"{system} system"] = {
                "value": level,
                "children": {"Error": {"value": words}},
            }
        body["GPU"] = {"children": gpus}
    return {"body": body, "header": ["Health Monitor Report"]}


def _deployment(state: State, see: dict) -> list[tuple[int, int, int, str]]:
    """Return (error, category, severity, text) of each fault that the deployment test finds on a GPU."""
    index, found = see["index"], []
    if see["persistence"] != "Enabled":
        words = (
            f"Persistence Mode: Persistence mode for GPU {index} is disabled. Enable persistence mode by "
            f'running "nvidia-smi -i {index} -pm 1" as root.'
        )
        found.append((29, 8, 5, words))
    if see["remap_pending"] == "Yes":
        words = (
            f"Page Retirement/Row Remap: GPU {index} has uncorrectable memory errors and row remappings are "
            "pending. Reset the GPU or reboot the node."
        )
        found.append((96, 7, 3, words))
    if see["sram_uncorrectable"]:
        words = f"Memory: GPU {index} has uncorrectable SRAM ECC errors. Reset the GPU or reboot the node."
        found.append((5, 7, 2, words))
    if see["fabric_state"][0] != "Completed":
        words = (
            f"Fabric Manager: the training of the fabric for GPU {index} is in progress. Verify that the "
            "fabric manager service runs."
        )
        found.append((99, 4, 3, words))
    return found


def _others(test: str, see: dict) -> list[tuple[int, int, int, str]]:
    """Return (error, category, severity, text) of each fault that another test finds on a GPU."""
    index = see["index"]
    if test == "pcie" and (see["link_width"] != 16 or see["nvlinks_down"]):
        return [(20, 3, 2, f"PCIe or NVLink of GPU {index} is degraded: width x{see['link_width']}.")]
    if test == "targeted_power" and see["reasons"] & smi_report.THROTTLED:
        return [(34, 2, 3, f"Thermal violations totaling 12.4 seconds were detected for GPU {index}.")]
    if test in ("memory", "memtest") and see["sram_uncorrectable"]:
        return [(5, 7, 2, f"Uncorrectable ECC errors on GPU {index}.")]
    return []


_DIAG_VALUED = ("-g", "--group", "-p", "--parameters", "--host", "-c", "--configfile", "--iterations")


def _diag(argv: list[str], state: State) -> int:
    """Answer ``dcgmi diag``. Return the exit status."""
    level, rest, as_json = "", list(argv), False
    wanted_gpus = ""
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in ("-r", "--run"):
            level = value if equals else (rest.pop(0) if rest else "")
        elif name in ("-i", "--entity-id"):
            wanted_gpus = value if equals else (rest.pop(0) if rest else "")
        elif name in ("-j", "--json"):
            as_json = True
        elif name in _DIAG_VALUED and not equals:
            rest[:1] = []
    if level not in LEVELS and level not in {name for tests in TESTS.values() for name, _at in tests}:
        print(f'Error: requested test "{level}" was not found.' if level else "Error: required option: --run")
        return BAD_PARAMETER
    seen = _seen(state)
    if wanted_gpus:
        seen = [see for see in seen if str(see["index"]) in wanted_gpus.split(",")]
    if not seen:
        print("Error: Diagnostic could not be run because the Tesla recommended driver is not being used.")
        print("Error: Unable to run diagnostic: no supported GPUs were found.")
        return DIAGNOSTIC_FAILED
    categories, failed = [], False
    for category, tests in TESTS.items():
        entries = []
        for test, least in tests:
            if (level in LEVELS and int(LEVELS[level]) < least) or (level not in LEVELS and level != test):
                continue
            results = []
            for see in seen:
                against = _deployment(state, see) if test == "software" else _others(test, see)
                failed = failed or bool(against)
                results.append((see["index"], against))
            entries.append((test, results))
        if entries:
            categories.append((category, entries))
    if as_json:
        print(json.dumps(_diag_json(state, categories), indent=4))
    else:
        _diag_table(state, categories)
    return DIAGNOSTIC_FAILED if failed else 0


def _diag_json(state: State, categories: list) -> dict:
    """Return the result of ``dcgmi diag`` for ``--json``."""

    def result(index: int, against: list) -> dict:
        entry: dict = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": index}
        entry["status"] = "Fail" if against else "Pass"
        if against:
            entry["warnings"] = [
                {"error_category": category, "error_id": error, "error_severity": severity, "warning": words}
                for error, category, severity, words in against
            ]
        return entry

    gpus = [
        {"entity_id": gpu, "device_id": state.gpu_model["device"], "serial_num": see["gpu"]["serial"]}
        for gpu, see in ((see["index"], see) for see in _seen(state))
    ]
    return {
        "DCGM Diagnostic": {
            "test_categories": [
                {
                    "category": category,
                    "tests": [
                        {
                            "name": test,
                            "results": [result(index, against) for index, against in results],
                            "test_summary": {"status": "Fail" if any(one[1] for one in results) else "Pass"},
                        }
                        for test, results in tests
                    ],
                }
                for category, tests in categories
            ]
        },
        "entity_groups": [{"entity_group": "GPU", "entity_group_id": 1, "entities": gpus}],
        "metadata": {"DCGM Version": version(), "Driver Version Detected": kernel.driver()},
    }


def _diag_table(state: State, categories: list) -> None:
    """Print the result of ``dcgmi diag`` as a table."""
    line = "+---------------------------+------------------------------------------------+"

    def row(key: str, value: str) -> None:
        for index, part in enumerate(textwrap.wrap(value, 46) or [""]):
            print(f"| {key if not index else '':<25} | {part:<46} |")

    print("Successfully ran diagnostic for group.")
    print(line)
    row("Diagnostic", "Result")
    print(line.replace("-", "="))
    print("|-----  Metadata  ----------+------------------------------------------------|")
    row("DCGM Version", version())
    row("Driver Version Detected", kernel.driver())
    row("GPU Device IDs Detected", ", ".join(state.gpu_model["device"] for _see in _seen(state)))
    for position, (category, tests) in enumerate(categories):
        edge = "|" if not position else "+"
        title = f"-----  {category}  "
        print(f"{edge}{title:-<27}+{'-' * 48}{edge}")
        for test, results in tests:
            row(test, "Fail" if any(against for _index, against in results) else "Pass")
            for index, against in results:
                row("", f"GPU{index}: {'Fail' if against else 'Pass'}")
            for index, against in results:
                for _error, _category, _severity, words in against:
                    row(f"Warning: GPU{index}", words)
    print(line)


def _nvlink(argv: list[str], state: State) -> int:
    """Answer ``dcgmi nvlink``. Return the exit status."""
    if not {"-s", "--link-status"} & set(argv):
        print("Error: this fake answers: dcgmi nvlink -s")
        return BAD_PARAMETER
    print("+----------------------+\n|  NvLink Link Status  |\n+----------------------+\nGPUs:")
    for see in _seen(state):
        links = " ".join(
            "D" if link in see["nvlinks_down"] else "U" for link in range(state.gpu_model["nvlinks"])
        )
        print(f"    gpuId {see['index']}:\n        {links}")
    print("NvSwitches:")
    count = state.sku["nvswitch"][2] if state.sku["nvswitch"] else 0
    for index in range(count):
        print(f"    physicalId {index}:\n        " + " ".join("U" for _link in range(64)))
    if not count:
        print("    No NvSwitches found.")
    print("\nKey: Up=U, Down=D, Disabled=X, Not Supported=_")
    return 0
