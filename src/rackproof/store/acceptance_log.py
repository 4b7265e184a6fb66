"""Log which runs operators accepted or withdrew as references.

``rackproof accept`` and ``rackproof withdraw`` call :func:`note_acceptance`, which adds a line to
``results/acceptances.jsonl`` with the user, the time and the reason. Records of runs do not contain the
acceptances, so a database that is built again from records lacks them. ``rackproof history --rebuild`` and
jobs bench and validate therefore name the runs in this log that must be accepted again. ``rackproof audit``
shows all acts of the log.
"""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rackproof.core.records import Record
from rackproof.store.append_log import acting_user, append_text, read_log_of_acts
from rackproof.store.run_folder import ResultsError

LOG_NAME = "acceptances.jsonl"
"""File of the log in the results folder."""


class Acceptance(Record):
    """One act that makes a run's numbers references, or withdraws them.

    Attributes:
        moment: The time of the act, in UTC.
        act: The kind of the act.
        run_id: The id of the run.
        references: The number of references that were made or withdrawn.
        user: The user who acted.
        host: The machine on which the user acted.
        reason: The user's reason, or "". ``accept`` needs a reason only for numbers that it would refuse.
    """

    moment: datetime
    act: Literal["accept", "withdraw"]
    run_id: str
    references: int
    user: str
    host: str
    reason: str = ""


def note_acceptance(
    results: Path, act: Literal["accept", "withdraw"], run_id: str, references: int, reason: str = ""
) -> None:
    """Add an act of the current user to the log.

    Args:
        results: The results folder.
        act: The kind of the act.
        run_id: The whole id of the run.
        references: The number of references that are made or withdrawn.
        reason: The user's reason, or "".

    Raises:
        ResultsError: The log cannot be written.
    """
    entry = Acceptance(
        moment=datetime.now(UTC),
        act=act,
        run_id=run_id,
        references=references,
        user=acting_user(),
        host=socket.gethostname(),
        reason=reason,
    )
    try:
        append_text(results / LOG_NAME, f"{entry.model_dump_json()}\n")
    except OSError as error:
        act_text = "acceptance" if act == "accept" else "withdrawal"
        raise ResultsError(
            f"{results / LOG_NAME} cannot be written ({error.strerror}): nothing was changed for {run_id}, "
            f"because the file must record its {act_text}; make the file writable, then try again"
        ) from error


def standing_acceptances(results: Path) -> tuple[list[str], int]:
    """Return the runs that were accepted and not withdrawn since, and the number of damaged lines.

    A damaged line may be the withdrawal of one of these runs.

    Raises:
        ResultsError: The log exists but cannot be read.
    """
    acts, damaged = read_acceptances(results)
    newest = {act.run_id: act.act for act in acts}
    return [run_id for run_id, act in newest.items() if act == "accept"], damaged


def bounding_acceptances(results: Path) -> dict[str, datetime]:
    """Return the runs that limit later acceptances, with the time when each was first accepted.

    A run no longer limits later acceptances if it was withdrawn with a reason, such as changed hardware. A
    withdrawal without a reason is not enough. Otherwise, an operator could accept slower and slower runs by
    withdrawing each before the next. Such a withdrawal also shows that the run was accepted, even if the line
    of its acceptance is damaged.

    Raises:
        ResultsError: The log exists but cannot be read.
    """
    bounding: dict[str, datetime] = {}
    for act in read_acceptances(results)[0]:
        if act.act == "withdraw" and act.reason:
            bounding.pop(act.run_id, None)
        else:
            bounding.setdefault(act.run_id, act.moment)
    return bounding


def read_acceptances(results: Path) -> tuple[list[Acceptance], int]:
    """Return the acts, oldest first, and the number of damaged lines in the log.

    Raises:
        ResultsError: The log exists but cannot be read.
    """
    return read_log_of_acts(results / LOG_NAME, Acceptance, "the list of accepted runs")
