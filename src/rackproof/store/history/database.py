"""Connect to the history's database. Create its tables if there are none, or else check them.

:func:`rackproof.store.history.store.open_store` calls this module. The database, PostgreSQL or SQLite, comes
from an argument, the environment variable RACKPROOF_DATABASE_URL, or the results folder.

A database URL may contain a password, so no error, log or ``repr`` shows it. Errors name only the
database, host and port, which is what an operator needs.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from rackproof.core.errors import RackproofError
from rackproof.store.history import schema

DATABASE_VARIABLE = "RACKPROOF_DATABASE_URL"
DEFAULT_PATH = Path("results/history.sqlite")
"""SQLite file if neither an argument nor the variable names a database."""

CONNECT_TIMEOUT_S = 5
"""Largest time for a connection to PostgreSQL, so that a dead database does not delay a run."""

LOCK_TIMEOUT_S = 30
"""Largest time to wait for another process that writes."""

_COPIES = 10
"""Largest number of attempts to copy a file that changes during its copy."""

WRITE_OPTION = "rackproof_write"
"""Option of a connection whose transaction will write, so that SQLite takes the lock at its beginning."""

# The key of the lock in PostgreSQL under which tables are created. The value is arbitrary, but all versions
# of Rackproof must use the same one.
_CREATION_LOCK = 7_252_030_417
_REBUILD_ADVICE = (
    "Keep it for its accepted references, name an empty database or another file, and rebuild the history "
    "from the results folder (docs/using/history.md, Backup and moving)."
)
_SECRET_OPTIONS = frozenset({"password", "sslpassword", "passfile", "sslkey"})
"""Options in a database URL whose values no message shows."""


class HistoryError(RackproofError):
    """A failed request to the history. The message gives the remedy, but no URL or password."""


class HistoryUnreachableError(HistoryError):
    """A database that does not answer or refuses the login. The run can be added later."""


class HistoryTooNewError(HistoryError):
    """A history whose tables a newer version of Rackproof made."""


@dataclass(frozen=True)
class Target:
    """The database to connect to, with its address and its name in messages.

    ``url`` and ``secrets`` are left out of the ``repr``.
    """

    description: str
    url: URL = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def sqlite(self) -> bool:
        """Return whether the database is an SQLite file."""
        return self.url.get_backend_name() == "sqlite"

    def scrub(self, message: str) -> str:
        """Return a message on one line, without the password and without control characters."""
        for secret in self.secrets:
            message = message.replace(secret, "***")
        return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", message).strip()

    def explain(self, error: SQLAlchemyError) -> HistoryError:
        """Translate a database error into a message for the operator."""
        cause = getattr(error, "orig", None) or error
        message = self.scrub(str(cause))
        if self.sqlite:
            return HistoryError(f"{self.description}: {message}. {_sqlite_advice(message)}")
        state = str(getattr(cause, "sqlstate", None) or "")
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        connecting = isinstance(error, OperationalError | InterfaceError) and not state
        # SQLSTATE 08 is a lost connection, 28 a refused login, 3D an unknown database, 53 a lack of
        # resources, and 57P a shutdown.
        if lost or connecting or state[:2] in ("08", "28", "3D", "53") or state.startswith("57P"):
            return HistoryUnreachableError(
                f"{self.description} cannot be reached: {message}. Check that the server runs and that "
                f"{DATABASE_VARIABLE} has the right host, user and password."
            )
        return HistoryError(f"{self.description}: {message}")


def locate_database(where: str | Path | None) -> Target:
    """Return the database at a place.

    A place that is a URL (``sqlite:///…``, ``postgresql://…``, ``postgres://…``) is used as it is.
    Otherwise, the environment variable RACKPROOF_DATABASE_URL is used, if it is set. If not, the place is
    the path of an SQLite file, and ``None`` means the default path.

    Raises:
        HistoryError: The text is not the URL of a database that Rackproof supports.
    """
    if isinstance(where, str) and "://" in where:
        return _from_url(where, "the database URL")
    named = os.environ.get(DATABASE_VARIABLE, "").strip()
    if named:
        return _from_url(named, DATABASE_VARIABLE)
    return _from_path(Path(where) if where else DEFAULT_PATH)


def _from_path(path: Path) -> Target:
    """Return the SQLite file at a path."""
    return Target(f"the history {path}", URL.create("sqlite", database=str(path)))


def _from_url(url_text: str, origin: str) -> Target:
    """Return the database of a URL, and refuse other kinds of databases."""
    usage = f"{origin} must look like postgresql://USER:PASSWORD@HOST:5432/NAME or sqlite:///PATH"
    url = _parsed_url(url_text)
    if url is None:
        raise HistoryError(
            f"{usage}; its value is not a URL. Write special characters of a password as %XX (@ is %40)."
        )
    # A driver in the URL ("postgresql+asyncpg") is ignored, because Rackproof always uses its own.
    kind = url.drivername.partition("+")[0]
    if kind == "sqlite":
        if not url.database or url.database == ":memory:":
            raise HistoryError(f"{usage}; a history kept in memory would be lost at once.")
        return _from_path(Path(url.database))
    if kind not in ("postgresql", "postgres"):
        raise HistoryError(f"{usage}; no other kind of database is supported.")
    return _postgresql_target(url_text, url.set(drivername="postgresql+psycopg"))


def _parsed_url(url: str) -> URL | None:
    """Return a URL in parts, or None if it is malformed."""
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        # The error is not passed on, because the parser's message may quote part of the password.
        return None


def _postgresql_target(url_text: str, url: URL) -> Target:
    """Return a PostgreSQL database with all its secrets, so that no message shows one."""
    options = {key: value for key, value in url.query.items() if key in _SECRET_OPTIONS}
    hidden = [
        url.password or "",
        *(secret for value in options.values() for secret in _values_of_option(value)),
    ]
    host = url.host or ", ".join(_values_of_option(url.query.get("host", "the local socket")))
    host_and_port = f"{host}:{url.port}" if url.port else host
    return Target(
        f"the PostgreSQL database {url.database or '(of the user)'} on {host_and_port}",
        url,
        # Replace the longest secret first. If a secret contains a shorter one, the rest of it would
        # otherwise stay readable.
        (url_text, *sorted(filter(None, hidden), key=len, reverse=True)),
    )


def _values_of_option(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the values of an option. A URL may state several."""
    return (value,) if isinstance(value, str) else value


@contextmanager
def translated_errors(target: Target) -> Iterator[None]:
    """Turn database errors into :class:`HistoryError`, without the original as the cause."""
    try:
        yield
    except SQLAlchemyError as error:
        raise target.explain(error) from None


def connect_database(target: Target) -> Engine:
    """Connect to a database. Create its tables if there are none, or else check their version.

    Several processes may call this at once. One of them creates the tables, and the others wait.

    Raises:
        HistoryUnreachableError: The server does not answer or refuses the login.
        HistoryTooNewError: The tables are newer than this code.
        HistoryError: The file cannot be created or is not a history, or its tables are too old.
    """
    engine = _sqlite_engine(target) if target.sqlite else _postgresql_engine(target)
    try:
        with translated_errors(target):
            _ensure_tables(engine, target)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _postgresql_engine(target: Target) -> Engine:
    """Return the connections to a PostgreSQL server, with limits for each wait."""
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        # With the defaults, a client notices only after hours that the server disappeared.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        "application_name": "rackproof",
    }
    # Settings in the URL take precedence.
    for key in target.url.query:
        arguments.pop(key, None)
    engine = create_engine(target.url, hide_parameters=True, pool_pre_ping=True, connect_args=arguments)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            # By default, PostgreSQL waits without a limit.
            cursor.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'")
            # A client that hangs in a transaction must not hold its locks.
            cursor.execute("SET idle_in_transaction_session_timeout = '10min'")
        connection.commit()

    return engine


