"""Test import_logs, which makes runs from logs that were made elsewhere.

``rackproof import`` calls it with a file or folder. The tests show what such a run has, that the same log
is imported once, which files are skipped and named, and which logs are unproven: copies, cut logs, logs
without work, and logs of a wrong age.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rackproof.analysis.importing import NoLogsError
from rackproof.core.records import Verdict
from rackproof.jobs.bench.import_logs import import_logs
from rackproof.store.run_folder import ResultsError, read_run
from tests.cli.conftest import NOW, mllog
from tests.logs import log_samples as samples

Log = Callable[..., Path]


@pytest.fixture(autouse=True)
def _own_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the history in the results folder."""
    monkeypatch.delenv("RACKPROOF_DATABASE_URL", raising=False)


def test_a_run_has_the_values_of_its_log(log: Log, tmp_path: Path) -> None:
    (done,) = import_logs(log().parent, tmp_path / "results").imported
    run = done.run
    assert (run.benchmark, run.provenance, run.verdict) == ("llama2_70b_lora", "imported", Verdict.PASS)
    assert (run.parameters, run.seeds) == ({"batch_size": 8}, (7,))
    assert {one.name for one in run.measurements} >= {"time_to_train", "eval_accuracy"}
    assert run.reasons
    assert run.nodes == ()
    assert read_run(Path(done.folder)) == run
    (kept,) = run.logs
    assert (Path(done.folder) / kept.path).read_bytes() == log().read_bytes()
    assert {one.source.file for one in run.measurements} == {kept.path}


def test_the_same_log_again_is_the_same_run(log: Log, tmp_path: Path) -> None:
    results = tmp_path / "results"
    (first,) = import_logs(log().parent, results).imported
    (second,) = import_logs(log().parent, results).imported
    assert (first.known, second.known) == (False, True)
    assert first.run.run_id == second.run.run_id
    assert len([path for path in results.iterdir() if path.is_dir() and not path.name.startswith(".")]) == 1


def test_the_same_log_is_the_same_run_whatever_folder_is_named(log: Log, tmp_path: Path) -> None:
    path, results = log("a/b/result_0.txt"), tmp_path / "results"
    places = [tmp_path / "logs", path.parent.parent, path.parent, path]
    done = [one for place in places for one in import_logs(place, results).imported]
    assert len({one.run.run_id for one in done}) == 1
    assert [one.known for one in done] == [False, True, True, True]


def test_runs_are_not_imported_again_from_the_results(log: Log, tmp_path: Path) -> None:
    results = tmp_path / "logs" / "results"
    log()
    (done,) = import_logs(tmp_path / "logs", results).imported
    assert [one.run.run_id for one in import_logs(tmp_path / "logs", results).imported] == [done.run.run_id]
    for place in (results, Path(done.folder), Path(done.folder, done.run.logs[0].path)):
        with pytest.raises(NoLogsError, match="results folder"):
            import_logs(place, results)


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00", "²", "1e308", "9" * 400, "."]
)
def test_an_impossible_start_in_a_log_is_ignored(log: Log, tmp_path: Path, moment: str) -> None:
    path = log()
    event = '{"time_ms": 1, "event_type": "POINT_IN_TIME", "key": "started", "value": "%s"}'
    path.write_text(f":::MLLOG {event % moment}\n{path.read_text()}")
    (done,) = import_logs(path, tmp_path / "results").imported
    assert done.run.started is None


def test_folders_below_are_read_and_hidden_ones_are_not(log: Log, tmp_path: Path) -> None:
    for name in (
        "a/result_0.txt",
        "a/result_10.txt",
        "a/result_2.txt",
        "b/c/x.log",
        ".git/x.log",
        "a/.x.log",
    ):
        log(name, minutes=1 + len(name) / 10 + name.count("2"))
    (tmp_path / "logs/link.log").symlink_to(tmp_path / "logs/a/result_0.txt")
    done = import_logs(tmp_path / "logs", tmp_path / "results").imported
    names = [one.run.description.removeprefix(f"imported from {tmp_path}/logs/") for one in done]
    assert names == ["a/result_0.txt", "a/result_2.txt", "a/result_10.txt", "b/c/x.log"]


