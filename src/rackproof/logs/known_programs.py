"""Parse the output of HPL (linear equations) and STREAM (memory bandwidth), for :func:`rackproof.logs.parse`.

Both programs check their own results. The parsers apply fixed rules for plain lines, as a benchmark's
definition has them in ``result.lines``, so that an output is read without a definition. Both programs also
state figures twice, and the parsers compare them. The first line below is a row of HPL (variant, N, NB, P, Q,
seconds, GFLOP/s). The second line is a row of STREAM (MB/s, and the mean, smallest and largest time in
seconds)::

    WR11C2R4      100000   192     2     2             123.45              5.4004e+03
    Triad:          181234.5     0.010614     0.010595     0.010702
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from itertools import product
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
"""Number of arrays that each kernel (measured loop) of STREAM reads or writes."""
_HPL_HEAD = re.compile(rb"(?m)^[^\n]{0,60}HPLinpack \d")
_STREAM_HEAD = re.compile(rb"(?m)^[^\n]{0,60}STREAM version \$Revision")
_LIKE_LABEL = re.compile(r"^(?:Copy|Scale|Add|Triad|N|NB|P|Q|PFACT|NBMIN|NDIV|RFACT|BCAST|DEPTH) *: ")
"""Pattern of a kernel of STREAM or a parameter of HPL, which look like the label of a host."""
_HPL_ROW = re.compile(
    r"^W[RC]\S{1,20} +(\d{1,9}) +(\d{1,9}) +(\d{1,9}) +(\d{1,9}) +(\S{1,20}) +(\S{1,20})"
    r"(?: +\( *(\S{1,20}?)\))?"
)
_HPL_PROGRESS = re.compile(r"\bGF= *(\S{1,20})\s+iGF_per= *(\S{1,20})\s+GF_per= *(\S{1,20})")
"""Pattern of a line about the progress of NVIDIA's HPL. Each process of the grid has one GPU."""
_HPL_COUNT = re.compile(
    r"^(?:(Finished) +)?(\d{1,9}) tests (?:with|completed and (passed|failed)|(skipped) because)"
)
_HPL_SUMMARY = ("finished", "passed", "failed", "skipped")
_HPL_LIST = re.compile(r"^(N|NB|P|Q|PFACT|NBMIN|NDIV|RFACT|BCAST|DEPTH) *: +(\w{1,20}(?: +\w{1,20}){0,19})$")
"""Pattern of a parameter with its values. A longer value is none, because HPL stores 32 bits."""
_HPL_MORE = re.compile(r"^\w{1,20}(?: +\w{1,20}){0,11}$")
"""Pattern of the next line of a list of more than eight values."""
_HPL_LONGEST_LIST = 20
_HPL_SIZES = ("N", "NB", "P", "Q")
"""Parameters that each row repeats: size of the problem, size of a block, and rows and columns of the grid of
processes. For each value of another parameter, HPL repeats all tests."""
_HPL_IGNORES = "ignores the following parameters from input file"
"""Text of NVIDIA's HPL, which ignores the lists of all parameters but those of :data:`_HPL_SIZES`."""
_HPL_BOUND = re.compile(r"^- Computational tests pass if scaled residuals are less than +(\S{1,20})$")
_HPL_RESIDUAL = re.compile(r"^\|\|Ax-b\|\|_oo ?/ ?\(.{10,60}\) ?= +(\S{1,30}) \.{6} (PASSED|FAILED)$")
_HPL_ERROR = re.compile(r"\bHPL ERROR\b|^>>> .{1,300} <<<(?: Abort \.\.\.)?$")
"""Pattern of both lines of an error that HPL itself prints (HPL_pwarn, HPL_pabort)."""
_STREAM_ROW = re.compile(r"^(Copy|Scale|Add|Triad): +(\S{1,20}) +(\S{1,20}) +(\S{1,20}) +(\S{1,20})$")
_STREAM_FACT = re.compile(
    r"^(?:(?:Total Aggregate )?(Array size)\s*=|(This system uses)|"
    r"Each (?:kernel will be executed|test is run)()|"
    r"Number of Threads (requested|counted)(?: for [\w ]{1,20})? =|(Solution Validates): avg error less than|"
    r"Your (?:clock|timer) (granularity)/precision appears to be|"
    r"\((=)(?= +\d+ (?:clock|timer) ticks\))) +(\S{1,20})"
)
"""Pattern of a number that STREAM prints beside its table. The group before the number names it, for example
``Array size`` or ``counted``. An empty group names the repetitions, and ``=`` the clock ticks of a kernel."""
_STREAM_THREAD = "Printing one line per active thread"
"""Text that each thread of version 5.9 and older prints once, in place of a number of counted threads."""
_STREAM_TICKS = 20
"""Smallest number of clock ticks of a kernel, by the advice that STREAM prints."""
_STREAM_LOOSEST = 1e-6
"""STREAM's bound for the mean error of arrays of 4 bytes. For other arrays, it is smaller."""
_STREAM_FEWEST = 2
"""Smallest number of repetitions, of which STREAM does not count the first."""


