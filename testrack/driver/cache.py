"""Keep root file systems, mirrors and images in a cache that all checkouts of this machine share.

rack.py and driver/images.py use it. A folder's name ends with the digest of its inputs.
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
"""Number of mirrors, of sets of images, and of S3 packages in the cache. Older ones are removed."""


def folder() -> Path:
    """Return this machine's cache of racks.

    It is ``rack`` in $RACKPROOF_CACHE, or else ``rackproof/rack`` in $XDG_CACHE_HOME or ~/.cache.
    """
    given = os.environ.get("RACKPROOF_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rackproof"
    return (Path(given) if given else base) / "rack"


def tree_digest(source: Path) -> str:
    """Return a short digest of the files of a folder, with their names and whether they are executable."""
    state = hashlib.sha256()
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            state.update(f"\n{path.relative_to(source)}\n{path.stat().st_mode & 0o100}\n".encode())
            state.update(path.read_bytes())
    return state.hexdigest()[:16]


@contextlib.contextmanager
def folder_for(cache: Path, kind: str, key: str, *, copied: bool = True) -> Iterator[Path]:
    """Give the folder of a kind and key to one process at a time, and keep only the newest other of the kind.

    A new folder is a copy of the newest other one, in which a builder renews outdated parts. It is empty if
    there is no other, or without ``copied``.
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
    """Replace a name in a checkout by a link into the cache."""
    name.parent.mkdir(parents=True, exist_ok=True)
    if name.is_dir() and not name.is_symlink():
        shutil.rmtree(name)
    draft = name.with_name(f".{name.name}.new")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(name)
