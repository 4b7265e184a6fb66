"""The command ``rackproof``.

Everything but click is imported inside the commands, so that ``rackproof --help`` answers at once.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rackproof.analysis.compare.systems import System
    from rackproof.analysis.mlperf.score import FolderScore
    from rackproof.analysis.submission import Submission
    from rackproof.core.records import ParsedLog, Record, Run, Source, Verdict

EXIT_PASS, EXIT_ERROR, EXIT_FAIL, EXIT_UNPROVEN = 0, 1, 2, 3
_SHOWN_MEASUREMENTS = 40
_SHOWN_FINDINGS = 20

_EPILOG = """\b
Exit status of parse, score, import, submission and nightly:
  0  pass (degraded, too)
  1  usage error, or the tool itself failed
  2  fail
  3  unproven
The other commands only show or keep: 0, or 1 on an error.
"""


class ToolError(click.ClickException):
    """What an operator has to mend; shown as one line, without a traceback."""

    exit_code = EXIT_ERROR

    def show(self, file: Any = None) -> None:
        """Print the message to standard error."""
        from rackproof.core.text import sanitize

        click.echo(f"rackproof: {sanitize(self.format_message(), 2000)}", file=file, err=True)


class Program(click.Group):
    """The group of commands, with Rackproof's exit statuses and errors without tracebacks."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the program's own options."""
        with _own_exit_status():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what it raises becomes one clear line, unless --debug asks for more."""
        with _own_exit_status():
            try:
                return super().invoke(ctx)
            except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
                raise
            except Exception as error:
                if ctx.params.get("debug"):
                    raise
                raise ToolError(_explain(error)) from None


@contextmanager
def _own_exit_status() -> Iterator[None]:
    """Make click's usage errors end with 1: its 2 would say that something was proven bad."""
    try:
        yield
    except click.UsageError as error:
        error.exit_code = EXIT_ERROR  # type: ignore[misc]  # click reads it from the instance
        raise


def _explain(error: Exception) -> str:
    # Rackproof's own errors are written for operators.
    if type(error).__module__.partition(".")[0] == "rackproof":
        return str(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}"
    return (
        f"unexpected {type(error).__name__}: {error}. This is a fault of Rackproof: "
        "run the command again with `rackproof --debug …` and report what it prints"
    )


def _exit_status(verdict: Verdict) -> int:
    from rackproof.core.records import Verdict

    return {Verdict.FAIL: EXIT_FAIL, Verdict.UNPROVEN: EXIT_UNPROVEN}.get(verdict, EXIT_PASS)


