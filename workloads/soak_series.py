"""Compute how steady a GPU was under a load that lasts minutes to days. No I/O.

probe_soak.py measures one :class:`Window` for about each second of load. The functions of this module return
the sag of the speed, the stalls, the time with lowered clocks, and the time without readings. They compare a
GPU only with itself in the same run. Whether its speed is right is judged later, by the SKU's reference and
by the history. The module needs only the standard library.

A load that was interrupted and continued consists of several sessions. Their seconds are joined without the
gaps, so stalls within ten minutes may be before and after a gap. Each session warms up again. Only the
warm-up of the first session counts as measured time. Faults in every warm-up count.
"""

from __future__ import annotations

import array
import collections
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import overload

BLOCK_S = 60.0
"""Seconds of a block. Blocks are compared by their median speed, because a single window varies by up to
0.5 %."""
SETTLE_S = 120.0
"""Seconds in which a GPU warms up and its clocks fall. This loss is normal for a healthy GPU."""
STALL_FACTOR = 1.5
"""A step is a stall if it takes more than this multiple of its usual time. Of 100 healthy steps, 99 take at
most 1.05 times as long as usual."""
STALL_LEAST_S = 0.02
"""A stall also takes more than this many seconds longer than usual."""
STALLS_WITHIN_S = 600.0
"""Seconds of the longest stretch in which stalls are counted together."""
SLOWDOWN_BITS = 0x08 | 0x20 | 0x40 | 0x80
"""The bits of NVML's reasons for a lower clock that a healthy GPU never has. They are hardware, heat (two
kinds) and the power brake. The power limit is not one of them, because a full load reaches it."""
CLOSE_ENOUGH = 1e-9
"""Largest difference in seconds between two sums that count as equal."""
READINGS = ("power", "temperature", "clock", "throttle")
"""Readings of NVML that :class:`Windows` stores."""
WIDTH = 6 + len(READINGS)
"""Numbers of a window in :class:`Windows`."""
TIME_STEP = 0.001
"""Width of a bin of :class:`StepTimes`, as a share of the time."""


@dataclass(frozen=True)
class Window:
    """A window of about a second of one GPU's load.

    Args:
        at_s: The seconds of load from its start to the end of the window, without gaps between sessions.
        seconds: The length of the window.
        work: The operations of its steps, in TFLOP.
        busy_s: The computing times of its steps.
        stalls: The number of its stalled steps.
        read: NVML's readings: ``power`` (W), ``temperature`` (°C), ``clock`` (MHz), ``throttle`` (bits).
        began_s: The seconds of load before the window's session.
    """

    at_s: float
    seconds: float
    work: float
    busy_s: float
    stalls: int
    read: dict[str, float] = field(default_factory=dict)
    began_s: float = 0.0

    @property
    def since_s(self) -> float:
        """Return the seconds from the start of the window's session to its end."""
        return self.at_s - self.began_s

    @property
    def slowed(self) -> bool:
        """Return whether hardware, heat or the power brake lowered the clocks."""
        return bool(int(self.read.get("throttle", 0)) & SLOWDOWN_BITS)

    @property
    def rate(self) -> float:
        """Return the speed in TFLOP/s, or NaN if the window contains no step."""
        return self.work / self.busy_s if self.busy_s > 0 else math.nan


class Windows(Sequence[Window]):
    """Windows in their order, stored in little memory.

    A window takes 80 bytes, so three days of them take 21 MB. Of its readings, only :data:`READINGS` are
    stored.
    """

    def __init__(self) -> None:
        self._values = array.array("d")

    def append(self, window: Window) -> None:
        """Add a window."""
        own = (window.at_s, window.seconds, window.work, window.busy_s, window.stalls, window.began_s)
        self._values.extend((*own, *(window.read.get(key, math.nan) for key in READINGS)))

    def __len__(self) -> int:
        return len(self._values) // WIDTH

    @overload
    def __getitem__(self, index: int) -> Window: ...
    @overload
    def __getitem__(self, index: slice) -> list[Window]: ...
    def __getitem__(self, index: int | slice) -> Window | list[Window]:
        places = range(len(self))[index]
        return self._at(places) if isinstance(places, int) else [self._at(position) for position in places]

    def _at(self, index: int) -> Window:
        values = self._values[index * WIDTH : (index + 1) * WIDTH]
        at_s, seconds, work, busy_s, stalls, began_s, *readings = values
        read = {
            key: reading for key, reading in zip(READINGS, readings, strict=True) if not math.isnan(reading)
        }
        return Window(at_s, seconds, work, busy_s, int(stalls), read, began_s)


class StepTimes:
    """The counts of steps by time, rounded to :data:`TIME_STEP`, so that they do not grow with the run."""

    def __init__(self, counts: Iterable[tuple[int, int]] = ()) -> None:
        self.counts: collections.Counter[int] = collections.Counter(dict(counts))

    def add(self, times_s: Iterable[float]) -> None:
        """Count steps by their seconds."""
        self.counts.update(round(math.log(max(time_s, 1e-9)) / TIME_STEP) for time_s in times_s)

    def quantile(self, share: float) -> float:
        """Return the time within which a share of the steps ended, in seconds.

        Raises:
            ValueError: No step was counted.
        """
        left = int(share * (self.counts.total() - 1))
        for index, count in sorted(self.counts.items()):
            left -= count
            if left < 0:
                return math.exp(index * TIME_STEP)
        raise ValueError("no steps")


