"""Compare two runs side by side, for ``rackproof compare``.

The comparison lists every measurement of both runs, and the differences between their environments. It gives
no verdict. Different units are reported, never converted.

Begin with :func:`compare`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from rackproof.core.records import Direction, Measurement, Node, Record, Run, Verdict
from rackproof.core.secret_names import hide_secrets
from rackproof.core.text import moment, shell_command

Better = Literal["first", "second", "same", "unknown"]

# Matches a label such as GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, or of a part of a divided GPU (MIG).
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Fa-f-]{8,}")


class Side(Record):
    """A summary of one of the compared runs. ``when`` is its start or else its end, or ""."""

    run_id: str
    title: str
    verdict: Verdict
    when: str
    nodes: tuple[str, ...]


class ComparedMeasurement(Record):
    """A measurement found in both runs.

    ``labels`` has the labels with the same value in both. ``ratio`` is second / first, and ``difference`` is
    (second - first) / abs(first). Both are ``None`` if the first value is 0, or either value is NaN or
    infinite. For extreme values, they may be infinite. ``better`` depends on the direction.
    """

    name: str
    labels: dict[str, str]
    unit: str
    direction: Direction | None
    first: float
    second: float
    ratio: float | None
    difference: float | None
    better: Better


class Refused(Record):
    """A measurement with a different unit in each run, so that its values are not compared."""

    name: str
    labels: dict[str, str]
    first_unit: str
    second_unit: str


class Unmatched(Record):
    """A measurement of one run without a unique counterpart in the other run.

    If several measurements of a run have the same name and labels, none of them has a counterpart.
    """

    name: str
    labels: dict[str, str]
    value: float
    unit: str
    only_in: Literal["first", "second"]


class Difference(Record):
    """A difference between the environments of two runs. A value that a run does not state is empty."""

    what: str
    first: str
    second: str


class Comparison(Record):
    """The comparison of two runs."""

    first: Side
    second: Side
    measurements: tuple[ComparedMeasurement, ...]
    refused: tuple[Refused, ...]
    unmatched: tuple[Unmatched, ...]
    differences: tuple[Difference, ...]


_Key = tuple[str, tuple[tuple[str, str], ...]]
"""The identity of a measurement: its name and sorted labels."""


def exact_key(measurement: Measurement) -> _Key:
    """Return the name and all labels of a measurement."""
    return measurement.name, tuple(sorted(measurement.labels.items()))


def anonymous_key(measurement: Measurement) -> _Key:
    """Return the name and labels without UUIDs, to compare GPU 0 of one node with GPU 0 of another."""
    labels = {key: value for key, value in measurement.labels.items() if not _UUID.fullmatch(value)}
    return measurement.name, tuple(sorted(labels.items()))


def _remove_pairs(
    first: list[Measurement], second: list[Measurement], key: Callable[[Measurement], _Key]
) -> list[tuple[Measurement, Measurement]]:
    """Remove and return the pairs of measurements with the same key.

    Measurements whose key occurs twice in a list stay in the lists.
    """
    first_by_key, second_by_key = _unique(first, key), _unique(second, key)
    pairs = [
        (measurement, second_by_key[name])
        for name, measurement in first_by_key.items()
        if name in second_by_key
    ]
    # Compare identities, because two measurements with equal fields are still two.
    paired = {id(measurement) for pair in pairs for measurement in pair}
    first[:] = [measurement for measurement in first if id(measurement) not in paired]
    second[:] = [measurement for measurement in second if id(measurement) not in paired]
    return pairs


def _unique(
    measurements: Iterable[Measurement], key: Callable[[Measurement], _Key]
) -> dict[_Key, Measurement]:
    groups: dict[_Key, list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(key(measurement), []).append(measurement)
    return {name: group[0] for name, group in groups.items() if len(group) == 1}


def _compared(first: Measurement, second: Measurement) -> ComparedMeasurement:
    """Return two measurements of one number, with the ratio and difference of the second to the first."""
    direction = first.direction or second.direction
    ratio = difference = None
    if first.finite and second.finite and first.value:
        ratio = second.value / first.value
        difference = (second.value - first.value) / abs(first.value)
    # Labels whose values differ, such as the UUIDs of two GPUs, are not labels of the pair.
    labels = {key: value for key, value in first.labels.items() if second.labels.get(key) == value}
    return ComparedMeasurement(
        name=first.name,
        labels=labels,
        unit=first.unit,
        direction=direction,
        first=first.value,
        second=second.value,
        ratio=ratio,
        difference=difference,
        better=_better(first, second, direction),
    )


def _better(first: Measurement, second: Measurement, direction: Direction | None) -> Better:
    """Return which of two measurements is better. Without a direction, this is unknown."""
    if not (first.finite and second.finite):
        return "unknown"
    if first.value == second.value:
        return "same"
    if direction is None:
        return "unknown"
    return "second" if (second.value > first.value) == (direction is Direction.HIGHER) else "first"


def _facts(run: Run) -> dict[str, str]:
    """Return the compared facts of a run's environment, by name. Secrets are hidden."""
    # The order of the facts determines the order of the differences in the report.
    facts = {
        "benchmark": run.benchmark,
        "suite": run.suite,
        "launcher": run.launcher,
        "command": shell_command(run.command),
        "container": " ".join(filter(None, (run.container, run.container_digest))),
        "configuration": run.configuration,
        "storage": run.storage,
        "network": run.network,
        "seeds": ", ".join(map(str, run.seeds)),
        "definition": run.definition_sha256,
        "rackproof": run.rackproof_version,
        "dataset": " ".join(filter(None, (run.dataset.name, run.dataset.sha256))) if run.dataset else "",
    }
    facts |= _hardware_facts(run.nodes)
    facts |= {f"parameter {name}": str(value) for name, value in run.parameters.items()}
    facts |= {f"environment {name}": value for name, value in hide_secrets(run.environment).items()}
    facts |= {f"software {name}": value for name, value in run.software.items()}
    facts |= _version_facts("software", [node.software for node in run.nodes])
    facts |= _version_facts("firmware", [node.firmware for node in run.nodes])
    return facts


