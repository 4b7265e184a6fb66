# SPDX-License-Identifier: Apache-2.0
"""Gather subset `provision` of rackproof_facts, which provisioning roles compare (Python 3.8+).

The module calls :func:`gather`, which returns packages, services, mounts, files and kernel modules of the
node.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.rackproof_dpkg import architecture, interrupted, kernels, lock_holder, packages
from ansible.module_utils.rackproof_tools import (
    CLOCK,
    ask,
    asks,
    in_container,
    list_folder,
    read,
    soft_limit,
    space,
)

APT_HELPER = "/usr/lib/apt/apt-helper"
KEPT_OUTPUT = 64 * 1024
"""Largest number of characters of a tool's output in the facts."""
VENDORS = {"10de": "NVIDIA", "15b3": "Mellanox"}
COMMANDS = {
    "nvidia_smi_list": ["nvidia-smi", "-L"],
    "nvidia_smi_query": [
        "nvidia-smi",
        "--query-gpu=index,uuid,driver_version,persistence_mode",
        "--format=csv,noheader",
    ],
    # The driver's open modules state the license Dual MIT/GPL, and the proprietary ones NVIDIA.
    "nvidia_license": ["modinfo", "-F", "license", "nvidia"],
    "ofed_info": ["ofed_info", "-s"],
}
# Tools whose output is parsed in this file. The facts contain only the parsed values.
SOURCES = {
    "lspci": ["lspci", "-Dn"],
    "lsmod": ["lsmod"],
    "units": [
        "systemctl",
        "list-units",
        "--all",
        "--full",
        "--plain",
        "--no-legend",
        "--no-pager",
        "--type=service,socket,timer",
    ],
    "unit_files": [
        "systemctl",
        "list-unit-files",
        "--full",
        "--no-legend",
        "--no-pager",
        "--type=service,socket,timer",
    ],
    "starts": ["systemctl", "show", "--property=Id,ActiveEnterTimestampMonotonic", "*.service", "*.mount"],
    "periodic": ["apt-config", "dump", "APT::Periodic"],
    "clock": CLOCK,
}
FILES = (
    "/etc/apt/apt.conf.d/*",
    "/etc/apt/keyrings/*",
    "/etc/apt/preferences.d/*",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/*",
    "/etc/cdi/*",
    "/etc/default/*",
    "/etc/default/grub.d/*",
    "/etc/docker/*.json",
    "/etc/enroot/*.conf",
    "/etc/enroot/.credentials",
    "/etc/enroot/hooks.d/*",
    "/etc/infiniband/*.conf",
    "/etc/modprobe.d/*",
    "/etc/modules-load.d/*",
    "/etc/munge/munge.key",
    "/etc/mysql/mariadb.conf.d/*",
    "/etc/nvidia-container-runtime/config.toml",
    "/etc/nvidia-imex/nodes_config.cfg",
    "/etc/passwd-s3fs",
    "/etc/rackproof/*",
    "/etc/security/limits.d/*",
    "/etc/sudoers.d/rackproof-benchmarks",
    "/etc/slurm/*",
    "/etc/slurm/plugstack.conf.d/*",
    "/etc/sysctl.d/*",
    "/etc/systemd/*.conf.d/*",
    "/etc/systemd/system/*.mount",
    "/etc/systemd/system/*.service",
    "/etc/systemd/system/*.d/*.conf",
    "/etc/tmpfiles.d/*",
    "/run/rackproof/*",
    "/root/.docker/config.json",
    "/usr/local/sbin/rackproof-*",
    # dpkg writes these lists when it unpacks a package. The package's own files have the times of its build.
    "/var/lib/dpkg/info/nvidia-imex*.list",
    "/var/lib/dpkg/info/ofed-scripts.list",
)
LARGEST_FILE = 16 * 1024 * 1024
"""Largest number of bytes of a file that gets a checksum."""
SYSCTLS = (
    "kernel.numa_balancing",
    "kernel.panic",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "vm.max_map_count",
    "vm.nr_hugepages",
    "vm.overcommit_memory",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
)
SYSCTL_FILE = "/etc/sysctl.d/90-rackproof.conf"
"""The file of role node_tuning. Its names are read, too."""
SYSCTL_FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d")
IMEX_CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "stack": resource.RLIMIT_STACK,
}


def os_release(text):
    """Return id, version, codename and name of the system from the text of /etc/os-release."""
    values = dict(re.findall(r'^([A-Z_]+)="?(.*?)"?[ \t]*$', text, re.M))
    return {
        "id": values.get("ID", ""),
        "version_id": values.get("VERSION_ID", ""),
        "codename": values.get("VERSION_CODENAME", ""),
        "name": values.get("PRETTY_NAME", ""),
    }


def loaded_modules(listed, root="/sys/module"):
    """Return the loaded modules from the lines of lsmod, with the versions in the kernel."""
    names = [line.split()[0] for line in listed.splitlines()[1:] if line.strip()]
    return {name: read(os.path.join(root, name, "version"), 256) for name in names}


def service_units(units, unit_files):
    """Return whether each unit is active, enabled and failed, from the lines of two commands of systemctl.

    The commands are ``list-units`` and ``list-unit-files``.
    """
    states = {}
    for line in unit_files.splitlines():
        fields = line.split()
        if len(fields) > 1:
            states[fields[0]] = {"active": False, "enabled": fields[1].startswith("enabled"), "failed": False}
    for line in units.splitlines():
        fields = line.replace("\u25cf", " ").split()
        if len(fields) > 3 and fields[1] != "not-found":
            unit = states.setdefault(fields[0], {"active": False, "enabled": False, "failed": False})
            unit["active"] = fields[2] in ("active", "reloading")
            unit["failed"] = fields[2] == "failed"
    return states


def unit_starts(shown, now, monotonic):
    """Return when each unit last became active, in seconds of this machine's clock.

    A clock that was set since then does not matter, because systemd counts the time since the boot.

    Args:
        shown: The lines of ``systemctl show`` with Id and ActiveEnterTimestampMonotonic.
        now: The present time in seconds since 1970.
        monotonic: The present time in seconds since the boot.
    """
    units = [dict(re.findall(r"^(\w+)=(\S*)$", block, re.M)) for block in shown.split("\n\n")]
    boot = now - monotonic
    return {
        unit["Id"]: boot + int(unit["ActiveEnterTimestampMonotonic"]) / 1e6
        for unit in units
        # A unit that was never active has the time 0.
        if "Id" in unit and unit.get("ActiveEnterTimestampMonotonic", "0").strip("0").isdigit()
    }


def unescape(text):
    """Return a path of /proc/self/mountinfo without its escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def mounts_by_path(text):
    """Return the mounts by path. Of several mounts on a path, the last one is visible."""
    table = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) > 5 and len(rest) > 1:
            options = dict.fromkeys(fields[5].split(",") + (rest[2].split(",") if len(rest) > 2 else []))
            table[unescape(fields[4])] = {
                "source": unescape(rest[1]),
                "type": rest[0],
                "options": ",".join(options),
            }
    return table


def group_members(text):
    """Return the groups and their members."""
    lines = [line.split(":") for line in text.splitlines() if line.count(":") == 3]
    return {line[0]: [user for user in line[3].split(",") if user] for line in lines}


def pci_devices(listed, root="/sys/bus/pci/devices"):
    """Return the devices of NVIDIA and Mellanox, from ``lspci -Dn``, or without it from the kernel."""
    lines = re.findall(r"^(\S+) ([0-9a-f]{4}): ([0-9a-f]{4}):([0-9a-f]{4})", listed, re.M)
    if not listed:
        for slot in list_folder(root):
            values = [read(os.path.join(root, slot, name), 16)[2:6] for name in ("class", "vendor", "device")]
            lines.append((slot, *values))
    return [
        {"slot": slot, "class": kind, "vendor": vendor, "device": device}
        for slot, kind, vendor, device in lines
        if vendor in VENDORS
    ]


def file_checksums(patterns):
    """Return the checksums of the files that paths and patterns name, their modes with owners, and times.

    The checksum is None for a path without a readable file of at most LARGEST_FILE bytes. The time of
    the last change of the content is in seconds since 1970, and is left out if it lies in the future.
    """
    sums: dict[str, str | None] = {}
    modes, times = {}, {}
    for pattern in patterns:
        paths = sorted(glob.glob(pattern, recursive=True))
        if not paths and not glob.has_magic(pattern):
            sums[pattern] = None
        for path in paths:
            try:
                state = os.stat(path)
                if not os.path.isfile(path) or state.st_size > LARGEST_FILE:
                    sums.setdefault(path, None)
                    continue
                with open(path, "rb") as stream:
                    sums[path] = hashlib.sha256(stream.read(LARGEST_FILE)).hexdigest()
                modes[path] = f"{state.st_mode & 0o7777:04o} {state.st_uid}:{state.st_gid}"
                # A file that was written while the clock was ahead would be newer than every start of a unit.
                if state.st_mtime <= time.time():
                    times[path] = state.st_mtime
            except OSError:
                sums[path] = None
    return sums, modes, times


def host_addresses(listed):
    """Return the addresses from the lines of ``getent ahosts``."""
    return sorted({line.split()[0] for line in listed.splitlines() if line.strip()})


def soft_limits():
    """Return the soft limits of this process, which are the limits of a login. No limit is -1."""
    return {name: soft_limit(which) for name, which in LIMITS.items()}


def sysctl_names(text):
    """Return the names that a file of sysctl sets, in its order."""
    return re.findall(r"^[ \t]*-?([^\s#;=]+)[ \t]*=", text, re.M)


def sysctl_paths(name, root="/proc/sys"):
    """Return the files of the kernel with a setting, or an empty list if the kernel does not have it."""
    separators = re.findall(r"[./]", name)
    # With a first dot, a slash is a dot in the name of a network interface (eth0/100).
    swapped = name.translate(str.maketrans("./", "/.")) if separators[:1] == ["."] else name
    return sorted(glob.glob(os.path.join(root, swapped)))


def sysctl_value(paths):
    """Return the value of a setting, None if the kernel does not have it, or "" if it cannot be read back."""
    if not paths:
        return None
    # A setting such as net.ipv4.route.flush can only be written.
    readable = [path for path in paths if os.stat(path).st_mode & 0o444]
    return " | ".join(sorted({" ".join(read(path, 256).split()) for path in readable}))


def sysctl_files(names, folders=SYSCTL_FOLDERS):
    """Return the other files that set the given names, by name."""
    found: dict[str, list[str]] = {}
    paths = [os.path.join(folder, name) for folder in folders for name in list_folder(folder)]
    for path in [*paths, "/etc/sysctl.conf"]:
        if path.endswith(".conf") and path != SYSCTL_FILE and not os.path.islink(path):
            for name in set(names).intersection(sysctl_names(read(path))):
                found.setdefault(name, []).append(path)
    return found


def imex_channel(params):
    """Return whether the loaded driver created an IMEX channel.

    Args:
        params: The text of /proc/driver/nvidia/params.
    """
    return os.path.exists(IMEX_CHANNEL) or re.search(r"^CreateImexChannel0: 1$", params, re.M) is not None


def kernel_tuning():
    """Return the settings of the kernel and the limits that affect performance."""
    given = sysctl_names(read(SYSCTL_FILE))
    sysctl = {name: sysctl_value(sysctl_paths(name)) for name in dict.fromkeys([*SYSCTLS, *given])}
    governors = glob.glob("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    hugepages = {
        path.split("/")[-2].split("-")[1]: read(path, 32)
        for path in glob.glob("/sys/kernel/mm/hugepages/hugepages-*/nr_hugepages")
    }
    return {
        # None is the value of a name in the role's file that the kernel does not have.
        "sysctl": {
            name: value for name, value in sysctl.items() if value or (value is None and name in given)
        },
        "sysctl_files": sysctl_files(given),
        "governors": sorted({read(path, 64) for path in governors}),
        "hugepages": {size: int(count) for size, count in hugepages.items() if count.isdigit()},
        "transparent_hugepages": read("/sys/kernel/mm/transparent_hugepage/enabled", 64),
        "numa_balancing": sysctl["kernel.numa_balancing"] not in ("", "0"),
        "limits": soft_limits(),
    }


