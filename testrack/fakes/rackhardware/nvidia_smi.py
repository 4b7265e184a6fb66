"""Fake the command line of nvidia-smi.

main.py starts this fake, which checks the driver and the options, and calls smi_report.py for `-q`,
smi_query.py for `--query-…`, and smi_commands.py for commands such as `nvlink`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time

from . import kernel, smi_query, smi_report
from .faults import reset
from .services import hang_if_told
from .state import State, changing, load, running

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running.\n"
)
LOST = 255
"""Exit status of nvidia-smi if a GPU cannot be reached."""
HELP = "Please run 'nvidia-smi -h'"

# Short and long names of the options, with a value and without one.
VALUED = {
    "-i": "id",
    "--id": "id",
    "-f": "filename",
    "--filename": "filename",
    "-d": "display",
    "--display": "display",
    "-l": "loop",
    "--loop": "loop",
    "-lms": "loop_ms",
    "--loop-ms": "loop_ms",
    "--query-gpu": "query_gpu",
    "--query-compute-apps": "query_compute_apps",
    "--query-accounted-apps": "query_accounted_apps",
    "--query-retired-pages": "query_retired_pages",
    "--query-remapped-rows": "query_remapped_rows",
    "--query-supported-clocks": "query_supported_clocks",
    "--format": "format",
    "-pm": "persistence_mode",
    "--persistence-mode": "persistence_mode",
    "-e": "ecc_config",
    "--ecc-config": "ecc_config",
    "-p": "reset_ecc_errors",
    "--reset-ecc-errors": "reset_ecc_errors",
    "-c": "compute_mode",
    "--compute-mode": "compute_mode",
    "-mig": "multi_instance_gpu",
    "--multi-instance-gpu": "multi_instance_gpu",
    "-pl": "power_limit",
    "--power-limit": "power_limit",
    "-lgc": "lock_gpu_clocks",
    "--lock-gpu-clocks": "lock_gpu_clocks",
    "-ac": "applications_clocks",
    "--applications-clocks": "applications_clocks",
    "-am": "accounting_mode",
    "--accounting-mode": "accounting_mode",
}
FLAGS = {
    "-h": "help",
    "--help": "help",
    "--version": "version",
    "-L": "list_gpus",
    "--list-gpus": "list_gpus",
    "-B": "list_excluded_gpus",
    "--list-excluded-gpus": "list_excluded_gpus",
    "-q": "query",
    "--query": "query",
    "-x": "xml_format",
    "--xml-format": "xml_format",
    "-r": "gpu_reset",
    "--gpu-reset": "gpu_reset",
    "-rgc": "reset_gpu_clocks",
    "--reset-gpu-clocks": "reset_gpu_clocks",
    "-rac": "reset_applications_clocks",
    "--help-query-gpu": "help_query_gpu",
    "--help-query-compute-apps": "help_query_compute_apps",
    "--help-query-remapped-rows": "help_query_remapped_rows",
}


def nvidia_smi(argv: list[str]) -> int:
    """Act as ``nvidia-smi``."""
    if argv and argv[0] in ("nvlink", "topo", "mig", "pmon", "dmon"):
        from . import smi_commands

        return _with_driver(lambda state, version: smi_commands.run(argv, state, version))
    options, status = _read(argv)
    if status:
        return status
    if options.get("help"):
        print(f"NVIDIA System Management Interface -- v{userland()}\n")
        print("nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n")
        print(f"Options of this fake: {', '.join(sorted({*VALUED, *FLAGS}))}")
        return 0
    if options.get("help_query_gpu"):
        print('List of valid properties to query for the switch "--query-gpu":\n')
        for name, alias in smi_query.names():
            print(f'"{name}" or "{alias}"' if alias else f'"{name}"')
        return 0
    if options.get("list_gpus") and options.get("id"):
        print(f"ERROR: Option -i is not valid for this command. {HELP} for help.\n")
        return 2
    if options.get("xml_format") and not options.get("query"):
        print(
            "Invalid combination of input arguments. Specify -q/--query and -x/--xml-format to run an XML "
            "query.  Please run 'nvidia-smi -h' for help.\n"
        )
        return 2
    return _with_driver(lambda state, version: _answer(options, state, version))


def _read(argv: list[str]) -> tuple[dict, int]:
    """Return the options and 0, or after a message a status that is not 0."""
    options: dict = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in FLAGS and not equals:
            options[FLAGS[name]] = True
        elif name in VALUED:
            if not equals:
                if not rest:
                    print(f"ERROR: Option {word} is missing its value. {HELP} for help.\n")
                    return {}, 255
                value = rest.pop(0)
            options[VALUED[name]] = value
        else:
            print(f"ERROR: Option {word} is not recognized. {HELP}.\n")
            return {}, 255
    return options, 0


def userland() -> str:
    """Return the version of the installed programs, which is the version of the installed module."""
    return (kernel.installed("nvidia") or {}).get("version", "")


def nvml(version: str) -> str:
    """Return the first two parts of a driver's version, as its library does."""
    return ".".join(version.split(".")[:2])


