"""Test ``rackproof.jobs.reimage.image_report``, which reads a node's report after it wrote its image.

The report has the written disk and the public ssh host keys of the new system, which go into the controller's
known_hosts. The boot host adds alarms: refused requests are remarks, and conflicts mean that the report may
be forged. The tests check that a report with a conflict, or with keys that are malformed or another host's,
adds no key.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rackproof.jobs.reimage.image_report import MAX_KEY_CHARS, find_key_problem, read_image_report


def key(kind: str = "ssh-ed25519", content: bytes = b"made up") -> str:
    """Return a public key in the form of ssh."""
    blob = len(kind).to_bytes(4, "big") + kind.encode() + content
    return f"{kind} {base64.b64encode(blob).decode()}"


KEY, RSA = key(), key("ssh-rsa")
WRITTEN = {"status": "written", "disk": "/dev/vda", "disk_serial": "D1", "seconds": 12.6, "host_keys": [KEY]}


def read(report: Any, alarms: str = "", known_hosts: str = "") -> Any:
    text = report if isinstance(report, str) else json.dumps(report)
    return read_image_report(text, alarms, known_hosts, "192.0.2.1")


def test_a_report_without_alarms_is_believed() -> None:
    found = read(WRITTEN | {"host_keys": [KEY, RSA]})
    assert (found.problem, found.remarks, found.host_keys) == ("", (), (KEY, RSA))
    assert (found.disk, found.seconds) == ("/dev/vda (D1)", 12.6)


def test_requests_of_strangers_are_remarks_and_do_not_affect_the_node() -> None:
    found = read(WRITTEN, "refused 192.0.2.9 (x) requested its order\nrefused \x1b[31mx\n")
    assert found.problem == ""
    assert found.remarks[0] == "alarm: 192.0.2.9 (x) requested its order"
    assert "\x1b" not in found.remarks[1]
    assert found.host_keys == (KEY,)


@pytest.mark.parametrize(
    "alarm",
    [
        "conflict second boot report, from 192.0.2.1 (x): not trusted",
        "conflict 192.0.2.9 has the secret of its boot report, and is not the machine",
        "conflict 192.0.2.9 requested its order with its MAC address, after 192.0.2.8",
        # An alarm that cannot be read counts as a conflict.
        "\x00",
    ],
)
@pytest.mark.parametrize("report", [WRITTEN, {"status": "begun"}, "", {"status": "failed", "reason": "x"}])
def test_a_conflict_leaves_the_node_unproven_and_no_key_is_written(alarm: str, report: Any) -> None:
    found = read(report, f"refused 192.0.2.9 asked\n{alarm}\n")
    assert found.problem.startswith("alarm: ")
    assert "no host key was written" in found.problem
    assert "journalctl -u rackproof-netboot-reports" in found.problem
    assert found.host_keys == ()
    assert found.remarks == ("alarm: 192.0.2.9 asked",)


@pytest.mark.parametrize(
    "report",
    [
        "",
        "{",
        "[]",
        "[" * 60000,
        "null",
        {"status": "begun"},
        {"status": 1},
        {"status": "written?"},
        "\ufffd",
    ],
)
def test_an_invalid_report_counts_as_a_report_that_did_not_come(report: Any) -> None:
    assert read(report).problem.startswith("has its order and did not report the result in time")


@pytest.mark.parametrize(
    "changed",
    [
        {"disk": ["x"], "disk_serial": {}},
        {"seconds": "soon"},
        {"seconds": 10**400},
        {"seconds": True, "disk": "\x1b[2J" * 9},
    ],
)
def test_impossible_fields_do_not_end_the_playbook(changed: dict[str, Any]) -> None:
    found = read(WRITTEN | changed)
    assert found.problem == ""
    assert "\x1b" not in found.disk


def test_a_reason_is_sanitized() -> None:
    found = read({"status": "refused", "reason": "a\x1b[31mb\n" + "x" * 9999})
    assert found.problem.startswith("refused: a")
    assert "\x1b" not in found.problem
    assert len(found.problem) < 1100


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ([KEY, key(content=b"another")], "alarm: reports a second host key of one kind"),
        ([RSA, KEY, RSA], "alarm: reports a second host key of one kind"),
        ([KEY] * 9, "invalid"),
        ([f"{KEY}\n* {KEY}"], "invalid"),
        ([f"* {KEY}"], "invalid"),
        ([f"@cert-authority {KEY}"], "invalid"),
        # The kind inside the key differs from the one before it.
        (["ssh-rsa " + KEY.split()[1]], "invalid"),
        (["ssh-ed25519 AAAA"], "invalid"),
        (["ssh-ed25519 AAA"], "invalid"),
        ([key(content=b"x" * MAX_KEY_CHARS)], "invalid"),
        ([7], "invalid"),
        ("ssh-ed25519", "invalid"),
        ({"a": 1}, "invalid"),
        (None, "invalid"),
    ],
)
def test_keys_that_are_not_one_of_each_kind_are_not_written(keys: Any, why: str) -> None:
    found = read(WRITTEN | {"host_keys": keys})
    assert why in found.problem
    assert found.host_keys == ()


def test_a_key_that_another_host_has_is_an_alarm(tmp_path: Path) -> None:
    for line in (
        f"n7,192.0.2.7 {KEY}",
        f"[192.0.2.1]:2222 {KEY} a comment",
        f"@cert-authority *.example {KEY}",
    ):
        assert "alarm: reports the host key of" in find_key_problem(
            [KEY], f"# {KEY}\n\n{line}\n", "192.0.2.1"
        )
    known = f"n1,192.0.2.1 {KEY}\nn7 {RSA}\n"
    assert find_key_problem([KEY], known, "192.0.2.1") == ""
    # ssh may hash the names in known_hosts.
    path = tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    real = " ".join((tmp_path / "key.pub").read_text().split()[:2])
    path.write_text(f"n7 {real}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, capture_output=True)
    assert path.read_text().startswith("|1|")
    assert find_key_problem([real], path.read_text(), "n7") == ""
    assert "host key of" in find_key_problem([real], path.read_text(), "n1")
    assert "host key of" in find_key_problem([real], f"|1|%|% {real}\n", "n1")


@pytest.mark.parametrize(
    ("content", "ending"),
    # Base64 texts with unused bits or extra padding, which decode to the same bytes.
    [(b"ab", "Yh=="), (b"ab", "Yv=="), (b"abc", "YmN="), (b"a", "Fh="), (b"a", "Fh====")],
)
def test_an_unusual_base64_text_of_a_key_is_invalid(content: bytes, ending: str) -> None:
    theirs = key("ssh-rsa", content)
    mine = theirs[: -len(ending.rstrip("=")) - theirs.count("=")] + ending
    assert mine != theirs
    assert base64.b64decode(mine.split()[1]) == base64.b64decode(theirs.split()[1])
    # A search for this text would not find the other host's key.
    assert find_key_problem([mine], f"n7 {theirs}\n", "192.0.2.1") == "reports invalid host keys"


@pytest.mark.parametrize(
    ("others", "believed"),
    [
        ([], True),
        ([{"status": "written", "host_keys": [RSA]}], True),
        (["", "no JSON", {"host_keys": None}, {"host_keys": [7, {}]}, []], True),
        ([{"status": "written", "host_keys": [RSA, KEY]}], False),
        # Other errors in the second report do not matter.
        ([{"host_keys": [KEY, KEY, 1]}], False),
        (["", {"status": "failed", "host_keys": [KEY]}], False),
    ],
)
def test_a_key_that_two_nodes_report_at_once_is_believed_of_neither(
    others: list[Any], believed: bool
) -> None:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in others]
    found = read_image_report(json.dumps(WRITTEN), "", "", "192.0.2.1", texts)
    assert found.host_keys == ((KEY,) if believed else ())
    assert bool(found.problem) is not believed
    assert found.problem.startswith("" if believed else "alarm: reports the host key of another node")


@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\r\x0b"])
def test_only_a_line_feed_ends_an_alarm(end: str) -> None:
    alarms = f"refused 192.0.2.9 (no neighbour) sent{end}conflict 192.0.2.9 knows the secret\n"
    found = read(WRITTEN, alarms)
    assert not found.problem
    assert len(found.remarks) == 1


@pytest.mark.parametrize("changed", [{"host_keys": []}, {"host_keys": None}, {"host_keys": {}}, None])
def test_an_image_without_a_host_key_is_a_problem(changed: dict[str, Any] | None) -> None:
    report = {name: value for name, value in WRITTEN.items() if name != "host_keys"} | (changed or {})
    found = read(report)
    assert found.problem.startswith("reports ")
    assert "no host key was written" in found.problem
    assert found.host_keys == ()


@pytest.mark.parametrize("names", ["|1|sälz|digest", "|1|c2FseA==|dïgest", "|1|²|", "|1|", "|1|a|b|c"])
def test_a_damaged_entry_of_known_hosts_counts_as_that_of_another_host(names: str) -> None:
    assert read(WRITTEN, known_hosts=f"{names} {RSA}\n").problem == ""
    assert "reports the host key of |1|" in read(WRITTEN, known_hosts=f"{names} {KEY}\n").problem
