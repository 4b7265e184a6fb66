"""Provide functions that run bench.yml with a test's own inventory, and search processes for secrets."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def play_bench(root: Path, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run bench.yml with the inventory ``hosts.yml`` and the fake programs in ``bin`` of a folder.

    Return its status and output.
    """
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            *("-i", folder / "hosts.yml"),
            "bench.yml",
            *arguments,
        ],
        cwd=root,
        env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@contextmanager
def watched_processes(values: list[bytes]) -> Iterator[set[str]]:
    """Read the arguments and environments of all processes, every 20 ms. Yield the set of those with a value.

    An entry begins with ``argv`` for arguments, with ``job`` for the environment of a benchmark's job, and
    with ``environ`` for any other environment.
    """
    found: set[str] = set()
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.02):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    words, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
                except OSError:
                    continue
                if any(value in words for value in values):
                    found.add(f"argv {words[:200]!r}")
                # The supervisor sets this variable for a job's processes, which may have the job's secrets.
                if any(value in environment for value in values):
                    job = b"RACKPROOF_JOB_ID=" in environment
                    found.add(f"{'job' if job else 'environ'} {words[:200]!r}")

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
