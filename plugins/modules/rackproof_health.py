#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402  (what ansible-doc shows stands first, as in every module)
"""Gather what health checks ask of a node in one call (standard library only, Python 3.8+, Linux)."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_health
short_description: Gather the health of a node in one call
description:
  - Gathers what C(rackproof.nodes.snapshot) turns into a look. Nothing is parsed here, nothing is changed,
    and nothing runs on a GPU, so that it is safe beside jobs.
  - Every tool is bounded in time and output. A tool that is absent, fails or hangs is a fact, not an error.
    After one that hangs in the driver, no other asks the driver.
options:
  tool_timeout_s:
    description: Seconds that each tool may take.
    type: float
    default: 15
  since:
    description:
      - Moment of the last look in seconds since 1970; older messages of the kernel are left out, those of
        earlier boots are not. 0 is since boot.
    type: float
    default: 0
  paths:
    description: Paths whose file system's size, free space and mode are wanted.
    type: list
    elements: str
    default: ["/", "/var"]
  units:
    description: Units of systemd whose state is wanted; one that is not installed is no finding.
    type: list
    elements: str
    default:
      - slurmd.service
      - munge.service
      - docker.service
      - nvidia-persistenced.service
      - nvidia-fabricmanager.service
  sysfs:
    description: Where sysfs is.
    type: path
    default: /sys
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
- name: Gather the health of the node
  rackproof_health:
    since: 1795000000
  register: health
"""

RETURN = r"""
gathered:
  description: What was gathered, in the three parts that C(rackproof.nodes.snapshot) describes.
  returned: always
  type: dict
  contains:
    facts: {description: As of C(rackproof_facts)., type: dict, returned: always}
    node: {description: Modules and whether it is a container., type: dict, returned: always}
    health: {description: 'Kernel log, NVLinks, units, ports, disks.', type: dict, returned: always}
"""

import os
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rackproof_tools import ask, read, space

# What asks the driver runs in turn: where one hangs, all would, and each would leave a process behind.
DRIVER = {
    "nvidia_smi_xml": ["nvidia-smi", "-q", "-x"],
    "nvlink_status": ["nvidia-smi", "nvlink", "-s"],
    "nvlink_errors": ["nvidia-smi", "nvlink", "-e"],
}
TOOLS = {
    "ofed_info": ["ofed_info", "-s"],
    "slurm": ["sinfo", "--version"],
    "docker": ["docker", "--version"],
    "enroot": ["enroot", "version"],
    "nvidia_ctk": ["nvidia-ctk", "--version"],
    "fabricmanager": ["nv-fabricmanager", "--version"],
}
FAILED_UNITS = ["systemctl", "list-units", "--failed", "--full", "--plain", "--no-legend", "--no-pager"]
UNIT_PROPERTIES = "--property=Id,LoadState,ActiveState,UnitFileState"
CLOCK = ["timedatectl", "show", "--property=NTPSynchronized"]
# The newest are kept: an older message has been seen by an earlier look.
LOG_LINES = "20000"
FILES = {
    "os_release": "/etc/os-release",
    "meminfo": "/proc/meminfo",
    "mountinfo": "/proc/self/mountinfo",
    "nvidia_driver": "/proc/driver/nvidia/version",
    "uptime": "/proc/uptime",
}
DMI = ("bios_version", "board_serial", "chassis_serial", "product_name", "product_serial", "sys_vendor")
MODULES = ("nvidia", "nvidia_peermem", "nv_peer_mem", "mlx5_core")
PORT_FILES = ("state", "phys_state", "rate", "link_layer")
COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
PCI_FILES = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
NETWORK_CLASS = "0x02"
MELLANOX = "0x15b3"


def names(folder):
    """Return what lies in a folder, nothing where it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def driver(timeout_s):
    """Ask the driver's tools in turn; after one that hangs the others are not started."""
    answers = {}
    for name, argv in DRIVER.items():
        stuck = any(answer["status"] == "hung" for answer in answers.values())
        answers[name] = {"status": "not_asked"} if stuck else ask(argv, timeout_s)
    return answers


def kernel_log(since, timeout_s):
    """Return the kernel's messages since a moment: of the journal, else all that the kernel keeps."""
    # -k would be this boot's only: who was booted for an XID since the last look would never be heard of.
    which, moment = ("_TRANSPORT=kernel", [f"--since=@{since:.0f}"]) if since > 0 else ("-k", [])
    journal = ["journalctl", which, "--no-pager", "-o", "short-unix"]
    answer = ask([*journal, "-n", LOG_LINES, *moment], timeout_s)
    if answer["status"] == "ok" and moment and not lines(answer):
        # Silence counts only where the journal holds the kernel's messages at all.
        kept = ask([*journal, "-n", "1"], timeout_s)
        return answer if lines(kept) else ask(["dmesg"], timeout_s)
    return answer if lines(answer) or answer["status"] == "hung" else ask(["dmesg"], timeout_s)


