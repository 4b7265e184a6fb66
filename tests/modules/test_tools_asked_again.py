"""Test that a late tool of the GPUs' driver is run again (``plugins/module_utils/rackproof_tools.py``).

nvidia-smi may answer late because the node is busy, which is no fault. It is therefore run a second time with
three times the limit, and the faster answer counts, unless the second run hangs or fails. A tool that cannot
be killed is stuck in the driver. It is not run again, because the second run would be stuck, too.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from plugins.module_utils import rackproof_tools as tools


def answered(seconds: float, status: str = "ok", **more: Any) -> dict[str, Any]:
    """Return the answer of a tool that took some seconds."""
    return {"status": status, "seconds": seconds, **more}


HUNG, STUCK = answered(30, "hung"), answered(32, "hung", stuck=True)
GONE = {"status": "absent"}


# The answers of the first and the second run, the index of the answer that counts, and the limit of each run
# in seconds. An answer after more than 2 s is late.
@pytest.mark.parametrize(
    ("answers", "counts", "limits"),
    [
        ([answered(1)], 0, [30]),
        ([answered(9), answered(1)], 1, [30, 90]),
        ([answered(9), answered(20)], 0, [30, 90]),
        ([HUNG, answered(60)], 1, [30, 90]),
        ([HUNG, HUNG], 1, [30, 90]),
        # A second run that hangs or fails counts, because that is more than lateness.
        ([answered(9), HUNG], 1, [30, 90]),
        ([answered(9), answered(1, "failed")], 1, [30, 90]),
        ([STUCK], 0, [30]),
        ([GONE], 0, [30]),
        ([answered(9, "no_driver")], 0, [30]),
    ],
)
def test_only_a_late_or_hung_tool_is_run_a_second_time(
    answers: list[dict[str, Any]], counts: int, limits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def ask(argv: list[str], timeout_s: float) -> dict[str, Any]:
        asked.append(timeout_s)
        return answers[len(asked) - 1]

    monkeypatch.setattr(tools, "ask", ask)
    assert tools.asks(["nvidia-smi", "-q"])(["nvidia-smi", "-q"], 30) is answers[counts]
    assert asked == limits


def test_a_tool_of_another_package_is_run_once() -> None:
    assert tools.asks(["lscpu"]) is tools.ask


def test_a_process_that_does_not_end_counts_as_not_killed() -> None:
    class Child:
        pid = 2**22 + 1  # beyond every process id: nothing is signalled
        returncode = None

        def wait(self, timeout: float) -> None:
            raise subprocess.TimeoutExpired("nvidia-smi", timeout)

    assert not tools.killed(Child())
