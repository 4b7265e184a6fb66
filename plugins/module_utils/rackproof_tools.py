# SPDX-License-Identifier: Apache-2.0
"""Share helpers of modules that gather facts (Python 3.8+).

:func:`ask` runs a tool with limited time and output. Other functions read small files, limits and disk space.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from contextlib import suppress

OUTPUT_BYTES = 4 * 1024 * 1024
"""Largest number of bytes to store of a tool's output. Eight GPUs need about half a megabyte of XML."""
FILTERED_BYTES = 256 * 1024 * 1024
"""Largest output of a tool of which only some lines are stored, such as a long kernel log."""
LINE_BYTES = 64 * 1024
"""Largest part of a line of output to read at a time."""
FILE_BYTES = 256 * 1024
"""Largest number of bytes to read of a small file."""
LAST_WAIT_S = 2.0
"""Seconds to wait for a killed tool to end."""
UNHURRIED_S = 2.0
"""Seconds after which an answer of the driver's tool is late. The tool is then run again, because the machine
may only be busy."""
PATIENCE = 3
"""Factor by which the time limit of the second run is longer."""
EXTRA_PATH = (
    "/usr/local/cuda/bin",
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
)
"""Folders in which programs are searched in addition to PATH."""
NO_DRIVER = (
    "couldn't communicate with the NVIDIA driver",
    "Driver/library version mismatch",
    "No devices were found",
)

VERSION_TOOLS = {
    "ofed_info": ["ofed_info", "-s"],
    "slurm": ["sinfo", "--version"],
    "docker": ["docker", "--version"],
    "enroot": ["enroot", "version"],
    "nvidia_ctk": ["nvidia-ctk", "--version"],
    "fabricmanager": ["nv-fabricmanager", "--version"],
}
"""Tools that print versions for a node's record and its health checks."""


CONTROLLER_SECRETS = (
    "RACKPROOF_WEBHOOK_URL",
    "RACKPROOF_SMTP_USER",
    "RACKPROOF_SMTP_PASSWORD",
    "RACKPROOF_DATABASE_URL",
    "NETBOX_TOKEN",
)
"""Secrets that only programs of the controller use. NGC_API_KEY is not among them, because a file of enroot's
credentials on the node may name that variable."""


def node_environment():
    """Return this process's environment without the controller's secrets.

    A module on the controller itself (connection local) inherits the environment of the playbook.
    """
    return {name: value for name, value in os.environ.items() if name not in CONTROLLER_SECRETS}


def find(program):
    """Return the path of a program, or None if it is absent.

    The folders of EXTRA_PATH are searched, too, because modules run with a short PATH.
    """
    if os.path.isabs(program):
        return program if os.access(program, os.X_OK) else None
    for folder in os.environ.get("PATH", "").split(os.pathsep) + list(EXTRA_PATH):
        path = os.path.join(folder, program)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def ask(argv, timeout_s, bounded=True, environment=None, stdin_text=None, keep=None):
    """Run a tool with limited time and output. Return its status and output, also if it fails.

    The status is ok, failed, hung, absent or no_driver.

    Args:
        argv: The program and its arguments.
        timeout_s: The number of seconds that the tool may take.
        bounded: Whether the kernel stops a tool that writes without end, to any file, not only to its output.
        environment: The variables to set.
        stdin_text: The text for the tool's standard input.
        keep: Words in lower case. Only the first line of the output and lines with one of these words
            are returned. ``lines`` is the number of all lines. The tool may then print FILTERED_BYTES.
    """
    path = find(argv[0])
    if path is None:
        return {"status": "absent"}
    begin = time.monotonic()
    # Use files, because a grandchild that keeps a pipe open would exceed the time limit.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as stdin:
        stdin.write((stdin_text or "").encode())
        stdin.seek(0)
        try:
            child = subprocess.Popen(
                [path, *argv[1:]],
                stdin=subprocess.DEVNULL if stdin_text is None else stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env=dict(node_environment(), LC_ALL="C", **(environment or {})),
                cwd="/",
            )
        except OSError as error:
            return {"status": "failed", "rc": None, "stdout": "", "stderr": str(error)}
        if bounded:
            with suppress(OSError):
                most = FILTERED_BYTES if keep else 2 * OUTPUT_BYTES
                resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (most, most))
        status, rc, stuck = outcome(child, timeout_s)
        stdout, cut, count = head_of_lines(out, keep) if keep else (*head(out), None)
        stderr, _ = head(err, 4096)
    if status == "failed" and any(words in stdout + stderr for words in NO_DRIVER):
        status = "no_driver"
    answer = {
        "status": status,
        "rc": rc,
        "stdout": stdout,
        "stderr": stderr,
        "seconds": round(time.monotonic() - begin, 3),
        "truncated": cut,
    }
    if count is not None:
        answer["lines"] = count
    if stuck:
        answer["stuck"] = True
    return answer


