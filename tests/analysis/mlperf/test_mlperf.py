"""Test the score of a folder of MLPerf logs (:mod:`rackproof.analysis.mlperf.score`).

A score is the olympic mean of the runs' minutes, which leaves out the fastest and the slowest run, times a
factor for convergence that is too fast. These tests check this arithmetic, the verdict, which files are
results, whole folders that MLPerf's own tool checks, and that the official scores of real submissions are
reproduced.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackproof.analysis.mlperf import sandbox
from rackproof.analysis.mlperf.score import (
    FolderScore,
    RcpResult,
    RunScore,
    WorkerReport,
    known_rulesets,
    olympic_mean,
    result_files,
    score_folder,
    score_of_report,
)
from rackproof.core.records import Verdict

from .samples import event, fill, result, write


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    """Return the hash and modification time of every file below a folder."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- the arithmetic ------------------------------------------------------------------------------


# Minutes of the runs that ended well, number of failed runs, number of runs that are dropped at each end, and
# mean. A failed run counts as the slowest.
@pytest.mark.parametrize(
    ("minutes", "failed", "drop", "mean"),
    [
        ([3, 1, 2], 0, 1, 2.0),
        ([1, 2, 3, 4, 10], 0, 1, 3.0),
        ([1, 2, 3, 4], 1, 1, 3.0),
        ([1, 2], 1, 1, 2.0),
        ([1, 2, 3], 2, 1, None),
        ([1, 2], 0, 1, None),
        ([1], 1, 1, None),
        ([], 0, 1, None),
        (list(range(40)), 0, 4, 19.5),
        (list(range(36)), 4, 4, 19.5),
        (list(range(35)), 5, 4, None),
    ],
)
def test_olympic_mean(minutes: list[float], failed: int, drop: int, mean: float | None) -> None:
    assert olympic_mean(minutes, failed=failed, drop=drop) == mean


def run(number: int, **changes: object) -> RunScore:
    """Return a good run. Runs 0, 1, 2 … take 10, 11, 12 … minutes."""
    facts = {
        "file": f"result_{number}.txt",
        "sha256": str(number),
        "digest": str(number),
        "minutes": 10.0 + number,
        "status": "success",
        "compliant": True,
        "events": 40,
        "benchmark": "llama2_70b_lora",
        "division": "closed",
        "global_batch_size": 8.0,
    }
    return RunScore.model_validate(facts | changes)


PASSED = RcpResult(applies=True, passed=True, message="RCP found", scaling_factor=1.1)
REJECTED = RcpResult(applies=True, passed=False, message="Missing RCP, please submit RCP with BS = 7")
CRASHED = RcpResult(applies=True, message="the RCP checker crashed: KeyError")
UNASKED = RcpResult(applies=False, message="the rules 0.7.0 have no reference points")


def changed(count: int = 10, **by_number: dict[str, object]) -> tuple[RunScore, ...]:
    """Return runs. An argument ``rN`` has changes of run N."""
    return tuple(run(n, **by_number.get(f"r{n}", {})) for n in range(count))


