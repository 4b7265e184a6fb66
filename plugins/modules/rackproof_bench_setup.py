#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402  (the text for ansible-doc comes first, as in every module)
"""Set a node up for one point of an experiment of bench.yml, and remove the setup (standard library only).

Begin with :func:`set_up_node`, which calls :func:`set_network` and :func:`prepare_storage`. It returns the
new setup, or the setup of an earlier call for the same run. :func:`remove_setup` removes the overlay network.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_bench_setup
short_description: Set up a node for one point of an experiment, and undo the setup
description:
  - Makes the network that a point names, and prepares its storage. V(overlay) is a VXLAN between the nodes
    of the run, over the addresses in O(nodes), with unicast entries for each of them and no learning.
    V(host) makes no network.
  - The observed state and the changes are written to C(point.json) in O(folder) and returned raw. If a job
    was started in that folder, the call only returns C(point.json), so that the job keeps its network and
    its cache. While another job holds one of O(locks), the module fails and changes nothing.
  - O(state=absent) removes the overlay of this run. O(state=present) first removes an overlay of any run. If
    neither follows, a timer of systemd on the node removes the overlay after O(expires_s).
  - V(cold) makes the kernel drop the pages of the data, by C(posix_fadvise) for each file. C(mincore) then
    measures the share of a sample that is still in memory. With s3fs, the cache is deleted and the file
    system is mounted again.
options:
  folder:
    description: Absolute path of the run's folder on the node. Created when needed.
    type: path
    required: true
  state:
    description: V(present) sets the node up. V(absent) returns the current setup and removes the overlay.
    type: str
    choices: [present, absent]
    default: present
  node:
    description: Name of this node in O(nodes).
    type: str
    required: true
  network:
    description: Network of the run.
    type: str
    choices: [host, overlay]
    default: host
  nodes:
    description: Name and address of every node of the run, in the order of their ranks.
    type: list
    elements: dict
    required: true
    options:
      name: {description: Name of the node., type: str, required: true}
      address: {description: IPv4 address on the network that the overlay lies on., type: str, required: true}
  subnet:
    description: Addresses of the overlay. No other network of the nodes may use them.
    type: str
    default: 198.19.0.0/16
  vni:
    description: VXLAN network identifier.
    type: int
    default: 7117
  port:
    description: UDP port of the VXLAN.
    type: int
    default: 4789
  expires_s:
    description: Seconds after which the node itself removes the overlay.
    type: int
    default: 86400
  storage:
    description: Kind of the storage of the data, or empty if the run has no data.
    type: str
    choices: ['', local, nfs, s3fs, synthetic]
    default: ''
  data:
    description: Folder of the data.
    type: str
    default: ''
  cache:
    description: V(cold) removes the data from the node's caches, V(warm) reads them once, empty does neither.
    type: str
    choices: ['', cold, warm]
    default: ''
  locks:
    description: Locks that each job of the node holds while it runs, of C(rackproof_job).
    type: list
    elements: str
    default: []
  tool_timeout_s:
    description: Seconds that a tool may take. Mounting and unmounting may take twice as long.
    type: float
    default: 60
attributes:
  check_mode:
    description: Changes nothing and returns nothing.
    support: none
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
notes:
  - Needs root and iproute2 for the overlay.
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Let two nodes train over VXLAN, with data that no node has in memory
  rackproof_bench_setup:
    folder: /var/lib/rackproof/runs/resnet50-20260101-120000
    node: "{{ inventory_hostname }}"
    network: overlay
    nodes:
      - {name: node-01, address: 192.0.2.1}
      - {name: node-02, address: 192.0.2.2}
    storage: s3fs
    data: /mnt/s3/imagenet
    cache: cold

- name: Remove the overlay
  rackproof_bench_setup:
    folder: /var/lib/rackproof/runs/resnet50-20260101-120000
    node: "{{ inventory_hostname }}"
    nodes: []
    state: absent
"""

