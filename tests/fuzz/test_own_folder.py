"""A fuzz program leaves no folder behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
from tests.fuzz.own_folder import own_folder, remove_at_signals

def work(seconds):
    (own_folder() / "file").write_text("x")
    print("ready", flush=True)
    time.sleep(seconds)

remove_at_signals()
with ProcessPoolExecutor(1) as pool:
    list(pool.map(work, [float(sys.argv[1])] * 3))
"""


def start(folder: Path, seconds: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, seconds],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGINT])
def test_every_end_removes_the_folder(tmp_path: Path, number: signal.Signals | None) -> None:
    with start(tmp_path, "600" if number else "0") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        if number:
            program.send_signal(number)
        assert program.wait() == (-number if number else 0)
    assert not list(tmp_path.glob("rackproof-fuzz-*"))


def test_only_the_folder_of_a_dead_program_is_removed(tmp_path: Path) -> None:
    with start(tmp_path, "600") as dead:
        assert dead.stdout is not None
        dead.stdout.readline()
        dead.send_signal(signal.SIGSTOP)
        mine = tmp_path / f"rackproof-fuzz-{os.getpid()}-x"
        mine.mkdir()
        (tmp_path / f"rackproof-fuzz-{2**22 + 1}-x").mkdir()
        start(tmp_path, "0").communicate()
        assert len(list(tmp_path.glob("rackproof-fuzz-*"))) == 2
        assert mine.exists()
        dead.send_signal(signal.SIGCONT)
        dead.terminate()
