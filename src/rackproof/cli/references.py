"""Define ``rackproof references``, which proposes a SKU's references from runs of healthy machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import yaml

from rackproof.analysis.reference_bounds import (
    FEWEST_RUNS,
    WIDEST,
    ProposedReference,
    propose_references,
    reference_entry,
)
from rackproof.cli.errors import ToolError, refuse_unknown_names, require_results
from rackproof.cli.options import json_option, results_option
from rackproof.cli.output import print_json
from rackproof.core.records import Run
from rackproof.core.text import amount, sanitize
from rackproof.store.run_evidence import log_objections
from rackproof.store.run_folder import ResultsError, iter_runs


@click.command("references")
@click.option("--benchmark", help="Use only runs of this benchmark.")
@click.option("--sku", help="Use only runs whose nodes have this SKU.")
@click.option(
    "--source",
    default="own measurement",
    show_default=True,
    help="Description of where the numbers were measured.",
)
@click.option("--bound", type=click.FloatRange(0.001, WIDEST), help="Bound to use, such as 0.03 for 3 %.")
@click.option(
    "--repeats",
    default=FEWEST_RUNS,
    show_default=True,
    type=click.IntRange(2),
    help="Smallest number of runs.",
)
@click.option(
    "--despite",
    default="",
    metavar="WHY",
    help="Propose also numbers that are implausible for the GPU model, with this reason in their source.",
)
@results_option
@json_option
def references_command(
    benchmark: str | None,
    sku: str | None,
    source: str,
    bound: float | None,
    repeats: int,
    despite: str,
    results: Path,
    as_json: bool,
) -> None:
    """Propose a SKU's references, with bounds from the noise of repeated runs.

    The command reads the runs of the results folder and prints entries of bench_sku_references for
    inventory/group_vars/sku_NAME.yml. Each entry states how far healthy values differ, and the smallest
    loss that its bound would find. Runs with a degraded, unproven or failed finding or log, runs that ended
    with an error, runs of machines that were not idle, runs on the test rack, and runs with the log of
    another run, do not count. A bound that the noise would cross is refused, and so is a number that too few
    runs measured. A number that no healthy GPU of the model reaches, or that every one exceeds, is refused
    without --despite. Runs of several SKUs need --sku.
    """
    despite = sanitize(despite.strip(), 400)
    require_results(results)
    runs = _chosen_runs(results, benchmark, sku)
    if sku is None:
        _refuse_several_skus(runs)
    proposed = propose_references(runs, bound=bound, fewest_runs=repeats, plausible=not despite)
    if not proposed:
        raise ToolError(
            f"none of {amount(len(runs), 'run')} in {results} has a speed that its benchmark judges "
            f"and no finding against it; run the benchmark {repeats} times on healthy machines"
        )
    if as_json:
        print_json([proposal.model_dump(mode="json") for proposal in proposed])
        return
    if despite:
        source = f"{source} (despite: {despite})"
    for proposal in proposed:
        click.echo(_entry_text(proposal, source))
    refused = sum(bool(proposal.objection) for proposal in proposed)
    click.echo(f"{amount(len(proposed) - refused, 'reference')}, {refused} refused", err=True)


def _chosen_runs(results: Path, benchmark: str | None, sku: str | None) -> list[Run]:
    """Return the runs of a benchmark and a SKU (or of all) whose logs agree with their records.

    Raises:
        ToolError: There is no run, no such benchmark, or no such SKU.
    """
    runs, benchmarks, skus = [], set(), set()
    originals: dict[tuple[str, str], str] = {}
    for run in iter_runs(results, on_error=_print_note):
        own_skus = {node.sku for node in run.nodes}
        benchmarks.add(run.benchmark)
        skus |= own_skus - {""}
        is_wanted = benchmark in (None, run.benchmark) and (sku is None or own_skus == {sku})
        if is_wanted and _is_usable(run, results) and _is_no_copy(run, originals):
            runs.append(run)
    if not benchmarks:
        raise ToolError(
            f"no run is in {results}: run a benchmark first, or name another folder with --results"
        )
    refuse_unknown_names([benchmark] if benchmark else [], benchmarks, "no such benchmark ran")
    refuse_unknown_names([sku] if sku else [], skus, "no run is of such a SKU")
    return runs


def _print_note(error: ResultsError) -> None:
    """Print an error of a record, which may name a folder with any characters."""
    click.echo(f"note: {sanitize(error, 600)}", err=True)


def _refuse_several_skus(runs: Sequence[Run]) -> None:
    """Refuse to mix the speeds of different machines in one reference."""
    skus = sorted({node.sku or "none" for run in runs for node in run.nodes})
    if len(skus) > 1:
        skus_text = sanitize(", ".join(skus), 200)
        raise ToolError(f"the runs are of several SKUs ({skus_text}); choose one with --sku")


def _is_usable(run: Run, results: Path) -> bool:
    """Return whether a run's hardware is real, and its logs are as recorded. Print the reason if not."""
    objections = log_objections(run, results / run.run_id)
    if run.is_of_test_rack:
        objections.append("it was on the test rack, whose hardware is fake")
    for objection in objections:
        text = sanitize(f"{run.run_id} does not count: {objection}", 400)
        click.echo(f"note: {text}", err=True)
    return not objections


def _is_no_copy(run: Run, originals: dict[tuple[str, str], str]) -> bool:
    """Return whether a run has a log that no run before it has. Print a note if it has only their logs.

    Two runs would log different times, so a copy shows no spread. ``originals`` has the run of each log, by
    benchmark and digest. The logs of this run are added.
    """
    # All empty logs are equal, so they do not show that a run was copied.
    logs = [(run.benchmark, log.sha256) for log in run.logs if log.size_bytes]
    is_copy = bool(logs) and originals.keys() >= set(logs)
    if is_copy:
        text = f"{run.run_id} does not count: byte for byte the same log as {originals[logs[0]]}"
        click.echo(f"note: {sanitize(text, 400)}", err=True)
    for log in logs:
        originals.setdefault(log, run.run_id)
    return not is_copy


def _entry_text(proposal: ProposedReference, source: str) -> str:
    """Return a reference as YAML below a comment about its noise. A refused one is only a comment."""
    metric = " ".join([proposal.metric, *proposal.labels.values()])
    if proposal.objection:
        return (
            f"  # {sanitize(proposal.benchmark, 80)}: {sanitize(metric, 120)}: refused: {proposal.objection}"
        )
    entry = yaml.safe_dump(
        reference_entry(proposal, source), default_flow_style=True, sort_keys=False, width=100
    )
    first_line, *further_lines = entry.strip().splitlines()
    lines = [f"  - {first_line}", *(f"    {line}" for line in further_lines)]
    loss = f"a loss of {proposal.smallest_loss:.1%}"
    noise = f"spread {proposal.spread:.1%}; {loss} would be noticed on each measured part"
    alone = "; measured on one machine, from which others may differ" if proposal.machines == 1 else ""
    return "\n".join([f"  # {sanitize(metric, 120)}: {noise}{alone}", *lines])
