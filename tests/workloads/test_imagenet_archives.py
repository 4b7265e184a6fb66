"""Test workloads/imagenet_archives.py and imagenet_records.py, which read ImageNet's archives.

stage_imagenet.py uses them to index the archives and to write records for MXNet and TensorFlow. The tests
call their functions with a miniature of ImageNet: they show where each image is found, which archives are
refused, and what is read from the header of an image.
"""

from __future__ import annotations

import hashlib
import io
import random
import struct
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "workloads"))

import imagenet_archives
import imagenet_records
from imagenet_archives import StagingError

from .imagenet_miniature import MAGIC, Miniature, tar_of, with_magic


@pytest.fixture(scope="module")
def small() -> Miniature:
    """Return a miniature of 4 classes with 5 images each, and 9 validation images."""
    return Miniature(classes=4, train_each=5, val_count=9)


def jpeg(mode: str = "RGB", size: tuple[int, int] = (31, 17), kind: str = "JPEG", **options: Any) -> bytes:
    """Return an image file of one colour."""
    packed = io.BytesIO()
    Image.new(mode, size).save(packed, kind, **options)
    return packed.getvalue()


def scan(part: str, data: bytes, folder: Path, md5: str = "") -> Any:
    """Return what the program finds in an archive, whose right checksum is expected by default."""
    path = folder / f"{part}.tar"
    path.write_bytes(data)
    read: list[int] = []
    found = imagenet_archives.scan(
        part, path, md5 or hashlib.md5(data, usedforsecurity=False).hexdigest(), read.append
    )
    assert sum(read) == len(data)
    return found


@pytest.mark.parametrize("compressed", [True, False])
def test_the_development_kit_is_read_as_scipy_writes_it(
    small: Miniature, tmp_path: Path, compressed: bool
) -> None:
    words, truth = scan("devkit", small.devkit(compressed), tmp_path)
    assert words == small.words
    assert [small.ids[wnid] for wnid in truth] == small.truth


def test_each_image_is_where_the_index_says(small: Miniature, tmp_path: Path) -> None:
    data = small.archives()
    found = {part: scan(part, data[part], tmp_path) for part in data}
    pins = {
        "classes": 4,
        "archives": {"train": {"name": "t", "objects": 20}, "val": {"name": "v", "objects": 9}},
    }
    classes, images = imagenet_archives.join(found["train"], found["val"], found["devkit"], pins)
    assert classes == sorted(small.words.items())
    contents = {name: content for held in [*small.train.values(), small.val] for name, content in held}
    for part, known in images.items():
        names = [known.name(number) for number in range(len(known))]
        assert len(set(names)) == len(known) == pins["archives"][part]["objects"]  # type: ignore[index]
        assert names == sorted(names, key=lambda name: (known.label[names.index(name)], name))
        for number, name in enumerate(names):
            offset = known.offset[number]
            assert data[part][offset : offset + known.size[number]] == contents[name]
            wnid = classes[known.label[number]][0]
            if part == "train":
                assert name.startswith(wnid)
            else:
                assert small.ids[wnid] == small.truth[int(name[15:23]) - 1]
        again = imagenet_archives.Images.read_lines(iter(list(known.lines())), len(known))
        assert list(again.lines()) == list(known.lines())
        with pytest.raises(ValueError, match="unpack"):
            imagenet_archives.Images.read_lines(iter(list(known.lines())[:-1]), len(known))


# A class of ImageNet (its WordNet id), and an image of it.
WNID = "n01440764"
IMAGE = (f"{WNID}_1.JPEG", b"\xff\xd8")


def train_of(*images: tuple[str, bytes], name: str = f"{WNID}.tar") -> bytes:
    """Return a training archive with one class."""
    return tar_of([(name, tar_of(images))])


