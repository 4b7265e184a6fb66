"""Write and read logs of acts. Lines are added to such a log, and never changed.

The audit log (:mod:`.audit_log`) and the acceptance log (:mod:`.acceptance_log`) use these functions. Each
act, such as one drain of a node, is one line of JSON in a file of the results folder. Begin with
:func:`append_text` and :func:`read_log_of_acts`.
"""

from __future__ import annotations

import errno
import getpass
import os
from io import BytesIO, RawIOBase
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from rackproof.core.records import Record
from rackproof.core.text import amount, sanitize
from rackproof.store.plain_file import open_plain
from rackproof.store.run_folder import RECORD_LIMIT_BYTES, ResultsError, read_file

Act = TypeVar("Act", bound=Record)
"""The record type of a log's lines."""
_MOST_DAMAGED = 10_000
"""Largest number of damaged lines in a log. A file with more is another file, or garbage."""


def acting_user() -> str:
    """Return the name of the current user or, under sudo, of the user who called sudo.

    A user without a name gives ``uid NUMBER``.
    """
    try:
        return sanitize(os.environ.get("SUDO_USER") or getpass.getuser(), 60)
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def append_text(path: Path, text: str) -> None:
    """Add lines to a log.

    One write with O_APPEND adds all lines. On a local file system, lines of two operators therefore do not
    mix.

    Args:
        path: The path of the log, which is created if it is missing.
        text: The complete lines, each with a line feed.

    Raises:
        OSError: The path is not a plain file, or the lines cannot be written completely.
    """
    handle = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    with open(handle, "a+b", buffering=0) as log:
        # A full disk may have cut the last line. End it, so that the text begins on a new line.
        data = (b"" if _ends_a_line(log) else b"\n") + text.encode()
        # A full disk may accept a part of the data without an error.
        if log.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(log.fileno())


def _ends_a_line(log: RawIOBase) -> bool:
    """Return whether a log is empty or ends with a line feed."""
    if log.seek(0, os.SEEK_END) == 0:
        return True
    log.seek(-1, os.SEEK_END)
    return log.read(1) == b"\n"


def read_log_of_acts(path: Path, kind: type[Act], lost: str) -> tuple[list[Act], int]:
    """Return the acts of a log, oldest first, and the number of damaged lines.

    Args:
        path: The path of the log. A missing log contains no acts.
        kind: The record type of a line.
        lost: What the log contains, for the message of an error, such as "the list of acts".

    Raises:
        ResultsError: The log exists, but is not a plain file, cannot be read, is larger than 256 MiB, or has
            too many damaged lines.
    """
    try:
        # If the path is a device, reading it may never end.
        if path.exists() and not path.is_file():
            raise ResultsError(f"{path} is not a file, so {lost} is not known: move it away")
        data = read_file(path, RECORD_LIMIT_BYTES)
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        advice = "" if error.errno != errno.EFBIG else f", so {lost} is not known: move its oldest lines away"
        raise ResultsError(f"{path} cannot be read: {error.strerror}{advice}") from error
    acts: list[Act] = []
    damaged = 0
    # Do not split the data at once. A list of empty lines would need eight times the memory of the file.
    for line in BytesIO(data):
        try:
            acts.append(kind.model_validate_json(line))
        except ValidationError:
            damaged += 1
            if damaged > _MOST_DAMAGED:
                raise ResultsError(
                    f"{path} has more than {amount(_MOST_DAMAGED, 'damaged line')}, so {lost} is not known: "
                    "restore it from a backup, or move it away"
                ) from None
    return acts, damaged
