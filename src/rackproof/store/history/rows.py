"""Define the rows of the history's answers.

They are runs, measurements, and numbers that could become references.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from rackproof.core.records import Direction, Verdict

ParameterMapping = Mapping[str, str | int | float | bool | None]
"""A point of a benchmark's matrix."""


class Measured(NamedTuple):
    """Describe a measured quantity. A label that contains hardware has the value ``*``."""

    benchmark: str
    parameters: dict[str, Any]
    metric: str
    labels: dict[str, str]
    unit: str
    direction: Direction | None


class RunRow(NamedTuple):
    """Describe a run in a list. ``reason`` is its first reason, and ``seconds`` its duration if known."""

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
    """Describe a number from the history.

    Attributes:
        hardware: The measured hardware, as GPU UUID, serial or chassis. For links and groups, it has the
            keys of the parts.
        kind: The kind of hardware (node, gpu, link, group; empty if unknown).
        node: The key of the single node in which it was. A label with a node has the node's current
            hostname.
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
    """A number that is unproven only because it had no reference, and that could become one."""

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
