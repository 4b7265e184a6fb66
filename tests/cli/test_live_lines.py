"""Test rackproof.cli.live_lines, which shows one line for each node while a playbook runs.

Ansible sends events, and LiveLines makes lines of them: the step of each node, failures with equal reasons
folded into one line, and the next command after Ctrl-C. The tests show that lines fit the terminal, and that
no reason is lost or printed twice.
"""

from __future__ import annotations

import shlex
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackproof.cli.live_lines import LiveLines, interruption_lines
from rackproof.core.text import shell_command, width


def task(host: str, name: str = "bench : Plan the runs", path: str = "roles/bench/tasks/plan.yml:3") -> Any:
    """Return the event of a task that begins on a host."""
    return {"kind": "task", "host": host, "task": name, "path": path}


@pytest.fixture
def view() -> LiveLines:
    """Return the view of a terminal with two nodes, whose task began at second 10."""
    view = LiveLines("bench", moves=True)
    for host in ("n1", "node-2"):
        view.add_event(task(host), 10)
    return view


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (task("n1"), "n1      plan · Plan the runs · 5 s"),
        (task("n1", path="roles/bench/tasks/main.yml:9"), "n1      bench · Plan the runs · 0 s"),
        (task("n1", "ofed : Install it", "r/ofed/tasks/doca.yml:9"), "n1      ofed · Install it · 0 s"),
        ({"kind": "end", "host": "n1", "state": "ok"}, "n1      plan · Plan the runs"),
        (
            {"kind": "end", "host": "n1", "state": "unreachable"},
            "n1      unreachable · plan · Plan the runs",
        ),
    ],
)
def test_a_line_has_stage_step_and_time(view: LiveLines, event: Any, line: str) -> None:
    view.add_event(event, 15)
    assert view.lines(80, 10, 15) == [line, "node-2  plan · Plan the runs · 5 s"]


# What Ansible prints if a file of the inventory is not YAML.
NOT_YAML = """[WARNING]: Failed to parse inventory with 'auto' plugin: no root 'plugin' key found, not YAML

Failed to parse inventory with 'yaml' plugin.

<<< caused by >>>

YAML parsing failed: While parsing a flow sequence did not find expected ',' or ']'.
Origin: /tmp/bad.yml:2:2

1 a: [1
2 b: 2
   ^ column 2

[ERROR]: Completely failed to parse inventory source hosts.yml"""


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (NOT_YAML, "rackproof: /tmp/bad.yml:2:2: it is not YAML: While parsing a flow sequence did not find"),
        ("(source not shown: TypeError)\n" + NOT_YAML, "rackproof: /tmp/bad.yml:2:2: it is not YAML: While"),
        (
            "[ERROR]: YAML parsing failed: No end.",
            "rackproof: a file of the inventory is not YAML: No end. `r",
        ),
    ],
)
def test_a_file_that_is_not_yaml_gives_one_line_with_its_place(text: str, last: str) -> None:
    view = LiveLines("bench", moves=False)
    lines = [shown for line in text.splitlines() for shown in view.add_error(line, 1)]
    assert lines == []
    (shown,) = view.finish()
    assert shown.startswith(last)


@pytest.mark.parametrize("source", ["hosts.yml", "/srv/my inventory", "/empty"])
def test_an_inventory_that_cannot_be_read_is_shown_with_the_next_step(source: str) -> None:
    view = LiveLines("bench", moves=False)
    assert view.add_error(f"[ERROR]: Completely failed to parse inventory source {source}", 1) == []
    (shown,) = view.finish()
    assert shown.startswith(f"rackproof: {source} is no inventory that Ansible can read")
    assert source in shlex.split(shown.replace("`", " "))[-4:]


def test_the_progress_of_a_job_is_shown_in_the_line_of_its_node(view: LiveLines) -> None:
    progress = "run-1 · n1 · epoch 1/3 · 9 GB/s · ends about 10:00:00 (in 3 s)"
    assert view.add_output(progress, 11) == []
    assert view.lines(80, 10, 12)[0] == "n1      run-1 · epoch 1/3 · 9 GB/s · ends about 10:00:00 (in 3 s)"
    # The id of a run is shown without its time. With it, 80 columns would not be enough.
    progress = "20261127T024931Z-mnist-lenet-20f910 · n1 · train · epoch 1/12 · ends about 02:50:13 (in 39 s)"
    assert view.add_output(progress, 12) == []
    last = view.lines(80, 10, 12)[0]
    assert last == "n1      mnist-lenet-20f910 · train · epoch 1/12 · ends about 02:50:13 (in 39 s)"
    view.add_event(task("n1", "bench : Record the run"), 13)
    assert "epoch" not in view.lines(80, 10, 13)[0]
    # A line of an unknown node, and a row of a table, are printed as they are.
    for line in ("run-1 · n9 · epoch 1/3", "  ? unproven   toy"):
        assert view.add_output(line, 12) == [line]


