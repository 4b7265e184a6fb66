"""Every command: what it prints, what it ends with, and what bad input gets."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.testing import Result

from rackproof.cli import main as lazy
from rackproof.cli.main import main
from rackproof.core.records import ParsedLog, Verdict, json_schema
from rackproof.store.run_folder import write_run
from tests.report import example_runs

Call = Callable[..., Result]
Log = Callable[..., Path]


def output_of(result: Result) -> str:
    """Return all output; an exception that escaped would be a traceback for the operator."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        traceback.print_exception(result.exception)
        raise AssertionError(result.exception)
    return result.output


class TestParse:
    @pytest.mark.parametrize(
        ("how", "status", "verdict"),
        [
            ({}, 0, "pass"),
            ({"status": "aborted"}, 2, "fail"),
            ({"events": 7}, 3, "unproven"),
            ({"events": 0}, 3, "unproven"),
        ],
    )
    def test_exit_status_is_the_verdict(
        self, how: dict[str, object], status: int, verdict: str, run: Call, log: Log
    ) -> None:
        result = run("parse", log(**how))
        assert result.exit_code == status
        assert f": {verdict} (" in output_of(result)

    def test_the_worst_of_several_logs_counts(self, run: Call, log: Log) -> None:
        logs = [log("good.log"), log("cut.log", events=5), log("bad.log", status="aborted")]
        assert run("parse", *logs).exit_code == 2
        assert run("parse", *logs[:2]).exit_code == 3

    def test_numbers_and_their_lines(self, run: Call, log: Log) -> None:
        output = output_of(run("parse", log()))
        assert re.search(r"time_to_train +2 min +line 8", output)
        assert re.search(r"eval_accuracy +0\.92 ", output)

    def test_json_of_one_log_is_an_object(self, run: Call, log: Log) -> None:
        parsed = ParsedLog.model_validate(json.loads(output_of(run("parse", log(), "--json"))))
        assert parsed.verdict is Verdict.PASS
        assert parsed.measurement("time_to_train") is not None

    def test_json_of_several_logs_is_an_array(self, run: Call, log: Log) -> None:
        parsed = json.loads(output_of(run("parse", log("a.log"), log("b.log"), "--json")))
        assert [Path(one["file"]).name for one in parsed] == ["a.log", "b.log"]

    def test_standard_input(self, run: Call, log: Log) -> None:
        result = run("parse", "-", stdin=log().read_bytes())
        assert result.exit_code == 0
        assert output_of(result).startswith("standard input: pass (mllog")

    @pytest.mark.parametrize("as_json", [False, True])
    def test_escapes_in_a_log_do_not_reach_the_terminal(self, as_json: bool, run: Call, log: Log) -> None:
        path = log("bad\x1b[31m.log", events=6)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(
                "Traceback (most recent call last):\n  \x1b]0;owned\x07 \x9b31m RuntimeError: \u202eNaN\n"
            )
        output = output_of(run("parse", path, *(["--json"] if as_json else [])))
        assert not re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", output)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["gone.log"], "cannot read gone.log: No such file or directory"),
            (["."], "is a folder: name the logs in it, or use `rackproof import`"),
            (["--format", "mlog", "-"], "did you mean mllog"),
            ([], "Missing argument 'LOG...'"),
            (["--jsn", "x"], "No such option"),
        ],
    )
    def test_bad_input(self, arguments: list[str], message: str, run: Call) -> None:
        result = run("parse", *arguments, stdin=b"")
        assert result.exit_code == 1
        assert message in output_of(result)

    def test_formats_are_listed(self, run: Call) -> None:
        result = run("parse", "--list-formats")
        assert result.exit_code == 0
        assert {"mllog", "nccl_tests", "mxnet"} <= {
            line.split()[0] for line in output_of(result).splitlines()
        }


