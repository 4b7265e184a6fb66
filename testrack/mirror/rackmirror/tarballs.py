"""Make fake tarballs of MLNX_OFED for build.py, with a fake installer and fake packages."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from .packages import EPOCH


@dataclass(frozen=True)
class Tarball:
    """One tarball of MLNX_OFED. ``systems`` are those on which its installer runs, as ID and version."""

    version: str
    platform: str
    systems: tuple[str, ...]

    @property
    def repository(self) -> str:
        """Return the repository that packages.toml names for the tarball's packages."""
        return f"mlnx-{self.version}"

    def name(self, machine: str) -> str:
        """Return the name of the folder in the tarball, which is the file's name without .tgz."""
        return f"MLNX_OFED_LINUX-{self.version}-{self.platform}-{machine}"


def read(path: Path) -> list[Tarball]:
    """Read ofed.toml."""
    return [
        Tarball(entry["version"], entry["platform"], tuple(entry["systems"]))
        for entry in tomllib.loads(path.read_text())["tarball"]
    ]


def make(tarball: Tarball, machine: str, installer: Path, packages: list[Path], folder: Path) -> None:
    """Write the tarball into the vendor's subfolder of folder and into folder, with checksums in both."""
    name = tarball.name(machine)
    script = installer.read_text()
    words = {
        "@OFED_VERSION@": tarball.version,
        "@PLATFORM@": tarball.platform,
        "@SYSTEMS@": "\n".join(tarball.systems),
        "@GENERATED@": "no",
    }
    for word, value in words.items():
        script = script.replace(word, value)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        _add(tar, name, None)
        _add(tar, f"{name}/mlnxofedinstall", script.encode(), 0o755)
        _add(tar, f"{name}/distro", f"{tarball.platform}\n".encode())
        _add(tar, f"{name}/DEBS", None)
        for package in sorted(packages):
            _add(tar, f"{name}/DEBS/{package.name}", package.read_bytes())
    data = gzip.compress(buffer.getvalue(), mtime=0)
    place = folder / "MLNX_OFED" / f"MLNX_OFED-{tarball.version}"
    place.mkdir(parents=True, exist_ok=True)
    vendors = place / f"{name}.tgz"
    vendors.write_bytes(data)
    (folder / vendors.name).hardlink_to(vendors)
    (place / f"{name}.tgz.md5").write_text(
        f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}  {name}.tgz\n"
    )
    (place / f"{name}.tgz.sha256").write_text(f"{hashlib.sha256(data).hexdigest()}  {name}.tgz\n")
    with (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{hashlib.sha256(data).hexdigest()}  {name}.tgz\n")


def _add(tar: tarfile.TarFile, name: str, data: bytes | None, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.mtime = EPOCH
    info.uname = info.gname = "root"
    if data is None:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
    else:
        info.size, info.mode = len(data), mode
        tar.addfile(info, io.BytesIO(data))
