"""The store: keeps runs, answers what hardware measured before, and what it is compared with.

with open_store(results / "history.sqlite") as store:
    store.keep(run)
    reference = store.baseline("gemm", {}, "gemm_best", {"dtype": "bf16"}, run.nodes)
"""

from __future__ import annotations

import json
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from sqlalchemy import Connection, Engine, Select, bindparam, delete, exists, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ColumnElement

from rackproof.core.records import Direction, Node, Reference, Run, Verdict
from rackproof.store.history import schema
from rackproof.store.history.database import WRITE_OPTION, HistoryError, Target, connect, locate, translated
from rackproof.store.history.identity import (
    PLACEHOLDER,
    Kind,
    Part,
    Place,
    Topology,
    bounded,
    canonical,
    digest,
)
from rackproof.store.history.writer import Filing, aware, is_candidate, join_special, quantity
from rackproof.store.run_folder import ResultsError, load_run

if TYPE_CHECKING:
    # These load numpy, which nobody needs who keeps a run.
    from rackproof.store.history.readings import Accepted, Failure, Readings

DEFAULT_LOW = -0.07
"""An accepted reference allows 7 % less before it fails (two public health checks use 5 and 7 %)."""

DEFAULT_HIGH = 0.25
"""An accepted reference calls 25 % more than ever measured too good to be true."""

DEFAULT_WARN = -0.035
"""An accepted reference calls 3.5 % less degraded."""

OWN_HISTORY = "own history"
"""How the source of a reference from here begins."""

_BATCH = 200
_ATTEMPTS = 4
_ESTIMATE_RUNS = 25
_RUNS_NAMED = 5
# Deadlock found, serialization failure: another writer was first, the same work succeeds again.
_TRY_AGAIN = frozenset({"40P01", "40001"})

Parameters = Mapping[str, str | int | float | bool | None]
_Result = TypeVar("_Result")


class RunSummary(NamedTuple):
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
        """Duration, ``None`` where start or end is not known."""
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


class _Hardware(NamedTuple):
    kind: str
    key: str
    name: str


class Measured(NamedTuple):
    """What is measured; a label that names hardware holds ``*``."""

    benchmark: str
    parameters: dict[str, Any]
    metric: str
    labels: dict[str, str]
    unit: str
    direction: Direction | None


def open_store(where: str | Path | None = None) -> Store:
    """Open the history, make it where there is none, and bring its tables up to date.

    Args:
        where: A database URL, or the path of the SQLite file to use unless the environment variable
            RACKPROOF_DATABASE_URL names a database. By default ``results/history.sqlite``.

    Returns:
        The store, to be used in a ``with`` statement or closed.

    Raises:
        HistoryUnreachableError: The server does not answer or does not let us in.
        HistoryTooNewError: The tables are newer than this code.
        HistoryError: No such database, or the file cannot be used.
    """
    target = locate(where)
    return Store(connect(target), target)


