"""Test workloads/bytecode_cache.py, which returns variables for a folder with a framework's bytecode.

In a container whose image lacks PyTorch's bytecode, each process would compile PyTorch's files again, which
takes seconds. The tests check that:

- the folder is private, and a later process reads the bytecode from it
- no folder is used if the bytecode exists, or if Python can write it beside the framework
- no folder is used if another user could write to it, since bytecode is code
- each version of a package has its own folder, and unused folders are removed after a month.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workloads.programs import load_program

bytecode = load_program("bytecode_cache")
# The only package to search for, which the fixture `packages` makes.
FRAMEWORK = ("pretend_framework",)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of packages with a framework that has no bytecode. Python is set to write none."""
    packages = tmp_path / "packages"
    (packages / FRAMEWORK[0]).mkdir(parents=True)
    (packages / FRAMEWORK[0] / "__init__.py").write_text("VALUE = 1\n")
    (packages / "pretend_framework-2.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return packages


def folder() -> Path:
    """Return the folder that the program chooses for bytecode."""
    return Path(bytecode.environment(FRAMEWORK)["PYTHONPYCACHEPREFIX"])


def test_bytecode_is_stored_in_a_private_folder_and_found_by_the_next_process(packages: Path) -> None:
    found = bytecode.environment(FRAMEWORK)
    kept = Path(found["PYTHONPYCACHEPREFIX"])
    assert kept.stat().st_mode & 0o777 == 0o700
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **found, "PYTHONPATH": str(packages)}
    subprocess.run([sys.executable, "-c", f"import {FRAMEWORK[0]}"], env=environment, check=True, timeout=300)
    assert [path.name.partition(".")[0] for path in kept.rglob("*pretend*/*.pyc")] == ["__init__"]
    assert not (packages / FRAMEWORK[0] / "__pycache__").exists()
    assert folder() == kept


def test_no_folder_is_used_if_bytecode_exists_or_python_can_write_it(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bytecode.environment(("no_such_framework",)) == {}
    assert bytecode.environment(("no_such_framework", *FRAMEWORK)) != {}
    with monkeypatch.context() as may_write:
        may_write.setattr(sys, "dont_write_bytecode", False)
        assert bytecode.environment(FRAMEWORK) == {}
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(sys, "pycache_prefix", str(packages))
        assert bytecode.environment(FRAMEWORK) == {}
    cached = packages / FRAMEWORK[0] / "__pycache__" / f"__init__.{sys.implementation.cache_tag}.pyc"
    cached.parent.mkdir()
    cached.touch()
    assert bytecode.environment(FRAMEWORK) == {}


@pytest.mark.parametrize(
    # Each function changes the folder, or the folder above it, so that it is no longer this user's alone.
    "spoil",
    [
        lambda kept: kept.chmod(0o770),
        lambda kept: kept.chmod(0o707),
        lambda kept: kept.parent.chmod(0o777),
        lambda kept: os.chown(kept, 12345, -1),
        lambda kept: (kept.rename(kept.with_name("else")), kept.symlink_to("else")),
        lambda kept: (kept.rmdir(), kept.touch()),
    ],
    ids=["group", "others", "parent", "owner", "link", "file"],
)
def test_a_folder_that_another_user_could_have_written_is_not_used(
    packages: Path, spoil: Callable[[Path], object]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    spoil(folder())
    assert bytecode.environment(FRAMEWORK) == {}


def test_no_folder_is_used_if_the_cache_folder_cannot_be_made(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packages / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(packages / "file"))
    assert bytecode.environment(FRAMEWORK) == {}


def test_a_new_version_has_its_own_folder_and_unused_ones_are_removed_after_a_month(
    packages: Path,
) -> None:
    first = folder()
    (packages / "pretend_framework-2.0.dist-info").rename(packages / "pretend_framework-2.1.dist-info")
    second = folder()
    assert second != first
    assert first.is_dir()
    long_ago = time.time() - bytecode.UNUSED_S - 60
    os.utime(first, (long_ago, long_ago))
    os.utime(second, (long_ago, long_ago))
    assert folder() == second
    assert second.is_dir()
    assert not first.exists()
