"""Parse the output of nccl-tests: tables on standard output, or the JSON of ``-J``.

    #  size  count   type  redop  root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
    2224200 556050  float    sum    -1    10.00  222.42  222.42       0     9.58  232.17  232.17       0

A collective is an operation of all ranks, such as all_reduce. Time, algbw, busbw and ``#wrong`` are printed
out of place (in another buffer) and in place. algbw is the size divided by the time, in GB/s. busbw is algbw
times a factor that follows from collective and number of ranks. A ``#wrong`` other than 0 means corrupted
data and fails. ``N/A`` means that nothing was checked. Before 2.13, the column was ``error``, the largest
deviation, which rounding makes slightly more than 0 (``5e-07``).

A file may contain several tables, also of several processes whose lines a launcher labelled.

:func:`rackproof.logs.parse` creates the parser. Begin with :meth:`NcclTestsParser.line`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, ClassVar

from rackproof.core.gpu_models import physics_of
from rackproof.core.records import Direction, Measurement, ParsedLog, Verdict
from rackproof.core.text import amount
from rackproof.logs._launchers import rank_of_label, split_label
from rackproof.logs._nccl_checks import Devices, Figures, count_sizes
from rackproof.logs._reading import MAX_MEASUREMENTS, Log, LogParser, document_of, number, text_of, whole

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoallv",
    "alltoall",
    "broadcast",
    "reduce",
    "sendrecv",
    "gather",
    "scatter",
    "hypercube",
)
"""Names of nccl-tests' programs without ``_perf``."""
_REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_NOT_REDUCING = frozenset({"all_gather", "alltoall", "alltoallv", "broadcast", "gather", "scatter"})
"""Collectives for which no version prints a reduction. For sendrecv and hypercube, some versions do."""
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Collectives with a root, one rank that sends or receives everything. Others print the root -1."""
_SHARED = frozenset({"all_gather", "reduce_scatter", "alltoall", "gather", "scatter"})
"""Collectives for which busbw is algbw times (n - 1)/n."""
_WHOLE = frozenset({"broadcast", "reduce", "sendrecv"})
"""Collectives for which busbw equals algbw."""
_PROGRAM = re.compile(r"(?<![A-Za-z0-9_])(" + "|".join(COLLECTIVES) + r")_perf")
_STARTING = re.compile(r"^# Collective test starting: .{0,500}?(" + "|".join(COLLECTIVES) + r")_perf")
"""Pattern of the line with which newer programs announce a table and its collective."""
_OTHER_PROGRAM = re.compile(
    r"^# Collective test (?:starting|concluded): .{0,500}?(?<![A-Za-z0-9_])(\w{1,60})_perf\b"
    r"|(?<![A-Za-z0-9_])(\w{1,60})_perf(?= [^|;&\n]{0,500}?(?<= )-[befgtnw](?:\s|$))"
)
"""Pattern of a program that is run, known or not: in its own line, or in a command with its options."""
# File names contain the name of a collective in many forms, and each group has the usual one.
_IN_NAME = re.compile(
    r"(?<![a-z0-9])(?:nccl[-_. ]?)?(?:"
    r"(?P<all_reduce>all[-_. ]?reduce)|(?P<all_gather>all[-_. ]?gather)|"
    r"(?P<reduce_scatter>reduce[-_. ]?scatter)|"
    r"(?P<alltoallv>all[-_. ]?to[-_. ]?all[-_. ]?v)|(?P<alltoall>all[-_. ]?(?:to|2)[-_. ]?all|a2a)|"
    r"(?P<broadcast>broadcast|bcast)|(?P<sendrecv>send[-_. ]?recv)|(?P<reduce>reduce)|(?P<gather>gather)|"
    r"(?P<scatter>scatter)|(?P<hypercube>hypercube))(?![a-z])"
)
_CONCLUDED = re.compile(r"^# Collective test concluded: .{0,500}?(" + "|".join(COLLECTIVES) + r")_perf")
_HEADER = re.compile(r"^#\s+size\s+count\s+.*algbw\s+busbw")
_ROW = re.compile(r"^\s*\d{1,20}\s+\d{1,20}\s+[a-z][a-z0-9_]{1,20}\s")
"""Pattern of the beginning of a row: size, count and data type."""
_NO_OUT_OF_PLACE = re.compile(r"\S {30,}\S")
"""Pattern of thirty blanks or more, which replace the out-of-place figures in a replay of a trace."""
_BOUNDS = re.compile(r"^# Out of bounds values\s*: (\d{1,20}) (\w+)")
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*: (\S{1,30})(?:\s+(\w{1,20}))?")
_DEVICE = re.compile(
    r"^#\s+Rank\s+(\d{1,6}) (?:.{0,200}\bGroup\s+(\d{1,6}) )?"
    r".{0,200}?(?:\bPid\s+(\d{1,12}) on\s+(\S{1,200}) )?device\s+(\d{1,6}) "
    r"\[([0-9A-Fa-fx:.]{1,40})\] (.{1,100})$"
)
"""Pattern of a rank's GPU: rank, group, process, host, number, bus address and product, as in ``#  Rank  0
Group  0 Pid      1 on host device  0 [0000:1b:00] NVIDIA H200``. Group, process and host may be missing."""
_LARGE = 1 << 20
"""Smallest size in bytes of a message whose printed bandwidth must be above 0.00 GB/s."""
_RATIO_TOLERANCE = 0.03
"""Relative tolerance for the ratio of busbw to algbw. Both are rounded to two decimals."""
_REDUCED = re.compile(r"^# Reducing maxBytes to (\d{1,20})")
"""Pattern of the new largest size, after the line of :data:`_CONFIG`."""
_STEP = re.compile(r"step: (\d{1,18})\((factor|bytes)\)")
_CONFIG = re.compile(r"^# nThread (\d{1,6}) nGpus (\d{1,6}) minBytes (\d{1,20}) maxBytes (\d{1,20})")
_VALIDATION = re.compile(r"\bvalidation: (\d{1,9})\b")
_FASTEST_GB_S = 10_000.0
"""Upper limit for plausible bandwidths of any collective between any GPUs, in GB/s."""
_LINK_SHARE = 1.5
"""Upper limit for the busbw of any collective on one node, as a share of the NVLink bandwidth of a GPU. With
switches that reduce (NVLS), up to 1.1 was measured."""
_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
"""Bytes per value, by the name of the data type."""
_FAILED = re.compile(
    r"Test (?:NCCL|CUDA) failure|unhandled (?:cuda|system) error|NCCL error|ncclSystemError|ncclInternalError"
)
_MOST_RANKS_OF_NODE = 16
"""Largest number of ranks for which the NVLink of one GPU bounds the bandwidth."""
MAX_JSON = 32 << 20
"""Largest number of bytes of the JSON."""
_MOST_FIGURES = 8000
"""Largest number of judged figures, which are four for each row. The record has fewer."""
PLACES = ("out_of_place", "in_place")
"""Places of the result, in the order of a table's columns. They name it in the JSON and in labels."""
_DEVIATIONS = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}
"""Deviation that is allowed for each rank but one in a column ``error`` (:func:`_is_beyond`). Integers must
not deviate."""
_MANY_RANKS = 4096
"""Assumed number of ranks if the output lists none. More ranks may deviate more."""
MAX_STREAMS = 4096
"""Largest number of processes that are distinguished by their labels."""
_HEAD = re.compile(
    rb"#\s+size\s+count\s+type\s+redop|# nThread \d+ nGpus \d+|# Collective test starting: "
    rb'|^\s*\{.{0,4000}"nccl_version"\s*:',
    re.DOTALL,
)