class Store(AbstractContextManager["Store"]):
    """An open history. All methods raise :class:`HistoryError` when the database fails."""

    def __init__(self, engine: Engine, target: Target) -> None:
        self._engine = engine
        self._target = target

    def __repr__(self) -> str:
        return f"<Store: {self._target.description}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    @property
    def description(self) -> str:
        """What to call this history in a message; holds no secret."""
        return self._target.description

    # Entering

    def keep(self, run: Run) -> bool:
        """Enter a run, wholly or not at all.

        Returns:
            False if the very same record is kept already; true if it is new or replaced another.
        """
        return bool(self.keep_many([run]))

    def keep_many(self, runs: Iterable[Run], *, again: bool = False) -> list[str]:
        """Enter many runs, some hundred per transaction.

        Args:
            runs: The runs.
            again: Whether to write also those that seem to be there already, which mends damaged rows.

        Returns:
            The ids of those written.
        """
        entered: list[str] = []
        rest = iter(runs)
        while batch := list(islice(rest, _BATCH)):
            entered += self._write(partial(_enter, batch, again))
        return entered

    # Runs

    def runs(
        self,
        *,
        benchmark: str | None = None,
        node: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> list[RunSummary]:
        """Return runs, newest first.

        Args:
            benchmark: Only of this benchmark.
            node: Only with this node: host name, serial, chassis or the UUID of a GPU seen in it.
            since: Only from this moment on.
            limit: At most so many.
        """
        table = schema.runs
        query = select(table).order_by(table.c.moment.desc(), table.c.run_id.desc()).limit(limit)
        if benchmark is not None:
            query = query.where(table.c.benchmark == benchmark)
        if since is not None:
            query = query.where(table.c.moment >= aware(since))
        with self._reading() as connection:
            if node is not None:
                members = schema.run_nodes
                ids = _one_of(members.c.hardware_id, self._nodes_named(connection, node))
                of_run = members.c.run_pk == table.c.id
                query = query.where(exists().where(of_run, or_(members.c.name == node, ids)))
            return self._summaries(connection, query)

    def run(self, run_id: str) -> Run:
        """Return a run by its id or the beginning of it.

        Raises:
            HistoryError: None or several begin so.
        """
        table = schema.runs
        with self._reading() as connection:
            whole = self._record(connection, run_id)
            if whole is not None:
                return whole
            found = connection.scalars(
                select(table.c.run_id)
                .where(table.c.run_id.startswith(run_id, autoescape=True))
                .order_by(table.c.run_id)
                .limit(4)
            ).all()
            shown = self._target.scrub(run_id)[:121]
            if not found or not run_id:
                raise HistoryError(f"no run {shown!r} in {self.description}; `rackproof history` lists them")
            if len(found) > 1:
                some = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
                raise HistoryError(f"several runs begin with {shown!r}: {some}; give more of the id")
            only = self._record(connection, found[0])
        if only is None:
            raise HistoryError(
                f"{self.description} holds no details of {found[0]} any more (pruned); its own folder does"
            )
        return only

    def estimate_seconds(
        self, benchmark: str, parameters: Parameters, hardware: Sequence[Node] | str
    ) -> float | None:
        """Return how long a run will take: the median of the latest that ended well on the same nodes.

        Args:
            benchmark: Name of the benchmark.
            parameters: Point of the matrix.
            hardware: The nodes it will run on, or the key of one (``Node.hardware_key``).

        Returns:
            Seconds, or ``None`` if it never ran to its end there.
        """
        if isinstance(hardware, str):
            whole: Part | None = Part(Kind.NODE, bounded(hardware))
        else:
            whole = Topology(hardware).whole
        if whole is None:
            return None
        runs, parts = schema.runs, schema.hardware
        query = (
            select(runs.c.started, runs.c.ended)
            .join(parts, parts.c.id == runs.c.hardware_id)
            .where(
                runs.c.benchmark == benchmark,
                runs.c.parameters_digest == digest(canonical(parameters)),
                parts.c.kind == whole.kind.value,
                parts.c.key == whole.key,
                runs.c.exit_status == 0,
                runs.c.verdict != Verdict.FAIL.value,
                runs.c.started.is_not(None),
                runs.c.ended > runs.c.started,
            )
            .order_by(runs.c.moment.desc())
            .limit(_ESTIMATE_RUNS)
        )
        with self._reading() as connection:
            spans = [(row.ended - row.started).total_seconds() for row in connection.execute(query)]
        return statistics.median(spans) if spans else None

    # Measurements

    def measurements(
        self,
        *,
        metric: str | None = None,
        labels: Mapping[str, str] | None = None,
        hardware: str | None = None,
        benchmark: str | None = None,
        parameters: Parameters | None = None,
        since: datetime | None = None,
        limit: int | None = 1000,
    ) -> list[MeasurementRow]:
        """Return measurements, newest first.

        Args:
            metric: Name of the measurement.
            labels: Labels that it must have, others may be there too. A ``gpu`` label selects by UUID.
            hardware: A GPU's UUID, a node's serial, chassis or host name, or the key of a link or group.
                A node includes its GPUs as long as they sat in it, and links that end there.
            benchmark: Name of the benchmark.
            parameters: Exactly this point of the matrix.
            since: Only from this moment on.
            limit: At most so many, ``None`` for all.
        """
        table, runs = schema.measurements, schema.runs
        query = select(
            runs.c.run_id,
            table.c.moment,
            table.c.quantity_id,
            table.c.hardware_id,
            table.c.node_id,
            table.c.value,
            table.c.special,
        ).join(runs, runs.c.id == table.c.run_pk)
        narrowed = any(one is not None for one in (metric, labels, hardware, benchmark, parameters))
        # Each is right; the first follows the index of runs where nothing else narrows the search.
        moment = table.c.moment if narrowed else runs.c.moment
        query = query.order_by(moment.desc(), table.c.run_pk.desc(), table.c.ordinal).limit(limit)
        if since is not None:
            query = query.where(moment >= aware(since))
        with self._reading() as connection:
            known = self._quantities(connection, metric, benchmark, parameters)
            if labels is not None:
                known = {key: one for key, one in known.items() if _could_have(one.labels, labels)}
            if metric is not None or labels is not None or benchmark is not None or parameters is not None:
                query = query.where(_one_of(table.c.quantity_id, known))
            if hardware is not None:
                query = query.where(self._on_hardware(connection, table.c, hardware))
            named = [] if labels is None else [one for one in labels.values() if _is_identity(one)]
            for identity in named:
                query = query.where(self._on_hardware(connection, table.c, identity))
            rows = connection.execute(query).all()
            parts = _Parts(connection, (row.hardware_id for row in rows), (row.node_id for row in rows))
        made = (
            MeasurementRow(
                run_id,
                at,
                what.benchmark,
                what.parameters,
                what.metric,
                parts.labels(what.labels, hardware_id),
                what.unit,
                what.direction,
                join_special(value, special),
                parts.key(hardware_id),
                parts.kind(hardware_id),
                parts.key(node_id),
            )
            for run_id, at, quantity_id, hardware_id, node_id, value, special in rows
            for what in (known[quantity_id],)
        )
        if labels is None:
            return list(made)
        return [row for row in made if labels.items() <= row.labels.items()]

    # References

    def baseline(
        self,
        benchmark: str,
        parameters: Parameters,
        metric: str,
        labels: Mapping[str, str],
        nodes: Sequence[Node],
    ) -> Reference | None:
        """Return the accepted reference of a measurement on this very hardware.

        Args:
            benchmark: Name of the benchmark.
            parameters: Point of the matrix.
            metric: Name of the measurement.
            labels: Its labels; a GPU's UUID among them asks for that GPU wherever it sits now.
            nodes: The nodes of the run.

        Returns:
            The median of the accepted runs, with the bounds of the latest acceptance and a source that
            names the runs; ``None`` if nothing was accepted for this hardware.
        """
        place = Topology(nodes).place(labels)
        if place.hardware is None:
            return None
        table, what, parts = schema.baselines, schema.quantities, schema.hardware
        query = (
            select(table, what.c.unit)
            .join(what, what.c.id == table.c.quantity_id)
            .join(parts, parts.c.id == table.c.hardware_id)
            .where(
                what.c.digest == quantity(benchmark, canonical(parameters), metric, place.labels).digest,
                parts.c.kind == place.hardware.kind.value,
                parts.c.key == place.hardware.key,
            )
            .order_by(table.c.accepted.desc(), table.c.moment.desc(), table.c.run_id.desc())
        )
        with self._reading() as connection:
            rows = connection.execute(query).all()
        if not rows:
            return None
        return accepted_reference(rows)

    def candidates(
        self,
        *,
        benchmark: str | None = None,
        node: str | None = None,
        run_id: str | None = None,
        limit: int = 1000,
    ) -> list[Candidate]:
        """Return numbers that wait for being accepted as a reference, newest first.

        Args:
            benchmark: Only of this benchmark.
            node: Only on this hardware, as ``hardware`` in :meth:`measurements`.
            run_id: Only of this run.
            limit: At most so many.
        """
        table, runs, kept = schema.judgements, schema.runs, schema.baselines
        same = (kept.c.quantity_id == table.c.quantity_id, kept.c.hardware_id == table.c.hardware_id)
        query = (
            select(table, runs.c.run_id)
            .join(runs, runs.c.id == table.c.run_pk)
            .where(table.c.candidate, table.c.hardware_id.is_not(None), ~exists().where(*same))
            .order_by(table.c.moment.desc(), table.c.run_pk.desc(), table.c.ordinal)
            .limit(limit)
        )
        if benchmark is not None:
            query = query.where(runs.c.benchmark == benchmark)
        if run_id is not None:
            query = query.where(runs.c.run_id == run_id)
        with self._reading() as connection:
            if node is not None:
                query = query.where(self._on_hardware(connection, table.c, node))
            rows = connection.execute(query).all()
            known = self._quantities(connection, ids={row.quantity_id for row in rows})
            parts = _Parts(connection, (row.hardware_id for row in rows))
        return [
            Candidate(
                row.run_id,
                row.moment,
                what.benchmark,
                what.parameters,
                what.metric,
                parts.labels(what.labels, row.hardware_id),
                what.unit,
                row.value,
                parts.key(row.hardware_id),
                row.reason,
            )
            for row in rows
            for what in (known[row.quantity_id],)
        ]

    def accept(
        self,
        run_id: str,
        *,
        low: float | None = DEFAULT_LOW,
        high: float | None = DEFAULT_HIGH,
        warn: float | None = DEFAULT_WARN,
    ) -> int:
        """Make the numbers of a run references for the hardware it ran on.

        Accepted are numbers that were unproven only because there was no reference, and those that passed
        against references accepted before (the median then covers one run more); where one GPU of
        several was judged, so are the same measurements of the others. For measurements where lower is
        better the bounds are mirrored. Accepting a run again renews its bounds.

        Args:
            run_id: The run's id or the beginning of it.
            low: How far below the value fails, as a (negative) fraction; ``None`` for never.
            high: How far above the value is too good to be true, as a fraction; ``None`` for never.
            warn: How far below the value is degraded, as a (negative) fraction; ``None`` for never.

        Returns:
            How many references the run gives; 0 if it has no such numbers.

        Raises:
            HistoryError: No such run, it proved something wrong, or its hardware is not known.
        """
        if (low is not None and low >= 0) or (warn is not None and warn >= 0) or (high or 1) <= 0:
            raise HistoryError("bounds of a reference: low and warn are below 0, high is above 0")
        run = self.run(run_id)
        topology = Topology(run.nodes)
        if topology.whole is None:
            raise HistoryError(f"run {run.run_id} names no nodes, so there is no hardware to accept it for")
        wrong = _objection(run)
        if wrong:
            raise HistoryError(f"run {run.run_id} is no reference: {wrong}")
        values = _acceptable(run, topology)

        def enter(connection: Connection) -> int:
            filing = Filing(connection)
            filing.enter([run])
            parts = filing.find_hardware((kind, key) for kind, key, _, _ in values)
            known = filing.find_quantities((what, unit) for _, _, what, unit in values)
            rows = []
            for (kind, key, what, unit), (value, direction) in sorted(values.items()):
                lower = direction is Direction.LOWER
                rows.append(
                    {
                        "quantity_id": known[what, unit],
                        "hardware_id": parts[kind, key],
                        "run_id": run.run_id,
                        "moment": moment,
                        "value": value,
                        "low": _mirror(high) if lower else low,
                        "high": _mirror(low) if lower else high,
                        "warn": _mirror(warn) if lower else warn,
                        "accepted": now,
                    }
                )
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            statement = insert(schema.baselines)
            renewed = {name: statement.excluded[name] for name in rows[0] if name not in _BASELINE_KEY}
            connection.execute(
                statement.on_conflict_do_update(index_elements=list(_BASELINE_KEY), set_=renewed), rows
            )
            return len(rows)

        if not values:
            return 0
        now = datetime.now(UTC)
        moment = self._moment(run.run_id)
        return self._write(enter)

    def withdraw(self, run_id: str) -> int:
        """Take back the acceptance of a run (its whole id) and return how many references went."""
        statement = delete(schema.baselines).where(schema.baselines.c.run_id == run_id)
        return self._write(lambda connection: int(connection.execute(statement).rowcount))

    # A fleet's nights

    def readings(self, until: datetime, *, nights: int = 1, benchmark: str | None = None) -> Readings:
        """Return every number of some nights in columns: for judging a fleet.

        Args:
            until: The end of the night asked for (excluded); each night is the 24 hours before.
            nights: How many nights, the one asked for included.
            benchmark: Only of this benchmark.
        """
        from rackproof.store.history.readings import read

        with self._reading() as connection:
            return read(connection, self._quantities(connection, benchmark=benchmark), until, nights)

    def accepted(self, readings: Readings) -> list[Accepted]:
        """Return the accepted references of what was read, as :meth:`baseline` gives them one by one."""
        from rackproof.store.history.readings import accepted

        with self._reading() as connection:
            return accepted(connection, readings)

    def failures_elsewhere(self, since: datetime) -> list[Failure]:
        """Return what failed on a GPU in another node than the one it sits in now, newest first."""
        from rackproof.store.history.readings import failures_elsewhere

        with self._reading() as connection:
            return failures_elsewhere(connection, since)

    def prune(self, before: datetime) -> int:
        """Forget the numbers of runs before a moment, and return of how many runs.

        Kept are the run's row, acceptances, and judgements that failed: a GPU that failed a year ago is
        still recognised. What goes can be made again from the results folder by ``rebuild``.
        SQLite reuses the space; only VACUUM gives it back to the file system.
        """
        from rackproof.store.history.readings import old_runs

        pruned = 0
        while some := self._write(
            lambda connection: _forget(connection, old_runs(connection, before, _BATCH))
        ):
            pruned += some
        return pruned

    # Inside

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with translated(self._target), self._engine.connect() as connection:
            yield connection

    def _write(self, work: Callable[[Connection], _Result]) -> _Result:
        """Do work in one transaction, again if another writer made the database give up on ours."""
        with translated(self._target):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    with (
                        self._engine.connect().execution_options(**{WRITE_OPTION: True}) as connection,
                        connection.begin(),
                    ):
                        return work(connection)
                except DBAPIError as error:
                    if attempt == _ATTEMPTS or getattr(error.orig, "sqlstate", None) not in _TRY_AGAIN:
                        raise
                    time.sleep(0.05 * attempt)
        raise AssertionError("the last attempt returns or raises")

    def _record(self, connection: Connection, run_id: str) -> Run | None:
        runs, records = schema.runs, schema.records
        query = (
            select(records.c.record).join(runs, runs.c.id == records.c.run_pk).where(runs.c.run_id == run_id)
        )
        try:
            text = connection.scalar(query)
            return None if text is None else load_run(text.encode(), f"the record of {run_id}")
        except (ResultsError, ValueError, zlib.error) as error:
            raise HistoryError(
                f"{self.description}: {error}. The run's own folder still holds it: rebuild the history from "
                "the results folder."
            ) from None

    def _moment(self, run_id: str) -> datetime:
        with self._reading() as connection:
            found: datetime | None = connection.scalar(
                select(schema.runs.c.moment).where(schema.runs.c.run_id == run_id)
            )
        if found is None:
            raise HistoryError(f"run {run_id} was removed from {self.description} just now")
        return found

    def _summaries(self, connection: Connection, query: Select[Any]) -> list[RunSummary]:
        rows = connection.execute(query).all()
        members = schema.run_nodes
        names: dict[int, list[str]] = {}
        for row in connection.execute(
            select(members.c.run_pk, members.c.name)
            .where(_one_of(members.c.run_pk, [row.id for row in rows]))
            .order_by(members.c.name)
        ):
            names.setdefault(row.run_pk, []).append(row.name)
        return [
            RunSummary(
                run_id=row.run_id,
                plan_id=row.plan_id,
                benchmark=row.benchmark,
                suite=row.suite,
                parameters=json.loads(row.parameters),
                verdict=Verdict(row.verdict),
                reason=row.reason,
                provenance=row.provenance,
                moment=row.moment,
                started=row.started,
                ended=row.ended,
                nodes=tuple(names.get(row.id, ())),
            )
            for row in rows
        ]

    def _quantities(
        self,
        connection: Connection,
        metric: str | None = None,
        benchmark: str | None = None,
        parameters: Parameters | None = None,
        ids: Iterable[int] | None = None,
    ) -> dict[int, Measured]:
        """Return quantities by id; there are few (thousands), however many measurements there are."""
        table = schema.quantities
        query = select(table)
        if metric is not None:
            query = query.where(table.c.metric == metric)
        if benchmark is not None:
            query = query.where(table.c.benchmark == benchmark)
        if parameters is not None:
            query = query.where(table.c.parameters == canonical(parameters))
        if ids is not None:
            query = query.where(_one_of(table.c.id, ids))
        return {
            row.id: Measured(
                row.benchmark,
                json.loads(row.parameters),
                row.metric,
                json.loads(row.labels),
                row.unit,
                Direction(row.direction) if row.direction else None,
            )
            for row in connection.execute(query)
        }

    def _named(self, connection: Connection, name: str) -> dict[int, str]:
        """Return the hardware (id to kind) that a key, serial, chassis or host name means."""
        parts, names = schema.hardware, schema.host_names
        key = bounded(name)
        hosts = select(names.c.hardware_id).where(names.c.name == key)
        rows = connection.execute(
            select(parts.c.id, parts.c.kind).where(
                or_(
                    parts.c.key == key,
                    parts.c.serial == key,
                    parts.c.chassis_serial == key,
                    parts.c.id.in_(hosts),
                )
            )
        )
        return {row.id: row.kind for row in rows}

    def _nodes_named(self, connection: Connection, name: str) -> list[int]:
        found = self._named(connection, name)
        homes = schema.placements
        rooms = connection.scalars(select(homes.c.node_id).where(_one_of(homes.c.gpu_id, found)))
        return [*(part for part, kind in found.items() if kind == Kind.NODE), *rooms]

    def _on_hardware(self, connection: Connection, columns: Any, name: str) -> ColumnElement[bool]:
        found = self._named(connection, name)
        members, parts = schema.hardware_members, schema.hardware
        links = connection.scalars(
            select(members.c.whole_id)
            .join(parts, parts.c.id == members.c.whole_id)
            .where(_one_of(members.c.member_id, found), parts.c.kind == Kind.LINK.value)
        )
        nodes = [part for part, kind in found.items() if kind == Kind.NODE]
        return or_(_one_of(columns.hardware_id, [*found, *links]), _one_of(columns.node_id, nodes))


_BASELINE_KEY = ("quantity_id", "hardware_id", "run_id")


class _Parts:
    """Hardware of some rows by id, with what is needed to put it back into labels."""

    def __init__(self, connection: Connection, *ids: Iterable[int | None]) -> None:
        wanted = {one for some in ids for one in some if one is not None}
        members, parts = schema.hardware_members, schema.hardware
        self._members: dict[int, list[int]] = {}
        rows = connection.execute(
            select(members).where(_one_of(members.c.whole_id, wanted)).order_by(members.c.position)
        )
        for row in rows:
            self._members.setdefault(row.whole_id, []).append(row.member_id)
            wanted.add(row.member_id)
        self._known = {
            row.id: _Hardware(row.kind, row.key, row.name)
            for row in connection.execute(
                select(parts.c.id, parts.c.kind, parts.c.key, parts.c.name).where(_one_of(parts.c.id, wanted))
            )
        }

    def key(self, part: int | None) -> str:
        return "" if part is None else self._known[part].key

    def kind(self, part: int | None) -> str:
        return "" if part is None else self._known[part].kind

    def labels(self, labels: dict[str, str], part: int | None) -> dict[str, str]:
        """Return labels with the hardware's own name in place of ``*``; never the given dict."""
        if part is None or PLACEHOLDER not in labels.values():
            return dict(labels)
        named = self._known[part].kind in (Kind.LINK, Kind.GROUP)
        ends = iter(self._members.get(part, ()) if named else (part,))
        full = {}
        for name, value in sorted(labels.items()):
            end = next(ends, None) if value == PLACEHOLDER else None
            full[name] = value if end is None else self._label(self._known[end])
        return full

    @staticmethod
    def _label(part: _Hardware) -> str:
        return part.name if part.kind == Kind.NODE else part.key


def accepted_reference(rows: Sequence[Any]) -> Reference:
    """Return the reference that acceptances of one quantity on one piece of hardware make, latest first."""
    latest = rows[0]
    # Numbers in another unit are another quantity, even if it is called the same.
    rows = sorted((row for row in rows if row.unit == latest.unit), key=lambda row: row.moment)
    names = [f"{row.run_id} ({row.moment:%Y-%m-%d})" for row in rows]
    if len(names) > _RUNS_NAMED:
        names[: -(_RUNS_NAMED - 1)] = [f"{names[0]} … {len(names) - _RUNS_NAMED} more …"]
    count = f"median of {len(rows)} accepted runs" if len(rows) > 1 else "accepted run"
    return Reference(
        value=statistics.median(row.value for row in rows),
        low=latest.low,
        high=latest.high,
        warn=latest.warn,
        unit=latest.unit,
        source=f"{OWN_HISTORY}, {count}: {', '.join(names)}",
    )


def _one_of(column: ColumnElement[Any], ids: Iterable[int]) -> ColumnElement[bool]:
    """``column IN (…)`` with the numbers written out: there may be more than a statement's parameters."""
    listed = sorted(set(ids))
    return column.in_(bindparam(None, listed, expanding=True, literal_execute=True, unique=True))


def _forget(connection: Connection, ids: Sequence[int]) -> int:
    """Delete what is numerous of some runs; the record goes last and marks them as pruned."""
    if not ids:
        return 0
    judgements = schema.judgements
    failed = judgements.c.verdict == Verdict.FAIL.value
    connection.execute(delete(judgements).where(_one_of(judgements.c.run_pk, ids), ~failed))
    for table in (schema.measurements, schema.records):
        connection.execute(delete(table).where(_one_of(table.c.run_pk, ids)))
    return len(ids)


def _enter(runs: Sequence[Run], again: bool, connection: Connection) -> list[str]:
    return Filing(connection).enter(runs, again=again)


def _could_have(kept: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a quantity's labels, some of which are hardware, can be the wanted ones."""
    return all(kept.get(name) in (value, PLACEHOLDER) for name, value in wanted.items())


def _is_identity(value: str) -> bool:
    return Topology(()).place({"gpu": value}).hardware is not None


def _mirror(bound: float | None) -> float | None:
    return None if bound is None else -bound


def _objection(run: Run) -> str:
    """Return why a run's numbers must not become references, empty if they may."""
    bad = (Verdict.FAIL, Verdict.UNPROVEN)
    if run.verdict is Verdict.FAIL:
        return run.reasons[0] if run.reasons else "it failed"
    for finding in run.findings:
        if finding.verdict in bad:
            return finding.message
    for log in run.logs:
        if log.verdict in bad:
            return f"its log {log.path} is {log.verdict.value}"
    for judged in run.judgements:
        if judged.gating and judged.verdict in bad and not is_candidate(judged):
            return f"{judged.metric} is {judged.verdict.value}: {judged.reason}"
    if run.exit_status not in (0, None):
        return f"it ended with status {run.exit_status}"
    return ""


def _acceptable(
    run: Run, topology: Topology
) -> dict[tuple[str, str, str, str], tuple[float, Direction | None]]:
    """Return value and direction by (kind, key, digest of the quantity, unit)."""
    found: dict[tuple[str, str, str, str], tuple[float, Direction | None]] = {}
    point = canonical(run.parameters)

    def address(place: Place, metric: str, unit: str) -> tuple[str, str, str, str] | None:
        if place.hardware is None:
            return None
        what = quantity(run.benchmark, point, metric, place.labels, unit)
        return place.hardware.kind.value, place.hardware.key, what.digest, what.unit

    directions = {one.name: one.direction for one in run.measurements if one.direction is not None}
    waiting = set()
    for judged in run.judgements:
        key = address(topology.place(judged.labels), judged.metric, judged.unit)
        again = (
            judged.verdict is Verdict.PASS
            and judged.reference is not None
            and judged.reference.source.startswith(OWN_HISTORY)
        )
        if (is_candidate(judged) or again) and key is not None and judged.value is not None:
            found[key] = judged.value, directions.get(judged.metric)
            waiting.add(key[2:])
    for one in run.measurements:
        key = address(topology.place(one.labels), one.name, one.unit)
        if key is not None and key[2:] in waiting and key not in found and one.finite:
            found[key] = one.value, one.direction
    return found
