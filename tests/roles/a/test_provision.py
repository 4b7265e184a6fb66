"""Test role provision: the packages that it installs on all nodes, and its summary of a failed node.

provision_packages is a list of names, or maps names to versions, and a package with a version is pinned. The
tests show what is refused as a package. They also show that the summary calls a node drained only if Slurm
knows the node and the role changed it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.roles.a.typed_playbook import play_on

from .conftest import Renderer, node

ROLE = "provision"
BY_OS = ""
ASKED = ["provision_packages_any", "provision_packages_pinned"]
# By case: the value of provision_packages, the packages of any version, and those with a pinned version.
CASES: dict[str, tuple[Any, dict[str, str], dict[str, str]]] = {
    "none": ([], {}, {}),
    "names": (["htop", "jq"], {"htop": "", "jq": ""}, {}),
    "pinned": ({"htop": "3.2.2-2"}, {}, {"htop": "3.2.2-2"}),
    "both": (
        {"htop": "", "jq": None, "nsight-systems-cli": "2025.3.1*"},
        {"htop": "", "jq": None},
        {"nsight-systems-cli": "2025.3.1*"},
    ),
}
PLAYBOOK = """
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - ansible.builtin.import_role: {name: provision, tasks_from: FILE}
"""
# Slurm knows and drained the node, and the role began to change it. Slurm does not know the node of UNKNOWN.
DRAINED = {"provision_drained": {"nodes": {"n1": {"known": True}}}, "provision_touched": True}

pytestmark = pytest.mark.playbook

UNKNOWN = {"provision_drained": {"nodes": {"n1": {"known": False}}}, "provision_touched": True}


WAVE = """
- hosts: all
  gather_facts: false
  connection: local
  vars: {ansible_python_interpreter: PYTHON, slurm_controller_host: "", enroot_pyxis_api_key: ""}
  tasks:
    - block:
        - ansible.builtin.fail: {msg: its mirror does not answer}
          when: inventory_hostname == 'n1'
        - ansible.builtin.import_role: {name: provision, tasks_from: drain}
        - ansible.builtin.debug: {msg: "drained: {{ provision_drain_nodes | join(' ') }}."}
        - ansible.builtin.import_role: {name: enroot_pyxis, tasks_from: check_key}
        - ansible.builtin.debug: {msg: "checks the key: {{ enroot_pyxis_checks_key }}."}
      rescue:
        - ansible.builtin.debug: {msg: failed}
"""


def play(root: Path, folder: Path, file: str, variables: dict[str, Any], *options: str) -> str:
    """Run one file of tasks of the role on one made-up host, and return what is printed."""
    (folder / "playbook.yml").write_text(PLAYBOOK.replace("FILE", file))
    host = {"ansible_python_interpreter": sys.executable, **variables}
    inventory = folder / "inventory.yml"
    inventory.write_text(json.dumps({"all": {"hosts": {"n1": host}}}))
    return play_on(inventory, folder / "playbook.yml", root, *options)


@pytest.fixture(scope="module")
def rendered(render: Renderer) -> dict[str, dict[str, Any]]:
    cases = {name: {"rackproof_node": node(), "provision_packages": case[0]} for name, case in CASES.items()}
    return render(cases, ASKED)


@pytest.mark.parametrize("case", CASES)
def test_packages_are_names_or_name_to_version(rendered: dict[str, dict[str, Any]], case: str) -> None:
    _, any_version, pinned = CASES[case]
    assert rendered[case] == {"provision_packages_any": any_version, "provision_packages_pinned": pinned}


@pytest.mark.parametrize("packages", ["htop", ["-o Dpkg::x"], {"a b": ""}, ["htop", "x; y"]])
def test_what_is_no_package_is_refused(root: Path, tmp_path: Path, packages: Any) -> None:
    printed = play(
        root, tmp_path, "packages", {"rackproof_node": node(), "provision_packages": packages}, "--check"
    )
    assert "n1: provision_packages has to be a list of names" in printed
    assert "Install the" not in printed


def test_a_node_that_failed_before_the_drain_is_not_drained(root: Path, tmp_path: Path) -> None:
    inventory, playbook = tmp_path / "inventory.yml", tmp_path / "playbook.yml"
    inventory.write_text(json.dumps({"all": {"hosts": dict.fromkeys(["n1", "n2", "n3"])}}))
    playbook.write_text(WAVE.replace("PYTHON", sys.executable))
    printed = play_on(inventory, playbook, root)
    assert printed.count("drained: n2 n3.") == 2, printed
    assert printed.count("checks the key: n2.") == 2, printed


@pytest.mark.parametrize(
    ("variables", "options", "words"),
    [
        (DRAINED, (), "n1 is not provisioned and stays drained: "),
        (DRAINED, ("--check",), "n1 is not provisioned, and is as it was: "),
        (DRAINED | {"provision_touched": False}, (), "n1 is not provisioned, and is as it was: "),
        ({}, (), "n1 is not provisioned, and is as it was: "),
        ({"provision_touched": True}, (), "n1 is not provisioned: "),
        (UNKNOWN, (), "n1 is not provisioned: "),
    ],
)
def test_the_summary_calls_drained_what_is(
    root: Path, tmp_path: Path, variables: dict[str, Any], options: tuple[str, ...], words: str
) -> None:
    given = {"rackproof_node": node(), "provision_failure": "disk full", **variables}
    assert f"{words}disk full" in play(root, tmp_path, "summary", given, *options)
