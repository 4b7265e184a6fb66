"""Test the batch size and the duration that the steps of an MLPerf log imply.

Published logs state the time of a step, and the samples of each evaluation. If the batch size or the times of
a log were edited, they contradict these statements (rackproof.logs._pace and rackproof.logs._mlperf). These
tests check that published logs of round 5.1 agree with their steps, and that edited copies of them are
unproven.
"""

from __future__ import annotations

import io
import lzma
import re
from pathlib import Path

import pytest

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict

REAL = Path(__file__).resolve().parents[1] / "data/real/mlperf-5.1"
LOGS = sorted(REAL.rglob("result_*.txt.xz"))


def parse(text: str) -> ParsedLog:
    return logs.parse(io.BytesIO(text.encode()), name="result_1.txt")


def codes(found: ParsedLog) -> set[str]:
    """Return the codes of a log's findings that are unproven."""
    return {one.code for one in found.findings if one.verdict is Verdict.UNPROVEN}


def faster(text: str, factor: float) -> str:
    """Return a log whose times from run_start on are closer together."""
    start = int(re.findall(r'"time_ms": (\d+), "event_type": "[A-Z_]+", "key": "run_start"', text)[0])

    def moved(found: re.Match[str]) -> str:
        time = int(found[1])
        return f'"time_ms": {time if time < start else round(start + (time - start) * factor)}'

    return re.sub(r'"time_ms": (\d+)', moved, text)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_published_logs_agree_with_their_steps(path: Path) -> None:
    assert not codes(parse(lzma.decompress(path.read_bytes()).decode())) & {
        "batch_size_contradicts",
        "steps_contradict",
    }


@pytest.mark.parametrize("model", ["llama2_70b_lora", "llama31_8b"])
@pytest.mark.parametrize("change", [lambda size: size - 1, lambda size: size * 2, lambda size: size // 2])
def test_a_batch_size_that_the_steps_contradict_is_unproven(model: str, change: object) -> None:
    path = next(one for one in LOGS if one.parent.name == model)
    text = lzma.decompress(path.read_bytes()).decode()

    def other(found: re.Match[str]) -> str:
        return f"{found[1]}{change(int(found[2]))}"  # type: ignore[operator]

    found = parse(re.sub(r'("key": "global_batch_size", "value": )(\d+)', other, text))
    assert found.verdict is Verdict.UNPROVEN
    assert "batch_size_contradicts" in codes(found)


@pytest.mark.parametrize("model", ["llama2_70b_lora", "llama31_8b"])
@pytest.mark.parametrize("factor", [0.8, 0.75, 0.5])
def test_a_run_that_is_shorter_than_its_steps_is_unproven(model: str, factor: float) -> None:
    path = next(one for one in LOGS if one.parent.name == model)
    found = parse(faster(lzma.decompress(path.read_bytes()).decode(), factor))
    assert found.verdict is Verdict.UNPROVEN
    assert "steps_contradict" in codes(found)
