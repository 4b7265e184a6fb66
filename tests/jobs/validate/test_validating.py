"""Test a whole night of job validate without a playbook (``rackproof.jobs.validate.tasks``, ``judge``).

A night takes a snapshot of each node, judges the fleet, decides on drains, and writes its record, pages and
history. The nights here have three nodes with four GPUs, whose answers a test may change. The tests check the
records and verdicts, Slurm's states, damaged files, clocks that jump, and the explanation of a node.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from rackproof.core.finding_codes import registry
from rackproof.core.known_variables import VariableValueError, check_bounds
from rackproof.core.records import Direction, Measurement, Run, Verdict, worst
from rackproof.jobs.fleet_status import read_rows
from rackproof.jobs.validate import explain, tasks
from rackproof.jobs.validate.errors import ValidateError
from rackproof.jobs.validate.judge import NightDecision, judge_fleet, night_policy
from rackproof.jobs.validate.messages import describe_findings, summarize_night
from rackproof.jobs.validate.pages import write_night_pages
from rackproof.jobs.validate.rma import rma_packet
from rackproof.jobs.validate.tasks import begin_night, close_night, store_snapshot
from rackproof.nodes.answer_seal import sealed_answer
from rackproof.nodes.health_subjects import HealthFinding
from rackproof.store.history.store import open_store
from rackproof.store.night_store import (
    NightContext,
    NightReason,
    NodeNight,
    night_folders,
    read_night,
    read_snapshot,
    snapshot_path,
    write_night,
)
from rackproof.store.probe_results import BENCHMARK as PROBES
from rackproof.store.probe_results import PairResult, ProbeNight, write_probes
from rackproof.store.run_folder import ResultsError, read_run
from rackproof.store.sealed_json import open_sealed, seal_json
from tests.jobs.validate.nights import fleet_node, night_runs, uuid
from tests.jobs.validate.probes import ROOT
from tests.nodes.health.healthy import EPOCH, gpu_xml, healthy_gathered, smi_xml

NODES = ("r1-n01", "r1-n02", "r1-n03")
SHARE = 0.4


def gathered(number: int, *, log: str = "", margin: int = 30, gone: int = -1) -> dict[str, Any]:
    """Return the answer of a node.

    Args:
        number: The node's number.
        log: A line of the kernel log.
        margin: The degrees Celsius below the temperature limit.
        gone: The slot of a missing GPU.
    """
    slots = [slot for slot in range(4) if slot != gone]
    chips = [gpu_xml(number, slot, gpu_temp_tlimit=f"{margin} C") for slot in slots]
    return healthy_gathered(number, gpus=chips, log=log)


def look_at(night: NightContext, number: int, answer: dict[str, Any] | None = None, **more: Any) -> str:
    """Store the snapshot of a node."""
    return store_snapshot(
        night,
        NODES[number],
        sealed_answer(answer or gathered(number)),
        asked=EPOCH,
        answered=EPOCH + 1,
        **({"sku": "h200", "rack": "r1", "expected": {"gpus": 4}} | more),
    )


def slurm(**ours: str) -> dict[str, Any]:
    """Return Slurm's states of the nodes, and who drained some of them (``n02="ours"``)."""
    return {
        name: {
            "known": True,
            "state_after": "IDLE",
            "drained_by": ours.get(name[-3:], "none"),
            "reason": "",
            "jobs": [],
        }
        for name in NODES
    }


def a_night(results: Path, answers: dict[int, dict[str, Any]], **options: Any) -> NightDecision:
    """Make a night with these answers. Other nodes answer as usual, and None is an unreachable node."""
    night = begin_night(results, NODES, owner_pid=os.getpid())
    expected = {"expected": options.pop("expected")} if "expected" in options else {}
    for number in range(len(NODES)):
        if number not in answers or answers[number] is not None:
            look_at(night, number, answers.get(number), **expected)
    members = "".join(f"{name}|batch|none\n" for name in NODES)
    judged = judge_fleet(
        night,
        asked=dict.fromkeys(NODES, "no route"),
        benchmarks=ROOT / "benchmarks",
        being_imaged={},
        **({"slurm": slurm(), "members": members, "share": SHARE} | options),
    )
    close_night(night, did={})
    return judged


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def verdicts(results: Path) -> list[str]:
    return [one.verdict.value for one in read_night(night_folders(results)[0]).nodes]


def test_a_night_is_kept_whole_and_enters_the_history(results: Path) -> None:
    a_night(results, {})
    assert verdicts(results) == ["pass", "pass", "pass"]
    folder = night_folders(results)[0]
    assert read_run(folder).verdict.value == "pass"
    with open_store(results / "history.sqlite") as store:
        assert [one.benchmark for one in store.runs()] == ["health"]
    assert (folder / "index.html").is_file()
    assert {path.stem for path in (folder / "nodes").iterdir()} == set(NODES)


def test_what_the_health_checks_alone_found_is_returned_for_every_node(results: Path) -> None:
    judged = {one.node: one for one in a_night(results, {1: gathered(1, gone=2), 2: None}).health}
    assert [judged[name].verdict.value for name in NODES] == ["pass", "fail", "unproven"]
    assert judged[NODES[0]].reasons == ()
    assert any("3 of 4 GPUs" in reason for reason in judged[NODES[1]].reasons), judged
    assert judged[NODES[2]].reasons == ("no snapshot of it: no route",)


def test_a_night_without_measurements_is_marked_everywhere(results: Path) -> None:
    a_night(results, {2: None})
    folder = night_folders(results)[0]
    index, page = ((folder / name).read_text() for name in ("index.html", "nodes/r1-n01.html"))
    assert "health only, nothing was measured in 24 hours: r1-n[01-02]" in index
    assert "r1-n01; pass; health only" in index
    assert page.count("health only") == 2
    assert "health only" not in (folder / "nodes/r1-n03.html").read_text()
    rows = read_rows(results, {}, ())[0]
    assert [row.health_only for row in rows] == [True, True, False]
    night = read_night(folder)
    measured = night.nodes[0].model_copy(update={"measured": True})
    assert not measured.is_health_only


def test_what_changed_stands_first(results: Path) -> None:
    a_night(results, {})
    a_night(results, {1: gathered(1, gone=2)})
    assert verdicts(results) == ["pass", "fail", "pass"]
    page = (night_folders(results)[0] / "index.html").read_text()
    assert f"r1-n02: pass → fail: {uuid(1, 2)}" in page
    assert page.index("Changed since") < page.index("r1-n02: pass") < page.index("Fleet</h2>")


# The nights before tonight, oldest first: good, bad, or with a damaged record. Then the expected changes.
@pytest.mark.parametrize(
    ("earlier", "changes"),
    [
        ([], ["there is no earlier night to compare with"]),
        (["damaged"], ["the record of the night before cannot be read"]),
        (["damaged", "damaged"], ["the record of the night before cannot be read"]),
        (["good", "damaged"], ["the record of the night before cannot be read", "r1-n02: pass → fail"]),
        (["good", "damaged", "damaged"], ["the record of the night before", "r1-n02: pass → fail"]),
        (["bad", "damaged"], ["the record of the night before cannot be read"]),
        (["damaged", "good"], ["r1-n02: pass → fail"]),
    ],
)
@pytest.mark.parametrize("content", ["{}", ""])
def test_a_night_after_a_damaged_one_is_compared_with_an_older_one(
    results: Path, monkeypatch: pytest.MonkeyPatch, earlier: list[str], changes: list[str], content: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda *_: None)
    log = "NVRM: Xid (PCI:0002:06:00): 79, GPU has fallen off the bus."
    for kind in earlier:
        a_night(results, {1: gathered(1, log=log)} if kind == "bad" else {})
        if kind == "damaged":
            (night_folders(results)[0] / "night.json").write_text(content)
    a_night(results, {1: gathered(1, log=log)})
    night = read_night(night_folders(results)[0])
    found = tasks.changes_since_last_night(results, night)
    assert len(found) == len(changes), found
    assert all(text.startswith(start) for text, start in zip(found, changes, strict=True)), found


