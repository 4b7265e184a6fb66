"""Answer the requirements of a catalogue from runs and nights. No I/O.

:mod:`.making` and :mod:`.verification` call :func:`answer_catalogue`. A requirement
(:class:`.models.Requirement`) names benchmarks, metrics or a night. A piece of evidence is a run or a night.
For each node, this module chooses the pieces that count, and makes parts of the answer from them. The answer
has the worst verdict of its parts.

Less evidence never makes a better answer. If evidence is missing, changed, too old, or from other hardware,
the answer is at best ``unproven``. A failed run counts until a later run of the same point (benchmark and
parameters) reached the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from rackproof.analysis.certificate.expectations import lacking_expectations
from rackproof.analysis.certificate.machines import PartIndex, shared_serials, under_present_names
from rackproof.analysis.certificate.models import (
    Answer,
    EvidencePiece,
    Requirement,
    hardware_doubt,
    is_identified,
)
from rackproof.core.evidence import EvidenceState
from rackproof.core.judging import bounds_objection
from rackproof.core.records import Node, Verdict, worst
from rackproof.store.known_parts import parts_of

_CLOCK_SKEW = timedelta(minutes=5)
"""Largest time by which evidence may be later than the answer, because clocks differ."""
_MOST_REASONS = 40
"""Largest number of reasons of an answer."""
_MOST_OTHERS = 3
"""Largest number of other nodes in a reason."""
_WHOLE_NUMBER = re.compile(r"([0-9]{1,9})(?:\.0)?")


@dataclass(frozen=True)
class _Part:
    """A part of an answer: its verdict, the reason for it, and the evidence. A pass needs no reason."""

    verdict: Verdict
    reason: str = ""
    piece: EvidencePiece | None = None


class _Evidence:
    """The nodes to certify with their current hardware, and the pieces of evidence by node.

    The nodes of each piece have the present names of their machines.

    Attributes:
        current: The current hardware of each node for which it is known.
        pieces: The pieces that include each node, oldest first.
        shared: For each node, the names of other nodes to certify that have one of its parts, too.
        places: The name of the node in which each part was last.
    """

    def __init__(
        self, asked: Sequence[str], nodes: Sequence[Node], evidence: Sequence[EvidencePiece]
    ) -> None:
        self.current = {node.name: node for node in nodes if node.name in set(asked)}
        index = PartIndex(self.current.values(), shared_serials(piece.nodes for piece in evidence))
        self.shared = {
            name: [other.name for other in index.related(node) if other.name != name]
            for name, node in self.current.items()
        }
        self.pieces: dict[str, list[EvidencePiece]] = {name: [] for name in asked}
        self.places: dict[str, str] = {}
        for piece in sorted(evidence, key=lambda piece: (piece.moment, piece.id)):
            self.places |= {part: node.name for node in piece.nodes for part in parts_of(node)}
            present = under_present_names(piece, index)
            for name in {node.name for node in present.nodes} & self.pieces.keys():
                self.pieces[name].append(present)


@dataclass(frozen=True)
class _Question:
    """One requirement, the nodes to certify (``asked``), their evidence, and the time of the answer."""

    requirement: Requirement
    asked: Sequence[str]
    evidence: _Evidence
    at: datetime

    def current_node(self, name: str) -> Node | None:
        """Return a node with its current hardware, or None if it is unknown."""
        return self.evidence.current.get(name)


def answer_catalogue(
    requirements: Sequence[Requirement],
    asked: Sequence[str],
    nodes: Sequence[Node],
    evidence: Sequence[EvidencePiece],
    at: datetime,
) -> tuple[Answer, ...]:
    """Return the answer to each requirement.

    Args:
        requirements: The requirements of a catalogue.
        asked: The nodes to certify.
        nodes: The nodes with their current hardware. Evidence from other hardware proves nothing about
            them.
        evidence: The runs and nights.
        at: The time of the answers, by which the age of the evidence is judged.
    """
    indexed = _Evidence(asked, nodes, evidence)
    return tuple(_answer(_Question(requirement, asked, indexed, at)) for requirement in requirements)


def whole_verdict(answers: Sequence[Answer]) -> Verdict:
    """Return the worst verdict of the answers."""
    return worst(answer.verdict for answer in answers)


def _answer(question: _Question) -> Answer:
    """Return the answer, with the worst verdict of all requested nodes, and reasons for failures first."""
    parts = [part for name in question.asked for part in _parts_of_node(question, name)]
    measured = worst(part.verdict for part in parts)
    parts = sorted(
        [*_unmeasured_parts(question.requirement, measured), *parts],
        key=lambda part: part.verdict is not Verdict.FAIL,
    )
    verdict = worst(part.verdict for part in parts)
    reasons = dict.fromkeys(part.reason for part in parts if part.verdict is not Verdict.PASS)
    pieces = {part.piece.id: part.piece for part in parts if part.piece}
    holds = not verdict.gates and pieces
    return Answer(
        id=question.requirement.id,
        verdict=verdict,
        reasons=tuple(reasons)[:_MOST_REASONS],
        more_reasons=max(len(reasons) - _MOST_REASONS, 0),
        by=tuple(sorted(pieces)),
        # Only an answer that holds can expire.
        until=min(piece.moment for piece in pieces.values()) + question.requirement.max_age
        if holds
        else None,
    )


def _unmeasured_parts(requirement: Requirement, measured: Verdict) -> Iterator[_Part]:
    """Yield an unproven part for what Rackproof does not measure, and one that describes what it measures."""
    if requirement.unmeasured:
        yield _Part(Verdict.UNPROVEN, f"not measured by Rackproof: {requirement.unmeasured}")
    if requirement.measured:
        state = "nothing against it" if measured is Verdict.PASS else measured.value
        yield _Part(Verdict.UNPROVEN, f"measured ({state}): {requirement.measured}")


def _parts_of_node(question: _Question, name: str) -> Iterator[_Part]:
    """Yield the parts of the answer from the runs, metrics and nights of a node."""
    runs = []
    for benchmark in question.requirement.benchmarks:
        counted, doubt = _counted_runs(question, name, benchmark)
        yield from _parts_of_benchmark(question, f"{name}: {benchmark}", counted, doubt)
        if counted and not any(_uses_all_gpus(piece, name) for piece in counted):
            yield _Part(Verdict.UNPROVEN, f"{name}: {benchmark}: no run was on all GPUs of the node")
        runs += counted
    yield from _metric_parts(question, name, runs)
    if question.requirement.night:
        yield from _parts_of_night(question, name)
    # A part is in one node, so at most one of the nodes has its present hardware.
    if question.requirement.is_measured and (others := question.evidence.shared.get(name)):
        listed = ", ".join(sorted(others)[:_MOST_OTHERS])
        yield _Part(Verdict.UNPROVEN, f"{name}: {listed} is the same machine, or has a part of it")


# The choice of the pieces that count.


def _covering(question: _Question, name: str, kind: str, benchmark: str) -> list[EvidencePiece]:
    """Return the pieces of a kind and benchmark that cover a node in the required scope, oldest first."""
    return [
        piece
        for piece in question.evidence.pieces[name]
        # A run whose record is damaged may be of any benchmark. A night has no benchmark.
        if piece.kind == kind and piece.benchmark in ("", benchmark) and _covers(question, piece)
    ]


def _covers(question: _Question, piece: EvidencePiece) -> bool:
    """Return whether a piece includes the nodes that the requirement's scope needs."""
    # If the record is missing or damaged, only the nodes' names are known. It may have the required scope, so
    # it counts.
    if piece.gone or question.requirement.scope == "node":
        return True
    names = {node.name for node in piece.nodes}
    return len(names) > 1 if question.requirement.scope == "pair" else names >= set(question.asked)


