"""Who made a run a reference or took it back, and when: ``results/acceptances.jsonl``, which only grows.

Beside the database, so that it outlives one that is made again from the records.
"""

from __future__ import annotations

import getpass
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from rackproof.core.records import Record
from rackproof.core.text import sanitize
from rackproof.store.run_folder import ResultsError

LOG_NAME = "acceptances.jsonl"


class Acceptance(Record):
    """One act: a run's numbers became references, or are references no more."""

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
    """Add an act of the present user to the log.

    Raises:
        ResultsError: The log cannot be written.
    """
    entry = Acceptance(
        moment=datetime.now(UTC),
        act=act,
        run_id=run_id,
        references=references,
        user=_user(),
        host=socket.gethostname(),
        reason=reason,
    )
    try:
        # One write of less than a page with O_APPEND: two operators' lines never mix.
        with (results / LOG_NAME).open("ab", buffering=0) as log:
            log.write(entry.model_dump_json().encode() + b"\n")
            os.fsync(log.fileno())
    except OSError as error:
        raise ResultsError(
            f"{results / LOG_NAME} cannot be written ({error.strerror}): who made {run_id} a reference would "
            "not be known; make the folder writable and do it again"
        ) from error


def read_acceptances(results: Path) -> tuple[list[Acceptance], int]:
    """Return the acts, oldest first, and how many lines of the log are damaged.

    Raises:
        ResultsError: The log is there and cannot be read.
    """
    try:
        lines = (results / LOG_NAME).read_bytes().splitlines()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise ResultsError(f"{results / LOG_NAME} cannot be read: {error.strerror}") from error
    acts, damaged = [], 0
    for line in lines:
        try:
            acts.append(Acceptance.model_validate_json(line))
        except ValidationError:
            damaged += 1
    return acts, damaged


def _user() -> str:
    # Behind sudo the name of the one who typed the command is what matters.
    try:
        return sanitize(os.environ.get("SUDO_USER") or getpass.getuser(), 60)
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
