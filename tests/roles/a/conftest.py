"""Evaluate variables of a role for made-up nodes of each operating system, in one run of Ansible.

Most tests in this folder describe a node by the fact ``rackproof_node``, and check the files, packages and
messages that the role computes for it. Nothing is installed.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PLAYBOOK = """
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - ansible.builtin.include_vars: "{{ role_folder }}/defaults/main.yml"
    - ansible.builtin.include_vars: "{{ role_folder }}/vars/main.yml"
    - ansible.builtin.include_vars: "{{ role_folder }}/vars/{{ os_file }}"
      when: os_file | length > 0
    # The variables of a case replace those of the role, including the ones in vars/.
    - ansible.builtin.include_vars: "{{ playbook_dir }}/{{ inventory_hostname }}.json"
    - ansible.builtin.set_fact:
        rendered: "{{ dict(asked | zip(asked | map('extract', vars))) }}"
    - ansible.builtin.copy:
        dest: "{{ playbook_dir }}/values.json"
        mode: "0644"
        content: "{{ dict(ansible_play_hosts | zip(found)) | to_json }}"
      run_once: true
      vars:
        found: "{{ ansible_play_hosts | map('extract', hostvars, 'rendered') | list }}"
"""

NODE: dict[str, Any] = {
    "os": {
        "id": "debian",
        "version_id": "12",
        "codename": "bookworm",
        "name": "Debian GNU/Linux 12 (bookworm)",
    },
    "architecture": "amd64",
    "container": False,
    "kernel": "6.1.0-30-amd64",
    "kernel_command_line": "root=/dev/sda1 ro",
    "packages": {},
    "modules": {},
    "services": {},
    "files": {},
    "unit_starts": {},
    "changed_at": {},
    "commands": {"nvidia_smi_query": {"status": "absent"}, "nvidia_smi_list": {"status": "absent"}},
    "tuning": {
        "sysctl": {"kernel.numa_balancing": "1", "vm.nr_hugepages": "0"},
        "sysctl_files": {},
        "governors": ["powersave"],
        "transparent_hugepages": "always [madvise] never",
    },
}
"""The fact ``rackproof_node`` of a Debian 12 node without a GPU driver, packages or tuning."""
SYSTEMS = {
    "debian-12": "bookworm",
    "debian-13": "trixie",
    "ubuntu-22.04": "jammy",
    "ubuntu-24.04": "noble",
}
"""The code name of each supported release, which is its suite in apt's sources."""


def node(system: str = "debian-12", architecture: str = "amd64", **changes: Any) -> dict[str, Any]:
    """Return the fact ``rackproof_node`` of a made-up node. ``changes`` replace whole entries of NODE."""
    made = copy.deepcopy(NODE)
    name, _, version = system.partition("-")
    made["os"] = {"id": name, "version_id": version, "codename": SYSTEMS[system], "name": system}
    made["architecture"] = architecture
    return {**made, **changes}


class Renderer:
    """A renderer of one role's variables, for many nodes in one run of Ansible. Call it only once.

    The variables of a case replace those of the role, including the ones in vars/.
    """

    def __init__(self, root: Path, folder: Path, role: str, by_os: str) -> None:
        self.root = root
        self.folder = folder
        self.role = root / "roles" / role
        self.by_os = by_os

    def __call__(self, cases: dict[str, dict[str, Any]], asked: list[str]) -> dict[str, dict[str, Any]]:
        """Return the values of the variables ``asked``, by case.

        A case has the variables of one node, among them the fact ``rackproof_node``.
        """
        (self.folder / "templates").symlink_to(self.role / "templates")
        (self.folder / "playbook.yml").write_text(PLAYBOOK)
        hosts = {}
        for name, variables in cases.items():
            system = variables["rackproof_node"]["os"]
            file = {"version": f"{system['id']}-{system['version_id']}.yml", "id": f"{system['id']}.yml"}
            hosts[name] = {"os_file": file.get(self.by_os, "")}
            (self.folder / f"{name}.json").write_text(json.dumps(variables))
        shared = {"asked": asked, "role_folder": str(self.role), "ansible_python_interpreter": sys.executable}
        inventory = {"all": {"hosts": hosts, "vars": shared}}
        (self.folder / "inventory.yml").write_text(json.dumps(inventory))
        done = subprocess.run(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                "-f4",
                "-i",
                self.folder / "inventory.yml",
                self.folder / "playbook.yml",
            ],
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((self.folder / "values.json").read_text())


@pytest.fixture(scope="module")
def render(root: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Renderer:
    """Return a renderer for the module's ROLE.

    The module's BY_OS states how the role names its files in vars/ for operating systems: "version"
    (debian-12.yml), "id" (debian.yml), or "" for a role without such files.
    """
    module = request.module
    return Renderer(root, tmp_path_factory.mktemp(module.ROLE), module.ROLE, module.BY_OS)
