"""A training step is captured in a CUDA graph only if all ranks can capture theirs."""

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
def test_capture_states_why_it_is_off(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, all_captured: bool, state: str
) -> None:
    """An error without a text, from which mnist_torch.py took the first line, is an error all the same."""
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