@pytest.mark.parametrize(
    ("part", "data", "words"),
    [
        ("train", train_of(IMAGE, ("../../etc/passwd", b"")), "leads outside"),
        ("train", train_of(IMAGE, ("/etc/passwd", b"")), "leads outside"),
        ("train", train_of(IMAGE, name="../n01440764.tar"), "leads outside"),
        ("train", train_of(IMAGE, name="cats.tar"), "no archive of a class"),
        ("train", train_of(IMAGE, IMAGE), "twice"),
        ("train", tar_of([(f"{WNID}.tar", tar_of([IMAGE]))] * 2), "twice"),
        ("train", train_of(("n01443537_1.JPEG", b"")), "not an image of its class"),
        ("train", train_of(("readme.txt", b"")), "no image of ImageNet"),
        ("train", tar_of([(f"{WNID}.tar", b"no tar " * 100)]), "not a whole archive"),
        ("train", tar_of([(f"{WNID}.tar", tar_of([IMAGE])[:700])]), "not a whole archive"),
        ("train", train_of(IMAGE)[:1100], "not a whole archive"),
        ("val", tar_of([("ILSVRC2012_val_00000001.JPEG", b"")] * 2), "twice"),
        ("val", tar_of([("../ILSVRC2012_val_00000001.JPEG", b"")]), "leads outside"),
        ("val", tar_of([("val/ILSVRC2012_val_00000001.JPEG", b"")]), "no validation image"),
        ("val", b"no tar " * 1000, "not a whole archive"),
        ("devkit", tar_of([("kit/data/meta.mat", b"")], "w:gz"), "holds no data/ILSVRC2012_validation"),
        ("devkit", b"\x1f\x8b no gzip", "not a whole archive"),
    ],
    # The bytes of an archive contain the time of its making, so they cannot be in the name of a test.
    ids=lambda value: value if isinstance(value, str) else "archive",
)  # fmt: skip
def test_an_archive_that_is_not_imagenets_is_refused(
    part: str, data: bytes, words: str, tmp_path: Path
) -> None:
    with pytest.raises(StagingError, match=words):
        scan(part, data, tmp_path)
    # A wrong checksum is reported before any other fault.
    with pytest.raises(StagingError, match="wrong MD5 sum: expected 0000"):
        scan(part, data, tmp_path, "0" * 32)


@pytest.fixture(scope="module")
def kit(small: Miniature) -> list[tuple[str, bytes]]:
    """Return the files of a development kit with an uncompressed list of classes."""
    with tarfile.open(fileobj=io.BytesIO(small.devkit(compressed=False))) as tar:
        return [(one.name, tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]


def damaged(kit: list[tuple[str, bytes]], change: Callable[[bytes], bytes]) -> bytes:
    """Return a development kit whose list of classes was changed."""
    return tar_of([(name, change(data) if name.endswith(".mat") else data) for name, data in kit], "w:gz")


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:500],
        lambda data: b"",
        lambda data: data[:126] + b"MI" + data[128:],
        lambda data: data[:136] + b"\xff" * 40 + data[176:],
        lambda data: data.replace(b"ILSVRC2012_ID", b"ILSVRC2013_ID"),
        lambda data: data.replace(b"n0", b"m0").replace("n0".encode("utf-16-le"), "m0".encode("utf-16-le")),
    ],
)
def test_a_damaged_list_of_classes_is_refused(
    kit: list[tuple[str, bytes]], tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(StagingError, match=r"meta\.mat"):
        scan("devkit", damaged(kit, change), tmp_path)


def test_damage_to_the_list_of_classes_causes_no_other_error(
    kit: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    chance = random.Random(5)

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(3):
            changed[chance.randrange(128, len(changed))] = chance.randrange(256)
        return bytes(changed)

    for _ in range(150):
        try:
            scan("devkit", damaged(kit, change), tmp_path)
        except StagingError as error:
            assert "meta.mat" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda train, val, kit: train.pop(sorted(train)[1]), "lacks class n"),
        (lambda train, val, kit: train.update({sorted(train)[0]: []}), "lacks class n"),
        (lambda train, val, kit: train.update(n99999999=[("x", 0, 0)]), "has class n99999999"),
        (lambda train, val, kit: val.pop(3), "holds 8 images, and the .* has labels of images 1 to 9"),
        (lambda train, val, kit: kit[0].pop(sorted(kit[0])[0]), "has 3 classes in the place of 4"),
        (lambda train, val, kit: train[sorted(train)[2]].pop(), "holds 19 images in the place of 20"),
    ],
)  # fmt: skip
def test_archives_that_do_not_belong_together_are_refused(
    small: Miniature, tmp_path: Path, change: Callable[..., object], words: str
) -> None:
    data = small.archives()
    train, val, kit = (scan(part, data[part], tmp_path) for part in ("train", "val", "devkit"))
    change(train, val, kit)
    pins = {
        "classes": 4,
        "archives": {"train": {"name": "t", "objects": 20}, "val": {"name": "v", "objects": 9}},
    }
    with pytest.raises(StagingError, match=words):
        imagenet_archives.join(train, val, kit, pins)


def test_the_official_archives_are_pinned() -> None:
    pins = imagenet_archives.PINS
    assert pins["classes"] == 1000
    # torchvision/datasets/imagenet.py, ARCHIVE_META.
    assert {one["name"]: one["md5"] for one in pins["archives"].values()} == {
        "ILSVRC2012_img_train.tar": "1d675b47d978889d74fa0da5fadfb00e",
        "ILSVRC2012_img_val.tar": "29b22e2961454d5413ddabcf34fc5622",
        "ILSVRC2012_devkit_t12.tar.gz": "fa75699e90414af021442c21a62c3abf",
    }
    # tf_cnn_benchmarks/datasets.py, IMAGENET_NUM_TRAIN_IMAGES and _VAL_.
    assert [pins["archives"][part]["objects"] for part in ("train", "val")] == [1281167, 50000]


