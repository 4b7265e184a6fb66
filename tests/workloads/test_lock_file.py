"""Test the lock files of programs in workloads/, which let only one process of a node stage or import.

A node can have many users. These tests show that no other user can open a lock, and so hold up the program,
or replace it with a link or a pipe.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.programs import load_program


def hold(program: str) -> Callable[[Path], None]:
    """Return a function that holds the lock of a program in a folder."""

    def call(path: Path) -> None:
        arguments: tuple[Any, ...] = (path, "it") if program == "slurm_run" else (path,)
        with load_program(program).locked(*arguments):
            pass

    return call


def stage_pictures(path: Path) -> None:
    """Hold the lock of stage_pictures.py, which is beside its folder."""
    staging, folder = load_program("stage_pictures"), path.parent / "pictures"
    folder.mkdir()
    (folder / staging.MANIFEST).write_text('{"per_class": 1}')
    staging.stage(folder, 1)


# By program: the name of its lock, and a function that takes the lock at a path.
LOCKS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "slurm_run": ("image.lock", hold("slurm_run")),
    "stage_imagenet": ("data.lock", hold("stage_imagenet")),
    "stage_mnist": (load_program("stage_mnist").LOCK, lambda path: hold("stage_mnist")(path.parent)),
    "stage_pictures": (".pictures.lock", stage_pictures),
}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("program", LOCKS)
def test_no_other_user_of_the_node_can_open_a_lock(
    program: str, is_old: bool, umask: int, tmp_path: Path
) -> None:
    name, lock = LOCKS[program]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if is_old:
        path.touch(0o644)
    before = os.umask(umask)
    try:
        lock(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) & 0o007 == 0


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("program", LOCKS)
def test_what_another_user_put_into_the_place_of_a_lock_is_refused(
    program: str, kind: str, tmp_path: Path
) -> None:
    name, lock = LOCKS[program]
    path, victim = tmp_path / name, tmp_path / "victim"
    path.parent.mkdir(exist_ok=True)
    victim.write_text("kept")
    path.symlink_to(victim) if kind == "link" else os.mkfifo(path)
    with pytest.raises(Exception, match=r"Too many levels|not a plain file|Symbolic|symbolic"):
        lock(path)
    assert victim.read_text() == "kept"


def test_every_program_opens_its_lock_with_open_lock(root: Path) -> None:
    """Every program that locks a file opens it with open_lock, which the tests above test."""
    texts = {path.name: path.read_text() for path in sorted((root / "workloads").glob("*.py"))}
    locking = {name for name, text in texts.items() if "fcntl.flock(" in text}
    assert len(locking) >= 7
    assert {name for name in locking if not re.search("open_lock", texts[name])} == set()


def test_the_image_of_tensorflow_has_the_modules_of_its_stager(root: Path) -> None:
    copied = (root / "workloads/tensorflow/Dockerfile").read_text()
    names = re.findall(r"(?m)^from (\w+) import", (root / "workloads/stage_tf_cnn.py").read_text())
    own = [f"{name}.py" for name in names if (root / f"workloads/{name}.py").is_file()]
    assert own
    assert [name for name in own if name not in copied] == []
