"""Test capture_graph of workloads/common.py, which captures a training step in a CUDA graph.

A CUDA graph replays the kernels of a step at once. All ranks must replay theirs or none, so one rank that
cannot capture switches it off. A fake torch runs these tests without a GPU.
"""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.workloads.programs import load_program


@pytest.mark.parametrize(
    ("error", "all_captured", "state"),
    [
        (None, True, "on"),
        (None, False, "off: another rank could not capture"),
        (RuntimeError("no memory\nat line 3"), False, "off: no memory"),
        (RuntimeError(""), False, "off: unknown"),
    ],
)
def test_the_state_of_capture_gives_the_reason_for_off(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, all_captured: bool, state: str
) -> None:
    """An error without a text also counts as an error."""
    common = load_program("common")
    cuda = SimpleNamespace(CUDAGraph=object, graph=lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    stated: list[bool] = []

    def holds(mine: bool, *_: Any) -> bool:
        stated.append(mine)
        return all_captured

    monkeypatch.setattr(common, "holds_on_all_ranks", holds)

    def step() -> None:
        if error:
            raise error

    graph, answer = common.capture_graph(step, None, None, None)
    assert answer == state
    assert type(graph) is object
    assert stated == [error is None]
