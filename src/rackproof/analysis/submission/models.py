"""Define the records of a submission and its issues, which the other modules of this folder share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rackproof.core.errors import RackproofError
from rackproof.core.records import LogFile, Record, Run, Verdict


class SubmissionError(RackproofError):
    """A submission that cannot be made, because of the operator's file, a folder or the disk.

    The message gives the remedy.
    """


class Issue(Record):
    """An issue with a submission: something missing or wrong, its place and the remedy.

    Attributes:
        code: A stable short name, such as ``run_count``.
        verdict: Either ``fail`` (proven wrong), ``unproven`` (missing, unknown), or ``None`` for a
            remark, which does not block the package.
        run: The id of the run, or "".
        file: The path, or the benchmark's name if the issue is about all of its runs, or "".
    """

    code: str
    verdict: Verdict | None = None
    message: str
    remedy: str = ""
    run: str = ""
    file: str = ""

    @property
    def place(self) -> str:
        """Return the run and the file of the issue, as far as it has them."""
        return ", ".join(filter(None, (f"run {self.run}" if self.run else "", self.file)))

    @property
    def text(self) -> str:
        """Return the fault and the remedy, without the place."""
        return f"{self.message}. To do: {self.remedy}" if self.remedy else self.message


class CheckerAnswer(Record):
    """The answer of the official package checker.

    Attributes:
        accepted: Whether the checker accepted the package, or ``None`` if it crashed, was stopped or never
            ran.
        error: The reason for a missing answer.
        messages: The checker's warnings and errors. A warning about a log begins with the log's path.
        errors: The checker's errors alone.
        checked: The benchmarks whose logs the checker examined. It skips unknown benchmarks.
        described: The values of ``system_name`` in the descriptions that the checker accepted.
        allowed: The benchmarks of the round.
        version: The checker's package and its version.
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
    """One benchmark of a submission package.

    ``minutes`` is the score, or ``None`` if the rules allow no score. ``runs[i]`` is the id of the run whose
    log is ``result_<i>.txt``, and ``runs_needed`` is the number of runs that the rules require.
    """

    benchmark: str
    runs: tuple[str, ...]
    runs_needed: int | None = None
    minutes: float | None = None
    scaling_factor: float | None = None
    """The factor in ``scaling.json``, or ``None`` if the checker did not write this file."""


class Submission(Record):
    """The outcome of a submission: the packed benchmarks, the checker's answer, and the issues.

    ``folder`` is the submitter's folder inside the output folder, or "" if nothing was written.
    ``description`` is the system description by its keys.
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
    """A run chosen for a submission: its record, and the statements in its result log.

    Attributes:
        folder: The folder of the run.
        log: The log with the MLPerf events.
        moment: The start of the run, in seconds since 1970 (0 if unknown).
        stated: The values that the log states by key, such as ``submission_benchmark`` and ``seed``.
        system: The first description that the run script printed (``:::SYSJSON``), without empty values.
        system_conflicts: The keys in which several printed descriptions differ.
    """

    run: Run
    folder: Path
    log: LogFile
    moment: float = 0.0
    stated: dict[str, str] = field(default_factory=dict)
    system: dict[str, Any] = field(default_factory=dict)
    system_conflicts: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Return the path of the log."""
        return self.folder / self.log.path

    @property
    def benchmark(self) -> str:
        """Return the benchmark's name in the rules, from the log or else from the record."""
        return self.stated.get("submission_benchmark") or self.run.benchmark

    def issue(self, *, code: str, message: str, verdict: Verdict | None = None, remedy: str = "") -> Issue:
        """Return an issue about this run's log."""
        return Issue(
            code=code,
            verdict=verdict,
            run=self.run.run_id,
            file=self.log.path,
            message=message,
            remedy=remedy,
        )


@dataclass(frozen=True)
class CopiedFile:
    """A file that is copied into the package, if its content still has this SHA-256."""

    path: Path
    sha256: str


Files = dict[str, bytes | CopiedFile]
"""The files of a package. The key is the path below the output folder, and the value is the content or the
file to copy."""
