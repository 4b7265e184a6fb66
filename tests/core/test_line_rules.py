"""Test the patterns with which a definition reads the plain output of a program (core/line_rules.py).

For a program without a log format of its own, such as STREAM, a site writes one regular expression for each
metric, and one for a good end. A pattern that matches every line, has no number, or that RE2 cannot compile,
is refused when the file is read.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from rackproof.core.definitions import DefinitionError, load_definition
from rackproof.core.line_rules import LineRules


def rules(pattern: str = r"^Triad: +([0-9.]+)", good_end: str = "^Done", **more: object) -> LineRules:
    """Return rules with one metric, triad, and a good end."""
    metric = {"pattern": pattern, "unit": "MB/s"}
    return LineRules.model_validate({"good_end": good_end, "metrics": {"triad": metric}, **more})


@pytest.mark.parametrize(
    "pattern",
    [
        r"^Triad: +([0-9.]+)",
        r"(?P<value>\d+) of (\d+)",
        r"(?<value>\d+) of (\d+)",
        r"WR\w+ +(?:\d+ +){4}[\d.]+ +([\d.e+]+)",
        r"(a{1,900})b",
        r"(?:\d+,)*(\d+) MB",
        r"(?:foo|bar|baz): +([-+]?\d+\.\d+(?:[eE][-+]?\d+)?)",
        # Python's `re` may take hours on a line with these.
        r"((?:a+)+)b",
        r"^(?:time|hour\d)+: (\d)",
        r"(?P<value>(?:[0-9]+,?)+) MB",
        r".*a.*b.*(\d)c",
        r"^(?:\[[^\]]*\] )?(?:INFO|WARN): .{0,40}speed=(?P<value>[\d.]+)",
        r"^\[\d{4}-\d\d-\d\d .{1,30}\] .{0,60}tok/s: (\d+)",
    ],
)
def test_a_pattern_with_one_number_is_accepted(pattern: str) -> None:
    assert rules(pattern).metrics["triad"].pattern == pattern


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("Triad", "0 groups"),
        (r"(\d+) (\d+)", "2 groups"),
        (r"A (?P<value>\d+)|B (?P<value>\d+)", "2 groups"),
        ("(a*)", "matches every line"),
        (r"(\d*)", "matches every line"),
        (r"(\d+)(?= MB)", "RE2, which says .*: write the text that the line has"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        rules(pattern)


@pytest.mark.parametrize("good_end", ["", "^", "x*", "(?:a*)+$", "["])
def test_a_good_end_that_matches_every_line_or_is_invalid_is_refused(good_end: str) -> None:
    with pytest.raises(ValidationError):
        rules(good_end=good_end)
    with pytest.raises(ValidationError):
        rules(failures=("^fine", good_end))


def test_a_good_end_that_is_also_a_failure_is_refused() -> None:
    with pytest.raises(ValidationError, match="one of failures"):
        rules(failures=("^Done",))


DEFINITION = """\
name: stream
summary: STREAM
launch:
  with: local
  command: [stream]
result:
  format: lines
  lines:
    good_end: ^Done
    metrics:
      triad: {pattern: "^Triad: ([0-9]+)", unit: MB/s}
  judge: [{metric: triad}]
"""


# Each row replaces a text of DEFINITION. The message has the line, from 1.
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("unit: MB/s", "units: MB/s"), "stream.yml:11: .*unknown key.*unit"),
        (("good_end: ^Done", "good_ends: ^Done"), "stream.yml:9: .*unknown key.*good_end"),
        (("good_end: ^Done", "good_end: '('"), "stream.yml:9: .*not a regular expression"),
        (
            ("^Triad: ([0-9]+)", "^Triad: ([0-9]+)(?= M)"),
            r"stream.yml:11: result.lines.metrics.triad.pattern: .*\(\?=.*: write the text that the line has",
        ),
        (("metric: triad", "metric: triadd"), "no pattern for `triadd`.*triad"),
        (("metric: triad", "unit: GB/s, metric: triad"), "`triad` is read in `MB/s`, judged in `GB/s`"),
        (("format: lines", "format: auto"), "belong together"),
        (("command: [stream]", "command: [stream]\n  program: x.py"), "takes the place of"),
        (("with: local", "with: mpirun"), "command is for `with: local`"),
        (("command: [stream]", "timeout_s: 3"), "needs program or command"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    path = tmp_path / "stream.yml"
    path.write_text(DEFINITION)
    assert load_definition(path, log_formats=()).definition.launch.command == ("stream",)
    path.write_text(DEFINITION.replace(*change))
    with pytest.raises(DefinitionError, match=reason):
        load_definition(path, log_formats=())