@pytest.mark.parametrize("later", [1, 3])
def test_the_pages_of_an_older_night_do_not_show_later_ones(
    results: Path, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    """An interrupted night may be closed after later nights."""
    monkeypatch.setattr(os, "fsync", lambda *_: None)
    for answers in ({}, {1: gathered(1, margin=-1)}, *[{}] * later):
        a_night(results, answers)
    older = night_folders(results)[later]
    page = older / "nodes/r1-n02.html"
    before = page.read_text()
    write_night_pages(results, read_night(older), ())
    assert page.read_text() == before
    assert "temperature" in before


def test_a_ci_system_sees_every_node(results: Path) -> None:
    bad = "NVRM: Xid (PCI:0002:06:00): 48, <b>\x1b[31m"
    a_night(results, {1: gathered(1, log=bad), 2: None})
    root = ElementTree.fromstring((night_folders(results)[0] / "report.junit.xml").read_bytes())
    assert {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")} == {
        "r1-n01": [],
        "r1-n02": ["failure"],
        "r1-n03": ["error"],
    }
    assert "XID 48" in root.find(".//failure").get("message")  # type: ignore[union-attr, operator]


def test_an_unfinished_night_is_no_nodes_last_snapshot(results: Path) -> None:
    a_night(results, {})
    night = begin_night(results, NODES, owner_pid=os.getpid())
    look_at(night, 1, gathered(1, gone=2))
    # The controller dies here. The GPU is still missing from the night that comes after.
    a_night(results, {1: gathered(1, gone=2)})
    (found,) = read_night(night_folders(results)[0]).nodes[1].findings
    assert (found.code, found.name) == ("gpu_missing", uuid(1, 2))
    assert len(night_folders(results)) == 2


def test_a_gpu_that_failed_in_another_chassis_is_recognised(results: Path) -> None:
    a_night(results, {})
    # GPU 2 of the second node has XID 79, and is then put into the third node.
    a_night(results, {1: gathered(1, log="NVRM: Xid (PCI:0002:06:00): 79, GPU has fallen off the bus.")})
    assert verdicts(results)[1] == "fail"
    moved = gathered(2)
    moved["facts"]["tools"]["nvidia_smi_xml"]["stdout"] = smi_xml(
        [gpu_xml(2, slot) for slot in range(4)]
    ).replace(uuid(2, 0), uuid(1, 2))
    a_night(results, {1: gathered(1, gone=2), 2: moved})
    codes = {one.code for one in read_night(night_folders(results)[0]).nodes[2].findings}
    assert "gpu_failed_elsewhere" in codes


def test_without_slurm_and_with_a_broken_history_the_night_is_judged(results: Path) -> None:
    results.mkdir()
    (results / "history.sqlite").write_bytes(b"not a database" * 1000)
    judged = a_night(
        results,
        {1: gathered(1, gone=2)},
        slurm=None,
        members="",
        slurm_remark="Slurm could not be queried: down",
    )
    assert judged.drain == ()
    night = read_night(night_folders(results)[0])
    # It is not known whether Slurm has the other nodes in service.
    assert [one.verdict.value for one in night.nodes] == ["unproven", "fail", "unproven"]
    assert {"slurm_state_unknown"} == {one.code for one in night.nodes[0].findings}
    assert any("Slurm could not be queried" in one for one in night.remarks)
    assert any(one.endswith("judged by floors and the rest of the fleet only") for one in night.remarks)
    # The night waits in the spool folder until it can enter the history.
    assert [path.stem for path in (results / ".spool").glob("*Z-health-*")]


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"state_after": "DOWN*", "reason": "Not responding", "set_by": "slurm@2026-11-22T01:00:00"}, "fail"),
        ({"state_after": "DOWN+NOT_RESPONDING"}, "fail"),
        ({"state_after": "IDLE+NOT_RESPONDING"}, "unproven"),
        ({"state_after": "IDLE+DRAIN", "reason": "Prolog error", "drained_by": "other"}, "fail"),
        ({"state_after": "IDLE+INVALID_REG"}, "fail"),
        ({"state_after": "IDLE+DRAIN", "reason": "bob: cable", "drained_by": "other"}, "degraded"),
        ({"state_after": "UNKNOWN"}, "unproven"),
        ({"known": False, "state_after": "unknown"}, "unproven"),
        ({"state_after": None}, "unproven"),
    ],
)
def test_slurm_s_own_state_of_a_node_counts(results: Path, change: dict[str, Any], verdict: str) -> None:
    states = slurm()
    states["r1-n02"] |= change
    judged = a_night(results, {}, slurm=states)
    assert verdicts(results) == ["pass", verdict, "pass"]
    assert not judged.drain


def test_a_node_that_slurm_s_answer_lacks_is_unproven(results: Path) -> None:
    a_night(results, {}, slurm={name: about for name, about in slurm().items() if name != "r1-n02"})
    assert verdicts(results) == ["pass", "unproven", "pass"]


def test_where_the_inventory_has_no_slurm_nothing_is_asked_of_it(results: Path) -> None:
    a_night(results, {}, slurm=None)
    assert verdicts(results) == ["pass", "pass", "pass"]


def test_two_nights_at_once_are_refused(results: Path) -> None:
    begin_night(results, NODES, owner_pid=os.getppid())
    with pytest.raises(ValidateError, match=r"r1-n01 is being validated by another playbook \(pid"):
        begin_night(results, NODES[:1], owner_pid=os.getpid())