def test_without_a_terminal_progress_is_printed_at_once() -> None:
    view = LiveLines("bench", moves=False)
    view.add_event(task("n1"), 0)
    assert view.add_output("run-1 · n1 · epoch 1/3", 1) == ["run-1 · n1 · epoch 1/3"]


def test_a_long_step_is_named_once_for_all_nodes_and_then_less_often(view: LiveLines) -> None:
    assert view.long_steps(20) == []
    assert view.long_steps(26) == ["n1,node-2 · plan · Plan the runs · 16.0 s"]
    assert view.long_steps(50) == []
    assert len(view.long_steps(60)) == 1
    view.add_event({"kind": "end", "host": "n1", "state": "ok"}, 61)
    assert view.long_steps(10_000) == ["node-2 · plan · Plan the runs · 2 h 46 min"]


def test_a_failure_is_printed_with_its_reason_and_a_note_unchanged(view: LiveLines) -> None:
    ended = {
        "kind": "end",
        "host": "n1",
        "state": "failed",
        "task": "a : Mount it",
        "text": "no\n\x1b[31mroom",
    }
    assert view.add_event(ended, 11) == []
    # The failure is printed before anything else is.
    assert view.add_event({"kind": "note", "host": "n1", "text": "n1: 2 jobs"}, 11) == [
        "n1: failed: Mount it: no",
        "  room",
        "n1: 2 jobs",
    ]
    assert view.add_event({"kind": "note", "host": "n1", "text": "n1: 3 jobs"}, 11) == ["n1: 3 jobs"]
    assert view.add_event({"kind": "note", "host": "n1", "text": "ended"}, 11) == ["n1: ended"]


@pytest.mark.parametrize(
    ("state", "once", "shown"),
    [
        ("failed", True, "Refuse it: no -l"),
        ("failed", False, "n1: failed: Refuse it: no -l"),
        ("unreachable", False, "n1: unreachable: Refuse it: no -l"),
    ],
)
def test_a_failure_of_the_whole_playbook_names_no_node(
    view: LiveLines, state: str, once: bool, shown: str
) -> None:
    ended = {
        "kind": "end",
        "host": "n1",
        "state": state,
        "task": "a : Refuse it",
        "text": "no -l",
        "once": once,
    }
    assert [*view.add_event(ended, 11), *view.finish()] == [shown]


# The names of 18 nodes, and messages of Ansible and of a night for a name that cannot be resolved.
RACK = [f"gb300-r01-n{number:02}" for number in range(1, 19)]
NO_SNAPSHOT = "no snapshot of it: ssh: Could not resolve hostname: Name not known"
NO_NAME = "Failed to connect to the host via ssh: ssh: Could not resolve hostname {}.rack: Name not known"


def unreachable(host: str, text: str = NO_NAME, *, ignored: bool = False) -> Any:
    """Return the event of an unreachable host. If it is ignored, the playbook continues without the host."""
    end = {"kind": "end", "host": host, "state": "unreachable", "task": "bench : Gather the facts"}
    return {**end, "text": "Task failed: " + text.format(host), "ignored": ignored}


def test_equal_reasons_are_one_line_with_folded_names_and_the_next_step() -> None:
    view = LiveLines("bench", moves=False)
    other = "Failed to connect to the host via ssh: root@10.0.0.7: Permission denied (publickey)."
    printed = [
        line
        for host in RACK
        for line in view.add_event(unreachable(host, other if host == RACK[6] else NO_NAME), 1)
    ]
    assert printed == []
    assert view.add_event(task(RACK[0], "bench : Plan the runs"), 2) == [
        "gb300-r01-n[01-06,08-18] (17 nodes): unreachable: Gather the facts: ssh: Could not resolve "
        "hostname: Name not known; put the name into DNS or /etc/hosts of this machine, or set "
        "ansible_host in the inventory",
        "gb300-r01-n07: unreachable: Gather the facts: root@10.0.0.7: Permission denied (publickey).; check "
        "ansible_user and the key that this user's ssh offers",
    ]
    assert view.finish() == []


def test_a_node_that_fails_twice_for_one_reason_is_counted_once() -> None:
    view = LiveLines("validate", moves=False)
    for host in ("n1", "n2", "n1"):
        view.add_event(unreachable(host, ignored=True), 1)
    (line,) = view.finish()
    assert line.startswith("n[1-2] (2 nodes): unreachable: Gather the facts: ")


