"""Comparing: two runs measurement by measurement, or systems benchmark by benchmark over repeats.

Comparing decides nothing: verdicts come from judging.
"""

from rackproof.analysis.compare.runs import (
    ComparedMeasurement,
    Comparison,
    Difference,
    Refused,
    Side,
    Unmatched,
    compare,
)

__all__ = [
    "ComparedMeasurement",
    "Comparison",
    "Difference",
    "Refused",
    "Side",
    "Unmatched",
    "compare",
]
