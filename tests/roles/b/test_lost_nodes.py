"""Test that a lost node costs bench.yml only the run that needs it (role bench, run_multi_node.yml).

Ansible takes a host out of the play if its task cannot reach a node. The tasks of a run on several nodes
belong to its first node, so a lost second node ended all later runs of the first one, without a record. The
tests make two runs with the real tasks, fake modules, and a connection that is lost at each of the steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.playbook

MODULE = '''#!/usr/bin/python
"""Imitate a module of a run: note the call, and answer as for a job that ended well."""
import json, os
from ansible.module_utils import basic
options = basic._load_params()
name = "NAME"
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([name, {k: v for k, v in options.items() if not k.startswith("_")}]) + "\\n")
# The connection is lost after the node's setup.
if name == "rackproof_bench_setup" and options.get("node") == os.environ["LOST_AFTER_SETUP"]:
    open(os.environ["FLAKY_WHILE"], "w").close()
job = {"id": options.get("id"), "phase": "ended", "ended_by": "itself", "succeeded": True}
print(json.dumps({"changed": True, "job": job, "point": {}, "given_up": {}}), flush=True)
os._exit(0)  # Ansible reports a module that returns as an error.
'''
RECORD = '''
"""Imitate the record of a run, which contacts no node: note the task's options."""
import json, os
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        with open(os.environ["CALLS"], "a") as calls:
            calls.write(json.dumps(["rackproof_bench_record", self._task.args], default=str) + "\\n")
        return {"changed": True, "given_up": {}}
'''
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: bench, tasks_from: run, rolespec_validate: false}
      loop: "{{ runs[inventory_hostname] | default([]) }}"
      loop_control: {loop_var: bench_run}
"""


def a_run(name: str, nodes: list[str], folder: Path, stage: bool) -> dict[str, Any]:
    """Return a planned run on nodes, as the playbook gets it."""
    home = str(folder)
    place = {"home": home, "folder": f"{home}/{name}", "workloads": home, "rendezvous": ["rendezvous.py"]}
    program = {"program": "stage.py", "arguments": [], "creates": "data"}
    setup = dict.fromkeys(("subnet", "storage", "data", "cache"), "")
    return {
        "run_id": name,
        "nodes": nodes,
        "parts": [{"node": node, "rank": rank, **place} for rank, node in enumerate(nodes)],
        "setup": {**setup, "network": "host", "nodes": [], "expires_s": 60},
        "stage": [program] if stage else [],
        "unproven_because": "",
        "result": name,
        "code": "",
        "runtime": "plain",
        "program": "toy.py",
        "arguments": [],
        "environment": {},
        "timeout_s": 5,
        "hang_s": 0,
        "grace_s": 1,
        "format": "mllog",
        "expected_s": None,
        "launcher": "local",
    }


def make_runs(root: Path, folder: Path, lost: str, after_setup: bool, stage: bool) -> list[tuple[str, dict]]:
    """Make a run on both nodes and one on the first, with a lost node. Return the calls of modules."""
    (folder / "library").mkdir()
    for name in ("bench_setup", "bench_follow", "bench_record", "bench_upload", "job"):
        (folder / "library" / f"rackproof_{name}.py").write_text(MODULE.replace("NAME", f"rackproof_{name}"))
    (folder / "actions").mkdir()
    (folder / "actions" / "rackproof_bench_record.py").write_text(RECORD)
    (folder / "stage.py").write_text("print('{\"changed\": false}')\n")
    (folder / "play.yml").write_text(PLAY)
    (folder / "ansible.cfg").write_text(
        f"[defaults]\nroles_path = {root}/roles\nlibrary = {folder}/library\n"
        f"action_plugins = {folder}/actions\n"
        f"filter_plugins = {root}/plugins/filter\nlocal_tmp = {folder}/tmp\nlocalhost_warning = False\n"
        # With pipelining, a module is one command. The connection may be lost after it, and not within.
        "pipelining = True\n"
        f"connection_plugins = {root}/tests/plugins/follow/connection\n"
    )
    shared = {
        "ansible_python_interpreter": sys.executable,
        "ansible_remote_tmp": str(folder / "remote"),
        "bench_plan": {"plan_id": "plan-1"},
        "bench_facts": {"facts": {"python": sys.executable}},
        "bench_made_runtimes": {"plain": sys.executable},
        "bench_home": str(folder),
        "runs": {"n1": [a_run("both", ["n1", "n2"], folder, stage), a_run("one", ["n1"], folder, False)]},
    }
    hosts = {name: {"ansible_connection": "flaky" if name == lost else "local"} for name in ("n1", "n2")}
    (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}))
    if not after_setup:
        (folder / "lost").touch()
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", folder / "hosts.yml", folder / "play.yml"],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
            "CALLS": str(folder / "calls"),
            "FLAKY_WHILE": str(folder / "lost"),
            "LOST_AFTER_SETUP": lost if after_setup else "",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=550,
    )
    calls = folder / "calls"
    assert calls.exists(), done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    return [tuple(json.loads(line)) for line in calls.read_text().splitlines()]


@pytest.mark.parametrize(
    ("after_setup", "stage", "task"),
    [
        (False, False, "set it up"),
        (True, True, "stage"),
        (True, False, "start"),
    ],
)
def test_a_lost_second_node_costs_only_the_run_that_needs_it(
    root: Path, tmp_path: Path, after_setup: bool, stage: bool, task: str
) -> None:
    calls = make_runs(root, tmp_path, "n2", after_setup, stage)
    both, one = [options for name, options in calls if name == "rackproof_bench_record"]
    assert (both["run_id"], one["run_id"]) == ("both", "one")
    assert "n2: " in both["failed_result"]["msg"]
    assert "the cable" in both["failed_result"]["msg"]
    assert one["failed_task"] == ""
    assert f"reached to {task}" in both["failed_task"]
    # A job on the first node does not wait for the lost one.
    jobs = [options for name, options in calls if name == "rackproof_job" and options["id"] == "both"]
    started = [options for options in jobs if options.get("argv")]
    assert bool(started) is (task == "start")
    assert "absent" in [options.get("state") for options in jobs]


def test_a_lost_first_node_leaves_its_runs_recorded(root: Path, tmp_path: Path) -> None:
    calls = make_runs(root, tmp_path, "n1", False, False)
    records = [options for name, options in calls if name == "rackproof_bench_record"]
    assert [options["run_id"] for options in records] == ["both", "one"]
    assert ["n1: " in options["failed_result"]["msg"] for options in records] == [True, True]
