"""Find signs that lines of an MLPerf training's log are missing.

The signs are unpaired starts and stops, skipped evaluations, and uneven statistics. :mod:`._mlperf` feeds
:class:`Course` with events and calls :meth:`Course.missing`. A training logs, in this order and repeatedly::

    epoch_start, block_start, tracked_stats (loss, speed), block_stop, eval_start, eval_accuracy, eval_stop

A *block* is a part of the training between two evaluations, and a *statistic* is a value in tracked_stats.
Evaluations and blocks state the training's progress as ``samples_count``, ``epoch_num`` or ``step_num``.

A gap is found by comparison with the rest of the log. None of the 12,200 passing logs that MLCommons
published for rounds 0.5 to 5.1 breaks its own regular pattern. If a submitter's code never logs one half of a
pair, or lets evaluations overlap, that is not a gap, because the whole log shows this pattern. The module
does no I/O.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rackproof.core.published_events import watched_events
from rackproof.core.training_limits import MOST_EPOCHS

KINDS = ("block", "eval", "epoch")
"""Parts of a run. Each has the events ``KIND_start`` and ``KIND_stop``."""
_NOT_IN_TURN = frozenset({"dlrm", "maskrcnn", "minigo", "ssd", "stable_diffusion"})
"""Benchmarks that other ranks evaluate during the training, or that are evaluated after it. In published
logs, their evaluations overlap, in any number."""
_WHOLE = frozenset(
    {"dlrm_dcnv2", "flux1", "gnn", "llama2_70b_lora", "llama31_405b", "llama31_8b", "retinanet", "rgat"}
)
"""Benchmarks whose published logs have exactly one ``eval_accuracy`` for each ``eval_stop``. For these,
except llama31_405b, each unpaired start or stop is a gap."""
_CLOSED = frozenset({"flux1", "llama2_70b_lora", "llama31_405b", "llama31_8b"})
"""Benchmarks whose published logs stop every block and evaluation before the run stops."""
_EVEN = {"llama2_70b_lora": "train_loss", "stable_diffusion": "block_stop"}
"""Event that some logs of a benchmark have after equal numbers of samples. In 1,485 published logs of rounds
3.1 to 5.0, no interval is longer than :data:`_EVEN_GAP` allows."""
_EVEN_GAP = 2.5
"""Largest interval between these events, as a multiple of the median. In 30 logs of round 4.0, an evaluation
takes the place of a loss."""
_EPOCHS_STAY = frozenset({"bert", "dlrm", "gnn", "rgat", "transformer"})
"""Benchmarks that are evaluated several times in an epoch and log whole epochs only."""
_FROM_THE_START = frozenset(
    {
        "dlrm_dcnv2", "flux1", "gnmt", "gnn", "gpt3", "llama31_8b", "maskrcnn", "resnet", "retinanet", "rgat",
        "rnnt",
    }
)  # fmt: skip
"""Benchmarks whose first evaluation comes after one usual interval (in published logs, at most 1.04)."""
_FEWEST_SHARE = 0.5
"""Smallest share of the evaluations that state a value. None of the 6,328 published successes of rounds 3.1
to 5.1 has a smaller share."""
_GAP = 1.75
"""Largest interval between evaluations, as a multiple of the median. In a longer one, an evaluation is
missing. Published logs have at most 1.6 (llama31_405b, 5.1)."""
_FIRST_EPOCH = {
    "bert": 0.0, "dlrm_dcnv2": 0.0, "gnn": 1.0, "gpt3": 0.0, "resnet": 1.0, "retinanet": 0.0, "rgat": 1.0,
    "ssd": 0.0,
}  # fmt: skip
"""Number of the first epoch in the 2,956 published successes of rounds 4.0 to 5.1 that number their epochs.
In four of retinanet it is 1."""
_EVALUATED_IN_EPOCHS = frozenset({"gnn", "resnet", "retinanet", "rgat", "ssd"})
"""Benchmarks whose evaluations state the epoch. In the same logs, none states an epoch that comes after the
last one that starts."""
_SYSTEMATIC = 0.6
"""Share of all pairs above which a pattern comes from the submitter's code."""
_FEWEST_OF_STEPS = 0.8
"""Smallest number of statistics of a block, as a share of the number in as many steps of another block."""
_EPOCHS_OF_NEW_SSD = 20
"""Largest number of epochs of ssd since round 2.0. Published logs have at most 8."""
_FEWEST_BLOCKS = 4
"""Smallest number of blocks of which a median is taken. Fewer blocks are compared by their steps."""
_MOST_KEPT, _MOST_EXTREMES = 20_000, 40
"""Limits for memory: of blocks and of the gaps of one name, and of the extremes of metrics."""

