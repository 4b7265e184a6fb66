"""Define the records of a certificate, which the other modules of this folder share. No I/O."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, StringConstraints, model_validator

from rackproof.core.errors import RackproofError
from rackproof.core.records import Judgement, Name, Node, Record, Text, Verdict

NAMESPACE = "rackproof-evidence"
"""Namespace of the signatures. A signature with the same key for another purpose is not valid here."""
Scope = Literal["node", "pair", "rack"]
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Bounds of the times in a certificate. Beyond them, the end of a maximum age may not be a valid date."""
Moment = Annotated[AwareDatetime, Field(ge=EARLIEST, le=LATEST)]


class CertificateError(RackproofError):
    """A catalogue or certificate that cannot be read or made. The message gives the reason."""


class Requirement(Record):
    """One row of a catalogue: the requirement, and the evidence that answers it.

    A run of each of the ``benchmarks`` is needed, and each of the ``metrics`` must be judged in one of these
    runs. If ``night`` is true, the last night of each node counts. If there are ``codes``, only the night's
    findings with these codes, and unproven findings, count. The tools in ``reads`` must have answered, and
    the inventory must state what these codes compare with (:mod:`.expectations`).

    Attributes:
        scope: The nodes that a run must include: the node (``node``), the node and another one (``pair``), or
            all requested nodes (``rack``).
        max_age_days: The largest age of the evidence.
        area: The heading under which a page shows the row.
        codes: The codes of findings, or patterns such as ``port_*``.
        reads: The tools, such as ``kernel_log``, and the parts ``gpus``, ``ports`` and ``disk``.
        unmeasured: What the requirement includes but Rackproof does not measure. The answer is then at
            best unproven, because evidence about a part can only make it a failure.
        measured: The part that the evidence covers, if it covers only a part.
    """

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")]
    text: Annotated[str, StringConstraints(min_length=10, max_length=1000)]
    area: Annotated[str, StringConstraints(max_length=100)] = ""
    unmeasured: Annotated[str, StringConstraints(max_length=500)] = ""
    measured: Annotated[str, StringConstraints(max_length=500)] = ""
    scope: Scope = "node"
    max_age_days: Annotated[float, Field(gt=0, le=3660)] | None = None
    benchmarks: tuple[Name, ...] = ()
    metrics: tuple[Name, ...] = ()
    night: bool = False
    codes: tuple[Name, ...] = ()
    reads: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _answerable(self) -> Requirement:
        """Refuse a requirement without evidence or maximum age, or with half a statement of its gaps."""
        if not (self.is_measured or self.unmeasured):
            raise ValueError("a requirement names benchmarks, or night: true, or what is unmeasured")
        if self.is_measured and self.max_age_days is None:
            raise ValueError("evidence grows old: add max_age_days")
        if bool(self.measured) != bool(self.is_measured and self.unmeasured):
            raise ValueError("unmeasured with evidence of a part needs measured, which describes this part")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Requirement:
        """Refuse fields that have no effect without another one, such as codes without a night."""
        if (self.codes or self.reads) and not self.night:
            raise ValueError("codes and reads need night: true, because nights report them")
        if bool(self.codes) != bool(self.reads):
            raise ValueError(
                "codes need reads: without answers of these tools, a missing finding proves nothing"
            )
        if self.metrics and not self.benchmarks:
            raise ValueError("metrics need benchmarks, which measure them")
        if self.night and self.scope != "node":
            raise ValueError("a night answers for nodes: its scope is node")
        return self

    @property
    def is_measured(self) -> bool:
        """Return whether any evidence answers the requirement or a part of it."""
        return bool(self.benchmarks or self.night)

    @property
    def max_age(self) -> timedelta:
        """Return the largest allowed age of the evidence, or 0 if no evidence answers the requirement."""
        return timedelta(days=self.max_age_days or 0)

    @property
    def basis(self) -> str:
        """Return what answers the requirement, in words, such as ``codes xid_79 of the last night``."""
        night = (
            f"codes {', '.join(self.codes)} of the last night" if self.codes else "health of the last night"
        )
        parts = [
            f"{', '.join(self.benchmarks)} ({self.scope})" if self.benchmarks else "",
            f"metrics {', '.join(self.metrics)}" if self.metrics else "",
            night if self.night else "",
            f"read from {', '.join(self.reads)}" if self.reads else "",
            f"at most {self.max_age_days:g} days old" if self.max_age_days else "",
        ]
        return "; ".join(filter(None, parts))

    def names_code(self, code: str) -> bool:
        """Return whether findings with this code answer the requirement. Without codes, all findings do."""
        return not self.codes or any(fnmatchcase(code, pattern) for pattern in self.codes)


