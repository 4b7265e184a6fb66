"""Parse ``nvidia-smi --query-gpu=… --format=csv``, once or in a loop, for :func:`rackproof.logs.parse`.

A header names the requested columns, with units, and each row describes one GPU at one moment:

    index, name, uuid, memory.total [MiB], temperature.gpu, ecc.mode.current
    0, NVIDIA H200, GPU-00000000-0000-4000-8000-000000000001, 143771 MiB, 31, Enabled

In a loop, the rows repeat. GPUs are compared only by values that last (:data:`_LASTING`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from rackproof.core.records import Direction, Measurement, ParsedLog, Verdict
from rackproof.core.text import amount
from rackproof.logs._nvidia_smi import (
    INFOROM_REMEDY,
    MAX_GPUS,
    GpuReadings,
    find_lacking_readings,
    find_missing_indexes,
    find_no_answer,
    find_not_available,
    find_remark,
    find_twice,
    identifies_gpu,
    is_possible,
    judge_gpu,
    judge_neighbours,
    leading,
    tag_moment,
)
from rackproof.logs._reading import Log, LogParser, clean
from rackproof.logs.clock_reasons import CLOCK_REASONS, read_mask, slowdowns_of, unknown_bits
from rackproof.logs.gpu_description import known_readings, lacking_beside
from rackproof.logs.gpu_values import COLUMN_WORDS, is_count, is_number
from rackproof.logs.nvidia_smi import WELL, is_fabric_unhealthy, recovery_verdict

_LOWER = Direction.LOWER
MAX_COLUMNS = 1000
"""Largest number of columns; current drivers have 226."""
_KEYS = frozenset({"index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"})
"""Columns with different values for all GPUs of a machine."""
_UUIDS = ("uuid", "gpu_uuid")
_SERIALS = ("serial", "gpu_serial")
"""Columns with different values for the GPUs of most machines."""
_NAMED = re.compile(r"[0-9A-Za-z]")
"""Pattern of the start of a text that identifies a GPU, unlike `[N/A]`."""
_TO_THE_SECOND = len("2024/01/31 12:00:00")
"""Length of a time without its fraction of a second."""
_MEASURED: Mapping[str, tuple[str, Direction | None]] = {
    "temperature.gpu": ("gpu_temperature", _LOWER),
    "power.draw": ("gpu_power", None),
    "memory.used": ("gpu_memory_used", _LOWER),
    "clocks.current.sm": ("gpu_sm_clock", None),
    "pcie.link.gen.current": ("pcie_link_generation", None),
    "pcie.link.width.current": ("pcie_link_width", None),
}
"""Name and better direction of the measurement of a column."""
_AS_MEASURED: Mapping[str, str] = {
    **{column: name for column, (name, _direction) in _MEASURED.items()},
    **dict.fromkeys(("power.draw.average", "power.draw.instant"), "gpu_power"),
    "temperature.gpu.tlimit": "gpu_temperature_margin",
    "memory.total": "gpu_memory_total",
}
"""Name of a column's quantity in :func:`is_possible`, which has the limits."""
_NUMBER_COLUMN = re.compile(
    r"(?:temperature|power\.(?!management)|clocks|utilization|memory|pcie\.link|ecc\.errors|enforced\.power"
    r"|remapped_rows\.(?:correctable|uncorrectable|histogram))[a-z0-9_.]*"
)
"""Pattern of columns whose cells are numbers if the GPU has the reading."""
_COUNT_COLUMN = re.compile(r"(?:ecc\.errors|remapped_rows|pcie\.link)\..*")
"""Pattern of columns among these whose numbers have no fraction."""
_DRAM_ERRORS = tuple(f"ecc.errors.uncorrected.volatile.{place}" for place in ("dram", "device_memory"))
"""Columns of the uncorrected errors in a GPU's memory, with the names of new and of old GPUs."""
_OTHER_LISTS = {
    "pid": "processes (--query-compute-apps)",
    "process_name": "processes (--query-compute-apps)",
    "retired_pages.address": "retired pages (--query-retired-pages)",
    "retired_pages.cause": "retired pages (--query-retired-pages)",
}
"""Columns of lists about other subjects than GPUs, with the subject."""
_NAMES = (*_UUIDS, "index", "pci.bus_id", "gpu_bus_id", *_SERIALS)
"""Columns that identify a GPU. The first one with a value is used."""
_HEALTH_WORDS = re.compile(
    r"ecc\.(?:mode|errors)\.|remapped_rows\.|retired_pages\.|gpu_recovery_action|reset_status\.|fabric\.|inforom"
    r"\.checksum|mig\.mode"
    r"|clocks_(?:event|throttle)_reasons\."
)
"""Pattern of columns of words that show something of a GPU's state, in addition to numeric columns."""
_NOTHING = re.compile(r"\[?(?:N/A|Not Supported|Requested functionality has been deprecated)\]?")
"""Pattern of cells without a value."""
_REASONS = re.compile(r"clocks_(?:event|throttle)_reasons\.([a-z_]+)")
"""Pattern of columns with reasons for low clocks, whose older name is throttle reasons."""
_CELL = rb"[A-Za-z0-9_.]+(?: \[[^\]\n]{1,20}\])?"
_HEAD = re.compile(
    rb"(?:\A|\n)(?:(?:index|name|uuid|timestamp|count|gpu_name|gpu_uuid)(?:, " + _CELL + rb"){1,1000}|"
    rb"(?:temperature|power|clocks|clocks_event_reasons|clocks_throttle_reasons|utilization|memory|ecc|pcie|pci"
    rb"|fabric|retired_pages|remapped_rows|mig|driver_version|serial|vbios_version|pstate)(?:\.[a-z0-9_.]+)?"
    rb"(?: \[[^\]\n]{1,20}\])?(?:, " + _CELL + rb"){0,1000})\r?\n"
)
"""Pattern of a header's line, by its first column."""
# The group is atomic. Otherwise, the cells of a long line that is no row would be tried in all combinations.
_VALUE = (
    rb"(?>(?:\d{4}/\d\d/\d\d [\d:.]+|-?\d[\d.]*(?: (?:MiB|W|MHz|%|us))?|0x[0-9A-Fa-f]+|GPU-[0-9A-Fa-f-]+"
    rb"|[0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+|(?:NVIDIA|Tesla|Quadro|GeForce)[ \w.-]+|[0-9A-F.]+|Enabled|Disabled"
    rb"|Active|Not Active|Default|Yes|No|None|P\d{1,2}|N/A|\[[^\]\n]{1,60}\])"
    rb"(?=,|\s*(?:\n|\Z)))"
)
_HEADLESS = re.compile(
    rb"\A(?:[ \t\r]*+\n|(?i:warning)[^\n]*\n)*+"
    rb"(?=[^\n]*(?:GPU-[0-9A-Fa-f]{8}-|NVIDIA |Tesla |Quadro |GeForce |\d (?:MiB|W|MHz|%)|0x[0-9A-Fa-f]{16}))"
    + _VALUE
    + rb"(?:, "
    + _VALUE
    + rb"){1,200}+\s*(?:\n|\Z)"
)
"""Pattern of rows without a header that have a value that only nvidia-smi prints."""


