"""Read logs from elsewhere as runs that are marked ``imported``.

The input is log files and folders of them, such as ``results/resnet/result_0.txt``. :func:`find_files` finds
the files, and :func:`read_runs` makes a run of each log. Job bench calls both and stores the runs
(:mod:`rackproof.jobs.bench.import_logs`). ``rackproof compare`` does not store them (:func:`runs_from_logs`).
``rackproof parse`` judges one log (:func:`judged_alone`), and makes no run.

Of such a run, only the log is known. The verdict therefore states only whether the run ended well. Its speed
is not judged. A start and an end alone prove no run, so :data:`IMPORT_EVIDENCE` lists what else a log
must contain. A log that is imported again for the same benchmark gets the same run id.

The parts of this file are the evidence (:data:`IMPORT_EVIDENCE`), the search (:func:`find_files`), the
decision whether a file is a log (:func:`_is_log`), and the record (:func:`run_from_log`).
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rackproof import __version__
from rackproof.core.errors import RackproofError
from rackproof.core.evidence import EvidenceState, RequiredEvidence, lacking_evidence, state_of_value
from rackproof.core.records import (
    Dataset,
    Finding,
    LogFile,
    ParsedLog,
    Run,
    Source,
    Verdict,
    tags_under,
    worst,
)
from rackproof.core.text import sanitize, slug, whole_number
from rackproof.logs import UNREAD_TOOL, read_log_file
from rackproof.logs._mlperf import JUDGED_BY
from rackproof.logs.fault_texts import FAULT_TEXTS
from rackproof.logs.opening import name_unpacked, open_log, special_file, why_no_log

UNRECOGNISED = "unknown"
"""Format that :func:`rackproof.logs.parse_path` reports for a file in an unknown format."""

SPEED_NOT_JUDGED = "imported: speed not judged: no SKU named"
"""Reason of an imported run that passes."""
IMPORTED_FROM = "imported from "
"""Beginning of an imported run's description. The path of the log follows."""

# A file with such a name is a log, even if it is empty or garbage. Without its broken logs, a set of results
# would look better than it is.
_LOG_SUFFIXES = (".log", ".out", ".err")
_LOG_PREFIXES = ("result_", "slurm-")
_TEXT_SUFFIXES = (".txt", ".xml", ".csv", ".json")
"""Further endings of files that may contain logs. Most files with these endings contain none."""
_TOOL_FOLDERS = frozenset({".cache", ".git", ".hg", ".nox", ".svn", ".tox", ".venv"})
"""Hidden folders of programs, whose logs are not about a machine."""
_MOST_NAMES = 100_000
"""Largest number of names that are searched in a hidden or linked folder. A larger folder is assumed to
contain a log."""
_APPLE_DOUBLE = bytes.fromhex("00051607")
"""First bytes of a file with a Mac's metadata (AppleDouble, RFC 1740, appendix B)."""
# Names of programs and documents (README.md, run.sub), which may quote the output of a tool or the text of a
# failure.
_QUOTING_NAME = re.compile(
    r"^(?:changelog|changes|dockerfile|license|makefile|notice|readme)"
    r"|\.(?:adoc|html?|ipynb|md|rst|tex|bash|sbatch|sh|slurm|sub|cfg|conf|ini|j2|toml|ya?ml|diff|patch"
    r"|c|cc|cpp|css|cuh?|go|h|hpp|java|js|pl|pyi?|rs|ts)$"
)
_HEAD_BYTES = 4096
"""Number of bytes at the beginning of a file that show whether it is a binary program."""
_TAGS_OF_BENCHMARK = ("submission_benchmark", "benchmark", "network")
"""Tags in which logs name their benchmark. The first that a log has is used."""
_MLPERF = frozenset({"mllog", "mll06", "mlp05"})
"""Formats of MLPerf's own lines: ``:::MLLOG`` since round 0.7, and the older forms of rounds 0.6 and 0.5."""
_COURSE_OF_A_RUN = frozenset(
    {"time_to_train", "startup_time", "samples_per_second", "epochs", "train_loss", "seconds_per_epoch"}
    | {"wall_time"}
)
"""Measurements of a training's time, length, speed and loss. A log with only these states no result."""
MAX_AGE = timedelta(days=2 * 365)
"""Largest age of a log that is evidence about a current machine. MLPerf has about two rounds a year."""
CLOCK_SLACK = timedelta(days=1)
"""Largest time by which a log may be ahead of this machine's clock. Its times may be local times."""


