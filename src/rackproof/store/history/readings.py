"""Read the nights of a whole fleet from the history, as columns of numbers.

Job validate calls this module to judge a night. The input is a connection to the database (or runs), the
end of the night, and the number of nights.

A night of 10,000 nodes gives 400,000 numbers, and a comparison with the past needs 15 nights. The numbers are
therefore arrays, without a Python object for each. Rows are read night by night. All keys are hardware keys,
so the series of a GPU moves with it, and a new hostname changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Select, case, exists, func, literal, select

from rackproof.core.records import Gpu, Measurement, Node, Reference, Run, Verdict
from rackproof.store.history import schema
from rackproof.store.history.identity import Kind, Topology, canonical_json
from rackproof.store.history.identity import Part as Identity
from rackproof.store.history.references import accepted_reference
from rackproof.store.history.rows import Measured
from rackproof.store.history.writer import as_utc, moment_of, quantity_of

NIGHT = timedelta(days=1)

_FETCHED = 50_000
"""Number of rows that are fetched at once."""
_NAMED = 4
"""Largest number of members in the name of a link or group."""

Integers = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_PROVEN_RUNS = frozenset({Verdict.PASS, Verdict.DEGRADED})
"""Verdicts of runs in which each number that gates was judged."""


class Part(NamedTuple):
    """A piece of hardware in a fleet's nights, with its current name, SKU and place.

    Attributes:
        kind: One of node, gpu, link or group.
        key: The key, which remains the same if the hostname changes.
        name: The current hostname of a node, the model of a GPU, or the joined hostnames and GPU UUIDs of the
            members of a link or group.
        sku: The SKU of a node, or "" for a GPU. A link or group has the SKU of its members if they agree.
        node: The index of a GPU's current node in the same list, or -1 if it is unknown.
        slot: The current slot of a GPU, or -1 if it is unknown.
    """

    kind: str
    key: str
    name: str
    sku: str = ""
    node: int = -1
    slot: int = -1


@dataclass(frozen=True)
class Readings:
    """The numbers of nights, as columns of equal length, in no particular order.

    Attributes:
        quantity, part: Indices into ``quantities`` and ``parts``.
        node: The index of the node in which the part was at the time, or -1 for links between nodes and
            groups.
        night: The number of nights before the requested night, which is night 0.
        value: The value in the quantity's unit, or NaN if the number was NaN or infinite.
        is_proven: Whether the rules of its run proved the number (:func:`_is_proven`), so that it needs no
            reference. This is false for numbers of earlier nights.
    """

    quantities: tuple[Measured, ...]
    parts: tuple[Part, ...]
    quantity: Integers
    part: Integers
    node: Integers
    night: Integers
    value: Floats
    is_proven: Bools

    def __len__(self) -> int:
        return len(self.value)

    def chosen(self, rows: NDArray[np.bool_]) -> Readings:
        """Return the rows for which ``rows`` is true, with the same quantities and parts."""
        columns = ("quantity", "part", "node", "night", "value", "is_proven")
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})


class Accepted(NamedTuple):
    """An accepted reference. Its quantity and part are indices as in :class:`Readings`."""

    quantity: int
    part: int
    reference: Reference


class Failure(NamedTuple):
    """A GPU that failed in another node than its current one.

    ``gpu`` is its key. ``then`` is the key of the node in which it failed, and ``now`` the key of its current
    node.
    """

    gpu: str
    then: str
    now: str
    moment: datetime
    metric: str
    reason: str


def read_nights(
    connection: Connection,
    known: Mapping[int, Measured],
    until: datetime,
    nights: int,
) -> Readings:
    """Return the numbers of the nights that end at a given time.

    Args:
        connection: The connection to the history.
        known: The quantities to read, by id.
        until: The end (excluded) of the requested night. Each night is a period of 24 hours.
        nights: The number of nights, including the requested one.
    """
    runs, table = schema.runs, schema.measurements
    until = as_utc(until)
    columns = (
        table.c.quantity_id,
        func.coalesce(table.c.hardware_id, -1),
        func.coalesce(table.c.node_id, -1),
    )
    numbers, values, night = [], [], []
    # Use one query per night, to limit the rows that the database client holds at once.
    for ago in range(nights):
        end = until - ago * NIGHT
        query = (
            select(*columns, literal(False) if ago else _is_proven_in_history(), table.c.value)
            .join(runs, runs.c.id == table.c.run_pk)
            .where(runs.c.moment >= end - NIGHT, runs.c.moment < end)
        )
        for block, value in _blocks(connection, query):
            numbers.append(block)
            values.append(value)
            night.append(np.full(len(value), ago, np.int32))
    quantity, hardware, node, is_proven = np.concatenate([np.empty((4, 0), np.int32), *numbers], axis=1)
    ids = np.array(sorted(known), dtype=np.int64)
    is_known = np.isin(quantity, ids) & (hardware >= 0)
    quantity, hardware, node = quantity[is_known], hardware[is_known], node[is_known]
    parts, part_ids = _parts(connection, np.unique(np.concatenate([hardware, node])))
    return Readings(
        quantities=tuple(known[int(number)] for number in ids),
        parts=parts,
        quantity=np.searchsorted(ids, quantity).astype(np.int32),
        part=_position(part_ids, hardware),
        node=_position(part_ids, node),
        night=np.concatenate([np.empty(0, np.int32), *night])[is_known],
        value=np.concatenate([np.empty(0), *values])[is_known],
        is_proven=is_proven[is_known].astype(bool),
    )


def readings_of(runs: Iterable[Run], until: datetime, *, nights: int = 1) -> Readings:
    """Return the numbers of the given runs. :func:`read_nights` does the same for runs in the database.

    Args:
        runs: The runs. Those outside the nights are ignored.
        until: The end of the requested night.
        nights: The number of nights, including the requested one.
    """
    until = as_utc(until)
    quantities, parts = _QuantityIndex(), _PartIndex()
    rows: list[tuple[int, int, int, int]] = []
    values: list[float] = []
    is_proven: list[bool] = []
    # Sort by time, so that the latest run sets the node of a GPU and the name of a node.
    for run in sorted(runs, key=lambda run: moment_of(run, otherwise=until)):
        # The end is excluded, so a run at exactly that time belongs to the next night.
        night = (until - moment_of(run, otherwise=until) - timedelta(microseconds=1)) // NIGHT
        if not 0 <= night < nights:
            continue
        topology = Topology(run.nodes)
        parts.add_nodes_and_gpus(topology)
        point = canonical_json(run.parameters)
        run_is_proven = night == 0 and _is_proven(run)
        for measurement in run.measurements:
            location = topology.place(measurement.labels)
            if location.hardware is None:
                continue
            node = -1 if location.node is None else parts.add(location.node, topology)
            part = parts.find(location.hardware)
            if part is None:
                part = parts.add(location.hardware, topology, node)
            rows.append((quantities.add(run, point, measurement, location.labels), part, node, night))
            values.append(measurement.value if measurement.finite else np.nan)
            is_proven.append(run_is_proven)
    quantity, part_index, node_index, night_index = np.array(rows, dtype=np.int32).reshape(-1, 4).T
    return Readings(
        tuple(quantities.described),
        tuple(parts.parts),
        quantity,
        part_index,
        node_index,
        night_index,
        np.array(values, dtype=np.float64),
        np.array(is_proven, dtype=np.bool_),
    )


def _is_proven(run: Run) -> bool:
    """Return whether the rules of a run proved its numbers, so that a night needs no references for them.

    In a run that passed or is degraded, each number that gates was judged, and at least one passed. Its other
    numbers have no rule, or a rule that may lack a reference (``candidate`` in a definition).
    """
    return run.verdict in _PROVEN_RUNS and any(
        judgement.gating and judgement.verdict is Verdict.PASS for judgement in run.judgements
    )


def _is_proven_in_history() -> ColumnElement[Any]:
    """Return the column of :func:`_is_proven`, 1 or 0, for a query of measurements and their runs."""
    runs, judged = schema.runs, schema.judgements
    passes = exists().where(
        judged.c.run_pk == runs.c.id, judged.c.gating, judged.c.verdict == Verdict.PASS.value
    )
    is_proven = runs.c.verdict.in_([verdict.value for verdict in _PROVEN_RUNS]) & passes
    return case((is_proven, 1), else_=0)


class _QuantityIndex:
    """The quantities of runs, each once. ``described`` lists them by index."""

    def __init__(self) -> None:
        self.described: list[Measured] = []
        self._index: dict[tuple[str, str, str, str, str], int] = {}

    def add(self, run: Run, point: str, measurement: Measurement, labels: str) -> int:
        """Return the index of a measurement's quantity.

        The point and the labels (of a place) are canonical.
        """
        key = (run.benchmark, point, measurement.name, labels, measurement.unit)
        if key not in self._index:
            self._index[key] = len(self.described)
            self.described.append(
                Measured(
                    run.benchmark,
                    dict(run.parameters),
                    measurement.name,
                    json.loads(labels),
                    measurement.unit,
                    measurement.direction,
                )
            )
        return self._index[key]


class _PartIndex:
    """The hardware of runs, each piece once. ``parts`` lists the pieces by index."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._index: dict[tuple[str, str], int] = {}

    def find(self, identity: Identity) -> int | None:
        """Return the index of a piece that was added before, or None for a new piece."""
        return self._index.get((identity.kind.value, identity.key))

    def add_nodes_and_gpus(self, topology: Topology) -> None:
        """Add the nodes of a run and the GPUs in them."""
        for identity in topology.nodes.values():
            self.add(identity, topology)
        for chip, home in topology.gpus.values():
            self.add(chip, topology, self.add(home, topology))

    def add(self, identity: Identity, topology: Topology, node: int = -1) -> int:
        """Return the index of a piece of hardware in this run. Links and groups add their members."""
        key = (identity.kind.value, identity.key)
        if key not in self._index:
            self._index[key] = len(self.parts)
            self.parts.append(Part(*key, name=""))
        index = self._index[key]
        described_part = topology.described.get(identity)
        if isinstance(described_part, Node):
            self.parts[index] = self.parts[index]._replace(name=described_part.name, sku=described_part.sku)
        elif isinstance(described_part, Gpu):
            self.parts[index] = self.parts[index]._replace(
                name=described_part.name, node=node, slot=described_part.index
            )
        elif identity.members:
            members = [self.parts[self.add(member, topology)] for member in identity.members]
            self.parts[index] = _of_members(self.parts[index], members)
        return index


