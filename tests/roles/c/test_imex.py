"""Test role imex on nodes of an NVLink domain, and its message for a node that cannot be in one.

An NVLink domain consists of the nodes whose GPUs one NVLink fabric connects, as in an NVL72 rack. IMEX is
NVIDIA's service that lets them share GPU memory. It needs the same list of addresses on each node, and must
have the version of the driver. The tests show that the role changes only what differs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import FACTS, Renderer, run_playbook

pytestmark = pytest.mark.playbook

OPTION = """\
# Made by Rackproof's role imex; changes by hand are lost.
options nvidia NVreg_CreateImexChannel0=1
"""
LIST = "10.0.0.1\n10.0.0.2\nfd00::3\n"
DRIVER = {
    "nvidia_smi_query": {
        "status": "ok",
        "stdout": "0, GPU-1, 580.95.05, Enabled\n1, GPU-2, 580.95.05, Enabled\n",
    }
}
FILES = {
    "/etc/modprobe.d/rackproof-imex.conf": hashlib.sha256(OPTION.encode()).hexdigest(),
    "/etc/nvidia-imex/nodes_config.cfg": hashlib.sha256(LIST.encode()).hexdigest(),
}
ASKED = [
    *(
        "imex_files",
        "imex_packages",
        "imex_missing_packages",
        "imex_list_changed",
        "imex_option_due",
        "imex_needs_reboot",
    ),
    "imex_stopped",
    "imex_outdated",
]
UP = {"nvidia-imex.service": {"active": True, "enabled": True}}
GROUPS = {
    "rack-a": {
        "hosts": {
            "a1": {"ansible_host": "10.0.0.1"},
            # imex_address takes precedence over the address by which Ansible reaches the node.
            "a2": {"ansible_host": "192.0.2.2", "imex_address": "10.0.0.2"},
            "a3": {"imex_address": "fd00::3"},
        }
    }
}


def installed(version: str, held: bool = True) -> dict[str, Any]:
    """Return the package of IMEX as the fact lists it."""
    return {"nvidia-imex": {"version": version, "held": held}}


def case(**state: Any) -> dict[str, Any]:
    """Return the variables of a node in the domain rack-a, with ``state`` in its fact."""
    facts = {**FACTS, "modules": {}, "commands": DRIVER, **state}
    return {"imex_domain": "rack-a", "rackproof_node": facts}


@pytest.fixture(scope="module")
def values(render: Renderer) -> dict[str, dict[str, Any]]:
    """Return the values of ASKED for nodes in different states, by the name of the state."""
    whole = {
        "files": FILES,
        "packages": installed("580.95.05-1"),
        "services": UP,
        "modules": {"nvidia": "580.95.05"},
        "imex_channel": True,
        "unit_starts": {"nvidia-imex.service": 20.0},
        "changed_at": {"/etc/nvidia-imex/nodes_config.cfg": 10.0},
    }
    return render(
        "imex",
        ASKED,
        {
            "fresh": case(),
            "done": case(**whole),
            "loaded": case(modules={"nvidia": "580.95.05"}),
            "upgraded": case(**{**whole, "packages": installed("570.172.08-1")}),
            "not-held": case(**{**whole, "packages": installed("580.95.05-1", held=False)}),
            "edited": case(**{**whole, "files": {**FILES, "/etc/nvidia-imex/nodes_config.cfg": "x"}}),
            # The driver was loaded from an initramfs without the option.
            "no-channel": case(**{**whole, "imex_channel": False}),
            # A playbook ended between the list and the restart.
            "outdated": case(**{**whole, "changed_at": {"/etc/nvidia-imex/nodes_config.cfg": 30.0}}),
            "stopped": case(
                **{**whole, "services": {"nvidia-imex.service": {"active": False, "enabled": True}}}
            ),
        },
        GROUPS,
    )


def test_all_nodes_of_a_domain_get_the_same_list_and_the_drivers_version(values: dict[str, Any]) -> None:
    for found in values.values():
        assert [one["content"] for one in found["imex_files"]] == [LIST]
        assert found["imex_packages"] == {"nvidia-imex": "580.95.05-*"}


def test_only_what_differs_is_done(values: dict[str, Any]) -> None:
    keys = ("imex_list_changed", "imex_option_due", "imex_needs_reboot", "imex_stopped", "imex_outdated")
    unmet = {name: bool(found["imex_missing_packages"]) for name, found in values.items()}
    due = {name: [key for key in keys if found[key]] for name, found in values.items()}
    assert due == {
        "fresh": ["imex_list_changed", "imex_option_due", "imex_stopped"],
        "done": [],
        # The driver was loaded without the option, and made no IMEX channel.
        "loaded": ["imex_list_changed", "imex_option_due", "imex_needs_reboot", "imex_stopped"],
        "upgraded": [],
        "not-held": [],
        "edited": ["imex_list_changed"],
        "no-channel": ["imex_needs_reboot"],
        "outdated": ["imex_outdated"],
        "stopped": ["imex_stopped"],
    }
    assert {name for name, lacks in unmet.items() if lacks} == {"fresh", "loaded", "upgraded", "not-held"}


PLAYBOOK = """
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - name: Set IMEX up
      block:
        - ansible.builtin.import_role: {name: imex}
        - ansible.builtin.set_fact: {said: done}
      rescue:
        - ansible.builtin.set_fact:
            said: "{{ ansible_failed_result.msg }}"
    - ansible.builtin.copy:
        dest: "{{ playbook_dir }}/{{ inventory_hostname }}.said"
        content: "{{ said }}"
        mode: "0644"
"""


def test_a_node_that_cannot_be_in_a_domain_gets_the_reason(root: Path, tmp_path: Path) -> None:
    facts = {**FACTS, "modules": {}, "commands": DRIVER}
    none = {**facts, "commands": {"nvidia_smi_query": {"status": "absent"}}}
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "off": ({"imex_enabled": False, "rackproof_node": none}, "done"),
        "stray": (
            {"imex_domains": ["rack-a"], "rackproof_node": facts},
            "none of the groups that are an NVLink domain",
        ),
        "empty": ({"imex_domains": [], "rackproof_node": facts}, "imex_domains: empty"),
        "bare": (
            {"imex_domains": ["rack-b"], "rackproof_node": none},
            "nvidia-smi reports no driver version",
        ),
    }
    hosts = {name: {"imex_enabled": True, **variables} for name, (variables, _said) in cases.items()}
    shared, racks = {"ansible_python_interpreter": sys.executable}, {"rack-b": {"hosts": {"bare": {}}}}
    (tmp_path / "inventory.json").write_text(
        json.dumps({"all": {"hosts": hosts, "vars": shared, "children": racks}})
    )
    (tmp_path / "playbook.yml").write_text(PLAYBOOK)
    done = run_playbook(root, tmp_path / "inventory.json", tmp_path / "playbook.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    for name, (_variables, said) in cases.items():
        message = (tmp_path / f"{name}.said").read_text()
        assert said in message, name
        assert said == "done" or name in message
