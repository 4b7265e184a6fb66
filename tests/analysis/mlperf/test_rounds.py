"""Test how a score finds the round whose rules apply (:mod:`rackproof.analysis.mlperf.rounds`).

A score by the rules of another round is worthless. The round follows from the benchmark and date of the
runs, from the folder's name, or from the launcher's lines. Otherwise, the operator must name it. These tests
check this choice, that logs of other suites are refused, and that a log which is not plain text is named.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path

import pytest
from click.testing import CliRunner

from rackproof.analysis.mlperf.cleaning import clean_log
from rackproof.analysis.mlperf.rounds import RoundEvidence, read_evidence, refusal, round_of
from rackproof.analysis.mlperf.score import known_rulesets, score_folder
from rackproof.cli.main import main
from rackproof.core.records import Verdict
from rackproof.logs import opening, parse_path
from rackproof.logs.encodings import encoding_problem_of

from .samples import START_MS, event, fill, result, write

KNOWN = known_rulesets()


def made(day: str) -> float:
    """Return a moment of a day, in seconds since 1970."""
    return datetime.fromisoformat(f"{day}T12:00:00").replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("benchmarks", "day", "folder", "ruleset"),
    [
        ({"llama2_70b_lora"}, "2025-10-07", "", "5.1.0"),
        ({"llama2_70b_lora"}, "2025-04-20", "", "5.0.0"),
        ({"llama2_70b_lora"}, "2026-10-07", "", ""),
        ({"llama2_70b_lora"}, "2026-10-07", "6.1.0", "6.1.0"),
        ({"llama31_8b"}, "2026-05-02", "", ""),
        ({"flux1"}, "2026-10-01", "", ""),
        ({"gpt_oss_20b"}, "2026-10-01", "", ""),
        ({"qwen35_397b_grpo"}, "2026-10-01", "", "6.1.0"),
        ({"dlrmv4"}, "2026-10-01", "", "6.1.0"),
        ({"gnmt"}, "2020-06-01", "", "0.7.0"),
        ({"rnnt"}, "2022-10-10", "", "2.1.0"),
        ({"retinanet"}, "2026-01-10", "", ""),
        ({"llama2_70b_lora"}, "", "", ""),
        (set(), "", "5.0.0", "5.0.0"),
        (set(), "", "", ""),
    ],
)
def test_the_round_follows_from_the_evidence_or_must_be_named(
    benchmarks: set[str], day: str, folder: str, ruleset: str
) -> None:
    evidence = RoundEvidence(frozenset(benchmarks), made(day) if day else None, folder=folder)
    found = round_of(evidence, KNOWN)
    assert found.ruleset == ruleset
    assert bool(found.origin) == bool(ruleset)
    assert ("--ruleset" in found.problem) != bool(ruleset)


@pytest.mark.parametrize(
    ("below", "ruleset"),
    [
        ("training_results_v5.0/NVIDIA/results/x/llama2_70b_lora", "5.0.0"),
        ("training_results_v6.1/x", "6.1.0"),
        ("mlcommons+training_results_v4.1/x", "4.1.0"),
        ("training_results_v9.9/x", "5.1.0"),
    ],
)
def test_the_path_names_the_round(tmp_path: Path, below: str, ruleset: str) -> None:
    folder = tmp_path / below
    folder.mkdir(parents=True)
    write(folder / "result_0.txt", result())
    assert round_of(read_evidence(folder, [folder / "result_0.txt"]), KNOWN).ruleset == ruleset


@pytest.mark.parametrize(
    ("line", "ruleset"),
    [
        ("MLPERF_RULESET=6.1.0", "6.1.0"),
        ("python3 -m mlperf_logging.compliance_checker --usage training --ruleset 6.0.0 x", "6.0.0"),
        ("export MLPERF_RULESET='4.1.0'", "4.1.0"),
    ],
)
def test_the_launcher_states_the_round(tmp_path: Path, line: str, ruleset: str) -> None:
    write(tmp_path / "result_0.txt", [line, *result()])
    assert round_of(read_evidence(tmp_path, [tmp_path / "result_0.txt"]), KNOWN).ruleset == ruleset


def later(folder: Path, days: int) -> None:
    """Move all logs of a folder by days."""
    for path in folder.iterdir():
        text = path.read_text()
        text = re.sub(
            r'"time_ms": (\d+)', lambda match: f'"time_ms": {int(match[1]) + days * 86_400_000}', text
        )
        path.write_text(text)


def test_runs_of_a_newer_round_are_not_scored_by_an_older_ones_rules(tmp_path: Path) -> None:
    folder = fill(tmp_path)
    later(folder, 365)
    score = score_folder(folder)
    assert (score.verdict, score.ruleset, score.minutes) == (Verdict.UNPROVEN, "", None)
    assert "--ruleset" in score.reasons[0]
    assert "6.1.0" in score.reasons[0]


def test_the_report_states_how_the_round_was_found(tmp_path: Path) -> None:
    answer = CliRunner().invoke(main, ["score", str(fill(tmp_path))])
    assert answer.exit_code == 0
    assert "rules 5.1.0 (by the benchmark and the date of the runs)" in answer.output


@pytest.mark.parametrize(
    ("name", "ruleset"),
    [("dlrmv4", "5.1.0"), ("rnnt", "5.1.0"), ("gpt_oss_20b", "5.0.0"), ("flux1", "4.1.0")],
)
def test_a_round_without_the_benchmark_scores_nothing(tmp_path: Path, name: str, ruleset: str) -> None:
    write(tmp_path / "result_0.txt", result(benchmark=name))
    score = score_folder(tmp_path, ruleset=ruleset)
    assert score.verdict.gates
    assert "other_round" in {one.code for one in score.findings}


@pytest.mark.parametrize("name", ["cosmoflow", "deepcam", "oc20", "openfold"])
def test_hpc_is_named_and_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / "result_0.txt", result(benchmark=name))
    for ruleset in (None, "5.1.0"):
        score = score_folder(tmp_path, ruleset=ruleset)
        assert score.verdict is Verdict.UNPROVEN
        assert "MLPerf HPC" in score.reasons[0]
        assert "--usage hpc" in score.reasons[0]


@pytest.mark.parametrize(
    ("name", "ruleset"), [("openfold", "3.0.0"), ("oc20", ""), ("cosmoflow", ""), ("a_new_one", "")]
)
def test_a_benchmark_of_only_one_round_of_hpc_shows_this_round(name: str, ruleset: str) -> None:
    known = ("0.7.0", "1.0.0", "3.0.0")
    chosen = round_of(RoundEvidence(frozenset({name})), known, "hpc")
    assert (chosen.ruleset, chosen.origin) == (ruleset, "the benchmark" if ruleset else "")


def test_the_operator_chooses_only_among_rounds_of_hpc_with_the_benchmark() -> None:
    chosen = round_of(RoundEvidence(frozenset({"oc20"})), ("0.7.0", "1.0.0", "3.0.0"), "hpc")
    assert "(1.0.0, 3.0.0)" in chosen.problem


def test_training_is_refused_with_usage_hpc(tmp_path: Path) -> None:
    write(tmp_path / "result_0.txt", result())
    assert "MLPerf Training" in score_folder(tmp_path, usage="hpc", ruleset="3.0.0").reasons[0]


DETAIL = ':::MLLOG {"key": "loadgen_version", "value": "5.1", "time_ms": 0.01, "metadata": {}}'
SUMMARY = "================================================\nMLPerf Results Summary\nSUT name : PySUT"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mlperf_log_detail.txt", DETAIL),
        ("mlperf_log_summary.txt", SUMMARY),
        ("result_0.txt", DETAIL),
        ("run.log", DETAIL),
        ("mlperf_log_accuracy.json", "[]"),
    ],
)
def test_inference_is_named_and_refused(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path / name, [text])
    for ruleset in (None, "5.1.0"):
        score = score_folder(tmp_path, ruleset=ruleset)
        assert score.verdict is Verdict.UNPROVEN
        assert "MLPerf Inference" in score.reasons[0]


def test_damaged_and_strange_logs_show_no_round(tmp_path: Path) -> None:
    lines = [
        ":::MLLOG {",
        ':::MLLOG {"key": "submission_benchmark"}',
        event(START_MS, "submission_benchmark", ["x"]),
        ':::MLLOG {"key": "run_start", "time_ms": 1e400}',
        ':::MLLOG {"key": "run_start", "time_ms": 1e300}',
    ]
    write(tmp_path / "result_0.txt", lines)
    found = round_of(read_evidence(tmp_path, [tmp_path / "result_0.txt", tmp_path / "absent"]), KNOWN)
    assert found.ruleset == ""


def test_a_benchmark_that_may_be_training_is_not_refused() -> None:
    assert refusal(RoundEvidence(frozenset({"bert"})), "training") == ""
    assert refusal(RoundEvidence(frozenset({"a_new_one"})), "training") == ""


def zipped(text: bytes) -> bytes:
    """Return a zip archive with a log."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("result_3.txt", text)
    return archive.getvalue()


