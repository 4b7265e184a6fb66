"""Compare what an MLPerf training's log states twice.

A log states, for example, the time of a step (``"train_step_time": 0.21``), and also shows it by the times of
block_start and block_stop. Likewise, it states and shows the time of an evaluation, the progress of a
statistic, and the size of a batch. A person who edits a log, or joins parts of two, rarely changes both. None
of the 9,300 published logs of rounds 3.1 to 5.1 contradicts itself here. :mod:`._mlperf` feeds
:class:`Statements` with events, and turns each contradiction into an unproven finding. The module does no
I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from rackproof.core.training_limits import hyperparameter_names, read_hyperparameters
from rackproof.logs._course import Advance, LineAt
from rackproof.logs._reading import number, text_of

TIMED = frozenset({"validation_time", "walltime"})
"""Statistics with a time: validation_time is the time of an evaluation in seconds, and walltime the time of
the run so far in minutes."""
_PLACED = frozenset({"train_loss", "samples_per_second"})
"""Curves whose statistics follow each other in steps. Other statistics may count in other ways."""
_PLACES = ("step", "epoch_num", "samples_count")
"""Names of a statistic's progress. The first of these that a curve's first statistic states is used."""
_SLACK_S, _SLACK_SHARE = 1.0, 0.02
"""Differences of times up to these are no contradiction. In published logs, they are at most 0.05 s and
0.002."""
_WALL_SLACK_S = 3.0
"""Seconds by which the time that a program states may exceed the time of its events. In published logs, the
stated time is at least 5.8 s shorter."""
_SECONDS = re.compile(r"\s*(\d{1,9}(?:\.\d{1,20})?)\s*(?:s|sec|seconds)?\b")
"""Pattern of the ``duration`` that run_stop states: ``1234.5 sec``, or a number alone."""
_WHOLE_STEP = 0.02
"""Largest distance of an evaluation from a whole number of steps, in steps. In published logs, it is at most
0.0001."""
_STEPS_OF_EPOCH = frozenset({"dlrm_dcnv2"})
"""Benchmarks whose ``epoch_num`` is a number of steps divided by the steps of an epoch. An epoch has as many
steps as its samples need, rounded up."""
_SAMPLES_OF_STEPS: Mapping[str, tuple[str, float, float]] = {
    "gpt3": ("opt_learning_rate_decay_steps", 166_000_000, 167_200_000),
    "llama31_405b": ("opt_learning_rate_warmup_steps", 9_200_000, 9_232_000),
}
"""A number of steps that the rules define in samples, with the smallest and the largest product with the
batch size. Published logs have 166.4 to 166.81 million (gpt3) and 9,216,000 (llama31_405b)."""
_MOST_BENCHMARKS = 100
"""Largest number of a log's benchmarks that are stored."""
_LOCAL = ("local_batch_size", "d_batch_size")
"""Names of the batch size of one process."""
_SHARES_OF_RATE = {"flux1": (0.7, 1.01), "llama2_70b_lora": (0.7, 1.01)}
"""Bounds for the highest learning rate of a run, as a share of the stated one, for the benchmarks whose
published logs state the rate of each step. In 1,320 such logs, it is 0.999 to 1. A run of another benchmark
may end before its rate has risen to the stated one."""
_ONE_GPU_EACH = frozenset({"maskrcnn", "resnet", "retinanet", "ssd"})
"""Benchmarks in whose published logs each process has at least one GPU."""


