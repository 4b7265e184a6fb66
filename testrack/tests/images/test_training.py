"""Test run.sub and the small training in the fake images of MLPerf Training 5.1.

A run without a fault must follow the rules of the round. A fault, such as a killed rank or a hang, must leave
the traces in the log that a real fault leaves, because tests of Rackproof rely on them.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from rackproof.analysis.mlperf.score import score_folder
from rackproof.core.records import Verdict
from rackproof.logs import parse, parse_path
from testrack.tests.images.images_job import Cluster

# Every case starts processes. Together, they take longer than `make check` may.
pytestmark = pytest.mark.slow

TWO_NODES = {
    "llama2_70b_lora": "config_GB300_2x4x1xtp1pp1cp1.sh",
    "llama31_8b": "config_GB300_2x4x2xtp1pp1cp1_8b.sh",
    "flux1": "config_GB300_02x04x64.sh",
}
MARKERS = (
    "PROLOG_START",
    "NCCL_TEST_START",
    "NCCL_TEST_STOP",
    "PROLOG_STOP",
    "EXPERIMENT_START",
    "Beginning trial",
    ":::DLPAL",
    ":::SYSJSON",
    ":::GITCOMMITID",
    "RUNANDTIME_START",
    "RUNANDTIME_STOP",
    "EXPERIMENT_STOP",
)


def codes(path: Path) -> set[str]:
    """Return the codes of Rackproof's findings in a log."""
    return {one.code for one in parse_path(path).findings}


@pytest.mark.parametrize("name", TWO_NODES)
def test_a_clean_run_passes(cluster: Cluster, name: str) -> None:
    job = cluster.run(name, TWO_NODES[name], 2, SEED_BASE="5")
    assert job.status == 0, job.output[-3000:]
    assert [path.name.split("_")[-1] for path in job.logs] == ["1.log"]
    parsed = parse_path(job.logs[0])
    assert parsed.verdict is Verdict.PASS, parsed.findings
    assert parsed.tags["submission_benchmark"] == name
    assert parsed.tags["seed"] == "5"
    lines = job.output.splitlines()
    for marker in MARKERS:
        places = [line for line in lines if marker in line]
        assert len(places) == 2, (marker, places)
    order = [next(at for at, line in enumerate(lines) if line.startswith(marker)) for marker in MARKERS]
    assert order == sorted(order)
    preflight = next(job.folder.glob("*_nccl.log"))
    table = parse(io.BytesIO(preflight.read_bytes()), format="nccl_tests", name="nccl")
    assert table.verdict is Verdict.PASS, table.findings
    assert "SUCCESS" in next(job.folder.glob("compliance_*.out")).read_text()


@pytest.mark.slow
def test_the_ranks_change_nothing_in_what_is_learned(cluster: Cluster) -> None:
    curves = []
    for nodes in (1, 3):
        job = cluster.run(
            "llama2_70b_lora", TWO_NODES["llama2_70b_lora"], nodes, SEED_BASE="5", NCCL_TEST="0"
        )
        found = re.findall(r'"eval_accuracy", "value": ([0-9.]+)', job.logs[0].read_text())
        curves.append([round(float(one), 9) for one in found])
    assert curves[0] == curves[1]
    assert len(curves[0]) >= 4
    assert curves[0][-1] <= 0.925 < curves[0][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "llama2_70b_lora",
        *(
            pytest.param(name, marks=pytest.mark.proof)
            for name in sorted(set(TWO_NODES) - {"llama2_70b_lora"})
        ),
    ],
)
def test_ten_clean_trials_are_a_result(cluster: Cluster, name: str) -> None:
    job = cluster.run(name, TWO_NODES[name], 2, NEXP="10", SEED_BASE="100", NCCL_TEST="0")
    assert len(job.logs) == 10, job.output[-3000:]
    # The ruleset is named, because the date in the log is not one of the round.
    score = score_folder(job.folder, ruleset="5.1.0")
    # A fake run takes a tenth of a second. This is implausibly fast, and the times of such short runs can be
    # equal in milliseconds.
    assert score.verdict is Verdict.UNPROVEN
    doubts = {
        finding.code for finding in score.findings if finding.verdict in (Verdict.UNPROVEN, Verdict.FAIL)
    }
    assert doubts <= {"implausible_speed", "same_run"}, score.reasons
    assert score.rcp is not None
    assert 1.0 <= score.scaling_factor < 1.05
    assert all(one.compliant for one in score.runs)


