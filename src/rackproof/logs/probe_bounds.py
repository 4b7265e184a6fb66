"""Bound the measurements that Rackproof's own probes state in their logs. No I/O.

A log does not state the model of its GPUs, so the bounds are those of all models together. They find a number
of another unit or with a slipped prefix, which a reference of the node's SKU cannot find where there is none.
The parser of MLPerf's notation calls :func:`probe_problem`.
"""

from __future__ import annotations

import re

from rackproof.core.gpu_models import PHYSICS
from rackproof.core.records import Measurement

PROBE = "probe_"
"""Beginning of the names of the probes' benchmarks."""
_FASTER = 10
"""Ratio of a bound to the peak of the fastest known model. Later models are faster, and a slipped prefix is a
factor of 1000."""
_LINKS = _FASTER * max(physics.nvlink for physics in PHYSICS.values())
_RULES: tuple[tuple[re.Pattern[str], str, float], ...] = (
    (
        re.compile(r"memory_(?:copy|triad)"),
        "TB/s",
        _FASTER * max(physics.memory for physics in PHYSICS.values()),
    ),
    (
        re.compile(r"host_to_device|device_to_host"),
        "GB/s",
        _FASTER * max(physics.host for physics in PHYSICS.values()),
    ),
    (re.compile(r"peer_copy\w*|\w+_(?:busbw|algbw)\w*"), "GB/s", _LINKS),
    (
        re.compile(r"gemm\w*|model_flops"),
        "TFLOP/s",
        _FASTER * max(max(physics.tflops.values()) for physics in PHYSICS.values()),
    ),
    (re.compile(r"wrong_values|unstable_values|odd_products"), "1", float("inf")),
)
"""The names of measurements, with their unit and largest possible value."""


def probe_problem(measurement: Measurement) -> str:
    """Return why a probe cannot have measured a number, or "" if it can or the name is unknown."""
    for names, unit, most in _RULES:
        if names.fullmatch(measurement.name):
            stated = f"{measurement.name} is {measurement.value:g} {measurement.unit}"
            if measurement.unit != unit:
                return f"{stated}, but probes measure it in {unit}"
            if not 0 <= measurement.value <= most:
                return f"{stated}, but only 0 to {most:g} is possible"
    return ""
