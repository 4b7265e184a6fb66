"""Test bench.yml as AWX, a web interface for Ansible, starts it.

AWX runs ansible-runner in a new folder for each job, with an exported inventory, and with variables and
paths of plugins that AWX sets. The tests show that a job ends with the verdict, that its results and the
history are in a shared folder, and that an empty answer to a question of the job's form is refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.playbook
PROGRAMS = Path(sys.executable).parent
# A benchmark that needs no runtime and no data.
DEFINITION = """---
name: dd
summary: Copy of zeros in memory
launch: {with: local, command: [dd, if=/dev/zero, of=/dev/null, bs=1M, count=100]}
result:
  format: lines
  lines:
    good_end: "^100\\\\+0 records out"
    metrics:
      copied: {pattern: "([0-9.]+) [MG]B/s$", unit: GB/s, direction: higher}
  judge:
    - {metric: copied, at_least: 0.001}
"""
PATHS = {
    "ANSIBLE_CALLBACK_PLUGINS": "plugins_path:plugins/callback:/usr/share/ansible/plugins/callback",
    "ANSIBLE_ROLES_PATH": "requirements_roles:roles:/etc/ansible/roles",
    "ANSIBLE_COLLECTIONS_PATH": "requirements_collections:/usr/share/ansible/collections",
}
"""AWX puts its own folder before those of the project's ansible.cfg."""
Job = Callable[..., tuple[str, str]]


@pytest.fixture
def job(root: Path, tmp_path: Path) -> Job:
    """Return a function that runs a job of AWX. It returns AWX's status and the output."""
    exported = subprocess.run(
        [PROGRAMS / "ansible-inventory", "-i", "inventory/hosts.yml", "--list", "--export"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions/dd.yml").write_text(DEFINITION)

    def run(number: int, **variables: object) -> tuple[str, str]:
        # AWX makes a new folder for each job, and removes it afterwards.
        private = tmp_path / f"awx_{number}"
        for name in ("inventory", "env"):
            (private / name).mkdir(parents=True)
        (private / "project").symlink_to(root)
        hosts = private / "inventory/hosts"
        hosts.write_text(f"#!{sys.executable}\nprint({exported!r})\n")
        hosts.chmod(0o700)
        given = {
            "awx_job_id": number,
            "tower_job_id": number,
            "awx_user_name": "operator",
            "bench_definitions": str(tmp_path / "definitions"),
            "bench_results": str(tmp_path / "kept"),
            "bench_require_idle": False,
        }
        environment = {name: f"{private}/{paths}" for name, paths in PATHS.items()}
        environment["ANSIBLE_CALLBACKS_ENABLED"] = "indirect_instance_count,rackproof"
        (private / "env/envvars").write_text(json.dumps(environment))
        (private / "env/extravars").write_text(json.dumps(given | variables))
        (private / "env/cmdline").write_text("-u root -l localhost")
        done = subprocess.run(
            [PROGRAMS / "ansible-runner", "run", private, "-p", "bench.yml", "--ident", str(number)],
            env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return (private / f"artifacts/{number}/status").read_text(), done.stdout + done.stderr

    return run


def test_a_job_ends_with_the_verdict_and_keeps_its_results_in_the_shared_folder(
    job: Job, tmp_path: Path
) -> None:
    status, output = job(7, benchmark="dd")
    assert status == "successful", output
    assert "dd: pass (1 of 1 run recorded)" in output
    assert "1 run: 1 pass" in output
    # The next job, in another folder, adds to the same history.
    status, output = job(8, benchmark=["dd"])
    assert status == "successful", output
    assert len(list((tmp_path / "kept").glob("*-dd-*/run.json"))) == 2
    assert len(list((tmp_path / "kept").glob("history.sqlite"))) == 1


def test_an_optional_question_without_an_answer_is_refused(job: Job, tmp_path: Path) -> None:
    status, output = job(9, benchmark="dd", suite="")
    assert status == "failed"
    assert "given with -e, but empty: suite" in output
    assert not (tmp_path / "kept").exists()
