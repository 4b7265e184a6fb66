"""Test how the history reaches its database, and that errors name it without its password.

The database is a SQLite file in the results folder, or PostgreSQL by a URL. Its tables have a revision, and
another one is refused. Several processes write at once, and one that is killed leaves only whole runs.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from rackproof.store.history import database, schema
from rackproof.store.history.store import (
    HistoryError,
    HistoryTooNewError,
    HistoryUnreachableError,
    open_store,
)

from .conftest import PASSWORD, PASSWORD_IN_URL, Server
from .samples import run

# Many cases start processes, which takes too long for `make check`.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def test_the_path_is_used_unless_the_environment_names_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(database.DATABASE_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert database.locate_database(tmp_path / "h.sqlite").url.database == str(tmp_path / "h.sqlite")
    assert database.locate_database(None).url.database == "results/history.sqlite"
    with open_store() as store:
        assert "results/history.sqlite" in repr(store)
    assert (tmp_path / "results/history.sqlite").is_file()

    monkeypatch.setenv(database.DATABASE_VARIABLE, "postgres://u:p@db.example/fleet")
    for where in (None, tmp_path / "h.sqlite", "results/h.sqlite"):
        assert database.locate_database(where).url.drivername == "postgresql+psycopg"
    assert database.locate_database("sqlite:///explicit.sqlite").url.database == "explicit.sqlite"


@pytest.mark.parametrize(
    ("url", "description"),
    [
        ("postgres://u:geheim@h/fleet", "the PostgreSQL database fleet on h"),
        ("postgresql://u:geheim@h:5433/fleet", "the PostgreSQL database fleet on h:5433"),
        ("postgresql+psycopg://u@h/fleet?password=geheim", "the PostgreSQL database fleet on h"),
        ("postgresql:///fleet?host=/run/pg", "the PostgreSQL database fleet on /run/pg"),
        ("postgresql://h", "the PostgreSQL database (of the user) on h"),
    ],
)
def test_every_spelling_of_a_postgresql_url_works_and_none_is_shown(url: str, description: str) -> None:
    target = database.locate_database(url)
    assert target.url.drivername == "postgresql+psycopg"
    assert target.description == description
    assert "geheim" not in repr(target)
    if "geheim" in url:
        assert "geheim" not in target.scrub(f"could not use {url} with geheim")


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:geheim@h/x",
        "postgresql://u:ge:heim@geheim@h:port/x",
        "postgresql://u:geheim@h:54x32/x",
        "://geheim",
        "sqlite://",
        "sqlite:///:memory:",
        "oracle+geheim://x",
    ],
)
def test_a_bad_url_is_explained_without_showing_it(url: str) -> None:
    with pytest.raises(HistoryError, match="must look like postgresql://USER:PASSWORD@HOST") as caught:
        open_store(url)
    shown = "".join(traceback.format_exception(caught.value))
    assert "geheim" not in shown.replace(f"open_store({url!r})", "")
    assert caught.value.__context__ is None


@pytest.mark.postgres
@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_the_real_server_is_reached_by_every_scheme(server: Server, scheme: str) -> None:
    with open_store(server.url(server.empty_database(), scheme=scheme)) as store:
        assert store.keep(run())


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"password": "wr0ng-geheim"}, "password authentication failed"),
        ({"database": "not_there"}, "does not exist"),
    ],
)
def test_being_refused_is_unreachable_and_shows_no_password(
    server: Server, change: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = server.url(**({"database": "postgres"} | change))
    with pytest.raises(HistoryUnreachableError, match=message) as caught:
        open_store(url)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text
    for secret in (PASSWORD, PASSWORD_IN_URL, "wr0ng-geheim", url):
        assert secret not in shown
    assert database.DATABASE_VARIABLE in str(caught.value)


@pytest.mark.postgres
def test_an_open_store_shows_no_password(server: Server) -> None:
    with open_store(server.url(server.empty_database())) as store:
        assert PASSWORD not in repr(store) + str(store) + store.description
        assert PASSWORD_IN_URL not in repr(store)


def test_a_server_that_does_not_listen_is_unreachable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(HistoryUnreachableError, match=r"database fleet on 127\.0\.0\.1") as caught:
        open_store(f"postgresql://u:geheim@127.0.0.1:{port}/fleet")
    assert "geheim" not in str(caught.value)


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(HistoryUnreachableError):
            open_store(f"postgresql://u:geheim@127.0.0.1:{silent.getsockname()[1]}/fleet")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"this is not a database" * 100, "Move the file away"), (None, "give|Give this user the right")],
)
def test_a_file_that_is_no_history_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "history.sqlite"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(HistoryError, match=message) as caught:
        open_store(f"sqlite:///{path}")
    assert str(path) in str(caught.value)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HistoryError, match="cannot be made"):
        open_store(f"sqlite:///{tmp_path}/file/history.sqlite")


@pytest.fixture
def plain(where: str) -> Iterator[sqlalchemy.Engine]:
    """Return an engine of the tested database without Rackproof's own settings."""
    engine = sqlalchemy.create_engine(database.locate_database(where).url)
    yield engine
    engine.dispose()


