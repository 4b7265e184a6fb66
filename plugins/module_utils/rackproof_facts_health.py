# SPDX-License-Identifier: Apache-2.0
"""Gather subset `health` of rackproof_facts, which health checks read (Python 3.8+, Linux).

The module calls :func:`gather`, which returns the kernel log, ports, cards, disks and the answers of tools.
"""

from __future__ import annotations

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from math import inf

from ansible.module_utils.rackproof_settling import manages_nvswitches, settle
from ansible.module_utils.rackproof_tools import (
    CLOCK,
    VERSION_TOOLS,
    ask,
    ask_again,
    dmi,
    find,
    in_container,
    list_folder,
    locked_memory_bytes,
    read,
    read_files,
    shared_memory_bytes,
    space,
)

# Tools that query the driver run one after another. If one hangs, all would, and each would leave a
# process behind.
DRIVER = {
    "nvidia_smi_xml": ["nvidia-smi", "-q", "-x"],
    "nvlink_status": ["nvidia-smi", "nvlink", "-s"],
    "nvlink_errors": ["nvidia-smi", "nvlink", "-e"],
}
FAILED_UNITS = ["systemctl", "list-units", "--failed", "--full", "--plain", "--no-legend", "--no-pager"]
"""The command that lists the failed units of systemd."""
UNIT_PROPERTIES = "--property=Id,Names,LoadState,ActiveState,SubState,UnitFileState,ConditionResult,"
UNIT_PROPERTIES += "ConditionTimestampMonotonic"
# slurmctld shows a lost node as idle for minutes. This command gets an answer only if the node's key, clock
# and network work.
CONTROLLER = ["scontrol", "ping"]
CONTROLLER_PAUSES_S = (5, 15, 0)
"""Seconds to wait after each try without an answer."""
# This command prints slurmd's own node name. A slurmd that was started under another node's name answers
# for that node, and every job on two nodes waits for a prolog that ended.
SLURMD = ["scontrol", "show", "slurmd"]
# A kernel log can have tens of thousands of lines. Only lines with one of these words are returned, so
# that a limit on the output loses no fault. The controller decides which lines count, so an extra line
# does no harm. The words are those of rackproof.logs.kernel_events, and a test compares them.
FAULT_WORDS = (
    "nvrm",
    "nvidia",
    "amdgpu",
    "nvme",
    "xid",
    "hardware error",
    "machine check",
    "edac",
    "aer: ",
    "dpc: ",
    "pciehp",
    "pcie ",
    "dmar: ",
    "amd-vi",
    "arm-smmu",
    "memory failure",
    "soft-offlining",
    "power state",
    "header type",
    "mlx5_core",
    "bnxt_en",
    "netdev",
    "error",
    "-fs ",
    "remounting",
    "xfs ",
    "btrfs",
    "md/raid",
    "aborting",
    "bug:",
    "kernel bug",
    "oops",
    "protection fault",
    "unable to handle",
    "lockup",
    "panic",
    "stall",
    "blocked for",
    "failing i/o",
    "beyond end of",
    "not responding",
    "cifs: ",
    "megaraid",
    "mismatch sector",
    "lustre",
    "giving up",
    "broken device",
    "unknown reason",
    "nobody cared",
    "fault_state",
    "out of memory",
    "throttled",
    "segfault",
    "cmci storm",
    "[#",
    "is stuck in",
    "died during",
    "shut down cleanly",
    "unit hang",
    "adapter removed",
    "offline device",
    "dead device",
    "offlined",
    "non-operational",
    "emask",
    ": disabled",
    "guard page",
    "temperature",
    "fail",
    "timed out",
    "timeout",
    "fatal",
    "corrupt",
    "nv_mem",
    "link is ",
    "link down",
    "link up",
)
# journald stores a message at once. If the kernel has messages that are later than journald's newest one by
# more than these seconds, journald does not store messages any more.
JOURNAL_LAG_S = 5.0
SOURCE_STAMP = re.compile(r'"_SOURCE_MONOTONIC_TIMESTAMP"\s*:\s*"(\d{1,18})"')
"""Pattern of the kernel's time of a message in the journal, in microseconds since the boot."""
RING_ERRORS = ["dmesg", "--kernel", "--level=emerg,alert,crit,err"]
"""The command that prints the errors in the kernel's ring."""
OLDEST_BYTES = 4096
"""Number of bytes to read of the journal's oldest messages."""
RING_STAMP = re.compile(r"\[\s*(\d{1,12}\.\d+)\]")
"""Pattern of the time of a message in the kernel's ring, in seconds since the boot."""
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
    "port_rcv_data",
    "port_xmit_data",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
