"""Parse the log of MXNet's own training loop.

    INFO:root:Epoch[0] Batch [0-50]  Speed: 3180.43 samples/sec  accuracy=0.842831
    INFO:root:Epoch[0] Time cost=19.978
    INFO:root:Epoch[0] Validation-accuracy=0.974609

The format has no end marker. A run ended if its last epoch is complete, and one of these is true:

* It is the last epoch that the line ``start with arguments Namespace(… num_epochs=20 …)`` requests.
* The log has no such line, and the script printed its total time (``fit 43.4``, ``total 7.8``) after this
  epoch.

Rackproof's own MXNet program also prints the states of its GPUs, before and after this log.
:mod:`rackproof.logs.gpu_use` reads these lines.

:func:`rackproof.logs.parse` creates the parser. Begin with :meth:`MxnetParser.line`.
"""

from __future__ import annotations

import math
import re
import statistics
from typing import ClassVar

from rackproof.core.records import Direction, Measurement, ParsedLog, Verdict
from rackproof.logs._reading import Curve, Log, LogParser, Steps, number, whole

_EPOCH = re.compile(r"Epoch\[(\d{1,7})\] (.*)$")
"""Pattern of a line about an epoch (from 0). The next three patterns match the text after it."""
_SPEED = re.compile(r"^Batch \[(?:\d+-)?(\d{1,12})\]\s+Speed: (\S{1,30}) samples/sec(.*)$")
_METRIC = re.compile(r"^(Train|Validation)-([A-Za-z0-9_-]{1,40})=(\S{1,30})\s*$")
_TIME = re.compile(r"^Time cost=(\S{1,30})\s*$")
_INLINE = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,40})=(\S{1,30})")
"""Pattern of a metric at the end of a progress line (``accuracy=0.84``)."""
_ARGUMENT = re.compile(
    r"\b(num_epochs|load_epoch|batch_size|network|gpus|lr|lr_step_epochs|num_examples|kv_store|optimizer|disp_batches|seed)=('[^']{0,100}'|[^,)\s]{1,100})"
)
"""Pattern of the arguments of the training that become tags."""
_END = re.compile(r"^(?:fit|total) (\d[\d.]{0,30})\s*$")
"""Pattern of the line with the total time in seconds."""
_LOADED = re.compile(r"^load [\d.]{1,30} \(([1-9]\d{0,11})(?:, \d{1,12}){1,5}\)")
"""Pattern of the line with the shape of the training data, which begins with the number of samples."""
_SHORTER, _LONGER = 0.5, 6.0
"""Bounds for the time of an epoch, as a share of the time that its batches take at the logged speed. The
upper bound includes time for saving and synchronisation. Waits for data are already in the speed, and MXNet
validates after it has measured the epoch's time."""
_SHORT_S = 1.0
"""Tolerance in seconds for the same comparison."""
_LOSS = re.compile(r"loss|entropy|perplexity|[rm][ma]s?e$")
"""Pattern of the names of metrics that cannot be below 0."""
MAX_VALUES = 100_000
"""Largest number of speeds and of times that are stored, and of epochs whose batches are stored."""
_HEAD = re.compile(
    rb"Epoch\[\d+\] (?:Batch \[|Train-|Time cost=|Validation-)|start with arguments Namespace\("
)


