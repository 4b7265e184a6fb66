"""Find contradictions between the times of an MLPerf training and the work that its log states.

A log that was edited, spliced from two runs, or written by a program that measures wrongly states a pace that
no training has. :mod:`._mlperf` feeds :class:`Pace` with events, and turns each message that Pace yields into
an unproven finding. *Pace* is progress per second. *Progress* is the number of samples, epochs or steps so
far, which evaluations state.

Every bound keeps a margin to all published logs of rounds 3.1 and 5.1 (3,877 logs). Logs of earlier years are
not compared, because their submitters measured in other ways. The module does no I/O.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import pairwise
from typing import NamedTuple

from rackproof.core.training_limits import (
    NOISE_S,
    PROGRESS_KEYS,
    RunTimes,
    faster_than_itself,
    paces_between,
)

SINCE = date(2023, 3, 1)
"""Day of the oldest logs that are compared. The oldest log of round 3.1 is from April 2023."""
LATE_S = 1.0
"""Seconds by which training may begin before run_start, because the clocks of ranks differ."""
_START_SHARE, _START_S = 0.05, 5.0
"""Longest time from init_stop to run_start, as a share of the run and in seconds. In published logs, the
share is at most 0.011."""
_FASTEST_INTERVAL = 3.0
"""Largest ratio of the pace between two evaluations to the usual one. Published logs have at most 1.98."""
_SHORT_RUN_S = 120.0
"""Shortest duration of a run whose pace is judged. A busy processor may change the pace of a shorter one."""
_FEWEST_EVALUATIONS = 3
"""Smallest number of evaluations that show a usual pace."""
_MOST_EVALUATIONS = 20_000
"""Largest number of stored evaluations, which limits the memory."""
_MISSED_INTERVALS = 1.5
"""Largest difference between the progress at run_stop and at the last evaluation, in usual intervals between
evaluations. In published logs, it is at most 1."""
_UNEVEN = frozenset({"dlrm", "maskrcnn", "minigo", "ssd", "stable_diffusion"})
"""Benchmarks whose evaluations are logged late or at any time. Their intervals show no pace."""
_ENDS_AT_TARGET = frozenset(
    {
        "dlrm_dcnv2", "flux1", "gpt3", "llama2_70b_lora", "llama31_405b", "llama31_8b", "resnet", "retinanet",
        "rgat", "rnnt", "unet3d",
    }
)  # fmt: skip
"""Benchmarks whose published logs all end at the first evaluation that reaches the target."""
_MOST_EQUAL = 3
"""Number of equal evaluations in a row that no training has. Published logs have at most two. Whole numbers
are not compared."""
_MOST_RELAPSE: Mapping[str, float] = {
    "bert": 0.05, "dlrm_dcnv2": 0.03, "flux1": 0.25, "gnn": 0.1, "llama31_405b": 0.06, "resnet": 0.55,
    "retinanet": 0.06, "rgat": 0.2, "ssd": 0.06,
}  # fmt: skip
"""Largest step for the worse from one evaluation to the next, as a share of the range of all evaluations.
Published logs have at most half of it. For a benchmark that is not listed, any step is plausible."""
_MOST_OF_TWO: Mapping[str, float] = {
    "bert": 0.01, "dlrm_dcnv2": 0.01, "flux1": 0.045, "gnn": 0.03, "llama31_405b": 0.04, "llama31_8b": 0.012,
    "resnet": 0.22, "retinanet": 0.04, "rgat": 0.04, "ssd": 0.04,
}  # fmt: skip
"""The same bound if both of the next two evaluations are worse. The smaller of the two steps is compared."""
_FEWEST_OF_COURSE = 4
"""Smallest number of evaluations whose steps are judged."""
_SHORTEST_EVALUATION_S = 0.0005
"""Smallest duration of a log's longest evaluation, for the benchmarks in the next set. In published logs,
each evaluation takes at least 0.096 s (gnn)."""
_EVALUATED_FOR_A_TIME = frozenset(
    {"dlrm_dcnv2", "flux1", "gnn", "llama2_70b_lora", "llama31_405b", "llama31_8b", "retinanet", "rgat"}
)
"""Benchmarks for which an evaluation without duration proves that its time is missing from the run."""


class Evaluation(NamedTuple):
    """An evaluation of the model during the training.

    Attributes:
        time: The time of the event in seconds since 1970.
        amount: The training's progress, in the unit that :attr:`Pace.kind` names.
        value: The quality, or None if the event states none or several metrics.
    """

    time: float
    amount: float
    value: float | None


class Pace:
    """The times of one log's events, collected while the events are read. Times are in seconds since 1970."""

    def __init__(self) -> None:
        self.init_stop: float | None = None
        self.first_part: tuple[float, str] | None = None
        """Time and key of the earliest event of the training."""
        self._started: dict[str, float] = {}
        """Time of the start of each kind of part that has not stopped."""
        self.negative: tuple[float, str] | None = None
        """Seconds from the stop of a part to its later start, and the key of the stop."""
        self.longest_evaluation: float | None = None
        """Longest time from the start to the stop of an evaluation, in seconds."""
        self.kind = ""
        """Name of the progress that the evaluations state, from ``PROGRESS_KEYS``, or "" until one does."""
        self.evaluations: list[Evaluation] = []
        """Evaluations whose progress is larger than that of all earlier ones."""
        self.at_stop: dict[str, float] = {}
        """Progress that run_stop states, by name."""

    def part(self, key: str, time: float) -> None:
        """Record an event of the training: an evaluation, or the start or stop of a part (``block_stop``)."""
        if self.first_part is None or time < self.first_part[0]:
            self.first_part = time, key
        kind, _, end = key.partition("_")
        if end == "start":
            self._started[kind] = time
        elif end == "stop":
            if kind == "eval" and kind in self._started:
                self.longest_evaluation = max(time - self._started[kind], self.longest_evaluation or 0.0)
            before = self._started.pop(kind, time) - time
            if before > LATE_S and self.negative is None:
                self.negative = before, key

    def evaluate(self, stated: Mapping[str, float], time: float, value: float | None) -> None:
        """Record an evaluation with its stated progress, by name, and its value if it has one metric.

        The first evaluation that states progress determines its kind. An evaluation without progress of this
        kind, or whose progress is not larger than before, is left out.
        """
        kind = next((name for name in PROGRESS_KEYS if name in stated), "")
        if not kind or (self.kind and kind != self.kind):
            return
        self.kind = kind
        before = self.evaluations[-1].amount if self.evaluations else 0.0
        if stated[kind] > before and len(self.evaluations) < _MOST_EVALUATIONS:
            self.evaluations.append(Evaluation(time, stated[kind], value))

    @property
    def amount(self) -> float | None:
        """Return the progress at the last evaluation, or None without an evaluation."""
        return self.evaluations[-1].amount if self.evaluations else None

    def early_start(self, start: float, stop: float) -> Iterator[str]:
        """Yield the evidence that the training began before run_start.

        ``start`` is the time of run_start, and ``stop`` that of run_stop.
        """
        if self.first_part is not None and start - self.first_part[0] > LATE_S:
            time, key = self.first_part
            yield f"{key} is {start - time:.3f} s earlier than run_start: the duration is unknown"
        late = start - self.init_stop if self.init_stop is not None else 0.0
        if late > max(_START_S, _START_SHARE * (stop - start)):
            yield (
                f"run_start is {late:.1f} s after init_stop, and the run takes {stop - start:.1f} s: the "
                "training may have begun earlier, so the duration is unknown"
            )

    def without_duration(self) -> Iterator[str]:
        """Yield a message about the first part of the training that stops before it starts."""
        if self.negative is not None:
            before, key = self.negative
            yield f"a {key} is {before:.3f} s earlier than its start: the duration is unknown"

    def too_fast(self, run: RunTimes) -> Iterator[str]:
        """Yield the evidence that the run took longer than from run_start to run_stop."""
        if run.seconds < _SHORT_RUN_S or len(self.evaluations) < _FEWEST_EVALUATIONS:
            return
        points = [(evaluation.time, evaluation.amount) for evaluation in self.evaluations]
        fastest = _uneven_pace(run, points)
        yield from (fastest,) if fastest else faster_than_itself(run, points)

    def missing(self) -> Iterator[str]:
        """Yield the evidence that the last evaluation is not the one at which the run stopped."""
        stated, amount = self.at_stop.get(self.kind), self.amount
        if stated is None or amount is None or self.kind == "step_num":
            return
        gaps = [later.amount - evaluation.amount for evaluation, later in pairwise(self.evaluations)]
        usual = statistics.median_low(gaps) if gaps else amount
        # A program may state the evaluation before the last one: stable_diffusion on TPU v5p in round 4.1.
        if abs(stated - amount) > _MISSED_INTERVALS * usual:
            yield (
                f"the run stopped at {self.kind} {stated:g}, and its last evaluation is at {amount:g}: lines "
                "of the log are missing, or belong to another run"
            )

    def impossible_course(self, benchmark: str, *, at_most: bool) -> Iterator[str]:
        """Yield the evidence that the values of the evaluations do not come from a training.

        Args:
            benchmark: The name in MLPerf's rules.
            at_most: Whether the target is a largest value, as for a loss.
        """
        values = [evaluation.value for evaluation in self.evaluations if evaluation.value is not None]
        yield from _equal_evaluations(values)
        yield from _relapse(
            values, _MOST_RELAPSE.get(benchmark), _MOST_OF_TWO.get(benchmark), at_most=at_most
        )

    def instant_evaluations(self, benchmark: str) -> Iterator[str]:
        """Yield the evidence that the time of the evaluations is missing from the run."""
        longest = self.longest_evaluation
        if benchmark in _EVALUATED_FOR_A_TIME and longest is not None and longest < _SHORTEST_EVALUATION_S:
            yield "no evaluation takes any time: their time is missing from the run"

    def reached_before(self, benchmark: str, reached: list[bool]) -> float | None:
        """Return the progress at which the target was reached although the run went on, or None.

        Args:
            benchmark: The name in MLPerf's rules.
            reached: For each evaluation, True if it reached the target.
        """
        if benchmark not in _ENDS_AT_TARGET or True not in reached[:-1]:
            return None
        return self.evaluations[reached.index(True)].amount