RETURN = r"""
point:
  description: Observed state and changes, as raw text of the node. rackproof.jobs.bench.node_setup reads it.
  returned: always
  type: dict
  contains:
    node: {description: Name of this node., type: str, returned: present}
    network: {description: Requested kind., type: str, returned: present}
    interface: {description: Interface that leads to the other nodes., type: str, returned: present}
    address: {description: Own address on that network., type: str, returned: present}
    peers: {description: Name and address of each node on that network., type: list, returned: present}
    link: {description: Answer of C(ip -j -d link show) before the run., type: dict, returned: present}
    routes: {description: Device by which each other node is reached., type: dict, returned: present}
    storage: {description: Mount, options, and state of the cache., type: dict, returned: present}
    ended: {description: State of the link and its counters after the run., type: dict, returned: absent}
    rendezvous: {description: Notes of rendezvous.py., type: dict, returned: absent}
    removed: {description: Whether the overlay is gone., type: bool, returned: absent}
"""

import ctypes
import fcntl
import ipaddress
import json
import mmap
import os
import re
import shutil
import socket
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rackproof_tools import node_environment

INTERFACE = "rackproof0"
"""Name of the overlay's interface on every node. Any interface of this name is Rackproof's."""
TIMER = "rackproof-overlay"
"""Name of the systemd timer that removes the overlay if the controller does not come back."""
VXLAN_HEADER = 50
"""Bytes that VXLAN adds to each packet."""
MOST_FILES = 5_000_000
"""Largest number of files of a data set to read. With more files, the state of the cache is unknown."""
SAMPLED_FILES = 256
"""The number of files whose pages in memory are counted."""
LIMITS = {"tool_s": 60}
"""Largest time of a call of a tool in seconds. The module's option replaces it."""


class PointError(Exception):
    """A problem that the operator must fix. The text names the problem and its place."""


def run_tool(*argv, factor=1):
    """Run a tool, within its time limit times a factor. Return its exit status, stdout and stderr."""
    limit_s = LIMITS["tool_s"] * factor
    try:
        process = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            env={**node_environment(), "LC_ALL": "C"},
            check=False,
        )
    except FileNotFoundError:
        return 127, "", f"{argv[0]} is not installed"
    except subprocess.TimeoutExpired:
        return 124, "", f"{argv[0]} gave no answer within {limit_s:g} s"
    return (
        process.returncode,
        process.stdout.decode(errors="replace"),
        process.stderr.decode(errors="replace").strip(),
    )


def require_tool(*argv):
    """Run a tool that must succeed. Return its stdout."""
    status, output, wrong = run_tool(*argv)
    if status != 0:
        raise PointError(f"`{' '.join(argv)}` failed ({status}): {wrong or output.strip() or 'no message'}")
    return output


def query_json(*argv):
    """Return the first object of an answer in JSON, or {}."""
    status, output, _ = run_tool(*argv)
    try:
        answer = json.loads(output) if status == 0 else []
    except ValueError:
        answer = []
    return answer[0] if isinstance(answer, list) and answer and isinstance(answer[0], dict) else {}


# Network


def interface_counters(interface):
    """Return the bytes that an interface received and sent, or None for both if it has no counters."""
    with open("/proc/net/dev") as stream:
        for line in stream:
            name, colon, rest = line.partition(":")
            fields = rest.split()
            if colon and name.strip() == interface and len(fields) > 8:
                return {"rx": int(fields[0]), "tx": int(fields[8])}
    return {"rx": None, "tx": None}


def has_interface(interface):
    """Return whether an interface exists.

    /sys is not used, because it may belong to another network namespace.
    """
    return interface in [name for _, name in socket.if_nameindex()]


def describe_interface(interface):
    """Return the kernel's description of an interface, with kind, MTU, state and VXLAN settings."""
    link = query_json("ip", "-j", "-d", "link", "show", "dev", interface) if interface else {}
    about = link.get("linkinfo", {})
    data = about.get("info_data", {})
    return {
        "interface": link.get("ifname", ""),
        "mtu": link.get("mtu", 0),
        "flags": link.get("flags", []),
        "kind": about.get("info_kind", ""),
        "vni": data.get("id", 0),
        "over": data.get("link", ""),
        "bytes": interface_counters(interface) if interface else {},
    }


def device_to(address):
    """Return the interface that leads to an address, or '' if none does."""
    return query_json("ip", "-j", "route", "get", address).get("dev", "")


def device_of(address):
    """Return the interface with an address, or ''."""
    status, output, _ = run_tool("ip", "-j", "addr", "show")
    try:
        links = json.loads(output) if status == 0 else []
    except ValueError:
        links = []
    for link in links:
        for entry in link.get("addr_info", []):
            if entry.get("local") == address:
                return link.get("ifname", "")
    return ""


