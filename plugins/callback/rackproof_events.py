"""Report a playbook's events to ``rackproof bench`` and similar commands, instead of Ansible's output.

``rackproof.cli.playbooks`` sets this callback for the playbook that it starts.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: rackproof_events
type: stdout
short_description: Report a playbook's steps to the command that started it
description:
  - Writes each step of each host as a line of JSON to a descriptor, from which C(rackproof bench),
    C(provision), C(validate), C(reimage) and C(stop) make one line for each node.
  - The callback prints nothing itself. Output of actions and other callbacks is printed without banners.
  - Only these commands select this callback. If you type C(ansible-playbook), you get Ansible's own output.
options:
  descriptor:
    description: The descriptor, inherited from the command. If it is negative, nothing is written.
    type: int
    default: -1
    env: [{name: RACKPROOF_EVENTS_DESCRIPTOR}]
  columns:
    description: Largest width of tables. The command states it, because the playbook writes to a pipe.
    type: int
    default: 0
    env: [{name: RACKPROOF_COLUMNS}]
requirements:
  - the callback C(rackproof), which lets this one find the package in a checkout
"""


class CallbackModule(CallbackBase):
    """The steps of a playbook. Each step is written to the descriptor."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "rackproof_events"

    def set_options(self, task_keys: Any = None, var_options: Any = None, direct: Any = None) -> None:
        """Read the options. Other output is as wide as the terminal and without banners."""
        super().set_options(task_keys=task_keys, var_options=var_options, direct=direct)
        # Import here, because at the top a failure would end the playbook before any message.
        from rackproof_ansible.playbook_events import EventReporter, EventWriter

        self._report = EventReporter(EventWriter(self.get_option("descriptor")))
        # Ansible leaves its output in a buffer, so that a pipe would get a job's progress after 8 KiB only.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)
        self._display.columns = self.get_option("columns") or self._display.columns
        self._display.banner = lambda *_, **__: None

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Report a step that a host begins."""
        self._report.start(host, task)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Report a step that ended well."""
        self._report.end_well(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Report a step that was skipped."""
        self._report.skip(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Report a step that failed, and why."""
        self._report.fail(result, "ok" if ignore_errors else "failed")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Report a host that cannot be reached."""
        self._report.fail(result, "unreachable")

    def v2_on_file_diff(self, result: Any) -> None:
        """Report a step's changes in files if ``--diff`` was given."""
        items = result._result.get("results") or [result._result]
        for diff in [entry["diff"] for entry in items if isinstance(entry, dict) and entry.get("diff")]:
            text = self._get_diff(diff)
            if text:
                self._report.show_diff(result._host, text)