class _Rounds:
    """The rounds of a query in a loop, each of which lists every GPU once, in the same order.

    A GPU's rank is its position in the order in which the GPUs were first listed. A new round begins with a
    row whose rank is not higher than that of the row before it.
    """

    def __init__(self) -> None:
        self._ranks: dict[str, int] = {}
        self._round: list[int] = []
        self._begun = 0
        """Line of the first row of the present round."""
        self._of_run = 0
        """Number of finished rounds of the present run."""
        self._finished: dict[tuple[int, ...], int] = {}
        """The different rounds before the last one of a run, each with its first line."""
        self._last: dict[tuple[int, ...], int] = {}
        """The different last rounds of runs with several rounds."""

    def add(self, name: str, at: int) -> bool:
        """Add a row. Return whether it begins another round of a loop of several GPUs.

        The round before it must have listed all GPUs. A list with one GPU twice is no loop.
        """
        if name not in self._ranks and len(self._ranks) > MAX_GPUS:
            return False
        rank = self._ranks.setdefault(name, len(self._ranks))
        begins = bool(self._round) and rank <= self._round[-1]
        follows = begins and rank == 0 and len(self._round) == len(self._ranks) > 1
        if begins:
            self._close(self._finished)
        if not self._round:
            self._begun = at
        self._round.append(rank)
        return follows

    def end(self) -> None:
        """End a run of the query. Its last round may be cut, if there are others."""
        if self._round:
            self._close(self._last if self._of_run else self._finished)
        self._of_run = 0

    def _close(self, rounds: dict[tuple[int, ...], int]) -> None:
        """End the present round."""
        if len(rounds) < MAX_GPUS:
            rounds.setdefault(tuple(self._round), self._begun)
        self._round = []
        self._of_run += 1

    def incomplete(self, *, may_be_cut: bool) -> Iterator[tuple[int, list[str]]]:
        """Yield the first line, and the missing GPUs, of each round without all GPUs.

        ``may_be_cut`` states whether the last round of a run may lack GPUs at the end of the list.
        """
        every = tuple(range(len(self._ranks)))
        wanted = [(ranks, at, every) for ranks, at in self._finished.items()]
        wanted += [
            (ranks, at, every[: len(ranks)] if may_be_cut else every) for ranks, at in self._last.items()
        ]
        for ranks, at, whole in wanted:
            if ranks != whole:
                yield at, [name for name, rank in self._ranks.items() if rank not in ranks]


