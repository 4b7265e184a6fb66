"""Test two properties of task files that no run on the test rack shows.

One is the delegation to a controller without a name. The other is the order of tasks for a new node of Slurm.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[3] / "roles"


def every(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always"):
            yield from every(task.get(part, []))


def test_nothing_is_delegated_to_a_controller_that_has_no_name() -> None:
    # The name is made before `when` is asked, and an empty one is an error.
    found = [
        (path.name, task["name"], str(task["delegate_to"]))
        for role in ("provision", "validate", "reimage")
        for path in (ROLES / role / "tasks").rglob("*.yml")
        for task in every(yaml.safe_load(path.read_text()) or [])
        if "slurm_controller_host" in str(task.get("delegate_to", ""))
    ]
    assert len(found) > 5
    assert [one for one in found if "default(inventory_hostname, true)" not in one[2]] == []


def test_a_node_is_checked_before_the_controller_is_set_up_in_its_name() -> None:
    tasks = yaml.safe_load((ROLES / "reimage/tasks/steps/provision.yml").read_text())
    at = {
        key: number for number, task in enumerate(tasks) for key in task if "." in key or "rackproof" in key
    }
    looks = at["rackproof_facts"]
    assert looks < at["ansible.builtin.include_role"] < at["rackproof_slurm_node"]
    assert tasks[looks]["when"] == tasks[at["ansible.builtin.include_role"]]["when"]
