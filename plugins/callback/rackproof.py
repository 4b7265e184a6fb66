"""Print the table of a playbook's runs, or its changes by node, at the end of the playbook.

ansible.cfg enables this callback for every playbook. Ansible calls the methods ``v2_*`` of
:class:`CallbackModule`, which collect, store and show results. The exit status is set by a task, because an
exception in a callback does not change it. Only if a requested host ran no task and nothing else failed does
the callback end the playbook, with status 2.

The callback also adds the package of a checkout to the path, so that plugins find it without an installation.
Ansible loads the callback first, and its workers inherit the path.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase

try:
    import rackproof_ansible  # noqa: F401
except ImportError:
    # An enabled callback that cannot be imported ends every playbook.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from rackproof_ansible.asked_hosts import asked_hosts, hosts_left_out
from rackproof_ansible.bounded_answers import bound_answers
from rackproof_ansible.harmless_output import clean_display
from rackproof_ansible.playbook_events import EventReporter, EventWriter, open_events
from rackproof_ansible.playbook_summary import ChangeTable, RunTable, describe_left_out
from rackproof_ansible.unreachable_nodes import fail_unreachable_nodes

# Do this before the first task, because Ansible itself may show a task's output.
clean_display()
bound_answers()
fail_unreachable_nodes()

DOCUMENTATION = """
name: rackproof
type: aggregate
short_description: Print the runs of a playbook and their verdicts, or its changes on each node
description:
  - Prints one table of the runs that M(rackproof_bench_record) recorded, with the path of the report, at the
    end of the playbook. The table is printed whether the playbook ends well or not.
  - For a playbook that provisions, prints the changes on each node and the nodes that need attention.
  - Names the requested hosts on which no task ran. With such hosts a playbook does not end with status 0.
  - Removes terminal escapes from all output of Ansible, and cuts messages of more than 262,144 characters.
  - Ends a command or module whose answer over ssh has more than 64 MiB. Only this node's task fails.
  - In plays with the variable C(rackproof_unreachable_fails), a task fails on a node that cannot be reached.
    Otherwise, Ansible would end the playbook if this happens to all nodes of a wave.
  - Adds every node that a task drained or resumed in Slurm to C(audit.jsonl) in the results folder, with
    user, reason and playbook. Stores the changes of a provisioning by node in C(provisions), and as a run
    with a page. In check mode, it stores nothing.
  - ansible.cfg enables this callback for every playbook. Apart from hosts without a task, the callback does
    not change the exit status, which comes from the task that gates.
options:
  show_table:
    description: Whether the table is printed.
    type: bool
    default: true
    env: [{name: RACKPROOF_TABLE}]
    ini: [{section: callback_rackproof, key: show_table}]
  results:
    description:
      - Folder of the audit log and of provisioning's changes; C(results) of the checkout if not set.
      - The acts of C(validate.yml) are stored in C(validate_results), beside the record of its night.
    type: path
    env: [{name: RACKPROOF_RESULTS}]
    ini: [{section: callback_rackproof, key: results}]
  events:
    description:
      - A named pipe to which the steps of each host are written, as by the callback C(rackproof_events).
      - C(rackproof nightly) sets this option, because another program prints its playbook's output.
    type: path
    env: [{name: RACKPROOF_EVENTS_PIPE}]
  descriptor:
    description:
      - The descriptor of C(rackproof_events). The callback reports the record of a provisioning there, and
        the table of the runs before the task that prints their verdict.
    type: int
    default: -1
    env: [{name: RACKPROOF_EVENTS_DESCRIPTOR}]
requirements:
  - the Python package rackproof, installed or in src/ of the same checkout
