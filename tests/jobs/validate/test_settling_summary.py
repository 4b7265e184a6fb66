"""Test what a snapshot waits for, and what its message says about that."""

from __future__ import annotations

from typing import Any

import pytest

from rackproof.jobs.validate.tasks import settling, settling_summary


def answer(**settled: Any) -> dict[str, Any]:
    return {"health": {"settled": settled}}


@pytest.mark.parametrize(
    ("settled", "words"),
    [
        ({}, ""),
        ({"waited_s": 0.3, "awaited": [], "unready": []}, ""),
        (
            {"waited_s": 42.0, "awaited": ["1 of 4 ports are active"], "unready": []},
            "; waited 42.0 s for its fabric and ports (1 of 4 ports are active: ready then)",
        ),
        (
            {"waited_s": 300.0, "awaited": ["x"], "unready": ["3 of 4 ports are active"]},
            "; waited 5 min 00 s for its fabric and ports (3 of 4 ports are active: still not ready)",
        ),
        ({"waited_s": "9", "awaited": 5, "unready": None}, ""),
    ],
)
def test_a_wait_is_said(settled: dict[str, Any], words: str) -> None:
    assert settling_summary(answer(**settled)) == words


def test_a_node_waits_for_what_its_sku_needs() -> None:
    expected = {"fabric": True, "ports": 4, "port_layer": "InfiniBand"}
    wanted = settling("n1", expected, seconds=300, after="boot")
    assert wanted == {
        **expected,
        "port_devices": [],
        "other_ports": 0,
        "seconds": 300,
        "after": "boot",
    }
