#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402  (what ansible-doc shows stands first, as in every module)
"""Gather what provisioning has to know of a node in one call (standard library only, Python 3.8+, Linux)."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_node
short_description: Gather the state of a node that provisioning compares with what is wanted
description:
  - Gathers in one call what the provisioning roles compare with what they want, so that a role whose work is
    done makes no further call. Every call costs the controller 0.3 core-seconds per node.
  - The result is the fact C(rackproof_node).
  - Every tool is bounded in time and output. A tool that is absent, fails or hangs is a fact, not an error.
options:
  tool_timeout_s:
    description: Seconds that each tool may take.
    type: float
    default: 20
  commands:
    description: More commands to run, name to list of program and arguments. They must only read.
    type: dict
    default: {}
  files:
    description:
      - Paths, or patterns as in a shell, of more files whose checksums are wanted. The configuration files of
        apt, systemd, sysctl, limits, Slurm, Docker, enroot and Rackproof are always among them.
      - A path without a pattern that is no file gives null.
    type: list
    elements: str
    default: []
  paths:
    description: Paths whose file system's size and free space are wanted. They need not exist yet.
    type: list
    elements: str
    default: ["/", "/var"]
  resolve:
    description: Names that the node is to resolve.
    type: list
    elements: str
    default: []
  controller_epoch:
    description: The controller's clock when it asked, in seconds since 1970; handed back with the node's.
    type: float
attributes:
  check_mode:
    description: Only reads.
    support: full
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Gather the state of the node
  rackproof_node:
    resolve: [apt-mirror]
    controller_epoch: "{{ now().timestamp() }}"

- name: Say which driver is installed
  ansible.builtin.debug:
    msg: "{{ rackproof_node.packages['nvidia-driver-cuda'].version | default('none') }}"
"""

RETURN = r"""
ansible_facts:
  description: Holds the fact.
  returned: always
  type: dict
  contains:
    rackproof_node:
      description: State of the node.
      returned: always
      type: dict
      contains:
        hostname: {description: Host name., type: str, returned: always}
        os:
          description: C(id), C(version_id), C(codename), C(name) of /etc/os-release.
          type: dict
          returned: always
        machine: {description: Machine architecture as in C(x86_64)., type: str, returned: always}
        architecture: {description: Architecture of packages as in C(amd64)., type: str, returned: always}
        container:
          description: Whether the node is a container, whose clock and kernel are those of its host.
          type: bool
          returned: always
        kernel: {description: Release of the running kernel., type: str, returned: always}
        kernel_command_line: {description: What the kernel was started with., type: str, returned: always}
        kernels: {description: Releases of the installed kernels., type: list, returned: always}
        boot_id: {description: Id of this boot., type: str, returned: always}
        cores: {description: Logical CPUs that are online., type: int, returned: always}
        memory_bytes: {description: Memory., type: int, returned: always}
        pci:
          description:
            - Devices by NVIDIA and Mellanox on the PCI bus, each with C(slot), C(class), C(vendor) and
              C(device). No driver is needed.
          type: list
          returned: always
        packages:
          description: Installed packages by name; C(version) and C(held).
          type: dict
          returned: always
        dpkg_broken: {description: Packages that are not installed whole., type: list, returned: always}
        dpkg_interrupted:
          description: Whether dpkg was interrupted and has to be configured first.
          type: bool
          returned: always
        dpkg_locked_by:
          description: Process that holds the lock of dpkg; empty if none does.
          type: str
          returned: always
        unattended_upgrades:
          description: Whether packages are upgraded unattended.
          type: bool
          returned: always
        reboot_required: {description: Whether a package asked for a reboot., type: bool, returned: always}
        reboot_required_by: {description: Packages that asked for it., type: list, returned: always}
        modules:
          description: Versions of the loaded kernel modules by name; empty where the kernel does not tell.
          type: dict
          returned: always
        services:
          description:
            - Services, sockets and timers by full name; C(active), C(enabled), C(failed).
          type: dict
          returned: always
        mounts:
          description: Mounts by path; C(source), C(type), C(options).
          type: dict
          returned: always
        space:
          description: By path; C(total_bytes) and C(free_bytes) or C(error).
          type: dict
          returned: always
        groups: {description: Groups by name with the users named in them., type: dict, returned: always}
        commands:
          description:
            - By name; C(status) (V(ok), V(absent), V(failed), V(no_driver), V(hung)), C(rc), C(stdout),
              C(stderr), C(seconds), C(truncated).
            - Always asked are C(nvidia_smi_list) (the GPUs), C(nvidia_smi_query) (index, UUID, driver and
              persistence of each), C(nvidia_license) (of the driver's module) and C(ofed_info).
          type: dict
          returned: always
        files: {description: By path the SHA-256 or null., type: dict, returned: always}
        modes: {description: 'By path, mode and owner as in C(0644 0:0).', type: dict, returned: always}
        names: {description: By name the addresses that it has for this node., type: dict, returned: always}
        clock:
          description:
            - C(epoch), seconds since 1970; C(asked_at), the controller's clock when it asked;
              C(synchronized), null in a container and where the kernel does not tell.
          type: dict
          returned: always
        tuning:
          description:
            - C(sysctl), C(governors), C(hugepages), C(transparent_hugepages), C(numa_balancing), C(limits).
          type: dict
          returned: always
"""

