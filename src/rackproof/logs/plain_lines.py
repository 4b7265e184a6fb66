"""Parse a program's plain output for job bench, with the patterns in a benchmark's definition.

The definition (``result.lines``, :mod:`rackproof.core.line_rules`) has one pattern for each metric and one
for a good end. ``^Triad: +([0-9.]+)`` finds 310.5 in ``Triad:   310.5 GB/s``. :func:`rackproof.logs.parse`
creates the parser if it gets such rules.
"""

from __future__ import annotations

import math
import re
import statistics
from typing import ClassVar

from rackproof.core.line_rules import FORMAT, LineMetric, LineRules
from rackproof.core.patterns import compiled_pattern
from rackproof.core.records import Measurement, ParsedLog, Verdict
from rackproof.logs._reading import Log, LogParser, number

MOST_BYTES = 2000
"""Largest number of bytes of a line on which patterns are tried. The slowest pattern takes 0.2 ms."""
MOST_REPETITIONS = 10_000
"""Largest number of repetitions with a median. More are unproven."""
PROGRAM_LINE = re.compile(r"^rackproof: program (\S.{0,1000}), sha256 ([0-9a-f]{64})$")
"""Pattern of the first line that workloads/run_command.py prints: the program that made the output."""


def tag_program(log: Log, line: str) -> bool:
    """Return whether a line is that of run_command.py, and store the program's path and digest as tags."""
    match = PROGRAM_LINE.match(line.rstrip())
    if match is not None:
        log.tag("software.program", match[1])
        log.tag("software.program_sha256", match[2])
    return match is not None


class _Reading:
    """The number of one metric so far, its line, and how many lines stated a number of the metric."""

    def __init__(self, rule: LineMetric) -> None:
        self.rule = rule
        self.pattern = compiled_pattern(rule.pattern)
        self.value, self.line, self.count = math.nan, 0, 0
        self.first_line = self.last_line = 0
        """First and last line with a number of the metric."""
        self.impossible = 0
        """Number of lines that fit the pattern and state no possible value."""
        self.samples: list[float] = []
        """The numbers of repetitions in order, if the rule takes their median."""
        self.group: int = self.pattern.groupindex.get(b"value", 1)

    def take(self, at: int, value: float) -> None:
        """Record a number from a line. The rule's ``take`` decides whether it replaces the one before."""
        self.count += 1
        self.first_line, self.last_line = self.first_line or at, at
        better = {
            "only": self.count == 1,
            "first": self.count == 1,
            "last": True,
            "lowest": self.count == 1 or value < self.value,
            "highest": self.count == 1 or value > self.value,
            "median": True,
        }
        if better[self.rule.take]:
            self.value, self.line = value, at
        if self.rule.take == "median" and self.count <= MOST_REPETITIONS:
            self.samples.append(value)


_GOES_ON = re.compile(rb"[.,]?\d|[eE][-+]?\d|['_]\d{3}")
"""Pattern of text after a number that makes it a different number."""

_UNFINISHED = re.compile(rb"[.,eE'_\d+-]*")
"""Pattern of the text after a number at the end of a log that may be cut within the number."""


