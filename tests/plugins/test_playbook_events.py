"""Test the events that a playbook reports to the command that started it, and the check for an ssh client.

`rackproof bench` and its siblings start ansible-playbook as a child process. In the child, a callback writes
each step as a line of JSON to a pipe (``rackproof_ansible.playbook_events``), and the command shows it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rackproof.core.errors import RackproofError
from rackproof_ansible.connections import check_ssh_client
from rackproof_ansible.playbook_events import (
    EventWriter,
    failure_text,
    jobs_of,
    night_begun_by,
    open_events,
    record_of,
    spoken_text,
    verdicts_of,
)


# The task that closes a night returns the verdicts, in check mode too, where it has no page.
@pytest.mark.parametrize(
    ("result", "verdicts"),
    [
        ({"gates": True, "page": "", "verdicts": {"n1": "fail"}}, {"n1": "fail"}),
        ({"gates": True, "page": "/r/night-1/index.html", "verdicts": {"n1": "pass"}}, {"n1": "pass"}),
        ({"verdicts": {"n1": "pass"}}, {}),
        ({"gates": True, "verdicts": ["n1"]}, {}),
        ({}, {}),
    ],
)
def test_verdicts_are_those_of_the_task_that_closes_a_night(
    result: dict[str, Any], verdicts: dict[str, str]
) -> None:
    assert verdicts_of(result) == verdicts


# Results of failed tasks, and the reason that an operator sees. It has 4000 characters at most.
@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"msg": "no room"}, "no room"),
        ({"msg": ["one", "two"]}, "one\ntwo"),
        ({"msg": "non-zero return code", "stderr": "a\nmount: busy\n"}, "a\nmount: busy"),
        ({"msg": "non-zero return code", "stderr": "", "stdout": "x"}, "x"),
        ({"msg": "non-zero return code"}, "non-zero return code"),
        ({"msg": "One or more items failed", "results": [{}, {"failed": True, "msg": "n2"}]}, "n2"),
        ({}, "no reason given"),
        ({"msg": "x" * 9000}, "x" * 4000),
    ],
)
def test_the_reason_of_a_failed_task_is_reported(result: dict[str, Any], text: str) -> None:
    assert failure_text(result) == text


@pytest.mark.parametrize(
    ("action", "message", "text"),
    [
        ("ansible.builtin.debug", ["a", "b"], "a\nb"),
        ("assert", "All assertions passed", ""),
        ("ansible.builtin.assert", "toys: pass", "toys: pass"),
        ("ansible.builtin.command", "secret", ""),
    ],
)
def test_only_messages_of_debug_and_assert_are_reported(action: str, message: object, text: str) -> None:
    assert spoken_text(action, {"msg": message}) == text


@pytest.mark.parametrize(
    ("result", "night_id"),
    [
        ({"changed": False, "night": {"night_id": "N1", "folder": "/r/N1"}}, "N1"),
        ({"night": {}}, ""),
        ({"night": "N1"}, ""),
        ({"gates": True, "page": "/r/N1/index.html", "verdicts": {"n1": "pass"}}, ""),
    ],
)
def test_the_night_of_a_task_that_begins_it_is_reported(result: dict[str, Any], night_id: str) -> None:
    assert night_begun_by(result) == night_id


def test_the_jobs_of_a_task_and_of_its_items_are_found() -> None:
    running, ended = {"id": "a", "phase": "running"}, {"id": "b", "phase": "ended"}
    items = [{"job": running, "_ansible_delegated_vars": {"ansible_delegated_host": "n2"}}, {"job": 3}, "x"]
    assert list(jobs_of({"job": ended, "results": items})) == [("b", "", False), ("a", "n2", True)]
    assert list(jobs_of({"job": {"id": 3}})) == []


def test_events_for_a_reader_that_ended_raise_no_error() -> None:
    reads, writes = os.pipe()
    events = EventWriter(writes)
    events.write("task", host="n1", path=Path("x"))
    assert json.loads(os.read(reads, 1000)) == {"kind": "task", "host": "n1", "path": "x"}
    os.close(reads)
    events.write("task", host="n1")
    events.write("task", host="n1")
    os.close(writes)


# A node's own connection counts before that of the command line. No ssh client is in PATH.
@pytest.mark.parametrize(
    ("variables", "connection", "is_refused"),
    [
        ({}, "ssh", True),
        ({"ansible_connection": "ssh"}, "local", True),
        ({"ansible_connection": "local"}, "ssh", False),
        ({}, "local", False),
        ({"ansible_ssh_executable": "/opt/ssh"}, "ssh", False),
    ],
)
def test_a_missing_ssh_client_is_named_where_one_is_needed(
    variables: dict[str, Any],
    connection: str,
    is_refused: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ANSIBLE_SSH_EXECUTABLE", raising=False)
    if not is_refused:
        check_ssh_client({"n1": variables}, connection)
        return
    with pytest.raises(RackproofError, match=r"n1 is reached by ssh.*apt-get install openssh-client"):
        check_ssh_client({"n1": variables}, connection)


RUN = {
    "run_id": "r1",
    "verdict": "unproven",
    "reasons": ["no reference", "busy"],
    "report": "/r/r1/report.html",
    "nodes": ["n1", "n2"],
}


# A task's result, and the event about the run, plan, night or re-imaging that it recorded, if any.
@pytest.mark.parametrize(
    ("result", "record"),
    [
        ({"changed": True}, {}),
        (
            {"rackproof_run": RUN},
            {
                "what": "run",
                "id": "r1",
                "verdict": "unproven",
                "path": "/r/r1/report.html",
                "reasons": "no reference\nbusy",
                "nodes": ["n1", "n2"],
            },
        ),
        (
            {"rackproof_report_file": "/r/plan-1/report.html", "verdict": "pass"},
            {"what": "plan", "id": "plan-1", "verdict": "pass", "path": "/r/plan-1/report.html"},
        ),
        (
            {"verdict": "fail", "gates": True, "page": "/r/night-1/index.html"},
            {"what": "night", "id": "night-1", "verdict": "fail", "path": "/r/night-1/index.html"},
        ),
        (
            {"verdict": "pass", "gates": False, "record": "reimaging", "page": "/r/i/run.json"},
            {"what": "reimaging", "id": "i", "verdict": "pass", "path": "/r/i/run.json"},
        ),
        # Check mode writes no page.
        ({"verdict": "pass", "gates": False, "page": ""}, {}),
        ({"page": 3, "rackproof_run": "x", "rackproof_report_file": None}, {}),
    ],
)
def test_the_event_about_a_record_has_its_id_verdict_and_path(
    result: dict[str, Any], record: dict[str, str]
) -> None:
    assert record_of(result) == record


def test_a_pipe_without_a_reader_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (str(tmp_path / "pipe"), str(tmp_path / "none"), None):
        open_events(place).write("task", host="n1")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    open_events(str(tmp_path / "pipe")).write("task", host="n1")
    assert json.loads(os.read(reader, 1000))["host"] == "n1"
    os.close(reader)
