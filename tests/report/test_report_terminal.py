"""Test rackproof.report.terminal, which prints a table of runs on a terminal.

The tests show that the table fits a terminal of 80 or more columns, wraps text by the width of its
characters, and has no control characters but the colour of a verdict.
"""

from __future__ import annotations

import re

import pytest

from rackproof import report
from rackproof.core import text
from rackproof.core.records import Run, Verdict
from rackproof.report.terminal import text_table, wrap
from rackproof.report.view import Headline
from tests.report import example_runs


def test_a_table_as_an_operator_sees_it() -> None:
    failed = example_runs.healthy(
        verdict=Verdict.FAIL, reasons=("eval_accuracy: 0.9712 is below 0.99",), parameters={"gpus": 4}
    )
    passed = example_runs.healthy(reasons=(), parameters={"gpus": 1})
    assert report.terminal_table([passed, failed], 96) == (
        "Verdict  Benchmark    Point   Measured                          Reason\n"
        "───────  ───────────  ──────  ────────────────────────────────  ────────────────────────────────\n"
        "✓ pass   mnist-lenet  gpus=1  389,215 samples/s; eval accuracy\n"
        "                              0.9917; seconds per epoch\n"
        "                              0.154 s\n"
        "✕ fail   mnist-lenet  gpus=4  389,215 samples/s; eval accuracy  eval_accuracy: 0.9712 is below\n"
        "                              0.9917; seconds per epoch         0.99\n"
        "                              0.154 s\n"
        "\n"
        "2 runs: 1 pass, 1 fail → fail\n"
    )


def test_a_long_reason_is_not_squeezed_into_a_narrow_column() -> None:
    why = "speed (node was not idle: others (python) used 1.8 of its 2 processors and slowed the run down)"
    unproven = example_runs.healthy(verdict=Verdict.UNPROVEN, reasons=(why,), parameters={"gpus": 4})
    assert report.terminal_table(
        [example_runs.healthy(reasons=(), parameters={"gpus": 1}), unproven], 80
    ) == (
        "Verdict     Benchmark    Point   Measured\n"
        "──────────  ───────────  ──────  ───────────────────────────────────────────────\n"
        "✓ pass      mnist-lenet  gpus=1  389,215 samples/s; eval accuracy 0.9917;\n"
        "                                 seconds per epoch 0.154 s\n"
        "? unproven  mnist-lenet  gpus=4  389,215 samples/s; eval accuracy 0.9917;\n"
        "                                 seconds per epoch 0.154 s\n"
        "    speed (node was not idle: others (python) used 1.8 of its 2 processors and\n"
        "    slowed the run down)\n"
        "\n"
        "2 runs: 1 pass, 1 unproven → unproven\n"
    )
    # Without a terminal, the table is as wide as its texts.
    assert f"  {why}\n" in report.terminal_table([unproven], 100_000)


@pytest.mark.parametrize("width", [1, 60, 80, 120, 400])
@pytest.mark.parametrize("make", [example_runs.hostile, example_runs.rack, example_runs.healthy])
def test_lines_fit_and_contain_no_control_characters(width: int, make: object) -> None:
    shown = report.terminal_table([make()], width)  # type: ignore[operator]
    assert not re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
    assert all(text.width(line) <= max(width, 80) for line in shown.splitlines())


def test_colour_is_only_around_the_verdict() -> None:
    shown = report.terminal_table([example_runs.hostile()], 100, color=True)
    assert re.findall(r"\x1b\[[0-9;]*m", shown) == ["\x1b[31m", "\x1b[0m"]
    assert "\x1b[31m✕ fail\x1b[0m" in shown


def test_a_table_without_runs_is_unproven() -> None:
    assert report.terminal_table([]).endswith("0 runs: no runs → unproven\n")


def test_a_run_without_measurements_is_shown_as_unproven() -> None:
    shown = report.terminal_table([Run(run_id="r", benchmark="b")])
    assert "? unproven" in shown
    assert "1 run: 1 unproven → unproven" in shown


@pytest.mark.parametrize(
    ("raw", "cells", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("日本日本", 4, ["日本", "日本"]),
        ("", 4, [""]),
        ("ab abcdefgh", 4, ["ab", "abcd", "efgh"]),
        ("日", 1, ["日"]),
    ],
)
def test_a_text_is_wrapped_by_the_width_of_its_characters(raw: str, cells: int, lines: list[str]) -> None:
    assert wrap(raw, cells) == lines


def test_only_the_given_columns_are_wrapped() -> None:
    made = text_table(("id", "text"), [("x" * 30, "word " * 20)], 60, (1,))
    assert made[2].startswith("x" * 30)
    assert max(map(len, made)) <= 60


@pytest.mark.parametrize(
    ("name", "unit", "brief"),
    [
        ("samples per second", "samples/s", "5 samples/s"),
        ("epochs", "epochs", "5 epochs"),
        ("seconds per epoch", "s", "seconds per epoch 5 s"),
        ("eval accuracy", "", "eval accuracy 5"),
    ],
)
def test_a_name_that_the_unit_states_is_left_out(name: str, unit: str, brief: str) -> None:
    assert Headline(name, "5", unit).brief == brief
