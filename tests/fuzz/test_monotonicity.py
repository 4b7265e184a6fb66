"""Test that a removed or damaged file of a run never improves its verdict.

These tests try 100 of the mutations of tests/fuzz/monotonicity.py, which explains them. They also check the
digests and seals with which readers of runs, nights and journals notice a change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Finding, Judgement, Node, Run, Verdict
from rackproof.jobs.bench.record import job_seal
from rackproof.jobs.reimage import run_files
from rackproof.jobs.reimage.lifecycle import Entry
from rackproof.jobs.reimage.run_files import JournalError
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.inventory import parse_node_expectation
from rackproof.nodes.snapshot import NodeSnapshot
from rackproof.store.night_store import (
    NightRecord,
    StoredSnapshot,
    read_night,
    read_snapshot,
    write_night,
    write_snapshot,
)
from rackproof.store.probe_results import ProbeNight, read_probes, write_probes
from rackproof.store.run_folder import ResultsError, dump_run, load_run, read_run, write_run
from rackproof.store.sealed_json import SealError, open_sealed, seal_json
from tests.fuzz.monotonicity import Judged, improvements, recorded_runs, try_mutations


def test_a_hundred_mutations_of_recorded_runs_improve_nothing() -> None:
    assert len(recorded_runs()) > 40
    # The suite fuzz tries 2,000 mutations, and `make fuzz` 10,000.
    kinds, failures = try_mutations(20261123, 0, 100)
    assert failures == []
    assert {kind.partition(":")[0] for kind in kinds} == {"local", "slurm", "docker", "night", "reimage"}


@pytest.mark.parametrize(
    ("before", "after", "damage", "better"),
    [
        ("fail", "unproven", "log_differs", False),
        ("fail", "unproven", "no_run_stop", True),
        ("fail", "degraded", "log_differs", True),
        ("unproven", "pass", "log_differs", True),
        ("degraded", "pass", "unreadable", True),
        ("pass", "fail", "", False),
    ],
)
def test_what_counts_as_better(before: str, after: str, damage: str, better: bool) -> None:
    found = improvements(
        Judged({"run": Verdict(before)}), Judged({"run": Verdict(after)}, frozenset({damage}))
    )
    assert bool(found) is better


# Files with a digest or seal.


def test_a_sealed_file_is_json_and_finds_every_changed_byte() -> None:
    sealed = seal_json('{"a": 1, "b": [true]}')
    assert json.loads(sealed).keys() == {"sha256", "a", "b"}
    assert json.loads(open_sealed(sealed)) == {"a": 1, "b": [True]}
    with pytest.raises(SealError, match="no digest"):
        open_sealed(b'{"a": 1}')
    for at in range(sealed.index(b'"a"'), len(sealed)):
        with pytest.raises(SealError):
            open_sealed(sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :])
        with pytest.raises(SealError):
            open_sealed(sealed[:at])


def test_a_record_without_its_verdict_is_damaged() -> None:
    kept = json.loads(dump_run(Run(run_id="r1", benchmark="b", verdict=Verdict.FAIL)))
    del kept["verdict"]
    with pytest.raises(ResultsError, match="changed after it was written"):
        load_run(json.dumps(kept).encode(), "run.json")
    # Records of earlier versions have no digest.
    del kept["sha256"]
    with pytest.raises(ResultsError, match="verdict: is missing"):
        load_run(json.dumps(kept).encode(), "run.json")


@pytest.mark.parametrize(
    ("verdict", "read"), [("pass", "unproven"), ("degraded", "unproven"), ("fail", "fail")]
)
def test_a_record_without_its_digest_proves_nothing(verdict: str, read: str) -> None:
    kept = json.loads(dump_run(Run(run_id="r1", benchmark="b", verdict=Verdict(verdict))))
    del kept["sha256"]
    run = load_run(json.dumps(kept).encode(), "run.json")
    assert (run.verdict.value, run.findings[-1].code) == (read, "no_digest")
    # A record that is written again does not become better.
    assert load_run(dump_run(run), "run.json").verdict.value == read


NO_DIGEST = "it has no digest: an earlier version wrote it, or it was changed; the night before it counts"
WHEN = datetime(2026, 11, 1, tzinfo=UTC)
READERS: dict[str, Callable[[Path], object]] = {
    "night.json": read_night,
    "snapshots/n1.json": lambda folder: read_snapshot(folder, "n1"),
    "probes.json": read_probes,
    "run.json": read_run,
}


@pytest.fixture
def night(tmp_path: Path) -> Path:
    folder = tmp_path / "20261101T000000Z-night-abcdef"
    folder.mkdir()
    write_night(folder, NightRecord(night_id=folder.name, started=WHEN, ended=WHEN, verdict=Verdict.PASS))
    write_snapshot(
        folder, "n1", StoredSnapshot(look=NodeSnapshot(node="n1", hardware_key="k"), about=Node(name="n1"))
    )
    write_probes(folder, ProbeNight(asked=1.0))
    write_run(Run(run_id=folder.name, benchmark="night", verdict=Verdict.PASS), folder)
    assert all(read(folder) for read in READERS.values())
    return folder


def what_is_read(folder: Path, name: str) -> object:
    """Return what a reader returns, or the words of its error."""
    try:
        return READERS[name](folder)
    except ResultsError as error:
        return str(error)


@pytest.mark.parametrize("name", sorted(set(READERS) - {"run.json"}))
def test_what_a_night_keeps_is_not_read_without_its_digest(night: Path, name: str) -> None:
    kept = json.loads((night / name).read_bytes())
    del kept["sha256"]
    (night / name).write_text(json.dumps(kept))
    assert what_is_read(night, name) in (None, f"{night / name} is damaged: {NO_DIGEST}")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", sorted(READERS))
@pytest.mark.parametrize("what", ["pipe", "device", "folder", "link to a pipe"])
def test_a_reader_waits_for_no_pipe_and_no_device(night: Path, name: str, what: str) -> None:
    path = night / name
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "folder":
        path.mkdir()
    else:
        os.mkfifo(night / "pipe")
        path.symlink_to(night / "pipe")
    found = what_is_read(night, name)
    assert found is None or (isinstance(found, str) and name in found)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    "evidence",
    [
        {"judgements": (Judgement(metric="m", verdict=Verdict.FAIL, reason="slow"),)},
        {"findings": (Finding(code="xid", message="fell off", verdict=Verdict.FAIL),)},
    ],
)
def test_a_verdict_that_was_made_better_by_hand_is_damage(sealed: bool, evidence: dict[str, Any]) -> None:
    kept = json.loads(dump_run(Run(run_id="r1", benchmark="b", verdict=Verdict.FAIL, **evidence)))
    load_run(dump_run(Run(run_id="r1", benchmark="b", verdict=Verdict.FAIL, **evidence)), "run.json")
    kept["verdict"] = "pass"
    if not sealed:
        del kept["sha256"]
    words = "changed after it was written" if sealed else "verdict: is pass, but the .* is fail"
    with pytest.raises(ResultsError, match=words):
        load_run(json.dumps(kept).encode(), "run.json")


@pytest.mark.parametrize(
    "change",
    [{"unkillable": []}, {"exit_status": 0}, {"log_sha256": None}, {"signal": None}, {"log_bytes": 7}],
)
def test_the_state_of_a_job_is_sealed(change: dict[str, Any]) -> None:
    state: dict[str, Any] = {"id": "r", "exit_status": 1, "signal": 9, "unkillable": [7], "log_sha256": "a"}
    assert job_seal(state) == job_seal(json.loads(json.dumps(state)))
    assert job_seal({**state, **change}) != job_seal(state)


def test_a_journal_of_another_node_or_run_is_refused(tmp_path: Path) -> None:
    own = run_files.journal_path(tmp_path / "run-1", "n1")
    entry = Entry(at=datetime(2026, 11, 22, tzinfo=UTC), event="adopted", journal=run_files.journal_name(own))
    run_files.append_entry(own, entry)
    assert run_files.read_journal(own) == (entry,)
    for folder, node in (("run-1", "n2"), ("run-2", "n1")):
        other = run_files.journal_path(tmp_path / folder, node)
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(own.read_bytes())
        with pytest.raises(JournalError, match="it is the journal of run-1/n1"):
            run_files.read_journal(other)


@pytest.mark.parametrize(
    "expected",
    [
        {"versions": {"driver": "\ud800"}},
        {"mounts": ["/" + "x" * 1001]},
        {"gpu_name": "\udcff"},
        {"versions": {"\ud800": "1"}},
    ],
)
def test_a_text_that_no_finding_can_show_is_refused(expected: dict[str, Any]) -> None:
    with pytest.raises(ValidateError, match="is not text of up to 1000 characters"):
        parse_node_expectation("n1", expected)
