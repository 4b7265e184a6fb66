"""Test the start of a night's Slurm jobs (``rackproof.nodes.probe_slurm_jobs.JobRunner``).

Ansible's ssh runs a command in a terminal and closes it at once, which could kill a job before it began. The
tests use a real terminal and a fake srun. They also check a job that never begins, and scripts that are
written again after a lost connection.
"""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import time
from pathlib import Path

import pytest

from rackproof.nodes.probe_slurm_jobs import Job, JobRunner, ProbeError
from tests.jobs.validate.probes import plan

STARTS = 20


def in_a_terminal(command: str) -> tuple[int, str, str]:
    """Run a command in a terminal that is closed at the end of its shell, as sshd does."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp("sh", ["sh", "-c", command])  # noqa: S606  (a terminal of its own)
    said = b""
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:
            break
        if not read:
            break
        said += read
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), said.decode().replace("\r\n", "\n"), ""


def test_every_job_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\ncat > /dev/null\necho ':::RACKPROOF-PROBE begin x'\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    nodes = [f"n{number:02}" for number in range(STARTS)]
    jobs = JobRunner(in_a_terminal, plan(share=1.0), {"batch": STARTS}, dict.fromkeys(nodes, ("batch",)))
    jobs.begin()
    started = [jobs._start(Job((node,), "true\n", 0, 60)) for node in nodes]
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and len(list(tmp_path.glob("rackproof-night.*/*.rc"))) < STARTS:
        time.sleep(0.05)
    assert sorted(path.stem for path in tmp_path.glob("rackproof-night.*/*.rc")) == started
    jobs.end()


def test_a_job_that_never_began_holds_no_place() -> None:
    def shell(command: str) -> tuple[int, str, str]:
        return 0, "/tmp/rackproof-night.x" if command.startswith("mktemp") else "", ""

    now = [0.0]
    jobs = JobRunner(
        shell,
        plan(),
        {"batch": 4},
        {"n01": ("batch",)},
        clock=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    jobs.begin()
    (done,) = jobs.run([Job(("n01",), "true\n", 4, 600)])
    assert (done.how, done.text) == ("lost", "its srun did not start on Slurm's host")
    assert now[0] < 60
    assert jobs.spent == 0


@pytest.mark.parametrize("size", [30_000, 120_000, 180_001])
@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("written", [True, False])
def test_a_script_whose_piece_was_lost_is_written_anew(
    tmp_path: Path, size: int, lost: int, written: bool
) -> None:
    """The host may have run the command whose answer was lost."""
    asked = [0]

    def shell(command: str) -> tuple[int, str, str]:
        asked[0] += command.startswith("printf")
        cut = command.startswith("printf") and asked[0] == lost
        if not cut or written:
            subprocess.run(["sh", "-c", command], check=True)
        return (255, "", "Connection reset") if cut else (0, "", "")

    jobs = JobRunner(shell, plan(), {}, {}, _spool=str(tmp_path))
    for text in (("x" * 99 + "\n") * (size // 100), "other\n"):
        with contextlib.suppress(ProbeError):
            jobs._written(text)
        assert Path(jobs._written(text)).read_text() == text
