"""Read ImageNet's official archives (ILSVRC2012).

stage_imagenet.py calls :func:`scan` for each archive, and :func:`join` for the checksums, the place of each
image, and the labels. An archive is read once from beginning to end. The same pass computes its MD5 sum and
lists its images. Nothing is unpacked, because an image can be read at its place in the archive
(:func:`read_at`). The module needs only the standard library of Python 3.8 or newer.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
import tarfile
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bounded_tar import Member, members

CHUNK = 1 << 20
MOST_DEVKIT_BYTES = 16 << 20
"""Largest number of bytes to read of a file of the development kit. The real ones have less than 1 MB."""
MOST_UNPACKED_DEVKIT_BYTES = 256 << 20
TAR_BUFFER = 1 << 16
"""Number of bytes that tarfile reads at once. It copies the rest at each header, so a larger number is
slower."""

PINS: dict[str, Any] = {
    "name": "imagenet-2012",
    "classes": 1000,
    "archives": {
        "train": {
            "name": "ILSVRC2012_img_train.tar",
            "size_bytes": 147897477120,
            "md5": "1d675b47d978889d74fa0da5fadfb00e",
            "objects": 1281167,
        },
        "val": {
            "name": "ILSVRC2012_img_val.tar",
            "size_bytes": 6744924160,
            "md5": "29b22e2961454d5413ddabcf34fc5622",
            "objects": 50000,
        },
        "devkit": {
            "name": "ILSVRC2012_devkit_t12.tar.gz",
            "about_bytes": 2600000,
            "md5": "fa75699e90414af021442c21a62c3abf",
        },
    },
}
"""The expected sizes and digests of the archives. ``--pins FILE`` replaces it. The MD5 sums are
torchvision's (imagenet.py).

There is no reliable source for the size of the development kit, so only its MD5 sum is compared.
"""

PARTS = ("train", "val")
_NO_SECURITY: dict[str, Any] = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}
_CLASS = re.compile(r"n\d{8}")
_CLASS_ARCHIVE = re.compile(r"(n\d{8})\.tar")
_TRAIN_IMAGE = re.compile(r"(n\d{8})_\d+\.JPEG")
_VAL_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
_META = "data/meta.mat"
_TRUTH = "data/ILSVRC2012_validation_ground_truth.txt"


class StagingError(Exception):
    """A reason why data cannot be staged. The text gives the reason and the remedy."""


class Images:
    """The images of a part, ordered by class and name, as arrays that forked processes share.

    ``label`` numbers the classes from 0 in the order of their names. ``offset`` and ``size`` are in
    bytes.
    """

    def __init__(self) -> None:
        self.label = array("H")
        self.offset = array("Q")
        self.size = array("I")
        self._names = bytearray()
        self._name_at = array("I", [0])

    def __len__(self) -> int:
        return len(self.label)

    def add(self, label: int, name: str, offset: int, size: int) -> None:
        """Append an image."""
        self.label.append(label)
        self.offset.append(offset)
        self.size.append(size)
        self._names += name.encode("ascii")
        self._name_at.append(len(self._names))

    def name(self, number: int) -> str:
        """Return the file name of an image, as in ``n01440764_10026.JPEG``."""
        return self._names[self._name_at[number] : self._name_at[number + 1]].decode("ascii")

    def lines(self) -> Iterator[str]:
        """Yield one line for each image, as ``read_lines`` takes them."""
        for number in range(len(self)):
            yield (f"{self.label[number]}\t{self.name(number)}\t{self.offset[number]}\t{self.size[number]}\n")

    @classmethod
    def read_lines(cls, lines: Iterator[str], count: int) -> Images:
        """Return the images of a number of lines.

        Raises:
            ValueError: A line is missing, or does not describe an image.
        """
        found = cls()
        for _ in range(count):
            label, name, offset, size = next(lines, "").rstrip("\n").split("\t")
            found.add(int(label), name, int(offset), int(size))
        return found


# The present archives


def in_words(size_bytes: int) -> str:
    """Return a size for an operator, as in ``147.9 GB``."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} bytes"


