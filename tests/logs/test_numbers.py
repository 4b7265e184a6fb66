"""Test that only decimal numbers of a log are read as numbers (:func:`rackproof.logs._reading.number`).

Python's ``float`` also accepts ``8_00`` and digits of other scripts. In a log, such a text is damage. Neither
the parsers nor job bench may take it for a measurement.
"""

from __future__ import annotations

import pytest

from rackproof.jobs.bench.tasks import _number_in_text
from rackproof.logs._reading import number


@pytest.mark.parametrize("text", ["8_00", "1_0.5", "٨٠٠", "８００", "1e1_0", "0x10", "8 00", "", "_8"])  # noqa: RUF001
def test_a_text_that_is_no_plain_decimal_number_gives_none(text: str) -> None:
    assert number(text) is None
    assert _number_in_text(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("800", 800), (" 8.5 ", 8.5), ("-1e-3", -0.001), (".5", 0.5), ("5.", 5), ("+2E3", 2000)],
)
def test_decimal_numbers_are_read(text: str, value: float) -> None:
    assert number(text) == value