PCI_FILES = ("current_link_speed", "max_link_speed", "current_link_width", "max_link_width")
NETWORK_CLASS = "0x02"
"""Beginning of the PCI class of network cards."""
MELLANOX = "0x15b3"
"""PCI vendor of Mellanox's cards."""


def ask_driver(timeout_s):
    """Run the driver's tools one after another. After one that hangs, the others are not started."""
    answers = {}
    for name, argv in DRIVER.items():
        stuck = any(answer["status"] == "hung" for answer in answers.values())
        answers[name] = {"status": "not_asked"} if stuck else ask_again(argv, timeout_s)
    return answers


def kernel_log(since, timeout_s):
    """Return the kernel's messages since a time that contain a fault word, or have level error or worse.

    The messages come from the journal, or else from all that the kernel keeps.
    """
    # -k would show only this boot. An XID that led to a reboot since the last snapshot would be lost.
    # The time is rounded down, so that no message of its second is lost.
    which, moment = ("_TRANSPORT=kernel", [f"--since=@{int(since)}"]) if since > 0 else ("-k", [])
    journal = ["journalctl", which, "--no-pager", "-o", "short-unix"]
    answer = ask([*journal, *moment], timeout_s, keep=FAULT_WORDS)
    if answer["status"] == "hung":
        return answer
    oldest = {"status": "absent"} if answer["status"] == "absent" else oldest_message(timeout_s)
    if oldest["status"] == "hung":
        return oldest
    # An answer without messages counts only if the journal stores this kernel's messages at all.
    is_silent = answer["status"] == "ok" and moment and has_lines(oldest)
    if has_lines(answer) or is_silent:
        answer["oldest"] = first_line(oldest)
        answer = add_errors(answer, [*journal, *moment, "-p", "err"], timeout_s)
        return answer if answer["status"] == "hung" else add_ring(answer, timeout_s)
    ring = ask(["dmesg"], timeout_s, keep=FAULT_WORDS)
    if ring["status"] == "ok" and not has_lines(ring):
        # A kernel logs as soon as it starts, so an empty log was cleared.
        ring["status"] = "empty"
    if ring["status"] != "ok":
        return ring
    return add_errors(ring, RING_ERRORS, timeout_s)


def oldest_message(timeout_s):
    """Return the answer whose first line is the journal's oldest message of this kernel, as JSON."""
    # systemd supports --lines=+1 only since 254. head ends after a few messages, and then so does journalctl.
    script = f'"$0" "$@" | head -c {OLDEST_BYTES}'
    shown = ["-k", "--no-pager", "-o", "json", "--output-fields=_SOURCE_MONOTONIC_TIMESTAMP"]
    return ask(["sh", "-c", script, find("journalctl"), *shown], timeout_s)


def first_line(answer):
    """Return the first line of a tool's output, or '' if there is none."""
    return next(iter(answer.get("stdout", "").splitlines()), "")


def add_errors(answer, argv, timeout_s):
    """Add the messages of level error or worse to a log, if they can be listed, and return it.

    If the tool hangs, return the tool's answer.
    """
    errors = ask(argv, timeout_s)
    if errors["status"] == "hung":
        return errors
    if errors["status"] == "ok":
        answer["errors"] = errors["stdout"]
        answer["truncated"] = answer["truncated"] or errors["truncated"]
    return answer