def overlay_addresses(subnet, count):
    """Return the overlay's addresses in the order of ranks."""
    network = ipaddress.ip_network(subnet)
    if network.num_addresses - 2 < count:
        raise PointError(f"the overlay's subnet {subnet} has no room for {count} nodes")
    return [str(network.network_address + 1 + index) for index in range(count)]


def refuse_other_jobs(locks):
    """Refuse a node on which a job runs, because the setup would change the job's network and storage."""
    for path in filter(None, locks):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # A job could not hold it either. The start of the job reports this.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PointError(
                f"the node is busy: another job holds {path}; wait for it, then start again"
            ) from None
        finally:
            os.close(descriptor)


def run_of(options):
    """Return the name of the run, which the kernel keeps with the overlay."""
    return os.path.basename(os.path.normpath(options["folder"]))[:200]


def remove_overlay(run=""):
    """Remove the overlay if it exists. Return whether it was removed.

    If ``run`` names a run, the overlay of another run stays.
    """
    if run and has_interface(INTERFACE):
        owner = query_json("ip", "-j", "-d", "link", "show", "dev", INTERFACE).get("ifalias", "")
        if owner not in ("", run):
            return False
    run_tool("systemctl", "stop", f"{TIMER}.timer", f"{TIMER}.service")
    if not has_interface(INTERFACE):
        return False
    require_tool("ip", "link", "del", "dev", INTERFACE)
    return True


def make_overlay(options, over, own_index, addresses):
    """Make the VXLAN between the nodes. Return whether a timer will remove it."""
    nodes, network = options["nodes"], ipaddress.ip_network(options["subnet"])
    status, output, _ = run_tool("ip", "-j", "addr", "show")
    for link in json.loads(output) if status == 0 else []:
        for address in link.get("addr_info", []):
            taken = address.get("family") == "inet" and ipaddress.ip_address(address.get("local")) in network
            if taken and link.get("ifname") != INTERFACE:
                raise PointError(
                    f"{options['subnet']} is in use here ({link.get('ifname')} has {address.get('local')}): "
                    "give the overlay addresses of its own (bench_overlay_subnet)"
                )
    mtu = describe_interface(over)["mtu"] - VXLAN_HEADER
    # Set up the removal first. From now on, the node removes the overlay itself, even after a failure.
    timed = run_tool(
        *("systemd-run", "--quiet", f"--unit={TIMER}", f"--on-active={options['expires_s']}"),
        *("--timer-property=AccuracySec=1s", shutil.which("ip") or "ip", "link", "del", "dev", INTERFACE),
    )
    try:
        require_tool(
            *("ip", "link", "add", INTERFACE, "mtu", str(mtu), "type", "vxlan", "id", str(options["vni"])),
            *(
                "dstport",
                str(options["port"]),
                "local",
                nodes[own_index]["address"],
                "dev",
                over,
                "nolearning",
            ),
        )
        require_tool("ip", "link", "set", "dev", INTERFACE, "alias", run_of(options))
        for index, node in enumerate(nodes):
            if index != own_index:
                require_tool(
                    *("bridge", "fdb", "append", "00:00:00:00:00:00", "dev", INTERFACE),
                    *("dst", node["address"]),
                )
        require_tool("ip", "addr", "add", f"{addresses[own_index]}/{network.prefixlen}", "dev", INTERFACE)
        require_tool("ip", "link", "set", "dev", INTERFACE, "up")
    except PointError:
        remove_overlay()
        raise
    return timed[0] == 0


def set_network(options):
    """Set up the network of the run. Return a description with its interface, addresses, link and routes."""
    nodes = options["nodes"]
    names = [node["name"] for node in nodes]
    if options["node"] not in names:
        raise PointError(f"{options['node']} is none of the run's nodes ({', '.join(names)})")
    index = names.index(options["node"])
    own = nodes[index]["address"]
    over = device_of(own)
    if not over:
        raise PointError(
            f"no interface here has the address {own}, which the facts gave for it: start again, or name the "
            "interface for training (bench_fabric_interface)"
        )
    left_over = remove_overlay()
    setup = {"left_over": left_over, "over": over}
    addresses = [node["address"] for node in nodes]
    interface = over
    if options["network"] == "overlay":
        addresses = overlay_addresses(options["subnet"], len(nodes))
        setup["bounded"] = make_overlay(options, over, index, addresses)
        interface = INTERFACE
    pairs = [(name, addresses[rank]) for rank, name in enumerate(names)]
    setup.update(
        network=options["network"],
        node=options["node"],
        interface=interface,
        address=addresses[index],
        peers=[{"name": name, "address": address} for name, address in pairs],
        link=describe_interface(interface),
        routes={name: device_to(address) for name, address in pairs if name != options["node"]},
    )
    return setup


