"""Define the data model, which all other modules use to exchange records.

The docstrings of :class:`Run` and its parts are also the descriptions in ``docs/schema/run.schema.json``,
which ``rackproof schema`` prints.

All models are frozen and refuse unknown keys, so a damaged record causes a validation error and is never
read in part. Durations are in seconds, sizes in bytes, and times of day in UTC, unless a ``unit`` states
otherwise. An empty text, list or mapping means that the value is unknown or does not apply, unless a field's
description states otherwise.

Begin with :class:`Run`, the record of a run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

SCHEMA_VERSION = 1
"""Version of ``run.json``, which increases when a reader of the old shape would misread the new one."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
"""A name that is not empty."""
Text = Annotated[str, StringConstraints(max_length=4000)]
"""A message or reason."""


class Record(BaseModel):
    """The base of all records, which are frozen and refuse unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", use_attribute_docstrings=True
    )


class WrittenRecord(Record):
    """The base of records that people write as YAML, where ``yes`` is a truth value."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for a number. Pydantic would read them as 1 and 0."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        kinds = get_args(annotation) or (annotation,)
        if isinstance(value, bool) and bool not in kinds and (int in kinds or float in kinds):
            raise ValueError(f"it has to be a number, not {str(value).lower()}")
        return value


class Verdict(StrEnum):
    """The possible outcomes of judging. ``unproven`` is never a pass."""

    PASS = "pass"  # noqa: S105  (a verdict, not a password)
    """The evidence shows that the judged object is good."""
    DEGRADED = "degraded"
    """A pass with a weakness, such as a speed between the warning and the floor."""
    FAIL = "fail"
    """The evidence shows a fault."""
    UNPROVEN = "unproven"
    """The evidence is missing, damaged or contradictory."""

    @property
    def gates(self) -> bool:
        """Return whether a playbook or command ends with a non-zero exit status after this verdict."""
        return self in (Verdict.FAIL, Verdict.UNPROVEN)


WORST_FIRST = (Verdict.FAIL, Verdict.UNPROVEN, Verdict.DEGRADED, Verdict.PASS)
"""All verdicts, from the worst to the best."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of several verdicts, or ``unproven`` if there are none."""
    return min(verdicts, key=WORST_FIRST.index, default=Verdict.UNPROVEN)


class Direction(StrEnum):
    """The better direction of a measurement."""

    HIGHER = "higher"
    LOWER = "lower"


class Source(Record):
    """The place in a source from which a fact was read. Unknown parts are None."""

    file: str | None = None
    """The name of the file, or the name of the node, as the reader calls it."""
    line: int | None = Field(default=None, ge=1)
    """The number of the line, from 1."""
    rank: int | None = Field(default=None, ge=0)
    """The rank of the process that wrote the line, from 0."""

    def __str__(self) -> str:
        """Return file, line and rank on one line."""
        where = self.file or ""
        if self.line is not None:
            where += f":{self.line}" if where else f"line {self.line}"
        if self.rank is not None:
            where += f" (rank {self.rank})"
        return where.strip()


class Spread(Record):
    """The distribution of a measurement's samples, which are repetitions or moments of a run.

    The values are in the measurement's unit. If there are five samples or more, ``low`` and ``high`` leave
    out the lowest and the highest 5 % of them, at least one each. A single disturbance therefore does not
    count as spread.
    """

    count: int = Field(ge=1)
    """The number of samples."""
    low: FiniteFloat
    """The low end of the samples."""
    median: FiniteFloat
    """The median of the samples."""
    high: FiniteFloat
    """The high end of the samples."""

    @model_validator(mode="after")
    def _in_order(self) -> Spread:
        """Refuse a spread whose values do not ascend."""
        if not self.low <= self.median <= self.high:
            raise ValueError("low, median and high of a spread do not ascend")
        return self

    @property
    def factor(self) -> float:
        """Return the ratio of the high end to the low end, or infinity if the low end is not above 0."""
        if self.low == self.high:
            return 1.0
        return self.high / self.low if self.low > 0 else math.inf


class Measurement(Record):
    """A named number with its unit, direction and origin, read from a log or computed.

    ``labels`` distinguish measurements with the same name, for example ``{"gpu": "GPU-…", "size_bytes":
    "8388608"}``. NaN and infinity are allowed, so that pages can show the number that was measured. The
    verdict on such a number is ``unproven``.
    """

    name: Name
    value: float
    unit: str
    """The unit of the value, such as ``GB/s``, or empty for a plain number."""
    direction: Direction | None = None
    """The direction in which a value is better, or None if neither is better."""
    labels: dict[str, str] = {}
    spread: Spread | None = None
    """The spread of the samples of this value, or None if there is only one number."""
    source: Source = Source()
    """The place where the value was read."""

    @property
    def finite(self) -> bool:
        """Return whether the value is an ordinary number."""
        return math.isfinite(self.value)


