"""Test how a benchmark notices other programs on its machine, and that it is the only benchmark there.

``plugins/module_utils/rackproof_load.py`` measures the processor time of other processes during a job,
because a busy machine makes speeds wrong. The machine lock of rackproof_job keeps all other benchmarks off a
machine, across users and checkouts.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "plugins" / "module_utils"))
import rackproof_load

sys.path.pop(0)

from .conftest import Jobs

# The counters of a sample in seconds, at the beginning of a watch.
COUNTERS = {"clock": 0.0, "cpus": 4, "busy": 0.0, "stolen": 0.0, "job": 0.0, "playbook": 0.0, "kernel": 0.0}


def watched(windows: list[dict[str, float]], cpus: int = 4) -> dict[str, Any]:
    """Return the result of a watch after windows of ten seconds. A window has the growth of each counter."""
    watch = rackproof_load.LoadWatch()
    last: dict[str, Any] = {**COUNTERS, "cpus": cpus, "others": {7: ("cc1", 0.0)}}
    for window in windows:
        now = {**last, "clock": last["clock"] + 10}
        for key, grown in window.items():
            now[key] = last[key] + grown
        now["others"] = {7: ("cc1", last["others"][7][1] + 5.0), 8: ("sh\n", 0.01)}
        watch.add(now, last)
        last = now
    return watch.result()


# Processor seconds in a window of ten seconds, the number of processors, and whether the run was slowed down.
# With four processors, 40 seconds are all of them. Others have used busy - job - playbook - kernel. "stolen"
# is the time that a hypervisor gave to other machines.
@pytest.mark.parametrize(
    ("window", "cpus", "disturbed"),
    [
        ({"busy": 40, "job": 39.5}, 4, False),  # the run's own load
        (
            {"busy": 400, "job": 10, "playbook": 1, "kernel": 389},
            64,
            False,
        ),  # threads of the kernel, for its I/O
        ({"busy": 20, "job": 17, "playbook": 3}, 2, False),  # the playbook that follows it
        ({"busy": 14, "job": 10}, 2, False),  # a login: more than half a processor is still idle
        ({"busy": 300, "job": 80}, 64, False),  # a third of a large machine, of which half is idle
        ({"busy": 40, "job": 20}, 4, True),
        ({"busy": 20, "job": 1.5}, 2, True),
        ({"busy": 640, "job": 160}, 64, True),
        ({"busy": 350, "job": 10}, 64, True),  # others use more than half, and share memory and power
        ({"busy": 10, "job": 10, "stolen": 4}, 2, True),
        ({"busy": 10, "job": 10, "stolen": 70}, 64, True),
        ({"busy": 250, "job": 250, "stolen": 60}, 64, False),  # did not slow an LLM on four H100
    ],
)
def test_only_what_others_use_slows_a_run_down(window: dict[str, float], cpus: int, disturbed: bool) -> None:
    use = watched([window], cpus)
    assert (use["disturbed_s"] > 0) == disturbed
    assert ("cc1" in use["names"]) == disturbed


def test_windows_are_summed_up() -> None:
    use = watched([{"busy": 40, "job": 20}, {"busy": 40, "job": 40}, {"busy": 40, "job": 39}, {}])
    assert use["seconds"] == 40
    assert use["disturbed_s"] == 10
    assert use["others_s"] == 21


@pytest.mark.parametrize(
    ("allowed", "expected"), [({0}, (1, 1.5, 0.25)), ({0, 1}, (2, 4.5, 0.25)), ({5}, (0, 0.0, 0.0))]
)
def test_only_processors_that_the_job_may_use_count(
    allowed: set[int], expected: tuple[int, float, float]
) -> None:
    ticks = os.sysconf("SC_CLK_TCK") / 100
    rows = {"cpu": [900] * 8, "cpu0": [100, 20, 30, 800, 5, 6, 7, 25], "cpu1": [300, 0, 0, 0, 0, 0, 0, 0]}
    text = "\n".join(f"{name} {' '.join(str(int(one * ticks)) for one in row)}" for name, row in rows.items())
    assert rackproof_load.processor_seconds(text + "\nintr 1 2 3\n", allowed) == expected


@pytest.mark.parametrize("text", ["", "some", "some avg10=x avg60=1", "full avg10=3.0 avg60=1 total=5"])
def test_a_pressure_that_is_not_stated_is_not_known(text: str) -> None:
    assert rackproof_load.pressure(text) is None


@pytest.mark.parametrize(
    "script",
    [
        "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done",  # the program itself
        "(i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done) & wait",  # a child that it waits for
        "(i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done) | cat",
    ],
)
def test_what_a_job_and_its_children_use_is_its_own(script: str) -> None:
    # The kernel counts the time of each process, so other programs on this machine do not matter here.
    watch = rackproof_load.LoadWatch()
    before = os.times()
    subprocess.run(["sh", "-c", script], check=True)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used > 0.05
    assert watch.sample()["job"] - watch.last["job"] == pytest.approx(used, abs=0.05)


def test_a_living_child_is_its_own_too() -> None:
    watch = rackproof_load.LoadWatch()
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as child:
        try:
            deadline = time.monotonic() + 300
            while watch.sample()["job"] - watch.last["job"] < 0.2 and time.monotonic() < deadline:
                time.sleep(0.05)
            sample = watch.sample()
            assert sample["job"] - watch.last["job"] >= 0.2
            assert child.pid not in sample["others"]
        finally:
            child.kill()


def test_a_machine_without_these_files_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise PermissionError

    monkeypatch.setattr(rackproof_load.os, "listdir", refuse)
    watch = rackproof_load.LoadWatch()
    watch.look(end=True)
    assert watch.result()["cpus"] == 0


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize("user", [None, 65534])
def test_two_benchmarks_of_a_machine_run_one_after_the_other(jobs: Jobs, user: int | None) -> None:
    # The benchmarks have separate folders and node locks, as in two checkouts, but one machine lock.
    if user is not None and os.geteuid() != 0:
        pytest.skip("needs root to be another user")
    # All users may write to this folder, as to /run/lock. Only root may enter pytest's folders.
    with tempfile.TemporaryDirectory(prefix="rackproof-", dir="/tmp") as folder:
        shared = Path(folder)
        shared.chmod(0o1777)
        one_after_the_other(jobs, shared, user)


def one_after_the_other(jobs: Jobs, shared: Path, user: int | None) -> None:
    """Check that a second benchmark is refused while the first one runs, and a third one starts after it."""
    tmp_path = jobs.folder
    lock = str(shared / "machine.lock")
    other: dict[str, Any] = {"machine_lock": lock, "lock": str(shared / "second.lock"), "timeout_s": 60}
    if user is not None:
        other["_user"] = user
    first = jobs("first", "sleep 60", machine_lock=lock, lock=str(tmp_path / "first.lock"))
    assert "failed" not in first
    refused = jobs.modules(
        "rackproof_job", **other, id="second", folder=str(shared / "second"), argv=["true"]
    )
    assert refused["failed"]
    assert "another benchmark runs on it (process " in refused["msg"]
    assert "wait for it" in refused["msg"]
    assert Path(lock).read_text() == ""
    # The same job again is found, not refused.
    assert jobs("first", "sleep 60", machine_lock=lock)["job"]["phase"] == "running"
    jobs.modules("rackproof_job", id="first", folder=str(tmp_path / "first"), state="absent")
    again = jobs("third", "true", machine_lock=lock)
    assert "failed" not in again


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "socket"])
def test_a_lock_that_another_user_made_of_something_else_is_refused_at_once(jobs: Jobs, kind: str) -> None:
    lock = jobs.folder / "machine.lock"
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    elif kind == "link":
        lock.symlink_to(jobs.folder / "shadow")
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(lock))
    refused = jobs.modules(
        "rackproof_job",
        machine_lock=str(lock), lock=str(jobs.folder / "lock"), timeout_s=60,
        id="first", folder=str(jobs.folder / "first"), argv=["true"],
    )  # fmt: skip
    assert refused["failed"]
    assert "machine.lock" in refused["msg"]
    assert not (jobs.folder / "shadow").exists()