class NvidiaSmiCsvParser(LogParser):
    """The parser of ``nvidia-smi --query-gpu=… --format=csv``. Without its header line, rows are unproven."""

    format: ClassVar[str] = "nvidia_smi_csv"
    description: ClassVar[str] = "nvidia-smi --query-gpu=… --format=csv"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain the header line of a query, or start with its rows."""
        return _HEAD.search(head) is not None or _HEADLESS.match(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.columns: list[tuple[str, str]] = []
        """Name and unit of each column, "" without one."""
        self.header: list[str] = []
        self.numbers: list[int] = []
        """Positions of the columns whose cells are numbers."""
        self.words: list[str] = []
        """Columns with words that checks know."""
        self.reasons: list[tuple[int, str]] = []
        """Positions and names of the columns with reasons for low clocks."""
        self.moment = ""
        """Time of the last row, to the second, or "" without the column."""
        self.seen: set[tuple[str, str]] = set()
        """Names of GPUs in the rows of one second, or of one round of a loop: column and value."""
        self.rounds = _Rounds()
        self.measurements: list[Measurement] = []
        self.readings: dict[GpuReadings, int] = {}
        """Values that do not change while a query runs in a loop, with the first line of each."""
        self.lasting: set[tuple[str, ...]] = set()
        """Cells from which these values were read: most rows of a loop have the same cells."""
        self.rows = 0
        self.other_list = ""
        """Subject of the table, if it is not GPUs."""
        self.shows_health = False
        """True if any cell shows something of a GPU's state."""
        self.gpus: dict[str, int] = {}
        """Number of rows of each GPU."""
        self.judged: list[str] = []
        self.health_words: list[str] = []
        """Judged columns, and columns of words that show something of a GPU's state."""
        self.filled: dict[str, tuple[str, set[str]]] = {}
        """Product name of each GPU, and the judged columns in which it had a value."""
        self.indexes: dict[int, None] = {}
        """The indexes of the GPUs in the order in which they were first listed."""
        self.counted: set[float] = set()
        """Different numbers of GPUs that rows state in the column ``count``."""
        self.last_line = 0
        self.is_headless = False

    def line(self, at: int, text: str) -> None:
        """Read the header or a row."""
        if not text.strip():
            return
        self.last_line = at
        cells = [cell.strip() for cell in next(csv.reader([text]), [])]
        if not self.columns:
            self._before_rows(at, text, cells)
        elif cells == self.header:
            # The query was started again with the same output file.
            self.rounds.end()
            self.seen.clear()
        elif len(cells) != len(self.columns):
            if not find_remark(self.log, at, text):
                message = f"{amount(len(cells), 'value')} for {amount(len(self.columns), 'column')}"
                self.log.find("damaged_line", message, Verdict.UNPROVEN, line=at, excerpt=text)
        elif self.other_list:
            # A process may have any name.
            named = zip(self.columns, cells, strict=True)
            others = [cell for (name, _unit), cell in named if name not in ("process_name", "name")]
            find_no_answer(self.log, at, ", ".join(others))
        else:
            find_no_answer(self.log, at, text)
            self.rows += 1
            self.row(at, {name: cell for (name, _unit), cell in zip(self.columns, cells, strict=True)}, cells)

    def _before_rows(self, at: int, text: str, cells: list[str]) -> None:
        """Read names and units of the columns from the header. Earlier lines are not part of the table."""
        if find_remark(self.log, at, text):
            return
        line = text.encode("utf-8", "replace") + b"\n"
        if "uuid" in cells or "index" in cells or "name" in cells or _HEAD.match(line):
            self._take_header(cells)
        elif not self.is_headless and _HEADLESS.match(line):
            self.is_headless = True
            message = "no header line above the table, so that its columns are unknown: run it again "
            message += "with --format=csv, without noheader"
            self.log.find("no_header", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def _take_header(self, cells: list[str]) -> None:
        """Read names and units of the columns, and determine their kinds of values: numbers or reasons."""
        self.header = cells
        for column, cell in enumerate(cells[:MAX_COLUMNS]):
            match = re.fullmatch(r"([A-Za-z0-9_.]{1,80})(?: \[([^\]]{1,20})\])?", cell)
            # A heading that cannot be read is stored as "", so that the cells of a row remain in position.
            name, unit = (match[1], match[2] or "") if match else ("", "")
            self.columns.append((name, unit))
            self.other_list = self.other_list or _OTHER_LISTS.get(name, "")
            if _JUDGED.match(name):
                self.judged.append(name)
            if _HEALTH_WORDS.match(name):
                self.health_words.append(name)
            if name in _FAULTS or name in COLUMN_WORDS or _OTHER_WORDS.fullmatch(name):
                self.words.append(name)
            if reason := _REASONS.fullmatch(name):
                self.reasons.append((column, reason[1]))
            elif _NUMBER_COLUMN.fullmatch(name):
                self.numbers.append(column)

    def row(self, at: int, values: dict[str, str], cells: list[str]) -> None:
        """Read the values of one GPU."""
        named = next((text for name in _NAMES if _NAMED.match(text := _word(values, name))), "")
        gpu = clean(named or str(self.rows - 1), 80)
        if named and self.rounds.add(named, at):
            self.seen.clear()
        self._check_once(at, values)
        if values.get("name"):
            self.log.tag("device", values["name"])
        if values.get("driver_version"):
            self.log.tag("driver_version", values["driver_version"])
        self._count(values, named)
        numbers: dict[str, float] = {}
        for number in self.numbers:
            name, unit = self.columns[number]
            value = self._cell(at, gpu, name, unit, cells[number])
            if value is not None:
                # A column may be requested twice.
                numbers[name] = max(value, numbers.get(name, value))
        self._judge_errors(at, gpu, numbers)
        for column, reason in self.reasons:
            self._judge_reason(at, gpu, reason, cells[column])
        self._judge_words(at, gpu, values)
        self._judge_identity(at, gpu, values)
        readings = _readings(f"GPU {gpu}", values, numbers)
        judge_gpu(self.log, readings, at)
        lasting = (gpu, *(values.get(column, "") for column in _LASTING))
        if lasting not in self.lasting and len(self.readings) < MAX_GPUS:
            self.lasting.add(lasting)
            self.readings.setdefault(_lasting(readings), at)

    def _count(self, values: Mapping[str, str], named: str) -> None:
        """Note the name and index of a row's GPU, the number of GPUs that it states, and its readings."""
        if named and (named in self.gpus or len(self.gpus) <= MAX_GPUS):
            self.gpus[named] = self.gpus.get(named, 0) + 1
        index, stated = values.get("index", ""), leading(values.get("count", ""))
        if index.isdecimal() and len(self.indexes) <= MAX_GPUS:
            self.indexes.setdefault(int(index[:9]))
        if stated is not None and len(self.counted) < MAX_GPUS:
            self.counted.add(stated)
        # A table of any length could contain any number of GPUs.
        if named in self.filled or len(self.filled) <= MAX_GPUS:
            _, readings = self.filled.setdefault(named, (values.get("name", ""), set()))
            readings.update(_filled_ones(self.judged, values))
        self.shows_health = self.shows_health or bool(_filled_ones(self.health_words, values))

    def _check_once(self, at: int, values: dict[str, str]) -> None:
        """Record a GPU that a table lists twice in one second, unless this is a new round of a loop."""
        moment = values.get("timestamp", "")[:_TO_THE_SECOND]
        if moment != self.moment:
            self.moment = moment
            self.seen.clear()
        serials = (column for column in _SERIALS if identifies_gpu(_word(values, column), _product(values)))
        for column in (*(_KEYS & values.keys()), *serials):
            cell = column, values[column]
            if cell in self.seen:
                find_twice(self.log, at, f"{column} {cell[1]}", ", ".join(values.values()))
            elif _NAMED.match(cell[1]) and len(self.seen) < 20_000:
                self.seen.add(cell)

    def _cell(self, at: int, gpu: str, name: str, unit: str, cell: str) -> float | None:
        """Return the number in a cell, or None if it has none or an impossible one.

        Text other than N/A, and an impossible number, are findings.
        """
        is_empty = _NOTHING.fullmatch(cell) is not None
        self.shows_health = self.shows_health or not is_empty
        value = leading(cell)
        if value is None and is_empty:
            return None
        if value is not None and not _can_be(name, unit, value):
            message = f"GPU {gpu}: {name} is {cell:.60}, which cannot be"
            self.log.find("impossible_value", message, Verdict.UNPROVEN, line=at)
        elif value is None or not _has_form(name, cell):
            message = f"GPU {gpu}: {name} is {cell or 'empty':.60}, no number"
            self.log.find("gpu_value_unknown", message, Verdict.UNPROVEN, line=at)
        else:
            self._number(at, gpu, name, unit, value)
            return value
        return None

    def _number(self, at: int, gpu: str, name: str, unit: str, value: float) -> None:
        """Store the number of a column that is measured."""
        measured = _MEASURED.get(name)
        # A query in a loop may write a table of any length.
        if measured and len(self.measurements) < 20_000:
            measurement, direction = measured
            self.measurements.append(
                self.measure(measurement, value, unit, direction, at, labels={"gpu": gpu})
            )

    def _judge_errors(self, at: int, gpu: str, numbers: Mapping[str, float]) -> None:
        """Find uncorrected memory errors. Those of DRAM degrade a GPU, as in the XML, and others fail it."""
        of_dram = max((numbers[name] for name in _DRAM_ERRORS if name in numbers), default=0.0)
        if of_dram > 0:
            message = f"GPU {gpu}: {of_dram:g} uncorrected errors in DRAM since the driver was loaded"
            self.log.find("ecc_dram_uncorrected", message, Verdict.DEGRADED, line=at)
        for name, value in numbers.items():
            if "uncorrected.volatile" not in name or name in _DRAM_ERRORS:
                continue
            # The total includes the errors of DRAM.
            if value > (of_dram if name.endswith(".total") else 0):
                self.log.find("ecc_uncorrected", f"GPU {gpu}: {name} is {value:g}", Verdict.FAIL, line=at)

    def _judge_reason(self, at: int, gpu: str, reason: str, cell: str) -> None:
        """Judge the reasons for low clocks: the mask of all reasons, or whether a single one is active."""
        if reason == "supported" or _NOTHING.fullmatch(cell):
            return
        bits = _bits(reason, cell)
        if bits is None or unknown_bits(bits):
            message = f"GPU {gpu}: unknown reasons for low clocks: {reason} is {cell:.60}"
            self.log.find("gpu_value_unknown", message, Verdict.UNPROVEN, line=at)
        elif slowdowns := slowdowns_of(bits):
            shown = ", ".join(slowdown.words for slowdown in slowdowns)
            message = f"GPU {gpu}: slowed down ({shown}): look at cooling and power"
            self.log.find("slowed_down", message, Verdict.DEGRADED, line=at)

    def _judge_words(self, at: int, gpu: str, values: Mapping[str, str]) -> None:
        """Judge columns of words as in the XML: repairs, the fabric, the recovery action, the infoROM."""
        log = self.log
        for column, (code, fault) in _FAULTS.items():
            if values.get(column) in _YES:
                log.find(code, f"GPU {gpu}: {fault}", Verdict.FAIL, line=at)
        for column in self.words:
            if not _is_known(column, values[column]):
                message = f"GPU {gpu}: an unknown value: {column} is {values[column] or 'empty':.60}"
                log.find("gpu_value_unknown", message, Verdict.UNPROVEN, line=at)
        self._judge_fabric_health(at, gpu, values)
        action = values.get("gpu_recovery_action", "")
        if not _NOTHING.fullmatch(action) and (verdict := recovery_verdict(action)):
            log.find("recovery_action", f"GPU {gpu}: the driver requires: {action:.60}", verdict, line=at)
        if values.get("inforom.checksum_validation", "") == "invalid":
            message = f"GPU {gpu}: its infoROM is corrupted: {INFOROM_REMEDY}"
            log.find("inforom_corrupted", message, Verdict.FAIL, line=at)

    def _judge_identity(self, at: int, gpu: str, values: Mapping[str, str]) -> None:
        """Record a row without the UUID or product name of a GPU, and N/A for what its model has."""
        for column in (*_UUIDS, *_PRODUCTS):
            cell = values.get(column)
            if cell is None:
                continue
            if _NOTHING.fullmatch(cell or "N/A") or (column in _UUIDS and not cell.startswith("GPU-")):
                message = f"GPU {gpu} has no {column}: it is {cell or 'empty':.60}"
                self.log.find("gpu_lost", message, Verdict.UNPROVEN, line=at)
        lacking = _not_available(values)
        find_not_available(self.log, f"GPU {gpu}", lacking, at)

    def _judge_fabric_health(self, at: int, gpu: str, values: Mapping[str, str]) -> None:
        """Judge the health of a GPU's NVLink fabric, and its parts."""
        summary = _word(values, "fabric.health.summary")
        if is_fabric_unhealthy(summary):
            message = f"GPU {gpu}: fabric health is {summary:.40}"
            self.log.find("fabric_unhealthy", message, Verdict.FAIL, line=at)
            return
        for column in values.keys() - {"fabric.health.summary"}:
            if column.startswith("fabric.health.") and (cell := _word(values, column)) not in WELL:
                message = f"GPU {gpu}: an unknown value: {column} is {cell:.60}"
                self.log.find("gpu_value_unknown", message, Verdict.UNPROVEN, line=at)

    def _find_lacking(self) -> None:
        """Record a GPU without a reading that another GPU reports in the same requested column."""
        gpus = list(self.filled)
        for index, lacking in lacking_beside(list(self.filled.values())):
            find_lacking_readings(self.log, f"GPU {gpus[index]}", sorted(lacking))

    def finish(self) -> ParsedLog:
        """Return the parsed log. It passes only if it has rows, and no finding that is worse."""
        judge_neighbours(self.log, list(self.readings.items()))
        self._find_lacking()
        if self.other_list:
            message = f"a list of {self.other_list}, which shows nothing of the GPUs' state"
            self.log.find("no_rows", message, Verdict.UNPROVEN)
        elif not self.rows and not self.is_headless:
            self.log.find("no_rows", "no GPU in the table", Verdict.UNPROVEN)
        elif self.rows:
            self._judge_content()
        tag_moment(self.log, self.moment)
        if self.rows and self.log.ends_in_line:
            self.log.find("cut_off", "the table ends in mid-line", Verdict.UNPROVEN, line=self.last_line)
        self.log.tag("gpus", len(self.gpus) or self.rows)
        return self.log.parsed(
            self.format, Verdict.PASS if self.rows else Verdict.UNPROVEN, self.measurements
        )

    def _judge_content(self) -> None:
        """Record rows that identify no GPU, show nothing of its state, or are fewer than the GPUs."""
        if not self.gpus:
            message = "no column names a GPU: add uuid or index"
            self.log.find("gpu_missing", message, Verdict.UNPROVEN)
        elif any(count != len(self.gpus) for count in self.counted):
            counted = ", ".join(f"{count:g}" for count in sorted(self.counted)[:4])
            message = f"rows of {amount(len(self.gpus), 'GPU')}, and {counted} counted"
            self.log.find("gpu_missing", message, Verdict.UNPROVEN)
        self.rounds.end()
        # If the indexes do not ascend, the first round may have lacked a GPU.
        may_be_cut = bool(self.moment) and list(self.indexes) == sorted(self.indexes)
        for at, lacking in self.rounds.incomplete(may_be_cut=may_be_cut):
            message = f"a round of the loop lacks GPU {', '.join(lacking[:4])}"
            self.log.find("gpu_missing", message, Verdict.UNPROVEN, line=at)
        find_missing_indexes(self.log, "the table", self.indexes)
        if not self.shows_health:
            message = "no value shows the state of the GPUs: add temperature.gpu and ecc.errors.…"
            self.log.find("no_rows", message, Verdict.UNPROVEN)


_PRODUCTS = ("name", "gpu_name")
"""Columns of the product name."""
_YES, _NO = ("Yes", "1"), ("No", "0")
"""Cells of the columns of :data:`_FAULTS`."""
_FAULTS: Mapping[str, tuple[str, str]] = {
    "remapped_rows.pending": ("remap_pending", "a row remap waits for a reset"),
    "retired_pages.pending": ("remap_pending", "a page waits for a reset to be retired"),
    "remapped_rows.failure": ("remap_failure", "a row could not be remapped"),
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": (
        "ecc_uncorrected",
        "SRAM error threshold exceeded",
    ),
    "reset_status.reset_required": ("recovery_action", "the driver requires a reset"),
    "reset_status.drain_and_reset_recommended": (
        "recovery_action",
        "the driver recommends to drain and reset it",
    ),
}
"""Code and meaning for yes/no columns in which yes is a fault."""
_JUDGED = re.compile(
    r"temperature\.|ecc\.mode\.|ecc\.errors\.uncorrected|remapped_rows\.(?:pending|failure)|gpu_recovery_action"
    r"|fabric\.(?:state|status|health\.summary)|power\.(?:default_)?limit|pcie\.link\.(?:gen|width)\.|mig\.mode"
    r"|memory\.total|clocks_(?:event|throttle)_reasons\.active"
)
"""Pattern of judged columns: if one GPU of a model has a value, every other one in the machine has it."""
_OTHER_WORDS = re.compile(r"index|count|fabric\..+|gpu_recovery_action")
"""Pattern of further columns whose cells are never empty."""
_BIT_OF = {reason.name: reason.bit for reason in CLOCK_REASONS}
"""Bit of each reason by its name in a column."""


