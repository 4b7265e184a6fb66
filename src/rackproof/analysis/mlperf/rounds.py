"""Find the round whose rules apply to a folder of MLPerf logs.

A round is one publication of MLPerf's results, such as 5.1, and its rules are the ruleset ``5.1.0``. A log
does not contain its round. But the folder may be below one with the round's name (``training_results_v5.1``),
the benchmark may exist in only one round, and a round's runs were before its end and after the end of the
round before. If more than one round is possible, the operator must choose, because a score by the rules of
another round proves nothing.

Scores and submissions call :func:`read_evidence`. If the operator names no round, they call :func:`round_of`.
Job bench reads the references of a round with :func:`reference_points`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rackproof.core.text import sanitize
from rackproof.logs.opening import open_log

_FOLDER = re.compile(r"(?:training|hpc)[_-]results[_-]v(\d+\.\d+)(?:\.\d+)?(?:$|[^\d.])", re.IGNORECASE)
"""The name of a round's folder: ``training_results_v5.1`` or ``hpc_results_v3.0``."""
_STATED = re.compile(rb"(?:MLPERF_RULESET[\"']?[=:] ?|--ruleset[= ])[\"']?(\d\.\d\.\d)\b")
"""A launcher's line with the ruleset: ``MLPERF_RULESET=5.1.0`` or ``--ruleset 5.1.0``."""
_INFERENCE_FILES = re.compile(r"mlperf_log_(?:summary|detail|accuracy|trace)\.\w+")
_INFERENCE_KEYS = re.compile(rb'"key": ?"(?:loadgen_version|requested_scenario|effective_scenario)"')
_INFERENCE_TITLE = b"MLPerf Results Summary"
HPC = frozenset({"cosmoflow", "deepcam", "oc20", "openfold"})
"""Benchmarks of MLPerf HPC, by which :func:`refusal` distinguishes its logs from those of MLPerf Training."""
_HEAD_BYTES = 4 << 20
"""Number of bytes at the beginning of each log that are searched for its round."""

_ENDS = {
    "0.7.0": "2020-07-31",
    "1.0.0": "2021-06-15",
    "1.1.0": "2021-11-15",
    "2.0.0": "2022-06-15",
    "2.1.0": "2022-10-31",
    "3.0.0": "2023-06-15",
    "3.1.0": "2023-10-31",
    "4.0.0": "2024-05-31",
    "4.1.0": "2024-10-31",
    "5.0.0": "2025-05-31",
    "5.1.0": "2025-10-31",
}
"""Last day of the runs of each round of Training from 0.7 on. The end of the newest rounds is unknown, so
that the operator must choose these."""
_HPC_ENDS = {"0.7.0": "2020-11-18", "1.0.0": "2021-11-17", "2.0.0": "2022-11-09", "3.0.0": "2023-11-08"}
"""Day on which MLCommons published the results of each round of HPC."""
_TRAINING = ("0.6.0", *_ENDS, "6.0.0", "6.1.0")


class RoundEvidence(NamedTuple):
    """The facts in a folder's logs that indicate their round.

    Attributes:
        benchmarks: The names of the benchmarks in the logs.
        first: The start of the earliest run, in seconds since 1970, or None if unknown.
        stated: The rulesets in the launcher's lines.
        folder: The ruleset in the folder's path, or "".
        old_notation: Whether the logs use ``:::MLL``, as only round 0.6 does.
        inference: The name of a file that LoadGen, the program of MLPerf Inference, wrote, or "".
    """

    benchmarks: frozenset[str] = frozenset()
    first: float | None = None
    stated: frozenset[str] = frozenset()
    folder: str = ""
    old_notation: bool = False
    inference: str = ""


class Round(NamedTuple):
    """The ruleset to score by and the evidence for it, or the problem with its remedy if it is unknown."""

    ruleset: str
    origin: str = ""
    problem: str = ""


_BEFORE_END = timedelta(days=560)
"""Longest time between a run and the end of its round.

Older runs are submitted again: one of 337 results of 4.1 and 5.1 is from 552 days before the end.
"""
_FIRST_RUNS = datetime(2018, 9, 1, tzinfo=UTC)
"""Start of the runs of rounds 0.5 and 0.6. The last run of 0.6 is only known to be before the end of 0.7."""


