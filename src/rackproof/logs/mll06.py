"""Parse logs of MLPerf Training 0.6 for :func:`rackproof.logs.parse`.

An event is a line with a time in seconds since 1970, a key and JSON. Throughput is on other lines, in another
form for each of the six benchmarks (:data:`_SPEED`):

    :::MLL 1575733913.169 eval_accuracy: {"value": 0.2305, "metadata": {"epoch_num": 49}}
    Iteration:     20, Loss function: 20.630, Average Loss: 0.446, avg. samples / sec: 3805.07

minigo logs no ``run_stop``. Its ``eval_result`` counts as the end of the run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import ClassVar

import orjson

from rackproof.core.records import Measurement, Verdict
from rackproof.logs._mlperf import (
    HIGHER,
    LOWER,
    TARGETS_06,
    Events,
    KeyTwiceError,
    decode_leniently,
    has_key_twice,
)
from rackproof.logs._reading import Log, Mean, number

TOKEN = b":::MLL "
_EVENT = re.compile(rb":::MLL ([0-9.eE+-]{1,30}|nan) ([A-Za-z0-9_]{1,80}): *")
"""Pattern of an event up to its JSON, with its time and key."""
_NUMBER = rb"(?P<%b>[0-9.eE+-]{1,30}|-?(?i:nan|inf))"
"""Pattern of a number in a group, whose name is inserted. NaN and infinity match, and become a finding."""
# Each group is named after the meaning of its number. Text or the line's end must follow the number, so that
# a number that was cut within a log does not match.
_SPEED = re.compile(
    rb"avg\. samples / sec: " + _NUMBER % b"ssd" + rb"[ \r]*$"
    rb"|MLPERF METRIC THROUGHPUT= *" + _NUMBER % b"iterations" + rb" iterations"
    rb"|Speed: " + _NUMBER % b"images" + rb" samples/sec"
    rb"|Performance: Epoch: *\d{1,6}\s+Training: " + _NUMBER % b"tokens" + rb" Tok/s"
    rb"|generated (?P<batches>\d{1,12}) batches in "
    rb"|epoch time +" + _NUMBER % b"epoch_seconds" + rb"[ \r]*$"
    rb"|Iteration time: " + _NUMBER % b"iteration_time" + rb" seconds",
    re.MULTILINE,
)
"""Pattern of throughput lines: of ssd, maskrcnn, resnet, gnmt, transformer (two lines) and minigo."""
MIN_TRAIN_BATCHES = 1000
"""Number of batches above which a line is about training. transformer also prints ``generated 51 batches in``
for validation, with few batches."""

LONG_STARTUP_S = 600
"""Seconds by which the RESULT line may exceed the time from run_start to run_stop without a remark."""

MIN_ITERATION_S, MIN_ITERATION_SHARE = 1.0, 0.5
"""Shortest believable iteration of minigo in seconds, and relative to the mean of the log's iterations. The
first iterations are shorter than the others, by up to a fifth in published logs."""

EXPECTED_SPEED = {
    "ssd": "samples_per_second",
    "resnet": "samples_per_second",
    "maskrcnn": "iterations_per_second",
    "gnmt": "tokens_per_second",
    "transformer": "batches_per_second",
    "minigo": "epochs_per_minute",
}
"""Name of each benchmark's throughput as a measurement."""


