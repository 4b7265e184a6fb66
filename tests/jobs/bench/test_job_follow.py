"""Test ``rackproof.jobs.bench.job_follow``, which shows the progress of a job on a node.

The follower runs a small shell command on the node every few seconds (a poll), and prints a line about the
job from time to time. The tests check the command on a real folder, the reading of answers that are whole,
cut off or hostile, the waits between polls, the expected end, and the lines that the operator sees.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackproof.jobs.bench.job_follow import (
    BACKLOG_BYTES,
    CHUNK_BYTES,
    Estimate,
    PollResult,
    ProgressPrinter,
    next_offset,
    next_pause,
    parse_poll,
    poll_command,
)
from rackproof.logs.progress import Follower, Progress

BOOT = "11111111-2222-4333-8444-555555555555"
STATE = {
    "id": "run-1",
    "phase": "running",
    "pid": 501,
    "supervisor_pid": 500,
    "supervisor_start_ticks": 90_000,
    "boot_id": BOOT,
    "token": "secret",
}


def stat(ticks: int = 90_000, letter: str = "S") -> str:
    """Return the supervisor's /proc/PID/stat: its start in kernel ticks (1/100 s), and its state."""
    return f"500 (python3 (x) y) {letter} 1 500 500 " + "0 " * 15 + f"{ticks} 0 0"


def answer_text(
    state: dict[str, Any] | str | None = None,
    boot: str = BOOT,
    uptime: str = "1000.50 1.00",
    stat_line: str = "",
    log: bytes = b"",
    size: int | None = None,
) -> str:
    """Return a node's answer to a poll. By default the job does not exist, and the log is empty."""
    said = [] if state is None else [state if isinstance(state, str) else json.dumps(state) + " " * 50]
    lines = ["rackproof:state", *said, boot, uptime, *([stat_line] if stat_line else [])]
    lines += [
        f"rackproof:log {len(log) if size is None else size}",
        *base64.encodebytes(log).decode().split(),
    ]
    return "\n".join([*lines, "rackproof:end", ""])


