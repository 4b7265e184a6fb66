"""Write and read an OCI image layout, in which layers, configs and manifests are named by their digest.

build.py writes the images with it, and push.py reads them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Layer:
    """A layer that is stored in the layout."""

    digest: str
    """Digest of the compressed file."""
    size: int
    diff_id: str
    """Digest of the tar inside."""


def sha256(data: bytes) -> str:
    """Return a digest as OCI writes it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar_of(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """Return a tar of files (contents and mode by path). The same files always give the same bytes.

    A link has the contents ``-> target``. The path of an empty folder ends in a slash.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        folders: set[str] = set()
        for path, (data, mode) in sorted(files.items()):
            for parent in reversed(Path(path).parents):
                if str(parent) not in (".", *folders):
                    folders.add(str(parent))
                    folder = tarfile.TarInfo(str(parent))
                    folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(folder)
            if path.endswith("/"):
                data, mode = b"", 0o755
            info = tarfile.TarInfo(path.rstrip("/"))
            info.mode = mode
            if path.endswith("/"):
                info.type = tarfile.DIRTYPE
            if data.startswith(b"-> "):
                info.type, info.linkname = tarfile.SYMTYPE, data[3:].decode()
                archive.addfile(info)
            else:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


class Layout:
    """A folder with images in OCI's layout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = folder / "blobs/sha256"
        self.manifests: list[dict[str, Any]] = []

    def blob(self, data: bytes) -> tuple[str, int]:
        """Store some bytes. Return their digest and size."""
        digest = sha256(data)
        path = self.path(digest)
        if not path.is_file():
            self.blobs.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".draft")
            draft.write_bytes(data)
            draft.replace(path)
        return digest, len(data)

    def path(self, digest: str) -> Path:
        """Return the path of a blob."""
        return self.blobs / digest.removeprefix("sha256:")

    def layer(self, tar: bytes) -> Layer:
        """Store a tar as a layer."""
        digest, size = self.blob(gzip.compress(tar, 6, mtime=0))
        return Layer(digest, size, sha256(tar))

    def image(
        self, name: str, layers: list[Layer], config: Mapping[str, Any], architecture: str = "amd64"
    ) -> str:
        """Add an image, and return the digest of its manifest."""
        body = {
            "created": "1970-01-01T00:00:00Z",
            "architecture": architecture,
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [one.diff_id for one in layers]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "build.py"} for _one in layers],
        }
        digest, size = self.blob(json.dumps(body, sort_keys=True).encode())
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": digest, "size": size},
            "layers": [{"mediaType": LAYER, "digest": one.digest, "size": one.size} for one in layers],
        }
        digest, size = self.blob(json.dumps(manifest, sort_keys=True).encode())
        self.manifests.append(
            {"mediaType": MANIFEST, "digest": digest, "size": size, "annotations": {NAME: name}}
        )
        return digest

    def close(self) -> None:
        """Write the index, and remove the blobs that none of its images uses."""
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}\n')
        draft = self.folder / "index.draft"
        draft.write_text(json.dumps({"schemaVersion": 2, "manifests": self.manifests}, indent=1) + "\n")
        draft.replace(self.folder / "index.json")
        used = {one["digest"] for one in self.manifests}
        for digest in list(used):
            manifest = json.loads(self.path(digest).read_text())
            used |= {manifest["config"]["digest"], *(one["digest"] for one in manifest["layers"])}
        for path in self.blobs.iterdir():
            if f"sha256:{path.name}" not in used:
                path.unlink()


def read_index(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the manifests of a layout by image name."""
    index = folder / "index.json"
    if not index.is_file():
        return {}
    return {one["annotations"][NAME]: one for one in json.loads(index.read_text())["manifests"]}
