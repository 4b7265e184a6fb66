"""Fake the kernel's modules, device nodes and log.

main.py starts modprobe, rmmod, lsmod, modinfo, dmesg and journalctl from here. Other fakes query it for
loaded modules and the driver's version.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

from .faults import log_fault, reset
from .state import (
    BOOTED,
    BOOTED_MONOTONIC,
    HOLDS,
    HardwareError,
    State,
    at,
    changing,
    complain,
    is_root,
    load,
    log_to_kernel,
    root,
    running,
    state_path,
    unknown_option,
)

LOADED = "/run/rack/modules.json"
INSTALLED = "/usr/lib/rack/modules"
RDMA_MODULES = "/etc/rdma/modules/infiniband.conf"
"""File of the package rdma-core with the modules that it loads for an InfiniBand card."""
CONFIGURED = ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d")
# Modules of a stock kernel, which exist without a package.
STOCK = {
    name: {"version": "", "depends": depends.split(), "size": size}
    for name, depends, size in (
        ("ib_core", "", 507904),
        ("ib_uverbs", "ib_core", 204800),
        ("ib_umad", "ib_core", 49152),
        ("ib_ipoib", "ib_core", 159744),
        ("mlx5_core", "", 2433024),
        ("mlx5_ib", "ib_uverbs ib_core mlx5_core", 524288),
        ("rdma_cm", "ib_core", 147456),
        ("rdma_ucm", "rdma_cm ib_uverbs ib_core", 32768),
        ("overlay", "", 221184),
        ("br_netfilter", "", 32768),
        ("nfs", "", 585728),
        ("nfsd", "", 897024),
        ("xprtrdma", "rdma_cm ib_core", 143360),
        ("loop", "", 45056),
        ("msr", "", 12288),
        ("i2c_dev", "", 28672),
        ("ipmi_si", "", 90112),
        ("ipmi_devintf", "", 24576),
    )
}
SIZES = {"nvidia": 14299136, "nvidia_uvm": 1830912, "nvidia_modeset": 1900544, "nvidia_drm": 135168}
# Major numbers of the device nodes, as with the driver of 2025. Of the driver's own, only 195 is fixed.
MAJORS = {"nvidia": 195, "nvidia-uvm": 508, "nvidia-caps": 509, "uverbs": 231, "umad": 231, "rdma_cm": 10}
IMEX_MAJOR = 234
IMEX_CHANNEL = "/run/rack/imex-channel0"
"""This file exists while the driver is loaded with the option that makes channel 0. A reboot removes it."""


def plain(name: str) -> str:
    """Return a module's name as the kernel spells it."""
    return name.replace("-", "_")


def installed(name: str) -> dict | None:
    """Return a package's data about a module, or None if there is no such module."""
    for spelling in (name, plain(name), plain(name).replace("_", "-")):
        path = at(f"{INSTALLED}/{spelling}.json")
        try:
            with open(path, encoding="utf-8") as stream:
                found = json.load(stream)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise HardwareError(f"{path}: cannot be read as a module's description: {error}") from None
        if not isinstance(found, dict):
            raise HardwareError(f"{path}: not a module's description: {found!r}")
        return {
            "size": SIZES.get(plain(name), 16384),
            **found,
            "version": str(found.get("version", "")),
            "depends": [plain(one) for one in found.get("depends", [])],
        }
    return STOCK.get(plain(name))


def loaded() -> dict:
    """Return the loaded modules, in the order of loading."""
    try:
        with open(at(LOADED), encoding="utf-8") as stream:
            found = json.load(stream)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise HardwareError(f"{at(LOADED)}: {error}; remove it and reboot the node") from None
    if not isinstance(found, dict):
        raise HardwareError(f"{at(LOADED)}: not a list of modules; remove it and reboot the node")
    return found


def license_of(module: str, about: dict) -> str:
    """Return a module's licence from its package, or else from its version (open modules exist since 515)."""
    if about.get("license"):
        return str(about["license"])
    if not module.startswith("nvidia") or module == "nvidia_peermem":
        return "Dual BSD/GPL"
    branch = about.get("version", "").split(".")[0]
    return "NVIDIA" if branch.isdigit() and int(branch) < 515 else "Dual MIT/GPL"


