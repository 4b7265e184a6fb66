"""Read how far real GPUs deviate from their own usual speed, from ``recorded_noise.json``.

The file has recordings of real hosts, each with its source and command. A recording has for each metric and
GPU the level (the median of all values, or null if the unit is unknown), and for each session the deviation
of every value from that level in millionths ("ppm"). Each session was a separate process, and is used as a
night. No longer series of the same hosts was available, so the recordings do not show changes over weeks. The
description of a fleet adds these as drift.

simulation.py uses three functions. :func:`session_residuals` returns the distances of the sessions' medians
from a GPU's level, which are the noise of a probe that repeats and takes the median. :func:`single_residuals`
returns those of single bursts, the noise of a probe that measures once. :func:`shared_part` returns how much
of the noise two GPUs of one host share. This command prints a recording of the lines of ``measure_noise.py``:

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
    """Return the relative distance of each single burst from its GPU's level, in ascending order."""
    return sorted(value for host in series(metric) for gpu in host for session in gpu for value in session)


def session_residuals(metric: str) -> list[float]:
    """Return the relative distance of each session's median from its GPU's level, in ascending order.

    A GPU with only one session is left out, because its level is the median of that session.
    """
    return sorted(
        median(session) for host in series(metric) for gpu in host if len(gpu) > 1 for session in gpu
    )


def shared_part(metric: str) -> float:
    """Return the correlation of the medians of a host's first two GPUs in the same session, at least 0."""
    pairs = [
        (median(first), median(second))
        for host in series(metric)
        if len(host) > 1
        for first, second in zip(host[0], host[1], strict=False)
    ]
    return max(0.0, correlation(*zip(*pairs, strict=True)))


def gpu_levels(metric: str) -> list[float]:
    """Return the known levels of the GPUs in the metric's unit. They show how far good GPUs differ."""
    return [
        gpu["level"]
        for one in recordings()
        for gpu in one["metrics"].get(metric, [])
        if gpu["level"] is not None
    ]


def as_recording(source: str, command: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a recording in the form of the data file, from the lines of ``measure_noise.py`` on a host."""
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
    """Return the level of a GPU, and the deviations of each session in ppm."""
    level = median(value for session in sessions for value in session)
    ppm = [[round((value / level - 1) * 1e6) for value in session] for session in sessions]
    return {"level": round(level, 3), "ppm": ppm}


if __name__ == "__main__":
    lines = [line for name in sys.argv[3:] for line in Path(name).read_text().splitlines()]
    print(json.dumps(as_recording(sys.argv[1], sys.argv[2], [json.loads(line) for line in lines])))
