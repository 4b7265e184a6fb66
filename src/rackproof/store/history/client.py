"""The history for those who can do without it: recording, planning and nightly validation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rackproof.core.definitions import Parameters
from rackproof.core.records import Measurement, Node, Reference


def measurement_key(measurement: Measurement) -> tuple[object, ...]:
    """Return what tells a measurement of a run from its others: name and labels."""
    return (measurement.name, *sorted(measurement.labels.items()))


class History:
    """The history that never fails its caller: trouble is returned in words, and no run is lost.

    It is the database that RACKPROOF_DATABASE_URL names, else a SQLite file in the results folder.

    Args:
        results: The results folder.
    """

    def __init__(self, results: Path) -> None:
        self._where = results / "history.sqlite"
        self._spool = results / ".spool"
        self._answers = True

    @property
    def exists(self) -> bool:
        """Whether there is a history to ask."""
        return self._where.is_file() or bool(os.environ.get("RACKPROOF_DATABASE_URL", "").strip())

    def baselines(
        self,
        benchmark: str,
        parameters: Parameters,
        nodes: tuple[Node, ...],
        measurements: Sequence[Measurement],
    ) -> tuple[dict[tuple[object, ...], list[Reference]], str]:
        """Return the accepted baselines of this hardware by measurement, and a remark if there is trouble."""
        # Here and below: SQLAlchemy takes half a second to import, and not every caller asks the history.
        from rackproof.store.history.store import HistoryError, open_store

        if not measurements:
            return {}, ""
        references: dict[tuple[object, ...], list[Reference]] = {}
        try:
            with open_store(self._where) as store:
                for measurement in measurements:
                    baseline = store.baseline(
                        benchmark, parameters, measurement.name, measurement.labels, nodes
                    )
                    if baseline is not None:
                        references[measurement_key(measurement)] = [baseline]
        except (HistoryError, ValueError) as error:  # a damaged row makes no reference
            return {}, f"the history could not be asked for references: {error}"
        return references, ""

    def estimate(self, benchmark: str, parameters: Parameters, node: Node) -> float | None:
        """Return the seconds that earlier runs let expect, or None."""
        from rackproof.store.history.store import HistoryError, open_store

        if not self._answers:
            return None
        try:
            with open_store(self._where) as store:
                return store.estimate_seconds(benchmark, parameters, [node])
        except HistoryError:
            # An estimate is a courtesy; keeping the run will say what is wrong.
            self._answers = False
            return None

    def keep(self, folder: Path) -> str:
        """Enter a recorded run, or note it for later; return a remark, empty when all is well."""
        from rackproof.store.history.store import keep_or_spool

        outcome = keep_or_spool(folder, self._where, self._spool)
        return "" if outcome.kept else outcome.message
