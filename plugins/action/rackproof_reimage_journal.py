"""Write down that a step of a node begins, is done, was skipped, or that the node failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.jobs.reimage import acceptance, tasks
from rackproof.jobs.reimage.lifecycle import Step


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_reimage_journal.py."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return where the node stands."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "run": {"type": "dict", "required": True},
                "event": {"type": "str", "choices": ["begun", "done", "skipped", "failed"], "required": True},
                "step": {"type": "str", "default": ""},
                "reason": {"type": "str", "default": ""},
                "remarks": {"type": "list", "elements": "str", "default": []},
                "night": {"type": "path"},
                "acceptance": {"type": "list", "elements": "str", "default": []},
            }
        )
        node = (task_vars or {})["inventory_hostname"]
        try:
            remarks = options["remarks"]
            if options["night"]:
                remarks = [
                    *remarks,
                    *acceptance.check_acceptance(Path(options["night"]), node, options["acceptance"]),
                ]
            stands = tasks.write_step(
                tasks.ReimageContext(**options["run"]),
                node,
                options["event"],
                Step(options["step"]) if options["step"] else None,
                reason=options["reason"],
                remarks=remarks,
            )
        except (tasks.ReimageError, ValueError) as error:
            raise AnsibleActionFail(str(error)) from error
        return {"changed": False, "state": stands.state, "step": stands.step and stands.step.value}
