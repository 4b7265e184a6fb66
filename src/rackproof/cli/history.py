"""Define ``rackproof history``, ``accept`` and ``withdraw``, which work on the database of runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from rackproof.cli.errors import ToolError, refuse_unknown_names, require_results
from rackproof.cli.find_run import history_path, refuse_lost_runs, run_ids_of_plan, split_run_path
from rackproof.cli.options import json_option, results_option
from rackproof.cli.output import json_value, print_json, terminal_width
from rackproof.core.advised_commands import add_results
from rackproof.core.errors import RackproofError
from rackproof.core.near_names import near_text
from rackproof.core.text import amount, sanitize
from rackproof.report.terminal import text_table
from rackproof.store.acceptance_log import (
    LOG_NAME,
    bounding_acceptances,
    note_acceptance,
    read_acceptances,
    standing_acceptances,
)
from rackproof.store.history.store import RunRow, Store, drain_spool, open_store, rebuild_history
from rackproof.store.run_evidence import record_objection


@click.command("history")
@click.option("--benchmark", help="Show only runs of this benchmark.")
@click.option("--node", help="Show only runs of a node, by name, serial, chassis, or UUID of a GPU.")
@click.option(
    "--limit", default=30, show_default=True, type=click.IntRange(1, 100_000), help="Number of newest runs."
)
@click.option("--rebuild", is_flag=True, help="First, enter every run of the results folder again.")
@results_option
@json_option
def history_command(
    benchmark: str | None, node: str | None, limit: int, rebuild: bool, results: Path, as_json: bool
) -> None:
    """List runs in the history, newest first.

    The history is the database that RACKPROOF_DATABASE_URL names, else history.sqlite in the results folder.
    --rebuild makes it again from the results folder, except for accepted references.
    """
    if rebuild:
        _rebuild(results)
    where = history_path(results)
    # Runs that could not be stored while the database was down are stored now, so that the list is complete.
    for problem in drain_spool(where, results / ".spool").problems:
        click.echo(f"note: a run waits to enter the history: {sanitize(problem, 600)}", err=True)
    with open_store(where) as store:
        runs = store.runs(benchmark=benchmark, node=node, limit=limit)
        if not runs and not rebuild and not store.runs(limit=1):
            refuse_lost_runs(f"no run is in {store.description}", results)
        if not runs:
            _refuse_unknown(store, benchmark, node)
    if as_json:
        print_json([_summary_json(run) for run in runs])
    elif runs:
        # The id is not split, because it is needed for other commands.
        columns = ("When (UTC)", "Verdict", "Benchmark", "Point", "Nodes", "Run")
        rows = [_summary_row(run) for run in runs]
        click.echo("\n".join(text_table(columns, rows, terminal_width(), (2, 3, 4))))
    else:
        click.echo("no such runs in the history")


def _refuse_unknown(store: Store, benchmark: str | None, node: str | None) -> None:
    """Refuse a benchmark that neither ran nor is defined here, and a node without a run."""
    stored_names = store.names()
    if benchmark is not None:
        defined = [path.stem for path in Path("benchmarks").glob("*.y*ml")]
        refuse_unknown_names([benchmark], [*stored_names.benchmarks, *defined], "no such benchmark ran")
    if node is not None and not store.knows_node(node):
        refuse_unknown_names([node], stored_names.nodes, "nothing ran on such a node")


def _rebuild(results: Path) -> None:
    """Store every run of the results folder. Report runs that cannot be stored, and runs to accept again.

    Raises:
        ToolError: There is no results folder.
    """
    require_results(results)
    path = results / "history.sqlite"
    rebuilt = rebuild_history(results, path)
    for problem in rebuilt.problems:
        click.echo(f"note: a run cannot enter the history: {sanitize(problem, 600)}", err=True)
    for remark in rebuilt.lost_evidence:
        click.echo(f"note: {sanitize(remark, 600)}", err=True)
    with open_store(path) as store:
        accepted, _ = standing_acceptances(results)
        lost = store.without_references(accepted)
    click.echo(f"{amount(rebuilt.runs, 'run')} entered the history", err=True)
    for run_id in lost:
        advice = add_results(f"accept it again: rackproof accept {sanitize(run_id, 130)}", results)
        click.echo(advice, err=True)


def _summary_json(run: RunRow) -> dict[str, Any]:
    """Return a run as JSON data for ``history --json``."""
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
    """Return a run's row of the table."""
    return (
        f"{run.moment:%Y-%m-%d %H:%M}",
        run.verdict.value,
        sanitize(run.benchmark, 80),
        sanitize(" ".join(f"{key}={value}" for key, value in run.parameters.items()), 80),
        sanitize(", ".join(run.nodes), 60),
        sanitize(run.run_id, 130),
    )


