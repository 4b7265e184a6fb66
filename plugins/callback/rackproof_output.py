"""Ansible's own output; headings of tasks above their progress, hosts that did not answer in one message."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812  (as Ansible's own callbacks name it)
from ansible.plugins.callback.default import CallbackModule as DefaultCallback

try:
    import rackproof_ansible  # noqa: F401
except ImportError:
    # This callback is loaded before `rackproof`, which does the same.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from rackproof_ansible.playbook_summary import describe_silent

DOCUMENTATION = """
name: rackproof_output
type: stdout
short_description: Ansible's own output, with headings above the progress of tasks
description:
  - Where C(display_skipped_hosts) is off, Ansible prints a task's heading with its first result. The plan of
    a playbook and the progress of a job would be printed before it, under the heading of the task before.
  - This prints the heading of such a task as it begins.
  - If several hosts do not answer a task, it prints one line for each reason, with the hosts.
  - All else is as in C(ansible.builtin.default).
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

    def __init__(self) -> None:
        super().__init__()
        self._silent: list[Any] = []

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Print the heading of a reporting task when its first host begins."""
        if task.action in _REPORTING and self._last_task_banner != task._uuid:
            self._print_task_banner(task)
        super().v2_runner_on_start(host, task)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Keep a host that did not answer until the task ends: a rack that is off is one message."""
        self._silent.append(result)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Print which hosts did not answer the task before."""
        self._print_silent()
        super().v2_playbook_on_task_start(task, is_conditional)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Print which hosts did not answer the task before."""
        self._print_silent()
        super().v2_playbook_on_handler_task_start(task)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Print which hosts did not answer the last task of the play before."""
        self._print_silent()
        super().v2_playbook_on_play_start(play)

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """Print which hosts did not answer the play's last task."""
        self._print_silent()
        super().v2_playbook_on_no_hosts_remaining()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print which hosts did not answer the last task."""
        self._print_silent()
        super().v2_playbook_on_stats(stats)

    def _print_silent(self) -> None:
        """Print the kept hosts: one as Ansible does, several by what they have in common."""
        kept, self._silent = self._silent, []
        if len(kept) < 2:
            for result in kept:
                super().v2_runner_on_unreachable(result)
            return
        task = kept[0].task
        if self._last_task_banner != task._uuid:
            self._print_task_banner(task)
        messages = [(one.host.get_name(), str(one.result.get("msg", ""))) for one in kept]
        for line in describe_silent(messages):
            self._display.display(f"fatal: {line}", color=C.COLOR_UNREACHABLE)
        if task.ignore_unreachable:
            self._display.display("...ignoring", color=C.COLOR_SKIP)
