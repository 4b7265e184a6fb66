"""Test certificates from a results folder in which a run or a night was altered.

An operator might delete or edit a failed run to get a pass. The history is a second record of each run. A run
that differs from its record there is never a pass, and a failure in the history remains a failure. These
tests alter runs, nights and pages, and check the certificate
(:mod:`rackproof.analysis.certificate.gathering`).
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof.analysis.certificate.verification import verify_certificate
from rackproof.core.records import TEST_RACK, Run, Verdict
from rackproof.store.history.repository import Store, open_store
from rackproof.store.history.spool import rebuild_history
from rackproof.store.night_store import NIGHT_FILE
from rackproof.store.run_evidence import digest_file
from rackproof.store.run_folder import iter_runs, write_run
from rackproof.store.sealed_json import open_sealed, seal_json

from . import samples

FAST = samples.CONTRACT | {"requirements": [samples.CONTRACT["requirements"][1]]}  # type: ignore[index]
"""The contract with its requirement for matrix products alone, which no night answers."""
DAYS = timedelta(days=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a results folder and two catalogues, contract.yml and fast.yml."""
    folder = tmp_path_factory.mktemp("altered")
    samples.make_results(folder)
    samples.contract_file(folder)
    (folder / "fast.yml").write_text(yaml.safe_dump(FAST))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder, which a test may alter."""
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def verdict(folder: Path, catalogue: str = "fast") -> Verdict:
    """Return the verdict of a certificate that is made nine hours after the latest run."""
    results = folder / "results"
    runs = iter_runs(results, on_error=lambda _: None)
    latest = max(run.ended for run in runs if run.ended and run.ended.year < 2090)
    return samples.certify(results, str(folder / f"{catalogue}.yml"), now=latest + timedelta(hours=9)).verdict


def last(folder: Path, benchmark: str) -> Run:
    """Return the newest run of a benchmark."""
    return [run for run in iter_runs(folder / "results") if run.benchmark == benchmark][-1]


def _earlier(run: Run) -> dict[str, Any]:
    return {"started": run.started - 9 * DAYS, "ended": run.ended - 9 * DAYS}  # type: ignore[operator]


def _elsewhere(run: Run) -> dict[str, Any]:
    nodes = tuple(node.model_copy(update={"name": "elsewhere"}) for node in run.nodes)
    return {"nodes": nodes, "asked_nodes": ("elsewhere",)}


ALTERATIONS: dict[str, Callable[[Run], dict[str, Any]]] = {
    "earlier": _earlier,
    "elsewhere": _elsewhere,
    "imported": lambda _: {"provenance": "imported"},
    "another benchmark": lambda _: {"benchmark": "stream"},
    "an old pass of another point": lambda run: {
        "parameters": {**run.parameters, "x": 1},
        "verdict": Verdict.PASS,
        "started": run.started - 900 * DAYS,  # type: ignore[operator]
        "ended": run.ended - 900 * DAYS,  # type: ignore[operator]
    },
}
"""Changes of the record of a failed run."""


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_failure_counts_as_the_history_records_it(folder: Path, name: str) -> None:
    assert verdict(folder) is Verdict.PASS
    failed = samples.add_run(folder / "results", "gemm", verdict=Verdict.FAIL)
    write_run(failed.model_copy(update=ALTERATIONS[name](failed)), folder / "results" / failed.run_id)
    assert verdict(folder) is Verdict.FAIL


@pytest.mark.parametrize("is_link", [False, True])
def test_a_pass_in_the_folder_of_a_failure_does_not_count(folder: Path, is_link: bool) -> None:
    results, passed = folder / "results", last(folder, "gemm")
    failed = samples.add_run(results, "gemm", verdict=Verdict.FAIL)
    shutil.rmtree(results / failed.run_id)
    if is_link:
        (results / failed.run_id).symlink_to(passed.run_id)
    else:
        shutil.copytree(results / passed.run_id, results / failed.run_id)
    assert verdict(folder) is Verdict.FAIL


def _rebuilt(results: Path) -> None:
    """Make the history again from the records, as an operator does after its loss."""
    (results / "history.sqlite").unlink()
    rebuild_history(results, None)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda data: data[: len(data) // 2],
    "emptied": lambda _: b"",
    "of another digest": lambda data: data.replace(b'"fail"', b'"pass"'),
    "of a newer version": lambda data: json.dumps(json.loads(data) | {"schema_version": 99}).encode(),
}
"""Changes of the file of a record."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_without_a_record_in_the_history_is_unproven(folder: Path, damage: str) -> None:
    results = folder / "results"
    failed = samples.add_run(results, "gemm", verdict=Verdict.FAIL)
    record = results / failed.run_id / "run.json"
    record.write_bytes(DAMAGES[damage](record.read_bytes()))
    assert verdict(folder) is Verdict.FAIL
    _rebuilt(results)
    certificate = samples.certify(results, str(folder / "fast.yml"), now=failed.ended)
    assert certificate.verdict is Verdict.UNPROVEN
    assert str(record) in "; ".join(certificate.answers[0].reasons)


