"""Test that the convergence of a result is compared as the round's package checker compares it.

MLCommons publishes reference convergence points (RCP), which are the samples or epochs that a benchmark needs
with a batch size. The times of a result that converges a little faster are scaled in some rounds, and a
result that converges much faster is rejected. These tests check the rounds 1.0 to 5.1
(:mod:`rackproof.analysis.mlperf.score`):

- dlrm is compared with the points of its round, and minigo is not compared.
- A result is unproven if the round has no points for its benchmark, and fails if its batch size has none.
- Only some rounds scale times, and a factor in ``scaling.json`` is used.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rackproof.analysis.mlperf.score import FolderScore, score_folder
from rackproof.core.records import Verdict

from .samples import fill, result, write


def epochs(folder: Path, benchmark: str, *, runs: int, batch: int, until: float) -> Path:
    """Fill a folder with logs that count epochs, as those of older rounds do. Return the folder.

    Args:
        folder: The folder of the logs.
        benchmark: The name of the benchmark in MLPerf's logs.
        runs: The number of logs.
        batch: The global batch size.
        until: The number of epochs after which each run reaches its target.
    """
    for number in range(runs):
        lines = result(number, minutes=10 + number / 10, benchmark=benchmark, batch=batch)
        lines = [line.replace('"samples_count": 3456', f'"epoch_num": {until}') for line in lines]
        lines = [line.replace('"samples_count": 1728', f'"epoch_num": {until / 2}') for line in lines]
        write(folder / f"result_{number}.txt", lines)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("ruleset", ["1.0.0", "1.1.0", "2.0.0", "2.1.0"])
@pytest.mark.parametrize(("until", "passed"), [(1.9, True), (1.0, False)])
def test_dlrm_is_compared_with_the_reference_points_of_its_round(
    tmp_path: Path, ruleset: str, until: float, passed: bool
) -> None:
    # The round has reference points for this batch size.
    batch = 32768 if ruleset == "1.0.0" else 55296
    score = score_folder(epochs(tmp_path, "dlrm", runs=5, batch=batch, until=until), ruleset=ruleset)
    assert score.rcp is not None
    assert (score.rcp.applies, score.rcp.passed) == (True, passed)
    assert "Missing RCP" not in score.rcp.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ruleset"),
    [("gnmt", "1.0.0"), ("transformer", "2.1.0"), ("ncf", "3.0.0"), ("rnnt", "5.1.0")],
)
def test_convergence_without_published_points_is_unproven(tmp_path: Path, name: str, ruleset: str) -> None:
    folder = epochs(tmp_path, name, runs=10, batch=2048, until=3)
    score = score_folder(folder, ruleset=ruleset)
    assert score.rcp is not None
    assert (score.rcp.applies, score.rcp.passed) == (True, None)
    assert not any("convergence rejected" in reason for reason in score.reasons)
    # The round has no points for the benchmark. If only this batch size had none, the result would fail.
    assert any("convergence not compared: Missing RCP" in reason for reason in score.reasons)


def test_minigo_is_not_compared_in_round_2_1(tmp_path: Path) -> None:
    score = score_folder(epochs(tmp_path, "minigo", runs=10, batch=8192, until=3), ruleset="2.1.0")
    assert score.rcp is not None
    assert score.rcp.applies is False


def resnet(folder: Path, ruleset: str) -> FolderScore:
    """Return the score of five runs of resnet that converge a little faster than the reference."""
    return score_folder(epochs(folder, "resnet", runs=5, batch=408, until=34), ruleset=ruleset)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ruleset", "scaled"),
    [
        ("1.0.0", False),
        ("1.1.0", False),
        ("2.0.0", False),
        ("2.1.0", True),
        ("3.0.0", False),
        ("3.1.0", True),
    ],
)
def test_only_some_rounds_scale_the_times_of_a_fast_convergence(
    tmp_path: Path, ruleset: str, scaled: bool
) -> None:
    score = resnet(tmp_path, ruleset)
    assert score.rcp is not None
    assert score.rcp.passed is True
    assert score.rcp.submission_mean is not None
    assert score.rcp.reference_mean is not None
    assert score.rcp.submission_mean < score.rcp.reference_mean
    assert (score.scaling_factor > 1) is scaled


def test_the_factor_in_scaling_json_is_used(tmp_path: Path) -> None:
    (tmp_path / "scaling.json").write_text(json.dumps({"scaling_factor": 1.023}))
    assert resnet(tmp_path, "2.0.0").scaling_factor == 1.023


def test_a_batch_size_without_reference_points_fails(tmp_path: Path) -> None:
    score = score_folder(fill(tmp_path, batch=1_000_000), ruleset="5.1.0")
    assert score.verdict is Verdict.FAIL
    assert any("Missing RCP, please submit" in reason for reason in score.reasons)