import ctypes
import glob
import hashlib
import os
import re
import resource
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rackproof_dpkg import architecture, interrupted, kernels, lock_holder, packages
from ansible.module_utils.rackproof_tools import ask, read, space

KEPT_OUTPUT = 64 * 1024
VENDORS = {"10de": "NVIDIA", "15b3": "Mellanox"}
COMMANDS = {
    "nvidia_smi_list": ["nvidia-smi", "-L"],
    "nvidia_smi_query": [
        "nvidia-smi",
        "--query-gpu=index,uuid,driver_version,persistence_mode",
        "--format=csv,noheader",
    ],
    # Open modules of the driver say Dual MIT/GPL, the proprietary ones NVIDIA.
    "nvidia_license": ["modinfo", "-F", "license", "nvidia"],
    "ofed_info": ["ofed_info", "-s"],
}
# Used here, and not handed on.
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
    "periodic": ["apt-config", "dump", "APT::Periodic"],
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
    "/etc/passwd-s3fs",
    "/etc/rackproof/*",
    "/etc/security/limits.d/*",
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
)
LARGEST_FILE = 16 * 1024 * 1024
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
LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "stack": resource.RLIMIT_STACK,
}
UNSYNCHRONIZED = 5
"""What adjtimex() returns for a clock that nothing disciplines (TIME_ERROR)."""


def os_release(text):
    """Return the entries of /etc/os-release that matter."""
    found = dict(re.findall(r'^([A-Z_]+)="?(.*?)"?[ \t]*$', text, re.M))
    return {
        "id": found.get("ID", ""),
        "version_id": found.get("VERSION_ID", ""),
        "codename": found.get("VERSION_CODENAME", ""),
        "name": found.get("PRETTY_NAME", ""),
    }


def modules(listed, root="/sys/module"):
    """Return the loaded modules from the lines of lsmod, with the versions that the kernel tells."""
    names = [line.split()[0] for line in listed.splitlines()[1:] if line.strip()]
    return {name: read(os.path.join(root, name, "version"), 256) for name in names}


def services(units, unit_files):
    """Return the units from the lines of ``systemctl list-units`` and ``list-unit-files``."""
    found = {}
    for line in unit_files.splitlines():
        fields = line.split()
        if len(fields) > 1:
            found[fields[0]] = {"active": False, "enabled": fields[1].startswith("enabled"), "failed": False}
    for line in units.splitlines():
        fields = line.replace("\u25cf", " ").split()
        if len(fields) > 3 and fields[1] != "not-found":
            unit = found.setdefault(fields[0], {"active": False, "enabled": False, "failed": False})
            unit["active"] = fields[2] in ("active", "reloading")
            unit["failed"] = fields[2] == "failed"
    return found


