"""Parse the brief outputs of nvidia-smi: its table without options, and ``nvidia-smi dmon``.

    |   0  Tesla V100-SXM2...  Off  | 00000000:00:00.0 Off |                    0 |
    | N/A   40C    P0    43W / 300W |      0MiB / 32510MiB |      0%      Default |

Both show faults: a GPU that does not answer, uncorrected memory errors, or heat. They show no memory repairs,
no links, and no reason for low clocks, so a log without a fault is unproven. :func:`rackproof.logs.parse`
creates the parsers, and reads tables in the logs of jobs with :class:`TableFaults`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import ClassVar

from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs._nvidia_smi import (
    MAX_GPUS,
    GpuReadings,
    find_missing_indexes,
    find_remark,
    find_twice,
    is_possible,
    judge_gpu,
    judge_neighbours,
)
from rackproof.logs._reading import Log, LogParser, clean, number

_TABLE_HEAD = b"| NVIDIA-SMI "
_ROW = re.compile(rb"(?m)^\|[^\n]{1,300}")
_HEADING = re.compile(r"^\| NVIDIA-SMI \d")
_FIRST_ROW = re.compile(
    r"^\|\s+(\d{1,4})\s+(\S.{0,60}?)\s+(?:On|Off|N/A|ERR!|WDDM|TCC|MCDM)\s*"
    r"\|\s*([0-9A-Fa-f:.]{7,20})\s+\S{1,10}\s*\|\s*(\S{1,20})\s*\|"
)
"""Pattern of a GPU's first row: index, name, bus address, and uncorrected memory errors (volatile)."""
_SECOND_ROW = re.compile(r"^\|\s*\S{1,6}\s+(\S{1,6})\s.{0,40}\|.{0,24}/\s*(\d{1,9})MiB\s*\|")
"""Pattern of a GPU's second row: temperature, and total memory in MiB."""
_FAILED_HEAD = re.compile(
    rb"\A(?:[^\n]{0,300}\n){0,4}"
    rb"(?:NVIDIA-SMI has failed|Unable to determine the device handle for GPU|Failed to initialize NVML)"
)
"""Pattern of messages that nvidia-smi prints in place of its output, at the beginning of a log."""
_DMON_HEAD = re.compile(
    rb"(?m)^#[^\n]{0,40}\bgpu,? +(?!pid\b)(?:[a-z]+,? +){0,30}(?:pwr|sm|fb|mclk|pviol|dbecc|rxpci)\b"
)
"""Pattern of dmon's header (``# gpu   pwr gtemp mtemp``). That of pmon has ``pid``."""
_FAULTS_BESIDE_A_JOB = ("gpu_lost", "ecc_uncorrected", "too_hot")
"""The faults that fail a job's log. Settings, such as ECC that is off, are the choice of a job's owner."""
_NO_VALUE = ("-", "N/A")
"""Cells of dmon for a value that the GPU lacks."""
_NO_PROOF = "save nvidia-smi -q, which also shows repairs of memory, PCIe, and reasons for low clocks"


def _find_no_proof(log: Log, name: str) -> None:
    """Record that an output without a fault shows too little of a GPU to prove its health."""
    log.find("shows_too_little", f"{name} shows too little to prove health: {_NO_PROOF}", Verdict.UNPROVEN)


