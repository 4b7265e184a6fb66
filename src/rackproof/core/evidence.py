"""Describe the evidence of a judgement as data: each piece, its source, and the meaning of its absence.

A table of :class:`RequiredEvidence` belongs to each kind of judgement. The judge evaluates it first
(:func:`lacking_evidence`), so that no check has to consider that its input may be absent. A test
compares each table with the structure that it describes: a field without a row fails, so new
evidence cannot be forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from rackproof.core.records import Verdict

Subject = TypeVar("Subject")


class EvidenceState(StrEnum):
    """The state of a piece of evidence: usable, or the reason why not."""

    THERE = "there"
    ABSENT = "absent"
    """It does not exist, or its program is not installed."""
    NOT_ASKED = "not asked"
    FAILED = "failed"
    HUNG = "hung"
    CUT = "cut"
    """Only a part of it was received."""
    DAMAGED = "damaged"
    """It is not readable in the expected form: not a number, infinite, another format."""


@dataclass(frozen=True)
class RequiredEvidence(Generic[Subject]):
    """One piece of evidence of a kind of judgement.

    Attributes:
        name: The field or the tool, named as in the structure that contains it.
        read_from: A text about its source: program, file, service.
        state: A function that returns the state of this evidence in the judged object.
        needed: A function that returns whether this judgement needs it (a node without GPUs needs
            no readings of them).
        code: The code of the finding that reports its absence.
        remedy: The remedy for the operator.
        verdicts: The verdicts by state that differ from ``unproven``. A hung tool is never milder
            than a failed one.
        harmless: The reason why its absence proves nothing against the subject; without a reason,
            it must not be missing in a pass.
        without: A text for operators about the fact that is unknown without it; empty if its name
            is enough.
    """

    name: str
    read_from: str
    state: Callable[[Subject], EvidenceState]
    code: str
    remedy: str
    needed: Callable[[Subject], bool] = lambda subject: True
    verdicts: Mapping[EvidenceState, Verdict] = field(default_factory=dict)
    harmless: str = ""
    without: str = ""

    def __post_init__(self) -> None:
        if self.verdicts.get(EvidenceState.THERE) is not None:
            raise ValueError(f"{self.name}: existing evidence cannot be missing")

    def verdict_of(self, state: EvidenceState) -> Verdict | None:
        """Return the meaning of a state for the verdict, or None if it has none."""
        if state is EvidenceState.THERE:
            return None
        return self.verdicts.get(state, None if self.harmless else Verdict.UNPROVEN)


@dataclass(frozen=True)
class LackingEvidence:
    """A piece of evidence that a judgement needs but cannot use."""

    code: str
    name: str
    state: EvidenceState
    verdict: Verdict
    message: str


def lacking_evidence(
    table: Iterable[RequiredEvidence[Subject]], subject: Subject
) -> Iterator[LackingEvidence]:
    """Yield the missing evidence of a judgement of ``subject``, in the table's order."""
    for row in table:
        if not row.needed(subject):
            continue
        state = row.state(subject)
        verdict = row.verdict_of(state)
        if verdict is not None:
            without = f"{row.without}: " if row.without else ""
            message = f"{without}{row.name} ({row.read_from}): {state.value}; {row.remedy}"
            yield LackingEvidence(row.code, row.name, state, verdict, message)


def state_of_value(value: Any) -> EvidenceState:
    """Return the state of a plain value: None, empty texts and empty collections are absent, NaN is
    damaged.
    """
    if value is None or (isinstance(value, Sized) and len(value) == 0):
        return EvidenceState.ABSENT
    if isinstance(value, float) and not math.isfinite(value):
        return EvidenceState.DAMAGED
    return EvidenceState.THERE


_STATE_OF_TOOL: Mapping[str, EvidenceState] = {
    "ok": EvidenceState.THERE,
    "": EvidenceState.NOT_ASKED,
    "absent": EvidenceState.ABSENT,
    "hung": EvidenceState.HUNG,
    "cut": EvidenceState.CUT,
}


def state_of_tool(status: str) -> EvidenceState:
    """Return the state of a tool's answer from the gatherer's status; an unknown status is a failure."""
    return _STATE_OF_TOOL.get(status, EvidenceState.FAILED)