def column_types(table: sqlalchemy.Table, dialect: sqlalchemy.Dialect) -> dict[str, str]:
    """Return the columns and their types in this database. Our own types resolve to the database's."""
    # PostgreSQL reports the FLOAT of a CREATE TABLE as DOUBLE PRECISION.
    return {
        column.name: (
            column.type.load_dialect_impl(dialect)
            if isinstance(column.type, sqlalchemy.TypeDecorator)
            else column.type
        )
        .compile(dialect)
        .replace("DOUBLE PRECISION", "FLOAT")
        for column in table.columns
    }


def constraints(table: sqlalchemy.Table) -> set[tuple[object, ...]]:
    """Return the keys, indexes and conditions of a table, in the same form for code and database."""
    indexes = {
        ("index", one.name, one.unique, *(column.name for column in one.columns)) for one in table.indexes
    }
    unique = {
        ("unique", one.name, *(column.name for column in one.columns))
        for one in table.constraints
        if isinstance(one, sqlalchemy.UniqueConstraint)
    }
    keys = {
        ("foreign", one.name, one.ondelete, *one.column_keys, *(key.target_fullname for key in one.elements))
        for one in table.foreign_key_constraints
    }
    needed = {("not null", column.name) for column in table.columns if not column.nullable}
    return indexes | unique | keys | needed | {("primary", *table.primary_key.columns.keys())}


def test_the_database_has_the_tables_that_the_code_expects(where: str, plain: sqlalchemy.Engine) -> None:
    open_store(where).close()
    found = sqlalchemy.MetaData()
    found.reflect(plain)
    assert found.tables.keys() == schema.metadata.tables.keys()
    for name, expected in schema.metadata.tables.items():
        assert column_types(found.tables[name], plain.dialect) == column_types(expected, plain.dialect)
        assert constraints(found.tables[name]) == constraints(expected)
    with plain.connect() as connection:
        assert connection.scalars(sqlalchemy.select(schema.version.c.version_num)).all() == [schema.REVISION]


def statements(dialect: sqlalchemy.Dialect) -> str:
    """Return the statements that make all tables and indexes."""
    made = []
    for table in schema.metadata.sorted_tables:
        made.append(str(CreateTable(table).compile(dialect=dialect)))
        made += sorted(str(CreateIndex(index).compile(dialect=dialect)) for index in table.indexes)
    return "\n".join(" ".join(one.split()) for one in made)


@pytest.mark.parametrize(
    ("dialect", "digest"),
    [(sqlite.dialect(), "4e137c9525495b6d"), (postgresql.dialect(), "fccca7188c627f97")],
    ids=["sqlite", "postgresql"],
)
def test_the_tables_have_not_changed_under_their_revision(dialect: sqlalchemy.Dialect, digest: str) -> None:
    # Another digest means other tables: raise schema.REVISION, then renew the digests and this number. Only a
    # table that the code creates where it is missing (schema.withdrawn) needs no new number.
    assert schema.REVISION == "0001"
    assert hashlib.sha256(statements(dialect).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (f"UPDATE {schema.version.name} SET version_num = '0000'", "older Rackproof .*revision 0000"),
        (f"DELETE FROM {schema.version.name}", "without the version"),
        (f"DROP TABLE {schema.version.name}", "without the version"),
    ],
)
def test_an_older_or_unversioned_history_is_refused_untouched(
    where: str, plain: sqlalchemy.Engine, change: str, message: str
) -> None:
    with open_store(where) as store:
        store.keep(run())
    with plain.begin() as connection:
        connection.execute(sqlalchemy.text(change))
    with pytest.raises(HistoryError, match=message) as caught:
        open_store(where)
    assert not isinstance(caught.value, HistoryTooNewError)
    assert "rebuild the history from the results folder" in str(caught.value)
    with plain.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT count(*) FROM runs")).scalar() == 1


def test_tables_of_other_programs_do_not_prevent_a_history(where: str, plain: sqlalchemy.Engine) -> None:
    with plain.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
    with open_store(where) as store:
        assert store.keep(run())


def test_a_newer_history_is_refused_untouched(where: str, plain: sqlalchemy.Engine) -> None:
    with open_store(where) as store:
        store.keep(run())
    with plain.begin() as connection:
        connection.execute(sqlalchemy.text(f"UPDATE {schema.version.name} SET version_num = '9999'"))
    with pytest.raises(HistoryTooNewError, match=r"revision 9999.*supports up to " + schema.REVISION):
        open_store(where)
    with plain.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT count(*) FROM runs")).scalar() == 1


def test_creation_that_breaks_off_leaves_nothing(where: str, plain: sqlalchemy.Engine) -> None:
    made = []

    def breaks(*_words: object, **_options: object) -> None:
        raise sqlalchemy.exc.OperationalError("CREATE TABLE", None, Exception("disk full"))

    def counts(table: sqlalchemy.Table, *_words: object, **_options: object) -> None:
        made.append(table.name)

    sqlalchemy.event.listen(schema.runs, "after_create", counts)
    sqlalchemy.event.listen(schema.measurements, "before_create", breaks)
    try:
        with pytest.raises(HistoryError, match="disk full"):
            open_store(where)
    finally:
        sqlalchemy.event.remove(schema.measurements, "before_create", breaks)
        sqlalchemy.event.remove(schema.runs, "after_create", counts)
    assert made == ["runs"]
    assert sqlalchemy.inspect(plain).get_table_names() == []
    with open_store(where) as store:
        assert store.keep(run())