def _hardware_facts(nodes: Sequence[Node]) -> dict[str, str]:
    return {
        "nodes": ", ".join(node.name for node in nodes),
        "SKU": _joined(node.sku for node in nodes),
        "CPU": _joined(f"{node.cpu_count} x {node.cpu}" for node in nodes if node.cpu),
        "GPUs": _joined(f"{len(node.gpus)} x {_joined(gpu.name for gpu in node.gpus)}" for node in nodes),
    }


def _version_facts(kind: str, nodes: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return each name's versions over all nodes, so that a node with another version is visible."""
    names = {name for versions in nodes for name in versions}
    return {f"node {kind} {name}": _joined(versions.get(name, "") for versions in nodes) for name in names}


def _joined(values: Iterable[str]) -> str:
    """Return the distinct values that are not empty, as one text."""
    return " / ".join(sorted({value for value in values if value}))


def _differences(first: Mapping[str, str], second: Mapping[str, str]) -> tuple[Difference, ...]:
    names = [*first, *sorted(set(second) - set(first))]
    return tuple(
        Difference(what=name, first=first.get(name, ""), second=second.get(name, ""))
        for name in names
        if first.get(name, "") != second.get(name, "")
    )


def side_of(run: Run) -> Side:
    """Return the summary of a run."""
    when = run.started or run.ended
    return Side(
        run_id=run.run_id,
        title=run.title,
        verdict=run.verdict,
        when=moment(when) if when else "",
        nodes=tuple(node.name for node in run.nodes),
    )


def compare(first: Run, second: Run) -> Comparison:
    """Compare two runs.

    Measurements are matched by name and labels, and the remaining ones again without the UUIDs of GPUs, so
    that GPU 0 of one node is compared with GPU 0 of another. A match must be unique on both sides. The result
    is in the order of the first run.
    """
    first_remaining, second_remaining = list(first.measurements), list(second.measurements)
    # Find exact matches first. They are then removed, so that the other measurements can be unique without
    # UUIDs.
    pairs = _remove_pairs(first_remaining, second_remaining, exact_key) + _remove_pairs(
        first_remaining, second_remaining, anonymous_key
    )
    order = {id(measurement): index for index, measurement in enumerate(first.measurements)}
    pairs.sort(key=lambda pair: order[id(pair[0])])
    return Comparison(
        first=side_of(first),
        second=side_of(second),
        measurements=tuple(
            _compared(measurement, other) for measurement, other in pairs if measurement.unit == other.unit
        ),
        refused=tuple(
            Refused(
                name=measurement.name,
                labels=measurement.labels,
                first_unit=measurement.unit,
                second_unit=other.unit,
            )
            for measurement, other in pairs
            if measurement.unit != other.unit
        ),
        unmatched=(*_unmatched(first_remaining, "first"), *_unmatched(second_remaining, "second")),
        differences=_differences(_facts(first), _facts(second)),
    )


def _unmatched(measurements: Iterable[Measurement], side: Literal["first", "second"]) -> list[Unmatched]:
    return [
        Unmatched(name=item.name, labels=item.labels, value=item.value, unit=item.unit, only_in=side)
        for item in measurements
    ]