class Series(Record):
    """A curve for the report, such as loss or throughput, with a bounded number of points."""

    name: Name
    unit: str
    """The unit of ``y``."""
    x_unit: str
    """The unit of ``x``, for example ``s``, ``step`` or ``epoch``."""
    x: tuple[float, ...]
    """The times or the progress of the points. They never decrease."""
    y: tuple[float, ...]
    """The values of the points, as many as in ``x``."""
    labels: dict[str, str] = {}
    """Labels that distinguish curves with the same name."""


class Finding(Record):
    """A fault in a log or run that changes the verdict, or a remark.

    ``verdict`` is ``fail`` or ``unproven`` if the finding excludes a pass, ``degraded`` if it weakens a
    pass, and ``None`` for a remark. ``code`` is a stable short name (``out_of_memory``, ``nan``,
    ``cut_off``). ``excerpt`` is text of the log, which is hostile until it is sanitized.
    """

    code: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    message: Text
    verdict: Verdict | None = None
    source: Source = Source()
    excerpt: Annotated[str, StringConstraints(max_length=500)] = ""

    @property
    def consequence(self) -> bool:
        """Return whether the finding is a consequence of another fault, which is then the reason."""
        return self.code in ("no_run_stop", "not_compliant", "traceback", "task_failed")


class ParsedLog(Record):
    """The contents of one log, as a parser read them.

    ``tags`` has what the log states about itself, such as benchmark, seeds and global batch size. Tags
    may be wrong, so the system is taken from the run and not from the log. ``verdict`` describes whether the
    run in the log ended well, not whether it was fast. It is ``pass``, ``degraded`` (a finding weakens the
    pass), ``fail`` (the log shows a failure) or ``unproven`` (the log is cut off, empty, or damaged in an
    important part). It includes the verdicts of the log's findings.
    """

    format: str
    file: str = ""
    size_bytes: int = 0
    lines: int = 0
    measurements: tuple[Measurement, ...] = ()
    series: tuple[Series, ...] = ()
    findings: tuple[Finding, ...] = ()
    tags: dict[str, str] = {}
    first_event_s: float | None = None
    """The earliest moment that the log's events state, in seconds since 1970, or None without such events."""
    last_event_s: float | None = None
    """The latest moment that the log's events state, in seconds since 1970, or None without such events."""
    verdict: Verdict = Verdict.UNPROVEN

    def measurement(self, name: str, **labels: str) -> Measurement | None:
        """Return the first measurement with the name and all given labels, or None."""
        for measurement in self.measurements:
            if measurement.name == name and labels.items() <= measurement.labels.items():
                return measurement
        return None


class Reference(Record):
    """A value to compare a measurement with, and bounds relative to it, as in ReFrame.

    ``low``, ``high`` and ``warn`` are fractions of ``value`` (-0.07 allows 7 % less). ``None`` means no bound
    on that side. A measurement beyond the bound on the bad side is ``fail``, and between ``warn`` and that
    bound it is ``degraded``. Beyond the bound on the good side, a measurement is too good to be true, and
    therefore ``unproven``. ``source`` is the origin of the number.
    """

    value: float
    low: float | None = None
    high: float | None = None
    warn: float | None = None
    unit: str
    source: str

    @field_validator("value")
    @classmethod
    def _finite(cls, value: float) -> float:
        """Refuse a reference that is NaN or infinite."""
        if not math.isfinite(value):
            raise ValueError("a reference must be a finite number")
        return value


class Judgement(Record):
    """The comparison of one measurement with one reference.

    If ``gating`` is false, the comparison is shown and stored but does not change the verdict of the run.
    """

    metric: Name
    labels: dict[str, str] = {}
    value: float | None = None
    unit: str = ""
    spread: Spread | None = None
    """The spread of the measurement's samples, or None if there is only one number."""
    reference: Reference | None = None
    """The reference, or None if there is none. The verdict is then ``unproven``."""
    verdict: Verdict
    gating: bool = True
    reason: Text
    """The reason for the verdict."""
    source: Source = Source()
    """The place where the measurement was read."""


class Gpu(Record):
    """One GPU of a node, as nvidia-smi reported it."""

    index: int = Field(ge=0)
    uuid: str
    """The identity of the GPU in the history."""
    name: str = ""
    """The product name."""
    serial: str = ""
    """The serial number."""
    bus_id: str = ""
    """The PCI address, such as ``00000000:07:00.0``."""
    vbios: str = ""
    """The version of the VBIOS."""
    memory_bytes: int = 0
    """Bytes of the GPU's memory, or 0 if unknown."""
    power_limit_w: float | None = None
    """The power limit in watts, or None if unknown."""