def _result_of(log: ParsedLog) -> EvidenceState:
    """Return whether a training log states a result, as an evaluation or a measurement of its program."""
    has_result = any(
        measurement.name not in _COURSE_OF_A_RUN and measurement.finite for measurement in log.measurements
    )
    return EvidenceState.THERE if has_result else EvidenceState.ABSENT


def _figures_of(log: ParsedLog) -> EvidenceState:
    return state_of_value([measurement for measurement in log.measurements if measurement.finite])


def _speed_of(log: ParsedLog) -> EvidenceState:
    return state_of_value(log.measurement("samples_per_second"))


def _outcome_of(log: ParsedLog) -> EvidenceState:
    """Return whether a training log has a basis for its verdict (:data:`JUDGED_BY`), or states a result."""
    return EvidenceState.THERE if log.tags.get(JUDGED_BY) else _result_of(log)


_RESULT: RequiredEvidence[ParsedLog] = RequiredEvidence(
    name="result",
    read_from="eval_accuracy, or a measurement that the program states",
    state=_result_of,
    needed=lambda log: log.format in _MLPERF,
    code="no_evaluation",
    remedy="a start and an end show no training; read the whole log",
)
_TARGET: RequiredEvidence[ParsedLog] = RequiredEvidence(
    name="target",
    read_from="submission_benchmark, or a target that states which side of it is good",
    state=lambda log: state_of_value(log.tags.get(JUDGED_BY, "")),
    needed=lambda log: log.format in _MLPERF and log.measurement("eval_accuracy") is not None,
    code="no_target",
    remedy="no rules that are known name a target of this benchmark, so the evaluation shows nothing; "
    "read the whole log",
)
PARSE_EVIDENCE: tuple[RequiredEvidence[ParsedLog], ...] = (replace(_RESULT, state=_outcome_of), _TARGET)
"""Evidence that a log needs if `rackproof parse` reads it alone, without a plan."""

IMPORT_EVIDENCE: tuple[RequiredEvidence[ParsedLog], ...] = (
    RequiredEvidence(
        name="measurements",
        read_from="the log",
        state=_figures_of,
        code="no_measurement",
        remedy="a log without any number shows no run; import the log that has the result",
    ),
    RequiredEvidence(
        name="benchmark",
        read_from="submission_benchmark",
        state=lambda log: state_of_value(log.tags.get("submission_benchmark", "")),
        needed=lambda log: log.format in _MLPERF,
        code="unnamed_benchmark",
        remedy="the quality that counts is not known; import the whole log",
    ),
    _RESULT,
    _TARGET,
    RequiredEvidence(
        name="speed",
        read_from="lines of Speed",
        state=_speed_of,
        needed=lambda log: log.format == "mxnet",
        code="no_work",
        remedy="the log shows no batch that was trained; import the whole log",
    ),
)
"""Evidence that an imported log needs, even if its format alone would let it pass."""


class NoLogsError(RackproofError):
    """A place that is absent, is neither a file nor a folder, or contains no log to import."""


def find_files(
    place: Path,
    results_folder: Path | None = None,
    skipped: list[str] | None = None,
    unread: list[str] | None = None,
) -> Iterator[Path]:
    """Yield the files in a folder, except links, hidden files and the results.

    The files of a folder come before the files of its subfolders. Files with shorter names come first, so
    that run_2 is before run_10. Subfolders are in alphabetical order.

    Args:
        place: The folder, or a single file, which is yielded even if it is hidden or a link.
        results_folder: The folder of the runs, which is not searched. Its path must be resolved.
        skipped: A list that gets a line for each link that leads to no log, or to a file that is found under
            its own name.
        unread: A list that gets a line for everything that may hide a log: a FIFO, socket, device or
            unreadable folder, and a link or a hidden file or folder that may be or have a log.
    """
    if place.is_file():
        yield place
        return
    skipped = [] if skipped is None else skipped
    unread = [] if unread is None else unread

    def note_unreadable(error: OSError) -> None:
        unread.append(f"{sanitize(str(error.filename), 300)}: {error.strerror}")

    for folder, subfolders, names in os.walk(place, onerror=note_unreadable):
        for path in (Path(folder, name) for name in (*sorted(subfolders), *sorted(names))):
            if _is_left_out(path):
                _note_left_out(path, place, results_folder, skipped, unread)
        # Change the list in place, because os.walk enters only the folders that remain in the list.
        subfolders[:] = sorted(name for name in subfolders if _is_walked(Path(folder, name), results_folder))
        for name in sorted(names, key=lambda name: (len(name), name)):
            path = Path(folder, name)
            if _is_left_out(path):
                continue
            if path.is_file():
                yield path
            else:
                unread.append(f"{sanitize(path, 300)}: {why_no_log(path)}")


