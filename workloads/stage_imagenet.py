#!/usr/bin/env python3
"""Stage ImageNet (ILSVRC2012) from its official archives into a folder, in three formats.

    DATA/images/train/nNNNNNNNN/*.JPEG, DATA/images/val/nNNNNNNNN/*.JPEG      for PyTorch
    DATA/recordio/train.rec, .idx, .lst, and val.*                            for MXNet
    DATA/tfrecord/train-00000-of-01024 ..., validation-00000-of-00128 ...     for tf_cnn_benchmarks

playbooks/stage-imagenet.yml starts this program on a node, and so does the benchmark resnet-0.6. The program
checks the archives' MD5 sums, and downloads nothing. If it is killed, the next call continues. The result is
the same to the byte, regardless of interruptions and of the number of processes. Beyond the standard library
of Python 3.8 or newer, google-crc32c and Pillow are needed for TFRecords, and Pillow for --resize (pinned in
workloads/imagenet).

The last line of standard output is JSON. Exit status: 0 staged, 2 usage, 5 not staged (the message gives the
remedy), 128 + N ended by signal N.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import importlib.util
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import imagenet_archives
import imagenet_records
from imagenet_archives import PARTS, Images, StagingError
from lock_file import open_lock

EXIT_DATA = 5
FORMATS = ("images", "recordio", "tfrecord")
STAGING = ".staging"
INDEX = "index"
MANIFEST = "dataset.json"
IMAGES_A_PIECE = 256
"""Number of images in a piece of a .rec file. A killed run loses at most this number for each process."""
SEEDS = {"images": 0, "recordio": 100, "tfrecord": 12345}
"""Seeds without --seed. The order is then the same as with im2rec.py and build_imagenet_data.py."""
SHARD_NAMES = {"train": "train", "val": "validation"}
OVERHEAD_BYTES = {"images": 4096, "recordio": 140, "tfrecord": 720}
"""Largest additional space of an image, for a block, a header and its lines, and features."""
INDEX_BYTES = 80
"""Largest size of a line of the index."""
FORK = multiprocessing.get_context("fork")
_PR_SET_PDEATHSIG = 1
_REPORT_IMAGES = 32
"""Number of images after which a process reports its progress."""


# Work to do


class Unit(NamedTuple):
    """The work of one process: a class's folder, a piece of a .rec file, or a TFRecord file.

    ``number`` counts the units of a part. The unit's images are those from ``first`` to before ``last``.
    """

    format: str
    part: str
    number: int
    name: str
    first: int
    last: int


def shuffled(count: int, seed: int | None) -> array[int]:
    """Return the numbers below a count in the order of a seed, or ascending without one."""
    numbers = array("I", range(count))
    if seed is not None:
        random.Random(seed).shuffle(numbers)  # noqa: S311  (an order, no secret)
    return numbers


class Plan:
    """The staging plan, which all processes share, because they are forked from the process that made it."""

    def __init__(self, options: argparse.Namespace, pins: dict[str, Any], paths: dict[str, Path]) -> None:
        self.options, self.pins, self.paths = options, pins, paths
        self.data: Path = options.data
        self.staging = self.data / STAGING
        self.classes: list[tuple[str, str]] = []
        self.images: dict[str, Images] = {}
        self._orders: dict[tuple[str, str], array[int]] = {}

    def settings(self, name: str) -> dict[str, Any]:
        """Return the settings that decide the bytes of a format, except the encoder's version."""
        archives = {part: pin["md5"] for part, pin in self.pins["archives"].items()}
        values: dict[str, Any] = {"version": 1, "archives": archives, "resize": self.options.resize}
        if self.options.resize or name == "tfrecord":
            values["quality"] = self.options.quality
        if name != "images":
            values["seed"] = self.seed(name)
        if name == "tfrecord":
            values["shards"] = [self.options.train_shards, self.options.val_shards]
        return values

    def seed(self, name: str) -> int:
        """Return the seed of a format's order."""
        return SEEDS[name] if self.options.seed is None else int(self.options.seed)

    def order(self, name: str, part: str) -> array[int]:
        """Return the numbers of a part's images in the order of a format."""
        key = (name, part)
        if key not in self._orders:
            seed = None if name == "images" else self.seed(name)
            self._orders[key] = shuffled(len(self.images[part]), seed)
        return self._orders[key]

    def units(self, name: str) -> list[Unit]:
        """Return the units of a format in the order of their starts."""
        return [unit for part in PARTS for unit in getattr(self, f"_units_of_{name}")(part)]

    def _units_of_images(self, part: str) -> Iterator[Unit]:
        """Yield a unit for each class, which is a folder of images."""
        labels = self.images[part].label
        first = 0
        for label, (wnid, _) in enumerate(self.classes):
            last = first
            while last < len(labels) and labels[last] == label:
                last += 1
            yield Unit("images", part, label, f"{part}/{wnid}", first, last)
            first = last

    def _units_of_recordio(self, part: str) -> Iterator[Unit]:
        count = len(self.images[part])
        for number, first in enumerate(range(0, count, IMAGES_A_PIECE)):
            last = min(count, first + IMAGES_A_PIECE)
            yield Unit("recordio", part, number, f"{part}.rec", first, last)

    def _units_of_tfrecord(self, part: str) -> Iterator[Unit]:
        """Yield a unit for each shard."""
        count = len(self.images[part])
        shards = self.options.train_shards if part == "train" else self.options.val_shards
        for number in range(shards):
            name = f"{SHARD_NAMES[part]}-{number:05d}-of-{shards:05d}"
            yield Unit(
                "tfrecord", part, number, name, number * count // shards, (number + 1) * count // shards
            )

    def encoder(self, name: str) -> str:
        """Return the encoder that re-encodes images, or "". Another version may make other bytes."""
        if not self.options.resize and name != "tfrecord":
            return ""
        import PIL

        return f"Pillow {PIL.__version__}"

    def bytes_of(self, name: str) -> int:
        """Return the largest space that a format takes. For resized images, it is an estimate."""
        edge = self.options.resize
        count = sum(len(image) for image in self.images.values())
        own = count * edge * edge * 2 // 3 if edge else sum(sum(image.size) for image in self.images.values())
        return own + count * OVERHEAD_BYTES[name]


