"""Test workloads/stage_imagenet.py, which makes data sets for PyTorch, MXNet and TensorFlow out of ImageNet.

The tests stage a miniature of ImageNet's archives. MXNet and TensorFlow read the records as the benchmarks
do, and MXNet's own tool makes the same bytes. The tests also kill the program at random moments, fill its
disk and damage its archives. They show that a data set is complete or is not called finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .imagenet_miniature import NAMES, Miniature, picture, tar_of

# `make runtimes` makes the Python environments that read the formats.
pytestmark = [pytest.mark.torch, pytest.mark.slow]

SHARDS = ("--train-shards", 8, "--val-shards", 4)
FORMATS = ("images", "recordio", "tfrecord")


@pytest.fixture(scope="module")
def small() -> Miniature:
    """Return a miniature of 10 classes of 30 images, with 50 validation images."""
    return Miniature()


@pytest.fixture(scope="module")
def archives(small: Miniature, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the miniature's archives and their checksums."""
    folder = tmp_path_factory.mktemp("archives")
    small.write(folder)
    return folder


class Stage:
    """A starter of the program with the runtime's Python."""

    def __init__(self, python: str, root: Path) -> None:
        self.command = [python, str(root / "workloads/stage_imagenet.py")]

    def words(self, archives: Path, data: Path, *options: object) -> list[str]:
        """Return the command line."""
        given = ["--archives", archives, "--data", data, *options]
        if "--check" not in options and (archives / "pins.json").exists():
            given += ["--pins", archives / "pins.json"]
        return [*self.command, *map(str, given)]

    def __call__(self, archives: Path, data: Path, *options: object) -> subprocess.CompletedProcess[str]:
        words = self.words(archives, data, *options)
        return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def stage(imagenet_python: str, root: Path) -> Stage:
    return Stage(imagenet_python, root)


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file outside of the program's own folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".staging" not in path.parts
    }


