"""Test that two consecutive nights judge each line of a node's kernel log exactly once.

A night reads the log while it gathers a node's answers, and the kernel goes on logging. The next night
therefore reads from that moment on (nodes/kernel_log.py, nodes/snapshot.py). No XID may be lost or count
twice, with journalctl or with dmesg.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackproof.nodes.kernel_log import late_line_digests, without_known_lines
from rackproof.nodes.snapshot import NodeSnapshot, build_snapshot, next_log_since
from tests.nodes.health.healthy import answer_ok, healthy_gathered

# The beginning of the first night in seconds since 1970, and three durations in seconds: a day, a gathering,
# and the time from the beginning of a gathering until the log is read.
FIRST, DAY, GATHERING_S, READING_S = 1_795_000_000.25, 86_400, 150, 2
BOOTED = FIRST - 1000
# Moments of a line, in seconds after the beginning of the first night.
BEFORE, WHILE_READ, IN_GAP, AFTER = -500.0, 1.0, 100.0, 5000.0


def line(at: float, xid: int, form: str) -> str:
    """Return a line with an XID in the form of dmesg or journalctl."""
    stamp = f"[{at - BOOTED:12.6f}]" if form == "dmesg" else f"{at:.6f} n kernel:"
    return f"{stamp} NVRM: Xid (PCI:0008:06:00): {xid}, pid=1, name=python"


def night(
    number: int,
    logged: Sequence[tuple[float, int]],
    form: str,
    previous: NodeSnapshot | None,
    **changes: Any,
) -> NodeSnapshot:
    """Return a night's snapshot. Its log has only lines from before the log was read."""
    begin = FIRST + number * DAY
    end, read_at = begin + GATHERING_S, begin + READING_S
    since = next_log_since(previous)
    first = BOOTED if form == "dmesg" else floor(since) if since else BOOTED
    lines = [line(at, xid, form) for at, xid in sorted(logged) if first <= at <= read_at]
    answer = healthy_gathered(epoch=begin)
    log = answer_ok("\n".join(lines))
    if form == "journal":
        log["oldest"] = answer["health"]["tools"]["kernel_log"]["oldest"]
    # All lines are of level error or worse.
    log["errors"] = log["stdout"]
    answer["facts"]["files"]["uptime"] = f"{end - BOOTED:.2f} 1"
    answer["health"] |= {"begin": begin, "epoch": end, "since": since, "booted": BOOTED}
    answer["health"]["tools"]["kernel_log"] = log | changes.pop("kernel_log", {})
    answer["health"] |= changes
    return build_snapshot("n", answer, previous=previous)


def new_xids(state: NodeSnapshot) -> list[int]:
    """Return the XIDs that a night judges, each as often as it occurred, without those of earlier nights."""
    return [event.xid for event in state.xids for _ in range(event.times) if not event.carried]


# `judged` is how often the first and the second night judge the line.
@pytest.mark.parametrize("form", ["journal", "dmesg"])
@pytest.mark.parametrize(
    ("at", "judged"),
    [
        pytest.param(BEFORE, (1, 0), id="before the reading"),
        pytest.param(-0.1, (1, 0), id="in the second in which gathering begins"),
        pytest.param(WHILE_READ, (1, 0), id="while the log is read"),
        pytest.param(IN_GAP, (0, 1), id="between the reading and the end of gathering"),
        pytest.param(GATHERING_S - 0.3, (0, 1), id="in the last second of gathering"),
        pytest.param(AFTER, (0, 1), id="after gathering"),
    ],
)
def test_a_line_is_judged_in_one_of_two_nights(form: str, at: float, judged: tuple[int, int]) -> None:
    states = [first := night(0, [(FIRST + at, 31)], form, None), night(1, [(FIRST + at, 31)], form, first)]
    assert tuple(len(new_xids(state)) for state in states) == judged


@given(
    st.lists(st.integers(-900_000, 3 * DAY * 1000), max_size=12, unique=True),
    st.sampled_from(["journal", "dmesg"]),
)
def test_nights_judge_each_line_once(moments_ms: list[int], form: str) -> None:
    # XID 31 asks for no action, so no later night reports it again.
    logged = [(FIRST + at / 1000, 31) for at in moments_ms]
    states: list[NodeSnapshot] = []
    for number in range(4):
        states.append(night(number, logged, form, states[-1] if states else None))
    assert sum(len(new_xids(state)) for state in states) == len(logged)
    assert all(before.next_log_since < after.next_log_since for before, after in pairwise(states))  # type: ignore[operator]


@pytest.mark.parametrize(
    "unread", [{"status": "hung"}, {"status": "failed", "rc": 1}, {"status": "absent"}], ids=str
)
def test_after_a_night_that_could_not_read_the_log_the_next_reads_all_of_it(unread: dict[str, Any]) -> None:
    logged = [(FIRST + WHILE_READ, 31), (FIRST + AFTER, 13)]
    first = night(0, logged, "journal", None)
    second = night(1, logged, "journal", first, kernel_log={"stdout": "", "errors": "", **unread})
    third = night(2, logged, "journal", second)
    assert [new_xids(state) for state in (first, second, third)] == [[31], [], [13]]


def test_a_first_night_without_its_log_lets_the_next_read_since_the_boot() -> None:
    first = night(0, [], "journal", None, kernel_log={"status": "hung"})
    assert next_log_since(first) == 0
    assert next_log_since(None) == 0


@pytest.mark.parametrize("begin", [None, 0, -5.0, FIRST + 900, "soon", True])
def test_without_a_usable_begin_the_next_night_reads_from_before_all_tools(begin: Any) -> None:
    state = night(0, [], "journal", None, begin=begin, kernel_log={"seconds": 20.0})
    assert next_log_since(state) == pytest.approx(FIRST + GATHERING_S - sum(state.seconds.values()))
    assert sum(state.seconds.values()) >= 20


def test_of_a_snapshot_of_an_earlier_version_the_time_of_all_its_tools_is_read_again() -> None:
    state = night(0, [], "journal", None, kernel_log={"seconds": 20.0})
    old = state.model_copy(update={"next_log_since": None, "clock_offset_s": 7.0})
    assert next_log_since(old) == pytest.approx(FIRST + GATHERING_S - sum(state.seconds.values()) - 7)


def test_the_same_text_of_another_boot_is_another_line() -> None:
    text = line(FIRST + WHILE_READ, 31, "dmesg")
    (digest,) = late_line_digests([text], FIRST, BOOTED, "boot-1")
    assert without_known_lines(f"{text}\nother", [digest], "boot-1") == "other"
    assert without_known_lines(text, [digest], "boot-2") == text


@pytest.mark.parametrize("stamp", [f"{int(FIRST)}", f"{int(FIRST)}.1", f"{int(FIRST)}.123", "[ 1000.1]", "n"])
def test_lines_without_microseconds_may_be_several_events(stamp: str) -> None:
    text = f"{stamp} n kernel: NVRM: Xid (PCI:0008:06:00): 31, pid=1"
    assert late_line_digests([text], FIRST, BOOTED, "boot-1") == ()