# Storage


def mount_of(path):
    """Return mount point, type, source and options of the file system that holds a path."""
    real = os.path.realpath(path)
    best = None
    with open("/proc/self/mountinfo") as stream:
        for line in stream:
            left, _, right = line.partition(" - ")
            fields, more = left.split(), right.split()
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            # A later line replaces an earlier one.
            if inside and (best is None or len(point) >= len(best["point"])):
                best = {
                    "point": point,
                    "type": more[0],
                    "source": more[1],
                    "options": f"{fields[5]},{more[2]}",
                }
    return best or {}


def unit_of(point):
    """Return the systemd unit of a mount point, its source and its options, or '' for all three."""
    status, output, _ = run_tool("systemd-escape", "--path", "--suffix=mount", point)
    unit = output.strip() if status == 0 else ""
    if not unit:
        return "", "", ""
    units = {}
    try:
        with open(f"/etc/systemd/system/{unit}") as stream:
            for line in stream:
                key, equals, value = line.strip().partition("=")
                if equals:
                    units[key] = value
    except OSError:
        return "", "", ""
    return unit, units.get("What", ""), units.get("Options", "")


def files_below(folder):
    """Return the files of the data, and why the list is incomplete, or ''."""
    paths, errors = [], []
    for path, folders, names in os.walk(folder, onerror=errors.append):
        # Each file system has this folder, which only its own root can read.
        folders[:] = sorted(name for name in folders if name != "lost+found")
        if len(paths) + len(names) > MOST_FILES:
            return paths, f"{folder} has more than {MOST_FILES} files, and the others were left as they are"
        paths += [os.path.join(path, name) for name in sorted(names)]
    if errors:
        return paths, f"{errors[0].filename} cannot be read: {errors[0].strerror}"
    return paths, ""


