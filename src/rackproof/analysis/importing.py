"""Logs made elsewhere are read as runs, as if Rackproof had made them, but marked ``imported``.

Nothing is written here: :mod:`rackproof.jobs.bench.import_logs` keeps such runs in a results folder.

Nothing is known of such a run but its log, so its verdict is the log's: whether the run
ended well, not whether it was fast. The same log imported again is the same run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from rackproof import __version__
from rackproof.core.errors import RackproofError
from rackproof.core.records import Dataset, Finding, LogFile, ParsedLog, Run, Verdict
from rackproof.core.text import sanitize, slug
from rackproof.logs.log_file import read_log_file

UNRECOGNISED = "unknown"
"""The format that :func:`rackproof.logs.parse_path` gives to a file in which it found none."""

IMPORTED_FROM = "imported from "
"""Begins the description of an imported run; the log's path follows."""

# Files of these names are logs even when they are empty or garbage: leaving a broken result out would
# make a set of results look better than it is.
_LOG_SUFFIXES = (".log", ".out", ".err")
_LOG_PREFIXES = ("result_", "slurm-")
_TAGS_OF_BENCHMARK = ("submission_benchmark", "benchmark", "network")


class NoLogsError(RackproofError):
    """There is nothing to import."""


def find_files(place: Path, results_folder: Path | None = None) -> Iterator[Path]:
    """Yield the files under a folder in a natural order, without links, hidden ones and the results."""
    if place.is_file():
        yield place
        return
    for folder, subfolders, names in os.walk(place):
        subfolders[:] = sorted(
            name
            for name in subfolders
            if not name.startswith(".") and Path(folder, name).resolve() != results_folder
        )
        for name in sorted(names, key=lambda name: (len(name), name)):
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def _is_log_by_name(path: Path) -> bool:
    name = path.name.lower()
    return name.endswith(_LOG_SUFFIXES) or name.startswith(_LOG_PREFIXES)


def guess_benchmark(log: ParsedLog, path: Path) -> str:
    """Guess the benchmark of a log: what it states about itself, else the name of its folder."""
    for tag in ("model",) if log.format == "tf_cnn" else _TAGS_OF_BENCHMARK:
        stated = sanitize(log.tags.get(tag, ""), 100)
        if stated:
            return stated
    return sanitize(path.resolve().parent.name, 100) or sanitize(path.stem, 100) or "unknown"


def _moment(log: ParsedLog, *names: str) -> datetime | None:
    """Read a moment that the log states: ISO 8601 (UTC where it has no zone), or seconds since 1970."""
    for name in names:
        raw = log.tags.get(name, "")
        try:
            if raw.replace(".", "", 1).isdigit():
                return datetime.fromtimestamp(float(raw), UTC)
            if raw:
                moment = datetime.fromisoformat(raw)
                return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError, OSError):
            continue
    return None


def run_from_log(
    log: ParsedLog, path: Path, entry: LogFile, *, run_id: str, benchmark: str, plan_id: str
) -> Run:
    """Return the record of an imported log.

    Args:
        log: The parsed log.
        path: Where it was read.
        entry: The raw log as the record names it.
        run_id: The run's id.
        benchmark: Its benchmark.
        plan_id: The import it belongs to.
    """
    software = {
        key.removeprefix("software."): v for key, v in log.tags.items() if key.startswith("software.")
    }
    if log.format == "tf_cnn" and log.tags.get("tensorflow"):
        software["tensorflow"] = log.tags["tensorflow"]
    data = {key.removeprefix("dataset."): v for key, v in log.tags.items() if key.startswith("dataset.")}
    counts = {key: int(data[key]) for key in ("objects", "size_bytes") if _digits(data.get(key, ""))}
    texts = {key: data[key] for key in ("name", "source", "sha256") if key in data}
    order = {Verdict.FAIL: 0, Verdict.UNPROVEN: 1, Verdict.DEGRADED: 2}
    findings = sorted(
        (finding for finding in log.findings if finding.verdict in order),
        key=lambda finding: (order[finding.verdict or Verdict.FAIL], finding.consequence),
    )
    reasons = tuple(dict.fromkeys(map(_reason, findings)))
    return Run(
        run_id=run_id,
        plan_id=plan_id,
        benchmark=benchmark,
        description=sanitize(f"{IMPORTED_FROM}{path}", 1000),
        provenance="imported",
        started=_moment(log, "started", "start_time", "submission_start"),
        ended=_moment(log, "ended", "end_time"),
        parameters=_parameters(log),
        software=software,
        dataset=Dataset.model_validate({**texts, **counts}) if data else None,
        seeds=(int(log.tags["seed"]),) if _digits(log.tags.get("seed", "")) else (),
        measurements=log.measurements,
        series=log.series,
        findings=log.findings,
        verdict=log.verdict,
        reasons=reasons or _default_reasons(log.verdict),
        logs=(entry,),
        rackproof_version=__version__,
    )