@pytest.mark.parametrize(
    ("name", "content", "imported"),
    [
        ("broken.log", b"", True),
        ("result_3.txt", b"\x00\xff garbage", True),
        ("slurm-17.out", b"slurmstepd: error\n", True),
        ("README.md", b"# Results\n", False),
        ("system.json", b"{}", False),
    ],
)
def test_a_broken_log_is_unproven_and_other_files_are_passed_over(
    name: str, content: bytes, imported: bool, log: Log, tmp_path: Path
) -> None:
    log("good.log").with_name(name).write_bytes(content)
    result = import_logs(tmp_path / "logs", tmp_path / "results")
    verdicts = {Path(one.run.logs[0].path).name: one.run.verdict for one in result.imported}
    assert verdicts["good.log"] is Verdict.PASS
    assert verdicts.get(name) is (Verdict.UNPROVEN if imported else None)
    assert bool(result.skipped) is not imported


def test_a_copied_log_is_unproven(log: Log, tmp_path: Path) -> None:
    log("system-a/result_0.txt")
    log("system-b/result_0.txt")
    first, second = (one.run for one in import_logs(tmp_path / "logs", tmp_path / "results").imported)
    assert first.verdict is Verdict.PASS
    assert second.verdict is Verdict.UNPROVEN
    assert "system-a/result_0.txt" in second.reasons[0]
    assert first.run_id != second.run_id


def test_a_benchmark_that_no_log_states_has_the_name_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "all-reduce"
    folder.mkdir()
    (folder / "x.log").write_text("nothing known")
    (done,) = import_logs(folder, tmp_path / "results").imported
    assert done.run.benchmark == "all-reduce"
    (named,) = import_logs(folder, tmp_path / "results", benchmark="other").imported
    assert named.run.benchmark == "other"


def test_hostile_names_stay_in_the_folder(log: Log, tmp_path: Path) -> None:
    path = log("evil \x1b[31m$(id)\n<b>.log")
    path.write_text(path.read_text().replace("llama2_70b_lora", "../../../etc/x"))
    (done,) = import_logs(path.parent, tmp_path / "results").imported
    assert Path(done.folder).resolve().parent == (tmp_path / "results").resolve()
    assert [one.name for one in (Path(done.folder) / "logs").iterdir()] == ["evil-id-b-.log"]


