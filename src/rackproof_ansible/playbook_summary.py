"""Collect a playbook's recorded runs and changes from its tasks' results, to show them at its end.

The callback ``rackproof`` gives each result to a :class:`RunTable` and a :class:`ChangeTable`. These classes
do not use Ansible.
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
    """Return the message that no task ran on requested hosts."""
    from rackproof.core.hostlist import compress_hostlist
    from rackproof.core.text import sanitize

    return sanitize(
        f"{compress_hostlist(hosts)}: requested, but nothing was done there; start the same command again",
        4096,
    )


class RunTable:
    """The recorded runs of one playbook, in the order in which they ended."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}
        self._report = ""

    def add_result(self, result: Mapping[str, Any]) -> None:
        """Keep the run that a task recorded, or the report over all runs that it wrote."""
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
        """Return whether a task wrote the report over all runs."""
        return bool(self._report)

    def format_table(self, width: int, color: bool, *, with_verdict: bool = True) -> str:
        """Return the table, or "" if no run was recorded. Records that cannot be read are listed below it.

        Args:
            width: The width of the terminal in cells.
            color: Whether verdicts are coloured.
            with_verdict: Whether the total of the runs and the path of the report follow.
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
    """The changes of one playbook by node, and the remarks in ``provision_attention``."""

    def __init__(self) -> None:
        self._changed: dict[str, list[str]] = {}
        self._attention: dict[str, list[str]] = {}
        self._listed: set[str] = set()
        self._failed: set[str] = set()

    def add_result(self, host: str, task: str, result: Mapping[str, Any]) -> None:
        """Keep the changes of a task that ended well."""
        if result.get("changed"):
            self._changed.setdefault(host, []).append(task)
        facts = result.get("ansible_facts")
        if isinstance(facts, dict) and isinstance(facts.get("provision_attention"), list):
            self._listed.add(host)
            self._changed.setdefault(host, [])
            self._attention[host] = [str(remark) for remark in facts["provision_attention"]]

    def add_failure(self, host: str, task: str, result: Mapping[str, Any]) -> None:
        """Keep why a task failed, unless the playbook itself lists the node."""
        self._failed.add(host)
        if host not in self._listed:
            self._attention[host] = [f"{task}: {result.get('msg', 'failed')}"]

    def keep(self, results: Path, began: datetime, playbook: str, limit: str) -> KeptProvision | None:
        """Write record, run and page of a playbook that provisioned. Do nothing for another playbook.

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
        """Return the summary, or "" for a playbook that does not provision."""
        from rackproof.jobs.provision.summary import provision_summary

        return provision_summary(self._changed, self._attention, predicted) if self._listed else ""
