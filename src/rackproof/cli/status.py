"""Define ``rackproof status`` and ``audit``, which show all nodes in one table, and all acts on them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from rackproof.cli.errors import refuse_unknown_names, require_results
from rackproof.cli.options import json_option, results_option
from rackproof.cli.output import json_value, print_json, terminal_width
from rackproof.core.advised_commands import add_results
from rackproof.core.hostlist import expand_names
from rackproof.core.text import amount, sanitize
from rackproof.jobs.fleet_status import NodeRow, ask_slurm, read_rows
from rackproof.jobs.reimage.tasks import read_progress
from rackproof.report.terminal import text_table
from rackproof.store.acceptance_log import read_acceptances
from rackproof.store.audit_log import read_acts


@click.command("status")
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@click.option(
    "--slurm/--no-slurm", "ask", default=True, help="Whether to read the current states from Slurm."
)
@results_option
@json_option
def fleet_status_command(nodes: tuple[str, ...], ask: bool, results: Path, as_json: bool) -> None:
    """Show every node in one table, and the next command.

    The table joins Slurm's state, the last night, drains, provisioning and imaging. Slurm's state comes from
    sinfo on this machine, or else from the last night.
    """
    require_results(results)
    slurm, why = ask_slurm() if ask else ({}, "")
    imaging = [node for node in read_progress(results) if node.progress.state != "returned"]
    rows, remarks = read_rows(results, slurm, imaging)
    node_names = expand_names(nodes)
    shown_rows = [row for row in rows if not node_names or row.node in node_names]
    for remark in filter(None, [why, *remarks]):
        click.echo(f"note: {sanitize(remark, 600)}", err=True)
    if not as_json and not rows:
        text = sanitize(_empty_text(results, is_slurm_read=ask and not why), 4000)
        click.echo(add_results(text, results))
    else:
        _print_rows(shown_rows, as_json=as_json)
    refuse_unknown_names(node_names, [row.node for row in rows], "not known here")


def _print_rows(rows: Sequence[NodeRow], *, as_json: bool) -> None:
    """Print nodes as JSON, or as a table if there are any."""
    if as_json:
        print_json([json_value(row) for row in rows])
    elif rows:
        click.echo(_table(rows))


def _empty_text(results: Path, *, is_slurm_read: bool) -> str:
    """Return the text in place of a table without rows."""
    slurm_too = ", and Slurm lists none" if is_slurm_read else ""
    return (
        f"no node is known here: {results} has no night, no provisioning and no imaging{slurm_too}. "
        "`rackproof validate -l RACK` makes a night; `rackproof history` lists runs of benchmarks"
    )


def _night_text(row: NodeRow) -> str:
    """Return the end and the verdict of a node's last night, and whether nothing was measured."""
    mark = "(health only)" if row.health_only else ""
    return " ".join(filter(None, (row.night, row.verdict.value if row.verdict else "", mark)))


def _table(rows: Sequence[NodeRow]) -> str:
    """Return the table that the command prints."""
    columns = ("Node", "Slurm", "Drained by", "Reason", "Night (UTC)", "Provisioned", "Imaging", "Next")
    cells = [
        (
            row.node,
            row.slurm or "-",
            row.drained_by or "-",
            row.reason or "-",
            _night_text(row) or "-",
            row.provisioned or "-",
            row.imaging or "-",
            row.next or "-",
        )
        for row in rows
    ]
    return "\n".join(text_table(columns, cells, terminal_width(), (2, 3, 5, 6)))


@click.command("audit")
@click.argument("name", metavar="[NODE]", required=False)
@click.option("--node", help="The same as NODE: show only acts on this node, or of this run.")
@results_option
@json_option
def audit_command(name: str | None, node: str | None, results: Path, as_json: bool) -> None:
    """List every drain, resume, accept and withdraw with its user, time and reason.

    The oldest comes first.
    """
    node = node if name is None else name
    require_results(results)
    entries = _read_all_acts(results)
    shown_entries = [entry for entry in entries if node is None or entry[2] == node]
    if node is not None and not shown_entries:
        known_nodes = [row.node for row in read_rows(results, {}, ())[0]]
        refuse_unknown_names([node], [*known_nodes, *(entry[2] for entry in entries)], "not known here")
    if as_json:
        keys = ("moment", "act", "what", "actor", "playbook", "reason")
        print_json(
            [dict(zip(keys, (entry[0].isoformat(), *entry[1:]), strict=True)) for entry in shown_entries]
        )
    elif shown_entries:
        columns = ("When (UTC)", "Act", "What", "Who", "By", "Reason")
        cells = [(f"{entry[0]:%Y-%m-%d %H:%M}", *entry[1:]) for entry in shown_entries]
        click.echo("\n".join(text_table(columns, cells, terminal_width(), (2, 5))))
    else:
        click.echo("nothing was done from this results folder")


def _read_all_acts(results: Path) -> list[tuple[datetime, str, str, str, str, str]]:
    """Return time, act, node or run, actor, playbook and reason of all acts, oldest first."""
    acts, lost = read_acts(results)
    accepted, damaged = read_acceptances(results)
    if lost + damaged:
        click.echo(f"note: {amount(lost + damaged, 'damaged line')}", err=True)
    entries: list[tuple[datetime, str, str, str, str, str]] = [
        (act.moment, act.act, act.node, f"{act.actor}@{act.host}", act.playbook, sanitize(act.reason, 300))
        for act in acts
    ]
    entries += [
        (act.moment, act.act, act.run_id, f"{act.user}@{act.host}", "rackproof", sanitize(act.reason, 300))
        for act in accepted
    ]
    return sorted(entries, key=lambda entry: entry[0])
