"""Return what it is given: stands for rackproof_bench_record and rackproof_bench_report."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Returns its arguments as the task's result."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        return {"changed": False, **self._task.args}
