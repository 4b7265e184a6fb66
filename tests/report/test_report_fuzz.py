"""Test that reports can be made from any record, and that no text in a record is taken for markup or control.

Hypothesis makes runs with hostile texts and arbitrary numbers. The tests render them as pages, Markdown,
JUnit, a table and a comparison.
"""

from __future__ import annotations

import re
from datetime import datetime
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackproof import report
from rackproof.analysis.compare import compare
from rackproof.core.records import (
    Dataset,
    Finding,
    Judgement,
    LogFile,
    Measurement,
    Node,
    Reference,
    Run,
    Series,
    Source,
    Verdict,
)
from rackproof.report.comparison import comparison_text
from tests.report.test_report_forms import Page

# Each test renders dozens of runs, with their charts, which takes longer than `make check` may.
pytestmark = pytest.mark.slow

NASTY = st.sampled_from(
    [
        "<script>alert(1)</script>",
        "\"'><img src=x onerror=alert(1)>",
        "]]><!--",
        "</style></svg>",
        "| a | b |",
        "```\n# x",
        "\x1b]0;t\x07\x9b31m",
        "\u202e\u2066\ufeff\U000e0041",
        "{{ 7*7 }}{% x %}",
        "$\\frac$",
        "_x",
        "javascript:alert(1)",
        "//example.org/x",
        "../..",
        "\x00\x7f\x85",
        "&amp;&#0;",
    ]
)
# A record cannot contain surrogates.
TEXT = st.one_of(NASTY, st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
NAME = TEXT.filter(lambda text: 0 < len(text) <= 200)
LABELS = st.dictionaries(st.one_of(st.sampled_from(["size_bytes", "gpu"]), TEXT), TEXT, max_size=3)
NUMBER = st.floats()
SOURCE = st.builds(
    Source, file=st.none() | TEXT, line=st.none() | st.integers(1, 10**12), rank=st.none() | st.integers(0, 9)
)
BOUND = st.none() | NUMBER
REFERENCE = st.builds(
    Reference,
    value=st.floats(allow_nan=False, allow_infinity=False),
    low=BOUND,
    high=BOUND,
    warn=BOUND,
    unit=TEXT,
    source=TEXT,
)
VERDICT = st.sampled_from(Verdict)
MEASUREMENT = st.builds(Measurement, name=NAME, value=NUMBER, unit=TEXT, labels=LABELS, source=SOURCE)


@st.composite
def series(draw: st.DrawFn) -> Series:
    """Return a curve with any points."""
    points = draw(st.lists(st.tuples(NUMBER, NUMBER), max_size=12))
    return Series(
        name=draw(NAME),
        unit=draw(TEXT),
        x_unit=draw(TEXT),
        x=tuple(x for x, _ in points),
        y=tuple(y for _, y in points),
        labels=draw(LABELS),
    )


def few(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    """Return a strategy for tuples of up to three values."""
    return st.lists(strategy, max_size=3).map(tuple)


RUN = st.builds(
    Run,
    run_id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", fullmatch=True),
    benchmark=NAME,
    description=TEXT,
    started=st.none() | st.datetimes(min_value=datetime(1970, 1, 2)),
    ended=st.none() | st.datetimes(min_value=datetime(1970, 1, 2)),
    parameters=st.dictionaries(
        st.one_of(st.sampled_from(["batch_size", "gpus", "network"]), TEXT),
        st.one_of(st.none(), st.booleans(), st.integers(), NUMBER, TEXT),
        max_size=3,
    ),
    command=few(TEXT),
    environment=st.dictionaries(TEXT, TEXT, max_size=2),
    nodes=few(
        st.builds(Node, name=NAME, sku=TEXT, cpu=TEXT, software=st.dictionaries(TEXT, TEXT, max_size=2))
    ),
    dataset=st.none() | st.builds(Dataset, name=TEXT, source=TEXT, objects=st.none() | st.integers()),
    seeds=few(st.integers()),
    measurements=few(MEASUREMENT),
    series=few(series()),
    findings=few(
        st.builds(
            Finding,
            code=st.just("code"),
            message=TEXT,
            verdict=st.none() | VERDICT,
            source=SOURCE,
            excerpt=TEXT,
        )
    ),
    judgements=few(
        st.builds(
            Judgement,
            metric=NAME,
            labels=LABELS,
            value=st.none() | NUMBER,
            unit=TEXT,
            reference=st.none() | REFERENCE,
            verdict=VERDICT,
            gating=st.booleans(),
            reason=TEXT,
            source=SOURCE,
        )
    ),
    verdict=VERDICT,
    reasons=few(TEXT),
    logs=few(st.builds(LogFile, path=TEXT, sha256=TEXT, size_bytes=st.integers(0))),
)

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff]")
calm = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@calm
@given(st.lists(RUN, min_size=1, max_size=3))
def test_pages(runs: list[Run]) -> None:
    for page in (report.render(runs[:1], "html").decode(), report.render(runs * 2, "html", "title").decode()):
        parsed = Page(page)
        assert not {"script", "img", "iframe", "object", "form", "base"} & set(parsed.tags)
        assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
        links = [*parsed.values("href"), *parsed.values("src")]
        assert all(re.match(r"(#|\./|data:,$)", link) for link in links)
        assert not CONTROL.findall(page)


@calm
@given(st.lists(RUN, max_size=3))
def test_markdown_junit_and_terminal(runs: list[Run]) -> None:
    root = ElementTree.fromstring(report.render(runs, "junit", "title"))
    assert root.tag == "testsuites"
    bad = [run for run in runs if run.verdict.gates]
    assert (root.get("errors"), root.get("failures")) != ("0", "0") or (runs and not bad)
    markdown = report.render_markdown(runs)
    assert not CONTROL.findall(markdown + report.terminal_table(runs))
    assert "<script" not in re.sub(r"`[^`\n]*`", "", markdown)


@calm
@given(RUN, RUN)
def test_comparison(first: Run, second: Run) -> None:
    compared = compare(first, second)
    matched = len(compared.measurements) + len(compared.refused)
    assert 2 * matched + len(compared.unmatched) == len(first.measurements) + len(second.measurements)
    assert not CONTROL.findall(comparison_text(compared))
