#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402  (the text for ansible-doc comes first, as in every module)
"""Start, find or stop a supervised job of role bench on a node (standard library, Python 3.8+, Linux).

Begin with :func:`ensure_started`, :func:`find_job` and :func:`stop_job`, one for each ``state`` of the
module. A :class:`Supervisor` runs as a daemon, so the job does not need the playbook. :class:`Folder` reads
and writes job.json, state.json and log.txt in the job's folder.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_job
short_description: Start, find or stop one supervised job on a node
description:
  - Starts a program under a small supervisor on the node and returns at once. The supervisor survives
    the controller's death, a lost connection and Ctrl-C, bounds the job's time, silence and log size,
    and ends the job's whole process tree.
  - Starting again with the same O(id) and O(folder) never starts a second job. It returns the running
    job, or the result of the ended one.
  - In O(folder), C(log.txt) has the job's standard output and error, C(state.json) has its state, and
    C(job.json) has the program and its arguments.
  - A job whose supervisor was killed, or whose node was rebooted, is reported as ended by
    V(supervisor_died), which is never a success. Its remaining processes are killed.
options:
  id:
    description: Run id. Letters, digits, dot, underscore and hyphen.
    type: str
    required: true
  folder:
    description: Absolute path of the job's own folder on the node. Created when starting.
    type: path
    required: true
  state:
    description:
      - V(started) starts the job, or finds it.
      - V(found) finds the job, and fails if there is none.
      - V(absent) stops the job. All its processes get SIGTERM, and after O(grace_s) SIGKILL. No file is
        deleted.
    type: str
    choices: [started, found, absent]
    default: started
  argv:
    description: Program and arguments. Needed to start. No shell is involved.
    type: list
    elements: str
  environment:
    description: Variables added to the environment. They are written to C(job.json).
    type: dict
    default: {}
  secret_environment:
    description: Variables added to the environment whose values are never written, logged or shown.
    type: dict
    default: {}
  chdir:
    description: Folder to start in. Default is O(folder).
    type: path
  timeout_s:
    description: Hard limit in seconds. Needed to start.
    type: float
  hang_s:
    description: Seconds without growth of the log after which the job counts as hung. 0 disables this limit.
    type: float
    default: 0
  grace_s:
    description: Seconds between SIGTERM and SIGKILL. The value given at the start counts.
    type: float
    default: 10
  again:
    description:
      - Whether a job that ended by V(supervisor_died) is started once more, with an empty log. Use it only
        for a program that follows work elsewhere, such as a Slurm job, and finds that work again.
    type: bool
    default: false
  log_limit_bytes:
    description: Size of the log in bytes beyond which the job is stopped.
    type: int
    default: 1073741824
  lock:
    description:
      - Lock file on a local file system of the node. Only one job at a time can hold it.
      - Processes of a job with a dead supervisor under this lock are killed before the next one starts.
    type: path
  machine_lock:
    description:
      - Lock file that gives a job the machine to itself, across all users and checkouts. The file is neither
        read nor written, so that all users can share it.
    type: path
attributes:
  check_mode:
    description: Reports whether a job would be started or stopped, and changes nothing.
    support: full
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
notes:
  - On nodes where systemd-logind has C(KillUserProcesses=yes), connect as root or enable lingering.
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Start the training, or find the running one
  rackproof_job:
    id: mnist-lenet-20260101-120000
    folder: /var/lib/rackproof/runs/mnist-lenet-20260101-120000
    argv: [python3, train.py, --epochs, "12"]
    environment: {OMP_NUM_THREADS: "8"}
    secret_environment: {NGC_API_KEY: "{{ ngc_api_key }}"}
    timeout_s: 3600
    hang_s: 300
    lock: /var/lib/rackproof/job.lock

- name: Stop it
  rackproof_job:
    id: mnist-lenet-20260101-120000
    folder: /var/lib/rackproof/runs/mnist-lenet-20260101-120000
    state: absent
"""

