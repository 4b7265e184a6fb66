"""Write to a node's journal that a step starts, is done or was skipped, or that the node failed.

The tasks of roles/reimage call this action before and after each step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rackproof.core.errors import RackproofError
from rackproof.jobs.reimage import acceptance, run_files, tasks
from rackproof.jobs.reimage.lifecycle import Step
from rackproof_ansible.action import RackproofAction


class ActionModule(RackproofAction):
    """The module rackproof_reimage_journal documents the options of this action."""

    operator_errors = (RackproofError, ValueError)

    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the node's state and the step that runs or comes next."""
        remarks = options["remarks"]
        if options["night"]:
            remarks = [
                *remarks,
                *acceptance.check_acceptance(Path(options["night"]), self.node, options["acceptance"]),
            ]
        progress = tasks.write_step(
            run_files.ReimageContext(**options["run"]),
            self.node,
            options["event"],
            Step(options["step"]) if options["step"] else None,
            reason=options["reason"],
            remarks=remarks,
        )
        return {"changed": False, "state": progress.state, "step": progress.step and progress.step.value}
