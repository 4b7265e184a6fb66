"""Test the offset of a node's clock, and whether it is synchronized (nodes/clock.py).

A wrong clock breaks munge and with it Slurm, and mixes up the order of log lines.
"""

from __future__ import annotations

from typing import Any

import pytest

from rackproof.nodes.clock import clock_offset, read_synchronized


# `times`, in seconds: the controller's clock at the query and at the answer, then the node's clock at the
# beginning and at the end of its answer.
@pytest.mark.parametrize(
    ("times", "offset"),
    [
        ((100.0, 130.0, 110.0, 115.0), 0.0),
        ((100.0, 130.0, 90.0, 95.0), -10.0),
        ((100.0, 130.0, 150.0, 155.0), 25.0),
        ((100.0, 130.0, None, 155.0), None),
        ((100.0, 130.0, 110.0, 0), None),
        ((100.0, 130.0, 110.0, 109.0), None),
        ((100.0, 130.0, 1e308, 115.0), None),
    ],
)
def test_the_offset_is_the_time_outside_of_query_and_answer(
    times: tuple[Any, ...], offset: float | None
) -> None:
    assert clock_offset(*times) == offset


@pytest.mark.parametrize(
    ("text", "container", "synchronized"),
    [
        ("NTPSynchronized=yes\n", False, True),
        ("NTPSynchronized=no\n", False, False),
        ("NTPSynchronized=no\n", True, None),
        ("NTPSynchronized=yes\n", True, None),
        ("", False, None),
        ("NTPSynchronized=maybe\n", False, None),
        ("Failed to query server: Connection timed out\n", False, None),
    ],
)
def test_a_clock_is_synchronized_if_timedatectl_says_so_outside_of_a_container(
    text: str, container: bool, synchronized: bool | None
) -> None:
    assert read_synchronized(text, container=container) is synchronized
