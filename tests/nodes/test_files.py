"""Test rackproof.nodes.files.outdated_units, which finds services that a killed playbook did not restart."""

from __future__ import annotations

import pytest

from rackproof.nodes.files import outdated_units

MUNGE = {"munge.service": ["/etc/munge/munge.key"]}


@pytest.mark.parametrize(
    ("starts", "changed_at", "outdated"),
    [
        ({"munge.service": 10.0}, {"/etc/munge/munge.key": 10.5}, True),
        ({"munge.service": 10.5}, {"/etc/munge/munge.key": 10.0}, False),
        ({"munge.service": 10.0}, {"/etc/munge/munge.key": 10.0}, False),
        # A unit that was never active, and a file that is not there, are the work of other tasks.
        ({}, {"/etc/munge/munge.key": 10.0}, False),
        ({"munge.service": 10.0}, {}, False),
        ({"slurmd.service": 1.0}, {"/etc/munge/munge.key": 10.0}, False),
    ],
)
def test_a_unit_is_outdated_if_its_file_changed_after_it_started(
    starts: dict[str, float], changed_at: dict[str, float], outdated: bool
) -> None:
    assert outdated_units(MUNGE, starts, changed_at) == (["munge.service"] if outdated else [])


def test_one_changed_file_is_enough() -> None:
    files = {"a.service": ["/a", "/b"], "b.service": ["/a"], "c.service": []}
    assert outdated_units(
        files, {"a.service": 5.0, "b.service": 5.0, "c.service": 5.0}, {"/a": 1.0, "/b": 9.0}
    ) == ["a.service"]
