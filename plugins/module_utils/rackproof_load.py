# SPDX-License-Identifier: Apache-2.0
"""Measure the use of a node by other processes than one job (standard library only, Python 3.8+, Linux).

rackproof_job creates a :class:`LoadWatch`, and calls it while the job runs. The kernel counts the time of the
processors that the job may use. The time of the job, its playbook and kernel threads is subtracted. The rest
is the use by others.
"""

from __future__ import annotations

import glob
import os
import resource
import time
from contextlib import suppress

WINDOW_S = 10.0
"""Least seconds of a window, except the last. :func:`disturbs` judges each window."""
_TICKS = os.sysconf("SC_CLK_TCK")
"""Number of the kernel's clock ticks in a second."""
_KTHREADD = 2
"""Process id of the parent of all kernel threads."""
_MOST_NAMES = 3
"""The number of other processes that a report names."""
_COUNTERS = ("busy", "stolen", "job", "playbook", "kernel")
"""Keys of a sample whose values are seconds of processor time."""
_TEXT = 24
"""Largest number of characters of a name in the state file, which must stay small."""


def read_text(path):
    """Return a small file of the kernel's, or '' if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(1 << 20)
    except OSError:
        return ""


def read_process(pid):
    """Return (name, parent, own seconds, seconds of ended children) of a process, or None if it ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            head, _, rest = stream.read().rpartition(b")")
        fields = rest.split()
        own, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        name = head.partition(b"(")[2].decode("utf-8", "replace")
        return name, int(fields[1]), own / _TICKS, children / _TICKS
    except (OSError, IndexError, ValueError):
        return None


def read_processes():
    """Return the result of :func:`read_process` for every process, by id."""
    table = {}
    for name in os.listdir("/proc"):
        entry = read_process(name) if name.isdigit() else None
        if entry is not None:
            table[int(name)] = entry
    return table


def trees(roots, table):
    """Return the ids of some processes and of all their descendants."""
    children = {}
    for pid, entry in table.items():
        children.setdefault(entry[1], []).append(pid)
    members, queue = set(), [root for root in roots if root in table]
    while queue:
        pid = queue.pop()
        if pid not in members:
            members.add(pid)
            queue += children.get(pid, [])
    return members


def controller_above(pid):
    """Return the process id of the playbook that started a process, or None if it runs on another machine."""
    controller, seen = None, set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        words = read_text(f"/proc/{pid}/cmdline").split("\0")
        if any(os.path.basename(word).startswith("ansible-playbook") for word in words[:3]):
            controller = pid
        entry = read_process(pid)
        pid = entry[1] if entry is not None else 0
    return controller


def processor_seconds(text, allowed):
    """Return the number of allowed processors, their busy seconds, and their stolen seconds.

    Interrupts do not count as busy, because they are as often for the job's own data as for others.
    """
    count, busy, stolen = 0, 0, 0
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in allowed:
            fields = [int(word) for word in rest.split() if word.isdigit()] + [0] * 8
            count, busy, stolen = count + 1, busy + sum(fields[:3]), stolen + fields[7]
    return count, busy / _TICKS, stolen / _TICKS


def pressure(text):
    """Return the percentage of the last ten seconds in which a process waited for a processor, or None."""
    for line in text.splitlines():
        if line.startswith("some "):
            with suppress(ValueError, IndexError):
                return float(line.split("avg10=")[1].split()[0])
    return None


def power_state():
    """Return what limits the processors' speed, with None for what is unknown.

    These are the governor, the mean clock in MHz, the highest temperature in °C, and the number of thermal
    throttles.
    """
    base = "/sys/devices/system/cpu"
    clocks = _numbers(f"{base}/cpu[0-9]*/cpufreq/scaling_cur_freq")
    heat = _numbers("/sys/class/thermal/thermal_zone*/temp")
    slowed = _numbers(f"{base}/cpu[0-9]*/thermal_throttle/core_throttle_count")
    return {
        "governor": read_text(f"{base}/cpu0/cpufreq/scaling_governor").strip()[:_TEXT] or None,
        "mhz": round(sum(clocks) / len(clocks) / 1000) if clocks else None,
        "celsius": round(max(heat) / 1000) if heat else None,
        "slowed": int(sum(slowed)) if slowed else None,
    }


def _numbers(pattern):
    """Return the numbers in the files that a pattern matches. Files without a number are left out."""
    numbers = []
    for path in sorted(glob.glob(pattern)):
        with suppress(ValueError):
            numbers.append(float(read_text(path)))
    return numbers