def booted():
    """Return when this system began, by its first process: a container's kernel is older. 0 is not known."""
    try:
        with open("/proc/1/stat", encoding="utf-8", errors="replace") as stream:
            ticks = int(stream.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    # btime of /proc/stat has whole seconds only.
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def lines(answer):
    """Return what journalctl printed, without its remarks."""
    return [line for line in answer.get("stdout", "").splitlines() if not line.startswith("--")]


def counters(folder):
    """Return the counters of a port."""
    found = {}
    for name in COUNTERS:
        text = read(os.path.join(folder, name), 64)
        if text.isdigit():
            found[name] = int(text)
    return found


def ports(folder):
    """Return the ports of a network card."""
    return {
        port: {
            "counters": counters(os.path.join(folder, port, "counters")),
            **{name: read(os.path.join(folder, port, name), 256) for name in PORT_FILES},
        }
        for port in names(folder)
    }


def pci(root):
    """Return the PCIe links of network cards."""
    found = {}
    for address in names(root):
        folder = os.path.join(root, address)
        if read(os.path.join(folder, "vendor"), 16) == MELLANOX and read(
            os.path.join(folder, "class"), 16
        ).startswith(NETWORK_CLASS):
            found[address] = {name: read(os.path.join(folder, name), 64) for name in PCI_FILES}
    return found


def disk(path):
    """Return size, free bytes and mode of the file system of a path."""
    about = space(path)
    try:
        about["read_only"] = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        about["read_only"] = None
    return about


def disks(paths, timeout_s):
    """Return the file systems of paths, and an answer as of a tool for each that did not answer in time."""
    found, threads = {}, {}
    for path in paths:
        # A mount whose server is gone holds whoever looks at it; a daemon thread does not hold the module.
        threads[path] = threading.Thread(target=lambda one=path: found.update({one: disk(one)}), daemon=True)
        threads[path].start()
    deadline = time.monotonic() + timeout_s
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    hung = {f"statfs {path}": {"status": "hung"} for path in paths if path not in found}
    return {path: about for path, about in found.items() if f"statfs {path}" not in hung}, hung


def gather(options):
    """Return the raw facts; tools that do not ask the driver run at the same time."""
    begin, timeout_s, sysfs = time.time(), options["tool_timeout_s"], options["sysfs"]
    # A clock that was put back must not hide what the kernel has said since.
    since = options["since"] if options["since"] <= begin else 0.0
    cards = os.path.join(sysfs, "class/infiniband")
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    with ThreadPoolExecutor(4) as pool:
        asked = pool.submit(driver, timeout_s)
        log = pool.submit(kernel_log, since, timeout_s)
        tools = {name: pool.submit(ask, argv, timeout_s) for name, argv in TOOLS.items()}
        units = {
            "failed_units": pool.submit(ask, FAILED_UNITS, timeout_s),
            "units": pool.submit(ask, ["systemctl", "show", UNIT_PROPERTIES, *options["units"]], timeout_s),
            "clock": pool.submit(ask, CLOCK, timeout_s),
        }
        spaces, hung = disks(options["paths"], timeout_s)
        smi = asked.result()
        tools = {name: future.result() for name, future in tools.items()}
        more = {name: future.result() for name, future in units.items()}
        more["kernel_log"] = log.result()
    tools["nvidia_smi_xml"] = smi.pop("nvidia_smi_xml")
    return {
        "facts": {
            "boot_id": read("/proc/sys/kernel/random/boot_id"),
            "kernel": os.uname().release,
            "machine": os.uname().machine,
            "cpu_count": os.cpu_count(),
            "files": {name: read(path) for name, path in FILES.items()},
            "dmi": {name: read(os.path.join(sysfs, "class/dmi/id", name), 4096) for name in DMI},
            "tools": tools,
            "infiniband": {
                card: {name: read(os.path.join(cards, card, name), 256) for name in ("fw_ver", "hca_type")}
                for card in names(cards)
            },
            "memlock_bytes": -1 if soft == resource.RLIM_INFINITY else soft,
            "shm_bytes": space("/dev/shm").get("total_bytes", 0),
        },
        "node": {
            "container": os.path.exists("/run/systemd/container") or os.path.exists("/.dockerenv"),
            "modules": {
                name: read(os.path.join(sysfs, "module", name, "version"), 256)
                for name in MODULES
                if os.path.isdir(os.path.join(sysfs, "module", name))
            },
        },
        "health": {
            "begin": begin,
            "epoch": time.time(),
            "since": since,
            "booted": booted(),
            "tools": {**smi, **more, **hung},
            "hca": {card: ports(os.path.join(cards, card, "ports")) for card in names(cards)},
            "pci": pci(os.path.join(sysfs, "bus/pci/devices")),
            "disk": spaces,
        },
    }


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "tool_timeout_s": {"type": "float", "default": 15},
            "since": {"type": "float", "default": 0},
            "paths": {"type": "list", "elements": "str", "default": ["/", "/var"]},
            "units": {
                "type": "list",
                "elements": "str",
                "default": [
                    "slurmd.service",
                    "munge.service",
                    "docker.service",
                    "nvidia-persistenced.service",
                    "nvidia-fabricmanager.service",
                ],
            },
            "sysfs": {"type": "path", "default": "/sys"},
        },
        supports_check_mode=True,
    )
    options = module.params
    if not 0 < options["tool_timeout_s"] <= 600:
        module.fail_json(msg="tool_timeout_s: 0 to 600 seconds, not {}".format(options["tool_timeout_s"]))
    for path in options["paths"]:
        if not os.path.isabs(path):
            module.fail_json(msg=f"paths: {path!r} is no absolute path")
    module.exit_json(changed=False, gathered=gather(options))


if __name__ == "__main__":
    main()