def test_a_clock_that_jumps_back_neither_hides_nor_doubles_a_night(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain counts its passes by the order of nights, which is not the clock's."""
    shift = [timedelta(0)]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + shift[0]

    for module in ("tasks", "judge"):
        monkeypatch.setattr(f"rackproof.jobs.validate.{module}.datetime", Clock)
    a_night(results, {1: gathered(1, gone=2)})
    for jump in (timedelta(days=3), timedelta(days=-3), timedelta(hours=-1)):
        shift[0] = jump
        a_night(results, {}, slurm=slurm(n02="ours"))
    kept = [read_night(folder) for folder in night_folders(results)]
    assert len({one.night_id for one in kept}) == 4
    # A GPU that comes back is a change, which degrades one night.
    assert [one.nodes[1].verdict.value for one in kept] == ["pass", "pass", "degraded", "fail"]
    # A pass by a clock that was ahead counts. The next one counts only hours later.
    assert [one.nodes[1].plan for one in kept] == ["return", "", "", "drain"]
    assert all(one.started <= one.ended for one in kept)


def test_a_disk_that_is_full_ends_the_night_without_half_a_record(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_night(results, {})
    night = begin_night(results, NODES, owner_pid=os.getpid())

    def full(*_: object) -> None:
        raise ResultsError("cannot write: the disk is full")

    monkeypatch.setattr("rackproof.store.night_store.write_file", full)
    with pytest.raises(ValidateError, match="the disk is full"):
        look_at(night, 0)
    with pytest.raises(ValidateError, match="the disk is full"):
        judge_fleet(night, asked=dict.fromkeys(NODES, ""), benchmarks=ROOT / "benchmarks", being_imaged={})
    monkeypatch.undo()
    assert len(night_folders(results)) == 1


def test_a_fleet_wide_finding_drains_no_node(results: Path) -> None:
    judged = a_night(results, {number: gathered(number, margin=-1) for number in range(3)}, share=0.3)
    assert verdicts(results) == ["unproven"] * 3
    assert judged.drain == ()
    assert any("temperature on 3 of 3 nodes" in one for one in read_night(night_folders(results)[0]).remarks)


def test_the_reason_in_slurm_leads_to_the_page(results: Path) -> None:
    judged = a_night(results, {1: gathered(1, margin=-1)}, link="https://example.org/results/")
    (one,) = judged.drain
    assert one["node"] == "r1-n02"
    night_id = night_folders(results)[0].name
    assert one["reason"].startswith("temperature GPU 0")
    assert one["reason"].endswith(f"; https://example.org/results/{night_id}/nodes/r1-n02.html")


def test_what_the_inventory_gets_wrong_is_reported(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(results.parent))
    night = begin_night(results, NODES, owner_pid=None)
    for options, words in (
        ({"expected": {"gpu": 4}}, "validate_expect of r1-n01: unknown gpu"),
        ({"expected": {"gpus": "four"}}, "validate_expect of r1-n01"),
        ({"limits": {"clock": 1}}, "validate_limits of r1-n01: clock"),
        (
            {"references": [{"metric": "gemm_best", "value": 1, "unit": "x"}]},
            "bench_sku_references of SKU h200",
        ),
    ):
        with pytest.raises(ValidateError, match=re.escape(words)):
            look_at(night, 0, **options)
    with pytest.raises(ValidateError, match="validate_max_drain_fraction"):
        judge_fleet(night, asked={}, benchmarks=ROOT / "benchmarks", being_imaged={}, share=0)
    with pytest.raises(ValidateError, match="not usable as the name of a file"):
        begin_night(results, ["../n01"], owner_pid=None)
    with pytest.raises(ResultsError):
        snapshot_path(results, "a/b")


@pytest.mark.parametrize(("ports", "passes"), [(1, (0, 1)), (0, (0, 0))])
def test_a_drain_that_no_stored_night_made_is_not_compared_with_tonight(
    results: Path, ports: int, passes: tuple[int, ...]
) -> None:
    """With tonight's own counters as the earlier ones, the night would count as a pass.

    Without the inventory's number of ports, it is not known whether the faulty one is still there.
    """
    states = slurm(n02="ours")
    states["r1-n02"]["reason"] = "rackproof-night: port_symbol_error mlx5_0; results/night"
    for count in passes:
        a_night(results, {}, expected={"gpus": 4, "ports": ports}, slurm=states, return_hours=0)
        node = read_night(night_folders(results)[0]).nodes[1]
        assert node.hold is not None
        assert node.hold.passes == count, node.why


def _worse_gpus(code: str) -> dict[str, Any]:
    """Return the answer of node 1 whose GPUs are worse than before, which a single night cannot know."""
    gpus = [gpu_xml(1, slot) for slot in range(4)]
    for old, new in {
        "pcie_generation": [("_link_gen>5<", "_link_gen>4<")],
        "pcie_width": [("_link_width>16x<", "_link_width>8x<")],
        "gpu_memory": [(">143771 MiB<", ">71885 MiB<")],
    }[code]:
        gpus = [gpu.replace(old, new) for gpu in gpus]
    return healthy_gathered(1, gpus=gpus)


FIRST_NIGHT_FAULTS = {
    "pcie_generation": ("<current_link_gen>5<", "<current_link_gen>3<"),
    "pcie_width": ("<current_link_width>16x<", "<current_link_width>8x<"),
}
"""Faults that one night shows, as a text of nvidia-smi and its replacement."""


def _drained_night(results: Path, answers: dict[int, dict[str, Any]], code: str, **options: Any) -> NodeNight:
    """Return the second node after a night in which Slurm shows it as drained by nights."""
    states = slurm(n02="ours")
    states["r1-n02"] |= {"state_after": "IDLE+DRAIN", "reason": f"rackproof-night: {code} GPU 0; explain"}
    more = {"slurm": states, "return_hours": 0, "acts": ["drain", "return"]}
    a_night(results, answers, **(more | options))
    return read_night(night_folders(results)[0]).nodes[1]


_WITHOUT_SLURM: tuple[dict[str, Any], ...] = (
    {"slurm": None, "slurm_remark": "down", "members": ""},
    {"slurm": {name: about for name, about in slurm().items() if name != "r1-n02"}},
    {"slurm": slurm() | {"r1-n02": {"known": False, "state_after": "unknown", "drained_by": "none"}}},
    {"slurm": slurm() | {"r1-n02": "damaged"}},
    # Slurm answers, but the night before the drain is not among those that are searched.
    {},
)


@pytest.mark.slow
@pytest.mark.parametrize("lost", _WITHOUT_SLURM)
@pytest.mark.parametrize("code", ["pcie_generation", "pcie_width", "gpu_memory"])
def test_no_lost_answer_makes_a_later_night_resume_a_faulty_node(
    results: Path, monkeypatch: pytest.MonkeyPatch, code: str, lost: dict[str, Any]
) -> None:
    """Before, the night after a lost answer counted the drain from itself, and compared with the fault."""
    monkeypatch.setattr(os, "fsync", lambda *_: None)
    if not lost:
        monkeypatch.setattr("rackproof.store.night_store.NIGHTS_BACK", 1)
    a_night(results, {})
    fault = {1: _worse_gpus(code)}
    assert _drained_night(results, fault, code, slurm=slurm()).plan == "drain"
    _drained_night(results, fault, code, **lost)
    for _ in range(3):
        faulty = _drained_night(results, fault, code)
        assert (faulty.plan, faulty.hold and faulty.hold.passes) == ("", 0), faulty.why
    # A repaired node is resumed.
    plans = [_drained_night(results, {}, code).plan for _ in range(3)]
    assert "return" in plans


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drained_for", "lost"),
    [("pcie_generation", "pcie_width"), ("pcie_width", "gpu_memory"), ("gpu_memory", "pcie_generation")],
)
def test_a_failure_of_a_lost_night_is_not_forgotten(
    results: Path, monkeypatch: pytest.MonkeyPatch, drained_for: str, lost: str
) -> None:
    """The second failure is only in the lost record. Its usual values remain in the later snapshots."""
    monkeypatch.setattr(os, "fsync", lambda *_: None)
    a_night(results, {})
    assert _drained_night(results, {1: _worse_gpus(drained_for)}, drained_for, slurm=slurm()).plan == "drain"
    assert lost in _drained_night(results, {1: _worse_gpus(lost)}, drained_for).codes()
    (night_folders(results)[0] / "night.json").write_text("{}")
    for _ in range(3):
        faulty = _drained_night(results, {1: _worse_gpus(lost)}, drained_for)
        assert (faulty.plan, faulty.hold and faulty.hold.passes) == ("", 0), faulty.why
    assert faulty.why.startswith(f"stays drained: {lost} GPU 0")
    plans = [_drained_night(results, {}, drained_for).plan for _ in range(3)]
    assert "return" in plans


@pytest.mark.parametrize("code", ["pcie_generation", "pcie_width", "gpu_memory"])
def test_a_drain_without_its_nights_is_left_to_the_operator(results: Path, code: str) -> None:
    for _ in range(2):
        node = _drained_night(results, {1: _worse_gpus(code)}, code)
        assert (node.plan, node.hold and node.hold.passes) == ("", 0)
        assert "no stored night shows the node before this drain" in node.why
        assert "resume it by hand" in node.why


@pytest.mark.slow
@pytest.mark.parametrize("code", ["pcie_generation", "pcie_width"])
def test_a_node_that_fails_in_its_first_night_is_resumed_after_its_repair(results: Path, code: str) -> None:
    """No earlier night could have shown the node better."""
    worse = healthy_gathered(
        1, gpus=[gpu_xml(1, slot).replace(*FIRST_NIGHT_FAULTS[code]) for slot in range(4)]
    )
    worse["health"]["loaded"] = True
    drained = _drained_night(results, {1: worse}, code, slurm=slurm())
    assert (drained.plan, drained.hold and drained.hold.before) == ("drain", "")
    assert code in drained.codes()
    plans = [_drained_night(results, {}, code).plan for _ in range(2)]
    assert plans == ["", "return"]


def test_without_a_sku_nothing_is_proven(results: Path) -> None:
    night = begin_night(results, NODES[:1], owner_pid=os.getpid())
    look_at(night, 0, sku="", expected={})
    judge_fleet(night, asked={NODES[0]: ""}, benchmarks=ROOT / "benchmarks", being_imaged={})
    assert verdicts(results) == ["unproven"]


def test_nodes_without_a_measurement_are_unproven_where_that_is_asked(results: Path) -> None:
    a_night(results, {}, require_measurements=True)
    assert verdicts(results) == ["unproven"] * 3


def test_what_runs_of_the_day_measured_is_judged_with_health(results: Path) -> None:
    nodes = [fleet_node(number, name=name) for number, name in enumerate(NODES)]
    slow = night_runs(
        nodes, change=lambda metric, node, slot, _: 0.8 if (metric, node, slot) == ("gemm_best", 1, 2) else 1
    )
    results.mkdir()
    now = datetime.now(UTC)
    with open_store(results / "history.sqlite") as store:
        for run in slow[:2]:
            store.keep(run.model_copy(update={"started": now - timedelta(hours=1), "ended": now}))
    references = (
        {"metric": "gemm_best", "value": 793, "low": -0.07, "unit": "TFLOP/s", "source": "S"},
        {"metric": "latency", "value": 5, "high": 0.2, "unit": "us", "source": "S"},
    )
    night = begin_night(results, NODES, owner_pid=os.getpid())
    for number in range(3):
        look_at(night, number, references=references)
    judged = judge_fleet(
        night,
        asked=dict.fromkeys(NODES, ""),
        benchmarks=ROOT / "benchmarks",
        being_imaged={},
        slurm=slurm(),
        members="".join(f"{name}|batch|none\n" for name in NODES),
        share=SHARE,
    )
    assert [one["node"] for one in judged.drain] == ["r1-n02"]
    good, bad, unmeasured = read_night(night_folders(results)[0]).nodes
    assert (good.verdict.value, good.measured, good.reasons) == ("pass", True, ())
    assert (unmeasured.verdict.value, unmeasured.measured) == ("pass", False)
    reason, beside = bad.reasons
    assert beside.check == "fleet"
    assert (bad.verdict.value, reason.check, reason.metric) == ("fail", "floor", "gemm_best dtype=bf16")
    assert uuid(1, 2) in reason.part
    assert reason.deviation is not None
    assert -0.22 < reason.deviation < -0.18
    close_night(night, did={})
    text = explain.explanation_text(explain.explain_node(results, "r1-n02"))
    assert re.search(r"floor gemm_best dtype=bf16 on GPU-\S+ \(slot 2\): .*\(S\), .2\d", text), text
    assert "ansible-playbook bench.yml -l r1-n02" in text
    # The history also has the night's own numbers. They have no floors and are not judged, so only the
    # metrics of the runs lack a reference.
    a_night(results, {})
    (good, *_) = read_night(night_folders(results)[0]).nodes
    assert {one.metric.partition(" ")[0] for one in good.reasons} == {"gemm_best", "latency"}
    assert {one.check for one in good.reasons} == {"reference"}
    (step, *_) = explain.explain_node(results, "r1-n01").next
    assert step.startswith("rackproof history --results")
    assert "--node r1-n01  # no reference yet: gemm_best, latency; look at the report" in step
    assert "`rackproof accept --results" in step
    lines = summarize_night(read_night(night_folders(results)[0]), [])
    (line,) = [line for line in lines if line.startswith("no reference yet")]
    assert line.startswith("no reference yet for gemm_best, latency of r1-n[01-02]: ")
    assert "rackproof explain r1-n01" in line
    # With bench_require_references=false, a missing reference does not gate.
    a_night(results, {}, policy=night_policy(require_references=False))
    assert verdicts(results)[0] == "pass"


@pytest.mark.parametrize(
    ("metric", "labels", "unit", "value"),
    [
        ("all_reduce_busbw", {"size_bytes": "8388608", "ranks": "4"}, "GB/s", 211.0),
        ("all_reduce_busbw", {"size_bytes": "4294967296", "ranks": "4"}, "GB/s", 359.0),
        (
            "tokens_per_second_per_gpu",
            {"attention": "cudnn", "compile": "on", "dtype": "bf16", "size": "1b", "gpu": uuid(0, 0)},
            "tokens/s",
            69_500.0,
        ),
    ],
)
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (0.8, "fail"), (1.5, "unproven")])
def test_a_nights_program_is_judged_by_the_references_of_its_benchmark(
    results: Path, metric: str, labels: dict[str, str], unit: str, value: float, factor: float, verdict: str
) -> None:
    """The values are from a machine with four H100. The history has them under the probes' common name."""
    references = yaml.safe_load((ROOT / "inventory/group_vars/sku_h100.yml").read_text())
    one = Measurement(name=metric, value=value * factor, unit=unit, direction=Direction.HIGHER, labels=labels)
    now = datetime.now(UTC)
    results.mkdir()
    with open_store(results / "history.sqlite") as store:
        (run,) = night_runs([fleet_node(0, name=NODES[0])])
        changes = {"measurements": (one,), "started": now - timedelta(hours=1), "ended": now}
        store.keep(run.model_copy(update={**changes, "benchmark": PROBES}))
    night = begin_night(results, NODES[:1], owner_pid=os.getpid())
    look_at(night, 0, references=references["bench_sku_references"])
    judge_fleet(night, asked={NODES[0]: ""}, benchmarks=ROOT / "benchmarks", being_imaged={})
    (node,) = read_night(night_folders(results)[0]).nodes
    assert node.verdict.value == verdict


