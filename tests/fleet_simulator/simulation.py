"""Simulate the nights of a fleet: the measurements of every GPU, and the truth about the faults.

A value is ``nominal * exp(sum of effects) * (1 + noise)``. The effects are those of the GPU itself (level,
lottery, own drift), of its firmware, its rack, the night (weather, drift, a rack's bad night, a warm node),
and its faults. A fault of the shape noisy is added to the noise. The same fleet, faults and seed always give
the same nights, however often they are read.

``python -m tests.fleet_simulator`` and its tests read the nights. The simulation does not depend on the way
in which measurements are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from tests.fleet_simulator.faults import Draw, Fault, FaultMix, course, draw_faults, drawn_first_night
from tests.fleet_simulator.fleets import Fleet, Noise
from tests.fleet_simulator.recorded_noise import session_residuals, shared_part, single_residuals

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Measurement(NamedTuple):
    """One value of one GPU in one night. A larger value is better."""

    node: str
    gpu_uuid: str
    sku: str
    firmware: str
    rack: str
    metric: str
    value: float
    unit: str
    night: int


@dataclass(frozen=True)
class Truth:
    """The facts of a simulation that a judge must not know.

    Attributes:
        faults: All faults. ``node`` is ``None`` for the fault of a rack.
        bad_rack_nights: Each rack and night in which the rack was slower without a fault.
        nodes_of_rack: The nodes of every rack.
    """

    faults: tuple[Fault, ...]
    bad_rack_nights: frozenset[tuple[str, int]]
    nodes_of_rack: dict[str, tuple[str, ...]]

    def fault_of_node(self) -> dict[str, Fault]:
        """Return the faults of nodes, by node."""
        return {fault.node: fault for fault in self.faults if fault.node is not None}

    def fault_of_rack(self) -> dict[str, Fault]:
        """Return the faults of racks, by rack."""
        return {fault.rack: fault for fault in self.faults if fault.node is None}


def _metric_array(values: dict[str, float], metrics: list[str]) -> Floats:
    """Return the value of each metric, or the default."""
    return np.array([values.get(metric, values.get("default", 0.0)) for metric in metrics])


def _mask(chosen: tuple[str, ...] | None, metrics: list[str]) -> Floats:
    """Return 1 for each chosen metric and 0 for the others. None chooses all."""
    return np.array([1.0 if chosen is None or metric in chosen else 0.0 for metric in metrics])


class _Layout:
    """The properties of a fleet that are drawn before its first night, except its faults.

    These are its racks, nodes, GPUs, firmware, levels, and the events of each night. Noise and missing values
    are drawn night by night.
    """

    def __init__(self, fleet: Fleet, chance: np.random.Generator) -> None:
        self.fleet = fleet
        self.metrics = fleet.metrics
        self.sku_names = list(fleet.skus)
        shares = np.array([sku.share for sku in fleet.skus.values()])
        sku_of_rack = chance.choice(len(shares), size=fleet.racks, p=shares / shares.sum())
        self.rack_of_node: Integers = np.arange(fleet.nodes) // fleet.nodes_per_rack
        self.sku_of_node: Integers = sku_of_rack[self.rack_of_node]
        gpus = np.array([sku.gpus for sku in fleet.skus.values()])[self.sku_of_node]
        self.node_of_gpu: Integers = np.repeat(np.arange(fleet.nodes), gpus)
        self.first_gpu_of_node: Integers = np.concatenate(([0], np.cumsum(gpus)))
        self.racks = [f"r{rack + 1:04d}" for rack in range(fleet.racks)]
        self.nodes = [
            f"{self.racks[rack]}-n{node % fleet.nodes_per_rack + 1:02d}"
            for node, rack in enumerate(self.rack_of_node)
        ]
        self._draw_firmware(chance)
        self._draw_levels(chance)
        self._draw_events(chance)

    def _draw_firmware(self, chance: np.random.Generator) -> None:
        fleet = self.fleet
        self.firmware_names = list(fleet.firmwares)
        shares = np.array([one.share for one in fleet.firmwares.values()])
        first = chance.choice(len(shares), size=fleet.nodes, p=shares / shares.sum())
        self.moves_in_night = np.zeros(fleet.nodes, dtype=np.int64)
        self.firmware_by_night = np.repeat(first[None, :], fleet.nights + 1, axis=0)
        for rollout in fleet.rollouts:
            before, after = (self.firmware_names.index(one) for one in (rollout.before, rollout.after))
            moved = (first == before) & (chance.random(fleet.nodes) < rollout.share)
            night = rollout.first_night + chance.integers(0, rollout.over_nights, size=fleet.nodes)
            self.moves_in_night[moved] = night[moved]
            for one in range(1, fleet.nights + 1):
                self.firmware_by_night[one, moved & (night <= one)] = after

    def _draw_levels(self, chance: np.random.Generator) -> None:
        fleet, metrics = self.fleet, self.metrics
        count = len(self.node_of_gpu)
        nominal = np.full((len(self.sku_names), len(metrics)), np.nan)
        for row, sku in enumerate(fleet.skus.values()):
            for metric, one in sku.metrics.items():
                nominal[row, metrics.index(metric)] = np.log(one.nominal)
        self.nominal = nominal[self.sku_of_node[self.node_of_gpu]]
        self.firmware_effects = np.array(
            [
                [np.log1p(one.effects.get(metric, 0.0)) for metric in metrics]
                for one in fleet.firmwares.values()
            ]
        )
        rack_offsets = chance.standard_normal((fleet.racks, len(metrics))) * _metric_array(
            fleet.rack_sd, metrics
        )
        self.rack_offsets = rack_offsets[self.rack_of_node[self.node_of_gpu]]
        # The level of each GPU, and the level of the good GPU that may replace it.
        self.levels = [self._levels(count, chance) for _ in range(2)]
        self.slopes = fleet.drift_per_night + fleet.drift_sd_per_night * chance.standard_normal(
            (count, len(metrics))
        )

    def _levels(self, count: int, chance: np.random.Generator) -> Floats:
        fleet, metrics = self.fleet, self.metrics
        levels = chance.standard_normal((count, len(metrics))) * _metric_array(fleet.part_sd, metrics)
        slower = chance.random(count) < fleet.lottery.share
        return levels + np.log1p(fleet.lottery.size) * slower[:, None] * _mask(fleet.lottery.metrics, metrics)

    def _draw_events(self, chance: np.random.Generator) -> None:
        fleet = self.fleet
        nights = fleet.nights
        self.weather = chance.standard_normal((nights + 1, len(self.metrics))) * _metric_array(
            fleet.weather_sd, self.metrics
        )
        self.is_warm: Flags = chance.random((fleet.nodes, nights)) < fleet.warm.share
        bad = fleet.bad_rack_nights
        happens = chance.random((fleet.racks, nights)) < bad.chance
        self.bad_rack_nights = happens * np.log1p(chance.uniform(bad.most, bad.least, (fleet.racks, nights)))
        self.joins_in_night = np.where(chance.random(fleet.nodes) < fleet.join_late, 2, 1)
        if nights > 2 and fleet.join_late:
            late = chance.integers(2, nights + 1, size=fleet.nodes)
            self.joins_in_night = np.where(self.joins_in_night > 1, late, 1)
        replaced = chance.random((len(self.node_of_gpu), nights)) < fleet.replaced
        replaced[:, 0] = False
        # Only the first replacement counts. 0 means none.
        self.replaced_in_night = np.where(replaced.any(axis=1), replaced.argmax(axis=1) + 1, 0)

    def uuid(self, gpu: int, night: int) -> str:
        """Return the UUID of the GPU at a place in a night. It changes when the GPU is replaced."""
        replaced = self.replaced_in_night[gpu]
        generation = 1 if replaced and night >= replaced else 0
        return f"GPU-{gpu:08x}-{generation:04x}-4000-8000-000000000000"

    def of_night(self, night: int) -> Floats:
        """Return the sum of all effects in a night except noise and faults, as ``[gpu, metric]``."""
        fleet = self.fleet
        has_new = (self.replaced_in_night > 0) & (self.replaced_in_night <= night)
        sum_of_effects = self.nominal + np.where(has_new[:, None], self.levels[1], self.levels[0])
        sum_of_effects += self.firmware_effects[self.firmware_by_night[night, self.node_of_gpu]]
        sum_of_effects += self.rack_offsets + self.weather[night] + self.slopes * (night - 1)
        warm = self.is_warm[self.node_of_gpu, night - 1]
        sum_of_effects += np.log1p(fleet.warm.size) * warm[:, None] * _mask(fleet.warm.metrics, self.metrics)
        bad = self.bad_rack_nights[self.rack_of_node[self.node_of_gpu], night - 1]
        sum_of_effects += bad[:, None] * _mask(fleet.bad_rack_nights.metrics, self.metrics)
        return sum_of_effects


Quantile = Callable[[Floats], Floats]


def quantile_of(noise: Noise, metric: str) -> Quantile:
    """Return the function from standard normal values to a metric's noise, as the fleet's description states.

    Raises:
        ValueError: The kind of the noise is unknown.
    """
    scale = noise.scale.get(metric, noise.scale.get("default", 0.0))
    if noise.kind == "normal":
        return lambda normal: scale * normal
    if noise.kind == "student":
        return lambda normal: scale * stdtrit(noise.freedom, np.clip(ndtr(normal), 1e-12, 1 - 1e-12))
    if noise.kind != "recorded" or noise.of not in ("sessions", "singles"):
        raise ValueError(
            f"noise: {noise.kind} of {noise.of}: not student, normal, nor recorded of sessions or singles"
        )
    recorded = np.array(session_residuals(metric) if noise.of == "sessions" else single_residuals(metric))
    places = (np.arange(len(recorded)) + 0.5) / len(recorded)
    return lambda normal: scale * np.interp(ndtr(normal), places, recorded)


class _NoiseModel:
    """The noise from night to night, made of normal values that are correlated in time and within a node.

    A quantile function turns the normal values into the noise of the fleet. So the values have exactly the
    distribution that the fleet's description states, with any correlation.
    """

    def __init__(self, layout: _Layout) -> None:
        noise, metrics = layout.fleet.noise, layout.metrics
        self.node_of_gpu = layout.node_of_gpu
        self.nodes = len(layout.nodes)
        self.quantiles = [quantile_of(noise, metric) for metric in metrics]
        self.carried = noise.autocorrelation
        shared = [shared_part(one) if noise.shared == "recorded" else float(noise.shared) for one in metrics]
        self.shared = np.array(shared)

    def normal_values(self, night_before: Floats | None, chance: np.random.Generator) -> Floats:
        """Return a night's normal values, given those of the night before."""
        columns = len(self.quantiles)
        of_nodes = chance.standard_normal((self.nodes, columns))[self.node_of_gpu]
        of_gpus = chance.standard_normal((len(self.node_of_gpu), columns))
        fresh = np.sqrt(self.shared) * of_nodes + np.sqrt(1 - self.shared) * of_gpus
        if night_before is None:
            return fresh
        return self.carried * night_before + np.sqrt(1 - self.carried**2) * fresh

    def deviations(self, normal: Floats) -> Floats:
        """Return noise as relative deviations."""
        columns = [quantile(normal[:, column]) for column, quantile in enumerate(self.quantiles)]
        return np.column_stack(columns)


