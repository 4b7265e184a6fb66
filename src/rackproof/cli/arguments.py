"""Refuse arguments that no command accepts: empty ones, huge decimal numbers, and bytes that are not text.

:mod:`rackproof.cli.main` calls :func:`refuse_unfit_values` before a command starts.
"""

from __future__ import annotations

from typing import Any

import click

LARGEST = 1e6
"""Largest decimal number (``FLOAT``) that an option accepts. In seconds, it is eleven days.

Larger numbers overflow clocks and arithmetic. NaN is refused, too. Whole numbers have only their own range.
"""


class _CheckedType(click.ParamType[Any]):
    """A type of click, with additional checks of its values."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.inner = inner
        self.name = inner.name

    def __getattr__(self, name: str) -> Any:
        # `--help` reads the bounds of a range.
        return getattr(self.inner, name)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or end with a usage error."""
        # An unset variable of the shell gives an empty text. As a path, it would be the current folder.
        if value == "" and _is_typed(param, ctx):
            self.fail("it is empty: is a variable of your shell unset?", param, ctx)
        converted = self.inner.convert(value, param, ctx)
        # Not `> LARGEST`, which a NaN would pass.
        if isinstance(converted, float) and not abs(converted) <= LARGEST:
            self.fail(f"{value!s} is not a number from -{LARGEST:g} to {LARGEST:g}.", param, ctx)
        # Python keeps bytes that are not UTF-8 as surrogates, which no database accepts. A parameter with
        # several values may list files, whose names may contain any bytes.
        one_name = param is None or param.nargs == 1
        if (
            one_name
            and isinstance(converted, str)
            and any("\ud800" <= letter <= "\udfff" for letter in converted)
        ):
            self.fail("it is not text: not UTF-8.", param, ctx)
        return converted


_CHECKED = (click.types.FloatParamType, click.types.StringParamType, click.Path, click.File)


def _is_typed(param: click.Parameter | None, ctx: click.Context | None) -> bool:
    """Return whether the value is from the command line, and no default or environment variable."""
    source = ctx.get_parameter_source(param.name) if ctx and param and param.name else None
    return source is click.core.ParameterSource.COMMANDLINE


def refuse_unfit_values(command: click.Command) -> None:
    """Make a command and its subcommands refuse values that this module refuses, in all parameters."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            refuse_unfit_values(subcommand)
    for param in command.params:
        if isinstance(param.type, _CHECKED):
            param.type = _CheckedType(param.type)
