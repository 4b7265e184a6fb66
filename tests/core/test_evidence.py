"""Test the tables of evidence (core/evidence.py), which list what a judgement needs.

A row of such a table names a reading, such as a node's clock. If the reading is missing or damaged, the
judgement is unproven, and the message names the remedy. Only a row that is not needed, or has a written
reason, may lack.
"""

from __future__ import annotations

import math

import pytest

from rackproof.core.evidence import (
    EvidenceState,
    RequiredEvidence,
    lacking_evidence,
    state_of_tool,
    state_of_value,
)
from rackproof.core.records import Verdict

Answers = dict[str, object]


def _row(name: str, **more: object) -> RequiredEvidence[Answers]:
    """Return a row whose evidence is the answer of the same name."""
    return RequiredEvidence(
        name=name,
        read_from="a file",
        state=lambda answers: state_of_value(answers.get(name)),
        code=f"{name}_unknown",
        remedy="look at it",
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("value", [None, "", (), {}, math.nan, math.inf])
def test_evidence_that_lacks_is_unproven(value: object) -> None:
    (lacking,) = lacking_evidence([_row("clock")], {"clock": value})
    assert lacking.verdict is Verdict.UNPROVEN
    assert lacking.message.startswith("clock (a file): ")
    assert lacking.message.endswith("; look at it")


@pytest.mark.parametrize("value", [0, 0.0, False, "x"])
def test_evidence_that_is_there_does_not_lack(value: object) -> None:
    assert not list(lacking_evidence([_row("clock")], {"clock": value}))


def test_evidence_that_is_not_needed_does_not_lack() -> None:
    assert not list(lacking_evidence([_row("clock", needed=lambda answers: False)], {}))


def test_harmless_evidence_may_lack_and_its_states_may_have_a_verdict_all_the_same() -> None:
    row = _row("clock", harmless="containers have none", verdicts={EvidenceState.DAMAGED: Verdict.FAIL})
    assert not list(lacking_evidence([row], {}))
    assert [one.verdict for one in lacking_evidence([row], {"clock": math.nan})] == [Verdict.FAIL]


def test_what_is_there_has_no_verdict_of_lacking() -> None:
    with pytest.raises(ValueError, match="cannot be missing"):
        _row("clock", verdicts={EvidenceState.THERE: Verdict.FAIL})


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("ok", EvidenceState.THERE),
        ("", EvidenceState.NOT_ASKED),
        ("absent", EvidenceState.ABSENT),
        ("hung", EvidenceState.HUNG),
        ("cut", EvidenceState.CUT),
        ("failed", EvidenceState.FAILED),
        ("status 255", EvidenceState.FAILED),
    ],
)
def test_state_of_a_tool(status: str, state: EvidenceState) -> None:
    assert state_of_tool(status) is state
