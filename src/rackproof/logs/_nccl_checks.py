"""Check that the figures, sizes and devices of a table of nccl-tests agree with each other.

The module does no I/O.

:mod:`.nccl_tests` fills :class:`Figures` and :class:`Devices` while it reads, and then gets their
contradictions. A row has a size in bytes, and two groups of figures, out of place and in place. Each group
has a time in microseconds, *algbw* (size divided by time, in GB/s) and *busbw* (algbw times the
collective's factor)::

     1048576  262144  float  sum  -1   54.2  19.35  33.86   0   53.9  19.45  34.04   0
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_HALF_DIGIT = 0.006
"""Tolerance in GB/s for the rounding of a bandwidth, which is printed with two decimals."""
_AGREE = 0.002
"""Relative tolerance for bandwidths of one row that follow from each other."""
_AVERAGES_AGREE = 0.01
"""Relative tolerance for the stated average bandwidth."""
_GRACE = re.compile(r"\bG[BH]\d{2,3}\b")
"""Pattern of the product names of GPUs beside a Grace processor: GH200, GB200."""
# A hostile log may list any number of sizes, kinds of rows, product names and ranks. These are limits.
_MOST_SIZES = 10_000
_MOST_KINDS = 256
_MOST_RANKS = 100_000
_SIZE_IS_ALL = frozenset(
    {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "alltoall",
        "broadcast",
        "reduce",
        "sendrecv",
        "gather",
        "scatter",
    }
)
"""Collectives whose algbw is the printed size divided by the time. alltoallv is not one, because its sizes
differ by rank."""


@dataclass(slots=True)
class Figures:
    """The figures of one table, summed up over its rows."""

    total: float = 0.0
    """Sum of the busbw of all figures, in GB/s."""
    count: int = 0
    """Number of figures. A row has up to two, out of place and in place."""
    ratios: tuple[float, float] = (0.0, math.inf)
    """Smallest and largest busbw/algbw that all rows allow, considering the rounding of both figures."""
    ratios_differ: int | None = None
    """Line of the first row with another ratio."""
    off_time: tuple[int | None, str] | None = None
    """Line and description of the first row whose algbw does not match its size and time."""
    of_kind: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Number of rows by data type, reduction and root."""

    def take(self, at: int | None, size: int, time: str, algbw: float, busbw: float) -> None:
        """Add the out-of-place or in-place figures of the row in line ``at``.

        ``time`` is in microseconds. The number of its decimals shows how it was rounded.
        """
        if not (math.isfinite(algbw) and math.isfinite(busbw)):
            return
        self.total += busbw
        self.count += 1
        self._take_ratio(at, algbw, busbw)
        if self.off_time is None and (by_time := _by_time(size, time)) is not None:
            least, most = by_time
            if not least <= algbw <= most:
                self.off_time = (
                    at,
                    f"{size} bytes in {time} us are {least:.2f} to {most:.2f} GB/s, not {algbw:g}",
                )

    def _take_ratio(self, at: int | None, algbw: float, busbw: float) -> None:
        """Reduce the range of busbw/algbw to that of all rows so far, and record the first row outside it."""
        if algbw <= 2 * _HALF_DIGIT:
            return  # such a small figure is mostly rounding
        low = (busbw - _HALF_DIGIT) / (algbw + _HALF_DIGIT) * (1 - _AGREE)
        high = (busbw + _HALF_DIGIT) / (algbw - _HALF_DIGIT) * (1 + _AGREE)
        lowest, highest = max(self.ratios[0], low), min(self.ratios[1], high)
        if lowest > highest:
            self.ratios_differ = self.ratios_differ or at or 1
        else:
            self.ratios = lowest, highest

    def take_row(self, kind: tuple[str, str, str]) -> None:
        """Count a row by its data type, reduction and root. At most :data:`_MOST_KINDS` kinds are counted."""
        if kind in self.of_kind or len(self.of_kind) < _MOST_KINDS:
            self.of_kind[kind] = self.of_kind.get(kind, 0) + 1

    def contradictions(self, name: str, factor: float) -> Iterator[tuple[int | None, str]]:
        """Yield a line and a message for each contradiction in the rows. The line is None for several rows.

        Args:
            name: The name of the collective, such as ``all_reduce``.
            factor: The busbw/algbw of the collective, or 0 if unknown.
        """
        if self.ratios_differ is not None:
            yield self.ratios_differ, "the ratio of busbw to algbw in one row differs from the others"
        elif factor and not self.ratios[0] <= factor <= self.ratios[1]:
            low, high = self.ratios
            yield (
                None,
                f"busbw is {low:.4g} to {high:.4g} times algbw, not {factor:.4g} times as for {name}",
            )
        if self.off_time is not None and name in _SIZE_IS_ALL:
            yield self.off_time

    def other_average(self, stated: float) -> float | None:
        """Return the average busbw of the rows if it differs from the stated one, else None."""
        if not self.count:
            return None
        average = self.total / self.count
        agree = math.isclose(average, stated, rel_tol=_AVERAGES_AGREE, abs_tol=_HALF_DIGIT)
        return None if agree else average

    def missing_rows(self, sizes: int) -> str:
        """Return a message if the number of rows of a kind is not a multiple of the number of sizes, else "".

        ``sizes`` is the number of requested sizes, or 0 if it is unknown.
        """
        for kind, rows in self.of_kind.items():
            # The program may run all sizes several times, so a multiple is correct.
            if sizes and rows % sizes:
                named = " ".join(part for part in kind if part)
                return f"{rows} rows of {named}, and {sizes} sizes were requested"
        return ""


