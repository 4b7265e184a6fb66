"""The official package checker, asked in a process of its own about a copy of the package."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic import ValidationError

from rackproof.analysis.mlperf.score import worker_environment
from rackproof.analysis.submission.models import CheckerAnswer
from rackproof.core.text import sanitize


def ask_checker(package: Path, *, ruleset: str, timeout_s: float) -> CheckerAnswer:
    """Return what the official package checker says about a package.

    The package is only read. Whatever happens to the checker, an answer comes back; where it gave
    none, ``accepted`` is ``None`` and ``error`` says why.

    Args:
        package: The submitter's folder.
        ruleset: The round, for instance ``5.1.0``.
        timeout_s: Seconds after which the checker is stopped.

    Raises:
        OSError: The package cannot be copied.
    """
    with tempfile.TemporaryDirectory(prefix="rackproof-package-") as work, tempfile.TemporaryFile() as said:
        copy = Path(work) / "package"
        shutil.copytree(package, copy)
        job = {"folder": str(copy), "ruleset": ruleset, "timeout_s": math.ceil(timeout_s)}
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "rackproof.analysis.submission.worker"],
                input=json.dumps(job).encode(),
                stdout=subprocess.PIPE,
                stderr=said,
                cwd=work,
                env=worker_environment(),
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return CheckerAnswer(error=f"it took longer than {timeout_s:g} s and was stopped")
        try:
            return CheckerAnswer.model_validate_json(done.stdout)
        except ValidationError:
            said.seek(max(0, said.seek(0, 2) - 2000))
            last = said.read().decode("utf-8", "replace").strip().splitlines()[-1:]
            why = sanitize(last[0]) if last else "it said nothing"
            return CheckerAnswer(error=f"it ended early (exit status {done.returncode}): {why}")
