"""Find what a name on the command line of ``rackproof compare`` means.

A name may mean a run, a system's runs, logs from elsewhere, or a publication, as in ``rackproof compare
published:HyperPlane "logs/DGX1_*.log"``. The names of a system are in the records of its runs. They are the
nodes' SKU or name, the configuration, the plan, and for imported logs the parts of their original path.

The command calls :func:`select` for each name. Begin there.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rackproof.analysis.compare.naming import PUBLISHED, plain_name
from rackproof.analysis.compare.systems import System
from rackproof.analysis.importing import IMPORTED_FROM, NoLogsError, find_files, read_runs, runs_from_logs
from rackproof.analysis.mlperf.published import PublishedResult, find_published, study_points
from rackproof.core.errors import RackproofError
from rackproof.core.records import Run
from rackproof.core.text import sanitize
from rackproof.store.run_evidence import evidence_remark, judge_by_logs
from rackproof.store.run_folder import RECORD_NAME, ResultsError, iter_runs_with_folders, read_run

# Matches the number of a repeat in the stem of DGX1_2.log, DGX1-03.log, DGX1.4.log, result_0.txt.
_TRIAL = re.compile(r"[_.-]\d+$")
_GLOB = re.compile(r"[*?\[]")
# Suffixes of files of a results folder that are not logs: the history with its parts, pages and their JSON.
_NO_LOGS = frozenset({".sqlite", ".sqlite-wal", ".sqlite-shm", ".html", ".json", ".sig"})


class NotFoundError(RackproofError):
    """A name without a match. The message lists the known names if there are any."""


def names_of(run: Run) -> tuple[str, ...]:
    """Return all names of a run's system.

    The SKU comes first, and then the configuration, the node, the parts of an imported log's path and the
    plan. Runs on nodes of several SKUs have no SKU among their names.
    """
    skus = {node.sku for node in run.nodes}
    hosts = {node.name for node in run.nodes}
    # A run on several nodes is not named after a single one of them.
    names = [*_only_member(skus), run.configuration, *_only_member(hosts)]
    names += [*_names_of_import(run), run.plan_id]
    return tuple(dict.fromkeys(name for name in names if name and name != "/"))


def _only_member(names: set[str]) -> set[str]:
    """Return a set with one name unchanged, and an empty set for any other."""
    return names if len(names) == 1 else set()


def _names_of_import(run: Run) -> list[str]:
    """Return the names of an imported log: its file without the number of a repeat, and then its folders."""
    if run.provenance != "imported" or not run.description.startswith(IMPORTED_FROM):
        return []
    path = Path(run.description.removeprefix(IMPORTED_FROM))
    return [_TRIAL.sub("", path.stem), *reversed(path.parent.parts)]


def published(name: str) -> System:
    """Return a published system.

    Args:
        name: The name of the system, perhaps after the round (``0.6/HyperPlane``), or the name of a study's
            system (``p100-host``). Without a round, the newest round that has the system counts.

    Raises:
        NotFoundError: No publication has this name. The message lists the names of round 0.6 and of the
            studies.
    """
    points = tuple(_results_named(name, study_points()))
    if points:
        return System(name=f"{points[0].system} (published)", published=points)
    round_, _, system = name.rpartition("/")
    results = _results_named(system, find_published(round=round_) if round_ else find_published())
    if not results:
        names = dict.fromkeys(result.system for result in find_published(round="0.6"))
        studied = dict.fromkeys(result.system for result in study_points())
        raise NotFoundError(
            f"no published system {name}; round 0.6 has {', '.join(sorted(names))}, "
            f"and the scaling studies {', '.join(studied)}"
        )
    # The newest round and the fastest results come first. Reverse the list, so that the fastest result
    # of each benchmark is kept.
    newest = [result for result in results if result.round == results[0].round]
    best = {result.benchmark: result for result in reversed(newest)}
    return System(name=f"{newest[0].system} (published)", published=tuple(best.values()))


def _results_named(system: str, results: Sequence[PublishedResult]) -> list[PublishedResult]:
    return [result for result in results if plain_name(result.system) == plain_name(system)]


def select(
    name: str, results: Path, find_run: Callable[[str], Run], remarks: list[str], *, benchmark: str = ""
) -> System:
    """Return the system that a name means.

    The name is tried in this order:

    * ``published:NAME``;
    * a run folder or ``run.json``;
    * logs or run folders: a file, a folder, or a quoted pattern;
    * the exact id of a run;
    * a system of the results folder (see :func:`names_of`);
    * the beginning of a run's id, for ``find_run``.

    Args:
        name: The name, as given on the command line.
        results: The results folder.
        find_run: A function that finds a run by its folder, its ``run.json``, or a prefix of its id in the
            results or the history, or raises an error.
        remarks: A list that gets a line for each skipped file, unreadable record, and run without its logs.
        benchmark: The benchmark whose runs to use, or "" for all. A publication and a single run are not
            restricted to it.

    Raises:
        NotFoundError: A pattern matches nothing, a file or folder contains no log, no publication has this
            name, or there is no run of ``benchmark``.
        ResultsError: A record cannot be read.
        OSError: A log cannot be read.

    The errors of ``find_run`` are raised, too.
    """
    if name.startswith(PUBLISHED):
        return published(name.removeprefix(PUBLISHED))
    path = Path(name)
    # If a file with a bracket or a star in its name exists, the name is that file, not a pattern.
    if _GLOB.search(name) and not os.path.exists(name):
        places = _without_contained(Path(match) for match in sorted(glob.glob(name, recursive=True)))
        if not places:
            raise NotFoundError(f"nothing matches {name}; quote the pattern, and check the path")
        return _system_of_places(_pattern_name(name), places, remarks, benchmark)
    if _is_place_of_logs(name):
        return _system_of_places(_TRIAL.sub("", path.stem) or name, [path], remarks, benchmark)
    if _may_be_system(name, results):
        runs = _runs_of_system(name, results, remarks)
        if runs:
            return System(name=name, runs=_only(runs, benchmark, name))
    run = find_run(name)
    return System(name=run.run_id, runs=_only((run,), benchmark, name), single_run=True)


def _is_place_of_logs(name: str) -> bool:
    """Return whether a name is an existing file or folder, but neither a run folder nor a ``run.json``.

    ``find_run`` reads these two.
    """
    # os.path also answers for a name that is too long for a file.
    is_record = os.path.basename(name) == RECORD_NAME or os.path.exists(os.path.join(name, RECORD_NAME))
    # An empty name would mean the current folder.
    return bool(name) and os.path.exists(name) and not is_record


def _may_be_system(name: str, results: Path) -> bool:
    """Return whether a name may belong to a system in the results folder."""
    # A run with exactly this id comes before a system of that name. A path is neither.
    if not name or "/" in name or os.path.exists(name):
        return False
    return not os.path.isfile(results / name / RECORD_NAME)


def _runs_of_system(name: str, results: Path, remarks: list[str]) -> tuple[Run, ...]:
    runs = iter_runs_with_folders(results, on_error=lambda error: remarks.append(str(error)))
    return tuple(
        by_logs(run, folder, remarks)
        for run, folder in runs
        if name.casefold() in map(str.casefold, names_of(run))
    )


def by_logs(run: Run, folder: Path, remarks: list[str]) -> Run:
    """Return a recorded run with the verdict that its logs still prove.

    ``remarks`` gets a line if a log is gone or was changed.
    """
    judged = judge_by_logs(run, folder)
    if judged is not run:
        remarks.append(evidence_remark(run, judged))
    return judged


def _pattern_name(pattern: str) -> str:
    """Return a name for a pattern: its last part with more than wildcards, without them, or the pattern."""
    for part in reversed(Path(pattern).parts):
        text = _GLOB.sub(" ", re.sub(r"\[[^]]*\]", " ", part.removesuffix(".log").removesuffix(".txt")))
        words = [word.strip("_.-") for word in text.split()]
        if any(words) and not re.fullmatch(r"result[_\d]*", "".join(words)):
            return " ".join(word for word in words if word)
    return pattern


def _system_of_places(name: str, places: Sequence[Path], remarks: list[str], benchmark: str) -> System:
    """Return the system of the runs at some paths: recorded runs, and runs that are made from logs."""
    skipped: list[str] = []
    try:
        runs = tuple(_runs_at(places, remarks, skipped))
    except NoLogsError as error:
        raise NotFoundError(str(error)) from None
    # Remarks about skipped files come after those about records, whatever the order of the places is.
    remarks += [f"skipped: {line}" for line in skipped]
    if not runs:
        raise NotFoundError(f"{', '.join(map(str, places[:3]))}: no file there is a log of a known format")
    return System(name=name, runs=_only(runs, benchmark, name))


def _without_contained(matches: Iterable[Path]) -> list[Path]:
    """Return the paths of a pattern so that each file is in only one of them.

    A folder above another path with records (:func:`_holds_records`) is replaced by its contents, also by
    hidden files and folders. All other paths are read as a whole.
    """
    places = list(matches)
    records = [place for place in places if _holds_records(place)]
    chosen: dict[Path, None] = {}
    while places:
        place = places.pop(0)
        if place not in records and any(place in record.parents for record in records):
            places = [*sorted(place.iterdir()), *places]
        elif not any(parent in chosen for parent in place.parents):
            chosen[place] = None
    return list(chosen)


def _runs_at(places: Sequence[Path], remarks: list[str], skipped: list[str]) -> Iterator[Run]:
    """Yield the recorded runs of the paths, then the runs of all paths that are logs."""
    logs = []
    for path in places:
        if _holds_records(path):
            yield from _recorded_runs(path, remarks)
            skipped += _logs_beside(path)
        else:
            logs.append(path)
    # Read all logs together, because a copy of a log is only recognized next to its original.
    yield from runs_from_logs(logs, skipped)


def _holds_records(path: Path) -> bool:
    """Return whether a path is a run folder, or a folder of run folders."""
    if not path.is_dir():
        return False
    return (path / RECORD_NAME).is_file() or any(path.glob(f"*/{RECORD_NAME}"))


def _recorded_runs(path: Path, remarks: list[str]) -> Iterator[Run]:
    """Yield the run of a run folder, or the runs of a folder of run folders."""
    if (path / RECORD_NAME).is_file():
        try:
            yield by_logs(read_run(path), path, remarks)
        except ResultsError as error:
            remarks.append(str(error))
        return
    for run, folder in iter_runs_with_folders(path, on_error=lambda error: remarks.append(str(error))):
        yield by_logs(run, folder, remarks)


def _logs_beside(path: Path) -> list[str]:
    """Return a line for each log beside the run folders in a path, because only recorded runs are compared.

    A run folder itself gives no lines.
    """
    if (path / RECORD_NAME).is_file():
        return []
    others = (entry for entry in sorted(path.iterdir()) if not (entry / RECORD_NAME).is_file())
    visible = (entry for entry in others if not entry.name.startswith(".") and not entry.is_symlink())
    files = (file for entry in visible for file in find_files(entry) if file.suffix not in _NO_LOGS)
    logs = read_runs(files, Path(), skipped=[], unread=[], old=True)
    return [f"{sanitize(log, 300)}: a log beside run folders; name the log itself" for _, log in logs]


def _only(runs: tuple[Run, ...], benchmark: str, name: str) -> tuple[Run, ...]:
    """Return the runs of a benchmark, or all if ``benchmark`` is "".

    Raises:
        NotFoundError: There is no run of the benchmark.
    """
    chosen_runs = tuple(run for run in runs if benchmark in ("", run.benchmark))
    if not chosen_runs:
        names = ", ".join(sorted({run.benchmark for run in runs}))
        raise NotFoundError(f"{name} has no run of {benchmark}; it has {names}")
    return chosen_runs
