"""Define the options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def results_option(command: _Command) -> _Command:
    """Add ``--results``, the results folder."""
    return click.option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("results"),
        show_default=True,
        envvar="RACKPROOF_RESULTS",
        show_envvar=True,
        help="The results folder.",
    )(command)


def json_option(command: _Command) -> _Command:
    """Add ``--json``, which is passed as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)


def ruleset_option(command: _Command) -> _Command:
    """Add ``--ruleset``, the rules of an MLPerf round."""
    return click.option(
        "--ruleset", help="Rules of the MLPerf round, such as 5.1.0. By default the logs must state them."
    )(command)
