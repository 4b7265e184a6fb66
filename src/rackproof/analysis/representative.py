"""Choose the measurement that represents several of the same name. No I/O.

Reports call :func:`pick_representative` for a run's headline number, and comparisons of systems for the
value of a run. The input is the measurements of one run with the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rackproof.core.records import Direction, Measurement

DEVICE_LABELS = frozenset({"gpu", "gpu_index", "device", "rank", "node", "from", "to"})
"""Labels that identify a device. Measurements that differ only in these are of the same kind."""
SIZE_LABEL = "size_bytes"
"""The label of a measurement that holds for one message size."""


def pick_representative(group: Sequence[Measurement]) -> Measurement:
    """Return the measurement that represents all measurements of one name.

    If one is NaN or infinite, it is returned. Otherwise, only the largest message size counts, and the
    worst device of each kind (such as a number format). If higher is better, the best kind is returned,
    and else the worst.
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
    """Return the measurements with the largest message size, or all if none states a size."""
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
    # More digits may not fit into 64 bits, and int() refuses thousands of digits.
    text = measurement.labels.get(SIZE_LABEL, "")
    return text.isascii() and text.isdigit() and len(text) < 18