def test_what_a_large_group_measured_is_judged_too(results: Path) -> None:
    """The name of a large group is shortened: five nodes are shown as four and one more."""
    names = tuple(f"r1-n{number:02d}" for number in range(1, 6))
    nodes = tuple(fleet_node(number, name=name) for number, name in enumerate(names))
    now = datetime.now(UTC)
    slow = Measurement(name="busbw", value=100.0, unit="GB/s", direction=Direction.HIGHER)
    results.mkdir()
    with open_store(results / "history.sqlite") as store:
        store.keep(
            Run(
                run_id="20261122T000000Z-nccl-000000", benchmark="nccl", started=now, ended=now, nodes=nodes,
                measurements=(slow,), verdict=Verdict.PASS,
            )
        )  # fmt: skip
    references = ({"metric": "busbw", "value": 380, "low": -0.07, "unit": "GB/s", "source": "S"},)
    night = begin_night(results, names, owner_pid=os.getpid())
    for number, name in enumerate(names):
        store_snapshot(
            night, name, sealed_answer(gathered(number)), asked=EPOCH, answered=EPOCH + 1, sku="h200",
            expected={"gpus": 4}, references=references,
        )  # fmt: skip
    judge_fleet(night, asked=dict.fromkeys(names, ""), benchmarks=ROOT / "benchmarks", being_imaged={})
    made = read_night(night_folders(results)[0])
    assert made.verdict is Verdict.FAIL
    assert [(one.verdict, one.part) for one in made.between] == [
        (Verdict.FAIL, "+".join([*names[:4], "1 more"]))
    ]


def test_a_node_is_explained_from_records_alone(results: Path) -> None:
    for number in range(2):
        a_night(results, {1: gathered(1, log="NVRM: Xid (PCI:0002:06:00): 79, GPU has fallen off the bus.")})
        assert number + 1 == len(night_folders(results))
    text = explain.explanation_text(explain.explain_node(results, "r1-n02"))
    for words in (
        "r1-n02: fail in the night",
        f"fail: xid_79: {uuid(1, 2)} (GPU 2",
        "not drained: draining is off (validate_drain); it would be drained for xid_79 GPU 2",
        "xid_79: failed in 2 of the last 2 nights",
        "scontrol reboot ASAP nextstate=down r1-n02",
        "ansible-playbook validate.yml -l r1-n02",
    ):
        assert words in text
    assert "nothing was found" in explain.explanation_text(explain.explain_node(results, "r1-n01"))
    with pytest.raises(explain.ExplainError, match="covers nobody"):
        explain.explain_node(results, "nobody")