class Catalogue(Record):
    """A file of requirements, their source, and the parts of the source that no evidence answers."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,60}$")]
    title: Name
    source: Text = ""
    requirements: Annotated[tuple[Requirement, ...], Field(min_length=1)]
    left_out: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> Catalogue:
        """Refuse two requirements with one id."""
        ids = [requirement.id for requirement in self.requirements]
        if len(ids) != len(set(ids)):
            raise ValueError("two requirements have the same id")
        return self


class RawFile(Record):
    """A file of a run or night, by its path below the results folder."""

    path: str
    sha256: str
    size_bytes: int


class PieceFinding(Record):
    """A finding of a run or of one node's night.

    ``node`` is "" for a run. ``code`` is ``check:metric`` for a measurement of a night.
    """

    node: str = ""
    code: str
    verdict: Verdict
    text: str = ""


class ChangedLimit(Record):
    """A limit of a night that differed from the default (:class:`rackproof.nodes.health_subjects.Limits`)."""

    name: str
    value: float
    default: float


class EvidencePiece(Record):
    """One run or night as evidence for requirements.

    Attributes:
        moment: The end of the run or night. If it is unknown, the start or the time in the id takes its
            place.
        verdicts: The verdicts of a night, by node.
        reads: The state of each tool's answer in a night, such as "there" or "cut", by node and tool.
        expected: What the inventory of a night expected of each node (``validate_expect``).
        limits: The limits of each node that differed from the defaults in a night (``validate_limits``), or
            None if the snapshot does not have them.
        measured: The nodes with measurements of the last 24 hours in the night.
        objections: The reasons why the piece proves nothing, such as a changed file or a missing folder.
        gone: Whether its record is missing, altered or unreadable. Then only the history's row counts, or
            only the folder's name if the history has no row.
    """

    id: str
    kind: Literal["run", "night"]
    benchmark: str = ""
    parameters: dict[str, str | int | float | bool | None] = Field(default={})
    moment: Moment
    command: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    verdict: Verdict
    verdicts: dict[str, Verdict] = Field(default={})
    judgements: tuple[Judgement, ...] = ()
    findings: tuple[PieceFinding, ...] = ()
    reasons: tuple[str, ...] = ()
    reads: dict[str, dict[str, str]] = Field(default={})
    expected: dict[str, dict[str, Any]] = Field(default={})
    limits: dict[str, tuple[ChangedLimit, ...] | None] = Field(default={})
    measured: tuple[str, ...] = ()
    files: tuple[RawFile, ...] = ()
    objections: tuple[str, ...] = ()
    gone: bool = False

    @property
    def point(self) -> str:
        """Return benchmark and point of the matrix as text, which is the same for all repeats."""
        return f"{self.benchmark} {json.dumps(self.parameters, sort_keys=True)}"

    def node(self, name: str) -> Node | None:
        """Return a node as it was at the time, or None if the piece does not include it."""
        return next((node for node in self.nodes if node.name == name), None)


class Answer(Record):
    """The answer to one requirement.

    ``reasons`` has the first reasons why the answer is not a pass, and ``more_reasons`` is the number of
    further reasons. ``by`` has the ids of its evidence. ``until`` is the time at which the oldest evidence
    expires, or None if the answer does not hold now.
    """

    id: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    more_reasons: int = 0
    by: tuple[str, ...] = ()
    until: AwareDatetime | None = None


class Certificate(Record):
    """A certificate, as stored in its page: the catalogue, the evidence and the answers.

    ``asked`` are the names of the certified nodes. ``nodes`` is their hardware as last seen, without nodes
    whose hardware is not known. ``page_sha256`` is the digest of the page without this JSON and its
    signature.
    """

    schema_version: Literal[1] = 1
    made: Moment
    made_by: str
    command: tuple[str, ...] = ()
    rackproof_version: str
    page_sha256: str = ""
    verdict: Verdict
    asked: Annotated[tuple[Name, ...], Field(min_length=1)]
    nodes: tuple[Node, ...] = ()
    catalogue: Catalogue
    answers: tuple[Answer, ...]
    evidence: tuple[EvidencePiece, ...] = ()


def hardware_doubt(before: Node, now: Node | None) -> str:
    """Return why two descriptions of a node are or may be of different hardware, or ""."""
    if now is None:
        return "its present hardware is not known"
    if uuids_of(before) != uuids_of(now):
        return "other hardware: its GPUs changed since"
    if before.serial and now.serial:
        return "" if before.serial == now.serial else "other hardware: its serial number changed since"
    if uuids_of(before):
        return ""
    if before.machine_id and now.machine_id:
        return "" if before.machine_id == now.machine_id else "another machine: its machine id changed since"
    return "neither serial number nor GPUs nor machine id identify its hardware"


def is_identified(node: Node) -> bool:
    """Return whether more than its name identifies a node: GPU UUIDs, a serial number or a machine id."""
    return bool(uuids_of(node) or node.serial or node.machine_id)


def uuids_of(node: Node) -> set[str]:
    """Return the UUIDs of a node's GPUs."""
    return {gpu.uuid for gpu in node.gpus} - {""}
