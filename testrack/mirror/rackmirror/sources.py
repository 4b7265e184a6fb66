"""Make the mirror's git repositories for build.py, which a web server serves as plain files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

# These values are constant, so that the commit is always the same and a pin can name it.
WHO = "Test rack"
MAIL = "mirror@rack.invalid"
WHEN = "2019-03-15T12:00:00+0000"


class SourceError(Exception):
    """A repository that cannot be made. The message gives git's error output."""


def publish(source: Path, tag: str, bare: Path) -> str:
    """Make a bare repository of the folder, with one commit under that tag. Return the commit."""
    shutil.rmtree(bare, ignore_errors=True)
    bare.parent.mkdir(parents=True, exist_ok=True)
    _git(bare.parent, "init", "--quiet", "--bare", "--initial-branch=master", str(bare))
    _git(source, "--git-dir", str(bare), "--work-tree", str(source), "add", "--all", "--force", ".")
    tree = _git(bare, "write-tree")
    commit = _git(bare, "commit-tree", "-m", f"Release {tag}", tree)
    _git(bare, "update-ref", "refs/heads/master", commit)
    _git(bare, "tag", tag)
    _git(bare, "repack", "--quiet", "-a", "-d")
    # Without a git server, clients read the files that this writes.
    _git(bare, "update-server-info")
    (bare / "index").unlink(missing_ok=True)
    return commit


def _git(folder: Path, *arguments: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": WHO,
        "GIT_AUTHOR_EMAIL": MAIL,
        "GIT_AUTHOR_DATE": WHEN,
        "GIT_COMMITTER_NAME": WHO,
        "GIT_COMMITTER_EMAIL": MAIL,
        "GIT_COMMITTER_DATE": WHEN,
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise SourceError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()