@click.command("accept")
@click.argument("name", metavar="RUN|PLAN", required=False)
@click.option("--list", "listed", is_flag=True, help="List every accept and withdraw with its user and time.")
@click.option(
    "--despite",
    metavar="WHY",
    default="",
    help="Accept numbers that were refused as implausible for a healthy machine. WHY is recorded.",
)
@results_option
@json_option
def accept_command(name: str | None, listed: bool, despite: str, results: Path, as_json: bool) -> None:
    """Make the numbers of a run, or of all runs of a plan, references for the hardware they ran on.

    RUN is the id of a run in the history, or its beginning. PLAN is the id of a plan. Each number that lacked
    only a reference becomes one, and so does each number that passed an accepted one. Later runs on that
    hardware are judged against the median of the accepted numbers.

    A run is refused if a finding makes it worse than a pass, if its machine was not idle (unless
    bench_require_idle=false made it count), or if its record or logs were changed or removed.

    A number is refused if it is impossible for the GPU model, or worse than on the run's other GPUs or on
    other machines of the SKU. It is also refused if it is more than 5 % worse than the first accepted number,
    or would move the median more than 5 % away from that number, unless the first is withdrawn with a reason.
    --despite accepts such numbers, and --list shows its reason. In a plan, each refused run is named, and the
    others are accepted.
    """
    despite = sanitize(despite.strip(), 400)
    if listed:
        _show_acceptances(results, as_json)
        return
    if not name:
        raise ToolError("name the run or plan to accept (`rackproof history` lists them), or give --list")
    name, results = split_run_path(name, results)
    ids = run_ids_of_plan(name, results)
    if damaged := read_acceptances(results)[1]:
        click.echo(
            f"note: {amount(damaged, 'damaged line')} of {results / LOG_NAME} may hide numbers that were "
            "accepted first, and limit these: restore the file from a backup",
            err=True,
        )
    refused: list[dict[str, str]] = []
    with open_store(history_path(results)) as store:
        if ids is None:
            accepted = [_accept(store, name, results, despite)]
            _show_accepted(accepted[0], as_json)
        else:
            accepted, refused = _accept_plan(store, name, ids, results, despite, as_json)
    if as_json:
        print_json({"accepted": [asdict(acceptance) for acceptance in accepted], "refused": refused})


@dataclass(frozen=True)
class _Acceptance:
    """The references from one accepted run.

    ``metrics`` are the metrics with a reference, and ``unbounded`` the metrics without an independent limit.
    """

    run_id: str
    title: str
    references: int
    nodes: tuple[str, ...]
    metrics: tuple[str, ...]
    unbounded: tuple[str, ...]
    was_accepted: bool = False
    """True if the run was accepted before, so that nothing changed."""


def _show_accepted(acceptance: _Acceptance, as_json: bool) -> None:
    """Print an acceptance, unless the command prints JSON at its end."""
    if not as_json:
        click.echo("\n".join(_acceptance_lines(acceptance)))


def _accept_plan(
    store: Store, plan_id: str, ids: list[str], results: Path, despite: str, as_json: bool
) -> tuple[list[_Acceptance], list[dict[str, str]]]:
    """Accept each acceptable run of a plan, and report the others. Return both.

    Raises:
        ToolError: No run of the plan can be accepted.
    """
    accepted, refused = [], []
    for run_id in ids:
        try:
            accepted.append(_accept(store, run_id, results, despite))
            # Show this at once, because an interruption does not undo an acceptance.
            _show_accepted(accepted[-1], as_json)
        except (RackproofError, ToolError) as error:
            reason = sanitize(str(error), 600)
            refused.append({"run_id": run_id, "reason": reason})
            click.echo(f"not accepted: {add_results(reason, results)}", err=True)
    if not accepted:
        raise ToolError(
            f"no run of {sanitize(plan_id, 130)} was accepted: none of its {amount(len(ids), 'run')} can be"
        )
    return accepted, refused