def _uneven_pace(run: RunTimes, points: list[tuple[float, float]]) -> str:
    """Return a message about an interval in which the training was much faster than usual, or "".

    Args:
        run: The times of the run.
        points: The time and the progress of each evaluation.
    """
    paces = paces_between(points)
    if run.benchmark in _UNEVEN:
        return ""
    # Without times between evaluations, only the pace of the whole run is left.
    usual = statistics.median_low(paces) if len(paces) > 1 else points[-1][1] / run.seconds
    if not usual:
        return ""  # Progress by the smallest floating-point numbers has a pace of 0.
    for (began, before), (time, amount) in pairwise([(run.start, 0.0), *points]):
        seconds = max(0.0, time - began)
        times = (amount - before) / (seconds + NOISE_S) / usual
        if times > _FASTEST_INTERVAL:
            return (
                f"the training went from {before:g} to {amount:g} in {seconds:.1f} s, {times:.3g} "
                "times its usual pace"
            )
    return ""


def _equal_evaluations(values: Sequence[float]) -> Iterator[str]:
    """Yield the first value that several evaluations in a row share exactly."""
    for index, value in enumerate(values[: 1 - _MOST_EQUAL]):
        # Whole numbers are left out, because a rate of errors may stay at 1 for a while, as in rnnt.
        if value % 1 and len(set(values[index : index + _MOST_EQUAL])) == 1:
            yield f"{_MOST_EQUAL} evaluations in a row are exactly {value!r}"
            return


def _relapse(
    values: Sequence[float], most: float | None, most_of_two: float | None, *, at_most: bool
) -> Iterator[str]:
    """Yield the first step of evaluations for the worse that is too large for a training.

    Args:
        values: The evaluations in the order of time.
        most: The largest plausible step, as a share of the range of all values, or None without a bound.
        most_of_two: The same for the smaller of the two differences to the next two evaluations.
        at_most: Whether small values are good.
    """
    if len(values) < _FEWEST_OF_COURSE:
        return
    losses = values if at_most else [-value for value in values]
    extent = max(losses) - min(losses)
    for place, loss in enumerate(losses[:-1]):
        following = losses[place + 1 : place + 3]
        if most is not None and following[0] - loss > most * extent:
            yield (
                f"an evaluation of {values[place + 1]:g} comes after one of {values[place]:g}: training is "
                "not so uneven"
            )
            return
        if most_of_two is not None and len(following) > 1 and min(following) - loss > most_of_two * extent:
            yield (
                f"both evaluations after one of {values[place]:g} are worse, {values[place + 1]:g} and "
                f"{values[place + 2]:g}: training is not so uneven"
            )
            return
