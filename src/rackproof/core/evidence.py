"""Describe in tables the evidence that a judgement needs, and find the missing pieces.

Each kind of judgement, for example of a node or of a run, defines a table of :class:`RequiredEvidence`. The
judge evaluates the table first (:func:`lacking_evidence`), so that checks can rely on their input. Tests
compare the tables with the structures that contain the evidence, and fail if a field has no row. The module
does no I/O.
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
    """The states of a piece of evidence. Only ``THERE`` is usable."""

    THERE = "there"
    ABSENT = "absent"
    """The evidence does not exist, or its program is not installed."""
    NOT_ASKED = "not asked"
    """The evidence was not requested, for example because its program was not started."""
    FAILED = "failed"
    """The attempt to read the evidence failed, for example because its program ended with an error."""
    HUNG = "hung"
    """The program that provides the evidence did not end within its time limit."""
    CUT = "cut"
    """Only a part of the evidence was received."""
    DAMAGED = "damaged"
    """The evidence is not of the expected form, such as infinite or not a number."""


@dataclass(frozen=True)
class RequiredEvidence(Generic[Subject]):
    """A row of a table: one piece of evidence for a kind of judgement.

    Attributes:
        name: The field or tool, as named in the structure that contains the evidence.
        read_from: The program, file or service that provides the evidence.
        state: A function that returns the state of this evidence in the judged object.
        needed: A function that returns whether this judgement needs the evidence. A node without GPUs, for
            example, needs no GPU readings.
        code: The code of the finding if the evidence is missing.
        remedy: The operator's next step if the evidence is missing.
        verdicts: The verdicts by state, where they differ from the usual one. The usual verdict is
            ``unproven``, or none if ``harmless`` gives a reason.
        harmless: The reason why a pass may lack the evidence. If empty, a pass needs it.
        without: What is unknown without the evidence, in words for operators. Empty if the name is enough.

    Raises:
        ValueError: ``verdicts`` has a verdict for evidence that is there.
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
        """Return the verdict for a state, or None if the state does not matter."""
        if state is EvidenceState.THERE:
            return None
        return self.verdicts.get(state, None if self.harmless else Verdict.UNPROVEN)


@dataclass(frozen=True)
class LackingEvidence:
    """A piece of evidence that a judgement needs but cannot use.

    ``code``, ``name`` and ``verdict`` are from the table's row for ``state``. ``message`` is for
    operators and has the form ``WITHOUT: NAME (READ_FROM): STATE; REMEDY``, with the fields of the row. If
    ``without`` is empty, the form is ``NAME (READ_FROM): STATE; REMEDY``.
    """

    code: str
    name: str
    state: EvidenceState
    verdict: Verdict
    message: str


def lacking_evidence(
    table: Iterable[RequiredEvidence[Subject]], subject: Subject
) -> Iterator[LackingEvidence]:
    """Yield the missing evidence of a judgement, in the table's order.

    Args:
        table: The rows, one for each piece of evidence.
        subject: The judged object, which the functions of the rows read.
    """
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

    None, empty texts and empty collections are absent. NaN and infinity are damaged.
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
"""Evidence states by the status of a tool in a node's answer, or "" if the answer lacks the tool.

The statuses are from plugins/module_utils/rackproof_tools.py, and ``cut`` is for an answer that the caller
knows to be truncated. ``failed``, ``no_driver`` and all others are not in this table.
"""


def state_of_tool(status: str) -> EvidenceState:
    """Return the evidence state that belongs to a tool's status. An unknown status is a failure."""
    return _STATE_OF_TOOL.get(status, EvidenceState.FAILED)