def accepted_references(connection: Connection, readings: Readings) -> list[Accepted]:
    """Return the accepted references of the quantities and parts of some readings."""
    table, quantities, parts = schema.baselines, schema.quantities, schema.hardware
    rows = connection.execute(
        select(table, quantities.c.digest, quantities.c.unit, parts.c.kind, parts.c.key)
        .join(quantities, quantities.c.id == table.c.quantity_id)
        .join(parts, parts.c.id == table.c.hardware_id)
        .order_by(table.c.accepted.desc(), table.c.moment.desc(), table.c.run_id.desc())
    ).all()
    if not rows:
        return []
    # One node may report a quantity in another unit than the others, which is another quantity.
    numbers = {
        (key.digest, key.unit): index
        for index, quantity in enumerate(readings.quantities)
        for key in [
            quantity_of(
                quantity.benchmark,
                canonical_json(quantity.parameters),
                quantity.metric,
                canonical_json(quantity.labels),
                quantity.unit,
            )
        ]
    }
    places = {part[:2]: index for index, part in enumerate(readings.parts)}
    together: dict[tuple[int, int], list[Any]] = {}
    for row in rows:
        number, place = numbers.get((row.digest, row.unit)), places.get((row.kind, row.key))
        if number is not None and place is not None:
            together.setdefault((number, place), []).append(row)
    return [Accepted(*key, accepted_reference(acceptances)) for key, acceptances in together.items()]


