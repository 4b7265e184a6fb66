"""Test how texts for people are written: plurals, numbers with units, and hostile text from logs.

The functions are in core/text.py and core/same_reason.py. Every message, table and report uses them.
"""

from __future__ import annotations

import ast
import locale
import math
import re
import time
from pathlib import Path

import pytest

from rackproof.core.same_reason import general_reason
from rackproof.core.text import (
    amount,
    duration,
    number,
    quantity,
    sanitize,
    size,
    utf8_locale,
    whole_number,
)

ROOT = Path(__file__).parents[2]
_THINGS = re.compile(
    r" (nodes|runs|racks|hosts|groups|GPUs|CPUs|references|requirements|benchmarks|partitions|mistakes|files|"
    r"repeats|systems|pairs|ports)\b"
)


@pytest.mark.parametrize(
    ("count", "words", "expected"),
    [
        (0, ("node",), "0 nodes"),
        (1, ("node",), "1 node"),
        (2, ("node",), "2 nodes"),
        (1, ("address", "addresses"), "1 address"),
        (3, ("address", "addresses"), "3 addresses"),
    ],
)
def test_one_is_singular_and_several_are_plural(count: int, words: tuple[str, ...], expected: str) -> None:
    assert amount(count, *words) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("007", 7),
        ("9" * 17, 10**17 - 1),
        ("9" * 18, None),
        ("9" * 5000, None),  # int() refuses as many digits
        *((text, None) for text in ("", "-1", "+1", "1.0", "1e3", "1_000", " 1", "1\n", "²", "٣", "1२")),
    ],
)
def test_a_whole_number_has_ascii_digits_and_fits_into_64_bits(text: str, expected: int | None) -> None:
    assert whole_number(text) == expected


def _plain_counts(path: Path) -> list[str]:
    """Return each f-string of a file that writes ``len(…)`` before a word for several things."""
    return [
        f"{path.relative_to(ROOT)}:{value.lineno}: {{{ast.unparse(value.value)}}}{text.value[:20]}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr)
        for value, text in zip(node.values, node.values[1:], strict=False)
        if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant)
        if ast.unparse(value.value).startswith("len(") and _THINGS.match(str(text.value))
    ]


_SEVERAL = {
    "src/rackproof/core/same_reason.py",
    "src/rackproof/jobs/bench/plan_text.py",
    "src/rackproof/jobs/inventory/csv_source.py",
    "src/rackproof/jobs/inventory/nodes.py",
    "src/rackproof/jobs/provision/summary.py",
    "src/rackproof/nodes/probe_slurm_jobs.py",
    "src/rackproof/report/view.py",
    "src/rackproof/cli/find_run.py",
    "src/rackproof/report/charts.py",
}
"""Modules in which such a number is never 1."""


def test_every_number_of_things_has_a_singular() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    found = [one for path in files for one in _plain_counts(path)]
    assert [one for one in found if one.partition(":")[0] not in _SEVERAL] == []


@pytest.mark.parametrize("name", ["C", "C.UTF-8", "xx_XX.NONE"])
def test_the_locale_of_the_process_is_not_changed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = locale.setlocale(locale.LC_ALL)
    monkeypatch.setenv("LC_ALL", name)
    utf8_locale()
    assert locale.setlocale(locale.LC_ALL) == before


# The values are bytes. A number of 400 digits is shown in PiB, the largest unit.
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "NaN B"),
        (math.inf, "∞ B"),
        (-math.inf, "\N{MINUS SIGN}∞ B"),
        (10**400, None),
        (8 << 20, "8 MiB"),
        # A number that is rounded to 1024 has the next unit.
        ((1 << 20) - 1, "1.0 MiB"),
        (-(1 << 20) + 1, "-1.0 MiB"),
        ((1 << 30) - 1, "1.0 GiB"),
        ((1 << 20) - 200, "1023.8 KiB"),
        (1023, "1023 B"),
    ],
)
def test_a_size_without_a_usual_number_is_shown(value: float, text: str | None) -> None:
    assert size(value) == text if text else size(value).endswith(" PiB")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (999.96, "1,000"),
        (999.95, "1,000"),
        (-999.99, "\N{MINUS SIGN}1,000"),
        (999.94, "999.9"),
        (999, "999"),
        (1000.4, "1,000"),
        (99.9996, "100"),
    ],
)
def test_a_rounded_number_looks_like_others_of_its_size(value: float, text: str) -> None:
    assert number(value) == text
    assert quantity(value, "GB/s") == f"{text} GB/s"


# Blanks and invisible characters may hide the rest of a line. If not all of it was read, the text ends with
# an ellipsis.
@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("ok" + " " * 9000 + "FATAL", 500, "ok…"),
        ("ok" + "\x1b[0m" * 3000 + "FATAL", 500, "ok…"),
        ("ok" + "\u200b" * 9000 + "FATAL", 500, "ok…"),
        ("ok" + " " * 9000, 500, "ok"),
        ("ok" + " " * 90 + "FATAL", 500, "ok FATAL"),
        ("x" * 501, 500, "x" * 499 + "…"),
    ],
)
def test_a_text_that_is_not_read_to_its_end_has_an_ellipsis(text: str, limit: int, expected: str) -> None:
    assert sanitize(text, limit) == expected


@pytest.mark.parametrize("text", ["x" * 20_000, "@" * 20_000, "a@" * 10_000, ("a" * 254 + "@") * 80])
def test_the_reason_of_a_long_text_without_blanks_takes_little_time(text: str) -> None:
    start = time.process_time()
    assert general_reason(text, "n1") == text
    assert time.process_time() - start < 2


def test_a_user_and_an_address_are_not_part_of_a_reason() -> None:
    denied = "Permission denied (publickey)."
    assert general_reason(f"root@n1: {denied}", "n1") == general_reason(f"root@fe80::1: {denied}", "n2")
    assert general_reason(f"ada@example.org@n1: {denied}", "n1") == f": {denied}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (59.94, "59.9 s"),
        (59.95, "1 min 00 s"),
        (59.97, "1 min 00 s"),
        (60, "1 min 00 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (0, "0.0 s"),
    ],
)
def test_a_duration_has_the_next_unit_if_it_is_rounded_to_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text
