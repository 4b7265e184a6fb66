"""Host names in the notation of Slurm. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

_NUMBERED = re.compile(r"(.*?)(\d+)")


def compress_hostlist(names: Iterable[str]) -> str:
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
