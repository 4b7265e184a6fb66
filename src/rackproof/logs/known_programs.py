"""Read HPL and STREAM, which check their own results, by the rules of a definition's plain lines.

A definition of such a program states the same rules (``result.lines``). Here they are fixed, so that
``parse`` reads an output without a definition. Both programs also state figures twice, which are compared.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import ClassVar

from rackproof.core.line_rules import LineRules
from rackproof.core.records import Direction, ParsedLog, Verdict
from rackproof.logs._launchers import split_label
from rackproof.logs._reading import Log, number
from rackproof.logs.plain_lines import PlainLinesParser

_AGREE = 0.01
"""Relative tolerance for a speed that is computed from the printed size and time."""
_HPL = LineRules.model_validate(
    {
        "good_end": r"^End of Tests\.",
        "failures": [
            r"\.\.\. FAILED$",
            r"^[1-9]\d{0,8} tests completed and failed residual checks",
        ],
        "metrics": {
            "hpl_speed": {
                "pattern": r"^W[RC]\S{1,20} +\d+ +\d+ +\d+ +\d+ +[0-9.]+ +(\S+)",
                "unit": "GFLOP/s",
                "direction": Direction.HIGHER,
                "take": "highest",
            },
            "hpl_tests_passed": {
                "pattern": r"^(\d+) tests completed and passed residual checks",
                "unit": "tests",
                "direction": Direction.HIGHER,
                "at_least": 1,
            },
        },
    }
)
_STREAM = LineRules.model_validate(
    {
        "good_end": "^Solution Validates",
        "failures": ["^Failed Validation"],
        "metrics": {
            f"stream_{name.lower()}": {
                "pattern": rf"^{name}: +(\S+)",
                "unit": "MB/s",
                "direction": Direction.HIGHER,
            }
            for name in ("Copy", "Scale", "Add", "Triad")
        },
    }
)
_ARRAYS = {"Copy": 2, "Scale": 2, "Add": 3, "Triad": 3}
"""Number of arrays that each kernel of STREAM reads or writes."""
_HPL_HEAD = re.compile(rb"(?m)^[^\n]{0,60}HPLinpack \d")
_STREAM_HEAD = re.compile(rb"(?m)^[^\n]{0,60}STREAM version \$Revision")
_KERNEL = re.compile(r"^(?:Copy|Scale|Add|Triad): ")
_HPL_ROW = re.compile(r"^W[RC]\S{1,20} +(\d{1,9}) +\d+ +\d+ +\d+ +(\S{1,20}) +(\S{1,20})")
_HPL_COUNT = re.compile(r"^(?:Finished +(\d{1,9}) tests with|(\d{1,9}) tests skipped because)")
_STREAM_ROW = re.compile(r"^(Copy|Scale|Add|Triad): +(\S{1,20}) +(\S{1,20}) +(\S{1,20}) +(\S{1,20})$")
_STREAM_SIZE = re.compile(r"^Array size = (\d{1,15}) |^This system uses (\d{1,2}) bytes per array element")


class _KnownProgramParser(PlainLinesParser):
    """The parser of a program by fixed rules."""

    rules: ClassVar[LineRules]
    head: ClassVar[re.Pattern[bytes]]
    """Pattern of the line with which each output begins."""

    def __init__(self, log: Log) -> None:
        super().__init__(log, self.rules)
        self.begun = self.ended = 0
        """Number of outputs that began, and of those that came to a good end."""

    def line(self, at: int, text: str) -> None:
        """Read one line, without indentation and a launcher's label."""
        text = text.strip()
        # The name of a kernel of STREAM looks like a host's label.
        if not _KERNEL.match(text):
            text = split_label(text)[1].strip()
        self.compare(at, text)
        line = text.encode()
        self.begun += self.head.match(line) is not None
        self.ended += self.good_end.search(line) is not None
        super().line(at, text)

    def finish(self) -> ParsedLog:
        """Return the measurements. An output that began and did not end leaves the log unproven."""
        if 0 < self.ended < self.begun:
            message = f"{self.begun} outputs begin, and {self.ended} came to a good end"
            self.log.find("cut_off", message, Verdict.UNPROVEN)
        return super().finish()

    @abstractmethod
    def compare(self, at: int, text: str) -> None:
        """Compare the figures of a line with each other."""

    def contradiction(self, at: int, text: str, message: str) -> None:
        """Record figures that contradict each other."""
        self.log.find("figures_contradict", message, Verdict.UNPROVEN, line=at, excerpt=text)