def _print_json(value: Any) -> None:
    """Print JSON in ASCII: text of a log cannot move the cursor of the terminal that shows it."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f"))


def _plain(record: Record) -> Any:
    """Return a record as JSON values; by way of its own text, which alone writes NaN as ``"NaN"``."""
    return json.loads(record.model_dump_json())


def _one_or_all(records: Sequence[Record]) -> Any:
    values = [_plain(record) for record in records]
    return values[0] if len(values) == 1 else values


def _width() -> int:
    return shutil.get_terminal_size((110, 40)).columns


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _results_option(command: _Command) -> _Command:
    return click.option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("results"),
        show_default=True,
        envvar="RACKPROOF_RESULTS",
        show_envvar=True,
        help="The results folder.",
    )(command)


def _json_option(command: _Command) -> _Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)


@click.group(
    cls=Program,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="rackproof", message="%(prog)s %(version)s")
def main(debug: bool) -> None:
    """Read, score, judge and compare results of benchmarks on GPU nodes."""
    # A terminal without UTF-8 gets "?" for a character that it cannot show, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


@main.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--format", "form", default="auto", show_default=True, help="The log format's name.")
@click.option(
    "--list-formats",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, wanted: _list_formats(context, wanted),
    help="Print the known log formats and end.",
)
@_json_option
@click.pass_context
def parse(ctx: click.Context, logs: tuple[str, ...], form: str, as_json: bool) -> None:
    """Read logs and print what they say.

    LOG is a file, or - for standard input. The exit status is that of the worst log. With --json, one
    log gives an object and several give an array.
    """
    from rackproof.core.records import worst

    parsed = [_parse_one(name, form) for name in logs]
    if as_json:
        _print_json(_one_or_all(parsed))
    else:
        click.echo("\n".join(_log_text(log) for log in parsed), nl=False)
    ctx.exit(_exit_status(worst(log.verdict for log in parsed)))


def _list_formats(ctx: click.Context, wanted: bool) -> None:
    """Print the log formats and end."""
    if wanted:
        from rackproof.logs import FORMATS

        for name, one in FORMATS.items():
            click.echo(f"{name:16} {one.description}")
        ctx.exit(EXIT_PASS)


def _parse_one(name: str, form: str) -> ParsedLog:
    from rackproof import logs

    try:
        if name == "-":
            return logs.parse(sys.stdin.buffer, format=form, name="standard input")
        # A file's name need not be UTF-8, a record's text must.
        shown = os.fsencode(name).decode(errors="replace")
        with open(name, "rb") as stream:
            return logs.parse(stream, format=form, name=shown)
    except IsADirectoryError:
        raise ToolError(f"{name} is a folder: name the logs in it, or use `rackproof import`") from None
    except OSError as error:
        raise ToolError(f"cannot read {name}: {error.strerror or error}; check the path") from None
    except ValueError as error:
        raise ToolError(f"{error} (see `rackproof parse --list-formats`)") from None


def _log_text(log: ParsedLog) -> str:
    from rackproof.core.text import quantity, sanitize, size
    from rackproof.report.terminal import text_table
    from rackproof.report.view import label_text

    facts = f"{sanitize(log.format, 60)}, {size(log.size_bytes)}, {log.lines:,} lines"
    lines = [f"{sanitize(log.file, 300) or 'log'}: {log.verdict.value} ({facts})"]
    if log.measurements:
        shown = log.measurements[:_SHOWN_MEASUREMENTS]
        rows = [
            (sanitize(one.name), label_text(one.labels), quantity(one.value, one.unit), _place(one.source))
            for one in shown
        ]
        lines += text_table(("Metric", "Of", "Value", "Read at"), rows, _width(), (0, 1, 3))
        lines += _more(len(log.measurements) - len(shown), "measurements")
    for finding in log.findings[:_SHOWN_FINDINGS]:
        weight = finding.verdict.value if finding.verdict else "remark"
        place = _place(finding.source)
        lines.append(f"{weight}: {sanitize(finding.message, 400)}" + (f" ({place})" if place else ""))
    lines += _more(len(log.findings) - _SHOWN_FINDINGS, "findings")
    return "\n".join(lines) + "\n"


def _place(source: Source) -> str:
    """Return line and rank; the file stands above."""
    return str(source.model_copy(update={"file": None}))


def _more(count: int, what: str) -> list[str]:
    return [f"… and {count} more {what}; --json prints all"] if count > 0 else []


@main.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option("--ruleset", default="5.1.0", show_default=True, help="The MLPerf round's rules.")
@click.option("--usage", default="training", show_default=True, type=click.Choice(["training", "hpc"]))
@click.option("--timeout", default=300.0, show_default=True, help="Seconds until the checks are stopped.")
@_json_option
@click.pass_context
def score(
    ctx: click.Context, folders: tuple[Path, ...], ruleset: str, usage: str, timeout: float, as_json: bool
) -> None:
    """Score folders of MLPerf results by the rules of a round.

    DIR holds the result logs of one benchmark on one system. Compliance and convergence are checked by
    mlperf-logging, on a copy. The exit status is that of the worst folder.
    """
    from rackproof.analysis.mlperf.score import score_folder
    from rackproof.core.records import worst

    scores = []
    for folder in folders:
        try:
            scores.append(score_folder(folder, ruleset=ruleset, usage=usage, timeout_s=timeout))
        except NotADirectoryError:
            raise ToolError(f"{folder} is not a folder; name one that holds result logs") from None
        except ValueError as error:
            raise ToolError(str(error)) from None
    if as_json:
        _print_json(_one_or_all(scores))
    else:
        click.echo("\n".join(_score_text(one) for one in scores), nl=False)
    ctx.exit(_exit_status(worst(one.verdict for one in scores)))


def _score_text(one: FolderScore) -> str:
    from rackproof.core.text import sanitize
    from rackproof.report.terminal import text_table

    lines = [f"{sanitize(one.folder, 300)}: {one.verdict.value}"]
    if one.runs:
        head, *rows = [[sanitize(cell, 200) for cell in row] for row in one.rows()]
        lines += text_table(head, rows, _width(), (0,))
    facts = [sanitize(one.benchmark or "unknown benchmark", 100), f"rules {sanitize(one.ruleset, 20)}"]
    needed = "?" if one.runs_needed is None else str(one.runs_needed)
    facts.append(f"{one.runs_found} runs of {needed} needed")
    lines.append(", ".join(facts))
    if one.olympic_mean_minutes is not None:
        lines.append(f"olympic mean {one.olympic_mean_minutes:.3f} min, RCP scaling {one.scaling_factor:.6g}")
    if one.rcp is not None and one.rcp.message:
        lines.append(f"convergence: {sanitize(one.rcp.message, 400)}")
    lines.append(f"score: {one.minutes:.3f} min" if one.minutes is not None else "score: none")
    lines += [f"- {sanitize(reason, 600)}" for reason in one.reasons]
    return "\n".join(lines) + "\n"


@main.command(name="import")
@click.argument("place", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--benchmark", help="Name of the benchmark; by default what each log states, or its folder.")
@click.option("--format", "form", default="auto", show_default=True, help="The logs' format.")
@_results_option
@_json_option
@click.pass_context
def import_(
    ctx: click.Context, place: Path, benchmark: str | None, form: str, results: Path, as_json: bool
) -> None:
    """Make runs of logs that were written elsewhere.

    DIR is a folder of logs (with its subfolders) or one log. Each becomes a run in the results folder,
    with a copy of the log, reports, and an entry in the history. Its verdict is what the log shows.
    Importing the same again changes nothing.
    """
    from rackproof.analysis.importing import import_logs
    from rackproof.core.text import sanitize
    from rackproof.report import terminal_table
    from rackproof.report.view import overall

    try:
        done = import_logs(place, results, benchmark=benchmark, format=form)
    except ValueError as error:
        raise ToolError(str(error)) from None
    runs = [one.run for one in done.imported]
    if as_json:
        _print_json([_plain(one) for one in done.imported])
    else:
        click.echo(terminal_table(runs, _width(), _coloured()), nl=False)
        for one in done.imported:
            click.echo(f"{'known' if one.known else 'new'}: {one.folder}")
    for skipped in done.skipped:
        click.echo(f"passed over: {skipped}", err=True)
    for remark in dict.fromkeys(one.history for one in done.imported if one.history):
        click.echo(f"note: {sanitize(remark, 600)}", err=True)
    ctx.exit(_exit_status(overall(runs)))


def _coloured() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


@main.command()
@click.option("--benchmark", help="Only of this benchmark.")
@click.option("--node", help="Only with this node: its name, serial, chassis, or the UUID of a GPU in it.")
@click.option("--limit", default=30, show_default=True, type=click.IntRange(1, 100_000))
@_results_option
@_json_option
def history(benchmark: str | None, node: str | None, limit: int, results: Path, as_json: bool) -> None:
    """List runs in the history, newest first.

    The history is the database that RACKPROOF_DATABASE_URL names, else history.sqlite in the results
    folder.
    """
    from rackproof.core.text import sanitize
    from rackproof.report.terminal import text_table
    from rackproof.store.history.store import drain_spool, open_store

    where = _history_place(results)
    for problem in drain_spool(where, results / ".spool").problems:
        click.echo(f"note: a run waits to enter the history: {sanitize(problem, 600)}", err=True)
    with open_store(where) as store:
        found = store.runs(benchmark=benchmark, node=node, limit=limit)
    if as_json:
        _print_json(
            [
                {
                    "run_id": one.run_id,
                    "plan_id": one.plan_id,
                    "benchmark": one.benchmark,
                    "suite": one.suite,
                    "parameters": one.parameters,
                    "verdict": one.verdict.value,
                    "reason": one.reason,
                    "provenance": one.provenance,
                    "moment": one.moment.isoformat(),
                    "seconds": one.seconds,
                    "nodes": list(one.nodes),
                }
                for one in found
            ]
        )
        return
    rows = [
        (
            f"{one.moment:%Y-%m-%d %H:%M}",
            one.verdict.value,
            sanitize(one.benchmark, 80),
            sanitize(" ".join(f"{key}={value}" for key, value in one.parameters.items()), 80),
            sanitize(", ".join(one.nodes), 60),
            sanitize(one.run_id, 130),
        )
        for one in found
    ]
    if rows:
        # The id stays in one piece: it is what the other commands are given.
        columns = ("When (UTC)", "Verdict", "Benchmark", "Point", "Nodes", "Run")
        click.echo("\n".join(text_table(columns, rows, _width(), (2, 3, 4))))
    else:
        click.echo("no such runs in the history")


def _history_place(results: Path) -> Path:
    """Return where the history is, without making one where there is nothing yet."""
    place = results / "history.sqlite"
    if not os.environ.get("RACKPROOF_DATABASE_URL", "").strip() and not place.is_file():
        raise ToolError(
            f"there is no history at {place}: nothing has run or been imported there yet; "
            "name another folder with --results, or a database with RACKPROOF_DATABASE_URL"
        )
    return place


@main.command()
@click.argument("run_id", metavar="RUN")
@_results_option
def accept(run_id: str, results: Path) -> None:
    """Make the numbers of a run references for the hardware it ran on.

    RUN is the id of a run in the history, or the beginning of it. Its measurements that had no
    reference yet become one; later runs on that hardware are judged against it.
    """
    from rackproof.core.text import sanitize
    from rackproof.store.history.store import open_store

    with open_store(_history_place(results)) as store:
        run = store.run(run_id)
        count = store.accept(run.run_id)
    if not count:
        raise ToolError(f"{run.run_id} has no measurement that waits for a reference; nothing was accepted")
    nodes = ", ".join(node.name for node in run.nodes)
    said = f"{count} reference{'' if count == 1 else 's'} from {run.run_id}" + (
        f" for {nodes}" if nodes else ""
    )
    click.echo(f"accepted {sanitize(said, 600)}")


def _find_run(name: str, results: Path) -> tuple[Run, Path | None]:
    """Return a run and its folder by path, by id or its beginning, from the results or the history."""
    from rackproof.store.run_folder import RECORD_NAME, read_run, run_folders

    path = Path(name)
    if path.is_file() or (path / RECORD_NAME).is_file():
        return read_run(path), path if path.is_dir() else path.parent
    if os.sep not in name:
        exact = results / name
        if name not in ("", ".", "..") and (exact / RECORD_NAME).is_file():
            return read_run(exact), exact
        near = [folder for folder in run_folders(results) if name and folder.name.startswith(name)]
        if len(near) == 1:
            return read_run(near[0]), near[0]
        if near:
            some = ", ".join(folder.name for folder in near[:4])
            raise ToolError(f"{len(near)} runs begin with {name}: {some}{' …' if len(near) > 4 else ''}")
        from rackproof.store.history.store import HistoryError, open_store

        try:
            with open_store(_history_place(results)) as store:
                return store.run(name), None
        except (HistoryError, ToolError) as error:
            raise ToolError(
                f"no run {name}: neither a run folder, nor an id in {results}, nor in the history ({error})"
            ) from None
    raise ToolError(f"no run at {name}: there is no {RECORD_NAME} in it")


@main.command()
@click.argument("names", nargs=-1, required=True, metavar="SYSTEM SYSTEM...")
@click.option("--benchmark", default="", help="Only runs of this benchmark.")
@click.option("--reference", help="Judge every cell against this published system (by default by name).")
@click.option("--confidence", default=0.95, show_default=True, help="Probability that intervals hold.")
@click.option(
    "--format", "form", type=click.Choice(["text", "html", "md"]), default="text", show_default=True
)
@click.option("--output", type=click.Path(path_type=Path), help="The file to write; - is standard output.")
@_results_option
@_json_option
def compare(
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
    logs or a quoted pattern, published:NAME, or a RUN: its id (or the beginning), folder, or run.json.
    Ratios are those to the first. Runs that failed enter no mean; one run has no interval. Two runs are
    compared in full: every measurement, and what else differs.
    """
    from rackproof.analysis.compare import compare as compare_runs
    from rackproof.analysis.compare import comparison_text
    from rackproof.analysis.compare.selecting import select
    from rackproof.analysis.compare.systems import compare_systems
    from rackproof.core.text import sanitize

    if len(names) < 2:
        raise click.UsageError("name two systems or runs, or more systems")
    if as_json and (form != "text" or output is not None):
        raise click.UsageError("--json is a form of its own: leave out --format and --output")
    remarks: list[str] = []
    systems = [
        select(name, results, lambda one: _find_run(one, results)[0], remarks, benchmark=benchmark)
        for name in names
    ]
    for remark in dict.fromkeys(remarks):
        click.echo(f"note: {sanitize(remark, 600)}", err=True)
    two = [system.runs[0] for system in systems if system.single_run]
    runs = compare_runs(*two) if len(two) == len(systems) == 2 else None
    from rackproof.report.comparison import comparison_markdown, comparison_page, comparison_terminal

    if runs is not None and form == "text":
        if as_json:
            _print_json(_plain(runs))
            return
        content = comparison_text(runs, _width())
    else:
        try:
            compared = compare_systems(_told_apart(systems), reference=reference, confidence=confidence)
        except ValueError as error:
            raise ToolError(str(error)) from None
        if as_json:
            _print_json(_plain(compared))
            return
        content = {
            "text": lambda: comparison_terminal(compared, _width()),
            "html": lambda: comparison_page(compared, runs),
            "md": lambda: comparison_markdown(compared, runs),
        }[form]()
    if output is None or str(output) == "-":
        click.echo(content, nl=False)
        return
    from rackproof.store.run_folder import write_file

    write_file(output, content.encode())
    click.echo(str(output))


