"""Racks of four nodes, as those of servers with eight GPUs are, whose nodes have different firmware."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping

import pytest

from tests.fleet_simulator.simulation import Measurement
from tests.perf.judge_fleets import nights

NODES, PER_RACK, GPUS, NIGHTS = 64, 4, 4, 8
FIRMWARES = {"mixed": 3, "alike": 1}


class Night(list[Measurement]):
    """A night without a second measurement."""

    def retest(self, nodes: Collection[str]) -> list[Measurement]:
        raise AssertionError(nodes)


def measured(night: int, firmwares: int, slow: Mapping[int, float]) -> Iterator[Measurement]:
    """Yield a night's numbers. ``slow`` is the loss of racks."""
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
    judge = nights()
    for night in range(NIGHTS - 1):
        judge(Night(measured(night, firmwares, {})))
    return dict(judge(Night(measured(NIGHTS - 1, firmwares, slow))))


@pytest.mark.parametrize("firmwares", FIRMWARES.values(), ids=FIRMWARES)
@pytest.mark.parametrize("loss", [0.03, 0.05])
def test_a_rack_s_bad_night_fails_none_of_its_nodes(firmwares: int, loss: float) -> None:
    judged = last_night(firmwares, {5: loss, 11: loss})
    assert "fail" not in judged.values()
    assert "unproven" not in judged.values()


@pytest.mark.parametrize("firmwares", FIRMWARES.values(), ids=FIRMWARES)
def test_a_bad_node_of_such_a_rack_is_found(firmwares: int) -> None:
    judge = nights()
    for night in range(NIGHTS):
        numbers = [
            one._replace(value=one.value * 0.94) if one.node == "n021" and night > NIGHTS - 4 else one
            for one in measured(night, firmwares, {})
        ]
        judged = judge(Night(numbers))
    assert {node for node, verdict in judged.items() if verdict == "fail"} == {"n021"}
