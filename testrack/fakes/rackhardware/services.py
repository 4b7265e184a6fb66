"""Fake the driver's helper nvidia-modprobe, and the daemons that hold the driver.

The daemons are nvidia-persistenced, nv-fabricmanager and nv-hostengine. Units of the fake packages start
them through main.py.
"""

from __future__ import annotations

import glob
import os
import signal
import sys
import time

from . import kernel
from .state import HOLDS, State, at, changing, complain, held_by, load, running, settle_s, unknown_option


def unit_runs(unit: str) -> bool:
    """Return whether a systemd service runs, by its control group (of cgroups v1 or v2)."""
    places = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/*/system.slice")
    return any(glob.glob(at(f"{place}/{unit}.service")) for place in places)


def fabric_manager_version() -> str:
    """Return the version of the installed fabric manager from its package, or else the driver's."""
    state = load()
    installed = kernel.installed("nvidia-fabricmanager") or kernel.installed("nvidia") or {}
    version = installed.get("version", "")
    settings = state.fault("version-mismatch")
    if settings is not None and settings.get("component") == "fabricmanager" and version:
        return older(version)
    return version


def older(version: str) -> str:
    """Return an older version of the same branch."""
    first, _, last = version.rpartition(".")
    return f"{first}.{max(0, int(last) - 1):0{len(last)}d}" if last.isdigit() else version


def fabric_is_up(version: str) -> bool:
    """Return whether the fabric manager runs, is ready, and has this version, the loaded driver's."""
    runs = bool(running("nv-fabricmanager")) or unit_runs("nvidia-fabricmanager")
    return runs and _is_fabric_ready() and fabric_manager_version() == version


def _is_fabric_ready() -> bool:
    """Return whether the fabric manager had the time that it needs to set up the switches."""
    needed = settle_s()
    if not needed:
        return True
    try:
        with open(f"/proc/{running('nv-fabricmanager')}/stat", encoding="utf-8") as stream:
            ticks = int(stream.read().rpartition(")")[2].split()[19])
    except OSError:
        return True
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK") >= needed


def hang_if_told() -> None:
    """Wait forever if the fault hung-nvidia-smi is on. Only SIGKILL then ends the process."""
    if load().fault("hung-nvidia-smi") is None:
        return
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    while True:
        time.sleep(3600)


def nvidia_modprobe(argv: list[str]) -> int:
    """Act as ``nvidia-modprobe``. Load the driver and make its device nodes."""
    letters = {
        letter for one in argv if one.startswith("-") and one[1:2] != "-" for letter in one[1:].split("=")[0]
    }
    if "-v" in argv or "--version" in argv:
        version = (kernel.installed("nvidia") or {}).get("version", "")
        print(f"nvidia-modprobe:  version {version}")
        return 0
    wanted = ["nvidia"]
    if "u" in letters or "--unified-memory" in argv:
        wanted.append("nvidia_uvm")
    if "m" in letters or "--modeset" in argv:
        wanted.append("nvidia_modeset")
    _new, absent = kernel.load_modules(wanted)
    kernel.settle()
    return 1 if absent else 0  # The real program prints nothing either.


def _hold(daemon: str, pid: int) -> None:
    """Note that a daemon holds the driver."""
    path = at(f"{HOLDS}/{daemon}")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as stream:
        stream.write(f"{pid}\n")


def serve(daemon: str, behind: bool = True) -> int:
    """Hold the driver until stopped, in the background (as forking services do) or in this process.

    A sleeping process with the daemon's name holds it, which costs a tenth of what a Python process would.
    """
    sys.stdout.flush()
    pid = os.fork() if behind else 0
    if pid:
        # Write this before the unit counts as started, so that it exists from then on.
        _hold(daemon, pid)
        return 0
    if behind:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
    else:
        _hold(daemon, os.getpid())
    os.execv("/bin/sleep", [daemon, "infinity"])
    return 127


_PERSISTENCED = "nvidia-persistenced"
_PERSISTENCED_VALUED = {"-u": "user", "--user": "user", "-g": "group", "--group": "group"}
_PERSISTENCED_FLAGS = {
    "-V": None,
    "--verbose": None,
    "--uvm-persistence-mode": None,
    "--no-uvm-persistence-mode": None,
    "--persistence-mode": True,
    "--no-persistence-mode": False,
}


def persistence_daemon(argv: list[str]) -> int:
    """Act as ``nvidia-persistenced``. Print the version, or run as a daemon that forks.

    The daemon turns persistence mode on for all GPUs, unless it is started with ``--no-persistence-mode``, as
    the packages of Debian and Ubuntu do.
    """
    version = (kernel.installed("nvidia") or {}).get("version", "")
    if "-v" in argv or "--version" in argv:
        print(f"{_PERSISTENCED}:  version {version}")
        return 0
    persists, user = _persistenced_options(argv)
    if persists is None:
        complain(f"Invalid commandline, please run `{_PERSISTENCED} --help` for usage information.", "")
        return 1
    if kernel.driver() != version or running(_PERSISTENCED) or not _user_exists(user):
        complain(f"{_PERSISTENCED} failed to initialize. Check syslog for more details.")
        return 1
    status = serve(_PERSISTENCED)
    with changing() as state:
        pid = held_by(_PERSISTENCED)
        modes = {str(gpu["minor"]): pid for gpu in state["gpus"]} if persists else {}
        state.setdefault("settings", {})["persistence"] = modes
    return status


def _persistenced_options(argv: list[str]) -> tuple[bool | None, str]:
    """Return whether the daemon turns persistence mode on, or None for a wrong option, and its user or ""."""
    persists, values, rest = True, {}, list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in _PERSISTENCED_VALUED and (equals or rest):
            values[_PERSISTENCED_VALUED[name]] = value if equals else rest.pop(0)
        elif word in _PERSISTENCED_FLAGS:
            mode = _PERSISTENCED_FLAGS[word]
            persists = persists if mode is None else mode
        else:
            complain(f'{_PERSISTENCED}: unrecognized option: "{word}"', "")
            return None, ""
    return persists, values.get("user", "")


def _user_exists(name: str) -> bool:
    """Return whether a user exists. The daemon of real packages runs as one, and needs it to start."""
    import pwd

    try:
        return not name or bool(pwd.getpwnam(name))
    except KeyError:
        return False


def fabric_manager(argv: list[str]) -> int:
    """Act as ``nv-fabricmanager``. Print the version, or run as a daemon that forks, as the unit expects."""
    version = fabric_manager_version()
    if "-v" in argv or "--version" in argv:
        print(f"Fabric Manager version is : {version}")
        return 0
    if unknown := unknown_option(
        argv, {"-r", "--restart"}, {"-c", "--config", "-g", "--fm-sm-mgmt-port-guid"}
    ):
        complain(f"nv-fabricmanager: unrecognized option '{unknown}'")
        return 1
    state = load()
    driver = kernel.driver()
    if not driver:
        complain("request to query NVIDIA GPU driver version failed: the NVIDIA driver is not loaded")
        return 1
    if driver != version:
        complain(
            f"fabric manager NVIDIA GPU driver interface version {version} don't match with driver version "
            f"{driver}. Please update with matching NVIDIA driver package."
        )
        return 1
    if state.gpu_model["fabric"] != "local" or not _reaches_switches(state):
        complain(
            "request to query NVSwitch device information from NVSwitch driver failed with error:"
            "WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
        )
        return 1
    return serve("nv-fabricmanager")


def _reaches_switches(state: State) -> bool:
    """Return whether the fabric manager reaches the NVSwitches, and otherwise print why NVLSM does not start.

    The switches of an HGX B200 have no PCI device. NVLSM programs them through bridges.
    """
    if not state.has_bridges:
        return True
    if "ib_umad" not in kernel.loaded():
        complain(
            "ibwarn: umad_init: can't read ABI version from /sys/class/infiniband_mad/abi_version "
            "(No such file or directory): is ib_umad module loaded?"
        )
        return False
    return kernel.installed("nvlsm") is not None and "mlx5_ib" in kernel.loaded()


_HOST_ENGINE_FLAGS = {"-n", "--no-daemon", "-t", "--term"}
_HOST_ENGINE_VALUED = {
    *("-p", "--port", "-b", "--bind-interface", "-d", "--domain-socket", "--pid", "--service-account"),
    *("--home-dir", "--log-level", "-f", "--log-filename", "--log-rotate", "--denylist-modules"),
}


def host_engine(argv: list[str]) -> int:
    """Act as ``nv-hostengine``: print the version, stop the daemon (``-t``), or run as the daemon.

    The daemon runs in the foreground (``-n``) or background.
    """
    from .dcgm import version as dcgm_version

    if "--version" in argv or "-v" in argv:
        print(f"Version : {dcgm_version()}")
        return 0
    if unknown := unknown_option(argv, _HOST_ENGINE_FLAGS, _HOST_ENGINE_VALUED):
        complain(f"PARSE ERROR: Argument: {unknown}", "             Couldn't find match for argument")
        return 1
    if "-t" in argv or "--term" in argv:
        pid = running("nv-hostengine")
        if not pid:
            print("Unable to terminate host engine, it may not be running.")
            return 1
        os.kill(pid, signal.SIGTERM)
        print("Host engine successfully terminated.")
        return 0
    if running("nv-hostengine"):
        print(f"Host engine already running with pid {running('nv-hostengine')}")
        return 1
    behind = not {"-n", "--no-daemon"} & set(argv)
    if behind:
        print(f"Started host engine version {dcgm_version()} using port number: 5555")
    return serve("nv-hostengine", behind)