def driver_problem(state: State) -> tuple[str, int]:
    """Return the tools' message and exit status if they do not reach the driver, or else "" and 0."""
    there = kernel.driver()
    if not there:
        return NO_DRIVER, 9
    settings = state.fault("version-mismatch")
    mismatch = settings is not None and settings.get("component") != "fabricmanager"
    if mismatch or there != userland():
        return (
            "Failed to initialize NVML: Driver/library version mismatch\n"
            f"NVML library version: {nvml(userland())}",
            18,
        )
    if not state.gpus:
        return "No devices were found", 6
    return "", 0


def _with_driver(tool) -> int:
    """Run a tool if the driver can be reached, or else print the problem. Return the exit status."""
    state = load()
    if kernel.driver():
        hang_if_told()
    said, status = driver_problem(state)
    if status:
        print(said)
        return status
    try:
        return tool(state, kernel.driver())
    except LostGpuError as error:
        print(error)
        return LOST


class LostGpuError(Exception):
    """A GPU that the driver lists but does not reach. The message is nvidia-smi's."""

    def __init__(self, see: dict) -> None:
        address = see["gpu"]["bus_id"][4:]
        super().__init__(f"Unable to determine the device handle for GPU{address}: Unknown Error")


def choose(state: State, wanted: str | None, version: str) -> list[dict]:
    """Return the GPUs that ``-i`` selects by index, bus id, UUID or serial number. Without it, return all.

    Raises:
        LostGpuError: A selected GPU fell off the bus.
    """
    chosen = _selected(state, wanted, version)
    for see in chosen:
        if state.hit(see["gpu"], "lost-gpu"):
            raise LostGpuError(see)
    return chosen


def _selected(state: State, wanted: str | None, version: str) -> list[dict]:
    everyone = smi_report.views(state, version)
    if not wanted:
        return everyone
    found = []
    for one in wanted.split(","):
        for see in everyone:
            gpu = see["gpu"]
            short = gpu["bus_id"][4:].lower()
            if one in (str(see["index"]), gpu["uuid"], gpu["serial"]) or one.lower().zfill(16)[-12:] == short:
                found.append(see)
    return found


