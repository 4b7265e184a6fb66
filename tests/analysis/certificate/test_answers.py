"""Test the answers that follow from pieces of evidence (:mod:`rackproof.analysis.certificate.answering`).

A piece of evidence is a run or a night. Evidence that is missing, too old, changed, or of other hardware
makes the answer to a requirement unproven, and a failure counts until the same point is run again. A row of a
table has evidence, and the verdict of the answer. The requirement accepts evidence of the last ten days.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rackproof.analysis.certificate import expectations
from rackproof.analysis.certificate.answering import answer_catalogue
from rackproof.analysis.certificate.catalogue import is_night_code
from rackproof.analysis.certificate.models import (
    EARLIEST,
    LATEST,
    Answer,
    EvidencePiece,
    PieceFinding,
    RawFile,
    Requirement,
)
from rackproof.core.records import Gpu, Judgement, Node, Reference, Verdict
from rackproof.nodes.health_subjects import Expectation

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
ROW: dict[str, Any] = {"id": "R1", "text": "Products are right and fast.", "max_age_days": 10}


def node(
    name: str = "n1", serial: str = "S1", gpus: tuple[str, ...] = ("GPU-a", "GPU-b"), **more: Any
) -> Node:
    found = tuple(Gpu(index=index, uuid=uuid) for index, uuid in enumerate(gpus))
    return Node(name=name, serial=serial, gpus=found, **more)


FILES = (RawFile(path="x/run.json", sha256="0" * 64, size_bytes=1),)


def judged(metric: str = "gemm_best", verdict: str = "pass", **changes: Any) -> Judgement:
    """Return a judgement of a value at its reference, with any verdict."""
    reference = Reference(value=4, low=-0.05, warn=-0.03, high=0.1, unit="TB/s", source="x")
    values = {"value": 4.0, "unit": "TB/s", "reference": reference, "reason": "x"}
    return Judgement.model_validate({"metric": metric, "verdict": verdict} | values | changes)


def run(days: float = 1, verdict: str = "pass", **changes: Any) -> EvidencePiece:
    """Return a run of gemm that ended some days ago."""
    values = {
        "id": f"run-{days}-{verdict}",
        "kind": "run",
        "benchmark": "gemm",
        "moment": NOW - timedelta(days=days),
        "nodes": (node(),),
        "verdict": verdict,
        "judgements": (judged(verdict=verdict),),
        "files": FILES,
    }
    return EvidencePiece.model_validate(values | changes)


def night(days: float = 1, verdict: str = "pass", *codes: tuple[str, str], **changes: Any) -> EvidencePiece:
    """Return a night with findings, as code and verdict."""
    found = tuple(PieceFinding(node="n1", code=code, verdict=Verdict(one)) for code, one in codes)
    values = {
        "id": f"night-{days}-{verdict}",
        "kind": "night",
        "moment": NOW - timedelta(days=days),
        "nodes": (node(),),
        "verdict": verdict,
        "verdicts": {"n1": Verdict(verdict)},
        "findings": found,
        "reads": {"n1": {"kernel_log": "there", "nvidia_smi_xml": "there"}},
        "expected": {"n1": {"gpus": 2}},
        "files": FILES,
    }
    return EvidencePiece.model_validate(values | changes)


def answer(
    *evidence: EvidencePiece, asked: tuple[str, ...] = ("n1",), at: datetime = NOW, **row: Any
) -> Answer:
    """Return the answer to a requirement, at a time, about the nodes ``asked``, of which n1 and n2 exist."""
    requirement = Requirement.model_validate(ROW | (row or {"benchmarks": ("gemm",)}))
    nodes = [node(), node("n2", "S2", ("GPU-c",))]
    return answer_catalogue([requirement], asked, nodes, evidence, at)[0]


UNREACHED = (Node(name="n1"),)
NAN = PieceFinding(code="nan", verdict=Verdict.FAIL)
FAILED_INSIDE: dict[str, Any] = {
    "parameters": {"gpus": 1},
    "judgements": (Judgement(metric="gemm_best", verdict=Verdict.FAIL, reason="slow"),),
}
"""Values of a run whose own verdict is better than its judgement."""


# The first argument of a run is how many days ago it ended, and the second its verdict.
@pytest.mark.parametrize(
    ("evidence", "verdict", "reason"),
    [
        ((run(),), "pass", ""),
        ((run(9.9),), "pass", ""),
        ((), "unproven", "there is no run"),
        ((run(10.1),), "unproven", "10.1 days old"),
        ((run(-1),), "unproven", "in the future"),
        ((run(moment=LATEST),), "unproven", "in the future"),
        ((run(), run(moment=LATEST, id="last")), "unproven", "in the future"),
        ((run(moment=EARLIEST),), "unproven", "days old"),
        ((run(verdict="degraded"),), "degraded", "is degraded"),
        ((run(verdict="fail"),), "fail", "is fail"),
        ((run(benchmark="all-reduce"),), "unproven", "there is no run"),
        # A run counts only for the hardware on which it ran. A serial number that it lacks is no difference.
        ((run(nodes=(node(serial="S9"),)),), "unproven", "serial number changed"),
        ((run(nodes=(node(gpus=("GPU-a", "GPU-x")),)),), "unproven", "GPUs changed"),
        ((run(nodes=(node(gpus=("GPU-a",)),)),), "unproven", "GPUs changed"),
        ((run(nodes=(node(gpus=(), serial=""),)),), "unproven", "GPUs changed"),
        ((run(nodes=(node(serial=""),)),), "pass", ""),
        # A run whose node never answered counts, unless it would be a pass.
        ((run(2), run(1, "unproven", nodes=(node(serial="", gpus=()),))), "unproven", "is unproven"),
        ((run(2), run(1, "fail", nodes=(node(serial="", gpus=()),))), "fail", "is fail"),
        # A piece with an objection, a bad judgement or a bad finding is no pass.
        ((run(objections=("its log was changed",)),), "unproven", "its log was changed"),
        ((run(verdict="fail", objections=("its log was changed",)),), "fail", "its log was changed"),
        ((run(judgements=(Judgement(metric="x", verdict=Verdict.FAIL, reason="y"),)),), "fail", "is fail"),
        ((run(findings=(PieceFinding(code="nan", verdict=Verdict.FAIL),)),), "fail", "is fail"),
        # The newest run of a point counts, good or bad.
        ((run(2, "fail"), run(1)), "pass", ""),
        ((run(2), run(1, "fail")), "fail", "is fail"),
        ((run(2), run(1, "unproven")), "unproven", "is unproven"),
        # A run of another point replaces only an old pass. A failure does not become a pass with time.
        ((run(2, "fail", parameters={"gpus": 1}), run(1, parameters={"gpus": 2})), "fail", "is fail"),
        ((run(30, "fail", parameters={"gpus": 1}), run(1, parameters={"gpus": 2})), "fail", "is fail"),
        ((run(30, parameters={"gpus": 1}), run(1, parameters={"gpus": 2})), "pass", ""),
        ((run(30, "unproven", parameters={"gpus": 1}), run(parameters={"gpus": 2})), "unproven", "days old"),
        ((run(30, "degraded", parameters={"gpus": 1}), run(parameters={"gpus": 2})), "unproven", "days old"),
        ((run(30, **FAILED_INSIDE), run(parameters={"gpus": 2})), "fail", "is fail"),
        ((run(30, findings=(NAN,), parameters={"gpus": 1}), run(parameters={"gpus": 2})), "fail", "is fail"),
        (
            (run(30, objections=("its log was changed",)), run(parameters={"gpus": 2})),
            "unproven",
            "its log was changed",
        ),
        ((run(40, "unproven"), run(30), run(parameters={"gpus": 2})), "pass", ""),
        # A run that never reached the node does not end a failure. A run that did ends it.
        ((run(3, "fail"), run(2, "unproven", nodes=UNREACHED)), "fail", "run-3-fail is fail"),
        ((run(30, "fail"), run(2, "unproven", nodes=UNREACHED)), "fail", "run-30-fail is fail"),
        ((run(3, findings=(NAN,)), run(2, "unproven", gone=True, nodes=UNREACHED)), "fail", "run-3-pass"),
        (
            (run(4, "fail"), run(3, "unproven", nodes=UNREACHED), run(2, "unproven", nodes=UNREACHED)),
            "fail",
            "run-4-fail is fail",
        ),
        ((run(3, "fail"), run(2, "unproven", nodes=UNREACHED), run(1)), "pass", ""),
        ((run(3), run(2, "unproven", nodes=UNREACHED)), "unproven", "is unproven"),
        # A run must be on all GPUs of the node, by the number in its parameters.
        ((run(parameters={"gpus": 1}),), "unproven", "no run was on all GPUs of the node"),
        ((run(parameters={"gpus": 0}),), "unproven", "no run was on all GPUs of the node"),
        *(
            ((run(parameters={"gpus": used}),), "unproven", "no run was on all GPUs of the node")
            for used in ("inf", "1_6", "1e3", "2.5", "nan", " 2", True)
        ),
        *(((run(parameters={"gpus": used}),), "pass", "") for used in (2, "2", 2.0, "02", 8)),
        ((run(30, parameters={"gpus": 2}), run(1, parameters={"gpus": 1})), "unproven", "on all GPUs"),
        ((run(parameters={"gpus": 1}, nodes=(node(gpus=()),)),), "unproven", "GPUs changed"),
        # A run whose record is gone counts until its point is run again.
        ((run(2), run(1, "unproven", gone=True, nodes=(Node(name="n1"),))), "unproven", "is unproven"),
        ((run(2, "unproven", gone=True, nodes=(Node(name="n1"),)), run(1)), "pass", ""),
    ],
)
def test_runs_give_the_verdict_of_the_answer(
    evidence: tuple[EvidencePiece, ...], verdict: str, reason: str
) -> None:
    found = answer(*evidence)
    assert found.verdict.value == verdict, found.reasons
    assert reason in "; ".join(found.reasons)
    assert bool(found.reasons) is (verdict != "pass")
    assert (found.until is not None) is (verdict in ("pass", "degraded"))


@pytest.mark.parametrize(
    ("evidence", "verdict", "reason"),
    [
        ((run(),), "pass", ""),
        ((run(judgements=()),), "unproven", "no run on all GPUs has gemm_best judged"),
        (
            (run(judgements=(judged("other"),)),),
            "unproven",
            "gemm_best",
        ),
        (
            (run(judgements=(judged(gating=False),)),),
            "unproven",
            "no run on all GPUs has gemm_best judged",
        ),
        (
            (run(parameters={"gpus": 1}), run(2, judgements=(), parameters={"gpus": 2})),
            "unproven",
            "no run on all GPUs has gemm_best judged",
        ),
        # A point of a sweep on fewer GPUs may lack the metric.
        ((run(judgements=(), parameters={"gpus": 1}), run(2, parameters={"gpus": 2})), "pass", ""),
    ],
)
def test_metrics_have_to_be_judged(evidence: tuple[EvidencePiece, ...], verdict: str, reason: str) -> None:
    found = answer(*evidence, benchmarks=("gemm",), metrics=("gemm_best",))
    assert found.verdict.value == verdict
    assert reason in "; ".join(found.reasons)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"files": ()}, "names none of its files"),
        ({"gone": True}, "its record is gone or was altered"),
        ({"judgements": (judged(value=0.1),)}, "gemm_best is pass, although 0.1 TB/s is beyond its bounds"),
        ({"judgements": (judged(value=4.5),)}, "beyond its bounds"),
        ({"judgements": (judged(value=float("nan")),)}, "beyond its bounds"),
        ({"judgements": (judged(value=None),)}, "without a value and a reference"),
        ({"judgements": (judged(reference=None),)}, "without a value and a reference"),
        ({"judgements": (judged(unit="GB/s"),)}, "in one unit"),
        (
            {"judgements": (judged(), judged(verdict="degraded", value=3.0))},
            "gemm_best is degraded, although",
        ),
        ({"judgements": (judged(), judged("other", value=0.1))}, "other is pass"),
    ],
)
def test_a_verdict_follows_from_the_contents_of_a_piece(changes: dict[str, Any], reason: str) -> None:
    """A signer can write any contents, such as a value beyond its bounds with the verdict pass."""
    found = answer(run(**changes))
    assert (found.verdict, reason in "; ".join(found.reasons)) == (Verdict.UNPROVEN, True), found.reasons
    assert answer(run(verdict="fail", **changes)).verdict is Verdict.FAIL
    if "judgements" not in changes:
        assert answer(night(**changes), night=True).verdict is Verdict.UNPROVEN


def test_a_judgement_that_does_not_count_may_be_beyond_its_bounds() -> None:
    shown = judged("other", value=0.1, gating=False)
    assert answer(run(judgements=(judged(), shown))).verdict is Verdict.PASS


BOTH = (node(), node("n2", "S2", ("GPU-c",)))


@pytest.mark.parametrize(
    ("scope", "evidence", "verdict"),
    [
        ("node", (run(),), "unproven"),
        ("node", (run(), run(2, nodes=(BOTH[1],))), "pass"),
        ("node", (run(nodes=BOTH),), "pass"),
        ("pair", (run(), run(2, nodes=(BOTH[1],))), "unproven"),
        ("pair", (run(nodes=BOTH),), "pass"),
        ("rack", (run(), run(2, nodes=(BOTH[1],))), "unproven"),
        ("rack", (run(nodes=BOTH),), "pass"),
        # The second node of the run has other hardware now.
        ("rack", (run(nodes=(BOTH[0], node("n2", "S7", ("GPU-z",)))),), "unproven"),
        ("pair", (run(nodes=(BOTH[0], node("n2", "S7", ("GPU-z",)))),), "unproven"),
    ],
)
def test_a_scope_of_several_nodes_needs_a_run_on_all_of_them(
    scope: str, evidence: tuple[EvidencePiece, ...], verdict: str
) -> None:
    assert answer(*evidence, asked=("n1", "n2"), benchmarks=("gemm",), scope=scope).verdict.value == verdict


XIDS = {"night": True, "codes": ("xid_*", "gpu_lost"), "reads": ("kernel_log", "nvidia_smi_xml")}


@pytest.mark.parametrize(
    ("row", "evidence", "verdict"),
    [
        ({"night": True}, (night(),), "pass"),
        ({"night": True}, (), "unproven"),
        ({"night": True}, (night(11),), "unproven"),
        ({"night": True}, (night(2), night(1, "fail", ("shm", "fail"))), "fail"),
        ({"night": True}, (night(2, "fail", ("shm", "fail")), night(1)), "pass"),
        # A night's verdict cannot be better than its findings.
        ({"night": True}, (night(1, "pass", ("shm", "fail")),), "fail"),
        ({"night": True}, (night(verdicts={}),), "unproven"),
        ({"night": True}, (night(nodes=(node(gpus=("GPU-x",)),)),), "unproven"),
        (XIDS, (night(),), "pass"),
        (XIDS, (night(1, "fail", ("xid_79", "fail")),), "fail"),
        (XIDS, (night(1, "fail", ("shm", "fail")),), "pass"),
        (XIDS, (night(1, "degraded", ("xid_13", "degraded")),), "degraded"),
        # If a night could not read the evidence for a requirement, the answer is unproven.
        (XIDS, (night(1, "unproven", ("answer_cut", "unproven")),), "unproven"),
        (XIDS, (night(reads={}),), "unproven"),
        (XIDS, (night(reads={"n1": {"kernel_log": "there"}}),), "unproven"),
        (XIDS, (night(reads={"n1": {"kernel_log": "failed", "nvidia_smi_xml": "there"}}),), "unproven"),
        (XIDS, (night(objections=("its snapshot was changed",)),), "unproven"),
        # The requirement needs a night and a run.
        (XIDS | {"benchmarks": ("gemm",)}, (night(),), "unproven"),
        (XIDS | {"benchmarks": ("gemm",)}, (night(), run()), "pass"),
    ],
)
def test_nights_give_the_verdict_of_the_answer(
    row: dict[str, Any], evidence: tuple[EvidencePiece, ...], verdict: str
) -> None:
    found = answer(*evidence, **row)
    assert found.verdict.value == verdict, found.reasons


@pytest.mark.parametrize(
    ("codes", "expected", "lacking"),
    [
        (("port_*", "ports_missing"), {}, "ports, port_gbps"),
        (("port_*", "ports_missing"), {"ports": 8}, "port_gbps"),
        (("port_*", "ports_missing"), {"ports": "8", "port_gbps": 400}, ""),
        (("port_*", "ports_missing"), {"ports": 0, "port_gbps": "0.0"}, "ports, port_gbps"),
        (("port_link_downed", "xid_*"), {}, ""),
        (("gpus_missing",), {}, "gpus"),
        (("nvlink_*", "fabric_*"), {}, "nvlinks, fabric"),
        (("nvlink_*", "fabric_*"), {"nvlinks": 18, "fabric": True}, ""),
        # Bridges join cards without a fabric.
        (("nvlink_*", "fabric_*"), {"nvlinks": 12, "fabric": False}, ""),
        (("mount_*",), {"mounts": []}, "mounts"),
        (("mount_*",), {"mounts": [{"path": "/data"}]}, ""),
        (("mount_read_only",), {}, ""),
        (("memory",), {}, "memory_bytes"),
        (("hostname_differs",), {"hostname": ""}, "hostname"),
        (("hostname_differs",), {"hostname": "n1"}, ""),
        (("service_*",), {"services": []}, "services"),
        (("service_*",), {"services": ["slurmd"]}, ""),
        (("service_nvidia_imex",), {"services": ["slurmd"]}, "services"),
        (("service_nvidia_imex",), {"services": ["nvidia-imex.service"]}, ""),
        # A service with ? need not be installed, so a night does not require it.
        (("service_nvidia_imex",), {"services": ["nvidia-imex?"]}, "services"),
        (("version_driver", "mismatch_*"), {"versions": {"cuda": "13"}}, "versions"),
        (("version_driver", "version_cuda"), {"versions": {"cuda": "13"}}, "versions"),
        (("version_driver",), {"versions": {"driver": "580"}}, ""),
    ],
)
def test_a_code_counts_only_if_the_inventory_states_what_a_night_compares_with(
    codes: tuple[str, ...], expected: dict[str, Any], lacking: str
) -> None:
    row = {"night": True, "codes": codes, "reads": ("kernel_log",)}
    found = answer(night(expected={"n1": expected}), **row)
    assert found.verdict is (Verdict.UNPROVEN if lacking else Verdict.PASS), found.reasons
    assert [reason.rpartition(": ")[2] for reason in found.reasons] == (
        [f"{lacking} in validate_expect"] if lacking else []
    )


def test_a_missing_expectation_is_named_and_hides_no_failure() -> None:
    row = {"night": True, "codes": ("port_*", "ports_missing"), "reads": ("kernel_log",)}
    found = answer(night(expected={"n1": {}}), **row)
    assert found.reasons == (
        "n1: the inventory does not state how many ports the node needs and the rate of its ports: "
        "ports, port_gbps in validate_expect",
    )
    assert answer(night(1, "fail", ("port_down", "fail"), expected={"n1": {}}), **row).verdict is Verdict.FAIL
    assert answer(night(expected={}), **row).verdict is Verdict.UNPROVEN


def test_each_expectation_has_its_codes_or_a_default() -> None:
    with_codes = {needed.key for needed in (*expectations._NEEDED, *expectations._NAMED)}
    keys = {field.name for field in fields(Expectation)}
    assert with_codes.isdisjoint(expectations.WITHOUT_OWN_CODES)
    listed = with_codes | set(expectations.WITHOUT_OWN_CODES)
    assert listed == keys, "list it in _NEEDED or WITHOUT_OWN_CODES of analysis/certificate/expectations.py"
    codes = [code for needed in expectations._NEEDED for code in needed.codes]
    assert [code for code in codes if not is_night_code(code)] == []


def test_the_page_about_certificates_has_each_expectation_with_its_codes(root: Path) -> None:
    page = (root / "docs/using/evidence.md").read_text()
    for needed in expectations._NEEDED:
        codes = ", ".join(f"`{code}`" for code in needed.codes)
        assert f"| {codes} | `{needed.key}`" in page, needed.key
    for needed in expectations._NAMED:
        assert f"| `{needed.codes[0]}NAME` | `{needed.key}`" in page, needed.key


def test_a_night_without_its_snapshot_is_not_reported_as_other_hardware() -> None:
    found = answer(night(nodes=(Node(name="n1"),), objections=("the snapshot of n1 is gone",)), night=True)
    assert found.verdict is Verdict.UNPROVEN
    assert found.reasons[0] == "n1: night-1-pass: the snapshot of n1 is gone"
    assert "other hardware" not in "; ".join(found.reasons)


WHOLE = {"max_age_days": None, "unmeasured": "the provider's API"}
PART = {"benchmarks": ("gemm",), "unmeasured": "the API", "measured": "speeds"}


@pytest.mark.parametrize(
    ("row", "evidence", "verdict", "reasons"),
    [
        (WHOLE, (), "unproven", ("not measured by Rackproof: the provider's API",)),
        (WHOLE, (run(), night()), "unproven", ("not measured by Rackproof: the provider's API",)),
        (PART, (run(),), "unproven", ("not measured", "measured (nothing against it): speeds")),
        (PART, (run(verdict="degraded"),), "unproven", ("not measured", "measured (degraded)", "n1: gemm")),
        (PART, (), "unproven", ("not measured", "measured (unproven): speeds", "n1: gemm: there is no run")),
        (PART, (run(11),), "unproven", ("not measured", "measured (unproven)", "n1: gemm")),
        (PART, (run(-1),), "unproven", ("not measured", "measured (unproven)", "n1: gemm")),
        # The failure is the first reason.
        (PART, (run(verdict="fail"),), "fail", ("n1: gemm", "not measured", "measured (fail): speeds")),
        (PART | {"night": True}, (night(1, "fail"),), "fail", ("n1: health", "not measured")),
    ],
)
def test_a_requirement_that_is_not_fully_measured_never_passes(
    row: dict[str, Any], evidence: tuple[EvidencePiece, ...], verdict: str, reasons: tuple[str, ...]
) -> None:
    found = answer(*evidence, **row)
    assert found.verdict.value == verdict
    assert found.until is None
    for begin, reason in zip(reasons, found.reasons, strict=False):
        assert reason.startswith(begin), found.reasons
    assert len(found.reasons) >= len(reasons)


def test_an_answer_holds_until_its_oldest_evidence_is_too_old() -> None:
    pieces = (run(4, parameters={"gpus": 1}), run(1, parameters={"gpus": 2}))
    found = answer(*pieces)
    assert found.until == NOW + timedelta(days=6)
    assert answer(*pieces, at=NOW + timedelta(days=5.9)).verdict is Verdict.PASS
    assert answer(run(4), at=NOW + timedelta(days=6.1)).verdict is Verdict.UNPROVEN


def test_a_node_that_was_never_seen_is_unproven() -> None:
    assert answer(run(), asked=("n1", "n9")).verdict is Verdict.UNPROVEN


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({}, "names benchmarks, or night"),
        ({"benchmarks": ("gemm",), "codes": ("xid_*",), "reads": ("kernel_log",)}, "need night: true"),
        ({"night": True, "codes": ("xid_*",)}, "codes need reads"),
        ({"night": True, "reads": ("kernel_log",)}, "codes need reads"),
        ({"night": True, "metrics": ("gemm_best",)}, "metrics need benchmarks"),
        ({"night": True, "scope": "rack"}, "its scope is node"),
        ({"night": True, "max_age_days": 0}, "greater than 0"),
        ({"night": True, "nigth": True}, "Extra inputs"),
        ({"night": True, "max_age_days": None}, "add max_age_days"),
        ({"night": True, "unmeasured": "the API"}, "needs measured"),
        ({"night": True, "measured": "health"}, "needs measured"),
        ({"unmeasured": "the API", "measured": "health"}, "needs measured"),
        ({"unmeasured": "the API", "codes": ("xid_*",), "reads": ("kernel_log",)}, "need night: true"),
    ],
)
def test_a_requirement_that_nothing_can_answer_is_refused(row: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        Requirement.model_validate(ROW | row)
