"""Test a fleet of 120 nodes in which many nodes send hostile answers to validate.yml.

Each hostile node must fail or be unproven, and no other node may get another verdict.

`make prove SUITE=perf` gives each of these answers, in its whole size, to one node of 1,000.
"""

from __future__ import annotations

from pathlib import Path

from tests.jobs.validate.test_hostile_nodes import HOSTILE
from tests.perf.hostile_fleet import a_night, everything, harm, healthy, node_name, other_types

COUNT = 120
FAULTY = {2 * at + 1: spoil for at, spoil in enumerate(HOSTILE)}


def test_hostile_answers_of_many_nodes_harm_no_other(tmp_path: Path) -> None:
    night, _ = a_night(tmp_path, COUNT, {})
    assert harm(night, ()) == ""
    hostile = {number: healthy(number) for number in FAULTY}
    for number, spoil in FAULTY.items():
        spoil(hostile[number], 1 / 64)
    # Other nodes have one value of a wrong type each. This test tries some values, and SUITE=perf all.
    kinds = len(other_types(0))
    for at, number in enumerate(range(2 * len(HOSTILE) + 1, COUNT, 2)):
        first = at * 17 % kinds
        (hostile[number],) = other_types(number, slice(first, first + 1))
    night, _ = a_night(tmp_path, COUNT, hostile)
    assert harm(night, sorted(hostile)) == ""
    gating = {number for number in FAULTY if night[node_name(number)].verdict.gates}
    assert [spoil.__name__ for number, spoil in FAULTY.items() if number not in gating] == []
    # In the next night, the hostile answers spoil no comparison.
    night, _ = a_night(tmp_path, COUNT, {})
    assert harm(night, sorted(hostile)) == ""


def test_the_time_is_linear_in_the_fleet_and_in_the_answer(tmp_path: Path) -> None:
    took_s = []
    for count, size in ((15, 1 / 128), (60, 1 / 32)):
        answer = healthy(1)
        everything(answer, size)
        night, seconds = a_night(tmp_path / str(count), count, {1: answer})
        assert harm(night, (1,)) == ""
        took_s.append(seconds)
    # Four times as much of both; a quadratic night would take sixteen times as long.
    assert took_s[1] < 9 * took_s[0]
