"""Speeds that no GPU reaches in a benchmark of MLPerf Training: by its peak, and by published results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files

from rackproof.core.gpu_models import is_model

TABLE, SPEEDS = "training_limits.csv", "published_speeds.csv"
FASTER_THAN_PUBLISHED_GPUS = 1.8
"""A run may be so much faster than the fastest published result of its GPUs: a new round was 1.45 times."""
MOST_OF_NODE = 72
"""GPUs of what a log calls a node: a whole NVL72 at most; no other has more than 16."""


@lru_cache
def read_limits() -> Mapping[str, Mapping[str, float]]:
    """Return the table: TFLOP of a sample by benchmark, and dense peak TFLOP/s by GPU."""
    limits: dict[str, dict[str, float]] = {"benchmark": {}, "gpu": {}}
    for kind, name, value, *_ in _read_cells(TABLE):
        limits[kind][name] = float(value)
    return limits


@lru_cache
def read_speeds() -> Mapping[tuple[str, str], Mapping[int, float]]:
    """Return the fastest published samples per second of a GPU, by benchmark and GPU, then their number."""
    speeds: dict[tuple[str, str], Mapping[int, float]] = {}
    for benchmark, gpu, cell, *_ in _read_cells(SPEEDS):
        pairs = (pair.split(":") for pair in cell.split())
        speeds[benchmark, gpu] = {int(gpus): float(speed) for gpus, speed in pairs}
    return speeds


def _read_cells(table: str) -> Iterator[list[str]]:
    for line in (files("rackproof.core") / table).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield [cell.strip() for cell in line.split("|")]


def lacks_gpu(benchmark: str, product_name: str) -> bool:
    """Return whether a benchmark's speed has no bound only because this GPU is not in the table."""
    return benchmark in read_limits()["benchmark"] and not _peaks(product_name)


def _peaks(product_name: str) -> list[float]:
    # A model's name is a word of the product name: "B200" is not a word of "GB200".
    return [peak for model, peak in read_limits()["gpu"].items() if is_model(product_name, model)]


@lru_cache
def fastest_possible(benchmark: str, product_name: str, gpus: int) -> float | None:
    """Return the samples per second that a number of GPUs cannot exceed, or None if that is not known.

    Args:
        benchmark: As MLPerf's rules call it.
        product_name: The GPUs' name, as a system description or a driver has it.
        gpus: The number that work together.
    """
    work, peaks = read_limits()["benchmark"].get(benchmark), _peaks(product_name)
    return max(peaks) * gpus / work if peaks and work and gpus > 0 else None


@lru_cache
def fastest_published(benchmark: str, product_name: str, gpus: int) -> float | None:
    """Return the samples per second of the fastest published result of so many GPUs, None without any.

    Args: as of :func:`fastest_possible`.
    """
    for (name, model), table in read_speeds().items():
        # Of fewer GPUs each is faster: far below the fewest of any result nothing is known.
        if name == benchmark and is_model(product_name, model) and 2 * gpus >= min(table):
            return table[max((number for number in table if number <= gpus), default=min(table))] * gpus
    return None


@lru_cache
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
        gpus: Name and number of the GPUs, or None if they are unknown.
        speeds: The kind of speed (``states``, or ``trained`` for a whole run), and the samples per second or
            None if they are unknown.
    """
    if gpus is None:
        return
    bound, published = fastest_possible(benchmark, *gpus), fastest_published(benchmark, *gpus)
    for what, speed in speeds:
        if bound is not None and speed and speed >= bound:
            yield (
                f"{what} {speed:.4g} samples/s, and {gpus[1]} of {gpus[0][:80]} reach less than {bound:.4g} "
                f"samples/s of {benchmark} at their peak"
            )
        elif published and what == "trained" and speed and speed > FASTER_THAN_PUBLISHED_GPUS * published:
            yield (
                f"trained {speed:.4g} samples/s, {speed / published:.3g} times what {gpus[1]} of "
                f"{gpus[0][:80]} reach in the fastest published result of {benchmark}"
            )