@dataclass(slots=True, eq=False)
class BandwidthTable:
    """One table of nccl-tests, with the properties that identify its collective."""

    program: str = ""
    """Collective that was stated for exactly this table."""
    device: str = ""
    """Product name of a GPU of this table."""
    validates: bool | None = None
    """See :attr:`LabelledLines.validates`."""
    off_count: int | None = None
    """Line of the first row whose count does not match its size and type."""
    candidates: tuple[str, ...] = ()
    """Collectives that were stated for another table, or several stated at once."""
    ranks: int = 0
    """Number of ranks, or 0 if unknown."""
    with_root: bool = False
    """True if the table has a column ``root``."""
    per_iteration: bool = False
    """True if the table also shows the times of iterations, in four more columns of each place."""
    only_in_place: bool = False
    """True if the table has one set of columns, as ``-O 0`` of rccl-tests prints it."""
    deviations: bool = False
    """True if the table shows a column ``error`` instead of the newer count of wrong values."""
    result_count: int = 0
    largest: int = 0
    """Largest size of a row, in bytes."""
    reduces: bool = False
    rooted: bool = False
    """True if a row shows a reduction, or a root."""
    fastest: float = 0.0
    """Highest busbw in the table, in GB/s."""
    algbw: float = 0.0
    """Highest algbw, in GB/s, of which ``ratio`` was computed."""
    ratio: float = 0.0
    """busbw/algbw of the row with the highest algbw, since the figures have only two decimals."""
    ratios: tuple[float, float] = (math.inf, 0.0)
    """Lowest and highest busbw/algbw of rows with an algbw above 1 GB/s."""
    figures: Figures = field(default_factory=Figures)
    checked: set[str] = field(default_factory=set)
    unchecked: set[str] = field(default_factory=set)
    """Places (:data:`PLACES`) with a checked value, and places with an unchecked value. A place may be in
    both."""

    def take_row(self, redop: str, root: str, algbw: float, busbw: float) -> None:
        """Record the figures of one row that identify the collective."""
        self.result_count += 1
        self.fastest = max(self.fastest, busbw)
        self.reduces = self.reduces or redop not in ("", "none")
        self.rooted = self.rooted or (root != "" and not root.startswith("-"))
        if algbw > 1 and busbw > 0 and algbw > self.algbw and math.isfinite(algbw) and math.isfinite(busbw):
            self.algbw, self.ratio = algbw, busbw / algbw
        if algbw > 1:
            lowest, highest = self.ratios
            self.ratios = min(lowest, busbw / algbw), max(highest, busbw / algbw)

    def contradicts(self, name: str) -> bool:
        """Return whether a row with an algbw above 1 GB/s contradicts the busbw/algbw of a collective.

        If the collective is unknown, the rows must fit any one of the known ratios for the listed ranks. If
        the list of ranks is truncated, they fit none.
        """
        lowest, highest = self.ratios
        names = (name,) if name in COLLECTIVES else ("all_reduce", *_SHARED, *_WHOLE)
        bounds = [_bounds_of_factor(factor_name, self.ranks) for factor_name in names]
        return bool(highest) and not any(
            (1 - _RATIO_TOLERANCE) * least <= lowest and highest <= (1 + _RATIO_TOLERANCE) * most
            for least, most in bounds
        )

    def may_be(self, name: str) -> bool:
        """Return whether the table is consistent with a collective's name."""
        if name in (_NOT_REDUCING if self.reduces else _REDUCING):
            return False
        if self.with_root and self.rooted != (name in _ROOTED):
            return False
        factor = _factor(name, self.ranks)
        return not (factor and self.ratio) or math.isclose(self.ratio, factor, rel_tol=_RATIO_TOLERANCE)

    def collective(self, in_name: tuple[str, ...]) -> str:
        """Return the collective's name, or ``collective`` if it is unknown.

        The name that was stated for this table counts. Else it is the only name that fits the table among
        :attr:`candidates`, among those in the file's name (``in_name``), or among those that columns and
        busbw/algbw allow.
        """
        if self.program:
            return self.program
        for names in (self.candidates, in_name, self._reductions()):
            fitting = [name for name in names if self.may_be(name)]
            if len(fitting) == 1:
                return fitting[0]
        return "collective"

    def _reductions(self) -> list[str]:
        """Return the reductions that the columns allow, or none if busbw/algbw identifies no collective."""
        # Only a reduction can be identified. Other factors are shared by several collectives.
        if not (self.ranks > 1 and self.ratio and self.reduces):
            return []
        return sorted(_REDUCING if self.with_root else _REDUCING - {"reduce"})