class PlainLinesParser(LogParser):
    """The parser of lines by the patterns of a definition."""

    format: ClassVar[str] = FORMAT
    description: ClassVar[str] = "plain output, by the patterns of a benchmark's definition"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return False, because only a definition states the format of its program's output."""
        return False

    def __init__(self, log: Log, rules: LineRules) -> None:
        super().__init__(log)
        self.readings = {name: _Reading(rule) for name, rule in rules.metrics.items()}
        self.good_end = compiled_pattern(rules.good_end)
        self.failures = [compiled_pattern(text) for text in rules.failures]
        self.first_end: int | None = None
        self.ended_at: int | None = None
        """First and last line of a good end."""
        self.open_number = 0
        """Last line that ends with the number of a metric."""

    def line(self, at: int, text: str) -> None:
        """Read one line."""
        whole_line, text = text, text[:MOST_BYTES].rstrip()
        if tag_program(self.log, text):
            return
        line = text.encode("utf-8", "replace")[:MOST_BYTES]
        for failure in self.failures:
            if failure.search(line):
                message = "the program's output shows a failure"
                self.log.find("tool_error", message, Verdict.FAIL, line=at, excerpt=text)
        for name, reading in self.readings.items():
            if match := reading.pattern.search(line):
                value_text = (match[reading.group] or b"").decode("utf-8", "replace")
                rest = whole_line.encode("utf-8", "replace")[max(0, match.end(reading.group)) :]
                if _GOES_ON.match(rest):
                    # The pattern, or what it sees of the line, ends within a number: 1 of 1,234.
                    value_text = f"{value_text}…"
                self.open_number = at if _UNFINISHED.fullmatch(rest) else self.open_number
                self._take(name, reading, at, value_text, text)
        if self.good_end.search(line):
            self.ended_at = at
            self.first_end = self.first_end or at

    def _take(self, name: str, reading: _Reading, at: int, shown: str, text: str) -> None:
        """Record the text that a pattern matched for a metric. An impossible number is a finding."""
        value = number(shown)
        if value is None or not math.isfinite(value) or value < reading.rule.at_least:
            message = f"{name}: {shown!r:.60} is not a possible value"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at, excerpt=text)
            reading.impossible += 1
            return
        reading.take(at, value)

    def finish(self) -> ParsedLog:
        """Return the log with its measurements.

        If a measurement or the line of a good end is missing, the log is unproven.
        """
        log = self.log
        measurements = [measurement for name in self.readings if (measurement := self._measurement(name))]
        if self.ended_at is None:
            log.find("no_end", "no line shows that the program ended well", Verdict.UNPROVEN)
        if log.ends_in_line and self.open_number == log.lines + 1:
            message = "the log ends with a number and without a line end: the number may be cut"
            log.find("cut_off", message, Verdict.UNPROVEN, line=self.open_number)
        self._judge_order()
        log.marks_as_findings(self.ended_at)
        proven = self.ended_at is not None and len(measurements) == len(self.readings)
        return log.parsed(self.format, Verdict.PASS if proven else Verdict.UNPROVEN, measurements)

    def _judge_order(self) -> None:
        """Find a run that began after a good end and has none of its own.

        Most programs print their numbers above the good end, and some print them below it. The last number
        and the last end must be in the order of the first ones.
        """
        for name, reading in self.readings.items():
            if self.first_end is None or self.ended_at is None or not reading.count:
                continue
            if (reading.first_line <= self.first_end) != (reading.last_line <= self.ended_at):
                message = (
                    f"{name}: the last number and the last good end are not in the order of the first ones. "
                    "Did another run begin? If not, name as good_end the last line that the program prints"
                )
                self.log.find("cut_off", message, Verdict.UNPROVEN, line=reading.last_line)

    def _measurement(self, name: str) -> Measurement | None:
        """Return a metric's measurement, or None if the output has no number of it, or too many."""
        reading = self.readings[name]
        if reading.count == 0 and reading.impossible:
            return None
        if reading.count == 0:
            message = f"{name}: no line fits its pattern {reading.rule.pattern!r:.120}"
            self.log.find("metric_missing", message, Verdict.UNPROVEN)
            return None
        if reading.rule.take == "only" and reading.count > 1:
            message = f"{name}: {reading.count} lines fit its pattern; name the one that counts with `take`"
            self.log.find("several_values", message, Verdict.UNPROVEN, line=reading.line)
            return None
        if reading.samples and reading.count > MOST_REPETITIONS:
            message = f"{name}: {reading.count} repetitions, and {MOST_REPETITIONS} are the most"
            self.log.find("several_values", message, Verdict.UNPROVEN, line=reading.line)
            return None
        rule = reading.rule
        value = statistics.median(reading.samples) if reading.samples else reading.value
        return self.measure(name, value, rule.unit, rule.direction, reading.line, samples=reading.samples)
