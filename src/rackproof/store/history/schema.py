"""Define the tables of the history.

The modules of the history that read or write the database use these tables.
:mod:`rackproof.store.history.database` creates them.

The tables are designed for a fleet. With 10,000 nodes and 40 measurements each, 60 nights give 24 million
rows. A row of a measurement is therefore a few numbers, which refer to *what* was measured (``quantities``)
and *on what* (``hardware``). If you change a table here, increase :data:`REVISION`, and renew the digest of
the tables in tests/store/history/test_database.py.
"""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import TEXT, TIMESTAMP
from sqlalchemy.types import TypeDecorator, TypeEngine

REVISION = "0001"
"""Version of these tables, as four digits, which only increases. Until Rackproof 1.0, a database with an
older version is refused and not converted."""

KEY_LIMIT = 200
"""Largest number of characters of a key or a name. Indexes contain these columns, so they must be short."""
TEXT_LIMIT = 400
"""Largest number of characters of a stored reason. The record contains the whole reason."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Moment(TypeDecorator[datetime]):
    """The type of a time in UTC: ``timestamptz`` in PostgreSQL and microseconds since 1970 in SQLite.

    SQLite has no type for times, and its text forms lose the time zone. Naive values are taken as UTC.
    """

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the column type for this database."""
        if dialect.name == "postgresql":
            return dialect.type_descriptor(TIMESTAMP(timezone=True))
        return dialect.type_descriptor(BigInteger())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Return the stored form of a time."""
        if value is None:
            return None
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return moment if dialect.name == "postgresql" else (moment - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Return the time that the database stored."""
        if value is None:
            return None
        if isinstance(value, datetime):
            return value.astimezone(UTC)
        return _EPOCH + timedelta(microseconds=value)