def _doubt(question: _Question, piece: EvidencePiece, name: str) -> str:
    """Return the reason why a piece proves nothing about a node's current hardware, or ""."""
    then = piece.node(name)
    # A piece whose record is lost counts. So does a piece that did not pass and did not identify the node,
    # because its hardware is unknown.
    if piece.gone or then is None or (piece.verdict.gates and not is_identified(then)):
        return ""
    # In a wider scope, all requested nodes of the run must still have the hardware that they had in the run.
    nodes = [node for node in piece.nodes if node.name == name or question.requirement.scope != "node"]
    asked = question.evidence.pieces.keys()
    doubts = (_hardware_doubt(question, node) for node in nodes if node.name in asked)
    return next(filter(None, doubts), "")


def _hardware_doubt(question: _Question, then: Node) -> str:
    """Return why a node of a piece is or may be other hardware than the node's current one, or ""."""
    current = question.current_node(then.name)
    places = question.evidence.places
    moved = next((part for part in sorted(parts_of(then)) if places.get(part, then.name) != then.name), "")
    if current is None and moved:
        return f"its present hardware is not known, because {moved} was in {places[moved]} since"
    return hardware_doubt(then, current)


def _is_old(question: _Question, piece: EvidencePiece) -> bool:
    """Return whether a piece is older than the requirement allows."""
    return question.at - piece.moment > question.requirement.max_age