class Night:
    """One night. Iterate over it for its measurements, node by node.

    Attributes:
        number: The night's number, from 1.
        nodes: The nodes in service, also those of which nothing is measured.
    """

    def __init__(
        self, simulation: Simulation, number: int, steady: Floats, noises: Callable[[int], Floats]
    ) -> None:
        self.number = number
        layout = simulation.layout
        self.nodes = [
            node for node, joins in zip(layout.nodes, layout.joins_in_night, strict=True) if joins <= number
        ]
        self._simulation = simulation
        self._steady = steady
        self._noises = noises
        self._retests = 0

    def __iter__(self) -> Iterator[Measurement]:
        chance = self._simulation.chance("missing", self.number)
        layout, missing = self._simulation.layout, self._simulation.fleet.missing
        values = np.exp(self._steady) * (1 + self._noises(0))
        answers = (chance.random(len(layout.nodes)) >= missing.nodes) & (layout.joins_in_night <= self.number)
        values[~answers[layout.node_of_gpu]] = np.nan
        values[chance.random(values.shape) < missing.measurements] = np.nan
        yield from self._measurements(values, np.arange(len(values)))

    def retest(self, nodes: Iterable[str]) -> list[Measurement]:
        """Measure these nodes again in the same night. Only the noise is new, and nothing is missing."""
        self._retests += 1
        layout = self._simulation.layout
        again = set(nodes)
        is_chosen = np.array([node in again for node in layout.nodes])[layout.node_of_gpu]
        values = np.exp(self._steady) * (1 + self._noises(self._retests))
        return list(self._measurements(values, np.flatnonzero(is_chosen)))

    def _measurements(self, values: Floats, gpus: Integers) -> Iterator[Measurement]:
        layout, fleet, night = self._simulation.layout, self._simulation.fleet, self.number
        firmware_of_node = layout.firmware_by_night[night]
        units = {
            name: {metric: one.unit for metric, one in sku.metrics.items()}
            for name, sku in fleet.skus.items()
        }
        for gpu in gpus.tolist():
            node = layout.node_of_gpu[gpu]
            sku = layout.sku_names[layout.sku_of_node[node]]
            firmware = layout.firmware_names[firmware_of_node[node]]
            name, rack, uuid = (
                layout.nodes[node],
                layout.racks[layout.rack_of_node[node]],
                layout.uuid(gpu, night),
            )
            for metric, value in zip(layout.metrics, values[gpu].tolist(), strict=True):
                if value == value:  # not a number: not measured
                    yield Measurement(
                        name, uuid, sku, firmware, rack, metric, value, units[sku][metric], night
                    )


