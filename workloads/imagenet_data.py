"""Read images in folders like ImageNet's, which are DATA/train/CLASS/FILE and DATA/val/CLASS/FILE.

imagenet_torch.py checks a folder with :func:`check`, and reads its images through :class:`Images`.
torchvision or Pillow decodes JPEG and PNG, whichever is installed. Neither is needed if every image is PPM.
The first part of this file uses only the standard library, for the supervisor.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import common
from common import Refusal

SUFFIXES = (".jpeg", ".jpg", ".png", ".ppm")
_PPM = re.compile(rb"P6\s+(?:#[^\n]*\s+)*(\d+)\s+(\d+)\s+(\d+)\s")
_RESIZE = 256 / 224
"""The shorter side of a resized validation image, as a multiple of the crop from its middle."""


class BadImage(Exception):  # noqa: N818  (reads as what it is)
    """An image that cannot be read.

    The last line of the text contains the image's path, even if a worker found it.
    """


class Listing(NamedTuple):
    """The images of a data set, with the file and class of each.

    ``described`` is the name, source, number, size and digest of the whole data set.
    """

    classes: tuple[str, ...]
    train: list[tuple[str, int]]
    val: list[tuple[str, int]]
    described: dict[str, Any]


def scan(folder: Path, wanted: str = "") -> Listing:
    """List the images in a folder, in order of names.

    ``dataset.json`` states the number of objects and their size, if it exists. On some storage, a stat of a
    million objects takes an hour. Without that file, images are counted. With it, the number of listed images
    must be the stated one, because a part of the data set would otherwise count as the whole.

    Args:
        folder: The folder of the data set.
        wanted: With ``val``, training images are not listed if the folder contains ``dataset.json``.

    Raises:
        Refusal: There is no such folder, there are no images, val contains classes that train lacks, or the
            number of images is not the stated one.
    """
    counted = not (folder / "dataset.json").is_file()
    size = objects = 0
    digest = hashlib.sha256()
    parts: dict[str, list[tuple[str, int]]] = {"train": [], "val": []}
    try:
        classes = tuple(sorted(entry.name for entry in os.scandir(folder / "train") if entry.is_dir()))
        for part, images in parts.items():
            if wanted and part != wanted and not counted:
                continue
            held = sorted(entry.name for entry in os.scandir(folder / part) if entry.is_dir())
            strange = [name for name in held if name not in classes]
            if strange:
                raise Refusal(
                    common.EXIT_DATA,
                    f"{folder / part} has classes that train/ lacks: {', '.join(strange[:5])}",
                )
            for name in held:
                label = classes.index(name)
                with os.scandir(folder / part / name) as entries:
                    for file in sorted(entries, key=lambda entry: entry.name):
                        if not file.name.lower().endswith(SUFFIXES):
                            continue
                        images.append((file.path, label))
                        if counted:
                            size, objects = size + file.stat().st_size, objects + 1
                            digest.update(f"{part}/{name}/{file.name} {file.stat().st_size}\n".encode())
        described = {"name": folder.name, "source": str(folder), "objects": objects, "size_bytes": size}
        described["sha256"] = digest.hexdigest()
        if not counted:
            description = json.loads((folder / "dataset.json").read_text())
            described = {key: description[key] for key in described if key in description}
            check_counts(folder, description, parts, wanted)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Refusal(
            common.EXIT_DATA,
            f"no images by class in {folder} ({error}); it needs train/CLASS/*.jpg and val/CLASS/*.jpg",
        ) from error
    if not parts["val"] or (not parts["train"] and wanted != "val"):
        raise Refusal(
            common.EXIT_DATA, f"no {', '.join(SUFFIXES)} in {folder}/train/CLASS or {folder}/val/CLASS"
        )
    return Listing(classes, parts["train"], parts["val"], described)


def check_counts(
    folder: Path, description: dict[str, Any], parts: dict[str, list[tuple[str, int]]], wanted: str
) -> None:
    """Compare the number of listed images with the description of the data set.

    If only one part is wanted, the description must state ``objects_by_part``, or nothing is compared.

    Raises:
        Refusal: The numbers differ.
    """
    stated, found = description.get("objects"), sum(map(len, parts.values()))
    what = str(folder)
    if wanted:
        stated = (description.get("objects_by_part") or {}).get(wanted)
        what, found = str(folder / wanted), len(parts[wanted])
    if stated is not None and stated != found:
        raise Refusal(
            common.EXIT_DATA,
            f"{what} has {found} images, and {folder}/dataset.json states {stated}: stage or copy the data "
            "set again, or correct that file",
        )


def check(folder: Path) -> None:
    """Check that there is a data set, without listing it.

    Raises:
        Refusal: The folder lacks ``train`` or ``val``.
    """
    lacking = [part for part in ("train", "val") if not (folder / part).is_dir()]
    if lacking:
        raise Refusal(
            common.EXIT_DATA,
            f"{folder} has no {' and no '.join(lacking)}; it needs train/CLASS/*.jpg, val/CLASS/*.jpg",
        )


def read_ppm(path: str) -> Any:
    """Return a binary PPM with 8 bits a channel as uint8 (3, H, W).

    Raises:
        ValueError: The file is not such a PPM, or has the wrong length.
    """
    import torch

    data = bytearray(Path(path).read_bytes())
    head = _PPM.match(data)
    if head is None or int(head[3]) != 255:
        raise ValueError(f"{path} is not a binary PPM with 8 bits a channel")
    width, height = int(head[1]), int(head[2])
    if width * height == 0 or len(data) - head.end() != 3 * width * height:
        raise ValueError(f"{path} is cut off")
    flat = torch.frombuffer(data, dtype=torch.uint8, offset=head.end())
    return flat.view(height, width, 3).permute(2, 0, 1)


def decoder(listing: Listing) -> tuple[str, Callable[[str], Any]]:
    """Return the name of the decoder, and a function from path to uint8 (3, H, W).

    Raises:
        Refusal: No installed library can read some of the images.
    """
    if all(path.lower().endswith(".ppm") for path, _ in listing.train + listing.val):
        return "ppm", read_ppm
    try:
        from torchvision import io

        def by_torchvision(path: str) -> Any:
            return io.read_image(path, io.ImageReadMode.RGB)

        return "torchvision", by_torchvision  # noqa: TRY300  (reads as it runs)
    except (ImportError, RuntimeError):
        pass
    try:
        import numpy
        from PIL import Image
    except ImportError as error:
        raise Refusal(
            common.EXIT_DATA,
            "neither torchvision nor Pillow is installed, and one of them has to read JPEG and PNG: install "
            "it beside PyTorch (pip install pillow), or name a Python that has it (bench_pythons)",
        ) from error

    def by_pillow(path: str) -> Any:
        import torch

        with Image.open(path) as image:
            return torch.from_numpy(numpy.array(image.convert("RGB"))).permute(2, 0, 1)

    return "Pillow", by_pillow


class Images:
    """A map-style data set, with an image (3, S, S) as uint8 and its class.

    Training takes a random part (8 to 100 % of the area, 3:4 to 4:3) and mirrors half of the images.
    Validation takes the middle, as is usual for ImageNet.
    """

    def __init__(
        self, images: list[tuple[str, int]], decode: Callable[[str], Any], side: int, train: bool
    ) -> None:
        self.found, self.decode, self.side, self.train = images, decode, side, train

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return an image as a tensor, and its label.

        Raises:
            BadImage: The file cannot be read.
        """
        path, label = self.found[index]
        try:
            image = self.decode(path)
        except (OSError, RuntimeError, ValueError) as error:
            message = (str(error).splitlines() or [type(error).__name__])[0]
            raise BadImage(f"{path} cannot be read ({message}); fetch it again, then the run") from error
        return (self.random_part(image) if self.train else self.middle(image)), label

    def random_part(self, image: Any) -> Any:
        """Return a random part of an image, resized, mirrored or not."""
        import math

        import torch

        height, width = image.shape[1:]
        top = left = 0
        for _ in range(10):
            area = height * width * float(torch.empty(1).uniform_(0.08, 1))
            ratio = math.exp(float(torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3))))
            high, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < high <= height and 0 < wide <= width:
                top = int(torch.randint(0, height - high + 1, ()))
                left = int(torch.randint(0, width - wide + 1, ()))
                break
        else:
            high, wide = height, width
        part = self.resize(image[:, top : top + high, left : left + wide], self.side, self.side)
        return part.flip(2) if float(torch.rand(())) < 0.5 else part

    def middle(self, image: Any) -> Any:
        """Return the middle of an image after its shorter side was resized."""
        height, width = image.shape[1:]
        factor = round(self.side * _RESIZE) / min(height, width)
        high, wide = max(self.side, round(height * factor)), max(self.side, round(width * factor))
        image = self.resize(image, high, wide)
        top, left = (high - self.side) // 2, (wide - self.side) // 2
        return image[:, top : top + self.side, left : left + self.side].contiguous()

    @staticmethod
    def resize(image: Any, height: int, width: int) -> Any:
        """Return an image in another size, bilinear with antialiasing."""
        from torch.nn.functional import interpolate

        return interpolate(
            image[None], (height, width), mode="bilinear", antialias=True, align_corners=False
        )[0]
