"""Names of systems, benchmarks and metrics: one name for what logs and publications call differently."""

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
"""What a training may report as its throughput; a run's is the first of these that it has."""

# The folders of round 0.6 are called otherwise than what their logs say of themselves.
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

    ``LambdaHyperplaneBasic`` is the published HyperPlane and ``DGX1`` the DGX-1, but ``DGX100``,
    ``LambdaHyperplane16`` and ``2xLambdaHyperplaneBasic`` are other machines.
    """
    plain = plain_name(name)
    if re.match(r"\d+x", plain):
        return None
    for known in dict.fromkeys(one.system for one in find_published(round="0.6")):
        if re.search(re.escape(plain_name(known)) + r"(?!\d)", plain):
            return known
    return None


def plain_name(name: str) -> str:
    """Return a name without case and punctuation: ``DGX-1`` and ``dgx1`` are one system."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def canonical_benchmark(name: str) -> str:
    """Return a benchmark's name as its logs state it: ``translation-0.6`` is ``transformer``."""
    name = name.removesuffix("-0.6")
    return _SAME_BENCHMARK.get(name, name)