class Node(Record):
    """One node as it was when the run started."""

    name: Name
    """The node's name in the inventory."""
    sku: str = ""
    """The node's model, which is the value of ``bench_sku``."""
    addresses: tuple[str, ...] = ()
    """The node's network addresses."""
    serial: str = ""
    """The node's serial number."""
    chassis_serial: str = ""
    """The serial number of the node's chassis, which several nodes may share."""
    hostname: str = ""
    """The name that the node reports for itself. If ``name`` is `localhost`, this name identifies the
    machine."""
    machine_id: str = ""
    """The id of the installed system (/etc/machine-id)."""
    product: str = ""
    """The vendor and the product name of the machine."""
    cpu: str = ""
    """The model of the processors."""
    cpu_count: int = 0
    """The number of logical processors, or 0 if unknown."""
    memory_bytes: int = 0
    """Bytes of the node's main memory, or 0 if unknown."""
    gpus: tuple[Gpu, ...] = ()
    software: dict[str, str] = {}
    """The version of each part of the software (OS, kernel, driver, CUDA, cuDNN, NCCL, OFED, MPI,
    framework, Slurm)."""
    firmware: dict[str, str] = {}
    """The version of each part of the firmware."""

    @property
    def hardware_key(self) -> str:
        """Return the node's identity in the history.

        The identity is the first of these that is known: the node's serial number, the serial number of the
        chassis, the UUIDs of the GPUs, the machine id, and the name in the inventory. All but the name remain
        the same if the node gets a new name. The node's own serial number comes before the serial number
        of the chassis, because several nodes may share a chassis.
        """
        if self.serial or self.chassis_serial:
            return self.serial or self.chassis_serial
        if uuids := sorted(gpu.uuid for gpu in self.gpus if gpu.uuid):
            return "+".join(uuids)
        # The machine's hostname is not used, because many machines use the same one.
        return f"machine:{self.machine_id}" if self.machine_id else f"host:{self.name}"


KEPT_RECORD = "record"
"""Value of :attr:`LogFile.format` for a night's record.

The record is not a log, but the night's run stores its digest.
"""


class LogFile(Record):
    """A raw log that is stored beside the record, with its digest and verdict."""

    path: str
    """The path relative to the run folder."""
    sha256: str
    """The SHA-256 of the file."""
    size_bytes: int
    format: str = ""
    """The name of the format that was read."""
    verdict: Verdict = Verdict.UNPROVEN
    """The verdict of the parser on this log alone."""


