"""Claim this machine's rack. A machine has only one.

rack.py and the gate (tools/proof) use this module. Only one command of rack.py changes the rack at a time,
and only one gate or suite works with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from driver.console import Console
from driver.layout import RackError

LOCKS = Path("/run/lock/rackproof-rack")
USER_VARIABLE = "RACKPROOF_PROOF"
"""Process id of the gate or suite that claimed the rack. The commands that it starts inherit it."""
ESTABLISHED = "01"
"""State of an open connection in /proc/net/tcp."""


def read_user() -> tuple[int, str]:
    """Return the process that claimed the rack and its checkout, or 0 and "".

    The claim is a lock of the kernel, which ends with its process even if that is killed.
    """
    try:
        with (LOCKS / "use").open("r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                claim = json.loads(lock.read() or "{}")
                return int(claim.get("pid", 1)), str(claim.get("checkout", "?"))
    except (OSError, ValueError):
        pass
    return 0, ""


def refuse_if_claimed() -> None:
    """Raise RackError if the gate or a suite of another process works with the rack."""
    pid, checkout = read_user()
    if pid and os.environ.get(USER_VARIABLE) != str(pid):
        raise RackError(
            f"the rack is in use: process {pid} runs a gate or suite of {checkout} on it; "
            "try again when that has ended"
        )


@contextlib.contextmanager
def claim(checkout: Path, console: Console) -> Iterator[None]:
    """Claim the rack for this process and the commands that it starts. Wait while another process has it."""
    LOCKS.mkdir(parents=True, exist_ok=True)
    with (LOCKS / "use").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid, other = read_user()
            console.say(f"the rack is in use by process {pid} of {other}; waiting for it to end ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(json.dumps({"pid": os.getpid(), "checkout": str(checkout)}))
        lock.flush()
        yield


@contextlib.contextmanager
def changing(console: Console) -> Iterator[None]:
    """Hold the lock with which one command at a time changes the rack, from any checkout."""
    LOCKS.mkdir(parents=True, exist_ok=True)
    with (LOCKS / "change").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.say("another command is changing the rack; waiting for it to end ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def connected_addresses(table: str, addresses: Collection[str]) -> list[str]:
    """Return the addresses to which this machine has an open connection.

    Args:
        table: The text of /proc/net/tcp. After the heading, columns 1 to 3 are local address, remote
            address and state. An IPv4 address is four bytes in hexadecimal digits, the last byte first.
        addresses: The IPv4 addresses to search for.
    """
    found = set()
    for line in table.splitlines()[1:]:
        columns = line.split()
        if len(columns) > 3 and columns[3] == ESTABLISHED:
            digits = columns[2].partition(":")[0]
            found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(digits))))
    return sorted(found & set(addresses))