def memory_bytes(text):
    """Return the bytes of memory from the text of /proc/meminfo, or 0."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", text, re.M)
    return 1024 * int(match.group(1)) if match else 0


def upgrades_unattended(installed, periodic, units):
    """Return whether apt upgrades packages by itself.

    The package, the setting and the timer must all be present.
    """
    setting = re.search(r'^APT::Periodic::Unattended-Upgrade "(.*)";', periodic, re.M)
    wanted = setting is not None and setting.group(1) not in ("", "0")
    timer = units.get("apt-daily-upgrade.timer", {})
    return wanted and "unattended-upgrades" in installed and bool(timer.get("active") or timer.get("enabled"))


def urls_by_server(print_uris):
    """Return for each server the URLs of the index files that its first package source may offer.

    The name of the server has no login, because messages contain it.

    Args:
        print_uris: The lines of ``apt-get update --print-uris``.
    """
    answers = {}
    for url, server in re.findall(r"^'((https?://[^/']+)/[^']*)InRelease' ", print_uris, re.M):
        # An old repository has only Release.
        answers.setdefault(without_login(server), [url + "InRelease", url + "Release"])
    return answers


def without_login(text):
    """Return a text without the user names and passwords of its URLs."""
    return re.sub(r"(https?://)[^/@\s']*@", r"\1", text)


def fetch_error(urls, timeout_s):
    """Return why apt can fetch none of some files, or an empty text if it can fetch one.

    apt's own program uses the node's proxy, logins and certificates.
    """
    reason = ""
    with tempfile.TemporaryDirectory() as folder:
        for url in urls:
            answer = ask([APT_HELPER, "download-file", url, os.path.join(folder, "index")], timeout_s)
            if answer["status"] == "ok":
                return ""
            if answer["status"] == "absent":
                return f"{APT_HELPER} is missing"
            errors = re.findall(r"^E: (Failed to fetch .*)", answer.get("stderr", ""), re.M)
            reason = errors[0] if errors else f"Failed to fetch {url}  {last_words(answer, timeout_s)}"
    return without_login(reason)


def last_words(answer, timeout_s):
    """Return the last line of a tool's error, or that the tool did not answer in time."""
    lines = answer.get("stderr", "").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    if answer["status"] == "hung" or not said:
        return f"No answer within {timeout_s:g} s"
    return said[-1]


