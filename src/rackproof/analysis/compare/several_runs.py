"""Compare more than two runs by measurement, for ``rackproof compare``. No I/O.

The result is a table with a row for each measurement and a column for each run. It gives no verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rackproof.analysis.compare.runs import Side, anonymous_key, exact_key, side_of
from rackproof.core.records import Direction, Measurement, Record, Run, Spread


class RunValue(Record):
    """The value of a measurement in one run, or None if the run did not measure it."""

    value: float | None = None
    spread: Spread | None = None


class MeasurementOfRuns(Record):
    """A measurement of at least one of several runs.

    ``labels`` has the labels with the same value in all runs that measured it. ``values`` contains an entry
    for each run, in their order.
    """

    name: str
    labels: dict[str, str]
    unit: str
    direction: Direction | None
    values: tuple[RunValue, ...]


class SeveralRuns(Record):
    """The comparison of several runs."""

    runs: tuple[Side, ...]
    measurements: tuple[MeasurementOfRuns, ...]
    """The measurements in the order of the runs, with the first run first."""


_Key = tuple[object, ...]
"""The identity of a measurement: name, sorted labels and unit."""


def compare_several(runs: Sequence[Run]) -> SeveralRuns:
    """Compare runs, in the given order.

    Measurements are matched by name, unit and labels without GPU UUIDs, so that GPU 0 of one node is compared
    with GPU 0 of another. If some measurements of a run differ only in the UUID, they are matched with the
    UUID. If measurements of a run have equal labels, only the first of them is shown.
    """
    numbers: list[dict[_Key, Measurement]] = []
    for run in runs:
        counts = Counter(_key(measurement, anonymous_key) for measurement in run.measurements)
        entries: dict[_Key, Measurement] = {}
        for measurement in run.measurements:
            key = _key(measurement, anonymous_key)
            entries.setdefault(key if counts[key] == 1 else _key(measurement, exact_key), measurement)
        numbers.append(entries)
    firsts: dict[_Key, Measurement] = {}
    for entries in numbers:
        for key, entry in entries.items():
            firsts.setdefault(key, entry)
    return SeveralRuns(
        runs=tuple(side_of(run) for run in runs),
        measurements=tuple(
            MeasurementOfRuns(
                name=first_measurement.name,
                labels=_common_labels([entries[key] for entries in numbers if key in entries]),
                unit=first_measurement.unit,
                direction=first_measurement.direction,
                values=tuple(_value(entries.get(key)) for entries in numbers),
            )
            for key, first_measurement in firsts.items()
        ),
    )


def _key(measurement: Measurement, labels: Callable[[Measurement], tuple[object, ...]]) -> _Key:
    return (*labels(measurement), measurement.unit)


def _common_labels(measurements: Sequence[Measurement]) -> dict[str, str]:
    """Return the labels that are equal in all runs. The UUID of one node's GPU is not among them."""
    first_measurement, *following = measurements
    return {
        key: value
        for key, value in first_measurement.labels.items()
        if all(measurement.labels.get(key) == value for measurement in following)
    }


def _value(measurement: Measurement | None) -> RunValue:
    return RunValue() if measurement is None else RunValue(value=measurement.value, spread=measurement.spread)
