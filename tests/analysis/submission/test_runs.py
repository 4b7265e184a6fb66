"""Test which runs a submission takes, and what it reads of them (:mod:`rackproof.analysis.submission.runs`).

``rackproof submission --latest`` takes the newest runs of a benchmark, whatever their verdict. These tests
check this choice, that deleted newer runs are noticed, and which logs, descriptions and scripts of a run are
used. No process is started.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rackproof.analysis.submission.models import ChosenRun, Issue, SubmissionError
from rackproof.analysis.submission.packaging import code_files
from rackproof.analysis.submission.runs import (
    by_benchmark,
    examine_run,
    latest_runs,
    result_log,
    runs_gone,
)
from rackproof.core.records import LogFile, Verdict
from rackproof.jobs.bench.import_logs import import_logs
from rackproof.logs.printed_system import keys_that_differ, printed_systems_of
from rackproof.store.history.store import open_store
from rackproof.store.run_folder import write_run

from .corpus import PRINTED, all_runs, make_run, make_runs, node, write_log


def test_the_newest_runs_are_taken_whatever_their_verdict(tmp_path: Path) -> None:
    make_runs(tmp_path, 4)
    make_run(tmp_path, 4, verdict=Verdict.FAIL)
    make_run(tmp_path, 5, benchmark="gpt_oss_20b")
    found = latest_runs(tmp_path, ["llama2_70b_lora"], 2)
    assert [run.seeds for run, _ in found] == [(103,), (104,)]
    assert [folder for _, folder in found] == [tmp_path / run.run_id for run, _ in found]


@pytest.mark.parametrize("gone", [(3,), (2, 3), (1, 3), (0,)])
def test_newer_runs_whose_folders_are_gone_are_an_issue(gone: tuple[int, ...], tmp_path: Path) -> None:
    """Otherwise, older runs could be submitted as the newest after newer ones were deleted."""
    runs = make_runs(tmp_path, 4)
    with open_store(tmp_path / "history.sqlite") as store:
        store.keep_many(runs)
        known = store.runs(limit=10)
    for number in gone:
        shutil.rmtree(tmp_path / runs[number].run_id)
    names = ["llama2_70b_lora"]
    issues = runs_gone(tmp_path, names, latest_runs(tmp_path, names, 2), known)
    if gone == (0,):  # this run is older than those that are taken
        assert issues == []
        return
    assert [(issue.code, issue.verdict) for issue in issues] == [("run_gone", Verdict.UNPROVEN)]
    assert runs[3].run_id in issues[0].message


def test_a_folder_without_its_record_is_an_issue(tmp_path: Path) -> None:
    runs = make_runs(tmp_path, 3)
    (tmp_path / runs[2].run_id / "run.json").unlink()
    (tmp_path / "notes").mkdir()
    names = ["llama2_70b_lora"]
    (issue,) = runs_gone(tmp_path, names, latest_runs(tmp_path, names, 2), ())
    assert (issue.code, issue.verdict, runs[2].run_id in issue.message) == (
        "run_gone",
        Verdict.UNPROVEN,
        True,
    )


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("20250101T000000Z-bert-0a1b2c", True),
        ("old-bert-run", True),
        ("20250101T000000Z-distil-bert-0a1b2c", False),
        ("20250101T000000Z-bert-large-0a1b2c", False),
        ("20250101T000000Z-gemm-0a1b2c", False),
    ],
)
def test_only_folders_of_the_benchmark_are_lost_runs(tmp_path: Path, name: str, counts: bool) -> None:
    (tmp_path / name).mkdir()
    issues = runs_gone(tmp_path, ["bert"], [], ())
    assert bool(issues) is counts


def test_imported_runs_are_ordered_by_their_logs(tmp_path: Path) -> None:
    """An imported run and its id have no time."""
    source = tmp_path / "source"
    for name, number in (("a.log", 3), ("b.log", 1), ("c.log", 2)):
        write_log(source / name, number)
    import_logs(source, tmp_path / "results")
    found = latest_runs(tmp_path / "results", ["llama2_70b_lora"], 2)
    assert [run.seeds for run, _ in found] == [(102,), (103,)]
    chosen = [examine_run(run, folder) for run, folder in all_runs(tmp_path / "results")]
    (group,) = by_benchmark(one for one in chosen if isinstance(one, ChosenRun)).values()
    assert [one.stated["seed"] for one in group] == ["101", "102", "103"]


def test_runs_can_be_taken_by_the_sku_of_their_nodes(tmp_path: Path) -> None:
    make_runs(tmp_path, 2)
    make_run(tmp_path, 2, nodes=(node("n1"), node("n2").model_copy(update={"sku": "h100"})))
    assert len(latest_runs(tmp_path, ["llama2_70b_lora"], 9, sku="b200")) == 2
    with pytest.raises(SubmissionError, match="no runs of llama2_70b_lora on nodes of the model gb300"):
        latest_runs(tmp_path, ["llama2_70b_lora"], 9, sku="gb300")


def test_a_benchmark_without_runs_is_an_error(tmp_path: Path) -> None:
    make_run(tmp_path, 0)
    with pytest.raises(SubmissionError, match="no runs of flux1; it has llama2_70b_lora"):
        latest_runs(tmp_path, ["flux1"], 1)


def test_the_log_with_the_events_is_the_result_log(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0)
    (log,) = run.logs
    other = LogFile(path="logs/slurm-17.out", sha256="0" * 64, size_bytes=1, format="nccl_tests")
    twin = log.model_copy(update={"path": "logs/copy.log"})
    assert result_log(run.model_copy(update={"logs": (other, log)})) == log
    assert result_log(run.model_copy(update={"logs": (twin, log)})) == log
    assert result_log(run.model_copy(update={"logs": (twin, twin)})) is None
    assert result_log(run.model_copy(update={"logs": ()})) is None
    unclear = examine_run(run.model_copy(update={"logs": (twin, twin)}), tmp_path / run.run_id)
    assert isinstance(unclear, Issue)
    assert unclear.code == "no_result_log"
    assert unclear.run == run.run_id


def test_a_log_too_large_for_a_repository_is_an_issue(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0)
    path = tmp_path / run.run_id / run.logs[0].path
    with path.open("r+b") as stream:
        stream.truncate(51 << 20)
    found = examine_run(run, tmp_path / run.run_id)
    assert isinstance(found, Issue)
    assert (found.code, found.verdict) == ("log_too_large", Verdict.FAIL)


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (b':::SYSJSON {"framework": "a"}\n', {"framework": "a"}),
        (b'0: :::SYSJSON {"framework": "a"}\r\n', {"framework": "a"}),
        (b'+ echo \':::SYSJSON {"framework": "a"}\'\n', {}),
        (b'text :::SYSJSON {"framework": "a"}\n', {}),
        (b':::SYSJSON {"framework": \n:::SYSJSON {"framework": "b"}', {"framework": "b"}),
        (b':::SYSJSON {broken}\n:::SYSJSON {"framework": "b"}\n', {"framework": "b"}),
        (b':::SYSJSON {"a": "", "b": null, "c": true, "d": [1], "e": "UNKNOWN_X", "f": 4}\n', {"f": "4"}),
        (b':::SYSJSON {"a": "\\u001b[31mred\\u202e"}\n', {"a": "red"}),
        (b':::SYSJSON {"a\\u001b[31mred\\u202e": "1"}\n', {"ared": "1"}),
        (b':::SYSJSON {"o": {"a\\u001b[31mred": "1"}}\n', {"o": {"ared": "1"}}),
        (b":::SYSJSON [1]\n", {}),
        (b'{"a": ' * 50_000, {}),
        (b":::SYSJSON " + b'{"a": ' * 9_000 + b"}\n", {}),
        (b"", {}),
    ],
)
def test_the_system_that_a_run_script_prints_is_read(log: bytes, found: dict[str, object]) -> None:
    assert printed_systems_of(log) == ([found] if found else [])


def test_different_descriptions_in_one_log_are_all_read() -> None:
    lines = [b":::SYSJSON " + json.dumps({"number_of_nodes": nodes}).encode() for nodes in ("8", "16", "8")]
    found = printed_systems_of(b"\n".join([lines[0], b"0: " + lines[0], *lines]))
    assert found == [{"number_of_nodes": "8"}, {"number_of_nodes": "16"}]
    assert keys_that_differ(found) == ["number_of_nodes"]
    assert keys_that_differ(found[:1]) == keys_that_differ([]) == []
    assert keys_that_differ([{"a": "1"}, {}]) == ["a"]


def test_a_hostile_log_costs_no_time() -> None:
    # If the time grew with the square of the length, this would take hours.
    assert printed_systems_of(b":::SYSJSON {" * 400_000) == []
    assert printed_systems_of(b" " * 5_000_000) == []


def test_a_chosen_run_has_the_values_of_its_record_and_log(tmp_path: Path) -> None:
    run = make_run(tmp_path, 3)
    found = examine_run(run, tmp_path / run.run_id)
    assert isinstance(found, ChosenRun)
    assert found.benchmark == found.stated["submission_benchmark"] == "llama2_70b_lora"
    assert found.system["accelerators_per_node"] == PRINTED["accelerators_per_node"]
    assert found.path.read_bytes()[:8] == b"+ export"
    # The log has the rules' name of the benchmark. A definition may have another name.
    renamed = run.model_copy(update={"benchmark": "my-llama2"})
    write_run(renamed, tmp_path / run.run_id)
    assert by_benchmark([ChosenRun(renamed, found.folder, found.log, 0, found.stated)]).keys() == {
        "llama2_70b_lora"
    }


def test_the_code_of_a_run_has_its_scripts_and_configs(tmp_path: Path) -> None:
    scripts = {
        "config_B200_2x8.sh": "x",
        "run.sub": "x",
        "scripts/train.py": "x",
        "Dockerfile": "x",
        "requirements.txt": "x",
        ".hidden.sh": "no",
        ".git/hook.sh": "no",
        "with space.sh": "no",
        "report.html": "no",
        "data.bin": "no",
        "logs/step.py": "x",
    }
    run = make_run(tmp_path, 0, scripts=scripts)
    folder = tmp_path / run.run_id
    (folder / "link.sh").symlink_to(folder / "run.sub")
    found = examine_run(run, folder)
    assert isinstance(found, ChosenRun)
    assert set(code_files(found)) == {name for name, text in scripts.items() if text == "x"}
    assert json.loads((folder / "run.json").read_text())["run_id"] == run.run_id
