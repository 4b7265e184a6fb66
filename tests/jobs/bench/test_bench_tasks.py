"""Test ``rackproof.jobs.bench.tasks``, which has one function for each task of bench.yml.

The tasks select benchmarks, plan their runs on the nodes, record each run that ended, and report the plan.
The tests call these functions without Ansible and without real jobs. They check that a wrong request is
refused before a node is used, that an interrupted plan is continued, and that a plan passes only if every
requested run was made and passed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.records import Verdict
from rackproof.jobs.bench import planning, tasks
from rackproof.jobs.bench.record import job_seal
from rackproof.jobs.bench.tasks import BenchError, Choice, NodeAnswer, PlanOutcome
from rackproof.report.terminal import terminal_table
from rackproof.store.run_folder import iter_runs, read_run, write_run
from rackproof.store.sealed_json import seal_json
from tests.jobs.bench.log_states import stated_log

# A benchmark definition. `Site` inserts the name and the number of GPUs that it needs.
TEXT = """\
name: NAME
summary: Trains
needs_gpus: NEEDS
parameters: {gpus: all, batch_size: 64, target: 0.9, note: ""}
suites: {two: {batch_size: [64, 128]}, one: {}}
launch: {with: local, runtime: torch, program: train.py}
result:
  format: mllog
  judge: [{metric: eval_accuracy, at_least: "{{ target }}"}]
"""
# Raw facts of a node without GPUs.
FACTS: dict[str, Any] = {"tools": {"lscpu": {"status": "ok", "stdout": "Model name: CPU\n"}}}


def ended_job(run_id: str, log: str) -> dict[str, Any]:
    """Return the state of a job that ended well, as its supervisor writes it."""
    return {
        "id": run_id,
        "phase": "ended",
        "ended_by": "itself",
        "exit_status": 0,
        "succeeded": True,
        "started": 0,
        "ended": 4,
        **stated_log(log.encode()),
    }


class Site:
    """A folder of definitions, a results folder, and nodes that answer.

    There are two definitions: ``train`` needs no GPU, and ``probe`` needs two.
    """

    def __init__(self, folder: Path) -> None:
        self.definitions, self.results = folder / "definitions", folder / "results"
        self.definitions.mkdir()
        for name, needs in (("train", 0), ("probe", 2)):
            text = TEXT.replace("NAME", name).replace("NEEDS", str(needs))
            (self.definitions / f"{name}.yml").write_text(text)

    def choose(self, **changes: Any) -> Choice:
        """Call task select."""
        options = {
            "suite": "two",
            "benchmarks": [],
            "parameters": {},
            "sku_references": [],
            "hosts": ["n1"],
            "owner_pid": None,
        }
        return tasks.select_benchmarks(self.definitions, self.results, **{**options, **changes})

    def plan(self, *hosts: str, unreached: tuple[str, ...] = (), **changes: Any) -> PlanOutcome:
        """Call tasks select and plan. Each host answers with the same facts."""
        asked = hosts or ("n1",)
        resume = changes.pop("resume", True)
        dry_run = changes.pop("dry_run", False)
        variables = {"bench_home": "/home", "bench_workloads": "/workloads", "bench_sku": ""}
        facts, pythons = changes.pop("facts", FACTS), changes.pop("pythons", {})
        answer = NodeAnswer(facts=facts, variables=variables, pythons=pythons)
        return tasks.plan_runs(
            self.choose(**{"benchmarks": ["train"], **changes}),
            hosts=[*asked, *unreached],
            answered=dict.fromkeys(asked, answer),
            resume=resume,
            dry_run=dry_run,
        )

    def record(self, outcome: PlanOutcome, number: int = 0, **changes: Any) -> Verdict:
        """Call task record for a planned run, by default with a job and a log that are good."""
        planned = outcome.plan.runs[number]
        log = changes.pop("log", LOG)
        if log is not None:
            path = self.results / planned.run_id / "logs" / f"{planned.lead}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(log)
        job = ended_job(planned.run_id, log or "")
        options = {
            "facts": {planned.lead: FACTS},
            "sku": "",
            "sku_references": [],
            "required": tasks.Requirements(references=False),
            "job": {**job, "seal": job_seal(job)},
            "failure": "",
            "command": ["python", "train.py"],
            "texts": {"description": "", "notes": "", "storage": "", "network": ""},
        }
        plan_id = outcome.plan.plan_id
        return tasks.record_run(self.results, plan_id, planned.run_id, **{**options, **changes}).run.verdict


PROGRAM = """\
name: disk
summary: Measures a disk
parameters: {threads: 4}
launch: {with: local, command: [fio, "{{ threads }}"]}
result:
  format: lines
  lines: {good_end: "^done", metrics: {speed: {pattern: "^speed (.*)", unit: MB/s}}}
  judge: [{metric: speed}]