def _is_walked(folder: Path, results_folder: Path | None) -> bool:
    """Return whether a folder is searched for logs."""
    # If the results folder were searched, an import would import its own copies again.
    return not folder.name.startswith(".") and folder.resolve() != results_folder


def _is_left_out(path: Path) -> bool:
    return path.is_symlink() or path.name.startswith(".")


def _note_left_out(
    path: Path, place: Path, results_folder: Path | None, skipped: list[str], unread: list[str]
) -> None:
    """Add the line for a link, or for a hidden file or folder. See :func:`find_files` for the arguments."""
    if path.is_symlink():
        may_be_log = not _is_read_anyway(path, place, results_folder) and _may_link_log(path)
        (unread if may_be_log else skipped).append(f"{sanitize(path, 300)}: a link; name its target")
    elif os.path.isdir(path):
        if path.name not in _TOOL_FOLDERS and _may_hold(path, _is_log_by_name):
            unread.append(f"{sanitize(path, 300)}: a hidden folder with a log; rename it")
    elif _is_log_by_name(path) and not _is_made_by_macos(path):
        unread.append(f"{sanitize(path, 300)}: hidden; rename it")


def _is_read_anyway(link: Path, place: Path, results_folder: Path | None) -> bool:
    """Return whether the search reaches a link's target without the link, or the target is in the results."""
    target, root = Path(os.path.realpath(link)), Path(os.path.realpath(place))
    if results_folder is not None and target.is_relative_to(results_folder):
        return True
    if not os.path.exists(target) or not target.is_relative_to(root):
        return False
    return not any(part.startswith(".") for part in target.relative_to(root).parts)


def _may_link_log(link: Path) -> bool:
    """Return whether a link may lead to a log, by its name or its target's, or by the names in a folder."""
    if os.path.isdir(link):
        return _may_hold(link, _may_be_text_of_tool)
    return _may_be_text_of_tool(link) or _may_be_text_of_tool(Path(os.path.realpath(link)))


def _may_hold(folder: Path, is_log: Callable[[Path], bool]) -> bool:
    """Return whether a folder may contain a log, by the names of its files.

    A folder that cannot be searched, or that has more than :data:`_MOST_NAMES` names, may contain one.
    """
    errors: list[OSError] = []
    searched = 0
    for below, _subfolders, names in os.walk(folder, onerror=errors.append):
        searched += 1 + len(names)
        if searched > _MOST_NAMES or any(is_log(Path(below, name)) for name in names):
            return True
    return bool(errors)


def _is_made_by_macos(path: Path) -> bool:
    """Return whether a file has a Mac's metadata (AppleDouble), such as ``._n7.log`` in an archive."""
    if not path.name.startswith("._") or not os.path.isfile(path):
        return False
    try:
        with path.open("rb") as stream:
            return stream.read(4) == _APPLE_DOUBLE
    except OSError:
        return False


def _may_be_text_of_tool(path: Path) -> bool:
    """Return whether a file is named as a log, or as another text that a log format may have."""
    name = name_unpacked(path.name.lower())
    return _is_log_by_name(path) or (name.endswith(_TEXT_SUFFIXES) and not _QUOTING_NAME.search(name))


def _is_log_by_name(path: Path) -> bool:
    """Return whether a file is named as a log, such as ``slurm-7.out``."""
    name = name_unpacked(path.name.lower()).lstrip(".")
    return name.endswith(_LOG_SUFFIXES) or name.startswith(_LOG_PREFIXES)


def _is_emptied(path: Path) -> bool:
    """Return whether a file is named ``*.txt``, and its first MiB is only blanks or zero bytes.

    A crash leaves such files. An empty file counts, too.
    """
    if path.suffix.lower() != ".txt":
        return False
    with path.open("rb") as stream:
        return not stream.read(1 << 20).strip(b" \t\r\n\0")