@pytest.fixture(scope="module")
def staged(stage: Stage, archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the miniature staged in all three formats."""
    data = tmp_path_factory.mktemp("staged")
    done = stage(archives, data, *SHARDS, "--processes", 2, "--every", 0)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["changed"] is True
    assert {name: one["objects"] for name, one in answer["formats"].items()} == dict.fromkeys(FORMATS, 350)
    assert "recordio · 350 of 350 images" in done.stdout
    assert "tfrecord: 3 images that are not RGB JPEGs were encoded again as RGB JPEG" in done.stdout
    return data


def test_class_folders_hold_the_very_files(staged: Path, small: Miniature, root: Path) -> None:
    found = {
        path.relative_to(staged / "images").as_posix(): path.read_bytes()
        for path in (staged / "images").rglob("*.JPEG")
    }
    by_number = {number: wnid for wnid, number in small.ids.items()}
    wanted = {f"train/{wnid}/{name}": data for wnid, held in small.train.items() for name, data in held}
    wanted |= {
        f"val/{by_number[number]}/{name}": data
        for number, (name, data) in zip(small.truth, small.val, strict=True)
    }
    assert found == wanted
    code = (
        "import sys, json, pathlib, imagenet_data as i\n"
        "found = i.scan(pathlib.Path(sys.argv[1]))\n"
        "numbers = [len(found.train), len(found.val), len(found.classes), found.described['objects']]\n"
        "print(json.dumps(numbers))\n"
    )
    # Listing images needs no PyTorch.
    command = [sys.executable, "-c", code, str(staged / "images")]
    done = subprocess.run(command, cwd=root / "workloads", capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[300, 50, 10, 350]", done.stderr


READ_MXNET = """
import sys, json, hashlib, mxnet as mx
folder, part = sys.argv[1:3]
rec = mx.recordio.MXIndexedRecordIO(f"{folder}/{part}.idx", f"{folder}/{part}.rec", "r")
found = []
for key in rec.keys:
    header, data = mx.recordio.unpack(rec.read_idx(key))
    assert header.id == key and header.id2 == 0 and header.flag == 0
    found.append([key, float(header.label), hashlib.sha256(data).hexdigest()])
one = mx.io.ImageRecordIter(path_imgrec=f"{folder}/{part}.rec", path_imgidx=f"{folder}/{part}.idx",
    data_shape=(3, 24, 24), batch_size=10, shuffle=False, round_batch=False, preprocess_threads=1)
labels = [int(label) for batch in one for label in batch.label[0].asnumpy()[: 10 - batch.pad]]
print(json.dumps([found, labels]))
"""


@pytest.mark.parametrize(("part", "count"), [("train", 300), ("val", 50)])
def test_mxnet_reads_the_records(
    staged: Path, small: Miniature, mxnet_python: str, part: str, count: int
) -> None:
    command = [mxnet_python, "-c", READ_MXNET, str(staged / "recordio"), part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found, labels = json.loads(done.stdout.splitlines()[-1])
    listed = [line.split("\t") for line in (staged / f"recordio/{part}.lst").read_text().splitlines()]
    classes = sorted(small.train)
    assert len(found) == count == len(labels)
    assert labels == [int(label) for _, label, _ in found] == [int(float(one[1])) for one in listed]
    for (key, label, digest), (number, _, path) in zip(found, listed, strict=True):
        assert key == int(number)
        assert path.split("/")[0] == classes[int(label)]
        assert hashlib.sha256((staged / "images" / part / path).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("part", ["train", "val"])
def test_the_record_files_are_those_of_im2rec_to_the_byte(
    staged: Path, mxnet_python: str, tmp_path: Path, part: str
) -> None:
    # im2rec.py imports OpenCV, but does not use it if images are copied as they are.
    (tmp_path / "cv2.py").write_text("")
    where = "import mxnet; print(mxnet.__path__[0])"
    folder = subprocess.run([mxnet_python, "-c", where], capture_output=True, text=True).stdout.strip()
    im2rec = [mxnet_python, f"{folder}/tools/im2rec.py"]
    for options in (["--list", "--recursive"], ["--pass-through", "--num-thread", "2"]):
        command = [*im2rec, *options, part, str(staged / "images" / part)]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    for ending in ("lst", "idx", "rec"):
        name = f"{part}.{ending}"
        assert (tmp_path / name).read_bytes() == (staged / "recordio" / name).read_bytes(), name


READ_TENSORFLOW = """
import sys, json, glob, hashlib, tensorflow as tf
found = []
files = sorted(glob.glob(sys.argv[1]))
# What tf_cnn_benchmarks asks for (preprocessing.py, parse_example_proto), and what else is in the records.
edges = ("xmin", "ymin", "xmax", "ymax")
boxes = {f"image/object/bbox/{one}": tf.io.VarLenFeature(tf.float32) for one in edges}
whole = {f"image/{one}": tf.io.FixedLenFeature([], tf.int64) for one in ("height", "width", "channels")}
texts = {f"image/{one}": tf.io.FixedLenFeature([], tf.string)
         for one in ("encoded", "class/text", "class/synset", "colorspace", "format", "filename")}
wanted = {**boxes, **whole, **texts, "image/class/label": tf.io.FixedLenFeature([1], tf.int64)}
for record in tf.data.TFRecordDataset(files):
    one = tf.io.parse_single_example(record, wanted)
    data = one["image/encoded"].numpy()
    shape = tf.io.extract_jpeg_shape(data).numpy().tolist()
    image = tf.image.decode_jpeg(data, channels=3, fancy_upscaling=False, dct_method="INTEGER_FAST")
    assert image.shape == (one["image/height"], one["image/width"], 3)
    assert shape[:2] == list(image.shape[:2])
    known = tf.train.Example.FromString(record.numpy())
    assert sorted(known.features.feature) == sorted(wanted), sorted(known.features.feature)
    found.append([one["image/filename"].numpy().decode(), int(one["image/class/label"][0]),
        one["image/class/synset"].numpy().decode(), one["image/class/text"].numpy().decode(),
        one["image/colorspace"].numpy().decode(), one["image/format"].numpy().decode(),
        int(one["image/channels"]),
        sum(len(one[name].values) for name in boxes), hashlib.sha256(data).hexdigest()])
print(json.dumps([[f.split("/")[-1] for f in files], found]))
"""


@pytest.mark.parametrize(("part", "subset", "shards"), [("train", "train", 8), ("val", "validation", 4)])
def test_tensorflow_reads_the_records_as_tf_cnn_benchmarks_does(
    staged: Path, small: Miniature, tensorflow_python: str, part: str, subset: str, shards: int
) -> None:
    # The pattern is that of tf_cnn_benchmarks' datasets.py.
    command = [tensorflow_python, "-c", READ_TENSORFLOW, str(staged / f"tfrecord/{subset}-*-of-*")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    files, found = json.loads(done.stdout.splitlines()[-1])
    assert files == [f"{subset}-{one:05d}-of-{shards:05d}" for one in range(shards)]
    classes = sorted(small.train)
    paths = sorted((staged / "images" / part).rglob("*.JPEG"), key=lambda one: (one.parent.name, one.name))
    # The order of build_imagenet_data.py.
    order = list(range(len(paths)))
    random.seed(12345)
    random.shuffle(order)
    changed = []
    for (name, label, synset, words, *rest, digest), number in zip(found, order, strict=True):
        path = paths[number]
        assert (name, synset) == (path.name, path.parent.name)
        assert label == classes.index(synset) + 1
        assert words == small.words[synset]
        assert rest == ["RGB", "JPEG", 3, 0]
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            changed.append(name)
    odd = json.loads((staged / "tfrecord/dataset.json").read_text())["odd_images"]
    assert sorted(changed) == sorted(one.split()[0] for one in odd if ("val" in one) == (part == "val"))


def test_a_second_run_changes_nothing(stage: Stage, archives: Path, staged: Path) -> None:
    before = digests(staged)
    done = stage(archives, staged, *SHARDS)
    assert json.loads(done.stdout.splitlines()[-1])["changed"] is False
    assert digests(staged) == before


def test_the_number_of_processes_and_of_calls_makes_no_difference(
    stage: Stage, archives: Path, staged: Path, tmp_path: Path
) -> None:
    for name in reversed(FORMATS):
        assert stage(archives, tmp_path / "d", *SHARDS, "--processes", 5, "--formats", name).returncode == 0
    assert digests(tmp_path / "d") == digests(staged)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return archives of 4,000 images, enough for several pieces of a .rec file and a second of work."""
    folder = tmp_path_factory.mktemp("many")
    made = Miniature(classes=40, train_each=60, val_count=100)
    for wnid, held in made.train.items():
        first = held[0][1]
        held += [(f"{wnid}_{40000 + one}.JPEG", first + bytes([one])) for one in range(40)]
    made.write(folder)
    return folder


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(stage: Stage, many: Path, tmp_path: Path) -> None:
    options = (*SHARDS, "--processes", 2)
    began = time.monotonic()
    assert stage(many, tmp_path / "whole", *options).returncode == 0
    took = time.monotonic() - began
    chance = random.Random(11)
    kills = 0
    for _ in range(60):
        process = subprocess.Popen(
            stage.words(many, tmp_path / "d", *options), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            process.wait(0.15 + chance.random() * took * 0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        _, error = process.communicate(timeout=300)
        assert process.returncode in (0, -9), error.decode()
        if process.returncode == 0:
            if kills >= 10:
                break
            # Remove a finished format, so that later kills also happen in the middle of it.
            shutil.rmtree(tmp_path / "d" / chance.choice(FORMATS), ignore_errors=True)
    else:
        pytest.fail(f"not staged after {kills} kills")
    assert kills >= 10
    assert digests(tmp_path / "d") == digests(tmp_path / "whole")
    done = stage(many, tmp_path / "d", "--check")
    assert json.loads(done.stdout)["wrong"] == []


def test_a_process_that_is_killed_ends_the_program_in_words(stage: Stage, many: Path, tmp_path: Path) -> None:
    words = stage.words(many, tmp_path / "d", *SHARDS, "--formats", "tfrecord", "--processes", 2)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    while "tfrecord" not in process.stdout.readline():
        pass
    children: list[str] = []
    while not children:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), 9)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 5, error
    assert "a process was killed" in error
    assert "Traceback" not in error
    assert stage(many, tmp_path / "d", *SHARDS, "--formats", "tfrecord").returncode == 0


def test_a_signal_ends_it_at_once(stage: Stage, many: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        stage.words(many, tmp_path / "d", *SHARDS), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    process.stdout.readline()
    process.terminate()
    _, error = process.communicate(timeout=300)
    assert process.returncode == 143
    assert "the same command continues from here" in error


def test_resized_images_have_the_shorter_edge_asked_for(
    stage: Stage, archives: Path, mxnet_python: str, tmp_path: Path
) -> None:
    done = stage(archives, tmp_path, *SHARDS, "--resize", 32, "--quality", 80)
    assert done.returncode == 0, done.stderr
    from PIL import Image

    for path in (tmp_path / "images").rglob("*.JPEG"):
        with Image.open(path) as image:
            assert (min(image.size), image.mode, image.format) == (32, "RGB", "JPEG")
    command = [mxnet_python, "-c", READ_MXNET, str(tmp_path / "recordio"), "train"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # The same folder cannot be staged with other settings.
    done = stage(archives, tmp_path, *SHARDS, "--resize", 40)
    assert done.returncode == 5
    assert "was staged with other settings: resize 32 then, 40 now" in done.stderr


def test_without_the_archives_nothing_is_written(stage: Stage, archives: Path, tmp_path: Path) -> None:
    done = stage(tmp_path / "none", tmp_path / "d")
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    for text in (
        "ILSVRC2012_img_train.tar (147.9 GB)",
        "ILSVRC2012_img_val.tar (6.7 GB)",
        "devkit_t12.tar.gz (2.6 MB)",
    ):
        assert text in line
    assert "account of image-net.org" in line
    assert list(tmp_path.iterdir()) == []
    half = tmp_path / "half"
    shutil.copytree(archives, half)
    (half / NAMES["val"]).unlink()
    done = stage(half, tmp_path / "d")
    assert (done.returncode, len(done.stderr.splitlines())) == (5, 1)
    assert "lacks ILSVRC2012_img_val.tar (" in done.stderr
    assert "train" not in done.stderr
    assert not (tmp_path / "d").exists()


def cut(data: bytes) -> bytes:
    """Return an archive without its last block."""
    return data[:-512]


def turned(data: bytes) -> bytes:
    """Return an archive with one flipped bit."""
    return data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("train", cut, "ILSVRC2012_img_train.tar is cut off:"),
        ("val", cut, "ILSVRC2012_img_val.tar is cut off:"),
        ("val", lambda data: data + b"\0", "ILSVRC2012_img_val.tar is too long:"),
        ("train", turned, "ILSVRC2012_img_train.tar: wrong MD5 sum: expected"),
        ("val", turned, "ILSVRC2012_img_val.tar: wrong MD5 sum: expected"),
        ("devkit", lambda data: data[:-1] + b"x", "ILSVRC2012_devkit_t12.tar.gz: wrong MD5 sum: expected"),
    ],
)
def test_an_archive_that_is_not_the_one_wanted_is_refused(
    stage: Stage, archives: Path, tmp_path: Path, part: str, change: object, words: str
) -> None:
    shutil.copytree(archives, tmp_path / "a")
    path = tmp_path / "a" / NAMES[part]
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    refused(stage, tmp_path, words)


def refused(stage: Stage, folder: Path, words: str, *options: object) -> None:
    """Stage archives in the folder ``a``. The program must refuse them with one line that has these words."""
    done = stage(folder / "a", folder / "d", *SHARDS, *options)
    assert (done.returncode, words in done.stderr) == (5, True), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list((folder / "d").glob("*/dataset.json")), "nothing is called finished"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("missing class", "lacks class n"),
        ("traversal", "which leads outside its folder"),
        ("twice", "twice"),
        ("no image", "is not an image that can be used: it is neither a JPEG nor a PNG"),
        ("png without pixels", "is not an image that can be used: it cannot be decoded"),
    ],
)
def test_what_is_wrong_within_an_archive_is_named(
    stage: Stage, tmp_path: Path, change: str, words: str
) -> None:
    made = Miniature(classes=4, train_each=6, val_count=8)
    first = sorted(made.train)[0]
    chance = random.Random(1)
    if change == "missing class":
        made.write(tmp_path / "a")
        others = {wnid: held for wnid, held in made.train.items() if wnid != first}
        made.write(
            tmp_path / "a", train=tar_of((f"{wnid}.tar", tar_of(held)) for wnid, held in others.items())
        )
    else:
        made.train[first] += {
            "traversal": [("../../../evil.JPEG", picture(chance, False))],
            "twice": [made.train[first][0]],
            "no image": [(f"{first}_40000.JPEG", b"<html>sorry</html>")],
            "png without pixels": [(f"{first}_40000.JPEG", picture(chance, False, "PNG")[:60])],
        }[change]
        made.write(tmp_path / "a")
    # Class folders and RecordIO have the bytes as they are. Only TFRecord decodes the PNG, and then fails.
    formats = "tfrecord" if change == "png without pixels" else "images,recordio,tfrecord"
    refused(stage, tmp_path, words, "--formats", formats)
    assert not list(tmp_path.rglob("evil*"))