def _answer(options: dict, state: State, version: str) -> int:
    """Print the answer that the options request. Return the exit status."""
    if "loop" in options or "loop_ms" in options:
        return _loop(options, state, version)
    if "filename" in options:
        captured = io.StringIO()
        name = options.pop("filename")
        with contextlib.redirect_stdout(captured):
            status = _answer(options, state, version)
        with open(name, "w", encoding="utf-8") as stream:
            stream.write(captured.getvalue())
        return status
    if options.get("version"):
        print(f"NVIDIA-SMI version  : {version}\nNVML version        : {nvml(version)}")
        print(f"DRIVER version      : {version}\nCUDA Version        : {smi_report.cuda(version)}")
        return 0
    if options.get("list_gpus"):
        for see in smi_report.views(state, version):
            if state.hit(see["gpu"], "lost-gpu"):
                raise LostGpuError(see)
            print(f"GPU {see['index']}: {state.gpu_model['name']} (UUID: {see['gpu']['uuid']})")
        return 0
    if options.get("list_excluded_gpus"):
        print("No excluded devices found.")
        return 0
    chosen = choose(state, options.get("id"), version)
    if not chosen:
        print("No devices were found")
        return 6
    for key in options:
        if key.startswith("query_"):
            return smi_query.query(key, options[key], options.get("format"), state, chosen)
    if options.get("query"):
        count = len(state.gpus)
        if options.get("xml_format"):
            sys.stdout.write(smi_report.as_xml(state, chosen, count, version))
            return 0
        sections = [one for one in options.get("display", "").upper().split(",") if one]
        if any(one not in smi_report.SECTIONS for one in sections):
            print("Failed to parse --display/-d flags")
            return 2
        sys.stdout.write(smi_report.as_text(state, chosen, count, version, sections))
        return 0
    changes = {key: options[key] for key in options if key not in ("id", "display", "format")}
    if changes:
        return _change(changes, chosen)
    _table(state, chosen, version)
    return 0


def _loop(options: dict, state: State, version: str) -> int:
    text = options.pop("loop", None)
    pause = float(text) if text is not None else float(options.pop("loop_ms")) / 1000
    options.pop("loop_ms", None)
    while True:
        status = _answer(dict(options), load(), version)
        sys.stdout.flush()
        if status:
            return status
        time.sleep(pause)


# The names of each option's setting within a sentence of the answer, and at the beginning of one.
_SWITCHES = {
    "persistence_mode": ("persistence mode", "Persistence mode"),
    "ecc_config": ("ECC support", "ECC support"),
    "accounting_mode": ("Accounting mode", "Accounting mode"),
    "multi_instance_gpu": ("MIG Mode", "MIG Mode"),
}
_ON = {"1": "Enabled", "ENABLED": "Enabled", "0": "Disabled", "DISABLED": "Disabled"}
# Initial settings of a GPU, unless the state contains others.
_INITIAL = {"ecc_config": "Enabled", "accounting_mode": "Disabled"}


def _change(changes: dict, chosen: list[dict]) -> int:
    """Apply the options that change a GPU. Options without an effect here report success."""
    if os.geteuid() != 0:
        print(
            f"Unable to change GPU {chosen[0]['gpu']['bus_id']}: Insufficient Permissions\n"
            "Terminating early due to previous errors."
        )
        return 4
    for key, value in changes.items():
        if key in _SWITCHES:
            label, start = _SWITCHES[key]
            wanted = _ON.get(str(value).upper())
            if wanted is None:
                print(f"Invalid {label}: {value}\nTerminating early due to previous errors.")
                return 2
            if key == "multi_instance_gpu" and wanted == "Enabled":
                print(
                    "Unable to enable MIG Mode: the fake has no MIG\n"
                    "Terminating early due to previous errors."
                )
                return 3
            before = _switch(key, wanted, [see["gpu"] for see in chosen])
            for see in chosen:
                if before[see["gpu"]["minor"]] == wanted:
                    print(f"{start} is already {wanted} for GPU {see['gpu']['bus_id']}.")
                else:
                    print(f"{wanted} {label} for GPU {see['gpu']['bus_id']}.")
            print("All done.")
        elif key == "power_limit":
            limit = float(chosen[0]["most_power"])
            if not re.fullmatch(r"\d+(\.\d+)?", str(value)) or not 200 <= float(value) <= limit:
                print(
                    f"Provided power limit {value} W is not a valid power limit which should be between "
                    f"200.00 W and {limit:.2f} W for GPU {chosen[0]['gpu']['bus_id']}\n"
                    "Terminating early due to previous errors."
                )
                return 2
            with changing() as state:
                limits = state.setdefault("settings", {}).setdefault("power_limits", {})
                limits.update({str(see["gpu"]["minor"]): float(value) for see in chosen})
            for see in chosen:
                print(
                    f"Power limit for GPU {see['gpu']['bus_id']} was set to {float(value):.2f} W "
                    f"from {see['power_limit']:.2f} W."
                )
            print("All done.")
        elif key == "lock_gpu_clocks" and not re.fullmatch(r"\d+(,\d+)?|tdp,unlimited", str(value)):
            print(
                f'Specified clocks "{value}" are not valid. Please format input as '
                "'gpuClkMin,gpuClkMax' or 'gpuClkVal' e.g. '--lock-gpu-clocks=1500,1500', "
                "'--lock-gpu-clocks=1500', or '--lock-gpu-clocks=tdp,unlimited'\n"
                "Terminating early due to previous errors."
            )
            return 2
        elif key == "gpu_reset":
            with changing() as state:
                for see in chosen:
                    reset(state, see["gpu"]["minor"])
            kernel.settle()
            for see in chosen:
                print(f"GPU {see['gpu']['bus_id']} was successfully reset.")
            print("All done.")
        else:
            print("All done.")
    return 0


