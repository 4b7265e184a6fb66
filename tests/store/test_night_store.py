"""Test the search for a node's parts in earlier nights, and the reading of damaged nights.

If a node reports a serial number or GPU of another node, its numbers must not be stored. store/night_store.py
therefore searches the snapshots of earlier nights for these parts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Node
from rackproof.nodes.snapshot import GpuSnapshot, NodeSnapshot
from rackproof.store.night_store import (
    CONDITIONS_FILE,
    StoredSnapshot,
    _quoted_words,
    find_last_places,
    read_conditions,
    slurm_state,
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
