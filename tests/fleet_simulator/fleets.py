"""Read fleets from ``fleets.yml``, check them, and define the parts of a fleet.

A fleet has these keys. All spreads, sizes and effects are relative: 0.01 is 1 %.

* ``nights``, ``nodes``, ``nodes_per_rack``: the sizes of the fleet. All nodes of a rack have one SKU.
* ``skus``: for each node model the ``share`` of the racks, ``gpus``, and ``metrics`` with ``nominal`` value
  and ``unit``. A larger value is better.
* ``firmwares``: for each firmware its ``share`` of the nodes and its ``effects`` per metric
* ``rollouts``: a ``share`` of the nodes with firmware ``from`` gets ``to``, in ``over_nights`` nights from
  ``first_night`` on
* ``lottery``: a ``share`` of the GPUs is slower by ``size`` in ``metrics`` (default: all). Such GPUs are
  good.
* ``part_sd``, ``rack_sd``, ``weather_sd``: standard deviations of the GPUs' levels, of the racks' offsets,
  and of a night's effect on all nodes, per metric. ``default`` is for the other metrics.
* ``drift_per_night``, ``drift_sd_per_night``: the slow change of the whole fleet, and the standard deviation
  of the GPUs' own drifts
* ``warm``: the ``share`` of the node-nights in which a job had warmed the node, and the ``size`` of its
  effect on good GPUs in ``metrics`` (default: all)
* ``bad_rack_nights``: the ``chance`` that a rack is slower in a night, by a size between ``least`` and
  ``most``, in ``metrics`` (default: all)
* ``missing``: the shares of ``measurements`` that are not made, and of ``nodes`` that do not answer in a
  night
* ``join_late``: the share of the nodes that are not there in the first night
* ``replaced``: the chance that a GPU is replaced by a good one before a night
* ``noise``: ``kind`` is student (with ``freedom``), normal or recorded (``of`` singles or sessions).
  ``scale`` is per metric, and ``autocorrelation`` is from night to night. ``shared`` is the correlation of
  two GPUs of a node (``recorded``: as in the recording).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).with_name("fleets.yml")


@dataclass(frozen=True)
class Metric:
    """A metric of a SKU's GPUs: its usual value ``nominal``, in ``unit``."""

    nominal: float
    unit: str


@dataclass(frozen=True)
class Sku:
    """A node model: its number of GPUs, the metrics of each GPU, and the model's share of the racks."""

    gpus: int
    metrics: dict[str, Metric]
    share: float = 1.0


@dataclass(frozen=True)
class Firmware:
    """A firmware: its share of the nodes, and its relative effect on each metric."""

    share: float
    effects: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollout:
    """A change of firmware that reaches part of the nodes."""

    before: str
    after: str
    first_night: int
    over_nights: int
    share: float


@dataclass(frozen=True)
class PartlySlower:
    """A share of GPUs or node-nights with the relative change ``size`` in ``metrics`` (``None``: in all)."""

    share: float = 0.0
    size: float = 0.0
    metrics: tuple[str, ...] | None = None


@dataclass(frozen=True)
class BadRackNights:
    """The chance that a whole rack is slower for a night, and the bounds of the relative change."""

    chance: float = 0.0
    least: float = 0.0
    most: float = 0.0
    metrics: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Missing:
    """Share of the measurements that are missing, and share of the nodes that do not answer in a night."""

    measurements: float = 0.0
    nodes: float = 0.0


@dataclass(frozen=True)
class Noise:
    """The scatter of values from night to night without a change."""

    kind: str
    scale: dict[str, float]
    freedom: float = 3.0
    of: str = "sessions"
    autocorrelation: float = 0.0
    shared: float | str = 0.0


@dataclass(frozen=True)
class Fleet:
    """A fleet as ``fleets.yml`` describes it."""

    name: str
    nights: int
    nodes: int
    nodes_per_rack: int
    skus: dict[str, Sku]
    firmwares: dict[str, Firmware]
    noise: Noise
    rollouts: tuple[Rollout, ...] = ()
    lottery: PartlySlower = PartlySlower()
    part_sd: dict[str, float] = field(default_factory=dict)
    rack_sd: dict[str, float] = field(default_factory=dict)
    weather_sd: dict[str, float] = field(default_factory=dict)
    drift_per_night: float = 0.0
    drift_sd_per_night: float = 0.0
    warm: PartlySlower = PartlySlower()
    bad_rack_nights: BadRackNights = BadRackNights()
    missing: Missing = Missing()
    join_late: float = 0.0
    replaced: float = 0.0

    @property
    def metrics(self) -> list[str]:
        """Return the names of all metrics, in the order in which the SKUs have them."""
        return list(dict.fromkeys(metric for sku in self.skus.values() for metric in sku.metrics))

    @property
    def racks(self) -> int:
        """Return the number of racks."""
        return -(-self.nodes // self.nodes_per_rack)


def _of(kind: type, content: dict[str, Any], where: str) -> Any:
    """Return an object of a class, with the values of a mapping.

    Raises:
        ValueError: A key is unknown. The message begins with ``where``.
    """
    known = {one.name for one in fields(kind)}
    if unknown := set(content) - known:
        raise ValueError(
            f"{where}: {', '.join(sorted(unknown))}: unknown; known are {', '.join(sorted(known))}"
        )
    as_tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    return kind(**as_tuples)


def fleet_of(name: str, content: dict[str, Any]) -> Fleet:
    """Return the fleet that a mapping describes.

    Raises:
        ValueError: A key is unknown; the message names the fleet and the key.
    """
    parts: dict[str, Any] = dict(content)
    parts["skus"] = {
        key: _of(
            Sku,
            {
                **sku,
                "metrics": {
                    metric: _of(Metric, one, f"{name}: {metric}") for metric, one in sku["metrics"].items()
                },
            },
            f"{name}: {key}",
        )
        for key, sku in content["skus"].items()
    }
    parts["firmwares"] = {
        str(key): _of(Firmware, one, f"{name}: {key}") for key, one in content["firmwares"].items()
    }
    parts["rollouts"] = [
        _of(
            Rollout,
            {{"from": "before", "to": "after"}.get(key, key): value for key, value in one.items()},
            f"{name}: rollouts",
        )
        for one in content.get("rollouts", [])
    ]
    nested = {
        "noise": Noise,
        "lottery": PartlySlower,
        "warm": PartlySlower,
        "bad_rack_nights": BadRackNights,
        "missing": Missing,
    }
    for key, kind in nested.items():
        if key in content:
            parts[key] = _of(kind, content[key], f"{name}: {key}")
    fleet: Fleet = _of(Fleet, {"name": name, **parts}, name)
    return fleet


@cache
def fleets() -> dict[str, Fleet]:
    """Return the fleets of ``fleets.yml``."""
    content = yaml.safe_load(DATA.read_text())
    return {name: fleet_of(name, one) for name, one in content.items()}