RETURN = r"""
job:
  description: State of the job. It is absent if there is no job.
  returned: when a job was started or found
  type: dict
  contains:
    id: {description: Run id., type: str, returned: always}
    phase: {description: V(running) or V(ended)., type: str, returned: always}
    succeeded: {description: Whether it ended by itself with exit status 0., type: bool, returned: always}
    ended_by:
      description:
        - One of V(itself), V(timeout), V(hang), V(log_limit), V(stopped), V(supervisor_died).
        - Null while it runs.
      type: str
      returned: always
    exit_status:
      description: Exit status. It is 128 + signal if a signal ended it, and null if unknown.
      type: int
      returned: always
    signal: {description: Number of the signal that ended it., type: int, returned: always}
    message: {description: How it ended, in words., type: str, returned: always}
    pid: {description: Process id of the program., type: int, returned: always}
    pgid: {description: Process group and session of the program., type: int, returned: always}
    start_ticks: {description: Start of the program in clock ticks since boot., type: int, returned: always}
    supervisor_pid: {description: Process id of the supervisor., type: int, returned: always}
    supervisor_start_ticks: {description: Start time of the supervisor., type: int, returned: always}
    boot_id: {description: Boot of the node during which it was started., type: str, returned: always}
    started: {description: UTC moment of the start (ISO 8601)., type: str, returned: always}
    ended: {description: UTC moment of the end., type: str, returned: always}
    elapsed_s: {description: Seconds from start to end if known., type: float, returned: ended}
    log_bytes: {description: Size of the log., type: int, returned: always}
    log_sha256:
      description: SHA-256 of the log; null where it could not be read.
      type: str
      returned: ended, by a supervisor that lived until then
    seal: {description: Digest of the judged fields of the job's end., type: str, returned: ended}
    machine:
      description:
        - Other uses of the node's processors while the job ran - seconds in all, seconds in which others
          slowed it down, their names, and load, pressure, clocks and heat when it began and ended.
      type: dict
      returned: ended, by a supervisor that lived until then
    leftovers: {description: Processes killed after the program had ended., type: int, returned: ended}
    unkillable: {description: Process ids that survived SIGKILL., type: list, elements: int, returned: ended}
    timeout_s: {description: Hard limit., type: float, returned: always}
    hang_s: {description: Limit of silence., type: float, returned: always}
log: {description: Path of the log on the node., type: str, returned: always}
orphans_killed:
  description: Processes of an earlier job without supervisor that were killed before starting.
  type: int
  returned: when a job was started
"""

import errno
import fcntl
import hashlib
import json
import os
import pwd
import re
import select
import signal
import stat
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager, suppress

try:
    import ctypes
except ImportError:  # Some builds of Python have no ctypes. Sessions and the token then find the processes.
    ctypes = None  # type: ignore[assignment]

from ansible.module_utils import rackproof_load
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rackproof_tools import node_environment

STATE_BYTES = 4096
"""Size of state.json with padding. The file that replaces it is allocated before, in case the disk fills
up."""
SEALED = (
    "id",
    "phase",
    "ended_by",
    "exit_status",
    "signal",
    "succeeded",
    "started",
    "ended",
    "unkillable",
    "log_bytes",
    "log_sha256",
)
"""The fields of a job's end that are sealed."""
TOKEN = "RACKPROOF_JOB_TOKEN"  # noqa: S105  (the name of a variable)
"""Variable that marks the processes of one job."""
WAKE_S = 1.0
"""Seconds after which the supervisor checks its job again."""
KILL_WAIT_S = 10.0
"""Seconds to wait for processes to end after SIGKILL."""
LAST_WORDS_S = 1.0
"""Seconds for the helpers of a program to end after it, before they are stopped."""
START_WAIT_S = 60.0
"""Seconds to wait for another start in the same folder, and for the supervisor's first answer."""
# Numbers of two attributes of a process, as in <linux/prctl.h>.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class JobError(Exception):
    """A problem that the operator must fix. The text names the problem and its place."""


def job_error(error, path, doing):
    """Return a JobError with the path on the node and the remedy."""
    hints = {
        errno.ENOSPC: "the disk is full: free space there or choose another folder",
        errno.EDQUOT: "the quota is used up: free space there or choose another folder",
        errno.EACCES: f"not permitted: give user {user_name()} access, use become, or choose another path",
        errno.EPERM: f"not permitted: give user {user_name()} access, use become, or choose another path",
        errno.EROFS: "the file system is read-only: remount it or choose another path",
        errno.ENOTDIR: "a part of the path is not a folder",
        errno.ENOENT: "it does not exist",
        errno.ELOOP: "it is a symbolic link, which is not followed here: remove it",
    }
    hint = hints.get(error.errno, error.strerror or str(error))
    return JobError(f"cannot {doing} {path}: {hint}")


def user_name():
    """Return the name of the effective user."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def utc_text(moment):
    """Return seconds since the epoch as ISO 8601 in UTC with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
    return f"{whole}.{int(moment * 1000) % 1000:03d}+00:00"


def boot_id():
    """Return the id of this boot, or '' if the kernel gives none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def read_process(pid):
    """Return (state, ppid, session, start_ticks) of a process, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            # The name may contain any character, even ')'. The last ')' ends it.
            fields = stream.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def is_running(pid, start_ticks):
    """Return whether the process of that id and start time still runs (a zombie does not)."""
    running = read_process(pid)
    return running is not None and running[0] not in "ZX" and running[3] == start_ticks


def has_supervisor(state):
    """Return whether the supervisor that wrote this state is still there."""
    return state["boot_id"] == boot_id() and is_running(
        state["supervisor_pid"], state["supervisor_start_ticks"]
    )


def job_processes(session, root=None, token=None, log=None):
    """Return the ids of the live processes of a job.

    The processes are found in several ways, because a process can evade each one.

    Args:
        session: The process group and session of the program, or None if unknown.
        root: The supervisor. As subreaper, it inherits orphans, so that all processes descend from it
            while it lives.
        token: The value of the variable in their environment. It is None while another way exists, because
            reading the environment of a process that is stuck in the driver can take forever.
        log: The path of the log that they write to.
    """
    table = all_processes()
    found = descendants(root, table) if root is not None else set()
    for pid, entry in table.items():
        if pid in found or pid in (os.getpid(), root):
            continue
        # The environment is last, because reading it can take forever.
        if (
            (session and entry[2] == session)
            or (log and has_log_open(pid, log))
            or (token and has_token(pid, token))
        ):
            found.add(pid)
    return [pid for pid in found if table[pid][0] not in "ZX"]