XID_79 = "NVRM: Xid (PCI:0002:06:00): 79, GPU has fallen off the bus."


def test_without_permission_every_failed_node_states_that_draining_is_off(results: Path) -> None:
    a_night(results, {1: gathered(1, log=XID_79), 2: gathered(2, log=XID_79)})
    night = read_night(night_folders(results)[0])
    assert "2 nodes should be drained and are not: draining is off (validate_drain)" in night.remarks
    for name in NODES[1:]:
        explanation = explain.explain_node(results, name)
        assert "draining is off (validate_drain)" in explanation.service[1]
        assert explanation.next[0].startswith(f"scontrol update nodename={name} state=drain reason=xid_79  #")
    assert not [
        step for step in explain.explain_node(results, NODES[0]).next if step.startswith("scontrol update")
    ]


@pytest.mark.parametrize(
    ("state", "drained_by", "by_hand"),
    [
        ("MIXED", "none", True),
        ("IDLE+DRAIN", "ours", False),
        ("IDLE+DRAIN", "other", False),
        ("DOWN", "none", False),
        ("IDLE*", "none", False),
        ("", "none", False),
    ],
)
def test_only_a_node_that_takes_jobs_is_drained_by_hand(
    results: Path, state: str, drained_by: str, by_hand: bool
) -> None:
    states = slurm()
    states[NODES[1]] |= {"state_after": state, "drained_by": drained_by, "reason": "r"}
    a_night(results, {1: gathered(1, log=XID_79)}, slurm=states)
    steps = explain.explain_node(results, NODES[1]).next
    assert steps[0].startswith("scontrol update nodename=r1-n02 state=drain") == by_hand


@pytest.mark.parametrize("why", ["", "Slurm could not be queried, nothing is drained or resumed: down"])
def test_a_fleet_without_slurm_is_told_apart_from_a_slurm_without_an_answer(results: Path, why: str) -> None:
    a_night(results, {1: gathered(1, log=XID_79)}, slurm=None, members="", slurm_remark=why)
    explanation = explain.explain_node(results, NODES[1])
    no_slurm = "no Slurm in this inventory: take the node out of service yourself"
    assert (no_slurm in explanation.service) == (not why)
    assert (explanation.next[0] == no_slurm) == (not why)
    assert ("not drained: Slurm could not be queried" in explanation.service) == bool(why)
    night = read_night(night_folders(results)[0])
    assert not [remark for remark in night.remarks if "should be drained" in remark]


@pytest.mark.parametrize(
    ("budget", "taken"), [(0, False), (1e-7, False), (1e-6, True), (100, True), (101, False), (1000, False)]
)
def test_the_judge_and_the_inventory_take_the_same_budget_of_false_alarms(budget: float, taken: bool) -> None:
    about = "validate_false_alarms_per_1000_node_nights is .* from 1e-06 to 100"
    for check in (
        lambda: check_bounds({"validate_false_alarms_per_1000_node_nights": budget}),
        lambda: night_policy(false_alarms=budget),
    ):
        with nullcontext() if taken else pytest.raises(VariableValueError, match=about):
            check()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"night_id": "x"', b"\0" * 100, b"\xff"])
def test_a_damaged_night_is_named_where_a_node_is_explained(content: bytes, results: Path) -> None:
    a_night(results, {1: gathered(1)})
    record = night_folders(results)[0] / "night.json"
    kept = record.read_bytes()
    record.write_bytes(content)
    with pytest.raises(explain.ExplainError, match=rf"can be read \(.*{record.parent.name}"):
        explain.explain_node(results, "r1-n02")
    record.write_bytes(kept)
    a_night(results, {1: gathered(1)})
    newest = night_folders(results)[0] / "night.json"
    newest.write_bytes(content)
    explained = explain.explain_node(results, "r1-n02")
    assert newest.parent.name in explain.explanation_text(explained)
    assert len(explained.damaged) == 1


def test_the_packet_for_the_vendor_names_the_part(results: Path) -> None:
    a_night(results, {1: gathered(1, log="NVRM: Xid (PCI:0002:06:00): 79, <b>fallen</b> | off")})
    packet = rma_packet(results, "r1-n02")
    assert f"| yes | 2 | 00000002:06:00.0 | {uuid(1, 2)} | S12 |" in packet
    assert f"| {uuid(1, 2)} | 79 | 1 | &lt;b&gt;fallen&lt;/b&gt; \\| off |" in packet
    assert "SN0001" in packet


@pytest.mark.parametrize("fleetwide", [True, False])
@pytest.mark.parametrize("kind", ["finding", "reason"])
def test_a_part_with_a_fault_of_the_whole_fleet_is_no_suspect(
    results: Path, kind: str, fleetwide: bool
) -> None:
    a_night(results, {})
    night = read_night(night_folders(results)[0])
    part = uuid(1, 2)
    more = {
        "finding": HealthFinding(
            node="r1-n02", code="temperature", part="gpu", name=part, verdict=Verdict.UNPROVEN,
            action="inspect", evidence="hot", fleetwide=fleetwide,
        ),
        "reason": NightReason(
            check="floor", verdict=Verdict.UNPROVEN, metric="gemm", part=f"{part} (2)", text="slow",
            fleetwide=fleetwide,
        ),
    }[kind]  # fmt: skip
    node = night.nodes[1].model_copy(update={f"{kind}s": (more,)})
    write_night(
        night_folders(results)[0], night.model_copy(update={"nodes": (night.nodes[0], node, night.nodes[2])})
    )
    suspects = [line for line in rma_packet(results, "r1-n02").splitlines() if line.startswith("| yes |")]
    assert [part in line for line in suspects] == ([] if fleetwide else [True])


def test_the_packet_names_a_missing_gpu_and_all_partners(results: Path) -> None:
    """Check that the packet names each part that does not answer or that failed a measurement."""
    a_night(results, {})
    a_night(results, {1: gathered(1, gone=2)})
    folder = night_folders(results)[0]
    met = (
        PairResult(nodes=("r1-n01", "r1-n02"), passed=False, text="sums of values were wrong"),
        PairResult(nodes=("r1-n02", "r1-n03"), passed=False, text="it hung"),
        PairResult(nodes=("r1-n01", "r1-n03"), passed=True, text="380 GB/s"),
    )
    write_probes(folder, ProbeNight(asked=10, pairs=met))
    night = read_night(folder)
    why = NightReason(
        check="bits", verdict=Verdict.FAIL, metric="training step", part=f"{uuid(1, 0)} (slot 0)", text="T"
    )
    bad = night.nodes[1].model_copy(update={"reasons": (why,)})
    write_night(folder, night.model_copy(update={"nodes": (night.nodes[0], bad, night.nodes[2])}))
    packet = rma_packet(results, "r1-n02")
    assert f"| is missing | 2 | 00000002:06:00.0 | {uuid(1, 2)} | S12 |" in packet
    assert f"| yes | 0 | 00000000:06:00.0 | {uuid(1, 0)} | S10 |" in packet
    assert f"|  | 1 | 00000001:06:00.0 | {uuid(1, 1)} | S11 |" in packet
    assert f"| {folder.name} | r1-n01 | fail | sums of values were wrong |" in packet
    assert f"| {folder.name} | r1-n03 | fail | it hung |" in packet
    assert "380 GB/s" not in packet