def _by_time(size: int, time: str) -> tuple[float, float] | None:
    """Return the smallest and largest GB/s that fit a size and a time in µs, or None if it is not a number.

    If the time is not positive or not finite, only a speed of 0 fits.
    """
    try:
        time_us = float(time)
    except ValueError:
        return None
    half = 0.51 * 10.0 ** -len(time.partition(".")[2])
    if not 0 < time_us < math.inf:
        return 0.0, _HALF_DIGIT
    least = size / 1e3 / (time_us + half)
    most = size / 1e3 / (time_us - half) if time_us > half else math.inf
    return least * (1 - _AGREE) - _HALF_DIGIT, most * (1 + _AGREE) + _HALF_DIGIT


def count_sizes(least: int, most: int, step: int, *, is_factor: bool) -> int:
    """Return the number of sizes from ``least`` to ``most`` bytes.

    It is 0 if the bounds or the step are invalid, or if the number is too large.
    ``step`` is the factor between successive sizes if ``is_factor``, else their difference in bytes.
    """
    if least <= 0 or most < least:
        return 0
    if least == most:
        return 1
    if is_factor:
        count, size = 0, least
        while step > 1 and size <= most and count < _MOST_SIZES:
            count, size = count + 1, size * step
        return count if count < _MOST_SIZES else 0
    count = (most - least) // step + 1 if step > 0 else 0
    return count if count < _MOST_SIZES else 0


@dataclass(slots=True)
class Devices:
    """The ranks and GPUs that one run of the program lists."""

    per_process: int = 0
    """Number of GPUs of each process, which is its threads times the GPUs per thread. Each GPU is a rank."""
    ranks: set[int] = field(default_factory=set)
    places: dict[tuple[str, ...], int] = field(default_factory=dict)
    """First rank on each GPU. The key identifies a GPU, see :meth:`take`."""
    names: dict[str, int] = field(default_factory=dict)
    """First rank of each product name."""
    twice: tuple[int, int, int | None] | None = None
    """Two ranks on one GPU, and the line of the second one."""

    def take(self, at: int | None, rank: int, where: tuple[str, str, str, str], name: str) -> None:
        """Record a rank. ``where`` is its process id, host, device number and bus address.

        A bus address with a domain identifies a GPU of a host. Without a domain (``0x1b``, ``1b:00``), two
        GPUs may have the same address, so the device number also counts. On a host with Grace processors,
        many GPUs have the same address without a domain, and a process with one GPU lists it as device 0.
        There, the process id and the device number identify the GPU.
        """
        pid, host, device, bus = where
        own = (pid, device) if _GRACE.search(name) else (bus.lower(), device)
        key = (host, bus.lower()) if bus.count(":") >= 2 else (host, *own)
        # Several hosts may call themselves localhost. Their process ids rarely agree, so these also count.
        key = (*key, pid) if host in ("localhost", "") else key
        if len(self.ranks) < _MOST_RANKS:
            if self.twice is None and key in self.places and self.places[key] != rank:
                self.twice = self.places[key], rank, at
            self.places.setdefault(key, rank)
            self.ranks.add(rank)
        if name.strip() and len(self.names) < _MOST_KINDS:
            self.names.setdefault(name.strip(), rank)

    def contradictions(self) -> Iterator[tuple[int | None, str]]:
        """Yield a line, or None, and a message for missing ranks, ranks on one GPU, and other products."""
        if not self.ranks:
            return
        listed, expected = len(self.ranks), max(self.ranks) + 1
        if listed < expected:
            missing = next(rank for rank in range(expected) if rank not in self.ranks)
            yield None, f"rank {missing} of {expected} is not in the list of devices"
        elif self.per_process and expected % self.per_process:
            yield None, f"{expected} ranks are listed, and each process has {self.per_process}"
        if self.twice is not None:
            first_rank, second_rank, line = self.twice
            yield line, f"ranks {first_rank} and {second_rank} are on the same GPU"
        if len(self.names) > 1:
            names = ", ".join(f"{name[:60]} (rank {rank})" for name, rank in list(self.names.items())[:3])
            yield None, f"different GPUs: {names}"