def driver_title(about: dict) -> str:
    """Return the driver's own name, which differs between the open and the proprietary module."""
    machine = os.uname().machine
    if license_of("nvidia", about) == "NVIDIA":
        return f"NVIDIA UNIX {machine} Kernel Module  {about['version']}"
    return f"NVIDIA UNIX Open Kernel Module for {machine}  {about['version']}  Release Build  (dvs-builder@)"


def driver() -> str:
    """Return the version of the loaded driver, or "" if it is not loaded."""
    return loaded().get("nvidia", {}).get("version", "")


def _keep(modules: dict) -> None:
    """Write the list of loaded modules completely or not at all."""
    os.makedirs(os.path.dirname(at(LOADED)), exist_ok=True)
    new = at(LOADED) + f".{os.getpid()}"
    with open(new, "w", encoding="utf-8") as stream:
        json.dump(modules, stream, indent=1)
        stream.write("\n")
    os.replace(new, at(LOADED))


def users(modules: dict, name: str) -> list[str]:
    """Return the loaded modules that need a module."""
    return [other for other, about in modules.items() if name in about.get("depends", [])]


@contextmanager
def _alone():
    """Lock the list of modules, because services load theirs at the same time."""
    os.makedirs(os.path.dirname(at(LOADED)), exist_ok=True)
    with open(at(LOADED) + ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def load_modules(names: list[str]) -> tuple[list[str], list[str]]:
    """Load modules, each after those that it needs.

    Returns:
        The loaded modules, and the names without a module.
    """
    with _alone():
        modules, new, absent = loaded(), [], []

        def add(name: str) -> bool:
            if plain(name) in modules:
                return True
            about = installed(name)
            if about is None:
                absent.append(name)
                return False
            for needed in about["depends"]:
                if not add(needed):
                    return False
            kept = ("version", "depends", "size", "license")
            modules[plain(name)] = {key: about[key] for key in kept if key in about}
            new.append(plain(name))
            return True

        for name in names:
            add(name)
        if new:
            _keep(modules)
    if new:
        _loaded(new, modules)
    return new, absent


def unload_module(name: str, with_unused: bool = False) -> None:
    """Unload a module and, with ``with_unused``, also the driver if only this module needed it."""
    with _alone():
        modules = loaded()
        about = modules.pop(plain(name))
        for needed in about.get("depends", []):
            if with_unused and needed == "nvidia" and not users(modules, needed) and not holders(needed):
                modules.pop(needed, None)
        _keep(modules)
    if "nvidia" not in modules and os.path.exists(state_path()):
        # The driver keeps what nvidia-smi set.
        with changing() as state:
            state["settings"] = {}
    settle()


def _loaded(new: list[str], modules: dict) -> None:
    """Make the side effects of loading, which are device nodes and lines in the kernel's log."""
    if "nvidia" in new:
        keep_imex_option()
    if "nvidia" in new and os.path.exists(state_path()):
        with changing() as state:
            log_to_kernel(state, "nvidia: loading out-of-tree module taints kernel.", 4)
            log_to_kernel(state, f"NVRM: loading {driver_title(modules['nvidia'])}")
            for fault in list(state["faults"]):
                log_fault(state, fault)
    settle()


def keep_imex_option() -> None:
    """Store whether the driver's options request IMEX channel 0. It reads them only when it is loaded."""
    texts = []
    for path in sorted(glob.glob(at("/etc/modprobe.d/*.conf"))):
        with open(path, encoding="utf-8") as stream:
            texts.append(stream.read())
    asked = re.findall(r"^options\s+nvidia\s.*NVreg_CreateImexChannel0=(\d)", "\n".join(texts), re.M)
    if asked[-1:] == ["1"]:
        with open(at(IMEX_CHANNEL), "w", encoding="ascii") as stream:
            stream.write("0\n")
    elif os.path.exists(at(IMEX_CHANNEL)):
        os.unlink(at(IMEX_CHANNEL))


def settle() -> None:
    """Update the device nodes, and the files in /sys and /proc, to the state."""
    if not os.path.exists(state_path()):
        return
    from . import kernel_files

    sync_device_nodes()
    kernel_files.write(load())


def wanted_nodes(state: State, modules: dict) -> dict[str, tuple[int, int]]:
    """Return the device nodes that must exist, with major and minor number by path."""
    nodes = {}
    if "nvidia" in modules:
        nodes["/dev/nvidiactl"] = (MAJORS["nvidia"], 255)
        for gpu in state.gpus:
            nodes[f"/dev/nvidia{gpu['minor']}"] = (MAJORS["nvidia"], gpu["minor"])
        nodes["/dev/nvidia-caps/nvidia-cap1"] = (MAJORS["nvidia-caps"], 1)
        nodes["/dev/nvidia-caps/nvidia-cap2"] = (MAJORS["nvidia-caps"], 2)
    if "nvidia" in modules and os.path.exists(at(IMEX_CHANNEL)):
        nodes["/dev/nvidia-caps-imex-channels/channel0"] = (IMEX_MAJOR, 0)
    if "nvidia_uvm" in modules:
        nodes["/dev/nvidia-uvm"] = (MAJORS["nvidia-uvm"], 0)
        nodes["/dev/nvidia-uvm-tools"] = (MAJORS["nvidia-uvm"], 1)
    if "nvidia_modeset" in modules:
        nodes["/dev/nvidia-modeset"] = (MAJORS["nvidia"], 254)
    if "mlx5_ib" in modules:
        for index, _hca in enumerate(state["hcas"]):
            if "ib_uverbs" in modules:
                nodes[f"/dev/infiniband/uverbs{index}"] = (MAJORS["uverbs"], 192 + index)
            if "ib_umad" in modules:
                nodes[f"/dev/infiniband/umad{index}"] = (MAJORS["umad"], index)
                nodes[f"/dev/infiniband/issm{index}"] = (MAJORS["umad"], 64 + index)
    if "rdma_ucm" in modules:
        nodes["/dev/infiniband/rdma_cm"] = (MAJORS["rdma_cm"], 122)
    return nodes


def sync_device_nodes() -> None:
    """Make the device nodes that must exist, and remove the others."""
    wanted = wanted_nodes(load(), loaded())
    ours = re.compile(
        r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset)|(uverbs|umad|issm)\d+|rdma_cm|nvidia-cap\d+|channel\d+"
    )
    for folder in ("/dev", "/dev/infiniband", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"):
        with suppress(OSError):
            for name in os.listdir(at(folder)):
                if ours.fullmatch(name) and f"{folder}/{name}" not in wanted:
                    os.unlink(at(f"{folder}/{name}"))
            if folder != "/dev" and not os.listdir(at(folder)):
                os.rmdir(at(folder))
    for path, (major, minor) in wanted.items():
        if os.path.exists(at(path)):
            continue
        try:
            os.makedirs(os.path.dirname(at(path)), exist_ok=True)
            os.mknod(at(path), 0o666 | stat.S_IFCHR, os.makedev(major, minor))
            os.chmod(at(path), 0o400 if "/nvidia-cap" in path and "channel" not in path else 0o666)
        except OSError as error:
            complain(f"{path}: the device node cannot be made: {error.strerror}")


def _release() -> str:
    return os.uname().release


def _not_found(name: str) -> str:
    return f"modprobe: FATAL: Module {name} not found in directory /lib/modules/{_release()}"


_MODPROBE_LONG = {
    *("--all", "--remove", "--quiet", "--verbose", "--dry-run", "--show", "--show-depends", "--version"),
    *("--first-time", "--ignore-install", "--ignore-remove", "--force", "--force-vermagic", "--syslog"),
    *("--use-blacklist", "--resolve-alias", "--remove-dependencies", "--force-modversion"),
    *("--config", "--dirname", "--set-version", "--wait"),
}
_DENIED = "Operation not permitted"


def modprobe(argv: list[str]) -> int:
    """Act as ``modprobe``. Load a module, or with ``-r`` remove it."""
    flags = {one for one in argv if one.startswith("-")}
    bundled = {letter for one in flags if not one.startswith("--") for letter in one[1:]}
    names = [one for one in argv if not one.startswith("-") and "=" not in one]
    quiet = "q" in bundled or "--quiet" in flags
    known = set("arqvnfisDRSCdV")
    for flag in sorted(flags):
        if not flag.startswith("--") and set(flag[1:]) - known:
            letter = next(one for one in flag[1:] if one not in known)
            complain(f"modprobe: invalid option -- '{letter}'")
            return 1
    long = {one.partition("=")[0] for one in flags if one.startswith("--")}
    if unknown := min(long - _MODPROBE_LONG, default=""):
        complain(f"modprobe: unrecognized option '{unknown}'")
        return 1
    if "V" in bundled or "--version" in flags:
        print("kmod version 30")
        return 0
    if not names:
        complain("modprobe: FATAL: missing parameters. See -h.")
        return 1
    if not ({"a", "r"} & bundled or flags & {"--all", "--remove"}):
        names = names[:1]  # The rest are the module's parameters.
    dry = "n" in bundled or "--dry-run" in flags or "--show-depends" in flags or "D" in bundled
    status = 0
    for name in names:
        if "r" in bundled or "--remove" in flags:
            status = _remove(name, dry, quiet) or status
        elif "D" in bundled or "--show-depends" in flags:
            status = _show_depends(name) or status
        else:
            status = _insert(name, dry, quiet, "v" in bundled or "--verbose" in flags) or status
    return status


def _insert(name: str, dry: bool, quiet: bool, verbose: bool) -> int:
    """Load a module for modprobe. Return the exit status."""
    if plain(name) in loaded() or (dry and installed(name) is not None):
        return 0
    if not dry and not is_root() and installed(name) is not None:
        complain(f"modprobe: ERROR: could not insert '{plain(name)}': {_DENIED}")
        return 1
    new, absent = ([], [name]) if dry else load_modules([name])
    for one in new:
        if verbose:
            print(f"insmod {_path(one)}")
    for one in absent:
        if not quiet:
            complain(_not_found(one))
    return 1 if absent else 0


def _show_depends(name: str) -> int:
    """Print the commands that would load a module. Return the exit status."""
    about = installed(name)
    if about is None:
        complain(_not_found(name))
        return 1
    for one in [*about["depends"], plain(name)]:
        print(f"insmod {_path(one)}")
    return 0


def _remove(name: str, dry: bool, quiet: bool) -> int:
    """Remove a module for ``modprobe -r``. Return the exit status."""
    modules = loaded()
    if plain(name) not in modules:
        if installed(name) is not None:
            return 0  # Nothing to do is not an error, with kmod.
        if not quiet:
            complain(_not_found(name))
        return 1
    busy = users(modules, plain(name))
    if busy or holders(plain(name)):
        complain(f"modprobe: FATAL: Module {plain(name)} is in use.")
        return 1
    if not dry and not is_root():
        complain(f"modprobe: ERROR: could not remove '{plain(name)}': {_DENIED}")
        return 1
    if not dry:
        unload_module(name, with_unused=True)
    return 0


def rmmod(argv: list[str]) -> int:
    """Act as ``rmmod``."""
    flags = {"-f", "--force", "-s", "--syslog", "-v", "--verbose"}
    if unknown := unknown_option(argv, flags, set()):
        complain(f"rmmod: unrecognized option '{unknown}'")
        return 1
    names = [one for one in argv if not one.startswith("-")]
    if not names:
        complain("rmmod: ERROR: missing module name.")
        return 1
    status = 0
    for name in map(plain, names):
        modules = loaded()
        if name not in modules:
            complain(f"rmmod: ERROR: Module {name} is not currently loaded")
            status = 1
        elif users(modules, name):
            complain(f"rmmod: ERROR: Module {name} is in use by: {' '.join(users(modules, name))}")
            status = 1
        elif holders(name):
            complain(f"rmmod: ERROR: Module {name} is in use")
            status = 1
        elif not is_root():
            complain(f"rmmod: ERROR: could not remove '{name}': {_DENIED}")
            status = 1
        else:
            unload_module(name)
    return status


def holders(module: str) -> list[str]:
    """Return the daemons that hold a module, as the persistence daemon does."""
    if module == "ib_umad":
        return ["nvlsm"] if running("nv-fabricmanager") and load().has_bridges else []
    if module != "nvidia":
        return []
    try:
        names = [name for name in sorted(os.listdir(at(HOLDS))) if running(name)]
    except OSError:
        return []
    # Without persistence mode, the persistence daemon does not open the GPUs.
    if "nvidia-persistenced" in names and os.path.exists(state_path()):
        state = load()
        if not any(state.persists(gpu) for gpu in state["gpus"]):
            names.remove("nvidia-persistenced")
    return names


def _path(name: str) -> str:
    return f"/lib/modules/{_release()}/updates/dkms/{name}.ko"


def lsmod(argv: list[str]) -> int:
    """Act as ``lsmod``."""
    if argv:
        complain("Usage: lsmod")
        return 1
    modules = loaded()
    print("Module                  Size  Used by")
    for name, about in reversed(list(modules.items())):
        by = users(modules, name)
        count = len(by) + len(holders(name))
        line = f"{name:<19} {about.get('size', 16384):>8}  {count}"
        print(f"{line} {','.join(by)}" if by else line)
    return 0


def modinfo(argv: list[str]) -> int:
    """Act as ``modinfo``. Print the values of the installed file, loaded or not."""
    field, names, rest = "", [], list(argv)
    while rest:
        one = rest.pop(0)
        if one in ("-F", "--field"):
            field = rest.pop(0) if rest else ""
        elif one.startswith("--field="):
            field = one.partition("=")[2]
        elif one == "-n":
            field = "filename"
        elif one == "-k":
            rest[:1] = []
        elif not one.startswith("-"):
            names.append(one)
    if not names:
        complain("modinfo: ERROR: missing module or filename.")
        return 1
    status = 0
    for name in names:
        about = installed(os.path.basename(name).split(".ko")[0])
        if about is None:
            complain(f"modinfo: ERROR: Module {name} not found.")
            status = 1
            continue
        module = plain(os.path.basename(name).split(".ko")[0])
        fields = {"filename": _path(module)}
        if about["version"]:
            fields["version"] = about["version"]
        fields["license"] = license_of(module, about)
        fields["description"] = str(about.get("description", f"fake of {module}"))
        fields["depends"] = ",".join(about["depends"])
        fields["name"] = module
        fields["vermagic"] = f"{_release()} SMP preempt mod_unload modversions {os.uname().machine}"
        if field:
            if field in fields:
                print(fields[field])
        else:
            for key, value in fields.items():
                print(f"{key + ':':<16}{value}".rstrip())
    return status


def boot() -> int:
    """Simulate a boot: empty the lists of modules and of kernel messages, and load the devices' drivers."""
    with suppress(OSError):
        os.unlink(at(LOADED))
    os.makedirs(at("/run/rack"), exist_ok=True)
    with open(at(BOOTED), "w", encoding="ascii") as stream:
        stream.write(f"{time.time()}\n")
    with open(at(BOOTED_MONOTONIC), "w", encoding="ascii") as stream:
        stream.write(f"{time.monotonic()}\n")
    with changing() as state:
        state["kernel_log"] = []
        # Settings of nvidia-smi and dcgmi last until the driver is unloaded.
        state["settings"] = {}
        for gpu in state["gpus"]:
            reset(state, gpu["minor"])
        log_to_kernel(state, f"Linux version {_release()} (fake of the test rack's hardware)", 5)
    if not root():
        from . import kernel_files

        kernel_files.lay()
    # A driver is loaded because its device is there.
    drivers = ["nvidia", "nvidia_modeset", "nvidia_drm", "nvidia_uvm", "mlx5_ib"]
    # No device needs this one. A rule of rdma-core loads it, and so does OFED's openibd.
    drivers += ["ib_umad"] if os.path.exists(at(RDMA_MODULES)) else []
    new, _absent = load_modules([name for name in drivers if installed(name) is not None])
    if not new:
        settle()
    return 0


def booted() -> bool:
    """Return whether the node was booted, which rack-hardware.service does."""
    return os.path.exists(at(BOOTED))


def load_configured() -> int:
    """Load the modules that the folders in :data:`CONFIGURED` name.

    Returns:
        0, or 1 if one of the modules does not exist, as systemd-modules-load does.
    """
    _new, absent = load_modules(configured())
    for name in absent:
        complain(f"Failed to find module '{name}'")
    return 1 if absent else 0


def configured() -> list[str]:
    """Return the modules that are configured to be loaded at boot, in the order of their files."""
    files: dict[str, str] = {}
    for folder in reversed(CONFIGURED):  # A file in /etc hides one of the same name in /usr/lib.
        with suppress(OSError):
            files.update(
                {name: at(f"{folder}/{name}") for name in os.listdir(at(folder)) if name.endswith(".conf")}
            )
    names = []
    for name in sorted(files):
        with suppress(OSError), open(files[name], encoding="utf-8", errors="replace") as stream:
            lines = (line.strip() for line in stream)
            names += [line for line in lines if line and line[0] not in "#;"]
    return names


def _boot_time() -> float:
    """Return the moment of the last boot in seconds since 1970, or 0 before the first one."""
    try:
        with open(at(BOOTED), encoding="ascii") as stream:
            return float(stream.read())
    except (OSError, ValueError):
        return 0.0


LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")


def dmesg(argv: list[str]) -> int:
    """Act as ``dmesg``, which only root may use, because Debian and Ubuntu set kernel.dmesg_restrict."""
    if not is_root():
        complain("dmesg: read kernel buffer failed: Operation not permitted")
        return 1
    return _kernel_ring(argv)


def _kernel_ring(argv: list[str]) -> int:
    """Print or clear the fake kernel's log since the boot."""
    human = decode = clear = show = False
    levels = None
    rest = list(argv)
    show = True
    while rest:
        one = rest.pop(0)
        if one in ("-T", "--ctime") or one == "--time-format=ctime":
            human = True
        elif one in ("-x", "--decode"):
            decode = True
        elif one in ("-C", "--clear"):
            clear, show = True, False
        elif one in ("-c", "--read-clear"):
            clear = True
        elif one in ("-l", "--level") or one.startswith(("--level=", "-l")):
            value = (
                one.partition("=")[2] if "=" in one else (one[2:] if one[:2] == "-l" and one[2:] else None)
            )
            if value is None:
                value = rest.pop(0) if rest else ""
            unknown = [name for name in value.split(",") if name not in LEVELS]
            if unknown:
                complain(f"dmesg: unknown level '{unknown[0]}'")
                return 1
            levels = {LEVELS.index(name) for name in value.split(",")}
        elif one in ("-k", "--kernel", "-H", "--human", "-P", "--nopager", "--color=never", "-r", "--raw"):
            pass
        elif re.fullmatch(r"-[TxkHP]+", one):
            rest = [f"-{letter}" for letter in one[1:]] + rest
        else:
            complain(f"dmesg: unrecognized option '{one}'", "Try 'dmesg --help' for more information.")
            return 1
    state = load()
    begin = _boot_time()
    if show:
        for entry in state["kernel_log"]:
            if levels is not None and entry["level"] not in levels:
                continue
            prefix = f"kern  :{LEVELS[entry['level']]:<6}: " if decode else ""
            moment = (
                time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(entry["at"]))
                if human
                else f"{max(0.0, entry['at'] - begin):12.6f}"
            )
            print(f"{prefix}[{moment}] {entry['text']}")
    if clear:
        with changing() as state:
            state["kernel_log"] = []
    return 0


