"""Test which logs a name selects, and the command ``rackproof compare`` with such names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rackproof.analysis.compare.selecting import NotFoundError, names_of, published, select
from rackproof.core.records import Direction, LogFile, Measurement, Node, Run, Verdict
from rackproof.jobs.bench.import_logs import import_logs
from rackproof.store.run_folder import write_run

Call = Callable[..., Result]


def mll(rate: float, *, minutes: float = 20.0, benchmark: str = "ssd", trouble: str = "") -> str:
    """Return a small log of round 0.6 as ssd writes it."""

    def event(at: float, key: str, value: object = None, **meta: object) -> str:
        return f":::MLL {1_575_733_900 + at:.3f} {key}: {json.dumps({'value': value, 'metadata': meta})}\n"

    stop = 60 * minutes
    return "".join(
        (
            event(0, "submission_benchmark", benchmark),
            *(event(0, f"submission_{one}", "x") for one in ("org", "division", "status", "platform")),
            event(0, "cache_clear", value=True),
            event(0, "init_start"),
            event(0, "global_batch_size", 960),
            event(0, "init_stop"),
            event(0, "run_start"),
            event(0, "block_start", first_epoch_num=1, epoch_count=50),
            event(1, "epoch_start", epoch_num=1),
            event(stop * 0.5, "epoch_stop", epoch_num=1),
            "avg. samples / sec: 70.5\n",
            f"avg. samples / sec: {rate}\n",
            trouble,
            event(stop * 0.8, "eval_start", epoch_num=45),
            event(stop * 0.9, "eval_accuracy", 0.2, epoch_num=45),
            event(stop * 0.9, "eval_stop", epoch_num=45),
            event(stop * 0.95, "eval_start", epoch_num=50),
            event(stop, "eval_accuracy", 0.231, epoch_num=50),
            event(stop, "eval_stop", epoch_num=50),
            event(stop, "block_stop", first_epoch_num=1),
            event(stop, "run_stop", None, status="success"),
            f"RESULT,SINGLE_STAGE_DETECTOR,,{stop + 30:.0f},nvidia,2019-12-07 03:51:54 PM\n",
        )
    )


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with logs of two systems.

    ``old/SYSTEM/ssd`` has three repeats of each system, and for dgx1 also a log that ran out of memory.
    ``flat/ssd`` has one log of each system.
    """
    oom = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\nret_code=0\n"
    for system, rates in (("dgx1", (4400, 4420, 4410)), ("LambdaHyperplaneBasic", (4280, 4290, 4300))):
        for at, rate in enumerate(rates):
            path = tmp_path / "old" / system / "ssd" / f"result_{at}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(mll(rate, minutes=22 + at / 10))
        (tmp_path / "flat" / "ssd").mkdir(parents=True, exist_ok=True)
        (tmp_path / "flat" / "ssd" / f"{system}_1.log").write_text(mll(rates[0], minutes=21))
    (tmp_path / "old/dgx1/ssd/result_3.txt").write_text(mll(9999, minutes=1, trouble=oom))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RACKPROOF_DATABASE_URL", raising=False)
    return tmp_path