class RecordText(TypeDecorator[str]):
    """The type of a record's JSON.

    PostgreSQL compresses text itself. For SQLite, this class compresses it.
    """

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the column type for this database."""
        # Return TEXT() without type_descriptor, because psycopg's dialect turns every text type into VARCHAR.
        return TEXT() if dialect.name == "postgresql" else dialect.type_descriptor(LargeBinary())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """Return the stored form of a record."""
        if value is None or dialect.name == "postgresql":
            return value
        return zlib.compress(value.encode(), 1)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """Return the JSON that the database stored."""
        return zlib.decompress(value).decode() if isinstance(value, bytes) else value


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# The revision of the tables in this database, in one row. Every release must be able to read it, so the
# names of the table and its column never change.
version = Table(
    "rackproof_schema",
    metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="rackproof_schema_pkc"),
)

hardware = Table(
    "hardware",
    metadata,
    Column("id", Integer, primary_key=True),
    # One of node, gpu, link (two parts, in order) and group (the nodes of one run).
    Column("kind", String(8), nullable=False),
    # The identity of the hardware: the UUID of a GPU, Node.hardware_key of a node, or a text made of the keys
    # of the parts of a link or group. It does not change with the hostname, unless nothing else identifies a
    # node.
    Column("key", String(KEY_LIMIT), nullable=False),
    # The latest hostname of a node, or the model of a GPU.
    Column("name", String(KEY_LIMIT), nullable=False),
    Column("sku", String(KEY_LIMIT), nullable=False),
    Column("serial", String(KEY_LIMIT), nullable=False),
    Column("chassis_serial", String(KEY_LIMIT), nullable=False),
    Column("product", String(KEY_LIMIT), nullable=False),
    Column("first_seen", Moment, nullable=False),
    Column("last_seen", Moment, nullable=False),
    UniqueConstraint("kind", "key"),
    Index(None, "key"),
    Index(None, "serial"),
    Index(None, "chassis_serial"),
)

# The ends of a link and the nodes of a group ("whole"), in order.
hardware_members = Table(
    "hardware_members",
    metadata,
    Column("whole_id", ForeignKey("hardware.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("member_id", ForeignKey("hardware.id", ondelete="CASCADE"), nullable=False, index=True),
    sqlite_with_rowid=False,
)

# All hostnames that a node had. A search finds the node by each of them.
host_names = Table(
    "host_names",
    metadata,
    Column("hardware_id", ForeignKey("hardware.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(KEY_LIMIT), primary_key=True),
    Column("first_seen", Moment, nullable=False),
    Column("last_seen", Moment, nullable=False),
    Index(None, "name"),
    sqlite_with_rowid=False,
)

# The nodes in which each GPU was, so that a GPU with a fault is found again in another chassis.
placements = Table(
    "placements",
    metadata,
    Column("gpu_id", ForeignKey("hardware.id", ondelete="CASCADE"), primary_key=True),
    Column("node_id", ForeignKey("hardware.id", ondelete="CASCADE"), primary_key=True),
    Column("slot", Integer, nullable=False),
    Column("first_seen", Moment, nullable=False),
    Column("last_seen", Moment, nullable=False),
    Index(None, "node_id"),
    sqlite_with_rowid=False,
)

# A quantity is a metric of a benchmark with its parameters and labels, without hardware, time and value.
quantities = Table(
    "quantities",
    metadata,
    Column("id", Integer, primary_key=True),
    # The SHA-256 of benchmark, parameters, metric and labels, because some databases cannot index long
    # texts.
    Column("digest", String(64), nullable=False),
    Column("unit", String(KEY_LIMIT), nullable=False),
    Column("benchmark", String(KEY_LIMIT), nullable=False),
    Column("parameters", Text, nullable=False),
    Column("metric", String(KEY_LIMIT), nullable=False),
    # Canonical JSON, with "*" in place of a value that names hardware (see identity.py).
    Column("labels", Text, nullable=False),
    # higher or lower: the better values. NULL if no measurement states it.
    Column("direction", String(8), nullable=True),
    UniqueConstraint("digest", "unit"),
    Index(None, "metric", "benchmark"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", String(121), nullable=False, unique=True),
    Column("plan_id", String(KEY_LIMIT), nullable=False),
    Column("benchmark", String(KEY_LIMIT), nullable=False),
    Column("suite", String(KEY_LIMIT), nullable=False),
    Column("provenance", String(16), nullable=False),
    Column("parameters", Text, nullable=False),
    Column("parameters_digest", String(64), nullable=False),
    Column("hardware_id", ForeignKey("hardware.id"), nullable=True),
    # The start of the run. Without a start, it is the end, else the time in the id, else the time of
    # the first storing.
    Column("moment", Moment, nullable=False),
    Column("started", Moment, nullable=True),
    Column("ended", Moment, nullable=True),
    Column("exit_status", Integer, nullable=True),
    Column("verdict", String(16), nullable=False),
    Column("reason", String(TEXT_LIMIT), nullable=False),
    Column("record_sha256", String(64), nullable=False),
    # The time at which the run was first stored.
    Column("kept", Moment, nullable=False),
    Index(None, "moment"),
    Index(None, "benchmark", "parameters_digest", "moment"),
    Index(None, "plan_id"),
    Index(None, "hardware_id", "moment"),
)

# Records are in a table of their own, so that listing runs does not read megabytes of JSON.
records = Table(
    "records",
    metadata,
    Column("run_pk", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("record", RecordText, nullable=False),
)

run_nodes = Table(
    "run_nodes",
    metadata,
    Column("run_pk", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("hardware_id", ForeignKey("hardware.id"), primary_key=True),
    Column("name", String(KEY_LIMIT), nullable=False),
    Index(None, "hardware_id"),
    Index(None, "name"),
    sqlite_with_rowid=False,
)


def _observed() -> tuple[Column[Any], ...]:
    """Return the columns that measurements and judgements share.

    The run comes first in the primary key, so that the rows of a run are stored together.
    """
    return (
        Column("run_pk", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        # The position of the measurement or judgement in the record's list.
        Column("ordinal", Integer, primary_key=True, autoincrement=False),
        Column("quantity_id", ForeignKey("quantities.id"), nullable=False),
        Column("hardware_id", ForeignKey("hardware.id"), nullable=True),
        # The node in which the part was at the time, if it was in a single node.
        Column("node_id", ForeignKey("hardware.id"), nullable=True),
        Column("moment", Moment, nullable=False),
        Column("value", Float, nullable=True),
    )


measurements = Table(
    "measurements",
    metadata,
    *_observed(),
    # "nan", "inf" or "-inf" if the value is not an ordinary number: SQLite cannot store NaN.
    Column("special", String(4), nullable=True),
    Index(None, "quantity_id", "moment"),
    Index(None, "hardware_id", "quantity_id", "moment"),
    Index(None, "node_id", "moment"),
    sqlite_with_rowid=False,
)

_CANDIDATE = text("candidate")

judgements = Table(
    "judgements",
    metadata,
    *_observed(),
    Column("verdict", String(16), nullable=False),
    Column("gating", Boolean, nullable=False),
    # True if the number could become a reference: it is unproven only because it has none.
    Column("candidate", Boolean, nullable=False),
    # Empty for passes, which are most of the rows. The record contains their reason.
    Column("reason", String(TEXT_LIMIT), nullable=False),
    # The value of the reference, and its bounds as fractions of this value.
    Column("reference", Float, nullable=True),
    Column("low", Float, nullable=True),
    Column("high", Float, nullable=True),
    Column("warn", Float, nullable=True),
    Index("ix_judgements_hardware", "hardware_id", "moment"),
    Index("ix_judgements_candidate", "moment", sqlite_where=_CANDIDATE, postgresql_where=_CANDIDATE),
    sqlite_with_rowid=False,
)

# Accepted references, with the id of the run as text, because they outlive the rows of the run.
baselines = Table(
    "baselines",
    metadata,
    Column("quantity_id", ForeignKey("quantities.id"), primary_key=True),
    Column("hardware_id", ForeignKey("hardware.id"), primary_key=True),
    Column("run_id", String(121), primary_key=True),
    Column("moment", Moment, nullable=False),
    Column("value", Float, nullable=False),
    Column("low", Float, nullable=True),
    Column("high", Float, nullable=True),
    Column("warn", Float, nullable=True),
    Column("accepted", Moment, nullable=False),
    Index(None, "run_id"),
)

# Numbers of runs that were withdrawn without a reason. They are no references, and still limit which numbers
# are accepted. A database of this revision may lack this table: Store.withdraw creates it.
withdrawn = Table(
    "withdrawn_baselines",
    metadata,
    Column("quantity_id", ForeignKey("quantities.id"), primary_key=True),
    Column("hardware_id", ForeignKey("hardware.id"), primary_key=True),
    Column("run_id", String(121), primary_key=True),
    Column("value", Float, nullable=False),
    # The time of the first acceptance.
    Column("accepted", Moment, nullable=False),
    Index(None, "run_id"),
    Index(None, "hardware_id"),
)
