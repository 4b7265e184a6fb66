"""Define ``rackproof import``, which makes runs from logs that were written elsewhere."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from rackproof.cli.errors import ToolError
from rackproof.cli.options import json_option, results_option
from rackproof.cli.output import exit_status, json_value, print_json, terminal_width
from rackproof.core.records import Verdict, worst
from rackproof.core.text import amount, sanitize
from rackproof.jobs.bench.import_logs import ImportResult, import_logs
from rackproof.report import terminal_table
from rackproof.report.view import overall_verdict

_SHOWN_EVERY_S = 10.0
"""Seconds after which progress is printed again."""
_LARGE_BYTES = 64 << 20
"""Size in bytes from which the reading of one file takes long."""


@click.command("import")
@click.argument("place", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--benchmark",
    help="Name of the benchmark. The default is the name that each log states, or else its folder's name.",
)
@click.option("--format", "form", default="auto", show_default=True, help="The logs' format.")
@click.option("--old", is_flag=True, help="Do not judge the age of the logs.")
@results_option
@json_option
@click.pass_context
def import_command(
    ctx: click.Context, place: Path, benchmark: str | None, form: str, old: bool, results: Path, as_json: bool
) -> None:
    """Make runs from logs that were written elsewhere.

    DIR is a folder of logs (with its subfolders) or one log. Each log becomes a run in the results folder,
    with a copy of the log, reports, and an entry in the history. Compressed logs are unpacked. If the same
    log is imported again with the same benchmark, its run is written again, and no second run is added.

    The verdict of the run depends on the log alone. The log must show more than a start and an end, must show
    that it is less than two years old (unless --old is set), and must not be a copy of another log. Speed is
    not judged, because no log shows its SKU.
    """
    try:
        result = import_logs(
            place, results, benchmark=benchmark, format=form, old=old, progress=_Progress().show
        )
    except ValueError as error:
        raise ToolError(str(error)) from None
    runs = [imported.run for imported in result.imported]
    if as_json:
        print_json([json_value(imported) for imported in result.imported])
    else:
        click.echo(terminal_table(runs, terminal_width(), _wants_colour()), nl=False)
        for imported in result.imported:
            click.echo(f"{'known' if imported.known else 'new'}: {imported.folder}")
        click.echo(f"verdict of the logs: {overall_verdict(runs).value}; speed not judged: no SKU named")
    _print_remarks(result)
    # An unreadable file may be the log of a failure.
    ctx.exit(
        exit_status(
            worst([overall_verdict(runs), Verdict.UNPROVEN] if result.unread else [overall_verdict(runs)])
        )
    )


class _Progress:
    """The progress of a long import, printed to standard error."""

    def __init__(self) -> None:
        self._files = 0
        self._shown = time.monotonic()

    def show(self, path: Path) -> None:
        """Print the number of files that were read, and the file that is read next.

        Small files are printed only if nothing was printed for :data:`_SHOWN_EVERY_S`.
        """
        try:
            is_large = path.stat().st_size >= _LARGE_BYTES
        except OSError:
            # The reader reports a file that cannot be read.
            is_large = False
        if is_large or time.monotonic() - self._shown >= _SHOWN_EVERY_S:
            click.echo(f"{amount(self._files, 'file')} read, now {sanitize(path, 300)}", err=True)
            self._shown = time.monotonic()
        self._files += 1


def _print_remarks(result: ImportResult) -> None:
    """Print to standard error which files were not read or were skipped, and why the history lacks runs.

    With --json, standard output contains only JSON, so that it can be parsed.
    """
    for unread in result.unread:
        click.echo(f"not read: {unread}", err=True)
    for skipped in result.skipped:
        click.echo(f"skipped: {skipped}", err=True)
    # If the history is unreachable, show this once and not for each run.
    for remark in dict.fromkeys(imported.history for imported in result.imported if imported.history):
        click.echo(f"note: {sanitize(remark, 600)}", err=True)


def _wants_colour() -> bool:
    """Return whether the table may be coloured: on a terminal, unless the user sets NO_COLOR."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