def all_processes():
    """Return the kernel's data on every process, by id."""
    table = {}
    for name in os.listdir("/proc"):
        entry = read_process(name) if name.isdigit() else None
        # A process that ended meanwhile has no entry.
        if entry is not None:
            table[int(name)] = entry
    return table


def descendants(root, table):
    """Return ids of all processes below a process."""
    children = {}
    for pid, entry in table.items():
        children.setdefault(entry[1], []).append(pid)
    pids, queue = set(), [root]
    while queue:
        for pid in children.get(queue.pop(), []):
            # The table was not read at one moment, so ids that were used again could make a cycle.
            if pid not in pids:
                pids.add(pid)
                queue.append(pid)
    return pids


def has_log_open(pid, log):
    """Return whether the log is a process's output or error."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{descriptor}") == log:
                return True
    return False


def has_token(pid, token):
    """Return whether a process carries the token in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            return f"{TOKEN}={token}\0".encode() in stream.read() + b"\0"
    except OSError:
        return False


def send_signal(pids, number):
    """Send a signal to processes. Ignore those that ended."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_processes(find, wait, grace_s):
    """End processes with SIGTERM and, after the grace time, for :data:`KILL_WAIT_S` with SIGKILL.

    Args:
        find: A function that returns the ids of the live processes.
        wait: A function that waits for up to a number of seconds, and collects dead children.
        grace_s: The seconds between the signals.

    Returns:
        The number of processes found, and the ids of those that cannot be killed.
    """
    alive = find()
    met = set(alive)
    send_signal(alive, signal.SIGTERM)
    send_signal(alive, signal.SIGCONT)
    deadline = time.monotonic() + grace_s
    while alive and time.monotonic() < deadline:
        wait(0.2)
        alive = find()
        met.update(alive)
    deadline = time.monotonic() + KILL_WAIT_S
    while alive and time.monotonic() < deadline:
        send_signal(alive, signal.SIGKILL)
        wait(0.1)
        alive = find()
        met.update(alive)
    return len(met), sorted(alive)


class Folder:
    """The job's folder on the node, with job.json, state.json and log.txt.

    Args:
        path: The absolute path.
        job_id: The run id that the folder must belong to.
    """

    def __init__(self, path, job_id):
        self.path = path
        self.job_id = job_id
        self.log = os.path.join(path, "log.txt")
        self.job = os.path.join(path, "job.json")
        self.state = os.path.join(path, "state.json")
        self.reserve = os.path.join(path, ".state.next")

    def create(self):
        """Create the folder."""
        try:
            os.makedirs(self.path, mode=0o755, exist_ok=True)
        except FileExistsError:
            raise JobError(f"cannot create {self.path}: something that is not a folder exists") from None
        except OSError as error:
            raise job_error(error, self.path, "create") from error

    @contextmanager
    def starting(self):
        """Prevent other starts in this folder, and yield the descriptor of the lock."""
        path = os.path.join(self.path, ".starting")
        try:
            descriptor = open_own_lock(path)
        except OSError as error:
            raise job_error(error, path, "write") from error
        try:
            deadline = time.monotonic() + START_WAIT_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise JobError(f"another start in {self.path} does not finish") from None
                    time.sleep(0.1)
            yield descriptor
        finally:
            os.close(descriptor)

    def read_json(self, path):
        """Return the object in a JSON file, or None if there is no file."""
        try:
            with open(path, "rb") as stream:
                value = json.loads(stream.read(1 << 20).decode())
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            return None
        except OSError as error:
            raise job_error(error, path, "read") from error
        except ValueError as error:
            raise JobError(f"{path} is damaged ({error}): look at it and move it away") from error
        if not isinstance(value, dict):
            raise JobError(f"{path} is damaged (no object): look at it and move it away")
        return value

    def read_state(self):
        """Return the job's state as last written, or None if no job was started."""
        state = self.read_json(self.state)
        if state is None:
            return None
        whole = all(
            isinstance(state.get(key), int) and state[key] > 1
            for key in ("pid", "pgid", "supervisor_pid", "start_ticks", "supervisor_start_ticks")
        )
        if not whole or state.get("phase") not in ("running", "ended") or "token" not in state:
            raise JobError(f"{self.state} is damaged (keys missing): look at it and move it away")
        if state.get("id") != self.job_id:
            raise JobError(
                "{} belongs to run {!r}, not to {!r}: choose another folder".format(
                    self.path, str(state.get("id"))[:200], self.job_id
                )
            )
        return state

    def write_job(self, description):
        """Write job.json."""
        temporary = self.job + ".part"
        try:
            with open(temporary, "w") as stream:
                json.dump(description, stream, indent=1, sort_keys=True)
                stream.write("\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.rename(temporary, self.job)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)
            raise job_error(error, self.job, "write") from error

    def allocate(self):
        """Reserve space on the disk for the next state."""
        with open(self.reserve, "wb") as stream:
            stream.write(b" " * STATE_BYTES)
            stream.flush()
            os.fsync(stream.fileno())

    def write_state(self, state):
        """Replace state.json in one step.

        After ``allocate`` was called, this works even on a full disk.
        """
        text = json.dumps(state, sort_keys=True).encode()
        descriptor = os.open(self.reserve, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        left = text.ljust(STATE_BYTES - 1) + b"\n"
        try:
            while left:
                # A disk that fills up takes only a part. The next call then raises an error.
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(self.reserve, self.state)

    def log_bytes(self):
        """Return the size of the log, or 0."""
        try:
            return os.stat(self.log).st_size
        except OSError:
            return 0

    def log_sha256(self):
        """Return the digest of the log, or None if it cannot be read."""
        digest = hashlib.sha256()
        try:
            with open(self.log, "rb") as stream:
                for block in iter(lambda: stream.read(1 << 20), b""):
                    digest.update(block)
        except OSError:
            return None
        return digest.hexdigest()


def final_state(state, **changes):
    """Return the final state of a job."""
    state = dict(state, phase="ended", ended=utc_text(time.time()), **changes)
    state["succeeded"] = state["ended_by"] == "itself" and state["exit_status"] == 0
    state["message"] = end_sentence(state)
    # The controller notices if parts of it, or of the log, are lost on the way (jobs/bench/record.py).
    counted = [[key, state.get(key)] for key in (*SEALED, *(["machine"] if "machine" in state else []))]
    state["seal"] = hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()
    return state


def end_sentence(state):
    """Return a sentence about the end of a job."""
    reasons = {
        "timeout": "stopped at its time limit of {:g} s".format(state["timeout_s"]),
        "hang": "stopped: no growth of the log for {:g} s".format(state["hang_s"]),
        "log_limit": "stopped: its log grew beyond {} bytes".format(state["log_limit_bytes"]),
        "stopped": "stopped on request",
        "supervisor_died": "its supervisor was killed or the node was rebooted: the result is not known",
    }
    if state["ended_by"] != "itself":
        text = reasons[state["ended_by"]]
    elif state["signal"] is not None:
        text = "killed by signal {}".format(state["signal"])
    else:
        text = "ended with exit status {}".format(state["exit_status"])
    if state.get("unkillable"):
        # The whole list is in the state, which must fit into the reserved space.
        text += "; processes {} survive SIGKILL".format(join_some(state["unkillable"]))
    return text


def join_some(pids, most=20):
    """Return process ids as text, but at most the first ones."""
    more = f" and {len(pids) - most} more" if len(pids) > most else ""
    return ", ".join(map(str, pids[:most])) + more


class Supervisor:
    """The daemon that runs one job.

    The supervisor is created after the double fork, and never returns to the module.

    Args:
        folder: The job's folder.
        options: The options of the module.
        token: The value of the variable that marks the job's processes.
        locks: The descriptors of the node's lock and of the machine's lock, or None for an unused one.
        controller: The process id of the playbook, or None if it runs on another machine.
    """

    def __init__(self, folder, options, token, locks, controller=None):
        self.folder = folder
        self.options = options
        self.token = token
        self.lock, self.machine_lock = locks
        self.child = None
        self.inherits = False
        self.status = None
        self.state = {}
        self.clock = time.monotonic()
        self.load = rackproof_load.LoadWatch(controller)

    def run(self, answer):
        """Start the job, pass its first state to ``answer``, and supervise the job until it ends."""
        # The signals are blocked, not handled. sigtimedwait takes them when the supervisor is ready.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self.inherits = self.prctl(PR_SET_CHILD_SUBREAPER, 1)
        log = os.open(
            self.folder.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o644
        )
        started, self.clock = time.time(), time.monotonic()
        child = self.start(log)
        os.close(log)
        own, job = read_process(os.getpid()), read_process(child)
        self.state = {
            "version": 1,
            "id": self.folder.job_id,
            "token": self.token,
            "phase": "running",
            "pid": child,
            "pgid": child,
            "start_ticks": job[3] if job else own[3],
            "supervisor_pid": os.getpid(),
            "supervisor_start_ticks": own[3],
            "boot_id": boot_id(),
            "started": utc_text(started),
            "ended": None,
            "exit_status": None,
            "signal": None,
            "ended_by": None,
            "succeeded": False,
            "message": "running",
            "log_bytes": 0,
            "timeout_s": self.options["timeout_s"],
            "hang_s": self.options["hang_s"],
            "grace_s": self.options["grace_s"],
            "log_limit_bytes": self.options["log_limit_bytes"],
        }
        try:
            self.folder.write_state(self.state)
            self.folder.allocate()
        except OSError:
            end_processes(self.members, self.wait, 0)
            with suppress(OSError):
                os.unlink(self.folder.state)
            raise
        answer({"state": self.state})
        self.finish(self.watch())

    def start(self, log):
        """Start the program with its output in ``log``, and return its process id."""
        environment = node_environment()
        environment.update({key: str(value) for key, value in self.options["environment"].items()})
        environment.update({key: str(value) for key, value in self.options["secret_environment"].items()})
        environment[TOKEN] = self.token
        # The job can log the run that it belongs to, so that another run's log is recognised.
        environment["RACKPROOF_JOB_ID"] = self.options["id"]
        parent = os.getpid()

        def become_job():
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGTERM})
            self.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(127)

        # Keep a reference, because a Popen that is collected as garbage takes the exit status with it.
        self.child = subprocess.Popen(
            self.options["argv"],
            cwd=self.options["chdir"] or self.folder.path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=become_job,
        )
        return self.child.pid

    def prctl(self, option, value):
        """Set an attribute of this process. Return whether this succeeded."""
        if ctypes is None:
            return False
        try:
            return ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0) == 0
        except (OSError, AttributeError):
            return False

    def members(self):
        """Return ids of the job's live processes."""
        return job_processes(self.state.get("pgid"), os.getpid(), None if self.inherits else self.token)

    def wait(self, seconds):
        """Wait for a child's end, then collect the dead."""
        signal.sigtimedwait({signal.SIGCHLD}, seconds)
        self.reap()

    def reap(self):
        """Collect dead children, and store the program's own status."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.state.get("pid"):
                self.status = status

    def watch(self):
        """Wait until the job ends or must be ended, and return the reason."""
        size, grown = 0, self.clock
        options = self.options
        while True:
            taken = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, WAKE_S)
            self.reap()
            if self.status is not None:
                return "itself"
            if taken is not None and taken.si_signo == signal.SIGTERM:
                return "stopped"
            self.load.look()
            now, current = time.monotonic(), self.folder.log_bytes()
            if current != size:
                size, grown = current, now
            if now - self.clock >= options["timeout_s"]:
                return "timeout"
            if size > options["log_limit_bytes"]:
                return "log_limit"
            if options["hang_s"] and now - grown >= options["hang_s"]:
                return "hang"

    def finish(self, reason):
        """Stop the rest of the job, free the locks, and write the final state."""
        grace = self.options["grace_s"]
        self.load.look(end=True)
        if reason == "itself":
            # Helpers of the program may be about to end as well. Helpers that stay get no long grace time.
            deadline = time.monotonic() + LAST_WORDS_S
            while self.members() and time.monotonic() < deadline:
                self.wait(0.1)
            grace = min(grace, 5)
        met, unkillable = end_processes(self.members, self.wait, grace)
        self.reap()
        if (reason == "stopped" or self.status != 0) and is_shutting_down():
            # On a node that shuts down, every process is ended, so its status does not show the result.
            reason, self.status = "supervisor_died", None
        status, number = self.exit_status()
        state = final_state(
            self.state,
            elapsed_s=round(time.monotonic() - self.clock, 3),
            ended_by=reason,
            exit_status=status,
            signal=number,
            leftovers=met if reason == "itself" else 0,
            unkillable=unkillable,
            log_bytes=self.folder.log_bytes(),
            log_sha256=self.folder.log_sha256(),
            machine=self.load.result(),
        )
        # Free the lock first, because a reader of the state "ended" may start the next job at once.
        self.free_lock(emptied=not unkillable)
        self.write_final(state)

    def exit_status(self):
        """Return the program's exit status, as in a shell, and its signal, or None for both if unknown."""
        if self.status is None:
            return None, None
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            return 128 + number, number
        return os.WEXITSTATUS(self.status), None

    def free_lock(self, emptied):
        """Free the locks. Empty the node's lock, unless its next holder must kill processes of this job."""
        if self.machine_lock is not None:
            os.close(self.machine_lock)
        if self.lock is None:
            return
        if emptied:
            os.ftruncate(self.lock, 0)
        os.close(self.lock)

    def write_final(self, state):
        """Write the final state, and repeat this until it succeeds."""
        while True:
            try:
                self.folder.write_state(state)
            except OSError:
                # The only way to save the result is to try again. A stop ends these tries.
                if signal.sigtimedwait({signal.SIGTERM}, 5.0) is not None:
                    return
            else:
                return


