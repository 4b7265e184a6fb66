"""What a name on the command line means: a run, a system's runs, logs made elsewhere, or a publication.

A system is named by what its runs' records say of where they ran: the nodes' SKU or name, the
configuration, the plan, and for imported logs a folder or file of the path they were imported from.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rackproof.analysis.compare.naming import PUBLISHED, plain_name
from rackproof.analysis.compare.systems import System
from rackproof.analysis.importing import IMPORTED_FROM, NoLogsError, runs_from_logs
from rackproof.analysis.mlperf.published import find_published, study_points
from rackproof.core.errors import RackproofError
from rackproof.core.records import Run
from rackproof.store.run_folder import RECORD_NAME, iter_runs

# Repeats: DGX1_2.log, DGX1-03.log, DGX1.4.log, result_0.txt.
_TRIAL = re.compile(r"[_.-]\d+$")
_GLOB = re.compile(r"[*?\[]")


class NotFoundError(RackproofError):
    """A name means nothing here; the message names what there is."""


def names_of(run: Run) -> tuple[str, ...]:
    """Return every name that a run's system goes by, the most specific first."""
    skus = {node.sku for node in run.nodes}
    hosts = {node.name for node in run.nodes}
    names = [*(skus if len(skus) == 1 else ()), run.configuration, *(hosts if len(hosts) == 1 else ())]
    if run.provenance == "imported" and run.description.startswith(IMPORTED_FROM):
        path = Path(run.description.removeprefix(IMPORTED_FROM))
        names += [_TRIAL.sub("", path.stem), *reversed(path.parent.parts)]
    return tuple(dict.fromkeys(name for name in (*names, run.plan_id) if name and name != "/"))


def published(name: str) -> System:
    """Return a published system.

    Args:
        name: Its name, with or without the round (``0.6/HyperPlane``) in front, or a study's (``p100-host``).

    Raises:
        NotFoundError: Nothing was published under that name; names those of round 0.6 and of the studies.
    """
    points = tuple(one for one in study_points() if plain_name(one.system) == plain_name(name))
    if points:
        return System(name=f"{points[0].system} (published)", published=points)
    round_, _, system = name.rpartition("/")
    every = find_published(round=round_) if round_ else find_published()
    found = [one for one in every if plain_name(one.system) == plain_name(system)]
    if not found:
        known = dict.fromkeys(one.system for one in find_published(round="0.6"))
        studied = dict.fromkeys(one.system for one in study_points())
        raise NotFoundError(
            f"no published system {name}; round 0.6 has {', '.join(sorted(known))}, "
            f"and the scaling studies {', '.join(studied)}"
        )
    newest = [one for one in found if one.round == found[0].round]
    best = {one.benchmark: one for one in reversed(newest)}
    return System(name=f"{newest[0].system} (published)", published=tuple(best.values()))


def select(
    name: str, results: Path, find_run: Callable[[str], Run], remarks: list[str], *, benchmark: str = ""
) -> System:
    """Return what a name means.

    Looked for in this order: ``published:NAME``; a run folder or ``run.json``; a log, a folder of logs or
    of run folders, or a quoted pattern of such; the exact id of a run; a system of the results folder
    (see :func:`names_of`); and what ``find_run`` makes of it.

    Args:
        name: As given.
        results: The results folder.
        find_run: Finds a run by the beginning of its id, in the results or the history, or raises.
        remarks: Takes a line for each file passed over and each record that cannot be read.
        benchmark: Only runs of this one.

    Raises:
        NotFoundError: A pattern matches nothing, a folder holds no log, or nothing was published so.
        ResultsError: A named record cannot be read.
        OSError: A log cannot be read.
    """
    if name.startswith(PUBLISHED):
        return published(name.removeprefix(PUBLISHED))
    path = Path(name)
    if _GLOB.search(name) and not path.exists():
        places = [Path(one) for one in sorted(glob.glob(name, recursive=True))]
        if not places:
            raise NotFoundError(f"nothing matches {name}; quote the pattern, and check the path")
        return _of_places(_pattern_name(name), places, remarks, benchmark)
    if name and path.name != RECORD_NAME and path.exists() and not (path / RECORD_NAME).exists():
        return _of_places(_TRIAL.sub("", path.stem) or name, [path], remarks, benchmark)
    if name and not path.exists() and not (results / name / RECORD_NAME).is_file() and "/" not in name:
        runs = tuple(
            run
            for run in iter_runs(results, on_error=lambda error: remarks.append(str(error)))
            if name.casefold() in map(str.casefold, names_of(run))
        )
        if runs:
            return System(name=name, runs=_only(runs, benchmark, name))
    run = find_run(name)
    return System(name=run.run_id, runs=(run,), single_run=True)


def _pattern_name(pattern: str) -> str:
    """Return a name for a pattern: its last part that is more than wildcards."""
    for part in reversed(Path(pattern).parts):
        text = _GLOB.sub(" ", re.sub(r"\[[^]]*\]", " ", part.removesuffix(".log").removesuffix(".txt")))
        words = [word.strip("_.-") for word in text.split()]
        if any(words) and not re.fullmatch(r"result[_\d]*", "".join(words)):
            return " ".join(word for word in words if word)
    return pattern


def _of_places(name: str, places: Sequence[Path], remarks: list[str], benchmark: str) -> System:
    """Return the runs under folders: recorded ones where there are any, else those made of logs."""

    def runs() -> Iterator[Run]:
        logs = []
        for place in places:
            if place.is_dir() and ((place / RECORD_NAME).is_file() or any(place.glob(f"*/{RECORD_NAME}"))):
                holder = place.parent if (place / RECORD_NAME).is_file() else place
                for run in iter_runs(holder, on_error=lambda error: remarks.append(str(error))):
                    if holder == place or run.run_id == place.name:
                        yield run
            else:
                logs.append(place)
        yield from runs_from_logs(logs, skipped)

    skipped: list[str] = []
    try:
        found = tuple(runs())
    except NoLogsError as error:
        raise NotFoundError(str(error)) from None
    remarks += [f"passed over: {one}" for one in skipped]
    if not found:
        raise NotFoundError(f"{', '.join(map(str, places[:3]))}: no file there is a log of a known format")
    return System(name=name, runs=_only(found, benchmark, name))


def _only(runs: tuple[Run, ...], benchmark: str, name: str) -> tuple[Run, ...]:
    kept = tuple(run for run in runs if benchmark in ("", run.benchmark))
    if not kept:
        known = ", ".join(sorted({run.benchmark for run in runs}))
        raise NotFoundError(f"{name} has no run of {benchmark}; it has {known}")
    return kept
