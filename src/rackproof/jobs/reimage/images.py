"""Describe a prepared image block by block, so that a node can check each block before it writes it.

``rackproof reimage image`` writes the description that :func:`describe_image` returns as JSON::

    {"name": "disk.raw", "bytes": 8589934592, "block": 4194304, "sha256": "9f86...",
     "root": {"begin": 537919488, "bytes": 8050966528}, "blocks": ["2c26...", "0", "fcde..."]}
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from uuid import UUID

from rackproof.core.records import Record

BLOCK_BYTES = 4 * 2**20
"""Size of a block, as in the program that writes it (roles/netboot/files/rackproof-write-image)."""
ZERO_BLOCK = "0"
"""Text in place of the digest of a block of zeros, which need not be downloaded."""


SECTOR_BYTES = 512
"""Size of a sector, the unit of positions in a partition table."""
LINUX = frozenset(
    {
        UUID("0fc63daf-8483-4772-8e79-3d69d8477de4"),
        # The types of root file systems for x86-64 and for arm64.
        UUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709"),
        UUID("b921b045-1df0-41c3-af44-4c6f280d3fae"),
    }
)
"""Types of a partition that may have the root file system. The first is any Linux file system."""


class Partition(Record):
    """The position of a partition in an image, in bytes."""

    begin: int
    bytes: int


class ImageDescription(Record):
    """The description of an image: its size, its digest, and the digest of each block of ``block`` bytes.

    ``root`` is the partition with the root file system, or None if no partition table lists it.
    """

    name: str
    bytes: int
    block: int = BLOCK_BYTES
    sha256: str
    root: Partition | None = None
    blocks: tuple[str, ...]

    @property
    def fetched_bytes(self) -> int:
        """Return the number of bytes that are transferred over the network."""
        last = self.bytes - (len(self.blocks) - 1) * self.block
        return sum(
            (last if number == len(self.blocks) - 1 else self.block)
            for number, digest in enumerate(self.blocks)
            if digest != ZERO_BLOCK
        )


def find_root_partition(start: bytes) -> Partition | None:
    """Return the largest partition of a type in :data:`LINUX`, or None if there is none.

    Args:
        start: The first bytes of the disk, with its GPT (the partition table of UEFI) behind one sector.
    """
    header = start[SECTOR_BYTES : 2 * SECTOR_BYTES]
    if len(header) < SECTOR_BYTES or not header.startswith(b"EFI PART"):
        return None
    # The header holds the block of the first entry, the number of entries, and the size of an entry.
    table_sector, count, size = struct.unpack_from("<QII", header, 72)
    partitions = []
    # Disks list 128 entries. The number comes from the image, and must not make the loop long.
    for number in range(min(count, 1024)):
        entry = start[table_sector * SECTOR_BYTES + number * size :][:size]
        if size < 48 or len(entry) < size:
            break
        first_sector, last_sector = struct.unpack_from("<QQ", entry, 32)
        # GPT stores the first three fields of a GUID in little-endian order.
        if UUID(bytes_le=entry[:16]) in LINUX and 0 < first_sector <= last_sector:
            partitions.append(
                Partition(
                    begin=first_sector * SECTOR_BYTES, bytes=(last_sector - first_sector + 1) * SECTOR_BYTES
                )
            )
    # In addition to the root file system, an image may contain a small partition of its type for /boot.
    return max(partitions, key=lambda partition: partition.bytes, default=None)


def describe_image(path: Path) -> ImageDescription:
    """Return the description of an image.

    Args:
        path: The path of a raw disk image, in the form in which it will be written.

    Raises:
        OSError: The image cannot be read.
        ValueError: The image is empty, compressed, or a qcow2.
    """
    image_digest, size = hashlib.sha256(), 0
    blocks: list[str] = []
    root: Partition | None = None
    with open(path, "rb") as stream:
        while data := stream.read(BLOCK_BYTES):
            # The first bytes of gzip, xz, Zstandard and qcow2.
            if not blocks and data.startswith((b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"QFI\xfb")):
                raise ValueError(f"{path} is packed, or a qcow2: a disk needs a raw image; unpack it first")
            if not blocks:
                root = find_root_partition(data)
            image_digest.update(data)
            size += len(data)
            blocks.append(hashlib.sha256(data).hexdigest() if data.strip(b"\0") else ZERO_BLOCK)
    if not size:
        raise ValueError(f"{path} is empty")
    return ImageDescription(
        name=path.name, bytes=size, sha256=image_digest.hexdigest(), root=root, blocks=tuple(blocks)
    )
