"""Test ``rackproof.jobs.reimage.forecast``, which simulates how long it takes to re-image a fleet.

`rackproof reimage plan` shows the hours for a number of nodes at once, and what limits them: the image
server, the controller or the nodes. The tests compare the simulation with cases that can be computed by hand,
and check its bounds on random fleets.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as some

from rackproof.cli.main import main
from rackproof.jobs.reimage.forecast import GBIT, Assumptions, forecast, saturation_nodes

# An image of 1 GB and no other work, so that the times can be computed by hand. Rates are bytes per second.
ONLY_IMAGE = Assumptions(
    image_bytes=1e9,
    server_rate=1e9,
    node_rate=2.5e8,
    verify_rate=1e18,
    idle=1,
    boot_s=0,
    first_boot_s=0,
    provision_s=0,
    validate_s=0,
    controller_core_s=0,
)


@pytest.mark.parametrize(
    ("at_once", "seconds"),
    # Up to four nodes take what they can, 4 s each; more share the server, which has to send 16 GB in 16 s.
    [(1, 64), (2, 32), (4, 16), (8, 16), (16, 16)],
)
def test_the_server_is_shared_and_saturates_at_four_nodes(at_once: int, seconds: float) -> None:
    found = forecast(16, at_once, ONLY_IMAGE)
    assert found.waves_s == pytest.approx(seconds)
    assert found.rolling_s == pytest.approx(seconds)
    assert found.image_s == pytest.approx(4 * max(1, at_once / 4))
    assert found.server_peak == pytest.approx(min(at_once * 2.5e8, 1e9))
    # At 8, the nodes and the server limit half of the time each.
    assert at_once == 8 or found.limited_by == ("server" if at_once > 8 else "nodes")
    assert saturation_nodes(ONLY_IMAGE) == 4


def test_the_controllers_cores_are_shared() -> None:
    given_ = Assumptions(
        image_bytes=1, idle=1, boot_s=0, first_boot_s=0, provision_s=0, validate_s=0,
        controller_core_s=10, controller_cores=2,
    )  # fmt: skip
    found = forecast(8, 8, given_)
    assert found.rolling_s == pytest.approx(40, rel=1e-6)
    assert found.controller_busy == pytest.approx(1, rel=1e-6)
    assert found.limited_by == "controller"
    # One node cannot use two cores.
    assert forecast(1, 1, given_).rolling_s == pytest.approx(10, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(some.integers(1, 60), some.integers(1, 70), some.integers(0, 5))
def test_more_nodes_at_once_are_never_slower_and_rolling_is_never_slower_than_waves(
    nodes: int, at_once: int, seed: int
) -> None:
    found = forecast(nodes, at_once, seed=seed)
    assert found.rolling_s <= found.waves_s * (1 + 1e-9)
    assert forecast(nodes, at_once, seed=seed) == found
    assert found.server_peak <= Assumptions().server_rate * (1 + 1e-9)
    # At least one node is out of service during the whole time.
    assert found.out_of_service_node_hours * 3600 >= found.rolling_s * (1 - 1e-9)
    if at_once < nodes:
        assert forecast(nodes, nodes, seed=seed).waves_s <= found.waves_s * (1 + 1e-9)


def test_a_thousand_nodes_are_simulated() -> None:
    assert forecast(1000, 64).nodes == 1000


INFINITE = [
    {name: float("inf")} for name in ("image_bytes", "server_rate", "boot_s", "job_s", "controller_cores")
]


def test_impossible_assumptions_are_refused() -> None:
    for bad in ({"server_rate": 0}, {"idle": 2}, {"boot_s": -1}, {"node_rate": float("nan")}, *INFINITE):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Assumptions(**bad)
    with pytest.raises(ValueError, match="at least 1"):
        forecast(0, 1)


def test_the_command_shows_the_forecast_and_refuses_impossible_values() -> None:
    said = CliRunner().invoke(
        main, ["reimage", "plan", "--nodes", "100", "--at-once", "8", "--at-once", "32"]
    )
    assert said.exit_code == 0
    assert "the image server can serve 6 nodes at full speed" in said.output
    found = json.loads(
        CliRunner().invoke(main, ["reimage", "plan", "--nodes", "100", "--at-once", "8", "--json"]).output
    )
    assert found[0]["server_peak"] <= 25 * GBIT * 1.001
    wrong = CliRunner().invoke(main, ["reimage", "plan", "--server-gbit", "0"])
    assert (wrong.exit_code, wrong.output) == (1, "rackproof: server_rate: more than 0 and finite, not 0.0\n")
