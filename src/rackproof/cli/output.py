"""What commands print: JSON, tables as wide as the terminal, files; and the exit status of a verdict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rackproof.cli.errors import EXIT_FAIL, EXIT_PASS, EXIT_UNPROVEN
from rackproof.core.records import Record, Verdict
from rackproof.store.run_folder import write_file

SHOWN_FINDINGS = 20
"""Findings or messages that a text lists before it refers to --json."""


def exit_status(verdict: Verdict) -> int:
    """Return the exit status of a verdict; degraded is a pass, as for the playbooks. No I/O."""
    # A degraded node works: scripts stop only at what is broken or unknown.
    return {Verdict.FAIL: EXIT_FAIL, Verdict.UNPROVEN: EXIT_UNPROVEN}.get(verdict, EXIT_PASS)


def print_json(value: Any) -> None:
    """Print JSON in ASCII: text of a log cannot move the cursor of the terminal that shows it."""
    # DEL is the one control character that JSON's ASCII form leaves as it is.
    click.echo(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f"))


def json_value(record: Record) -> Any:
    """Return a record as JSON values; by way of its own text, which alone writes NaN as ``"NaN"``. No I/O."""
    return json.loads(record.model_dump_json())


def one_or_all(records: Sequence[Record]) -> Any:
    """Return one record as an object, several as an array. No I/O."""
    values = [json_value(record) for record in records]
    # One log is the usual case, and `jq .verdict` then needs no index.
    return values[0] if len(values) == 1 else values


def terminal_width() -> int:
    """Return the width of the terminal in cells."""
    # The fallback is for pipes and CI, where lines of 80 would break most tables.
    return shutil.get_terminal_size((110, 40)).columns


def more_line(count: int, noun: str) -> list[str]:
    """Return the line that counts what a text leaves out; none if it leaves out nothing. No I/O."""
    return [f"… and {count} more {noun}; --json prints all"] if count > 0 else []


def is_standard_output(output: Path | None) -> bool:
    """Return whether ``--output`` means standard output. No I/O."""
    return output is None or str(output) == "-"


def print_or_write(content: bytes | str, output: Path | None) -> None:
    """Print a document, or write it to the file that ``--output`` names and print the file's name."""
    if output is None or is_standard_output(output):
        click.echo(content, nl=False)
        return
    # Written beside and moved: an interrupted command leaves no half a report.
    write_file(output, content.encode() if isinstance(content, str) else content)
    click.echo(str(output))