EPOCHS = "epochs"
"""Key of the epoch numbers that ``epoch_start`` events state. The other keys are metrics of evaluations."""

LineAt = Callable[[int], int]
"""A function from a position in the block of bytes that is being read to its line. It is called only for the
lines that a finding may need, because counting lines takes time."""
Found = tuple[str, int | None]
"""Message and line of a missing part."""


@dataclass(slots=True)
class Pairs:
    """The starts and stops of one kind of event."""

    open: bool = False
    """True from a start to the next stop."""
    starts: int = 0
    stops: int = 0
    broken: int = 0
    """Number of starts while one is open, and of stops while none is."""
    first_broken: tuple[str, int] | None = None
    """Text about the first of these, and its line."""

    def start(self, line_at: LineAt, position: int) -> None:
        """Count a start."""
        self.starts += 1
        if self.open:
            self._break("begins again before it has stopped", line_at(position))
        self.open = True

    def stop(self, line_at: LineAt, position: int) -> None:
        """Count a stop."""
        self.stops += 1
        if not self.open:
            self._break("stops but never started", line_at(position))
        self.open = False

    def _break(self, text: str, line: int) -> None:
        self.broken += 1
        if self.first_broken is None:
            self.first_broken = text, line

    @property
    def is_shifted(self) -> bool:
        """Return whether one stop lacks its start, and the last start its stop, as if both were shifted."""
        return self.open and self.broken == 1 and self.starts == self.stops

    def has_hole(self, *, strict: bool) -> bool:
        """Return whether half of a pair is missing.

        If most pairs lack a half, the submitter's code never logs it, and nothing is missing.

        Args:
            strict: If True, a half is missing even if most pairs lack it.
        """
        systematic = self.broken >= max(2, _SYSTEMATIC * max(self.starts, self.stops))
        return self.broken > 0 and (strict or not systematic)


@dataclass(slots=True)
class Extreme:
    """The lowest or highest evaluation of a metric.

    Attributes:
        value: The value of the evaluation.
        position: The position in the current block of bytes, or None after :meth:`Course.keep_lines`.
        line: The line, which is set by :meth:`Course.keep_lines`.
    """

    value: float
    position: int | None
    line: int = 1


@dataclass(slots=True)
class Advance:
    """The successive values of a training's progress under one name, such as ``samples_count``.

    Attributes:
        first: The first value, or None before it.
        last: The last value, or None before the first.
        gaps: The differences between successive values that rise, at most ``_MOST_KEPT`` of them.
        largest: The largest difference, and the line of its second value.
        back: The first value that is lower than the one before: the one before, the value, and its line.
        same: The first value that repeats the one before, and its line.
    """

    first: float | None = None
    last: float | None = None
    gaps: list[float] = field(default_factory=list)
    largest: tuple[float, int] = (0.0, 0)
    back: tuple[float, float, int] | None = None
    same: tuple[float, int] | None = None

    def take(self, value: float, line_at: LineAt, position: int) -> None:
        """Add the next value."""
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


