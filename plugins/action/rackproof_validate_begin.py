"""Begin a night: claim its nodes, so that no other playbook uses them, and create its folder.

roles/validate/tasks/begin.yml calls this action once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rackproof.jobs.validate import tasks
from rackproof_ansible.action import RackproofAction


class ActionModule(RackproofAction):
    """The module rackproof_validate_begin documents the options of this action."""

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Begin the night and return its context."""
        night = tasks.begin_night(
            Path(options["results"]),
            options["nodes"],
            owner_pid=self.owner_pid,
            inventory=[str(source) for source in self.task_vars.get("ansible_inventory_sources") or ()],
        )
        return {"changed": False, "night": night.model_dump(mode="json")}
