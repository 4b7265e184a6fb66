"""Patterns by which a definition reads plain output: what is refused before anything runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from rackproof.core.definitions import DefinitionError, load_definition
from rackproof.core.line_rules import LineRules, characters_read
from rackproof.core.patterns import open_repeats, parsed_pattern


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
        ("(", "not a regular expression"),
        ("(a*)", "fits every line"),
        (r"(\d*)", "fits every line"),
        (r"((?:a+)+)b", "repeats a repetition"),
        (r"((?:\w+\s*)+):", "repeats a repetition"),
        (r"((?:a|b+)*)c", "repeats a repetition"),
        (r"((?:aa|aab|b)*)c", "or a choice"),
        (r"^(?:time|hour\d)+: (\d)", "or a choice"),
        (r"((?:(?:ab|abab)x?)*)y", "or a choice"),
        (r"(?P<value>(?:[0-9]+,?)+) MB", "repeats a repetition"),
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


def steps(pattern: str, text: str) -> int:
    """Return how many times a backtracking search tries to go on, in a text that does not fit."""
    count = 0

    def tries(parts: list[tuple[str, int, int]], at: int) -> bool:
        nonlocal count
        count += 1
        if not parts:
            return True
        (one, least, most), rest = parts[0], parts[1:]
        run = re.compile(f"(?:{one}){{0,{min(most, len(text))}}}").match(text, at)
        length = len(run[0]) if run else 0
        return any(tries(rest, at + taken) for taken in range(length, least - 1, -1))

    assert not any(tries(PIECES[pattern], at) for at in range(len(text) + 1))
    return count


MANY = 4000
PIECES: dict[str, list[tuple[str, int, int]]] = {
    r"^Triad: +([0-9.]+)MB": [(c, 1, 1) for c in "Triad:"]
    + [(" ", 1, MANY), ("[0-9.]", 1, MANY), ("M", 1, 1)],
    r"(\d+)MB": [(r"\d", 1, MANY), ("M", 1, 1)],
    r"\s+\d+\s+(\d+)x": [(r"\s", 1, MANY), (r"\d", 1, MANY), (r"\s", 1, MANY), (r"\d", 1, MANY), ("x", 1, 1)],
    r"\S+ +([0-9]+)x": [(r"\S", 1, MANY), (" ", 1, MANY), ("[0-9]", 1, MANY), ("x", 1, 1)],
    r".*a.*b(\d)": [(".", 0, MANY), ("a", 1, 1), (".", 0, MANY), ("b", 1, 1), (r"\d", 1, 1)],
    r"(\w+)\d+x": [(r"\w", 1, MANY), (r"\d", 1, MANY), ("x", 1, 1)],
    r"[^,]*,[^,]*,([^,]*),x": [("[^,]", 0, MANY), (",", 1, 1)] * 3 + [("x", 1, 1)],
}
HOSTILE = ("1", " ", "a", "1 ", "a ", ",", "1,", "Triad: 1", "ab", "a1")


@pytest.mark.parametrize("pattern", PIECES)
def test_the_steps_of_a_line_grow_no_faster_than_its_repeats_allow(pattern: str) -> None:
    power = open_repeats(parsed_pattern(rules(pattern).metrics["triad"].pattern)) + 1
    for text in HOSTILE:
        few, many = (steps(pattern, (text * length)[:length]) for length in (40, 80))
        assert many <= 2**power * few * 1.05, text
        # What a whole line takes, from there on by the same power.
        assert many * (characters_read(pattern) / 80) ** power < 1e8, text


def test_a_search_of_three_repeats_would_take_more_steps_than_any_that_is_taken() -> None:
    PIECES["three"] = [(".", 0, MANY), ("a", 1, 1)] * 3 + [("b", 1, 1)]
    many = steps("three", "a" * 40)
    del PIECES["three"]
    assert many * (2000 / 40) ** 4 > 1e11


@pytest.mark.parametrize(
    ("pattern", "repeats"),
    [
        (r"^Triad: +([0-9.]+)", 1),
        (r"WR\S+\s+\d+\s+\d+\s+\d+\s+\d+\s+([\d.]+)\s+(\S+)", 1),
        (r"[^,]*,[^,]*,([^,]*),", 1),
        (r"\D+(\d+)\D+", 1),
        (r"abc(\d)", 0),
        (r"a{1,90}b{1,90}(\d)", 0),
        (r"\s*\s*(\d)", 2),
        (r".*a.*(\d)", 2),
        (r"x*y?x*(\d)", 2),
        (r"(?i)A+a+(\d)", 2),
        (r"\w+_?[0-9]+ (\d)", 2),
        (r".*.*.*(\d)x", 3),
        (r".*a.*b.*(\d)c", 3),
        (r"\w+\d+\w+:(\d)", 3),
        (r"(?:a+|b) ?a*\s?[a-c]+(\d)", 3),
        (r".{0,900}.{0,900}.{0,900}(\d)x", 3),
    ],
)
def test_repeats_in_a_row_are_counted_and_too_many_refused(pattern: str, repeats: int) -> None:
    assert open_repeats(parsed_pattern(pattern)) == repeats
    if repeats < 3:
        assert characters_read(pattern) == (500 if repeats == 2 else 2000)
        return
    with pytest.raises(ValidationError, match="open repeats in a row"):
        rules(failures=(pattern,))
    with pytest.raises(ValidationError, match="open repeats in a row"):
        rules(good_end=pattern)


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
        (("good_end: ^Done", "good_end: '('"), "stream.yml:9: .*not a regular expression"),
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
