"""bench.yml with an inventory and stand-ins for programs of a test's own, and what its processes show."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def play_bench(root: Path, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run bench.yml with ``hosts.yml`` and the programs in ``bin`` of a folder. Return status and output."""
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
    """Sample all processes of this machine. Yield the arguments and environments that contain a value."""
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
                # The supervisor marks what belongs to a job: there, and nowhere else, is what the job got.
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
