"""Test ``--check`` of role slurm for nodes whose controller is bare, or cannot be reached.

A rack is often planned before its Slurm controller is installed. The controller's state is read once for all
nodes. These tests show that each node has this state, and that the message about an unreachable controller
states the cause.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from .conftest import run_playbook

NODES = ("n1", "n2", "n3")
PLAYBOOK = """
- hosts: rack
  gather_facts: false
  tasks:
    - rackproof_facts: {subset: provision}
    - ansible.builtin.include_role: {name: slurm, tasks_from: controller, public: true}
    - ansible.builtin.debug:
        msg: "SEES {{ inventory_hostname }} {{ slurm_controller_state.os.id | length > 0 }}"
"""
# The hardware of the made-up node model, from which the role writes the line of slurm.conf.
SKU: dict[str, Any] = {
    "slurm_sku_cpus": 8,
    "slurm_sku_sockets": 1,
    "slurm_sku_cores_per_socket": 8,
    "slurm_sku_threads": 1,
    "slurm_sku_real_memory_mb": 64000,
    "slurm_sku_gpu_type": "h100",
    "bench_sku_gpus": 1,
}
pytestmark = pytest.mark.playbook


def check(
    root: Path, folder: Path, controller: dict[str, Any], *options: str, **changes: Any
) -> tuple[int, str]:
    """Return exit status and output of the role in check mode. All nodes are this machine."""
    shared = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "slurm_controller_host": "ctl",
        "slurm_racks": ["rack"],
        "slurm_tool_timeout_s": 5,
        **SKU,
        **changes,
    }
    rack = {"hosts": {name: {} for name in NODES}, "vars": shared}
    inventory = {"all": {"hosts": {"ctl": controller}, "children": {"rack": rack}}}
    (folder / "inventory.json").write_text(json.dumps(inventory))
    (folder / "playbook.yml").write_text(PLAYBOOK)
    done = run_playbook(root, folder / "inventory.json", folder / "playbook.yml", "--check", *options)
    return done.returncode, done.stdout + done.stderr


def test_each_node_has_what_is_loaded_once_for_the_controller(root: Path, tmp_path: Path) -> None:
    controller = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    block = {"slurm_topology": "block", "slurm_version": "24.11.5"}
    status, output = check(root, tmp_path, controller, "--diff", **block)
    assert status == 0, output
    assert all(f"SEES {name} True" in output for name in NODES), output


def test_a_controller_that_is_down_is_what_is_reported(root: Path, tmp_path: Path) -> None:
    controller = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    status, output = check(root, tmp_path, controller, "--diff")
    assert status != 0
    assert "Connection refused" in output
    assert "undefined" not in output, output


@pytest.mark.parametrize(("present", "said"), [("n[1-3]", ""), ("n[1-3],rack2-n[1-2]", "rack2-n[1-2]")])
def test_nodes_that_the_inventory_lacks_stay_in_the_cluster(
    root: Path, tmp_path: Path, present: str, said: str
) -> None:
    controller = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    # This machine has no slurm.conf, so the answer of the task that reads it is given.
    content = {"content": b64encode(f"NodeName={present} CPUs=8\n".encode()).decode()}
    given = json.dumps({"slurm_current": content})
    status, output = check(root, tmp_path, controller, "-e", given)
    output = " ".join(output.split())
    assert (status == 0) == (said == ""), output
    if said:
        assert f"ctl:/etc/slurm/slurm.conf has {said}. The new file would only have the nodes" in output
        assert "Install the controller's packages" not in output
