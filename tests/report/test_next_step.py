"""Test the command that a report advises as the next step, for a run and for a plan.

If only the reference of a speed is missing, the step is to accept the run. After a failure, it is to run the
benchmark again at the same point. The tests show that the advised command is valid and names the run's nodes.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.judging import NO_REFERENCE
from rackproof.core.records import Finding, Judgement, Run, Verdict
from rackproof.report import render, write_plan_reports, write_run_reports
from rackproof.report.html import plan_page
from rackproof.report.markdown import plan_markdown
from rackproof.report.next_step import step_after_plan, step_after_run
from tests.test_message_commands import problem

# A speed without a reference, a speed below its bound, and a wrong result.
WAITS = Judgement(metric="speed", value=1.0, verdict=Verdict.UNPROVEN, gating=False, reason=NO_REFERENCE)
SLOW = Judgement(metric="speed", value=1.0, verdict=Verdict.FAIL, reason="1 is below 2")
WRONG = Finding(code="wrong_value", message="odd", verdict=Verdict.FAIL)


def run(verdict: Verdict = Verdict.UNPROVEN, **changes: Any) -> Run:
    """Return a run whose speed has no reference, with changes."""
    values = {
        "run_id": "r1",
        "plan_id": "plan-1",
        "benchmark": "gemm",
        "launcher": "local",
        "asked_nodes": ("n2", "n1"),
        "parameters": {"gpus": 4, "mode": "it's", "size": ""},
        "verdict": verdict,
        "judgements": (WAITS,),
    }
    return Run.model_validate({**values, **changes})


def test_a_plans_reports_have_the_mark_of_its_runs_once() -> None:
    marked = [run(description="test rack"), run(description="test rack"), run(description="<b>")]
    for page in (plan_page(marked, "all"), plan_markdown(marked, "all")):
        assert page.count("3 runs: 3 unproven · test rack · ") == page.count("test rack") == 1
        assert "<b>" not in page
    assert "3 unproven ·" not in plan_markdown([run()] * 3, "all")


@pytest.mark.parametrize(
    "judgements", [(WAITS,), (WAITS.model_copy(update={"gating": True}),)], ids=["candidate", "required"]
)
def test_a_run_that_lacks_only_a_reference_is_to_be_accepted(judgements: tuple[Judgement, ...]) -> None:
    assert step_after_run(run(judgements=judgements))[1] == "rackproof accept r1"
    assert step_after_plan([run(judgements=judgements)] * 2, Verdict.UNPROVEN)[1] == "rackproof accept plan-1"


@pytest.mark.parametrize(
    "changes", [{"findings": (WRONG,)}, {"judgements": (WAITS, SLOW)}, {"judgements": ()}]
)
def test_any_other_run_is_to_be_repeated_at_its_point(root: Any, changes: dict[str, Any]) -> None:
    words, command = step_after_run(run(**changes))
    assert words
    assert not problem(root, command)
    typed = shlex.split(command)
    assert typed[:5] == ["rackproof", "bench", "-l", "n1,n2", "-e"]
    assert json.loads(typed[5]) == {"benchmark": "gemm", "bench_parameters": {"gpus": 4, "mode": "it's"}}


@pytest.mark.parametrize(
    "other",
    [
        run(Verdict.PASS),
        run(Verdict.DEGRADED),
        run(provenance="imported"),
        run(launcher=""),  # a night
        run(asked_nodes=()),
    ],
)
def test_a_run_without_a_next_step_gets_no_command(other: Run) -> None:
    assert step_after_run(other) == step_after_plan([other], other.verdict) == ("", "")
    assert 'class="next"' not in render([other], "html").decode()


def test_a_plan_is_repeated_by_its_suite_or_its_bad_benchmarks() -> None:
    bad = [run(Verdict.FAIL, findings=(WRONG,), benchmark=name, parameters={}) for name in ("a", "b", "a")]
    good = run(Verdict.PASS, benchmark="c")
    command = step_after_plan([*bad, good], Verdict.FAIL)[1]
    assert json.loads(shlex.split(command)[5]) == {"benchmark": ["a", "b"]}
    of_suite = [one.model_copy(update={"suite": "quick"}) for one in (*bad, good)]
    assert step_after_plan(of_suite, Verdict.FAIL)[1] == "rackproof bench -l n1,n2 -e suite=quick"


@pytest.mark.parametrize(("count", "is_shown"), [(18, True), (200, True), (900, True), (5000, False)])
def test_a_command_for_many_nodes_is_whole_or_left_out(count: int, is_shown: bool) -> None:
    names = tuple(f"node{number:04d}" for number in range(count))
    _, command = step_after_run(run(Verdict.FAIL, findings=(WRONG,), parameters={}, asked_nodes=names))
    typed = shlex.split(command)
    assert typed == (
        ["rackproof", "bench", "-l", ",".join(names), "-e", "benchmark=gemm"] if is_shown else []
    )


def test_pages_and_markdown_show_the_next_step_as_text() -> None:
    bad = run(Verdict.FAIL, findings=(WRONG,), parameters={}, asked_nodes=("<b>n1",))
    for text in (
        render([bad], "html").decode(),
        render([bad], "md").decode(),
        plan_page([bad, bad.model_copy(update={"benchmark": "other"})], "two"),
    ):
        assert "rackproof bench -l" in text
        assert "Once the reason is removed, run it again" in text
    assert "<b>n1" not in render([bad], "html").decode()


def test_reports_in_a_folder_name_the_results_by_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("r1", "r2"):
        (tmp_path / "results" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    place = f"--results {tmp_path / 'results'}"
    lacks = write_run_reports(run(), Path("results/r1"))
    plan = write_plan_reports([run()] * 2, Path("results/plan-1"), "two")
    for path in (lacks["html"], lacks["md"]):
        assert f"rackproof accept {place} r1" in path.read_text()
    for path in (plan["html"], plan["md"]):
        assert f"rackproof accept {place} plan-1" in path.read_text()
    passed = write_run_reports(run(Verdict.PASS), Path("results/r2"))["html"].read_text()
    assert f"If the machine was idle, run `rackproof accept {place} r1`" in passed
