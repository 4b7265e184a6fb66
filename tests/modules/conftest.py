"""Provide fixtures that run Ansible modules as processes, as on a node, and end the jobs that they start.

A module runs without ansible-playbook, which would take most of a test's time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# A program that runs a module as Ansible does on a node. The module's arguments are JSON on standard input.
DRIVER = """
import concurrent.futures, ctypes, fcntl, getpass, glob, json, os, pwd, resource, runpy
import select, signal, socket, subprocess, sys, tempfile, uuid
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
import ansible.module_utils
options = json.load(sys.stdin)
plugins = os.path.dirname(os.path.dirname(sys.argv[1]))
ansible.module_utils.__path__.append(os.path.join(plugins, "module_utils"))
import ansible.module_utils.rackproof_dpkg, ansible.module_utils.rackproof_tools
import ansible.module_utils.rackproof_load
# The journal of this machine's own dpkg is not the node's: an installation that goes on leaves files there.
ansible.module_utils.rackproof_dpkg.interrupted.__defaults__ = (options.pop("_dpkg_updates", "/nonexistent"),)
with open(sys.argv[1]) as stream:
    code = compile(stream.read(), sys.argv[1], "exec")
# Only now: the interpreter's own files may be private to the user who runs the tests.
if options.get("_user"):
    os.setuid(options.pop("_user"))
with patch_module_args(options):
    exec(code, {"__name__": "__main__"})
"""


class Modules:
    """A runner of modules. A call waits for the module's process, and returns its result.

    The option ``_user`` is the id of the user who runs the module, and ``_dpkg_updates`` the folder of dpkg's
    journal, which otherwise does not exist.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / "plugins" / "modules"

    def __call__(self, module: str, check: bool = False, **options: Any) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(self.folder / f"{module}.py")],
            input=json.dumps({**options, "_ansible_check_mode": check}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout.strip(), done.stderr
        return json.loads(done.stdout)


class Jobs:
    """A starter of jobs (rackproof_job) in a temporary folder. Each method takes the id of a job."""

    def __init__(self, modules: Modules, folder: Path) -> None:
        self.modules = modules
        self.folder = folder
        self.ids: set[str] = set()

    def __call__(self, job_id: str = "job", *script: str, **options: Any) -> dict[str, Any]:
        """Start a job that is a shell script of these lines, or find it. Return the module's result."""
        self.ids.add(job_id)
        options.setdefault("argv", ["sh", "-c", "\n".join(script)])
        options.setdefault("timeout_s", 60)
        return self.modules("rackproof_job", id=job_id, folder=str(self.folder / job_id), **options)

    def find(self, job_id: str = "job", **options: Any) -> dict[str, Any]:
        """Return the module's result for a job that exists."""
        return self.modules(
            "rackproof_job", id=job_id, folder=str(self.folder / job_id), state="found", **options
        )

    def stop(self, job_id: str = "job", **options: Any) -> dict[str, Any]:
        """Stop a job. Return the module's result."""
        return self.modules(
            "rackproof_job", id=job_id, folder=str(self.folder / job_id), state="absent", **options
        )

    def state(self, job_id: str = "job") -> dict[str, Any]:
        """Return the content of a job's state.json."""
        return json.loads((self.folder / job_id / "state.json").read_text())

    def log(self, job_id: str = "job") -> str:
        return (self.folder / job_id / "log.txt").read_text()

    def ended(self, job_id: str = "job", within_s: float = 300) -> dict[str, Any]:
        """Wait until the job has ended. Return its state."""
        return until(lambda: (s := self.state(job_id))["phase"] == "ended" and s, within_s)

    def logged(self, text: str, job_id: str = "job") -> str:
        """Wait until the log has a text. Return the log."""
        return until(lambda: text in (log := self.log(job_id)) and log)

    def processes(self, job_id: str = "job") -> list[int]:
        """Return the ids of all live processes with the job's token in their environment."""
        marker = f"RACKPROOF_JOB_TOKEN={self.state(job_id)['token']}".encode()
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _carries(pid, marker)]


def _carries(pid: int, marker: bytes) -> bool:
    """Return whether a live process has a text in its environment."""
    try:
        alive = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
        return alive and marker in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def until(condition: Callable[[], Any], within_s: float = 300) -> Any:
    """Wait until a condition is true. Return its value. Fail after the time limit."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"the condition was not true within {within_s:g} s"
        time.sleep(0.05)
    return value


@pytest.fixture(scope="session")
def modules(root: Path) -> Modules:
    """Return a runner of modules."""
    return Modules(root)


@pytest.fixture
def jobs(modules: Modules, tmp_path: Path) -> Iterator[Jobs]:
    """Return a function that starts jobs. No job outlives the test."""
    starter = Jobs(modules, tmp_path)
    yield starter
    for job_id in starter.ids:
        if not (tmp_path / job_id / "state.json").exists():
            continue
        try:
            state = starter.state(job_id)
        except ValueError:
            continue  # a test wrote a damaged state, without a job
        if isinstance(state, dict) and state.get("phase") == "running" and "pid" in state:
            for pid in [state["supervisor_pid"], *starter.processes(job_id)]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that puts fakes of tools on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return put
