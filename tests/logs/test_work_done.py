"""Tools that end well and did no work, or state a speed that was not theirs: none of them passes."""

from __future__ import annotations

import io

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from tests.logs.log_samples import TF_CNN

PASS, UNPROVEN = Verdict.PASS, Verdict.UNPROVEN


def read(data: str | bytes) -> ParsedLog:
    return logs.parse(io.BytesIO(data if isinstance(data, bytes) else data.encode()))


def codes(parsed: ParsedLog) -> set[str]:
    return {one.code for one in parsed.findings if one.verdict}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ((), PASS),
        ((("326.58", "97974.00"),), UNPROVEN),  # 300 times the steps
        ((("326.58", "653.16"),), UNPROVEN),  # of two GPUs, and one has run
        ((("326.58", "410.00"),), UNPROVEN),
        ((("326.58", "100.00"),), UNPROVEN),
        ((("326.58", "1.09"),), UNPROVEN),
        ((("326.58", "300.00"),), PASS),  # an evaluation between the steps
        # Everything is 300 times as fast, and the times of the steps are left as they were.
        ((("326.58", "97974.00"), ("325.8 ", "97740.0 "), ("326.7 ", "98010.0 ")), UNPROVEN),
        ((("256 global", "2560 global"), ("256 per", "2560 per")), UNPROVEN),
        # Four workers with one GPU each, as issue 232 of tensorflow/benchmarks has it: the total is of all.
        ((("256 global", "1024 global"), ("256 per", "256.0 per"), ("326.58", "1301.00")), PASS),
        ((("256 global", "1024 global"), ("256 per", "256.0 per"), ("326.58", "3901.00")), UNPROVEN),
    ],
)
def test_a_total_is_what_its_steps_and_their_clock_show(
    changes: tuple[tuple[str, str], ...], verdict: Verdict
) -> None:
    text = TF_CNN.decode()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    parsed = read(text)
    assert parsed.verdict is verdict, codes(parsed)
    assert codes(parsed) == (set() if verdict is PASS else {"total_contradicts_steps"})