def _sqlite_engine(target: Target) -> Engine:
    """Return the connections to an SQLite file, or to a copy of a file that this user cannot write.

    Raises:
        HistoryError: The folder of the file cannot be made, or the file cannot be copied.
    """
    path = Path(target.url.database or "")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HistoryError(
            f"{target.description} cannot be made: {path.parent}: {error.strerror}. Name another place."
        ) from None
    copy = _copy_to_read(path, target) if _needs_a_copy(path) else None
    url = target.url.set(database=str(Path(copy.name) / path.name)) if copy else target.url
    engine = create_engine(url, hide_parameters=True, connect_args={"timeout": LOCK_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    # The default value keeps the copy as long as the engine exists.
    def _prepare(connection: sqlite3.Connection, _record: Any, copy: object = copy) -> None:
        """Set up a new connection, so that a committed run is whole and survives a power failure."""
        # Python's own transaction handling commits before DDL, which could leave half the tables.
        connection.isolation_level = None
        # SQLite checks foreign keys only for a connection that enables it.
        connection.execute("PRAGMA foreign_keys = ON")
        # A committed run counts as stored, so it must survive a power failure.
        connection.execute("PRAGMA synchronous = FULL")
        # A negative number is in KiB, so this is 64 MiB.
        connection.execute("PRAGMA cache_size = -65536")
        if copy is not None:
            connection.execute("PRAGMA query_only = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes the lock at once. A later upgrade of a read transaction can cause a deadlock.
        writing = connection.get_execution_options().get(WRITE_OPTION)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _needs_a_copy(path: Path) -> bool:
    """Return whether SQLite could not even read a file, because this user cannot write it or its folder."""
    # A file with write-ahead logging needs its index beside it, which SQLite makes if no process has it open.
    shared = path.with_name(f"{path.name}-shm")
    try:
        if not path.is_file() or shared.exists():
            return False
    except OSError:
        # SQLite cannot open the file either, and its error comes with the remedy.
        return False
    return not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def _copy_to_read(path: Path, target: Target) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder with a copy of an SQLite file and its log.

    Raises:
        HistoryError: The file cannot be read, changes during each copy, or has no room for its copy.
    """
    parts = [path, path.with_name(f"{path.name}-wal")]
    try:
        copy = tempfile.TemporaryDirectory(prefix="rackproof-history-")
    except OSError as error:
        raise HistoryError(
            f"{target.description} cannot be copied to a temporary folder: {error.strerror or error}. Set "
            "TMPDIR to a folder with space that this user may write."
        ) from None
    try:
        for _ in range(_COPIES):
            before = _states(parts)
            for part in parts:
                Path(copy.name, part.name).unlink(missing_ok=True)
                if part.exists():
                    shutil.copyfile(part, Path(copy.name, part.name))
            if _states(parts) == before:
                return copy
    except OSError as error:
        raise HistoryError(f"{target.description} cannot be read: {_copy_advice(error, copy.name)}") from None
    raise HistoryError(
        f"{target.description} changes too often to be read without the right to write it. Give this user "
        "that right, or try again later."
    )


def _copy_advice(error: OSError, folder: str) -> str:
    """Return why a file could not be copied to a temporary folder, and the remedy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = Path(folder).parent
        return f"the temporary folder {place} is full. Free space there, or set TMPDIR to another folder."
    reason = error.strerror or str(error)
    if isinstance(error, PermissionError):
        return f"{reason}. Give this user the right to read the file and its folder, or name another place."
    return f"{reason}. {_sqlite_advice(reason)}"


def _states(parts: Iterable[Path]) -> list[tuple[int, int] | None]:
    """Return the time of the last change and the size of each file, or None for one that does not exist."""
    return [(part.stat().st_mtime_ns, part.stat().st_size) if part.exists() else None for part in parts]


def _ensure_tables(engine: Engine, target: Target) -> None:
    """Create the tables in an empty database. Refuse tables of another version."""
    with engine.connect() as connection:
        if _is_current(connection, target):
            return
    if target.sqlite:
        _allow_readers_beside_writer(engine)
    # Use one transaction, so that a killed process leaves an empty database and not half of the tables.
    with engine.connect().execution_options(**{WRITE_OPTION: True}) as connection, connection.begin():
        if not target.sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
        # Check again under the lock, because another process may have created the tables.
        if not _is_current(connection, target):
            schema.metadata.create_all(connection, checkfirst=False)
            connection.execute(schema.version.insert(), {"version_num": schema.REVISION})


def create_table(connection: Connection, table: Table) -> None:
    """Create a table that databases of this version may lack, in the transaction of a writer."""
    if inspect(connection).has_table(table.name):
        return
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
    # Another process may have created the table while this one waited for the lock.
    table.create(connection, checkfirst=True)


def _is_current(connection: Connection, target: Target) -> bool:
    """Return whether the tables are of this version. Return false if there are none.

    Raises:
        HistoryTooNewError: The tables are of a newer version.
        HistoryError: The tables are of an older version, or state no version.
    """
    # Check only the history's tables. A PostgreSQL database may contain tables of other programs.
    tables = schema.metadata.tables.keys() & set(inspect(connection).get_table_names())
    if not tables:
        return False
    revision: str | None = None
    if schema.version.name in tables:
        revision = connection.execute(select(schema.version.c.version_num)).scalar()
    if revision == schema.REVISION:
        return True
    if revision is None:
        raise HistoryError(
            f"{target.description} holds tables of a history ({', '.join(sorted(tables)[:3])}) without the "
            f"version of Rackproof that made them. {_REBUILD_ADVICE}"
        )
    shown_revision = target.scrub(revision)[:40]
    if revision.isdecimal() and revision < schema.REVISION:
        raise HistoryError(
            f"{target.description} was made by an older Rackproof (its tables are at revision "
            f"{shown_revision}, this one needs {schema.REVISION}). {_REBUILD_ADVICE}"
        )
    raise HistoryTooNewError(
        f"{target.description} was made by a newer Rackproof (its tables are at revision "
        f"{shown_revision}, this one supports up to {schema.REVISION}). Use that Rackproof or a later one."
    )


def _allow_readers_beside_writer(engine: Engine) -> None:
    """Switch the file to write-ahead logging, so that readers and one writer do not wait for each other."""
    raw = engine.raw_connection()
    try:
        raw.cursor().execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # Another process is switching the mode right now, with the same result.
        if "locked" not in str(error):
            raise OperationalError("PRAGMA journal_mode", None, error) from None
    except sqlite3.DatabaseError as error:
        raise DBAPIError("PRAGMA journal_mode", None, error) from None
    finally:
        raw.close()


def _sqlite_advice(message: str) -> str:
    """Return the remedy for an error of SQLite."""
    if "locked" in message:
        return f"Another process has been writing for more than {LOCK_TIMEOUT_S} s; try again later."
    if "full" in message:
        return "Free space on its disk; nothing half-written was kept."
    if "readonly" in message or "unable to open" in message:
        return "Give this user the right to write the file and its folder, or name another place."
    if "not a database" in message or "malformed" in message:
        return "Move the file away; the history can be made again from the results folder (rebuild)."
    return (
        "Free space on its disk or repair it, or move the file away and rebuild the history from the results "
        "folder."
    )