def _switch(key: str, wanted: str, gpus: list[dict]) -> dict[int, str]:
    """Set a switch of some GPUs, and return its earlier values by the GPUs' numbers."""
    with changing() as state:
        settings = state.setdefault("settings", {})
        if key != "persistence_mode":
            before = settings.get(key, _INITIAL.get(key, "Disabled"))
            settings[key] = wanted
            return {gpu["minor"]: before for gpu in gpus}
        modes = settings.setdefault("persistence", {})
        earlier = {gpu["minor"]: "Enabled" if state.persists(gpu) else "Disabled" for gpu in gpus}
        for gpu in gpus:
            modes.pop(str(gpu["minor"]), None)
            if wanted == "Enabled":
                modes[str(gpu["minor"])] = running("nvidia-persistenced")
        return earlier


def _table(state: State, chosen: list[dict], version: str) -> None:
    """Print the table that nvidia-smi prints without options."""
    model = state.gpu_model
    print(time.strftime("%a %b %d %H:%M:%S %Y       "))
    print("+" + "-" * 89 + "+")
    left = f"NVIDIA-SMI {version}"
    print(f"| {left:<34}Driver Version: {version:<15}CUDA Version: {smi_report.cuda(version):<9}|")
    line = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    print(line)
    print("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    print("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    print("|                                         |                        |               MIG M. |")
    print(line.replace("-", "=").replace("+", "|", 1)[:-1].replace("+", "+") + "|")
    for see in chosen:
        on = "On" if see["persistence"] == "Enabled" else "Off"
        ecc = see["sram_uncorrectable"] + see["dram_uncorrectable"]
        print(
            f"| {see['index']:>3}  {model['name']:<26} {on:>6}  |   {see['gpu']['bus_id']} Off | {ecc:>20} |"
        )
        power = f"{see['power']:.0f}W / {see['power_limit']:>4.0f}W"
        memory = f"0MiB / {see['total']:>6}MiB"
        print(f"| N/A  {see['temperature']:>3}C    P0 {power:>23} | {memory:>22} |      0%      Default |")
        print("|                                         |                        |             Disabled |")
        print(line)
    print("\n+" + "-" * 89 + "+")
    print(f"| {'Processes:':<87} |")
    print(
        f"| {' GPU   GI   CI              PID   Type   Process name                        GPU Memory':<87} |"
    )
    print(f"| {'       ID   ID                                                               Usage':<87} |")
    print("|" + "=" * 89 + "|")
    print(f"| {' No running processes found':<87} |")
    print("+" + "-" * 89 + "+")
