"""Open a lock file that users outside of its group cannot hold.

slurm_run.py, make_runtime.py, soak_resume.py and the programs that stage data call :func:`open_lock`. A user
who may open a file, even only to read it, can hold its lock forever.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import IO


def open_lock(path: str | os.PathLike[str]) -> IO[str]:
    """Open a lock file for reading and appending. If it is missing, it is created.

    Only its owner and, if the umask allows it, its group can open the file.

    Raises:
        OSError: The file cannot be opened, or something else is there, such as a link or a pipe.
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
