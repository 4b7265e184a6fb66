"""Find which comparisons of a drained node's numbers a night made. No I/O.

A node may be drained because a comparison with the fleet or with its own past failed. This finding ends only
when a night makes the same comparison again. A comparison with its own past must also pass. A new number
alone is therefore not enough. Job validate calls :func:`comparisons` with the numbers of tonight (night 0)
and of earlier nights, to decide whether the node can be resumed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rackproof.analysis.anomaly import AnomalyPolicy, quantity_name
from rackproof.core.records import Direction
from rackproof.store.history.readings import Floats, Integers, Readings

# 1 if more is better, -1 if less is better, and 0 if the better direction is unknown.
_SIGNS = {Direction.HIGHER: 1, Direction.LOWER: -1, None: 0}


def comparisons(
    readings: Readings, drained: Mapping[str, int], policy: AnomalyPolicy | None = None
) -> dict[str, frozenset[str]]:
    """Return tonight's comparisons by the key of the node, as ``fleet:METRIC`` and ``drift:METRIC``.

    ``fleet:METRIC`` is listed if the node and enough nodes of the SKU measured the metric tonight.
    ``drift:METRIC`` is listed if, in addition, at least one part of the node has numbers from before the
    drain, and each such part has enough of them and is about as fast as then (``policy.fleet.loss_fails``),
    relative to the median of the other nodes. Nights since the drain are ignored, because the fault may have
    affected them. If several benchmarks or points measured a metric of one name, all of them must meet this.

    Args:
        readings: The numbers of tonight and of earlier nights.
        drained: The key of each drained node, with the number of nights since its drain began.
        policy: The limits of the comparison.
    """
    policy = policy or AnomalyPolicy()
    by_node: dict[str, frozenset[str]] = {}
    for index, part in enumerate(readings.parts):
        if part.kind == "node" and part.key in drained:
            by_node[part.key] = _comparisons_of(readings, index, drained[part.key], policy)
    return by_node


def _comparisons_of(
    readings: Readings, node: int, nights_drained: int, policy: AnomalyPolicy
) -> frozenset[str]:
    """Return the names ``fleet:METRIC`` and ``drift:METRIC`` that apply to a drained node.

    ``node`` is the node's index in ``readings.parts``, and ``nights_drained`` is the number of nights since
    its drain.
    """
    skus = np.array([part.sku for part in readings.parts])
    # A row of a link between nodes, or of a group, has the node -1.
    alike = (readings.node >= 0) & (skus[readings.node] == skus[node]) & np.isfinite(readings.value)
    lacking: dict[str, set[str]] = {}
    for quantity in np.unique(readings.quantity[(readings.node == node) & (readings.night == 0)]):
        measured = readings.quantities[quantity]
        series = _Series(readings, alike & (readings.quantity == quantity), node, _SIGNS[measured.direction])
        lacking.setdefault(quantity_name(measured), set()).update(series.lacking(nights_drained, policy))
    # Several benchmarks may measure one metric. The comparison must apply to each of them.
    names = {f"{check}:{name}" for name, lacks in lacking.items() for check in {"fleet", "drift"} - lacks}
    return frozenset(names)


class _Series:
    """One quantity of a drained node, as shares of the median of the other nodes of its SKU."""

    def __init__(self, readings: Readings, rows: NDArray[np.bool_], node: int, sign: int) -> None:
        own_rows = rows & (readings.node == node)
        other_rows = rows & (readings.node != node)
        self._others = len(np.unique(readings.node[other_rows & (readings.night == 0)]))
        self._part: Integers = readings.part[own_rows]
        self._night: Integers = readings.night[own_rows]
        medians = {
            int(night): float(np.median(readings.value[other_rows & (readings.night == night)]))
            for night in np.unique(readings.night[other_rows])
        }
        usual = np.array([medians.get(int(night), np.nan) for night in self._night], dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = readings.value[own_rows] / usual
            # Invert the share if less is better. Without a direction it is NaN, so that drift is not listed.
            self._share: Floats = share if sign > 0 else 1 / share if sign < 0 else share * np.nan

    def lacking(self, nights_drained: int, policy: AnomalyPolicy) -> set[str]:
        """Return which of ``fleet`` and ``drift`` do not apply.

        Neither applies if tonight's numbers are too few. ``drift`` does not apply if earlier numbers are too
        few, or if a part became slower.
        """
        fleet = policy.fleet
        tonight = np.unique(self._part[self._night == 0])
        if self._others + 1 < fleet.nodes_least or not len(tonight):
            return {"fleet", "drift"}
        earlier_shares = [self._before(part, nights_drained) for part in tonight]
        # A new GPU has no earlier numbers, so the other GPUs of the node decide.
        is_new = [not len(rows) for rows in earlier_shares]
        if all(is_new):
            return {"drift"}
        is_as_fast = all(
            new or self._is_as_fast(part, before, policy)
            for part, before, new in zip(tonight, earlier_shares, is_new, strict=True)
        )
        return set() if is_as_fast else {"drift"}

    def _before(self, part: int, nights_drained: int) -> Floats:
        """Return the finite shares of a part in the nights before the drain."""
        shares: Floats = self._share[(self._part == part) & (self._night > nights_drained)]
        return shares[np.isfinite(shares)]

    def _is_as_fast(self, part: int, before: Floats, policy: AnomalyPolicy) -> bool:
        """Return whether a part is about as fast as before the drain, and ``before`` has enough shares.

        A part that is faster than before counts as well.
        """
        tonight = self._share[(self._part == part) & (self._night == 0)]
        least = float(np.median(before)) * (1 - policy.fleet.loss_fails)
        return len(before) >= policy.fleet.nights_least and bool((tonight >= least).all())