def round_period(ruleset: str, usage: str = "training") -> tuple[datetime, datetime] | None:
    """Return the period in which the runs of a round were made, or None if it is not known.

    The period is known for rounds that are over. That of Training 0.6 begins with :data:`_FIRST_RUNS`.

    Args:
        ruleset: The round, such as ``5.1.0``.
        usage: ``training`` or ``hpc``, whose rounds have the same numbers but other dates.
    """
    ends = _ENDS if usage == "training" else _HPC_ENDS
    first_round = usage == "training" and ruleset == "0.6.0"
    if ruleset not in ends and not first_round:
        return None
    end = datetime.fromisoformat(f"{ends['0.7.0' if first_round else ruleset]}T23:59:59+00:00")
    return (_FIRST_RUNS if first_round else end - _BEFORE_END), end


def allowed_benchmarks(ruleset: str, usage: str = "training") -> frozenset[str]:
    """Return the names of a round's benchmarks, or an empty set if mlperf-logging does not list them."""
    # Only commands that score need this import.
    from mlperf_logging import benchmark_meta

    try:
        return frozenset(benchmark_meta.get_allowed_benchmarks(usage, ruleset))
    except ValueError:
        return frozenset()


def reference_points(benchmark: str, ruleset: str) -> dict[float, float]:
    """Return the mean samples (or epochs) to converge by global batch size, from MLCommons' package.

    The result is empty if the package has no reference points for the benchmark in this ruleset.
    """
    # Find the package without importing it, because only its data is needed.
    spec = find_spec("mlperf_logging")
    # The name becomes part of a path.
    if spec is None or not spec.submodule_search_locations or not re.fullmatch(r"[a-z0-9_]+", benchmark):
        return {}
    place = Path(next(iter(spec.submodule_search_locations))) / "rcp_checker" / f"training_{ruleset}"
    points: dict[float, float] = {}
    try:
        for point in json.loads((place / f"rcps_{benchmark}.json").read_text()).values():
            # The name in the file depends on the benchmark.
            needed = point.get("samples to converge") or point.get("Epochs to converge")
            points[float(point["BS"])] = sum(needed) / len(needed)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError):
        return {}
    return points


def read_evidence(folder: Path, files: Sequence[Path]) -> RoundEvidence:
    """Return the evidence for the round in a folder's path and in the first 4 MiB of its logs.

    A log that cannot be read is left out.
    """
    matches = [match for part in folder.absolute().resolve().parts if (match := _FOLDER.search(part))]
    benchmarks: set[str] = set()
    stated: set[str] = set()
    first_began: float | None = None
    old = False
    for path in files:
        try:
            with open_log(path) as stream:
                head = stream.read(_HEAD_BYTES)
        except OSError:
            continue
        stated |= {match[1].decode() for match in _STATED.finditer(head)}
        named, began = _read_events(head)
        benchmarks |= named
        first_began = began if first_began is None else min(first_began, began or first_began)
        old = old or (b":::MLL " in head and b":::MLLOG" not in head)
    return RoundEvidence(
        benchmarks=frozenset(benchmarks),
        first=first_began,
        stated=frozenset(stated),
        folder=f"{matches[-1][1]}.0" if matches else "",
        old_notation=old,
        inference=_inference_file(folder, files),
    )


def _read_events(head: bytes) -> tuple[set[str], float | None]:
    """Return the benchmarks in the beginning of a log, and the start of its run in seconds, or None."""
    named: set[str] = set()
    began: float | None = None
    for match in re.finditer(rb":::MLLOG (\{[^\n]{0,2000}\})", head):
        if b"submission_benchmark" not in match[1] and (began is not None or b'"run_start"' not in match[1]):
            continue
        try:
            event = json.loads(match[1])
            if event["key"] == "submission_benchmark":
                named.add(str(event["value"]))
            elif event["key"] == "run_start":
                seconds = float(event["time_ms"]) / 1000
                began = seconds if math.isfinite(seconds) else None
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
    return named, began