def test_the_packet_says_what_was_not_read(results: Path) -> None:
    bare = without_root(gathered(1))
    bare["facts"]["dmi"]["product_serial"] = ""
    smi = bare["facts"]["tools"]["nvidia_smi_xml"]
    smi["stdout"] = smi["stdout"].replace("<serial>S10</serial>", "<serial>N/A</serial>")
    bare["health"]["tools"]["nvlink_status"] = {"status": "failed", "stdout": "", "seconds": 0.1}
    a_night(results, {1: bare})
    first = night_folders(results)[0].name
    packet = rma_packet(results, "r1-n02")
    xids = packet.partition("## XIDs")[2].partition("## ")[0]
    assert "none" not in xids.split()
    assert f"not read in 1 night ({first}): failed, queried without root" in xids
    assert "node's serial | not read" in packet
    assert f"| 0 | 00000000:06:00.0 | {uuid(1, 0)} | not read |" in packet
    links = packet.partition("## ECC and NVLinks")[2].partition("## ")[0]
    assert "not read" in links
    # A log that was read whole has no XID, and that is an answer.
    a_night(results, {})
    xids = rma_packet(results, "r1-n02").partition("## XIDs")[2].partition("## ")[0]
    assert "none in the logs that were read" in xids
    assert f"not read in 1 night ({first})" in xids


def test_the_packet_of_a_node_that_gave_no_answer(results: Path) -> None:
    a_night(results, {1: None})
    packet = rma_packet(results, "r1-n02")
    assert "## GPUs\n\nnot read: no night has a snapshot of the node" in packet
    assert "no snapshot" in packet.partition("## XIDs")[2].partition("## ")[0]
    a_night(results, {})
    known = night_folders(results)[0].name
    a_night(results, {1: None})
    assert f"the last snapshot is that of {known}" in rma_packet(results, "r1-n02")


def test_the_packet_of_a_healthy_node_has_read_everything(results: Path) -> None:
    a_night(results, {})
    xids = rma_packet(results, "r1-n02").partition("## XIDs")[2].partition("## ")[0]
    assert xids.split() == ["none"]


def test_what_a_node_says_is_no_html_and_no_command(results: Path) -> None:
    bad = gathered(1, log="NVRM: Xid (PCI:0002:06:00): 48, <script>alert(1)</script>")
    text = bad["facts"]["tools"]["nvidia_smi_xml"]
    text["stdout"] = text["stdout"].replace(uuid(1, 2), "GPU-1; rm -rf &lt;x&gt;")
    a_night(results, {1: bad})
    folder = night_folders(results)[0]
    for page in (folder / "index.html", folder / "nodes/r1-n02.html"):
        assert "<script>" not in page.read_text()
        assert "<x>" not in page.read_text()
    assert not [one for one in explain.explain_node(results, "r1-n02").next if "rm -rf" in one]


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("memory", "memory modules"),
        ("memory_error", "memory modules"),
        ("memory_temperature", "cooling"),
        ("foreign_parts", "serial numbers"),
        ("gpu_serial_changed", "serial numbers"),
        ("port_symbol_error", "cable"),
        ("link_width", "slot"),
        ("disk_read_only", "disk"),
    ],
)
def test_an_inspection_is_of_the_part_that_the_finding_is_about(results: Path, code: str, part: str) -> None:
    a_night(results, {})
    folder = night_folders(results)[0]
    night = read_night(folder)
    found = HealthFinding(node="r1-n02", code=code, verdict=Verdict.FAIL, action="inspect", evidence="e")
    bad = night.nodes[1].model_copy(update={"verdict": Verdict.FAIL, "findings": (found,)})
    write_night(folder, night.model_copy(update={"nodes": (night.nodes[0], bad, night.nodes[2])}))
    (advice,) = [one for one in explain.explain_node(results, "r1-n02").next if one.startswith("look at")]
    assert part in advice
    assert advice.startswith("look at r1-n02: ")
    assert advice.endswith(f"  # {code}")
    assert ("cooling" in advice) == (part == "cooling")


def next_steps(results: Path, *found: HealthFinding, **more: Any) -> tuple[str, ...]:
    """Return the next commands for a node with these findings."""
    a_night(results, {})
    folder = night_folders(results)[0]
    night = read_night(folder)
    verdict = worst(one.verdict for one in found)
    bad = night.nodes[1].model_copy(update={"verdict": verdict, "findings": found, **more})
    write_night(folder, night.model_copy(update={"nodes": (night.nodes[0], bad, night.nodes[2])}))
    return explain.explain_node(results, "r1-n02").next


@pytest.mark.parametrize("fleetwide", [False, True])
@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("sku_skeleton", "complete the group_vars of SKU h200, then remove `skeleton: true`"),
        ("sku_unknown", "put r1-n02 into the group of its SKU"),
        ("sku_differs", "correct bench_sku_gpu_name in the group_vars of SKU h200"),
        ("sku_gpus_exceeded", "correct bench_sku_gpus in the group_vars of SKU h200"),
        ("sku_gpus_unknown", "set bench_sku_gpus in the group_vars of SKU h200"),
        ("sku_model_unknown", "set bench_sku_gpu_name in the group_vars of SKU h200"),
        ("hostname_differs", "validate_hostname"),
        ("node_twice", "ansible_host"),
        ("slurm_node_unknown", "set `slurm: false` in its validate_expect"),
        ("nvlink_inactive", "set `nvlinks` in validate_expect"),
    ],
)
def test_a_value_of_the_inventory_is_mended_in_the_inventory(
    results: Path, code: str, advice: str, fleetwide: bool
) -> None:
    found = HealthFinding(
        node="r1-n02",
        code=code,
        verdict=Verdict.UNPROVEN,
        action="watch" if fleetwide else "configure",
        fleetwide=fleetwide,
        evidence="e",
    )
    first, *others = next_steps(results, found)
    assert advice in first
    assert "docs/using/" in first
    assert first.endswith(f"  # {code}")
    assert others == ["ansible-playbook validate.yml -l r1-n02"]


@pytest.mark.parametrize(
    ("code", "step"),
    [
        ("compute_prohibited", "ssh r1-n02 nvidia-smi -c DEFAULT"),
        ("disk_full", "ssh r1-n02 df -h; then free space"),
        ("ecc_off", "ssh r1-n02 nvidia-smi -e 1; then reboot"),
        ("mount_missing", "ssh r1-n02 findmnt; then mount it"),
        ("mount_differs", "ssh r1-n02 findmnt; then mount it as required"),
        ("power_limit", "ssh r1-n02 nvidia-smi -q -d POWER; then set it"),
        ("shm", "ssh r1-n02 df -h /dev/shm; then enlarge it"),
        ("unit_failed", "ssh r1-n02 systemctl --failed; then repair the unit"),
        ("inodes_full", "ssh r1-n02 df -i; then remove small files"),
        ("mig_on", "ssh r1-n02 nvidia-smi -mig 0; then reboot"),
    ],
)
def test_what_no_role_cures_does_not_lead_to_provisioning(results: Path, code: str, step: str) -> None:
    found = HealthFinding(node="r1-n02", code=code, verdict=Verdict.FAIL, action="configure", evidence="e")
    steps = next_steps(results, found)
    assert [one for one in steps if one.startswith(step) and one.endswith(f"  # {code}")]
    assert not [one for one in steps if "provision.yml" in one]


CURED_BY_A_ROLE = frozenset(
    {
        *("clock", "clock_free", "fabric_failed", "fabric_incomplete", "fabric_no_domain", "fabric_split"),
        *("memlock", "mismatch_*", "no_driver", "service_*", "slurm_down", "slurm_error", "slurm_fail"),
        *("slurm_failing", "slurm_inval", "slurm_invalid_reg", "slurm_no_respond", "slurm_not_responding"),
        *("tool_slow", "unit_idle", "version_*"),
    }
)
"""Codes with the action ``configure`` whose cause a role of provision.yml may remove."""
ACCEPTED = frozenset({"gpu_new", "gpu_replaced", "parts_moved"})


def test_each_fault_of_the_configuration_has_a_role_or_a_step() -> None:
    codes = {
        entry.code
        for entry in registry().values()
        if "night" in entry.jobs and "configure" in entry.actions and {"fail", "degraded"} & {*entry.verdicts}
    }
    listed = CURED_BY_A_ROLE | ACCEPTED | explain._NO_ROLE.keys()
    assert codes == listed, "add a step to _NO_ROLE of jobs/validate/explain.py if no role makes the change"


