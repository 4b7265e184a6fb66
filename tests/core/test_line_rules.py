"""Patterns by which a definition reads plain output: what is refused before anything runs."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from rackproof.core.definitions import DefinitionError, load_definition
from rackproof.core.line_rules import LineRules


def rules(pattern: str = r"^Triad: +([0-9.]+)", good_end: str = "^Done", **more: object) -> LineRules:
    metric = {"pattern": pattern, "unit": "MB/s"}
    return LineRules.model_validate({"good_end": good_end, "metrics": {"triad": metric}, **more})


@pytest.mark.parametrize(
    "pattern",
    [
        r"^Triad: +([0-9.]+)",
        r"(?P<value>\d+) of (\d+)",
        r"WR\w+ +(?:\d+ +){4}[\d.]+ +([\d.e+]+)",
        r"(a{1,900})b",
    ],
)
def test_a_pattern_with_one_number_is_taken(pattern: str) -> None:
    assert rules(pattern).metrics["triad"].pattern == pattern


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("Triad", "0 groups"),
        (r"(\d+) (\d+)", "2 groups"),
        ("(", "no regular expression"),
        ("(a*)", "fits every line"),
        (r"(\d*)", "fits every line"),
        (r"((?:a+)+)b", "repeats what repeats"),
        (r"((?:\w+\s*)+):", "repeats what repeats"),
        (r"((?:a|b+)*)c", "repeats what repeats"),
        (r"((?:aa|aab|b)*)c", "or a choice"),
        (r"^(?:time|hour\d)+: (\d)", "or a choice"),
        (r"((?:(?:ab|abab)x?)*)y", "or a choice"),
        (r"(?P<value>(?:[0-9]+,?)+) MB", "repeats what repeats"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        rules(pattern)


@pytest.mark.parametrize("good_end", ["", "^", "x*", "(?:a+)+$", "["])
def test_an_end_that_proves_nothing_is_refused(good_end: str) -> None:
    with pytest.raises(ValidationError):
        rules(good_end=good_end)


def test_an_end_that_is_a_failure_is_refused() -> None:
    with pytest.raises(ValidationError, match="one of failures"):
        rules(failures=("^Done",))


def test_what_is_taken_reads_a_hostile_line_in_no_time() -> None:
    pattern = rules(r"^(\d+)\s+\S+\s+\S+$").metrics["triad"].pattern
    began = time.process_time()
    re.search(pattern, "1 " * 1000)
    assert time.process_time() - began < 5


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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("unit: MB/s", "units: MB/s"), "stream.yml:11: .*unknown key.*unit"),
        (("good_end: ^Done", "good_ends: ^Done"), "stream.yml:9: .*unknown key.*good_end"),
        (("good_end: ^Done", "good_end: '('"), "stream.yml:9: .*no regular expression"),
        (("metric: triad", "metric: triadd"), "no pattern for `triadd`.*triad"),
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