def _told_apart(systems: Sequence[System]) -> list[System]:
    """Number those that are called the same, such as a run that is compared with itself."""
    seen: dict[str, int] = {}
    named = []
    for system in systems:
        count = seen[system.name] = seen.get(system.name, 0) + 1
        named.append(system if count == 1 else system.model_copy(update={"name": f"{system.name} ({count})"}))
    return named


@main.command()
@click.argument("names", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--format", "form", type=click.Choice(["html", "md", "junit", "json"]), default="html", show_default=True
)
@click.option("--output", type=click.Path(path_type=Path), help="The file to write; - is standard output.")
@click.option("--title", default="Runs", show_default=True, help="Heading of a report of several runs.")
@_results_option
def report(names: tuple[str, ...], form: str, output: Path | None, title: str, results: Path) -> None:
    """Write the report of a run, or one report of several runs.

    RUN is the id of a run (or its beginning), its folder, or its run.json. Without --output, the HTML
    page of one run goes into its folder; everything else goes to standard output.
    """
    from rackproof.report import render

    found = [_find_run(name, results) for name in names]
    folder = found[0][1]
    if output is None and form == "html" and len(found) == 1 and folder is not None:
        output = folder / "report.html"
    content = render([run for run, _ in found], form, title, _links(found, output))
    if output is None or str(output) == "-":
        click.echo(content, nl=False)
        return
    from rackproof.store.run_folder import write_file

    write_file(output, content)
    click.echo(str(output))


