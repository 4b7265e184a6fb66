#!/usr/bin/env python3
"""Stage the sources of tf_cnn_benchmarks at one commit into a folder, and check their digest.

The benchmark tf-cnn-cpu and workloads/tensorflow/image.sh start this program. The sources are TensorFlow's
own (github.com/tensorflow/benchmarks, Apache-2.0, archived), and no part of Rackproof. ``--source`` is the
URL of an archive (tar.gz), the path of an archive, or a folder with scripts/tf_cnn_benchmarks. The checksum
covers the names and contents of the files below that folder, so it does not depend on how they are packed.
The program needs only the standard library of Python 3.8 or newer.

The last line of output is JSON. Exit status: 0 staged, 2 usage, 5 not staged (the message gives the remedy).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

from bounded_tar import DAMAGE, Member, TooLargeError, members
from limited_download import Limits, add_limits, open_limited
from lock_file import open_lock

EXIT_DATA = 5
PART = "scripts/tf_cnn_benchmarks"
MARKER = "rackproof-sources.json"
MOST_BYTES, MOST_UNPACKED_BYTES = 50_000_000, 200_000_000
"""Largest size of a downloaded archive, and of what an archive unpacks to. The repository has 1 MB and a few
hundred files."""


class StagingError(Exception):
    """A reason why the sources cannot be staged. The text gives the reason and the remedy."""


def wanted(path: str) -> str:
    """Return a file's path below PART in an archive or folder, or "" if the file is not needed."""
    parts = PurePosixPath(path).parts
    # Archives of GitHub contain one folder around everything.
    for begin in (0, 1):
        if parts[begin : begin + 2] == tuple(PART.split("/")) and len(parts) > begin + 2:
            below = parts[begin + 2 :]
            unfit = ".." in below or "__pycache__" in below or path.endswith((".pyc", MARKER))
            return "" if unfit else "/".join(below)
    return ""


def from_archive(data: bytes, name: str) -> dict[str, bytes]:
    """Return the program's files in a tar archive, compressed or not, by their place below PART.

    Raises:
        StagingError: The archive cannot be read, or unpacks to too much.
    """
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), tarinfo=Member) as archive:
            for member in members(archive, MOST_UNPACKED_BYTES):
                stream = archive.extractfile(member) if member.isfile() else None
                place = wanted(member.name)
                if stream is not None and place:
                    files[place] = stream.read()
    except TooLargeError as error:
        raise StagingError(f"{name} is not used: {error}; name another source") from error
    except DAMAGE as error:
        raise StagingError(
            f"{name} is not an archive that can be read ({error}); name another source"
        ) from error
    return files


def from_folder(folder: Path) -> dict[str, bytes]:
    """Return the program's files in a folder, by their place below PART."""
    files = {}
    for path in sorted((folder / PART).rglob("*")):
        place = wanted(path.relative_to(folder).as_posix())
        if place and path.is_file() and not path.is_symlink():
            files[place] = path.read_bytes()
    return files


def obtain(source: str, limits: Limits) -> dict[str, bytes]:
    """Return the program's files, by their place below PART.

    Raises:
        StagingError: The source cannot be read, or has none of the files.
    """
    if source.startswith(("https://", "http://")):
        try:
            with open_limited(source, replace(limits, most_bytes=MOST_BYTES)) as answer:
                data = answer.read(MOST_BYTES)
        except (OSError, ValueError) as error:
            raise StagingError(
                f"{source} cannot be fetched ({error}); put the archive, or its folder, on the node and "
                "name its path in bench_tf_cnn_sources"
            ) from error
        files = from_archive(data, source)
    elif Path(source).is_dir():
        files = from_folder(Path(source))
    elif Path(source).is_file():
        files = from_archive(Path(source).read_bytes(), source)
    else:
        raise StagingError(
            f"{source} is not there; name a URL, an archive or a folder in bench_tf_cnn_sources"
        )
    if not files:
        raise StagingError(f"{source} holds no {PART}; name the archive of github.com/tensorflow/benchmarks")
    return files


def checksum(files: dict[str, bytes]) -> str:
    """Return one checksum of the names and contents of files."""
    lines = (f"{hashlib.sha256(content).hexdigest()}  {place}\n" for place, content in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def stage(source: str, folder: Path, sha256: str, limits: Limits) -> bool:
    """Write the files if the folder does not have them yet. Return whether anything was written.

    Raises:
        StagingError: The files cannot be obtained, or do not have this checksum.
    """
    if (folder / MARKER).is_file() and checksum(from_folder(folder)) == sha256:
        return False
    files = obtain(source, limits)
    found = checksum(files)
    if found != sha256:
        raise StagingError(
            f"{source}: wrong checksum of {PART}: expected {sha256}, got {found}; name the archive of the "
            "commit bench_tf_cnn_ref, or set bench_tf_cnn_sha256 with it"
        )
    made = folder.with_name(folder.name + ".part")
    shutil.rmtree(made, ignore_errors=True)
    for place, content in files.items():
        path = made / PART / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (made / MARKER).write_text(json.dumps({"source": source, "sha256": sha256}))
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(made, folder)
    return True


def main() -> int:
    """Stage the sources under a lock, and print the result. Return the exit status."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--source", required=True, help="URL of an archive, an archive, or a folder")
    arguments.add_argument("--folder", required=True, type=Path, help="where the sources will be")
    arguments.add_argument("--sha256", required=True, help="checksum of the program's files")
    add_limits(arguments)
    options = arguments.parse_args()
    try:
        options.folder.parent.mkdir(parents=True, exist_ok=True)
        with open_lock(f"{options.folder}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            limits = Limits(options.min_bytes_per_s, options.timeout_s)
            changed = stage(options.source, options.folder, options.sha256, limits)
    except StagingError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_DATA
    except OSError as error:
        print(f"error: {error.filename or options.folder}: {error.strerror}", file=sys.stderr, flush=True)
        return EXIT_DATA
    print(json.dumps({"changed": changed, "folder": str(options.folder)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
