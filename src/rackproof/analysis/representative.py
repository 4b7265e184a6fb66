"""Choose the measurement that represents several of the same name in a headline, comparison or mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rackproof.core.records import Direction, Measurement

DEVICE_LABELS = frozenset({"gpu", "gpu_index", "device", "rank", "node", "from", "to"})
"""Labels that identify a device. Measurements that differ only in these are of the same kind."""
SIZE_LABEL = "size_bytes"
"""The label of a measurement that holds for one message size."""


def pick_representative(group: Sequence[Measurement]) -> Measurement:
    """Return the measurement that represents all of a name. It is never better than the others justify.

    Of several devices, it is the worst, and of several message sizes, the largest. Of several kinds
    (number formats), it is the best if higher is better. Values that are not numbers come first.
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
    """Return the measurements with the largest message size, or all if none has a size."""
    sized = [(int(item.labels[SIZE_LABEL]), item) for item in group if _is_size(item)]
    if not sized:
        return group
    largest = max(size for size, _ in sized)
    return [item for size, item in sized if size == largest]


def _by_kind(group: Sequence[Measurement]) -> Iterable[list[Measurement]]:
    """Return the measurements of each kind. Measurements of one kind differ only in the device."""
    kinds: dict[tuple[tuple[str, str], ...], list[Measurement]] = {}
    for measurement in group:
        kind = tuple(sorted(item for item in measurement.labels.items() if item[0] not in DEVICE_LABELS))
        kinds.setdefault(kind, []).append(measurement)
    return kinds.values()


def _is_size(measurement: Measurement) -> bool:
    # Allow fewer than 18 digits. A size beyond 64 bits is invalid, and int() refuses thousands of
    # digits.
    text = measurement.labels.get(SIZE_LABEL, "")
    return text.isascii() and text.isdigit() and len(text) < 18
