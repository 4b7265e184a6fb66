"""Treat a node that ssh cannot reach as one on which a task failed.

The callback ``rackproof`` calls :func:`fail_unreachable_nodes` once. Ansible runs no ``rescue`` for an
unreachable node, and ends the playbook if all nodes of a batch are unreachable. In a wave of one node, one
silent node would therefore prevent the later waves and the record of the run.
"""

from __future__ import annotations

import functools
from typing import Any

from ansible.executor.task_executor import TaskExecutor

from rackproof.core.same_reason import plain_reason, unreachable_step

VARIABLE = "rackproof_unreachable_fails"
"""Name of the variable that a play sets to true if its unreachable nodes fail."""


def fail_unreachable_nodes() -> None:
    """Let unreachable nodes fail in plays that set :data:`VARIABLE`, in this process and its workers.

    Tasks with ``ignore_unreachable`` are excepted, because later tasks of the play judge their results.
    """
    original = TaskExecutor._execute
    if hasattr(original, "__wrapped_by_rackproof__"):
        return

    @functools.wraps(original)
    def execute(self: TaskExecutor, *args: Any, **options: Any) -> dict[str, Any]:
        result: dict[str, Any] = original(self, *args, **options)
        task = self._task
        if result.get("unreachable") and not task.ignore_unreachable and self._job_vars.get(VARIABLE):
            reason = plain_reason(str(result.get("msg")))
            words = f"{task.delegate_to or self._host.name} cannot be reached: {reason}"
            step = unreachable_step(reason)
            result.update(unreachable=False, failed=True, msg=f"{words}: {step}" if step else words)
            if task.failed_when:
                # Otherwise, the other items of a loop would decide alone.
                result["failed_when_result"] = True
        return result

    execute.__wrapped_by_rackproof__ = True  # type: ignore[attr-defined]
    TaskExecutor._execute = execute
