"""Show Ansible's own output, with the heading of a task above its progress.

ansible.cfg sets this callback for `ansible-playbook`.
"""

from __future__ import annotations

from typing import Any

from ansible import constants
from ansible.plugins.callback.default import CallbackModule as DefaultCallback

DOCUMENTATION = """
name: rackproof_output
type: stdout
short_description: Show Ansible's own output, with headings above the progress of tasks
description:
  - If C(display_skipped_hosts) is off, Ansible prints a task's heading with the task's first result. The plan
    of a playbook and the progress of a job would then appear under the heading of the task before.
  - For such a task, this callback prints the heading when the task begins.
  - Hosts that a task cannot reach for the same reason share one line, which is printed after the task.
  - A failed assertion whose message is a list is printed once, with a line for each entry.
  - All other output is as in C(ansible.builtin.default). ansible.cfg selects this callback.
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
        "rackproof_validate_close",
    }
)
"""Actions that print lines before they return, so that their heading has to come first."""


class CallbackModule(DefaultCallback):
    """Ansible's default output, with the changes that DOCUMENTATION describes."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "rackproof_output"

    def __init__(self) -> None:
        super().__init__()
        self._unreachable: list[Any] = []

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Keep the result of an unreachable host, and print it when the task has ended."""
        self._unreachable.append(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Print a failed task's list of messages line by line. Ansible would also print it on one line."""
        lines = result._result.get("msg")
        if not isinstance(lines, list) or self._display.verbosity > 1:
            super().v2_runner_on_failed(result, ignore_errors)
            return
        if self._last_task_banner != result._task._uuid:
            self._print_task_banner(result._task)
        # Indent the lines, so that a line from a node does not look like one of Ansible's.
        text = "\n  - ".join("\n    ".join(str(line).splitlines()) for line in lines)
        self._display.display(
            f"fatal: [{self.host_label(result)}]: FAILED! => {text}",
            color=constants.COLOR_ERROR,
            stderr=self.get_option("display_failed_stderr"),
        )
        if ignore_errors:
            self._display.display("...ignoring", color=constants.COLOR_SKIP)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Print the unreachable hosts of the task before."""
        self._print_unreachable()
        super().v2_playbook_on_task_start(task, is_conditional)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Print the unreachable hosts of the task before."""
        self._print_unreachable()
        super().v2_playbook_on_handler_task_start(task)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Print the unreachable hosts of the task before."""
        self._print_unreachable()
        super().v2_playbook_on_play_start(play)

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """Print the unreachable hosts of the task before."""
        self._print_unreachable()
        super().v2_playbook_on_no_hosts_remaining()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the unreachable hosts of the last task."""
        self._print_unreachable()
        super().v2_playbook_on_stats(stats)

    def _print_unreachable(self) -> None:
        results, self._unreachable = self._unreachable, []
        if len(results) > 1:
            self._print_folded(results)
        elif results:
            super().v2_runner_on_unreachable(results[0])

    def _print_folded(self, results: list[Any]) -> None:
        """Print the unreachable hosts of one task, with one line for all hosts of the same reason."""
        # Import here, because at the top a failure would end the playbook before any message.
        from rackproof_ansible.playbook_events import fold_unreachable

        if self._last_task_banner != results[0]._task._uuid:
            self._print_task_banner(results[0]._task)
        for line in fold_unreachable([(result._host.get_name(), result._result) for result in results]):
            self._display.display(line, color=constants.COLOR_UNREACHABLE)
        if results[0]._task.ignore_unreachable:
            self._display.display("...ignoring", color=constants.COLOR_SKIP)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Print the heading of a reporting task when its first host begins."""
        if task.action in _REPORTING and self._last_task_banner != task._uuid:
            self._print_task_banner(task)
        super().v2_runner_on_start(host, task)
