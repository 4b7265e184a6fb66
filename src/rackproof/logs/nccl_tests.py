"""nccl-tests: the table on standard output (old and new columns) and the JSON of ``-J``.

``#wrong`` other than 0 means corrupted data and fails whatever the speed. ``N/A`` there means that
nothing was checked: then there is no ``wrong_values`` measurement.
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import orjson

from rackproof.core.records import Direction, Measurement, ParsedLog, Verdict
from rackproof.logs._reading import Log, LogParser, number, text_of, whole

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "broadcast",
    "reduce",
    "sendrecv",
    "gather",
    "scatter",
    "hypercube",
)
_PROGRAM = re.compile(r"\b(" + "|".join(COLLECTIVES) + r")_perf")
_IN_NAME = re.compile("|".join(COLLECTIVES))
_HEADER = re.compile(r"^#\s+size\s+count\s+.*algbw\s+busbw")
_ROW = re.compile(r"^\s*\d{1,20}\s+\d{1,20}\s+[a-z][a-z0-9_]{1,20}\s")
_BOUNDS = re.compile(r"^# Out of bounds values\s*: (\d{1,20}) (\w+)")
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*: (\S{1,30})")
_DEVICE = re.compile(r"^#\s+Rank\s+(\d{1,6}) .*\bdevice\s+\d+ \[[0-9A-Fa-fx:]+\] (.{1,100})$")
_CONFIG = re.compile(r"^# nThread (\d{1,6}) nGpus (\d{1,6}) minBytes (\d{1,20}) maxBytes (\d{1,20})")
_FAILED = re.compile(
    r"Test (?:NCCL|CUDA) failure|unhandled (?:cuda|system) error|NCCL error|ncclSystemError|ncclInternalError"
)
MAX_JSON = 32 << 20
PLACES = ("out_of_place", "in_place")
_HEAD = re.compile(
    rb"#\s+size\s+count\s+type\s+redop|# nThread \d+ nGpus \d+|# Collective test starting: "
    rb'|^\s*\{.{0,4000}"nccl_version"\s*:',
    re.DOTALL,
)


class NcclTestsParser(LogParser):
    """Reads tables or the JSON document."""

    format: ClassVar[str] = "nccl_tests"
    description: ClassVar[str] = "nccl-tests, table or JSON of -J"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Whether the bytes hold a table of nccl-tests or begin its JSON."""
        return _HEAD.search(head) is not None or (head.lstrip()[:1] == b"{" and b'"nccl_version"' in head)

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.document: bytearray | None = None
        self.started = False
        self.program = ""
        self.with_root = self.per_iteration = False
        self.in_table = False
        self.rows: list[Measurement] = []
        self.row_count = 0
        self.wrong = 0.0
        self.checked = self.unchecked = 0
        self.wrong_line: int | None = None
        self.tables = self.footers = 0
        self.ranks = 0
        self.ratio = 0.0

    def block(self, data: bytes) -> None:
        """Read a table, or gather the document."""
        if not self.started and data.strip():
            self.started = True
            if data.lstrip()[:1] == b"{":
                self.document = bytearray()
        if self.document is not None:
            if len(self.document) <= MAX_JSON:
                self.document += data
        else:
            super().block(data)

    # -- the table --------------------------------------------------------------------------------

    def line(self, at: int, text: str) -> None:
        """Read one line of the table or around it."""
        if text.startswith("#"):
            self.comment(at, text)
        elif self.in_table and _ROW.match(text):
            self.row(at, text)
        else:
            if not self.in_table and (found := _PROGRAM.search(text)):
                self.program = found[1]
            if _FAILED.search(text):
                self.log.find(
                    "nccl_error", "the test stopped with an error", Verdict.FAIL, line=at, excerpt=text
                )

    def comment(self, at: int, text: str) -> None:
        """Read a line that begins with ``#``."""
        if _HEADER.match(text):
            self.in_table = True
            self.tables += 1
            self.with_root = " root " in text
            self.per_iteration = "i_min" in text
        elif bounds := _BOUNDS.match(text):
            self._table_end(at, text, bounds[1], bounds[2])
        elif not self._take_fact(text) and text.startswith("# error:") and text[8:].strip():
            self.log.find("nccl_error", "the test reports an error", Verdict.DEGRADED, line=at, excerpt=text)

    def _table_end(self, at: int, text: str, count: str, word: str) -> None:
        """Take the line that proves the end of a table, with the program's own count of wrong values."""
        self.footers += 1
        self.in_table = False
        if count != "0" or word != "OK":
            self.log.find(
                "wrong_values", f"{count} values out of bounds", Verdict.FAIL, line=at, excerpt=text
            )

    def _take_fact(self, text: str) -> bool:
        """Take a fact from a comment; return whether it states one."""
        if average := _AVERAGE.match(text):
            self.log.tag("average_busbw_over_the_sweep", average[1])
        elif device := _DEVICE.match(text):
            self.ranks = max(self.ranks, int(device[1]) + 1)
            self.log.tag("device", device[2])
        elif config := _CONFIG.match(text):
            self.log.tag("min_bytes", config[3])
            self.log.tag("max_bytes", config[4])
        elif program := _PROGRAM.search(text):
            self.program = program[1]
        else:
            return False
        return True

    def row(self, at: int, text: str) -> None:
        """Read one row: size, count, type, [redop], [root], then time, algbw, busbw, #wrong twice."""
        words = text.split()
        size, kind = words[0], words[2]
        redop, figures = self._split_row(words[3:])
        # With times per iteration, each place has four more columns.
        width = 8 if self.per_iteration else 4
        if len(figures) < 2 * width:
            self._damaged_row(at, text)
            return
        for place, values in zip(PLACES, (figures[:width], figures[width : 2 * width]), strict=True):
            algbw, busbw, wrong = number(values[1]), number(values[2]), number(values[3])
            # "N/A" means that nothing was checked; any other word there is damage.
            damaged = number(values[0]) is None or (wrong is None and values[3] != "N/A")
            if algbw is None or busbw is None or damaged:
                self._damaged_row(at, text)
                return
            self.value(at, text, size, kind, redop, place, algbw, busbw, wrong)

    def _split_row(self, words: list[str]) -> tuple[str, list[str]]:
        """Return the reduction ("" where there is none) and the words from the first time on."""
        redop = ""
        # A time may be "nan", which is no reduction.
        if words and re.fullmatch(r"[a-z]+\w*", words[0]) and words[0] not in ("nan", "inf"):
            redop, *words = words
        if self.with_root and words and re.fullmatch(r"-?\d{1,9}", words[0]):
            words = words[1:]
        return redop, words

    def _damaged_row(self, at: int, text: str) -> None:
        self.log.find("damaged_line", "a row that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text)

    def value(
        self,
        at: int,
        text: str,
        size: str,
        kind: str,
        redop: str,
        place: str,
        algbw: float,
        busbw: float,
        wrong: float | None,
    ) -> None:
        """Take the figures of one size in one place."""
        self.row_count += 1
        self._count_wrong(at, text, f"at {size} bytes {place}", wrong)
        for name, value in (("busbw", busbw), ("algbw", algbw)):
            if not math.isfinite(value) or value < 0:
                self.log.find(
                    "nan", f"{name} is {value} at {size} bytes", Verdict.UNPROVEN, line=at, excerpt=text
                )
        # Of a reduction only: its factor busbw/algbw is what `collective` knows all_reduce by.
        if redop and algbw > 1 and busbw > 0:
            self.ratio = busbw / algbw
        labels = {"size_bytes": size, "dtype": kind, "place": place}
        if len(self.rows) < 4000:
            # Renamed at the end, when the collective is known.
            self.rows.append(self.measure("busbw", busbw, "GB/s", Direction.HIGHER, at, labels=labels))
            self.rows.append(self.measure("algbw", algbw, "GB/s", Direction.HIGHER, at, labels=labels))

    def _count_wrong(self, at: int, text: str, where: str, wrong: float | None) -> None:
        """Count wrong values; None where the program did not check."""
        if wrong is None:
            self.unchecked += 1
            return
        self.checked += 1
        self.wrong += wrong
        self.wrong_line = at
        if wrong != 0:
            message = f"{wrong:g} wrong values {where}"
            self.log.find("wrong_values", message, Verdict.FAIL, line=at, excerpt=text)

    def collective(self) -> str:
        """Return the collective's name: as stated, from the file's name, from the factor busbw/algbw."""
        if self.program:
            return self.program
        if found := _IN_NAME.search(self.log.name):
            return found[0]
        if self.ranks > 1 and math.isclose(self.ratio, 2 * (self.ranks - 1) / self.ranks, rel_tol=0.02):
            return "all_reduce"
        return "collective"

    # -- the document -----------------------------------------------------------------------------

    def read_document(self, document: bytearray) -> bool:
        """Read the JSON of ``-J``; return whether it is whole."""
        log = self.log
        if len(document) > MAX_JSON:
            log.find("too_large", "more JSON than nccl-tests writes", Verdict.UNPROVEN)
            return False
        try:
            root: Any = orjson.loads(bytes(document))
        except ValueError as error:
            log.find("damaged_json", f"the JSON cannot be read: {error}", Verdict.UNPROVEN)
            return False
        if not isinstance(root, dict) or not isinstance(root.get("results"), list):
            log.find("damaged_json", "the JSON holds no results", Verdict.UNPROVEN)
            return False
        self.document_head(root)
        for entry in root["results"][:2000]:
            self.entry(entry)
        return self.document_end(root)

    def document_head(self, root: dict[str, Any]) -> None:
        """Take the program, the sizes and the devices that the JSON states."""
        arguments = root.get("args")
        if isinstance(arguments, list) and arguments:
            program = _PROGRAM.search(text_of(arguments[0], 500))
            self.program = program[1] if program else self.program
        config = root.get("config")
        if isinstance(config, dict):
            self._take_config(config)
        if root.get("nccl_version") is not None:
            self.log.tag("software.nccl", root["nccl_version"])

    def _take_config(self, config: dict[str, Any]) -> None:
        for key, tag in (("minimum_bytes", "min_bytes"), ("maximum_bytes", "max_bytes")):
            self.log.tag(tag, config.get(key))
        devices = config.get("devices")
        if isinstance(devices, list):
            self.ranks = len(devices)
            if devices and isinstance(devices[0], dict):
                self.log.tag("device", devices[0].get("device_info"))

    def document_end(self, root: dict[str, Any]) -> bool:
        """Judge errors and wrong values; return whether the JSON has its last part."""
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

    def entry(self, entry: object) -> None:
        """Read one element of ``results``."""
        size = whole(entry.get("size")) if isinstance(entry, dict) else None
        if size is None or not isinstance(entry, dict):
            self.log.find("damaged_json", "a result without a size", Verdict.UNPROVEN)
            return
        taken = 0
        for place in PLACES:
            body = entry.get(place)
            if isinstance(body, dict):
                taken += self._entry_place(entry, str(size), place, body)
        if not taken:
            self.log.find("damaged_json", f"a result without figures at {size} bytes", Verdict.UNPROVEN)

    def _entry_place(self, entry: dict[str, Any], size: str, place: str, body: dict[str, Any]) -> bool:
        """Take the figures of one place; return whether they can be read."""
        algbw, busbw = number(body.get("alg_bw")), number(body.get("bus_bw"))
        raw_wrong = body.get("nwrong")
        wrong = number(raw_wrong)
        if algbw is None or busbw is None or (wrong is None and raw_wrong is not None):
            message = f"a result that cannot be read at {size} bytes"
            self.log.find("damaged_json", message, Verdict.UNPROVEN)
            return False
        kind, redop = text_of(entry.get("type"), 20), text_of(entry.get("redop"), 20)
        self.value(1, "", size, kind, redop, place, algbw, busbw, wrong)
        return True

    # -- the end ----------------------------------------------------------------------------------

    def finish(self) -> ParsedLog:
        """Judge the values, not the speed."""
        log = self.log
        document = self.document
        proven = self._tables_ended() if document is None else self.read_document(document)
        if not self.row_count:
            log.find("no_rows", "no row that can be read", Verdict.UNPROVEN)
            proven = False
        log.marks_as_findings(log.lines + 1 if proven else None)
        collective = self.collective()
        log.tag("collective", collective)
        measurements = [row.model_copy(update={"name": f"{collective}_{row.name}"}) for row in self.rows]
        if self.checked:
            measurements.append(
                self.measure("wrong_values", self.wrong, "", Direction.LOWER, self.wrong_line)
            )
        if self.unchecked:
            log.find("not_checked", f"{self.unchecked} results were not checked for right values")
        return log.parsed(self.format, Verdict.PASS if proven else Verdict.UNPROVEN, measurements)

    def _tables_ended(self) -> bool:
        """Whether there is a table, and every one has its end; note what is missing."""
        if self.tables > 0 and self.footers >= self.tables:
            return True
        reason = "the table has no end" if self.tables else "no table"
        message = f"{reason}: the test did not end"
        self.log.find("cut_off", message, Verdict.UNPROVEN, line=max(1, self.log.lines))
        return False
