"""Speeds that no GPU reaches in a benchmark of MLPerf Training: its work against the GPU's peak."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files

from rackproof.core.gpu_models import is_model

TABLE = "training_limits.csv"
MOST_OF_NODE = 72
"""GPUs of what a log calls a node: a whole NVL72 at most; no other has more than 16."""


@lru_cache
def read_limits() -> Mapping[str, Mapping[str, float]]:
    """Return the table: TFLOP of a sample by benchmark, and dense peak TFLOP/s by GPU."""
    limits: dict[str, dict[str, float]] = {"benchmark": {}, "gpu": {}}
    for line in (files("rackproof.core") / TABLE).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            kind, name, value = (cell.strip() for cell in line.split("|")[:3])
            limits[kind][name] = float(value)
    return limits


def lacks_gpu(benchmark: str, product_name: str) -> bool:
    """Return whether a benchmark's speed has no bound only because this GPU is not in the table."""
    return benchmark in read_limits()["benchmark"] and not _peaks(product_name)


def _peaks(product_name: str) -> list[float]:
    # A model's name is a word of the product name: "B200" is not a word of "GB200".
    return [peak for model, peak in read_limits()["gpu"].items() if is_model(product_name, model)]


def fastest_possible(benchmark: str, product_name: str, gpus: int) -> float | None:
    """Return the samples per second that a number of GPUs cannot exceed, or None if that is not known.

    Args:
        benchmark: As MLPerf's rules call it.
        product_name: The GPUs' name, as a system description or a driver has it.
        gpus: The number that work together.
    """
    work, peaks = read_limits()["benchmark"].get(benchmark), _peaks(product_name)
    return max(peaks) * gpus / work if peaks and work and gpus > 0 else None


def gpus_of_platform(platform: str) -> tuple[str, int] | None:
    """Return model and number of the GPUs that a log's ``submission_platform`` names, None without any.

    It is ``NODESxSYSTEM``. A system's name may hold how many GPUs a node has (``2xXE9680Lx8B200-SXM-180GB``);
    where it does not (``18xNVIDIA GB200``), the most that a node can have are assumed.
    """
    nodes = re.match(r"([1-9][0-9]{0,4})x(?=.*[A-Za-z])", platform)
    models = "|".join(map(re.escape, read_limits()["gpu"]))
    found = re.search(rf"(?<![A-WYZa-wyz0-9])(?:([1-9][0-9]?)x?)?({models})(?![A-Za-z0-9])", platform)
    if nodes is None or found is None:
        return None
    # The number before a model at the beginning is that of the nodes: 8xB200.
    stated = found[1] is not None and found.start() >= nodes.end()
    return found[2], int(nodes[1]) * (int(found[1]) if stated else MOST_OF_NODE)


def impossible_speeds(
    benchmark: str, gpus: tuple[str, int] | None, speeds: Iterable[tuple[str, float | None]]
) -> Iterator[str]:
    """Yield in words each speed that GPUs cannot have.

    Args:
        benchmark: As MLPerf's rules call it.
        gpus: Name and number of the GPUs, or None if they are not known.
        speeds: The name of the speed (``states``), and the samples per second, or None if they are not known.
    """
    bound = fastest_possible(benchmark, *gpus) if gpus is not None else None
    for what, speed in speeds:
        if bound is not None and gpus is not None and speed and speed >= bound:
            yield (
                f"{what} {speed:.4g} samples/s, and {gpus[1]} of {gpus[0][:80]} reach less than {bound:.4g} "
                f"samples/s of {benchmark} at their peak"
            )