class Simulation:
    """The nights of a fleet, made one by one as they are read, and the truth about them.

    Attributes:
        fleet: The fleet.
        seed: The seed.
        truth: The faults, and the bad nights of racks.
        layout: Racks, nodes and GPUs.
    """

    def __init__(self, fleet: Fleet, faults: FaultMix, seed: int) -> None:
        self.fleet = fleet
        self.seed = seed
        self.layout = _Layout(fleet, self.chance("layout"))
        self._faults: list[tuple[Fault, Integers]] = []
        self._place_faults(faults)
        self.truth = Truth(
            tuple(fault for fault, _ in self._faults),
            frozenset(
                (self.layout.racks[rack], night + 1)
                for rack, night in np.argwhere(self.layout.bad_rack_nights < 0).tolist()
            ),
            self._nodes_of_rack(),
        )

    def chance(self, what: str, night: int = 0, again: int = 0) -> np.random.Generator:
        """Return the random numbers of one purpose in one night. They are the same at each call."""
        return np.random.default_rng([self.seed, *what.encode(), night, again])

    def __iter__(self) -> Iterator[Night]:
        model = _NoiseModel(self.layout)
        night_before: Floats | None = None
        for number in range(1, self.fleet.nights + 1):
            steady = self.layout.of_night(number)
            for fault, gpus in self._faults:
                if not fault.noisy:
                    steady[gpus] += np.log1p(self._sizes(fault) * fault.by_night[number - 1])
            yield Night(self, number, steady, self._noises_of(model, night_before, number))
            night_before = model.normal_values(night_before, self.chance("noise", number))

    def _noises_of(
        self, model: _NoiseModel, night_before: Floats | None, number: int
    ) -> Callable[[int], Floats]:
        """Return a function from the number of a retest (0: the night's first measurement) to its noise."""

        def noises(again: int) -> Floats:
            values = model.deviations(model.normal_values(night_before, self.chance("noise", number, again)))
            chance = self.chance("noisy", number, again)
            for fault, gpus in self._faults:
                if fault.noisy:
                    spread = np.abs(self._sizes(fault)) * fault.by_night[number - 1]
                    values[gpus] += spread * chance.standard_normal((len(gpus), len(spread)))
            return np.maximum(values, -0.99)

        return noises

    def _sizes(self, fault: Fault) -> Floats:
        return _metric_array(fault.sizes, self.layout.metrics)

    def _nodes_of_rack(self) -> dict[str, tuple[str, ...]]:
        of_rack: dict[str, list[str]] = {rack: [] for rack in self.layout.racks}
        for node, rack in zip(self.layout.nodes, self.layout.rack_of_node, strict=True):
            of_rack[self.layout.racks[rack]].append(node)
        return {rack: tuple(nodes) for rack, nodes in of_rack.items()}

    def _place_faults(self, mix: FaultMix) -> None:
        chance = self.chance("faults")
        moved = set(np.flatnonzero(self.layout.moves_in_night).tolist())
        for draw in draw_faults(mix, self.layout.rack_of_node.tolist(), moved, chance):
            self._faults.append(self._placed(draw, mix, chance))

    def _placed(self, draw: Draw, mix: FaultMix, chance: np.random.Generator) -> tuple[Fault, Integers]:
        layout, kind = self.layout, draw.kind
        moves = 0 if kind.part == "rack" else int(layout.moves_in_night[draw.where])
        joins = 1 if kind.part == "rack" else int(layout.joins_in_night[draw.where])
        first_night = {"first_night": joins, "rollout": moves}.get(kind.begins) or drawn_first_night(
            mix, self.fleet.nights, chance
        )
        if kind.part == "rack":
            rack, node = draw.where, None
            gpus = np.flatnonzero(layout.rack_of_node[layout.node_of_gpu] == draw.where)
            warm, places = [False] * self.fleet.nights, ()
        else:
            rack, node = int(layout.rack_of_node[draw.where]), layout.nodes[draw.where]
            start, end = layout.first_gpu_of_node[draw.where : draw.where + 2].tolist()
            count = {"gpu": 1, "pair": min(2, end - start), "node": end - start}[kind.part]
            gpus = np.sort(chance.choice(np.arange(start, end), size=count, replace=False))
            warm, places = layout.is_warm[draw.where].tolist(), tuple((gpus - start).tolist())
            # A faulty node joins before its fault begins, and its GPUs are not replaced by good ones.
            layout.joins_in_night[draw.where] = min(layout.joins_in_night[draw.where], first_night)
            layout.replaced_in_night[start:end] = 0
            layout.replaced_in_night[gpus] = first_night if kind.replaces else 0
        names = self._metrics_of(gpus)
        chosen = names if kind.metrics == "all" else [str(chance.choice(names))]
        fault = Fault(
            kind=kind.name,
            size=draw.size,
            node=node,
            rack=layout.racks[rack],
            gpus=places,
            uuids=tuple(layout.uuid(gpu, first_night) for gpu in gpus.tolist()) if node else (),
            first_night=first_night,
            last_night=first_night + kind.lasts - 1 if kind.lasts else None,
            sizes=dict.fromkeys(chosen, draw.size),
            by_night=course(kind, first_night, warm, chance),
            noisy=kind.shape == "noisy",
            all_metrics=kind.metrics == "all",
        )
        return fault, gpus

    def _metrics_of(self, gpus: Integers) -> list[str]:
        measured = ~np.isnan(self.layout.nominal[gpus[0]])
        return [metric for metric, has in zip(self.layout.metrics, measured, strict=True) if has]


def simulate(fleet: Fleet, faults: FaultMix, seed: int) -> Simulation:
    """Return a simulation of a fleet with faults. Iterate over it for the nights."""
    return Simulation(fleet, faults, seed)