@pytest.mark.parametrize(
    ("of", "name", "expected"),
    [
        ("gemm", "", "unproven"),
        ("gemm", "kept-by-hand", "unproven"),
        ("memory-bandwidth", "kept-by-hand", "unproven"),
        # The contract needs no run of this benchmark.
        ("memory-bandwidth", "", "pass"),
    ],
)
def test_a_damaged_record_counts_for_the_benchmark_of_its_folder(
    folder: Path, of: str, name: str, expected: str
) -> None:
    results = folder / "results"
    run = samples.add_run(results, of)
    (results / run.run_id / "run.json").write_text("{")
    if name:
        (results / run.run_id).rename(results / name)
    _rebuilt(results)
    assert verdict(folder).value == expected


@pytest.mark.parametrize("hours", [-2, 0, 2])
@pytest.mark.parametrize("year", [1, 9999])
def test_a_run_at_an_impossible_time_is_unproven(folder: Path, year: int, hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    moment = datetime(year, 12, 31, 23, tzinfo=zone) if year > 1 else datetime(year, 1, 1, tzinfo=zone)
    results, run = folder / "results", last(folder, "gemm")
    changed = run.model_copy(update={"started": moment, "ended": moment})
    write_run(changed, results / run.run_id)
    (results / "history.sqlite").unlink()
    certificate = samples.certify(results, str(folder / "fast.yml"))
    assert certificate.verdict is Verdict.UNPROVEN
    page, _, _ = samples.page_of(certificate)
    checked = verify_certificate(page, {}, datetime.now(UTC), None, allow_unsigned=True)
    assert (checked.verdict, checked.objections) == (Verdict.UNPROVEN, ())


@pytest.mark.parametrize("field", ["made", "moment"])
@pytest.mark.parametrize("moment", ["9999-12-31T23:00:00Z", "9999-12-31T23:00:00-02:00", "0001-01-01T00:00Z"])
def test_a_page_with_an_impossible_time_is_refused(folder: Path, field: str, moment: str) -> None:
    page, data, _ = samples.page_of(samples.certify(folder / "results", str(folder / "fast.yml")))
    content = json.loads(open_sealed(data))
    for part in [content] if field == "made" else content["evidence"]:
        part[field] = moment
    changed = seal_json(json.dumps(content) + "\n")
    checked = verify_certificate(
        page.replace(data, changed), {}, datetime.now(UTC), None, allow_unsigned=True
    )
    assert checked.verdict is Verdict.UNPROVEN
    assert f"{field}: Input should be" in checked.objections[0]


def swapped(run: Run) -> dict[str, Any]:
    """Return other GPUs for a run's node."""
    (node,) = run.nodes
    gpus = tuple(gpu.model_copy(update={"uuid": f"{gpu.uuid[:-4]}beef"}) for gpu in node.gpus)
    return {"nodes": (node.model_copy(update={"gpus": gpus}),)}


@pytest.mark.parametrize("hides", ["nothing", "removed", "altered", "forged", "forged in future", "renamed"])
def test_swapped_gpus_that_the_history_knows_cannot_be_hidden(folder: Path, hides: str) -> None:
    """No requirement needs the run that shows the swap."""
    results, before = folder / "results", last(folder, "memory-bandwidth")
    later = max(run.ended for run in iter_runs(results) if run.ended) + timedelta(hours=1)
    times = {"started": later, "ended": later}
    swap = samples.add_run(results, "memory-bandwidth", **swapped(before), **times)
    place = results / swap.run_id
    if hides == "removed":
        shutil.rmtree(place)
    elif hides == "altered":
        write_run(swap.model_copy(update={"nodes": before.nodes}), place)
    elif hides == "renamed":
        place.rename(results / f"x{swap.run_id}")
    elif hides.startswith("forged"):
        forged_id = f"{swap.run_id[:-6]}abcdef"
        later += 400 * DAYS if "future" in hides else timedelta(hours=2)
        shutil.copytree(place, results / forged_id)
        forged = {"run_id": forged_id, "nodes": before.nodes, "started": later, "ended": later}
        write_run(swap.model_copy(update={**forged, "benchmark": "mnist-lenet"}), results / forged_id)
    assert verdict(folder) is Verdict.UNPROVEN


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("test rack", "unproven"),
        ("test rack: day one", "unproven"),
        ("", "pass"),
        ("not on the test rack", "pass"),
    ],
)
def test_a_run_on_the_test_rack_is_unproven(
    folder: Path, root: Path, description: str, expected: str
) -> None:
    results, before = folder / "results", last(folder, "gemm")
    write_run(before.model_copy(update={"description": description}), results / before.run_id)
    _rebuilt(results)
    certificate = samples.certify(results, str(folder / "fast.yml"))
    assert certificate.verdict.value == expected
    page, data, _ = samples.page_of(certificate)
    text = "it was on the test rack, whose hardware is fake"
    assert (text in page.decode(), text in data.decode()) == (expected == "unproven",) * 2
    # Nights have no description, and the GPUs of such a run show that they are fake.
    nights = samples.certify(results, str(folder / "contract.yml")).answers[0]
    assert nights.verdict.value == expected
    # The role writes the words that the package reads.
    assert f"'{TEST_RACK}' if bench_test_rack" in (root / "roles/bench/tasks/run.yml").read_text()


