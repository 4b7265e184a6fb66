"""perftest (``ib_write_bw`` and its kin): a table of message sizes.

Client and server may print into the same file; the lowest value of each size counts.
"""

from __future__ import annotations

import math
import re
from typing import ClassVar

from rackproof.core.records import Direction, ParsedLog, Verdict
from rackproof.logs._reading import Log, LogParser, number

_TITLE = re.compile(r"^\s*(RDMA_Write|RDMA_Read|Send)\s+(?:Bidirectional )?BW Test")
_HEADER = re.compile(
    r"^\s*#bytes\s+#iterations\s+BW peak\[(MB/sec|MiB/sec|Gb/sec)\]\s+BW average\[(MB/sec|MiB/sec|Gb/sec)\]"
)
_ROW = re.compile(r"^\s*(\d{1,15})\s+(\d{1,15})\s+(\S{1,20})\s+(\S{1,20})(?:\s+(\S{1,20}))?\s*$")
_LINE = re.compile(r"^-{20,}\s*$")
_FACT = re.compile(r"^\s*(Transport type|Link type|Mtu|Number of qps)\s*:\s*(\S+)")
_ERROR = re.compile(
    r"Couldn't connect|Unable to|Failed to|Completion with error|syndrom|Problems with warm up|"
    r"Conflicting CPU",
    re.I,
)
_NAMES = {"RDMA_Write": "ib_write_bw", "RDMA_Read": "ib_read_bw", "Send": "ib_send_bw"}
# perftest's "MB" is 2**20 bytes (its own message rate times the size confirms it).
_TO_GBIT = {"MB/sec": 8 * 2**20 / 1e9, "MiB/sec": 8 * 2**20 / 1e9, "Gb/sec": 1.0}


class PerftestParser(LogParser):
    """Reads the rows between header and closing rule."""

    format: ClassVar[str] = "ib_write_bw"
    description: ClassVar[str] = "perftest: ib_write_bw, ib_read_bw, ib_send_bw"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Whether the bytes hold a bandwidth test of perftest."""
        return b"#bytes" in head and b"BW average[" in head

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.name = "ib_write_bw"
        self.factors: tuple[float, float] | None = None
        self.rows: dict[int, tuple[float, float, int]] = {}
        self.closed = False

    def line(self, at: int, text: str) -> None:
        """Read one line."""
        if self._take_heading(text):
            return
        if _LINE.match(text):
            # The same rule is above the header; only below a row it is the end.
            self.closed = self.closed or bool(self.rows)
        elif self.factors and (found := _ROW.match(text)):
            self.row(at, text, int(found[1]), found[3], found[4])
        elif self.factors and re.match(r"^\s*\d+\s+\d+", text):
            self.log.find(
                "damaged_line", "a row that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text
            )
        elif _ERROR.search(text):
            # A CPU clock that may vary makes a result less exact, not wrong.
            verdict = None if "Conflicting CPU" in text else Verdict.FAIL
            self.log.find("tool_error", "the test reports an error", verdict, line=at, excerpt=text)

    def _take_heading(self, text: str) -> bool:
        """Take title, header or a fact above the table; return whether the line is one."""
        if title := _TITLE.match(text):
            self.name = _NAMES[title[1]]
        elif header := _HEADER.match(text):
            self.factors = (_TO_GBIT[header[1]], _TO_GBIT[header[2]])
        elif fact := _FACT.match(text):
            self.log.tag(fact[1].lower().replace(" ", "_"), fact[2])
        else:
            return False
        return True

    def row(self, at: int, text: str, size: int, peak_text: str, average_text: str) -> None:
        """Take one size."""
        peak, average = number(peak_text), number(average_text)
        if average is None or peak is None or self.factors is None or not 0 < average < math.inf:
            self.log.find(
                "impossible_value",
                "a bandwidth that is no positive number",
                Verdict.UNPROVEN,
                line=at,
                excerpt=text,
            )
            return
        peak, average = peak * self.factors[0], average * self.factors[1]
        old = self.rows.get(size)
        if (old is None and len(self.rows) < 200) or (old is not None and average < old[1]):
            self.rows[size] = (peak, average, at)

    def finish(self) -> ParsedLog:
        """Return average and peak bandwidth of each size in Gbit/s."""
        measurements = []
        for size, (peak, average, at) in sorted(self.rows.items()):
            for name, value in ((self.name, average), (f"{self.name}_peak", peak)):
                measurements.append(
                    self.measure(
                        name, value, "Gbit/s", Direction.HIGHER, at, labels={"size_bytes": str(size)}
                    )
                )
        proven = bool(self.rows) and self.closed
        if not proven:
            self.log.find("cut_off", "the table has no end", Verdict.UNPROVEN, line=max(1, self.log.lines))
        self.log.marks_as_findings(self.log.lines + 1 if proven else None)
        return self.log.parsed(self.format, Verdict.PASS if proven else Verdict.UNPROVEN, measurements)
