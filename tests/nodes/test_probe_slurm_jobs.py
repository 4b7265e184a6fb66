"""Test the runner of a night's Slurm jobs (``rackproof.nodes.probe_slurm_jobs.JobRunner``).

The connection to Slurm's host may end at any time, before or after the host ran a command.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rackproof.nodes.probe_slurm_jobs import Job, JobRunner, ProbeError
from tests.jobs.validate.probes import plan

JOBS = tuple(Job((f"n{number}",), f"echo {number}\n", 4, 60) for number in (1, 2, 3))
SRUN = "#!/bin/sh\necho ':::RACKPROOF-PROBE begin x'\nbash -s\necho ':::RACKPROOF-PROBE end 0'\n"


class Host:
    """Slurm's host, which really runs its commands. The answers in ``lost`` do not come back.

    ``lost`` has pairs of a text of a command and the number of such commands before, and whether the host
    ran the command.
    """

    def __init__(self, folder: Path, lost: dict[tuple[str, int], bool]) -> None:
        self.lost, self.asked = lost, dict.fromkeys((text for text, _ in lost), 0)
        self.environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "TMPDIR": str(folder)}
        self.now = 0.0
        (folder / "srun").write_text(SRUN)
        (folder / "srun").chmod(0o755)

    def shell(self, command: str) -> tuple[int, str, str]:
        fates = [self._fate(text) for text in self.asked if text in command]
        if False in fates:
            return 255, "", "Connection timed out"
        # A started job ends before the next poll.
        command = command.replace(" &)", ")").replace("setsid ", "")
        done = subprocess.run(
            ["sh", "-c", command], env=self.environment, capture_output=True, text=True, check=False
        )
        return (255, "", "Connection reset") if True in fates else (done.returncode, done.stdout, done.stderr)

    def _fate(self, text: str) -> bool | None:
        self.asked[text] += 1
        return self.lost.get((text, self.asked[text] - 1))

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 30.0)


@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize(
    "lost",
    [
        [("tail -c", 0)],
        [("tail -c", 1)],
        [("tail -c", 2)],
        [("tail -c", 1), ("tail -c", 2)],
        [("*.rc", 0)],
        [("*.rc", 1), ("tail -c", 1)],
        [("tail -c", 1), ("*.rc", 1), ("*.rc", 2)],
    ],
)
def test_a_lost_answer_loses_no_result(tmp_path: Path, lost: list[tuple[str, int]], ran: bool) -> None:
    host = Host(tmp_path, dict.fromkeys(lost, ran))
    jobs = JobRunner(host.shell, plan(), {}, {}, clock=lambda: host.now, sleep=host.sleep)
    jobs.begin()
    results = jobs.run(JOBS)
    assert [result.how for result in results] == ["ok"] * 3
    assert [result.sections[0].text for result in results] == ["1", "2", "3"]
    assert jobs.run(JOBS[:1])[0].how == "ok"
    jobs.end()
    assert not list(tmp_path.glob("rackproof-night.*"))


def test_an_output_is_removed_after_it_was_received(tmp_path: Path) -> None:
    host = Host(tmp_path, {})
    jobs = JobRunner(host.shell, plan(), {}, {}, clock=lambda: host.now, sleep=host.sleep)
    jobs.begin()
    jobs.run(JOBS[:1])
    jobs.run(JOBS[1:])
    left = sorted(path.stem for path in tmp_path.glob("rackproof-night.*/*.out"))
    assert left == ["00002", "00003"]


@pytest.mark.parametrize("folder", ["/home", "/", "", "welcome\n/tmp/rackproof-night.x", "/tmp/x; reboot"])
def test_a_folder_that_the_host_did_not_make_is_not_removed(folder: str) -> None:
    commands = []

    def shell(command: str) -> tuple[int, str, str]:
        commands.append(command)
        return 0, folder if command.startswith("mktemp") else "", ""

    jobs = JobRunner(shell, plan(), {}, {})
    with pytest.raises(ProbeError):
        jobs.begin()
    jobs.end()
    assert not [command for command in commands if "rm" in command.split()]
