"""Test that a playbook's lines of progress reach a pipe at once, and not when its buffer of 8 KiB is full.

`rackproof bench` reads the output of its playbook from a pipe. A buffered line would appear minutes late.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# An action that shows three lines. After each line, it waits until the test has read it.
ACTION = """
import time
from pathlib import Path
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        for number in range(3):
            Display().display(f"run-1 · localhost · step {number}/3")
            seen = Path(self._task.args["folder"]) / str(number)
            while not seen.exists():
                time.sleep(0.05)
        return {"changed": False}
"""
PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - show_steps: {folder: "{{ playbook_dir }}"}
"""


@pytest.mark.playbook
def test_each_line_can_be_read_while_the_job_runs(root: Path, tmp_path: Path) -> None:
    """The action continues only after its line was read, so a buffered line would make it wait forever."""
    (tmp_path / "action_plugins").mkdir()
    (tmp_path / "action_plugins" / "show_steps.py").write_text(ACTION)
    (tmp_path / "play.yml").write_text(PLAY)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= {
        "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "rackproof_events",
        "ANSIBLE_NOCOLOR": "1",
    }
    program = Path(sys.executable).with_name("ansible-playbook")
    playbook = subprocess.Popen(
        [program, "-i", "localhost,", tmp_path / "play.yml"],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert playbook.stdout is not None
    lines = []
    for line in playbook.stdout:
        if "step" in line:
            (tmp_path / str(len(lines))).touch()
            lines.append(line.strip())
    assert (playbook.wait(), lines) == (0, [f"run-1 · localhost · step {number}/3" for number in range(3)])
