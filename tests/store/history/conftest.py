"""Provide an empty database to the tests of the history, on SQLite and on a real PostgreSQL server.

The fixture ``where`` gives its URL, so a test that uses it runs once on each. The server is started once per
test session.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

PASSWORD = "s3cret/p@ss:word%"
"""A password with characters that have a meaning in a URL. No message may show it."""
PASSWORD_IN_URL = "s3cret%2Fp%40ss%3Aword%25"


@dataclass
class Server:
    """A PostgreSQL server of this test session. It requires the password over TCP, but not on the socket."""

    folder: Path
    programs: Path
    port: int

    def control(self, *words: str) -> None:
        command = [str(self.programs / "pg_ctl"), "-D", str(self.folder / "data"), "-w", "-t", "60", *words]
        with (self.folder / "control.log").open("ab") as log:
            subprocess.run(as_postgres(command), check=True, cwd=self.folder, stdout=log, stderr=log)

    def start(self) -> None:
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={self.port} -c fsync=off -c max_connections=40 "
            f"-c unix_socket_directories={self.folder} -c shared_buffers=64MB"
        )
        self.control("-l", str(self.folder / "server.log"), "-o", options, "start")

    def stop(self) -> None:
        self.control("-m", "immediate", "stop")

    def url(self, database: str, *, scheme: str = "postgresql", password: str = PASSWORD_IN_URL) -> str:
        return f"{scheme}://rackproof:{password}@127.0.0.1:{self.port}/{database}"

    def empty_database(self) -> str:
        """Empty the tests' only database, and return its name.

        A new database for each test would take 8 MB and 300 files.
        """
        with psycopg.connect(
            host=str(self.folder), port=self.port, user="rackproof", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return "postgres"


def as_postgres(command: list[str]) -> list[str]:
    """Return a command that runs as user postgres if the tests run as root, as PostgreSQL refuses root."""
    return (
        ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *command] if root() else command
    )


def root() -> bool:
    return os.geteuid() == 0


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Yield a running PostgreSQL server, or skip the test if none is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    if not found:
        message = "no PostgreSQL server here: apt-get install postgresql"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    folder = Path(tempfile.mkdtemp(prefix="rackproof-postgres-"))
    if root():
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "password").write_text(PASSWORD)
    (folder / "password").chmod(0o644)
    made = Server(folder, found[-1].parent, port)
    try:
        subprocess.run(
            as_postgres(
                [
                    str(made.programs / "initdb"),
                    *("-D", str(folder / "data"), "-U", "rackproof", "--pwfile", str(folder / "password")),
                    *("--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--no-sync"),
                ]
            ),
            check=True,
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/history.sqlite"
    server: Server = request.getfixturevalue("server")
    return server.url(server.empty_database())
