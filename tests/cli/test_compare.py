"""Test rackproof.analysis.compare, which compares two runs measurement by measurement.

``rackproof compare`` prints the result: ratio, difference, and which run is better. The tests show that only
measurements of the same name, labels and unit are compared, and that other software or hardware is named.
"""

from __future__ import annotations

import math

import pytest

from rackproof.analysis.compare import compare
from rackproof.core.records import Direction, Measurement, Run
from rackproof.report.comparison import comparison_text
from tests.report import example_runs

HIGHER, LOWER = Direction.HIGHER, Direction.LOWER


def run(*measurements: Measurement, **more: object) -> Run:
    """Return a run with measurements."""
    return Run.model_validate({"run_id": "r", "benchmark": "b", "measurements": measurements} | more)


def measured(
    value: float, direction: Direction | None = None, unit: str = "u", name: str = "m", **labels: str
) -> Measurement:
    """Return a measurement. ``direction`` is the better one."""
    return Measurement(name=name, value=value, unit=unit, direction=direction, labels=labels)


@pytest.mark.parametrize(
    ("first", "second", "direction", "ratio", "difference", "better"),
    [
        (100.0, 110.0, HIGHER, 1.1, 0.1, "second"),
        (100.0, 110.0, LOWER, 1.1, 0.1, "first"),
        (100.0, 90.0, HIGHER, 0.9, -0.1, "first"),
        (100.0, 90.0, LOWER, 0.9, -0.1, "second"),
        (100.0, 100.0, HIGHER, 1.0, 0.0, "same"),
        (100.0, 110.0, None, 1.1, 0.1, "unknown"),
        (0.0, 5.0, LOWER, None, None, "first"),
        (-2.0, -1.0, HIGHER, 0.5, 0.5, "second"),
        (math.nan, 1.0, HIGHER, None, None, "unknown"),
        (1.0, math.inf, HIGHER, None, None, "unknown"),
    ],
)
def test_ratio_difference_and_which_is_better(
    first: float,
    second: float,
    direction: Direction | None,
    ratio: float | None,
    difference: float | None,
    better: str,
) -> None:
    (one,) = compare(run(measured(first, direction)), run(measured(second, direction))).measurements
    assert one.ratio == (None if ratio is None else pytest.approx(ratio))
    assert one.difference == (None if difference is None else pytest.approx(difference))
    assert one.better == better


def test_labels_distinguish_measurements() -> None:
    first = run(measured(1, size_bytes="8"), measured(2, size_bytes="16"))
    second = run(measured(20, size_bytes="16"), measured(10, size_bytes="8"))
    assert [(one.first, one.second) for one in compare(first, second).measurements] == [(1, 10), (2, 20)]


def test_gpus_of_two_nodes_are_compared_by_index() -> None:
    first = run(
        measured(1, gpu="GPU-0000aaaa-1", gpu_index="0"), measured(2, gpu="GPU-0000aaaa-2", gpu_index="1")
    )
    second = run(
        measured(4, gpu="GPU-0000bbbb-2", gpu_index="1"), measured(3, gpu="GPU-0000bbbb-1", gpu_index="0")
    )
    compared = compare(first, second)
    assert [(one.first, one.second, one.labels) for one in compared.measurements] == [
        (1, 3, {"gpu_index": "0"}),
        (2, 4, {"gpu_index": "1"}),
    ]
    assert not compared.unmatched


def test_measurements_that_cannot_be_matched_are_not_compared() -> None:
    first = run(measured(1, gpu="GPU-0000aaaa-1"), measured(2, gpu="GPU-0000aaaa-2"))
    second = run(measured(3, gpu="GPU-0000bbbb-1"), measured(4, gpu="GPU-0000bbbb-2"))
    compared = compare(first, second)
    assert not compared.measurements
    assert [(one.value, one.only_in) for one in compared.unmatched] == [
        (1, "first"),
        (2, "first"),
        (3, "second"),
        (4, "second"),
    ]


def test_other_units_are_refused_not_converted() -> None:
    compared = compare(run(measured(1000, unit="MB/s")), run(measured(1, unit="GB/s")))
    assert not compared.measurements
    assert [(one.first_unit, one.second_unit) for one in compared.refused] == [("MB/s", "GB/s")]
    assert "Not compared: the units differ" in comparison_text(compared)


def test_differences_of_software_and_parameters_are_named() -> None:
    first = example_runs.healthy()
    node = first.nodes[0].model_copy(update={"software": {**first.nodes[0].software, "driver": "575.57.08"}})
    second = example_runs.healthy(
        nodes=(node,), parameters={"network": "lenet", "batch_size": 256, "gpus": 1}, seeds=(), container="x"
    )
    found = {one.what: (one.first, one.second) for one in compare(first, second).differences}
    assert found == {
        "container": ("", "x"),
        "seeds": ("1234", ""),
        "parameter batch_size": ("128", "256"),
        "node software driver": ("580.95.05", "575.57.08"),
    }


def test_the_same_run_differs_in_nothing() -> None:
    compared = compare(example_runs.rack(), example_runs.rack())
    assert not compared.differences
    assert not compared.unmatched
    assert {one.better for one in compared.measurements} == {"same"}


def test_nothing_in_common_is_reported() -> None:
    text = comparison_text(compare(run(measured(1, name="a")), run(measured(1, name="b"))))
    assert "no measurement in common" in text
    assert "Only one run has" in text
