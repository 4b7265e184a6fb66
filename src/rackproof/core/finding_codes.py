"""Read the registry of finding codes.

``rackproof explain`` and certificates look codes up here. The judge and comparisons use :data:`MACHINE_BUSY`.
``finding_codes.csv``, beside this file, lists one code per line. A line has the fields of
:class:`FindingCode` in their order::

    clock_free | night | degraded | configure | certain | timedatectl: … | No service synchronizes …

To add a code, add a line at its place in the alphabet, and run ``make docs``, which updates
docs/using/codes.md. Tests compare the registry with the source in both directions, and with every finding of
the tests. Codes in records are not checked, because earlier versions may have used codes that no longer
exist.

Begin with :func:`find_code`. Reading the table is the only I/O.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

MACHINE_BUSY = "machine_busy"
"""Code of the remark that no speed of a run counts, because other processes used its machine."""

JOBS = {
    "night": "Nights (validate.yml) and the checks of provisioned and re-imaged nodes",
    "run": "Runs (bench.yml): nodes, job, launcher and Slurm",
    "log": "Logs, wherever they are read: runs, parse, import, score and nights",
    "score": "Scores of MLPerf results",
    "submission": "Packages of an MLPerf submission",
    "provision": "Preflight and record of provision.yml",
    "reimage": "Re-imaging (reimage.yml)",
}
"""Titles of the chapters of docs/using/codes.md, in their order, by the names in the column ``jobs``."""

VERDICTS = ("fail", "unproven", "degraded", "remark")
"""The possible verdicts, the worst first. A remark is a finding without a verdict."""


@dataclass(frozen=True)
class FindingCode:
    """One code of the registry.

    Attributes:
        code: The code. ``*`` means any number or name, as in ``xid_*`` and ``floor:*``.
        jobs: The jobs that report the code, as keys of :data:`JOBS`.
        verdicts: The possible verdicts, from :data:`VERDICTS`.
        actions: The actions that the code can require. Empty for a code that no health check reports.
        confidences: The possible confidences that the part is at fault. Empty if ``actions`` is empty.
        reads: The field, tool or file that shows the fault.
        meaning: One sentence for operators.
    """

    code: str
    jobs: tuple[str, ...]
    verdicts: tuple[str, ...]
    actions: tuple[str, ...]
    confidences: tuple[str, ...]
    reads: str
    meaning: str


@cache
def registry() -> dict[str, FindingCode]:
    """Return all entries by their code, in the order of the file, which is sorted."""
    text = files("rackproof.core").joinpath("finding_codes.csv").read_text(encoding="utf-8")
    entries = (_entry(line) for line in text.splitlines() if line and not line.startswith("#"))
    return {entry.code: entry for entry in entries}


def _entry(line: str) -> FindingCode:
    """Return the entry that one line of the file describes."""
    code, jobs, verdicts, actions, confidences, reads, meaning = line.split(" | ")
    return FindingCode(
        code, _words(jobs), _words(verdicts), _words(actions), _words(confidences), reads, meaning
    )


def _words(text: str) -> tuple[str, ...]:
    """Return the words of a column. A column without words is ``-``."""
    return () if text == "-" else tuple(text.split())


def find_code(code: str) -> FindingCode | None:
    """Return the registry's entry for a code, or None. The entry of ``xid_79`` is ``xid_*``."""
    entries = registry()
    if code in entries:
        return entries[code]
    # A code with a colon belongs to a measurement, whose name may be missing.
    check, colon, _ = code.partition(":")
    family = f"{check}:*"
    if colon or family in entries:
        return entries.get(family)
    families = [
        name for name in entries if name.endswith("_*") and code.startswith(name[:-1]) and code != name[:-1]
    ]
    return entries[max(families, key=len)] if families else None


def near_codes(code: str) -> list[str]:
    """Return up to five codes that are similar to the entered text, or contain this text.

    Texts of one or two characters are not searched in the codes, because too many codes would contain them.
    """
    lowered = code.strip().lower()
    near = difflib.get_close_matches(lowered, registry(), n=5, cutoff=0.6)
    if len(lowered) > 2:
        near += [name for name in registry() if lowered in name and name not in near]
    return near[:5]


def why_not_allowed(code: str, verdict: str | None, action: str = "", confidence: str = "") -> str:
    """Return why the registry does not allow a finding, or "" if it does.

    Args:
        code: The code of the finding.
        verdict: The verdict of the finding, or None for a remark.
        action: The finding's action. Empty if it is not from a health check.
        confidence: The finding's confidence. Empty if ``action`` is empty.
    """
    entry = find_code(code)
    if entry is None:
        return f"{code} is not in core/finding_codes.csv"
    for value, allowed in (
        (verdict or "remark", entry.verdicts),
        (action, (*entry.actions, "")),
        (confidence, (*entry.confidences, "")),
    ):
        if value not in allowed:
            return f"{code} has {value}, which core/finding_codes.csv does not list for it"
    return ""