def _inference_file(folder: Path, files: Iterable[Path]) -> str:
    """Return the name of a log that LoadGen wrote, or "" if there is none."""
    named = sorted(path.name for path in folder.iterdir() if _INFERENCE_FILES.fullmatch(path.name))
    if named:
        return named[0]
    for path in files:
        try:
            with open_log(path) as stream:
                head = stream.read(1 << 16)
        except OSError:
            continue
        if _INFERENCE_KEYS.search(head) or _INFERENCE_TITLE in head:
            return path.name
    return ""


def refusal(evidence: RoundEvidence, usage: str) -> str:
    """Return why the logs are not of this usage (``training`` or ``hpc``), with the remedy, or ""."""
    if evidence.inference:
        return (
            f"{sanitize(evidence.inference, 100)} is a log of MLPerf Inference (LoadGen): only Training and "
            "HPC are scored here; use the submission checker of mlcommons/inference"
        )
    listed = ", ".join(sorted(sanitize(name, 60) for name in evidence.benchmarks))
    if usage == "training" and evidence.benchmarks & HPC:
        return (
            f"logs of MLPerf HPC ({listed}), not of MLPerf Training: "
            "score them with --usage hpc and the --ruleset of their round"
        )
    if usage == "hpc" and evidence.benchmarks and not evidence.benchmarks & HPC:
        return f"logs of MLPerf Training ({listed}), not of MLPerf HPC: score them with --usage training"
    return ""


def not_in_round(evidence: RoundEvidence, ruleset: str, usage: str) -> str:
    """Describe the logs' benchmarks that are of another round and not of this one, or return ""."""
    allowed = allowed_benchmarks(ruleset, usage)
    foreign = {
        name: ", ".join(
            other_ruleset for other_ruleset in _TRAINING if name in allowed_benchmarks(other_ruleset)
        )
        for name in evidence.benchmarks - allowed
    }
    foreign = {name: rounds for name, rounds in foreign.items() if rounds}
    if usage != "training" or not allowed or not foreign:
        return ""
    benchmarks_text = "; ".join(
        f"{sanitize(name, 60)} is of {rounds}" for name, rounds in sorted(foreign.items())
    )
    return (
        f"the round {ruleset} does not have this benchmark: {benchmarks_text}; name the round with --ruleset"
    )


def round_of(evidence: RoundEvidence, known: Sequence[str], usage: str = "training") -> Round:
    """Return the round of the logs or, if they indicate none, a round with only a problem.

    The evidence is used in this order: the folder's path, the launcher's output, the old notation, the
    benchmarks, and the benchmarks with the date of the runs.

    Args:
        evidence: The evidence in the folder.
        known: The rulesets that can be chosen, such as ``5.1.0``.
        usage: Either ``training`` or ``hpc``. For ``hpc``, dates are not used.
    """
    for ruleset, origin in (
        (evidence.folder, "the folder's path"),
        (next(iter(evidence.stated)) if len(evidence.stated) == 1 else "", "the launcher's output"),
        ("0.6.0" if evidence.old_notation else "", "the notation of the events"),
    ):
        if ruleset in known:
            return Round(ruleset, origin)
    possible = _possible(evidence, known, usage)
    if len(possible) == 1:
        return Round(possible[0], "the benchmark")
    dated = _round_at(evidence.first) if usage == "training" else ""
    if dated in possible:
        return Round(dated, "the benchmark and the date of the runs")
    which = ", ".join(possible or known)
    return Round("", "", f"the logs do not show their round: name its rules with --ruleset ({which})")


def _possible(evidence: RoundEvidence, known: Sequence[str], usage: str) -> list[str]:
    """Return the rounds that include all of the benchmarks. A name that is in no round excludes none."""
    rounds = {ruleset: allowed_benchmarks(ruleset, usage) for ruleset in known}
    named = {name for name in evidence.benchmarks if any(name in allowed for allowed in rounds.values())}
    return [ruleset for ruleset, allowed in rounds.items() if named <= allowed]


def _round_at(first: float | None) -> str:
    """Return the round of Training in which a run of this time was made, or "" if that is unknown.

    It is unknown for a run after the last known end of a round. A run before 2019-08-01 counts as older than
    round 0.7, the first one whose end is known.
    """
    if first is None:
        return ""
    try:
        day = datetime.fromtimestamp(first, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return ""
    return next((ruleset for ruleset, end in _ENDS.items() if "2019-08-01" <= day <= end), "")
