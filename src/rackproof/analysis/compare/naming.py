"""Map the different names of a system, benchmark or metric in logs and publications to one name.

Comparisons, scaling studies and job bench find counterparts by this name. :func:`published_system` maps the
name of a system, and :func:`canonical_benchmark` the name of a benchmark. :data:`THROUGHPUT` has the names of
one metric. The published results are of round 0.6 of MLPerf Training (2019).
"""

from __future__ import annotations

import re

from rackproof.analysis.mlperf.published import find_published

THROUGHPUT = (
    "images_per_second",
    "samples_per_second",
    "iterations_per_second",
    "tokens_per_second",
    "batches_per_second",
    "epochs_per_minute",
)
"""Metrics that count as a training's throughput. The first in this list that a log states is used."""

# Folders and logs of round 0.6 name the same benchmarks differently. The values are the names in logs.
_SAME_BENCHMARK = {
    "single_stage_detector": "ssd",
    "object_detection": "maskrcnn",
    "image_classification": "resnet",
    "rnn_translator": "gnmt",
    "translation": "transformer",
}
_IS_SYSTEM = r"(?!\d|h(?!ost))"
"""Pattern of what follows a system's name, unless it makes the name of another machine (DGX100, DGX-2H)."""
PUBLISHED = "published:"
"""Prefix of a published system's name: ``published:HyperPlane``, ``published:5.1/SYSTEM``."""


def published_system(name: str) -> str | None:
    """Return the published system of round 0.6 that a name means, or None.

    The name of a configuration means the published row that used it. ``LambdaHyperplaneBasic`` is the
    tuned HyperPlane, and ``DGX1`` the DGX-1. Other names mean the longest system name that they contain.
    ``DGX100``, ``DGX-2H`` and ``4xLambdaHyperplaneBasic`` are other machines.
    """
    plain = plain_name(name)
    systems = _published_names()
    # A name such as 4xSYSTEM refers to that row or to none, never to the single system.
    if re.match(r"\d+x", plain):
        return systems.get(plain)
    return next(
        (system for part, system in systems.items() if re.search(re.escape(part) + _IS_SYSTEM, plain)), None
    )


def _published_names() -> dict[str, str]:
    """Return the published systems of round 0.6 by their plain names and configurations, longest first."""
    rows = find_published(round="0.6")
    named = {plain_name(row.system): row.system for row in rows}
    named |= {plain_name(row.configuration): row.system for row in rows if row.configuration}
    return dict(sorted(named.items(), key=lambda entry: -len(entry[0])))


def plain_name(name: str) -> str:
    """Return a name in lower case without punctuation: ``DGX-1`` and ``dgx1`` name one system."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def canonical_benchmark(name: str) -> str:
    """Return the name of a benchmark in its logs: ``transformer`` for ``translation-0.6``."""
    name = name.removesuffix("-0.6")
    return _SAME_BENCHMARK.get(name, name)