def test_a_thousand_nodes_with_different_reasons_take_little_time() -> None:
    view = LiveLines("bench", moves=False)
    began = time.process_time()
    for number in range(1000):
        view.add_event(
            unreachable(f"n{number:04}", f"reason {number} of {{}} alone", ignored=number % 2 == 0), 1
        )
        view.add_output(f"    ATTENTION n{number:04}: reason", 1)
    view.add_event(task("n0000", "bench : Plan the runs"), 2)
    lines = [line for number in range(1000) for line in view.add_output(f"    ATTENTION {number}", 3)]
    assert len([*lines, *view.finish()]) >= 1500
    assert time.process_time() - began < 20


def test_a_failure_is_not_held_for_long() -> None:
    view = LiveLines("bench", moves=True)
    view.add_event(unreachable("n1"), 100)
    assert view.overdue(110) == []
    assert len(view.overdue(115)) == 1
    view.add_event(unreachable("n2"), 116)
    assert len(view.finish()) == 1


def test_a_reason_that_is_part_of_a_later_one_is_printed_once() -> None:
    view = LiveLines("provision", moves=False)
    reason = "{0} cannot be reached by ssh: " + NO_NAME.replace("{}", "{0}")
    shown = []
    for step in ("Leave out a node", "Fail if a node failed"):
        for host in RACK[:2]:
            text = (reason if step[0] == "L" else "{0} is as it was: Leave out a node: " + reason).format(
                host
            )
            end = {
                "kind": "end",
                "host": host,
                "state": "failed",
                "task": f"provision : {step}",
                "text": text,
            }
            shown += view.add_event(end, 1)
        shown += view.add_event(task(RACK[2], "provision : next"), 2)
    shown += view.add_output(
        "    ATTENTION Leave out a node: the node cannot be reached by ssh: "
        "ssh: Could not resolve hostname: Name not known",
        3,
    )
    assert sum(line.count("resolve") for line in shown) == 1
    assert shown[1:] == [
        "gb300-r01-n[01-02] (2 nodes): failed: Fail if a node failed: the node is as it was: Leave out a "
        "node: as above",
        "    ATTENTION Leave out a node: as above",
    ]


@pytest.mark.parametrize(
    ("message", "left"),
    [
        (
            f"UNPROVEN 2 nodes\nunproven n[1-2]: {NO_SNAPSHOT}",
            0,
        ),
        (
            f"UNPROVEN 2 nodes\nunproven n1: {NO_SNAPSHOT}",
            1,
        ),
        ("UNPROVEN 2 nodes", 1),
    ],
)
def test_a_reason_is_printed_by_the_playbook_or_else_by_the_view(message: str, left: int) -> None:
    view = LiveLines("validate", moves=False)
    for host in ("n1", "n2"):
        assert view.add_event(unreachable(host, ignored=True), 1) == []
    assert view.add_event(task("n1", "validate : Judge the night"), 2) == []
    verdict = {"kind": "end", "host": "n1", "state": "failed", "task": "End", "once": True, "text": message}
    assert len(view.add_event(verdict, 3)) == message.count("\n") + 1
    assert len(view.finish()) == left


@pytest.mark.parametrize("help_first", [True, False])
def test_a_misspelt_option_gives_one_line(help_first: bool) -> None:
    view = LiveLines("bench", moves=True)
    usage = ["usage: ansible-playbook [-h] [--version]", "                        playbook [playbook ...]"]
    error = "ansible-playbook: error: unrecognized arguments: --chekc"

    def printed_help() -> list[str]:
        return [one for line in (*usage, "", "options:", "  -h") for one in view.add_output(line, 0)]

    shown = printed_help() if help_first else []
    shown += [one for line in (*usage, error, "") for one in view.add_error(line, 0)]
    shown += [] if help_first else printed_help()
    assert len(shown) == 1
    assert shown[0].startswith("rackproof: unrecognized arguments: --chekc; ")


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (
            [
                "[WARNING]: Could not match supplied host pattern, ignoring: x",
                "[ERROR]: … leaves us with no ",
            ],
            "x: no host and no group",
        ),
        (["[ERROR]: Specified inventory … leaves us with no "], "an empty group of the inventory"),
        (["[ERROR]: the playbook: n1 could not be found"], "name hosts with -l n1"),
        (
            [
                "[WARNING]: Failed to parse inventory with 'yaml' plugin: Unable to retrieve file contents.",
                "Could not find or access '/r/missing.yml' on the Ansible Controller.",
                "If you are using a module and expect the file to exist on the remote, see …",
                "",
                "Could not find or access '/r/missing.yml' on the Ansible Controller.",
                "[ERROR]: Completely failed to parse inventory source /r/inventory/hosts.yml",
            ],
            "rackproof: there is no file of variables /r/missing.yml: correct -e @FILE",
        ),
        (
            [
                "[ERROR]: Error processing keyword 'hosts': The filter plugin 'refuse_partial_runs' failed: "
                "localhost is not in gpu_nodes, so nothing would be done: leave it out of -l",
                "Origin: /r/playbooks/provision.yml:4:10",
                "",
                "3 - name: Check all nodes before any change",
                """4   hosts: "{{ 'gpu_nodes' | refuse_partial_runs(groups) }}\"""",
                "           ^ column 10",
            ],
            "rackproof: localhost is not in gpu_nodes, so nothing would be done: leave it out of -l",
        ),
    ],
)
def test_a_message_of_ansible_about_a_mistake_gets_a_next_step(lines: list[str], shown: str) -> None:
    view = LiveLines("bench", moves=True)
    end = "hosts to target."
    printed = [
        one
        for line in lines
        for one in view.add_error(line.replace("no ", "no " + end, 1) if line.endswith("no ") else line, 0)
    ]
    printed += view.finish()
    assert len(printed) == 1
    assert shown in printed[0]


