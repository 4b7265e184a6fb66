"""What a ready image is, block by block, so that a node can check what it writes before it writes it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rackproof.records import Record

BLOCK_BYTES = 4 * 2**20
"""As in the program that writes (roles/netboot/files/rackproof-write-image)."""
NOTHING = "0"
"""In the place of a digest: a block of zeros, which nobody has to fetch."""


class ImageDescription(Record):
    """An image: its size in bytes, the digest of the whole, and of each block of ``block`` bytes."""

    name: str
    bytes: int
    block: int = BLOCK_BYTES
    sha256: str
    blocks: tuple[str, ...]

    @property
    def fetched_bytes(self) -> int:
        """Return how much of it goes over the network."""
        last = self.bytes - (len(self.blocks) - 1) * self.block
        return sum(
            (last if number == len(self.blocks) - 1 else self.block)
            for number, digest in enumerate(self.blocks)
            if digest != NOTHING
        )


def describe(path: Path) -> ImageDescription:
    """Return what an image is.

    Args:
        path: A raw image of a disk, as it is to be written.

    Raises:
        OSError: It cannot be read.
        ValueError: It is empty, or packed.
    """
    whole, size = hashlib.sha256(), 0
    blocks: list[str] = []
    with open(path, "rb") as stream:
        while data := stream.read(BLOCK_BYTES):
            if not blocks and data.startswith((b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"QFI\xfb")):
                raise ValueError(
                    f"{path} is packed, or a qcow2: what is written to a disk is raw; unpack it first"
                )
            whole.update(data)
            size += len(data)
            blocks.append(hashlib.sha256(data).hexdigest() if data.strip(b"\0") else NOTHING)
    if not size:
        raise ValueError(f"{path} is empty")
    return ImageDescription(name=path.name, bytes=size, sha256=whole.hexdigest(), blocks=tuple(blocks))
