"""Provide four nodes on this machine that reimage.yml and provision.yml can change.

The nodes are those of tests/e2e/validate/conftest.py: interpreters that see fake hardware, and a fake Slurm.
Here, each node also has its own boot id, so that it can be "imaged": the method ``rack`` calls a script that
stores a new boot id. Roles that would change this machine are replaced by empty ones. Marker files in a
node's folder (``Rack.mark``) let the image or the role storage wait or fail.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ROLES = (
    "preflight",
    "apt_mirror",
    "node_tuning",
    "lambda_stack",
    "ofed",
    "imex",
    "peer_memory",
    "nvidia_container",
    "enroot_pyxis",
)
# Imitates `rack.py renew NODE`: it lists the node in the file "renewed", and gives it a new boot id. With the
# marker no-image it fails, and with hold-image it waits.
RENEW = """#!/bin/sh
test "$1" = renew || exit 1
if [ -e {folder}/$2/no-image ]; then echo "the image cannot be had" >&2; exit 1; fi
echo $2 >> {folder}/renewed
while [ -e {folder}/$2/hold-image ]; do sleep 0.1; done
od -An -N16 -tx1 /dev/urandom > {folder}/$2/boot_id
"""
# Replaces the role storage: it waits while the marker hold exists, and then fails if the marker broken
# exists. So tests can stop a node in the middle of provisioning.
STORAGE = """
- name: Mount the storage
  ansible.builtin.command: >-
    sh -c 'while [ -e {folder}/{{{{ inventory_hostname }}}}/hold ]; do sleep 0.1; done;
    test ! -e {folder}/{{{{ inventory_hostname }}}}/broken'
  changed_when: false
"""
# Replaces the role storage, too: ssh does not reach the node from there on.
SILENT = """
- name: Mount the storage
  ansible.builtin.ping:
  vars: {ansible_connection: ssh, ansible_host: 192.0.2.1, ansible_ssh_common_args: "-o ConnectTimeout=1"}
  when: inventory_hostname == 'NODE'
"""


def _load() -> Any:
    """Return the conftest module of validate.yml's tests, whose fixtures are used here, too."""
    path = ROOT / "tests/e2e/validate/conftest.py"
    spec = importlib.util.spec_from_file_location("validate_fleet", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


validate_fleet = _load()
pristine = validate_fleet.pristine
fleet = validate_fleet.fleet


class Rack:
    """The fleet, with methods that run playbooks on it and prepare or read the state of its nodes."""

    def __init__(self, fleet: Any) -> None:
        self.fleet = fleet
        self.folder: Path = fleet.folder
        self.results: Path = fleet.results

    def mark(self, node: str, word: str, on: bool = True) -> None:
        """Make or remove a marker of a node: no-image, hold-image, hold or broken."""
        path = self.folder / node / word
        path.parent.mkdir(exist_ok=True)
        path.write_text("") if on else path.unlink(missing_ok=True)

    def silence(self, node: str) -> None:
        """Make a node unreachable in the middle of provisioning."""
        (self.folder / "roles/storage/tasks/main.yml").write_text(SILENT.replace("NODE", node))

    @property
    def renewed(self) -> list[str]:
        """Return the nodes that got a new image, in order, once for each image."""
        path = self.folder / "renewed"
        return path.read_text().split() if path.exists() else []

    def drained(self) -> dict[str, str]:
        """Return the reason of each drained node."""
        return {node: reason for node, reason in self.fleet.slurm["nodes"].items() if reason}

    def command(self, *words: str) -> tuple[list[Any], dict[str, Any]]:
        """Return the command line of a playbook, and the options of ``subprocess`` for it."""
        argv = [Path(sys.executable).with_name("ansible-playbook"), "-i", self.folder / "hosts.yml", *words]
        environment = {
            # The default folder is in the checkout, and may have results of real nodes. A test may choose
            # another folder in its environment.
            "RACKPROOF_RESULTS": f"{self.folder}/kept",
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "COLUMNS": "300",
            "ANSIBLE_ROLES_PATH": f"{self.folder}/roles:{ROOT}/roles",
            # Slurm's host runs commands in a shell, which finds the fakes of Slurm here. Nodes have another
            # PATH.
            "PATH": f"{self.folder}/ctl/usr/bin:{os.environ['PATH']}",
        }
        return argv, {"cwd": ROOT, "env": environment, "text": True}

    def reimage(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.play("reimage.yml", "-e", "reimage_method=rack", *words)

    def play(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv, options = self.command(*words)
        return subprocess.run(argv, **options, capture_output=True, timeout=400, check=False)

    def killed_when(self, holds: Any, *words: str) -> None:
        """Start reimage.yml. Kill it with all its processes as soon as ``holds()`` is true."""
        argv, options = self.command("reimage.yml", "-e", "reimage_method=rack", *words)
        process = subprocess.Popen(
            argv, **options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            end = time.monotonic() + 100
            while not holds():
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def rack(fleet: Any) -> Rack:
    """Return four nodes (n01 to n04), an unreachable one (gone), and their Slurm controller."""
    folder: Path = fleet.folder
    for name in validate_fleet.NODES:
        (folder / name / "boot_id").write_text(f"the boot of {name} before\n")
        interpreter = folder / name / "python"
        text = interpreter.read_text()
        # The interpreter sees the node's own boot id in /proc, as on a separate machine. It needs root.
        text = text.replace(
            "exec ",
            'exec unshare -m sh -c \'mount --bind "$0" /proc/sys/kernel/random/boot_id; exec "$@"\' '
            f"{folder / name}/boot_id ",
        )
        interpreter.write_text(text)
    probe = subprocess.run(
        [folder / "n01/python", "-c", "print(open('/proc/sys/kernel/random/boot_id').read())"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "the boot of n01 before" not in probe.stdout:
        pytest.skip("a boot of its own for each node needs root")
    for name in (*ROLES, "storage", "slurm"):
        tasks = folder / "roles" / name / "tasks"
        tasks.mkdir(parents=True)
        (tasks / "main.yml").write_text(STORAGE.format(folder=folder) if name == "storage" else "[]\n")
        (tasks / "resolve.yml").write_text("[]\n")
    (folder / "roles/slurm/tasks/controller.yml").write_text("[]\n")
    (folder / "roles/imex/tasks/option.yml").write_text("[]\n")
    (folder / "roles/node_tuning/tasks/prove.yml").write_text("[]\n")
    shutil.copy(ROOT / "roles/apt_mirror/tasks/answer.yml", folder / "roles/apt_mirror/tasks/answer.yml")
    validate_fleet.program(folder / "renew", RENEW.format(folder=folder))
    path = folder / "hosts.yml"
    inventory = yaml.safe_load(path.read_text())
    inventory["all"]["vars"] |= {
        "reimage_results": str(fleet.results),
        "reimage_rack_program": str(folder / "renew"),
        "reimage_limits": {"drain": 1, "first_boot": 3, "return": 5},
        "slurm_nodes": [*validate_fleet.NODES, "gone"],
    }
    path.write_text(yaml.safe_dump(inventory))
    return Rack(fleet)