"""


@pytest.mark.parametrize(
    ("facts", "why"),
    [({}, ""), ({"programs": {"fio": True}}, ""), ({"programs": {"fio": False}}, "n1: fio is not there")],
)
def test_a_program_that_a_node_lacks_is_found_before_the_run(
    site: Site, facts: dict[str, Any], why: str
) -> None:
    (site.definitions / "disk.yml").write_text(PROGRAM)
    assert site.choose(benchmarks=["disk"]).programs == ("fio",)
    for dry_run in (True, False):
        outcome = site.plan(benchmarks=["disk"], facts={**FACTS, **facts}, dry_run=dry_run)
        assert outcome.plan.runs[0].unproven_because.startswith(why)
        assert bool(outcome.plan.runs[0].unproven_because) is bool(why)
        assert ("UNPROVEN: n1: fio is not there: install it" in outcome.description) is bool(why)


def test_only_a_program_that_the_node_s_path_has_to_find_is_looked_for(site: Site) -> None:
    text = PROGRAM.replace("command:", "environment: {PATH: /opt/bin}, command:")
    (site.definitions / "disk.yml").write_text(text)
    outcome = site.plan(benchmarks=["disk"], facts={**FACTS, "programs": {"fio": False}})
    assert outcome.plan.runs[0].unproven_because == ""
    for program, looked_for in (("{{ bench_home }}/fio", ()), ("./fio", ()), ("fio{{ threads }}", ("fio4",))):
        (site.definitions / "disk.yml").write_text(PROGRAM.replace("[fio, ", f'["{program}", '))
        assert site.choose(benchmarks=["disk"]).programs == looked_for


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"status": "absent"}, "bench_pythons names /usr/bin/python3 for torch, which does not exist"),
        ({"status": "ok", "said": {"imports": {"torch": False, "mlperf_logging.mllog": True}}}, "no torch:"),
        ({"status": "ok", "said": {"imports": {"torch": True}}}, ""),
        # If the interpreter did not answer, the run itself will show what is wrong.
        ({"status": "hung"}, ""),
        ({}, ""),
        ("text", ""),
    ],
)
def test_an_interpreter_without_the_runtime_is_found_before_the_run(
    site: Site, root: Path, answer: Any, why: str
) -> None:
    assert site.choose(workloads=root / "workloads").imports["torch"][0] == "torch"
    facts = {**FACTS, "pythons": {"torch": answer}}
    outcome = site.plan(facts=facts, pythons={"torch": "/usr/bin/python3"})
    assert why in outcome.plan.runs[0].unproven_because
    assert bool(outcome.plan.runs[0].unproven_because) is bool(why)


MISSING_PROGRAM = {"facts": {**FACTS, "programs": {"fio": False}}}
"""Answer of a node that lacks the program of the benchmark `disk`."""
MISSING_MODULE = {
    "facts": {**FACTS, "pythons": {"torch": {"status": "ok", "said": {"imports": {"torch": False}}}}},
    "pythons": {"torch": "/usr/bin/python3"},
}
"""Answer of a node whose named interpreter lacks a module of the benchmark `train`."""


@pytest.mark.parametrize(
    ("benchmarks", "before", "now", "words"),
    [
        (["disk"], MISSING_PROGRAM, {"facts": FACTS}, ""),
        (["disk"], MISSING_PROGRAM, MISSING_PROGRAM, "fio is not there"),
        (["train"], MISSING_MODULE, {**MISSING_MODULE, "facts": FACTS}, ""),
        (["disk", "train"], MISSING_MODULE | MISSING_PROGRAM, {"facts": FACTS}, ""),
        # The job of a run without an obstacle may already run, so it is followed.
        (["disk"], {"facts": FACTS}, MISSING_PROGRAM, ""),
    ],
)
def test_a_plan_that_is_continued_has_only_the_obstacles_that_remain(
    site: Site, benchmarks: list[str], before: dict[str, Any], now: dict[str, Any], words: str
) -> None:
    (site.definitions / "disk.yml").write_text(PROGRAM)
    first = site.plan(benchmarks=benchmarks, **before)
    second = site.plan(benchmarks=benchmarks, **now)
    assert second.resumed
    assert second.plan.plan_id == first.plan.plan_id
    assert ("UNPROVEN" in second.description) is bool(words)
    for run in second.plan.runs:
        assert words in run.unproven_because
        assert bool(run.unproven_because) is bool(words)
        # The tasks that record a run read the plan again.
        stored = tasks.planned_run(site.results, second.plan.plan_id, run.run_id)
        assert stored.unproven_because == run.unproven_because
    # Nothing changed, so the plan is not written again.
    (path,) = site.results.glob("plan-*/plan.json")
    written = path.stat().st_mtime_ns
    assert site.plan(benchmarks=benchmarks, **now).resumed
    assert path.stat().st_mtime_ns == written


def test_a_parameter_that_is_given_as_a_variable_is_refused(site: Site) -> None:
    with pytest.raises(BenchError) as caught:
        site.choose(benchmarks=["train"], variables={"batch_size": "32", "suite": "two"})
    assert "batch_size is a parameter of train, and no variable" in str(caught.value)
    # The command that the message advises works.
    advised = str(caught.value).partition("-e '")[2].partition("'")[0]
    values = json.loads(advised)["bench_parameters"]
    assert site.choose(benchmarks=["train"], parameters=values).parameters == {"batch_size": (32,)}


def event(key: str, value: object, **metadata: object) -> str:
    """Return a line of an MLPerf log. Its time is within the job of :func:`ended_job`."""
    moment_ms = {"run_start": 1000, "run_stop": 3000}.get(key, 2000)
    line = {
        "time_ms": moment_ms,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": metadata,
    }
    return f":::MLLOG {json.dumps(line)}\n"


LOG = event("run_start", None) + event("eval_accuracy", 0.95) + event("run_stop", None, status="success")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# A value on the command line is a text. It becomes a number if the parameter's default is one.
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"batch_size": 32}, (32,)),
        ({"batch_size": "32"}, (32,)),
        ({"batch_size": [32, "64"]}, (32, 64)),
        ({"target": "0.5"}, (0.5,)),
        ({"target": "1e-3"}, (0.001,)),
        ({"note": "nan"}, ("nan",)),
        ({"note": "inf"}, ("inf",)),
        ({"note": "9" * 5000}, ("9" * 5000,)),
        ({"note": str(2**63 - 1)}, (2**63 - 1,)),
        ({"note": str(2**63)}, (str(2**63),)),
        ({"note": str(-(2**64))}, (str(-(2**64)),)),
        ({"note": "1e30"}, (1e30,)),
        ({"note": True}, (True,)),
        ({"note": "{{ bench_home }}"}, ("{{ bench_home }}",)),
    ],
)
def test_a_text_of_the_operator_becomes_a_number_if_the_default_is_one(
    site: Site, given: dict[str, Any], kept: tuple[object, ...]
) -> None:
    (values,) = site.choose(parameters=given).parameters.values()
    assert values == kept
    assert [type(one) for one in values] == [type(one) for one in kept]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": {"batch_size": None}}, "bench_parameters: batch_size"),
        ({"parameters": {"batch_size": {"a": 1}}}, "bench_parameters: batch_size"),
        ({"parameters": {"batch_size": [[1]]}}, "bench_parameters: batch_size"),
        ({"parameters": {"batch_size": []}}, "batch_size: an empty list"),
        ({"parameters": {"batch_size": math.nan}}, "bench_parameters: batch_size"),
        ({"parameters": {"target": math.inf}}, "bench_parameters: target"),
        ({"parameters": {3: 4}}, "no parameter `3`"),
        ({"parameters": {"bach_size": 1}}, "`batch_size`"),
        # Without this check, a bound that is not a number would be found only after the training.
        ({"parameters": {"target": "high"}}, "`target` is 'high': it has to be a number, as 0.9"),
        ({"parameters": {"target": "nan"}}, "`target` is 'nan': it has to be a number"),
        ({"parameters": {"target": [0.9, "high"]}}, "`target` is 'high': it has to be a number, as 0.9"),
        ({"parameters": {"target": ""}}, "{{ target }} is empty"),
        ({"benchmarks": ["trane"]}, "`train`"),
        ({"suite": "tow"}, "`two`"),
        ({"sku_references": [{"metric": "x"}]}, "bench_sku_references: entry 1: reference.value"),
        ({"sku_references": [{"metric": "x", "value": 0, "unit": "", "source": ""}]}, "low, high or warn"),
        ({"sku_references": [{"metric": "x", "value": "fast", "unit": "", "source": ""}]}, "entry 1"),
        ({"sku_references": ["fast"]}, "entry 1"),
    ],
)
def test_invalid_requests_are_refused_with_a_reason(site: Site, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BenchError) as raised:
        site.choose(**changes)
    assert words in str(raised.value)
    assert not site.results.exists()


@pytest.mark.parametrize("name", ["\ud800", "share\udcff", "\udfff\ud800"])
@pytest.mark.parametrize("read", [tasks._site, tasks._experiment])
def test_a_variable_whose_name_is_not_unicode_is_refused(read: Callable[..., Any], name: str) -> None:
    with pytest.raises(BenchError, match="n1: the name of a variable: "):
        read("n1", {name: ""})


def test_a_dry_run_stores_nothing(site: Site) -> None:
    assert len(site.plan(dry_run=True, suite="two", benchmarks=[]).plan.runs) == 2
    assert not site.results.exists()


def test_a_variable_that_a_node_lacks_is_named(site: Site) -> None:
    answer = NodeAnswer(facts=FACTS, variables={"bench_home": "/home"}, pythons={})
    with pytest.raises(BenchError, match=r"n1: .*bench_workloads"):
        tasks.plan_runs(
            site.choose(benchmarks=["train"]),
            hosts=["n1"],
            answered={"n1": answer},
            resume=True,
            dry_run=False,
        )


def test_a_plan_passes_if_all_its_runs_pass(site: Site) -> None:
    outcome = site.plan()
    assert site.record(outcome) == "pass"
    report = tasks.report_plan(site.results, outcome.plan.plan_id)
    assert (report.verdict, report.gates) == ("pass", False)
    assert Path(report.report).is_file()


@pytest.mark.parametrize("is_default", [True, False])
def test_accept_is_suggested_with_the_results_folder_that_it_needs(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_default: bool
) -> None:
    monkeypatch.setattr(tasks, "speeds_not_judged", lambda runs, name: f"rackproof accept {name}.")
    outcome = site.plan()
    site.record(outcome)
    monkeypatch.chdir(site.results.parent if is_default else site.results)
    words = "" if is_default else f" --results {site.results}"
    message = tasks.report_plan(site.results, outcome.plan.plan_id).message
    assert f"rackproof accept{words} {outcome.plan.plan_id}." in message


@pytest.mark.parametrize("place", ["there", "not/yet/there", "file/below"])
def test_a_dry_run_names_results_that_cannot_be_written(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    assert "cannot write" not in site.plan(dry_run=True).description
    if not place.startswith("file"):
        # Root may write anywhere, whatever a folder's mode is.
        monkeypatch.setattr(os, "access", lambda *_: False)
    site.results = tmp_path / place
    text = site.plan(dry_run=True).description
    assert f"cannot write {tmp_path / place}" in text
    assert "bench_results" in text
    assert not (tmp_path / "not").exists()


def test_a_run_that_is_recorded_is_not_made_again(site: Site) -> None:
    first = site.plan(benchmarks=[], suite="two")
    site.record(first)
    second = site.plan(benchmarks=[], suite="two")
    assert (second.plan.plan_id, second.resumed) == (first.plan.plan_id, True)
    assert [run["run_id"] for run in second.remaining["n1"]] == [first.plan.runs[1].run_id]
    assert "1 of 2 done" in second.description
    # The text has only the runs that remain, and their time.
    assert "two: 1 run;" in second.description
    assert second.description.count("  n1: ") == len(first.plan.runs) - 1


def test_a_job_left_running_is_followed_by_the_next_playbook(site: Site) -> None:
    first = site.plan()
    (planned,) = first.plan.runs
    running = {"id": planned.run_id, "phase": "running"}
    failure = "Follow the job: the node gives no answer"
    assert site.record(first, log=None, job=running, failure=failure) == "unproven"
    report = tasks.report_plan(site.results, first.plan.plan_id)
    assert report.gates
    (recorded,) = iter_runs(site.results)
    # The table below the message has the reasons.
    assert "start the playbook again" in terminal_table([recorded], width=400)
    assert recorded.reasons[0] not in report.message

    second = site.plan()
    assert second.resumed
    assert [run["run_id"] for run in second.remaining["n1"]] == [planned.run_id]
    assert site.record(second) == "pass"
    assert not tasks.report_plan(site.results, first.plan.plan_id).gates


@pytest.mark.parametrize(
    ("hosts", "options", "words"),
    [
        # One run of two has no record.
        (("n1",), {"benchmarks": [], "suite": "two"}, "batch_size=128 target=0.9 on n1: has no record"),
        (("n1",), {"unreached": ("n2",)}, "n2: not reached"),
        # The benchmark needs two GPUs, and the node has none.
        (("n1",), {"benchmarks": ["probe"]}, "n1: nothing could be run on it: probe: needs 2 GPUs, n1 has 0"),
    ],
)
def test_a_plan_with_a_missing_run_or_node_is_unproven(
    site: Site, hosts: tuple[str, ...], options: dict[str, Any], words: str
) -> None:
    outcome = site.plan(*hosts, **options)
    if outcome.plan.runs:
        assert site.record(outcome) == "pass"
    report = tasks.report_plan(site.results, outcome.plan.plan_id)
    assert (report.verdict, report.gates) == ("unproven", True)
    assert words in report.message
    assert "unproven" in Path(report.report).read_text().lower()


def test_a_plan_in_which_one_node_has_no_run_is_unproven(site: Site) -> None:
    """A node that lost its GPUs has no run that could fail, but the plan does not pass."""
    outcome = site.plan("n1", "n2")
    lost = planning.Skipped(benchmark="train", node="n2", reason="needs 4 GPUs, n2 has 0")
    made = outcome.plan.model_copy(update={"runs": outcome.plan.runs[:1], "skipped": (lost,)})
    (site.results / made.plan_id / planning.PLAN_FILE).write_bytes(seal_json(made.model_dump_json()))
    assert site.record(outcome) == "pass"
    report = tasks.report_plan(site.results, made.plan_id)
    assert (report.verdict, report.gates) == ("unproven", True)
    assert "n2: nothing could be run on it" in report.message


def test_a_page_that_could_not_be_written_is_written_with_the_report_of_the_plan(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    outcome = site.plan()
    with monkeypatch.context() as patched:
        patched.setattr("rackproof.jobs.bench.record.write_run_reports", full)
        assert site.record(outcome) == "pass"
    page = site.results / outcome.plan.runs[0].run_id / "report.html"
    assert not page.exists()
    assert site.plan().resumed is False
    tasks.report_plan(site.results, outcome.plan.plan_id)
    assert page.is_file()


@pytest.mark.parametrize("damage", [Path.unlink, lambda log: log.write_bytes(log.read_bytes()[:-1])])
def test_a_resumed_plan_whose_logs_changed_after_they_were_judged_is_unproven(
    site: Site, damage: Callable[[Path], object]
) -> None:
    first = site.plan(benchmarks=[], suite="two")
    site.record(first)
    run = read_run(site.results / first.plan.runs[0].run_id)
    damage(site.results / run.run_id / run.logs[0].path)
    second = site.plan(benchmarks=[], suite="two")
    assert site.record(second, number=1) == "pass"
    report = tasks.report_plan(site.results, first.plan.plan_id)
    assert (report.verdict, report.gates) == ("unproven", True)
    assert f"its log {run.logs[0].path}" in report.message
    assert f"move its folder {run.run_id} out of the results" in report.message


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: run.write_text("{"),
        lambda run: run.write_text(run.read_text().replace('"exit_status": 0', '"exit_status": 1')),
        lambda run: write_run(read_run(run).model_copy(update={"benchmark": "other"}), run.parent),
        lambda run: write_run(read_run(run).model_copy(update={"run_id": "another"}), run.parent),
    ],
)
def test_a_record_that_is_damaged_or_of_another_run_stops_the_report(site: Site, damage: Any) -> None:
    outcome = site.plan()
    site.record(outcome)
    damage(site.results / outcome.plan.runs[0].run_id / "run.json")
    with pytest.raises(BenchError, match=r"run\.json"):
        tasks.report_plan(site.results, outcome.plan.plan_id)


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, "pass", ""),
        ({"log": None}, "unproven", "there is no log"),
        ({"facts": {}}, "unproven", "took no part"),
        ({"facts": {"n1": {}}}, "unproven", "no tool's answer"),
        ({"facts": {"n1": None}}, "unproven", "no tool's answer"),
        ({"facts": {"n1": {"tools": ["x"], "cpu_count": "many"}}}, "unproven", "no tool's answer"),
        ({"job": {}}, "unproven", "nothing is known"),
        ({"log": None, "job": {}, "failure": "Stage the data: full"}, "unproven", "Stage the data: full"),
    ],
)
def test_a_run_is_recorded_whatever_evidence_is_missing(
    site: Site, changes: dict[str, Any], verdict: str, words: str
) -> None:
    outcome = site.plan()
    assert site.record(outcome, **changes) == verdict
    run = read_run(site.results / outcome.plan.runs[0].run_id)
    assert any(words in reason for reason in run.reasons) or not words, run.reasons


def test_a_run_that_is_in_no_plan_is_refused(site: Site) -> None:
    outcome = site.plan()
    with pytest.raises(BenchError, match="has no run other"):
        tasks.planned_run(site.results, outcome.plan.plan_id, "other")
    with pytest.raises(BenchError, match="start the playbook again"):
        tasks.planned_run(site.results, "plan-x", "other")


# Results of failed Ansible tasks, and the reason in them. Control characters and secrets are left out.
@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"msg": "it broke"}, "it broke"),
        ({"msg": "non-zero return code", "stderr": "a\nb\n"}, "a\nb"),
        ({"stderr": "\n".join("abcdefg")}, "c\nd\ne\nf\ng"),
        ({"module_stderr": "Traceback"}, "Traceback"),
        (
            {"msg": "Module result deserialization failed: No start of json", "module_stderr": "sudo: no"},
            "sudo: no",
        ),
        (
            {"msg": "non-zero return code", "stdout": "canary", "_ansible_no_log": True},
            "non-zero return code",
        ),
        ({"results": [{"failed": False, "msg": "x"}, {"failed": True, "msg": "second"}]}, "second"),
        ({"results": "odd", "msg": "it broke"}, "it broke"),
        ({"results": 3, "msg": "it broke"}, "it broke"),
        ({"results": [3, None], "msg": ["a", "b"]}, "a\nb"),
        ({}, "no reason given"),
        ({"msg": "\x1b]0;title\x07\x1b[2Jcleared\u202e"}, "cleared"),
        ({"stderr": "\x1b[31mred\x1b[0m\r\nblue\x9b2J"}, "red\nblue"),
        ({"results": [{"failed": True, "stderr": "\x1bP1;x\x1b\\shown"}]}, "shown"),
    ],
)
def test_why_a_task_failed(result: dict[str, Any], said: str) -> None:
    assert tasks.failure_message("Stage the data", result) == f"Stage the data: {said}"


RACK = """\
name: big
summary: Trains on a rack
container: {images: {amd64: "a/b:1", arm64: "a/b:1"}, folder: /workspace}
configs: {systems: {gb300: GB300}}
launch: {with: slurm}
result: {format: mllog, repeats: 10, judge: [{metric: eval_accuracy, at_least: 0.9}]}
"""
END = {"end": {"job": "7", "state": "COMPLETED", "exit_code": "0:0", "nodes": ["n1"]}}
ON_RACK = f":::RACKPROOF {json.dumps(END)}\n"


def on_rack(site: Site, *more: str, **slurm: Any) -> PlanOutcome:
    """Return the plan of a run through Slurm on node n1 and more nodes."""
    (site.definitions / "big.yml").write_text(RACK)
    answer = NodeAnswer(
        facts=FACTS,
        variables={"bench_home": "/home", "bench_workloads": "/workloads"},
        pythons={},
        slurm={"shared": "/shared", "sku": "gb300", "sku_gpus": 4, **slurm},
    )
    choice = site.choose(benchmarks=["big"])
    hosts = ["n1", *more]
    return tasks.plan_runs(
        choice, hosts=hosts, answered=dict.fromkeys(hosts, answer), resume=True, dry_run=False
    )


def test_only_the_node_of_a_rack_that_submits_needs_the_workloads(site: Site) -> None:
    assert on_rack(site, "n2", "n3").workers == ("n1",)


def test_a_run_on_a_rack_has_the_program_and_the_arguments_that_start_it(site: Site) -> None:
    (run,) = on_rack(site).remaining["n1"]
    assert run["program"] == "slurm_run.py"
    (plan,) = site.results.glob("plan-*")
    assert run["arguments"][-2:] == [f"--id={run['run_id']}", f"--plan={plan.name}"]
    assert run["runtime_arguments"] == []
    assert run["code"] == f"/shared/runs/{run['run_id']}/code"


def test_a_wrong_variable_of_a_cluster_is_named(site: Site) -> None:
    with pytest.raises(BenchError, match=r"n1: bench_image: .*docs/using/mlperf.md"):
        on_rack(site, image="docker")


@pytest.mark.parametrize(
    ("slurm", "words"),
    [
        ({"images": {"x": "BAD NAME"}}, r"n1: bench_images\.x: "),
        ({"secrets": {"TOKEN": 3}}, "n1: bench_secret_environment: "),
        ({"environment": {"HF_TOKEN": "canary"}}, "n1: bench_environment: "),
        ({"queue_s": 0}, "n1: bench_queue_s: "),
        ({"sku_gpus": "x"}, "n1: bench_sku_gpus: "),
    ],
)
def test_each_wrong_variable_of_a_cluster_has_its_name(site: Site, slurm: dict[str, Any], words: str) -> None:
    with pytest.raises(BenchError, match=f"^{words}.*docs/using/mlperf.md") as caught:
        on_rack(site, **slurm)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("experiment", "words"),
    [
        ({"port": 80}, "n1: bench_meet_port: "),
        ({"overlay_subnet": "x"}, "n1: bench_overlay_subnet: "),
        ({"storages": {"s3": {"kind": "tape"}}}, r"n1: bench_storages\.s3\.kind: "),
    ],
)
def test_a_wrong_variable_of_experiments_is_named(site: Site, experiment: dict[str, Any], words: str) -> None:
    variables = {"bench_home": "/home", "bench_workloads": "/workloads"}
    answer = NodeAnswer(facts=FACTS, variables=variables, pythons={}, experiment=experiment)
    with pytest.raises(BenchError, match=f"^{words}.*docs/using/experiments.md"):
        tasks.plan_runs(
            site.choose(benchmarks=["train"]),
            hosts=["n1"],
            answered={"n1": answer},
            resume=True,
            dry_run=True,
        )


def test_two_bad_repeats_end_the_others_and_the_report_gives_the_reason(site: Site) -> None:
    outcome = on_rack(site, repeats=4)
    plan_id = outcome.plan.plan_id
    for number in range(2):
        assert site.record(outcome, number, log=ON_RACK) == "unproven"
        assert bool(tasks.abandoned_results(site.results, plan_id)) is (number == 1)
    assert on_rack(site, repeats=4).remaining == {}
    report = tasks.report_plan(site.results, plan_id)
    assert report.gates
    assert "the other repeats were not made: the result cannot become valid" in report.message
    assert "has no record" not in report.message


def test_too_few_repeats_for_a_result_do_not_fail_the_plan(site: Site) -> None:
    outcome = on_rack(site, repeats=2)
    for number in range(2):
        end = {**END["end"], "name": outcome.plan.runs[number].run_id, "node_count": 1}
        end |= {"start": "1970-01-01T00:00:01", "end": "1970-01-01T00:01:00"}
        log = f"{LOG}:::RACKPROOF {json.dumps({'end': end})}\n"
        assert site.record(outcome, number, log=log) == "pass"
    report = tasks.report_plan(site.results, outcome.plan.plan_id)
    assert (report.verdict, report.gates) == (Verdict.PASS, False)
    assert "big: no rules to score by" in report.message


@pytest.mark.parametrize(
    ("scored", "verdict", "line"),
    [
        (None, Verdict.PASS, "big: 12 min"),
        (Verdict.PASS, Verdict.PASS, "big: 12 min"),
        (Verdict.DEGRADED, Verdict.DEGRADED, "degraded: big: 12 min"),
        (Verdict.UNPROVEN, Verdict.UNPROVEN, "unproven: big: 12 min"),
        (Verdict.FAIL, Verdict.FAIL, "fail: big: 12 min"),
    ],
)
def test_a_score_counts_for_the_plan_whatever_its_verdict(
    site: Site, monkeypatch: pytest.MonkeyPatch, scored: Verdict | None, verdict: Verdict, line: str
) -> None:
    monkeypatch.setattr(tasks, "score_repeats", lambda runs, results: (scored, "12 min"))
    outcome = on_rack(site, repeats=2)
    for number in range(2):
        end = {**END["end"], "name": outcome.plan.runs[number].run_id, "node_count": 1}
        end |= {"start": "1970-01-01T00:00:01", "end": "1970-01-01T00:01:00"}
        site.record(outcome, number, log=f"{LOG}:::RACKPROOF {json.dumps({'end': end})}\n")
    report = tasks.report_plan(site.results, outcome.plan.plan_id)
    assert (report.verdict, report.gates) == (verdict, verdict.gates)
    assert line in report.message.splitlines()


def test_nodes_that_the_requested_number_leaves_idle_are_named_and_do_not_gate(site: Site) -> None:
    text = (site.definitions / "train.yml").read_text().replace("parameters: {", 'parameters: {nodes: "", ')
    (site.definitions / "train.yml").write_text(text)
    outcome = site.plan("n1", "n2", "n3", parameters={"nodes": 1})
    assert outcome.plan.idle == ("n2", "n3")
    # The setup of the node is tested elsewhere, so the stored plan has none.
    runs = tuple(run.model_copy(update={"setup": None}) for run in outcome.plan.runs)
    stored = outcome.plan.model_copy(update={"runs": runs})
    (site.results / stored.plan_id / planning.PLAN_FILE).write_bytes(seal_json(stored.model_dump_json()))
    assert site.record(outcome) == "pass"
    report = tasks.report_plan(site.results, outcome.plan.plan_id)
    assert (report.verdict, report.gates) == (Verdict.PASS, False)
    for text in (outcome.description, report.message, Path(report.report).read_text()):
        assert "without a run: n[2-3]" in text
    # The nodes are part of the request, so that a plan that lacks them is not continued for it.
    assert site.plan("n1", parameters={"nodes": 1}).plan.fingerprint != outcome.plan.fingerprint


def rack_of(site: Site, **by_host: dict[str, Any]) -> PlanOutcome:
    """Return the plan of a run on a rack whose nodes the inventory describes one by one."""
    (site.definitions / "big.yml").write_text(RACK)
    variables = {"bench_home": "/home", "bench_workloads": "/workloads"}
    answered = {
        host: NodeAnswer(facts=FACTS, variables=variables, pythons={}, slurm={"shared": "/shared", **slurm})
        for host, slurm in by_host.items()
    }
    return tasks.plan_runs(
        site.choose(benchmarks=["big"]), hosts=list(by_host), answered=answered, resume=True, dry_run=False
    )


@pytest.mark.parametrize(
    ("second", "code", "words"),
    [
        ({"sku": "h200", "sku_gpus": 4}, "skus_differ", "n1 is gb300, n2 is h200"),
        ({}, "skus_differ", "n2 is of no SKU"),
        ({"sku": "gb300", "sku_gpus": 0}, "sku_gpus_unknown", "n2: the number of GPUs"),
        ({"sku": "gb300", "sku_gpus": 8}, "gpus_missing", "n2: has 0 of 8 GPUs"),
        ({"sku": "gb300", "sku_gpus": 4}, "", ""),
    ],
)
def test_each_node_is_judged_by_its_own_sku(
    site: Site, second: dict[str, Any], code: str, words: str
) -> None:
    outcome = rack_of(site, n1={"sku": "gb300", "sku_gpus": 4}, n2=second)
    site.record(outcome, facts={"n1": FACTS, "n2": FACTS}, sku="gb300", sku_gpus=4)
    findings = read_run(site.results / outcome.plan.runs[0].run_id).findings
    assert ("skus_differ" in {one.code for one in findings}) == (code == "skus_differ")
    assert any(one.code == code and words in one.message for one in findings) or not code
    assert any(one.message.startswith("n1: has 0 of 4 GPUs") for one in findings)


def test_all_nodes_of_a_plan_without_skus_have_the_sku_of_the_lead(site: Site) -> None:
    outcome = rack_of(site, n1={"sku": "gb300", "sku_gpus": 4}, n2={"sku": "h200", "sku_gpus": 8})
    (plan,) = site.results.glob("plan-*/plan.json")
    kept = json.loads(plan.read_text())
    for run in kept["runs"]:
        del run["node_skus"]
    # Plans of earlier versions have no SKUs of the nodes.
    del kept["sha256"]
    plan.write_bytes(seal_json(json.dumps(kept)))
    site.record(outcome, facts={"n1": FACTS, "n2": FACTS}, sku="gb300", sku_gpus=4)
    findings = read_run(site.results / outcome.plan.runs[0].run_id).findings
    assert any(one.message.startswith("n2: has 0 of 4 GPUs") for one in findings)


def test_a_part_of_the_job_that_is_of_another_run_is_found(site: Site) -> None:
    outcome = site.plan()
    planned = outcome.plan.runs[0]
    part = ended_job("another-run", LOG)
    site.record(outcome, jobs={"n2": {**part, "seal": job_seal(part)}})
    codes = [one.code for one in read_run(site.results / planned.run_id).findings]
    assert codes.count("another_job") == 1


SPEED_LOG = "speed 100\ndone\n"
# The use of a machine by others, as the supervisor of a job states it (core.records.MachineUse).
WATCHED = {
    "cpus": 2, "seconds": 4.0, "disturbed_s": 0.0, "others_s": 0.0, "stolen_s": 0.0, "names": [],
    "begin": None, "end": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "idle", "reason"),
    [
        (WATCHED, True, ""),
        (None, True, "n1 is not known to have been idle"),
        (None, False, ""),
    ],
)
def test_a_speed_of_a_machine_that_was_not_watched_is_unproven(
    site: Site, machine: dict[str, Any] | None, idle: bool, reason: str
) -> None:
    text = PROGRAM.replace("judge: [{metric: speed}]", "judge: [{metric: speed, at_least: 90}]")
    (site.definitions / "disk.yml").write_text(text)
    outcome = site.plan(benchmarks=["disk"], suite="")
    (planned,) = outcome.plan.runs
    job = {
        **ended_job(planned.run_id, SPEED_LOG),
        "elapsed_s": 4.0,
        **({"machine": machine} if machine else {}),
    }
    verdict = site.record(
        outcome,
        log=SPEED_LOG,
        job={**job, "seal": job_seal(job)},
        required=tasks.Requirements(references=False, idle=idle),
    )
    (run,) = iter_runs(site.results)
    assert verdict is (Verdict.UNPROVEN if reason else Verdict.PASS), run.reasons
    assert any(reason in one for one in run.reasons) or not reason