def _is_log(log: ParsedLog, path: Path) -> bool:
    """Return whether a file of an unknown format is a log. It then becomes a run that does not pass."""
    return _is_log_by_name(path) or _is_emptied(path) or _is_log_by_content(log, path)


def _is_log_by_content(log: ParsedLog, path: Path) -> bool:
    """Return whether a file of an unknown format has the output of a known tool, or the text of a failure."""
    name = name_unpacked(path.name.lower())
    if _QUOTING_NAME.search(name):
        return False
    has_failure = any(
        finding.verdict is not None and finding.verdict.gates and finding.code in FAULT_TEXTS
        for finding in log.findings
    )
    return (UNREAD_TOOL in log.tags or has_failure) and not _is_binary(path)


def _is_binary(path: Path) -> bool:
    """Return whether a file begins like a binary program. Programs may contain texts of failures."""
    with open_log(path) as stream:
        head = stream.read(_HEAD_BYTES)
    # A crash may leave zero bytes in a log, but not in its first 4 KiB. UTF-16 text has zero bytes, and
    # begins with a mark.
    return b"\0" in head and not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def guess_benchmark(log: ParsedLog, path: Path) -> str:
    """Guess the benchmark of a log from its own statement, or else from the name of its folder or file."""
    for tag in ("model",) if log.format == "tf_cnn" else _TAGS_OF_BENCHMARK:
        stated = sanitize(log.tags.get(tag, ""), 100)
        if stated:
            return stated
    return sanitize(path.resolve().parent.name, 100) or sanitize(path.stem, 100) or "unknown"


def _moment(log: ParsedLog, *names: str) -> datetime | None:
    """Return the first readable time in the tags with these names, or None.

    A tag has seconds since 1970, or ISO 8601 such as ``2025-04-01T10:00:00+02:00``. Without a time zone, it
    is UTC.
    """
    for name in names:
        try:
            moment = _parse_moment(log.tags.get(name, ""))
        except (ValueError, OverflowError, OSError):
            continue
        if moment is not None:
            return moment
    return None


def _parse_moment(text: str) -> datetime | None:
    if not text:
        return None
    if text.replace(".", "", 1).isdigit():
        return datetime.fromtimestamp(float(text), UTC)
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def judged_alone(log: ParsedLog) -> ParsedLog:
    """Return a log with findings about missing evidence, as far as a log without a plan needs evidence.

    A log that fails or is unproven already is returned unchanged.
    """
    return log if log.verdict.gates else _with_findings(log, _lacking(PARSE_EVIDENCE, log))


def _lacking(table: Iterable[RequiredEvidence[ParsedLog]], log: ParsedLog) -> list[Finding]:
    source = Source(file=log.file or None)
    return [
        Finding(code=lack.code, message=lack.message, verdict=lack.verdict, source=source)
        for lack in lacking_evidence(table, log)
    ]


def _with_findings(log: ParsedLog, additional: Iterable[Finding]) -> ParsedLog:
    """Return a log with additional findings, and with the worst verdict of the log and its findings."""
    findings = (*log.findings, *additional)
    verdicts = [log.verdict, *(finding.verdict for finding in findings if finding.verdict is not None)]
    return log.model_copy(update={"findings": findings, "verdict": worst(verdicts)})


def _judged_as_import(log: ParsedLog, now: datetime, *, old: bool) -> ParsedLog:
    """Return a log with findings about missing evidence, and about its age unless it is known to be ``old``.

    A log that fails or is unproven already is returned unchanged.
    """
    if log.verdict.gates:
        return log
    source = Source(file=log.file or None)
    lacking = _lacking(IMPORT_EVIDENCE, log)
    ended = _ended(log)
    if not old and ended is None:
        # The time of the file does not help, because a copy of a log gets a new time.
        message = "the log states no date, so its age is not known; if you know its age, import it with --old"
        lacking.append(Finding(code="no_date", message=message, verdict=Verdict.UNPROVEN, source=source))
    elif not old and ended is not None and (age := _wrong_age(ended, now)) is not None:
        lacking.append(Finding(code="wrong_age", message=age, verdict=Verdict.UNPROVEN, source=source))
    return _with_findings(log, lacking)


def _ended(log: ParsedLog) -> datetime | None:
    """Return the time of a log's last event, or else of the run's end, last step or start, or None.

    The first of these that the log states is returned, so the time may be the start of the run.
    """
    ended = _moment(log, "ended", "end_time", "last_step_time", "started", "start_time", "submission_start")
    if log.last_event_s is not None:
        ended = _moment_of(log.last_event_s) or ended
    return ended