# Progress


class Progress:
    """The progress of all processes, and the lines that show it."""

    def __init__(self, events: bool, every_s: float) -> None:
        self.events, self.every_s = events, every_s
        self.images = FORK.Value("Q", 0)
        self.bytes = FORK.Value("Q", 0)
        self.phase, self.total, self.unit = "", 0, "images"
        self.began = self.shown = 0.0
        self.before = 0

    def begin(self, phase: str, total: int, finished: int, unit: str = "images") -> None:
        """Begin a phase of a number of images (or bytes). Some of them may be done already."""
        self.phase, self.total, self.unit, self.before = phase, total, unit, finished
        self.images.value, self.bytes.value = finished, 0
        self.began, self.shown = time.monotonic(), 0.0
        self.show(force=True)

    def add(self, images: int, size: int) -> None:
        """Count the work that a process did."""
        for counter, value in ((self.images, images), (self.bytes, size)):
            with counter.get_lock():
                counter.value += value

    def show(self, force: bool = False) -> None:
        """Print the progress if a line is due."""
        now = time.monotonic()
        if not force and now - self.shown < self.every_s:
            return
        self.shown = now
        finished = self.bytes.value if self.unit == "bytes" else self.images.value
        took = max(now - self.began, 1e-6)
        pace = (finished - (0 if self.unit == "bytes" else self.before)) / took
        if self.events:
            value = {"phase": self.phase, "step": finished, "steps": self.total}
            print_event("progress", value)
            if self.unit == "images" and pace:
                print_event("tracked_stats", {"throughput": pace})
            return
        parts = [self.phase]
        if self.unit == "bytes":
            parts.append(
                f"{imagenet_archives.in_words(finished)} of {imagenet_archives.in_words(self.total)}"
            )
        else:
            parts.append(f"{finished:,} of {self.total:,} images")
        if took > 1 and pace:
            parts += [f"{pace:,.0f} images/s"] if self.unit == "images" else []
            parts.append(f"{self.bytes.value / took / 1e6:,.0f} MB/s")
            left = (self.total - finished) / pace
            when = datetime.now() + timedelta(seconds=left)
            parts.append(f"ends about {when:{'%H:%M:%S' if left < 72000 else '%Y-%m-%d %H:%M'}}")
        print(" · ".join(parts), flush=True)


def print_event(key: str, value: Any) -> None:
    """Print an MLLOG event, for the program that follows the job."""
    print(":::MLLOG " + json.dumps({"key": key, "value": value, "metadata": {}}), flush=True)


# Files that appear whole or not at all