def start(program: str, *words: str) -> subprocess.Popen[str]:
    """Start a Python program that can import the samples."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_processes_that_open_an_empty_database_at_once_all_succeed(where: str) -> None:
    program = """
import sys
from rackproof.store.history.store import open_store
from tests.store.history.samples import run
sys.stdin.readline()
with open_store(sys.argv[1]) as store:
    print(store.keep(run(sys.argv[2])))
"""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program, where, f"run-{number}"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(4)
    ]
    time.sleep(1.5)  # until all have imported, so that they open the database at the same time
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = [worker.communicate(timeout=120) for worker in workers]
    assert [answer for answer, _ in answers] == ["True\n"] * 4, answers
    with open_store(where) as store:
        assert len(store.runs()) == 4


def test_two_writers_of_the_same_runs_on_the_same_hardware_end_with_one_of_each(where: str) -> None:
    open_store(where).close()
    program = """
import sys
from rackproof.store.history.store import open_store
from tests.store.history.samples import node, run
_, where, order = sys.argv
numbers = range(30) if order == "forwards" else range(29, -1, -1)
with open_store(where) as store:
    for number in numbers:
        nodes = node(number % 3), node(5)
        store.keep(run(f"run-{number:02d}", night=number, nodes=nodes, notes=order))
"""
    workers = [start(program, where, order) for order in ("forwards", "backwards")]
    for worker in workers:
        _, trouble = worker.communicate(timeout=120)
        assert worker.returncode == 0, trouble
    with open_store(where) as store:
        assert len(store.runs()) == 30
        assert len(store.measurements(limit=None)) == 30 * 6
        assert {store.run(one.run_id).notes for one in store.runs()} <= {"forwards", "backwards"}


def test_a_kill_while_a_run_is_stored_leaves_only_whole_runs(where: str) -> None:
    open_store(where).close()
    program = """
import itertools, sys
from rackproof.store.history.store import open_store
from tests.store.history.samples import measured, run
many = tuple(measured("m", float(number), "s", step=str(number)) for number in range(400))
with open_store(sys.argv[1]) as store:
    for number in itertools.count():
        store.keep(run(f"{sys.argv[2]}-{number:05d}", measurements=many))
        print(number, flush=True)
"""
    kept = 0
    for turn in range(4):
        worker = start(program, where, f"turn{turn}")
        assert worker.stdout is not None
        for _ in range(3 + turn):
            worker.stdout.readline()
        time.sleep(0.003 * (1 + 3 * turn))
        worker.send_signal(signal.SIGKILL)
        rest, _ = worker.communicate()
        kept += 3 + turn + len(rest.splitlines())
    engine = sqlalchemy.create_engine(database.locate_database(where).url)
    with engine.connect() as connection:
        counts = connection.execute(
            sqlalchemy.text(
                "SELECT run_id, (SELECT count(*) FROM measurements m WHERE m.run_pk = runs.id),"
                " (SELECT count(*) FROM records r WHERE r.run_pk = runs.id) FROM runs"
            )
        ).all()
    engine.dispose()
    assert {(measurements, records) for _, measurements, records in counts} == {(400, 1)}
    # Every run that was reported as kept is there. In each turn, one more may be, whose report was lost.
    assert kept <= len(counts) <= kept + 4
    with open_store(where) as store:
        assert store.keep(run("afterwards"))


def test_a_reader_is_not_stopped_by_a_writer(where: str) -> None:
    with open_store(where) as writer, open_store(where) as reader:
        writer.keep(run("before"))

        def look_from_inside() -> list[str]:
            return [one.run_id for one in reader.runs()]

        seen = writer._write(lambda _connection: look_from_inside())
        assert seen == ["before"]


def test_waiting_for_another_writer_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.sqlite"
    monkeypatch.setattr(database, "LOCK_TIMEOUT_S", 0.2)
    with open_store(f"sqlite:///{path}") as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryError, match="Another process has been writing"):
            store.keep(run())
        other.execute("ROLLBACK")
        other.close()
        assert store.keep(run())


@pytest.mark.postgres
def test_a_server_that_goes_away_is_noticed_and_its_return_used(server: Server) -> None:
    with open_store(server.url(server.empty_database())) as store:
        store.keep(run("before"))
        server.stop()
        try:
            with pytest.raises(HistoryUnreachableError):
                store.keep(run("while-down"))
        finally:
            server.start()
        assert store.keep(run("while-down"))


def test_errors_survive_being_sent_between_processes() -> None:
    error = HistoryUnreachableError("down")
    assert str(pickle.loads(pickle.dumps(error))) == "down"  # noqa: S301  (made here)