def _links(found: Iterable[tuple[Run, Path | None]], output: Path | None) -> Callable[[Run], str]:
    """Return a function from a run to the link from the written page to the run's own page."""
    from urllib.parse import quote

    folders = {run.run_id: folder for run, folder in found if folder is not None}

    def link(run: Run) -> str:
        folder = folders.get(run.run_id)
        if folder is None or output is None or str(output) == "-":
            return ""
        return quote(os.path.relpath(folder.resolve() / "report.html", output.resolve().parent))

    return link


@main.command()
@click.argument("names", nargs=-1, metavar="[RUN...]")
@click.option(
    "--system",
    "system_file",
    required=True,
    type=click.Path(path_type=Path),
    help="What only you know of it.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write.")
@click.option("--latest", type=click.IntRange(1, 1000), help="Take the newest N runs of each --benchmark.")
@click.option("--benchmark", "benchmarks", multiple=True, help="With --latest: of this one; may be repeated.")
@click.option("--sku", default="", help="With --latest: only runs on nodes of this model.")
@click.option("--ruleset", default="5.1.0", show_default=True, help="The MLPerf round's rules.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds until a check is stopped.")
@_results_option
@_json_option
@click.pass_context
def submission(
    ctx: click.Context,
    names: tuple[str, ...],
    system_file: Path,
    out: Path,
    latest: int | None,
    benchmarks: tuple[str, ...],
    sku: str,
    ruleset: str,
    timeout: float,
    results: Path,
    as_json: bool,
) -> None:
    """Make a submission to an MLPerf round out of runs of one system.

    RUN is the id of a run (or its beginning), or its folder. The package is checked by the official
    package checker and written only if nothing is missing or wrong; otherwise all of that is listed.
    """
    from rackproof.analysis.submission import build, latest_runs, load_system_file

    newest = latest is not None or bool(benchmarks) or bool(sku)
    if newest == bool(names) or (newest and not (latest and benchmarks)):
        raise ToolError("name the runs, or take the newest with both --latest N and --benchmark NAME")
    system = load_system_file(system_file)
    if latest is not None:
        runs = latest_runs(results, benchmarks, latest, sku=sku)
    else:
        runs = [_run_in_folder(name, results) for name in names]
    try:
        made = build(runs, system, out, ruleset=ruleset, timeout_s=timeout)
    except ValueError as error:
        raise ToolError(str(error)) from None
    if as_json:
        _print_json(_plain(made))
    else:
        click.echo(_submission_text(made, out), nl=False)
    ctx.exit(_exit_status(made.verdict))


