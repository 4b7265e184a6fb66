"""Test what commands print of names of files (cli/output.py, cli/log_text.py).

A folder's name may have escape sequences, which must not reach a terminal.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rackproof import logs
from rackproof.cli.log_text import log_text
from rackproof.cli.output import print_or_write

Call = Callable[..., Result]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("page.html", "page.html"),
        ("a  b.html", "a  b.html"),
        ("\N{LATIN SMALL LETTER E WITH ACUTE}.html", "\N{LATIN SMALL LETTER E WITH ACUTE}.html"),
        ("x\x1b[31mred.html", r"x\033[31mred.html"),
        ("x\ny.html", r"x\012y.html"),
    ],
)
def test_the_name_of_a_written_file_is_shown_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, shown: str
) -> None:
    print_or_write("text", tmp_path / name)
    assert (tmp_path / name).read_text() == "text"
    printed = capsys.readouterr().out
    assert shown in printed
    assert "\x1b" not in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("command", ["references", "status"])
def test_a_note_about_a_folder_has_no_escape_sequence(run: Call, tmp_path: Path, command: str) -> None:
    for number, benchmark in enumerate(("gemm", "validate")):
        folder = tmp_path / "results" / f"2026010{number + 1}T000000Z-{benchmark}\x1b]0;x\x07X-abcdef"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{")
        (folder / "night.json").write_text("{")
    answer = run(command, "--results", tmp_path / "results")
    # The runner of the tests removes colours itself.
    assert not {"\x1b", "\x07"} & set(answer.stdout + answer.stderr)


@pytest.mark.parametrize(("count", "shown"), [(1, "1 line)"), (2, "2 lines)"), (1234, "1,234 lines)")])
def test_the_number_of_lines_has_a_singular(count: int, shown: str) -> None:
    assert shown in log_text(logs.parse(io.BytesIO(b"x\n" * count), format="xid"))