def add_ring(answer, timeout_s):
    """Add to the journal's messages the faults that only the kernel's ring has.

    journald may be stuck, and it removes its oldest messages when its space is used up.
    """
    newest = ask(["journalctl", "-k", "--no-pager", "-n", "1", "-o", "json"], timeout_s)
    stamp, oldest = SOURCE_STAMP.search(newest.get("stdout", "")), SOURCE_STAMP.search(answer["oldest"])
    # Only the kernel's own time stamps can be compared. If the journal stores nothing of this boot, there is
    # no message.
    if newest["status"] != "ok" or (stamp is None and newest["stdout"].strip()):
        return answer
    begin_s = int(oldest[1]) / 1e6 if oldest else 0.0 if answer["oldest"] else inf
    end_s = int(stamp[1]) / 1e6 + JOURNAL_LAG_S if stamp else 0.0
    ring = ask(["dmesg", "--kernel"], timeout_s, keep=FAULT_WORDS)
    missed = outside(ring.get("stdout", ""), begin_s, end_s)
    if ring["status"] != "ok" or not missed:
        return answer
    errors = ask(RING_ERRORS, timeout_s)
    # Only the levels of the lines show which ones are errors. Without them, `ring` is not set.
    if errors["status"] == "ok" and "errors" in answer:
        answer["errors"] = joined(answer["errors"], outside(errors["stdout"], begin_s, end_s))
        answer["ring"] = first_line(ring)
    answer["stdout"] = joined(answer["stdout"], missed)
    answer["truncated"] = answer["truncated"] or ring["truncated"] or errors.get("truncated", False)
    return answer


def outside(ring, begin_s, end_s):
    """Return the lines of the kernel's ring that are older or newer than the journal's messages."""
    stamped = ((RING_STAMP.match(line), line) for line in ring.splitlines())
    return [line for found, line in stamped if found and not begin_s <= float(found[1]) <= end_s]


def joined(text, lines):
    """Return a text with further lines."""
    return "\n".join([text.rstrip("\n"), *lines, ""]) if lines else text