"""


class CallbackModule(CallbackBase):
    """The runs, changes and acts of a playbook, which are stored, and shown at its end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "rackproof"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._runs = RunTable()
        self._changes = ChangeTable()
        self._is_prediction = False
        self._is_shown = True
        self._began = datetime.now(UTC)
        self._playbook = ""
        self._limit = ""
        self._results = Path(__file__).resolve().parents[2] / "results"
        self._report = EventReporter(EventWriter(-1))
        self._records = self._report
        self._has_command = False

    def set_options(self, task_keys: Any = None, var_options: Any = None, direct: Any = None) -> None:
        """Read the options of the configuration."""
        super().set_options(task_keys=task_keys, var_options=var_options, direct=direct)
        self._is_shown = bool(self.get_option("show_table"))
        self._results = Path(self.get_option("results") or self._results)
        self._report = EventReporter(open_events(self.get_option("events")))
        # Steps are reported by the callback rackproof_events where that is chosen.
        descriptor = self.get_option("descriptor")
        self._has_command = descriptor >= 0
        self._records = EventReporter(EventWriter(descriptor)) if self._has_command else self._report

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Record the file name of the playbook, and the value of --limit."""
        self._playbook = Path(str(playbook._file_name)).name
        self._limit = str(context.CLIARGS.get("subset") or "")

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Store whether this is check mode."""
        self._is_prediction = bool(play.check_mode)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Report a step that a host begins."""
        self._report.start(host, task)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Report a step that was skipped."""
        self._report.skip(result)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Store the run, the acts or the changes of a task that ended well."""
        self._report.end_well(result)
        self._runs.add_result(result._result)
        if self._has_command and self._is_shown and self._runs.is_reported:
            self._report_table()
        self._use_night(result._result)
        self._store_acts(result._result)
        self._changes.add_result(result._host.get_name(), result._task.get_name(), result._result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Store the run or the acts of an item of a loop. The loop's own result does not contain them."""
        self._runs.add_result(result._result)
        self._store_acts(result._result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """Store the acts of a failed item of a loop."""
        self._store_acts(result._result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Store the failure and the acts of a failed task. After a failed handler, no later task can list it.

        A failed task can have acts, because a task that drains nodes fails if their jobs run for too long.
        """
        self._report.fail(result, "ok" if ignore_errors else "failed")
        self._store_acts(result._result)
        if not ignore_errors:
            self._changes.add_failure(result._host.get_name(), result._task.get_name(), result._result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Store a node that became unreachable."""
        self._report.fail(result, "unreachable")
        self._changes.add_failure(result._host.get_name(), result._task.get_name(), result._result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Store what was provisioned, and print the table and the summary.

        End with a failure if hosts were left out and nothing else failed.
        """
        page = "" if self._is_prediction else self._store_provision()
        if self._is_shown:
            self._show_tables()
            if page:
                self._display.display(f"Report: {page}")
        try:
            left_out = hosts_left_out(asked_hosts(), stats)
            if left_out:
                self._display.banner("NOT DONE")
                self._display.display(describe_left_out(left_out))
        except Exception as error:
            # Ansible would only warn, and end as if all hosts had been checked.
            left_out = ["unknown"]
            self._display.error(f"the changes on the hosts are unknown: {error!r}"[:600])
        if left_out and not stats.failures and not stats.dark:
            raise SystemExit(2)  # Ansible would show an Exception only as a warning.

    def _store_provision(self) -> str:
        """Store what this playbook provisioned. Return the page, or "" if there is none."""
        try:
            from rackproof.core.file_modes import hidden_from_others

            with hidden_from_others():
                kept = self._changes.keep(self._results, self._began, self._playbook, self._limit)
        except Exception as error:
            self._display.error(f"no complete record of this provisioning could be kept: {error}"[:600])
            return ""
        if kept is None:
            return ""
        if kept.history:
            self._display.warning(kept.history)
        run = kept.run
        self._records.record("provisioning", run.run_id, run.verdict.value, str(kept.page))
        return str(kept.page)

    def _report_table(self) -> None:
        """Report the table of the runs to the command. The playbook's next task prints verdict and report."""
        try:
            text = self._runs.format_table(self._display.columns, color=False, with_verdict=False)
        except Exception:
            # The end of the playbook shows the table, or the error.
            return
        self._records.show_table(text)
        self._runs = RunTable()

    def _use_night(self, result: dict[str, Any]) -> None:
        """Use a night's own results folder, which may not be the configured one, for its acts."""
        night = result.get("night")
        # The nights of the other playbooks are part of their own work.
        if self._playbook == "validate.yml" and isinstance(night, dict) and night.get("results"):
            self._results = Path(night["results"])

    def _store_acts(self, result: dict[str, Any]) -> None:
        """Add a task's acts on Slurm nodes to the audit log. An error there does not end the playbook."""
        nodes = result.get("nodes")
        if self._is_prediction or not isinstance(nodes, dict) or "cluster" not in result:
            return
        try:
            from rackproof.core.file_modes import hidden_from_others
            from rackproof.store.audit_log import acts_of, append_acts

            with hidden_from_others():
                append_acts(self._results, acts_of(nodes), self._playbook)
        except Exception as error:
            self._display.error(f"the audit log lacks the acts of this playbook: {error}"[:600])

    def _show_tables(self) -> None:
        """Print the tables.

        A table that cannot be made does not change the exit status, because the tasks decide it.
        """
        try:
            for title, text in (
                ("RESULT", self._runs.format_table(width=self._display.columns, color=sys.stdout.isatty())),
                ("NODES", self._changes.format_summary(self._is_prediction)),
            ):
                if text:
                    self._display.banner(title)
                    self._display.display(text)
        except Exception as error:
            self._display.error(f"the table cannot be shown: {error!r}"[:600])
