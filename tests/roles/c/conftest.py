"""Evaluate variables of a role for made-up hosts, from an inventory and faked facts, in one run of Ansible.

The tests in this folder read which files, packages and messages a role would have for a host. Nothing is
installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Later files override earlier ones: the role's defaults, its vars, and the variables of the case.
PLAYBOOK = """
- hosts: cases
  gather_facts: false
  connection: local
  tasks:
    - ansible.builtin.include_vars: "{{ role_folder }}/defaults/main.yml"
    - ansible.builtin.include_vars: "{{ role_folder }}/vars/main.yml"
    - ansible.builtin.include_vars: "{{ playbook_dir }}/{{ inventory_hostname }}.json"
    - ansible.builtin.copy:
        dest: "{{ playbook_dir }}/{{ inventory_hostname }}.values"
        content: "{{ dict(asked | zip(asked | map('extract', vars))) | to_json }}"
        mode: "0644"
"""
FACTS: dict[str, Any] = {
    "os": {"id": "debian", "version_id": "12"},
    "machine": "x86_64",
    "hostname": "case",
    "packages": {},
    "services": {},
    "files": {},
    "modes": {},
    "mounts": {},
    "unit_starts": {},
    "changed_at": {},
    "container": False,
}
"""The fact ``rackproof_node`` of a Debian 12 host on which nothing is installed."""


class Renderer:
    """A renderer of a role's variables. Call it only once for a role, because it makes a folder for it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder

    def __call__(
        self,
        role: str,
        asked: list[str],
        cases: dict[str, dict[str, Any]],
        groups: dict[str, dict[str, Any]] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Return, by case, the values of the variables in ``asked``.

        Args:
            role: Name of the role.
            asked: Names of variables.
            cases: By name of the case, the variables that differ from the role's defaults and from FACTS.
            groups: More groups of the inventory, by name.
        """
        folder = self.folder / role
        folder.mkdir()
        (folder / "templates").symlink_to(self.root / "roles" / role / "templates")
        (folder / "playbook.yml").write_text(PLAYBOOK)
        for name, variables in cases.items():
            (folder / f"{name}.json").write_text(json.dumps({"rackproof_node": FACTS, **variables}))
        shared = {
            "asked": asked,
            "role_folder": str(self.root / "roles" / role),
            "ansible_python_interpreter": sys.executable,
        }
        children = {"cases": {"hosts": {name: {} for name in cases}, "vars": shared}, **(groups or {})}
        (folder / "inventory.json").write_text(json.dumps({"all": {"children": children}}))
        done = run_playbook(self.root, folder / "inventory.json", folder / "playbook.yml")
        assert done.returncode == 0, done.stdout + done.stderr
        return {name: json.loads((folder / f"{name}.values").read_text()) for name in cases}


def run_playbook(root: Path, inventory: Path, playbook: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a playbook on the hosts of an inventory, in the root of the checkout."""
    return subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", inventory, playbook, *more],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def render(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """Return a renderer that the tests of a file share."""
    return Renderer(root, tmp_path_factory.mktemp("roles"))
