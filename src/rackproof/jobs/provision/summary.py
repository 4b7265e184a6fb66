"""What ``provision.yml`` says at its end: what changed on which nodes, and what needs attention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from rackproof.core.text import clean

_NUMBERED = re.compile(r"(.*?)(\d+)")
MAX_ATTENTION = 600
"""Characters of one remark: an error message of apt can be long."""


def fold(names: Iterable[str]) -> str:
    """Return node names in the notation of Slurm: ``n01 n02 n03 x`` becomes ``n[01-03],x``."""
    groups: dict[tuple[str, int], list[int]] = {}
    whole = []
    for name in sorted(set(names)):
        if found := _NUMBERED.fullmatch(name):
            groups.setdefault((found[1], len(found[2])), []).append(int(found[2]))
        else:
            whole.append(name)
    folded = []
    for (stem, width), numbers in groups.items():
        numbers.sort()
        starts = [numbers[0]] + [b for a, b in pairwise(numbers) if b != a + 1]
        ends = [a for a, b in pairwise(numbers) if b != a + 1] + [numbers[-1]]
        ranges = [
            f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}"
            for a, b in zip(starts, ends, strict=True)
        ]
        folded.append(f"{stem}{ranges[0]}" if len(numbers) == 1 else f"{stem}[{','.join(ranges)}]")
    return ",".join(sorted(folded + whole))


def summary(
    changed: Mapping[str, Iterable[str]], attention: Mapping[str, Iterable[str]], predicted: bool = False
) -> str:
    """Return the summary of a playbook.

    Args:
        changed: names of the tasks that changed something, by node; a node without changes has an empty list.
        attention: remarks by node.
        predicted: whether the playbook ran in check mode.

    Returns:
        A paragraph for each group of nodes to which the same happened, largest group first.
    """
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for node in sorted(changed.keys() | attention.keys()):
        remarks = tuple(
            clean(one, limit=MAX_ATTENTION).replace(node, "NODE") for one in attention.get(node, ())
        )
        groups.setdefault((tuple(changed.get(node, ())), remarks), []).append(node)
    lines = []
    for (tasks, remarks), nodes in sorted(groups.items(), key=lambda one: (-len(one[1]), one[1])):
        count = f" ({len(nodes)} nodes)" if len(nodes) > 1 else ""
        verb = "would change" if predicted else "changed"
        what = f"{len(tasks)} {verb}" if tasks else f"nothing {verb}"
        lines.append(f"{fold(nodes)}{count}: {what}")
        lines += [f"    {clean(task)}" for task in tasks]
        one_node = nodes[0] if len(nodes) == 1 else "the node"
        lines += [f"    ATTENTION {remark.replace('NODE', one_node)}" for remark in remarks]
    return "\n".join(lines)
