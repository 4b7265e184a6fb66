"""Print the output of commands as JSON or text or into files, and return the exit status of a verdict.

Commands print JSON with :func:`print_json`, and a document with :func:`print_or_write`. ``rackproof parse``
holds its output back in a :class:`HeldOutput`, because it may fail after the first of many logs.
"""

from __future__ import annotations

import codecs
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from rackproof.cli.errors import EXIT_FAIL, EXIT_PASS, EXIT_UNPROVEN
from rackproof.core.errors import RackproofError
from rackproof.core.records import Record, Verdict
from rackproof.core.text import shell_word
from rackproof.store.run_folder import write_file

_ENDLESS = 100_000
"""Width in cells of an output that is not a terminal, so that no line is wrapped."""
SHOWN_FINDINGS = 20
"""Largest number of findings or messages in a text, which refers to --json for the others."""


def exit_status(verdict: Verdict) -> int:
    """Return the exit status of a verdict. Degraded is a pass, as for the playbooks. No I/O."""
    # A degraded node works. Scripts stop only if something is broken or unknown.
    return {Verdict.FAIL: EXIT_FAIL, Verdict.UNPROVEN: EXIT_UNPROVEN}.get(verdict, EXIT_PASS)


def print_json(value: Any) -> None:
    """Print JSON in ASCII, so that text of a log cannot move the cursor of the terminal that shows it."""
    # DEL is the only control character that JSON's ASCII form does not escape.
    click.echo(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f"))


def json_value(record: Record) -> Any:
    """Return a record as JSON values. No I/O.

    The values are read from the text of ``model_dump_json``, which writes NaN as ``"NaN"``.
    """
    return json.loads(record.model_dump_json())


def one_or_all(records: Sequence[Record]) -> Any:
    """Return the JSON of one record as an object, or the JSON of several records as an array. No I/O."""
    values = [json_value(record) for record in records]
    # One log is the usual case, and `jq .verdict` then needs no index.
    return values[0] if len(values) == 1 else values


_HELD_OUTPUT = 4 << 20
"""Largest output in bytes to hold in memory. A longer output goes to a temporary file."""
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


def json_text(record: Record) -> str:
    """Return a record's JSON as :func:`print_json` writes it, but several times as fast. No I/O."""
    text = record.model_dump_json(indent=2)
    return text if text.isascii() and "\x7f" not in text else _NOT_ASCII.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    """Return the ASCII form in JSON of a character that is DEL or not ASCII."""
    return "\\u007f" if match[0] == "\x7f" else json.dumps(match[0])[1:-1]


class HeldOutput:
    """Output that is printed only as a whole. If the command fails before, it prints nothing.

    Up to :data:`_HELD_OUTPUT` bytes are in memory. A longer output is in a temporary file.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_HELD_OUTPUT)  # noqa: SIM115  (closed in __exit__)

    def __enter__(self) -> HeldOutput:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, text: str) -> None:
        """Add a piece of text."""
        # A file's name may contain bytes that are not characters. click writes them unchanged.
        self._file.write(text.encode("utf-8", "surrogatepass"))

    def write_json(self, texts: Iterable[str], *, several: bool) -> None:
        """Add one :func:`json_text` as an object, or several texts as an array."""
        if not several:
            self.write("".join(texts) + "\n")
            return
        separator = "[\n  "
        for text in texts:
            self.write(separator + text.replace("\n", "\n  "))
            separator = ",\n  "
        self.write("\n]\n")

    def print(self) -> None:
        """Print the held output."""
        self._file.seek(0)
        # The end of a block may cut a character of several bytes.
        decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        while block := self._file.read(1 << 18):
            click.echo(decoder.decode(block), nl=False)


def terminal_width() -> int:
    """Return the width of the terminal in cells, or :data:`_ENDLESS` without a terminal."""
    # A program that reads a pipe (grep, awk, a file) must find a row in one line.
    return shutil.get_terminal_size((_ENDLESS, 40)).columns


def more_line(count: int, noun: str) -> list[str]:
    """Return a line with the number of parts that were left out, or none if there are none. No I/O."""
    return [f"… and {count} more {noun}; --json prints all"] if count > 0 else []


def is_standard_output(output: Path | None) -> bool:
    """Return whether ``--output`` means standard output. No I/O."""
    return output is None or str(output) == "-"


def print_or_write(content: bytes | str, output: Path | None, *, is_named: bool = True) -> None:
    """Print a document, or write it to the file of ``--output`` and print the file's name.

    Args:
        content: The document.
        output: The file. None or - means standard output.
        is_named: Whether the user gave the file's name. Only then does the function write to a pipe or
            device. In a run's folder, another user may have made such a file.

    Raises:
        RackproofError: The file cannot be written.
    """
    if output is None or is_standard_output(output):
        click.echo(content, nl=False)
        return
    data = content.encode() if isinstance(content, str) else content
    if is_named and output.exists() and not output.is_file():
        # A device or a pipe is written to, not replaced.
        _write_through(output, data)
    else:
        # The file is written beside its target and then moved, so that an interrupted command leaves no
        # half report.
        write_file(output, data)
    # A folder's name may have control characters, which a terminal would obey.
    click.echo(str(output) if str(output).isprintable() else shell_word(str(output)))


def _write_through(output: Path, data: bytes) -> None:
    """Write to a device or pipe, which must not be replaced by a file.

    Raises:
        RackproofError: The device or pipe cannot be written.
    """
    try:
        with output.open("wb", buffering=0) as stream:
            stream.write(data)
    except OSError as error:
        raise RackproofError(f"{output} cannot be written: {error.strerror or error}") from None
