# SPDX-License-Identifier: Apache-2.0
"""Gather subset `record` of rackproof_facts, for a run's record (Python 3.8+, Linux).

The module calls :func:`gather`, which returns the node's hardware, libraries, addresses and interpreters.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ansible.module_utils.rackproof_tools import (
    FILE_BYTES,
    VERSION_TOOLS,
    ask,
    asks,
    dmi,
    find,
    list_folder,
    locked_memory_bytes,
    read,
    read_files,
    shared_memory_bytes,
    space,
)

TOOLS = {
    "lscpu": ["lscpu"],
    "ip": ["ip", "-oneline", "address", "show"],
    "nvidia_smi_xml": ["nvidia-smi", "-q", "-x"],
    "nvidia_smi_topo": ["nvidia-smi", "topo", "-m"],
    "nvcc": ["nvcc", "--version"],
    "mpirun": ["mpirun", "--version"],
    "podman": ["podman", "--version"],
    **VERSION_TOOLS,
    "ldconfig": ["ldconfig", "-p"],
}
# Libraries that runtimes need (workloads/*/runtime.json), and libraries whose files a record names.
RUNTIME_LIBRARIES = ("libgomp.so.1", "libquadmath.so.0")
LIBRARIES = ("libnccl.so", "libcudnn.so", "libcudart.so", "libibverbs.so", "libmpi.so")
FILES = {
    "os_release": "/etc/os-release",
    "machine_id": "/etc/machine-id",
    "cpuinfo": "/proc/cpuinfo",
    "meminfo": "/proc/meminfo",
    "nvidia_driver": "/proc/driver/nvidia/version",
    "cuda": "/usr/local/cuda/version.json",
    "dgx": "/etc/dgx-release",
    # Role node_tuning records here the settings that it made since the boot. The next entries are the
    # kernel's values.
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
# The queried interpreter runs this program, which prints one line of JSON.
QUESTION = r"""
import json, platform, sys
said = {"version": platform.python_version(), "packages": {}, "imports": {}, "torch": {}}
from importlib.util import find_spec
for name in json.loads(sys.argv[2]):
    try:
        said["imports"][name] = find_spec(name) is not None
    except Exception:
        said["imports"][name] = False
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


def ask_interpreter(path, packages, imports, timeout_s):
    """Ask an interpreter for its version and packages, and whether modules can be found."""
    argv = [path, "-c", QUESTION, json.dumps(packages), json.dumps(imports)]
    result = ask(argv, timeout_s, bounded=False)
    if result["status"] == "ok":
        try:
            result["said"] = json.loads(result.pop("stdout").strip().splitlines()[-1])
        except (ValueError, IndexError):
            result["status"] = "failed"
    return result


def node_addresses(ip_output):
    """Return the node's addresses from the lines of ``ip -oneline``, or else from the resolver."""
    found_addresses = []
    for line in ip_output.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[2] in ("inet", "inet6"):
            found_addresses.append(fields[3].split("/")[0])
    if not found_addresses:
        with suppress(OSError):
            found_addresses = [entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None)]
    kept = [
        address
        for address in found_addresses
        if not address.startswith(("127.", "169.254.", "fe80:")) and address != "::1"
    ]
    return sorted(set(kept), key=kept.index)


def library_files(listed):
    """Return the file of each library by its name, from the lines of ``ldconfig -p``."""
    names = {}
    for line in listed.splitlines():
        name, arrow, path = line.partition(" => ")
        if arrow and name.strip().startswith(LIBRARIES):
            names.setdefault(name.split()[0], os.path.realpath(path.strip()))
    return names


def infiniband_devices(root="/sys/class/infiniband"):
    """Return firmware, type and port states of each InfiniBand or RoCE device."""
    devices = {}
    for device in list_folder(root):
        folder = os.path.join(root, device)
        ports = os.path.join(folder, "ports")
        devices[device] = read_files(folder, ("fw_ver", "hca_type", "board_id"))
        devices[device]["ports"] = {
            port: read_files(os.path.join(ports, port), ("state", "rate", "link_layer"))
            for port in list_folder(ports)
        }
    return devices


def installed_interpreters():
    """Return the versions of Python that are installed, this one included, from the interpreters' names."""
    own = "{}.{}".format(*sys.version_info[:2])
    return sorted({own, *(f"3.{minor}" for minor in range(8, 20) if find(f"python3.{minor}"))})


def gather(options):
    """Return the raw facts. The tools run at the same time."""
    timeout_s = options["tool_timeout_s"]
    with ThreadPoolExecutor(8) as pool:
        asked = {name: pool.submit(asks(argv), argv, timeout_s) for name, argv in TOOLS.items()}
        interpreters = {
            name: pool.submit(
                ask_interpreter,
                str(path),
                options["packages"].get(name, []),
                options["imports"].get(name, []),
                3 * timeout_s,
            )
            for name, path in options["pythons"].items()
        }
        tools = {name: future.result() for name, future in asked.items()}
        pythons = {name: future.result() for name, future in interpreters.items()}
    # Only the lines of a few libraries are needed, and ldconfig prints thousands.
    listed = tools.pop("ldconfig").get("stdout", "")
    system = os.uname()
    return {
        "hostname": system.nodename,
        "python": sys.executable,
        "addresses": node_addresses(tools["ip"].get("stdout", "")),
        "kernel": system.release,
        "machine": system.machine,
        "boot_id": read("/proc/sys/kernel/random/boot_id"),
        "cpu_count": len(os.sched_getaffinity(0)),
        "files": {
            name: read(path, 8192 if name == "cpuinfo" else FILE_BYTES) for name, path in FILES.items()
        },
        "dmi": dmi(DMI),
        "tools": tools,
        "libraries": library_files(listed),
        "loadable": {name: f"\t{name} " in listed for name in RUNTIME_LIBRARIES} if listed else {},
        "interpreters": installed_interpreters(),
        "infiniband": infiniband_devices(),
        "pythons": pythons,
        "programs": {name: shutil.which(name) is not None for name in options["programs"]},
        "paths": {path: space(path) for path in options["paths"]},
        "memlock_bytes": locked_memory_bytes(),
        "shm_bytes": shared_memory_bytes(),
    }
