"""Define the options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rackproof.core.advised_commands import DEFAULT_RESULTS, RESULTS_VARIABLE
from rackproof.core.inventory_source import INVENTORY_VARIABLE, default_inventories

_Command = TypeVar("_Command", bound=Callable[..., Any])


RESULTS_KEY = "rackproof.results"
"""Key of the results folder in the context of a command, so that an error can name it."""


def _note_results(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    """Keep the results folder for the message of an error."""
    ctx.meta[RESULTS_KEY] = value
    return value


def results_option(command: _Command) -> _Command:
    """Add ``--results``, the results folder."""
    return click.option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path(DEFAULT_RESULTS),
        show_default=True,
        envvar=RESULTS_VARIABLE,
        callback=_note_results,
        show_envvar=True,
        help="The results folder.",
    )(command)


def _single_inventory(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    """Refuse several inventories, because these commands read one."""
    if "," in str(value):
        raise click.BadParameter(f"{value} names several inventories: name one with -i", ctx, param)
    return value


def inventory_option(command: _Command) -> _Command:
    """Add ``--inventory``. The default is the inventory that Ansible would read."""
    return click.option(
        "--inventory",
        "-i",
        type=click.Path(path_type=Path),
        default=lambda: ",".join(default_inventories()),
        show_default="that of ansible.cfg",
        envvar=INVENTORY_VARIABLE,
        show_envvar=True,
        callback=_single_inventory,
        help="Folder or file of the inventory, as for Ansible.",
    )(command)


def json_option(command: _Command) -> _Command:
    """Add ``--json``, which is passed as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)


def ruleset_option(command: _Command) -> _Command:
    """Add ``--ruleset``, the rules of an MLPerf round."""
    return click.option(
        "--ruleset", help="Rules of the MLPerf round, such as 5.1.0. By default the logs must state them."
    )(command)