def failures_elsewhere(connection: Connection, since: datetime) -> list[Failure]:
    """Return failures of GPUs in a node that is not their current one, newest first.

    Args:
        connection: The connection to the history.
        since: The earliest time of a failure.
    """
    homes, judged, parts, quantities = (
        schema.placements,
        schema.judgements,
        schema.hardware,
        schema.quantities,
    )
    # Few GPUs ever move. Read only their failures, which the index finds.
    moved = select(homes.c.gpu_id).group_by(homes.c.gpu_id).having(func.count() > 1)
    now: dict[int, int] = {}
    for row in connection.execute(
        select(homes.c.gpu_id, homes.c.node_id).where(homes.c.gpu_id.in_(moved)).order_by(homes.c.last_seen)
    ):
        now[row.gpu_id] = row.node_id
    then = parts.alias()
    query = (
        select(
            parts.c.id,
            parts.c.key,
            then.c.id.label("node_id"),
            then.c.key.label("node"),
            judged.c.moment,
            quantities.c.metric,
            judged.c.reason,
        )
        .join(judged, judged.c.hardware_id == parts.c.id)
        .join(then, then.c.id == judged.c.node_id)
        .join(quantities, quantities.c.id == judged.c.quantity_id)
        .where(parts.c.id.in_(moved), judged.c.verdict == "fail", judged.c.moment >= as_utc(since))
        .order_by(judged.c.moment.desc(), parts.c.key, quantities.c.metric)
    )
    rows = [row for row in connection.execute(query) if now[row.id] != row.node_id]
    keys = {
        row.id: row.key
        for row in connection.execute(
            select(parts.c.id, parts.c.key).where(parts.c.id.in_({now[failed.id] for failed in rows}))
        )
    }
    return [
        Failure(failed.key, failed.node, keys[now[failed.id]], failed.moment, failed.metric, failed.reason)
        for failed in rows
    ]


