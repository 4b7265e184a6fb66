"""Cache files that outlive a checkout.

These are root file systems, mirrors and images, in folders named by their inputs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

KEPT = 2
"""Number of mirrors, and of sets of images, that are kept. The newest are kept."""


def folder() -> Path:
    """Return this machine's cache of racks: $RACKPROOF_CACHE, else $XDG_CACHE_HOME, else ~/.cache."""
    given = os.environ.get("RACKPROOF_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rackproof"
    return (Path(given) if given else base) / "rack"


def tree_digest(source: Path) -> str:
    """Return a short name for the files of a folder."""
    state = hashlib.sha256()
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            state.update(f"\n{path.relative_to(source)}\n{path.stat().st_mode & 0o100}\n".encode())
            state.update(path.read_bytes())
    return state.hexdigest()[:16]


@contextlib.contextmanager
def folder_for(cache: Path, kind: str, key: str, *, copied: bool = True) -> Iterator[Path]:
    """Give the folder of a kind and key to one process at a time, and keep the newest two of the kind.

    A new folder begins as a copy of the newest one, in which a builder renews outdated parts, or empty.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = cache / f"{kind}-{key}"
        older = sorted(cache.glob(f"{kind}-*"), key=lambda one: one.stat().st_mtime, reverse=True)
        if path not in older:
            draft = cache / f".{kind}-draft"
            shutil.rmtree(draft, ignore_errors=True)
            if older and copied:
                # Sockets of gpg's agent cannot be copied, and need not be.
                shutil.copytree(older[0], draft, symlinks=True, ignore=shutil.ignore_patterns("S.*"))
            draft.mkdir(exist_ok=True)
            draft.replace(path)
        os.utime(path)
        for one in [one for one in older if one != path][KEPT - 1 :]:
            shutil.rmtree(one, ignore_errors=True)
        yield path


def link(name: Path, target: Path) -> None:
    """Make a name in a checkout a link into the cache."""
    name.parent.mkdir(parents=True, exist_ok=True)
    if name.is_dir() and not name.is_symlink():
        shutil.rmtree(name)
    draft = name.with_name(f".{name.name}.new")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(name)
