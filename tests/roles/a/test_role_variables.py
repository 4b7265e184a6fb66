"""Test role provision's check of the variables of all roles, before the first node is drained.

An operator gets one message for each node. It names every wrong variable with its role, and what to write
instead. The tests give each made-up node one or two mistakes, and show that no message has a secret.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError

from rackproof_ansible.role_variables import role_problems
from tests.roles.a.typed_playbook import play_on

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: provision, tasks_from: variables}
"""
# A secret that no message may contain.
CANARY = "canary-5d0c"
# By the name of a node: its wrong variables, and a part of its message ("": any message).
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "bool": ({"slurm_accounting": "maybe"}, "roles/slurm: slurm_accounting is 'maybe': write true or false"),
    "int": (
        {"slurm_return_to_service": "x"},
        "roles/slurm: slurm_return_to_service is 'x': write a whole number",
    ),
    "choice": ({"slurm_topology": "ring"}, "roles/slurm: slurm_topology is 'ring': write one of tree,"),
    "dict": ({"preflight_disk_gib": 5}, "roles/preflight: preflight_disk_gib is 5: write a mapping"),
    "provision": ({"provision_drain_timeout_s": "x"}, "roles/provision: provision_drain_timeout_s is 'x': "),
    "limits": ({"provision_tool_timeout_s": "x"}, "provision_tool_timeout_s is 'x': write a whole number"),
    "nested": (
        {"slurm_partitions": [{"name": "a", "rakcs": []}]},
        "roles/slurm: slurm_partitions is wrong: nothing reads slurm_partitions.rakcs (did you mean racks?)",
    ),
    "undefined": (
        {"storage_mounts": "{{ no_such }}"},
        "roles/storage: storage_mounts cannot be evaluated ('no_such'",
    ),
    "template": (
        {"enroot_pyxis_enroot_version": 3.5},
        "roles/enroot_pyxis: enroot_pyxis_release_url cannot be evaluated: it reads "
        "enroot_pyxis_enroot_version, which is a number: write enroot_pyxis_enroot_version as a text in "
        'quotes, such as "3.5"',
    ),
    "two": (
        {"slurm_accounting": "maybe", "imex_domains": {"a": "b"}},
        "roles/imex: imex_domains is {'a': 'b'}: write a list, such as [a, b]; roles/slurm: slurm_acc",
    ),
    "no_log": ({"slurm_munge_key": {CANARY: 1, "b": 2}}, ""),
    "secret in a mapping": (
        {"enroot_pyxis_options": [{"api_token": CANARY}]},
        "roles/enroot_pyxis: enroot_pyxis_options has a wrong value: write a mapping",
    ),
    "secret in a template": (
        {"enroot_pyxis_api_key": f"{{{{ '{CANARY}' | from_json }}}}"},
        "roles/enroot_pyxis: enroot_pyxis_api_key cannot be evaluated: correct it",
    ),
}
# Variables that are right, or that belong to a role that does not run on the node.
RIGHT: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no controller": {"slurm_controller_host": "", "slurm_accounting": "maybe"},
    "texts": {"slurm_accounting": "yes", "slurm_return_to_service": "2"},
    "other role": {"slurm_cluster_name": "{{ validate_resume_hours }}"},
    "templates": {"mine": "4.1.0-1", "enroot_pyxis_enroot_version": "{{ mine }}"},
}

pytestmark = pytest.mark.playbook


def play(playbook: Path, folder: Path, hosts: dict[str, dict[str, Any]], *options: str) -> str:
    """Run a playbook on this machine as GPU nodes with some variables. Return what it prints."""
    rack = {"hosts": {name.replace(" ", "-"): values for name, values in hosts.items()}}
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "slurm_controller_host": "ctl",
    }
    groups = {"gpu_nodes": {"children": {"rack": rack}}}
    inventory = folder / "inventory.yml"
    inventory.write_text(json.dumps({"all": {"children": groups, "vars": variables}}))
    return play_on(inventory, playbook, ROOT, "-f4", *options)


def messages(printed: str) -> dict[str, str]:
    """Return the message of each host that failed, in one line."""
    found = re.findall(r"^fatal: \[([^]]+)\].*\n((?:    .*\n)*)", printed, re.MULTILINE)
    return {name: " ".join(text.split()).replace("''", "'") for name, text in found}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the output of one run for all cases."""
    folder = tmp_path_factory.mktemp("variables")
    (folder / "playbook.yml").write_text(PLAYBOOK)
    hosts = {name: values for name, (values, _) in WRONG.items()} | RIGHT
    return play(folder / "playbook.yml", folder, hosts)


@pytest.mark.parametrize("case", WRONG)
def test_a_message_names_the_node_the_variable_and_what_to_write(printed: str, case: str) -> None:
    host, words = case.replace(" ", "-"), WRONG[case][1]
    said = messages(printed)
    if words:
        assert f"{host}: roles/" in said[host]
        assert words in said[host]
        assert len(said[host]) < 500
    assert "argument_spec_data" not in printed


def test_no_secret_is_printed(printed: str) -> None:
    assert CANARY not in printed


@pytest.mark.parametrize("case", RIGHT)
def test_right_variables_pass(printed: str, case: str) -> None:
    assert f"ok: [{case.replace(' ', '-')}]" in printed


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3.5, 'a_version, which is a number: write a_version as a text in quotes, such as "3.5"'),
        (True, "correct it, or what it reads: a_version"),
    ],
)
def test_true_for_a_text_is_not_called_a_number(value: object, message: str) -> None:
    def evaluate(template: object) -> object:
        if template == "{{ a_version }}.deb":
            raise AnsibleError("cannot join")
        return template

    specs = {"a": {"a_url": {"type": "str"}, "a_version": {"type": "str"}}}
    raw = {"a_url": "{{ a_version }}.deb", "a_version": value}
    problem, *_ = role_problems(specs, raw, evaluate)
    assert problem.endswith(f" {message}")


def test_variables_of_later_roles_are_refused_before_the_first_drain(tmp_path: Path) -> None:
    hosts: dict[str, dict[str, Any]] = {
        "n1": {"slurm_accounting": "maybe"},
        "n2": {"enroot_pyxis_enroot_version": 3.5},
    }
    printed = play(ROOT / "provision.yml", tmp_path, hosts, "-l", "rack", "--check")
    assert "Drain the nodes and wait for their jobs" not in printed
    assert "n1: roles/slurm: slurm_accounting is" in messages(printed)["n1"]
    for words in (
        "n1 is not provisioned, and is as it was: Check the variables of all roles: n1: roles/slurm: ",
        "n2 is not provisioned, and is as it was: Check the variables of all roles: n2: roles/enroot_pyxis: ",
    ):
        assert words in " ".join(printed.split())
    # No later task fails because of an undefined variable, and no task shows whole argument specs.
    assert "is undefined" not in printed
    assert len(printed.splitlines()) < 120
