#!/usr/bin/env python3
"""Draw pictures of ten classes, as many and as large as in CIFAR-10, into train/CLASS and val/CLASS.

The benchmark resnet50-pictures-accuracy starts this program before its training. The pictures show discs,
rings, squares, frames, triangles, crosses, stripes and chequerboards at random places, in random sizes and
colours, with noise. Each is a PPM file of 32 x 32 pixels. The pictures are drawn with whole numbers, so they
are the same on every machine. The program needs PyTorch, and downloads nothing. A second call with the same
arguments changes nothing, even if it runs at the same time.

The last line of output is JSON. Exit status: 0 staged, 2 usage, 5 not staged.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lock_file import open_lock

EXIT_DATA = 5
SIDE = 32
MANIFEST = "dataset.json"
HEAD = f"P6\n{SIDE} {SIDE}\n255\n".encode()
TRAIN_FOR_VAL = 5
"""Number of training pictures for each validation picture, as in CIFAR-10."""

Shape = Callable[[Any, Any, Any], Any]
CLASSES: dict[str, Shape] = {
    "disc": lambda x, y, r: x * x + y * y <= r * r,
    "ring": lambda x, y, r: (x * x + y * y <= r * r) & (5 * (x * x + y * y) >= 2 * r * r),
    "square": lambda x, y, r: _farthest(x, y) <= r - 1,
    "frame": lambda x, y, r: (_farthest(x, y) <= r - 1) & (3 * _farthest(x, y) >= 2 * (r - 1)),
    "triangle": lambda x, y, r: (y <= r) & (2 * x.abs() <= y + r),
    "plus": lambda x, y, r: (_farthest(x, y) <= r) & ((4 * x.abs() <= r) | (4 * y.abs() <= r)),
    "saltire": lambda x, y, r: (_farthest(x, y) <= r) & (3 * (x.abs() - y.abs()).abs() <= r),
    "rows": lambda x, y, r: (y + SIDE) // (r // 2) % 2 == 0,
    "columns": lambda x, y, r: (x + SIDE) // (r // 2) % 2 == 0,
    "chequers": lambda x, y, r: ((x + SIDE) // (r // 2) + (y + SIDE) // (r // 2)) % 2 == 0,
}
"""Functions that select the pixels of a figure by their distances to the middle and by its size, by class.
"""


def _farthest(x: Any, y: Any) -> Any:
    import torch

    return torch.maximum(x.abs(), y.abs())


def draw(name: str, count: int, seed: str) -> Iterator[bytes]:
    """Yield pictures of a class as bytes of PPM files. A seed gives the same pictures on every machine."""
    import torch

    chance = random.Random(f"{name} {seed}")  # noqa: S311  (pictures, no secrets)
    axis = torch.arange(SIDE, dtype=torch.int32)
    for _ in range(count):
        column, row, size = chance.randint(11, 20), chance.randint(11, 20), chance.randint(6, 11)
        ground = [chance.randint(40, 215) for _ in range(3)]
        # Each colour differs much from the ground, and there are as many bright pictures as dark ones.
        figure = [tone + 90 if tone < 128 else tone - 90 for tone in ground]
        mask = CLASSES[name](axis[None, :] - column, axis[:, None] - row, size)
        colours = torch.tensor([ground, figure], dtype=torch.int32)
        noise = torch.frombuffer(bytearray(chance.randbytes(3 * SIDE * SIDE)), dtype=torch.uint8)
        grain = noise.to(torch.int32).remainder(81).sub(40).view(SIDE, SIDE, 3)
        pixels = (colours[mask.expand(SIDE, SIDE).long()] + grain).clamp(0, 255)
        yield HEAD + bytes(pixels.to(torch.uint8).flatten().tolist())


def described(folder: Path) -> dict[str, Any]:
    """Return the description in a staged folder, or an empty one if it is missing or damaged."""
    try:
        return dict(json.loads((folder / MANIFEST).read_text()))
    except (OSError, ValueError):
        return {}


def stage(folder: Path, per_class: int) -> dict[str, Any]:
    """Draw the pictures if they are not staged yet. Return the content of the program's last line."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open_lock(folder.parent / f".{folder.name}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = described(folder)
        if known.get("per_class") == per_class:
            return {"changed": False, "path": str(folder), **known}
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as draft:
            known = fill(Path(draft), per_class)
            # The folder is renamed in one step, with its description, so a folder of this name is complete.
            (Path(draft) / "pictures").rename(folder)
    return {"changed": True, "path": str(folder), **known}


def fill(folder: Path, per_class: int) -> dict[str, Any]:
    """Write all pictures and their description into ``folder/pictures``. Return the description."""
    digest, objects, size = hashlib.sha256(), {"train": 0, "val": 0}, 0
    for part, count in (("train", per_class), ("val", max(1, per_class // TRAIN_FOR_VAL))):
        for name in CLASSES:
            path = folder / "pictures" / part / name
            path.mkdir(parents=True)
            for index, data in enumerate(draw(name, count, part)):
                (path / f"{index:05}.ppm").write_bytes(data)
                digest.update(data)
                objects[part], size = objects[part] + 1, size + len(data)
        print(f"drew {part}", file=sys.stderr, flush=True)
    known = {
        "name": "pictures",
        "source": "drawn by stage_pictures.py",
        "objects": sum(objects.values()),
        "objects_by_part": objects,
        "size_bytes": size,
    }
    known |= {"sha256": digest.hexdigest(), "per_class": per_class}
    (folder / "pictures" / MANIFEST).write_text(json.dumps(known, indent=2) + "\n")
    return known


def main() -> int:
    """Stage as the command line requests. Return the exit status."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--data", type=Path, required=True, help="folder to stage into")
    arguments.add_argument(
        "--per-class", type=int, default=5000, help="training pictures of a class (default: %(default)s)"
    )
    options = arguments.parse_args()
    if options.per_class < 1:
        arguments.error("--per-class must be at least 1")
    try:
        print(json.dumps(stage(options.data, options.per_class)))
    except (OSError, ImportError) as error:
        print(f"error: {options.data}: {error}", file=sys.stderr)
        return EXIT_DATA
    return 0


if __name__ == "__main__":
    sys.exit(main())
