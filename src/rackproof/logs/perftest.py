"""Parse the output of perftest (``ib_write_bw``, ``ib_write_lat`` and related RDMA programs).

The output is tables of message sizes, between rules of hyphens, with columns named in each table's header:

     #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
     65536      5000             395.10             394.20             0.751895

``-D`` measures no peak (0.00), ``--cpu_util`` and ``--report-per-port`` add columns, and ``--raw_qos``
inserts one in the middle. Client and server may print into the same file, and the worst row of each size
counts.

The file of ``--out_json`` contains the figures of one size. It states no unit of a bandwidth, which therefore
proves nothing.

:func:`rackproof.logs.parse` creates the parser. Begin with :meth:`PerftestParser.line`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rackproof.core.records import Direction, Measurement, ParsedLog, Verdict
from rackproof.logs._launchers import split_label
from rackproof.logs._reading import Log, LogParser, document_of, number, text_of, whole

_TITLE = re.compile(
    r"^\s*(RDMA_Write|RDMA_Read|Send|Atomic)(?:_(imm))? (?:(?:CMP_AND_SWAP|FETCH_AND_ADD) )?(Bidirectional )?"
    r"(?:Post List )?(BW|Latency) (?:forwarding )?(?:Multicast )?Test\s*$"
)
"""Pattern of a test's title (``RDMA_Write Bidirectional BW Test``): verb, imm, both ways, BW or Latency."""
_COLUMN = re.compile(
    r"#bytes|#iterations|#sl|BW (?:peak|average|Port\d) ?\[[A-Za-z/]{1,10}\]|MsgRate(?: Port\d)?\[Mpps\]|"
    r"t_[a-z]{1,10}\[[a-z]{1,10}\]|99(?:\.9{1,3})?% percentile\[[a-z]{1,10}\]|tps average|CPU_Util\[%{1,2}\]"
)
"""Pattern of one heading in the header of a table."""
_ROW = re.compile(r"^\s*\d{1,15}(?:\s+\S{1,30}){2,20}\s*$")
_LIKE_ROW = re.compile(r"^\s*\d+\s+\d+")
"""Pattern of a row that may be damaged."""
_LINE = re.compile(r"^\s*-{20,}\s*$")
"""Pattern of a rule of hyphens."""
_FACT = re.compile(
    r"^\s*(Transport type|Link type|Mtu|Number of qps|Connection type)\s*:\s*(\S+)"
    r"(?:\s+(Transport type)\s*:\s*(\S+))?"
)
_DEVICE = re.compile(r"\bDevice\s*:\s*(\S{1,60})")
_HEADING = re.compile(r"^\s*(?:(?:local|remote) address:|GID: |[A-Z#][A-Za-z0-9_*. -]{1,24}:\s)")
"""Pattern of the text between the rules above a table."""
_ADDRESS = re.compile(r"^\s*(local|remote) address: ")
_ERROR = re.compile(
    r"Couldn't connect|Unable to|Failed to|Completion with error|syndrom|Problems with warm up|"
    r"Port number \d{1,3} state is (?!Active)|Did not get Message for|"
    r"Conflicting CPU|below (?:bw|msg_rate) limit|exited with Error|running infinitely|"
    r"Data validation.{0,40}(?:fail|error|mismatch)",
    re.I,
)
"""Pattern of errors, which fail the log, except for a varying CPU clock."""
_VERBS = {"RDMA_Write": "write", "RDMA_Read": "read", "Send": "send", "Atomic": "atomic"}
"""Part of a program's name (``ib_write_bw``), by the first word of its title."""
# perftest's "MB" is 2**20 bytes (its own message rate times the size confirms this).
_TO_GBIT = {"MB/sec": 8 * 2**20 / 1e9, "MiB/sec": 8 * 2**20 / 1e9, "Gb/sec": 1.0}
_FEWEST_SIZES, _FEWEST_ROWS, _LAST_POWER, _LARGEST_PACKET = 2, 5, 23, 4096
"""Limits for the check of missing sizes: the fewest sizes of a test, the fewest rows of a table if there are
several, the largest size of ``-a`` as a power of 2, and the largest packet in bytes."""
_FASTEST_GBIT_S = 4000.0
"""Upper limit for the bandwidth of a port in Gbit/s, in both directions together."""
_AGREE = 0.05
"""Relative tolerance for figures of a row that are taken at slightly different times."""
_FEWEST_ITERATIONS = 5
"""Smallest number of iterations that the program accepts."""
MAX_ROWS = 1000
MAX_JSON = 1 << 20
"""Limits for the stored rows, and for the bytes of the JSON."""
_JSON_LATENCIES = {
    "t_avg": "",
    "t_min": "_min",
    "t_max": "_max",
    "t_typical": "_typical",
    "t_stdev": "_stdev",
    "percentile_99": "_p99",
    "percentile_99.9": "_p99_9",
}
"""Suffix of a measurement's name (:class:`_Column`), by the key of the JSON."""
_COMPLETE = ({"_peak", "_message_rate"}, {"_min", "_typical", "_max"}, {"_rate"})
"""Suffixes of columns that show whether the main figure is possible. Every version prints one of these sets:
of bandwidths, of latencies, and of latencies with ``-D``."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table.

    ``suffix`` ends the name of its measurement (``_peak``). It is "" for the main column, and None for sizes
    and counts. ``factor`` turns the printed unit into ``unit``. ``direction`` is the better one, or None.
    """

    suffix: str | None = None
    unit: str = ""
    factor: float = 1.0
    direction: Direction | None = None
    main: bool = False
    """True for the main column of the test. The worst row is the one with its worst value."""
    not_measured: bool = False
    """True if a value of 0 means that no measurement was made."""
    counts: bool = False
    """True for the number of iterations. If it is 0, no measurement was made."""


