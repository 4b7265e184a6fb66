"""Open locks, journals and logs of a results folder, and refuse anything but a plain file.

Other users may be able to write the folder. A link there could lead to another file of this user, the opening
of a pipe would wait for its other end, and a lock that another process never releases would stop every
playbook. The jobs reimage and validate, and other modules of this folder, call :func:`open_plain` for
journals and logs, and :func:`hold_lock` or :func:`open_lock` for locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK_WAIT_S = 120.0
"""Seconds to wait for a lock. Rackproof itself holds a lock only while it writes a few files."""

_POLL_S = 0.05
"""Seconds between two attempts to get a lock."""


def open_plain(path: Path, flags: int, mode: int = 0o640) -> int:
    """Open a file without waiting, and return its descriptor.

    Args:
        path: The path of the file.
        flags: The flags for ``os.open``.
        mode: The mode of a new file.

    Raises:
        OSError: The path is a link, a pipe or a device, or the file cannot be opened.
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        # A link causes ELOOP. A pipe without a reader, or a socket, causes ENXIO.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_plain(path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _not_plain(path)
    return handle


def open_lock(path: Path) -> int:
    """Open a file that is only a lock, and return its descriptor.

    A user who can open a file can hold its lock. Therefore only the owner can open this file, and the
    folder's group if the group can write the folder. A lock that root makes is given to the owner of the
    folder, who needs it later.

    Raises:
        OSError: As for :func:`open_plain`.
    """
    handle = open_plain(path, os.O_RDWR | os.O_CREAT, 0o600)
    folder = path.parent.stat()
    lock = os.fstat(handle)
    # A file with several names may be another file of root, for which another user made a second name here.
    is_only_name = lock.st_nlink == 1
    if os.geteuid() == 0 and is_only_name:
        with suppress(OSError):
            os.fchown(handle, folder.st_uid, folder.st_gid)
            lock = os.fstat(handle)
    is_shared = is_only_name and folder.st_mode & stat.S_IWGRP and folder.st_gid == lock.st_gid
    # Set the mode, because a new file has the umask of one member of the group, and locks of earlier versions
    # were readable by all.
    with suppress(OSError):
        os.fchmod(handle, 0o660 if is_shared else 0o600)
    return handle


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock while the context lasts.

    Raises:
        OSError: The lock cannot be opened, or another process does not release it.
    """
    handle = open_lock(path)
    try:
        wait_for_lock(handle, path)
        yield
    finally:
        os.close(handle)


def wait_for_lock(handle: int, path: Path) -> None:
    """Wait for the lock of an open file. The kernel releases it when the descriptor is closed.

    Raises:
        OSError: Another process held it for :data:`LOCK_WAIT_S`. The error names the process.
    """
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                reason = f"{_lock_holder(os.fstat(handle))} holds its lock and does not release it"
                raise OSError(errno.EAGAIN, reason, str(path)) from None
            time.sleep(_POLL_S)
        else:
            return


def _not_plain(path: Path) -> OSError:
    """Return the error about a path that is not a plain file."""
    return OSError(errno.EINVAL, "it is not a plain file: move it away", str(path))


def _lock_holder(facts: os.stat_result) -> str:
    """Describe the process that holds the lock of a file, from the kernel's table /proc/locks.

    A line of the table is ``1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF``, with the process 1234 and the
    file ``08:01:5678`` (device and inode). ``->`` marks a process that waits for the lock.
    """
    device = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    with suppress(OSError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "->" not in fields and fields[1] == "FLOCK" and fields[5] == device:
                return f"process {fields[4]}{_of_user(Path('/proc', fields[4]))}"
    return "another process"


def _of_user(process: Path) -> str:
    """Return the user of a process as text, or "" if unknown."""
    with suppress(OSError, KeyError):
        return f" of {pwd.getpwuid(process.stat().st_uid).pw_name}"
    return ""
