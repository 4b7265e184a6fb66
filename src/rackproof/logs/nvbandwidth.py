"""Parse the output of nvbandwidth, as text or as the JSON of ``-j`` (since 0.5).

Each test case prints matrices, here of bandwidths between two GPUs:

    Running device_to_device_memcpy_read_ce.
    memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
               0         1
     0       N/A    394.00
     1    396.00       N/A
    SUM device_to_device_memcpy_read_ce 790.00

Before their JSON, 0.5 to 0.7 print the devices as text. In 0.8, the JSON lists the devices of the first
process's node. A bidirectional test between GPUs prints three matrices, its parts: both directions and their
total. Their cells are named after the test and the part
(``device_to_device_bidirectional_memcpy_read_ce_total``), like the tool's own sums.

:func:`rackproof.logs.parse` creates the parser. Begin with :meth:`NvbandwidthParser.line`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from rackproof.core.records import Direction, Measurement, ParsedLog, Verdict
from rackproof.core.text import amount
from rackproof.logs._launchers import split_label
from rackproof.logs._nvidia_smi import find_missing_indexes, find_mixed_models, find_twice
from rackproof.logs._reading import Log, LogParser, distinct_members, number, text_of

_RUNNING = re.compile(r"^\s*Running ([A-Za-z0-9_]{1,100})\.?\s*$")
_UNIT = re.compile(r"\b(?:[Bb]andwidth|[Ll]atency)\b.{0,200}\(([^()\s]{1,20})\)\s*$|\((GB/s|ns)\)\s*$")
"""Pattern of the unit at the end of a matrix's description."""
_UNITS = ("GB/s", "ns")
"""Units that nvbandwidth prints."""
_COLUMNS = re.compile(r"^\s+\d{1,4}(?:\s+\d{1,4})*\s*$")
# Each text must fit in one way only. Otherwise, a row that fits nowhere takes 2^n steps.
_CELL = r"(?:N/A|[0-9.eE+-]{1,31}|[-+]?(?:nan|inf))"
_ROW = re.compile(rf"^\s*(\d{{1,4}})((?:\s+{_CELL})+)\s*$")
_LABELLED_ROW = re.compile(rf"^\s*(\d{{1,6}} ?-> ?\d{{1,6}})((?:\s+{_CELL})+)\s*$")
"""Pattern of a row of the bisection between nodes, with the sending and the receiving process."""
_SUM = re.compile(r"^\s*(?:SUM|&&&& PERF) ([A-Za-z0-9_]{1,120}) ([-+0-9.eEinfa]{1,30})(?: ?(?:GB/s|ns))?\s*$")
"""Pattern of the line below a matrix: the test, with its part, and the sum of the cells."""
_PART = re.compile(r"_((?:read|write)[12]|total)$")
"""Pattern of the part at the end of a sum's name."""
_PART_IN_WORDS = re.compile(r"\b((?:Read|Write)[12]|Total) bandwidth\b")
_DIRECTIONS = (("read1", "write1"), ("read2", "write2"))
"""Possible names of the first and of the second direction of a bidirectional test."""
_ERROR = re.compile(
    r"^\s*(?:\[?(?:NVML_)?ERROR\b|(?i:\[?error[\]:]|(?:CUDA |NVML )?error .{0,60}in file))"
    r"|^\s*ASSERT in expression|\[cudaError\w+\]|\bCUDA_ERROR_\w+|Invalid value when checking the pattern"
)
"""Pattern of the tool's own errors. It does not match such words in a command or comment."""
_FACT = re.compile(
    r"^\s*(nvbandwidth Version|CUDA Runtime Version|CUDA Driver Version|Driver Version): (\S{1,60})"
)
_DEVICE = re.compile(r"^\s*Device (\d{1,4}): (.{1,100})$")
_ADDRESS = re.compile(r"\s*\(([0-9A-Fa-f:.]+)\)(?:: \(.*\))?$")
"""Pattern of the PCI address at the end of a device."""
_PROCESS = re.compile(r"^\s*Process +\d{1,6} \([^)]{1,100}\): device \d{1,4}: ")
"""Pattern of a line about a process, which a run on several nodes lists in place of devices."""
_BETWEEN_GPUS = re.compile(r"(?:^|_)device_to_device_")
"""Pattern of tests with a row and a column for each GPU."""
_WITH_HOST = re.compile(r"(?:^|_)(?:host|all)_")
"""Pattern of tests of the path to the host's memory, including ``all_to_host``."""
_FASTEST_GB_S, _FASTEST_TO_HOST_GB_S = 10_000.0, 1_000.0
"""Upper limits for a cell in GB/s: memory reaches 8 TB/s, and NVLink-C2C 450 GB/s in each direction."""
_BEGIN = re.compile(rb'\{[^\S\n]*(?:\n[^"\n]{0,120}){0,40}"nvbandwidth"\s*:')
"""Pattern of the beginning of the JSON, perhaps with a launcher's labels and lines of other processes."""
_LISTED_DEVICE = re.compile(r"(\d{1,4}): (.{1,100}?)\s*\([0-9A-Fa-f:.]+\)(?:: \(.*\))?")
"""Pattern of a device in the JSON: number and product, before its bus address."""
MAX_JSON = 32 << 20
"""Largest number of bytes of the JSON."""
MAX_CELLS = 4000
"""Largest number of stored cells, rows and devices."""