@dataclass(slots=True)
class Epochs:
    """The epochs of a log, also those that end after run_stop, as the last one does in many logs."""

    starts: int = 0
    stops: int = 0
    late_stops: int = 0
    """Number of stops after run_stop."""
    first: float | None = None
    """Number of the first epoch that starts, if the log states it."""
    last: float | None = None
    gap: tuple[float, float, int] | None = None
    """The first two numbers that do not follow each other, and the line of the second one."""

    def start(self, number: float | None, line_at: LineAt, position: int) -> None:
        """Count a start, with the number of the epoch if the log states it."""
        self.starts += 1
        if number is None:
            return
        if self.last is None:
            self.first = number
        elif number != self.last + 1 and self.gap is None:
            self.gap = self.last, number, line_at(position)
        self.last = number

    def stop(self, *, is_late: bool) -> None:
        """Count a stop."""
        self.stops += 1
        self.late_stops += is_late

    def missing(self, benchmark: str, evaluated: float | None) -> Iterator[Found]:
        """Yield the signs that the start or stop of an epoch is missing.

        Args:
            benchmark: The benchmark's name in MLPerf's rules.
            evaluated: The highest epoch that an evaluation states, if any does.
        """
        if self.starts != self.stops:
            yield f"{self.starts} epochs start and {self.stops} stop: lines of the log are missing", None
        if self.gap is not None:
            before, number, line = self.gap
            yield f"epoch {number:g} starts after epoch {before:g}: lines of the log are missing", line
        if self.first is not None and self.first not in self._possible_first(benchmark):
            yield f"the first epoch that starts is {self.first:g}: lines of the log are missing", None
        last = self.last if benchmark in _EVALUATED_IN_EPOCHS else None
        if last is not None and evaluated is not None and evaluated > last:
            message = f"an evaluation is of epoch {evaluated:g}, and the last one that starts is {last:g}"
            yield f"{message}: lines of the log are missing", None

    def _possible_first(self, benchmark: str) -> tuple[float, ...]:
        """Return the numbers that the first epoch may have. Submitters' programs count from 0 or from 1."""
        # The one program for retinanet that counts from 1 stops all epochs before run_stop. The others stop
        # the last epoch after run_stop.
        if benchmark == "retinanet" and not self.late_stops:
            return 0.0, 1.0
        return (_FIRST_EPOCH[benchmark],) if benchmark in _FIRST_EPOCH else (0.0, 1.0)


