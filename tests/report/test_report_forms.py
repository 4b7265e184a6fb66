"""Test the forms of a report (HTML, Markdown, JUnit, JSON), and the files that they are written to.

Every form is made from the runs in example_runs.py. The tests show that pages are complete without a network,
run no script, and show markup of a log as text. JSON must fit the published schema. RACKPROOF_UPDATE_GOLDEN=1
writes the golden files again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from rackproof import report
from rackproof.core.records import Finding, Judgement, Run, Verdict, json_schema
from rackproof.report.junit import junit
from rackproof.report.markdown import cell_text, code, escape
from rackproof.report.view import Cell
from rackproof.store.run_folder import load_run
from tests.report import example_runs

GOLDEN = Path(__file__).parent / "golden"
RUNS = {
    "healthy": example_runs.healthy,
    "hostile": example_runs.hostile,
    "rack": example_runs.rack,
    "bare": lambda: Run(run_id="r", benchmark="b"),
}
# Tags that need no end tag.
VOID = {"meta", "link", "br", "img", "input"}


class Page(HTMLParser):
    """A parsed page. Its tags must close in order."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(content)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def values(self, name: str) -> Iterator[str]:
        """Return the values of an attribute."""
        return (value for _, given, value in self.attributes if given == name)


@pytest.fixture(params=[*RUNS, "plan"])
def page(request: pytest.FixtureRequest) -> str:
    """Return the page of each run, and of a plan."""
    if request.param == "plan":
        runs = [*example_runs.sweep(), example_runs.hostile(), example_runs.rack()]
        return report.render(
            runs, "html", example_runs.HOSTILE, lambda run: f"../{run.run_id}/report.html"
        ).decode()
    return report.render([RUNS[request.param]()], "html").decode()


def test_pages_are_well_formed_and_run_nothing(page: str) -> None:
    parsed = Page(page)
    assert "script" not in parsed.tags
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    assert {"html", "main", "h1", "caption", "th"} <= set(parsed.tags) or "b" in parsed.words
    ids = list(parsed.values("id"))
    assert len(ids) == len(set(ids))


def test_pages_load_nothing_from_outside(page: str) -> None:
    parsed = Page(page)
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert ("meta", "content", policy) in parsed.attributes
    links = [value for name in ("href", "src", "srcset", "action", "data") for value in parsed.values(name)]
    assert links
    assert all(re.match(r"(#|\./|\.\./|data:)", link) for link in links)
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)


def test_pages_contain_no_control_characters_and_no_markup_of_logs(page: str) -> None:
    assert not re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)
    assert "<script" not in page
    assert "fn:" not in page


def test_the_verdict_comes_before_the_judgements() -> None:
    words = " ".join(Page(report.render([example_runs.hostile()], "html").decode()).words)
    assert words.index("fail") < words.index("Judgement") < words.index("What ran where")
    assert "gone: the log has no such measurement" in words


def test_charts_have_a_title_and_a_description() -> None:
    page = report.render([example_runs.healthy()], "html").decode()
    assert page.count('role="img"') == 3
    titles = re.findall(r'role="img" aria-labelledby="(\S+) (\S+)"', page)
    assert len(titles) == 3
    assert all(f'id="{title}"' in page and f'id="{desc}"' in page for title, desc in titles)


def test_the_same_run_gives_the_same_bytes() -> None:
    first, second = (report.render([example_runs.healthy()], "html") for _ in range(2))
    assert first == second


@pytest.mark.parametrize("form", ["md", "junit"])
def test_the_report_of_a_hostile_run_equals_the_golden_file(form: str) -> None:
    made = report.render([example_runs.hostile()], form)
    golden = GOLDEN / f"hostile.{form}"
    if os.environ.get("RACKPROOF_UPDATE_GOLDEN"):
        golden.write_bytes(made)
    assert made.decode() == golden.read_text()


@pytest.mark.parametrize("name", RUNS)
def test_markdown_tables_keep_their_columns(name: str) -> None:
    text = report.render_markdown([RUNS[name]()])
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.M)
    assert tables
    for table in tables:
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("<b>|`x`", "&lt;b&gt;\\|\\`x\\`"),
        ("a_b*c", "a\\_b\\*c"),
        ("@all #1", "&#64;all \\#1"),
        ("https://example.org", "https&#58;//example.org"),
        ("10:30", "10:30"),
        ("- item", "\\- item"),
        ("1. item", "1\\. item"),
        ("0.99", "0.99"),
        ("[x](y) ![i](z)", "\\[x\\]\\(y\\) \\!\\[i\\]\\(z\\)"),
        ("two\nlines", "two lines"),
    ],
)
def test_markdown_shows_text_literally(raw: str, shown: str) -> None:
    assert escape(raw) == shown


def test_no_text_can_end_a_code_span() -> None:
    assert code("a`b|c") == "`aˋb|c`"  # noqa: RUF001
    # In a table, a pipe would end the cell.
    assert cell_text(Cell("a|b", "code")) == "`a\\|b`"
    assert code("\x1b[0m") == ""


def cases(runs: list[Run]) -> dict[str, str]:
    """Return the outcome of each test case of a JUnit report."""
    root = ElementTree.fromstring(junit(runs))
    return {
        case.get("name", ""): "+".join(child.tag for child in case) or "passed"
        for case in root.iter("testcase")
    }


