"""The folder of a fuzz program, in memory if possible, that is removed at every end of the program."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import FrameType

_MEMORY = Path("/dev/shm")


@functools.cache
def own_folder() -> Path:
    """Return this program's folder, which its later workers share, and remove those of killed programs."""
    # TMPDIR is in memory already where conftest.py sets it.
    base = _MEMORY if "TMPDIR" not in os.environ and _MEMORY.is_dir() else Path(tempfile.gettempdir())
    for folder in base.glob("rackproof-fuzz-[0-9]*-*"):
        if not Path("/proc", folder.name.split("-")[2]).exists():
            shutil.rmtree(folder, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f"rackproof-fuzz-{os.getpid()}-", dir=base))
    atexit.register(_remove, made, os.getpid())
    return made


def remove_at_signals() -> None:
    """Make the folder, and remove it also if the program is ended by SIGTERM or SIGINT, with its workers."""
    made, owner = own_folder(), os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            # A running worker could create files again, and would outlive the program.
            for worker in multiprocessing.active_children():
                worker.kill()
                worker.join()
        _remove(made, owner)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _remove(folder: Path, owner: int) -> None:
    """Remove a folder, but not at the end of a worker."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