@pytest.mark.slow
class TestScore:
    def test_the_official_score(self, real_logs: Path, run: Call) -> None:
        result = run("score", real_logs / "mlperf-5.1/lambda-gb300-n18/llama2_70b_lora", "--json")
        scored = json.loads(output_of(result))
        assert result.exit_code == 0
        assert round(scored["minutes"], 3) == 1.261
        assert scored["verdict"] == "pass"

    def test_text_says_score_and_runs(self, real_logs: Path, run: Call) -> None:
        output = output_of(run("score", real_logs / "mlperf-5.1/lambda-gb300-n18/llama31_8b"))
        assert "score: 14.25" in output
        assert "10 runs of 10 needed" in output

    def test_too_few_runs_are_not_a_score(self, run: Call, log: Log) -> None:
        result = run("score", log().parent)
        assert result.exit_code in (2, 3)
        assert "score: none" in output_of(result)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["gone"], "gone is not a folder"),
            ([".", "--ruleset", "9.9"], "unknown ruleset '9.9'"),
            ([".", "--usage", "inference"], "'inference' is not one of"),
            ([".", "--timeout", "0"], "the time limit must be more than 0 s"),
            ([], "Missing argument 'DIR...'"),
        ],
    )
    def test_bad_input(self, arguments: list[str], message: str, run: Call) -> None:
        result = run("score", *arguments)
        assert result.exit_code == 1
        assert message in output_of(result)

    def test_an_empty_folder_is_unproven(self, run: Call, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        assert run("score", "empty").exit_code == 3


class TestImportAndHistory:
    def test_a_log_becomes_a_run_in_the_history(self, run: Call, log: Log, tmp_path: Path) -> None:
        result = run("import", log().parent)
        assert result.exit_code == 0
        assert "llama2_70b_lora" in output_of(result)
        (folder,) = [path for path in (tmp_path / "results").iterdir() if (path / "run.json").is_file()]
        assert {path.name for path in folder.iterdir()} == {
            "run.json",
            "report.html",
            "report.md",
            "report.junit.xml",
            "logs",
        }
        (listed,) = json.loads(output_of(run("history", "--json")))
        assert (listed["run_id"], listed["verdict"], listed["provenance"]) == (
            folder.name,
            "pass",
            "imported",
        )
        assert folder.name in output_of(run("history"))

    @pytest.mark.parametrize(("how", "status"), [({"status": "aborted"}, 2), ({"events": 4}, 3)])
    def test_the_verdict_is_the_logs(self, how: dict[str, object], status: int, run: Call, log: Log) -> None:
        log("a.log")
        log("b.log", **how)
        assert run("import", "logs").exit_code == status

    def test_json(self, run: Call, log: Log) -> None:
        (done,) = json.loads(output_of(run("import", log(), "--json", "--benchmark", "mine")))
        assert done["run"]["benchmark"] == "mine"
        assert done["known"] is False
        (again,) = json.loads(output_of(run("import", log(), "--json", "--benchmark", "mine")))
        assert again["known"] is True
        assert again["folder"] == done["folder"]
        assert len(json.loads(output_of(run("history", "--json")))) == 1

    def test_the_history_can_be_narrowed(self, run: Call, log: Log) -> None:
        for index in range(3):
            run("import", log(f"{index}.log", minutes=index + 1), "--benchmark", f"b{index}")
        assert len(json.loads(output_of(run("history", "--json", "--limit", 2)))) == 2
        (one,) = json.loads(output_of(run("history", "--json", "--benchmark", "b1")))
        assert one["benchmark"] == "b1"
        assert "no such runs" in output_of(run("history", "--node", "nobody"))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["import", "gone"], "gone does not exist"),
            (["import", "empty"], "no file in it is a log"),
            (["import", "empty", "--format", "mlog"], "no file in it is a log"),
            (["history"], "there is no history at results/history.sqlite"),
            (["history", "--limit", "0"], "0 is not in the range"),
            (["accept", "x"], "there is no history"),
        ],
    )
    def test_bad_input(self, arguments: list[str], message: str, run: Call, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        result = run(*arguments)
        assert result.exit_code == 1
        assert message in output_of(result)
        assert not (tmp_path / "results").exists()

    def test_a_results_folder_that_is_a_file(self, run: Call, log: Log, tmp_path: Path) -> None:
        (tmp_path / "results").write_text("")
        result = run("import", log())
        assert result.exit_code == 1
        assert "results" in output_of(result)

    def test_an_unknown_format_offers_near_names(self, run: Call, log: Log) -> None:
        result = run("import", log(), "--format", "mlog")
        assert result.exit_code == 1
        assert "did you mean mllog" in output_of(result)


@pytest.fixture
def kept(run: Call, tmp_path: Path) -> str:
    """Keep a run of known hardware in results and history; return its id."""
    from rackproof.store.history.client import History

    made = example_runs.healthy()
    write_run(made, tmp_path / "results" / made.run_id)
    assert History(tmp_path / "results").keep(tmp_path / "results" / made.run_id) == ""
    return made.run_id


class TestAccept:
    def test_candidates_become_references(self, run: Call, kept: str) -> None:
        result = run("accept", kept[:20])
        assert result.exit_code == 0
        assert re.match(rf"accepted \d+ references? from {kept} for node-01", output_of(result))

    def test_unknown_run(self, run: Call, kept: str) -> None:
        result = run("accept", "nothing")
        assert result.exit_code == 1
        assert "nothing" in output_of(result)

    def test_a_run_without_candidates(self, run: Call, kept: str, tmp_path: Path) -> None:
        from rackproof.store.history.store import open_store

        plain = example_runs.healthy(run_id="plain", judgements=())
        with open_store(tmp_path / "results/history.sqlite") as store:
            store.keep(plain)
        result = run("accept", "plain")
        assert result.exit_code == 1
        assert "nothing was accepted" in output_of(result)


class TestWithdraw:
    def test_what_was_accepted_is_taken_back_and_all_of_it_is_listed(self, run: Call, kept: str) -> None:
        assert run("accept", kept).exit_code == 0
        result = run("withdraw", kept, "--reason", "the fan was broken")
        assert result.exit_code == 0
        assert re.match(rf"withdrew \d+ references? from {kept}", output_of(result))
        listed = output_of(run("accept", "--list"))
        assert [word in listed for word in ("accept", "withdraw", "fan", kept)] == [True] * 4
        # Once more there is nothing to take back, and nothing is noted.
        assert run("withdraw", kept).exit_code == 1
        assert output_of(run("accept", "--list")) == listed

    def test_a_damaged_line_hides_no_other(self, run: Call, kept: str, tmp_path: Path) -> None:
        assert run("accept", kept).exit_code == 0
        with (tmp_path / "results/acceptances.jsonl").open("a") as log:
            log.write("half a li\n")
        assert kept in output_of(run("accept", "--list"))

    def test_an_acceptance_needs_a_run(self, run: Call, kept: str) -> None:
        assert run("accept").exit_code == 1
        assert run("withdraw", "nothing").exit_code == 1
        assert "nothing was accepted" in output_of(run("accept", "--list"))


class TestCompare:
    @pytest.fixture
    def two(self, run: Call, tmp_path: Path) -> tuple[str, str]:
        slow = example_runs.healthy(
            run_id="20261122T100000Z-mnist-lenet-0009",
            measurements=example_runs.healthy().measurements[:1],
            software={"torch": "2.12.0"},
        )
        for made in (example_runs.healthy(), slow):
            write_run(made, tmp_path / "results" / made.run_id)
        return example_runs.healthy().run_id, slow.run_id

    @pytest.mark.parametrize("form", ["id", "beginning", "folder", "file"])
    def test_runs_are_found_by(self, form: str, two: tuple[str, str], run: Call) -> None:
        names = {
            "id": two,
            "beginning": (two[0][:10], two[1][:10]),
            "folder": tuple(f"results/{name}" for name in two),
            "file": tuple(f"results/{name}/run.json" for name in two),
        }[form]
        result = run("compare", *names)
        assert result.exit_code == 0
        assert re.search(r"samples_per_second .* 1\.000 +\+0\.0 % +same", output_of(result))
        assert re.search(r"software torch +2\.13\.0 +2\.12\.0", output_of(result))

    def test_from_the_history_alone(self, run: Call, kept: str, tmp_path: Path) -> None:
        (tmp_path / "results" / kept / "run.json").unlink()
        assert run("compare", kept, kept[:12]).exit_code == 0

    def test_a_failed_run_is_compared_without_complaint(self, run: Call, tmp_path: Path) -> None:
        write_run(example_runs.hostile(), tmp_path / "results" / "h")
        result = run("compare", "h", "h")
        assert result.exit_code == 0
        assert not re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", output_of(result))
        compared = json.loads(output_of(run("compare", "h", "h", "--json")))
        assert compared["measurements"][0]["ratio"] is None

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (("gone", "gone"), "no run gone"),
            (("2026", "2026"), "2 runs begin with 2026"),
            (("results/gone", "x"), "no run at results/gone"),
            (("damaged", "damaged"), "is damaged"),
            (("",) * 2, "no run"),
        ],
    )
    def test_bad_input(
        self, names: tuple[str, str], message: str, two: tuple[str, str], run: Call, tmp_path: Path
    ) -> None:
        (tmp_path / "results/damaged").mkdir()
        (tmp_path / "results/damaged/run.json").write_text('{"run_id": 3')
        result = run("compare", *names)
        assert result.exit_code == 1
        assert message in output_of(result)


