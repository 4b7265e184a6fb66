"""Compute the spread of a measurement's samples.

The readers of logs call :func:`spread_of`, and the judge calls :func:`spread_doubt`. Workloads report the
spread of their samples in the same form (``workloads/common.py``). The module does no I/O.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from rackproof.core.records import Spread

WIDEST_FACTOR = 2.0
"""Factor between the low and the high end of a speed's samples above which the speed is no single value.

Healthy GPUs in tests/corpus stay below 1.3. Between 1.3 and this factor, the speed is judged. A process that
takes half of a GPU's time gives about 1.8, and the lower speed fails against its reference.
"""
_FEWEST_FOR_TAILS = 5
"""Number of samples from which low and high leave out the ends. With fewer samples, low and high are the
smallest and the largest sample."""
_TAIL = 0.05
"""Share of the samples at each end that low and high leave out. At least one sample is left out."""


def spread_of(samples: Iterable[float]) -> Spread | None:
    """Return the spread of samples, or None if there are fewer than two samples or one is not finite."""
    ordered = sorted(samples)
    if len(ordered) < 2 or not all(map(math.isfinite, ordered)):
        return None
    outside = max(1, int(_TAIL * len(ordered))) if len(ordered) >= _FEWEST_FOR_TAILS else 0
    return Spread(
        count=len(ordered),
        low=ordered[outside],
        median=statistics.median(ordered),
        high=ordered[-1 - outside],
    )


def spread_doubt(spread: Spread | None, unit: str) -> str:
    """Return why the samples vary too much to state one speed, or "" if they do not.

    Args:
        spread: The spread of the speed's samples, or None if there is only one number.
        unit: The unit of the speed, for the text.
    """
    if spread is None or spread.factor <= WIDEST_FACTOR:
        return ""
    extent = f"{spread.low:.4g} to {spread.high:.4g} {unit}".strip()
    return (
        f"its {spread.count} samples range from {extent} (median {spread.median:.4g}), which is too wide for "
        "one value; find the process that uses the machine or slows it down, then measure again"
    )
