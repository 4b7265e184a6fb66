"""Imitate downloads of fake data to a folder, which show progress and continue after an interruption.

The download scripts of the image ft-llm call :func:`script` with files of :mod:`fake_ngc.data`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

from fake_ngc.data import Files, checksums

CHUNK = 64 << 10


def _rate() -> float:
    """Return STANDIN_RATE, the rate of a download in bytes per second, or 0 if it is not limited.

    Tests set a rate that is low enough to interrupt a download.
    """
    return float(os.environ.get("STANDIN_RATE") or 0)


def fetch(data: bytes, target: Path) -> str:
    """Write one file as a download does.

    Return ``present`` if the file was complete already, ``resumed`` if a part of it was there, or else
    ``complete``.
    """
    if target.is_file() and target.read_bytes() == data:
        return "present"
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    done = partial.stat().st_size if partial.is_file() else 0
    # Begin again if the partial file is not the beginning of this file.
    if partial.is_file() and partial.read_bytes() != data[:done]:
        done = 0
    how = "resumed" if done else "complete"
    rate = _rate()
    with partial.open("r+b" if done else "wb") as out:
        out.truncate(done)
        out.seek(done)
        for start in range(done, len(data), CHUNK):
            out.write(data[start : start + CHUNK])
            out.flush()
            if rate:
                time.sleep(CHUNK / rate)
        os.fsync(out.fileno())
    if hashlib.sha256(partial.read_bytes()).digest() != hashlib.sha256(data).digest():
        raise SystemExit(f"{target}: what was written is not what was sent; is the disk full or faulty?")
    partial.replace(target)
    return how


def stage(files: Files, folder: Path, checksum_file: str) -> None:
    """Write files to a folder. The list of checksums is written last, and shows that all files are there."""
    total, done = sum(map(len, files.values())), 0
    for name, data in files.items():
        how = fetch(data, folder / name)
        done += len(data)
        print(f"{name}: {how} ({done / total:.0%} of {total / 1e6:.1f} MB)", flush=True)
    fetch(checksums(files), folder / checksum_file)
    print(f"{folder}: complete", flush=True)


def script(files: Files, option: str, checksum_file: str, what: str) -> None:
    """Run a download script, whose only option is the folder. ``what`` describes the script in its help."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument(option, required=True, type=Path, dest="folder")
    stage(files, parser.parse_args().folder, checksum_file)
