"""Define the rows that the history returns: runs, measurements, and candidates for references.

The history makes the rows from its tables. Jobs, commands and certificates read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from rackproof.core.records import Direction, Verdict

ParameterMapping = Mapping[str, str | int | float | bool | None]
"""A point of a benchmark's matrix."""


class Measured(NamedTuple):
    """A measured quantity. The value of a label that contains hardware is ``*``."""

    benchmark: str
    parameters: dict[str, Any]
    metric: str
    labels: dict[str, str]
    unit: str
    direction: Direction | None


class KnownNames(NamedTuple):
    """The names that exist in a history: of benchmarks and nodes."""

    benchmarks: tuple[str, ...]
    nodes: tuple[str, ...]


class RunRow(NamedTuple):
    """A run in a list.

    ``reason`` is the first reason for its verdict. ``moment`` is the start of the run, or else its end, the
    time in its id, or the time when it was first stored. ``nodes`` are names.
    """

    run_id: str
    plan_id: str
    benchmark: str
    suite: str
    parameters: dict[str, Any]
    verdict: Verdict
    reason: str
    provenance: str
    moment: datetime
    started: datetime | None
    ended: datetime | None
    nodes: tuple[str, ...]

    @property
    def seconds(self) -> float | None:
        """Return the duration, or ``None`` if the start or the end is unknown."""
        if self.started is None or self.ended is None:
            return None
        return (self.ended - self.started).total_seconds()


class MeasurementRow(NamedTuple):
    """A measured number from the history.

    Attributes:
        labels: The labels. A label with a node shows the node's current hostname.
        hardware: The key of the measured hardware: a GPU's UUID, or a node's serial number or chassis.
            The key of a link or group contains the keys of its members.
        kind: The kind of hardware (node, gpu, link, group), or empty if it is unknown.
        node: The key of the node that contained the hardware, or empty if that is no single node.
    """

    run_id: str
    moment: datetime
    benchmark: str
    parameters: dict[str, Any]
    metric: str
    labels: dict[str, str]
    unit: str
    direction: Direction | None
    value: float
    hardware: str
    kind: str
    node: str


class Candidate(NamedTuple):
    """A number that is unproven only because it has no reference, and that could become one.

    ``hardware`` is a key, as in :class:`MeasurementRow`.
    """

    run_id: str
    moment: datetime
    benchmark: str
    parameters: dict[str, Any]
    metric: str
    labels: dict[str, str]
    unit: str
    value: float
    hardware: str
    reason: str
