"""Run the official package checker for :mod:`.building`, in its own process on a copy of the package."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from pydantic import ValidationError

from rackproof.analysis.mlperf.sandbox import run_in_sandbox
from rackproof.analysis.submission.models import CheckerAnswer


def ask_checker(package: Path, *, ruleset: str, timeout_s: float) -> CheckerAnswer:
    """Return the official package checker's answer about a package.

    The package is not changed. If the checker crashes or is stopped, ``accepted`` is ``None``, and ``error``
    is the reason.

    Args:
        package: The submitter's folder.
        ruleset: The round, for example ``5.1.0``.
        timeout_s: Seconds after which the checker is stopped.

    Raises:
        OSError: The package cannot be copied.
    """
    answers: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="rackproof-package-") as work:
        copy = Path(work) / "package"
        shutil.copytree(package, copy)
        end = run_in_sandbox(
            "rackproof.analysis.submission.worker",
            {"folder": str(copy), "ruleset": ruleset},
            Path(work),
            timeout_s=timeout_s,
            on_answer=answers.append,
        )
    if end.timed_out:
        return CheckerAnswer(error=f"it took longer than {timeout_s:g} s and was stopped")
    try:
        return CheckerAnswer.model_validate_json(b"".join(answers))
    except ValidationError:
        return CheckerAnswer(error=f"it ended early (exit status {end.status}): {end.last_error}")