def tags_under(tags: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the tags of a log whose names begin with a prefix, by their names without the prefix.

    The function does no I/O.
    """
    return {name.removeprefix(prefix): text for name, text in tags.items() if name.startswith(prefix)}


class Dataset(Record):
    """The data that a run read, as the log of the run describes them."""

    name: str = ""
    source: str = ""
    """The origin of the data, such as a URL or a folder."""
    objects: int | None = None
    """The number of files or samples, or None if unknown."""
    size_bytes: int | None = None
    """Bytes of all objects together, or None if unknown."""
    sha256: str = ""
    """A SHA-256 of the data."""

    @classmethod
    def from_tags(cls, tags: Mapping[str, str]) -> Dataset | None:
        """Return the data that the tags of a log describe, or None if no tag describes data."""
        stated = tags_under(tags, "dataset.")
        if not stated:
            return None
        texts = {name: stated[name] for name in ("name", "source", "sha256") if name in stated}
        # A log may contain any text. An invalid count is left out, so that the run is not lost.
        counts = {
            name: int(stated[name])
            for name in ("objects", "size_bytes")
            if re.fullmatch("[0-9]{1,17}", stated.get(name, ""))
        }
        return cls.model_validate({**texts, **counts})


class MachineMoment(Record):
    """The state of a machine at the start or the end of a run.

    A value that the machine does not report is None.
    """

    load: float | None = None
    """Processes that ran or waited to run, averaged over the last minute."""
    pressure: float | None = None
    """The percentage of the last ten seconds in which a process waited for a processor."""
    governor: str | None = None
    """The frequency governor of the first processor, such as ``performance``."""
    mhz: float | None = None
    """The mean clock of the processors in MHz."""
    celsius: float | None = None
    """The highest temperature in °C that a sensor of the machine reports."""
    slowed: float | None = None
    """The number of times that heat slowed a processor since boot."""


class MachineUse(Record):
    """The use of a machine's processors by other processes in a run, as the job's supervisor measured it."""

    cpus: int
    """The number of processors that the job may use."""
    seconds: float
    """The length in seconds of the time for which the supervisor measured the use."""
    disturbed_s: float
    """The total length in seconds of the windows in which other processes slowed the run down."""
    others_s: float
    """Processor seconds that other processes used."""
    stolen_s: float
    """Processor seconds that the hypervisor gave to other machines."""
    names: tuple[str, ...] = ()
    """Names of the other processes."""
    begin: MachineMoment | None = None
    """The state of the machine at the start of the run, or None if unknown."""
    end: MachineMoment | None = None
    """The state of the machine at the end of the run, or None if unknown."""


TEST_RACK = "test rack"
"""Beginning of the description of a run on the test rack, as ``roles/bench/tasks/run.yml`` writes it."""


class Run(Record):
    """The record of one execution of one benchmark on a set of nodes.

    The record is stored as ``results/RUN_ID/run.json`` and in the history.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,120}$")]
    """The id of the run, which is the name of its folder."""
    plan_id: str = ""
    """The plan (one command's list of runs) that this run belongs to."""
    benchmark: Name
    suite: str = ""
    """The suite by which the benchmark was selected, or empty if it was selected by its name."""
    description: str = ""
    """The operator's description of the run, or the job's own."""
    provenance: Literal["ran", "imported"] = "ran"
    """``ran`` by Rackproof, or ``imported`` from logs that were made elsewhere."""
    started: datetime | None = None
    """The time at which the job started, or None if it is unknown or the job did not start."""
    ended: datetime | None = None
    """The time at which the job ended, or None if it is unknown or the job did not start."""
    parameters: dict[str, str | int | float | bool | None] = {}
    """The point of the matrix, such as ``{"batch_size": 128, "gpus": 1}``."""
    command: tuple[str, ...] = ()
    """The command line of the workload."""
    environment: dict[str, str] = {}
    """Environment variables of the job, without secrets."""
    container: str = ""
    """The name of the container image, or empty without a container."""
    container_digest: str = ""
    """The digest of the container image."""
    launcher: str = ""
    """The launcher (``local``, ``mpirun``, ``docker``, ``slurm``)."""
    nodes: tuple[Node, ...] = ()
    asked_nodes: tuple[str, ...] = ()
    """The names of the nodes in the run's plan."""
    machine_use: dict[str, MachineUse] = {}
    """The use of each node's processors by other processes. Nodes whose supervisor reports none are not
    listed."""
    software: dict[str, str] = {}
    """The versions that the workload itself reports (framework, CUDA, cuDNN, NCCL), in addition to the
    nodes' facts."""
    configuration: str = ""
    """The name of the system for comparisons. Rackproof's jobs leave it empty."""
    dataset: Dataset | None = None
    """The data, or None if no log describes them."""
    storage: str = ""
    """The storage of the data, as text, from the operator or from the checked setup of an experiment."""
    network: str = ""
    """The network between the nodes, as text, from the operator or from the checked setup of an
    experiment."""
    seeds: tuple[int, ...] = ()
    """The seeds that the logs state. If logs differ, only the last one counts."""
    exit_status: int | None = None
    """The exit status of the job, or None if it is unknown."""
    measurements: tuple[Measurement, ...] = ()
    series: tuple[Series, ...] = ()
    findings: tuple[Finding, ...] = ()
    """The findings of the logs, and those about the job and its nodes."""
    judgements: tuple[Judgement, ...] = ()
    """The judgements of the measurements by the rules of the definition."""
    verdict: Verdict = Verdict.UNPROVEN
    reasons: tuple[str, ...] = ()
    """The reasons why the verdict is not ``pass``, or the open questions of a pass. The most important
    is first."""
    logs: tuple[LogFile, ...] = ()
    definition_sha256: str = ""
    """SHA-256 of the benchmark's definition, as it was when the run was planned."""
    rackproof_version: str = ""
    """The version of Rackproof that wrote the record."""
    notes: str = ""
    """The operator's notes on the run."""

    @property
    def is_of_test_rack(self) -> bool:
        """Return whether the run was on the test rack, whose fake hardware proves nothing."""
        return self.description.partition(":")[0].strip() == TEST_RACK

    @property
    def title(self) -> str:
        """Return benchmark and point of the matrix on one line."""
        point = " ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.benchmark} {point}".strip()


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``run.json`` (draft 2020-12)."""
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core import core_schema

    class WithSpecialNumbers(GenerateJsonSchema):
        """A JSON schema in which numbers may be texts, because records contain NaN and infinity as text."""

        def float_schema(self, schema: core_schema.FloatSchema) -> dict[str, Any]:
            return {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}

    schema = Run.model_json_schema(mode="serialization", schema_generator=WithSpecialNumbers)
    digest = {"type": "string", "description": "SHA-256 of all that follows it in the file"}
    schema["properties"] = {"sha256": digest, **schema["properties"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Rackproof run"}
