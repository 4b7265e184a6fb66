"""Test which of several measurements with one name represents a run in reports and comparisons.

The slowest device or pair counts, so that one slow part is not hidden by the others.
"""

from __future__ import annotations

import pytest

from rackproof.analysis.representative import pick_representative
from rackproof.core.records import Direction, Measurement


def measured(value: float, direction: Direction = Direction.HIGHER, **labels: str) -> Measurement:
    """Return a measurement with labels."""
    return Measurement(name="speed", value=value, unit="GB/s", direction=direction, labels=labels)


@pytest.mark.parametrize(
    "labels",
    [
        [{"gpu": "0"}, {"gpu": "1"}, {"gpu": "2"}],
        [{"gpu": "GPU-a", "index": "0"}, {"gpu": "GPU-b", "index": "1"}, {"gpu": "GPU-c", "index": "2"}],
        [{"from": "0", "to": "1"}, {"from": "1", "to": "0"}, {"from": "1", "to": "2"}],
        [{"row": "0", "column": "1"}, {"row": "1", "column": "0"}, {"row": "1", "column": "2"}],
        [{"pair": "0-1"}, {"pair": "0-2"}, {"pair": "1-2"}],
    ],
)
@pytest.mark.parametrize(("direction", "worst"), [(Direction.HIGHER, 5.0), (Direction.LOWER, 9.0)])
def test_the_worst_device_or_pair_represents_all(
    labels: list[dict[str, str]], direction: Direction, worst: float
) -> None:
    group = [measured(value, direction, **one) for value, one in zip((9.0, 5.0, 7.0), labels, strict=True)]
    assert pick_representative(group).value == worst


def test_the_worst_device_of_the_fastest_number_format_at_the_largest_size_counts() -> None:
    group = [
        measured(99.0, size_bytes="8", dtype="fp8", gpu="0"),
        measured(30.0, size_bytes="1024", dtype="fp8", gpu="0"),
        measured(20.0, size_bytes="1024", dtype="fp8", gpu="1"),
        measured(10.0, size_bytes="1024", dtype="fp32", gpu="0"),
    ]
    assert pick_representative(group) is group[2]
    broken = measured(float("nan"), size_bytes="1024", dtype="fp32", gpu="1")
    assert pick_representative([*group, broken]) is broken
