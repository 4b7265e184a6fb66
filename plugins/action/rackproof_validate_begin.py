"""Begin a night of the fleet: claim its nodes against a second one, and make its folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.jobs.validate import tasks


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_validate_begin.py."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the night."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "results": {"type": "path", "required": True},
                "nodes": {"type": "list", "elements": "str", "required": True},
            }
        )
        # A worker's parent is the playbook's own process: the claim lasts as long as it lives.
        owner = None if self._task.check_mode else os.getppid()
        try:
            begun = tasks.begin(Path(options["results"]), options["nodes"], owner_pid=owner)
        except tasks.ValidateError as error:
            raise AnsibleActionFail(str(error)) from error
        return {"changed": False, "night": begun.model_dump(mode="json")}