def unescaped(text):
    """Return a path of /proc/self/mountinfo as it is."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def mounts(text):
    """Return the mounts by path; of several on one path, the last one lies on top."""
    found = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) > 5 and len(rest) > 1:
            options = dict.fromkeys(fields[5].split(",") + (rest[2].split(",") if len(rest) > 2 else []))
            found[unescaped(fields[4])] = {
                "source": unescaped(rest[1]),
                "type": rest[0],
                "options": ",".join(options),
            }
    return found


def groups(text):
    """Return the groups and who is named in them."""
    lines = [line.split(":") for line in text.splitlines() if line.count(":") == 3]
    return {line[0]: [user for user in line[3].split(",") if user] for line in lines}


def pci(listed, root="/sys/bus/pci/devices"):
    """Return the devices of the vendors that matter, from ``lspci -Dn``, or without it from the kernel."""
    lines = re.findall(r"^(\S+) ([0-9a-f]{4}): ([0-9a-f]{4}):([0-9a-f]{4})", listed, re.M)
    if not listed:
        with suppress(OSError):
            for slot in sorted(os.listdir(root)):
                values = [
                    read(os.path.join(root, slot, name), 16)[2:6] for name in ("class", "vendor", "device")
                ]
                lines.append((slot, *values))
    return [
        {"slot": slot, "class": kind, "vendor": vendor, "device": device}
        for slot, kind, vendor, device in lines
        if vendor in VENDORS
    ]


def checksums(patterns):
    """Return checksums, modes and owners of the files that paths and patterns name."""
    sums, modes = {}, {}
    for pattern in patterns:
        found = sorted(glob.glob(pattern, recursive=True))
        if not found and not glob.has_magic(pattern):
            sums[pattern] = None
        for path in found:
            try:
                state = os.stat(path)
                if not os.path.isfile(path) or state.st_size > LARGEST_FILE:
                    sums.setdefault(path, None)
                    continue
                with open(path, "rb") as stream:
                    sums[path] = hashlib.sha256(stream.read(LARGEST_FILE)).hexdigest()
                modes[path] = f"{state.st_mode & 0o7777:04o} {state.st_uid}:{state.st_gid}"
            except OSError:
                sums[path] = None
    return sums, modes


def addresses(listed):
    """Return the addresses from the lines of ``getent ahosts``."""
    return sorted({line.split()[0] for line in listed.splitlines() if line.strip()})


def synchronized(container):
    """Return whether something disciplines the clock; None where that cannot be told."""
    if container:
        return None
    try:
        # struct timex is smaller; a mode of 0 only reads.
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(struct.calcsize("l") * 64))
    except (AttributeError, OSError):
        return None
    return None if state < 0 else state != UNSYNCHRONIZED


def limits():
    """Return the soft limits that a login has here; -1 without limit."""
    found = {name: resource.getrlimit(which)[0] for name, which in LIMITS.items()}
    return {name: -1 if value == resource.RLIM_INFINITY else value for name, value in found.items()}


def tuning():
    """Return how the kernel is tuned."""
    sysctl = {name: read("/proc/sys/" + name.replace(".", "/"), 256) for name in SYSCTLS}
    governors = glob.glob("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    hugepages = {
        path.split("/")[-2].split("-")[1]: read(path, 32)
        for path in glob.glob("/sys/kernel/mm/hugepages/hugepages-*/nr_hugepages")
    }
    return {
        "sysctl": {name: " ".join(value.split()) for name, value in sysctl.items() if value},
        "governors": sorted({read(path, 64) for path in governors}),
        "hugepages": {size: int(count) for size, count in hugepages.items() if count.isdigit()},
        "transparent_hugepages": read("/sys/kernel/mm/transparent_hugepage/enabled", 64),
        "numa_balancing": sysctl["kernel.numa_balancing"] not in ("", "0"),
        "limits": limits(),
    }


def memory_bytes(text):
    """Return the memory from the lines of /proc/meminfo."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", text, re.M)
    return 1024 * int(found.group(1)) if found else 0


def upgrades_unattended(installed, periodic, units):
    """Return whether apt upgrades packages by itself: package, setting and timer have to agree."""
    setting = re.search(r'^APT::Periodic::Unattended-Upgrade "(.*)";', periodic, re.M)
    wanted = setting is not None and setting.group(1) not in ("", "0")
    timer = units.get("apt-daily-upgrade.timer", {})
    return wanted and "unattended-upgrades" in installed and bool(timer.get("active") or timer.get("enabled"))