def _blocks(connection: Connection, query: Select[Any]) -> Iterator[tuple[Integers, Floats]]:
    """Yield the columns of a query, one block of rows at a time.

    The first array has as its rows the ids of quantity, hardware and node, and whether the number is proven.
    The second one has the values.
    """
    result = connection.execute(query)
    # Read from the driver's cursor. SQLAlchemy's rows would double the time of the whole query.
    cursor = result.cursor
    while rows := (cursor.fetchmany(_FETCHED) if cursor is not None else []):
        # The database has NULL in place of NaN and infinity, which becomes NaN here.
        block = np.array(rows, dtype=np.float64)
        yield block[:, :4].astype(np.int32).T, block[:, 4].copy()
    result.close()


def _parts(connection: Connection, ids: Integers) -> tuple[tuple[Part, ...], NDArray[np.int64]]:
    """Return the hardware with the given ids, and its ids in the same (ascending) order."""
    table = schema.hardware
    needed = {int(number) for number in ids if number >= 0}
    # Read all hardware. Most of it is wanted, and a list of 90,000 ids would not be faster. Use all(),
    # because reading SQLAlchemy's rows one by one takes three times as long.
    part_rows = connection.execute(
        select(table.c.id, table.c.kind, table.c.key, table.c.name, table.c.sku)
    ).all()
    # Always include nodes and GPUs. A link needs the names of its ends, and a GPU the index of its node.
    single = (Kind.GPU.value, Kind.NODE.value)
    described = sorted(row for row in map(tuple, part_rows) if row[1] in single or row[0] in needed)
    order = [row[0] for row in described]
    seats = _seats(connection, dict(zip(order, range(len(order)), strict=True)))
    rows = {row[0]: Part(*row[1:], *seats.get(row[0], ())) for row in described}
    for whole_id, members in _members_of(connection, rows).items():
        rows[whole_id] = _of_members(rows[whole_id], members)
    return tuple(rows[number] for number in order), np.array(order, dtype=np.int64)


def _seats(connection: Connection, position: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Return the position of each GPU's current node, and its slot, by the GPU's id."""
    homes = schema.placements
    # The latest placement of a GPU is its current place.
    placed = connection.execute(
        select(homes.c.gpu_id, homes.c.node_id, homes.c.slot).order_by(homes.c.last_seen)
    ).all()
    return {gpu: (position[node], slot) for gpu, node, slot in placed}


def _members_of(connection: Connection, rows: Mapping[int, Part]) -> dict[int, list[Part]]:
    """Return the members of each link or group in their order, by its id."""
    table = schema.hardware_members
    query = select(table.c.whole_id, table.c.member_id).order_by(table.c.whole_id, table.c.position)
    members: dict[int, list[Part]] = {}
    for whole_id, member_id in connection.execute(query):
        if whole_id in rows and member_id in rows:
            members.setdefault(whole_id, []).append(rows[member_id])
    return members


def _of_members(joined: Part, members: Sequence[Part]) -> Part:
    """Return a link or group with the names of its members, and with their SKU if they share it."""
    names = [member.name if member.kind == Kind.NODE.value else member.key for member in members]
    shown_names = names[:_NAMED] + ([f"{len(names) - _NAMED} more"] if len(names) > _NAMED else [])
    skus = {member.sku for member in members}
    joint = ">" if joined.kind == Kind.LINK.value else "+"
    return joined._replace(name=joint.join(shown_names), sku=skus.pop() if len(skus) == 1 else "")


def _position(ids: NDArray[np.int64], wanted: Integers) -> Integers:
    """Return the position of each wanted id among sorted ids, or -1 if it is not there."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int32)
    positions = np.searchsorted(ids, wanted).clip(0, len(ids) - 1)
    return np.where(ids[positions] == wanted, positions, -1).astype(np.int32)
