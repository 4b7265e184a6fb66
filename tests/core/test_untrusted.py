"""Test the readers of raw answers of nodes and files (core/untrusted.py).

A node may answer with any JSON, by accident or on purpose. If a value has the wrong type, a reader returns an
empty value or None, and never raises an error.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackproof.core import untrusted

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(ANYTHING, st.text())
def test_no_answer_makes_a_reader_fail(value: Any, key: str) -> None:
    assert isinstance(untrusted.text_at(value, key), str)
    assert isinstance(untrusted.list_at(value, key), list)
    assert isinstance(untrusted.stdout_of(value, key), str)
    untrusted.mapping_at(untrusted.mapping_at(value, key), key)
    assert untrusted.as_float(value) is None or isinstance(untrusted.as_float(value), float)
    assert untrusted.as_int(value) is None or type(value) is int


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        ({"status": "ok", "stdout": "580.95"}, "580.95"),
        ({"status": "failed", "stdout": "580.95"}, ""),
        ({"status": "ok", "stdout": None}, ""),
        ("580.95", ""),
        (None, ""),
    ],
)
def test_only_a_tool_that_ended_well_has_output(answer: Any, output: str) -> None:
    assert untrusted.stdout_of({"nvidia_smi": answer}, "nvidia_smi") == output


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("700.00 W", 700.0),
        (" -3", -3.0),
        ("N/A", None),
        ("", None),
        ("1e9", None),
        ("1" * 16, None),
        ("9" * 15, 1e15 - 1),
        ("0." + "1" * 10, 0.111111111),
        ("0.3333333333333333", 0.333333333),
        ("1.1234567890 W", 1.123456789),
        ("12345.67 9876", 12345.67),
        ("1.1234567890e5", None),
        ("1.123456789e5", None),
        ("0." + "1" * 100_000, 0.111111111),
    ],
)
def test_the_number_at_the_beginning_of_a_text_is_read(text: str, number: float | None) -> None:
    assert untrusted.leading_number(text) == number


@pytest.mark.parametrize("value", [True, False, "1", None, [1]])
def test_booleans_and_texts_are_not_numbers(value: object) -> None:
    assert untrusted.as_float(value) is None
    assert untrusted.as_int(value) is None
