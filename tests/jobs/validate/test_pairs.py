"""Test ``rackproof.jobs.validate.fleet.pairing``, which chooses pairs of nodes and finds the bad ones.

Each night, the nodes run an all-reduce in pairs, as in a round-robin tournament. If a pair fails, its nodes
are suspect and meet a good partner, so that the bad node or link is known. The tests check on random racks
that every pair meets, that the bad nodes are found, and that no good node is blamed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackproof.jobs.validate.fleet.pairing import (
    bisect_group,
    find_culprits,
    nights_needed,
    pairs_of_night,
    second_partners,
)

RACK = [f"n{number:02d}" for number in range(18)]


@given(st.integers(0, 40), st.integers(0, 1000))
def test_every_pair_meets_once_in_the_nights_needed(count: int, start: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    met = [pair for night in range(nights_needed(count)) for pair in pairs_of_night(nodes, start + night)]
    assert sorted(met) == sorted(combinations(sorted(nodes), 2))


@given(st.integers(2, 40), st.integers(0, 1000), st.randoms())
def test_a_night_pairs_no_node_twice_and_leaves_at_most_one_out(count: int, night: int, dice: object) -> None:
    nodes = [f"n{number}" for number in range(count)]
    pairs = pairs_of_night(nodes, night)
    asked = [node for pair in pairs for node in pair]
    assert len(asked) == len(set(asked)) >= count - 1
    dice.shuffle(nodes)  # type: ignore[attr-defined]
    assert pairs_of_night([*nodes, nodes[0]], night) == pairs


@given(st.integers(2, 16), st.integers(1, 8))
def test_a_budget_leaves_no_pair_out_for_ever(count: int, most: int) -> None:
    nodes = [f"n{number:02d}" for number in range(count)]
    met = set()
    for night in range(nights_needed(count) * (count // 2)):
        pairs = pairs_of_night(nodes, night, most=most)
        assert len(pairs) <= most
        met |= set(pairs)
    assert met == set(combinations(nodes, 2))


def test_a_rack_of_18_needs_17_nights() -> None:
    assert nights_needed(18) == 17


def test_suspects_meet_different_good_nodes_that_they_have_not_met() -> None:
    found = second_partners(["a", "b"], ["c", "d", "a"], [("a", "c"), ("a", "b")])
    assert found == {"a": "d", "b": "c"}
    # A suspect with two possible partners leaves the other one to a suspect with only one.
    assert second_partners(["a", "b"], ["c", "d"], [("b", "d")]) == {"a": "d", "b": "c"}


def test_without_good_nodes_there_is_no_second_partner() -> None:
    assert second_partners(["a", "b"], ["a", "b"]) == {}
    assert second_partners(["a"], ["b"], [("a", "b")]) == {}


@given(st.sets(st.sampled_from(RACK), max_size=8), st.sets(st.sampled_from(RACK)))
def test_second_partners_are_as_many_as_there_can_be(suspects: set[str], good: set[str]) -> None:
    found = second_partners(suspects, good)
    assert len(set(found.values())) == len(found) == min(len(suspects), len(good - suspects))
    assert set(found) <= suspects
    assert not set(found.values()) & suspects


@given(st.sets(st.tuples(st.sampled_from("abcde"), st.sampled_from("vwxyz"))))
def test_second_partners_are_a_largest_matching_of_those_that_did_not_meet(met: set[tuple[str, str]]) -> None:
    found = second_partners("abcde", "vwxyz", met)
    assert not set(found.items()) & met
    assert len(set(found.values())) == len(found)
    most = max(
        sum((one, two) not in met for one, two in zip("abcde", order, strict=True))
        for order in permutations("vwxyz")
    )
    assert len(found) == most


@pytest.mark.parametrize(("suspects", "good"), [(1000, 1400), (1400, 400), (700, 700)])
def test_a_thousand_suspects_get_their_partners_at_once(suspects: int, good: int) -> None:
    bad, well = (
        [f"{kind}{number:04d}" for number in range(count)] for kind, count in (("b", suspects), ("g", good))
    )
    # A suspect does not get the good node of its own number, so that the last one moves the others.
    met = [*zip(bad, well, strict=False), *((bad[min(suspects, good) - 1], node) for node in well[1:])]
    begin = time.process_time()
    found = second_partners(bad, well, met)
    assert time.process_time() - begin < 5
    assert len(set(found.values())) == len(found) == min(suspects, good)
    assert not set(found.items()) & set(met)


# Whether pairs passed, and then the nodes that are bad, the pairs with a bad link, and the suspect nodes.
@pytest.mark.parametrize(
    ("results", "bad", "pairs", "suspects"),
    [
        ({}, set(), set(), set()),
        ({("a", "b"): True}, set(), set(), set()),
        ({("a", "b"): False}, set(), set(), {"a", "b"}),
        # b passes with c, so a is suspect. It is bad once it also fails with a second good partner.
        ({("a", "b"): False, ("b", "c"): True}, set(), set(), {"a"}),
        ({("a", "b"): False, ("b", "c"): True, ("a", "d"): False, ("d", "e"): True}, {"a"}, set(), set()),
        # Both pass with others, so the link between them is bad.
        ({("a", "b"): False, ("b", "c"): True, ("a", "d"): True}, set(), {("a", "b")}, set()),
        # a fails with b, and with two nodes that pass with others.
        (
            {("a", "b"): False, ("a", "c"): False, ("c", "d"): True, ("a", "e"): False, ("e", "f"): True},
            {"a"},
            set(),
            set(),
        ),
    ],
)
def test_culprits_are_found_among_pairs(
    results: dict[tuple[str, str], bool], bad: set[str], pairs: set[tuple[str, str]], suspects: set[str]
) -> None:
    assert find_culprits(results) == (bad, pairs, suspects)


# The nodes of larger groups that passed, and then the bad nodes, bad links and suspects.
@pytest.mark.parametrize(
    ("results", "good", "bad", "pairs", "suspects"),
    [
        ({("a", "b"): False}, {"a", "b", "c"}, set(), {("a", "b")}, set()),
        ({("a", "b"): False}, {"b", "c", "d"}, set(), set(), {"a"}),
        ({("a", "b"): False, ("a", "c"): False}, {"b", "c", "d"}, {"a"}, set(), set()),
        ({("a", "b"): False, ("a", "c"): False}, {"d", "e", "f"}, set(), set(), {"a", "b", "c"}),
    ],
)
def test_a_larger_group_that_passed_shows_its_nodes_good(
    results: dict[tuple[str, str], bool],
    good: set[str],
    bad: set[str],
    pairs: set[tuple[str, str]],
    suspects: set[str],
) -> None:
    assert find_culprits(results, good) == (bad, pairs, suspects)


@pytest.mark.parametrize(
    ("met", "helper"),
    [
        ([], "good1"),
        ([("bad", "good1")], "good2"),
        ([("good1", "bad"), ("bad", "good2")], "good3"),
        ([("bad", "good1"), ("bad", "good2"), ("bad", "good3")], "good1"),
    ],
)
def test_a_single_node_is_measured_with_a_helper_that_it_did_not_meet(
    met: list[tuple[str, str]], helper: str
) -> None:
    runs: list[Sequence[str]] = []

    def works(group: Sequence[str]) -> bool:
        runs.append(group)
        return "bad" not in group

    assert bisect_group(["bad"], works, helpers=["good1", "good2", "good3"], met=met)[0] == ("bad",)
    assert runs == [["bad", helper]]


@given(st.sets(st.sampled_from(RACK), max_size=3), st.integers(0, 100))
def test_no_good_node_is_blamed_whatever_pairs_met(bad: set[str], start: int) -> None:
    results = {
        pair: not bad & set(pair) for night in range(4) for pair in pairs_of_night(RACK, start + night)
    }
    blamed, pairs, suspects = find_culprits(results)
    assert blamed <= bad
    assert not pairs
    if not bad:
        assert not suspects


@given(st.sets(st.sampled_from(RACK), max_size=2), st.integers(0, 100))
def test_the_whole_tournament_finds_up_to_two_bad_nodes(bad: set[str], start: int) -> None:
    results = {
        pair: not bad & set(pair) for night in range(17) for pair in pairs_of_night(RACK, start + night)
    }
    assert find_culprits(results)[0] == bad


@settings(max_examples=200)
@given(st.lists(st.sampled_from(RACK), min_size=1, unique=True), st.data())
def test_bisecting_finds_all_bad_nodes_and_no_other(nodes: list[str], data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.sampled_from(nodes), min_size=1))
    runs = []

    def works(group: Sequence[str]) -> bool:
        runs.append(group)
        return not bad & set(group)

    assert bisect_group(nodes, works, helpers=["good1", "good2"]) == (tuple(sorted(bad)), ())
    assert all(len(group) >= 2 for group in runs)


def test_two_bad_of_eighteen_take_few_runs() -> None:
    runs: list[Sequence[str]] = []

    def works(group: Sequence[str]) -> bool:
        runs.append(group)
        return not {"n03", "n11"} & set(group)

    assert bisect_group(RACK, works, helpers=["good"])[0] == ("n03", "n11")
    assert len(runs) <= 18


def test_what_only_fails_together_is_named_together() -> None:
    def works(group: Sequence[str]) -> bool:
        return not {"n00", "n17"} <= set(group)

    assert bisect_group(RACK, works, helpers=["good"]) == ((), (tuple(RACK),))


def test_without_partners_or_budget_no_node_is_blamed() -> None:
    def works(group: Sequence[str]) -> bool:
        return "n01" not in group

    assert bisect_group(["n00", "n01"], works) == ((), (("n00",), ("n01",)))
    bad, unclear = bisect_group(RACK, works, helpers=["good"], most_runs=1)
    assert bad == ()
    assert "n01" in {node for part in unclear for node in part}
