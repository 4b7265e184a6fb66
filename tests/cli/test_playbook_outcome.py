"""Test the object that ``--json`` prints for a playbook (``PlaybookOutcome``).

A script reads from it whether a node is good. The end of a node's tasks is not a verdict.
"""

from __future__ import annotations

from typing import Any

import pytest

from rackproof.cli.playbook_outcome import PlaybookOutcome


def outcome_of(*events: dict[str, Any]) -> dict[str, Any]:
    """Return the object for a playbook that sent these events."""
    outcome = PlaybookOutcome("validate")
    for event in events:
        outcome.add_event(event)
    return outcome.as_json(2, False, {})


def ended(host: str, state: str = "ok") -> dict[str, Any]:
    return {"kind": "end", "host": host, "state": state}


def test_a_node_without_a_verdict_is_null_and_not_ok() -> None:
    found = outcome_of(ended("n1"), ended("n2", "unreachable"), {"kind": "verdicts", "nodes": {"n1": "fail"}})
    assert "nodes" not in found
    assert found["playbook_states"] == {"n1": "ok", "n2": "unreachable"}
    assert found["verdicts"] == {"n1": "fail", "n2": None}


# A playbook may judge a node twice, such as in two waves.
@pytest.mark.parametrize("order", [("fail", "pass"), ("pass", "fail"), ("fail", "degraded"), ("fail", "?")])
def test_the_worst_verdict_of_a_node_counts(order: tuple[str, str]) -> None:
    found = outcome_of(*({"kind": "verdicts", "nodes": {"n1": verdict}} for verdict in order))
    assert found["verdicts"] == {"n1": "fail"}


@pytest.mark.parametrize("nodes", [None, ["n1"], {"n1": "perfect"}, {"n1": None}])
def test_a_verdict_that_cannot_be_read_is_no_pass(nodes: Any) -> None:
    found = outcome_of(ended("n1"), {"kind": "verdicts", "nodes": nodes})
    assert found["verdicts"]["n1"] in (None, "unproven")


def test_a_record_names_its_nodes() -> None:
    run = {"kind": "record", "what": "run", "id": "r1", "verdict": "fail", "nodes": ["n1", "n2"]}
    night = {"kind": "record", "what": "night", "id": "r2", "verdict": "fail"}
    assert [record["nodes"] for record in outcome_of(run, night)["records"]] == [["n1", "n2"], []]
