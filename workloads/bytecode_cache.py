"""Find a folder for a framework's bytecode if the framework was installed without it.

common.py starts ranks with the variables that :func:`environment` returns. Container images are often built
with ``PYTHONDONTWRITEBYTECODE=1``. Python then compiles 2,000 files of PyTorch for each process. On a node
with two H100, an import with ``torch._inductor`` took 10.2 s instead of 2.9 s.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path

FRAMEWORKS = ("torch", "mxnet", "tensorflow")
"""The packages that are large enough to matter."""

UNUSED_S = 30 * 24 * 3600.0
"""Seconds after which an unused folder is removed."""


def environment(frameworks: Sequence[str] = FRAMEWORKS) -> dict[str, str]:
    """Return the variables with which Python keeps bytecode in the user's cache folder.

    No variables are returned if no framework is installed, if its bytecode exists, if Python can write it
    beside the framework, or if PYTHONPYCACHEPREFIX is set already. There are none either if the cache folder
    cannot be made, or if other users could write to it.

    Args:
        frameworks: The packages to search for. The first installed one is used.
    """
    origin = next(filter(None, map(_origin, frameworks)), None)
    if origin is None or sys.pycache_prefix or Path(importlib.util.cache_from_source(str(origin))).exists():
        return {}
    if not sys.dont_write_bytecode and os.access(origin.parent, os.W_OK):
        return {}
    with contextlib.suppress(OSError, RuntimeError):
        folder = _own_folder(_key(origin.parent.parent))
        return {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    return {}


def _origin(package: str) -> Path | None:
    """Return the first file of a package, or None if it is not installed."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            return Path(spec.origin)
    return None


def _key(packages: Path) -> str:
    """Return a name that changes with the version of Python or of an installed package.

    Python itself compares only the time and size of a source, which are equal in reproducible images.
    """
    names = sorted(path.name for path in packages.glob("*.dist-info"))
    return hashlib.sha256("\n".join([sys.version, str(packages), *names]).encode()).hexdigest()[:16]


def _own_folder(key: str) -> Path:
    """Return the folder of a key, made if it is missing. Remove folders that were not used for a month.

    Raises:
        OSError: The folder cannot be made.
        PermissionError: It or its parent is not a folder, or another user owns it or could write to it.
        RuntimeError: This user's home is unknown.
    """
    parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rackproof" / "bytecode"
    folder = parent / key
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (parent, folder):
        held = path.lstat()
        if not stat.S_ISDIR(held.st_mode) or held.st_uid != os.geteuid() or held.st_mode & 0o022:
            raise PermissionError(f"{path} could be written by other users")
    os.utime(folder)
    for other in parent.iterdir():
        if other.lstat().st_mtime < time.time() - UNUSED_S:
            shutil.rmtree(other, ignore_errors=True)
    return folder