class NvbandwidthParser(LogParser):
    """The parser of nvbandwidth's matrices."""

    format: ClassVar[str] = "nvbandwidth"
    description: ClassVar[str] = "nvbandwidth, text or JSON of -j"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain nvbandwidth's heading or the beginning of its JSON."""
        return b"nvbandwidth Version" in head or _BEGIN.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.document: bytearray | None = None
        """Everything from the first line of JSON on."""
        self.document_line = 1
        self.has_text = False
        """True if the heading of a run was printed as text."""
        self.test = ""
        """Name of the current test, or "" outside a test."""
        self.unit = ""
        """Unit of the current matrix, or "" before its description."""
        self.columns: list[str] = []
        self.cells: list[Measurement] = []
        self.open_line = 0
        """Line at which the current test started."""
        self.part = ""
        """The part in the description of the current matrix."""
        self.row_names: list[str] = []
        """Names of the rows of the current matrix."""
        self.matrix: list[Measurement] = []
        """Cells of the matrix whose sum was not read yet."""
        self.parts: dict[str, float] = {}
        """Sums of the current test's matrices, by part ("" for the only one)."""
        self.total = 0.0
        """Sum of the cells of the current matrix."""
        self.sums = self.waived = 0
        """Numbers of matrices with a sum, and of tests that do not apply to the machine."""
        self.noted = self.note_first = False
        """True if the closing note was read, and if the older note of the heading was read."""
        self.addresses: dict[str, str] = {}
        """Numbers of the devices, by PCI address."""
        self.devices: dict[str, str] = {}
        """Product names of the devices in the heading, by number."""
        self.of_processes = False
        """True if a run on several nodes lists processes in place of all devices."""
        self.widest = 0
        """Number of columns of the widest matrix with a column for each device."""
        self.absent: set[tuple[str, str]] = set()
        """Rows and columns of the current matrix whose cells are N/A."""

    def block(self, data: bytes) -> None:
        """Read text, or collect everything from the first JSON on."""
        if self.document is None and (match := _BEGIN.search(data)):
            begin = data.rfind(b"\n", 0, match.start()) + 1
            self.document_line = self.log.line_at(begin)
            super().block(data[:begin])
            self.document = bytearray(data[begin:])
        elif self.document is None:
            super().block(data)
        elif len(self.document) <= MAX_JSON:
            self.document += data

    def line(self, at: int, text: str) -> None:
        """Read one line of text."""
        if self._take_line(at, text):
            return
        _label, unlabelled = split_label(text)
        if unlabelled != text and self._take_line(at, unlabelled):
            return
        # A label may look like an error's first word.
        if _ERROR.search(text) or _ERROR.search(unlabelled):
            self.log.find("tool_error", "the test reports an error", Verdict.FAIL, line=at, excerpt=text)

    def _take_line(self, at: int, text: str) -> bool:
        """Read a line of nvbandwidth. Return whether it is one."""
        if match := _RUNNING.match(text):
            self.close()
            self.test, self.open_line = match[1], at
            return True
        return (self.test != "" and self.matrix_line(at, text)) or self._take_fact(text)

    def _take_fact(self, text: str) -> bool:
        """Read a line with a version, device, process, note or waived test. Return whether it is one."""
        if text.lstrip().startswith("Waived"):
            self.waived += 1
        elif text.lstrip().startswith("NOTE: The reported results"):
            self.noted = True
        elif text.lstrip().startswith("NOTE: This tool reports current measured bandwidth"):
            self.note_first = True
        elif match := _FACT.match(text):
            if match[1] == "nvbandwidth Version":
                self.has_text = True
                # Another run starts in the same file and must show an end of its own.
                self.noted = self.note_first = False
            self.log.tag(match[1].lower().replace(" ", "_"), match[2])
        elif _PROCESS.match(text):
            self.of_processes = True
        elif match := _DEVICE.match(text):
            self._take_device(match[1], match[2], text)
        else:
            return False
        return True

    def _take_device(self, number: str, name: str, text: str) -> None:
        """Store a device of the list. Another run in the same file lists the same devices again.

        Args:
            number: The number of the device.
            name: Its product name, perhaps with its PCI address in parentheses.
            text: The whole entry.
        """
        product, address = _ADDRESS.sub("", name), _ADDRESS.search(name)
        if len(self.devices) < MAX_CELLS:
            self.devices[number] = product
        if address is not None and self.addresses.setdefault(address[1], number) != number:
            find_twice(self.log, self.log.lines + 1, address[1], text)
        self.log.tag("device", name)

    def matrix_line(self, at: int, text: str) -> bool:
        """Read a line of the current test's matrices. Return whether it is one."""
        if total := _SUM.match(text):
            self.sum_line(at, text, total[1], number(total[2]))
        elif self.columns and (row := _ROW.match(text) or _LABELLED_ROW.match(text)):
            self._row(at, text, row[1], row[2].split())
        elif _COLUMNS.match(text):
            self.columns = text.split()[:1000]
        elif unit := _UNIT.search(text):
            self._matrix_without_sum()
            self._take_unit(at, unit[1] or unit[2])
            part = _PART_IN_WORDS.search(text)
            self.part = part[1].lower() if part else ""
        else:
            return False
        return True

    def _take_unit(self, at: int, unit: str) -> None:
        """Store the unit of the current matrix, and find one that nvbandwidth does not print."""
        self.unit = unit
        if unit not in _UNITS:
            message = f"a matrix of {self.test} is in {unit:.20}, and nvbandwidth prints GB/s or ns"
            self.log.find("damaged_line", message, Verdict.UNPROVEN, line=at)

    def _row(self, at: int, text: str, name: str, values: list[str]) -> None:
        """Read a row of a matrix. A row with another number of values than columns is unproven."""
        if len(values) != len(self.columns):
            self.log.find(
                "damaged_line", "a row that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text
            )
        if len(self.row_names) < MAX_CELLS:
            self.row_names.append(name)
        for column, value in zip(self.columns, values, strict=False):
            self.cell(at, self.test, name, column, value)

    def close(self) -> None:
        """Record the missing parts of the current test when the next one starts, or the log ends."""
        if not self.test:
            return
        if not self._matrix_without_sum() and not self.parts:
            self._without_result(f"{self.test} has no result")
        self._judge_parts(self.test, self.open_line)
        self.test, self.part, self.parts, self.unit = "", "", {}, ""

    def _without_result(self, message: str) -> None:
        """Record that a part of the current test is missing."""
        self.log.find("cut_off", message, Verdict.UNPROVEN, line=self.open_line)

    def _matrix_without_sum(self) -> bool:
        """Record a finding for a matrix without a sum, and store its cells. Return whether there was one."""
        begun = bool(self.columns or self.matrix)
        if begun:
            self._without_result(f"a matrix of {self.test} has no sum")
        # The cells are stored, because the measurements are shown although they prove nothing.
        self._keep_matrix(self.part)
        return begun

    def _keep_matrix(self, part: str) -> None:
        """Store the cells of the current matrix, named after the part, and prepare for the next matrix."""
        for cell in self.matrix:
            name = f"{cell.name}_{part}" if part else cell.name
            self.cells.append(cell.model_copy(update={"name": name}))
        self.matrix, self.columns, self.row_names, self.total = [], [], [], 0.0
        self.absent.clear()

    def _judge_parts(self, test: str, line: int | None) -> None:
        """Check that a bidirectional test shows both directions and their total."""
        parts = self.parts
        if not any(parts):
            return
        directions = [next((parts[name] for name in names if name in parts), None) for names in _DIRECTIONS]
        total = parts.get("total")
        if directions[0] is None or directions[1] is None or total is None:
            self.log.find(
                "cut_off", f"{test} lacks a direction or the total of both", Verdict.UNPROVEN, line=line
            )
        elif not math.isclose(directions[0] + directions[1], total, rel_tol=0.01, abs_tol=0.5):
            message = f"the total of {test} is not that of its two directions"
            self.log.find("sum_mismatch", message, Verdict.UNPROVEN, line=line)

    def sum_line(self, at: int, text: str, name: str, value: float | None) -> None:
        """End the current matrix. Its sum must match its cells.

        Args:
            at: The number of the line.
            text: The line.
            name: The test that the line names, with the part.
            value: The stated sum, or None if it cannot be read.
        """
        part = self._part_of(name)
        if part is None or part in self.parts or value is None or not _is_sum(value, self.total):
            self.log.find(
                "sum_mismatch",
                f"the sum of {self.test} is not that of its cells",
                Verdict.UNPROVEN,
                line=at,
                excerpt=text,
            )
        part = self.part if part is None else part
        self.parts[part] = self.total
        self.sums += 1
        self._judge_rows(at)
        self._keep_matrix(part)

    def _judge_rows(self, at: int) -> None:
        """Record a matrix that lacks a row, a column or a value."""
        if self._is_by_device():
            self.widest = max(self.widest, len(self.columns))
        # The description of the bisection between nodes has no unit.
        if not self.unit and "->" not in "".join(self.row_names):
            message = f"a matrix of {self.test} has no description with its unit"
            self.log.find("rows_missing", message, Verdict.UNPROVEN, line=at)
        if gap := self._gap_of_matrix():
            message = f"a matrix of {self.test} has {gap}"
            self.log.find("rows_missing", message, Verdict.UNPROVEN, line=at)

    def _gap_of_matrix(self) -> str:
        """Return the gap in the current matrix as text, or "" if there is none.

        Rows and columns are numbered. A matrix between GPUs has as many rows as columns.
        """
        rows, columns = self.row_names, self.columns
        numbered = [str(number) for number in range(max(len(rows), len(columns)))]
        # In the bisection between nodes, rows are named after two processes.
        names_processes = "->" in "".join(rows)
        if rows != numbered[: len(rows)] and not names_processes:
            return f"the rows {', '.join(rows)[:100]}: one is missing"
        if columns != numbered[: len(columns)]:
            return f"the columns {', '.join(columns)[:100]}: one is missing"
        if _BETWEEN_GPUS.search(self.test) and len(rows) != len(columns) and not names_processes:
            return f"{amount(len(rows), 'row')} and {amount(len(columns), 'column')}"
        if self._is_by_device() and len(columns) < len(self.devices):
            return f"{amount(len(columns), 'column')} for {amount(len(self.devices), 'device')}"
        # A GPU has no path to itself. In other matrices, row and column 0 are two different things.
        between_gpus = _BETWEEN_GPUS.search(self.test) is not None
        absent = (pair for pair in sorted(self.absent) if not between_gpus or pair[0] != pair[1])
        for source, target in absent:
            return f"no value from {source} to {target}: no access between them?"
        return "" if self.total else "no value"

    def _judge_devices(self) -> None:
        """Find a list of devices with a gap, with several models, or of another length than the columns."""
        find_missing_indexes(self.log, "the list of devices", map(int, self.devices))
        find_mixed_models(self.log, self.devices.values())
        if self.widest > len(self.devices) and not self.of_processes:
            devices = amount(len(self.devices), "device")
            message = f"{devices} listed, and a matrix has {amount(self.widest, 'column')}"
            self.log.find("devices_contradict", message, Verdict.UNPROVEN)

    def _is_by_device(self) -> bool:
        """Return whether the current matrix contains a column for each device of one node."""
        is_known = _BETWEEN_GPUS.search(self.test) or _WITH_HOST.search(self.test)
        return bool(is_known) and "->" not in "".join(self.row_names)

    def _part_of(self, name: str) -> str | None:
        """Return the part of the sum ("" for the only matrix), or None if it belongs to another test."""
        if name == self.test:
            return self.part
        part = _PART.search(name)
        return part[1] if part and name[: part.start()] == self.test else None

    def cell(self, at: int, test: str, row: str, column: str, raw: str) -> None:
        """Read one cell of a matrix. N/A has no value (:meth:`_gap_of_matrix`)."""
        if raw == "N/A":
            if len(self.absent) < MAX_CELLS:
                self.absent.add((row, column))
            return
        value = number(raw)
        if value is None or not math.isfinite(value) or value <= 0:
            self.log.find(
                "impossible_value", f"{test} {row},{column} is {raw:.40}", Verdict.UNPROVEN, line=at
            )
            return
        most = _FASTEST_TO_HOST_GB_S if _WITH_HOST.search(test) else _FASTEST_GB_S
        unit = self.unit or "GB/s"
        if unit == "GB/s" and value > most:
            message = f"{test} {row},{column} is {raw:.40} GB/s, but at most {most:g} is possible"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at)
        self.total += value
        direction = Direction.LOWER if unit == "ns" else Direction.HIGHER
        if len(self.cells) + len(self.matrix) < MAX_CELLS:
            self.matrix.append(
                self.measure(test, value, unit, direction, at, labels={"row": row, "column": column})
            )

    def read_documents(self, raw: bytearray) -> bool:
        """Read the JSON of every process and the text after it. Return whether everything is complete."""
        if len(raw) > MAX_JSON:
            self.log.find("damaged_json", "the JSON cannot be read: too large", Verdict.UNPROVEN)
            return False
        ended = [self._read_process(text) for text in _by_process(raw.decode("utf-8", "replace"))]
        return any(ended) and False not in ended

    def _read_process(self, text: str) -> bool | None:
        """Return whether each document of a process has a test that passed, or None without a document."""
        ended = None
        for part in _documents(text):
            if isinstance(part, str):
                self.test, self.part, self.parts, self.unit = "", "", {}, ""
                for line in part.splitlines():
                    self.line(self.document_line, line)
            elif isinstance(part, ValueError):
                self.log.find("damaged_json", f"the JSON cannot be read: {part}", Verdict.UNPROVEN)
                return False
            else:
                ended = self.read_document(part) and ended is not False
        return ended

    def read_document(self, root: Any) -> bool:
        """Read one document. Return whether a test in it passed."""
        try:
            top = root["nvbandwidth"]
            tests = top["testcases"]
            if not isinstance(tests, list):
                raise TypeError("no list of tests")  # noqa: TRY301
        except (KeyError, TypeError) as error:
            self.log.find("damaged_json", f"the JSON cannot be read: {error}", Verdict.UNPROVEN)
            self._note_error(root.get("nvbandwidth") if isinstance(root, dict) else None)
            return False
        self._note_heading(top)
        self._note_error(top)
        passed = 0
        for test in tests:
            if not isinstance(test, dict):
                self.log.find("damaged_json", "a test case that is not an object", Verdict.UNPROVEN)
                continue
            passed += self.test_case(test)
        return passed > 0

    def _note_heading(self, top: dict[str, Any]) -> None:
        """Store the versions and the devices, which the text has in its heading."""
        for key in ("CUDA Runtime Version", "Driver Version", "version", "git_version"):
            if top.get(key) is not None:
                self.log.tag(key.lower().replace(" ", "_"), top[key])
        if top.get("version") is not None:
            self.log.tag("nvbandwidth_version", top["version"])
        listed = top.get("GPU Device list", [])
        for entry in listed[:MAX_CELLS] if isinstance(listed, list) else [None]:
            match = _LISTED_DEVICE.fullmatch(entry) if isinstance(entry, str) else None
            if match is None:
                message = f"a device of the list cannot be read: {text_of(entry, 100)}"
                self.log.find("damaged_json", message, Verdict.UNPROVEN)
                continue
            self._take_device(match[1], match[0].partition(": ")[2], match[0])

    def _note_error(self, top: Any) -> None:
        """Record the error that a document states."""
        if isinstance(top, dict) and top.get("error"):
            excerpt = text_of(top["error"])
            self.log.find("tool_error", "nvbandwidth reports an error", Verdict.FAIL, excerpt=excerpt)

    def test_case(self, test: dict[str, Any]) -> bool:
        """Read one test case of the JSON. Return whether it passed."""
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
        # The list of devices contains only the devices of the first process's node.
        self.of_processes |= name.startswith("multinode_")
        match = _UNIT.search(text_of(test.get("bandwidth_description")))
        self.test = name
        self.unit = ""
        if match:
            self._take_unit(self.document_line, match[1] or match[2])
        matrix = test.get("bandwidth_matrix")
        if not isinstance(matrix, list) or not matrix:
            self.log.find("damaged_json", f"{name} has no matrix", Verdict.UNPROVEN)
            return False
        self._matrices(name, test, matrix)
        return True

    def _matrices(self, name: str, test: dict[str, Any], matrix: list[Any]) -> None:
        """Read the rows of one test. The rows of the two directions and of the total follow each other."""
        names = _matrix_names(name, text_of(test.get("bandwidth_description")))
        size, remainder = divmod(len(matrix), len(names))
        columns = {len(row) for row in matrix if isinstance(row, list)}
        # Between GPUs, a matrix is square. Otherwise, a direction is missing.
        square = len(names) > 1 or _BETWEEN_GPUS.search(name) is not None
        if remainder or len(columns) > 1 or (square and columns != {size}):
            self.log.find(
                "damaged_json", f"{name} has {amount(len(matrix), 'row')} in its matrix", Verdict.UNPROVEN
            )
            return
        self.parts = {}
        for index, part_name in enumerate(names):
            # No host contains a thousand GPUs. A larger number is damage, and would take time in proportion
            # to its square.
            self._take_cells(name, matrix[index * size : index * size + min(size, 1000)])
            self.parts[part_name] = self.total
            last = self.total
            self._judge_rows(self.document_line)
            self._keep_matrix(part_name)
        stated = number(test.get("sum"))
        # The sum is for the last matrix.
        if stated is None or not _is_sum(stated, last):
            message = f"the sum of {name} is not that of its cells"
            self.log.find("sum_mismatch", message, Verdict.UNPROVEN)
        self._judge_parts(name, None)

    def _take_cells(self, name: str, rows: list[Any]) -> None:
        """Read the cells of one matrix of the JSON, which numbers neither rows nor columns."""
        self.test, self.row_names = name, [str(row) for row in range(len(rows))]
        for row, cells in enumerate(rows):
            values = cells[:1000] if isinstance(cells, list) else []
            self.columns = [str(column) for column in range(max(len(values), len(self.columns)))]
            for column, cell in enumerate(values):
                self.cell(self.document_line, name, str(row), str(column), text_of(cell, 60))

    def _text_is_whole(self) -> bool:
        """Close the text. Return whether a result and the closing note were found."""
        self.close()
        if not self.noted:
            message = "the closing note is missing"
            if self.note_first:
                message = (
                    "this version prints no end: tests that did not run would not show; "
                    "use nvbandwidth 0.6 or newer"
                )
            self.log.find("cut_off", message, Verdict.UNPROVEN, line=max(1, self.log.lines))
        return self.sums > 0 and self.noted

    def finish(self) -> ParsedLog:
        """Return the parsed log. Its measurements are the cells of all matrices."""
        log = self.log
        self.close()
        proven = self.document is None or self.read_documents(self.document)
        if self.has_text or self.document is None:
            proven = self._text_is_whole() and proven
        self._judge_devices()
        if not self.cells:
            log.find("no_rows", "no value that can be read", Verdict.UNPROVEN)
        if self.waived:
            log.find("waived", f"{self.waived} tests do not apply to this machine")
        log.marks_as_findings(log.line_after_last if proven else None)
        return log.parsed(
            self.format, Verdict.PASS if proven and self.cells else Verdict.UNPROVEN, self.cells
        )