def test_files_that_are_not_from_here_are_left_alone(stage: Stage, archives: Path, tmp_path: Path) -> None:
    mine = tmp_path / "d/images/train/mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    done = stage(archives, tmp_path / "d", *SHARDS)
    assert (done.returncode, "has files that its journal lacks" in done.stderr) == (5, True)
    assert mine.read_text() == "mine"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of 2.6 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2600k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_too_small_is_refused_before_anything(
    stage: Stage, many: Path, small_disk: Path
) -> None:
    done = stage(many, small_disk / "d", *SHARDS)
    assert (done.returncode, "too little space on the file system of" in done.stderr) == (5, True), (
        done.stderr
    )
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("name", FORMATS)
def test_a_disk_that_becomes_full_is_named_and_what_is_finished_is_kept(
    stage: Stage, archives: Path, staged: Path, small_disk: Path, name: str
) -> None:
    # The program is made to find much free space, but the disk has too little.
    words = [*stage.words(archives, small_disk / "d", *SHARDS, "--formats", name, "--processes", 1)]
    code = (
        "import sys, shutil, collections, runpy\n"
        "usage = collections.namedtuple('usage', 'total used free')\n"
        "shutil.disk_usage = lambda path: usage(1 << 40, 0, 1 << 40)\n"
        "sys.argv = sys.argv[1:]\n"
        "sys.path.insert(0, sys.argv[0].rpartition('/')[0])\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (2_100_000 if name != "images" else 1_500_000))
    done = subprocess.run([words[0], "-c", code, *words[1:]], capture_output=True, text=True, timeout=120)
    assert done.returncode == 5, done.stdout + done.stderr
    assert f"{small_disk}/d/{name}: the disk is full; what is finished is kept: make room" in done.stderr
    assert not (small_disk / "d" / name / "dataset.json").exists()
    filler.unlink()
    done = stage(archives, small_disk / "d", *SHARDS, "--formats", name)
    assert done.returncode == 0, done.stderr
    assert digests(small_disk / "d" / name) == digests(staged / name)


def test_a_file_that_was_changed_later_is_found(
    stage: Stage, archives: Path, staged: Path, tmp_path: Path
) -> None:
    shutil.copytree(staged, tmp_path / "d")
    for name, options in (
        ("tfrecord/train-00003-of-00008", ("--formats", "tfrecord")),
        ("recordio/train.rec", ("--formats", "recordio")),
        ("images/val/*/*.JPEG", ("--formats", "images")),
    ):
        path = next((tmp_path / "d").glob(name))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        done = stage(archives, tmp_path / "d", "--check", *options)
        assert (done.returncode, "changed since" in done.stderr) == (5, True), done.stderr


def test_events_are_what_follows_a_job(stage: Stage, archives: Path, tmp_path: Path) -> None:
    from rackproof.logs.progress import Follower

    done = stage(archives, tmp_path, *SHARDS, "--progress", "events", "--every", 0)
    assert done.returncode == 0, done.stderr
    progress = Follower("mllog").feed(done.stdout.encode())
    assert (progress.phase, progress.step, progress.steps) == ("tfrecord", 350, 350)
    assert progress.fraction == 1


def test_without_its_packages_it_says_which(root: Path, archives: Path, tmp_path: Path) -> None:
    bare = Stage("python3", root)
    words = bare.words(archives, tmp_path / "d", *SHARDS)
    done = subprocess.run([words[0], "-I", "-S", "-c", "import sys, runpy; sys.argv = sys.argv[1:];"
        "sys.path.insert(0, sys.argv[0].rpartition('/')[0]);"
        "runpy.run_path(sys.argv[0], run_name='__main__')",
        *words[1:]], capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert "lacks google-crc32c" in done.stderr
    assert "Pillow" in done.stderr
    assert not (tmp_path / "d").exists()