class Course:
    """The state of one log while its events are read."""

    def __init__(self) -> None:
        self.pairs = {kind: Pairs() for kind in KINDS}
        self.epochs = Epochs()
        self.progress: dict[tuple[str, str], Advance] = {}
        """Progress by its name and by the metric of the evaluations, or :data:`EPOCHS`."""
        self.even: dict[str, Advance] = {}
        """Samples at each ``train_loss`` or ``block_stop``, for the comparison with :data:`_EVEN`."""
        self.evaluations = 0
        """Number of ``eval_accuracy`` events."""
        self.watched = watched_events()
        self.logged: set[str] = set()
        """Events of :func:`watched_events` that the log contains. The parser adds them."""
        self.trained_s = 0.0
        """Seconds that all blocks with a start and a stop took together."""
        self.block_began = 0.0
        """Time of the last ``block_start``, in seconds."""
        self.before_block: tuple[int, ...] = ()
        """Number of statistics of each kind when the current block began."""
        self.of_blocks: list[tuple[int, ...]] = []
        """Statistics of each completed block, by kind."""
        self.steps_of: list[float] = []
        """Steps of each completed block, or 0 where the log does not state them."""
        self.first_step: float | None = None
        """Step at the start of the current block."""
        self.extremes: dict[tuple[str, bool], Extreme] = {}
        """Lowest (False) and highest (True) evaluation of each metric."""

    @property
    def samples(self) -> float | None:
        """Return the number of samples trained at the last evaluation, or None if unknown."""
        counted = self.progress.get(("samples_count", ""))
        return counted.last if counted is not None else None

    @property
    def evaluated_epoch(self) -> float | None:
        """Return the highest epoch that an evaluation states, or None if none does."""
        return max(
            (
                progress.last
                for (name, metric), progress in self.progress.items()
                if name == "epoch_num" and metric != EPOCHS and progress.last is not None
            ),
            default=None,
        )

    def block_started(self, time: float, counts: tuple[int, ...], step: float | None) -> None:
        """Record a block's start: its time, the statistics of each kind before it, and its first step."""
        self.before_block, self.block_began, self.first_step = counts, time, step

    def block_stopped(self, time: float, counts: tuple[int, ...], step: float | None) -> None:
        """Record a block's stop: its time, the statistics of each kind until then, and its last step."""
        if self.pairs["block"].open:
            self.trained_s += time - self.block_began
            if len(self.of_blocks) < _MOST_KEPT:
                of_block = (now - then for now, then in zip(counts, self.before_block, strict=True))
                self.of_blocks.append(tuple(of_block))
                first = self.first_step
                self.steps_of.append(0.0 if step is None or first is None else max(0.0, step - first))

    def advance(self, name: str, metric: str, value: float, line_at: LineAt, position: int) -> None:
        """Record the training's progress, from a ``samples_count``, ``epoch_num`` or ``step_num``.

        At most 60 names and metrics are followed.
        """
        progress = self.progress.get((name, metric))
        if progress is None and len(self.progress) < 60:
            progress = self.progress[name, metric] = Advance()
        if progress is not None:
            progress.take(value, line_at, position)

    def mark(self, key: str, samples: float | None, line_at: LineAt, position: int) -> None:
        """Record the samples that were trained until an event."""
        if samples is not None:
            self.even.setdefault(key, Advance()).take(samples, line_at, position)

    def evaluate(self, metric: str, value: float, position: int) -> None:
        """Keep the lowest and the highest value of a metric, to check them at the log's end."""
        lowest, highest = self.extremes.get((metric, False)), self.extremes.get((metric, True))
        if lowest is None and len(self.extremes) > _MOST_EXTREMES:
            return
        if lowest is None or value < lowest.value:
            self.extremes[metric, False] = Extreme(value, position)
        if highest is None or value > highest.value:
            self.extremes[metric, True] = Extreme(value, position)

    def keep_lines(self, line_at: LineAt) -> None:
        """Turn positions into lines before the next block of bytes is read."""
        for extreme in self.extremes.values():
            if extreme.position is not None:
                extreme.line, extreme.position = line_at(extreme.position), None

    def missing(self, benchmark: str, platform: str, *, stopped: bool) -> Iterator[Found]:
        """Yield the signs that a part of the training's log is missing, or belongs to another training.

        Args:
            benchmark: The benchmark's name in MLPerf's rules. Some rules apply only to the benchmarks above.
            platform: The log's ``submission_platform``. On TPUs, a part starts before the previous one stops.
            stopped: Whether the log contains the end of the run.
        """
        yield from self._missing_marks(benchmark)
        if benchmark in ("minigo", "stable_diffusion"):
            return  # These are evaluated after the training, in any order.
        evals = self.pairs["eval"]
        for kind, pairs in self.pairs.items() if not platform.lower().startswith("tpu") else ():
            # In 40 logs of round 4.0, a block_start follows each evaluation, and no event encloses one.
            if not (benchmark == "llama2_70b_lora" and pairs.is_shifted and not evals.starts + evals.stops):
                yield from _missing_of_pairs(benchmark, kind, pairs, stopped=stopped)
        differ = benchmark in _WHOLE and (evals.starts or evals.stops) and self.evaluations != evals.stops
        if differ or self.evaluations < _FEWEST_SHARE * max(evals.starts, evals.stops) - 1:
            message = f"{self.evaluations} eval_accuracy in {evals.stops} evaluations"
            yield f"{message}: lines of the log are missing", None
        for (name, metric), progress in self.progress.items():
            yield from _missing_of_progress(benchmark, name, metric, progress)
        yield from self._missing_statistics(benchmark)
        yield from self._thin_statistics()

    def _missing_marks(self, benchmark: str) -> Iterator[Found]:
        """Yield an interval between events of ``_EVEN`` that is longer than the others."""
        key = _EVEN.get(benchmark, "")
        mark = self.even.get(key, Advance())
        gap, line = max(mark.largest, (mark.first or 0.0, 1))
        if mark.usual and gap > _EVEN_GAP * mark.usual and mark.back is None and mark.same is None:
            message = f"{gap:g} samples before a {key}, not the usual {mark.usual:g}"
            yield f"{message}: lines of the log are missing", line

    def _missing_statistics(self, benchmark: str) -> Iterator[Found]:
        """Yield a block whose number of statistics is below the median of the others by two or more."""
        if len(self.of_blocks) < _FEWEST_BLOCKS:
            return
        for kind in range(len(self.of_blocks[0])):
            counts = [counts[kind] for counts in self.of_blocks]
            usual = statistics.median_low(counts[1:])
            # In some submitters' resnet, the first block is shorter than the others.
            fewest = min(counts if benchmark in _WHOLE else counts[1:])
            if fewest < usual - 1:
                number = counts.index(fewest, 0 if benchmark in _WHOLE else 1) + 1
                message = f"block {number} has {fewest} statistics of training, others have {usual}"
                yield f"{message}: lines of the log are missing", None
                return

    def _thin_statistics(self) -> Iterator[Found]:
        """Yield a block with far fewer statistics per step than another one, if there are few blocks."""
        if not 1 < len(self.of_blocks) < _FEWEST_BLOCKS:
            return
        for kind in range(len(self.of_blocks[0])):
            blocks = [
                (number, counts[kind], steps)
                for number, (counts, steps) in enumerate(zip(self.of_blocks, self.steps_of, strict=True), 1)
                if steps
            ]
            # A block may contain one statistic more or less than its share.
            most = max(((count - 1) / steps for _, count, steps in blocks), default=0.0)
            for number, count, steps in blocks:
                if count + 1 < _FEWEST_OF_STEPS * most * steps:
                    yield (
                        f"block {number} has {count} statistics of training in {steps:g} steps, another one "
                        f"has {most * steps:.0f} in as many: lines of the log are missing",
                        None,
                    )
                    return