def _by_process(text: str) -> Iterator[str]:
    """Yield each process's output without a launcher's labels.

    Without labels, yield the whole text.
    """
    processes: dict[str, list[str]] = {}
    first_label = split_label(text.partition("\n")[0])[0]
    if not first_label:
        yield text
        return
    for line in text.split("\n"):
        label, unlabelled = split_label(line)
        # A line without a label is the launcher's own, or the end.
        processes.setdefault(label if label else first_label, []).append(unlabelled)
    for lines in processes.values():
        yield "\n".join(lines)


def _documents(text: str) -> Iterator[Any]:
    """Yield the JSON objects of a text, and as str the texts between them.

    If an object cannot be read, yield a ValueError as the last item.
    """
    decoder = json.JSONDecoder(object_pairs_hook=distinct_members)
    position = 0
    while (begin := text.find("{", position)) >= 0:
        if text[position:begin].strip():
            yield text[position:begin]
        try:
            document, position = decoder.raw_decode(text, begin)
        except RecursionError:
            yield ValueError("nested too deeply")
            return
        except ValueError as error:
            yield error
            return
        yield document
    if text[position:].strip():
        yield text[position:]


def _is_sum(stated: float, total: float) -> bool:
    """Return whether a sum matches the cells, which are printed with two decimals."""
    return math.isclose(stated, total, rel_tol=0.001, abs_tol=0.5)


def _matrix_names(name: str, description: str) -> list[str]:
    """Return the names of a test's matrices in order.

    There is one matrix, or two directions and their total.
    """
    part = _PART_IN_WORDS.search(description)
    if part is None or part[1] != "Total":
        return [part[1].lower() if part else ""]
    # Only the total is described, although all three are printed.
    direction = "write" if "_write_" in f"{name}_" else "read"
    return [f"{direction}1", f"{direction}2", "total"]
