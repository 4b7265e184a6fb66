"""Test that no run is lost while the history's database does not answer (store/history/spool.py).

A run that cannot be stored gets a note in the spool folder. The next run that is stored takes the noted ones
along, and `rackproof history --rebuild` stores all runs of a results folder again.
"""

from __future__ import annotations

import json
import shutil
import socket
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from rackproof.store.history import schema
from rackproof.store.history.store import drain_spool, keep_or_spool, open_store, rebuild_history
from rackproof.store.run_folder import ResultsError, write_run

from .conftest import PASSWORD, PASSWORD_IN_URL, Server
from .samples import node, run


def recorded(results: Path, run_id: str) -> Path:
    """Write the record of a run, and return its folder."""
    write_run(run(run_id), results / run_id)
    return results / run_id


@pytest.fixture
def nowhere() -> str:
    """Return the URL of a database that does not answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"postgresql://u:geheim@127.0.0.1:{probe.getsockname()[1]}/fleet"


def test_a_working_history_takes_the_run_at_once(where: str, tmp_path: Path) -> None:
    spool = tmp_path / "results/.spool"
    outcome = keep_or_spool(recorded(tmp_path / "results", "run-1"), where, spool)
    assert (outcome.kept, outcome.spooled, outcome.drained) == (True, False, 0)
    assert outcome.message.startswith("run run-1 is in the ")
    assert not spool.exists()
    with open_store(where) as store:
        assert store.run("run-1") == run("run-1")


def test_a_run_waits_in_the_spool_and_enters_with_the_next_one(
    where: str, nowhere: str, tmp_path: Path
) -> None:
    results, spool = tmp_path / "results", tmp_path / "results/.spool"
    for name in ("run-1", "run-2"):
        outcome = keep_or_spool(recorded(results, name), nowhere, spool)
        assert (outcome.kept, outcome.spooled) == (False, True)
        assert f"run {name} is safe in {results / name} but not yet in the history" in outcome.message
        assert "geheim" not in outcome.message
    notes = sorted(spool.iterdir())
    assert [note.name for note in notes] == ["run-1.json", "run-2.json"]
    assert all("geheim" not in note.read_text() for note in notes)

    outcome = keep_or_spool(recorded(results, "run-3"), where, spool)
    assert (outcome.kept, outcome.drained) == (True, 2)
    assert "with 2 noted earlier" in outcome.message
    assert list(spool.iterdir()) == []
    with open_store(where) as store:
        assert {one.run_id for one in store.runs()} == {"run-1", "run-2", "run-3"}


def test_noted_runs_are_stored_by_a_call(where: str, nowhere: str, tmp_path: Path) -> None:
    results, spool = tmp_path / "results", tmp_path / "spool"
    keep_or_spool(recorded(results, "run-1"), nowhere, spool)
    still = drain_spool(nowhere, spool)
    assert (still.entered, still.waiting) == ((), ("run-1",))
    assert "cannot be reached" in still.problems[0]
    done = drain_spool(where, spool)
    assert (done.entered, done.waiting, done.problems) == (("run-1",), (), ())
    assert drain_spool(where, spool).entered == ()
    assert drain_spool(nowhere, tmp_path / "no-spool").problems == ()


@pytest.mark.postgres
def test_the_real_server_stops_and_comes_back(server: Server, tmp_path: Path) -> None:
    results, spool = tmp_path / "results", tmp_path / "results/.spool"
    url = server.url(server.empty_database())
    assert keep_or_spool(recorded(results, "run-1"), url, spool).kept
    server.stop()
    try:
        outcome = keep_or_spool(recorded(results, "run-2"), url, spool)
    finally:
        server.start()
    assert outcome.spooled
    for secret in (PASSWORD, PASSWORD_IN_URL, url):
        assert secret not in outcome.message + (spool / "run-2.json").read_text()
    assert drain_spool(url, spool).entered == ("run-2",)
    with open_store(url) as store:
        assert {one.run_id for one in store.runs()} == {"run-1", "run-2"}


@pytest.mark.parametrize("moved", ["together", "results", "spool"])
def test_notes_outlive_a_move(where: str, nowhere: str, tmp_path: Path, moved: str) -> None:
    old, new = tmp_path / "old", tmp_path / "deep/new"
    keep_or_spool(recorded(old / "results", "run-1"), nowhere, old / "spool")
    new.mkdir(parents=True)
    if moved == "results":
        shutil.move(old / "results", new / "results")
    else:
        shutil.move(old / "spool", new / "spool")
    if moved == "together":
        shutil.move(old / "results", new / "results")
    spool = old / "spool" if moved == "results" else new / "spool"
    outcome = drain_spool(where, spool)
    if moved == "results":
        assert outcome.waiting == ("run-1",)
        assert "does not exist" in outcome.problems[0]
        assert (spool / "run-1.json").is_file()
        assert rebuild_history(new / "results", where).runs == 1
    else:
        assert outcome.entered == ("run-1",)


@pytest.mark.parametrize(
    ("note", "problem"),
    [
        (b"", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"folder": "/nonexistent"}', "is damaged"),
        (b'{"folder": "/nonexistent", "relative": "nowhere"}', "does not exist"),
        (b"\xff\xfe", "is damaged"),
        pytest.param(b"[" * 200_000, "is damaged", id="deep"),
        (b'{"folder": "/a\\u0000b", "relative": "nowhere"}', "is damaged"),
        (b'{"folder": "/nonexistent", "relative": "a\\u0000b"}', "does not exist"),
        (b'{"folder": "/\\ud800", "relative": "nowhere"}', "is damaged"),
    ],
)
def test_a_damaged_note_stays_and_is_named(where: str, tmp_path: Path, note: bytes, problem: str) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "run-9.json").write_bytes(note)
    outcome = drain_spool(where, spool)
    assert outcome.waiting == ("run-9",)
    assert problem in outcome.problems[0]
    assert (spool / "run-9.json").read_bytes() == note
    kept = keep_or_spool(recorded(tmp_path / "results", "run-1"), where, spool)
    assert kept.kept
    assert problem in kept.message


def test_a_note_that_points_at_another_run_enters_nothing(where: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    folder = recorded(tmp_path / "results", "run-1")
    (spool / "run-2.json").write_text(json.dumps({"folder": str(folder), "relative": "nowhere"}))
    assert "which holds run run-1" in drain_spool(where, spool).problems[0]
    with open_store(where) as store:
        assert store.runs() == []


def test_a_spool_that_cannot_be_written_is_reported_and_the_run_found_by_rebuilding(
    where: str, nowhere: str, tmp_path: Path
) -> None:
    (tmp_path / "spool").write_text("a file, no folder")
    outcome = keep_or_spool(recorded(tmp_path / "results", "run-1"), nowhere, tmp_path / "spool")
    assert (outcome.kept, outcome.spooled) == (False, False)
    assert "could not be noted" in outcome.message
    assert "rebuild" in outcome.message
    assert rebuild_history(tmp_path / "results", where).runs == 1


@pytest.mark.parametrize("content", [None, b"", b'{"run_id": "run-1"'])
def test_a_missing_or_damaged_record_is_an_error_and_noted_nowhere(
    nowhere: str, tmp_path: Path, content: bytes | None
) -> None:
    folder = tmp_path / "run-1"
    folder.mkdir()
    if content is not None:
        (folder / "run.json").write_bytes(content)
    with pytest.raises(ResultsError):
        keep_or_spool(folder, nowhere, tmp_path / "spool")
    assert not (tmp_path / "spool").exists()


def test_rebuilding_enters_all_and_names_the_damaged(where: str, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name in ("run-1", "run-2", "run-3"):
        recorded(results, name)
    (results / "run-2/run.json").write_bytes(b'{"run_id": "run-2", "benchmark": 7}')
    first = rebuild_history(results, where)
    assert (first.runs, len(first.problems)) == (2, 1)
    assert "run-2/run.json is damaged: benchmark" in first.problems[0]
    with open_store(where) as store:
        store.accept("run-3")
        store._write(lambda connection: connection.execute(schema.records.update().values(record="{")))
    assert rebuild_history(results, where).runs == 2
    with open_store(where) as store:
        assert store.run("run-3") == run("run-3")
        assert store.withdraw("run-3") == 3


# Numbers too large for a column, and times that are outside of the years 1 to 9999 in UTC.
@pytest.mark.parametrize(
    "changes",
    [
        {"exit_status": 10**20},
        {"exit_status": -(10**20)},
        {"exit_status": 2**40},
        {"started": datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-5)))},
        {"started": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))},
        {"started": None, "ended": datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-5)))},
        {"ended": datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-5)))},
        {"gpu_index": 10**20},
    ],
)
def test_a_run_with_a_number_or_time_that_no_column_stores_is_kept(
    where: str, tmp_path: Path, changes: dict[str, object]
) -> None:
    given = dict(changes)
    on = node()
    if index := given.pop("gpu_index", None):
        on = on.model_copy(update={"gpus": (on.gpus[0].model_copy(update={"index": index}),)})
    one = run("run-1", nodes=(on,)).model_copy(update=given)
    write_run(one, tmp_path / "results/run-1")
    assert keep_or_spool(tmp_path / "results/run-1", where, tmp_path / ".spool").kept
    with open_store(where) as store:
        assert store.run("run-1") == one
        assert [row.run_id for row in store.runs()] == ["run-1"]
        assert store.measurements()
        store.readings(datetime(2026, 11, 2, tzinfo=UTC), nights=2)


def test_any_number_of_runs_is_looked_up(tmp_path: Path) -> None:
    with open_store(tmp_path / "history.sqlite") as store:
        store.keep(run("run-1"))
        assert store.accept("run-1")
        ids = [f"run-{number}" for number in range(300_000)]
        assert store.without_references(ids) == [name for name in ids if name != "run-1"]
        assert store.without_references(["run-1", "x", "x"]) == ["x", "x"]
        assert store.without_references([]) == []


def test_the_metrics_of_a_run_are_those_that_gave_references(tmp_path: Path) -> None:
    with open_store(tmp_path / "history.sqlite") as store:
        store.keep(run("run-1"))
        assert store.referenced_metrics("run-1") == []
        store.accept("run-1")
        # The accuracy passed its rule's bound, and gave no reference.
        assert store.referenced_metrics("run-1") == ["memory_copy", "seconds_per_epoch"]
