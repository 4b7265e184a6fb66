"""Test what a snapshot waits for, and what its message says about that."""

from __future__ import annotations

from typing import Any

import pytest

from rackproof.jobs.validate.tasks import _with_clock, settling, settling_summary


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


@pytest.mark.parametrize(
    ("waited_s", "begin", "offset"),
    [
        (None, 1000.0, 0.0),
        (8.0, 1008.0, 0.0),
        # The clock is 5 s behind, which the wait of 8 s must not hide.
        (8.0, 1003.0, -5.0),
        # No wait is negative, or longer than the answer took.
        (-100.0, 950.0, -50.0),
        (1e9, 1010.0, 0.0),
    ],
)
def test_a_wait_hides_no_clock_that_is_behind(waited_s: object, begin: float, offset: float) -> None:
    health = {"begin": begin, "epoch": begin, "settled": {"waited_s": waited_s}}
    found = _with_clock({"health": health}, 1000.0, 1010.0)
    assert found["node"]["clock"] == {"asked_at": 1000.0, "epoch": 1000.0 + offset}
