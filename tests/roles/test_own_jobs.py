"""Test that Rackproof cancels only this user's jobs when it finds jobs in Slurm by name.

Any user can give a job the name of a night's jobs. If root cancelled by name alone, it would end jobs of
others. The tests use a fake scancel and squeue, and search the code for commands without ``--user``.
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from rackproof.nodes.probe_slurm_jobs import Job, JobRunner
from tests.jobs.validate.probes import plan

SLURM = """\
#!/usr/bin/python3
# The queue is a file with a job in each line: number, user, name, node. As root, scancel ends all that match.
import os, sys
from pathlib import Path

queue = Path(os.environ["QUEUE"])
given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
jobs = [line.split() for line in queue.read_text().splitlines()]
chosen = [
    one
    for one in jobs
    if given.get("user", one[1]) == one[1]
    and given.get("name", one[2]) == one[2]
    and one[3] in given.get("nodelist", one[3]).split(",")
]
if sys.argv[0].endswith("scancel"):
    queue.write_text("".join(" ".join(one) + "\\n" for one in jobs if one not in chosen))
else:
    print("".join(one[0] + "\\n" for one in chosen), end="")
"""
OWN = f"1 {getpass.getuser()} rackproof-night n1"
OTHERS = ("2 bob rackproof-night n1", f"3 {getpass.getuser()} training n1")
# A command that selects jobs by name, and the words that restrict it to one user.
BY_NAME = re.compile(r"\b(?:scancel|squeue|sacct)\b[^\n]*--name|\"--name=\{|f\"--name=")
RESTRICTED = re.compile(r"--user=|OWN_JOBS")
FOLDERS = ("src", "plugins", "roles", "playbooks", "workloads")


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a queue with a job of this user's nights, and two other jobs."""
    for name in ("scancel", "squeue"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(SLURM)
        (tmp_path / "bin" / name).chmod(0o755)
    path = tmp_path / "queue"
    path.write_text("".join(f"{line}\n" for line in (OWN, *OTHERS)))
    monkeypatch.setenv("QUEUE", str(path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return path


def shell(command: str) -> tuple[int, str, str]:
    """Return exit status, output and errors of a command."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_a_new_night_ends_the_jobs_of_its_own_user(root: Path, queue: Path) -> None:
    (task,) = yaml.safe_load((root / "roles/validate/tasks/cancel_leftovers.yml").read_text())
    command = re.sub(r"\{\{.*?\}\}", "n1,n2", task["ansible.builtin.shell"])
    assert shell(command)[0] == 0
    assert queue.read_text().splitlines() == list(OTHERS)


def test_a_night_ends_its_own_job(queue: Path) -> None:
    runner = JobRunner(shell, plan(), {}, {})
    runner._cancel(Job(("n1",), "true\n", 0, 60))
    assert queue.read_text().splitlines() == list(OTHERS)


def test_no_request_to_slurm_by_name_includes_jobs_of_others(root: Path) -> None:
    found = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".py", ".yml", ".j2", ".sh"):
                continue
            lines = path.read_text().splitlines()
            for number, line in enumerate(lines):
                about = "\n".join(lines[max(number - 3, 0) : number + 2])
                if BY_NAME.search(line) and re.search("scancel|squeue|sacct", about):
                    found.append((path.name, bool(RESTRICTED.search(about))))
    assert len(found) >= 3
    # record.py has a command in a message, which an operator types.
    assert [name for name, restricted in found if not restricted] == ["record.py"]
