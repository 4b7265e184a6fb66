"""Test ``rackproof.jobs.inventory.merge``, which merges changes by hand with a new adoption line by line.

``rackproof adopt`` merges a file that a person and the sources changed. Both changes are kept. If both
changed the same line, the person's line remains, and the conflict is reported.
"""

from __future__ import annotations

import random

import pytest

from rackproof.jobs.inventory.merge import merge_texts

BASE = "a\nb\nc\nd\ne\n"


@pytest.mark.parametrize(
    ("mine", "theirs", "merged"),
    [
        (BASE, "a\nX\nc\n", "a\nX\nc\n"),
        ("a\nX\nc\n", BASE, "a\nX\nc\n"),
        ("a\nX\n", "a\nX\n", "a\nX\n"),
        ("a\nB\nc\nd\ne\n", "a\nb\nc\nd\nE\n", "a\nB\nc\nd\nE\n"),
        ("a\nb\nc\nd\ne\nmine\n", "new\na\nb\nc\nd\ne\n", "new\na\nb\nc\nd\ne\nmine\n"),
        ("a\nc\nd\ne\n", "a\nb\nc\nd\n", "a\nc\nd\n"),
        ("a\nb\n# note\nc\nd\ne\n", "a\nb\nc\nd\nd2\ne\n", "a\nb\n# note\nc\nd\nd2\ne\n"),
    ],
)
def test_changes_of_both_texts_are_kept(mine: str, theirs: str, merged: str) -> None:
    found = merge_texts(BASE, mine, theirs)
    assert found == (merged, ())


def test_a_line_that_both_changed_stays_as_the_person_wrote_it_and_is_reported() -> None:
    found = merge_texts(BASE, "a\nmine\nc\nd\ne\n", "a\ntheirs\nc\nd\nnew\n")
    assert found.text == "a\nmine\nc\nd\nnew\n"
    assert found.conflicts == (("mine\n", "theirs\n"),)


def test_no_line_that_a_person_added_is_lost() -> None:
    draw = random.Random(22)
    for _ in range(300):
        base = [f"line {draw.randrange(8)}\n" for _ in range(draw.randrange(12))]
        mine, theirs = (list(base) for _ in range(2))
        added = [f"mine {at}\n" for at in range(draw.randrange(1, 4))]
        for line in added:
            mine.insert(draw.randrange(len(mine) + 1), line)
        for _ in range(draw.randrange(4)):
            if theirs and draw.random() < 0.5:
                theirs.pop(draw.randrange(len(theirs)))
            else:
                theirs.insert(draw.randrange(len(theirs) + 1), f"theirs {draw.randrange(5)}\n")
        merged = merge_texts("".join(base), "".join(mine), "".join(theirs)).text.splitlines(keepends=True)
        assert set(added) <= set(merged), (base, mine, theirs)
