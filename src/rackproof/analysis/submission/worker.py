"""Run the official package checker in a process (``python -m rackproof.analysis.submission.worker``).

The checker is the program of the package ``mlperf_logging`` with which MLCommons checks submissions. Below,
it is called the tool. The process reads a job (JSON, see :func:`check_package`) from standard input, and
writes one ``CheckerAnswer`` (JSON) to standard output. :mod:`.checking` starts this separate process, because
the tool prints, may crash, and may take very long on hostile logs.

:mod:`.checking` also makes the copy of the package that the tool reads, because the tool writes
``scaling.json`` into the folder that it reads. The answer is taken from the tool's log records, because text
that the tool prints may come from a result log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlperf_logging import benchmark_meta
from mlperf_logging.compliance_checker import mlp_parser
from mlperf_logging.package_checker import package_checker

from rackproof.analysis.mlperf.cleaning import path_problem
from rackproof.analysis.mlperf.sandbox import serve_job
from rackproof.analysis.submission.models import CheckerAnswer
from rackproof.core.text import sanitize

USAGE = "training"
"""Name of MLPerf Training among the kinds of benchmarks that the tool checks."""
_MAX_MESSAGES = 100
"""Largest number of the tool's messages in an answer."""


class _Listener(logging.Handler):
    """A handler that stores the facts in the tool's log records, as fields of ``CheckerAnswer``.

    ``file`` is the path of the log that the tool is reading, relative to ``folder``, or "" if it is reading
    none. The path ``folder`` is removed from all messages.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.INFO)
        self.folder = str(folder)
        self.file = ""
        self.accepted: bool | None = None
        self.checked: list[str] = []
        self.described: list[str] = []
        self.messages: list[str] = []
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store the fact in one record.

        Only the text ``msg`` is compared, because the tool itself wrote it. The arguments may be from a log.
        """
        if record.msg == "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !":
            self.accepted = True
        elif str(record.msg).startswith("PACKAGE CHECKER FOUND ERRORS"):
            self.accepted = False
        elif record.msg == " Running compliance checks in dir %s":
            self.checked.append(Path(str(_argument(record))).name)
        elif record.msg == "Running compliance on file: %s":
            self.file = self._plain(str(_argument(record)))
        elif record.msg == "  System description checker passed for %s":
            self.described.append(str(_argument(record)))
        elif record.levelno >= logging.WARNING:
            self._keep(record)
        # From here on, the tool reads all logs of a benchmark together, so no message belongs to one file.
        elif str(record.msg).strip() == "Running Seed Checker":
            self.file = ""

    def _keep(self, record: logging.LogRecord) -> None:
        """Store a warning or an error. A warning about a log gets the log's path as its beginning."""
        message = self._plain(record.getMessage())
        if self.file and record.levelno < logging.ERROR:
            message = f"{self.file}: {message}"
        for texts, is_listed in ((self.messages, True), (self.errors, record.levelno >= logging.ERROR)):
            if is_listed and len(texts) < _MAX_MESSAGES:
                texts.append(message)

    def _plain(self, text: str) -> str:
        """Return a text of the tool without the path of the folder, sanitized and cut to 500 characters."""
        return sanitize(text[:20_000].replace(self.folder + "/", ""), 500)


def _argument(record: logging.LogRecord) -> object:
    """Return the first argument of a record, or ""."""
    return record.args[0] if isinstance(record.args, tuple) and record.args else ""


def check_package(job: Mapping[str, Any]) -> CheckerAnswer:
    """Check a copy of a package with the official checker.

    Args:
        job: A mapping with ``folder`` (the path of the copy of the submitter's folder) and ``ruleset`` (the
            round, such as ``5.1.0``).
    """
    folder, ruleset = Path(job["folder"]), str(job["ruleset"])
    listener = _Listener(folder)
    logging.basicConfig(handlers=[listener], level=logging.INFO, force=True)
    error = ""
    allowed: tuple[str, ...] = ()
    try:
        allowed = tuple(benchmark_meta.get_allowed_benchmarks(USAGE, ruleset))
        error = _unsafe(folder, ruleset)
        if not error:
            package_checker.check_training_package(
                str(folder),
                USAGE,
                ruleset,
                quiet=False,
                werror=False,
                rcp_bypass=False,
                rcp_bert_train_samples=False,
                seed_checker_bypass=False,
                log_output="(nowhere)",
            )
    except Exception as crash:  # the tool may raise anything at all
        file_text = f" while it read {listener.file}" if listener.file else ""
        error = f"it crashed{file_text}: {type(crash).__name__}: {sanitize(crash, 300)}"
    return CheckerAnswer(
        accepted=None if error else listener.accepted,
        error=error,
        messages=tuple(listener.messages),
        errors=tuple(listener.errors),
        checked=tuple(listener.checked),
        described=tuple(listener.described),
        allowed=allowed,
        scaling={
            path.parent.name: path.read_text(encoding="ascii")
            for path in sorted(folder.glob("results/*/*/scaling.json"))
        },
        version=f"mlperf-logging {version('mlperf-logging')}",
    )


def _unsafe(folder: Path, ruleset: str) -> str:
    """Return a message about a log that would make the tool open a file outside of its rules, or "".

    The tool builds the path of a file with rules from values in the log.
    """
    for log in sorted(folder.glob("results/*/*/result_*.txt")):
        events, _ = mlp_parser.parse_file(str(log), ruleset=ruleset)
        for event in events:
            value = event.value.get("value") if isinstance(event.value, dict) else None
            problem = path_problem(event.key, value)
            if problem:
                return f"{log.relative_to(folder)}: {problem}; the checker did not run"
    return ""


def _answer_job(job: Mapping[str, Any], answer: Callable[[str], None]) -> None:
    """Check the package of a job, and pass the answer as JSON to a function that writes it."""
    answer(check_package(job).model_dump_json())


if __name__ == "__main__":
    serve_job(_answer_job)