class MxnetParser(LogParser):
    """The parser of speeds, accuracies and epoch times."""

    format: ClassVar[str] = "mxnet"
    description: ClassVar[str] = "MXNet's training log"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain a line of MXNet's training loop."""
        return _HEAD.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.speeds: list[float] = []
        """Samples per second of each progress line."""
        self.speed_line = self.time_line = 1
        self.times: list[float] = []
        self.time_of: dict[int, float] = {}
        """Seconds of each epoch."""
        self.slowest: dict[int, float] = {}
        """Lowest speed in each epoch."""
        self.metrics: dict[str, tuple[float, int]] = {}
        """Last value and its line, by the name of the measurement (``eval_accuracy``)."""
        self.batches: dict[int, Steps] = {}
        """The batches of each epoch."""
        self.ended_epochs: set[int] = set()
        self.validated: set[int] = set()
        self.last_epoch = -1
        """Highest number of an epoch."""
        self.end_line: int | None = None
        self.last_line = self.last_epoch_line = 0
        self.wall: float | None = None
        self.loaded: float | None = None
        """Number of training samples that the script loaded."""
        self.curves: dict[str, Curve] = {}

    def line(self, at: int, text: str) -> None:
        """Read one line."""
        self.last_line = at
        match = _EPOCH.search(text)
        if match is None:
            self._line_outside_epochs(at, text)
            return
        epoch, values = int(match[1]), match[2]
        self.last_epoch = max(self.last_epoch, epoch)
        self.last_epoch_line = at
        if speed := _SPEED.match(values):
            if epoch in self.batches or len(self.batches) < MAX_VALUES:
                self.batches.setdefault(epoch, Steps()).take(float(speed[1]), at)
            self.speed(at, epoch, speed[2], speed[3], text)
        elif time := _TIME.match(values):
            self._epoch_time(at, epoch, time[1], text)
        elif metric := _METRIC.match(values):
            self.metric(at, epoch, metric[1], metric[2], metric[3], text)

    def _line_outside_epochs(self, at: int, text: str) -> None:
        """Read the arguments of the training, or the total time at the end of the script."""
        if "num_epochs=" in text:
            for name, value in _ARGUMENT.findall(text):
                self.log.tag({"batch_size": "global_batch_size"}.get(name, name), value.strip("'"))
        elif loaded := _LOADED.match(text):
            self.loaded = float(loaded[1])
        elif end := _END.match(text):
            self.end_line, self.wall = at, number(end[1])

    def _epoch_time(self, at: int, epoch: int, raw: str, text: str) -> None:
        """Read the time of an epoch, which ends the epoch."""
        value = number(raw)
        if value is None or not math.isfinite(value) or value <= 0:
            self.log.find(
                "impossible_value",
                "an epoch time that is not a positive number",
                Verdict.UNPROVEN,
                line=at,
                excerpt=text,
            )
        elif len(self.times) < MAX_VALUES:
            self.times.append(value)
            self.time_line = at
            self.ended_epochs.add(epoch)
            self.time_of[epoch] = value

    def speed(self, at: int, epoch: int, raw: str, values: str, text: str) -> None:
        """Read one progress line."""
        value = number(raw)
        if value is None or not math.isfinite(value) or value <= 0:
            self.log.find(
                "impossible_value",
                "a speed that is not a positive number",
                Verdict.UNPROVEN,
                line=at,
                excerpt=text,
            )
        elif len(self.speeds) < MAX_VALUES:
            self.speeds.append(value)
            self.speed_line = at
            self.slowest[epoch] = min(value, self.slowest.get(epoch, math.inf))
            self.curve("samples_per_second", "samples/s").add(epoch + len(self.speeds) * 1e-6, value)
        for name, number_text in _INLINE.findall(values):
            inline = number(number_text)
            # A training that computes only the losses of its batches prints an accuracy of nan in each line.
            if inline is not None and not (math.isnan(inline) and "accuracy" in name):
                self._check_metric(name, inline, at, text)

    def metric(self, at: int, epoch: int, kind: str, name: str, raw: str, text: str) -> None:
        """Read one training or validation value."""
        value = number(raw)
        if value is None:
            self.log.find(
                "damaged_line", f"{kind}-{name} is not a number", Verdict.UNPROVEN, line=at, excerpt=text
            )
            return
        self._check_metric(f"{kind}-{name}", value, at, text)
        if kind == "Validation":
            self.validated.add(epoch)
        if name == "accuracy":
            key = "eval_accuracy" if kind == "Validation" else "train_accuracy"
        else:
            key = f"{'eval' if kind == 'Validation' else 'train'}_{name.lower().replace('-', '_')}"
        if key in self.metrics or len(self.metrics) < 20:
            self.metrics[key] = (value, at)
            self.curve(key, "").add(epoch + 1, value)

    def _check_metric(self, name: str, value: float, at: int, text: str) -> None:
        """Record NaN and infinity, an accuracy or F1 score outside 0 to 1, and a loss below 0.

        The limits of other metrics are unknown.
        """
        fraction = "accuracy" in name or name.endswith("f1")
        if math.isnan(value) and fraction:
            # MXNet divides the number of right answers by the number of examples, so it divided by 0.
            message = f"{name} is {value}: no example was counted"
            self.log.find("no_examples", message, Verdict.UNPROVEN, line=at, excerpt=text)
        elif not math.isfinite(value):
            self.log.find("nan", f"{name} is {value}", Verdict.FAIL, line=at, excerpt=text)
        elif (fraction and not 0 <= value <= 1) or (value < 0 and _LOSS.search(name)):
            message = f"{name} cannot be {value:g}"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def curve(self, name: str, unit: str) -> Curve:
        """Return the curve with the name, and make it if necessary."""
        return self.curves.setdefault(name, Curve(name, unit, "epoch"))

    def finish(self) -> ParsedLog:
        """Return the parsed log. It is unproven unless it shows that the run ended (:meth:`judge_end`)."""
        log = self.log
        proven = self.judge_end()
        self._judge_course()
        log.marks_as_findings(self.last_epoch_line if proven else None)
        measurements: list[Measurement] = []
        if self.speeds:
            # The first interval includes allocation and auto-tuning.
            speeds, name = self.speeds[1:] or self.speeds, "samples_per_second"
            speed, up, line = statistics.median(speeds), Direction.HIGHER, self.speed_line
            measurements.append(self.measure(name, speed, "samples/s", up, line, samples=speeds))
        for name, (value, line) in self.metrics.items():
            # For other metrics, the better direction is unknown.
            direction = Direction.HIGHER if name.endswith("accuracy") else None
            measurements.append(self.measure(name, value, "", direction, line))
        self._measure_times(measurements)
        base = Verdict.PASS if proven else Verdict.UNPROVEN
        return log.parsed(self.format, base, measurements, list(self.curves.values()))

    def _judge_course(self) -> None:
        """Find missing epochs and batches, batches that do not increase, and times that contradict speeds."""
        ended = sorted(self.ended_epochs)
        # Without a finished epoch, nothing is proven anyway (judge_end).
        first = min(self._argument("load_epoch") or 0, ended[0]) if ended else self.last_epoch
        missing = next(
            (epoch for epoch in range(first, self.last_epoch) if epoch not in self.ended_epochs), None
        )
        if missing is not None:
            message = f"epoch {missing} is missing, and epoch {self.last_epoch} is there"
            self.log.find("rows_missing", message, Verdict.UNPROVEN, line=self.last_epoch_line)
        self._judge_batches(ended)
        self._judge_speeds()
        self._judge_total()
        for epoch, batches in self.batches.items():
            if problem := batches.problem(f"batches of epoch {epoch}"):
                self.log.find("rows_missing", problem[0], Verdict.UNPROVEN, line=problem[1])

    def _argument(self, name: str) -> int | None:
        """Return a whole number from the training's arguments, or None if it is missing or not whole."""
        text = self.log.tags.get(name, "")
        return whole(text) if text.isdecimal() else None

    def _judge_batches(self, ended: list[int]) -> None:
        """Find an epoch whose last batch number is lower than another's. All epochs use the same data."""
        if len(self.batches) >= MAX_VALUES:
            return
        most = max((batches.last or 0 for batches in self.batches.values()), default=0)
        # Samples left over from an epoch may add a batch, and therefore a line, to the next one.
        gap = max((batches.usual for batches in self.batches.values()), default=0)
        for epoch in ended:
            last = self.batches[epoch].last if epoch in self.batches else None
            if (last is None and most) or (last is not None and last + gap < most):
                batches_text = "no batch" if last is None else f"batches up to {last:g}"
                message = f"epoch {epoch} shows {batches_text}, and another one some up to {most:g}"
                self.log.find("rows_missing", message, Verdict.UNPROVEN, line=self.last_epoch_line)
                return

    def _judge_speeds(self) -> None:
        """Find an epoch whose time contradicts the logged speeds.

        The first epoch includes the start-up, so it is checked only if there is no other.
        """
        epochs = sorted(self.time_of.keys() & self.slowest.keys() & self.batches.keys())
        for epoch in epochs[1:] or epochs:
            least, most = self._samples_of(epoch)
            took, shortest, longest = (
                self.time_of[epoch],
                least / max(self.speeds),
                most / self.slowest[epoch],
            )
            if most and (took + _SHORT_S < _SHORTER * shortest or took > _LONGER * longest + _SHORT_S):
                samples = f"{least:g}" if least == most else f"{least:g} to {most:g}"
                message = (
                    f"epoch {epoch} took {took:g} s, and its {samples} samples take {shortest:.3g} to "
                    f"{longest:.3g} s at the logged speed"
                )
                self.log.find("steps_contradict", message, Verdict.UNPROVEN, line=self.time_line)
                return

    def _samples_of(self, epoch: int) -> tuple[float, float]:
        """Return the smallest and the largest possible number of samples of an epoch, or zeros if unknown.

        They follow from the batches of the progress lines, or else from the number of loaded samples.
        """
        batch = number(self.log.tags.get("global_batch_size"))
        if batch is not None and 0 < batch < math.inf:
            last, gap = self.batches[epoch].last or 0.0, self.batches[epoch].usual
            return last * batch, (last + (gap or last)) * batch
        return (self.loaded, self.loaded) if self.loaded else (0.0, 0.0)

    def _judge_total(self) -> None:
        """Find a total time that is shorter than the epochs within it."""
        epochs_s = math.fsum(self.time_of.values())
        if self.wall is not None and self.wall + _SHORT_S < epochs_s:
            message = f"the total time is {self.wall:g} s, and the epochs took {epochs_s:g} s"
            self.log.find("steps_contradict", message, Verdict.UNPROVEN, line=self.end_line)

    def _measure_times(self, measurements: list[Measurement]) -> None:
        """Add the number of epochs, their time, the start-up time and the total time."""
        lower, line = Direction.LOWER, self.time_line
        if self.ended_epochs:
            measurements.append(self.measure("epochs", float(len(self.ended_epochs)), "epochs", lower, line))
        if self.times:
            # The first epoch includes start-up, so it is longer than the others.
            times = self.times[1:] or self.times
            steady = statistics.median(times)
            measurements.append(self.measure("seconds_per_epoch", steady, "s", lower, line, samples=times))
            if len(self.times) > 1:
                startup = max(0.0, self.times[0] - steady)
                measurements.append(self.measure("startup_time", startup, "s", lower, line))
        if self.wall is not None and self.end_line is not None:
            measurements.append(self.measure("wall_time", self.wall, "s", lower, self.end_line))

    def judge_end(self) -> bool:
        """Return whether the log proves a run that ended well."""
        log = self.log
        if not self.ended_epochs:
            log.find("no_epoch", "no epoch was finished", Verdict.UNPROVEN, line=max(1, log.lines))
            return False
        if log.ends_in_line and self.last_line in (self.last_epoch_line, self.end_line):
            # A number that was cut off still looks like a number.
            log.find("cut_off", "the log ends in mid-line", Verdict.UNPROVEN, line=self.last_line)
            return False
        if not self._last_epoch_is_whole():
            log.find(
                "cut_off",
                f"epoch {self.last_epoch} was not finished",
                Verdict.UNPROVEN,
                line=self.last_epoch_line,
            )
            return False
        if "num_epochs" in log.tags:
            proven = self._argument("num_epochs") == self.last_epoch + 1
            if not proven:
                message = f"the last epoch is number {self.last_epoch + 1} of {log.tags['num_epochs']:.40}"
                log.find("cut_off", message, Verdict.UNPROVEN, line=self.last_epoch_line)
            return proven
        if self.end_line is not None and self.end_line > self.last_epoch_line:
            return True
        log.find(
            "no_end",
            "nothing shows that this was the last epoch (no num_epochs, no total time)",
            Verdict.UNPROVEN,
            line=self.last_epoch_line,
        )
        return False

    def _last_epoch_is_whole(self) -> bool:
        """Return whether the last epoch states its time and, if others were validated, its validation."""
        if self.last_epoch not in self.ended_epochs:
            return False
        return not self.validated or self.last_epoch in self.validated
