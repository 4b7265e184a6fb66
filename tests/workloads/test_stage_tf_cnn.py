"""Test workloads/stage_tf_cnn.py, which stages the sources of tf_cnn_benchmarks.

The sources come from a folder or an archive, and a pin states one checksum of all files. The tests show that
the checksum does not depend on the form, that other files are refused, and that no path leads outside.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.workloads.programs import load_program

FILES = {"tf_cnn_benchmarks.py": b"print(1)\n", "models/model.py": b"MODEL = 1\n", "README.md": b"Read.\n"}


staging = load_program("stage_tf_cnn")
PART = staging.PART
SHA256 = staging.checksum(FILES)


def archive(path: Path, files: dict[str, bytes], top: str = "", mode: str = "w:gz") -> str:
    """Write an archive of files. Return its path."""
    with tarfile.open(path, mode) as pack:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{top}{name}")
            entry.size = len(content)
            pack.addfile(entry, io.BytesIO(content))
    return str(path)


def below(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files with their paths in the repository."""
    return {f"{PART}/{name}": content for name, content in files.items()}


def folder(path: Path, files: dict[str, bytes]) -> str:
    """Write the files into a folder. Return its path."""
    for name, content in below(files).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return str(path)


def sources(kind: str, tmp_path: Path) -> str:
    """Return the path of the sources in a form."""
    if kind == "folder":
        return folder(tmp_path / "given", FILES)
    if kind == "archive of GitHub":
        others = {"LICENSE": b"Apache", "scripts/other/file.py": b"1\n"}
        return archive(tmp_path / "a.tar.gz", {**below(FILES), **others}, "benchmarks-8fb7907/")
    return archive(tmp_path / "a.tar", below(FILES), mode="w")


@pytest.mark.parametrize("kind", ["folder", "archive of GitHub", "archive of the folder"])
def test_the_same_files_have_one_checksum_however_they_come(kind: str, tmp_path: Path) -> None:
    source, target = sources(kind, tmp_path), tmp_path / "staged"
    assert staging.stage(source, target, SHA256, staging.Limits()) is True
    assert {name: (target / PART / name).read_bytes() for name in FILES} == FILES
    assert json.loads((target / staging.MARKER).read_text())["source"] == source
    # Bytecode that Python writes does not count, and the source is not needed again.
    (target / PART / "__pycache__").mkdir()
    (target / PART / "__pycache__/x.pyc").write_bytes(b"1")
    assert staging.stage("/nowhere", target, SHA256, staging.Limits()) is False


@pytest.mark.parametrize(
    "change",
    [
        {"models/model.py": b"MODEL = 2\n"},
        {"more.py": b"import os\n"},
        {"README.md": None},
        {"models/model.py": None, "models/model2.py": b"MODEL = 1\n"},
    ],
    ids=["changed", "one more", "one less", "renamed"],
)
def test_other_files_are_refused_and_changed_files_are_staged_again(
    change: dict[str, bytes | None], tmp_path: Path
) -> None:
    others = {name: content for name, content in {**FILES, **change}.items() if content is not None}
    bad, target = folder(tmp_path / "bad", others), tmp_path / "staged"
    with pytest.raises(staging.StagingError, match=r"wrong checksum.*bench_tf_cnn_sha256"):
        staging.stage(bad, target, SHA256, staging.Limits())
    assert not target.exists()
    good = folder(tmp_path / "good", FILES)
    assert staging.stage(good, target, SHA256, staging.Limits()) is True
    for name in FILES:
        (target / PART / name).unlink()
    folder(target, others)
    assert staging.stage(good, target, SHA256, staging.Limits()) is True
    assert staging.checksum(staging.from_folder(target)) == SHA256


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("nowhere", "is not there"),
        ("text", "is not an archive that can be read"),
        ("empty", "holds no scripts/tf_cnn_benchmarks"),
        ("cut", "is not an archive that can be read"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(given: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / given
    if given == "text":
        path.write_text("404 not found")
    elif given == "empty":
        archive(path, {"scripts/keras/x.py": b"1"})
    elif given == "cut":
        archive(path, below({**FILES, "data": bytes(range(256)) * 4000}))
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(staging.StagingError, match=why):
        staging.stage(str(path), tmp_path / "staged", SHA256, staging.Limits())


def test_a_path_that_leads_out_of_the_folder_is_not_written(tmp_path: Path) -> None:
    hostile = {**below(FILES), f"{PART}/../../../escaped.py": b"1\n", "/etc/escaped": b"1\n"}
    source = archive(tmp_path / "a.tar.gz", hostile)
    assert staging.stage(source, tmp_path / "in/staged", SHA256, staging.Limits()) is True
    assert not list(tmp_path.rglob("escaped*"))


def test_the_pin_of_the_role_is_that_of_the_real_program(root: Path, tf_cnn_archive: Path) -> None:
    defaults = (root / "roles/bench/defaults/main.yml").read_text()
    assert staging.checksum(staging.obtain(str(tf_cnn_archive), staging.Limits())) in defaults
