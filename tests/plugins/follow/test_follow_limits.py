"""Test how long ``rackproof_ansible.bench_follow`` follows a job, without a playbook.

The node's record of a job, state.json, may be damaged or hostile. The tests replace the node by a text with
its answer, and the time by a clock that each poll advances.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from rackproof_ansible import bench_follow
from rackproof_ansible.bench_follow import JobFollower

BOOT = "11111111-2222-4333-8444-555555555555"
STATE = {
    "id": "run-1",
    "phase": "running",
    "pid": 501,
    "supervisor_pid": 500,
    "supervisor_start_ticks": 90_000,
    "boot_id": BOOT,
    "timeout_s": 100,
    "grace_s": 10,
    "hang_s": 30,
}
OPTIONS = {
    "id": "run-1",
    "folder": "/runs/run-1",
    "format": "auto",
    "every_s": 5,
    "expected_s": None,
    "limit_s": 110.0,
    "deadline_s": 20.0,
    "patience_s": 900.0,
}


class Node:
    """A node that always gives the same answer about a running job. An answer takes ten seconds."""

    node = "node-1"

    def __init__(self, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        stat = "500 (python3) S 1 500 500 " + "0 " * 15 + "90000 0 0"
        lines = ["rackproof:state", json.dumps(state), BOOT, "900.50 1.00", stat, "rackproof:log 0"]
        self.answer = "\n".join([*lines, "rackproof:end", ""])
        self.shown: list[str] = []
        monkeypatch.setattr(bench_follow.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(bench_follow.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(bench_follow, "show_whole_line", self.shown.append)

    def run_command(self, command: str) -> tuple[int, str, str]:
        self.now += 10
        assert self.now < 1e4, "the job is followed forever"
        return 0, self.answer, ""


ODD = [1e300, "abc", "1e9", None, True, [], {}, -(10**400), float("nan"), float("inf")]
"""Values that a damaged or hostile record may have instead of a number of seconds."""


@pytest.mark.parametrize("key", ["timeout_s", "grace_s", "hang_s"])
@pytest.mark.parametrize("value", ODD)
def test_no_record_of_a_node_changes_how_long_its_job_is_followed(
    monkeypatch: pytest.MonkeyPatch, key: str, value: Any
) -> None:
    node = Node({**STATE, key: value}, monkeypatch)
    with pytest.raises(AnsibleActionFail, match="has not ended its job"):
        JobFollower(node, OPTIONS).follow()  # type: ignore[arg-type]
    assert 110 + 20 < node.now < 110 + 20 + 30
    assert any("no output for" in line for line in node.shown)


@pytest.mark.parametrize("value", [value for value in ODD if value != 1e300])
def test_without_a_limit_of_the_caller_only_numbers_of_the_node_count(
    monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    node = Node({**STATE, "grace_s": value}, monkeypatch)
    with pytest.raises(AnsibleActionFail, match="has not ended its job"):
        JobFollower(node, {**OPTIONS, "limit_s": None}).follow()  # type: ignore[arg-type]
    assert 100 + 20 < node.now < 100 + 20 + 30
