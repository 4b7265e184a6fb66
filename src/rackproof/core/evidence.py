"""Describe the evidence that a judgement needs as data.

Each kind of judgement has a table of :class:`RequiredEvidence`. The judge evaluates the table first
(:func:`lacking_evidence`), so that checks can rely on their input. A test compares each table with the
structure that it describes, and fails if a field has no row.
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
    """Define the states of a piece of evidence. Only one of them is usable."""

    THERE = "there"
    ABSENT = "absent"
    """It does not exist, or its program is not installed."""
    NOT_ASKED = "not asked"
    FAILED = "failed"
    HUNG = "hung"
    CUT = "cut"
    """Only a part of the evidence was received."""
    DAMAGED = "damaged"
    """It does not have the expected form. For example, it is infinite or not a number."""


@dataclass(frozen=True)
class RequiredEvidence(Generic[Subject]):
    """Describe one piece of evidence for a kind of judgement.

    Attributes:
        name: The field or tool, as it is called in the structure that contains it.
        read_from: The program, file or service that provides it.
        state: A function that returns the state of this evidence in the judged object.
        needed: A function that returns whether this judgement needs it. A node without GPUs, for
            example, needs no GPU readings.
        code: The code of the finding if it is missing.
        remedy: The operator's next step if it is missing.
        verdicts: The verdict for each state if it is not ``unproven``. The verdict for a hung tool is
            never milder than for a failed one.
        harmless: The reason why a pass may lack it. If this is empty, a pass must have it.
        without: What is unknown if it is missing, in words for operators. Empty if the name is enough.
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
    """Describe a piece of evidence that a judgement needs but cannot use."""

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
    """Return the state of a plain value.

    None, empty texts and empty collections are absent. NaN is damaged.
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
    """Return the evidence state that belongs to a tool's status. An unknown status is a failure."""
    return _STATE_OF_TOOL.get(status, EvidenceState.FAILED)
