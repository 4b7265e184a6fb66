"""Write a miniature of ImageNet's archives: the same layout, few and small images, all from one seed.

    python -m tests.workloads.imagenet_miniature FOLDER [--classes N] [--train N] [--val N] [--large]

The tests of staging use it in place of ImageNet, which is large and needs an account. This program writes the
three archives and pins.json, which ``stage_imagenet.py --pins`` reads.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import random
import struct
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
from PIL import Image
from scipy.io import savemat

NAMES = {
    "train": "ILSVRC2012_img_train.tar",
    "val": "ILSVRC2012_img_val.tar",
    "devkit": "ILSVRC2012_devkit_t12.tar.gz",
}
# The number at the start of each record of MXNet's RecordIO.
MAGIC = struct.pack("<I", 0xCED7230A)


def tar_of(members: Iterable[tuple[str, bytes]], mode: str = "w") -> bytes:
    """Return an archive of members, the same bytes for the same members."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode, format=tarfile.GNU_FORMAT) as tar:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def picture(chance: random.Random, large: bool, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    """Return an image file of a noisy gradient. A large one has about 110 kB, ImageNet's average."""
    width, height = chance.choice(
        [(500, 375), (375, 500), (640, 480)] if large else [(48, 40), (36, 52), (50, 50)]
    )
    noise = numpy.random.default_rng(chance.randrange(1 << 30)).integers(0, 90, (height, width, 3))
    ramp = numpy.linspace(0, 160, width)[None, :, None] + numpy.array(chance.sample(range(60), 3))
    image = Image.fromarray((noise + ramp).clip(0, 255).astype(numpy.uint8)).convert(mode)
    packed = io.BytesIO()
    image.save(packed, kind, **({"quality": 82 if large else 75} if kind == "JPEG" else {}))
    return packed.getvalue()


def with_magic(jpeg: bytes) -> bytes:
    """Return a JPEG with RecordIO's magic number in its comments, at every distance from a multiple of 4."""
    comments = b"".join(MAGIC + b"x" * count for count in (0, 1, 2, 3, 4, 0, 0, 5))
    return jpeg[:2] + b"\xff\xfe" + struct.pack(">H", 2 + len(comments)) + comments + jpeg[2:]


@dataclass
class Miniature:
    """The content of the archives. A test changes the content before it is written."""

    classes: int = 10
    train_each: int = 30
    val_count: int = 50
    large: bool = False
    seed: int = 7
    train: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    val: list[tuple[str, bytes]] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    truth: list[int] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        wnids = sorted(
            f"n{number:08d}" for number in chance.sample(range(1_440_764, 13_133_613), self.classes)
        )
        # As in the real kit, the numbers are not in the order of the names.
        numbers = chance.sample(range(1, self.classes + 1), self.classes)
        self.ids = dict(zip(wnids, numbers, strict=True))
        self.words = {wnid: f"thing {number}, Res exemplaris" for wnid, number in self.ids.items()}
        for wnid in wnids:
            names = [f"{wnid}_{one}.JPEG" for one in chance.sample(range(1, 30000), self.train_each)]
            self.train[wnid] = [(name, picture(chance, self.large)) for name in names]
        self.truth = [chance.randint(1, self.classes) for _ in range(self.val_count)]
        self.val = [
            (f"ILSVRC2012_val_{number:08d}.JPEG", picture(chance, self.large))
            for number in range(1, self.val_count + 1)
        ]
        # ImageNet has a PNG and CMYK images under the name JPEG, and grey images. RecordIO escapes its magic.
        first, second, *_ = wnids
        self.replace(first, 0, picture(chance, self.large, "PNG"))
        self.replace(first, 1, picture(chance, self.large, mode="CMYK"))
        self.replace(second, 0, picture(chance, self.large, mode="L"))
        self.replace(second, 1, with_magic(self.train[second][1][1]))
        self.val[3] = (self.val[3][0], picture(chance, self.large, mode="CMYK"))

    def replace(self, wnid: str, place: int, data: bytes) -> None:
        """Give a training image other content."""
        self.train[wnid][place] = (self.train[wnid][place][0], data)

    def devkit(self, compressed: bool = True) -> bytes:
        """Return the development kit, with classes above the others as the real one has them."""
        rows = [(number, wnid, self.words[wnid], 0) for wnid, number in self.ids.items()]
        rows += [(self.classes + 1 + one, f"n{one:08d}", f"kind {one}", 2) for one in range(3)]
        kinds: list[tuple[str, Any]] = [
            ("ILSVRC2012_ID", float), ("WNID", object), ("words", object), ("gloss", object),
            ("num_children", float), ("children", object), ("wordnet_height", float),
            ("num_train_images", float),
        ]  # fmt: skip
        synsets = numpy.zeros((len(rows), 1), dtype=[(name, object) for name, _ in kinds])
        for place, (number, wnid, words, children) in enumerate(sorted(rows)):
            below = numpy.arange(children, dtype=float)
            synsets[place, 0] = (
                float(number), wnid, words, f"a gloss \u2014 of {words}", float(children), below, 0.0, 30.0,
            )  # fmt: skip
        mat = io.BytesIO()
        savemat(mat, {"synsets": synsets}, do_compression=compressed)
        truth = "".join(f"{number}\n" for number in self.truth)
        top = "ILSVRC2012_devkit_t12"
        return tar_of(
            [
                (f"{top}/readme.txt", b"a miniature\n"),
                (f"{top}/data/meta.mat", mat.getvalue()),
                (f"{top}/data/ILSVRC2012_validation_ground_truth.txt", truth.encode()),
            ],
            "w:gz",
        )

    def archives(self) -> dict[str, bytes]:
        """Return the content of each archive. The training archive has an archive for each class."""
        return {
            "train": tar_of((f"{wnid}.tar", tar_of(images)) for wnid, images in self.train.items()),
            "val": tar_of(self.val),
            "devkit": self.devkit(),
        }

    def write(self, folder: Path, **instead: bytes) -> Path:
        """Write the archives and pins.json, some with other content. Return the path of the pins."""
        folder.mkdir(parents=True, exist_ok=True)
        pins: dict[str, Any] = {"name": "imagenet-miniature", "classes": self.classes, "archives": {}}
        objects = {"train": sum(map(len, self.train.values())), "val": len(self.val)}
        for part, data in {**self.archives(), **instead}.items():
            (folder / NAMES[part]).write_bytes(data)
            md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
            pins["archives"][part] = {"name": NAMES[part], "size_bytes": len(data), "md5": md5}
            if part in objects:
                pins["archives"][part]["objects"] = objects[part]
        (folder / "pins.json").write_text(json.dumps(pins))
        return folder / "pins.json"


def main() -> None:
    """Write a miniature by the command line."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--classes", type=int, default=10)
    arguments.add_argument("--train", type=int, default=30, help="images of each class")
    arguments.add_argument("--val", type=int, default=50)
    arguments.add_argument(
        "--large", action="store_true", help="images as large as ImageNet's are on average"
    )
    options = arguments.parse_args()
    made = Miniature(options.classes, options.train, options.val, options.large)
    print(made.write(options.folder))


if __name__ == "__main__":
    main()