def _factor(name: str, ranks: int) -> float:
    """Return the busbw/algbw of a collective, or 0 if unknown."""
    if name in _WHOLE:
        return 1.0
    if ranks < 2:
        return 0.0
    if name == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if name in _SHARED else 0.0


def _bounds_of_factor(name: str, ranks: int) -> tuple[float, float]:
    """Return the smallest and largest busbw/algbw of a collective. No collective more than doubles algbw."""
    factor = _factor(name, ranks)
    # A single rank exchanges nothing, so most collectives have a busbw of 0.
    is_known = factor or (ranks == 1 and (name == "all_reduce" or name in _SHARED))
    return (factor, factor) if is_known else (0.0, 2.0)


def collectives_in(name: str) -> tuple[str, ...]:
    """Return the collectives in a file's name, without its folders (``nccl_allreduce.log``)."""
    # A capital letter starts a word, as in ncclAllReduce.
    base = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", PurePosixPath(name).name[-255:]).lower()
    return tuple(dict.fromkeys(str(match.lastgroup) for match in _IN_NAME.finditer(base)))


@dataclass(slots=True)
class LabelledLines:
    """The state of reading the lines of one process, or all lines if no launcher labels them."""

    stated: str = ""
    """Collective that the program itself states, until its table starts."""
    ranks: int = 0
    """Number of ranks in the list of devices so far."""
    split: bool = False
    """True if the ranks form several groups of unknown sizes."""
    table: BandwidthTable | None = None
    begun: int = 0
    """Number of tests that started and have no table yet."""
    open: int = 0
    """Number of tables that started but did not end."""
    without_average: int = 0
    """Number of ended tables whose average was not read yet. Only the average's line shows that it was too
    low."""
    least_bytes: int = 0
    most_bytes: int = 0
    """The smallest and the largest requested size."""
    factor: int = 0
    """Factor by which sizes grow from row to row, or 0 if they grow by a step."""
    step: int = 0
    """Bytes by which sizes grow from row to row, or 0 if they grow by a factor."""
    devices: Devices = field(default_factory=Devices)
    device: str = ""
    """Product name of a GPU of this process."""
    validates: bool | None = None
    """True if the program was requested to check its results, or None if not stated."""
    concluded: str = ""
    """Collective of the last completed table."""
    ended: BandwidthTable | None = None
    """Table whose average was not read yet."""

    @property
    def sizes(self) -> int:
        """Return the number of sizes in a table, or 0 if unknown."""
        step = self.factor or self.step
        return count_sizes(self.least_bytes, self.most_bytes, step, is_factor=self.factor > 0)