def drop_file_pages(paths):
    """Request that the kernel drops the cached pages of files."""
    os.sync()
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_bytes(paths):
    """Return the bytes in memory and all bytes of some files, or None if unknown."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    in_memory = total = 0
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            return None
        try:
            size = os.fstat(descriptor).st_size
            if not size:
                continue
            pages = -(-size // mmap.PAGESIZE)
            start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
            if start in (None, ctypes.c_void_p(-1).value):
                return None
            seen = ctypes.create_string_buffer(pages)
            status = libc.mincore(start, size, seen)
            libc.munmap(start, size)
            if status != 0:
                return None
            in_memory += sum(byte & 1 for byte in seen.raw) * mmap.PAGESIZE
            total += pages * mmap.PAGESIZE
        finally:
            os.close(descriptor)
    return in_memory, total


def remount_storage(unit, source, options, point):
    """Unmount s3fs, delete its cache, and mount it again. Return why that failed, or ''."""
    if not unit:
        return f"{point} was not mounted by the role storage, so it is not remounted"
    status, _, wrong = run_tool("systemctl", "stop", unit, factor=2)
    if status != 0 or os.path.ismount(point):
        return f"{point} cannot be unmounted: {wrong or 'it is in use'}"
    cache = re.search(r"(?:^|,)use_cache=([^,]+)", options)
    bucket = source.partition(":")[0]
    if cache and re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z", bucket):
        for name in (bucket, f".{bucket}.stat", f".{bucket}.mirror"):
            shutil.rmtree(os.path.join(cache[1], name), ignore_errors=True)
    status, _, wrong = run_tool("systemctl", "start", unit, factor=2)
    if status != 0 or not os.path.ismount(point):
        raise PointError(f"{point} could not be mounted again: {wrong}; see `systemctl status {unit}`")
    return ""


def load_file(path):
    """Read a file, so that it is in the page cache. Return its number of bytes."""
    count = 0
    with open(path, "rb") as stream:
        while True:
            data = stream.read(1 << 20)
            if not data:
                return count
            count += len(data)


def drop_pages(paths):
    """Drop files from the page cache.

    Return the bytes of a sample that remain in it, and all bytes of the sample, or None if unknown.
    """
    # Try several times, because pages that were just read may not yet be on the list that is emptied.
    for _ in range(3):
        drop_file_pages(paths)
        left = resident_bytes(paths[:: max(1, len(paths) // SAMPLED_FILES)])
        if left is None:
            return None
        if left[0] == 0:
            break
        time.sleep(0.5)
    return list(left)


def prepare_storage(options):
    """Find the storage of the data, and treat its cache as requested. Return a description of both."""
    kind, folder, cache = options["storage"], options["data"], options["cache"]
    storage = {"kind": kind, "folder": folder, "cache": cache}
    if kind in ("", "synthetic"):
        return storage
    if not os.path.isdir(folder):
        raise PointError(
            f"{folder} is not a folder: stage the data there, or name another one in bench_storages"
        )
    mount = mount_of(folder)
    unit, source, mount_options = unit_of(mount.get("point", ""))
    storage.update(mount=mount, unit=unit, unit_source=source, unit_options=mount_options)
    if not cache:
        return storage
    began = time.monotonic()
    if cache == "warm":
        paths, storage["trouble"] = files_below(folder)
        storage["read_bytes"] = sum(map(load_file, paths))
    elif kind == "s3fs":
        storage["trouble"] = remount_storage(unit, source, mount_options, mount["point"])
        storage["how"] = "mounted again, cache deleted"
    else:
        paths, storage["trouble"] = files_below(folder)
        storage["resident"] = drop_pages(paths)
        storage["how"] = "posix_fadvise"
    storage["seconds"] = round(time.monotonic() - began, 3)
    return storage


# Setup and removal


def read_json(path):
    """Return the object in a JSON file, or None."""
    try:
        with open(path) as stream:
            document = json.load(stream)
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def set_up_node(options):
    """Set the node up, or return its earlier setup for this run."""
    path = os.path.join(options["folder"], "point.json")
    earlier = read_json(path)
    begun = os.path.exists(os.path.join(options["folder"], "state.json"))
    if earlier is not None and begun:
        return {"changed": False, "point": earlier}
    refuse_other_jobs(options["locks"])
    storage = prepare_storage(options)
    point = {**set_network(options), "storage": storage}
    try:
        os.makedirs(options["folder"], exist_ok=True)
        with open(path + ".part", "w") as stream:
            json.dump(point, stream)
        os.replace(path + ".part", path)
    except OSError as error:
        remove_overlay()
        raise PointError(f"{path} cannot be written: {error.strerror}") from error
    return {"changed": True, "point": point}


def remove_setup(options):
    """Remove the overlay of the run. Return the setup, with the state of its network before the removal."""
    point = read_json(os.path.join(options["folder"], "point.json")) or {}
    if point:
        point["ended"] = describe_interface(str(point.get("interface", "")))
        point["rendezvous"] = read_json(os.path.join(options["folder"], "rendezvous.json"))
    changed = remove_overlay(run_of(options))
    point["removed"] = not has_interface(INTERFACE)
    return {"changed": changed, "point": point}


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "node": {"type": "str", "required": True},
            "network": {"type": "str", "choices": ["host", "overlay"], "default": "host"},
            "nodes": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                },
            },
            "subnet": {"type": "str", "default": "198.19.0.0/16"},
            "vni": {"type": "int", "default": 7117},
            "port": {"type": "int", "default": 4789},
            "expires_s": {"type": "int", "default": 86400},
            "storage": {
                "type": "str",
                "choices": ["", "local", "nfs", "s3fs", "synthetic"],
                "default": "",
            },
            "data": {"type": "str", "default": ""},
            "cache": {"type": "str", "choices": ["", "cold", "warm"], "default": ""},
            "locks": {"type": "list", "elements": "str", "default": []},
            "tool_timeout_s": {"type": "float", "default": 60},
        },
    )
    options = module.params
    LIMITS["tool_s"] = options["tool_timeout_s"]
    if not os.path.isabs(options["folder"]):
        module.fail_json(msg="folder: an absolute path is needed, not {!r}".format(options["folder"]))
    try:
        result = {"present": set_up_node, "absent": remove_setup}[options["state"]](options)
    except PointError as error:
        module.fail_json(msg="{}: {}".format(options["node"], error))
    except (ValueError, OSError) as error:
        module.fail_json(msg="{}: {}: {}".format(options["node"], type(error).__name__, error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
