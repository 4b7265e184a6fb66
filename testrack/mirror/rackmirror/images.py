"""Write the container images that the mirror (build.py) serves in addition to packages."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

from rackmirror.packages import EPOCH

APPLETS = ("cat", "ls", "sh")


class ImageError(Exception):
    """An image that cannot be made. The message names the missing part."""


def shell(pool: Path, folder: Path) -> Path:
    """Write gpu-check.tar, an image with only a shell, and its checksum. Return the file.

    Args:
        pool: Folder with the distribution's busybox-static, which needs no library.
        folder: The folder for the image and its SHA256SUMS.
    """
    found = sorted(pool.glob("busybox-static_*.deb"))
    if not found:
        raise ImageError(f"{pool} has no busybox-static: add it to debian-packages.txt")
    done = subprocess.run(["dpkg-deb", "--fsys-tarfile", found[-1]], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as package:
        member = next(one for one in package if one.name.endswith("bin/busybox"))
        stream = package.extractfile(member)
        busybox = stream.read() if stream else b""
    folder.mkdir(parents=True, exist_ok=True)
    image = folder / "gpu-check.tar"
    with tarfile.open(image, "w", format=tarfile.GNU_FORMAT) as tar:
        for name in ("bin", "etc", "tmp", "usr", "usr/bin"):
            _add(tar, name, tarfile.DIRTYPE, 0o755)
        _add(tar, "bin/busybox", tarfile.REGTYPE, 0o755, busybox)
        for applet in APPLETS:
            _add(tar, f"bin/{applet}", tarfile.SYMTYPE, 0o777, link="busybox")
        _add(tar, "etc/passwd", tarfile.REGTYPE, 0o644, b"root:x:0:0:root:/:/bin/sh\n")
    digest = hashlib.sha256(image.read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  {image.name}\n")
    return image


def _add(tar: tarfile.TarFile, name: str, kind: bytes, mode: int, data: bytes = b"", link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime, info.size, info.linkname = kind, mode, EPOCH, len(data), link
    info.uname = info.gname = "root"
    tar.addfile(info, io.BytesIO(data) if data else None)
