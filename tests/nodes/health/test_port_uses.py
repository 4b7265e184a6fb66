"""Test that ports are judged by their use: for jobs, for another network, or to manage NVSwitches.

Real racks have slower Ethernet ports of a BlueField beside their InfiniBand ports, and an HGX B200 has
bridges that look like network cards. Such a node is healthy, and none of these ports may stand in for a
missing compute port.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rackproof.core.records import Verdict
from rackproof.nodes.health_checks import check_node
from rackproof.nodes.health_subjects import Expectation
from rackproof.nodes.snapshot import NodeSnapshot, PortSnapshot

from .test_health_checks import GPU, PORT, SOUND

UNNAMED = Expectation(gpus=1, ports=4, port_gbps=800)
BY_LAYER = replace(UNNAMED, port_layer="InfiniBand")
BY_NAME = replace(UNNAMED, port_devices=("mlx5_[0-3]",))


def port(number: int, gbps: float | None, layer: str, **more: Any) -> PortSnapshot:
    values = {"device": f"mlx5_{number}", "rate_gbps": gbps, "layer": layer, "nvswitch": False, **more}
    return PORT.model_copy(update={"was_active": True, "counters": {}, **values})


COMPUTE = tuple(port(number, 800, "InfiniBand") for number in range(4))
BLUEFIELD = (port(4, 200, "Ethernet"), port(5, 200, "Ethernet"))
UNUSED = {"state": "down", "physical": "disabled", "rate_gbps": 40, "was_active": False}


def codes(
    *ports: PortSnapshot, expected: Expectation, gpu: str = "", previous: NodeSnapshot | None = None
) -> list[tuple[str, str]]:
    gpus = (GPU.model_copy(update={"name": gpu}),)
    found = check_node(
        SOUND.model_copy(update={"ports": ports, "gpus": gpus}), expected=expected, previous=previous
    )
    return [(one.code, one.verdict.value) for one in found if "port" in one.code]


@pytest.mark.parametrize("expected", [BY_LAYER, BY_NAME])
def test_a_slower_port_of_another_network_is_healthy(expected: Expectation) -> None:
    assert codes(*COMPUTE, *BLUEFIELD, expected=expected) == []
    unused = [one.model_copy(update=UNUSED) for one in BLUEFIELD]
    assert codes(*COMPUTE, *unused, expected=expected) == []
    stated = replace(expected, other_ports=2, other_port_gbps=200)
    assert codes(*COMPUTE, *BLUEFIELD, expected=stated) == []


@pytest.mark.parametrize("expected", [BY_LAYER, BY_NAME])
def test_a_port_of_another_network_stands_in_for_no_compute_port(expected: Expectation) -> None:
    # With these two, the node has more than four ports, and more than four active ones.
    assert codes(*COMPUTE[:3], *BLUEFIELD, expected=expected) == [("ports_missing", "fail")]
    down = COMPUTE[3].model_copy(update=UNUSED)
    assert codes(*COMPUTE[:3], down, *BLUEFIELD, expected=expected) == [("port_down", "fail")]
    slow = COMPUTE[3].model_copy(update={"rate_gbps": 400})
    assert codes(*COMPUTE[:3], slow, *BLUEFIELD, expected=expected) == [("port_slow", "fail")]


def test_a_port_of_another_network_is_judged_by_its_own_numbers() -> None:
    expected = replace(BY_LAYER, other_ports=2, other_port_gbps=200)
    slow = BLUEFIELD[1].model_copy(update={"rate_gbps": 100})
    assert codes(*COMPUTE, BLUEFIELD[0], slow, expected=expected) == [("port_slow", "fail")]
    assert codes(*COMPUTE, BLUEFIELD[0], expected=expected) == [("ports_missing", "fail")]
    down = BLUEFIELD[1].model_copy(update=UNUSED)
    assert codes(*COMPUTE, BLUEFIELD[0], down, expected=expected) == [("port_down", "fail")]


def test_without_named_compute_ports_a_slow_port_beside_enough_fast_ones_is_unproven() -> None:
    assert codes(*COMPUTE, *BLUEFIELD, expected=UNNAMED) == [("port_slow", "unproven")] * 2
    slow = COMPUTE[3].model_copy(update={"rate_gbps": 400})
    assert codes(*COMPUTE[:3], slow, *BLUEFIELD, expected=UNNAMED) == [("port_slow", "fail")] * 3
    before = SOUND.model_copy(update={"ports": (*COMPUTE, port(4, 400, "Ethernet", usual_gbps=400))})
    found = codes(*COMPUTE, BLUEFIELD[0], expected=UNNAMED, previous=before)
    assert found == [("port_slow", "fail")]


def test_a_port_whose_layer_is_unreadable_counts_as_a_compute_port() -> None:
    unread = BLUEFIELD[0].model_copy(update={"layer": ""})
    found = codes(*COMPUTE, unread, expected=BY_LAYER)
    assert sorted(found) == [("port_slow", "fail"), ("port_unknown", "unproven")]


def test_ports_that_manage_nvswitches_never_count() -> None:
    expected = Expectation(gpus=1, ports=4, port_gbps=400, port_layer="InfiniBand")
    cards = [port(number, 400, "InfiniBand") for number in range(4)]
    bridges = [port(number, 100, "InfiniBand", nvswitch=True) for number in range(4, 8)]
    assert codes(*cards, *bridges, expected=expected, gpu="NVIDIA B200") == []
    missing = codes(*cards[:3], *bridges, expected=expected, gpu="NVIDIA B200")
    assert missing == [("ports_missing", "fail")]


@pytest.mark.parametrize(
    ("gpu", "found"),
    [("NVIDIA B200", [("port_unknown", "unproven")]), ("NVIDIA H200", []), ("NVIDIA GB200", [])],
)
def test_an_hgx_b200_is_unproven_if_its_bridges_cannot_be_told_from_cards(
    gpu: str, found: list[tuple[str, str]]
) -> None:
    expected = Expectation(gpus=1, ports=1, port_gbps=400)
    assert codes(port(0, 400, "InfiniBand", nvswitch=None), expected=expected, gpu=gpu) == found


def test_a_slow_port_names_the_keys_that_may_be_missing() -> None:
    seen = SOUND.model_copy(update={"ports": (*COMPUTE, BLUEFIELD[0])})
    found = [one for one in check_node(seen, expected=UNNAMED, previous=None) if one.code == "port_slow"]
    assert [one.verdict for one in found] == [Verdict.UNPROVEN]
    assert "port_layer, port_devices" in found[0].evidence
