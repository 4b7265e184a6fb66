"""Write runs into the tables of the history.

:class:`rackproof.store.history.repository.Store` calls :meth:`RunWriter.enter` in a transaction, with
runs from the results folder.

The rows of several hundred runs are written together, table by table. The order of the tables, and of the
rows in them, is fixed, which avoids deadlocks of two writers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, case, delete, insert, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from rackproof.core.records import Gpu, Judgement, Node, Run, Verdict
from rackproof.store.history import schema
from rackproof.store.history.identity import (
    Kind,
    Part,
    Place,
    Topology,
    canonical_json,
    digest_of,
    storable_text,
)
from rackproof.store.history.schema import KEY_LIMIT, TEXT_LIMIT
from rackproof.store.run_folder import dump_run, stamp_of

_CHUNK = 400
"""Largest number of keys in a query. SQLite accepts only a few thousand parameters in a statement."""

_LARGEST_INTEGER = 2**31 - 1
"""Largest number in a column of whole numbers. A larger exit status or slot only stays in the record."""
_NO_SLOT = -1
"""Slot of a GPU whose slot is unknown, or is too large for its column."""

# The numbers that SQLite cannot store, by their text in the column ``special``.
_SPECIALS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

Row = dict[str, Any]
"""The values of a row, by column."""
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Quantity:
    """A measured quantity, without value, time and hardware.

    ``digest`` and ``unit`` are its key. ``parameters`` and ``labels`` are canonical JSON.
    """

    digest: str
    unit: str
    benchmark: str
    parameters: str
    metric: str
    labels: str
    direction: str | None = None


@lru_cache(maxsize=10_000)
def quantity_of(
    benchmark: str, point: str, metric: str, labels: str, unit: str = "", direction: str | None = None
) -> Quantity:
    """Return the quantity of a metric.

    Args:
        benchmark: The name of the benchmark.
        point: The point of the matrix, as canonical parameters.
        metric: The name of the measurement.
        labels: The canonical labels, as in :class:`rackproof.store.history.identity.Place`.
        unit: The unit. Numbers in different units are never compared.
        direction: The better direction, ``higher`` or ``lower``, which is not part of the identity.
    """
    return Quantity(
        digest=digest_of(benchmark, point, metric, labels),
        unit=storable_text(unit, KEY_LIMIT),
        benchmark=storable_text(benchmark, KEY_LIMIT),
        parameters=point,
        metric=storable_text(metric, KEY_LIMIT),
        labels=labels,
        direction=direction,
    )


def moment_of(run: Run, *, otherwise: datetime) -> datetime:
    """Return the start of a run, or else its end, the time in its id, or ``otherwise``."""
    return as_utc(run.started or run.ended or stamp_of(run.run_id) or otherwise)


def as_utc(moment: datetime) -> datetime:
    """Return a time in UTC. A time without a time zone is taken as UTC.

    A time that is outside the years of UTC is replaced by the earliest or latest one that each time zone can
    show.
    """
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        is_late = moment.year == MAXYEAR
        bound = datetime.max - timedelta(days=1) if is_late else datetime.min + timedelta(days=1)
        return bound.replace(tzinfo=UTC)


def is_candidate(judgement: Judgement) -> bool:
    """Return whether a judgement only lacks a reference, so that its number could become one.

    Its reason contains ``no reference`` (:data:`rackproof.core.judging.NO_REFERENCE`).
    """
    return (
        judgement.reference is None
        and judgement.verdict is Verdict.UNPROVEN
        and judgement.value is not None
        and math.isfinite(judgement.value)
        and "no reference" in judgement.reason
    )


def split_special(value: float | None) -> tuple[float | None, str | None]:
    """Return a number as two columns, because SQLite turns NaN into NULL.

    For NaN and infinity, the first column is None, and the second one has the name of the number. For other
    numbers, the second column is None.
    """
    if value is None or math.isfinite(value):
        return value, None
    return None, "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def join_special(value: float | None, special: str | None) -> float:
    """Return the number that :func:`split_special` split into two columns."""
    return _SPECIALS[special] if special is not None else math.nan if value is None else value


class RunWriter:
    """A writer of runs on one connection, inside the caller's transaction.

    Attributes:
        hardware_ids: The ids of the stored hardware by kind and key.
        quantity_ids: The ids of the stored quantities by digest and unit.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._insert: Callable[[Table], Any] = (
            postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        )
        self.hardware_ids: dict[tuple[str, str], int] = {}
        self.quantity_ids: dict[tuple[str, str], int] = {}

    def enter(self, runs: Iterable[Run], *, again: bool = False) -> list[str]:
        """Store runs (several hundred at most), and return the ids of the runs that were written.

        A run whose record is already stored is written only with ``again``.
        """
        now = datetime.now(UTC)
        run_drafts = {run.run_id: _Draft(run, now) for run in runs}
        stored = {} if again else self._known(run_drafts)
        drafts = [
            draft
            for run_id, draft in sorted(run_drafts.items())
            if run_id not in stored or stored[run_id].record_sha256 != draft.record_sha256
        ]
        if not drafts:
            return []
        self._enter_hardware(drafts)
        self._enter_quantities(drafts)
        self._enter_runs(drafts)
        return [draft.run.run_id for draft in drafts]

    def _known(self, drafts: Mapping[str, _Draft]) -> dict[str, Any]:
        """Return the rows of the runs that are already stored, by id."""
        runs = schema.runs
        return {
            row.run_id: row
            for chunk in _chunks(drafts)
            for row in self._connection.execute(
                select(runs.c.run_id, runs.c.record_sha256).where(runs.c.run_id.in_(chunk))
            )
        }

    def _enter_hardware(self, drafts: Sequence[_Draft]) -> None:
        """Store the hardware of runs, with its names and places."""
        sightings = _Sightings(drafts)
        parts = sightings.parts
        # Use the order of the keys. Writers that lock rows in the same order cannot deadlock.
        self._insert_or_update(schema.hardware, ("kind", "key"), [parts[key] for key in sorted(parts)])
        self.hardware_ids |= self.find_hardware(parts)
        ids = self.hardware_ids
        self._insert_new(schema.hardware_members, sightings.member_rows(ids))
        self._insert_or_update(
            schema.host_names,
            ("hardware_id", "name"),
            [
                {"hardware_id": ids[key], "name": name, **row}
                for (key, name), row in sorted(sightings.names.items())
            ],
        )
        self._insert_or_update(
            schema.placements,
            ("gpu_id", "node_id"),
            [
                {"gpu_id": ids[gpu], "node_id": ids[node], **row}
                for (gpu, node), row in sorted(sightings.places.items())
            ],
        )

    def _enter_quantities(self, drafts: Sequence[_Draft]) -> None:
        """Store the quantities of runs that are not known yet."""
        quantity_by_key = {
            (quantity.digest, quantity.unit): quantity for draft in drafts for quantity in draft.quantities
        }
        quantities = self.find_quantities(quantity_by_key)
        missing = sorted(quantity_by_key.keys() - quantities.keys())
        if missing:
            self._insert_new(schema.quantities, [vars(quantity_by_key[key]) for key in missing])
            quantities |= self.find_quantities(missing)
        self.quantity_ids |= quantities

    def _enter_runs(self, drafts: Sequence[_Draft]) -> None:
        """Store the rows of runs, and replace their details."""
        runs = schema.runs
        statement = self._insert(runs)
        # Keep the time when a run was first stored. An imported run may state no other time.
        changed = [column.name for column in runs.c if column.name not in ("id", "run_id", "kept")]
        statement = statement.on_conflict_do_update(
            index_elements=["run_id"], set_={name: statement.excluded[name] for name in changed}
        )
        self._connection.execute(statement, [draft.run_row(self.hardware_ids) for draft in drafts])
        self._replace_details(drafts, self._run_keys([draft.run.run_id for draft in drafts]))

    def _run_keys(self, run_ids: Iterable[str]) -> dict[str, int]:
        """Return the primary keys of runs by id."""
        runs = schema.runs
        return {
            row.run_id: row.id
            for chunk in _chunks(run_ids)
            for row in self._connection.execute(
                select(runs.c.run_id, runs.c.id).where(runs.c.run_id.in_(chunk))
            )
        }

    def _replace_details(self, drafts: Sequence[_Draft], keys: Mapping[str, int]) -> None:
        """Delete the details of runs, and insert the new ones. A changed record may give fewer rows."""
        tables = (schema.records, schema.run_nodes, schema.measurements, schema.judgements)
        for table in tables:
            for chunk in _chunks(sorted(keys.values())):
                self._connection.execute(delete(table).where(table.c.run_pk.in_(chunk)))
        rows: dict[str, list[Row]] = {table.name: [] for table in tables}
        for draft in drafts:
            details = draft.detail_rows(keys[draft.run.run_id], self.hardware_ids, self.quantity_ids)
            for name, of_table in details.items():
                rows[name] += of_table
        for table in tables:
            # An empty list would insert one row of defaults.
            if rows[table.name]:
                self._connection.execute(insert(table), rows[table.name])

    def find_hardware(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Return the ids of known hardware by kind and key."""
        table = schema.hardware
        return {
            (row.kind, row.key): row.id
            for chunk in _chunks(keys)
            for row in self._connection.execute(
                select(table.c.id, table.c.kind, table.c.key).where(
                    tuple_(table.c.kind, table.c.key).in_(chunk)
                )
            )
        }

    def find_quantities(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Return the ids of known quantities by digest and unit."""
        table = schema.quantities
        return {
            (row.digest, row.unit): row.id
            for chunk in _chunks(keys)
            for row in self._connection.execute(
                select(table.c.id, table.c.digest, table.c.unit).where(
                    tuple_(table.c.digest, table.c.unit).in_(chunk)
                )
            )
        }

    def _insert_or_update(self, table: Table, key: tuple[str, ...], rows: list[Row]) -> None:
        """Insert rows of hardware, or update known ones with the description of the latest run.

        The table has the columns ``first_seen`` and ``last_seen``, and ``key`` are its unique columns.
        """
        if not rows:
            return
        statement = self._insert(table)
        new = statement.excluded
        is_later = new.last_seen >= table.c.last_seen
        changes = {
            column.name: case((is_later, new[column.name]), else_=column)
            for column in table.c
            if column.name not in (*key, "id", "first_seen")
        }
        is_earlier = new.first_seen < table.c.first_seen
        changes["first_seen"] = case((is_earlier, new.first_seen), else_=table.c.first_seen)
        self._connection.execute(
            statement.on_conflict_do_update(index_elements=list(key), set_=changes), rows
        )

    def _insert_new(self, table: Table, rows: list[Row]) -> None:
        """Insert rows, except those whose key exists."""
        if rows:
            self._connection.execute(self._insert(table).on_conflict_do_nothing(), rows)


class _Sightings:
    """The hardware of runs, with the latest description of each part and the time of its first run."""

    def __init__(self, drafts: Sequence[_Draft]) -> None:
        self.parts: dict[tuple[str, str], Row] = {}
        self.names: dict[tuple[tuple[str, str], str], Row] = {}
        self.places: dict[tuple[tuple[str, str], tuple[str, str]], Row] = {}
        self._members: dict[tuple[str, str], tuple[Part, ...]] = {}
        for draft in sorted(drafts, key=lambda draft: draft.moment):
            self._add(draft)

    def _add(self, draft: _Draft) -> None:
        """Add the hardware of one run. Runs are added in the order of time."""
        topology = draft.topology
        times = {"first_seen": draft.moment, "last_seen": draft.moment}
        for part in draft.parts:
            _merge(self.parts, _key(part), {**_describe(part, topology.described.get(part)), **times})
            if part.members:
                self._members[_key(part)] = part.members
        for name, part in topology.nodes.items():
            _merge(self.names, (_key(part), storable_text(name, KEY_LIMIT)), dict(times))
        for chip, node in topology.gpus.values():
            gpu = topology.described[chip]
            slot = gpu.index if isinstance(gpu, Gpu) else 0
            slot = slot if slot <= _LARGEST_INTEGER else _NO_SLOT
            _merge(self.places, (_key(chip), _key(node)), {"slot": slot, **times})

    def member_rows(self, ids: Mapping[tuple[str, str], int]) -> list[Row]:
        """Return the members of links and groups, in order."""
        return [
            {"whole_id": ids[whole_key], "position": position, "member_id": ids[_key(part)]}
            for whole_key in sorted(self._members)
            for position, part in enumerate(self._members[whole_key])
        ]


class _Draft:
    """A run as rows, still without the ids of the database.

    ``now`` is the time of a run without any other time. ``measured`` has each measurement with its place and
    direction, and ``judged`` each judgement with its place.
    """

    def __init__(self, run: Run, now: datetime) -> None:
        self.run = run
        self.kept = now
        self.moment = moment_of(run, otherwise=now)
        self.record = dump_run(run).decode()
        self.record_sha256 = hashlib.sha256(self.record.encode()).hexdigest()
        self.topology = Topology(run.nodes)
        self.measured = [
            (
                measurement,
                self.topology.place(measurement.labels),
                measurement.direction.value if measurement.direction is not None else None,
            )
            for measurement in run.measurements
        ]
        self.judged = [(judgement, self.topology.place(judgement.labels)) for judgement in run.judgements]
        self.point = point = canonical_json(run.parameters)
        self.measured_quantities = [
            quantity_of(run.benchmark, point, measurement.name, location.labels, measurement.unit, direction)
            for measurement, location, direction in self.measured
        ]
        self.judged_quantities = [
            quantity_of(run.benchmark, point, judgement.metric, location.labels, judgement.unit)
            for judgement, location in self.judged
        ]
        # A measurement has a direction and a judgement does not. Put the quantities of measurements last, so
        # that they replace those of judgements with the same key.
        self.quantities = self.judged_quantities + self.measured_quantities

    @property
    def parts(self) -> list[Part]:
        """Return the run's hardware, with nodes and GPUs before the links and groups that contain them."""
        by_part: dict[Part, None] = {}
        places = [
            self.topology.place({}),
            *(entry[1] for entry in self.measured),
            *(p for _, p in self.judged),
        ]
        for part in self.topology.described:
            by_part[part] = None
        for location in places:
            if location.hardware is not None:
                by_part |= dict.fromkeys(location.hardware.members)
                by_part[location.hardware] = None
        return list(by_part)

    def run_row(self, hardware: Mapping[tuple[str, str], int]) -> Row:
        """Return the run's row in the table ``runs``."""
        run = self.run
        return {
            "run_id": run.run_id,
            "plan_id": storable_text(run.plan_id, KEY_LIMIT),
            "benchmark": storable_text(run.benchmark, KEY_LIMIT),
            "suite": storable_text(run.suite, KEY_LIMIT),
            "provenance": run.provenance,
            "parameters": self.point,
            "parameters_digest": digest_of(self.point),
            "hardware_id": _id(hardware, self.topology.whole),
            "moment": self.moment,
            "started": None if run.started is None else as_utc(run.started),
            "ended": None if run.ended is None else as_utc(run.ended),
            "exit_status": None if abs(run.exit_status or 0) > _LARGEST_INTEGER else run.exit_status,
            "verdict": run.verdict.value,
            "reason": storable_text(run.reasons[0] if run.reasons else "", TEXT_LIMIT),
            "record_sha256": self.record_sha256,
            "kept": self.kept,
        }

    def detail_rows(
        self,
        run_pk: int,
        hardware: Mapping[tuple[str, str], int],
        quantities: Mapping[tuple[str, str], int],
    ) -> dict[str, list[Row]]:
        """Return the rows that belong to the run, by table."""

        def observed(ordinal: int, quantity: Quantity, location: Place) -> Row:
            """Return the columns that measurements and judgements share."""
            return {
                "run_pk": run_pk,
                "ordinal": ordinal,
                "quantity_id": quantities[quantity.digest, quantity.unit],
                "hardware_id": _id(hardware, location.hardware),
                "node_id": _id(hardware, location.node),
                "moment": self.moment,
            }

        measurements = []
        for ordinal, (measurement, location, _) in enumerate(self.measured):
            value, special = split_special(measurement.value)
            row = observed(ordinal, self.measured_quantities[ordinal], location)
            measurements.append({**row, "value": value, "special": special})
        judgements = []
        for ordinal, (judged, location) in enumerate(self.judged):
            reference = judged.reference
            judgements.append(
                {
                    **observed(ordinal, self.judged_quantities[ordinal], location),
                    "value": split_special(judged.value)[0],
                    "verdict": judged.verdict.value,
                    "gating": judged.gating,
                    "candidate": is_candidate(judged),
                    "reason": ""
                    if judged.verdict is Verdict.PASS
                    else storable_text(judged.reason, TEXT_LIMIT),
                    "reference": reference.value if reference else None,
                    "low": reference.low if reference else None,
                    "high": reference.high if reference else None,
                    "warn": reference.warn if reference else None,
                }
            )
        nodes = {
            part: {
                "run_pk": run_pk,
                "hardware_id": _id(hardware, part),
                "name": storable_text(name, KEY_LIMIT),
            }
            for name, part in self.topology.nodes.items()
        }
        return {
            "records": [{"run_pk": run_pk, "record": self.record}],
            "run_nodes": list(nodes.values()),
            "measurements": measurements,
            "judgements": judgements,
        }


def _chunks(keys: Iterable[_Key]) -> Iterable[list[_Key]]:
    """Yield keys in lists that fit into one query."""
    listed = list(keys)
    return (listed[start : start + _CHUNK] for start in range(0, len(listed), _CHUNK))


def _key(part: Part) -> tuple[str, str]:
    """Return the key of a piece of hardware in the tables."""
    return part.kind.value, part.key


def _id(ids: Mapping[tuple[str, str], int], part: Part | None) -> int | None:
    """Return the id of a piece of hardware, or None if there is none."""
    return None if part is None else ids[_key(part)]


def _merge(rows: dict[Any, Row], key: Any, row: Row) -> None:
    """Keep the later row, but the earlier time of the first sighting. Rows arrive in the order of time."""
    if key in rows:
        row["first_seen"] = rows[key]["first_seen"]
    rows[key] = row


def _describe(part: Part, facts: Node | Gpu | None) -> Row:
    """Return the row that describes a piece of hardware."""
    row = {"kind": part.kind.value, "key": part.key, "name": "", "sku": ""}
    row |= {"serial": "", "chassis_serial": "", "product": ""}
    if isinstance(facts, Node):
        row |= {
            "name": facts.name,
            "sku": facts.sku,
            "serial": facts.serial,
            "chassis_serial": facts.chassis_serial,
            "product": facts.product,
        }
    elif isinstance(facts, Gpu):
        row |= {"name": facts.name, "serial": facts.serial}
    elif part.kind in (Kind.LINK, Kind.GROUP):
        row["name"] = f"{part.kind.value} of {len(part.members)}"
    return {name: storable_text(value, KEY_LIMIT) for name, value in row.items()}
