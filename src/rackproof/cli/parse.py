"""Define ``rackproof parse``, which prints the measurements, findings and verdicts of logs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import click
import yaml

from rackproof import logs
from rackproof.analysis.importing import judged_alone
from rackproof.cli.errors import EXIT_PASS, ToolError
from rackproof.cli.options import json_option
from rackproof.cli.output import HeldOutput, exit_status, json_text
from rackproof.core.records import ParsedLog, Verdict, worst
from rackproof.core.text import sanitize
from rackproof.logs.declared_lines import DeclaredLines, read_declared
from rackproof.logs.opening import why_no_log
from rackproof.store.run_folder import read_file

_VARIABLE = "validate_harmless_kernel_lines"
_LARGEST_YAML = 1 << 20
"""Largest size of the file of ``--harmless`` in bytes."""
_WORTH_PROCESSES = 32 << 20
"""Size in bytes of all logs from which several processes save more time than their start takes."""
_MOST_PROCESSES = 16
"""Largest number of processes that read logs."""


def _list_formats(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """Print each log format with its description and end, if the option is given."""
    if not wanted:
        return
    # The option is eager, so that it works without the argument LOG.
    for name, form in logs.FORMATS.items():
        click.echo(f"{name:16} {form.description}")
    ctx.exit(EXIT_PASS)


@click.command("parse")
@click.argument("names", nargs=-1, required=True, metavar="LOG...")
@click.option(
    "--format",
    "form",
    default="auto",
    show_default=True,
    help="The log format. --list-formats prints the names.",
)
@click.option(
    "--list-formats",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_formats,
    help="Print the known log formats and exit. No LOG is needed.",
)
@click.option(
    "--harmless",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML file with harmless lines of kernel logs, in the form of validate_harmless_kernel_lines.",
)
@json_option
@click.pass_context
def parse_command(
    ctx: click.Context, names: tuple[str, ...], form: str, harmless: Path | None, as_json: bool
) -> None:
    """Read logs and print their measurements, findings and verdict.

    LOG is a file, or - for standard input. The exit status is that of the worst log. If one log cannot be
    read, no verdict is printed, and the status is 1. With --json, one log gives an object and several
    give an array.
    """
    verdicts: set[Verdict] = set()
    declared = _read_harmless(harmless) if harmless is not None else None
    write = json_text if as_json else _text_writer()

    def texts() -> Iterator[str]:
        try:
            for verdict, text in _read_all(names, form, write, declared):
                verdicts.add(verdict)
                yield text
        except ToolError as error:
            if len(names) == 1:
                raise
            raise ToolError(f"{error.message}; no verdict of the {len(names)} logs is printed") from None

    # All logs are read before the first line of output, so that JSON is one document or none. Only texts are
    # kept, not the logs.
    with HeldOutput() as output:
        if as_json:
            output.write_json(texts(), several=len(names) > 1)
        else:
            for index, text in enumerate(texts()):
                output.write(("\n" if index else "") + text)
        output.print()
    ctx.exit(exit_status(worst(verdicts)))


def _text_writer() -> Callable[[ParsedLog], str]:
    """Return the function that formats a log as text, imported only here, so that --json starts faster."""
    from rackproof.cli.log_text import log_text

    return log_text


def _read_all(
    names: Sequence[str],
    form: str,
    write: Callable[[ParsedLog], str],
    declared: DeclaredLines | None,
) -> Iterator[tuple[Verdict, str]]:
    """Yield verdict and output text of each log, in the order of the names.

    Several logs of 32 MiB or more in total are read by up to 16 processes, unless one of them is standard
    input or there is only one processor.

    Raises:
        ToolError: A log cannot be read, its format is unknown, or a process was killed.
    """
    read_log = partial(_read_one, form=form, write=write, declared=declared)
    count = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)), len(names))
    if count < 2 or "-" in names or sum(map(_size_of, names)) < _WORTH_PROCESSES:
        yield from map(read_log, names)
        return
    # Ctrl-C in a terminal reaches these processes, too. Each of them would print a traceback.
    ends_at_once = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with ProcessPoolExecutor(count, get_context("fork"), initializer=ends_at_once) as pool:
        try:
            yield from pool.map(read_log, names, chunksize=min(16, len(names) // count))
        except BrokenExecutor:
            raise ToolError("a process that read logs was killed; is there enough memory?") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _read_harmless(path: Path) -> DeclaredLines:
    """Return the harmless lines that a YAML file declares.

    Raises:
        ToolError: The file cannot be read, or is not YAML.
        DeclaredLinesError: The file declares a line wrongly.
    """
    try:
        raw = yaml.safe_load(read_file(path, _LARGEST_YAML).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(f"cannot read {path}: {error}; check the path") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ToolError(f"{path} is not YAML: {sanitize(error, 300)}") from None
    # In a file of the inventory's variables, only this variable is read.
    if isinstance(raw, dict) and _VARIABLE in raw:
        raw = raw[_VARIABLE]
    return read_declared(raw, datetime.now(UTC).date(), str(path))


def _read_one(
    name: str, form: str, write: Callable[[ParsedLog], str], declared: DeclaredLines | None
) -> tuple[Verdict, str]:
    """Return the verdict and the output text of one log."""
    log = judged_alone(_parse_log(name, form, declared))
    return log.verdict, write(log)


def _size_of(name: str) -> int:
    """Return the size of a file in bytes, or 0 if it cannot be read."""
    # An unreadable file is reported when it is read.
    try:
        return os.stat(name).st_size
    except (OSError, ValueError):
        return 0


def _parse_log(name: str, form: str, declared: DeclaredLines | None) -> ParsedLog:
    """Return what a log contains.

    Raises:
        ToolError: The log cannot be read, or its format is unknown.
    """
    try:
        if name == "-":
            return logs.parse(sys.stdin.buffer, format=form, name="standard input", declared=declared)
        # The name of a file need not be UTF-8, but the text of a record must be.
        shown_name = os.fsencode(name).decode(errors="replace")
        if problem := why_no_log(Path(name)):
            raise ToolError(f"{name} is {problem}")
        return logs.parse_path(name, form, name=shown_name, declared=declared)
    # IsADirectoryError is a subclass of OSError, so it comes first.
    except IsADirectoryError:
        raise ToolError(f"{name} is a folder: name the logs in it, or use `rackproof import`") from None
    except OSError as error:
        raise ToolError(f"cannot read {name}: {error.strerror or error}; check the path") from None
    except ValueError as error:
        raise ToolError(f"{error} (see `rackproof parse --list-formats`)") from None
