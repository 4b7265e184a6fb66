"""Test that a history which this user cannot write is read, and that writing names the remedy.

An operator may read the results of a service's user. SQLite writes files beside a database even to read it,
so the history is copied to a temporary folder if its folder is closed.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rackproof.store.history.store import HistoryError, open_store

from .samples import run


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a history beside which SQLite can make no file. Without this, root could in every folder."""
    monkeypatch.delenv("RACKPROOF_DATABASE_URL", raising=False)
    made = tmp_path / "results/history.sqlite"
    with open_store(made) as store:
        store.keep(run())
    made.with_name("history.sqlite-shm").symlink_to("/nonexistent/file")
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    return made


def test_a_read_only_history_is_read(path: Path) -> None:
    before = path.read_bytes()
    with open_store(path) as store:
        assert store.run("run-1") == run()
    assert path.read_bytes() == before


def test_runs_that_are_only_in_the_write_ahead_log_are_read(path: Path) -> None:
    path.with_name("history.sqlite-shm").unlink()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "access", lambda *_: True)
        writer = open_store(path)
        writer.keep(run("run-2"))
    path.with_name("history.sqlite-shm").rename(path.with_name("moved"))
    with open_store(path) as store:
        assert store.run("run-2").run_id == "run-2"
    writer.close()


def test_a_read_only_history_refuses_a_run(path: Path) -> None:
    with open_store(path) as store, pytest.raises(HistoryError) as caught:
        store.keep(run("run-2"))
    assert str(path) in str(caught.value)
    assert "Give this user the right to write the file and its folder" in str(caught.value)


@contextmanager
def without_roots_rights() -> Iterator[None]:
    """Give up root's rights for a while, because every folder is open to root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("mode", [0o444, 0o000])
def test_a_closed_folder_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.delenv("RACKPROOF_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    path = Path("results/history.sqlite")
    open_store(path).close()
    path.parent.chmod(mode)
    try:
        with without_roots_rights(), pytest.raises(HistoryError) as caught:
            open_store(path)
    finally:
        path.parent.chmod(0o755)
    assert str(path) in str(caught.value)
    assert "Give this user the right to write the file and its folder" in str(caught.value)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "Give this user the right to read the file and its folder, or name another place"),
        (errno.ENOSPC, f"the temporary folder {tempfile.gettempdir()} is full. Free space there, or"),
        (errno.EDQUOT, f"the temporary folder {tempfile.gettempdir()} is full. Free space there, or"),
        (errno.EIO, "rebuild the history from the results folder"),
    ],
)
def test_a_failed_copy_is_reported_with_the_remedy(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(shutil, "copyfile", refuse)
    with pytest.raises(HistoryError) as caught:
        open_store(path)
    assert remedy in str(caught.value)


def test_a_missing_temporary_folder_is_named(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(HistoryError, match=r"cannot be copied to a temporary folder: .* Set TMPDIR to"):
        open_store(path)


def test_a_history_that_changes_during_each_copy_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter(range(100))
    monkeypatch.setattr("rackproof.store.history.database._states", lambda _parts: next(states))
    with pytest.raises(HistoryError, match="changes too often"):
        open_store(path)
