"""Test two properties of task files that no run on the test rack shows.

One is the delegation to a controller without a name. The other is the order of tasks for a new node of Slurm.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[3] / "roles"


def tasks_with_blocks(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each task, also the tasks in blocks."""
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks_with_blocks(task.get(part, []))


def test_tasks_for_the_slurm_controller_fall_back_to_the_own_host() -> None:
    # Ansible evaluates delegate_to before `when`, and fails if the name is empty.
    found = [
        (path.name, task["name"], str(task["delegate_to"]))
        for role in ("provision", "validate", "reimage")
        for path in (ROLES / role / "tasks").rglob("*.yml")
        for task in tasks_with_blocks(yaml.safe_load(path.read_text()) or [])
        if "slurm_controller_host" in str(task.get("delegate_to", ""))
    ]
    # The search found the known tasks, so an empty list below proves something.
    assert len(found) > 5
    assert [task for task in found if "default(inventory_hostname, true)" not in task[2]] == []


def test_a_new_node_is_queried_before_it_is_added_to_slurm() -> None:
    tasks = yaml.safe_load((ROLES / "reimage/tasks/steps/provision.yml").read_text())
    # Keys of modules contain a dot, or the word rackproof.
    position_of_module = {
        key: number for number, task in enumerate(tasks) for key in task if "." in key or "rackproof" in key
    }
    query = position_of_module["rackproof_facts"]
    assert (
        query
        < position_of_module["ansible.builtin.include_role"]
        < position_of_module["rackproof_slurm_node"]
    )
    assert tasks[query]["when"] == tasks[position_of_module["ansible.builtin.include_role"]]["when"]
