"""Speeds that no GPU reaches in a benchmark of MLPerf Training: its work against the GPU's peak."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

from rackproof.core.gpu_models import is_model

TABLE = "training_limits.csv"


@lru_cache
def read_limits() -> Mapping[str, Mapping[str, float]]:
    """Return the table: TFLOP of a sample by benchmark, and dense peak TFLOP/s by GPU."""
    limits: dict[str, dict[str, float]] = {"benchmark": {}, "gpu": {}}
    for line in (files("rackproof.core") / TABLE).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            kind, name, value = (cell.strip() for cell in line.split("|")[:3])
            limits[kind][name] = float(value)
    return limits


def fastest_possible(benchmark: str, product_name: str, gpus: int) -> float | None:
    """Return the samples per second that so many GPUs cannot exceed; None where that is not known.

    Args:
        benchmark: As MLPerf's rules call it.
        product_name: The GPUs' name, as a system description or a driver has it.
        gpus: How many work together.
    """
    limits = read_limits()
    # A model's name is a word of the product name: "B200" is no word of "GB200".
    peaks = [peak for model, peak in limits["gpu"].items() if is_model(product_name, model)]
    work = limits["benchmark"].get(benchmark)
    return max(peaks) * gpus / work if peaks and work and gpus > 0 else None
