"""Choose the one of several measurements of a name that represents them in a headline, a
comparison, a mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rackproof.core.records import Direction, Measurement

DEVICE_LABELS = frozenset({"gpu", "gpu_index", "device", "rank", "node", "from", "to"})
"""Labels that name a device; measurements that differ only in them are the same one on several devices."""
SIZE_LABEL = "size_bytes"
"""The label of a measurement that holds for one message size."""


def pick_representative(group: Sequence[Measurement]) -> Measurement:
    """Return the one measurement that represents all of a name, never a better one than is honest.

    Of several devices it is the worst; of several message sizes the largest; of several kinds (number
    formats) the best where higher is better. Values that are not numbers come first.
    """
    group = _largest_size(group)
    for measurement in group:
        if not measurement.finite:
            return measurement
    if any(measurement.direction is not Direction.HIGHER for measurement in group):
        return max(group, key=_value)
    return max((min(kind, key=_value) for kind in _by_kind(group)), key=_value)


def _value(measurement: Measurement) -> float:
    return measurement.value


def _largest_size(group: Sequence[Measurement]) -> Sequence[Measurement]:
    """Return the measurements of the largest message size; all where none states a size."""
    sized = [(int(item.labels[SIZE_LABEL]), item) for item in group if _is_size(item)]
    if not sized:
        return group
    largest = max(size for size, _ in sized)
    return [item for size, item in sized if size == largest]


def _by_kind(group: Sequence[Measurement]) -> Iterable[list[Measurement]]:
    """Return the measurements of each kind: those that differ only in the device are of one kind."""
    kinds: dict[tuple[tuple[str, str], ...], list[Measurement]] = {}
    for measurement in group:
        kind = tuple(sorted(item for item in measurement.labels.items() if item[0] not in DEVICE_LABELS))
        kinds.setdefault(kind, []).append(measurement)
    return kinds.values()


def _is_size(measurement: Measurement) -> bool:
    # Below 18 digits: a size beyond 64 bits is nonsense, and int() of thousands of digits raises.
    text = measurement.labels.get(SIZE_LABEL, "")
    return text.isascii() and text.isdigit() and len(text) < 18