def test_a_folder_without_logs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoLogsError, match="does not exist"):
        import_logs(tmp_path / "gone", tmp_path / "results")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoLogsError, match="no file in it is a log"):
        import_logs(tmp_path / "empty", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_results_folder_that_cannot_be_written_is_an_error(log: Log, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(ResultsError, match="results"):
        import_logs(log().parent, tmp_path / "results")


def test_a_database_that_is_down_loses_nothing(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RACKPROOF_DATABASE_URL", "postgresql://u:secret@127.0.0.1:9/none?connect_timeout=1")
    (done,) = import_logs(log().parent, tmp_path / "results").imported
    assert done.history
    assert "secret" not in done.history
    assert read_run(Path(done.folder)) == done.run


def test_the_real_logs_get_their_right_verdicts(real_logs: Path, tmp_path: Path) -> None:
    done = import_logs(real_logs / "mlperf-hard", tmp_path / "results").imported
    verdicts = {Path(one.run.logs[0].path).name: one.run.verdict for one in done}
    assert len(verdicts) == 11
    for lying in ("0.6-maskrcnn-nan.txt", "0.6-maskrcnn-oom-ret_code-0.txt", "5.1-dlrm_dcnv2-aborted.txt"):
        assert verdicts[lying] is Verdict.FAIL
    assert verdicts["5.1-llama2_70b_lora-bare-cr.txt"] is Verdict.PASS
    reasons = {Path(one.run.logs[0].path).name: one.run.reasons[0] for one in done}
    # Two tracebacks come first in that log. The reason is their cause.
    assert reasons["0.6-maskrcnn-oom-ret_code-0.txt"].startswith("a process ran out of memory (")
    assert reasons["0.6-maskrcnn-oom-ret_code-0.txt"].endswith(":737)")
    assert reasons["0.6-maskrcnn-nan.txt"].startswith("the loss is not a number (")


@pytest.mark.parametrize("target", ["elsewhere.log", "gone.log", "other"])
def test_a_link_among_logs_is_named_and_not_followed(log: Log, tmp_path: Path, target: str) -> None:
    folder = log().parent
    (tmp_path / "elsewhere.log").write_text("no log at all\n")
    (folder / "linked.log").symlink_to(tmp_path / target)
    (folder / ".hidden.log").write_text("total images/sec: nan\n")
    done = import_logs(folder, tmp_path / "results")
    assert len(done.imported) == 1
    names = sorted(Path(one.partition(": ")[0]).name for one in done.unread)
    assert names == [".hidden.log", "linked.log"]
    assert any("hidden" in one for one in done.unread)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("node07.log", "gone"),
        ("node07.log", "elsewhere/job.log"),
        ("node07.log", "logs/.kept"),
        ("node07.log", "logs/node07.log"),
        ("slurm-7.out.gz", "gone.gz"),
        ("rank_3.txt", "elsewhere/rank"),
        ("smi.xml", "gone.xml"),
        ("latest", "elsewhere/job.log"),
        ("nodes", "elsewhere"),
        ("nodes", "."),
        ("nodes", "texts"),
        (".node07.log", ""),
        (".result_3.txt", ""),
        ("._node07.log", ""),
        (".trash/node07.log", ""),
    ],
)
def test_a_log_that_is_left_out_makes_the_import_unproven(
    name: str, target: str, log: Log, tmp_path: Path
) -> None:
    path = log().parent / name
    for other in ("elsewhere/job.log", "elsewhere/rank", "logs/.kept", "texts/deep/rank_3.txt"):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_text("total images/sec: nan\n")
    path.parent.mkdir(exist_ok=True)
    if target:
        path.symlink_to(tmp_path / target)
    else:
        path.write_text("total images/sec: nan\n")
    result = import_logs(tmp_path / "logs", tmp_path / "results")
    assert len(result.imported) == 1
    assert [name.split("/")[0] in one for one in result.unread] == [True]


def test_a_hidden_fifo_is_named_and_not_opened(log: Log, tmp_path: Path) -> None:
    folder = log().parent
    for name in (".node07.log", "._node07.log"):
        os.mkfifo(folder / name)
    result = import_logs(folder, tmp_path / "results")
    assert (len(result.imported), len(result.unread)) == (1, 2)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("latest", "logs"),
        ("latest.log", "logs/a/result_0.txt"),
        ("latest", "logs/a"),
        ("results", "results"),
        ("README.md", "README.md"),
        ("run.sh", "gone.sh"),
        ("libnccl.so", "libnccl.so.2"),
        ("images", "images"),
        (".DS_Store", ""),
        (".gitignore", ""),
        (".git/job.log", ""),
        (".config/settings.json", ""),
        ("._result_0.txt", ""),
        ("._node07.log", ""),
    ],
)
def test_links_and_hidden_files_that_are_no_logs_or_are_read_anyway_do_no_harm(
    name: str, target: str, log: Log, tmp_path: Path
) -> None:
    folder = log("a/result_0.txt").parent.parent
    (tmp_path / "images").mkdir()
    (tmp_path / "images/cat.jpg").touch()
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if target:
        path.symlink_to(tmp_path / target)
    else:
        path.write_bytes(b"\0\x05\x16\x07\0\x02\0\0Mac OS X")
    result = import_logs(folder, tmp_path / "results")
    assert [done.run.verdict for done in result.imported] == [Verdict.PASS]
    assert result.unread == ()


@pytest.mark.parametrize("name", ["job.log", "deep/er/slurm-9.out", "result_9.txt"])
def test_folders_that_are_left_out_are_named(log: Log, tmp_path: Path, name: str) -> None:
    folder = log().parent
    for place in (folder / ".trash", folder / ".config", tmp_path / "elsewhere"):
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text("torch.cuda.OutOfMemoryError: CUDA out of memory\n")
    (folder / ".config" / name).rename(folder / ".config/settings.json")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    done = import_logs(folder, tmp_path / "results")
    assert len(done.imported) == 1
    assert sorted(Path(one.partition(": ")[0]).name for one in done.unread) == [".trash", "linked"]


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\t\n", b"\0" * 4096])
@pytest.mark.parametrize("name", ["rank_9.txt", "OUT.TXT", "rank.log", "job.out", "result_9.txt"])
def test_an_emptied_log_is_a_run_that_is_unproven(
    name: str, content: bytes, log: Log, tmp_path: Path
) -> None:
    folder = log().parent
    (folder / name).write_bytes(content)
    done = import_logs(folder, tmp_path / "results")
    assert not done.skipped
    assert sorted(one.run.verdict.value for one in done.imported) == ["pass", "unproven"]


