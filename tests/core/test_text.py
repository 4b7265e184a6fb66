"""Texts for people: numbers of things, and similar names."""

from __future__ import annotations

import ast
import locale
import re
from pathlib import Path

import pytest

from rackproof.core.text import amount, utf8_locale

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
def test_one_thing_is_not_several(count: int, words: tuple[str, ...], expected: str) -> None:
    assert amount(count, *words) == expected


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
    # Their callers write these texts only of several things.
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


def test_every_number_of_things_has_its_singular() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    found = [one for path in files for one in _plain_counts(path)]
    assert [one for one in found if one.partition(":")[0] not in _SEVERAL] == []


@pytest.mark.parametrize("name", ["C", "C.UTF-8", "xx_XX.NONE"])
def test_the_locale_of_the_process_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = locale.setlocale(locale.LC_ALL)
    monkeypatch.setenv("LC_ALL", name)
    utf8_locale()
    assert locale.setlocale(locale.LC_ALL) == before
