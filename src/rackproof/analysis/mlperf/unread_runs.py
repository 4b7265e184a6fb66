"""Find runs in a folder of MLPerf results that its score does not read.

A score reads the files of one kind of name. A failed run with another name, in a subfolder, or behind a link
to a missing file would improve the score. Folders may also contain copies of the scored logs, such as raw
logs, Slurm's outputs and outputs of checkers. A copy has the ``run_start`` of a scored log, and its good end
if that log has one, so these events distinguish copies from other runs.

:func:`rackproof.analysis.mlperf.score.score_folder` calls :func:`unread_findings`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rackproof.core.records import Finding, Source, Verdict
from rackproof.core.text import amount, sanitize
from rackproof.logs.opening import open_log

_EVENT = re.compile(rb":::MLL[^\n\r]{0,1000}?\b(run_start|run_stop|submission_benchmark)\b[^\n\r]{0,1000}")
"""The events that show a run, in the notation of any round."""
_TIME = re.compile(rb'"time_ms": *(\d{1,15})|"time_s": *(\d{1,12}(?:\.\d*)?)|^:::MLL (\d{1,12}(?:\.\d*)?) ')
_BENCHMARK = re.compile(rb'"value": *"([^"]{1,100})"')
_SAME_START_S = 5.0
"""Largest difference of the ``run_start`` of two ranks of one run, in seconds."""
_CHUNK, _OVERLAP = 1 << 20, 1 << 12
_MOST_BYTES = 256 << 20
"""Number of bytes at the beginning of each file that are searched."""
_MOST_NAMED = 3


class _Runs(NamedTuple):
    """The runs in a file.

    Attributes:
        starts: The times of their starts, in seconds.
        benchmarks: The names of their benchmarks.
        ended: Whether one of them has a ``run_stop`` without a failure.
    """

    starts: frozenset[float]
    benchmarks: frozenset[str]
    ended: bool


def unread_findings(
    folder: Path,
    files: Sequence[Path],
    is_result: Callable[[Path], bool],
    may_be_part: Callable[[Path], bool],
) -> Iterator[Finding]:
    """Yield a finding for runs of the folder or its subfolders that are in no scored log.

    Files with a run of another benchmark are left out, because they belong to another result. A log without
    ``run_start`` has no run that counts, and is only a remark.

    Args:
        folder: The folder, whose links to other folders are not followed.
        files: The scored logs.
        is_result: Whether the name of a file is that of a result, so that the file must be readable.
        may_be_part: Whether a file, such as the output of a checker, may have only part of a scored log.
    """
    if not files:
        return
    unreadable: list[str] = []
    others: dict[str, _Runs] = {}
    for path in _other_files(folder, set(files), unreadable):
        runs = _runs_of(path)
        name = str(path.relative_to(folder))
        if runs is None and is_result(path):
            unreadable.append(name)
        elif runs is not None and (runs.starts or runs.benchmarks):
            others[name] = runs._replace(ended=runs.ended or may_be_part(path))
    if unreadable:
        yield _finding(unreadable, ("cannot be read", "cannot be read"), unproven=True)
    if others:
        yield from _unscored(others, [runs for path in files if (runs := _runs_of(path)) is not None])


def _other_files(folder: Path, files: set[Path], unreadable: list[str]) -> Iterator[Path]:
    """Yield the files below a folder that are not scored, sorted, and note its unreadable subfolders."""

    def note(error: OSError) -> None:
        unreadable.append(os.path.relpath(str(error.filename), folder))

    for place, subfolders, names in os.walk(folder, onerror=note):
        subfolders.sort()
        yield from (path for name in sorted(names) if (path := Path(place, name)) not in files)


def _unscored(others: dict[str, _Runs], scored: Sequence[_Runs]) -> Iterator[Finding]:
    """Yield the findings about the runs of other files that are not in the scored logs."""
    benchmarks = {name for runs in scored for name in runs.benchmarks}
    hidden, without_start = [], []
    for name, runs in others.items():
        if benchmarks and runs.benchmarks and not runs.benchmarks & benchmarks:
            continue
        if not runs.starts:
            without_start.append(name)
        elif any(_is_other(start, runs.ended, scored) for start in runs.starts):
            hidden.append(name)
    if hidden:
        problems = ("has a run that is in no scored log", "have runs that are in no scored log")
        yield _finding(hidden, problems, unproven=True)
    if without_start:
        problems = ("has MLPerf events without run_start", "have MLPerf events without run_start")
        yield _finding(without_start, problems, unproven=False)


def _is_other(start: float, ended: bool, scored: Sequence[_Runs]) -> bool:
    """Return whether no scored run started at this time, or each that did ended better than this one."""
    same = [runs for runs in scored if any(abs(start - known) <= _SAME_START_S for known in runs.starts)]
    return all(runs.ended and not ended for runs in same)


def _finding(names: Sequence[str], problems: tuple[str, str], *, unproven: bool) -> Finding:
    """Return a finding that names the first files, with the problem of one file or of several.

    Args:
        names: The names of the files.
        problems: The verb and its object for one file, and for several.
        unproven: Whether the files may be runs of this result.
    """
    shown = ", ".join(sanitize(name, 100) for name in names[:_MOST_NAMED])
    more = f" (and {amount(len(names) - _MOST_NAMED, 'other file')})" * (len(names) > _MOST_NAMED)
    remedy = ": name it as a result, or move it out of the folder if it is no run of this result"
    if len(names) > 1:
        remedy = ": name them as results, or move them out of the folder if they are no runs of this result"
    return Finding(
        code="unread_run",
        verdict=Verdict.UNPROVEN if unproven else None,
        message=f"{shown}{more} {problems[len(names) > 1]}{remedy * unproven}",
        source=Source(file=sanitize(names[0], 300)),
    )


def _runs_of(path: Path) -> _Runs | None:
    """Return the runs whose events are in a file, which may be compressed, or None if it cannot be read."""
    starts: set[float] = set()
    benchmarks: set[str] = set()
    ended = False
    try:
        for match in (match for text in _texts(path) for match in _EVENT.finditer(text)):
            if match[1] == b"submission_benchmark":
                benchmarks |= {name[1].decode("latin-1") for name in _BENCHMARK.finditer(match[0])}
            elif match[1] == b"run_stop":
                ended = ended or b"abort" not in match[0]
            elif (time := _TIME.search(match[0])) is not None:
                starts.add(int(time[1]) / 1000 if time[1] else float(time[2] or time[3]))
    except OSError:
        return None
    return _Runs(frozenset(starts), frozenset(benchmarks), ended)


def _texts(path: Path) -> Iterator[bytes]:
    """Yield the parts of a text file that overlap by more than an event. A binary file has none.

    Raises:
        OSError: The file cannot be read.
    """
    with open_log(path) as stream:
        end, left = b"", _MOST_BYTES
        while left > 0 and (chunk := stream.read(_CHUNK)):
            if not end and b"\0" in chunk[:512]:
                return
            yield end + chunk
            end, left = chunk[-_OVERLAP:], left - len(chunk)
