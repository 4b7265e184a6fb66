"""Provide the public names of the history to commands and jobs.

    with open_store(results / "history.sqlite") as store:
        reference = store.baseline("gemm", {}, "gemm_best", {"dtype": "bf16"}, run.nodes)
    outcome = keep_or_spool(results / run.run_id, None, results / ".spool")

Importing this module loads SQLAlchemy, which takes half a second. It is therefore imported only in functions
and modules that need it.
"""

from rackproof.store.history.database import HistoryError, HistoryTooNewError, HistoryUnreachableError
from rackproof.store.history.repository import Store, open_store
from rackproof.store.history.rows import Candidate, MeasurementRow, RunRow
from rackproof.store.history.spool import (
    DrainOutcome,
    KeepOutcome,
    RebuildOutcome,
    drain_spool,
    keep_or_spool,
    rebuild_history,
)

__all__ = [
    "Candidate",
    "DrainOutcome",
    "HistoryError",
    "HistoryTooNewError",
    "HistoryUnreachableError",
    "KeepOutcome",
    "MeasurementRow",
    "RebuildOutcome",
    "RunRow",
    "Store",
    "drain_spool",
    "keep_or_spool",
    "open_store",
    "rebuild_history",
]
