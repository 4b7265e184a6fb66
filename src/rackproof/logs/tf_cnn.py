"""tf_cnn_benchmarks: a table of steps and ``total images/sec: 2544.13``.

A unix time may follow the last column. The memory allocator of TensorFlow speaks of running out of
memory when it only retries, so such text beside a good total is a remark.
"""

from __future__ import annotations

import math
import re
from typing import BinaryIO, ClassVar

from rackproof.logs._reading import Curve, Log, LogParser, number, run_parser
from rackproof.records import Direction, Measurement, ParsedLog, Verdict

_STEP = re.compile(
    r"^(\d{1,12})\s+images/sec:\s+(\S{1,30})\s+\+/-\s+\S{1,30}\s+\(jitter = [^)]{1,30}\)"
    r"\s+(\S{1,30})(?:\s+(\S+)){0,4}\s*$"
)
_HALF_STEP = re.compile(r"^\d{1,12}\s+images/sec:")
_TOTAL = re.compile(r"^total images/sec:\s*(\S{0,40})\s*$")
_FACT = re.compile(
    r"^(TensorFlow|Model|Dataset|Mode|Num batches|Data format|Optimizer|Variables|AllReduce):\s+(\S.*)$"
)
_BATCH = re.compile(r"^(?:Batch size:\s+(\d{1,9}) global|\s*(\d{1,9}) per device)")
_DEVICES = re.compile(r"^Devices:\s+(.*)$")
_MEMORY = re.compile(r"(?<!\()\bOOM\b|ran out of memory|Resource exhausted")


class Parser(LogParser):
    """Reads steps, total, facts of the header."""

    format: ClassVar[str] = "tf_cnn"

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.total: tuple[float, int] | None = None
        self.totals = 0
        self.loss: tuple[float, int] | None = None
        self.speed = Curve("images_per_second", "images/s", "step")
        self.losses = Curve("train_loss", "", "step")
        self.memory: tuple[int, str] | None = None
        self.memory_count = 0
        self.last_line = 0

    def line(self, at: int, text: str) -> None:
        """Read one line."""
        self.last_line = at
        if "images/sec" in text:
            self.numbers(at, text)
        elif found := _FACT.match(text):
            self.log.tag(found[1].lower().replace(" ", "_"), found[2])
        elif found := _BATCH.match(text):
            self.log.tag("global_batch_size" if found[1] else "batch_size_per_device", found[1] or found[2])
        elif found := _DEVICES.match(text):
            self.log.tag("devices", str(found[1].count("gpu:") or 1))
        elif _MEMORY.search(text):
            self.memory_count += 1
            if self.memory is None:
                self.memory = (at, text)

    def numbers(self, at: int, text: str) -> None:
        """Read a step or the total."""
        if found := _STEP.match(text):
            step, speed, loss = float(found[1]), number(found[2]), number(found[3])
            if loss is None or speed is None:
                self.log.find(
                    "damaged_line", "a step that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text
                )
                return
            if not math.isfinite(loss):
                self.log.find(
                    "nan", f"the loss is {loss} at step {found[1]}", Verdict.FAIL, line=at, excerpt=text
                )
            self.loss = (loss, at)
            self.speed.add(step, speed)
            self.losses.add(step, loss)
        elif found := _TOTAL.match(text):
            self.totals += 1
            value = number(found[1])
            if value is None:
                self.log.find(
                    "damaged_line", "a total that is no number", Verdict.UNPROVEN, line=at, excerpt=text
                )
            elif not math.isfinite(value) or value <= 0:
                self.log.find("nan", f"total images/sec is {value}", Verdict.FAIL, line=at, excerpt=text)
                self.total = (value, at)
            else:
                self.total = (value, at)
        elif _HALF_STEP.match(text):
            # A step is nothing to be judged by; its loss might have been NaN, though.
            self.log.find(
                "damaged_line", "a step that cannot be read", Verdict.DEGRADED, line=at, excerpt=text
            )

    def finish(self) -> ParsedLog:
        """Judge by the total."""
        log = self.log
        measurements: list[Measurement] = []
        proven = False
        if self.total is None:
            log.find(
                "no_total",
                "no total images/sec: the run did not end",
                Verdict.UNPROVEN,
                line=max(1, log.lines),
            )
        else:
            value, at = self.total
            if log.ends_in_line and at == self.last_line:
                log.find("cut_off", "the log ends inside the line of the total", Verdict.UNPROVEN, line=at)
            else:
                proven = math.isfinite(value) and value > 0
                measurements.append(
                    self.measure("images_per_second", value, "images/s", Direction.HIGHER, at)
                )
        if self.totals > 1:
            log.find("several_runs", f"{self.totals} totals in one log; the last one counts")
        log.marks_as_findings(self.total[1] if proven and self.total else None, frozenset({"out_of_memory"}))
        if self.memory is not None:
            at, text = self.memory
            what = f"{self.memory_count} lines speak of running out of memory"
            log.find("memory_text", what, None if proven else Verdict.UNPROVEN, line=at, excerpt=text)
        if self.loss is not None:
            measurements.append(self.measure("train_loss", self.loss[0], "", Direction.LOWER, self.loss[1]))
        elif proven:
            log.find("no_steps", "a total without any step", Verdict.UNPROVEN)
        base = Verdict.PASS if proven else Verdict.UNPROVEN
        return log.parsed(self.format, base, measurements, [self.speed, self.losses])


def parse(stream: BinaryIO, name: str = "") -> ParsedLog:
    """Return what a log of tf_cnn_benchmarks says."""
    return run_parser(Parser, stream, name)


_HEAD = re.compile(rb"images/sec|tf_cnn_benchmarks|tensorflow/core/|Img/sec")


def recognise(head: bytes) -> bool:
    """Whether the bytes look like tf_cnn_benchmarks (or TensorFlow that fell before its first step)."""
    return _HEAD.search(head) is not None
