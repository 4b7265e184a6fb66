"""Test which lines of the end of a log are read (core/last_lines.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackproof.core.last_lines import read_last_lines


@pytest.mark.parametrize(
    ("lines", "most", "read"),
    [
        (["a", "b", "c"], 2, ["b", "c"]),
        (["a", "b", "c"], 9, ["a", "b", "c"]),
        ([], 9, []),
        # The first line begins further from the end than 16 KiB.
        (["x" * 20_000, "b", "c"], 9, ["b", "c"]),
        (["a", "\N{EURO SIGN}" * 9_000, "c"], 9, ["c"]),
        ([*["y" * 99] * 200, "c"], 200, [*["y" * 99] * 163, "c"]),
    ],
)
@pytest.mark.parametrize("end", ["\n", ""])
def test_the_last_lines_are_whole(
    tmp_path: Path, lines: list[str], most: int, read: list[str], end: str
) -> None:
    log = tmp_path / "log.txt"
    log.write_text("\n".join(lines) + (end if lines else ""))
    assert list(read_last_lines(log, most)) == read


def test_the_end_of_a_single_long_line_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("x" * 20_000 + "end")
    (line,) = read_last_lines(log, 5)
    assert line.startswith("xxx")


def test_a_log_that_cannot_be_read_has_no_line(tmp_path: Path) -> None:
    assert read_last_lines(tmp_path / "none", 5) == ()
    assert read_last_lines(tmp_path, 5) == ()