def sync_file(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(folder: Path) -> None:
    """Flush all files of a file system to the disk, with one call for the thousand files of a class."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            os.sync()
    finally:
        os.close(descriptor)


def write_file(path: Path, chunks: Iterator[bytes]) -> tuple[int, str]:
    """Write a file under another name, and then rename it. Return its size and SHA-256."""
    draft = draft_of(path)
    digest, size = hashlib.sha256(), 0
    with draft.open("wb") as stream:
        for chunk in chunks:
            stream.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)
    sync_file(path.parent)
    return size, digest.hexdigest()


def whole_entries(lines: list[bytes]) -> list[dict[str, Any]]:
    """Return the entries of a journal without lines that were cut off."""
    entries = []
    for line in lines:
        with contextlib.suppress(ValueError):
            entries.append(json.loads(line))
    return entries


class Journal:
    """The journal of a format. Its first line contains the settings, and each other line is a finished unit.

    A unit counts when its line is on the disk. A line that was cut off does not count, and its unit is made
    again.
    """

    def __init__(self, path: Path, settings: dict[str, Any], encoder: str) -> None:
        self.path = path
        self.done: dict[tuple[str, int], dict[str, Any]] = {}
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        entries = whole_entries(lines)
        head = entries[0] if entries else {"settings": settings, "encoder": encoder}
        self.encoder = head.get("encoder")
        if head.get("settings") != settings:
            raise StagingError(
                f"{path.parent.parent / path.stem} was staged with other settings: "
                f"{differences(head, settings)}; remove it and {path}, or name another --data"
            )
        for entry in entries[1:]:
            self.done[entry["part"], entry["number"]] = entry
        self.known = bool(entries)
        self.stream = path.open("ab")
        if lines and lines[-1]:
            self.stream.write(b"\n")
        if not entries:
            self._write([head])
            sync_file(path.parent)

    def _write(self, entries: list[dict[str, Any]]) -> None:
        lines = [json.dumps(entry, separators=(",", ":")).encode() + b"\n" for entry in entries]
        self.stream.write(b"".join(lines))
        self.stream.flush()
        os.fsync(self.stream.fileno())

    def add(self, entries: list[dict[str, Any]]) -> None:
        """Record units that are on the disk."""
        self._write(entries)
        self.done.update({(entry["part"], entry["number"]): entry for entry in entries})

    def of_part(self, part: str) -> list[dict[str, Any]]:
        """Return the units of a part that are done, in the order of their numbers."""
        entries = (entry for (which, _), entry in self.done.items() if which == part)
        return sorted(entries, key=lambda entry: entry["number"])


def differences(head: dict[str, Any], now: dict[str, Any]) -> str:
    """Return in words how settings differ."""
    then = head.get("settings", {})
    names = [
        f"{key} {then.get(key)} then, {now.get(key)} now" for key in now if then.get(key) != now.get(key)
    ]
    return "; ".join(names) or "by another version of this program"


# Work of one process


class Shared:
    """The state that the processes share while a format is staged, set before they are forked.

    ``known`` has the offset and size of pieces of a .rec file that an earlier run wrote, by number.
    ``archives`` are the open files of the archives, by part. ``parent`` is the id of the process that forked
    the others.
    """

    plan: Plan
    progress: Progress
    # A condition that guards place, which has the number of the next piece of a .rec file (-1 after a process
    # failed) and the piece's position.
    turn: Any
    place: Any
    known: dict[int, tuple[int, int]]
    archives: dict[str, int]
    parent: int


def start_process() -> None:
    """End this process if its parent ends, and leave Ctrl-C to the parent."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != Shared.parent:
        os._exit(1)  # the parent died before this process could set its own death signal
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Shared.archives = {part: os.open(Shared.plan.paths[part], os.O_RDONLY) for part in PARTS}


class Counted:
    """The images counted for the progress, and the unusual ones."""

    def __init__(self) -> None:
        self.images = self.size = 0
        self.odd: list[str] = []

    def add(self, size: int) -> None:
        """Count an image of this number of bytes."""
        self.images, self.size = self.images + 1, self.size + size
        if self.images >= _REPORT_IMAGES:
            self.flush()

    def flush(self) -> None:
        """Report the counts."""
        Shared.progress.add(self.images, self.size)
        self.images = self.size = 0


def prepared(unit: Unit, number: int, counted: Counted) -> tuple[bytes, int, int]:
    """Return an image as the format stores it, with its width and height."""
    plan, images = Shared.plan, Shared.plan.images[unit.part]
    name, options = images.name(number), Shared.plan.options
    data = imagenet_archives.read_at(
        Shared.archives[unit.part], images.offset[number], images.size[number], name
    )
    counted.add(len(data))
    try:
        facts = imagenet_records.facts_of(data)
        if facts.oddity:
            counted.odd.append(f"{name} ({facts.oddity})")
        if options.resize or (facts.oddity and unit.format == "tfrecord"):
            return imagenet_records.encode_again(data, options.resize, options.quality)
    except imagenet_records.BadImage as error:
        raise StagingError(
            f"{name} in {plan.paths[unit.part].name} is not an image that can be used: {error}; fetch the "
            "archive again"
        ) from error
    return data, facts.width, facts.height


def in_words(error: OSError, folder: Path) -> StagingError:
    """Return the StagingError for a system error while a folder is staged."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    reason = "the disk is full" if full else f"{error.filename or 'a file'}: {error.strerror}"
    then = "make room" if full else "put that right"
    return StagingError(f"{folder}: {reason}; what is finished is kept: {then}, and start again")


def make_unit(unit: Unit) -> dict[str, Any]:
    """Make a unit, and return its line for the journal.

    Raises:
        StagingError: The unit cannot be made. The text gives the reason.
    """
    counted = Counted()
    makers: dict[str, Callable[[Unit, Counted], dict[str, Any]]] = {
        "images": make_class,
        "recordio": make_piece,
        "tfrecord": make_shard,
    }
    try:
        result = makers[unit.format](unit, counted)
    except OSError as error:
        raise in_words(error, Shared.plan.data / unit.format) from error
    counted.flush()
    entry = {"part": unit.part, "number": unit.number, "name": unit.name, "objects": unit.last - unit.first}
    return {**entry, **result, **({"odd": counted.odd} if counted.odd else {})}


def make_class(unit: Unit, counted: Counted) -> dict[str, Any]:
    """Write the images of a class into its folder."""
    plan, images = Shared.plan, Shared.plan.images[unit.part]
    target = plan.data / "images" / unit.name
    draft = draft_of(target)
    for left in (draft, target):
        shutil.rmtree(left, ignore_errors=True)
    draft.mkdir()
    digest, size = hashlib.sha256(), 0
    for number in range(unit.first, unit.last):
        data, _, _ = prepared(unit, number, counted)
        (draft / images.name(number)).write_bytes(data)
        digest.update(f"{hashlib.sha256(data).hexdigest()}  {images.name(number)}\n".encode())
        size += len(data)
    sync_file_system(draft)
    draft.rename(target)
    sync_file(target.parent)
    return {"size": size, "sha256": digest.hexdigest()}


def make_shard(unit: Unit, counted: Counted) -> dict[str, Any]:
    """Write a TFRecord file."""
    plan, images = Shared.plan, Shared.plan.images[unit.part]
    order = plan.order("tfrecord", unit.part)

    def records() -> Iterator[bytes]:
        """Yield the shard's images as records of TensorFlow."""
        for number in order[unit.first : unit.last]:
            data, width, height = prepared(unit, number, counted)
            label = images.label[number]
            wnid, words = plan.classes[label]
            example = imagenet_records.image_example(
                images.name(number), wnid, words, label + 1, width, height, data
            )
            yield imagenet_records.tfrecord(example)

    size, digest = write_file(plan.data / "tfrecord" / unit.name, records())
    return {"size": size, "sha256": digest}


def make_piece(unit: Unit, counted: Counted) -> dict[str, Any]:
    """Write records to their place in a .rec file, after the records of the earlier pieces.

    The records are on the disk after ``run_units`` flushed the file, once for several pieces.
    """
    plan, images = Shared.plan, Shared.plan.images[unit.part]
    order = plan.order("recordio", unit.part)
    records = []
    for index in range(unit.first, unit.last):
        number = order[index]
        data, _, _ = prepared(unit, number, counted)
        header = imagenet_records.mxnet_image(images.label[number], number, data)
        records.append(imagenet_records.recordio_record(header))
    content = b"".join(records)
    offset = take_place(unit.number, len(content))
    with draft_of(plan.data / "recordio" / unit.name).open("r+b", buffering=0) as stream:
        view, at = memoryview(content), offset
        while view:
            written = os.pwrite(stream.fileno(), view, at)
            view, at = view[written:], at + written
    digest = hashlib.sha256(content).hexdigest()
    return {
        "size": len(content),
        "sha256": digest,
        "offset": offset,
        "sizes": [len(record) for record in records],
    }


def take_place(number: int, size: int) -> int:
    """Return the position of a piece, after all pieces before it took theirs."""
    turn, place = Shared.turn, Shared.place
    with turn:
        while place[0] != number:
            if place[0] < 0:
                raise StagingError("another process failed")
            turn.wait(5)
        offset = int(place[1])
        place[0], place[1] = number + 1, offset + size
        # Pieces that an earlier run placed stay there.
        while place[0] in Shared.known:
            known_offset, known_size = Shared.known[place[0]]
            if known_offset != place[1]:
                raise StagingError(
                    f"piece {number} of a .rec file has another size than in an earlier run: remove the "
                    f"folder recordio and {STAGING}/recordio.journal, and start again"
                )
            place[0], place[1] = place[0] + 1, known_offset + known_size
        turn.notify_all()
    return offset


# The steps


def run_units(plan: Plan, units: list[Unit], journal: Journal) -> None:
    """Distribute units to the processes, and record each in the journal once it is on the disk.

    Raises:
        StagingError: A unit could not be made.
    """
    processes = min(plan.options.processes, len(units))
    with concurrent.futures.ProcessPoolExecutor(processes, FORK, start_process) as pool:
        waiting: set[concurrent.futures.Future[dict[str, Any]]] = set()
        try:
            # Pass the units one by one. A process that ends meanwhile breaks the pool here too.
            for unit in units:
                waiting.add(pool.submit(make_unit, unit))
            while waiting:
                ended, waiting = concurrent.futures.wait(waiting, 1, concurrent.futures.FIRST_COMPLETED)
                entries = [future.result() for future in ended]
                for path in {
                    plan.data / "recordio" / entry["name"] for entry in entries if "offset" in entry
                }:
                    sync_file(draft_of(path))
                if entries:
                    journal.add(entries)
                Shared.progress.show()
        except BrokenProcessPool as error:
            raise StagingError(
                "a process was killed, perhaps because memory was short; what is finished is kept: "
                "start again, with fewer --processes"
            ) from error
        finally:
            for one in waiting:
                one.cancel()
            give_up_places()


def give_up_places() -> None:
    """Stop processes from waiting for their place in a .rec file."""
    # A process that was killed may hold the lock for ever.
    if Shared.turn.acquire(timeout=5):
        Shared.place[0] = -1
        Shared.turn.notify_all()
        Shared.turn.release()


def begin_places(known: dict[int, tuple[int, int]]) -> None:
    """Place the pieces that an earlier run wrote, up to the first that is missing."""
    Shared.known = known
    number = offset = 0
    while number in known:
        offset += known[number][1]
        number += 1
    Shared.place[0], Shared.place[1] = number, offset


def stage_format(plan: Plan, name: str) -> tuple[bool, dict[str, Any]]:
    """Stage a format. Return whether anything was done, and its description."""
    folder = plan.data / name
    journal = Journal(plan.staging / f"{name}.journal", plan.settings(name), plan.encoder(name))
    refuse_foreign_files(folder, journal)
    for part in PARTS:
        (folder / part if name == "images" else folder).mkdir(parents=True, exist_ok=True)
    if name == "recordio":
        begin_drafts(plan, journal)
    missing = [unit for unit in plan.units(name) if not is_made(plan, unit, journal)]
    if missing:
        make_missing(plan, name, missing, journal)
    changed = bool(missing)
    if name == "recordio":
        changed |= finish_recordio(plan, journal)
    described = describe(plan, name, journal)
    return write_manifest(folder / MANIFEST, described) or changed, described


def refuse_foreign_files(folder: Path, journal: Journal) -> None:
    """Refuse a folder that has files although its journal is new.

    Raises:
        StagingError: There are such files.
    """
    if not journal.done and not journal.known and folder.is_dir() and any(folder.iterdir()):
        journal.path.unlink()
        raise StagingError(f"{folder} has files that its journal lacks: remove them, or name another --data")


def make_missing(plan: Plan, name: str, missing: list[Unit], journal: Journal) -> None:
    """Make the missing units, and show the progress.

    Raises:
        StagingError: Another encoder made the other units, or a unit could not be made.
    """
    folder = plan.data / name
    if journal.encoder != plan.encoder(name):
        raise StagingError(
            f"{folder} was started with {journal.encoder}, and this is {plan.encoder(name)}, whose images "
            f"may differ: go on with that version, or remove {folder} and {journal.path}"
        )
    total = sum(len(image) for image in plan.images.values())
    Shared.progress.begin(name, total, total - sum(unit.last - unit.first for unit in missing))
    # Pieces of a .rec file follow each other, so one part must end before the next begins.
    for part in PARTS:
        units = [unit for unit in missing if unit.part == part]
        if name == "recordio":
            begin_places(
                {entry["number"]: (entry["offset"], entry["size"]) for entry in journal.of_part(part)}
            )
        if units:
            run_units(plan, units, journal)
    Shared.progress.show(force=True)


def write_manifest(path: Path, described: dict[str, Any]) -> bool:
    """Write the manifest of a format's files. Return whether it was missing or different."""
    text = json.dumps(described, indent=1) + "\n"
    if path.is_file() and path.read_text() == text:
        return False
    write_file(path, iter([text.encode()]))
    return True


def is_made(plan: Plan, unit: Unit, journal: Journal) -> bool:
    """Return whether a unit is in the journal, and complete. If it is not complete, remove its entry."""
    entry = journal.done.get((unit.part, unit.number))
    if entry is None:
        return False
    path = plan.data / unit.format / unit.name
    if unit.format == "images":
        is_complete = path.is_dir() and sum(1 for _ in os.scandir(path)) == entry["objects"]
    elif unit.format == "tfrecord":
        is_complete = path.is_file() and path.stat().st_size == entry["size"]
    else:
        is_complete = held_file(path).stat().st_size >= entry["offset"] + entry["size"]
    if not is_complete:
        del journal.done[unit.part, unit.number]
    return is_complete


def draft_of(path: Path) -> Path:
    """Return the name of a file that is not finished."""
    return path.with_name(f".tmp-{path.name}")


def held_file(path: Path) -> Path:
    """Return a file by its name, or by the name of its draft."""
    return path if path.exists() else draft_of(path)


def begin_drafts(plan: Plan, journal: Journal) -> None:
    """Create a file for the pieces of each .rec file. An incomplete one becomes a draft again."""
    for part in PARTS:
        path = plan.data / "recordio" / f"{part}.rec"
        size = max((entry["offset"] + entry["size"] for entry in journal.of_part(part)), default=0)
        if path.exists() and path.stat().st_size != size:
            path.rename(draft_of(path))
        if not path.exists():
            draft_of(path).touch()


def finish_recordio(plan: Plan, journal: Journal) -> bool:
    """Write index and list, and rename the .rec files. Return whether anything was done."""
    folder, changed = plan.data / "recordio", False
    for part in PARTS:
        order = plan.order("recordio", part)
        sizes = [size for entry in journal.of_part(part) for size in entry["sizes"]]
        record = folder / f"{part}.rec"
        for ending, content in (
            ("lst", listing_lines(order, plan.images[part], plan.classes)),
            ("idx", index_lines(order, sizes)),
        ):
            if not (folder / f"{part}.{ending}").is_file() or not record.is_file():
                write_file(folder / f"{part}.{ending}", content)
                changed = True
        if not record.is_file():
            os.truncate(draft_of(record), sum(sizes))
            sync_file(draft_of(record))
            draft_of(record).replace(record)
            sync_file(folder)
    return changed


def index_lines(order: array[int], sizes: list[int]) -> Iterator[bytes]:
    """Yield the lines of a .idx file: the number of each image, and the position of its record."""
    at = 0
    for position, number in enumerate(order):
        yield f"{number}\t{at}\n".encode()
        at += sizes[position]


def listing_lines(order: array[int], images: Images, classes: list[tuple[str, str]]) -> Iterator[bytes]:
    """Yield the lines of a .lst file: number, label, and path below its part of each image."""
    for number in order:
        label = images.label[number]
        yield f"{number}\t{label:.6f}\t{classes[label][0]}/{images.name(number)}\n".encode()


def describe(plan: Plan, name: str, journal: Journal) -> dict[str, Any]:
    """Return a description of a format with the digest of each unit.

    The description is the same for the same settings.
    """
    entries = [journal.done[unit.part, unit.number] for unit in plan.units(name)]
    odd = sorted(one for entry in entries for one in entry.get("odd", []))
    units = {
        f"{entry['name']}@{entry['offset']}" if "offset" in entry else entry["name"]: entry["sha256"]
        for entry in entries
    }
    listing = "".join(f"{digest}  {unit}\n" for unit, digest in units.items())
    return {
        "name": plan.pins["name"],
        "source": ", ".join(pin["name"] for pin in plan.pins["archives"].values()),
        "format": name,
        "settings": plan.settings(name),
        "encoder": journal.encoder,
        "objects": sum(entry["objects"] for entry in entries),
        "objects_by_part": {
            part: sum(entry["objects"] for entry in entries if entry["part"] == part) for part in PARTS
        },
        "size_bytes": sum(entry["size"] for entry in entries),
        "sha256": hashlib.sha256(listing.encode()).hexdigest(),
        "odd_images": odd,
        "units": units,
    }


def scan_part(part: str) -> Any:
    """Read an archive in a separate process."""
    plan = Shared.plan
    md5 = plan.pins["archives"][part]["md5"]
    return imagenet_archives.scan(part, plan.paths[part], md5, lambda size: Shared.progress.add(0, size))


def load_index(plan: Plan) -> bool:
    """Read the index of an earlier run if it is for these archives. Return whether it was."""
    wanted = {part: imagenet_archives.identity_of(path) for part, path in plan.paths.items()}
    try:
        with (plan.staging / INDEX).open(encoding="utf-8") as stream:
            head = json.loads(stream.readline())
            if head["archives"] != wanted or head["pins"] != plan.pins:
                return False
        plan.classes, plan.images = read_index(plan.staging)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def read_index(staging: Path) -> tuple[list[tuple[str, str]], dict[str, Images]]:
    """Return the classes, and the images of each part, from the index.

    Raises:
        OSError, ValueError, KeyError, TypeError: The index is missing or damaged.
    """
    with (staging / INDEX).open(encoding="utf-8") as stream:
        head = json.loads(stream.readline())
        images = {part: Images.read_lines(stream, head["counts"][part]) for part in PARTS}
    return [(wnid, words) for wnid, words in head["classes"]], images


def make_index(plan: Plan) -> None:
    """Check the archives and list their images, in one pass over each. Store the list.

    Raises:
        StagingError: An archive is another file, or the archives do not belong together.
    """
    before = {part: imagenet_archives.identity_of(path) for part, path in plan.paths.items()}
    Shared.progress.begin("checking the archives", sum(size[0] for size in before.values()), 0, "bytes")
    with concurrent.futures.ProcessPoolExecutor(
        min(plan.options.processes, len(before)), FORK, start_process
    ) as pool:
        waiting = {part: pool.submit(scan_part, part) for part in plan.paths}
        while any(not future.done() for future in waiting.values()):
            concurrent.futures.wait(waiting.values(), 1)
            Shared.progress.show()
        parts = {part: future.result() for part, future in waiting.items()}
    Shared.progress.show(force=True)
    plan.classes, plan.images = imagenet_archives.join(
        parts["train"], parts["val"], parts["devkit"], plan.pins
    )
    head = {
        "archives": before,
        "pins": plan.pins,
        "classes": plan.classes,
        "counts": {part: len(image) for part, image in plan.images.items()},
    }

    def lines() -> Iterator[bytes]:
        yield json.dumps(head).encode() + b"\n"
        for part in PARTS:
            for line in plan.images[part].lines():
                yield line.encode()

    write_file(plan.staging / INDEX, lines())


def check_space(plan: Plan, needed: int) -> None:
    """Refuse to stage if too little room is left on the file system."""
    # Files of earlier runs need no further space.
    written = 0
    for name in plan.options.formats:
        with contextlib.suppress(OSError):
            text = (plan.staging / f"{name}.journal").read_bytes()
            for objects, size in re.findall(rb'"objects":(\d+),"size":(\d+)', text):
                written += int(size) + int(objects) * OVERHEAD_BYTES[name]
    free = shutil.disk_usage(existing(plan.data)).free
    if free < needed - written:
        raise StagingError(
            f"too little space on the file system of {plan.data}: {needed - written:,} bytes needed, "
            f"{free:,} free, {needed - written - free:,} missing; free that much there or name another "
            "folder (--data, bench_imagenet)"
        )


def clear_drafts(plan: Plan) -> None:
    """Remove incomplete files of an interrupted run. An incomplete .rec file is continued."""
    for name in ("images", "tfrecord"):
        if (plan.staging / f"{name}.journal").exists():
            for left in [*(plan.data / name).glob(".tmp-*"), *(plan.data / name).glob("*/.tmp-*")]:
                if left.is_dir():
                    shutil.rmtree(left)
                else:
                    left.unlink()


def existing(folder: Path) -> Path:
    """Return the nearest folder that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_packages(options: argparse.Namespace) -> None:
    """Refuse to stage if a package is missing that the formats need."""
    wanted = {}
    if "tfrecord" in options.formats:
        wanted["google_crc32c"] = "google-crc32c, for the checksums of TFRecords"
        wanted["PIL"] = "Pillow, for the 23 images of ImageNet that are not RGB JPEGs"
    if options.resize:
        wanted["PIL"] = "Pillow, for --resize"
    missing = [text for module, text in wanted.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise StagingError(
            f"{sys.executable} lacks {' and '.join(missing)}: make the runtime imagenet (make_runtime.py), "
            "and start this program with its Python"
        )


def stage(options: argparse.Namespace, pins: dict[str, Any]) -> dict[str, Any]:
    """Stage the requested formats. Return the content of the program's last line."""
    paths = imagenet_archives.require_archives(options.archives.absolute(), pins)
    check_packages(options)
    plan = Plan(options, pins, paths)
    # Check the space by the archives' size before they are read, which takes minutes. Later, check it by
    # the size of each image.
    rough = sum(path.stat().st_size for path in paths.values())
    check_space(plan, 0 if options.resize else int(0.95 * rough) * len(options.formats))
    plan.staging.mkdir(parents=True, exist_ok=True)
    Shared.plan, Shared.progress = plan, Progress(options.progress == "events", options.every)
    Shared.turn, Shared.place = FORK.Condition(), FORK.Array("q", 2, lock=False)
    Shared.parent = os.getpid()
    with locked(plan.staging / "lock"):
        clear_drafts(plan)
        changed = not load_index(plan)
        if changed:
            make_index(plan)
        count = sum(len(image) for image in plan.images.values())
        check_space(plan, sum(plan.bytes_of(name) for name in options.formats) + count * INDEX_BYTES)
        results = {}
        for name in options.formats:
            differs, results[name] = stage_in_order(plan, name)
            changed |= differs
    keys = ("objects", "size_bytes", "sha256")
    formats = {name: {key: result[key] for key in keys} for name, result in results.items()}
    if options.progress == "text":
        for name, written in results.items():
            print_odd_images(name, written["odd_images"], encoded=name == "tfrecord" or bool(options.resize))
    return {"changed": changed, "path": str(plan.data), "formats": formats}


def stage_in_order(plan: Plan, name: str) -> tuple[bool, dict[str, Any]]:
    """Stage a format. Return whether anything changed, and its description."""
    # Each process has the orders that it needs before it is forked.
    for part in PARTS:
        plan.order(name, part)
    try:
        return stage_format(plan, name)
    except OSError as error:
        raise in_words(error, plan.data / name) from error


def print_odd_images(name: str, odd: list[str], *, encoded: bool) -> None:
    """Print which images of a format are not RGB JPEGs, and how they were handled."""
    if odd:
        how = "encoded again as RGB JPEG" if encoded else "kept as they are"
        print(
            f"{name}: {len(odd)} images that are not RGB JPEGs were {how}: {', '.join(odd[:3])} ... "
            f"({MANIFEST} has all)"
        )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that the processes of a killed run also hold while one of them lives."""
    with open_lock(path) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another staging holds {path}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def check_data(options: argparse.Namespace) -> None:
    """Read every staged file again.

    Raises:
        StagingError: A file differs from what was staged, or a format is not finished.
    """
    wrong = []
    for name in options.formats:
        try:
            wrong += [str(options.data / name / one) for one in changed_files(options.data, name)]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise StagingError(
                f"{options.data / name} is not staged completely ({error!r}); start without --check"
            ) from error
    if wrong:
        raise StagingError(
            f"{len(wrong)} staged files or pieces changed since, the first is {wrong[0]}: remove "
            f"{options.data} and stage it again"
        )


def changed_files(data: Path, name: str) -> list[str]:
    """Return the files and pieces of a format that differ from what was staged, or that were added.

    Raises:
        OSError, ValueError, LookupError, TypeError: A file that states what was staged is missing or damaged.
    """
    folder = data / name
    described = json.loads((folder / MANIFEST).read_text())
    entries = whole_entries((data / STAGING / f"{name}.journal").read_bytes().split(b"\n"))[1:]
    sizes = {(entry["name"], entry.get("offset")): entry["size"] for entry in entries}
    wrong: list[str] = []
    ends: dict[str, int] = {}
    for unit, digest in described["units"].items():
        path, _, offset = unit.partition("@")
        size = sizes[path, int(offset) if offset else None]
        if digest_of(folder / path, int(offset or 0), size) != digest:
            wrong.append(unit)
        ends[path] = max(ends.get(path, 0), int(offset or 0) + size)
    if name == "images":
        held = [f"{part}/{entry.name}" for part in PARTS for entry in (folder / part).iterdir()]
        return wrong + sorted(set(held) - set(ends))
    # The digests do not cover what follows the last unit of a file.
    wrong += [
        path
        for path, end in ends.items()
        if (folder / path).is_file() and (folder / path).stat().st_size > end
    ]
    if name == "recordio":
        lists = lists_of(data, described["settings"]["seed"], entries)
        wrong += [path for path, content in lists.items() if (folder / path).read_bytes() != content]
        ends.update(dict.fromkeys(lists, 0))
    held_names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    return wrong + sorted(held_names - {*ends, MANIFEST})


def lists_of(data: Path, seed: int, entries: list[dict[str, Any]]) -> dict[str, bytes]:
    """Return the content of the index and list of each .rec file, by name.

    Args:
        data: The staged folder.
        seed: The seed of the order.
        entries: The pieces of the journal.
    """
    classes, images = read_index(data / STAGING)
    sizes_of = {(entry["part"], entry["number"]): entry["sizes"] for entry in entries}
    content = {}
    for part in PARTS:
        order = shuffled(len(images[part]), seed)
        pieces = sorted(number for which, number in sizes_of if which == part)
        sizes = [size for number in pieces for size in sizes_of[part, number]]
        content[f"{part}.idx"] = b"".join(index_lines(order, sizes))
        content[f"{part}.lst"] = b"".join(listing_lines(order, images[part], classes))
    return content


def digest_of(path: Path, offset: int, size: int) -> str:
    """Return the digest of a unit, which is a file, a part of one, or a class's folder."""
    digest = hashlib.sha256()
    if path.is_dir():
        for entry in sorted(path.iterdir(), key=lambda one: one.name):
            digest.update(f"{hashlib.sha256(entry.read_bytes()).hexdigest()}  {entry.name}\n".encode())
    elif path.is_file():
        with path.open("rb") as stream:
            stream.seek(offset)
            digest.update(stream.read(size))
    return digest.hexdigest()


# The command line


def formats(text: str) -> list[str]:
    """Return the formats of a list with commas, in the order of staging."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    strange = [name for name in names if name not in FORMATS]
    if strange or not names:
        raise argparse.ArgumentTypeError(
            f"{strange[0] if strange else text!r}: choose from {', '.join(FORMATS)}"
        )
    return [name for name in FORMATS if name in names]


def number_from(least: int, most: int) -> Callable[[str], int]:
    """Return a reader of whole numbers within bounds."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: a whole number from {least} to {most}")
        return int(text)

    return read


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = arguments.add_argument
    add(
        "--archives",
        type=Path,
        help="folder of the three archives, as image-net.org has them; needed without --check",
    )
    add("--data", type=Path, required=True, help="folder to stage into")
    add("--formats", type=formats, default=list(FORMATS), help="images, recordio, tfrecord (default: all)")
    add("--resize", type=number_from(0, 8192), default=0, help="pixels of the shorter edge; 0: as it is")
    add("--quality", type=number_from(1, 100), default=95, help="of a JPEG that is encoded again")
    add("--seed", type=number_from(0, 999999999), help="of the order; default: im2rec.py's and TensorFlow's")
    add(
        "--train-shards",
        type=number_from(1, 99999),
        default=1024,
        help="TFRecord files of the training images",
    )
    add(
        "--val-shards",
        type=number_from(1, 99999),
        default=128,
        help="TFRecord files of the validation images",
    )
    add("--processes", type=number_from(1, 1024), default=len(os.sched_getaffinity(0)), help="at once")
    add("--pins", type=Path, help="JSON with other names, sizes and MD5 sums, shaped like PINS")
    add("--progress", choices=("text", "events"), default="text", help="lines to read, or MLLOG events")
    add("--every", type=float, default=10.0, help="seconds between two lines of progress")
    add("--check", action="store_true", help="read all that is staged again, and compare it; changes nothing")
    return arguments


def terminated(signum: int, frame: object) -> None:
    """End at once, as with SIGKILL. Other processes end with this one, and finished units are recorded."""
    os.write(2, b"ended by a signal; the same command continues from here\n")
    os._exit(128 + signum)


def main() -> int:
    """Stage as the command line requests. Return the exit status."""
    arguments = parser()
    options = arguments.parse_args()
    if options.archives is None and not options.check:
        arguments.error("the following arguments are required: --archives")
    options.data = options.data.absolute()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, terminated)
    try:
        if options.check:
            check_data(options)
            print(json.dumps({"changed": False, "path": str(options.data), "wrong": []}))
            return 0
        pins = json.loads(options.pins.read_text()) if options.pins else imagenet_archives.PINS
        print(json.dumps(stage(options, pins)))
    except (StagingError, OSError) as error:
        reason = in_words(error, options.data) if isinstance(error, OSError) else error
        print(f"error: {reason}", file=sys.stderr, flush=True)
        return EXIT_DATA
    except (ValueError, KeyError, TypeError) as error:
        if not options.pins:
            raise
        print(f"error: {options.pins} cannot be used: {error!r}", file=sys.stderr, flush=True)
        return EXIT_DATA
    return 0


if __name__ == "__main__":
    sys.exit(main())