def is_shutting_down():
    """Return whether the node is shutting down, according to systemd."""
    try:
        done = subprocess.run(
            ["systemctl", "is-system-running"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=node_environment(),
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.stdout.strip() == b"stopping"


def open_own_lock(path):
    """Open a lock that no other user can hold. Access for reading would be enough to hold it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    # Earlier versions let all users read their locks.
    with suppress(PermissionError):
        os.fchmod(descriptor, 0o600)
    return descriptor


def take_lock(path):
    """Take the node's lock for this job.

    Returns:
        The descriptor that holds it, and how many processes of a dead supervisor's job were killed.

    Raises:
        JobError: Another job holds it, the file cannot be used, or processes of the dead supervisor's job
            cannot be killed.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        descriptor = open_own_lock(path)
    except OSError as error:
        raise job_error(error, path, "use the lock") from error
    try:
        return descriptor, lock_and_clean_up(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise


def lock_and_clean_up(descriptor, path):
    """Lock the file, and kill the processes that its last holder left. Return their number."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JobError(busy_error(path, read_lock_owner(descriptor))) from None
    previous = read_lock_owner(descriptor)
    token = previous.get("token")
    if not isinstance(token, str) or not token:
        return 0
    # The lock is free, so its holder ended, and processes with its token are unsupervised.
    log = os.path.realpath(os.path.join(str(previous.get("folder")), "log.txt"))
    killed, unkillable = end_processes(lambda: job_processes(None, token=token, log=log), time.sleep, 2)
    if unkillable:
        raise JobError(unkillable_processes(unkillable, previous))
    return killed


def take_machine_lock(path):
    """Take the lock that all users of the machine share, and return its descriptor.

    Raises:
        JobError: Another job holds it, or the file cannot be used.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        descriptor = open_shared(path)
    except OSError as error:
        raise job_error(error, path, "use the lock") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise JobError(f"the lock {path} is not a file: remove it, or name another one (bench_machine_lock)")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = lock_holder(os.fstat(descriptor))
        os.close(descriptor)
        raise JobError(
            f"the machine is busy: another benchmark runs on it ({holder}, which holds {path}); both "
            "would slow each other down: wait for it, then start again"
        ) from None
    return descriptor


def open_shared(path):
    """Open a file that any user may have made, in a folder in which all may write."""
    # In such a folder, the kernel refuses O_CREAT for a file of another user. Reading is enough for a
    # lock. Without O_NONBLOCK, another user's pipe of that name would block forever.
    how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(FileNotFoundError):
        return os.open(path, how)
    try:
        descriptor = os.open(path, how | os.O_CREAT | os.O_EXCL, 0o444)
    except FileExistsError:
        return os.open(path, how)
    os.fchmod(descriptor, 0o444)
    return descriptor


def lock_holder(status, table="/proc/locks"):
    """Describe the process that locked a file, from the kernel's table.

    Args:
        status: The file's status.
        table: The path of the table.
    """
    device, pids = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", []
    with suppress(OSError, ValueError, IndexError), open(table) as stream:
        for line in stream:
            fields = line.split()
            of_device, _, inode = fields[5].rpartition(":") if "->" not in fields else ("", "", "0")
            if int(inode) == status.st_ino and fields[1] == "FLOCK":
                # Files of several file systems may have one number. Some file systems, such as btrfs, have
                # another number of the device in this table, so one without the device is better than none.
                pids.insert(0 if of_device == device else len(pids), fields[4])
    if not pids:
        return "an unknown process"
    name = file_owner(f"/proc/{pids[0]}")
    return f"process {pids[0]} of user {name}" if name else f"process {pids[0]}"


def file_owner(path):
    """Return the name of a file's owner, or its number if there is no such user.

    Return '' if the file is missing.
    """
    try:
        owner_id = os.stat(path).st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(owner_id).pw_name
    except KeyError:
        return str(owner_id)


def unkillable_processes(unkillable, holder):
    """Describe the processes of an earlier job that cannot be killed."""
    pids, job = join_some(unkillable), str(holder.get("id"))[:200]
    return f"processes {pids} of job {job!r} survive SIGKILL on this node: reboot it"


def read_lock_owner(descriptor):
    """Return the holder in the lock file, or {}."""
    try:
        value = json.loads(os.pread(descriptor, 4096, 0).decode())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def busy_error(path, holder):
    """Return the error that another job holds the lock, with the remedy."""
    if not holder:
        return f"the node is busy: an unknown process holds {path}; find it with: fuser -v {path}"
    return (
        "the node is busy: job {id!r} (supervisor pid {pid}, since {since}) holds {path}; wait for it, "
        "follow it in {folder}, or stop it with rackproof_job state=absent".format(
            id=str(holder.get("id"))[:200],
            pid=str(holder.get("pid"))[:20],
            since=str(holder.get("since"))[:40],
            path=path,
            folder=str(holder.get("folder"))[:500],
        )
    )


def write_lock_owner(descriptor, job_id, token, folder):
    """Write the holder's name into the lock file."""
    text = json.dumps(
        {
            "id": job_id,
            "token": token,
            "pid": os.getpid(),
            "since": utc_text(time.time()),
            "folder": folder.path,
        }
    )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode() + b"\n", 0)


def launch_supervisor(folder, options, token, starting, locks):
    """Start the supervisor as a daemon, and return the job's first state.

    Raises:
        JobError: The program could not be started, or the supervisor does not answer.
    """
    receiver, sender = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    # Find the playbook here, because the supervisor will not be its descendant.
    controller = rackproof_load.controller_above(os.getpid())
    first = os.fork()
    if first == 0:
        try:
            os.close(receiver)
            os.setsid()
            if os.fork():
                os._exit(0)
            run_supervisor(folder, options, token, starting, locks, sender, controller)
        finally:
            os._exit(0)
    os.close(sender)
    os.waitpid(first, 0)
    try:
        text, is_late = read_answer(receiver)
    finally:
        os.close(receiver)
    if is_late:
        # It must not start the job after this error. Its process group has only the supervisor.
        with suppress(ProcessLookupError):
            os.killpg(first, signal.SIGKILL)
        log = os.path.realpath(folder.log)
        end_processes(lambda: job_processes(None, token=token, log=log), time.sleep, 0)
        with suppress(OSError):
            os.unlink(folder.state)
        raise JobError(
            f"the supervisor did not answer within {START_WAIT_S:g} s, and was stopped; does the file system "
            f"of {folder.path} answer?"
        )
    if not text:
        raise JobError(f"the supervisor died while starting the job; its folder is {folder.path}")
    answer = json.loads(text.decode())
    if "error" in answer:
        raise JobError(answer["error"])
    return answer["state"]


def read_answer(receiver):
    """Return what the supervisor answers, and whether it is late."""
    text = b""
    deadline = time.monotonic() + START_WAIT_S
    while True:
        ready, _, _ = select.select([receiver], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return text, True
        part = os.read(receiver, 65536)
        if not part:
            return text, False
        text += part


def run_supervisor(folder, options, token, starting, locks, sender, controller):
    """Run as the supervisor.

    Detach from the connection, run the job, and report a failed start.
    """
    answered = []

    def answer(value):
        """Send the first result to the waiting module, and end the claim on the folder."""
        if answered:
            return
        answered.append(value)
        with suppress(OSError):
            os.write(sender, json.dumps(value).encode())
        os.close(sender)
        # Only now may another start use this folder. From now on, it finds the state.
        os.close(starting)

    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    os.chdir("/")
    try:
        if locks[0] is not None:
            write_lock_owner(locks[0], folder.job_id, token, folder)
        Supervisor(folder, options, token, locks, controller).run(answer)
    except OSError as error:
        answer({"error": why_not_started(error, folder, options)})
    except (ValueError, subprocess.SubprocessError) as error:
        answer({"error": f"cannot start {options['argv'][0]}: {error}"})


def why_not_started(error, folder, options):
    """Return the error of a start with its remedy."""
    program, chdir = options["argv"][0], options["chdir"] or folder.path
    # The error names the folder if that is missing, or else the program.
    if error.filename == chdir:
        return str(job_error(error, chdir, "start in the folder"))
    if error.filename == program and error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"cannot start {program}: no such program on this node; install it or correct argv"
    if error.filename == program and error.errno == errno.EACCES:
        return f"cannot start {program}: it is not executable by user {user_name()}"
    if error.errno == errno.ENOEXEC:
        return f"cannot start {program}: it is not a program for this machine, or has no #! line"
    return str(job_error(error, error.filename or folder.path, "start the job with"))


def current_state(folder, state, change):
    """Return the state as it is on the node now. If the supervisor died, the job ended.

    Args:
        folder: The job's folder.
        state: The state that was last written.
        change: Whether to kill the remaining processes and write the result.
    """
    if state["phase"] == "running" and not has_supervisor(state):
        # The supervisor may write its final state between our two readings.
        state = folder.read_state() or state
    if state["phase"] == "ended":
        return state
    if has_supervisor(state):
        return dict(state, log_bytes=folder.log_bytes())
    leftovers, unkillable = 0, []
    if change:
        session = state["pgid"] if state["boot_id"] == boot_id() else None
        if session and read_process(session) and not is_running(session, state["start_ticks"]):
            session = None  # the id was given to another process since
        leftovers, unkillable = end_processes(
            lambda: job_processes(session, token=state["token"], log=os.path.realpath(folder.log)),
            time.sleep,
            2,
        )
    state = final_state(
        state,
        elapsed_s=None,
        ended_by="supervisor_died",
        exit_status=None,
        signal=None,
        leftovers=leftovers,
        unkillable=unkillable,
        log_bytes=folder.log_bytes(),
    )
    if change:
        try:
            folder.write_state(state)
        except OSError as error:
            raise job_error(error, folder.state, "write") from error
    return state


def reported_state(state):
    """Return the part of the state that callers see."""
    return {key: value for key, value in state.items() if key not in ("token", "version")}


def ensure_started(module, folder):
    """Start the job, or find it."""
    options = module.params
    if module.check_mode:
        state = folder.read_state()
        if state is None:
            return {"changed": True}
        state = current_state(folder, state, change=False)
        return {
            "changed": options["again"] and state["ended_by"] == "supervisor_died",
            "job": reported_state(state),
        }
    folder.create()
    with folder.starting() as starting:
        state = folder.read_state()
        if state is not None:
            state = current_state(folder, state, change=True)
            if not (options["again"] and state["ended_by"] == "supervisor_died"):
                return {"changed": False, "job": reported_state(state)}
        lock, machine_lock, killed = None, None, 0
        try:
            if options["machine_lock"]:
                machine_lock = take_machine_lock(options["machine_lock"])
            if options["lock"]:
                lock, killed = take_lock(options["lock"])
            state = start_supervised(folder, options, starting, (lock, machine_lock))
        finally:
            # The supervisor keeps its own copies.
            for descriptor in (lock, machine_lock):
                if descriptor is not None:
                    os.close(descriptor)
    return {"changed": True, "job": reported_state(state), "orphans_killed": killed}


def start_supervised(folder, options, starting, locks):
    """Write the job's description, start its supervisor, and return the state.

    Raises:
        JobError: The job cannot be started. Only a log that is not empty remains in the folder.
    """
    description = {
        "id": folder.job_id,
        "argv": options["argv"],
        "environment": {key: str(value) for key, value in options["environment"].items()},
        "secret_environment": sorted(options["secret_environment"]),
        "chdir": options["chdir"] or folder.path,
        "timeout_s": options["timeout_s"],
        "hang_s": options["hang_s"],
        "user": user_name(),
    }
    try:
        folder.write_job(description)
        try:
            folder.allocate()
        except OSError as error:
            raise job_error(error, folder.reserve, "write") from error
        return launch_supervisor(folder, options, uuid.uuid4().hex, starting, locks)
    except JobError:
        for path in (folder.job, folder.reserve):
            with suppress(OSError):
                os.unlink(path)
        with suppress(OSError):
            if folder.log_bytes() == 0:
                os.unlink(folder.log)
        raise


def find_job(module, folder):
    """Return the state of the job, and end the processes of a dead supervisor. A missing job is an error."""
    state = folder.read_state()
    if state is None:
        raise JobError(f"no job {folder.job_id!r} was started in {folder.path}")
    return {
        "changed": False,
        "job": reported_state(current_state(folder, state, change=not module.check_mode)),
    }


def stop_job(module, folder):
    """Stop the job if it runs."""
    state = folder.read_state()
    if state is None:
        return {"changed": False}
    state = current_state(folder, state, change=not module.check_mode)
    if state["phase"] == "ended":
        return {"changed": False, "job": reported_state(state)}
    if module.check_mode:
        return {"changed": True, "job": reported_state(state)}
    try:
        os.kill(state["supervisor_pid"], signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise job_error(
            error, "the job's supervisor (pid {})".format(state["supervisor_pid"]), "stop"
        ) from error
    # The supervisor uses the grace time that it was started with, not the grace time of this call.
    deadline = time.monotonic() + state["grace_s"] + 2 * KILL_WAIT_S
    while time.monotonic() < deadline:
        state = current_state(folder, folder.read_state() or state, change=True)
        if state["phase"] == "ended":
            return {"changed": True, "job": reported_state(state)}
        time.sleep(0.1)
    send_signal([state["supervisor_pid"]], signal.SIGKILL)
    time.sleep(0.2)
    return {"changed": True, "job": reported_state(current_state(folder, state, change=True))}


def check_options(options):
    """Raise ValueError for an unusable option, such as NaN."""
    if not re.match(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\Z", options["id"]):
        raise ValueError("id: letters, digits, '.', '_' and '-' only, not {!r}".format(options["id"]))
    for name in ("folder", "lock", "machine_lock", "chdir"):
        if options[name] and not os.path.isabs(options[name]):
            raise ValueError(f"{name}: an absolute path is needed, not {options[name]!r}")
    if options["state"] == "started":
        if not options["argv"]:
            raise ValueError("argv: at least the program is needed")
        for name in ("timeout_s", "log_limit_bytes"):
            if not 0 < options[name] < 1e15:
                raise ValueError(f"{name}: must be a number above 0, not {options[name]}")
    for name in ("hang_s", "grace_s"):
        if not 0 <= options[name] < 1e15:
            raise ValueError(f"{name}: must be a number from 0 up, not {options[name]}")


def main():
    """Run the module."""
    # Another user who could write the state of a job would decide its result.
    os.umask(os.umask(0o022) | 0o002)
    module = AnsibleModule(
        argument_spec={
            "id": {"type": "str", "required": True},
            "folder": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["started", "found", "absent"], "default": "started"},
            "argv": {"type": "list", "elements": "str"},
            "environment": {"type": "dict", "default": {}},
            "secret_environment": {"type": "dict", "default": {}, "no_log": True},
            "chdir": {"type": "path"},
            "timeout_s": {"type": "float"},
            "hang_s": {"type": "float", "default": 0},
            "grace_s": {"type": "float", "default": 10},
            "again": {"type": "bool", "default": False},
            "log_limit_bytes": {"type": "int", "default": 1 << 30},
            "lock": {"type": "path"},
            "machine_lock": {"type": "path"},
        },
        required_if=[("state", "started", ("argv", "timeout_s"))],
        supports_check_mode=True,
    )
    options = module.params
    try:
        check_options(options)
    except ValueError as error:
        module.fail_json(msg=str(error))
    folder = Folder(options["folder"], options["id"])
    act = {"started": ensure_started, "found": find_job, "absent": stop_job}[options["state"]]
    try:
        result = act(module, folder)
    except JobError as error:
        module.fail_json(msg=str(error), log=folder.log)
    module.exit_json(log=folder.log, **result)


if __name__ == "__main__":
    main()
