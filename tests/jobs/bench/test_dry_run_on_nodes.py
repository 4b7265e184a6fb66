"""Test the shell command with which a dry run of bench.yml asks a node about registry, storage and Slurm.

The command is in roles/bench/tasks/plan.yml. It unpacks the workloads of the controller in a folder on the
node, runs a program of them, and removes the folder. The tests run it on this machine.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import tarfile
from base64 import b64decode
from pathlib import Path
from typing import Any

import yaml


def task(root: Path) -> dict[str, Any]:
    """Return the arguments of the task that asks registry, storage and Slurm."""
    tasks = yaml.safe_load((root / "roles/bench/tasks/plan.yml").read_text())
    found = next(one for one in tasks if one["name"].startswith("Check the registry"))
    return dict(found["ansible.builtin.shell"])


def packed(root: Path, source: Path | None = None) -> bytes:
    """Return the workloads, or another folder, as the controller packs them for a node."""
    template = yaml.safe_load((root / "roles/bench/vars/main.yml").read_text())["bench_pack_command"]
    template = template.replace("{{ rackproof_environment | join(' ') }}", "NETBOX_TOKEN")
    command = template.replace(
        "{{ bench_workload_source | quote }}", shlex.quote(str(source or root / "workloads"))
    )
    return subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout


def test_no_other_user_may_write_what_a_node_unpacks(root: Path, tmp_path: Path) -> None:
    """The archive has safe modes whatever the checkout's modes are, because root's tar restores modes."""
    (tmp_path / "loose.py").write_text("")
    (tmp_path / "loose.py").chmod(0o777)
    tmp_path.chmod(0o777)
    with tarfile.open(fileobj=io.BytesIO(b64decode(packed(root, tmp_path)))) as archive:
        assert [(one.name, oct(one.mode)) for one in archive] == [(".", "0o755"), ("./loose.py", "0o755")]


def test_the_program_finds_all_that_it_imports_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    arguments = task(root)
    done = subprocess.run(
        [arguments["executable"], "-c", arguments["cmd"]],
        input=packed(root),
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "RACKPROOF_SPEC": "no JSON"},
        capture_output=True,
        check=False,
    )
    # The program found its imports, and read its specification, which is not JSON here.
    assert b"JSONDecodeError" in done.stderr, done.stderr
    assert done.returncode == 1
    assert list(tmp_path.iterdir()) == []
