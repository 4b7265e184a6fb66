"""Test playbooks/stage-imagenet.yml on this machine, with a miniature of ImageNet's archives.

The playbook unpacks the archives on each node, and converts the images to the formats that trainings read.
The tests show that a missing archive is named before anything is written, that a second run changes nothing,
and that the playbook refuses to run without a limit, or with a misspelt variable.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workloads.imagenet_miniature import NAMES, Miniature

pytestmark = pytest.mark.playbook


def play(root: Path, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the playbook. Return its status and output."""
    # Without TFRecords, no runtime is needed, only the node's own Python.
    given = {
        "bench_home": str(folder / "home"),
        "bench_imagenet_archives": str(folder / "archives"),
        "bench_imagenet_pins": str(folder / "archives/pins.json"),
        "bench_imagenet_formats": ["images", "recordio"],
    }
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/stage-imagenet.yml"]
    done = subprocess.run(
        [*command, "-e", json.dumps(given), *arguments],
        cwd=root,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_imagenet_is_staged_once_and_a_missing_archive_is_named(root: Path, tmp_path: Path) -> None:
    Miniature(classes=4, train_each=6, val_count=8).write(tmp_path / "archives")
    val = tmp_path / "archives" / NAMES["val"]
    val.rename(tmp_path / "val.tar")
    status, output = play(root, tmp_path, "-l", "localhost")
    assert status != 0
    said = " ".join(output.split())
    assert "localhost: ImageNet is not staged: error:" in said
    assert "lacks ILSVRC2012_img_val.tar" in said
    staged = tmp_path / "home/data/imagenet"
    assert not staged.exists()

    (tmp_path / "val.tar").rename(val)
    status, output = play(root, tmp_path, "-l", "localhost")
    assert status == 0, output
    assert "ended with exit status 0" in output
    assert "changed=1 " in output.rpartition("localhost")[2], "the staging, and nothing else"
    # There are four classes of six images, and eight images for validation.
    assert len(list((staged / "images").rglob("*.JPEG"))) == 32
    assert json.loads((staged / "recordio/dataset.json").read_text())["objects"] == 32
    assert not (staged / "tfrecord").exists()

    status, output = play(root, tmp_path, "-l", "localhost")
    assert status == 0, output
    assert "changed=0 " in output.rpartition("localhost")[2]


def test_no_host_is_staged_on_by_accident_and_a_misspelt_variable_is_named(
    root: Path, tmp_path: Path
) -> None:
    status, output = play(root, tmp_path)
    assert status != 0
    assert "Name the hosts to stage ImageNet on" in " ".join(output.split())
    status, output = play(root, tmp_path, "-l", "localhost", "-e", "bench_imagenet_format=recordio")
    assert status != 0
    assert re.search(r"bench_imagenet_format\b", output)
    assert not (tmp_path / "home").exists()


def test_in_check_mode_nothing_is_made(root: Path, tmp_path: Path) -> None:
    Miniature(classes=4, train_each=6, val_count=8).write(tmp_path / "archives")
    status, output = play(root, tmp_path, "-l", "localhost", "--check")
    assert status == 0, output
    assert not (tmp_path / "home").exists()
