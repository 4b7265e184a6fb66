"""Judge a GPU by the seconds of a held load: sagging speed, stalls, lowered clocks, gaps. No I/O.

Standard library only. A window is about a second. Everything is judged against the same run: the speed that
the GPU should have is another question, which its SKU's reference and its history answer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

BLOCK_S = 60.0
"""Speeds of windows are compared by the median of a minute: one window swings by up to 0.5 %."""
SETTLE_S = 120.0
"""Seconds in which a GPU warms up and its clocks fall, which is not a loss of a healthy GPU."""
STALL_FACTOR = 1.5
"""A step that takes so many times its usual time stalls: 99 of 100 healthy ones take 1.05 times at most."""
STALL_LEAST_S = 0.02
STALLS_WITHIN_S = 600.0
SLOWDOWN_BITS = 0x08 | 0x20 | 0x40 | 0x80
"""NVML's reasons for a lower clock that no healthy GPU has: hardware, heat (two kinds), the power brake. The
power limit is not one of them: a full load reaches it.
"""
CLOSE_ENOUGH = 1e-9
"""Sums of seconds differ by less."""


@dataclass(frozen=True)
class Window:
    """About a second of one GPU.

    Args:
        at_s: Seconds from the start of the load to the end of the window.
        seconds: Its length.
        work: Operations of its steps, in TFLOP.
        busy_s: The computing times of its steps.
        stalls: The number of its stalled steps.
        read: NVML's readings: ``power`` (W), ``temperature`` (°C), ``clock`` (MHz), ``throttle`` (bits).
    """

    at_s: float
    seconds: float
    work: float
    busy_s: float
    stalls: int
    read: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Return the speed in TFLOP/s; nan where the window holds no step."""
        return self.work / self.busy_s if self.busy_s > 0 else math.nan


def count_stalls(times_s: Iterable[float], usual_s: float) -> int:
    """Return how many steps took far longer than usual.

    Args:
        times_s: Times of steps.
        usual_s: The usual time of this run's steps, or 0 if it is not known yet.
    """
    bound = max(usual_s * STALL_FACTOR, usual_s + STALL_LEAST_S)
    return sum(one > bound for one in times_s) if usual_s > 0 else 0


def minute_rates(windows: Sequence[Window], settle_s: float = SETTLE_S) -> list[float]:
    """Return the median speed of each whole minute after the GPU has settled, in TFLOP/s.

    A window without a finished step counts with speed 0: the GPU did nothing then.
    """
    blocks: dict[int, list[float]] = {}
    for window in windows:
        if window.at_s > settle_s:
            speed = 0.0 if math.isnan(window.rate) else window.rate
            blocks.setdefault(int((window.at_s - settle_s) // BLOCK_S), []).append(speed)
    last = max((window.at_s for window in windows), default=0.0)
    return [
        statistics.median(speeds)
        for block, speeds in sorted(blocks.items())
        if settle_s + (block + 1) * BLOCK_S <= last + BLOCK_S / 10
    ]


def largest_sag(windows: Sequence[Window], settle_s: float = SETTLE_S) -> float | None:
    """Return by what share the slowest minute is below the fastest; None below two whole minutes."""
    rates = minute_rates(windows, settle_s)
    if len(rates) < 2 or max(rates) <= 0:
        return None
    return 1 - min(rates) / max(rates)


def most_stalls(windows: Sequence[Window]) -> int:
    """Return the most stalls within any ten minutes: few in a day, or many at its end."""
    most = total = begin = 0
    for window in windows:
        total += window.stalls
        while windows[begin].at_s <= window.at_s - STALLS_WITHIN_S:
            total -= windows[begin].stalls
            begin += 1
        most = max(most, total)
    return most


def slowed_seconds(windows: Iterable[Window]) -> float:
    """Return the seconds in which hardware, heat or the power brake lowered the clocks."""
    return sum(one.seconds for one in windows if int(one.read.get("throttle", 0)) & SLOWDOWN_BITS)


def unread_seconds(windows: Iterable[Window]) -> float:
    """Return the seconds for which NVML did not report clocks' reasons, temperature and power."""
    needed = {"throttle", "temperature", "power"}
    return sum(one.seconds for one in windows if not needed <= set(one.read))


def hottest(windows: Iterable[Window]) -> float | None:
    """Return the highest temperature in °C, or None if none was read."""
    return max((one.read["temperature"] for one in windows if "temperature" in one.read), default=None)


def mean_rate(windows: Sequence[Window], settle_s: float = SETTLE_S) -> float | None:
    """Return the speed after the GPU has settled, in TFLOP/s, or None if nothing was computed after that."""
    settled = [one for one in windows if one.at_s > settle_s]
    busy_s = sum(one.busy_s for one in settled)
    return sum(one.work for one in settled) / busy_s if busy_s > 0 else None


def window_rates(windows: Sequence[Window], settle_s: float = SETTLE_S) -> list[float]:
    """Return the speed of each window after the GPU has settled, in TFLOP/s; 0 where it did nothing."""
    return [0.0 if math.isnan(one.rate) else one.rate for one in windows if one.at_s > settle_s]


def merge(windows: Sequence[Window]) -> Window:
    """Return several windows in a row as one that hides nothing: the slowest speed, the most of all else.

    Raises:
        ValueError: The list is empty.
    """
    if not windows:
        raise ValueError("no windows to merge")
    slowest = min(windows, key=lambda one: 0.0 if math.isnan(one.rate) else one.rate)
    read: dict[str, float] = {}
    for window in windows:
        for key, figure in window.read.items():
            if key == "throttle":
                read[key] = int(read.get(key, 0)) | int(figure)
            else:
                read[key] = max(read.get(key, figure), figure)
    seconds = sum(one.seconds for one in windows)
    stalls = sum(one.stalls for one in windows)
    return Window(windows[-1].at_s, seconds, slowest.work, slowest.busy_s, stalls, read)


def seconds_per_line(at_s: float) -> float:
    """Return how many seconds one line of the log covers: a day's log has some thousand lines a GPU."""
    for until_s, every_s in ((600.0, 1.0), (6 * 3600.0, 10.0)):
        if at_s <= until_s + CLOSE_ENOUGH:
            return every_s
    return 60.0