def _bits(reason: str, cell: str) -> int | None:
    """Return the bits of the active reasons in a reason's column, or None if they are unknown.

    The column ``active`` has a mask of all reasons. Other columns have ``Active`` or ``Not Active``.
    """
    if reason == "active":
        return read_mask(cell)
    return {"Active": _BIT_OF.get(reason), "Not Active": 0}.get(cell)


def _readings(label: str, values: Mapping[str, str], numbers: Mapping[str, float]) -> GpuReadings:
    """Return a row's judged readings in the form that all notations share.

    Args:
        label: The name of the GPU in messages.
        values: The cells by column.
        numbers: The possible numbers in these cells, by column.
    """
    return GpuReadings(
        label=label,
        name=_product(values),
        ecc=values.get("ecc.mode.current", ""),
        ecc_next=values.get("ecc.mode.pending", ""),
        memory_mib=numbers.get("memory.total"),
        width=numbers.get("pcie.link.width.current"),
        width_max=numbers.get("pcie.link.width.max"),
        generation=numbers.get("pcie.link.gen.current", numbers.get("pcie.link.gen.gpucurrent")),
        generation_max=numbers.get("pcie.link.gen.max"),
        utilisation=numbers.get("utilization.gpu"),
        temperature_c=numbers.get("temperature.gpu"),
        margin_c=numbers.get("temperature.gpu.tlimit"),
        memory_c=numbers.get("temperature.memory"),
        power_limit_w=min(
            (numbers[name] for name in ("power.limit", "enforced.power.limit") if name in numbers),
            default=None,
        ),
        power_default_w=numbers.get("power.default_limit"),
        clock_mhz=numbers.get("clocks.current.sm"),
        clock_max_mhz=numbers.get("clocks.max.sm"),
        mig=values.get("mig.mode.current", ""),
        compute_mode=values.get("compute_mode", ""),
        serial=_word(values, *_SERIALS),
        spent_banks=numbers.get("remapped_rows.histogram.none"),
        remapped_rows=sum(
            numbers.get(f"remapped_rows.{kind}", 0) for kind in ("correctable", "uncorrectable")
        ),
        sram_corrected=numbers.get("ecc.errors.corrected.aggregate.sram"),
        dram_corrected=numbers.get("ecc.errors.corrected.aggregate.dram"),
        fabric="/".join(filter(None, (_word(values, column) for column in _FABRIC))),
        bus_id=_word(values, "pci.bus_id", "gpu_bus_id"),
        fabric_state=_word(values, "fabric.state"),
        fabric_status=_word(values, "fabric.status"),
    )


