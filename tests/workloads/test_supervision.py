"""Test the supervisor in workloads/common.py, which starts the ranks of a program and watches them.

The tests start a small program with two ranks, and end it in each way: a rank fails or is killed, a signal
comes, or the time is over. They show that the log states how the run ended, and that no rank remains.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Every case starts processes. Together they take longer than `make check` may.
pytestmark = pytest.mark.slow

# A program whose rank 1 does as the option --do requests. The ranks write their process ids to files.
SCRIPT = """
import argparse, os, pathlib, sys, time
sys.path.insert(0, {workloads!r})
import common

def parser():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--do", default="finish")
    common.add_time_limit(arguments)
    return arguments

def work(options, rank, log):
    common.mark_start(rank, log)
    mine = pathlib.Path(__file__).with_name(f"pid-{{rank.index}}")
    # Renamed, it is whole as soon as it is there: the other rank may end this one at once.
    mine.with_suffix(".part").write_text(str(os.getpid()))
    mine.with_suffix(".part").rename(mine)
    if rank.index == 1:
        while not pathlib.Path(__file__).with_name("pid-0").exists():
            time.sleep(0.01)
        if options.do == "refuse":
            raise common.Refusal(3, "loss is nan")
        if options.do == "raise":
            raise ValueError("broken")
        if options.do == "leave":
            os._exit(7)
    if options.do != "finish":
        time.sleep(600)
    common.mark_stop(rank)

sys.exit(common.run("sleeper", parser(), lambda options: 2, work))
"""


@pytest.fixture
def script(root: Path, tmp_path: Path) -> Path:
    """Return the program."""
    path = tmp_path / "sleeper.py"
    path.write_text(SCRIPT.format(workloads=str(root / "workloads")))
    return path


def events(text: str) -> list[dict[str, object]]:
    """Return the events of a log."""
    lines = [line for line in text.splitlines() if ":::MLLOG" in line]
    assert all(line.startswith(":::MLLOG ") for line in lines)
    return [json.loads(line[len(":::MLLOG ") :]) for line in lines]


def ending(text: str) -> dict[str, object]:
    """Return the metadata of the only event run_stop, such as status and reason."""
    stops = [event for event in events(text) if event["key"] == "run_stop"]
    assert len(stops) == 1
    metadata = stops[0]["metadata"]
    assert isinstance(metadata, dict)
    return metadata


def wait_for_ranks(folder: Path) -> list[int]:
    """Return the process ids of both ranks."""
    pids = []
    for index in range(2):
        path = folder / f"pid-{index}"
        while not (path.exists() and path.read_text()):
            time.sleep(0.05)
        pids.append(int(path.read_text()))
    return pids


def assert_gone(pids: list[int]) -> None:
    """Wait until processes have ended. Fail after five minutes."""
    for _ in range(6000):
        left = [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and not zombie(pid)]
        if not left:
            return
        time.sleep(0.05)
    pytest.fail(f"ranks {left} still run")


def zombie(pid: int) -> bool:
    """Return whether a process has ended. A zombie waits until init collects it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_run_that_succeeds_logs_its_steps_and_its_success(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert ending(done.stdout)["status"] == "success"
    keys = [event["key"] for event in events(done.stdout)]
    assert keys == ["init_start", "submission_benchmark", "init_stop", "run_start", "run_stop"]


@pytest.mark.parametrize(
    ("what", "status", "reason"),
    [
        ("refuse", 3, "rank 1: loss is nan"),
        ("raise", 1, "rank 1: ValueError: broken"),
        ("leave", 7, "rank 1: exit status 7"),
    ],
)
def test_a_rank_that_ends_badly_ends_all(script: Path, what: str, status: int, reason: str) -> None:
    done = subprocess.run(
        [sys.executable, str(script), "--do", what], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == status
    assert ending(done.stdout) == {**ending(done.stdout), "status": "aborted", "reason": reason}
    assert_gone(wait_for_ranks(script.parent))


def test_a_run_ends_at_its_time_limit(script: Path) -> None:
    command = [sys.executable, str(script), "--do", "sleep", "--time-limit", "1.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 124
    assert ending(done.stdout)["reason"] == "time limit of 1.5 s reached"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_stop_all_ranks(script: Path, signum: signal.Signals) -> None:
    running = subprocess.Popen(
        [sys.executable, str(script), "--do", "sleep"], stdout=subprocess.PIPE, text=True
    )
    pids = wait_for_ranks(script.parent)
    running.send_signal(signum)
    output, _ = running.communicate()
    assert running.returncode == 128 + signum
    assert ending(output)["status"] == "aborted"
    assert ending(output)["reason"] == f"stopped by {signum.name}"
    assert_gone(pids)


def test_a_killed_rank_is_named(script: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, str(script), "--do", "sleep"], stdout=subprocess.PIPE, text=True
    )
    pids = wait_for_ranks(script.parent)
    os.kill(pids[1], signal.SIGKILL)
    output, _ = running.communicate()
    assert running.returncode == 128 + signal.SIGKILL
    assert "rank 1 was killed by SIGKILL" in str(ending(output)["reason"])
    assert_gone(pids)


def test_ranks_die_with_a_killed_supervisor(script: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(script), "--do", "sleep"], stdout=subprocess.DEVNULL
    ) as running:
        pids = wait_for_ranks(script.parent)
        running.kill()
    assert_gone(pids)


def test_mllog_missing_names_what_to_install(script: Path) -> None:
    # With -S, Python has no site-packages, and therefore no mlperf_logging.
    done = subprocess.run([sys.executable, "-S", str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "mlperf-logging" in done.stderr
    assert "Traceback" not in done.stderr
