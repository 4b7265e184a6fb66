"""Compare two runs by measurement, or several systems by benchmark over repeats.

A comparison gives no verdict.
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
