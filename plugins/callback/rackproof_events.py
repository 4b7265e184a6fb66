"""Report a playbook's events to ``rackproof bench`` and similar commands, instead of Ansible's output."""

from __future__ import annotations

from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: rackproof_events
type: stdout
short_description: Report a playbook's steps to the command that started it
description:
  - Writes each step of each host as a line of JSON to a descriptor, from which C(rackproof bench),
    C(provision), C(validate), C(reimage) and C(stop) make one line for each node.
  - Prints nothing itself. Output of actions and other callbacks is printed without banners.
  - Chosen by these commands alone. A playbook as typed has Ansible's own output.
options:
  descriptor:
    description: The descriptor, inherited from the command; nothing is written where it is negative.
    type: int
    default: -1
    env: [{name: RACKPROOF_EVENTS_DESCRIPTOR}]
  columns:
    description: Largest width of tables; the command has the terminal, and the playbook has only a pipe.
    type: int
    default: 0
    env: [{name: RACKPROOF_COLUMNS}]
requirements:
  - the callback C(rackproof), which lets this one find the package in a checkout
"""


class CallbackModule(CallbackBase):
    """Listen for steps, and write them down."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "rackproof_events"

    def set_options(self, task_keys: Any = None, var_options: Any = None, direct: Any = None) -> None:
        """Read the options; other output gets the terminal's width and no banners."""
        super().set_options(task_keys=task_keys, var_options=var_options, direct=direct)
        # Not at the top: an import that fails there would end the playbook before any message.
        from rackproof_ansible.playbook_events import EventWriter

        self._events = EventWriter(self.get_option("descriptor"))
        self._display.columns = self.get_option("columns") or self._display.columns
        self._display.banner = lambda *_, **__: None

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Report a step that a host begins."""
        self._events.write("task", host=host.get_name(), task=task.get_name(), path=task.get_path() or "")

    def v2_runner_on_ok(self, result: Any) -> None:
        """Report a step that ended well, its message and its jobs."""
        from rackproof_ansible.playbook_events import jobs_of, spoken_text

        host = result._host.get_name()
        for job, node, runs in jobs_of(result._result):
            self._events.write("job", host=host, id=job, on=node or host, runs=runs)
        text = spoken_text(str(result._task.action), result._result)
        if text:
            self._events.write("note", host=host, text=text)
        self._events.write("end", host=host, state="ok")

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Report a step that was skipped."""
        self._events.write("end", host=result._host.get_name(), state="ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Report a step that failed, and why."""
        self._report_failure(result, "ok" if ignore_errors else "failed")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Report a host that cannot be reached."""
        self._report_failure(result, "unreachable")

    def v2_on_file_diff(self, result: Any) -> None:
        """Report a step's changes in files if ``--diff`` was given."""
        items = result._result.get("results") or [result._result]
        for diff in [one["diff"] for one in items if isinstance(one, dict) and one.get("diff")]:
            text = self._get_diff(diff)
            if text:
                self._events.write("diff", host=result._host.get_name(), text=text)

    def _report_failure(self, result: Any, state: str) -> None:
        from rackproof_ansible.playbook_events import failure_text

        self._events.write(
            "end",
            host=result._host.get_name(),
            state=state,
            task=result._task.get_name(),
            once=bool(result._task.run_once) and not result._task.delegate_to,
            text=failure_text(result._result),
        )