def count_stalls(times_s: Iterable[float], usual_s: float) -> int:
    """Return the number of steps that took far longer than usual.

    Args:
        times_s: The times of the steps.
        usual_s: The usual time of this run's steps, or 0 if unknown.
    """
    bound = max(usual_s * STALL_FACTOR, usual_s + STALL_LEAST_S)
    return sum(time_s > bound for time_s in times_s) if usual_s > 0 else 0


def minute_rates(windows: Sequence[Window], settle_s: float = SETTLE_S) -> list[float]:
    """Return the median speed of each minute after the GPU settled, in TFLOP/s.

    The speed of a window without a finished step is 0, because the GPU did nothing. An incomplete minute
    counts in two cases. At the end of the run, at most 6 s of it may be missing. Before an interruption, at
    most half of it may be missing. Slow seconds in a shorter rest would not lower the median of the whole
    minute either.
    """
    blocks: dict[tuple[float, int], list[float]] = {}
    ends: dict[float, float] = {}
    for window in windows:
        ends[window.began_s] = window.since_s
        if window.since_s > settle_s:
            speed = 0.0 if math.isnan(window.rate) else window.rate
            block = int((window.since_s - settle_s) // BLOCK_S)
            blocks.setdefault((window.began_s, block), []).append(speed)
    last = max(ends, default=0.0)
    lacking_s = {began_s: BLOCK_S / (10 if began_s == last else 2) for began_s in ends}
    return [
        statistics.median(speeds)
        for (began_s, block), speeds in sorted(blocks.items())
        if settle_s + (block + 1) * BLOCK_S <= ends[began_s] + lacking_s[began_s]
    ]


def largest_sag(windows: Sequence[Window], settle_s: float = SETTLE_S) -> float | None:
    """Return the loss of speed from the fastest to the slowest minute, as a share of the fastest.

    Return None if there are fewer than two minutes, or if every speed is 0.
    """
    rates = minute_rates(windows, settle_s)
    if len(rates) < 2 or max(rates) <= 0:
        return None
    return 1 - min(rates) / max(rates)


def most_stalls(windows: Sequence[Window]) -> int:
    """Return the largest number of stalls in any ten minutes."""
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
    return sum(window.seconds for window in windows if window.slowed)


def unread_seconds(windows: Iterable[Window]) -> float:
    """Return the seconds without NVML's reasons for clocks, temperature and power."""
    needed = {"throttle", "temperature", "power"}
    return sum(window.seconds for window in windows if not needed <= set(window.read))


def hottest(windows: Iterable[Window]) -> float | None:
    """Return the highest temperature in °C, or None if none was read."""
    return max(
        (window.read["temperature"] for window in windows if "temperature" in window.read), default=None
    )


def mean_rate(windows: Sequence[Window], settle_s: float = SETTLE_S) -> float | None:
    """Return the speed after the GPU settled, in TFLOP/s.

    Return None if nothing was computed after that.
    """
    busy_s = sum(window.busy_s for window in windows if window.since_s > settle_s)
    return (
        sum(window.work for window in windows if window.since_s > settle_s) / busy_s if busy_s > 0 else None
    )


def counted_seconds(window: Window, settle_s: float = SETTLE_S) -> float:
    """Return the seconds of a window that count as measured.

    While a continued load warms up again, they do not count.
    """
    return window.seconds if window.began_s == 0 or window.since_s > settle_s else 0.0


def window_rates(windows: Sequence[Window], settle_s: float = SETTLE_S) -> list[float]:
    """Return the speed of each window after the GPU settled, in TFLOP/s.

    The speed is 0 if the GPU did nothing.
    """
    return [
        0.0 if math.isnan(window.rate) else window.rate for window in windows if window.since_s > settle_s
    ]


def elapsed_rates(windows: Iterable[Window], settle_s: float = SETTLE_S) -> list[float]:
    """Return the work of each settled window divided by its whole time, in TFLOP/s.

    In contrast to :func:`window_rates`, waiting lowers this speed.
    """
    return [window.work / window.seconds for window in windows if window.since_s > settle_s]


def merge(windows: Sequence[Window]) -> Window:
    """Return several consecutive windows as one, for a line of the log.

    The result has the work and busy time of the slowest window, and the times of the last one. Seconds and
    stalls are sums, all reasons of throttling are kept, and each other reading is the largest. Use only its
    speed, because its work and its seconds belong to different windows.

    Raises:
        ValueError: The list is empty.
    """
    if not windows:
        raise ValueError("no windows to merge")
    slowest = min(windows, key=lambda window: 0.0 if math.isnan(window.rate) else window.rate)
    read: dict[str, float] = {}
    for window in windows:
        for key, figure in window.read.items():
            if key == "throttle":
                read[key] = int(read.get(key, 0)) | int(figure)
            else:
                read[key] = max(read.get(key, figure), figure)
    seconds = sum(part.seconds for part in windows)
    stalls = sum(part.stalls for part in windows)
    last = windows[-1]
    return Window(last.at_s, seconds, slowest.work, slowest.busy_s, stalls, read, last.began_s)


def seconds_per_line(at_s: float) -> float:
    """Return how many seconds one line of the log covers.

    A day's log contains some thousand lines for each GPU.
    """
    for until_s, every_s in ((600.0, 1.0), (6 * 3600.0, 10.0)):
        if at_s <= until_s + CLOSE_ENOUGH:
            return every_s
    return 60.0
