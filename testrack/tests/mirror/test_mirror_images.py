"""Test the container image with which role nvidia_container checks the NVIDIA Container Toolkit.

The test rack's mirror serves this image, which has only a shell.
"""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from pathlib import Path

import pytest
from rackmirror import images


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Return a folder with the package of busybox."""
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "bin").mkdir()
    (tree / "bin" / "busybox").write_bytes(b"program")
    (tree / "DEBIAN" / "control").write_text(
        "Package: busybox-static\nVersion: 1\nArchitecture: all\n"
        "Maintainer: x <x@x.invalid>\nDescription: x\n"
    )
    folder = tmp_path / "pool"
    folder.mkdir()
    subprocess.run(
        ["dpkg-deb", "--build", tree, folder / "busybox-static_1_all.deb"], check=True, capture_output=True
    )
    return folder


def test_the_image_has_a_shell_and_a_sum(pool: Path, tmp_path: Path) -> None:
    image = images.shell(pool, tmp_path / "images")
    with tarfile.open(image) as tar:
        busybox = tar.extractfile("bin/busybox")
        assert busybox is not None
        assert busybox.read() == b"program"
        assert tar.getmember("bin/busybox").mode == 0o755
        assert tar.getmember("bin/sh").linkname == "busybox"
    digest = hashlib.sha256(image.read_bytes()).hexdigest()
    assert (image.parent / "SHA256SUMS").read_text() == f"{digest}  gpu-check.tar\n"


def test_the_same_package_gives_the_same_bytes(pool: Path, tmp_path: Path) -> None:
    one, other = images.shell(pool, tmp_path / "one"), images.shell(pool, tmp_path / "other")
    assert one.read_bytes() == other.read_bytes()


def test_a_pool_without_the_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(images.ImageError, match=r"busybox-static.*debian-packages\.txt"):
        images.shell(tmp_path, tmp_path / "images")