@pytest.mark.parametrize(
    ("runs", "rcp", "verdict", "minutes", "reason"),
    [
        pytest.param(changed(), PASSED, "pass", 14.5 * 1.1, "", id="ten good runs"),
        pytest.param(changed(), UNASKED, "pass", 14.5, "have no reference points", id="rules without RCP"),
        pytest.param(changed(), REJECTED, "fail", 14.5, "Missing RCP", id="RCP rejected"),
        pytest.param(changed(), CRASHED, "unproven", 14.5, "crashed", id="RCP crashed"),
        pytest.param(
            changed(r2={"status": "aborted"}),
            PASSED,
            "pass",
            (11 + 13 + 14 + 15 + 16 + 17 + 18 + 19) / 8 * 1.1,
            "counted as slowest: result_2.txt ended with 'aborted'",
            id="one failed run",
        ),
        pytest.param(
            changed(r2={"compliant": False, "messages": ("no init_start",)}),
            PASSED,
            "pass",
            (11 + 13 + 14 + 15 + 16 + 17 + 18 + 19) / 8 * 1.1,
            "result_2.txt is not compliant (no init_start)",
            id="one run that is not compliant",
        ),
        pytest.param(
            changed(r1={"minutes": None}),
            PASSED,
            "pass",
            (12 + 13 + 14 + 15 + 16 + 17 + 18 + 19) / 8 * 1.1,
            "result_1.txt has no possible duration",
            id="one run without a duration",
        ),
        pytest.param(
            changed(r2={"status": "aborted"}, r5={"status": "", "minutes": None}),
            PASSED,
            "fail",
            None,
            "2 runs failed, at most 1 may",
            id="two failed runs",
        ),
        pytest.param(
            changed(9), CRASHED, "unproven", None, "9 runs where the rules require", id="one missing"
        ),
        pytest.param(
            changed(11), PASSED, "unproven", None, "11 runs where the rules require", id="one too many"
        ),
        pytest.param(changed(1), PASSED, "unproven", None, "1 run where the rules require", id="one run"),
        pytest.param(
            changed(r3={"events": 0, "status": "", "minutes": None, "compliant": False}),
            PASSED,
            "unproven",
            None,
            "no readable MLPerf event in result_3.txt",
            id="an empty file is a missing run",
        ),
        pytest.param(
            changed(r3={"digest": "7"}),
            PASSED,
            "fail",
            None,
            "result_3.txt and result_7.txt have the same events",
            id="one run twice",
        ),
        pytest.param(
            changed(r3={"compliant": None, "messages": ("the compliance checker crashed",)}),
            PASSED,
            "unproven",
            None,
            "result_3.txt: the compliance checker crashed",
            id="checker crashed",
        ),
        pytest.param(
            changed(r3={"benchmark": "flux1"}), PASSED, "fail", None, "different benchmarks", id="mixed"
        ),
        pytest.param(
            changed(r3={"global_batch_size": 16.0}),
            REJECTED,
            "fail",
            None,
            "different global batch sizes in one folder: 16, 8",
            id="mixed sizes",
        ),
    ],
)
def test_verdict_of_a_folder(
    runs: tuple[RunScore, ...], rcp: RcpResult, verdict: str, minutes: float | None, reason: str
) -> None:
    score = score_of_report(WorkerReport(runs=runs, runs_needed=10, rcp=rcp), folder="x", ruleset="5.1.0")
    assert score.verdict == verdict
    assert score.minutes == (None if minutes is None else pytest.approx(minutes))
    assert reason in "\n".join(score.reasons)
    assert bool(score.reasons) == bool(reason)


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (WorkerReport(), "no number of runs for a benchmark that the logs do not name"),
        (WorkerReport(error="the checks took too long"), "the checks took too long"),
        (
            WorkerReport(runs=changed(3, r0={"benchmark": "chess"})),
            "no number of runs for the benchmark 'chess'",
        ),
    ],
)
def test_what_shows_nothing_is_unproven(report: WorkerReport, reason: str) -> None:
    score = score_of_report(report, folder="x", ruleset="5.1.0")
    assert score.verdict in (Verdict.UNPROVEN, Verdict.FAIL)
    assert score.minutes is None
    assert any(reason in one for one in score.reasons)


RUNS = st.builds(
    run,
    st.integers(0, 12),
    minutes=st.one_of(st.none(), st.floats(0.1, 1e6)),
    status=st.sampled_from(["success", "aborted", ""]),
    compliant=st.sampled_from([True, False, None]),
    events=st.sampled_from([40, 0]),
    digest=st.uuids().map(str),
)
GOOD_RUNS = st.builds(run, st.integers(0, 12), minutes=st.floats(0.1, 1e6), digest=st.uuids().map(str))


@given(
    st.one_of(
        st.lists(GOOD_RUNS, min_size=3, max_size=5),
        st.tuples(RUNS, GOOD_RUNS, GOOD_RUNS).map(list),
        st.lists(st.one_of(RUNS, GOOD_RUNS), max_size=12),
    ),
    st.sampled_from([None, 3, 5]),
    st.sampled_from([None, PASSED, REJECTED, CRASHED, UNASKED]),
)
@settings(deadline=None)
def test_only_what_is_proven_passes(runs: list[RunScore], needed: int | None, rcp: RcpResult | None) -> None:
    score = score_of_report(
        WorkerReport(runs=tuple(runs), runs_needed=needed, rcp=rcp), folder="x", ruleset="5.1.0"
    )
    failed = [one for one in score.runs if not one.scores]
    proven = (
        len(runs) == needed
        and len(failed) <= 1
        and all(one.events and one.compliant is not None for one in runs)
        and rcp in (PASSED, UNASKED)
    )
    assert (score.verdict is Verdict.PASS) == proven
    assert score.minutes is not None or score.verdict is not Verdict.PASS
    assert score.reasons or proven
    if score.olympic_mean_minutes is not None:
        counted = [one.minutes for one in score.runs if one.part == "counted" and one.minutes is not None]
        assert score.olympic_mean_minutes == pytest.approx(sum(counted) / len(counted))
        assert len(counted) == len(runs) - 2


