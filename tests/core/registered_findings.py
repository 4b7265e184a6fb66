"""Collect the findings of all tests whose code, verdict or action the registry does not allow.

conftest.py calls :func:`watch` before the tests, and a finding that core/finding_codes.csv does not list
fails them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rackproof.analysis.submission.models import Issue
from rackproof.core.finding_codes import why_not_allowed
from rackproof.core.records import Finding, Record
from rackproof.nodes.health_subjects import HealthFinding
from rackproof.store.night_store import NightReason

PACKAGE = str(Path(__file__).resolve().parents[2] / "src")
WATCHED: tuple[type[Record], ...] = (Finding, HealthFinding, NightReason, Issue)


def watch(refused: list[str]) -> None:
    """Append a line to ``refused`` for each finding made from now on that the registry does not allow.

    Only findings that the package's own files construct count. Tests may make findings with any code, and a
    stored record of an earlier version, which is validated and not constructed, may have codes that no longer
    exist.
    """
    for kind in WATCHED:
        _watch(kind, refused)


def _watch(kind: Any, refused: list[str]) -> None:
    construct = kind.__init__

    def checked(self: Any, **fields: Any) -> None:
        construct(self, **fields)
        caller = sys._getframe(1).f_code
        if caller.co_filename.startswith(PACKAGE):
            action, confidence = getattr(self, "action", ""), getattr(self, "confidence", "")
            if why := why_not_allowed(self.code, self.verdict, action, confidence):
                refused.append(f"{why} ({kind.__name__}, {caller.co_filename}, {caller.co_name})")

    kind.__init__ = checked