def _wrong_age(ended: datetime, now: datetime) -> str | None:
    """Return why a log with this end is too old or from the future, or None."""
    if ended > now + CLOCK_SLACK:
        return f"the run ended on {ended:%Y-%m-%d}, which is in the future: that clock was wrong"
    if ended < now - MAX_AGE:
        return (
            f"the run ended on {ended:%Y-%m-%d}: so old a log shows nothing about a machine of today; "
            "to import it anyway, use --old"
        )
    return None


def _moment_of(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def run_from_log(
    log: ParsedLog, path: Path, entry: LogFile, *, run_id: str, benchmark: str, plan_id: str
) -> Run:
    """Return the record of an imported log.

    Args:
        log: The parsed log.
        path: The path of the log.
        entry: The entry of the raw log, with its name in the record.
        run_id: The id of the run.
        benchmark: The name of its benchmark.
        plan_id: The id of the import.
    """
    return Run(
        run_id=run_id,
        plan_id=plan_id,
        benchmark=benchmark,
        description=sanitize(f"{IMPORTED_FROM}{path}", 1000),
        provenance="imported",
        started=_moment(log, "started", "start_time", "submission_start"),
        ended=_moment(log, "ended", "end_time"),
        parameters=_parameters(log),
        software=_software(log),
        dataset=Dataset.from_tags(log.tags),
        seeds=() if (seed := whole_number(log.tags.get("seed", ""))) is None else (seed,),
        measurements=log.measurements,
        series=log.series,
        findings=log.findings,
        verdict=log.verdict,
        reasons=_reasons(log),
        logs=(entry,),
        rackproof_version=__version__,
    )


def _software(log: ParsedLog) -> dict[str, str]:
    software = tags_under(log.tags, "software.")
    if log.format == "tf_cnn" and log.tags.get("tensorflow"):
        software["tensorflow"] = log.tags["tensorflow"]
    return software


def _reasons(log: ParsedLog) -> tuple[str, ...]:
    """Return the reasons for the log's verdict: the worst first, and a cause before its consequence.

    If no finding is a reason, return one default sentence for the verdict.
    """
    order = {Verdict.FAIL: 0, Verdict.UNPROVEN: 1, Verdict.DEGRADED: 2}
    findings = [finding for finding in log.findings if finding.verdict in order]
    findings.sort(key=lambda finding: (order[finding.verdict or Verdict.FAIL], finding.consequence))
    return tuple(dict.fromkeys(map(_reason, findings))) or _default_reasons(log.verdict)


def _parameters(log: ParsedLog) -> dict[str, str | int | float | bool | None]:
    """Return the parameters that a log states.

    Every log may state the batch size. Logs of Rackproof's workloads and of tf_cnn_benchmarks state more.
    """
    tags = log.tags
    point: dict[str, str | int | float | bool | None] = {}
    point |= _numbers(tags, {"batch_size": "global_batch_size"})
    if log.format == "mllog" and "batch_per_gpu" in tags:
        # Only Rackproof's own workloads log this tag.
        point |= _numbers(tags, {name: name for name in ("batch_per_gpu", "gpus", "processes", "nodes")})
    if log.format == "tf_cnn":
        point |= _numbers(tags, {"batch_per_gpu": "batch_size_per_device", "gpus": "devices"})
        point |= {name: sanitize(tags[name], 60) for name in ("dataset", "variables") if tags.get(name)}
    return point


def _numbers(tags: Mapping[str, str], tag_of: Mapping[str, str]) -> dict[str, int]:
    """Return the parameters that are whole numbers. ``tag_of`` maps each parameter to its tag."""
    numbers = {name: whole_number(tags.get(tag, "")) for name, tag in tag_of.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def _reason(finding: Finding) -> str:
    source = str(finding.source)
    return f"{finding.message} ({source})" if source else finding.message


def _default_reasons(verdict: Verdict) -> tuple[str, ...]:
    if verdict is Verdict.PASS:
        return (SPEED_NOT_JUDGED,)
    return ("imported: the log does not show a run that ended well",)


def check_place(path: Path) -> None:
    """Check that a place can contain logs.

    Raises:
        NoLogsError: The place does not exist, or is neither a file nor a folder.
    """
    if not path.exists():
        raise NoLogsError(f"{path} does not exist; name a folder of logs, or one log")
    if special_file(path):
        raise NoLogsError(f"{path} is {why_no_log(path)}")


def runs_from_logs(files: Iterable[Path], skipped: list[str]) -> Iterator[Run]:
    """Yield a run for every log among files, as an import would make it, without storing it.

    Args:
        files: The logs and folders of logs.
        skipped: A list that gets a line for each file that gives no run, such as a file without a known log
            format, a link, an archive, or a file or folder that cannot be read.

    Raises:
        NoLogsError: A file or folder does not exist, or is a FIFO, socket or device.
        OSError: A log cannot be read.
    """
    places = list(files)
    for place in places:
        check_place(place)
    paths = (path for place in places for path in find_files(place, skipped=skipped, unread=skipped))
    # Runs in a comparison may be old. Both sides are shown with their dates.
    for run, _ in read_runs(paths, Path(), skipped=skipped, unread=skipped, old=True):
        yield run


def read_runs(
    files: Iterable[Path],
    root: Path,
    *,
    skipped: list[str],
    unread: list[str],
    benchmark: str | None = None,
    format: str = "auto",
    plan_id: str = "",
    old: bool = False,
    progress: Callable[[Path], None] | None = None,
) -> Iterator[tuple[Run, Path]]:
    """Yield the run of each log with the log's path. Files that are no logs give no run.

    If logs have identical bytes, all but the first of them are at best unproven.

    Args:
        files: The files to read.
        root: The folder that is left out of the paths in remarks.
        skipped: A list that gets a line for each file without a known log format.
        unread: A list that gets a line for each file, such as an archive, that may contain a log
            but cannot be read as one.
        benchmark: The name of the benchmark. The default is the name in each log, or else its folder's
            name.
        format: The name of a log format, or ``auto``.
        plan_id: The id of the import that the runs belong to.
        old: Whether the logs are known to be old, so that their age is not judged.
        progress: A function that is called before each file.

    Raises:
        OSError: A log cannot be read.
        ValueError: The format is unknown.
    """
    places: dict[str, list[str]] = {}
    now = datetime.now(UTC)
    for path in files:
        if progress is not None:
            progress(path)
        relative = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
        if problem := why_no_log(path):
            unread.append(f"{sanitize(relative, 300)}: {problem}")
            continue
        name = f"logs/{slug(name_unpacked(path.name), 100) or 'log.txt'}"
        # Use the log's name in the run's folder, so that every place in the report can be found.
        log, entry = read_log_file(path, name, format=format)
        log = _judged_as_import(log, now, old=old)
        if log.format == UNRECOGNISED and not _is_log(log, path):
            skipped.append(f"{sanitize(relative, 300)}: no known log format in it")
            continue
        named = benchmark or guess_benchmark(log, path)
        copies = places.setdefault(entry.sha256, [])
        run_id = _run_id(log, entry, named, len(copies))
        run = run_from_log(log, path, entry, run_id=run_id, benchmark=named, plan_id=plan_id)
        if copies:
            run = _with_duplicate(run, copies[0])
        copies.append(relative)
        yield run, path


def _run_id(log: ParsedLog, entry: LogFile, benchmark: str, copy: int) -> str:
    """Return the id of a run, which depends on the content and the benchmark, but not on the log's place.

    ``copy`` is the number of earlier copies of the log in the same import, so that each has its own id.
    """
    started = _moment(log, "started", "start_time", "submission_start")
    stamp = f"{started:%Y%m%dT%H%M%SZ}-" if started else ""
    return f"{stamp}{slug(benchmark) or 'run'}-{text_digest(entry.sha256, str(copy))[:12]}"


def text_digest(*parts: str) -> str:
    """Return the SHA-256 of several texts. ("a", "bc") and ("ab", "c") give different digests."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def _with_duplicate(run: Run, original: str) -> Run:
    """Return a run with a finding that its log is a copy. The logs of two real runs differ in their times."""
    message = f"byte for byte the same log as {sanitize(original, 300)}: a copy proves nothing"
    finding = Finding(code="duplicate_log", message=message, verdict=Verdict.UNPROVEN)
    verdict = run.verdict if run.verdict is Verdict.FAIL else Verdict.UNPROVEN
    return run.model_copy(
        update={"findings": (*run.findings, finding), "verdict": verdict, "reasons": (message, *run.reasons)}
    )
