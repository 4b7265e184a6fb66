"""Define ``rackproof report``, which writes the report of one or several runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

import click

from rackproof.cli.errors import ToolError
from rackproof.cli.find_run import find_run, run_ids_of_plan
from rackproof.cli.options import results_option
from rackproof.cli.output import is_standard_output, print_or_write
from rackproof.core.records import Run
from rackproof.report import render
from rackproof.store.run_evidence import judge_by_logs
from rackproof.store.run_folder import ResultsError


@click.command("report")
@click.argument("names", nargs=-1, required=True, metavar="RUN|PLAN...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md", "junit", "json"]),
    default="html",
    show_default=True,
    help="Format of the report.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="The file to write, or - for standard output."
)
@click.option("--title", default="Runs", show_default=True, help="Heading of a report of several runs.")
@results_option
def report_command(names: tuple[str, ...], form: str, output: Path | None, title: str, results: Path) -> None:
    """Write the report of a run, or one report of several runs.

    RUN is the id of a run (or its beginning), its folder, or its run.json. The id of a PLAN selects all runs
    of the plan. Without --output, the HTML page of one run goes into its folder, if there is one, and
    everything else goes to standard output. A run whose logs are gone or were changed is unproven.
    """
    runs = [_run_by_logs(run, results) for name in names for run in run_ids_of_plan(name, results) or (name,)]
    folder = runs[0][1]
    # Only the HTML page of a single run has a default file. A run that is only in the history has no folder.
    is_named = output is not None
    if output is None and form == "html" and len(runs) == 1 and folder is not None:
        output = folder / "report.html"
    place = folder.resolve().parent if folder is not None else results
    page = render([run for run, _ in runs], form, title, _page_links(runs, output), folder, place)
    try:
        print_or_write(page, output, is_named=is_named)
    except ResultsError as error:
        if is_named:
            raise ToolError(str(error)) from None
        # Some of these messages end with a full stop, and some without one.
        raise ToolError(f"{str(error).removesuffix('.')}. `--output -` prints the page.") from None


def _run_by_logs(name: str, results: Path) -> tuple[Run, Path | None]:
    """Return a run as its logs allow, and its folder.

    A run that is only in the history is unchanged, and its folder is None.
    """
    run, folder = find_run(name, results)
    return (run if folder is None else judge_by_logs(run, folder)), folder


def _page_links(runs: Iterable[tuple[Run, Path | None]], output: Path | None) -> Callable[[Run], str]:
    """Return a function that returns the link from the written page to a run's own page, or ""."""
    folders = {run.run_id: folder for run, folder in runs if folder is not None}

    def link(run: Run) -> str:
        folder = folders.get(run.run_id)
        # A page on standard output has no folder that a relative link could start from.
        if folder is None or output is None or is_standard_output(output):
            return ""
        # Use a relative link, because the results folder may be copied or served by a web server.
        return quote(os.path.relpath(folder.resolve() / "report.html", output.resolve().parent))

    return link
