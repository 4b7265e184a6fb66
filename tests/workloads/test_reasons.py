"""Test which rank's reason the supervisor in workloads/common.py reports for a run that failed.

If one rank fails, the others fail because they lost it. The tests show that the report names the rank that
wrote its reason first.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def common(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return workloads/common.py as a module that no other test imported."""
    monkeypatch.syspath_prepend(str(root / "workloads"))
    before = set(sys.modules)
    yield importlib.import_module("common")
    for name in set(sys.modules) - before:
        del sys.modules[name]


class Ended:
    """A rank as the supervisor sees it. A rank with None never ends."""

    def __init__(self, returncode: int | None) -> None:
        self.returncode = returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            raise subprocess.TimeoutExpired("rank", timeout)
        return self.returncode


@pytest.mark.parametrize(
    ("statuses", "wrote", "reason"),
    [
        # The exit status of each rank (negative: a signal, None: it still runs), the ranks that wrote a
        # reason, in order, and the reported status and reason.
        ((1, 1), (1, 0), (1, "rank 1: reason of 1")),
        ((1, 3), (1, 0), (3, "rank 1: reason of 1")),
        ((1, 0), (0,), (1, "rank 0: reason of 0")),
        ((1, 0), (1, 0), (1, "rank 0: reason of 0")),
        ((1, None), (1, 0), (1, "rank 0: reason of 0")),
        ((1, 1), (), (1, "rank 0: exit status 1")),
        ((-9, 1), (1,), (137, "rank 0 was killed by SIGKILL (out of memory?)")),
    ],
)
def test_the_reason_of_the_rank_that_failed_first_is_reported(
    common: Any, tmp_path: Path, statuses: tuple[int | None, ...], wrote: tuple[int, ...], reason: Any
) -> None:
    for order, rank in enumerate(wrote):
        file = tmp_path / f"reason-{rank}"
        file.write_text(f"reason of {rank}")
        os.utime(file, ns=(order, order))
    ranks = [Ended(status) for status in statuses]
    assert common._explain(*common._first_to_fail(ranks, 0, statuses[0], tmp_path), tmp_path) == reason
