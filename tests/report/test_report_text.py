"""Test rackproof.core.text, which makes text from logs harmless, and shows numbers with units.

A log can contain escape sequences that control the terminal of an operator. The tests show that none
remains. They also show how numbers, sizes, times and percentages look for people.
"""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackproof.core import text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPdevice control\x1b\\after", "after"),
        ("\x1bcreset", "reset"),
        ("ends in escape \x1b", "ends in escape"),
        ("bell\x07 null\x00 delete\x7f", "bell null delete"),
        ("overwritten\rwith this", "overwritten with this"),
        ("two\r\nlines\n\n\tand a tab", "two lines and a tab"),
        ("right\u202eto\u2066left\u200f", "righttoleft"),
        ("zero\u200bwidth\ufeff tag\U000e0041", "zerowidth tag"),
        ("line\u2028separator", "line separator"),
        ("lone \ud800 surrogate \ufffe", "lone surrogate"),
        ("naïve 日本 ✓ é", "naïve 日本 ✓ é"),
        (None, "None"),
    ],
)
def test_hostile_text_is_made_harmless(raw: object, shown: str) -> None:
    assert text.sanitize(raw) == shown


def test_an_unfinished_sequence_does_not_swallow_the_lines_after_it() -> None:
    assert text.sanitize("\x1b]0;never ended\nthe next line", newlines=True).endswith("the next line")


@pytest.mark.parametrize(("limit", "shown"), [(5, "abcd…"), (8, "abcdefgh"), (1, "…")])
def test_long_text_is_cut(limit: int, shown: str) -> None:
    assert text.sanitize("abcdefgh", limit) == shown


def test_newlines_are_kept_on_request() -> None:
    assert text.sanitize("a\r\nb\rc\x1b[2J", newlines=True) == "a\nb\nc"


@given(st.text())
def test_no_control_characters_are_left(raw: str) -> None:
    shown = text.sanitize(raw, 200)
    assert len(shown) <= 200
    assert not [one for one in shown if unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp")]
    assert text.sanitize(shown, 200) == shown
    shown.encode()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["\x1b[", "\x1b]", "\x1b]x", "\x1b[1", "\x1bP\n", "\u202e", " ", "\x9b0"])
def test_a_huge_hostile_text_is_cut_quickly(piece: str) -> None:
    for _ in range(100):
        assert len(text.sanitize(piece * 1_000_000)) <= 500


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (12.0, "12"),
        (1.2612, "1.261"),
        (14.2549, "14.255"),
        (0.99123, "0.9912"),
        (0.5, "0.5"),
        (102.34, "102.3"),
        (727808.4, "727,808"),
        (-3.5, "\N{MINUS SIGN}3.5"),
        (1e-171, "1e-171"),
        (1.5e18, "1.5e18"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "\N{MINUS SIGN}∞"),
        (None, text.NOTHING),
    ],
)
def test_numbers_have_few_digits(value: float | None, shown: str) -> None:
    assert text.number(value) == shown


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.0093, "TB/s", "9.3 GB/s"),
        (0.00002, "GB/s", "20 kB/s"),
        (-0.05, "TFLOP/s", "\N{MINUS SIGN}50 GFLOP/s"),
        (1.639e-5, "s", "16.39 µs"),
        (0.0023, "s", "2.3 ms"),
        (0.6, "s", "0.6 s"),
        (0.2, "TB/s", "0.2 TB/s"),
        (1.5, "GB/s", "1.5 GB/s"),
        (8 << 20, "bytes", "8 MiB"),
        (math.nan, "bytes", "NaN bytes"),
        (3, "", "3"),
        (0, "1", "0"),
        (0.9691, "fraction", "0.9691"),
        (None, "s", text.NOTHING),
        (1, "\x1b[31ms", "1 s"),
    ],
)
def test_a_quantity_is_shown_in_a_fitting_unit(value: float | None, unit: str, shown: str) -> None:
    assert text.quantity(value, unit) == shown


@pytest.mark.parametrize(
    ("fraction", "shown"),
    [
        (0.035, "+3.5 %"),
        (-0.0721, "\N{MINUS SIGN}7.2 %"),
        (0.00012, "+0.01 %"),
        (0.0, "+0.0 %"),
        (25, "+2,500 %"),
        (math.nan, text.NOTHING),
        (None, text.NOTHING),
    ],
)
def test_a_fraction_is_shown_as_a_percentage(fraction: float | None, shown: str) -> None:
    assert text.percent(fraction) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (3.14, "3.1 s"),
        (125, "2 min 05 s"),
        (15_000, "4 h 10 min"),
        (math.inf, text.NOTHING),
        (None, text.NOTHING),
    ],
)
def test_a_duration_is_shown_in_its_largest_units(seconds: float | None, shown: str) -> None:
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (8 << 20, "8 MiB"),
        (3 << 60, "3,072 PiB"),
        (10**400, "8.882e284 PiB"),
    ],
)
def test_a_size_is_shown_in_binary_units(value: int, shown: str) -> None:
    assert text.size(value) == shown


def test_moments_are_shown_in_utc() -> None:
    east = timezone(timedelta(hours=9))
    assert text.moment(datetime(2026, 1, 1, 9, tzinfo=east)) == "2026-01-01 00:00:00 UTC"
    assert text.moment(datetime(2026, 1, 1, 9)) == "2026-01-01 09:00:00 UTC"
    assert text.moment(None) == text.NOTHING


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("9999-12-31T23:59:59-14:00", "9999-12-31 23:59:59-14:00"),
        ("9999-12-31T23:59:59.9-00:01", "9999-12-31 23:59:59-00:01"),
        ("0001-01-01T00:00:00+14:00", "0001-01-01 00:00:00+14:00"),
        ("9999-12-31T23:59:59", "9999-12-31 23:59:59 UTC"),
    ],
)
def test_a_moment_outside_the_years_of_utc_keeps_its_zone(written: str, shown: str) -> None:
    assert text.moment(datetime.fromisoformat(written)) == shown


def test_moments_in_the_wrong_order_or_of_unlike_kinds_give_no_duration() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert text.elapsed(start, start + timedelta(seconds=5)) == timedelta(seconds=5)
    assert text.elapsed(start, start - timedelta(seconds=5)) is None
    assert text.elapsed(start, datetime(2026, 1, 2)) is None
    assert text.elapsed(None, start) is None


@pytest.mark.parametrize(("shown", "cells"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("✓", 1)])
def test_the_width_of_a_text_is_its_number_of_terminal_cells(shown: str, cells: int) -> None:
    assert text.width(shown) == cells


@pytest.mark.parametrize(
    ("raw", "slug"),
    [
        ("a b/c", "a-b-c"),
        ("../../etc/passwd", "etc-passwd"),
        ("...", ""),
        ("x" * 99, "x" * 60),
        ("ü$(id)", "id"),
    ],
)
def test_slugs_are_safe_names(raw: str, slug: str) -> None:
    assert text.slug(raw) == slug
