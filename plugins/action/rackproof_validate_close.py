"""Note what was done in a night, write its record and pages, and say its verdict."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from rackproof.core.text import sanitize
from rackproof.jobs.validate import tasks


class ActionModule(ActionBase):
    """Documented in plugins/modules/rackproof_validate_close.py."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the verdict over all nodes, and whether it gates."""
        super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(
            {
                "night": {"type": "dict", "required": True},
                "drained": {"type": "dict", "default": {}},
                "returned": {"type": "dict", "default": {}},
                "give_back": {"type": "list", "elements": "str", "default": []},
            }
        )
        try:
            closed = tasks.close(
                tasks.Begun(**options["night"]),
                did=tasks.done(options["drained"], options["returned"], options["give_back"]),
                keep=not self._task.check_mode,
            )
        except tasks.ValidateError as error:
            raise AnsibleActionFail(str(error)) from error
        if closed.history:
            self._display.warning(sanitize(closed.history, limit=600))
        return {
            "changed": not self._task.check_mode,
            "verdict": closed.verdict.value,
            "gates": closed.gates,
            "message": [sanitize(line, limit=600) for line in closed.message],
            "page": closed.page,
        }