def test_parts_of_runs_add_up() -> None:
    report = WorkerReport(runs=changed(r0={"status": "aborted"}), runs_needed=10, rcp=PASSED)
    parts = [one.part for one in score_of_report(report, folder="x", ruleset="5.1.0").runs]
    assert parts == ["failed", "dropped_fastest", *["counted"] * 8]
    report = WorkerReport(runs=changed(3), runs_needed=3, rcp=PASSED)
    parts = [one.part for one in score_of_report(report, folder="x", ruleset="5.1.0").runs]
    assert parts == ["dropped_fastest", "counted", "dropped_slowest"]


# --- which files, which rules ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        (
            ["result_10.txt", "result_2.txt", "result_01.txt"],
            ["result_01.txt", "result_2.txt", "result_10.txt"],
        ),
        (["result_0.txt", "result_0.log", "250101_1.log", "notes.txt"], ["result_0.txt"]),
        (["result_0", "result_1", "result_0.json", "scaling.json"], ["result_0", "result_1"]),
        (["result_251007143012_1.log", "slurm-12.out"], ["result_251007143012_1.log"]),
        (
            [
                "251007143012123_01.log",
                "251007143012123_02.log",
                "compliance_251007143012123_01.out",
                "x.log",
            ],
            ["251007143012123_01.log", "251007143012123_02.log"],
        ),
        (["DGX1.log", "empty.log", "compliance_checker.log"], ["DGX1.log"]),
        ([".result_0.txt", "README.md"], []),
    ],
)
def test_result_files(tmp_path: Path, present: list[str], chosen: list[str]) -> None:
    for name in present:
        write(tmp_path / name, [] if name == "empty.log" else result())
    (tmp_path / "result_99.txt").mkdir()
    assert [path.name for path in result_files(tmp_path)] == chosen


@pytest.mark.parametrize(
    "name",
    [
        "result_10 (1).txt",
        "result_%s.txt",
        "result_4 slow.txt",
        "result_ä.txt",
        "RESULT_10.TXT",
        "result_\n.txt",
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".log"])
def test_no_name_hides_a_result(name: str, suffix: str, tmp_path: Path) -> None:
    """Otherwise, a slow run with a strange name would be left out of the score."""
    odd = name.replace(".txt", suffix).replace(".TXT", suffix.upper())
    for one in (f"result_0{suffix}", f"result_1{suffix}", odd):
        (tmp_path / one).write_text("x")
    assert odd in [path.name for path in result_files(tmp_path)]


def test_rulesets_come_from_the_package() -> None:
    known = known_rulesets()
    assert known[0] == "0.6.0"
    assert {"0.7.0", "1.0.0", "4.1.0", "5.1.0", "6.1.0"} <= set(known)
    assert list(known) == sorted(known)
    assert known_rulesets("hpc") == ("1.0.0", "2.0.0", "3.0.0")


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"ruleset": "5.2.0"}, ValueError, "5.1.0"),
        ({"ruleset": "../5.1.0"}, ValueError, "5.1.0"),
        ({"usage": "inference"}, ValueError, "training"),
        ({"usage": "hpc"}, ValueError, "3.0.0"),
        ({"timeout_s": 0}, ValueError, "time limit"),
    ],
)
def test_wrong_arguments_name_what_is_known(
    tmp_path: Path, changes: dict[str, object], error: type[Exception], names: str
) -> None:
    with pytest.raises(error, match=names):
        score_folder(tmp_path, **changes)  # type: ignore[arg-type]


def test_a_folder_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="absent is not a folder"):
        score_folder(tmp_path / "absent")
    score = score_folder(tmp_path)
    assert score.verdict is Verdict.UNPROVEN
    assert "no result logs" in score.reasons[0]


# --- whole folders, through the tool ------------------------------------------------------------------