def boot_time():
    """Return the start of this system's first process in seconds since 1970, or 0 if unknown.

    A container's kernel is older than the container.
    """
    try:
        with open("/proc/1/stat", encoding="utf-8", errors="replace") as stream:
            ticks = int(stream.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    # btime of /proc/stat is in whole seconds only.
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def slurm_controller(timeout_s):
    """Run `scontrol ping` up to three times, until the controller is up, and return the last answer.

    A controller that is being reconfigured does not answer for a few seconds.
    """
    answer = {"status": "not_asked"}
    for pause_s in CONTROLLER_PAUSES_S:
        answer = ask(CONTROLLER, timeout_s)
        if answer["status"] == "absent" or re.search(r"\bUP\b", answer.get("stdout", "")):
            break
        time.sleep(pause_s)
    return answer


def has_lines(answer):
    """Return whether journalctl printed a message, and not only remarks such as "-- No entries --"."""
    return any(line and not line.startswith("--") for line in answer.get("stdout", "").splitlines())


def port_counters(folder):
    """Return the counters of a port."""
    counts = {}
    for name in COUNTERS:
        text = read(os.path.join(folder, name), 64)
        if text.isdigit():
            counts[name] = int(text)
    return counts


def card_ports(card):
    """Return the ports of a network card, each with whether it manages NVSwitches."""
    folder, nvswitch = os.path.join(card, "ports"), manages_nvswitches(os.path.join(card, "device"))
    return {
        port: {
            "nvswitch": nvswitch,
            "counters": port_counters(os.path.join(folder, port, "counters")),
            **read_files(os.path.join(folder, port), PORT_FILES),
        }
        for port in list_folder(folder)
    }


def card_links(root):
    """Return the PCIe links of Mellanox network cards, without the bridges that manage NVSwitches."""
    devices = {}
    for address in list_folder(root):
        folder = os.path.join(root, address)
        if (
            read(os.path.join(folder, "vendor"), 16) == MELLANOX
            and read(os.path.join(folder, "class"), 16).startswith(NETWORK_CLASS)
            and not manages_nvswitches(folder)
        ):
            devices[address] = read_files(folder, PCI_FILES, 64)
    return devices


def disk_usage(path):
    """Return size, free bytes and inodes of the file system of a path, and whether it is read-only."""
    about = space(path)
    try:
        usage = os.statvfs(path)
    except OSError:
        about["read_only"] = None
        return about
    about["read_only"] = bool(usage.f_flag & os.ST_RDONLY)
    # Both are 0 on file systems that make inodes as they need them (btrfs).
    about["total_inodes"], about["free_inodes"] = usage.f_files, usage.f_favail
    return about


def disk_usages(paths, timeout_s):
    """Return the file systems of paths, and for each one that did not answer in time the answer ``hung``."""
    usage, threads = {}, {}
    for path in paths:
        # A mount without its server blocks every call on it. A daemon thread does not keep the module
        # running.
        threads[path] = threading.Thread(
            target=lambda mount=path: usage.update({mount: disk_usage(mount)}), daemon=True
        )
        threads[path].start()
    deadline = time.monotonic() + timeout_s
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    # A late thread may add its answer at any moment.
    answered = dict(usage)
    return answered, {f"statfs {path}": {"status": "hung"} for path in paths if path not in answered}


def gather(options):
    """Return the raw facts. Tools that do not query the driver run at the same time."""
    timeout_s, sysfs = options["tool_timeout_s"], options["sysfs"]
    cards = os.path.join(sysfs, "class/infiniband")
    settled = settle(options["settle"], cards, boot_time(), timeout_s)
    begin = time.time()
    # If the clock was set back, the kernel's newer messages must still be read.
    since = options["since"] if options["since"] <= begin else 0.0
    with ThreadPoolExecutor(4) as pool:
        asked = pool.submit(ask_driver, timeout_s)
        log = pool.submit(kernel_log, since, timeout_s)
        tools = {name: pool.submit(ask, argv, timeout_s) for name, argv in VERSION_TOOLS.items()}
        units = {
            "failed_units": pool.submit(ask, FAILED_UNITS, timeout_s),
            "units": pool.submit(ask, ["systemctl", "show", UNIT_PROPERTIES, *options["units"]], timeout_s),
            "clock": pool.submit(ask, CLOCK, timeout_s),
            "slurm_controller": pool.submit(slurm_controller, timeout_s),
            "slurmd_status": pool.submit(ask, SLURMD, timeout_s),
        }
        spaces, hung = disk_usages(options["paths"], timeout_s)
        smi = asked.result()
        tools = {name: future.result() for name, future in tools.items()}
        more = {name: future.result() for name, future in units.items()}
        more["kernel_log"] = log.result()
    tools["nvidia_smi_xml"] = smi.pop("nvidia_smi_xml")
    return {
        "facts": {
            "hostname": os.uname().nodename,
            "boot_id": read("/proc/sys/kernel/random/boot_id"),
            "kernel": os.uname().release,
            "machine": os.uname().machine,
            "cpu_count": os.cpu_count(),
            "files": {name: read(path) for name, path in FILES.items()},
            "dmi": dmi(DMI, sysfs),
            "tools": tools,
            "infiniband": {
                card: read_files(os.path.join(cards, card), ("fw_ver", "hca_type"))
                for card in list_folder(cards)
            },
            "memlock_bytes": locked_memory_bytes(),
            "shm_bytes": shared_memory_bytes(),
        },
        "node": {
            "container": in_container(),
            # Without root, the kernel's log and the serial numbers may be hidden.
            "root": os.geteuid() == 0,
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
            "booted": boot_time(),
            "settled": settled,
            "tools": {**smi, **more, **hung},
            "hca": {card: card_ports(os.path.join(cards, card)) for card in list_folder(cards)},
            "pci": card_links(os.path.join(sysfs, "bus/pci/devices")),
            "disk": spaces,
        },
    }
