"""Collect a playbook's recorded runs and changes from its tasks' results, to show them at its end.

The callback ``rackproof`` (plugins/callback/rackproof.py) passes the result of each task to a
:class:`RunTable`, for the runs of bench.yml, and to a :class:`ChangeTable`, for the changes of provision.yml.
At the end of the playbook, the callback prints the texts that these classes return, and lets
:class:`ChangeTable` write the record of provision.yml. This module does not use Ansible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rackproof.jobs.provision.record import KeptProvision

# Every playbook loads the callback, so imports for the summary are delayed until there is one to show.


def describe_left_out(hosts: Sequence[str]) -> str:
    """Return the message that no task ran on requested hosts. ``hosts`` are their names, at least one."""
    from rackproof.core.hostlist import compress_hostlist
    from rackproof.core.text import sanitize

    return sanitize(
        f"{compress_hostlist(hosts)}: requested, but nothing was done there; start the same command again",
        4096,
    )


class RunTable:
    """The recorded runs of one playbook, in the report's order, or without a report as they ended."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}
        self._report = ""

    def add_result(self, result: Mapping[str, Any]) -> None:
        """Keep the run that a task recorded, or the report on all runs that it wrote.

        Args:
            result: The result of a task. The actions of role bench return the keys ``rackproof_run`` (a run's
                id and folder), ``rackproof_report_file`` (the path of the report), and
                ``rackproof_report_runs`` (the folders of the report's runs by id). All other keys are
                ignored.
        """
        recorded = result.get("rackproof_run")
        if isinstance(recorded, dict) and {"run_id", "folder"} <= recorded.keys():
            self._folders[str(recorded["run_id"])] = str(recorded["folder"])
        self._report = str(result.get("rackproof_report_file") or self._report)
        run_folders = result.get("rackproof_report_runs")
        if isinstance(run_folders, dict):
            # A resumed plan also contains runs of earlier calls. The table shows all of them.
            self._folders = {
                **{str(name): str(folder) for name, folder in run_folders.items()},
                **self._folders,
            }

    @property
    def is_reported(self) -> bool:
        """Return whether a task wrote the report on all runs."""
        return bool(self._report)

    def format_table(self, width: int, color: bool, *, with_verdict: bool = True) -> str:
        """Return the table, or "" if no run was recorded. Records that cannot be read are listed below it.

        Args:
            width: The width of the terminal in cells.
            color: Whether verdicts are coloured.
            with_verdict: Whether the number of runs by verdict and the path of the report follow the table.
        """
        from rackproof.core.text import sanitize
        from rackproof.report import terminal_table
        from rackproof.store.run_folder import ResultsError, read_run

        if not self._folders:
            return ""
        runs = []
        notes = []
        for run_id, folder in self._folders.items():
            try:
                runs.append(read_run(Path(folder)))
            except ResultsError as error:
                notes.append(sanitize(f"{run_id} cannot be shown: {error}", limit=600))
        if self._report and with_verdict:
            notes.append(f"Report: {sanitize(self._report, limit=4096)}")
        table = [terminal_table(runs, width=width, color=color, with_total=with_verdict)] if runs else []
        return "\n".join([*table, *notes])


class ChangeTable:
    """The changes of one playbook by node, and its remarks on nodes.

    A playbook provisions if a task of it sets the fact ``provision_attention``, a list of remarks on the
    node. Only such a playbook gets a summary and a record.
    """

    def __init__(self) -> None:
        # Names of tasks that changed something, and remarks, both by node.
        self._changed: dict[str, list[str]] = {}
        self._attention: dict[str, list[str]] = {}
        # The nodes with provision_attention, and the nodes on which a task failed.
        self._listed: set[str] = set()
        self._failed: set[str] = set()

    def add_result(self, host: str, task: str, result: Mapping[str, Any]) -> None:
        """Keep the change and the remarks in the result of a task that ended well on a host."""
        if result.get("changed"):
            self._changed.setdefault(host, []).append(task)
        facts = result.get("ansible_facts")
        if isinstance(facts, dict) and isinstance(facts.get("provision_attention"), list):
            self._listed.add(host)
            self._changed.setdefault(host, [])
            self._attention[host] = [str(remark) for remark in facts["provision_attention"]]

    def add_failure(self, host: str, task: str, result: Mapping[str, Any]) -> None:
        """Keep the reason why a task failed on a host, unless the playbook already set the host's remarks."""
        self._failed.add(host)
        if host not in self._listed:
            self._attention[host] = [f"{task}: {result.get('msg', 'failed')}"]

    def keep(self, results: Path, began: datetime, playbook: str, limit: str) -> KeptProvision | None:
        """Write record, run and page of a playbook that provisions. Return None for another playbook.

        Args:
            results: The results folder.
            began: The start of the playbook.
            playbook: The name of the playbook.
            limit: The operator's limit of hosts (``-l``), or "".

        Raises:
            ResultsError: A part cannot be written.
        """
        if not self._listed:
            return None
        from rackproof.jobs.provision.record import keep_provision
        from rackproof.store.audit_log import provision_of

        failed = {host for host in self._attention if host not in self._listed} | self._failed
        nodes = provision_of(self._changed, self._attention, failed)
        return keep_provision(results, began, nodes, playbook=playbook, limit=limit)

    def format_summary(self, predicted: bool) -> str:
        """Return the summary, or "" for a playbook that does not provision.

        ``predicted`` is whether the playbook runs in check mode, so that the changes are only predicted.
        """
        from rackproof.jobs.provision.summary import provision_summary

        return provision_summary(self._changed, self._attention, predicted) if self._listed else ""
