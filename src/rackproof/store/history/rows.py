"""Define the rows of the history's answers: runs, measurements, numbers that could become a reference."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from rackproof.core.records import Direction, Verdict

ParameterMapping = Mapping[str, str | int | float | bool | None]
"""A point of a benchmark's matrix."""


class Measured(NamedTuple):
    """A measured quantity; a label that names hardware holds ``*``."""

    benchmark: str
    parameters: dict[str, Any]
    metric: str
    labels: dict[str, str]
    unit: str
    direction: Direction | None


class RunRow(NamedTuple):
    """A run in a list; ``reason`` is the first of its reasons, ``seconds`` its duration if known."""

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
        """Return the duration, or ``None`` if start or end is not known."""
        if self.started is None or self.ended is None:
            return None
        return (self.ended - self.started).total_seconds()


class MeasurementRow(NamedTuple):
    """A number from the history.

    ``hardware`` is what it was measured on (GPU UUID, serial, chassis; of links and groups the parts'
    keys), ``kind`` what that is (node, gpu, link, group; empty if unknown), ``node`` the key of the one
    node it sat in. A label that names a node shows that node's present host name.
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
    """A number that was unproven only for want of a reference and could become one."""

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
