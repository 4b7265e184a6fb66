"""Try mutations in batches on all processors, and count them.

A mutation is one damage to an input. It has its own random numbers, from the seed and its number, so that a
failure can be repeated. The programs monotonicity.py and certificates.py use this module.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

# How many mutations of each kind were tried, and the failures in words.
Tried = tuple[Counter[str], list[str]]


def read_options(about: str | None) -> argparse.Namespace:
    """Return the options of the command line: mutations, seed, number of the first one, and processes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    return parser.parse_args()


def try_in_batches(
    try_some: Callable[[int, int, int], Tried], options: argparse.Namespace, size: int
) -> Tried:
    """Return how many mutations of each kind were tried, and the failures in words.

    Args:
        try_some: A function that tries mutations, with the seed, the number of the first one, and how many.
        options: The options of :func:`read_options`.
        size: The number of mutations in a batch.
    """
    last = options.start + options.mutations
    starts = range(options.start, last, size)
    counts = [min(size, last - first) for first in starts]
    kinds: Counter[str] = Counter()
    failures: list[str] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for some, bad in pool.map(try_some, [options.seed] * len(starts), starts, counts):
            kinds += some
            failures += bad
    return kinds, failures