def _accept(store: Store, name: str, results: Path, despite: str) -> _Acceptance:
    """Accept one run, and return its references.

    Raises:
        ToolError: No number of the run can be accepted, or its record is not evidence.
    """
    run = store.run(name)
    # A row in the database is not evidence. The files on which the verdict depends must still exist.
    if objection := record_objection(run, results / run.run_id):
        raise ToolError(f"run {run.run_id} is not a reference: {sanitize(objection, 600)}")

    def note(references: int) -> None:
        note_acceptance(results, "accept", run.run_id, references, despite)

    unbounded = store.unbounded_metrics(run.run_id)
    # With a reason, numbers may be accepted that were refused the first time.
    was_accepted = not despite and run.run_id in standing_acceptances(results)[0]
    count = store.references_of(run.run_id) if was_accepted else 0
    if not count:
        was_accepted = False
        # Store the whole id, because the operator may have given only a prefix.
        count = store.accept(run.run_id, note=note, bounding=bounding_acceptances(results), despite=despite)
    if not count:
        raise ToolError(f"{run.run_id} has no measurement that waits for a reference; nothing was accepted")
    metrics = store.referenced_metrics(run.run_id)
    nodes = tuple(node.name for node in run.nodes)
    return _Acceptance(run.run_id, run.title, count, nodes, tuple(metrics), tuple(unbounded), was_accepted)


def _acceptance_lines(acceptance: _Acceptance) -> list[str]:
    """Describe an acceptance, with a warning about metrics without an independent limit."""
    references = f"{amount(acceptance.references, 'reference')} from {acceptance.run_id}"
    nodes = f" for {', '.join(acceptance.nodes)}" if acceptance.nodes else ""
    head = "accepted before: " if acceptance.was_accepted else "accepted "
    lines = [
        f"{head}{sanitize(references + nodes, 600)}",
        f"covers {sanitize(acceptance.title, 300)}: {sanitize(', '.join(acceptance.metrics), 300)}",
    ]
    if acceptance.unbounded:
        unbounded = sanitize(", ".join(acceptance.unbounded), 300)
        lines.append(
            f"note: nothing independent bounds {unbounded}: no data sheet, no "
            "other machine of its kind, and no earlier acceptance. If this machine is slow today, later "
            "slow runs pass, too. Put the SKU's number into bench_sku_references (inventory/group_vars of "
            "its SKU), or measure a second machine"
        )
    return lines


@click.command("withdraw")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--reason",
    default="",
    help="The reason, for `rackproof accept --list`. With one, the run no longer bounds other numbers.",
)
@results_option
@json_option
def withdraw_command(run_id: str, reason: str, results: Path, as_json: bool) -> None:
    """Withdraw the references that a run gave.

    RUN is the whole id of an accepted run. Later runs are judged by the other references of the hardware. If
    there are none, they wait for a reference again. Without --reason, the withdrawn numbers still bound the
    numbers that are accepted next. An example of a reason is a part that was changed.
    """
    reason = sanitize(reason.strip(), 400)
    run_id, results = split_run_path(run_id, results)

    noted = False

    def note(references: int) -> None:
        nonlocal noted
        note_acceptance(results, "withdraw", run_id, references, reason)
        noted = True

    with open_store(history_path(results)) as store:
        # Do not use the run's row, because the acceptance outlives it.
        count = store.withdraw(run_id, note=note, reason=reason)
    bounds = bool(reason) and run_id in bounding_acceptances(results)
    if not noted and (bounds or run_id in standing_acceptances(results)[0]):
        # The run's references were lost with a database, or withdrawn earlier without a reason. The operator
        # must see this.
        note(0)
    elif not noted:
        near = near_text(run_id, standing_acceptances(results)[0])
        raise ToolError(
            f"no reference comes from {sanitize(run_id, 130)}: give the whole id of a run that was accepted "
            f"(`rackproof accept --list`){near}"
        )
    if as_json:
        print_json({"run_id": run_id, "references": count, "reason": reason})
        return
    click.echo(f"withdrew {amount(count, 'reference')} from {sanitize(run_id, 130)}")


def _show_acceptances(results: Path, as_json: bool) -> None:
    """Show the acts in the log of acceptances, oldest first."""
    acts, damaged = read_acceptances(results)
    if as_json:
        print_json({"acts": [json_value(act) for act in acts], "damaged": damaged})
    elif acts:
        rows = [
            (
                f"{act.moment:%Y-%m-%d %H:%M}",
                act.act,
                str(act.references),
                sanitize(f"{act.user}@{act.host}", 80),
                sanitize(act.reason, 80),
                sanitize(act.run_id, 130),
            )
            for act in acts
        ]
        columns = ("When (UTC)", "Act", "References", "Who", "Reason", "Run")
        click.echo("\n".join(text_table(columns, rows, terminal_width(), (3, 4))))
    else:
        click.echo("nothing was accepted from this results folder")
    if damaged:
        click.echo(f"note: {amount(damaged, 'damaged line')} of {results / LOG_NAME}", err=True)