def moment():
    """Return the machine's current load, pressure and power state."""
    state = {"load": None, "pressure": pressure(read_text("/proc/pressure/cpu"))}
    with suppress(ValueError, IndexError):
        state["load"] = float(read_text("/proc/loadavg").split()[0])
    state.update(power_state())
    return state


class LoadWatch:
    """A sum of the processor time of other processes while one job runs. An error here does not end the job.

    Args:
        controller: The process id of the playbook on this machine, or None if it runs on another
            machine.
    """

    def __init__(self, controller=None):
        self.controller = controller
        self.sums = dict.fromkeys(("seconds", "disturbed_s", "others_s", "stolen_s"), 0.0)
        self.most = {}
        self.begin, self.last = None, None
        # /proc may be unreadable. The report then states that the values are unknown, and the job
        # continues.
        with suppress(OSError, ValueError):
            self.allowed = os.sched_getaffinity(0)
            self.begin = moment()
            self.last = self.sample()

    def sample(self):
        """Return the counters as they are now, in seconds."""
        table = read_processes()
        supervisor = {os.getpid()}
        job = trees(supervisor, table) - supervisor
        playbook = trees([self.controller], table) - job - supervisor
        kernel = {pid for pid, entry in table.items() if _KTHREADD in (pid, entry[1])}
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        count, busy, stolen = processor_seconds(read_text("/proc/stat"), self.allowed)
        return {
            "clock": time.monotonic(),
            "cpus": count,
            "busy": busy,
            "stolen": stolen,
            "job": ended.ru_utime + ended.ru_stime + _used(job, table),
            "playbook": _used(playbook, table),
            # The supervisor and the kernel's threads wait for no children.
            "kernel": sum(table[pid][2] for pid in (kernel | supervisor) & set(table)),
            "others": {
                pid: table[pid][:1] + table[pid][2:3]
                for pid in set(table) - job - playbook - kernel - supervisor
            },
        }

    def look(self, end=False):
        """Close a window if it is long enough, or if the job ended."""
        if self.last is None or (not end and time.monotonic() - self.last["clock"] < WINDOW_S):
            return
        with suppress(OSError, ValueError):
            now, last = self.sample(), self.last
            self.last = now
            self.add(now, last)

    def add(self, now, last):
        """Add the difference between two samples."""
        grown = {key: max(0.0, now[key] - last[key]) for key in ("clock", *_COUNTERS)}
        seconds = grown["clock"]
        if seconds <= 0:
            return
        others = max(0.0, grown["busy"] - grown["job"] - grown["playbook"] - grown["kernel"])
        self.sums["seconds"] += seconds
        self.sums["others_s"] += others
        self.sums["stolen_s"] += grown["stolen"]
        if disturbs(others / seconds, grown["busy"] / seconds, grown["stolen"] / seconds, now["cpus"]):
            self.sums["disturbed_s"] += seconds
            self.name_others(last["others"], now["others"])

    def name_others(self, before, after):
        """Add the seconds that each other process used to the sum of its name."""
        for pid, (name, used) in after.items():
            grown = used - before.get(pid, (name, 0.0))[1]
            if grown > 0:
                self.most[name] = self.most.get(name, 0.0) + grown

    def result(self):
        """Return the summary for the job's state file, which must stay small."""
        names = sorted(self.most, key=lambda name: -self.most[name])[:_MOST_NAMES]
        end = None
        with suppress(OSError, ValueError):
            end = moment()
        return {
            "cpus": self.last["cpus"] if self.last else 0,
            **{key: round(value, 1) for key, value in self.sums.items()},
            "names": [name[:_TEXT] for name in names],
            "begin": self.begin,
            "end": end,
        }


def _used(pids, table):
    """Return the seconds of some processes and of their ended children."""
    return sum(table[pid][2] + table[pid][3] for pid in pids)


def disturbs(others, busy, stolen, cpus):
    """Return whether other processes or the hypervisor slow a job down.

    Other processes do if they use half of the processors, or if they use a tenth (and at least half of one
    processor) while nine tenths are busy. So does a hypervisor that takes a tenth of the processors
    (and at least 0.2). Less than this for ten seconds had no effect on the speed of a training on four H100.

    Args:
        others: The number of processors that others used, on average.
        busy: The number of busy processors, including the processors that the job uses.
        stolen: The number of processors that the hypervisor gave to other machines.
        cpus: The number of processors that the job may use.
    """
    if stolen >= max(0.2, 0.1 * cpus):
        return True
    return cpus > 0 and others >= max(0.5, 0.1 * cpus) and (busy >= 0.9 * cpus or others >= 0.5 * cpus)
