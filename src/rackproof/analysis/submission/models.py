"""Define the parts of a submission, and the issues with it. Nothing here computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rackproof.core.errors import RackproofError
from rackproof.core.records import LogFile, Record, Run, Verdict


class SubmissionError(RackproofError):
    """The package cannot be made at all (operator's file, folder, disk); the message has the remedy."""


class Issue(Record):
    """Something missing or wrong, where, and what to do about it.

    ``verdict`` is ``fail`` (proven wrong) or ``unproven`` (missing, not known); ``None`` for a remark, which
    hinders nothing. ``code`` is a stable short name. ``run`` is the id of the run and ``file`` the path that
    the issue is about; both are empty if it is about neither.
    """

    code: str
    verdict: Verdict | None = None
    message: str
    remedy: str = ""
    run: str = ""
    file: str = ""

    @property
    def place(self) -> str:
        """Run and file, as far as it is about any."""
        return ", ".join(filter(None, (f"run {self.run}" if self.run else "", self.file)))

    @property
    def text(self) -> str:
        """Return what is wrong and what to do, without the place."""
        return f"{self.message}. To do: {self.remedy}" if self.remedy else self.message


class CheckerAnswer(Record):
    """The answer of the official package checker.

    ``accepted`` is ``None`` if it gave no answer (crashed, stopped, never asked); ``error`` is the reason.
    ``messages`` are its warnings and errors, each with the file of the package that it was reading.
    ``checked`` are the benchmarks whose logs it looked at (it passes over those that it does not know),
    ``allowed`` those that the round has.
    """

    accepted: bool | None = None
    error: str = ""
    messages: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    described: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    scaling: dict[str, str] = {}  # noqa: RUF012  (pydantic copies defaults)
    """``scaling.json`` as the checker wrote it, by benchmark."""
    version: str = ""


class BenchmarkPart(Record):
    """One benchmark of the package. ``minutes`` is the score, or ``None`` if the rules allow none.

    ``runs[i]`` is the id of the run whose log is ``result_<i>.txt``.
    """

    benchmark: str
    runs: tuple[str, ...]
    runs_needed: int | None = None
    minutes: float | None = None
    scaling_factor: float | None = None
    """The factor in ``scaling.json``, or ``None`` if the rules write none."""


class Submission(Record):
    """The outcome: the packed files, the checker's answer, and all missing or wrong parts.

    ``folder`` is the submitter's folder inside the output folder; empty if nothing was written.
    """

    verdict: Verdict
    ruleset: str
    submitter: str
    system: str
    division: str = ""
    folder: str = ""
    benchmarks: tuple[BenchmarkPart, ...] = ()
    description: dict[str, Any] = {}  # noqa: RUF012
    issues: tuple[Issue, ...] = ()
    checker: CheckerAnswer = CheckerAnswer()


@dataclass(frozen=True)
class ChosenRun:
    """A run with its result log: its record, and the log's own statements.

    ``moment`` is when the run began, in seconds since 1970 (0 where it is unknown). ``stated`` are the
    tags of the log's MLPerf events, ``system`` the description that the run script printed
    (``:::SYSJSON``), without what it left empty.
    """

    run: Run
    folder: Path
    log: LogFile
    moment: float = 0.0
    stated: dict[str, str] = field(default_factory=dict)
    system: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Return where the log is."""
        return self.folder / self.log.path

    @property
    def benchmark(self) -> str:
        """Return the benchmark by the rules' name: the log's, else the record's."""
        return self.stated.get("submission_benchmark") or self.run.benchmark


@dataclass(frozen=True)
class CopiedFile:
    """A file that goes into the package byte for byte, or not at all."""

    path: Path
    sha256: str


Files = dict[str, bytes | CopiedFile]
"""A package: path below the output folder → contents, or the file that is copied."""