@pytest.fixture
def call(logs: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that calls ``rackproof compare``."""
    from rackproof.cli.main import main

    monkeypatch.setenv("COLUMNS", "160")
    return lambda *arguments: CliRunner().invoke(main, ["compare", *arguments])


def no_run(name: str) -> Run:
    """Fail, because no stored run has the name."""
    raise LookupError(name)


def rates(name: str, results: str = "results") -> tuple[str, list[float]]:
    """Return the name of a selected system, and the speeds of its runs."""
    system = select(name, Path(results), no_run, [])
    found = (one.value for run in system.runs for one in run.measurements if one.name == "samples_per_second")
    return system.name, sorted(found)


@pytest.mark.parametrize(
    ("name", "called", "values"),
    [
        ("old/dgx1", "dgx1", [4400, 4410, 4420, 9999]),
        ("old/dgx1/ssd/result_1.txt", "result", [4420]),
        ("old/*/ssd/result_1.txt", "ssd", [4290, 4420]),
        ("flat/*/dgx1*.log", "dgx1", [4400]),
        ("flat", "flat", [4280, 4400]),
    ],
)
def test_logs_need_no_import(logs: Path, name: str, called: str, values: list[float]) -> None:
    assert rates(name) == (called, values)
    assert not (logs / "results").exists()


@pytest.mark.parametrize("place", ["old", "flat"])
def test_an_imported_system_is_found_by_its_folder_or_file(logs: Path, place: str) -> None:
    import_logs(logs / place, logs / "results")
    assert rates("dgx1")[1][0] == 4400
    assert rates("LAMBDAHYPERPLANEBASIC")[1][0] == 4280
    assert max(rates("LambdaHyperplaneBasic")[1]) < 4400
    # The results folder itself, and a pattern of run folders, are systems as well.
    assert rates("results")[1] == rates(place)[1]
    assert rates("results/ssd-*")[1] == rates(place)[1]


def test_a_system_is_selected_by_sku_node_configuration_or_plan(logs: Path) -> None:
    for at, (host, sku) in enumerate((("n1", "h100"), ("n2", "h100"), ("n3", "h200"))):
        nodes = (Node(name=host, sku=sku),)
        run = Run(run_id=f"r{at}", benchmark="b", nodes=nodes, configuration="small", plan_id="night")
        write_run(run, logs / "results" / run.run_id)
        assert names_of(run) == (sku, "small", host, "night")
    chosen = {
        name: [run.run_id for run in select(name, logs / "results", no_run, []).runs]
        for name in ("h100", "h200", "n2", "small", "night")
    }
    assert chosen == {
        "h100": ["r0", "r1"],
        "h200": ["r2"],
        "n2": ["r1"],
        "small": ["r0", "r1", "r2"],
        "night": ["r0", "r1", "r2"],
    }


def selected(name: str, results: str = "results") -> tuple[list[float], list[str]]:
    """Return the speeds of a selected system, and the remarks about the selection."""
    remarks: list[str] = []
    system = select(name, Path(results), no_run, remarks)
    assert "copy" not in "".join(reason for run in system.runs for reason in run.reasons)
    found = (one.value for run in system.runs for one in run.measurements if one.name == "samples_per_second")
    return sorted(found), remarks


@pytest.mark.parametrize("name", ["slurm-9.out", "again.log", "result_9.txt", "output.txt", "sub/a.log"])
def test_a_log_beside_run_folders_gives_a_remark(logs: Path, name: str) -> None:
    import_logs(logs / "old/dgx1", logs / "results")
    before, remarks = selected("results")
    assert remarks == []
    (logs / "results/sub").mkdir()
    (logs / "results" / name).write_text("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    (logs / "results/README.md").write_text("CUDA out of memory\n")
    assert selected("results") == (
        before,
        [f"skipped: results/{name}: a log beside run folders; name the log itself"],
    )


@pytest.mark.parametrize("pattern", ["old/**", "old/**/*", "o*/**/result_*", "old/dgx1/**"])
def test_a_pattern_reads_no_log_twice(logs: Path, pattern: str) -> None:
    assert selected(pattern) == selected("old/dgx1" if "dgx1" in pattern else "old")


@pytest.mark.parametrize("pattern", ["results/**", "results/*", "results/**/"])
def test_a_pattern_reads_no_record_twice(logs: Path, pattern: str) -> None:
    import_logs(logs / "old/dgx1", logs / "results")
    assert selected(pattern)[0] == selected("results")[0]


def test_a_pattern_finds_records_below_folders(logs: Path) -> None:
    import_logs(logs / "old/dgx1", logs / "kept/one/results")
    import_logs(logs / "old/LambdaHyperplaneBasic", logs / "kept/two/results")
    assert selected("kept/**")[0] == selected("old")[0]


def test_a_renamed_run_folder_is_found_by_a_pattern(logs: Path) -> None:
    import_logs(logs / "old/dgx1", logs / "results")
    for at, folder in enumerate(sorted((logs / "results").glob("ssd-*"))):
        folder.rename(folder.with_name(f"kept-{at}"))
    assert selected("results/kept-*") == selected("results")
    assert len(selected("results/kept-[01]")[0]) == 2
    (logs / "results/kept-0/run.json").write_text("{")
    found, remarks = selected("results/kept-[01]")
    assert len(found) == 1
    assert "kept-0/run.json is damaged" in remarks[0]


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000, f"{'x' * 300}*", f"a/{'x' * 300}"])
def test_a_name_that_is_too_long_for_a_file_selects_no_system(logs: Path, name: str) -> None:
    with pytest.raises((LookupError, NotFoundError)):
        select(name, logs / "results", no_run, [])


@pytest.mark.parametrize("rates", [(1e200, 1.1e200), (4400.0, 1e308), (1e155, 3e160)])
@pytest.mark.parametrize("form", [(), ("--json",), ("--format", "html", "--output", "-")])
def test_speeds_that_no_float_can_square_are_compared(
    call: Call, logs: Path, rates: tuple[float, float], form: tuple[str, ...]
) -> None:
    for at, rate in enumerate(rates):
        (logs / "flat/ssd" / f"dgx1_{at}.log").write_text(mll(rate, minutes=21 + at))
    result = call("flat/*/dgx1*.log", "flat/*/Lambda*.log", *form)
    assert result.exit_code in (0, 1), result.output
    assert not isinstance(result.exception, OverflowError)
    assert "throughput" in result.output


def test_published_systems_are_found_by_name() -> None:
    assert {one.benchmark for one in published("hyperplane").published} == {
        "gnmt",
        "maskrcnn",
        "minigo",
        "resnet",
        "ssd",
        "transformer",
    }
    assert published("0.6/DGX-1").name == "DGX-1 (published)"
    with pytest.raises(NotFoundError, match=r"no published system Cray; .* has .*DGX-1, .*HyperPlane"):
        published("Cray")


def test_two_systems_are_shown_side_by_side(call: Call) -> None:
    result = call("old/dgx1", "old/LambdaHyperplaneBasic")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "Training throughput (higher is better)" in lines
    # The means are 4410 and 4290, with the ratio 0.9728. The log out of memory is named, not counted.
    assert any("4,410 samples/s" in line and "4,290 samples/s" in line and "0.9728" in line for line in lines)
    assert "worse" in result.output
    assert "out of memory" in result.output
    assert "result_3.txt" in result.output
    assert "9,999" not in result.output


def test_the_comparison_is_also_json(call: Call) -> None:
    result = call("old/dgx1", "old/LambdaHyperplaneBasic", "--json", "--confidence", "0.9")
    compared = json.loads(result.output)
    assert compared["systems"] == ["dgx1", "LambdaHyperplaneBasic"]
    (rate,) = (row for row in compared["rows"] if row["kind"] == "throughput")
    assert [cell["value"] for cell in rate["cells"]] == [4410, 4290]
    assert [cell["judgement"]["verdict"] for cell in rate["cells"]] == ["pass", "pass"]
    assert rate["ratios"][0]["low"] < rate["ratios"][0]["value"] < rate["ratios"][0]["high"] < 1
    (lost,) = compared["left_out"]
    assert (lost["verdict"], lost["source"]["line"]) == ("fail", 16)


def test_a_published_system_can_be_compared_or_be_the_reference(call: Call) -> None:
    result = call("old/LambdaHyperplaneBasic", "published:HyperPlane", "--json")
    (rate,) = (row for row in json.loads(result.output)["rows"] if row["kind"] == "throughput")
    assert [cell["value"] for cell in rate["cells"]] == [4290, 4280.86]
    assert rate["ratios"][0]["conclusion"] == "no interval"
    other = call("old/dgx1", "old/LambdaHyperplaneBasic", "--reference", "published:dgx1", "--json")
    (rate,) = (row for row in json.loads(other.output)["rows"] if row["kind"] == "throughput")
    assert {cell["judgement"]["reference"]["value"] for cell in rate["cells"]} == {4420.04}


@pytest.mark.parametrize(("form", "start"), [("html", "<!doctype html>"), ("md", "# dgx1 against")])
def test_the_report_is_written_to_a_file(call: Call, logs: Path, form: str, start: str) -> None:
    result = call("old/dgx1", "old/LambdaHyperplaneBasic", "--format", form, "--output", "out/c")
    assert result.exit_code == 0, result.output
    assert (logs / "out/c").read_text().startswith(start)


def test_a_page_of_two_runs_shows_other_differences(call: Call, logs: Path) -> None:
    measured = Measurement(name="copy", value=1, unit="GB/s", direction=Direction.HIGHER)
    for name in ("one", "two"):
        digest = hashlib.sha256(name.encode()).hexdigest()
        log = LogFile(path="log", sha256=digest, size_bytes=3, verdict=Verdict.PASS)
        run = Run(run_id=name, benchmark="b", storage=f"disk-{name}", measurements=(measured,), logs=(log,))
        write_run(run, logs / "results" / name)
        (logs / "results" / name / "log").write_text(name)
    text = call("one", "two", "--format", "md").output
    assert "disk-one" in text.replace("\\", "")
    assert "no interval" in text
    assert '"storage"' in call("one", "two", "--json").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("old/dgx1",), "name two runs, or two or more systems"),
        (("old/dgx1", "nowhere/*"), "nothing matches nowhere/*"),
        (("old/dgx1", "nowhere"), "no run nowhere"),
        (("old/dgx1", "published:Cray"), "no published system Cray"),
        (("old/dgx1", "flat", "--reference", "Cray"), "no published system Cray"),
        (("old/dgx1", "flat", "--confidence", "2"), "between 0 and 1"),
        (("old/dgx1", "flat", "--benchmark", "chess"), "has no run of chess; it has ssd"),
        (("old/dgx1", "flat", "--json", "--format", "md"), "--json prints to standard output"),
    ],
)
def test_bad_input_is_refused(call: Call, arguments: tuple[str, ...], said: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 1
    assert said in result.output
    assert "Traceback" not in result.output


def test_an_empty_folder_is_named(call: Call, logs: Path) -> None:
    (logs / "empty").mkdir()
    (logs / "empty/notes").write_text("nothing\n")
    result = call("old/dgx1", "empty")
    assert result.exit_code == 1
    assert "empty: no file there is a log of a known format" in result.output
