"""nvbandwidth: a matrix per test case, as text or as the JSON of ``-j``."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import orjson

from rackproof.core.records import Direction, Measurement, ParsedLog, Verdict
from rackproof.logs._reading import Log, LogParser, number, text_of

_RUNNING = re.compile(r"^Running ([A-Za-z0-9_]{1,100})\.?\s*$")
_UNIT = re.compile(r"\((GB/s|ns)\)\s*$")
_COLUMNS = re.compile(r"^\s+\d{1,4}(?:\s+\d{1,4})*\s*$")
_ROW = re.compile(r"^\s*(\d{1,4})((?:\s+(?:N/A|[-+0-9.eEinfa]{1,30}))+)\s*$")
_SUM = re.compile(r"^SUM ([A-Za-z0-9_]{1,100}) (\S{1,30})\s*$")
_ERROR = re.compile(r"\[?ERROR\]?|CUDA_ERROR_\w+|error .{0,60}in file", re.IGNORECASE)
_FACT = re.compile(
    r"^(nvbandwidth Version|CUDA Runtime Version|CUDA Driver Version|Driver Version): (\S{1,60})"
)
_DEVICE = re.compile(r"^Device \d{1,4}: (.{1,100})$")
MAX_JSON = 32 << 20
MAX_CELLS = 4000


class NvbandwidthParser(LogParser):
    """Reads matrices."""

    format: ClassVar[str] = "nvbandwidth"
    description: ClassVar[str] = "nvbandwidth, text or JSON of -j"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Whether the bytes begin with nvbandwidth's heading or JSON."""
        return b"nvbandwidth Version" in head or (
            head.lstrip()[:1] == b"{" and b'"nvbandwidth"' in head[:4096]
        )

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.started = False
        self.document: bytearray | None = None
        self.test = ""
        self.unit = "GB/s"
        self.columns: list[str] = []
        self.cells: list[Measurement] = []
        self.open_line = 0
        self.total = 0.0
        self.sums = self.waived = 0
        self.noted = False

    def block(self, data: bytes) -> None:
        """Read text, or gather the document."""
        if not self.started and data.strip():
            self.started = True
            if data.lstrip()[:1] == b"{":
                self.document = bytearray()
        if self.document is None:
            super().block(data)
        elif len(self.document) <= MAX_JSON:
            self.document += data

    def line(self, at: int, text: str) -> None:
        """Read one line of text."""
        if found := _RUNNING.match(text):
            self.close(at)
            self.test, self.open_line, self.columns, self.unit = found[1], at, [], "GB/s"
            self.total = 0.0
        elif self.test and self.matrix_line(at, text):
            return
        elif text.startswith("Waived"):
            self.waived += 1
        elif text.startswith("NOTE: The reported results"):
            self.noted = True
        elif found := _FACT.match(text):
            self.log.tag(found[1].lower().replace(" ", "_"), found[2])
        elif found := _DEVICE.match(text):
            self.log.tag("device", found[1])
        elif _ERROR.search(text):
            self.log.find("tool_error", "the test reports an error", Verdict.FAIL, line=at, excerpt=text)

    def matrix_line(self, at: int, text: str) -> bool:
        """Read a line of the present test's matrix; return whether it is one."""
        if total := _SUM.match(text):
            self.sum_line(at, text, total[1], number(total[2]))
        elif self.columns and (row := _ROW.match(text)):
            values = row[2].split()
            if len(values) != len(self.columns):
                self.log.find(
                    "damaged_line", "a row that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text
                )
            for column, value in zip(self.columns, values, strict=False):
                self.cell(at, self.test, row[1], column, value)
        elif _COLUMNS.match(text):
            self.columns = text.split()[:1000]
        elif unit := _UNIT.search(text):
            self.unit = unit[1]
        else:
            return False
        return True

    def close(self, at: int) -> None:
        """Note a test that has no sum when the next one begins."""
        if self.test:
            self.log.find("cut_off", f"{self.test} has no result", Verdict.UNPROVEN, line=self.open_line)
            self.test = ""

    def sum_line(self, at: int, text: str, name: str, value: float | None) -> None:
        """End a test; its sum must be that of its cells."""
        if (
            name != self.test
            or value is None
            or not math.isclose(value, self.total, rel_tol=0.01, abs_tol=0.5)
        ):
            self.log.find(
                "sum_mismatch",
                f"the sum of {self.test} is not that of its cells",
                Verdict.UNPROVEN,
                line=at,
                excerpt=text,
            )
        self.sums += 1
        self.test = ""

    def cell(self, at: int, test: str, row: str, column: str, raw: str) -> None:
        """Take one cell of a matrix."""
        if raw == "N/A":
            return
        value = number(raw)
        if value is None or not math.isfinite(value) or value <= 0:
            self.log.find(
                "impossible_value", f"{test} {row},{column} is {raw:.40}", Verdict.UNPROVEN, line=at
            )
            return
        self.total += value
        direction = Direction.LOWER if self.unit == "ns" else Direction.HIGHER
        if len(self.cells) < MAX_CELLS:
            self.cells.append(
                self.measure(test, value, self.unit, direction, at, labels={"row": row, "column": column})
            )

    def read_document(self, document: bytearray) -> bool:
        """Read the JSON; return whether every test in it ended."""
        log = self.log
        try:
            if len(document) > MAX_JSON:
                raise ValueError("too large")  # noqa: TRY301
            root: Any = orjson.loads(bytes(document))
            top = root["nvbandwidth"]
            tests = top["testcases"]
            if not isinstance(tests, list):
                raise TypeError("no list of tests")  # noqa: TRY301
        except (ValueError, KeyError, TypeError) as error:
            log.find("damaged_json", f"the JSON cannot be read: {error}", Verdict.UNPROVEN)
            return False
        for key in ("CUDA Runtime Version", "Driver Version", "version", "git_version"):
            if top.get(key) is not None:
                log.tag(key.lower().replace(" ", "_"), top[key])
        if top.get("error"):
            log.find(
                "tool_error", "nvbandwidth reports an error", Verdict.FAIL, excerpt=text_of(top["error"])
            )
        passed = 0
        for test in tests[:500]:
            if not isinstance(test, dict):
                log.find("damaged_json", "a test case that is no object", Verdict.UNPROVEN)
                continue
            passed += self.test_case(test)
        return passed > 0

    def test_case(self, test: dict[str, Any]) -> bool:
        """Read one test case of the JSON; return whether it passed."""
        name = text_of(test.get("name"), 100)
        status = test.get("status")
        if status == "Waived":
            self.waived += 1
            return False
        if status != "Passed":
            verdict = Verdict.FAIL if status == "Error" else Verdict.UNPROVEN
            self.log.find(
                "tool_error", f"{name}: {text_of(status, 40)} {text_of(test.get('error', ''))}", verdict
            )
            return False
        found = _UNIT.search(text_of(test.get("bandwidth_description")))
        self.unit = found[1] if found else "GB/s"
        matrix = test.get("bandwidth_matrix")
        if not isinstance(matrix, list) or not matrix:
            self.log.find("damaged_json", f"{name} has no matrix", Verdict.UNPROVEN)
            return False
        for row, cells in enumerate(matrix[:1000]):
            for column, cell in enumerate(cells[:1000] if isinstance(cells, list) else []):
                self.cell(1, name, str(row), str(column), text_of(cell, 60))
        return True

    def finish(self) -> ParsedLog:
        """Return every cell."""
        log = self.log
        if self.document is not None:
            proven = self.read_document(self.document)
        else:
            self.close(log.lines)
            proven = self.sums > 0 and self.noted
            if not self.noted:
                log.find("cut_off", "the closing note is missing", Verdict.UNPROVEN, line=max(1, log.lines))
        if not self.cells:
            log.find("no_rows", "no value that can be read", Verdict.UNPROVEN)
        if self.waived:
            log.find("waived", f"{self.waived} tests do not apply to this machine")
        log.marks_as_findings(log.lines + 1 if proven else None)
        return log.parsed(
            self.format, Verdict.PASS if proven and self.cells else Verdict.UNPROVEN, self.cells
        )
