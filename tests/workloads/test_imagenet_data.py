"""Test workloads/imagenet_data.py, which lists the images of a data set, without PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.workloads.programs import load_program

COUNTS = {"train": 6, "val": 4}


@pytest.fixture(scope="module")
def imagenet_data() -> Any:
    """Return the module."""
    return load_program("imagenet_data")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a data set of two classes, with 6 images to train on, and 4 to validate."""
    for part, count in COUNTS.items():
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(count // 2):
                (tmp_path / part / name / f"{number}.JPEG").write_bytes(b"image")
            (tmp_path / part / name / "notes.txt").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("stated", "wanted", "refused"),
    [
        # What dataset.json states, the part that is wanted, and the words of the refusal, if any.
        ({"objects": 10}, "", ""),
        ({"objects": 10, "objects_by_part": COUNTS}, "", ""),
        ({"objects": 10, "objects_by_part": COUNTS}, "val", ""),
        ({"name": "mine"}, "", ""),
        ({"name": "mine"}, "val", ""),
        ({"objects": 10}, "val", ""),
        ({"objects": 1331167}, "", "has 10 images, and .*dataset.json states 1331167"),
        ({"objects": 9}, "", "has 10 images, and .*dataset.json states 9"),
        ({"objects": "10"}, "", "has 10 images"),
        (
            {"objects": 10, "objects_by_part": {"train": 6, "val": 5}},
            "val",
            r"/val has 4 images, .* states 5",
        ),
        (
            {"objects": 10, "objects_by_part": {"train": 6, "val": 0}},
            "val",
            r"/val has 4 images, .* states 0",
        ),
    ],
)
def test_a_part_of_a_data_set_is_not_described_as_the_whole(
    imagenet_data: ModuleType, folder: Path, stated: dict[str, Any], wanted: str, refused: str
) -> None:
    (folder / "dataset.json").write_text(json.dumps(stated))
    if refused:
        with pytest.raises(imagenet_data.Refusal, match=refused) as raised:
            imagenet_data.scan(folder, wanted)
        assert raised.value.status == 5
        return
    listing = imagenet_data.scan(folder, wanted)
    assert (len(listing.train), len(listing.val)) == (0 if wanted else 6, 4)
    assert listing.described.get("objects") == stated.get("objects")
    assert "objects_by_part" not in listing.described


@pytest.mark.parametrize("text", ["", "[]", "{", '{"objects_by_part": 3}', '{"objects_by_part": [1]}'])
def test_a_damaged_description_is_refused(imagenet_data: ModuleType, folder: Path, text: str) -> None:
    (folder / "dataset.json").write_text(text)
    with pytest.raises(imagenet_data.Refusal, match="no images by class in"):
        imagenet_data.scan(folder, "val")


def test_without_a_description_the_images_are_counted(imagenet_data: ModuleType, folder: Path) -> None:
    described = imagenet_data.scan(folder).described
    assert (described["objects"], described["size_bytes"]) == (10, 50)