def silent_servers(path, timeout_s):
    """Return the servers of a list of package sources that do not answer apt, each with the reason.

    If apt cannot read the list, its path is returned in place of a server.
    """
    if not os.path.exists(path):
        return {}
    only = ["-o", "Dir::Etc::SourceList=" + path, "-o", "Dir::Etc::SourceParts=/dev/null"]
    listed = ask(["apt-get", "update", "--print-uris", *only], timeout_s)
    if listed["status"] != "ok":
        message = listed.get("stderr", "").strip() or listed["status"]
        return {path: f"apt-get update --print-uris cannot read {path}: {message}"}
    servers = urls_by_server(listed["stdout"])
    with ThreadPoolExecutor(8) as pool:
        errors = dict(zip(servers, pool.map(lambda urls: fetch_error(urls, timeout_s), servers.values())))
    return {server: error for server, error in errors.items() if error}


def gather(options):
    """Return the state of the node. The tools run at the same time."""
    begin, timeout_s = time.time(), options["tool_timeout_s"]
    asked = dict(COMMANDS)
    asked.update({name: [str(part) for part in argv] for name, argv in options["commands"].items()})
    with ThreadPoolExecutor(12) as pool:
        sources = {name: pool.submit(ask, argv, timeout_s) for name, argv in SOURCES.items()}
        running = {name: pool.submit(asks(argv), argv, timeout_s) for name, argv in asked.items()}
        # Use getent, because only the time of a process can be limited.
        names = {
            name: pool.submit(ask, ["getent", "ahosts", "--", name], timeout_s) for name in options["resolve"]
        }
        silent = pool.submit(silent_servers, options["package_sources"], timeout_s)
        installed, broken = packages()
        files, modes, times = file_checksums([*FILES, *options["files"]])
        sources = {name: future.result().get("stdout", "") for name, future in sources.items()}
        commands = {name: future.result() for name, future in running.items()}
        silent = silent.result()
        names = {name: host_addresses(future.result().get("stdout", "")) for name, future in names.items()}
    for command in commands.values():
        if len(command.get("stdout", "")) > KEPT_OUTPUT:
            command.update(stdout=command["stdout"][:KEPT_OUTPUT], truncated=True)
    system = os.uname()
    units = service_units(sources["units"], sources["unit_files"])
    return {
        "hostname": system.nodename,
        "os": os_release(read("/etc/os-release")),
        "machine": system.machine,
        "architecture": architecture(),
        "container": in_container(),
        "kernel": system.release,
        "kernel_command_line": read("/proc/cmdline"),
        "kernels": kernels(),
        "boot_id": read("/proc/sys/kernel/random/boot_id"),
        "cores": os.sysconf("SC_NPROCESSORS_ONLN"),
        "memory_bytes": memory_bytes(read("/proc/meminfo")),
        "pci": pci_devices(sources["lspci"]),
        "packages": installed,
        "dpkg_broken": broken,
        "dpkg_interrupted": interrupted(),
        "dpkg_locked_by": lock_holder(),
        "silent_servers": silent,
        "unattended_upgrades": upgrades_unattended(installed, sources["periodic"], units),
        "reboot_required": os.path.exists("/run/reboot-required"),
        "reboot_required_by": sorted(set(read("/run/reboot-required.pkgs").split())),
        "modules": loaded_modules(sources["lsmod"]),
        "imex_channel": imex_channel(read("/proc/driver/nvidia/params")),
        "services": units,
        "unit_starts": unit_starts(sources["starts"], time.time(), time.monotonic()),
        "mounts": mounts_by_path(read("/proc/self/mountinfo")),
        "space": {path: space(path) for path in options["paths"]},
        "groups": group_members(read("/etc/group")),
        "commands": commands,
        "files": files,
        "modes": modes,
        "changed_at": times,
        "names": names,
        "tuning": kernel_tuning(),
        # Read the clock first and last, so that the steps above neither count as an error nor hide one.
        "clock": {
            "timedatectl": sources["clock"],
            "asked_at": options["controller_epoch"],
            "begin": begin,
            "epoch": time.time(),
        },
    }