class NcclTestsParser(LogParser):
    """The parser of nccl-tests' tables and of its JSON document."""

    format: ClassVar[str] = "nccl_tests"
    description: ClassVar[str] = "nccl-tests, table or JSON of -J"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain a table of nccl-tests or the beginning of its JSON."""
        return _HEAD.search(head) is not None or (head.lstrip()[:1] == b"{" and b'"nccl_version"' in head)

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.document: bytearray | None = None
        """The JSON, or None for tables."""
        self.started = False
        """True after the first text that is not blank, which shows whether the log is JSON."""
        self.streams: dict[str, LabelledLines] = {}
        """State of each process, by its label, or "" without labels."""
        self.named: tuple[str, ...] = ()
        """Collectives in the last command outside a table."""
        self.named_is_new = False
        """True if no table began since this command."""
        self.named_after_table = False
        """True if a table began before this command."""
        self.unknown: tuple[str, int, str] | None = None
        """Message, line and text of the first command of an unknown program since the last table began."""
        self.rows: list[tuple[BandwidthTable, Measurement]] = []
        """Each measurement with its table, and without the collective's name."""
        self.result_count = 0
        self.wrong = 0.0
        self.checked = self.unchecked = 0
        """Numbers of results that were checked for wrong values, and that were not. ``result_count`` is the
        sum of both, and ``wrong`` the sum of the wrong values."""
        self.wrong_line: int | None = None
        self.tables = 0
        self.average_line = 0
        """Last line that states an average."""
        self.rank: int | None = None
        """The rank of the current line, if a launcher labels the lines."""

    def block(self, data: bytes) -> None:
        """Read a table, or collect the document."""
        if not self.started and data.strip():
            self.started = True
            if data.lstrip()[:1] == b"{":
                self.document = bytearray()
        if self.document is not None:
            if len(self.document) <= MAX_JSON:
                self.document += data
        else:
            super().block(data)

    # -- the tables -------------------------------------------------------------------------------

    def line(self, at: int, text: str) -> None:
        """Read one line inside or outside a table."""
        label = ""
        if not _is_of_a_table(text):
            label, unlabelled = split_label(text)
            text = unlabelled if _is_of_a_table(unlabelled) else text
        text = text.lstrip()
        stream = self._stream(label)
        self.rank = rank_of_label(label)
        if text.startswith("#"):
            self.comment(at, text, stream)
        elif stream.open and stream.table is not None and _ROW.match(text):
            self.row(at, text, stream.table)
        else:
            self._words(at, text, stream)

    def _stream(self, label: str) -> LabelledLines:
        """Return the state of the process with the label. Both of its outputs are one stream."""
        label = label.replace("stderr", "stdout")
        if label not in self.streams and len(self.streams) >= MAX_STREAMS:
            label = ""
        return self.streams.setdefault(label, LabelledLines())

    def _words(self, at: int, text: str, stream: LabelledLines) -> None:
        """Read a line that is neither a comment nor a row. It may be a command or an error."""
        self._find_unknown_program(at, text)
        if not stream.open and (names := dict.fromkeys(_PROGRAM.findall(text))):
            self.named, self.named_is_new = tuple(names), True
            self.named_after_table = self.tables > 0
        if _FAILED.search(text):
            self.log.find("nccl_error", "the test stopped with an error", Verdict.FAIL, line=at, excerpt=text)

    def _find_unknown_program(self, at: int, text: str) -> None:
        """Find a program that does not belong to nccl-tests. Its busbw cannot be checked."""
        match = _OTHER_PROGRAM.search(text)
        name = (match[1] or match[2]) if match else ""
        if match and name and name not in COLLECTIVES:
            message = f"{name}_perf is no program of nccl-tests, so the meaning of its bandwidth is not known"
            if match[1]:
                self.log.find("unknown_collective", message, Verdict.UNPROVEN, line=at, excerpt=text)
            else:
                self.unknown = self.unknown or (message, at, text)

    def _judge_unknown_program(self, stream: LabelledLines) -> None:
        """Record an unknown program above a table. If a known one is named, the unknown may be a launcher."""
        if self.unknown and not stream.stated and not self.named_is_new:
            message, line, text = self.unknown
            self.log.find("unknown_collective", message, Verdict.UNPROVEN, line=line, excerpt=text)
        self.unknown = None

    def comment(self, at: int, text: str, stream: LabelledLines) -> None:
        """Read a line that starts with ``#``."""
        self._find_unknown_program(at, text)
        if _HEADER.match(text):
            self._table_begin(at, text, stream)
        elif bounds := _BOUNDS.match(text):
            self._table_end(at, text, stream, bounds[1], bounds[2])
        elif not self._take_fact(at, text, stream) and text.startswith("# error:") and text[8:].strip():
            self.log.find("nccl_error", "the test reports an error", Verdict.DEGRADED, line=at, excerpt=text)

    def _table_begin(self, at: int, text: str, stream: LabelledLines) -> None:
        """Read the line above a table's rows."""
        table = BandwidthTable(
            ranks=0 if stream.split else stream.ranks,
            with_root=re.search(r"\sroot\s", text) is not None,
            per_iteration="i_min" in text,
            only_in_place=text.count("busbw") == 1,
            deviations=" error" in text,
        )
        if stream.stated:
            table.program = stream.stated
        elif self.named_is_new and len(self.named) == 1:
            table.program = self.named[0]
        else:
            table.candidates = self.named
        self._judge_devices(at, stream.devices)
        if not stream.most_bytes:
            message = "the line with the requested sizes (# nThread …) is missing: rows may be, too"
            self.log.find("rows_missing", message, Verdict.UNPROVEN, line=at, excerpt=text)
        if not stream.devices.ranks:
            message = "no list of the ranks' devices above the table"
            self.log.find("devices_contradict", message, Verdict.UNPROVEN, line=at)
        self._judge_unknown_program(stream)
        table.device, table.validates = stream.device, stream.validates
        before = stream.table
        if stream.open and before is not None and before.program != table.program:
            message = (
                "a table begins before another collective's has ended, so the next rows may be of either"
            )
            self.log.find("mixed_tables", message, Verdict.UNPROVEN, line=at, excerpt=text)
        stream.stated, self.named_is_new = "", False
        stream.table = table
        stream.begun = max(0, stream.begun - 1)
        stream.open += 1
        self.tables += 1

    def _table_end(self, at: int, text: str, stream: LabelledLines, count: str, word: str) -> None:
        """Read the line that proves the end of a table and states the program's own count of wrong values."""
        if stream.open and stream.table is not None and not stream.table.result_count:
            self.log.find("no_rows", "a table without a row", Verdict.UNPROVEN, line=at)
        elif stream.open == 1 and stream.table is not None:
            self._judge_last_size(at, stream, stream.table)
            self._judge_sizes(at, stream.sizes, stream.table)
            stream.ended = stream.table
        stream.concluded = stream.table.program if stream.table else ""
        stream.without_average += min(1, stream.open)
        stream.open = max(0, stream.open - 1)
        if count != "0" or word != "OK":
            self.log.find(
                "wrong_values", f"{count} values out of bounds", Verdict.FAIL, line=at, excerpt=text
            )

    def _judge_last_size(self, at: int, stream: LabelledLines, table: BandwidthTable) -> None:
        """Record a table that ends before the largest requested size. Sizes are rounded down slightly."""
        if stream.factor > 1 and 0 < table.largest * stream.factor <= 0.9 * stream.most_bytes:
            message = f"the table ends at {table.largest} bytes, and {stream.most_bytes} were requested"
            self.log.find("cut_off", message, Verdict.UNPROVEN, line=at)

    def _judge_sizes(self, at: int | None, sizes: int, table: BandwidthTable) -> None:
        """Record a table that lacks a row."""
        if missing := table.figures.missing_rows(sizes):
            self.log.find("rows_missing", missing, Verdict.UNPROVEN, line=at)

    def _judge_devices(self, at: int | None, devices: Devices) -> None:
        """Record contradictions in a list of devices: missing ranks, one GPU twice, different products."""
        for line, message in devices.contradictions():
            self.log.find("devices_contradict", message, Verdict.UNPROVEN, line=line or at)

    def _judge_average(self, at: int | None, stated: float | None, table: BandwidthTable | None) -> None:
        """Record an average that is missing, or does not match the rows above it."""
        if stated is None:
            message = "the average bus bandwidth is missing or not a number"
            self.log.find("average_contradicts", message, Verdict.UNPROVEN, line=at)
            return
        average = table.figures.other_average(stated) if table is not None else None
        if average is not None:
            message = (
                f"the average bus bandwidth is stated as {stated:g}, and that of the rows is {average:.4g}"
            )
            self.log.find("average_contradicts", message, Verdict.UNPROVEN, line=at)

    def _take_average(self, at: int, text: str, stream: LabelledLines, average: re.Match[str]) -> None:
        """Read the average bus bandwidth at the end of a sweep, and compare it with the table's rows."""
        self.log.tag("average_busbw_over_the_sweep", average[1])
        stream.without_average = max(0, stream.without_average - 1)
        self.average_line = at
        self._judge_average(at, number(average[1]), stream.ended)
        stream.ended = None
        if average[2] and average[2] != "OK":
            self._below_minimum(at, text)

    def _take_config_line(self, text: str, stream: LabelledLines, config: re.Match[str]) -> None:
        """Read sizes, step, GPUs per process and validation from the line ``# nThread …`` above a table."""
        stream.begun += 1
        stream.ranks, stream.split = 0, False
        stream.devices = Devices(per_process=int(config[1]) * int(config[2]))
        stream.least_bytes, stream.most_bytes = int(config[3]), int(config[4])
        step = _STEP.search(text)
        stream.factor = int(step[1]) if step and step[2] == "factor" else 0
        stream.step = int(step[1]) if step and step[2] == "bytes" else 0
        match = _VALIDATION.search(text)
        stream.validates = int(match[1]) > 0 if match else None
        self.log.tag("min_bytes", config[3])
        self.log.tag("max_bytes", config[4])

    def _take_device(self, at: int, stream: LabelledLines, device: re.Match[str]) -> None:
        stream.ranks = max(stream.ranks, int(device[1]) + 1)
        stream.split = stream.split or int(device[2] or 0) > 0
        where = device[3] or "", device[4] or "", device[5], device[6]
        stream.devices.take(at, int(device[1]), where, device[7])
        stream.device = device[7]
        self.log.tag("device", device[7])

    def _take_fact(self, at: int, text: str, stream: LabelledLines) -> bool:
        """Read a comment that states something about the test. Return False for any other comment."""
        if average := _AVERAGE.match(text):
            self._take_average(at, text, stream, average)
        elif device := _DEVICE.match(text):
            self._take_device(at, stream, device)
        elif reduced := _REDUCED.match(text):
            stream.most_bytes = int(reduced[1])
        elif config := _CONFIG.match(text):
            self._take_config_line(text, stream, config)
        elif starting := _STARTING.match(text):
            stream.stated = starting[1]
        elif concluded := _CONCLUDED.match(text):
            if stream.concluded and concluded[1] != stream.concluded:
                message = f"the table of {stream.concluded} is concluded as one of {concluded[1]}"
                self.log.find("mixed_tables", message, Verdict.UNPROVEN, line=at, excerpt=text)
        else:
            return False
        return True

    def _below_minimum(self, at: int | None, text: str) -> None:
        message = "the average bandwidth is below the minimum that the test was given"
        self.log.find("below_minimum", message, Verdict.FAIL, line=at, excerpt=text)

    def row(self, at: int, text: str, table: BandwidthTable) -> None:
        """Read one row.

        The columns are size, count, type, [redop], [root], and for each place time, algbw, busbw, #wrong.
        """
        words = text.split()
        redop, root, figures = _split_row(words[3:], with_root=table.with_root)
        # With times per iteration, each place takes four additional columns.
        width = 8 if table.per_iteration else 4
        halves = {PLACES[0]: figures[:width], PLACES[1]: figures[width : 2 * width]}
        if table.only_in_place or (width <= len(figures) < 2 * width and _NO_OUT_OF_PLACE.search(text)):
            halves = {PLACES[1]: figures[:width]}
        labels = {"size_bytes": words[0], "dtype": words[2]}
        table.figures.take_row((words[2], redop, root))
        self._judge_count(at, int(words[0]), int(words[1]), words[2], table)
        for position, values in halves.items():
            numbers = _figures(values)
            if numbers is None:
                self._damaged_row(at, text)
                return
            algbw, busbw, wrong = numbers
            table.take_row(redop, root, algbw, busbw)
            table.figures.take(at, int(words[0]), values[0], algbw, busbw)
            self._find_no_time(at, text, words[0], values[0])
            table.largest = max(table.largest, int(words[0]))
            if table.deviations and wrong is not None:
                wrong = _is_beyond(wrong, words[2], table.ranks)
            self.value(at, text, table, {**labels, "place": position}, algbw, busbw, wrong)

    def _judge_count(self, at: int, size: int, count: int, kind: str, table: BandwidthTable) -> None:
        """Note the first row whose count of values does not match its size in bytes."""
        if kind in _BYTES and size != count * _BYTES[kind]:
            table.off_count = table.off_count or at

    def _find_no_time(self, at: int | None, text: str, size: str, raw: object) -> None:
        """Find a time of 0. Every collective takes longer."""
        time = number(raw)
        if time is not None and time <= 0:
            message = f"the time is {time:.2f} µs at {size} bytes"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def _damaged_row(self, at: int, text: str) -> None:
        self.log.find("damaged_line", "a row that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text)

    def value(
        self,
        at: int | None,
        text: str,
        table: BandwidthTable,
        labels: dict[str, str],
        algbw: float,
        busbw: float,
        wrong: float | None,
    ) -> None:
        """Record the figures of one size in one place. ``wrong`` is None if the values were not checked."""
        self.result_count += 1
        if len(self.rows) >= _MOST_FIGURES:
            message = f"only the first {_MOST_FIGURES} figures are judged: split the log"
            self.log.find("too_many_rows", message, Verdict.UNPROVEN, line=at)
        size = labels["size_bytes"]
        self._count_wrong(at, text, f"at {size} bytes {labels['place']}", wrong)
        (table.unchecked if wrong is None else table.checked).add(labels["place"])
        for name, value in (("busbw", busbw), ("algbw", algbw)):
            # A bandwidth of 0.00 for a large message means that it was not moved.
            nothing = value == 0 and size.isdecimal() and int(size) >= _LARGE
            if not math.isfinite(value) or value < 0 or nothing:
                message = f"{name} is {value:.2f} at {size} bytes"
                if math.isnan(value):
                    self.log.find("nan", message, Verdict.UNPROVEN, line=at, excerpt=text)
                else:
                    self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at, excerpt=text)
            if len(self.rows) < _MOST_FIGURES:
                # The measurement is renamed at the end, when the collective is known.
                measurement = self.measure(name, value, "GB/s", Direction.HIGHER, at, self.rank, labels)
                self.rows.append((table, measurement))

    def _count_wrong(self, at: int | None, text: str, where: str, wrong: float | None) -> None:
        """Count wrong values. None means that the program did not check."""
        if wrong is None:
            self.unchecked += 1
            return
        self.checked += 1
        self.wrong += wrong
        self.wrong_line = at
        if wrong != 0:
            message = f"{wrong:g} wrong values {where}"
            self.log.find("wrong_values", message, Verdict.FAIL, line=at, excerpt=text)

    # -- the document -----------------------------------------------------------------------------

    def read_document(self, document: bytearray) -> bool:
        """Read the JSON of ``-J``. Return whether it is complete."""
        log = self.log
        if len(document) > MAX_JSON:
            log.find("too_large", "more JSON than nccl-tests writes", Verdict.UNPROVEN)
            return False
        try:
            root: Any = document_of(document)
        except (ValueError, RecursionError) as error:
            log.find("damaged_json", f"the JSON cannot be read: {error}", Verdict.UNPROVEN)
            return False
        if not isinstance(root, dict) or not isinstance(root.get("results"), list):
            log.find("damaged_json", "the JSON holds no results", Verdict.UNPROVEN)
            return False
        table = self.document_head(root)
        for entry in root["results"]:
            self.entry(entry, table)
        self._judge_listed_sizes(_member(root, "config"), table)
        # The first version with JSON misspelt both keys.
        average = _member(root, "average_bus_bandwidth") or _member(root, "average_bus_bandwidith")
        self._judge_average(None, number(average.get("bandwidth", average.get("bandwidith"))), table)
        if average.get("okay") in ("false", False):
            self._below_minimum(None, text_of(average))
        elif average.get("okay") not in ("true", True, "unchecked"):
            message = "the JSON does not state whether the average bandwidth is above its minimum"
            log.find("damaged_json", message, Verdict.UNPROVEN)
        return self.document_end(root)

    def _judge_listed_sizes(self, config: dict[str, Any], table: BandwidthTable) -> None:
        """Record results that lack a size below the largest one, and a configuration without sizes.

        The test may have reduced its largest size after it wrote its configuration.
        """
        least, requested = whole(config.get("minimum_bytes")) or 0, whole(config.get("maximum_bytes")) or 0
        factor, step = whole(config.get("step_factor")) or 0, whole(config.get("step_bytes")) or 0
        if not requested or (least < requested and not factor and not step):
            message = "the JSON's config lacks the requested sizes or their step: rows may be missing, too"
            self.log.find("rows_missing", message, Verdict.UNPROVEN)
        # Sizes are rounded down slightly.
        most = int(table.largest / 0.9) if factor > 1 else table.largest + step // 2
        sizes = count_sizes(least, most, factor if factor > 1 else step, is_factor=factor > 1)
        self._judge_sizes(None, sizes, table)

    def document_head(self, root: dict[str, Any]) -> BandwidthTable:
        """Return a table without rows that has the program and the devices that the JSON states."""
        table = BandwidthTable(with_root=True)
        arguments = root.get("args")
        if isinstance(arguments, list) and arguments:
            program = _PROGRAM.search(text_of(arguments[0], 500))
            table.program = program[1] if program else ""
        self._take_config(_member(root, "config"), table)
        if root.get("nccl_version") is not None:
            self.log.tag("software.nccl", root["nccl_version"])
        return table

    def _take_config(self, config: dict[str, Any], table: BandwidthTable) -> None:
        """Read sizes, validation and devices. Record that validation or devices are missing."""
        for key, tag in (("minimum_bytes", "min_bytes"), ("maximum_bytes", "max_bytes")):
            self.log.tag(tag, config.get(key))
        validation = whole(config.get("validation"))
        if validation is None:
            message = "the JSON's config does not state whether values were checked (validation)"
            self.log.find("not_checked", message, Verdict.UNPROVEN)
        else:
            table.validates = validation > 0
        devices = config.get("devices")
        if not isinstance(devices, list) or not devices:
            self.log.find("devices_contradict", "no list of the ranks' devices", Verdict.UNPROVEN)
            return
        step = _step_of_ranks(config, devices)
        self._take_listed(devices, table, step)
        split = any(isinstance(device, dict) and whole(device.get("group")) for device in devices[:100_000])
        table.ranks = 0 if split else len(devices) * step

    def _take_listed(self, devices: list[Any], table: BandwidthTable, step: int) -> None:
        """Record the GPUs that the JSON lists. Each has the rank of the GPU before plus ``step``."""
        listed = Devices()
        for device in devices[:100_000]:
            rank = whole(device.get("rank")) if isinstance(device, dict) else None
            if rank is None or not isinstance(device.get("device_info"), str):
                message = "a device of the JSON's list lacks its rank or product"
                self.log.find("damaged_json", message, Verdict.UNPROVEN)
                continue
            table.device = text_of(device["device_info"], 100)
            self.log.tag("device", table.device)
            keys = ("pid", "hostname", "device", "device_hex")
            texts = [text_of(device.get(key, ""), 200) for key in keys]
            # Without the host or the number of the device, its place is unknown.
            unknown = not (texts[1] and texts[2])
            where = (texts[0], texts[1], f"rank {rank}" if unknown else texts[2], texts[3])
            listed.take(None, rank // step, where, table.device)
        self._judge_devices(None, listed)

    def document_end(self, root: dict[str, Any]) -> bool:
        """Judge errors and wrong values. Return whether the JSON contains its last part."""
        log = self.log
        bounds = root.get("out_of_bounds")
        errors = root.get("errors")
        if isinstance(errors, list) and any(text_of(error) for error in errors[:100]):
            log.find("nccl_error", "the test reports an error", Verdict.DEGRADED, excerpt=text_of(errors[0]))
        if not isinstance(bounds, dict) or "end_time" not in root:
            log.find("cut_off", "the JSON lacks its last part: the test did not end", Verdict.UNPROVEN)
            return False
        if bounds.get("count") != 0 or bounds.get("okay") not in ("true", True):
            log.find("wrong_values", f"{text_of(bounds.get('count'), 40)} values out of bounds", Verdict.FAIL)
        return True

    def entry(self, entry: object, table: BandwidthTable) -> None:
        """Read one element of ``results``."""
        row = entry if isinstance(entry, dict) else {}
        size, count, kind = whole(row.get("size")), whole(row.get("count")), row.get("type")
        if size is None or count is None or not isinstance(kind, str):
            self.log.find("damaged_json", "a result without its size, count or type", Verdict.UNPROVEN)
            return
        redop, root = text_of(row.get("redop"), 20), text_of(row.get("root"), 20)
        table.figures.take_row((text_of(kind, 20), redop, root))
        table.largest = max(table.largest, size)
        self._judge_count(1, size, count, kind, table)
        for position in PLACES:
            body = row.get(position, ...)
            if isinstance(body, dict):
                self._entry_place(row, table, str(size), position, body)
            elif body is not None or position != PLACES[0]:  # A replayed trace has no figures out of place.
                message = f"a result without figures {position} at {size} bytes"
                self.log.find("damaged_json", message, Verdict.UNPROVEN)

    def _entry_place(
        self, entry: dict[str, Any], table: BandwidthTable, size: str, position: str, body: dict[str, Any]
    ) -> None:
        """Record the figures of one place."""
        numbers = _figures_in_json(body)
        if numbers is None:
            message = f"a result that cannot be read at {size} bytes"
            self.log.find("damaged_json", message, Verdict.UNPROVEN)
            return
        algbw, busbw, wrong = numbers
        kind, redop = text_of(entry.get("type"), 20), text_of(entry.get("redop"), 20)
        table.figures.take(None, int(size), text_of(body.get("time"), 40), algbw, busbw)
        self._find_no_time(1, "", size, body.get("time", body.get("cpu_time")))
        table.take_row(redop, text_of(entry.get("root"), 20), algbw, busbw)
        self.value(1, "", table, {"size_bytes": size, "dtype": kind, "place": position}, algbw, busbw, wrong)

    # -- the end ----------------------------------------------------------------------------------

    def finish(self) -> ParsedLog:
        """Return the parsed log. Values and completeness are judged here, but not the speed."""
        log = self.log
        document = self.document
        proven = self._tables_ended() if document is None else self.read_document(document)
        if not self.result_count:
            log.find("no_rows", "no row that can be read", Verdict.UNPROVEN)
            proven = False
        log.marks_as_findings(log.line_after_last if proven else None)
        in_name = collectives_in(log.name)
        names = {table: table.collective(in_name) for table, _row in self.rows}
        log.tag("collective", ", ".join(dict.fromkeys(names.values())) or "collective")
        measurements = [
            row.model_copy(update={"name": f"{names[table]}_{row.name}"}) for table, row in self.rows
        ]
        if self.checked:
            # It is the last measurement of the record, even if some figures find no place there.
            wrong = self.measure("wrong_values", self.wrong, "", Direction.LOWER, self.wrong_line)
            measurements.insert(MAX_MEASUREMENTS - 1, wrong)
        self._judge_tables(names)
        return log.parsed(self.format, Verdict.PASS if proven else Verdict.UNPROVEN, measurements)

    def _judge_tables(self, names: Mapping[BandwidthTable, str]) -> None:
        """Find tables with contradictory figures, and values that were not checked."""
        for table, name in names.items():
            self._judge_table(table, name)
            if not table.fastest:
                message = "no row has a bandwidth above 0: nothing was exchanged, or too little to measure"
                self.log.find("no_bandwidth", message, Verdict.UNPROVEN)
            contradictions = list(table.figures.contradictions(name, _factor(name, table.ranks)))
            for line, message in contradictions:
                self.log.find("busbw_contradicts", message, Verdict.UNPROVEN, line=line)
            if table.contradicts(name) and not contradictions:
                lowest, highest = table.ratios
                ranks = f" of {amount(table.ranks, 'rank')}" if table.ranks else ""
                message = f"busbw is {lowest:.3g} to {highest:.3g} times algbw, which is not {name}'s{ranks}"
                self.log.find("busbw_contradicts", message, Verdict.UNPROVEN)
        if self.unchecked:
            # Some collectives are never checked in place. Then no row is checked there.
            partly = any(
                table.checked & table.unchecked or (table.validates and PLACES[0] in table.unchecked)
                for table in names
            )
            message = f"{self.unchecked} results were not checked for right values"
            self.log.find("not_checked", message, Verdict.UNPROVEN if partly else None)

    def _judge_table(self, table: BandwidthTable, name: str) -> None:
        """Find impossible figures, a count that does not fit its size, and a check that was switched off."""
        physics = physics_of(table.device)
        one_node = physics is not None and table.ranks <= _MOST_RANKS_OF_NODE
        most = _LINK_SHARE * physics.nvlink if physics and one_node else _FASTEST_GB_S
        if table.fastest > most:
            message = f"a bus bandwidth of {table.fastest:g} GB/s, but at most {most:g} is possible"
            self.log.find("impossible_value", message, Verdict.UNPROVEN)
        if table.off_count is not None and name == "all_reduce":
            message = "the count of a row is not its size divided by the bytes of its type"
            self.log.find("busbw_contradicts", message, Verdict.UNPROVEN, line=table.off_count)
        if table.validates is False and table.checked:
            message = "wrong values are counted, although the program was started without validation"
            self.log.find("not_checked", message, Verdict.UNPROVEN)

    def _tables_ended(self) -> bool:
        """Return whether there is a table and every table is complete. Record missing parts."""
        log, streams = self.log, self.streams.values()
        # An incomplete last line may lack the statement that the average was too low.
        half = log.ends_in_line and self.average_line == log.lines + 1
        without_average = half or any(stream.without_average for stream in streams)
        message = ""
        if not self.tables:
            message = "no table: the test did not end"
        elif without_table := self._test_without_table():
            message = without_table
        elif without_average:
            message = "the line of the average bandwidth is missing or cut: the test did not end"
        elif any(stream.open for stream in streams):
            message = "the table has no end: the test did not end"
        if message:
            log.find("cut_off", message, Verdict.UNPROVEN, line=max(1, log.lines))
        return not message

    def _test_without_table(self) -> str:
        """Return a message if a program has no table, although it started or was named at the end, or ""."""
        if started := next((stream.stated for stream in self.streams.values() if stream.stated), ""):
            return f"{started} was started and has no table"
        if any(stream.begun for stream in self.streams.values()):
            return "a test was started and has no table: it did not end"
        if self.named_is_new and self.named_after_table:
            return f"{', '.join(self.named)} is named below the last table and has none: did it start?"
        if self.unknown and not self.named:
            return f"below the last table: {self.unknown[0]}"
        return ""


def _is_of_a_table(text: str) -> bool:
    """Return whether a line starts like those of nccl-tests, with or without indentation."""
    return text.lstrip().startswith("#") or _ROW.match(text) is not None


def _split_row(words: list[str], *, with_root: bool) -> tuple[str, str, list[str]]:
    """Return reduction and root (each "" if absent), and the words from the first time on."""
    redop = root = ""
    # A time may be "nan", which is not a reduction.
    if words and re.fullmatch(r"[a-z]+\w*", words[0]) and words[0] not in ("nan", "inf"):
        redop, *words = words
    if with_root and words and re.fullmatch(r"-?\d{1,9}", words[0]):
        root, *words = words
    return redop, root, words


def _figures(values: list[str]) -> tuple[float, float, float | None] | None:
    """Return algbw, busbw and the wrong values (None for ``N/A``), or None if a figure is unreadable.

    ``values`` begins with the columns time, algbw, busbw and #wrong.
    """
    if len(values) < 4:
        return None
    time, algbw, busbw, wrong = map(number, values[:4])
    # "N/A" means that nothing was checked. Any other word is damage.
    damaged = time is None or not math.isfinite(time) or (wrong is None and values[3] != "N/A")
    return None if algbw is None or busbw is None or damaged else (algbw, busbw, wrong)


def _step_of_ranks(config: dict[str, Any], devices: list[Any]) -> int:
    """Return the distance of the listed ranks: the GPUs of a process, if only its first one is listed.

    nccl-tests lists one GPU of each process (parseRankInfo in util.cu).
    """
    per_process = (whole(config.get("nthreads")) or 1) * (whole(config.get("ngpus")) or 1)
    ranks = (whole(device.get("rank")) for device in devices[:100_000] if isinstance(device, dict))
    return per_process if all(rank is None or rank % per_process == 0 for rank in ranks) else 1


def _figures_in_json(body: dict[str, Any]) -> tuple[float, float, float | None] | None:
    """Return algbw, busbw and the wrong values (None for null), or None if a figure is unreadable.

    As in a table, null for the wrong values means that nothing was checked. Without the key, the JSON is
    damaged.
    """
    time = number(body.get("time", body.get("cpu_time")))
    algbw, busbw = number(body.get("alg_bw")), number(body.get("bus_bw"))
    raw_wrong = body.get("nwrong", ...)
    wrong = number(raw_wrong)
    damaged = time is None or not math.isfinite(time) or (wrong is None and raw_wrong is not None)
    return None if algbw is None or busbw is None or damaged else (algbw, busbw, wrong)


def _member(root: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an object in a JSON object, or an empty one if it is missing or something else."""
    value = root.get(key)
    return value if isinstance(value, dict) else {}


def _is_beyond(deviation: float, kind: str, ranks: int) -> float:
    """Return 1 for a deviation that is larger than rounding causes, or else 0.

    NaN counts as beyond. The programs compare with ``>``, and would count it as right.
    """
    allowed = _DEVIATIONS.get(kind, 0.0) * max(1, (ranks or _MANY_RANKS) - 1)
    return 0.0 if 0 <= deviation <= allowed else 1.0
