"""Test the search for a node's parts in earlier nights, and the reading of damaged nights.

If a node reports a serial number or GPU of another node, its numbers must not be stored. store/night_store.py
therefore searches the snapshots of earlier nights for these parts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Node, Verdict
from rackproof.nodes.snapshot import GpuSnapshot, NodeSnapshot
from rackproof.store.host_claims import claim_hosts
from rackproof.store.night_store import (
    CONDITIONS_FILE,
    NIGHT_CLAIMS,
    NightRecord,
    NodeNight,
    StoredSnapshot,
    _quoted_words,
    find_last_places,
    interrupted_nights,
    read_conditions,
    slurm_state,
    write_night,
    write_snapshot,
)

UUIDS = [f"GPU-0000000{slot}-1111-2222-3333-444444444444" for slot in range(8)]
SERIAL = "SN0001"


def stored(serial: str = SERIAL, **update: Any) -> StoredSnapshot:
    """Return the snapshot of node n1 with eight GPUs, with some fields replaced."""
    gpus = tuple(GpuSnapshot(uuid=uuid, index=slot) for slot, uuid in enumerate(UUIDS))
    snapshot = NodeSnapshot(node="n1", sku="h200", hardware_key="k", serial=serial, gpus=gpus)
    about = Node(name="n1", sku="h200", serial=serial)
    return StoredSnapshot(snapshot=snapshot.model_copy(update=update), about=about)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a night without snapshots."""
    path = tmp_path / "20261101T000000Z-health-abcdef"
    (path / "snapshots").mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"sku": ""},
        {"hostname": "h" * 101},
        {"hostname": 'a "quoted" name'},
        {"hostname": "a\\"},
        {"hostname": "a\\", "sku": ""},
        {"declared_lines": ('a "b', "", "\\", "x" * 5000)},
        {"hostname": "größer"},
    ],
    ids=str,
)
def test_parts_are_found_whatever_texts_precede_them(folder: Path, update: dict[str, Any]) -> None:
    write_snapshot(folder, "n1", stored(**update))
    wanted = dict.fromkeys([SERIAL, *UUIDS], "n2")
    assert find_last_places([folder], wanted) == dict.fromkeys(wanted, ("n1", "2026-11-01"))


@pytest.mark.parametrize("serial", ['A"B', "A\\B", "\\", "Gerät 7", "A" * 100])
def test_a_serial_number_with_special_characters_is_found(folder: Path, serial: str) -> None:
    write_snapshot(folder, "n1", stored(serial))
    assert find_last_places([folder], {serial: "n2"}) == {serial: ("n1", "2026-11-01")}


@pytest.mark.parametrize("text", [b'"\\"' * 300_000, b'"' + b"\\" * 900_001, b'"a', b'"' * 300_001])
def test_the_search_for_texts_takes_linear_time(text: bytes) -> None:
    _quoted_words(text)


@pytest.mark.parametrize("damage", ["[" * 100_000, '{"a":' * 100_000, "[]", '{"k": 3}', ""])
def test_damaged_conditions_of_a_night_count_as_none(folder: Path, damage: str) -> None:
    (folder / CONDITIONS_FILE).write_text(damage)
    now = datetime(2026, 11, 2, 1, tzinfo=UTC)
    assert read_conditions([folder], [], now, 1) == [{}, {}]


@pytest.mark.parametrize("jobs", [5, True, "12", {"12": 1}, 0.5])
def test_jobs_that_are_not_a_list_count_as_no_answer_of_slurm(jobs: object) -> None:
    """A node whose jobs are unknown must not count as idle."""
    assert slurm_state({"n1": {"known": True, "state_after": "IDLE", "jobs": jobs}}, "n1") is None


@pytest.mark.parametrize(("jobs", "known"), [(None, ()), ([], ()), (["12", 13], ("12", "13"))])
def test_jobs_of_slurm_are_read(jobs: object, known: tuple[str, ...]) -> None:
    state = slurm_state({"n1": {"known": True, "state_after": "IDLE", "jobs": jobs}}, "n1")
    assert state is not None
    assert state.jobs == known


def make_night(results: Path, day: int, nodes: Sequence[str], judged: Sequence[str] = ()) -> Path:
    """Store a night of some day with snapshots of ``nodes``. It is interrupted if it judged no node."""
    folder = results / f"202611{day:02}T000000Z-health-abcdef"
    (folder / "snapshots").mkdir(parents=True)
    for name in nodes:
        write_snapshot(folder, name, stored(node=name))
    if judged:
        moment = datetime(2026, 11, day, tzinfo=UTC)
        judgements = tuple(NodeNight(node=name, verdict=Verdict.PASS) for name in judged)
        write_night(
            folder,
            NightRecord(
                night_id=folder.name, started=moment, ended=moment, verdict=Verdict.PASS, nodes=judgements
            ),
        )
    return folder


# Each entry has the snapshots and the judged nodes of the nights of day 1, 2, …
@pytest.mark.parametrize(
    ("nights", "wanted", "remarks"),
    [
        # A night was killed after all snapshots, after some, and before the first one.
        ([("ab", "ab"), ("ab", "")], "", ["02 a,b are not judged"]),
        ([("ab", "ab"), ("a", "")], "", ["02 a are not judged"]),
        ([("ab", "ab"), ("", "")], "", ["02 it took no snapshot"]),
        # It was killed twice, or it is the only one.
        ([("a", ""), ("b", "")], "", ["02 b are not judged", "01 a are not judged"]),
        ([("a", "")], "", ["01 a are not judged"]),
        # A later night judged other nodes, some of these nodes, or all.
        ([("ab", ""), ("c", "c")], "", ["01 a,b are not judged"]),
        ([("ab", ""), ("b", "b")], "", ["01 a are not judged"]),
        ([("ab", ""), ("a", "a"), ("b", "b")], "", []),
        ([("ab", ""), ("a", "ab")], "", []),
        ([("", ""), ("a", "a")], "", []),
        ([("ab", "ab")], "", []),
        ([], "", []),
        # Only some nodes matter.
        ([("ab", "")], "b", ["01 b are not judged"]),
        ([("ab", "")], "c", []),
    ],
)
def test_an_interrupted_night_is_named(
    tmp_path: Path, nights: list[tuple[str, str]], wanted: str, remarks: list[str]
) -> None:
    for day, (nodes, judged) in enumerate(nights, 1):
        make_night(tmp_path, day, nodes, judged)
    named = interrupted_nights(tmp_path, wanted)
    assert len(named) == len(remarks)
    for remark, (day, text) in zip(named, (entry.split(" ", 1) for entry in remarks), strict=True):
        assert f"night 202611{day}T000000Z-health-abcdef was interrupted" in remark
        assert text in remark


def test_a_night_without_a_whole_record_is_interrupted(tmp_path: Path) -> None:
    # The process was killed while it wrote the judgements.
    folder = make_night(tmp_path, 1, "a")
    (folder / ".night.json.17.abcd.tmp").write_text("{")
    (remark,) = interrupted_nights(tmp_path)
    assert "snapshots of a are not judged" in remark


def test_a_running_night_is_not_interrupted(tmp_path: Path) -> None:
    make_night(tmp_path, 1, "a")
    make_night(tmp_path, 2, "b")
    make_night(tmp_path, 3, "")
    claim_hosts(tmp_path / NIGHT_CLAIMS, ["b", "c"], os.getpid())
    (remark,) = interrupted_nights(tmp_path)
    assert "snapshots of a are not judged" in remark