@pytest.mark.parametrize(
    ("data", "facts", "oddity"),
    [
        (jpeg(), ("jpeg", 31, 17, 3), ""),
        (jpeg(progressive=True), ("jpeg", 31, 17, 3), ""),
        (jpeg(exif=b"Exif\0\0" + b"x" * 3000), ("jpeg", 31, 17, 3), ""),
        (jpeg("L"), ("jpeg", 31, 17, 1), ""),
        (jpeg("CMYK"), ("jpeg", 31, 17, 4), "CMYK"),
        (jpeg(kind="PNG"), ("png", 31, 17, 3), "PNG"),
        (jpeg("L", kind="PNG"), ("png", 31, 17, 1), "PNG"),
        (with_magic(jpeg()), ("jpeg", 31, 17, 3), ""),
        (jpeg()[:2] + b"\xff\xff\xff" + jpeg()[2:], ("jpeg", 31, 17, 3), ""),
    ],
)
def test_the_properties_of_an_image_are_read_from_its_header(
    data: bytes, facts: tuple[object, ...], oddity: str
) -> None:
    found = imagenet_records.facts_of(data)
    assert found == facts
    assert found.oddity == oddity
    if facts[0] == "jpeg":
        with Image.open(io.BytesIO(data)) as image:
            assert image.size == (found.width, found.height)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "neither a JPEG nor a PNG"),
        (b"<html>not found</html>", "neither a JPEG nor a PNG"),
        (jpeg(kind="GIF"), "neither a JPEG nor a PNG"),
        (jpeg()[:100], "no size"),
        (b"\xff\xd8" + b"\0" * 100, "damaged"),
        (b"\xff\xd8\xff\xe0", "no size"),
        (b"\x89PNG\r\n\x1a\n", "neither"),
    ],
)
def test_data_that_are_no_image_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(imagenet_records.BadImage, match=words):
        imagenet_records.facts_of(data)


@pytest.mark.parametrize(
    ("kind", "mode", "size", "edge", "then"),
    [
        ("JPEG", "RGB", (300, 200), 100, (150, 100)),
        ("JPEG", "CMYK", (200, 301), 100, (100, 150)),
        ("PNG", "RGBA", (50, 50), 80, (80, 80)),
        ("JPEG", "L", (300, 200), 0, (300, 200)),
    ],
)
def test_an_image_that_is_encoded_again_is_rgb(
    kind: str, mode: str, size: tuple[int, int], edge: int, then: tuple[int, int]
) -> None:
    data, width, height = imagenet_records.encode_again(jpeg(mode, size, kind), edge, 90)
    assert imagenet_records.facts_of(data) == ("jpeg", *then, 3)
    assert (width, height) == then


def test_an_image_that_cannot_be_decoded_is_refused() -> None:
    with pytest.raises(imagenet_records.BadImage, match="cannot be decoded"):
        imagenet_records.encode_again(jpeg()[:200], 10, 90)


def unframed(data: bytes) -> list[bytes]:
    """Return the records of RecordIO, read by its description: records of pieces, each in whole words."""
    records, at = [], 0
    while at < len(data):
        magic, word = struct.unpack_from("<II", data, at)
        assert magic == 0xCED7230A
        flag, size = word >> 29, word & (1 << 29) - 1
        content = data[at + 8 : at + 8 + size]
        at += 8 + size + -size % 4
        if flag in (0, 1):
            records.append(content)
        else:
            records[-1] += MAGIC + content
    return records


@pytest.mark.parametrize(
    "data",
    [b"", b"a", b"abcd", MAGIC, MAGIC * 3, b"x" + MAGIC, b"xxxx" + MAGIC, MAGIC + b"x" + MAGIC,
     b"x" * 3 + MAGIC * 2 + b"x" * 5, MAGIC[:3] + MAGIC, with_magic(jpeg())],
)  # fmt: skip
def test_a_record_is_found_again_whatever_its_content(data: bytes) -> None:
    framed = imagenet_records.recordio_record(data)
    assert unframed(framed) == [data]
    # A reader that begins anywhere finds records by the magic number at a multiple of 4: it is nowhere else.
    starts = [at for at in range(0, len(framed), 4) if framed[at : at + 4] == MAGIC]
    assert len(starts) == 1 + sum(data[at : at + 4] == MAGIC for at in range(0, len(data), 4))


@pytest.mark.parametrize(
    ("number", "written"), [(0, b"\0"), (1, b"\x01"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")]
)
def test_numbers_are_written_as_protocol_buffers_have_them(number: int, written: bytes) -> None:
    assert imagenet_records.varint(number) == written
