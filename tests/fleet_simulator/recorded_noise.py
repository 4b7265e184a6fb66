"""Relative deviations of real GPUs from their own level, read from ``recorded_noise.json``.

The file has recordings of real hosts, each with its source and command. A recording has for each metric and
GPU the level (the median of all values) and, session by session, every value's deviation from that level in
millionths ("ppm"). A session is a process of its own, and stands for a night: no longer series of the same
hosts was to be had, so that weather, seasons and the wear of weeks are not in it; a fleet adds those as
effects of its own.

Three things are read from it: how far a session's median is from a GPU's level (``session_residuals``: what
a probe that repeats and takes the median leaves), how far a single burst is (``single_residuals``: what a
probe that measures once leaves), and how much of it two GPUs of one host share (``shared_part``).

    python -m tests.fleet_simulator.recorded_noise "SOURCE" "COMMAND" FILE.jsonl... >>recording.json
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import correlation, median
from typing import Any

DATA = Path(__file__).with_name("recorded_noise.json")


@cache
def recordings() -> list[dict[str, Any]]:
    """Return the recordings of the data file."""
    content: dict[str, list[dict[str, Any]]] = json.loads(DATA.read_text())
    return content["recordings"]


def recorded_metrics() -> list[str]:
    """Return the names of the metrics that were recorded."""
    return sorted({metric for one in recordings() for metric in one["metrics"]})


def series(metric: str) -> list[list[list[list[float]]]]:
    """Return the relative deviations of a metric: ``[recording][gpu][session][repeat]``, 0.01 being 1 %."""
    return [
        [[[ppm / 1e6 for ppm in session] for session in gpu["ppm"]] for gpu in one["metrics"][metric]]
        for one in recordings()
        if metric in one["metrics"]
    ]


def single_residuals(metric: str) -> list[float]:
    """Return in ascending order how far each single burst was from its GPU's level."""
    return sorted(value for host in series(metric) for gpu in host for session in gpu for value in session)


def session_residuals(metric: str) -> list[float]:
    """Return in ascending order how far each session's median was from its GPU's level.

    A recording of one session has no second one to differ from, and is left out.
    """
    return sorted(
        median(session) for host in series(metric) for gpu in host if len(gpu) > 1 for session in gpu
    )


def shared_part(metric: str) -> float:
    """Return the correlation of two GPUs' medians in the same session of one host, at least 0."""
    pairs = [
        (median(first), median(second))
        for host in series(metric)
        if len(host) > 1
        for first, second in zip(host[0], host[1], strict=False)
    ]
    return max(0.0, correlation(*zip(*pairs, strict=True)))


def gpu_levels(metric: str) -> list[float]:
    """Return the levels of the GPUs recorded, in the metric's unit: how far good GPUs of one model differ."""
    return [
        gpu["level"]
        for one in recordings()
        for gpu in one["metrics"].get(metric, [])
        if gpu["level"] is not None
    ]


def as_recording(source: str, command: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a host's lines of ``measure_noise.py`` come to, as the data file has it."""
    values: dict[str, dict[int, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        if "metric" in row:
            values[row["metric"]][row["gpu"]][row["session"]].append(row["value"])
    return {
        "source": source,
        "command": command,
        "metrics": {
            metric: [_of_gpu([gpus[gpu][session] for session in sorted(gpus[gpu])]) for gpu in sorted(gpus)]
            for metric, gpus in values.items()
        },
    }


def _of_gpu(sessions: list[list[float]]) -> dict[str, Any]:
    level = median(value for session in sessions for value in session)
    ppm = [[round((value / level - 1) * 1e6) for value in session] for session in sessions]
    return {"level": round(level, 3), "ppm": ppm}


if __name__ == "__main__":
    lines = [line for name in sys.argv[3:] for line in Path(name).read_text().splitlines()]
    print(json.dumps(as_recording(sys.argv[1], sys.argv[2], [json.loads(line) for line in lines])))