_HIGHER, _LOWER = Direction.HIGHER, Direction.LOWER


def _column(words: str) -> _Column:
    """Return the column with a heading such as ``BW average[Gb/sec]`` or ``t_avg[usec]``."""
    name, _bracket, unit = words.partition("[")
    name, unit = name.strip(), unit.rstrip("]")
    unit = "us" if unit == "usec" else unit
    if name.startswith("BW"):
        return _bandwidth_column(name, unit)
    if name.startswith("MsgRate"):
        port = name[8:].lower()
        suffix = f"_{port}_message_rate" if port else "_message_rate"
        return _Column(suffix, "Mpps", 1.0, _HIGHER, not_measured=True)
    if name.startswith("t_"):
        average = name == "t_avg"
        return _Column("" if average else name[1:], unit, 1.0, _LOWER, main=average)
    if name.startswith("99"):
        return _Column("_p" + name.split("%")[0].replace(".", "_"), unit, 1.0, _LOWER)
    other_columns = {
        "#iterations": _Column(counts=True),
        "tps average": _Column("_rate", "1/s", 1.0, _HIGHER),
        "CPU_Util": _Column("_cpu_utilisation", "%"),
    }
    return other_columns.get(name, _Column())


def _bandwidth_column(name: str, unit: str) -> _Column:
    """Return the column of a bandwidth: the average, the peak, or the bandwidth of a port."""
    factor = _TO_GBIT.get(unit)
    if factor is None:
        return _Column("_unknown", unit)
    if name == "BW average":
        return _Column("", "Gbit/s", factor, _HIGHER, main=True)
    return _Column(f"_{name[3:].lower()}", "Gbit/s", factor, _HIGHER, not_measured=True)


@dataclass(slots=True)
class _Test:
    """The statements of a test's heading."""

    name: str = ""
    bidirectional: bool = False
    device: str = ""


@dataclass(slots=True)
class _Row:
    """The worst row of a size, with its values, the main one of them, and its line."""

    values: list[tuple[_Column, float]]
    main: float
    direction: Direction | None
    at: int


