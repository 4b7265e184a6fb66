"""Test ``rackproof.jobs.bench.required_evidence``, the tables of the evidence that a run needs.

Each row names one piece of evidence, such as the exit status of the job or the nodes in Slurm's record. The
tests check that every field with evidence has a row, that a run without a required field is unproven, and
that the checks of nodes, ranks and seeds do not depend on markers in the log.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.evidence import EvidenceState
from rackproof.core.records import ParsedLog, Verdict
from rackproof.jobs.bench.record import _SEALED
from rackproof.jobs.bench.required_evidence import RUN_BY_SLURM, RUN_OF_ROUND_06, RUN_ON_MACHINE, Evidence
from rackproof.logs.run_sub import RunSubOutput
from tests.jobs.bench.test_slurm_runs import SlurmRun, compliant, gating

# The fixture compliant is imported for its effect: it replaces MLCommons' checker.
__all__ = ["compliant"]


def test_every_field_of_the_evidence_of_a_run_has_a_row() -> None:
    rows = {row.name for row in RUN_ON_MACHINE}
    fields = {f"evidence.{name}" for name in Evidence.model_fields}
    fields |= {f"job.{name}" for name in (*_SEALED, "seal")}
    fields |= {f"log.{name}" for name in ParsedLog.model_fields}
    assert fields | {"log"} == rows


def recorded_by_slurm_run(root: Path) -> set[str]:
    """Return the keys of the record that workloads/slurm_run.py reports."""
    tree = ast.parse((root / "workloads/slurm_run.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and all(isinstance(one, ast.Constant) for one in node.elts):
            names = [one.value for one in node.elts if isinstance(one, ast.Constant)]
            if "exit_code" in names and "node_count" in names:
                return {str(name) for name in names}
    raise AssertionError("slurm_run.py names no fields of Slurm's record")


def test_every_field_of_a_launchers_output_and_of_slurms_record_has_a_row(root: Path) -> None:
    rows = {row.name for row in RUN_BY_SLURM}
    fields = {f"log.{name}" for name in RunSubOutput.model_fields}
    fields |= {f"slurm.{name}" for name in {*recorded_by_slurm_run(root), "job", "steps"}}
    assert fields == rows


@pytest.mark.parametrize("table", [RUN_ON_MACHINE, RUN_BY_SLURM, RUN_OF_ROUND_06])
def test_missing_evidence_has_a_verdict_unless_its_row_states_why_it_is_harmless(table: Any) -> None:
    assert len({row.name for row in table}) == len(table)
    for row in table:
        for state in EvidenceState:
            verdict = row.verdict_of(state)
            harmless = bool(row.harmless) and state not in row.verdicts
            assert (verdict is None) == (state is EvidenceState.THERE or harmless)
            assert verdict in (None, Verdict.UNPROVEN, Verdict.FAIL)
        assert row.remedy


@pytest.fixture
def run(root: Path, tmp_path: Path) -> SlurmRun:
    return SlurmRun(root, tmp_path)


MAY_LACK = {row.name.removeprefix("slurm.") for row in RUN_BY_SLURM if row.harmless}


@pytest.mark.parametrize("value", [None, "", "gone"])
@pytest.mark.parametrize(
    "key", ["job", "name", "state", "exit_code", "nodes", "node_count", "start", "end", "elapsed_s", "steps"]
)
def test_slurms_record_without_a_field_is_unproven(run: SlurmRun, key: str, value: str | None) -> None:
    run.end[key] = value
    if value == "gone":
        del run.end[key]
    recorded = run.record()
    assert recorded.verdict == ("pass" if key in MAY_LACK else "unproven"), recorded.reasons


@pytest.mark.parametrize("value", [None, "", [], {}, math.nan, "gone"])
@pytest.mark.parametrize(
    "key", ["id", "phase", "ended_by", "exit_status", "succeeded", "started", "ended", "seal"]
)
def test_a_job_without_a_part_of_its_state_is_unproven(run: SlurmRun, key: str, value: Any) -> None:
    run.job[key] = value
    if value == "gone":
        del run.job[key]
    if key == "seal" and value == "gone":
        return  # SlurmRun.record adds the seal
    assert run.record().verdict.gates


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Markers that are missing, renamed, of another script, and in other letters.
        ("RUNANDTIME_START", "RUN_AND_TIME_START"),
        ("RUNANDTIME_START", "TRAINING_BEGIN"),
        ("RUNANDTIME_START", "runandtime_start"),
        ("RUNANDTIME_ST", "RUNANDTIME_X_ST"),
        ("RUNANDTIME_START 1", "RUNANDTIME_START: 1"),
    ],
)
def test_nodes_ranks_and_seeds_are_checked_whatever_markers_a_log_has(
    run: SlurmRun, old: str, new: str
) -> None:
    run.log = run.log.replace(old, new)
    run.replace(" 18 node[01-18]", " 2 node[01-02]")
    run.replace("Starting with 72", "Starting with 8")
    run.without('"key": "seed"')
    recorded = run.record()
    assert recorded.verdict.gates
    assert {"no_start_marker", "wrong_nodes", "wrong_ranks", "no_seed"} <= gating(recorded)
