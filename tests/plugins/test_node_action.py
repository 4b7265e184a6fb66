"""Test ``rackproof_ansible.action.NodeAction``, the base class of actions that contact a node.

A node's answer is untrusted. The tests show that an incomplete answer fails only that node's task, that a
file is never larger on the controller than its limit, and that no secret of the controller is sent to a node.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError

from rackproof_ansible.action import ModuleFailedError, NodeAction


class Asking(NodeAction):
    """An action whose node gives a fixed answer."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.task_vars = {"inventory_hostname": "n1"}

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Ask the node."""
        return self.execute_module("rackproof_facts", "gathered")

    def execute_module_unchecked(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Return the fixed answer."""
        return self.answer


@pytest.mark.parametrize("answer", [{}, {"gathered": None}, {"gathered": "x"}, {"gathered": [1]}])
def test_an_answer_without_what_was_asked_for_is_a_failure_of_that_node(answer: dict[str, Any]) -> None:
    with pytest.raises(ModuleFailedError, match="n1 answered rackproof_facts without") as caught:
        Asking(answer).run_action({})
    assert caught.value.result["failed"]


@pytest.mark.parametrize("answer", [{"unreachable": True, "msg": "no route"}, {"failed": True}])
def test_a_failure_or_an_unreachable_node_is_raised_with_its_answer(answer: dict[str, Any]) -> None:
    with pytest.raises(ModuleFailedError) as caught:
        Asking(answer).run_action({})
    assert caught.value.result == answer


def test_an_answer_is_returned() -> None:
    assert Asking({"gathered": {"a": 1}}).run_action({}) == {"gathered": {"a": 1}}


class Running(NodeAction):
    """An action whose node is this machine."""

    def __init__(self, folder: Path) -> None:
        self._connection = self._shell = self
        self.folder = folder

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Run a script or a command."""
        if "script" in options:
            status, output = self.run_script(options["script"], 60)
        else:
            status, output, _ = self.run_command(options["command"])
        return {"status": status, "output": output}

    def join_path(self, *parts: str) -> str:
        """Return a path."""
        return "/".join(parts)

    def _make_tmp_path(self, remote_user: str | None = None) -> str:
        return str(self.folder)

    def write_file(self, path: str, text: str) -> None:
        """Write a file."""
        Path(path).write_text(text)

    def _low_level_execute_command(self, cmd: str, **_options: Any) -> dict[str, Any]:
        """Run a command as the connection local does."""
        done = subprocess.run(["/bin/sh", "-c", cmd], capture_output=True, text=True, check=False)
        return {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


@pytest.mark.parametrize(
    "name", ["RACKPROOF_DATABASE_URL", "RACKPROOF_SMTP_PASSWORD", "RACKPROOF_WEBHOOK_URL", "NETBOX_TOKEN"]
)
@pytest.mark.parametrize("how", ["script", "command"])
def test_a_script_or_command_gets_no_secret_of_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    monkeypatch.setenv(name, "canary-1")
    monkeypatch.setenv("HF_TOKEN", "canary-2")
    got = Running(tmp_path).run_action({how: "env; exit 3"})
    assert got["status"] == 3
    assert "canary-1" not in got["output"]
    assert "HF_TOKEN=canary-2" in got["output"]


class Fetching(NodeAction):
    """An action whose node is this machine, which may state another size than it sends."""

    def __init__(self, stated: str = "") -> None:
        self._connection, self.stated = self, stated
        self.task_vars = {"inventory_hostname": "n1"}

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Fetch a file of 100 bytes at most."""
        super().fetch_file(options["remote"], Path(options["local"]), 100)
        return {}

    def run_command(self, command: str) -> tuple[int, str, str]:
        """Run a command on this machine. Return the stated size instead of its output, if there is one."""
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
        return (0, self.stated, "") if self.stated else (done.returncode, done.stdout, done.stderr)

    def fetch_file(self, remote: str, local: str) -> None:
        """Copy a file in this process, as a connection does."""
        with Path(remote).open("rb") as source, Path(local).open("wb", buffering=0) as copy:
            shutil.copyfileobj(source, copy)


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_large(path: Path) -> None:
    """Make a file of 1 TiB that takes no space."""
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("make", [make_endless, make_large, os.mkfifo, Path.mkdir, lambda path: None])
def test_a_file_that_is_too_large_or_not_plain_is_not_fetched(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "log")
    with pytest.raises(AnsibleError, match=r"no plain file|more than 100"):
        Fetching().run_action({"remote": str(tmp_path / "log"), "local": str(tmp_path / "copy")})
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("make", [make_endless, make_large])
def test_no_more_than_the_stated_size_is_read(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "log")
    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        Fetching("100\n").run_action({"remote": str(tmp_path / "log"), "local": str(tmp_path / "copy")})
    assert (tmp_path / "copy").stat().st_size <= 100


@pytest.mark.parametrize("stated", ["", "-1", "1e3", "9" * 5000, "99999"])
def test_a_stated_size_that_is_no_number_or_too_large_is_refused(stated: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 100)
    options = {"remote": str(tmp_path / "log"), "local": str(tmp_path / "copy")}
    if stated:
        with pytest.raises(AnsibleError):
            Fetching(stated).run_action(options)
    else:
        Fetching().run_action(options)
        assert (tmp_path / "copy").read_bytes() == b"x" * 100