def outcome(child, timeout_s):
    """Wait for a tool. Return its status, its exit status, and whether it is stuck.

    A stuck tool is late and could not be killed.
    """
    try:
        rc = child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return "hung", None, not killed(child)
    return "ok" if rc == 0 else "failed", rc, False


def killed(child):
    """Kill a process with its group. Return whether it ended. A process may be stuck in the kernel."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    # A stuck process must not block this module as well.
    with suppress(subprocess.TimeoutExpired):
        child.wait(LAST_WAIT_S)
    return child.returncode is not None


def ask_again(argv, timeout_s):
    """Run a tool of the GPUs' driver, and again if it was late. Return the last answer.

    If two runs succeeded, return the answer of the faster one.

    A single late answer is not a fault, because a node in service is busy. A tool that cannot be killed is
    stuck in the driver, where a second one would be stuck too.
    """
    first = ask(argv, timeout_s)
    is_late = first["status"] in ("ok", "hung") and first["seconds"] > UNHURRIED_S
    if not is_late or first.get("stuck"):
        return first
    second = ask(argv, PATIENCE * timeout_s)
    both_answer = first["status"] == second["status"] == "ok"
    return first if both_answer and first["seconds"] <= second["seconds"] else second


def asks(argv):
    """Return the function that runs a tool. For a tool of the driver, it may run the tool twice."""
    return ask_again if argv[0] == "nvidia-smi" else ask


def has_word(line, words):
    """Return whether a line contains one of some words.

    A pattern with all words would take 12 times as long.
    """
    return any(word in line for word in words)


def head_of_lines(stream, keep):
    """Return the first line and those with a word, whether some are missing, and the number of all lines."""
    stream.seek(0, os.SEEK_END)
    # The kernel stopped the tool within a line, so the rest of the line is unknown.
    cut = stream.tell() >= FILTERED_BYTES
    stream.seek(0)
    kept, size, count = [], 0, 0
    # A line of more than LINE_BYTES is read in several parts.
    for count, raw in enumerate(iter(lambda: stream.readline(LINE_BYTES), b""), 1):
        line = raw.decode("utf-8", "replace")
        if count > 1 and not has_word(line.lower(), keep):
            continue
        size += len(raw)
        if size > OUTPUT_BYTES:
            cut = True
        else:
            kept.append(line)
    return "".join(kept), cut, count


def head(stream, limit=OUTPUT_BYTES):
    """Return the beginning of a file as text, and whether there was more."""
    stream.seek(0)
    data = stream.read(limit + 1)
    return data[:limit].decode("utf-8", "replace"), len(data) > limit


def sealed(answer):
    """Return an answer with its digest, which shows the controller that it arrived complete."""
    # As in rackproof.nodes.answer_seal, bytes that are not text may be replaced on the way.
    text = re.sub(r"\\u(?:d[89a-f][0-9a-f]{2}|fffd)", "?", json.dumps(answer, sort_keys=True))
    return dict(answer, seal=hashlib.sha256(text.encode()).hexdigest())


def read(path, limit=FILE_BYTES):
    """Return the text of a small file, or '' if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(limit).decode("utf-8", "replace").replace("\0", "").strip()
    except OSError:
        return ""


def space(path):
    """Return size and free bytes of the file system of a path, even if the path does not exist yet."""
    existing = os.path.abspath(path)
    while not os.path.exists(existing) and existing != os.path.dirname(existing):
        existing = os.path.dirname(existing)
    try:
        usage = os.statvfs(existing)
    except OSError as error:
        return {"error": str(error)}
    return {"total_bytes": usage.f_blocks * usage.f_frsize, "free_bytes": usage.f_bavail * usage.f_frsize}


def list_folder(folder):
    """Return the sorted names in a folder, or none if it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_files(folder, names, limit=256):
    """Return the texts of small files of a folder by name. An unreadable file gives ''."""
    return {name: read(os.path.join(folder, name), limit) for name in names}


def dmi(names, sysfs="/sys"):
    """Return entries of the firmware's tables. An unreadable entry gives ''."""
    return read_files(os.path.join(sysfs, "class/dmi/id"), names, 4096)


CLOCK = ["timedatectl", "show", "--property=NTPSynchronized"]
# Files that systemd, Podman and Docker create in a container.
CONTAINER_MARKS = ("/run/systemd/container", "/run/.containerenv", "/.dockerenv")


def in_container():
    """Return whether this system is a container, which uses its host's clock and kernel."""
    return any(os.path.exists(path) for path in CONTAINER_MARKS)


def soft_limit(resource_id):
    """Return a soft limit of this process, or -1 if there is none."""
    soft = resource.getrlimit(resource_id)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft


def locked_memory_bytes():
    """Return the limit of locked memory in bytes, or -1 if there is none."""
    return soft_limit(resource.RLIMIT_MEMLOCK)


def shared_memory_bytes():
    """Return the size of /dev/shm, or 0 if it is unknown."""
    # This only measures the folder, and writes nothing into it.
    return space("/dev/shm").get("total_bytes", 0)  # noqa: S108  # nosec B108
