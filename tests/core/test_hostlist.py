"""Host lists of Slurm: expanded and compressed."""

from __future__ import annotations

import pytest

from rackproof.core.hostlist import expand_hostlist, hostlist_problem


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[01-03,07],m1", ("n01", "n02", "n03", "n07", "m1")),
        ("gb300-r01-n16", ("gb300-r01-n16",)),
        ("a[1-2]-ib,b", ("a1-ib", "a2-ib", "b")),
        ("r[1-2]n[01-02]", ("r1n01", "r1n02", "r2n01", "r2n02")),
        ("r[1,3]-[a]-n[7]", ("r1-[a]-n7", "r3-[a]-n7")),
        ("", ()),
        ("n[" + "9" * 5000 + "]", ()),
        ("n[1-" + "9" * 5000 + "],m1", ("m1",)),
    ],
)
def test_a_host_list_is_expanded(text: str, hosts: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == hosts


def test_a_host_list_that_multiplies_stays_bounded() -> None:
    assert len(expand_hostlist("a[1-9999][1-9999][1-9999],b[1-9999][1-9999]")) <= 200_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("n[01-03,07],m1", ""),
        ("r[1-2]n[1-2]", ""),
        ("n1", ""),
        ("n[a-b]", "'a-b' in brackets is not a range"),
        ("n[1-]", "'1-' in brackets is not a range"),
        ("n[]", "'' in brackets is not a range"),
        ("n[9-3]", "[9-3] is not a range of up to 100 hosts"),
        ("n[1-999999999]", "[1-999999999] is not a range of up to 100 hosts"),
        ("n[1-100]x[1-2]", "it names more than 100 hosts"),
        ("n[1-2", "a bracket has no partner"),
        ("n1-2]", "a bracket has no partner"),
        ("n[1-" + "9" * 5000 + "]", "in brackets is not a range"),
    ],
)
def test_what_is_wrong_with_a_host_list_is_named(text: str, problem: str) -> None:
    found = hostlist_problem(text, 100)
    assert (problem in found) if problem else not found