def _missing_of_pairs(benchmark: str, kind: str, pairs: Pairs, *, stopped: bool) -> Iterator[Found]:
    """Yield gaps in the starts and stops of a kind: a text, and the line if it is known."""
    in_turn = kind != "eval" or benchmark not in _NOT_IN_TURN
    # Six logs of llama31_405b in round 5.0 never log the start of an evaluation.
    strict = benchmark in _WHOLE and benchmark != "llama31_405b"
    if in_turn and pairs.has_hole(strict=strict) and pairs.first_broken is not None:
        problem, line = pairs.first_broken
        article = "an" if kind[0] == "e" else "a"
        yield f"{article} {kind} {problem}: lines of the log are missing", line
    elif stopped and pairs.open and kind != "epoch" and benchmark in _CLOSED:
        yield f"the last {kind} has not stopped: lines of the log are missing", None


def _missing_of_progress(benchmark: str, name: str, metric: str, progress: Advance) -> Iterator[Found]:
    """Yield where the progress at evaluations goes back, stays the same, or leaves evaluations out."""
    starts_epochs = metric == EPOCHS
    metric_text = f" of {metric}" if metric else ""
    if progress.back is not None:
        before, value, line = progress.back
        order = f"{name}{metric_text} is {value:g} after {before:g}"
        if starts_epochs:
            order = f"epoch {value:g} starts after epoch {before:g}"
        yield f"{order}: training does not go backwards", line
    stays = name == "epoch_num" and benchmark in _EPOCHS_STAY
    if progress.same is not None and (not stays or progress.same[0] > MOST_EPOCHS):
        value, line = progress.same
        message = f"two evaluations at {name} {value:g}: nothing was trained between them"
        yield f"epoch {value:g} starts twice: lines are of another run" if starts_epochs else message, line
    yield from _missing_evaluations(benchmark, name, metric, progress)


def _missing_evaluations(benchmark: str, name: str, metric: str, progress: Advance) -> Iterator[Found]:
    """Yield an interval between evaluations, or starts of epochs, that is longer than the others."""
    between = f"of {name}{f' of {metric}' if metric else ''} between evaluations"
    first = f"the first evaluation is at {name}"
    if metric == EPOCHS:
        between, first = "epochs between two starts", "the first epoch that starts is"
    gap, line = progress.largest
    usual = progress.usual
    # By the rules of rounds 0.6 and 0.7, the first interval of ssd is longer, 40 epochs or more.
    longer = benchmark == "ssd" and [gap] == progress.gaps[:1] and (progress.last or 0) > _EPOCHS_OF_NEW_SSD
    if usual and gap > _GAP * usual and not longer:
        message = f"{gap:g} {between}, not the usual {usual:g}: some are missing"
        yield message, line
    elif usual and benchmark in _FROM_THE_START and (progress.first or 0) > _GAP * usual:
        yield f"{first} {progress.first:g}, the others {usual:g} apart: some are missing", None
