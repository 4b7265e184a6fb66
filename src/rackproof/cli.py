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
    from rackproof.records import ParsedLog, Record, Run, Source, Verdict
    from rackproof.scoring.mlperf import FolderScore

EXIT_PASS, EXIT_ERROR, EXIT_FAIL, EXIT_UNPROVEN = 0, 1, 2, 3
_SHOWN_MEASUREMENTS = 40
_SHOWN_FINDINGS = 20

_EPILOG = """\b
Exit status of parse, score and import:
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
        from rackproof.text import clean

        click.echo(f"rackproof: {clean(self.format_message(), 2000)}", file=file, err=True)


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
    from rackproof.records import Verdict

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
    from rackproof.records import worst

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
    from rackproof.report.terminal import text_table
    from rackproof.report.view import label_text
    from rackproof.text import clean, quantity, size

    facts = f"{clean(log.format, 60)}, {size(log.size_bytes)}, {log.lines:,} lines"
    lines = [f"{clean(log.file, 300) or 'log'}: {log.verdict.value} ({facts})"]
    if log.measurements:
        shown = log.measurements[:_SHOWN_MEASUREMENTS]
        rows = [
            (clean(one.name), label_text(one.labels), quantity(one.value, one.unit), _place(one.source))
            for one in shown
        ]
        lines += text_table(("Metric", "Of", "Value", "Read at"), rows, _width(), (0, 1, 3))
        lines += _more(len(log.measurements) - len(shown), "measurements")
    for finding in log.findings[:_SHOWN_FINDINGS]:
        weight = finding.verdict.value if finding.verdict else "remark"
        place = _place(finding.source)
        lines.append(f"{weight}: {clean(finding.message, 400)}" + (f" ({place})" if place else ""))
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
    from rackproof.records import worst
    from rackproof.scoring.mlperf import score_folder

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
    from rackproof.report.terminal import text_table
    from rackproof.text import clean

    lines = [f"{clean(one.folder, 300)}: {one.verdict.value}"]
    if one.runs:
        head, *rows = [[clean(cell, 200) for cell in row] for row in one.rows()]
        lines += text_table(head, rows, _width(), (0,))
    facts = [clean(one.benchmark or "unknown benchmark", 100), f"rules {clean(one.ruleset, 20)}"]
    needed = "?" if one.runs_needed is None else str(one.runs_needed)
    facts.append(f"{one.runs_found} runs of {needed} needed")
    lines.append(", ".join(facts))
    if one.olympic_mean_minutes is not None:
        lines.append(f"olympic mean {one.olympic_mean_minutes:.3f} min, RCP scaling {one.scaling_factor:.6g}")
    if one.rcp is not None and one.rcp.message:
        lines.append(f"convergence: {clean(one.rcp.message, 400)}")
    lines.append(f"score: {one.minutes:.3f} min" if one.minutes is not None else "score: none")
    lines += [f"- {clean(reason, 600)}" for reason in one.reasons]
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
    from rackproof.importing import import_logs
    from rackproof.report import terminal_table
    from rackproof.report.view import overall
    from rackproof.text import clean

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
        click.echo(f"note: {clean(remark, 600)}", err=True)
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
    from rackproof.history.store import drain_spool, open_store
    from rackproof.report.terminal import text_table
    from rackproof.text import clean

    where = _history_place(results)
    for problem in drain_spool(where, results / ".spool").problems:
        click.echo(f"note: a run waits to enter the history: {clean(problem, 600)}", err=True)
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
            clean(one.benchmark, 80),
            clean(" ".join(f"{key}={value}" for key, value in one.parameters.items()), 80),
            clean(", ".join(one.nodes), 60),
            clean(one.run_id, 130),
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
    from rackproof.history.store import open_store
    from rackproof.text import clean

    with open_store(_history_place(results)) as store:
        run = store.run(run_id)
        count = store.accept(run.run_id)
    if not count:
        raise ToolError(f"{run.run_id} has no measurement that waits for a reference; nothing was accepted")
    nodes = ", ".join(node.name for node in run.nodes)
    said = f"{count} reference{'' if count == 1 else 's'} from {run.run_id}" + (
        f" for {nodes}" if nodes else ""
    )
    click.echo(f"accepted {clean(said, 600)}")


def _find_run(name: str, results: Path) -> tuple[Run, Path | None]:
    """Return a run and its folder by path, by id or its beginning, from the results or the history."""
    from rackproof.results import RECORD_NAME, read_run, run_folders

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
        from rackproof.history.store import HistoryError, open_store

        try:
            with open_store(_history_place(results)) as store:
                return store.run(name), None
        except (HistoryError, ToolError) as error:
            raise ToolError(
                f"no run {name}: neither a run folder, nor an id in {results}, nor in the history ({error})"
            ) from None
    raise ToolError(f"no run at {name}: there is no {RECORD_NAME} in it")


@main.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@_results_option
@_json_option
def compare(first: str, second: str, results: Path, as_json: bool) -> None:
    """Compare two runs: measurements side by side, and what else differs.

    RUN is the id of a run (or its beginning), its folder, or its run.json. Differences are those of
    the second run against the first. Measurements in different units are named, not compared.
    """
    from rackproof.compare import compare as compare_runs
    from rackproof.compare import comparison_text

    comparison = compare_runs(_find_run(first, results)[0], _find_run(second, results)[0])
    if as_json:
        _print_json(_plain(comparison))
    else:
        click.echo(comparison_text(comparison, _width()), nl=False)


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
    from rackproof.results import write_file

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
def schema() -> None:
    """Print the JSON Schema of run.json."""
    from rackproof.records import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


if __name__ == "__main__":
    main()