@pytest.mark.parametrize(
    ("verdict", "gating", "outcome"),
    [
        (Verdict.PASS, True, "passed"),
        (Verdict.DEGRADED, True, "system-out"),
        (Verdict.FAIL, True, "failure"),
        (Verdict.UNPROVEN, True, "error"),
        (Verdict.UNPROVEN, False, "skipped"),
        (Verdict.FAIL, False, "skipped"),
    ],
)
def test_each_judgement_has_its_outcome_in_junit(verdict: Verdict, gating: bool, outcome: str) -> None:
    one = Judgement(metric="speed", verdict=verdict, gating=gating, reason="because")
    run = Run(run_id="r", benchmark="b", judgements=(one,), verdict=Verdict.PASS)
    assert cases([run]) == {"speed": outcome, "verdict of the run": "passed"}


def test_junit_counts_a_run_that_judged_nothing_as_an_error() -> None:
    run = Run(run_id="r", benchmark="b", findings=(Finding(code="cut_off", message="cut off"),))
    root = ElementTree.fromstring(junit([run]))
    assert cases([run]) == {"verdict of the run": "error"}
    assert [root.get(key) for key in ("tests", "errors", "failures", "skipped")] == ["1", "1", "0", "0"]


def test_junit_without_runs_is_an_error() -> None:
    assert list(cases([]).values()) == ["error"]


def test_junit_totals_are_the_sums_of_the_suites() -> None:
    root = ElementTree.fromstring(junit([*example_runs.sweep(), example_runs.hostile()]))
    suites = root.findall("testsuite")
    assert len(suites) == 49
    for key, tag in (
        ("tests", "testcase"),
        ("failures", "failure"),
        ("errors", "error"),
        ("skipped", "skipped"),
    ):
        assert (
            int(root.get(key, ""))
            == sum(int(suite.get(key, "")) for suite in suites)
            == len(list(root.iter(tag)))
        )


@pytest.mark.parametrize("name", RUNS)
def test_json_fits_the_published_schema_and_reads_back(name: str, root: Path) -> None:
    schema = json.loads((root / "docs/schema/run.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    run = RUNS[name]()
    made = report.render([run], "json")
    jsonschema.Draft202012Validator(schema).validate(json.loads(made))
    again = load_run(made, name)
    assert again.model_dump_json() == run.model_dump_json()


def test_the_published_schema_is_that_of_the_records(root: Path) -> None:
    published = json.loads((root / "docs/schema/run.schema.json").read_text())
    assert published == json_schema(), "run: rackproof schema > docs/schema/run.schema.json"


def test_the_schema_refuses_an_invalid_run(root: Path) -> None:
    validator = jsonschema.Draft202012Validator(
        json.loads((root / "docs/schema/run.schema.json").read_text())
    )
    good = json.loads(report.render([example_runs.healthy()], "json"))
    assert validator.is_valid(good)
    assert not validator.is_valid(good | {"verdict": "splendid"})
    assert not validator.is_valid(good | {"more": 1})


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="html, md, junit, json"):
        report.render([example_runs.healthy()], "pdf")


def test_a_run_gets_three_report_files(tmp_path: Path) -> None:
    written = report.write_run_reports(example_runs.healthy(), tmp_path)
    names = {form: path.name for form, path in written.items()}
    assert names == {"html": "report.html", "md": "report.md", "junit": "report.junit.xml"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.values())


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError, match=r"report\.html"):
        report.write_run_reports(example_runs.healthy(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_plan_reports_name_what_is_missing(tmp_path: Path) -> None:
    runs = example_runs.sweep()[:2]
    written = report.write_plan_reports(
        runs, tmp_path / "plan", "Night", lambda run: f"../{run.run_id}/report.html", ["gemm on node-07"]
    )
    for path in written.values():
        content = path.read_text()
        assert "gemm on node-07" in content
        assert "unproven" in content or "<error" in content
    assert f"../{runs[0].run_id}/report.html" in written["html"].read_text()


@pytest.mark.parametrize(
    ("verdict", "seal", "outcome"),
    [
        (Verdict.PASS, "pass", "<testcase"),
        (Verdict.DEGRADED, "degraded", "degraded: llama: 12 min"),
        (Verdict.UNPROVEN, "unproven", "<error"),
        (Verdict.FAIL, "fail", "<failure"),
    ],
)
def test_plan_reports_have_the_verdict_of_a_score(
    tmp_path: Path, verdict: Verdict, seal: str, outcome: str
) -> None:
    runs = [example_runs.healthy()]
    written = report.write_plan_reports(runs, tmp_path / "plan", "Night", scores=[("llama: 12 min", verdict)])
    assert f"{seal}: Night" in written["md"].read_text().splitlines()[0]
    assert f"tone-{seal}" in written["html"].read_text()
    xml = written["junit"].read_text()
    assert "llama: 12 min" in xml
    assert outcome in xml
    if verdict is not Verdict.PASS:
        for form in ("md", "html"):
            assert f"{seal}: llama: 12 min" in written[form].read_text()


def test_a_plan_of_one_run_gets_the_report_of_a_plan(tmp_path: Path) -> None:
    written = report.write_plan_reports([example_runs.healthy()], tmp_path, "One")
    assert "Plan report" in written["html"].read_text()