class Mll06Parser(Events):
    """The parser of the events and throughput lines of round 0.6."""

    format: ClassVar[str] = "mll06"
    description: ClassVar[str] = "MLPerf training 0.6"
    targets = TARGETS_06

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain an event of round 0.6."""
        return TOKEN in head

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.speeds = {name: Mean() for name in ("ssd", "iterations", "images", "tokens", "iteration_time")}
        """Mean of each number of :data:`_SPEED`, but not of transformer's."""
        self.warm_up_seen = False
        """True after the first figure of ssd."""
        self.batches = 0
        self.epoch_seconds = 0.0
        """Seconds of all of transformer's epochs. ``batches`` has their batches of training."""
        self.epoch_line = 1
        self.beaten: tuple[float, float | None, int, float] | None = None
        """Seconds from run_start, iteration, line and time of minigo's first ``eval_result``."""
        self.handlers["eval_result"] = self.on_eval_result

    def block(self, data: bytes) -> None:
        """Read events and throughput lines."""
        position = data.find(TOKEN)
        while position >= 0:
            self.one_event(data, position)
            position = data.find(TOKEN, position + len(TOKEN))
        for match in _SPEED.finditer(data):
            self.one_speed(match)
        self.block_done()

    def one_event(self, data: bytes, position: int) -> None:
        """Read the event at a position. It ends with its line, or where another event begins in the line."""
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        following = data.find(TOKEN, position + len(TOKEN), end)
        if following >= 0:
            end = following
        head = _EVENT.match(data, position, end)
        if head is None:
            self.unreadable(data[position:end], position)
            return
        payload = data[head.end() : end]
        try:
            body = self._decode_body(payload, position)
        except KeyTwiceError:
            self.key_twice(b'"key": "' + head[2] + b'" ' + payload, position)
            return
        except ValueError:
            self.unreadable(b'"key": "' + head[2] + b'" ' + payload, position)
            return
        if isinstance(body, dict) and has_key_twice(payload, body):
            self.key_twice(b'"key": "' + head[2] + b'" ' + payload, position)
            return
        if not isinstance(body, dict):
            self.unreadable(b'"key": "' + head[2] + b'"', position)
            return
        time = number(head[1].decode("ascii"))
        self.event(head[2].decode("ascii"), body.get("value"), body.get("metadata"), time, position)

    def _decode_body(self, payload: bytes, position: int) -> object:
        """Return an event's JSON, and record a defect in it.

        Raises:
            ValueError: The JSON cannot be decoded.
        """
        try:
            return orjson.loads(payload)
        except ValueError:
            body, defect = decode_leniently(payload)
        if defect:
            line = self.log.line_at(position)
            self.log.find("ugly_line", f"an event line {defect}", line=line, excerpt=payload)
        return body

    def one_speed(self, match: re.Match[bytes]) -> None:
        """Read one throughput line."""
        kind = match.lastgroup or ""
        raw = match[kind]
        line = self.log.line_at(match.start())
        if kind == "batches":
            if int(raw) > MIN_TRAIN_BATCHES:
                self.batches += int(raw)
            return
        value = number(raw.decode("ascii"))
        if value is None or not math.isfinite(value) or value <= 0:
            self.log.find(
                "impossible_value",
                "a throughput that is not a positive number",
                Verdict.UNPROVEN,
                line=line,
                excerpt=match[0],
            )
        elif kind == "epoch_seconds":
            self.epoch_seconds += value
            self.epoch_line = line
        elif kind == "ssd" and not self.warm_up_seen:
            # ssd's first figure includes the warm-up.
            self.warm_up_seen = True
        else:
            self.speeds[kind].add(value, line)

    def on_eval_result(
        self, key: str, value: object, meta: Mapping[str, object], time: float, position: int
    ) -> None:
        """Store the time at which minigo's model beat the target: ``timestamp`` seconds after run_start."""
        seconds = number(meta.get("timestamp"))
        if self.beaten is None and seconds is not None and math.isfinite(seconds) and seconds > 0:
            self.beaten = (seconds, number(meta.get("iteration")), self.log.line_at(position), time)

    def judge_end(self, measurements: list[Measurement]) -> bool:
        """Return whether the log proves a good end, and add the wall time of the RESULT line.

        An ``eval_result`` proves the end of a minigo that logs no ``run_stop``. Any other end is proven by
        ``run_stop``.
        """
        log = self.log
        if log.results:
            # Published tables are based on this time, not on the minutes from run_start to run_stop. The wall
            # time also includes start-up, and the games that minigo plays after the target.
            line, wall, _name = log.results[0]
            measurements.append(self.measure("wall_time", wall, "s", LOWER, line))
        if log.tags.get("submission_benchmark") != "minigo" or self.outcomes or self.aborted:
            ended_well = super().judge_end(measurements)
            if ended_well:
                self.note_long_result()
            return ended_well
        return self._judge_minigo_end(measurements)

    def _judge_minigo_end(self, measurements: list[Measurement]) -> bool:
        """Return whether a model beat the target. If so, add the times of the run.

        This model counts as the end, although minigo plays on.
        """
        log = self.log
        if self.run_start is None:
            log.find("no_run_start", "no readable run_start", Verdict.UNPROVEN, line=self._lost("run_start"))
            return False
        if self.beaten is None or self.evals.get("") is None:
            lacking = "eval_accuracy" if self.beaten else "eval_result with a time"
            message = f"no {lacking}: no model is shown to have beaten the target"
            log.find("target_not_beaten", message, Verdict.UNPROVEN, line=max(1, log.lines))
            return False
        seconds, iteration, line, logged = self.beaten
        # The log has milliseconds. In floats, their difference can be slightly below what the program logged.
        least, most = self._least_time(iteration), round(logged - self.run_start, 3)
        if not least <= seconds <= most:
            message = (
                f"a model beat the target after {seconds:g} s by its eval_result, which must be from "
                f"{least:.0f} to {most:.0f} s"
            )
            log.find("impossible_value", message, Verdict.UNPROVEN, line=line)
            return False
        # Later checks require a successful run_stop, which minigo does not log.
        self.outcomes.add("success")
        self.run_stop_line = line
        measurements.append(self.measure("time_to_train", seconds / 60, "min", LOWER, line))
        self.measure_startup(measurements)
        if iteration is not None and math.isfinite(iteration):
            self.epochs = (iteration, line)
        self.check_result_line(seconds)
        return True

    def _least_time(self, iteration: float | None) -> float:
        """Return the fewest seconds from run_start to the end of one of minigo's iterations."""
        done, times = max(1.0, iteration or 0.0), self.speeds["iteration_time"]
        shown = min(done, times.count) * times.value * MIN_ITERATION_SHARE if times.count else 0.0
        return max(done * MIN_ITERATION_S, shown)

    def note_long_result(self) -> None:
        """Record a remark if the RESULT line has much more time than the training took."""
        if not self.log.results or self.run_start is None or self.run_stop is None:
            return
        line, wall, _name = self.log.results[0]
        beyond = wall - (self.run_stop - self.run_start)
        if beyond > LONG_STARTUP_S:
            self.log.find(
                "long_result",
                f"the RESULT line has {beyond:.0f} s more than run_start to run_stop",
                line=line,
            )

    def measure_speed(self, measurements: list[Measurement]) -> None:
        """Add the throughput in the unit of the benchmark. An iteration of minigo counts as an epoch."""
        super().measure_speed(measurements)
        benchmark = self.log.tags.get("submission_benchmark", "")
        before = len(measurements)
        for kind, name, unit in (
            ("images" if benchmark == "resnet" else "ssd", "samples_per_second", "samples/s"),
            ("iterations", "iterations_per_second", "iterations/s"),
            ("tokens", "tokens_per_second", "tokens/s"),
        ):
            mean = self.speeds[kind]
            if mean.count:
                measurements.append(self.measure(name, mean.value, unit, HIGHER, mean.line))
        if self.batches and self.epoch_seconds:
            rate = self.batches / self.epoch_seconds
            measurements.append(
                self.measure("batches_per_second", rate, "batches/s", HIGHER, self.epoch_line)
            )
        iteration_time = self.speeds["iteration_time"]
        if iteration_time.count:
            rate = 60 / iteration_time.value
            measurements.append(
                self.measure("epochs_per_minute", rate, "epochs/min", HIGHER, iteration_time.line)
            )
        self._find_missing_speed(benchmark, measurements[before:])

    def _find_missing_speed(self, benchmark: str, measurements: list[Measurement]) -> None:
        """Record a remark if the benchmark's own throughput is not among the measurements."""
        expected = EXPECTED_SPEED.get(benchmark)
        if expected and not any(measurement.name == expected for measurement in measurements):
            # The minutes are valid without a throughput, but a rule about throughput is then unproven.
            self.log.find("no_throughput", f"the log has no throughput lines of {benchmark}")