@pytest.mark.parametrize("code", ["gpu_new", "gpu_replaced", "machine_changed", "parts_moved"])
def test_a_changed_part_is_accepted_by_a_night(results: Path, code: str) -> None:
    found = HealthFinding(
        node="r1-n02", code=code, verdict=Verdict.UNPROVEN, action="configure", evidence="e"
    )
    steps = next_steps(results, found)
    assert f"ansible-playbook validate.yml -l r1-n02 -e validate_accept_identity=true  # {code}" in steps
    assert not [step for step in steps if "provision.yml" in step]


def test_one_command_lists_all_codes_that_need_it(results: Path) -> None:
    codes = ("ecc_sram_uncorrectable", "xid_48", "nvlink_down", "recovery_needed")
    found = [
        HealthFinding(
            node="r1-n02",
            code=code,
            part="gpu",
            name=uuid(1, 2),
            verdict=Verdict.FAIL,
            action="reset",
            evidence="e",
        )
        for code in codes
    ]
    resets = [step for step in next_steps(results, *found) if "gpu-reset" in step]
    command = f"ssh r1-n02 nvidia-smi --gpu-reset -i {uuid(1, 2)}"
    assert resets == [f"{command}  # {', '.join(codes)}; no job may run there"]


def test_one_night_is_no_count_of_nights(results: Path) -> None:
    a_night(results, {1: gathered(1, log=XID_79)})
    assert explain.explain_node(results, "r1-n02").tried == ("xid_79: failed in the last night",)


def test_a_fault_that_provisioning_mends_leads_to_it(results: Path) -> None:
    found = HealthFinding(node="r1-n02", code="clock", verdict=Verdict.FAIL, action="configure", evidence="e")
    assert "ansible-playbook provision.yml -l r1-n02  # clock" in next_steps(results, found)


def test_every_code_that_asks_for_an_inspection_names_what_to_look_at() -> None:
    codes = [one.code.replace("*", "79") for one in registry().values() if "inspect" in one.actions]
    assert len(codes) > 30
    assert [one for one in codes if explain.inspected_parts(one) == explain.inspected_parts("no_code")] == []


def test_answers_of_slurm_are_read_as_they_come() -> None:
    assert tasks.read_slurm_answer({}, {}) == (None, "")
    assert tasks.read_slurm_answer({"skipped": True}, {}) == (None, "")
    assert "nothing is drained" in tasks.read_slurm_answer({"failed": True, "msg": "down"}, {})[1]
    assert "timed out" in tasks.read_slurm_answer({"nodes": {}}, {"rc": 1, "stderr": "timed out"})[1]
    assert tasks.read_slurm_answer({"nodes": {"a": {}}}, {"rc": 0}) == ({"a": {}}, "")


def test_what_was_done_is_what_slurm_says_and_not_what_was_asked() -> None:
    def item(node: str, **more: Any) -> dict[str, Any]:
        return {"item": {"node": node}, **more}

    drained = {
        "results": [
            item("a", nodes={"a": {"drained_by": "ours", "jobs": ["7"]}}),
            item("b", nodes={"b": {"drained_by": "other", "state_after": "DOWN", "reason": "x"}}),
            item("c", failed=True, msg="slurmctld is down"),
            item("d", skipped=True),
        ]
    }
    back = {"nodes": {"e": {"in_service": True}, "f": {"in_service": False, "state_after": "DOWN"}}}
    assert tasks.collect_actions(drained, back) == {
        "a": "drained; jobs run on until they end: 7",
        "b": "not drained by this night: DOWN (x)",
        "c": "could not be drained: slurmctld is down",
        "e": "returned to service",
        "f": "Slurm does not resume it: its state is DOWN",
    }
    # If Slurm's host does not answer, each node that waits for its return reports that.
    lost = {"unreachable": True, "msg": "no route to host"}
    assert tasks.collect_actions({}, lost, ["e"]) == {"e": "could not be resumed: no route to host"}
    assert tasks.collect_actions({}, {"skipped": True}, ["e"]) == {}


@pytest.mark.parametrize(
    ("before", "drained", "back", "state", "service"),
    [
        # The night drains the node, resumes it, fails to resume it, or does neither.
        (
            ("IDLE", "none"),
            {"state_after": "IDLE+DRAIN", "drained_by": "ours"},
            {},
            "IDLE+DRAIN",
            "by Rackproof",
        ),
        (("IDLE+DRAIN", "ours"), {}, {"state_after": "IDLE", "drained_by": "none"}, "IDLE", "was IDLE."),
        (
            ("IDLE+DRAIN", "ours"),
            {},
            {"state_after": "DOWN+DRAIN", "drained_by": "ours"},
            "DOWN+DRAIN",
            "by Rack",
        ),
        (("IDLE+DRAIN", "ours"), {}, {}, "IDLE+DRAIN", "by Rackproof"),
        (("IDLE", "none"), {}, {}, "IDLE", "was IDLE."),
    ],
)
def test_the_kept_state_of_slurm_is_the_one_after_the_act(
    results: Path,
    before: tuple[str, str],
    drained: dict[str, Any],
    back: dict[str, Any],
    state: str,
    service: str,
) -> None:
    node, known = NODES[1], slurm()
    known[node] |= {"state_after": before[0], "drained_by": before[1], "reason": "rackproof-night: xid_79"}
    night = begin_night(results, NODES, owner_pid=os.getpid())
    for number in range(len(NODES)):
        look_at(night, number)
    judge_fleet(
        night,
        asked=dict.fromkeys(NODES, ""),
        benchmarks=ROOT / "benchmarks",
        being_imaged={},
        slurm=known,
        members="".join(f"{name}|batch|none\n" for name in NODES),
        share=SHARE,
    )
    answer = {"known": True, "reason": "rackproof-night: xid_79", "jobs": []}
    loop = [{"item": {"node": node}, "nodes": {node: answer | drained}}] if drained else []
    acted = tasks.collect_states({"results": loop}, {"nodes": {node: answer | back}} if back else {})
    close_night(night, did={}, slurm=acted)
    first, kept, _ = read_night(night_folders(results)[0]).nodes
    assert [node_night.slurm and node_night.slurm.state for node_night in (first, kept)] == ["IDLE", state]
    shown = explain.explain_node(results, node).service[0]
    assert service in shown
    rows = {row.node: row for row in read_rows(results, {}, ())[0]}
    assert rows[node].slurm == state.lower()


def test_two_names_of_one_machine_prove_neither(results: Path) -> None:
    """Two names of the inventory may lead to one machine, so that another machine was never checked."""
    a_night(results, {1: gathered(0)})
    assert verdicts(results) == ["unproven", "unproven", "pass"]
    (one,) = read_night(night_folders(results)[0]).nodes[0].findings
    assert (one.code, NODES[1] in one.evidence) == ("node_twice", True)


def test_a_clock_that_was_ahead_hides_nothing_that_the_kernel_said(results: Path) -> None:
    night = begin_night(results, NODES, owner_pid=os.getpid())
    ahead = gathered(0)
    ahead["health"] |= {"begin": EPOCH + 3600, "epoch": EPOCH + 3601}
    look_at(night, 0, ahead)
    look_at(night, 1)
    judge_fleet(night, asked=dict.fromkeys(NODES, ""), benchmarks=ROOT / "benchmarks", being_imaged={})
    later = begin_night(results, NODES, owner_pid=os.getpid())
    assert tasks.kernel_log_since(later, NODES[0]) == pytest.approx(EPOCH, abs=1)
    assert tasks.kernel_log_since(later, NODES[1]) == EPOCH
    assert tasks.kernel_log_since(later, NODES[2]) == 0