class HplParser(_KnownProgramParser):
    """The parser of HPL, of Netlib and of vendors, which solves equations and checks the residual."""

    format: ClassVar[str] = "hpl"
    description: ClassVar[str] = "HPL (xhpl, NVIDIA HPL)"
    rules = _HPL
    head = _HPL_HEAD

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain HPL's heading, and not that of a suite or of mixed precision."""
        other_heads = (b"HPC Challenge", b"HPL-MxP", b"HPL-AI")
        return _HPL_HEAD.search(head) is not None and not any(text in head for text in other_heads)

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.rows = 0
        self.finished: int | None = None
        """Number of tests that the program states at its end."""

    def compare(self, at: int, text: str) -> None:
        """Compare a row's speed with its size and time, and read the number of tests."""
        if row := _HPL_ROW.match(text):
            self.rows += 1
            self._compare_row(at, text, row)
        elif count := _HPL_COUNT.match(text):
            if count[1]:
                self.finished = int(count[1])
            elif int(count[2]):
                message = f"{count[2]} tests were skipped because of illegal values: correct HPL.dat"
                self.log.find("rows_missing", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def _compare_row(self, at: int, text: str, row: re.Match[str]) -> None:
        """Compare the speed of a row with the operations for its size in its time."""
        size, seconds, speed = float(row[1]), number(row[2]), number(row[3])
        by_time = (2 / 3 * size + 1.5) * size * size / 1e9 / seconds if seconds else 0.0
        # Times have two digits after the point.
        half = 0.006 * by_time / seconds if seconds else 0.0
        if speed is not None and abs(speed - by_time) > _AGREE * by_time + half:
            message = f"N = {row[1]} in {row[2]} s are {by_time:.4g} GFLOP/s, not {speed:.4g}"
            self.contradiction(at, text, message)

    def finish(self) -> ParsedLog:
        """Return the speed. A test without a row leaves the log unproven."""
        if self.finished is not None and self.finished != self.rows:
            message = f"{self.rows} rows, and {self.finished} tests were finished"
            self.log.find("rows_missing", message, Verdict.UNPROVEN)
        return super().finish()


class StreamParser(_KnownProgramParser):
    """The parser of STREAM, which measures the memory bandwidth of processors and checks its arrays."""

    format: ClassVar[str] = "stream"
    description: ClassVar[str] = "STREAM, memory bandwidth of processors"
    rules = _STREAM
    head = _STREAM_HEAD

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain STREAM's heading."""
        return b"HPC Challenge" not in head and _STREAM_HEAD.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.elements = self.width = 0
        """Number of an array's elements, and bytes of one."""

    def compare(self, at: int, text: str) -> None:
        """Read the size of the arrays, or compare a row's rate with its times and this size."""
        if size := _STREAM_SIZE.match(text):
            self.elements, self.width = int(size[1] or self.elements), int(size[2] or self.width)
        elif row := _STREAM_ROW.match(text):
            self._compare_row(at, text, row)

    def _compare_row(self, at: int, text: str, row: re.Match[str]) -> None:
        """Compare a kernel's rate with its times and the size of its arrays."""
        rate, average, least, most = (number(word) or 0.0 for word in row.groups()[1:])
        if not least <= average <= most:
            self.contradiction(at, text, f"an average time of {average:g} s outside {least:g} to {most:g} s")
        elif least and self.elements and self.width:
            by_time = _ARRAYS[row[1]] * self.elements * self.width / 1e6 / least
            if abs(rate - by_time) > (_AGREE + 1e-6 / least) * by_time:
                message = f"{row[1]} in {least:g} s is {by_time:.1f} MB/s, not {rate:g}"
                self.contradiction(at, text, message)
