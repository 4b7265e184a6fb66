"""Merge a generated file that was changed by hand with its new version, line by line. No I/O.

:mod:`rackproof.jobs.inventory.folder` calls :func:`merge_texts` when ``rackproof adopt`` writes again.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class MergedFile(NamedTuple):
    """The merged text, and the parts that both sides changed, as pairs of the kept and the rejected text.

    A part that both sides changed in the same way is no conflict.
    """

    text: str
    conflicts: tuple[tuple[str, str], ...] = ()


def merge_texts(base: str, mine: str, theirs: str) -> MergedFile:
    """Return a text with the changes of both sides.

    If both changed the same lines, the lines of ``mine`` remain.

    Args:
        base: The text that was written last.
        mine: The current text, with changes by hand.
        theirs: The new text.
    """
    if base in (mine, theirs) or mine == theirs:
        return MergedFile(theirs if base == mine else mine)
    lines = tuple(text.splitlines(keepends=True) for text in (base, mine, theirs))
    merged: list[str] = []
    conflicts = []
    for old_part, own_part, new_part in _common_regions(*lines):
        chosen_part = new_part if own_part == old_part else own_part
        merged += chosen_part
        if own_part not in (old_part, new_part) and new_part != old_part:
            conflicts.append(("".join(own_part), "".join(new_part)))
    return MergedFile("".join(merged), tuple(conflicts))


def _common_regions(
    base: Sequence[str], own_lines: Sequence[str], source_lines: Sequence[str]
) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Yield the lines common to the three texts, and the parts between these lines, in order.

    Each item has the lines of the base, of the text changed by hand, and of the new text.
    """
    own_place, new_place = _unchanged_lines(base, own_lines), _unchanged_lines(base, source_lines)
    begin = (0, 0, 0)
    for line in range(len(base) + 1):
        is_end = line == len(base)
        if not is_end and not (line in own_place and line in new_place):
            continue
        end = (
            (line, len(own_lines), len(source_lines)) if is_end else (line, own_place[line], new_place[line])
        )
        yield (
            list(base[begin[0] : end[0]]),
            list(own_lines[begin[1] : end[1]]),
            list(source_lines[begin[2] : end[2]]),
        )
        if not is_end:
            yield [base[line]], [base[line]], [base[line]]
            begin = (line + 1, own_place[line] + 1, new_place[line] + 1)


def _unchanged_lines(base: Sequence[str], text: Sequence[str]) -> dict[int, int]:
    """Return the index in ``text`` of each line of ``base`` that is unchanged, by its index in ``base``."""
    blocks = difflib.SequenceMatcher(None, base, text, autojunk=False).get_matching_blocks()
    return {block.a + at: block.b + at for block in blocks for at in range(block.size)}
