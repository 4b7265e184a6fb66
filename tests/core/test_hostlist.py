"""Test the reading and writing of Slurm's host lists, such as n[01-04] (core/hostlist.py).

Operators name nodes in this notation, and Slurm prints it. A list may be hostile, so its length, its ranges
and its number of hosts are limited.
"""

from __future__ import annotations

import time

import pytest

from rackproof.core.hostlist import compress_hostlist, expand_hostlist, hostlist_problem


# A number has at most 12 digits, and a name with ranges at most 255 characters. A part beyond these limits
# gives no hosts, and the parts beside it still do.
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
        ("x" * 60_000 + "[1-9999],m1", ("m1",)),
        ("n[1-2]" + "x" * 60_000 + ",m1", ("m1",)),
        ("n" + "[1-2]" * 10_000 + ",m1", ("m1",)),
        ("x" * 254 + "[1-2]", ("x" * 254 + "1", "x" * 254 + "2")),
        ("x" * 300, ("x" * 300,)),
    ],
)
def test_a_host_list_is_expanded(text: str, hosts: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == hosts


def test_a_host_list_that_multiplies_stays_bounded() -> None:
    assert len(expand_hostlist("a[1-9999][1-9999][1-9999],b[1-9999][1-9999]")) <= 200_000


# At most 100 hosts are allowed here. "" means that the list is usable.
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
        ("m1," + "x" * 300 + "[1-2]", "a name has more than 255 characters"),
    ],
)
def test_the_mistake_in_a_host_list_is_named(text: str, problem: str) -> None:
    found = hostlist_problem(text, 100)
    assert (problem in found) if problem else not found


@pytest.mark.parametrize("text", ["a[" * 20_000, "a[1" * 30_000, "a]" * 20_000])
def test_brackets_without_a_partner_take_little_time(text: str) -> None:
    start = time.process_time()
    expand_hostlist(text)
    assert hostlist_problem(text, 100)
    assert time.process_time() - start < 1


# Only ASCII digits are numbers, and the last 12 of them at most. The digits before belong to the name.
@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n01", "n02", "n03", "x"], "n[01-03],x"),
        (["n" + "7" * 5000], "n" + "7" * 5000),
        (["n" + "7" * 5000 + "x"], "n" + "7" * 5000 + "x"),
        (["n\uff11", "n\uff12"], "n\uff11,n\uff12"),
        (["n٣", "n4"], "n4,n٣"),
        # A part of a host list does not begin with a bracket.
        (["0", "1"], "0,1"),
        (["07", "08", "n1", "n2"], "07,08,n[1-2]"),
        (["20261128103518001", "20261128103518002"], "20261[128103518001-128103518002]"),
        (["n20261128103518001", "n20261128103518002"], "n20261[128103518001-128103518002]"),
    ],
)
def test_compressed_names_expand_to_the_same_names(names: list[str], text: str) -> None:
    assert compress_hostlist(names) == text
    assert sorted(expand_hostlist(text)) == sorted(names)