class _KnownProgramParser(PlainLinesParser):
    """The parser of a program by fixed rules."""

    rules: ClassVar[LineRules]
    head: ClassVar[re.Pattern[bytes]]
    """Pattern of the line with which each output begins."""

    def __init__(self, log: Log) -> None:
        super().__init__(log, self.rules)
        self.begun = self.ended = 0
        """Number of outputs that began, and of those that came to a good end."""
        self.row_after_end = False
        """True if a row follows the last good end. Such an output was cut off or put together."""

    def line(self, at: int, text: str) -> None:
        """Read one line, without indentation and a launcher's label."""
        text = text.strip()
        # Some names at the start of a line look like a host's label.
        if not _LIKE_LABEL.match(text):
            text = split_label(text)[1].strip()
        self.compare(at, text)
        line = text.encode()
        self.begun += self.head.match(line) is not None
        if self.good_end.search(line) is not None:
            self.ended += 1
            self.row_after_end = False
        super().line(at, text)

    def finish(self) -> ParsedLog:
        """Return the measurements. An output that began and did not end leaves the log unproven."""
        if 0 < self.ended < self.begun:
            message = f"{self.begun} outputs begin, but only {self.ended} ended well"
            self.log.find("cut_off", message, Verdict.UNPROVEN)
        elif self.ended and self.row_after_end:
            message = "rows follow the line that ends an output: their own output has no end"
            self.log.find("cut_off", message, Verdict.UNPROVEN)
        return super().finish()

    @abstractmethod
    def compare(self, at: int, text: str) -> None:
        """Compare the figures of a line with each other."""

    def contradiction(self, at: int, text: str, message: str) -> None:
        """Record figures that contradict each other."""
        self.log.find("figures_contradict", message, Verdict.UNPROVEN, line=at, excerpt=text)