def _run_in_folder(name: str, results: Path) -> tuple[Run, Path]:
    run, folder = _find_run(name, results)
    if folder is None:
        raise ToolError(
            f"run {run.run_id} is only in the history: its log is needed; bring its folder back to {results}"
        )
    return run, folder


def _submission_text(made: Submission, out: Path) -> str:
    from rackproof.core.text import sanitize
    from rackproof.report.terminal import text_table

    submitter, system = sanitize(made.submitter, 100), sanitize(made.system, 100)
    what = f"{submitter}, {system}, {made.division}, rules {made.ruleset}"
    lines = [f"submission of {what}: {made.verdict.value}"]
    rows = [
        (
            sanitize(part.benchmark, 80),
            f"{len(part.runs)} of {'?' if part.runs_needed is None else part.runs_needed}",
            "-" if part.minutes is None else f"{part.minutes:.3f}",
            "-" if part.scaling_factor is None else f"{part.scaling_factor:.6g}",
        )
        for part in made.benchmarks
    ]
    if rows:
        lines += text_table(("Benchmark", "Runs", "Minutes", "Scaling"), rows, _width(), (0,))
    said = {True: "accepts the package", False: "rejects the package", None: "gave no verdict"}
    checker = made.checker
    lines.append(f"official package checker ({checker.version or 'not run'}): {said[checker.accepted]}")
    shown = checker.messages[:_SHOWN_FINDINGS]
    lines += [f"  {sanitize(message, 300)}" for message in shown]
    lines += _more(len(checker.messages) - len(shown), "messages")
    # What many runs share is said once, above their list.
    places: dict[tuple[str, str], list[str]] = {}
    for issue in made.issues:
        weight = issue.verdict.value if issue.verdict else "remark"
        places.setdefault((weight, sanitize(issue.text, 1500)), []).append(sanitize(issue.place, 400))
    for (weight, text), of in places.items():
        alone = len(of) == 1 and of[0]
        lines.append(f"- {weight}: {alone}: {text}" if alone else f"- {weight}: {text}")
        lines += [f"    {place}" for place in of] if len(of) > 1 else []
    lines.append(f"written: {made.folder}" if made.folder else f"nothing was written to {out}")
    return "\n".join(lines) + "\n"


