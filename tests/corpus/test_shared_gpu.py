"""Test a case of the corpus with the state of its GPU before and after the run.

A probe logs these states to show whether another program used the GPU (:mod:`rackproof.logs.gpu_use`). The
tests add them to the log of a healthy H200. They check that a GPU which is shared makes the run unproven, and
that the verdict does not get better if a state or one of its readings is removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof.core.records import Verdict
from tests.corpus import judging
from tests.logs.log_samples import IDLE_GPU

CASE = "h200-c-gemm-alone"
BUSY = {
    **IDLE_GPU,
    "memory_used_mib": 723.0,
    "utilisation_percent": 45.0,
    "processes": [{"pid": 4711, "memory_mib": 714.0, "name": "python3"}],
}
"""The state of a GPU that another program uses."""
Judge = Callable[[dict[str, Any] | None, dict[str, Any] | None], judging.Judged]


@pytest.fixture
def judge_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Return a function that judges the log with two states. With None, the log has no such event.

    The first state is that before the run, and the second one that after it.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)
    source = judging.CORPUS
    raw = yaml.safe_load((source / "cases" / CASE / judging.CASE_FILE).read_text())
    del raw["result"]
    lines = judging.read_text(source / "cases" / CASE, raw["logs"]["localhost"]).splitlines(keepends=True)
    (facts,) = [json.loads(line.partition(":::MLLOG ")[2]) for line in lines if '"key": "facts"' in line]
    corpus = tmp_path / "corpus"
    (corpus / "cases" / CASE).mkdir(parents=True)
    (corpus / "machines").symlink_to(source / "machines")
    (corpus / "cases" / CASE / judging.CASE_FILE).write_text(yaml.safe_dump(raw))
    monkeypatch.setattr(judging, "CORPUS", corpus)

    def event(moment: str, state: dict[str, Any]) -> str:
        value = {"moment": moment, "gpu": facts["value"]["gpus"], **state}
        last = json.loads(lines[-1].partition(":::MLLOG ")[2])["time_ms"]
        time_ms = facts["time_ms"] - 1 if moment == "begin" else last + 1
        return f":::MLLOG {json.dumps({**facts, 'time_ms': time_ms, 'key': 'gpu_state', 'value': value})}\n"

    def judge(begin: dict[str, Any] | None, end: dict[str, Any] | None) -> judging.Judged:
        first = next(at for at, line in enumerate(lines) if '"key": "facts"' in line)
        text = [*lines[:first], *([event("begin", begin)] if begin is not None else []), *lines[first:]]
        text += [event("end", end)] if end is not None else []
        (corpus / "cases" / CASE / "localhost.log").write_text("".join(text))
        results = tmp_path / f"results-{len(list(tmp_path.iterdir()))}"
        results.mkdir()
        return judging.judge_case(CASE, results)

    return judge


def test_an_idle_gpu_passes_and_a_shared_one_does_not(judge_with: Judge) -> None:
    assert judge_with(IDLE_GPU, IDLE_GPU).verdict is Verdict.PASS
    for states in ((BUSY, IDLE_GPU), (IDLE_GPU, BUSY), (BUSY, BUSY)):
        judged = judge_with(*states)
        assert (judged.verdict, judged.codes) == (Verdict.UNPROVEN, ("gpu_shared",))
        assert "723 MiB" in judged.reasons[0]


@pytest.mark.parametrize("state", [IDLE_GPU, BUSY], ids=["idle", "busy"])
def test_a_state_that_is_taken_away_makes_no_better_verdict(judge_with: Judge, state: dict[str, Any]) -> None:
    for states in ((None, state), (state, None), (None, None)):
        judged = judge_with(*states)
        assert judged.verdict is Verdict.UNPROVEN, states
        assert "gpu_use_not_stated" in judged.codes
    for key in ("memory_used_mib", "utilisation_percent", "processes"):
        for damaged in ({**state, key: None}, {one: two for one, two in state.items() if one != key}):
            assert judge_with(damaged, state).verdict is Verdict.UNPROVEN, key