class Statements:
    """The values that one log states in two ways, while its events are read."""

    def __init__(self) -> None:
        self.block_gap: tuple[float, float] | None = None
        """Time of the block that differs most from the time of its steps, and the time of the steps, in
        seconds."""
        self.eval_gap: tuple[float, float] | None = None
        """Time of the evaluation that is most below its stated time, and the stated time, in seconds."""
        self.wall_s = 0.0
        """Largest excess of the stated time of the run over the time of its events, in seconds."""
        self.duration: str = ""
        """Duration that run_stop states, as text, or ""."""
        self.other_batch: float | None = None
        """Batch size that a block states, if it differs from the log's."""
        self.progress: dict[str, tuple[str, Advance]] = {}
        """Name of the progress and the progress of each curve's statistics."""
        self.odd_place: tuple[str, int] | None = None
        """Message and line of the first statistic whose progress is infinite or not a number."""
        self.stated: dict[str, tuple[float, float]] = {}
        """Smallest and largest stated value of each name in the table of hyperparameters."""
        self.benchmarks: dict[str, None] = {}
        """Benchmarks that the log states, in its order. A log of one run states one."""
        self.highest_rate = 0.0
        """Highest learning rate that a statistic or a ``train_loss`` event states, or 0."""
        self._block: tuple[float, float | None, int] = (0.0, None, 0)
        """The current block: the time of its start, its first step, and the step times logged before it."""
        self._eval_began: float | None = None
        self._eval_s: float | None = None
        """Time that a statistic within the current evaluation states, in seconds."""

    def block_started(self, time: float, step: float | None, step_times: int) -> None:
        """Record the start of a block: its time, its first step, and the step times logged before it."""
        self._block = time, step, step_times

    def block_stopped(self, time: float, step: float | None, step_times: int, step_s: float | None) -> None:
        """Compare the times of a block and of its steps, if the time of a step was logged once in the block.

        Args:
            time: The time of the stop in seconds.
            step: The number of the last step.
            step_times: The number of step times that were logged before the stop.
            step_s: The last of these in seconds.
        """
        began, first_step, before = self._block
        self._block = time, None, step_times
        if (
            first_step is None
            or step is None
            or step_s is None
            or step_times - before != 1
            or step <= first_step
        ):
            return
        self.block_gap = _worse(self.block_gap, (time - began, (step - first_step) * step_s))

    def eval_started(self, time: float) -> None:
        """Record the start of an evaluation."""
        self._eval_began, self._eval_s = time, None

    def eval_stopped(self, time: float) -> None:
        """Compare an evaluation with the time that a statistic within it states."""
        began, stated, self._eval_began = self._eval_began, self._eval_s, None
        # A longer time may include a pause of the log. A shorter one lacks a part of the evaluation.
        if began is not None and stated is not None and time - began < stated:
            self.eval_gap = _worse(self.eval_gap, (time - began, stated))

    def take_time(self, name: str, raw: object, run_s: float) -> None:
        """Record a statistic of :data:`TIMED`.

        Args:
            name: The statistic.
            raw: Its value.
            run_s: The seconds since run_start.
        """
        value = number(raw)
        if value is None or not math.isfinite(value):
            return
        if name == "validation_time":
            self._eval_s = value
        else:
            self.wall_s = max(self.wall_s, 60 * value - run_s)

    def place(self, curve: str, meta: Mapping[str, object], line_at: LineAt, position: int) -> None:
        """Follow the training's progress and its learning rate at each statistic of a curve."""
        progress = self.progress.get(curve)
        if progress is None:
            key = next((name for name in _PLACES if name in meta), "") if curve in _PLACED else ""
            if not key:
                return
            progress = self.progress[curve] = key, Advance()
        stated = meta.get(progress[0])
        if type(stated) is int or type(stated) is float:
            value = number(stated)
            if value is not None and math.isfinite(value):
                progress[1].take(value, line_at, position)
            elif self.odd_place is None:  # number() returns None for a huge integer
                message = f"{curve} at {progress[0]} {text_of(stated, 40)}, which is no progress of a run"
                self.odd_place = message, line_at(position)
        if "lr" in meta:
            self.take_rate(meta["lr"])

    def take_rate(self, rate: object) -> None:
        """Record the learning rate of a step."""
        if type(rate) is float and self.highest_rate < rate < math.inf:
            self.highest_rate = rate

    def take_hyperparameter(self, name: str, raw: object) -> None:
        """Record a value of a hyperparameter. A later line may state another one."""
        value = number(raw) if name in hyperparameter_names() else None
        if value is not None and math.isfinite(value):
            least, most = self.stated.get(name, (value, value))
            self.stated[name] = min(least, value), max(most, value)

    def take_benchmark(self, name: str) -> None:
        """Record the name of a benchmark."""
        if len(self.benchmarks) < _MOST_BENCHMARKS:
            self.benchmarks.setdefault(name)

    def batch_of_block(self, stated: object, batch: float | None) -> None:
        """Record the batch size that a block states."""
        block_batch = number(stated)
        if block_batch is not None and batch is not None and block_batch != batch:
            self.other_batch = block_batch

    def times(self, seconds: float) -> Iterator[str]:
        """Yield the contradictions between the times of the events and those that the log states.

        Args:
            seconds: The time from run_start to run_stop.
        """
        if self.block_gap is not None and _differ(*self.block_gap):
            took, needed = self.block_gap
            yield f"a block took {took:.3f} s, and its steps {needed:.3f} s by the stated time of a step"
        if self.eval_gap is not None and _differ(*self.eval_gap):
            took, needed = self.eval_gap
            yield f"an evaluation took {took:.3f} s, and states that it took {needed:.3f} s"
        if self.wall_s > _WALL_SLACK_S:
            yield f"the program had run {self.wall_s:.1f} s longer than the time of its events"
        stated = _SECONDS.match(self.duration)
        if stated is not None and _differ(seconds, float(stated[1])):
            yield f"the run took {seconds:.3f} s, and run_stop states {float(stated[1]):.3f} s"

    def other_steps(self) -> Iterator[tuple[str, int | None]]:
        """Yield where the progress of statistics goes back, repeats or is no number: message and line."""
        if self.odd_place is not None:
            yield self.odd_place
        for curve, (key, progress) in self.progress.items():
            if progress.back is not None:
                before, value, line = progress.back
                yield f"{curve} at {key} {value:g} after {key} {before:g}: lines are of another run", line
            elif progress.same is not None:
                value, line = progress.same
                yield f"{curve} twice at {key} {value:g}: lines are of another run", line

    def batches(
        self, benchmark: str, batch: float, tags: Mapping[str, str], epochs: Sequence[float], gpus: int | None
    ) -> Iterator[str]:
        """Yield the contradictions between a log's batch size and its other numbers.

        Args:
            benchmark: The name in MLPerf's rules.
            batch: The global batch size.
            tags: The tags of the log.
            epochs: The evaluations' progress in epochs.
            gpus: The largest possible number of GPUs, or None if it is unknown.
        """
        of_log = f"a global_batch_size of {batch:g}"
        if self.other_batch is not None:
            yield f"a block states a batch of {self.other_batch:g}, and the log {of_log}"
        yield from _against_local(benchmark, batch, tags, gpus)
        key, least, most = _SAMPLES_OF_STEPS.get(benchmark, ("", 0.0, math.inf))
        steps = number(tags.get(key))
        if steps is not None and not least <= steps * batch <= most:
            yield f"{key} is {steps:g}, which does not fit {of_log} of {benchmark}"
        samples = number(tags.get("train_samples"))
        if samples and benchmark in _STEPS_OF_EPOCH:
            in_steps = (_is_after_whole_steps(epoch, samples / batch) for epoch in epochs)
            if not all(in_steps):
                yield f"an evaluation comes after a part of a step: it does not fit {of_log}"

    def hyperparameters(self, benchmark: str, tags: Mapping[str, str]) -> Iterator[str]:
        """Yield the hyperparameters that contradict the rules or the learning rates of the steps.

        Args:
            benchmark: The name in MLPerf's rules.
            tags: The tags of the log.
        """
        yield from _other_hyperparameters(benchmark, self.stated)
        stated = number(tags.get("opt_base_learning_rate"))
        if not stated or not self.highest_rate or benchmark not in _SHARES_OF_RATE:
            return
        least, most = _SHARES_OF_RATE[benchmark]
        if not least <= self.highest_rate / stated <= most:
            yield (
                f"opt_base_learning_rate is {stated:g}, and the highest learning rate of the steps is "
                f"{self.highest_rate:g}"
            )


