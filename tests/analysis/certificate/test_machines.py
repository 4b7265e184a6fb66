"""Test that a certificate is about machines, not about names of nodes.

A machine with another name keeps its history, and a part is in one node only. The tests add runs and nights
of other names to a results folder with a machine that passes, and check the certificate of this machine
(:mod:`rackproof.analysis.certificate.machines`).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rackproof.analysis.certificate.answering import answer_catalogue, whole_verdict
from rackproof.analysis.certificate.machines import shared_serials
from rackproof.analysis.certificate.models import Certificate, EvidencePiece, Requirement
from rackproof.core.records import Node, Verdict
from rackproof.store.history.repository import open_store
from rackproof.store.night_store import night_files, night_folders, read_night, write_night
from rackproof.store.run_folder import iter_runs, read_run, write_run
from rackproof.store.sealed_json import open_sealed, seal_json

from . import samples
from .test_answers import NOW, ROW, night, node, run

LATER = timedelta(hours=3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a results folder and the contract."""
    folder = tmp_path_factory.mktemp("machines")
    samples.make_results(folder)
    samples.contract_file(folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder, which a test may change."""
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def certify(folder: Path) -> Certificate:
    """Return the certificate of the machine after all runs and nights."""
    results = folder / "results"
    latest = max(run.ended for run in iter_runs(results) if run.ended)
    return samples.certify(results, str(folder / "contract.yml"), now=latest + LATER)


def machine(folder: Path, name: str, slots: slice = slice(None), **changes: object) -> dict[str, Any]:
    """Return the fields of a run that was on the machine under another name, with some of its GPUs.

    The machine's other GPUs are others then.
    """
    runs = iter_runs(folder / "results")
    found = next(node for run in runs for node in run.nodes if node.name == samples.NODE)
    own = found.gpus[slots]
    gpus = tuple(
        gpu if gpu in own else gpu.model_copy(update={"uuid": f"{gpu.uuid[:-4]}beef"}) for gpu in found.gpus
    )
    other = found.model_copy(update={"name": name, "gpus": gpus, **changes})
    return {"nodes": (other,), "asked_nodes": (name,)}


def at(folder: Path, **time: float) -> dict[str, Any]:
    """Return the times of a run that ended some time after the newest run and night."""
    latest = max(run.ended for run in iter_runs(folder / "results") if run.ended) + timedelta(**time)
    return {"started": latest, "ended": latest}


OTHER_POINT = {"parameters": {"gpus": 1, "seconds": 3}}


@pytest.mark.parametrize("days", [-40, -1, 0.01])
@pytest.mark.parametrize("change", ["", "removed", "not in history"])
def test_a_failed_run_counts_under_any_name_of_the_machine(folder: Path, days: float, change: str) -> None:
    results = folder / "results"
    shutil.copy(results / "history.sqlite", folder / "before")
    failed = samples.add_run(
        results, "gemm", verdict=Verdict.FAIL, **OTHER_POINT, **machine(folder, "n9"), **at(folder, days=days)
    )
    if change == "removed":
        shutil.rmtree(results / failed.run_id)
    elif change:
        shutil.move(folder / "before", results / "history.sqlite")
    certificate = certify(folder)
    assert certificate.verdict is Verdict.FAIL
    assert "localhost had the name n9" in "; ".join(certificate.answers[1].reasons)


def test_a_renamed_machine_that_was_measured_again_passes(folder: Path) -> None:
    results = folder / "results"
    for name, verdict, days in (("n9", Verdict.FAIL, -3), (samples.NODE, Verdict.PASS, -2)):
        fields = OTHER_POINT | machine(folder, name) | at(folder, days=days)
        samples.add_run(results, "gemm", verdict=verdict, **fields)
    assert certify(folder).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("change", "hours", "expected"),
    [
        # The parts were in another node last.
        ({"slots": slice(0, 1)}, 1, "unproven"),
        ({"slots": slice(1, 2), "serial": "S9"}, 1, "unproven"),
        ({"serial": "S9"}, 1, "unproven"),
        # The machine has no GPU any more, and its serial number identifies it.
        ({"gpus": ()}, 1, "unproven"),
        # The parts are back in the machine, or the other node has none of them.
        ({"slots": slice(0, 1)}, -1, "pass"),
        ({"serial": "S9"}, -1, "pass"),
        ({"gpus": ()}, -1, "pass"),
        ({"slots": slice(0, 0), "serial": "S9"}, 1, "pass"),
        ({"slots": slice(0, 0)}, 1, "pass"),
        ({"gpus": (), "serial": "S9"}, 1, "pass"),
    ],
)
@pytest.mark.parametrize("of", ["gemm", "memory-bandwidth"])
def test_parts_that_are_in_another_node_since_prove_nothing(
    folder: Path, change: dict[str, Any], hours: float, expected: str, of: str
) -> None:
    results = folder / "results"
    for path in [*results.glob("*/run.json"), *results.glob("*/snapshots/*.json")]:
        content = json.loads(open_sealed(path.read_bytes()))
        for about in content.get("nodes") or [content.get("about")]:
            about["serial"] = "S1"
        path.write_bytes(seal_json(json.dumps(content) + "\n"))
    (folder_of_night,) = night_folders(results)
    record = read_run(folder_of_night)
    write_run(
        record.model_copy(update={"logs": night_files(folder_of_night, [samples.NODE])}), folder_of_night
    )
    with open_store(results / "history.sqlite") as store:
        store.keep_many(iter_runs(results))
    assert certify(folder).verdict is Verdict.PASS
    moved = machine(folder, "n9", **change)
    samples.add_run(results, of, verdict=Verdict.FAIL, **moved, **at(folder, hours=hours))
    certificate = certify(folder)
    assert certificate.verdict.value == expected
    if expected == "unproven":
        # Only evidence of the contract is in the certificate.
        since = ", because .* was in n9 since" if of == "gemm" else ""
        assert re.search(f"its present hardware is not known{since}", certificate.answers[1].reasons[0])


def add_night(results: Path, name: str, verdict: Verdict, hours: int) -> str:
    """Add a night like the first one, with another name of the machine. Return its id."""
    before = night_folders(results)[-1]
    first, record = read_night(before), read_run(before)
    ended = first.ended + timedelta(hours=hours)
    folder = results / f"{ended:%Y%m%dT%H%M%SZ}-{before.name[17:]}"
    shutil.copytree(before, folder)
    (snapshot,) = (folder / "snapshots").iterdir()
    content = json.loads(open_sealed(snapshot.read_bytes()))
    content["about"]["name"] = content["snapshot"]["node"] = name
    content["night"] = folder.name
    snapshot.unlink()
    snapshot.with_name(f"{name}.json").write_bytes(seal_json(json.dumps(content) + "\n"))
    (only,) = first.nodes
    nodes = (only.model_copy(update={"node": name, "verdict": verdict}),)
    update = {"night_id": folder.name, "ended": ended, "verdict": verdict, "nodes": nodes}
    write_night(folder, first.model_copy(update=update))
    abouts = tuple(about.model_copy(update={"name": name}) for about in record.nodes)
    update = {"run_id": folder.name, "ended": ended, "verdict": verdict, "nodes": abouts}
    logs = night_files(folder, [name])
    record = record.model_copy(update=update | {"asked_nodes": (name,), "logs": logs})
    write_run(record, folder)
    with open_store(results / "history.sqlite") as store:
        store.keep(record)
    return folder.name


@pytest.mark.parametrize(
    ("nights", "expected"),
    [
        ([("n9", "fail", 1)], "fail"),
        ([("n9", "degraded", 1)], "degraded"),
        ([("n9", "fail", 1), ("n9", "pass", 2)], "pass"),
        ([("n9", "fail", 1), (samples.NODE, "pass", 2)], "pass"),
        ([("n8", "pass", 1), ("n9", "fail", 2)], "fail"),
    ],
)
def test_the_newest_night_of_the_machine_counts_under_any_name(
    folder: Path, nights: Sequence[tuple[str, str, int]], expected: str
) -> None:
    for name, verdict, hours in nights:
        add_night(folder / "results", name, Verdict(verdict), hours)
    certificate = certify(folder)
    assert certificate.verdict.value == expected, certificate.answers


def test_a_failure_under_another_name_counts_without_its_snapshot(folder: Path) -> None:
    results = folder / "results"
    (results / add_night(results, "n9", Verdict.FAIL, 1) / "snapshots/n9.json").unlink()
    assert certify(folder).verdict is Verdict.FAIL


def test_a_night_under_another_name_that_is_gone_is_noticed(folder: Path) -> None:
    results = folder / "results"
    shutil.rmtree(results / add_night(results, "n9", Verdict.FAIL, 1))
    assert certify(folder).verdict is Verdict.UNPROVEN


# Answers from pieces of evidence alone, as when a page is verified.


def answered(
    nodes: Sequence[Node], *evidence: EvidencePiece, row: dict[str, Any] | None = None
) -> tuple[str, str]:
    """Return verdict and reasons of a requirement about nodes."""
    requirement = Requirement.model_validate(ROW | (row or {"benchmarks": ("gemm",)}))
    answers = answer_catalogue([requirement], [one.name for one in nodes], nodes, evidence, NOW)
    return whole_verdict(answers).value, "; ".join(answers[0].reasons)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        # One machine under two names, and a part in two nodes.
        ({"serial": "S1"}, "unproven"),
        ({"serial": ""}, "unproven"),
        ({"serial": "S2"}, "unproven"),
        ({"serial": "S2", "gpus": ("GPU-b", "GPU-c")}, "unproven"),
        ({"serial": "S1", "gpus": ()}, "unproven"),
        # Two machines, perhaps in one chassis.
        ({"serial": "S2", "gpus": ("GPU-c", "GPU-d")}, "pass"),
        ({"serial": "S1", "gpus": ("GPU-c", "GPU-d")}, "pass"),
        ({"serial": "", "gpus": (), "machine_id": "m2"}, "pass"),
    ],
)
def test_one_machine_is_not_two_nodes(other: dict[str, Any], expected: str) -> None:
    nodes = (node(), node("n2", **other))
    evidence = (run(), run(2, nodes=nodes[1:]))
    assert answered(nodes, *evidence)[0] == expected
    nights = (night(), night(2, nodes=nodes[1:], verdicts={"n2": "pass"}))
    assert answered(nodes, *nights, row={"night": True})[0] == expected


def test_a_serial_number_that_a_night_saw_in_two_nodes_identifies_neither() -> None:
    nodes = tuple(node(name, "S1", ()) for name in ("n1", "n2"))
    both = night(nodes=nodes, verdicts={"n1": "pass", "n2": "pass"})
    assert shared_serials([both.nodes, (node(),)]) == {"S1"}
    assert answered(nodes, both, row={"night": True})[0] == "pass"


def test_machines_whose_names_were_swapped_keep_their_runs() -> None:
    one, two = node(), node("n2", "S2", ("GPU-c",))
    before = (node("n2"), node("n1", "S2", ("GPU-c",)))
    passed = run(2, nodes=before)
    assert answered((one, two), passed)[0] == "pass"
    assert answered((one, two), passed, row={"benchmarks": ("gemm",), "scope": "rack"})[0] == "pass"
    failed = run(2, "fail", nodes=before[1:])
    verdict, reasons = answered((one, two), run(3, nodes=before), failed)
    assert (verdict, reasons) == ("fail", "n2: gemm: run-2-fail is fail: n2 had the name n1")
    # The other machine, which had the name n1, is not part of the certificate.
    assert answered((one,), run(3, nodes=before), failed)[0] == "pass"


def test_findings_of_a_night_under_another_name_are_those_of_the_machine() -> None:
    row = {"night": True, "codes": ("xid_*",), "reads": ("kernel_log",)}
    found = night(1, "fail", ("xid_79", "fail"))
    renamed = {
        "nodes": (node("n9"),),
        "findings": tuple(one.model_copy(update={"node": "n9"}) for one in found.findings),
        **{field: {"n9": getattr(found, field)["n1"]} for field in ("verdicts", "reads", "expected")},
    }
    as_n9 = found.model_copy(update=renamed)
    assert answered((node(),), night(2), as_n9, row=row)[0] == "fail"
    assert answered((node(),), as_n9, night(0.5), row=row)[0] == "pass"
    # The findings of another machine with a common part do not count here.
    other = as_n9.model_copy(update={"nodes": (node("n9", "S9", ("GPU-b",)),)})
    assert answered((node(),), night(2), other, row=row)[0] == "pass"
