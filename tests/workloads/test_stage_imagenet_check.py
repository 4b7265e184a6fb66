"""Test ``stage_imagenet.py --check``, which reads staged data again.

A small ImageNet is staged once in the formats that need no package. The tests then change a file, or the
journal that a killed run left, and show what the check finds.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .imagenet_miniature import Miniature

FORMATS = "images,recordio"


def run(root: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    command = [sys.executable, root / "workloads/stage_imagenet.py", *words]
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def staged(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a staged miniature of 3 classes."""
    archives, data = tmp_path_factory.mktemp("archives"), tmp_path_factory.mktemp("staged")
    Miniature(classes=3, train_each=4, val_count=6).write(archives)
    words = ["--archives", archives, "--pins", archives / "pins.json", "--data", data, "--formats", FORMATS]
    done = run(root, *words, "--processes", 1)
    assert done.returncode == 0, done.stderr
    return data


@pytest.fixture
def data(staged: Path, tmp_path: Path) -> Path:
    """Return a copy of the staged folder."""
    return Path(shutil.copytree(staged, tmp_path / "d"))


def append(path: Path, more: bytes) -> None:
    """Write more bytes to the end of a file."""
    with path.open("ab") as stream:
        stream.write(more)


def cut(path: Path) -> None:
    """Remove the last 20 bytes of a file."""
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_sound_data_pass_without_the_archives(root: Path, data: Path) -> None:
    done = run(root, "--data", data, "--formats", FORMATS, "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["wrong"] == []


@pytest.mark.parametrize("left", [b'{"part":"tr', b'{"part":"train","number":0,"na', b"{"])
@pytest.mark.parametrize("name", ["images", "recordio"])
def test_a_journal_with_a_line_that_was_cut_off_is_read(
    root: Path, data: Path, name: str, left: bytes
) -> None:
    # The next run ends such a line, and continues behind it.
    append(data / f".staging/{name}.journal", left + b"\n")
    done = run(root, "--data", data, "--formats", name, "--check")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("change", [lambda path: append(path, b"twelve bytes"), cut, flip])
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("images", "val/*/*.JPEG"),
        ("recordio", "train.rec"),
        ("recordio", "val.rec"),
        ("recordio", "train.idx"),
        ("recordio", "val.lst"),
    ],
)
def test_every_change_of_a_file_is_found(
    root: Path, data: Path, name: str, pattern: str, change: Callable[[Path], None]
) -> None:
    path = next((data / name).glob(pattern))
    change(path)
    done = run(root, "--data", data, "--formats", name, "--check")
    assert done.returncode == 5
    assert "changed since" in done.stderr
    assert (path.name if name == "recordio" else path.parent.name) in done.stderr


@pytest.mark.parametrize(
    ("name", "added"),
    [("images", "train/n09999999/a.JPEG"), ("images", "val/n01440764/a.JPEG"), ("recordio", "more.rec")],
)
def test_a_file_that_was_added_is_found(root: Path, data: Path, name: str, added: str) -> None:
    path = data / name / added
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    done = run(root, "--data", data, "--formats", name, "--check")
    assert (done.returncode, "changed since" in done.stderr) == (5, True)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("images/dataset.json", "images"),
        (".staging/images.journal", "images"),
        (".staging/recordio.journal", "recordio"),
        (".staging/index", "recordio"),
        ("recordio/train.idx", "recordio"),
    ],
)
@pytest.mark.parametrize("content", [None, b"", b"{}\n"], ids=["missing", "empty", "damaged"])
def test_what_states_the_staged_files_is_needed(
    root: Path, data: Path, file: str, name: str, content: bytes | None
) -> None:
    if content is None:
        (data / file).unlink()
    else:
        (data / file).write_bytes(content)
    done = run(root, "--data", data, "--formats", name, "--check")
    assert done.returncode == 5
    assert "Traceback" not in done.stderr
    assert "is not staged completely" in done.stderr or "changed since" in done.stderr


@pytest.mark.parametrize(
    ("change", "found"),
    [(None, ""), (b"twelve bytes", "train-00001-of-00002"), ("another", "train-00002-of-00002")],
)
def test_the_end_of_a_tfrecord_file_is_compared(
    root: Path, tmp_path: Path, change: bytes | str | None, found: str
) -> None:
    folder = tmp_path / "tfrecord"
    folder.mkdir()
    (tmp_path / ".staging").mkdir()
    units, lines = {}, ['{"settings": {}}']
    for number, content in enumerate((b"first", b"second")):
        name = f"train-{number:05d}-of-00002"
        (folder / name).write_bytes(content)
        units[name] = hashlib.sha256(content).hexdigest()
        lines.append(json.dumps({"part": "train", "number": number, "name": name, "size": len(content)}))
    (folder / "dataset.json").write_text(json.dumps({"units": units, "settings": {"seed": 1}}))
    (tmp_path / ".staging/tfrecord.journal").write_text("\n".join([*lines, ""]))
    if isinstance(change, bytes):
        append(folder / "train-00001-of-00002", change)
    elif change:
        (folder / "train-00002-of-00002").write_text(change)
    done = run(root, "--data", tmp_path, "--formats", "tfrecord", "--check")
    assert done.returncode == (5 if found else 0), done.stderr
    assert found in done.stderr


@pytest.mark.parametrize("words", [[], ["--formats", "images"], ["--resize", "64"]])
def test_staging_needs_the_archives(root: Path, tmp_path: Path, words: list[str]) -> None:
    done = run(root, "--data", tmp_path, *words)
    assert done.returncode == 2
    assert "required: --archives" in done.stderr
