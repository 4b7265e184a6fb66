"""Return the events that a log of an MLPerf Training benchmark must contain.

The parsers of MLPerf logs call :func:`events_of`. A log without one of these events has lost lines. The table
``published_events.csv``, beside this file, lists the events that every published log of a successful run
contains (rounds 0.6 and 4.0 to 5.1)::

    mll06 | transformer | 2018-01-01 | submission init … evals progress second_evaluation | 120

The cells are the format, the benchmark, the date from which the row is valid, the events, and the number of
published logs that were read for the row. A cell of events also contains *marks* such as ``progress``, which
require more than one event. Reading this table is the only I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from importlib.resources import files

TABLE = "published_events.csv"
"""Name of the table's file in this package."""
THROUGHPUT = "throughput"
"""Mark in the table that a log must contain statistics with samples per second, or the time of a step."""
PROGRESS = "progress"
"""Mark in the table that every evaluation of a log must state the progress of the training."""
SECOND_EVALUATION = "second_evaluation"
"""Mark in the table that a log must contain two or more evaluations."""
WHOLE_EPOCHS = "whole_epochs"
"""Mark in the table that every epoch of a log must start and stop, with consecutive numbers."""
_SHORT = {
    "submission": "submission_org submission_division submission_status submission_platform",
    "init": "cache_clear init_start init_stop",
    "settings": "seed gradient_accumulation_steps opt_base_learning_rate",
    "evals": "eval_start eval_accuracy eval_stop",
    "blocks": "block_start block_stop",
    "epochs": "epoch_start epoch_stop",
    "schedule": "opt_end_learning_rate opt_learning_rate_decay_schedule opt_learning_rate_decay_steps "
    "opt_learning_rate_warmup_steps",
    "warmup": "opt_learning_rate_warmup_epochs opt_learning_rate_warmup_factor",
}
"""Events by the short names of their groups in the table."""


@dataclass(frozen=True)
class PublishedEvents:
    """A row of the table: the events that a benchmark's logs contain since a date.

    Attributes:
        notation: The format of the logs, ``mllog`` or ``mll06`` (the notation of round 0.6).
        benchmark: The name in MLPerf's rules.
        since: The row is valid for logs from this date on.
        events: The events and marks. An entry ``A/B`` means that a log with B must contain A.
    """

    notation: str
    benchmark: str
    since: date
    events: frozenset[str]


@lru_cache
def read_published_events() -> tuple[PublishedEvents, ...]:
    """Return the table's rows."""
    return tuple(_rows((files("rackproof.core") / TABLE).read_text(encoding="utf-8")))


def _rows(text: str) -> Iterator[PublishedEvents]:
    """Yield the rows of the table, with short names replaced by their events."""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            notation, benchmark, since, names, _logs = (cell.strip() for cell in line.split("|"))
            events = " ".join(_SHORT.get(name, name) for name in names.split()).split()
            yield PublishedEvents(notation, benchmark, date.fromisoformat(since), frozenset(events))


def events_of(
    notation: str, benchmark: str, day: date, logged: Collection[str] = frozenset()
) -> frozenset[str]:
    """Return the events and marks that the table requires of a log. The set is empty if no row is valid.

    Args:
        notation: The format of the log, ``mllog`` or ``mll06``.
        benchmark: The name in MLPerf's rules.
        day: The date of the log. All rows that are valid on this date count.
        logged: The events in the log, which decide the entries ``A/B``.
    """
    rows = (
        row
        for row in read_published_events()
        if (row.notation, row.benchmark) == (notation, benchmark) and day >= row.since
    )
    entries = (entry.partition("/") for row in rows for entry in row.events)
    return frozenset(event for event, _, needed in entries if not needed or needed in logged)


@lru_cache
def watched_events() -> frozenset[str]:
    """Return every event and mark that any row requires or uses as a condition."""
    return frozenset(
        event for row in read_published_events() for entry in row.events for event in entry.split("/")
    )
