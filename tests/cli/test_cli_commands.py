"""Test what each command of ``rackproof`` prints, its exit status, and its message for bad input.

The commands run in-process, on small logs and hand-made runs. The exit status is 0 for pass, 1 for wrong
usage, 2 for fail and 3 for unproven.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import click
import pytest
from click.testing import Result

from rackproof.cli import main as lazy
from rackproof.cli.main import main
from rackproof.core.records import Finding, ParsedLog, Verdict, json_schema
from rackproof.store.acceptance_log import bounding_acceptances
from rackproof.store.history.store import open_store
from rackproof.store.run_folder import ResultsError, read_run, write_file, write_run
from tests.report import example_runs

from .conftest import EVENTS

Call = Callable[..., Result]
Log = Callable[..., Path]


def output_of(result: Result) -> str:
    """Return all output. Raise an uncaught exception, which would be a traceback for the operator."""
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
        assert re.search(rf"time_to_train +2 min +line {len(EVENTS)}", output)
        assert re.search(r"eval_accuracy +0\.92 ", output)

    def test_json_of_one_log_is_an_object(self, run: Call, log: Log) -> None:
        parsed = ParsedLog.model_validate(json.loads(output_of(run("parse", log(), "--json"))))
        assert parsed.verdict is Verdict.PASS
        assert parsed.measurement("time_to_train") is not None

    def test_json_of_several_logs_is_an_array(self, run: Call, log: Log) -> None:
        parsed = json.loads(output_of(run("parse", log("a.log"), log("b.log"), "--json")))
        assert [Path(one["file"]).name for one in parsed] == ["a.log", "b.log"]

    @pytest.mark.parametrize("count", [1, 2, 3, 40])
    def test_json_is_written_as_json_dumps_writes_it(self, count: int, run: Call, log: Log) -> None:
        paths = [log(f"wörk 日本 \U0001f600 \x7f {at}.log", events=at % 9) for at in range(count)]
        output = output_of(run("parse", *paths, "--json"))
        assert output.isascii()
        assert "\x7f" not in output
        expected = json.dumps(json.loads(output), indent=2).replace("\x7f", "\\u007f")
        assert output == expected + "\n"
        values = json.loads(output)
        assert [one["file"] for one in (values if count > 1 else [values])] == [str(path) for path in paths]

    @pytest.mark.parametrize("form", [[], ["--json"]])
    @pytest.mark.parametrize("at", [0, 1, 7])
    def test_one_log_that_cannot_be_read_prints_nothing(
        self, form: list[str], at: int, run: Call, log: Log
    ) -> None:
        names = [log(f"{index}.log") for index in range(7)]
        names.insert(at, Path("gone.log"))
        result = run("parse", *names, *form)
        assert result.exit_code == 1
        assert output_of(result).startswith("rackproof: cannot read gone.log")

    def test_the_worst_log_counts_wherever_it_stands(self, run: Call, log: Log) -> None:
        good, cut, bad = log("good.log"), log("cut.log", events=5), log("bad.log", status="aborted")
        for names, status in (
            ([good] * 9, 0),
            ([cut, *[good] * 9], 3),
            ([good, cut, good], 3),
            ([bad, good, cut], 2),
            ([*[good] * 9, bad], 2),
        ):
            for form in ([], ["--json"]):
                assert run("parse", *names, *form).exit_code == status

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
            (["gone.log"], f"cannot read gone.log: {os.strerror(errno.ENOENT)}"),
            (["."], "is a folder: name the logs in it, or use `rackproof import`"),
            (["--format", "mlog", "-"], "did you mean mllog"),
            ([], "Missing argument 'LOG...'"),
            (["--jsn", "x"], "No such option"),
        ],
    )
    def test_bad_input_is_refused(self, arguments: list[str], message: str, run: Call) -> None:
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
    def test_bad_input_is_refused(self, arguments: list[str], message: str, run: Call) -> None:
        result = run("score", *arguments)
        assert result.exit_code == 1
        assert message in output_of(result)

    def test_an_empty_folder_is_unproven(self, run: Call, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        assert run("score", "empty").exit_code == 3


class TestImportAndHistory:
    def test_a_long_import_names_the_file_that_it_reads(
        self, run: Call, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rackproof.cli.import_logs._SHOWN_EVERY_S", 0, raising=False)
        assert f"0 files read, now {log()}" in run("import", log().parent).stderr

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

    @pytest.mark.parametrize(("name", "status"), [("node07.log", 3), (".node07.log", 3), ("run.sh", 0)])
    def test_an_import_beside_a_log_that_is_not_read_exits_with_3_and_names_it(
        self, name: str, status: int, run: Call, log: Log
    ) -> None:
        (log().parent / name).symlink_to("gone")
        result = run("import", "logs")
        assert result.exit_code == status
        assert ("not read" if status else "skipped") + f": logs/{name}: a link" in result.stderr

    def test_the_result_of_an_import_is_also_json(self, run: Call, log: Log) -> None:
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
        assert "nothing ran on such a node" in output_of(run("history", "--node", "nobody"))

    @pytest.mark.parametrize("lost", ["no file", "an empty file", "a new database"])
    def test_a_history_without_the_runs_of_the_folder_is_an_error(
        self, lost: str, run: Call, log: Log, tmp_path: Path
    ) -> None:
        run("import", log("one.log"), "--benchmark", "b1")
        database = tmp_path / "results/history.sqlite"
        for path in database.parent.glob("history.sqlite*"):
            path.unlink()
        if lost == "an empty file":
            database.touch()
        elif lost == "a new database":
            open_store(database).close()
        for arguments in (("history",), ("history", "--benchmark", "b1"), ("history", "--json")):
            shown = run(*arguments)
            assert shown.exit_code == 1
            assert "has the records of 1 run: enter them with `rackproof history --rebuild`" in shown.output
        assert run("history", "--rebuild").exit_code == 0
        assert "b1" in output_of(run("history"))

    def test_an_empty_history_of_a_new_folder_is_no_error(self, run: Call, tmp_path: Path) -> None:
        (tmp_path / "results").mkdir()
        database = tmp_path / "results/history.sqlite"
        database.touch()
        assert "nothing has run or been imported there yet" in output_of(run("history"))
        open_store(database).close()
        assert run("history").exit_code == 0

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
    def test_bad_input_is_refused(
        self, arguments: list[str], message: str, run: Call, tmp_path: Path
    ) -> None:
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

    @pytest.mark.parametrize(
        "arguments", [("history",), ("accept", "{0}"), ("withdraw", "{0}"), ("compare", "nothing", "{0}")]
    )
    def test_a_folder_without_its_history_names_the_next_step(
        self, run: Call, kept: str, tmp_path: Path, arguments: tuple[str, ...]
    ) -> None:
        """The message must not state that nothing ran there."""
        (tmp_path / "results" / "history.sqlite").unlink()
        result = run(*(one.format(kept) for one in arguments))
        assert "`rackproof history --rebuild`" in result.output
        assert run("history", "--rebuild").exit_code == 0

    def test_an_unknown_format_offers_near_names(self, run: Call, log: Log) -> None:
        result = run("import", log(), "--format", "mlog")
        assert result.exit_code == 1
        assert "did you mean mllog" in output_of(result)


class TestAccept:
    def test_candidates_become_references(self, run: Call, kept: str) -> None:
        result = run("accept", kept[:20])
        assert result.exit_code == 0
        assert re.match(rf"accepted \d+ references? from {kept} for node-01", output_of(result))
        assert "note: nothing independent bounds " in output_of(result)

    @pytest.mark.parametrize(
        ("between", "acts"),
        [
            ((), ["accept"]),
            (("withdraw", "{kept}"), ["accept", "withdraw", "accept"]),
            (("history", "--rebuild"), ["accept"]),
        ],
    )
    def test_a_second_acceptance_changes_nothing(
        self, run: Call, kept: str, between: tuple[str, ...], acts: list[str]
    ) -> None:
        assert run("accept", kept).exit_code == 0
        if between:
            run(*(one.format(kept=kept) for one in between))
        again = run("accept", kept)
        assert again.exit_code == 0
        assert again.output.startswith("accepted before: " if len(acts) == 1 else "accepted ")
        listed = json.loads(run("accept", "--list", "--json").stdout)["acts"]
        assert [one["act"] for one in listed] == acts

    @pytest.mark.parametrize("path", ["{0}/{1}", "{0}/{1}/", "{0}/{1}/run.json"])
    def test_a_run_is_named_by_its_folder_too(self, run: Call, kept: str, tmp_path: Path, path: str) -> None:
        moved = (tmp_path / "results").rename(tmp_path / "others")
        named = path.format(moved, kept)
        assert run("accept", named).output.startswith("accepted ")
        assert run("withdraw", named).output.startswith("withdrew ")

    def test_an_unknown_run_cannot_be_accepted(self, run: Call, kept: str) -> None:
        result = run("accept", "nothing")
        assert result.exit_code == 1
        assert "nothing" in output_of(result)

    def test_a_run_without_candidates(self, run: Call, kept: str, tmp_path: Path) -> None:
        from rackproof.store.history.store import open_store

        plain = example_runs.healthy(run_id="plain", judgements=(), logs=())
        write_run(plain, tmp_path / "results/plain")
        with open_store(tmp_path / "results/history.sqlite") as store:
            store.keep(plain)
        result = run("accept", "plain")
        assert result.exit_code == 1
        assert "nothing was accepted" in output_of(result)

    @pytest.mark.parametrize(
        ("path", "text", "words"),
        [
            ("run.json", None, "no run here"),
            ("run.json", b"{}", "is damaged"),
            ("logs/log.txt", None, "its log logs/log.txt is gone"),
            ("logs/log.txt", b"0.999 reached\n", "logs/log.txt was changed"),
            ("logs/log.txt", b"0.992 reached\nand more", "logs/log.txt was changed"),
        ],
    )
    def test_evidence_that_is_gone_or_another_s(
        self, path: str, text: bytes | None, words: str, run: Call, kept: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "results" / kept / path
        file.unlink()
        if text is not None:
            file.write_bytes(text)
        result = run("accept", kept)
        assert result.exit_code == 1
        assert words in output_of(result)
        assert "is not a reference" in output_of(result)

    @pytest.mark.parametrize(
        ("runs", "status"),
        [
            (["{kept}"], 0),
            (["{kept}", "gone"], 0),
            (["gone", "{kept}"], 0),
            # Run plain has no number that waits for a reference, and the record of run removed is gone.
            (["plain", "{kept}"], 0),
            (["removed", "{kept}"], 0),
            (["plain", "removed"], 1),
            (["gone", "lost"], 1),
            ([], 1),
        ],
    )
    def test_of_a_plan_all_that_may_be_is_accepted_and_the_rest_named(
        self,
        runs: list[str],
        status: int,
        run: Call,
        kept: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        from rackproof.store.history.store import open_store

        (tmp_path / "results" / "plan-1").mkdir()
        plain = example_runs.healthy(run_id="plain", judgements=(), logs=())
        write_run(plain, tmp_path / "results/plain")
        with open_store(tmp_path / "results/history.sqlite") as store:
            store.keep(plain)
            store.keep(example_runs.healthy(run_id="removed"))
        ids = [one.format(kept=kept) for one in runs]
        made = SimpleNamespace(runs=[SimpleNamespace(run_id=one) for one in ids])
        monkeypatch.setattr("rackproof.cli.find_run.read_plan", lambda *_: made)
        result = run("accept", "plan-1")
        assert result.exit_code == status
        said = output_of(result)
        assert said.count("not accepted: ") == len([one for one in ids if one != kept])
        assert (f"from {kept}" in said, "covers " in said) == (status == 0, status == 0)

    def test_in_json_a_plan_has_what_was_accepted_and_what_was_not(
        self, run: Call, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "results" / "plan-1").mkdir()
        made = SimpleNamespace(runs=[SimpleNamespace(run_id=one) for one in (kept, "gone")])
        monkeypatch.setattr("rackproof.cli.find_run.read_plan", lambda *_: made)
        result = run("accept", "plan-1", "--json")
        assert (result.exit_code, result.stderr.count("not accepted: ")) == (0, 1)
        printed = json.loads(result.stdout)
        (accepted,), (refused,) = printed["accepted"], printed["refused"]
        assert set(accepted) == {
            *("run_id", "title", "references", "nodes", "metrics", "unbounded", "was_accepted")
        }
        assert (accepted["run_id"], accepted["nodes"], refused["run_id"]) == (kept, ["node-01"], "gone")
        assert accepted["references"] > 0
        listed = json.loads(run("accept", "--list", "--json").stdout)
        assert ([one["run_id"] for one in listed["acts"]], listed["damaged"]) == ([kept], 0)
        back = json.loads(run("withdraw", kept, "--reason", "fan", "--json").stdout)
        assert back == {"run_id": kept, "references": accepted["references"], "reason": "fan"}

    @pytest.mark.parametrize("arguments", [("accept", "x"), ("accept",), ("withdraw", "x")])
    def test_an_error_prints_no_json(self, arguments: tuple[str, ...], run: Call) -> None:
        result = run(*arguments, "--json")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("rackproof: ")

    def test_a_run_of_a_busy_machine(self, run: Call, kept: str, tmp_path: Path) -> None:
        folder = tmp_path / "results" / kept
        remark = Finding(code="machine_busy", message="no speed of this run counts: n1 was not idle")
        write_run(read_run(folder).model_copy(update={"findings": (remark,)}), folder)
        run("history", "--rebuild")
        result = run("accept", kept)
        assert result.exit_code == 1
        assert "n1 was not idle" in output_of(result)

    def test_a_record_that_the_history_knows_otherwise(self, run: Call, kept: str, tmp_path: Path) -> None:
        folder = tmp_path / "results" / kept
        write_run(read_run(folder).model_copy(update={"seeds": (7,)}), folder)
        assert "differ about it" in output_of(run("accept", kept))


class TestJson:
    def test_every_command_that_prints_for_people_prints_json_too(self) -> None:
        # The option --format or the command itself names the format of these documents.
        documents = {"report", "schema", "image"}
        lacking = set()

        def look(name: str, command: click.Command) -> None:
            if isinstance(command, click.Group):
                for inner in command.list_commands(click.Context(command)):
                    found = command.get_command(click.Context(command), inner)
                    assert found is not None
                    look(inner, found)
            elif not any("--json" in option.opts for option in command.params):
                lacking.add(name)

        look("rackproof", main)
        assert lacking == documents


class TestUnfitValues:
    """Values that no option accepts. Each is a usage error, and not an unexpected error of Rackproof."""

    @pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e400", "1e12", "-1e12"])
    @pytest.mark.parametrize(
        "arguments",
        [
            ("score", ".", "--timeout"),
            ("submission", "r", "--system", "s", "--out", "o", "--timeout"),
            ("reimage", "plan", "--server-gbit"),
            ("reimage", "plan", "--idle"),
            ("compare", "a", "b", "--confidence"),
            ("nightly", "--timeout"),
            ("nightly", "--gpu-minutes"),
        ],
        ids=" ".join,
    )
    def test_a_number_out_of_range_is_refused(
        self, arguments: tuple[str, ...], value: str, run: Call
    ) -> None:
        result = run(*arguments, value)
        assert result.exit_code == 1
        assert f"Invalid value for '{arguments[-1]}'" in output_of(result)

    @pytest.mark.parametrize(
        "arguments",
        [
            ("history", "--benchmark", "\udcff"),
            ("history", "--node", "a\udcff"),
            ("accept", "\udcff"),
            ("withdraw", "\udcff"),
            ("explain", "\udcff"),
        ],
        ids=lambda arguments: arguments[0],
    )
    def test_bytes_that_are_no_text(self, arguments: tuple[str, ...], run: Call) -> None:
        result = run(*arguments)
        assert (result.exit_code, "it is not text" in output_of(result)) == (1, True)

    @pytest.mark.parametrize(
        "arguments",
        [
            ("parse",),
            ("parse", "a.log"),
            ("score",),
            ("import",),
            ("report",),
            ("compare", "a"),
            ("explain",),
            ("status",),
            ("accept",),
            ("history", "--results"),
            ("history", "--node"),
            ("adopt", "--csv"),
            ("evidence", "verify"),
            ("reimage", "status"),
        ],
        ids=" ".join,
    )
    def test_an_unset_variable_of_the_shell_is_no_folder(self, arguments: tuple[str, ...], run: Call) -> None:
        """As a path, "" is the present folder, so `score "$RESULTS"` would score another folder."""
        result = run(*arguments, "")
        assert (result.exit_code, "it is empty: is a variable" in output_of(result)) == (1, True)


class TestWithdraw:
    def test_what_was_accepted_is_taken_back_and_all_of_it_is_listed(self, run: Call, kept: str) -> None:
        assert run("accept", kept).exit_code == 0
        result = run("withdraw", kept, "--reason", "the fan was broken")
        assert result.exit_code == 0
        assert re.match(rf"withdrew \d+ references? from {kept}", output_of(result))
        listed = output_of(run("accept", "--list"))
        assert [word in listed for word in ("accept", "withdraw", "fan", kept)] == [True] * 4
        # A second withdrawal changes and logs nothing.
        assert run("withdraw", kept).exit_code == 1
        assert output_of(run("accept", "--list")) == listed

    @pytest.mark.parametrize("how", ["a full disk", "a folder in its place", "a pipe's end that nobody has"])
    def test_nothing_changes_that_the_log_does_not_have(
        self, how: str, run: Call, kept: str, tmp_path: Path
    ) -> None:
        log = tmp_path / "results/acceptances.jsonl"
        kept_log = tmp_path / "kept"

        def block() -> None:
            if how == "a full disk":
                log.symlink_to("/dev/full")
            elif how == "a folder in its place":
                log.mkdir()
            else:
                log.symlink_to("/dev/fd/999")

        def unblock() -> None:
            if log.is_dir():
                log.rmdir()
            else:
                log.unlink()

        block()
        refused = run("accept", kept)
        assert refused.exit_code == 1
        # If the log is not a file, earlier acceptances cannot be read from it.
        words = "is not a file" if log.exists() else "the file must record its acceptance"
        assert words in output_of(refused)
        unblock()
        assert run("withdraw", kept).exit_code == 1  # nothing was accepted
        assert run("accept", kept).exit_code == 0
        log.rename(kept_log)
        block()
        refused = run("withdraw", kept)
        assert (refused.exit_code, "must record its withdrawal" in output_of(refused)) == (1, True)
        unblock()
        kept_log.rename(log)
        assert run("withdraw", kept).exit_code == 0
        assert output_of(run("accept", "--list")).count(kept) == 2

    @pytest.mark.parametrize("damage", ["half a li\n", "half a li", "\0\n"])
    def test_a_damaged_line_hides_no_other(self, damage: str, run: Call, kept: str, tmp_path: Path) -> None:
        log = tmp_path / "results/acceptances.jsonl"
        assert run("accept", kept).exit_code == 0
        log.write_text(log.read_text() + damage)
        assert run("withdraw", kept).exit_code == 0
        shown = output_of(run("accept", "--list"))
        assert shown.count(kept) == 2
        assert "1 damaged line of" in shown

    def test_what_was_accepted_into_a_history_that_is_gone_can_be_accepted_or_withdrawn(
        self, run: Call, kept: str, tmp_path: Path
    ) -> None:
        assert run("accept", kept).exit_code == 0
        for path in (tmp_path / "results").glob("history.sqlite*"):
            path.unlink()
        rebuilt = run("history", "--rebuild")
        assert rebuilt.exit_code == 0
        assert f"accept it again: rackproof accept {kept}" in output_of(rebuilt)
        assert kept in output_of(run("history"))
        assert run("withdraw", kept).exit_code == 0
        assert "accept it again" not in output_of(run("history", "--rebuild"))
        assert run("withdraw", kept).exit_code == 1
        assert run("history", "--rebuild", "--results", "nowhere").exit_code == 1

    def test_a_reason_can_be_given_afterwards_and_ends_what_a_run_bounds(
        self, run: Call, kept: str, tmp_path: Path
    ) -> None:
        results = tmp_path / "results"
        assert run("accept", kept).exit_code == 0
        accepted = bounding_acceptances(results)
        assert list(accepted) == [kept]
        assert run("withdraw", kept).exit_code == 0
        assert bounding_acceptances(results) == accepted
        for blank in ((), ("--reason", ""), ("--reason", "  ")):
            assert run("withdraw", kept, *blank).exit_code == 1
        assert bounding_acceptances(results) == accepted
        assert run("withdraw", kept, "--reason", "its board was changed").exit_code == 0
        assert bounding_acceptances(results) == {}
        assert "its board was changed" in output_of(run("accept", "--list"))
        assert run("withdraw", kept, "--reason", "its board was changed").exit_code == 1

    def test_what_was_accepted_in_spite_of_an_objection_is_shown_with_its_reason(
        self, run: Call, kept: str
    ) -> None:
        assert run("accept", kept, "--despite", "capped to 400 W\x1b[2J on purpose").exit_code == 0
        listed = output_of(run("accept", "--list"))
        assert "capped to 400 W" in listed
        assert "\x1b" not in listed

    def test_an_acceptance_needs_a_run(self, run: Call, kept: str) -> None:
        assert run("accept").exit_code == 1
        assert run("withdraw", "nothing").exit_code == 1
        assert "nothing was accepted" in output_of(run("accept", "--list"))


class TestCompare:
    @pytest.fixture
    def two(self, run: Call, tmp_path: Path) -> tuple[str, str]:
        """Store two runs in the results folder, and return their ids."""
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
        compared = json.loads(run("compare", "h", "h", "--json").stdout)
        assert compared["measurements"][0]["ratio"] is None

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (("gone", "gone"), "no run gone"),
            (("2026", "2026"), "2 runs begin with 2026"),
            (("results/gone", "x"), "no run at results/gone"),
            (("damaged", "damaged"), "is damaged"),
            (("",) * 2, "it is empty"),
        ],
    )
    def test_bad_input_is_refused(
        self, names: tuple[str, str], message: str, two: tuple[str, str], run: Call, tmp_path: Path
    ) -> None:
        (tmp_path / "results/damaged").mkdir()
        (tmp_path / "results/damaged/run.json").write_text('{"run_id": 3')
        result = run("compare", *names)
        assert result.exit_code == 1
        assert message in output_of(result)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda log: log.unlink(), "its log logs/log.txt is gone or cannot be read"),
    "shorter": (lambda log: log.write_bytes(b"0.99"), "its log logs/log.txt was changed"),
    "edited": (lambda log: log.write_bytes(b"0.999 reached\n"), "its log logs/log.txt was changed"),
    "its folder gone": (lambda log: shutil.rmtree(log.parent), "its log logs/log.txt is gone"),
    "a folder in its place": (lambda log: (log.unlink(), log.mkdir()), "its log logs/log.txt was changed"),
}
"""Changes of the only log of a run, and the words about each."""


@pytest.mark.parametrize("damage", DAMAGES)
class TestLostEvidence:
    """Tests of commands that show a passing run whose log is gone or was changed."""

    @pytest.fixture
    def words(self, kept: str, tmp_path: Path, damage: str) -> str:
        """Damage the log of the run. Return the words about it."""
        act, words = DAMAGES[damage]
        act(tmp_path / "results" / kept / "logs/log.txt")
        return words

    def test_its_report_is_unproven(self, run: Call, kept: str, words: str) -> None:
        text = run("report", kept, "--format", "md").stdout
        assert text.startswith("# ? unproven: mnist-lenet")
        assert words in text
        assert words in run("report", kept, "--format", "html", "--output", "-").stdout
        counts = ElementTree.fromstring(run("report", kept, "--format", "junit").stdout.encode()).attrib
        assert int(counts["failures"]) + int(counts["errors"]) > 0
        record = json.loads(run("report", f"results/{kept}/run.json", "--format", "json").stdout)
        codes = {item["code"] for item in record["findings"] if item["verdict"] == "unproven"}
        assert (record["verdict"], bool(codes & {"log_missing", "log_changed"})) == ("unproven", True)
        assert words in record["reasons"][0]

    @pytest.mark.parametrize("name", ["{}", "results/{}", "results"])
    def test_a_comparison_says_it(self, run: Call, kept: str, words: str, name: str, tmp_path: Path) -> None:
        write_run(example_runs.healthy(run_id="whole", logs=()), tmp_path / "other/whole")
        shown = run("compare", name.format(kept), "other/whole")
        assert f"note: {kept} is unproven: {words}" in shown.stderr
        assert "unproven" in shown.stdout

    def test_a_rebuilt_history_has_it_as_unproven(self, run: Call, kept: str, words: str) -> None:
        done = run("history", "--rebuild", "--json")
        assert f"note: {kept} is unproven: {words}" in done.stderr
        (row,) = json.loads(done.stdout)
        assert (row["verdict"], words in row["reason"]) == ("unproven", True)
        refused = run("accept", kept)
        assert (refused.exit_code, words in refused.stderr) == (1, True)


def test_a_run_with_its_logs_remains_a_pass(run: Call, kept: str, tmp_path: Path) -> None:
    log = tmp_path / "results" / kept / "logs/log.txt"
    text = log.read_bytes()
    log.unlink()
    run("history", "--rebuild")
    log.write_bytes(text)
    (tmp_path / "results" / kept).rename(tmp_path / "results/renamed")
    done = run("history", "--rebuild", "--json")
    assert (json.loads(done.stdout)[0]["verdict"], "note:" in done.stderr) == ("pass", False)
    assert run("report", "renamed", "--format", "md").stdout.startswith("# ✓ pass")
    assert "note:" not in run("compare", "results", "renamed").stderr


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

    def test_a_page_that_cannot_be_written_has_its_remedy_in_a_sentence_of_its_own(
        self, run: Call, kept: str, tmp_path: Path
    ) -> None:
        (tmp_path / "results" / kept / "report.html").mkdir()
        message = run("report", kept).stderr
        assert message.endswith(": name another one. `--output -` prints the page.\n")

    # The minor numbers of the devices null (3) and full (7), and the exit status.
    @pytest.mark.parametrize(("minor", "status"), [(3, 0), (7, 1)])
    def test_a_device_is_written_to_and_stays_one(
        self, run: Call, kept: str, tmp_path: Path, minor: int, status: int
    ) -> None:
        device = tmp_path / "device"
        try:
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
            device.write_bytes(b"")
        except OSError:
            pytest.skip("no device nodes may be made here")
        result = run("report", kept, "--format", "md", "--output", str(device))
        assert result.exit_code == status, output_of(result)
        assert (os.strerror(errno.ENOSPC) in output_of(result)) == (minor == 7)
        assert device.is_char_device()
        with pytest.raises(ResultsError, match="is there and is not a file"):
            write_file(device, b"x")
        assert device.is_char_device()

    def test_several_runs_make_one_report_with_links(self, run: Call, kept: str, tmp_path: Path) -> None:
        write_run(example_runs.rack(), tmp_path / "results" / "rack")
        result = run("report", kept, "rack", "--title", "Both", "--output", "all.html")
        assert result.exit_code == 0
        page = (tmp_path / "all.html").read_text()
        assert "Both" in page
        assert f'href="results/{kept}/report.html"' in page

    def test_a_plan_stands_for_its_runs(
        self, run: Call, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_run(example_runs.rack(), tmp_path / "results" / "rack")
        (tmp_path / "results" / "plan-1").mkdir()
        made = SimpleNamespace(runs=[SimpleNamespace(run_id=kept), SimpleNamespace(run_id="rack")])
        monkeypatch.setattr("rackproof.cli.find_run.read_plan", lambda *_: made)
        of_plan = output_of(run("report", "plan-1", "--format", "md"))
        assert of_plan == output_of(run("report", kept, "rack", "--format", "md"))

    def test_showing_a_failed_run_is_no_error(self, run: Call, tmp_path: Path) -> None:
        write_run(example_runs.hostile(), tmp_path / "results" / "h")
        assert run("report", "h", "--format", "md").exit_code == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["gone"], "no run gone"),
            (["plan-gone"], "no plan plan-gone"),
            ([], "Missing argument 'RUN|PLAN...'"),
            (["x", "--format", "pdf"], "'pdf' is not one of"),
        ],
    )
    def test_bad_input_is_refused(self, arguments: list[str], message: str, run: Call) -> None:
        result = run("report", *arguments)
        assert result.exit_code == 1
        assert message in output_of(result)


def test_the_command_schema_prints_the_json_schema(run: Call) -> None:
    assert json.loads(output_of(run("schema"))) == json_schema()


class TestProgram:
    @pytest.mark.parametrize(
        ("arguments", "status"),
        [(["--help"], 0), (["-h"], 0), (["--version"], 0), ([], 1), (["prase"], 1), (["--unknown"], 1)],
    )
    def test_usage_errors_end_with_1(self, arguments: list[str], status: int, run: Call) -> None:
        assert run(*arguments).exit_code == status

    @pytest.mark.parametrize(
        ("typed", "near"), [("bensh", "bench"), ("statsu", "status"), ("hist", "history")]
    )
    def test_near_names_of_an_unknown_command(self, typed: str, near: str, run: Call) -> None:
        said = output_of(run(typed))
        assert f"No such command '{typed}'" in said
        assert f"'{near}'" in said

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
    """Return a command of ``rackproof``."""
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


@pytest.mark.parametrize("leads_to", ["", "pipe", "/dev/null"])
def test_a_pipe_or_device_in_the_place_of_the_page_is_refused(
    leads_to: str, run: Call, kept: str, tmp_path: Path
) -> None:
    page = tmp_path / "results" / kept / "report.html"
    page.unlink(missing_ok=True)
    if leads_to != "/dev/null":
        os.mkfifo(page.with_name("pipe") if leads_to else page)
    if leads_to:
        page.symlink_to(leads_to)
    result = run("report", kept)
    assert result.exit_code == 1
    assert "is there and is not a file" in output_of(result)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_other_users_read_nothing_that_a_command_writes(umask: int, tmp_path: Path, root: Path) -> None:
    log = root / "tests/data/real/mlperf-0.6/translation/DGX1.log"
    (tmp_path / "given.csv").write_text("name,address,gpu\nn1,192.0.2.1,H100\n")
    # A command changes the umask of its process, so each call is a separate process.
    program = f"import os, sys; os.umask({umask}); from rackproof.cli.main import main; main()"

    def call(*words: str) -> None:
        subprocess.run(
            [sys.executable, "-c", program, *words], check=False, capture_output=True, cwd=tmp_path
        )

    call("import", str(log), "--results", "results")
    (record,) = (tmp_path / "results").glob("*/run.json")
    call("report", str(record), "--output", "pages/page.html")
    call("adopt", "--csv", "given.csv", "--output", "cluster")
    made = [path for path in tmp_path.rglob("*") if not path.is_symlink() and path.name != "given.csv"]
    assert {path.name for path in made} >= {"history.sqlite", "page.html", "hosts.yml"}
    assert [path for path in made if path.stat().st_mode & (0o027 if path.is_dir() else 0o137)] == []