def require_archives(folder: Path, pins: dict[str, Any]) -> dict[str, Path]:
    """Return the path of each archive. Only sizes are read.

    Raises:
        StagingError: An archive is missing, or of another size.
    """
    paths = {part: folder / pin["name"] for part, pin in pins["archives"].items()}
    missing = [
        f"{pin['name']} ({in_words(pin.get('size_bytes') or pin['about_bytes'])})"
        for part, pin in pins["archives"].items()
        if not paths[part].is_file()
    ]
    if missing:
        raise StagingError(
            f"{folder} lacks {', '.join(missing)}: get them with an account of image-net.org "
            "(https://image-net.org/download-images, ILSVRC2012) and put them there, or name another folder "
            "(--archives, bench_imagenet_archives)"
        )
    for part, path in paths.items():
        have = path.stat().st_size
        wanted = pins["archives"][part].get("size_bytes", have)
        if have != wanted:
            how = "is cut off" if have < wanted else "is too long"
            raise StagingError(f"{path} {how}: {have:,} bytes in the place of {wanted:,}; fetch it again")
    return paths


def identity_of(path: Path) -> list[int]:
    """Return values that change if a file is replaced or written.

    The values are the size, the modification time in ns, and the inode.
    """
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ino]


# One pass over an archive


class HashingReader:
    """A binary stream that hashes the bytes read through it."""

    def __init__(self, stream: BinaryIO, report: Callable[[int], None]) -> None:
        self.stream, self.report = stream, report
        # Python 3.8 lacks the argument. MD5 is the kind of checksum that was published.
        self.md5 = hashlib.md5(**_NO_SECURITY)  # noqa: S324  # nosec B324

    def read(self, size: int = -1) -> bytes:
        """Read and hash."""
        data = self.stream.read(size)
        self.md5.update(data)
        self.report(len(data))
        return data

    def drain(self) -> str:
        """Read the rest, and return the MD5 sum of all bytes."""
        while self.read(CHUNK):
            pass
        return self.md5.hexdigest()


def check_name(name: str, pattern: re.Pattern[str], archive: str, what: str) -> re.Match[str]:
    """Return the match of a member's name.

    Raises:
        StagingError: The name leads out of its folder, or does not match the pattern.
    """
    plain = name[2:] if name.startswith("./") else name
    if plain.startswith("/") or ".." in plain.split("/"):
        raise StagingError(
            f"{archive} holds {name!r}, which leads outside its folder; do not use this archive"
        )
    found = pattern.fullmatch(plain)
    if found is None:
        raise StagingError(f"{archive} holds {name!r}, which is {what}; do not use this archive")
    return found


def images_of_class(tar: tarfile.TarFile, start: int, wnid: str, archive: str) -> list[tuple[str, int, int]]:
    """Return name, offset and size of each image of a class, in order of names.

    Args:
        tar: The class's archive as a stream.
        start: Its offset in the outer archive.
        wnid: The name of the class.
        archive: The archive's name for messages.
    """
    found: dict[str, tuple[int, int]] = {}
    for member in tar:
        if member.isdir():
            continue
        match = check_name(member.name, _TRAIN_IMAGE, archive, "no image of ImageNet")
        if not member.isreg() or match[1] != wnid:
            raise StagingError(f"{archive} holds {member.name!r}, which is not an image of its class {wnid}")
        if match[0] in found:
            raise StagingError(f"{archive} holds {match[0]} twice; do not use this archive")
        found[match[0]] = (start + member.offset_data, member.size)
    return [(name, *found[name]) for name in sorted(found)]


def scan_train(stream: Any, archive: str) -> dict[str, list[tuple[str, int, int]]]:
    """Return the images of each class. The archive contains an archive for each class."""
    classes: dict[str, list[tuple[str, int, int]]] = {}
    with tarfile.open(fileobj=stream, mode="r|", bufsize=TAR_BUFFER, tarinfo=Member) as outer:
        for member in outer:
            match = check_name(member.name, _CLASS_ARCHIVE, archive, "no archive of a class (nNNNNNNNN.tar)")
            inner = outer.extractfile(member) if member.isreg() else None
            if inner is None or match[1] in classes:
                raise StagingError(
                    f"{archive} holds {match[0]} twice, or not as a file; do not use this archive"
                )
            with tarfile.open(fileobj=inner, mode="r|", bufsize=TAR_BUFFER, tarinfo=Member) as tar:
                classes[match[1]] = images_of_class(
                    tar, member.offset_data, match[1], f"{archive}, {member.name}"
                )
    return classes


