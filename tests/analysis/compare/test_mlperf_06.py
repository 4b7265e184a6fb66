"""Test that ``rackproof compare`` reproduces the published tables of MLPerf Training 0.6 from real logs.

Lambda published the throughput and minutes of its systems in that round. The logs of two configs are in
tests/data/real. These tests compare them with the published values
(:mod:`rackproof.analysis.compare.systems`), and score repeats by the rules of that round.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from rackproof.analysis.compare.naming import canonical_benchmark
from rackproof.analysis.compare.selecting import published, select
from rackproof.analysis.compare.systems import ComparisonCell, SystemComparison, compare_systems
from rackproof.analysis.mlperf.score import score_folder
from rackproof.core.records import Run, Verdict

PASS, DEGRADED, FAIL, UNPROVEN = Verdict.PASS, Verdict.DEGRADED, Verdict.FAIL, Verdict.UNPROVEN
SYSTEMS = ("DGX1", "LambdaHyperplaneBasic")


def none(name: str) -> Run:
    """Fail, because the names select files and no stored run."""
    raise AssertionError(name)


@pytest.fixture(scope="module")
def compared(real_logs: Path) -> SystemComparison:
    """Return the comparison of the two systems of SYSTEMS."""
    folder = real_logs / "mlperf-0.6"
    return compare_systems([select(f"{folder}/*/{name}.log", folder, none, []) for name in SYSTEMS])


def cell(compared: SystemComparison, system: str, benchmark: str, kind: str) -> ComparisonCell:
    """Return the cell of a system in the row of a benchmark."""
    (row,) = (one for one in compared.rows if (one.benchmark, one.kind) == (benchmark, kind))
    return row.cells[compared.systems.index(system)]


# Of throughput and of minutes: value, deviation from the published mean as a fraction, and verdict. Then the
# epochs to the target. Throughput is in samples (ssd, resnet), iterations (maskrcnn), tokens (gnmt) or
# batches (transformer) per second, or in epochs per minute (minigo).
@pytest.mark.parametrize(
    ("system", "model", "throughput", "minutes", "epochs"),
    [
        ("DGX1", "ssd", (4296.73, -0.0279, PASS), (22.865, 0.0379, DEGRADED), 50),
        ("DGX1", "maskrcnn", (133.445, 0.0094, PASS), (205.675, -0.0087, PASS), 14),
        ("DGX1", "resnet", (10864.36, -0.0320, PASS), (118.925, 0.0322, PASS), 60),
        ("DGX1", "gnmt", (697133, -0.0421, DEGRADED), (21.278, 0.0354, DEGRADED), 4),
        ("DGX1", "transformer", (33.806, -0.0004, PASS), (19.773, -0.0279, PASS), 3),
        ("DGX1", "minigo", (0.50533, -0.1716, FAIL), (28.425, 0.0378, DEGRADED), 15),
        ("LambdaHyperplaneBasic", "ssd", (4290.82, 0.0040, PASS), (22.855, -0.0136, PASS), 50),
        ("LambdaHyperplaneBasic", "maskrcnn", (139.877, 0.0016, PASS), (196.239, -0.0042, PASS), 14),
        ("LambdaHyperplaneBasic", "resnet", (10415.69, 0.0012, PASS), (123.946, -0.0070, PASS), 60),
        ("LambdaHyperplaneBasic", "gnmt", (705505, 0.0007, PASS), (21.088, -0.0132, PASS), 4),
        ("LambdaHyperplaneBasic", "transformer", (40.033, -0.0002, PASS), (23.197, 0.0003, PASS), 3),
        ("LambdaHyperplaneBasic", "minigo", (0.65980, -0.0003, PASS), (26.707, 0.0760, FAIL), 18),
    ],
)
def test_each_cell_of_both_tables(
    compared: SystemComparison,
    system: str,
    model: str,
    throughput: tuple[float, float, Verdict],
    minutes: tuple[float, float, Verdict],
    epochs: float,
) -> None:
    for kind, (value, deviation, verdict) in (("throughput", throughput), ("minutes", minutes)):
        found = cell(compared, system, model, kind)
        assert found.value == pytest.approx(value, rel=5e-5)
        assert found.judgement is not None
        assert found.judgement.reference is not None
        assert found.value is not None
        assert found.value / found.judgement.reference.value - 1 == pytest.approx(deviation, abs=1e-4)
        assert found.judgement.verdict is verdict
    assert cell(compared, system, model, "epochs").value == epochs


def test_the_logs_called_dgx1_are_the_published_hyperplane(real_logs: Path) -> None:
    """The logs come from NVIDIA's config on Lambda's machine, and fit the row of the untuned HyperPlane."""
    folder = real_logs / "mlperf-0.6"
    logs = sorted(folder.glob("*/*.log"))
    assert len(logs) == 12
    assert all(b"SYS-4029GP-TVRT" in log.read_bytes() for log in logs)
    systems = [select(f"{folder}/*/DGX1.log", folder, none, []), published("HyperPlane")]
    compared = compare_systems(systems, reference="HyperPlane")
    judged = {
        (row.benchmark, row.kind): row.cells[0].judgement for row in compared.rows if row.cells[0].judgement
    }
    assert len(judged) == 12
    assert {one.verdict for one in judged.values()} == {PASS}
    for (benchmark, kind), judgement in judged.items():
        assert judgement.value is not None
        assert judgement.reference is not None
        off = abs(judgement.value / judgement.reference.value - 1)
        # The published throughput of minigo, 0.50, has only two decimals.
        assert kind == "minutes" or off < (0.011 if benchmark == "minigo" else 0.004), benchmark


def test_a_row_without_minutes_judges_throughput_only(real_logs: Path, tmp_path: Path) -> None:
    log = tmp_path / "2xLambdaHyperplaneBasic.log"
    log.write_bytes((real_logs / "mlperf-0.6/single_stage_detector/LambdaHyperplaneBasic.log").read_bytes())
    two = select(str(log), tmp_path, none, [])
    one = select(str(real_logs / "mlperf-0.6/single_stage_detector/DGX1.log"), tmp_path, none, [])
    found = compare_systems([two, one])
    half = cell(found, "2xLambdaHyperplaneBasic", "ssd", "throughput").judgement
    # The log is of one node, and the published throughput of two.
    assert half is not None
    assert half.verdict is FAIL
    assert cell(found, "2xLambdaHyperplaneBasic", "ssd", "minutes").judgement is None


def test_a_single_log_has_no_interval(compared: SystemComparison) -> None:
    assert {ratio.low for row in compared.rows for ratio in row.ratios} == {None}
    assert not compared.left_out


# A run ends at an evaluation, so one run may be shorter or longer by this fraction of its minutes.
def test_expected_differences(compared: SystemComparison) -> None:
    expected = {
        row.benchmark: round(row.cells[0].expected or 0, 3) for row in compared.rows if row.kind == "minutes"
    }
    assert expected == {
        "gnmt": 0.25,
        "maskrcnn": 0.071,
        "minigo": 0.067,
        "resnet": 0.067,
        "ssd": 0.115,
        "transformer": 0.333,
    }


def test_the_result_line_never_says_less(compared: SystemComparison) -> None:
    assert len(compared.counted) == 12
    for one in compared.counted:
        assert one.minutes is not None
        assert one.wall_minutes is not None
        # The difference is the start-up and, for minigo, the games after training.
        assert 0 < one.wall_minutes - one.minutes < (90 if one.benchmark == "minigo" else 1)


def test_batches_of_translation_differ_in_size(compared: SystemComparison) -> None:
    (row,) = (one for one in compared.rows if (one.benchmark, one.kind) == ("transformer", "throughput"))
    assert row.ratios[0].conclusion == "not comparable"
    assert row.notes == (
        "global batch sizes 81,920 and 65,536; times the rate: 2,769,348 and 2,623,624 per second",
    )


def test_lying_logs_enter_no_mean(real_logs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "DGX1"
    folder.mkdir()
    for source in (real_logs / "mlperf-hard").glob("0.6-*.txt"):
        (folder / source.name).write_bytes(source.read_bytes())
    (folder / "good.log").write_bytes((real_logs / "mlperf-0.6/maskrcnn/DGX1.log").read_bytes())
    other = select(str(real_logs / "mlperf-0.6/maskrcnn/LambdaHyperplaneBasic.log"), folder, none, [])
    found = compare_systems([select(str(folder), folder, none, []), other])
    kept = cell(found, "DGX1", "maskrcnn", "throughput")
    assert kept.value == pytest.approx(133.445, rel=1e-4)
    assert kept.left_out == 2
    assert {
        (Path(one.log).name, one.verdict, one.reason.split(" (")[0], one.source.line)
        for one in found.left_out
    } == {
        ("0.6-maskrcnn-nan.txt", FAIL, "the loss is not a number", 742),
        ("0.6-maskrcnn-oom-ret_code-0.txt", FAIL, "a process ran out of memory", 737),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "needed", "step"),
    # The checker compares minigo's timestamp with the saved model's, so it can only be made earlier.
    [("single_stage_detector", 5, 1.0), ("gnmt", 10, 1.0), ("minigo", 10, -0.1)],
)
def test_score_by_the_rules_of_0_6(
    real_logs: Path, tmp_path: Path, compared: SystemComparison, folder: str, needed: int, step: float
) -> None:
    """Make repeats from a real log by moving its end. The first and the last repeat are dropped."""
    raw = (real_logs / f"mlperf-0.6/{folder}/DGX1.log").read_bytes()
    moves = [step * index**2 for index in range(needed)]
    for index, move in enumerate(moves):

        def moved(found: re.Match[bytes], seconds: float = 60 * move) -> bytes:
            return b"%b%.3f%b" % (found[1], float(found[2]) + seconds, found[3])

        log = re.sub(rb"(:::MLL )([0-9.]+)( run_stop)", moved, raw)
        log = re.sub(rb'(eval_result: .*?"timestamp": )([0-9.]+)()', moved, log)
        (tmp_path / f"result_{index}.txt").write_bytes(log)
    score = score_folder(tmp_path, ruleset="0.6.0")
    # The score has the minutes of the repeats, but is unproven, because the repeats are found to be copies.
    assert (score.verdict, score.runs_needed) == (UNPROVEN, needed), score.reasons
    assert any("is a copy of" in reason for reason in score.reasons)
    doubts = (
        "RESULT line",
        "state no seeds",
        "is a copy of",
        "times as fast as",
        "rules 0.6.0",
        "scores stand",
        "dropped",
        "no systems/SYSTEM.json describes the accelerators",
    )
    assert [reason for reason in score.reasons if not any(doubt in reason for doubt in doubts)] == []
    minutes = cell(compared, "DGX1", canonical_benchmark(folder), "minutes").value
    assert minutes is not None
    # MLPerf's own tool reads the same minutes as the comparison.
    assert score.minutes == pytest.approx(minutes + statistics.fmean(moves[1:-1]), abs=1e-3)
    assert score.scaling_factor == 1
    assert "the rules 0.6.0 have no reference points" in " ".join(score.reasons)
