"""Test which changes of rules ``rackproof evidence compare`` shows between two certificates.

An operator can relax a catalogue, limits, expectations or references, and the answers stay the same. The
comparison shows each of these changes (:mod:`rackproof.analysis.certificate.changes`).
"""

from __future__ import annotations

from typing import Any

import pytest

from rackproof.analysis.certificate.answering import answer_catalogue, whole_verdict
from rackproof.analysis.certificate.changes import certificate_changes
from rackproof.analysis.certificate.models import Catalogue, Certificate, ChangedLimit, EvidencePiece
from rackproof.core.records import Reference

from .test_answers import BOTH, NOW, judged, night, run

ROWS: tuple[dict[str, Any], ...] = (
    {"id": "B1", "text": "Each node is healthy.", "max_age_days": 2, "night": True},
    {
        "id": "B2",
        "text": "Memory is fast.",
        "max_age_days": 30,
        "benchmarks": ["gemm"],
        "metrics": ["gemm_best"],
    },
)
CODES = {"codes": ["xid_79", "gpu_lost"], "reads": ["kernel_log"]}


def certificate(
    *evidence: EvidencePiece, rows: tuple[dict[str, Any], ...] = ROWS, **changes: Any
) -> Certificate:
    """Return a certificate of two nodes, with a run and a night of both if there is no other evidence."""
    catalogue = Catalogue.model_validate({"name": "contract", "title": "Contract", "requirements": rows})
    evidence = evidence or (both_run(), both_night())
    asked = [node.name for node in BOTH]
    answers = answer_catalogue(catalogue.requirements, asked, BOTH, evidence, NOW)
    values = {"answers": answers, "evidence": evidence, "verdict": whole_verdict(answers)}
    about = {"made": NOW, "made_by": "me", "rackproof_version": "1", "asked": asked, "nodes": BOTH}
    return Certificate.model_validate({"catalogue": catalogue} | about | values | changes)


def both_run(**changes: Any) -> EvidencePiece:
    return run(nodes=BOTH, **changes)


def both_night(**changes: Any) -> EvidencePiece:
    """Return a night of both nodes. Each value of ``changes`` is that of both nodes."""
    names = [node.name for node in BOTH]
    fields = {"verdicts": "pass", "reads": {"kernel_log": "there"}, "expected": {"gpus": 2}, "limits": ()}
    return night(
        nodes=BOTH, **{key: dict.fromkeys(names, value) for key, value in (fields | changes).items()}
    )


def shown(old: Certificate, new: Certificate) -> list[tuple[str, ...]]:
    return [
        (change.kind, change.where, change.what, change.old, change.new)
        for change in certificate_changes(old, new)
    ]


def test_equal_certificates_have_no_change() -> None:
    assert shown(certificate(), certificate()) == []


@pytest.mark.parametrize(
    ("row", "changes", "expected"),
    [
        (1, {"max_age_days": 3000}, [("max_age_days", "30", "3000")]),
        (1, {"metrics": []}, [("metrics", "gemm_best", "")]),
        (1, {"text": "Memory is usable."}, [("text", "Memory is fast.", "Memory is usable.")]),
        (1, {"scope": "rack"}, [("scope", "node", "rack")]),
        (1, {"benchmarks": ["gemm", "stream"]}, [("benchmarks", "gemm", "gemm, stream")]),
        (0, CODES, [("codes", "", "xid_79, gpu_lost"), ("reads", "", "kernel_log")]),
        (
            0,
            {"unmeasured": "the API", "measured": "health"},
            [("measured", "", "health"), ("unmeasured", "", "the API")],
        ),
    ],
)
def test_a_changed_requirement_is_shown(
    row: int, changes: dict[str, Any], expected: list[tuple[str, ...]]
) -> None:
    rows = tuple(one | changes if index == row else one for index, one in enumerate(ROWS))
    found = [one for one in shown(certificate(), certificate(rows=rows)) if one[0] == "requirement"]
    assert found == [("requirement", f"contract {ROWS[row]['id']}", *texts) for texts in expected]


def test_a_requirement_of_one_certificate_is_a_changed_answer() -> None:
    assert shown(certificate(), certificate(rows=ROWS[:1])) == [("answer", "contract", "B2", "pass", "")]


LIMIT = ChangedLimit(name="gpu_c", value=1000, default=100)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"limits": (LIMIT,)}, ("limit", "n[1-2]", "gpu_c", "", "1000 (default 100)")),
        ({"limits": (LIMIT,)}, {}, ("limit", "n[1-2]", "gpu_c", "1000 (default 100)", "")),
        ({}, {"limits": None}, ("limit", "n[1-2]", "all", "", "not known")),
        ({}, {"expected": {}}, ("expectation", "n[1-2]", "gpus", "2", "")),
        ({}, {"expected": {"gpus": 1}}, ("expectation", "n[1-2]", "gpus", "2", "1")),
        (
            {"expected": {"services": ["slurmd", "munge"]}},
            {"expected": {"services": ["slurmd"]}},
            ("expectation", "n[1-2]", "services", "slurmd, munge", "slurmd"),
        ),
    ],
)
def test_changed_limits_and_expectations_are_shown_once_for_all_nodes(
    old: dict[str, Any], new: dict[str, Any], expected: tuple[str, ...]
) -> None:
    before, after = (certificate(both_run(), both_night(**changes)) for changes in (old, new))
    assert shown(before, after) == [expected]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"value": 3.8, "low": -0.3}, "3.8 TB/s, low -0.3, warn -0.03, high +0.1"),
        ({"low": -0.5}, "4 TB/s, low -0.5, warn -0.03, high +0.1"),
        ({"warn": None}, "4 TB/s, low -0.05, high +0.1"),
        ({"high": None}, "4 TB/s, low -0.05, warn -0.03"),
        ({"source": "another run"}, ""),
    ],
)
def test_a_changed_reference_is_shown_once_for_all_gpus(changes: dict[str, Any], text: str) -> None:
    before, after = (
        tuple(judged(labels={"gpu": uuid}, reference=reference) for uuid in ("GPU-a", "GPU-b", "GPU-c"))
        for reference in (REFERENCE, REFERENCE.model_copy(update=changes))
    )
    old, new = (certificate(both_run(judgements=judgements), both_night()) for judgements in (before, after))
    old_text = "4 TB/s, low -0.05, warn -0.03, high +0.1"
    expected = [("reference", "n1, n2: gemm {}", "gemm_best", old_text, text)] if text else []
    assert [one for one in shown(old, new) if one[0] != "speed"] == expected


REFERENCE = Reference(value=4, low=-0.05, warn=-0.03, high=0.1, unit="TB/s", source="x")
