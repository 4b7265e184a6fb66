"""Test workloads/run_command.py, which runs a program that is installed on the node.

The log begins with the path and digest of that program, because another build is another program. The tests
also show which exit statuses and signals are passed on.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def run(
    root: Path, *command: str, path: str = "/usr/bin:/bin", folder: Path | str = "", gpus: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the program with a command, a search path, a folder to start in, and a number of GPUs to state."""
    return subprocess.run(
        [sys.executable, root / "workloads/run_command.py", *command],
        env={"PATH": path, "RACKPROOF_START_FOLDER": str(folder), "RACKPROOF_STATE_GPUS": gpus},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_output_follows_one_line_with_path_and_digest(root: Path, tmp_path: Path) -> None:
    program = tmp_path / "measure"
    program.write_text("#!/bin/sh\necho Triad: $1\n")
    program.chmod(0o755)
    ended = run(root, "measure", "12", path=f"{tmp_path}:/usr/bin:/bin")
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    assert ended.stdout == f"rackproof: program {program}, sha256 {digest}\nTriad: 12\n"
    assert ended.returncode == 0


@pytest.mark.parametrize("status", [1, 4, 5, 9, 124])
def test_any_exit_status_but_0_becomes_1_and_is_named(root: Path, status: int) -> None:
    ended = run(root, "sh", "-c", f"exit {status}")
    assert ended.returncode == 1
    assert f"ended with exit status {status}" in ended.stdout


@pytest.mark.parametrize("name", ["no-such-program", "/no/such/program", "."])
def test_a_program_that_is_not_there_is_named(root: Path, name: str) -> None:
    ended = run(root, name)
    assert ended.returncode == 9
    assert f"rackproof: {name} is not on this node" in ended.stdout


def test_a_signal_is_passed_on(root: Path) -> None:
    assert run(root, "sh", "-c", "kill -SEGV $$").returncode == -signal.SIGSEGV


def test_a_program_starts_in_its_folder_and_may_be_there(root: Path, tmp_path: Path) -> None:
    program = tmp_path / "measure"
    program.write_text("#!/bin/sh\ncat input\n")
    program.chmod(0o755)
    (tmp_path / "input").write_text("N = 4000\n")
    ended = run(root, "./measure", folder=tmp_path)
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    assert ended.stdout == f"rackproof: program {program}, sha256 {digest}\nN = 4000\n"


@pytest.mark.parametrize("folder", ["/no/such/folder", "/etc/passwd"])
def test_a_folder_that_is_not_there_is_named(root: Path, folder: str) -> None:
    ended = run(root, "sh", "-c", "true", folder=folder)
    assert ended.returncode == 9
    assert ended.stdout.startswith(f"rackproof: sh cannot start in {folder}: ")


@pytest.mark.parametrize("gpus", ["", "0", "2"])
def test_without_a_driver_no_gpu_is_stated_and_the_output_is_whole(root: Path, gpus: str) -> None:
    """The run is then unproven, because its log states no GPU."""
    ended = run(root, "echo", "done", gpus=gpus)
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[1:] == ["done"]
