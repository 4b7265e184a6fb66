"""Patterns by which a definition reads plain output: what is refused before anything runs."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rackproof.core.definitions import DefinitionError, load_definition
from rackproof.core.line_rules import LineRules, characters_read
from rackproof.core.patterns import (
    _possible_characters,
    is_repeat,
    open_repeats,
    parsed_pattern,
    repeats_in_several_ways,
)


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
        # Each repetition has one way only, as its last character cannot belong to the next one.
        r"(?:\d+,)*(\d+) MB",
        r"(?:[^,]*,){5}([^,]*),",
        r"(?:\d{1,3}\.){3}\d{1,3} +(\d+)",
        r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3} +(\d+)",
        r"(?:foo|bar|baz): +([-+]?\d+\.\d+(?:[eE][-+]?\d+)?)",
        r"(?:a{3}b?){5}(\d)",
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


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(?:a+){1,500}b", "repeats a repetition"),
        (r"(?:a{1,9}){1,90}b", "repeats a repetition"),
        (r"(?:a|aa){1,500}c", "or a choice"),
        (r"((?:a)|a)*b", "or a choice"),
        (r"(?:a*)*c", "repeats a repetition"),
        (r"(?:a?){40}a{40}b", "repeats a repetition"),
        (r"(?:(?:a+,?){2,9};){2,9}b", "repeats a repetition"),
        # No two of its repeats match the same character.
        (r"(?:a?[ab][bc]c?){30}d", "repeats a repetition"),
        (r"(?:(?=a)a+){2,500}b", "repeats a repetition"),
        ("a?" * 60 + "a" * 60 + "b", "its optional texts"),
        ("(?:a|aa)" * 40 + "b", "its optional texts"),
        ("a{0,99}" * 5 + "b", "its optional texts"),
        (".*" + "a{0,30}" * 2 + "b", "its optional texts"),
    ],
)
def test_a_pattern_that_may_search_one_line_for_hours_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        rules(failures=(pattern,))
    with pytest.raises(ValidationError, match=reason):
        rules(good_end=pattern)


PART = st.builds(str.__add__, st.sampled_from("abc") | st.sampled_from(["[ab]", "[bc]", "(?:ab)", "(?:ba)"]),
                 st.sampled_from(["", "", "?", "*", "+", "{2}", "{0,2}", "{1,2}"]))  # fmt: skip


def ends(parsed: Any, text: str, at: int) -> Counter[int]:
    """Return where a pattern may end that begins there, and in how many ways."""
    ways = Counter({at: 1})
    for kind, value in parsed:
        after: Counter[int] = Counter()
        for begin, count in ways.items():
            for end, more in element_ends(kind, value, text, begin).items():
                after[end] += count * more
        ways = after
    return ways


def element_ends(kind: object, value: Any, text: str, at: int) -> Counter[int]:
    if str(kind) == "SUBPATTERN":
        return ends(value[3], text, at)
    if not is_repeat(kind):
        fits = at < len(text) and text[at] in _possible_characters([(kind, value)])
        return Counter({at + 1: 1} if fits else {})
    least, most, inner = int(value[0]), min(int(value[1]), len(text)), value[2]
    total, ways = Counter({at: 1} if least == 0 else {}), Counter({at: 1})
    for number in range(1, most + 1):
        after: Counter[int] = Counter()
        for begin, count in ways.items():
            for end, more in ends(inner, text, begin).items():
                after[end] += count * more
        ways = after
        if number >= least:
            total += ways
    return total


@settings(max_examples=30, deadline=None)
@given(st.lists(PART, min_size=1, max_size=4), st.sampled_from(["+", "{1,9}", "{2,500}"]))
def test_a_repeat_that_is_taken_divides_each_text_in_one_way(parts: list[str], times: str) -> None:
    parsed = parsed_pattern(f"(?:{''.join(parts)}){times}")
    if repeats_in_several_ways(parsed):
        return
    for length in range(1, 6):
        for characters in itertools.product("abc", repeat=length):
            assert max(ends(parsed, "".join(characters), 0).values(), default=0) <= 1, characters


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