def scan_val(stream: Any, archive: str) -> dict[int, tuple[str, int, int]]:
    """Return name, offset and size of each validation image by its number."""
    found: dict[int, tuple[str, int, int]] = {}
    with tarfile.open(fileobj=stream, mode="r|", bufsize=TAR_BUFFER, tarinfo=Member) as tar:
        for member in tar:
            if member.isdir():
                continue
            match = check_name(member.name, _VAL_IMAGE, archive, "no validation image")
            if not member.isreg() or int(match[1]) in found:
                raise StagingError(
                    f"{archive} holds {match[0]} twice, or not as a file; do not use this archive"
                )
            found[int(match[1])] = (match[0], member.offset_data, member.size)
    return found


def read_devkit(stream: Any, archive: str) -> tuple[dict[str, str], list[str]]:
    """Return the words of each class by its name, and the class of each validation image in order."""
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=stream, mode="r|gz", tarinfo=Member) as tar:
        for member in members(tar, MOST_UNPACKED_DEVKIT_BYTES):
            for name in (_META, _TRUTH):
                if member.name.endswith(f"/{name}") and ".." not in member.name.split("/"):
                    held = tar.extractfile(member)
                    files[name] = held.read(MOST_DEVKIT_BYTES) if held else b""
    lacking = [name for name in (_META, _TRUTH) if name not in files]
    if lacking:
        raise StagingError(f"{archive} holds no {lacking[0]}; do not use this archive")
    synsets = leaves(files[_META], archive)
    try:
        truth = [synsets[int(line)][0] for line in files[_TRUTH].split()]
    except (ValueError, KeyError) as error:
        raise StagingError(f"{archive}: {_TRUTH} names a class that {_META} lacks: {error}") from error
    return dict(synsets.values()), truth


def scan(part: str, path: Path, md5: str, report: Callable[[int], None]) -> Any:
    """Read an archive once, and return its contents.

    Args:
        part: ``train``, ``val`` or ``devkit``.
        path: The path of the archive.
        md5: The required MD5 sum.
        report: A function that is called with each number of bytes that were read.

    Raises:
        StagingError: The archive is a different one, or contains an unexpected file.
    """
    found: Any = None
    problem: StagingError | None = None
    with path.open("rb", buffering=0) as stream:
        reader = HashingReader(stream, report)
        try:
            found = {"train": scan_train, "val": scan_val, "devkit": read_devkit}[part](reader, path.name)
        except StagingError as error:
            problem = error
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise StagingError(f"{path} cannot be read: {error.strerror}") from error
            problem = StagingError(f"{path} is not a whole archive ({error}); fetch it again")
        # A wrong checksum explains all other differences, so it is reported.
        got = reader.drain()
    if got != md5:
        raise StagingError(f"{path}: wrong MD5 sum: expected {md5}, got {got}; fetch it again")
    if problem is not None:
        raise problem
    return found


def join(
    train: dict[str, list[tuple[str, int, int]]],
    val: dict[int, tuple[str, int, int]],
    devkit: tuple[dict[str, str], list[str]],
    pins: dict[str, Any],
) -> tuple[list[tuple[str, str]], dict[str, Images]]:
    """Return the classes, and the images of both parts with their labels.

    A class is a name and words. Classes are in the order of names.

    Raises:
        StagingError: The archives do not belong together.
    """
    words, truth = devkit
    classes = sorted(words)
    check_classes(classes, train, pins)
    if sorted(val) != list(range(1, len(truth) + 1)):
        raise StagingError(
            f"{pins['archives']['val']['name']} holds {len(val)} images, and the development kit has labels "
            f"of images 1 to {len(truth)}"
        )
    images = {"train": train_images(classes, train), "val": val_images(classes, val, truth)}
    for part in PARTS:
        wanted = pins["archives"][part]["objects"]
        if len(images[part]) != wanted:
            raise StagingError(
                f"{pins['archives'][part]['name']} holds {len(images[part]):,} images in the place of "
                f"{wanted:,}"
            )
    return [(wnid, words[wnid]) for wnid in classes], images


def check_classes(
    classes: list[str], train: dict[str, list[tuple[str, int, int]]], pins: dict[str, Any]
) -> None:
    """Check that the training images have the classes of the development kit.

    Raises:
        StagingError: The classes differ, or the development kit has too few or too many.
    """
    if len(classes) != pins["classes"]:
        raise StagingError(
            f"the development kit has {len(classes)} classes in the place of {pins['classes']}"
        )
    missing = [wnid for wnid in classes if not train.get(wnid)]
    strange = sorted(set(train) - set(classes))
    if missing or strange:
        what = f"lacks class {missing[0]}" if missing else f"has class {strange[0]}, which the kit lacks"
        count = len(missing or strange)
        raise StagingError(
            f"{pins['archives']['train']['name']} {what}" + (f" (and {count - 1} more)" if count > 1 else "")
        )


