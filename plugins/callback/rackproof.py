"""Print at a playbook's end the table of the runs it recorded, or what it changed on which nodes.

A view and nothing else: the verdict is a task's business, and an exception in a callback would not
change the exit status. This file is also the one place that lets plugins find the package when only
the checkout is there: it is loaded first, and workers inherit the path.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

try:
    import rackproof  # noqa: F401
except ImportError:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

DOCUMENTATION = """
name: rackproof
type: aggregate
short_description: Print the runs of a playbook and their verdicts, or what it changed on which nodes
description:
  - Collects the runs that C(rackproof_bench_record) recorded and prints one table of them when the playbook
    ends, whether it ends well or not, with the path of the report.
  - Of a playbook that provisions, prints what changed on which nodes and what needs attention.
  - Only shows. The exit status comes from the task that gates.
options:
  show_table:
    description: Whether the table is printed.
    type: bool
    default: true
    env: [{name: RACKPROOF_TABLE}]
    ini: [{section: callback_rackproof, key: show_table}]
requirements:
  - the Python package rackproof, installed or in src/ of the same checkout
"""


class RunTable:
    """The recorded runs of one playbook, in the order in which they ended."""

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}
        self.report = ""

    def note(self, result: dict[str, Any]) -> None:
        """Remember what a task says of a run, or of the report of all."""
        recorded = result.get("rackproof_run")
        if isinstance(recorded, dict) and {"run_id", "folder"} <= recorded.keys():
            self.folders[str(recorded["run_id"])] = str(recorded["folder"])
        self.report = str(result.get("rackproof_report_file") or self.report)

    def text(self, width: int, color: bool) -> str:
        """Return the table; empty where nothing was recorded. Below it: records that cannot be read."""
        from rackproof.core.text import sanitize
        from rackproof.report import terminal_table
        from rackproof.store.run_folder import ResultsError, read_run

        runs, lines = [], []
        for run_id, folder in self.folders.items():
            try:
                runs.append(read_run(Path(folder)))
            except ResultsError as error:
                lines.append(sanitize(f"{run_id} cannot be shown: {error}", limit=600))
        if self.report:
            lines.append(f"Report: {sanitize(self.report, limit=4096)}")
        if not self.folders:
            return ""
        table = terminal_table(runs, width=width, color=color) if runs else ""
        return "\n".join([*([table] if runs else []), *lines])


class ChangeTable:
    """What one playbook changed, by node, and the remarks that its tasks left in C(provision_attention)."""

    def __init__(self) -> None:
        self.changed: dict[str, list[str]] = {}
        self.attention: dict[str, list[str]] = {}
        self.listed: set[str] = set()

    def note(self, host: str, task: str, result: dict[str, Any]) -> None:
        """Remember a task that ended well."""
        if result.get("changed"):
            self.changed.setdefault(host, []).append(task)
        facts = result.get("ansible_facts")
        if isinstance(facts, dict) and isinstance(facts.get("provision_attention"), list):
            self.listed.add(host)
            self.changed.setdefault(host, [])
            self.attention[host] = [str(one) for one in facts["provision_attention"]]

    def lost(self, host: str, task: str, result: dict[str, Any]) -> None:
        """Remember a task that ended badly, unless the playbook itself lists the node."""
        if host not in self.listed:
            self.attention[host] = [f"{task}: {result.get('msg', 'failed')}"]

    def text(self, predicted: bool) -> str:
        """Return the summary; empty for a playbook that does not provision."""
        from rackproof.jobs.provision.summary import summary

        return summary(self.changed, self.attention, predicted) if self.listed else ""


class CallbackModule(CallbackBase):
    """Listen for recorded runs and changes, and show them at the end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "rackproof"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._table = RunTable()
        self._changes = ChangeTable()
        self._predicted = False
        self._shown = True

    def set_options(self, task_keys: Any = None, var_options: Any = None, direct: Any = None) -> None:
        """Read the options of the configuration."""
        super().set_options(task_keys=task_keys, var_options=var_options, direct=direct)
        self._shown = bool(self.get_option("show_table"))

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Note whether this is check mode."""
        self._predicted = bool(play.check_mode)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Note what a task that ended well says."""
        self._table.note(result._result)
        self._changes.note(result._host.get_name(), result._task.get_name(), result._result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Note what one turn of a task's loop says."""
        self._table.note(result._result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Note a node that a handler failed on: no later task can list it."""
        if not ignore_errors:
            self._changes.lost(result._host.get_name(), result._task.get_name(), result._result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Note a node that was lost on the way."""
        self._changes.lost(result._host.get_name(), result._task.get_name(), result._result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the table."""
        if not self._shown:
            return
        for title, text in (
            ("RESULT", self._table.text(width=self._display.columns, color=sys.stdout.isatty())),
            ("NODES", self._changes.text(self._predicted)),
        ):
            if text:
                self._display.banner(title)
                self._display.display(text)