class Clock:
    """A clock that a test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def printer(clock: Clock, **options: Any) -> ProgressPrinter:
    wall = lambda: datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)  # noqa: E731
    return ProgressPrinter("run-1", "node-1", clock=clock, wall=wall, **options)


def test_the_command_reads_a_real_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a folder; with 'quotes' $HOME"
    folder.mkdir()
    (folder / "log.txt").write_bytes(bytes(range(256)) * 10)
    own = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    state = STATE | {
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "supervisor_pid": os.getpid(),
        "supervisor_start_ticks": int(own[19]),
    }
    (folder / "state.json").write_text(json.dumps(state) + " " * 100 + "\n")

    def ask(*options: Any, **more: Any) -> PollResult:
        done = subprocess.run(
            ["sh", "-c", poll_command(str(folder), *options, **more)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return parse_poll(done.stdout, os.getpid())

    first = ask(0, os.getpid())
    assert first.data == bytes(range(256)) * 10
    assert (first.log_bytes, first.alive, first.ended) == (2560, True, False)
    assert first.age_s is not None
    assert first.state is not None
    assert "token" not in first.state
    assert ask(2550, os.getpid(), limit=4).data == bytes(range(246, 250))
    assert ask(2560, os.getpid()).data == b""
    assert ask(9999).data == b""
    (folder / "log.txt").unlink()
    assert ask(0).log_bytes == 0
    (folder / "state.json").unlink()
    assert ask(0).state is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rackproof:nofolder\n", PollResult(None, None, None, 0, b"")),
        (answer_text(), PollResult(None, None, None, 0, b"")),
        (
            answer_text(STATE, log=b"hello\xff\r\n\x00", stat_line=stat()),
            PollResult(
                {k: v for k, v in STATE.items() if k != "token"}, True, 100.5, 9, b"hello\xff\r\n\x00"
            ),
        ),
        (
            answer_text(STATE, stat_line=stat()).replace("\n", "\r\n"),
            PollResult({k: v for k, v in STATE.items() if k != "token"}, True, 100.5, 0, b""),
        ),
    ],
)
def test_whole_answers_are_read(text: str, expected: PollResult) -> None:
    assert parse_poll(text, 500) == expected


# The supervisor is alive if its stat has the process id and the start of state.json, in this boot, and does
# not show a zombie (Z). Without a process id to compare, this is not known.
@pytest.mark.parametrize(
    ("changes", "pid", "alive"),
    [
        ({"stat_line": stat()}, 500, True),
        ({"stat_line": stat()}, 0, None),
        ({"stat_line": ""}, 500, False),
        ({"stat_line": stat(ticks=90_001)}, 500, False),
        ({"stat_line": stat(letter="Z")}, 500, False),
        ({"stat_line": stat(), "boot": BOOT.replace("1", "9")}, 500, False),
        ({"stat_line": "500 (x"}, 500, False),
    ],
)
def test_a_supervisor_is_alive_only_with_its_process_id_and_start_in_this_boot(
    changes: dict[str, Any], pid: int, alive: bool | None
) -> None:
    assert parse_poll(answer_text(STATE, **changes), pid).alive is alive


# The node is up for 1000.5 s, and the job started at 900 s (90,000 ticks).
@pytest.mark.parametrize(
    ("changes", "age_s"),
    [
        ({}, 100.5),
        ({"uptime": "3.00 1.00"}, None),  # a container with a clock of its own
        ({"uptime": "nonsense"}, None),
        ({"boot": "nonsense"}, None),
    ],
)
def test_the_age_of_a_job_is_measured_by_the_node_s_clock(
    changes: dict[str, Any], age_s: float | None
) -> None:
    assert parse_poll(answer_text(STATE, **changes)).age_s == age_s


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Connection closed by remote host",
        answer_text(STATE)[:-5],
        answer_text(STATE).replace("rackproof:state", ""),
        answer_text(STATE).replace("rackproof:log 0", "rackproof:log many"),
        answer_text(STATE).replace("rackproof:log 0", "rackproof:log "),
        answer_text(STATE, log=b"hello").replace("aGVs", "a*Vs"),
        answer_text("{"),
        answer_text('{"phase": "running"}'),
        answer_text('{"a":' * 2000),
        answer_text(json.dumps(STATE | {"phase": "dancing"})),
        answer_text(json.dumps(STATE | {"supervisor_pid": "1; rm"})),
        answer_text(STATE | {"supervisor_start_ticks": 10**400}),
        answer_text(STATE | {"supervisor_start_ticks": -1}),
        answer_text(STATE | {"supervisor_pid": True}),
        answer_text(STATE | {"pid": 10**400}),
        answer_text(STATE, size=-5),
        answer_text(STATE, size=1 << 63),
        answer_text(STATE, size=10**400),
    ],
)
def test_an_answer_that_is_cut_off_or_invalid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"answer|state|Expecting|property"):
        parse_poll(text)


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    for whole in (
        text,
        answer_text("{" + text),
        f"rackproof:state\n{text}\nrackproof:log 1\n{text}\nrackproof:end",
    ):
        try:
            answer = parse_poll(whole)
        except ValueError:
            continue
        assert not answer.ended


# Offsets and sizes are in bytes. If too much is unread, the next poll reads only the end of the log.
@pytest.mark.parametrize(
    ("offset", "log_bytes", "data", "patient", "expected"),
    [
        (0, 0, b"", False, 0),
        (0, 10, b"x" * 10, False, 10),
        (10, 30, b"x" * 10, False, 20),
        (100, 40, b"", False, 40),  # the log was cut back
        (0, CHUNK_BYTES + 11, b"x" * 10, False, 11),
        (0, CHUNK_BYTES + 11, b"x" * 10, True, 10),
        (0, BACKLOG_BYTES + 11, b"x" * 10, True, BACKLOG_BYTES + 11 - CHUNK_BYTES),
    ],
)
def test_the_next_poll_reads_what_is_unread_or_the_end_of_the_log(
    offset: int, log_bytes: int, data: bytes, patient: bool, expected: int
) -> None:
    assert next_offset(offset, PollResult(None, None, None, log_bytes, data), patient) == expected


# The pause in seconds grows with the time followed so far, and with the duration of a poll.
@pytest.mark.parametrize(
    ("followed_s", "poll_s", "expected"),
    [
        (0, 0.01, 0.5),
        (16, 0.01, 2.0),
        (10_000, 0.01, 5.0),
        (0, 0.3, 3.0),  # a slow connection is not kept busy
        (10_000, 60.0, 30.0),
    ],
)
def test_pauses_grow_with_time_and_with_slow_polls(followed_s: float, poll_s: float, expected: float) -> None:
    assert next_pause(followed_s, poll_s) == pytest.approx(expected)


def test_a_poll_waits_on_the_node_but_not_after_the_end_of_the_job(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "3600"]) as process:
        begin = time.monotonic()
        subprocess.run(
            ["sh", "-c", poll_command(str(tmp_path), 0, job_pid=process.pid, wait_s=0.5)], check=True
        )
        assert time.monotonic() - begin > 0.4
        assert process.poll() is None
        process.kill()
    done = subprocess.run(
        ["sh", "-c", poll_command(str(tmp_path), 0, job_pid=process.pid, wait_s=3600)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert parse_poll(done.stdout) == PollResult(None, None, None, 0, b"")


# All numbers but the progress (0 to 1) are seconds. `expected_s` is the duration of earlier jobs, `seen` are
# pairs of elapsed time and progress, and `left` is the expected time until the end, `at` s after the start.
@pytest.mark.parametrize(
    ("expected_s", "seen", "at", "left"),
    [
        (None, [], 10, None),
        (60, [], 10, 50),
        (60, [], 70, -10),
        (None, [(10, 0.5)], 10, 10),
        (None, [(10, 0.5)], 14, 6),
        (None, [(30, 0.0), (40, 0.5)], 40, 10),  # thirty seconds of start-up do not count for the pace
        (None, [(30, 0.001), (31, 0.002)], 31, None),  # too little progress for an estimate
        (500, [(30, 0.001), (31, 0.002)], 31, 469),
        (None, [(10, 0.9), (20, 0.1), (30, 0.2)], 30, 80),  # started again
        (60, [(10, float("nan")), (11, 7.0), (12, -1.0)], 20, 40),
        (None, [(10, 1.0)], 10, None),  # all steps are done, and what is left has no steps
        (60, [(5, 0.5), (10, 1.0)], 20, 40),
        (60, [(5, 0.5), (10, 1.0)], 61, None),
    ],
)
def test_the_expected_end_depends_on_earlier_jobs_and_on_the_progress(
    expected_s: float | None, seen: list[tuple[float, float]], at: float, left: float | None
) -> None:
    estimate = Estimate(expected_s)
    for elapsed_s, fraction in seen:
        estimate.observe(elapsed_s, fraction)
    assert estimate.left_s(at) == (None if left is None else pytest.approx(left))


@pytest.mark.parametrize("expected_s", [1e12, 1e18, 1e300])
def test_an_end_beyond_all_calendars_is_not_shown(expected_s: float) -> None:
    line = printer(Clock(), expected_s=expected_s).progress_line(Progress(), 10.0, 5)
    assert line == "run-1 · node-1 · 10.0 s elapsed"


# A quarter of the job took 30 s, so all its epochs take 120 s. It may end earlier, at its target.
@pytest.mark.parametrize(
    ("expected_s", "at", "left"),
    [
        (None, 30, 90),  # all epochs at this pace
        (60, 30, 30),  # earlier jobs ended after half of them
        (60, 61, 59),  # this one takes longer
        (500, 30, 90),  # never later than the last epoch
    ],
)
def test_the_end_of_a_job_with_a_target_is_estimated_from_earlier_jobs(
    expected_s: float | None, at: float, left: float
) -> None:
    estimate = Estimate(expected_s)
    for elapsed_s, fraction in ((0, 0.0), (30, 0.25)):
        estimate.observe(elapsed_s, fraction)
    assert estimate.left_s(at, may_end_early=True) == pytest.approx(left)


def test_without_an_earlier_job_the_last_epoch_is_the_latest_end() -> None:
    clock = Clock()
    shown = printer(clock)
    shown.progress_line(Progress(epoch=1, epochs=12, target=0.99, fraction=0.0), 0, 1)
    clock.now += 30
    line = shown.progress_line(Progress(epoch=3, epochs=12, target=0.99, fraction=0.25), 30, 2)
    assert line is not None
    assert line.endswith("ends at the latest about 12:01:30 (in 1 min 30 s)")


def test_a_download_shows_its_size_and_its_end() -> None:
    clock = Clock()
    shown, log = printer(clock), Follower("auto")

    def line(done: float, total: float) -> str:
        report = {"phase": "fetching torch", "bytes": int(done), "of_bytes": int(total)}
        progress = log.feed(f":::RACKPROOF {json.dumps(report)}\n".encode())
        return shown.progress_line(progress, clock.now - 1000, int(clock.now) + 1) or ""

    line(0.4e9, 7.4e9)
    clock.now += 60
    assert "fetching torch · 1.4 of about 7.4 GB · 1 min 00 s elapsed · ends about" in line(1.4e9, 7.4e9)
    clock.now += 60
    assert "(in 5 min 00 s)" in line(2.4e9, 7.4e9)
    clock.now += 600
    # If the download is larger than expected, the rest is not known.
    assert "fetching torch · 8.0 GB ·" in line(8e9, 7.4e9)


@pytest.mark.parametrize("report", [{"bytes": "x", "of_bytes": []}, {"bytes": -1}, {"bytes": 1e300}, {}])
def test_a_report_without_a_size_shows_its_phase_alone(report: dict[str, Any]) -> None:
    log = Follower("auto")
    text = json.dumps({"phase": "waiting", **report})
    progress = log.feed(f":::RACKPROOF {text}\n".encode())
    assert (progress.phase, progress.fraction) == ("waiting", None)


def test_the_lines_of_a_training_show_its_progress() -> None:
    clock = Clock()
    shown = printer(clock, expected_s=60)
    script = [
        (0, Progress(), 0),
        (2, Progress(phase="init"), 10),
        (3, Progress(phase="init"), 20),
        (12, Progress(phase="init"), 30),
        (14, Progress(phase="train", epoch=1, epochs=12, step=10, steps=5628, fraction=0.0), 40),
        (15, Progress(phase="train", epoch=1, epochs=12, step=100, fraction=0.02), 50),
        (19, Progress(phase="train", epoch=2, epochs=12, loss=0.0412, fraction=0.1), 60),
        (20, Progress(phase="train", epoch=3, epochs=12, loss=0.04, fraction=0.12), 70),
        (
            29,
            Progress(
                phase="train",
                epoch=3,
                epochs=12,
                step=1400,
                steps=5628,
                loss=0.0312,
                accuracy=0.98712,
                target=0.99,
                throughput=98123.4,
                throughput_unit="samples/s",
                fraction=0.25,
            ),
            80,
        ),
    ]
    lines = []
    for at, said, log_bytes in script:
        clock.now = 1000 + at
        line = shown.progress_line(said, at, log_bytes)
        if line is not None:
            lines.append(line)
    head = "run-1 · node-1"
    assert lines == [
        f"{head} · 0.0 s elapsed · ends about 12:01:00 (in 1 min 00 s)",
        f"{head} · init · 2.0 s elapsed · ends about 12:00:58 (in 58.0 s)",
        f"{head} · init · 12.0 s elapsed · ends about 12:00:48 (in 48.0 s)",
        f"{head} · train · epoch 1/12 · step 10/5,628 · 14.0 s elapsed · ends about 12:00:46 (in 46.0 s)",
        f"{head} · train · epoch 2/12 · loss 0.0412 · 19.0 s elapsed · ends about 12:00:45 (in 45.0 s)",
        f"{head} · train · epoch 3, at most 12 · step 1,400/5,628 · loss 0.0312"
        # It ends when the target is reached, and such jobs took a minute.
        " · accuracy 0.9871 (target 0.99) · 98,123 samples/s · 29.0 s elapsed"
        " · ends about 12:00:31 (in 31.0 s)",
    ]
    assert shown.lines == len(lines)


def test_a_silent_job_is_mentioned_ever_more_rarely() -> None:
    """The time between two lines doubles from 10 s to at most 300 s."""
    clock = Clock()
    shown = printer(clock)
    told = []
    for second in range(1200):
        clock.now = 1000 + second
        line = shown.progress_line(Progress(phase="train"), second, 77, hang_s=3600)
        if line is not None:
            told.append((second, line))
    assert [second for second, _ in told] == [0, 10, 30, 70, 150, 310, 610, 910]
    assert told[2][1] == (
        "run-1 · node-1 · train · no output for 30.0 s (stopped at 1 h 00 min) · 30.0 s elapsed"
    )
    clock.now += 1
    assert shown.progress_line(Progress(phase="train"), 1200, 78) is not None, (
        "read at once when the log grows again"
    )


def test_a_flood_of_epochs_is_throttled() -> None:
    """Ten new epochs a second, for 100 s, give a line every 2 s, a fifth of ``every_s``."""
    clock = Clock()
    shown = printer(clock, every_s=10)
    for tenth in range(1000):
        clock.now = 1000 + tenth / 10
        shown.progress_line(Progress(epoch=tenth), tenth / 10, tenth)
    assert shown.lines == 50


def test_a_lost_connection_is_shown_ever_more_rarely_and_its_return_once() -> None:
    clock = Clock()
    shown = printer(clock)
    assert shown.connection_restored() is None
    lines = []
    for second in range(100):
        clock.now = 1000 + second
        line = shown.connection_lost("ssh: \x1b[31mno route\x1b[0m to host\x07")
        if line is not None:
            lines.append((second, line))
    assert [second for second, _ in lines] == [0, 10, 30, 70]
    assert lines[1][1] == (
        "run-1 · node-1 · no answer for 10.0 s, trying again (the job continues): ssh: no route to host"
    )
    assert shown.connection_restored() == "run-1 · node-1 · answers again after 1 min 39 s"
    assert shown.connection_restored() is None


@pytest.mark.parametrize(
    ("state", "said", "expected"),
    [
        (
            {"message": "ended with exit status 0", "elapsed_s": 45.2},
            Progress(phase="train", epoch=12, epochs=12, loss=0.01, accuracy=0.991, target=0.99, step=7),
            "ended with exit status 0 · epoch 12/12 · loss 0.01 · accuracy 0.991 (target 0.99)"
            " · 45.2 s elapsed · log 2 KiB",
        ),
        (
            {"message": "ended with exit status 0"},
            Progress(phase="train", epoch=3, epochs=12, accuracy=0.991, target=0.99),
            "ended with exit status 0 · epoch 3 · accuracy 0.991 (target 0.99) · log 2 KiB",
        ),
        (
            {"message": "killed by signal 9", "elapsed_s": None},
            Progress(),
            "killed by signal 9 · log 2 KiB",
        ),
        ({"message": "ended", "elapsed_s": 10**400}, Progress(), "ended · log 2 KiB"),
        ({"message": "ended", "elapsed_s": True}, Progress(), "ended · log 2 KiB"),
        ({"message": "ended", "elapsed_s": float("inf")}, Progress(), "ended · log 2 KiB"),
        (
            {"message": "\x1b[2Jgone\n::x"},
            Progress(loss=float("nan")),
            "gone ::x · loss NaN · log 2 KiB",
        ),
    ],
)
def test_the_last_line_shows_the_end_and_the_last_progress(
    state: dict[str, Any], said: Progress, expected: str
) -> None:
    assert printer(Clock()).end_line(said, state, 2048) == f"run-1 · node-1 · {expected}"


@pytest.mark.parametrize(
    "said",
    [
        Progress(phase="\x1b]0;owned\x07train\x1b[2K\r"),
        Progress(throughput=1.0, throughput_unit="\x1b[31msamples/s\n[x]"),
        Progress(message="progress\x1b[1A\x1b[2K\u202eevil\n"),
        Progress(step=10**400, loss=float("-inf"), epoch=-(10**400), throughput=10**400),
    ],
)
def test_hostile_text_of_a_log_does_not_reach_the_terminal(said: Progress) -> None:
    line = printer(Clock()).progress_line(said, 1.0, 5)
    assert line is not None
    assert line.isprintable()