def _age_doubt(question: _Question, piece: EvidencePiece) -> str:
    """Return the reason why a piece is too old or from the future, or ""."""
    if piece.moment - question.at > _CLOCK_SKEW:
        return f"it is dated {piece.moment:%Y-%m-%d %H:%M}, which is in the future"
    if _is_old(question, piece):
        days = (question.at - piece.moment) / timedelta(days=1)
        allowed = question.requirement.max_age / timedelta(days=1)
        return f"it is {days:.1f} days old, more than {allowed:g}"
    return ""


# Runs.


def _counted_runs(question: _Question, name: str, benchmark: str) -> tuple[list[EvidencePiece], str]:
    """Return the runs of a benchmark that count, and why its last run on other hardware does not, or "".

    Of each point, the newest run counts. If that run did not reach the node, earlier failures count, too.
    Runs on other hardware than the node's present one do not count (:func:`_doubt`). If a counted run is
    recent, runs that passed but are too old do not count.
    """
    newest: dict[str, list[EvidencePiece]] = {}
    doubt = ""
    for piece in _covering(question, name, "run", benchmark):
        new_doubt = _doubt(question, piece, name)
        if new_doubt:
            doubt = f"{piece.id}: {new_doubt}"
        else:
            newest[piece.point] = [*_not_replaced(newest.get(piece.point, []), piece, name), piece]
    counted = [piece for pieces in newest.values() for piece in pieces]
    fresh = [piece for piece in counted if not _is_old(question, piece)]
    # An old run that did not pass still counts, because age does not make it a pass.
    old_not_passed = [
        piece for piece in counted if piece not in fresh and _verdict_of(piece) is not Verdict.PASS
    ]
    return (fresh + old_not_passed if fresh else counted), doubt


def _not_replaced(
    earlier: Sequence[EvidencePiece], piece: EvidencePiece, name: str
) -> Iterator[EvidencePiece]:
    """Yield the failures among earlier runs of a point if a new run (``piece``) did not reach the node."""
    then = piece.node(name)
    if _verdict_of(piece) is Verdict.UNPROVEN and not (then and is_identified(then)):
        yield from (failed for failed in earlier if _verdict_of(failed) is Verdict.FAIL)


def _uses_all_gpus(piece: EvidencePiece, name: str) -> bool:
    """Return whether a run used all GPUs of its node.

    A run without the parameter ``gpus`` uses all GPUs. A run whose parameter is not a whole number does not.
    """
    node = piece.node(name)
    if node is None or "gpus" not in piece.parameters:
        return True
    number = _WHOLE_NUMBER.fullmatch(str(piece.parameters["gpus"]))
    return number is not None and int(number[1]) >= len(node.gpus)


def _parts_of_benchmark(
    question: _Question, location: str, runs: Sequence[EvidencePiece], doubt: str
) -> Iterator[_Part]:
    """Yield a part for each run of a benchmark, or an unproven part if there is none.

    ``location`` is the beginning of the reasons, and ``doubt`` is the reason why a run does not count, or "".
    """
    if not runs:
        wide = {"node": "", "pair": " with another node", "rack": " with all the others"}
        why = doubt or f"there is no run{wide[question.requirement.scope]}"
        yield _Part(Verdict.UNPROVEN, f"{location}: {why}")
    for piece in runs:
        yield _piece_part(question, piece, piece.verdict, location)


def _verdict_of(piece: EvidencePiece) -> Verdict:
    """Return the verdict of a piece, whatever its age. An objection makes it at best unproven."""
    return worst(
        [piece.verdict, *_verdicts_in(piece), *(Verdict.UNPROVEN for _ in [*piece.objections, *_gaps(piece)])]
    )


def _gaps(piece: EvidencePiece) -> Iterator[str]:
    """Yield why the contents of a piece prove nothing, or contradict its verdict."""
    if piece.gone and not piece.objections:
        yield "its record is gone or was altered"
    if not piece.gone and not piece.files:
        yield "the certificate names none of its files"
    gating = (judgement for judgement in piece.judgements if judgement.gating)
    yield from filter(None, map(bounds_objection, gating))


def _verdicts_in(piece: EvidencePiece) -> Iterator[Verdict]:
    """Yield the verdicts of a piece's gating judgements, and of a run's findings."""
    yield from (judgement.verdict for judgement in piece.judgements if judgement.gating)
    if piece.kind == "run":
        yield from (finding.verdict for finding in piece.findings)


def _piece_part(question: _Question, piece: EvidencePiece, verdict: Verdict, location: str) -> _Part:
    """Return a piece of evidence as a part. With an objection or a wrong age, it is at best unproven."""
    doubts = [*filter(None, [_age_doubt(question, piece)]), *piece.objections, *_gaps(piece)]
    counted = worst([verdict, *_verdicts_in(piece), *(Verdict.UNPROVEN for _ in doubts)])
    why = "; ".join([*doubts, *piece.reasons])
    return _Part(counted, f"{location}: {piece.id} is {counted.value}{': ' * bool(why)}{why}", piece)


