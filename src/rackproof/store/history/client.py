"""Provide the history to all four jobs, so that a job continues if the history fails.

The jobs store their runs in the history through :class:`History`. Planning reads estimates from it, and
recording reads references.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rackproof.core.definitions import Parameters
from rackproof.core.records import Measurement, Node, Reference
from rackproof.core.text import amount, sanitize
from rackproof.store.acceptance_log import LOG_NAME, standing_acceptances
from rackproof.store.run_folder import ResultsError

if TYPE_CHECKING:
    from rackproof.store.history.store import Store


def measurement_key(measurement: Measurement) -> tuple[object, ...]:
    """Return the name and labels of a measurement, which identify it in a run."""
    return (measurement.name, *sorted(measurement.labels.items()))


def lost_acceptances(results: Path, store: Store) -> str:
    """Return a message if the history lacks references of accepted runs, or may lack some, otherwise "".

    It may lack some if the log of acceptances cannot be read or has damaged lines. ``results`` is the folder
    with this log, which outlives the database.
    """
    try:
        accepted, damaged = standing_acceptances(results)
    except ResultsError as error:
        return f"the accepted runs are unknown: {error}"
    lost = store.without_references(accepted)
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        return (
            f"{sanitize(lost[0], 130)}{more} was accepted, and gives no references in {store.description}, "
            "which was deleted or is another one: `rackproof history --rebuild`, then accept or withdraw "
            "what it names"
        )
    if damaged:
        return (
            f"{amount(damaged, 'damaged line')} of {results / LOG_NAME} hide which runs were accepted; "
            "accept those runs again, and remove the lines"
        )
    return ""


class History:
    """The history as jobs use it: its faults do not end a job.

    If the history fails, a method returns the problem as text (an estimate is then None). A run that
    cannot be stored is noted and stored later. The database is the one of RACKPROOF_DATABASE_URL, or
    else an SQLite file in the results folder.

    Args:
        results: The results folder.
    """

    def __init__(self, results: Path) -> None:
        self._database = results / "history.sqlite"
        self._spool = results / ".spool"
        self._may_estimate = True

    @property
    def exists(self) -> bool:
        """Return whether the history's file exists, or RACKPROOF_DATABASE_URL is set.

        The database is not queried, so a method may still fail.
        """
        return self._database.is_file() or bool(os.environ.get("RACKPROOF_DATABASE_URL", "").strip())

    def baselines(
        self,
        benchmark: str,
        parameters: Parameters,
        nodes: tuple[Node, ...],
        measurements: Sequence[Measurement],
    ) -> tuple[dict[tuple[object, ...], list[Reference]], str]:
        """Return the accepted references of this hardware, and a remark or "".

        The references are by :func:`measurement_key`, one in each list. If the history fails, there are none,
        and the remark says why. Otherwise, the remark is the result of :func:`lost_acceptances`.

        Args:
            benchmark: The benchmark of the run.
            parameters: The parameters of the run.
            nodes: The nodes of the run.
            measurements: The measurements to find references for. A measurement without a reference is left
                out.
        """
        # Import this only where it is needed, because SQLAlchemy takes half a second to import.
        from rackproof.store.history.store import HistoryError, open_store

        if not measurements:
            return {}, ""
        references: dict[tuple[object, ...], list[Reference]] = {}
        lost = ""
        try:
            with open_store(self._database) as store:
                lost = lost_acceptances(self._database.parent, store)
                for measurement in measurements:
                    baseline = store.baseline(
                        benchmark, parameters, measurement.name, measurement.labels, nodes
                    )
                    if baseline is not None:
                        references[measurement_key(measurement)] = [baseline]
        except (HistoryError, ValueError) as error:  # a damaged row provides no reference
            return {}, f"the history could not be queried for references: {error}"
        return references, lost

    def estimate(self, benchmark: str, parameters: Parameters, node: Node) -> float | None:
        """Return the expected seconds according to earlier runs, or None if none are known.

        After the first failure, the history is not queried for estimates again.
        """
        from rackproof.store.history.store import HistoryError, open_store

        if not self._may_estimate:
            return None
        try:
            with open_store(self._database) as store:
                return store.estimate_seconds(benchmark, parameters, [node])
        except HistoryError:
            # An estimate is optional. The fault is reported when the run is stored.
            self._may_estimate = False
            return None

    def keep(self, folder: Path) -> str:
        """Store a recorded run, or note it for later. Return a remark, or "" if it was stored.

        Raises:
            ResultsError: The run's own record is missing or damaged.
        """
        from rackproof.store.history.store import keep_or_spool

        outcome = keep_or_spool(folder, self._database, self._spool)
        return "" if outcome.kept else outcome.message
