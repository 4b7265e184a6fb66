"""Test which releases of Slurm may be in one cluster, by rackproof.nodes.slurm_releases.

A release is a year and a month, such as 24.11. A node may be a few releases older than its controller, and
never newer. Role slurm reports a node that breaks this rule before it installs anything.
"""

from __future__ import annotations

import pytest

from rackproof.nodes.slurm_releases import incompatibility, parse_release


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("22.05.8-4+deb12u2", (22, 5)),
        ("22.05*", (22, 5)),
        ("1:24.11.5-4", (24, 11)),
        ("*", None),
        ("", None),
        ("2205", None),
        ("22.050", None),
    ],
)
def test_the_release_of_a_version_is_read(version: str, known: tuple[int, int] | None) -> None:
    assert parse_release(version) == known


# By Slurm's upgrade guide, a controller accepts nodes of the two releases before its own, and from 24.11 on
# of the three before. Each row has a controller, the oldest release that it accepts, and an older one.
@pytest.mark.parametrize(
    ("controller", "oldest", "too_old"),
    [
        ("19.05", "17.11", "17.02"),
        ("20.02", "18.08", "17.11"),
        ("20.11", "19.05", "18.08"),
        ("22.05", "20.11", "20.02"),
        ("23.11", "22.05", "21.08"),
        ("24.05", "23.02", "22.05"),
        ("24.11", "23.02", "22.05"),
        ("25.05", "23.11", "23.02"),
        ("25.11", "24.05", "23.11"),
        ("26.05", "24.11", "24.05"),
    ],
)
def test_a_controller_accepts_only_nodes_of_its_window(controller: str, oldest: str, too_old: str) -> None:
    assert incompatibility(f"{controller}.1", f"{controller}*") == ""
    assert incompatibility(f"{oldest}.9-1", f"{controller}.1") == ""
    assert "releases older than its controller" in incompatibility(f"{too_old}.9-1", f"{controller}.1")
    assert incompatibility(controller, oldest) == "it is newer than its controller"


def test_the_releases_of_debian_13_and_debian_12_are_incompatible() -> None:
    assert incompatibility("24.11*", "22.05.8-4") == "it is newer than its controller"
    assert (
        incompatibility("22.05*", "24.11.5-4")
        == "it is 4 releases older than its controller, and 3 are allowed"
    )


def test_an_unknown_release_is_not_called_incompatible() -> None:
    assert incompatibility("*", "22.05") == incompatibility("24.11", "") == ""
