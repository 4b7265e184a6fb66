"""Test the command ``rackproof submission``: its text and JSON, its exit status, and its messages.

The command makes the package of a submission to MLPerf Training from recorded runs.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rackproof.analysis.submission import Submission
from rackproof.cli.main import main
from rackproof.core.records import Verdict

from .corpus import all_runs, make_run, make_runs

# Each test starts processes. All of them together take too long for `make check`.
pytestmark = pytest.mark.slow

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system_file: Callable[..., Path]) -> Call:
    """Return a function that calls the command in a folder with ``system.yml``."""
    monkeypatch.chdir(tmp_path)
    system_file()

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(main, ["submission", *map(str, arguments)])

    return invoke


def output_of(result: Result) -> str:
    """Return the output of a call. Raise AssertionError if the call raised an exception."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        traceback.print_exception(result.exception)
        raise AssertionError(result.exception)
    return result.output


NEWEST = ("--latest", 10, "--benchmark", "llama2_70b_lora", "--system", "system.yml", "--out", "out")


def test_a_package(call: Call, results: Path, tmp_path: Path) -> None:
    result = call(*NEWEST)
    output = output_of(result)
    assert result.exit_code == 0
    assert "submission of Example Org, b200_n2, closed, rules 5.1.0: pass" in output
    assert "10 of 10" in output
    assert "accepts the package" in output
    assert f"written: {tmp_path}/out/Example_Org" in output


@pytest.mark.slow
def test_failed_runs_as_text_and_as_json(call: Call, tmp_path: Path) -> None:
    make_runs(tmp_path / "results", 8)
    make_runs(tmp_path / "results", 2, first=8, status="aborted", verdict=Verdict.FAIL)
    ids = [run.run_id for run, _ in all_runs(tmp_path / "results")]
    result = call(*ids, "--system", "system.yml", "--out", "out")
    output = output_of(result)
    assert result.exit_code == 2
    assert "at most 1 may be. To do: make new runs" in output
    for name in ids[8:]:
        # Each failed run is named with its log.
        assert f"    run {name}, logs/" in output
    assert "nothing was written to out" in output
    result = call(*ids, "--system", "system.yml", "--out", "out", "--json")
    assert result.exit_code == 2
    made = Submission.model_validate(json.loads(output_of(result)))
    assert {issue.run for issue in made.issues if issue.code == "run_refused"} == set(ids[8:])
    assert made.folder == ""


def test_too_few_runs_prove_nothing(call: Call, tmp_path: Path) -> None:
    make_runs(tmp_path / "results", 2)
    result = call(*NEWEST)
    assert "2 runs where the rules require exactly 10. To do: make 8 more" in output_of(result)
    assert result.exit_code == 3


def test_a_check_that_is_stopped_proves_nothing(call: Call, results: Path) -> None:
    result = call(*NEWEST, "--timeout", 0.05)
    assert "it took longer than 0.05 s and was stopped" in output_of(result)
    assert result.exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "out"], "Missing option '--system'"),
        (["--system", "system.yml"], "Missing option '--out'"),
        (["--system", "system.yml", "--out", "out"], "name the runs, or take the newest with both --latest"),
        (["2026", *NEWEST], "name the runs, or take the newest with both --latest"),
        (["--latest", 10, "--system", "system.yml", "--out", "out"], "with both --latest N and --benchmark"),
        (["20", "--sku", "b200", "--system", "system.yml", "--out", "out"], "name the runs, or take"),
        (["nothing", "--system", "system.yml", "--out", "out"], "no run nothing"),
        (["20", "--system", "gone.yml", "--out", "out"], "docs/using/submission.md has an example"),
        (["20", "--system", "system.yml", "--out", "results"], "is not a submission that Rackproof wrote"),
        (["20", "--system", "system.yml", "--out", "out", "--ruleset", "7"], "unknown ruleset '7'; known:"),
        (["20", "--system", "system.yml", "--out", "out", "--timeout", "0"], "must be more than 0 s"),
    ],
)
def test_mistakes_end_with_1(arguments: list[object], message: str, call: Call, tmp_path: Path) -> None:
    make_run(tmp_path / "results", 0)
    result = call(*arguments)
    assert message in output_of(result)
    assert result.exit_code == 1
    assert not (tmp_path / "out").exists()
