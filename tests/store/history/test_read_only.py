"""A history that this user cannot write is read, and an attempt to write it names it and the remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rackproof.store.history.store import HistoryError, open_store

from .samples import run


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a history beside which SQLite can make no file, as root can in every folder."""
    monkeypatch.delenv("RACKPROOF_DATABASE_URL", raising=False)
    made = tmp_path / "results/history.sqlite"
    with open_store(made) as store:
        store.keep(run())
    made.with_name("history.sqlite-shm").symlink_to("/nonexistent/file")
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    return made


def test_it_is_read(path: Path) -> None:
    before = path.read_bytes()
    with open_store(path) as store:
        assert store.run("run-1") == run()
    assert path.read_bytes() == before


def test_a_log_that_is_not_in_the_file_yet_counts(path: Path) -> None:
    path.with_name("history.sqlite-shm").unlink()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "access", lambda *_: True)
        writer = open_store(path)
        writer.keep(run("run-2"))
    path.with_name("history.sqlite-shm").rename(path.with_name("moved"))
    with open_store(path) as store:
        assert store.run("run-2").run_id == "run-2"
    writer.close()


def test_it_is_not_written(path: Path) -> None:
    with open_store(path) as store, pytest.raises(HistoryError) as caught:
        store.keep(run("run-2"))
    assert str(path) in str(caught.value)
    assert "Give this user the right to write the file and its folder" in str(caught.value)


def test_one_that_changes_during_each_copy_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter(range(100))
    monkeypatch.setattr("rackproof.store.history.database._states", lambda _parts: next(states))
    with pytest.raises(HistoryError, match="changes too often"):
        open_store(path)
