"""Provide the action ``tell`` for test_callback.py. Its result has its arguments.

It imitates rackproof_bench_record and rackproof_bench_report of bench.yml, whose results the callback reads.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """An action whose result has its arguments."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        return {"changed": False, **self._task.args}