@main.command()
@click.argument("node", metavar="NODE")
@click.option("--rma", type=click.Path(path_type=Path), help="Write the packet for the vendor; - prints it.")
@_results_option
@_json_option
def explain(node: str, rma: Path | None, results: Path, as_json: bool) -> None:
    """Say why a node is in the state it is in.

    NODE is a name of the inventory. Read from the records of validate.yml's nights: what is wrong, against
    what it was measured, what was tried, and the next command.
    """
    from rackproof.jobs.validate.explain import explain as explain_node
    from rackproof.jobs.validate.explain import rma_packet, text
    from rackproof.store.run_folder import write_file

    if rma is not None:
        packet = rma_packet(results, node)
        if str(rma) == "-":
            click.echo(packet, nl=False)
            return
        write_file(rma, packet.encode())
        click.echo(str(rma))
        return
    told = explain_node(results, node)
    if as_json:
        _print_json(_plain(told))
    else:
        click.echo(text(told), nl=False)


@main.command()
@click.option(
    "--checkout",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Checkout of Rackproof whose validate.yml is run; by default the present folder.",
)
@click.option("--limit", default="", help="Nodes or groups, as for ansible-playbook -l; by default all.")
@click.option("--timeout", default=14_400.0, show_default=True, help="Seconds until the playbook is stopped.")
@click.option("--drain", is_flag=True, help="Let it drain nodes that fail.")
@click.option("--return", "give_back", is_flag=True, help="Let it return nodes that have passed twice.")
@click.option("--share", default=0.15, show_default=True, help="Largest share of a partition to drain.")
@click.option("--link", default="", help="Where the results folder is on the web.")
@click.option(
    "--metrics", type=click.Path(path_type=Path), help="Text file for Prometheus, such as .../rackproof.prom."
)
@click.option(
    "--gpu-minutes",
    type=click.FloatRange(min=0),
    help="Budget for measuring idle nodes.  [default: the inventory's, or nothing is measured]",
)
@click.option("--mail-to", multiple=True, help="Address to write to; may be repeated.")
@click.option("--mail-from", default="rackproof@localhost", show_default=True)
@click.option("--smtp", default="localhost:25", show_default=True, help="Mail server and port.")
@_results_option
@click.pass_context
def nightly(
    ctx: click.Context,
    checkout: Path,
    limit: str,
    timeout: float,
    drain: bool,
    give_back: bool,
    share: float,
    link: str,
    metrics: Path | None,
    gpu_minutes: float | None,
    mail_to: tuple[str, ...],
    mail_from: str,
    smtp: str,
    results: Path,
) -> None:
    """Validate the fleet once, and tell what changed.

    One at a time, bounded, and after an interruption simply started again. A webhook that takes Slack's
    messages is named by RACKPROOF_WEBHOOK_URL, a login to the mail server by RACKPROOF_SMTP_USER and
    RACKPROOF_SMTP_PASSWORD. Exit status: 0 pass, 2 a bad node, 3 unproven, 1 a fault of the tool itself.
    """
    from rackproof.core.text import sanitize
    from rackproof.jobs.validate.nightly import Settings, run

    done = run(
        Settings(
            results=results,
            checkout=checkout,
            limit=limit,
            timeout_s=timeout,
            variables={
                "validate_drain": drain,
                "validate_return": give_back,
                "validate_max_drain_fraction": share,
            }
            | ({} if gpu_minutes is None else {"validate_probe_gpu_minutes": gpu_minutes}),
            metrics=metrics,
            mail_to=mail_to,
            mail_from=mail_from,
            smtp=smtp,
            link=link,
        ),
        sys.stderr,
    )
    click.echo("\n".join(sanitize(line, 1000) for line in done.lines))
    ctx.exit(done.status)


