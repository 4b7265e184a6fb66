#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402  (what ansible-doc shows stands first, as in every module)
"""Gather the raw facts of a node in one call (standard library only, Python 3.8+, Linux)."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_facts
short_description: Gather the raw facts of a node
description:
  - Gathers what a run's record has to say about a node. Nothing is parsed here beyond trivial splitting;
    the controller does that (C(rackproof.nodes.facts)).
  - Every tool is bounded in time and output. A tool that is absent, fails or hangs is a fact, not an error.
options:
  tool_timeout_s:
    description: Seconds that each tool may take.
    type: float
    default: 20
  pythons:
    description: Interpreters to ask for packages, name to path.
    type: dict
    default: {}
  packages:
    description: Names of packages to look for, by name of the interpreter.
    type: dict
    default: {}
  paths:
    description: Paths whose file system's size and free space are wanted. They need not exist yet.
    type: list
    elements: str
    default: []
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
- name: Gather the facts of the node
  rackproof_facts:
    pythons: {torch: /opt/venv/bin/python}
    packages: {torch: [torch, numpy]}
    paths: [/var/lib/rackproof]
  register: facts
"""

RETURN = r"""
facts:
  description: The raw facts.
  returned: always
  type: dict
  contains:
    hostname: {description: Host name., type: str, returned: always}
    python: {description: Interpreter that modules run under., type: str, returned: always}
    addresses: {description: IP addresses without loopback and link-local., type: list, returned: always}
    kernel: {description: Kernel release., type: str, returned: always}
    machine: {description: Machine architecture., type: str, returned: always}
    boot_id: {description: Id of this boot., type: str, returned: always}
    cpu_count: {description: Logical CPUs that processes may use., type: int, returned: always}
    files: {description: Contents of small files., type: dict, returned: always}
    dmi: {description: Readable entries of /sys/class/dmi/id., type: dict, returned: always}
    tools:
      description:
        - By tool, C(status) (V(ok), V(absent), V(failed), V(no_driver), V(hung)), C(rc), C(stdout),
          C(stderr), C(seconds) and C(truncated).
      type: dict
      returned: always
    libraries: {description: Files that the names of shared libraries lead to., type: dict, returned: always}
    infiniband: {description: By device its firmware; type and port states., type: dict, returned: always}
    pythons:
      description: By interpreter a result like a tool's, with C(said) (version, packages, torch).
      type: dict
      returned: always
    paths: {description: By path; C(total_bytes) and C(free_bytes) or C(error)., type: dict, returned: always}
    memlock_bytes: {description: Limit of locked memory; -1 without limit., type: int, returned: always}
    shm_bytes: {description: Size of /dev/shm., type: int, returned: always}
"""

import json
import os
import resource
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rackproof_tools import FILE_BYTES, ask, read, space

TOOLS = {
    "lscpu": ["lscpu"],
    "ip": ["ip", "-oneline", "address", "show"],
    "nvidia_smi_xml": ["nvidia-smi", "-q", "-x"],
    "nvidia_smi_topo": ["nvidia-smi", "topo", "-m"],
    "nvcc": ["nvcc", "--version"],
    "ofed_info": ["ofed_info", "-s"],
    "mpirun": ["mpirun", "--version"],
    "slurm": ["sinfo", "--version"],
    "docker": ["docker", "--version"],
    "podman": ["podman", "--version"],
    "enroot": ["enroot", "version"],
    "nvidia_ctk": ["nvidia-ctk", "--version"],
    "fabricmanager": ["nv-fabricmanager", "--version"],
    "ldconfig": ["ldconfig", "-p"],
}
LIBRARIES = ("libnccl.so", "libcudnn.so", "libcudart.so", "libibverbs.so", "libmpi.so")
FILES = {
    "os_release": "/etc/os-release",
    "cpuinfo": "/proc/cpuinfo",
    "meminfo": "/proc/meminfo",
    "nvidia_driver": "/proc/driver/nvidia/version",
    "cuda": "/usr/local/cuda/version.json",
    "dgx": "/etc/dgx-release",
    # What was applied since the boot, by role node_tuning; what the kernel has is beside it.
    "tuning": "/run/rackproof/tuning.json",
    "governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "transparent_hugepages": "/sys/kernel/mm/transparent_hugepage/enabled",
    "command_line": "/proc/cmdline",
}
DMI = (
    "bios_version",
    "board_name",
    "board_serial",
    "chassis_serial",
    "chassis_vendor",
    "product_name",
    "product_serial",
    "product_sku",
    "sys_vendor",
)
# Runs inside the interpreter that is asked; prints one line of JSON.
QUESTION = r"""
import json, platform, sys
said = {"version": platform.python_version(), "packages": {}, "torch": {}}
try:
    from importlib.metadata import version, PackageNotFoundError
except ImportError:
    said["error"] = "no importlib.metadata: needs Python 3.8"
else:
    for name in json.loads(sys.argv[1]):
        try:
            said["packages"][name] = version(name)
        except PackageNotFoundError:
            said["packages"][name] = None
    if said["packages"].get("torch"):
        try:
            import torch
            said["torch"] = {
                "version": str(torch.__version__),
                "cuda": torch.version.cuda,
                "hip": getattr(torch.version, "hip", None),
                "cudnn": torch.backends.cudnn.version(),
                "nccl": None,
                "devices": torch.cuda.device_count(),
            }
            if torch.version.cuda:
                said["torch"]["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        except Exception as error:
            said["torch"]["error"] = "{}: {}".format(type(error).__name__, error)[:500]
print("\n" + json.dumps(said))
"""


