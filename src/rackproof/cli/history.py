"""``rackproof history`` and ``rackproof accept``: the database of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rackproof.cli.errors import ToolError
from rackproof.cli.find_run import history_path
from rackproof.cli.options import json_option, results_option
from rackproof.cli.output import print_json, terminal_width
from rackproof.core.text import sanitize
from rackproof.report.terminal import text_table
from rackproof.store.history.store import RunRow, drain_spool, open_store


@click.command("history")
@click.option("--benchmark", help="Only of this benchmark.")
@click.option("--node", help="Only with this node: its name, serial, chassis, or the UUID of a GPU in it.")
@click.option("--limit", default=30, show_default=True, type=click.IntRange(1, 100_000))
@results_option
@json_option
def history_command(
    benchmark: str | None, node: str | None, limit: int, results: Path, as_json: bool
) -> None:
    """List runs in the history, newest first.

    The history is the database that RACKPROOF_DATABASE_URL names, else history.sqlite in the results
    folder.
    """
    where = history_path(results)
    # Runs that could not enter while the database was down enter now, so that the list is complete.
    for problem in drain_spool(where, results / ".spool").problems:
        click.echo(f"note: a run waits to enter the history: {sanitize(problem, 600)}", err=True)
    with open_store(where) as store:
        runs = store.runs(benchmark=benchmark, node=node, limit=limit)
    if as_json:
        print_json([_summary_json(run) for run in runs])
    elif runs:
        # The id stays in one piece: other commands take it.
        columns = ("When (UTC)", "Verdict", "Benchmark", "Point", "Nodes", "Run")
        rows = [_summary_row(run) for run in runs]
        click.echo("\n".join(text_table(columns, rows, terminal_width(), (2, 3, 4))))
    else:
        click.echo("no such runs in the history")


def _summary_json(run: RunRow) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "plan_id": run.plan_id,
        "benchmark": run.benchmark,
        "suite": run.suite,
        "parameters": run.parameters,
        "verdict": run.verdict.value,
        "reason": run.reason,
        "provenance": run.provenance,
        "moment": run.moment.isoformat(),
        "seconds": run.seconds,
        "nodes": list(run.nodes),
    }


def _summary_row(run: RunRow) -> tuple[str, ...]:
    return (
        f"{run.moment:%Y-%m-%d %H:%M}",
        run.verdict.value,
        sanitize(run.benchmark, 80),
        sanitize(" ".join(f"{key}={value}" for key, value in run.parameters.items()), 80),
        sanitize(", ".join(run.nodes), 60),
        sanitize(run.run_id, 130),
    )


@click.command("accept")
@click.argument("run_id", metavar="RUN")
@results_option
def accept_command(run_id: str, results: Path) -> None:
    """Make the numbers of a run references for the hardware it ran on.

    RUN is the id of a run in the history, or the beginning of it. Its measurements that had no
    reference yet become one; later runs on that hardware are judged against it.
    """
    with open_store(history_path(results)) as store:
        run = store.run(run_id)
        # By the whole id: the operator may have given its beginning.
        count = store.accept(run.run_id)
    if not count:
        raise ToolError(f"{run.run_id} has no measurement that waits for a reference; nothing was accepted")
    nodes = ", ".join(node.name for node in run.nodes)
    references = f"{count} reference{'' if count == 1 else 's'} from {run.run_id}"
    click.echo(f"accepted {sanitize(references + (f' for {nodes}' if nodes else ''), 600)}")
