# SPDX-License-Identifier: Apache-2.0
"""Read dpkg's state without apt's Python bindings, which a bare node does not have (Python 3.8+).

The modules rackproof_packages and rackproof_facts (subset `provision`) call :func:`packages`, which returns
the installed packages with their versions.
"""

from __future__ import annotations

import glob
import os
import re

from ansible.module_utils.rackproof_tools import read

STATUS_BYTES = 256 * 1024 * 1024
"""Largest number of bytes to read of dpkg's list of packages."""
FIELDS = re.compile(r"^(Package|Status|Version|Architecture):[ \t]*(.*?)[ \t]*$", re.M)


def packages(path="/var/lib/dpkg/status"):
    """Return the installed packages by name, and the names of the incompletely installed ones.

    Each package has ``version`` and ``held``. Packages of other architectures are named NAME:ARCHITECTURE.
    Both results are empty on a system without dpkg. If dpkg's list is missing or empty, the only incomplete
    "name" is a text that reports this.
    """
    installed, broken = {}, []
    if not os.path.isdir(os.path.dirname(path)):
        return installed, broken
    native = architecture()
    for paragraph in read(path, STATUS_BYTES).split("\n\n"):
        fields = dict(FIELDS.findall(paragraph))
        wish, flag, state = [*fields.get("Status", "").split(), "", "", ""][:3]
        name = fields.get("Package", "")
        if name and fields.get("Architecture", "") not in ("all", native):
            name = f"{name}:{fields.get('Architecture')}"
        if not name or state in ("not-installed", "config-files"):
            continue
        if state == "installed" and flag == "ok":
            installed[name] = {"version": fields.get("Version", ""), "held": wish == "hold"}
        else:
            broken.append(name)
    if not installed and not broken:
        broken.append("all (dpkg's list is missing or empty)")
    return installed, sorted(broken)


def architecture():
    """Return the node's architecture as dpkg names it, such as amd64."""
    known = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64el", "i686": "i386", "armv7l": "armhf"}
    listed = read("/var/lib/dpkg/arch-native", 64) or read("/var/lib/dpkg/arch", 256).split("\n")[0]
    return listed.strip() or known.get(os.uname().machine, os.uname().machine)


def interrupted(folder="/var/lib/dpkg/updates"):
    """Return whether dpkg has unfinished work, because it was interrupted or is at work now."""
    return bool(glob.glob(os.path.join(folder, "[0-9]*")))


def lock_holder(path="/var/lib/dpkg/lock-frontend"):
    """Return the holder of the lock on a file as "NAME (process ID)", or ''. Do not take the lock."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in read("/proc/locks").splitlines():
        fields = line.split()
        if wanted in fields and "->" not in fields:
            pid = fields[fields.index(wanted) - 1]
            return f"{read(f'/proc/{pid}/comm', 64) or 'unknown'} (process {pid})"
    return ""


def kernels():
    """Return the releases of the installed kernels."""
    return sorted(path[len("/boot/vmlinuz-") :] for path in glob.glob("/boot/vmlinuz-*"))
