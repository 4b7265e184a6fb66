"""Store runs in the history, and answer queries about runs, measurements and references.

Jobs and commands open a :class:`Store` with :func:`open_store`. Its runs come from records in the results
folder. Tables, names, and the rules for references are in other modules of this folder.

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
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import Connection, Engine, Select, Table, delete, exists, func, inspect, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from rackproof.core.near_names import near_names
from rackproof.core.records import Direction, Node, Reference, Run, Verdict
from rackproof.store.history import schema
from rackproof.store.history.alike import batches, numbers_of_others
from rackproof.store.history.database import (
    WRITE_OPTION,
    HistoryError,
    Target,
    connect_database,
    create_table,
    locate_database,
    translated_errors,
)
from rackproof.store.history.identity import Kind, Part, Topology, bounded_key, canonical_json, digest_of
from rackproof.store.history.lookup import (
    HardwareOfRows,
    could_have_labels,
    is_identity,
    names_sharing_parts,
    nodes_named,
    on_hardware,
    one_of,
    quantities_by_id,
)
from rackproof.store.history.references import (
    DEFAULT_HIGH,
    DEFAULT_LOW,
    DEFAULT_WARN,
    AcceptedNumber,
    NumberKey,
    Numbers,
    Others,
    acceptable_numbers,
    acceptance_objection,
    accepted_reference,
    drift_objection,
    is_comparable,
    keys_with_a_bound,
    measured_objection,
    mirror_bound,
    number_key,
    product_on,
)
from rackproof.store.history.rows import (
    Candidate,
    KnownNames,
    Measured,
    MeasurementRow,
    ParameterMapping,
    RunRow,
)
from rackproof.store.history.writer import RunWriter, as_utc, join_special, quantity_of
from rackproof.store.run_folder import ResultsError, load_run

# readings imports numpy, which takes long and is not needed to store a run. Only the methods that use it
# import it.
if TYPE_CHECKING:
    from rackproof.store.history.readings import Accepted, Failure, Readings

_BATCH = 200
"""Number of runs that one transaction stores or deletes."""
_ATTEMPTS = 4
"""Number of attempts to write, if another writer is first each time."""
_MOST_IDS = 1000
"""Number of newest runs whose ids are compared with an unknown id."""
_ESTIMATE_RUNS = 25
"""Number of latest runs from which a duration is estimated."""
# After these SQLSTATEs (a deadlock, a serialization failure), a second attempt usually succeeds, because
# another writer was only first.
_TRY_AGAIN = frozenset({"40P01", "40001"})
_BASELINE_KEY = ("quantity_id", "hardware_id", "run_id")
"""Primary key of the table of accepted references."""

_Result = TypeVar("_Result")


def open_store(where: str | Path | None = None) -> Store:
    """Open the history, and create it if it does not exist.

    Args:
        where: A database URL, or the path of an SQLite file to use unless the environment variable
            RACKPROOF_DATABASE_URL names a database. The default is ``results/history.sqlite``.

    Returns:
        The store. Use it in a ``with`` statement, or close it.

    Raises:
        HistoryUnreachableError: The server does not answer, denies access, or lacks such a database.
        HistoryTooNewError: The tables are newer than this code.
        HistoryError: The file cannot be used, or the tables are too old.
    """
    target = locate_database(where)
    return Store(connect_database(target), target)


class Store(AbstractContextManager["Store"]):
    """An open history. All methods raise :class:`HistoryError` if the database fails."""

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
        """Close the database."""
        self._engine.dispose()

    @property
    def description(self) -> str:
        """Return the name of this history for a message, without any secret."""
        return self._target.description

    # Storing runs

    def keep(self, run: Run) -> bool:
        """Store a run, either completely or not at all.

        Returns:
            False if the same record is already stored. True if it is new or replaced another.
        """
        return bool(self.keep_many([run]))

    def keep_many(self, runs: Iterable[Run], *, again: bool = False) -> list[str]:
        """Store many runs, with :data:`_BATCH` runs per transaction.

        Args:
            runs: The runs to store.
            again: Whether to also write runs that are already stored, which repairs damaged rows.

        Returns:
            The ids of the runs that were written.
        """
        entered: list[str] = []
        remaining = iter(runs)
        while batch := list(islice(remaining, _BATCH)):
            entered += self._write(partial(_enter_runs, batch, again))
        return entered

    # Runs

    def runs(
        self,
        *,
        benchmark: str | None = None,
        node: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        """Return runs, newest first.

        Args:
            benchmark: The name of a benchmark, to return only its runs.
            node: A host name, serial number, chassis, or UUID of a GPU in a node, to return only its
                runs.
            since: The earliest time of a run.
            limit: The largest number of runs.
        """
        table = schema.runs
        query = select(table).order_by(table.c.moment.desc(), table.c.run_id.desc()).limit(limit)
        if benchmark is not None:
            query = query.where(table.c.benchmark == benchmark)
        if since is not None:
            query = query.where(table.c.moment >= as_utc(since))
        with self._reading() as connection:
            if node is not None:
                members = schema.run_nodes
                ids = one_of(members.c.hardware_id, nodes_named(connection, node))
                of_run = members.c.run_pk == table.c.id
                query = query.where(exists().where(of_run, or_(members.c.name == node, ids)))
            return self._summaries(connection, query)

    def names(self) -> KnownNames:
        """Return the names of the benchmarks and nodes of all stored runs, in no particular order."""
        runs, nodes = schema.runs, schema.run_nodes
        with self._reading() as connection:
            return KnownNames(
                benchmarks=tuple(connection.scalars(select(runs.c.benchmark).distinct())),
                nodes=tuple(connection.scalars(select(nodes.c.name).distinct())),
            )

    def knows_node(self, name: str) -> bool:
        """Return whether a run of a node with this name, serial number, chassis or GPU is stored."""
        nodes = schema.run_nodes
        with self._reading() as connection:
            is_name = connection.scalar(select(nodes.c.run_pk).where(nodes.c.name == name).limit(1))
            return is_name is not None or bool(nodes_named(connection, name))

    def names_sharing_parts(self, names: Iterable[str]) -> set[str]:
        """Return all names of the nodes with these names, and of nodes that ever had one of their GPUs."""
        with self._reading() as connection:
            return names_sharing_parts(connection, names)

    def run(self, run_id: str) -> Run:
        """Return a run by its id or a prefix of it.

        Raises:
            HistoryError: No id begins so, several do, or the record of the run was pruned or is damaged.
        """
        table = schema.runs
        with self._reading() as connection:
            exact = self._record(connection, run_id)
            if exact is not None:
                return exact
            matching_ids = connection.scalars(
                select(table.c.run_id)
                .where(table.c.run_id.startswith(run_id, autoescape=True))
                .order_by(table.c.run_id)
                .limit(4)
            ).all()
            shown_id = self._target.scrub(run_id)[:121]
            if not matching_ids or not run_id:
                ids = connection.scalars(
                    select(table.c.run_id).order_by(table.c.moment.desc()).limit(_MOST_IDS)
                ).all()
                near = near_names(run_id, ids)
                hint = f"did you mean {near}?" if near else "`rackproof history` lists them"
                raise HistoryError(f"no run {shown_id!r} in {self.description}; {hint}")
            if len(matching_ids) > 1:
                listed = ", ".join(matching_ids[:3]) + (", …" if len(matching_ids) > 3 else "")
                raise HistoryError(f"several runs begin with {shown_id!r}: {listed}; give more of the id")
            run = self._record(connection, matching_ids[0])
        if run is None:
            raise HistoryError(
                f"{self.description} holds no details of {matching_ids[0]} any more (pruned); its own folder "
                "does"
            )
        return run

    def estimate_seconds(
        self, benchmark: str, parameters: ParameterMapping, hardware: Sequence[Node] | str
    ) -> float | None:
        """Return the expected duration of a run.

        The estimate is the median of the latest runs on the same nodes that ended with exit status 0 and did
        not ``fail``.

        Args:
            benchmark: The name of the benchmark.
            parameters: The point of the matrix.
            hardware: The nodes of the run, or the key of one node (``Node.hardware_key``).

        Returns:
            The duration in seconds, or ``None`` if there is no such run.
        """
        if isinstance(hardware, str):
            hardware_part: Part | None = Part(Kind.NODE, bounded_key(hardware))
        else:
            hardware_part = Topology(hardware).whole
        if hardware_part is None:
            return None
        runs, parts = schema.runs, schema.hardware
        query = (
            select(runs.c.started, runs.c.ended)
            .join(parts, parts.c.id == runs.c.hardware_id)
            .where(
                runs.c.benchmark == benchmark,
                runs.c.parameters_digest == digest_of(canonical_json(parameters)),
                parts.c.kind == hardware_part.kind.value,
                parts.c.key == hardware_part.key,
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
        parameters: ParameterMapping | None = None,
        since: datetime | None = None,
        limit: int | None = 1000,
    ) -> list[MeasurementRow]:
        """Return measurements, newest first.

        Args:
            metric: The name of the measurement.
            labels: The required labels. Other labels may be added. A ``gpu`` label selects by UUID.
            hardware: A GPU's UUID, a node's serial number, chassis or host name, or the key of a link or
                group. A node includes its GPUs for the time that they were in it, and the links that end
                there.
            benchmark: The name of the benchmark.
            parameters: The exact point of the matrix.
            since: The earliest time of a measurement.
            limit: The largest number of measurements, or ``None`` for all.
        """
        table, required_labels = schema.measurements, labels or {}
        by_quantity = (metric, labels, benchmark, parameters) != (None, None, None, None)
        query = _measurement_query(by_quantity or hardware is not None, since)
        with self._reading() as connection:
            quantities = quantities_by_id(connection, metric, benchmark, parameters)
            matching = _with_labels(quantities, required_labels)
            # In the query, a label with hardware matches any hardware, so more rows may be needed.
            if all(required_labels.items() <= quantity.labels.items() for quantity in matching.values()):
                query = query.limit(limit)
            if by_quantity:
                query = query.where(one_of(table.c.quantity_id, matching))
            for name in _hardware_names(required_labels, hardware):
                query = query.where(on_hardware(connection, table.c, name))
            rows = connection.execute(query).all()
            parts = HardwareOfRows(
                connection, (row.hardware_id for row in rows), (row.node_id for row in rows)
            )
        measured = [_measurement_row(row, matching[row.quantity_id], parts) for row in rows]
        return [row for row in measured if required_labels.items() <= row.labels.items()][:limit]

    # References

    def baseline(
        self,
        benchmark: str,
        parameters: ParameterMapping,
        metric: str,
        labels: Mapping[str, str],
        nodes: Sequence[Node],
    ) -> Reference | None:
        """Return the accepted reference of a measurement on exactly this hardware, or ``None``.

        Args:
            benchmark: The name of the benchmark.
            parameters: The point of the matrix.
            metric: The name of the measurement.
            labels: The labels of the measurement. A GPU's UUID selects that GPU, even after a move.
            nodes: The nodes of the run.

        Returns:
            The median of the accepted runs, with the bounds of the latest acceptance and the names of
            the runs as its source.
        """
        place = Topology(nodes).place(labels)
        if place.hardware is None:
            return None
        table, quantities, parts = schema.baselines, schema.quantities, schema.hardware
        query = (
            select(table, quantities.c.unit)
            .join(quantities, quantities.c.id == table.c.quantity_id)
            .join(parts, parts.c.id == table.c.hardware_id)
            .where(
                quantities.c.digest
                == quantity_of(benchmark, canonical_json(parameters), metric, place.labels).digest,
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
        """Return numbers that lack only a reference, and still have none, newest first.

        Args:
            benchmark: The name of a benchmark, to return only its numbers.
            node: The hardware, given like ``hardware`` in :meth:`measurements`.
            run_id: The id of a run, to return only its numbers.
            limit: The largest number of candidates.
        """
        table, runs, accepted = schema.judgements, schema.runs, schema.baselines
        is_same_quantity = (
            accepted.c.quantity_id == table.c.quantity_id,
            accepted.c.hardware_id == table.c.hardware_id,
        )
        query = (
            select(table, runs.c.run_id)
            .join(runs, runs.c.id == table.c.run_pk)
            .where(table.c.candidate, table.c.hardware_id.is_not(None), ~exists().where(*is_same_quantity))
            .order_by(table.c.moment.desc(), table.c.run_pk.desc(), table.c.ordinal)
            .limit(limit)
        )
        if benchmark is not None:
            query = query.where(runs.c.benchmark == benchmark)
        if run_id is not None:
            query = query.where(runs.c.run_id == run_id)
        with self._reading() as connection:
            if node is not None:
                query = query.where(on_hardware(connection, table.c, node))
            rows = connection.execute(query).all()
            quantities = quantities_by_id(connection, ids={row.quantity_id for row in rows})
            parts = HardwareOfRows(connection, (row.hardware_id for row in rows))
        return [_candidate(row, quantities[row.quantity_id], parts) for row in rows]

    def accept(
        self,
        run_id: str,
        *,
        low: float | None = DEFAULT_LOW,
        high: float | None = DEFAULT_HIGH,
        warn: float | None = DEFAULT_WARN,
        note: Callable[[int], None] | None = None,
        bounding: Mapping[str, datetime] | None = None,
        despite: str = "",
    ) -> int:
        """Make the numbers of a run references for its hardware.

        A number is accepted if it is unproven only because its reference was missing. A number that passed an
        accepted reference is accepted, too, and the median then includes one more run. If only one of several
        GPUs was judged, the same measurements of the other GPUs are accepted, too. If lower is better, the
        bounds are mirrored. If neither side is better, a later number beyond ``high`` fails, too. If a run is
        accepted again, its bounds are updated.

        Args:
            run_id: The run's id or a prefix of it.
            low: A number fails if it is lower than the value by more than this (negative) fraction.
                With ``None``, no number is too low.
            high: A number is too good to be true if it is higher by more than this fraction, unless it
                is ``None``.
            warn: A number is degraded if it is lower by more than this (negative) fraction, unless it
                is ``None``.
            note: A function that is called with the number of references before they take effect. If the
                function raises an error, nothing is accepted.
            bounding: Runs that were accepted earlier and still limit this one, even if they no longer
                provide a reference, each with the time of acceptance. Runs that :meth:`withdraw` withdrew
                without a reason are known from the database, too.
            despite: The reason to accept numbers that are not plausible, or too far from the first
                accepted ones. If it is empty, such numbers are refused.

        Returns:
            The number of references that the run provides, or 0 without numbers to accept.

        Raises:
            HistoryError: A bound has the wrong sign, there is no such run, it proved a fault, its hardware is
                unknown, or a number is implausible or too far from the first accepted one.
        """
        is_useless = any(bound is not None and bound >= 0 for bound in (low, warn))
        if is_useless or (high is not None and high <= 0):
            raise HistoryError("bounds of a reference: low and warn are below 0, high is above 0")
        run = self.run(run_id)
        numbers = self._numbers_to_accept(run, plausible=not despite)
        if not numbers:
            return 0
        moments = {"moment": self._moment(run.run_id), "accepted": datetime.now(UTC)}
        bounds = {"low": low, "high": high, "warn": warn}

        def enter(connection: Connection) -> int:
            rows = _reference_rows(RunWriter(connection), run, numbers, moments, bounds)
            if not despite:
                directions = [direction for _, (_, direction) in sorted(numbers.items())]
                _refuse_drift(connection, run.run_id, rows, directions, bounding or {})
            _enter_baselines(connection, rows)
            if note is not None:
                note(len(rows))
            return len(rows)

        return self._write(enter)

    def _numbers_to_accept(self, run: Run, *, plausible: bool) -> Numbers:
        """Return the numbers of a run that can be accepted, if any.

        Args:
            run: The run to accept.
            plausible: Whether the numbers must be plausible for a healthy machine.

        Raises:
            HistoryError: The run proved a fault, its hardware is unknown, or a number is refused.
        """
        topology = Topology(run.nodes)
        if topology.whole is None:
            raise HistoryError(f"run {run.run_id} has no nodes, so there is no hardware to accept it for")
        objection = acceptance_objection(run)
        if objection:
            raise HistoryError(f"run {run.run_id} is not a reference: {objection}")
        numbers = acceptable_numbers(run, topology)
        if plausible and numbers:
            self._require_plausible(run, topology, numbers)
        return numbers

    def _require_plausible(self, run: Run, topology: Topology, numbers: Numbers) -> None:
        """Check numbers against physical limits, other numbers of the run, and similar hardware.

        Raises:
            HistoryError: A number is not plausible for a healthy machine.
        """
        for measurement in run.measurements:
            place = topology.place(measurement.labels)
            key = number_key(run, place, measurement.name, measurement.unit)
            if place.hardware is None or key not in numbers or not measurement.finite:
                continue
            if objection := measured_objection(run, place.hardware, measurement):
                raise HistoryError(f"run {run.run_id} is not a reference: {objection}")
        for key, other_numbers in self._others(run, topology, numbers).items():
            value, direction = numbers[key]
            if objection := other_numbers.objection(value, direction):
                number_text = f"{other_numbers.metric} on {key[1]}, {objection} {key[3]}".strip()
                raise HistoryError(f"run {run.run_id} is not a reference: {number_text}")

    def _others(self, run: Run, topology: Topology, numbers: Numbers) -> dict[NumberKey, Others]:
        """Return the numbers to compare each number of a run with.

        Numbers of links are left out if the links of the GPU model are not equally fast.
        """
        in_run: dict[NumberKey, dict[str, float]] = {}
        metrics: dict[NumberKey, str] = {}
        for measurement in run.measurements:
            place = topology.place(measurement.labels)
            key = number_key(run, place, measurement.name, measurement.unit)
            if place.hardware is None or key is None or not measurement.finite:
                continue
            if is_comparable(product_on(run, *key[:2]), place.hardware.kind):
                # The key without its hardware collects the same quantity of all hardware in the run.
                in_run.setdefault((key[0], "", *key[2:]), {})[key[1]] = measurement.value
                metrics[key] = measurement.name
        with self._reading() as connection:
            in_history, first = numbers_of_others(connection, run, numbers)
        return {
            key: Others(
                metric,
                [value for name, value in in_run[key[0], "", *key[2:]].items() if name != key[1]],
                in_history[key],
                first[key],
            )
            for key, metric in metrics.items()
            if key in numbers
        }

    def unbounded_metrics(self, run_id: str) -> list[str]:
        """Return the metrics of a run whose numbers nothing can confirm.

        For such a metric, there is no lower bound from a data sheet, no reference in a judgement, no other
        hardware in the run, no hardware of the same kind in the history, and no earlier acceptance. The
        numbers may be those of a faulty machine.
        """
        run = self.run(run_id)
        topology = Topology(run.nodes)
        numbers = acceptable_numbers(run, topology)
        confirmed = {
            key
            for key, other_numbers in self._others(run, topology, numbers).items()
            if other_numbers.are_known
        }
        confirmed |= keys_with_a_bound(run, topology)
        unconfirmed = set(numbers) - confirmed
        return sorted(
            {
                measurement.name
                for measurement in run.measurements
                if number_key(run, topology.place(measurement.labels), measurement.name, measurement.unit)
                in unconfirmed
            }
        )

    def withdraw(self, run_id: str, *, note: Callable[[int], None] | None = None, reason: str = "") -> int:
        """Withdraw the acceptance of a run, and return the number of removed references.

        Args:
            run_id: The whole id of the run.
            note: A function that is called with the number of references before the change takes effect. If
                the function raises an error, nothing changes. It is not called if there is nothing to change.
            reason: The reason, such as changed hardware. Without a reason, the numbers still limit which
                numbers are accepted later, until the run is withdrawn with a reason.
        """

        def take_back(connection: Connection) -> int:
            create_table(connection, schema.withdrawn)
            if not reason:
                _keep_limits(connection, run_id)
            count = _delete_run(connection, schema.baselines, run_id)
            changed = count + (_delete_run(connection, schema.withdrawn, run_id) if reason else 0)
            if changed and note is not None:
                note(count)
            return count

        return self._write(take_back)

    def references_of(self, run_id: str) -> int:
        """Return the number of references that a run provides."""
        table = schema.baselines
        query = select(func.count()).select_from(table).where(table.c.run_id == run_id)
        with self._reading() as connection:
            return int(connection.scalar(query) or 0)

    def referenced_metrics(self, run_id: str) -> list[str]:
        """Return the metrics of the references that a run provides, by name."""
        table, quantities = schema.baselines, schema.quantities
        query = (
            select(quantities.c.metric)
            .join(table, table.c.quantity_id == quantities.c.id)
            .where(table.c.run_id == run_id)
            .distinct()
            .order_by(quantities.c.metric)
        )
        with self._reading() as connection:
            return list(connection.scalars(query))

    def without_references(self, run_ids: Sequence[str]) -> list[str]:
        """Return the ids of the runs that provide no reference."""
        column = schema.baselines.c.run_id
        with self._reading() as connection:
            providing = {
                run_id
                for batch in batches(run_ids)
                for run_id in connection.scalars(select(column).where(column.in_(batch)))
            }
        return [run_id for run_id in run_ids if run_id not in providing]

    # A fleet's nights

    def readings(self, until: datetime, *, nights: int = 1, benchmark: str | None = None) -> Readings:
        """Return all numbers of some nights as columns, to judge a fleet.

        Args:
            until: The end (excluded) of the requested night. Each night is a period of 24 hours.
            nights: The number of nights, including the requested one.
            benchmark: The name of a benchmark, to return only its numbers.
        """
        from rackproof.store.history.readings import read_nights

        with self._reading() as connection:
            return read_nights(connection, quantities_by_id(connection, benchmark=benchmark), until, nights)

    def accepted(self, readings: Readings) -> list[Accepted]:
        """Return the accepted references of the readings. :meth:`baseline` returns a single one."""
        from rackproof.store.history.readings import accepted_references

        with self._reading() as connection:
            return accepted_references(connection, readings)

    def failures_elsewhere(self, since: datetime) -> list[Failure]:
        """Return failures of GPUs in a node other than their current one, newest first."""
        from rackproof.store.history.readings import failures_elsewhere

        with self._reading() as connection:
            return failures_elsewhere(connection, since)

    def prune(self, before: datetime) -> int:
        """Delete the records and numbers of runs before a time. Return the number of these runs.

        The run's row, acceptances and failed judgements remain, so that a GPU that failed a year ago is
        still recognized. ``rebuild_history`` can restore the deleted numbers from the results folder.
        SQLite reuses the space, but only VACUUM returns it to the file system.
        """
        pruned = 0
        while count := self._write(lambda connection: _forget_old_runs(connection, before)):
            pruned += count
        return pruned

    # Internal methods

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Open a connection for reading, and translate errors."""
        with translated_errors(self._target), self._engine.connect() as connection:
            yield connection

    def _write(self, work: Callable[[Connection], _Result]) -> _Result:
        """Do some work in one transaction. Repeat it if another writer was first."""
        with translated_errors(self._target):
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
        """Return the stored record of a run, or None if it was never stored or was pruned.

        Raises:
            HistoryError: The record is damaged.
        """
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
        """Return the time of a run.

        Raises:
            HistoryError: Another process just removed the run.
        """
        with self._reading() as connection:
            moment: datetime | None = connection.scalar(
                select(schema.runs.c.moment).where(schema.runs.c.run_id == run_id)
            )
        if moment is None:
            raise HistoryError(f"run {run_id} was removed from {self.description} just now")
        return moment

    def _summaries(self, connection: Connection, query: Select[Any]) -> list[RunRow]:
        """Return the runs of a query with the names of their nodes."""
        rows = connection.execute(query).all()
        members = schema.run_nodes
        names: dict[int, list[str]] = {}
        for row in connection.execute(
            select(members.c.run_pk, members.c.name)
            .where(one_of(members.c.run_pk, [row.id for row in rows]))
            .order_by(members.c.name)
        ):
            names.setdefault(row.run_pk, []).append(row.name)
        return [
            RunRow(
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


def _measurement_row(row: Any, measured: Measured, parts: HardwareOfRows) -> MeasurementRow:
    """Return a row of the tables as a measurement with names in place of ids."""
    return MeasurementRow(
        row.run_id,
        row.moment,
        measured.benchmark,
        measured.parameters,
        measured.metric,
        parts.labels(measured.labels, row.hardware_id),
        measured.unit,
        measured.direction,
        join_special(row.value, row.special),
        parts.key(row.hardware_id),
        parts.kind(row.hardware_id),
        parts.key(row.node_id),
    )


def _candidate(row: Any, measured: Measured, parts: HardwareOfRows) -> Candidate:
    """Return a row of the tables as a candidate with names in place of ids."""
    return Candidate(
        row.run_id,
        row.moment,
        measured.benchmark,
        measured.parameters,
        measured.metric,
        parts.labels(measured.labels, row.hardware_id),
        measured.unit,
        row.value,
        parts.key(row.hardware_id),
        row.reason,
    )


def _reference_rows(
    writer: RunWriter,
    run: Run,
    numbers: Numbers,
    moments: Mapping[str, datetime],
    bounds: Mapping[str, float | None],
) -> list[dict[str, Any]]:
    """Store a run, and return the rows of its references, ordered by key.

    Args:
        writer: The writer that adds missing entries.
        run: The accepted run.
        numbers: The numbers of the run.
        moments: The times of the run and of its acceptance.
        bounds: The bounds of a number if more is better, which are mirrored if less is better.
    """
    # Another process may have replaced or removed the run after it was read.
    writer.enter([run])
    parts = writer.find_hardware((kind, key) for kind, key, _, _ in numbers)
    quantity_ids = writer.find_quantities((quantity, unit) for _, _, quantity, unit in numbers)
    mirrored = {
        "low": mirror_bound(bounds["high"]),
        "high": mirror_bound(bounds["low"]),
        "warn": mirror_bound(bounds["warn"]),
    }
    return [
        {
            "run_id": run.run_id,
            "quantity_id": quantity_ids[quantity, unit],
            "hardware_id": parts[kind, key],
            "value": value,
            **moments,
            **(mirrored if direction is Direction.LOWER else bounds),
        }
        for (kind, key, quantity, unit), (value, direction) in sorted(numbers.items())
    ]


def _refuse_drift(
    connection: Connection,
    run_id: str,
    rows: Sequence[dict[str, Any]],
    directions: Sequence[Direction | None],
    bounding: Mapping[str, datetime],
) -> None:
    """Check that new references stay near the first accepted ones.

    Without this check, many acceptances could move a reference step by step.

    Raises:
        HistoryError: A new reference is too far from the first accepted one.
    """
    accepted: dict[tuple[int, int], list[AcceptedNumber]] = {}
    for quantity, hardware, number in _accepted_before(connection, rows, bounding):
        if number.run_id != run_id:
            accepted.setdefault((quantity, hardware), []).append(number)
    for row, direction in zip(rows, directions, strict=True):
        before = accepted.get((row["quantity_id"], row["hardware_id"]), ())
        objection = drift_objection(before, row["value"], direction)
        if objection:
            raise HistoryError(f"run {run_id} is not a reference: {objection}")


def _accepted_before(
    connection: Connection, rows: Sequence[dict[str, Any]], bounding: Mapping[str, datetime]
) -> Iterator[tuple[int, int, AcceptedNumber]]:
    """Yield the numbers that were accepted for the hardware of new references.

    Each item is the id of the quantity, the id of the hardware, and the number.
    """
    parts = sorted({row["hardware_id"] for row in rows})
    table, measured, runs = schema.baselines, schema.measurements, schema.runs
    withdrawn = _withdrawn_before(connection, parts)
    first = dict(bounding)
    for row in withdrawn:
        first[row.run_id] = min(first.get(row.run_id, row.accepted), row.accepted)
    known = set()
    for row in connection.execute(select(table).where(one_of(table.c.hardware_id, parts))):
        known.add((row.run_id, row.quantity_id, row.hardware_id))
        moment = min(as_utc(row.accepted), first.get(row.run_id, as_utc(row.accepted)))
        yield row.quantity_id, row.hardware_id, AcceptedNumber(row.run_id, row.value, moment)
    query = (
        select(runs.c.run_id, measured.c.quantity_id, measured.c.hardware_id, measured.c.value)
        .join(runs, runs.c.id == measured.c.run_pk)
        .where(one_of(measured.c.hardware_id, parts), measured.c.value.is_not(None))
    )
    of_log = (connection.execute(query.where(runs.c.run_id.in_(names))) for names in batches(bounding))
    for row in chain(withdrawn, *of_log):
        place = row.quantity_id, row.hardware_id
        if (row.run_id, *place) not in known:
            known.add((row.run_id, *place))
            yield *place, AcceptedNumber(row.run_id, row.value, first[row.run_id], standing=False)


def _withdrawn_before(connection: Connection, parts: Sequence[int]) -> Sequence[Any]:
    """Return the rows of the numbers that were withdrawn without a reason, for some hardware."""
    table = schema.withdrawn
    # A history that no version with this table wrote has none.
    if not inspect(connection).has_table(table.name):
        return ()
    return connection.execute(select(table).where(one_of(table.c.hardware_id, parts))).all()


def _keep_limits(connection: Connection, run_id: str) -> None:
    """Keep the numbers of a run that will be withdrawn, with the time of the first acceptance."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    names = [column.name for column in schema.withdrawn.columns]
    rows = select(*(schema.baselines.c[name] for name in names)).where(schema.baselines.c.run_id == run_id)
    connection.execute(insert(schema.withdrawn).from_select(names, rows).on_conflict_do_nothing())


def _delete_run(connection: Connection, table: Table, run_id: str) -> int:
    """Delete the rows of a run, and return their number."""
    return int(connection.execute(delete(table).where(table.c.run_id == run_id)).rowcount)


def _enter_baselines(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert accepted references. If the run was accepted before, update its bounds."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(schema.baselines)
    renewed = {name: statement.excluded[name] for name in rows[0] if name not in _BASELINE_KEY}
    connection.execute(
        statement.on_conflict_do_update(index_elements=list(_BASELINE_KEY), set_=renewed), rows
    )


def _enter_runs(runs: Sequence[Run], again: bool, connection: Connection) -> list[str]:
    """Store runs, and return the ids of those that were written."""
    return RunWriter(connection).enter(runs, again=again)


def _forget_old_runs(connection: Connection, before: datetime) -> int:
    """Delete the numbers and records of the oldest runs before a time, at most :data:`_BATCH` runs.

    Failed judgements remain. A run without a record counts as pruned. Return the number of runs.
    """
    runs, records, judgements = schema.runs, schema.records, schema.judgements
    ids = connection.scalars(
        select(runs.c.id)
        .join(records, records.c.run_pk == runs.c.id)
        .where(runs.c.moment < as_utc(before))
        .order_by(runs.c.moment)
        .limit(_BATCH)
    ).all()
    if not ids:
        return 0
    failed = judgements.c.verdict == Verdict.FAIL.value
    connection.execute(delete(judgements).where(one_of(judgements.c.run_pk, ids), ~failed))
    for table in (schema.measurements, schema.records):
        connection.execute(delete(table).where(one_of(table.c.run_pk, ids)))
    return len(ids)


def _measurement_query(narrowed: bool, since: datetime | None) -> Select[Any]:
    """Return the query of measurements, newest first.

    ``narrowed`` means that the caller will limit the query to some quantities or parts.
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
    # Runs and measurements both store the time. Without another filter, the index of runs is the faster one.
    moment = table.c.moment if narrowed else runs.c.moment
    query = query.order_by(moment.desc(), table.c.run_pk.desc(), table.c.ordinal)
    return query if since is None else query.where(moment >= as_utc(since))


def _with_labels(quantities: Mapping[int, Measured], labels: Mapping[str, str]) -> dict[int, Measured]:
    """Return the quantities that may carry these labels."""
    return {
        key: quantity for key, quantity in quantities.items() if could_have_labels(quantity.labels, labels)
    }


def _hardware_names(labels: Mapping[str, str], hardware: str | None) -> list[str]:
    """Return the names of the hardware in a search, from its labels and from the operator's name."""
    # A label with hardware is not part of the quantity, but selects the hardware that was measured.
    names = [value for value in labels.values() if is_identity(value)]
    return names if hardware is None else [*names, hardware]
