"""Simulate nights of a rack with faults, judge them as real ones, and count what is found.

    python tests/perf/simulate_nights.py [--trials 50] [--healthy 1000] [--seed 1]

Every trial is a rack of 18 nodes with 4 GPUs and 15 nights of numbers, with one or two faults on random nodes
and parts. A fault counts as found when the right node has a reason that names the right part. For pairs, it
counts when the bad node or link is blamed. A node without a fault that fails or is unproven is a false alarm,
and one that is degraded is a false warning. NOISE has the noise of a GPU from night to night, and between
GPUs of one model. The program prints a Markdown table. Its exit status is not 0 after a false alarm, or if a
fault that must be found was not found.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rackproof.analysis.anomaly import Night, judge_night
from rackproof.core.judging import SkuReference
from rackproof.core.records import Direction, Reference, Verdict
from rackproof.jobs.validate.fleet.pairing import (
    find_culprits,
    nights_needed,
    pairs_of_night,
    second_partners,
)
from rackproof.store.history.readings import Part, Readings
from rackproof.store.history.rows import Measured

NODES, GPUS, NIGHTS = 18, 4, 15
NOISE = {  # metric: typical value, unit, spread from night to night, spread between GPUs
    "gemm_best": (793.0, "TFLOP/s", 0.004, 0.006),
    "memory_copy": (4.30, "TB/s", 0.002, 0.003),
    "host_to_device": (54.0, "GB/s", 0.008, 0.005),
}
METRICS = tuple(NOISE)
PROBE_MINUTES, PAIR_MINUTES = 3.0, 1.5
CHANCE_FAILURE = 0.001
"""The share of runs of two sound nodes that fail by chance."""
NAMES = [f"n{number:02d}" for number in range(1, NODES + 1)]


def references() -> dict[str, list[SkuReference]]:
    """Return floors 7 % under the typical value, 9 % where the spread is large."""
    return {
        "sim": [
            SkuReference(
                metric=name,
                reference=Reference(
                    value=value, low=-0.09 if night > 0.005 else -0.07, high=0.25, unit=unit, source="sim"
                ),
            )
            for name, (value, unit, night, _) in NOISE.items()
        ]
    }


def table(dice: np.random.Generator) -> np.ndarray:
    """Return sound numbers: nodes, GPUs, metrics, nights (oldest first)."""
    typical, night, chip = (np.array([NOISE[name][at] for name in METRICS]) for at in (0, 2, 3))
    own = 1 + dice.normal(0, 1, (NODES, GPUS, len(METRICS))) * chip
    swing = 1 + dice.normal(0, 1, (NODES, GPUS, len(METRICS), NIGHTS)) * night[:, None]
    return (typical * own)[..., None] * swing


def readings(values: np.ndarray, absent: set[tuple[int, int, int]]) -> Readings:
    """Return the table as the history would. ``absent`` has what is missing in the last night.

    Each of its entries is the node, GPU and metric of a number.
    """
    parts = [Part("node", f"SN{n}", NAMES[n], "sim") for n in range(NODES)]
    parts += [Part("gpu", f"GPU-{n:08x}-{g:04x}", "sim", "", n, g) for n in range(NODES) for g in range(GPUS)]
    rows = [
        (m, NODES + n * GPUS + g, n, ago)
        for n in range(NODES)
        for g in range(GPUS)
        for m in range(len(METRICS))
        for ago in range(NIGHTS)
        if ago or (n, g, m) not in absent
    ]
    columns = np.array(rows, dtype=np.int32).T
    quantity, part, node, ago = columns
    value = values[node, (part - NODES) % GPUS, quantity, NIGHTS - 1 - ago]
    quantities = tuple(
        Measured("sim", {}, name, {"gpu": "*"}, NOISE[name][1], Direction.HIGHER) for name in METRICS
    )
    return Readings(quantities, tuple(parts), quantity, part, node, ago, value, ago < 0)


@dataclass
class Tally:
    """The outcome of the trials of one kind of fault."""

    trials: int = 0
    found: int = 0
    nights: int = 0
    alarms: int = 0
    warnings: int = 0
    healthy: int = 0
    minutes: float = 0.0

    def row(self, name: str) -> str:
        """Return a line of the table."""
        rate = "-" if not self.trials else f"{self.found}/{self.trials}"
        nights = "-" if not self.found else f"{self.nights / self.found:.1f}"
        per_night = self.minutes / max(self.healthy, 1) * NODES
        cells = (name, rate, nights, self.alarms, self.warnings, f"{self.healthy:,}", f"{per_night:.0f}")
        return f"| {' | '.join(map(str, cells))} |"


Fault = Callable[[np.ndarray, int, int, set[tuple[int, int, int]]], None]


def _scaled(metric: int, by: float) -> Fault:
    """Return a fault that changes a metric of a GPU by a share in the last night."""

    def fault(values: np.ndarray, node: int, gpu: int, _absent: set[tuple[int, int, int]]) -> None:
        values[node, gpu, metric, -1] *= 1 + by

    return fault


def _not_a_number(values: np.ndarray, node: int, gpu: int, _absent: set[tuple[int, int, int]]) -> None:
    values[node, gpu, 0, -1] = math.nan


def _absent(_values: np.ndarray, node: int, gpu: int, absent: set[tuple[int, int, int]]) -> None:
    absent |= {(node, gpu, metric) for metric in range(len(METRICS))}


# By name: the fault, and the share of trials in which it has to be found.
FAULTS: dict[str, tuple[Fault, float]] = {
    "GPU 12 % slow (gemm)": (_scaled(0, -0.12), 1.0),
    "GPU 12 % slow (memory)": (_scaled(1, -0.12), 1.0),
    "a number is NaN": (_not_a_number, 1.0),
    "a GPU measured nothing": (_absent, 1.0),
}


def nights_with(names: list[str], dice: np.random.Generator) -> Tally:
    """Return one trial: a night with these faults on random nodes and GPUs."""
    values, absent = table(dice), set()
    where = [(int(n), int(dice.integers(GPUS))) for n in dice.choice(NODES, len(names), replace=False)]
    for name, (node, gpu) in zip(names, where, strict=True):
        FAULTS[name][0](values, node, gpu, absent)
    night: Night = judge_night(readings(values, absent), references())
    tally = Tally(trials=1 if names else 0, nights=1, minutes=NODES * GPUS * PROBE_MINUTES)
    hit = 0
    for number, node in enumerate(night.nodes):
        mine = [gpu for bad, gpu in where if bad == number]
        if mine:
            uuid = f"GPU-{number:08x}-{mine[0]:04x}"
            named = any(uuid in one.part or uuid in one.text for one in node.reasons)
            hit += node.verdict is not Verdict.PASS and named
        else:
            tally.alarms += node.verdict in (Verdict.FAIL, Verdict.UNPROVEN)
            tally.warnings += node.verdict is Verdict.DEGRADED
    tally.healthy = NODES
    tally.found = int(bool(names) and hit == len(names))
    return tally


def pairs_with(bad: set[str], link: frozenset[str], dice: random.Random, most_nights: int) -> Tally:
    """Return one trial: nights of pairs until the bad nodes, or the bad link, are blamed."""
    tally = Tally(trials=int(bool(bad or link)))
    start = dice.randrange(1000)

    def passes(one: str, two: str) -> bool:
        tally.minutes += 2 * GPUS * PAIR_MINUTES
        return not bad & {one, two} and link != {one, two} and dice.random() >= CHANCE_FAILURE

    for night in range(1, most_nights + 1):
        results = {pair: passes(*pair) for pair in pairs_of_night(NAMES, start + night)}
        blamed, links, suspects = find_culprits(results)
        # A suspect is measured with a second partner, and if it is still unclear, with more.
        for _ in range(3):
            good = {node for pair, passed in results.items() if passed for node in pair}
            for one, two in second_partners(suspects, good, results).items():
                results[min(one, two), max(one, two)] = passes(one, two)
            blamed, links, suspects = find_culprits(results)
        tally.healthy += NODES
        tally.alarms += len(blamed - bad)
        tally.warnings += sum(1 for pair in links if frozenset(pair) != link)
        if (bad and blamed >= bad) or (link and tuple(sorted(link)) in links):
            tally.found, tally.nights = 1, night
            break
    return tally


def together(some: Iterator[Tally]) -> Tally:
    """Return the sum of trials."""
    whole = Tally()
    for one in some:
        for name in ("trials", "found", "alarms", "warnings", "healthy", "minutes"):
            setattr(whole, name, getattr(whole, name) + getattr(one, name))
        whole.nights += one.nights if one.found else 0
    return whole


def main() -> None:
    """Simulate and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--healthy", type=int, default=1000, help="node-nights without any fault, at least")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice, coin = np.random.default_rng(options.seed), random.Random(options.seed)
    trials, racks = range(options.trials), range(-(-options.healthy // NODES))
    print(
        "| fault | found | nights until found | false alarms | false warnings | node-nights "
        "| GPU-minutes a night |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    broken = []

    def show_tally(name: str, tally: Tally, must: float) -> None:
        print(tally.row(name), flush=True)
        if tally.alarms or tally.found < must * tally.trials:
            broken.append(name)

    show_tally("none", together(nights_with([], dice) for _ in racks), 0)
    for name, (_, must) in FAULTS.items():
        show_tally(name, together(nights_with([name], dice) for _ in trials), must)
    names = sorted(name for name, (_, must) in FAULTS.items() if must == 1.0)
    two = (nights_with(coin.sample(names, 2), dice) for _ in trials)
    show_tally("two of those that are always found", together(two), 1.0)
    show_tally("pairs: none", together(pairs_with(set(), frozenset(), coin, 1) for _ in racks), 0)
    one_bad = (pairs_with({coin.choice(NAMES)}, frozenset(), coin, 1) for _ in trials)
    show_tally("pairs: a node's network is slow", together(one_bad), 1.0)
    two_bad = (pairs_with(set(coin.sample(NAMES, 2)), frozenset(), coin, 1) for _ in trials)
    show_tally("pairs: two nodes' network is slow", together(two_bad), 1.0)
    needed = nights_needed(NODES)
    links = (pairs_with(set(), frozenset(coin.sample(NAMES, 2)), coin, needed) for _ in trials)
    show_tally(f"pairs: the link between two nodes ({needed} nights at most)", together(links), 1.0)
    if broken:
        raise SystemExit(f"false alarms, or not found often enough: {', '.join(broken)}")


if __name__ == "__main__":
    main()
