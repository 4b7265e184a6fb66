"""Compare runs by measurement, or systems by benchmark over repeats, for ``rackproof compare``.

A comparison of runs gives no verdict. A comparison of systems may judge a system against the system's
published results.
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
