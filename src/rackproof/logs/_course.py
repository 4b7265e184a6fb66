"""Check that a log holds the whole course of an MLPerf training: pairs, evaluations, statistics. No I/O.

A missing part is found by comparison with the rest of the log: of 12,200 published logs of rounds 0.5 to 5.1
that pass, none has a hole in a course that is regular otherwise. If a submitter's code never logs one half of
a pair, or lets evaluations overlap, that is not a hole, because it is so in the whole log.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rackproof.core.published_events import watched_events

KINDS = ("block", "eval", "epoch")
_NOT_IN_TURN = frozenset({"dlrm", "maskrcnn", "minigo", "ssd", "stable_diffusion"})
"""Benchmarks whose evaluations are made beside the training, by other ranks, or after it: published logs have
those of two moments within each other, in any number."""
_WHOLE = frozenset(
    {"dlrm_dcnv2", "flux1", "gnn", "llama2_70b_lora", "llama31_405b", "llama31_8b", "retinanet", "rgat"}
)
"""Benchmarks whose published logs all have one ``eval_accuracy`` for each ``eval_stop``."""
_CLOSED = frozenset({"flux1", "llama2_70b_lora", "llama31_405b", "llama31_8b"})
"""Benchmarks whose published logs have stopped every block and evaluation when the run stops."""
_EPOCHS_STAY = frozenset({"bert", "dlrm", "gnn", "rgat", "transformer"})
"""Benchmarks that are evaluated several times in an epoch, and log whole ones."""
_FROM_THE_START = frozenset(
    {
        "dlrm_dcnv2", "flux1", "gnmt", "gnn", "gpt3", "llama31_8b", "maskrcnn", "resnet", "retinanet", "rgat",
        "rnnt",
    }
)  # fmt: skip
"""Benchmarks whose first evaluation comes as soon as the following ones: published are 1.04 intervals."""
_FEWEST_SHARE = 0.5
"""No published success of rounds 3.1 to 5.1 (6,328) has values of a smaller share of its evaluations."""
_GAP = 1.75
"""An interval of so many usual ones lacks an evaluation: published are 1.6 at most (llama31_405b, 5.1)."""
_SYSTEMATIC = 0.6
"""A pattern in a larger share of all pairs than this is the way in which the submitter's code logs."""
_FEWEST_BLOCKS = 4
_MOST_KEPT, _MOST_EXTREMES = 20_000, 40

LineAt = Callable[[int], int]
"""Gives the line of a position; it is asked for what is wrong only, as counting lines takes time."""
Found = tuple[str, int | None]
"""Message and line of what is missing."""


@dataclass(slots=True)
class Pairs:
    """Starts and stops of one kind of event."""

    open: bool = False
    starts: int = 0
    stops: int = 0
    broken: int = 0
    """Starts while one is open, and stops while none is."""
    first_broken: tuple[str, int] | None = None

    def start(self, line_at: LineAt, position: int) -> None:
        """Take a start."""
        self.starts += 1
        if self.open:
            self._break("begins again before it has stopped", line_at(position))
        self.open = True

    def stop(self, line_at: LineAt, position: int) -> None:
        """Take a stop."""
        self.stops += 1
        if not self.open:
            self._break("stops and has not begun", line_at(position))
        self.open = False

    def _break(self, what: str, line: int) -> None:
        self.broken += 1
        if self.first_broken is None:
            self.first_broken = what, line

    def has_hole(self, *, strict: bool) -> bool:
        """Return whether a half is missing: any at all, or one among pairs that are whole otherwise."""
        systematic = self.broken >= max(2, _SYSTEMATIC * max(self.starts, self.stops))
        return self.broken > 0 and (strict or not systematic)


@dataclass(slots=True)
class Extreme:
    """The lowest or the highest evaluation, with its position in the present block, later its line."""

    value: float
    position: int | None
    line: int = 1