class _BriefParser(LogParser):
    """A parser of an output that jobs print to show the state of their node.

    A later block may show that the log is that of a job. So the parser keeps its findings and tags apart
    until the end, because a job's own lines and its node's settings are judged by other rules.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.found = Log(log.name)
        """Findings and tags of this parser."""

    def add_found(self, *codes: str) -> None:
        """Add the findings with some codes to the log, or all findings and tags if no code is given."""
        for code, findings in self.found.findings.items():
            if codes and code not in codes:
                continue
            for finding in findings:
                line = finding.source.line if finding.source else None
                self.log.find(code, finding.message, finding.verdict, line=line, excerpt=finding.excerpt)
            self.log.counts[code] += self.found.counts[code] - len(findings)
        for key, text in self.found.tags.items() if not codes else ():
            self.log.tag(key, text)

    def replace(self) -> None:
        """Give way to the parser of another format. Add only faults that count in any log."""


class NvidiaSmiTableParser(_BriefParser):
    """The parser of the table that ``nvidia-smi`` prints, once or repeatedly."""

    format: ClassVar[str] = "nvidia_smi_table"
    description: ClassVar[str] = "nvidia-smi without options: faults only, never a pass"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain the table, or begin with an error of nvidia-smi."""
        return _TABLE_HEAD in head or _FAILED_HEAD.match(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.gpus: dict[int, GpuReadings] = {}
        """Readings of the GPUs in the last table, by index."""
        self.label = ""
        """The GPU of the current row, or "" outside the list of GPUs."""

    def line(self, at: int, text: str) -> None:
        """Read the heading or a row of a table, or a message beside it."""
        if _HEADING.match(text):
            self._close()
        elif "Processes:" in text:
            self.label = ""
        elif row := _FIRST_ROW.match(text):
            self._begin_gpu(at, text, row)
        elif not text.startswith(("|", "+")):
            find_remark(self.found, at, text)
        elif self.label:
            self._take_row(at, text)

    def _begin_gpu(self, at: int, text: str, row: re.Match[str]) -> None:
        """Read the first row of a GPU."""
        index, errors = int(row[1]), row[4]
        self.label = f"GPU {index}"
        if index in self.gpus:
            find_twice(self.found, at, self.label, text)
        if (number(errors) or 0) > 0:
            message = f"{self.label}: {errors} uncorrected memory errors since the driver was loaded"
            self.found.find("ecc_uncorrected", message, Verdict.FAIL, line=at, excerpt=text)
        self._find_errors(at, text)
        self.found.tag("device", row[2])
        if len(self.gpus) < MAX_GPUS:
            ecc = "Disabled" if errors == "Off" else ""
            self.gpus[index] = GpuReadings(label=self.label, name=clean(row[2]), ecc=ecc, bus_id=row[3])

    def _take_row(self, at: int, text: str) -> None:
        """Read a further row of the current GPU."""
        self._find_errors(at, text)
        row = _SECOND_ROW.match(text)
        index = int(self.label.split()[1])
        if row is None or index not in self.gpus:
            return
        degrees = number(row[1].removesuffix("C"))
        if degrees is not None and not is_possible("gpu_temperature", degrees):
            message = f"{self.label}: a temperature of {degrees:g} °C, which cannot be"
            self.found.find("impossible_value", message, Verdict.UNPROVEN, line=at, excerpt=text)
        self.gpus[index] = replace(self.gpus[index], temperature_c=degrees, memory_mib=number(row[2]))
        judge_gpu(self.found, self.gpus[index], at)

    def _find_errors(self, at: int, text: str) -> None:
        """Record ``ERR!``, which nvidia-smi prints for a value that it could not read.

        Drivers also fail to read one sensor of a GPU that works (its fan). A single ``ERR!`` in a row's
        first cell is therefore unproven, except beside the GPU's name. Any other one means a lost GPU.
        """
        sensors, _, others = text.removeprefix("|").partition("|")
        is_named_error = bool(_FIRST_ROW.match(text)) and "ERR!" in sensors
        if sensors.count("ERR!") > 1 or "ERR!" in others or is_named_error:
            message = f"{self.label} does not answer: reboot the node, and look for XIDs in its kernel log"
            self.found.find("gpu_lost", message, Verdict.FAIL, line=at, excerpt=text)
        elif "ERR!" in sensors:
            message = f"{self.label}: a sensor (fan, temperature or power) cannot be read: look at it"
            self.found.find("gpu_value_unknown", message, Verdict.UNPROVEN, line=at, excerpt=text)

    def _close(self) -> None:
        """Compare the GPUs of the finished table with each other, and forget them."""
        find_missing_indexes(self.found, "the table", self.gpus)
        judge_neighbours(self.found, [(gpu, None) for gpu in self.gpus.values()])
        self.gpus, self.label = {}, ""

    def finish(self) -> ParsedLog:
        """Return the log with its faults. Without one, it is unproven."""
        self._close()
        self.add_found()
        _find_no_proof(self.log, "the table of nvidia-smi")
        return self.log.parsed(self.format, Verdict.UNPROVEN, [])


class TableFaults:
    """The faults in tables of nvidia-smi that a job prints beside its own output.

    Without a fault, such a table changes nothing.
    """

    def __init__(self) -> None:
        self._parser: NvidiaSmiTableParser | None = None

    def block(self, log: Log, data: bytes) -> None:
        """Read the rows of tables in the current block of a log."""
        if self._parser is None:
            if _TABLE_HEAD not in data:
                return
            self._parser = NvidiaSmiTableParser(Log(log.name))
        for row in _ROW.finditer(data):
            self._parser.line(log.line_at(row.start()), row[0].decode("utf-8", "replace"))

    def add_to(self, log: Log) -> None:
        """Add the faults that a log does not have yet."""
        if self._parser is None:
            return
        present = {(finding.code, finding.message) for found in log.findings.values() for finding in found}
        for finding in chain.from_iterable(self._parser.found.findings.values()):
            if finding.code in _FAULTS_BESIDE_A_JOB and (finding.code, finding.message) not in present:
                line = finding.source.line if finding.source else None
                log.find(finding.code, finding.message, finding.verdict, line=line, excerpt=finding.excerpt)


class NvidiaSmiDmonParser(_BriefParser):
    """The parser of ``nvidia-smi dmon``: one row for each GPU and moment."""

    format: ClassVar[str] = "nvidia_smi_dmon"
    description: ClassVar[str] = "nvidia-smi dmon: faults only, never a pass"

    @staticmethod
    def recognises(head: bytes) -> bool:
        """Return whether the bytes contain the header of dmon."""
        return _DMON_HEAD.search(head) is not None

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.columns: list[str] = []
        self.gpus: set[int] = set()

    def replace(self) -> None:
        """Add memory errors and heat. :class:`TableFaults` reads tables, but no rows of dmon."""
        self.add_found("ecc_uncorrected", "too_hot")

    def line(self, at: int, text: str) -> None:
        """Read the names of the columns, or a row."""
        words = re.split(r"[,\s]+", text.strip().lstrip("#").strip())
        if "gpu" in words[:3] and text.lstrip().startswith("#"):
            self.columns = [word.lower() for word in words]
        elif text.lstrip().startswith("#") or not self.columns or find_remark(self.found, at, text):
            return
        elif len(words) == len(self.columns) and words[self.columns.index("gpu")].isdecimal():
            self._row(at, text, dict(zip(self.columns, words, strict=True)))
        elif words[0].isdecimal():
            self.found.find(
                "damaged_line", "a row that cannot be read", Verdict.UNPROVEN, line=at, excerpt=text
            )

    def _row(self, at: int, text: str, values: Mapping[str, str]) -> None:
        """Judge the values of one GPU at one moment."""
        index = int(values["gpu"][:9])
        if len(self.gpus) < MAX_GPUS:
            self.gpus.add(index)
        label = f"GPU {index}"
        if self._number(at, label, "dbecc", values) > 0:
            message = f"{label}: {values['dbecc']} uncorrected memory errors"
            self.found.find("ecc_uncorrected", message, Verdict.FAIL, line=at, excerpt=text)
        if self._number(at, label, "tviol", values) > 0:
            message = f"{label}: slowed down by heat (tviol): look at its cooling"
            self.found.find("slowed_down", message, Verdict.DEGRADED, line=at, excerpt=text)
        degrees = self._number(at, label, "gtemp" if "gtemp" in values else "temp", values)
        memory = self._number(at, label, "mtemp", values)
        judge_gpu(self.found, GpuReadings(label, temperature_c=degrees or None, memory_c=memory or None), at)

    def _number(self, at: int, label: str, column: str, values: Mapping[str, str]) -> float:
        """Return the number in a column, or 0 without one. Any other text is a finding."""
        text = values.get(column, "-")
        value = number(text)
        if value is None and text not in _NO_VALUE:
            message = f"{label}: {column} is {text:.40}, no number"
            self.found.find("gpu_value_unknown", message, Verdict.UNPROVEN, line=at)
        elif value is not None and "temp" in column and not is_possible("gpu_temperature", value):
            message = f"{label}: {column} is {text:.40}, which cannot be"
            self.found.find("impossible_value", message, Verdict.UNPROVEN, line=at)
        return value or 0.0

    def finish(self) -> ParsedLog:
        """Return the log with its faults. Without one, it is unproven."""
        # Only some GPUs may be selected (-i), so that a missing index is no fault.
        if not self.gpus:
            self.found.find("no_rows", "no row of a GPU", Verdict.UNPROVEN)
        self.add_found()
        _find_no_proof(self.log, "nvidia-smi dmon")
        return self.log.parsed(self.format, Verdict.UNPROVEN, [])
