"""Return the events that a log of an MLPerf Training benchmark must contain.

A table lists the events that all published logs of a benchmark contain that ended well (rounds 0.6 and 4.0 to
5.1). The readers of logs find missing lines with it. Reading this table is the only I/O.

Parsers of MLPerf logs call :func:`events_of`. Begin there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from importlib.resources import files

TABLE = "published_events.csv"
THROUGHPUT = "throughput"
"""The table's mark that a log must contain statistics with samples per second, or the time of a step."""
PROGRESS = "progress"
"""The table's mark that every evaluation of a log must state the progress of the training."""
SECOND_EVALUATION = "second_evaluation"
"""The table's mark that a log must contain two or more evaluations."""
WHOLE_EPOCHS = "whole_epochs"
"""The table's mark that every epoch of a log must start and stop, and that the epochs' numbers follow each
other."""
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
"""Short names in the table for groups of events."""


@dataclass(frozen=True)
class PublishedEvents:
    """A row of the table: the events that a benchmark's logs contain since a date.

    The table rests on logs in one notation of runs that ended well (rounds 0.6 and 4.0 to 5.1).

    Attributes:
        notation: The format of the logs.
        benchmark: The name in MLPerf's rules.
        since: The row is valid for logs from this date on.
        events: The events. An entry ``A/B`` means that a log with B must contain A.
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
    """Return the rows of the table, with short names replaced by their events."""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            notation, benchmark, since, names, _logs = (cell.strip() for cell in line.split("|"))
            events = " ".join(_SHORT.get(name, name) for name in names.split()).split()
            yield PublishedEvents(notation, benchmark, date.fromisoformat(since), frozenset(events))


def events_of(
    notation: str, benchmark: str, day: date, logged: Collection[str] = frozenset()
) -> frozenset[str]:
    """Return the events that the table requires of a log, or none without a row for the log.

    Args:
        notation: The format of the log.
        benchmark: The name in MLPerf's rules.
        day: The date of the log.
        logged: The events in the log.
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
    """Return every event that any row requires or uses as a condition."""
    return frozenset(
        event for row in read_published_events() for entry in row.events for event in entry.split("/")
    )
