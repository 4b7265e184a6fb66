"""Define the exit statuses of the command, and show an error as one line without a traceback.

Commands raise :class:`ToolError`, and :mod:`rackproof.cli.main` prints it.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from rackproof.core.errors import RackproofError
from rackproof.core.near_names import near_text
from rackproof.core.text import sanitize

# 1 is a failure of the tool, as for most Unix programs, so the statuses of bad verdicts begin at 2.
EXIT_PASS, EXIT_ERROR, EXIT_FAIL, EXIT_UNPROVEN = 0, 1, 2, 3
EXIT_INTERRUPTED = 130
"""Status that a shell reports for a program that SIGINT ended."""

_ERROR_LIMIT = 2000
"""Largest number of characters of an error's message."""
_SHOWN_NAMES = 10
"""Largest number of unknown names in an error's message."""


class ToolError(click.ClickException):
    """An error of a command, shown as one line without a traceback."""

    exit_code = EXIT_ERROR

    def show(self, file: Any = None) -> None:
        """Print the message to standard error."""
        # A message may contain text of a log or a node, which must not move the terminal's cursor.
        click.echo(f"rackproof: {sanitize(self.format_message(), _ERROR_LIMIT)}", file=file, err=True)


class InterruptedCommand(click.ClickException):
    """The end of a command by Ctrl-C, shown as one word."""

    exit_code = EXIT_INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted")

    def show(self, file: Any = None) -> None:
        """Print the word to standard error. On a terminal, print it below the ``^C`` that Ctrl-C left."""
        click.echo("\ninterrupted" if sys.stderr.isatty() else "interrupted", file=file, err=True)


@contextmanager
def usage_errors_end_with_1() -> Iterator[None]:
    """Give click's usage errors exit status 1.

    click's own status 2 means fail here, which is a verdict on hardware.
    """
    try:
        yield
    except click.UsageError as error:
        error.exit_code = EXIT_ERROR  # type: ignore[misc]  # click reads it from the instance
        raise


def require_results(results: Path) -> None:
    """Refuse a results folder that does not exist, because every name would be unknown there.

    Raises:
        ToolError: There is no such folder.
    """
    if not results.is_dir():
        raise ToolError(
            f"there is no results folder {sanitize(results, 4000)}: no playbook has run here yet; "
            "name another with --results"
        )


def refuse_unknown_names(names: Iterable[str], known: Collection[str], problem: str) -> None:
    """Refuse names that do not exist, and suggest similar ones.

    Args:
        names: The names as typed.
        known: The names that exist.
        problem: The text after the names and a colon, such as ``no such suite``.

    Raises:
        ToolError: One or more names are unknown.
    """
    missing = sorted(set(names) - set(known))
    if missing:
        names_text = ", ".join(sanitize(name, 130) for name in missing[:_SHOWN_NAMES])
        more = f" and {len(missing) - _SHOWN_NAMES} more" if len(missing) > _SHOWN_NAMES else ""
        near = near_text(missing[0], (sanitize(name, 130) for name in known))
        raise ToolError(f"{names_text}{more}: {problem}{near}")


def operator_message(error: Exception) -> str:
    """Return the message about an exception for the operator. No I/O."""
    if isinstance(error, RackproofError):
        return str(error)
    # str() of an OSError begins with its number, which is of no use to an operator.
    if isinstance(error, OSError):
        return f"{_place(error)}{error.strerror or error}"
    return (
        f"unexpected {type(error).__name__}: {error}. This is a fault of Rackproof: "
        "run the command again with `rackproof --debug …` and report its output"
    )


def _place(error: OSError) -> str:
    """Return the beginning of a message about an OSError: the file, the output if a disk is full, or ""."""
    if error.filename:
        return f"{error.filename}: "
    # The error of a file names the file. If a disk is full and no file is named, the command was printing.
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return "the output cannot be written: " if is_full else ""
