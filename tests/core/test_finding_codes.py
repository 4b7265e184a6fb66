"""Test that the registry of finding codes and the source have the same codes.

An operator looks up a code of a finding with `rackproof explain CODE`. The registry,
src/rackproof/core/finding_codes.csv, has its meaning, verdicts and actions. These tests find each code that
the source can give, and fail if the registry lacks it, or has a code that nothing gives. They also check the
lookup.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import get_args

import pytest

from rackproof.analysis.anomaly import CHECKS
from rackproof.core.finding_codes import JOBS, VERDICTS, find_code, near_codes, registry, why_not_allowed
from rackproof.core.records import Finding, Record, Verdict
from rackproof.jobs.bench.planning import STILL_RUNNING
from rackproof.jobs.bench.record import _ENDED_BADLY
from rackproof.jobs.bench.required_evidence import RUN_BY_SLURM, RUN_OF_ROUND_06, RUN_ON_MACHINE
from rackproof.logs import fault_texts
from rackproof.logs._reading import TASK_FAILED
from rackproof.logs.kernel_events import ACTIONS, Kind
from rackproof.logs.nvidia_smi import _XML_FAULTS
from rackproof.logs.nvidia_smi_csv import _FAULTS as _CSV_FAULTS
from rackproof.nodes import health_checks, slurm_states
from rackproof.nodes.health_subjects import Action, Confidence
from rackproof.nodes.night_evidence import GPU_EVIDENCE, NODE_EVIDENCE, PORT_EVIDENCE, TOOL_EVIDENCE
from tests.core import registered_findings
from tests.core.finding_sites import Site, check_sites, code_sites

KERNEL_KINDS = {kind for kind in get_args(Kind) if kind not in ("xid", "sxid")}
EVIDENCE_CODES = sorted(
    {row.code for row in (*TOOL_EVIDENCE, *NODE_EVIDENCE, *GPU_EVIDENCE, *PORT_EVIDENCE) if row.state}
)
RUN_EVIDENCE = (*RUN_ON_MACHINE, *RUN_BY_SLURM, *RUN_OF_ROUND_06)
MADE_WHILE_RUNNING: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
    ("rackproof/jobs/bench/record.py", "STILL_RUNNING"): lambda: [STILL_RUNNING],
    ("rackproof/jobs/bench/record.py", "code"): lambda: [code for code, _, _ in _ENDED_BADLY.values()],
    ("rackproof/jobs/bench/required_evidence.py", "code"): lambda: {row.code for row in RUN_EVIDENCE},
    ("rackproof/jobs/bench/node_setup.py", "code"): lambda: ["storage_differs", "cache_differs"],
    ("rackproof/logs/_mlperf.py", "code"): lambda: ["negative_time", "no_time"],
    ("rackproof/logs/_mlperf.py", "TASK_FAILED"): lambda: [TASK_FAILED],
    ("rackproof/logs/_reading.py", "code"): lambda: fault_texts.MEANING,
    # The parser hands over findings that it made before.
    ("rackproof/logs/nvidia_smi_brief.py", "code"): lambda: ["ecc_uncorrected", "too_hot"],
    ("rackproof/logs/nvidia_smi.py", "code"): lambda: [code for _, code, _, _ in _XML_FAULTS],
    ("rackproof/logs/nvidia_smi_csv.py", "code"): lambda: [code for code, _ in _CSV_FAULTS.values()],
    ("rackproof/logs/_nvidia_smi.py", "code"): lambda: ["ecc_sram_correctable", "ecc_dram_correctable"],
    ("rackproof/logs/xid.py", "event.name"): lambda: KERNEL_KINDS | {"xid_*", "sxid_*"},
    ("rackproof/logs/xid.py", "f'sxid_{code}'"): lambda: ["sxid_*"],
    ("rackproof/nodes/kernel_log.py", "event.name"): lambda: KERNEL_KINDS | {"sxid_*"},
    ("rackproof/nodes/facts.py", "code"): lambda: ["tool_hung", "no_driver", "tool_failed", "no_gpus"],
    ("rackproof/nodes/health_checks.py", "*_lacking_finding(lacking)"): lambda: EVIDENCE_CODES,
    ("rackproof/nodes/health_checks.py", "fabric_code"): lambda: ["fabric_failed", "fabric_incomplete"],
    ("rackproof/logs/nvidia_smi.py", "fabric_code"): lambda: ["fabric_failed", "fabric_incomplete"],
    ("rackproof/logs/_nvidia_smi.py", "fabric_code"): lambda: ["fabric_failed", "fabric_incomplete"],
    ("rackproof/nodes/health_checks.py", "f'ecc_{memory.lower()}_correctable'"): lambda: [
        "ecc_sram_correctable",
        "ecc_dram_correctable",
    ],
    ("rackproof/nodes/health_checks.py", "f'xid_{event.xid}'"): lambda: ["xid_*"],
    ("rackproof/nodes/health_checks.py", "f'port_{code_name(name)}'"): lambda: [
        f"port_{health_checks.code_name(name)}" for name in health_checks._COUNTER_LIMITS
    ],
    ("rackproof/nodes/health_checks.py", "f'link_{quantity}'"): lambda: ["link_width", "link_speed"],
    # Codes of versions and services, which are made from names in the operator's variables.
    ("rackproof/nodes/health_checks.py", "code"): lambda: ["version_*", "service_*"],
    ("rackproof/nodes/health_checks.py", "f'version_{code_name(name)}'"): lambda: ["version_*"],
    ("rackproof/nodes/health_checks.py", "f'mismatch_{code_name(name)}'"): lambda: ["mismatch_*"],
    (
        "rackproof/nodes/health_checks.py",
        "'kernel_log_damaged' if event.code == 'damaged_line' else event.code",
    ): lambda: ["kernel_log_damaged"],
    ("rackproof/nodes/slurm_states.py", "f'slurm_{failed[0].lower()}'"): lambda: [
        f"slurm_{word.lower()}" for word in slurm_states._FAILED
    ],
}
"""Functions that return the codes of a place whose code is not a literal, by file and expression."""
MEASURED = {f"{check}:*" for check in CHECKS}
"""Reasons of a night that the comparison of its measurements gives."""


def _codes(site: Site) -> set[str]:
    """Return the codes that a place gives, or an empty set if they are unknown."""
    made = MADE_WHILE_RUNNING.get((site.file, site.expression))
    return {*site.codes, *(made() if made else ())}


def test_every_code_of_the_source_is_in_the_registry() -> None:
    unnamed = [str(site) for site in code_sites() if not _codes(site)]
    assert not unnamed, "make these codes literal, or add them to MADE_WHILE_RUNNING"
    lacking = [f"{site}: {code}" for site in code_sites() for code in _codes(site) - set(registry())]
    lacking += [f"{place}: {code}" for place, code in check_sites() if f"{code}:*" not in registry()]
    assert not lacking, "add a line for each to src/rackproof/core/finding_codes.csv and type: make docs"


def _stated_verdicts(site: Site) -> set[str]:
    """Return the verdicts that a call states itself. Computed verdicts are checked while tests run."""
    given = [*site.call.args, *(one.value for one in site.call.keywords)]
    choices = [one for value in given for one in _choices(value)]
    return {one.attr.lower() for one in choices if ast.unparse(one).startswith("Verdict.")}


def _choices(value: ast.expr) -> list[ast.Attribute]:
    """Return the attributes that are the value of an expression, or of the branches of a condition."""
    both = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    return [one for one in both if isinstance(one, ast.Attribute)]


def test_every_verdict_that_the_source_states_is_in_the_registry() -> None:
    stated = [(site, code, _stated_verdicts(site)) for site in code_sites() for code in _codes(site)]
    assert len([found for _, _, found in stated if found]) > 200
    lacking = [f"{site}: {code}" for site, code, found in stated if found - set(registry()[code].verdicts)]
    assert not lacking, "add the verdict to the line in src/rackproof/core/finding_codes.csv"


def test_every_entry_of_the_registry_is_in_the_source() -> None:
    given = {code for site in code_sites() for code in _codes(site)} | MEASURED
    given |= {f"{code}:*" for _, code in check_sites()}
    assert sorted(set(registry()) - given) == []


def test_every_entry_of_made_while_running_is_used() -> None:
    places = {(site.file, site.expression) for site in code_sites()}
    assert sorted(set(MADE_WHILE_RUNNING) - places) == []


def test_entries_are_sorted_and_use_the_words_that_records_have() -> None:
    assert list(registry()) == sorted(registry())
    for one in registry().values():
        assert one.jobs, one
        assert one.verdicts, one
        assert set(one.jobs) <= set(JOBS), one
        assert set(one.verdicts) <= set(VERDICTS), one
        assert set(one.actions) <= set(get_args(Action)), one
        assert set(one.confidences) <= set(get_args(Confidence)), one
        assert bool(one.actions) == bool(one.confidences), one
        assert 0 < len(one.reads) <= 100, one
        assert re.fullmatch(r"\S.{10,148}\.", one.meaning), one


def test_no_code_has_two_lines_and_no_meaning_joins_two_clauses() -> None:
    text = files("rackproof.core").joinpath("finding_codes.csv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line.split(" | ")[0] for line in lines] == list(registry())
    quoted = {one.code: re.sub("`[^`]*`", "", one.meaning) for one in registry().values()}
    assert {code: meaning for code, meaning in quoted.items() if ": " in meaning or ";" in meaning} == {}


def test_each_job_and_verdict_has_an_entry() -> None:
    assert {job for one in registry().values() for job in one.jobs} == set(JOBS)
    assert set(VERDICTS) == {*(verdict.value for verdict in Verdict if verdict is not Verdict.PASS), "remark"}
    assert set(VERDICTS) == {verdict for one in registry().values() for verdict in one.verdicts}


@pytest.mark.parametrize(
    ("code", "entry"),
    [
        ("ecc_off", "ecc_off"),
        *((f"xid_{number}", "xid_*") for number in ACTIONS),
        ("sxid_20034", "sxid_*"),
        ("xid_reset", "xid_reset"),
        ("version_driver", "version_*"),
        ("service_slurmd", "service_*"),
        ("services_unknown", "services_unknown"),
        ("floor:gemm_best", "floor:*"),
        ("bits:training step", "bits:*"),
        # A night's reason without a metric has no colon.
        ("missing", "missing:*"),
    ],
)
def test_a_code_of_a_finding_has_its_entry(code: str, entry: str) -> None:
    assert find_code(code) is registry()[entry]


@pytest.mark.parametrize("code", ["", "xid_", "xids", "floors:gemm", ":", "*", "ecc", "version_", "nodes-1"])
def test_a_text_that_is_no_code_has_no_entry(code: str) -> None:
    assert find_code(code) is None


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("ecc_of", "ecc_off"),
        ("nvlink_dwn", "nvlink_down"),
        ("XID_RESET", "xid_reset"),
        ("preflight", "nccl_preflight"),
    ],
)
def test_an_unknown_code_has_near_names(typed: str, near: str) -> None:
    assert near in near_codes(typed)


def test_nothing_is_near_the_name_of_a_node() -> None:
    assert near_codes("gb300-r01-n03") == []


# `why` is a part of the message, or "" if the registry allows the finding.
@pytest.mark.parametrize(
    ("code", "verdict", "action", "confidence", "why"),
    [
        ("ecc_off", "fail", "configure", "certain", ""),
        ("ecc_off", "degraded", "configure", "certain", "has degraded"),
        ("ecc_off", "fail", "rma", "certain", "has rma"),
        ("ecc_off", "fail", "configure", "hint", "has hint"),
        ("ecc_off", None, "", "", "has remark"),
        ("ecc_offf", "fail", "configure", "certain", "is not in"),
        ("cut_off", "unproven", "", "", ""),
        ("cut_off", "unproven", "watch", "", "has watch"),
    ],
)
def test_a_finding_is_compared_with_its_entry(
    code: str, verdict: str | None, action: str, confidence: str, why: str
) -> None:
    found = why_not_allowed(code, verdict, action, confidence)
    assert why in found
    assert bool(why) == bool(found)


def test_only_findings_that_the_package_constructs_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    class Watched(Finding):
        pass

    monkeypatch.setattr(registered_findings, "WATCHED", (Watched,))
    registered_findings.watch(refused)
    Watched(code="made_up", message="")
    Watched.model_validate({"code": "made_up", "message": ""})
    assert refused == []
    monkeypatch.setattr(registered_findings, "PACKAGE", __file__)
    Watched(code="made_up", message="")
    Watched(code="cut_off", message="", verdict=Verdict.FAIL)
    Watched(code="cut_off", message="", verdict=Verdict.UNPROVEN)
    assert [line.split(" (")[0] for line in refused] == [
        "made_up is not in core/finding_codes.csv",
        "cut_off has fail, which core/finding_codes.csv does not list for it",
    ]


@pytest.mark.parametrize("kind", registered_findings.WATCHED)
def test_every_kind_of_finding_is_watched_in_every_test(kind: type[Record]) -> None:
    assert kind.__init__.__qualname__ == "_watch.<locals>.checked"


def test_records_with_codes_of_earlier_versions_load() -> None:
    assert Finding.model_validate_json('{"code": "gone_long_ago", "message": ""}').code == "gone_long_ago"