def imported(tmp_path: Path, data: str | bytes, *, old: bool = False) -> tuple[Verdict, set[str]]:
    """Return the verdict of an imported log, and the codes of the findings that have a verdict."""
    path = tmp_path / "logs/result_0.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    (done,) = import_logs(path, tmp_path / "results", old=old).imported
    return done.run.verdict, {one.code for one in done.run.findings if one.verdict}


def only(text: str | bytes, *keys: str) -> str:
    """Return the lines of a log that have one of these texts."""
    lines = (text.decode() if isinstance(text, bytes) else text).splitlines(True)
    return "".join(line for line in lines if any(key in line for key in keys))


START_AND_END = ("run_start", "run_stop")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (only(mllog(), *START_AND_END), {"unnamed_benchmark", "no_evaluation"}),
        (only(mllog(), *START_AND_END, "eval_accuracy"), {"unnamed_benchmark", "no_target"}),
        (only(mllog(), *START_AND_END, "global_batch_size", "seed"), {"unnamed_benchmark", "no_evaluation"}),
        (
            only(mllog(), *START_AND_END, "benchmark").replace("llama2_70b_lora", "stable_diffusion"),
            {"course_incomplete", "hyperparameters_contradict"},
        ),
        (only(samples.MLL06, *START_AND_END), {"unnamed_benchmark", "no_evaluation"}),
        (only(samples.MLL06, *START_AND_END, "Iteration:"), {"unnamed_benchmark", "no_evaluation"}),
        (
            "Epoch[0] Time cost=21.000\nfit 43.4\n",
            {"no_work"},
        ),
        (only(samples.MXNET, "num_epochs", "Time cost", "Validation"), {"no_work"}),
    ],
)
def test_a_log_without_its_course_is_unproven(text: str, expected: set[str], tmp_path: Path) -> None:
    assert imported(tmp_path, text, old=True) == (Verdict.UNPROVEN, expected)


@pytest.mark.parametrize("name", ["mllog", "mll06", "minigo", "mxnet", "tf_cnn", "nccl_tests", "gpu_burn"])
def test_complete_logs_pass(name: str, tmp_path: Path) -> None:
    assert imported(tmp_path, samples.PASSING[name], old=True) == (Verdict.PASS, set())


def moved(text: str | bytes, to: datetime) -> str:
    """Return a log whose first time is ``to``. All its times move by the same amount."""
    raw = text.decode() if isinstance(text, bytes) else text
    found = re.search(r"(?<![0-9.])1[5-7]\d{8}(?=\d{3}\b|\b)", raw)
    assert found
    by = int(to.timestamp()) - int(found[0])
    return re.sub(r"(?<![0-9.])1[5-7]\d{8}(?=\d{3}\b|\b)", lambda one: str(int(one[0]) + by), raw)


@pytest.mark.parametrize("text", [mllog(), samples.MLL06, samples.TF_CNN], ids=["mllog", "mll06", "tf_cnn"])
@pytest.mark.parametrize(
    ("when", "verdict"),
    [
        # The time of a log, and its verdict without --old. It is unproven if the log is older than two years,
        # or more than a day in the future.
        (datetime(2020, 6, 27, tzinfo=UTC), Verdict.UNPROVEN),
        (datetime(2018, 12, 12, tzinfo=UTC), Verdict.UNPROVEN),
        (NOW - timedelta(days=800), Verdict.UNPROVEN),
        (NOW + timedelta(days=3), Verdict.UNPROVEN),
        (NOW + timedelta(days=3650), Verdict.UNPROVEN),
        (NOW - timedelta(days=400), Verdict.PASS),
        (NOW - timedelta(hours=3), Verdict.PASS),
    ],
)
def test_a_log_of_another_year_is_judged_by_its_age(
    text: str | bytes, when: datetime, verdict: Verdict, tmp_path: Path
) -> None:
    data = moved(text, when)
    assert imported(tmp_path, data) == (verdict, set() if verdict is Verdict.PASS else {"wrong_age"})
    assert imported(tmp_path, data, old=True)[0] is Verdict.PASS