def journalctl(argv: list[str]) -> int:
    """Act as ``journalctl``, with the fake kernel's messages for ``-k``."""
    real = "/usr/bin/journalctl"
    words = []
    for one in argv:
        if one in ("-k", "--dmesg"):
            words += ["-b", "-t", "kernel"]
        elif re.fullmatch(r"-[a-zA-Z]*k[a-zA-Z]*", one) and not one.startswith(
            ("-u", "-t", "-g", "-S", "-U")
        ):
            words += ["-b", "-t", "kernel"] + ([one.replace("k", "")] if one != "-k" else [])
        elif one == "_TRANSPORT=kernel":
            words += ["-t", "kernel"]
        else:
            words.append(one)
    if words == argv:
        sys.stdout.flush()
        os.execv(real, [real, *words])
    # The journal records the process that wrote a message. The real kernel's messages name no process.
    with subprocess.Popen([real, *words], stdout=subprocess.PIPE, text=True, errors="replace") as child:
        try:
            for line in child.stdout or ():
                sys.stdout.write(_of_kernel(line))
                sys.stdout.flush()
        except BrokenPipeError:
            # A reader such as head has enough. As a signal ends the real one, it leaves no message.
            child.kill()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return child.returncode


def _of_kernel(line: str) -> str:
    """Return a line of the journal as of the real kernel, without a process and with the kernel's time."""
    stored = re.search(r'"__REALTIME_TIMESTAMP"\s*:\s*"(\d{1,18})"', line)
    if not line.startswith("{") or stored is None:
        return re.sub(r" kernel\[\d+\]: ", " kernel: ", line, count=1)
    source_us = max(0, int(stored[1]) - round(_boot_time() * 1e6))
    return f'{{"_SOURCE_MONOTONIC_TIMESTAMP":"{source_us}",{line[1:]}'