def interpreter(path, packages, timeout_s):
    """Ask an interpreter for its version and packages."""
    result = ask([path, "-c", QUESTION, json.dumps(packages)], timeout_s, bounded=False)
    if result["status"] == "ok":
        try:
            result["said"] = json.loads(result.pop("stdout").strip().splitlines()[-1])
        except (ValueError, IndexError):
            result["status"] = "failed"
    return result


def addresses(ip_output):
    """Return the node's addresses: from the lines of ``ip -oneline``, else what the resolver says."""
    found = []
    for line in ip_output.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[2] in ("inet", "inet6"):
            found.append(fields[3].split("/")[0])
    if not found:
        with suppress(OSError):
            found = [entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None)]
    kept = [one for one in found if not one.startswith(("127.", "169.254.", "fe80:")) and one != "::1"]
    return sorted(set(kept), key=kept.index)


def libraries(listed):
    """Return the files that the wanted libraries' names lead to, from the lines of ``ldconfig -p``."""
    found = {}
    for line in listed.splitlines():
        name, arrow, path = line.partition(" => ")
        if arrow and name.strip().startswith(LIBRARIES):
            found.setdefault(name.split()[0], os.path.realpath(path.strip()))
    return found


def infiniband(root="/sys/class/infiniband"):
    """Return firmware, type and port states of each InfiniBand or RoCE device."""
    found = {}
    with suppress(OSError):
        for device in sorted(os.listdir(root)):
            folder = os.path.join(root, device)
            ports = os.path.join(folder, "ports")
            found[device] = {
                name: read(os.path.join(folder, name), 256) for name in ("fw_ver", "hca_type", "board_id")
            }
            found[device]["ports"] = {
                port: {
                    name: read(os.path.join(ports, port, name), 256)
                    for name in ("state", "rate", "link_layer")
                }
                for port in (sorted(os.listdir(ports)) if os.path.isdir(ports) else [])
            }
    return found


def memlock():
    """Return the limit of locked memory in bytes, -1 without limit."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft


def gather(options):
    """Return the raw facts; the tools run at the same time."""
    timeout_s = options["tool_timeout_s"]
    with ThreadPoolExecutor(8) as pool:
        tools = {name: pool.submit(ask, argv, timeout_s) for name, argv in TOOLS.items()}
        pythons = {
            name: pool.submit(interpreter, str(path), options["packages"].get(name, []), 3 * timeout_s)
            for name, path in options["pythons"].items()
        }
        tools = {name: future.result() for name, future in tools.items()}
        pythons = {name: future.result() for name, future in pythons.items()}
    # Thousands of lines, of which few matter.
    listed = tools.pop("ldconfig").get("stdout", "")
    system = os.uname()
    return {
        "hostname": system.nodename,
        "python": sys.executable,
        "addresses": addresses(tools["ip"].get("stdout", "")),
        "kernel": system.release,
        "machine": system.machine,
        "boot_id": read("/proc/sys/kernel/random/boot_id"),
        "cpu_count": len(os.sched_getaffinity(0)),
        "files": {
            name: read(path, 8192 if name == "cpuinfo" else FILE_BYTES) for name, path in FILES.items()
        },
        "dmi": {name: read(os.path.join("/sys/class/dmi/id", name), 4096) for name in DMI},
        "tools": tools,
        "libraries": libraries(listed),
        "infiniband": infiniband(),
        "pythons": pythons,
        "paths": {path: space(path) for path in options["paths"]},
        "memlock_bytes": memlock(),
        "shm_bytes": space("/dev/shm").get("total_bytes", 0),
    }


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "tool_timeout_s": {"type": "float", "default": 20},
            "pythons": {"type": "dict", "default": {}},
            "packages": {"type": "dict", "default": {}},
            "paths": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    options = module.params
    if not 0 < options["tool_timeout_s"] <= 600:
        module.fail_json(msg=f"tool_timeout_s: 0 to 600 seconds, not {options['tool_timeout_s']}")
    for name, wanted in options["packages"].items():
        if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
            module.fail_json(msg=f"packages: a list of names is needed for {name!r}")
        if name not in options["pythons"]:
            module.fail_json(msg=f"packages: {name!r} is no interpreter named in pythons")
    module.exit_json(changed=False, facts=gather(options))


if __name__ == "__main__":
    main()