def train_images(classes: list[str], train: dict[str, list[tuple[str, int, int]]]) -> Images:
    """Return the training images, class by class."""
    images = Images()
    for label, wnid in enumerate(classes):
        for name, offset, size in train[wnid]:
            images.add(label, name, offset, size)
    return images


def val_images(classes: list[str], val: dict[int, tuple[str, int, int]], truth: list[str]) -> Images:
    """Return the validation images, class by class, by the class that the development kit states for each."""
    images = Images()
    by_class: dict[str, list[int]] = {wnid: [] for wnid in classes}
    for number, wnid in enumerate(truth, 1):
        by_class[wnid].append(number)
    for label, wnid in enumerate(classes):
        for number in by_class[wnid]:
            images.add(label, *val[number])
    return images


# MATLAB's file of the classes. Its labels are numbers, which are not in the order of names.

_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_COMPRESSED, _MATRIX = 15, 14
_CELL, _STRUCT, _CHARS = 1, 2, 4


def mat_elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of each element of a MAT-file of version 5."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:
            yield kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)]
            at += 8
            continue
        content = data[at + 8 : at + 8 + size]
        if len(content) != size:
            raise ValueError("it is cut off")
        at += 8 + size + (0 if kind == _COMPRESSED else -size % 8)
        if kind == _COMPRESSED:
            unpacker = zlib.decompressobj()
            content = unpacker.decompress(content, MOST_DEVKIT_BYTES)
            if not unpacker.eof:
                raise zlib.error("an element is too large, or cut off")
            yield from mat_elements(content)
        else:
            yield kind, content


def mat_value(kind: int, content: bytes) -> Any:
    """Return the value of an element, which is text, a list of numbers, or a list of values or structures."""
    if kind != _MATRIX:
        return list(
            struct.unpack(f"<{len(content) // struct.calcsize(_NUMBERS[kind])}{_NUMBERS[kind]}", content)
        )
    if not content:
        return []
    (_, flags), _dims, _name, *rest = mat_elements(content)
    shape = flags[0]
    if shape == _STRUCT:
        length = struct.unpack("<i", rest[0][1])[0]
        names = [
            rest[1][1][at : at + length].rstrip(b"\0").decode("ascii")
            for at in range(0, len(rest[1][1]), length)
        ]
        values = [mat_value(*one) for one in rest[2:]]
        count = len(names)
        return [
            {name: values[at + place] for place, name in enumerate(names)}
            for at in range(0, len(values), count)
        ]
    if shape == _CELL:
        return [mat_value(*one) for one in rest]
    if shape == _CHARS:
        encodings = {4: "utf-16-le", 17: "utf-16-le", 18: "utf-32-le"}
        return rest[0][1].decode(encodings.get(rest[0][0], "utf-8")) if rest else ""
    return mat_value(*rest[0]) if rest else []


def leaves(data: bytes, archive: str) -> dict[int, tuple[str, str]]:
    """Return name and words of each class by its number in the kit. Classes above others are left out.

    Raises:
        StagingError: The file is not the development kit's.
    """
    if data[126:128] != b"IM":
        raise StagingError(f"{archive}: {_META} is not a MAT-file of version 5, little endian")
    try:
        synsets = [value for kind, content in mat_elements(data[128:]) for value in mat_value(kind, content)]
        found = {
            int(one["ILSVRC2012_ID"][0]): (str(one["WNID"]), str(one["words"]))
            for one in synsets
            if int(one["num_children"][0]) == 0
        }
    except (ValueError, KeyError, IndexError, TypeError, struct.error, zlib.error) as error:
        raise StagingError(f"{archive}: {_META} cannot be read: {error}") from error
    if not all(_CLASS.fullmatch(wnid) for wnid, _ in found.values()):
        raise StagingError(f"{archive}: the classes of {_META} have other names than nNNNNNNNN")
    return found


def read_at(descriptor: int, offset: int, size: int, name: str) -> bytes:
    """Return an image out of an archive.

    Raises:
        StagingError: The archive became shorter.
    """
    data = os.pread(descriptor, size, offset)
    if len(data) != size:
        raise StagingError(
            f"{name} is no longer whole in its archive: the archive changed while it was staged"
        )
    return data