class PerftestParser(LogParser):
    """The parser of tables, from a header to the rule that closes the table, and of the JSON."""

    format: ClassVar[str] = "ib_write_bw"
    description: ClassVar[str] = "perftest: ib_write_bw, ib_write_lat and their kin"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain a bandwidth or latency test of perftest."""
        if head.lstrip()[:1] == b"{" and b'"test_info"' in head[:200]:
            return b'"results"' in head
        # Tables of Intel MPI Benchmarks have #repetitions in place of #iterations.
        return b"#iterations" in head and (b"BW average[" in head or b"t_avg[" in head)

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.test = _Test()
        self.headers: dict[int, list[_Column]] = {}
        """Columns of the open tables, by their number. The tables of two processes may differ."""
        self.rows: dict[tuple[str, ...], _Row] = {}
        """Worst row by test, both ways ("yes" or ""), device, service level ("" without one) and size."""
        self.devices: set[str] = set()
        self.open = 0
        """Number of tables that started but did not end."""
        self.tables = 0
        self.titles = 0
        self.rows_open = 0
        """Number of rows since a table began while no other was open. Each open table needs its own row."""
        self.ends = 0
        """Number of tables that ended since then."""
        self.rows_since = 0
        """Number of rows since the last header. A rule is also above the header, and ends a table only below
        a row."""
        self.longest = 0
        """Largest number of rows below one header."""
        self.rule_at = 0
        """Line of a rule that ends a table unless the next line is a heading."""
        self.document: bytearray | None = None
        self.sends = False
        """True if a test is of Send. It may print no remote address, and no address with raw Ethernet."""
        self.queue_pairs: list[float] = []
        """Number of queue pairs that each heading states."""
        self.addresses = {"local": 0, "remote": 0}
        """Number of addresses of each side. Each queue pair has one on each side."""

    def block(self, data: bytes) -> None:
        """Read tables, or collect the document of ``--out_json``."""
        if self.document is None and not self.titles and data.lstrip()[:1] == b"{":
            self.document = bytearray()
        if self.document is None:
            super().block(data)
        elif len(self.document) < MAX_JSON:
            self.document += data

    def _read_document(self, document: bytearray) -> list[Measurement]:
        """Return the latencies of a JSON, or an empty list if it has none or cannot be read.

        A bandwidth in the JSON lacks a unit, and proves nothing.
        """
        try:
            root = document_of(document)
            results, test = root["results"], str(root["test_info"]["test"])
            verb = next(short for long, short in _VERBS.items() if test.startswith(long))
            if (size := whole(results["MsgSize"])) is None:
                raise ValueError("MsgSize is not a whole number")  # noqa: TRY301
        except (ValueError, KeyError, TypeError, StopIteration, RecursionError) as error:
            self.log.find("damaged_json", f"the JSON cannot be read: {error!r:.100}", Verdict.UNPROVEN)
            return []
        if "t_avg" not in results:
            message = (
                "perftest's JSON does not state whether its bandwidth is in MiB/s or Gbit/s: "
                "give the text that the program prints"
            )
            self.log.find("unit_unknown", message, Verdict.UNPROVEN)
            return []
        labels = {"size_bytes": str(size)}
        return [
            self.measure(f"ib_{verb}_lat{suffix}", value, "us", _LOWER, 1, labels=labels)
            for suffix, value in self._latencies(results).items()
        ]

    def _latencies(self, results: dict[str, object]) -> dict[str, float]:
        """Return the latencies of a JSON, judged like a row of a table, by the suffix of their names."""
        self._judge_iterations(results.get("n_iterations"), 1, "")
        latencies: dict[str, float] = {}
        for key, suffix in _JSON_LATENCIES.items():
            if key not in results:
                continue
            value = number(results[key])
            if value is None or not 0 <= value < math.inf or (value == 0 and suffix != "_stdev"):
                message = "a latency that is not a positive number"
                self.log.find("impossible_value", message, Verdict.UNPROVEN)
            else:
                latencies[suffix] = value
        rate = {"_rate"} if "tps_average" in results else set()
        if not any(suffixes <= latencies.keys() | rate for suffixes in _COMPLETE):
            message = "the results lack t_min, t_typical or t_max, so that t_avg cannot be checked"
            self.log.find("damaged_json", message, Verdict.UNPROVEN)
        if contradiction := _latency_contradiction(latencies):
            self.log.find("figures_contradict", contradiction, Verdict.UNPROVEN)
        return latencies

    def line(self, at: int, text: str) -> None:
        """Read one line."""
        if not text.strip():
            return
        if not self._take(at, text):
            _label, unlabelled = split_label(text)
            if unlabelled == text or not self._take(at, unlabelled):
                self._words(at, text)

    def _words(self, at: int, text: str) -> None:
        """Read a line that is not of a table or its heading."""
        self._close()
        if _ERROR.search(text):
            # If the CPU clock varies, a result is less exact, but not wrong.
            verdict = None if "Conflicting CPU" in text else Verdict.FAIL
            self.log.find("tool_error", "the test reports an error", verdict, line=at, excerpt=text)

    def _take(self, at: int, text: str) -> bool:
        """Read a line of perftest. Return whether it is one."""
        if _LINE.match(text):
            self._close()
            self.rule_at = at if self.open and self.rows_since and self.rows_open > self.ends else 0
        elif self._take_heading(at, text):
            # The rule above it did not end a table.
            self.rule_at = 0
        elif self.open and (_ROW.match(text) or _LIKE_ROW.match(text)):
            self._close()
            self.row(at, text)
        else:
            return False
        return True

    def _close(self) -> None:
        """End a table at the rule that was read last."""
        if self.rule_at:
            self.open -= 1
            self.ends += 1
            self.rule_at = 0

    def _take_heading(self, at: int, text: str) -> bool:
        """Read title, header or a fact above the table. Return whether the line is one of these."""
        if title := _TITLE.match(text):
            self.titles += 1
            self.sends |= title[1] == "Send"
            kind = "bw" if title[4] == "BW" else "lat"
            imm = "_imm" if title[2] else ""
            self.test = _Test(f"ib_{_VERBS[title[1]]}{imm}_{kind}", bool(title[3]), self.test.device)
        elif text.lstrip().startswith("#bytes"):
            self._header(at, text)
        elif fact := _FACT.match(text):
            self._take_fact(fact)
        elif device := _DEVICE.search(text):
            self.test.device = device[1]
        elif address := _ADDRESS.match(text):
            self.addresses[address[1]] += 1
        else:
            return _HEADING.match(text) is not None and not _ERROR.search(text)
        return True

    def _take_fact(self, fact: re.Match[str]) -> None:
        """Read a fact above the table."""
        self.log.tag(fact[1].lower().replace(" ", "_"), fact[2])
        if fact[1] == "Number of qps":
            self.queue_pairs.append(number(fact[2]) or 0.0)
        if fact[3]:
            self.log.tag("transport_type", fact[4])

    def _header(self, at: int, text: str) -> None:
        """Start a table, or add the columns of another test that prints in parallel."""
        columns = [_column(words) for words in _COLUMN.findall(text)]
        if not any(column.main for column in columns):
            return
        if not any(suffixes <= {column.suffix for column in columns} for suffixes in _COMPLETE):
            message = "a table without its peak, rate or range, so that its figures cannot be checked"
            self.log.find("damaged_line", message, Verdict.UNPROVEN, line=at, excerpt=text)
        if self.open == 0:
            self.headers = {}
            self.rows_open = self.ends = 0
        self.headers[len(columns)] = columns
        self.open += 1
        self.tables += 1
        self.rows_since = 0

    def row(self, at: int, text: str) -> None:
        """Read the row of one size. Its number of words identifies the header that it belongs to."""
        words = text.split()
        columns = self.headers.get(len(words))
        if columns is None or not _ROW.match(text):
            self.log.find(
                "damaged_line", "a row that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text
            )
            return
        self.rows_since += 1
        self.longest = max(self.longest, self.rows_since)
        self.rows_open += 1
        values = self._values_of_row(at, text, columns, words)
        if values is None:
            return
        # A message rate of 0 means that it is too small to be shown.
        figures = {column.suffix: 0.0 for column in columns if column.suffix == "_message_rate"}
        figures |= {column.suffix: value for column, value in values if column.suffix is not None}
        if contradiction := _contradiction(figures, number(words[0]) or 0.0, self.test.name):
            self.log.find("figures_contradict", contradiction, Verdict.UNPROVEN, line=at, excerpt=text)
        self._keep(at, words, columns, values)

    def _values_of_row(
        self, at: int, text: str, columns: list[_Column], words: list[str]
    ) -> list[tuple[_Column, float]] | None:
        """Return the values in a row.

        If one of its figures is impossible, record a finding and return None.
        """
        values = []
        for column, word in zip(columns, words, strict=True):
            if column.counts:
                self._judge_iterations(word, at, text)
            if column.suffix is None:
                continue
            value = number(word)
            if value == 0 and column.not_measured:
                continue
            # An idle processor, and a deviation too small to be shown, are measurements.
            may_be_zero = column.direction is None or column.suffix == "_stdev"
            if value is None or not (0 <= value < math.inf) or (value == 0 and not may_be_zero):
                self._impossible(at, text, column)
                return None
            values.append((column, value * column.factor))
        return values

    def _judge_iterations(self, iterations: object, at: int, text: str) -> None:
        """Record a number of iterations that the program does not accept."""
        if not (number(iterations) or 0) >= _FEWEST_ITERATIONS:
            message = f"{text_of(iterations, 40)} iterations: perftest makes {_FEWEST_ITERATIONS} at least"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def _impossible(self, at: int, text: str, column: _Column) -> None:
        """Record an impossible value of a row."""
        quantity = "latency" if column.direction is _LOWER else "bandwidth"
        message = f"a {quantity} that is not a positive number"
        self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def _keep(
        self, at: int, words: list[str], columns: list[_Column], values: list[tuple[_Column, float]]
    ) -> None:
        """Store the worst row of each size, test, direction, device and service level."""
        main, value = next((column, value) for column, value in values if column.main)
        name = self.test.name or ("ib_write_lat" if main.direction is _LOWER else "ib_write_bw")
        # The service level is between size and iterations.
        level = words[1] if columns[1].suffix is None and columns[2].suffix is None else ""
        both_ways = "yes" if self.test.bidirectional else ""
        key = (name, both_ways, self.test.device, level, words[0])
        old = self.rows.get(key)
        if old is None and len(self.rows) >= MAX_ROWS:
            self.log.find(
                "too_many_rows", f"only the first {MAX_ROWS} rows are read", Verdict.UNPROVEN, line=at
            )
            return
        if old is None or (value < old.main if main.direction is _HIGHER else value > old.main):
            self.rows[key] = _Row(values, value, main.direction, at)
        self.devices.add(self.test.device)

    def finish(self) -> ParsedLog:
        """Return the figures of each size, which are bandwidths in Gbit/s and latencies in microseconds."""
        if self.document is not None:
            document = self._read_document(self.document)
            self.log.marks_as_findings(self.log.line_after_last if document else None)
            return self.log.parsed(self.format, Verdict.PASS if document else Verdict.UNPROVEN, document)
        self._close()
        measurements = [
            measurement for key in sorted(self.rows, key=_in_order) for measurement in self._of_row(key)
        ]
        self._judge_sizes()
        self._judge_addresses()
        proven = self._tables_ended()
        self.log.marks_as_findings(self.log.line_after_last if proven else None)
        return self.log.parsed(self.format, Verdict.PASS if proven else Verdict.UNPROVEN, measurements)

    def _of_row(self, key: tuple[str, ...]) -> Iterator[Measurement]:
        """Yield the measurements of one key of ``rows``, starting with the main one."""
        name, both_ways, device, level, size = key
        row = self.rows[key]
        labels = {"size_bytes": size}
        # Add it only if it distinguishes rows, because references for one device contain none.
        labels |= {"device": device} if len(self.devices) > 1 and device else {}
        labels |= {"service_level": level} if level else {}
        labels |= {"bidirectional": both_ways} if both_ways else {}
        for column, value in sorted(row.values, key=lambda entry: not entry[0].main):
            yield self.measure(
                f"{name}{column.suffix}", value, column.unit, column.direction, row.at, labels=labels
            )

    def _judge_sizes(self) -> None:
        """Find missing sizes.

        A table with several sizes comes from ``-a``, which doubles the size from 2 to 2^23 bytes. In datagram
        tests, the largest size is that of a packet.
        """
        if self.tables > 1 and self.longest < _FEWEST_ROWS:
            return  # The log contains several runs with one chosen size each.
        tests: dict[tuple[str, ...], list[int]] = {}
        for key in sorted(self.rows, key=_in_order):
            tests.setdefault(key[:4], []).append(int(key[4]))
        for key, sizes in tests.items():
            if len(sizes) < _FEWEST_SIZES or any(size & (size - 1) for size in sizes):
                continue
            expected = {1 << power for power in range(1, _LAST_POWER + 1)}
            if sizes[-1] <= _LARGEST_PACKET:
                expected = {size for size in expected if size <= sizes[-1]}
            missing = sorted(expected - set(sizes))
            if missing:
                message = f"{key[0]} has no row for {', '.join(map(str, missing[:4]))} bytes"
                self.log.find("rows_missing", message, Verdict.UNPROVEN)

    def _judge_addresses(self) -> None:
        """Find a number of addresses that contradicts the queue pairs. Logs with Send tests are skipped."""
        local, remote = self.addresses["local"], self.addresses["remote"]
        stated = sum(self.queue_pairs) if len(self.queue_pairs) == self.titles else local
        if not self.sends and not local == remote == stated:
            message = f"{stated:g} queue pairs have {local} local and {remote} remote addresses"
            self.log.find("figures_contradict", message, Verdict.UNPROVEN)

    def _tables_ended(self) -> bool:
        """Return whether there is a table and each one is complete. Record missing parts."""
        if self.tables > self.titles:
            message = "a table without the heading that names its test"
            self.log.find("no_heading", message, Verdict.UNPROVEN)
        if self.titles > self.tables > 0:
            self.log.find("cut_off", "a test without its table", Verdict.UNPROVEN)
        proven = bool(self.rows) and self.tables > 0 and self.open <= 0
        if not proven:
            self.log.find("cut_off", "the table has no end", Verdict.UNPROVEN, line=max(1, self.log.lines))
        return proven


def _contradiction(figures: Mapping[str, float], size: float, test: str) -> str:
    """Return the impossible or contradictory value of a row, or "".

    Args:
        figures: The values by the suffix of their names, in Gbit/s or microseconds, and Mpps.
        size: The size of a message in bytes.
        test: The name of the test.
    """
    if test.endswith("_lat") or "_min" in figures:
        return _latency_contradiction(figures)
    main = figures.get("", 0.0)
    peak, rate = figures.get("_peak", 0.0), figures.get("_message_rate")
    if main > _FASTEST_GBIT_S:
        return f"{main:g} Gbit/s, which no port carries"
    if peak and main > peak * (1 + _AGREE):
        return f"an average of {main:g} Gbit/s above its peak of {peak:g}"
    by_rate, half = (rate or 0.0) * size * 8 / 1e3, 0.5e-6 * size * 8 / 1e3 + 0.006
    if rate is not None and abs(by_rate - main) > _AGREE * main + half:
        return f"{rate:g} million messages of {size:g} bytes are {by_rate:.2f} Gbit/s, not {main:.2f}"
    return ""


def _latency_contradiction(figures: Mapping[str, float]) -> str:
    """Return the latencies of a row that are not in their order, or ""."""
    ordered = [figures[key] for key in ("_min", "", "_max") if figures.get(key)]
    typical = figures.get("_typical", figures.get("_min", 0.0))
    least, most = figures.get("_min", 0.0), figures.get("_max", math.inf)
    if ordered != sorted(ordered) or not least <= typical <= most:
        average = figures.get("", 0.0)
        latencies_text = f"min {least:g}, typical {typical:g}, average {average:g}, max {most:g}"
        return f"latencies out of order: {latencies_text}"
    tail = [figures[key] for key in ("_typical", "_p99", "_p99_9", "_max") if key in figures]
    if tail != sorted(tail):
        return f"percentiles out of order: typical, 99 %, 99.9 %, max are {', '.join(map(str, tail))}"
    return ""


def _in_order(key: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
    """Return the sort key of rows, which is test, direction, device and service level, and then size."""
    return key[:4], int(key[4])