@dataclass(slots=True)
class Advance:
    """The progress of the training, each time that it is stated under one name."""

    first: float | None = None
    last: float | None = None
    gaps: list[float] = field(default_factory=list)
    largest: tuple[float, int] = (0.0, 0)
    back: tuple[float, float, int] | None = None
    same: tuple[float, int] | None = None

    def take(self, value: float, line_at: LineAt, position: int) -> None:
        """Take the next statement."""
        before, self.last = self.last, value
        if before is None:
            self.first = value
            return
        gap = value - before
        if gap > 0:
            if len(self.gaps) < _MOST_KEPT:
                self.gaps.append(gap)
            if gap > self.largest[0]:
                self.largest = gap, line_at(position)
        elif gap < 0:
            self.back = self.back or (before, value, line_at(position))
        else:
            self.same = self.same or (value, line_at(position))

    @property
    def usual(self) -> float:
        """Return the lower median of the gaps, or 0 if there are none."""
        return sorted(self.gaps)[(len(self.gaps) - 1) // 2] if self.gaps else 0.0


class Course:
    """Follows the events of one log."""

    def __init__(self) -> None:
        self.pairs = {kind: Pairs() for kind in KINDS}
        self.progress: dict[tuple[str, str], Advance] = {}
        self.evaluations = 0
        self.watched = watched_events()
        self.logged: set[str] = set()
        """The events that the log holds, of those that all published logs of some benchmark hold."""
        self.trained_s = 0.0
        """Seconds of all blocks that have started and stopped."""
        self.block_began = 0.0
        self.before_block: tuple[int, ...] = ()
        """Number of statistics of each kind when the present block began."""
        self.of_blocks: list[tuple[int, ...]] = []
        """Statistics of each block that has started and stopped, by kind."""
        self.extremes: dict[tuple[str, bool], Extreme] = {}
        """The lowest and the highest evaluation of each metric."""

    @property
    def samples(self) -> float | None:
        """Return the number of samples trained at the last evaluation."""
        counted = self.progress.get(("samples_count", ""))
        return counted.last if counted is not None else None

    def block_started(self, time: float, counts: tuple[int, ...]) -> None:
        """Take how many statistics came before a block."""
        self.before_block, self.block_began = counts, time

    def block_stopped(self, time: float, counts: tuple[int, ...]) -> None:
        """Take how many statistics came before the end of a block."""
        if self.pairs["block"].open:
            self.trained_s += time - self.block_began
            if len(self.of_blocks) < _MOST_KEPT:
                here = (now - then for now, then in zip(counts, self.before_block, strict=True))
                self.of_blocks.append(tuple(here))

    def advance(self, name: str, metric: str, value: float, line_at: LineAt, position: int) -> None:
        """Take how far the training had come: one of ``samples_count``, ``epoch_num``, ``step_num``."""
        progress = self.progress.get((name, metric))
        if progress is None and len(self.progress) < 60:
            progress = self.progress[name, metric] = Advance()
        if progress is not None:
            progress.take(value, line_at, position)

    def evaluate(self, metric: str, value: float, position: int) -> None:
        """Keep the lowest and the highest value of a metric: what it can be, the end of the log knows."""
        lowest, highest = self.extremes.get((metric, False)), self.extremes.get((metric, True))
        if lowest is None and len(self.extremes) > _MOST_EXTREMES:
            return
        if lowest is None or value < lowest.value:
            self.extremes[metric, False] = Extreme(value, position)
        if highest is None or value > highest.value:
            self.extremes[metric, True] = Extreme(value, position)

    def keep_lines(self, line_at: LineAt) -> None:
        """Turn positions into lines before the block of the log goes."""
        for extreme in self.extremes.values():
            if extreme.position is not None:
                extreme.line, extreme.position = line_at(extreme.position), None

    def missing(self, benchmark: str, platform: str, *, stopped: bool) -> Iterator[Found]:
        """Yield what shows that a part of the course is missing, or that it is another's.

        Args:
            benchmark: As MLPerf's rules call it; what is known of none is not asked of it.
            platform: As the log names it; a TPU's host begins a part before the one before has stopped.
            stopped: Whether the log has the end of the run.
        """
        if benchmark in ("minigo", "stable_diffusion"):
            return  # evaluated after the training, in any order
        for kind, pairs in self.pairs.items() if not platform.lower().startswith("tpu") else ():
            yield from _missing_of_pairs(benchmark, kind, pairs, stopped=stopped)
        evals = self.pairs["eval"]
        differ = benchmark in _WHOLE and (evals.starts or evals.stops) and self.evaluations != evals.stops
        if differ or self.evaluations < _FEWEST_SHARE * max(evals.starts, evals.stops) - 1:
            message = f"{self.evaluations} eval_accuracy in {evals.stops} evaluations"
            yield f"{message}: lines of the log are missing", None
        for (name, metric), progress in self.progress.items():
            yield from _missing_of_progress(benchmark, name, metric, progress)
        yield from self._missing_statistics(benchmark)

    def _missing_statistics(self, benchmark: str) -> Iterator[Found]:
        """Find a block with fewer statistics than the others, which all have as many, or one more or less."""
        if len(self.of_blocks) < _FEWEST_BLOCKS:
            return
        for kind in range(len(self.of_blocks[0])):
            counts = [counts[kind] for counts in self.of_blocks]
            usual = statistics.median_low(counts[1:])
            # The first block of some submitters' resnet is shorter than the others.
            fewest = min(counts if benchmark in _WHOLE else counts[1:])
            if fewest < usual - 1:
                number = counts.index(fewest, 0 if benchmark in _WHOLE else 1) + 1
                message = f"block {number} has {fewest} statistics of the training, where others have {usual}"
                yield f"{message}: lines of the log are missing", None
                return


def _missing_of_pairs(benchmark: str, kind: str, pairs: Pairs, *, stopped: bool) -> Iterator[Found]:
    in_turn = kind != "eval" or benchmark not in _NOT_IN_TURN
    # Six logs of llama31_405b of round 5.0 never log that an evaluation begins.
    strict = benchmark in _WHOLE and benchmark != "llama31_405b"
    if in_turn and pairs.has_hole(strict=strict) and pairs.first_broken is not None:
        what, line = pairs.first_broken
        article = "an" if kind[0] == "e" else "a"
        yield f"{article} {kind} {what}: lines of the log are missing", line
    elif stopped and pairs.open and kind != "epoch" and benchmark in _CLOSED:
        yield f"the last {kind} has not stopped: lines of the log are missing", None


def _missing_of_progress(benchmark: str, name: str, metric: str, progress: Advance) -> Iterator[Found]:
    of = f" of {metric}" if metric else ""
    if progress.back is not None:
        before, value, line = progress.back
        message = f"{name}{of} is {value:g} after {before:g}: a training does not go back"
        yield message, line
    if progress.same is not None and (name != "epoch_num" or benchmark not in _EPOCHS_STAY):
        value, line = progress.same
        yield f"two evaluations at {name} {value:g}: nothing was trained between", line
    gap, line = progress.largest
    usual = progress.usual
    # The first interval of ssd is longer by the rules of rounds 0.6 and 0.7.
    longer = benchmark == "ssd" and [gap] == progress.gaps[:1]
    if usual and gap > _GAP * usual and not longer:
        message = (
            f"{gap:g} of {name}{of} between two evaluations, where {usual:g} are usual: some are missing"
        )
        yield message, line
    elif usual and benchmark in _FROM_THE_START and (progress.first or 0) > _GAP * usual:
        message = (
            f"the first evaluation is at {name} {progress.first:g}, and {usual:g} lie between the others"
        )
        yield f"{message}: some are missing", None