UNREADABLE: dict[str, Callable[[bytes], bytes]] = {
    "result_3.txt.zst": lambda text: b"\x28\xb5\x2f\xfd" + gzip.compress(text),
    "result_3.txt.zip": zipped,
    "result_5.txt.gz": lambda text: gzip.compress(text.decode().encode("utf-16")),
    "result_6.txt.xz": lambda text: lzma.compress(gzip.compress(text)),
    "result_3.txt": lambda text: text.decode().encode("utf-16"),
    "result_03.log": lambda text: text.decode().encode("utf-16-le"),
    "result_4.txt": lambda text: text.decode().encode("utf-16-be"),
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("others", [0, 2])
def test_a_log_without_plain_text_is_named_with_a_remedy(tmp_path: Path, name: str, others: int) -> None:
    text = result(benchmark="llama31_8b")
    for number in range(others):
        write(tmp_path / f"result_{number}.txt", text)
    write(tmp_path / "plain", text)
    (tmp_path / name).write_bytes(UNREADABLE[name]((tmp_path / "plain").read_bytes()))
    (tmp_path / "plain").unlink()
    score = score_folder(tmp_path)
    assert score.verdict.gates
    (reason,) = [one for one in score.reasons if "is not read" in one]
    assert reason.startswith(f"{name} is not read: it is ")
    assert any(program in reason for program in ("gunzip", "unzip", "unzstd", "iconv"))
    assert parse_path(tmp_path / name).verdict is Verdict.UNPROVEN


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


@pytest.mark.parametrize(
    ("name", "endings"),
    [
        ("result_{}.txt", (".gz", ".xz", ".bz2")),
        ("result_0{}.log", (".xz",)),
        ("251007123456_{}.log", (".bz2",)),
        ("run{}.txt", ("", ".gz")),
    ],
)
def test_compressed_logs_are_scored_as_plain_ones(
    tmp_path: Path, name: str, endings: tuple[str, ...]
) -> None:
    for path, ending in zip(sorted(fill(tmp_path, name=name).iterdir()), cycle(endings)):
        text = path.read_bytes()
        path.unlink()
        path.with_name(path.name + ending).write_bytes(PACKED[ending](text) if ending else text)
    packed = score_folder(tmp_path, ruleset="5.1.0")
    assert packed.verdict is Verdict.PASS, packed.reasons
    # This is the mean of 10.1 to 10.8 minutes.
    assert (packed.minutes, packed.runs_found) == (pytest.approx(10.45), 10)


def cut(data: bytes) -> bytes:
    """Return compressed bytes without their last third."""
    return data[: len(data) * 2 // 3]


@pytest.mark.parametrize(
    ("ending", "damage"),
    [
        (".gz", cut),
        (".xz", lambda data: data[:-5]),
        (".bz2", lambda data: data[:40] + bytes(20) + data[60:]),
        (".gz", lambda data: data[:7]),
    ],
)
def test_a_damaged_compressed_log_gives_no_pass(
    tmp_path: Path, ending: str, damage: Callable[[bytes], bytes]
) -> None:
    folder = fill(tmp_path)
    log = folder / "result_9.txt"
    (folder / f"result_9.txt{ending}").write_bytes(damage(PACKED[ending](log.read_bytes())))
    log.unlink()
    assert score_folder(folder, ruleset="5.1.0").verdict.gates


@pytest.mark.parametrize("ending", PACKED)
def test_a_log_that_unpacks_to_too_much_is_a_finding(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MOST_UNPACKED", 1 << 16)
    log = tmp_path / f"result_0.txt{ending}"
    text = "\n".join(result()).encode() + b"\n" + b"x" * (1 << 20)
    log.write_bytes(PACKED[ending](text))
    cleaned = clean_log(log, tmp_path / "copy", ruleset="5.1.0")
    assert cleaned.events
    assert "log_not_unpacked" in {one.code for one in parse_path(log).findings}
    assert encoding_problem_of(log) == ""


def test_a_benchmark_that_the_round_lacks_is_unproven_and_no_failure(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / f"result_{number}.txt", result(benchmark="llama31_8b"))
    for ruleset in ("3.1.0", "4.0.0", "4.1.0", "5.0.0"):
        score = score_folder(tmp_path, ruleset=ruleset)
        assert score.verdict is Verdict.UNPROVEN
        assert "name the round with --ruleset" in score.reasons[0]


@pytest.mark.parametrize("time", ["9" * 400, "-" + "9" * 400, "1e999", "NaN"])
def test_an_impossible_start_is_no_evidence_of_a_round(tmp_path: Path, time: str) -> None:
    log = tmp_path / "result_0.txt"
    log.write_text(f':::MLLOG {{"key": "run_start", "time_ms": {time}, "value": null, "metadata": {{}}}}\n')
    assert read_evidence(tmp_path, [log]).first is None
    assert not round_of(read_evidence(tmp_path, [log]), KNOWN).ruleset
