"""Test the tables of required evidence (core/evidence.py), which list what a judgement needs.

A row of such a table names a piece of evidence, such as a node's clock. If it is missing or damaged, the
judgement is unproven, and the message names the remedy. Evidence may be missing only if the judgement does
not need it, or if its row states why that is harmless.
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
def test_missing_or_damaged_evidence_is_unproven(value: object) -> None:
    (lacking,) = lacking_evidence([_row("clock")], {"clock": value})
    assert lacking.verdict is Verdict.UNPROVEN
    assert lacking.message.startswith("clock (a file): ")
    assert lacking.message.endswith("; look at it")


@pytest.mark.parametrize("value", [0, 0.0, False, "x"])
def test_a_zero_false_or_text_is_not_missing(value: object) -> None:
    assert not list(lacking_evidence([_row("clock")], {"clock": value}))


def test_evidence_that_is_not_needed_may_be_missing() -> None:
    assert not list(lacking_evidence([_row("clock", needed=lambda answers: False)], {}))


def test_harmless_evidence_may_be_missing_but_a_state_may_still_have_a_verdict() -> None:
    row = _row("clock", harmless="containers have none", verdicts={EvidenceState.DAMAGED: Verdict.FAIL})
    assert not list(lacking_evidence([row], {}))
    assert [one.verdict for one in lacking_evidence([row], {"clock": math.nan})] == [Verdict.FAIL]


def test_a_row_cannot_give_existing_evidence_a_verdict() -> None:
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
def test_the_status_of_a_tool_gives_the_state_of_its_evidence(status: str, state: EvidenceState) -> None:
    assert state_of_tool(status) is state
