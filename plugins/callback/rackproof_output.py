"""Ansible's own output, with the heading of a task above the progress that it reports."""

from __future__ import annotations

from typing import Any

from ansible.plugins.callback.default import CallbackModule as DefaultCallback

DOCUMENTATION = """
name: rackproof_output
type: stdout
short_description: Ansible's own output, with headings above the progress of tasks
description:
  - Where C(display_skipped_hosts) is off, Ansible prints a task's heading with its first result. The plan of
    a playbook and the progress of a job would be printed before it, under the heading of the task before.
  - This prints the heading of such a task as it begins. All else is as in C(ansible.builtin.default).
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

_REPORTING = frozenset(
    {
        "rackproof_bench_follow",
        "rackproof_bench_plan",
        "rackproof_bench_record",
        "rackproof_bench_runtime",
        "rackproof_reimage_discover",
    }
)
"""Actions that print lines before they return."""


class CallbackModule(DefaultCallback):
    """Print headings early where a task reports while it runs."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "rackproof_output"

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Print the heading of a reporting task when its first host begins."""
        if task.action in _REPORTING and self._last_task_banner != task._uuid:
            self._print_task_banner(task)
        super().v2_runner_on_start(host, task)
