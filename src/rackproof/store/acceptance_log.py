"""Who made a run a reference or took it back, and when: ``results/acceptances.jsonl``, which only grows.

Beside the database, so that it outlives one that is made again from the records.
"""

from __future__ import annotations

import errno
import getpass
import os
import socket
from datetime import UTC, datetime
from io import RawIOBase
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
        with (results / LOG_NAME).open("a+b", buffering=0) as log:
            # Half a line, of a disk that was full once, must not spoil this one.
            begin = b"" if _ends_a_line(log) else b"\n"
            _write_line(log, begin + entry.model_dump_json().encode() + b"\n")
    except OSError as error:
        done = "made it a reference" if act == "accept" else "took its references back"
        raise ResultsError(
            f"{results / LOG_NAME} cannot be written ({error.strerror}): nothing was changed for {run_id}, "
            f"for who {done} would not be known; make the file writable and do it again"
        ) from error


def _write_line(log: RawIOBase, line: bytes) -> None:
    # A full disk may take a part of it without an error.
    if log.write(line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(log.fileno())


def _ends_a_line(log: RawIOBase) -> bool:
    # A pipe or a device has no end to look at, and no lines of ours.
    if not log.seekable() or log.seek(0, os.SEEK_END) == 0:
        return True
    log.seek(-1, os.SEEK_END)
    return log.read(1) == b"\n"


def standing_acceptances(results: Path) -> tuple[list[str], int]:
    """Return the runs that were accepted and not withdrawn since, and how many lines are damaged.

    Raises:
        ResultsError: The log is there and cannot be read.
    """
    acts, damaged = read_acceptances(results)
    newest = {act.run_id: act.act for act in acts}
    return [run_id for run_id, act in newest.items() if act == "accept"], damaged


def bounding_acceptances(results: Path) -> dict[str, datetime]:
    """Return the runs whose numbers bound what is accepted after them, with the moment of their acceptance.

    A run that was withdrawn with a reason does so no more: it is how an operator says that the hardware was
    changed. Without a reason, taking runs back and accepting slower ones would have no end.

    Raises:
        ResultsError: The log is there and cannot be read.
    """
    bounding: dict[str, datetime] = {}
    for act in read_acceptances(results)[0]:
        if act.act == "accept":
            bounding.setdefault(act.run_id, act.moment)
        elif act.reason:
            bounding.pop(act.run_id, None)
    return bounding


def read_acceptances(results: Path) -> tuple[list[Acceptance], int]:
    """Return the acts, oldest first, and how many lines of the log are damaged.

    Raises:
        ResultsError: The log is there and cannot be read.
    """
    path = results / LOG_NAME
    try:
        # A device in its place may have no end.
        if path.exists() and not path.is_file():
            raise ResultsError(f"{path} is no file, so what was accepted is not known: move it away")
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from error
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
