"""Define ``rackproof submission``, which makes a package for an MLPerf round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from rackproof.analysis.submission import Submission, build_submission, latest_runs, load_system_file
from rackproof.analysis.submission.models import BenchmarkPart, Issue
from rackproof.analysis.submission.runs import runs_gone
from rackproof.cli.errors import ToolError
from rackproof.cli.find_run import find_run, history_path
from rackproof.cli.options import json_option, results_option, ruleset_option
from rackproof.cli.output import (
    SHOWN_FINDINGS,
    exit_status,
    json_value,
    more_line,
    print_json,
    terminal_width,
)
from rackproof.core.records import Run
from rackproof.core.text import sanitize
from rackproof.report.terminal import text_table
from rackproof.store.history.store import RunRow, open_store

_CHECKER_ANSWERS = {True: "accepts the package", False: "rejects the package", None: "gave no verdict"}
"""Words for the answer of the official package checker."""


_NEWEST_LISTED = 10_000
"""Largest number of runs of a benchmark that are read from the history, the newest first."""


@click.command("submission")
@click.argument("names", nargs=-1, metavar="[RUN...]")
@click.option(
    "--system",
    "system_file",
    required=True,
    type=click.Path(path_type=Path),
    help="File with facts about the system that no log contains.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write.")
@click.option("--latest", type=click.IntRange(1, 1000), help="Take the newest N runs of each --benchmark.")
@click.option("--benchmark", "benchmarks", multiple=True, help="Benchmark for --latest. May be repeated.")
@click.option("--sku", default="", help="With --latest, take only runs on nodes of this SKU.")
@ruleset_option
@click.option("--timeout", default=300.0, show_default=True, help="Seconds until a check is stopped.")
@results_option
@json_option
@click.pass_context
def submission_command(
    ctx: click.Context,
    names: tuple[str, ...],
    system_file: Path,
    out: Path,
    latest: int | None,
    benchmarks: tuple[str, ...],
    sku: str,
    ruleset: str | None,
    timeout: float,
    results: Path,
    as_json: bool,
) -> None:
    """Make a submission to an MLPerf round from runs of one system.

    RUN is the id of a run (or its beginning), or its folder. The official package checker checks the package,
    which is written only if nothing is missing or wrong. Otherwise the command lists all problems.
    """
    _check_selection(names, latest, benchmarks, sku)
    system = load_system_file(system_file)
    issues: list[Issue] = []
    if latest is not None:
        runs = latest_runs(results, benchmarks, latest, sku=sku)
        issues = runs_gone(results, benchmarks, runs, _runs_of_history(results, benchmarks))
    else:
        runs = [_run_with_folder(name, results) for name in names]
    try:
        submission = build_submission(
            runs, system, out, ruleset=ruleset, timeout_s=timeout, known_issues=issues
        )
    except ValueError as error:
        raise ToolError(str(error)) from None
    if as_json:
        print_json(json_value(submission))
    else:
        click.echo(_submission_text(submission, out), nl=False)
    ctx.exit(exit_status(submission.verdict))


def _runs_of_history(results: Path, benchmarks: Sequence[str]) -> list[RunRow]:
    """Return the history's entries for some benchmarks, or an empty list if there is no history."""
    try:
        where = history_path(results)
    except ToolError:
        return []
    with open_store(where) as store:
        return [row for name in benchmarks for row in store.runs(benchmark=name, limit=_NEWEST_LISTED)]


def _check_selection(names: Sequence[str], latest: int | None, benchmarks: Sequence[str], sku: str) -> None:
    """Check that runs are selected in exactly one way, and completely.

    Raises:
        ToolError: The selection is ambiguous or incomplete.
    """
    newest = latest is not None or bool(benchmarks) or bool(sku)
    # With both ways at once, it would be unclear which runs are meant.
    if newest == bool(names) or (newest and not (latest and benchmarks)):
        raise ToolError("name the runs, or take the newest with both --latest N and --benchmark NAME")


def _run_with_folder(name: str, results: Path) -> tuple[Run, Path]:
    """Return a run and its folder.

    Raises:
        ToolError: The run is not found, or is only in the history.
    """
    run, folder = find_run(name, results)
    # The package contains the logs. The history stores only values from them.
    if folder is None:
        raise ToolError(
            f"run {run.run_id} is only in the history: its log is needed; bring its folder back to {results}"
        )
    return run, folder


def _submission_text(submission: Submission, out: Path) -> str:
    """Return the text that the command prints about a package."""
    submitter, system = sanitize(submission.submitter, 100), sanitize(submission.system, 100)
    title = f"{submitter}, {system}, {submission.division}, rules {submission.ruleset}"
    lines = [f"submission of {title}: {submission.verdict.value}"]
    rows = [_benchmark_row(part) for part in submission.benchmarks]
    if rows:
        lines += text_table(("Benchmark", "Runs", "Minutes", "Scaling"), rows, terminal_width(), (0,))
    checker = submission.checker
    version = checker.version or "not run"
    lines.append(f"official package checker ({version}): {_CHECKER_ANSWERS[checker.accepted]}")
    messages = checker.messages[:SHOWN_FINDINGS]
    lines += [f"  {sanitize(message, 300)}" for message in messages]
    lines += more_line(len(checker.messages) - len(messages), "messages")
    lines += _issue_lines(submission.issues)
    lines.append(f"written: {submission.folder}" if submission.folder else f"nothing was written to {out}")
    return "\n".join(lines) + "\n"


def _benchmark_row(part: BenchmarkPart) -> tuple[str, ...]:
    """Return a benchmark's row of the printed table."""
    return (
        sanitize(part.benchmark, 80),
        f"{len(part.runs)} of {'?' if part.runs_needed is None else part.runs_needed}",
        "-" if part.minutes is None else f"{part.minutes:.3f}",
        "-" if part.scaling_factor is None else f"{part.scaling_factor:.6g}",
    )


def _issue_lines(issues: Iterable[Issue]) -> list[str]:
    """Return lines about the issues. An issue with several places is written once, above their list."""
    # A wrong setting is wrong in each of dozens of files.
    places_of: dict[tuple[str, str], list[str]] = {}
    for issue in issues:
        weight = issue.verdict.value if issue.verdict else "remark"
        places_of.setdefault((weight, sanitize(issue.text, 1500)), []).append(sanitize(issue.place, 400))
    lines = []
    for (weight, text), places in places_of.items():
        if len(places) > 1:
            lines.append(f"- {weight}: {text}")
            lines += [f"    {place}" for place in places]
        else:
            place = f"{places[0]}: " if places[0] else ""
            lines.append(f"- {weight}: {place}{text}")
    return lines