class TestReport:
    def test_html_goes_into_the_runs_folder(self, run: Call, kept: str, tmp_path: Path) -> None:
        result = run("report", kept)
        assert result.exit_code == 0
        assert output_of(result).strip() == f"results/{kept}/report.html"
        assert (tmp_path / output_of(result).strip()).read_text().startswith("<!doctype html>")

    def test_other_forms_go_to_standard_output(self, run: Call, kept: str) -> None:
        assert output_of(run("report", kept, "--format", "md")).startswith("# ✓ pass: mnist-lenet")
        root = ElementTree.fromstring(output_of(run("report", kept, "--format", "junit")).encode())
        assert root.tag == "testsuites"
        assert json.loads(output_of(run("report", kept, "--format", "json")))["run_id"] == kept

    def test_output_names_the_file(self, run: Call, kept: str, tmp_path: Path) -> None:
        assert output_of(run("report", kept, "--format", "md", "--output", "out/r.md")) == "out/r.md\n"
        assert (tmp_path / "out/r.md").read_text().startswith("# ✓ pass")
        assert output_of(run("report", kept, "--output", "-")).startswith("<!doctype html>")

    def test_several_runs_make_one_report_with_links(self, run: Call, kept: str, tmp_path: Path) -> None:
        write_run(example_runs.rack(), tmp_path / "results" / "rack")
        result = run("report", kept, "rack", "--title", "Both", "--output", "all.html")
        assert result.exit_code == 0
        page = (tmp_path / "all.html").read_text()
        assert "Both" in page
        assert f'href="results/{kept}/report.html"' in page

    def test_showing_a_failed_run_is_no_error(self, run: Call, tmp_path: Path) -> None:
        write_run(example_runs.hostile(), tmp_path / "results" / "h")
        assert run("report", "h", "--format", "md").exit_code == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["gone"], "no run gone"),
            ([], "Missing argument 'RUN...'"),
            (["x", "--format", "pdf"], "'pdf' is not one of"),
        ],
    )
    def test_bad_input(self, arguments: list[str], message: str, run: Call) -> None:
        result = run("report", *arguments)
        assert result.exit_code == 1
        assert message in output_of(result)