def test_of_trays_that_share_their_only_serial_none_is_called_bad_for_another(results: Path) -> None:
    nodes = [
        fleet_node(number, name=name).model_copy(update={"serial": "", "chassis_serial": "CH1"})
        for number, name in enumerate(NODES[:2])
    ]
    slow = night_runs(nodes[1:], change=lambda metric, *_: 0.8 if metric == "gemm_best" else 1)
    results.mkdir()
    now = datetime.now(UTC)
    with open_store(results / "history.sqlite") as store:
        store.keep(slow[0].model_copy(update={"started": now - timedelta(hours=1), "ended": now}))
    references = ({"metric": "gemm_best", "value": 793, "low": -0.07, "unit": "TFLOP/s", "source": "S"},)
    night = begin_night(results, NODES, owner_pid=os.getpid())
    for number in range(2):
        answer = gathered(number)
        answer["facts"]["dmi"] = {"chassis_serial": "CH1"}
        look_at(night, number, answer, references=references)
    judge_fleet(
        night,
        asked=dict.fromkeys(NODES[:2], ""),
        benchmarks=ROOT / "benchmarks",
        being_imaged={},
        policy=night_policy(require_references=False),
    )
    assert verdicts(results) == ["unproven", "unproven"]


def test_a_night_of_an_earlier_version_is_the_last_night(results: Path) -> None:
    a_night(results, {})
    (folder,) = night_folders(results)
    (folder / "snapshots").rename(folder / "looks")
    for path in (folder / "looks").iterdir():
        stored = json.loads(open_sealed(path.read_bytes()))
        path.write_bytes(seal_json(json.dumps({"look": stored.pop("snapshot"), **stored})))
    assert read_snapshot(folder, NODES[1]) is not None
    a_night(results, {1: gathered(1, gone=2)})
    codes = {one.code for one in read_night(night_folders(results)[0]).nodes[1].findings}
    assert "gpu_missing" in codes
    assert sorted(path.name for path in (night_folders(results)[0] / "snapshots").iterdir())
    assert not (night_folders(results)[0] / "looks").exists()


@pytest.mark.parametrize("keep", [True, False])
def test_a_closed_night_returns_the_verdict_of_each_node(results: Path, keep: bool) -> None:
    night = begin_night(results, NODES, owner_pid=os.getpid() if keep else None)
    for number in (0, 1):
        look_at(night, number, gathered(number, gone=2) if number else gathered(number))
    judge_fleet(
        night,
        asked=dict.fromkeys(NODES, "no route"),
        benchmarks=ROOT / "benchmarks",
        being_imaged={},
        slurm=None,
        members="",
        share=SHARE,
    )
    closed = close_night(night, did={}, keep=keep)
    assert [closed.verdicts[name].value for name in NODES] == ["pass", "fail", "unproven"]


def without_root(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a node's answer to a user who may not read the kernel's log."""
    answer["node"]["root"] = False
    answer["health"]["tools"]["kernel_log"] = {"status": "failed", "stdout": "", "seconds": 0.1}
    return answer


def test_a_night_without_root_shows_each_nodes_own_fault(results: Path) -> None:
    """Check that the kernel logs, which the user may not read, do not hide a missing GPU."""
    a_night(results, {n: without_root(gathered(n, gone=2 if n == 1 else -1)) for n in range(3)})
    night = read_night(night_folders(results)[0])
    assert [one.verdict.value for one in night.nodes] == ["unproven", "fail", "unproven"]
    assert not any("fault of the tool" in remark for remark in night.remarks)
    lines = summarize_night(night, ())
    assert any(line.startswith("fail r1-n02: 3 of 4 GPUs") for line in lines), lines
    (shared,) = [line for line in lines if line.startswith("unproven r1-n[01,03]")]
    assert "systemd-journal" in shared
    assert not any("fabric" in step for step in explain.explain_node(results, "r1-n01").next)


def test_a_command_on_a_node_uses_sudo_if_the_night_had_no_root(results: Path) -> None:
    bad = gathered(1, log="NVRM: Xid (PCI:0002:06:00): 48, ECC")
    a_night(results, {1: bad})
    (reset,) = [step for step in explain.explain_node(results, "r1-n02").next if "--gpu-reset" in step]
    assert reset.startswith("ssh r1-n02 nvidia-smi --gpu-reset")
    bad["node"]["root"] = False
    a_night(results, {1: bad})
    (reset,) = [step for step in explain.explain_node(results, "r1-n02").next if "--gpu-reset" in step]
    assert reset.startswith("ssh r1-n02 sudo nvidia-smi --gpu-reset")


def test_a_dry_run_prints_what_no_command_can_show_later(results: Path) -> None:
    night = begin_night(results, NODES, owner_pid=None)
    look_at(night, 0, gathered(0))
    look_at(night, 1, without_root(gathered(1, gone=2, margin=-1)))
    look_at(night, 2, gathered(2))
    options: dict[str, Any] = {"slurm": None, "members": "", "share": SHARE, "being_imaged": {}}
    judge_fleet(night, asked=dict.fromkeys(NODES, ""), benchmarks=ROOT / "benchmarks", **options)
    closed = close_night(night, did={}, keep=False)
    assert not any("r1-n01" in line for line in closed.findings)
    assert any(line.startswith("r1-n02: fail, ") for line in closed.findings)
    assert any(line.startswith("  kernel_log_unknown: ") for line in closed.findings)


def test_the_list_of_a_dry_run_is_bounded(results: Path) -> None:
    a_night(results, {1: gathered(1, gone=2)})
    night = read_night(night_folders(results)[0])
    bad = night.nodes[1].model_copy(update={"findings": night.nodes[1].findings * 14})
    (head, *texts) = describe_findings(night.model_copy(update={"nodes": (bad,)}))
    assert head == "r1-n02: fail, 14 findings"
    assert (len(texts), texts[-1]) == (11, "  and 4 more, which a night without --check stores")
    lines = describe_findings(night.model_copy(update={"nodes": (bad,) * 60}))
    assert lines[-1] == "and 10 more nodes: choose some with -l"


def test_a_night_that_is_stored_prints_no_second_list(results: Path) -> None:
    night = begin_night(results, NODES, owner_pid=os.getpid())
    options: dict[str, Any] = {"slurm": None, "members": "", "share": SHARE, "being_imaged": {}}
    judge_fleet(night, asked=dict.fromkeys(NODES, ""), benchmarks=ROOT / "benchmarks", **options)
    assert close_night(night, did={}).findings == ()


UNCORRECTED = "EDAC MC1: 1 UE memory read error on DIMM#0\n"
BY_OPERATOR = {"reason": "memory_error: bad DIMM", "set_by": "ops@2026-11-20T10:00:00"}


@pytest.mark.parametrize(
    ("out", "verdict"),
    [
        ({}, "fail"),
        ({"drained_by": "ours"}, "pass"),
        ({"drained_by": "other"} | BY_OPERATOR, "pass"),
        # A boot after other work repairs no memory.
        ({"drained_by": "other"} | BY_OPERATOR | {"reason": "new firmware"}, "fail"),
        ({"drained_by": "other"} | BY_OPERATOR | {"reason": "memory_errors"}, "fail"),
        ({"drained_by": "other", "reason": "Kill task failed"}, "fail"),
        ({"drained_by": "other", "reason": "Reboot ASAP", "set_by": "slurm@2026-11-20"}, "fail"),
        ({"drained_by": "other", "reason": "rackproof: provisioning"}, "fail"),
        (None, "fail"),
    ],
)
def test_a_fault_that_no_boot_heals_ends_after_the_node_was_out_of_service(
    results: Path, out: dict[str, str] | None, verdict: str
) -> None:
    """The operator booted the node, and resumed it before the last night. The drain was for the fault."""
    bad, booted = gathered(0, log=UNCORRECTED), gathered(0)
    booted["facts"]["boot_id"] = "after the repair"
    states = slurm()
    states[NODES[0]] = None if out is None else states[NODES[0]] | out
    a_night(results, {0: bad}, slurm=states)
    a_night(results, {0: booted})
    (one,) = [one for one in read_night(night_folders(results)[0]).nodes if one.node == NODES[0]]
    assert one.verdict.value == verdict
