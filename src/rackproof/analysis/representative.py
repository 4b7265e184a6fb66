"""Which one of several measurements of a name represents them all: in a headline, a comparison, a mean."""

from __future__ import annotations

from collections.abc import Sequence

from rackproof.core.records import Direction, Measurement

# Labels that name a device; what differs only in them is the same measurement on several devices.
_DEVICE_LABELS = frozenset({"gpu", "gpu_index", "device", "rank", "node", "from", "to"})
SIZE_LABEL = "size_bytes"
"""The label of a measurement that holds for one message size."""


def pick_representative(group: Sequence[Measurement]) -> Measurement:
    """Return the one measurement that represents all of a name, never a better one than is honest.

    Of several devices it is the worst; of several message sizes the largest; of several kinds (number
    formats) the best where higher is better. What is not a number comes before all.
    """
    sizes = [int(one.labels[SIZE_LABEL]) for one in group if _is_size(one)]
    if sizes:
        group = [one for one in group if _is_size(one) and int(one.labels[SIZE_LABEL]) == max(sizes)]
    broken = [one for one in group if not one.finite]
    if broken:
        return broken[0]
    if any(one.direction is not Direction.HIGHER for one in group):
        return max(group, key=lambda one: one.value)
    kinds: dict[tuple[tuple[str, str], ...], list[Measurement]] = {}
    for one in group:
        kind = tuple(sorted(item for item in one.labels.items() if item[0] not in _DEVICE_LABELS))
        kinds.setdefault(kind, []).append(one)
    lowest = [min(kind, key=lambda one: one.value) for kind in kinds.values()]
    return max(lowest, key=lambda one: one.value)


def _is_size(one: Measurement) -> bool:
    text = one.labels.get(SIZE_LABEL, "")
    return text.isascii() and text.isdigit() and len(text) < 18