def _can_be(name: str, unit: str, value: float) -> bool:
    """Return whether a GPU can report a number in a column."""
    return is_possible(_AS_MEASURED.get(name, name), value) and not (unit == "%" and value > 100)


def _has_form(name: str, cell: str) -> bool:
    """Return whether a cell is nothing but a number, and a whole one in a column that counts."""
    return is_count(cell) if _COUNT_COLUMN.match(name) else is_number(cell.removeprefix("-"))


def _is_known(column: str, cell: str) -> bool:
    """Return whether a cell has a word that checks know, or is in a column that is judged otherwise."""
    if _NOTHING.fullmatch(cell):
        return True
    if column in _FAULTS:
        return cell in _YES or cell in _NO
    if column in COLUMN_WORDS:
        return cell in COLUMN_WORDS[column]
    if column in ("index", "count"):
        return cell.isdecimal()
    # nvidia-smi prints N/A for a missing value, so an empty cell lost its text.
    return bool(cell)


def _not_available(values: Mapping[str, str]) -> list[str]:
    """Return the queried columns with N/A that have a value on every GPU of the model."""
    known = known_readings(
        _product(values),
        leading(values.get("driver_version", "").partition(".")[0]),
        mig=values.get("mig.mode.current", ""),
        ecc=values.get("ecc.mode.current", ""),
    )
    queried = ([column for column in reading.columns if column in values] for reading in known)
    return [columns[0] for columns in queried if columns and not _filled_ones(columns, values)]


