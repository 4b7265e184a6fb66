"""Give systems, benchmarks and metrics one name each: logs and publications name them differently."""

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
"""Metrics that a training may report as its throughput; a run's is the first of these that it has."""

# The folders of round 0.6 have other names than the systems in their logs.
_SAME_BENCHMARK = {
    "single_stage_detector": "ssd",
    "object_detection": "maskrcnn",
    "image_classification": "resnet",
    "rnn_translator": "gnmt",
    "translation": "transformer",
}
PUBLISHED = "published:"
"""Begins the name of a published system: ``published:HyperPlane``, ``published:5.1/SYSTEM``."""


def published_system(name: str) -> str | None:
    """Return the published system of round 0.6 that a system's name means, if there is one.

    A run's configuration means the row that was made with it: ``LambdaHyperplaneBasic`` is the tuned
    HyperPlane, ``DGX1`` the DGX-1. Other names mean the system that they hold, the longest first;
    ``DGX100`` and ``4xLambdaHyperplaneBasic`` are other machines.
    """
    plain = plain_name(name)
    known = _published_names()
    # So many systems together are that row or none, never one of its parts.
    if re.match(r"\d+x", plain):
        return known.get(plain)
    return next(
        (system for part, system in known.items() if re.search(re.escape(part) + r"(?!\d)", plain)), None
    )


def _published_names() -> dict[str, str]:
    """Return the published systems of round 0.6 by plain configuration and plain name, the longest first."""
    rows = find_published(round="0.6")
    named = {plain_name(one.system): one.system for one in rows}
    named |= {plain_name(one.configuration): one.system for one in rows if one.configuration}
    return dict(sorted(named.items(), key=lambda entry: -len(entry[0])))


def plain_name(name: str) -> str:
    """Return a name without case and punctuation: ``DGX-1`` and ``dgx1`` are one system."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def canonical_benchmark(name: str) -> str:
    """Return a benchmark's name as its logs state it: ``translation-0.6`` is ``transformer``."""
    name = name.removesuffix("-0.6")
    return _SAME_BENCHMARK.get(name, name)