def test_a_good_folder_passes_and_is_left_as_it_was(tmp_path: Path) -> None:
    folder = fill(tmp_path / "results")
    write(folder / "notes.md", ["mine"])
    before = fingerprint(tmp_path)
    score = score_folder(folder)
    assert score.verdict is Verdict.PASS
    assert score.compliant is True
    assert score.benchmark == "llama2_70b_lora"
    assert (score.runs_found, score.runs_needed, score.global_batch_size) == (10, 10, 8.0)
    assert score.olympic_mean_minutes == pytest.approx(10.45)
    assert score.rcp is not None
    assert score.rcp.passed is True
    assert score.rcp.unit == "samples"
    assert score.rcp.submission_mean == 3456
    assert score.minutes == pytest.approx(10.45 * score.scaling_factor)
    assert {one.convergence for one in score.runs} == {3456}
    assert [one.code for one in score.findings] == ["no_description"]
    assert len(score.reasons) == 1
    assert fingerprint(tmp_path) == before
    assert FolderScore.model_validate_json(score.model_dump_json()) == score
    assert [len(row) for row in score.rows()] == [6] * 11


def test_faster_convergence_than_the_reference_is_scaled(tmp_path: Path) -> None:
    score = score_folder(fill(tmp_path, samples=3050))
    assert score.rcp is not None
    assert score.rcp.passed is True
    assert score.rcp.reference_mean is not None
    assert score.scaling_factor == pytest.approx(score.rcp.reference_mean / 3050)
    assert score.minutes == pytest.approx(10.45 * score.rcp.reference_mean / 3050)


def spoil(number: int, lines: Callable[[int], list[str]]) -> Callable[[Path], None]:
    """Return a function that replaces one result of a folder."""
    return lambda folder: write(folder / f"result_{number}.txt", lines(number))


def without(key: str) -> Callable[[int], list[str]]:
    """Return a function that makes a log without the events of one key."""
    return lambda number: [line for line in result(number) if f'"key": "{key}"' not in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "verdict", "mean", "message"),
    [
        pytest.param(
            spoil(3, lambda n: result(n, minutes=10.3, status="aborted", accuracy=0.95)),
            "pass",
            (10.1 + 10.2 + sum(10 + n / 10 for n in range(4, 10))) / 8,
            "ended with 'aborted'",
            id="aborted",
        ),
        pytest.param(
            spoil(0, lambda n: result(n)[:4]),
            "unproven",
            10.55,
            "has no run_stop",
            id="died before it named itself",
        ),
        pytest.param(
            spoil(0, lambda n: [line[:90] if "init_start" in line else line for line in result(n)]),
            "unproven",
            10.55,
            "the log has no init_start",
            id="a damaged event that the rules need",
        ),
        pytest.param(
            spoil(0, lambda n: [*result(n, minutes=10), ":::MLLOG {}", ":::MLLOG 5", ":::MLLOG {"]),
            "pass",
            10.55,
            "Log lines had parsing errors",
            id="damaged events after the end",
        ),
        pytest.param(spoil(0, lambda n: []), "unproven", None, "no readable MLPerf event", id="empty file"),
        pytest.param(
            spoil(0, lambda n: result(1, minutes=10.1)), "fail", None, "they are one run", id="a copy"
        ),
        pytest.param(
            lambda folder: (folder / "result_4.txt").unlink(),
            "unproven",
            None,
            "9 runs where",
            id="missing file",
        ),
        pytest.param(
            spoil(0, lambda n: result(n, minutes=10, batch=16)),
            "fail",
            None,
            "global batch sizes",
            id="other size",
        ),
        pytest.param(
            spoil(0, without("eval_accuracy")),
            "unproven",
            10.55,
            "the RCP checker crashed: UnboundLocalError",
            id="a success that never evaluated",
        ),
        pytest.param(
            spoil(0, lambda n: [line.replace('"value": 0.92', '"value": "0.92"') for line in result(n)]),
            "unproven",
            None,
            "the compliance checker crashed: TypeError",
            id="text where the rules compare numbers",
        ),
        pytest.param(
            spoil(0, lambda n: [*result(n, minutes=10)[:-2], event(0, "run_stop", status="success")]),
            "unproven",
            10.55,
            "no possible duration",
            id="a clock that runs backwards",
        ),
        pytest.param(
            lambda folder: fill(folder, samples=1000), "fail", 10.45, "convergence rejected", id="too good"
        ),
        pytest.param(
            lambda folder: fill(folder, batch=1_000_000),
            "fail",
            10.45,
            "Missing RCP",
            id="no reference point",
        ),
        pytest.param(
            lambda folder: fill(folder, benchmark="rgat_x"), "fail", None, "'rgat_x'", id="unknown benchmark"
        ),
    ],
)
def test_spoilt_folders(
    tmp_path: Path, change: Callable[[Path], object], verdict: str, mean: float | None, message: str
) -> None:
    folder = fill(tmp_path)
    change(folder)
    before = fingerprint(folder)
    score = score_folder(folder)
    assert score.verdict == verdict
    assert score.olympic_mean_minutes == (None if mean is None else pytest.approx(mean))
    assert message in "\n".join((*score.reasons, *(text for one in score.runs for text in one.messages)))
    assert fingerprint(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda folder: None, id="all good"),
        pytest.param(spoil(0, lambda n: result(n, status="aborted", accuracy=0.95)), id="one failed"),
        pytest.param(spoil(9, lambda n: result(n, minutes=1, accuracy=0.93)), id="one not compliant"),
        pytest.param(
            lambda folder: [spoil(n, lambda n: result(n, accuracy=0.93))(folder) for n in (1, 2)],
            id="two failed",
        ),
    ],
)
def test_the_score_is_that_of_the_official_summarizer(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    from mlperf_logging.result_summarizer.result_summarizer import _compute_strong_score_standalone

    folder = fill(tmp_path / "llama2_70b_lora", samples=3050)
    change(folder)
    score = score_folder(folder)
    assert score.rcp is not None
    assert score.scaling_factor > 1 or score.minutes is None
    (folder / "scaling.json").write_text(json.dumps({"scaling_factor": score.scaling_factor}))
    official, _, _ = _compute_strong_score_standalone(
        "llama2_70b_lora", "system", False, str(folder), "training", "5.1.0"
    )
    assert score.minutes == (None if official is None else pytest.approx(official))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "factor", "verdict", "message"),
    [
        ('{"scaling_factor": 1.5}', 1.5, "pass", "the former is used"),
        ('{"scaling_factor": 0.5}', 1.0, "pass", "the latter is used"),
        ('{"scaling_factor": NaN}', 1.0, "unproven", "has no scaling factor"),
        ('["scaling_factor"]', 1.0, "unproven", "has no scaling factor"),
        ("{", 1.0, "unproven", "has no scaling factor"),
        ('{"scaling_factor": 1.0}', 1.0, "pass", ""),
    ],
)
def test_a_factor_in_the_folder_only_ever_slows_a_score_down(
    tmp_path: Path, content: str, factor: float, verdict: str, message: str
) -> None:
    folder = fill(tmp_path)
    (folder / "scaling.json").write_text(content)
    score = score_folder(folder)
    assert (score.scaling_factor, score.verdict) == (factor, verdict)
    assert score.minutes == pytest.approx(10.45 * factor)
    assert message in "\n".join(score.reasons)
    assert (folder / "scaling.json").read_text() == content