@main.group()
def reimage() -> None:
    """Say where nodes stand on their way through a new image, or how long a fleet takes.

    Read from the journals that reimage.yml writes; a node's newest one counts.
    """


@reimage.command(name="status")
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@click.option("--all", "everybody", is_flag=True, help="Those that have returned to service, too.")
@_results_option
@_json_option
def reimage_status(nodes: tuple[str, ...], everybody: bool, results: Path, as_json: bool) -> None:
    """Print where every node stands, for how long, and the next command."""
    from rackproof.core.text import sanitize
    from rackproof.jobs.reimage.tasks import status
    from rackproof.report.terminal import text_table

    found = status(results, nodes or None)
    if as_json:
        _print_json([_plain(one) for one in found])
        return
    shown = [one for one in found if everybody or nodes or one.standing.state != "returned"]
    if shown:
        rows = [
            (one.node, one.text, str(one.standing.attempt), sanitize(one.standing.reason, 200) or "-")
            for one in shown
        ]
        click.echo("\n".join(text_table(("Node", "Stands at", "Attempt", "Why"), rows, _width(), (0, 1, 3))))
        waiting = [one.node for one in shown if one.next_command]
        if waiting:
            click.echo(f"next: ansible-playbook reimage.yml -l {','.join(waiting)}")
    else:
        click.echo("no node is on its way" if found else f"no node was ever imaged from {results}")
    missing = sorted(set(nodes) - {one.node for one in found})
    if missing:
        click.echo(f"never imaged from here: {', '.join(sanitize(one, 80) for one in missing)}", err=True)