def _parameters(log: ParsedLog) -> dict[str, str | int | float | bool | None]:
    """Return the point of a matrix that a log states: batch, and of tf_cnn_benchmarks all that it prints."""
    tags = log.tags
    point: dict[str, str | int | float | bool | None] = {}
    if _digits(tags.get("global_batch_size", "")):
        point["batch_size"] = int(tags["global_batch_size"])
    if log.format == "mllog" and "batch_per_gpu" in tags:
        # Rackproof's own workload, started by hand: over several nodes, by srun.
        point |= {
            name: int(tags[name])
            for name in ("batch_per_gpu", "gpus", "processes", "nodes")
            if _digits(tags.get(name, ""))
        }
    if log.format == "tf_cnn":
        for name, tag in (("batch_per_gpu", "batch_size_per_device"), ("gpus", "devices")):
            if _digits(tags.get(tag, "")):
                point[name] = int(tags[tag])
        for name in ("dataset", "variables"):
            if tags.get(name):
                point[name] = sanitize(tags[name], 60)
    return point


def _reason(finding: Finding) -> str:
    place = str(finding.source)
    return f"{finding.message} ({place})" if place else finding.message


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 18


def _default_reasons(verdict: Verdict) -> tuple[str, ...]:
    if verdict is Verdict.PASS:
        return ("imported: its speed was not judged",)
    return ("imported: the log does not show a run that ended well",)


def runs_from_logs(files: Iterable[Path], skipped: list[str]) -> Iterator[Run]:
    """Yield a run for every log among files, as an import makes it, and write nothing.

    Args:
        files: Logs and folders of logs.
        skipped: Takes a line for each file in which no log format is found.

    Raises:
        NoLogsError: A file or folder does not exist.
        OSError: A log cannot be read.
    """
    places = list(files)
    for place in places:
        if not place.exists():
            raise NoLogsError(f"{place} does not exist; name a folder of logs, or one log")
    every = (path for place in places for path in find_files(place))
    for run, _ in read_runs(every, Path(), skipped=skipped):
        yield run


def read_runs(
    files: Iterable[Path],
    root: Path,
    *,
    skipped: list[str],
    benchmark: str | None = None,
    format: str = "auto",
    plan_id: str = "",
    progress: Callable[[Path], None] | None = None,
) -> Iterator[tuple[Run, Path]]:
    """Yield the run of each log with the log's path; of byte-identical logs the second is unproven.

    Args:
        files: The files to read.
        root: Folder that the names of files are relative to, in remarks.
        skipped: Takes a line for each file in which no log format is found.
        benchmark: Its name; by default what each log states, else its folder's name.
        format: A log format's name, or ``auto``.
        plan_id: The import that the runs belong to.
        progress: Called before each file.

    Raises:
        OSError: A log cannot be read.
        ValueError: The format is unknown.
    """
    seen: dict[str, list[str]] = {}
    for path in files:
        if progress is not None:
            progress(path)
        relative = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
        name = f"logs/{slug(path.name, 100) or 'log.txt'}"
        # Named as it is called in the run's folder, so that every place in the report can be looked up.
        log, entry = read_log_file(path, name, format=format)
        if log.format == UNRECOGNISED and not _is_log_by_name(path):
            skipped.append(f"{sanitize(relative, 300)}: no known log format in it")
            continue
        named = benchmark or guess_benchmark(log, path)
        started = _moment(log, "started", "start_time", "submission_start")
        stamp = f"{started:%Y%m%dT%H%M%SZ}-" if started else ""
        # By content: the same log again is the same run, from wherever; a copy beside it is another one.
        copies = seen.setdefault(entry.sha256, [])
        run_id = f"{stamp}{slug(named) or 'run'}-{text_digest(entry.sha256, str(len(copies)))[:12]}"
        run = run_from_log(log, path, entry, run_id=run_id, benchmark=named, plan_id=plan_id)
        if copies:
            run = _with_duplicate(run, copies[0])
        copies.append(relative)
        yield run, path


def text_digest(*parts: str) -> str:
    """Return a digest of texts; which text ends where counts."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def _with_duplicate(run: Run, other: str) -> Run:
    """Two systems do not write the same bytes: one of the two logs is a copy and proves nothing."""
    message = f"byte for byte the same log as {sanitize(other, 300)}: a copy proves nothing"
    finding = Finding(code="duplicate_log", message=message, verdict=Verdict.UNPROVEN)
    verdict = run.verdict if run.verdict is Verdict.FAIL else Verdict.UNPROVEN
    return run.model_copy(
        update={"findings": (*run.findings, finding), "verdict": verdict, "reasons": (message, *run.reasons)}
    )
