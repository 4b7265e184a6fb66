"""Test that the Ansible facts of a node replace no variable of a role or of the inventory, nor its name.

A module's answer may contain ``ansible_facts``. By Ansible's default, these become variables, so a hostile
node could replace the operator's values. Rackproof's ansible.cfg prevents that. Here, a node answers each
module with forged facts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.playbook
# Variables of the inventory, and the facts of the hostile node.
GIVEN = {"slurm_controller_host": "ctl", "bench_sku": "h200", "validate_drain": False, "reimage_mac": "m"}
FORGED = {
    "slurm_controller_host": "liar",
    "bench_sku": "liars",
    "validate_drain": True,
    "reimage_mac": "l",
    "inventory_hostname": "good",
    "groups": {"all": ["liar"]},
    "bench_require_references": False,
    "rackproof_node": {"os": {"id": "its own"}},
    "ansible_become_user": "liar",
}
ASKED = (*GIVEN, "inventory_hostname", "bench_require_references", "ansible_become_user")


@pytest.fixture(scope="module")
def seen(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Return, by module, the values of the node's variables after it has answered that module."""
    folder = tmp_path_factory.mktemp("facts")
    answer = {"changed": False, "stat": {"exists": False}, "rc": 0, "stdout": "", "ansible_facts": FORGED}
    liar = folder / "python"
    # An attacker with root on the node can replace its interpreter, and so answers every module.
    liar.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    liar.chmod(0o755)
    modules: dict[str, dict[str, str]] = {
        "ansible.builtin.stat": {"path": "/"},
        "ansible.builtin.command": {"cmd": "true"},
        "rackproof_facts": {"subset": "provision"},
    }
    shown = "{{ dict(asked | zip(asked | map('extract', vars_of_node))) }}"
    for module, words in modules.items():
        tasks = [
            {"name": "Ask", module: words},
            {
                "name": "Keep",
                "ansible.builtin.copy": {"content": shown, "dest": str(folder / module), "mode": "0600"},
                "delegate_to": "good",
                "vars": {
                    "asked": [*ASKED, "os", "all"],
                    "vars_of_node": {
                        **{name: f"{{{{ {name} | default('unset') }}}}" for name in ASKED},
                        "os": "{{ rackproof_node.os.id | default('unset') }}",
                        "all": "{{ groups.all }}",
                    },
                },
            },
        ]
        play = {"hosts": "bad", "gather_facts": False, "tasks": tasks}
        (folder / f"{module}.json").write_text(json.dumps([play]))
    hosts = {
        "bad": {"ansible_connection": "local", "ansible_python_interpreter": str(liar)},
        "good": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
    }
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": GIVEN}}))
    for module in modules:
        done = subprocess.run(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                *("-i", folder / "hosts.json", folder / f"{module}.json"),
            ],
            env=os.environ | {"ANSIBLE_CONFIG": str(root / "ansible.cfg")},
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return {module: json.loads((folder / module).read_text()) for module in modules}


def test_a_node_replaces_no_variable_by_facts(seen: dict[str, dict[str, object]]) -> None:
    wanted = GIVEN | {"inventory_hostname": "bad", "all": ["bad", "good"]}
    wanted |= {"bench_require_references": "unset", "ansible_become_user": "unset"}
    for module, variables in seen.items():
        assert {name: variables[name] for name in wanted} == wanted, module


def test_what_rackproof_gathers_of_a_node_is_a_variable(seen: dict[str, dict[str, object]]) -> None:
    assert seen["rackproof_facts"]["os"] == "its own"
