"""Look up quantities and hardware of the history by an operator's names or by id.

The history's queries call this module, for example for ``rackproof history --node NAME``. The input is a
hostname, serial number or UUID, and a connection to the database.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, or_, select
from sqlalchemy.sql import ColumnElement

from rackproof.core.records import Direction
from rackproof.store.history import schema
from rackproof.store.history.alike import batches
from rackproof.store.history.identity import PLACEHOLDER, Kind, Topology, bounded_key, canonical_json
from rackproof.store.history.rows import Measured, ParameterMapping


def one_of(column: ColumnElement[Any], ids: Iterable[int]) -> ColumnElement[bool]:
    """Return ``column IN (…)`` with literal numbers, because the number of parameters is limited."""
    listed = sorted(set(ids))
    return column.in_(bindparam(None, listed, expanding=True, literal_execute=True, unique=True))


def quantities_by_id(
    connection: Connection,
    metric: str | None = None,
    benchmark: str | None = None,
    parameters: ParameterMapping | None = None,
    ids: Iterable[int] | None = None,
) -> dict[int, Measured]:
    """Return the quantities that match all given conditions, by id.

    A history with millions of measurements contains only thousands of quantities.
    """
    table = schema.quantities
    query = select(table)
    if metric is not None:
        query = query.where(table.c.metric == metric)
    if benchmark is not None:
        query = query.where(table.c.benchmark == benchmark)
    if parameters is not None:
        query = query.where(table.c.parameters == canonical_json(parameters))
    if ids is not None:
        query = query.where(one_of(table.c.id, ids))
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


def _hardware_named(connection: Connection, name: str) -> dict[int, str]:
    """Return the kind of each piece of hardware with this key, serial number, chassis or hostname, by id."""
    parts, names = schema.hardware, schema.host_names
    key = bounded_key(name)
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


def nodes_named(connection: Connection, name: str) -> list[int]:
    """Return the ids of the nodes with a name. If the name is a GPU's, return all nodes that had the GPU."""
    hardware = _hardware_named(connection, name)
    homes = schema.placements
    of_gpus = connection.scalars(select(homes.c.node_id).where(one_of(homes.c.gpu_id, hardware)))
    return [*(part for part, kind in hardware.items() if kind == Kind.NODE), *of_gpus]


def names_sharing_parts(connection: Connection, names: Iterable[str]) -> set[str]:
    """Return all names of the nodes with these names, and of nodes that ever had one of their GPUs."""
    hosts, homes = schema.host_names, schema.placements
    found: set[str] = set()
    for some_names in batches({bounded_key(name) for name in names}):
        own_ids = select(hosts.c.hardware_id).where(hosts.c.name.in_(some_names))
        gpu_ids = select(homes.c.gpu_id).where(homes.c.node_id.in_(own_ids))
        other_ids = select(homes.c.node_id).where(homes.c.gpu_id.in_(gpu_ids))
        is_related = or_(hosts.c.hardware_id.in_(own_ids), hosts.c.hardware_id.in_(other_ids))
        found.update(connection.scalars(select(hosts.c.name).where(is_related).distinct()))
    return found


def on_hardware(connection: Connection, columns: Any, name: str) -> ColumnElement[bool]:
    """Return the condition that a row was measured on hardware with the name.

    A node includes the GPUs that were in it at the time. A node or GPU includes the links that end there.

    Args:
        connection: The connection to the history.
        columns: The columns of a table with ``hardware_id`` and ``node_id``.
        name: The key, serial number, chassis or hostname.
    """
    hardware = _hardware_named(connection, name)
    members, parts = schema.hardware_members, schema.hardware
    links = connection.scalars(
        select(members.c.whole_id)
        .join(parts, parts.c.id == members.c.whole_id)
        .where(one_of(members.c.member_id, hardware), parts.c.kind == Kind.LINK.value)
    )
    nodes = [part for part, kind in hardware.items() if kind == Kind.NODE]
    return or_(one_of(columns.hardware_id, [*hardware, *links]), one_of(columns.node_id, nodes))


def could_have_labels(kept: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Return whether the labels of a quantity can match the wanted ones.

    A label that contains hardware matches any value. The function does no I/O.
    """
    return all(kept.get(name) in (value, PLACEHOLDER) for name, value in wanted.items())


def is_identity(value: str) -> bool:
    """Return whether a label's value alone identifies hardware, such as a GPU's UUID, without I/O."""
    return Topology(()).place({"gpu": value}).hardware is not None


class _Hardware(NamedTuple):
    """The columns of a piece of hardware that labels need."""

    kind: str
    key: str
    name: str


class HardwareOfRows:
    """The hardware of some rows, for the restoration of its names in labels.

    Args:
        connection: The connection to the history.
        ids: The ids of hardware, one iterable for each column. None is ignored.
    """

    def __init__(self, connection: Connection, *ids: Iterable[int | None]) -> None:
        needed = {part for column in ids for part in column if part is not None}
        members, parts = schema.hardware_members, schema.hardware
        self._members: dict[int, list[int]] = {}
        rows = connection.execute(
            select(members).where(one_of(members.c.whole_id, needed)).order_by(members.c.position)
        )
        for row in rows:
            # The labels of a link contain its ends, which its rows do not name.
            self._members.setdefault(row.whole_id, []).append(row.member_id)
            needed.add(row.member_id)
        self._known = {
            row.id: _Hardware(row.kind, row.key, row.name)
            for row in connection.execute(
                select(parts.c.id, parts.c.kind, parts.c.key, parts.c.name).where(one_of(parts.c.id, needed))
            )
        }

    def key(self, part: int | None) -> str:
        """Return the key of a piece of hardware, or "" if it is unknown."""
        return "" if part is None else self._known[part].key

    def kind(self, part: int | None) -> str:
        """Return the kind of a piece of hardware (node, gpu, link or group), or "" if it is unknown."""
        return "" if part is None else self._known[part].kind

    def labels(self, labels: dict[str, str], part: int | None) -> dict[str, str]:
        """Return a copy of labels with the hardware's own name in place of ``*``.

        ``{"from": "*", "to": "*"}`` of a link becomes ``{"from": "GPU-1…", "to": "GPU-2…"}``.
        """
        if part is None or PLACEHOLDER not in labels.values():
            return dict(labels)
        named = self._known[part].kind in (Kind.LINK, Kind.GROUP)
        members = iter(self._members.get(part, ()) if named else (part,))
        full = {}
        # The ends were removed in the order of the labels' names, so restore them in that order.
        for name, value in sorted(labels.items()):
            member = next(members, None) if value == PLACEHOLDER else None
            full[name] = value if member is None else self._label(self._known[member])
        return full

    @staticmethod
    def _label(part: _Hardware) -> str:
        """Return a node's hostname, or the key of any other hardware."""
        return part.name if part.kind == Kind.NODE else part.key
