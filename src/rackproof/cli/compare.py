"""Define ``rackproof compare``, which compares systems over repeats, or two runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rackproof.analysis.compare import Comparison, compare
from rackproof.analysis.compare.selecting import by_logs, select
from rackproof.analysis.compare.several_runs import SeveralRuns, compare_several
from rackproof.analysis.compare.systems import System, SystemComparison, compare_systems
from rackproof.cli.errors import ToolError
from rackproof.cli.find_run import find_run
from rackproof.cli.options import json_option, results_option
from rackproof.cli.output import json_value, print_json, print_or_write, terminal_width
from rackproof.core.records import Run
from rackproof.core.text import sanitize
from rackproof.report.comparison import (
    comparison_markdown,
    comparison_page,
    comparison_terminal,
    comparison_text,
)

_TWO = 2
"""Number of single runs that are compared in full detail."""


@click.command("compare")
@click.argument("names", nargs=-1, required=True, metavar="SYSTEM SYSTEM...")
@click.option("--benchmark", default="", help="Compare only runs of this benchmark.")
@click.option("--reference", help="Published system that every cell is judged against.  [default: by name]")
@click.option("--confidence", default=0.95, show_default=True, help="Confidence level of the intervals.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "html", "md"]),
    default="text",
    show_default=True,
    help="Format of the comparison.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="The file to write, or - for standard output."
)
@results_option
@json_option
def compare_command(
    names: tuple[str, ...],
    benchmark: str,
    reference: str | None,
    confidence: float,
    form: str,
    output: Path | None,
    results: Path,
    as_json: bool,
) -> None:
    """Compare systems over repeats, or two runs measurement by measurement.

    SYSTEM is a system of the results folder (SKU, node, configuration, plan, imported folder), a folder of
    logs or a quoted pattern, published:NAME, or a RUN. RUN is the id of a run (or its beginning), its folder,
    or its run.json. Ratios are relative to the first system. Means leave out runs that failed, that their
    logs leave unproven, or whose machine was not idle. A single run gives no interval. For runs, every
    measurement is compared, and for exactly two, all other differences too.
    """
    if len(names) < 2:
        raise click.UsageError("name two runs, or two or more systems")
    if as_json and (form != "text" or output is not None):
        raise click.UsageError("--json prints to standard output: leave out --format and --output")
    systems = _select_systems(names, results, benchmark)
    run_comparison = _compare_runs(systems)
    # Two single runs need no average. Text and JSON show the full comparison, and a page shows both.
    if run_comparison is not None and form == "text":
        if as_json:
            print_json(json_value(run_comparison))
        else:
            print_or_write(comparison_text(run_comparison, terminal_width()), output)
        return
    try:
        compared = compare_systems(_with_unique_names(systems), reference=reference, confidence=confidence)
    except ValueError as error:
        raise ToolError(str(error)) from None
    several = _compare_several(systems)
    if as_json:
        runs_entry = {"runs": json_value(several)} if several else {}
        print_json({**json_value(compared), **runs_entry})
    else:
        print_or_write(_rendered(compared, run_comparison, several, form), output)


def _compare_runs(systems: Sequence[System]) -> Comparison | None:
    """Return the comparison of two systems that are one run each, or None for other systems."""
    if len(systems) != _TWO or not all(system.single_run for system in systems):
        return None
    return compare(systems[0].runs[0], systems[1].runs[0])


def _compare_several(systems: Sequence[System]) -> SeveralRuns | None:
    """Return the comparison of more than two systems that are one run each, or None if they are not."""
    if len(systems) <= _TWO or not all(system.single_run for system in systems):
        return None
    return compare_several([system.runs[0] for system in systems])


def _rendered(
    compared: SystemComparison, run_comparison: Comparison | None, several: SeveralRuns | None, form: str
) -> str:
    """Return the comparison in the form of ``--format``."""
    if form == "text":
        return comparison_terminal(compared, terminal_width(), several)
    if form == "html":
        return comparison_page(compared, run_comparison, several)
    return comparison_markdown(compared, run_comparison, several)


def _select_systems(names: Sequence[str], results: Path, benchmark: str) -> list[System]:
    """Return the selected systems. Print what was left out to standard error."""
    remarks: list[str] = []

    def run_by_name(name: str) -> Run:
        run, folder = find_run(name, results)
        return run if folder is None else by_logs(run, folder, remarks)

    systems = [select(name, results, run_by_name, remarks, benchmark=benchmark) for name in names]
    # Two systems of one folder leave out the same runs. Show each remark once.
    for remark in dict.fromkeys(remarks):
        click.echo(f"note: {sanitize(remark, 600)}", err=True)
    return systems


def _with_unique_names(systems: Sequence[System]) -> list[System]:
    """Return the systems with numbers added to equal names, as for a run that is compared with itself."""
    counts: dict[str, int] = {}
    named = []
    for system in systems:
        count = counts[system.name] = counts.get(system.name, 0) + 1
        named.append(system if count == 1 else system.model_copy(update={"name": f"{system.name} ({count})"}))
    return named