def _edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(open_sealed(file.read_bytes()))
    change(content)
    file.write_bytes(seal_json(json.dumps(content) + "\n"))


NIGHTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "without nodes": lambda night: night.update(nodes=[]),
    "of another node": lambda night: [node.update(node="elsewhere") for node in night["nodes"]],
    "earlier": lambda night: night.update(ended="2026-01-01T00:00:00Z"),
}
"""Changes of the record of a night."""


@pytest.mark.parametrize("name", NIGHTS)
def test_an_older_night_does_not_count_in_place_of_an_altered_one(folder: Path, name: str) -> None:
    """The older night passes, and the history has a record of it."""
    results, newest = folder / "results", last(folder, "health")
    older = results / f"20260101{newest.run_id[8:]}"
    shutil.copytree(results / newest.run_id, older)
    _edit(older / NIGHT_FILE, lambda night: night.update(night_id=older.name))
    for snapshot in (older / "snapshots").iterdir():
        _edit(snapshot, lambda kept: kept.update(night=older.name))
    digests = {log.path: digest_file(older / log.path) for log in newest.logs}
    logs = tuple(
        log.model_copy(update={"sha256": digests[log.path][0], "size_bytes": digests[log.path][1]})
        for log in newest.logs
    )
    record = newest.model_copy(update={"run_id": older.name, "logs": logs})
    write_run(record, older)
    with open_store(results / "history.sqlite") as store:
        store.keep(record)
    assert verdict(folder, "contract") is Verdict.PASS
    _edit(results / newest.run_id / NIGHT_FILE, NIGHTS[name])
    assert verdict(folder, "contract") is Verdict.UNPROVEN


@pytest.mark.parametrize(
    ("used", "expected"),
    [(2, "pass"), ("2", "pass"), (1, "unproven"), ("1", "unproven"), ("one", "unproven"), (None, "unproven")],
)
def test_a_run_on_some_of_the_gpus_is_unproven_however_their_number_is_written(
    folder: Path, used: object, expected: str
) -> None:
    run = last(folder, "gemm")
    changed = run.model_copy(update={"parameters": {**run.parameters, "gpus": used}})
    write_run(changed, folder / "results" / run.run_id)
    with open_store(folder / "results/history.sqlite") as store:
        store.keep(changed)
    assert verdict(folder).value == expected


def test_each_record_of_the_history_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a fleet's nights are large, so reading one again would take long."""
    reads: Counter[str] = Counter()
    read_run = Store.run

    def counted(store: Store, run_id: str) -> Run:
        reads[run_id] += 1
        return read_run(store, run_id)

    monkeypatch.setattr(Store, "run", counted)
    assert verdict(folder) is Verdict.PASS
    assert reads
    assert set(reads.values()) == {1}
