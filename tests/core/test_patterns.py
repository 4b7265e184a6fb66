"""Test the compiling of an operator's regular expressions with RE2 (core/patterns.py).

Python's `re` may take hours for some patterns, and RE2 never does. RE2 lacks a few constructs. A pattern with
one is refused, and the message names a remedy.
"""

from __future__ import annotations

import re

import pytest
import re2

from rackproof.core.patterns import compiled_pattern

HOSTILE = {
    r"(?:(?:a+)+)+b": "aab",
    r"((?:a|b+)*)c": "abbac",
    r"(?:a|aa){1,500}c": "aaac",
    r"(?:a?){500}a{500}b": "a" * 500 + "b",
    r".*a.*a?a?b": "xab",
    r".*.*.*.*.*(\d)x": "x 1x",
    "a?" * 60 + "a" * 60 + "b": "a" * 60 + "b",
    "(?:a|aa)" * 40 + "b": "a" * 60 + "b",
    r"(?:a?[ad][dc]c?){30}e": "ad" * 30 + "e",
    r".{0,200}.{0,200}(\d)x": "1x",
}
"""Patterns on which Python's `re` may take hours, each with a text that it matches."""
LINES = ["a" * 4000, "ad" * 2000, "é, " * 1000, "\0" * 4000]
"""Long lines that no hostile pattern matches."""


@pytest.mark.parametrize("pattern", HOSTILE)
def test_re2_searches_any_line(pattern: str) -> None:
    compiled = compiled_pattern(pattern)
    # RE2 takes linear time. max_mem limits the number of states, and so the time per character.
    assert isinstance(compiled, type(re2.compile(b"")))
    assert compiled.options.max_mem <= 1 << 18
    for line in LINES:
        assert compiled.search(line.encode()) is None
        assert compiled.search((line + HOSTILE[pattern]).encode()) is not None


@pytest.mark.parametrize(
    ("pattern", "line", "number"),
    [
        (r"^(?:\[[^\]]*\] )?(?:INFO|WARN): .{0,40}speed=([\d.]+)", "[x] INFO: a speed=1.5 b", "1.5"),
        (
            r"^\[\d{4}-\d\d-\d\d .{1,30}\] .{0,60}tok/s: (\d+)",
            "[2026-11-28 07:00:00] step 3, tok/s: 812",
            "812",
        ),
        (r"(?i)grün.*: (\d+)$", "ist GRÜN, 中: 7", "7"),
        (r"\x{4e2d}(\d+)", "中7", "7"),
        (r"a.b(\d+)\z", "a\0b7", "7"),
        (r"(?P<value>\d+?)x", "12x", "12"),
    ],
)
def test_common_patterns_give_the_expected_number(pattern: str, line: str, number: str) -> None:
    match = compiled_pattern(pattern).search(line.encode())
    assert match is not None
    assert match[1].decode() == number


@pytest.mark.parametrize(
    ("pattern", "says", "remedy"),
    [
        (r"(?=a)b", "invalid perl operator: (?=", "write the text that the line has"),
        (r"(?!a)b", "invalid perl operator: (?!", "write the text that the line has"),
        (r"(?<=a)b", "invalid perl operator: (?<=", "write the text that the line has"),
        (r"(?<!a)b", "invalid perl operator: (?<!", "write the text that the line has"),
        (r"(?>a)b", "invalid perl operator: (?>", "write it with"),
        (r"a++b", "bad repetition operator: ++", "write it with"),
        (r"(a)\1", r"invalid escape sequence: \1", "write the text out again"),
        (r"(?P<x>a)(?P=x)", "invalid perl operator: (?P", "write the text out again"),
        (r"a\Z", r"invalid escape sequence: \Z", "write $"),
        (r"a{1001}", "invalid repetition size: {1001}", "multiply to 1,000 at most"),
        (
            r"(?:(?:(?:(?:^){100}){100}){100})+a",
            "invalid repetition size: {100}",
            "multiply to 1,000 at most",
        ),
        (r".{0,999}.{0,999}.{0,999}", "pattern too large", "smaller counts"),
        (r"\pL{1,500}", "pattern too large", "smaller counts"),
        (r"ahci (controller", "missing ): ahci (controller", "needs a backslash"),
        (r"ahci [", "missing ]: [", "needs a backslash"),
        (r"*a", "no argument for repetition operator: *", "needs a backslash"),
        # RE2 would read {,3} as text, and the failure would not be found.
        (r"FAILED{,3}", "{,3}", r"write {0,3}, or \{,3}"),
    ],
)
def test_an_unsupported_pattern_is_refused_with_a_remedy(
    pattern: str, says: str, remedy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(says)}.*{re.escape(remedy)}"):
        compiled_pattern(pattern)
    assert capfd.readouterr() == ("", "")
