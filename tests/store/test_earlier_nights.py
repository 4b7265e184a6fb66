"""Test that nights of earlier versions are read, although a key of night.json had another name.

The key `anew` is now `read_again`. A night is written with the new name, and any other name is damage.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rackproof.core.records import Verdict
from rackproof.store.night_store import NIGHT_FILE, NightRecord, NodeNight, read_night, write_night
from rackproof.store.run_folder import ResultsError
from rackproof.store.sealed_json import open_sealed, seal_json

WHEN = datetime(2026, 11, 1, tzinfo=UTC)
READ = ("gemm_best dtype=bf16", "health:gpus", "job")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a night with two nodes."""
    place = tmp_path / "20261101T000000Z-health-abcdef"
    place.mkdir()
    nodes = (
        NodeNight(node="n1", verdict=Verdict.PASS, read_again=READ),
        NodeNight(node="n2", verdict="pass"),
    )
    write_night(
        place, NightRecord(night_id=place.name, started=WHEN, ended=WHEN, verdict=Verdict.PASS, nodes=nodes)
    )
    return place


def write_as_earlier(folder: Path, **more: object) -> None:
    """Write a night as earlier versions did."""
    path = folder / NIGHT_FILE
    kept = json.loads(open_sealed(path.read_bytes()))
    for node in kept["nodes"]:
        node["anew"] = node.pop("read_again")
        node |= more
    path.write_bytes(seal_json(json.dumps(kept)))


def test_the_old_key_of_an_earlier_night_is_read_and_written_with_the_new_name(folder: Path) -> None:
    write_as_earlier(folder)
    night = read_night(folder)
    assert [one.read_again for one in night.nodes] == [READ, ()]
    write_night(folder, night)
    written = json.loads((folder / NIGHT_FILE).read_bytes())["nodes"]
    assert all("read_again" in one and "anew" not in one for one in written)
    assert read_night(folder) == night


@pytest.mark.parametrize("name", ["reimage-01-pass", "reimage-02-vm"])
def test_recorded_nights_of_earlier_versions_are_read(root: Path, name: str) -> None:
    (path,) = (root / f"tests/data/real/runs/{name}").glob("*-health-*/night.json")
    assert '"anew"' in path.read_text()
    assert read_night(path.parent).nodes


@pytest.mark.parametrize("key", ["anwe", "read-again", "again"])
def test_any_other_key_is_damage(folder: Path, key: str) -> None:
    write_as_earlier(folder, **{key: []})
    with pytest.raises(ResultsError, match="is damaged"):
        read_night(folder)
