"""Test the limit of a node's answer over ssh (``rackproof_ansible.bounded_answers``).

A broken or hostile node may answer without end. Ansible alone would read until its memory is used up. With
the limit, the task fails on that node only. The limit is 64 MiB in a playbook, and 1 MiB or less here. Files
that are copied from a node may be larger.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rackproof_ansible import bounded_answers

# A fake ssh client. It runs the last argument on this machine, and reads all input, as a real client does.
CLIENT = """#!/bin/bash
exec 3<&0
cat <&3 >/dev/null &
sh -c "${!#}" </dev/null
"""
# For each node, a shell command whose answer has no end.
ENDLESS = {
    "one_line": "cat /dev/zero | tr '\\0' A",
    "lines": "yes",
    "errors": "yes >&2",
    "after_an_answer": "echo '{\"changed\": false}'; yes",
}
# A program that runs ansible-playbook with a limit of 1 MiB.
PROGRAM = (
    "import sys; from rackproof_ansible import bounded_answers; bounded_answers.MOST_BYTES = 1 << 20;"
    "from ansible.cli.playbook import main; sys.argv[0] = 'ansible-playbook'; main()"
)


@pytest.mark.playbook
@pytest.mark.parametrize("module", ["rackproof_facts", "ansible.builtin.command", "ansible.builtin.raw"])
def test_an_answer_without_end_is_one_failed_node(module: str, root: Path, tmp_path: Path) -> None:
    hosts: dict[str, dict[str, str]] = {}
    for name, script in {**ENDLESS, "good": "echo '{\"changed\": false}'"}.items():
        python = tmp_path / name
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        hosts[name] = {"ansible_python_interpreter": str(python), "ansible_connection": "ssh"}
    (tmp_path / "ssh").write_text(CLIENT)
    (tmp_path / "ssh").chmod(0o755)
    arguments = {"rackproof_facts": {}, "ansible.builtin.command": {"cmd": "true"}}.get(
        module, {"_raw_params": "{{ ansible_python_interpreter }}"}
    )
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"name": "Ask", module: arguments}]}
    (tmp_path / "play.json").write_text(json.dumps([play]))
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-i", tmp_path / "hosts.json", tmp_path / "play.json"],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
            "ANSIBLE_SSH_EXECUTABLE": str(tmp_path / "ssh"),
            "ANSIBLE_SSH_ARGS": "-C",
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
            "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
            "ANSIBLE_NOCOLOR": "1",
        },
        cwd=root, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.stdout.count("msg: 'Task failed: it answered a command with more than 1 MiB") == len(ENDLESS)
    for name in ENDLESS:
        assert f"fatal: [{name}]" in done.stdout
    assert "fatal: [good]" not in done.stdout


@pytest.mark.parametrize("is_command", [True, False])
def test_a_file_that_is_copied_may_be_larger(is_command: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_answers, "MOST_BYTES", 1 << 16)
    monkeypatch.setattr(bounded_answers._BoundedProcess, "is_command", is_command)
    with bounded_answers._BoundedProcess(
        ["head", "-c", "100000", "/dev/zero"], stdout=subprocess.PIPE
    ) as copy:
        assert copy.stdout is not None
        if is_command:
            with pytest.raises(Exception, match="more than 0 MiB"):
                copy.stdout.read()
        else:
            assert len(copy.stdout.read()) == 100000