def test_after_ctrl_c_the_message_of_ansible_is_left_out(view: LiveLines) -> None:
    assert view.add_error("[ERROR]: User interrupted execution", 1) == []
    assert view.add_error("[WARNING]: something else", 1) == ["[WARNING]: something else"]


def test_a_job_counts_as_running_until_its_end_is_reported(view: LiveLines) -> None:
    for node in ("n1", "n2", "n2"):
        view.add_event({"kind": "job", "host": "n1", "id": "run-1", "on": node, "runs": True}, 1)
    assert view.running_jobs == {"run-1": ["n1", "n2"]}
    lines = interruption_lines(
        "bench", "rackproof bench -l n1", "rackproof stop", view.nodes, view.running_jobs
    )
    assert lines == [
        "Interrupted. run-1 still runs on n[1-2].",
        "Continue it:           rackproof bench -l n1",
        "End the jobs:          rackproof stop -l n1,n2",
    ]
    view.add_event({"kind": "job", "host": "n1", "id": "run-1", "on": "n1", "runs": False}, 1)
    assert view.running_jobs == {}


def test_an_interruption_without_jobs_names_the_nodes() -> None:
    lines = interruption_lines("provision", "rackproof provision", "rackproof stop", ("n1", "n2"), {})
    assert lines[0] == "Interrupted. None of its jobs runs. Its work on n[1-2] is unfinished."
    assert lines[-1].endswith("rackproof status")


@pytest.mark.parametrize("playbook", ["provision", "reimage"])
@pytest.mark.parametrize("program", ["rackproof", "/work dir/.venv/bin/rackproof", "/a'b/rackproof"])
def test_an_interruption_names_the_program_as_a_shell_reads_it(playbook: str, program: str) -> None:
    stop = shell_command([program, "stop"])
    lines = interruption_lines(playbook, "again", stop, (), {}, program)
    assert shlex.split(lines[-1].partition(":")[2]) == [program, "status"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("If the machine was idle, run `rackproof accept plan-1`.", True),
        ("n1: failed: x; rackproof explain n1", False),
        ("next: rackproof status", True),
        ("results of rackproof", False),
    ],
)
def test_a_suggested_rackproof_command_is_noticed(line: str, named: bool) -> None:
    view = LiveLines("bench", moves=True)
    view.add_output(line, 0)
    assert view.named_program is named


# Events with any of the known keys, and with values of any type.
KEYS = st.sampled_from(
    ("kind", "host", "task", "path", "state", "text", "id", "on", "runs", "once", "ignored")
)
KINDS = st.sampled_from(("task", "end", "job", "note", "diff", "failed"))
EVENTS = st.dictionaries(KEYS, st.one_of(KINDS, st.text(), st.none(), st.integers()))


@given(st.lists(EVENTS, max_size=20), st.integers(1, 200), st.integers(1, 30))
def test_no_event_breaks_the_view_or_moves_the_cursor(events: list[Any], columns: int, rows: int) -> None:
    view = LiveLines("bench", moves=True)
    printed = [line for event in events for line in view.add_event(event, 1)]
    printed += view.finish()
    drawn = view.lines(columns, rows, 2)
    assert len(drawn) <= max(rows, 2)
    assert all(width(line) <= columns for line in drawn)
    assert all(letter.isprintable() for line in (*printed, *drawn) for letter in line)


@pytest.mark.parametrize("event", [{"kind": "record"}, {"kind": "record", "record": "night", "name": "x"}])
def test_an_event_of_a_record_adds_no_node(view: LiveLines, event: dict[str, str]) -> None:
    assert view.add_event(event, 11) == []
    assert view.nodes == ("n1", "node-2")
    assert len(view.lines(80, 10, 1000)) == 2