def test_a_factor_in_a_pipe_without_a_writer_is_not_waited_for(tmp_path: Path) -> None:
    folder = fill(tmp_path)
    os.mkfifo(folder / "scaling.json")
    assert score_folder(folder).verdict == "unproven"


def test_complaints_name_the_line_of_the_log(tmp_path: Path) -> None:
    lines = [line.replace('"lora_rank", "value": 16', '"lora_rank", "value": 17') for line in result()]
    write(tmp_path / "result_0.txt", ["noise"] * 100 + lines)
    (messages,) = (one.messages for one in score_folder(tmp_path).runs)
    number = 101 + next(index for index, line in enumerate(lines) if "lora_rank" in line)
    assert messages == (f"CHECK for 'lora_rank' failed in line {number}; failed test: v['value'] == 16",)


def test_rules_outside_the_package_are_never_executed(tmp_path: Path) -> None:
    victim = tmp_path / "executed"
    rules = tmp_path / "evil_common.yaml"
    rules.write_text(f"- BEGIN:\n    CODE: \"open({str(victim)!r}, 'w')\"\n")
    climb = "../" * 30 + str(rules).removesuffix("_common.yaml").lstrip("/")
    folder = tmp_path / "results"
    folder.mkdir()
    write(folder / "result_0.txt", [line.replace('"closed"', f'"{climb}"') for line in result()])
    score = score_folder(folder)
    assert not victim.exists()
    assert score.runs[0].compliant is False
    assert "submission_division is not a plain name" in "\n".join(score.reasons)


def test_a_time_limit_is_kept_and_reported(tmp_path: Path) -> None:
    score = score_folder(fill(tmp_path), timeout_s=0.05)
    assert score.verdict is Verdict.UNPROVEN
    assert score.reasons == ("the checks took longer than 0.05 s and were stopped",)


