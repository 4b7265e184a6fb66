"""Test ``rackproof.jobs.provision.waves``, which divides the nodes of provision.yml into waves.

A wave is drained, provisioned and resumed before the next one. Its size is limited, so that a partition of
Slurm keeps enough nodes in service. The first wave (canary) tests the change on a few nodes. The tests check
these limits on random clusters, and the sizes of the waves in examples.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackproof.jobs.provision.waves import (
    IN_SERVICE,
    WaveLimitError,
    WaveLimits,
    describe_waves,
    plan_provision_waves,
)

OURS = "rackproof: provisioning"
# Reasons why a node is out of service. Nodes that an earlier provisioning drained have the reason OURS.
REASONS = [IN_SERVICE, IN_SERVICE, IN_SERVICE, OURS, "Not responding", "bob: bad fan", "rackproof-night: xid"]
NAMES = [f"n{number:02}" for number in range(30)]


def cluster(size: int, name: str = "batch", **reasons: str) -> dict[str, dict[str, str]]:
    """Return a partition of nodes n00, n01, ... with the reasons of some of them."""
    return {name: dict.fromkeys(NAMES[:size], IN_SERVICE) | reasons}


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[str], dict[str, dict[str, str]], WaveLimits]:
    """Draw nodes to provision, partitions that may share nodes, and limits."""
    reasons = {name: draw(st.sampled_from(REASONS)) for name in NAMES}
    members = st.lists(st.sampled_from(NAMES), unique=True, min_size=1)
    partitions = {
        name: {node: reasons[node] for node in draw(members)}
        for name in draw(st.lists(st.sampled_from("abcd"), unique=True))
    }
    limits = WaveLimits(
        batch=draw(st.integers(1, 40)),
        share=draw(st.floats(0.01, 1)),
        canary=draw(st.integers(0, 3)),
    )
    return draw(st.lists(st.sampled_from(NAMES), unique=True)), partitions, limits


@given(fleets())
def test_every_node_is_in_one_wave_and_no_wave_is_empty_or_too_large(
    fleet: tuple[list[str], dict[str, dict[str, str]], WaveLimits],
) -> None:
    nodes, partitions, limits = fleet
    waves = plan_provision_waves(nodes, partitions, limits)
    assert sorted(node for wave in waves for node in wave.nodes) == sorted(nodes)
    assert all(0 < len(wave.nodes) <= limits.batch for wave in waves)


@given(fleets())
def test_no_wave_takes_more_of_a_partition_than_its_share(
    fleet: tuple[list[str], dict[str, dict[str, str]], WaveLimits],
) -> None:
    nodes, partitions, limits = fleet
    out = {
        node for members in partitions.values() for node, reason in members.items() if reason != IN_SERVICE
    }
    theirs = {
        node
        for members in partitions.values()
        for node, reason in members.items()
        if reason not in (IN_SERVICE, OURS)
    }
    for wave in plan_provision_waves(nodes, partitions, limits):
        for name, members in partitions.items():
            # The test counts again, from the nodes of the wave. A node counts in each of its partitions.
            taken = {node for node in wave.nodes if node in members and node not in out}
            missing = {node for node in members if node in out} | taken
            allowed = max(1, int(limits.share * len(members) + 1e-9))
            assert len(missing) <= allowed or len(taken) <= 1
            expected = (len(members) - len(missing), len(members)) if taken else None
            assert wave.left.get(name) == expected
        out -= set(wave.nodes) - theirs


@given(fleets())
def test_the_canary_goes_first_and_nodes_out_of_service_last(
    fleet: tuple[list[str], dict[str, dict[str, str]], WaveLimits],
) -> None:
    nodes, partitions, limits = fleet
    waves = plan_provision_waves(nodes, partitions, limits)
    states = {node: reason for members in partitions.values() for node, reason in members.items()}
    serving = {node for node in nodes if states.get(node) == IN_SERVICE}
    assert [wave.canary for wave in waves] == [
        number == 0 and bool(serving) and limits.canary > 0 for number in range(len(waves))
    ]
    if waves and waves[0].canary:
        assert len(waves[0].nodes) <= limits.canary
    useful = [index for index, wave in enumerate(waves) if set(wave.nodes) & serving]
    out_of_service = {node for node in nodes if states.get(node) not in (IN_SERVICE, OURS)}
    idle = [index for index, wave in enumerate(waves) if set(wave.nodes) & out_of_service]
    assert not useful or not idle or max(useful) < min(idle)


# By default, a wave has at most 32 nodes, takes at most a quarter of a partition, and the canary is one node.
@pytest.mark.parametrize(
    ("nodes", "partitions", "limits", "sizes"),
    [
        (18, cluster(18), WaveLimits(), [1, 4, 4, 4, 4, 1]),
        (18, cluster(18), WaveLimits(canary=0), [4, 4, 4, 4, 2]),
        (18, cluster(18), WaveLimits(share=1, canary=2), [2, 16]),
        (18, {}, WaveLimits(), [18]),
        (18, {}, WaveLimits(batch=8), [8, 8, 2]),
        (18, cluster(18, **dict.fromkeys(NAMES[:18], "Not responding")), WaveLimits(), [18]),
        (3, cluster(3), WaveLimits(), [1, 1, 1]),
        # Two nodes are out of service already, and are not requested. So two more may go at a time.
        (14, cluster(16, n14="bob: fan", n15="bob: fan"), WaveLimits(canary=0), [2] * 7),
        # More than the share is out, so one node goes at a time. Otherwise provisioning would never end.
        (3, cluster(8, **dict.fromkeys(NAMES[4:8], "bob: fan")), WaveLimits(canary=0), [1, 1, 1]),
        # A node that an earlier run drained is provisioned first, and then counts as in service.
        (8, cluster(8, n07=OURS), WaveLimits(canary=1), [1, 2, 2, 2, 1]),
        # A small partition within a large one does not limit the waves further: it loses one node in each.
        (8, cluster(8) | cluster(2, "debug"), WaveLimits(canary=0, share=0.5), [4, 4]),
        (0, cluster(8), WaveLimits(), []),
    ],
)
def test_waves_have_the_expected_sizes(
    nodes: int, partitions: dict[str, dict[str, str]], limits: WaveLimits, sizes: list[int]
) -> None:
    assert [len(wave.nodes) for wave in plan_provision_waves(NAMES[:nodes], partitions, limits)] == sizes


def test_the_waves_are_described_for_the_operator() -> None:
    limits = WaveLimits()
    waves = plan_provision_waves(NAMES[:6], cluster(6, n05="bob: fan") | cluster(2, "debug"), limits)
    assert describe_waves(waves, limits) == [
        "wave 1 of 6, canary: n00 (batch keeps 4 of 6 nodes in service; debug keeps 1 of 2 nodes in service)",
        "wave 2 of 6: n01 (batch keeps 4 of 6 nodes in service; debug keeps 1 of 2 nodes in service)",
        "wave 3 of 6: n02 (batch keeps 4 of 6 nodes in service)",
        "wave 4 of 6: n03 (batch keeps 4 of 6 nodes in service)",
        "wave 5 of 6: n04 (batch keeps 4 of 6 nodes in service)",
        "wave 6 of 6: n05 (takes no node out of service)",
        "no further wave starts if more than 0 nodes fail (provision_max_failures)",
    ]
    assert describe_waves(plan_provision_waves(["n1"], {}, limits), limits, "Slurm does not answer") == [
        "Slurm does not answer",
        "wave 1 of 1: n1 (takes no node out of service)",
    ]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"batch": 0}, "provision_batch"),
        ({"share": 0.0}, "provision_max_drain_fraction"),
        ({"share": 1.01}, "provision_max_drain_fraction"),
        ({"canary": -1}, "provision_canary"),
        ({"failures": -1}, "provision_max_failures"),
    ],
)
def test_impossible_limits_are_refused(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(WaveLimitError, match=named):
        WaveLimits(**wrong)  # type: ignore[arg-type]
