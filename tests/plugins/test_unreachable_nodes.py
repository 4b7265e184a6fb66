"""Test that an unreachable node counts as a failed one in waves (``rackproof_ansible.unreachable_nodes``).

Ansible runs no ``rescue`` for an unreachable node. If it was alone in its wave, Ansible ends the playbook:
the later waves do not start, and no task writes the record of the run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.roles.a.typed_playbook import play_on

# A fake ssh client that reaches no host.
CLIENT = """#!/bin/sh
echo "ssh: connect to host n1 port 22: Connection refused" >&2
exit 255
"""
REASON = (
    "n1 cannot be reached: ssh: connect to host n1 port 22: Connection refused: check that sshd runs there"
)


def block(name: str, **task: Any) -> dict[str, Any]:
    """Return a block that runs a task and prints the end of the block, with the reason if the task failed."""
    failed = f"{name}: {{{{ inventory_hostname }}}} failed: {{{{ ansible_failed_result | task_failure }}}}."
    done = f"{name}: {{{{ inventory_hostname }}}} done."
    command = {"ansible.builtin.command": "true", "changed_when": False, **task}
    return {
        "block": [command, {"ansible.builtin.debug": {"msg": done}}],
        "rescue": [{"ansible.builtin.debug": {"msg": failed}}],
    }


def play(*blocks: dict[str, Any], fails: bool) -> dict[str, Any]:
    """Return a play with one node in each wave, whose unreachable nodes fail or not."""
    variables = {"rackproof_unreachable_fails": True} if fails else {}
    return {"hosts": "all", "gather_facts": False, "serial": 1, "vars": variables, "tasks": [*blocks]}


@pytest.mark.playbook
def test_a_wave_of_one_unreachable_node_does_not_end_the_playbook(root: Path, tmp_path: Path) -> None:
    plays = [
        play(
            # Such a task fails only if it was not done at all.
            block("judged", failed_when=False),
            block("loop", failed_when=False, loop=["n2", "n1"], delegate_to="{{ item }}"),
            block("ignored", ignore_unreachable=True),
            fails=True,
        ),
        play(block("other"), fails=False),
    ]
    hosts = {
        "n1": {"ansible_connection": "ssh", "ansible_ssh_executable": str(tmp_path / "ssh")},
        "n2": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
    }
    (tmp_path / "ssh").write_text(CLIENT)
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    (tmp_path / "play.json").write_text(json.dumps(plays))
    printed = " ".join(play_on(tmp_path / "hosts.json", tmp_path / "play.json", root).split())
    for words in (
        f"judged: n1 failed: {REASON}",
        "judged: n2 done.",
        f"loop: n1 failed: {REASON}",
        f"loop: n2 failed: {REASON}",
        "ignored: n1 done.",
        "ignored: n2 done.",
    ):
        assert words in printed, printed
    # Without the variable, Ansible ends the playbook before the wave of n2.
    assert "UNREACHABLE" in printed
    assert "other: n" not in printed