def test_a_worker_that_dies_leaves_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sandbox.worker_environment
    broken = tmp_path / "broken" / "mlperf_logging"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('no tool\\x1b[2J today')")
    monkeypatch.setattr(
        sandbox,
        "worker_environment",
        lambda: real() | {"PYTHONPATH": f"{broken.parent}{os.pathsep}{real()['PYTHONPATH']}"},
    )
    score = score_folder(fill(tmp_path / "results"))
    assert score.verdict is Verdict.UNPROVEN
    assert score.reasons == ("the checks ended early (exit status 1): RuntimeError: no tool today",)


def test_the_worker_sees_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NGC_API_KEY", "secret")
    assert "secret" not in json.dumps(sandbox.worker_environment())


def texts(value: object) -> Iterator[str]:
    """Yield every text in a value read from JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts(list(value.items()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from texts(one)


def test_hostile_text_is_harmless_in_the_score(tmp_path: Path) -> None:
    hostile = "\\u001b]0;owned\\u0007<script>\\u202e"
    write(
        tmp_path / "result_0.txt", [line.replace("success", hostile) for line in result(benchmark="x\x00y")]
    )
    shown = score_folder(tmp_path).model_dump_json()
    assert "<script>" in shown
    assert all(character.isprintable() for text in texts(json.loads(shown)) for character in text)


# --- real logs ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "minutes", "mean", "factor"),
    [("llama2_70b_lora", 1.261, 1.2612, 1.0), ("llama31_8b", 14.25, 14.1242, 1.009233322958813)],
)
def test_the_official_scores_are_reproduced(
    real_logs: Path, name: str, minutes: float, mean: float, factor: float
) -> None:
    folder = real_logs / "mlperf-5.1" / "lambda-gb300-n18" / name
    before = fingerprint(folder)
    score = score_folder(folder, ruleset="5.1.0")
    assert score.verdict is Verdict.PASS
    assert score.compliant is True
    assert score.minutes is not None
    assert float(f"{score.minutes:.4g}") == minutes
    assert score.olympic_mean_minutes == pytest.approx(mean, abs=1e-4)
    assert score.scaling_factor == factor
    assert [one.code for one in score.findings] == ["no_description"]
    assert fingerprint(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log", "ruleset", "minutes", "status", "compliant"),
    [
        ("mlperf-hard/4.1-llama2_70b_lora-damaged-json.txt", "4.1.0", 8.562, "success", False),
        ("mlperf-hard/5.0-stable_diffusion-ansi.txt", "5.0.0", 6.323, "success", True),
        ("mlperf-hard/5.1-crlf-dlrm_dcnv2.txt", "5.1.0", 2.325, "success", True),
        ("mlperf-hard/5.1-dlrm_dcnv2-aborted.txt", "5.1.0", 1.623, "aborted", False),
        ("mlperf-hard/5.1-llama2_70b_lora-bare-cr.txt", "5.1.0", 9.507, "success", True),
        ("mlperf-hard/5.1-llama2_70b_lora-cancelled-no-run_stop.txt", "5.1.0", None, "", False),
        ("mlperf-hard/5.1-rgat-prefetcher-timeout.txt", "5.1.0", None, "", False),
        ("mlperf-hard/0.6-maskrcnn-nan.txt", "0.6.0", None, "", False),
        ("mlperf-hard/0.6-maskrcnn-oom-ret_code-0.txt", "0.6.0", None, "", False),
        ("mlperf-0.6/resnet/DGX1.log", "0.6.0", 118.925, "success", True),
        ("mlperf-0.6/minigo/DGX1.log", "0.6.0", 28.425, "success", True),
    ],
)
def test_single_real_logs(
    real_logs: Path,
    tmp_path: Path,
    log: str,
    ruleset: str,
    minutes: float | None,
    status: str,
    compliant: bool,
) -> None:
    (tmp_path / "result_0.txt").symlink_to(real_logs / log)
    score = score_folder(tmp_path, ruleset=ruleset)
    (one,) = score.runs
    assert one.minutes == (None if minutes is None else pytest.approx(minutes, abs=5e-4))
    assert (one.status, one.compliant) == (status, compliant)
    assert score.verdict is Verdict.UNPROVEN
    assert "1 run where the rules require exactly" in "\n".join(score.reasons)
