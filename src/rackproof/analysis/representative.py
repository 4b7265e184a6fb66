"""Choose the measurement that represents several of the same name. No I/O.

A run may measure one metric several times: for each GPU, message size and number format. Reports call
:func:`pick_representative` for a run's headline number, and comparisons of systems for the value of a run.
The input is the measurements of one run with the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rackproof.core.records import Direction, Measurement
from rackproof.core.text import whole_number

MATRIX_LABELS = frozenset({"row", "column"})
"""Labels that identify a pair of devices as a cell of a matrix, such as that of nvbandwidth."""
DEVICE_LABELS = MATRIX_LABELS | {"gpu", "gpu_index", "index", "device", "rank", "node", "from", "to", "pair"}
"""Labels that identify a device or a pair. Measurements that differ only in these are of the same kind."""
SIZE_LABEL = "size_bytes"
"""Label with the message size of a collective or a copy, as text in bytes."""


def pick_representative(group: Sequence[Measurement]) -> Measurement:
    """Return the measurement that represents all measurements of one name.

    If measurements state a message size, only the measurements with the largest size count. If any of these
    is NaN or infinite, the first such measurement is returned. If higher is better for all of them, the
    result is the worst device or pair of the best kind (such as a number format). Otherwise, it is the
    largest value.

    Args:
        group: The measurements, at least one.
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
    sized = [(size, item) for item in group if (size := message_size(item)) is not None]
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


def message_size(measurement: Measurement) -> int | None:
    """Return the message size in bytes that a measurement states, or None if it states none or no integer."""
    return whole_number(measurement.labels.get(SIZE_LABEL, ""))
