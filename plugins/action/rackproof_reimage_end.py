"""End a run of reimage.yml: write its record, and say how every node stands."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.core.text import sanitize
from rackproof.jobs.reimage import tasks


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_reimage_end.py."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the verdict over all nodes, and whether it gates."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec({"run": {"type": "dict", "required": True}})
        try:
            ended = tasks.end_run(tasks.ReimageContext(**options["run"]))
        except tasks.ReimageError as error:
            raise AnsibleActionFail(str(error)) from error
        if ended.history:
            self._display.warning(sanitize(ended.history, limit=600))
        return {
            "changed": True,
            "verdict": ended.verdict.value,
            "gates": ended.gates,
            "message": list(ended.message),
        }