def _metric_parts(question: _Question, name: str, runs: Sequence[EvidencePiece]) -> Iterator[_Part]:
    """Yield a part for each gating judgement of a required metric.

    If no judgement of a metric is from a run on all GPUs, yield an unproven part, too.
    """
    # The absence of a run is already a reason.
    for metric in question.requirement.metrics if runs else ():
        judged = [
            (judgement.verdict, piece)
            for piece in runs
            for judgement in piece.judgements
            if judgement.metric == metric and judgement.gating
        ]
        if not any(_uses_all_gpus(piece, name) for _, piece in judged):
            yield _Part(Verdict.UNPROVEN, f"{name}: no run on all GPUs has {metric} judged")
        for verdict, piece in judged:
            yield _Part(verdict, f"{name}: {metric} of {piece.id} is {verdict.value}", piece)


# Nights.


def _parts_of_night(question: _Question, name: str) -> Iterator[_Part]:
    """Yield the parts from the newest night with a node, for the required codes or else for its health.

    If that night did not reach the node, failures of earlier nights count, too. The search ends with the last
    night that reached the node. A node that cannot be reached does not show that its fault is gone.
    """
    nights = _covering(question, name, "night", "")
    if not nights:
        yield _Part(Verdict.UNPROVEN, f"{name}: there is no night")
        return
    night = nights[-1]
    for newer_night, earlier_night in pairwise(reversed(nights)):
        # If a night reached the node, earlier nights do not count.
        if name in newer_night.reads:
            break
        yield from _failures(question, earlier_night, name)
    if doubt := _doubt(question, night, name):
        # Without a snapshot, the node's hardware in the night is unknown. The objections state the reason.
        why = "; ".join(night.objections) or doubt
        yield _Part(Verdict.UNPROVEN, f"{name}: {night.id}: {why}", night)
    if question.requirement.codes:
        yield _piece_part(question, night, Verdict.PASS, name)
        yield from _finding_parts(question, night, name)
        yield from _read_parts(question, night, name)
        yield from _expectation_parts(question, night, name)
    else:
        verdict = night.verdicts.get(name, Verdict.UNPROVEN)
        yield _piece_part(question, night, worst([verdict, *_verdicts_on(night, name)]), f"{name}: health")


def _failures(question: _Question, night: EvidencePiece, name: str) -> Iterator[_Part]:
    """Yield the failures of a node in a night, unless the node has other hardware now."""
    if _doubt(question, night, name):
        return
    if question.requirement.codes:
        yield from (part for part in _finding_parts(question, night, name) if part.verdict is Verdict.FAIL)
    elif Verdict.FAIL in (night.verdicts.get(name), *_verdicts_on(night, name)):
        yield _piece_part(question, night, Verdict.FAIL, f"{name}: health")


def _verdicts_on(night: EvidencePiece, name: str) -> list[Verdict]:
    """Return the verdicts of a night's findings on a node."""
    return [finding.verdict for finding in night.findings if finding.node == name]


def _finding_parts(question: _Question, night: EvidencePiece, name: str) -> Iterator[_Part]:
    """Yield a part for each finding on a node that has a required code or is unproven."""
    for finding in night.findings:
        # If a night could not judge something on the node, the answer is unproven, whatever its codes.
        is_unproven = finding.verdict is Verdict.UNPROVEN
        if finding.node == name and (is_unproven or question.requirement.names_code(finding.code)):
            yield _Part(finding.verdict, f"{name}: {finding.code}: {finding.text}", night)


def _read_parts(question: _Question, night: EvidencePiece, name: str) -> Iterator[_Part]:
    """Yield an unproven part for each required tool without complete output in a night."""
    states = night.reads.get(name, {})
    for tool in question.requirement.reads:
        state = states.get(tool, EvidenceState.ABSENT.value)
        if state != EvidenceState.THERE.value:
            yield _Part(Verdict.UNPROVEN, f"{name}: {tool} of {night.id}: {state}", night)


def _expectation_parts(question: _Question, night: EvidencePiece, name: str) -> Iterator[_Part]:
    """Yield an unproven part if the inventory's expectations of the node are missing or incomplete."""
    expected = night.expected.get(name)
    if expected is None:
        why = f"{night.id} does not record what the inventory expected of it"
    else:
        why = lacking_expectations(question.requirement.codes, expected)
    if why:
        yield _Part(Verdict.UNPROVEN, f"{name}: {why}", night)
