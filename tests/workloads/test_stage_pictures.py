"""Test workloads/stage_pictures.py, which draws a data set of simple figures on the node itself.

Benchmarks of training use it without a download. The tests show that all machines draw the same pictures,
that a folder that is not complete is drawn again, and that two processes draw once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.programs import load_program

pytestmark = [pytest.mark.torch, pytest.mark.slow]
CLASSES = ("chequers", "columns", "disc", "frame", "plus", "ring", "rows", "saltire", "square", "triangle")
SHA256 = "a3bacaacfc08d00e96c6fab90335c2d16e8f2e73bc3886ed9ebf37948a3ceb39"
"""The digest of the pictures, with three of each class. With another digest, results are not comparable."""


def stage(root: Path, python: str, folder: Path, per_class: int = 3) -> dict[str, Any]:
    """Run the program. Return the content of its last line."""
    done = subprocess.run(
        [python, root / "workloads/stage_pictures.py", f"--data={folder}", f"--per-class={per_class}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_the_same_pictures_come_out_everywhere_and_are_drawn_once(
    root: Path, torch_python: str, tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    # Of two programs at once, one draws the pictures, and the other finds them.
    with ThreadPoolExecutor(2) as both:
        answers = list(both.map(lambda _: stage(root, torch_python, folder), range(2)))
    assert sorted(one["changed"] for one in answers) == [False, True]
    assert {(one["objects"], one["sha256"]) for one in answers} == {(40, SHA256)}
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.ppm"))
    assert files == sorted(
        [f"train/{name}/{at:05}.ppm" for name in CLASSES for at in range(3)]
        + [f"val/{name}/00000.ppm" for name in CLASSES]
    )
    assert len({path.read_bytes() for path in folder.rglob("*.ppm")}) == 40
    assert sorted(path.name for path in tmp_path.iterdir()) == [".pictures.lock", "pictures"]


@pytest.mark.parametrize("left", ["nothing", "no description", "another number", "damaged description"])
def test_what_is_not_whole_is_drawn_again(root: Path, torch_python: str, tmp_path: Path, left: str) -> None:
    folder = tmp_path / "pictures"
    if left != "nothing":
        stage(root, torch_python, folder, per_class=1)
        (folder / "train/disc/old.ppm").write_bytes(b"P6")
    if left == "no description":
        (folder / "dataset.json").unlink()
    if left == "damaged description":
        (folder / "dataset.json").write_text('{"per_class": 3')
    said = stage(root, torch_python, folder)
    assert (said["changed"], said["sha256"]) == (True, SHA256)
    assert not (folder / "train/disc/old.ppm").exists()


def test_without_pytorch_or_a_place_there_is_a_message(root: Path, tmp_path: Path) -> None:
    program = root / "workloads/stage_pictures.py"
    for words, status in ((["--data=/dev/null/x"], 5), (["--data", tmp_path, "--per-class=0"], 2)):
        done = subprocess.run([sys.executable, program, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (status, "")
        assert "Traceback" not in done.stderr


def test_each_class_has_a_figure_of_its_own() -> None:
    assert tuple(sorted(load_program("stage_pictures").CLASSES)) == CLASSES
