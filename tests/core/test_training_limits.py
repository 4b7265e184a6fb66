"""What no GPU reaches: bounds from a model's work and a data sheet's peak."""

from __future__ import annotations

import re

import pytest

from rackproof.analysis.mlperf.published import find_published
from rackproof.core.gpu_models import PHYSICS
from rackproof.core.training_limits import fastest_possible, read_limits


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA Blackwell Ultra GPU (GB300)", True),
        ("NVIDIA B200-SXM-180GB", True),
        ("NVIDIA H200-SXM5-141GB", True),
        ("AMD Instinct MI355X 288GB HBM3E", True),
        ("TPU-v4", False),
        ("NVIDIA H2000", False),
        ("", False),
    ],
)
def test_a_bound_is_that_of_the_named_gpu(name: str, known: bool) -> None:
    assert (fastest_possible("llama31_8b", name, 8) is not None) is known
    assert fastest_possible("a_new_one", name, 8) is None
    assert fastest_possible("llama31_8b", name, 0) is None


def test_a_bound_grows_with_the_gpus_and_falls_with_the_work() -> None:
    few, many = (fastest_possible("llama31_8b", "NVIDIA GB300", gpus) or 0 for gpus in (1, 72))
    assert many == pytest.approx(72 * few)
    assert few == pytest.approx(15_000 / 390)
    assert (fastest_possible("llama31_405b", "NVIDIA GB300", 1) or 0) < few / 40


def test_a_peak_is_no_less_than_that_of_the_measurements() -> None:
    for model, peak in read_limits()["gpu"].items():
        physics = PHYSICS.get(model.lower())
        assert physics is None or max(physics.tflops.values()) <= peak, model


def test_every_published_throughput_is_below_its_bound() -> None:
    judged = 0
    for result in find_published(kind="official"):
        bound = fastest_possible(result.benchmark, result.accelerator, result.accelerators)
        if bound and result.throughput and re.fullmatch(r"samples/s", result.throughput_unit or ""):
            judged += 1
            assert result.throughput < bound, (result.benchmark, result.accelerator)
    assert judged > 0