def _is_after_whole_steps(epoch: float, of_epoch: float) -> bool:
    """Return whether a number of epochs is a whole number of steps, because only whole steps are trained.

    Args:
        epoch: The epochs of an evaluation.
        of_epoch: The samples of an epoch divided by those of a step.
    """
    if not math.isfinite(of_epoch) or not math.isfinite(epoch * math.ceil(of_epoch)):
        return False
    steps = epoch * math.ceil(of_epoch)
    return abs(steps - round(steps)) <= _WHOLE_STEP


def _other_hyperparameters(benchmark: str, stated: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Yield the hyperparameters that differ from those of the published logs, or are missing.

    Each of the 6,601 published logs states each name that the table has for its benchmark, so a log without
    one has lost a line. ``stated`` has the smallest and largest stated value of each name.
    """
    for name, (least, most) in read_hyperparameters().get(benchmark, {}).items():
        if name not in stated:
            yield f"the log does not state {name}, as the published logs of {benchmark} do"
        wrong_value = next((value for value in stated.get(name, ()) if not least <= value <= most), None)
        if wrong_value is not None:
            expected = f"{least:g}" if math.isclose(least, most, rel_tol=1e-4) else f"{least:g} to {most:g}"
            yield f"{name} is {wrong_value:g}: {benchmark} has {expected}"


def local_batch(tags: Mapping[str, str]) -> float | None:
    """Return the batch size of one process that a log states, or None."""
    batch = next((value for name in _LOCAL if (value := number(tags.get(name))) is not None), None)
    return batch if batch is not None and 0 < batch < math.inf else None


def _against_local(benchmark: str, batch: float, tags: Mapping[str, str], gpus: int | None) -> Iterator[str]:
    """Yield the contradictions between the batch size of the run and that of one process."""
    local = local_batch(tags)
    accumulated = number(tags.get("gradient_accumulation_steps")) or 1.0
    if local is not None and batch % local:
        yield f"a global_batch_size of {batch:g} is no multiple of {local:g} of each process"
    elif accumulated % 1 == 0 and batch % ((local or 1.0) * accumulated):
        of_step = f"{accumulated:g} gradient_accumulation_steps" + (f" of {local:g}" if local else "")
        yield f"a global_batch_size of {batch:g} is no multiple of {of_step}"
    if local is None:
        return
    if benchmark in _ONE_GPU_EACH and gpus is not None and batch > local * gpus * max(1.0, accumulated):
        yield (
            f"a global_batch_size of {batch:g} needs {batch / local:g} processes with {local:g} each, and "
            f"the log's platform has at most {gpus} GPUs"
        )


def _worse(worst: tuple[float, float] | None, pair: tuple[float, float]) -> tuple[float, float]:
    """Return the pair whose two times differ more."""
    return pair if worst is None or abs(pair[0] - pair[1]) > abs(worst[0] - worst[1]) else worst


def _differ(took: float, stated: float) -> bool:
    """Return whether two statements of a time contradict each other."""
    return abs(took - stated) > max(_SLACK_S, _SLACK_SHARE * stated)