@reimage.command(name="plan")
@click.option("--nodes", default=1000, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--at-once", multiple=True, type=click.IntRange(1), help="Nodes at a time; may be repeated.")
@click.option("--image-gib", default=8.0, show_default=True, help="What a node fetches of the image.")
@click.option("--server-gbit", default=25.0, show_default=True, help="What the image server can send.")
@click.option("--node-mb", default=500.0, show_default=True, help="MB/s that a node can take and write.")
@click.option("--idle", default=0.5, show_default=True, help="Share of nodes that run no job when drained.")
@click.option("--job-minutes", default=60.0, show_default=True, help="How long a job may still run.")
@click.option("--cores", default=16.0, show_default=True, help="Cores of the machine that runs the playbook.")
@click.option("--seed", default=1, show_default=True)
@_json_option
def reimage_plan(
    nodes: int,
    at_once: tuple[int, ...],
    image_gib: float,
    server_gbit: float,
    node_mb: float,
    idle: float,
    job_minutes: float,
    cores: float,
    seed: int,
    as_json: bool,
) -> None:
    """Simulate how long a fleet takes at N nodes at a time, and what gives out first."""
    from rackproof.core.text import duration, number, percent
    from rackproof.jobs.reimage.forecast import GBIT, GIB, Assumptions, forecast, saturates_at
    from rackproof.report.terminal import text_table

    try:
        assumed = Assumptions(
            image_bytes=image_gib * GIB,
            server_rate=server_gbit * GBIT,
            node_rate=node_mb * 1e6,
            idle=idle,
            job_s=job_minutes * 60,
            controller_cores=cores,
        )
        found = [forecast(nodes, one, assumed, seed=seed) for one in at_once or (8, 16, 32, 64, 128)]
    except ValueError as error:
        raise ToolError(str(error)) from None
    if as_json:
        _print_json([_plain(one) for one in found])
        return
    rows = [
        (
            str(one.at_once),
            duration(one.waves_s),
            duration(one.rolling_s),
            duration(one.image_s),
            f"{number(one.server_peak / GBIT)} Gbit/s",
            percent(one.controller_busy, sign=False),
            number(one.out_of_service_node_hours),
            one.limited_by,
        )
        for one in found
    ]
    heads = ("At once", "In waves", "Rolling", "Image", "Server peak", "Cores", "Node hours", "Limited by")
    click.echo("\n".join(text_table(heads, rows, _width(), (7,))))
    click.echo(f"the image server feeds {saturates_at(assumed)} nodes at full speed")


@reimage.command(name="image")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--output", type=click.Path(path_type=Path), help="The file to write; by default FILE.json.")
def reimage_image(file: Path, output: Path | None) -> None:
    """Describe a raw image, block by block, for the nodes that check what they write."""
    from rackproof.core.text import size
    from rackproof.jobs.reimage.images import describe
    from rackproof.store.run_folder import write_file

    try:
        found = describe(file)
    except ValueError as error:
        raise ToolError(str(error)) from None
    place = output or file.with_name(f"{file.name}.json")
    write_file(place, found.model_dump_json(indent=1).encode() + b"\n")
    click.echo(f"{place}: {size(found.bytes)}, of which a node fetches {size(found.fetched_bytes)}")
    click.echo(f"checksum: sha256:{found.sha256}")


@main.command()
def schema() -> None:
    """Print the JSON Schema of run.json."""
    from rackproof.core.records import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


if __name__ == "__main__":
    main()