class HplParser(_KnownProgramParser):
    """The parser of HPL (Netlib's and the vendors'), which solves equations and checks the residual."""

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
        self.rows: Counter[tuple[str, ...]] = Counter()
        """Number of rows with each combination of N, NB, P and Q that the parameters request."""
        self.lists: dict[str, list[str]] = {}
        self.open_list: list[str] = []
        """The list that the next line may continue."""
        self.ignores_lists = False
        self.bound = 0.0
        """Largest residual of a test that passes."""
        self.residuals = 0
        self.residuals_per_test = 1
        self.counts: dict[str, int] = {}
        """Numbers of tests that the program states at its end."""

    def compare(self, at: int, text: str) -> None:
        """Read parameters and numbers of tests, and compare the figures of rows and residuals."""
        more, self.open_list = self.open_list, []
        if row := _HPL_ROW.match(text):
            self._compare_row(at, text, row)
        elif count := _HPL_COUNT.match(text):
            self._count(at, text, (count[1] or count[3] or count[4] or "").lower(), int(count[2]))
        elif values := _HPL_LIST.match(text):
            self.open_list = self.lists[values[1]] = values[2].split()
        elif 0 < len(more) < _HPL_LONGEST_LIST and _HPL_MORE.match(text):
            more.extend(text.split())
            self.open_list = more
        elif residual := _HPL_RESIDUAL.match(text):
            self._compare_residual(at, text, residual)
        else:
            self._fact(at, text)

    def _fact(self, at: int, text: str) -> None:
        """Read the version, the bound of the residual, HPL's errors, and lines of NVIDIA's HPL only."""
        if _HPL_ERROR.search(text):
            message = "HPL reports an error of its own"
            self.log.find("tool_error", message, Verdict.UNPROVEN, line=at, excerpt=text)
        elif bound := _HPL_BOUND.match(text):
            self.bound = number(bound[1]) or 0.0
        elif text.startswith("HPLinpack 1."):
            self.residuals_per_test = 3
        elif _HPL_IGNORES in text:
            self.ignores_lists = True
        elif progress := _HPL_PROGRESS.search(text):
            self._compare_progress(at, text, progress)

    def _count(self, at: int, text: str, what: str, count: int) -> None:
        """Record a number of tests of the summary."""
        self.counts[what] = count
        if what == "skipped" and count:
            message = f"{count} tests were skipped because of illegal values: correct HPL.dat"
            self.log.find("rows_missing", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def _compare_residual(self, at: int, text: str, line: re.Match[str]) -> None:
        """Compare the residual of a test that passed with the program's bound. A NaN or infinity fails."""
        self.residuals += 1
        residual = number(line[1])
        if residual is not None and not math.isfinite(residual):
            self.log.find("nan", "the residual is not finite", Verdict.FAIL, line=at, excerpt=text)
        elif line[2] == "PASSED" and (residual is None or not 0 <= residual < self.bound):
            bound = f"{self.bound:g}" if self.bound else "missing"
            message = f"a residual of {line[1]} passed, and the bound of this output is {bound}"
            self.contradiction(at, text, message)

    def _compare_progress(self, at: int, text: str, progress: re.Match[str]) -> None:
        """Compare the speed of all GPUs with that of one GPU, and find speeds that are no numbers."""
        total, latest, one = (number(word) for word in progress.groups())
        sizes = [size for size in self._requested()[2] if "".join(size).isdecimal()]
        grids = [int(rows) * int(columns) for rows, columns in sizes]
        if any(speed is None or not math.isfinite(speed) for speed in (total, latest, one)):
            self.contradiction(at, text, "a speed of the progress is not a number")
        elif grids and not any(_is_share(one, total, gpus) for gpus in grids):
            self.contradiction(at, text, f"{one:g} GFLOP/s of each GPU are not {total:g} of all")

    def _compare_row(self, at: int, text: str, row: re.Match[str]) -> None:
        """Compare a row with the parameters, and its speed with the operations for its size in its time."""
        self.row_after_end = True
        size_asked, block_asked, grids = self._requested()
        if row[1] in size_asked and row[2] in block_asked and row.groups()[2:4] in grids:
            self.rows[row.groups()[:4]] += 1
        else:
            message = "no parameters above the table name N, NB, P and Q of this row"
            self.contradiction(at, text, message)
        self._compare_share(at, text, row)
        size, seconds, speed = float(row[1]), number(row[5]), number(row[6])
        by_time = (2 / 3 * size + 1.5) * size * size / 1e9 / seconds if seconds else 0.0
        # Times have two digits after the point.
        half = 0.006 * by_time / seconds if seconds else 0.0
        if speed is not None and abs(speed - by_time) > _AGREE * by_time + half:
            message = f"N = {row[1]} in {row[5]} s are {by_time:.4g} GFLOP/s, not {speed:.4g}"
            self.contradiction(at, text, message)

    def _compare_share(self, at: int, text: str, row: re.Match[str]) -> None:
        """Compare the speed of one GPU, which NVIDIA's HPL prints, with the speed of all GPUs."""
        count = int(row[3]) * int(row[4])
        if row[7] is not None and not _is_share(number(row[7]), number(row[6]), count):
            message = f"{row[7]} GFLOP/s of each of {count} GPUs are not {row[6]} of all"
            self.contradiction(at, text, message)

    def _requested(self) -> tuple[list[str], list[str], list[tuple[str, str]]]:
        """Return the sizes, blocks and process grids that the parameters request."""
        sizes, blocks, rows, columns = (self.lists.get(name, []) for name in _HPL_SIZES)
        return sizes, blocks, list(zip(rows, columns, strict=False))

    def _lacking(self) -> Iterator[str]:
        """Yield what the output lacks, compared with its parameters and its summary."""
        repeats = math.prod(len(values) for name, values in self.lists.items() if name not in _HPL_SIZES)
        once = Counter((size, block, *grid) for size, block, grid in product(*self._requested()))
        allowed = {1, repeats} if self.ignores_lists else {repeats}
        if not any(self.rows == Counter({test: many * once[test] for test in once}) for many in allowed):
            asked = repeats * once.total()
            yield f"{self.rows.total()} rows, and the parameters above the table ask for {asked} tests"
        yield from self._lacking_in_summary()
        if self.residuals != self.rows.total() * self.residuals_per_test:
            yield f"{self.residuals} residual checks of {self.rows.total()} rows"

    def _lacking_in_summary(self) -> Iterator[str]:
        """Yield what the summary lacks, or how it differs from the rows."""
        count = self.counts
        if lacking := [name for name in _HPL_SUMMARY if name not in count]:
            yield f"the summary has no number of tests that {' or '.join(lacking)}"
        elif count["finished"] != count["passed"] + count["failed"] + count["skipped"]:
            yield f"{count['finished']} tests were finished, but the summary has another number of results"
        elif count["finished"] != self.rows.total():
            yield f"{self.rows.total()} rows, and {count['finished']} tests were finished"

    def finish(self) -> ParsedLog:
        """Return the speed. A test without a row, a residual or a result leaves the log unproven."""
        for message in self._lacking():
            self.log.find("rows_missing", message, Verdict.UNPROVEN)
        return super().finish()


def _is_share(one: float | None, total: float | None, count: int) -> bool:
    """Return whether the speed of one GPU, times the number of GPUs, is the speed of all, up to rounding."""
    return one is not None and total is not None and abs(one * count - total) <= _AGREE * total + 0.01 * count


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
        self.facts: dict[str, float] = {}
        """Numbers that the program states, by the words before them, or NaN for a text that is no number. ""
        has the number of repetitions."""
        self.compared: set[str] = set()
        """Kernels whose rate was compared with a time."""
        self.threads = 0
        """Number of lines that threads of version 5.9 and older printed."""

    def compare(self, at: int, text: str) -> None:
        """Read a number beside the table, or compare a row's rate with its times and the arrays' size."""
        if fact := _STREAM_FACT.match(text):
            *names, shown = fact.groups()
            name = next(name for name in names if name is not None)
            value = number(shown.rstrip(".,"))
            self.facts[name] = math.nan if value is None else value
        elif row := _STREAM_ROW.match(text):
            self._compare_row(at, text, row)
        else:
            self.threads += text.startswith(_STREAM_THREAD)

    def _compare_row(self, at: int, text: str, row: re.Match[str]) -> None:
        """Compare a kernel's rate with its times and the size of its arrays."""
        self.compared.add(row[1])
        self.row_after_end = True
        rate, average, least, most = (number(word) or 0.0 for word in row.groups()[1:])
        if not 0 < least <= average <= most:
            self.contradiction(at, text, f"an average time of {average:g} s outside {least:g} to {most:g} s")
            return
        if self._is_other_average(average, least, most):
            count = self.facts[""] - 1
            message = f"{count:g} times from {least:g} to {most:g} s have no average of {average:g} s"
            self.contradiction(at, text, message)
        # STREAM counts with 1 microsecond if the clock is finer.
        tick = max(1.0, self.facts.get("granularity", 1.0)) / 1e6
        # The printed time may be rounded down by half a digit.
        if least + 0.5e-6 < _STREAM_TICKS * tick:
            message = f"{row[1]} takes {least / tick:.0f} ticks, and STREAM asks for {_STREAM_TICKS}"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at, excerpt=text)
        array = self.facts.get("Array size", 0.0) * self.facts.get("This system uses", 0.0)
        by_time = _ARRAYS[row[1]] * array / 1e6 / least
        if not abs(rate - by_time) <= (_AGREE + 1e-6 / least) * by_time and array:
            message = f"{row[1]} in {least:g} s is {by_time:.1f} MB/s, not {rate:g}"
            self.contradiction(at, text, message)

    def _is_other_average(self, average: float, least: float, most: float) -> bool:
        """Return whether no times with this smallest and largest one have this average, up to rounding.

        STREAM leaves out the first repetition.
        """
        count = self.facts.get("", math.nan) - 1
        if not count >= 1:
            return False
        # All times but one are the smallest, or the largest.
        lowest, highest = (least * (count - 1) + most) / count, (most * (count - 1) + least) / count
        return not lowest - 1e-6 <= average <= highest + 1e-6

    def finish(self) -> ParsedLog:
        """Return the rates. The log is unproven if they cannot be compared with the size of the arrays.

        It is also unproven if repetitions, the bound of the check, threads or ticks are impossible.
        """
        facts = self.facts
        if not facts.get("Array size") or not facts.get("This system uses") or self.compared < set(_ARRAYS):
            message = "without the size of the arrays and the times, no rate can be checked"
            self.log.find("rows_missing", message, Verdict.UNPROVEN)
        if not facts.get("", 0.0) >= _STREAM_FEWEST:
            message = (
                f"{facts.get('', 0.0):g} repetitions: STREAM does not count the first, and runs two or more"
            )
            self.log.find("impossible_value", message, Verdict.UNPROVEN)
        if not facts.get("Solution Validates", 0.0) <= _STREAM_LOOSEST:
            message = f"the arrays were checked with a bound above {_STREAM_LOOSEST:g}, the loosest of STREAM"
            self.log.find("impossible_value", message, Verdict.UNPROVEN)
        self._judge_threads()
        if facts.get("=", _STREAM_TICKS) < _STREAM_TICKS:
            message = f"a kernel takes {facts['=']:g} ticks of the clock, and STREAM asks for {_STREAM_TICKS}"
            self.log.find("impossible_value", message, Verdict.UNPROVEN)
        return super().finish()

    def _judge_threads(self) -> None:
        """Compare the requested with the counted threads. STREAM prints both numbers or neither."""
        requested, counted = self.facts.get("requested"), self.facts.get("counted")
        if counted is None and requested is not None and self.threads:
            counted = float(self.threads)
        if requested == counted:
            return
        asked, found = ("no number of" if value is None else f"{value:g}" for value in (requested, counted))
        message = f"{asked} threads were requested, and {found} threads were counted"
        self.log.find("figures_contradict", message, Verdict.UNPROVEN)
