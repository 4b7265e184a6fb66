"""Test the verdicts of nights on racks of four nodes whose nodes have different firmware.

Racks of servers with eight GPUs are that small. A rack's nodes with the same firmware are then too few for a
median of their own. These tests simulate such a fleet, and check that the bad night of a whole rack fails
none of its nodes, and that a bad node is found (:mod:`rackproof.analysis.anomaly`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping

import pytest

from tests.fleet_simulator.simulation import Measurement
from tests.perf.judge_fleets import nights

NODES, PER_RACK, GPUS, NIGHTS = 64, 4, 4, 8
FIRMWARES = {"mixed": 3, "alike": 1}
"""The number of firmware versions in a rack."""


class Night(list[Measurement]):
    """A night's numbers. No node is measured again."""

    def retest(self, nodes: Collection[str]) -> list[Measurement]:
        raise AssertionError(nodes)


def measured(night: int, firmwares: int, slow: Mapping[int, float]) -> Iterator[Measurement]:
    """Yield a night's numbers in TFLOP/s. ``slow`` has the losses of racks as fractions."""
    dice = random.Random(night)
    for node in range(NODES):
        rack, version = node // PER_RACK, node % firmwares
        for gpu in range(GPUS):
            level = 790 * (1 - 0.01 * version) * (1 + random.Random(f"{node} {gpu}").gauss(0, 0.004))
            value = level * (1 - slow.get(rack, 0)) * (1 + dice.gauss(0, 0.002))
            yield Measurement(
                *(f"n{node:03d}", f"GPU-{node}-{gpu}", "h200", f"97.0{version}", f"r{rack}"),
                *("gemm_best", value, "TFLOP/s", night),
            )


def last_night(firmwares: int, slow: Mapping[int, float]) -> dict[str, str]:
    """Return the verdicts of the last night by node. Only in that night, racks are slow."""
    judge = nights()
    for night in range(NIGHTS - 1):
        judge(Night(measured(night, firmwares, {})))
    return dict(judge(Night(measured(NIGHTS - 1, firmwares, slow))))


@pytest.mark.parametrize("firmwares", FIRMWARES.values(), ids=FIRMWARES)
@pytest.mark.parametrize("loss", [0.03, 0.05])
def test_a_bad_night_of_a_rack_fails_none_of_its_nodes(firmwares: int, loss: float) -> None:
    judged = last_night(firmwares, {5: loss, 11: loss})
    assert "fail" not in judged.values()
    assert "unproven" not in judged.values()


@pytest.mark.parametrize("firmwares", FIRMWARES.values(), ids=FIRMWARES)
def test_a_bad_node_of_a_small_rack_is_found(firmwares: int) -> None:
    judge = nights()
    for night in range(NIGHTS):
        numbers = [
            one._replace(value=one.value * 0.94) if one.node == "n021" and night > NIGHTS - 4 else one
            for one in measured(night, firmwares, {})
        ]
        judged = judge(Night(numbers))
    assert {node for node, verdict in judged.items() if verdict == "fail"} == {"n021"}
