"""Judge the nights of the fleet simulator as validate.yml does.

    python -m tests.fleet_simulator --judge tests.perf.judge_fleets:nights

There are no references, because floors would hide how many faults the comparison with the fleet and with
earlier nights finds. With ``retesting``, the nodes that fail or are suspected are measured once more in the
same night, and the better of the two numbers counts, as in a night that has a budget.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rackproof.analysis.anomaly import AnomalyPolicy, Night, judge_night
from rackproof.analysis.fleet_model import FleetPolicy
from rackproof.core.records import Direction, Verdict, worst
from rackproof.store.history.readings import Part, Readings
from rackproof.store.history.rows import Measured
from tests.fleet_simulator.baselines import Judge, NightLike
from tests.fleet_simulator.simulation import Measurement

BENCHMARK = "probes"
NIGHTS = 15
Row = tuple[int, int, int, float]


@dataclass
class _Nights:
    """A judge that keeps the nights so far, in the form in which the history gives them."""

    retests: bool
    policy: AnomalyPolicy
    parts: list[Part] = field(default_factory=list)
    places: dict[tuple[str, str], int] = field(default_factory=dict)
    quantities: dict[tuple[str, str], int] = field(default_factory=dict)
    nights: list[NDArray[np.float64]] = field(default_factory=list)
    conditions: list[dict[str, tuple[str, str]]] = field(default_factory=list)

    def __call__(self, night: NightLike) -> Mapping[str, str]:
        measured = list(night)
        # The nights are arrays, because fifteen nights as tuples take longer to convert than to judge.
        self.nights.append(np.array([self._row(one) for one in measured]).reshape(-1, 4))
        self.conditions.append({one.node: (one.firmware, one.rack) for one in measured})
        judged = self._judge()
        if self.retests:
            suspects = {
                one.key
                for one in judged.nodes
                if any(
                    why.check in ("fleet", "drift") and why.verdict is not Verdict.DEGRADED
                    for why in one.reasons
                )
            }
            if suspects:
                judged = self._judge_again(night, suspects)
        # A node that was not measured is unproven, which is neither a detection nor a false alarm.
        return {
            one.key: worst(found).value
            for one in judged.nodes
            if (found := [why.verdict for why in one.reasons if why.check != "missing"])
        }

    def _row(self, one: Measurement) -> Row:
        node = self._place("node", one.node, one.sku, -1)
        part = self._place("gpu", one.gpu_uuid, one.sku, node)
        quantity = self.quantities.setdefault((one.metric, one.unit), len(self.quantities))
        return quantity, part, node, one.value

    def _place(self, kind: str, key: str, sku: str, node: int) -> int:
        if (kind, key) not in self.places:
            self.places[kind, key] = len(self.parts)
            self.parts.append(Part(kind, key, key, sku, node))
        return self.places[kind, key]

    def _judge(self, twice: Collection[tuple[str, str]] = ()) -> Night:
        latest = self.nights[-NIGHTS:]
        ago = np.repeat(np.arange(len(latest))[::-1], [len(night) for night in latest])
        quantity, part, node, value = np.concatenate(latest).T
        readings = Readings(
            quantities=tuple(
                Measured(BENCHMARK, {}, metric, {}, unit, Direction.HIGHER)
                for metric, unit in self.quantities
            ),
            parts=tuple(self.parts),
            quantity=quantity.astype(np.int32),
            part=part.astype(np.int32),
            node=node.astype(np.int32),
            night=ago.astype(np.int32),
            value=value,
            is_proven=ago < 0,
        )
        return judge_night(
            readings, {}, policy=self.policy, twice=twice, conditions=self.conditions[-NIGHTS:][::-1]
        )

    def _judge_again(self, night: NightLike, suspects: Collection[str]) -> Night:
        second = {row[:3]: row[3] for row in map(self._row, night.retest(suspects))}
        for row in self.nights[-1]:
            row[3] = max(row[3], second.get(tuple(row[:3]), row[3]))
        return self._judge({(BENCHMARK, name) for name in suspects})


def _judge(retests: bool) -> Judge:
    # No number has a reference here, so none is required.
    return _Nights(retests, AnomalyPolicy(require_references=False, fleet=FleetPolicy()))


def nights() -> Judge:
    """Return the judge of nights that measure everything once."""
    return _judge(retests=False)


def retesting() -> Judge:
    """Return the judge of nights that measure suspects a second time."""
    return _judge(retests=True)
