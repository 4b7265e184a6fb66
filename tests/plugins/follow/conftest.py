"""Provide a controller that starts real ansible-playbook processes, whose output tests read while they run.

The playbook starts a job on this machine with rackproof_job, and follows it with rackproof_bench_follow. A
job can wait until the test makes a file (:meth:`Controller.release`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Start
      rackproof_job: {job}
    - name: Follow
      rackproof_bench_follow: {follow}
      register: followed
    - name: Keep
      ansible.builtin.copy:
        content: "{{{{ followed | to_json }}}}"
        dest: {result}
        mode: "0644"
      delegate_to: localhost
      check_mode: false
"""


class Playbook:
    """A running ansible-playbook in a separate process group, as under a terminal."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            argv,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def shown(self) -> list[str]:
        """Return the lines with the job's progress."""
        return [line for line in self.lines if line.startswith("run-1 · ")]

    def until(self, pattern: str, within_s: float = 300) -> str:
        """Wait for a line of the output while the playbook runs. Return the line."""
        deadline = time.monotonic() + within_s
        while True:
            for line in list(self.lines):
                if re.search(pattern, line):
                    return line
            assert self.process.poll() is None, f"ended without {pattern!r}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {pattern!r} in time:\n{self.output}"
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        """Send a signal to the playbook and all of its processes."""
        os.killpg(self.process.pid, number)

    def wait(self, within_s: float = 300) -> int:
        """Wait for the end. Return the exit status."""
        status = self.process.wait(within_s)
        self._reader.join(10)
        return status


class Controller:
    """A starter of playbooks on one node, which is this machine.

    The job's folder is ``run``. While the file ``lost`` exists, the connection ``flaky`` fails.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.run = folder / "node" / "run-1"
        self.result_file = folder / "result.json"
        self.playbooks: list[Playbook] = []
        (folder / "ansible.cfg").write_text(
            "[defaults]\n"
            f"library = {root}/plugins/modules\n"
            f"module_utils = {root}/plugins/module_utils\n"
            f"action_plugins = {root}/plugins/action\n"
            f"connection_plugins = {Path(__file__).parent}/connection\n"
            f"callback_plugins = {root}/plugins/callback\n"
            # As in the checkout's ansible.cfg.
            "stdout_callback = rackproof_output\n"
            "display_skipped_hosts = False\n"
            f"local_tmp = {folder}/tmp\n"
            "internal_poll_interval = 0.02\n"
            "localhost_warning = False\n"
        )

    def inventory(self, connection: str = "local", python: str = sys.executable) -> str:
        """Write an inventory with the node. Return its path."""
        file = self.folder / "hosts.yml"
        values = {
            "ansible_connection": connection,
            "ansible_python_interpreter": python,
            "ansible_remote_tmp": str(self.folder / "remote"),
        }
        file.write_text(json.dumps({"all": {"hosts": {"node-1": values}}}))
        return str(file)

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        return kept | {
            "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "FLAKY_WHILE": str(self.folder / "lost"),
            "PYTHONUNBUFFERED": "1",
        }

    def __call__(
        self,
        job: dict[str, Any] | None = None,
        follow: dict[str, Any] | None = None,
        check: bool = False,
        **node: str,
    ) -> Playbook:
        """Start a playbook that starts a job and follows it."""
        base = {"id": "run-1", "folder": str(self.run)}
        play = PLAY.format(
            job=json.dumps(base | {"timeout_s": 60, "argv": ["true"]} | (job or {})),
            follow=json.dumps(base | {"every_s": 60} | (follow or {})),
            result=json.dumps(str(self.result_file)),
        )
        file = self.folder / "play.yml"
        file.write_text(play)
        program = str(Path(sys.executable).parent / "ansible-playbook")
        argv = [program, "-i", self.inventory(**node), str(file), *(["--check"] if check else [])]
        self.playbooks.append(Playbook(argv, self.environment()))
        return self.playbooks[-1]

    @property
    def result(self) -> dict[str, Any]:
        """Return the result of the task that followed the job."""
        return json.loads(self.result_file.read_text())

    @property
    def state(self) -> dict[str, Any]:
        """Return the job's state file."""
        return json.loads((self.run / "state.json").read_text())

    def alive(self, which: str = "pid") -> bool:
        """Return whether the job's program (``pid``) or its supervisor (``supervisor_pid``) runs."""
        try:
            text = Path(f"/proc/{self.state[which]}/stat").read_text()
        except OSError:
            return False
        return text.rpartition(")")[2].split()[0] not in "ZX"

    def release(self, stage: str) -> None:
        """Make the file for which a command of :meth:`wait_for` waits."""
        (self.folder / stage).touch()

    def wait_for(self, stage: str) -> str:
        """Return a shell command that waits until the test calls :meth:`release`."""
        return f"until [ -e {self.folder / stage} ]; do sleep 0.05; done"

    def end(self) -> None:
        """Kill all playbooks, and the job with its supervisor."""
        for playbook in self.playbooks:
            if playbook.process.poll() is None:
                playbook.signal(signal.SIGKILL)
                playbook.process.wait()
        if (self.run / "state.json").exists() and self.state["phase"] == "running":
            for which in ("supervisor_pid", "pid"):
                if self.alive(which):
                    os.kill(self.state[which], signal.SIGKILL)


@pytest.fixture
def controller(root: Path, tmp_path: Path) -> Iterator[Controller]:
    """Yield a starter of playbooks, and end its processes after the test."""
    one = Controller(root, tmp_path)
    yield one
    one.end()


def until(condition: Callable[[], Any], within_s: float = 300) -> Any:
    """Wait until a condition is true. Return its value. Fail after the time limit."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value