def gather(options):
    """Return the state of the node; the tools run at the same time."""
    timeout_s = options["tool_timeout_s"]
    asked = dict(COMMANDS)
    asked.update({name: [str(part) for part in argv] for name, argv in options["commands"].items()})
    with ThreadPoolExecutor(12) as pool:
        sources = {name: pool.submit(ask, argv, timeout_s) for name, argv in SOURCES.items()}
        commands = {name: pool.submit(ask, argv, timeout_s) for name, argv in asked.items()}
        # getent, and not the resolver itself: only a process can be bounded in time.
        names = {
            name: pool.submit(ask, ["getent", "ahosts", "--", name], timeout_s) for name in options["resolve"]
        }
        installed, broken = packages()
        files, modes = checksums([*FILES, *options["files"]])
        sources = {name: future.result().get("stdout", "") for name, future in sources.items()}
        commands = {name: future.result() for name, future in commands.items()}
        names = {name: addresses(future.result().get("stdout", "")) for name, future in names.items()}
    for command in commands.values():
        if len(command.get("stdout", "")) > KEPT_OUTPUT:
            command.update(stdout=command["stdout"][:KEPT_OUTPUT], truncated=True)
    system = os.uname()
    container = os.path.exists("/run/systemd/container") or os.path.exists("/.dockerenv")
    units = services(sources["units"], sources["unit_files"])
    return {
        "hostname": system.nodename,
        "os": os_release(read("/etc/os-release")),
        "machine": system.machine,
        "architecture": architecture(),
        "container": container,
        "kernel": system.release,
        "kernel_command_line": read("/proc/cmdline"),
        "kernels": kernels(),
        "boot_id": read("/proc/sys/kernel/random/boot_id"),
        "cores": os.sysconf("SC_NPROCESSORS_ONLN"),
        "memory_bytes": memory_bytes(read("/proc/meminfo")),
        "pci": pci(sources["lspci"]),
        "packages": installed,
        "dpkg_broken": broken,
        "dpkg_interrupted": interrupted(),
        "dpkg_locked_by": lock_holder(),
        "unattended_upgrades": upgrades_unattended(installed, sources["periodic"], units),
        "reboot_required": os.path.exists("/run/reboot-required"),
        "reboot_required_by": sorted(set(read("/run/reboot-required.pkgs").split())),
        "modules": modules(sources["lsmod"]),
        "services": units,
        "mounts": mounts(read("/proc/self/mountinfo")),
        "space": {path: space(path) for path in options["paths"]},
        "groups": groups(read("/etc/group")),
        "commands": commands,
        "files": files,
        "modes": modes,
        "names": names,
        "tuning": tuning(),
        # Last: what came before took time.
        "clock": {
            "synchronized": synchronized(container),
            "asked_at": options["controller_epoch"],
            "epoch": time.time(),
        },
    }


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "tool_timeout_s": {"type": "float", "default": 20},
            "commands": {"type": "dict", "default": {}},
            "files": {"type": "list", "elements": "str", "default": []},
            "paths": {"type": "list", "elements": "str", "default": ["/", "/var"]},
            "resolve": {"type": "list", "elements": "str", "default": []},
            "controller_epoch": {"type": "float"},
        },
        supports_check_mode=True,
    )
    options = module.params
    if not 0 < options["tool_timeout_s"] <= 600:
        module.fail_json(msg="tool_timeout_s: 0 to 600 seconds, not {}".format(options["tool_timeout_s"]))
    for name, argv in options["commands"].items():
        if not isinstance(argv, list) or not argv:
            module.fail_json(msg=f"commands: a list of program and arguments is needed for {name!r}")
    for path in options["files"] + options["paths"]:
        if not os.path.isabs(path):
            module.fail_json(msg=f"files, paths: {path!r} is no absolute path")
    module.exit_json(changed=False, ansible_facts={"rackproof_node": gather(options)})


if __name__ == "__main__":
    main()