def _product(values: Mapping[str, str]) -> str:
    """Return the product name in a row, or "" without one."""
    return values.get("name", values.get("gpu_name", ""))


def _filled_ones(columns: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """Return the columns in which a row states a value."""
    return [name for name in columns if name in values and not _NOTHING.fullmatch(values[name])]


def _word(values: Mapping[str, str], *columns: str) -> str:
    """Return the first cell of some columns that has a value, or ""."""
    cells = (values.get(column, "") for column in columns)
    return next((cell for cell in cells if cell and not _NOTHING.fullmatch(cell)), "")


_FABRIC = ("fabric.clusterUuid", "fabric.cliqueId")
"""Columns that identify the GPU's part of its NVLink fabric."""
_LASTING = (
    *("name", "gpu_name", "ecc.mode.current", "ecc.mode.pending", "memory.total"),
    *("pcie.link.width.current", "pcie.link.width.max", "pcie.link.gen.max", "power.limit", "clocks.max.sm"),
    "enforced.power.limit",
    *("mig.mode.current", "serial", "gpu_serial", "pci.bus_id", "gpu_bus_id", *_FABRIC),
)
"""Columns whose values are constant from row to row of a loop."""


def _lasting(readings: GpuReadings) -> GpuReadings:
    """Return the readings of a GPU that are constant from row to row of a loop."""
    return GpuReadings(
        label=readings.label,
        name=readings.name,
        ecc=readings.ecc,
        ecc_next=readings.ecc_next,
        memory_mib=readings.memory_mib,
        width=readings.width,
        width_max=readings.width_max,
        generation_max=readings.generation_max,
        power_limit_w=readings.power_limit_w,
        clock_max_mhz=readings.clock_max_mhz,
        mig=readings.mig,
        serial=readings.serial,
        fabric=readings.fabric,
        bus_id=readings.bus_id,
    )
