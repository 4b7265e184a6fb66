"""Open a lock that no other user of the node can hold.

Programs that stage data or make a runtime call :func:`open_lock`. A user with access to a file, even only to
read it, can hold its lock forever.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import IO


def open_lock(path: str | os.PathLike[str]) -> IO[str]:
    """Open a lock for reading and appending. Only its user and group can, as the umask allows.

    Raises:
        OSError: The file cannot be opened, or is a link or a pipe that another user put there.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o660)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise OSError(0, "it is not a plain file", str(path))
    # Earlier versions let all users read their locks.
    with suppress(OSError):
        os.fchmod(handle, stat.S_IMODE(mode) & 0o770)
    return os.fdopen(handle, "a+")
