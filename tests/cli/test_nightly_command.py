"""Test ``rackproof nightly``, which runs a night, for a timer or by hand.

It prints the failures of nodes on standard error, and the summary of the night, or JSON, on standard output.
The tests replace the night by a made-up one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rackproof.cli import nightly
from rackproof.cli.main import main
from rackproof.jobs.validate.nightly import NightlyOutcome, NightlySettings, NightlyView

# Events of a task that failed on a node, and of one that refused the whole night.
FAILED = {"kind": "end", "state": "failed", "task": "validate : Take a snapshot", "text": "no such module"}
REFUSED = {
    "kind": "end",
    "state": "failed",
    "task": "validate : Refuse it",
    "text": "no GPU node",
    "once": True,
}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[NightlySettings]:
    """Return a list with the settings of each night. Two nodes fail, and then the night is refused."""
    given: list[NightlySettings] = []

    def night(settings: NightlySettings, view: NightlyView) -> NightlyOutcome:
        given.append(settings)
        for host in ("n1", "n2"):
            view.add_event({**FAILED, "host": host})
        view.add_output("TASK [Take a snapshot]")
        view.add_event({**REFUSED, "host": "n1"})
        view.refresh()
        return NightlyOutcome(1, None, ("TOOL FAULT validate.yml ended with 2",))

    monkeypatch.setattr(nightly, "run_nightly", night)
    return given


def call(*arguments: Any) -> Result:
    """Call ``rackproof nightly``."""
    return CliRunner().invoke(main, ["nightly", *map(str, arguments)])


def test_each_reason_is_one_line_on_standard_error(seen: list[NightlySettings]) -> None:
    done = call("--share", "0.5", "--drain", "--mail-to", "a@example.org")
    assert (done.exit_code, done.stdout) == (1, "TOOL FAULT validate.yml ended with 2\n")
    assert done.stderr.splitlines() == [
        "n[1-2] (2 nodes): failed: Take a snapshot: no such module",
        "Refuse it: no GPU node",
    ]
    (settings,) = seen
    assert settings.variables == {
        "validate_drain": True,
        "validate_resume": False,
        "validate_max_drain_fraction": 0.5,
    }
    assert (settings.mail_to, settings.smtp) == (("a@example.org",), "localhost:25")


@pytest.mark.usefixtures("seen")
def test_v_shows_ansibles_own_output() -> None:
    assert call("-v").stderr == "TASK [Take a snapshot]\n"


@pytest.mark.usefixtures("seen")
def test_json_without_a_night_has_the_same_keys() -> None:
    done = call("--json")
    assert json.loads(done.stdout) == {
        "status": 1,
        "night": None,
        "verdict": None,
        "folder": None,
        "nodes": [],
        "lines": ["TOOL FAULT validate.yml ended with 2"],
    }


def test_the_message_of_an_interruption_names_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def night(*_: object) -> NightlyOutcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(nightly, "run_nightly", night)
    done = call("--json")
    assert (done.exit_code, done.stdout) == (130, "")
    assert "The same command finishes the night." in done.stderr
