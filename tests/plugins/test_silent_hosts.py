"""Hosts that did not answer a task are one line for each reason, not an error for each host."""

from __future__ import annotations

from rackproof_ansible.playbook_summary import describe_silent

SSH = "Task failed: Failed to connect to the host via ssh: ssh: "


def test_a_rack_without_names_is_one_line() -> None:
    hosts = [f"gb300-r01-n{number:02d}" for number in range(1, 19)]
    reason = "Could not resolve hostname {}: Name or service not known"
    assert describe_silent([(host, SSH + reason.format(host)) for host in hosts]) == [
        "18 hosts UNREACHABLE: gb300-r01-n[01-18]: Failed to connect to the host via ssh: ssh: Could not "
        "resolve hostname HOST: Name or service not known"
    ]


def test_each_reason_is_a_line_whatever_address_it_has() -> None:
    lines = describe_silent(
        [
            ("n1", SSH + "connect to host 10.0.0.1 port 22: Connection refused"),
            ("n2", SSH + "connect to host 10.0.0.2 port 22: Connection refused\r\n"),
            ("n3", SSH + "connect to host 10.0.0.3 port 22: No route to host"),
        ]
    )
    assert [line.split(": ")[:2] for line in lines] == [
        ["2 hosts UNREACHABLE", "n[1-2]"],
        ["1 host UNREACHABLE", "n3"],
    ]


def test_a_host_cannot_move_the_cursor() -> None:
    assert "\x1b" not in describe_silent([("n1", "\x1b[2J"), ("n2", "\x1b[2J")])[0]
