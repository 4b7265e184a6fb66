"""Test the reports that `rackproof compare` writes: HTML page, Markdown, terminal tables and charts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rackproof.analysis.compare.systems import System, SystemComparison, compare_systems
from rackproof.core.records import Finding, Source, Verdict
from rackproof.report import charts
from rackproof.report.comparison import (
    comparison_markdown,
    comparison_page,
    comparison_terminal,
    comparison_title,
    ratio_charts,
    worst_verdict,
    write_comparison,
)
from tests.analysis.compare.test_systems import training

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e|"


@pytest.fixture
def hostile() -> SystemComparison:
    """Return a comparison whose texts have HTML, a terminal escape, a bidirectional override and a pipe."""
    found = Finding(code="nan", message=HOSTILE, verdict=Verdict.FAIL, source=Source(file=HOSTILE, line=7))
    bad = training(1.0, benchmark=HOSTILE, findings=(found,), parameters={"a": HOSTILE})
    good = [training(rate, benchmark=HOSTILE) for rate in (100, 101, 110, 112)]
    return compare_systems(
        [System(name=HOSTILE, runs=(*good[:2], bad)), System(name="plain", runs=tuple(good[2:]))]
    )


def test_hostile_text_is_harmless_in_every_form(hostile: SystemComparison) -> None:
    page = comparison_page(hostile)
    assert "<script" not in page
    assert "default-src 'none'" in page
    for text in (page, comparison_markdown(hostile), comparison_terminal(hostile, 120)):
        assert not re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    # Markdown shows a code span literally, so only the text outside must not contain the tag.
    assert "<script" not in re.sub(r"`[^`]*`", "", comparison_markdown(hostile))


def test_every_form_has_the_tables(hostile: SystemComparison) -> None:
    for text in (comparison_page(hostile), comparison_markdown(hostile), comparison_terminal(hostile, 200)):
        plain = text.replace("\\", "")
        for expected_text in ("100.5", "111 samples/s", "1.1045", "Epochs", "no mean", ":7", "Welch"):
            assert expected_text in plain, expected_text
    assert worst_verdict(hostile) is None
    page = comparison_page(hostile)
    assert "No cell was judged against a published result." in page
    assert "4 runs count, 1 is left out" in page


@pytest.mark.parametrize(
    ("names", "title"),
    [("AB", "A against B"), ("ABC", "A against B against C"), ("ABCD", "3 systems beside A")],
)
def test_the_title_of_many_systems_has_the_number_of_the_others(names: str, title: str) -> None:
    compared = compare_systems([System(name=name, runs=(training(),)) for name in names])
    assert comparison_title(compared) == title


def test_the_chart_shows_ratio_and_interval(hostile: SystemComparison) -> None:
    throughput, minutes = ratio_charts(hostile)
    ((name, ((value, low, high),)),) = throughput.lines
    assert name == "plain"
    assert value == pytest.approx(111 / 100.5)
    assert low is not None
    assert high is not None
    assert low < 111 / 100.5 < high
    assert "right is better" in throughput.x_label
    assert "left is better" in minutes.x_label
    # Equal minutes have no confidence interval, so the chart draws no bar, and a note says so.
    assert minutes.lines[0][1][0][1] is None
    assert any("no interval" in note for note in minutes.notes)
    drawn = charts.draw_ratios(throughput, "x")
    assert drawn.description.startswith("Training throughput")
    assert "1.104" in drawn.description
    assert drawn.svg == charts.draw_ratios(throughput, "x").svg
    # charts.py replaces these colours of matplotlib with variables of the page's style.
    assert "#01fe" not in drawn.svg


@pytest.mark.parametrize(
    ("units", "sizes", "noted"),
    [
        (("batches/s", "batches/s", "batches/s"), (80, 40, 80), True),
        # A rate in another unit has no ratio, so the chart does not show it.
        (("samples/s", "images/s", "samples/s"), (80, 80, 80), False),
    ],
)
def test_the_chart_has_a_note_on_batches_only_if_it_draws_them(
    units: tuple[str, ...], sizes: tuple[int, ...], noted: bool
) -> None:
    runs = [
        training(10, name="samples_per_second", unit=unit, parameters={"batch_size": size})
        for unit, size in zip(units, sizes, strict=True)
    ]
    compared = compare_systems(
        [System(name=name, runs=(run,)) for name, run in zip("ABC", runs, strict=True)]
    )
    throughput = ratio_charts(compared)[0]
    assert throughput.title.startswith("Training throughput")
    assert any("their size differs" in note for note in throughput.notes) is noted


def test_a_system_that_was_judged_shows_its_verdict() -> None:
    slow = System(name="DGX1", runs=(training(2000.0, 22.03),))
    compared = compare_systems([slow, System(name="b", runs=(training(2000.0, 22.03),))])
    page = comparison_page(compared)
    assert worst_verdict(compared) is Verdict.FAIL
    assert "\N{MINUS SIGN}54.8 %" in page
    assert "4,420 samples/s" in page


def test_systems_without_a_common_benchmark_are_reported() -> None:
    compared = compare_systems(
        [System(name="a", runs=(training(),)), System(name="b", runs=(training(benchmark="gnmt"),))]
    )
    assert not ratio_charts(compared)
    for text in (comparison_page(compared), comparison_markdown(compared), comparison_terminal(compared)):
        assert "no benchmark in common" in text


def test_write_comparison_writes_a_page_and_markdown(hostile: SystemComparison, tmp_path: Path) -> None:
    written = write_comparison(hostile, tmp_path / "c")
    assert written == {form: tmp_path / "c" / f"comparison.{form}" for form in ("html", "md")}
    assert written["html"].read_text() == comparison_page(hostile)