@pytest.mark.slow
def test_a_slow_node_is_named(cluster: Cluster) -> None:
    job = cluster.run(
        "llama2_70b_lora",
        TWO_NODES["llama2_70b_lora"],
        3,
        STANDIN_FAULT="slow-node@n02",
        STANDIN_SECONDS="6",
        NCCL_TEST="0",
    )
    assert "Affected ranks: 1 (n02)" in job.logs[0].read_text()


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_is_named(cluster: Cluster) -> None:
    job = cluster.run(
        "llama2_70b_lora", TWO_NODES["llama2_70b_lora"], 3, STANDIN_FAULT="rank-killed@n03", NCCL_TEST="0"
    )
    text = job.logs[0].read_text()
    assert "srun: error: n03: task 2: Killed" in text
    assert "connection with rank 2 (n03) lost" in text
    assert {"no_run_stop", "traceback"} <= codes(job.logs[0])


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("nan", "nan"),
        ("oom-exit-0", "out_of_memory"),
        ("no-run-stop", "no_run_stop"),
        ("cache-not-cleared@n01", "cache_clear_failed"),
    ],
)
def test_misbehaviour_leaves_what_reality_leaves(cluster: Cluster, fault: str, expected: str) -> None:
    job = cluster.run("flux1", TWO_NODES["flux1"], 2, STANDIN_FAULT=fault, NCCL_TEST="0")
    # The run script itself reports success in all of these cases.
    assert job.status == 0, job.output[-3000:]
    parsed = parse_path(job.logs[0])
    assert expected in {one.code for one in parsed.findings}
    assert parsed.verdict is not Verdict.PASS
    if fault == "oom-exit-0":
        assert "ret_code=0" in job.logs[0].read_text()
    if fault == "nan":
        assert '"status": "aborted"' in job.logs[0].read_text()


@pytest.mark.slow
def test_a_hang_runs_into_the_time_limit(cluster: Cluster) -> None:
    job = cluster.run(
        "flux1", TWO_NODES["flux1"], 2, STANDIN_FAULT="hang", NCCL_TEST="0", SECONDS_PER_MINUTE="3"
    )
    assert "n02: waiting for the data loader" in job.logs[0].read_text()
    assert {"time_limit", "no_run_stop"} <= codes(job.logs[0])


@pytest.mark.slow
def test_too_fast_needs_fewer_samples_than_anybody_may(cluster: Cluster) -> None:
    job = cluster.run(
        "llama31_8b",
        TWO_NODES["llama31_8b"],
        2,
        STANDIN_FAULT="too-fast",
        NCCL_TEST="0",
        CHECK_COMPLIANCE="0",
    )
    samples = re.findall(r'"run_stop".*"samples_count": (\d+), "status": "success"', job.logs[0].read_text())
    assert int(samples[0]) < 161109 / 1.0202


@pytest.mark.slow
def test_wrong_nodes_trains_on_fewer_than_the_job_has(cluster: Cluster) -> None:
    job = cluster.run(
        "llama2_70b_lora", TWO_NODES["llama2_70b_lora"], 3, STANDIN_FAULT="wrong-nodes", NCCL_TEST="0"
    )
    text = job.logs[0].read_text()
    assert ":::DLPAL rack:5000/fake:1 7 3 n01,n02,n03" in text
    assert "Starting with 8 processes" in text
    assert '"2xSUBMISSION_PLATFORM_PLACEHOLDER"' in text


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "wrong", "slowest"), [("bad-nccl", True, 300), ("slow-nccl", False, 0)])
def test_a_bad_preflight_shows_and_is_ignored_by_the_script(
    cluster: Cluster, fault: str, wrong: bool, slowest: float
) -> None:
    job = cluster.run(
        "flux1", TWO_NODES["flux1"], 2, STANDIN_FAULT=fault, CHECK_COMPLIANCE="0", STANDIN_SECONDS="0"
    )
    assert job.status == 0
    text = next(job.folder.glob("*_nccl.log")).read_text()
    average = float(re.findall(r"Avg bus bandwidth\s*: ([0-9.]+)", text)[0])
    assert ("FAILED" in text) is wrong
    assert average > slowest if wrong else average < 150
    assert parse_path(job.logs[0]).verdict is Verdict.PASS


@pytest.mark.slow
def test_a_fault_can_lie_beside_the_data(cluster: Cluster) -> None:
    path = cluster.staged / "energon/STANDIN_FAULT"
    path.write_text("no-run-stop\n")
    try:
        job = cluster.run("flux1", TWO_NODES["flux1"], 2, NCCL_TEST="0", CHECK_COMPLIANCE="0")
    finally:
        path.unlink()
    assert "no_run_stop" in codes(job.logs[0])


def test_missing_data_say_what_is_missing(cluster: Cluster) -> None:
    job = cluster.run(
        "llama2_70b_lora", TWO_NODES["llama2_70b_lora"], 2, MODEL=str(cluster.folder / "bin"), NCCL_TEST="0"
    )
    assert "weights/base_logits.npy is not there" in job.logs[0].read_text()
    assert "weights is incorrect" in job.output


@pytest.mark.parametrize(
    ("name", "variable"),
    [("llama2_70b_lora", "MODEL"), ("flux1", "DATAROOT"), ("llama2_70b_lora", "CONT")],
)
def test_what_must_be_set_is_demanded(cluster: Cluster, name: str, variable: str) -> None:
    job = cluster.run(name, TWO_NODES[name], 2, **{variable: ""})
    assert job.status != 0
    assert f"{variable} not set" in job.output
    assert not job.logs
