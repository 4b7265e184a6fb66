"""Store a provisioning as its own record, as a run with a page, and in the history.

The callback calls :func:`keep_provision` at the end of provision.yml
(``rackproof_ansible.playbook_summary``). A node's ``attention`` has texts about its open problems, such as
errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rackproof import __version__
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.records import Finding, Node, Run, Source, Verdict
from rackproof.core.text import amount, sanitize
from rackproof.report import write_run_reports
from rackproof.store.audit_log import (
    AuditEntry,
    NodeProvision,
    ProvisionRecord,
    read_acts,
    write_provision,
)
from rackproof.store.history.client import History
from rackproof.store.run_folder import ResultsError, write_run

BENCHMARK = "provision"
"""Name under which provisionings are in the history, among the benchmarks."""
_MOST_REASONS = 20
"""Largest number of failed nodes whose reasons the run states."""


@dataclass(frozen=True)
class KeptProvision:
    """A provisioning that was stored.

    Attributes:
        run: The provisioning as a run.
        page: The path of the HTML report.
        history: The reason why the history lacks the run, or empty.
    """

    run: Run
    page: Path
    history: str


def keep_provision(
    results: Path, began: datetime, nodes: Mapping[str, NodeProvision], *, playbook: str, limit: str
) -> KeptProvision:
    """Write the record, the run with its page, and the history's entry of one provisioning.

    Args:
        results: The results folder.
        began: The time when the playbook began.
        nodes: The outcome of each node.
        playbook: The name of the playbook.
        limit: The nodes that ``-l`` selected. Empty for all.

    Raises:
        ResultsError: A part cannot be written. The parts before it were written.
    """
    path = write_provision(results, began, nodes, playbook=playbook, limit=limit)
    try:
        record = ProvisionRecord.model_validate_json(path.read_bytes())
        acts = [act for act in read_acts(results)[0] if act.node in nodes and act.moment >= began]
        run = provision_run(record, acts)
        folder = results / run.run_id
        # The record comes first, because the history reads it from the folder.
        write_run(run, folder)
        page = write_run_reports(run, folder)["html"]
    except OSError as error:
        raise ResultsError(
            f"{error.filename or results / path.stem} cannot be written: {error.strerror or error}"
        ) from error
    return KeptProvision(run, page, History(results).keep(folder))


def provision_run(record: ProvisionRecord, acts: list[AuditEntry]) -> Run:
    """Return a provisioning as a run, with changes, open problems, drains and resumes. No I/O.

    The verdict is fail if a node failed, unproven without nodes, and otherwise pass.

    Args:
        record: The provisioning.
        acts: The drains and resumes of its nodes during the provisioning.
    """
    failed = [name for name, node in record.nodes.items() if node.failed]
    reasons = [
        f"{name}: {record.nodes[name].attention[0] if record.nodes[name].attention else 'failed'}"
        for name in failed
    ]
    limit = f" -l {record.limit}" if record.limit else ""
    verdict = Verdict.FAIL if failed else Verdict.PASS
    if not record.nodes:
        verdict = Verdict.UNPROVEN
        reasons = [f"no node was provisioned: see which nodes{limit or ' the inventory'} selects"]
    return Run(
        run_id=record.provision_id,
        benchmark=BENCHMARK,
        description=(
            f"{record.actor}@{record.host} ran {record.playbook}{limit}: "
            f"{amount(len(record.nodes), 'node')}, "
            f"{sum(bool(node.changed) for node in record.nodes.values())} changed, {len(failed)} failed"
        ),
        started=record.began,
        ended=record.ended,
        nodes=tuple(Node(name=name) for name in record.nodes),
        asked_nodes=tuple(record.nodes),
        findings=(*_act_findings(acts), *_task_findings(record)),
        verdict=verdict,
        reasons=tuple(reasons[:_MOST_REASONS]),
        rackproof_version=__version__,
    )


def _act_findings(acts: list[AuditEntry]) -> Iterator[Finding]:
    """Yield a remark about each drain and resume."""
    for act in acts:
        why = f": {act.reason}" if act.reason else ""
        yield _finding("provision_act", act.node, f"{act.act} by {act.actor}@{act.host}{why}")


def _task_findings(record: ProvisionRecord) -> Iterator[Finding]:
    """Yield the open problems of each node, and then each change with its nodes."""
    for name, node in record.nodes.items():
        for remark in node.attention:
            yield _finding("provision_attention", name, remark)
    nodes_of: dict[str, list[str]] = {}
    for name, node in record.nodes.items():
        for task in node.changed:
            nodes_of.setdefault(task, []).append(name)
    for task, names in nodes_of.items():
        yield _finding("provision_change", compress_hostlist(names), task)


def _finding(code: str, where: str, text: str) -> Finding:
    """Return a remark. Only the verdict of the run shows whether a node failed."""
    return Finding(code=code, message=sanitize(f"{where}: {text}", 1000), source=Source(file=where))