def test_schema(run: Call) -> None:
    assert json.loads(output_of(run("schema"))) == json_schema()


class TestProgram:
    @pytest.mark.parametrize(
        ("arguments", "status"),
        [(["--help"], 0), (["-h"], 0), (["--version"], 0), ([], 1), (["prase"], 1), (["--unknown"], 1)],
    )
    def test_usage_errors_end_with_1(self, arguments: list[str], status: int, run: Call) -> None:
        assert run(*arguments).exit_code == status

    def test_help_lists_the_exit_statuses(self, run: Call) -> None:
        output = output_of(run("--help"))
        for line in ("0  pass", "1  usage error", "2  fail", "3  unproven"):
            assert line in output

    def test_a_fault_of_our_own_is_one_line_and_debug_shows_more(
        self, run: Call, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("something \x1b[31mred")

        monkeypatch.setattr("rackproof.logs.parse", broken)
        result = run("parse", log())
        assert result.exit_code == 1
        assert output_of(result).startswith("rackproof: unexpected RuntimeError: something red.")
        assert len(output_of(result).splitlines()) == 1
        assert isinstance(run("--debug", "parse", log()).exception, RuntimeError)


COMMANDS = main.list_commands(click.Context(main))


def command_named(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented_with_an_example(command: str, root: Path) -> None:
    text = (root / "docs/using/cli.md").read_text()
    assert re.search(rf"^## .*`rackproof {command}\b", text, re.M)
    section = re.split(r"^## ", text.split(f"`rackproof {command}", 1)[1], flags=re.M)[0]
    assert re.search(rf"^    \$ rackproof {command}\b", section, re.M)
    for parameter in command_named(command).params:
        for option in (name for name in parameter.opts if name.startswith("--")):
            assert f"`{option}" in section, f"{option} of {command} is not documented"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, run: Call) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert len(output_of(result)) > 80


@pytest.mark.parametrize("command", COMMANDS)
def test_the_summary_in_the_list_of_commands_begins_the_commands_own_help(command: str, run: Call) -> None:
    summary = lazy.COMMANDS[command].summary
    text = command_named(command).help
    assert text is not None
    assert text.startswith(f"{summary}\n") or text == summary
    assert command_named(command).name == command
    assert f"{command} {summary}" in " ".join(output_of(run("--help")).split())
