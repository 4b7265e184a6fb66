"""Find other hardware of a run's kind in the history, with its numbers.

The history calls :func:`numbers_of_others` when an operator accepts a run, to check that the run's
numbers are plausible. The input is the run, its numbers, and a connection to the database.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select

from rackproof.core.records import Run, Verdict
from rackproof.store.history import schema
from rackproof.store.history.identity import Kind
from rackproof.store.history.references import NumberKey, Numbers

_BATCH = 200
"""Largest number of names in a statement."""
_FLEET_ROWS = 200_000
"""Largest number of measurements that are read for a batch, the newest first."""
# The table of hardware twice in a query: the measured hardware, and the node that contained it.
_PARTS, _HOMES = schema.hardware.alias("parts"), schema.hardware.alias("homes")


def batches(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield names in lists that are short enough for one statement."""
    remaining = iter(sorted(names))
    while batch := list(islice(remaining, _BATCH)):
        yield batch


def numbers_of_others(
    connection: Connection, run: Run, numbers: Numbers
) -> tuple[dict[NumberKey, list[float]], dict[NumberKey, list[float]]]:
    """Return the values to compare each number of a run with, from other hardware of the same kind.

    The first mapping gives the median of each other piece of hardware, without failed runs. The second one
    gives the number that was accepted first for any of them, if there is one. If the nodes of the run are of
    several SKUs, both lists are empty for each number.
    """
    values: dict[NumberKey, list[float]] = {key: [] for key in numbers}
    first_of_others: dict[NumberKey, list[float]] = {key: [] for key in numbers}
    alike = _of_its_kind(run)
    if alike is None:
        return values, first_of_others
    digests = {key[2] for key in numbers}
    medians = _medians_by_part(connection, alike, digests)
    accepted = _accepted_by_part(connection, alike, digests)
    for key in numbers:
        kind, own_key, name, unit = key
        beside = medians.get((kind, name, unit), {})
        values[key] = [middle for part, middle in beside.items() if part != own_key]
        # The list is in the order of acceptance.
        of_others = [value for part, value in accepted.get((kind, name, unit), ()) if part != own_key]
        first_of_others[key] = of_others[:1]
    return values, first_of_others


def _of_its_kind(run: Run) -> list[ColumnElement[bool]] | None:
    """Return the conditions for hardware of a run's kind, or None if its nodes are not all of one SKU.

    Hardware of the same SKU is of the same kind. If there is no SKU, GPUs with the same product name are
    of the same kind. Numbers of whole nodes also need the same product and the same number of such GPUs.
    """
    skus = {node.sku for node in run.nodes}
    if len(skus) != 1:
        return None
    sku = skus.pop()
    if sku:
        return [_HOMES.c.sku == sku]
    names = {gpu.name for node in run.nodes for gpu in node.gpus if gpu.name}
    machines = {(node.product, len(node.gpus)) for node in run.nodes}
    is_gpu = and_(_PARTS.c.kind == Kind.GPU.value, _PARTS.c.name.in_(sorted(names)))
    machine, gpus = machines.pop() if len(machines) == 1 else ("", 0)
    if not machine:
        return [is_gpu]
    like = and_(_PARTS.c.kind == Kind.NODE.value, _HOMES.c.sku == "", _HOMES.c.product == machine)
    if gpus:
        like = and_(like, _HOMES.c.id.in_(_nodes_with_gpus(names, gpus)))
    return [or_(is_gpu, like)]


def _nodes_with_gpus(names: Iterable[str], count: int) -> Select[Any]:
    """Return the nodes with measurements of this number of GPUs of these products."""
    table, parts = schema.measurements, schema.hardware.alias()
    return (
        select(table.c.node_id)
        .join(parts, parts.c.id == table.c.hardware_id)
        .where(parts.c.kind == Kind.GPU.value, parts.c.name.in_(sorted(names)))
        .group_by(table.c.node_id)
        .having(func.count(table.c.hardware_id.distinct()) == count)
    )


def _medians_by_part(
    connection: Connection, alike: Sequence[ColumnElement[bool]], digests: Iterable[str]
) -> dict[tuple[str, str, str], dict[str, float]]:
    """Return the median of each piece of hardware that meets the conditions, by its key.

    The outer keys are the kind of the hardware, and the digest and unit of the quantity.
    """
    table, runs, quantities = schema.measurements, schema.runs, schema.quantities
    query = (
        select(quantities.c.digest, quantities.c.unit, _PARTS.c.kind, _PARTS.c.key, table.c.value)
        .join(quantities, quantities.c.id == table.c.quantity_id)
        .join(_PARTS, _PARTS.c.id == table.c.hardware_id)
        .join(_HOMES, _HOMES.c.id == table.c.node_id)
        .join(runs, runs.c.id == table.c.run_pk)
        .where(
            *alike,
            runs.c.verdict != Verdict.FAIL.value,
            table.c.value.is_not(None),
        )
        .order_by(table.c.moment.desc())
        .limit(_FLEET_ROWS)
    )
    values: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for batch in batches(digests):
        for row in connection.execute(query.where(quantities.c.digest.in_(batch))):
            kind = values.setdefault((row.kind, row.digest, row.unit), {})
            kind.setdefault(row.key, []).append(row.value)
    return {
        kind: {part: statistics.median(numbers) for part, numbers in by_part.items()}
        for kind, by_part in values.items()
    }


def _accepted_by_part(
    connection: Connection, alike: Sequence[ColumnElement[bool]], digests: Iterable[str]
) -> dict[tuple[str, str, str], list[tuple[str, float]]]:
    """Return the accepted numbers of the hardware that meets the conditions, earliest first.

    The keys are as in :func:`_medians_by_part`. Each number is a pair of the hardware's key and the value.
    """
    table, runs, quantities = schema.measurements, schema.runs, schema.quantities
    accepted = schema.baselines
    query = (
        select(quantities.c.digest, quantities.c.unit, _PARTS.c.kind, _PARTS.c.key, accepted.c.value)
        .join(quantities, quantities.c.id == accepted.c.quantity_id)
        .join(_PARTS, _PARTS.c.id == accepted.c.hardware_id)
        .join(runs, runs.c.run_id == accepted.c.run_id)
        .join(
            table,
            and_(
                table.c.run_pk == runs.c.id,
                table.c.quantity_id == accepted.c.quantity_id,
                table.c.hardware_id == accepted.c.hardware_id,
            ),
        )
        .join(_HOMES, _HOMES.c.id == table.c.node_id)
        .where(*alike)
        .order_by(accepted.c.accepted, accepted.c.run_id)
    )
    values: dict[tuple[str, str, str], list[tuple[str, float]]] = {}
    for batch in batches(digests):
        for row in connection.execute(query.where(quantities.c.digest.in_(batch))):
            values.setdefault((row.kind, row.digest, row.unit), []).append((row.key, row.value))
    return values
